//! Hazards of what a subscriber is sent: positions, descriptions, open transactions, settings.
//!
//! Each test says what change of the relay makes it fail.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::Lsn;
use bytes::BytesMut;
use proto::frame::{self, Frame, HEADER_SIZE};
use testkit::{Cluster, Major, Proxy, Then, assert_same_rows};

use crate::conn::Conn;
use crate::stage::{
    DB, Stage, Stopped, answers, apply_worker, conninfo, database, is_ready, newest, publish, run, subscribe,
    subscriber, wait,
};

/// A value of 1 MiB, which is stored and sent as it is.
const MEGABYTE: &str = "repeat(md5(n::text), 32768)";
/// Rows that are not moved out of line, with more bytes than the relay's
/// `logical_decoding_work_mem` of 16 MiB, from which on it streams.
const STREAMED_ROWS: u32 = 10_000;

/// What the proxy does to the connection that is watched.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// Everything passes.
    Open,
    /// Nothing does.
    Held,
    /// Everything passes up to a keepalive that asks for an answer, behind data.
    Watching,
    /// That keepalive was the last message.
    Ended,
}

struct Watched {
    phase: Phase,
    inbox: BytesMut,
    passed: usize,
    said: Lsn,
}

/// Bytes that must have passed before a keepalive counts: the sender was stuck behind them.
const STUCK: usize = 1 << 20;

impl Watched {
    /// Takes what the relay sent, and leaves in `bytes` what the subscriber gets of it.
    fn take(&mut self, bytes: &mut Vec<u8>) {
        match self.phase {
            Phase::Open | Phase::Held => return,
            Phase::Ended => return bytes.clear(),
            Phase::Watching => self.inbox.extend_from_slice(bytes),
        }
        bytes.clear();
        while let Some(frame) = frame::next(&mut self.inbox).expect("messages of the relay") {
            append(bytes, &frame);
            self.passed += frame.body.len();
            if frame.body.first() == Some(&b'k') && frame.body.last() == Some(&1) && self.passed > STUCK {
                self.said = Lsn::new(u64::from_be_bytes(frame.body[1..9].try_into().unwrap()));
                self.phase = Phase::Ended;
                return;
            }
        }
    }
}

/// Appends a message as it came.
fn append(out: &mut Vec<u8>, frame: &Frame) {
    out.push(frame.tag);
    out.extend_from_slice(&((frame.body.len() + HEADER_SIZE - 1) as u32).to_be_bytes());
    out.extend_from_slice(&frame.body);
}

/// A sender is stuck while the pass is far ahead, and asks its subscriber whether it lives. The
/// subscriber confirms what that keepalive says, and is cut off before it has the rest.
///
/// Fails if `Walsender::keepalive` says `self.form.position.get()` in place of `self.sent`: the
/// subscriber confirms what it never got.
#[test]
fn h01_a_keepalive_says_what_its_own_sender_sent() {
    let stage = Stage::new(newest(), "wal_sender_timeout = '12s'");
    let cluster = subscriber(newest());
    database(&cluster, "slow");
    stage.subscribe(&cluster, "fast", "");
    let proxy = Proxy::to(stage.port).unwrap();
    subscribe(&cluster, ("slow", "slow"), (proxy.port(), DB), "");
    wait("the copies to be ready", || is_ready(&cluster, "slow"));
    stage.reach(DB, &[(&cluster, DB), (&cluster, "slow")]);

    let (phase, inbox) = (Phase::Held, BytesMut::new());
    let watched = Arc::new(Mutex::new(Watched { phase, inbox, passed: 0, said: Lsn::INVALID }));
    proxy.alter({
        let watched = Arc::clone(&watched);
        move |bytes| {
            while watched.lock().unwrap().phase == Phase::Held {
                // Between two looks at a condition.
                std::thread::sleep(Duration::from_millis(5));
            }
            watched.lock().unwrap().take(bytes);
            Then::Forward
        }
    });
    let set = |phase| watched.lock().unwrap().phase = phase;
    let silent = Stopped::new(apply_worker(&cluster, "slow"));
    for row in 0..24 {
        stage.source(&format!("INSERT INTO t SELECT n, {MEGABYTE} FROM (VALUES (1000 + {row})) r (n)"));
    }
    stage.reach(DB, &[(&cluster, DB)]);
    let end: Lsn = stage.publisher.one(DB, "SELECT pg_current_wal_lsn()").parse().unwrap();
    // The sender asks after half of its timeout, and nothing shows that from outside.
    std::thread::sleep(Duration::from_millis(7_500));
    set(Phase::Watching);
    drop(silent);
    wait("a question behind data", || watched.lock().unwrap().phase == Phase::Ended);
    let said = watched.lock().unwrap().said;
    let told = format!("SELECT latest_end_lsn >= '{said}' FROM pg_stat_subscription WHERE subname = 'slow'");
    wait("the subscriber to have heard it", || answers(&cluster, DB, &told, "t"));
    // Its answer is under way, over the other direction of the connection.
    std::thread::sleep(Duration::from_millis(500));
    set(Phase::Open);
    proxy.cut();
    stage.reach(DB, &[(&cluster, "slow")]);
    let rows = "SELECT count(*) FROM t WHERE id BETWEEN 1000 AND 1023";
    assert_eq!(cluster.one("slow", rows), "24", "rows were lost: {said} was said, of {end}");
    assert!(said < end, "nothing was behind the keepalive");
}

