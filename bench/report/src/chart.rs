//! Pictures of curves over time, as SVG, one below the other.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::Color as _;

const FONT: &str = "sans-serif";
/// Room beyond the longest curve.
const BEYOND: f64 = 1.03;
/// The least an axis shows: a picture of nothing has axes, too.
const LEAST: f64 = 0.001;

/// Red, green and blue.
pub type Color = (u8, u8, u8);

/// What pgsluice is drawn in.
pub const OURS: Color = (30, 100, 200);
/// What it is measured beside is drawn in.
pub const STOCK: Color = (120, 120, 120);

/// Where the names of the curves stand.
#[derive(Clone, Copy, Debug)]
pub enum Corner {
    /// For curves that begin low.
    UpperLeft,
    /// For curves that fall.
    UpperRight,
    /// For curves that grow.
    LowerRight,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Curve<'a> {
    /// Its entry in the legend; several curves of one name have one.
    pub name: Option<&'a str>,
    /// What it is drawn in.
    pub color: Color,
    /// Seconds, and the quantity that the chart shows.
    pub points: Vec<(f64, f64)>,
}

/// Curves over the same seconds.
#[derive(Clone, Debug)]
pub struct Chart<'a> {
    /// Stands above it.
    pub title: String,
    /// What the height is.
    pub quantity: &'a str,
    /// Where the legend stands.
    pub legend: Corner,
    /// Later ones are drawn over earlier ones.
    pub curves: Vec<Curve<'a>>,
}

/// Writes `charts`, all of one height, to `path` as an SVG of `size` (width and height in pixels).
///
/// # Errors
///
/// If the file cannot be written.
pub fn write(path: &Path, size: (u32, u32), charts: &[Chart<'_>]) -> Result<()> {
    draw(path, size, charts).map_err(|error| anyhow!("drawing {}: {error}", path.display()))
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(path: &Path, size: (u32, u32), charts: &[Chart<'_>]) -> Drawn {
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, chart) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
        chart.draw(part)?;
    }
    area.present()?;
    Ok(())
}

impl Chart<'_> {
    fn longest(&self, pick: fn(&(f64, f64)) -> f64) -> f64 {
        let points = self.curves.iter().flat_map(|curve| curve.points.iter().map(pick));
        points.fold(LEAST, f64::max) * BEYOND
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
        let (seconds, height) = (self.longest(|point| point.0), self.longest(|point| point.1));
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 15))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..seconds, 0.0..height)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.1))
            .x_desc("seconds")
            .y_desc(self.quantity)
            .label_style((FONT, 13))
            .draw()?;
        for Curve { name, color: (red, green, blue), points } in &self.curves {
            let style = RGBColor(*red, *green, *blue).stroke_width(2);
            let series = chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
            if let Some(name) = name {
                series.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
            }
        }
        chart
            .configure_series_labels()
            .position(self.legend.position())
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.2))
            .label_font((FONT, 13))
            .draw()?;
        Ok(())
    }
}

impl Corner {
    fn position(self) -> SeriesLabelPosition {
        match self {
            Corner::UpperLeft => SeriesLabelPosition::UpperLeft,
            Corner::UpperRight => SeriesLabelPosition::UpperRight,
            Corner::LowerRight => SeriesLabelPosition::LowerRight,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn each_chart_has_its_title_and_each_name_one_entry() {
        let curve = |name| Curve { name, color: OURS, points: vec![(0.0, 1.0), (2.0, 0.0)] };
        let chart = |title: &str| Chart {
            title: title.to_owned(),
            quantity: "rows",
            legend: Corner::UpperRight,
            curves: vec![curve(Some("pgsluice")), curve(None)],
        };
        let path = std::env::temp_dir().join(format!("pgsluice-chart-{}.svg", std::process::id()));
        write(&path, (400, 300), &[chart("above"), chart("below")]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let count = |text: &str| svg.lines().filter(|line| line.trim() == text).count();
        assert_eq!((count("above"), count("below"), count("pgsluice")), (1, 1, 2));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let error = write(Path::new("/nowhere/x.svg"), (10, 10), &[]).unwrap_err();
        assert!(error.to_string().contains("/nowhere/x.svg"), "{error}");
    }
}
