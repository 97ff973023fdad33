//! TPC-B on the subscriber: without deletions remembered, with each interval, and with snapshots
//! that are held instead.
//!
//! What dead rows cost depends on how many versions of a hot row there are: transactions per
//! second, times seconds of retention, by branches. The message had 5,900 at 10 s. The scale of
//! `tpcb` is chosen so that this machine has as many. `scale-100` has the message's scale and
//! clients. TPC-B deletes nothing, so `-deletes` deletes the account in one transaction of ten, and
//! inserts it again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bench_report::table::{grouped, row};
use testkit::{Major, Sluice, wait_for};

use super::{RETAIN, Stage, Tables, busy, quick};
use crate::lab::aftermath::Aftermath;
use crate::lab::backlog::{TPCB_SCHEMA, tpcb_rows};
use crate::lab::cpu::{Cpu, cpu_of, spent};
use crate::lab::load::{self, Amount, Script};
use crate::lab::measure::{Run, finish, median};
use crate::lab::pairs::{excess, ratio_interval};
use crate::lab::probe::Probe;
use crate::lab::rig::{DB, STEP_BOUND, first};
use crate::report::{Case, Goal, Unit};
use crate::{Options, Say};

/// As in the message.
const TIME: Duration = Duration::from_secs(120);
const TIME_QUICK: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(10);
/// The scale with which the right one is found out.
const SCALE_PROBED: u64 = 6;
/// Of the message, at 10 s: 59,000 transactions a second by 100 branches.
const VERSIONS: f64 = 5_900.0;
const VERSIONS_SECONDS: f64 = 10.0;
const TABLES: [&str; 3] = ["pgbench_accounts", "pgbench_tellers", "pgbench_branches"];

const GOAL_RATIO: f64 = 0.97;
const GOAL_HOT_POINTS: f64 = 1.0;
const GOAL_LEFT: f64 = 0.05;
const GOAL_CPU: f64 = 0.03;

struct Kind {
    name: &'static str,
    /// `None`: found out in the run.
    scale: Option<u64>,
    clients: u64,
    deletes: bool,
    /// Whether a quick run has it unless it is named.
    quick: bool,
}

const fn kind(name: &'static str, scale: Option<u64>, clients: u64, deletes: bool) -> Kind {
    Kind { name, scale, clients, deletes, quick: scale.is_none() }
}

const KINDS: [Kind; 4] = [
    kind("tpcb", None, 8, false),
    kind("tpcb-deletes", None, 8, true),
    kind("scale-100", Some(100), 60, false),
    kind("scale-100-deletes", Some(100), 60, true),
];

