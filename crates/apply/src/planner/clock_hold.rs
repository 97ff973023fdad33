//! Holds a transaction until the target's clock has passed its commit time.
//!
//! Only where a rule for conflicts compares commit times. Handed the begin of each transaction and
//! the answers of the target's clock, it says whether the transaction may go on, and when the clock
//! is to be asked next. It does no I/O.
//!
//! ```text
//!   begin --shown to be past--> goes on
//!     \--not shown--> held: ask --past--> goes on
//!                      ^     \--ahead--> wait, at most ASK_AGAIN --+
//!                      |      \--ahead by more than the limit--> error
//!                      +---------------------------------------------+
//! ```
//! Why it is held: a session of the target that sees the row and changes it writes the later
//! version. The target's clock gives that version its time, and an earlier time would let the older
//! version win on the other end (rule D3).
//!
//! Why it is held here: nothing of the transaction is on the target yet, so nobody waits for its
//! locks. Everything before it was handed over, and everything behind it waits, as commits come in
//! order. A transaction that is executed while it is open is let go if the wait is long.
//!
//! An answer of the clock serves until it is too old to show anything: one question covers all
//! transactions that committed before it.

use std::sync::Arc;
use std::time::Duration;

use base::PgTimestamp;
use tokio::time::Instant;
use txn::Begin;

use crate::applier::Options;
use crate::counters::Counters;
use crate::error::{Error, Kind};

/// While a transaction is held, the clock is asked at least this often, because it may be set.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// After this time an answer shows nothing any more, because the clock may have been set back.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(10);
/// A clock that is being corrected runs up to a twelfth too slow (`maxslewrate` of chrony), and
/// ours may run as much too fast. Both together are less than one part of this many.
const DRIFT: u32 = 5;
/// A transaction that is executed while it is open keeps its locks through a hold of this length.
pub(super) const LOCKS_KEPT_MAX: Duration = Duration::from_millis(100);
/// A hold of this length is logged.
const LONG: Duration = Duration::from_secs(1);
/// Interval between two log lines.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// See the module.
pub(crate) struct ClockHold {
    /// Whether a rule compares commit times.
    compares_times: bool,
    /// The longest hold; `None` for no limit.
    max: Option<Duration>,
    /// The last answer of the target's clock, and when it came.
    answer: Option<(PgTimestamp, Instant)>,
    held: Option<Held>,
    told_at: Option<Instant>,
    counters: Arc<Counters>,
}

/// A transaction that is held.
struct Held {
    begin: Begin,
    since: Instant,
    asks_at: Instant,
    /// The clock has said that the commit time is ahead.
    is_ahead: bool,
}

impl ClockHold {
    pub(crate) fn new(options: &Options, counters: Arc<Counters>) -> ClockHold {
        let compares_times = options.conflict_rules.compares_times();
        ClockHold::with(compares_times, options.clock_skew_max, counters)
    }

    fn with(compares_times: bool, max: Option<Duration>, counters: Arc<Counters>) -> ClockHold {
        ClockHold { compares_times, max, answer: None, held: None, told_at: None, counters }
    }

    /// Whether a transaction is held.
    pub(super) fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// When the clock is to be asked next; `None` while no transaction is held.
    pub(super) fn asks_at(&self) -> Option<Instant> {
        self.held.as_ref().map(|held| held.asks_at)
    }

    /// Whether the transaction may go on. If not, it is held from `now` on.
    pub(super) fn admits(&mut self, begin: Begin, now: Instant) -> bool {
        if !self.compares_times || self.has_passed(begin.commit_time, now) {
            return true;
        }
        self.held = Some(Held { begin, since: now, asks_at: now, is_ahead: false });
        false
    }

    /// Takes the transaction that was held, once it may go on.
    pub(super) fn release(&mut self, now: Instant) -> Option<Begin> {
        let commit_time = self.held.as_ref()?.begin.commit_time;
        if !self.has_passed(commit_time, now) {
            return None;
        }
        let held = self.held.take()?;
        if held.is_ahead {
            self.counters.clock.released(now - held.since);
        }
        Some(held.begin)
    }

    /// Takes the answer of the target's clock, which came at `now`. Returns how far the commit time
    /// of the transaction that is held is ahead of it.
    ///
    /// # Errors
    /// It is ahead by more than the limit.
    pub(super) fn answered(&mut self, clock: PgTimestamp, now: Instant) -> Result<Duration, Error> {
        self.answer = Some((clock, now));
        let Some(held) = &mut self.held else { return Ok(Duration::ZERO) };
        let Begin { xid, final_lsn, commit_time, .. } = held.begin;
        let Ok(ahead_us) = u64::try_from(commit_time.0.saturating_sub(clock.0)) else {
            return Ok(Duration::ZERO);
        };
        let ahead = Duration::from_micros(ahead_us);
        if let Some(max) = self.max.filter(|max| ahead > *max) {
            return Err(Kind::ClockSkew { ahead, max, xid, finished_at: final_lsn }.into());
        }
        // A time that is equal has not been passed.
        held.asks_at = now + ahead.max(Duration::from_micros(1)).min(ASK_AGAIN);
        self.counters.clock.ahead(xid, ahead, (now - held.since, !held.is_ahead));
        held.is_ahead = true;
        if ahead >= LONG && self.told_at.is_none_or(|at| now - at >= TELL_AGAIN) {
            self.told_at = Some(now);
            tracing::warn!(
                %xid,
                "the commit time of a transaction is {:.1} s ahead of the target's clock, and a conflict rule compares \
                 commit times: pgsluice holds the transaction as long; correct the clocks of both servers",
                ahead.as_secs_f64()
            );
        }
        Ok(ahead)
    }

