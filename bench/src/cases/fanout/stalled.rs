//! One of many subscribers stops reading for a minute, and goes on then.
//!
//! ```text
//! load:  |---- half of what the relay carries, and beats ----|mark
//! late:  |---------------- does not read --------------------|--level-->
//! other form:                                                           |--decoded alone-->
//! ```
//! A *beat* is a mark that is committed alone every few milliseconds, by a session that waits for
//! the flush. The lag of all receivers but the late one counts, beside that of runs in which nobody
//! is late. Both kinds of run are the relay's.
//!
//! The relay has to decode for a form of its own once more, from where the late one stood. That is
//! the time in which its backlog is decoded: a slot that is made with the others is read with other
//! options at the end. `wal_sender_timeout` is longer than the hang, because a connection that is
//! closed would be another case.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use testkit::{Cluster, Major};

use super::load::insert_position;
use super::{FIRST, LAST, RUN_BOUND, Stage, goals, many, names, quick};
use crate::cases::lag::quantile;
use crate::lab::drain::{Mark, Reading, Receivers, create_slots};
use crate::lab::load::{self, Amount, Script, Value};
use crate::lab::measure::{Run, median};
use crate::lab::probe::Probe;
use crate::lab::relay::{Place, Relay, SLOT};
use crate::lab::rig::{DB, first};
use crate::report::{Case, Goal, Unit};
use crate::{Arm, Options, Say};

pub(super) const NAME: &str = "stalled";
const TIME: Duration = Duration::from_secs(60);
const TIME_QUICK: Duration = Duration::from_secs(6);
/// From one beat to the next.
const PACE: Duration = Duration::from_millis(5);
/// Time by which the others may be later than in the baseline.
const GOAL_MS: f64 = 5.0;
/// Of the time in which the late one's backlog is decoded.
const GOAL_LEVEL: f64 = 2.0;
/// WAL that the server may hold: a segment.
const GOAL_HELD: f64 = 16_777_216.0;
const ROWS: i64 = 100_000;
/// Transactions by which the rate is found out that the relay carries.
const PROBED: u64 = 100_000;
const PROBED_QUICK: u64 = 20_000;
/// The number of the late receiver.
const LATE: usize = 0;
/// The slot that is read with other options.
const OTHER_FORM: &str = "other_form";

/// What one run showed.
struct Measured {
    run: Run,
    reconnections: u32,
    hang: Option<Hang>,
}

/// What became of the one that stopped.
#[derive(Clone, Copy)]
struct Hang {
    /// WAL on the server that the relay's slot held while it stood.
    held_bytes: f64,
    /// Logical slots on the server.
    logical_slots: u64,
    level_seconds: f64,
    decode_seconds: f64,
}

/// The one case.
pub(super) fn run(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let count = many(options);
    ensure!(count >= 2, "{NAME} needs two subscribers at least");
    let name = format!("{NAME}-{count}");
    let stage = Stage::prepare(options, major)?;
    let fill = format!("INSERT INTO t SELECT i, 0, 'value' FROM generate_series(1, {ROWS}) i");
    stage.source().sql(DB, &fill)?;
    stage.source().sql(DB, "VACUUM ANALYZE")?;
    let time = if options.quick { TIME_QUICK } else { TIME };
    let time = options.seconds.map_or(time, Duration::from_secs);
    let ceiling = ceiling(&stage, count, if options.quick { PROBED_QUICK } else { PROBED })?;
    say.line(&format!("fanout {name}-{major}: {ceiling:.0} transactions a second reach all receivers"));
    let load = Amount::Rate { per_second: ceiling / 2.0, time };
    let mut case = Case::new(&name, major, stage.rig.version()?, 0.0, 1);
    case.unit = Unit::Milliseconds;
    case.sides = ["baseline", "one is late"].map(Into::into);
    case.what = format!(
        "p99 of the lag of {} receivers at {:.0} transactions a second for {} s; one more does not read meanwhile{}",
        count - 1,
        ceiling / 2.0,
        time.as_secs(),
        quick(options)
    );
    let (mut hangs, mut lost) = (Vec::new(), Vec::new());
    for repeat in 0..options.repeats() {
        for arm in options.order(repeat) {
            let measured = one(&stage, count, load, arm == Arm::Ours)?;
            let side = &case.sides[usize::from(arm == Arm::Ours)];
            let described = case.describe(arm, repeat + 1, options.repeats(), &measured.run);
            say.line(&format!("fanout {name}-{major}: {side}: {described}"));
            if let Some(Hang { held_bytes, level_seconds, decode_seconds, .. }) = measured.hang {
                say.line(&format!(
                    "fanout {name}-{major}: the server held {:.1} MB, level after {level_seconds:.2} s, decoded in \
                     {decode_seconds:.2} s",
                    held_bytes / 1e6
                ));
            }
            hangs.extend(measured.hang);
            lost.push(measured.reconnections);
            case.add(arm, measured.run);
        }
    }
    case.goal = case.median(&case.stock).map_or(0.0, |baseline| baseline / (baseline + GOAL_MS));
    case.goals = hang_goals(&hangs);
    case.goals.push(goals::resident(case.ours.iter().map(|run| run.resident_bytes_max), count + 1));
    case.goals.push(goals::reconnections(lost));
    Ok(vec![case])
}

