//! Why transactions cannot be put together.

use std::fmt;
use std::io;

use base::{Lsn, Oid, RelFileLocator, Xid};

/// A transaction cannot be put together, or its changes cannot be kept. Nothing comes out after
/// this error.
#[derive(Debug)]
pub struct Error(pub(crate) Kind);

/// The object of a change whose relation was not known at its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unknown {
    /// Files.
    Files(RelFileLocator),
    /// A relation that TRUNCATE names.
    Relation(Oid),
}

#[derive(Debug)]
pub(crate) enum Kind {
    Spool { xid: Xid, error: io::Error },
    Damaged { xid: Xid, block: u32, what: &'static str },
    Unresolved { object: Unknown, xid: Xid, lsn: Lsn, finished: Lsn },
    Row { lsn: Lsn, xid: Xid, what: &'static str },
    Speculative { xid: Xid, lsn: Lsn, finished: Lsn, what: &'static str },
    Undecided { xid: Xid, top: Xid, finished: Lsn },
    Assigned { lsn: Lsn, xid: Xid, top: Xid, before: Xid },
    Ended { lsn: Lsn, xid: Xid },
    Over,
}

impl Error {
    /// Whether the disk failed, and not WAL; another try later may succeed.
    #[must_use]
    pub fn is_disk(&self) -> bool {
        matches!(self.0, Kind::Spool { .. } | Kind::Damaged { .. })
    }

    /// The object that was still unknown when its transaction committed.
    #[must_use]
    pub fn unresolved(&self) -> Option<Unknown> {
        match self.0 {
            Kind::Unresolved { object, .. } => Some(object),
            _ => None,
        }
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Error {
        Error(kind)
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unknown::Files(locator) => write!(f, "the files {locator}"),
            Unknown::Relation(oid) => write!(f, "relation {oid}"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Spool { xid, error } => write!(f, "spooling open transaction {xid}: {error}"),
            Kind::Damaged { xid, block, what } => {
                write!(f, "spooled transaction {xid} cannot be read back: block {block} {what}")
            }
            Kind::Unresolved { object, xid, lsn, finished } => write!(
                f,
                "transaction {xid}, which finished at {finished}, changed {object} at {lsn}, and no catalog says \
                 what that is"
            ),
            Kind::Row { lsn, xid, what } => write!(f, "WAL record {lsn} of transaction {xid}: {what}"),
            Kind::Speculative { xid, lsn, finished, what } => {
                write!(
                    f,
                    "transaction {xid}, which finished at {finished}: a speculative insertion at {lsn} {what}"
                )
            }
            Kind::Undecided { xid, top, finished } => write!(
                f,
                "transaction {top} finished at {finished} without saying whether its subtransaction {xid} committed"
            ),
            Kind::Assigned { lsn, xid, top, before } => write!(
                f,
                "WAL record {lsn}: transaction {xid} belongs to {top} here, and belonged to {before} before"
            ),
            Kind::Ended { lsn, xid } => {
                write!(f, "WAL record {lsn}: subtransaction {xid} goes on after it was aborted")
            }
            Kind::Over => f.write_str("transactions cannot be put together after an error"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Spool { error, .. } => Some(error),
            _ => None,
        }
    }
}
