//! What the executors of one target have in common: figures, experience, and
//! how far the target is.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::crash_phases::{self, Phase};
use base::{Lsn, Progress};

use crate::batch::{Digest, End, Tally};
use crate::counters::{Counters, add};
use crate::fit::Fit;
use crate::reach::Reach;

/// See the module.
pub(crate) struct Shared {
    pub(crate) counters: Arc<Counters>,
    progress: Arc<Progress>,
    /// How large a set is tried.
    fit: Mutex<Fit>,
    /// The same, for the planner.
    fitting: Arc<AtomicUsize>,
    /// The position that the last target transaction stored.
    stored: AtomicU64,
    /// What one costs of the transactions that each stay one.
    pub(crate) kept: Arc<Kept>,
    /// How far the target is, where transactions commit out of order.
    reach: Option<Mutex<Reach>>,
    /// Tells the planner that a table of the target has changed.
    tables_changed: Arc<AtomicBool>,
}

/// What a transaction costs that stays one, when many are sent to one session behind one another.
#[derive(Default)]
pub(crate) struct Kept {
    /// Nanoseconds each, when it was last known.
    each: AtomicU64,
    /// Those that came since.
    since: Mutex<(usize, Duration)>,
}

/// One that takes longer waits for the target's storage or locks more than for us: several sessions, for each of which
/// it takes about as much more, are faster than one.
const KEPT_SLOW: Duration = Duration::from_micros(500);

/// Of fewer it is not known what one of them costs.
const KEPT_MEASURED: usize = 16;

impl Kept {
    /// So many took so long.
    pub(crate) fn took(&self, transactions: usize, time: Duration) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = (since.0 + transactions, since.1 + time);
        if since.0 >= KEPT_MEASURED {
            let (transactions, time) = std::mem::take(&mut *since);
            let each = time.as_nanos() / transactions as u128;
            self.each.store(u64::try_from(each).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Whether they are so slow that several sessions had better execute them.
    pub(crate) fn is_slow(&self) -> bool {
        Duration::from_nanos(self.each.load(Ordering::Relaxed)) > KEPT_SLOW
    }
}

impl Shared {
    pub(crate) fn new(counters: Arc<Counters>, progress: Arc<Progress>) -> Shared {
        Shared {
            counters,
            progress,
            fit: Mutex::new(Fit::new()),
            fitting: Arc::new(AtomicUsize::new(usize::MAX)),
            stored: AtomicU64::new(0),
            kept: Arc::default(),
            reach: None,
            tables_changed: Arc::default(),
        }
    }

    /// The same where transactions commit out of order, behind `prefix`.
    pub(crate) fn relaxed(self, prefix: Lsn) -> Shared {
        Shared { reach: Some(Mutex::new(Reach::new(prefix))), ..self }
    }

    /// The same; `changed` hears of tables that have changed.
    pub(crate) fn telling(self, changed: Arc<AtomicBool>) -> Shared {
        Shared { tables_changed: changed, ..self }
    }

    /// A table of the target has changed.
    pub(crate) fn table_changed(&self) {
        self.tables_changed.store(true, Ordering::Relaxed);
    }

    /// Whether they do.
    pub(crate) fn is_relaxed(&self) -> bool {
        self.reach.is_some()
    }

    fn reach(&self) -> Option<MutexGuard<'_, Reach>> {
        self.reach.as_ref().map(|reach| reach.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What ends here was taken in, to be applied.
    pub(crate) fn handed(&self, end: Lsn) {
        if let Some(mut reach) = self.reach() {
            reach.handed(end);
        }
    }

    /// Before here everything is on the target, and was acknowledged.
    pub(crate) fn stored(&self) -> Lsn {
        self.reach().map_or_else(|| Lsn::new(self.stored.load(Ordering::Relaxed)), |reach| reach.prefix())
    }

    /// A target transaction was committed that holds what the stream has from
    /// `since` to `end`.
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

    /// Reports how far the target is behind a commit that ends with `end`.
    pub(crate) fn report(&self, end: &End) {
        let (applied, time) = match self.reach() {
            None => (end.commit.end_lsn, Some(end.commit.commit_time)),
            Some(reach) => (reach.applied(), reach.time()),
        };
        time.into_iter().for_each(|time| self.counters.set_last_commit_time(time));
        self.progress.advance_applied(applied);
    }

    /// Counts and reports what was committed, of which `tally` says what it did.
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

    /// How many transactions fit as one set, as far as experience goes.
    pub(crate) fn fitting(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.fitting)
    }

    pub(crate) fn fit(&self) -> MutexGuard<'_, Fit> {
        self.fit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing of what came before `lsn` is for this target.
    pub(crate) fn caught_up(&self, lsn: Lsn) {
        let applied = self.reach().map_or(lsn, |mut reach| {
            reach.caught_up(lsn);
            reach.applied()
        });
        self.progress.advance_applied(applied);
    }

    /// A chunk is done.
    pub(crate) fn done(&self, bytes: usize) {
        self.fitting.store(self.fit().transactions(), Ordering::Relaxed);
        self.counters.queued_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_slow_by_what_many_took() {
        let kept = Kept::default();
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
