//! A relay comes back with many subscribers that are far behind.
//!
//! The slots of all runs are made before the load is written, and nobody reads them meanwhile. The
//! relay then has the WAL, and is stopped. Each run starts it again and lets one subscriber or many
//! begin: one shows what one decoding of the WAL takes. A run confirms only its own slots.

use anyhow::{Context, Result, ensure};
use bench_report::table::row;
use testkit::{Major, process, wait_for};

use super::load::{Load, Shape, insert_position};
use super::{FIRST, LAST, MANY, RUN_BOUND, Stage, goals, many, names, quick, wal_bytes};
use crate::lab::drain::{Receipt, Receivers, create_slots};
use crate::lab::measure::{Run, median};
use crate::lab::relay::{Place, Relay, SLOT};
use crate::lab::rig::{DB, STEP_BOUND, first};
use crate::report::{Case, Goal, Unit};
use crate::{Arm, Options, Say};

/// The cases, without their numbers of subscribers.
pub(super) const NAMES: [&str; 2] = ["restart-idle", "restart-published"];
/// Of the time that one subscriber takes.
const GOAL: f64 = 1.3;

/// What one run showed.
struct Measured {
    run: Run,
    receipt: Receipt,
    /// How often a decoding of the WAL began.
    passes: usize,
    /// WAL that was read in all of them.
    alone_bytes: u64,
    reconnections: u32,
    /// CPU seconds of the receivers.
    receivers: f64,
}

/// The cases that the options name.
pub(super) fn run(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let bytes = wal_bytes(options, 1);
    let loads = [Load::elsewhere(Shape::Narrow, bytes), Load::published(Shape::Narrow, bytes)];
    let mut cases = Vec::new();
    for (name, load) in NAMES.into_iter().zip(loads) {
        if options.wants(name) {
            cases.push(run_case(options, say, major, name, &load).with_context(|| name.to_owned())?);
        }
    }
    Ok(cases)
}

fn run_case(options: &Options, say: &Say, major: Major, name: &str, load: &Load) -> Result<Case> {
    let count = many(options);
    let name = format!("{name}-{count}");
    let stage = Stage::prepare(options, major)?;
    let place = Place::new()?;
    let repeats = options.repeats();
    let wal_bytes = fall_behind(&stage, &place, count, repeats, load)?;
    let goal = if count == MANY { 1.0 / GOAL } else { 0.0 };
    let mut case = Case::new(&name, major, stage.rig.version()?, goal, load.rows);
    case.unit = Unit::Milliseconds;
    case.wal_bytes = wal_bytes;
    case.sides = ["one".into(), format!("all {count}").into()];
    case.what = format!(
        "the time from START until all of {count} subscribers have the last row, beside one subscriber; {}{}",
        load.words(wal_bytes),
        quick(options)
    );
    let (mut few, mut all): (Vec<Measured>, Vec<Measured>) = (Vec::new(), Vec::new());
    for repeat in 0..repeats {
        for arm in options.order(repeat) {
            let measured = one(&stage, &place, &slots(arm, repeat, count))?;
            let side = &case.sides[usize::from(arm == Arm::Ours)];
            say.line(&format!(
                "fanout {name}-{major}: {side}: {}, {} decodings of {:.0} MB of WAL",
                case.describe(arm, repeat + 1, repeats, &measured.run),
                measured.passes,
                measured.alone_bytes as f64 / 1e6
            ));
            let side = if arm == Arm::Native { &mut few } else { &mut all };
            side.push(measured);
        }
    }
    let is_alike = {
        let mut receipts = few.iter().chain(&all).map(|measured| measured.receipt);
        let reference = receipts.next().unwrap_or_default();
        receipts.all(|receipt| receipt == reference)
    };
    if !is_alike {
        eprintln!("NOT EQUAL: two runs received different rows of the same WAL");
        few.iter_mut().chain(&mut all).for_each(|measured| measured.run.equal = false);
    }
    case.goals = passes(&all).into_iter().collect();
    case.goals.push(goals::resident(all.iter().map(|measured| measured.run.resident_bytes_max), count));
    case.goals.push(goals::reconnections(all.iter().map(|measured| measured.reconnections)));
    case.further = further(&few, &all, count);
    let runs = |of: Vec<Measured>| of.into_iter().map(|measured| measured.run).collect();
    (case.stock, case.ours) = (runs(few), runs(all));
    Ok(case)
}

