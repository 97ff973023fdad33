//! What the scenarios of the first copy share: pairs of servers, a record
//! kept on the target, and an attempt from slot to last row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context, Result};
use async_trait::async_trait;
use base::{Lsn, quote_literal};
use client::{ConnInfo, Replication, Session, Wire};
use copy::{Attempt, CopyJob, CopyProgress, CopyRecord, ExportedSnapshot, Options, Recorded, copy_tables};
use source::publication::{self, TableName};
use source::slot::{self, NewSlot};
use testkit::{Cluster, Major, Pair};
use tokio_util::sync::CancellationToken;

/// Tests that run at the same time share a pair, each in a database of its
/// own; the last one to end stops it.
pub(crate) fn pair(source: Major, target: Major) -> Arc<Pair> {
    type Shared = Mutex<Option<HashMap<(u32, u32), Weak<Pair>>>>;
    static PAIRS: Shared = Mutex::new(None);
    let mut pairs = PAIRS.lock().unwrap_or_else(PoisonError::into_inner);
    let pairs = pairs.get_or_insert_default();
    let key = (source.number(), target.number());
    if let Some(pair) = pairs.get(&key).and_then(Weak::upgrade) {
        return pair;
    }
    let pair = Arc::new(Pair::start(source, target).expect("servers start"));
    pairs.insert(key, Arc::downgrade(&pair));
    pair
}

/// A pair's database for one scenario.
pub(crate) struct Scenario {
    pub(crate) pair: Arc<Pair>,
    pub(crate) db: &'static str,
    pub(crate) options: Options,
    pub(crate) progress: Arc<CopyProgress>,
    pub(crate) stop: CancellationToken,
    /// Who connects; the clusters' superuser if nobody else.
    pub(crate) role: &'static str,
}

/// The record as a table of the target.
struct TargetRecord;

pub(crate) const RECORD_SCHEMA: &str = "CREATE SCHEMA pgsluice; CREATE TABLE pgsluice.copied \
     (schema text, name text, finished boolean, point pg_lsn, copied bigint, PRIMARY KEY (schema, name))";

impl Scenario {
    /// Databases called `db` on both ends of a pair of `major`.
    pub(crate) fn new(major: Major, db: &'static str) -> Scenario {
        Scenario::between(major, major, db, "")
    }

    /// The same with two majors and options of CREATE DATABASE.
    pub(crate) fn between(source: Major, target: Major, db: &'static str, create: &str) -> Scenario {
        let pair = pair(source, target);
        pair.both("postgres", &format!("DROP DATABASE IF EXISTS {db}")).unwrap();
        pair.both("postgres", &format!("CREATE DATABASE {db} {create}")).unwrap();
        pair.target.sql(db, RECORD_SCHEMA).unwrap();
        let options = Options { connections: 3, ..Options::default() };
        Scenario {
            pair,
            db,
            options,
            progress: Arc::default(),
            stop: CancellationToken::new(),
            role: "postgres",
        }
    }

    pub(crate) fn both(&self, sql: &str) {
        self.pair.both(self.db, sql).unwrap();
    }

    pub(crate) fn source(&self, sql: &str) {
        self.pair.source.sql(self.db, sql).unwrap();
    }

    pub(crate) fn target(&self, sql: &str) {
        self.pair.target.sql(self.db, sql).unwrap();
    }

    pub(crate) fn target_value(&self, sql: &str) -> String {
        self.pair.target.one(self.db, sql)
    }

    pub(crate) fn assert_same(&self, table: &str) {
        testkit::assert_same_rows(&self.pair.source, &self.pair.target, self.db, table);
    }

    /// Whether `table` was recorded as finished.
    pub(crate) fn is_finished(&self, table: &str) -> bool {
        let sql = format!(
            "SELECT count(*) FROM pgsluice.copied WHERE finished AND name = {}",
            quote_literal(table)
        );
        self.target_value(&sql) == "1"
    }

    fn info(&self, cluster: &Cluster) -> ConnInfo {
        let (port, db, role) = (cluster.port(), self.db, self.role);
        ConnInfo::parse(&format!("host=127.0.0.1 port={port} dbname={db} user={role}"))
            .expect("it is well formed")
    }

    pub(crate) fn source_info(&self) -> ConnInfo {
        self.info(&self.pair.source)
    }