fn script() -> Script {
    let id = Value::Random { from: 1, to: ROWS };
    Script::one(vec![("id", id)], "UPDATE t SET n = n + 1 WHERE id = :id")
}

/// A relay whose receivers take each message as it comes, and the mark before the load.
fn start(stage: &Stage, count: usize) -> Result<(Relay, Receivers)> {
    stage.reset(None)?;
    let relay = Place::new()?.start(stage.source(), &["--wal-sender-timeout", "1h"])?;
    let begin = || {
        let url = relay.url(DB);
        let slots = names("s", count);
        create_slots(&url, &slots)?;
        create_slots(&url, &[OTHER_FORM.to_owned()])?;
        let mut receivers = Receivers::start(&url, &slots, Reading { prompt: true, ..stage.reading() })?;
        stage.write_mark(FIRST)?;
        receivers.wait_for_all(FIRST, RUN_BOUND)?;
        Ok(receivers)
    };
    let receivers: Result<Receivers> = begin();
    let receivers = receivers.with_context(|| relay.log())?;
    Ok((relay, receivers))
}

/// Transactions a second that reach all receivers while they are written as fast as possible.
fn ceiling(stage: &Stage, count: usize, transactions: u64) -> Result<f64> {
    let (relay, mut receivers) = start(stage, count)?;
    let started = Instant::now();
    let written = load::write(stage.source().port(), &script(), Amount::Transactions(transactions))?;
    stage.write_mark(LAST)?;
    let level = receivers.wait_for_all(LAST, RUN_BOUND).with_context(|| relay.log())?;
    let rate = written.transactions as f64 / level.duration_since(started).as_secs_f64();
    receivers.finish()?;
    relay.stop()?;
    Ok(rate)
}

fn one(stage: &Stage, count: usize, load: Amount, is_late: bool) -> Result<Measured> {
    let (relay, receivers) = start(stage, count)?;
    let measured = under_load(stage, &relay, receivers, count, load, is_late);
    let measured = measured.with_context(|| relay.log())?;
    relay.stop()?;
    Ok(measured)
}

fn under_load(
    stage: &Stage,
    relay: &Relay,
    mut receivers: Receivers,
    count: usize,
    load: Amount,
    is_late: bool,
) -> Result<Measured> {
    let cpu = relay.cpu_seconds();
    if is_late {
        receivers.hold(LATE);
    }
    let sent = beats(stage.source(), || load::write(stage.source().port(), &script(), load).map(drop))?;
    stage.write_mark(LAST)?;
    receivers.wait(LATE + 1..count, LAST, RUN_BOUND)?;
    let mut lags = Vec::new();
    for number in LATE + 1..count {
        lags.extend(lags_of(&sent, &receivers.marks(number)));
    }
    ensure!(lags.len() > 100, "only {} small transactions were received", lags.len());
    let hang = is_late.then(|| go_on(stage, relay, &mut receivers)).transpose()?;
    let reconnections = receivers.reconnections();
    let receipts = receivers.finish()?;
    let equal = receipts.iter().all(|receipt| *receipt == receipts[0]);
    if !equal {
        eprintln!("NOT EQUAL: {receipts:?}");
    }
    let mut run = Run { seconds: quantile(&lags, 0.99), equal, ..Run::default() };
    run.cpu.pgsluice = relay.cpu_seconds() - cpu;
    run.resident_bytes_max = relay.resident_bytes_max();
    Ok(Measured { run, reconnections, hang })
}

/// What the server holds while one is late, how soon that one is level, and how soon its backlog
/// is decoded.
fn go_on(stage: &Stage, relay: &Relay, receivers: &mut Receivers) -> Result<Hang> {
    let held_bytes = held_bytes(stage)?;
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical'";
    let logical_slots = first(stage.source().sql(DB, slots)?).parse()?;
    let begun = Instant::now();
    receivers.go_on(LATE);
    let level = receivers.wait(LATE..LATE + 1, LAST, RUN_BOUND)?;
    let other = Reading { binary: true, ..stage.reading() };
    let mut alone = Receivers::start(&relay.url(DB), &[OTHER_FORM.to_owned()], other)?;
    let decoded = alone.wait_for_all(LAST, RUN_BOUND)?;
    let decode_seconds = decoded.duration_since(alone.started).as_secs_f64();
    alone.finish()?;
    let level_seconds = level.duration_since(begun).as_secs_f64();
    Ok(Hang { held_bytes, logical_slots, level_seconds, decode_seconds })
}

