//! A position in the WAL.

use std::fmt;
use std::str::FromStr;

/// A byte position in the WAL. It is written as in PostgreSQL: `16/B374D848`.
///
/// Zero is PostgreSQL's `InvalidXLogRecPtr`: "no position yet".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// No position: PostgreSQL's `InvalidXLogRecPtr`.
    pub const INVALID: Lsn = Lsn(0);

    /// The position `bytes` bytes from the start of the WAL.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Lsn(bytes)
    }

    /// Bytes from the start of the WAL.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// False for [`Lsn::INVALID`].
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 != 0
    }

    /// Bytes from `earlier` to here, zero if `earlier` is ahead.
    #[must_use]
    pub const fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The text was not an LSN of the form `16/B374D848`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseLsnError(String);

impl fmt::Display for ParseLsnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not an LSN: expected two hexadecimal numbers as in 16/B374D848", self.0)
    }
}

impl std::error::Error for ParseLsnError {}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Each half has one to eight digits, as in pg_lsn_in. A sign or an empty half would pass
        // from_str_radix, or mean something else.
        let half = |digits: &str| {
            let valid = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            valid.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(Lsn(half(high)? << 32 | half(low)?)))
            .ok_or_else(|| ParseLsnError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_is_postgresqls() {
        let lsn: Lsn = "16/B374D848".parse().unwrap();
        assert_eq!(lsn.as_u64(), 0x16_B374_D848);
        assert_eq!(lsn.to_string(), "16/B374D848");
        assert_eq!(Lsn::INVALID.to_string(), "0/0");
        for bad in ["", "1", "/", "1/", "/1", "+1/0", "123456789/0", "0/g"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad}");
        }
    }
}
