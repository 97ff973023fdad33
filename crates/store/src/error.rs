//! Why the store refused to do something or could not do it.
//!
//! One opaque error. A caller can tell some causes apart by predicates. The text is for people:
//! what was attempted, on which page of which tree, and what to do.

use std::fmt;
use std::io;

use base::Lsn;

/// The store could not do what the caller wanted, or refused to.
#[derive(Debug)]
pub struct Error(Box<Kind>);

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug)]
enum Kind {
    /// The disk failed. `attempt` completes "cannot ...".
    Io { attempt: &'static str, cause: io::Error },
    /// What was read is not what was written.
    Damaged { place: Place, why: String },
    /// The store has reached its size limit.
    Full { pages_max: u32 },
    /// An earlier write or sync failed. Only opening the store again tells what is on disk.
    Poisoned,
    /// The caller wanted a state older than what is kept.
    BelowHorizon { as_of: Lsn, horizon: Lsn },
    /// The caller wanted a state that is not committed.
    NotCommitted { as_of: Lsn, committed: Lsn },
    /// The call itself is wrong; the text says how.
    Misuse(String),
}

/// Where damage was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A page of a tree, by the tree's name.
    Page { page: u32, tree: String },
    /// A page that belongs to the page table.
    Table { block: u32 },
    /// The head of the data file.
    Meta,
    /// A block of the log.
    Log { block: u64 },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Page { page, tree } => write!(f, "page {page} of tree \"{tree}\""),
            Place::Table { block } => write!(f, "the page table in block {block}"),
            Place::Meta => f.write_str("the head of the data file"),
            Place::Log { block } => write!(f, "block {block} of the log"),
        }
    }
}

impl Error {
    fn new(kind: Kind) -> Error {
        Error(Box::new(kind))
    }

    /// Makes an error of the disk, for `map_err`. `attempt` completes "cannot ...".
    pub(crate) fn io(attempt: &'static str) -> impl Fn(io::Error) -> Error + Copy {
        move |cause| Error::new(Kind::Io { attempt, cause })
    }

    pub(crate) fn damaged(place: Place, why: impl Into<String>) -> Error {
        Error::new(Kind::Damaged { place, why: why.into() })
    }

    pub(crate) fn full(pages_max: u32) -> Error {
        Error::new(Kind::Full { pages_max })
    }

    pub(crate) fn poisoned() -> Error {
        Error::new(Kind::Poisoned)
    }

    pub(crate) fn below_horizon(as_of: Lsn, horizon: Lsn) -> Error {
        Error::new(Kind::BelowHorizon { as_of, horizon })
    }

    pub(crate) fn not_committed(as_of: Lsn, committed: Lsn) -> Error {
        Error::new(Kind::NotCommitted { as_of, committed })
    }

    pub(crate) fn misuse(message: impl Into<String>) -> Error {
        Error::new(Kind::Misuse(message.into()))
    }

    /// The store has reached its size limit and nothing was changed. Raise the horizon, commit,
    /// call [`sweep_all`](crate::Store::sweep_all), and try again.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(*self.0, Kind::Full { .. })
    }

    /// What was read is not what was written: the file is damaged.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        matches!(*self.0, Kind::Damaged { .. })
    }

    /// An earlier write or sync failed: close the store and open it again.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        matches!(*self.0, Kind::Poisoned)
    }

    /// The disk failed.
    #[must_use]
    pub fn is_io(&self) -> bool {
        matches!(*self.0, Kind::Io { .. })
    }

    /// The wanted state is older than the horizon.
    #[must_use]
    pub fn is_below_horizon(&self) -> bool {
        matches!(*self.0, Kind::BelowHorizon { .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Io { attempt, .. } => write!(f, "version store: cannot {attempt}"),
            Kind::Damaged { place, why } => write!(
                f,
                "version store: {place} is damaged: {why}; restore the store or let it be built again"
            ),
            Kind::Full { pages_max } => write!(
                f,
                "version store: its size limit of {pages_max} pages is reached; raise the horizon or the limit"
            ),
            Kind::Poisoned => f.write_str(
                "version store: an earlier write failed, what is on disk is not known; open the store again",
            ),
            Kind::BelowHorizon { as_of, horizon } => {
                write!(f, "version store: {as_of} is older than the horizon {horizon}: it may be forgotten")
            }
            Kind::NotCommitted { as_of, committed } => {
                write!(f, "version store: {as_of} is not committed yet, the last commit is {committed}")
            }
            Kind::Misuse(message) => write!(f, "version store: {message}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Io { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
