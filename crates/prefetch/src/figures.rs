//! What prefetching has done so far, for `status`, metrics and the log.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use base::PgTimestamp;

/// After this time without a look-up that had to read, the needed pages count as being in memory.
const READING_MICROS: i64 = 10_000_000;

/// Counts since the process started; no decision depends on them.
#[derive(Debug, Default)]
pub struct PrefetchFigures {
    /// Connected sessions.
    pub workers: AtomicUsize,
    /// Rows looked up, counted once for each look-up that they needed.
    pub rows: AtomicU64,
    /// Pages that the look-ups asked for.
    pub blocks_fetched: AtomicU64,
    /// How many of these pages were in the target's shared buffers.
    pub blocks_hit: AtomicU64,
    /// Rows not looked up, because the applier was first or too many waited.
    pub dropped: AtomicU64,
    /// When a look-up last had to read.
    read_at: AtomicI64,
    mode: Mutex<Option<&'static str>>,
    trouble: Mutex<Option<String>>,
}

impl PrefetchFigures {
    /// `identity` or `all`; `None` if prefetching is off.
    #[must_use]
    pub fn mode(&self) -> Option<&'static str> {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_mode(&self, mode: Option<&'static str>) {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    /// Why prefetching cannot work at present.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Whether look-ups had to read recently. Otherwise the pages that they want are probably in
    /// memory.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        let read_at = self.read_at.load(Ordering::Relaxed);
        read_at != 0 && PgTimestamp::now().0 - read_at < READING_MICROS
    }

    pub(crate) fn note_reading(&self) {
        self.read_at.store(PgTimestamp::now().0, Ordering::Relaxed);
    }
}

/// Adds `n` to a figure.
pub(crate) fn add(figure: &AtomicU64, n: u64) {
    figure.fetch_add(n, Ordering::Relaxed);
}
