//! Tables without a key, whose rows are found by all of their values (`plan/src/bag.rs`).

use rand::Rng as _;
use testkit::wait_for;

use crate::support::{BOUND, FOLDED, ONE_BY_ONE, Scenario, Session, scenario, scenario_with};

/// Tables of many kinds: with an index and without, and with values that may be NULL, equal, or
/// equal with different bytes.
const TABLES: &[&str] = &[
    "CREATE TABLE plain (a int, b text, c numeric)",
    "CREATE TABLE indexed (a int, b text, c numeric); CREATE INDEX ON indexed (a)",
    "CREATE TABLE hashed (a int NOT NULL, b text NOT NULL, c numeric); CREATE INDEX ON hashed USING hash (b)",
    "CREATE TABLE wide (a int, b text, c numeric, big text); CREATE INDEX ON wide (b, a)",
];
const NAMES: [&str; 4] = ["plain", "indexed", "hashed", "wide"];

fn tables(s: &mut Scenario) {
    for sql in TABLES {
        s.both(sql);
    }
    for table in NAMES {
        s.both(&format!("ALTER TABLE {table} REPLICA IDENTITY FULL"));
        s.source(&format!(
            "INSERT INTO {table} SELECT i % 200, 'b' || i % 40, i % 3 FROM generate_series(1, 700) i"
        ));
    }
    s.source("ALTER TABLE wide ALTER big SET STORAGE EXTERNAL; UPDATE wide SET big = repeat(b, 2000) WHERE a % 7 = 0");
}

fn replays(s: &Scenario, number: usize) -> u64 {
    s.status(number)["totals"]["replays"].as_u64().unwrap()
}

#[test]
fn a_backlog_on_tables_without_keys_is_written_in_sets() {
    scenario_with(&[FOLDED, ONE_BY_ONE, &["--max-parallel-apply-workers-per-subscription", "4"]], |s| {
        tables(s);
        s.follow();
        s.stop();
        for table in NAMES {
            for sql in [
                "UPDATE $ SET c = c + 1 WHERE a % 3 = 0",
                "UPDATE $ SET a = a + 1, b = b || '!' WHERE a % 5 = 0",
                "DELETE FROM $ WHERE a % 11 = 0",
                "INSERT INTO $ (a, b, c) SELECT i, 'new', NULL FROM generate_series(1, 90) i",
                "UPDATE $ SET c = 7 WHERE b = 'new' AND a % 2 = 0",
                "UPDATE $ SET c = c + 1 WHERE b = 'new'; DELETE FROM $ WHERE b = 'new' AND a < 30",
                "UPDATE $ SET c = NULL WHERE a % 13 = 0",
                "UPDATE $ SET c = 2 WHERE c IS NULL",
            ] {
                s.source(&sql.replace('$', table));
            }
        }
        s.source("UPDATE plain SET a = NULL WHERE a % 4 = 0; UPDATE indexed SET a = NULL WHERE a % 4 = 0; UPDATE plain SET b = NULL");
        s.source("UPDATE wide SET big = 'x' WHERE a % 14 = 0; UPDATE wide SET a = a + 1000");
        s.follow();
        s.same();
        for number in 0..s.followers() {
            assert_eq!(replays(s, number), 0, "follower {number}");
        }
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
    });
}

#[test]
fn transactions_one_by_one_find_their_rows() {
    scenario(|s| {
        tables(s);
        s.follow();
        for table in NAMES {
            for n in 0..8 {
                s.source(&format!("UPDATE {table} SET c = c + {n} WHERE a = {n}"));
                s.source(&format!(
                    "DELETE FROM {table} WHERE ctid = (SELECT min(ctid) FROM {table} WHERE a = 2 * {n})"
                ));
                s.source(&format!("INSERT INTO {table} (a, b) VALUES ({n}, 'late'); UPDATE {table} SET b = 'later' WHERE b = 'late'"));
            }
        }
        s.catch_up();
        s.same();
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
    });
}

