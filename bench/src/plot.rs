//! One picture per case: how far each run was when, native in grey, ours in blue.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::measure::Run;
use crate::report::Case;

const SIZE: (u32, u32) = (800, 440);
const NATIVE: RGBColor = RGBColor(120, 120, 120);
const OURS: RGBColor = RGBColor(30, 100, 200);
const FONT: &str = "sans-serif";

/// Writes `case` as an SVG.
pub(crate) fn write(path: &Path, case: &Case) -> Result<()> {
    draw(path, case).map_err(|error| anyhow!("drawing {}: {error}", path.display()))
}

fn draw(path: &Path, case: &Case) -> Result<(), Box<dyn std::error::Error>> {
    let runs = || case.stock.iter().chain(&case.ours);
    let longest = |pick: fn(&(f64, f64)) -> f64| {
        runs().flat_map(|run| run.curve.iter().map(pick)).fold(0.0, f64::max).max(0.001) * 1.03
    };
    let (seconds, height) = (longest(|point| point.0), longest(|point| point.1));
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("{}, PostgreSQL {}", case.what, case.version);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, (FONT, 15))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..seconds, 0.0..height)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.1))
        .x_desc("seconds")
        .y_desc(case.curve_label.as_ref())
        .label_style((FONT, 13))
        .draw()?;
    let [stock, ours] = &case.sides;
    let sides: [(&str, RGBColor, &[Run]); 2] = [(stock, NATIVE, &case.stock), (ours, OURS, &case.ours)];
    for (name, color, runs) in sides {
        for (index, run) in runs.iter().enumerate() {
            let series =
                chart.draw_series(LineSeries::new(run.curve.iter().copied(), color.stroke_width(2)))?;
            // One entry of the legend for all runs of a side.
            if index == 0 {
                series
                    .label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
            }
        }
    }
    // Where the curves are not: what is left falls, what is there grows.
    let falls = runs().all(|run| run.curve.last().is_some_and(|last| last.1 <= 0.0));
    let legend = if falls { SeriesLabelPosition::UpperRight } else { SeriesLabelPosition::LowerRight };
    chart
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .label_font((FONT, 13))
        .draw()?;
    area.present()?;
    Ok(())
}
