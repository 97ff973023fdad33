//! One reading of a [`Status`], and its JSON form.
//!
//! The JSON form is stable: keys are only added. Positions are texts as PostgreSQL writes them,
//! times are milliseconds of the Unix epoch, and unknown values are null.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use base::{Lsn, PgTimestamp};
use conflict::ConflictType;
use copy::{TableProgress, TableState};
use serde::{Deserialize, Serialize};
use wal_source::DecodedSnapshot;

use super::Status;
use super::awaited::CatchingUp;
use super::form::ValuesSnapshot;
use super::lag::{Lag, LagFigures, Mark};
use super::limits::LimitedBy;
use super::phase::Phase;
use super::retained::RetainedSnapshot;
use super::stage_times::StageTimes;
use super::standstill::Blocked;
use super::waits::WaitsFor;

/// The last error, which may be over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// The message for a person: object, cause, next step.
    pub message: String,
    /// When the error occurred.
    pub at_unix_ms: i64,
}

/// Consecutive attempts that fail in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// When the first of them failed.
    pub since_unix_ms: i64,
    /// Their number.
    pub attempts: u64,
}

/// Totals since the process started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Rows inserted, as the source did it.
    pub inserts: u64,
    /// Rows updated, as the source did it.
    pub updates: u64,
    /// Rows deleted, as the source did it.
    pub deletes: u64,
    /// Tables truncated.
    pub truncates: u64,
    /// Source transactions committed on the target.
    pub transactions: u64,
    /// Source transactions skipped on request.
    pub skipped_transactions: u64,
    /// Target transactions.
    pub batches: u64,
    /// Rows written after folding.
    pub rows_written: u64,
    /// Chunks rolled back and applied again one change at a time.
    pub replays: u64,
    /// Statements that took far too long, were cancelled and planned anew.
    #[serde(default)]
    pub replanned: u64,
    /// CPU time of each stage, in microseconds.
    #[serde(default)]
    pub cpu_us: StageTimes,
    /// Chunks executed before their turn to commit.
    #[serde(default)]
    pub ahead: u64,
    /// The number that failed so early and were executed again.
    #[serde(default)]
    pub ahead_void: u64,
    /// Target transactions that were committed before an earlier one.
    #[serde(default)]
    pub out_of_order: u64,
    /// Transactions that were held until the target's clock had passed their commit time.
    #[serde(default)]
    pub clock_held: u64,
    /// How long they were held together.
    #[serde(default)]
    pub clock_held_ms: u64,
    /// Attempts that ended in an error.
    pub errors: u64,
    /// Conflicts by type, in PostgreSQL's names.
    pub conflicts: BTreeMap<String, u64>,
}

impl StatusSnapshot {
    /// Whether changes of all tables flow.
    #[must_use]
    pub fn streams(&self) -> bool {
        [Phase::CatchingUp, Phase::Streaming].iter().any(|phase| phase.as_str() == self.phase)
    }
}

/// One table of the first copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSnapshot {
    /// Schema-qualified name.
    pub table: String,
    /// `waiting`, `copying` or `done`.
    pub state: String,
    /// Rows copied so far.
    pub rows: u64,
    /// Rows in total, by estimate until the copy is done.
    pub rows_estimated: u64,
    /// Bytes of COPY data so far.
    pub bytes: u64,
    /// Bytes of COPY data in total, by estimate until the copy is done.
    pub bytes_estimated: u64,
    /// Time since its copy began, or how long the copy took.
    pub elapsed_ms: u64,
}

/// The first copy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CopySnapshot {
    /// Every table of this process's first copy; empty if it made none.
    pub tables: Vec<TableSnapshot>,
}

/// A published table that does not take part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingTable {
    /// Schema-qualified name.
    pub table: String,
    /// Why it does not take part, and what to do.
    pub reason: String,
}

/// A partition of a table that is published as its root, and whose rows differ between the ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferingPartition {
    /// The root's schema-qualified name.
    pub root: String,
    /// The partition's schema-qualified name.
    pub partition: String,
    /// What happened, and what differs.
    pub what: String,
    /// What to do, with the statement.
    pub remedy: String,
}