/// What is compared with off.
#[derive(Clone, Copy)]
enum Way {
    /// Deletions are remembered, with a `--retention-interval`.
    Remembers(&'static str),
    /// A snapshot is held for this many seconds.
    Holds(u64),
}

struct Side {
    name: &'static str,
    way: Way,
    quick: bool,
}

const fn side(name: &'static str, way: Way, quick: bool) -> Side {
    Side { name, way, quick }
}

const SIDES: [Side; 8] = [
    side("adaptive", Way::Remembers("0"), true),
    side("10ms", Way::Remembers("10ms"), false),
    side("1s", Way::Remembers("1s"), false),
    side("10s", Way::Remembers("10s"), true),
    side("100s", Way::Remembers("100s"), false),
    side("held-1s", Way::Holds(1), false),
    side("held-10s", Way::Holds(10), true),
    side("held-100s", Way::Holds(100), false),
];

/// One run, and the state of each of [`TABLES`] after it.
#[derive(Clone)]
struct Measured {
    run: Run,
    tables: Vec<Left>,
}

/// What a run left of a table: the growth, and the sizes after it.
#[derive(Clone, Copy, Default)]
struct Left {
    growth: Aftermath,
    table_bytes: f64,
    index_bytes: f64,
}

/// The kinds that the options name.
pub(super) fn run(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for kind in &KINDS {
        let sides: Vec<&Side> = SIDES.iter().filter(|side| is_wanted(options, kind, side)).collect();
        if !sides.is_empty() {
            let measured = run_kind(options, say, major, kind, &sides);
            cases.extend(measured.with_context(|| format!("{} on {major}", kind.name))?);
        }
    }
    Ok(cases)
}

fn is_wanted(options: &Options, kind: &Kind, side: &Side) -> bool {
    let named = |name: &str| options.case.iter().any(|case| case == name);
    let whole_kind = named(kind.name) || (options.case.is_empty() && (kind.quick || !options.quick));
    (whole_kind && (side.quick || !options.quick)) || named(&format!("{}-{}", kind.name, side.name))
}

fn run_kind(options: &Options, say: &Say, major: Major, kind: &Kind, sides: &[&Side]) -> Result<Vec<Case>> {
    let name = format!("update-deleted {}-{major}", kind.name);
    let clients = options.clients.unwrap_or(kind.clients);
    let before = busy();
    let scale = match options.scale.or(kind.scale) {
        Some(scale) => scale,
        None => scale_for(options, say, major, clients)?,
    };
    let mut stage = prepare(options, major, scale)?;
    let script = script(kind, scale, clients);
    let time = if options.quick { TIME_QUICK } else { TIME };
    let time = options.seconds.map_or(time, Duration::from_secs);
    let mut off: Vec<Measured> = Vec::new();
    let mut all: Vec<Vec<Measured>> = vec![Vec::new(); sides.len()];
    let repeats = options.repeats();
    for repeat in 0..repeats {
        let mut order: Vec<Option<usize>> = std::iter::once(None).chain((0..sides.len()).map(Some)).collect();
        let count = order.len();
        order.rotate_left(repeat as usize % count);
        for number in order {
            let way = number.map(|number| sides[number].way);
            let measured = run_once(&mut stage, way, &script, time)?;
            let run = &measured.run;
            say.line(&format!(
                "{name}: {}/{repeats} {:9} {} tx/s, {:.2} CPU s, {}",
                repeat + 1,
                number.map_or("off", |number| sides[number].name),
                grouped(run.transactions as f64 / run.seconds),
                run.cpu.total(),
                if run.equal { "equal" } else { "NOT EQUAL" }
            ));
            number.map_or(&mut off, |number| &mut all[number]).push(measured);
        }
    }
    let versions = rate(&off) * VERSIONS_SECONDS / scale as f64;
    let what = format!(
        "pgbench TPC-B on the subscriber, scale {scale}, {clients} clients, {} s{}; at 10 s, each branch has {} versions \
         (the message: {}); {before}{}",
        time.as_secs(),
        if kind.deletes { ", one transaction in ten deletes its account and inserts it again" } else { "" },
        grouped(versions),
        grouped(VERSIONS),
        quick(options),
    );
    let version = stage.rig.version()?;
    let case = |(side, runs): (&&Side, Vec<Measured>)| {
        let mut case = case(&format!("{}-{}", kind.name, side.name), major, &version, side, &off, &runs);
        case.what.clone_from(&what);
        case
    };
    Ok(sides.iter().zip(all).map(case).collect())
}

/// Chooses the scale at which a branch has the message's versions, by a run of off.
fn scale_for(options: &Options, say: &Say, major: Major, clients: u64) -> Result<u64> {
    let mut stage = prepare(options, major, SCALE_PROBED)?;
    let script = Script { sessions: clients, ..Script::tpcb(SCALE_PROBED) };
    let rate = rate_of(&run_once(&mut stage, None, &script, PROBE)?);
    let scale = scale_of(rate);
    say.line(&format!(
        "{clients} clients reach {} tx/s at scale {SCALE_PROBED}: scale {scale}",
        grouped(rate)
    ));
    Ok(scale)
}

/// The number of branches.
fn scale_of(rate: f64) -> u64 {
    ((rate * VERSIONS_SECONDS / VERSIONS).round() as u64).max(1)
}

fn prepare(options: &Options, major: Major, scale: u64) -> Result<Stage> {
    let tables = Tables {
        schema: TPCB_SCHEMA,
        published: &TABLES,
        written: &[],
        fill: String::new(),
        rows: tpcb_rows(scale),
    };
    Stage::prepare(options, major, &tables)
}

fn script(kind: &Kind, scale: u64, clients: u64) -> Script {
    let script = if kind.deletes { Script::tpcb_with_deletions(scale) } else { Script::tpcb(scale) };
    Script { sessions: clients, ..script }
}

/// One run of one side; `None` is off.
fn run_once(stage: &mut Stage, way: Option<Way>, script: &Script, time: Duration) -> Result<Measured> {
    let words: Vec<&str> = match way {
        Some(Way::Remembers(interval)) => [&RETAIN[..], &["--retention-interval", interval]].concat(),
        _ => Vec::new(),
    };
    stage.reset(!words.is_empty())?;
    let mut sluice = stage.start(&words)?;
    let was = look(stage)?;
    let over = AtomicBool::new(false);
    let url = stage.rig.pair.target.url(DB);
    let mut run = thread::scope(|scope| -> Result<Run> {
        let holding = match way {
            Some(Way::Holds(seconds)) => {
                let (url, over, each) = (&url, &over, Duration::from_secs(seconds));
                Some(scope.spawn(move || hold(url, each, over)))
            }
            _ => None,
        };
        let run = stage.while_fed(time, || load_target(stage, &sluice, script, time));
        over.store(true, Ordering::Relaxed);
        holding
            .map_or(Ok(Ok(())), thread::ScopedJoinHandle::join)
            .map_err(|_| anyhow!("the holder panicked"))??;
        run
    })?;
    stage.arrives(&mut sluice, 1)?;
    run.equal = stage.is_equal();
    run.resident_bytes_max = sluice.resident_bytes_max();
    let is = look(stage)?;
    finish(Some(sluice))?;
    let total = |of: &[Aftermath]| of.iter().copied().reduce(sum).unwrap_or_default();
    let wal_bytes = is[0].wal_bytes - was[0].wal_bytes;
    run.aftermath = Some(Aftermath { wal_bytes, ..total(&is).since(total(&was)) });
    let left = |(is, was): (&Aftermath, &Aftermath)| Left {
        growth: is.since(*was),
        table_bytes: is.table_bytes,
        index_bytes: is.index_bytes,
    };
    Ok(Measured { run, tables: is.iter().zip(&was).map(left).collect() })
}

fn look(stage: &Stage) -> Result<Vec<Aftermath>> {
    TABLES.iter().map(|table| Aftermath::look(&stage.rig, &[(*table).to_owned()])).collect()
}

fn sum(one: Aftermath, other: Aftermath) -> Aftermath {
    Aftermath {
        wal_bytes: one.wal_bytes,
        index_bytes: one.index_bytes + other.index_bytes,
        table_bytes: one.table_bytes + other.table_bytes,
        dead_rows: one.dead_rows + other.dead_rows,
        updates: one.updates + other.updates,
        heap_only_updates: one.heap_only_updates + other.heap_only_updates,
    }
}

/// The clients, under the clock.
fn load_target(stage: &Stage, sluice: &Sluice, script: &Script, time: Duration) -> Result<Run> {
    let (source, target) = (&stage.rig.pair.source, &stage.rig.pair.target);
    let before = (cpu_of(source), cpu_of(target), sluice.cpu_seconds());
    let started = Instant::now();
    let written = load::write(target.port(), script, Amount::Time(time))?;
    let pgsluice = sluice.cpu_seconds() - before.2;
    // A backend's CPU time counts as the clients' once it has ended.
    let clients = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() \
         AND application_name NOT IN ('{HOLDER}') AND application_name NOT LIKE 'pgsluice%'"
    );
    wait_for("the clients' backends to end", STEP_BOUND, || Ok(first(target.sql(DB, &clients)?) == "0"))?;
    let cpu = Cpu {
        publisher: spent(before.0, cpu_of(source)),
        subscriber: spent(before.1, cpu_of(target)),
        pgsluice,
        ..Cpu::default()
    };
    // pgbench stops by its own clock, and connects before it starts.
    let seconds = time.as_secs_f64().max(0.9 * started.elapsed().as_secs_f64());
    Ok(Run { seconds, transactions: written.transactions, cpu, ..Run::default() })
}

