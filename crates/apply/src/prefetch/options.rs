//! Settings of prefetching.

use base::SubscriptionName;
use client::ConnInfo;

/// Which pages are read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// The replica identity's index and heap pages of rows that change.
    Identity,
    /// The same, and the leaf of every B-tree that a change enters.
    All,
}

impl Mode {
    pub(super) fn word(self) -> Option<&'static str> {
        match self {
            Mode::Off => None,
            Mode::Identity => Some("identity"),
            Mode::All => Some("all"),
        }
    }
}

/// Settings of prefetching.
#[derive(Debug, Clone)]
pub struct Options {
    /// The target's address.
    pub target: ConnInfo,
    /// Names the sessions.
    pub subscription: SubscriptionName,
    /// Which pages are read.
    pub mode: Mode,
    /// Maximum number of sessions; `None` for as many as the target can spare.
    pub workers: Option<usize>,
    /// The stream's values are in binary form where types have one.
    pub binary: bool,
}
