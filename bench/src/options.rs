//! The command line: what to measure, on which majors, how large and how often.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use testkit::{Major, workspace_dir};

use crate::cases::decode;

const REPEATS: u32 = 3;
/// Differences of a few per cent need as many pairs.
const PAIRS: u32 = 10;
const PAIRS_QUICK: u32 = 2;
/// pgsluice's own default.
const CONNECTIONS: u32 = 4;
/// What the publisher's settings in `fanout` have room for.
pub(crate) const MAX_SUBSCRIBERS: u64 = 80;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bench {
    /// The first copy: one large table, ten smaller ones.
    Copy,
    /// A backlog that was written while the subscriber was off.
    Catchup,
    /// WAL decoded by the walsender and by ours.
    Decode,
    /// The cases of `decode` about changes without a subscriber, and about the cost of the filter.
    EarlyFilter,
    /// A comparison of every row of both ends, beside counting and hashing them.
    Verify,
    /// Each mechanism of applying by itself: reading ahead, several workers, batches.
    Ablation,
    /// What rows cost that are not as the source had them.
    Conflicts,
    /// How long after its commit a small transaction is visible on the subscriber, under a steady
    /// load.
    Lag,
    /// What remembering deletions costs the subscriber's own clients.
    UpdateDeleted,
    /// The cost of replication for the publisher, and for all ends together, with the source `wal`.
    PublisherCost,
    /// The cost of many logical slots, beside a relay that serves as many subscribers.
    Fanout,
}

/// What pgsluice reads its changes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    Logical,
    Wal,
}

/// Whose replication is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arm {
    Native,
    /// pgsluice, which reads from a logical slot.
    Ours,
    /// pgsluice, which reads WAL and decodes it itself.
    Wal,
    /// Another build of pgsluice, as [`Arm::Ours`].
    #[value(skip)]
    Before,
    /// Another build of pgsluice, as [`Arm::Wal`].
    #[value(skip)]
    BeforeWal,
}

impl Arm {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Arm::Native => "native",
            Arm::Ours => "ours",
            Arm::Wal => "wal",
            Arm::Before => "before",
            Arm::BeforeWal => "before_wal",
        }
    }

    /// Whether it is this build of pgsluice or another one.
    pub(crate) fn is_pgsluice(self) -> bool {
        self != Arm::Native
    }

    pub(crate) fn is_other_build(self) -> bool {
        matches!(self, Arm::Before | Arm::BeforeWal)
    }

    pub(crate) fn reads_wal(self) -> bool {
        matches!(self, Arm::Wal | Arm::BeforeWal)
    }
}

/// Measures pgsluice beside native logical replication
#[derive(Clone, Parser)]
#[command(name = "cargo x bench", bin_name = "cargo x bench")]
pub(crate) struct Options {
    /// What is measured.
    pub(crate) bench: Bench,
    /// Smaller sizes: about ten minutes or less.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only on this major; may be given more than once.
    #[arg(long, value_name = "NUMBER", value_parser = parse_major)]
    pub(crate) major: Vec<Major>,
    /// Only this case; may be given more than once.
    #[arg(long, value_name = "NAME")]
    pub(crate) case: Vec<String>,
    /// Rows: of all tables together in `copy` and `verify`, of the updated table in `catchup`.
    #[arg(long, value_name = "COUNT")]
    pub(crate) rows: Option<u64>,
    /// Transactions of the backlog in `catchup`.
    #[arg(long, value_name = "COUNT")]
    pub(crate) transactions: Option<u64>,
    /// Clients of the subscriber in `update-deleted`.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) clients: Option<u64>,
    /// Scale of TPC-B in `update-deleted`: 100,000 accounts each.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) scale: Option<u64>,
    /// Length of each run of TPC-B in `update-deleted`, and of the hang in `fanout`, in seconds.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    /// WAL that is written in a run of `fanout`, in megabytes, or near to that.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) wal_mb: Option<u64>,
    /// Only this number of slots or subscribers in `fanout`; may be given more than once.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=MAX_SUBSCRIBERS))]
    pub(crate) subscribers: Vec<u64>,
    /// Runs of each side; three, but ten in `update-deleted`. With --quick, two there and in
    /// `fanout`.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeats: Option<u32>,
    /// Connections that copy tables at the same time, on both sides.
    #[arg(long, value_name = "COUNT", default_value_t = CONNECTIONS)]
    pub(crate) connections: u32,
    /// What pgsluice reads from in `catchup`; `wal` is measured beside `logical` and native.
    #[arg(long, value_name = "SOURCE", default_value = "logical")]
    pub(crate) source: Source,
    /// Measure one side alone; there is no ratio then.
    #[arg(long, value_name = "SIDE")]
    pub(crate) only: Option<Arm>,
    /// Another build of pgsluice, which `catchup` measures in native's place.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "only")]
    pub(crate) before: Option<PathBuf>,
    /// Print after each run of `catchup` who worked and who waited, by ten milliseconds. Figures of
    /// such runs are not recorded.
    #[arg(long)]
    pub(crate) timeline: bool,
    /// Measure nothing: write the page again from the records.
    #[arg(long)]
    pub(crate) document: bool,
    /// Leave the clusters' directories behind.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Where the table and the plots go.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

impl Options {
    pub(crate) fn majors(&self) -> Vec<Major> {
        if self.major.is_empty() { Major::DEFAULT.to_vec() } else { self.major.clone() }
    }

