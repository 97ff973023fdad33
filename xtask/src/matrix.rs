//! `cargo x matrix`: the golden suite and the crash test over the whole product of settings, and a
//! record of it.
//!
//! What CI runs takes a few combinations of the product, by a seed. This runs all of them, one
//! after another, and adds a line to the record for each as it ends. What the record has of this
//! commit is not run again. Combinations that the record lacks come first, then those of the oldest
//! commit. So a few runs after each change get through all.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use testkit::matrix::{Combination, FORCED, RECORD, Row, full};
use testkit::workspace_dir;

use crate::cargo::{Profile, build_pgsluice, cargo};

const SUITES: [&str; 2] = ["golden", "crash"];

/// How much of it.
#[derive(Args)]
pub(crate) struct Options {
    /// golden or crash; both unless named.
    #[arg(long)]
    suite: Option<String>,
    /// The largest number of runs.
    #[arg(long)]
    runs: Option<usize>,
    /// Only combinations in whose name this stands, as `order=relaxed`.
    filter: Option<String>,
}

/// Whether everything that was run passed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let suites: Vec<&str> = SUITES
        .into_iter()
        .filter(|suite| options.suite.as_ref().is_none_or(|wanted| wanted == suite))
        .collect();
    ensure!(!suites.is_empty(), "no suite is called {:?}: golden or crash", options.suite);
    let commit = commit()?;
    let done = recorded()?;
    let missing = |suite: &str, combination: &Combination| {
        let name = combination.to_string();
        let wanted = options.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()));
        let same = |row: &Row| row.commit == commit && row.suite == suite && row.combination == *combination;
        wanted && !done.iter().any(same)
    };
    let mut runs = Vec::new();
    for combination in full() {
        runs.extend(
            suites.iter().filter(|suite| missing(suite, &combination)).map(|suite| (*suite, combination)),
        );
    }
    let last = |(suite, combination): &(&str, Combination)| {
        done.iter().rposition(|row| row.suite == *suite && row.combination == *combination)
    };
    runs.sort_by_key(last);
    let count = options.runs.unwrap_or(runs.len()).min(runs.len());
    println!("matrix: {count} of {} runs that the record has not of {commit}", runs.len());
    let program = build_pgsluice(Profile::Dev, &[])?;
    let mut failed = 0;
    for (suite, combination) in runs.into_iter().take(count) {
        let seed = rand::random_range(0..1_000_000);
        let mut command = cargo(&["test", "-p", "pgsluice", "--test", suite, "--", "--test-threads=4"]);
        command.env(FORCED, combination.to_string()).env("PGSLUICE_BIN", &program);
        for name in ["PGSLUICE_CRASH_SEED", "PGSLUICE_GOLDEN_SEED"] {
            command.env(name, seed.to_string());
        }
        let passed = command.status().with_context(|| format!("running {suite}"))?.success();
        failed += usize::from(!passed);
        let outcome = if passed { "passed" } else { "failed" };
        let row = Row {
            commit: commit.clone(),
            suite: suite.to_owned(),
            combination,
            seed,
            outcome: outcome.to_owned(),
        };
        println!("matrix: {suite}, {combination}, seed {seed}: {outcome}");
        let mut record = OpenOptions::new().append(true).open(workspace_dir().join(RECORD))?;
        record.write_all(row.line().as_bytes())?;
    }
    println!("matrix: {count} runs, {failed} failed");
    Ok(failed == 0)
}

fn recorded() -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(workspace_dir().join(RECORD)).with_context(|| RECORD.to_owned())?;
    text.lines().skip(1).map(Row::parse).collect()
}

/// What is checked out, with a `+` if anything but the record was changed since.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("git").current_dir(workspace_dir()).args(arguments).output()?;
        ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let changed = changed.lines().any(|line| !line.ends_with(RECORD));
    Ok(git(&["rev-parse", "--short=12", "HEAD"])? + if changed { "+" } else { "" })
}
