//! Slots that are too far behind or idle for too long, and what is kept when none is left.

use std::path::Path;

use testkit::{Cluster, Major, wait_for};

use crate::views::through;
use crate::{BOUND, DB, call, configure, free_port, level, publisher, start};

/// Names of the files in a directory below the relay's, in order.
fn files(dir: &Path, below: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir.join("data").join(below)) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Writes some segments of WAL.
fn write(publisher: &Cluster, segments: u32) {
    for _ in 0..segments {
        publisher.sql(DB, "SELECT pg_logical_emit_message(false, 'x', 'y'); SELECT pg_switch_wal()").unwrap();
    }
}

/// Hazard 11 and rule L2, point 3: slots, anchors, WAL.
#[test]
fn l2_without_a_slot_no_wal_and_no_catalogs_are_kept() {
    let major = *Major::under_test().last().unwrap();
    let (publisher, dir) = (publisher(major), tempfile::tempdir().unwrap());
    publisher.sql(DB, "CREATE DATABASE other").unwrap();
    let port = free_port();
    let config = configure(dir.path(), &publisher.url(DB), port);
    call(&["user", "add", "sub", "--from-source", "--config", config.to_str().unwrap()], "").expect_success();
    let relaying = start(&config, port);
    let slots = |database: &str, args: &[&str]| {
        let place = format!("host=127.0.0.1 port={port} user=sub password=geheim dbname={database}");
        call(&[&["slots"], args, &["--relay", &place]].concat(), "").expect_success()
    };
    slots(DB, &["create", "a"]);
    let segments = || files(dir.path(), "wal").iter().filter(|name| name.len() == 24).count();
    let anchors = || files(dir.path(), "anchors").len();
    write(&publisher, 8);
    wait_for("WAL to come", BOUND, || Ok(segments() >= 8)).unwrap();
    assert_eq!(anchors(), 1);
    slots(DB, &["drop", "a"]);
    // The next slot of any database looks at its catalogs from the latest checkpoint on.
    publisher.sql(DB, "CHECKPOINT").unwrap();
    wait_for("WAL to go", BOUND, || Ok(segments() <= 2)).unwrap_or_else(|error| {
        panic!("{error}: {:?}\n{}", files(dir.path(), "wal"), relaying.sluice.stderr())
    });
    for database in [DB, "other"] {
        write(&publisher, 3);
        slots(database, &["create", "b"]);
        slots(database, &["drop", "b"]);
    }
    wait_for("all catalogs to go", BOUND, || {
        let dirs = files(dir.path(), "anchors");
        Ok(dirs.iter().all(|oid| files(dir.path(), &format!("anchors/{oid}")).is_empty()))
    })
    .unwrap();
}

#[test]
fn slots_that_are_too_far_behind_or_idle_are_invalidated() {
    let major = *Major::under_test().last().unwrap();
    let (publisher, dir) = (publisher(major), tempfile::tempdir().unwrap());
    let port = free_port();
    let config = configure(dir.path(), &publisher.url(DB), port);
    let path = config.to_str().unwrap();
    call(&["user", "add", "sub", "--from-source", "--config", path], "").expect_success();
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}max_slot_wal_keep_size = '64MB'\n")).unwrap();
    let mut relaying = start(&config, port);
    let place = format!("host=127.0.0.1 port={port} user=sub password=geheim dbname={DB}");
    let slots = |args: &[&str]| call(&[&["slots"], args, &["--relay", &place]].concat(), "");
    slots(&["create", "late"]).expect_success();
    let safe = "SELECT wal_status || ' ' || (safe_wal_size BETWEEN 1 AND 64 << 20)
                  FROM pg_replication_slots WHERE slot_name = 'late'";
    assert_eq!(through(port, "sub", safe), "reserved true");
    let subscriber = Cluster::builder(major).setting("wal_retrieve_retry_interval", "200ms").start().unwrap();
    subscriber.sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text)").unwrap();
    let subscribe = format!("CREATE SUBSCRIPTION s CONNECTION '{place}' PUBLICATION p");
    subscriber.sql(DB, &subscribe).unwrap_or_else(|error| panic!("{error}\n{}", relaying.sluice.stderr()));
    for _ in 0..6 {
        level(&publisher, &subscriber);
        write(&publisher, 1);
        // Where a slot begins again moves on behind what a checkpoint says of running transactions.
        publisher.sql(DB, "CHECKPOINT").unwrap();
    }
    level(&publisher, &subscriber);
    wait_for("the late slot to be invalidated", BOUND, || {
        Ok(slots(&["list"])
            .expect_success()
            .contains("late (postgres): cannot be used any more (wal_removed)"))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", relaying.sluice.stderr()));
    assert!(relaying.sluice.stderr().contains("replication slot \"late\" was invalidated"));
    // The other subscriber has confirmed everything, and nothing happens to it.
    level(&publisher, &subscriber);
    assert!(relaying.sluice.terminate(BOUND).unwrap().success());
    // What was invalidated stays so, also for a relay without limits.
    std::fs::write(&config, format!("{text}idle_replication_slot_timeout = '3s'\n")).unwrap();
    let mut relaying = start(&config, port);
    level(&publisher, &subscriber);
    assert!(
        slots(&["list"]).expect_success().contains("late (postgres): cannot be used any more (wal_removed)")
    );
    subscriber.sql(DB, "ALTER SUBSCRIPTION s DISABLE").unwrap();
    wait_for("the idle slot to be invalidated", BOUND, || {
        Ok(slots(&["list"]).expect_success().contains("s (postgres): cannot be used any more (idle_timeout)"))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", relaying.sluice.stderr()));
    subscriber.sql(DB, "ALTER SUBSCRIPTION s ENABLE").unwrap();
    wait_for("the subscriber to be told", BOUND, || Ok(subscriber.log().contains("replication slot \"s\"")))
        .unwrap_or_else(|error| panic!("{error}\n{}", subscriber.log()));
    slots(&["drop", "late"]).expect_success();
    subscriber.sql(DB, "ALTER SUBSCRIPTION s DISABLE; ").unwrap();
    assert!(relaying.sluice.terminate(BOUND).unwrap().success());
}
