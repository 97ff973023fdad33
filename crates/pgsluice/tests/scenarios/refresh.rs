//! Rule C1 for tables that are added to a publication, or dropped from it, while others are
//! replicated.

use std::time::Duration;

use testkit::wait_for;

use crate::support::{BOUND, FOLDED, ONE_BY_ONE, Scenario, Session, scenario, scenario_with};

/// Both ways of applying, both sources, and a publication that is looked at often.
const OFTEN: &[&[&str]] = &[
    &["--refresh-interval", "200ms"],
    &["--refresh-interval", "200ms", "--binary", "off", "--batch-rows-max", "2", "--streaming", "off"],
    &["--refresh-interval", "200ms", "--source-mode", "wal"],
];

/// Waits until `table` is replicated by everybody.
#[track_caller]
pub(crate) fn wait_until_joined(s: &Scenario, table: &str) {
    for number in 0..s.followers() {
        let url = s.target_url(number);
        let sql = format!("SELECT finished FROM pgsluice.copied_table WHERE table_name = '{table}'");
        let joined = wait_for("the table to join", BOUND, || {
            let rows = testkit::query(&url, &sql)?;
            Ok(rows.first().is_some_and(|row| row[0].as_deref() == Some("t")))
        });
        assert!(joined.is_ok(), "{joined:?}\n{}", s.log(number));
    }
}

/// Only named tables are published.
fn publish_some(s: &mut Scenario) {
    s.both("CREATE TABLE old (id int PRIMARY KEY, n int)");
    s.source("INSERT INTO old SELECT i, 0 FROM generate_series(1, 100) i");
    s.publish("FOR TABLE old, mark");
    s.follow();
}

#[test]
fn c1_a_table_that_is_added_joins_under_load_and_misses_nothing() {
    scenario_with(OFTEN, |s| {
        publish_some(s);
        s.both("CREATE TABLE late (id int PRIMARY KEY, n int, pad text)");
        s.source("INSERT INTO late SELECT i, 0, repeat('x', 500) FROM generate_series(1, 20000) i");
        // Writes both tables before, during and after the copy of the new one, with one transaction
        // open all the time.
        let url = s.source_url();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let load = std::thread::spawn(move || {
            let (mut session, mut open) = (Session::to(&url), Session::to(&url));
            let mut rounds = 0;
            while stopped.try_recv().is_err() {
                open.run(&format!("BEGIN; UPDATE late SET n = n + 1 WHERE id = {}", 1 + rounds % 7));
                for _ in 0..10 {
                    session.run(&format!(
                        "BEGIN; UPDATE old SET n = n + 1 WHERE id = {0}; UPDATE late SET n = n + 1 WHERE id = {0} * 150; \
                         INSERT INTO late VALUES (100000 + {rounds}, 1, 'new') ON CONFLICT DO NOTHING; \
                         DELETE FROM late WHERE id = 100000 + {rounds} - 5; \
                         UPDATE late SET id = -id WHERE id = 5000 + {rounds}; COMMIT",
                        1 + rounds % 100
                    ));
                    rounds += 1;
                    // The pace of a load; no test waits for it.
                    std::thread::sleep(Duration::from_millis(2));
                }
                open.run("COMMIT");
            }
            rounds
        });
        // The load has time to change rows before the table is added.
        std::thread::sleep(Duration::from_millis(300));
        s.source("ALTER PUBLICATION p ADD TABLE late");
        wait_until_joined(s, "late");
        // And to go on after it has joined.
        std::thread::sleep(Duration::from_millis(300));
        stop.send(()).unwrap();
        assert!(load.join().unwrap() > 50);
        s.catch_up();
        s.same();
        assert_eq!(
            s.conflicts("insert_exists") + s.conflicts("update_missing") + s.conflicts("delete_missing"),
            0
        );
    });
}

