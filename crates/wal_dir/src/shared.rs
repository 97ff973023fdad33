//! What a directory's writer and its readers know together.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use base::Lsn;
use tokio::sync::watch;

use crate::names::SegmentName;
use crate::older::Older;

/// Where a timeline was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork {
    /// The timeline that was left.
    pub timeline: u32,
    /// Where it was left.
    pub end: Lsn,
}

/// What writer and readers know together.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) segment_size: u64,
    /// Everything before is written, and may be read.
    pub(crate) end: watch::Sender<Lsn>,
    /// Everything before is written.
    pub(crate) written: AtomicU64,
    /// Nothing behind may be read.
    pub(crate) limit: AtomicU64,
    /// Counts changes of [`Timelines`].
    pub(crate) generation: AtomicU64,
    pub(crate) timelines: Mutex<Timelines>,
    /// The first byte that is kept.
    pub(crate) oldest: AtomicU64,
    /// What has WAL before that.
    pub(crate) older: OnceLock<Arc<dyn Older>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Timelines {
    pub(crate) current: u32,
    /// The oldest first.
    pub(crate) forks: Vec<Fork>,
}

impl Shared {
    /// Lets readers see what is written, as far as they may.
    pub(crate) fn show(&self) {
        let may = |of: &AtomicU64| of.load(Ordering::Acquire);
        self.end.send_modify(|end| *end = Lsn::new(may(&self.written).min(may(&self.limit))));
    }

    pub(crate) fn timelines(&self) -> MutexGuard<'_, Timelines> {
        self.timelines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The timeline that supplies a segment: the one that wrote its end.
    pub(crate) fn timeline_of(&self, number: u64) -> u32 {
        let timelines = self.timelines();
        let end = (number + 1).saturating_mul(self.segment_size);
        let left = |fork: &&Fork| end <= fork.end.as_u64();
        timelines.forks.iter().find(left).map_or(timelines.current, |fork| fork.timeline)
    }

    pub(crate) fn oldest(&self) -> Lsn {
        Lsn::new(self.oldest.load(Ordering::Acquire))
    }

    /// What has WAL of `at`, if it is not kept any more.
    pub(crate) fn older_than_kept(&self, at: Lsn) -> Option<&Arc<dyn Older>> {
        self.older.get().filter(|_| at < self.oldest())
    }

    pub(crate) fn path(&self, timeline: u32, number: u64, is_partial: bool) -> PathBuf {
        self.dir.join(SegmentName { timeline, number, is_partial }.text(self.segment_size))
    }
}
