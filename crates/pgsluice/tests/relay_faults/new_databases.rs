//! Databases of the publisher that the relay sees for the first time, or that are gone.
//!
//! Each test says what change of the relay makes it fail.

use client::{ConnInfo, Replication, Wire};
use tokio::runtime::Runtime;

use crate::stage::{
    BOUND, DB, Stage, conninfo, database, is_ready, newest, publish, run, subscribe, subscriber, wait,
};

/// A relay that lost its data directory receives WAL from where its slot at the publisher is, which
/// is behind the publisher's last checkpoint. A look at the catalogs goes back to that.
///
/// Fails if the look is kept although its WAL is not here: all slots of the database would be dead.
#[test]
fn h11_a_relay_that_begins_behind_the_last_checkpoint_serves_new_subscribers() {
    let mut stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "");
    stage.source("CHECKPOINT");
    for n in 0..3 {
        let from = 10_000 * (n + 1);
        stage.source(&format!(
            "INSERT INTO t SELECT n, repeat('x', 9000) FROM generate_series({from}, {from} + 1899) n"
        ));
        stage.level(&[&cluster]);
    }
    let restart =
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) < 16000000 FROM pg_replication_slots";
    wait("the relay's slot to move", || stage.publisher.one(DB, restart) == "t");
    run(&cluster, DB, "DROP SUBSCRIPTION s");
    stage.kill_relay();
    for lost in ["wal", "anchors", "slots"] {
        std::fs::remove_dir_all(stage.data_dir().join(lost)).unwrap();
    }
    stage.start_relay();
    run(&cluster, DB, "TRUNCATE t, ledger, mark");
    stage.subscribe(&cluster, "again", "");
    stage.source("UPDATE t SET v = 'changed' WHERE id % 7 = 0");
    stage.level(&[&cluster]);
}

/// A server drops the unused slots of a database with it.
///
/// Fails if such a slot stays, and WAL with it.
#[test]
fn slots_of_a_database_that_is_dropped_go() {
    let stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "");
    run(&stage.publisher, DB, "CREATE DATABASE gone");
    publish(&stage.publisher, "gone");
    database(&cluster, "gone");
    subscribe(&cluster, ("gone", "stays"), (stage.port, "gone"), "");
    wait("the copies", || is_ready(&cluster, "gone"));
    run(&cluster, "gone", "ALTER SUBSCRIPTION stays DISABLE");
    wait("its file", || stage.slot_file("stays").is_some());
    run(&stage.publisher, DB, "DROP DATABASE gone WITH (FORCE)");
    wait("the slot to go", || stage.slot_file("stays").is_none());
    assert!(stage.relay.stderr().contains("replication slot \"stays\" was dropped, because"));
    assert!(stage.slot_file("s").is_some(), "another one went");
    run(&cluster, "gone", "ALTER SUBSCRIPTION stays SET (slot_name = NONE)");
    run(&cluster, "gone", "DROP SUBSCRIPTION stays");
    stage.level(&[&cluster]);
}

/// Fails if a slot counts as used by another because its own session has it.
#[test]
fn a_session_reads_its_own_temporary_slot() {
    let stage = Stage::new(newest(), "");
    let place = ConnInfo::parse(&conninfo(stage.port, DB)).unwrap();
    let read = async {
        let mut wire = Wire::connect(&place, "temporary", Replication::Database, &[]).await.unwrap();
        let create = "CREATE_REPLICATION_SLOT own TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')";
        wire.query(create).await.unwrap();
        let start = "START_REPLICATION SLOT own LOGICAL 0/0 (proto_version '1', publication_names 'p')";
        for _ in 0..2 {
            wire.copy_both(start).await.unwrap();
            wire.copy_both_finish().await.unwrap();
        }
        wire.query("DROP_REPLICATION_SLOT own").await.unwrap();
    };
    Runtime::new().unwrap().block_on(async { tokio::time::timeout(BOUND, read).await.unwrap() });
}
