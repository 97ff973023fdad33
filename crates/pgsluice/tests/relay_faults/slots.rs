//! Hazards of slots: what they name, who uses them, and what their snapshot is worth.
//!
//! Each test says what change of the relay makes it fail.

use std::time::{Duration, Instant};

use client::{ConnInfo, Replication, Wire};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::{Cluster, Major, Proxy, assert_same_rows};
use tokio::runtime::Runtime;

use crate::conn::Conn;
use crate::kept::Kept;
use crate::stage::{
    BOUND, DB, Stage, answers, conninfo, database, is_ready, newest, publish, run, subscribe, subscriber,
    wait,
};

/// More WAL than the distance between two anchors, which costs no subscriber anything.
const MUCH_WAL: &str = "SELECT pg_logical_emit_message(false, 'wal', repeat('x', 17000000))";

/// WAL, and reports of running transactions behind it: then the relay makes an anchor.
fn next_anchor(publisher: &Cluster) {
    run(publisher, DB, MUCH_WAL);
    anchor(publisher);
}

/// Two reports of running transactions. If it is time for an anchor, the relay takes the catalogs
/// at the first, and is sure of them at the second.
fn anchor(publisher: &Cluster) {
    for _ in 0..2 {
        run(publisher, DB, "CHECKPOINT");
    }
}

/// Ends the workers of a cluster's subscriptions, which come back. The relay then stores each slot.
fn end_workers(cluster: &Cluster) {
    run(cluster, DB, "SELECT pg_terminate_backend(pid) FROM pg_stat_subscription WHERE pid IS NOT NULL");
}

/// Anchors come and go while the relay is killed at random moments. After each kill, everything is
/// there that a slot's file names.
///
/// Fails if `Anchors::keep` notes an anchor and writes its file later, if `Slots::least` counts
/// what is in memory in place of `kept`, or if `tidy` removes before it stores the slots.
#[test]
fn h06_what_a_slot_names_is_there_whenever_the_relay_is_killed() {
    let seed = crate::seed();
    println!("PGSLUICE_RELAY_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "");
    let mut kept = Kept::new(stage.data_dir());
    let first = kept.least_anchor().expect("an anchor of the first slot");
    for round in 0..6 {
        next_anchor(&stage.publisher);
        stage.level(&[&cluster]);
        end_workers(&cluster);
        stage.source(&format!("INSERT INTO ledger VALUES (6, {round}, 1)"));
        let until = Instant::now() + Duration::from_millis(random.random_range(0..1_500));
        while Instant::now() < until {
            kept.look().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            // Between two looks.
            std::thread::sleep(Duration::from_millis(2));
        }
        stage.kill_relay();
        kept.look_when_down().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        stage.start_relay();
    }
    stage.level(&[&cluster]);
    wait("the first anchor to go", || {
        anchor(&stage.publisher);
        stage.level(&[&cluster]);
        end_workers(&cluster);
        // A round of tidying takes away what the slot has passed.
        std::thread::sleep(Duration::from_secs(1));
        kept.look().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        kept.least_anchor() > Some(first)
    });
    assert!(kept.looks > 100, "{} looks", kept.looks);
}

/// The relay is killed when one of its threads begins its first, second, third or later sync of a
/// file or a directory: of slots, anchors, or whole segments.
///
/// Fails as the test before does, and if a slot's file is written in place.
#[test]
fn h06_a_relay_that_is_killed_at_a_sync_has_named_nothing_too_early() {
    let mut stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "");
    let mut kept = Kept::new(stage.data_dir());
    // WAL that is confirmed is synced by `fdatasync`, everything else by `fsync`.
    let whole = [1, 2, 3, 4, 5, 6, 8].map(|number| ("fsync", number));
    let wal = [1, 2, 5].map(|number| ("fdatasync", number));
    for (seq, (call, number)) in whole.into_iter().chain(wal).enumerate() {
        stage.kill_relay();
        if !stage.start_relay_until_sync(call, number) {
            return;
        }
        wait("the relay to be killed", || {
            next_anchor(&stage.publisher);
            stage.source(&format!("INSERT INTO ledger VALUES (6, {seq}, 1)"));
            end_workers(&cluster);
            !stage.relay.is_running()
        });
        kept.look_when_down().unwrap_or_else(|why| panic!("{call} {number}: {why}"));
    }
    stage.start_relay();
    stage.level(&[&cluster]);
}

