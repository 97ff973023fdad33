//! Logical slots whose subscribers only drain: idle ones while another database is written, and
//! ones that get everything.
//!
//! Each repeat also writes the load without any slot. Its wall time is what the others are compared
//! with.

use anyhow::{Context, Result};
use bench_report::table::row;
use testkit::Major;

use super::fan::{Measured, compare, measure};
use super::load::{Load, Shape};
use super::{MANY, Stage, counts, goals, quick, wal_bytes};
use crate::lab::measure::median;
use crate::report::{Case, Unit};
use crate::{Arm, Options, Say};

/// The cases, without their numbers of subscribers.
pub(super) const NAMES: [&str; 5] =
    ["idle-narrow", "idle-wide", "idle-gin", "published-narrow", "published-wide"];

/// One kind of load.
struct Kind {
    name: &'static str,
    is_published: bool,
    shape: Shape,
    /// The WAL of a run is divided by this.
    parts: u64,
    /// Ratios by numbers of subscribers.
    goals: &'static [(usize, f64)],
    /// The load's wall time has a goal.
    has_wall_goal: bool,
}

const KINDS: [Kind; 5] = [
    Kind {
        name: NAMES[0],
        is_published: false,
        shape: Shape::Narrow,
        parts: 1,
        goals: &[(MANY, 20.0)],
        has_wall_goal: true,
    },
    Kind {
        name: NAMES[1],
        is_published: false,
        shape: Shape::Wide,
        parts: 1,
        goals: &[(MANY, 4.0)],
        has_wall_goal: true,
    },
    Kind {
        name: NAMES[2],
        is_published: false,
        shape: Shape::Gin,
        parts: 4,
        goals: &[],
        has_wall_goal: false,
    },
    Kind {
        name: NAMES[3],
        is_published: true,
        shape: Shape::Narrow,
        parts: 4,
        goals: &[(1, 3.0), (MANY, 20.0)],
        has_wall_goal: false,
    },
    Kind {
        name: NAMES[4],
        is_published: true,
        shape: Shape::Kilobyte,
        parts: 4,
        goals: &[(1, 1.0), (MANY, 8.0)],
        has_wall_goal: false,
    },
];

/// The runs of a kind with one number of subscribers.
struct Fan {
    count: usize,
    stock: Vec<Measured>,
    ours: Vec<Measured>,
}

/// The kinds that the options name.
pub(super) fn run(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for kind in KINDS.iter().filter(|kind| options.wants(kind.name)) {
        cases.extend(run_kind(options, say, major, kind).with_context(|| kind.name.to_owned())?);
    }
    Ok(cases)
}

fn run_kind(options: &Options, say: &Say, major: Major, kind: &Kind) -> Result<Vec<Case>> {
    let stage = Stage::prepare(options, major)?;
    let bytes = wal_bytes(options, kind.parts);
    let load = match kind.is_published {
        true => Load::published(kind.shape, bytes),
        false => Load::elsewhere(kind.shape, bytes),
    };
    let name = format!("fanout {}", kind.name);
    let mut without = Vec::new();
    let mut fans: Vec<Fan> =
        counts(options).into_iter().map(|count| Fan { count, stock: Vec::new(), ours: Vec::new() }).collect();
    let repeats = options.repeats();
    for repeat in 0..repeats {
        stage.reset(Some(&load))?;
        let written = load.write(&stage.rig)?;
        say.line(&format!(
            "{name}-{major}: {}/{repeats} without slots: {:.1} s, {:.0} MB of WAL",
            repeat + 1,
            written.seconds,
            written.wal_bytes / 1e6
        ));
        without.push(written.seconds);
        for fan in &mut fans {
            let mut runs = Vec::new();
            for arm in options.order(repeat) {
                let measured = measure(&stage, arm, fan.count, &load);
                runs.push((
                    arm,
                    measured.with_context(|| format!("{} subscribers, {}", fan.count, arm.name()))?,
                ));
            }
            compare(&mut runs);
            for (arm, run) in runs {
                say.line(&format!(
                    "{name}-{}-{major}: {}/{repeats} {}",
                    fan.count,
                    repeat + 1,
                    line(arm, &run)
                ));
                let side = if arm == Arm::Native { &mut fan.stock } else { &mut fan.ours };
                side.push(run);
            }
        }
    }
    let version = stage.rig.version()?;
    let case = |fan| case(options, major, &version, kind, &load, &without, fan);
    Ok(fans.into_iter().map(case).collect())
}

/// A progress line of a run.
pub(super) fn line(arm: Arm, measured: &Measured) -> String {
    format!(
        "{:6} load {:.1} s, level after {:.1} s, {} walsenders {:.3} CPU s, relay {:.2} CPU s, {}",
        arm.name(),
        measured.run.seconds,
        measured.level_seconds,
        measured.senders,
        measured.walsenders(),
        measured.run.cpu.pgsluice,
        if measured.run.equal { "equal" } else { "NOT EQUAL" }
    )
}

fn case(
    options: &Options,
    major: Major,
    version: &str,
    kind: &Kind,
    load: &Load,
    without: &[f64],
    fan: Fan,
) -> Case {
    let Fan { count, stock, ours } = fan;
    let goal = kind.goals.iter().find(|(of, _)| *of == count).map_or(0.0, |(_, goal)| *goal);
    let name = format!("{}-{count}", kind.name);
    let mut case = Case::new(name, major, version.to_owned(), goal, load.rows);
    case.unit = Unit::WalsendersAndPgsluice;
    case.wal_bytes = median(stock.iter().chain(&ours).map(|measured| measured.wal_bytes));
    case.what = format!("slots of one database: {count}; {}{}", load.words(case.wal_bytes), quick(options));
    if !ours.is_empty() {
        if kind.has_wall_goal && count == MANY {
            case.goals.push(goals::wall(without, &ours));
        }
        case.goals.push(goals::resident(ours.iter().map(|run| run.run.resident_bytes_max), count));
        case.goals.push(goals::reconnections(stock.iter().chain(&ours).map(|run| run.reconnections)));
    }
    case.further = further(without, &stock, &ours);
    let runs = |of: Vec<Measured>| of.into_iter().map(|measured| measured.run).collect();
    (case.stock, case.ours) = (runs(stock), runs(ours));
    case
}

/// Medians of both sides, and the load without slots.
fn further(without: &[f64], stock: &[Measured], ours: &[Measured]) -> Vec<Vec<String>> {
    let mut rows = vec![row([
        "side",
        "load s",
        "level after s",
        "walsenders",
        "walsenders CPU s",
        "relay CPU s",
        "receivers CPU s",
    ])];
    rows.push(row(["no slot", &format!("{:.2}", median(without.iter().copied())), "-", "0", "-", "-", "-"]));
    for (side, runs) in [(Arm::Native.name(), stock), ("pgsluice", ours)] {
        let Some(first) = runs.first() else { continue };
        let of = |pick: fn(&Measured) -> f64| median(runs.iter().map(pick));
        rows.push(row([
            side,
            &format!("{:.2}", of(|run| run.run.seconds)),
            &format!("{:.2}", of(|run| run.level_seconds)),
            &first.senders.to_string(),
            &format!("{:.3}", of(Measured::walsenders)),
            &format!("{:.2}", of(|run| run.run.cpu.pgsluice)),
            &format!("{:.2}", of(|run| run.receivers)),
        ]));
    }
    rows
}
