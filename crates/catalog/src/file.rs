//! A catalog in a file, as of the look or of any place that it was followed to.
//!
//! | bytes | |
//! | --- | --- |
//! | 16 | `pgsluice catalog` |
//! | 4 | the version of the format: 1 |
//! | 8 | length of what follows, without the checksum |
//! | | server, start, position of the look, last record, databases, files with their pages and rows, open transactions |
//! | 4 | CRC-32C of everything before it |
//!
//! Numbers are little-endian. A file of another version is refused with its number; a new look
//! costs seconds.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base::{Oid, PgSnapshot, RelFileLocator};
use rustc_hash::FxHashMap;
use wal::Fields;

use crate::error::{Error, Result};
use crate::field::{Field, field_struct};
use crate::pages::Pages;
use crate::rows::Kind;
use crate::table::CatalogTable;
use crate::transactions::Transactions;
use crate::{Catalog, File, Server, Space};

const MAGIC: &[u8; 16] = b"pgsluice catalog";
const VERSION: u32 = 1;
/// Length of magic, version and length field.
const HEADER: usize = 28;
const CHECKSUM: usize = 4;

/// Makes `bytes` the content of the file at `path`. If the machine goes down at any time, the file
/// holds either them or its old content. Only its owner may read it, because rows of catalogs
/// contain defaults and filters.
///
/// # Errors
/// It cannot be written, and keeps its old content.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
    let mut new = name.to_owned();
    new.push(".new");
    let new = path.with_file_name(new);
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(dir)?.sync_all()
}

field_struct!(Server { system_id, major, timeline });
field_struct!(Space { name, tablespace, collation_is_c, snapshot, map, current });

/// Ids are kept without their epochs, as in WAL.
impl Field for PgSnapshot {
    fn write(&self, out: &mut Vec<u8>) {
        let low = |xid: u64| xid as u32;
        (low(self.xmin), low(self.xmax)).write(out);
        self.running.iter().copied().map(low).collect::<Vec<_>>().write(out);
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (xmin, xmax): (u32, u32) = Field::read(fields)?;
        let running = Vec::<u32>::read(fields)?;
        // An id that is not older than the last one is of the epoch before.
        let epoch = if xmin > xmax { 1 << 32 } else { 0 };
        let whole = |xid: u32| u64::from(xid) + if xid > xmax { 0 } else { epoch };
        let mut running: Vec<u64> = running.into_iter().map(whole).collect();
        running.sort_unstable();
        Some(PgSnapshot { xmin: whole(xmin), xmax: u64::from(xmax) + epoch, running })
    }
}

impl Field for Kind {
    fn write(&self, out: &mut Vec<u8>) {
        self.oid().write(out);
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Kind::of_oid(Oid::read(fields)?)
    }
}

impl Field for File {
    fn write(&self, out: &mut Vec<u8>) {
        (self.database, self.kind, self.owner).write(out);
        self.pages.write(out);
        self.table.is_some().write(out);
        if let Some(table) = &self.table {
            table.write(out);
        }
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (database, kind, owner) = Field::read(fields)?;
        let pages = Pages::read(fields)?;
        let table = if bool::read(fields)? { Some(CatalogTable::read(kind, fields)?) } else { None };
        Some(File { database, kind, pages, table, owner })
    }
}

impl Catalog {
    /// The catalog as bytes. The same catalog gives the same bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = Vec::new();
        (self.server, self.start, self.looked, self.last).write(&mut body);
        self.spaces.write(&mut body);
        self.files.write(&mut body);
        self.transactions.write(&mut body);
        let mut out = Vec::with_capacity(HEADER + body.len() + CHECKSUM);
        out.extend_from_slice(MAGIC);
        (VERSION, body.len() as u64).write(&mut out);
        out.append(&mut body);
        crc32c::crc32c(&out).write(&mut out);
        out
    }

    /// Reads a catalog from the bytes of [`Catalog::to_bytes`].
    ///
    /// # Errors
    /// The bytes are no catalog, of another version, or damaged ([`Error::is_file`]).
    pub fn from_bytes(bytes: &[u8]) -> Result<Catalog> {
        let mut header = Fields::new(bytes);
        if header.take(MAGIC.len()) != Some(MAGIC) {
            return Err(Error::file("it is none"));
        }
        let version = header.u32();
        if version != Some(VERSION) {
            let version = version.map_or("none".to_owned(), |version| version.to_string());
            return Err(Error::file(format!(
                "its version is {version}, and this pgsluice reads version {VERSION}; export it again"
            )));
        }
        let whole =
            header.u64().and_then(|length| usize::try_from(length).ok()?.checked_add(HEADER + CHECKSUM));
        if whole != Some(bytes.len()) {
            return Err(Error::file("it is cut short or too long"));
        }
        let (sealed, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
        if Fields::new(checksum).u32() != Some(crc32c::crc32c(sealed)) {
            return Err(Error::file("it is damaged: its checksum is wrong"));
        }
        let mut fields = Fields::new(&sealed[HEADER..]);
        let catalog = Catalog::read_body(&mut fields).filter(|_| fields.is_empty());
        let mut catalog = catalog.ok_or_else(|| Error::file("it contradicts itself"))?;
        catalog.shape().map_err(|_| Error::file("it lacks the columns of the catalogs"))?;
        Ok(catalog)
    }

    fn read_body(fields: &mut Fields<'_>) -> Option<Catalog> {
        let (server, start, looked, last) = Field::read(fields)?;
        let spaces: FxHashMap<Oid, Space> = Field::read(fields)?;
        let files: FxHashMap<RelFileLocator, File> = Field::read(fields)?;
        let transactions = Transactions::read(fields)?;
        Some(Catalog {
            server,
            start,
            looked,
            last,
            spaces,
            files,
            shapes: FxHashMap::default(),
            transactions,
        })
    }

    /// Writes the catalog to a file. If the machine goes down at any time, the file holds either
    /// its old content or all of the new.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        Ok(replace_file(path, &self.to_bytes())?)
    }

    /// Reads a catalog from a file.
    ///
    /// # Errors
    /// It cannot be read, or as [`Catalog::from_bytes`].
    pub fn open(path: &Path) -> Result<Catalog> {
        Catalog::from_bytes(&fs::read(path)?)
    }
}

#[cfg(test)]
mod tests {
    use base::Xid;

    use super::*;

    #[test]
    fn a_snapshot_that_was_kept_sees_the_same() {
        for text in [
            "700:820:700,705",
            "4294967290:4294967310:4294967290,4294967300",
            "8589934000:8589934600:8589934100",
        ] {
            let before: PgSnapshot = text.parse().unwrap();
            let mut bytes = Vec::new();
            before.write(&mut bytes);
            let after = PgSnapshot::read(&mut Fields::new(&bytes)).unwrap();
            for near in before.xmin - 100..before.xmax + 100 {
                let xid = Xid(near as u32);
                assert_eq!(after.sees(xid), before.sees(xid), "{text}: {near}");
            }
        }
    }
}
