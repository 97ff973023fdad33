//! The results: a table, a page with plots, one JSON object, and a record of each case.
//!
//! All cases together take hours. So a case that was measured whole replaces its earlier record,
//! and the page has all recorded cases.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use bench_report::provenance;
use bench_report::table::{DASH, aligned, row};
use bench_report::wrap::wrapped;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::engines::Arm;
use crate::plot;
use crate::workload::{Keys, Outcome, Plan};
use crate::workspace_dir;

const MEGABYTE: f64 = 1e6;

/// One workload and the runs of every store.
#[derive(Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// When it was measured; the commit and the machine follow.
    date: String,
    commit: String,
    machine: String,
    pub(crate) plan: Plan,
    /// Whether every run had its control group.
    pub(crate) is_capped: bool,
    pub(crate) runs: BTreeMap<Arm, Vec<Outcome>>,
    /// Runs that failed, and why: most often the memory limit.
    pub(crate) failures: Vec<(Arm, String)>,
}

impl Case {
    pub(crate) fn new(name: &str, plan: Plan) -> Case {
        Case {
            name: name.to_owned(),
            date: provenance::date(),
            commit: provenance::commit(&workspace_dir()).unwrap_or_default(),
            machine: provenance::machine(),
            plan,
            is_capped: true,
            runs: BTreeMap::new(),
            failures: Vec::new(),
        }
    }

    /// Removes the samples of all runs but the median, whose plot is drawn.
    fn trim(&mut self) {
        for arm in Arm::ALL {
            let rate = self.rate(arm);
            for run in self.runs.get_mut(&arm).into_iter().flatten() {
                if Some(run.transactions_per_second) != rate {
                    run.samples.clear();
                }
            }
        }
    }

    /// The run with the median throughput.
    pub(crate) fn median(&self, arm: Arm) -> Option<&Outcome> {
        let mut runs: Vec<&Outcome> = self.runs.get(&arm)?.iter().collect();
        runs.sort_by(|a, b| a.transactions_per_second.total_cmp(&b.transactions_per_second));
        runs.get(runs.len() / 2).copied()
    }

    fn rate(&self, arm: Arm) -> Option<f64> {
        self.median(arm).map(|run| run.transactions_per_second)
    }

    /// The fastest other store.
    fn best_peer(&self) -> Option<(Arm, f64)> {
        let peers = Arm::ALL.into_iter().filter(|arm| arm.is_peer());
        peers.filter_map(|arm| Some((arm, self.rate(arm)?))).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn ratio(&self, other: Option<f64>) -> Option<f64> {
        Some(self.rate(Arm::Ours)? / other?)
    }

    /// Whether its data outgrow memory.
    pub(crate) fn is_large(&self) -> bool {
        self.name.contains("large")
    }

    /// Against the best peer: twice where the data outgrow memory under churn, never behind.
    fn goal(&self) -> f64 {
        if self.is_large() && self.plan.keys != Keys::Queue { 2.0 } else { 1.0 }
    }
}

/// Instructions for inserting new keys only.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Instructions {
    pub(crate) ours: u64,
    /// Without bottom-up deletion.
    pub(crate) plain: u64,
}

/// Cases, of one invocation or recorded.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) cases: Vec<Case>,
    pub(crate) instructions: Option<Instructions>,
}

/// A line of the record.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Case(Box<Case>),
    Instructions(Instructions),
}

const RECORD: &str = "churn.jsonl";

/// The conditions of every run, for the page.
const CONDITIONS: [&str; 4] = [
    "A store that has a cache of its own gets three quarters of that memory for it, because each was slower with half. \
     fjall gets half under Zipf's law, because the limit killed it when it had more.",
    "A transaction is one update and two look-ups, or one insert, one delete and two look-ups. Values have 100 bytes \
     that do not compress.",
    "The horizon is 10,000 transactions behind.",
    "A commit has 1 or 1,000 transactions, and each commit is synced.",
];

/// The meaning of names and columns, for the page.
const MEANINGS: [&str; 7] = [
    "`ours` announces a transaction's second look-up before it asks for the first (`Store::prefetch`). The other \
     stores have no such call.",
    "`ours-apart` does not announce look-ups. It runs where data outgrow memory.",
    "`ours-off` is our store without bottom-up deletion and sweeping. `ours-restricted` has half the examination.",
    "Figures are those of the steady phase. \"ours is x\" is our throughput divided by that of the store.",
    "The commit time of the other stores includes the time to forget old versions.",
    "Bytes per key: the files at the end of the steady phase, divided by the keys that exist then.",
    "Bytes read are those of the disk. Bytes written are those handed to the kernel.",
];