/// Prepared transactions that end after a restart of the relay, one by COMMIT and one by ROLLBACK.
/// One that is prepared after the restart still comes when it is prepared.
///
/// Fails if `ActiveSlot::use_two_phase` does not store the slot, or if `SlotState` leaves
/// `two_phase_at` out of its file.
#[test]
fn h07_two_phase_commit_survives_a_restart() {
    Major::each_of(&Major::in_turn(), 1, |major| {
        if major < Major::V15 {
            return;
        }
        let mut stage = Stage::new(major, "");
        let cluster = subscriber(major);
        stage.subscribe(&cluster, "s", "two_phase = on");
        let enabled = "SELECT subtwophasestate FROM pg_subscription";
        wait("two-phase commit", || answers(&cluster, DB, enabled, "e"));
        let count = "SELECT count(*) FROM pg_prepared_xacts";
        let prepare = |stage: &Stage, gid: &str| {
            stage.source(&format!("BEGIN; INSERT INTO ledger VALUES (7, 1, 1); PREPARE TRANSACTION '{gid}'"));
        };
        prepare(&stage, "commits");
        prepare(&stage, "rolls back");
        wait("prepared transactions", || answers(&cluster, DB, count, "2"));
        // The position behind them is confirmed and stored, so nobody sends them again.
        stage.level_by_mark(&[&cluster]);
        end_workers(&cluster);
        stage.level_by_mark(&[&cluster]);
        stage.restart_relay();
        prepare(&stage, "later");
        wait("the one that is prepared later", || answers(&cluster, DB, count, "3"));
        stage.source("COMMIT PREPARED 'commits'");
        stage.source("ROLLBACK PREPARED 'rolls back'");
        wait("both to end", || answers(&cluster, DB, count, "1"));
        stage.restart_relay();
        stage.source("COMMIT PREPARED 'later'");
        wait("the last to end", || answers(&cluster, DB, count, "0"));
        stage.level(&[&cluster]);
        let log = cluster.log();
        assert!(!log.contains("prepared transaction with identifier"), "{log}");
    });
}

/// A transaction is prepared before two-phase commit begins for the subscription, and commits
/// after that. It comes when it commits, PREPARE and all. A subscriber that has confirmed the
/// commit does not get it again.
///
/// Fails if a track takes the position of that PREPARE for the place where the transaction is
/// needed: the subscriber then gets COMMIT PREPARED alone, and never comes over it.
#[test]
fn h07_what_was_prepared_before_two_phase_commit_began_comes_when_it_commits() {
    if newest() < Major::V15 {
        return;
    }
    let mut stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    let mut holder = hold_copy(&cluster, "t");
    subscribe(&cluster, (DB, "s"), (stage.port, DB), "two_phase = on");
    wait("the copy to be in the middle", || answers(&cluster, DB, COPY_WAITS, "1"));
    for number in 0..3 {
        let rows = format!("INSERT INTO ledger SELECT 7, {number}, n FROM generate_series(1, 20) n");
        stage.source(&format!("BEGIN; {rows}; PREPARE TRANSACTION 'early {number}'"));
    }
    holder.run("SELECT pg_advisory_unlock(15)").unwrap();
    let enabled = "SELECT subtwophasestate FROM pg_subscription";
    wait("two-phase commit", || answers(&cluster, DB, enabled, "e"));
    stage.level(&[&cluster]);
    stage.source("COMMIT PREPARED 'early 0'");
    stage.level(&[&cluster]);
    stage.restart_relay();
    stage.source("COMMIT PREPARED 'early 1'");
    stage.level(&[&cluster]);
    run(&cluster, DB, "ALTER SUBSCRIPTION s DISABLE");
    wait("the worker to end", || answers(&cluster, DB, "SELECT count(pid) FROM pg_stat_subscription", "0"));
    stage.source("COMMIT PREPARED 'early 2'");
    stage.source("INSERT INTO ledger VALUES (7, 9, 9)");
    run(&cluster, DB, "ALTER SUBSCRIPTION s ENABLE");
    stage.level(&[&cluster]);
    assert_eq!(cluster.one(DB, "SELECT count(*) FROM ledger WHERE worker = 7"), "61");
}