/// Subscribers of an idle publisher become ready, and their slots move on when only unpublished
/// rows are written.
///
/// Fails if `Walsender::look` sends no keepalive when it is dry.
#[test]
fn h02_an_idle_publisher_lets_subscribers_become_ready() {
    Major::each_of(&Major::in_turn(), 1, |major| {
        let stage = Stage::new(major, "");
        let cluster = subscriber(major);
        stage.source("CREATE TABLE private (v text); CREATE TABLE u (id int PRIMARY KEY)");
        stage.source("INSERT INTO u SELECT generate_series(1, 100)");
        stage.subscribe(&cluster, "s", "");
        stage.source("ALTER PUBLICATION p ADD TABLE u");
        run(&cluster, DB, "CREATE TABLE u (id int PRIMARY KEY)");
        cluster.sql(DB, "ALTER SUBSCRIPTION s REFRESH PUBLICATION").unwrap();
        wait("the new table to be ready", || is_ready(&cluster, DB));
        assert_same_rows(&stage.publisher, &cluster, DB, "u");
        stage.source("INSERT INTO private SELECT repeat('x', 1000) FROM generate_series(1, 500)");
        let at = stage.publisher.one(DB, "SELECT pg_current_wal_lsn()");
        let moved = format!("SELECT latest_end_lsn >= '{at}' FROM pg_stat_subscription WHERE subname = 's'");
        wait("the slot to move", || answers(&cluster, DB, &moved, "t"));
        stage.level(&[&cluster]);
    });
}

/// Files in which a worker keeps an open transaction that it is streamed.
fn has_changes(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries
        .filter_map(Result::ok)
        .any(|entry| entry.file_name().to_string_lossy().contains(".changes") || has_changes(&entry.path()))
}

fn is_streamed(cluster: &Cluster) -> bool {
    has_changes(&cluster.data_dir().join("base/pgsql_tmp"))
}

