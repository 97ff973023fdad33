//! How long something may stand still before it counts as a hang.
//!
//! A bound of a test is there for hangs and says nothing about speed. It is written for an idle
//! machine. If more threads want to run than there are processors, each gets only a share of one,
//! and a task of a second takes several. The seconds of a bound then last as much longer
//! ([`at_this_load`]). [`Patience`] samples the load all the time, because it changes during the
//! wait.

use std::time::{Duration, Instant};

/// The longest stretch of a bound, however busy the machine is: a hang must end in an hour, not in
/// a day.
const SHARES_MAX: f64 = 20.0;

/// A bound that runs while it exists, more slowly the busier the machine is.
#[derive(Debug)]
pub struct Patience {
    bound: Duration,
    began: Instant,
    looked: Instant,
    spent: Duration,
}

impl Patience {
    /// `bound` from now, on a machine with nothing else to do.
    pub fn new(bound: Duration) -> Patience {
        let now = Instant::now();
        Patience { bound, began: now, looked: now, spent: Duration::ZERO }
    }

    /// The spent part of the bound. Call this often: it assumes that the present load has lasted
    /// since the last call.
    pub fn spent(&mut self) -> Duration {
        let now = Instant::now();
        self.spend(now, threads_per_processor());
        self.spent
    }

    /// Whether the bound is over.
    pub fn is_over(&mut self) -> bool {
        self.spent() >= self.bound
    }

    /// Time by the clock.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn spend(&mut self, now: Instant, shares: f64) {
        self.spent += (now - self.looked).div_f64(shares.clamp(1.0, SHARES_MAX));
        self.looked = now;
    }
}

/// `bound`, lengthened by the overload of the machine; for code that measures time itself.
pub fn at_this_load(bound: Duration) -> Duration {
    bound.mul_f64(threads_per_processor().clamp(1.0, SHARES_MAX))
}

/// Threads that want to run for each processor, now or over the last minute, whichever is more. A
/// new load shows in the first number at once. The second shows the work that piled up under a load
/// that has ended.
fn threads_per_processor() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    running(&load) / processors as f64
}

/// The larger of the average of the last minute and what runs now, in the text of `/proc/loadavg`.
fn running(loadavg: &str) -> f64 {
    let fields: Vec<&str> = loadavg.split_whitespace().collect();
    let number = |text: Option<&str>| -> f64 { text.and_then(|text| text.parse().ok()).unwrap_or(0.0) };
    let now = fields.get(3).and_then(|counts| counts.split('/').next());
    number(fields.first().copied()).max(number(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_the_larger_of_now_and_the_last_minute() {
        for (loadavg, expected) in [
            ("0.50 0.40 0.30 9/149 25635\n", 9.0),
            ("20.25 9.00 3.00 2/149 25635\n", 20.25),
            ("", 0.0),
            ("this is no load", 0.0),
        ] {
            assert!((running(loadavg) - expected).abs() < f64::EPSILON, "{loadavg}");
        }
    }

    #[test]
    fn a_second_of_a_bound_lasts_as_long_as_processors_are_shared() {
        let mut patience = Patience::new(Duration::from_secs(10));
        let second = |patience: &mut Patience, shares| {
            let now = patience.looked + Duration::from_secs(1);
            patience.spend(now, shares);
            patience.spent
        };
        assert_eq!(
            second(&mut patience, 0.2),
            Duration::from_secs(1),
            "an idle machine makes nothing faster"
        );
        assert_eq!(second(&mut patience, 4.0), Duration::from_millis(1_250));
        assert_eq!(second(&mut patience, 1e9), Duration::from_millis(1_300), "it still goes on");
    }

    #[test]
    fn what_measures_time_is_given_no_less_than_it_asks_for() {
        let bound = Duration::from_secs(3);
        assert!(at_this_load(bound) >= bound && at_this_load(bound) <= bound.mul_f64(SHARES_MAX));
    }
}
