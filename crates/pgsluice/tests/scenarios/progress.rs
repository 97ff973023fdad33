//! Rules P1 to P5 and F3: exactly once, never confirmed before it is flushed, origins and their
//! timestamps.

use std::time::Duration;

use rand::Rng as _;
use testkit::{Cluster, StopMode, wait_for};

use crate::support::{BOUND, FOLDED, ONE_BY_ONE, Scenario, Session, scenario, scenario_alone, scenario_with};

/// Where the slot of follower 0 stands.
fn confirmed(s: &Scenario) -> String {
    s.source_one(&format!(
        "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{}'",
        s.slot(0)
    ))
}

/// Killed again and again, without warning, while it applies: each change is there once.
#[test]
fn p1_nothing_is_lost_or_repeated_when_it_is_killed() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE log (v text)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i");
        s.follow();
        for round in 0..8 {
            for step in 0..40 {
                s.source(&format!(
                    "UPDATE t SET n = n + 1 WHERE id % 7 = {}; INSERT INTO log VALUES ('{round} {step}')",
                    step % 7
                ));
                if step == round * 5 {
                    s.kill();
                    s.run();
                }
            }
        }
        s.catch_up();
        s.same();
        assert_eq!(s.target_one("SELECT count(*) || ' ' || count(DISTINCT v) FROM log"), "320 320");
    });
}

/// A killed process leaves its backend in the middle of a statement; the next one waits for the
/// fence.
#[test]
fn p2_a_dead_process_in_the_middle_of_a_statement_is_fenced() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE log (v int)");
        s.source("INSERT INTO t VALUES (1, 0)");
        s.follow();
        let mut holder = crate::support::Session::to(&s.target_url(0));
        holder.run("BEGIN; LOCK t");
        s.source("UPDATE t SET n = n + 1; INSERT INTO log VALUES (1)");
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        wait_for("the batch to wait for the lock", BOUND, || Ok(s.target_one(waits) == "t")).unwrap();
        s.kill();
        s.run();
        s.source("UPDATE t SET n = n + 1; INSERT INTO log VALUES (2)");
        // Time for the second process to meet the first one's backend; the test holds whenever they
        // meet.
        std::thread::sleep(Duration::from_millis(500));
        holder.run("COMMIT");
        s.catch_up();
        s.same();
    });
}

/// What is confirmed never passes what the target has flushed, whatever it has committed.
#[test]
fn p3_only_what_is_flushed_is_confirmed() {
    let slow = |builder: testkit::Builder| {
        builder.setting("wal_writer_delay", "10s").setting("wal_writer_flush_after", "1GB").durable()
    };
    scenario_alone(
        &[FOLDED],
        |source| source,
        slow,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
            s.follow();
            for round in 0..5 {
                s.source(&format!(
                    "INSERT INTO t SELECT i, 0 FROM generate_series({round} * 100 + 1, {round} * 100 + 100) i"
                ));
                s.source("UPDATE t SET n = n + 1");
                s.catch_up();
                // The target forgets what it had not flushed.
                s.pair_mut().target.kill9();
                s.pair_mut().target.start_again().unwrap();
                s.catch_up();
                s.same();
            }
        },
    );
}

/// Writes that are not for us must not pile up on the source.
#[test]
fn p4_an_idle_publication_holds_back_no_wal() {
    scenario_with(&[&["--wal-receiver-status-interval", "1s"]], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.source("CREATE TABLE noise (v text)");
        s.publish("FOR TABLE t, mark");
        s.follow();
        for _ in 0..3 {
            s.source("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 500)");
            let lsn = s.source_one("SELECT pg_current_wal_lsn()");
            s.wait_until_confirmed(&lsn);
        }
        let source = s.pair().source.url("postgres");
        let mut elsewhere = crate::support::Session::to(&source);
        elsewhere.run("SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1000000))");
        let lsn = s.source_one("SELECT pg_current_wal_lsn()");
        s.wait_until_confirmed(&lsn);
        // And it goes on from there, exactly once.
        s.backlog(&["INSERT INTO t VALUES (1)"]);
        s.kill();
        s.source("INSERT INTO t VALUES (2)");
        s.follow();
        s.same();
    });
}

