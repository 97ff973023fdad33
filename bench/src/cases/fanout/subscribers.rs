//! Real subscriptions of a stock server, each in a database of its own, to the publisher or to the
//! relay.
//!
//! Their tables are empty at the beginning on both ends, so nothing is copied.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bench_report::table::row;
use testkit::{Major, wait_for};

use super::fan::{Meter, described, relay_of};
use super::load::{Load, SCHEMA, Shape, Written};
use super::{FIRST, LAST, MANY, RUN_BOUND, Stage, goals, many, names, quick, wal_bytes};
use crate::lab::backlog::MARK;
use crate::lab::drain::Mark;
use crate::lab::measure::{Run, median};
use crate::lab::probe::Probe;
use crate::lab::relay::Relay;
use crate::lab::rig::{DB, NAME as PUBLICATION, first};
use crate::report::{Case, Unit};
use crate::{Arm, Options, Say};

pub(super) const NAME: &str = "subscribers";
const GOAL: f64 = 10.0;
/// The WAL of a run is divided by this.
const PARTS: u64 = 4;
/// What the stock server has room for (`max_logical_replication_workers`).
const MOST: usize = 24;

/// One run: its seconds are the load's own wall time, and how long it took until all had it.
type Measured = (Run, f64);

/// The one case.
pub(super) fn run(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let count = many(options).min(MOST);
    let stage = Stage::prepare(options, major)?;
    let databases = names("s", count);
    for database in &databases {
        stage.rig.pair.target.sql(DB, &format!("CREATE DATABASE {database}"))?;
        stage.rig.pair.target.sql(database, &format!("{MARK}{SCHEMA}"))?;
    }
    let load = Load::published(Shape::Narrow, wal_bytes(options, PARTS));
    let goal = if count == MANY { GOAL } else { 0.0 };
    let name = format!("{NAME}-{count}");
    let mut case = Case::new(&name, major, stage.rig.version()?, goal, load.rows);
    case.unit = Unit::WalsendersAndPgsluice;
    let (mut stock, mut ours) = (Vec::new(), Vec::new());
    let repeats = options.repeats();
    for repeat in 0..repeats {
        for arm in options.order(repeat) {
            let (written, measured) = one(&stage, arm, &databases, &load)?;
            case.wal_bytes = written.wal_bytes;
            say.line(&format!(
                "fanout {name}-{major}: {}, all have it after {:.1} s",
                case.describe(arm, repeat + 1, repeats, &measured.0),
                measured.1
            ));
            let side = if arm == Arm::Native { &mut stock } else { &mut ours };
            side.push(measured);
        }
    }
    case.what =
        format!("{count} subscriptions of a stock server; {}{}", load.words(case.wal_bytes), quick(options));
    if !ours.is_empty() {
        case.goals.push(goals::resident(ours.iter().map(|(run, _)| run.resident_bytes_max), count));
    }
    case.further = further(&stock, &ours);
    let runs = |of: Vec<Measured>| of.into_iter().map(|(run, _)| run).collect();
    (case.stock, case.ours) = (runs(stock), runs(ours));
    Ok(vec![case])
}

fn one(stage: &Stage, arm: Arm, databases: &[String], load: &Load) -> Result<(Written, Measured)> {
    stage.reset(Some(load))?;
    for database in databases {
        stage.rig.pair.target.sql(database, "TRUNCATE mark, t")?;
    }
    let relay = relay_of(stage, arm)?;
    let done = under_load(stage, relay.as_ref(), databases, load);
    let done = done.with_context(|| described(relay.as_ref()))?;
    relay.map_or(Ok(()), Relay::stop)?;
    Ok(done)
}

fn under_load(
    stage: &Stage,
    relay: Option<&Relay>,
    databases: &[String],
    load: &Load,
) -> Result<(Written, Measured)> {
    let target = &stage.rig.pair.target;
    for database in databases {
        target.sql(database, &subscription(stage, relay, database))?;
    }
    let probes: Result<Vec<Probe>> =
        databases.iter().map(|database| Probe::connect(&target.url(database))).collect();
    let probes = probes?;
    stage.write_mark(FIRST)?;
    wait(stage, &probes, FIRST)?;
    let meter = Meter::start(stage, relay, databases.len())?;
    let started = Instant::now();
    let written = load.write(&stage.rig)?;
    stage.write_mark(LAST)?;
    wait(stage, &probes, LAST)?;
    let level = started.elapsed().as_secs_f64();
    let cpu = meter.stop(stage, relay)?.cpu;
    let equal = are_equal(stage, &probes)?;
    for database in databases {
        target.sql(database, &format!("DROP SUBSCRIPTION {database}"))?;
    }
    let resident_bytes_max = relay.map_or(0, Relay::resident_bytes_max);
    Ok((written, (Run { seconds: written.seconds, cpu, resident_bytes_max, equal, ..Run::default() }, level)))
}

/// A subscription is named like its database and its slot. It has the best documented settings.
fn subscription(stage: &Stage, relay: Option<&Relay>, name: &str) -> String {
    let streaming = if stage.rig.major() >= Major::V16 { "parallel" } else { "on" };
    format!(
        "CREATE SUBSCRIPTION {name} CONNECTION '{}' PUBLICATION {PUBLICATION} WITH (slot_name = '{name}', \
         copy_data = false, binary = true, streaming = {streaming}, synchronous_commit = off)",
        stage.url(relay)
    )
}

/// Waits until every database has a mark.
fn wait(stage: &Stage, probes: &[Probe], mark: Mark) -> Result<()> {
    let sql = format!("SELECT count(*) FROM mark WHERE id = {mark}");
    for probe in probes {
        let there = wait_for("a mark in every database", RUN_BOUND, || {
            Ok(probe.row(&sql)?.first().cloned().flatten().as_deref() == Some("1"))
        });
        there.with_context(|| stage.rig.pair.target.log())?;
    }
    Ok(())
}

/// Whether every database has the publisher's rows.
fn are_equal(stage: &Stage, probes: &[Probe]) -> Result<bool> {
    let sql = "SELECT count(*) || ' ' || sum(hashtext(t::text)) FROM t";
    let expected = first(stage.source().sql(DB, sql)?);
    ensure!(!expected.is_empty(), "the publisher has no rows");
    let mut equal = true;
    for (number, probe) in probes.iter().enumerate() {
        let Some(found) = probe.row(sql)?.into_iter().next() else { bail!("no sums of database {number}") };
        if found.as_ref() != Some(&expected) {
            eprintln!("NOT EQUAL: database {number} has {found:?}, the publisher {expected}");
            equal = false;
        }
    }
    Ok(equal)
}

/// Wall times, as medians.
fn further(stock: &[Measured], ours: &[Measured]) -> Vec<Vec<String>> {
    let mut rows = vec![row(["side", "load s", "all have it after s"])];
    for (side, runs) in [(Arm::Native.name(), stock), ("pgsluice", ours)] {
        if !runs.is_empty() {
            let [load, level] = [
                median(runs.iter().map(|(run, _)| run.seconds)),
                median(runs.iter().map(|(_, level)| *level)),
            ];
            rows.push(row([side, &format!("{load:.2}"), &format!("{level:.2}")]));
        }
    }
    rows
}
