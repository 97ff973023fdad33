//! Prepared transactions, which subscribers prepare as well, also one behind the other.

use testkit::{Cluster, Major, wait_for};

use crate::BOUND;
use crate::stage::{Scene, Session, Way, scenario, shown};

/// A session whose prepared transactions have the names of its database: one server has them all.
struct Preparing(Session, String);

impl Preparing {
    #[track_caller]
    fn run(&self, sql: &str) {
        self.0.run(&sql.replace("GID", &self.1));
    }
}

const TABLES: &str = "CREATE TABLE t (id int PRIMARY KEY, v text)";
/// Prepared transactions of a database.
const PREPARED: &str = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()";
const ENABLED: &str = "SELECT bool_and(subtwophasestate = 'e') FROM pg_subscription WHERE subname = '{sub}'";

fn begin(scene: &Scene, with: &str) -> Preparing {
    scene.everywhere(TABLES);
    scene.publisher(
        "INSERT INTO t SELECT n, 'before' FROM generate_series(1, 10) n; CREATE PUBLICATION p FOR TABLE t",
    );
    scene.subscribe("p", with);
    scene.until("two-phase commit", ENABLED, "t");
    preparing(scene)
}

fn preparing(scene: &Scene) -> Preparing {
    Preparing(scene.session(), scene.database().to_owned())
}

/// Every end of a prepared transaction.
fn prepared_and_ended(scene: &Scene, session: &Preparing, rows: &str) {
    let prepared = |count: &str| scene.until("the prepared transactions", PREPARED, count);
    session.run(&format!(
        "BEGIN; UPDATE t SET v = 'prepared' WHERE id < 5; {rows}; PREPARE TRANSACTION 'GID_one'"
    ));
    prepared("1");
    scene.shows("SELECT count(*) FROM t WHERE v = 'prepared'", "0");
    session.run("BEGIN; INSERT INTO t VALUES (-1, 'not kept'); PREPARE TRANSACTION 'GID_two'");
    prepared("2");
    scene.level();
    session.run("ROLLBACK PREPARED 'GID_two'");
    prepared("1");
    session.run("COMMIT PREPARED 'GID_one'");
    prepared("0");
    session.run(
        "BEGIN; INSERT INTO t VALUES (-2, 'kept'); SAVEPOINT a; INSERT INTO t VALUES (-3, 'taken back')",
    );
    session.run(
        "ROLLBACK TO a; SAVEPOINT b; DELETE FROM t WHERE id = 7; RELEASE b; PREPARE TRANSACTION 'GID_one'",
    );
    prepared("1");
    session.run("COMMIT PREPARED 'GID_one'");
    // The same name again, and one that has nothing published.
    session.run(
        "BEGIN; CREATE TABLE apart (a int); INSERT INTO apart VALUES (1); PREPARE TRANSACTION 'GID_one'",
    );
    scene.level();
    scene.alike(PREPARED);
    session.run("COMMIT PREPARED 'GID_one'");
    scene.level();
    scene.shows(PREPARED, "0");
    scene.same(&["t"]);
}

#[test]
fn prepared_transactions_are_prepared_at_the_subscriber() {
    scenario(Major::V15, |scene| {
        let session = begin(scene, "two_phase = on, streaming = off");
        prepared_and_ended(scene, &session, "DELETE FROM t WHERE id = 9");
        // The subscriber is away at PREPARE, or between the two.
        scene.subscribers("ALTER SUBSCRIPTION {sub} DISABLE");
        session.run("BEGIN; INSERT INTO t VALUES (20, 'while disabled'); PREPARE TRANSACTION 'GID_later'");
        scene.subscribers("ALTER SUBSCRIPTION {sub} ENABLE");
        scene.until("the prepared transaction", PREPARED, "1");
        scene.subscribers("ALTER SUBSCRIPTION {sub} DISABLE");
        session.run("COMMIT PREPARED 'GID_later'");
        scene.subscribers("ALTER SUBSCRIPTION {sub} ENABLE");
        scene.level();
        scene.same(&["t"]);
        scene.shows(PREPARED, "0");
    });
}

fn large() -> &'static str {
    "INSERT INTO t SELECT n, repeat(md5(n::text), 60) FROM generate_series(1000, 12000) n; DELETE FROM t WHERE id > 2000"
}

#[test]
fn streamed_transactions_are_prepared() {
    scenario(Major::V15, |scene| {
        let session = begin(scene, "two_phase = on, streaming = on");
        prepared_and_ended(scene, &session, large());
    });
}

#[test]
fn streamed_transactions_are_prepared_by_parallel_workers() {
    scenario(Major::V16, |scene| {
        let session = begin(scene, "two_phase = on, streaming = parallel");
        prepared_and_ended(scene, &session, large());
    });
}

