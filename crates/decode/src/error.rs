//! Records that cannot be decoded.

use std::fmt;

use base::Lsn;
use wal::Record;

/// A record of an unknown kind, or one that does not have the form of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    lsn: Lsn,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// The reader's error has the place and the reason.
    Wal(wal::Error),
    Unknown {
        rmgr: String,
        info: u8,
        major: u32,
    },
    Broken {
        rmgr: String,
        name: &'static str,
        what: &'static str,
    },
}

impl Error {
    pub(crate) fn wal(error: wal::Error) -> Error {
        Error { lsn: error.lsn(), kind: Kind::Wal(error) }
    }

    pub(crate) fn unknown(record: &Record<'_>) -> Error {
        let (rmgr, info) = (record.rmgr().to_string(), record.info());
        Error { lsn: record.lsn(), kind: Kind::Unknown { rmgr, info, major: record.layout().major() } }
    }

    pub(crate) fn broken(record: &Record<'_>, name: &'static str, what: &'static str) -> Error {
        Error { lsn: record.lsn(), kind: Kind::Broken { rmgr: record.rmgr().to_string(), name, what } }
    }

    /// Where the record starts.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Whether the kind of record is unknown.
    #[must_use]
    pub fn is_unknown_kind(&self) -> bool {
        matches!(self.kind, Kind::Unknown { .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lsn = self.lsn;
        match &self.kind {
            Kind::Wal(error) => error.fmt(f),
            Kind::Unknown { rmgr, info, major } => {
                write!(
                    f,
                    "WAL record {lsn}: {rmgr} of PostgreSQL {major} has no known record with info {info:02X}"
                )
            }
            Kind::Broken { rmgr, name, what } => write!(f, "WAL record {lsn} ({rmgr} {name}): {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            Kind::Wal(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}
