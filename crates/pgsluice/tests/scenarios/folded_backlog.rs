//! Changes that gather while the target is busy are folded as they come and written once. Nothing
//! of them is lost or hidden.

use testkit::wait_for;

use crate::support::{BOUND, Scenario, Session, scenario_with};

/// Batches are full at 500 changes, so that there are many of them.
const SMALL: &[&[&str]] = &[&["--batch-rows-max", "2000"], &["--batch-rows-max", "2000", "--binary", "off"]];
const ROWS: u32 = 300;
const UPDATES: u64 = 20_000;

/// The table on both ends, and its target locked by somebody else.
fn blocked(s: &mut Scenario) -> Vec<Session> {
    s.both("CREATE TABLE t (id int PRIMARY KEY, n int, v text)");
    s.source(&format!("INSERT INTO t SELECT i, 0, 'v' FROM generate_series(1, {ROWS}) i"));
    s.follow();
    let lock = |number| {
        let mut session = Session::to(&s.target_url(number));
        session.run("BEGIN; LOCK TABLE t IN SHARE MODE");
        session
    };
    (0..s.followers()).map(lock).collect()
}

/// Single-row updates, each a transaction; every row is written again and again.
fn write(s: &Scenario) {
    s.source(&format!(
        "DO $$ BEGIN FOR i IN 1 .. {UPDATES} LOOP \
         UPDATE t SET n = n + 1, v = repeat(i::text, 20) WHERE id = 1 + i % {ROWS}; COMMIT; END LOOP; END $$"
    ));
}

/// Waits until all that the source has written so far waits in front of the locked table.
#[track_caller]
fn wait_for_receipt(s: &Scenario) {
    let end = s.source_one("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn");
    let end: u64 = end.parse().unwrap();
    for number in 0..s.followers() {
        let received = wait_for("the changes to be received", BOUND, || {
            let status = s.status(number);
            let lsn: base::Lsn = status["received"].as_str().unwrap_or("0/0").parse()?;
            Ok(lsn.as_u64() >= end)
        });
        assert!(received.is_ok(), "{received:?}: {}", s.status(number));
    }
}

fn total(s: &Scenario, number: usize, what: &str) -> u64 {
    s.status(number)["totals"][what].as_u64().unwrap()
}

#[test]
fn f1_what_gathers_while_the_target_is_busy_is_written_once() {
    scenario_with(SMALL, |s| {
        let locks = blocked(s);
        let before: Vec<(u64, u64)> = (0..s.followers())
            .map(|number| (total(s, number, "batches"), total(s, number, "rows_written")))
            .collect();
        write(s);
        wait_for_receipt(s);
        locks.into_iter().for_each(|mut lock| lock.run("ROLLBACK"));
        s.catch_up();
        s.same();
        for (number, before) in before.into_iter().enumerate() {
            assert_eq!(total(s, number, "updates"), UPDATES);
            let (batches, rows) =
                (total(s, number, "batches") - before.0, total(s, number, "rows_written") - before.1);
            // The batch that was blocked, what gathered behind it, the mark.
            assert!(batches <= 5, "{batches} batches of {UPDATES} transactions");
            assert!(rows <= 3 * u64::from(ROWS), "{rows} rows written for {UPDATES} updates of {ROWS} rows");
            assert_eq!(total(s, number, "replays"), 0);
        }
    });
}

#[test]
fn f4_a_conflict_in_what_gathered_is_found_where_it_happened() {
    scenario_with(SMALL, |s| {
        let locks = blocked(s);
        for (number, mut lock) in locks.into_iter().enumerate() {
            if number == 0 {
                write(s);
                wait_for_receipt(s);
            }
            lock.run("DELETE FROM t WHERE id = 77; COMMIT");
        }
        s.catch_up();
        let expected = (1..=UPDATES).filter(|i| 1 + i % u64::from(ROWS) == 77).count() as u64;
        assert_eq!(s.conflicts("update_missing"), expected);
        let rows = "SELECT md5(string_agg(t::text, ' ' ORDER BY id)) FROM t";
        assert_eq!(s.target_one(rows), s.source_one(&format!("{rows} WHERE id <> 77")));
    });
}

/// A transaction that cannot be applied, among thousands that were put aside.
#[test]
fn what_gathered_can_be_skipped_by_transaction() {
    scenario_with(SMALL, |s| {
        let locks = blocked(s);
        s.target("ALTER TABLE mark ADD CONSTRAINT no_seven CHECK (id <> 7)");
        write(s);
        s.source("INSERT INTO mark VALUES (7)");
        write(s);
        wait_for_receipt(s);
        locks.into_iter().for_each(|mut lock| lock.run("ROLLBACK"));
        s.wait_for_log("no_seven");
        let lsn = |number| {
            let log = s.log(number);
            let at = log.split("finished at ").nth(1).expect("a transaction is named");
            at.split([';', ' ', ',', '\n', '.']).next().unwrap().to_owned()
        };
        for number in 0..s.followers() {
            s.call(number, &["skip", "--lsn", &lsn(number)]).expect_success();
        }
        let id = s.mark();
        s.wait_for_mark(id);
        s.same_table("t");
        for number in 0..s.followers() {
            assert_eq!(total(s, number, "skipped_transactions"), 1);
        }
    });
}

#[test]
fn a_kill_while_much_has_gathered_loses_nothing() {
    scenario_with(SMALL, |s| {
        let locks = blocked(s);
        write(s);
        wait_for_receipt(s);
        s.kill();
        locks.into_iter().for_each(|mut lock| lock.run("ROLLBACK"));
        s.run();
        s.catch_up();
        s.same();
    });
}
