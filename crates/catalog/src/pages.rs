//! The bytes of catalog pages, as far as records have shown them.
//!
//! A record about a catalog row is not complete. An update leaves out what the new row shares with
//! the old one. Behind a checkpoint, the row may only be in the image of its page. So the rows of
//! each changed page are kept.
//!
//! Why this is enough: reading began at a checkpoint's redo position. With `full_page_writes`, the
//! first change of a page after that has the image of the page, or makes it anew. So a row that a
//! record refers to has been seen. The same holds for each later checkpoint. So pages that were
//! last changed before a checkpoint began can be forgotten.
//!
//! Records that only tidy a page (pruning, vacuum, freezing, locks) move no row to another line
//! pointer, and change no byte of a row's values. So only their images are taken.

use base::{Lsn, Xid};
use decode::{RawTuple, page_item, page_tuple};
use rustc_hash::FxHashMap;
use wal::{Fields, Image, PAGE_SIZE};

use crate::field::{Field, field_struct};

/// A row's place in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Tid {
    pub(crate) block: u32,
    pub(crate) offset: u16,
}

field_struct!(Tid { block, offset });

/// The pages of one file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Pages(FxHashMap<u32, Page>);

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Page {
    /// The last record that changed the page.
    touched: Lsn,
    image: Option<Vec<u8>>,
    /// Rows that were written after the image.
    rows: FxHashMap<u16, Raw>,
}

field_struct!(Page { touched, image, rows });

#[derive(Debug, Clone, PartialEq, Eq)]
struct Raw {
    infomask2: u16,
    infomask: u16,
    hoff: u8,
    bytes: Vec<u8>,
}

field_struct!(Raw { infomask2, infomask, hoff, bytes });

/// A row of a page that was copied whole, with the transactions in its header.
pub(crate) struct Copied<'a> {
    pub(crate) tid: Tid,
    pub(crate) xmin: Xid,
    pub(crate) xmax: Xid,
    pub(crate) tuple: RawTuple<'a>,
}

fn as_page(image: &[u8]) -> Option<&[u8; PAGE_SIZE]> {
    image.try_into().ok()
}

/// No page has room for more line pointers.
const OFFSETS: std::ops::RangeInclusive<u16> = 1..=((PAGE_SIZE - 24) / 4) as u16;

impl Pages {
    /// Makes the page empty.
    pub(crate) fn renew(&mut self, block: u32, lsn: Lsn) {
        self.0.insert(block, Page { touched: lsn, ..Page::default() });
    }

    /// Makes the page what the image shows.
    pub(crate) fn take_image(
        &mut self,
        block: u32,
        lsn: Lsn,
        image: &Image<'_>,
    ) -> Result<(), wal::ImageError> {
        let mut page = Box::new([0; PAGE_SIZE]);
        image.restore(&mut page)?;
        let image = Some(page.to_vec());
        self.0.insert(block, Page { touched: lsn, image, rows: FxHashMap::default() });
        Ok(())
    }

    /// Adds a row.
    pub(crate) fn set(&mut self, tid: Tid, lsn: Lsn, tuple: &RawTuple<'_>) {
        let RawTuple { infomask2, infomask, hoff, bytes } = *tuple;
        let page = self.0.entry(tid.block).or_default();
        page.touched = lsn;
        page.rows.insert(tid.offset, Raw { infomask2, infomask, hoff, bytes: bytes.to_vec() });
    }

    /// Notes a change of the page that does not show in its rows.
    pub(crate) fn touch(&mut self, block: u32, lsn: Lsn) {
        if let Some(page) = self.0.get_mut(&block) {
            page.touched = lsn;
        }
    }

    /// The row at this place, if it has been seen.
    pub(crate) fn get(&self, tid: Tid) -> Option<RawTuple<'_>> {
        let page = self.0.get(&tid.block)?;
        if let Some(Raw { infomask2, infomask, hoff, bytes }) = page.rows.get(&tid.offset) {
            return Some(RawTuple { infomask2: *infomask2, infomask: *infomask, hoff: *hoff, bytes });
        }
        page_tuple(as_page(page.image.as_deref()?)?, tid.offset)
    }

    /// The rows of a file that was written as images of whole pages.
    pub(crate) fn copied(&self) -> impl Iterator<Item = Copied<'_>> {
        self.0.iter().flat_map(|(&block, page)| {
            let image = page.image.as_deref().and_then(as_page);
            OFFSETS.filter_map(move |offset| {
                let item = page_item(image?, offset)?;
                let tid = Tid { block, offset };
                Some(Copied { tid, xmin: item.xmin, xmax: item.xmax, tuple: item.tuple })
            })
        })
    }

    /// Forgets pages that were last changed before `redo`: every change from there on begins with
    /// the page's image.
    pub(crate) fn forget_before(&mut self, redo: Lsn) {
        self.0.retain(|_, page| page.touched >= redo);
    }

    /// Cuts the file to this many blocks.
    pub(crate) fn truncate(&mut self, blocks: u32) {
        self.0.retain(|block, _| *block < blocks);
    }
}

impl Field for Pages {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Field::read(fields).map(Pages)
    }
}
