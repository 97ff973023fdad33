//! Several apply workers execute independent transactions ahead of their turn, and yet the target
//! shows only states of the source.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::wait_for;

use crate::support::{BOUND, Scenario, Session, scenario_alone, scenario_with};

/// Small chunks of ten or four changes, so that there are many.
const PARALLEL: &[&[&str]] = &[
    &["--max-parallel-apply-workers-per-subscription", "4", "--batch-rows-max", "40"],
    &["--max-parallel-apply-workers-per-subscription", "3", "--batch-rows-max", "16", "--binary", "off"],
];
/// Fewer than four changes are handed over only while nothing is being executed.
const FOUR: &[&[&str]] = &[&["--max-parallel-apply-workers-per-subscription", "4", "--batch-rows-max", "16"]];

const WORKERS: &str = "PGSLUICE_MAX_PARALLEL_APPLY_WORKERS_PER_SUBSCRIPTION";

/// Runs `write` on the source while no follower runs, so that there is enough to execute ahead.
/// Then checks repeatedly, until the target is level, that it shows a state of the source.
fn catch_up_watched(s: &mut Scenario, write: &str, is_state: &'static str) {
    s.stop();
    s.source(write);
    let readers: Vec<Reader> =
        (0..s.followers()).map(|number| Reader::start(s.target_url(number), is_state)).collect();
    s.follow();
    readers.into_iter().for_each(Reader::stop);
    s.same();
}

fn total(s: &Scenario, number: usize, what: &str) -> u64 {
    s.status(number)["totals"][what].as_u64().unwrap()
}

/// Reads a boolean repeatedly, which must always be true.
struct Reader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u32, Option<String>)>,
}

impl Reader {
    /// `sql` returns whether the state is one of the source's, and its description.
    fn start(url: String, sql: &'static str) -> Reader {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut session, mut looks) = (Session::to(&url), 0);
            while !stopped.load(Ordering::Relaxed) {
                let rows = session.query(sql).unwrap_or_else(|error| panic!("{error}"));
                looks += 1;
                if rows[0][0].as_deref() != Some("t") {
                    return (looks, Some(format!("{:?}", rows[0])));
                }
            }
            (looks, None)
        });
        Reader { stop, thread }
    }

    #[track_caller]
    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (looks, violation) = self.thread.join().unwrap();
        assert_eq!(violation, None, "after {looks} looks");
        assert!(looks > 10, "only {looks} looks");
    }
}

/// Transaction i writes the number i to one of three tables, so a prefix has as many rows as its
/// largest number.
#[test]
fn p1_no_transaction_becomes_visible_before_its_predecessors() {
    scenario_with(PARALLEL, |s| {
        s.both("CREATE TABLE a (n int PRIMARY KEY, v text); CREATE TABLE b (LIKE a INCLUDING ALL); CREATE TABLE c (LIKE a)");
        s.follow();
        let prefix = "SELECT count(*) = coalesce(max(n), 0), count(*), max(n) \
                      FROM (SELECT n FROM a UNION ALL SELECT n FROM b UNION ALL SELECT n FROM c) t";
        let write = "DO $$ BEGIN FOR i IN 1 .. 6000 LOOP \
               EXECUTE format('INSERT INTO %I VALUES ($1, repeat(''x'', mod($1, 50)))', (ARRAY['a', 'b', 'c'])[1 + i % 3]) USING i; \
               COMMIT; END LOOP; END $$";
        catch_up_watched(s, write, prefix);
        for number in 0..s.followers() {
            assert!(total(s, number, "ahead") > 20, "{}", s.status(number));
            assert_eq!((total(s, number, "replays"), total(s, number, "transactions")), (0, 6001));
        }
    });
}

