//! Decides whether a look-up is worth its cost, by how often it had to read.
//!
//! ```text
//!             PROBE_ROWS looked up, few had to be read
//!   Probing -------------------------------------------> Paused
//!      |  ^                                              ^   |
//!      |  +---------------- the pause is over -----------|---+
//!      | many had to be read                             |
//!      +----------------> On ----------------------------+
//!                              WINDOW_ROWS, few had to be read
//! ```
//! "Few" is fewer than one read in [`ROWS_PER_READ`] look-ups. A look-up that finds everything in
//! memory costs a backend some three microseconds, and the applier would have found it there too. A
//! read costs a hundred and more. At one read in fifty look-ups the two are about equal.
//!
//! A probe can mislead: where the applier was first, all pages are in memory because the applier
//! read them a moment ago. So the first pause is short. Each later pause is twice as long, until
//! look-ups have paid for a whole window.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The module explains it.
const ROWS_PER_READ: u64 = 50;
/// Enough to see one read in fifty, and done in a millisecond where nothing is read.
const PROBE_ROWS: u64 = 256;
/// A longer window while look-ups pay, so that a few lucky rows end nothing.
const WINDOW_ROWS: u64 = 4096;
/// The first pause, and the longest. A probe every five seconds costs nothing measurable.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Probing,
    On,
    Paused(Instant),
}

/// A change of state that others must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A probe has shown that look-ups pay.
    On,
    /// Look-ups no longer pay.
    Off,
}

/// Measures one look-up.
#[derive(Debug)]
pub(crate) struct Gauge(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    state: State,
    rows: u64,
    reads: u64,
    /// Length of the next pause.
    pause: Duration,
}

impl Inner {
    fn turn(&mut self, state: State) {
        *self = Inner { state, rows: 0, reads: 0, ..*self };
    }
}

impl Gauge {
    pub(crate) fn new() -> Gauge {
        Gauge(Mutex::new(Inner { state: State::Probing, rows: 0, reads: 0, pause: PAUSE }))
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether to look up at all. Begins a probe when a pause is over.
    pub(crate) fn is_awake(&self, now: Instant) -> bool {
        let mut inner = self.inner();
        if let State::Paused(until) = inner.state {
            if now < until {
                return false;
            }
            inner.turn(State::Probing);
        }
        true
    }

    pub(crate) fn is_on(&self) -> bool {
        self.inner().state == State::On
    }

    /// Counts `rows` that were looked up, for which `reads` pages had to be read.
    pub(crate) fn note(&self, rows: u64, reads: u64, now: Instant) -> Option<Turn> {
        let mut inner = self.inner();
        inner.rows += rows;
        inner.reads += reads;
        let pays = inner.reads * ROWS_PER_READ >= inner.rows;
        match inner.state {
            // This look-up began before the pause.
            State::Paused(_) => None,
            State::Probing if inner.rows < PROBE_ROWS => None,
            State::On if inner.rows < WINDOW_ROWS => None,
            State::Probing if pays => {
                inner.turn(State::On);
                Some(Turn::On)
            }
            State::On if pays => {
                inner.turn(State::On);
                inner.pause = PAUSE;
                None
            }
            was => {
                let pause = inner.pause;
                inner.turn(State::Paused(now + pause));
                inner.pause = (2 * pause).min(PAUSE_MAX);
                (was == State::On).then_some(Turn::Off)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_pauses_while_everything_is_in_memory_and_looks_again() {
        let (gauge, start) = (Gauge::new(), Instant::now());
        assert_eq!(gauge.note(PROBE_ROWS - 1, 0, start), None);
        assert!(gauge.is_awake(start), "too early to tell");
        assert_eq!(gauge.note(1, 0, start), None, "a probe that finds nothing is no news");
        assert!(!gauge.is_awake(start) && !gauge.is_on());
        // A look-up that was under way comes too late to count.
        assert_eq!(gauge.note(10_000, 10_000, start), None);
        let later = start + PAUSE;
        assert!(!gauge.is_awake(later - Duration::from_millis(1)));
        assert!(gauge.is_awake(later));
        assert_eq!(gauge.note(PROBE_ROWS, PROBE_ROWS, later), Some(Turn::On));
        assert!(gauge.is_on());
    }

    #[test]
    fn it_stays_on_while_it_pays_and_goes_off_when_it_does_not() {
        let (gauge, now) = (Gauge::new(), Instant::now());
        assert_eq!(gauge.note(PROBE_ROWS, PROBE_ROWS / ROWS_PER_READ + 1, now), Some(Turn::On));
        assert_eq!(gauge.note(WINDOW_ROWS, WINDOW_ROWS / ROWS_PER_READ + 1, now), None);
        // A window has no memory of the one before.
        assert_eq!(gauge.note(WINDOW_ROWS - 1, 0, now), None);
        assert!(gauge.is_on());
        assert_eq!(gauge.note(1, 0, now), Some(Turn::Off));
        assert!(!gauge.is_awake(now));
    }

    /// Returns the pauses in milliseconds, of as many probes as pass before `until`.
    fn pauses(gauge: &Gauge, now: &mut Instant, until: Duration) -> Vec<u128> {
        let (start, mut pauses) = (*now, Vec::new());
        while *now - start < until {
            gauge.note(PROBE_ROWS, 0, *now);
            let began = *now;
            while !gauge.is_awake(*now) {
                *now += Duration::from_millis(1);
            }
            pauses.push((*now - began).as_millis());
        }
        pauses
    }

    #[test]
    fn one_probe_that_misleads_costs_little_and_many_that_find_nothing_cost_little_too() {
        let (gauge, mut now) = (Gauge::new(), Instant::now());
        let doubled = [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000];
        assert_eq!(pauses(&gauge, &mut now, Duration::from_secs(12)), doubled);
        assert_eq!(pauses(&gauge, &mut now, Duration::from_secs(1)), [5_000]);
        // A probe that barely pays and does not last does not reset the pauses.
        assert_eq!(gauge.note(PROBE_ROWS, PROBE_ROWS, now), Some(Turn::On));
        assert_eq!(gauge.note(WINDOW_ROWS, 0, now), Some(Turn::Off));
        assert!(!gauge.is_awake(now + PAUSE_MAX - Duration::from_millis(1)));
        now += PAUSE_MAX;
        assert!(gauge.is_awake(now));
        assert_eq!(gauge.note(PROBE_ROWS, PROBE_ROWS, now), Some(Turn::On));
        assert_eq!(gauge.note(WINDOW_ROWS, WINDOW_ROWS, now), None);
        assert_eq!(gauge.note(WINDOW_ROWS, 0, now), Some(Turn::Off));
        assert_eq!(pauses(&gauge, &mut now, Duration::from_millis(120)), [50, 100]);
    }
}
