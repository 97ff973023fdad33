//! What deletions occupy while 10,000 a second are captured and the horizon is 10 s behind: in
//! pgsluice's memory and in its files. Neither may grow once a minute has passed.
//!
//! The same deletions are then remembered by our deletion memory alone, and by the best other store
//! of `churn`, each in a process of its own that does nothing else.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench_report::table::{DASH, grouped, row};
use serde_json::json;
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
const INTERVAL_MS: u64 = 10_000;
/// The program of the stores, which ordinary builds do not have; set by `cargo x bench`.
const PEERS_VARIABLE: &str = "PGSLUICE_PEERS_BIN";
/// The stores by their names in `churn`, and on the page.
const STORES: [(&str, &str); 2] = [("ours", "the memory alone"), ("lmdb", "LMDB")];
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
    cpu_seconds: f64,
}

/// The store that remembers, as the page calls it, and its sizes.
struct Side {
    name: &'static str,
    samples: Vec<Sample>,
}

pub(super) fn run(options: &Options, say: &Say, major: Major) -> Result<Case> {
    let time = if options.quick { TIME_QUICK } else { TIME };
    let peers = peers()?;
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
    let mut sides = vec![Side { name: "pgsluice", samples }];
    for (arm, name) in STORES {
        let samples = alone(&peers, arm, time).with_context(|| format!("the store {arm}"))?;
        let spent = samples.last().map_or(0.0, |sample| sample.cpu_seconds);
        say.line(&format!("update-deleted memory-{major}: {name}: {spent:.2} CPU s"));
        sides.push(Side { name, samples });
    }
    case.goals = sides.iter().flat_map(growths).collect();
    case.goals.push(cpu_seconds(&sides));
    case.further = further(&sides);
    case.add(Arm::Ours, run);
    Ok(case)
}

fn peers() -> Result<PathBuf> {
    let path = std::env::var_os(PEERS_VARIABLE).map(PathBuf::from);
    path.with_context(|| {
        format!("{PEERS_VARIABLE} does not name the program of the other stores: run `cargo x bench`, which builds it")
    })
}

