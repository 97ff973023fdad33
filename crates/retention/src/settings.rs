//! What a subscription asks of the retention of deletions, and where its files are.

use std::path::PathBuf;
use std::time::Duration;

use base::SubscriptionName;
use client::ConnInfo;
use deletions::Bounds;

use crate::shared_slot::SharedSlot;

/// See the module.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The subscription's name, from which the slot, sessions and origins are named.
    pub subscription: SubscriptionName,
    /// The server and database whose deletions are captured.
    pub target: ConnInfo,
    /// The slot of the other direction of a pair, where that reads the target's WAL, too.
    pub shared_slot: Option<SharedSlot>,
    /// A directory of its own beside the subscription's other files.
    pub dir: PathBuf,
    /// How much is remembered.
    pub bounds: Bounds,
    /// Longest time between two reports to the target; zero: only on request.
    pub status_interval: Duration,
    /// `retention_interval`: how often the horizon looks for something to forget; `None`: as often
    /// as rows are deleted.
    pub interval: Option<Duration>,
    /// Longest silence of the target; zero: no limit.
    pub timeout: Duration,
}

impl Settings {
    /// The physical slot on the target that keeps WAL for capture, unless a shared one does.
    #[must_use]
    pub fn slot(&self) -> String {
        slot_of(&self.subscription)
    }

    /// The memory. Its log lies beside it.
    pub(crate) fn memory_file(&self) -> PathBuf {
        self.dir.join("memory")
    }

    /// The target's catalogs at the place where reading begins again.
    pub(crate) fn catalogs_file(&self) -> PathBuf {
        self.dir.join("catalogs")
    }

    /// Where large open transactions wait.
    pub(crate) fn spool_dir(&self) -> PathBuf {
        self.dir.join("spool")
    }
}

/// The slot that belongs to a subscription. Its suffix is shorter than the longest that a
/// subscription's name leaves room for.
#[must_use]
pub fn slot_of(subscription: &SubscriptionName) -> String {
    format!("{}_dead", subscription.slot())
}
