//! Each promise by name.

use std::time::Duration;

use base::{Lsn, Oid, PgTimestamp};
use deletions::{
    Answer, Bounds, Candidate, Discarded, Equality, Identity, Kind, Landmark, Memory, Opened, RowKey, Server,
    Tombstone, Value,
};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::disk::SimDisks;
use crate::{TABLE, miss, open, record, row, server, tombstone};

const SEEN: Answer = Answer::NotSeen { may_be_forgotten: false };

/// A memory that has begun at LSN 100, when the clock said 1000.
fn begun(disks: &SimDisks, bounds: Bounds) -> Memory {
    let (mut memory, _) = open(disks, bounds);
    memory.begin(Lsn::new(100), PgTimestamp(1000));
    memory
}

/// The same, once the horizon has passed the beginning.
fn settled(disks: &SimDisks, bounds: Bounds) -> Memory {
    let mut memory = begun(disks, bounds);
    let candidate = memory.candidate().unwrap();
    memory.advance(candidate);
    memory
}

fn commit(memory: &mut Memory, lsn: u64, now: i64) {
    memory.passed(Lsn::new(lsn), Lsn::new(lsn - 10));
    memory.commit(PgTimestamp(now)).unwrap();
}

fn ask(memory: &mut Memory, number: u64, time: i64) -> Answer {
    memory.look_up(&row(number), miss(time, 0)).unwrap()
}

#[test]
fn d1_nothing_is_answered_before_capture_has_passed_the_fence() {
    let mut memory = settled(&SimDisks::default(), Bounds::default());
    record(&mut memory, &row(1), tombstone(200, 2000));
    assert_eq!(memory.look_up(&row(1), miss(1500, 250)).unwrap(), Answer::NotYet);
    assert_eq!(memory.look_up(&row(2), miss(1500, 250)).unwrap(), Answer::NotYet);
    memory.passed(Lsn::new(250), Lsn::new(240));
    assert_eq!(memory.look_up(&row(1), miss(1500, 250)).unwrap(), Answer::Deleted(tombstone(200, 2000)));
    assert_eq!(memory.look_up(&row(2), miss(1500, 250)).unwrap(), SEEN);
}

#[test]
fn d1_deletions_of_our_own_origins_are_not_kept() {
    let mut memory = settled(&SimDisks::default(), Bounds::default());
    memory.set_own_origins(vec![3, 4]);
    record(&mut memory, &row(1), Tombstone { origin: Some(3), ..tombstone(200, 2000) });
    let other = Tombstone { origin: Some(5), ..tombstone(201, 2001) };
    record(&mut memory, &row(2), other);
    commit(&mut memory, 210, 0);
    assert_eq!(ask(&mut memory, 1, 1500), SEEN);
    assert_eq!(ask(&mut memory, 2, 1500), Answer::Deleted(other));
    assert_eq!((memory.figures().count, memory.figures().own), (1, 1));
}

#[test]
fn the_last_deletion_of_a_row_counts() {
    let mut memory = settled(&SimDisks::default(), Bounds::default());
    record(&mut memory, &row(1), tombstone(200, 2000));
    record(&mut memory, &row(1), tombstone(300, 1900));
    commit(&mut memory, 310, 0);
    assert_eq!(ask(&mut memory, 1, 0), Answer::Deleted(tombstone(300, 1900)));
}

#[test]
fn truncate_leaves_one_tombstone_for_a_table() {
    let mut memory = settled(&SimDisks::default(), Bounds::default());
    record(&mut memory, &row(1), tombstone(200, 2000));
    let emptied = Tombstone { kind: Kind::Truncate, ..tombstone(300, 3000) };
    record(&mut memory, &RowKey::of_emptied(TABLE, TABLE), emptied);
    record(&mut memory, &row(3), tombstone(400, 4000));
    let partition = RowKey::of_emptied(Oid(9), Oid(10));
    record(&mut memory, &partition, Tombstone { lsn: Lsn::new(410), ..emptied });
    commit(&mut memory, 410, 0);
    assert_eq!(ask(&mut memory, 1, 0), Answer::Deleted(emptied));
    assert_eq!(ask(&mut memory, 2, 0), Answer::Deleted(emptied), "a row that nobody deleted by itself");
    assert_eq!(ask(&mut memory, 3, 0), Answer::Deleted(tombstone(400, 4000)));
    assert_eq!(memory.tombstone(&partition).unwrap().unwrap().lsn, Lsn::new(410));
    let mut elsewhere = RowKey::default();
    Identity::new(vec![Equality::Bool], false).write(Oid(9), [Value::Text(b"t")], &mut elsewhere).unwrap();
    assert_eq!(memory.look_up(&elsewhere, miss(2000, 0)).unwrap(), SEEN, "only a partition was emptied");
}

