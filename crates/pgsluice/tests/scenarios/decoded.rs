//! The specifics of `source_mode = wal`. The other scenarios prove that it leads to the same rows
//! as `logical`.

mod removed;
mod snapshots;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testkit::{Cluster, Major, StopMode, wait_for};

use crate::support::{BOUND, DECODED, FOLDED, Scenario, Session, position, scenario_alone, scenario_with};

const ONE: &[&[&str]] = &[&["--source-mode", "wal", "--wal-stream", "on"]];

#[test]
fn a_scenario_that_names_no_source_is_told_over_both() {
    if testkit::source_mode().is_some() {
        return;
    }
    let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
    scenario_with(&[FOLDED], |s| {
        s.follow();
        let kind = format!("SELECT slot_type FROM pg_replication_slots WHERE slot_name = '{}'", s.slot(0));
        seen.lock().unwrap().insert(s.source_one(&kind));
    });
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), Major::in_turn().len().min(2), "{seen:?}");
}

/// From where on the slot keeps WAL.
fn reserved(s: &Scenario) -> u64 {
    let sql = format!("SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = '{}'", s.slot(0));
    position(&s.source_one(&sql))
}

/// Writes until the slot has moved past `lsn`, or for as long as that usually takes. Returns
/// whether it has.
fn moves_past(s: &Scenario, lsn: u64, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while reserved(s) <= lsn && Instant::now() < until {
        s.source("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 500)");
        // It says which transactions are running.
        s.source("CHECKPOINT");
        // Between two looks at a condition that has a bound.
        std::thread::sleep(Duration::from_millis(300));
    }
    reserved(s) > lsn
}

#[test]
fn it_goes_on_where_no_open_transaction_needs_what_came_before() {
    scenario_alone(
        ONE,
        |source| source,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.source("CREATE TABLE noise (v text)");
            s.publish("FOR TABLE t, mark");
            s.follow();
            let begun = reserved(s);
            s.source_in("open", "BEGIN; INSERT INTO t VALUES (1, 'before')");
            let open_since = s.source_position();
            // What the transaction wrote is needed as long as it is open, whenever it is killed.
            assert!(!moves_past(s, open_since, Duration::from_secs(12)), "it was let go of");
            s.kill();
            s.follow();
            s.target("ALTER TABLE t ADD COLUMN w int DEFAULT 7");
            s.source_in(
                "open",
                "ALTER TABLE t ADD COLUMN w int DEFAULT 7; INSERT INTO t VALUES (2, 'after', 8); COMMIT",
            );
            s.catch_up();
            s.same();
            assert!(moves_past(s, open_since, testkit::at_this_load(BOUND)), "{begun} is kept for ever");
            // The catalogs that are kept now have the new column, and not the next.
            s.kill();
            s.both("ALTER TABLE t DROP COLUMN v, ADD COLUMN x text DEFAULT 'x'");
            s.source("INSERT INTO t VALUES (3, 9, 'y'); UPDATE t SET w = w + 1");
            s.source("VACUUM FULL pg_attribute");
            s.follow();
            s.same();
            assert_eq!(
                s.target_one("SELECT string_agg(t::text, ' ' ORDER BY id) FROM t"),
                "(1,8,x) (2,9,x) (3,10,y)"
            );
        },
    );
}

/// Where each stream of WAL began that the source was asked for, the latest last.
fn streams(s: &Scenario) -> Vec<u64> {
    let log = s.pair().source.log();
    let begins = |line: &str| {
        let (_, command) = line.split_once("received replication command: START_REPLICATION")?;
        let (_, at) = command.split_once(" PHYSICAL ").expect("a physical one");
        at.split(' ').next().map(position)
    };
    log.lines().filter_map(begins).collect()
}

/// A stream has no gaps: what it brings is known by where it begins, if there is no other.
#[test]
fn a_restart_reads_each_byte_once_more_at_most() {
    const PAGE: u64 = 8192;
    scenario_alone(
        ONE,
        |source| source.setting("log_replication_commands", "on"),
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id serial PRIMARY KEY, v text)");
            s.source("CREATE TABLE noise (v text)");
            s.publish("FOR TABLE t, mark");
            s.follow();
            let write = |s: &Scenario| {
                s.source("INSERT INTO t (v) SELECT repeat('x', 500) FROM generate_series(1, 2000)");
                s.source("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 3000)");
            };
            for (runs, is_killed) in [(1, false), (2, true), (3, true)] {
                write(s);
                let before = reserved(s);
                assert!(moves_past(s, before, testkit::at_this_load(BOUND)), "{before} is kept for ever");
                write(s);
                s.catch_up();
                assert_eq!(streams(s).len(), runs, "{}", s.log(0));
                match is_killed {
                    true => s.kill(),
                    false => s.stop(),
                }
                let free = "SELECT NOT active FROM pg_replication_slots";
                wait_for("the slot to be free", BOUND, || Ok(s.source_one(free) == "t")).unwrap();
                write(s);
                let (kept, end) = (reserved(s), s.source_position());
                s.follow();
                s.same();
                let all = streams(s);
                assert_eq!(all.len(), runs + 1, "{all:?}\n{}", s.log(0));
                let (earlier, begun) = (all[runs - 1], all[runs]);
                assert!(begun >= kept / PAGE * PAGE && begun > earlier, "kept from {kept} on: {all:?}");
                // It is the one that all has come by.
                let sent = "SELECT min(sent_lsn) FROM pg_stat_replication HAVING count(*) = 1";
                assert!(position(&s.source_one(sent)) >= end);
            }
        },
    );
}

