//! Errors of values, and of the descriptions of types.
//!
//! [`Error`] is about bytes: they are damaged, or they are stored elsewhere. [`Unsupported`] is
//! about a type, and is known before any value is read. Neither shows a value.

use std::fmt;

use base::Oid;

/// Bytes that cannot be a value of their type, or that are stored elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Damaged(&'static str),
    External,
    NoLabel(Oid),
}

/// The result of functions that read stored bytes.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// `what` is the part that is damaged.
    pub(crate) const fn damaged(what: &'static str) -> Self {
        Error { kind: Kind::Damaged(what) }
    }

    /// The value is in a TOAST table.
    pub(crate) const fn external() -> Self {
        Error { kind: Kind::External }
    }

    /// An enum's value without a label in the type's description.
    pub(crate) const fn no_label(value: Oid) -> Self {
        Error { kind: Kind::NoLabel(value) }
    }

    /// Whether the bytes contradict themselves or their type.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        matches!(self.kind, Kind::Damaged(_))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Damaged(what) => write!(f, "damaged value: {what}"),
            Kind::External => f.write_str("the value is stored outside of its row"),
            Kind::NoLabel(value) => write!(f, "no label is known for the enum value with OID {value}"),
        }
    }
}

impl std::error::Error for Error {}

/// A type whose values cannot be rendered here, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// The type that cannot be rendered: of the column itself, or of a part of it.
    pub name: String,
    /// Why, as the end of a sentence.
    pub reason: &'static str,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "values of type {} cannot be rendered outside the server: {}", self.name, self.reason)
    }
}

impl std::error::Error for Unsupported {}
