//! Errors in WAL, with their places.
//!
//! One opaque error. Every error has an LSN: of the page or the record that is wrong, or of the
//! place where bytes were expected.

use std::fmt;

use base::Lsn;

/// WAL that cannot be read any further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    lsn: Lsn,
    kind: Kind,
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The bytes begin at another place than the reader has reached.
    Gap { pushed: Lsn },
    /// A page of an unknown version.
    Magic(u16),
    /// The page that starts here.
    Page(String),
    /// The record that starts here.
    Record(String),
    /// The record's bytes are not those that were written.
    Checksum { stored: u32, computed: u32 },
    /// The input ends in the middle of the record that starts here.
    Incomplete,
    /// The caller asked the reader for something impossible.
    Misuse(String),
}

impl Error {
    pub(crate) fn new(lsn: Lsn, kind: Kind) -> Error {
        Error { lsn, kind }
    }

    pub(crate) fn page(lsn: Lsn, what: impl Into<String>) -> Error {
        Error::new(lsn, Kind::Page(what.into()))
    }

    pub(crate) fn record(lsn: Lsn, what: impl Into<String>) -> Error {
        Error::new(lsn, Kind::Record(what.into()))
    }

    /// The place: the start of the page or record, or where bytes were expected.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Bytes are missing before those that were pushed: a lost segment, for example.
    #[must_use]
    pub fn is_gap(&self) -> bool {
        matches!(self.kind, Kind::Gap { .. })
    }

    /// The WAL was written by an unknown major.
    #[must_use]
    pub fn is_unknown_version(&self) -> bool {
        matches!(self.kind, Kind::Magic(_))
    }

    /// The input ended in the middle of a record; nothing else is wrong.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        matches!(self.kind, Kind::Incomplete)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lsn = self.lsn;
        match &self.kind {
            Kind::Gap { pushed } => {
                write!(f, "WAL is missing: {lsn} is next, but what came starts at {pushed}")
            }
            Kind::Magic(magic) => write!(
                f,
                "WAL page {lsn}: its magic number {magic:04X} is that of no supported version (PostgreSQL 14 to 18)"
            ),
            Kind::Page(what) => write!(f, "WAL page {lsn}: {what}"),
            Kind::Record(what) => write!(f, "WAL record {lsn}: {what}"),
            Kind::Checksum { stored, computed } => write!(
                f,
                "WAL record {lsn}: it is damaged, its checksum is {computed:08X} and should be {stored:08X}"
            ),
            Kind::Incomplete => write!(f, "WAL record {lsn}: the WAL ends in the middle of it"),
            Kind::Misuse(what) => write!(f, "reading WAL from {lsn}: {what}"),
        }
    }
}

impl std::error::Error for Error {}
