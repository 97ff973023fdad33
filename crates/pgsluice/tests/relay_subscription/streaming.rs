//! Large transactions, whole or in blocks while they are open, with subtransactions and DDL.
//!
//! A publisher streams here from 64 kB on, the relay from 16 MB on. What a scenario calls large is
//! more than either.

use testkit::Major;

use crate::stage::{Scene, Session, scenario};

const TABLES: &str =
    "CREATE TABLE t (id int PRIMARY KEY, v text, n int); CREATE TABLE small (id int PRIMARY KEY, v text)";

/// 21 MB of rows, in the row and not beside it.
fn large(from: u32) -> String {
    let to = from + 10_999;
    format!("INSERT INTO t SELECT n, repeat(md5(n::text), 60), 1 FROM generate_series({from}, {to}) n")
}

/// Waits until the apply workers have written a part of an open transaction to a file, or have a
/// worker for it.
fn is_streamed(scene: &Scene, parallel: bool) {
    let sql = match parallel {
        true => {
            "SELECT count(*) > 0 FROM pg_stat_subscription WHERE subname = '{sub}' AND leader_pid IS NOT NULL"
        }
        false => {
            "SELECT count(*) > 0 FROM pg_stat_subscription s, pg_ls_dir('base/pgsql_tmp', true, false) f
              WHERE s.subname = '{sub}' AND f LIKE 'pgsql_tmp' || s.pid || '.%'"
        }
    };
    scene.until("a part of the open transaction", sql, "t");
}

/// Open transactions beside each other, that commit or not, wholly or in part.
fn overlapping(scene: &Scene, with: &str, seen: impl Fn(&Scene)) {
    scene.everywhere(TABLES);
    scene.publisher("INSERT INTO t SELECT n, 'before', 0 FROM generate_series(1, 20) n; CREATE PUBLICATION p FOR TABLE t, small");
    scene.subscribe("p", with);
    let (one, other): (Session, Session) = (scene.session(), scene.session());
    one.run("BEGIN; UPDATE t SET n = n + 1 WHERE id <= 5; DELETE FROM t WHERE id = 6");
    one.run(&large(1_000));
    seen(scene);
    other.run("BEGIN; UPDATE t SET v = 'other' WHERE id = 20");
    scene.publisher("INSERT INTO small VALUES (1, 'beside')");
    one.run("SAVEPOINT a; UPDATE t SET n = 2 WHERE id BETWEEN 1000 AND 1099; SAVEPOINT b");
    // Large enough to be sent before it is taken back.
    one.run(&large(100_000));
    one.run("ROLLBACK TO b; INSERT INTO small VALUES (2, 'kept')");
    one.run("SAVEPOINT c; INSERT INTO small VALUES (3, 'taken back'); ROLLBACK TO a; INSERT INTO small VALUES (4, 'kept')");
    one.run("SELECT pg_logical_emit_message(true, 'test', repeat('m', 100000))");
    other.run(
        "SAVEPOINT d; DELETE FROM t WHERE id = 19; RELEASE d; INSERT INTO small VALUES (5, 'other'); COMMIT",
    );
    scene.level();
    scene.shows("SELECT string_agg(id::text, ' ' ORDER BY id) FROM small", "1 5");
    one.run("COMMIT");
    scene.level();
    scene.same(&["t", "small"]);
    scene.shows("SELECT count(*), count(DISTINCT n) FROM t", "11018|2");
}

/// What is streamed, and then rolled back or changed by DDL.
fn rolled_back_and_altered(scene: &Scene, with: &str) {
    scene.everywhere(TABLES);
    scene.publisher("CREATE PUBLICATION p FOR TABLE t, small");
    scene.subscribe("p", with);
    let session = scene.session();
    session.run("BEGIN");
    session.run(&large(1));
    session.run("ROLLBACK");
    scene.subscribers("ALTER TABLE t ADD COLUMN c int, ADD COLUMN d int, ADD COLUMN e int");
    session.run("BEGIN");
    session.run(&large(1));
    session.run("ALTER TABLE t ADD COLUMN c int; INSERT INTO t VALUES (20001, 'c', 1, 10); SAVEPOINT a");
    // The column and its rows are taken back.
    session.run("ALTER TABLE t ADD COLUMN d int; INSERT INTO t VALUES (20002, 'd', 1, 10, 20)");
    session.run("UPDATE t SET d = 5 WHERE id <= 3000; ROLLBACK TO a");
    session.run("ALTER TABLE t ADD COLUMN e int; UPDATE t SET e = c, n = 7 WHERE id >= 10990; COMMIT");
    scene.level();
    let columns = "(SELECT id, v, n, c, e FROM t)";
    scene.same(&[columns]);
    scene.shows(
        "SELECT count(*), count(c), count(d), count(e), count(*) FILTER (WHERE n = 7) FROM t",
        "11001|1|0|1|12",
    );
    session.run(
        "BEGIN; DELETE FROM t WHERE id <= 9000; UPDATE t SET id = -id, v = v || '.' WHERE id < 20001; COMMIT",
    );
    session.run("BEGIN; TRUNCATE small; INSERT INTO small VALUES (1, 'x')");
    session.run("INSERT INTO small SELECT n, repeat('y', 1500) FROM generate_series(2, 12000) n; DELETE FROM small WHERE id > 50; COMMIT");
    scene.level();
    scene.same(&[columns, "small"]);
}

#[test]
fn open_transactions_are_streamed_to_files() {
    scenario(Major::V14, |scene| overlapping(scene, "streaming = on", |scene| is_streamed(scene, false)));
}

#[test]
fn open_transactions_are_streamed_to_parallel_workers() {
    scenario(Major::V16, |scene| {
        overlapping(scene, "streaming = parallel", |scene| is_streamed(scene, true))
    });
}

#[test]
fn large_transactions_are_sent_whole() {
    scenario(Major::V14, |scene| overlapping(scene, "streaming = off", |_| ()));
}

#[test]
fn ddl_and_rollbacks_of_streamed_transactions_are_followed() {
    scenario(Major::V14, |scene| rolled_back_and_altered(scene, "streaming = on"));
}

#[test]
fn ddl_and_rollbacks_are_followed_by_parallel_workers() {
    scenario(Major::V16, |scene| rolled_back_and_altered(scene, "streaming = parallel, binary = true"));
}