#[test]
fn a_deletion_of_an_unknown_row_covers_no_row_of_its_table_until_the_horizon_has_passed_it() {
    let mut memory = settled(&SimDisks::default(), Bounds::default());
    let unnamed = Tombstone { kind: Kind::Unnamed, ..tombstone(300, 3000) };
    record(&mut memory, &row(1), tombstone(200, 2000));
    record(&mut memory, &RowKey::of_unnamed(TABLE), unnamed);
    record(&mut memory, &row(2), tombstone(300, 3000));
    record(&mut memory, &row(3), tombstone(400, 4000));
    commit(&mut memory, 410, 0);
    assert_eq!(ask(&mut memory, 1, 1500), Answer::NotCovered, "it may have come back");
    assert_eq!(ask(&mut memory, 2, 1500), Answer::Deleted(tombstone(300, 3000)), "by the same transaction");
    assert_eq!(ask(&mut memory, 3, 1500), Answer::Deleted(tombstone(400, 4000)));
    assert_eq!(ask(&mut memory, 4, 9000), Answer::NotCovered);
    assert_eq!(memory.figures().retention_exceeded, 2);
    let mut elsewhere = RowKey::default();
    Identity::new(vec![Equality::Bool], false).write(Oid(9), [Value::Text(b"t")], &mut elsewhere).unwrap();
    assert_eq!(memory.look_up(&elsewhere, miss(9000, 0)).unwrap(), SEEN, "another table");
    let candidate = memory.candidate().unwrap();
    memory.advance(candidate);
    assert_eq!(ask(&mut memory, 4, 9000), SEEN);
}

#[test]
fn rows_of_equal_hash_are_told_apart() {
    let mut memory = settled(&SimDisks::default(), Bounds::default());
    let identity = Identity::new(vec![Equality::Text], true);
    let key = |text: &str| {
        let mut key = RowKey::default();
        identity.write(TABLE, [Value::Text(text.as_bytes())], &mut key).unwrap();
        key
    };
    record(&mut memory, &key("a row"), tombstone(200, 2000));
    commit(&mut memory, 200, 0);
    assert_eq!(memory.look_up(&key("a row"), miss(0, 0)).unwrap(), Answer::Deleted(tombstone(200, 2000)));
    assert_eq!(memory.look_up(&key("another"), miss(1500, 0)).unwrap(), SEEN);
}

#[test]
fn what_was_deleted_before_capture_began_is_not_covered() {
    let mut memory = begun(&SimDisks::default(), Bounds::default());
    assert_eq!(ask(&mut memory, 1, 1000), Answer::NotCovered);
    assert_eq!(ask(&mut memory, 1, 1001), SEEN, "an update that is newer than the beginning");
    record(&mut memory, &row(1), tombstone(200, 900));
    memory.passed(Lsn::new(200), Lsn::new(190));
    assert_eq!(ask(&mut memory, 1, 800), Answer::Deleted(tombstone(200, 900)));
    assert_eq!(memory.figures().retention_exceeded, 1);
    // There is something to pass though nothing was deleted, with the time of the cut.
    let candidate = memory.candidate().unwrap();
    assert_eq!(candidate, Candidate { lsn: Lsn::new(200), time: PgTimestamp(1000) });
    memory.advance(candidate);
    assert_eq!(ask(&mut memory, 2, 1000), Answer::NotSeen { may_be_forgotten: true });
    assert_eq!((memory.figures().resumed, memory.figures().cut, memory.candidate()), (1, None, None));
}

#[test]
fn before_capture_begins_nothing_is_known() {
    let (mut memory, opened) = open(&SimDisks::default(), Bounds::default());
    assert_eq!(opened, Opened::New);
    assert_eq!(ask(&mut memory, 1, i64::MAX), Answer::NotCovered);
}

#[test]
fn d2_the_horizon_forgets_and_the_answer_says_so() {
    let mut memory = settled(&SimDisks::default(), Bounds::default());
    record(&mut memory, &row(1), tombstone(200, 2000));
    commit(&mut memory, 200, 0);
    let candidate = memory.candidate().unwrap();
    record(&mut memory, &row(2), tombstone(300, 3000));
    commit(&mut memory, 300, 0);
    memory.advance(candidate);
    assert_eq!(ask(&mut memory, 1, 2000), Answer::NotSeen { may_be_forgotten: true });
    assert_eq!(ask(&mut memory, 1, 2001), SEEN);
    assert_eq!(ask(&mut memory, 2, 2001), Answer::Deleted(tombstone(300, 3000)));
    assert_eq!((memory.figures().count, memory.horizon()), (1, Lsn::new(200)));
}

