//! What a benchmark leaves: a table to read, a document, a plot per case, and one JSON object.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use testkit::Major;

use crate::aftermath::Aftermath;
use crate::limit::{Alone, Limit};
use crate::load::Written;
use crate::measure::{Cpu, Run, median};
use crate::{Arm, machine, plot};

/// What a case's figures are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    /// More is better.
    RowsPerSecond,
    /// Of a run's `seconds`; less is better.
    Milliseconds,
    /// CPU seconds of walsenders for a gigabyte of WAL; less is better.
    WalsenderPerGigabyte,
    /// CPU seconds of walsenders for a million rows; less is better.
    WalsenderPerMillion,
    /// CPU seconds of walsenders, pgsluice and the subscriber for a million rows; less is better.
    PipelinePerMillion,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::RowsPerSecond => "rows/s",
            Unit::Milliseconds => "ms",
            Unit::WalsenderPerGigabyte => "CPU s/GB",
            Unit::WalsenderPerMillion | Unit::PipelinePerMillion => "CPU s/million",
        }
    }

    fn digits(self) -> i32 {
        if self == Unit::RowsPerSecond { 0 } else { 3 }
    }

    fn show(self, value: f64) -> String {
        match self {
            Unit::RowsPerSecond => format!("{} {}", grouped(value), self.name()),
            _ => format!("{value:.2} {}", self.name()),
        }
    }
}

/// What titles of server processes are called that send WAL or what was decoded of it.
const WALSENDER: &str = "walsender";

/// Kinds of process with less of their server's CPU time than this are left out of the table; the JSON has them all.
const SHOWN_SHARE_MIN: f64 = 0.03;

/// One case on one major.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Case {
    /// The case and its major, as its plot is named.
    name: String,
    /// When, by what and where it was measured.
    date: String,
    /// What measured it, after `cargo x bench`.
    pub(crate) arguments: String,
    pgsluice: String,
    machine: String,
    pub(crate) version: String,
    /// In words, with its sizes.
    pub(crate) what: String,
    /// What ours reads: `logical` or `wal`.
    #[serde(default = "logical")]
    pub(crate) source: String,
    /// 0 for none.
    pub(crate) goal: f64,
    pub(crate) unit: Unit,
    /// Rows that one run copies or changes.
    rows: u64,
    /// What they are in WAL, where that is asked for.
    #[serde(default)]
    pub(crate) wal_bytes: f64,
    /// What writing the backlog took the publisher.
    pub(crate) publisher: Option<Written>,
    /// What the machine sets.
    pub(crate) limit: Option<Limit>,
    pub(crate) curve_label: Cow<'static, str>,
    /// What the two sides are called.
    pub(crate) sides: [Cow<'static, str>; 2],
    pub(crate) stock: Vec<Run>,
    pub(crate) ours: Vec<Run>,
}

impl Case {
    pub(crate) fn new(name: impl AsRef<str>, major: Major, version: String, goal: f64, rows: u64) -> Case {
        Case {
            name: format!("{}-{major}", name.as_ref()),
            date: machine::date(),
            arguments: String::new(),
            pgsluice: machine::pgsluice_version(),
            machine: machine::machine(),
            version,
            what: String::new(),
            source: logical(),
            goal,
            unit: Unit::RowsPerSecond,
            rows,
            wal_bytes: 0.0,
            publisher: None,
            limit: None,
            curve_label: "".into(),
            sides: [Arm::Native.name().into(), "pgsluice".into()],
            stock: Vec::new(),
            ours: Vec::new(),
        }
    }

    fn has_curve(&self) -> bool {
        !self.curve_label.is_empty()
    }

    pub(crate) fn add(&mut self, arm: Arm, run: Run) {
        match arm {
            Arm::Native => self.stock.push(run),
            Arm::Ours | Arm::Wal => self.ours.push(run),
        }
    }

