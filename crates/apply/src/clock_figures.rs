//! What is known of transactions that are held until the target's clock has passed their commit
//! time ([`crate::planner`]), for `status` and metrics. No decision depends on it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::Xid;

/// The transaction that is held at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldForClock {
    /// Its id on the source.
    pub xid: Xid,
    /// How long it has been held.
    pub lasts: Duration,
    /// How far its commit time is ahead of the target's clock, by the last answer.
    pub ahead: Duration,
}

/// A reading of [`ClockFigures`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockReading {
    /// The transaction that is held.
    pub held: Option<HeldForClock>,
    /// Transactions that were held since the process started.
    pub transactions: u64,
    /// How long they were held, without the present one.
    pub waited: Duration,
}

/// See the module.
#[derive(Debug, Default)]
pub struct ClockFigures(Mutex<Figures>);

#[derive(Debug, Default)]
struct Figures {
    reading: ClockReading,
    asked_at: Option<Instant>,
}

impl ClockFigures {
    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the commit time of `xid` is `ahead`, after it was held for `lasts`. The first
    /// note of a transaction counts it.
    pub(crate) fn ahead(&self, xid: Xid, ahead: Duration, (lasts, is_first): (Duration, bool)) {
        let mut figures = self.lock();
        figures.reading.transactions += u64::from(is_first);
        figures.reading.held = Some(HeldForClock { xid, lasts, ahead });
        figures.asked_at = Some(Instant::now());
    }

    /// Notes that the transaction goes on, after it was held for `lasted`.
    pub(crate) fn released(&self, lasted: Duration) {
        let reading = &mut self.lock().reading;
        reading.waited += lasted;
        reading.held = None;
    }

    /// Notes that a new attempt holds nothing.
    pub(crate) fn begin(&self) {
        self.lock().reading.held = None;
    }

    /// The figures now.
    #[must_use]
    pub fn figures(&self) -> ClockReading {
        let figures = self.lock();
        let since = figures.asked_at.map_or(Duration::ZERO, |at| at.elapsed());
        let held = figures.reading.held.map(|held| HeldForClock {
            lasts: held.lasts + since,
            ahead: held.ahead.saturating_sub(since),
            ..held
        });
        ClockReading { held, ..figures.reading }
    }
}