/// The result of the last look at the publication's tables.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Refresh {
    /// The number of the request that this look answers; see [`Status::request_refresh`].
    pub number: u64,
    /// Tables that are replicated.
    pub joined: u64,
    /// Tables that are being copied while the others go on.
    pub joining: Vec<String>,
    /// Tables that cannot be replicated yet.
    pub waiting: Vec<WaitingTable>,
    /// Partitions whose rows differ between the ends.
    #[serde(default)]
    pub partitions: Vec<DifferingPartition>,
}

/// An object of a new schema that is being created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BuildingSnapshot {
    /// Its kind and name.
    pub object: String,
    /// The server's word for its present step, if it builds an index.
    pub phase: Option<String>,
    /// The fraction of that step that is done, 0 to 1.
    pub fraction: Option<f64>,
    /// Time since it was begun.
    pub elapsed_ms: u64,
}

/// The part of a new schema that is created after the copy.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SchemaSnapshot {
    /// Indexes, constraints, triggers and the rest; 0 if this process creates none.
    pub objects: usize,
    /// The number of objects that are done.
    pub done: usize,
    /// Objects that are being created at this moment.
    pub building: Vec<BuildingSnapshot>,
}

/// Prefetching of the target's pages.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PrefetchSnapshot {
    /// `identity` or `all`; null if it is off.
    pub mode: Option<String>,
    /// Sessions that are connected for it.
    pub workers: usize,
    /// It had to read within the last seconds. Otherwise the pages are in memory, or no changes
    /// come.
    pub reading: bool,
    /// Rows looked up; a row counts once for each look-up that it needed.
    pub rows: u64,
    /// Pages that the look-ups asked for and found in shared buffers.
    pub blocks_hit: u64,
    /// Pages that they had to read.
    pub blocks_read: u64,
    /// The share of `blocks_hit` in both.
    pub hit_rate: Option<f64>,
    /// Rows that were not looked up because applying was as quick, or because too many waited.
    pub dropped: u64,
    /// Why it cannot work at present.
    pub trouble: Option<String>,
}

/// One reading of all figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatusSnapshot {
    /// The subscription's name.
    pub subscription: String,
    /// The program's version.
    pub version: String,
    /// The process id.
    pub pid: u32,
    /// See [`Phase`].
    pub phase: String,
    /// When the process started.
    pub started_at_unix_ms: i64,
    /// When this was read.
    pub read_at_unix_ms: i64,
    /// How often the process has connected to both ends.
    pub connects: u64,
    /// End of the source's WAL by the last answer.
    pub source_end: Option<String>,
    /// Received up to here.
    pub received: Option<String>,
    /// Handed to the target up to here.
    pub handed: Option<String>,
    /// Committed on the target up to here.
    pub applied: Option<String>,
    /// Durable on the target, and so confirmed to the source, up to here.
    pub flushed: Option<String>,
    /// Source commit time of the last transaction applied.
    pub last_commit_unix_ms: Option<i64>,
    /// The distances between these positions.
    pub lag: LagFigures,
    /// Bytes of changes received and not yet committed on the target.
    pub queued_bytes: u64,
    /// What was done.
    pub totals: Totals,
    /// The first copy.
    pub copy: CopySnapshot,
    /// Which tables take part; null before the stream's first look.
    #[serde(default)]
    pub refresh: Option<Refresh>,
    /// What is missing until every state of the target is one that the source had. Null if nothing
    /// is missing, or if no stream is open.
    #[serde(default)]
    pub catching_up: Option<CatchingUp>,
    /// The lock on the target that a session of ours waits for.
    #[serde(default)]
    pub blocked: Option<Blocked>,
    /// The progress of a new schema.
    #[serde(default)]
    pub schema: SchemaSnapshot,
    /// The figures of prefetching.
    #[serde(default)]
    pub prefetch: PrefetchSnapshot,
    /// The form in which values come; null before the first stream.
    #[serde(default)]
    pub values: Option<ValuesSnapshot>,
    /// The figures of WAL that is decoded here; null where the source decodes.
    #[serde(default)]
    pub decoded: Option<DecodedSnapshot>,
    /// What is remembered of the target's deletions; null where nothing is.
    #[serde(default)]
    pub deletions: Option<RetainedSnapshot>,
    /// What takes long at present; null while everything moves.
    #[serde(default)]
    pub waits_for: Option<WaitsFor>,
    /// What limits the rate while the target is behind; null while it keeps up, or while no part is
    /// busy enough to be named.
    #[serde(default)]
    pub limited_by: Option<LimitedBy>,
    /// How far the commit time of the transaction that is held is ahead of the target's clock; null
    /// while none is held.
    #[serde(default)]
    pub clock_ahead_seconds: Option<f64>,
    /// Bytes of open transactions in the spool.
    #[serde(default)]
    pub spooled_bytes: u64,
    /// Attempts that fail in the same way, until one gets further.
    #[serde(default)]
    pub failing: Option<Failing>,
    /// The last error, if there was one.
    pub last_error: Option<LastError>,
}

