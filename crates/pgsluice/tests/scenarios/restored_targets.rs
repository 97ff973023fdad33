//! The kind: the target goes another way than the WAL that deletions were captured from, or that
//! WAL is lost. It is put back from an older copy, a standby takes its place, or capture's slot is
//! dropped. Each is named in `status`. A row about which nothing can be known is not covered, and
//! capture goes on by itself.

use std::time::{Duration, Instant};

use testkit::{Builder, Cluster, Proxy, StopMode, wait_for};

use crate::errors::{Backup, promote};
use crate::support::{BOUND, Scenario, Session, position, scenario_alone};
use crate::update_deleted::{RETAIN, WAL, deletions, follow, wait_for_capture};
use crate::update_deleted_faults::{
    alone, assert_known_again, because, counted, has_it_all, plain, wait_until, wait_until_durable,
};

/// Ships WAL from the source. What the target loses comes again, because that WAL is kept.
fn shipped(run: impl Fn(&mut Scenario) + Sync) {
    let target = |target: Builder| target.durable();
    scenario_alone(&[&[RETAIN, WAL].concat()], plain, target, run);
}

/// The target's WAL goes on by two megabytes.
fn write_on(s: &Scenario) {
    s.target(
        "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1000000)) FROM generate_series(1, 2)",
    );
}

/// Text of `pgsluice status`.
fn told(s: &Scenario) -> String {
    s.call(0, &["status"]).stdout
}

/// Row 1 was deleted by a history that is gone, and row 2 by the present one while nobody captured.
fn lost_and_unseen(s: &mut Scenario, why: &str) {
    s.catch_up();
    assert_eq!(s.target_one("SELECT string_agg(id::text, ',' ORDER BY id) FROM t WHERE v = 'w'"), "1,3");
    assert_eq!(counted(s), (0, 1, 1), "{}", s.log(0));
    s.wait_for_log(&format!("what was remembered before was discarded: {why}"));
    assert_known_again(s, 4);
    assert!(!told(s).contains("not covered until"), "{}", told(s));
}

const RESTORED: &str = "the server failed over or was restored since";

/// The end of WAL is behind what was captured, or on another timeline. Positions alone tell.
#[test]
fn d4_a_target_that_is_put_back_under_capture_is_named() {
    shipped(|s| {
        follow(s);
        for new_timeline in [false, true] {
            let backup = Backup::of(&mut s.pair_mut().target);
            wait_for_capture(s);
            let id = 5 + u32::from(new_timeline);
            s.target(&format!("DELETE FROM t WHERE id = {id}"));
            write_on(s);
            wait_until_durable(s);
            let captured = position(deletions(s, 0, "captured_lsn").as_str().unwrap());
            let (_, missing, exceeded) = counted(s);
            let before = s.log(0).matches(RESTORED).count();
            // It is put back, and runs again, while pgsluice runs.
            backup.restore(&mut s.pair_mut().target, new_timeline);
            assert!(position(&s.target_one("SELECT pg_current_wal_lsn()")) < captured);
            let is_named = || Ok(s.log(0).matches(RESTORED).count() > before);
            wait_for("what is lost to be named", BOUND, is_named).unwrap();
            wait_until(s, "capture", |own| own["state"] == "capturing");
            s.source(&format!("UPDATE t SET v = 'again' WHERE id = {id}"));
            s.catch_up();
            let back = format!("SELECT v FROM t WHERE id = {id}");
            assert_eq!(s.target_one(&back), "again", "its deletion was taken back");
            assert_eq!((counted(s).1, counted(s).2), (missing, exceeded));
            assert_known_again(s, id + 2);
        }
    });
}

