//! Streamed transactions that are executed while they are open. No reader sees them before their
//! commit, and despite every obstacle the target ends equal to the source.

use testkit::wait_for;

use crate::support::{BOUND, Scenario, Session, scenario_with};

const TWO: &[&[&str]] = &[
    &[],
    &["--max-parallel-apply-workers-per-subscription", "4", "--binary", "off", "--batch-rows-max", "40"],
];
const ONE_FOLLOWER: &[&[&str]] = &[&[]];

/// Rows of 200 bytes, so that 4,000 of them are streamed.
const ROWS: &str = "INSERT INTO t SELECT i, 0, repeat('x', 200) FROM generate_series(1, 2000) i";

fn total(s: &Scenario, number: usize, what: &str) -> u64 {
    s.status(number)["totals"][what].as_u64().unwrap()
}

/// Creates a table `t` with 2,000 rows and a table `small`, and starts the followers.
fn follow(s: &mut Scenario) {
    s.both("CREATE TABLE t (id int PRIMARY KEY, n int, filler text); CREATE TABLE small (id int PRIMARY KEY, n int)");
    let db = s.source_one("SELECT current_database()");
    s.source(&format!("ALTER DATABASE {db} SET logical_decoding_work_mem = '64kB'"));
    s.source(ROWS);
    s.source("INSERT INTO small SELECT i, 0 FROM generate_series(1, 20) i");
    s.follow();
}

/// Whether an apply session has an open transaction.
const OPEN: &str = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
                    AND application_name LIKE '%apply' AND state = 'idle in transaction' AND backend_xid IS NOT NULL";

/// Whether an apply session waits for a lock.
const BLOCKED: &str = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
                       AND application_name LIKE '%apply' AND wait_event_type = 'Lock'";

#[track_caller]
fn wait_for_targets(s: &Scenario, what: &str, sql: &str) {
    for number in 0..s.followers() {
        let seen = wait_for(what, BOUND, || Ok(s.target_one_of(number, sql) == "t"));
        seen.unwrap_or_else(|error| panic!("{error:#}, follower {number}: {sql}\n{}", s.log(number)));
    }
}

/// Opens a transaction on the source that has written `t`, and waits until it is open on the
/// targets, too.
#[track_caller]
fn open(s: &Scenario) {
    s.source_in("large", "BEGIN");
    s.source_in("large", "UPDATE t SET n = 1");
    wait_until_open(s);
}

#[track_caller]
fn wait_until_open(s: &Scenario) {
    wait_until(s, "the transaction to be executed early", OPEN);
}

/// Waits until `sql` is true on every target. A walsender considers streaming only when it decodes
/// something after its start position, so this writes meanwhile.
#[track_caller]
fn wait_until(s: &Scenario, what: &str, sql: &str) {
    for number in 0..s.followers() {
        let seen = wait_for(what, BOUND, || {
            s.source("UPDATE small SET n = n + 1 WHERE id = 20");
            Ok(s.target_one_of(number, sql) == "t")
        });
        seen.unwrap_or_else(|error| panic!("{error:#}, follower {number}\n{}", s.log(number)));
    }
}

#[test]
fn a_streamed_transaction_is_executed_while_it_is_open() {
    scenario_with(TWO, |s| {
        follow(s);
        let before = (0..s.followers()).map(|number| total(s, number, "ahead")).collect::<Vec<_>>();
        open(s);
        // Other transactions continue, and do not see it.
        for number in 1..=20 {
            s.source(&format!("UPDATE small SET n = {number} WHERE id = {number}"));
        }
        wait_for_targets(s, "the small ones", "SELECT sum(n) = 210 FROM small");
        assert_eq!(s.target_one("SELECT sum(n) FROM t"), "0");
        wait_for_targets(s, "it to be open still", OPEN);
        s.source_in(
            "large",
            "INSERT INTO t SELECT i, 2, repeat('y', 200) FROM generate_series(2001, 4000) i",
        );
        s.source_in("large", "DELETE FROM t WHERE id % 3 = 0");
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
        for (number, before) in before.into_iter().enumerate() {
            assert!(total(s, number, "ahead") > before, "{}", s.status(number));
            assert_eq!((total(s, number, "replays"), total(s, number, "errors")), (0, 0));
        }
    });
}

#[test]
fn what_is_aborted_leaves_nothing() {
    scenario_with(TWO, |s| {
        follow(s);
        open(s);
        s.source_in("large", "ROLLBACK");
        s.catch_up();
        wait_for_targets(s, "it to be rolled back", &format!("SELECT NOT ({OPEN})"));
        s.same();
        // And the next is executed early again.
        open(s);
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
    });
}