/// A subscriber comes back in the middle of a transaction that is streamed to another of the same
/// form. It gets the blocks that were sent meanwhile, a part that was rolled back, and the rest. A
/// third one stands still before the transaction, so that the track keeps all of it.
///
/// Fails if `track::cursor::seek` goes to `Describing` without the blocks of open transactions.
#[test]
fn h03_a_subscriber_joins_while_a_transaction_is_streamed() {
    let stage = Stage::new(newest(), "");
    let clusters = [subscriber(newest()), subscriber(newest())];
    let [first, second] = &clusters;
    stage.subscribe(first, "s0", "streaming = on");
    stage.subscribe(second, "s1", "streaming = on");
    database(first, "still");
    subscribe(first, ("still", "s2"), (stage.port, DB), "streaming = on");
    wait("the copies to be ready", || is_ready(first, "still"));
    stage.reach(DB, &[(first, DB), (second, DB), (first, "still")]);
    let still = Stopped::new(apply_worker(first, "s2"));
    // More than the connection takes.
    stage.source(&format!("INSERT INTO t SELECT n, {MEGABYTE} FROM generate_series(1001, 1014) n"));
    stage.level(&[first, second]);
    let mut open = Conn::new(stage.publisher.url(DB));
    open.run("BEGIN").unwrap();
    let mut rows = |from: u32, count: u32, end: &str| {
        let sql = format!(
            "SAVEPOINT a; INSERT INTO t SELECT n, repeat('s', 1900) FROM generate_series({from} + 1, {from} + {count}) n; \
             INSERT INTO ledger VALUES (3, {from}, {count}); {end}"
        );
        open.run(&sql).unwrap();
    };
    rows(10_000, STREAMED_ROWS, "RELEASE a");
    wait("the transaction to be streamed", || is_streamed(first) && is_streamed(second));
    run(second, DB, "ALTER SUBSCRIPTION s1 DISABLE");
    wait("the worker to end", || answers(second, DB, "SELECT count(pid) FROM pg_stat_subscription", "0"));
    rows(30_000, STREAMED_ROWS, "ROLLBACK TO a");
    rows(50_000, 2, "RELEASE a");
    stage.source("INSERT INTO ledger VALUES (1, 1, 1)");
    run(second, DB, "ALTER SUBSCRIPTION s1 ENABLE");
    // It has what was committed beside the open transaction.
    stage.reach(DB, &[(second, DB)]);
    rows(60_000, 2, "RELEASE a");
    rows(70_000, 1, "COMMIT");
    stage.level(&[first, second]);
    drop(still);
    stage.reach(DB, &[(first, "still")]);
    let kept = (STREAMED_ROWS + 2 + 2 + 1).to_string();
    for (cluster, db) in [(second, DB), (first, "still")] {
        assert_eq!(cluster.one(db, "SELECT count(*) FROM t WHERE id >= 10000"), kept, "{db}");
    }
}

/// A form that is read on describes a table once. A subscriber of the form that comes back behind
/// that description needs it.
///
/// Fails if `track::cursor::seek` hands no `described` on to the next stage.
#[test]
fn h04_what_was_described_in_a_transaction_that_is_skipped_is_described_again() {
    let stage = Stage::new(newest(), "");
    let clusters = [subscriber(newest()), subscriber(newest())];
    let [reads, leaves] = &clusters;
    stage.subscribe(reads, "s0", "");
    stage.subscribe(leaves, "s1", "");
    stage.level(&[reads, leaves]);
    for round in 0..3 {
        for cluster in &clusters {
            run(cluster, DB, &format!("ALTER TABLE t ADD COLUMN c{round} int DEFAULT {round}"));
        }
        stage.source(&format!("ALTER TABLE t ADD COLUMN c{round} int DEFAULT {round}"));
        // Both are told what the table is like now.
        stage.source(&format!("INSERT INTO t (id, c{round}) VALUES (1000 + {round}, 7)"));
        stage.level(&[reads, leaves]);
        run(leaves, DB, "ALTER SUBSCRIPTION s1 DISABLE");
        wait("the worker to end", || answers(leaves, DB, "SELECT count(pid) FROM pg_stat_subscription", "0"));
        stage.source(&format!("UPDATE t SET c{round} = id WHERE id % 50 = {round}"));
        stage.source("INSERT INTO ledger VALUES (4, 1, 1)");
        run(leaves, DB, "ALTER SUBSCRIPTION s1 ENABLE");
        stage.level(&[reads, leaves]);
    }
    let log = leaves.log();
    assert!(!log.contains("no relation map entry"), "{log}");
}

/// A form that is new while a transaction is open has what the transaction did before.
///
/// Fails if `Databases::add` lets a new form begin at the pass's place instead of at the anchor
/// that the slot names.
#[test]
fn h05_a_new_form_has_the_beginning_of_an_open_transaction() {
    let stage = Stage::new(newest(), "");
    let clusters = [subscriber(newest()), subscriber(newest())];
    let [reads, changes] = &clusters;
    stage.subscribe(reads, "s0", "");
    stage.subscribe(changes, "s1", "");
    stage.level(&[reads, changes]);
    let mut open = Conn::new(stage.publisher.url(DB));
    for (round, option) in ["binary = true", "streaming = on", "binary = false"].iter().enumerate() {
        let rows = |open: &mut Conn, part: u32| {
            let sql = format!("INSERT INTO ledger SELECT {round}, {part}, n FROM generate_series(1, 100) n");
            open.run(&sql).unwrap();
        };
        open.run("BEGIN").unwrap();
        rows(&mut open, 1);
        run(changes, DB, "ALTER SUBSCRIPTION s1 DISABLE");
        run(changes, DB, &format!("ALTER SUBSCRIPTION s1 SET ({option})"));
        stage.source("INSERT INTO ledger VALUES (5, 1, 1)");
        rows(&mut open, 2);
        run(changes, DB, "ALTER SUBSCRIPTION s1 ENABLE");
        stage.reach(DB, &[(changes, DB)]);
        rows(&mut open, 3);
        open.run("COMMIT").unwrap();
        stage.level(&[reads, changes]);
    }
}

