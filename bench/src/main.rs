//! pgsluice measured against stock PostgreSQL, on the same servers in the same run.
//!
//! Rules of every benchmark:
//! - Native logical replication with its best documented settings, and ours, alternate; the order turns with each
//!   repeat. Figures are medians; the ratio is the better the larger.
//! - Both start from a file copy of the same kind of target and are handed the same WAL. Both servers have the same
//!   settings, printed with the result.
//! - After each run both ends are proven to hold the same rows. A case that is lost stays in the table.
//!
//! A benchmark is a list of cases on each major; its last line of output is one JSON object. Figures of whole runs go
//! to `docs/benchmarks`, case by case, those of small or one-sided ones to `target/benchmarks`, so that a quick look
//! never replaces a recorded figure. Does not belong here: assertions about speed.

mod ablation;
mod aftermath;
mod backlog;
mod catchup;
mod copy;
mod decode;
mod lag;
mod limit;
mod load;
mod machine;
mod measure;
mod plot;
mod probe;
mod publisher_cost;
mod report;
mod rig;
mod slow;
mod subscriptions;
mod verify;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use testkit::{Major, workspace_dir};

use report::{Case, Report};

/// Leaves the clusters' directories behind; read by testkit.
const KEEP_VARIABLE: &str = "PGSLUICE_TEST_KEEP";

const REPEATS: u32 = 3;
/// pgsluice's own default.
const CONNECTIONS: u32 = 4;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// The first copy: one large table, ten smaller ones.
    Copy,
    /// A backlog that was written while the subscriber was off.
    Catchup,
    /// WAL decoded by the walsender and by ours.
    Decode,
    /// The cases of `decode` that are about changes nobody subscribed to, and about what it costs to ask.
    EarlyFilter,
    /// Every row of both ends compared, beside counting and hashing them.
    Verify,
    /// Each mechanism of applying by itself: reading ahead, several workers, batches.
    Ablation,
    /// How long after its commit a small transaction is seen on the subscriber, under a steady load.
    Lag,
    /// What replicating costs the publisher, and all ends together, with the source `wal`.
    PublisherCost,
}

/// What pgsluice reads its changes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Source {
    Logical,
    Wal,
}

/// Whose replication is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Arm {
    Native,
    /// pgsluice, which reads from a logical slot.
    Ours,
    /// pgsluice, which reads WAL and decodes it itself.
    Wal,
}

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::Native => "native",
            Arm::Ours => "ours",
            Arm::Wal => "wal",
        }
    }
}

/// Measures pgsluice beside native logical replication.
#[derive(Clone, Parser)]
#[command(name = "cargo x bench", bin_name = "cargo x bench")]
struct Options {
    /// What is measured.
    bench: Bench,
    /// Smaller sizes: about ten minutes or less.
    #[arg(long)]
    quick: bool,
    /// Only on this major; may be given more than once.
    #[arg(long, value_name = "NUMBER", value_parser = parse_major)]
    major: Vec<Major>,
    /// Only this case; may be given more than once.
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Rows: of all tables together in `copy` and `verify`, of the updated table in `catchup`.
    #[arg(long, value_name = "COUNT")]
    rows: Option<u64>,
    /// Transactions of the backlog in `catchup`.
    #[arg(long, value_name = "COUNT")]
    transactions: Option<u64>,
    /// Runs of each side.
    #[arg(long, value_name = "COUNT", default_value_t = REPEATS, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Connections that copy tables at the same time, on both sides.
    #[arg(long, value_name = "COUNT", default_value_t = CONNECTIONS)]
    connections: u32,
    /// What pgsluice reads from in `catchup`; `wal` is measured beside `logical` and native.
    #[arg(long, value_name = "SOURCE", default_value = "logical")]
    source: Source,
    /// Measure one side alone; there is no ratio then.
    #[arg(long, value_name = "SIDE")]
    only: Option<Arm>,
    /// Measure nothing: write the document again from what was recorded.
    #[arg(long)]
    document: bool,
    /// Leave the clusters' directories behind.
    #[arg(long)]
    keep: bool,
    /// Where the table and the plots go.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Options {
    fn majors(&self) -> Vec<Major> {
        if self.major.is_empty() { Major::DEFAULT.to_vec() } else { self.major.clone() }
    }

    fn wants(&self, case: &str) -> bool {
        let is_its = self.bench != Bench::EarlyFilter || decode::EARLY_FILTER.contains(&case);
        is_its && (self.case.is_empty() || self.case.iter().any(|name| name == case))
    }