#[test]
fn d4_an_age_cuts_and_the_horizon_resumes() {
    let bounds = Bounds { duration_max: Some(Duration::from_micros(500)), ..Bounds::default() };
    let mut memory = settled(&SimDisks::default(), bounds);
    record(&mut memory, &row(1), tombstone(200, 2000));
    commit(&mut memory, 200, 10_000);
    record(&mut memory, &row(2), tombstone(300, 3000));
    commit(&mut memory, 300, 10_400);
    assert_eq!(ask(&mut memory, 1, 1500), Answer::Deleted(tombstone(200, 2000)));
    memory.commit(PgTimestamp(10_500)).unwrap();
    assert_eq!(ask(&mut memory, 1, 1500), Answer::NotCovered);
    assert_eq!(ask(&mut memory, 2, 1500), Answer::Deleted(tombstone(300, 3000)));
    assert_eq!(ask(&mut memory, 3, 2500), SEEN, "newer than all that was cut");
    let figures = memory.figures();
    assert_eq!((figures.cuts, figures.retention_exceeded, figures.count), (1, 1, 1));
    let candidate = memory.candidate().unwrap();
    memory.advance(candidate);
    assert_eq!(ask(&mut memory, 1, 1500), Answer::NotSeen { may_be_forgotten: true });
}

/// When the transaction at `lsn` committed: after capture began.
fn time(lsn: u64) -> i64 {
    10_000 + lsn.cast_signed()
}

/// Deletes rows, `per_commit` in a transaction, until `count` are recorded. Returns the last LSN.
fn fill(memory: &mut Memory, from: u64, count: u64, per_commit: u64) -> u64 {
    let mut lsn = from;
    for number in 0..count {
        if number % per_commit == 0 {
            commit(memory, lsn, 0);
            lsn += 100;
        }
        record(memory, &row(from * 1_000_000 + number), tombstone(lsn, time(lsn)));
    }
    commit(memory, lsn, 0);
    lsn
}

#[test]
fn d4_a_size_cuts_the_oldest_and_never_waits() {
    let bounds = Bounds { size_bytes_max: Some(16 << 20), ..Bounds::default() };
    let mut memory = settled(&SimDisks::default(), bounds);
    let last = fill(&mut memory, 200, 400_000, 1000);
    let figures = memory.figures();
    assert!(figures.file_bytes <= (16 << 20) + (4 << 20), "{figures:?}");
    assert!(figures.cuts > 0 && figures.count > 50_000, "{figures:?}");
    assert_eq!(ask(&mut memory, 200 * 1_000_000, 0), Answer::NotCovered);
    let newest = 200 * 1_000_000 + 399_999;
    assert_eq!(ask(&mut memory, newest, 0), Answer::Deleted(tombstone(last, time(last))));
}

#[test]
fn d4_a_transaction_that_exceeds_the_bound_is_cut_itself() {
    let bounds = Bounds { size_bytes_max: Some(16 << 20), ..Bounds::default() };
    let disks = SimDisks::default();
    let mut memory = settled(&disks, bounds);
    let last = fill(&mut memory, 200, 700_000, 1_000_000);
    assert_eq!(ask(&mut memory, 200 * 1_000_000, 0), Answer::NotCovered);
    assert_eq!(ask(&mut memory, 1, time(last) + 1), SEEN);
    assert_eq!(memory.figures().count, 0);
    // What follows is remembered, and all of it after a restart.
    let next = fill(&mut memory, last, 1000, 10);
    drop(memory);
    let (mut memory, opened) = open(&disks, bounds);
    assert!(matches!(opened, Opened::Resumed { captured, .. } if captured == Lsn::new(next)), "{opened:?}");
    memory.begin(Lsn::new(next), PgTimestamp(0));
    assert_eq!(memory.figures().count, 1000);
    assert_eq!(ask(&mut memory, 1, time(last)), Answer::NotCovered);
}

#[test]
fn d4_a_store_that_was_full_knows_after_a_crash_that_it_was_cut() {
    let bounds = Bounds { size_bytes_max: Some(16 << 20), ..Bounds::default() };
    let disks = SimDisks::default();
    let mut memory = settled(&disks, bounds);
    let last = fill(&mut memory, 200, 700_000, 1_000_000);
    drop(memory);
    let (mut memory, _) = open(&disks, bounds);
    memory.begin(Lsn::new(last), PgTimestamp(0));
    assert_eq!(ask(&mut memory, 1, time(last)), Answer::NotCovered);
}

