//! Server versions.

use std::fmt;

/// A server's version in the form of `server_version_num`: 150018 is 15.18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgVersion(u32);

impl PgVersion {
    /// From `server_version_num`.
    #[must_use]
    pub const fn from_num(server_version_num: u32) -> Self {
        PgVersion(server_version_num)
    }

    /// 15 for 15.18.
    #[must_use]
    pub const fn major(self) -> u32 {
        self.0 / 10_000
    }

    /// The highest `proto_version` of pgoutput that a server of this version speaks.
    #[must_use]
    pub const fn pgoutput_protocol_max(self) -> u32 {
        match self.major() {
            0..=13 => 1,
            14 => 2,
            15 => 3,
            _ => 4,
        }
    }
}

impl fmt::Display for PgVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.0 % 10_000)
    }
}
