//! What a pipeline is doing, for `status`, metrics and progress bars.
//!
//! Every stage updates its own figures as it goes: relaxed atomics, because
//! nothing is decided by them. A reader takes a [`Snapshot`], which is also
//! the documented JSON form of `pgsluice status --json`.
//!
//! ## Lag
//! A transaction passes four positions of the source's WAL, each at or behind
//! the one before:
//!
//! ```text
//! source_end   >=  received   >=  handed       >=  applied      >=  flushed
//!         receive lag     queue lag      apply lag       flush lag
//! ```
//!
//! The four lags in bytes are the distances between neighbours and so add up
//! to the whole. Of a transaction that is handed over in parts, what was
//! received counts as handed. A lag in seconds is the age of the oldest transaction that
//! has not passed the stage: now less the source's commit time of the last
//! one that has, and 0 when the stage has nothing before it. After a quiet
//! hour the last commit is an hour old although nothing waited; so the moment
//! at which the stage was last seen level counts like a commit. Commit times
//! are the source's clock, now is ours.
//!
//! While the source is not connected nobody knows how far it is: the bytes
//! stay as last told, the seconds of the receive lag grow from the last word.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apply::{Counters, Gate};
use base::{Lsn, PgTimestamp, Progress, SubscriptionName};
use copy::CopyProgress;
use schema::SchemaProgress;
use tokio::sync::watch;

mod consistency;
use crate::spooling::Spooling;
mod decoded;
mod form;
mod snapshot;
mod standstill;
mod waits;

use consistency::Consistency;
pub use consistency::{AwaitedTable, CatchingUp};
pub use decoded::{Decoded, DecodedSnapshot};
pub use form::ValuesSnapshot;
pub use snapshot::{
    BuildingSnapshot, CopySnapshot, DifferingPartition, Failing, Lag, LagFigures, LastError,
    PrefetchSnapshot, Refresh, SchemaSnapshot, Snapshot, TableSnapshot, Totals, WaitingTable,
};
pub use standstill::Blocked;
pub(crate) use standstill::{Motion, Standstill};
pub use waits::WaitsFor;
pub(crate) use waits::{Look, read_statement};

/// What the pipeline is doing.
///
/// ```text
/// Starting --both ends known--> Copying --a new schema--> Indexing --all tables joined--> CatchingUp <----> Streaming
///    ^                              |                        |                               |                |
///    +----- interval over ----- Waiting <---------------- an error --------------------------+----------------+
/// any --asked to stop--> Stopping --> Stopped
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Connecting and looking at both ends.
    Starting,
    /// The first copy; changes of finished tables may already flow.
    Copying,
    /// What of a new schema is created after the copy.
    Indexing,
    /// Changes of all tables flow, and some tables are ahead of others still; a stream is in this phase by itself, nobody sets it.
    CatchingUp,
    /// Every state of the target is one of the source's.
    Streaming,
    /// Waiting before the next attempt after an error.
    Waiting,
    /// Asked to stop; the batch in hand is finished or rolled back.
    Stopping,
    /// Ended.
    Stopped,
}

impl Phase {
    /// Every phase, in the order of their numbers.
    pub const ALL: [Phase; 8] = [
        Phase::Starting,
        Phase::Copying,
        Phase::Indexing,
        Phase::CatchingUp,
        Phase::Streaming,
        Phase::Waiting,
        Phase::Stopping,
        Phase::Stopped,
    ];

    /// The word in status, metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Copying => "copying",
            Phase::Indexing => "indexing",
            Phase::CatchingUp => "catching up to consistency",
            Phase::Streaming => "streaming",
            Phase::Waiting => "waiting",
            Phase::Stopping => "stopping",
            Phase::Stopped => "stopped",
        }
    }
}

/// A stage's most recent commit and when it was last seen with nothing before
/// it; microseconds since 2000-01-01, `i64::MIN` for never.
#[derive(Debug)]
struct Mark {
    commit: AtomicI64,
    level: AtomicI64,
}

/// Shared by every stage of one pipeline.
#[derive(Debug)]
pub struct Status {
    subscription: SubscriptionName,
    started_at: PgTimestamp,
    phase: AtomicU8,
    streaming: AtomicBool,
    /// Each attempt has its own: positions only move forward, but after a
    /// crash of the target less may be applied than was.
    progress: Mutex<Arc<Progress>>,
    copy: Arc<CopyProgress>,
    schema: Arc<SchemaProgress>,
    counters: Arc<Counters>,
    gate: Arc<Gate>,
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
    form: form::Form,
    decoded: Arc<Decoded>,
    consistency: Consistency,
    /// A transaction of which a part was handed over; see [`Counters::last_part_handed`].
    part_handed: AtomicU64,
    spooling: Arc<Spooling>,
    /// The source's catalogs are looked at, which waits for transactions.
    looking: AtomicBool,
    /// Attempts that fail alike.
    failing: Mutex<Option<Failing>>,
    /// Why tables wait, as the log was told.
    told_waiting: Mutex<BTreeMap<String, String>>,
}

