//! Headers of WAL pages (`access/xlog_internal.h`).

use base::Lsn;

use crate::error::{Error, Kind, Result};
use crate::fields::Fields;
use crate::layout::Layout;

/// The size of a page, of the WAL (`wal_block_size`) and of tables (`block_size`). No build with
/// another size is known to be in use, and such a build says so in its first page.
pub const PAGE_SIZE: usize = 8192;

pub(crate) const PAGE: u64 = PAGE_SIZE as u64;
/// `XLogPageHeaderData`, and `XLogLongPageHeaderData` on the first page of a segment.
pub(crate) const SHORT_HEADER: usize = 24;
pub(crate) const LONG_HEADER: usize = 40;

const CONTRECORD: u16 = 0x0001;
const LONG: u16 = 0x0002;
/// A hint for programs that clean up. It has no meaning here.
const BKP_REMOVABLE: u16 = 0x0004;
const OVERWRITE_CONTRECORD: u16 = 0x0008;

/// What a page's header says about the record that was open before the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    /// The page begins with a record.
    Anew,
    /// The page begins with the rest of a record. This many bytes are left of it, including those
    /// on this page.
    WithRest(u32),
    /// The page begins with a record. The rest of the record before was lost in a crash and will
    /// never come.
    Overwriting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageHeader {
    pub(crate) layout: &'static Layout,
    pub(crate) timeline: u32,
    pub(crate) begins: Begins,
    /// System identifier, on the first page of a segment.
    pub(crate) system_id: Option<u64>,
}

/// The length of the header of the page at `lsn`.
pub(crate) fn header_length(lsn: Lsn, segment_size: u64) -> usize {
    if lsn.as_u64().is_multiple_of(segment_size) { LONG_HEADER } else { SHORT_HEADER }
}

/// Whether these first bytes of a page belong to a page of another place, as a recycled segment
/// still has them behind the end of WAL. `None` if they are no page header.
pub(crate) fn is_of_elsewhere(bytes: &[u8], lsn: Lsn) -> Option<bool> {
    let mut fields = Fields::new(bytes);
    Layout::of_magic(fields.u16()?)?;
    fields.take(6)?;
    Some(fields.lsn()? < lsn)
}

impl PageHeader {
    /// Reads the header of the page at `lsn`. `bytes` has [`header_length`] bytes.
    pub(crate) fn read(bytes: &[u8], lsn: Lsn, segment_size: u64) -> Result<PageHeader> {
        let mut fields = Fields::new(bytes);
        let cut_short = || Error::page(lsn, "its header is cut short");
        let magic = fields.u16().ok_or_else(cut_short)?;
        let layout = Layout::of_magic(magic).ok_or_else(|| Error::new(lsn, Kind::Magic(magic)))?;
        let info = fields.u16().ok_or_else(cut_short)?;
        let timeline = fields.u32().ok_or_else(cut_short)?;
        let address = fields.lsn().ok_or_else(cut_short)?;
        let rest = fields.u32().ok_or_else(cut_short)?;
        if info & !(CONTRECORD | LONG | BKP_REMOVABLE | OVERWRITE_CONTRECORD) != 0 {
            return Err(Error::page(lsn, format!("unknown bits in its header: {info:04X}")));
        }
        if address != lsn {
            return Err(Error::page(lsn, format!("it says that it is page {address}")));
        }
        if timeline == 0 {
            return Err(Error::page(lsn, "its timeline is 0"));
        }
        let is_first = lsn.as_u64().is_multiple_of(segment_size);
        if is_first != (info & LONG != 0) {
            let what = if is_first { "no segment starts here" } else { "a segment starts here" };
            return Err(Error::page(lsn, format!("its header says that {what}; is the segment size right?")));
        }
        let begins = match (info & CONTRECORD != 0, info & OVERWRITE_CONTRECORD != 0, rest) {
            (false, false, 0) => Begins::Anew,
            (true, false, 1..) => Begins::WithRest(rest),
            (false, true, 0) => Begins::Overwriting,
            _ => return Err(Error::page(lsn, format!("bits {info:04X} and {rest} bytes left contradict"))),
        };
        let system_id = if is_first { Some(long(&mut fields, lsn, segment_size)?) } else { None };
        Ok(PageHeader { layout, timeline, begins, system_id })
    }
}

/// Reads the second half of a long header. Compares the sizes and returns the system identifier.
fn long(fields: &mut Fields<'_>, lsn: Lsn, segment_size: u64) -> Result<u64> {
    let cut_short = || Error::page(lsn, "its header is cut short");
    fields.u32().ok_or_else(cut_short)?;
    let system_id = fields.u64().ok_or_else(cut_short)?;
    let size = fields.u32().ok_or_else(cut_short)?;
    let page_size = fields.u32().ok_or_else(cut_short)?;
    if u64::from(size) != segment_size {
        return Err(Error::page(lsn, format!("its segment has {size} bytes, not {segment_size}")));
    }
    if u64::from(page_size) != PAGE {
        return Err(Error::page(lsn, format!("pages of {page_size} bytes are not supported, only {PAGE}")));
    }
    Ok(system_id)
}
