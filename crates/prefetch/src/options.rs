//! Settings of prefetching.

use base::SubscriptionName;
use client::ConnInfo;

/// Which pages are read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefetchMode {
    /// Nothing.
    Off,
    /// The replica identity's index and heap pages of rows that change.
    Identity,
    /// The same, and the leaf of every B-tree that a change enters.
    All,
}

impl PrefetchMode {
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            PrefetchMode::Off => None,
            PrefetchMode::Identity => Some("identity"),
            PrefetchMode::All => Some("all"),
        }
    }
}

/// Settings of prefetching.
#[derive(Debug, Clone)]
pub struct PrefetchOptions {
    /// The target's address.
    pub target: ConnInfo,
    /// Names the sessions.
    pub subscription: SubscriptionName,
    /// Which pages are read.
    pub mode: PrefetchMode,
    /// Maximum number of sessions; `None` for as many as the target can spare.
    pub workers: Option<usize>,
    /// The stream's values are in binary form where types have one.
    pub binary: bool,
}