/// A target that was put back to an older state is told from one that has seen everything.
#[test]
fn p4_a_restored_target_is_refused_with_the_remedy() {
    scenario_alone(
        &[&["--wal-receiver-status-interval", "1s"]],
        |source| source,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY)");
            s.follow();
            s.stop();
            s.pair_mut().target.stop(StopMode::Fast).unwrap();
            let data = s.pair().target.data_dir();
            let copy = data.with_file_name("older");
            let run = |program: &str, args: &[&std::path::Path]| {
                let options = if program == "cp" { "-a" } else { "-rf" };
                assert!(
                    std::process::Command::new(program).arg(options).args(args).status().unwrap().success()
                );
            };
            for idle in [false, true] {
                let _ = std::fs::remove_dir_all(&copy);
                run("cp", &[&data, &copy]);
                s.pair_mut().target.start_again().unwrap();
                s.follow();
                if idle {
                    // Nothing for us, but confirmed nevertheless.
                    s.source("SELECT pg_logical_emit_message(false, 'noise', repeat('x', 100000))");
                } else {
                    s.source("INSERT INTO t SELECT count(*) FROM t");
                }
                s.catch_up();
                let lsn = s.source_one("SELECT pg_current_wal_lsn()");
                s.wait_until_confirmed(&lsn);
                s.stop();
                let before = confirmed(s);
                s.pair_mut().target.stop(StopMode::Fast).unwrap();
                run("rm", &[&data]);
                run("cp", &[&copy, &data]);
                s.pair_mut().target.start_again().unwrap();
                s.run();
                let (code, log) = s.ended().remove(0);
                assert_eq!(code, 1, "{log}");
                assert!(
                    log.contains("restored from an older backup") && log.contains("drop the subscription"),
                    "{log}"
                );
                assert_eq!(confirmed(s), before);
                s.pair_mut().target.stop(StopMode::Fast).unwrap();
                // What was forgotten is gone for good: begin anew.
                s.pair_mut().target.start_again().unwrap();
                s.call(0, &["drop"]).expect_success();
                s.target("TRUNCATE t, mark");
                s.follow();
                s.same();
                s.stop();
                s.pair_mut().target.stop(StopMode::Fast).unwrap();
            }
            s.pair_mut().target.start_again().unwrap();
        },
    );
}

/// With commit timestamps on the target, each source transaction is one there, with the source's
/// commit time.
#[test]
fn f3_commit_timestamps_are_the_sources() {
    let track = |builder: testkit::Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(&[FOLDED, ONE_BY_ONE], track, track, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int, big text)");
        s.follow();
        let backlog: Vec<String> = (1..=20)
            .map(|id| format!("INSERT INTO t VALUES ({id}, 0); UPDATE t SET n = n + 1 WHERE id = {id}"))
            .collect();
        s.backlog(&backlog.iter().map(String::as_str).collect::<Vec<_>>());
        s.live(&[
            "INSERT INTO t SELECT i, 5 FROM generate_series(100, 150) i",
            "UPDATE t SET n = 9 WHERE id < 5",
        ]);
        let times = "SELECT string_agg(pg_xact_commit_timestamp(xmin)::text, ' ' ORDER BY id) FROM t";
        assert_eq!(s.target_one(times), s.source_one(times));
        // Parts of a transaction are subtransactions with ids of their own, so only whole
        // transactions can be counted.
        let transactions = "SELECT count(DISTINCT xmin::text) FROM t";
        assert_eq!(s.target_one_of(0, transactions), s.source_one(transactions));
        for number in 0..s.followers() {
            let origins = "SELECT string_agg(DISTINCT regexp_replace(o.roname, '[0-9]+$', ''), ' ') FROM t, pg_xact_commit_timestamp_origin(t.xmin) x, \
                           pg_replication_origin o WHERE o.roident = x.roident";
            assert_eq!(s.target_one_of(number, origins), format!("pgsluice_{}_", s.name(number)));
        }
    });
}

