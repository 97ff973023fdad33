//! All chunks of all tables, group by group.
//!
//! A group holds the chunks that can be compared while snapshots may be held. Its first size is a
//! guess; later sizes follow the time that the last group took. Workers take chunks from one queue.
//! When the time is over they take no more, and the rest of the group goes into the next one.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::ConnInfo;
use futures_util::future::try_join_all;
use tokio::time::Instant;

use crate::Error;
use crate::chunk::{self, Chunk};
use crate::compare::{FoundDifferences, compare};
use crate::paired_snapshots::{Applier, Holders, SnapshotFailure, Snapshots};
use crate::progress::Progress;
use crate::report::{Report, TableReport};
use crate::session::Pair;
use crate::table::{ComparedTable, Matched, match_tables};

/// The operator's options.
#[derive(Debug, Clone)]
pub struct Options {
    /// Pairs of connections that compare at the same time; at least one.
    pub workers: usize,
    /// Approximate bytes of the source's table in one chunk.
    pub chunk_bytes: u64,
    /// Snapshots are renewed after this time, as far as chunks allow.
    pub snapshot_max: Duration,
    /// Differences named per table at most.
    pub limit: usize,
    /// `application_name` of the connections, as `pg_stat_activity` shows it.
    pub application_name: String,
}

/// Tables that are locked together: each takes a place in the servers' lock
/// tables, and so does each of its partitions.
const GROUP_TABLES_MAX: usize = 64;

/// Assumed bytes compared in a second, before it is measured. Low, so that the first snapshots are
/// not held too long.
const BYTES_PER_SECOND: u64 = 64 << 20;

/// How often another session's lock may end a group because of one chunk.
const TRIES_MAX: u32 = 50;

/// After this many, the holders of the snapshots read the chunk themselves: they already have the
/// locks.
const TRIES_OF_WORKERS: u32 = 3;