/// Transactions with hot and independent rows: dependent ones wait, and the sum of money stays the
/// same.
#[test]
fn p1_dependent_rows_are_written_in_order() {
    scenario_with(PARALLEL, |s| {
        s.both("CREATE TABLE account (id int PRIMARY KEY, n int NOT NULL); CREATE TABLE teller (id int PRIMARY KEY, n int NOT NULL); \
                CREATE TABLE history (account int, teller int, n int)");
        s.source("INSERT INTO account SELECT i, 0 FROM generate_series(0, 999) i; INSERT INTO teller SELECT i, 0 FROM generate_series(0, 2) i");
        s.follow();
        let balanced = "SELECT (SELECT sum(n) FROM account) = (SELECT sum(n) FROM teller) \
                        AND (SELECT sum(n) FROM teller) = (SELECT coalesce(sum(n), 0) FROM history)";
        let write = "DO $$ BEGIN FOR i IN 1 .. 4000 LOOP \
               UPDATE account SET n = n + i WHERE id = i * 37 % 1000; UPDATE teller SET n = n + i WHERE id = i % 3; \
               INSERT INTO history VALUES (i * 37 % 1000, i % 3, i); \
               IF i % 9 = 0 THEN DELETE FROM account WHERE id = i * 11 % 1000 AND n = 0; \
                 INSERT INTO account VALUES (i * 11 % 1000, 0) ON CONFLICT DO NOTHING; END IF; COMMIT; END LOOP; END $$";
        catch_up_watched(s, write, balanced);
        for number in 0..s.followers() {
            assert!(total(s, number, "ahead") > 20, "{}", s.status(number));
        }
    });
}

/// One transaction frees a value of a secondary unique key, and the next takes it. No change shows
/// that it was freed.
#[test]
fn a1_what_is_met_too_early_is_never_reported() {
    scenario_with(PARALLEL, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v int)");
        s.source("INSERT INTO t SELECT i, i, 0 FROM generate_series(1, 60) i");
        s.follow();
        s.source(
            "DO $$ BEGIN FOR i IN 1 .. 1500 LOOP \
               DELETE FROM t WHERE id = 1 + i % 60; COMMIT; \
               INSERT INTO t VALUES (1000 + i, 1 + i % 60, i); COMMIT; \
               UPDATE t SET u = -u WHERE id = 1000 + i; COMMIT; \
               INSERT INTO t VALUES (1 + i % 60, 1 + i % 60, i); COMMIT; \
               DELETE FROM t WHERE id = 1000 + i; COMMIT; END LOOP; END $$",
        );
        s.catch_up();
        s.same();
        for kind in ["insert_exists", "update_missing", "delete_missing", "update_exists"] {
            assert_eq!(s.conflicts(kind), 0, "{kind}");
        }
        for number in 0..s.followers() {
            assert_eq!(total(s, number, "errors"), 0);
        }
    });
}

/// Only the head reports a real conflict, and once.
#[test]
fn a1_a_conflict_is_reported_once_and_by_the_head() {
    scenario_with(PARALLEL, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 400) i");
        s.follow();
        s.target("DELETE FROM t WHERE id % 50 = 0");
        s.source(
            "DO $$ BEGIN FOR i IN 1 .. 400 LOOP UPDATE t SET n = i WHERE id = i; COMMIT; END LOOP; END $$",
        );
        s.catch_up();
        assert_eq!(s.conflicts("update_missing"), 8);
        s.same_as("t", "SELECT * FROM t WHERE id % 50 <> 0");
    });
}

