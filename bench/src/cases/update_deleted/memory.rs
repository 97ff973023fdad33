//! What deletions occupy while 10,000 a second are captured and the horizon is 10 s behind: in
//! pgsluice's memory and in its files. Neither may grow once a minute has passed.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bench_report::table::{grouped, row};
use testkit::{Major, process};

use super::{RETAIN, Stage, Tables, busy, quick};
use crate::lab::cpu::{Cpu, cpu_of, spent};
use crate::lab::measure::{Run, finish};
use crate::lab::pairs::excess;
use crate::lab::probe::Probe;
use crate::lab::rig::DB;
use crate::report::{Case, Goal};
use crate::{Arm, Options, Say};

const PER_STATEMENT: u64 = 1_000;
/// From one statement to the next: 10,000 deletions a second.
const PACE: Duration = Duration::from_millis(100);
const INTERVAL: [&str; 2] = ["--retention-interval", "10s"];
/// Sizes are those of the horizon's first rounds until then.
const SETTLED: Duration = Duration::from_secs(60);
const TIME: Duration = Duration::from_secs(240);
const TIME_QUICK: Duration = Duration::from_secs(100);
const GOAL_GROWTH: f64 = 0.10;
/// Less than this part of the rate is another experiment.
const RATE_MIN: f64 = 0.9;

/// Sizes at one time.
struct Sample {
    seconds: f64,
    resident: f64,
    files: f64,
    remembered: f64,
}

pub(super) fn run(options: &Options, say: &Say, major: Major) -> Result<Case> {
    let time = if options.quick { TIME_QUICK } else { TIME };
    let rows = time.as_millis() as u64 / PACE.as_millis() as u64 * PER_STATEMENT;
    let before = busy();
    let tables = Tables {
        schema: "CREATE TABLE d (id bigint PRIMARY KEY, n integer)",
        published: &["d"],
        written: &[],
        fill: String::new(),
        rows: format!("INSERT INTO d SELECT i, 0 FROM generate_series(1, {rows}) i"),
    };
    let mut stage = Stage::prepare(options, major, &tables)?;
    let mut case = Case::new("memory", major, stage.rig.version()?, 0.0, rows);
    case.sides = ["off".into(), "remembered".into()];
    case.what = format!(
        "{} deletions a second on the subscriber, {PER_STATEMENT} in each statement, for {} s; the horizon moves every \
         10 s; {before}{}",
        grouped(PER_STATEMENT as f64 / PACE.as_secs_f64()),
        time.as_secs(),
        quick(options)
    );
    let (run, samples) = measure(&mut stage, rows, time)?;
    say.line(&format!("update-deleted memory-{major}: {}", case.describe(Arm::Ours, 1, 1, &run)));
    let rate = rows as f64 / run.seconds;
    let wanted = PER_STATEMENT as f64 / PACE.as_secs_f64();
    ensure!(rate >= RATE_MIN * wanted, "only {rate:.0} rows a second were deleted, not {wanted:.0}");
    case.goals = vec![
        growth("resident memory", &samples, |sample| sample.resident),
        growth("files that remember deletions", &samples, |sample| sample.files),
    ];
    case.further = further(&samples);
    case.add(Arm::Ours, run);
    Ok(case)
}