#[test]
fn an_aborted_part_is_passed_over() {
    scenario_with(TWO, |s| {
        follow(s);
        open(s);
        s.source_in("large", "SAVEPOINT a");
        s.source_in("large", "UPDATE t SET n = 3");
        s.source("UPDATE small SET n = n + 1 WHERE id = 20");
        s.catch_up();
        s.source_in("large", "ROLLBACK TO a");
        s.source_in("large", "UPDATE t SET n = n + 4 WHERE id <= 1500");
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
        assert_eq!(s.target_one("SELECT sum(n) FROM t"), "8000");
    });
}

/// Changes that are written one row at a time, and those that lock a whole table, wait for their
/// turn.
#[test]
fn triggers_and_truncate_wait_for_their_turn() {
    scenario_with(TWO, |s| {
        follow(s);
        s.target(
            "CREATE TABLE log (n int); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN INSERT INTO public.log VALUES (NEW.n); RETURN NEW; END'; \
             CREATE TRIGGER note AFTER UPDATE ON small FOR EACH ROW EXECUTE FUNCTION note(); \
             ALTER TABLE small ENABLE ALWAYS TRIGGER note",
        );
        s.source("INSERT INTO small VALUES (21, 0)");
        s.catch_up();
        s.source_in("large", "BEGIN");
        s.source_in(
            "large",
            "UPDATE t SET n = 1; UPDATE small SET n = 7; TRUNCATE small; INSERT INTO small VALUES (1, 1)",
        );
        s.source_in("large", "UPDATE t SET n = 2");
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
        assert_eq!(s.target_one("SELECT count(*) FROM log WHERE n = 7"), "21");
    });
}

/// A row is missing on the target: the conflict is reported once, in the transaction's turn.
#[test]
fn a1_a_conflict_is_reported_in_its_turn_and_once() {
    scenario_with(ONE_FOLLOWER, |s| {
        follow(s);
        s.target("DELETE FROM t WHERE id = 1000");
        s.source_in("large", "BEGIN");
        s.source_in("large", "UPDATE t SET n = 1");
        s.source("UPDATE small SET n = 1");
        s.catch_up();
        assert_eq!(s.conflicts("update_missing"), 0);
        s.source_in("large", "COMMIT");
        s.catch_up();
        assert_eq!(s.conflicts("update_missing"), 1);
        s.same_as("t", "SELECT * FROM t WHERE id <> 1000");
        s.same_table("small");
    });
}

/// The head waits for a session of the target, which waits for a row that the open transaction has
/// written.
#[test]
fn a3_who_waits_for_what_was_written_early_is_let_go() {
    scenario_with(ONE_FOLLOWER, |s| {
        let db = {
            follow(s);
            s.target_one("SELECT current_database()")
        };
        s.stop();
        s.target(&format!("ALTER DATABASE {db} SET deadlock_timeout = '10min'"));
        s.run();
        open(s);
        let mut holder = Session::to(&s.target_url(0));
        holder.run("BEGIN; SELECT FROM small WHERE id = 1 FOR UPDATE");
        s.source("UPDATE small SET n = 5 WHERE id = 1");
        wait_for_targets(s, "the head to wait", BLOCKED);
        // Waits for a row of the open transaction; then releases the head's row.
        holder.run("SELECT FROM t WHERE id = 1 FOR UPDATE; COMMIT");
        s.catch_up();
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
        assert_eq!(total(s, 0, "errors"), 0);
    });
}

/// The open transaction has taken a unique value that a transaction with an earlier commit needs.
#[test]
fn a3_a_unique_value_that_was_taken_early_is_given_back() {
    scenario_with(ONE_FOLLOWER, |s| {
        follow(s);
        s.source("UPDATE t SET n = -id");
        s.catch_up();
        s.target("CREATE UNIQUE INDEX ON t (n)");
        s.source_in("large", "BEGIN");
        s.source_in("large", "UPDATE t SET n = 10000 + id WHERE id > 5");
        wait_until_open(s);
        s.source("UPDATE t SET n = 10100 WHERE id = 1");
        s.source("UPDATE t SET n = 0 WHERE id = 1");
        s.catch_up();
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
        assert_eq!((total(s, 0, "errors"), s.conflicts("update_exists")), (0, 0));
    });
}

#[test]
fn what_was_executed_early_does_not_outlive_a_kill() {
    scenario_with(TWO, |s| {
        follow(s);
        open(s);
        s.kill();
        wait_for_targets(s, "its session to end", &format!("SELECT NOT ({OPEN})"));
        assert_eq!(s.target_one("SELECT sum(n) FROM t"), "0");
        s.run();
        wait_until_open(s);
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
        s.stop();
    });
}

