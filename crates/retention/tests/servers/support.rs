//! A target whose deletions are captured.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Oid, PgTimestamp};
use client::{ConnInfo, Session};
use deletions::{Answer, Bounds, Equality, Identity, RowKey, Tombstone, Value};
use retention::{Condition, Retention, Settings, SharedSlot, fence, run};
use testkit::{Cluster, Major, wait_for};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const DB: &str = "postgres";
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Capturing {
    pub(crate) runtime: Runtime,
    pub(crate) retention: Arc<Retention>,
    pub(crate) stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Capturing {
    pub(crate) fn begin(cluster: &Cluster, dir: &Path) -> Capturing {
        Capturing::begin_with(cluster, dir, None)
    }

    /// Begins, in a pair if there is a slot of the other direction.
    pub(crate) fn begin_with(cluster: &Cluster, dir: &Path, shared_slot: Option<SharedSlot>) -> Capturing {
        Capturing::begin_at(&cluster.url(DB), dir, shared_slot)
    }

    /// Begins on a target by its address.
    pub(crate) fn begin_at(target: &str, dir: &Path, shared_slot: Option<SharedSlot>) -> Capturing {
        let runtime = Runtime::new().unwrap();
        let settings = Settings {
            subscription: "s".parse().unwrap(),
            target: ConnInfo::parse(target).unwrap(),
            shared_slot,
            dir: dir.to_owned(),
            bounds: Bounds::default(),
            status_interval: Duration::from_secs(1),
            interval: None,
            timeout: Duration::from_secs(30),
        };
        let retention = Retention::new(settings);
        let stop = CancellationToken::new();
        let task = runtime.spawn(run(Arc::clone(&retention), stop.clone()));
        Capturing { runtime, retention, stop, task }
    }

    pub(crate) fn start(cluster: &Cluster, dir: &Path) -> Capturing {
        let capturing = Capturing::begin(cluster, dir);
        capturing.wait_for(&Condition::Capturing);
        capturing
    }

    pub(crate) fn wait_for(&self, condition: &Condition) {
        let is_so = || Ok(self.retention.condition() == *condition);
        wait_for(&format!("{condition:?}, not {:?}", self.retention.condition()), PATIENCE, is_so).unwrap();
    }

    pub(crate) fn end(self) {
        self.stop.cancel();
        self.runtime.block_on(self.task).unwrap();
    }

    /// What is known of a row that an UPDATE misses now.
    pub(crate) fn ask(&self, cluster: &Cluster, key: RowKey) -> Answer {
        self.runtime.block_on(async {
            let session: Session =
                client::connect(&ConnInfo::parse(&cluster.url(DB)).unwrap(), "test", &[]).await.unwrap();
            let fence = fence(&session).await.unwrap();
            let asked = self.retention.look_up(&[(key, PgTimestamp(i64::MAX))], fence, PATIENCE).await;
            asked.unwrap()[0]
        })
    }

    pub(crate) fn tombstone(&self, cluster: &Cluster, key: RowKey) -> Tombstone {
        match self.ask(cluster, key) {
            Answer::Deleted(tombstone) => tombstone,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn cluster(major: Major) -> Cluster {
    Cluster::builder(major).setting("wal_level", "logical").durable().start().unwrap()
}

pub(crate) fn oid(cluster: &Cluster, table: &str) -> Oid {
    Oid(cluster.one(DB, &format!("SELECT '{table}'::regclass::oid")).parse().unwrap())
}

pub(crate) fn key(table: Oid, columns: Vec<Equality>, values: &[&str]) -> RowKey {
    let mut key = RowKey::default();
    let values = values.iter().map(|value| Value::Text(value.as_bytes()));
    Identity::new(columns, false).write(table, values, &mut key).unwrap();
    key
}

pub(crate) fn by_id(cluster: &Cluster, table: &str, id: &str) -> RowKey {
    key(oid(cluster, table), vec![Equality::Integer(4)], &[id])
}
