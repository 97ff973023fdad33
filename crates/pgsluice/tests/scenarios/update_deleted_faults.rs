//! The kind: what becomes of deletion memory when a bound is reached, a disk is full, a slot is
//! lost, or a process or a server ends. Changes flow on, a miss that cannot be answered counts as
//! not covered, and the memory covers everything again by itself.

use std::time::{Duration, Instant};

use testkit::{Builder, Cluster, SmallDisk, StopMode, wait_for};

use crate::errors::promote;
use crate::support::{BOUND, Scenario, Session, position, scenario_alone, scenario_with};
use crate::update_deleted::End::{Source, Target};
use crate::update_deleted::{LOGICAL, RETAIN, TABLE, apart, deletions, follow, wait_for_capture};

/// Runs the scenario on servers of its own, with deletions remembered.
pub(crate) fn alone(
    more: &[&str],
    target: impl Fn(Builder) -> Builder + Sync,
    run: impl Fn(&mut Scenario) + Sync,
) {
    let strategy = [RETAIN, LOGICAL, more].concat();
    scenario_alone(&[&strategy], |source| source, target, run);
}

pub(crate) fn plain(builder: Builder) -> Builder {
    builder
}

/// Holds row 9 on the target, so that an update of it waits, and with it everything behind it. The
/// horizon stands as long.
fn hold(s: &Scenario) -> Session {
    let mut session = Session::to(&s.target_url(0));
    // Its commit forces nothing to disk.
    session.run("SET synchronous_commit = off; BEGIN; SELECT FROM t WHERE id = 9 FOR UPDATE");
    s.source("UPDATE t SET v = 'held' WHERE id = 9");
    // A change that came sooner could be written in the same transaction, and its row locked.
    let waits = || Ok(s.target_one("SELECT count(*) FROM pg_locks WHERE NOT granted") != "0");
    wait_for("the update to wait", BOUND, waits).unwrap();
    session
}

pub(crate) fn wait_until(s: &Scenario, what: &str, is_so: impl Fn(&serde_json::Value) -> bool) {
    wait_for(what, BOUND, || Ok(is_so(&s.status(0)["deletions"]))).unwrap();
}

/// What was counted: deleted, missing and not covered.
pub(crate) fn counted(s: &Scenario) -> (u64, u64, u64) {
    let exceeded = deletions(s, 0, "retention_exceeded").as_u64().unwrap();
    (s.conflicts("update_deleted"), s.conflicts("update_missing"), exceeded)
}

pub(crate) fn because(s: &Scenario) -> String {
    deletions(s, 0, "not_covered_because").to_string()
}

/// A row that is deleted now, and was updated before, is known to have been deleted.
#[track_caller]
pub(crate) fn assert_known_again(s: &mut Scenario, id: u32) {
    wait_for_capture(s);
    let (deleted, missing, exceeded) = counted(s);
    let mut held = hold(s);
    s.source(&format!("UPDATE t SET v = 'w' WHERE id = {id}"));
    s.target(&format!("DELETE FROM t WHERE id = {id}"));
    wait_until(s, "the deletion to be captured", |own| own["count"] != 0);
    held.run("COMMIT");
    s.catch_up();
    assert_eq!(counted(s), (deleted + 1, missing, exceeded));
}

#[test]
fn d4_what_max_retention_duration_cuts_is_not_covered_and_ends_by_itself() {
    alone(&["--max-retention-duration", "5s"], plain, |s| {
        follow(s);
        let mut held = hold(s);
        s.source("UPDATE t SET v = 'w' WHERE id = 1");
        s.target("DELETE FROM t WHERE id = 1");
        wait_until(s, "the deletion to be cut", |own| !own["cut_lsn"].is_null() && own["count"] == 0);
        assert!(because(s).contains("max_retention_duration"), "{}", because(s));
        held.run("COMMIT");
        s.catch_up();
        assert_eq!(counted(s), (0, 1, 1));
        // On a busy machine, a deletion may be cut again before somebody asks for it.
        wait_for_capture(s);
        assert!(deletions(s, 0, "not_covered_because").is_null());
    });
}

