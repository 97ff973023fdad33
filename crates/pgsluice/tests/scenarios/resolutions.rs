//! The kind: a change meets what it does not expect, and the user has said what to do.
//!
//! Each scenario makes the collision, lets every strategy meet it, and looks at the rows, the
//! counters and the words. What PostgreSQL does without rules is in `conflicts`.

use testkit::Builder;

use crate::support::{DECODED, FOLDED, ONE_BY_ONE, Scenario, scenario_alone, scenario_with};

const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, u int, v text, CONSTRAINT t_u_key UNIQUE (u))";

/// How the documents read the history.
pub(crate) const HISTORY: &str = "SELECT at, type, table_name, index_name, resolution, outcome, remote_time, local_origin, local_time \
     FROM pgsluice.conflict_history ORDER BY id DESC LIMIT 20;";

/// The rules as arguments.
fn rules<'r>(rules: &[&'r str], strategy: &[&'r str]) -> Vec<&'r str> {
    rules.iter().flat_map(|rule| ["--conflict", rule]).chain(strategy.iter().copied()).collect()
}

/// Runs the scenario under these rules with sets, one change at a time, and WAL decoded here.
fn under(of: &[&str], run: impl Fn(&mut Scenario) + Sync) {
    let strategies = [FOLDED, ONE_BY_ONE, DECODED].map(|strategy| rules(of, strategy));
    let strategies = strategies.each_ref().map(Vec::as_slice);
    scenario_with(&strategies, run);
}

/// The same on a target that keeps commit times and origins.
fn with_times(of: &[&str], run: impl Fn(&mut Scenario) + Sync) {
    let strategies = [FOLDED, ONE_BY_ONE, DECODED].map(|strategy| rules(of, strategy));
    let strategies = strategies.each_ref().map(Vec::as_slice);
    let plain = |builder: Builder| builder;
    let track = |builder: Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(&strategies, plain, track, run);
}

fn rows(s: &Scenario) -> String {
    s.target_one("SELECT string_agg(concat_ws(' ', id, u, v), ', ' ORDER BY id) FROM t")
}

#[test]
fn insert_exists_is_overwritten_or_left() {
    for (resolution, left) in [
        ("apply_remote", "1 1 source, 2 2 source"),
        ("keep_local", "1 7 local, 2 2 source"),
        ("skip", "1 7 local, 2 2 source"),
    ] {
        under(&[&format!("insert_exists={resolution}")], |s| {
            s.both(TABLE);
            s.target("ALTER TABLE t ADD own text DEFAULT 'default'");
            s.follow();
            s.target("INSERT INTO t VALUES (1, 7, 'local', 'kept')");
            s.source("INSERT INTO t VALUES (1, 1, 'source'), (2, 2, 'source')");
            s.catch_up();
            assert_eq!(rows(s), left);
            assert_eq!(
                s.target_one("SELECT own FROM t WHERE id = 1"),
                "kept",
                "the source has no such column"
            );
            assert_eq!(s.conflicts("insert_exists"), 1);
            s.wait_for_log(
                "conflict detected on relation \"public.t\": conflict=insert_exists: Key already exists in unique \
                 index \"t_pkey\", modified in transaction ",
            );
        });
    }
}

/// The row under the new key makes room, and so do the rows under several keys.
#[test]
fn rows_that_hold_unique_keys_make_room() {
    let of = ["update_exists=apply_remote", "multiple_unique_conflicts=apply_remote"];
    under(&of, |s| {
        s.both(TABLE);
        s.source("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')");
        s.follow();
        s.target("INSERT INTO t VALUES (8, 8, 'local'), (9, 9, 'local'), (10, 10, 'local')");
        s.source("UPDATE t SET u = 9, v = 'moved' WHERE id = 1");
        s.source("UPDATE t SET id = 8, u = 10, v = 'moved' WHERE id = 2");
        s.catch_up();
        assert_eq!(rows(s), "1 9 moved, 8 10 moved");
        assert_eq!((s.conflicts("update_exists"), s.conflicts("multiple_unique_conflicts")), (1, 1));
        s.target("INSERT INTO t VALUES (20, 20, 'local'), (30, 30, 'local')");
        s.source("INSERT INTO t VALUES (20, 30, 'source')");
        s.catch_up();
        assert_eq!(rows(s), "1 9 moved, 8 10 moved, 20 30 source");
        assert_eq!(s.conflicts("multiple_unique_conflicts"), 2);
        s.same();
    });
}

/// An error names every key, and goes on when the rows are gone.
#[test]
fn several_keys_are_named_together() {
    scenario_with(&[FOLDED, ONE_BY_ONE, DECODED], |s| {
        s.both(TABLE);
        s.follow();
        s.target("INSERT INTO t VALUES (20, 20, 'local'), (30, 30, 'local')");
        s.source("INSERT INTO t VALUES (1, 1, 'before'), (20, 30, 'source')");
        s.wait_for_log(
            "conflict=multiple_unique_conflicts: Key already exists in unique index \"t_pkey\", modified in transaction ",
        );
        s.wait_for_log(". Key already exists in unique index \"t_u_key\", modified in transaction ");
        assert_eq!(rows(s), "20 20 local, 30 30 local");
        s.target("DELETE FROM t");
        s.catch_up();
        s.same();
    });
}

/// Keys of expressions, of a part of the rows, of generated columns, and of NULLs.
#[test]
fn holders_are_found_in_every_kind_of_unique_index() {
    under(&["insert_exists=keep_local", "update_exists=keep_local"], |s| {
        s.both("CREATE TABLE e (id int PRIMARY KEY, v text, n int)");
        s.target("CREATE UNIQUE INDEX e_lower ON e (lower(v), (n % 100)) WHERE n > 0");
        s.both("CREATE TABLE g (id int PRIMARY KEY, n int)");
        s.target("ALTER TABLE g ADD twice int GENERATED ALWAYS AS (n * 2) STORED UNIQUE");
        s.both("CREATE TABLE c (id int PRIMARY KEY, v text)");
        s.target("CREATE UNIQUE INDEX c_posix ON c (v COLLATE \"POSIX\" DESC) INCLUDE (id)");
        s.source("INSERT INTO e VALUES (1, 'a', 1), (2, 'b', -1)");
        s.follow();
        s.target("INSERT INTO e VALUES (100, 'LOCAL', 107); INSERT INTO g VALUES (100, 7); INSERT INTO c VALUES (100, 'x')");
        s.source("INSERT INTO e VALUES (3, 'Local', 7), (4, 'local', -7), (5, 'local', 8)");
        s.source("UPDATE e SET v = 'local', n = 207 WHERE id = 1");
        s.source("UPDATE e SET v = 'local' WHERE id = 2");
        s.source("INSERT INTO g VALUES (1, 7), (2, 8); INSERT INTO c VALUES (1, 'x'), (2, 'X')");
        s.catch_up();
        let of =
            |table: &str| s.target_one(&format!("SELECT string_agg(id::text, ' ' ORDER BY id) FROM {table}"));
        assert_eq!((of("e").as_str(), of("g").as_str(), of("c").as_str()), ("1 2 4 5 100", "2 100", "2 100"));
        assert_eq!(s.target_one("SELECT concat_ws(' ', v, n) FROM e WHERE id = 1"), "a 1");
        assert_eq!((s.conflicts("insert_exists"), s.conflicts("update_exists")), (3, 1));
        s.wait_for_log("conflict=update_exists: Key already exists in unique index \"e_lower\"");
    });
}

#[test]
fn a_missing_row_is_inserted_or_stops() {
    under(&["update_missing=apply_remote"], |s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 5) i");
        s.follow();
        s.target("DELETE FROM t WHERE id IN (2, 3)");
        s.source("UPDATE t SET v = 'w' WHERE id IN (1, 2)");
        s.source("UPDATE t SET id = 30 WHERE id = 3");
        s.catch_up();
        s.same();
        assert_eq!(s.conflicts("update_missing"), 2);
    });
    for (kind, change) in [
        ("update_missing", "UPDATE t SET v = 'w' WHERE id = 1"),
        ("delete_missing", "DELETE FROM t WHERE id = 1"),
    ] {
        under(&[&format!("{kind}=error")], |s| {
            s.both(TABLE);
            s.source("INSERT INTO t VALUES (1, 1, 'v')");
            s.follow();
            s.target("DELETE FROM t");
            s.source(&format!("INSERT INTO t VALUES (2, 2, 'same transaction'); {change}"));
            s.wait_for_log(&format!("conflict={kind}: Could not find the row to be "));
            assert_eq!(rows(s), "");
            s.target("INSERT INTO t VALUES (1, 1, 'v')");
            s.catch_up();
            s.same();
        });
    }
}

