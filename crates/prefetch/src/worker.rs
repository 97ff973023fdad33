//! One session of the target that looks rows up.
//!
//! A group is one round trip and one transaction. It asks how many pages the session has requested,
//! runs the look-ups, and asks again. The difference is exact: the session counts its own pages,
//! and the count is read before it goes to the server's statistics. That costs two function calls
//! for each relation.
//!
//! Rejected: EXPLAIN (ANALYZE, BUFFERS), which would plan each look-up anew and time every row.
//! Also rejected: `pg_stat_io`, which does not tell whose reads they were, and tells their number
//! too late.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use client::{Pipeline, PipelineResult, Replication, SqlState, Wire};
use plan::{Statement, Table};
use proto::frame::ServerError;
use rustc_hash::FxHashSet;

use crate::figures::add;
use crate::gauge::Turn;
use crate::indexes;
use crate::known::LOOKUPS_AGE_MAX;
use crate::lookups::PageLookup;
use crate::queue::{Group, ROWS_MIN};
use crate::shared_queue::{Job, SharedQueue, TROUBLE};

/// Without a setting, prefetching takes at most one of this many connections that the target has
/// left.
const CONNECTIONS_SHARE: usize = 4;
/// A connection is closed after this long without work.
const IDLE: Duration = Duration::from_secs(60);
/// A group that takes longer than the first makes later ones smaller; one below the second makes
/// them larger. Few enough rows, so that the applier does not overtake them and TRUNCATE does not
/// wait for them. Many enough, so that the round trip costs little.
const GROUP_LONG: Duration = Duration::from_millis(40);
const GROUP_SHORT: Duration = Duration::from_millis(10);
const GROUP_ROWS: std::ops::RangeInclusive<usize> = ROWS_MIN..=256;

