//! The one thing that can go wrong with a track: its files.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a track cannot be kept or read.
#[derive(Debug)]
pub struct Error {
    pub(crate) doing: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.doing, self.path.display(), self.error)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