/// The same name is given to prepared transactions one after the other, with the relay killed
/// between them.
///
/// Fails if a track hands out a transaction again that ends before the place of entrance.
#[test]
fn h08_a_gid_is_prepared_again_behind_a_restart() {
    if newest() < Major::V15 {
        return;
    }
    let mut stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "two_phase = on");
    wait("two-phase commit", || answers(&cluster, DB, "SELECT subtwophasestate FROM pg_subscription", "e"));
    let is_prepared = |count: &str| answers(&cluster, DB, "SELECT count(*) FROM pg_prepared_xacts", count);
    for (round, end) in ["COMMIT", "ROLLBACK", "COMMIT", "COMMIT"].iter().enumerate() {
        let rows = format!("INSERT INTO ledger SELECT 8, {round}, n FROM generate_series(1, 50) n");
        stage.source(&format!("BEGIN; {rows}; PREPARE TRANSACTION 'g'"));
        wait("the prepared transaction", || is_prepared("1"));
        stage.kill_relay();
        stage.source(&format!("{end} PREPARED 'g'"));
        if round % 2 == 0 {
            // The next one stands behind it before the relay has seen the end.
            stage.source("BEGIN; INSERT INTO ledger VALUES (8, 9, 9); PREPARE TRANSACTION 'g'");
            stage.start_relay();
            wait("the next of the name", || is_prepared("1"));
            stage.source("COMMIT PREPARED 'g'");
        } else {
            stage.start_relay();
        }
        wait("its end", || is_prepared("0"));
        stage.level(&[&cluster]);
    }
}

/// A slot's streaming connection for a moment: whether the relay begins to send.
fn can_stream(runtime: &Runtime, stage: &Stage, slot: &str) -> Result<(), String> {
    let info = ConnInfo::parse(&conninfo(stage.port, DB)).unwrap();
    let said = |error: client::Error| base::with_causes(&error);
    runtime.block_on(async {
        let wire = Wire::connect(&info, "a test", Replication::Database, &[]).await;
        let mut wire = wire.map_err(said)?;
        let create = format!("CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput NOEXPORT_SNAPSHOT");
        wire.query(&create).await.map_err(said)?;
        // Anchors may go while nobody uses the slot.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let options = "(proto_version '1', publication_names 'p')";
        let start = format!("START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}");
        wire.copy_both(&start).await.map_err(said)?;
        let frame = tokio::time::timeout(BOUND, wire.read_frame()).await;
        frame.map_err(|_| "nothing is sent".to_owned())?.map_err(said)?;
        wire.copy_both_finish().await.map_err(said)?;
        wire.query(&format!("DROP_REPLICATION_SLOT {slot}")).await.map_err(said)?;
        Ok(())
    })
}

/// Slots are created while the anchors before them go, over two rounds of tidying. Each can be
/// used, and a slot of another database that stands still loses nothing.
///
/// Fails if `Anchors::remove_before` takes the greatest anchor, too, or if `Slots::least` leaves
/// out slots that nobody uses.
#[test]
fn h11_a_slot_that_is_created_while_anchors_go_can_be_used() {
    let mut stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    run(&stage.publisher, DB, "CREATE DATABASE two");
    publish(&stage.publisher, "two");
    database(&cluster, "late");
    stage.subscribe(&cluster, "s", "");
    subscribe(&cluster, ("late", "late"), (stage.port, "two"), "");
    wait("the copies to be ready", || is_ready(&cluster, "late"));
    run(&cluster, "late", "ALTER SUBSCRIPTION late DISABLE");
    run(&stage.publisher, "two", "INSERT INTO ledger SELECT 11, n, n FROM generate_series(1, 100) n");
    let mut kept = Kept::new(stage.data_dir());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let begun = Instant::now();
    let mut number = 0;
    // Two rounds of tidying are ten seconds.
    while begun.elapsed() < Duration::from_secs(11) {
        next_anchor(&stage.publisher);
        stage.source("INSERT INTO ledger VALUES (11, 1, 1)");
        end_workers(&cluster);
        number += 1;
        can_stream(&runtime, &stage, &format!("made_{number}"))
            .unwrap_or_else(|why| panic!("slot {number}: {why}"));
        kept.look().unwrap();
    }
    stage.kill_relay();
    kept.look_when_down().unwrap();
    stage.start_relay();
    run(&cluster, "late", "ALTER SUBSCRIPTION late ENABLE");
    stage.reach("two", &[(&cluster, "late")]);
    assert_eq!(cluster.one("late", "SELECT count(*) FROM ledger WHERE worker = 11"), "100");
    stage.level(&[&cluster]);
    assert!(number > 5, "{number} slots");
}

