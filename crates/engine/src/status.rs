//! What a pipeline is doing, for `status`, metrics and progress bars.
//!
//! Every stage updates its own figures as it goes. They are relaxed atomics, because no decision
//! depends on them. A reader takes a [`StatusSnapshot`], which is also the documented JSON form of
//! `pgsluice status --json`.
//!
//! ## Lag
//! A transaction passes these positions of the source's WAL, each at or behind the one before:
//!
//! ```text
//! source_end   >=  received   >=  handed       >=  applied      >=  flushed
//!         receive lag     queue lag      apply lag       flush lag
//! ```
//!
//! The four lags in bytes are the distances between neighbours, so they add up to the whole. For a
//! transaction that is handed over in parts, everything received counts as handed.
//!
//! A lag in seconds is the age of the oldest transaction that has not passed the stage. It is the
//! present time less the source's commit time of the last transaction that has passed. It is 0 if
//! the stage has nothing before it. After a quiet hour the last commit is an hour old, although
//! nothing waited. So the moment at which the stage was last seen level counts like a commit.
//! Commit times are by the source's clock, the present time is by ours.
//!
//! While the source is not connected, nobody knows how far it is. The bytes stay at the last
//! figure, and the seconds of the receive lag grow from the last answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apply::{Counters, SnapshotGate};
use base::{Lsn, Oid, PgTimestamp, Progress, SubscriptionName};
use copy::CopyProgress;
use cpu_time::CpuTime;
use retention::Retention;
use schema::SchemaProgress;
use tokio::sync::watch;
use wal_source::Decoded;

use crate::spooling::Spooling;

mod awaited;
mod consistency;
mod form;
mod lag;
mod limits;
mod look;
mod phase;
mod retained;
mod snapshot;
mod stage_times;
mod standstill;
mod waits;

use self::awaited::Consistency;
pub use self::awaited::{AwaitedTable, CatchingUp};
use self::form::Form;
pub use self::form::ValuesSnapshot;
use self::lag::Mark;
pub use self::lag::{Lag, LagFigures};
pub use self::limits::LimitedBy;
pub(crate) use self::limits::{Limits, Sample, Walsender, is_behind};
pub(crate) use self::look::{BackendLook, read_statement};
pub use self::phase::Phase;
pub use self::retained::{QuantilesSnapshot, RetainedSnapshot};
pub use self::snapshot::{
    BuildingSnapshot, CopySnapshot, DifferingPartition, Failing, LastError, PrefetchSnapshot, Refresh,
    SchemaSnapshot, StatusSnapshot, TableSnapshot, Totals, WaitingTable,
};
pub use self::stage_times::StageTimes;
pub use self::standstill::Blocked;
pub(crate) use self::standstill::{Motion, Standstill};
pub use self::waits::{Pause, WaitsFor};

/// The figures that all stages of one pipeline share.
#[derive(Debug)]
pub struct Status {
    subscription: SubscriptionName,
    started_at: PgTimestamp,
    phase: AtomicU8,
    /// Why the phase is `Waiting`.
    pause: Mutex<Option<Pause>>,
    streaming: AtomicBool,
    /// Each attempt has its own. Positions only move forward, but after a crash of the target fewer
    /// changes may be applied than before.
    progress: Mutex<Arc<Progress>>,
    copy: Arc<CopyProgress>,
    schema: Arc<SchemaProgress>,
    counters: Arc<Counters>,
    gate: Arc<SnapshotGate>,
    source_end: AtomicU64,
    source_heard_at: AtomicI64,
    handed: AtomicU64,
    received_mark: Mark,
    handed_mark: Mark,
    applied_mark: Mark,
    flushed_mark: Mark,
    flush_probe: Mutex<Option<(Lsn, PgTimestamp)>>,
    connects: AtomicU64,
    failures: AtomicU64,
    last_error: Mutex<Option<LastError>>,
    complete: OnceLock<Complete>,
    skip_lsn: watch::Sender<Lsn>,
    refresh_asked: watch::Sender<u64>,
    refresh: Mutex<Option<Refresh>>,
    standstill: Standstill,
    limits: Limits,
    form: Form,
    decoded: Arc<Decoded>,
    /// CPU time of receiving the stream.
    receive_cpu: CpuTime,
    consistency: Consistency,
    /// The position of a transaction that was handed over in part; see
    /// [`Counters::last_part_handed`].
    part_handed: AtomicU64,
    spooling: Arc<Spooling>,
    /// Attempts that fail in the same way.
    failing: Mutex<Option<Failing>>,
    /// What is remembered of the target's deletions.
    retention: OnceLock<Arc<Retention>>,
    /// When the server was started to which the stream is applied.
    target_started: Mutex<Option<PgTimestamp>>,
    /// New tables for which the stream was started again.
    streamed_anew: Mutex<BTreeSet<Oid>>,
    /// The logged reasons why tables wait.
    told_waiting: Mutex<BTreeMap<String, String>>,
}

