//! What the relay costs the publisher itself: one walsender, however many subscribers there are.
//!
//! The load is that of idle slots. Each repeat runs every number of subscribers once, and the order
//! turns.

use anyhow::{Context, Result};
use testkit::Major;

use super::fan::{Measured, measure};
use super::load::{Load, Shape};
use super::slots::line;
use super::{Stage, counts, goals, quick, wal_bytes};
use crate::lab::measure::median;
use crate::lab::pairs::ratio_interval;
use crate::report::{Case, Goal, Unit};
use crate::{Arm, Options, Say};

pub(super) const NAME: &str = "share";
/// Differences of a few per cent need as many pairs.
const PAIRS: u32 = 10;
/// The walsender's CPU time may differ by this part.
const FLAT: f64 = 0.05;

/// A case for each number of subscribers but the least.
pub(super) fn run(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let stage = Stage::prepare(options, major)?;
    let load = Load::elsewhere(Shape::Narrow, wal_bytes(options, 1));
    let counts = counts(options);
    let mut all: Vec<Vec<Measured>> = vec![Vec::new(); counts.len()];
    let repeats = if options.quick { options.repeats() } else { options.repeats.unwrap_or(PAIRS) };
    for repeat in 0..repeats {
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.rotate_left(repeat as usize % counts.len());
        for number in order {
            let count = counts[number];
            let measured = measure(&stage, Arm::Ours, count, &load);
            let measured = measured.with_context(|| format!("{count} subscribers"))?;
            say.line(&format!(
                "fanout {NAME}-{count}-{major}: {}/{repeats} {}",
                repeat + 1,
                line(Arm::Ours, &measured)
            ));
            all[number].push(measured);
        }
    }
    let version = stage.rig.version()?;
    let Some((few, more)) = all.split_first() else { return Ok(Vec::new()) };
    let case = |(count, many): (&usize, &Vec<Measured>)| {
        let mut case = Case::new(format!("{NAME}-{count}"), major, version.clone(), 0.0, load.rows);
        case.unit = Unit::Walsenders;
        case.wal_bytes = median(many.iter().map(|measured| measured.wal_bytes));
        let least = counts.first().copied().unwrap_or_default();
        case.what = format!(
            "the relay's walsender with {least} and with {count} subscribers; {}{}",
            load.words(case.wal_bytes),
            quick(options)
        );
        case.sides = [format!("N = {least}").into(), format!("N = {count}").into()];
        case.goals.push(one_sender(many));
        case.goals.extend(flat(few, many));
        case.goals.push(goals::resident(many.iter().map(|run| run.run.resident_bytes_max), *count));
        let runs = |of: &[Measured]| of.iter().map(|measured| measured.run.clone()).collect();
        (case.stock, case.ours) = (runs(few), runs(many));
        case
    };
    Ok(counts.iter().skip(1).zip(more).map(case).collect())
}

fn one_sender(runs: &[Measured]) -> Goal {
    let most = runs.iter().map(|run| run.senders).max().unwrap_or(0);
    Goal {
        what: "walsenders on the publisher".to_owned(),
        goal: "1".to_owned(),
        measured: most.to_string(),
        met: most == 1,
    }
}

/// Whether the interval of the ratio is near to one; `None` for less than two pairs.
fn flat(few: &[Measured], many: &[Measured]) -> Option<Goal> {
    let pairs: Vec<(f64, f64)> =
        few.iter().map(Measured::walsenders).zip(many.iter().map(Measured::walsenders)).collect();
    let interval = ratio_interval(&pairs)?;
    let near = 1.0 - FLAT..=1.0 + FLAT;
    Some(Goal {
        what: format!("walsender CPU time of {} pairs, and its 95 % interval", pairs.len()),
        goal: format!("within {:.0} %", FLAT * 100.0),
        measured: format!("{:.3} ({:.3} to {:.3})", interval.mean, interval.low, interval.high),
        met: near.contains(&interval.low) && near.contains(&interval.high),
    })
}