#[test]
fn d4_what_retention_size_max_cuts_is_not_covered_and_ends_by_itself() {
    alone(&["--retention-size-max", "16MB"], plain, |s| {
        s.target("CREATE TABLE own AS SELECT id FROM generate_series(1, 400000) id; ALTER TABLE own ADD PRIMARY KEY (id)");
        follow(s);
        let mut held = hold(s);
        s.source("UPDATE t SET v = 'w' WHERE id = 1");
        s.target("DELETE FROM t WHERE id = 1");
        for part in 0..4 {
            s.target(&format!("DELETE FROM own WHERE id % 4 = {part}"));
        }
        wait_until(s, "deletions to be cut", |own| !own["cut_lsn"].is_null());
        held.run("COMMIT");
        s.catch_up();
        assert_eq!(counted(s), (0, 1, 1));
        assert_known_again(s, 2);
        let bytes = deletions(s, 0, "bytes").as_u64().unwrap();
        assert!(bytes < 64 << 20, "{bytes} bytes of files");
    });
}

/// The memory's disk is that of the other files, too.
#[test]
fn d4_a_full_disk_under_the_memory_stops_no_change() {
    alone(&[], plain, |s| {
        let Some(disk) = SmallDisk::mount_over(s.pair().state_dir(), 256 << 10) else { return };
        s.target("CREATE TABLE own AS SELECT id FROM generate_series(1, 300000) id; ALTER TABLE own ADD PRIMARY KEY (id)");
        follow(s);
        disk.resize(SmallDisk::used(s.pair().state_dir()) + 512);
        s.target("DELETE FROM own");
        wait_until(s, "the disk to be full", |own| {
            own["state"] == "failed" && own["trouble"].to_string().contains("No space left on device")
        });
        s.source("UPDATE t SET v = 'w' WHERE id = 1; UPDATE t SET v = 'w' WHERE id = 3");
        s.target("DELETE FROM t WHERE id = 2");
        s.source("UPDATE t SET v = 'w' WHERE id = 2");
        s.catch_up();
        assert_eq!(s.target_one("SELECT string_agg(id::text, ',') FROM t WHERE v = 'w'"), "1,3");
        assert_eq!(counted(s), (0, 1, 1));
        disk.resize(256 << 10);
        assert_known_again(s, 4);
        s.stop();
    });
}

#[test]
fn d4_a_dropped_slot_is_a_gap_that_is_named() {
    alone(&[], plain, |s| {
        follow(s);
        s.stop();
        let drop = format!("SELECT pg_drop_replication_slot('pgsluice_{}_dead')", s.name(0));
        let is_dropped = || Ok(s.pair().target.sql("postgres", &drop).is_ok());
        wait_for("the slot to be dropped", BOUND, is_dropped).unwrap();
        after_a_gap(s);
    });
}

#[test]
fn d4_an_invalidated_slot_is_a_gap_that_is_named() {
    let small = |target: Builder| target.setting("max_slot_wal_keep_size", "16MB");
    alone(&[], small, |s| {
        follow(s);
        s.stop();
        for _ in 0..5 {
            s.target("SELECT pg_logical_emit_message(false, '', 'x'); SELECT pg_switch_wal()");
        }
        let lost = format!(
            "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'pgsluice_{}_dead'",
            s.name(0)
        );
        let is_lost = || {
            s.pair().target.sql("postgres", "CHECKPOINT")?;
            Ok(s.pair().target.one("postgres", &lost) == "lost")
        };
        wait_for("the slot to be invalidated", BOUND, is_lost).unwrap();
        after_a_gap(s);
    });
}

/// A row is updated and deleted while nothing is captured, and WAL of that is lost.
fn after_a_gap(s: &mut Scenario) {
    s.source("UPDATE t SET v = 'w' WHERE id = 1");
    s.target("DELETE FROM t WHERE id = 1");
    s.run();
    s.catch_up();
    assert_eq!(counted(s), (0, 1, 1));
    s.source("INSERT INTO t VALUES (20, 'v')");
    s.catch_up();
    assert_known_again(s, 2);
}

/// `standby` takes the place of the target.
fn fail_over(s: &mut Scenario, mut standby: Cluster) {
    s.kill();
    s.pair_mut().target.kill9();
    standby.start_again().unwrap();
    promote(&standby);
    s.pair_mut().target = standby;
}

/// Waits until what the target has lost so far outlives a kill of pgsluice: it is made durable
/// before WAL is captured that comes more than a tenth of a second later.
pub(crate) fn wait_until_durable(s: &Scenario) {
    let began = Instant::now();
    for late in [Duration::ZERO, Duration::from_millis(200), Duration::from_millis(400)] {
        let mut end = 0;
        wait_for("time to pass on the target", BOUND, || {
            end = position(&s.target_one("SELECT pg_logical_emit_message(true, '', 'x')"));
            Ok(began.elapsed() >= late)
        })
        .unwrap();
        wait_until(s, "capture to be ahead", |own| {
            own["captured_lsn"].as_str().is_some_and(|lsn| position(lsn) >= end)
        });
    }
}

