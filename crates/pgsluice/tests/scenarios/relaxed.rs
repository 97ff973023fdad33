//! `commit_order = relaxed`: independent transactions may overtake, dependent ones do not, and
//! after any kill each transaction is there once.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::wait_for;

use crate::support::{BOUND, Scenario, Session, scenario_alone, scenario_with};

/// Small chunks: transactions of more than 100 rows, or 40, stand aside.
const RELAXED: &[&[&str]] = &[
    &[
        "PGSLUICE_COMMIT_ORDER=relaxed",
        "--max-parallel-apply-workers-per-subscription",
        "4",
        "--batch-rows-max",
        "400",
    ],
    &[
        "PGSLUICE_COMMIT_ORDER=relaxed",
        "--max-parallel-apply-workers-per-subscription",
        "2",
        "--batch-rows-max",
        "160",
        "--binary",
        "off",
        "--streaming",
        "off",
    ],
];
const BOTH_ORDERS: &[&[&str]] = &[
    &[
        "PGSLUICE_COMMIT_ORDER=relaxed",
        "--max-parallel-apply-workers-per-subscription",
        "4",
        "--batch-rows-max",
        "400",
    ],
    &[
        "--commit-order",
        "preserve",
        "--max-parallel-apply-workers-per-subscription",
        "4",
        "--batch-rows-max",
        "400",
    ],
    &["--commit-order", "relaxed", "--batch-rows-max", "400"],
];
const FIRST: usize = 0;
const PRESERVED: usize = 1;
/// With as many sessions as it has by itself.
const BY_DEFAULT: usize = 2;

fn total(s: &Scenario, number: usize, what: &str) -> u64 {
    s.status(number)["totals"][what].as_u64().unwrap()
}

/// A session of each target that holds a row, so that the transaction that writes it does not end.
fn held(s: &Scenario, lock: &str) -> Vec<Session> {
    let hold = |number| {
        let mut session = Session::to(&s.target_url(number));
        session.run("BEGIN");
        session.run(lock);
        session
    };
    (0..s.followers()).map(hold).collect()
}

fn let_go(mut holders: Vec<Session>) {
    holders.iter_mut().for_each(|holder| holder.run("COMMIT"));
}

#[track_caller]
fn wait_for_target(s: &Scenario, number: usize, what: &str, sql: &str) {
    let seen = wait_for(what, BOUND, || Ok(s.target_one_of(number, sql) == "t"));
    seen.unwrap_or_else(|error| panic!("{error:#}, follower {number}: {sql}\n{}", s.log(number)));
}

/// Waits until what follower `number` was sent so far is in chunks: what comes later is in others.
#[track_caller]
fn handed_over(s: &Scenario, number: usize, position: u64) {
    wait_for("what came to be handed over", BOUND, || Ok(s.position(number, "handed") > position)).unwrap();
}

const WAITS: &str = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
                      AND application_name LIKE '%apply' AND wait_event_type = 'Lock'";

/// While a transaction waits for a session of the target, later independent ones are visible in
/// `relaxed` and never in `preserve`. Those that depend on it are visible in neither.
#[test]
fn p1_overtaking_is_seen_in_relaxed_and_never_in_preserve() {
    scenario_with(BOTH_ORDERS, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i");
        s.follow();
        let relaxed = [FIRST, BY_DEFAULT];
        let holders = held(s, "SELECT FROM t WHERE id = 1 FOR UPDATE");
        s.source("UPDATE t SET n = 1 WHERE id = 1");
        (0..s.followers()).for_each(|number| wait_for_target(s, number, "the first to wait", WAITS));
        // The first of these depends on it by its row, the second on the first of these by another.
        let before = s.source_position();
        s.source("UPDATE t SET n = 2 WHERE id IN (1, 2)");
        relaxed.iter().for_each(|number| handed_over(s, *number, before));
        let before = s.source_position();
        s.source("UPDATE t SET n = 3 WHERE id = 2");
        relaxed.iter().for_each(|number| handed_over(s, *number, before));
        for id in 3..=40 {
            s.source(&format!("UPDATE t SET n = 4 WHERE id = {id}"));
        }
        let untouched = "SELECT count(*) = 2 FROM t WHERE id IN (1, 2) AND n = 0";
        for number in relaxed {
            wait_for_target(s, number, "overtaking", "SELECT count(*) = 38 FROM t WHERE n = 4");
            assert!(total(s, number, "out_of_order") > 0);
            assert_eq!(s.target_one_of(number, untouched), "t", "a dependent one overtook");
        }
        assert_eq!(s.target_one_of(PRESERVED, "SELECT max(n) FROM t"), "0", "something overtook");
        // Everything before the first is there and nothing else is reported.
        relaxed.iter().for_each(|number| assert!(s.applied(*number) < before));
        let_go(holders);
        s.catch_up();
        s.same();
        relaxed.iter().for_each(|number| assert!(s.applied(*number) > before));
        assert_eq!(total(s, PRESERVED, "out_of_order"), 0);
    });
}