/// Neither the identifier nor the timeline nor a position tells: the target has written past what
/// was captured before pgsluice looks. Its WAL tells.
#[test]
fn d4_a_target_that_was_put_back_and_has_written_on_is_not_believed() {
    for new_timeline in [false, true] {
        shipped(|s| {
            follow(s);
            if new_timeline {
                // Two restores in a row make the same timeline twice.
                Backup::of(&mut s.pair_mut().target).restore(&mut s.pair_mut().target, true);
                wait_for_capture(s);
                assert_known_again(s, 5);
            }
            let backup = Backup::of(&mut s.pair_mut().target);
            wait_for_capture(s);
            s.target("DELETE FROM t WHERE id = 1");
            write_on(s);
            wait_until_durable(s);
            s.stop();
            let captured = position(&s.target_one("SELECT pg_current_wal_lsn()"));
            backup.restore(&mut s.pair_mut().target, false);
            s.target("DELETE FROM t WHERE id = 2");
            assert!(position(&s.target_one("SELECT pg_current_wal_lsn()")) < captured);
            while position(&s.target_one("SELECT pg_current_wal_lsn()")) < captured + (1 << 20) {
                write_on(s);
            }
            s.source("UPDATE t SET v = 'w' WHERE id IN (1, 2, 3)");
            s.run();
            lost_and_unseen(s, RESTORED);
        });
    }
}

/// As a base backup without slots is put back: nothing is left by which the history is known.
#[test]
fn d4_a_target_that_was_put_back_without_its_slots_is_not_believed() {
    shipped(|s| {
        follow(s);
        let backup = Backup::of(&mut s.pair_mut().target);
        wait_for_capture(s);
        s.target("DELETE FROM t WHERE id = 1");
        write_on(s);
        wait_until_durable(s);
        s.stop();
        let captured = position(&s.target_one("SELECT pg_current_wal_lsn()"));
        backup.restore(&mut s.pair_mut().target, false);
        drop_slot(s);
        s.target("DELETE FROM t WHERE id = 2");
        while position(&s.target_one("SELECT pg_current_wal_lsn()")) < captured {
            write_on(s);
        }
        s.source("UPDATE t SET v = 'w' WHERE id IN (1, 2, 3)");
        s.run();
        lost_and_unseen(s, "the target's WAL or the kept catalogs were lost");
    });
}

/// The applier is idle, and hears nothing of the end of its server. What it had applied there says
/// nothing about the server that capture reads from by now.
#[test]
fn d2_what_was_applied_on_a_server_that_is_gone_moves_no_horizon() {
    shipped(|s| {
        let proxy = Proxy::to(s.pair().target.port()).unwrap();
        let url = proxy.url(&s.target_url(0));
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
        s.run_with(|command| {
            command.env("PGSLUICE_TARGET", &url).env("PGSLUICE_WAL_RECEIVER_TIMEOUT", "3s");
        });
        s.wait_for_copy();
        s.catch_up();
        wait_for_capture(s);
        let backup = Backup::of(&mut s.pair_mut().target);
        wait_for_capture(s);
        s.catch_up();
        s.target("DELETE FROM t WHERE id = 1");
        write_on(s);
        wait_until_durable(s);
        assert!(proxy.stall() > 0);
        // An orderly stop would wait for the walsender.
        s.pair_mut().target.stop(StopMode::Immediate).unwrap();
        backup.restore(&mut s.pair_mut().target, false);
        s.target("DELETE FROM t WHERE id = 2");
        s.wait_for_log(RESTORED);
        wait_until(s, "capture", |own| own["state"] == "capturing");
        let since = Instant::now();
        let stands = || {
            assert!(!deletions(s, 0, "cut_lsn").is_null(), "the horizon has passed it");
            Ok(since.elapsed() > Duration::from_secs(2))
        };
        wait_for("time for the horizon to move", BOUND, stands).unwrap();
        proxy.cut();
        s.source("UPDATE t SET v = 'w' WHERE id IN (2, 3)");
        s.catch_up();
        assert_eq!(s.target_one("SELECT string_agg(id::text, ',') FROM t WHERE v = 'w'"), "3");
        // The UPDATE is newer than everything that was not captured.
        assert_eq!(counted(s), (0, 1, 0));
        assert_known_again(s, 4);
    });
}

