//! Pages read ahead: which ones, never at the expense of applying, and always with the same rows.
//!
//! A lock on the target's table that admits readers separates the two. pgsluice waits to write and
//! its look-ups do not wait, so the server's counts meanwhile belong to the look-ups.

use testkit::{Builder, StopMode, wait_for};

use crate::support::{BOUND, Scenario, Session, scenario_alone, scenario_with};

const MODES: &[&[&str]] = &[
    &["--prefetch", "all"],
    &["PGTARGETSESSIONATTRS=read-write", "--prefetch", "all", "--binary", "off"],
    &["--prefetch-replica-identity-only"],
    &["--prefetch", "off"],
];
/// Of [`MODES`], by number.
const ALL: [usize; 2] = [0, 1];
const IDENTITY: usize = 2;
const OFF: usize = 3;

const ROWS: u32 = 20_000;
/// Heap pages that are read ahead at least. Once look-ups are known to read, statements are small.
/// Two of them and what lies ahead come to some sixty pages.
const READ: u64 = 40;

fn plain(builder: Builder) -> Builder {
    builder
}

/// The table has several times as many pages.
fn small_buffers(builder: Builder) -> Builder {
    builder.setting("shared_buffers", "1MB")
}

/// Enough for the table, so that what was read is counted once.
fn cold_buffers(builder: Builder) -> Builder {
    builder.setting("autovacuum", "off")
}

fn table(s: &mut Scenario) {
    s.both(
        "CREATE TABLE t (id int PRIMARY KEY, sk int, name text, v int, filler text DEFAULT repeat('x', 300));
         CREATE INDEX t_sk ON t (sk); CREATE INDEX t_name_v ON t (name DESC, v);
         CREATE INDEX t_some ON t (sk) WHERE v < 0; CREATE INDEX t_expr ON t ((v % 7))",
    );
    s.source(&format!(
        "INSERT INTO t SELECT i, hashint4(i), md5(i::text), i % 100 FROM generate_series(1, {ROWS}) i"
    ));
    s.follow();
}

/// Pages of `relation` that were asked for, and how many of them were read.
fn pages(s: &Scenario, number: usize, relation: &str) -> (u64, u64) {
    let figure = |what: &str| -> u64 {
        let sql = format!(
            "SELECT {what} FROM pg_stat_database, pg_class c WHERE datname = current_database() \
             AND c.oid = '{relation}'::regclass"
        );
        s.target_one_of(number, &sql).parse().unwrap()
    };
    let fetched = figure("pg_stat_get_blocks_fetched(c.oid)");
    (fetched, fetched - figure("pg_stat_get_blocks_hit(c.oid)").min(fetched))
}

fn read(s: &Scenario, number: usize, relation: &str) -> u64 {
    pages(s, number, relation).1
}

/// Asserts that nothing was looked up in `relation`. To plan at all, each session reads the first
/// page of every index of a table. Before it starts, pgsluice looks whether the table has rows.
#[track_caller]
fn untouched(s: &Scenario, number: usize, relation: &str) {
    let (fetched, _) = pages(s, number, relation);
    let most = if relation == "t" { 5 } else { 40 };
    assert!(fetched < most, "follower {number} asked for {fetched} pages of {relation}");
}

/// Starts the target with empty buffers and lets no session write to the table. The source has
/// written `sql` by then.
fn blocked(s: &mut Scenario, sql: &str) -> Vec<Session> {
    s.stop();
    s.pair_mut().target.restart(StopMode::Fast).unwrap();
    let lock = |number: usize| {
        let mut session = Session::to(&s.target_url(number));
        // What was counted before the stop was kept.
        session.run("SELECT pg_stat_reset()");
        session.run("BEGIN; LOCK TABLE t IN SHARE MODE");
        session
    };
    let locks = (0..s.followers()).map(lock).collect();
    s.source(sql);
    s.run();
    locks
}

