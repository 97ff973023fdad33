//! Large transactions and long backlogs: what they take of memory and of the disk, and where
//! decoding begins again.
//!
//! Each test says what change of the relay makes it fail.

use testkit::{Major, Proxy, SmallDisk, StopMode};

use crate::conn::Conn;
use crate::stage::{
    DB, Stage, answers, database, is_ready, newest, publisher, run, subscribe, subscriber, wait,
};

/// More WAL than the distance between two anchors, with rows.
const SEGMENT: &str =
    "INSERT INTO t SELECT n, repeat(md5(n::text), 300) FROM generate_series({}, {} + 1799) n";

fn segment(stage: &Stage, number: u32) {
    stage.source(&SEGMENT.replace("{}", &(10_000 * (number + 1)).to_string()));
    // Two reports of running transactions.
    stage.source("CHECKPOINT");
    stage.source("CHECKPOINT");
}

/// One transaction of 500 MB, which is not streamed. Tracks have 96 MiB, what late subscribers read
/// from files 48 MiB, and the transaction's own changes 16 MiB before they go to files.
///
/// Fails if what one piece of WAL brings out is shown as a whole.
#[test]
fn a_large_transaction_is_not_held_in_memory() {
    const MOST_MB: u64 = 300;
    let stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "streaming = off");
    stage.source("INSERT INTO t SELECT n, repeat(md5(n::text), 320) FROM generate_series(1000, 51000) n");
    stage.level(&[&cluster]);
    let peak = testkit::process::resident_bytes_max(stage.relay.pid()) >> 20;
    println!("the relay had at most {peak} MB");
    assert!(peak > 0 && peak < MOST_MB, "{peak} MB");
}

/// A subscriber that catches up slowly confirms as it goes, and its place moves with it.
///
/// Fails if only the pass makes anchors: the place would stay until the subscriber is level.
#[test]
fn l2_the_place_of_a_slow_subscriber_moves_while_it_catches_up() {
    let stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    let proxy = Proxy::to(stage.port).unwrap();
    subscribe(&cluster, (DB, "s"), (proxy.port(), DB), "streaming = off");
    wait("the copy", || is_ready(&cluster, DB));
    stage.level(&[&cluster]);
    run(&cluster, DB, "ALTER SUBSCRIPTION s DISABLE");
    for number in 0..6 {
        segment(&stage, number);
    }
    proxy.alter(|_| {
        std::thread::sleep(std::time::Duration::from_millis(15));
        testkit::Then::Forward
    });
    let place = || {
        let file = stage.slot_file("s").expect("the slot's file");
        file.lines().find(|line| line.contains("\"restart\"")).expect("its place").to_owned()
    };
    let first = place();
    run(&cluster, DB, "ALTER SUBSCRIPTION s ENABLE");
    wait("the place to move", || place() != first);
    let all = stage.publisher.one(DB, "SELECT count(*) FROM t");
    assert_ne!(cluster.one(DB, "SELECT count(*) FROM t"), all, "it is level already");
    proxy.alter(|_| testkit::Then::Forward);
    stage.level(&[&cluster]);
    // And nothing is missing when it begins again there.
    run(&cluster, DB, "ALTER SUBSCRIPTION s DISABLE");
    segment(&stage, 7);
    run(&cluster, DB, "ALTER SUBSCRIPTION s ENABLE");
    stage.level(&[&cluster]);
}

/// A large transaction that was prepared before two-phase commit began, beside a slot that is far
/// behind. Its subscriber comes back when it is committed, and has none of it.
///
/// Fails if the transaction is streamed because decoding began at the other slot's place.
#[test]
fn what_was_prepared_before_two_phase_began_comes_whole() {
    Major::each(1, |major| {
        if major < Major::V15 {
            println!("{major}: not tested: its slots have no two-phase commit");
            return;
        }
        let prepares = "ALTER SYSTEM SET max_prepared_transactions = 10";
        let (mut source, mut cluster) = (publisher(major), subscriber(major));
        for server in [&mut source, &mut cluster] {
            run(server, DB, prepares);
            server.restart(StopMode::Fast).unwrap();
        }
        let url = source.url(DB);
        let stage = Stage::beside(source, &url, None, "");
        stage.subscribe(&cluster, "behind", "");
        run(&cluster, DB, "ALTER SUBSCRIPTION behind DISABLE");
        stage.source("INSERT INTO t VALUES (1000, 'x'); INSERT INTO mark DEFAULT VALUES");
        database(&cluster, "two");
        // A copy that has its slot waits for this.
        run(
            &cluster,
            "two",
            "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               PERFORM pg_catalog.pg_advisory_xact_lock(1); RETURN NEW; END $$;
             CREATE TRIGGER gate BEFORE INSERT ON mark FOR EACH ROW EXECUTE FUNCTION gate();
             ALTER TABLE mark ENABLE ALWAYS TRIGGER gate",
        );
        let mut lock = Conn::new(cluster.url("two"));
        lock.run("BEGIN").unwrap();
        lock.run("SELECT pg_advisory_xact_lock(1)").unwrap();
        subscribe(&cluster, ("two", "two"), (stage.port, DB), "two_phase = on, streaming = on");
        let other_tables = "SELECT count(*) FILTER (WHERE srsubstate = 'r') FROM pg_subscription_rel";
        wait("the other tables", || answers(&cluster, "two", other_tables, "2"));
        let waits = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        wait("a copy that waits", || answers(&cluster, "two", waits, "t"));
        let mut open = Conn::new(stage.publisher.url(DB));
        open.run("BEGIN").unwrap();
        open.run("INSERT INTO t SELECT n, repeat(md5(n::text), 100) FROM generate_series(2001, 10000) n")
            .unwrap();
        open.run("PREPARE TRANSACTION 'big'").unwrap();
        lock.run("ROLLBACK").unwrap();
        let begun = "SELECT subtwophasestate FROM pg_subscription WHERE subname = 'two'";
        wait("two-phase commit to begin", || answers(&cluster, "two", begun, "e"));
        run(&cluster, "two", "ALTER SUBSCRIPTION two DISABLE");
        stage.source("COMMIT PREPARED 'big'");
        run(&cluster, "two", "ALTER SUBSCRIPTION two ENABLE");
        stage.reach(DB, &[(&cluster, "two")]);
        assert_eq!(cluster.one("two", "SELECT count(*) FROM t WHERE id > 2000"), "8000");
        run(&cluster, DB, "ALTER SUBSCRIPTION behind ENABLE");
        stage.level(&[&cluster]);
    });
}

/// A slot that nobody reads fills the disk. Dropping it makes room, and everything goes on.
///
/// Fails if a slot that cannot be written keeps WAL from going.
#[test]
fn h14_dropping_the_slot_that_fills_the_disk_makes_room() {
    let Some(disk) = SmallDisk::mount(160 << 10) else { return };
    let source = publisher(newest());
    let url = source.url(DB);
    let stage = Stage::beside(source, &url, Some(&disk.path().join("data")), "");
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "");
    database(&cluster, "two");
    subscribe(&cluster, ("two", "unread"), (stage.port, DB), "");
    wait("the copy", || is_ready(&cluster, "two"));
    run(&cluster, "two", "ALTER SUBSCRIPTION unread DISABLE");
    let mut number = 0;
    wait("the disk to be full", || {
        segment(&stage, number);
        number += 1;
        stage.relay.stderr().contains("WAL is not confirmed until there is room")
    });
    // It stays full for some rounds.
    std::thread::sleep(std::time::Duration::from_secs(6));
    run(&cluster, "two", "DROP SUBSCRIPTION unread");
    stage.level(&[&cluster]);
}
