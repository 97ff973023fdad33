//! Memory that tracks share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A track may have this much, whatever the others have.
const LEAST: usize = 1 << 20;
/// A track keeps this much, or less, of what no reader needs: one that comes back may want it.
const KEPT: usize = 8 << 20;

/// Bytes of memory that tracks share, each as much as any other. Clones are of the same memory.
#[derive(Debug, Clone)]
pub struct TrackMemory {
    bytes: usize,
    shared: Arc<InUse>,
}

#[derive(Debug, Default)]
struct InUse {
    tracks: AtomicUsize,
    bytes: AtomicUsize,
}

impl TrackMemory {
    /// Memory of this size. What readers that lag have read from files may take half as much again.
    #[must_use]
    pub fn new(bytes: usize) -> TrackMemory {
        TrackMemory { bytes, shared: Arc::default() }
    }

    /// The bytes, for all tracks together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A part for one more track.
    pub(crate) fn part(&self) -> Part {
        self.shared.tracks.fetch_add(1, Ordering::Relaxed);
        Part { of: self.clone(), used: 0 }
    }
}

/// What one track uses of it.
#[derive(Debug)]
pub(crate) struct Part {
    of: TrackMemory,
    used: usize,
}

impl Part {
    /// The most that it may be now.
    pub(crate) fn most(&self) -> usize {
        self.of.bytes / self.of.shared.tracks.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn take(&mut self, bytes: usize) {
        self.used += bytes;
        self.of.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.used -= bytes;
        self.of.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether something must go, and the oldest is needed by a reader or not.
    pub(crate) fn is_over(&self, is_needed: bool) -> bool {
        let most = if is_needed { self.most() } else { self.most().min(KEPT) };
        // Tracks to which nothing comes keep what they had when there were fewer.
        let all = self.of.shared.bytes.load(Ordering::Relaxed);
        self.used > most || (all > self.of.bytes && self.used > LEAST)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.of.shared.tracks.fetch_sub(1, Ordering::Relaxed);
        self.of.shared.bytes.fetch_sub(self.used, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_share_evenly_and_keep_within_the_whole() {
        const MB: usize = 1 << 20;
        let memory = TrackMemory::new(64 * MB);
        let mut first = memory.part();
        first.take(60 * MB);
        assert!(!first.is_over(true) && first.is_over(false), "what nobody needs goes earlier");
        let mut second = memory.part();
        assert_eq!(second.most(), 32 * MB);
        second.take(3 * MB);
        assert!(first.is_over(true) && !second.is_over(true));
        // The first one has nothing to do, so that it gives nothing back.
        second.take(2 * MB);
        assert!(second.is_over(true));
        second.give_back(4 * MB);
        assert!(!second.is_over(true));
        drop(first);
        assert_eq!((second.most(), second.used()), (64 * MB, MB));
        drop(second);
        assert_eq!(memory.shared.bytes.load(Ordering::Relaxed), 0);
    }
}
