//! What the applier has done so far, for `status` and metrics.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use std::sync::{Arc, Mutex, PoisonError};

use base::{Lsn, PgTimestamp};
use conflict::{ConflictCounters, ConflictType};
use cpu_time::CpuTime;
use prefetch::PrefetchFigures;

use crate::activity::Activity;
use crate::clock_figures::ClockFigures;
use crate::conflict_log::ConflictLog;

/// Counts since the process started. They are relaxed, because no decision depends on them.
#[derive(Debug, Default)]
pub struct Counters {
    /// Rows inserted, updated and deleted as the source did it (before
    /// folding), so that the sum is comparable with the source's.
    pub inserts: AtomicU64,
    /// See `inserts`.
    pub updates: AtomicU64,
    /// See `inserts`.
    pub deletes: AtomicU64,
    /// Tables truncated.
    pub truncates: AtomicU64,
    /// Source transactions committed on the target.
    pub transactions: AtomicU64,
    /// Source transactions skipped by `skip --lsn`.
    pub skipped_transactions: AtomicU64,
    /// Target transactions committed.
    pub batches: AtomicU64,
    /// Rows written after folding.
    pub rows_written: AtomicU64,
    /// Chunks rolled back and applied again one change at a time.
    pub replays: AtomicU64,
    /// Statements that ran away and were planned anew.
    pub replanned: AtomicU64,
    /// Chunks of which a part was executed before their turn to commit came.
    pub ahead: AtomicU64,
    /// Chunks that failed when they were executed so early, and large transactions that were rolled
    /// back for a chunk before them. Both were executed again.
    pub ahead_void: AtomicU64,
    /// Target transactions that were committed before an earlier one
    /// (`commit_order = relaxed`).
    pub out_of_order: AtomicU64,
    /// Attempts that ended in an error.
    pub errors: AtomicU64,
    /// Conflicts by type.
    pub conflicts: ConflictCounters,
    /// The conflict that was the last error: the commit record of its transaction, its type and its
    /// table.
    refused: Mutex<Option<(Lsn, ConflictType, String)>>,
    /// Counts of prefetching.
    pub prefetch: Arc<PrefetchFigures>,
    /// Bytes of changes received and not yet committed.
    pub queued_bytes: AtomicU64,
    /// Whether the target has a chunk in hand, so that the applier waits for its answer.
    pub executing: AtomicBool,
    /// CPU time of what plans statements.
    pub plan_cpu: CpuTime,
    /// CPU time of what executes them, of all sessions.
    pub write_cpu: CpuTime,
    /// The work that the sessions that apply have in hand.
    pub activity: Activity,
    /// Transactions that are held until the target's clock has passed their commit time.
    pub clock: ClockFigures,
    /// The log of conflicts that stop nothing.
    pub conflict_log: ConflictLog,
    /// Source commit time of the last transaction applied, microseconds
    /// since 2000-01-01; zero before the first.
    last_commit_time: AtomicI64,
    handed: AtomicU64,
    handed_commit_time: AtomicI64,
    /// Of a transaction that was handed over only in part.
    part: AtomicU64,
    part_commit_time: AtomicI64,
}

impl Counters {
    /// Notes that a transaction committed at `time` on the source is now on the target.
    pub fn set_last_commit_time(&self, time: PgTimestamp) {
        self.last_commit_time.store(time.0, Ordering::Relaxed);
    }

    /// Notes that everything up to `lsn` was handed to the target.
    pub(crate) fn set_handed(&self, lsn: Lsn, time: PgTimestamp) {
        self.handed.store(lsn.as_u64(), Ordering::Relaxed);
        self.handed_commit_time.store(time.0, Ordering::Relaxed);
    }

    /// Counts a conflict that is an error, once however often its transaction is tried. Returns
    /// whether this was the time.
    pub(crate) fn refused(&self, finished_at: Lsn, kind: ConflictType, relation: &str) -> bool {
        let this = Some((finished_at, kind, relation.to_owned()));
        let mut last = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *last != this;
        if is_new {
            self.conflicts.add(kind);
            *last = this;
        }
        is_new
    }

    /// Begins an attempt, in which nothing was handed over yet.
    pub(crate) fn begin(&self) {
        self.queued_bytes.store(0, Ordering::Relaxed);
        self.executing.store(false, Ordering::Relaxed);
        self.handed.store(0, Ordering::Relaxed);
        self.part.store(0, Ordering::Relaxed);
        self.clock.begin();
    }

    /// Notes that a part was handed to the target, of the transaction whose commit record is at
    /// `lsn`.
    pub(crate) fn set_part_handed(&self, lsn: Lsn, time: PgTimestamp) {
        self.part.store(lsn.as_u64(), Ordering::Relaxed);
        self.part_commit_time.store(time.0, Ordering::Relaxed);
    }

    /// The commit record and the commit time of the last transaction that was handed over in part
    /// before its end, if there was one. Everything received of it was handed over, or is about to
    /// be.
    #[must_use]
    pub fn last_part_handed(&self) -> Option<(Lsn, PgTimestamp)> {
        let lsn = Lsn::new(self.part.load(Ordering::Relaxed));
        lsn.is_valid().then(|| (lsn, PgTimestamp(self.part_commit_time.load(Ordering::Relaxed))))
    }

    /// The end and the commit time of the last transaction that was handed to
    /// the target, if there was one.
    #[must_use]
    pub fn last_handed(&self) -> Option<(Lsn, PgTimestamp)> {
        let lsn = Lsn::new(self.handed.load(Ordering::Relaxed));
        lsn.is_valid().then(|| (lsn, PgTimestamp(self.handed_commit_time.load(Ordering::Relaxed))))
    }

    /// Source commit time of the last transaction applied, if there was one.
    #[must_use]
    pub fn last_commit_time(&self) -> Option<PgTimestamp> {
        match self.last_commit_time.load(Ordering::Relaxed) {
            0 => None,
            time => Some(PgTimestamp(time)),
        }
    }
}

/// Adds `n` to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
