//! Rows in their stored form.

use base::Xid;
use wal::{Fields, PAGE_SIZE};

use crate::input::{CUT_SHORT, Read};

/// `SizeofHeapTupleHeader`: the part of a tuple before its null bitmap. WAL keeps five bytes of it.
const FIXED_HEADER: usize = 23;
const HAS_NULL: u16 = 0x0001;
const ATTRIBUTES: u16 = 0x07ff;

/// A row without what the page adds to it: transaction and command ids, and its place.
///
/// The null bitmap and the start of the data are checked to be inside. The values are not looked
/// at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawTuple<'a> {
    /// `t_infomask2`: the number of attributes, and flags.
    pub infomask2: u16,
    /// `t_infomask`: flags.
    pub infomask: u16,
    /// `t_hoff`: where the data starts, counted from the start of the fixed header.
    pub hoff: u8,
    /// Everything behind the fixed header: null bitmap, padding, data.
    pub bytes: &'a [u8],
}

impl<'a> RawTuple<'a> {
    /// Reads a header in the form of WAL (`xl_heap_header`), and takes all that follows.
    pub(crate) fn read(mut fields: Fields<'a>) -> Read<RawTuple<'a>> {
        let (infomask2, infomask, hoff) = header(&mut fields)?;
        RawTuple { infomask2, infomask, hoff, bytes: fields.rest() }.checked()
    }

    pub(crate) fn checked(self) -> Read<RawTuple<'a>> {
        let before_data =
            usize::from(self.hoff).checked_sub(FIXED_HEADER).ok_or("a tuple starts in its header")?;
        let bitmap = if self.infomask & HAS_NULL != 0 { self.attributes().div_ceil(8) } else { 0 };
        if before_data > self.bytes.len() || bitmap > before_data {
            return Err("a tuple is shorter than its header says");
        }
        Ok(self)
    }

    /// The number of attributes that it has. Later ones of the relation were added after it was
    /// written.
    #[must_use]
    pub fn attributes(&self) -> usize {
        usize::from(self.infomask2 & ATTRIBUTES)
    }

    /// A set bit for each attribute that is not NULL, lowest bit first; `None` if no attribute is
    /// NULL.
    #[must_use]
    pub fn null_bitmap(&self) -> Option<&'a [u8]> {
        (self.infomask & HAS_NULL != 0).then(|| &self.bytes[..self.attributes().div_ceil(8)])
    }

    /// The values. The first byte is aligned to eight.
    #[must_use]
    pub fn data(&self) -> &'a [u8] {
        &self.bytes[usize::from(self.hoff) - FIXED_HEADER..]
    }
}

/// `xl_heap_header`.
pub(crate) fn header(fields: &mut Fields<'_>) -> Read<(u16, u16, u8)> {
    let mut read = || Some((fields.u16()?, fields.u16()?, fields.u8()?));
    read().ok_or(CUT_SHORT)
}

/// The bytes before the data in a tuple with this `t_hoff`, from the end of the fixed header.
pub(crate) fn before_data(hoff: u8) -> Read<usize> {
    usize::from(hoff).checked_sub(FIXED_HEADER).ok_or("a tuple starts in its header")
}

const LINE_POINTERS: usize = 24;
const STATE_NORMAL: u32 = 1;

/// A row of a heap page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageItem<'a> {
    /// The transaction that inserted it.
    pub xmin: Xid,
    /// The transaction that deleted or locked it, or a multixact; `t_infomask` says which.
    pub xmax: Xid,
    /// The row.
    pub tuple: RawTuple<'a>,
}

/// The row at line pointer `offset` (from 1) of a heap page that was restored from an image. `None`
/// if there is no row, or this is no heap page.
#[must_use]
pub fn page_item(page: &[u8; PAGE_SIZE], offset: u16) -> Option<PageItem<'_>> {
    let lower = usize::from(u16::from_le_bytes([page[12], page[13]]));
    let at = LINE_POINTERS + (usize::from(offset).checked_sub(1)?) * 4;
    if at + 4 > lower.min(PAGE_SIZE) {
        return None;
    }
    // Fifteen bits of offset, two of state, fifteen of length.
    let pointer = Fields::new(&page[at..]).u32()?;
    if pointer >> 15 & 3 != STATE_NORMAL {
        return None;
    }
    let (start, length) = ((pointer & 0x7fff) as usize, (pointer >> 17) as usize);
    let tuple = page.get(start..start + length)?;
    let mut ids = Fields::new(tuple);
    let (xmin, xmax) = (ids.xid()?, ids.xid()?);
    let mut fields = Fields::new(tuple.get(18..FIXED_HEADER)?);
    let (infomask2, infomask, hoff) = header(&mut fields).ok()?;
    let tuple = RawTuple { infomask2, infomask, hoff, bytes: &tuple[FIXED_HEADER..] }.checked().ok()?;
    Some(PageItem { xmin, xmax, tuple })
}

/// Like [`page_item`], without the transactions.
#[must_use]
pub fn page_tuple(page: &[u8; PAGE_SIZE], offset: u16) -> Option<RawTuple<'_>> {
    page_item(page, offset).map(|item| item.tuple)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_reaches_beyond_its_tuple_is_refused() {
        let tuple = |infomask2: u16, infomask: u16, hoff: u8, bytes: &[u8]| {
            let header = [&infomask2.to_le_bytes()[..], &infomask.to_le_bytes(), &[hoff], bytes].concat();
            RawTuple::read(Fields::new(&header)).map(|tuple| tuple.data().to_vec())
        };
        assert_eq!(tuple(1, 0, 24, &[0, 7]).unwrap(), [7]);
        assert_eq!(tuple(9, 1, 32, &[0; 9]).unwrap(), [] as [u8; 0]);
        assert!(tuple(1, 0, 22, &[0, 7]).is_err());
        assert!(tuple(1, 0, 26, &[0, 7]).is_err());
        assert!(tuple(9, 1, 24, &[0, 7]).is_err(), "nine attributes need two bytes of bitmap");
    }

    #[test]
    fn a_line_pointer_that_leads_nowhere_gives_no_row() {
        let mut page = [0; PAGE_SIZE];
        page[12] = 32;
        let mut point = |offset: u32, state: u32, length: u32| {
            page[24..28].copy_from_slice(&(offset | state << 15 | length << 17).to_le_bytes());
            page[8000 + 22] = 24;
            page_tuple(&page, 1).map(|tuple| tuple.bytes.len())
        };
        assert_eq!(point(8000, 1, 30), Some(7));
        assert_eq!(point(8000, 0, 30), None);
        assert_eq!(point(8000, 3, 30), None);
        assert_eq!(point(8000, 1, 22), None);
        assert_eq!(point(8180, 1, 30), None);
        assert_eq!(page_tuple(&page, 0), None);
        assert_eq!(page_tuple(&page, 2), None);
        assert_eq!(page_tuple(&page, 3), None);
    }
}