#[test]
fn a_restart_goes_on_without_a_gap() {
    let disks = SimDisks::default();
    let mut memory = settled(&disks, Bounds::default());
    record(&mut memory, &row(1), tombstone(200, 2000));
    commit(&mut memory, 250, 0);
    record(&mut memory, &row(2), tombstone(300, 3000));
    memory.passed(Lsn::new(300), Lsn::new(290));
    drop(memory);
    let (mut memory, opened) = open(&disks, Bounds::default());
    assert_eq!(opened, Opened::Resumed { captured: Lsn::new(250), restart: Lsn::new(240) });
    memory.begin(Lsn::new(250), PgTimestamp(9000));
    assert_eq!(memory.look_up(&row(2), miss(1500, 300)).unwrap(), Answer::NotYet);
    // What was remembered comes again, and what was not synced comes for the first time.
    record(&mut memory, &row(1), tombstone(200, 2000));
    record(&mut memory, &row(2), tombstone(300, 3000));
    memory.passed(Lsn::new(300), Lsn::new(290));
    assert_eq!(memory.look_up(&row(1), miss(1500, 300)).unwrap(), Answer::Deleted(tombstone(200, 2000)));
    assert_eq!(memory.look_up(&row(2), miss(1500, 300)).unwrap(), Answer::Deleted(tombstone(300, 3000)));
    assert_eq!(memory.look_up(&row(3), miss(1500, 300)).unwrap(), SEEN);
    assert_eq!(memory.figures().count, 2);
}

#[test]
fn a_gap_in_wal_is_a_cut() {
    let disks = SimDisks::default();
    let mut memory = settled(&disks, Bounds::default());
    record(&mut memory, &row(1), tombstone(200, 2000));
    commit(&mut memory, 250, 0);
    drop(memory);
    let (mut memory, _) = open(&disks, Bounds::default());
    memory.begin(Lsn::new(400), PgTimestamp(4000));
    // The row may have come back and been deleted again meanwhile.
    assert_eq!(ask(&mut memory, 1, 1500), Answer::NotCovered);
    assert_eq!(ask(&mut memory, 1, 4001), SEEN);
    // A second restart still knows of it.
    commit(&mut memory, 410, 0);
    drop(memory);
    let (mut memory, _) = open(&disks, Bounds::default());
    memory.begin(Lsn::new(410), PgTimestamp(5000));
    assert_eq!(ask(&mut memory, 1, 4000), Answer::NotCovered);
    assert_eq!(ask(&mut memory, 1, 4001), SEEN);
}

#[test]
fn d2_a_gap_keeps_the_greatest_time_although_the_clock_was_set_back() {
    let mut memory = settled(&SimDisks::default(), Bounds::default());
    // A third server's clock was ahead, or the target's is set back afterwards.
    record(&mut memory, &row(1), tombstone(200, 9000));
    memory.passed(Lsn::new(200), Lsn::new(190));
    memory.begin(Lsn::new(400), PgTimestamp(4000));
    assert_eq!(ask(&mut memory, 1, 9000), Answer::NotCovered);
    assert_eq!(ask(&mut memory, 1, 9001), SEEN);
    assert_eq!(memory.candidate(), Some(Candidate { lsn: Lsn::new(400), time: PgTimestamp(9000) }));
}

#[test]
fn a_memory_of_another_server_or_history_is_emptied() {
    let changed = [
        (Server { system_id: 8, ..server() }, Discarded::OtherServer),
        (Server { database: Oid(6), ..server() }, Discarded::OtherServer),
        (Server { wal_end: Lsn::new(249), ..server() }, Discarded::OtherHistory),
        (Server { timeline: 2, timeline_start: Lsn::new(249), ..server() }, Discarded::OtherHistory),
        (Server { timeline: 0, ..server() }, Discarded::OtherHistory),
    ];
    for (other, why) in changed {
        let disks = SimDisks::default();
        let mut memory = settled(&disks, Bounds::default());
        record(&mut memory, &row(1), tombstone(200, 2000));
        commit(&mut memory, 250, 0);
        drop(memory);
        let (mut memory, opened) = Memory::open_on(disks.disks(), other, Bounds::default()).unwrap();
        assert_eq!(opened, Opened::Discarded(why));
        memory.begin(Lsn::new(50), PgTimestamp(500));
        record(&mut memory, &row(2), tombstone(60, 600));
        commit(&mut memory, 70, 0);
        assert_eq!(ask(&mut memory, 1, 500), Answer::NotCovered);
        assert_eq!(ask(&mut memory, 2, 500), Answer::Deleted(tombstone(60, 600)));
    }
}