/// If changes do not show by which values rows may collide, transactions on such tables are
/// serialised.
#[test]
fn a2_tables_with_hidden_keys_are_serialised() {
    // The log names why a chunk did not hold.
    let told = PARALLEL.iter().map(|own| [own, &["--log-level", "info,apply=debug"][..]].concat());
    let told: Vec<Vec<&str>> = told.collect();
    let told: Vec<&[&str]> = told.iter().map(Vec::as_slice).collect();
    scenario_with(&told, |s| {
        s.both(
            "CREATE TABLE expr (id int PRIMARY KEY, t text); CREATE UNIQUE INDEX ON expr (lower(t)); \
             CREATE TABLE partial (id int PRIMARY KEY, owner int, active bool); \
             CREATE UNIQUE INDEX ON partial (owner) WHERE active; \
             CREATE TABLE excl (id int PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&)); \
             CREATE TABLE num (id numeric PRIMARY KEY, n int); \
             CREATE TABLE part (id int, k int, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id); \
             CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10); \
             CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (10) TO (99); CREATE UNIQUE INDEX ON part2 (k)",
        );
        s.source(
            "INSERT INTO expr VALUES (1, 'A'); INSERT INTO partial VALUES (1, 1, true); \
             INSERT INTO excl VALUES (1, '[1,5)'); INSERT INTO num VALUES (1.0, 0); \
             INSERT INTO part VALUES (1, 1, 0), (11, 1, 0)",
        );
        s.publish("FOR ALL TABLES WITH (publish_via_partition_root = true)");
        s.follow();
        s.source(
            "DO $$ BEGIN FOR i IN 1 .. 250 LOOP \
               UPDATE expr SET t = 'x' || i WHERE id = i; COMMIT; INSERT INTO expr VALUES (i + 1, 'a'); COMMIT; \
               DELETE FROM partial WHERE id = i; COMMIT; INSERT INTO partial VALUES (i + 1, 1, true); COMMIT; \
               DELETE FROM excl WHERE id = i; COMMIT; INSERT INTO excl VALUES (i + 1, '[2,6)'); COMMIT; \
               DELETE FROM num; COMMIT; INSERT INTO num VALUES (CASE i % 2 WHEN 0 THEN 1.0 ELSE 1.00 END, i); COMMIT; \
               DELETE FROM part WHERE id = 10 + i % 80; COMMIT; \
               INSERT INTO part VALUES (10 + (i + 1) % 80, 1, i) ON CONFLICT DO NOTHING; COMMIT; \
               END LOOP; END $$",
        );
        s.catch_up();
        s.same();
        for number in 0..s.followers() {
            let log = s.log(number);
            let early: Vec<&str> =
                log.lines().filter(|line| line.contains("does not hold so early")).collect();
            assert_eq!(total(s, number, "ahead_void"), 0, "strategy {number}: {early:#?}");
        }
    });
}

/// TRUNCATE and firing triggers are barriers, so a trigger sees the right rows.
#[test]
fn a2_triggers_and_truncate_are_barriers() {
    scenario_with(PARALLEL, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE log (id int PRIMARY KEY, n int)");
        s.target(
            "CREATE TABLE seen (id int, total bigint); \
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS \
               $$ BEGIN INSERT INTO public.seen SELECT NEW.id, count(*) FROM public.t; RETURN NEW; END $$; \
             CREATE TRIGGER see BEFORE INSERT ON log FOR EACH ROW EXECUTE FUNCTION see(); \
             ALTER TABLE log ENABLE ALWAYS TRIGGER see",
        );
        s.follow();
        s.source(
            "DO $$ BEGIN FOR i IN 1 .. 600 LOOP \
               INSERT INTO t VALUES (i, 0); COMMIT; \
               IF i % 20 = 0 THEN INSERT INTO log VALUES (i, (SELECT count(*) FROM t)); COMMIT; END IF; \
               IF i % 150 = 0 THEN TRUNCATE t; COMMIT; END IF; END LOOP; END $$",
        );
        s.catch_up();
        s.same();
        let wrong = "SELECT count(*) FROM seen JOIN log USING (id) WHERE seen.total <> log.n";
        assert_eq!(s.target_one(wrong), "0");
        assert_eq!(s.target_one("SELECT count(*) FROM seen"), "30");
    });
}

/// A query for an apply session of `s` in this state.
fn applying(state: &str) -> String {
    format!(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
          AND application_name LIKE '%apply' AND {state}"
    )
}