/// The files to which decoding has spilled open transactions. They are opened, so that a removed
/// file can be told from a new one with its name.
fn spilled(s: &Scenario) -> Vec<File> {
    let dir = s.pair().state_dir().join(format!("{}.decoding", s.name(0)));
    let paths = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|file| file.path());
    let spools = paths.filter(|path| path.extension().is_some_and(|extension| extension == "spool"));
    spools.filter_map(|path| File::open(path).ok()).collect()
}

fn size(files: &[File]) -> u64 {
    files.iter().map(|file| file.metadata().unwrap().len()).sum()
}

/// Writes one large transaction and small ones beside it, until the sender is dropped. Returns the
/// number of rows of the large one.
fn large_and_small(url: &str) -> (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<i32>) {
    let (url, (stop, stopped)) = (url.to_owned(), std::sync::mpsc::channel::<()>());
    let write = move || {
        let (mut large, mut small) = (Session::to(&url), Session::to(&url));
        large.run("BEGIN");
        let mut rows = 0;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            large.run(&format!(
                "INSERT INTO t SELECT i, repeat(md5(i::text), 10) FROM generate_series({rows}, {rows} + 99) i"
            ));
            rows += 100;
            small.run(&format!("INSERT INTO t VALUES (-{rows}, 'small')"));
            // The pace of a load; no test waits for it.
            std::thread::sleep(Duration::from_millis(10));
        }
        large.run("COMMIT");
        rows
    };
    (stop, std::thread::spawn(write))
}

/// What was spilled is of no use to the next process, which must not take it for its own.
#[test]
fn killed_while_it_spills_what_it_decodes() {
    scenario_alone(
        &[&[ONE[0], &["--streaming", "off"]].concat()],
        |source| source.setting("logical_decoding_work_mem", "64kB"),
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.follow();
            let (stop, writer) = large_and_small(&s.source_url());
            for round in 1..=5 {
                // Then it is killed in what comes for the first time, else in what is read again.
                if round % 2 == 1 {
                    s.catch_up();
                }
                let (goal, mut before) = (round * 1_000_000, 0);
                let grows = wait_for("it to spill more and more", BOUND, || {
                    let now = size(&spilled(s));
                    let grows = now > goal && before > 0 && now > before;
                    before = now;
                    Ok(grows)
                });
                assert!(grows.is_ok(), "{grows:?}: {before} of {goal} bytes\n{}", s.log(0));
                s.kill();
                let left = spilled(s);
                assert!(size(&left) > goal, "it was not killed in what it spilled");
                s.run();
                let gone = |file: &File| file.metadata().unwrap().nlink() == 0;
                wait_for("what was left to be removed", BOUND, || Ok(left.iter().all(gone))).unwrap();
            }
            drop(stop);
            assert!(writer.join().unwrap() > 10_000);
            s.catch_up();
            s.same();
            assert!(spilled(s).is_empty());
        },
    );
}

#[test]
fn without_what_was_kept_nothing_is_decoded() {
    scenario_with(ONE, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.live(&["INSERT INTO t VALUES (1)"]);
        s.stop();
        s.source("INSERT INTO t VALUES (2)");
        let file = s.pair().state_dir().join(format!("{}.wal", s.name(0)));
        let kept = std::fs::read(&file).unwrap();
        let refused = |s: &Scenario, mode: &str, said: &str| {
            let output = s.call(0, &["run", "--publication", "p", "--source-mode", mode]);
            assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
            assert!(output.stderr.contains(said), "{said}: {}", output.stderr);
        };
        std::fs::remove_file(&file).unwrap();
        refused(s, "wal", "there is no such file");
        for at in [0, 20, 30, kept.len() / 2, kept.len() - 1] {
            let mut damaged = kept.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&file, damaged).unwrap();
            refused(s, "wal", "does not say what the catalogs were");
        }
        std::fs::write(&file, &kept[..kept.len() - 1]).unwrap();
        refused(s, "wal", "does not say what the catalogs were");
        std::fs::write(&file, &kept).unwrap();
        refused(s, "logical", "has a slot for --source-mode wal");
        s.follow();
        s.same();
        s.stop();
        // Nothing stays behind.
        s.call(0, &["drop"]).expect_success();
        assert!(!file.exists());
        assert_eq!(s.left_behind(), Vec::<String>::new());
    });
}

