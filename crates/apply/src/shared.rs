//! What the executors of one target have in common: figures, experience, and
//! how far the target is.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Lsn, Progress};

use crate::batch::End;
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
    /// How far the target is, where transactions commit out of order.
    reach: Option<Mutex<Reach>>,
}

impl Shared {
    pub(crate) fn new(counters: Arc<Counters>, progress: Arc<Progress>) -> Shared {
        Shared {
            counters,
            progress,
            fit: Mutex::new(Fit::new()),
            fitting: Arc::new(AtomicUsize::new(usize::MAX)),
            stored: AtomicU64::new(0),
            reach: None,
        }
    }

    /// The same where transactions commit out of order, behind `prefix`.
    pub(crate) fn relaxed(self, prefix: Lsn) -> Shared {
        Shared { reach: Some(Mutex::new(Reach::new(prefix))), ..self }
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
