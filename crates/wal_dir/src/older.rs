//! WAL that the directory does not keep any more, read where somebody else has it.

use std::fmt;
use std::io::{self, Read};

use base::Lsn;

/// Has WAL that a directory has removed: an archive.
pub trait Older: fmt::Debug + Send + Sync {
    /// Opens the segment of `timeline` that has `at`, at that place. The bytes are those up to the
    /// segment's end.
    ///
    /// # Errors
    /// The segment cannot be had. The text names it.
    fn open(&self, timeline: u32, at: Lsn) -> io::Result<Box<dyn Read + Send>>;
}
