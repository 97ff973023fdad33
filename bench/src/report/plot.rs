//! One picture per case: how far each run was when, native in grey, ours in blue.

use std::path::Path;

use anyhow::Result;
use bench_report::chart::{self, Chart, Corner, Curve};

use super::Case;
use crate::lab::measure::Run;

const SIZE: (u32, u32) = (800, 440);

/// Writes `case` as an SVG.
pub(super) fn write(path: &Path, case: &Case) -> Result<()> {
    // Where the curves are not: what is left falls, what is there grows.
    let mut runs = case.stock.iter().chain(&case.ours);
    let falls = runs.all(|run| run.curve.last().is_some_and(|last| last.1 <= 0.0));
    let [stock, ours] = &case.sides;
    let curves = curves(stock, chart::STOCK, &case.stock).chain(curves(ours, chart::OURS, &case.ours));
    let chart = Chart {
        title: format!("{}, PostgreSQL {}", case.what, case.version),
        quantity: case.curve_label.as_ref(),
        legend: if falls { Corner::UpperRight } else { Corner::LowerRight },
        curves: curves.collect(),
    };
    chart::write(path, SIZE, &[chart])
}

/// All runs of a side, with one entry in the legend.
fn curves<'a>(side: &'a str, color: chart::Color, runs: &'a [Run]) -> impl Iterator<Item = Curve<'a>> {
    let name = move |index| (index == 0).then_some(side);
    runs.iter().enumerate().map(move |(index, run)| Curve {
        name: name(index),
        color,
        points: run.curve.clone(),
    })
}
