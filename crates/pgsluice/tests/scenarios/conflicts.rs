//! Conflicts: found, named as PostgreSQL names them, counted, and treated as native apply treats
//! them.

use crate::support::{FOLDED, ONE_BY_ONE, scenario, scenario_with};

const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, u int, v text, CONSTRAINT t_u_key UNIQUE (u))";

/// The LSN that an error tells to skip.
pub(crate) fn lsn_to_skip(log: &str) -> String {
    let (_, rest) = log.rsplit_once("pgsluice skip --lsn ").expect("the error says what to skip");
    rest.chars().take_while(|c| c.is_ascii_hexdigit() || *c == '/').collect()
}

#[test]
fn insert_exists_stops_until_it_is_resolved() {
    scenario(|s| {
        s.both(TABLE);
        s.follow();
        s.target("INSERT INTO t VALUES (1, 7, 'local')");
        s.source("INSERT INTO t VALUES (1, 1, 'source')");
        s.source("INSERT INTO t VALUES (2, 2, 'later')");
        s.wait_for_log(
            "conflict detected on relation \"public.t\": conflict=insert_exists: Key already exists in unique index \
             \"t_pkey\", modified in transaction ",
        );
        assert_eq!(s.target_one("SELECT string_agg(v, ',') FROM t"), "local");
        s.target("DELETE FROM t");
        s.catch_up();
        s.same();
    });
}

#[test]
fn insert_exists_by_a_secondary_key_names_that_index() {
    scenario(|s| {
        s.both(TABLE);
        s.follow();
        s.target("INSERT INTO t VALUES (9, 1, 'local')");
        s.source("INSERT INTO t VALUES (1, 1, 'source')");
        s.wait_for_log("conflict=insert_exists: Key already exists in unique index \"t_u_key\"");
        s.target("DELETE FROM t");
        s.catch_up();
        s.same();
    });
}

#[test]
fn update_exists_names_the_index() {
    scenario(|s| {
        s.both(TABLE);
        s.source("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')");
        s.follow();
        s.target("INSERT INTO t VALUES (9, 9, 'local')");
        s.source("UPDATE t SET u = 9 WHERE id = 1");
        s.wait_for_log("conflict detected on relation \"public.t\": conflict=update_exists: Key already exists in unique index \"t_u_key\"");
        s.target("DELETE FROM t WHERE id = 9");
        s.source("UPDATE t SET id = 9 WHERE id = 2");
        s.catch_up();
        s.same();
    });
}

#[test]
fn missing_rows_are_logged_counted_and_skipped() {
    scenario(|s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 10) i");
        s.follow();
        s.target("DELETE FROM t WHERE id IN (1, 2, 3)");
        s.source("UPDATE t SET v = 'w'");
        s.source("DELETE FROM t WHERE id IN (2, 3, 4)");
        s.source("UPDATE t SET id = 100 WHERE id = 1");
        s.catch_up();
        s.wait_for_log("conflict detected on relation \"public.t\": conflict=update_missing: Could not find the row to be updated.");
        s.wait_for_log("conflict detected on relation \"public.t\": conflict=delete_missing: Could not find the row to be deleted.");
        assert_eq!((s.conflicts("update_missing"), s.conflicts("delete_missing")), (4, 2));
        assert_eq!(s.target_one("SELECT string_agg(id || v, ' ' ORDER BY id) FROM t"), "5w 6w 7w 8w 9w 10w");
    });
}

/// One missing row in the middle of a large transaction: every other row is written, one conflict
/// is counted.
#[test]
fn f4_one_missing_row_in_a_large_transaction() {
    scenario_with(&[FOLDED, &["--batch-rows-max", "100"], ONE_BY_ONE], |s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 2000) i");
        s.follow();
        s.target("DELETE FROM t WHERE id = 1234");
        s.source(
            "UPDATE t SET v = 'w'; DELETE FROM t WHERE id = 1234; INSERT INTO t VALUES (1234, 1234, 'n')",
        );
        s.catch_up();
        s.same();
        assert_eq!((s.conflicts("update_missing"), s.conflicts("delete_missing")), (1, 1));
    });
}