#[test]
fn what_cannot_be_decoded_outside_is_refused_at_the_start() {
    scenario_with(ONE, |s| {
        s.both("CREATE EXTENSION citext; CREATE TABLE c (id int PRIMARY KEY, word citext)");
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.source("INSERT INTO t VALUES (1)");
        s.publish("FOR ALL TABLES");
        let output = s.call(0, &["run", "--publication", "p", "--source-mode", "wal"]);
        assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
        assert!(
            output.stderr.contains("public.c")
                && output.stderr.contains("\"word\"")
                && output.stderr.contains("citext"),
            "{}",
            output.stderr
        );
        // A row filter is told as it was written.
        if s.major() < 15 {
            println!("no row filter: PostgreSQL 14 has none");
        } else {
            s.both("CREATE TABLE f (id int PRIMARY KEY, v text)");
            s.source("CREATE PUBLICATION filtered FOR TABLE f WHERE (id > 7 AND upper(v) = 'X') WITH (publish = 'insert')");
            let output = s.call(0, &["run", "--publication", "filtered", "--source-mode", "wal"]);
            assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
            let told = ["public.f", "WHERE", "(id > 7)", "upper(v) = 'X'"];
            assert!(told.iter().all(|word| output.stderr.contains(word)), "{}", output.stderr);
        }
        assert_eq!(s.left_behind().iter().filter(|left| left.starts_with("slot")).count(), 0);
        assert_eq!(s.target_one("SELECT count(*) FROM t"), "0", "something was copied");
        s.source("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE t, mark");
        s.follow();
        s.source("INSERT INTO c VALUES (1, 'not for us'); INSERT INTO t VALUES (2)");
        s.catch_up();
        assert_eq!(s.target_one("SELECT sum(id) FROM t"), "3");
        // One that is published later costs itself: see `left_out`.
        s.source("ALTER PUBLICATION p ADD TABLE c");
        s.stop();
        s.follow();
        s.source("INSERT INTO c VALUES (2, 'ours'); INSERT INTO t VALUES (3)");
        s.catch_up();
        assert_eq!(s.target_one("SELECT sum(id) FROM t"), "6");
        s.wait_for_log("table public.c cannot be decoded because of its column \"word\"");
    });
}

/// A server that shuts down waits until all sent WAL is received, not until it is not needed any
/// more.
#[test]
fn the_source_shuts_down_while_much_is_kept() {
    scenario_alone(
        ONE,
        |source| source,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY)");
            s.follow();
            s.source_in("open", "BEGIN; INSERT INTO t VALUES (1)");
            s.source("INSERT INTO t VALUES (2)");
            s.catch_up();
            let standbys =
                "SELECT sync_state || ' ' || coalesce(flush_lsn::text, 'unknown') FROM pg_stat_replication";
            wait_for("a report", BOUND, || Ok(s.source_one(standbys) == "async unknown")).unwrap();
            let began = Instant::now();
            s.pair_mut().source.restart(testkit::StopMode::Fast).unwrap();
            let bound = testkit::at_this_load(Duration::from_secs(20));
            assert!(began.elapsed() < bound, "it took {:?}", began.elapsed());
            s.source("INSERT INTO t VALUES (3)");
            s.catch_up();
            s.same();
        },
    );
}

/// Transactions decide what the reading of the catalogs may have seen, and an abort names a part of
/// one.
#[test]
fn savepoints_of_what_ran_during_the_look_are_rolled_back() {
    scenario_with(&[DECODED, &["--source-mode", "wal", "--streaming", "off"]], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.publish("FOR TABLE t, mark");
        // Each begins while pgsluice reads the catalogs, some before and some after the snapshot,
        // and continues after it.
        let sessions: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
        s.run();
        for (n, session) in sessions.iter().enumerate() {
            let id = n * 10;
            s.source_in(session, &format!(
                "BEGIN; INSERT INTO t VALUES ({id}, 'kept'); SAVEPOINT a; INSERT INTO t VALUES ({id} + 1, 'gone')"
            ));
            s.source("INSERT INTO mark VALUES (1000000 + (SELECT count(*) FROM mark))");
        }
        for (n, session) in sessions.iter().enumerate() {
            let id = n * 10 + 2;
            s.source_in(session, &format!("ROLLBACK TO a; INSERT INTO t VALUES ({id}, 'kept'); COMMIT"));
        }
        s.wait_for_copy();
        s.catch_up();
        s.same();
        assert_eq!(
            s.target_one("SELECT count(*) || ' ' || count(*) FILTER (WHERE v = 'gone') FROM t"),
            "80 0"
        );
    });
}

