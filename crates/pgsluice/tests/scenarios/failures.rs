//! Lost connections, restarted servers, signals and refusals: nothing is lost, and nothing is left
//! behind.

use std::time::{Duration, Instant};

use testkit::{StopMode, wait_for};

use crate::support::{
    BOUND, FOLDED, ONE_BY_ONE, STOP, Scenario, Session, scenario, scenario_alone, scenario_with,
};

/// A session that writes until the sender is dropped, and returns its number of rows.
fn load(s: &Scenario) -> (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<usize>) {
    let (stop, stopped) = std::sync::mpsc::channel();
    let url = s.source_url();
    let writer = std::thread::spawn(move || {
        let mut session = Session::to(&url);
        let mut id = 0;
        while stopped.try_recv().is_err() {
            // A lost connection may hide a commit.
            let sql = format!(
                "INSERT INTO t VALUES ({}, 0) ON CONFLICT DO NOTHING; UPDATE t SET n = n + 1 WHERE id = {}; DELETE FROM t WHERE id = {}",
                id % 100,
                id * 7 % 100,
                id * 13 % 100
            );
            let began = Instant::now();
            match session.query(&sql) {
                Ok(_) => {
                    id += 1;
                    // Sets a pace that the slowest strategy can follow, also on a busy machine.
                    std::thread::sleep(Duration::from_millis(5).max(began.elapsed() * 10));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        id
    });
    (stop, writer)
}

#[test]
fn terminated_sessions_on_either_end_are_replaced() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.follow();
        let (stop, writer) = load(s);
        for round in 0..4 {
            for role in ["stream", "apply", "control", "catalog"] {
                let terminate = |name: &str| {
                    format!(
                        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pgsluice {name} {role}'"
                    )
                };
                for number in 0..s.followers() {
                    let sql = terminate(s.name(number));
                    if role == "stream" {
                        s.source_one(&sql)
                    } else {
                        s.target_one_of(number, &sql)
                    };
                }
                if round % 2 == 1 {
                    s.catch_up();
                }
            }
        }
        stop.send(()).unwrap();
        assert!(writer.join().unwrap() > 0);
        s.catch_up();
        s.same();
    });
}

#[test]
fn restarted_servers_under_load() {
    scenario_alone(
        &[FOLDED, ONE_BY_ONE],
        |source| source,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
            s.follow();
            let (stop, writer) = load(s);
            for mode in [StopMode::Fast, StopMode::Immediate] {
                s.pair_mut().target.restart(mode).unwrap();
                s.catch_up();
                // The restart also breaks the session of the load.
                s.pair_mut().source.restart(mode).unwrap();
                s.catch_up();
            }
            stop.send(()).unwrap();
            assert!(writer.join().unwrap() > 0);
            s.catch_up();
            s.same();
        },
    );
}

#[test]
fn sigterm_ends_a_batch_that_waits_for_a_lock() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i");
        s.follow();
        let mut holders: Vec<Session> =
            (0..s.followers()).map(|number| Session::to(&s.target_url(number))).collect();
        holders.iter_mut().for_each(|holder| holder.run("BEGIN; SELECT FROM t WHERE id = 50 FOR UPDATE"));
        s.source("UPDATE t SET n = n + 1; DELETE FROM t WHERE id = 7");
        s.source("UPDATE t SET n = n + 1");
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        for number in 0..s.followers() {
            wait_for("the batch to wait for the lock", BOUND, || Ok(s.target_one_of(number, waits) == "t"))
                .unwrap();
        }
        for number in 0..s.followers() {
            let began = Instant::now();
            let status = s.sluice(number).terminate(STOP).unwrap();
            let in_time = began.elapsed() < testkit::at_this_load(STOP);
            assert!(status.success() && in_time, "{}", s.log(number));
        }
        s.kill();
        assert_eq!(s.target_one("SELECT sum(n) || ' ' || count(*) FROM t"), "0 100");
        holders.iter_mut().for_each(|holder| holder.run("COMMIT"));
        s.follow();
        s.same();
    });
}