/// Its server may have been restored to an earlier state.
#[test]
fn d1_a_memory_in_doubt_answers_nothing() {
    let disks = SimDisks::default();
    let mut memory = settled(&disks, Bounds::default());
    record(&mut memory, &row(1), tombstone(200, 2000));
    let landmark = Landmark { lsn: Lsn::new(240), crc: 7 };
    memory.mark(landmark);
    commit(&mut memory, 250, 0);
    assert_eq!(memory.committed(), Lsn::new(250));
    drop(memory);
    let (mut memory, _) = open(&disks, Bounds::default());
    assert_eq!(memory.landmark(), Some(landmark));
    memory.doubt();
    memory.begin(Lsn::new(250), PgTimestamp(2500));
    assert_eq!(ask(&mut memory, 1, 500), Answer::NotYet);
    memory.prove();
    assert_eq!(ask(&mut memory, 1, 500), Answer::Deleted(tombstone(200, 2000)));
}

#[test]
fn a_failover_behind_what_was_captured_goes_on() {
    let disks = SimDisks::default();
    let mut memory = settled(&disks, Bounds::default());
    record(&mut memory, &row(1), tombstone(200, 2000));
    commit(&mut memory, 250, 0);
    drop(memory);
    let promoted = Server { timeline: 2, timeline_start: Lsn::new(250), ..server() };
    let (_, opened) = Memory::open_on(disks.disks(), promoted, Bounds::default()).unwrap();
    assert!(matches!(opened, Opened::Resumed { .. }), "{opened:?}");
}

#[test]
fn a_damaged_memory_is_emptied_or_says_so() {
    let mut random = StdRng::seed_from_u64(1);
    let (mut emptied, mut failed) = (0, 0);
    for _ in 0..50 {
        let disks = SimDisks::default();
        let mut memory = settled(&disks, Bounds::default());
        let last = fill(&mut memory, 200, 2000, 100);
        memory.close(PgTimestamp(0)).unwrap();
        disks.data.damage(&mut random);
        let (mut memory, opened) = open(&disks, Bounds::default());
        if opened == Opened::Discarded(Discarded::Damaged) {
            emptied += 1;
            continue;
        }
        memory.begin(Lsn::new(last), PgTimestamp(0));
        for number in 0..2000 {
            match memory.look_up(&row(200 * 1_000_000 + number), miss(0, 0)) {
                Ok(answer) => assert!(matches!(answer, Answer::Deleted(_)), "{answer:?}"),
                Err(error) => {
                    assert!(error.is_damaged() && !error.is_disk(), "{error}");
                    failed += 1;
                    break;
                }
            }
        }
    }
    assert!(emptied > 0 && failed > 0, "{emptied} were emptied, {failed} failed");
}

#[test]
fn a_memory_lives_in_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deletions");
    for found in [false, true, false] {
        let (mut memory, opened) = Memory::open(&path, server(), Bounds::default()).unwrap();
        assert_eq!(matches!(opened, Opened::Resumed { .. }), found, "{opened:?}");
        memory.begin(Lsn::new(100), PgTimestamp(1000));
        record(&mut memory, &row(1), tombstone(200, 2000));
        commit(&mut memory, 200, 0);
        assert_eq!(ask(&mut memory, 1, 500), Answer::Deleted(tombstone(200, 2000)));
        let held = Memory::open(&path, server(), Bounds::default()).unwrap_err();
        assert!(held.is_disk(), "{held}");
        memory.close(PgTimestamp(0)).unwrap();
        if found {
            Memory::remove(&path).unwrap();
        }
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

/// Ten thousand deletions a second with a horizon that lags ten seconds, for three minutes.
#[test]
fn d2_the_size_stays_flat_while_the_horizon_follows() {
    let mut memory = settled(&SimDisks::default(), Bounds::default());
    let mut sizes = Vec::new();
    let mut behind = std::collections::VecDeque::new();
    for second in 1..=180_u64 {
        for tenth in 0..2 {
            let lsn = 1000 * second + 100 * tenth;
            for number in 0..500 {
                record(&mut memory, &row(second * 1000 + tenth * 500 + number), tombstone(lsn, time(lsn)));
            }
            commit(&mut memory, lsn, 0);
        }
        behind.push_back(memory.candidate().unwrap());
        if behind.len() > 10 {
            memory.advance(behind.pop_front().unwrap());
        }
        sizes.push(memory.figures().file_bytes);
    }
    let (minute, end) = (sizes[59], sizes[179]);
    assert!(end <= minute + minute / 10, "{minute} bytes after a minute, {end} after three");
    assert!(memory.figures().count <= 11_000, "{:?}", memory.figures());
}
