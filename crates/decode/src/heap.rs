//! Records of Heap and Heap2 that change rows (`access/heapam_xlog.h`). README.md has their
//! layouts.

use base::{Oid, RelFileLocator, Xid};
use wal::{Block, Fields, Fork, Image};

use crate::What;
use crate::input::{CUT_SHORT, Input, LEFT_OVER, Read};
use crate::items::{Invalidation, Items};
use crate::tuple::{RawTuple, before_data, header};

/// `XLOG_HEAP_INIT_PAGE`, a bit of the record's info.
const INIT_PAGE: u8 = 0x80;

/// Flags of insertions.
mod insert_flag {
    pub(super) const LAST_IN_MULTI: u8 = 0x02;
    pub(super) const IS_SPECULATIVE: u8 = 0x04;
    pub(super) const CONTAINS_NEW_TUPLE: u8 = 0x08;
    pub(super) const ON_TOAST_RELATION: u8 = 0x10;
}

/// Flags of deletions.
mod delete_flag {
    pub(super) const CONTAINS_OLD_TUPLE: u8 = 0x02;
    pub(super) const CONTAINS_OLD_KEY: u8 = 0x04;
    pub(super) const IS_SUPER: u8 = 0x08;
    pub(super) const IS_PARTITION_MOVE: u8 = 0x10;
}

/// Flags of updates.
mod update_flag {
    pub(super) const CONTAINS_OLD_TUPLE: u8 = 0x04;
    pub(super) const CONTAINS_OLD_KEY: u8 = 0x08;
    pub(super) const CONTAINS_NEW_TUPLE: u8 = 0x10;
    pub(super) const PREFIX_FROM_OLD: u8 = 0x20;
    pub(super) const SUFFIX_FROM_OLD: u8 = 0x40;
}

/// The place of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The relation's files.
    pub locator: RelFileLocator,
    /// The block of the main fork.
    pub block: u32,
    /// The line pointer, from 1.
    pub offset: u16,
}

/// The row after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewTuple<'a> {
    /// It is in the record.
    Whole(RawTuple<'a>),
    /// It shares its start or end with the old row. Only in catalogs: tables that can be published
    /// are logged whole.
    Spliced(Spliced<'a>),
    /// It is in the image of its page, at its place. Only in catalogs.
    InImage(Image<'a>),
}

/// A row without the bytes that it shares with the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spliced<'a> {
    /// How many bytes it shares with the start of the old data.
    prefix: u16,
    /// How many bytes it shares with the end of the old data.
    suffix: u16,
    /// The new row's header and bitmap, and the data between.
    tuple: RawTuple<'a>,
}

impl Spliced<'_> {
    /// The bytes behind the new row's fixed header, completed from the old row. `None` if that is
    /// too short, and so is another row.
    #[must_use]
    pub fn bytes(&self, old: &RawTuple<'_>) -> Option<Vec<u8>> {
        let (prefix, suffix) = (usize::from(self.prefix), usize::from(self.suffix));
        let old = old.data();
        if prefix + suffix > old.len() {
            return None;
        }
        let data = self.tuple.data();
        let before = &self.tuple.bytes[..self.tuple.bytes.len() - data.len()];
        Some([before, &old[..prefix], data, &old[old.len() - suffix..]].concat())
    }

    /// The new row, with the bytes from [`Spliced::bytes`].
    #[must_use]
    pub fn tuple<'b>(&self, bytes: &'b [u8]) -> RawTuple<'b> {
        let RawTuple { infomask2, infomask, hoff, .. } = self.tuple;
        RawTuple { infomask2, infomask, hoff, bytes }
    }
}

/// The row before an UPDATE or DELETE, as far as its replica identity requires it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldTuple<'a> {
    /// Whether only the identity's columns are there and the others are NULL. Otherwise it is the
    /// whole row.
    pub key_only: bool,
    /// The row.
    pub tuple: RawTuple<'a>,
}

