//! How far a stage is behind the one before it, in bytes and in seconds; see the figure of module
//! `status`.

use std::sync::atomic::{AtomicI64, Ordering};

use base::PgTimestamp;
use serde::{Deserialize, Serialize};

/// One stage's lag.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Lag {
    /// Distance between two positions of the source's WAL.
    pub bytes: Option<u64>,
    /// Age of the oldest transaction that has not passed the stage.
    pub seconds: Option<f64>,
}

/// The lags in the figure of module `status`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LagFigures {
    /// On the source and not received.
    pub receive: Lag,
    /// Received and waiting.
    pub queue: Lag,
    /// Handed to the target and not committed there.
    pub apply: Lag,
    /// Committed on the target and not flushed there.
    pub flush: Lag,
    /// On the source and not committed on the target.
    pub total: Lag,
}

/// A stage's most recent commit, and when it was last seen with nothing before it. In microseconds
/// since 2000-01-01; `i64::MIN` for never.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) commit: AtomicI64,
    level: AtomicI64,
}

impl Mark {
    pub(super) const fn new() -> Self {
        Mark { commit: AtomicI64::new(i64::MIN), level: AtomicI64::new(i64::MIN) }
    }

    pub(super) fn committed(&self, time: PgTimestamp) {
        self.commit.fetch_max(time.0, Ordering::Relaxed);
    }

    pub(super) fn level_at(&self, time: i64) {
        self.level.fetch_max(time, Ordering::Relaxed);
    }

    /// The age at `now` of the oldest transaction that may not have passed. `None` if no
    /// transaction has passed and the stage was never level.
    pub(super) fn age(&self, now: PgTimestamp) -> Option<f64> {
        let passed = self.commit.load(Ordering::Relaxed).max(self.level.load(Ordering::Relaxed));
        (passed != i64::MIN).then(|| (now.0.saturating_sub(passed)).max(0) as f64 / 1e6)
    }
}
