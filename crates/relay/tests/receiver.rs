//! WAL of real servers, received and kept.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::Lsn;
use client::ConnInfo;
use relay::{Received, Receiver, ReceiverError, ReceiverSettings};
use testkit::{Cluster, Major, StopMode, wait_for};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use wal_dir::Writer;

const DB: &str = "postgres";
const SEGMENT: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// A receiver that runs.
struct Running {
    received: Arc<Received>,
    ended: JoinHandle<Result<(), ReceiverError>>,
    stopping: DropGuard,
}

fn settings(cluster: &Cluster) -> ReceiverSettings {
    ReceiverSettings {
        source: ConnInfo::parse(&cluster.url(DB)).unwrap(),
        slot: "relay".to_owned(),
        application_name: "relay".to_owned(),
        status_interval: Duration::from_secs(1),
        timeout: Duration::from_secs(30),
        archive: None,
    }
}

fn start(runtime: &Runtime, cluster: &Cluster, dir: &Path) -> Running {
    let received: Arc<Received> = Arc::default();
    let opened = Writer::open(dir, SEGMENT).unwrap();
    let mut receiver = Receiver::new(settings(cluster), opened, None, Arc::clone(&received));
    let stop = CancellationToken::new();
    let stopping = stop.clone().drop_guard();
    let ended = runtime.spawn(async move {
        loop {
            let ended = receiver.run(&stop).await;
            // Nobody else has anything of the old timeline.
            match ended.as_ref().err().and_then(ReceiverError::left) {
                Some(fork) => receiver.goes_on_behind(fork),
                None => return ended,
            }
        }
    });
    Running { received, ended, stopping }
}

impl Running {
    fn stop(self, runtime: &Runtime) {
        drop(self.stopping);
        runtime.block_on(self.ended).unwrap().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Ends as if the process were killed: nothing is synced or said.
    fn kill(self, runtime: &Runtime) {
        self.ended.abort();
        let _ = runtime.block_on(self.ended);
    }

    /// Waits until everything is durable that is durable on the server.
    fn has_all(&self, cluster: &Cluster) {
        let end: Lsn = cluster.one(DB, "SELECT pg_current_wal_flush_lsn()").parse().unwrap();
        wait_for("all WAL to be durable here", PATIENCE, || Ok(self.received.synced() >= end)).unwrap();
    }
}

fn work(cluster: &Cluster, rows: u32) {
    cluster.sql(DB, "CREATE TABLE IF NOT EXISTS t (id bigserial PRIMARY KEY, v text)").unwrap();
    let sql = format!("INSERT INTO t (v) SELECT repeat(md5(n::text), 20) FROM generate_series(1, {rows}) n");
    cluster.sql(DB, &sql).unwrap();
}

/// Every complete segment is the server's own. Returns their number.
fn same_segments(dir: &Path, cluster: &Cluster) -> usize {
    let mut compared = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.len() != 24 {
            continue;
        }
        let server = cluster.data_dir().join("pg_wal").join(&name);
        let Ok(server) = std::fs::read(server) else { continue };
        assert!(std::fs::read(&path).unwrap() == server, "segment {name} differs");
        compared += 1;
    }
    compared
}

fn cluster(major: Major) -> Cluster {
    Cluster::builder(major)
        .setting("wal_level", "logical")
        .setting("wal_keep_size", "1GB")
        .setting("max_wal_size", "4GB")
        .start()
        .unwrap()
}

#[test]
fn what_is_kept_is_the_servers_own_wal() {
    Major::each(2, |major| {
        let (cluster, dir, runtime) = (cluster(major), tempfile::tempdir().unwrap(), Runtime::new().unwrap());
        let running = start(&runtime, &cluster, dir.path());
        work(&cluster, 60_000);
        cluster.sql(DB, "SELECT pg_switch_wal()").unwrap();
        work(&cluster, 10);
        running.has_all(&cluster);
        assert!(same_segments(dir.path(), &cluster) >= 3, "{major}");
        // What was confirmed is durable, and the slot follows it.
        wait_for("the slot to follow", PATIENCE, || {
            let sql = "SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = 'relay'";
            let at: Lsn = cluster.one(DB, sql).parse().unwrap();
            assert!(at <= running.received.synced(), "{major}: the slot is at {at}");
            Ok(at == running.received.synced())
        })
        .unwrap();
        // Segments that nobody needs go.
        let before = std::fs::read_dir(dir.path()).unwrap().count();
        running.received.needs_from(running.received.synced());
        wait_for("segments to go", PATIENCE, || {
            Ok(std::fs::read_dir(dir.path()).unwrap().count() + 2 < before)
        })
        .unwrap();
        running.stop(&runtime);
    });
}

