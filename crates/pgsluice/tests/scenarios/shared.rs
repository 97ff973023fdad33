//! Several subscriptions of one process that follow the same server with `source_mode = wal`: one
//! pass over its WAL.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use testkit::{Archive, Pair, Sluice, StopMode, assert_same_rows, wait_for};

use crate::support::{BOUND, STOP, Session, position, scenario_alone};

/// Database, publication, tables.
const SUBSCRIPTIONS: [(&str, &str, &str, &[&str]); 3] = [
    ("one", "a", "p", &["t"]),
    ("two", "a", "q", &["u", "u_part_1", "u_part_2"]),
    ("three", "b", "everything", &["t", "words"]),
];

struct Stage<'p> {
    pair: &'p mut Pair,
    sessions: RefCell<BTreeMap<String, Session>>,
    config: String,
    /// What is followed instead of a stream.
    archive: Option<Archive>,
    sluice: Option<Sluice>,
}

impl Stage<'_> {
    fn new(pair: &mut Pair, is_archived: bool) -> Stage<'_> {
        let archive = is_archived.then(|| Archive::start(&pair.source.data_dir()).unwrap());
        let config = pair.state_dir().join("several.toml");
        let mut text = "source_mode = \"wal\"\nwal_retrieve_retry_interval = \"1s\"\n".to_owned();
        if let Some(archive) = &archive {
            text += &format!("wal_stream = \"off\"\nwal_archive = \"{}\"\n", archive.path().display());
        }
        for (name, db, publication, _) in SUBSCRIPTIONS {
            let (source, target) = (pair.source.url(db), pair.target.url(db));
            text += &format!(
                "[[subscription]]\nname = \"{name}\"\npublication = \"{publication}\"\n\
                 source = \"{source}\"\ntarget = \"{target}\"\n"
            );
        }
        std::fs::write(&config, text).unwrap();
        Stage {
            config: config.to_str().unwrap().to_owned(),
            archive,
            pair,
            sessions: RefCell::default(),
            sluice: None,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Sluice::command(self.pair, args).unwrap();
        for name in ["SOURCE", "TARGET", "SOURCE_MODE", "WAL_STREAM", "WAL_ARCHIVE"] {
            command.env_remove(format!("PGSLUICE_{name}"));
        }
        command.args(["--config", &self.config]);
        command
    }

    fn run(&mut self) {
        self.sluice = Some(Sluice::start(self.command(&["run"])).unwrap());
    }

    fn call(&self, args: &[&str]) -> String {
        let mut called = Sluice::start(self.command(args)).unwrap();
        let ended = called.wait(BOUND).unwrap().expect("an end");
        assert!(ended.success(), "{args:?}: {}", called.stderr());
        called.stdout()
    }

    /// Null before it runs.
    fn status(&self, name: &str) -> Value {
        let mut called = Sluice::start(self.command(&["status", "--json", "--subscription", name])).unwrap();
        called.wait(BOUND).unwrap().expect("an end");
        serde_json::from_str(&called.stdout()).unwrap_or_default()
    }

    /// Each subscription is known to run, although no slot of its own may be in use.
    #[track_caller]
    fn check_knows_that_all_run(&self) {
        for name in ALL {
            let mut called = Sluice::start(self.command(&["check", "--subscription", name])).unwrap();
            called.wait(BOUND).unwrap().expect("an end");
            let found = called.stdout();
            assert!(found.contains("is running: "), "{name}: {found}{}", called.stderr());
        }
    }

    #[track_caller]
    fn at(&self, url: String, sql: &str) -> String {
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.entry(url.clone()).or_insert_with(|| Session::to(&url));
        let rows = session.query(sql).unwrap_or_else(|error| panic!("{url}: {error}: {sql}"));
        rows.into_iter().next().and_then(|row| row.into_iter().next().flatten()).unwrap_or_default()
    }

    #[track_caller]
    fn source(&self, db: &str, sql: &str) -> String {
        self.at(self.pair.source.url(db), sql)
    }

    #[track_caller]
    fn target(&self, db: &str, sql: &str) -> String {
        self.at(self.pair.target.url(db), sql)
    }

    fn both(&self, db: &str, sql: &str) {
        self.target(db, sql);
        self.source(db, sql);
    }

    fn log(&self) -> String {
        self.sluice.as_ref().map(Sluice::stderr).unwrap_or_default()
    }

    #[track_caller]
    fn wait(&self, what: &str, mut until: impl FnMut() -> bool) {
        if let Err(error) = wait_for(what, BOUND, || Ok(until())) {
            let statuses: Vec<_> = ALL.iter().map(|name| self.status(name)).collect();
            panic!("{error}; walsenders: {:?}\n{statuses:#?}\n{}", self.walsenders(), self.log());
        }
    }

    /// What follows this source, by the last word of its application name.
    fn walsenders(&self) -> Vec<String> {
        let sql = "SELECT coalesce(string_agg(application_name, ','), '') FROM pg_stat_replication \
                   WHERE state = 'streaming' OR state = 'catchup'";
        let names = self.source("postgres", sql);
        let mut words: Vec<_> =
            names.split(',').filter_map(|name| name.rsplit(' ').next()).map(str::to_owned).collect();
        words.sort();
        words
    }

    /// Waits until one walsender sends for all, or the archive is read once. Something must be
    /// going on: a subscription that has just begun waits until the server says that no transaction
    /// is left that the copy saw.
    #[track_caller]
    fn wait_for_one_pass(&self) {
        self.wait("one pass", || {
            self.source(
                "b",
                "INSERT INTO words SELECT repeat('w', 100) FROM generate_series(1, 10); CHECKPOINT",
            );
            let is_one = |name: &&str| {
                let status = self.status(name);
                status["phase"] == "streaming"
                    && (self.archive.is_none() || status["decoded"]["subscriptions_in_pass"] == 3)
            };
            let shipping: &[&str] = if self.archive.is_some() { &[""] } else { &["pass"] };
            ALL.iter().all(is_one) && self.walsenders() == shipping
        });
    }

    #[track_caller]
    fn wait_until_level(&self, names: &[&str]) {
        let end = position(&self.source("postgres", "SELECT pg_current_wal_insert_lsn()"));
        self.wait("everybody to be level", || {
            names
                .iter()
                .all(|name| self.status(name)["flushed"].as_str().is_some_and(|lsn| position(lsn) >= end))
        });
    }

    #[track_caller]
    fn same(&self, names: &[&str]) {
        self.wait_until_level(names);
        for (name, db, _, tables) in SUBSCRIPTIONS {
            let tables = if names.contains(&name) { tables } else { &[] };
            tables.iter().for_each(|table| assert_same_rows(&self.pair.source, &self.pair.target, db, table));
        }
    }

    /// From where on each slot keeps WAL.
    fn kept(&self) -> Vec<u64> {
        let sql = |name: &str| {
            format!("SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = 'pgsluice_{name}'")
        };
        SUBSCRIPTIONS.iter().map(|(name, ..)| position(&self.source("postgres", &sql(name)))).collect()
    }
}

