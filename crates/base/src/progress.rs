//! How far a subscription has come, shared between source and sink.
//!
//! This is the one arrow that points back: the sink stores positions, and the source reads and
//! confirms them. All positions are of the source's WAL and only move forward.
//! `flushed <= applied`: only what the target has made durable may be confirmed. `received` belongs
//! to the source, and may be ahead of both.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Lsn;

/// Shared positions. Every method may be called from any task.
#[derive(Debug, Default)]
pub struct Progress {
    received: AtomicU64,
    applied: AtomicU64,
    flushed: AtomicU64,
    flush_wanted: AtomicBool,
    report_wanted: AtomicBool,
}

/// One reading of [`Progress`]. The three positions are read one after the other, the slowest
/// first, so `flushed <= applied` holds in every reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProgressSnapshot {
    /// The source has handed over everything up to here.
    pub received: Lsn,
    /// The target has committed everything up to here.
    pub applied: Lsn,
    /// The target has flushed everything up to here, so this may be confirmed.
    pub flushed: Lsn,
}

impl Progress {
    /// Makes all positions `start`, where streaming begins.
    #[must_use]
    pub fn starting_at(start: Lsn) -> Self {
        let at = || AtomicU64::new(start.as_u64());
        Progress { received: at(), applied: at(), flushed: at(), ..Progress::default() }
    }

    /// The source has received everything up to `lsn`.
    pub fn advance_received(&self, lsn: Lsn) {
        self.received.fetch_max(lsn.as_u64(), Ordering::AcqRel);
    }

    /// The target has committed everything up to `lsn`.
    pub fn advance_applied(&self, lsn: Lsn) {
        self.applied.fetch_max(lsn.as_u64(), Ordering::AcqRel);
    }

    /// The target has flushed everything up to `lsn`, so it has applied it.
    pub fn advance_flushed(&self, lsn: Lsn) {
        self.advance_applied(lsn);
        self.flushed.fetch_max(lsn.as_u64(), Ordering::AcqRel);
    }

    /// The source wants an answer: the sink should flush soon rather than at its own pace. A server
    /// that shuts down waits for this.
    pub fn want_flush(&self) {
        self.flush_wanted.store(true, Ordering::Release);
    }

    /// Whether a flush is wanted. Resets the request.
    pub fn take_flush_wanted(&self) -> bool {
        self.flush_wanted.swap(false, Ordering::AcqRel)
    }

    /// The server asked whether this side is alive. The next report is due at once.
    pub fn want_report(&self) {
        self.report_wanted.store(true, Ordering::Release);
    }

    /// Whether a report is wanted. Resets the request.
    pub fn take_report_wanted(&self) -> bool {
        self.report_wanted.swap(false, Ordering::AcqRel)
    }

    /// All positions.
    #[must_use]
    pub fn snapshot(&self) -> ProgressSnapshot {
        let flushed = Lsn::new(self.flushed.load(Ordering::Acquire));
        let applied = Lsn::new(self.applied.load(Ordering::Acquire));
        let received = Lsn::new(self.received.load(Ordering::Acquire));
        ProgressSnapshot { received, applied, flushed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_never_move_back_and_flushed_implies_applied() {
        let progress = Progress::starting_at(Lsn::new(10));
        progress.advance_flushed(Lsn::new(30));
        progress.advance_applied(Lsn::new(20));
        progress.advance_received(Lsn::new(5));
        let seen = progress.snapshot();
        assert_eq!((seen.received, seen.applied, seen.flushed), (Lsn::new(10), Lsn::new(30), Lsn::new(30)));
    }
}