#[test]
fn whatever_is_killed_nothing_is_missing() {
    let major = *Major::under_test().last().unwrap();
    let (mut cluster, dir, runtime) = (cluster(major), tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    for round in 0..6 {
        let running = start(&runtime, &cluster, dir.path());
        work(&cluster, 15_000);
        match round % 3 {
            // In the middle of what it receives.
            0 => running.kill(&runtime),
            1 => {
                let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
                cluster.sql(DB, sql).unwrap();
                let error = runtime.block_on(running.ended).unwrap().unwrap_err();
                assert!(error.is_passing(), "{error}");
            }
            _ => {
                running.has_all(&cluster);
                cluster.restart(StopMode::Immediate).unwrap();
                let error = runtime.block_on(running.ended).unwrap().unwrap_err();
                assert!(error.is_passing(), "{error}");
            }
        }
    }
    let running = start(&runtime, &cluster, dir.path());
    cluster.sql(DB, "SELECT pg_switch_wal()").unwrap();
    work(&cluster, 10);
    running.has_all(&cluster);
    running.stop(&runtime);
    assert!(same_segments(dir.path(), &cluster) >= 3);
}

#[test]
fn the_server_can_wait_for_the_relay() {
    let major = *Major::under_test().last().unwrap();
    let (cluster, dir, runtime) = (cluster(major), tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    work(&cluster, 1);
    let running = start(&runtime, &cluster, dir.path());
    cluster.set_synchronous_standby_names("relay").unwrap();
    wait_for("a synchronous standby", PATIENCE, || {
        Ok(cluster.one(DB, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1")
    })
    .unwrap();
    for _ in 0..20 {
        work(&cluster, 1);
        // The commit waited for this.
        let commit: Lsn = cluster.one(DB, "SELECT pg_current_wal_flush_lsn()").parse().unwrap();
        let behind = commit.as_u64().saturating_sub(running.received.synced().as_u64());
        assert!(behind < 8192, "the relay has confirmed {} of {commit}", running.received.synced());
    }
    running.stop(&runtime);
    let waits = std::thread::scope(|scope| {
        let commit = scope.spawn(|| work(&cluster, 1));
        // Only time can show that the commit waits.
        std::thread::sleep(Duration::from_millis(500));
        let waits = !commit.is_finished();
        let running = start(&runtime, &cluster, dir.path());
        commit.join().unwrap();
        running.stop(&runtime);
        waits
    });
    assert!(waits, "a commit does not wait for a relay that is away");
}

#[test]
fn a_promoted_standby_is_followed() {
    let major = *Major::under_test().last().unwrap();
    let (mut primary, dir, runtime) = (cluster(major), tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let standby = primary.standby("standby").unwrap();
    let running = start(&runtime, &primary, dir.path());
    work(&primary, 20_000);
    running.has_all(&primary);
    let end: Lsn = primary.one(DB, "SELECT pg_current_wal_flush_lsn()").parse().unwrap();
    wait_for("the standby to have all", PATIENCE, || {
        let at: Lsn = standby.one(DB, "SELECT pg_last_wal_replay_lsn()").parse().unwrap();
        Ok(at >= end)
    })
    .unwrap();
    running.stop(&runtime);
    primary.stop(StopMode::Immediate).unwrap();
    standby.sql(DB, "SELECT pg_promote()").unwrap();
    wait_for("the promotion", PATIENCE, || Ok(standby.one(DB, "SELECT pg_is_in_recovery()") == "f")).unwrap();
    // Its slot does not exist there, and is made where the relay is not yet.
    let running = start(&runtime, &standby, dir.path());
    work(&standby, 30_000);
    standby.sql(DB, "SELECT pg_switch_wal()").unwrap();
    work(&standby, 10);
    running.has_all(&standby);
    running.stop(&runtime);
    assert!(same_segments(dir.path(), &standby) >= 2);
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().any(|name| name == "00000002.history"), "{names:?}");
    assert!(names.iter().any(|name| name.to_string_lossy().starts_with("00000002000000")), "{names:?}");
}

#[test]
fn another_server_is_refused() {
    let major = *Major::under_test().last().unwrap();
    let (cluster, dir, runtime) = (cluster(major), tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let opened = Writer::open(dir.path(), SEGMENT).unwrap();
    let mut receiver = Receiver::new(settings(&cluster), opened, Some(42), Arc::default());
    let error = runtime.block_on(receiver.run(&CancellationToken::new())).unwrap_err();
    assert!(!error.is_passing() && error.to_string().contains("of system 42"), "{error}");
}
