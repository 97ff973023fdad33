//! The kind: a conflict at the worst moment, where a plausible implementation counts twice, decides
//! by a version that is gone, or reports a missing row that is there. The table of these hazards is
//! in `docs/rules.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use testkit::{Builder, wait_for};

use crate::support::{BOUND, DECODED, FOLDED, ONE_BY_ONE, Scenario, Session, scenario_alone};
use crate::two_way::{WayBack, wait_until_both};
use crate::update_deleted::{LOGICAL, RETAIN, follow, wait_for_capture};

const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, v text)";

fn track(builder: Builder) -> Builder {
    builder.setting("track_commit_timestamp", "on")
}

fn plain(builder: Builder) -> Builder {
    builder
}

/// Runs the scenario under these rules with sets, one change at a time, and WAL decoded here.
fn under(rules: &[&str], target: impl Fn(Builder) -> Builder + Sync, run: impl Fn(&mut Scenario) + Sync) {
    let rules: Vec<&str> = rules.iter().flat_map(|rule| ["--conflict", rule]).collect();
    let strategies = [FOLDED, ONE_BY_ONE, DECODED].map(|strategy| [&rules, strategy].concat());
    scenario_alone(&strategies.each_ref().map(Vec::as_slice), plain, target, run);
}

/// Waits until a session of the database at `url` waits for a lock.
fn wait_until_blocked(url: &str) {
    let mut session = Session::to(url);
    let waits = "SELECT count(*) > 0 FROM pg_stat_activity \
                 WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let is_blocked = || Ok(session.query(waits).unwrap()[0][0].as_deref() == Some("t"));
    wait_for("a session that waits for a lock", BOUND, is_blocked).unwrap();
}

/// A local session has changed rows and not committed when the set arrives, which waits for it. The
/// version that counts is the one that it finds then, which is later than the change.
#[test]
fn d5_a_row_that_changes_between_plan_and_lock_is_decided_by_what_is_there_then() {
    let rules = ["update_origin_differs=last_update_wins", "delete_origin_differs=last_update_wins"];
    under(&rules, track, |s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
        s.follow();
        let mut local: Vec<Session> =
            (0..s.followers()).map(|number| Session::to(&s.target_url(number))).collect();
        let change = |sql: &str, sessions: &mut [Session]| sessions.iter_mut().for_each(|own| own.run(sql));
        change("BEGIN; UPDATE t SET v = 'local' WHERE id IN (3, 4)", &mut local);
        s.source("UPDATE t SET v = 'remote' WHERE id <> 4; DELETE FROM t WHERE id = 4");
        (0..s.followers()).for_each(|number| wait_until_blocked(&s.target_url(number)));
        change("COMMIT", &mut local);
        s.catch_up();
        assert_eq!(
            s.target_one("SELECT string_agg(id::text, ' ' ORDER BY id) FROM t WHERE v = 'local'"),
            "3 4"
        );
        assert_eq!(s.target_one("SELECT count(*) FROM t WHERE v = 'remote'"), "7");
        assert_eq!((s.conflicts("update_origin_differs"), s.conflicts("delete_origin_differs")), (1, 1));
    });
}