/// These sessions write nothing, wait for no lock, and run nothing for long. Their plans are made
/// once, by their indexes, as the plans of the applier's sets are.
pub(crate) const SETTINGS: [(&str, &str); 26] = [
    ("search_path", ""),
    ("row_security", "off"),
    ("client_encoding", "UTF8"),
    ("datestyle", "ISO"),
    ("intervalstyle", "postgres"),
    ("array_nulls", "on"),
    // Switched on after connecting. Earlier, the server would look read-only, and
    // `target_session_attrs` might refuse it.
    ("default_transaction_read_only", "off"),
    ("default_transaction_isolation", "read committed"),
    ("statement_timeout", "1s"),
    ("lock_timeout", "50ms"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("idle_session_timeout", "0"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_nestloop", "on"),
    ("enable_indexscan", "on"),
    ("enable_indexonlyscan", "on"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_material", "off"),
    ("enable_memoize", "off"),
    ("enable_sort", "off"),
    ("enable_incremental_sort", "off"),
    ("max_parallel_workers_per_gather", "0"),
    ("jit", "off"),
];

/// Delay before a locked table is looked at again.
const CHANGED: Duration = Duration::from_millis(500);

struct Session {
    wire: Wire,
    prepared: FxHashSet<String>,
}

/// Runs look-ups until this future is dropped.
pub(crate) async fn work(shared: Arc<SharedQueue>, number: usize) {
    let mut session = None;
    loop {
        let Ok(job) = tokio::time::timeout(IDLE, shared.next(number)).await else {
            leave(&shared, &mut session).await;
            continue;
        };
        let connected = match session.take() {
            Some(connected) => connected,
            None => match connect(&shared, number).await {
                Ok(connected) => connected,
                Err(error) => {
                    refused(&shared, number, &error).await;
                    continue;
                }
            },
        };
        let connected = session.insert(connected);
        let done = match job {
            Job::Learn(table) => learn(&shared, connected, &table).await,
            Job::LookUp(group) => look_up(&shared, connected, group).await,
        };
        if let Err(error) = done {
            shared.figures.workers.fetch_sub(1, Ordering::Relaxed);
            session = None;
            refused(&shared, number, &error).await;
        }
    }
}

async fn leave(shared: &SharedQueue, session: &mut Option<Session>) {
    if let Some(session) = session.take() {
        shared.figures.workers.fetch_sub(1, Ordering::Relaxed);
        session.wire.close().await;
    }
}

/// Without the first worker all look-ups pause; without another one there are fewer.
async fn refused(shared: &SharedQueue, number: usize, error: &client::Error) {
    if number == 0 {
        shared.fail(base::with_causes(error));
    } else {
        tracing::debug!("prefetch goes on with fewer sessions: {error}");
        tokio::time::sleep(TROUBLE).await;
    }
}

async fn connect(shared: &SharedQueue, number: usize) -> Result<Session, client::Error> {
    let options = &shared.options;
    let name = options.subscription.application_name("prefetch");
    let mut wire = Wire::connect(&options.target, &name, Replication::Off, &SETTINGS).await?;
    wire.query("SET default_transaction_read_only = on").await?;
    if number == 0 {
        measure_target(shared, &mut wire).await?;
    }
    shared.figures.workers.fetch_add(1, Ordering::Relaxed);
    shared.figures.set_trouble(None);
    Ok(Session { wire, prepared: FxHashSet::default() })
}

/// Finds out how far ahead pages may be read, and by how many sessions.
async fn measure_target(shared: &SharedQueue, wire: &mut Wire) -> Result<(), client::Error> {
    let rows = wire
        .query(
            "SELECT (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'shared_buffers'), \
             pg_catalog.current_setting('max_connections')::int \
             - pg_catalog.current_setting('superuser_reserved_connections')::int \
             - coalesce(pg_catalog.current_setting('reserved_connections', true), '0')::int \
             - (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datid IS NOT NULL)",
        )
        .await?;
    let number = |at: usize| -> Option<i64> { rows.first()?.get(at)?.as_ref()?.parse().ok() };
    if let Some(buffers) = number(0) {
        // The other three quarters stay for the applier's own pages and those of other sessions.
        let pages = u64::try_from(buffers / 4).unwrap_or(0);
        shared.pages_ahead.store(pages.max(ROWS_MIN as u64 * 4), Ordering::Relaxed);
    }
    if let (None, Some(left)) = (shared.options.workers, number(1)) {
        let most = shared.workers.load(Ordering::Relaxed);
        // This session is one of them already.
        let share = usize::try_from(left).unwrap_or(0) / CONNECTIONS_SHARE;
        shared.workers.store(share.clamp(1, most), Ordering::Relaxed);
    }
    Ok(())
}

/// Finds out a table's look-ups. A refusal by the server concerns only the table; the caller
/// handles a lost connection.
async fn learn(shared: &SharedQueue, session: &mut Session, table: &Arc<Table>) -> Result<(), client::Error> {
    let (mode, binary) = (shared.options.mode, shared.options.binary);
    let known = shared.known.table_lookups(table);
    let learned = async {
        if let Some(known) = known {
            let indexes = indexes::read_indexes(&mut session.wire, table).await?;
            if known.made_of == indexes {
                return Ok(known);
            }
        }
        indexes::learn(&mut session.wire, table, mode, binary).await.map(Arc::new)
    };
    match learned.await {
        Ok(table_lookups) => {
            tracing::debug!(table = %table.name, lookups = table_lookups.all().count(), "learned what to prefetch");
            shared.known.set(table, Some(table_lookups), LOOKUPS_AGE_MAX);
            shared.learned(table);
            Ok(())
        }
        Err(error) if session.wire.is_broken() => Err(error),
        Err(error) => {
            // Another session is changing the table. A timeout arrives as a cancel.
            if matches!(
                error.sqlstate().map(SqlState::from_code),
                Some(SqlState::LOCK_NOT_AVAILABLE | SqlState::QUERY_CANCELED)
            ) {
                shared.known.set(table, None, CHANGED);
            } else {
                not_prefetched(shared, table, &error);
            }
            shared.queue().take_waiting(table);
            Ok(())
        }
    }
}

/// Pauses all look-ups of this table.
fn not_prefetched(shared: &SharedQueue, table: &Arc<Table>, why: &dyn std::fmt::Display) {
    tracing::info!(table = %table.name, "its pages are not prefetched for {} s: {why}", TROUBLE.as_secs());
    shared.known.set(table, None, TROUBLE);
}

async fn look_up(shared: &SharedQueue, session: &mut Session, group: Group) -> Result<(), client::Error> {
    let started = Instant::now();
    let Group { table, table_lookups, need, mut sets, rows, .. } = group;
    let lookups = table_lookups.lookups(need);
    sets.retain(|(number, _)| lookups[*number].gauge.is_awake(started));
    let asked: Vec<&PageLookup> = sets.iter().map(|(number, _)| &lookups[*number]).collect();
    let sets = sets.into_iter().map(|(_, set)| set).zip(&asked);
    let statements: Vec<Statement> =
        sets.map(|(set, lookup)| set.into_statement(Arc::clone(&lookup.shape), 0)).collect();
    if statements.is_empty() {
        return Ok(());
    }
    let measure = format!("prefetch{}_measure", table_lookups.id);
    let result = run(session, &measure, &table_lookups.measure_sql(), &statements).await?;
    if let Some(error) = &result.error {
        return failed(shared, session, &table, error).await;
    }
    adapt(shared, rows, started.elapsed());
    let (before, after) = (counts(&result, 0), counts(&result, result.rows.len() - 1));
    // For each relation in turn: pages requested, and pages found in memory.
    let grown: Vec<u64> =
        after.iter().zip(&before).map(|(after, before)| after.saturating_sub(*before)).collect();
    for lookup in asked {
        let relations =
            lookup.relation.map_or(0..table_lookups.relations.len(), |relation| relation..relation + 1);
        let of = |half: usize| -> u64 { relations.clone().filter_map(|n| grown.get(2 * n + half)).sum() };
        note(shared, &table, lookup, rows as u64, Pages { fetched: of(0), hit: of(1) });
    }
    Ok(())
}

/// Pages that a look-up requested, and how many of them were in memory.
#[derive(Debug, Clone, Copy)]
struct Pages {
    fetched: u64,
    hit: u64,
}

fn note(shared: &SharedQueue, table: &Table, lookup: &PageLookup, rows: u64, pages: Pages) {
    let Pages { fetched, hit } = pages;
    let figures = &shared.figures;
    add(&figures.rows, rows);
    add(&figures.blocks_fetched, fetched);
    add(&figures.blocks_hit, hit);
    let turn = lookup.gauge.note(rows, fetched.saturating_sub(hit), Instant::now());
    if lookup.gauge.is_on() {
        figures.note_reading();
    }
    let Some(turn) = turn else { return };
    let of = match lookup.indexes.as_slice() {
        [] => "the replica identity".to_owned(),
        indexes => indexes.join(", "),
    };
    match turn {
        Turn::On => {
            tracing::info!(table = %table.name, "prefetching by {of}: {hit} of {fetched} pages were in memory");
        }
        Turn::Off => {
            tracing::info!(table = %table.name, "prefetching by {of} pauses: it finds all in memory")
        }
    }
    // The other workers may help now.
    shared.ready.notify_waiters();
}

/// Adapts the size of groups, so that they are neither long nor many.
fn adapt(shared: &SharedQueue, rows: usize, took: Duration) {
    let now = shared.group_rows.load(Ordering::Relaxed);
    let wanted = if took > GROUP_LONG {
        rows / 2
    } else if took < GROUP_SHORT && rows >= now {
        rows * 2
    } else {
        return;
    };
    shared.group_rows.store(wanted.clamp(*GROUP_ROWS.start(), *GROUP_ROWS.end()), Ordering::Relaxed);
}

/// Handles a look-up that the server refused; the connection may still be usable.
async fn failed(
    shared: &SharedQueue,
    session: &mut Session,
    table: &Arc<Table>,
    error: &ServerError,
) -> Result<(), client::Error> {
    session.wire.query("DEALLOCATE ALL").await?;
    session.prepared.clear();
    match SqlState::from_code(&error.code) {
        // Another session is changing the table, perhaps the applier itself.
        SqlState::LOCK_NOT_AVAILABLE => {
            tracing::debug!(table = %table.name, "a look-up did not wait for a lock");
        }
        // An index may be gone, and the plan with it.
        SqlState::QUERY_CANCELED => {
            tracing::debug!(table = %table.name, "a look-up took too long: {}", error.message);
            let rows = shared.group_rows.load(Ordering::Relaxed);
            adapt(shared, rows, GROUP_LONG * 2);
            shared.known.set(table, None, Duration::ZERO);
        }
        _ => not_prefetched(shared, table, error),
    }
    Ok(())
}

/// Makes one round trip: `measure`, the look-ups, `measure`.
async fn run(
    session: &mut Session,
    measure: &str,
    measure_sql: &str,
    statements: &[Statement],
) -> Result<PipelineResult, client::Error> {
    let Session { wire, prepared } = session;
    let mut pipeline = wire.pipeline().await?;
    if !prepared.contains(measure) {
        pipeline.prepare(measure, measure_sql, &[]);
    }
    let no_parameters =
        |pipeline: &mut Pipeline<'_>| pipeline.execute(measure, 4, |out: &mut BytesMut| out.put_u32(0));
    no_parameters(&mut pipeline);
    for statement in statements {
        let shape = &statement.shape;
        if !prepared.contains(&shape.name) {
            pipeline.prepare(&shape.name, &shape.sql, &shape.parameter_types);
        }
        pipeline.execute(&shape.name, statement.byte_len(), |out| statement.put(out));
    }
    no_parameters(&mut pipeline);
    let result = pipeline.run().await?;
    if result.error.is_none() {
        prepared.insert(measure.to_owned());
        prepared.extend(statements.iter().map(|statement| statement.shape.name.clone()));
    }
    Ok(result)
}

/// Returns the numbers in the only row of a statement.
fn counts(result: &PipelineResult, statement: usize) -> Vec<u64> {
    let number = |value: &Option<String>| value.as_ref().and_then(|text| text.parse().ok()).unwrap_or(0);
    result.last_row(statement).iter().map(number).collect()
}
