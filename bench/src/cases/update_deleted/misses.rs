//! How many missing rows a second are looked up, with their deletions remembered.
//!
//! ```text
//! pgsluice captures -> it stops -> publisher updates each row, subscriber deletes all -> it starts
//! ```
//! `misses` gives each transaction its own on the subscriber, with its commit time, as is the
//! default where that is tracked. `misses-in-sets` writes many of them as sets, and has the goal.
//! `status` says how long the look-ups of the run took, each with its fence: a forced flush.
//! The clock runs from the start to the mark behind the updates. The other side counts the same
//! misses as `update_missing`, without a look-up.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bench_report::table::{grouped, row};
use testkit::Major;

use super::{RETAIN, Stage, Tables, busy, quick};
use crate::lab::cpu::{Cpu, cpu_of, spent};
use crate::lab::load::{self, Amount, Script, Value};
use crate::lab::measure::{Run, finish, median};
use crate::lab::rig::DB;
use crate::report::{Case, Goal};
use crate::{Arm, Options, Say};

const MISSES: u64 = 200_000;
const MISSES_QUICK: u64 = 50_000;
const GOAL_PER_SECOND: f64 = 5_000.0;
const SESSIONS: u64 = 10;
/// A look-up may take so much longer than its fence, both at the 99th percentile.
const GOAL_BEYOND_FENCE: f64 = 5.0;

const SCHEMA: &str = "CREATE TABLE missed (id integer PRIMARY KEY, n integer); CREATE SEQUENCE next_missed";

struct Kind {
    name: &'static str,
    what: &'static str,
    words: &'static [&'static str],
    has_goal: bool,
}

const KINDS: [Kind; 2] = [
    Kind { name: "misses", what: "each is written by itself", words: &[], has_goal: false },
    Kind {
        name: "misses-in-sets",
        what: "they are written as sets; both sides with `--keep-commit-timestamps off`",
        words: &["--keep-commit-timestamps", "off"],
        has_goal: true,
    },
];

/// The kinds that the options name.
pub(super) fn run(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let wanted = KINDS.iter().filter(|kind| options.wants(kind.name));
    wanted.map(|kind| run_kind(options, say, major, kind)).collect()
}

fn run_kind(options: &Options, say: &Say, major: Major, kind: &Kind) -> Result<Case> {
    let name = format!("update-deleted {}-{major}", kind.name);
    let misses = options.rows.unwrap_or(if options.quick { MISSES_QUICK } else { MISSES });
    let misses = misses / SESSIONS * SESSIONS;
    let before = busy();
    let tables = Tables {
        schema: SCHEMA,
        published: &["missed"],
        written: &[],
        fill: format!("INSERT INTO missed SELECT i, 0 FROM generate_series(1, {misses}) i"),
        rows: String::new(),
    };
    let mut stage = Stage::prepare(options, major, &tables)?;
    // Its rows differ: those of the subscriber are deleted.
    stage.fill = format!("TRUNCATE missed; SELECT setval('next_missed', 1, false); {}", stage.fill);
    let mut case = Case::new(kind.name, major, stage.rig.version()?, 0.0, misses);
    case.sides = ["off".into(), "remembered".into()];
    case.what = format!(
        "{misses} updates, each its own transaction, of rows that the subscriber has deleted; {}; {before}{}",
        kind.what,
        quick(options)
    );
    let mut lookups = Vec::new();
    for repeat in 0..options.repeats() {
        let mut arms = [Arm::Native, Arm::Ours];
        arms.rotate_left(repeat as usize % 2);
        for arm in arms {
            let run = run_once(&mut stage, kind, arm == Arm::Ours, misses, &mut lookups)?;
            say.line(&format!("{name}: {}", case.describe(arm, repeat + 1, options.repeats(), &run)));
            case.add(arm, run);
        }
    }
    let rate = misses as f64 / median(case.ours.iter().map(|run| run.seconds));
    case.goals = vec![Goal {
        what: "misses looked up a second".to_owned(),
        goal: if kind.has_goal {
            format!("at least {}", grouped(GOAL_PER_SECOND))
        } else {
            "none".to_owned()
        },
        measured: grouped(rate),
        met: !kind.has_goal || rate >= GOAL_PER_SECOND,
    }];
    case.goals.push(beyond_fence(&lookups));
    case.further = further(&lookups);
    Ok(case)
}