/// The network stops and tells neither end. The slot becomes free after
/// `wal_sender_timeout`, for the subscriber that comes back and for DROP SUBSCRIPTION.
///
/// Fails if `Walsender::look` never ends with `Silent`, or if `Session::drop_slot` does not wait.
#[test]
fn h12_a_slot_of_a_half_dead_sender_becomes_free() {
    let stage = Stage::new(newest(), "wal_sender_timeout = '3s'");
    let cluster = subscriber(newest());
    let proxy = Proxy::to(stage.port).unwrap();
    subscribe(&cluster, (DB, "s"), (proxy.port(), DB), "");
    wait("the copies to be ready", || is_ready(&cluster, DB));
    stage.level(&[&cluster]);
    assert!(proxy.stall() > 0);
    end_workers(&cluster);
    stage.source("INSERT INTO ledger SELECT 12, n, n FROM generate_series(1, 1000) n");
    wait("the slot to be in use", || cluster.log().contains("is active for PID"));
    stage.level(&[&cluster]);
    assert!(proxy.stall() > 0);
    run(&cluster, DB, "ALTER SUBSCRIPTION s DISABLE");
    wait("the worker to end", || answers(&cluster, DB, "SELECT count(pid) FROM pg_stat_subscription", "0"));
    assert!(stage.slot_file("s").is_some());
    // A session that gives up by itself after a while.
    Conn::new(cluster.url(DB)).run("DROP SUBSCRIPTION s").unwrap();
    assert_eq!(stage.slot_file("s"), None);
    stage.source("INSERT INTO ledger VALUES (12, 0, 0)");
}

/// A database goes, and another one gets its name. The slot is of the one that has gone: nothing of
/// the new one comes over it, and others go on.
///
/// Fails if `Slots::acquire` compares names of databases, or nothing.
#[test]
fn h13_a_slot_does_not_pass_to_another_database_of_the_same_name() {
    let stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    let make = || {
        run(&stage.publisher, DB, "CREATE DATABASE passes");
        publish(&stage.publisher, "passes");
    };
    make();
    for db in ["old", "new"] {
        database(&cluster, db);
    }
    stage.subscribe(&cluster, "stays", "");
    subscribe(&cluster, ("old", "old"), (stage.port, "passes"), "");
    wait("the copies to be ready", || is_ready(&cluster, "old"));
    stage.reach("passes", &[(&cluster, "old")]);
    let rows = cluster.one("old", "SELECT count(*) || ' ' || max(id) FROM t");
    // Nothing of the relay is connected there, though a sender is.
    wait("the database to go", || stage.publisher.sql(DB, "DROP DATABASE passes").is_ok());
    make();
    run(&stage.publisher, "passes", "INSERT INTO t SELECT n, 'new' FROM generate_series(1001, 1100) n");
    stage.level(&[&cluster]);
    end_workers(&cluster);
    let refused = "replication slot \"old\" was not created in this database";
    wait("the slot to be refused", || cluster.log().contains(refused));
    subscribe(&cluster, ("new", "new"), (stage.port, "passes"), "");
    wait("the copies to be ready", || is_ready(&cluster, "new"));
    stage.reach("passes", &[(&cluster, "new")]);
    assert_same_rows_between(&stage.publisher, "passes", &cluster, "new");
    assert_eq!(cluster.one("old", "SELECT count(*) || ' ' || max(id) FROM t"), rows);
    Conn::new(cluster.url("old")).run("DROP SUBSCRIPTION old").unwrap();
    assert_eq!(stage.slot_file("old"), None);
    stage.level(&[&cluster]);
}

