//! The parts of a record: block references with their images and data, main data, origin, top-level
//! transaction.
//!
//! Behind the record's header come the headers of the parts, each beginning with an id, then the
//! parts themselves in the same order. README.md has the table. [`Parts::read`] walks through a
//! record once and compares each length with the bytes that are there. [`Blocks`] relies on that.

use base::{RelFileLocator, Xid};

use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::image::{Compression, Image};
use crate::layout::Layout;
use crate::page::PAGE_SIZE;
use crate::record::Record;

/// `XLR_MAX_BLOCK_ID`.
const BLOCK_ID_MAX: u8 = 32;
const TOP_LEVEL_XID: u8 = 252;
const ORIGIN: u8 = 253;
const MAIN_LONG: u8 = 254;
const MAIN_SHORT: u8 = 255;

const HAS_IMAGE: u8 = 0x10;
const HAS_DATA: u8 = 0x20;
const WILL_INIT: u8 = 0x40;
const SAME_REL: u8 = 0x80;
const FORK: u8 = 0x0f;

/// One of a relation's forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are PostgreSQL's names")]
pub enum Fork {
    Main,
    FreeSpaceMap,
    VisibilityMap,
    Init,
}

/// A block that the record changed or needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block<'a> {
    /// Its number in the record. Numbers increase, and some may be left out.
    pub id: u8,
    /// The relation's files.
    pub locator: RelFileLocator,
    /// The fork.
    pub fork: Fork,
    /// The block's number in the fork.
    pub number: u32,
    /// Whether the page is made anew, so that its old content does not matter.
    pub will_init: bool,
    /// The page, if it is in the record.
    pub image: Option<Image<'a>>,
    /// The record's data about this block. Empty if the record has none, or if the image has it.
    pub data: &'a [u8],
}

/// A record taken apart.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    layout: &'static Layout,
    /// The headers of the block references, which were checked once.
    headers: &'a [u8],
    /// Images and data of the blocks.
    payload: &'a [u8],
    main: &'a [u8],
    origin: Option<u16>,
    top_level_xid: Option<Xid>,
}

/// The header of a block reference.
struct BlockHeader {
    id: u8,
    locator: RelFileLocator,
    fork: Fork,
    number: u32,
    will_init: bool,
    image: Option<ImageHeader>,
    data_length: usize,
}

struct ImageHeader {
    length: usize,
    hole_offset: u16,
    hole_length: u16,
    compression: Compression,
    apply: bool,
}

const CUT_SHORT: &str = "its parts are cut short";

impl<'a> Record<'a> {
    /// Takes the record apart.
    ///
    /// # Errors
    /// When its parts do not fill it exactly: no server writes such a record.
    pub fn parts(&self) -> Result<Parts<'a>> {
        Parts::read(self).map_err(|what| Error::record(self.lsn(), what))
    }

    /// The locator of the record's first block reference, read at one of three fixed offsets.
    /// `None` if the record does not begin with a reference to a block of a main fork.
    #[must_use]
    pub fn first_locator(&self) -> Option<RelFileLocator> {
        first_locator(self.body(), self.layout())
    }

    /// The top-level transaction, which the first record of each subtransaction names (with
    /// `wal_level = logical`). It is written only once, so unwanted records need it as well.
    ///
    /// # Errors
    /// As [`Record::parts`].
    pub fn top_level_xid(&self) -> Result<Option<Xid>> {
        if has_nothing_but_a_block(self.body(), self.layout()) {
            return Ok(None);
        }
        self.parts().map(|parts| parts.top_level_xid())
    }
}

