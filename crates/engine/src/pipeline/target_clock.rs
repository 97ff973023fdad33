//! Copied rows come to the target after its clock has passed their commit times (rule D3).
//!
//! A copied row gets the time of its copy on the target, and keeps its own on the source. A client
//! of the target that changes it writes the later version. If the source's clock were ahead, the
//! source could take its own row for the later one, and both ends would differ. So where a rule
//! compares commit times, nothing is copied before the target's clock has passed what the source's
//! clock showed behind the snapshot: a snapshot sees no later commit.
//!
//! Transactions of the stream are held by the applier, for the same reason.

use std::time::Duration;

use base::PgTimestamp;
use client::Session;

use super::attempt::Attempt;
use crate::error::{Error, Kind};

/// The clock is asked at least this often, because it may be set.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A wait of this length is logged.
const LONG: Duration = Duration::from_secs(1);

impl Attempt<'_> {
    /// Waits until the target's clock has passed what the source's clock shows now. The snapshot
    /// was taken before.
    ///
    /// # Errors
    /// The source's clock is ahead by more than `clock_skew_max`; a server failed.
    pub(crate) async fn pass_clock_of(&self, source: &Session, target: &Session) -> Result<(), Error> {
        if !self.settings.conflict_rules.compares_times() {
            return Ok(());
        }
        let of_snapshot = source.clock().await?;
        let mut is_told = false;
        loop {
            let Some(ahead) = ahead(of_snapshot, target.clock().await?) else { return Ok(()) };
            if let Some(max) = self.settings.clock_skew_max.filter(|max| ahead > *max) {
                return Err(Kind::ClockSkew { ahead, max }.into());
            }
            if ahead >= LONG && !is_told {
                is_told = true;
                tracing::warn!(
                    subscription = %self.settings.subscription,
                    "the source's clock is {:.1} s ahead of the target's, and a conflict rule compares commit times: \
                     the copy waits as long; correct the clocks of both servers",
                    ahead.as_secs_f64()
                );
            }
            tokio::time::sleep(ahead.min(ASK_AGAIN)).await;
        }
    }
}

/// How long `clock` has to run until it has passed `time`; `None` if it has.
fn ahead(time: PgTimestamp, clock: PgTimestamp) -> Option<Duration> {
    // A time that is equal has not been passed.
    let ahead_us = u64::try_from(time.0.saturating_sub(clock.0)).ok()?;
    Some(Duration::from_micros(ahead_us.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d3_a_clock_has_passed_a_time_only_behind_it() {
        let of = |time, clock| ahead(PgTimestamp(time), PgTimestamp(clock));
        assert_eq!(of(5_000_000, 3_000_000), Some(Duration::from_secs(2)));
        assert_eq!(of(5, 5), Some(Duration::from_micros(1)));
        assert_eq!((of(5, 6), of(i64::MIN, i64::MAX)), (None, None));
    }
}