/// Completes the commands in a message about the subscription of this name.
pub(crate) type Complete = fn(&str, &str) -> String;

impl Status {
    /// The status of a pipeline that starts now.
    #[must_use]
    pub fn new(subscription: SubscriptionName) -> Self {
        Status {
            subscription,
            started_at: PgTimestamp::now(),
            phase: AtomicU8::new(Phase::Starting as u8),
            pause: Mutex::default(),
            streaming: AtomicBool::new(false),
            progress: Mutex::default(),
            copy: Arc::default(),
            schema: Arc::default(),
            counters: Arc::default(),
            gate: Arc::default(),
            source_end: AtomicU64::new(0),
            source_heard_at: AtomicI64::new(i64::MIN),
            handed: AtomicU64::new(0),
            received_mark: Mark::new(),
            handed_mark: Mark::new(),
            applied_mark: Mark::new(),
            flushed_mark: Mark::new(),
            flush_probe: Mutex::new(None),
            connects: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_error: Mutex::new(None),
            complete: OnceLock::new(),
            skip_lsn: watch::Sender::new(Lsn::INVALID),
            refresh_asked: watch::Sender::new(0),
            refresh: Mutex::default(),
            standstill: Standstill::default(),
            limits: Limits::default(),
            form: Form::default(),
            decoded: Arc::default(),
            receive_cpu: CpuTime::default(),
            consistency: Consistency::default(),
            part_handed: AtomicU64::new(0),
            spooling: Arc::default(),
            failing: Mutex::default(),
            retention: OnceLock::new(),
            target_started: Mutex::new(None),
            streamed_anew: Mutex::default(),
            told_waiting: Mutex::default(),
        }
    }

    /// The subscription whose status this is.
    #[must_use]
    pub fn subscription(&self) -> &SubscriptionName {
        &self.subscription
    }

    /// Received, applied and flushed positions; the stages move them.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins an attempt, with positions of its own.
    pub fn set_progress(&self, progress: Arc<Progress>) {
        // What an earlier attempt handed over may have been rolled back.
        self.handed.store(0, Ordering::Relaxed);
        self.part_handed.store(0, Ordering::Relaxed);
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// How many attempts have begun.
    pub(crate) fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }

    /// The first copy's figures, which the copy updates.
    #[must_use]
    pub fn copy(&self) -> &Arc<CopyProgress> {
        &self.copy
    }

    /// The figures of a schema that is brought over.
    #[must_use]
    pub fn schema(&self) -> &Arc<SchemaProgress> {
        &self.schema
    }

    /// The applier's figures, which the applier updates.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// CPU time of receiving the stream, which the pipeline counts.
    pub(crate) fn receive_cpu(&self) -> &CpuTime {
        &self.receive_cpu
    }

    /// The looks that say what limits the pipeline.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The figures of WAL that is decoded here, which decoding updates.
    #[must_use]
    pub fn decoded(&self) -> &Arc<Decoded> {
        &self.decoded
    }

    /// The figures of transactions that wait on this machine's disk.
    pub(crate) fn spooling(&self) -> &Arc<Spooling> {
        &self.spooling
    }

    /// Notes that attempts fail in the same way, or no longer do.
    pub fn set_failing(&self, failing: Option<Failing>) {
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = failing;
    }