    /// A progress line.
    pub(crate) fn describe(&self, arm: Arm, repeat: u32, repeats: u32, run: &Run) -> String {
        format!(
            "{repeat}/{repeats} {:6} {:8.3} s, {:>16}, {:6.2} CPU s, {}",
            arm.name(),
            run.seconds,
            self.unit.show(self.value(run)),
            run.cpu.total(),
            if run.equal { "equal" } else { "NOT EQUAL" }
        )
    }

    fn value(&self, run: &Run) -> f64 {
        let walsender = run.cpu.publisher.get(WALSENDER).copied().unwrap_or(0.0);
        match self.unit {
            Unit::RowsPerSecond => self.rows as f64 / run.seconds,
            Unit::Milliseconds => run.seconds * 1e3,
            Unit::WalsenderPerGigabyte => walsender / (self.wal_bytes / 1e9),
            Unit::WalsenderPerMillion => walsender / (self.rows as f64 / 1e6),
            Unit::PipelinePerMillion => {
                let subscriber: f64 = run.cpu.subscriber.values().sum();
                (walsender + run.cpu.pgsluice + subscriber) / (self.rows as f64 / 1e6)
            }
        }
    }

    /// The median, in the case's unit; `None` if that side was not measured.
    pub(crate) fn median(&self, runs: &[Run]) -> Option<f64> {
        (!runs.is_empty()).then(|| median(runs.iter().map(|run| self.value(run))))
    }

    fn ratio(&self) -> Option<f64> {
        let (stock, ours) = (self.median(&self.stock)?, self.median(&self.ours)?);
        Some(match self.unit {
            Unit::RowsPerSecond => ours / stock,
            _ => stock / ours,
        })
    }

    /// Rows per second that nobody who writes every change can exceed on this machine.
    fn limit_rate(&self) -> Option<f64> {
        Some(self.rows as f64 / self.limit?.seconds())
    }

    /// How near ours comes to that.
    fn of_limit(&self) -> Option<f64> {
        Some(self.median(&self.ours)? / self.limit_rate()?)
    }

    /// How many times as long as ours took the publisher wrote.
    fn of_publisher(&self) -> Option<f64> {
        let ours = median(self.ours.iter().map(|run| run.seconds));
        self.publisher.as_ref().filter(|_| ours > 0.0).map(|written| written.seconds / ours)
    }

    fn is_equal(&self) -> bool {
        self.stock.iter().chain(&self.ours).all(|run| run.equal)
    }

    /// For each side, what its runs left.
    fn aftermath_rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for (side, runs) in self.sides.iter().zip([&self.stock, &self.ours]) {
            let Some(left) = aftermath(runs) else { continue };
            let megabytes = |bytes: f64| format!("{:.1}", bytes / 1e6);
            rows.push(vec![
                self.name.clone(),
                side.to_string(),
                grouped(left.updates),
                left.heap_only_share().map_or_else(dash, |share| format!("{:.0} %", share * 100.0)),
                grouped(left.dead_rows),
                megabytes(left.index_bytes),
                megabytes(left.table_bytes),
                megabytes(left.wal_bytes),
            ]);
        }
        rows
    }

    fn json(&self) -> Value {
        let seconds = |runs: &[Run]| runs.iter().map(|run| rounded(run.seconds, 3)).collect::<Vec<_>>();
        let mut value = json!({
            "case": self.name,
            "what": self.what,
            "server": self.version,
            "source": self.source,
            "stock": self.median(&self.stock).map(|value| rounded(value, self.unit.digits())),
            "ours": self.median(&self.ours).map(|value| rounded(value, self.unit.digits())),
            "unit": self.unit.name(),
            "ratio": self.ratio().map(|ratio| rounded(ratio, 3)),
            "goal": (self.goal > 0.0).then_some(self.goal),
            "equal": self.is_equal(),
            "rows": self.rows,
            "limit": self.limit_rate().map(f64::round),
            "of_limit": self.of_limit().map(|share| rounded(share, 3)),
            "stock_seconds": seconds(&self.stock),
            "ours_seconds": seconds(&self.ours),
            "stock_cpu_seconds": cpu_json(&self.stock),
            "ours_cpu_seconds": cpu_json(&self.ours),
            "ours_resident_bytes_max": self.ours.iter().map(|run| run.resident_bytes_max).max(),
        });
        if let Some(limit) = &self.limit {
            let alone = |alone: &Alone| json!({"seconds": rounded(alone.seconds, 3), "cpu_seconds": rounded(alone.cpu, 3)});
            value["walsender_alone"] = alone(&limit.walsender);
            value["sets_alone"] = alone(&limit.sets);
        }
        for (key, runs) in [("stock_aftermath", &self.stock), ("ours_aftermath", &self.ours)] {
            if let Some(left) = aftermath(runs) {
                value[key] = json!({
                    "wal_bytes": left.wal_bytes,
                    "index_bytes": left.index_bytes,
                    "table_bytes": left.table_bytes,
                    "dead_rows": left.dead_rows,
                    "updates": left.updates,
                    "heap_only_updates": left.heap_only_updates,
                });
            }
        }
        if let Some(written) = &self.publisher {
            value["publisher_seconds"] = json!(rounded(written.seconds, 3));
            value["publisher_transactions"] = json!(written.transactions);
            value["written_by"] = json!(written.by);
            value["publisher_ratio"] = json!(self.of_publisher().map(|ratio| rounded(ratio, 3)));
        }
        value
    }
}