#[track_caller]
fn wait_until(s: &Scenario, number: usize, what: &str, condition: impl Fn() -> bool) {
    let seen = wait_for(what, BOUND, || Ok(condition()));
    assert!(seen.is_ok(), "{seen:?}: {}\n{}", s.status(number)["prefetch"], s.log(number));
}

/// What follower `number` says of its prefetching.
fn figure(s: &Scenario, number: usize, what: &str) -> u64 {
    s.status(number)["prefetch"][what].as_u64().unwrap()
}

#[test]
fn r1_an_insert_reads_the_leaves_it_enters_and_no_heap_page() {
    scenario_alone(MODES, plain, cold_buffers, |s| {
        table(s);
        let insert = format!(
            "INSERT INTO t SELECT i, hashint4(i), md5(i::text), 5 FROM generate_series({ROWS} + 1, {ROWS} + 3000) i"
        );
        let locks = blocked(s, &insert);
        for number in ALL {
            for index in ["t_sk", "t_name_v"] {
                wait_until(s, number, index, || read(s, number, index) > 20);
            }
            wait_until(s, number, "its figures", || figure(s, number, "blocks_read") > 40);
            for relation in ["t", "t_some", "t_expr"] {
                untouched(s, number, relation);
            }
        }
        for number in [IDENTITY, OFF] {
            untouched(s, number, "t");
            untouched(s, number, "t_sk");
        }
        locks.into_iter().for_each(|mut lock| lock.run("ROLLBACK"));
        s.catch_up();
        s.same();
    });
}

#[test]
fn r1_an_update_reads_its_row_and_only_leaves_that_its_new_version_enters() {
    scenario_alone(MODES, plain, cold_buffers, |s| {
        table(s);
        // `filler` is in no index: these can be HOT.
        let locks = blocked(s, "UPDATE t SET filler = 'y' WHERE id % 5 = 0");
        for number in [ALL[0], ALL[1], IDENTITY] {
            wait_until(s, number, "heap pages", || read(s, number, "t") > READ);
            wait_until(s, number, "its figures", || figure(s, number, "blocks_read") > READ);
            // Each session reports what it read in its own time.
            wait_until(s, number, "index pages", || read(s, number, "t_pkey") > 0);
            untouched(s, number, "t_sk");
        }
        untouched(s, OFF, "t");
        locks.into_iter().for_each(|mut lock| lock.run("ROLLBACK"));
        s.catch_up();

        // `v` is in two indexes: a new version enters every one of them.
        let locks = blocked(s, "UPDATE t SET v = v + 1 WHERE id % 5 = 1");
        for number in ALL {
            wait_until(s, number, "leaves", || {
                read(s, number, "t_sk") > 20 && read(s, number, "t_name_v") > 20
            });
        }
        wait_until(s, IDENTITY, "heap pages", || read(s, IDENTITY, "t") > READ);
        untouched(s, IDENTITY, "t_sk");
        locks.into_iter().for_each(|mut lock| lock.run("ROLLBACK"));
        s.catch_up();
        s.same();
    });
}

#[test]
fn each_transaction_by_itself_is_still_read_ahead() {
    let stamped = |builder: Builder| cold_buffers(builder).setting("track_commit_timestamp", "on");
    scenario_alone(&[&["--prefetch", "identity"]], plain, stamped, |s| {
        table(s);
        // The first waits for the lock with its transaction; the next ones are read ahead.
        let single = "DO $$ BEGIN FOR i IN 1 .. 1000 LOOP \
                      UPDATE t SET filler = 'y' WHERE id = 1 + i * 19; COMMIT; END LOOP; END $$";
        let locks = blocked(s, single);
        wait_until(s, 0, "heap pages", || read(s, 0, "t") > 100);
        locks.into_iter().for_each(|mut lock| lock.run("ROLLBACK"));
        s.catch_up();
        s.same();
        let status = s.status(0);
        assert!(status["totals"]["batches"].as_u64().unwrap() >= 1000, "{status}");
    });
}