/// Transactions that are kept apart go many at a time. One that meets other rows than the source
/// had costs none of the others, and is applied as it would be alone.
#[test]
fn f3_what_one_of_many_meets_costs_the_others_nothing() {
    let track = |builder: testkit::Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(&[FOLDED], track, track, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int, u int UNIQUE); CREATE TABLE nokey (v int)");
        s.both("CREATE TABLE whole (a int, b text); ALTER TABLE whole REPLICA IDENTITY FULL; CREATE TABLE gone (id int)");
        s.source("INSERT INTO t SELECT i, 0, i FROM generate_series(1, 1000) i");
        s.follow();
        s.stop();
        s.target("DELETE FROM t WHERE id % 50 = 0");
        // Every kind of statement: sets, rows one at a time, COPY, TRUNCATE, keys that move, keys
        // that change places.
        let backlog: Vec<String> = (1..=1000)
            .map(|id| match id % 10 {
                1 => format!("INSERT INTO nokey VALUES ({id}); UPDATE t SET n = n + 1 WHERE id = {id}"),
                2 => format!("INSERT INTO whole VALUES ({id}, 'x'); UPDATE whole SET b = 'y' WHERE a = {id}"),
                3 => format!("INSERT INTO t SELECT i, {id}, i FROM generate_series({id}0000, {id}0059) i"),
                4 => format!("INSERT INTO gone VALUES ({id}); TRUNCATE gone"),
                5 => format!("UPDATE t SET id = -id WHERE id = {id}; UPDATE t SET n = 5 WHERE id = -{id}"),
                6 => format!("DELETE FROM t WHERE id = {id}; INSERT INTO t VALUES ({id}, 6, {id})"),
                7 => format!("UPDATE t SET u = -u WHERE id IN ({id}, {id} + 1); \
                              UPDATE t SET u = CASE id WHEN {id} THEN {id} + 1 ELSE {id} END WHERE id IN ({id}, {id} + 1)"),
                _ => format!("UPDATE t SET n = n + 1 WHERE id = {id}"),
            })
            .map(|sql| format!("BEGIN; {sql}; COMMIT"))
            .collect();
        backlog.iter().for_each(|sql| s.source(sql));
        s.run();
        s.catch_up();
        assert_eq!(s.conflicts("update_missing"), 20, "{}", s.log(0));
        s.source("DELETE FROM t WHERE id % 50 = 0 AND id > 0 AND id <= 1000");
        s.catch_up();
        assert_eq!(s.conflicts("delete_missing"), 20, "{}", s.log(0));
        s.same();
        let times =
            "SELECT string_agg(pg_xact_commit_timestamp(xmin)::text, ' ' ORDER BY id) FROM t WHERE n > 0";
        assert_eq!(s.target_one(times), s.source_one(times));
        let transactions = "SELECT count(DISTINCT xmin::text) FROM t WHERE n > 0";
        assert_eq!(s.target_one(transactions), s.source_one(transactions));
        let log = s.pair().target.log();
        let said =
            log.lines().filter(|line| line.contains("ERROR") && line.contains("rows instead of")).count();
        assert!((1..=21).contains(&said), "{said} errors in the target's log");
    });
}

/// The kinds of values and of changes that the temporary procedure takes, in both forms; and the
/// same without it.
#[test]
fn f3_transactions_that_stay_one_keep_every_value() {
    let track = |builder: testkit::Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(&[&["--binary", "auto"]], track, track, |s| {
        keeps_every_value(s, ["even", "mood", "pair", "int[]"])
    });
    // Arrays and types of one's own have no binary form that another server reads.
    scenario_alone(&[&["--binary", "on"]], track, track, |s| {
        keeps_every_value(s, ["int", "text", "text", "text"])
    });
}