#[test]
fn sigterm_during_a_long_transaction_and_during_the_copy() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 8000) i");
        s.run();
        for _ in 0..3 {
            s.wait_until_started();
            // Any instant in the copy is fine.
            std::thread::sleep(Duration::from_millis(70));
            s.stop();
            s.run();
        }
        s.follow();
        s.same();
        s.source("UPDATE t SET v = v || 'y'");
        for _ in 0..3 {
            s.wait_until_started();
            // Any instant in the stream is fine.
            std::thread::sleep(Duration::from_millis(100));
            s.stop();
            s.run();
        }
        s.catch_up();
        s.same();
    });
}

#[test]
fn a_name_in_use_is_refused() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        let elsewhere = tempfile::tempdir().unwrap();
        let dir = elsewhere.path().to_str().unwrap();
        let retain = ["run", "--publication", "p", "--state-dir", dir, "--retain-dead-tuples", "on"];
        // A process that does not get the subscription makes no slot for it.
        let dead =
            format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}_dead'", s.slot(0));
        for args in
            [&["run", "--publication", "p"][..], &["run", "--publication", "p", "--state-dir", dir], &retain]
        {
            let refused = s.call(0, args);
            assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
            assert_eq!(s.target_one(&dead), "0", "{}", refused.stderr);
        }
        // Another target with the same name: its slot reveals it.
        let db = format!("{}_other", s.name(0));
        s.pair().target.sql("postgres", &format!("CREATE DATABASE {db}")).unwrap();
        s.pair()
            .target
            .sql(&db, "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE mark (id int PRIMARY KEY)")
            .unwrap();
        let url = s.pair().target.url(&db);
        let refused = s.call(0, &[&retain[..], &["--target", &url]].concat());
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains("in use by another target"), "{}", refused.stderr);
        assert_eq!(s.target_one(&dead), "0", "{}", refused.stderr);
        s.live(&["INSERT INTO t VALUES (1)"]);
        s.pair().target.sql("postgres", &format!("DROP DATABASE {db} WITH (FORCE)")).unwrap();
    });
}

/// Misfits are named with their remedy before anything is created on the source.
#[test]
fn what_is_missing_is_named_and_nothing_is_left() {
    let cases: &[(&str, &str, &[&str])] = &[
        ("", "", &["publication \"absent\" does not exist", "CREATE PUBLICATION"]),
        ("CREATE TABLE t (id int PRIMARY KEY)", "", &["public.t", "target"]),
        (
            "CREATE TABLE t (id int PRIMARY KEY, odd text)",
            "CREATE TABLE t (id int PRIMARY KEY)",
            &["public.t", "odd"],
        ),
        ("CREATE TABLE t (id int PRIMARY KEY)", "CREATE VIEW t AS SELECT 1 AS id", &["public.t"]),
        (
            "CREATE TABLE t (id int PRIMARY KEY, g int)",
            "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED)",
            &["public.t", "g", "generated"],
        ),
        ("CREATE SCHEMA x; CREATE TABLE x.t (id int PRIMARY KEY)", "", &["x.t"]),
    ];
    for (source, target, words) in cases {
        scenario_with(&[FOLDED], |s| {
            s.source(source);
            s.target(target);
            if !source.is_empty() {
                s.publish("FOR ALL TABLES");
            }
            let publication = if source.is_empty() { "absent" } else { "p" };
            let refused = s.call(0, &["run", "--publication", publication]);
            assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
            assert!(
                words.iter().all(|word| refused.stderr.contains(word)),
                "{words:?} in: {}",
                refused.stderr
            );
            assert_eq!(s.left_behind(), [""; 0], "{}", refused.stderr);
        });
    }
}

/// The target's table has rows: the copy violates its key, names it, and keeps the rows.
#[test]
fn rows_that_are_in_the_way_of_the_copy_stay() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO t VALUES (1, 'source'), (2, 'source')");
        s.target("INSERT INTO t VALUES (2, 'local')");
        s.run();
        let (code, log) = s.ended().remove(0);
        assert!(code == 1 && log.contains("public.t") && log.contains("t_pkey"), "{code} {log}");
        assert_eq!(s.target_one("SELECT string_agg(v, ',') FROM t"), "local");
        s.target("DELETE FROM t");
        s.follow();
        s.same();
    });
}

