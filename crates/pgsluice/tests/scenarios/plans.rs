//! Rule Q1: a plan that is made while a table is small, empty or full of dead rows, and kept for
//! the life of a session.
//!
//! Tables grow a thousandfold inside one transaction of the stream, where no ANALYZE can help. The
//! server's count of rows that index scans read, `idx_tup_read`, proves the plan. A look-up reads
//! one row. A plan that reads the index for each row of a set reads hundreds of millions.

use std::collections::BTreeSet;

use testkit::wait_for;

use crate::support::{BOUND, DECODED, FOLDED, Scenario, scenario_alone, scenario_with};

/// Rows that index scans on the target's tables read, as the server has counted.
fn rows_read(s: &Scenario) -> u64 {
    let sql = "SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE schemaname = 'public'";
    s.target_one_of(0, sql).parse().expect("a number")
}

/// A table that is tiny when its statements are planned, grows, and is updated and emptied in one
/// transaction each.
#[test]
fn q1_a_table_that_grew_in_the_stream_is_updated_and_emptied_by_its_index() {
    scenario_with(&[FOLDED, DECODED], |s| {
        s.both(
            "CREATE TABLE t (id int PRIMARY KEY, v int, w text);
             CREATE TABLE rivals (k int, id int, v int, PRIMARY KEY (k, id)); CREATE INDEX ON rivals (k)",
        );
        s.source(
            "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'); INSERT INTO rivals VALUES (0, 1, 1)",
        );
        s.follow();
        s.target("ANALYZE t, rivals");
        s.source("UPDATE t SET v = 0 WHERE id = 1; DELETE FROM t WHERE id = 2");
        s.source(
            "UPDATE rivals SET v = 0; INSERT INTO rivals VALUES (1, 2, 2); DELETE FROM rivals WHERE k = 1",
        );
        s.catch_up();
        let before = rows_read(s);
        s.source(
            "INSERT INTO t SELECT i, i, 'w' FROM generate_series(10, 30009) i;
             INSERT INTO rivals SELECT i % 2, i, i FROM generate_series(10, 30009) i",
        );
        s.source("UPDATE t SET v = v + 1; UPDATE rivals SET v = v + 1");
        s.source("DELETE FROM t; DELETE FROM rivals");
        s.catch_up();
        s.same();
        // 60,000 rows, each looked up twice, and what each look-up meets besides.
        let read = rows_read(s) - before;
        assert!(read < 20 * 120_000, "{read} rows were read");
    });
}

/// All of it in one transaction, with a TRUNCATE before.
#[test]
fn q1_a_table_that_grows_and_changes_in_one_transaction_is_searched_by_its_index() {
    scenario_with(&[FOLDED, DECODED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v int, w text)");
        s.source("INSERT INTO t SELECT i, i, 'w' FROM generate_series(1, 20000) i");
        s.follow();
        s.target("ANALYZE t");
        s.source("UPDATE t SET v = 0 WHERE id < 100");
        s.catch_up();
        let before = rows_read(s);
        s.source(
            "BEGIN; TRUNCATE t; INSERT INTO t SELECT i, i, 'w' FROM generate_series(1, 30000) i;
             UPDATE t SET v = v + 1; UPDATE t SET w = 'x' || id; DELETE FROM t WHERE id % 3 = 0; COMMIT",
        );
        s.catch_up();
        s.same();
        let read = rows_read(s) - before;
        assert!(read < 20 * 120_000, "{read} rows were read");
    });
}

/// An index that comes to stand beside the key's while pgsluice runs is taken into account.
#[test]
fn q1_an_index_made_on_the_target_meanwhile_is_no_reason_to_read_more() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (k int, id int, v int, PRIMARY KEY (k, id))");
        s.source("INSERT INTO t VALUES (0, 1, 1)");
        s.follow();
        s.source("UPDATE t SET v = 2");
        s.catch_up();
        s.target("CREATE INDEX ON t (k); ANALYZE t");
        // Asked again after five seconds; something has to come meanwhile.
        let told = || s.log(0).contains("tables were altered on the target");
        let mut number = 10;
        let seen = wait_for("the new index to be seen", BOUND, || {
            number += 1;
            s.source(&format!(
                "INSERT INTO t VALUES (0, {number}, 1); UPDATE t SET v = v + 1 WHERE id = {number}"
            ));
            Ok(told())
        });
        seen.unwrap();
        let before = rows_read(s);
        s.source("INSERT INTO t SELECT 0, i, i FROM generate_series(100000, 120000) i");
        s.source("UPDATE t SET v = v + 1");
        s.catch_up();
        s.same();
        let read = rows_read(s) - before;
        assert!(read < 20 * 40_000, "{read} rows were read");
    });
}

