//! Lag figures: what adds up, and what a quiet hour must not do.

use std::time::{Duration, Instant};

use super::*;

const SECOND: i64 = 1_000_000;

fn status() -> Status {
    Status::new("s".parse().unwrap())
}

fn at(second: i64) -> PgTimestamp {
    PgTimestamp(1_000 * SECOND + second * SECOND)
}

#[test]
fn unknown_positions_are_not_a_lag() {
    let status = status();
    let lag = status.snapshot_at(at(0)).lag;
    assert_eq!(lag, LagFigures::default());
    status.note_source_end_at(Lsn::new(500), at(0));
    assert_eq!(status.snapshot_at(at(0)).lag.receive, Lag::default());
}

#[test]
fn stages_add_up_to_the_whole() {
    let status = status();
    status.note_source_end_at(Lsn::new(1_000), at(0));
    status.progress().advance_flushed(Lsn::new(100));
    status.progress().advance_applied(Lsn::new(200));
    status.note_handed(Lsn::new(400), at(-7));
    status.progress().advance_received(Lsn::new(700));
    status.note_applied_commit(at(-9));
    status.note_received_commit(at(-5));
    let lag = status.snapshot_at(at(0)).lag;
    let bytes = [lag.receive, lag.queue, lag.apply, lag.flush].map(|lag| lag.bytes);
    assert_eq!(bytes, [Some(300), Some(300), Some(200), Some(100)]);
    assert_eq!(lag.total, Lag { bytes: Some(800), seconds: Some(9.0) });
    assert_eq!([lag.receive, lag.queue, lag.apply].map(|lag| lag.seconds), [Some(5.0), Some(7.0), Some(9.0)]);
}

#[test]
fn what_was_received_of_a_transaction_in_parts_counts_as_handed() {
    let status = status();
    status.note_source_end_at(Lsn::new(1_000), at(0));
    status.progress().advance_flushed(Lsn::new(100));
    status.note_applied_commit(at(-9));
    status.progress().advance_received(Lsn::new(400));
    status.note_part_handed(Lsn::new(700), at(-3));
    let lag = status.snapshot_at(at(0)).lag;
    let bytes = [lag.receive, lag.queue, lag.apply].map(|lag| lag.bytes);
    assert_eq!(bytes, [Some(600), Some(0), Some(300)]);
    assert_eq!([lag.queue.seconds, lag.apply.seconds], [Some(0.0), Some(9.0)]);
    // Transactions behind it wait until it is done.
    status.progress().advance_received(Lsn::new(900));
    let lag = status.snapshot_at(at(0)).lag;
    assert_eq!([lag.queue, lag.apply].map(|lag| lag.bytes), [Some(200), Some(600)]);
    assert_eq!(lag.queue.seconds, Some(3.0));
}

#[test]
fn a_stream_that_stands_says_what_it_waits_for() {
    let status = status();
    let stage = |status: &Status, second| {
        status.snapshot_at(at(second)).waits_for.map(|waits| (waits.stage, waits.seconds))
    };
    let level = Lsn::new(1_000);
    status.progress().advance_received(level);
    status.progress().advance_flushed(level);
    status.note_source_end_at(level, at(0));
    assert_eq!(stage(&status, 0), None, "nothing streams");
    status.set_phase(Phase::Streaming);
    assert_eq!(stage(&status, 0), Some(("source".to_owned(), 0.0)));
    // The source has more and does not send it.
    status.note_source_end_at(Lsn::new(1_500), at(0));
    assert_eq!(stage(&status, 0), None, "it may come at any moment");
    assert_eq!(stage(&status, 10), Some(("source".to_owned(), 10.0)));
}