/// Table `t` of two databases with different names.
fn assert_same_rows_between(publisher: &Cluster, from: &str, cluster: &Cluster, db: &str) {
    let digest = "SELECT count(*) || ' ' || md5(string_agg(t::text, ',' ORDER BY id)) FROM t";
    assert_eq!(cluster.one(db, digest), publisher.one(from, digest));
}

/// How many copies wait for [`hold_copy`].
const COPY_WAITS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";

/// Lets the copy of a table wait at row 50 until the session that is returned unlocks.
fn hold_copy(cluster: &Cluster, table: &str) -> Conn {
    run(
        cluster,
        DB,
        &format!(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF NEW.id = 50 THEN PERFORM pg_advisory_xact_lock_shared(15); END IF; RETURN NEW; END $$;
             CREATE TRIGGER w BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION wait();
             ALTER TABLE {table} ENABLE ALWAYS TRIGGER w"
        ),
    );
    let mut holder = Conn::new(cluster.url(DB));
    holder.run("SELECT pg_advisory_lock(15)").unwrap();
    holder
}

/// The publisher crashes in the middle of a copy. The subscriber sees an error, and copies again
/// under a snapshot that equals the new slot's place.
///
/// Fails if `Session::sql` ends a COPY as done when the publisher is lost, or goes on with it over
/// another connection: rows of two snapshots are mixed then.
#[test]
fn h15_a_copy_fails_whose_publisher_is_lost() {
    Major::each_of(&Major::in_turn(), 1, |major| {
        let mut stage = Stage::new(major, "");
        let cluster = subscriber(major);
        // More than all buffers on the way.
        let big = "CREATE TABLE big (id int PRIMARY KEY, v text)";
        stage.source(&format!("{big}; ALTER PUBLICATION p ADD TABLE big"));
        stage.source("INSERT INTO big SELECT n, repeat('b', 2000) FROM generate_series(1, 15000) n");
        run(&cluster, DB, big);
        let mut holder = hold_copy(&cluster, "big");
        subscribe(&cluster, (DB, "s"), (stage.port, DB), "");
        wait("the copy to be in the middle", || answers(&cluster, DB, COPY_WAITS, "1"));
        stage.source("UPDATE big SET v = 'new' WHERE id % 3 = 0; DELETE FROM big WHERE id % 7 = 0");
        stage.publisher.kill9();
        stage.publisher.start_again().unwrap();
        stage.source("INSERT INTO big VALUES (0, 'behind the crash')");
        holder.run("SELECT pg_advisory_unlock(15)").unwrap();
        wait("the copy to fail", || {
            cluster.log().contains("the relay has lost the connection to the publisher")
        });
        wait("the copies to be ready", || is_ready(&cluster, DB));
        stage.level(&[&cluster]);
        assert_same_rows(&stage.publisher, &cluster, DB, "big");
    });
}

/// WAL goes that only a database without slots would need.
#[test]
fn a_database_without_slots_holds_no_wal() {
    let stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    run(&stage.publisher, DB, "CREATE DATABASE two");
    publish(&stage.publisher, "two");
    database(&cluster, "leaves");
    stage.subscribe(&cluster, "s", "");
    subscribe(&cluster, ("leaves", "leaves"), (stage.port, "two"), "");
    wait("the copies to be ready", || is_ready(&cluster, "leaves"));
    Conn::new(cluster.url("leaves")).run("DROP SUBSCRIPTION leaves").unwrap();
    let kept = Kept::new(stage.data_dir());
    let before = kept.oldest_segment();
    wait("the oldest segment to go", || {
        next_anchor(&stage.publisher);
        stage.level(&[&cluster]);
        end_workers(&cluster);
        // A round of tidying is five seconds.
        std::thread::sleep(Duration::from_secs(2));
        kept.oldest_segment() > before
    });
}