/// `lsn` as text; `None` if it is zero.
fn text(lsn: u64) -> Option<String> {
    (lsn != 0).then(|| Lsn::new(lsn).to_string())
}

impl Status {
    /// Reads all figures. The slowest position is read first, so that each is at or behind the one
    /// before it.
    #[must_use]
    pub fn snapshot(&self) -> StatusSnapshot {
        self.snapshot_at(PgTimestamp::now())
    }

    /// [`Status::snapshot`] with the caller's clock.
    pub(super) fn snapshot_at(&self, now: PgTimestamp) -> StatusSnapshot {
        let seen = self.progress().snapshot();
        let (flushed, applied) = (seen.flushed.as_u64(), seen.applied.as_u64());
        let handed = self.handed.load(Ordering::Relaxed).max(applied);
        let received = seen.received.as_u64().max(handed);
        // For a transaction that comes in parts, no more is handed over than was received.
        let handed = handed.max(self.part_handed.load(Ordering::Relaxed).min(received));
        // The source is asked once a second; what was received since then may be past the answer.
        let source_end = match self.source_end.load(Ordering::Relaxed) {
            0 => 0,
            end => end.max(received),
        };
        let lag = self.lag(now, [source_end, received, handed, applied, flushed]);
        let last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (phase, catching_up) = self.phase_and_wait(Lsn::new(applied));
        let waits_for = self.waits_for(&lag);
        StatusSnapshot {
            subscription: self.subscription.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            phase: phase.as_str().to_owned(),
            started_at_unix_ms: self.started_at.unix_micros() / 1_000,
            read_at_unix_ms: now.unix_micros() / 1_000,
            connects: self.connects.load(Ordering::Relaxed),
            source_end: text(source_end),
            received: text(received),
            handed: text(handed),
            applied: text(applied),
            flushed: text(flushed),
            last_commit_unix_ms: self.counters.last_commit_time().map(|time| time.unix_micros() / 1_000),
            limited_by: self.limits.limited_by(&lag.total, waits_for.as_ref()),
            waits_for,
            clock_ahead_seconds: self.counters.clock.figures().held.map(|held| held.ahead.as_secs_f64()),
            spooled_bytes: self.spooling.held().1,
            failing: self.failing(),
            lag,
            queued_bytes: self.counters.queued_bytes.load(Ordering::Relaxed),
            totals: self.totals(),
            copy: self.copy_snapshot(),
            refresh: self.refresh(),
            catching_up,
            blocked: self.blocked(),
            schema: self.schema_snapshot(),
            prefetch: self.prefetch_snapshot(),
            values: self.values(),
            decoded: self.decoded.snapshot(),
            deletions: self.retention().map(|retention| RetainedSnapshot::of(retention)),
            last_error,
        }
    }

    /// The lags between `positions`, which are in the module's order.
    fn lag(&self, now: PgTimestamp, positions: [u64; 5]) -> LagFigures {
        let [source_end, received, handed, applied, flushed] = positions;
        let between = |ahead: u64, behind: u64, mark: &Mark| {
            // A position of zero is not known yet, so there is no lag.
            if ahead == 0 || behind == 0 {
                return Lag::default();
            }
            let bytes = ahead.saturating_sub(behind);
            Lag { bytes: Some(bytes), seconds: if bytes == 0 { Some(0.0) } else { mark.age(now) } }
        };
        let mut receive = between(source_end, received, &self.received_mark);
        let mut total = between(source_end, applied, &self.applied_mark);
        if self.phase() == Phase::Waiting {
            let heard_at = self.source_heard_at.load(Ordering::Relaxed);
            let silence = (heard_at != i64::MIN).then(|| now.0.saturating_sub(heard_at).max(0) as f64 / 1e6);
            for lag in [&mut receive, &mut total] {
                lag.seconds = lag.seconds.zip(silence).map(|(age, silence)| age.max(silence));
            }
        }
        LagFigures {
            receive,
            queue: between(received, handed, &self.handed_mark),
            apply: between(handed, applied, &self.applied_mark),
            flush: between(applied, flushed, &self.flushed_mark),
            total,
        }
    }

