//! The page of a benchmark, and its tables.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use anyhow::Result;
use bench_report::table::{DASH, aligned, grouped, row};
use bench_report::wrap::wrapped;

use super::medians::{aftermath, kinds};
use super::{Case, Goal, Report, distinct};
use crate::lab::cpu::Cpu;
use crate::lab::limit::Limit;
use crate::lab::measure::{Run, median};

/// The table leaves out kinds of process with less than this share of their server's CPU time; the
/// JSON has them all.
const SHOWN_SHARE_MIN: f64 = 0.03;
/// A command with longer arguments stands in a block of its own.
const INLINE_MAX: usize = 70;

impl Report {
    /// The result as aligned Markdown tables.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{}\nCPU seconds by kind of process (medians). `exited` has the processes that ended during the run, such as those \
             that copy.\n\n{}",
            self.figures(),
            self.cpu_seconds()
        );
        if let Some(ceilings) = self.ceilings() {
            text.push_str(
                "\nThe two busiest parts of each side, in CPU seconds (medians), and a projection: the rate that the busiest \
                 alone would allow with cores to spare. Here, all of them share the machine's cores.\n\n",
            );
            text.push_str(&ceilings);
        }
        if let Some(left) = self.aftermath() {
            text.push_str(
                "\nWhat the runs left on the subscriber (medians). MB are growth; autovacuum was off.\n\n",
            );
            text.push_str(&left);
        }
        if let Some(goals) = self.goals() {
            text.push_str("\nGoals beside the ratio.\n\n");
            text.push_str(&goals);
        }
        text
    }

    fn figures(&self) -> String {
        let [stock, ours] = self.cases.first().map_or_else(Default::default, |case| case.sides.clone());
        let head = row([
            "case",
            &stock,
            &ours,
            "ratio",
            "goal",
            "equal",
            &format!("{stock} s"),
            &format!("{ours} s"),
            "limit",
            "of limit",
            "publisher s",
            "publisher / ours",
        ]);
        aligned(&with_head(head, self.cases.iter().map(Case::figures)))
    }

    fn cpu_seconds(&self) -> String {
        let head = row(["case", "side", "publisher", "subscriber", "pgsluice", "CPU s"]);
        aligned(&with_head(head, self.cases.iter().flat_map(Case::cpu_rows)))
    }

    /// What would limit each side with cores to spare; `None` if no run told its stages.
    fn ceilings(&self) -> Option<String> {
        let head =
            row(["case", "side", "busiest", "CPU s per 1M rows", "projection", "next", "CPU s per 1M rows"]);
        let rows = with_head(head, self.cases.iter().flat_map(Case::ceiling_rows));
        (rows.len() > 1).then(|| aligned(&rows))
    }

    /// What the runs left on the subscriber; `None` if no case measured that.
    fn aftermath(&self) -> Option<String> {
        let head =
            row(["case", "side", "updates", "heap-only", "dead rows", "indexes MB", "tables MB", "WAL MB"]);
        let rows = with_head(head, self.cases.iter().flat_map(Case::aftermath_rows));
        (rows.len() > 1).then(|| aligned(&rows))
    }

    /// What was wanted beside the ratio; `None` if that was nothing.
    fn goals(&self) -> Option<String> {
        let head = row(["case", "figure", "goal", "measured", "met"]);
        let rows = with_head(head, self.cases.iter().flat_map(Case::goal_rows));
        (rows.len() > 1).then(|| aligned(&rows))
    }

    /// The whole page in Markdown.
    pub(super) fn document(&self) -> Result<String> {
        let machines = distinct(self.cases.iter().map(|case| case.machine.as_str()));
        let mut text = String::new();
        self.preface(&mut text, &machines)?;
        writeln!(text, "{}", self.table())?;
        for case in &self.cases {
            self.section(&mut text, case, machines.first().copied())?;
        }
        Ok(wrapped(text.trim_end()))
    }

    /// The conditions of the runs, and the meaning of the columns.
    fn preface(&self, text: &mut String, machines: &[&str]) -> fmt::Result {
        writeln!(text, "# Benchmark: {}\n", self.bench)?;
        writeln!(
            text,
            "`cargo x bench {}` writes this page, for all cases or case by case. Do not edit it.\n",
            self.bench
        )?;
        writeln!(
            text,
            "- Machine: {}. Publisher, subscriber and the replication between them share it.",
            machines.join("; or, where a case says so, ")
        )?;
        writeln!(text, "- PostgreSQL {}", self.versions().join(" and "))?;
        let settings: Vec<String> =
            self.settings.iter().map(|(name, value)| format!("`{name} = {value}`")).collect();
        writeln!(text, "- Both servers: {}", settings.join(", "))?;
        for side in self.stock.sides {
            writeln!(text, "- {side}")?;
        }
        writeln!(text, "\nFigures are medians of alternating runs. A larger ratio is better.\n")?;
        for column in self.stock.columns {
            writeln!(text, "- {column}")?;
        }
        writeln!(text)
    }

    /// One case, which names its machine unless that is the `usual` one.
    fn section(&self, text: &mut String, case: &Case, usual: Option<&str>) -> fmt::Result {
        writeln!(text, "## {}\n\n{}", case.name, described(&case.what))?;
        let other = usual.is_some_and(|usual| usual != case.machine);
        let place = if other { format!(" on {}", case.machine) } else { String::new() };
        write!(
            text,
            "Measured on {}{place} with {} on PostgreSQL {} by",
            case.date, case.pgsluice, case.version
        )?;
        if case.arguments.len() > INLINE_MAX {
            writeln!(text, ":\n\n```sh\ncargo x bench {}\n```\n", case.arguments)?;
        } else {
            writeln!(text, " `cargo x bench {}`.\n", case.arguments)?;
        }
        if let Some(written) = &case.publisher {
            writeln!(
                text,
                "The publisher took {:.1} s to write the changes ({} transactions, {} sessions, by {}).\n",
                written.seconds,
                grouped(written.transactions as f64),
                written.sessions,
                written.by
            )?;
        }
        if let Some(Limit { walsender, sets, cores }) = &case.limit {
            writeln!(
                text,
                "Alone, the walsender took {:.2} s ({:.2} CPU s) and the sets took {:.2} s ({:.2} CPU s), on {cores} cores.\n",
                walsender.seconds, walsender.cpu, sets.seconds, sets.cpu
            )?;
        }
        let resident = case.ours.iter().map(|run| run.resident_bytes_max).max();
        if let Some(bytes) = resident.filter(|bytes| *bytes > 0) {
            writeln!(text, "pgsluice used at most {:.0} MB of resident memory.\n", bytes as f64 / 1e6)?;
        }
        if !case.further.is_empty() {
            writeln!(text, "{}", aligned(&case.further))?;
        }
        if case.has_curve() {
            writeln!(text, "![{} over time]({})\n", case.curve_label, self.plot_name(case))?;
        }
        Ok(())
    }
}

