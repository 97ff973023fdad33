//! Time as PostgreSQL counts it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds from the Unix epoch to PostgreSQL's, 2000-01-01 00:00 UTC:
/// 10957 days.
const PG_EPOCH_UNIX_SECONDS: i64 = 10_957 * 86_400;

/// Microseconds since 2000-01-01 00:00 UTC (`TimestampTz`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PgTimestamp(pub i64);

impl PgTimestamp {
    /// The present, by this machine's clock.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub fn unix_micros(self) -> i64 {
        self.0.saturating_add(PG_EPOCH_UNIX_SECONDS * 1_000_000)
    }
}

impl From<SystemTime> for PgTimestamp {
    fn from(time: SystemTime) -> Self {
        let unix_us = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
        };
        PgTimestamp(unix_us.saturating_sub(PG_EPOCH_UNIX_SECONDS * 1_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_thirty_years_apart() {
        assert_eq!(PgTimestamp::from(UNIX_EPOCH).0, -946_684_800_000_000);
        assert_eq!(PgTimestamp(0).unix_micros(), 946_684_800_000_000);
    }
}