#[test]
fn an_update_that_lacks_a_large_value_is_not_inserted() {
    under(&["update_missing=apply_remote"], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int, large text)");
        s.both("ALTER TABLE t ALTER large SET STORAGE EXTERNAL");
        s.source("INSERT INTO t VALUES (1, 1, repeat('x', 100000)), (2, 2, repeat('y', 100000))");
        s.follow();
        s.target("DELETE FROM t WHERE id = 1");
        s.source("UPDATE t SET n = 10 WHERE id = 1");
        s.wait_for_log("found no row and cannot be inserted instead");
        s.target("INSERT INTO t VALUES (1, 1, repeat('x', 100000))");
        s.catch_up();
        s.same();
        s.source("ALTER TABLE t REPLICA IDENTITY FULL");
        s.target("DELETE FROM t WHERE id = 2");
        s.source("UPDATE t SET n = 20 WHERE id = 2");
        s.catch_up();
        s.same();
    });
}

/// A row that another wrote is changed as in native apply, and the log tells the conflict.
#[test]
fn rows_of_others_are_told() {
    with_times(&["update_origin_differs=apply_remote", "delete_origin_differs=apply_remote"], |s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 6) i");
        s.follow();
        s.source("UPDATE t SET v = 'replicated' WHERE id = 1");
        s.source("DELETE FROM t WHERE id = 6");
        s.catch_up();
        assert_eq!(s.conflicts("update_origin_differs"), 0, "copied rows are ours");
        s.target("UPDATE t SET v = 'local' WHERE id IN (2, 3)");
        s.source("UPDATE t SET v = 'remote' WHERE id IN (1, 2)");
        s.source("DELETE FROM t WHERE id = 3");
        s.source("UPDATE t SET v = 'again' WHERE id = 2");
        s.catch_up();
        s.same();
        assert_eq!((s.conflicts("update_origin_differs"), s.conflicts("delete_origin_differs")), (1, 1));
        s.wait_for_log(
            "conflict=update_origin_differs: Updating the row that was modified locally in transaction ",
        );
        s.wait_for_log(
            "conflict=delete_origin_differs: Deleting the row that was modified locally in transaction ",
        );
    });
}

