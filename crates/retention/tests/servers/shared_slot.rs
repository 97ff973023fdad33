//! Capture behind the slot of the other direction of a pair.

use std::sync::Arc;
use std::time::Duration;

use base::Lsn;
use client::{ConnInfo, Replication, Wire};
use deletions::Answer;
use retention::{Condition, SharedSlot};
use source::segments::Lineage;
use source::stream::{Stream, StreamOptions, What};
use testkit::{Cluster, Major, wait_for};
use tokio::runtime::Runtime;

use crate::support::{Capturing, DB, PATIENCE, by_id, cluster};

const OWN: &str = "pgsluice_s_dead";
const OTHER: &str = "pgsluice_back";

fn shared() -> SharedSlot {
    SharedSlot { name: OTHER.to_owned(), kept: Arc::default() }
}

fn slots(cluster: &Cluster) -> String {
    cluster.one(DB, "SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots")
}

fn make(cluster: &Cluster, slot: &str) -> Lsn {
    let sql = format!("SELECT lsn FROM pg_create_physical_replication_slot('{slot}', true)");
    cluster.one(DB, &sql).parse().unwrap()
}

/// A walsender that uses the slot until this is dropped.
fn user(runtime: &Runtime, cluster: &Cluster, slot: &str, start: Lsn) -> Stream {
    let target = ConnInfo::parse(&cluster.url(DB)).unwrap();
    let segment_size =
        cluster.one(DB, "SELECT pg_size_bytes(current_setting('wal_segment_size'))").parse().unwrap();
    let lineage = Lineage { timeline: 1, forks: Vec::new(), segment_size };
    let options = StreamOptions {
        slot: Some(slot.to_owned()),
        start,
        what: What::Wal { lineage, restart_lsn: Arc::default() },
        status_interval: Duration::from_secs(1),
        timeout: Duration::ZERO,
    };
    runtime.block_on(async {
        let wire = Wire::connect(&target, "user", Replication::Physical, &[]).await.unwrap();
        Stream::start(wire, options).await.unwrap()
    })
}

/// A walsender of the attempt before may outlive it. An own slot that nobody dropped would go on
/// keeping WAL.
#[test]
fn an_own_slot_in_use_is_dropped_when_it_is_free() {
    Major::each(1, |major| {
        let (cluster, dir) = (cluster(major), tempfile::tempdir().unwrap());
        cluster.sql(DB, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").unwrap();
        make(&cluster, OTHER);
        let start = make(&cluster, OWN);
        let runtime = Runtime::new().unwrap();
        let user = user(&runtime, &cluster, OWN, start);
        let capturing = Capturing::begin_with(&cluster, dir.path(), Some(shared()));
        capturing.wait_for(&Condition::Capturing);
        cluster.sql(DB, "DELETE FROM t").unwrap();
        capturing.tombstone(&cluster, by_id(&cluster, "t", "1"));
        assert_eq!(slots(&cluster), format!("{OTHER} {OWN}"));
        runtime.block_on(async { drop(user) });
        wait_for("the own slot to be dropped", PATIENCE, || Ok(slots(&cluster) == OTHER)).unwrap();
        assert_eq!(capturing.retention.condition(), Condition::Capturing);
        capturing.end();
    });
}

/// If the other direction's slot is lost, capture goes on behind its own one, and says what it does
/// not know.
#[test]
fn without_the_slot_of_the_other_direction_the_own_one_keeps_wal() {
    Major::each(1, |major| {
        let (cluster, dir) = (cluster(major), tempfile::tempdir().unwrap());
        cluster.sql(DB, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").unwrap();
        make(&cluster, OTHER);
        let capturing = Capturing::begin_with(&cluster, dir.path(), Some(shared()));
        capturing.wait_for(&Condition::Capturing);
        assert_eq!(slots(&cluster), OTHER);
        capturing.end();
        cluster.sql(DB, &format!("SELECT pg_drop_replication_slot('{OTHER}')")).unwrap();
        let capturing = Capturing::begin_with(&cluster, dir.path(), Some(shared()));
        capturing.wait_for(&Condition::Capturing);
        assert_eq!(slots(&cluster), OWN);
        let gap = capturing.retention.not_covered_because().unwrap();
        assert!(gap.contains(OTHER), "{gap}");
        cluster.sql(DB, "DELETE FROM t").unwrap();
        assert!(matches!(capturing.ask(&cluster, by_id(&cluster, "t", "1")), Answer::Deleted(_)));
        capturing.end();
    });
}