/// Creates a table of twenty rows and a session of the target that locks the first, and updates
/// each row in its own transaction. The head waits for that session, and other transactions were
/// executed ahead.
fn held_head(s: &mut Scenario, deadlock_timeout: &str) -> Session {
    s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
    s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i");
    let db = s.target_one("SELECT current_database()");
    s.target(&format!("ALTER DATABASE {db} SET deadlock_timeout = '{deadlock_timeout}'"));
    s.follow();
    let mut holder = Session::to(&s.target_url(0));
    for _ in 0..10 {
        holder.run("BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE");
        s.source(
            "DO $$ BEGIN FOR i IN 1 .. 20 LOOP UPDATE t SET n = n + i WHERE id = i; COMMIT; END LOOP; END $$",
        );
        let is = |state: &str| Ok(s.target_one(&applying(state)) == "t");
        wait_for("the head to wait", BOUND, || is("wait_event_type = 'Lock'")).unwrap();
        let soon = Duration::from_secs(3);
        if wait_for("a chunk ahead", soon, || is("state = 'idle in transaction'")).is_ok() {
            return holder;
        }
        // On a busy machine all may arrive at once, as one chunk.
        holder.run("COMMIT");
        s.catch_up();
    }
    panic!("no chunk is ever executed ahead");
}

/// Between transactions the source reports its position. That is not work: transactions after it
/// are executed ahead of a waiting one before it.
#[test]
fn what_follows_a_position_of_the_source_is_executed_ahead() {
    scenario_with(FOUR, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE held (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO held VALUES (1, 0)");
        s.follow();
        let mut holder = Session::to(&s.target_url(0));
        holder.run("BEGIN; SELECT FROM held FOR UPDATE");
        s.source("UPDATE held SET n = 1");
        let is = |state: &str| Ok(s.target_one(&applying(state)) == "t");
        wait_for("the head to wait", BOUND, || is("wait_event_type = 'Lock'")).unwrap();
        for _ in 0..6 {
            s.source("SELECT pg_logical_emit_message(true, 'nobody', 'listens')");
            // Separates the transactions by time, so that each arrives by itself; nothing
            // observable tells that.
            std::thread::sleep(Duration::from_millis(100));
        }
        s.source("DO $$ BEGIN FOR i IN 1 .. 80 LOOP INSERT INTO t VALUES (i); COMMIT; END LOOP; END $$");
        wait_for("a chunk ahead", BOUND, || is("state = 'idle in transaction'")).unwrap();
        holder.run("COMMIT");
        s.catch_up();
        s.same();
    });
}

/// The head waits for a session of the target, that session for a row of a chunk executed ahead,
/// and that chunk for its turn. Only pgsluice can see this circle; the server's deadlock check
/// cannot.
#[test]
fn a3_a_wait_that_the_server_cannot_see_is_ended() {
    scenario_with(FOUR, |s| {
        let mut holder = held_head(s, "10min");
        // Waits for rows that were written ahead; then releases the head's row.
        holder.run("SELECT FROM t WHERE id > 1 FOR UPDATE; COMMIT");
        s.catch_up();
        s.same();
    });
}

/// The same with two sessions of one client, which waits for one before it ends the other.
#[test]
fn a3_a_wait_that_goes_through_a_client_is_ended() {
    scenario_with(FOUR, |s| {
        let mut holder = held_head(s, "300ms");
        let mut second = Session::to(&s.target_url(0));
        second.run("SELECT FROM t WHERE id > 1 FOR UPDATE");
        holder.run("COMMIT");
        s.catch_up();
        s.same();
    });
}