fn measure(stage: &mut Stage, rows: u64, time: Duration) -> Result<(Run, Vec<Sample>)> {
    stage.reset(true)?;
    let mut sluice = stage.start(&[RETAIN, INTERVAL].concat())?;
    let (source, target) = (&stage.rig.pair.source, &stage.rig.pair.target);
    let before = (cpu_of(source), cpu_of(target), sluice.cpu_seconds());
    let probe = Probe::connect(&target.url(DB))?;
    let mut samples = Vec::new();
    let started = Instant::now();
    stage.while_fed(time, || {
        for statement in 0..rows / PER_STATEMENT {
            let first = statement * PER_STATEMENT + 1;
            let last = first + PER_STATEMENT - 1;
            probe.row(&format!(
                "DELETE FROM d WHERE id = ANY (ARRAY(SELECT generate_series({first}::bigint, {last})))"
            ))?;
            let due = PACE * u32::try_from(statement + 1)?;
            if statement % 10 == 9 {
                samples.push(Sample {
                    seconds: started.elapsed().as_secs_f64(),
                    resident: process::resident_bytes_unshared(sluice.pid()) as f64,
                    files: bytes_below(stage.rig.pair.state_dir()) as f64,
                    remembered: stage.deletions("count")?.as_f64().unwrap_or(0.0),
                });
            }
            thread::sleep(due.saturating_sub(started.elapsed()));
        }
        Ok(())
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let cpu = Cpu {
        publisher: spent(before.0, cpu_of(source)),
        subscriber: spent(before.1, cpu_of(target)),
        pgsluice: sluice.cpu_seconds() - before.2,
    };
    stage.arrives(&mut sluice, 1)?;
    let equal = stage.is_equal();
    let resident_bytes_max = sluice.resident_bytes_max();
    finish(Some(sluice))?;
    Ok((Run { seconds, cpu, resident_bytes_max, equal, ..Run::default() }, samples))
}

/// Of all files of pgsluice, in which some come and go.
fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.filter_map(|entry| {
        let found = entry.metadata().ok()?;
        Some(if found.is_dir() { bytes_below(&entry.path()) } else { found.len() })
    });
    bytes.sum()
}

/// The largest size before and after [`SETTLED`].
fn largest(samples: &[Sample], size: fn(&Sample) -> f64) -> (f64, f64) {
    let (before, after): (Vec<&Sample>, Vec<&Sample>) =
        samples.iter().partition(|sample| sample.seconds < SETTLED.as_secs_f64());
    let most = |of: Vec<&Sample>| of.into_iter().map(size).fold(0.0, f64::max);
    (most(before), most(after))
}

fn growth(what: &str, samples: &[Sample], size: fn(&Sample) -> f64) -> Goal {
    let (before, after) = largest(samples, size);
    let grown = excess(after, before);
    Goal {
        what: format!("{what}: largest after a minute, beside the largest in it"),
        goal: format!("at most {:+.0} %", GOAL_GROWTH * 100.0),
        measured: format!("{:+.1} % ({:.1} MB, {:.1} MB)", grown * 100.0, before / 1e6, after / 1e6),
        met: before > 0.0 && after > 0.0 && grown <= GOAL_GROWTH,
    }
}

/// Every tenth sample.
fn further(samples: &[Sample]) -> Vec<Vec<String>> {
    let head = row(["second", "resident MB", "files MB", "deletions remembered"]);
    let shown = samples.iter().skip(9).step_by(10).map(|sample| {
        vec![
            format!("{:.0}", sample.seconds),
            format!("{:.1}", sample.resident / 1e6),
            format!("{:.1}", sample.files / 1e6),
            grouped(sample.remembered),
        ]
    });
    std::iter::once(head).chain(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(sizes: &[(f64, f64)]) -> Vec<Sample> {
        let sample = |&(seconds, files)| Sample { seconds, resident: 1.0, files, remembered: 0.0 };
        sizes.iter().map(sample).collect()
    }

    #[test]
    fn growth_is_what_is_added_after_the_first_minute() {
        let files: fn(&Sample) -> f64 = |sample| sample.files;
        let flat = growth("files", &samples(&[(1.0, 5e6), (59.0, 10e6), (61.0, 10.9e6), (90.0, 9e6)]), files);
        assert!(flat.met && flat.measured.starts_with("+9.0 %"), "{flat:?}");
        assert!(!growth("files", &samples(&[(1.0, 10e6), (61.0, 11.5e6)]), files).met);
        // Nothing was measured after the minute.
        assert!(!growth("files", &samples(&[(1.0, 10e6)]), files).met);
    }
}