/// The application name of the session that holds snapshots.
const HOLDER: &str = "holder";

/// Holds a snapshot, and takes a new one each time `each` has passed, until it is over.
fn hold(url: &str, each: Duration, over: &AtomicBool) -> Result<()> {
    let probe = Probe::connect(url)?;
    probe.row(&format!("SET application_name = {HOLDER}"))?;
    while !over.load(Ordering::Relaxed) {
        // The first query takes the snapshot; the transaction then is idle.
        probe.row("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM feed")?;
        let begun = Instant::now();
        while begun.elapsed() < each && !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
        probe.row("COMMIT")?;
    }
    Ok(())
}

fn rate(runs: &[Measured]) -> f64 {
    median(runs.iter().map(rate_of))
}

fn rate_of(measured: &Measured) -> f64 {
    measured.run.transactions as f64 / measured.run.seconds
}

fn case(name: &str, major: Major, version: &str, side: &Side, off: &[Measured], ours: &[Measured]) -> Case {
    let remembers = matches!(side.way, Way::Remembers(_));
    let goal = if remembers { GOAL_RATIO } else { 0.0 };
    let mut case = Case::new(name, major, version.to_owned(), goal, 0);
    case.unit = Unit::TransactionsPerSecond;
    case.sides = ["off".into(), side.name.into()];
    let runs = |of: &[Measured]| of.iter().map(|measured| measured.run.clone()).collect();
    (case.stock, case.ours) = (runs(off), runs(ours));
    case.goals = ratio_goal(off, ours, remembers).into_iter().collect();
    case.goals.extend(per_cpu_second(off, ours));
    if remembers {
        case.goals.extend(left_goals(&left(off), &left(ours)));
        case.goals.push(cpu_goal(off, ours));
    }
    case.further = further(side.name, &left(off), &left(ours));
    case
}