#[test]
fn a_pipeline_that_pauses_says_why_and_until_when() {
    let status = status();
    let what = |status: &Status| status.snapshot().waits_for.unwrap().what;
    status.record_error("the source was lost: connection refused");
    status.set_waiting(Pause::Retry(Instant::now() + Duration::from_secs(60)));
    let told = what(&status);
    assert!(told.starts_with("the next attempt, in 5") || told.contains("in 60.0 s"), "{told}");
    assert!(told.ends_with("because the last one failed: the source was lost: connection refused"), "{told}");
    status.set_waiting(Pause::OtherCopy { name: "a_to_b".parse().unwrap(), since: Instant::now() });
    assert_eq!(what(&status), "the end of the first copy of subscription \"a_to_b\"");
    status.set_phase(Phase::Starting);
    assert_eq!(status.snapshot().waits_for, None);
}

#[test]
fn what_was_received_since_the_last_answer_counts() {
    let status = status();
    status.note_source_end_at(Lsn::new(100), at(0));
    status.progress().advance_flushed(Lsn::new(200));
    status.progress().advance_received(Lsn::new(900));
    status.note_applied_commit(at(-3));
    let lag = status.snapshot_at(at(0)).lag;
    assert_eq!(lag.receive, Lag { bytes: Some(0), seconds: Some(0.0) });
    assert_eq!(lag.total, Lag { bytes: Some(700), seconds: Some(3.0) });
}

#[test]
fn a_quiet_hour_is_not_a_lag() {
    let status = status();
    let level = Lsn::new(1_000);
    status.progress().advance_received(level);
    status.progress().advance_flushed(level);
    status.note_applied_commit(at(0));
    status.note_received_commit(at(0));
    status.note_source_end_at(level, at(0));
    // The source is asked now and then; nothing happens for an hour.
    status.note_source_end_at(level, at(3_599));
    assert_eq!(status.snapshot_at(at(3_600)).lag.total, Lag { bytes: Some(0), seconds: Some(0.0) });
    // Then something happens.
    status.note_source_end_at(Lsn::new(1_500), at(3_600));
    let lag = status.snapshot_at(at(3_601)).lag;
    assert_eq!(lag.receive, Lag { bytes: Some(500), seconds: Some(2.0) });
    assert_eq!(lag.total, Lag { bytes: Some(500), seconds: Some(2.0) });
}

#[test]
fn silence_counts_while_the_source_is_away() {
    let status = status();
    let level = Lsn::new(1_000);
    status.progress().advance_received(level);
    status.progress().advance_flushed(level);
    status.note_source_end_at(level, at(0));
    status.set_phase(Phase::Waiting);
    let lag = status.snapshot_at(at(60)).lag;
    assert_eq!(lag.receive, Lag { bytes: Some(0), seconds: Some(60.0) });
}

#[test]
fn flush_lag_has_an_age() {
    let status = status();
    status.progress().advance_received(Lsn::new(300));
    status.progress().advance_applied(Lsn::new(100));
    status.note_applied_commit(at(1));
    status.note_source_end_at(Lsn::new(900), at(2));
    status.progress().advance_flushed(Lsn::new(100));
    status.progress().advance_applied(Lsn::new(200));
    status.note_applied_commit(at(4));
    status.note_source_end_at(Lsn::new(900), at(5));
    assert_eq!(status.snapshot_at(at(6)).lag.flush, Lag { bytes: Some(100), seconds: Some(5.0) });
}

#[test]
fn stopping_is_final_and_errors_are_kept() {
    let status = status();
    status.set_phase(Phase::Waiting);
    status.set_phase(Phase::Starting);
    status.record_error("could not connect");
    status.set_phase(Phase::Stopping);
    status.set_phase(Phase::Streaming);
    assert_eq!(status.phase(), Phase::Stopping);
    status.set_phase(Phase::Stopped);
    assert_eq!(status.phase(), Phase::Stopped);
    let snapshot = status.snapshot();
    assert_eq!(snapshot.last_error.unwrap().message, "could not connect");
    assert_eq!(snapshot.totals.errors, 1);
}

#[test]
fn the_json_form_survives_a_round_trip() {
    let snapshot = status().snapshot();
    let text = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(serde_json::from_str::<StatusSnapshot>(&text).unwrap(), snapshot);
    assert!(text.contains(r#""conflicts":{"delete_missing":0"#), "{text}");
}