impl Case {
    /// Its row of the first table.
    fn figures(&self) -> Vec<String> {
        let value = |runs| self.median(runs).map_or_else(dash, |value| self.unit.show(value));
        vec![
            self.name.clone(),
            value(&self.stock),
            value(&self.ours),
            self.ratio().map_or_else(dash, |ratio| format!("{ratio:.2}")),
            if self.goal > 0.0 { format!("{:.2}", self.goal) } else { dash() },
            if self.is_equal() { "yes" } else { "NO" }.to_owned(),
            seconds(&self.stock),
            seconds(&self.ours),
            self.limit_rate().map_or_else(dash, |limit| self.unit.show(limit)),
            self.of_limit().map_or_else(dash, |share| format!("{share:.2}")),
            self.publisher.as_ref().map_or_else(dash, |written| format!("{:.1}", written.seconds)),
            self.of_publisher().map_or_else(dash, |ratio| format!("{ratio:.2}")),
        ]
    }

    /// For each side that ran, where its CPU time went.
    fn cpu_rows(&self) -> Vec<Vec<String>> {
        let sides = self.sides.iter().zip([&self.stock, &self.ours]);
        sides
            .filter(|(_, runs)| !runs.is_empty())
            .map(|(side, runs)| cpu_row(&self.name, side, runs))
            .collect()
    }