/// Without the option they come with COMMIT PREPARED. A subscription of 18 gets it afterwards.
#[test]
fn prepared_transactions_come_when_they_commit() {
    scenario(Major::V15, |scene| {
        scene.everywhere(TABLES);
        scene.publisher("CREATE PUBLICATION p FOR TABLE t");
        scene.subscribe("p", "two_phase = off");
        let session = preparing(scene);
        session.run("BEGIN; INSERT INTO t VALUES (1, 'one'); PREPARE TRANSACTION 'GID_one'");
        scene.level();
        scene.shows(PREPARED, "0");
        session.run("COMMIT PREPARED 'GID_one'");
        scene.level();
        scene.same(&["t"]);
        if scene.major < Major::V18 {
            return;
        }
        let switch = |to: &str| {
            scene.subscribers("ALTER SUBSCRIPTION {sub} DISABLE");
            // It is refused while a worker runs.
            for way in Way::BOTH {
                let sql = format!("ALTER SUBSCRIPTION {{sub}} SET (two_phase = {to})");
                wait_for("the option", BOUND, || Ok(scene.try_at(way, &sql).is_ok())).unwrap();
            }
            scene.subscribers("ALTER SUBSCRIPTION {sub} ENABLE");
        };
        switch("true");
        scene.until("two-phase commit", ENABLED, "t");
        session.run("BEGIN; INSERT INTO t VALUES (2, 'two'); PREPARE TRANSACTION 'GID_two'");
        scene.until("the prepared transaction", PREPARED, "1");
        session.run("COMMIT PREPARED 'GID_two'");
        scene.level();
        scene.shows(PREPARED, "0");
        switch("false");
        session.run("BEGIN; INSERT INTO t VALUES (3, 'three'); PREPARE TRANSACTION 'GID_three'");
        scene.level();
        scene.shows(PREPARED, "0");
        session.run("COMMIT PREPARED 'GID_three'");
        scene.level();
        scene.same(&["t"]);
    });
}

/// From the publisher through the relay to a subscriber, from there back into another database of
/// the publisher, and from there through the relay again.
#[test]
fn prepared_transactions_pass_two_relays_one_behind_the_other() {
    scenario(Major::V15, |scene| {
        let session = begin(scene, "two_phase = on");
        let middle = scene.sub(Way::Relayed);
        let (publisher, subscriber) = (scene.publisher_cluster(), scene.subscriber_cluster());
        let last = scene.more("last", "");
        let tables = [TABLES, "CREATE PUBLICATION p FOR TABLE t"].join("; ");
        subscriber.sql(&middle, "CREATE PUBLICATION p FOR TABLE t").unwrap();
        publisher.sql(&last, &tables).unwrap();
        subscriber.sql(&last, TABLES).unwrap();
        let is_ready = |at: &Cluster| {
            let ready = "SELECT bool_and(subtwophasestate = 'e') FROM pg_subscription s
                          JOIN pg_database d ON d.oid = s.subdbid WHERE datname = current_database()";
            wait_for("two-phase commit", BOUND, || Ok(at.one(&last, ready) == "t")).unwrap();
        };
        scene.publisher_subscribes((&last, &format!("{last}_3")), &middle, "two_phase = on");
        is_ready(publisher);
        let place = scene.conninfo(Way::Relayed, &last);
        let sql =
            format!("CREATE SUBSCRIPTION {last}_4 CONNECTION '{place}' PUBLICATION p WITH (two_phase = on)");
        subscriber.sql(&last, &sql).unwrap_or_else(|error| panic!("{error:#}"));
        is_ready(subscriber);
        let ends = || {
            [publisher.sql(&last, PREPARED), subscriber.sql(&last, PREPARED)]
                .map(|rows| shown(&rows.unwrap()))
        };
        let prepared = |count: &str| {
            wait_for("the prepared transaction at the ends", BOUND, || Ok(ends() == [count, count]))
                .unwrap_or_else(|error| panic!("{error}: {}", ends().join(" and ")));
        };
        session.run(&format!("BEGIN; {}; PREPARE TRANSACTION 'GID_far'", large()));
        prepared("1");
        session.run("COMMIT PREPARED 'GID_far'");
        prepared("0");
        session.run("BEGIN; INSERT INTO t VALUES (-1, 'not kept'); PREPARE TRANSACTION 'GID_far'");
        prepared("1");
        session.run("ROLLBACK PREPARED 'GID_far'");
        prepared("0");
        scene.level();
        scene.same(&["t"]);
        let rows = "SELECT count(*) || ' ' || sum(id) || ' ' || md5(string_agg(v, '' ORDER BY id)) FROM t";
        let expected = scene.at_publisher(rows);
        for at in [publisher, subscriber] {
            wait_for("the rows at the ends", BOUND, || Ok(at.one(&last, rows) == expected))
                .unwrap_or_else(|error| panic!("{error}: {}", at.one(&last, rows)));
        }
        subscriber.sql(&last, &format!("DROP SUBSCRIPTION {last}_4")).unwrap();
        publisher.sql(&last, &format!("DROP SUBSCRIPTION {last}_3")).unwrap();
    });
}