/// Few values, so that rows are often equal, become equal to others, change again and go. NULLs and
/// unsent values occur everywhere.
#[test]
fn a_random_walk_leads_to_the_same_rows() {
    let seed = std::env::var("PGSLUICE_BAG_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed: u32 = seed.unwrap_or_else(|| rand::rng().random_range(0..9_000));
    println!("PGSLUICE_BAG_SEED={seed}");
    scenario(|s| {
        for (table, types, index) in [
            ("bare", "a int, b text, c date", ""),
            ("led", "a int, b text, c date", "CREATE INDEX ON led (a); CREATE INDEX ON led USING hash (b)"),
            ("loose", "a numeric, b text, c float8", "CREATE INDEX ON loose (b)"),
        ] {
            s.both(&format!(
                "CREATE TABLE {table} ({types}, big text); ALTER TABLE {table} REPLICA IDENTITY FULL; {index}"
            ));
            s.source(&format!("ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL"));
        }
        s.follow();
        let walk = |s: &Scenario, steps: u32, seed: u32| {
            for (table, c) in
                [("bare", "'2001-01-01'::date + k"), ("led", "'2001-01-01'::date + k"), ("loose", "k / 4.0")]
            {
                s.source(&format!(
                    "DO $$ DECLARE k int; p tid; BEGIN PERFORM setseed({seed} / 10000.0);
                       FOR step IN 1 .. {steps} LOOP
                         k := floor(random() * 4);
                         SELECT ctid INTO p FROM {table} ORDER BY random() LIMIT 1;
                         CASE floor(random() * 7)
                           WHEN 0, 1 THEN INSERT INTO {table} VALUES (nullif(k, 0), nullif('b' || k % 3, 'b0'), {c},
                             CASE WHEN k = 1 THEN repeat('x', 5000) END);
                           WHEN 2 THEN DELETE FROM {table} WHERE ctid = p;
                           WHEN 3 THEN UPDATE {table} SET a = nullif(k, 2) WHERE ctid = p;
                           WHEN 4 THEN UPDATE {table} SET b = nullif('b' || k % 3, 'b1'), c = {c} WHERE ctid = p;
                           WHEN 5 THEN UPDATE {table} SET big = CASE WHEN k > 1 THEN repeat('y', 4000 + k) END WHERE ctid = p;
                           ELSE UPDATE {table} SET c = {c} WHERE a = k;
                         END CASE;
                         IF random() < 0.2 THEN COMMIT; END IF;
                       END LOOP; END $$"
                ));
            }
        };
        walk(s, 150, seed);
        s.catch_up();
        s.same();
        s.stop();
        walk(s, 600, seed + 1);
        s.follow();
        s.same();
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0, "seed {seed}");
    });
}

/// 1.0 and 1.00 are one value by the rules of numeric, and two by their bytes.
#[test]
fn rows_that_are_equal_and_look_different_are_each_found_once() {
    scenario(|s| {
        s.both("CREATE TABLE t (n numeric, v int); ALTER TABLE t REPLICA IDENTITY FULL");
        s.source("INSERT INTO t VALUES (1.0, 0), (1.00, 0), (1.000, 0), (2, 0)");
        s.follow();
        s.stop();
        s.source("UPDATE t SET v = 1 WHERE n = 1");
        s.source("UPDATE t SET v = v + 1; DELETE FROM t WHERE n::text = '1.00'");
        s.follow();
        assert_eq!(s.target_one("SELECT string_agg(v::text, ' ' ORDER BY v) FROM t"), "1 2 2");
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
    });
}

#[test]
fn rows_that_are_alike_are_each_found() {
    scenario_with(&[FOLDED], |s| {
        for (table, index) in [("bare", ""), ("led", "CREATE INDEX ON led (a)")] {
            s.both(&format!(
                "CREATE TABLE {table} (a int, b text); ALTER TABLE {table} REPLICA IDENTITY FULL; {index}"
            ));
            s.source(&format!("INSERT INTO {table} SELECT i / 100, NULL FROM generate_series(0, 399) i"));
        }
        s.follow();
        s.stop();
        for table in ["bare", "led"] {
            s.source(&format!(
                "DELETE FROM {table} WHERE ctid IN (SELECT ctid FROM {table} ORDER BY a, ctid LIMIT 70)"
            ));
            s.source(&format!("UPDATE {table} SET b = 'x' WHERE ctid IN (SELECT ctid FROM {table} ORDER BY a DESC LIMIT 150)"));
            s.source(&format!("UPDATE {table} SET a = a + 1 WHERE a < 2"));
        }
        s.follow();
        s.same();
        assert_eq!(replays(s, 0), 0);
    });
}

/// IS NULL is true of both; only one of them was meant.
#[test]
fn null_is_not_a_row_of_nulls() {
    scenario(|s| {
        s.both("CREATE TYPE pair AS (x int, y int); CREATE TABLE t (a int, p pair, b text); ALTER TABLE t REPLICA IDENTITY FULL");
        s.source("INSERT INTO t VALUES (1, ROW(NULL, NULL)), (1, NULL), (2, ROW(NULL, NULL)), (2, NULL), (3, ROW(1, NULL))");
        s.follow();
        s.source("DELETE FROM t WHERE a = 1 AND p IS NOT DISTINCT FROM NULL");
        s.source("UPDATE t SET b = 'x' WHERE a = 2 AND p IS DISTINCT FROM NULL");
        s.catch_up();
        s.same();
        s.backlog(&["UPDATE t SET a = a + 1 WHERE p IS DISTINCT FROM NULL; DELETE FROM t WHERE p IS NOT DISTINCT FROM NULL"]);
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
    });
}

/// An intermediate value in a batch may collide with a row that only the target has.
#[test]
fn f1_a_version_that_collides_is_not_passed_over() {
    scenario(|s| {
        s.both("CREATE TABLE t (a int, b text); ALTER TABLE t REPLICA IDENTITY FULL");
        s.target("CREATE UNIQUE INDEX ON t (a)");
        s.source("INSERT INTO t VALUES (1, 'one')");
        s.follow();
        s.target("INSERT INTO t VALUES (7, 'local')");
        s.source("UPDATE t SET b = 'uno'; INSERT INTO t VALUES (7, 'source'); DELETE FROM t WHERE a = 7");
        s.wait_for_log("conflict=insert_exists");
        assert_eq!(s.target_one("SELECT b FROM t WHERE a = 7"), "local");
        s.target("DELETE FROM t WHERE a = 7");
        s.catch_up();
        s.same();
    });
}