#[test]
fn a_slot_that_is_gone_is_refused() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        s.stop();
        let slot = s.slot(0);
        let drop = format!("SELECT pg_drop_replication_slot('{slot}')");
        wait_for("the slot to be free", BOUND, || Ok(s.try_source(&drop).is_ok())).unwrap();
        s.source("INSERT INTO t VALUES (1)");
        s.run();
        let (code, log) = s.ended().remove(0);
        assert!(code == 1 && log.contains(&slot) && log.contains("copy again"), "{code} {log}");
    });
}

/// A table that is published later is named, and replication continues.
#[test]
fn a_table_that_is_published_later_is_named() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY)");
        s.publish("FOR TABLE t, mark");
        s.follow();
        s.source("ALTER PUBLICATION p ADD TABLE late");
        s.source("INSERT INTO late VALUES (1); INSERT INTO t VALUES (1)");
        s.catch_up();
        s.wait_for_log("was added to the publication and is not replicated yet");
        s.same_table("t");
    });
}

/// Waits until the first copy has finished `table`.
fn wait_for_table(s: &Scenario, number: usize, table: &str) {
    let exists = "SELECT (to_regclass('pgsluice.copied_table') IS NOT NULL)::text";
    let finished = format!(
        "SELECT coalesce(bool_or(finished), false)::text FROM pgsluice.copied_table WHERE table_name = '{table}'"
    );
    wait_for(table, BOUND, || {
        Ok(s.target_one_of(number, exists) == "true" && s.target_one_of(number, &finished) == "true")
    })
    .unwrap();
}

/// Sessions that prevent writes to the table on every target until they commit.
fn holders_of_big(s: &Scenario) -> Vec<Session> {
    let hold = |number| {
        let mut holder = Session::to(&s.target_url(number));
        holder.run("BEGIN; LOCK big IN SHARE MODE");
        holder
    };
    (0..s.followers()).map(hold).collect()
}

/// Rule C1: finished tables are not copied again, others are copied completely, and changes
/// meanwhile arrive once.
#[test]
fn c1_a_copy_that_was_interrupted_goes_on() {
    scenario_with(
        &[&["--copy-split-bytes", "64kB"], &["--copy-split-bytes", "64kB", "--binary", "off"]],
        |s| {
            s.both("CREATE TABLE small (id int PRIMARY KEY, n int); CREATE TABLE big (id int PRIMARY KEY, v text, n int)");
            s.source(
                "INSERT INTO small SELECT i, 0 FROM generate_series(1, 50) i; \
             INSERT INTO big SELECT i, repeat('x', 100), 0 FROM generate_series(1, 10000) i",
            );
            let mut holders = holders_of_big(s);
            s.run();
            for number in 0..s.followers() {
                wait_for_table(s, number, "small");
            }
            let ids = "SELECT min(xmin::text) FROM small WHERE id <= 10";
            let copied: Vec<String> = (0..s.followers()).map(|number| s.target_one_of(number, ids)).collect();
            s.source("UPDATE small SET n = n + 1 WHERE id > 10; UPDATE big SET n = n + 1 WHERE id % 3 = 0; DELETE FROM big WHERE id % 10 = 0");
            s.kill();
            holders.iter_mut().for_each(|holder| holder.run("COMMIT"));
            s.source("UPDATE small SET n = n + 1 WHERE id > 20; UPDATE big SET n = n + 1; INSERT INTO big VALUES (-1, 'new', 0)");
            s.run();
            s.source("UPDATE big SET n = n + 1 WHERE id % 2 = 0");
            s.follow();
            s.same();
            for (number, copied) in copied.iter().enumerate() {
                assert_eq!(s.target_one_of(number, ids), *copied);
            }
            assert_eq!(
                s.conflicts("insert_exists") + s.conflicts("update_missing") + s.conflicts("delete_missing"),
                0
            );
        },
    );
}

