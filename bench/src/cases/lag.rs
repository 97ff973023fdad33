//! How long after its commit a small transaction is visible on the subscriber.
//!
//! A *beat* is a row of its own table, committed alone every few milliseconds. One session on the
//! publisher notes when its COMMIT was answered. One on the subscriber asks all the time which beat
//! is the newest. Both are on this machine, so they share a clock. A beat is flushed when its
//! COMMIT is answered, whatever the load does. Both sides are sampled alike; a sample every 0.2 ms
//! limits the resolution.
//!
//! The load is half of what native replication carries on this machine while it is written. That
//! rate is measured first, in the same run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use testkit::{Cluster, Major, Sluice, wait_for};

use crate::cases::catchup::join;
use crate::lab::backlog::MARK;
use crate::lab::limit::Reader;
use crate::lab::load::{self, Amount, Script, Value};
use crate::lab::measure::{Run, finish, measure_work};
use crate::lab::probe::Probe;
use crate::lab::rig::{DB, NAME, Rig, STEP_BOUND, first};
use crate::report::{Case, EQUAL, Stock, Unit};
use crate::{Arm, Options, Say};

/// The sides of each case.
pub(crate) const STOCK: Stock = Stock {
    sides: &[
        "Native: `binary = true`, `streaming = parallel` (`on` before 16), `synchronous_commit = off`.",
        "pgsluice: its defaults.",
        "Load: single-row updates by ten sessions, at half the rate that native replication can carry on this machine \
         while the load is written.",
    ],
    columns: &[
        "A figure is the time from the answer to a small transaction's COMMIT on the publisher to the first look that \
         sees it on the subscriber.",
        "Steady: the goal is native's figure plus 1 ms.",
        "Large and locked among small: both sides are pgsluice, with `--commit-order preserve` and `relaxed`, and with the \
         sessions that it has by default: one and two.",
        EQUAL,
    ],
};

const SCHEMA: &str = "CREATE TABLE t (pk integer PRIMARY KEY, counter integer) WITH (fillfactor = 50);
    CREATE TABLE beat (id integer PRIMARY KEY);";
const ROWS: i64 = 100_000;
const PROBED: u64 = 200_000;
const TIME: Duration = Duration::from_secs(30);
const TIME_QUICK: Duration = Duration::from_secs(10);
/// From one beat to the next.
const PACE: Duration = Duration::from_millis(5);
/// From one look to the next.
const LOOK: Duration = Duration::from_micros(200);
/// Time by which pgsluice may be slower.
const GOAL_MS: f64 = 1.0;

/// Rows of the one large transaction.
const LARGE: i64 = 1_000_000;
const LARGE_QUICK: i64 = 200_000;
const LARGE_SCHEMA: &str =
    "CREATE TABLE large (pk integer PRIMARY KEY, counter integer) WITH (fillfactor = 50);";
/// Rate of the small transactions beside it, much less than either side can apply.
const SMALL_PER_SECOND: f64 = 500.0;
/// The large transaction begins this long after the small ones.
const BEFORE_LARGE: Duration = Duration::from_secs(2);
/// Rows of the one that waits for a lock on the subscriber.
const LOCKED: i64 = 10_000;
/// How long a client of the subscriber keeps that lock.
const HOLD: Duration = Duration::from_secs(5);
const GOAL_RELAXED: f64 = 5.0;

/// A transaction among small ones that has nothing to do with them.
struct Neighbour {
    case: &'static str,
    rows: i64,
    what: String,
    /// A client of the subscriber has one of its rows locked, for so long.
    hold: Option<Duration>,
}

/// All cases on every major.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for major in options.majors() {
        if options.wants("steady") {
            cases.extend(steady(options, say, major).with_context(|| format!("steady on {major}"))?);
        }
        for neighbour in neighbours(options) {
            if options.wants(neighbour.case) {
                let measured = among_small(options, say, major, &neighbour);
                cases.extend(measured.with_context(|| format!("{} on {major}", neighbour.case))?);
            }
        }
    }
    Ok(cases)
}

fn script() -> Script {
    let pk = Value::Random { from: 1, to: ROWS };
    Script::one(vec![("pk", pk)], "UPDATE t SET counter = counter + 1 WHERE pk = :pk")
}