/// The same in partitions, and in a table without a key.
#[test]
fn rows_of_others_are_told_wherever_they_are() {
    with_times(&["update_origin_differs=apply_remote"], |s| {
        s.both(
            "CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); \
             CREATE TABLE parted1 PARTITION OF parted FOR VALUES FROM (0) TO (100); \
             CREATE TABLE parted2 PARTITION OF parted FOR VALUES FROM (100) TO (200); \
             CREATE TABLE bag (id int, v text); ALTER TABLE bag REPLICA IDENTITY FULL",
        );
        s.publish("FOR TABLE parted, bag, mark WITH (publish_via_partition_root = true)");
        s.source("INSERT INTO parted SELECT i, 'v' FROM generate_series(1, 150) i");
        s.source("INSERT INTO bag SELECT i, 'v' FROM generate_series(1, 50) i");
        s.follow();
        s.catch_up();
        s.target(
            "UPDATE parted SET v = 'local' WHERE id IN (5, 105); UPDATE bag SET v = v WHERE id IN (5, 6)",
        );
        s.source("UPDATE parted SET v = 'remote' WHERE id > 1");
        s.source("UPDATE bag SET v = 'remote'");
        s.source("UPDATE parted SET v = 'again'; DELETE FROM bag WHERE id < 10");
        s.catch_up();
        s.same_table("parted");
        s.same_table("bag");
        assert_eq!(s.conflicts("update_origin_differs"), 4);
    });
}

