//! Lost connections, restarted servers, signals, and what is refused: nothing lost, nothing left behind.

use std::time::{Duration, Instant};

use testkit::{StopMode, wait_for};

use crate::support::{
    BOUND, FOLDED, ONE_BY_ONE, STOP, Scenario, Session, scenario, scenario_alone, scenario_with,
};

/// A session that writes until it is told to stop; how many rows it wrote.
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
                    // Slow enough for the slowest strategy, on a busy machine as well.
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
                // The load's own session is lost with it.
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
            // Somewhere in the copy: any instant will do.
            std::thread::sleep(Duration::from_millis(70));
            s.stop();
            s.run();
        }
        s.follow();
        s.same();
        s.source("UPDATE t SET v = v || 'y'");
        for _ in 0..3 {
            s.wait_until_started();
            // Somewhere in the stream: any instant will do.
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
        for args in [&["run", "--publication", "p"][..], &["run", "--publication", "p", "--state-dir", dir]] {
            let refused = s.call(0, args);
            assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
        }
        // Another target under the same name: the slot says so.
        let db = format!("{}_other", s.name(0));
        s.pair().target.sql("postgres", &format!("CREATE DATABASE {db}")).unwrap();
        s.pair()
            .target
            .sql(&db, "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE mark (id int PRIMARY KEY)")
            .unwrap();
        let url = s.pair().target.url(&db);
        let refused = s.call(0, &["run", "--publication", "p", "--state-dir", dir, "--target", &url]);
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains("in use by another target"), "{}", refused.stderr);
        s.live(&["INSERT INTO t VALUES (1)"]);
        s.pair().target.sql("postgres", &format!("DROP DATABASE {db} WITH (FORCE)")).unwrap();
    });
}

/// What does not fit is named, with what to do, before anything is made on the source.
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

/// A table that already holds rows: the copy meets its key, names it and keeps what was there.
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

/// A publication that is dropped and made again while it runs: it says so, and goes on.
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

/// Waits until the first copy has this table.
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

/// Nothing can be written to the table on any target until they commit.
fn holders_of_big(s: &Scenario) -> Vec<Session> {
    let hold = |number| {
        let mut holder = Session::to(&s.target_url(number));
        holder.run("BEGIN; LOCK big IN SHARE MODE");
        holder
    };
    (0..s.followers()).map(hold).collect()
}

/// Rule C1: what was copied is not copied again, what was not is copied whole, and changes meanwhile arrive once.
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

/// Who connects waits for a `VACUUM FULL pg_class`; if that waited for the copy, so would our own further connections.
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

/// ALTER TABLE writes it anew, and to the copy's snapshot it is empty then.
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
            let said = format!("first copy of table \"public.{table}\": on the source it was written anew");
            assert!((0..s.followers()).all(|number| s.log(number).contains(&said)), "{said}: {}", s.log(0));
        }
    });
}

/// Writers never pause: while tables are copied and while pgsluice is killed in the middle of it.
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
            // The instants of the kills are what is tested.
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

/// Timeouts that somebody set for all sessions of a database are not for ours.
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
                // Readers pass.
                holder.run("BEGIN; LOCK t IN SHARE MODE");
                holder
            };
            (0..s.followers()).map(hold).collect()
        };
        let mut holders = hold(s);
        s.run();
        // How long it is held up is what is tested.
        std::thread::sleep(Duration::from_secs(2));
        holders.iter_mut().for_each(|holder| holder.run("COMMIT"));
        s.follow();
        s.same();
        let mut holders = hold(s);
        s.source("UPDATE t SET n = n + 1");
        // How long it is held up is what is tested.
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

/// The session that applies is ended again and again while small transactions come thick and fast.
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
                // The pace of a load; nobody waits for it.
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
