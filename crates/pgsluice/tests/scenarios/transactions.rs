//! Transactions of all shapes: large, streamed, nested, aborted, interleaved. One expectation,
//! every strategy.

use crate::support::{DECODED, Session, scenario_with};

/// Chunk sizes, forms and streaming that must all lead to the same rows.
const STRATEGIES: &[&[&str]] = &[
    &[],
    &["--batch-rows-max", "1"],
    &["--batch-rows-max", "7", "--binary", "off"],
    &["--batch-rows-max", "10", "--streaming", "off"],
    &["--batch-rows-max", "100", "--binary", "off"],
    &["--batch-bytes-max", "1kB"],
];

const TABLES: &str = "CREATE TABLE t (id int PRIMARY KEY, v text, n int); CREATE TABLE u (a int, b text); ALTER TABLE u REPLICA IDENTITY FULL; \
    CREATE TABLE w (id int PRIMARY KEY, u int UNIQUE, big text); ALTER TABLE w ALTER big SET STORAGE EXTERNAL";

/// A source that streams every transaction of more than a few rows.
fn streams(s: &crate::support::Scenario) {
    let db = s.source_one("SELECT current_database()");
    s.source(&format!("ALTER DATABASE {db} SET logical_decoding_work_mem = '64kB'"));
}

#[test]
fn one_workload_every_strategy() {
    scenario_with(STRATEGIES, |s| {
        s.both(TABLES);
        streams(s);
        s.source("INSERT INTO t SELECT i, 'v', 0 FROM generate_series(1, 200) i; INSERT INTO w SELECT i, i, repeat('x', 3000) FROM generate_series(1, 40) i");
        s.follow();
        let mut workload = vec![
            "INSERT INTO t SELECT i, repeat('y', 200), i FROM generate_series(201, 900) i".to_owned(),
            "UPDATE t SET n = n + 1".to_owned(),
            "UPDATE t SET id = -id WHERE id % 3 = 0; UPDATE t SET v = 'z' WHERE id < 0; DELETE FROM t WHERE id % 10 = 0".to_owned(),
            "INSERT INTO u SELECT i % 5, repeat('b', i % 3) FROM generate_series(1, 300) i; DELETE FROM u WHERE a = 3 AND b = 'b'".to_owned(),
            "UPDATE w SET u = u + 1000; UPDATE w SET u = 1041 - u".to_owned(),
            "UPDATE w SET u = -u WHERE id % 2 = 0; UPDATE w SET big = repeat('q', 2500) WHERE id % 5 = 0".to_owned(),
            "TRUNCATE u; INSERT INTO u SELECT 1, 'again' FROM generate_series(1, 50); TRUNCATE u; INSERT INTO u VALUES (2, 'last')".to_owned(),
            "DELETE FROM t WHERE id > 700; INSERT INTO t SELECT i, 'back', -i FROM generate_series(701, 1000) i".to_owned(),
        ];
        // Small ones, a pseudo-random walk over few keys.
        let mut seed = 12_345_u64;
        for _ in 0..300 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (id, n) = ((seed >> 33) % 12 + 5000, (seed >> 50) % 100);
            workload.push(match (seed >> 40) % 4 {
                0 => format!("INSERT INTO t VALUES ({id}, 'walk', {n}) ON CONFLICT DO NOTHING"),
                1 => format!("UPDATE t SET n = {n} WHERE id = {id}"),
                2 => format!("DELETE FROM t WHERE id = {id}"),
                _ => format!("DELETE FROM t WHERE id = {id}; INSERT INTO t VALUES ({id}, 'replaced', {n})"),
            });
        }
        let workload: Vec<&str> = workload.iter().map(String::as_str).collect();
        s.live(&workload[..150]);
        s.backlog(&workload[150..]);
        assert_eq!(
            s.conflicts("update_missing") + s.conflicts("delete_missing") + s.conflicts("insert_exists"),
            0
        );
    });
}