/// Small transactions pass one that is larger than any batch and does not end. Those that touch its
/// rows wait.
#[test]
fn a2_a_large_transaction_is_overtaken_by_small_independent_ones() {
    scenario_with(RELAXED, |s| {
        s.both(
            "CREATE TABLE big (id int PRIMARY KEY, n int NOT NULL); CREATE TABLE log (n int); \
             CREATE TABLE small (id int PRIMARY KEY, n int NOT NULL)",
        );
        s.source("INSERT INTO big SELECT i, 0 FROM generate_series(1, 3000) i");
        s.source("INSERT INTO small SELECT i, 0 FROM generate_series(1, 50) i");
        s.follow();
        let holders = held(s, "SELECT FROM big WHERE id = 2500 FOR UPDATE");
        s.source("UPDATE big SET n = 1 WHERE id <= 2900; INSERT INTO log VALUES (0)");
        (0..s.followers()).for_each(|number| wait_for_target(s, number, "the large one to wait", WAITS));
        // One of its rows; of the same table beside it; of another; and without any key.
        let before = s.source_position();
        s.source("UPDATE big SET n = 2 WHERE id = 7");
        (0..s.followers()).for_each(|number| handed_over(s, number, before));
        s.source("UPDATE big SET n = 3 WHERE id = 2950");
        for id in 1..=50 {
            s.source(&format!("UPDATE small SET n = {id} WHERE id = {id}; INSERT INTO log VALUES ({id})"));
        }
        for number in 0..s.followers() {
            let passed = "SELECT (SELECT count(*) FROM small WHERE n = id) = 50 \
                            AND (SELECT n FROM big WHERE id = 2950) = 3";
            wait_for_target(s, number, "small ones to pass", passed);
            let behind =
                "SELECT (SELECT max(n) FROM big WHERE id <= 2900) = 0 AND (SELECT count(*) FROM log) = 50";
            assert_eq!(
                s.target_one_of(number, behind),
                "t",
                "what depends on it passed, or a part of it was seen"
            );
            assert!(total(s, number, "out_of_order") > 0);
        }
        let_go(holders);
        s.catch_up();
        s.same();
    });
}

/// Transactions that passed one that never ended are not applied again, by the same process or by
/// one that keeps the order.
#[test]
fn p1_what_was_committed_ahead_is_passed_over_after_a_kill() {
    scenario_with(RELAXED, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL); CREATE TABLE ledger (n int)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i");
        s.follow();
        for round in 1..=4 {
            let holders = held(s, "SELECT FROM t WHERE id = 1 FOR UPDATE");
            s.source(&format!("UPDATE t SET n = {round} WHERE id = 1; INSERT INTO ledger VALUES ({round})"));
            (0..s.followers()).for_each(|number| wait_for_target(s, number, "the first to wait", WAITS));
            s.source("UPDATE t SET n = n + 1 WHERE id = 2; INSERT INTO ledger VALUES (0)");
            s.source("UPDATE t SET n = n + 1 WHERE id = 3; INSERT INTO ledger VALUES (0)");
            let passed = format!("SELECT count(*) = 2 FROM t WHERE id IN (2, 3) AND n = {round}");
            (0..s.followers()).for_each(|number| wait_for_target(s, number, "overtaking", &passed));
            s.kill();
            let gaps = "SELECT count(*) > 0 FROM pgsluice.ahead";
            assert_eq!(s.target_one(gaps), "t", "nothing says what was committed ahead");
            let_go(holders);
            if round % 2 == 0 {
                // A flag is stronger than the environment.
                s.run_with(|command| {
                    command.args(["--commit-order", "preserve"]);
                });
                s.catch_up();
                s.stop();
            }
            s.follow();
            s.same();
        }
    });
}

