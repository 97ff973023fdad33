//! The settings of a server and its session that a value's text depends on.
//!
//! All others are as pgsluice's own replication connections request them: `DateStyle` ISO,
//! `IntervalStyle` postgres, `extra_float_digits` 3, `bytea_output` hex.

use base::PgVersion;

use crate::zone::TimeZone;

/// The settings of the session that is imitated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The server's version, because a few output functions have changed.
    pub version: PgVersion,
    /// `TimeZone`, in which a timestamptz is written.
    pub time_zone: TimeZone,
    /// Whether `lc_monetary` is C or POSIX. In every other locale money is refused.
    pub lc_monetary_is_c: bool,
}

impl Settings {
    /// UTC and the C locale, for this version.
    #[must_use]
    pub fn new(version: PgVersion) -> Self {
        Settings { version, time_zone: TimeZone::Utc, lc_monetary_is_c: true }
    }
}
