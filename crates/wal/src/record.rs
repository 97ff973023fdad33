//! One record with exactly the bytes that were written: a view, not a copy.
//!
//! Header (`access/xlogrecord.h`): total length u32, xid u32, previous record's LSN u64, info u8,
//! resource manager u8, two unused bytes, CRC-32C u32. The checksum covers everything behind the
//! header, then the header without the checksum.

use base::{Lsn, Xid};

use crate::error::{Error, Kind, Result};
use crate::layout::Layout;
use crate::rmgr::Rmgr;

/// `SizeOfXLogRecord`.
pub(crate) const HEADER: usize = 24;
const CRC_AT: usize = 20;
/// No server can read a longer record (`MaxAllocSize`; 16 and later write 1020 MB at most).
pub(crate) const LENGTH_MAX: u32 = 0x3fff_ffff;

/// A record. Its checksum is right; its contents have not been looked at.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    lsn: Lsn,
    end: Lsn,
    layout: &'static Layout,
    rmgr: Rmgr,
    /// The header and everything behind it.
    bytes: &'a [u8],
}

/// The number of four bytes at `at`. The caller knows that they are there.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// `xl_tot_len`. `bytes` has at least four bytes.
pub(crate) fn total_length(bytes: &[u8]) -> u32 {
    u32_at(bytes, 0)
}

/// `xl_prev`. `bytes` has at least a header.
pub(crate) fn previous(bytes: &[u8]) -> Lsn {
    Lsn::new(u64::from(u32_at(bytes, 12)) << 32 | u64::from(u32_at(bytes, 8)))
}

/// `xl_rmid`. `bytes` has at least a header.
pub(crate) fn rmid(bytes: &[u8]) -> u8 {
    bytes[17]
}

impl<'a> Record<'a> {
    /// The record in `bytes`, which starts at `lsn`. The next one starts at `end`.
    ///
    /// # Errors
    /// When the length is not that of `bytes`, the checksum is wrong, or the resource manager does
    /// not exist.
    pub fn read(bytes: &'a [u8], lsn: Lsn, end: Lsn, layout: &'static Layout) -> Result<Record<'a>> {
        if bytes.len() < HEADER || total_length(bytes) as usize != bytes.len() {
            return Err(Error::record(lsn, format!("its length is not that of its {} bytes", bytes.len())));
        }
        let stored = u32_at(bytes, CRC_AT);
        let computed = checksum(bytes);
        if stored != computed {
            return Err(Error::new(lsn, Kind::Checksum { stored, computed }));
        }
        let rmgr = rmgr(bytes, lsn, layout)?;
        Ok(Record { lsn, end, layout, rmgr, bytes })
    }

    /// A record that [`Record::read`] has accepted before.
    pub(crate) fn checked(
        bytes: &'a [u8],
        lsn: Lsn,
        end: Lsn,
        layout: &'static Layout,
        rmgr: Rmgr,
    ) -> Record<'a> {
        Record { lsn, end, layout, rmgr, bytes }
    }

    /// Where it starts. Other records name it by this position.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Where it ends, rounded up to where the next record may start: `EndRecPtr`. For a switch
    /// record, that is the next segment.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// The properties of the major that wrote it.
    #[must_use]
    pub fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// Its resource manager.
    #[must_use]
    pub fn rmgr(&self) -> Rmgr {
        self.rmgr
    }

    /// `xl_info`. The high half belongs to the resource manager.
    #[must_use]
    pub fn info(&self) -> u8 {
        self.bytes[16]
    }

    /// The (sub)transaction that wrote it; invalid if it needed none.
    #[must_use]
    pub fn xid(&self) -> Xid {
        Xid(u32_at(self.bytes, 4))
    }

    /// Where the previous record starts.
    #[must_use]
    pub fn previous(&self) -> Lsn {
        previous(self.bytes)
    }

    /// Its checksum. A record of another history at the same place has another one.
    #[must_use]
    pub fn crc(&self) -> u32 {
        u32_at(self.bytes, CRC_AT)
    }

    /// All its bytes, including the header.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes behind the header.
    pub(crate) fn body(&self) -> &'a [u8] {
        &self.bytes[HEADER..]
    }
}

/// The CRC-32C of a record. `bytes` has at least a header.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[HEADER..]), &bytes[..CRC_AT])
}

/// The resource manager that a header names.
pub(crate) fn rmgr(bytes: &[u8], lsn: Lsn, layout: &Layout) -> Result<Rmgr> {
    let id = rmid(bytes);
    Rmgr::of_id(id, layout.custom_rmgrs)
        .ok_or_else(|| Error::record(lsn, format!("there is no resource manager {id} in {}", layout.major())))
}
