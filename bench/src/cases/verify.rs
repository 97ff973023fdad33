//! Verify compares every row of both ends while a subscription runs.
//!
//! Beside it run `SELECT count(*), sum(hashtext(t::text))` of every table, on both servers at the
//! same time. That is the least work that reads every value once. Both sides find the rows in
//! `shared_buffers`: an unmeasured round of each comes first.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testkit::{Major, Sluice, wait_for};

use crate::cases::copy::{Shape, each_shape};
use crate::lab::measure::{Run, finish, measure_work};
use crate::lab::probe::Probe;
use crate::lab::rig::{DB, NAME, Rig, STEP_BOUND, first};
use crate::report::{Case, Stock};
use crate::{Arm, Options, Say};

/// A comparison may take half as long again as counting and hashing.
const GOAL: f64 = 1.0 / 1.5;
const ROWS: u64 = 5_000_000;
const ROWS_QUICK: u64 = 1_000_000;
/// Interval between samples of a running comparison.
const PACE: Duration = Duration::from_millis(10);

/// The sides of each case.
pub(crate) const STOCK: Stock = Stock {
    sides: &[
        "hashtext: `SELECT count(*), sum(hashtext(t::text))` of one table after the other, on both servers at the same \
         time. Each server has one session with its default planner settings.",
        "pgsluice: `verify` with its defaults, beside a running `run`.",
    ],
    columns: &[
        "Rows are those of one end.",
        "\"Equal\": the verdict of that side. For hashtext it means that both servers gave the same sums.",
        "The goal of 0.67 is one and a half times hashtext's time.",
    ],
};

/// Every case on every major.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    each_shape(options, |major, shape| run_case(options, say, major, shape))
}

fn run_case(options: &Options, say: &Say, major: Major, shape: &Shape) -> Result<Case> {
    let name = format!("verify {}-{major}", shape.case);
    let tables = shape.tables.len() as u64;
    let each = options.rows.unwrap_or(if options.quick { ROWS_QUICK } else { ROWS }) / tables;
    let rig = Rig::start(major, options.connections)?;
    shape.publish(&rig, each)?;
    let sluice = rig.run_sluice(Arm::Ours)?;
    wait_for("the first copy", STEP_BOUND, || {
        let copied = "SELECT count(*) FROM pgsluice.copied_table WHERE finished";
        let there =
            first(rig.pair.target.sql(DB, "SELECT to_regclass('pgsluice.copied_table') IS NOT NULL")?);
        Ok(there == "t" && first(rig.pair.target.sql(DB, copied)?) == tables.to_string())
    })?;
    rig.pair.target.sql(DB, "VACUUM ANALYZE")?;
    rig.pair.target.sql(DB, "CHECKPOINT")?;
    rig.settle()?;
    say.line(&format!("{name}: {tables} x {each} rows are on both ends"));
    let mut case = Case::new(shape.case, major, rig.version()?, GOAL, each * tables);
    case.what = format!("{tables} x {each} rows of about 150 bytes");
    case.sides = ["hashtext", "pgsluice"].map(Into::into);
    for arm in options.order(0) {
        compare(&rig, shape, arm, &sluice)?;
    }
    for repeat in 0..options.repeats() {
        for arm in options.order(repeat) {
            let run = compare(&rig, shape, arm, &sluice)?;
            say.line(&format!("{name}: {}", case.describe(arm, repeat + 1, options.repeats(), &run)));
            case.add(arm, run);
        }
    }
    finish(Some(sluice))?;
    Ok(case)
}

fn compare(rig: &Rig, shape: &Shape, arm: Arm, running: &Sluice) -> Result<Run> {
    match arm {
        Arm::Native => {
            let probes = [&rig.pair.source, &rig.pair.target].map(|server| Probe::connect(&server.url(DB)));
            let [source, target] = probes;
            let (source, target) = (source?, target?);
            measure_work(rig, || Ok((0.0, 0, hashes(source, target, &shape.tables)?)))
        }
        _ => {
            let before = running.cpu_seconds();
            measure_work(rig, || {
                let (cpu, resident_bytes_max) = verify(rig)?;
                Ok((cpu + running.cpu_seconds() - before, resident_bytes_max, true))
            })
        }
    }
}

/// Whether count and sum of every table are the same on both.
fn hashes(source: Probe, target: Probe, tables: &[String]) -> Result<bool> {
    let of = |probe: Probe| -> Result<Vec<_>> {
        let hash =
            |table: &String| probe.row(&format!("SELECT count(*), sum(hashtext(t::text)) FROM {table} t"));
        tables.iter().map(hash).collect()
    };
    let [source, target] = thread::scope(|scope| {
        [source, target]
            .map(|probe| scope.spawn(move || of(probe)))
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a session panicked")))
    });
    Ok(source?? == target??)
}

/// Runs `pgsluice verify`, which must find both ends equal; its CPU seconds and largest resident
/// memory.
fn verify(rig: &Rig) -> Result<(f64, u64)> {
    let command = Sluice::command(&rig.pair, &["verify", "--publication", NAME, "--subscription", NAME])?;
    let mut sluice = Sluice::start(command)?;
    let started = Instant::now();
    let mut figures = (0.0, 0);
    loop {
        figures = (sluice.cpu_seconds().max(figures.0), sluice.resident_bytes_max().max(figures.1));
        if let Some(status) = sluice.wait(PACE)? {
            ensure!(status.success(), "verify ended with {status}:\n{}{}", sluice.stdout(), sluice.stderr());
            return Ok(figures);
        }
        ensure!(started.elapsed() < STEP_BOUND, "verify is not done after {STEP_BOUND:?}");
    }
}