    fn totals(&self) -> Totals {
        let counters = &self.counters;
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let clock = counters.clock.figures();
        Totals {
            clock_held: clock.transactions,
            clock_held_ms: u64::try_from(clock.waited.as_millis()).unwrap_or(u64::MAX),
            inserts: get(&counters.inserts),
            updates: get(&counters.updates),
            deletes: get(&counters.deletes),
            truncates: get(&counters.truncates),
            transactions: get(&counters.transactions),
            skipped_transactions: get(&counters.skipped_transactions),
            batches: get(&counters.batches),
            rows_written: get(&counters.rows_written),
            replays: get(&counters.replays),
            replanned: get(&counters.replanned),
            cpu_us: self.stage_times(),
            ahead: get(&counters.ahead),
            ahead_void: get(&counters.ahead_void),
            out_of_order: get(&counters.out_of_order),
            errors: get(&self.failures),
            conflicts: ConflictType::ALL
                .into_iter()
                .map(|kind| (kind.name().to_owned(), counters.conflicts.get(kind)))
                .collect(),
        }
    }

    /// CPU time of each stage.
    pub(crate) fn stage_times(&self) -> StageTimes {
        StageTimes {
            receive: self.receive_cpu.micros(),
            decode: self.decoded.cpu.micros(),
            plan: self.counters.plan_cpu.micros(),
            write: self.counters.write_cpu.micros(),
        }
    }

    /// How far the target is behind.
    pub(crate) fn total_lag(&self) -> Lag {
        let now = PgTimestamp::now();
        let applied = self.progress().snapshot().applied.as_u64();
        let end = self.source_end.load(Ordering::Relaxed).max(applied);
        self.lag(now, [end, end, applied, applied, applied]).total
    }

    fn schema_snapshot(&self) -> SchemaSnapshot {
        let (objects, done) = self.schema.totals();
        let building = |own: schema::Building| BuildingSnapshot {
            object: own.object,
            phase: own.phase,
            fraction: own.fraction,
            elapsed_ms: u64::try_from(own.elapsed.as_millis()).unwrap_or(u64::MAX),
        };
        SchemaSnapshot { objects, done, building: self.schema.building().into_iter().map(building).collect() }
    }

    fn prefetch_snapshot(&self) -> PrefetchSnapshot {
        let figures = &self.counters.prefetch;
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        // Reads hits first: a page that is counted meanwhile is then a read, and the difference is
        // never negative.
        let (hit, fetched) = (get(&figures.blocks_hit), get(&figures.blocks_fetched));
        PrefetchSnapshot {
            mode: figures.mode().map(str::to_owned),
            workers: figures.workers.load(Ordering::Relaxed),
            reading: figures.is_reading(),
            rows: get(&figures.rows),
            blocks_hit: hit,
            blocks_read: fetched.saturating_sub(hit),
            hit_rate: (fetched > 0).then(|| hit as f64 / fetched as f64),
            dropped: get(&figures.dropped),
            trouble: figures.trouble(),
        }
    }

    fn copy_snapshot(&self) -> CopySnapshot {
        let table = |table: &Arc<TableProgress>| TableSnapshot {
            table: table.name().to_string(),
            state: match table.state() {
                TableState::Waiting => "waiting",
                TableState::Copying => "copying",
                TableState::Done => "done",
            }
            .to_owned(),
            rows: table.rows(),
            rows_estimated: table.rows_estimated(),
            bytes: table.bytes(),
            bytes_estimated: table.bytes_estimated(),
            elapsed_ms: u64::try_from(table.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        CopySnapshot { tables: self.copy.tables().iter().map(table).collect() }
    }
}