    pub(crate) fn wants(&self, case: &str) -> bool {
        let is_its = self.bench != Bench::EarlyFilter || decode::EARLY_FILTER.contains(&case);
        is_its && (self.case.is_empty() || self.case.iter().any(|name| name == case))
    }

    /// How often each side runs.
    pub(crate) fn repeats(&self) -> u32 {
        self.repeats.unwrap_or(match (self.bench, self.quick) {
            (Bench::UpdateDeleted, false) => PAIRS,
            (Bench::UpdateDeleted | Bench::Fanout, true) => PAIRS_QUICK,
            _ => REPEATS,
        })
    }

    /// The sides of each repeat, in the order of their runs.
    pub(crate) fn order(&self, repeat: u32) -> Vec<Arm> {
        let mut arms = match (self.only, self.bench, self.source) {
            (Some(arm), ..) => return vec![arm],
            (_, Bench::Catchup, Source::Logical) if self.before.is_some() => vec![Arm::Before, Arm::Ours],
            (_, Bench::Catchup, Source::Wal) if self.before.is_some() => vec![Arm::BeforeWal, Arm::Wal],
            (None, Bench::PublisherCost, _) => vec![Arm::Native, Arm::Wal],
            (None, _, Source::Wal) => vec![Arm::Native, Arm::Ours, Arm::Wal],
            (None, _, Source::Logical) => vec![Arm::Native, Arm::Ours],
        };
        if !repeat.is_multiple_of(2) {
            arms.reverse();
        }
        arms
    }

    /// Whether the figures may go to the documents, where each case replaces its own record.
    pub(crate) fn is_whole(&self) -> bool {
        let sized = self.quick || self.rows.is_some() || self.transactions.is_some();
        let sized = sized || self.clients.is_some() || self.scale.is_some() || self.wal_mb.is_some();
        let sized = sized || (self.bench == Bench::Fanout && self.seconds.is_some());
        let is_watched = self.timeline || self.only.is_some() || self.before.is_some();
        !sized && !is_watched && self.repeats() >= REPEATS
    }

    /// The arguments that repeat the measurement, without the place of the result and what to keep.
    pub(crate) fn repeatable(&self) -> String {
        let mut words: Vec<String> =
            self.bench.to_possible_value().map(|name| name.get_name().to_owned()).into_iter().collect();
        words.extend(self.quick.then(|| "--quick".to_owned()));
        words.extend(self.major.iter().map(|major| format!("--major {major}")));
        words.extend(self.case.iter().map(|case| format!("--case {case}")));
        words.extend(self.rows.map(|rows| format!("--rows {rows}")));
        words.extend(self.transactions.map(|count| format!("--transactions {count}")));
        words.extend(self.clients.map(|count| format!("--clients {count}")));
        words.extend(self.scale.map(|scale| format!("--scale {scale}")));
        words.extend(self.seconds.map(|count| format!("--seconds {count}")));
        words.extend(self.wal_mb.map(|count| format!("--wal-mb {count}")));
        words.extend(self.subscribers.iter().map(|count| format!("--subscribers {count}")));
        words.extend(self.repeats.map(|count| format!("--repeats {count}")));
        words
            .extend((self.connections != CONNECTIONS).then(|| format!("--connections {}", self.connections)));
        words.extend((self.source == Source::Wal).then(|| "--source wal".to_owned()));
        words.extend(self.before.iter().map(|_| "--before PROGRAM".to_owned()));
        words.extend(self.only.map(|arm| format!("--only {}", arm.name())));
        words.join(" ")
    }

    pub(crate) fn out(&self) -> PathBuf {
        let place = if self.is_whole() { "docs/benchmarks" } else { "target/benchmarks" };
        self.out.clone().unwrap_or_else(|| workspace_dir().join(place))
    }
}

fn parse_major(text: &str) -> Result<Major, String> {
    let major = text.parse().ok().and_then(Major::from_number);
    major.ok_or_else(|| "no supported major (14 to 18)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        Options::parse_from(["bench"].iter().chain(arguments))
    }

    #[test]
    fn only_whole_runs_go_to_the_documents() {
        assert!(options(&["copy"]).out().ends_with("docs/benchmarks"));
        assert!(options(&["copy", "--major=15", "--case=one-table"]).out().ends_with("docs/benchmarks"));
        for partial in
            ["--quick", "--only=ours", "--before=/x", "--rows=5", "--repeats=1", "--scale=3", "--wal-mb=9"]
        {
            assert!(options(&["copy", partial]).out().ends_with("target/benchmarks"), "{partial}");
        }
    }

    #[test]
    fn a_document_names_what_measures_it_again() {
        assert_eq!(options(&["copy", "--out=/x", "--keep"]).repeatable(), "copy");
        let sized = ["catchup", "--quick", "--major", "15", "--repeats", "5", "--only", "ours"];
        assert_eq!(options(&sized).repeatable(), sized.join(" "));
    }

    #[test]
    fn the_order_turns_with_each_repeat() {
        let options = options(&["catchup"]);
        assert_eq!(options.order(0), [Arm::Native, Arm::Ours]);
        assert_eq!(options.order(1), [Arm::Ours, Arm::Native]);
    }

    #[test]
    fn wal_is_measured_beside_both() {
        let options = options(&["catchup", "--source=wal"]);
        assert_eq!(options.order(1), [Arm::Wal, Arm::Ours, Arm::Native]);
        assert_eq!(options.repeatable(), "catchup --source wal");
        let beside = super::tests::options(&["catchup", "--source=wal", "--before=/x"]);
        assert_eq!(beside.order(0), [Arm::BeforeWal, Arm::Wal]);
    }
}
