//! Values as servers send them.

use std::fmt;

pub(super) type Result<T> = std::result::Result<T, Malformed>;

/// Bytes that a value came as.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form<'a> {
    Text(&'a [u8]),
    Binary(&'a [u8]),
}

/// A value of an identity column, in one of the forms in which servers send it.
///
/// Text is in DateStyle ISO and IntervalStyle postgres, with `extra_float_digits` above 0 and
/// `bytea_output` hex. That is what pgsluice's own sessions ask for. The time zone does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// NULL.
    Null,
    /// What the type's output function gives.
    Text(&'a [u8]),
    /// What the type's send function gives.
    Binary(&'a [u8]),
}

/// A value that its type could not have sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    /// The kind of value.
    pub what: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of an identity column is no {}", self.what)
    }
}

impl std::error::Error for Malformed {}

/// The bytes of a binary value of fixed length.
pub(super) fn fixed<const N: usize>(bytes: &[u8], what: &'static str) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| Malformed { what })
}

/// A text that must be ASCII.
pub(super) fn ascii<'a>(text: &'a [u8], what: &'static str) -> Result<&'a str> {
    std::str::from_utf8(text).ok().filter(|text| text.is_ascii()).ok_or(Malformed { what })
}
