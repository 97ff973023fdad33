//! `cargo x bench churn`: the version store under the message's workload, compared with itself
//! without bottom-up deletion and with other stores.
//!
//! Every run is a process of its own in a control group with the same memory, on a new store, with
//! a sync at every commit. The last line of output is one JSON object. Whole cases go to
//! `docs/benchmarks`. Quick ones, and those with other stores or another length, go to
//! `target/benchmarks`. Assertions about speed do not belong here.

mod cage;
mod deletions;
mod engines;
mod plot;
mod report;
mod workload;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use cage::Cage;
use engines::Arm;
use report::{Case, Instructions, Report};
use workload::{Keys, Outcome, Plan};

const MEBIBYTE: u64 = 1 << 20;
/// Keys of the instruction count; enough for thousands of splits.
const INSERTED: u64 = 200_000;

/// Measures the version store under churn.
#[derive(Parser)]
#[command(name = "cargo x bench churn", bin_name = "cargo x bench churn")]
struct Options {
    /// `churn`: there is no other benchmark here.
    #[arg(value_parser = ["churn"])]
    bench: String,
    /// Fewer cases, once each, and less memory where data outgrow it.
    #[arg(long)]
    quick: bool,
    /// Only this case; may be given more than once.
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Only this store; may be given more than once.
    #[arg(long, value_enum)]
    arm: Vec<Arm>,
    /// Seconds of each run after loading, 10 unless set: 3600 for the message's hour.
    #[arg(long)]
    seconds: Option<f64>,
    /// Repeats of every run; medians count.
    #[arg(long)]
    repeats: Option<u32>,
    /// Directory for the stores: on the disk that is to be measured.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Runs one plan (JSON) in this process and prints its outcome.
    #[arg(long, hide = true)]
    child: Option<String>,
    /// The control group of the child.
    #[arg(long, hide = true)]
    cage: Option<PathBuf>,
    /// Remembers deletions by one plan (JSON) in this process: for `update-deleted`.
    #[arg(long, hide = true)]
    deletions: Option<String>,
    /// Inserts this number of new keys in this process: for counting instructions.
    #[arg(long, hide = true)]
    inserts: Option<u64>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo x bench churn: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    if let Some(plan) = &options.child {
        return child(options, plan);
    }
    if let Some(plan) = &options.deletions {
        let arm = *options.arm.first().context("--deletions wants --arm")?;
        let dir = options.dir.as_deref().context("--deletions wants --dir")?;
        return deletions::run(arm, serde_json::from_str(plan)?, dir);
    }
    if let Some(count) = options.inserts {
        let arm = *options.arm.first().context("--inserts wants --arm")?;
        return workload::insert_only(arm, count, options.dir.as_deref().context("--inserts wants --dir")?);
    }
    let root = workspace_dir();
    let is_whole =
        !options.quick && options.arm.is_empty() && options.seconds.is_none() && options.repeats.is_none();
    let dir = options.dir.clone().unwrap_or_else(|| root.join("target/churn"));
    std::fs::create_dir_all(&dir)?;
    let arms = if options.arm.is_empty() { Arm::ALL.to_vec() } else { options.arm.clone() };
    let mut report = Report::default();
    let mut cases = cases(options);
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    cases.retain(|case| options.case.is_empty() || options.case.contains(&case.name));
    let repeats = options.repeats.unwrap_or(if options.quick { 1 } else { 3 });
    report.cases = cases;
    if options.case.is_empty() {
        report.instructions = instructions(&dir)?;
    }
    let out = root.join(if is_whole { "docs/benchmarks" } else { "target/benchmarks" });
    for repeat in 0..repeats as usize {
        for index in 0..report.cases.len() {
            for place in 0..arms.len() {
                // The order turns, so that no store always follows the same one.
                let arm = arms[(place + repeat) % arms.len()];
                // Where all is in memory there is nothing to read ahead.
                if arm != Arm::OursApart || report.cases[index].is_large() {
                    report.measure(index, arm, &dir);
                }
            }
            // An hour is long, so the results so far can be looked at.
            report.write(&root.join("target/benchmarks"))?;
        }
    }
    let json = report.json();
    println!("{}", report.table());
    if is_whole {
        report.record(&out, &names)?;
    }
    println!("written to {}", out.display());
    println!("{json}");
    Ok(())
}