/// A new row.
#[derive(Debug, Clone, Copy)]
pub struct Insert<'a> {
    /// Its place.
    pub place: Place,
    /// The record's flags.
    pub flags: u8,
    /// It counts only if a [`Confirm`] of the same transaction follows.
    pub is_speculative: bool,
    /// Whether it was logged for decoding. Otherwise, it is a catalog's row, or was only moved by a
    /// rewrite.
    pub is_logical: bool,
    /// Whether it is a chunk of a large value.
    pub is_toast: bool,
    /// The row.
    pub tuple: NewTuple<'a>,
}

/// New rows on one page.
#[derive(Debug, Clone, Copy)]
pub struct MultiInsert<'a> {
    /// The relation's files.
    pub locator: RelFileLocator,
    /// The page.
    pub block: u32,
    /// The record's flags.
    pub flags: u8,
    /// See [`Insert::is_logical`].
    pub is_logical: bool,
    /// See [`Insert::is_toast`].
    pub is_toast: bool,
    /// Whether this is the command's last record of this kind. The chunks of large values before it
    /// are then used up.
    pub is_last: bool,
    count: u16,
    /// `None` if the page is new. The offsets are then 1, 2, and so on.
    offsets: Option<&'a [u8]>,
    /// `None` if the page's image has the rows.
    tuples: Option<&'a [u8]>,
    image: Option<Image<'a>>,
}

/// The rows of a [`MultiInsert`].
#[derive(Debug, Clone)]
pub struct Rows<'a> {
    of: MultiInsert<'a>,
    next: u16,
    tuples: Fields<'a>,
    all: usize,
}

/// A changed row.
#[derive(Debug, Clone, Copy)]
pub struct Update<'a> {
    /// The row's old place.
    pub old_place: Place,
    /// Its new place.
    pub place: Place,
    /// The record's flags.
    pub flags: u8,
    /// The new row is on the same page, and no index has an entry for it.
    pub is_hot: bool,
    /// See [`Insert::is_logical`].
    pub is_logical: bool,
    /// The old row, if the new one does not show the replica identity.
    pub old: Option<OldTuple<'a>>,
    /// The new row.
    pub tuple: NewTuple<'a>,
}

/// A deleted row.
#[derive(Debug, Clone, Copy)]
pub struct Delete<'a> {
    /// Its place.
    pub place: Place,
    /// The record's flags.
    pub flags: u8,
    /// Whether this takes back a speculative insertion of the same transaction, and deletes
    /// nothing.
    pub is_super: bool,
    /// Whether an UPDATE moved the row to another partition. The insertion there is another record.
    pub is_partition_move: bool,
    /// The row, as far as its replica identity requires it.
    pub old: Option<OldTuple<'a>>,
}

/// TRUNCATE of tables that are logged for decoding.
#[derive(Debug, Clone, Copy)]
pub struct Truncate<'a> {
    /// Their database.
    pub database: Oid,
    /// The statement said CASCADE.
    pub cascade: bool,
    /// The statement said RESTART IDENTITY.
    pub restart_identity: bool,
    /// The tables.
    pub relations: Items<'a, Oid>,
}

/// Confirms a speculative insertion.
#[derive(Debug, Clone, Copy)]
pub struct Confirm {
    /// The row's place.
    pub place: Place,
}

/// A catalog row that was overwritten with one of the same length.
#[derive(Debug, Clone, Copy)]
pub struct InPlace<'a> {
    /// Its place.
    pub place: Place,
    /// Its data, without header and bitmap; `None` if the page's image has it.
    pub data: Option<&'a [u8]>,
    /// The page's image, if there is one.
    pub image: Option<Image<'a>>,
    /// What caches must forget (18 and later).
    pub invalidations: Items<'a, Invalidation>,
}

/// The command ids of a catalog row, which the page does not keep for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewCid {
    /// The top-level transaction.
    pub top: Xid,
    /// The command that inserted the row, `u32::MAX` for none.
    pub cmin: u32,
    /// The command that deleted the row, `u32::MAX` for none.
    pub cmax: u32,
    /// The row's place.
    pub place: Place,
}