const ALL: &[&str] = &["one", "two", "three"];

/// On a pair of servers with the databases, some rows in them, and everything published.
fn on_stage(test: impl Fn(&mut Stage<'_>) + Sync) {
    on_stage_from(false, test);
}

/// The same, from an archive if there is to be one.
fn on_stage_from(is_archived: bool, test: impl Fn(&mut Stage<'_>) + Sync) {
    scenario_alone(
        &[],
        |source| if is_archived { source.setting("wal_keep_size", "1GB") } else { source },
        |target| target,
        |s| {
            let mut stage = Stage::new(s.pair_mut(), is_archived);
            stage.both("postgres", "CREATE DATABASE a");
            stage.both("postgres", "CREATE DATABASE b");
            stage.both(
                "a",
                "CREATE TABLE t (id int PRIMARY KEY, v text); \
                 CREATE TABLE u (id int, kind int, v text, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind); \
                 CREATE TABLE u_part_1 PARTITION OF u FOR VALUES IN (1); \
                 CREATE TABLE u_part_2 PARTITION OF u FOR VALUES IN (2)",
            );
            stage.both(
                "b",
                "CREATE TABLE t (id bigint PRIMARY KEY, at timestamptz); CREATE TABLE words (word text)",
            );
            stage.source(
                "a",
                "CREATE TABLE noise (v text); INSERT INTO t SELECT i, 'first' FROM generate_series(1, 100) i",
            );
            stage.source("a", "CREATE PUBLICATION p FOR TABLE t");
            stage.source("a", "CREATE PUBLICATION q FOR TABLE u");
            stage.source("b", "CREATE PUBLICATION everything FOR ALL TABLES");
            stage.source("b", "INSERT INTO t SELECT i, now() FROM generate_series(1, 50) i");
            stage.run();
            test(&mut stage);
            stage.sluice = None;
        },
    );
}

/// Changes of all kinds, catalogs among them.
fn write(stage: &Stage<'_>, round: i32) {
    let (first, last) = (round * 1000, round * 1000 + 400);
    stage.source(
        "a",
        &format!("INSERT INTO t (id, v) SELECT i, 'row ' || i FROM generate_series({first}, {last}) i"),
    );
    stage.source(
        "a",
        &format!("INSERT INTO u SELECT i, 1 + i % 2, 'u' FROM generate_series({first}, {last}) i"),
    );
    stage.source("b", &format!("INSERT INTO t SELECT i, now() FROM generate_series({first}, {last}) i"));
    stage.source("a", "INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 3000)");
    stage.both("a", &format!("ALTER TABLE t ADD COLUMN c{round} int DEFAULT {round}"));
    stage.source("a", &format!("UPDATE t SET c{round} = id WHERE id % 7 = 0"));
    // One transaction, several subscriptions, files that are new.
    stage.source(
        "a",
        "BEGIN; UPDATE u SET v = 'moved', kind = 3 - kind WHERE id % 5 = 0; SAVEPOINT s; DELETE FROM t WHERE id % 3 = 0; \
         ROLLBACK TO s; DELETE FROM t WHERE id % 11 = 0; COMMIT",
    );
    stage.source("b", "TRUNCATE words; INSERT INTO words VALUES ('after')");
    stage.source("a", "VACUUM FULL t");
    stage.source("b", "VACUUM FULL pg_class");
    stage.source("a", &format!("UPDATE t SET v = 'rewritten' WHERE id > {first}"));
}

#[test]
fn databases_and_subscriptions_of_a_server_are_decoded_in_one_pass() {
    on_stage(|stage| {
        stage.wait_for_one_pass();
        stage.wait("all to say so", || {
            ALL.iter().all(|name| stage.status(name)["decoded"]["subscriptions_in_pass"] == 3)
        });
        stage.check_knows_that_all_run();
        let begun = stage.kept();
        write(stage, 1);
        stage.same(ALL);
        // No walsender moves the slots now.
        stage.wait("all slots to move", || {
            stage.source(
                "a",
                "INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 2000); CHECKPOINT",
            );
            stage.kept().iter().zip(&begun).all(|(now, begun)| now > begun)
        });
        assert_eq!(stage.walsenders(), ["pass"]);

        // Who ends leaves the others in the pass, and also the first one can end.
        stage.call(&["stop", "--subscription", "one"]);
        write(stage, 2);
        stage.same(&["two", "three"]);
        assert_eq!(stage.walsenders(), ["pass"]);
        stage.wait("one less in it", || {
            stage.call(&["status", "--subscription", "two"]).contains("here, in one pass for 2 subscriptions")
        });

        // Killed where it is, all go on where each has come to.
        write(stage, 3);
        stage.sluice.as_mut().unwrap().kill9();
        write(stage, 4);
        stage.run();
        stage.wait_for_one_pass();
        stage.same(ALL);

        // A server that goes takes the pass with it.
        stage.sessions.borrow_mut().clear();
        stage.pair.source.restart(StopMode::Immediate).unwrap();
        write(stage, 5);
        stage.same(ALL);
        stage.wait_for_one_pass();

        // What is wrong for one is not for the others.
        stage.source("a", "DROP PUBLICATION q; INSERT INTO u VALUES (-1, 1, 'published by nobody')");
        write(stage, 6);
        stage.same(&["one", "three"]);
        let log = stage.log();
        assert!(log.contains("publication \"q\""), "{log}");

        let mut sluice = stage.sluice.take().unwrap();
        sluice.terminate(STOP).unwrap();
        ALL.iter().for_each(|name| drop(stage.call(&["drop", "--subscription", name])));
        assert_eq!(stage.source("postgres", "SELECT count(*) FROM pg_replication_slots"), "0");
    });
}

#[test]
fn one_that_lags_behind_leaves_the_pass_and_comes_back() {
    on_stage(|stage| {
        stage.wait_for_one_pass();
        let lock = format!("{}?application_name=lock", stage.pair.target.url("a"));
        stage.at(lock.clone(), "BEGIN; LOCK TABLE t IN SHARE MODE");
        for round in 0..25 {
            let first = 100_000 + round * 10_000;
            stage.source(
                "a",
                &format!("INSERT INTO t SELECT i, repeat(md5(i::text), 20) FROM generate_series({first}, {first} + 5999) i"),
            );
        }
        stage.source("a", "INSERT INTO u VALUES (1, 1, 'not held up')");
        stage.wait_until_level(&["two", "three"]);
        stage.same(&["two", "three"]);
        stage.wait("the one that waits to go on alone", || stage.walsenders() == ["pass", "stream"]);
        assert_eq!(stage.target("a", "SELECT count(*) FROM t WHERE id >= 100000"), "0");
        stage.at(lock, "COMMIT");
        stage.same(ALL);
        stage.wait_for_one_pass();
        write(stage, 1);
        stage.same(ALL);
        stage.sluice.as_mut().unwrap().terminate(Duration::from_secs(5)).unwrap();
    });
}

#[test]
fn killed_at_any_instant_nothing_of_anybody_is_lost_or_comes_twice() {
    on_stage(|stage| killed_at_any_instant(stage, 10));
}

#[test]
fn an_archive_is_read_once_for_all_and_nothing_is_lost_or_comes_twice() {
    on_stage_from(true, |stage| {
        stage.wait_for_one_pass();
        stage.check_knows_that_all_run();
        // What a pass begins in is behind a switch at times.
        write(stage, 1);
        stage.source("postgres", "SELECT pg_switch_wal()");
        stage.same(ALL);
        stage.sluice.as_mut().unwrap().terminate(Duration::from_secs(5)).unwrap();
        stage.run();
        stage.wait_for_one_pass();
        what_is_missing_is_told_to_all(stage);
        killed_at_any_instant(stage, 4);
    });
}

/// The segment behind the next has begun.
fn what_is_missing_is_told_to_all(stage: &Stage<'_>) {
    const SIZE: u64 = 16 << 20;
    let archive = stage.archive.as_ref().unwrap().path();
    let mut files: Vec<_> = std::fs::read_dir(archive).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let newest = files.last().unwrap();
    let mut page = std::fs::read(newest).unwrap();
    page.truncate(8192);
    let begin = u64::from_le_bytes(*page[8..].first_chunk().unwrap());
    page[8..16].copy_from_slice(&(begin + 2 * SIZE).to_le_bytes());
    let name = newest.file_name().unwrap().to_str().unwrap();
    let (timeline, number) = (&name[..8], begin / SIZE + 2);
    let later = archive.join(format!("{timeline}{:08X}{:08X}", number >> 8, number & 0xff));
    std::fs::write(&later, page).unwrap();
    let awaited = |name: &&str| stage.status(name)["decoded"]["awaited"].as_str().map(str::to_owned);
    stage.wait("all to know what is awaited", || {
        ALL.iter().all(|name| awaited(name).is_some_and(|what| what.contains(timeline)))
    });
    std::fs::remove_file(later).unwrap();
    stage.wait("nothing to be awaited", || ALL.iter().all(|name| awaited(name).is_none()));
}

fn killed_at_any_instant(stage: &mut Stage<'_>, kills: u32) {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    stage.wait_for_one_pass();
    let [a, b] = ["a", "b"].map(|db| stage.pair.source.url(db));
    let stop = AtomicBool::new(false);
    let write = |url: &str, sql: &dyn Fn(i32) -> String| {
        let mut session = Session::to(url);
        let mut number = 1_000_000;
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            session.query(&sql(number)).unwrap();
        }
        number
    };
    let rows = |i: i32| {
        format!(
            "INSERT INTO t (id, v) VALUES ({i}, 'v'); INSERT INTO u VALUES ({i}, 1 + {i} % 2, 'u'); \
                     UPDATE t SET v = v || '+' WHERE id = {i} - {i} % 50; DELETE FROM u WHERE id = {i} - 20"
        )
    };
    let catalogs = |i: i32| {
        format!(
            "BEGIN; CREATE TEMP TABLE x (id int); INSERT INTO x VALUES ({i}); INSERT INTO t VALUES ({i}, now()); \
                     DROP TABLE x; INSERT INTO words VALUES ('{i}'); COMMIT"
        )
    };
    std::thread::scope(|scope| {
        let writers = [scope.spawn(|| write(&a, &rows)), scope.spawn(|| write(&b, &catalogs))];
        for _ in 0..kills {
            let pause = random.random_range(100..2_500);
            // Any instant will do, and a random one finds more of them.
            std::thread::sleep(Duration::from_millis(pause));
            stage.sluice.as_mut().unwrap().kill9();
            // The catalogs that are kept are sometimes newer, and slots sometimes moved.
            stage.source("postgres", "CHECKPOINT");
            stage.run();
        }
        stop.store(true, Ordering::Relaxed);
        let written = writers.map(|writer| writer.join().unwrap() - 1_000_000);
        println!("{written:?} transactions");
        assert!(written.iter().all(|written| *written > 100), "{written:?}");
    });
    stage.wait_for_one_pass();
    stage.same(ALL);
    stage.sluice.as_mut().unwrap().terminate(Duration::from_secs(5)).unwrap();
}

/// Rule W1: each subscription of a pass finds its own way back. Tables that were written meanwhile
/// are copied again, once that is allowed. Those of the third subscription, which were not written,
/// are not copied.
fn catalogs_are_looked_at_anew(stage: &mut Stage<'_>) {
    stage.wait_for_one_pass();
    stage.source("a", "INSERT INTO u SELECT i, 1 + i % 2, 'u' FROM generate_series(1, 100) i");
    stage.same(ALL);
    let untouched =
        |stage: &Stage<'_>| stage.target("b", "SELECT md5(string_agg(t.xmin::text, ' ' ORDER BY id)) FROM t");
    let before = untouched(stage);
    for (setting, control) in [("off", "f"), ("on", "t")] {
        stage.source("postgres", &format!("ALTER SYSTEM SET full_page_writes = {setting}"));
        stage.source("postgres", "SELECT pg_reload_conf()");
        stage.wait("a checkpoint under the setting", || {
            stage.source("postgres", "CHECKPOINT");
            stage.source("postgres", "SELECT full_page_writes FROM pg_control_checkpoint()") == control
        });
        stage.source("a", "UPDATE t SET v = v || ' unseen'; DELETE FROM u WHERE id % 3 = 0");
    }
    stage.source("postgres", "SELECT pg_switch_wal()");
    let asks = |stage: &Stage<'_>, name: &str| {
        let of = format!("subscription={name}");
        let log = stage.log();
        log.lines()
            .any(|line| line.contains("It removes their rows on the target first") && line.contains(&of))
    };
    stage.wait("both that were written to ask", || asks(stage, "one") && asks(stage, "two"));
    assert!(!asks(stage, "three"), "{}", stage.log());
    for name in ["one", "two"] {
        let allowed = stage.call(&["relook", "--subscription", name]);
        assert!(allowed.contains("allowed"), "{allowed}");
    }
    stage.sluice.as_mut().unwrap().terminate(STOP).unwrap();
    stage.run();
    stage.wait_for_one_pass();
    stage.source(
        "a",
        "INSERT INTO t (id, v) VALUES (100000, 'after'); INSERT INTO u VALUES (100000, 1, 'after')",
    );
    stage.source("postgres", "SELECT pg_switch_wal()");
    stage.same(ALL);
    assert_eq!(untouched(stage), before, "{}", stage.log());
}

#[test]
fn w1_catalogs_of_a_shared_pass_are_looked_at_anew() {
    on_stage(catalogs_are_looked_at_anew);
}

#[test]
fn w1_catalogs_of_a_shared_archive_are_looked_at_anew() {
    on_stage_from(true, catalogs_are_looked_at_anew);
}