/// The role's settings at the publisher do not change what values mean, in the copy or the stream.
/// A subscriber of 14 names no settings itself; so there, dates keep their default.
///
/// Fails if `types::Settings::new` takes another `DateStyle` or `IntervalStyle` than subscribers
/// expect, or if `Session::upstream` leaves out the options of the startup packet.
#[test]
fn h09_settings_of_the_role_change_no_value() {
    const KINDS: &str = "CREATE TABLE kinds (id int PRIMARY KEY, d date, ts timestamp, tz timestamptz, \
        i interval, f float8, r real, b bytea)";
    let rows = |from: u32| {
        format!(
            "INSERT INTO kinds VALUES \
             ({from}, '2020-12-25', '2001-02-03 04:05:06.789', '2001-02-03 04:05:06+09', '-1 day 02:03:04', 0.1::float8 + 0.2, 1e-7, '\\x00ff5c27'), \
             ({from} + 1, '0044-03-15 BC', 'infinity', '1883-11-18 12:00:00+00', '-3 years -2 mons +1 day', -1e300, 0.1, ''), \
             ({from} + 2, '2001-02-03', '-infinity', '2050-07-01 00:00:00+05:45', '1 mon -00:00:01', 'NaN', 'infinity', '\\x5c')"
        )
    };
    Major::each_of(&Major::in_turn(), 1, |major| {
        let stage = Stage::new(major, "");
        let cluster = subscriber(major);
        stage.source(&format!("{KINDS}; ALTER PUBLICATION p ADD TABLE kinds"));
        run(&cluster, DB, KINDS);
        stage
            .source("ALTER ROLE sub SET timezone = 'Asia/Tokyo'; ALTER ROLE sub SET bytea_output = 'escape'");
        if major >= Major::V15 {
            stage.source(
                "ALTER ROLE sub SET datestyle = 'SQL, DMY'; ALTER ROLE sub SET intervalstyle = 'sql_standard'; \
                 ALTER DATABASE postgres SET extra_float_digits = -5",
            );
        }
        stage.source(&rows(1));
        stage.subscribe(&cluster, "s", "");
        stage.source(&rows(11));
        stage.source("UPDATE kinds SET i = i * 2, f = f / 3 WHERE id = 1");
        stage.level(&[&cluster]);
        assert_same_rows(&stage.publisher, &cluster, DB, "kinds");
        let dates = "SELECT count(*) FROM kinds WHERE d = '2020-12-25'";
        assert_eq!(cluster.one(DB, dates), "2");
    });
}

/// Subscribers whose slots begin again near one another are decoded for together, from the place of
/// the one that is farthest behind. A server decodes nothing for a subscriber that ended before its
/// own place. So nothing that is wrong there may end its stream: here a publication that did not
/// exist yet (an error before 18), and a table, dropped since, that only its server can render.
#[test]
fn what_ended_before_the_own_place_ends_no_stream() {
    Major::each(1, |major| {
        let stage = Stage::new(major, "");
        let cluster = subscriber(major);
        stage.subscribe(&cluster, "behind", "");
        run(&cluster, DB, "ALTER SUBSCRIPTION behind DISABLE");
        stage.source(
            "CREATE EXTENSION hstore; CREATE TABLE odd (id int PRIMARY KEY, h hstore);
             CREATE TABLE later (id int PRIMARY KEY); CREATE PUBLICATION everything FOR ALL TABLES",
        );
        stage.source("INSERT INTO odd VALUES (1, 'a=>1'); INSERT INTO later VALUES (1)");
        stage
            .source("DROP TABLE odd; CREATE PUBLICATION young FOR TABLE later; INSERT INTO later VALUES (2)");
        let mut watched = Vec::new();
        for (db, publication) in [("one", "young"), ("two", "everything")] {
            database(&cluster, db);
            run(&cluster, db, "CREATE TABLE later (id int PRIMARY KEY)");
            let conninfo = conninfo(stage.port, DB);
            let stops = if major >= Major::V15 { ", disable_on_error = true" } else { "" };
            run(
                &cluster,
                db,
                &format!(
                    "CREATE SUBSCRIPTION {db} CONNECTION '{conninfo}' PUBLICATION {publication}
                     WITH (copy_data = false{stops})"
                ),
            );
            watched.push(db);
        }
        stage.source("INSERT INTO later VALUES (3)");
        for db in &watched {
            wait("the new row", || answers(&cluster, db, "SELECT string_agg(id::text, ' ') FROM later", "3"));
            assert_eq!(
                cluster.one(db, &format!("SELECT subenabled FROM pg_subscription WHERE subname = '{db}'")),
                "t"
            );
        }
        let log = cluster.log();
        assert!(!log.contains("does not exist") && !log.contains("cannot be rendered"), "{log}");
        run(&cluster, DB, "ALTER SUBSCRIPTION behind ENABLE");
        stage.level(&[&cluster]);
    });
}

