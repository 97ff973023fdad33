//! The cost of replication for the publisher and for all ends together, where pgsluice reads WAL
//! and decodes it itself.
//!
//! Native and the source `wal` are compared in four measurements:
//! - the CPU seconds of walsenders and of the whole pipeline for a backlog of narrow rows;
//! - the lag of small transactions while little else happens;
//! - the time until a restart is past WAL without published changes;
//! - the CPU seconds of several subscriptions.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::Major;

use crate::cases::catchup::{self, join};
use crate::cases::lag::{quantile, rig_with, start_anew, under_load};
use crate::cases::subscriptions;
use crate::lab::backlog;
use crate::lab::measure::{Run, finish};
use crate::report::{Case, EQUAL, Stock, Unit};
use crate::{Arm, Options, Say};

/// The sides of each case.
pub(crate) const STOCK: Stock = Stock {
    sides: &[
        "Native: `binary = true`, `streaming = parallel` (`on` before 16), `synchronous_commit = off`.",
        "pgsluice: its defaults with `--source-mode wal`.",
    ],
    columns: &[
        "`walsender`: CPU seconds of the publisher's walsenders for a gigabyte of its WAL.",
        "`pipeline`: CPU seconds of walsenders, pgsluice and the whole subscriber for a million single-row transactions, \
         in the same runs.",
        "`lag-p50`: the time from the answer to a small transaction's COMMIT to the first look that sees it, while \
         nothing else is written. The goal is native's figure plus 1 ms.",
        "`restart`: the time from the start of the replication until it is past the WAL. The goal is 2 s.",
        "`subscriptions-`: figures for a million rows. Several subscriptions share a process and a pass, and the rows \
         are written while they replicate.",
        EQUAL,
    ],
};

const GOAL_WALSENDER: f64 = 10.0;
const GOAL_PIPELINE: f64 = 2.0;
const GOAL_LAG_MS: f64 = 1.0;
const GOAL_RESTART_MS: f64 = 2_000.0;
const LAG_TIME: Duration = Duration::from_secs(20);
const LAG_TIME_QUICK: Duration = Duration::from_secs(5);

/// All of them on every major.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    type Measure = fn(&Options, &Say, Major) -> Result<Vec<Case>>;
    let kinds: [(&str, Measure); 4] =
        [("cost", cost), ("lag", lag), ("restart", restart), ("subscriptions", subscriptions::measure)];
    let mut cases = Vec::new();
    for major in options.majors() {
        for (name, measure) in kinds {
            if options.wants(name) {
                cases.extend(measure(options, say, major).with_context(|| format!("{name} on {major}"))?);
            }
        }
    }
    Ok(cases)
}

/// CPU seconds for a backlog.
fn cost(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let name = format!("publisher-cost cost-{major}");
    let backlog = backlog::independent_rows(options);
    let mut ready = catchup::prepare(options, say, &name, major, &backlog, &[])?;
    let wal_bytes = ready.window.bytes();
    let kinds = [
        ("walsender", GOAL_WALSENDER, Unit::WalsenderPerGigabyte),
        ("pipeline", GOAL_PIPELINE, Unit::PipelinePerMillion),
    ];
    let mut cases = kinds.map(|(name, goal, unit)| {
        let mut case = ready.case(&backlog, name.to_owned(), goal);
        case.source = "wal".to_owned();
        case.what.push_str(&format!("; {:.0} MB of WAL", wal_bytes / 1e6));
        (case.unit, case.wal_bytes) = (unit, wal_bytes);
        case
    });
    for repeat in 0..options.repeats() {
        for arm in options.order(repeat) {
            let run = ready.catch_up(&backlog, arm, &[])?;
            for case in &mut cases {
                say.line(&format!("{name}: {}", case.describe(arm, repeat + 1, options.repeats(), &run)));
                case.add(arm, run.clone());
            }
        }
    }
    Ok(cases.into())
}

/// The lag of small transactions at little load.
fn lag(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    const TABLES: [&str; 1] = ["beat"];
    let name = format!("publisher-cost lag-{major}");
    let mut rig = rig_with(options, major, "CREATE TABLE beat (id integer PRIMARY KEY);", &[])?;
    let time = if options.quick { LAG_TIME_QUICK } else { LAG_TIME };
    let mut case = Case::new("lag-p50", major, rig.version()?, 0.0, 1);
    case.source = "wal".to_owned();
    case.unit = Unit::Milliseconds;
    case.what =
        format!("median of the visible lag of one small transaction each 5 ms, for {} s", time.as_secs());
    for repeat in 0..options.repeats() {
        for arm in options.order(repeat) {
            start_anew(&mut rig)?;
            let sluice = join(&rig, arm)?;
            let wait = |_: &_| {
                thread::sleep(time);
                Ok(())
            };
            let (run, lags) = under_load(&rig, sluice.as_ref(), &TABLES, wait)?;
            finish(sluice)?;
            if arm == Arm::Native {
                rig.disable()?;
            }
            let run = Run { seconds: quantile(&lags, 0.5), ..run };
            say.line(&format!("{name}: {}", case.describe(arm, repeat + 1, options.repeats(), &run)));
            case.add(arm, run);
        }
    }
    case.goal = case.median(&case.stock).map_or(0.0, |native| native / (native + GOAL_LAG_MS));
    Ok(vec![case])
}

/// How soon a restarted replication is past WAL that no subscription needs.
fn restart(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let name = format!("publisher-cost restart-{major}");
    let backlog = backlog::unpublished(options);
    let mut ready = catchup::prepare(options, say, &name, major, &backlog, &[])?;
    let mut case = ready.case(&backlog, "restart".to_owned(), 0.0);
    case.source = "wal".to_owned();
    case.unit = Unit::Milliseconds;
    case.what.push_str(&format!("; {:.0} MB of WAL", ready.window.bytes() / 1e6));
    for repeat in 0..options.repeats() {
        for arm in options.order(repeat) {
            let run = ready.catch_up(&backlog, arm, &[])?;
            say.line(&format!("{name}: {}", case.describe(arm, repeat + 1, options.repeats(), &run)));
            case.add(arm, run);
        }
    }
    case.goal = case.median(&case.stock).map_or(0.0, |native| native / GOAL_RESTART_MS);
    Ok(vec![case])
}