/// What is measured. The large store is several times the memory, the small one fits.
fn cases(options: &Options) -> Vec<Case> {
    let seconds = options.seconds.unwrap_or(10.0);
    let (large, small) = (2_000_000, 200_000);
    let capped = if options.quick { 96 } else { 128 };
    let all = [
        ("uniform-large-1000", Keys::Uniform, large, 1000, true),
        ("uniform-large-1", Keys::Uniform, large, 1, false),
        ("uniform-small-1000", Keys::Uniform, small, 1000, true),
        ("uniform-small-1", Keys::Uniform, small, 1, true),
        ("zipf-large-1000", Keys::Zipf, large, 1000, true),
        ("zipf-large-1", Keys::Zipf, large, 1, false),
        ("zipf-small-1000", Keys::Zipf, small, 1000, false),
        ("zipf-small-1", Keys::Zipf, small, 1, false),
        ("mixed-large-1000", Keys::Mixed, large, 1000, false),
        ("mixed-small-1000", Keys::Mixed, small, 1000, true),
        ("mixed-small-1", Keys::Mixed, small, 1, false),
        ("queue-large-1000", Keys::Queue, large, 1000, false),
        ("queue-small-1000", Keys::Queue, small, 1000, true),
        ("queue-small-1", Keys::Queue, small, 1, false),
    ];
    let wanted = all
        .into_iter()
        .filter(|(name, .., quick)| *quick || !options.quick || options.case.iter().any(|case| case == name));
    wanted
        .map(|(name, keys, count, per_commit, _)| {
            // The small stores get memory for twice their size. In each case all stores get the
            // same.
            let memory_bytes = if count == large { capped } else { 256 } * MEBIBYTE;
            Case::new(name, Plan { keys, count, per_commit, memory_bytes, seconds })
        })
        .collect()
}

impl Report {
    /// One run. A failed run stays in the report, and the others continue.
    fn measure(&mut self, index: usize, arm: Arm, dir: &Path) {
        let result = run_caged(arm, &self.cases[index].plan, dir);
        let case = &mut self.cases[index];
        match result {
            Ok((outcome, is_capped)) => {
                let rate = outcome.transactions_per_second;
                eprintln!("{} {}: {rate:.0} transactions/s", case.name, arm.name());
                case.runs.entry(arm).or_default().push(outcome);
                case.is_capped &= is_capped;
            }
            Err(error) => {
                eprintln!("{} {}: {error:#}", case.name, arm.name());
                case.failures.push((arm, format!("{error:#}")));
            }
        }
    }
}

/// One run in a process and a control group of its own, and whether there was such a group.
fn run_caged(arm: Arm, plan: &Plan, dir: &Path) -> Result<(Outcome, bool)> {
    let store = tempfile::tempdir_in(dir)?;
    let cage = Cage::new(plan.memory_bytes);
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("churn").args(["--arm", arm.name(), "--child", &serde_json::to_string(plan)?]);
    command.arg("--dir").arg(store.path());
    if let Some(cage) = &cage {
        command.arg("--cage").arg(cage.path());
    }
    let output = command.stderr(Stdio::inherit()).output().context("running a store")?;
    ensure!(output.status.success(), "{} failed: {}", arm.name(), output.status);
    let outcome =
        serde_json::from_slice(&output.stdout).with_context(|| format!("what {} says", arm.name()))?;
    Ok((outcome, cage.is_some()))
}

fn child(options: &Options, plan: &str) -> Result<()> {
    if let Some(cage) = &options.cage {
        cage::enter(cage)?;
    }
    let arm = *options.arm.first().context("a child has one store")?;
    let dir = options.dir.as_deref().context("a child has a directory")?;
    let outcome = workload::run(arm, &serde_json::from_str(plan)?, dir)?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// Instructions that new keys alone cost, with and without bottom-up deletion; `None` without
/// valgrind.
fn instructions(dir: &Path) -> Result<Option<Instructions>> {
    let count = |arm: Arm| -> Result<Option<u64>> {
        let store = tempfile::tempdir_in(dir)?;
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        command.arg(std::env::current_exe()?).arg("churn").args(["--arm", arm.name()]);
        command.args(["--inserts", &INSERTED.to_string()]).arg("--dir").arg(store.path());
        let Ok(output) = command.output() else { return Ok(None) };
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let collected = text.lines().find_map(|line| line.split_once("Collected :"));
        Ok(collected.and_then(|(_, count)| count.trim().parse().ok()))
    };
    let both = count(Arm::Ours)?.zip(count(Arm::OursOff)?);
    Ok(both.map(|(ours, plain)| Instructions { ours, plain }))
}

fn workspace_dir() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}