#[test]
fn subtransactions_and_savepoints_of_streamed_transactions() {
    scenario_with(&STRATEGIES[..4], |s| {
        s.both(TABLES);
        streams(s);
        s.follow();
        let rows = |from: i32, v: &str| {
            format!(
                "INSERT INTO t SELECT i, repeat('{v}', 300), 0 FROM generate_series({from}, {from} + 399) i"
            )
        };
        let mut session = Session::to(&s.source_url());
        for sql in [
            "BEGIN".to_owned(),
            "SAVEPOINT gone".to_owned(),
            // The first change of the table belongs to a subtransaction that is rolled back.
            rows(0, "lost"),
            "ROLLBACK TO gone".to_owned(),
            rows(1000, "a"),
            "SAVEPOINT one".to_owned(),
            rows(2000, "b"),
            "SAVEPOINT two".to_owned(),
            rows(3000, "lost"),
            "UPDATE t SET n = 1".to_owned(),
            "ROLLBACK TO two".to_owned(),
            rows(3000, "c"),
            "RELEASE SAVEPOINT one".to_owned(),
            "SAVEPOINT three".to_owned(),
            "DELETE FROM t".to_owned(),
            "INSERT INTO u SELECT i, 'lost' FROM generate_series(1, 2000) i".to_owned(),
            "ROLLBACK TO three".to_owned(),
            "INSERT INTO u SELECT i, 'kept' FROM generate_series(1, 10) i".to_owned(),
            "UPDATE t SET n = n + 1 WHERE id < 2000".to_owned(),
            "COMMIT".to_owned(),
            "DO $$ BEGIN FOR i IN 1..300 LOOP BEGIN INSERT INTO t VALUES (i, repeat('d', 300), i); IF i % 3 = 0 THEN RAISE division_by_zero; END IF; \
             EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$".to_owned(),
        ] {
            session.run(&sql);
        }
        s.catch_up();
        s.same();
        assert_eq!(s.target_one("SELECT count(*) FROM t"), "1400");
        // All of it aborted.
        for sql in ["BEGIN", "DELETE FROM t", &rows(9000, "lost"), "ROLLBACK"] {
            session.run(sql);
        }
        s.catch_up();
        s.same();
    });
}

#[test]
fn open_transactions_that_interleave() {
    scenario_with(&STRATEGIES[..4], |s| {
        s.both(TABLES);
        streams(s);
        s.follow();
        let mut sessions: Vec<Session> = (0..4).map(|_| Session::to(&s.source_url())).collect();
        sessions.iter_mut().for_each(|session| session.run("BEGIN"));
        for round in 0..5 {
            for (number, session) in sessions.iter_mut().enumerate() {
                let from = number * 100_000 + round * 200;
                session.run(&format!("INSERT INTO t SELECT i, repeat('r', 200), {round} FROM generate_series({from}, {from} + 199) i"));
                session.run(&format!(
                    "UPDATE t SET n = n + 1 WHERE id >= {} AND id < {}",
                    number * 100_000,
                    number * 100_000 + 50
                ));
            }
            s.source(&format!("INSERT INTO u VALUES ({round}, 'small')"));
        }
        // Not in the order in which they began, one aborted; the same key in two of them.
        sessions[2].run("COMMIT");
        sessions[0].run("UPDATE t SET v = 'of two' WHERE id = 200001; INSERT INTO t VALUES (-1, 'mine', 0)");
        sessions[1].run("ROLLBACK");
        sessions[0].run("COMMIT");
        sessions[3].run("DELETE FROM t WHERE id = -1; UPDATE t SET v = 'of three' WHERE id = 200001; COMMIT");
        s.catch_up();
        s.same();
        assert_eq!(s.target_one("SELECT count(*) FROM t"), "3000");
        // Open while pgsluice is stopped and started again.
        sessions[1].run(
            "BEGIN; INSERT INTO t SELECT i, repeat('s', 200), 0 FROM generate_series(1000000, 1001000) i",
        );
        s.catch_up();
        s.backlog(&["UPDATE u SET b = 'back'"]);
        sessions[1].run("UPDATE t SET n = 5 WHERE id >= 1000000; COMMIT");
        s.catch_up();
        s.same();
    });
}