/// Compares what `publications` publish.
///
/// # Errors
/// A server or the applier failed. What concerns one table only is in its report.
pub async fn verify(
    source: &ConnInfo,
    target: &ConnInfo,
    publications: &[String],
    applier: &mut dyn Applier,
    options: &Options,
    progress: &Progress,
) -> Result<Report, Error> {
    let mut holders = Holders::connect(source, target, &options.application_name).await?;
    let mut plan = Plan::make(&holders, publications, options, progress).await?;
    let workers = options.workers.clamp(1, plan.queue.len().max(1));
    let name = &options.application_name;
    let pairs = try_join_all((0..workers).map(|_| Pair::connect(source, target, name))).await?;
    let mut report = Report { pinned: applier.is_live(), ..Report::default() };
    let mut bytes_per_second = BYTES_PER_SECOND;
    while !plan.queue.is_empty() {
        let budget = (bytes_per_second as f64 * options.snapshot_max.as_secs_f64()) as u64;
        let group = plan.next_group(budget, workers);
        let snapshots = match holders.take(applier, &group.tables(&plan.tables)).await {
            Ok(snapshots) => snapshots,
            Err(SnapshotFailure::Table(table, error)) => {
                plan.put_back(group.into_queue());
                plan.fail(table, &error);
                continue;
            }
            Err(SnapshotFailure::All(error)) => return Err(error),
        };
        let began = Instant::now();
        let pairs = match group.by {
            By::Workers => pairs.as_slice(),
            By::Holders => std::slice::from_ref(holders.pair()),
        };
        let group = group.compare(&plan, pairs, &snapshots, options, began, progress).await?;
        holders.let_go().await?;
        let elapsed = began.elapsed();
        report.snapshots += 1;
        report.snapshot_ms_max = report.snapshot_ms_max.max(millis(elapsed));
        bytes_per_second = (group.bytes as f64 / elapsed.as_secs_f64().max(0.01)) as u64;
        plan.take_over(group, progress);
    }
    report.held_ms_max = millis(holders.figures.held_max);
    report.not_a_prefix = holders.figures.not_a_prefix;
    report.tables = plan.reports;
    Ok(report)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The tables to compare, and their state.
struct Plan {
    /// `None` where there is nothing to compare.
    tables: Vec<Option<Box<ComparedTable>>>,
    reports: Vec<TableReport>,
    /// Chunks of each table that were not compared yet.
    left: Vec<usize>,
    queue: VecDeque<Chunk>,
}

impl Plan {
    async fn make(
        holders: &Holders,
        publications: &[String],
        options: &Options,
        progress: &Progress,
    ) -> Result<Plan, Error> {
        let (source, target) = holders.sessions();
        let matched = match_tables(source, target, publications).await?;
        let mut plan =
            Plan { tables: Vec::new(), reports: Vec::new(), left: Vec::new(), queue: VecDeque::new() };
        for (number, matched) in matched.into_iter().enumerate() {
            match matched {
                Matched::Mismatch(name, why) => {
                    let mut report = TableReport::new(name.to_string());
                    (report.equal, report.mismatch) = (false, Some(why));
                    plan.reports.push(report);
                    plan.tables.push(None);
                    plan.left.push(0);
                }
                Matched::Table(table) => {
                    let mut report = TableReport::new(table.name.to_string());
                    report.notes.clone_from(&table.notes);
                    let chunks = match chunk::split(source, number, &table, options.chunk_bytes).await {
                        Ok(chunks) => chunks,
                        Err(error) if error.is_connection_lost() => return Err(error),
                        Err(error) => {
                            report.error = Some(error.to_string());
                            Vec::new()
                        }
                    };
                    progress.bytes.fetch_add(table.bytes, Relaxed);
                    plan.left.push(chunks.len());
                    plan.reports.push(report);
                    plan.tables.push(Some(table));
                    plan.queue.extend(chunks);
                }
            }
        }
        progress.tables.store(plan.reports.len() as u64, Relaxed);
        Ok(plan)
    }

    /// The next chunks: as many as `budget` bytes, and one for each worker.
    fn next_group(&mut self, budget: u64, workers: usize) -> Group {
        let (mut queue, mut tables, mut bytes) = (VecDeque::new(), BTreeSet::new(), 0);
        if self.queue.front().is_some_and(|chunk| chunk.tries >= TRIES_OF_WORKERS) {
            queue.extend(self.queue.pop_front());
            tables.extend(queue.iter().map(|chunk| chunk.table));
            return Group::new(queue, tables, By::Holders);
        }
        while let Some(chunk) = self.queue.front() {
            let enough = bytes >= budget && queue.len() >= workers;
            if enough || (tables.len() == GROUP_TABLES_MAX && !tables.contains(&chunk.table)) {
                break;
            }
            bytes += chunk.bytes;
            tables.insert(chunk.table);
            queue.extend(self.queue.pop_front());
        }
        Group::new(queue, tables, By::Workers)
    }

    fn put_back(&mut self, queue: VecDeque<Chunk>) {
        for chunk in queue.into_iter().rev() {
            self.queue.push_front(chunk);
        }
    }

    /// The remaining chunks of a table whose comparison failed are skipped.
    fn fail(&mut self, table: usize, error: &Error) {
        self.reports[table].error.get_or_insert_with(|| error.to_string());
        self.queue.retain(|chunk| chunk.table != table);
    }

    fn take_over(&mut self, group: Compared, progress: &Progress) {
        self.put_back(group.left);
        for (chunk, result) in group.done {
            let table = chunk.table;
            match result {
                Err(error) => self.fail(table, &error),
                Ok(found) => {
                    let report = &mut self.reports[table];
                    if report.equal && !found.equal {
                        progress.tables_differ.fetch_add(1, Relaxed);
                    }
                    report.source_rows += found.source_rows;
                    report.target_rows += found.target_rows;
                    report.equal &= found.equal;
                    report.more |= found.more;
                    report.differences.extend(found.differences);
                    self.left[table] -= 1;
                    if self.left[table] == 0 {
                        progress.tables_done.fetch_add(1, Relaxed);
                    }
                }
            }
        }
    }
}

/// Chunks that are compared under one pair of snapshots.
struct Group {
    state: Mutex<State>,
    tables: Vec<usize>,
    by: By,
}

/// Who compares them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Workers,
    /// The sessions that hold the snapshots.
    Holders,
}