fn keeps_every_value(s: &mut Scenario, [even, mood, pair, list]: [&str; 4]) {
    s.both(&format!(
        r#"CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0); CREATE TYPE mood AS ENUM ('sad', 'it''s \ "fine"');
           CREATE TYPE pair AS (a int, b text);
           CREATE TABLE t (id bigint PRIMARY KEY, "a$1 ""b""" text, e {even}, m {mood}, p {pair}, n numeric(9, 3), v varchar(5), c char(4),
               o "char", l {list}, j jsonb, b bytea, f float8, ts timestamptz, i interval, always int GENERATED ALWAYS AS IDENTITY);
           CREATE TABLE whole (a int, b text); ALTER TABLE whole REPLICA IDENTITY FULL;
           CREATE TABLE wide (id int PRIMARY KEY, big text, n int); ALTER TABLE wide ALTER big SET STORAGE EXTERNAL;
           CREATE TABLE names (pgsluice_at0 int PRIMARY KEY, pgsluice_end int);
               CREATE TABLE generated (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int)"#
    ));
    s.both(
        "DO $$ BEGIN FOR i IN 1..30 LOOP EXECUTE format('CREATE TABLE k%s (id int PRIMARY KEY, v text)', i); END LOOP; END $$",
    );
    s.follow();
    let round = |from: u32| {
        let changes: Vec<String> = (from..from + 60)
            .map(|i| match i % 6 {
                0 | 1 => format!(
                    "INSERT INTO t VALUES ({i}, CASE WHEN {i} % 4 > 0 THEN E'x\\y''{i}' END, {i} * 2, 'it''s \\ \"fine\"', \
                     '({i},\"a,b\")', {i} / 7.0, 'abc', 'ab', 'o', '{{{i},NULL,3}}', '{{\"a\": [1, null]}}', '\\x00ff', {i} / 3.0, \
                     now(), '1 mon 2 days'); INSERT INTO names VALUES ({i}, {i}); INSERT INTO generated (n) VALUES ({i})"
                ),
                2 => format!("UPDATE t SET \"a$1 \"\"b\"\"\" = 'u', e = NULL, id = id + 100000 WHERE id = {i} - 2"),
                3 => format!("INSERT INTO whole VALUES ({i}, NULL), ({i}, 'b'); UPDATE whole SET b = 'c' WHERE a = {i} AND b IS NULL"),
                4 => format!("INSERT INTO wide VALUES ({i}, repeat(md5('{i}'), 100), 0); UPDATE wide SET n = 1 WHERE id = {i}"),
                _ => format!("DELETE FROM t WHERE id = {i} - 4; DELETE FROM whole WHERE a = {i} - 2 AND b = 'b'; \
                              UPDATE names SET pgsluice_end = -1 WHERE pgsluice_at0 = {i} - 4; UPDATE generated SET n = -n WHERE n = {i} - 4"),
            })
            .map(|sql| format!("BEGIN; {sql}; COMMIT"))
            .collect();
        changes
    };
    let write = |s: &mut Scenario, from| {
        s.backlog(&round(from).iter().map(String::as_str).collect::<Vec<_>>());
        s.same();
    };
    write(s, 6);
    // The table of the procedure has another column now, and there are more kinds of changes than
    // the procedure has branches.
    s.both("ALTER TABLE wide ADD COLUMN extra int DEFAULT 3");
    write(s, 300);
    s.backlog(&[
        "DO $$ BEGIN FOR i IN 1..30 LOOP EXECUTE format('INSERT INTO k%s VALUES (1), (2)', i); COMMIT; \
           EXECUTE format('UPDATE k%s SET v = 1 WHERE id = 1', i); COMMIT; \
           EXECUTE format('DELETE FROM k%s WHERE id = 2', i); COMMIT; END LOOP; END $$",
    ]);
    s.same();
    let made = "SELECT count(*) > 0 FROM pg_proc WHERE proname LIKE 'pgsluice_each%'";
    // On 14 and 15 progress would not bear it.
    let makes = s.major() >= 16;
    let refusal = "the target refuses the faster temporary procedure";
    assert_eq!(s.target_one(made) == "t", makes, "{}", s.log(0));
    assert!(!s.log(0).contains(refusal) && !s.log(0).contains("one of many failed"), "{}", s.log(0));
    s.stop();
    let moved = "SELECT coalesce(sum(n_tup_del), 0) FROM pg_stat_user_tables WHERE relname = 'generated'";
    assert_eq!(s.target_one(moved), "0", "an UPDATE became a DELETE and an INSERT");
    // It goes with its session.
    wait_for("it to be gone", BOUND, || Ok(s.target_one(made) == "f")).unwrap();
    s.target("DROP EXTENSION plpgsql");
    write(s, 600);
    assert_eq!(s.target_one(made), "f", "{}", s.log(0));
    assert_eq!(s.log(0).contains(refusal), makes, "{}", s.log(0));
    let transactions = "SELECT count(DISTINCT xmin::text) FROM wide";
    assert_eq!(s.target_one(transactions), s.source_one(transactions));
}