    /// The jobs for publication `p`.
    pub(crate) async fn jobs(&self) -> Result<Vec<CopyJob>> {
        let source = session(&self.source_info()).await?;
        let target = session(&self.info(&self.pair.target)).await?;
        let published = publication::inspect(&source, &["p".into()]).await?;
        let names: Vec<TableName> = published.iter().map(|table| table.name.clone()).collect();
        let targets = publication::target_tables(&target, &names).await?;
        let versions = (source.version(), target.version());
        let job = |table: publication::PublishedTable| {
            let target = targets.get(&table.name);
            CopyJob::new(table, target, versions.0, versions.1)
        };
        Ok(published.into_iter().map(job).collect::<Result<_, _>>()?)
    }

    /// A walsender with a temporary slot, and the snapshot it exports.
    pub(crate) async fn export(&self) -> Result<(Wire, ExportedSnapshot)> {
        let mut wire =
            Wire::connect(&self.source_info(), "export", Replication::Database, &slot::EXPORT_SETTINGS)
                .await?;
        let name = format!("{}_{}", self.db, wire.pid());
        let new =
            NewSlot { name: &name, temporary: true, snapshot: slot::SlotSnapshot::Export, failover: false };
        let created = slot::create_logical_slot(&mut wire, &new).await?;
        let name = created.snapshot_name.context("a snapshot was asked for")?;
        Ok((wire, ExportedSnapshot { name, consistent_point: created.consistent_point }))
    }

    pub(crate) fn attempt(&self, snapshot: ExportedSnapshot) -> Attempt {
        Attempt {
            source: self.source_info(),
            target: self.info(&self.pair.target),
            snapshot,
            options: self.options.clone(),
            progress: Arc::clone(&self.progress),
            record: Arc::new(TargetRecord),
        }
    }

    /// Copies publication `p`.
    pub(crate) async fn copy_async(&self) -> Result<()> {
        let jobs = self.jobs().await?;
        let (_exporter, snapshot) = self.export().await?;
        Ok(copy_tables(self.attempt(snapshot), jobs, &self.stop).await?)
    }

    pub(crate) fn copy(&self) -> Result<()> {
        block_on(self.copy_async())
    }

    /// The error of a copy that must fail in the copy itself.
    pub(crate) fn copy_fails(&self) -> copy::Error {
        self.copy().expect_err("the copy must fail").downcast().expect("an error of the copy")
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts")
        .block_on(future)
}

pub(crate) async fn session(info: &ConnInfo) -> Result<Session> {
    Ok(client::connect(info, "test", &[]).await?)
}

#[async_trait]
impl CopyRecord for TargetRecord {
    async fn state(&self, target: &mut Wire, table: &TableName) -> Result<Recorded, client::Error> {
        let (schema, name) = (quote_literal(&table.schema), quote_literal(&table.name));
        let sql = format!("SELECT finished FROM pgsluice.copied WHERE schema = {schema} AND name = {name}");
        let rows = target.query(&sql).await?;
        Ok(match rows.first().and_then(|row| row[0].as_deref()) {
            None => Recorded::Nothing,
            Some("t") => Recorded::Finished,
            Some(_) => Recorded::Begun,
        })
    }

    async fn begun(&self, target: &mut Wire, table: &TableName, point: Lsn) -> Result<(), client::Error> {
        record(target, table, false, point, 0).await
    }

    async fn finished(
        &self,
        target: &mut Wire,
        table: &TableName,
        point: Lsn,
        rows: u64,
    ) -> Result<(), client::Error> {
        record(target, table, true, point, rows).await
    }
}

async fn record(
    target: &mut Wire,
    table: &TableName,
    finished: bool,
    point: Lsn,
    rows: u64,
) -> Result<(), client::Error> {
    let (schema, name) = (quote_literal(&table.schema), quote_literal(&table.name));
    let sql = format!(
        "INSERT INTO pgsluice.copied VALUES ({schema}, {name}, {finished}, '{point}', {rows}) \
         ON CONFLICT (schema, name) DO UPDATE \
         SET finished = EXCLUDED.finished, point = EXCLUDED.point, copied = EXCLUDED.copied"
    );
    target.query(&sql).await.map(drop)
}
