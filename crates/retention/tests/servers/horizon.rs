//! The horizon moves past what is applied, and stands while an older transaction may be in commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use base::Lsn;
use client::ConnInfo;
use deletions::Waiting;
use retention::{Applied, AskApplied, advance_horizon};
use testkit::{Cluster, Major, wait_for};

use crate::support::{Capturing, DB, PATIENCE, cluster};

/// How long a horizon that must stand is watched.
const WATCHED: Duration = Duration::from_secs(1);

/// What the target has flushed, as a test says it.
#[derive(Clone, Default)]
struct Flushed(Arc<AtomicU64>);

impl Flushed {
    fn everything(&self) {
        self.0.store(u64::MAX, Ordering::Relaxed);
    }

    fn ask(&self) -> AskApplied {
        let flushed = Arc::clone(&self.0);
        Arc::new(move || Applied {
            flushed: Lsn::new(flushed.load(Ordering::Relaxed)),
            is_joining: false,
            generation: 0,
        })
    }
}

fn horizon(capturing: &Capturing) -> Lsn {
    capturing.retention.figures().unwrap().horizon
}

/// Deletes a row of the target, and returns a position that only a horizon behind it reaches.
fn delete(target: &Cluster, id: u32) -> Lsn {
    let before: Lsn = target.one(DB, "SELECT pg_current_wal_insert_lsn()").parse().unwrap();
    target.sql(DB, &format!("DELETE FROM t WHERE id = {id}")).unwrap();
    Lsn::new(before.as_u64() + 1)
}

fn moves_past(capturing: &Capturing, lsn: Lsn) {
    wait_for(&format!("the horizon to pass {lsn}"), PATIENCE, || Ok(horizon(capturing) >= lsn)).unwrap();
}

fn stands_before(capturing: &Capturing, lsn: Lsn, waits: impl Fn(&Waiting) -> bool) {
    let is_waiting = || Ok(capturing.retention.waiting().is_some_and(|waiting| waits(&waiting)));
    wait_for("the horizon to wait for that", PATIENCE, is_waiting).unwrap();
    thread::sleep(WATCHED);
    assert!(horizon(capturing) < lsn, "{} {lsn}", horizon(capturing));
}

fn start(
    publisher: &Cluster,
    target: &Cluster,
    flushed: &Flushed,
    role: &str,
) -> (Capturing, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    target
        .sql(DB, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100)")
        .unwrap();
    publisher.sql(DB, "CREATE TABLE t (id int); CREATE ROLE plain LOGIN").unwrap();
    let capturing = Capturing::start(target, dir.path());
    let url = format!("{} user={role}", publisher.url(DB));
    let (retention, stop) = (Arc::clone(&capturing.retention), capturing.stop.clone());
    let url = if role.is_empty() { publisher.url(DB) } else { url };
    capturing.runtime.spawn(advance_horizon(retention, ConnInfo::parse(&url).unwrap(), flushed.ask(), stop));
    (capturing, dir)
}

fn publisher(major: Major) -> Cluster {
    Cluster::builder(major).setting("max_prepared_transactions", "2").start().unwrap()
}

#[test]
fn d2_the_horizon_passes_what_is_flushed_while_both_ends_are_idle() {
    Major::each(1, |major| {
        let (publisher, target, flushed) = (publisher(major), cluster(major), Flushed::default());
        let (capturing, _dir) = start(&publisher, &target, &flushed, "");
        let deleted = delete(&target, 1);
        stands_before(&capturing, deleted, |waiting| matches!(waiting, Waiting::Flush(_)));
        flushed.everything();
        moves_past(&capturing, deleted);
        let figures = capturing.retention.figures().unwrap();
        assert_eq!((figures.count, figures.cut), (0, None), "the beginning is passed, too");
        moves_past(&capturing, delete(&target, 2));
        capturing.end();
    });
}