fn logical() -> String {
    "logical".to_owned()
}

/// What ours is measured beside.
pub(crate) struct Stock {
    /// For the document: what each side does, and what the columns mean.
    pub(crate) sides: &'static str,
    pub(crate) columns: &'static str,
}

/// Native logical replication.
pub(crate) const NATIVE: Stock = Stock {
    sides: "Native: `binary = true`, `streaming = parallel` (`on` before 16), `synchronous_commit = off`; \
            pgsluice: its defaults unless its section says otherwise; `max_sync_workers_per_subscription` alike",
    columns: "\"Equal\": after every run both ends held the same rows (count and hash). \"Limit\": what the servers \
              alone allow on this machine, measured in the same run: the walsender sending to a reader that throws \
              everything away, and the same number of rows written on the subscriber by set-based statements fed \
              from a table there. Both need the machine's cores, so the limit is the longer of the two, or the sum \
              of their CPU seconds shared by the cores if that is longer; who writes only the last of several \
              versions of a row may be faster than it. \"publisher / ours\": how many times as \
              long as ours took the publisher needed to write the same.",
};

/// A whole benchmark.
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    pub(crate) stock: &'static Stock,
    pub(crate) cases: Vec<Case>,
    pub(crate) settings: Vec<(&'static str, String)>,
}

impl Report {
    pub(crate) fn is_equal(&self) -> bool {
        self.cases.iter().all(Case::is_equal)
    }

    /// The result in one line.
    pub(crate) fn json(&self) -> Value {
        let settings: BTreeMap<_, _> = self.settings.iter().map(|(name, value)| (*name, value)).collect();
        json!({
            "bench": self.bench,
            "servers": self.versions(),
            "machine": machine::machine(),
            "settings": settings,
            "cases": self.cases.iter().map(Case::json).collect::<Vec<_>>(),
        })
    }

    fn versions(&self) -> Vec<&str> {
        distinct(self.cases.iter().map(|case| case.version.as_str()))
    }