/// The head waits for a unique value that a chunk executed ahead has taken. A chunk in between will
/// free it. The target's index was created after pgsluice had read the table's definition, so
/// pgsluice did not know it.
#[test]
fn a3_a_unique_value_that_was_taken_ahead_is_given_back() {
    scenario_with(FOUR, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, u int); CREATE TABLE held (id int PRIMARY KEY, n int)");
        let db = s.target_one("SELECT current_database()");
        s.target(&format!("ALTER DATABASE {db} SET deadlock_timeout = '10min'"));
        s.source("INSERT INTO held VALUES (1, 0)");
        s.follow();
        s.source("INSERT INTO t VALUES (1, 1)");
        s.catch_up();
        s.target("CREATE UNIQUE INDEX ON t (u)");
        let mut holder = Session::to(&s.target_url(0));
        holder.run("BEGIN; SELECT FROM held FOR UPDATE");
        s.source("UPDATE held SET n = 1; INSERT INTO t VALUES (10, 7)");
        s.source("DELETE FROM t WHERE id = 10");
        s.source("INSERT INTO t VALUES (11, 7)");
        // More than one chunk, even if a busy machine delivers all at once.
        s.source("DO $$ BEGIN FOR i IN 20 .. 80 LOOP INSERT INTO t VALUES (i, i); COMMIT; END LOOP; END $$");
        wait_for("a chunk ahead", BOUND, || {
            Ok(s.target_one(&applying("state = 'idle in transaction'")) == "t")
        })
        .unwrap();
        holder.run("COMMIT");
        s.catch_up();
        s.same();
        assert_eq!((total(s, 0, "errors"), s.conflicts("insert_exists")), (0, 0));
    });
}

/// Transactions after a failure were executed ahead and are not visible; they are applied after the
/// repair.
#[test]
fn f4_what_was_executed_ahead_of_a_failure_is_rolled_back() {
    scenario_with(PARALLEL, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.follow();
        s.stop();
        s.target("INSERT INTO t VALUES (200, -1)");
        s.source("DO $$ BEGIN FOR i IN 1 .. 400 LOOP INSERT INTO t VALUES (i, i); COMMIT; END LOOP; END $$");
        s.run();
        s.wait_for_log("conflict=insert_exists");
        let before = "SELECT count(*) = 199 AND max(id) = 199 FROM t WHERE n > 0";
        assert_eq!(s.target_one(before), "t");
        s.target("DELETE FROM t WHERE id = 200");
        s.catch_up();
        s.same();
    });
}

/// If each source transaction stays one, a session gets several in a row. Slow ones are executed
/// ahead one by one.
#[test]
fn f3_commit_timestamps_stay_the_sources_with_several_workers() {
    let tracks = |builder: testkit::Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(PARALLEL, tracks, tracks, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE hot (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO hot VALUES (1, 0)");
        s.follow();
        let write = |from: u32| {
            format!(
                "DO $$ BEGIN FOR i IN {from} .. {from} + 1499 LOOP INSERT INTO t VALUES (i, i); \
                     IF i % 5 = 0 THEN UPDATE hot SET n = i; END IF; COMMIT; END LOOP; END $$"
            )
        };
        let prefix = "SELECT count(*) = coalesce(max(id), 0) AND (SELECT n FROM hot) / 5 = count(*) / 5, count(*), max(id) FROM t";
        catch_up_watched(s, &write(1), prefix);
        // An index expression slows each transaction.
        s.target(
            "CREATE FUNCTION slow(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_sleep(0.002); RETURN $1; END'; CREATE INDEX ON t (slow(n)) WHERE id > 1500",
        );
        catch_up_watched(s, &write(1501), prefix);
        for table in ["t", "hot"] {
            let stamps = format!(
                "SELECT string_agg(id || '@' || pg_xact_commit_timestamp(xmin), ',' ORDER BY id) FROM {table}"
            );
            assert_eq!(s.target_one(&stamps), s.source_one(&stamps));
        }
        assert_eq!(s.target_one("SELECT count(DISTINCT xmin::text) FROM t"), "3000");
        for number in 0..s.followers() {
            assert!(total(s, number, "ahead") > 20, "{}", s.status(number));
        }
    });
}

