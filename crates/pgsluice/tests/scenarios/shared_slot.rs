//! The kind: both directions of a pair remember deletions, and each captures them behind the slot
//! that the other has anyway. No side gets a slot more, and nothing is forgotten for that.

use serde_json::Value;
use testkit::wait_for;

use crate::both_ways::drop_both;
use crate::support::{BOUND, Scenario, scenario_with};

const RETAIN: [&str; 4] = ["--retain-dead-tuples", "on", "--source-mode", "wal"];
const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, v text)";

/// A question about the subscriptions' slots. Others share the servers.
fn of_slots(s: &Scenario, what: &str) -> String {
    format!("SELECT {what} FROM pg_replication_slots WHERE starts_with(slot_name, 'pgsluice_{}')", s.name(0))
}

/// Their names, on one of the servers.
fn slots(s: &Scenario, at: fn(&Scenario, &str) -> String) -> String {
    at(s, &of_slots(s, "string_agg(slot_name, ' ' ORDER BY slot_name)"))
}

/// What both directions say of deletions: forth, then back.
fn deletions(s: &Scenario) -> Vec<Value> {
    let shown = s.call(0, &["status", "--json", "--both-ways"]);
    let lines = shown.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|status| status["deletions"].clone()).collect()
}

#[track_caller]
fn wait_for_capture(s: &Scenario) {
    let capture = |own: &Value| own["state"] == "capturing" && own["cut_lsn"].is_null();
    let both = || {
        let both = deletions(s);
        Ok(both.len() == 2 && both.iter().all(capture))
    };
    let captured = wait_for("both directions to capture", BOUND, both);
    assert!(captured.is_ok(), "{:?}\n{}", deletions(s), s.log(0));
}

/// Waits until each server has one slot, that of the direction that reads from it.
#[track_caller]
fn wait_for_one_slot(s: &Scenario) {
    let name = format!("pgsluice_{}", s.name(0));
    let back = format!("{name}_back");
    let both = || (slots(s, Scenario::source_one), slots(s, Scenario::target_one));
    let one = || Ok(both() == (name.clone(), back.clone()));
    let found = wait_for("one slot on each side", BOUND, one);
    assert!(found.is_ok(), "{:?}\n{}", both(), s.log(0));
}

/// WAL on both sides, so that slots move.
fn write_wal(s: &Scenario, first: u32) {
    let rows =
        format!("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series({first}, {first} + 2999) i");
    s.source(&rows);
    s.target(
        &rows.replace(&format!("({first}, {first} + 2999)"), &format!("({first} + 3000, {first} + 5999)")),
    );
    for end in [Scenario::source, Scenario::target] {
        end(s, "CHECKPOINT");
    }
}

/// An UPDATE meets a deletion that is younger, in the direction forth. Both happen while nobody
/// runs.
#[track_caller]
fn assert_known(s: &mut Scenario, id: u32) {
    s.source(&format!("UPDATE t SET v = 'w' WHERE id = {id}"));
    s.target(&format!("DELETE FROM t WHERE id = {id}"));
    let before = s.target_one("SELECT count(*) FROM pgsluice.conflict_history WHERE type = 'update_deleted'");
    s.run();
    let known =
        format!("SELECT count(*) - {before} FROM pgsluice.conflict_history WHERE type = 'update_deleted'");
    let found = wait_for("update_deleted", BOUND, || Ok(s.target_one(&known) == "1"));
    assert!(found.is_ok(), "{:?}\n{}", deletions(s), s.log(0));
    for own in deletions(s) {
        assert_eq!(
            (&own["not_covered_because"], &own["retention_exceeded"]),
            (&Value::Null, &0.into()),
            "{own}"
        );
    }
}

fn restart_lsn(s: &Scenario) -> String {
    s.target_one(&of_slots(s, "restart_lsn"))
}

#[test]
fn a_pair_captures_deletions_behind_the_slots_that_it_has() {
    let own = ["--both-ways"].iter().chain(&RETAIN).copied().collect::<Vec<_>>();
    scenario_with(&[&own], |s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
        s.publish("FOR ALL TABLES");
        s.target("CREATE PUBLICATION p FOR ALL TABLES");
        s.run();
        wait_for_capture(s);
        wait_for_one_slot(s);
        s.wait_for_copy();
        s.stop();
        assert_known(s, 1);

        // The slot follows both, and keeps what a restart after a crash needs.
        let before = restart_lsn(s);
        write_wal(s, 10_000);
        let moves = wait_for("the slot to move", BOUND, || {
            write_wal(s, 100_000 + s.target_one("SELECT max(id) FROM t").parse::<u32>().unwrap());
            // Between two looks at a condition that has a bound.
            std::thread::sleep(std::time::Duration::from_secs(1));
            Ok(s.target_one(&format!("SELECT '{}'::pg_lsn > '{before}'", restart_lsn(s))) == "t")
        });
        assert!(moves.is_ok(), "{before}\n{}", s.log(0));
        s.kill();
        write_wal(s, 20_000);
        assert_known(s, 2);
        wait_for_one_slot(s);

        // A slot of its own that an earlier version made.
        s.stop();
        let own = format!("pgsluice_{}_dead", s.name(0));
        s.target(&format!("SELECT pg_create_physical_replication_slot('{own}', true)"));
        s.run();
        wait_for_one_slot(s);
        wait_for_capture(s);
        drop_both(s);
    });
}

/// One direction remembers deletions behind its own slot, and gets a way back: it goes over to the
/// slot of that without a gap.
#[test]
fn a_way_back_takes_over_what_keeps_wal() {
    scenario_with(&[&RETAIN], |s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
        s.publish("FOR ALL TABLES");
        s.target("CREATE PUBLICATION p FOR ALL TABLES");
        s.follow();
        let captures = || Ok(s.status(0)["deletions"]["state"] == "capturing");
        wait_for("capture", BOUND, captures).unwrap();
        assert_eq!(slots(s, Scenario::target_one), format!("pgsluice_{}_dead", s.name(0)));
        s.stop();
        s.run_with(|command| {
            command.arg("--both-ways");
        });
        wait_for_capture(s);
        let mut first = 10_000;
        let name = format!("pgsluice_{}_back", s.name(0));
        let over = wait_for("the own slot to be dropped", BOUND, || {
            write_wal(s, first);
            first += 6_000;
            // Between two looks at a condition that has a bound.
            std::thread::sleep(std::time::Duration::from_secs(1));
            Ok(slots(s, Scenario::target_one) == name)
        });
        assert!(over.is_ok(), "{}\n{}", slots(s, Scenario::target_one), s.log(0));
        for own in deletions(s) {
            assert_eq!(own["not_covered_because"], Value::Null, "{own}");
        }
        s.stop();
        let dropped = s.call(0, &["drop", "--both-ways"]);
        assert!(dropped.status.success(), "{dropped:?}");
        assert_eq!(s.left_behind(), Vec::<String>::new());
    });
}