/// New connections wait for a `VACUUM FULL pg_class`. If that waited for the copy, so would
/// pgsluice's next connections.
#[test]
fn c1_a_copy_keeps_no_catalog_locked() {
    scenario(|s| {
        s.both("CREATE TABLE small (id int PRIMARY KEY); CREATE TABLE big (id int PRIMARY KEY)");
        s.source(
            "INSERT INTO small SELECT generate_series(1, 50); INSERT INTO big SELECT generate_series(1, 50)",
        );
        let mut holders = holders_of_big(s);
        s.run();
        for number in 0..s.followers() {
            wait_for_table(s, number, "small");
        }
        let mut dba = Session::to(&s.source_url());
        dba.run("SET lock_timeout = '20s'");
        for catalog in ["pg_class", "pg_namespace", "pg_attribute", "pg_publication"] {
            dba.run(&format!("VACUUM FULL {catalog}"));
        }
        holders.iter_mut().for_each(|holder| holder.run("COMMIT"));
        s.follow();
        s.source("INSERT INTO big VALUES (51)");
        s.catch_up();
        s.same();
    });
}

/// ALTER TABLE rewrites the table, which then looks empty under the copy's snapshot.
#[test]
fn c1_a_table_that_is_written_anew_before_its_turn_is_copied_under_another_snapshot() {
    let one = ["--max-sync-workers-per-subscription", "1"];
    scenario_with(&[&one, &[&one[..], &["--copy-split-bytes", "64kB"]].concat()], |s| {
        s.both(
            "CREATE TABLE big (id int PRIMARY KEY, v text); CREATE TABLE small (id int PRIMARY KEY, n int); \
             CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id); \
             CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (500); \
             CREATE TABLE high PARTITION OF parted FOR VALUES FROM (500) TO (2000); \
             CREATE TABLE emptied (id int PRIMARY KEY); CREATE TABLE packed (id int PRIMARY KEY)",
        );
        s.source(
            "INSERT INTO big SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i; \
             INSERT INTO small SELECT i, i FROM generate_series(1, 1000) i; \
             INSERT INTO parted SELECT i, i FROM generate_series(1, 1000) i; \
             INSERT INTO emptied SELECT generate_series(1, 1000); \
             INSERT INTO packed SELECT generate_series(1, 1000); DELETE FROM packed WHERE id % 2 = 0",
        );
        let mut holders = holders_of_big(s);
        s.run();
        s.wait_for_log("waiting for a lock on table public.big");
        s.both("ALTER TABLE small ALTER n TYPE bigint; ALTER TABLE parted ALTER n TYPE bigint");
        s.source("TRUNCATE emptied; INSERT INTO emptied SELECT generate_series(2001, 2050)");
        Session::to(&s.source_url()).run("VACUUM FULL packed");
        holders.iter_mut().for_each(|holder| holder.run("COMMIT"));
        s.follow();
        s.source(
            "UPDATE small SET n = n + 1 WHERE id % 10 = 0; UPDATE parted SET n = n + 1 WHERE id % 10 = 0",
        );
        s.catch_up();
        s.same();
        assert_eq!(s.target_one("SELECT count(*) FROM small"), "1000");
        for table in ["small", "low", "high", "emptied", "packed"] {
            let said = format!("first copy of table \"public.{table}\": on the source it was rewritten");
            assert!((0..s.followers()).all(|number| s.log(number).contains(&said)), "{said}: {}", s.log(0));
        }
    });
}

/// Writers never pause, while tables are copied and while pgsluice is killed.
#[test]
fn c1_writes_during_the_copy_arrive_once() {
    scenario_with(&[&["--copy-split-bytes", "64kB"]], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE big (id int PRIMARY KEY, v text)");
        s.source(
            "INSERT INTO t SELECT i, 0 FROM generate_series(0, 99) i; \
             INSERT INTO big SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i",
        );
        let (stop, writer) = load(s);
        for round in 0..4 {
            s.run();
            s.wait_until_started();
            // Kills at chosen instants are the purpose of this test.
            std::thread::sleep(Duration::from_millis(150 + 60 * round));
            s.source(&format!("UPDATE big SET v = 'round {round}' WHERE id % 100 = {round}"));
            s.kill();
        }
        s.follow();
        stop.send(()).unwrap();
        assert!(writer.join().unwrap() > 0);
        s.catch_up();
        s.same();
        assert_eq!(
            s.conflicts("insert_exists") + s.conflicts("update_missing") + s.conflicts("delete_missing"),
            0
        );
    });
}

