//! What the README shows of `cargo x bench catchup`: a chart of rates beside native replication,
//! and a table of rows a second. Both come from the same recorded runs on the newest major.

use std::fmt::Write as _;

use anyhow::Result;
use bench_report::table::grouped;

use super::records::Records;

/// The major whose runs are shown.
const MAJOR: u32 = 18;

/// What a case of the benchmark is called by a reader, in the order of the chart.
const CASES: [(&str, &str); 6] = [
    ("tpcb", "pgbench's TPC-B"),
    ("independent-rows", "single-row updates"),
    ("updates", "updates of 1 KB rows"),
    ("hot-rows", "updates of ten hot rows"),
    ("five-indexes", "updates, five indexes"),
    ("large-insert", "one transaction, 5,000,000 rows"),
];

/// Where the chart is, from the repository's root.
pub(super) const CHART: &str = "docs/benchmarks/overview.svg";

/// The part of the README between its markers: the chart, and the table below it.
pub(super) fn block(records: &Records) -> Result<String> {
    let mut text = format!(
        "![Applying a backlog on PostgreSQL {MAJOR}: times native's rate]({CHART})\n\n\
         | rows a second, PostgreSQL {MAJOR} | native | pgsluice, slot | pgsluice, WAL |\n\
         | --- | ---: | ---: | ---: |\n"
    );
    for (case, title) in CASES {
        let slot = records.run(&format!("catchup:{case}-{MAJOR}"))?;
        let wal = records.run(&format!("catchup:{case}-wal-{MAJOR}"))?;
        let [native, slot, wal] = [slot.native_rate(), slot.our_rate(), wal.our_rate()].map(grouped);
        writeln!(text, "| {title} | {native} | {slot} | {wal} |")?;
    }
    Ok(text)
}

// Pixels of the chart.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 230.0;
/// Right of the longest bar there is room for its figure.
const RIGHT: f64 = 60.0;
const TOP: f64 = 70.0;
const BAR: f64 = 15.0;
const GROUP: f64 = 42.0;

const SLOT_COLOUR: &str = "#9ecae1";
const WAL_COLOUR: &str = "#2171b5";

/// The chart as SVG: two bars for each case, and a line where native replication is.
pub(super) fn chart(records: &Records) -> Result<String> {
    let mut groups = Vec::new();
    for (case, title) in CASES {
        let slot = records.run(&format!("catchup:{case}-{MAJOR}"))?.ratio();
        let wal = records.run(&format!("catchup:{case}-wal-{MAJOR}"))?.ratio();
        groups.push((title, slot, wal));
    }
    let longest = groups.iter().fold(1.0_f64, |longest, (_, slot, wal)| longest.max(*slot).max(*wal));
    let scale = (WIDTH - LEFT - RIGHT) / longest;
    let mut svg = head(groups.len())?;
    for (index, (title, slot, wal)) in groups.iter().enumerate() {
        let top = TOP + index as f64 * GROUP;
        let middle = top + BAR + 5.0;
        writeln!(svg, r#"<text x="{:.0}" y="{middle:.0}" text-anchor="end">{title}</text>"#, LEFT - 10.0)?;
        bar(&mut svg, top, *slot, scale, SLOT_COLOUR)?;
        bar(&mut svg, top + BAR + 2.0, *wal, scale, WAL_COLOUR)?;
    }
    native_line(&mut svg, LEFT + scale, groups.len())?;
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// Background, title and legend.
fn head(groups: usize) -> Result<String> {
    let height = TOP + groups as f64 * GROUP + 25.0;
    let mut svg = String::new();
    writeln!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0} {height:.0}" font-family="sans-serif" font-size="13" fill="#222">"##
    )?;
    writeln!(svg, r##"<rect width="{WIDTH:.0}" height="{height:.0}" fill="#fff"/>"##)?;
    writeln!(
        svg,
        r#"<text x="10" y="22" font-size="15">Applying a backlog, PostgreSQL {MAJOR}: times native's rate</text>"#
    )?;
    for (x, colour, title) in
        [(LEFT, SLOT_COLOUR, "from a logical slot"), (LEFT + 180.0, WAL_COLOUR, "over WAL")]
    {
        writeln!(svg, r#"<rect x="{x:.0}" y="36" width="14" height="14" fill="{colour}"/>"#)?;
        writeln!(svg, r#"<text x="{:.0}" y="48">{title}</text>"#, x + 20.0)?;
    }
    Ok(svg)
}

fn bar(svg: &mut String, top: f64, ratio: f64, scale: f64, colour: &str) -> Result<()> {
    let width = ratio * scale;
    writeln!(
        svg,
        r#"<rect x="{LEFT:.0}" y="{top:.0}" width="{width:.1}" height="{BAR:.0}" fill="{colour}"/>"#
    )?;
    writeln!(
        svg,
        r#"<text x="{:.1}" y="{:.0}" font-size="12">{ratio:.2}</text>"#,
        LEFT + width + 5.0,
        top + BAR - 3.0
    )?;
    Ok(())
}

fn native_line(svg: &mut String, x: f64, groups: usize) -> Result<()> {
    let bottom = TOP + groups as f64 * GROUP;
    writeln!(
        svg,
        r##"<line x1="{x:.1}" y1="{:.0}" x2="{x:.1}" y2="{bottom:.0}" stroke="#d62728" stroke-dasharray="4 3"/>"##,
        TOP - 8.0
    )?;
    writeln!(
        svg,
        r##"<text x="{x:.1}" y="{:.0}" text-anchor="middle" fill="#d62728">native</text>"##,
        bottom + 15.0
    )?;
    Ok(())
}