/// The same deletions, in a store by itself.
fn alone(peers: &Path, arm: &str, time: Duration) -> Result<Vec<Sample>> {
    let dir = tempfile::tempdir()?;
    let plan = json!({
        "per_statement": PER_STATEMENT,
        "pace_ms": PACE.as_millis() as u64,
        "interval_ms": INTERVAL_MS,
        "seconds": time.as_secs(),
    });
    let mut command = Command::new(peers);
    command.args(["churn", "--arm", arm, "--deletions", &plan.to_string()]).arg("--dir").arg(dir.path());
    let mut store = command.stdout(Stdio::piped()).spawn().context("starting it")?;
    let started = Instant::now();
    let lines = BufReader::new(store.stdout.take().context("its output is a pipe")?).lines();
    let mut samples = Vec::new();
    for line in lines {
        samples.push(Sample {
            seconds: started.elapsed().as_secs_f64(),
            resident: process::resident_bytes(store.id()) as f64,
            files: bytes_below(dir.path()) as f64,
            remembered: line?.parse().context("its count")?,
            cpu_seconds: process::cpu_seconds(store.id()),
        });
    }
    let status = store.wait()?;
    ensure!(status.success(), "it failed: {status}");
    // A line comes each second, unless the store cannot keep the pace.
    ensure!(samples.len() as f64 >= RATE_MIN * time.as_secs_f64(), "it did not keep the pace");
    Ok(samples)
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
                    cpu_seconds: sluice.cpu_seconds() - before.2,
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
        ..Cpu::default()
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

/// Growth is limited for ours. That of another store stands beside it.
fn growths(side: &Side) -> [Goal; 2] {
    let is_ours = side.name != "LMDB";
    let resident = growth(&side.samples, |sample| sample.resident);
    let files = growth(&side.samples, |sample| sample.files);
    [("resident memory", resident), ("files", files)].map(|(what, growth)| Goal {
        what: format!("{}, {what}: largest after a minute, beside the largest in it", side.name),
        goal: if is_ours { format!("at most {:+.0} %", GOAL_GROWTH * 100.0) } else { "none".to_owned() },
        met: growth.met || !is_ours,
        ..growth
    })
}

fn growth(samples: &[Sample], size: fn(&Sample) -> f64) -> Goal {
    let (before, after) = largest(samples, size);
    let grown = excess(after, before);
    Goal {
        what: String::new(),
        goal: String::new(),
        measured: format!("{:+.1} % ({:.1} MB, {:.1} MB)", grown * 100.0, before / 1e6, after / 1e6),
        met: before > 0.0 && after > 0.0 && grown <= GOAL_GROWTH,
    }
}

/// Of the processes of all sides, in which pgsluice replicates and captures as well.
fn cpu_seconds(sides: &[Side]) -> Goal {
    let spent = |side: &Side| {
        let seconds = side.samples.last().map_or(0.0, |sample| sample.cpu_seconds);
        format!("{} {seconds:.1} s", side.name)
    };
    Goal {
        what: "CPU time of the process".to_owned(),
        goal: "none".to_owned(),
        measured: sides.iter().map(spent).collect::<Vec<_>>().join(", "),
        met: true,
    }
}

/// Every tenth sample of each side.
fn further(sides: &[Side]) -> Vec<Vec<String>> {
    let columns = ["resident MB", "files MB", "CPU s", "remembered"];
    let head = sides.iter().flat_map(|side| columns.map(|column| format!("{}: {column}", side.name)));
    let head = std::iter::once("second".to_owned()).chain(head).collect();
    let shown = |side: &Side| side.samples.iter().skip(9).step_by(10).map(cells).collect::<Vec<_>>();
    let sides: Vec<_> = sides.iter().map(shown).collect();
    let most = sides.iter().map(Vec::len).max().unwrap_or(0);
    let rows = (0..most).map(|index| {
        let second = ((index + 1) * 10).to_string();
        let cells = sides.iter().flat_map(|side| side.get(index).cloned().unwrap_or(row([DASH; 4])));
        std::iter::once(second).chain(cells).collect()
    });
    std::iter::once(head).chain(rows).collect()
}

fn cells(sample: &Sample) -> Vec<String> {
    vec![
        format!("{:.1}", sample.resident / 1e6),
        format!("{:.1}", sample.files / 1e6),
        format!("{:.1}", sample.cpu_seconds),
        grouped(sample.remembered),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(sizes: &[(f64, f64)]) -> Vec<Sample> {
        let sample =
            |&(seconds, files)| Sample { seconds, resident: 1.0, files, remembered: 0.0, cpu_seconds: 2.5 };
        sizes.iter().map(sample).collect()
    }

    #[test]
    fn growth_is_what_is_added_after_the_first_minute() {
        let files: fn(&Sample) -> f64 = |sample| sample.files;
        let flat = growth(&samples(&[(1.0, 5e6), (59.0, 10e6), (61.0, 10.9e6), (90.0, 9e6)]), files);
        assert!(flat.met && flat.measured.starts_with("+9.0 %"), "{flat:?}");
        assert!(!growth(&samples(&[(1.0, 10e6), (61.0, 11.5e6)]), files).met);
        // Nothing was measured after the minute.
        assert!(!growth(&samples(&[(1.0, 10e6)]), files).met);
    }

    #[test]
    fn only_the_growth_of_ours_is_limited() {
        let side = |name| Side { name, samples: samples(&[(1.0, 10e6), (61.0, 11.5e6)]) };
        assert!(!growths(&side("pgsluice"))[1].met && !growths(&side("the memory alone"))[1].met);
        assert!(growths(&side("LMDB"))[1].met);
        assert_eq!(cpu_seconds(&[side("pgsluice"), side("LMDB")]).measured, "pgsluice 2.5 s, LMDB 2.5 s");
    }

    #[test]
    fn a_side_that_has_fewer_samples_leaves_its_cells_empty() {
        let long: Vec<(f64, f64)> = (1..=20).map(|second| (f64::from(second), 1e6)).collect();
        let sides =
            [Side { name: "a", samples: samples(&long) }, Side { name: "b", samples: samples(&long[..19]) }];
        let table = further(&sides);
        assert_eq!((table.len(), table[0].len()), (3, 9));
        assert_eq!(table[0][5], "b: resident MB");
        assert_eq!(table[2][4..6], ["0", DASH]);
    }
}