#[test]
fn c1_the_others_go_on_while_a_table_is_copied() {
    scenario_with(&[&["--refresh-interval", "200ms"]], |s| {
        publish_some(s);
        s.both("CREATE TABLE late (id int PRIMARY KEY)");
        s.source("INSERT INTO late SELECT generate_series(1, 1000)");
        // The copy of the new table has to wait for this.
        let mut lock = Session::to(&s.target_url(0));
        lock.run("BEGIN; LOCK TABLE late IN EXCLUSIVE MODE");
        s.source("ALTER PUBLICATION p ADD TABLE late");
        s.wait_for_log("copying 1 tables that were added");
        s.source("UPDATE old SET n = 1; DELETE FROM late WHERE id <= 10; INSERT INTO late VALUES (0)");
        s.catch_up();
        s.same_table("old");
        assert_eq!(s.target_one("SELECT count(*) FROM late"), "0");
        lock.run("COMMIT");
        wait_until_joined(s, "late");
        s.catch_up();
        s.same();
    });
}

#[test]
fn c1_a_kill_while_a_table_joins_copies_it_anew() {
    scenario_with(&[&["--refresh-interval", "200ms", "--copy-split-bytes", "100kB"]], |s| {
        publish_some(s);
        s.both("CREATE TABLE late (id int PRIMARY KEY, pad text)");
        s.source("INSERT INTO late SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i");
        let mut lock = Session::to(&s.target_url(0));
        lock.run("BEGIN; LOCK TABLE pgsluice.copied_table IN SHARE MODE");
        s.source("ALTER PUBLICATION p ADD TABLE late");
        s.source("UPDATE old SET n = 2");
        s.kill();
        lock.run("COMMIT");
        s.source("DELETE FROM late WHERE id % 3 = 0; UPDATE old SET n = 3");
        // Killed again when its rows are there and it has not joined.
        s.run();
        wait_until_joined(s, "late");
        s.kill();
        s.source("UPDATE late SET pad = 'y' WHERE id % 5 = 0");
        s.run();
        s.catch_up();
        s.same();
    });
}

#[test]
fn a_table_that_is_dropped_and_added_again() {
    scenario_with(OFTEN, |s| {
        publish_some(s);
        s.both("CREATE TABLE late (id int PRIMARY KEY)");
        s.source("ALTER PUBLICATION p ADD TABLE late");
        wait_until_joined(s, "late");
        s.source("INSERT INTO late VALUES (1)");
        s.catch_up();
        s.same();
        s.source("ALTER PUBLICATION p DROP TABLE late");
        s.wait_for_log("no longer in the publication");
        s.source("INSERT INTO late VALUES (2)");
        s.catch_up();
        assert_eq!(s.target_one("SELECT count(*) FROM late"), "1");
        // Its row would collide with the copied one.
        s.source("ALTER PUBLICATION p ADD TABLE late");
        s.wait_for_log("holds rows already");
        let refreshed = s.call(0, &["refresh"]);
        assert_eq!(refreshed.status.code(), Some(6), "{refreshed:?}");
        assert!(refreshed.stdout.contains("TRUNCATE \"public\".\"late\""), "{refreshed:?}");
        s.source("UPDATE old SET n = 7");
        s.catch_up();
        s.same_table("old");
        s.target("TRUNCATE late");
        wait_until_joined(s, "late");
        s.source("INSERT INTO late VALUES (3)");
        s.catch_up();
        s.same();
    });
}

/// What was written before a table was dropped from the publication comes, however late.
#[test]
fn a_table_that_is_dropped_gets_what_was_written_before() {
    scenario_with(&[&["--refresh-interval", "100ms"]], |s| {
        publish_some(s);
        s.both("CREATE TABLE late (id int PRIMARY KEY)");
        s.source("ALTER PUBLICATION p ADD TABLE late");
        wait_until_joined(s, "late");
        let mut lock = Session::to(&s.target_url(0));
        lock.run("BEGIN; LOCK TABLE late IN EXCLUSIVE MODE");
        s.source("INSERT INTO late VALUES (1)");
        s.source("ALTER PUBLICATION p DROP TABLE late");
        s.call(0, &["refresh"]).expect_success();
        // The change stays held up for a while; the refresh may come to it at any instant.
        std::thread::sleep(Duration::from_millis(500));
        lock.run("COMMIT");
        s.wait_for_log("no longer in the publication");
        assert_eq!(s.target_one("SELECT count(*) FROM late"), "1");
        s.source("INSERT INTO late VALUES (2)");
        s.catch_up();
        assert_eq!(s.target_one("SELECT count(*) FROM late"), "1");
    });
}