    /// For each side, its busiest parts.
    fn ceiling_rows(&self) -> Vec<Vec<String>> {
        if self.rows == 0 || self.ours.iter().all(|run| run.cpu.stages.is_empty()) {
            return Vec::new();
        }
        let per_million = |seconds: f64| seconds / (self.rows as f64 / 1e6);
        let mut rows = Vec::new();
        for (side, runs) in self.sides.iter().zip([&self.stock, &self.ours]) {
            let [(first, most), (second, next)] = busiest(runs);
            let rate = if most > 0.0 { self.rows as f64 / most } else { 0.0 };
            rows.push(vec![
                self.name.clone(),
                side.to_string(),
                first,
                format!("{:.2}", per_million(most)),
                format!("{} rows/s", grouped(rate)),
                second,
                format!("{:.2}", per_million(next)),
            ]);
        }
        rows
    }

    fn goal_rows(&self) -> Vec<Vec<String>> {
        let met = |met| if met { "yes" } else { "NO" }.to_owned();
        let cells = |of: &Goal| {
            vec![self.name.clone(), of.what.clone(), of.goal.clone(), of.measured.clone(), met(of.met)]
        };
        self.goals.iter().map(cells).collect()
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
}

/// The parts of a case's description: a sentence, or a list of several.
fn described(what: &str) -> String {
    match what.split("; ").collect::<Vec<_>>().as_slice() {
        [one] => format!("{one}.\n"),
        parts => parts.iter().map(|part| format!("- {part}\n")).collect(),
    }
}

fn with_head(head: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    [head].into_iter().chain(rows).collect()
}

fn dash() -> String {
    DASH.to_owned()
}

/// The two that spent most CPU time, each with its seconds: a walsender of the publisher, a stage
/// of pgsluice, or what applies on the subscriber.
fn busiest(runs: &[Run]) -> [(String, f64); 2] {
    let applies = |kind: &str| kind == "client backend" || kind.starts_with("logical replication");
    let of_publisher = kinds(runs, |cpu| &cpu.publisher).into_iter().filter(|(kind, _)| kind == "walsender");
    let of_subscriber = kinds(runs, |cpu| &cpu.subscriber).into_iter().filter(|(kind, _)| applies(kind));
    let stages = kinds(runs, |cpu| &cpu.stages).into_iter().map(|(name, s)| (format!("pgsluice: {name}"), s));
    let mut parts: Vec<(String, f64)> = of_publisher.chain(of_subscriber).chain(stages).collect();
    parts.sort_by(|one, other| other.1.total_cmp(&one.1));
    let mut parts = parts.into_iter();
    [(); 2].map(|()| parts.next().unwrap_or_else(|| (dash(), 0.0)))
}

/// Every run's wall seconds, in order.
fn seconds(runs: &[Run]) -> String {
    let texts: Vec<String> = runs.iter().map(|run| format!("{:.2}", run.seconds)).collect();
    if texts.is_empty() { dash() } else { texts.join(" ") }
}

fn cpu_row(case: &str, side: &str, runs: &[Run]) -> Vec<String> {
    let words = |server: fn(&Cpu) -> &BTreeMap<String, f64>| {
        let kinds = kinds(runs, server);
        let least = kinds.values().sum::<f64>() * SHOWN_SHARE_MIN;
        let shown = kinds.iter().filter(|(_, seconds)| **seconds >= least);
        shown.map(|(kind, seconds)| format!("{kind} {seconds:.2}")).collect::<Vec<_>>().join(", ")
    };
    vec![
        case.to_owned(),
        side.to_owned(),
        words(|cpu| &cpu.publisher),
        words(|cpu| &cpu.subscriber),
        format!("{:.2}", median(runs.iter().map(|run| run.cpu.pgsluice))),
        format!("{:.2}", median(runs.iter().map(|run| run.cpu.total()))),
    ]
}
