//! One attempt to copy everything that is not copied yet.
//!
//! Each worker is a pair of connections. The first error ends the attempt. It drops the other
//! workers in the middle of their work, and the servers roll back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use base::Lsn;
use base::crash_phases::{self, Phase};
use client::{ConnInfo, SqlState, Wire};
use source::publication::{TableKind, TableName};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Kind};
use crate::plan::{Heap, PageRange, Unit, heap_units, range_bytes};
use crate::progress::{CopyProgress, TableProgress};
use crate::record::CopyRecord;
use crate::schedule::{Claim, Schedule, Way};
use crate::sql::{copy_in, copy_out};
use crate::table::{self, Start};
use crate::transfer::transfer;
use crate::{CopyJob, estimate, held, session};

/// An exported snapshot of the source. The connection that exported it must
/// stay open until the attempt has ended.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// For `SET TRANSACTION SNAPSHOT`.
    pub name: String,
    /// It sees exactly what committed before.
    pub consistent_point: Lsn,
}

/// The operator's options.
#[derive(Debug, Clone)]
pub struct Options {
    /// Pairs of connections, at least one. Several in one large table insert
    /// at several places of its indexes; see the crate's documentation.
    pub connections: usize,
    /// Maximum bytes in one range of a large table.
    pub split_bytes: u64,
    /// `synchronous_commit` of the ranges on the target. The record that a table is finished always
    /// waits for its WAL.
    pub synchronous_commit: String,
    /// Go on if the role may not set `session_replication_role`.
    pub allow_triggers: bool,
    /// `application_name` of the connections, as `pg_stat_activity` shows it.
    pub application_name: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: 4,
            split_bytes: 256 << 20,
            synchronous_commit: "off".into(),
            allow_triggers: false,
            application_name: "pgsluice copy".into(),
        }
    }
}

/// Everything an attempt needs besides the tables.
#[derive(Clone)]
pub struct Attempt {
    /// The publisher.
    pub source: ConnInfo,
    /// The subscriber.
    pub target: ConnInfo,
    /// The snapshot under which all tables are read.
    pub snapshot: Snapshot,
    /// The operator's choices.
    pub options: Options,
    /// Figures to keep up to date.
    pub progress: Arc<CopyProgress>,
    /// What the target remembers.
    pub record: Arc<dyn CopyRecord>,
}

/// A table of this attempt.
struct Table {
    job: CopyJob,
    units: Vec<Unit>,
    progress: Arc<TableProgress>,
    /// Rows of the ranges that are committed.
    rows: AtomicU64,
}

struct Shared {
    attempt: Attempt,
    tables: Vec<Table>,
    schedule: Schedule,
    encoding: &'static str,
    /// The first of the tables that cannot be copied under this snapshot.
    put_off: Mutex<Option<Error>>,
}

/// Copies `jobs` under one snapshot, except those recorded as finished.
/// Returns when every table is durably copied and recorded.
///
/// # Errors
/// The first error of any connection or table; tables recorded as finished
/// stay so. [`Error::is_retryable`] tells whether another attempt, under a new
/// snapshot, makes sense; [`Error::is_stopped`] that `stop` was cancelled.
pub async fn copy_tables(
    attempt: Attempt,
    jobs: Vec<CopyJob>,
    stop: &CancellationToken,
) -> Result<(), Error> {
    if jobs.is_empty() {
        return Ok(());
    }
    let mut workers = JoinSet::new();
    let result = tokio::select! {
        biased;
        () = stop.cancelled() => Err(Error::stopped()),
        result = copy_all(attempt, jobs, &mut workers) => result,
    };
    // No connection of ours is left when this returns.
    workers.shutdown().await;
    result
}

async fn copy_all(
    attempt: Attempt,
    jobs: Vec<CopyJob>,
    workers: &mut JoinSet<Result<(), Error>>,
) -> Result<(), Error> {
    let mut source = session::connect_source(&attempt.source, &attempt.snapshot, &attempt.options).await?;
    let mut target = session::connect_target(&attempt.target, &attempt.options).await?;
    let encoding = session::common_encoding(&mut source, &mut target).await?;
    let tables = plan(&mut source, jobs, &attempt).await?;
    let schedule = Schedule::new(tables.iter().map(|table| table.units.len()).collect());
    let units: usize = tables.iter().map(|table| table.units.len()).sum();
    let connections = attempt.options.connections.clamp(1, units.max(1));
    let shared = Arc::new(Shared { attempt, tables, schedule, encoding, put_off: Mutex::new(None) });
    let first = Arc::clone(&shared);
    workers.spawn(async move { work(&first, source, target).await });
    for _ in 1..connections {
        workers.spawn(further_worker(Arc::clone(&shared)));
    }
    while let Some(ended) = workers.join_next().await {
        ended.map_err(|error| Error::broken(error.to_string()))??;
    }
    let put_off = shared.put_off.lock().unwrap_or_else(PoisonError::into_inner).take();
    put_off.map_or(Ok(()), Err)
}