/// pgsluice is killed again and again while large, dependent and independent transactions come.
/// Some depend on each other only by a unique value that one frees and the next takes.
#[test]
fn p1_killed_at_any_instant_each_transaction_is_there_once() {
    let seed = std::env::var("PGSLUICE_CRASH_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    println!("PGSLUICE_CRASH_SEED={seed}");
    scenario_with(RELAXED, |s| {
        let mut random = StdRng::seed_from_u64(seed);
        s.both(
            "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, n int NOT NULL); CREATE TABLE ledger (n int); \
             CREATE TABLE big (id int PRIMARY KEY, n int NOT NULL)",
        );
        s.source("INSERT INTO t SELECT i, i, 0 FROM generate_series(1, 200) i");
        s.source("INSERT INTO big SELECT i, 0 FROM generate_series(1, 600) i");
        s.follow();
        for round in 0..6 {
            let small = format!(
                "DO $$ BEGIN FOR i IN 1 .. 250 LOOP \
                   UPDATE t SET n = n + 1 WHERE id = 1 + i * 37 % 200; INSERT INTO ledger VALUES (i); COMMIT; \
                   IF i % 10 = 0 THEN UPDATE t SET u = -u WHERE id = 1 + i % 200; COMMIT; \
                     UPDATE t SET u = -u WHERE id = 1 + i % 200; COMMIT; END IF; \
                   IF i % 25 = {round} THEN DELETE FROM t WHERE id = 1 + i % 100; COMMIT; \
                     INSERT INTO t VALUES (1000 + i, 1 + i % 100, i); COMMIT; DELETE FROM t WHERE id = 1000 + i; COMMIT; \
                     INSERT INTO t VALUES (1 + i % 100, 1 + i % 100, i); COMMIT; END IF; \
                 END LOOP; END $$"
            );
            s.source(&format!("UPDATE big SET n = n + 1; INSERT INTO ledger VALUES ({round})"));
            s.source(&small);
            s.source("UPDATE big SET n = n + 1 WHERE id % 2 = 0; INSERT INTO ledger SELECT 0 FROM generate_series(1, 200)");
            // Any instant will do, and a random one finds more of them.
            std::thread::sleep(Duration::from_millis(random.random_range(0..700)));
            s.kill();
            s.run();
        }
        s.catch_up();
        s.same();
        for number in 0..s.followers() {
            let replicas = "SELECT count(*) FROM pgsluice.ahead";
            wait_for("stretches to be forgotten", BOUND, || Ok(s.target_one_of(number, replicas) == "0"))
                .unwrap();
            assert_eq!(total(s, number, "errors"), 0, "{}", s.log(number));
        }
        for kind in ["insert_exists", "update_missing", "delete_missing", "update_exists"] {
            assert_eq!(s.conflicts(kind), 0, "{kind}");
        }
    });
}

/// A transaction that fails is reported when all before it is there. Transactions that passed it
/// stay, and after it was skipped nothing else is missing.
#[test]
fn a1_a_failing_transaction_may_be_passed_and_is_skipped_alone() {
    scenario_with(RELAXED, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 40) i");
        s.follow();
        s.stop();
        s.target("INSERT INTO t VALUES (100, -1)");
        s.source("UPDATE t SET n = 1 WHERE id = 1");
        s.source("INSERT INTO t VALUES (100, 0), (101, 0)");
        s.source("UPDATE t SET n = 1 WHERE id = 101");
        for id in 2..=40 {
            s.source(&format!("UPDATE t SET n = 1 WHERE id = {id}"));
        }
        s.run();
        s.wait_for_log("conflict=insert_exists");
        assert_eq!(s.target_one("SELECT n FROM t WHERE id = 1"), "1", "what comes before it was not applied");
        assert_eq!(s.target_one("SELECT n FROM t WHERE id = 100"), "-1");
        assert_eq!(
            s.target_one("SELECT count(*) FROM t WHERE id = 101"),
            "0",
            "what depends on it passed it"
        );
        for number in 0..s.followers() {
            let log = s.log(number);
            let (_, rest) = log.rsplit_once("pgsluice skip --lsn ").expect("the error says what to skip");
            let lsn: String = rest.chars().take_while(|c| c.is_ascii_hexdigit() || *c == '/').collect();
            s.call(number, &["skip", "--lsn", &lsn]).expect_success();
        }
        s.catch_up();
        s.same_as("t", "SELECT * FROM t WHERE id <= 40 UNION ALL VALUES (100, -1)");
        assert_eq!(s.conflicts("update_missing"), 1, "101 was skipped with its INSERT");
    });
}

/// A native subscription goes on from one position: what lies beyond a gap would be applied again.
#[test]
fn p1_what_was_committed_ahead_is_not_released() {
    scenario_alone(
        &[&[]],
        |source| source,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY)");
            s.publish("FOR ALL TABLES");
            let name = s.name(0).to_owned();
            s.target(&format!("CREATE SUBSCRIPTION {name} CONNECTION '{}' PUBLICATION p", s.source_url()));
            let ready = "SELECT (count(*) = 2 AND bool_and(srsubstate = 'r'))::text FROM pg_subscription_rel";
            wait_for("the native copy", BOUND, || Ok(s.target_one(ready) == "true")).unwrap();
            s.call(0, &["adopt", "--prepare-only"]).expect_success();
            s.target(
                "INSERT INTO pgsluice.ahead SELECT name, 'FFFF/0', 'FFFF/100' FROM pgsluice.subscription",
            );
            let refused = s.call(0, &["release"]);
            assert!(!refused.status.success(), "{refused:?}");
            assert!(refused.stderr.contains("--commit-order preserve"), "{refused:?}");
            s.target("DELETE FROM pgsluice.ahead");
            s.call(0, &["release"]).expect_success();
        },
    );
}
