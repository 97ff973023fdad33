//! The file from which a start goes on decoding the WAL of a source.
//!
//! It holds the catalogs at one place in the WAL, and is always replaced as a whole. `decoding`
//! decides when it may be replaced.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use base::Lsn;
use catalog::Catalog;

use crate::error::{Error, Kind};
use crate::unfit::Unfit;

static SAVING: Mutex<()> = Mutex::new(());

const MAGIC: &[u8; 16] = b"pgsluice source\n";
const VERSION: u32 = 2;
/// The version of files that lack [`Restart::seen`].
const VERSION_UNSEEN: u32 = 1;
/// Magic, version, timeline, confirmed position, seen position, length of the slot's name.
const HEADER: usize = 16 + 4 + 4 + 8 + 8 + 4;

/// The contents of the file.
#[derive(Debug, Clone)]
pub struct Restart {
    /// The slot that keeps the WAL.
    pub slot: String,
    /// The source's timeline when the file was written.
    pub timeline: u32,
    /// The target had everything up to here on disk.
    pub confirmed: Lsn,
    /// Everything that the look at the catalogs and the first copy saw had committed before this
    /// position.
    pub seen: Lsn,
    /// The catalogs at the place where reading begins.
    pub catalog: Catalog,
}

impl Restart {
    /// Writes the file. If the machine crashes, the file holds either its old or its new contents.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        self.write(path).map_err(|error| Kind::Spool(error).into())
    }

    /// As [`Restart::save`].
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        // A save that an ended attempt began must not overwrite the next attempt's save.
        let _one = SAVING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::from(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.timeline.to_le_bytes());
        bytes.extend_from_slice(&self.confirmed.as_u64().to_le_bytes());
        bytes.extend_from_slice(&self.seen.as_u64().to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(self.slot.len()).unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(self.slot.as_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes.extend_from_slice(&self.catalog.to_bytes());
        catalog::replace_file(path, &bytes)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The file is missing or damaged. Nothing can replace it.
    pub fn open(path: &Path) -> Result<Restart, Error> {
        let refused = |why: String| Error::from(Unfit::NoRestart { path: path.to_owned(), why });
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(refused("there is no such file".to_owned()));
            }
            Err(error) => {
                return Err(Kind::Spool(io::Error::other(format!("{}: {error}", path.display()))).into());
            }
        };
        let header = Header::read(&bytes).map_err(refused)?;
        let Header { slot, timeline, confirmed, seen, catalog } = header;
        let catalog = Catalog::from_bytes(catalog).map_err(|error| refused(error.to_string()))?;
        Ok(Restart { slot, timeline, confirmed, seen, catalog })
    }

    /// The position up to which the target had everything on disk.
    #[must_use]
    pub fn confirmed(&self) -> Lsn {
        self.confirmed
    }

    /// The catalogs at the place where reading begins.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The place in the WAL of the look at the catalogs that they come from.
    #[must_use]
    pub fn looked(&self) -> Lsn {
        self.catalog.looked()
    }

    /// Whether the file contains nothing from the WAL behind `fork`.
    #[must_use]
    pub fn is_within(&self, fork: Lsn) -> bool {
        let last = self.catalog.last();
        // `<`, because `last` is where the last record begins. After the fork, another source
        // writes its first record at `fork`, too.
        let is_read_before = if last.is_valid() { last < fork } else { self.catalog.start() <= fork };
        is_read_before && (self.catalog.is_past_look() || self.seen <= fork)
    }

    /// The first copy's snapshot may have seen one commit before the returned position, and missed
    /// an earlier one. Older versions did not store this position; then `wal_end`, the present end
    /// of WAL, takes its place.
    #[must_use]
    pub fn may_have_seen(&self, wal_end: Lsn) -> Option<Lsn> {
        let seen = if self.seen.as_u64() == u64::MAX { wal_end } else { self.seen };
        (!self.catalog.is_past_look()).then_some(seen)
    }

    /// The position from which WAL is needed.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.catalog.needs_from()
    }
}

/// The part of the file before the catalogs, and the bytes of the catalogs.
struct Header<'b> {
    slot: String,
    timeline: u32,
    confirmed: Lsn,
    seen: Lsn,
    catalog: &'b [u8],
}

impl Header<'_> {
    /// Reads the header, or says why it cannot.
    fn read(bytes: &[u8]) -> Result<Header<'_>, String> {
        let version = bytes.strip_prefix(MAGIC).and_then(|rest| rest.first_chunk());
        match version.map(|bytes| u32::from_le_bytes(*bytes)) {
            Some(version @ (VERSION | VERSION_UNSEEN)) => {
                Header::read_version(bytes, version).ok_or_else(|| "it is damaged".to_owned())
            }
            Some(version) => Err(format!(
                "its version is {version}, or it is damaged; this pgsluice reads versions {VERSION_UNSEEN} to {VERSION}"
            )),
            None => Err("it is damaged".to_owned()),
        }
    }

    fn read_version(bytes: &[u8], version: u32) -> Option<Header<'_>> {
        const SEEN: usize = 8;
        let size = if version == VERSION_UNSEEN { HEADER - SEEN } else { HEADER };
        let (header, rest) = bytes.split_at_checked(size)?;
        let number = |at: usize| Some(u32::from_le_bytes(*header.get(at..)?.first_chunk()?));
        let position = |at: usize| Some(Lsn::new(u64::from_le_bytes(*header.get(at..)?.first_chunk()?)));
        let (slot, rest) = rest.split_at_checked(usize::try_from(number(size - 4)?).ok()?)?;
        let (checksum, catalog) = rest.split_first_chunk()?;
        let sealed = &bytes[..size + slot.len()];
        if crc32c::crc32c(sealed) != u32::from_le_bytes(*checksum) {
            return None;
        }
        Some(Header {
            slot: String::from_utf8(slot.to_vec()).ok()?,
            timeline: number(20)?,
            confirmed: position(24)?,
            // An older file does not say; anything may have been seen.
            seen: if version == VERSION_UNSEEN { Lsn::new(u64::MAX) } else { position(32)? },
            catalog,
        })
    }
}
