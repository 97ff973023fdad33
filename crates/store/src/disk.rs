//! The one door to the disk: a file of bytes that can be read, written,
//! sized and synced.
//!
//! The store opens two of them, one for pages and one for the log. A fault
//! is an ordinary implementation of [`Disk`]. What an implementation must
//! keep is written in the README under "What we assume of the medium".

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::Advice;

/// A file of bytes. Calls may come from several threads at once.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// The disk's; `UnexpectedEof` where the file is shorter.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Says that these bytes are going to be read, so that a disk which can reads them meanwhile. Does not wait,
    /// changes nothing, and may do nothing.
    fn prefetch(&self, offset: u64, length: usize) {
        let _ = (offset, length);
    }

    /// Writes all of `bytes` at `offset`; the file grows if it must.
    ///
    /// # Errors
    /// The disk's.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Bytes in the file.
    ///
    /// # Errors
    /// The disk's.
    fn size_bytes(&self) -> io::Result<u64>;

    /// Cuts the file or extends it with zeros.
    ///
    /// # Errors
    /// The disk's.
    fn set_size(&self, bytes: u64) -> io::Result<()>;

    /// Returns once everything written before is durable.
    ///
    /// # Errors
    /// The disk's. What was written before is then in doubt, whatever a
    /// later call returns.
    fn sync(&self) -> io::Result<()>;
}

/// An ordinary file, held exclusively.
#[derive(Debug)]
pub struct FileDisk(File);

impl FileDisk {
    /// Opens `path`, making it if it is missing, and locks it.
    ///
    /// # Errors
    /// The file cannot be opened, or another process holds it.
    pub fn open(path: &Path) -> io::Result<FileDisk> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("file {}: {error}", path.display()));
        let is_new = !path.exists();
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(named)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(named(io::Error::new(io::ErrorKind::WouldBlock, "held by another process")));
            }
            Err(TryLockError::Error(error)) => return Err(named(error)),
        }
        if is_new {
            // A file whose name is not durable is gone after a crash, whatever was synced in it.
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all()).map_err(named)?;
        }
        // Pages are read one by one, at random: reading ahead would read several times what is asked.
        // Only advice: a file system that knows none still reads correctly.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        Ok(FileDisk(file))
    }
}

impl Disk for FileDisk {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn prefetch(&self, offset: u64, length: usize) {
        // Only advice, as at opening.
        let length = NonZeroU64::new(length as u64);
        let _ = rustix::fs::fadvise(&self.0, offset, length, Advice::WillNeed);
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