impl Report {
    /// The cases that are recorded in `dir`.
    fn recorded(dir: &Path) -> Result<Report> {
        let path = dir.join(RECORD);
        let mut report = Report::default();
        if !path.exists() {
            return Ok(report);
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        for line in text.lines() {
            match serde_json::from_str(line).with_context(|| format!("reading {}", path.display()))? {
                Line::Case(case) => report.cases.push(*case),
                Line::Instructions(instructions) => report.instructions = Some(instructions),
            }
        }
        Ok(report)
    }

    /// Records these cases in `dir`, in the order of `names`, and writes the page of all records.
    pub(crate) fn record(self, dir: &Path, names: &[String]) -> Result<()> {
        let mut all = Report::recorded(dir)?;
        for mut case in self.cases {
            case.trim();
            all.cases.retain(|other| other.name != case.name);
            all.cases.push(case);
        }
        all.cases.sort_by_key(|case| names.iter().position(|name| *name == case.name));
        all.instructions = self.instructions.or(all.instructions);
        let mut text = String::new();
        for case in &all.cases {
            writeln!(text, "{}", serde_json::to_string(&json!({ "case": case }))?)?;
        }
        if let Some(instructions) = all.instructions {
            writeln!(text, "{}", serde_json::to_string(&Line::Instructions(instructions))?)?;
        }
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join(RECORD), text)?;
        all.write(dir)
    }

    /// The last line of output.
    pub(crate) fn json(&self) -> Value {
        let mut cases = Vec::new();
        for case in &self.cases {
            let ours = case.rate(Arm::Ours);
            let mut against = |suffix: &str, other: Option<f64>, goal: f64| {
                let missing: u64 = case.runs.values().flatten().map(|run| run.missing).sum();
                cases.push(json!({
                    "case": format!("{}-{suffix}", case.name), "source": "store", "stock": other, "ours": ours,
                    "unit": "transactions/s", "ratio": case.ratio(other), "goal": goal, "equal": missing == 0,
                }));
            };
            against("plain", case.rate(Arm::OursOff), 1.32);
            against("best-peer", case.best_peer().map(|(_, rate)| rate), case.goal());
        }
        json!({ "bench": "churn", "servers": [], "cases": cases })
    }

    /// One row per case and store.
    pub(crate) fn table(&self) -> String {
        let head = row([
            "case",
            "store",
            "transactions/s",
            "ours is x",
            "update us (p50 p99 p999)",
            "look-up us (p50 p99 p999)",
            "commit us (p50 p99)",
            "read KB/tx",
            "written KB/tx",
            "file MB loaded, warm, steady, pinned, released",
            "bytes per key",
        ]);
        let mut rows = vec![head];
        for case in &self.cases {
            for arm in Arm::ALL {
                if let Some(run) = case.median(arm) {
                    rows.push(figures(case, arm, run));
                }
            }
        }
        aligned(&rows)
    }

    /// Writes the page and the plots to `out`.
    pub(crate) fn write(&self, out: &Path) -> Result<()> {
        std::fs::create_dir_all(out)?;
        for case in &self.cases {
            plot::write(&out.join(format!("churn-{}.svg", case.name)), case)?;
        }
        std::fs::write(out.join("churn.md"), self.document()?)?;
        Ok(())
    }