/// The slots of a run: one, or all.
fn slots(arm: Arm, repeat: u32, count: usize) -> Vec<String> {
    match arm {
        Arm::Native => vec![format!("one{repeat}")],
        _ => names(&format!("all{repeat}_"), count),
    }
}

/// Leaves a stopped relay whose slots all stand before the load. Returns the size of its WAL.
fn fall_behind(stage: &Stage, place: &Place, count: usize, repeats: u32, load: &Load) -> Result<f64> {
    stage.reset(Some(load))?;
    let relay = place.start(stage.source(), &[])?;
    let behind = || -> Result<f64> {
        for repeat in 0..repeats {
            for arm in [Arm::Native, Arm::Ours] {
                create_slots(&relay.url(DB), &slots(arm, repeat, count))?;
            }
        }
        stage.write_mark(FIRST)?;
        let written = load.write(&stage.rig)?;
        stage.write_mark(LAST)?;
        let end = insert_position(&stage.rig)?;
        let come = format!(
            "SELECT restart_lsn - '0/0'::pg_lsn >= {end:.0} FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        );
        wait_for("the relay to have the WAL", STEP_BOUND, || {
            Ok(first(stage.source().sql(DB, &come)?) == "t")
        })?;
        Ok(written.wal_bytes)
    };
    let wal_bytes = behind().with_context(|| relay.log())?;
    relay.stop()?;
    Ok(wal_bytes)
}

/// Starts the relay again, and lets the subscribers of `slots` begin at the same time.
fn one(stage: &Stage, place: &Place, slots: &[String]) -> Result<Measured> {
    let relay = place.start(stage.source(), &[])?;
    let measured = catch_up(stage, &relay, slots).with_context(|| relay.log())?;
    relay.stop()?;
    Ok(measured)
}

fn catch_up(stage: &Stage, relay: &Relay, slots: &[String]) -> Result<Measured> {
    let own = || process::cpu_seconds(std::process::id());
    let before = (relay.cpu_seconds(), own());
    let mut receivers = Receivers::start(&relay.url(DB), slots, stage.reading())?;
    let level = receivers.wait_for_all(LAST, RUN_BOUND)?;
    let seconds = level.duration_since(receivers.started).as_secs_f64();
    relay.wait_for_pass()?;
    if relay.passes() > 1 {
        eprintln!("The WAL was decoded more than once:\n{}", relay.passes_logged());
    }
    let reconnections = receivers.reconnections();
    let receipts = receivers.finish()?;
    let receipt = receipts.first().copied().unwrap_or_default();
    ensure!(receipt.rows > 0, "nothing was received");
    let equal = receipts.iter().all(|other| *other == receipt);
    if !equal {
        eprintln!("NOT EQUAL: {receipts:?}");
    }
    let mut run = Run { seconds, equal, resident_bytes_max: relay.resident_bytes_max(), ..Run::default() };
    run.cpu.pgsluice = relay.cpu_seconds() - before.0;
    let receivers = own() - before.1;
    Ok(Measured {
        run,
        receipt,
        passes: relay.passes(),
        alone_bytes: relay.alone_bytes(),
        reconnections,
        receivers,
    })
}

/// Whether all subscribers shared one decoding.
fn passes(all: &[Measured]) -> Option<Goal> {
    let most = all.iter().map(|measured| measured.passes).max()?;
    Some(Goal {
        what: "decodings of the WAL for all subscribers".to_owned(),
        goal: "1".to_owned(),
        measured: most.to_string(),
        met: most == 1,
    })
}

/// What the relay did, as medians.
fn further(few: &[Measured], all: &[Measured], count: usize) -> Vec<Vec<String>> {
    let mut rows = vec![row([
        "subscribers",
        "level after s",
        "relay CPU s",
        "decodings",
        "WAL read in them MB",
        "receivers CPU s",
    ])];
    for (subscribers, runs) in [(1, few), (count, all)] {
        if runs.is_empty() {
            continue;
        }
        let of = |pick: fn(&Measured) -> f64| median(runs.iter().map(pick));
        rows.push(row([
            &subscribers.to_string(),
            &format!("{:.2}", of(|measured| measured.run.seconds)),
            &format!("{:.2}", of(|measured| measured.run.cpu.pgsluice)),
            &format!("{:.0}", of(|measured| measured.passes as f64)),
            &format!("{:.0}", of(|measured| measured.alone_bytes as f64 / 1e6)),
            &format!("{:.2}", of(|measured| measured.receivers)),
        ]));
    }
    rows
}