/// A further worker only makes the copy faster. If a server has no connection left for it, the
/// others do its work.
async fn further_worker(shared: Arc<Shared>) -> Result<(), Error> {
    let Attempt { source, target, snapshot, options, .. } = &shared.attempt;
    let connected = async {
        let source = session::connect_source(source, snapshot, options).await?;
        Ok::<_, Error>((source, session::connect_target(target, options).await?))
    };
    match connected.await {
        Ok((source, target)) => work(&shared, source, target).await,
        Err(error) if error.sqlstate() == Some(SqlState::TOO_MANY_CONNECTIONS.code()) => {
            tracing::warn!(%error, "first copy goes on with fewer connections");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

async fn work(shared: &Shared, mut source: Wire, mut target: Wire) -> Result<(), Error> {
    session::set_encoding(&mut source, shared.encoding).await?;
    session::set_encoding(&mut target, shared.encoding).await?;
    let mut current = None;
    while let Some(claim) = shared.schedule.claim(current).await {
        let (Claim::Start { table } | Claim::Range { table, .. }) = claim;
        current = Some(table);
        let name = &shared.tables[table].job.table.name;
        let _copying = crash_phases::inside(Phase::Copy);
        match claim {
            Claim::Start { table } => start_table(shared, table, &mut source, &mut target).await,
            Claim::Range { table, unit } => copy_range(shared, table, unit, &mut source, &mut target).await,
        }
        .map_err(|error| error.of(name))?;
    }
    source.close().await;
    target.close().await;
    Ok(())
}

async fn start_table(
    shared: &Shared,
    index: usize,
    source: &mut Wire,
    target: &mut Wire,
) -> Result<(), Error> {
    let Shared { attempt, schedule, .. } = shared;
    let table = &shared.tables[index];
    match held::hold(source, &table.job).await {
        Err(error) if error.is_rewritten() => {
            let error = error.of(&table.job.table.name);
            let mut put_off = shared.put_off.lock().unwrap_or_else(PoisonError::into_inner);
            // The first error is reported when the attempt ends.
            if table.progress.put_off() && put_off.is_some() {
                tracing::warn!("{error}");
            }
            put_off.get_or_insert(error);
            drop(put_off);
            schedule.started(index, Way::Whole);
            return Ok(());
        }
        held => held?,
    }
    let point = attempt.snapshot.consistent_point;
    let start = table::start(target, &table.job, table.units.len() > 1, &*attempt.record, point).await?;
    table.progress.start();
    match start {
        Start::Ranges => schedule.started(index, Way::Ranges),
        Start::Finished => {
            schedule.started(index, Way::Whole);
            table.progress.finish();
        }
        Start::OneTransaction => {
            schedule.started(index, Way::Whole);
            let mut rows = 0;
            for unit in &table.units {
                rows += copy_unit(table, unit, source, target).await?;
            }
            finish_table(shared, table, rows, target).await?;
        }
    }
    Ok(())
}

async fn copy_range(
    shared: &Shared,
    index: usize,
    unit: usize,
    source: &mut Wire,
    target: &mut Wire,
) -> Result<(), Error> {
    let table = &shared.tables[index];
    held::hold(source, &table.job).await?;
    table::begin_range(target, &table.job).await?;
    let rows = copy_unit(table, &table.units[unit], source, target).await?;
    table::commit_range(target, &*shared.attempt.record).await?;
    table.rows.fetch_add(rows, Relaxed);
    // The schedule's lock orders the addition before the last one's load.
    if shared.schedule.range_done(index) {
        table::begin_finish(target).await?;
        finish_table(shared, table, table.rows.load(Relaxed), target).await?;
    }
    Ok(())
}

async fn copy_unit(table: &Table, unit: &Unit, source: &mut Wire, target: &mut Wire) -> Result<u64, Error> {
    let (job, progress) = (&table.job, &table.progress);
    let (rows, bytes) = transfer(source, target, &copy_out(job, unit), &copy_in(job), progress).await?;
    progress.unit_done(unit.bytes, rows, bytes);
    Ok(rows)
}

async fn finish_table(shared: &Shared, table: &Table, rows: u64, target: &mut Wire) -> Result<(), Error> {
    let Attempt { snapshot, record, .. } = &shared.attempt;
    table::finish(target, &table.job, &**record, snapshot.consistent_point, rows).await?;
    table.progress.finish();
    Ok(())
}

/// The tables with their units, the largest first.
async fn plan(source: &mut Wire, jobs: Vec<CopyJob>, attempt: &Attempt) -> Result<Vec<Table>, Error> {
    let mut layouts = layouts(source, &jobs).await?;
    let known = estimate::rows(source, &jobs, &layouts).await?;
    let total: u64 = layouts.values().map(Layout::bytes).sum();
    let range_bytes = range_bytes(total, attempt.options.connections, attempt.options.split_bytes);
    let mut tables = Vec::new();
    for job in jobs {
        let name = job.table.name.clone();
        let layout = layouts.remove(&job.table.oid.0).ok_or_else(|| Error::new(Kind::Dropped).of(&name))?;
        let units = layout.units(&job, range_bytes);
        let rows = known.get(&job.table.oid.0).copied().unwrap_or(job.table.rows_estimate);
        let progress = attempt.progress.announce(&name, rows, layout.bytes());
        tables.push(Table { job, units, progress, rows: AtomicU64::new(0) });
    }
    let bytes = |table: &Table| table.units.iter().map(|unit| unit.bytes).sum::<u64>();
    tables.sort_by_key(|table| std::cmp::Reverse(bytes(table)));
    Ok(tables)
}

/// What is below a published table.
#[derive(Default)]
pub(crate) struct Layout {
    heaps: Vec<Heap>,
    /// A leaf cannot be read by itself with the same result: it is a foreign
    /// table, has policies or rights of its own.
    root_only: bool,
}

impl Layout {
    fn bytes(&self) -> u64 {
        self.heaps.iter().map(|heap| heap.bytes).sum()
    }

    /// What can be read by itself.
    pub(crate) fn readable(&self) -> &[Heap] {
        if self.root_only { &[] } else { &self.heaps }
    }

    fn units(&self, job: &CopyJob, range_bytes: u64) -> Vec<Unit> {
        let is_root = job.table.kind == TableKind::Partitioned;
        if is_root && (self.root_only || self.heaps.is_empty()) {
            let relation = job.table.name.clone();
            return vec![Unit { relation, is_root, pages: PageRange::default(), bytes: self.bytes() }];
        }
        self.heaps.iter().flat_map(|heap| heap_units(heap, range_bytes)).collect()
    }
}

/// One row per relation with storage: root, schema, name, pages, bytes,
/// access method is heap, readable by itself, rows by the statistics.
fn layout_sql(oids: &str) -> String {
    format!(
        "SELECT c.oid, n.nspname, l.relname, \
                COALESCE(pg_catalog.pg_relation_size(l.oid), 0) / pg_catalog.current_setting('block_size')::int8, \
                COALESCE(pg_catalog.pg_table_size(l.oid), 0), COALESCE(m.amname = 'heap', false), \
                l.relkind = 'r' AND NOT pg_catalog.row_security_active(l.oid) \
                    AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
                    AND pg_catalog.has_table_privilege(l.oid, 'SELECT'), \
                CASE WHEN l.reltuples >= 0 AND l.relpages > 0 \
                     THEN l.reltuples::float8 / l.relpages \
                          * (pg_catalog.pg_relation_size(l.oid) / pg_catalog.current_setting('block_size')::int8) END \
         FROM pg_catalog.pg_class c \
         CROSS JOIN LATERAL (SELECT c.oid AS relid WHERE c.relkind <> 'p' UNION ALL \
                             SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(c.oid) p \
                             WHERE p.isleaf AND c.relkind = 'p') x \
         JOIN pg_catalog.pg_class l ON l.oid = x.relid \
         JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace \
         LEFT JOIN pg_catalog.pg_am m ON m.oid = l.relam \
         WHERE c.oid IN ({oids})"
    )
}

async fn layouts(source: &mut Wire, jobs: &[CopyJob]) -> Result<HashMap<u32, Layout>, Error> {
    let oids = jobs.iter().map(|job| job.table.oid.to_string()).collect::<Vec<_>>().join(",");
    // The transaction lasts as long as the copy and must not keep the catalogs locked. Otherwise a
    // `VACUUM FULL` of a catalog would wait for the copy, and new connections, such as those of
    // further workers, would wait for the `VACUUM FULL`. Rolling back to a savepoint releases the
    // locks taken since.
    let sql =
        format!("SAVEPOINT look; {}; ROLLBACK TO SAVEPOINT look; RELEASE SAVEPOINT look", layout_sql(&oids));
    let rows = source.query(&sql).await.map_err(Error::client("look at the tables of the source"))?;
    let mut layouts: HashMap<u32, Layout> = HashMap::new();
    for row in rows {
        let text = |index: usize| row.get(index).and_then(Option::as_deref).unwrap_or_default();
        let number = |index: usize| text(index).parse::<u64>().unwrap_or(0);
        let root = u32::try_from(number(0)).unwrap_or(0);
        let layout = layouts.entry(root).or_default();
        layout.root_only |= text(6) != "t";
        layout.heaps.push(Heap {
            name: TableName::new(text(1), text(2)),
            pages: number(3),
            bytes: number(4),
            has_pages: text(5) == "t",
            rows: text(7).parse().ok(),
        });
    }
    // A partitioned table without leaves has no row of its own.
    for job in jobs.iter().filter(|job| job.table.kind == TableKind::Partitioned) {
        layouts.entry(job.table.oid.0).or_default();
    }
    Ok(layouts)
}
