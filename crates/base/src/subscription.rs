//! A subscription's name, and the names of its slot, origins and sessions.

use std::fmt;
use std::str::FromStr;

/// The name of one pipeline.
///
/// The slot's name is the subscription's name behind a prefix, so the rules are those of a slot:
/// lower-case letters, digits and underscores. `NAMEDATALEN - 1` is 63 bytes. The prefix and the
/// longest suffix need 20 of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionName(String);

/// Why a text cannot name a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameError {
    name: String,
}

/// 63 bytes of a slot's name, less `pgsluice_` and `_copy_12345`.
const LENGTH_MAX: usize = 63 - 20;

impl SubscriptionName {
    /// The permanent logical slot on the source.
    #[must_use]
    pub fn slot(&self) -> String {
        format!("pgsluice_{}", self.0)
    }

    /// A temporary slot that only provides the snapshot for a first copy by the process `pid`.
    #[must_use]
    pub fn copy_slot(&self, pid: u32) -> String {
        format!("pgsluice_{}_copy_{}", self.0, pid % 100_000)
    }

    /// The replication origin of apply worker `worker` on the target.
    #[must_use]
    pub fn origin(&self, worker: usize) -> String {
        format!("pgsluice_{}_{worker}", self.0)
    }

    /// The application name of a session with the given role, as shown in `pg_stat_activity`.
    #[must_use]
    pub fn application_name(&self, role: &str) -> String {
        format!("pgsluice {} {role}", self.0)
    }

    /// The name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SubscriptionName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if name.is_empty() || name.len() > LENGTH_MAX || !name.bytes().all(allowed) {
            return Err(NameError { name: name.to_owned() });
        }
        Ok(SubscriptionName(name.to_owned()))
    }
}

impl fmt::Display for SubscriptionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\" cannot name a subscription: use 1 to {LENGTH_MAX} lower-case letters, digits and underscores, \
             because slot and origins are named after it",
            self.name
        )
    }
}

impl std::error::Error for NameError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_derived_name_fits_a_slot() {
        let longest: SubscriptionName = "x".repeat(LENGTH_MAX).parse().unwrap();
        assert!(longest.copy_slot(u32::MAX).len() <= 63);
        for bad in ["", "Upper", "a-b", "ä", &"x".repeat(LENGTH_MAX + 1)] {
            assert!(bad.parse::<SubscriptionName>().is_err(), "{bad}");
        }
    }
}