#[test]
fn what_is_stopped_ends_in_time() {
    scenario_with(TWO, |s| {
        follow(s);
        open(s);
        s.stop();
        assert_eq!(s.target_one("SELECT sum(n) FROM t"), "0");
        s.run();
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
    });
}

/// A transaction that the source has aborted waits for a session of the target, and the next large
/// one needs its worker.
#[test]
fn what_was_abandoned_keeps_nobody_waiting() {
    scenario_with(ONE_FOLLOWER, |s| {
        s.both("CREATE TABLE u (id int PRIMARY KEY, n int, filler text)");
        s.source("INSERT INTO u SELECT i, 0, repeat('x', 200) FROM generate_series(1, 2000) i");
        follow(s);
        let mut holder = Session::to(&s.target_url(0));
        holder.run("BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE");
        s.source_in("large", "BEGIN");
        s.source_in("large", "UPDATE t SET n = 1");
        wait_until(s, "it to wait for the lock", BLOCKED);
        s.source_in("large", "ROLLBACK");
        s.source_in("large", "BEGIN");
        s.source_in("large", "UPDATE u SET n = 1");
        s.source_in("large", "UPDATE u SET n = n + 1");
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same_table("u");
        holder.run("COMMIT");
        s.same();
        assert_eq!(total(s, 0, "errors"), 0);
    });
}

/// A transaction that the source has aborted is rolled back, although it still waits for a lock.
#[test]
fn a3_what_was_abandoned_lets_go_of_its_locks() {
    scenario_with(ONE_FOLLOWER, |s| {
        follow(s);
        let mut holder = Session::to(&s.target_url(0));
        holder.run("BEGIN; SELECT FROM t WHERE id = 2000 FOR UPDATE");
        s.source_in("large", "BEGIN");
        s.source_in("large", "UPDATE t SET n = 1 WHERE id < 2000");
        wait_until_open(s);
        s.source_in("large", "UPDATE t SET n = 2");
        wait_until(s, "it to wait for the lock", BLOCKED);
        s.source_in("large", "ROLLBACK");
        s.source("UPDATE small SET n = 0");
        wait_for_targets(s, "it to be rolled back", &format!("SELECT NOT ({BLOCKED})"));
        s.target("BEGIN; SET LOCAL lock_timeout = '5s'; UPDATE t SET n = 0 WHERE id = 1; COMMIT");
        holder.run("COMMIT");
        s.catch_up();
        s.same();
        assert_eq!(total(s, 0, "errors"), 0);
    });
}

/// A session of the target waits for the open transaction, and no apply session waits for that
/// session.
#[test]
fn a3_a_session_of_the_target_does_not_wait_for_the_sources_commit() {
    scenario_with(TWO, |s| {
        follow(s);
        open(s);
        for number in 0..s.followers() {
            let mut local = Session::to(&s.target_url(number));
            // Far longer than the server's deadlock_timeout, after which the open transaction is
            // rolled back.
            local.run("BEGIN; SET LOCAL lock_timeout = '60s'; SELECT FROM t WHERE id = 1 FOR UPDATE; COMMIT");
        }
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
        for number in 0..s.followers() {
            assert_eq!(total(s, number, "errors"), 0);
        }
    });
}

/// Within one transaction, a table gets a second description, and then the first again. Each change
/// must use its own.
#[test]
fn a_table_that_changes_and_changes_back_is_written_in_order() {
    scenario_with(TWO, |s| {
        follow(s);
        s.source_in("large", "BEGIN");
        for (identity, n) in [("DEFAULT", 1), ("FULL", 2), ("DEFAULT", 3), ("FULL", 4), ("DEFAULT", 5)] {
            s.source_in("large", &format!("ALTER TABLE t REPLICA IDENTITY {identity}"));
            s.source_in("large", &format!("UPDATE t SET n = {n} WHERE id > 1000 - 100 * {n}"));
            s.source("UPDATE small SET n = n + 1 WHERE id = 20");
        }
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
    });
}

/// An administrator may end such an idle transaction.
#[test]
fn a_session_that_is_ended_while_it_executes_early_stops_nothing() {
    scenario_with(ONE_FOLLOWER, |s| {
        follow(s);
        open(s);
        s.target(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name LIKE '%apply' AND state = 'idle in transaction'",
        );
        s.source_in("large", "UPDATE t SET n = n + 1");
        s.source("UPDATE small SET n = 7");
        s.catch_up();
        s.source_in("large", "COMMIT");
        s.catch_up();
        s.same();
        // The next large transaction waits for its commit.
        s.source("UPDATE t SET n = 3");
        s.catch_up();
        s.same();
    });
}
