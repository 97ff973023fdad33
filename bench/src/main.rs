//! Measures pgsluice against stock PostgreSQL, on the same servers in the same run.
//!
//! Rules of every benchmark:
//! - Native logical replication with its best documented settings and pgsluice alternate. The order
//!   turns with each repeat. Figures are medians, and a larger ratio is better.
//! - Both start from a file copy of the same target and get the same WAL. Both servers have the
//!   same settings, printed with the result.
//! - After each run the benchmark proves that both ends hold the same rows. A lost case stays in
//!   the table.
//!
//! A benchmark is a list of cases on each major. Its last line of output is one JSON object.
//! Figures of whole runs go to `docs/benchmarks`, case by case. Figures of small or one-sided runs
//! go to `target/benchmarks`, so that a quick look never replaces a recorded figure. Assertions
//! about speed do not belong here.

mod cases;
mod lab;
mod options;
mod report;

use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;

use cases::{
    ablation, catchup, conflicts, copy, decode, fanout, lag, publisher_cost, update_deleted, verify,
};
use options::{Arm, Bench, Options, Source};
use report::{Case, Report};

/// Leaves the clusters' directories behind; read by testkit.
const KEEP_VARIABLE: &str = "PGSLUICE_TEST_KEEP";

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
    // The commit of the program that is there now.
    let _ = lab::machine::pgsluice_version();
    let say = Say { started: Instant::now() };
    let (bench, stock, measure): (_, _, Measure) = match options.bench {
        Bench::Copy => ("copy", &report::NATIVE, copy::run),
        Bench::Catchup => ("catchup", &report::NATIVE, catchup::run),
        Bench::Decode | Bench::EarlyFilter => ("decode", &decode::STOCK, decode::run),
        Bench::Verify => ("verify", &verify::STOCK, verify::run),
        Bench::Ablation => ("ablation", &ablation::STOCK, ablation::run),
        Bench::Conflicts => ("conflicts", &conflicts::STOCK, conflicts::run),
        Bench::Lag => ("lag", &lag::STOCK, lag::run),
        Bench::UpdateDeleted => ("update-deleted", &update_deleted::STOCK, update_deleted::run),
        Bench::PublisherCost => ("publisher-cost", &publisher_cost::STOCK, publisher_cost::run),
        Bench::Fanout => ("fanout", &fanout::STOCK, fanout::run),
    };
    let report = |cases| Report { bench, stock, cases, settings: lab::rig::settings(options.connections) };
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