    /// The result as an aligned Markdown table.
    pub(crate) fn table(&self) -> String {
        let [stock, ours] = self.cases.first().map_or_else(Default::default, |case| case.sides.clone());
        let (stock_seconds, ours_seconds) = (format!("{stock} s"), format!("{ours} s"));
        let head = [
            "case",
            &stock,
            &ours,
            "ratio",
            "goal",
            "equal",
            &stock_seconds,
            &ours_seconds,
            "limit",
            "of limit",
            "publisher s",
            "publisher / ours",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for case in &self.cases {
            let value = |runs| case.median(runs).map_or_else(dash, |value| case.unit.show(value));
            rows.push(vec![
                case.name.clone(),
                value(&case.stock),
                value(&case.ours),
                case.ratio().map_or_else(dash, |ratio| format!("{ratio:.2}")),
                if case.goal > 0.0 { format!("{:.2}", case.goal) } else { "-".to_owned() },
                if case.is_equal() { "yes" } else { "NO" }.to_owned(),
                seconds(&case.stock),
                seconds(&case.ours),
                case.limit_rate().map_or_else(dash, |limit| case.unit.show(limit)),
                case.of_limit().map_or_else(dash, |share| format!("{share:.2}")),
                case.publisher.as_ref().map_or_else(dash, |written| format!("{:.1}", written.seconds)),
                case.of_publisher().map_or_else(dash, |ratio| format!("{ratio:.2}")),
            ]);
        }
        let mut cpu = vec![
            ["case", "side", "publisher", "subscriber", "pgsluice", "CPU s"].map(str::to_owned).to_vec(),
        ];
        for case in &self.cases {
            for (side, runs) in case.sides.iter().zip([&case.stock, &case.ours]) {
                if !runs.is_empty() {
                    cpu.push(cpu_row(case, side, runs));
                }
            }
        }
        let mut text = format!(
            "{}\nCPU seconds by kind of process, medians (`exited`: all that ended in the run, as those that copy do):\n\n{}",
            aligned(&rows),
            aligned(&cpu)
        );
        let left: Vec<_> = self.cases.iter().flat_map(Case::aftermath_rows).collect();
        if !left.is_empty() {
            let head =
                ["case", "side", "updates", "heap-only", "dead rows", "indexes MB", "tables MB", "WAL MB"];
            let rows = [vec![head.map(str::to_owned).to_vec()], left].concat();
            text.push_str(
                "\nWhat was left on the subscriber (medians; MB are growth, autovacuum was off):\n\n",
            );
            text.push_str(&aligned(&rows));
        }
        text
    }

    /// Writes the plots to `out`, and the document of these cases and of those that were measured there before.
    pub(crate) fn write(mut self, out: &Path) -> Result<()> {
        std::fs::create_dir_all(out)?;
        for case in self.cases.iter().filter(|case| case.has_curve()) {
            plot::write(&out.join(self.plot_name(case)), case)?;
        }
        let records = out.join(format!("{}.jsonl", self.bench));
        self.cases = with_earlier(&records, self.cases)?;
        ensure!(!self.cases.is_empty(), "nothing is recorded in {}: measure first", records.display());
        let lines: Result<Vec<String>, _> = self.cases.iter().map(serde_json::to_string).collect();
        std::fs::write(&records, format!("{}\n", lines?.join("\n")))?;
        std::fs::write(out.join(format!("{}.md", self.bench)), self.document()?)?;
        Ok(())
    }

    fn plot_name(&self, case: &Case) -> String {
        format!("{}-{}.svg", self.bench, case.name)
    }

    fn document(&self) -> Result<String> {
        let mut text = format!("# Benchmark: {}\n\n", self.bench);
        writeln!(
            text,
            "Generated by `cargo x bench {}`, all at once or case by case; do not edit.\n",
            self.bench
        )?;
        let machines = distinct(self.cases.iter().map(|case| case.machine.as_str()));
        writeln!(
            text,
            "- Machine: {}, shared by publisher, subscriber and what replicates between them",
            machines.join("; or, where a case says so, ")
        )?;
        writeln!(text, "- PostgreSQL {}", self.versions().join(" and "))?;
        let settings: Vec<String> =
            self.settings.iter().map(|(name, value)| format!("`{name} = {value}`")).collect();
        writeln!(text, "- Both servers: {}", settings.join(", "))?;
        writeln!(text, "- {}\n", self.stock.sides)?;
        writeln!(
            text,
            "Medians of alternating runs; a ratio is the better the larger. {}\n",
            self.stock.columns
        )?;
        writeln!(text, "{}", self.table())?;
        for case in &self.cases {
            writeln!(text, "## {}\n\n{}.\n", case.name, case.what)?;
            let other = machines.first().is_some_and(|first| *first != case.machine);
            let place = if other { format!(" on {}", case.machine) } else { String::new() };
            writeln!(
                text,
                "Measured on {}{place} with {} on PostgreSQL {} by `cargo x bench {}`.\n",
                case.date, case.pgsluice, case.version, case.arguments
            )?;
            if let Some(written) = &case.publisher {
                writeln!(
                    text,
                    "The publisher took {:.1} s to write it ({} transactions, {} sessions, by {}).\n",
                    written.seconds,
                    grouped(written.transactions as f64),
                    written.sessions,
                    written.by
                )?;
            }
            if let Some(Limit { walsender, sets, cores }) = &case.limit {
                writeln!(
                    text,
                    "Alone, the walsender took {:.2} s ({:.2} CPU s), the sets {:.2} s ({:.2} CPU s); {cores} cores.\n",
                    walsender.seconds, walsender.cpu, sets.seconds, sets.cpu
                )?;
            }
            let resident = case.ours.iter().map(|run| run.resident_bytes_max).max();
            if let Some(bytes) = resident.filter(|bytes| *bytes > 0) {
                writeln!(text, "pgsluice had {:.0} MB resident at most.\n", bytes as f64 / 1e6)?;
            }
            if case.has_curve() {
                writeln!(text, "![{} over time]({})\n", case.curve_label, self.plot_name(case))?;
            }
        }
        Ok(format!("{}\n", text.trim_end()))
    }
}

/// What was measured before and what was measured now, each case once: its later figures replace its earlier ones.
fn with_earlier(records: &Path, measured: Vec<Case>) -> Result<Vec<Case>> {
    let earlier = if records.exists() { std::fs::read_to_string(records)? } else { String::new() };
    let earlier: Result<Vec<Case>, _> = earlier.lines().map(serde_json::from_str).collect();
    let mut cases = earlier.with_context(|| {
        let records = records.display();
        format!("{records} cannot be read, perhaps as records of an earlier format: delete it and measure all cases again")
    })?;
    for case in measured {
        match cases.iter_mut().find(|earlier| earlier.name == case.name) {
            Some(earlier) => *earlier = case,
            None => cases.push(case),
        }
    }
    Ok(cases)
}

/// In the order of their first appearance.
fn distinct<'t>(texts: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let mut distinct = Vec::new();
    for text in texts {
        if !distinct.contains(&text) {
            distinct.push(text);
        }
    }
    distinct
}