/// FOR ALL TABLES: a table that the target lacks stops no other, and joins once it exists.
#[test]
fn a_new_table_is_taken_up_when_the_target_has_it() {
    scenario(|s| {
        s.both("CREATE TABLE old (id int PRIMARY KEY)");
        s.follow();
        s.source("CREATE TABLE late (id int PRIMARY KEY, \"Größe\" int); INSERT INTO late VALUES (1, 2)");
        s.source("INSERT INTO old VALUES (1)");
        s.catch_up();
        for number in 0..s.followers() {
            let refreshed = s.call(number, &["refresh"]);
            assert_eq!(refreshed.status.code(), Some(6), "{refreshed:?}");
            assert!(refreshed.stdout.contains("the target has no table of this name"), "{refreshed:?}");
        }
        s.target("CREATE TABLE late (id int PRIMARY KEY)");
        let refreshed = s.call(0, &["refresh"]);
        assert!(refreshed.stdout.contains("has no column \"Größe\""), "{refreshed:?}");
        s.target("ALTER TABLE late ADD \"Größe\" int");
        for number in 0..s.followers() {
            assert_eq!(s.call(number, &["refresh"]).status.code(), Some(0));
        }
        wait_until_joined(s, "late");
        s.source("UPDATE late SET \"Größe\" = 3; INSERT INTO late VALUES (4, 5)");
        s.catch_up();
        s.same();
        assert_eq!(s.call(0, &["refresh"]).status.code(), Some(0));
    });
}

/// Values come as text once a type is among them whose binary form means nothing elsewhere.
#[test]
fn c3_a_new_table_whose_types_do_not_travel_in_binary() {
    scenario_with(&[FOLDED, ONE_BY_ONE], |s| {
        s.both("CREATE TABLE old (id int PRIMARY KEY)");
        s.follow();
        // Its id differs between the ends.
        s.target("CREATE TYPE other AS (x int)");
        s.both("CREATE TYPE pair AS (a int, b text); CREATE TABLE late (id int PRIMARY KEY, p pair[])");
        s.source("INSERT INTO late VALUES (1, ARRAY[ROW(1, 'x')::pair])");
        for number in 0..s.followers() {
            s.call(number, &["refresh"]);
        }
        wait_until_joined(s, "late");
        s.source("INSERT INTO late VALUES (2, ARRAY[ROW(2, 'y')::pair]); INSERT INTO old VALUES (1)");
        s.catch_up();
        s.same();
    });
}

/// Without the first copy a new table takes part as it is.
#[test]
fn copy_data_off_joins_at_once() {
    scenario_with(&[&["--refresh-interval", "200ms", "--copy-data", "off"]], |s| {
        s.both("CREATE TABLE old (id int PRIMARY KEY, n int)");
        s.publish("FOR TABLE old, mark");
        s.run();
        s.wait_for_copy();
        s.catch_up();
        s.both("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)");
        s.source("ALTER PUBLICATION p ADD TABLE late");
        wait_until_joined(s, "late");
        s.source("INSERT INTO late VALUES (2)");
        s.catch_up();
        s.same();
    });
}

/// A table joins right behind a transaction that wrote only that table. What the same message of
/// the stream brings behind the transaction is not lost.
#[test]
fn c1_what_comes_behind_a_transaction_of_the_joining_table_is_not_lost() {
    for mode in ["logical", "wal"] {
        scenario_with(&[&["--refresh-interval", "200ms", "--source-mode", mode]], |s| {
            publish_some(s);
            s.both("CREATE TABLE late (id int PRIMARY KEY, n int)");
            let mut lock = Session::to(&s.target_url(0));
            lock.run("BEGIN; LOCK TABLE late IN EXCLUSIVE MODE");
            s.source("INSERT INTO late VALUES (0, 0); ALTER PUBLICATION p ADD TABLE late");
            let copying = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND \
                           relation = 'late'::regclass)";
            wait_for("the copy", BOUND, || Ok(s.target_one(copying) == "t")).unwrap();
            // It passes while the copy ends, and with it come transactions of another table.
            s.source("INSERT INTO late SELECT i, i FROM generate_series(1, 50000) i");
            for _ in 0..50 {
                s.source("UPDATE old SET n = n + 1 WHERE id <= 3");
            }
            lock.run("COMMIT");
            wait_until_joined(s, "late");
            s.catch_up();
            s.same();
        });
    }
}
