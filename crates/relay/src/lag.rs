//! How late a subscriber is: the time from sending a position to hearing that it was passed.
//!
//! Source: `LagTrackerWrite` and `LagTrackerRead` in `walsender.c`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base::Lsn;

/// As many samples as the server keeps (`LAG_TRACKER_BUFFER_SIZE`).
const SAMPLES_MAX: usize = 8192;

/// When positions were sent, and how late each kind of answer was.
#[derive(Debug, Default)]
pub(crate) struct LagTracker {
    samples: VecDeque<(Lsn, Instant)>,
    /// What the last answer had written, flushed and applied.
    heard: [Lsn; 3],
    /// Of each kind; `None` if it is not known, or everything was applied a while ago.
    pub(crate) lags: [Option<Duration>; 3],
}

impl LagTracker {
    /// Notes that everything before `lsn` was sent.
    pub(crate) fn sent(&mut self, lsn: Lsn, now: Instant) {
        if self.samples.back().is_some_and(|(last, _)| *last >= lsn) {
            return;
        }
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_back();
        }
        self.samples.push_back((lsn, now));
    }

    /// Notes what a subscriber has written, flushed and applied. `sent` is all that it was sent.
    pub(crate) fn heard(&mut self, positions: [Lsn; 3], sent: Lsn, now: Instant) {
        let has_all = positions[2] >= sent;
        let had_all = has_all && self.heard[2] >= sent;
        for ((heard, lag), position) in self.heard.iter_mut().zip(&mut self.lags).zip(positions) {
            let passed = self.samples.partition_point(|(lsn, _)| *lsn <= position);
            let last = passed.checked_sub(1).map(|last| self.samples[last]);
            match last.filter(|(lsn, _)| lsn > heard) {
                Some((_, at)) => *lag = Some(now.saturating_duration_since(at)),
                // Nothing was under way since the last answer.
                None if had_all => *lag = None,
                None => {}
            }
            *heard = (*heard).max(position);
        }
        let least = self.heard.into_iter().min().unwrap_or(Lsn::INVALID);
        while self.samples.front().is_some_and(|(lsn, _)| *lsn <= least) {
            self.samples.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_the_time_since_a_position_was_sent() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let lsns = |of: [u64; 3]| of.map(Lsn::new);
        let seconds = |lag: &LagTracker| lag.lags.map(|lag| lag.map(|lag| lag.as_secs()));
        let mut lag = LagTracker::default();
        lag.sent(Lsn::new(100), at(0));
        lag.sent(Lsn::new(200), at(10));
        lag.heard(lsns([150, 100, 50]), Lsn::new(200), at(12));
        assert_eq!(seconds(&lag), [Some(12), Some(12), None]);
        lag.heard(lsns([200, 200, 100]), Lsn::new(200), at(20));
        assert_eq!(seconds(&lag), [Some(10), Some(10), Some(20)]);
        lag.heard(lsns([200, 200, 200]), Lsn::new(200), at(30));
        assert_eq!(seconds(&lag), [Some(10), Some(10), Some(20)]);
        assert!(lag.samples.is_empty());
        // The same again: nothing is late.
        lag.heard(lsns([200, 200, 200]), Lsn::new(200), at(40));
        assert_eq!(seconds(&lag), [None, None, None]);
    }

    #[test]
    fn samples_are_bounded_and_the_newest_stays() {
        let begun = Instant::now();
        let mut lag = LagTracker::default();
        for number in 1..=2 * SAMPLES_MAX as u64 {
            lag.sent(Lsn::new(number), begun);
        }
        assert_eq!(lag.samples.len(), SAMPLES_MAX);
        assert_eq!(lag.samples.back().map(|(lsn, _)| lsn.as_u64()), Some(2 * SAMPLES_MAX as u64));
    }
}