fn run_once(
    stage: &mut Stage,
    kind: &Kind,
    remembers: bool,
    misses: u64,
    lookups: &mut Vec<Lookups>,
) -> Result<Run> {
    let retain: &[&str] = if remembers { &RETAIN } else { &[] };
    let words = [retain, kind.words].concat();
    stage.reset(remembers)?;
    let sluice = stage.start(&words)?;
    finish(Some(sluice))?;
    let script = Script {
        variables: vec![("id", Value::Next("next_missed"))],
        statements: vec!["UPDATE missed SET n = n + 1 WHERE id = :id"],
        sessions: SESSIONS,
    };
    load::write(stage.rig.pair.source.port(), &script, Amount::Transactions(misses))?;
    // The updates are older than this, so that the horizon stands until they are applied.
    stage.rig.pair.target.sql(DB, "DELETE FROM missed")?;
    stage.rig.pair.source.sql(DB, "INSERT INTO mark VALUES (1)")?;
    let before = (cpu_of(&stage.rig.pair.source), cpu_of(&stage.rig.pair.target));
    let started = Instant::now();
    let mut sluice = stage.rig.run_sluice(Arm::Ours)?;
    stage.has(&mut sluice, 1)?;
    let seconds = started.elapsed().as_secs_f64();
    let cpu = Cpu {
        publisher: spent(before.0, cpu_of(&stage.rig.pair.source)),
        subscriber: spent(before.1, cpu_of(&stage.rig.pair.target)),
        pgsluice: sluice.cpu_seconds(),
        ..Cpu::default()
    };
    let answer = if remembers { "update_deleted" } else { "update_missing" };
    found(stage, answer, misses)?;
    let equal = stage.is_equal();
    if remembers {
        lookups.push(Lookups::of(stage)?);
    }
    let resident_bytes_max = sluice.resident_bytes_max();
    finish(Some(sluice))?;
    Ok(Run { seconds, cpu, resident_bytes_max, equal, ..Run::default() })
}

/// Every miss must have the right answer.
fn found(stage: &Stage, answer: &str, misses: u64) -> Result<()> {
    let conflicts = &stage.status()?["totals"]["conflicts"];
    ensure!(conflicts[answer] == misses, "{misses} misses were to be {answer}, and are {conflicts}");
    Ok(())
}

/// How long the last look-ups of a run took, in milliseconds.
#[derive(Clone, Copy)]
struct Lookups {
    median: f64,
    p99: f64,
    fence_median: f64,
    fence_p99: f64,
}

impl Lookups {
    fn of(stage: &Stage) -> Result<Lookups> {
        let deletions = &stage.status()?["deletions"];
        let milliseconds = |what: &str, quantile: &str| {
            let microseconds = deletions[what][quantile].as_f64();
            microseconds.map(|of| of / 1e3).with_context(|| format!("no look-ups in {deletions}"))
        };
        Ok(Lookups {
            median: milliseconds("lookup_us", "median")?,
            p99: milliseconds("lookup_us", "p99")?,
            fence_median: milliseconds("fence_us", "median")?,
            fence_p99: milliseconds("fence_us", "p99")?,
        })
    }
}

fn middle(lookups: &[Lookups], of: fn(&Lookups) -> f64) -> f64 {
    median(lookups.iter().map(of))
}

fn beyond_fence(lookups: &[Lookups]) -> Goal {
    let beyond = middle(lookups, |of| of.p99 - of.fence_p99);
    Goal {
        what: "look-up under load, beyond its fence, each at the 99th percentile".to_owned(),
        goal: format!("at most {GOAL_BEYOND_FENCE:.0} ms"),
        measured: format!("{beyond:.2} ms"),
        met: !lookups.is_empty() && beyond <= GOAL_BEYOND_FENCE,
    }
}

fn further(lookups: &[Lookups]) -> Vec<Vec<String>> {
    let line = |what: &str, median: fn(&Lookups) -> f64, p99: fn(&Lookups) -> f64| {
        let milliseconds = |of| format!("{:.2} ms", middle(lookups, of));
        vec![what.to_owned(), milliseconds(median), milliseconds(p99)]
    };
    vec![
        row(["the last look-ups of a run", "median", "99th percentile"]),
        line("from the question to the answer", |of| of.median, |of| of.p99),
        line("of that, the fence: a forced flush of the subscriber", |of| of.fence_median, |of| of.fence_p99),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_up_is_compared_with_its_fence() {
        let of = |p99| Lookups { median: 1.0, p99, fence_median: 0.5, fence_p99: 2.0 };
        assert!(beyond_fence(&[of(6.0), of(6.5), of(90.0)]).met);
        assert!(!beyond_fence(&[of(7.5)]).met);
        assert!(!beyond_fence(&[]).met);
    }
}
