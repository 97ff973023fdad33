//! How often the horizon looks for something to forget: often while rows are deleted, rarely while
//! none are.
//!
//! The founding message's idea: 100 ms at first, and doubled whenever there was nothing new to
//! retain, up to `wal_receiver_status_interval`, but at most three minutes. The next deletion takes
//! it back to 100 ms. It is no longer than `max_retention_duration`, so that the horizon can move
//! before that is exceeded.
//!
//! `retention_interval` makes it the same all the time, as an experiment may want it.

use std::time::Duration;

/// `MIN_XID_ADVANCE_INTERVAL` of the message's patch.
const FIRST: Duration = Duration::from_millis(100);
/// `MAX_XID_ADVANCE_INTERVAL`.
const MAX: Duration = Duration::from_secs(180);

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    current: Duration,
    /// After a deletion.
    first: Duration,
    max: Duration,
}

impl Interval {
    /// The interval at its beginning. `status_interval` is `wal_receiver_status_interval`, where
    /// zero stands for never, `duration_max` is `max_retention_duration`, if that is set.
    ///
    /// `fixed` is `retention_interval`, if that is set.
    #[must_use]
    pub fn new(
        status_interval: Duration,
        duration_max: Option<Duration>,
        fixed: Option<Duration>,
    ) -> Interval {
        let status = if status_interval.is_zero() { MAX } else { status_interval };
        let duration = duration_max.filter(|max| !max.is_zero()).unwrap_or(MAX);
        let max = fixed.unwrap_or(MAX.min(status)).min(duration);
        let first = fixed.unwrap_or(FIRST).min(max);
        Interval { current: first, first, max }
    }

    /// How long to wait now.
    #[must_use]
    pub fn current(&self) -> Duration {
        self.current
    }

    /// There was nothing new to retain.
    pub fn found_nothing(&mut self) {
        self.current = (self.current * 2).min(self.max);
    }

    /// A row was deleted.
    pub fn found_deletion(&mut self) {
        self.current = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the interval is, in ms, each time that nothing was found.
    fn quiet(mut interval: Interval, times: usize) -> Vec<u128> {
        let mut all = Vec::new();
        for _ in 0..times {
            all.push(interval.current().as_millis());
            interval.found_nothing();
        }
        all
    }

    #[test]
    fn it_doubles_up_to_the_status_interval_and_begins_again_at_a_deletion() {
        let mut interval = Interval::new(Duration::from_secs(10), None, None);
        assert_eq!(quiet(interval, 9), [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        (0..20).for_each(|_| interval.found_nothing());
        interval.found_deletion();
        assert_eq!(interval.current(), Duration::from_millis(100));
    }

    #[test]
    fn three_minutes_are_the_most() {
        for status in [Duration::ZERO, Duration::from_secs(3600)] {
            assert_eq!(quiet(Interval::new(status, None, None), 20).last(), Some(&180_000));
        }
    }

    #[test]
    fn a_short_retention_is_looked_at_in_time() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(
            quiet(Interval::new(Duration::from_secs(10), second, None), 6),
            [100, 200, 400, 800, 1000, 1000]
        );
        let short = Interval::new(Duration::from_millis(10), None, None);
        assert_eq!(quiet(short, 2), [10, 10]);
        let unlimited = Interval::new(Duration::ZERO, Some(Duration::ZERO), None);
        assert_eq!(quiet(unlimited, 20).last(), Some(&180_000));
    }

    #[test]
    fn a_fixed_interval_neither_grows_nor_shrinks() {
        for millis in [10, 100_000] {
            let fixed = Some(Duration::from_millis(millis));
            let mut interval = Interval::new(Duration::from_secs(10), None, fixed);
            assert_eq!(quiet(interval, 3), [u128::from(millis); 3]);
            interval.found_deletion();
            assert_eq!(interval.current(), Duration::from_millis(millis));
        }
        // Otherwise every deletion would be cut before the horizon could pass it.
        let bound = Some(Duration::from_secs(1));
        let long = Interval::new(Duration::from_secs(10), bound, Some(Duration::from_secs(100)));
        assert_eq!(quiet(long, 2), [1000, 1000]);
    }
}