/// Two servers with these tables, filled, and published beside beats; saved as `empty`.
pub(crate) fn rig_with(options: &Options, major: Major, schema: &str, tables: &[(&str, i64)]) -> Result<Rig> {
    let mut rig = Rig::start(major, options.connections)?;
    rig.pair.both(DB, &format!("{MARK}{schema}"))?;
    let mut publication = format!("CREATE PUBLICATION {NAME} FOR TABLE mark, beat");
    for (table, rows) in tables {
        let fill = format!("INSERT INTO {table} SELECT i, 0 FROM generate_series(1, {rows}) i");
        rig.pair.source.sql(DB, &fill)?;
        publication += &format!(", {table}");
    }
    rig.pair.source.sql(DB, &publication)?;
    rig.pair.source.sql(DB, "VACUUM ANALYZE")?;
    rig.save("empty")?;
    Ok(rig)
}

fn steady(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let name = format!("lag steady-{major}");
    let mut rig = rig_with(options, major, SCHEMA, &[("t", ROWS)])?;
    let ceiling = ceiling(&mut rig)?;
    say.line(&format!("{name}: {ceiling:.0} transactions a second go through native while they are written"));
    let time = if options.quick { TIME_QUICK } else { TIME };
    let load = Amount::Rate { per_second: ceiling / 2.0, time };
    let mut cases = ["p50", "p99"].map(|part| {
        let mut case = Case::new(format!("steady-{part}"), major, String::new(), 0.0, 1);
        case.unit = Unit::Milliseconds;
        case.what = format!("{part} of the visible lag at {:.0} transactions a second", ceiling / 2.0);
        case
    });
    for repeat in 0..options.repeats() {
        for arm in options.order(repeat) {
            start_anew(&mut rig)?;
            let sluice = join(&rig, arm)?;
            let write = |source: &Cluster| load::write(source.port(), &script(), load).map(drop);
            let (run, lags) = under_load(&rig, sluice.as_ref(), &["t", "beat"], write)?;
            finish(sluice)?;
            if arm == Arm::Native {
                rig.disable()?;
            }
            for (case, part) in cases.iter_mut().zip([0.5, 0.99]) {
                case.version = rig.version()?;
                let run = Run { seconds: quantile(&lags, part), ..run.clone() };
                say.line(&format!("{name}: {}", case.describe(arm, repeat + 1, options.repeats(), &run)));
                case.add(arm, run);
            }
        }
    }
    for case in &mut cases {
        case.goal = case.median(&case.stock).map_or(0.0, |native| native / (native + GOAL_MS));
    }
    Ok(cases.into())
}

/// Transactions a second that native applies while ten sessions write as fast as they can.
fn ceiling(rig: &mut Rig) -> Result<f64> {
    start_anew(rig)?;
    join(rig, Arm::Native)?;
    let started = Instant::now();
    let written = load::write(rig.pair.source.port(), &script(), Amount::Transactions(PROBED))?;
    rig.pair.source.sql(DB, "INSERT INTO mark VALUES (1)")?;
    wait_for("native to apply what was written", STEP_BOUND, || {
        Ok(first(rig.pair.target.sql(DB, "SELECT count(*) FROM mark WHERE id = 1")?) == "1")
    })?;
    let rate = written.transactions as f64 / started.elapsed().as_secs_f64();
    rig.disable()?;
    Ok(rate)
}

/// An empty subscriber, and no slot left on the publisher.
pub(crate) fn start_anew(rig: &mut Rig) -> Result<()> {
    rig.restore("empty")?;
    rig.drop_slots()?;
    rig.pair.source.sql(DB, "TRUNCATE beat; DELETE FROM mark")?;
    rig.settle()
}

fn neighbours(options: &Options) -> [Neighbour; 2] {
    let rows = options.rows.map_or(if options.quick { LARGE_QUICK } else { LARGE }, |rows| rows as i64);
    let locked = format!(
        "in which one transaction updates {LOCKED} rows of another table; a client of the subscriber keeps one of \
         them locked for {} s",
        HOLD.as_secs()
    );
    let large = format!("in which one transaction updates {rows} rows of another table");
    [
        Neighbour { case: "large-among-small", rows, what: large, hold: None },
        Neighbour { case: "locked-among-small", rows: LOCKED, what: locked, hold: Some(HOLD) },
    ]
}

