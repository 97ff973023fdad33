//! The directory that the publisher's `archive_command` or `pg_receivewal` fills.
//!
//! | WAL | is read there |
//! | --- | --- |
//! | that the publisher does not have any more | into the relay's own directory: see `fill` |
//! | that was removed here although slots need it: see `trim` | while it is decoded |
//!
//! `fill` and decoding check the bytes. A name says nothing of a file's contents.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::Lsn;
use source::segments::{self, Lineage, Opened, open_whole};
use wal_dir::Older;

/// An archive of the publisher's WAL.
#[derive(Debug, Clone)]
pub struct WalArchive {
    dir: PathBuf,
    segment_size: u64,
}

impl WalArchive {
    /// The archive in `dir`, with segments of `segment_size` bytes.
    #[must_use]
    pub fn new(dir: PathBuf, segment_size: u64) -> WalArchive {
        WalArchive { dir, segment_size }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn segment_size(&self) -> u64 {
        self.segment_size
    }

    /// Opens the segment that has `lsn`, at that place. A file that was written to within `settled`
    /// does not count.
    ///
    /// # Errors
    /// It is missing or too short.
    pub(crate) fn open(&self, of: &Lineage, lsn: Lsn, settled: Duration) -> Result<Opened, segments::Error> {
        open_whole(&self.dir, of, lsn, settled)
    }

    /// Only this timeline, whatever came before it.
    pub(crate) fn of_timeline(&self, timeline: u32) -> Lineage {
        Lineage { timeline, forks: Vec::new(), segment_size: self.segment_size }
    }
}

impl Older for WalArchive {
    fn open(&self, timeline: u32, at: Lsn) -> io::Result<Box<dyn Read + Send>> {
        // It was whole when it was removed here.
        match open_whole(&self.dir, &self.of_timeline(timeline), at, Duration::ZERO) {
            Ok(opened) => Ok(opened.bytes),
            Err(error) => Err(io::Error::other(format!(
                "the archive cannot supply it: {error}; bring the segment back, and the subscriber goes on by itself"
            ))),
        }
    }
}