/// Of two versions the later stays, whichever came by replication.
#[test]
fn the_last_update_wins() {
    let of = ["insert_exists", "update_origin_differs", "delete_origin_differs", "update_exists"]
        .map(|kind| format!("{kind}=last_update_wins"));
    with_times(&of.each_ref().map(String::as_str), |s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 4) i");
        s.follow();
        s.catch_up();
        // The target writes first, the source later.
        s.target("UPDATE t SET v = 'local' WHERE id <= 2; INSERT INTO t VALUES (10, 10, 'local')");
        s.source("UPDATE t SET v = 'remote' WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (10, 11, 'remote')");
        s.catch_up();
        assert_eq!(rows(s), "1 1 remote, 3 3 v, 4 4 v, 10 11 remote");
        // The source writes first; it comes when the target has written.
        s.stop();
        s.source("UPDATE t SET v = 'remote' WHERE id = 3; DELETE FROM t WHERE id = 4; INSERT INTO t VALUES (20, 20, 'remote')");
        s.target("UPDATE t SET v = 'local' WHERE id IN (3, 4); INSERT INTO t VALUES (20, 21, 'local')");
        s.run();
        s.catch_up();
        assert_eq!(rows(s), "1 1 remote, 3 3 local, 4 4 local, 10 11 remote, 20 21 local");
        // What came by replication is ours again.
        s.source("UPDATE t SET v = 'third' WHERE id = 1");
        s.catch_up();
        assert_eq!(s.target_one("SELECT v FROM t WHERE id = 1"), "third");
    });
}

/// Of two versions the earlier stays.
#[test]
fn the_first_update_wins() {
    let of = ["insert_exists=first_update_wins", "update_origin_differs=first_update_wins"];
    with_times(&of, |s| {
        s.both(TABLE);
        s.source("INSERT INTO t VALUES (1, 1, 'v'), (2, 2, 'v')");
        s.follow();
        s.catch_up();
        s.target("UPDATE t SET v = 'local' WHERE id = 1");
        s.source("UPDATE t SET v = 'remote' WHERE id = 1");
        s.catch_up();
        assert_eq!(rows(s), "1 1 local, 2 2 v");
        s.stop();
        s.source("UPDATE t SET v = 'remote' WHERE id = 2; INSERT INTO t VALUES (3, 3, 'remote')");
        s.target("UPDATE t SET v = 'local' WHERE id = 2; INSERT INTO t VALUES (3, 4, 'local')");
        s.run();
        s.catch_up();
        assert_eq!(rows(s), "1 1 local, 2 2 remote, 3 3 remote");
    });
}

/// Statements of hundreds of rows, of which a few collide: each of these is resolved, all others
/// are written, and each is counted once.
#[test]
fn a_few_rows_of_a_large_transaction_collide() {
    let of = ["insert_exists=keep_local", "update_origin_differs=keep_local", "update_missing=apply_remote"];
    with_times(&of, |s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 500) i");
        s.follow();
        s.catch_up();
        s.target(
            "UPDATE t SET v = 'local' WHERE id % 100 = 1; DELETE FROM t WHERE id % 100 = 2; \
             INSERT INTO t SELECT i, -i, 'local' FROM generate_series(503, 903, 100) i",
        );
        s.source("UPDATE t SET v = 'w'; INSERT INTO t SELECT i, i, 'new' FROM generate_series(501, 1000) i");
        s.catch_up();
        let counts = "SELECT string_agg(concat_ws(' ', v, n), ', ' ORDER BY v) FROM \
                      (SELECT v, count(*) AS n FROM t GROUP BY v) c";
        assert_eq!(s.target_one(counts), "local 10, new 495, w 495");
        let met = ["insert_exists", "update_origin_differs", "update_missing"].map(|kind| s.conflicts(kind));
        assert_eq!(met, [5, 5, 5]);
    });
}