/// The transaction that met a conflict becomes the victim of a deadlock. It is applied again, and
/// its conflict is counted and recorded once.
#[test]
fn a_conflict_of_a_transaction_that_met_a_deadlock_counts_once() {
    under(&["insert_exists=keep_local"], plain, |s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
        // The applier is the victim: it looks first.
        for number in 0..s.followers() {
            let sql = format!("ALTER DATABASE {} SET deadlock_timeout = '3s'", s.name(number));
            s.pair().target.sql("postgres", &sql).unwrap();
        }
        s.follow();
        s.target("INSERT INTO t VALUES (100, 'local')");
        let urls: Vec<String> = (0..s.followers()).map(|number| s.target_url(number)).collect();
        std::thread::scope(|scope| {
            let locals: Vec<_> = urls
                .iter()
                .map(|url| {
                    let mut session = Session::to(url);
                    session.run("SET deadlock_timeout = '1h'; BEGIN; SELECT FROM t WHERE id = 5 FOR UPDATE");
                    scope.spawn(move || {
                        wait_until_blocked(url);
                        let free = "SELECT id FROM t WHERE id < 10 FOR UPDATE SKIP LOCKED";
                        session.run("SAVEPOINT look");
                        let free = session.query(free).unwrap().len();
                        session.run("ROLLBACK TO look");
                        // It goes on when the applier has been rolled back.
                        session.run("SELECT FROM t WHERE id < 10 ORDER BY id FOR UPDATE; COMMIT");
                        free
                    })
                })
                .collect();
            s.source("INSERT INTO t VALUES (100, 'source'); UPDATE t SET v = 'w' WHERE id < 10");
            let free: Vec<usize> = locals.into_iter().map(|local| local.join().unwrap()).collect();
            assert!(free.iter().all(|free| *free < 9), "the applier held no row: {free:?}");
        });
        s.catch_up();
        assert_eq!(s.target_one("SELECT count(*) FROM t WHERE v = 'w'"), "9");
        for number in 0..s.followers() {
            let met =
                format!("SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = '{}'", s.name(number));
            wait_for("a deadlock", BOUND, || Ok(s.pair().target.one("postgres", &met) == "t")).unwrap();
        }
        assert_eq!(s.conflicts("insert_exists"), 1);
        let recorded =
            "SELECT string_agg(concat_ws(' ', type, outcome), ', ') FROM pgsluice.conflict_history";
        assert_eq!(s.target_one(recorded), "insert_exists kept");
    });
}

/// The database of the native subscription, in the target's cluster.
const NATIVE: &str = "native";

/// Updates one row until it is told to stop. Each new version is in another place of the index.
fn write_hot_row(url: String, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut session = Session::to(&url);
        session.run("SET synchronous_commit = off");
        while !stop.load(Ordering::Relaxed) {
            session.run("DO $$ BEGIN FOR i IN 1..20 LOOP UPDATE hot SET n = n + 1 WHERE id = 1; COMMIT; END LOOP; END $$");
        }
    })
}