/// What the relay logged of the last stream of a slot that has ended.
struct Ended {
    bytes: u64,
    flush_ptr_reads: u64,
    sender_wakeups: u64,
}

impl Ended {
    fn of(stage: &Stage, slot: &str) -> Ended {
        let begins = format!("the stream of slot \"{slot}\" has ended");
        let mut line = None;
        wait("the stream to end", || {
            let log = stage.relay.stderr();
            line = log.lines().rfind(|line| line.contains(&begins)).map(str::to_owned);
            line.is_some()
        });
        let line = line.unwrap();
        let number = |name: &str| {
            let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_else(|| panic!("no {name}: {line}")).parse().unwrap()
        };
        Ended {
            bytes: number("bytes"),
            flush_ptr_reads: number("flush_ptr_reads"),
            sender_wakeups: number("sender_wakeups"),
        }
    }
}

/// Thousands of commits in one database. The sender of its subscription is woken at most once for
/// each; that of another database's subscription is woken for none. How often that one looks
/// depends on the time alone: ten times a second in its first minute, and at what its subscriber
/// answers.
///
/// Fails if a sender waits for WAL in place of its track, or looks for the end after each message.
#[test]
fn nobody_is_woken_for_what_another_database_writes() {
    const COMMITS: u64 = 3_000;
    const LOOKS_PER_SECOND: f64 = 40.0;
    let stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    run(&stage.publisher, DB, "CREATE DATABASE two");
    publish(&stage.publisher, "two");
    database(&cluster, "quiet");
    stage.subscribe(&cluster, "busy", "");
    let begun = Instant::now();
    subscribe(&cluster, ("quiet", "quiet"), (stage.port, "two"), "");
    wait("the copies to be ready", || is_ready(&cluster, "quiet"));
    let mut writer = Conn::new(stage.publisher.url(DB));
    for n in 0..COMMITS {
        writer.run(&format!("INSERT INTO ledger VALUES (17, {n}, 1)")).unwrap();
    }
    stage.level(&[&cluster]);
    run(&cluster, DB, "ALTER SUBSCRIPTION busy DISABLE");
    run(&cluster, "quiet", "ALTER SUBSCRIPTION quiet DISABLE");
    let [busy, quiet] = ["busy", "quiet"].map(|slot| Ended::of(&stage, slot));
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "busy: {} bytes, {} looks, {} wake-ups; quiet: {} bytes, {} looks, {} wake-ups \
         in {seconds:.1} s",
        busy.bytes,
        busy.flush_ptr_reads,
        busy.sender_wakeups,
        quiet.bytes,
        quiet.flush_ptr_reads,
        quiet.sender_wakeups
    );
    assert!(busy.bytes > 100 * COMMITS, "{}", busy.bytes);
    assert!(busy.sender_wakeups <= COMMITS + 100, "{}", busy.sender_wakeups);
    assert!(busy.flush_ptr_reads <= 2 * COMMITS, "{}", busy.flush_ptr_reads);
    assert!(quiet.sender_wakeups <= 20, "{}", quiet.sender_wakeups);
    let looks = quiet.flush_ptr_reads as f64;
    assert!(looks <= LOOKS_PER_SECOND * seconds, "{looks} in {seconds} s");
}