/// The block of the relation that the record is about.
fn target<'a>(input: &Input<'_, 'a>) -> Read<Block<'a>> {
    let block = input.parts.block(0).ok_or("it has no block")?;
    if block.fork != Fork::Main {
        return Err("its block is not one of a table");
    }
    Ok(block)
}

fn place(block: &Block<'_>, offset: u16) -> Read<Place> {
    if offset == 0 {
        return Err("a line pointer is 0");
    }
    Ok(Place { locator: block.locator, block: block.number, offset })
}

fn image_to_apply<'a>(block: &Block<'a>) -> Option<Image<'a>> {
    block.image.filter(|image| image.apply)
}

/// The new row of `block`: its data, or otherwise its image.
fn new_tuple<'a>(block: &Block<'a>, is_logical: bool) -> Read<NewTuple<'a>> {
    if !block.data.is_empty() {
        return RawTuple::read(Fields::new(block.data)).map(NewTuple::Whole);
    }
    absent(block, is_logical)
}

/// A row whose bytes are not in the record. The page's image must be.
fn absent<'a>(block: &Block<'a>, is_logical: bool) -> Read<NewTuple<'a>> {
    if is_logical {
        return Err("it says that it has the new row, and has none");
    }
    image_to_apply(block).map(NewTuple::InImage).ok_or("it has neither the new row nor its page")
}

pub(crate) fn insert<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let (offset, flags) = (main.u16().ok_or(CUT_SHORT)?, main.u8().ok_or(CUT_SHORT)?);
    end(&main)?;
    let block = target(input)?;
    let is_logical = flags & insert_flag::CONTAINS_NEW_TUPLE != 0;
    Ok(What::Insert(Insert {
        place: place(&block, offset)?,
        flags,
        is_speculative: flags & insert_flag::IS_SPECULATIVE != 0,
        is_logical,
        is_toast: flags & insert_flag::ON_TOAST_RELATION != 0,
        tuple: new_tuple(&block, is_logical)?,
    }))
}

fn end(fields: &Fields<'_>) -> Read<()> {
    if fields.is_empty() { Ok(()) } else { Err(LEFT_OVER) }
}

pub(crate) fn multi_insert<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let flags = main.u8().ok_or(CUT_SHORT)?;
    // Padding.
    main.u8().ok_or(CUT_SHORT)?;
    let count = main.u16().ok_or(CUT_SHORT)?;
    let offsets = if input.record.info() & INIT_PAGE != 0 {
        None
    } else {
        Some(main.take(usize::from(count) * 2).ok_or(CUT_SHORT)?)
    };
    end(&main)?;
    let block = target(input)?;
    let is_logical = flags & insert_flag::CONTAINS_NEW_TUPLE != 0;
    if block.data.is_empty() && count > 0 {
        absent(&block, is_logical)?;
    }
    let insert = MultiInsert {
        locator: block.locator,
        block: block.number,
        flags,
        is_logical,
        is_toast: flags & insert_flag::ON_TOAST_RELATION != 0,
        is_last: flags & insert_flag::LAST_IN_MULTI != 0,
        count,
        offsets,
        tuples: (!block.data.is_empty()).then_some(block.data),
        image: image_to_apply(&block),
    };
    // All rows are read once here, so that `Rows` can rely on them.
    let mut rows = insert.rows();
    for _ in 0..count {
        rows.read()?;
    }
    end(&rows.tuples)?;
    Ok(What::MultiInsert(insert))
}

impl<'a> MultiInsert<'a> {
    /// The number of rows.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Each row with its place.
    #[must_use]
    pub fn rows(&self) -> Rows<'a> {
        let tuples = self.tuples.unwrap_or(&[]);
        Rows { of: *self, next: 0, tuples: Fields::new(tuples), all: tuples.len() }
    }
}

