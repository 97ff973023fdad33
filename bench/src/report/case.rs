//! One case on one major: its sizes, the runs of both sides, and their figures.
//!
//! A case is recorded as one line of JSON, so its fields are a format: a new one has a default.

use std::borrow::Cow;

use bench_report::provenance;
use bench_report::table::grouped;
use serde::{Deserialize, Serialize};
use testkit::Major;

use crate::Arm;
use crate::lab::limit::Limit;
use crate::lab::load::Written;
use crate::lab::machine;
use crate::lab::measure::{Run, median};

/// What a case's figures are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    /// More is better.
    RowsPerSecond,
    /// As many as a run counted in its time; more is better.
    TransactionsPerSecond,
    /// Of a run's `seconds`; less is better.
    Milliseconds,
    /// CPU seconds of walsenders for a gigabyte of WAL; less is better.
    WalsenderPerGigabyte,
    /// CPU seconds of walsenders for a million rows; less is better.
    WalsenderPerMillion,
    /// CPU seconds of walsenders, pgsluice and the subscriber for a million rows; less is better.
    PipelinePerMillion,
    /// CPU seconds of walsenders; less is better.
    Walsenders,
    /// CPU seconds of walsenders and pgsluice; less is better.
    WalsendersAndPgsluice,
}

impl Unit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Unit::RowsPerSecond => "rows/s",
            Unit::TransactionsPerSecond => "tx/s",
            Unit::Milliseconds => "ms",
            Unit::WalsenderPerGigabyte => "CPU s/GB",
            Unit::WalsenderPerMillion | Unit::PipelinePerMillion => "CPU s/million",
            Unit::Walsenders | Unit::WalsendersAndPgsluice => "CPU s",
        }
    }

    /// Whether more is better.
    fn is_rate(self) -> bool {
        matches!(self, Unit::RowsPerSecond | Unit::TransactionsPerSecond)
    }

    pub(super) fn digits(self) -> i32 {
        if self.is_rate() { 0 } else { 3 }
    }

    pub(super) fn show(self, value: f64) -> String {
        if self.is_rate() {
            return format!("{} {}", grouped(value), self.name());
        }
        format!("{value:.2} {}", self.name())
    }
}

/// Title of the server processes that send WAL or decoded changes.
pub(crate) const WALSENDER: &str = "walsender";

/// One case on one major.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Case {
    /// The case and its major, as its plot is named.
    pub(super) name: String,
    /// When, by what and where it was measured.
    pub(super) date: String,
    /// The command that measured it, after `cargo x bench`.
    pub(crate) arguments: String,
    pub(super) pgsluice: String,
    pub(super) machine: String,
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
    pub(super) rows: u64,
    /// Their size in WAL, where it is needed.
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
    /// What was wanted beside the ratio, and what came out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) goals: Vec<Goal>,
    /// A table of further figures; its first row is the head.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) further: Vec<Vec<String>>,
}

/// A goal that is no ratio of medians.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) goal: String,
    pub(crate) measured: String,
    pub(crate) met: bool,
}

impl Case {
    pub(crate) fn new(name: impl AsRef<str>, major: Major, version: String, goal: f64, rows: u64) -> Case {
        Case {
            name: format!("{}-{major}", name.as_ref()),
            date: provenance::date(),
            arguments: String::new(),
            pgsluice: machine::pgsluice_version(),
            machine: provenance::machine(),
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
            goals: Vec::new(),
            further: Vec::new(),
        }
    }

    pub(super) fn has_curve(&self) -> bool {
        !self.curve_label.is_empty()
    }

    pub(crate) fn add(&mut self, arm: Arm, run: Run) {
        match arm {
            Arm::Native | Arm::Before | Arm::BeforeWal => self.stock.push(run),
            _ => self.ours.push(run),
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
            Unit::TransactionsPerSecond => run.transactions as f64 / run.seconds,
            Unit::Milliseconds => run.seconds * 1e3,
            Unit::WalsenderPerGigabyte => walsender / (self.wal_bytes / 1e9),
            Unit::WalsenderPerMillion => walsender / (self.rows as f64 / 1e6),
            Unit::Walsenders => walsender,
            Unit::WalsendersAndPgsluice => walsender + run.cpu.pgsluice,
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

    pub(super) fn ratio(&self) -> Option<f64> {
        let (stock, ours) = (self.median(&self.stock)?, self.median(&self.ours)?);
        Some(if self.unit.is_rate() { ours / stock } else { stock / ours })
    }

    /// Rows per second that no side which writes every change can exceed on this machine.
    pub(super) fn limit_rate(&self) -> Option<f64> {
        Some(self.rows as f64 / self.limit?.seconds())
    }

    /// The share of that limit that ours reaches.
    pub(super) fn of_limit(&self) -> Option<f64> {
        Some(self.median(&self.ours)? / self.limit_rate()?)
    }

    /// The publisher's writing time as a multiple of ours.
    pub(super) fn of_publisher(&self) -> Option<f64> {
        let ours = median(self.ours.iter().map(|run| run.seconds));
        self.publisher.as_ref().filter(|_| ours > 0.0).map(|written| written.seconds / ours)
    }

    pub(super) fn is_equal(&self) -> bool {
        self.stock.iter().chain(&self.ours).all(|run| run.equal)
    }
}

fn logical() -> String {
    "logical".to_owned()
}