    /// How attempts fail at present.
    pub(crate) fn failing(&self) -> Option<Failing> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the tables of `waiting` whose reasons were not logged yet. From now on they count as
    /// logged, in later attempts, too.
    pub(crate) fn newly_waiting<'w>(&self, waiting: &'w [WaitingTable]) -> Vec<&'w WaitingTable> {
        let mut told = self.told_waiting.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|table, _| waiting.iter().any(|waiting| waiting.table == *table));
        let mut is_new = |waiting: &WaitingTable| {
            told.insert(waiting.table.clone(), waiting.reason.clone()).as_ref() != Some(&waiting.reason)
        };
        waiting.iter().filter(|waiting| is_new(waiting)).collect()
    }

    /// The gate that can hold the stream between transactions.
    #[must_use]
    pub fn gate(&self) -> &Arc<SnapshotGate> {
        &self.gate
    }

    /// Sets the phase to `Waiting`, for this reason.
    pub fn set_waiting(&self, pause: Pause) {
        *self.pause.lock().unwrap_or_else(PoisonError::into_inner) = Some(pause);
        self.set_phase(Phase::Waiting);
    }

    /// Sets the phase; [`Status::set_waiting`] sets `Waiting`. Once the pipeline is stopping, it
    /// can only become stopped.
    pub fn set_phase(&self, phase: Phase) {
        if phase == Phase::Starting {
            self.decoded.set_looking(false);
            self.connects.fetch_add(1, Ordering::Relaxed);
        }
        if phase < Phase::Stopping {
            self.streaming.store(phase == Phase::Streaming, Ordering::Relaxed);
        }
        let may_follow = |current: u8| phase as u8 >= current || current < Phase::Stopping as u8;
        let mut current = self.phase.load(Ordering::Relaxed);
        while may_follow(current) {
            // A reader that sees an open stream also sees what the stream has to catch up with.
            let changed =
                self.phase.compare_exchange(current, phase as u8, Ordering::Release, Ordering::Relaxed);
            match changed {
                Ok(_) => break,
                Err(now) => current = now,
            }
        }
    }

    /// What the pipeline is doing.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match Phase::ALL[usize::from(self.phase.load(Ordering::Acquire))] {
            Phase::Streaming if self.is_catching_up() => Phase::CatchingUp,
            phase => phase,
        }
    }

    /// Whether a stream is open, which a stop ends in order.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.streaming.load(Ordering::Relaxed)
    }

    /// Sets `complete`, which completes the commands in errors. It gets the subscription's name and
    /// a message.
    pub fn complete_errors_by(&self, complete: Complete) {
        // The first call counts.
        let _ = self.complete.set(complete);
    }

    /// Records that an attempt ended with `message`, which must not contain row values.
    pub fn record_error(&self, message: impl Into<String>) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let message = match self.complete.get() {
            Some(complete) => complete(self.subscription.as_str(), &message.into()),
            None => message.into(),
        };
        let error = LastError { message, at_unix_ms: PgTimestamp::now().unix_micros() / 1_000 };
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Records that the source's WAL ends at `lsn`. The stream does not say that: a logical
    /// walsender's keepalives and data name what it has decoded, not what the server has written.
    /// So `monitor` asks the server.
    pub fn note_source_end(&self, lsn: Lsn) {
        self.note_source_end_at(lsn, PgTimestamp::now());
    }

    /// Records that a transaction committed at `commit_time` was received as a whole.
    pub fn note_received_commit(&self, commit_time: PgTimestamp) {
        self.received_mark.committed(commit_time);
    }

    /// Records that everything up to `lsn` was handed to the target, which executes it. Its last
    /// transaction committed at `commit_time`.
    pub fn note_handed(&self, lsn: Lsn, commit_time: PgTimestamp) {
        self.handed.fetch_max(lsn.as_u64(), Ordering::Relaxed);
        self.handed_mark.committed(commit_time);
    }

    /// Records that the target was handed a part of the transaction whose commit record is at
    /// `lsn`. The rest of what was received of it is handed over, or is about to be.
    pub fn note_part_handed(&self, lsn: Lsn, commit_time: PgTimestamp) {
        self.part_handed.fetch_max(lsn.as_u64(), Ordering::Relaxed);
        self.handed_mark.committed(commit_time);
    }

    /// Records that the target committed a transaction whose commit time on the source is
    /// `commit_time`.
    pub fn note_applied_commit(&self, commit_time: PgTimestamp) {
        self.applied_mark.committed(commit_time);
        self.counters.set_last_commit_time(commit_time);
    }

    /// The transaction to skip, as `skip --lsn` told this process; [`Lsn::INVALID`] for none. The
    /// target's state is authoritative: a change here is a reason to read it again.
    #[must_use]
    pub fn skip_lsn(&self) -> watch::Receiver<Lsn> {
        self.skip_lsn.subscribe()
    }

    /// Tells the pipeline to skip the transaction whose commit is at `lsn`.
    pub fn request_skip(&self, lsn: Lsn) {
        self.skip_lsn.send_replace(lsn);
    }

    /// Asks for a look at the publication's tables. The answer is the first [`Refresh`] with at
    /// least the returned number.
    pub fn request_refresh(&self) -> u64 {
        self.refresh_asked.send_modify(|number| *number += 1);
        *self.refresh_asked.borrow()
    }

    /// Changes when somebody asks for a look at the publication's tables.
    #[must_use]
    pub fn refresh_asked(&self) -> watch::Receiver<u64> {
        self.refresh_asked.subscribe()
    }

    /// Stores the result of a look at the publication's tables.
    pub fn set_refresh(&self, refresh: Refresh) {
        *self.refresh.lock().unwrap_or_else(PoisonError::into_inner) = Some(refresh);
    }

    /// Notes tables for which the stream starts again. Returns whether it has not yet done so for
    /// one of them.
    pub(crate) fn streams_anew_for(&self, tables: impl IntoIterator<Item = Oid>) -> bool {
        let mut known = self.streamed_anew.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.len();
        known.extend(tables);
        known.len() > before
    }

    /// The reverse, for a table that is forgotten.
    pub(crate) fn leaves_stream(&self, table: Option<Oid>) {
        let mut known = self.streamed_anew.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| Some(*known) != table);
    }

    /// Stores the result of a look at the partitions of published roots, beside the last
    /// [`Status::set_refresh`].
    pub(crate) fn set_partitions(&self, partitions: Vec<DifferingPartition>) {
        if let Some(refresh) = &mut *self.refresh.lock().unwrap_or_else(PoisonError::into_inner) {
            refresh.partitions = partitions;
        }
    }

    /// Stores the form in which the values of a stream come.
    pub(crate) fn set_values(&self, values: ValuesSnapshot) {
        self.form.set(values);
    }

    fn values(&self) -> Option<ValuesSnapshot> {
        self.form.get()
    }

    /// How many tables are replicated, and whether one is being copied while the others go on.
    pub(crate) fn tables(&self) -> (u64, bool) {
        let refresh = self.refresh.lock().unwrap_or_else(PoisonError::into_inner);
        refresh.as_ref().map_or((0, false), |refresh| (refresh.joined, !refresh.joining.is_empty()))
    }

    /// Deletions of the target are remembered from now on.
    pub(crate) fn set_retention(&self, retention: Arc<Retention>) {
        // A process begins that once for each subscription.
        let _ = self.retention.set(retention);
    }

    /// The stream is applied to the server that was started then.
    pub(crate) fn set_target_started(&self, started: PgTimestamp) {
        *self.target_started.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
    }

    /// When the server was started to which the stream is applied.
    pub(crate) fn target_started(&self) -> Option<PgTimestamp> {
        *self.target_started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered of the target's deletions; `None` if nothing is.
    pub(crate) fn retention(&self) -> Option<&Arc<Retention>> {
        self.retention.get()
    }

    fn refresh(&self) -> Option<Refresh> {
        self.refresh.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// [`Status::note_source_end`] with the caller's clock.
    fn note_source_end_at(&self, lsn: Lsn, now: PgTimestamp) {
        // A stage that has reached the previous answer was level when that answer was given.
        let previous = self.source_end.load(Ordering::Relaxed);
        let heard_at = self.source_heard_at.load(Ordering::Relaxed);
        if previous != 0 {
            let seen = self.progress().snapshot();
            let handed = seen.applied.as_u64().max(self.handed.load(Ordering::Relaxed));
            let stages = [
                (seen.received.as_u64(), &self.received_mark),
                (handed, &self.handed_mark),
                (seen.applied.as_u64(), &self.applied_mark),
                (seen.flushed.as_u64(), &self.flushed_mark),
            ];
            for (position, mark) in stages {
                if position >= previous {
                    mark.level_at(heard_at);
                }
            }
        }
        self.probe_flush();
        self.source_end.fetch_max(lsn.as_u64(), Ordering::Relaxed);
        self.source_heard_at.fetch_max(now.0, Ordering::Relaxed);
    }

    /// No stage reports when a commit became durable. So this remembers one applied commit at a
    /// time; once the flushed position has passed it, it was flushed.
    fn probe_flush(&self) {
        let seen = self.progress().snapshot();
        let mut probe = self.flush_probe.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((lsn, commit_time)) = *probe {
            if seen.flushed < lsn {
                return;
            }
            self.flushed_mark.committed(commit_time);
        }
        // Reads the position after the time. The time is then that of a commit at or before the
        // position, so the age is never understated.
        let commit_time = self.applied_mark.commit.load(Ordering::Relaxed);
        *probe =
            (commit_time != i64::MIN).then(|| (self.progress().snapshot().applied, PgTimestamp(commit_time)));
    }
}

#[cfg(test)]
mod tests;