/// pgsluice names a statement that runs away nevertheless, cancels it, and tries again with new
/// plans, which hold. Here a function of the user runs away, and only when it is called for the
/// first time. The last follower applies the transaction in parts.
#[test]
fn q1_a_statement_that_runs_away_is_named_and_taken_back_and_tried_again() {
    const PARTS: &[&str] = &["--batch-rows-max", "300", "--streaming", "off"];
    scenario_with(&[FOLDED, DECODED, PARTS], |s| {
        s.both(
            "CREATE SEQUENCE calls; CREATE FUNCTION slow(v int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RETURN true; END $$;
             CREATE TABLE t (id int PRIMARY KEY, v int CHECK (public.slow(v)), w text)",
        );
        s.target(
            "CREATE OR REPLACE FUNCTION slow(v int) RETURNS bool LANGUAGE plpgsql AS $$
             DECLARE ends timestamptz := clock_timestamp() + '10 min';
             BEGIN
               IF v = 77 AND nextval('public.calls') = 1 THEN WHILE clock_timestamp() < ends LOOP NULL; END LOOP; END IF;
               RETURN true;
             END $$",
        );
        s.source("INSERT INTO t SELECT i, i, 'w' FROM generate_series(101, 3000) i");
        s.follow();
        s.source("UPDATE t SET v = CASE id WHEN 200 THEN 77 ELSE v + 1 END WHERE id <= 1000");
        // All followers at once: the statement of each runs for seconds, and is then cancelled.
        let (mut named, mut cancelled) = (BTreeSet::new(), BTreeSet::new());
        wait_for("the statements to be named in status", BOUND, || {
            for number in 0..s.followers() {
                let status = s.status(number);
                let waits = &status["waits_for"];
                let is_it = waits["operation"] == "UPDATE" && waits["table"] == "public.t";
                if is_it && waits["seconds"].as_f64() > Some(3.0) {
                    named.insert(number);
                }
                if status["totals"]["replanned"] == 1 {
                    cancelled.insert(number);
                }
            }
            Ok(named.union(&cancelled).count() == s.followers())
        })
        .unwrap();
        assert!(!named.is_empty(), "no statement was named before it was cancelled");
        s.wait_for_log("a statement ran far longer than it should, so pgsluice cancelled it");
        s.catch_up();
        s.same();
        for number in 0..s.followers() {
            assert_eq!(s.status(number)["totals"]["replanned"], 1, "{}", s.log(number));
            assert!(s.log(number).contains("table=\"public.t\" seconds=1"), "{}", s.log(number));
            assert_eq!(s.target_one_of(number, "SELECT last_value FROM calls"), "2");
        }
    });
}

/// The same with misleading statistics. For a table without a key they say that one index finds a
/// row and the other finds all, and later it is the other way round. Without help it takes minutes:
/// no statement is longer than others, but each takes far too long.
#[test]
fn q1_a_table_without_a_key_is_searched_by_another_index_once_one_is_of_no_use() {
    scenario_alone(
        &[FOLDED, DECODED],
        |source| source,
        |target| target.setting("autovacuum", "off"),
        |s| {
            s.both(
                "CREATE TABLE t (k int, id int, v int); ALTER TABLE t REPLICA IDENTITY FULL; CREATE INDEX ON t (k)",
            );
            s.target("CREATE INDEX ON t (id)");
            s.source("INSERT INTO t SELECT -i, 0, i FROM generate_series(1, 1000) i");
            s.follow();
            s.target("ANALYZE t");
            s.source("INSERT INTO t SELECT 0, i, i FROM generate_series(1, 150000) i");
            s.source("UPDATE t SET v = v + 1 WHERE k = 0 AND id % 2 = 0");
            s.catch_up();
            s.same();
            for number in 0..s.followers() {
                assert!(s.status(number)["totals"]["replanned"].as_u64() > Some(0), "{}", s.log(number));
            }
        },
    );
}