/// The file of a catalog, as the server names it.
pub(crate) fn path_of(s: &Scenario, catalog: &str) -> std::path::PathBuf {
    s.pair().source.data_dir().join(s.source_one(&format!("SELECT pg_relation_filepath('{catalog}')")))
}

/// What a comparison that found no difference says.
const SAME: &str = "the catalogs that pgsluice follows are the source's";

#[test]
fn catalogs_that_are_not_the_sources_stop_it() {
    scenario_alone(
        &[&["--source-mode", "wal", "--wal-stream", "on", "--catalog-check-interval", "300ms"]],
        |source| source.setting("ignore_checksum_failure", "on"),
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY)");
            s.source("CREATE TABLE right_name (id int)");
            s.publish("FOR TABLE t, mark");
            s.follow();
            s.wait_for_log(SAME);
            status_tells_the_last_comparison(s);
            compared_while_they_change_all_the_time(s);
            rename_behind_the_servers_back(s);
            let (code, log) = s.ended().remove(0);
            let said =
                "the catalogs that pgsluice followed through the WAL are not those of the source: pg_class";
            assert!(code == 1 && log.contains(said) && log.contains("wrong_name"), "{code}: {log}");
        },
    );
}

fn status_tells_the_last_comparison(s: &Scenario) {
    let told = s.call(0, &["status"]).stdout;
    let (_, at) = told.split_once("decoding      here; catalogs compared with the source's ").expect(&told);
    let at = at.lines().next().and_then(|line| line.split_once(" ago, at ")).expect(&told).1;
    let at = at.split(';').next().expect(&told);
    assert!(s.log(0).contains(&format!("{SAME} at {at} ")), "{told}");
}

/// Another session changes catalogs until five more comparisons found no difference.
fn compared_while_they_change_all_the_time(s: &Scenario) {
    let over = AtomicBool::new(false);
    let before = s.log(0).matches(SAME).count();
    std::thread::scope(|scope| {
        let (source, over, db) = (&s.pair().source, &over, s.source_one("SELECT current_database()"));
        let busy = scope.spawn(move || change_catalogs(source, &db, over));
        let again = wait_for("looks at catalogs that change", BOUND, || {
            Ok(s.log(0).matches(SAME).count() >= before + 5)
        });
        over.store(true, Ordering::Relaxed);
        let (name, number) = busy.join().unwrap();
        again.unwrap();
        assert!(number > 10, "only {number} changes");
        if name != "right_name" {
            s.source(&format!("ALTER TABLE {name} RENAME TO right_name"));
        }
    });
}

/// Changes catalogs until `over` is set. Returns the table's last name, and how often it changed.
fn change_catalogs(source: &Cluster, db: &str, over: &AtomicBool) -> (&'static str, usize) {
    // These make no answer void that decoding gives, and are rows nevertheless.
    const PASSING: [&str; 3] =
        ["SCHEMA passing", "TYPE passing AS RANGE (subtype = int4)", "TYPE passing AS (a int)"];
    let (mut name, mut number) = ("right_name", 0);
    while !over.load(Ordering::Relaxed) {
        let run = |sql: &str| source.sql(db, sql).unwrap();
        run("CREATE TEMP TABLE passing (a int, b text); DROP TABLE passing");
        let passing = PASSING[number % PASSING.len()];
        run(&format!("CREATE {passing}"));
        let kind = passing.split(' ').next().unwrap();
        run(&format!("DROP {kind} passing"));
        let other = if name == "right_name" { "other_name" } else { "right_name" };
        run(&format!("ALTER TABLE {name} RENAME TO {other}; ANALYZE {other}"));
        (name, number) = (other, number + 1);
    }
    (name, number)
}

/// Writes another name into the file of `pg_class` while the source is down: no WAL tells of that.
fn rename_behind_the_servers_back(s: &mut Scenario) {
    s.source("CHECKPOINT");
    let path = path_of(s, "pg_class");
    s.pair_mut().source.stop(StopMode::Fast).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let places: Vec<usize> =
        (0..bytes.len() - 10).filter(|&at| &bytes[at..at + 10] == b"right_name").collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + 5].copy_from_slice(b"wrong");
    }
    std::fs::write(&path, bytes).unwrap();
    s.pair_mut().source.start_again().unwrap();
}