/// How long small transactions wait for an unrelated one, in both orders of commit.
fn among_small(options: &Options, say: &Say, major: Major, neighbour: &Neighbour) -> Result<Vec<Case>> {
    let name = format!("lag {}-{major}", neighbour.case);
    let tables = [("t", ROWS), ("large", neighbour.rows)];
    let mut rig = rig_with(options, major, &format!("{SCHEMA}{LARGE_SCHEMA}"), &tables)?;
    let time = if options.quick { TIME_QUICK } else { TIME };
    let load = Amount::Rate { per_second: SMALL_PER_SECOND, time };
    let mut case = Case::new(format!("{}-p99", neighbour.case), major, rig.version()?, GOAL_RELAXED, 1);
    case.unit = Unit::Milliseconds;
    case.sides = ["preserve", "relaxed"].map(Into::into);
    case.what = format!(
        "p99 of the visible lag at {SMALL_PER_SECOND:.0} transactions a second for {} s, {}",
        time.as_secs(),
        neighbour.what
    );
    let mut alone = Vec::new();
    for repeat in 0..options.repeats() {
        for arm in options.order(repeat) {
            let order = case.sides[usize::from(arm == Arm::Ours)].clone();
            rig.words = ["--commit-order", &order].map(str::to_owned).to_vec();
            start_anew(&mut rig)?;
            let sluice = join(&rig, Arm::Ours)?;
            let target = rig.pair.target.url(DB);
            let write =
                |source: &Cluster| write_both(source, load, neighbour.hold.map(|hold| (&*target, hold)));
            let (run, lags) = under_load(&rig, sluice.as_ref(), &["t", "beat", "large"], write)?;
            finish(sluice)?;
            let run = Run { seconds: quantile(&lags, 0.99), ..run };
            say.line(&format!(
                "{name}: {order}: {}",
                case.describe(arm, repeat + 1, options.repeats(), &run)
            ));
            case.add(arm, run);
        }
        start_anew(&mut rig)?;
        let lags = sent_by_walsender(&rig, |source| write_both(source, load, None))?;
        alone.push(quantile(&lags, 0.99));
        say.line(&format!(
            "{name}: the walsender alone: {:.2} ms",
            alone.last().map_or(0.0, |last| last * 1e3)
        ));
    }
    case.what += &format!(
        "; a reader that throws away what the walsender sends has them after {:.0} ms (p99, median)",
        quantile(&alone, 0.5) * 1e3
    );
    Ok(vec![case])
}

/// Small transactions, and another one in their midst. A client of the server at that address has
/// one of the other's rows locked before it comes, and keeps it so long.
fn write_both(source: &Cluster, load: Amount, locked: Option<(&str, Duration)>) -> Result<()> {
    thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<()> {
            thread::sleep(BEFORE_LARGE);
            let lock = locked.map(|(url, hold)| lock_row(url).map(|client| (client, hold))).transpose()?;
            source.sql(DB, "UPDATE large SET counter = counter + 1")?;
            if let Some((client, hold)) = lock {
                thread::sleep(hold);
                client.row("COMMIT")?;
            }
            Ok(())
        });
        load::write(source.port(), &script(), load)?;
        other.join().map_err(|_| anyhow!("the session with the other transaction panicked"))?
    })
}

/// A client that has a row of the other table locked.
fn lock_row(url: &str) -> Result<Probe> {
    let client = Probe::connect(url)?;
    client.row("BEGIN")?;
    client.row("SELECT pk FROM large ORDER BY pk LIMIT 1 FOR UPDATE")?;
    Ok(client)
}

/// The lag of each beat if nothing is applied: the time from its COMMIT until the walsender has
/// sent it.
fn sent_by_walsender(rig: &Rig, load: impl FnOnce(&Cluster) -> Result<()>) -> Result<Vec<f64>> {
    const SLOT: &str = "alone";
    let source = &rig.pair.source;
    source.sql(DB, &format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"))?;
    let beat: u32 = first(source.sql(DB, "SELECT 'beat'::regclass::oid")?).parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let url = source.url(DB);
    beats(source, |over| runtime.block_on(receive(&url, SLOT, beat, over)), || load(source))
}

/// When each beat was received. Beats are the rows inserted into the table `beat`.
async fn receive(url: &str, slot: &str, beat: u32, over: &AtomicBool) -> Result<Vec<(usize, Instant)>> {
    /// Interval between checks for the end.
    const LOOK_UP: Duration = Duration::from_millis(100);
    let mut reader = Reader::start(url, slot, false).await?;
    let mut seen = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let Ok(message) = tokio::time::timeout(LOOK_UP, reader.message()).await else { continue };
        let message = message?;
        // An Insert has a tag, the relation, `N` and the number of columns. Then the first column
        // has a tag, a length and its text.
        if message.first() == Some(&b'I') && message.get(1..5) == Some(&beat.to_be_bytes()) {
            let id = message.get(13..).context("an Insert that is too short")?;
            seen.push((std::str::from_utf8(id)?.parse()?, Instant::now()));
        }
    }
    Ok(seen)
}

