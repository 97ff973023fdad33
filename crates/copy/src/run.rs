//! One attempt to copy everything that is not copied yet.
//!
//! Each worker is a pair of connections. The first error ends the attempt. It drops the other
//! workers in the middle of their work, and the servers roll back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use base::crash_phases::{self, Phase};
use client::{ConnInfo, SqlState, Wire};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Kind};
use crate::layout::{Layout, layouts};
use crate::options::{ExportedSnapshot, Options};
use crate::plan::{CopyUnit, range_bytes};
use crate::progress::{CopyProgress, TableProgress};
use crate::record::CopyRecord;
use crate::schedule::{Claim, CopyMethod, Schedule};
use crate::sql::{copy_in, copy_out};
use crate::table::{self, Start};
use crate::transfer::transfer;
use crate::{CopyJob, estimate, held, session};

/// Everything an attempt needs besides the tables.
#[derive(Clone)]
pub struct Attempt {
    /// The publisher.
    pub source: ConnInfo,
    /// The subscriber.
    pub target: ConnInfo,
    /// The snapshot under which all tables are read.
    pub snapshot: ExportedSnapshot,
    /// The operator's choices.
    pub options: Options,
    /// Figures to keep up to date.
    pub progress: Arc<CopyProgress>,
    /// What the target remembers.
    pub record: Arc<dyn CopyRecord>,
}

/// A table of this attempt.
struct PlannedTable {
    job: CopyJob,
    units: Vec<CopyUnit>,
    progress: Arc<TableProgress>,
    /// Rows of the ranges that are committed.
    rows: AtomicU64,
}

struct SharedAttempt {
    attempt: Attempt,
    tables: Vec<PlannedTable>,
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
    let shared = Arc::new(SharedAttempt { attempt, tables, schedule, encoding, put_off: Mutex::new(None) });
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
async fn further_worker(shared: Arc<SharedAttempt>) -> Result<(), Error> {
    let Attempt { source, target, snapshot, options, .. } = &shared.attempt;
    let connected = async {
        let source = session::connect_source(source, snapshot, options).await?;
        Ok::<_, Error>((source, session::connect_target(target, options).await?))
    };
    match connected.await {
        Ok((source, target)) => work(&shared, source, target).await,
        Err(error) if error.sqlstate() == Some(SqlState::TOO_MANY_CONNECTIONS.code()) => {
            tracing::warn!(%error, "the first copy continues with fewer connections");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

async fn work(shared: &SharedAttempt, mut source: Wire, mut target: Wire) -> Result<(), Error> {
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
    shared: &SharedAttempt,
    index: usize,
    source: &mut Wire,
    target: &mut Wire,
) -> Result<(), Error> {
    let SharedAttempt { attempt, schedule, .. } = shared;
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
            schedule.started(index, CopyMethod::Whole);
            return Ok(());
        }
        held => held?,
    }
    let point = attempt.snapshot.consistent_point;
    let ranges = table.units.len() > 1 && !attempt.options.whole_tables;
    let start = table::start(target, &table.job, ranges, &*attempt.record, point).await?;
    table.progress.start();
    match start {
        Start::Ranges => schedule.started(index, CopyMethod::Ranges),
        Start::Finished => {
            schedule.started(index, CopyMethod::Whole);
            table.progress.finish();
        }
        Start::OneTransaction => {
            schedule.started(index, CopyMethod::Whole);
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
    shared: &SharedAttempt,
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

async fn copy_unit(
    table: &PlannedTable,
    unit: &CopyUnit,
    source: &mut Wire,
    target: &mut Wire,
) -> Result<u64, Error> {
    let (job, progress) = (&table.job, &table.progress);
    let (rows, bytes) = transfer(source, target, &copy_out(job, unit), &copy_in(job), progress).await?;
    progress.unit_done(unit.bytes, rows, bytes);
    Ok(rows)
}

async fn finish_table(
    shared: &SharedAttempt,
    table: &PlannedTable,
    rows: u64,
    target: &mut Wire,
) -> Result<(), Error> {
    let Attempt { snapshot, record, .. } = &shared.attempt;
    table::finish(target, &table.job, &**record, snapshot.consistent_point, rows).await?;
    table.progress.finish();
    Ok(())
}

/// The tables with their units, the largest first.
async fn plan(source: &mut Wire, jobs: Vec<CopyJob>, attempt: &Attempt) -> Result<Vec<PlannedTable>, Error> {
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
        tables.push(PlannedTable { job, units, progress, rows: AtomicU64::new(0) });
    }
    let bytes = |table: &PlannedTable| table.units.iter().map(|unit| unit.bytes).sum::<u64>();
    tables.sort_by_key(|table| std::cmp::Reverse(bytes(table)));
    Ok(tables)
}