/// A table that keeps failing, among transactions of another that fits. Every row that can be
/// written is written. Every conflict is counted once, however the batches are cut.
#[test]
fn f4_a_table_that_keeps_failing() {
    scenario(|s| {
        s.both(TABLE);
        s.both("CREATE TABLE fits (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 2000) i");
        s.source("INSERT INTO fits VALUES (1, 0)");
        s.follow();
        s.stop();
        s.target("DELETE FROM t WHERE id % 20 = 7");
        s.source(
            "DO $$ BEGIN FOR i IN 1 .. 2000 LOOP UPDATE t SET v = 'w' || i WHERE id = i; \
             UPDATE fits SET n = n + 1; COMMIT; END LOOP; END $$",
        );
        s.follow();
        s.catch_up();
        assert_eq!(s.conflicts("update_missing"), 100);
        s.same_table("fits");
        let rows = "SELECT md5(string_agg(id || v, ' ' ORDER BY id)) FROM t";
        assert_eq!(s.target_one(rows), s.source_one(&format!("{rows} WHERE id % 20 <> 7")));
    });
}

#[test]
fn skip_passes_over_one_transaction() {
    scenario(|s| {
        s.both(TABLE);
        s.follow();
        s.target("INSERT INTO t VALUES (500, -500, 'local')");
        // Larger than a batch, with the conflict late.
        s.source("INSERT INTO t SELECT i, i, 'skipped' FROM generate_series(1, 600) i");
        s.source("INSERT INTO t VALUES (1001, 1001, 'kept')");
        s.wait_for_log("conflict=insert_exists");
        for number in 0..s.followers() {
            let lsn = lsn_to_skip(&s.log(number));
            s.call(number, &["skip", "--lsn", &lsn]).expect_success();
        }
        s.catch_up();
        assert_eq!(s.target_one("SELECT string_agg(v, ',' ORDER BY id) FROM t"), "local,kept");
        assert_eq!(s.target_one("SELECT skip_lsn FROM pgsluice.subscription"), "");
        s.wait_for_log("starts skipping transaction at LSN");
        assert_eq!(s.status(0)["totals"]["skipped_transactions"], 1);
    });
}

/// A transaction that cannot be mapped can be skipped like a conflict. The next ones are refused
/// until the target fits.
#[test]
fn skip_passes_over_what_the_target_has_no_column_for() {
    scenario(|s| {
        s.both(TABLE);
        s.follow();
        s.source("INSERT INTO t VALUES (1, 1, 'kept')");
        s.source("ALTER TABLE t ADD fresh int; INSERT INTO t VALUES (2, 2, 'skipped', 2); ALTER TABLE t DROP fresh");
        s.source("INSERT INTO t VALUES (3, 3, 'kept')");
        s.wait_for_log("is missing replicated column \"fresh\"");
        for number in 0..s.followers() {
            let lsn = lsn_to_skip(&s.log(number));
            s.call(number, &["skip", "--lsn", &lsn]).expect_success();
        }
        s.catch_up();
        assert_eq!(s.target_one("SELECT string_agg(id || v, ' ' ORDER BY id) FROM t"), "1kept 3kept");
    });
}

/// A conflict inside a transaction that was streamed while it was open.
#[test]
fn a_conflict_in_a_streamed_transaction() {
    scenario_with(&[FOLDED, &["--batch-rows-max", "50"], &["--streaming", "off", "--binary", "off"]], |s| {
        s.both(TABLE);
        let db = s.source_one("SELECT current_database()");
        s.source(&format!("ALTER DATABASE {db} SET logical_decoding_work_mem = '64kB'"));
        s.follow();
        s.target("INSERT INTO t VALUES (1500, -1, 'local')");
        s.source("INSERT INTO t SELECT i, i, repeat('x', 100) FROM generate_series(1, 2000) i");
        s.wait_for_log("conflict=insert_exists: Key already exists in unique index \"t_pkey\"");
        assert_eq!(s.target_one("SELECT count(*) FROM t"), "1");
        s.target("DELETE FROM t");
        s.catch_up();
        s.same();
    });
}

