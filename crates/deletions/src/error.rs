//! Why deletions cannot be remembered.

use std::fmt;
use std::io;

/// The version store below failed. The memory is to be dropped and opened again; until then nobody
/// knows which rows were deleted.
#[derive(Debug)]
pub struct Error {
    attempt: &'static str,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    Disk(io::Error),
    Store(store::Error),
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For `map_err`: `attempt` completes "cannot ...".
    pub(crate) fn store(attempt: &'static str) -> impl Fn(store::Error) -> Error + Copy {
        move |cause| Error { attempt, cause: Cause::Store(cause) }
    }

    /// The same for a file of the store.
    pub(crate) fn disk(attempt: &'static str) -> impl Fn(io::Error) -> Error + Copy {
        move |cause| Error { attempt, cause: Cause::Disk(cause) }
    }

    /// The disk failed, or another process holds the files: opening again may succeed.
    #[must_use]
    pub fn is_disk(&self) -> bool {
        match &self.cause {
            Cause::Disk(_) => true,
            Cause::Store(error) => error.is_io() || error.is_poisoned(),
        }
    }

    /// What was read is not what was written: the files are to be removed
    /// ([`Memory::remove`](crate::Memory::remove)), and capture begins anew.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        matches!(&self.cause, Cause::Store(error) if error.is_damaged())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deletion memory: cannot {}", self.attempt)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(match &self.cause {
            Cause::Disk(error) => error,
            Cause::Store(error) => error,
        })
    }
}
