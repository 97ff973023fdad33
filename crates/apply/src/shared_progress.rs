//! What the executors of one target share: counters, experience, and the target's position.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::crash_phases::{self, Phase};
use base::{Lsn, Progress};
use plan::{Digest, End, Tally};
use schedule::RangeTracker;

use crate::counters::{Counters, add};
use crate::expecting::Expecting;
use crate::set_size::SetSize;

/// Counters, experience and position of one target; the module explains it.
pub(crate) struct SharedProgress {
    pub(crate) counters: Arc<Counters>,
    progress: Arc<Progress>,
    /// The size of the sets to try.
    set_size: Mutex<SetSize>,
    /// The same size in transactions, for the planner.
    fitting: Arc<AtomicUsize>,
    /// The position that the last target transaction stored.
    stored: AtomicU64,
    /// The cost of transactions that each stay one (`keep_transactions`).
    pub(crate) kept: Arc<PerTransactionCost>,
    /// Whether the next chunk may meet conflicts.
    pub(crate) expecting: Expecting,
    /// The target's position where transactions commit out of order.
    reach: Option<Mutex<RangeTracker>>,
    /// Tells the planner that a table of the target has changed.
    tables_changed: Arc<AtomicBool>,
}

/// The cost of a transaction that stays one, when many are sent to one session without waiting
/// between them.
#[derive(Default)]
pub(crate) struct PerTransactionCost {
    /// Nanoseconds for each transaction, as measured last.
    each: AtomicU64,
    /// Number and time of the transactions since that measurement.
    since: Mutex<(usize, Duration)>,
}

/// A slower transaction waits for the target's storage or locks more than for us. Then several
/// sessions are faster than one, although each of them adds about this much to a transaction.
const KEPT_SLOW: Duration = Duration::from_micros(500);

/// Number of transactions in one measurement; fewer prove nothing.
const KEPT_MEASURED: usize = 16;

impl PerTransactionCost {
    /// Notes that this many transactions took `time` together.
    pub(crate) fn took(&self, transactions: usize, time: Duration) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = (since.0 + transactions, since.1 + time);
        if since.0 >= KEPT_MEASURED {
            let (transactions, time) = std::mem::take(&mut *since);
            let each = time.as_nanos() / transactions as u128;
            self.each.store(u64::try_from(each).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Whether the transactions are so slow that several sessions should execute them.
    pub(crate) fn is_slow(&self) -> bool {
        Duration::from_nanos(self.each.load(Ordering::Relaxed)) > KEPT_SLOW
    }
}

impl SharedProgress {
    pub(crate) fn new(counters: Arc<Counters>, progress: Arc<Progress>) -> SharedProgress {
        SharedProgress {
            counters,
            progress,
            set_size: Mutex::new(SetSize::new()),
            fitting: Arc::new(AtomicUsize::new(usize::MAX)),
            stored: AtomicU64::new(0),
            kept: Arc::default(),
            expecting: Expecting::default(),
            reach: None,
            tables_changed: Arc::default(),
        }
    }

    /// Makes it for transactions that commit out of order, behind `prefix`.
    pub(crate) fn relaxed(self, prefix: Lsn) -> SharedProgress {
        SharedProgress { reach: Some(Mutex::new(RangeTracker::new(prefix))), ..self }
    }

    /// Makes it set `changed` when a table of the target has changed.
    pub(crate) fn telling(self, changed: Arc<AtomicBool>) -> SharedProgress {
        SharedProgress { tables_changed: changed, ..self }
    }

    /// Notes that a table of the target has changed.
    pub(crate) fn table_changed(&self) {
        self.tables_changed.store(true, Ordering::Relaxed);
    }

    /// Whether transactions commit out of order.
    pub(crate) fn is_relaxed(&self) -> bool {
        self.reach.is_some()
    }

    fn reach(&self) -> Option<MutexGuard<'_, RangeTracker>> {
        self.reach.as_ref().map(|reach| reach.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that work up to `end` was accepted, to be applied.
    pub(crate) fn handed(&self, end: Lsn) {
        if let Some(mut reach) = self.reach() {
            reach.handed(end);
        }
    }

    /// The target has everything before this position, and acknowledged it.
    pub(crate) fn stored(&self) -> Lsn {
        self.reach().map_or_else(|| Lsn::new(self.stored.load(Ordering::Relaxed)), |reach| reach.prefix())
    }

    /// Notes the commit of a target transaction that holds the stream from `since` to `end`.
    pub(crate) fn store(&self, since: Lsn, end: &End) {
        let to = end.commit.end_lsn;
        match self.reach() {
            None => self.stored.store(to.as_u64(), Ordering::Relaxed),
            Some(mut reach) => {
                if reach.committed(since, to, end.commit.commit_time) {
                    add(&self.counters.out_of_order, 1);
                }
            }
        }
    }

    /// Reports the target's position after a commit that ends with `end`.
    pub(crate) fn report(&self, end: &End) {
        let (applied, time) = match self.reach() {
            None => (end.commit.end_lsn, Some(end.commit.commit_time)),
            Some(reach) => (reach.applied(), reach.time()),
        };
        time.into_iter().for_each(|time| self.counters.set_last_commit_time(time));
        self.progress.advance_applied(applied);
    }

    /// Counts and reports a commit; `tally` counts its changes.
    pub(crate) fn committed(&self, tally: Tally, digest: &Digest) {
        let counters = &self.counters;
        add(&counters.inserts, tally.inserts);
        add(&counters.updates, tally.updates);
        add(&counters.deletes, tally.deletes);
        add(&counters.truncates, tally.truncates);
        add(&counters.rows_written, tally.written);
        add(&counters.batches, 1);
        add(&counters.skipped_transactions, digest.skipped);
        add(&counters.transactions, digest.transactions as u64 - digest.skipped);
        crash_phases::set(Phase::Unreported, true);
        if let Some(end) = &digest.last {
            self.report(end);
        }
    }

    /// How many transactions fit in one set, by experience.
    pub(crate) fn fitting(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.fitting)
    }

    pub(crate) fn set_size(&self) -> MutexGuard<'_, SetSize> {
        self.set_size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a plain set of these transactions met what it expected.
    pub(crate) fn fitted(&self, transactions: usize) {
        self.set_size().fitted(transactions);
        self.expecting.met(false);
    }

    /// Notes that no change before `lsn` is left for this target.
    pub(crate) fn caught_up(&self, lsn: Lsn) {
        let applied = self.reach().map_or(lsn, |mut reach| {
            reach.caught_up(lsn);
            reach.applied()
        });
        self.progress.advance_applied(applied);
    }

    /// Notes that a chunk is done.
    pub(crate) fn done(&self, bytes: usize) {
        self.fitting.store(self.set_size().transactions(), Ordering::Relaxed);
        self.counters.queued_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_slow_by_what_many_took() {
        let kept = PerTransactionCost::default();
        assert!(!kept.is_slow(), "nothing is known");
        kept.took(KEPT_MEASURED - 1, Duration::from_secs(1));
        assert!(!kept.is_slow(), "too few");
        kept.took(1, Duration::ZERO);
        assert!(kept.is_slow(), "together they are enough");
        kept.took(100, Duration::from_millis(49));
        assert!(!kept.is_slow());
        kept.took(100, Duration::from_millis(51));
        assert!(kept.is_slow());
        kept.took(100, Duration::from_millis(49));
        assert!(!kept.is_slow());
    }
}