/// Waits until the target's standby has received all of its WAL.
pub(crate) fn has_it_all(s: &Scenario, standby: &Cluster) {
    let written = position(&s.target_one("SELECT pg_current_wal_flush_lsn()"));
    let received = || {
        let lsn = standby.one("postgres", "SELECT COALESCE(pg_last_wal_receive_lsn(), '0/0')");
        Ok(position(&lsn) >= written)
    };
    wait_for("the standby to have it all", BOUND, received).unwrap();
}

#[test]
fn d4_a_target_that_fails_over_is_captured_anew() {
    alone(&[], plain, |s| {
        let mut standby = s.pair_mut().target.standby("standby").unwrap();
        follow(s);
        s.target("DELETE FROM t WHERE id = 1");
        has_it_all(s, &standby);
        standby.stop(StopMode::Immediate).unwrap();
        // The new primary never had this. Capture is ahead of where the histories part.
        s.target("DELETE FROM t WHERE id = 2");
        wait_until_durable(s);
        fail_over(s, standby);
        s.source("UPDATE t SET v = 'w' WHERE id IN (1, 2)");
        s.run();
        s.wait_for_log("the server failed over or was restored since");
        s.catch_up();
        assert_eq!(s.target_one("SELECT string_agg(id::text, ',') FROM t WHERE v = 'w'"), "2");
        assert_eq!(counted(s), (0, 1, 1));
        assert_known_again(s, 3);
    });
}

#[test]
fn the_setting_is_turned_off_and_on_again() {
    const SETTING: &str = "PGSLUICE_RETAIN_DEAD_TUPLES";
    scenario_with(&[LOGICAL], |s| {
        let slots = format!(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgsluice_{}_dead'",
            s.name(0)
        );
        let dir = s.pair().state_dir().join(format!("{}.deletions", s.name(0)));
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
        s.run_with(|command| _ = command.env(SETTING, "on"));
        follow_on(s);
        assert_eq!((s.target_one(&slots).as_str(), dir.exists()), ("1", true));
        s.stop();
        s.source("UPDATE t SET v = 'w' WHERE id = 1");
        s.target("DELETE FROM t WHERE id = 1");
        s.run_with(|command| _ = command.env(SETTING, "off"));
        s.catch_up();
        let is_gone = || Ok(s.target_one(&slots) == "0" && !dir.exists());
        wait_for("what was remembered to be removed", BOUND, is_gone).unwrap();
        assert_eq!((s.conflicts("update_deleted"), s.conflicts("update_missing")), (0, 1));
        assert!(s.status(0)["deletions"].is_null());
        s.stop();
        s.source("UPDATE t SET v = 'w' WHERE id = 2");
        s.target("DELETE FROM t WHERE id = 2");
        s.run_with(|command| _ = command.env(SETTING, "on"));
        s.catch_up();
        assert_eq!(counted(s), (0, 1, 1));
        assert_known_again(s, 3);
    });
}

fn follow_on(s: &mut Scenario) {
    s.wait_for_copy();
    s.catch_up();
    wait_for_capture(s);
}

#[test]
fn d1_kills_of_pgsluice_and_of_the_target_lose_no_deletion() {
    alone(
        &[],
        |target| target.durable(),
        |s| {
            follow(s);
            for round in 1..=6 {
                match round % 3 {
                    0 => s.kill(),
                    1 => s.pair_mut().target.kill9(),
                    _ => {
                        s.pair_mut().target.kill9();
                        s.kill();
                    }
                }
                s.pair_mut().target.start_again().unwrap();
                apart(
                    s,
                    &[
                        (Source, &format!("UPDATE t SET v = 'w' WHERE id = {round}")),
                        (Target, &format!("DELETE FROM t WHERE id = {round}")),
                    ],
                );
            }
            let history =
                "SELECT string_agg(DISTINCT type, ',') || ' ' || count(*) FROM pgsluice.conflict_history";
            assert_eq!(s.target_one(history), "update_deleted 6");
        },
    );
}

/// A deletion that is visible and not flushed is not in the WAL that capture gets. The fence of the
/// look-up flushes it.
#[test]
fn d1_a_deletion_that_is_not_flushed_is_known() {
    let lazy =
        |target: Builder| target.setting("synchronous_commit", "off").setting("wal_writer_delay", "10s");
    alone(&[], lazy, |s| {
        follow(s);
        let mut held = hold(s);
        s.source("UPDATE t SET v = 'w' WHERE id = 1");
        s.target("DELETE FROM t WHERE id = 1");
        held.run("COMMIT");
        s.catch_up();
        assert_eq!(counted(s), (1, 0, 0));
    });
}