/// Ends who uses capture's slot, and drops it.
fn drop_slot(s: &Scenario) {
    let slot = format!("pgsluice_{}_dead", s.name(0));
    let end = format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
    );
    let drop = format!("SELECT pg_drop_replication_slot('{slot}')");
    let target = &s.pair().target;
    wait_for("the slot to be dropped", BOUND, || {
        target.sql("postgres", &end)?;
        Ok(target.sql("postgres", &drop).is_ok())
    })
    .unwrap();
}

/// What was captured before is forgotten with the gap, and what comes later is known.
#[test]
fn d4_a_slot_that_is_dropped_under_capture_is_named_and_made_again() {
    alone(&[], plain, |s| {
        s.both("CREATE TABLE u (id int PRIMARY KEY)");
        follow(s);
        // Nobody has a transaction id, which the look at the catalogs would wait for.
        let mut held = Session::to(&s.target_url(0));
        held.run("BEGIN; LOCK TABLE u IN SHARE MODE");
        s.source("INSERT INTO u VALUES (1)");
        let waits = || Ok(s.target_one("SELECT count(*) FROM pg_locks WHERE NOT granted") != "0");
        wait_for("the applier to wait", BOUND, waits).unwrap();
        s.source("UPDATE t SET v = 'w' WHERE id = 1");
        s.target("DELETE FROM t WHERE id = 1");
        wait_until(s, "the deletion to be captured", |own| own["count"] == 1);
        wait_until_durable(s);
        let slot = format!("pgsluice_{}_dead", s.name(0));
        drop_slot(s);
        wait_until(s, "the gap to be told", |own| {
            own["not_covered_because"].to_string().contains(&format!("keep slot {slot}"))
        });
        wait_until(s, "capture", |own| own["state"] == "capturing");
        let text = told(s);
        let named = "earlier deletions are not covered until older updates are applied: what was remembered before \
                     was discarded: the target's WAL or the kept catalogs were lost; keep slot";
        assert!(text.contains(named) && text.contains("max_slot_wal_keep_size"), "{text}");
        let exists = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'");
        assert_eq!(s.target_one(&exists), "1");
        s.source("UPDATE t SET v = 'w' WHERE id = 3");
        s.target("DELETE FROM t WHERE id = 3");
        wait_until_durable(s);
        held.run("COMMIT");
        s.catch_up();
        assert_eq!(counted(s), (1, 1, 1), "{}", s.log(0));
        assert_known_again(s, 2);
    });
}

/// The address names both servers. While the standby is one, it cannot be captured.
#[test]
fn d4_a_failover_under_capture_is_named_and_followed() {
    alone(&[], plain, |s| {
        let mut standby = s.pair_mut().target.standby("standby").unwrap();
        let port = |cluster: &Cluster| format!("127.0.0.1:{}", cluster.port());
        let (own, other) = (port(&s.pair().target), port(&standby));
        let url = s.target_url(0).replace(&own, &format!("{own},{other}"));
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
        s.run_with(|command| _ = command.env("PGSLUICE_TARGET", &url));
        s.wait_for_copy();
        s.catch_up();
        wait_for_capture(s);
        s.target("DELETE FROM t WHERE id = 1");
        has_it_all(s, &standby);
        standby.stop(StopMode::Immediate).unwrap();
        s.target("DELETE FROM t WHERE id = 2");
        wait_until_durable(s);
        s.pair_mut().target.kill9();
        standby.start_again().unwrap();
        s.pair_mut().target = standby;
        wait_until(s, "the standby to be named", |own| {
            own["state"] == "unfit"
                && own["trouble"].to_string().contains("the target is in recovery; promote it")
        });
        promote(&s.pair().target);
        s.source("UPDATE t SET v = 'w' WHERE id IN (1, 2)");
        s.catch_up();
        wait_until(s, "capture", |own| own["state"] == "capturing");
        s.wait_for_log(RESTORED);
        assert_eq!(s.target_one("SELECT string_agg(id::text, ',') FROM t WHERE v = 'w'"), "2");
        assert_eq!(counted(s), (0, 1, 1), "{}", because(s));
        assert_known_again(s, 3);
    });
}