    /// The sides of each repeat, in the order of their runs.
    fn order(&self, repeat: u32) -> Vec<Arm> {
        let mut arms = match (self.only, self.bench, self.source) {
            (Some(arm), ..) => return vec![arm],
            (None, Bench::PublisherCost, _) => vec![Arm::Native, Arm::Wal],
            (None, _, Source::Wal) => vec![Arm::Native, Arm::Ours, Arm::Wal],
            (None, _, Source::Logical) => vec![Arm::Native, Arm::Ours],
        };
        if !repeat.is_multiple_of(2) {
            arms.reverse();
        }
        arms
    }

    /// Whether its figures may stand in the documents, where each case is replaced by itself.
    fn is_whole(&self) -> bool {
        let sized = self.quick || self.rows.is_some() || self.transactions.is_some();
        !sized && self.only.is_none() && self.repeats >= REPEATS
    }

    /// The arguments that measure the same again; where the result goes and what stays behind is left out.
    fn repeatable(&self) -> String {
        let mut words: Vec<String> =
            self.bench.to_possible_value().map(|name| name.get_name().to_owned()).into_iter().collect();
        words.extend(self.quick.then(|| "--quick".to_owned()));
        words.extend(self.major.iter().map(|major| format!("--major {major}")));
        words.extend(self.case.iter().map(|case| format!("--case {case}")));
        words.extend(self.rows.map(|rows| format!("--rows {rows}")));
        words.extend(self.transactions.map(|count| format!("--transactions {count}")));
        words.extend((self.repeats != REPEATS).then(|| format!("--repeats {}", self.repeats)));
        words
            .extend((self.connections != CONNECTIONS).then(|| format!("--connections {}", self.connections)));
        words.extend((self.source == Source::Wal).then(|| "--source wal".to_owned()));
        words.extend(self.only.map(|arm| format!("--only {}", arm.name())));
        words.join(" ")
    }

    fn out(&self) -> PathBuf {
        let place = if self.is_whole() { "docs/benchmarks" } else { "target/benchmarks" };
        self.out.clone().unwrap_or_else(|| workspace_dir().join(place))
    }
}

fn parse_major(text: &str) -> Result<Major, String> {
    let major = text.parse().ok().and_then(Major::from_number);
    major.ok_or_else(|| "no supported major (14 to 18)".to_owned())
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("bench: the ends differ in at least one run");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures the cases that the options name.
type Measure = fn(&Options, &Say) -> Result<Vec<Case>>;

/// Whether both ends were equal in every run.
fn run(options: &Options) -> Result<bool> {
    if options.keep && std::env::var_os(KEEP_VARIABLE).is_none() {
        // A process cannot safely change its own environment.
        let mut again = std::process::Command::new(std::env::current_exe()?);
        return Err(again.args(std::env::args_os().skip(1)).env(KEEP_VARIABLE, "1").exec().into());
    }
    let reads_wal = options.source == Source::Wal || options.only == Some(Arm::Wal);
    anyhow::ensure!(
        !reads_wal || matches!(options.bench, Bench::Catchup | Bench::PublisherCost),
        "only catchup and publisher-cost can read WAL"
    );
    let say = Say { started: Instant::now() };
    let (bench, stock, measure): (_, _, Measure) = match options.bench {
        Bench::Copy => ("copy", &report::NATIVE, copy::run),
        Bench::Catchup => ("catchup", &report::NATIVE, catchup::run),
        Bench::Decode | Bench::EarlyFilter => ("decode", &decode::STOCK, decode::run),
        Bench::Verify => ("verify", &verify::STOCK, verify::run),
        Bench::Ablation => ("ablation", &ablation::STOCK, ablation::run),
        Bench::Lag => ("lag", &lag::STOCK, lag::run),
        Bench::PublisherCost => ("publisher-cost", &publisher_cost::STOCK, publisher_cost::run),
    };
    let report = |cases| Report { bench, stock, cases, settings: rig::settings(options.connections) };
    let out = options.out();
    if options.document {
        return report(Vec::new()).write(&out).map(|()| true);
    }
    let mut cases = measure(options, &say)?;
    anyhow::ensure!(!cases.is_empty(), "no case has that name");
    cases.iter_mut().for_each(|case| case.arguments = options.repeatable());
    let report = report(cases);
    println!("\n{}", report.table());
    println!("plots and table: {}", out.display());
    println!("{}", report.json());
    let equal = report.is_equal();
    report.write(&out).with_context(|| format!("writing to {}", out.display()))?;
    Ok(equal)
}

/// Progress, one line a step, on standard error.
struct Say {
    started: Instant,
}

impl Say {
    fn line(&self, text: &str) {
        eprintln!("[{:6.1} s] {text}", self.started.elapsed().as_secs_f64());
    }
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
        for partial in ["--quick", "--only=ours", "--rows=5", "--repeats=1"] {
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
    }
}