impl Mark {
    const fn new() -> Self {
        Mark { commit: AtomicI64::new(i64::MIN), level: AtomicI64::new(i64::MIN) }
    }

    fn committed(&self, time: PgTimestamp) {
        self.commit.fetch_max(time.0, Ordering::Relaxed);
    }

    fn level_at(&self, time: i64) {
        self.level.fetch_max(time, Ordering::Relaxed);
    }

    /// The age at `now` of the oldest transaction that may not have passed;
    /// nothing if none has passed and the stage was never level.
    fn age(&self, now: PgTimestamp) -> Option<f64> {
        let passed = self.commit.load(Ordering::Relaxed).max(self.level.load(Ordering::Relaxed));
        (passed != i64::MIN).then(|| (now.0.saturating_sub(passed)).max(0) as f64 / 1e6)
    }
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
            form: form::Form::default(),
            decoded: Arc::default(),
            consistency: Consistency::default(),
            part_handed: AtomicU64::new(0),
            spooling: Arc::default(),
            looking: AtomicBool::new(false),
            failing: Mutex::default(),
            told_waiting: Mutex::default(),
        }
    }

    /// Whose status this is.
    #[must_use]
    pub fn subscription(&self) -> &SubscriptionName {
        &self.subscription
    }

    /// Received, applied and flushed positions; the stages move them.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// An attempt begins, with positions of its own.
    pub fn set_progress(&self, progress: Arc<Progress>) {
        // What an earlier one handed over may have been rolled back.
        self.handed.store(0, Ordering::Relaxed);
        self.part_handed.store(0, Ordering::Relaxed);
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// The first copy's figures; the copy moves them.
    #[must_use]
    pub fn copy(&self) -> &Arc<CopyProgress> {
        &self.copy
    }

    /// Figures of a schema that is brought over.
    #[must_use]
    pub fn schema(&self) -> &Arc<SchemaProgress> {
        &self.schema
    }

    /// The applier's figures; the applier moves them.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Of WAL that is decoded here; what decodes it moves the figures.
    #[must_use]
    pub fn decoded(&self) -> &Arc<Decoded> {
        &self.decoded
    }

    /// Of transactions that wait on this machine's disk.
    pub(crate) fn spooling(&self) -> &Arc<Spooling> {
        &self.spooling
    }

    /// The source's catalogs are looked at, or not any more.
    pub(crate) fn set_looking(&self, looking: bool) {
        self.looking.store(looking, Ordering::Relaxed);
    }

    /// Whether they are.
    pub(crate) fn is_looking(&self) -> bool {
        self.looking.load(Ordering::Relaxed)
    }

    /// Attempts fail alike, or none does any more.
    pub fn set_failing(&self, failing: Option<Failing>) {
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = failing;
    }

    /// How attempts fail at present.
    pub(crate) fn failing(&self) -> Option<Failing> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those of `waiting` whose reason the log has not been told. They count as told from now on, whatever attempt asks.
    pub(crate) fn newly_waiting<'w>(&self, waiting: &'w [WaitingTable]) -> Vec<&'w WaitingTable> {
        let mut told = self.told_waiting.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|table, _| waiting.iter().any(|waiting| waiting.table == *table));
        let mut is_new = |waiting: &WaitingTable| {
            told.insert(waiting.table.clone(), waiting.reason.clone()).as_ref() != Some(&waiting.reason)
        };
        waiting.iter().filter(|waiting| is_new(waiting)).collect()
    }

    /// Where the stream can be held between transactions.
    #[must_use]
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The pipeline is now in `phase`. Once stopping it only becomes stopped.
    pub fn set_phase(&self, phase: Phase) {
        if phase == Phase::Starting {
            self.set_looking(false);
            self.connects.fetch_add(1, Ordering::Relaxed);
        }
        if phase < Phase::Stopping {
            self.streaming.store(phase == Phase::Streaming, Ordering::Relaxed);
        }
        let may_follow = |current: u8| phase as u8 >= current || current < Phase::Stopping as u8;
        let mut current = self.phase.load(Ordering::Relaxed);
        while may_follow(current) {
            // Who sees that a stream is open sees what it has to catch up with, too.
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

    /// From now on commands in errors are completed by `complete`, which gets the subscription's name and a message.
    pub fn complete_errors_by(&self, complete: Complete) {
        // The first one counts.
        let _ = self.complete.set(complete);
    }

    /// An attempt ended with `message`, which must not contain row values.
    pub fn record_error(&self, message: impl Into<String>) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let message = match self.complete.get() {
            Some(complete) => complete(self.subscription.as_str(), &message.into()),
            None => message.into(),
        };
        let error = LastError { message, at_unix_ms: PgTimestamp::now().unix_micros() / 1_000 };
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// The source's WAL ends at `lsn`. The stream does not tell: a logical
    /// walsender's keepalives and data name what it has decoded, not what the
    /// server has written, so `monitor` asks the server.
    pub fn note_source_end(&self, lsn: Lsn) {
        self.note_source_end_at(lsn, PgTimestamp::now());
    }

    /// A transaction committed at `commit_time` was received whole.
    pub fn note_received_commit(&self, commit_time: PgTimestamp) {
        self.received_mark.committed(commit_time);
    }

    /// Everything up to `lsn`, the last of it committed at `commit_time`, was
    /// handed to the target: it is being executed.
    pub fn note_handed(&self, lsn: Lsn, commit_time: PgTimestamp) {
        self.handed.fetch_max(lsn.as_u64(), Ordering::Relaxed);
        self.handed_mark.committed(commit_time);
    }

    /// A part was handed to the target of the transaction whose commit record is at `lsn`. All that was received of it
    /// is handed over, or is about to be.
    pub fn note_part_handed(&self, lsn: Lsn, commit_time: PgTimestamp) {
        self.part_handed.fetch_max(lsn.as_u64(), Ordering::Relaxed);
        self.handed_mark.committed(commit_time);
    }

    /// A transaction committed at `commit_time` on the source is committed on
    /// the target.
    pub fn note_applied_commit(&self, commit_time: PgTimestamp) {
        self.applied_mark.committed(commit_time);
        self.counters.set_last_commit_time(commit_time);
    }

    /// The transaction to be skipped, as `skip --lsn` told this process;
    /// [`Lsn::INVALID`] for none. The target's state has the truth: a change
    /// here says that it is time to read it again.
    #[must_use]
    pub fn skip_lsn(&self) -> watch::Receiver<Lsn> {
        self.skip_lsn.subscribe()
    }

    /// Tells the pipeline to skip the transaction whose commit is at `lsn`.
    pub fn request_skip(&self, lsn: Lsn) {
        self.skip_lsn.send_replace(lsn);
    }

    /// Asks for a look at the publication's tables; the answer is the first
    /// [`Refresh`] with at least the number that is returned.
    pub fn request_refresh(&self) -> u64 {
        self.refresh_asked.send_modify(|number| *number += 1);
        *self.refresh_asked.borrow()
    }

    /// Changes when somebody asks for a look at the publication's tables.
    #[must_use]
    pub fn refresh_asked(&self) -> watch::Receiver<u64> {
        self.refresh_asked.subscribe()
    }

    /// What a look at the publication's tables found.
    pub fn set_refresh(&self, refresh: Refresh) {
        *self.refresh.lock().unwrap_or_else(PoisonError::into_inner) = Some(refresh);
    }

    /// What a look at the partitions of published roots found, beside the last [`Status::set_refresh`].
    pub(crate) fn set_partitions(&self, partitions: Vec<DifferingPartition>) {
        if let Some(refresh) = &mut *self.refresh.lock().unwrap_or_else(PoisonError::into_inner) {
            refresh.partitions = partitions;
        }
    }

    fn refresh(&self) -> Option<Refresh> {
        self.refresh.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// [`Status::note_source_end`] with a clock of the caller's.
    fn note_source_end_at(&self, lsn: Lsn, now: PgTimestamp) {
        // What was level with the previous word was level when it was given.
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

    /// Nobody tells when a commit became durable. Remember one applied commit
    /// at a time; once the flushed position has passed it, it was flushed.
    fn probe_flush(&self) {
        let seen = self.progress().snapshot();
        let mut probe = self.flush_probe.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((lsn, commit_time)) = *probe {
            if seen.flushed < lsn {
                return;
            }
            self.flushed_mark.committed(commit_time);
        }
        // Position after time: the time is then that of a commit at or before
        // the position, so the age is never understated.
        let commit_time = self.applied_mark.commit.load(Ordering::Relaxed);
        *probe =
            (commit_time != i64::MIN).then(|| (self.progress().snapshot().applied, PgTimestamp(commit_time)));
    }
}

#[cfg(test)]
mod tests;