/// Timeouts that are set for all sessions of a database do not apply to pgsluice.
#[test]
fn timeouts_of_databases_do_not_end_it() {
    scenario(|s| {
        let mut settings = vec![
            "idle_in_transaction_session_timeout",
            "idle_session_timeout",
            "statement_timeout",
            "lock_timeout",
        ];
        if s.major() >= 17 {
            settings.push("transaction_timeout");
        }
        let off: String = settings.iter().map(|setting| format!("SET {setting} = 0;")).collect();
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i");
        for setting in settings {
            let alter = |db: &str| format!("ALTER DATABASE {db} SET {setting} = '700ms'");
            s.source(&alter(&s.source_one("SELECT current_database()")));
            for number in 0..s.followers() {
                s.pair().target.sql("postgres", &alter(s.name(number))).unwrap();
            }
        }
        let hold = |s: &Scenario| -> Vec<Session> {
            let hold = |number| {
                let mut holder = Session::to(&s.target_url(number));
                holder.run(&off);
                // The lock allows readers.
                holder.run("BEGIN; LOCK t IN SHARE MODE");
                holder
            };
            (0..s.followers()).map(hold).collect()
        };
        let mut holders = hold(s);
        s.run();
        // A wait of this length is the purpose of this test.
        std::thread::sleep(Duration::from_secs(2));
        holders.iter_mut().for_each(|holder| holder.run("COMMIT"));
        s.follow();
        s.same();
        let mut holders = hold(s);
        s.source("UPDATE t SET n = n + 1");
        // A wait of this length is the purpose of this test.
        std::thread::sleep(Duration::from_secs(2));
        holders.iter_mut().for_each(|holder| holder.run("COMMIT"));
        s.catch_up();
        s.same();
        for number in 0..s.followers() {
            assert!(!s.log(number).contains("trying again"), "{}", s.log(number));
        }
    });
}

/// The oldest and the newest major under test, in both directions.
#[test]
fn majors_that_differ() {
    let majors = testkit::Major::under_test();
    let (Some(&old), Some(&new)) = (majors.first(), majors.last()) else { return };
    for (source, target) in [(old, new), (new, old)] {
        let pair = testkit::Pair::start(source, target).unwrap();
        let mut s = Scenario::alone(pair, &[FOLDED, ONE_BY_ONE]);
        s.both("CREATE TABLE t (id int PRIMARY KEY, n numeric, v text, i interval, ts timestamptz[], r int4range)");
        s.source("INSERT INTO t SELECT i, i / 3.0, 'v', i * '1 hour'::interval, ARRAY[now()], int4range(i, i + 1) FROM generate_series(1, 500) i");
        s.live(&[
            "UPDATE t SET n = n * 2, i = -i WHERE id % 2 = 0",
            "DELETE FROM t WHERE id % 5 = 0",
            "UPDATE t SET id = -id WHERE id < 50",
        ]);
        s.backlog(&[
            "INSERT INTO t (id) SELECT i FROM generate_series(1000, 1100) i",
            "UPDATE t SET v = 'w'",
            "TRUNCATE t; INSERT INTO t (id) VALUES (1)",
        ]);
        s.stop();
    }
}

/// The apply session is ended again and again during many small transactions.
#[test]
fn p1_terminated_backends_lose_no_commit() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE log (id serial PRIMARY KEY, v int)");
        s.follow();
        let url = s.source_url();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let mut session = Session::to(&url);
            let mut count = 0;
            while stopped.try_recv().is_err() {
                session.run("DO $$ BEGIN FOR i IN 1..20 LOOP INSERT INTO log (v) VALUES (i); COMMIT; END LOOP; END $$");
                // Sets the pace of the load; no condition depends on it.
                std::thread::sleep(Duration::from_millis(10));
                count += 20;
            }
            count
        });
        let terminate = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pgsluice {} apply'",
            s.name(0)
        );
        for _ in 0..12 {
            s.target_one(&terminate);
            s.catch_up();
        }
        stop.send(()).unwrap();
        let count = writer.join().unwrap();
        s.catch_up();
        s.same();
        assert_eq!(s.target_one("SELECT count(*) FROM log"), format!("{count}"));
    });
}
