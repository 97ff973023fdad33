//! Full disks, networks that break, subscribers that do not read.
//!
//! Each test says what change of the relay makes it fail.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::{Cluster, Proxy, SmallDisk, Then};

use crate::stage::{
    DB, Stage, Stopped, answers, apply_worker, database, is_ready, newest, publisher, run, subscribe,
    subscriber, wait,
};

/// A file that leaves no room on a disk; removed when dropped.
struct Ballast(PathBuf);

impl Ballast {
    fn fill(disk: &Path) -> Ballast {
        let path = disk.join("ballast");
        let mut file = File::create(&path).unwrap();
        while file.write(&[0; 64 << 10]).is_ok_and(|written| written > 0) {}
        Ballast(path)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Where the publisher keeps WAL for the relay.
fn kept_for_relay(publisher: &Cluster) -> String {
    publisher.one(DB, "SELECT restart_lsn FROM pg_replication_slots WHERE slot_type = 'physical'")
}

/// Whether the relay's slot of the publisher has come to a place.
fn slot_passes(publisher: &Cluster, lsn: &str) -> bool {
    let sql = format!("SELECT restart_lsn >= '{lsn}' FROM pg_replication_slots WHERE slot_type = 'physical'");
    answers(publisher, DB, &sql, "t")
}

fn position(publisher: &Cluster) -> String {
    publisher.one(DB, "SELECT pg_current_wal_lsn()")
}

/// The disk of the relay is full. The publisher keeps what the relay has no room for, subscribers
/// stay connected, and everything goes on when there is room.
///
/// Fails if the receiver confirms WAL that it has not written, ends instead of waiting, or does not
/// try again.
#[test]
fn h14_a_full_disk_confirms_nothing_and_loses_nothing() {
    let Some(disk) = SmallDisk::mount(64 << 10) else { return };
    let publisher = publisher(newest());
    let source = publisher.url(DB);
    let mut stage = Stage::beside(publisher, &source, Some(&disk.path().join("data")), "");
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "");
    stage.level(&[&cluster]);
    let worker = apply_worker(&cluster, "s");
    let ballast = Ballast::fill(disk.path());
    stage.source("INSERT INTO t SELECT n, repeat('x', 2000) FROM generate_series(1000, 2999) n");
    let end = position(&stage.publisher);
    wait("the disk to be full", || stage.relay.stderr().contains("WAL is not confirmed until there is room"));
    // Two reports of the receiver.
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    assert!(!slot_passes(&stage.publisher, &end), "{} of {end}", kept_for_relay(&stage.publisher));
    assert_eq!(apply_worker(&cluster, "s"), worker, "the subscriber was sent away");
    drop(ballast);
    wait("the publisher's slot to go on", || slot_passes(&stage.publisher, &end));
    stage.level(&[&cluster]);
    assert!(stage.relay.is_running());
    // And a relay that is killed while its disk is full.
    let ballast = Ballast::fill(disk.path());
    stage.source("UPDATE t SET v = 'y' WHERE id >= 2000");
    let end = position(&stage.publisher);
    let full = "there is room";
    wait("the disk to be full again", || stage.relay.stderr().matches(full).count() >= 3);
    stage.kill_relay();
    drop(ballast);
    stage.start_relay();
    wait("the publisher's slot to go on", || slot_passes(&stage.publisher, &end));
    stage.level(&[&cluster]);
}

/// There is no room for the catalogs of a new anchor. That ends no stream: slots go on naming the
/// anchors that are there, and later ones are made when there is room.
///
/// Fails if `Hub::anchors` ends the forms of the pass.
#[test]
fn h14_a_full_disk_under_the_anchors_ends_no_stream() {
    let dir = tempfile::Builder::new().prefix("pgsluice-relay-").tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir_all(data.join("anchors")).unwrap();
    let Some(disk) = SmallDisk::mount_over(&data.join("anchors"), 64 << 10) else { return };
    let publisher = publisher(newest());
    let source = publisher.url(DB);
    let stage = Stage::beside(publisher, &source, Some(&data), "");
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "");
    stage.level(&[&cluster]);
    let worker = apply_worker(&cluster, "s");
    let ballast = Ballast::fill(disk.path());
    let count = || walked(disk.path(), "catalog");
    let before = count();
    for _ in 0..3 {
        run(&stage.publisher, DB, "SELECT pg_logical_emit_message(false, 'wal', repeat('x', 17000000))");
        run(&stage.publisher, DB, "CHECKPOINT");
        run(&stage.publisher, DB, "CHECKPOINT");
        stage.level(&[&cluster]);
    }
    wait("the relay to say it", || stage.relay.stderr().contains("cannot keep the catalogs"));
    assert_eq!(count(), before, "an anchor was made without room");
    assert_eq!(walked(disk.path(), "new"), 0, "what was not written whole stays");
    assert_eq!(
        apply_worker(&cluster, "s"),
        worker,
        "the subscriber was sent away:\n{}",
        stage.relay.stderr()
    );
    drop(ballast);
    wait("an anchor", || {
        run(&stage.publisher, DB, "CHECKPOINT");
        count() > before
    });
    stage.level(&[&cluster]);
}