/// One row of the target gets new versions all the time, and an old snapshot keeps the versions
/// that are gone. Native apply of 18 looks for the row by an index, passes over every version, and
/// reports a missing row that was never away. Here none is.
#[test]
fn f6_a_row_that_gets_new_versions_all_the_time_is_never_missing() {
    const ROUNDS_MAX: usize = 8;
    scenario_alone(&[FOLDED], plain, plain, |s| {
        let table = "CREATE TABLE hot (id int PRIMARY KEY, v int, n int); CREATE INDEX ON hot (n); CREATE INDEX ON hot (v)";
        s.both(table);
        s.source("INSERT INTO hot VALUES (1, 0, 0)");
        s.publish("FOR TABLE hot, mark");
        s.follow();
        let is_compared = s.major() >= 18;
        let target = s.pair().target.url(NATIVE);
        if is_compared {
            let cluster = &s.pair().target;
            cluster.sql("postgres", &format!("CREATE DATABASE {NATIVE}")).unwrap();
            let rows = "INSERT INTO hot VALUES (1, 0, 0); CREATE TABLE mark (id int PRIMARY KEY)";
            cluster.sql(NATIVE, &format!("{table}; {rows}")).unwrap();
            let subscription = format!(
                "CREATE SUBSCRIPTION n CONNECTION '{}' PUBLICATION p WITH (copy_data = false)",
                s.source_url()
            );
            cluster.sql(NATIVE, &subscription).unwrap();
        } else {
            println!("not compared with native: PostgreSQL {} does not count missing rows", s.major());
        }
        let urls: Vec<String> = [s.target_url(0)].into_iter().chain(is_compared.then_some(target)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut old: Vec<Session> = urls.iter().map(|url| Session::to(url)).collect();
        for session in &mut old {
            session.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM hot");
        }
        let writers: Vec<_> = urls
            .iter()
            .flat_map(|url| [url, url])
            .map(|url| write_hot_row(url.clone(), Arc::clone(&stop)))
            .collect();
        let missing = "SELECT confl_update_missing FROM pg_stat_subscription_stats WHERE subname = 'n'";
        let mut native = 0;
        for _ in 0..if is_compared { ROUNDS_MAX } else { 1 } {
            s.source("DO $$ BEGIN FOR i IN 1..1500 LOOP UPDATE hot SET v = v + 1 WHERE id = 1; COMMIT; END LOOP; END $$");
            s.catch_up();
            assert_eq!(s.conflicts("update_missing"), 0);
            if is_compared {
                let last = s.source_one("SELECT max(id) FROM mark");
                let has_come = format!("SELECT count(*) FROM mark WHERE id = {last}");
                let cluster = &s.pair().target;
                wait_for("the native subscription", BOUND, || Ok(cluster.one(NATIVE, &has_come) == "1"))
                    .unwrap();
                native = cluster.one(NATIVE, missing).parse().unwrap();
            }
            if native > 0 {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(s.target_one("SELECT v FROM hot"), s.source_one("SELECT v FROM hot"));
        if is_compared {
            println!("native apply missed the row {native} times");
            s.pair().target.sql(NATIVE, "DROP SUBSCRIPTION n").unwrap();
            assert!(native > 0, "native apply has missed nothing either, so this shows nothing");
        }
    });
}

/// Waits until a query answers `t`, and returns within a millisecond: what is applied is flushed
/// some 50 ms later.
fn wait_closely(url: &str, sql: &str) {
    let (mut session, began) = (Session::to(url), Instant::now());
    while session.query(sql).unwrap()[0][0].as_deref() != Some("t") {
        assert!(began.elapsed() < BOUND, "it does not come true: {sql}");
    }
}

/// The target is killed after it has applied an UPDATE of a deleted row, and before that is on its
/// disk. The UPDATE comes again, and the deletion is still known.
#[test]
fn d2_a_target_killed_between_applied_and_flushed_still_knows_the_deletion() {
    let lazy = |target: Builder| {
        target.durable().setting("synchronous_commit", "off").setting("wal_writer_delay", "10s")
    };
    scenario_alone(&[&[RETAIN, LOGICAL].concat()], plain, lazy, |s| {
        follow(s);
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(101, 130) i");
        s.catch_up();
        let mut came_again = false;
        let mut rounds = 0;
        while !came_again {
            rounds += 1;
            // On a busy machine it often has.
            assert!(rounds < 30, "the target has always flushed before it was killed");
            wait_for_capture(s);
            let before = s.conflicts("update_deleted");
            let mut held = Session::to(&s.target_url(0));
            held.run("SET synchronous_commit = off; BEGIN; SELECT FROM t WHERE id = 9 FOR UPDATE");
            s.source("UPDATE t SET v = 'held' WHERE id = 9");
            s.source(&format!("UPDATE t SET v = 'w' WHERE id = 100 + {rounds}"));
            s.target(&format!("DELETE FROM t WHERE id = 100 + {rounds}"));
            held.run("COMMIT");
            wait_closely(
                &s.target_url(0),
                &format!("SELECT count(*) >= {rounds} FROM pgsluice.conflict_history"),
            );
            s.pair_mut().target.kill9();
            s.pair_mut().target.start_again().unwrap();
            s.catch_up();
            came_again = s.conflicts("update_deleted") > before + 1;
        }
        let history =
            "SELECT string_agg(DISTINCT type, ',') || ' ' || count(*) FROM pgsluice.conflict_history";
        assert_eq!(s.target_one(history), format!("update_deleted {rounds}"));
        assert_eq!(s.conflicts("update_missing"), 0);
    });
}

/// Rules by which both ends of a pair keep the later version.
const LATER_WINS: [&str; 8] = [
    "--conflict",
    "insert_exists=last_update_wins",
    "--conflict",
    "update_origin_differs=last_update_wins",
    "--conflict",
    "update_exists=last_update_wins",
    "--conflict",
    "update_deleted=last_update_wins",
];

/// Both sides change the same rows while neither direction runs. `changes` are made in turn: true
/// for one of the source.
fn apart_and_together(
    changes: &[(bool, &str)],
    tables: &str,
    rows: &str,
    assert: impl Fn(&mut Scenario) + Sync,
) {
    for mode in ["logical", "wal"] {
        let own = [&LATER_WINS[..], RETAIN, &["--origin", "none", "--source-mode", mode]].concat();
        let logical = |builder: Builder| track(builder).setting("wal_level", "logical");
        scenario_alone(&[&own], logical, logical, |s| {
            s.both(tables);
            s.source(rows);
            let mut back = WayBack::start(s, &own);
            s.follow();
            wait_until_both(s, &back, "SELECT count(*) > 0 FROM t");
            s.stop();
            back.stop();
            for (is_source, sql) in changes {
                if *is_source { s.source(sql) } else { s.target(sql) }
            }
            s.run();
            back.start_again(s);
            // Behind everything that either direction brings.
            s.catch_up();
            s.target("INSERT INTO mark VALUES (1000000)");
            let last = "SELECT count(*) = 1 FROM mark WHERE id = 1000000";
            wait_for("the way back", BOUND, || Ok(s.source_one(last) == "t")).unwrap();
            assert(s);
            back.end(s);
        });
    }
}

/// An UPDATE that did not send a large value meets another side's UPDATE of that value.
#[test]
fn d3_large_values_that_were_not_sent_end_equal_with_full_identity() {
    let table = "CREATE TABLE t (id int PRIMARY KEY, n int, large text); ALTER TABLE t REPLICA IDENTITY FULL; \
                 ALTER TABLE t ALTER large SET STORAGE EXTERNAL";
    let rows = "INSERT INTO t SELECT i, 0, repeat('x', 10000) FROM generate_series(1, 130) i";
    // One row by itself, many rows as a set, and many small transactions, in both orders of time.
    let changes = [
        (true, "UPDATE t SET n = 1 WHERE id = 1"),
        (true, "UPDATE t SET n = 1 WHERE id BETWEEN 11 AND 40"),
        (false, "UPDATE t SET large = repeat('y', 10000) WHERE id IN (1, 2)"),
        (false, "UPDATE t SET large = repeat('y', 10000) WHERE id BETWEEN 11 AND 80"),
        (false, "UPDATE t SET large = repeat('y', 10000) WHERE id BETWEEN 91 AND 120"),
        (true, "DO $$ BEGIN FOR i IN 91..120 LOOP UPDATE t SET n = 4 WHERE id = i; COMMIT; END LOOP; END $$"),
        (true, "UPDATE t SET n = 2 WHERE id = 2"),
        (
            true,
            "UPDATE t SET n = 2 WHERE id BETWEEN 41 AND 80; UPDATE t SET n = 3 WHERE id BETWEEN 61 AND 80",
        ),
    ];
    apart_and_together(&changes, table, rows, |s| {
        s.same_table("t");
        let ends = "SELECT string_agg(concat_ws(' ', n, first, count), ', ' ORDER BY n, first) FROM \
                    (SELECT n, left(large, 1) AS first, count(*) FROM t GROUP BY n, first) g";
        assert_eq!(s.target_one(ends), "0 x 28, 0 y 31, 2 x 21, 3 x 20, 4 x 30");
    });
}

/// One side changes a row's key after the other side has updated the row.
#[test]
fn d3_a_key_change_that_is_later_than_an_update_wins_on_both_sides() {
    let rows = "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i";
    let changes = [
        (false, "UPDATE t SET v = 'target' WHERE id = 1"),
        (true, "UPDATE t SET id = 101, v = 'source' WHERE id = 1"),
        (true, "UPDATE t SET v = 'source' WHERE id = 2"),
        (false, "UPDATE t SET id = 102, v = 'target' WHERE id = 2"),
    ];
    apart_and_together(&changes, TABLE, rows, |s| {
        s.same_table("t");
        let ends =
            "SELECT string_agg(concat_ws(' ', id, v), ', ' ORDER BY id) FROM t WHERE id < 3 OR id > 100";
        assert_eq!(s.target_one(ends), "101 source, 102 target");
    });
}

/// In the other order the ends differ, as the page about conflicts says: the side that changed the
/// key keeps that row, and gets the updated one back.
#[test]
fn an_update_that_is_later_than_a_key_change_brings_the_row_back_on_one_side() {
    let rows = "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i";
    let changes = [
        (true, "UPDATE t SET id = 101, v = 'source' WHERE id = 1"),
        (false, "UPDATE t SET v = 'target' WHERE id = 1"),
    ];
    apart_and_together(&changes, TABLE, rows, |s| {
        let ends =
            "SELECT string_agg(concat_ws(' ', id, v), ', ' ORDER BY id) FROM t WHERE id < 2 OR id > 100";
        assert_eq!(s.target_one(ends), "1 target");
        assert_eq!(s.source_one(ends), "1 target, 101 source");
    });
}
