//! Refused filters, and rows that cannot be judged.

use std::fmt;

/// Why a row could not be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Value(types::Error),
    Damaged,
    OutOfRange(&'static str),
}

/// The result of evaluating.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) const fn out_of_range(what: &'static str) -> Self {
        Error { kind: Kind::OutOfRange(what) }
    }

    pub(crate) const fn damaged() -> Self {
        Error { kind: Kind::Damaged }
    }

    /// Whether a cast of the filter fails for this row, as it fails in the server.
    #[must_use]
    pub fn is_out_of_range(&self) -> bool {
        matches!(self.kind, Kind::OutOfRange(_))
    }
}

impl From<types::Error> for Error {
    fn from(error: types::Error) -> Self {
        Error { kind: Kind::Value(error) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Value(_) | Kind::Damaged => f.write_str("reading a column of a row filter"),
            Kind::OutOfRange(what) => write!(f, "evaluating a row filter: {what} out of range"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            Kind::Value(error) => Some(error),
            Kind::OutOfRange(_) | Kind::Damaged => None,
        }
    }
}

/// A filter that cannot be evaluated here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedFilter {
    /// The filter as SQL.
    pub text: String,
    /// The part that cannot be evaluated.
    pub reason: String,
}

impl fmt::Display for RefusedFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the row filter {} cannot be evaluated outside the server: {}", self.text, self.reason)
    }
}

impl std::error::Error for RefusedFilter {}
