//! The only access to the disk: a file of bytes that can be read, written, sized and synced.
//!
//! The store opens two of them, one for pages and one for the log. Tests inject faults with
//! implementations of [`Disk`]. The README says what an implementation must guarantee, under "What
//! we assume of the medium".

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, OFlags};

/// A file of bytes. Calls may come from several threads at once.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// The disk's; `UnexpectedEof` where the file is shorter.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Announces a read of these bytes, so that a disk that can do so reads them meanwhile. It does
    /// not wait, changes nothing, and may do nothing.
    fn prefetch(&self, offset: u64, length: usize) {
        let _ = (offset, length);
    }

    /// Writes all of `bytes` at `offset`; the file grows if it must.
    ///
    /// # Errors
    /// The disk's.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Like [`Disk::write_at`] inside of the file, but durable when it returns. What was written
    /// before need not be durable.
    ///
    /// # Errors
    /// As [`Disk::sync`].
    fn write_durably(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)?;
        self.sync()
    }

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
    /// The disk's. Everything written before is then in doubt, whatever a later call returns.
    fn sync(&self) -> io::Result<()>;
}

/// An ordinary file, held exclusively.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    /// The same file opened past the kernel's cache, so that each write is durable when it returns.
    /// `None` if the file system cannot do that.
    direct: Option<File>,
    direct_fails: AtomicBool,
}

/// The alignment of direct writes, in memory and in the file.
const DIRECT_ALIGN: usize = 4096;
/// Longer writes gain nothing from going past the kernel's cache.
const DIRECT_BYTES_MAX: usize = 64 << 10;

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
            // A file whose name is not durable is lost in a crash, even if its content was synced.
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all()).map_err(named)?;
        }
        // Pages are read one by one, at random. Reading ahead would read several times the bytes
        // that are wanted. This is only advice: a file system that ignores it still reads
        // correctly.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        let flags = (OFlags::DIRECT | OFlags::DSYNC).bits().cast_signed();
        // Through the descriptor, because the name may lead to another file by now.
        let same = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = File::options().write(true).custom_flags(flags).open(same).ok();
        Ok(FileDisk { file, direct, direct_fails: AtomicBool::new(false) })
    }

    /// The file opened past the kernel's cache, if it takes such a write.
    fn direct(&self, offset: u64, length: usize) -> Option<&File> {
        let fits = offset.is_multiple_of(DIRECT_ALIGN as u64)
            && length.is_multiple_of(DIRECT_ALIGN)
            && length <= DIRECT_BYTES_MAX
            && !self.direct_fails.load(Ordering::Relaxed);
        self.direct.as_ref().filter(|_| fits)
    }
}

impl Disk for FileDisk {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn prefetch(&self, offset: u64, length: usize) {
        // Only advice, as at opening.
        let length = NonZeroU64::new(length as u64);
        let _ = rustix::fs::fadvise(&self.file, offset, length, Advice::WillNeed);
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn write_durably(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(direct) = self.direct(offset, bytes.len()) {
            let mut buffer = vec![0; bytes.len() + DIRECT_ALIGN];
            let start = buffer.as_ptr().align_offset(DIRECT_ALIGN);
            let aligned = &mut buffer[start..start + bytes.len()];
            aligned.copy_from_slice(bytes);
            match direct.write_all_at(aligned, offset) {
                // The file system wants another alignment, or allows the flags at opening only.
                // Nothing was written.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.direct_fails.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        self.write_at(offset, bytes)?;
        self.sync()
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