/// The number of files below a directory whose names end so.
fn walked(dir: &Path, ending: &str) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let count = |entry: std::fs::DirEntry| match entry.path().is_dir() {
        true => walked(&entry.path(), ending),
        false => usize::from(entry.path().extension().is_some_and(|own| own == ending)),
    };
    entries.map(count).sum()
}

/// Cuts every connection of a proxy after a number of bytes that it draws each time, so inside of
/// messages, too. Returns the count of cuts.
fn cut_again_and_again(proxy: &Proxy, seed: u64, most: u64) -> Arc<AtomicU64> {
    let cuts = Arc::new(AtomicU64::new(0));
    let (counted, mut random) = (Arc::clone(&cuts), StdRng::seed_from_u64(seed));
    let mut left = random.random_range(1..most);
    proxy.alter(move |bytes| {
        if (bytes.len() as u64) < left {
            left -= bytes.len() as u64;
            return Then::Forward;
        }
        bytes.truncate(left as usize);
        left = random.random_range(1..most);
        counted.fetch_add(1, Ordering::Relaxed);
        Then::Cut
    });
    cuts
}

/// Connections break inside of messages, before and behind the relay, and nothing is lost.
///
/// Fails if the receiver goes on behind a message that it has in part, or if a sender that is cut
/// off confirms what it has handed over.
#[test]
fn a_network_cut_inside_of_messages_loses_nothing() {
    let seed = crate::seed();
    println!("PGSLUICE_RELAY_SEED={seed}");
    let publisher = publisher(newest());
    let before = Proxy::to(publisher.port()).unwrap();
    let source = before.url(&publisher.url(DB));
    let stage = Stage::beside(publisher, &source, None, "");
    let cluster = subscriber(newest());
    let behind = Proxy::to(stage.port).unwrap();
    subscribe(&cluster, (DB, "s"), (behind.port(), DB), "streaming = on");
    wait("the copies to be ready", || is_ready(&cluster, DB));
    let cuts = [cut_again_and_again(&before, seed, 900_000), cut_again_and_again(&behind, !seed, 400_000)];
    let count = || cuts.each_ref().map(|cuts| cuts.load(Ordering::Relaxed));
    let mut round = 0;
    while count().iter().any(|cuts| *cuts < 3) {
        assert!(round < 60, "{:?} cuts", count());
        stage.source(&format!(
            "INSERT INTO t SELECT {round} * 1000 + n, repeat('x', 900) FROM generate_series(1001, 1300) n; \
             UPDATE t SET v = v || '!' WHERE id % 50 = {round} % 50; \
             INSERT INTO ledger SELECT 1, {round}, n FROM generate_series(1, 200) n"
        ));
        round += 1;
        stage.level_by_mark(&[&cluster]);
    }
    for proxy in [&before, &behind] {
        proxy.alter(|_| Then::Forward);
    }
    stage.level(&[&cluster]);
}

/// A subscriber stops to read. Others stay level, the publisher gives its WAL away, and the one
/// that stopped gets everything when it goes on, from the relay's files.
///
/// Fails if `Track::flush` waits for cursors, or if the receiver's confirmation follows slots.
#[test]
fn a_subscriber_that_stops_reading_holds_up_nobody() {
    let stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    database(&cluster, "slow");
    stage.subscribe(&cluster, "fast", "");
    subscribe(&cluster, ("slow", "slow"), (stage.port, DB), "");
    wait("the copies to be ready", || is_ready(&cluster, "slow"));
    let stopped = Stopped::new(apply_worker(&cluster, "slow"));
    let began = kept_for_relay(&stage.publisher);
    // More than the socket and the relay's memory take.
    for part in 0..10 {
        stage.source(&format!(
            "INSERT INTO t SELECT n, repeat('x', 100000) FROM generate_series(1000 + {part} * 30, 1029 + {part} * 30) n"
        ));
        stage.source(&format!("INSERT INTO ledger VALUES (2, {part}, 1)"));
    }
    let end = position(&stage.publisher);
    stage.level(&[&cluster]);
    wait("the publisher's slot to move on", || slot_passes(&stage.publisher, &end));
    assert_ne!(kept_for_relay(&stage.publisher), began);
    assert_eq!(cluster.one("slow", "SELECT count(*) FROM ledger"), "0", "it was stopped too late");
    drop(stopped);
    stage.reach(DB, &[(&cluster, "slow")]);
    for table in ["t", "ledger"] {
        let digest = format!(
            "SELECT count(*) || ' ' || md5(string_agg(r::text, ',' ORDER BY r::text)) FROM {table} r"
        );
        assert_eq!(cluster.one("slow", &digest), stage.publisher.one(DB, &digest), "{table}");
    }
}
