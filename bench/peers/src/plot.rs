//! One picture per case over the seconds of the median run: the size of the files above, the
//! finished transactions below.

use std::path::Path;

use anyhow::Result;
use bench_report::chart::{self, Chart, Color, Corner, Curve};

use crate::engines::Arm;
use crate::report::Case;
use crate::workload::Sample;

const SIZE: (u32, u32) = (900, 760);

/// How high a sample is drawn, given the first one.
type Height = fn(&Sample, &Sample) -> f64;

const CHARTS: [(&str, Height); 2] = [
    ("MB of files", |sample, _| sample.file_bytes as f64 / 1e6),
    ("thousand transactions done", |sample, first| (sample.transactions - first.transactions) as f64 / 1e3),
];

fn color(arm: Arm) -> Color {
    match arm {
        Arm::Ours => chart::OURS,
        Arm::OursApart => (20, 50, 120),
        Arm::OursRestricted => (90, 180, 230),
        Arm::OursOff => chart::STOCK,
        Arm::Redb => (200, 60, 40),
        Arm::Fjall => (230, 150, 30),
        Arm::Sqlite => (60, 150, 70),
        Arm::Lmdb => (140, 80, 170),
    }
}

/// Writes `case` as an SVG.
pub(crate) fn write(path: &Path, case: &Case) -> Result<()> {
    chart::write(path, SIZE, &CHARTS.map(|(quantity, height)| picture(case, quantity, height)))
}

fn picture<'a>(case: &Case, quantity: &'a str, height: Height) -> Chart<'a> {
    let arms = Arm::ALL.into_iter().filter(|arm| case.runs.contains_key(arm));
    let curve = |arm: Arm| {
        let samples = case.median(arm).map_or(&[][..], |run| &run.samples);
        let points = samples.iter().map(|sample| (sample.seconds, height(sample, &samples[0]))).collect();
        Curve { name: Some(arm.name()), color: color(arm), points }
    };
    Chart {
        title: format!("{}: {quantity}", case.name),
        quantity,
        legend: Corner::UpperLeft,
        curves: arms.map(curve).collect(),
    }
}