#[test]
fn a_rule_that_needs_commit_times_is_refused_without_them() {
    under(&["insert_exists=last_update_wins:public.t"], |s| {
        s.both(TABLE);
        s.run();
        for (code, log) in s.ended() {
            assert_eq!(code, 1, "{log}");
            assert!(
                log.contains("track_commit_timestamp")
                    && log.contains("insert_exists=last_update_wins:public.t"),
                "{log}"
            );
        }
    });
}

/// Each conflict is in the history once, with what was done, and with nothing of a transaction that
/// was rolled back but the error itself.
#[test]
fn what_was_resolved_is_in_the_history() {
    let of = ["insert_exists=keep_local", "insert_exists=error:public.u"];
    under(&of, |s| {
        s.both(TABLE);
        s.both("CREATE TABLE u (id int PRIMARY KEY)");
        s.follow();
        s.target("INSERT INTO t VALUES (1, 7, 'local'); INSERT INTO u VALUES (1)");
        s.source("INSERT INTO t VALUES (1, 1, 'source')");
        s.source("INSERT INTO t VALUES (1, 2, 'again') ON CONFLICT (id) DO UPDATE SET v = 'again'; INSERT INTO u VALUES (1)");
        s.wait_for_log("conflict detected on relation \"public.u\": conflict=insert_exists");
        s.target("DELETE FROM u");
        s.catch_up();
        s.target(HISTORY);
        let history = "SELECT string_agg(concat_ws(' ', type, table_name, index_name, resolution, outcome), ', ' ORDER BY id) \
                       FROM pgsluice.conflict_history";
        assert_eq!(
            s.target_one(history),
            "insert_exists t t_pkey keep_local kept, insert_exists u u_pkey error error"
        );
    });
}

/// A change meets two conflicts, one after the other: a rule lets it write the row, and then
/// another row holds its unique key. If that one stays, nothing was written, and no record says
/// otherwise.
#[test]
fn what_a_second_conflict_leaves_out_is_not_recorded_as_applied() {
    for (resolution, left, outcome) in [
        ("keep_local", "1 1 local, 7 10 holder, 9 9 holder, 1000 1000 source", "kept"),
        ("apply_remote", "1 9 moved, 2 10 moved, 1000 1000 source", "applied"),
    ] {
        let [updates, inserts] =
            ["update_exists", "insert_exists"].map(|kind| format!("{kind}={resolution}"));
        let of = ["update_origin_differs=apply_remote", "update_missing=apply_remote", &updates, &inserts];
        with_times(&of, |s| {
            s.both(TABLE);
            s.source("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')");
            s.follow();
            s.catch_up();
            s.target("UPDATE t SET v = 'local' WHERE id = 1; DELETE FROM t WHERE id = 2");
            s.target("INSERT INTO t VALUES (9, 9, 'holder'), (7, 10, 'holder')");
            s.source(
                "BEGIN; UPDATE t SET u = 9, v = 'moved' WHERE id = 1; \
                 UPDATE t SET u = 10, v = 'moved' WHERE id = 2; \
                 INSERT INTO t VALUES (1000, 1000, 'source'); COMMIT",
            );
            s.catch_up();
            assert_eq!(rows(s), left);
            let history = "SELECT string_agg(concat_ws(' ', type, index_name, resolution, outcome), ', ' ORDER BY id) \
                           FROM pgsluice.conflict_history";
            assert_eq!(
                s.target_one(history),
                format!(
                    "update_origin_differs apply_remote {outcome}, update_exists t_u_key {resolution} {outcome}, \
                     update_missing apply_remote {outcome}, insert_exists t_u_key {resolution} {outcome}"
                )
            );
        });
    }
}
