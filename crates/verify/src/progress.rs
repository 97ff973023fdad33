//! The progress of a comparison, for a person who watches.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Figures of one comparison; any task may read them.
#[derive(Debug, Default)]
pub struct Progress {
    pub(crate) tables: AtomicU64,
    pub(crate) tables_done: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) bytes_done: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) tables_differ: AtomicU64,
}

/// One reading of [`Progress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProgressSnapshot {
    /// Tables to compare; 0 while they are not known.
    pub tables: u64,
    /// Tables that were compared to their end.
    pub tables_done: u64,
    /// Bytes of the source's tables.
    pub bytes: u64,
    /// Bytes of those in chunks that were compared.
    pub bytes_done: u64,
    /// Rows of the source that were compared.
    pub rows: u64,
    /// Tables that are known to differ.
    pub tables_differ: u64,
}

impl Progress {
    /// All figures.
    #[must_use]
    pub fn snapshot(&self) -> ProgressSnapshot {
        ProgressSnapshot {
            tables: self.tables.load(Relaxed),
            tables_done: self.tables_done.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            bytes_done: self.bytes_done.load(Relaxed),
            rows: self.rows.load(Relaxed),
            tables_differ: self.tables_differ.load(Relaxed),
        }
    }
}