impl<'a> Parts<'a> {
    pub(crate) fn read(record: &Record<'a>) -> Result<Parts<'a>, &'static str> {
        let layout = record.layout();
        let mut fields = Fields::new(record.body());
        let all = fields.rest();
        let mut parts =
            Parts { layout, headers: &[], payload: &[], main: &[], origin: None, top_level_xid: None };
        let mut last: Option<(u8, RelFileLocator)> = None;
        let (mut announced, mut main_length) = (0, 0);
        // As in the server: headers go on as long as more bytes are left than the announced parts
        // need.
        while fields.rest().len() > announced {
            match fields.rest()[0] {
                0..=BLOCK_ID_MAX => {
                    let header = BlockHeader::read(&mut fields, layout, last)?;
                    parts.headers = &all[..all.len() - fields.rest().len()];
                    announced += header.payload_length();
                    last = Some((header.id, header.locator));
                }
                ORIGIN => {
                    fields.u8();
                    parts.origin = Some(fields.u16().ok_or(CUT_SHORT)?);
                }
                TOP_LEVEL_XID => {
                    fields.u8();
                    parts.top_level_xid = Some(fields.xid().ok_or(CUT_SHORT)?);
                }
                id @ (MAIN_SHORT | MAIN_LONG) => {
                    fields.u8();
                    let length = if id == MAIN_SHORT {
                        fields.u8().map(usize::from)
                    } else {
                        fields.u32().map(|length| length as usize)
                    };
                    main_length = length.ok_or(CUT_SHORT)?;
                    announced += main_length;
                    break;
                }
                _ => return Err("one of its parts is of an unknown kind"),
            }
        }
        if fields.rest().len() != announced {
            return Err("its parts do not fill it");
        }
        parts.payload = fields.take(announced - main_length).ok_or(CUT_SHORT)?;
        parts.main = fields.rest();
        Ok(parts)
    }

    /// The blocks, in the order of their numbers.
    #[must_use]
    pub fn blocks(&self) -> Blocks<'a> {
        Blocks {
            layout: self.layout,
            headers: Fields::new(self.headers),
            payload: Fields::new(self.payload),
            last: None,
        }
    }

    /// The block with this number in the record.
    #[must_use]
    pub fn block(&self, id: u8) -> Option<Block<'a>> {
        self.blocks().find(|block| block.id == id)
    }

    /// The record's data that belongs to no block.
    #[must_use]
    pub fn main(&self) -> &'a [u8] {
        self.main
    }

    /// The replication origin of the session that wrote it, for kinds of records that have it.
    #[must_use]
    pub fn origin(&self) -> Option<u16> {
        self.origin
    }

    /// See [`Record::top_level_xid`].
    #[must_use]
    pub fn top_level_xid(&self) -> Option<Xid> {
        self.top_level_xid
    }
}

/// The blocks of a record.
#[derive(Debug, Clone)]
pub struct Blocks<'a> {
    layout: &'static Layout,
    headers: Fields<'a>,
    payload: Fields<'a>,
    last: Option<(u8, RelFileLocator)>,
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Block<'a>;

    fn next(&mut self) -> Option<Block<'a>> {
        if self.headers.is_empty() {
            return None;
        }
        let header =
            BlockHeader::read(&mut self.headers, self.layout, self.last).expect("Parts::read walked it");
        self.last = Some((header.id, header.locator));
        let mut bytes = |length| self.payload.take(length).expect("Parts::read compared the lengths");
        let image = header.image.map(|image| Image {
            bytes: bytes(image.length),
            hole_offset: image.hole_offset,
            hole_length: image.hole_length,
            compression: image.compression,
            apply: image.apply,
        });
        let data = bytes(header.data_length);
        let BlockHeader { id, locator, fork, number, will_init, .. } = header;
        Some(Block { id, locator, fork, number, will_init, image, data })
    }
}

impl BlockHeader {
    /// `last` is the previous block reference. A reference may repeat its locator.
    fn read(
        fields: &mut Fields<'_>,
        layout: &Layout,
        last: Option<(u8, RelFileLocator)>,
    ) -> Result<BlockHeader, &'static str> {
        let id = fields.u8().ok_or(CUT_SHORT)?;
        if last.is_some_and(|(last, _)| id <= last) {
            return Err("its block references are out of order");
        }
        let flags = fields.u8().ok_or(CUT_SHORT)?;
        let fork = match flags & FORK {
            0 => Fork::Main,
            1 => Fork::FreeSpaceMap,
            2 => Fork::VisibilityMap,
            3 => Fork::Init,
            _ => return Err("a block reference names an unknown fork"),
        };
        let data_length = usize::from(fields.u16().ok_or(CUT_SHORT)?);
        if (flags & HAS_DATA != 0) != (data_length > 0) {
            return Err("a block reference contradicts itself about its data");
        }
        let image = match flags & HAS_IMAGE {
            0 => None,
            _ => Some(ImageHeader::read(fields, layout)?),
        };
        let locator = match (flags & SAME_REL, last) {
            (0, _) => fields.locator().ok_or(CUT_SHORT)?,
            (_, Some((_, locator))) => locator,
            (_, None) => return Err("a block reference means a relation that was not named"),
        };
        let number = fields.u32().ok_or(CUT_SHORT)?;
        Ok(BlockHeader { id, locator, fork, number, will_init: flags & WILL_INIT != 0, image, data_length })
    }

    fn payload_length(&self) -> usize {
        self.image.as_ref().map_or(0, |image| image.length) + self.data_length
    }
}