/// The interval of the ratio; of no interest as a goal where a snapshot is held.
fn ratio_goal(off: &[Measured], ours: &[Measured], has_goal: bool) -> Option<Goal> {
    let pairs: Vec<(f64, f64)> = off.iter().map(rate_of).zip(ours.iter().map(rate_of)).collect();
    let interval = ratio_interval(&pairs)?;
    Some(Goal {
        what: format!("ratio of {} pairs, and its 95 % interval", pairs.len()),
        goal: if has_goal { format!("lower end at least {GOAL_RATIO}") } else { "none".to_owned() },
        measured: format!("{:.3} ({:.3} to {:.3})", interval.mean, interval.low, interval.high),
        met: !has_goal || interval.low >= GOAL_RATIO,
    })
}

/// The same of transactions per CPU second of all processes: what the ratio is where both cores are
/// always busy, and nobody else takes of their time.
fn per_cpu_second(off: &[Measured], ours: &[Measured]) -> Option<Goal> {
    let of = |measured: &Measured| measured.run.transactions as f64 / measured.run.cpu.total();
    let pairs: Vec<(f64, f64)> = off.iter().map(of).zip(ours.iter().map(of)).collect();
    let interval = ratio_interval(&pairs)?;
    Some(Goal {
        what: "the same of transactions per CPU second of all processes".to_owned(),
        goal: "none".to_owned(),
        measured: format!("{:.3} ({:.3} to {:.3})", interval.mean, interval.low, interval.high),
        met: true,
    })
}

/// Medians for each table.
fn left(runs: &[Measured]) -> Vec<Left> {
    let of = |index: usize, pick: fn(&Left) -> f64| median(runs.iter().map(|run| pick(&run.tables[index])));
    let table = |index: usize| Left {
        growth: Aftermath {
            wal_bytes: 0.0,
            index_bytes: of(index, |left| left.growth.index_bytes),
            table_bytes: of(index, |left| left.growth.table_bytes),
            dead_rows: of(index, |left| left.growth.dead_rows),
            updates: of(index, |left| left.growth.updates),
            heap_only_updates: of(index, |left| left.growth.heap_only_updates),
        },
        table_bytes: of(index, |left| left.table_bytes),
        index_bytes: of(index, |left| left.index_bytes),
    };
    (0..TABLES.len()).map(table).collect()
}

fn hot_per_cent(left: &Left) -> f64 {
    left.growth.heap_only_share().unwrap_or(0.0) * 100.0
}

/// What is left may not be worse than off's by more than its goal.
fn left_goals(off: &[Left], ours: &[Left]) -> [Goal; 3] {
    let lost = off.iter().zip(ours).map(|(off, ours)| hot_per_cent(off) - hot_per_cent(ours));
    let lost = lost.fold(f64::MIN, f64::max);
    let total = |of: &[Left], pick: fn(&Left) -> f64| of.iter().map(pick).sum::<f64>();
    let more = |pick: fn(&Left) -> f64| excess(total(ours, pick), total(off, pick));
    let grown = |what: &str, part: f64| Goal {
        what: format!("{what}, all tables, beside off"),
        goal: format!("at most {:+.0} %", GOAL_LEFT * 100.0),
        measured: format!("{:+.1} %", part * 100.0),
        met: part <= GOAL_LEFT,
    };
    [
        Goal {
            what: "HOT updates, of the table that loses most".to_owned(),
            goal: format!("at most {GOAL_HOT_POINTS:.0} point fewer"),
            measured: format!("{:+.2} points", -lost),
            met: lost <= GOAL_HOT_POINTS,
        },
        grown("dead rows", more(|left| left.growth.dead_rows)),
        grown("heaps and indexes", more(|left| left.table_bytes + left.index_bytes)),
    ]
}