impl<'a> Rows<'a> {
    fn read(&mut self) -> Read<(Place, NewTuple<'a>)> {
        let offset = match self.of.offsets {
            None => self.next + 1,
            Some(offsets) => {
                let at = usize::from(self.next) * 2;
                Fields::new(offsets.get(at..).unwrap_or(&[])).u16().ok_or(CUT_SHORT)?
            }
        };
        if offset == 0 {
            return Err("a line pointer is 0");
        }
        self.next += 1;
        let place = Place { locator: self.of.locator, block: self.of.block, offset };
        let tuple = match (self.of.tuples, self.of.image) {
            (Some(_), _) => NewTuple::Whole(self.tuple()?),
            (None, Some(image)) => NewTuple::InImage(image),
            (None, None) => return Err("it has neither the new row nor its page"),
        };
        Ok((place, tuple))
    }

    /// `xl_multi_insert_tuple`, at an even position, and the bytes of its length.
    fn tuple(&mut self) -> Read<RawTuple<'a>> {
        if (self.all - self.tuples.rest().len()) % 2 == 1 {
            self.tuples.u8().ok_or(CUT_SHORT)?;
        }
        let length = usize::from(self.tuples.u16().ok_or(CUT_SHORT)?);
        let (infomask2, infomask, hoff) = header(&mut self.tuples)?;
        let bytes = self.tuples.take(length).ok_or(CUT_SHORT)?;
        RawTuple { infomask2, infomask, hoff, bytes }.checked()
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = (Place, NewTuple<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        (self.next < self.of.count).then(|| self.read().expect("walked when the record was decoded"))
    }
}

/// The old row at the end of an update's or deletion's main data, if the flags announce one.
fn old_tuple<'a>(main: Fields<'a>, whole: bool, key: bool) -> Read<Option<OldTuple<'a>>> {
    match (whole, key) {
        (false, false) => end(&main).map(|()| None),
        (true, true) => Err("it says that its old row is whole and only a key"),
        (_, key_only) => Ok(Some(OldTuple { key_only, tuple: RawTuple::read(main)? })),
    }
}

pub(crate) fn delete<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    // The transaction that deleted it, or a multixact with it. The record's own transaction counts.
    main.xid().ok_or(CUT_SHORT)?;
    let offset = main.u16().ok_or(CUT_SHORT)?;
    let (_infobits, flags) = (main.u8().ok_or(CUT_SHORT)?, main.u8().ok_or(CUT_SHORT)?);
    let old = old_tuple(
        main,
        flags & delete_flag::CONTAINS_OLD_TUPLE != 0,
        flags & delete_flag::CONTAINS_OLD_KEY != 0,
    )?;
    Ok(What::Delete(Delete {
        place: place(&target(input)?, offset)?,
        flags,
        is_super: flags & delete_flag::IS_SUPER != 0,
        is_partition_move: flags & delete_flag::IS_PARTITION_MOVE != 0,
        old,
    }))
}

pub(crate) fn update<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    read_update(input, false)
}

pub(crate) fn hot_update<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    read_update(input, true)
}

fn read_update<'a>(input: &Input<'_, 'a>, is_hot: bool) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    main.xid().ok_or(CUT_SHORT)?;
    let old_offset = main.u16().ok_or(CUT_SHORT)?;
    let (_infobits, flags) = (main.u8().ok_or(CUT_SHORT)?, main.u8().ok_or(CUT_SHORT)?);
    main.xid().ok_or(CUT_SHORT)?;
    let offset = main.u16().ok_or(CUT_SHORT)?;
    let old = old_tuple(
        main,
        flags & update_flag::CONTAINS_OLD_TUPLE != 0,
        flags & update_flag::CONTAINS_OLD_KEY != 0,
    )?;
    let block = target(input)?;
    // Recent minors of 17 and 18 name blocks of the visibility map too.
    let old_block = input.parts.block(1).filter(|block| block.fork == Fork::Main).unwrap_or(block);
    if old_block.locator != block.locator {
        return Err("its blocks are of two relations");
    }
    let is_logical = flags & update_flag::CONTAINS_NEW_TUPLE != 0;
    Ok(What::Update(Update {
        old_place: place(&old_block, old_offset)?,
        place: place(&block, offset)?,
        flags,
        is_hot,
        is_logical,
        old,
        tuple: updated_tuple(&block, flags)?,
    }))
}