impl ImageHeader {
    fn read(fields: &mut Fields<'_>, layout: &Layout) -> Result<ImageHeader, &'static str> {
        let length = usize::from(fields.u16().ok_or(CUT_SHORT)?);
        let hole_offset = fields.u16().ok_or(CUT_SHORT)?;
        let info = fields.u8().ok_or(CUT_SHORT)?;
        let bits = &layout.image;
        let compression = match info & (bits.pglz | bits.lz4 | bits.zstd) {
            0 => Compression::None,
            bit if bit == bits.pglz => Compression::Pglz,
            bit if bit == bits.lz4 => Compression::Lz4,
            bit if bit == bits.zstd => Compression::Zstd,
            _ => return Err("a page image is compressed in two ways"),
        };
        if info & !(bits.has_hole | bits.apply | bits.pglz | bits.lz4 | bits.zstd) != 0 {
            return Err("a page image has unknown bits");
        }
        let has_hole = info & bits.has_hole != 0;
        let hole_length = match (has_hole, compression) {
            (false, _) => 0,
            (true, Compression::None) => {
                PAGE_SIZE.checked_sub(length).ok_or("a page image is longer than a page")? as u16
            }
            (true, _) => fields.u16().ok_or(CUT_SHORT)?,
        };
        let image =
            ImageHeader { length, hole_offset, hole_length, compression, apply: info & bits.apply != 0 };
        if image.is_possible(has_hole) { Ok(image) } else { Err("the sizes of a page image contradict") }
    }

    /// Checks what the server checks too, and that the hole is inside the page.
    fn is_possible(&self, has_hole: bool) -> bool {
        let hole = if has_hole {
            self.hole_offset > 0 && self.hole_length > 0 && self.length < PAGE_SIZE
        } else {
            self.hole_offset == 0
        };
        let length = match self.compression {
            Compression::None => has_hole || self.length == PAGE_SIZE,
            _ => self.length < PAGE_SIZE,
        };
        hole && length && usize::from(self.hole_offset) + usize::from(self.hole_length) <= PAGE_SIZE
    }
}

/// The offset of the first block reference's locator, if the record begins with a reference. It is
/// behind id, flags and length, and behind what an image adds.
fn first_locator_at(body: &[u8], layout: &Layout) -> Option<usize> {
    let (&id, &flags) = (body.first()?, body.get(1)?);
    if id > BLOCK_ID_MAX || flags & (FORK | SAME_REL) != 0 {
        return None;
    }
    if flags & HAS_IMAGE == 0 {
        return Some(4);
    }
    let (info, bits) = (*body.get(8)?, &layout.image);
    let stores_hole = info & bits.has_hole != 0 && info & (bits.pglz | bits.lz4 | bits.zstd) != 0;
    Some(if stores_hole { 11 } else { 9 })
}

pub(crate) fn first_locator(body: &[u8], layout: &Layout) -> Option<RelFileLocator> {
    Fields::new(body.get(first_locator_at(body, layout)?..)?).locator()
}

/// Whether main data follows directly after the first block reference, so that there is neither an
/// origin nor a top-level transaction. False if it is not that simple.
pub(crate) fn has_nothing_but_a_block(body: &[u8], layout: &Layout) -> bool {
    // Twelve bytes of locator, and four of the block's number.
    let behind = first_locator_at(body, layout).and_then(|at| body.get(at + 16));
    matches!(behind, Some(&(MAIN_SHORT | MAIN_LONG)))
}