/// Columns that only the target has stay as they are.
#[test]
fn what_the_source_does_not_have_is_left_alone() {
    scenario(|s| {
        s.source("CREATE TABLE t (a int, b text); ALTER TABLE t REPLICA IDENTITY FULL");
        s.target("CREATE TABLE t (local text DEFAULT 'new', b text, a int); CREATE INDEX ON t (a)");
        s.source("INSERT INTO t SELECT i, 'b' FROM generate_series(1, 100) i");
        s.follow();
        s.target("UPDATE t SET local = 'row ' || a");
        s.stop();
        s.source("UPDATE t SET b = 'c'");
        s.source("DELETE FROM t WHERE a % 2 = 0; INSERT INTO t VALUES (7, 'more')");
        s.follow();
        assert_eq!(
            s.target_one("SELECT count(*) FROM t WHERE local = 'row ' || a AND b = 'c' AND a % 2 = 1"),
            "50"
        );
        assert_eq!(s.target_one("SELECT local FROM t WHERE b = 'more'"), "new");
    });
}

/// A row that is not there is found out, and only that.
#[test]
fn f1_a_missing_row_is_not_hidden_by_one_that_becomes_like_it() {
    scenario(|s| {
        s.both("CREATE TABLE t (a int, b text); CREATE INDEX ON t (a); ALTER TABLE t REPLICA IDENTITY FULL");
        s.source("INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three')");
        s.follow();
        s.stop();
        s.target("DELETE FROM t WHERE a = 2");
        s.source("UPDATE t SET a = 20, b = 'twenty' WHERE a = 2; UPDATE t SET a = 2, b = 'two' WHERE a = 1; DELETE FROM t WHERE a = 3");
        s.follow();
        assert_eq!(s.target_one("SELECT string_agg(a || b, ' ') FROM t"), "2two");
        assert_eq!((s.conflicts("update_missing"), s.conflicts("delete_missing")), (1, 0));
    });
}

/// Without an index the table is read once for a set, and not once for each row.
#[test]
fn a_table_without_an_index_is_read_once_for_many_rows() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (a int, b text); ALTER TABLE t REPLICA IDENTITY FULL");
        s.source("INSERT INTO t SELECT i, 'b' || i FROM generate_series(1, 20000) i");
        s.follow();
        s.stop();
        s.source("UPDATE t SET a = -a WHERE a % 2 = 0");
        s.source("DELETE FROM t WHERE a % 5 = 1");
        let scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 't'";
        let before: u64 = s.target_one(scans).parse().unwrap();
        s.follow();
        s.same();
        // What a backend counted is told when it is idle, a second later at most; on 14 only after
        // another transaction.
        let changed = "SELECT n_tup_upd + n_tup_del >= 12000 FROM pg_stat_user_tables WHERE relname = 't'";
        let told = || {
            s.catch_up();
            Ok(s.target_one(changed) == "t")
        };
        wait_for("the counts of changed rows", BOUND, told).unwrap();
        let read = s.target_one(scans).parse::<u64>().unwrap() - before;
        assert!(read < 50, "the table was read {read} times");
        assert_eq!(replays(s, 0), 0);
    });
}

/// A row that another session of the target changed while pgsluice waited for it counts as another
/// row, as for native apply.
#[test]
fn a_row_that_was_changed_meanwhile_is_not_overwritten() {
    scenario_with(&[FOLDED, ONE_BY_ONE], |s| {
        s.both(
            "CREATE TABLE t (a int, b text); ALTER TABLE t REPLICA IDENTITY FULL; \
             CREATE TABLE i (a int, b text); CREATE INDEX ON i (a); ALTER TABLE i REPLICA IDENTITY FULL",
        );
        for table in ["t", "i"] {
            s.source(&format!("INSERT INTO {table} VALUES (1, 'one'), (2, 'two')"));
        }
        s.follow();
        for table in ["t", "i"] {
            let mut holders: Vec<Session> =
                (0..s.followers()).map(|n| Session::to(&s.target_url(n))).collect();
            for holder in &mut holders {
                holder.run(&format!("BEGIN; UPDATE {table} SET b = 'local' WHERE a = 1"));
            }
            s.source(&format!("UPDATE {table} SET b = 'source' WHERE a = 1"));
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                         AND application_name LIKE '%apply' AND wait_event_type = 'Lock'";
            for number in 0..s.followers() {
                wait_for("the change to wait", BOUND, || Ok(s.target_one_of(number, waits) != "0")).unwrap();
            }
            for holder in &mut holders {
                holder.run("COMMIT");
            }
            s.catch_up();
            assert_eq!(
                s.target_one(&format!("SELECT string_agg(b, ' ' ORDER BY a) FROM {table}")),
                "local two"
            );
        }
        assert_eq!(s.conflicts("update_missing"), 2);
    });
}