    /// Whether the last answer shows that the target's clock is behind `time` no more.
    fn has_passed(&self, time: PgTimestamp, now: Instant) -> bool {
        let Some((clock, at)) = self.answer else { return false };
        let age = now - at;
        let since = i64::try_from((age - age / DRIFT).as_micros()).unwrap_or(i64::MAX);
        age <= ANSWER_AGE_MAX && clock.0.saturating_add(since) > time.0
    }
}

#[cfg(test)]
mod tests {
    use base::{Lsn, Xid};

    use super::*;

    const SECOND: i64 = 1_000_000;

    fn begin(seconds: i64) -> Begin {
        let commit_time = PgTimestamp(seconds * SECOND);
        Begin { xid: Xid(7), final_lsn: Lsn::new(0x100), commit_time, origin: None }
    }

    fn hold(max: Option<u64>) -> (ClockHold, Arc<Counters>, Instant) {
        let counters = Arc::new(Counters::default());
        let hold = ClockHold::with(true, max.map(Duration::from_secs), Arc::clone(&counters));
        (hold, counters, Instant::now())
    }

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn nothing_is_held_where_no_rule_compares_times() {
        let mut hold = ClockHold::with(false, None, Arc::default());
        assert!(hold.admits(begin(i64::MAX / SECOND), Instant::now()));
        assert!(!hold.is_holding() && hold.asks_at().is_none());
    }

    #[test]
    fn d3_a_transaction_is_held_until_the_clock_has_passed_its_commit_time() {
        let (mut hold, counters, start) = hold(None);
        assert!(!hold.admits(begin(103), start), "the clock was never asked");
        assert_eq!(hold.asks_at(), Some(start));
        assert_eq!(hold.answered(PgTimestamp(100 * SECOND), start).unwrap(), s(3.0));
        assert_eq!(hold.asks_at(), Some(start + ASK_AGAIN), "the clock may be set meanwhile");
        let figures = counters.clock.figures();
        assert_eq!((figures.transactions, figures.held.unwrap().xid), (1, Xid(7)));
        assert_eq!(hold.release(start + s(2.9)), None);
        // It was passed when it was equal and a microsecond.
        assert_eq!(hold.answered(PgTimestamp(103 * SECOND), start + s(3.0)).unwrap(), Duration::ZERO);
        assert_eq!(hold.release(start + s(3.0)), None);
        hold.answered(PgTimestamp(103 * SECOND + 1), start + s(3.1)).unwrap();
        assert_eq!(hold.release(start + s(3.1)), Some(begin(103)));
        let figures = counters.clock.figures();
        assert_eq!((figures.transactions, figures.waited, figures.held.is_none()), (1, s(3.1), true));
        assert!(!hold.is_holding());
    }

    #[test]
    fn one_answer_serves_all_that_committed_before_it() {
        let (mut hold, counters, start) = hold(None);
        hold.answered(PgTimestamp(100 * SECOND), start).unwrap();
        assert!(hold.admits(begin(99), start) && hold.admits(begin(98), start));
        // Four fifths of the time that has gone by here count.
        assert!(hold.admits(begin(103), start + s(4.0)));
        assert!(!hold.admits(begin(104), start + s(4.9)));
        hold.answered(PgTimestamp(105 * SECOND), start + s(5.0)).unwrap();
        assert_eq!(hold.release(start + s(5.0)), Some(begin(104)));
        assert_eq!(counters.clock.figures().transactions, 0, "it was never ahead");
    }

    #[test]
    fn an_old_answer_shows_nothing() {
        let (mut hold, _, start) = hold(None);
        hold.answered(PgTimestamp(100 * SECOND), start).unwrap();
        assert!(hold.admits(begin(50), start + ANSWER_AGE_MAX));
        assert!(!hold.admits(begin(50), start + ANSWER_AGE_MAX + s(0.001)));
    }

    #[test]
    fn a_clock_that_is_set_back_holds_longer() {
        let (mut hold, _, start) = hold(None);
        assert!(!hold.admits(begin(101), start));
        assert_eq!(hold.answered(PgTimestamp(100 * SECOND), start).unwrap(), s(1.0));
        assert_eq!(hold.answered(PgTimestamp(60 * SECOND), start + s(1.0)).unwrap(), s(41.0));
        assert_eq!(hold.release(start + s(1.1)), None);
    }

    #[test]
    fn beyond_the_limit_it_is_an_error_that_names_the_setting() {
        let (mut hold, _, start) = hold(Some(30));
        assert!(!hold.admits(begin(130), start));
        assert_eq!(hold.answered(PgTimestamp(100 * SECOND), start).unwrap(), s(30.0));
        let error = hold.answered(PgTimestamp(99 * SECOND), start).unwrap_err();
        let words = error.to_string();
        assert!(words.contains("transaction 7") && words.contains("31.0 s ahead"), "{words}");
        assert!(
            words.contains("clock_skew_max is 30 s") && words.contains("--clock-skew-max 31s"),
            "{words}"
        );
        assert!(words.contains("pgsluice skip --lsn 0/100"), "{words}");
        assert!(!error.is_data() && !error.is_refused());
    }
}