#[test]
fn d2_only_a_transaction_that_may_be_in_commit_holds_the_horizon() {
    Major::each(1, |major| {
        let (publisher, target, flushed) = (publisher(major), cluster(major), Flushed::default());
        let (capturing, _dir) = start(&publisher, &target, &flushed, "");
        flushed.everything();
        moves_past(&capturing, delete(&target, 1));
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                publisher.sql(DB, "INSERT INTO t VALUES (1); SELECT pg_sleep(4)").unwrap();
            });
            let holds = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                         WHERE l.locktype = 'transactionid' AND a.query LIKE '%pg_sleep(4)' AND a.wait_event = 'PgSleep'";
            wait_for("the writer", PATIENCE, || Ok(publisher.one(DB, holds) == "1")).unwrap();
            // No snapshot lists it: its xid is not below their xmax.
            let newest = "SELECT bool_and(backend_xid::text::bigint >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint) \
                          FROM pg_stat_activity WHERE query LIKE '%pg_sleep(4)' AND backend_xid IS NOT NULL";
            assert_eq!(publisher.one(DB, newest), "t");
            let deleted = delete(&target, 2);
            stands_before(&capturing, deleted, |waiting| matches!(waiting, Waiting::Transactions(_)));
            busy.join().unwrap();
            moves_past(&capturing, deleted);
        });
        // A prepared transaction sleeps.
        publisher.sql(DB, "BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'p'").unwrap();
        moves_past(&capturing, delete(&target, 3));
        publisher.sql(DB, "COMMIT PREPARED 'p'").unwrap();
        // A writer sits idle in its transaction.
        let idle = capturing.runtime.block_on(async {
            let info = ConnInfo::parse(&publisher.url(DB)).unwrap();
            let session = client::connect(&info, "idle", &[]).await.unwrap();
            session.batch_execute("BEGIN; INSERT INTO t VALUES (3)").await.unwrap();
            session
        });
        moves_past(&capturing, delete(&target, 4));
        drop(idle);
        // A commit waits for a standby that is away.
        publisher.set_synchronous_standby_names("away").unwrap();
        let (info, runtime) = (ConnInfo::parse(&publisher.url(DB)).unwrap(), &capturing.runtime);
        let waiting = runtime.spawn(async move {
            let session = client::connect(&info, "waits", &[]).await.unwrap();
            let _ = session.batch_execute("INSERT INTO t VALUES (4)").await;
        });
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        wait_for("a commit that waits", PATIENCE, || Ok(publisher.one(DB, waits) == "1")).unwrap();
        moves_past(&capturing, delete(&target, 5));
        waiting.abort();
        capturing.end();
    });
}

/// Another database of the publisher, which stands for a third server.
const THIRD: &str = "third";

/// Lets the publisher subscribe to a table of the third server.
fn forwards(publisher: &Cluster) {
    publisher.sql(DB, &format!("CREATE DATABASE {THIRD}")).unwrap();
    let table = "CREATE TABLE forwarded (id int PRIMARY KEY)";
    publisher.sql(DB, table).unwrap();
    publisher.sql(THIRD, &format!("{table}; CREATE PUBLICATION forwarded FOR TABLE forwarded")).unwrap();
    publisher.sql(THIRD, "SELECT pg_create_logical_replication_slot('forwarded', 'pgoutput')").unwrap();
    let subscribe = format!(
        "CREATE SUBSCRIPTION forwarded CONNECTION '{}' PUBLICATION forwarded \
         WITH (create_slot = false, slot_name = 'forwarded', copy_data = false)",
        publisher.url(THIRD)
    );
    publisher.sql(DB, &subscribe).unwrap();
    publisher.sql(THIRD, "INSERT INTO forwarded VALUES (1)").unwrap();
    let arrived = "SELECT count(*) FROM forwarded";
    wait_for("what is forwarded", PATIENCE, || Ok(publisher.one(DB, arrived) == "1")).unwrap();
}

#[test]
fn d2_an_apply_worker_of_the_publisher_does_not_hold_the_horizon() {
    Major::each(1, |major| {
        let (publisher, target, flushed) = (publisher(major), cluster(major), Flushed::default());
        let (capturing, _dir) = start(&publisher, &target, &flushed, "");
        flushed.everything();
        forwards(&publisher);
        // Beside it, a prepared transaction sleeps. The worker does not commit that.
        publisher.sql(DB, "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'p'").unwrap();
        moves_past(&capturing, delete(&target, 1));
        // The worker has a transaction open, and waits for a writer that is idle in its own.
        let idle = capturing.runtime.block_on(async {
            let info = ConnInfo::parse(&publisher.url(DB)).unwrap();
            let session = client::connect(&info, "idle", &[]).await.unwrap();
            session.batch_execute("BEGIN; INSERT INTO forwarded VALUES (2)").await.unwrap();
            session
        });
        publisher.sql(THIRD, "INSERT INTO forwarded VALUES (2)").unwrap();
        let holds = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                     WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted \
                     AND a.backend_type LIKE 'logical replication%worker'";
        wait_for("the worker's transaction", PATIENCE, || Ok(publisher.one(DB, holds) == "1")).unwrap();
        moves_past(&capturing, delete(&target, 2));
        assert_eq!(publisher.one(DB, holds), "1", "the worker waits as before");
        drop(idle);
        capturing.end();
    });
}