/// CPU time of capture and its walsender, as a part of what the clients' backends took.
fn cpu_goal(off: &[Measured], ours: &[Measured]) -> Goal {
    let kind = |run: &Run, kind: &str| run.cpu.subscriber.get(kind).copied().unwrap_or(0.0);
    let share = |(off, ours): (&Measured, &Measured)| {
        let capture = (ours.run.cpu.pgsluice - off.run.cpu.pgsluice).max(0.0);
        (capture + kind(&ours.run, "walsender")) / kind(&ours.run, "exited").max(0.01)
    };
    let share = median(off.iter().zip(ours).map(share));
    Goal {
        what: "CPU time of capture and its walsender, of that of the clients' backends".to_owned(),
        goal: format!("at most {:.0} %", GOAL_CPU * 100.0),
        measured: format!("{:.1} %", share * 100.0),
        met: share <= GOAL_CPU,
    }
}

/// What each table looks like after the runs of both sides.
fn further(name: &str, off: &[Left], ours: &[Left]) -> Vec<Vec<String>> {
    let mut rows = vec![row(["table", "side", "updates", "HOT", "dead rows", "heap MB", "indexes MB"])];
    for (index, table) in TABLES.iter().enumerate() {
        for (side, left) in [("off", &off[index]), (name, &ours[index])] {
            rows.push(vec![
                (*table).to_owned(),
                side.to_owned(),
                grouped(left.growth.updates),
                format!("{:.1} %", hot_per_cent(left)),
                grouped(left.growth.dead_rows),
                format!("{:.1}", left.table_bytes / 1e6),
                format!("{:.1}", left.index_bytes / 1e6),
            ]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(transactions: u64, pgsluice: f64, walsender: f64, clients: f64) -> Measured {
        let subscriber = [("walsender", walsender), ("exited", clients)];
        let subscriber = subscriber.map(|(kind, seconds)| (kind.to_owned(), seconds)).into();
        let cpu = Cpu { pgsluice, subscriber, ..Cpu::default() };
        let run = Run { seconds: 10.0, transactions, cpu, ..Run::default() };
        Measured { run, tables: vec![Left::default(); TABLES.len()] }
    }

    fn with(heap_only: f64, dead: f64, bytes: f64) -> Vec<Left> {
        let growth = Aftermath {
            updates: 1_000.0,
            heap_only_updates: heap_only,
            dead_rows: dead,
            ..Aftermath::default()
        };
        vec![Left { growth, table_bytes: bytes, index_bytes: bytes }; TABLES.len()]
    }

    #[test]
    fn the_scale_gives_a_branch_as_many_versions_as_the_message_has() {
        assert_eq!(scale_of(59_000.0), 100);
        assert_eq!(scale_of(3_600.0), 6);
        assert_eq!(scale_of(10.0), 1);
    }

    #[test]
    fn capture_is_what_pgsluice_takes_beyond_off() {
        let goal = cpu_goal(&[measured(1, 1.0, 0.0, 10.0)], &[measured(1, 1.2, 0.1, 10.0)]);
        assert_eq!((goal.measured.as_str(), goal.met), ("3.0 %", true));
        let goal = cpu_goal(&[measured(1, 1.0, 0.0, 10.0)], &[measured(1, 1.2, 0.2, 10.0)]);
        assert!(!goal.met, "{goal:?}");
    }

    #[test]
    fn the_lower_end_of_the_interval_decides() {
        let off = [measured(1_000, 0.0, 0.0, 0.0), measured(1_000, 0.0, 0.0, 0.0)];
        let ours = |one, other| [measured(one, 0.0, 0.0, 0.0), measured(other, 0.0, 0.0, 0.0)];
        assert!(ratio_goal(&off, &ours(980, 980), true).unwrap().met);
        assert!(!ratio_goal(&off, &ours(960, 960), true).unwrap().met);
        // Equal in the mean, but unsure.
        assert!(!ratio_goal(&off, &ours(900, 1_110), true).unwrap().met);
        assert!(ratio_goal(&off[..1], &ours(980, 980)[..1], true).is_none());
    }

    #[test]
    fn only_what_is_worse_than_off_misses_a_goal() {
        let met = |ours: Vec<Left>| left_goals(&with(900.0, 100.0, 1e6), &ours).map(|goal| goal.met);
        assert_eq!(met(with(890.1, 104.0, 1.04e6)), [true; 3]);
        assert_eq!(met(with(950.0, 50.0, 0.5e6)), [true; 3]);
        assert_eq!(met(with(889.0, 106.0, 1.06e6)), [false; 3]);
    }
}