#[test]
fn it_pauses_while_everything_is_in_memory() {
    scenario_with(&[&["--prefetch", "all"]], |s| {
        table(s);
        s.target("SET enable_seqscan = off; SELECT count(filler), max(name) FROM t");
        for _ in 0..4 {
            s.source("UPDATE t SET v = v + 1, filler = 'y'");
            s.catch_up();
        }
        let status = s.status(0);
        let prefetch = &status["prefetch"];
        let rows = prefetch["rows"].as_u64().unwrap();
        assert!(rows >= 256, "it was never tried: {prefetch}\n{}", s.log(0));
        assert!(rows < u64::from(ROWS), "{rows} of {} rows were looked up: {prefetch}", 4 * ROWS);
        assert!(prefetch["hit_rate"].as_f64().unwrap() > 0.98, "{prefetch}");
        assert_eq!(prefetch["reading"], false, "{prefetch}");
        s.same();
    });
}

#[test]
fn tables_and_indexes_that_go_while_they_are_read_ahead_stop_nothing() {
    scenario_alone(MODES, plain, small_buffers, |s| {
        s.both("CREATE TABLE u (id int PRIMARY KEY, sk int, v text); CREATE INDEX u_sk ON u (sk)");
        table(s);
        s.source("INSERT INTO u SELECT i, hashint4(i), md5(i::text) FROM generate_series(1, 5000) i");
        let load = |round: u32| {
            s.source(&format!(
                "UPDATE t SET v = v + 1, sk = hashint4(sk) WHERE id % 7 = {round};
                 UPDATE t SET id = id + 1000000 * ({round} + 1) WHERE id % 97 = {round};
                 DELETE FROM t WHERE id % 31 = {round};
                 UPDATE u SET sk = sk + 1 WHERE id % 2 = 0;
                 INSERT INTO t SELECT i, hashint4(i), NULL, i % 100 \
                     FROM generate_series(100000 * ({round} + 1), 100000 * ({round} + 1) + 1999) i"
            ));
            s.source(&format!(
                "DO $$ BEGIN FOR i IN 1 .. 300 LOOP \
                 UPDATE t SET filler = 'z' || i WHERE id = 1 + (i * 61 + {round}) % {ROWS}; COMMIT; END LOOP; END $$"
            ));
        };
        load(0);
        s.target("DROP INDEX t_sk");
        load(1);
        s.source("TRUNCATE u; INSERT INTO u SELECT i, i, 'again' FROM generate_series(1, 3000) i");
        s.target("CREATE INDEX t_sk_again ON t (sk, id); DROP INDEX t_name_v");
        load(2);
        s.source("TRUNCATE t");
        load(3);
        s.source("INSERT INTO t SELECT i, i, 'x', i FROM generate_series(1, 3000) i");
        load(4);
        s.catch_up();
        s.same();
        for number in ALL {
            let status = s.status(number);
            assert!(
                // How many is a matter of how slow the machine is.
                status["prefetch"]["rows"].as_u64().unwrap() > 0,
                "{}\n{}",
                status["prefetch"],
                s.log(number)
            );
            assert_eq!(status["totals"]["errors"], 0, "{}", s.log(number));
        }
        assert_eq!(figure(s, OFF, "rows"), 0);
    });
}

#[test]
fn a_target_without_a_connection_left_is_applied_to_all_the_same() {
    let few = |builder: Builder| cold_buffers(builder).setting("max_connections", "25");
    // Looking for new tables takes a connection now and then, and gives it back.
    scenario_alone(&[&["--prefetch", "all", "--refresh-interval", "0"]], plain, few, |s| {
        table(s);
        s.target("SELECT 1");
        let mut taken = Vec::new();
        loop {
            let mut session = Session::to(&s.target_url(0));
            if session.query("SELECT 1").is_err() {
                break;
            }
            taken.push(session);
        }
        s.source("UPDATE t SET filler = 'y'");
        s.catch_up();
        wait_until(s, 0, "the trouble to be said", || {
            s.status(0)["prefetch"]["trouble"].as_str().is_some_and(|why| why.contains("too many clients"))
        });
        s.wait_for_log("prefetch is off for 60 s");
        drop(taken);
        s.same();
    });
}