#[test]
fn disable_on_error_keeps_the_prefix_and_stays_disabled() {
    let disabling = &["--disable-on-error"][..];
    scenario_with(&[disabling, &[disabling, ONE_BY_ONE].concat()], |s| {
        s.both(TABLE);
        s.follow();
        s.target("INSERT INTO t VALUES (5, 50, 'local')");
        s.stop();
        for id in 1..=9 {
            s.source(&format!("INSERT INTO t VALUES ({id}, {id}, 's')"));
        }
        s.run();
        for (code, log) in s.ended() {
            assert_eq!(code, 4, "{log}");
            assert!(log.contains("insert_exists") && log.contains("pgsluice enable"), "{log}");
        }
        assert_eq!(s.target_one("SELECT string_agg(id || v, ' ' ORDER BY id) FROM t"), "1s 2s 3s 4s 5local");
        s.target("DELETE FROM t WHERE id = 5");
        (0..s.followers()).for_each(|number| drop(s.call(number, &["enable"]).expect_success()));
        s.follow();
        s.same();
    });
}

/// Not null, check and exclusion constraints of the target: an error that names the table, until it
/// is repaired.
#[test]
fn other_constraints_of_the_target_are_errors() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.target("ALTER TABLE t ADD CONSTRAINT short CHECK (length(v) < 5), ALTER v SET NOT NULL");
        s.follow();
        s.source("INSERT INTO t VALUES (1, 'fine')");
        s.source("INSERT INTO t VALUES (2, NULL)");
        s.wait_for_log("null value in column \"v\"");
        assert_eq!(s.target_one("SELECT count(*) FROM t"), "1");
        s.target("ALTER TABLE t ALTER v DROP NOT NULL");
        s.source("UPDATE t SET v = 'too long' WHERE id = 1");
        s.wait_for_log("violates check constraint \"short\"");
        s.wait_for_log("while processing UPDATE for replication target relation \"public.t\"");
        s.target("ALTER TABLE t DROP CONSTRAINT short");
        s.catch_up();
        s.same();
    });
}

/// Another session deletes and inserts the row again and again while it is updated. The row is
/// never missing.
#[test]
fn f6_a_row_replaced_meanwhile_is_not_missing() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO t VALUES (1, 0)");
        s.follow();
        let url = s.target_url(0);
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (told, order) = (stop.clone(), std::sync::atomic::Ordering::Relaxed);
        let replacing = std::thread::spawn(move || {
            let mut session = crate::support::Session::to(&url);
            while !told.load(order) {
                session.run("BEGIN; DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, -1); COMMIT");
            }
        });
        for _ in 0..200 {
            s.source("UPDATE t SET n = n + 1");
        }
        s.catch_up();
        stop.store(true, order);
        replacing.join().unwrap();
        assert_eq!(s.conflicts("update_missing"), 0);
    });
}

/// An error that only COMMIT finds belongs to a transaction, which is named like any other.
#[test]
fn an_error_at_commit_names_its_transaction() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.follow();
        s.stop();
        s.target(
            "CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF NEW.v = 'bad' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NULL; END $$; \
             CREATE CONSTRAINT TRIGGER never AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION never(); \
             ALTER TABLE t ENABLE ALWAYS TRIGGER never",
        );
        s.source("INSERT INTO t VALUES (1, 'good')");
        s.source("INSERT INTO t SELECT i, 'bad' FROM generate_series(2, 6) i");
        s.source("INSERT INTO t VALUES (7, 'good')");
        s.run();
        s.wait_for_log("not this one");
        s.wait_for_log("finished at ");
        assert_eq!(s.target_one("SELECT string_agg(id::text, ' ' ORDER BY id) FROM t"), "1");
        for number in 0..s.followers() {
            let log = s.log(number);
            let (_, rest) = log.split_once("finished at ").unwrap();
            let lsn: String = rest.chars().take_while(|c| c.is_ascii_hexdigit() || *c == '/').collect();
            s.call(number, &["skip", "--lsn", &lsn]).expect_success();
        }
        s.catch_up();
        assert_eq!(s.target_one("SELECT string_agg(id::text, ' ' ORDER BY id) FROM t"), "1 7");
    });
}
