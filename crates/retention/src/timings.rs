//! How long look-ups take: the median and the 99th percentile of the last ones.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// As many of the last durations count.
const LAST: usize = 4_096;

/// What a part of the last durations did not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantiles {
    /// Half of them.
    pub median: Duration,
    /// 99 of 100.
    pub p99: Duration,
}

/// The last durations.
#[derive(Debug, Default)]
pub(crate) struct Timings(Mutex<VecDeque<Duration>>);

impl Timings {
    pub(crate) fn note(&self, took: Duration) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == LAST {
            last.pop_front();
        }
        last.push_back(took);
    }

    /// `None` before the first one.
    pub(crate) fn quantiles(&self) -> Option<Quantiles> {
        let mut last: Vec<Duration> =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        last.sort_unstable();
        // The smallest that so large a part does not exceed.
        let at = |per_cent: usize| last.get((last.len() * per_cent).div_ceil(100).checked_sub(1)?).copied();
        Some(Quantiles { median: at(50)?, p99: at(99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_last_durations() {
        let timings = Timings::default();
        assert_eq!(timings.quantiles(), None);
        timings.note(Duration::from_millis(7));
        let one = Duration::from_millis(7);
        assert_eq!(timings.quantiles(), Some(Quantiles { median: one, p99: one }));
        // Longer ago than the last ones.
        for _ in 0..LAST {
            timings.note(Duration::from_secs(1));
        }
        for millis in 1..=100 {
            for _ in 0..LAST / 100 + 1 {
                timings.note(Duration::from_millis(millis));
            }
        }
        let Quantiles { median, p99 } = timings.quantiles().unwrap();
        assert!((48..=53).contains(&median.as_millis()), "{median:?}");
        assert!((98..=100).contains(&p99.as_millis()), "{p99:?}");
    }
}