/// One run of a replication that is already running, and the lag of each beat. `tables` are
/// compared after it.
pub(crate) fn under_load(
    rig: &Rig,
    sluice: Option<&Sluice>,
    tables: &[&str],
    load: impl FnOnce(&Cluster) -> Result<()>,
) -> Result<(Run, Vec<f64>)> {
    let (source, target) = (&rig.pair.source, &rig.pair.target);
    let mut lags = Vec::new();
    let mut run = measure_work(rig, || {
        let before = sluice.map_or(0.0, Sluice::cpu_seconds);
        let url = target.url(DB);
        lags = beats(source, |over| see(&url, over), || load(source))?;
        let cpu = sluice.map_or(0.0, Sluice::cpu_seconds) - before;
        Ok((cpu, sluice.map_or(0, Sluice::resident_bytes_max), false))
    })?;
    // A mark is not enough: it may overtake.
    for table in tables {
        let rows = format!("SELECT count(*), sum(hashtext(t::text)) FROM {table} t");
        let source = source.sql(DB, &rows)?;
        wait_for("the ends to be level", STEP_BOUND, || Ok(target.sql(DB, &rows)? == source))?;
    }
    run.equal = rig.is_equal(&tables.iter().map(|table| (*table).to_owned()).collect::<Vec<_>>());
    Ok((run, lags))
}

/// Sends beats while `load` runs. Returns the seconds until `see` saw each.
fn beats(
    source: &Cluster,
    see: impl FnOnce(&AtomicBool) -> Result<Vec<(usize, Instant)>> + Send,
    load: impl FnOnce() -> Result<()>,
) -> Result<Vec<f64>> {
    let over = AtomicBool::new(false);
    let (sent, seen) = thread::scope(|scope| -> Result<_> {
        let sending = scope.spawn(|| send(&source.url(DB), &over));
        let seeing = scope.spawn(|| see(&over));
        let loaded = load();
        over.store(true, Ordering::Relaxed);
        let sent = sending.join().map_err(|_| anyhow!("the session that beats panicked"))?;
        let seen = seeing.join().map_err(|_| anyhow!("the session that looks panicked"))?;
        loaded?;
        Ok((sent?, seen?))
    })?;
    let mut lags = Vec::new();
    let mut looks = seen.into_iter().peekable();
    for (beat, sent) in (1..).zip(sent) {
        while looks.next_if(|(newest, _)| *newest < beat).is_some() {}
        // The run did not wait for the last beats.
        let Some((_, seen)) = looks.peek() else { break };
        lags.push(seen.saturating_duration_since(sent).as_secs_f64());
    }
    ensure!(lags.len() > 100, "only {} small transactions were seen", lags.len());
    Ok(lags)
}

/// When each beat's COMMIT was answered.
fn send(url: &str, over: &AtomicBool) -> Result<Vec<Instant>> {
    let probe = Probe::connect(url)?;
    // Only what is flushed is sent: without this a figure would be that of the publisher's WAL
    // writer.
    probe.row("SET synchronous_commit = on")?;
    let mut sent = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        probe.row(&format!("INSERT INTO beat VALUES ({})", sent.len() + 1))?;
        sent.push(Instant::now());
        thread::sleep(PACE.saturating_sub(begun.elapsed()));
    }
    Ok(sent)
}

/// The time at which each newest beat was first seen.
fn see(url: &str, over: &AtomicBool) -> Result<Vec<(usize, Instant)>> {
    let probe = Probe::connect(url)?;
    let mut seen: Vec<(usize, Instant)> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let row = probe.row("SELECT id FROM beat ORDER BY id DESC LIMIT 1")?;
        let newest = row.into_iter().next().flatten().map_or(Ok(0), |text| text.parse())?;
        if newest > seen.last().map_or(0, |last| last.0) {
            seen.push((newest, Instant::now()));
        }
        thread::sleep(LOOK);
    }
    Ok(seen)
}

/// Of all values, the one that `part` of them do not exceed.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * part).ceil() as usize;
    values.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_values_there_are() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert!((quantile(&values, 0.5) - 50.0).abs() < 1e-9);
        assert!((quantile(&values, 0.99) - 99.0).abs() < 1e-9);
        assert!((quantile(&[3.0], 0.99) - 3.0).abs() < 1e-9);
    }
}