/// Medians of what the runs left, if that was looked at.
fn aftermath(runs: &[Run]) -> Option<Aftermath> {
    let left: Vec<Aftermath> = runs.iter().filter_map(|run| run.aftermath).collect();
    let of = |pick: fn(&Aftermath) -> f64| median(left.iter().map(pick));
    (!left.is_empty()).then(|| Aftermath {
        wal_bytes: of(|left| left.wal_bytes),
        index_bytes: of(|left| left.index_bytes),
        table_bytes: of(|left| left.table_bytes),
        dead_rows: of(|left| left.dead_rows),
        updates: of(|left| left.updates),
        heap_only_updates: of(|left| left.heap_only_updates),
    })
}

fn dash() -> String {
    "-".to_owned()
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// `1234567` as `1,234,567`.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Every run's wall seconds, in order.
fn seconds(runs: &[Run]) -> String {
    let texts: Vec<String> = runs.iter().map(|run| format!("{:.2}", run.seconds)).collect();
    if texts.is_empty() { dash() } else { texts.join(" ") }
}

/// Medians by kind; a kind that a run does not have counts as 0.
fn kinds(runs: &[Run], server: fn(&Cpu) -> &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let names = runs.iter().flat_map(|run| server(&run.cpu).keys().cloned());
    let median_of =
        |name: &String| median(runs.iter().map(|run| server(&run.cpu).get(name).copied().unwrap_or(0.0)));
    let all: BTreeMap<String, f64> = names.map(|name| (name.clone(), rounded(median_of(&name), 2))).collect();
    all.into_iter().filter(|(_, seconds)| *seconds > 0.0).collect()
}

fn cpu_json(runs: &[Run]) -> Value {
    if runs.is_empty() {
        return Value::Null;
    }
    json!({
        "publisher": kinds(runs, |cpu| &cpu.publisher),
        "subscriber": kinds(runs, |cpu| &cpu.subscriber),
        "pgsluice": rounded(median(runs.iter().map(|run| run.cpu.pgsluice)), 2),
        "total": rounded(median(runs.iter().map(|run| run.cpu.total())), 2),
    })
}

fn cpu_row(case: &Case, side: &str, runs: &[Run]) -> Vec<String> {
    let words = |server: fn(&Cpu) -> &BTreeMap<String, f64>| {
        let kinds = kinds(runs, server);
        let least = kinds.values().sum::<f64>() * SHOWN_SHARE_MIN;
        let shown = kinds.iter().filter(|(_, seconds)| **seconds >= least);
        shown.map(|(kind, seconds)| format!("{kind} {seconds:.2}")).collect::<Vec<_>>().join(", ")
    };
    vec![
        case.name.clone(),
        side.to_owned(),
        words(|cpu| &cpu.publisher),
        words(|cpu| &cpu.subscriber),
        format!("{:.2}", median(runs.iter().map(|run| run.cpu.pgsluice))),
        format!("{:.2}", median(runs.iter().map(|run| run.cpu.total()))),
    ]
}

/// A Markdown table whose columns line up; the first row is its head.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
        if index == 0 {
            let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
            text.push_str(&format!("| {} |\n", rule.join(" | ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seconds: f64) -> Run {
        Run {
            seconds,
            cpu: Cpu::default(),
            curve: vec![(seconds, 0.0)],
            resident_bytes_max: 1,
            equal: true,
            aftermath: None,
        }
    }

    fn case() -> Case {
        let mut case = Case::new("updates", Major::V15, "15.1".to_owned(), 2.0, 1000);
        [4.0, 2.0, 3.0].into_iter().for_each(|seconds| case.add(Arm::Native, run(seconds)));
        [1.0, 9.0, 1.0].into_iter().for_each(|seconds| case.add(Arm::Ours, run(seconds)));
        case
    }

    #[test]
    fn the_ratio_is_of_medians_and_the_better_the_larger() {
        let json = case().json();
        assert_eq!(json["case"], "updates-15");
        assert_eq!(json["ratio"], 3.0);
        assert_eq!((&json["stock"], &json["ours"]), (&json!(333.0), &json!(1000.0)));
    }

    #[test]
    fn one_side_alone_has_no_ratio() {
        let mut case = case();
        case.stock.clear();
        assert_eq!(case.json()["ratio"], Value::Null);
        assert_eq!(case.json()["stock"], Value::Null);
    }

    #[test]
    fn one_run_that_differs_makes_the_case_unequal() {
        let mut case = case();
        case.ours[1].equal = false;
        assert_eq!(case.json()["equal"], false);
    }

    #[test]
    fn a_case_that_is_measured_again_replaces_its_earlier_figures_only() {
        let place = std::env::temp_dir().join(format!("pgsluice-bench-report-{}", std::process::id()));
        let report = |cases| Report { bench: "test", stock: &NATIVE, cases, settings: Vec::new() };
        let mut other = case();
        other.name = "inserts-15".to_owned();
        report(vec![case(), other]).write(&place).unwrap();
        let mut again = case();
        again.ours = vec![run(0.5)];
        report(vec![again]).write(&place).unwrap();
        let document = std::fs::read_to_string(place.join("test.md")).unwrap();
        report(Vec::new()).write(&place).unwrap();
        assert_eq!(std::fs::read_to_string(place.join("test.md")).unwrap(), document);
        assert!(report(Vec::new()).write(&place.join("nothing")).is_err());
        std::fs::remove_dir_all(&place).unwrap();
        let line = |name: &str| document.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("| updates-15").contains("| 6.00  |"), "{document}");
        assert!(line("| inserts-15").contains("| 3.00  |"), "{document}");
    }

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(grouped(999.4), "999");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
    }
}