struct State {
    queue: VecDeque<Chunk>,
    done: Vec<(Chunk, Result<FoundDifferences, Error>)>,
    /// Another session waits for a lock that a holder has.
    given_up: bool,
}

/// The outcome of a group.
struct Compared {
    left: VecDeque<Chunk>,
    done: Vec<(Chunk, Result<FoundDifferences, Error>)>,
    bytes: u64,
}

impl Group {
    fn new(queue: VecDeque<Chunk>, tables: BTreeSet<usize>, by: By) -> Group {
        let state = State { queue, done: Vec::new(), given_up: false };
        Group { state: Mutex::new(state), tables: tables.into_iter().collect(), by }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn into_queue(self) -> VecDeque<Chunk> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).queue
    }

    fn tables<'a>(&self, tables: &'a [Option<Box<ComparedTable>>]) -> Vec<(usize, &'a ComparedTable)> {
        let of = |number: &usize| Some((*number, tables[*number].as_deref()?));
        self.tables.iter().filter_map(of).collect()
    }

    async fn compare(
        self,
        plan: &Plan,
        pairs: &[Pair],
        snapshots: &Snapshots,
        options: &Options,
        began: Instant,
        progress: &Progress,
    ) -> Result<Compared, Error> {
        let until = began + options.snapshot_max;
        let work = |pair| self.work(plan, pair, snapshots, options, until, progress);
        try_join_all(pairs.iter().map(work)).await?;
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let bytes = state.done.iter().map(|(chunk, _)| chunk.bytes).sum();
        Ok(Compared { left: state.queue, done: state.done, bytes })
    }

    /// One worker, until the group or its time is over.
    async fn work(
        &self,
        plan: &Plan,
        pair: &Pair,
        snapshots: &Snapshots,
        options: &Options,
        until: Instant,
        progress: &Progress,
    ) -> Result<(), Error> {
        let mut begun = self.by == By::Holders;
        while let Some(mut chunk) = self.next(until) {
            if !begun {
                pair.begin(&snapshots.source, &snapshots.target).await?;
                begun = true;
            }
            let Some(table) = plan.tables[chunk.table].as_deref() else { continue };
            let named = self.named(plan, chunk.table);
            let result = compare(pair, table, &chunk.range, options.limit.saturating_sub(named)).await;
            if result.is_err() {
                pair.end().await?;
                begun = false;
            }
            match result {
                Err(error) if error.is_connection_lost() => return Err(error),
                Err(error) if error.is_locked() && chunk.tries < TRIES_MAX => {
                    tracing::debug!("snapshots are let go: {error}");
                    chunk.tries += 1;
                    let mut state = self.state();
                    state.queue.push_front(chunk);
                    state.given_up = true;
                }
                result => {
                    progress.bytes_done.fetch_add(chunk.bytes, Relaxed);
                    if let Ok(found) = &result {
                        progress.rows.fetch_add(found.source_rows, Relaxed);
                    }
                    self.state().done.push((chunk, result));
                }
            }
        }
        if begun && self.by == By::Workers { pair.end().await } else { Ok(()) }
    }

    fn next(&self, until: Instant) -> Option<Chunk> {
        let mut state = self.state();
        if state.given_up || Instant::now() >= until && !state.done.is_empty() {
            return None;
        }
        state.queue.pop_front()
    }

    /// Differences of a table that have been named so far.
    fn named(&self, plan: &Plan, table: usize) -> usize {
        let before = plan.reports[table].differences.len();
        let of = |(chunk, result): &(Chunk, Result<FoundDifferences, Error>)| match result {
            Ok(found) if chunk.table == table => found.differences.len(),
            _ => 0,
        };
        before + self.state().done.iter().map(of).sum::<usize>()
    }
}