/// WAL that the relay's slot makes the server keep. The last of it may still be on its way, so the
/// least of a few looks counts.
fn held_bytes(stage: &Stage) -> Result<f64> {
    const LOOKS: u32 = 20;
    let mut least = f64::MAX;
    for _ in 0..LOOKS {
        let slot = format!(
            "SELECT coalesce(restart_lsn - '0/0'::pg_lsn, 0) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        );
        let restart: f64 = first(stage.source().sql(DB, &slot)?).parse()?;
        least = least.min(insert_position(&stage.rig)? - restart);
        thread::sleep(super::PACE);
    }
    Ok(least.max(0.0))
}

/// Writes beats while `load` runs. Returns when the COMMIT of each was answered.
fn beats(source: &Cluster, load: impl FnOnce() -> Result<()>) -> Result<Vec<(Mark, Instant)>> {
    let over = AtomicBool::new(false);
    let url = source.url(DB);
    thread::scope(|scope| {
        let sending = scope.spawn(|| send(&url, &over));
        let loaded = load();
        over.store(true, Ordering::Relaxed);
        let sent = sending.join().map_err(|_| anyhow!("the session that beats panicked"))?;
        loaded?;
        sent
    })
}

fn send(url: &str, over: &AtomicBool) -> Result<Vec<(Mark, Instant)>> {
    let probe = Probe::connect(url)?;
    // Only what is flushed is sent: without this a figure would be that of the publisher's WAL
    // writer.
    probe.row("SET synchronous_commit = on")?;
    let mut sent = Vec::new();
    for beat in FIRST + 1..LAST {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        probe.row(&format!("INSERT INTO mark VALUES ({beat})"))?;
        sent.push((beat, Instant::now()));
        thread::sleep(PACE.saturating_sub(begun.elapsed()));
    }
    Ok(sent)
}

/// Seconds from each beat's COMMIT until it was received.
fn lags_of(sent: &[(Mark, Instant)], received: &[(Mark, Instant)]) -> Vec<f64> {
    let mut received = received.iter().peekable();
    let mut lags = Vec::new();
    for (beat, at) in sent {
        while received.next_if(|(mark, _)| mark < beat).is_some() {}
        let Some((_, seen)) = received.peek() else { break };
        lags.push(seen.saturating_duration_since(*at).as_secs_f64());
    }
    lags
}

fn hang_goals(hangs: &[Hang]) -> Vec<Goal> {
    if hangs.is_empty() {
        return Vec::new();
    }
    let held = hangs.iter().map(|hang| hang.held_bytes).fold(0.0, f64::max);
    let slots = hangs.iter().map(|hang| hang.logical_slots).max().unwrap_or(0);
    let level = median(hangs.iter().map(|hang| hang.level_seconds));
    let decode = median(hangs.iter().map(|hang| hang.decode_seconds));
    let ratio = level / decode.max(1e-3);
    vec![
        Goal {
            what: "WAL that the server held for it, and logical slots there".to_owned(),
            goal: format!("at most {:.0} MB, and none", GOAL_HELD / 1e6),
            measured: format!("{:.1} MB, {slots}", held / 1e6),
            met: held <= GOAL_HELD && slots == 0,
        },
        Goal {
            what: "time until the late one is level, beside one decoding of its backlog".to_owned(),
            goal: format!("at most {GOAL_LEVEL:.1}"),
            measured: format!("{ratio:.2} ({level:.2} s, {decode:.2} s)"),
            met: ratio <= GOAL_LEVEL,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_lasts_from_the_commit_until_the_beat_is_there() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let sent = [(2, at(0)), (3, at(5)), (4, at(10)), (5, at(15))];
        let received = [(1, at(0)), (2, at(1)), (3, at(4)), (4, at(13))];
        let lags: Vec<u64> = lags_of(&sent, &received).iter().map(|lag| (lag * 1e3).round() as u64).collect();
        assert_eq!(lags, [1, 0, 3]);
    }

    #[test]
    fn one_late_run_that_held_wal_misses_the_goal() {
        let hang = |held_bytes, logical_slots| Hang {
            held_bytes,
            logical_slots,
            level_seconds: 1.9,
            decode_seconds: 1.0,
        };
        let met = |hangs: &[Hang]| hang_goals(hangs).iter().map(|goal| goal.met).collect::<Vec<_>>();
        assert_eq!(met(&[hang(1e6, 0), hang(2e6, 0)]), [true, true]);
        assert_eq!(met(&[hang(1e6, 0), hang(2e7, 0)]), [false, true]);
        assert_eq!(met(&[hang(1e6, 1)]), [false, true]);
        assert_eq!(met(&[]), [true; 0]);
    }
}