/// A column is added in the middle of a transaction that is streamed.
#[test]
fn ddl_inside_a_streamed_transaction() {
    scenario_with(&STRATEGIES[..4], |s| {
        s.both(TABLES);
        streams(s);
        s.follow();
        s.target("ALTER TABLE t ADD fresh int DEFAULT 3, ADD more text");
        let mut session = Session::to(&s.source_url());
        for sql in [
            "BEGIN",
            "INSERT INTO t SELECT i, repeat('a', 300), 0 FROM generate_series(1, 1000) i",
            "ALTER TABLE t ADD fresh int DEFAULT 3",
            "INSERT INTO t SELECT i, repeat('b', 300), 0, i FROM generate_series(1001, 2000) i",
            "SAVEPOINT x",
            "ALTER TABLE t ADD more text",
            "INSERT INTO t SELECT i, repeat('c', 300), 0, i, 'lost' FROM generate_series(2001, 3000) i",
            "ROLLBACK TO x",
            "UPDATE t SET fresh = -1 WHERE id % 7 = 0",
            "COMMIT",
            "ALTER TABLE t ADD more text",
            "UPDATE t SET more = 'm' WHERE id % 5 = 0",
        ] {
            session.run(sql);
        }
        s.catch_up();
        s.same();
    });
}

/// Messages of applications go by, alone and between changes.
#[test]
fn logical_messages_are_ignored() {
    scenario_with(&STRATEGIES[..2], |s| {
        s.both(TABLES);
        streams(s);
        s.live(&[
            "SELECT pg_logical_emit_message(true, 'prefix', 'alone')",
            "SELECT pg_logical_emit_message(false, 'prefix', 'at once')",
            "INSERT INTO t VALUES (1, 'a', 0); SELECT pg_logical_emit_message(true, 'prefix', repeat('m', 100000)); INSERT INTO t VALUES (2, 'b', 0)",
            "INSERT INTO t SELECT i, repeat('x', 300), 0 FROM generate_series(10, 1000) i; SELECT pg_logical_emit_message(true, '', ''); DELETE FROM t WHERE id = 500",
        ]);
    });
}

/// Transactions that hold nothing for us, in between.
#[test]
fn empty_and_unpublished_transactions() {
    scenario_with(&STRATEGIES[..2], |s| {
        s.both(TABLES);
        s.source("CREATE TABLE private (id int PRIMARY KEY)");
        s.publish("FOR TABLE t, u, w, mark");
        s.follow();
        for round in 0..30 {
            s.source(&format!("INSERT INTO private VALUES ({round})"));
            s.source("UPDATE t SET n = 1 WHERE false");
            s.source(&format!("INSERT INTO t VALUES ({round}, 'v', 0)"));
            s.source("CREATE TEMP TABLE x (); DROP TABLE x");
        }
        s.catch_up();
        s.same();
    });
}

/// Prepared transactions arrive when they are committed.
#[test]
fn prepared_transactions_arrive_with_their_commit() {
    scenario_with(&STRATEGIES[..2], |s| {
        s.both(TABLES);
        streams(s);
        s.follow();
        let id = s.name(0).to_owned();
        s.source(&format!("BEGIN; INSERT INTO t SELECT i, repeat('p', 300), 0 FROM generate_series(1, 1000) i; PREPARE TRANSACTION '{id}a'"));
        s.source(&format!("BEGIN; INSERT INTO t VALUES (5000, 'gone', 0); PREPARE TRANSACTION '{id}b'"));
        s.catch_up();
        assert_eq!(s.target_one("SELECT count(*) FROM t"), "0");
        s.source(&format!("COMMIT PREPARED '{id}a'"));
        s.source(&format!("ROLLBACK PREPARED '{id}b'"));
        s.catch_up();
        s.same();
        assert_eq!(s.target_one("SELECT count(*) FROM t"), "1000");
    });
}

#[test]
fn a_row_larger_than_what_waits_for_the_applier_comes_behind_others() {
    let strategies: &[&[&str]] = &[&[], &["--streaming", "off"], DECODED];
    scenario_with(strategies, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("ALTER TABLE t ALTER v SET STORAGE EXTERNAL");
        s.publish("FOR TABLE t, mark");
        // More than the queues hold, with something in front of it that waits for its end.
        s.live(&["INSERT INTO t SELECT i, repeat('x', 10000) FROM generate_series(1, 100) i; \
             INSERT INTO t VALUES (-1, repeat('y', 20000000)); INSERT INTO t VALUES (-2, 'behind')"]);
    });
}