/// Another session and the workers deadlock again and again.
#[test]
fn deadlocks_with_sessions_of_the_target_are_tried_again() {
    scenario_with(FOUR, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 12) i");
        let db = s.target_one("SELECT current_database()");
        s.target(&format!("ALTER DATABASE {db} SET deadlock_timeout = '50ms'"));
        s.follow();
        let stop = Arc::new(AtomicBool::new(false));
        let others: Vec<_> = (0..2)
            .map(|number| {
                let (url, stop) = (s.target_url(0), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let mut session = Session::to(&url);
                    let mut deadlocks = 0;
                    for i in (number..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        let (first, second) = (1 + i * 5 % 12, 1 + i * 7 % 12);
                        let lock = |id| format!("SELECT FROM t WHERE id = {id} FOR UPDATE");
                        let sql = format!(
                            "BEGIN; {}; SELECT pg_sleep(0.01); {}; COMMIT",
                            lock(first),
                            lock(second)
                        );
                        if session.query(&sql).is_err() {
                            deadlocks += 1;
                            session.run("ROLLBACK");
                        }
                    }
                    deadlocks
                })
            })
            .collect();
        s.source(
            "DO $$ BEGIN FOR i IN 1 .. 400 LOOP UPDATE t SET n = i WHERE id IN (1 + i % 12, 1 + i * 5 % 12); COMMIT; \
             END LOOP; END $$",
        );
        s.catch_up();
        stop.store(true, Ordering::Relaxed);
        let deadlocks: u32 = others.into_iter().map(|thread| thread.join().unwrap()).sum();
        println!("{deadlocks} deadlocks of the others");
        s.same();
    });
}

/// Progress includes all workers, also those that no longer run.
#[test]
fn p2_fewer_workers_take_over_from_more() {
    scenario_with(&[&["--batch-rows-max", "16"]], |s| {
        let run = |s: &mut Scenario, workers: &str| {
            s.run_with(|command| {
                command.env(WORKERS, workers);
            });
        };
        s.both("CREATE TABLE t (id serial PRIMARY KEY, n int); CREATE TABLE keyless (n int)");
        run(s, "4");
        s.follow();
        let write = "DO $$ BEGIN FOR i IN 1 .. 700 LOOP INSERT INTO t (n) VALUES (i); INSERT INTO keyless VALUES (i); \
                     COMMIT; END LOOP; END $$";
        for (written, workers) in (0..).step_by(700).zip(["1", "4", "2", "1"]) {
            let url = s.source_url();
            let writer = std::thread::spawn(move || Session::to(&url).run(write));
            let some = format!("SELECT count(*) > {} FROM t", written + 50);
            wait_for("some rows", BOUND, || Ok(s.target_one(&some) == "t")).unwrap();
            s.kill();
            writer.join().unwrap();
            run(s, workers);
            s.catch_up();
            s.same();
        }
        let origins = "SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'pgsluice\\_' || current_database() || '\\_%'";
        assert_eq!(s.target_one(origins), "5");
        s.stop();
        s.call(0, &["drop"]).expect_success();
        assert_eq!(s.left_behind(), Vec::<String>::new());
    });
}

#[test]
fn a_target_without_room_for_all_workers_has_fewer() {
    let target = |builder: testkit::Builder, major: u32| match major {
        18.. => builder.setting("max_active_replication_origins", "2"),
        _ => builder.setting("max_replication_slots", "2"),
    };
    for major in testkit::Major::under_test() {
        let pair = testkit::Pair::with(
            testkit::Cluster::builder(major),
            target(testkit::Cluster::builder(major), major.number()),
        );
        let mut s = Scenario::alone(pair.unwrap(), FOUR);
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        s.wait_for_log("pgsluice applies with 2 of 5 sessions");
        s.source("DO $$ BEGIN FOR i IN 1 .. 300 LOOP INSERT INTO t VALUES (i); COMMIT; END LOOP; END $$");
        s.catch_up();
        s.same();
        s.kill();
        s.follow();
        s.stop();
    }
}