/// A commit is reported while the next transaction waits for a lock, although both were sent
/// together.
#[test]
fn f3_what_waits_for_a_lock_keeps_nothing_before_it_unreported() {
    let track = |builder: testkit::Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(&[FOLDED], track, track, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int, wide text)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 200) i");
        s.follow();
        s.stop();
        // Those behind it are more than what waits in sockets.
        s.source(
            "DO $$ BEGIN FOR i IN 1..200 LOOP UPDATE t SET n = i, wide = CASE WHEN i > 101 THEN repeat(md5(i::text), 1000) END \
             WHERE id = i; COMMIT; END LOOP; END $$",
        );
        let mut lock = Session::to(&s.target_url(0));
        lock.run("BEGIN; SELECT FROM t WHERE id = 101 FOR UPDATE");
        s.run();
        let reported = || s.status(0)["totals"]["transactions"].as_u64();
        // pgsluice asks the server after each eighth transaction; a server that is not asked has
        // more than that.
        wait_for("a hundred transactions", BOUND, || Ok(reported() > Some(92))).unwrap();
        assert_eq!(s.target_one("SELECT count(*) FROM t WHERE n > 0"), "100");
        lock.run("ROLLBACK");
        s.catch_up();
        s.same();
    });
}

/// Whether each transaction stays one may be said, whatever the target keeps.
#[test]
fn f3_commit_timestamps_are_kept_where_it_is_said() {
    let of_the_sources = |s: &Scenario| s.target_one("SELECT count(DISTINCT xmin::text) FROM t") == "300";
    let backlog = |s: &mut Scenario| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        s.backlog(&["DO $$ BEGIN FOR i IN 1..300 LOOP INSERT INTO t VALUES (i); COMMIT; END LOOP; END $$"]);
        s.same();
    };
    scenario_with(&[&["--keep-commit-timestamps", "on"]], |s| {
        backlog(s);
        assert!(of_the_sources(s), "{}", s.status(0));
    });
    let track = |builder: testkit::Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(&[&["--keep-commit-timestamps", "off"]], track, track, |s| {
        backlog(s);
        assert!(!of_the_sources(s), "{}", s.status(0));
    });
}

/// The backend is ended, pgsluice is killed or the target crashes while many transactions are on
/// their way. Each is there once.
#[test]
fn f3_whatever_is_killed_each_transaction_that_stays_one_is_there_once() {
    let track = |builder: testkit::Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(&[FOLDED], track, track, |s| {
        s.both("CREATE TABLE log (id serial, v int)");
        s.follow();
        let terminate = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pgsluice {} apply'",
            s.name(0)
        );
        for round in 1..=9 {
            s.source(
                "DO $$ BEGIN FOR i IN 1..1500 LOOP INSERT INTO log (v) VALUES (i); COMMIT; END LOOP; END $$",
            );
            // Any instant will do, and a random one finds more of them.
            std::thread::sleep(Duration::from_millis(rand::rng().random_range(0..150)));
            match round % 3 {
                0 => s.pair_mut().target.restart(StopMode::Immediate).unwrap(),
                1 => {
                    s.kill();
                    s.run();
                }
                _ => drop(s.target_one(&terminate)),
            }
            s.catch_up();
            assert_eq!(s.target_one("SELECT count(*) FROM log"), format!("{}", round * 1500));
        }
        s.same();
        let transactions = "SELECT count(DISTINCT xmin::text) FROM log";
        assert_eq!(s.target_one(transactions), s.source_one(transactions));
    });
}

/// A walsender that gives up after five silent seconds outlives a target that is blocked for
/// twelve. It thinks that pgsluice is silent while its question stands after unread data: a busy
/// machine needs seconds for that.
#[test]
fn a_blocked_target_does_not_cost_the_connection() {
    let impatient = |builder: testkit::Builder| builder.setting("wal_sender_timeout", "5s");
    scenario_alone(
        &[FOLDED],
        impatient,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.follow();
            let walsender = "SELECT pid FROM pg_stat_replication WHERE application_name LIKE '%stream'";
            let pid = s.source_one(walsender);
            let mut holder = crate::support::Session::to(&s.target_url(0));
            holder.run("BEGIN; LOCK t");
            // More than all queues hold.
            s.source("INSERT INTO t SELECT i, repeat('x', 2000) FROM generate_series(1, 40000) i");
            s.source("UPDATE t SET v = 'y' WHERE id % 10 = 0");
            // Longer than the timeouts: that nothing gives up in this time is what is tested.
            std::thread::sleep(Duration::from_secs(12));
            holder.run("COMMIT");
            s.catch_up();
            s.same();
            assert_eq!(s.source_one(walsender), pid, "{}", s.log(0));
        },
    );
}

