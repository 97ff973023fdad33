//! What happens after a pipeline's attempt has failed: one table.
//!
//! Retry crates know how long to wait. Only this module knows what an error means for a
//! subscription, so it has the waits, too.
//!
//! | what failed                                             | then |
//! |---------------------------------------------------------|------|
//! | a connection: lost, refused, server starting or stopping | again at once, then after 0.1 s, 0.2 s ... up to `wal_retrieve_retry_interval` |
//! | a deadlock, a serialization failure, a source that is a standby or goes on on another timeline, values that must come as text | as above |
//! | a change that does not fit the target (a conflict that is an error, a missing column) | after the interval; with `disable_on_error` the subscription is disabled instead |
//! | catalogs of a source that ships WAL that cannot be followed any further | a new look after the interval; stop if tables would have to be copied again and the operator has not allowed it |
//! | a table that cannot be decoded outside the server | at once, without it |
//! | a first copy that lacks a partition of the target, or a name that its functions do not find | after the interval |
//! | the spool's disk, clocks that differ too much for a copy, another error of a server, catalogs that are being rewritten, the disk of what is decoded | after the interval |
//! | settings, rights, a password, a certificate, a schema that the target does not take, a slot that is not what the target remembers, WAL that cannot be decoded, the name in use | stop: only a person can help |
//!
//! `skip --lsn` also ends the interval.

use std::time::Duration;

use client::SqlState;

use crate::error::{Error, Kind};

/// The next step after an error: see the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Again at once, then after ever longer waits.
    Soon,
    /// Again after `wal_retrieve_retry_interval`.
    Later,
    /// The subscription is disabled.
    Disable,
    /// The pipeline ends.
    Stop,
}

/// The wait after the attempt that follows at once; doubled each time.
const SOON_FIRST: Duration = Duration::from_millis(100);

pub(crate) fn verdict(error: &Error, disable_on_error: bool) -> Verdict {
    match error.kind() {
        _ if error.lost().is_some() => Verdict::Later,
        Kind::Source(error) if error.is_connection_lost() => Verdict::Soon,
        Kind::Source(error) if error.is_configuration() || is_missing_right(error.sqlstate()) => {
            Verdict::Stop
        }
        Kind::Silent(_) | Kind::SourceIsStandby => Verdict::Soon,
        Kind::Copy(error) if error.is_retryable() => Verdict::Soon,
        Kind::Copy(error) if error.is_repairable() => Verdict::Later,
        Kind::Schema(error) if error.is_retryable() => Verdict::Soon,
        Kind::Copy(_)
        | Kind::Schema(_)
        | Kind::Refused(_)
        | Kind::Disabled { .. }
        | Kind::DisabledNow { .. } => Verdict::Stop,
        Kind::Apply(error) if error.is_connection_lost() || error.is_transient() || error.needs_text() => {
            Verdict::Soon
        }
        Kind::Apply(error) if error.is_refused() => Verdict::Stop,
        Kind::Apply(error) if error.is_data() && disable_on_error => Verdict::Disable,
        Kind::Client(error) if error.is_connection_lost() => Verdict::Soon,
        Kind::Client(error) if error.is_configuration() || error.is_authentication() || error.is_tls() => {
            Verdict::Stop
        }
        Kind::Client(error) if is_missing_right(error.sqlstate()) => Verdict::Stop,
        Kind::Wal(error) if error.undecodable().is_some() || error.has_left_timeline() => Verdict::Soon,
        Kind::Wal(error) if error.is_refused() => Verdict::Stop,
        Kind::Wal(_)
        | Kind::Source(_)
        | Kind::Apply(_)
        | Kind::Client(_)
        | Kind::NoRoom { .. }
        | Kind::ClockSkew { .. }
        | Kind::Spool(_) => Verdict::Later,
    }
}

impl Error {
    /// Returns the pipeline's next step after this error.
    #[must_use]
    pub fn verdict(&self, disable_on_error: bool) -> Verdict {
        verdict(self, disable_on_error)
    }

    /// Only a person can help: settings, rights, state that does not fit.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        verdict(self, false) == Verdict::Stop
    }
}

/// `insufficient_privilege`, `invalid_catalog_name`.
fn is_missing_right(sqlstate: Option<&str>) -> bool {
    let state = sqlstate.map(SqlState::from_code);
    matches!(state, Some(SqlState::INSUFFICIENT_PRIVILEGE | SqlState::INVALID_CATALOG_NAME))
}

/// Waits between attempts.
#[derive(Debug)]
pub(crate) struct Backoff {
    interval: Duration,
    soon: Duration,
}

impl Backoff {
    pub(crate) fn new(interval: Duration) -> Self {
        Backoff { interval, soon: Duration::ZERO }
    }

    /// Starts over, because an attempt got as far as streaming.
    pub(crate) fn reset(&mut self) {
        self.soon = Duration::ZERO;
    }

    /// Returns how long to wait now.
    pub(crate) fn wait(&mut self, verdict: Verdict) -> Duration {
        if verdict != Verdict::Soon {
            return self.interval;
        }
        let now = self.soon;
        self.soon = (now * 2).max(SOON_FIRST).min(self.interval);
        now.min(self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_connections_are_tried_at_once_and_then_ever_more_slowly() {
        let mut backoff = Backoff::new(Duration::from_secs(1));
        let waits: Vec<_> = (0..7).map(|_| backoff.wait(Verdict::Soon).as_millis()).collect();
        assert_eq!(waits, [0, 100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(backoff.wait(Verdict::Later).as_millis(), 1_000);
        backoff.reset();
        assert_eq!(backoff.wait(Verdict::Soon).as_millis(), 0);
    }
}