/// The new row of an update, perhaps spliced: lengths of prefix and suffix, header, bitmap, data.
fn updated_tuple<'a>(block: &Block<'a>, flags: u8) -> Read<NewTuple<'a>> {
    let is_logical = flags & update_flag::CONTAINS_NEW_TUPLE != 0;
    if flags & (update_flag::PREFIX_FROM_OLD | update_flag::SUFFIX_FROM_OLD) == 0 {
        return new_tuple(block, is_logical);
    }
    if block.data.is_empty() {
        return absent(block, is_logical);
    }
    let mut fields = Fields::new(block.data);
    let mut shared = |flag: u8| if flags & flag == 0 { Some(0) } else { fields.u16() };
    let prefix = shared(update_flag::PREFIX_FROM_OLD).ok_or(CUT_SHORT)?;
    let suffix = shared(update_flag::SUFFIX_FROM_OLD).ok_or(CUT_SHORT)?;
    let (infomask2, infomask, hoff) = header(&mut fields)?;
    // The bitmap is always the new row's own.
    if before_data(hoff)? > fields.rest().len() {
        return Err(CUT_SHORT);
    }
    let tuple = RawTuple { infomask2, infomask, hoff, bytes: fields.rest() }.checked()?;
    Ok(NewTuple::Spliced(Spliced { prefix, suffix, tuple }))
}

pub(crate) fn truncate<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let (database, count) = (main.oid().ok_or(CUT_SHORT)?, main.u32().ok_or(CUT_SHORT)?);
    let flags = main.u8().ok_or(CUT_SHORT)?;
    if flags > 3 {
        return Err("it has unknown flags");
    }
    // Padding.
    main.take(3).ok_or(CUT_SHORT)?;
    let relations = Items::take(&mut main, count as usize)?;
    end(&main)?;
    let (cascade, restart_identity) = (flags & 1 != 0, flags & 2 != 0);
    Ok(What::Truncate(Truncate { database, cascade, restart_identity, relations }))
}

pub(crate) fn confirm<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let offset = main.u16().ok_or(CUT_SHORT)?;
    end(&main)?;
    Ok(What::Confirm(Confirm { place: place(&target(input)?, offset)? }))
}

pub(crate) fn in_place<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let offset = main.u16().ok_or(CUT_SHORT)?;
    // Only the length shows whether there is more, because that also depends on the minor version.
    let invalidations = if main.is_empty() {
        Items::none()
    } else {
        // Padding, database, tablespace, whether the relation cache's file is removed, padding.
        main.take(14).ok_or(CUT_SHORT)?;
        Items::counted(&mut main)?
    };
    end(&main)?;
    let block = target(input)?;
    let image = image_to_apply(&block);
    let data = (!block.data.is_empty()).then_some(block.data);
    if data.is_none() && image.is_none() {
        return Err("it has neither the row nor its page");
    }
    Ok(What::InPlace(InPlace { place: place(&block, offset)?, data, image, invalidations }))
}

pub(crate) fn new_cid<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let mut read = || {
        let (top, cmin, cmax) = (main.xid()?, main.u32()?, main.u32()?);
        // The combined command id: an index into the memory of a session of the server.
        main.u32()?;
        let locator = main.locator()?;
        let (high, low) = (u32::from(main.u16()?), u32::from(main.u16()?));
        let place = Place { locator, block: high << 16 | low, offset: main.u16()? };
        Some(NewCid { top, cmin, cmax, place })
    };
    let new_cid = read().ok_or(CUT_SHORT)?;
    end(&main)?;
    Ok(What::NewCid(new_cid))
}
