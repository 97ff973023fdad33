//! Rows that conflict: what is counted, what disables a subscription, and what is skipped.

use testkit::Major;

use crate::stage::{Scene, Way, scenario};

pub(crate) const ENABLED: &str = "SELECT subenabled FROM pg_subscription WHERE subname = '{sub}'";

/// Where the last transaction that failed ends, as both subscriptions have logged it.
#[track_caller]
fn failed_at(scene: &Scene) -> String {
    scene.until("the subscriptions to be disabled", ENABLED, "f");
    let [direct, relayed] = Way::BOTH.map(|way| {
        let log = scene.log(way);
        let (_, end) = log.rsplit_once("finished at ").unwrap_or_else(|| panic!("nothing failed: {log}"));
        end.chars().take_while(|c| c.is_ascii_hexdigit() || *c == '/').collect::<String>()
    });
    assert_eq!(direct, relayed, "they name different transactions");
    relayed
}

/// Skips the transaction that both have failed at.
pub(crate) fn skip(scene: &Scene) {
    let lsn = failed_at(scene);
    scene.subscribers(&format!("ALTER SUBSCRIPTION {{sub}} SKIP (lsn = '{lsn}')"));
    scene.subscribers("ALTER SUBSCRIPTION {sub} ENABLE");
    let skipped = "SELECT subskiplsn FROM pg_subscription WHERE subname = '{sub}'";
    scene.until("the transaction to be skipped", skipped, "0/0");
    scene.level();
}

#[test]
fn a_subscription_is_disabled_by_an_error_and_skips_its_transaction() {
    scenario(Major::V15, |scene| {
        // Only subscribers have a key.
        scene.publisher("CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, 'one'); CREATE PUBLICATION p FOR TABLE t");
        scene.subscribers(
            "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'in the way')",
        );
        for way in Way::BOTH {
            scene
                .try_to_subscribe(way, "p", "disable_on_error = true, streaming = on, two_phase = on")
                .unwrap();
        }
        // At the copy.
        scene.until("the subscriptions to be disabled", ENABLED, "f");
        scene.subscribers("TRUNCATE t");
        scene.subscribers("ALTER SUBSCRIPTION {sub} ENABLE");
        scene.ready();
        let two_phase = "SELECT subtwophasestate = 'e' FROM pg_subscription WHERE subname = '{sub}'";
        scene.until("two-phase commit", two_phase, "t");
        scene.publisher("BEGIN; INSERT INTO t VALUES (2, 'lost'), (1, 'conflicts'); COMMIT");
        skip(scene);
        scene.publisher("INSERT INTO t VALUES (3, 'kept')");
        scene.level();
        scene.shows("SELECT * FROM t ORDER BY id", "1|one, 3|kept");
        let gid = scene.database();
        let session = scene.session();
        session.run(&format!("BEGIN; INSERT INTO t VALUES (3, 'conflicts'); PREPARE TRANSACTION '{gid}'"));
        failed_at(scene);
        session.run(&format!("COMMIT PREPARED '{gid}'"));
        skip(scene);
        let large = "INSERT INTO t SELECT n, repeat(md5(n::text), 60) FROM generate_series(1, 11000) n";
        session.run(large);
        skip(scene);
        scene.publisher("INSERT INTO t VALUES (4, 'kept')");
        scene.level();
        scene.shows("SELECT * FROM t ORDER BY id", "1|one, 3|kept, 4|kept");
        scene.shows("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()", "0");
        // A transaction that does not fail is not skipped, and clears what was to be skipped.
        scene.subscribers("ALTER SUBSCRIPTION {sub} SKIP (lsn = 'FFFFFF/0')");
        scene.publisher("INSERT INTO t VALUES (5, 'kept')");
        scene.level();
        scene.shows("SELECT v FROM t WHERE id = 5", "kept");
    });
}

