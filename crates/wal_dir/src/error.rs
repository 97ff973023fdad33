//! Why WAL cannot be kept or read, with the file or the position.

use std::fmt;
use std::io;
use std::path::PathBuf;

use base::Lsn;

/// Why WAL cannot be kept or read.
#[derive(Debug)]
pub struct Error(pub(crate) Kind);

#[derive(Debug)]
pub(crate) enum Kind {
    Io {
        doing: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    /// Another process writes there.
    Locked(PathBuf),
    /// A file has a segment's name and another segment's length.
    Size {
        path: PathBuf,
        size: u64,
        wanted: u64,
    },
    /// A segment is missing between others.
    Hole {
        path: PathBuf,
        name: String,
    },
    /// Bytes do not go on where the last ones ended.
    OutOfPlace {
        at: Lsn,
        end: Lsn,
    },
    /// The bytes from there on are not kept any more.
    Removed {
        at: Lsn,
        oldest: Lsn,
    },
    /// They are not kept any more, and cannot be had elsewhere either.
    Older {
        at: Lsn,
        error: io::Error,
    },
    /// More was received than the new timeline has of its predecessor.
    PastFork {
        end: Lsn,
        fork: Lsn,
        timeline: u32,
    },
    /// A history file that is none.
    History(PathBuf),
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Error {
        Error(kind)
    }
}

impl Error {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |error| Error(Kind::Io { doing, path, error })
    }

    /// Whether the file system has no room for what was to be written, so that the same may succeed
    /// later. A sync that failed is another matter: nobody knows what it has lost, so the directory
    /// must be opened again.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(&self.0, Kind::Io { doing: "write" | "make", error, .. }
            if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    /// Where the server left the timeline, if more than that was received of it.
    #[must_use]
    pub fn fork(&self) -> Option<Lsn> {
        match self.0 {
            Kind::PastFork { fork, .. } => Some(fork),
            _ => None,
        }
    }

    /// Whether bytes were asked for that are not kept any more.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        matches!(self.0, Kind::Removed { .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Io { doing, path, error } => write!(f, "cannot {doing} {}: {error}", path.display()),
            Kind::Locked(path) => write!(
                f,
                "another process uses the WAL directory {}; stop it, or choose another directory",
                path.display()
            ),
            Kind::Size { path, size, wanted } => write!(
                f,
                "{} has {size} bytes and not {wanted}; it was not written by this program, so move it away",
                path.display()
            ),
            Kind::Hole { path, name } => write!(
                f,
                "segment {name} is missing in {}, and later ones are there; bring it back from an archive",
                path.display()
            ),
            Kind::OutOfPlace { at, end } => write!(f, "WAL of {at} came where {end} was to come"),
            Kind::Removed { at, oldest } => {
                write!(f, "WAL of {at} is not kept any more; the oldest that is kept is {oldest}")
            }
            Kind::Older { at, error } => write!(f, "WAL of {at} is not kept here any more, and {error}"),
            Kind::PastFork { end, fork, timeline } => write!(
                f,
                "WAL was received up to {end}, but timeline {timeline} begins at {fork}: the server that was promoted \
                 lacks what is between"
            ),
            Kind::History(path) => write!(f, "{} is no history file", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Io { error, .. } | Kind::Older { error, .. } => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_write_that_found_no_room_may_be_repeated() {
        let is_full = |doing: &'static str, kind: io::ErrorKind| Error::io(doing, "x")(kind.into()).is_full();
        assert!(
            is_full("write", io::ErrorKind::StorageFull) && is_full("make", io::ErrorKind::QuotaExceeded)
        );
        assert!(!is_full("sync", io::ErrorKind::StorageFull) && !is_full("write", io::ErrorKind::NotFound));
    }
}
