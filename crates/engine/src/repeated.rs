//! Logs a failure that repeats in the same way: once in full, then ever more seldom, and at last
//! that it is over.
//!
//! ```text
//!   met: new ----> said in full
//!   met: the same, and its time has come ----> "still, since ..., N attempts"; the pause is doubled
//!   met: the same, earlier ----> nothing
//!   over ----> "goes on: N attempts failed since ..."
//! ```
//! Two messages are the same if they differ only in numbers, which are positions, ids and times.

use std::convert::Infallible;
use std::fmt;
use std::time::{Duration, Instant};

use base::{Lsn, PgTimestamp, SubscriptionName};

use crate::{Settings, Status};

/// Time from the first message to the first "still".
const FIRST: Duration = Duration::from_secs(10);
/// Longest time from one "still" to the next.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// A stream that has lasted for this long does not fail as the attempts before it did. An attempt
/// that fails may get further than those before, up to the transaction that it fails in. The source
/// is asked for its end once a second.
const LASTS: Duration = Duration::from_secs(3);
/// Interval between checks of the stream.
const LOOK: Duration = Duration::from_millis(200);

/// A failure that may repeat.
#[derive(Debug, Default)]
pub(crate) struct Repeated(Option<Known>);

#[derive(Debug)]
struct Known {
    /// The message without its numbers.
    key: String,
    run: Run,
    next: Instant,
    pause: Duration,
}

/// Attempts in a row that failed alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// When the first of them failed.
    pub(crate) since: PgTimestamp,
    /// Their number.
    pub(crate) attempts: u64,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.attempts == 1 { "" } else { "s" };
        write!(f, "{} attempt{plural} failed since {}", self.attempts, utc(self.since))
    }
}

/// What to log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Saying {
    /// The whole message, because it is new; and the earlier failure, if there was another one.
    New(Option<Run>),
    /// That the failure lasts.
    Still(Run),
    Nothing,
}

impl Repeated {
    /// Records a failure with `message`.
    pub(crate) fn met(&mut self, message: &str) -> Saying {
        self.met_at(message, Instant::now(), PgTimestamp::now())
    }

    fn met_at(&mut self, message: &str, now: Instant, at: PgTimestamp) -> Saying {
        let key = without_numbers(message);
        if let Some(known) = self.0.as_mut().filter(|known| known.key == key) {
            known.run.attempts += 1;
            if now < known.next {
                return Saying::Nothing;
            }
            known.pause = (known.pause * 2).min(LONGEST);
            known.next = now + known.pause;
            return Saying::Still(known.run.clone());
        }
        let run = Run { since: at, attempts: 1 };
        let before = self.0.replace(Known { key, run, next: now + FIRST, pause: FIRST });
        Saying::New(before.map(|known| known.run))
    }

    /// Ends the present failure, and returns it, if there is one.
    pub(crate) fn over(&mut self) -> Option<Run> {
        self.0.take().map(|known| known.run)
    }

    /// The present failure.
    pub(crate) fn run(&self) -> Option<Run> {
        self.0.as_ref().map(|known| known.run.clone())
    }
}

impl Saying {
    /// Logs `told`; the next attempt comes after `wait`.
    pub(crate) fn tell(self, name: &SubscriptionName, told: &str, wait: Duration) {
        match self {
            Saying::New(before) => {
                if let Some(run) = before {
                    tracing::info!(subscription = %name, "another error than before, when {run}");
                }
                tracing::warn!(subscription = %name, "{told}; trying again in {:.1} s", wait.as_secs_f64());
            }
            Saying::Still(run) => tracing::warn!(subscription = %name, "still failing: {run}: {told}"),
            Saying::Nothing => {}
        }
    }
}

/// Logs that the failure `before` is over, once the stream has lasted, and has got further than
/// `applied` or has nothing behind.
pub(crate) async fn tell_when_over(
    settings: &Settings,
    status: &Status,
    before: Option<Run>,
    applied: Lsn,
) -> Infallible {
    let Some(run) = before else { return std::future::pending().await };
    let mut streams_since = None;
    loop {
        tokio::time::sleep(LOOK).await;
        if !status.streams() {
            streams_since = None;
            continue;
        }
        let since = *streams_since.get_or_insert_with(Instant::now);
        let now = status.progress().snapshot().applied;
        let is_level = || status.snapshot().lag.total.bytes == Some(0);
        if since.elapsed() > LASTS && (now > applied || is_level()) {
            let name = &settings.subscription;
            tracing::info!(subscription = %name, "going on: streaming, and applied up to {now}; before, {run}");
            status.set_failing(None);
            return std::future::pending().await;
        }
    }
}

/// Replaces each run of digits by one sign, and each run of hexadecimal digits beside a slash, as
/// in an LSN.
fn without_numbers(text: &str) -> String {
    let mut key = String::with_capacity(text.len());
    for word in text.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '/')) {
        let is_lsn = word.contains('/')
            && word.chars().filter(char::is_ascii_alphanumeric).all(|c| c.is_ascii_hexdigit());
        let mut last = ' ';
        for c in word.chars() {
            let number = c.is_ascii_digit() || is_lsn && c.is_ascii_hexdigit();
            let c = if number { '#' } else { c };
            if c != '#' || last != '#' {
                key.push(c);
            }
            last = c;
        }
    }
    key
}

/// Formats a time as `2026-11-25 02:14:29 UTC`.
fn utc(time: PgTimestamp) -> String {
    let seconds = time.unix_micros().div_euclid(1_000_000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Howard Hinnant's civil_from_days: the year begins in March, and 400 years have 146,097 days.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_ever_more_seldom_and_what_is_new_at_once() {
        let mut repeated = Repeated::default();
        let (start, at) = (Instant::now(), PgTimestamp(0));
        let mut said = Vec::new();
        for second in 0..200 {
            let message = format!("slot at 0/{second:X} is busy: process {second}");
            match repeated.met_at(&message, start + Duration::from_secs(second), at) {
                Saying::New(None) => said.push((second, 1)),
                Saying::Still(run) => said.push((second, run.attempts)),
                Saying::Nothing => {}
                Saying::New(before) => panic!("{before:?}"),
            }
        }
        assert_eq!(said, [(0, 1), (10, 11), (30, 31), (70, 71), (150, 151)]);
        let before = Run { since: at, attempts: 200 };
        assert_eq!(repeated.met_at("the slot is gone", start, at), Saying::New(Some(before)));
        assert_eq!(repeated.over().map(|run| run.attempts), Some(1));
        assert_eq!(repeated.over(), None);
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (unix, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_827_696, "2000-02-29 12:34:56 UTC"),
            (1_764_036_869, "2025-11-25 02:14:29 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(PgTimestamp((unix - 946_684_800) * 1_000_000)), text);
        }
    }
}