#[test]
fn errors_are_counted() {
    scenario(Major::V15, |scene| {
        scene.publisher("CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, 'one'); CREATE PUBLICATION p FOR TABLE t");
        scene.subscribers(
            "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'in the way')",
        );
        for way in Way::BOTH {
            scene.try_to_subscribe(way, "p", "disable_on_error = true").unwrap();
        }
        scene.until("the subscriptions to be disabled", ENABLED, "f");
        let counted = "SELECT sync_error_count, apply_error_count, stats_reset IS NOT NULL FROM pg_stat_subscription_stats
                        WHERE subname = '{sub}'";
        scene.until("the error of the copy", counted, "1|0|f");
        scene.subscribers("DELETE FROM t");
        scene.subscribers("ALTER SUBSCRIPTION {sub} ENABLE");
        scene.ready();
        scene.publisher("INSERT INTO t VALUES (1, 'conflicts')");
        scene.until("the subscriptions to be disabled", ENABLED, "f");
        scene.until("the error of a change", counted, "1|1|f");
        scene.subscribers(
            "SELECT pg_stat_reset_subscription_stats(oid) FROM pg_subscription WHERE subname = '{sub}'",
        );
        scene.until("the counters to be reset", counted, "0|0|t");
        scene.subscribers("DELETE FROM t");
        scene.subscribers("ALTER SUBSCRIPTION {sub} ENABLE");
        scene.level();
        scene.shows("SELECT * FROM t", "1|conflicts");
    });
}

/// From 18 on each kind of conflict has a counter.
#[test]
fn conflicts_are_detected_and_counted() {
    scenario(Major::V18, |scene| {
        scene.publisher(
            "CREATE TABLE t (id int PRIMARY KEY, a int, b int); INSERT INTO t SELECT n, n, n FROM generate_series(1, 9) n;
             CREATE PUBLICATION p FOR TABLE t",
        );
        scene.subscribers("CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, b int UNIQUE)");
        scene.subscribe("p", "disable_on_error = true");
        // Another origin, and rows that are missing.
        scene.subscribers("UPDATE t SET b = b + 1000 WHERE id IN (1, 2); DELETE FROM t WHERE id IN (3, 4)");
        scene.publisher("UPDATE t SET a = 101 WHERE id = 1; DELETE FROM t WHERE id = 2");
        scene.publisher("UPDATE t SET a = 103 WHERE id = 3; DELETE FROM t WHERE id = 4");
        scene.level();
        for kind in ["update_origin_differs", "delete_origin_differs", "update_missing", "delete_missing"] {
            scene.logged(&format!("conflict detected on relation \"public.t\": conflict={kind}"));
        }
        let goes_on = |kind: &str| {
            scene.logged(&format!("conflict detected on relation \"public.t\": conflict={kind}"));
            failed_at(scene);
            scene.subscribers("DELETE FROM t WHERE id >= 50");
            scene.subscribers("ALTER SUBSCRIPTION {sub} ENABLE");
            scene.level();
        };
        scene.subscribers("INSERT INTO t VALUES (50, 50, 50), (51, 51, 51)");
        scene.publisher("INSERT INTO t VALUES (50, 500, 500)");
        goes_on("insert_exists");
        scene.subscribers("INSERT INTO t VALUES (60, 60, 60)");
        scene.publisher("UPDATE t SET a = 60 WHERE id = 5");
        goes_on("update_exists");
        scene.subscribers("INSERT INTO t VALUES (70, 70, 70), (71, 71, 71)");
        scene.publisher("INSERT INTO t VALUES (70, 71, 700)");
        goes_on("multiple_unique_conflicts");
        // A copied row has another origin, too. Its update counts when it fails, and again later.
        let counters = "SELECT confl_insert_exists, confl_update_origin_differs, confl_update_exists, confl_update_missing,
                               confl_delete_origin_differs, confl_delete_missing, confl_multiple_unique_conflicts, apply_error_count
                          FROM pg_stat_subscription_stats WHERE subname = '{sub}'";
        scene.until("the conflicts to be counted", counters, "1|3|1|1|1|1|1|3");
        scene.alike("SELECT * FROM t ORDER BY id");
    });
}