    fn document(&self) -> Result<String> {
        let mut text = "# Benchmark: churn\n\n".to_owned();
        writeln!(text, "`cargo x bench churn` writes this page. Do not edit it.\n")?;
        let capped = match self.cases.iter().all(|case| case.is_capped) {
            true => "A control group gives each store the same memory, the kernel's cache included.",
            false => "In some cases NO control group limited the memory of a store.",
        };
        for item in [capped].into_iter().chain(CONDITIONS) {
            writeln!(text, "- {item}")?;
        }
        writeln!(text)?;
        for item in MEANINGS {
            writeln!(text, "- {item}")?;
        }
        writeln!(text)?;
        writeln!(text, "{}", self.table())?;
        if let Some(Instructions { ours, plain }) = self.instructions {
            let more = (ours as f64 / plain as f64 - 1.0) * 100.0;
            writeln!(
                text,
                "With new keys only, and nothing to delete: {ours} instructions, and {plain} without bottom-up deletion ({more:+.2} %).\n"
            )?;
        }
        for case in &self.cases {
            let Plan { keys, count, per_commit, memory_bytes, seconds } = &case.plan;
            let memory = memory_bytes >> 20;
            let repeats = case.runs.values().map(Vec::len).max().unwrap_or(0);
            writeln!(
                text,
                "## {}\n\n\
                 - Keys: {keys:?}, {count} at the start; {per_commit} transactions per commit\n\
                 - Memory: {memory} MiB\n\
                 - Time: {seconds} s (warm-up 30 %, steady 40 %, pinned 10 %, released 20 %), medians of {repeats}\n\
                 - Measured on {} on {}, with the program of commit {}\n",
                case.name, case.date, case.machine, case.commit
            )?;
            for (_, failure) in &case.failures {
                writeln!(text, "A run did not end: {failure}.\n")?;
            }
            if let Some(run) = case.median(Arm::Ours) {
                writeln!(
                    text,
                    "Our files took {:.1} MB after compaction.\n",
                    run.file_compacted as f64 / MEGABYTE
                )?;
            }
            writeln!(text, "![File size and throughput over time](churn-{}.svg)\n", case.name)?;
        }
        Ok(wrapped(text.trim_end()))
    }
}

fn figures(case: &Case, arm: Arm, run: &Outcome) -> Vec<String> {
    let three = |latency: &crate::workload::Latency| {
        format!("{:.1} ({:.1} {:.1} {:.1})", latency.mean, latency.p50, latency.p99, latency.p999)
    };
    let sizes = [run.file_loaded, run.file_warm, run.file_steady, run.file_pinned, run.file_released];
    vec![
        case.name.clone(),
        arm.name().to_owned(),
        format!("{:.0}", run.transactions_per_second),
        case.ratio(case.rate(arm)).map_or_else(|| DASH.to_owned(), |ratio| format!("{ratio:.2}")),
        three(&run.update),
        three(&run.look_up),
        format!("{:.0} ({:.0} {:.0})", run.commit.mean, run.commit.p50, run.commit.p99),
        format!("{:.2}", run.read_bytes_per_transaction / 1000.0),
        format!("{:.2}", run.written_bytes_per_transaction / 1000.0),
        sizes.map(|bytes| format!("{:.0}", bytes as f64 / MEGABYTE)).join(", "),
        format!("{:.0}", run.file_steady as f64 / run.keys as f64),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn case(name: &str, rate: f64) -> Case {
        let zero = json!({ "mean": 0.0, "p50": 0.0, "p99": 0.0, "p999": 0.0 });
        let samples: Vec<Value> = (0..3)
            .map(|n| json!({ "seconds": f64::from(n), "transactions": n, "file_bytes": 1000 }))
            .collect();
        let run = json!({
            "transactions_per_second": rate, "update": zero, "look_up": zero, "commit": zero,
            "read_bytes_per_transaction": 0.0, "written_bytes_per_transaction": 0.0, "keys": 1, "file_loaded": 1, "file_warm": 1,
            "file_steady": 1, "file_pinned": 1, "file_released": 1, "file_compacted": 1, "missing": 0, "samples": samples,
        });
        let plan = Plan { keys: Keys::Uniform, count: 1, per_commit: 1, memory_bytes: 1 << 20, seconds: 1.0 };
        let mut case = Case::new(name, plan);
        case.runs.insert(Arm::Ours, vec![serde_json::from_value(run).unwrap()]);
        case
    }

    #[test]
    fn a_case_that_is_measured_again_takes_the_place_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a", "b"].map(str::to_owned);
        for (name, rate) in [("b", 1.0), ("a", 2.0), ("b", 3.0)] {
            let report = Report { cases: vec![case(name, rate)], instructions: None };
            report.record(dir.path(), &names).unwrap();
        }
        let recorded = Report::recorded(dir.path()).unwrap();
        let rates: Vec<_> =
            recorded.cases.iter().map(|case| (case.name.as_str(), case.rate(Arm::Ours))).collect();
        assert_eq!(rates, [("a", Some(2.0)), ("b", Some(3.0))]);
        let document = std::fs::read_to_string(dir.path().join("churn.md")).unwrap();
        assert!(document.contains("## a\n") && document.contains("## b\n"), "{document}");
    }
}
