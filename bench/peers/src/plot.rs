//! One picture per case: above, the size of the files; below, transactions done; over the seconds of the
//! median run.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::engines::Arm;
use crate::report::Case;
use crate::workload::Sample;

const SIZE: (u32, u32) = (900, 760);
const FONT: &str = "sans-serif";

/// How high a sample is drawn, given the first one.
type Height = fn(&Sample, &Sample) -> f64;

fn color(arm: Arm) -> RGBColor {
    match arm {
        Arm::Ours => RGBColor(30, 100, 200),
        Arm::OursApart => RGBColor(20, 50, 120),
        Arm::OursRestricted => RGBColor(90, 180, 230),
        Arm::OursOff => RGBColor(120, 120, 120),
        Arm::Redb => RGBColor(200, 60, 40),
        Arm::Fjall => RGBColor(230, 150, 30),
        Arm::Sqlite => RGBColor(60, 150, 70),
        Arm::Lmdb => RGBColor(140, 80, 170),
    }
}

/// Writes `case` as an SVG.
pub(crate) fn write(path: &Path, case: &Case) -> Result<()> {
    draw(path, case).map_err(|error| anyhow!("drawing {}: {error}", path.display()))
}

fn draw(path: &Path, case: &Case) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let halves = area.split_evenly((2, 1));
    let pictures: [(&str, Height); 2] = [
        ("MB of files", |sample, _| sample.file_bytes as f64 / 1e6),
        ("thousand transactions done", |sample, first| {
            (sample.transactions - first.transactions) as f64 / 1e3
        }),
    ];
    for (half, (label, value)) in halves.iter().zip(pictures) {
        let curve = |arm: Arm| -> Vec<(f64, f64)> {
            let samples = case.median(arm).map_or(&[][..], |run| &run.samples);
            samples.iter().map(|sample| (sample.seconds, value(sample, &samples[0]))).collect()
        };
        let points: Vec<(f64, f64)> = Arm::ALL.into_iter().flat_map(curve).collect();
        let longest = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).fold(0.001, f64::max) * 1.03;
        let mut chart = ChartBuilder::on(half)
            .caption(format!("{}: {label}", case.name), (FONT, 15))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..longest(|point| point.0), 0.0..longest(|point| point.1))?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.1))
            .x_desc("seconds")
            .y_desc(label)
            .label_style((FONT, 13))
            .draw()?;
        for arm in Arm::ALL.into_iter().filter(|arm| case.runs.contains_key(arm)) {
            let style = color(arm).stroke_width(2);
            let series = chart.draw_series(LineSeries::new(curve(arm), style))?;
            series.label(arm.name()).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.2))
            .label_font((FONT, 13))
            .draw()?;
    }
    area.present()?;
    Ok(())
}