/// Many misses, one by one and by rules that write, end as they would with a fence for each.
#[test]
fn d1_misses_that_share_a_fence_are_answered_alike() {
    let rules = ["update_deleted=last_update_wins", "update_missing=skip"];
    let rules: Vec<&str> = rules.iter().flat_map(|rule| ["--conflict", rule]).collect();
    let times = ["--keep-commit-timestamps", "on"];
    let strategies = [vec![], times.to_vec()].map(|more| [RETAIN, LOGICAL, &rules, &more].concat());
    let strategies = strategies.each_ref().map(Vec::as_slice);
    let track = |target: Builder| target.setting("track_commit_timestamp", "on");
    scenario_alone(&strategies, plain, track, |s| {
        s.both("CREATE TABLE m (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO m SELECT i, 'v' FROM generate_series(1, 3000) i");
        follow(s);
        s.stop();
        // Updated before it is deleted, deleted before it is updated, and never there.
        s.source("DO $$ BEGIN FOR i IN 1..3000 LOOP UPDATE m SET v = 'early' WHERE id = i AND i % 3 = 0; COMMIT; END LOOP; END $$");
        s.target("DELETE FROM m WHERE id % 3 <> 2");
        s.source("DO $$ BEGIN FOR i IN 1..3000 LOOP UPDATE m SET v = 'late' WHERE id = i AND i % 3 <> 0; COMMIT; END LOOP; END $$");
        s.source("UPDATE m SET v = 'again' WHERE id % 3 = 1; INSERT INTO m VALUES (4000, 'v'); UPDATE m SET v = 'w' WHERE id = 4000");
        s.run();
        s.catch_up();
        let rows = "SELECT string_agg(v || ' ' || n, ', ' ORDER BY v) FROM (SELECT v, count(*) AS n FROM m GROUP BY v) g";
        assert_eq!(s.target_one(rows), "again 1000, late 1000, w 1");
        assert_eq!((s.conflicts("update_deleted"), s.conflicts("update_missing")), (2000, 0));
    });
}

/// Transactions that are known to miss a row are replayed without a try. What else they write is
/// written, and a row that comes back between them is missing no longer.
#[test]
fn d1_a_row_that_comes_back_between_misses_is_there() {
    let strategies = [vec![], vec!["--keep-commit-timestamps", "on"]];
    let strategies = strategies.map(|more| [RETAIN, LOGICAL, &more].concat());
    let strategies = strategies.each_ref().map(Vec::as_slice);
    let track = |target: Builder| target.setting("track_commit_timestamp", "on");
    scenario_alone(&strategies, plain, track, |s| {
        s.both("CREATE TABLE m (id int PRIMARY KEY, v text)");
        s.source(
            "INSERT INTO m SELECT i, 'v' FROM generate_series(1, 700) i; INSERT INTO m VALUES (1000, '0')",
        );
        follow(s);
        s.stop();
        let one = "UPDATE m SET v = 'w' WHERE id = i; \
            IF i % 5 = 0 THEN UPDATE m SET v = i WHERE id = 1000; END IF; COMMIT;";
        let again = "DELETE FROM m WHERE id = i; COMMIT; INSERT INTO m VALUES (i, 'new'); COMMIT; \
            UPDATE m SET v = 'newer' WHERE id = i; COMMIT;";
        s.source(&format!(
            "DO $$ BEGIN FOR i IN 1..700 LOOP {one} IF i % 7 = 0 THEN {again} END IF; END LOOP; END $$"
        ));
        s.target("DELETE FROM m WHERE id < 1000");
        s.run();
        s.catch_up();
        let rows = "SELECT string_agg(v || ' ' || n, ', ' ORDER BY v) FROM (SELECT v, count(*) AS n FROM m GROUP BY v) g";
        assert_eq!(s.target_one(rows), "700 1, newer 100");
        let conflicts = ["update_deleted", "update_missing", "delete_missing"].map(|of| s.conflicts(of));
        assert_eq!(conflicts, [700, 0, 100]);
        let history = "SELECT count(*) || ' ' || count(DISTINCT finished_at) FROM pgsluice.conflict_history";
        assert_eq!(s.target_one(history), "800 800");
    });
}