/// pgsluice must not keep the publisher from shutting down, and its confirmed position must stay
/// true.
#[test]
fn the_publisher_stops_promptly_and_comes_back() {
    scenario_alone(
        &[FOLDED, ONE_BY_ONE],
        |source| source,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY)");
            s.follow();
            for round in 0..3 {
                s.source(&format!(
                    "INSERT INTO t SELECT i FROM generate_series({round} * 100, {round} * 100 + 99) i"
                ));
                let began = std::time::Instant::now();
                let cluster: &mut Cluster = &mut s.pair_mut().source;
                cluster.stop(StopMode::Fast).unwrap();
                let bound = testkit::at_this_load(Duration::from_secs(20));
                assert!(began.elapsed() < bound, "the stop took {:?}", began.elapsed());
                cluster.start_again().unwrap();
                s.catch_up();
                s.same();
            }
        },
    );
}

/// From 16 on, a transaction that aborts moves the origin of its session as one that commits does.
/// A backend that ends after setting the origin's position and before COMMIT must not take the
/// transaction with it.
#[test]
fn p1_an_origin_moved_by_an_aborted_transaction_loses_nothing() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.live(&["INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i"]);
        s.stop();
        for number in 0..s.followers() {
            // As if the last backend had been terminated just before COMMIT.
            let ahead = s.source_one("SELECT pg_current_wal_lsn() + 1000000");
            let origin = format!("pgsluice_{}_0", s.name(number));
            let mut session = crate::support::Session::to(&s.target_url(number));
            session.run(&format!("SELECT pg_replication_origin_session_setup('{origin}')"));
            session.run("BEGIN; CREATE TABLE aborted ()");
            session.run(&format!("SELECT pg_replication_origin_xact_setup('{ahead}', now())"));
            session.run("ROLLBACK");
            session.run("SELECT pg_replication_origin_session_reset()");
            let moved = s.target_one_of(
                number,
                &format!("SELECT pg_replication_origin_progress('{origin}', false) = '{ahead}'"),
            );
            assert_eq!(moved == "t", s.major() >= 16, "{origin}");
        }
        s.source("UPDATE t SET n = n + 1");
        s.source("INSERT INTO t VALUES (11, 0)");
        s.follow();
        s.same();
        s.live(&["UPDATE t SET n = n + 1", "DELETE FROM t WHERE id = 3"]);
        let lsn = s.source_one("SELECT pg_current_wal_lsn()");
        s.wait_until_confirmed(&lsn);
        s.kill();
        s.source("UPDATE t SET n = n + 1");
        s.follow();
        s.same();
    });
}

/// Rows of progress (16 and later) that newer ones replaced are removed while
/// commits keep coming, not only when they pause: once they were not.
#[test]
fn replaced_rows_of_progress_are_removed_under_load() {
    scenario(|s| {
        s.both("CREATE TABLE t (id serial PRIMARY KEY)");
        s.follow();
        let oldest = "SELECT coalesce(min(applied_lsn)::text, 'none') FROM pgsluice.progress";
        s.source("INSERT INTO t DEFAULT VALUES");
        s.catch_up();
        // Each target has rows of its own: they are folded and pruned as it keeps up.
        let first: Vec<String> = (0..s.followers()).map(|number| s.target_one_of(number, oldest)).collect();
        if s.target_one("SHOW server_version_num").as_str() < "160000" {
            assert!(first.iter().all(|row| row == "none"), "rows of progress before 16: {first:?}");
            return;
        }
        let mut kept: Vec<usize> = (0..first.len()).collect();
        for _ in 0..3_000 {
            s.source("INSERT INTO t DEFAULT VALUES");
            // The pace of a load; no test waits for it.
            std::thread::sleep(std::time::Duration::from_millis(10));
            kept.retain(|&number| s.target_one_of(number, oldest) == first[number]);
            if kept.is_empty() {
                break;
            }
        }
        assert!(kept.is_empty(), "rows of {first:?} are still in the targets {kept:?}");
        s.catch_up();
        s.same();
    });
}
