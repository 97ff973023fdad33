//! One page: a header, two fences, and cells in order.
//!
//! A page of a tree holds every cell between its **fences**: from `low`, inclusive, to `high`,
//! exclusive. A page without `high` reaches to the end of the tree. A fence is a key and an LSN,
//! because versions of one key may fill several leaves. All keys between two fences begin with the
//! fences' common prefix. The page stores it once, and cells hold the rest. Cells are ordered by
//! the bytes of their keys, and **newest first** within a key. So the version as of an LSN is the
//! first cell not before (key, LSN).
//!
//! In a leaf, a cell is a version. In an inner page, a cell is the low fence of a child, and its
//! payload is the child's id. FORMAT.md has the bytes. This module does no I/O and does not know
//! which versions may be removed. But a leaf keeps the earliest LSN at which one of its versions
//! may become removable, so that the question costs one comparison.

mod format1;

use std::cmp::Ordering;

/// The unit of reading and writing. It is the usual block of a file system and sector of a disk, so
/// that a page is one read.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Longest key. Together with [`CELL_BYTES_MAX`]: however a full page is split, each half must hold
/// one new fence, half the old content and one cell more. A fence (key and bookkeeping) and a cell
/// then take at most half of the page's room: 768 + 1,200 <= (4,096 - 48) / 2.
pub const KEY_BYTES_MAX: usize = 768;

/// Longest cell; a longer value moves to overflow pages.
pub(crate) const CELL_BYTES_MAX: usize = 1200;

/// Longest value. An overflow cell beside the longest key can list (1,200 - 12 - 768 - 4) / 4 = 104
/// pages of 4,064 bytes, rounded down.
pub const VALUE_BYTES_MAX: usize = 400_000;

/// The most bytes before a cell's suffix: two lengths of two bytes and the LSN. A small LSN takes
/// fewer bytes, and a short suffix's length takes only one.
pub(crate) const CELL_HEAD_BYTES: usize = 12;
/// The least bytes of a cell: two lengths and a byte of the LSN.
const CELL_BYTES_MIN: usize = 4;
const SLOT_BYTES: usize = 2;
const BODY: usize = 48;
/// The bytes of a page for fences, slots and cells.
pub(crate) const ROOM_BYTES: usize = PAGE_BYTES - BODY;

const KIND: usize = 0;
const LEVEL: usize = 1;
const TREE: usize = 2;
const FLAGS: usize = 3;
const ID: usize = 4;
const COUNT: usize = 8;
const HEAP: usize = 10;
const DEAD: usize = 12;
const PREFIX: usize = 14;
const LOW_LEN: usize = 16;
const HIGH_LEN: usize = 18;
const LOW_LSN: usize = 24;
const HIGH_LSN: usize = 32;
const REMOVABLE: usize = 40;

/// Where an overflow page's bytes begin. `COUNT` has their number.
const OVERFLOW_BODY: usize = 32;
/// Bytes of a value on one overflow page.
pub(crate) const OVERFLOW_BYTES: usize = PAGE_BYTES - OVERFLOW_BODY;

const KIND_NODE: u8 = 1;
const KIND_OVERFLOW: u8 = 2;

const HAS_HIGH: u8 = 1;
const FENCE_VOID: u8 = 2;
const WINDOW: u8 = 4;
/// The cells have the form of format 2.
const FORMAT_2: u8 = 8;

/// In a cell's first word: the version is a deletion.
const CELL_DELETE: u16 = 1 << 15;
/// In a cell's first word: the payload lists overflow pages.
const CELL_OVERFLOW: u16 = 1 << 14;
/// The position of the LSN's length in bytes, less one, in a cell's first word.
const CELL_LSN_SHIFT: u32 = 11;
/// The position of the payload's length in a cell's first word.
const CELL_PAYLOAD: u16 = (1 << CELL_LSN_SHIFT) - 1;
const _: () = assert!(CELL_BYTES_MAX <= CELL_PAYLOAD as usize);
/// The length of a suffix of this length or more takes two bytes: this value plus the high byte,
/// then the low byte.
const SUFFIX_LONG: usize = 252;
const _: () = assert!(KEY_BYTES_MAX >> 8 < 256 - SUFFIX_LONG);

/// The LSN of a fence that lies before every version of its key.
pub(crate) const NEWEST: u64 = u64::MAX;
/// No version in the leaf becomes removable by the horizon alone.
pub(crate) const NEVER: u64 = u64::MAX;

/// A bound between pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) key: Vec<u8>,
    pub(crate) lsn: u64,
}

impl Fence {
    /// The fence before all keys.
    pub(crate) fn start() -> Fence {
        Fence { key: Vec::new(), lsn: NEWEST }
    }
}

/// The order of the tree: keys ascending, newest version first.
pub(crate) fn order(a: (&[u8], u64), b: (&[u8], u64)) -> Ordering {
    a.0.cmp(b.0).then(b.1.cmp(&a.1))
}

/// What a cell says about its version beside key, LSN and payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CellFlags {
    pub(crate) delete: bool,
    pub(crate) overflow: bool,
}

/// A cell as its page stores it; the key is without the page's prefix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell<'a> {
    pub(crate) suffix: &'a [u8],
    pub(crate) lsn: u64,
    pub(crate) flags: CellFlags,
    pub(crate) payload: &'a [u8],
}

impl Cell<'_> {
    /// Bytes it takes in its page, the slot included.
    pub(crate) fn footprint_bytes(&self) -> usize {
        SLOT_BYTES + cell_bytes(self.suffix.len(), self.lsn, self.payload.len())
    }
}

/// The bytes of an LSN in a cell. The stored number is the LSN plus one, so that the LSN of most
/// fences, the highest possible one, becomes short.
fn lsn_bytes(lsn: u64) -> usize {
    let bits = u64::BITS - lsn.wrapping_add(1).leading_zeros();
    (bits.div_ceil(8) as usize).max(1)
}

/// Bytes of a cell.
fn cell_bytes(suffix_len: usize, lsn: u64, payload_len: usize) -> usize {
    let suffix_len_bytes = if suffix_len < SUFFIX_LONG { 1 } else { 2 };
    2 + suffix_len_bytes + lsn_bytes(lsn) + suffix_len + payload_len
}

/// Where the parts of a cell lie in its page.
#[derive(Debug, Clone, Copy)]
struct Layout {
    word: u16,
    lsn: usize,
    suffix: usize,
    payload: usize,
    end: usize,
}

/// The properties of a tree's page, apart from its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeHead {
    pub(crate) id: u32,
    pub(crate) tree: u8,
    pub(crate) level: u8,
    /// The tree is a window tree: a version becomes removable by its own LSN.
    pub(crate) window: bool,
    /// A crash took back the successor that the low fence names; nothing may be concluded from the
    /// fence.
    pub(crate) fence_void: bool,
}

/// The bytes of one page.
#[derive(Clone)]
pub(crate) struct Page {
    bytes: [u8; PAGE_BYTES],
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Page {{ kind: {}, id: {}, count: {} }}", self.bytes[KIND], self.id(), self.count())
    }
}

impl Page {
    /// Takes bytes from the disk as they are; [`Page::validate_node`] or [`Page::overflow`] judge
    /// them.
    pub(crate) fn from_bytes(bytes: [u8; PAGE_BYTES]) -> Page {
        Page { bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8; PAGE_BYTES] {
        &self.bytes
    }

    pub(crate) fn checksum(&self) -> u32 {
        crc32fast::hash(&self.bytes)
    }

    /// An overflow page with `part` of a value.
    pub(crate) fn new_overflow(id: u32, tree: u8, part: &[u8]) -> Page {
        let mut page = Page { bytes: [0; PAGE_BYTES] };
        page.bytes[KIND] = KIND_OVERFLOW;
        page.bytes[TREE] = tree;
        page.set_u32(ID, id);
        page.set_u16(COUNT, part.len());
        page.bytes[OVERFLOW_BODY..OVERFLOW_BODY + part.len()].copy_from_slice(part);
        page
    }

    /// The part of a value on this page, if it is an overflow page.
    pub(crate) fn overflow(&self) -> Option<&[u8]> {
        let is_overflow = self.bytes[KIND] == KIND_OVERFLOW;
        is_overflow.then(|| self.bytes.get(OVERFLOW_BODY..OVERFLOW_BODY + self.count())).flatten()
    }

    fn u16(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    fn set_u16(&mut self, at: usize, value: usize) {
        let value = u16::try_from(value).expect("lengths and offsets within a page fit 16 bits");
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn set_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    fn set_u64(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn id(&self) -> u32 {
        u32::from_le_bytes(self.bytes[ID..ID + 4].try_into().expect("four bytes"))
    }

    pub(crate) fn tree(&self) -> u8 {
        self.bytes[TREE]
    }

    pub(crate) fn is_node(&self) -> bool {
        self.bytes[KIND] == KIND_NODE
    }

    pub(crate) fn level(&self) -> u8 {
        self.bytes[LEVEL]
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.level() == 0
    }

    pub(crate) fn is_window(&self) -> bool {
        self.bytes[FLAGS] & WINDOW != 0
    }

    pub(crate) fn is_fence_void(&self) -> bool {
        self.bytes[FLAGS] & FENCE_VOID != 0
    }

    pub(crate) fn head(&self) -> NodeHead {
        NodeHead {
            id: self.id(),
            tree: self.tree(),
            level: self.level(),
            window: self.is_window(),
            fence_void: self.is_fence_void(),
        }
    }

    /// The same content under another id, for a root that becomes a child or the other way round.
    pub(crate) fn with_id(&self, id: u32) -> Page {
        let mut page = self.clone();
        page.set_u32(ID, id);
        page
    }

    pub(crate) fn count(&self) -> usize {
        self.u16(COUNT)
    }

    pub(crate) fn low(&self) -> (&[u8], u64) {
        (&self.bytes[BODY..BODY + self.u16(LOW_LEN)], self.u64(LOW_LSN))
    }

    pub(crate) fn high(&self) -> Option<(&[u8], u64)> {
        let start = BODY + self.u16(LOW_LEN);
        let key = || &self.bytes[start..start + self.u16(HIGH_LEN)];
        (self.bytes[FLAGS] & HAS_HIGH != 0).then(|| (key(), self.u64(HIGH_LSN)))
    }

    pub(crate) fn low_fence(&self) -> Fence {
        let (key, lsn) = self.low();
        Fence { key: key.to_vec(), lsn }
    }

    pub(crate) fn high_fence(&self) -> Option<Fence> {
        self.high().map(|(key, lsn)| Fence { key: key.to_vec(), lsn })
    }

    /// Whether (key, LSN) lies between the fences.
    pub(crate) fn covers(&self, key: &[u8], lsn: u64) -> bool {
        order(self.low(), (key, lsn)).is_le()
            && self.high().is_none_or(|high| order((key, lsn), high).is_lt())
    }

    /// The earliest LSN at which a version in this leaf may become removable; [`NEVER`] if none
    /// will.
    pub(crate) fn removable_from(&self) -> u64 {
        self.u64(REMOVABLE)
    }

    fn lower_removable_from(&mut self, lsn: u64) {
        let lsn = lsn.min(self.removable_from());
        self.set_u64(REMOVABLE, lsn);
    }

    /// The common beginning of all keys in this page.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.bytes[BODY..BODY + self.u16(PREFIX)]
    }

    fn slots_start(&self) -> usize {
        BODY + self.u16(LOW_LEN) + self.u16(HIGH_LEN)
    }

    fn cell_start(&self, index: usize) -> usize {
        self.u16(self.slots_start() + SLOT_BYTES * index)
    }

    /// The parts of the cell that begins at `start`, at least [`CELL_BYTES_MIN`] before the end of
    /// the page.
    #[inline]
    fn layout(&self, start: usize) -> Layout {
        let word = u16::from_le_bytes([self.bytes[start], self.bytes[start + 1]]);
        let first = usize::from(self.bytes[start + 2]);
        let (suffix_len, lsn) = if first < SUFFIX_LONG {
            (first, start + 3)
        } else {
            (((first - SUFFIX_LONG) << 8) + usize::from(self.bytes[start + 3]), start + 4)
        };
        let suffix = lsn + usize::from((word >> CELL_LSN_SHIFT) & 7) + 1;
        let payload = suffix + suffix_len;
        Layout { word, lsn, suffix, payload, end: payload + usize::from(word & CELL_PAYLOAD) }
    }

    fn lsn_of(&self, layout: Layout) -> u64 {
        let Layout { lsn, suffix, .. } = layout;
        let stored = if let Some(bytes) = self.bytes.get(lsn..lsn + 8) {
            let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            word & (u64::MAX >> (64 - 8 * (suffix - lsn)))
        } else {
            let mut bytes = [0; 8];
            bytes[..suffix - lsn].copy_from_slice(&self.bytes[lsn..suffix]);
            u64::from_le_bytes(bytes)
        };
        stored.wrapping_sub(1)
    }

    pub(crate) fn cell(&self, index: usize) -> Cell<'_> {
        let layout = self.layout(self.cell_start(index));
        let Layout { word, suffix, payload, end, .. } = layout;
        Cell {
            suffix: &self.bytes[suffix..payload],
            lsn: self.lsn_of(layout),
            flags: CellFlags { delete: word & CELL_DELETE != 0, overflow: word & CELL_OVERFLOW != 0 },
            payload: &self.bytes[payload..end],
        }
    }

    pub(crate) fn cells(&self) -> impl DoubleEndedIterator<Item = Cell<'_>> + ExactSizeIterator {
        (0..self.count()).map(|index| self.cell(index))
    }

    fn suffix_and_lsn(&self, index: usize) -> (&[u8], u64) {
        let layout = self.layout(self.cell_start(index));
        (&self.bytes[layout.suffix..layout.payload], self.lsn_of(layout))
    }

    pub(crate) fn lsn(&self, index: usize) -> u64 {
        self.lsn_of(self.layout(self.cell_start(index)))
    }

    pub(crate) fn is_delete(&self, index: usize) -> bool {
        self.u16(self.cell_start(index)) & usize::from(CELL_DELETE) != 0
    }

    /// The index of the cell at (key, LSN), or the place where it would stand. The key must lie
    /// between the fences.
    pub(crate) fn search(&self, key: &[u8], lsn: u64) -> Result<usize, usize> {
        let suffix = &key[self.u16(PREFIX)..];
        let (mut from, mut to) = (0, self.count());
        while from < to {
            let middle = usize::midpoint(from, to);
            let layout = self.layout(self.cell_start(middle));
            // The same order as `order`. The LSN matters only between equal keys.
            let here = self.bytes[layout.suffix..layout.payload].cmp(suffix);
            match here.then_with(|| lsn.cmp(&self.lsn_of(layout))) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => to = middle,
            }
        }
        Err(from)
    }

    /// The key of a cell, whole.
    pub(crate) fn key(&self, index: usize) -> Vec<u8> {
        [self.prefix(), self.suffix_and_lsn(index).0].concat()
    }

    /// Whether the cell is a version of `key`, which lies between the fences.
    pub(crate) fn is_of(&self, index: usize, key: &[u8]) -> bool {
        index < self.count() && self.suffix_and_lsn(index).0 == &key[self.u16(PREFIX)..]
    }

    /// Whether versions of `key` may stand in the next leaf, because the fence to it lies within
    /// the key.
    pub(crate) fn goes_on_right(&self, key: &[u8]) -> bool {
        self.high().is_some_and(|(high, lsn)| high == key && lsn != NEWEST)
    }

    /// Whether two cells are versions of one key.
    pub(crate) fn is_one_key(&self, a: usize, b: usize) -> bool {
        self.suffix_and_lsn(a).0 == self.suffix_and_lsn(b).0
    }

    /// The child of an inner page that leads to (key, LSN): the last child whose low fence is not
    /// after it.
    pub(crate) fn child_index(&self, key: &[u8], lsn: u64) -> usize {
        match self.search(key, lsn) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }

    /// The child's id in an inner page.
    pub(crate) fn child(&self, index: usize) -> u32 {
        u32::from_le_bytes(self.cell(index).payload.try_into().expect("an inner page was validated"))
    }

    fn slots_end(&self) -> usize {
        self.slots_start() + SLOT_BYTES * self.count()
    }

    /// The bytes for more cells, once the page is rebuilt.
    pub(crate) fn free_bytes(&self) -> usize {
        self.u16(HEAP) - self.slots_end() + self.u16(DEAD)
    }

    /// The bytes of fences, slots and cells.
    pub(crate) fn used_bytes(&self) -> usize {
        ROOM_BYTES - self.free_bytes()
    }

    /// Whether a cell with a key that lies between the fences fits.
    pub(crate) fn has_room(&self, key_len: usize, lsn: u64, payload_len: usize) -> bool {
        self.footprint_bytes(key_len, lsn, payload_len) <= self.free_bytes()
    }

    /// The bytes that a cell with this key would take on this page.
    pub(crate) fn footprint_bytes(&self, key_len: usize, lsn: u64, payload_len: usize) -> usize {
        SLOT_BYTES + cell_bytes(key_len - self.u16(PREFIX), lsn, payload_len)
    }

    /// Inserts a cell at the place that [`Page::search`] found. There must be room.
    pub(crate) fn insert(&mut self, index: usize, key: &[u8], lsn: u64, flags: CellFlags, payload: &[u8]) {
        let footprint = self.footprint_bytes(key.len(), lsn, payload.len());
        assert!(footprint <= self.free_bytes(), "room was looked for before");
        if self.u16(HEAP) - self.slots_end() < footprint {
            *self = self.rebuilt();
        }
        let suffix_from = self.u16(PREFIX);
        let start = self.u16(HEAP) - (footprint - SLOT_BYTES);
        self.write_cell(start, &[&key[suffix_from..]], lsn, flags, payload);
        let (slot, end) = (self.slots_start() + SLOT_BYTES * index, self.slots_end());
        self.bytes.copy_within(slot..end, slot + SLOT_BYTES);
        self.set_u16(slot, start);
        self.set_u16(HEAP, start);
        let count = self.count() + 1;
        self.set_u16(COUNT, count);
        if self.is_leaf() {
            self.note_removable(index);
        }
    }

    fn write_cell(&mut self, start: usize, suffix: &[&[u8]], lsn: u64, flags: CellFlags, payload: &[u8]) {
        let suffix_len: usize = suffix.iter().map(|part| part.len()).sum();
        let mut word = u16::try_from(payload.len()).expect("a cell is shorter than a page");
        let lsn_len = lsn_bytes(lsn);
        word |= ((lsn_len - 1) as u16) << CELL_LSN_SHIFT;
        word |= if flags.delete { CELL_DELETE } else { 0 };
        word |= if flags.overflow { CELL_OVERFLOW } else { 0 };
        self.bytes[start..start + 2].copy_from_slice(&word.to_le_bytes());
        let mut at = start + 3;
        if suffix_len < SUFFIX_LONG {
            self.bytes[start + 2] = suffix_len as u8;
        } else {
            self.bytes[start + 2] = (SUFFIX_LONG + (suffix_len >> 8)) as u8;
            self.bytes[start + 3] = suffix_len as u8;
            at += 1;
        }
        self.bytes[at..at + lsn_len].copy_from_slice(&lsn.wrapping_add(1).to_le_bytes()[..lsn_len]);
        at += lsn_len;
        for part in suffix.iter().copied().chain([payload]) {
            self.bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// Lowers `removable_from` for the cell at `index`: by its own removal, or by that of its
    /// elder.
    fn note_removable(&mut self, index: usize) {
        let (suffix, lsn) = self.suffix_and_lsn(index);
        if self.is_window() {
            return self.lower_removable_from(lsn.saturating_add(1));
        }
        let is_delete = self.is_delete(index);
        let successor = if index > 0 {
            let (before, newer) = self.suffix_and_lsn(index - 1);
            (before == suffix).then_some(newer)
        } else {
            self.fence_successor(suffix)
        };
        let supersedes = index + 1 < self.count() && self.suffix_and_lsn(index + 1).0 == suffix;
        if is_delete || supersedes {
            self.lower_removable_from(lsn);
        }
        if let Some(newer) = successor {
            self.lower_removable_from(newer);
        }
    }

    /// The LSN of the newer version of the first cell's key at the end of the previous leaf, if
    /// there is one. `suffix` is the key without the prefix.
    ///
    /// A fence within a key was made from the version left of it. See the README on keys that fill
    /// several leaves.
    pub(crate) fn fence_successor(&self, suffix: &[u8]) -> Option<u64> {
        let (key, lsn) = self.low();
        let says = lsn != NEWEST && !self.is_fence_void() && &key[self.u16(PREFIX)..] == suffix;
        says.then(|| lsn + 1)
    }

    /// Takes a cell out.
    pub(crate) fn remove(&mut self, index: usize) {
        let start = self.cell_start(index);
        let dead = self.u16(DEAD) + self.layout(start).end - start;
        let (slot, end) = (self.slots_start() + SLOT_BYTES * index, self.slots_end());
        self.bytes.copy_within(slot + SLOT_BYTES..end, slot);
        self.set_u16(DEAD, dead);
        let count = self.count() - 1;
        self.set_u16(COUNT, count);
    }

    /// The same cells without gaps.
    fn rebuilt(&self) -> Page {
        self.without(|_| false)
    }

    /// The same cells except those that are `gone`, without gaps. The fences stay, and so does each
    /// cell's form. Bottom-up deletion does this so often that the cost of a [`Builder`] would
    /// show.
    pub(crate) fn without(&self, gone: impl Fn(usize) -> bool) -> Page {
        let mut page = Page { bytes: [0; PAGE_BYTES] };
        let mut slot = self.slots_start();
        page.bytes[..slot].copy_from_slice(&self.bytes[..slot]);
        page.set_u64(REMOVABLE, NEVER);
        page.set_u16(DEAD, 0);
        page.set_u16(COUNT, 0);
        let (mut heap, mut count) = (PAGE_BYTES, 0);
        for index in (0..self.count()).filter(|index| !gone(*index)) {
            let start = self.cell_start(index);
            let cell = &self.bytes[start..self.layout(start).end];
            heap -= cell.len();
            page.bytes[heap..heap + cell.len()].copy_from_slice(cell);
            page.set_u16(slot, heap);
            (slot, count) = (slot + SLOT_BYTES, count + 1);
            page.set_u16(COUNT, count);
            if page.is_leaf() {
                // Of two versions of a key, the elder notes the younger's LSN.
                page.note_removable(count - 1);
            }
        }
        page.set_u16(HEAP, heap);
        page
    }

    /// Says why this is not a well-formed page of a tree, if it is not. After this check, no
    /// function of this module panics.
    pub(crate) fn validate_node(&self) -> Result<(), &'static str> {
        if !self.is_node() {
            return Err("it is not a page of a tree");
        }
        if self.bytes[FLAGS] & FORMAT_2 == 0 {
            return Err("its cells are of another format");
        }
        let (low, high, prefix) = (self.u16(LOW_LEN), self.u16(HIGH_LEN), self.u16(PREFIX));
        if low > KEY_BYTES_MAX || high > KEY_BYTES_MAX || prefix > low {
            return Err("a fence is too long");
        }
        let (slots_end, heap) = (self.slots_end(), self.u16(HEAP));
        if slots_end > heap || heap > PAGE_BYTES || self.u16(DEAD) > PAGE_BYTES - heap {
            return Err("slots and cells overlap");
        }
        if !self.high().is_none_or(|high| high.0.starts_with(self.prefix())) {
            return Err("the fences do not share the prefix");
        }
        let mut bytes = self.u16(DEAD);
        for index in 0..self.count() {
            let start = self.cell_start(index);
            if start < heap || start + CELL_BYTES_MIN > PAGE_BYTES {
                return Err("a cell lies outside of the page");
            }
            let layout = self.layout(start);
            if layout.end > PAGE_BYTES {
                return Err("a cell ends outside of the page");
            }
            bytes += layout.end - start;
            if !self.is_leaf() && layout.end - layout.payload != 4 {
                return Err("a child's id does not have four bytes");
            }
        }
        if bytes != PAGE_BYTES - heap {
            return Err("its cells do not add up");
        }
        if !self.is_leaf() && self.count() == 0 {
            return Err("an inner page has no child");
        }
        Ok(())
    }

    /// Says why the cells are not in order or not between the fences, if so.
    pub(crate) fn validate_order(&self) -> Result<(), &'static str> {
        for index in 0..self.count() {
            if index > 0 && order(self.suffix_and_lsn(index - 1), self.suffix_and_lsn(index)).is_ge() {
                return Err("its cells are not in order");
            }
            if !self.covers(&self.key(index), self.cell(index).lsn) {
                return Err("a cell lies outside of the fences");
            }
        }
        if !self.is_leaf() && (self.key(0).as_slice(), self.cell(0).lsn) != self.low() {
            return Err("its first child does not begin at the low fence");
        }
        Ok(())
    }
}

/// Builds a page from cells in order.
pub(crate) struct Builder {
    page: Page,
    /// End of the slots written so far.
    slots_end: usize,
    heap: usize,
    count: usize,
}

impl Builder {
    pub(crate) fn new(head: NodeHead, low: &Fence, high: Option<&Fence>) -> Builder {
        let mut page = Page { bytes: [0; PAGE_BYTES] };
        page.bytes[KIND] = KIND_NODE;
        page.bytes[LEVEL] = head.level;
        page.bytes[TREE] = head.tree;
        let mut flags = FORMAT_2 | if head.window { WINDOW } else { 0 };
        flags |= if head.fence_void { FENCE_VOID } else { 0 };
        flags |= if high.is_some() { HAS_HIGH } else { 0 };
        page.bytes[FLAGS] = flags;
        page.set_u32(ID, head.id);
        page.set_u16(LOW_LEN, low.key.len());
        page.set_u64(LOW_LSN, low.lsn);
        let low_end = BODY + low.key.len();
        page.bytes[BODY..low_end].copy_from_slice(&low.key);
        let mut slots_end = low_end;
        if let Some(high) = high {
            page.set_u16(HIGH_LEN, high.key.len());
            page.set_u64(HIGH_LSN, high.lsn);
            slots_end += high.key.len();
            page.bytes[low_end..slots_end].copy_from_slice(&high.key);
            page.set_u16(PREFIX, common_prefix(&low.key, &high.key));
        }
        page.set_u64(REMOVABLE, NEVER);
        Builder { page, slots_end, heap: PAGE_BYTES, count: 0 }
    }

    /// Adds `cell` of a page with `prefix`. Returns false if it does not fit.
    #[must_use]
    pub(crate) fn push(&mut self, prefix: &[u8], cell: Cell<'_>) -> bool {
        let skipped = self.page.u16(PREFIX);
        // The new page's prefix may be longer or shorter than that of the cell's page.
        let (head, tail) = if skipped <= prefix.len() {
            (&prefix[skipped..], cell.suffix)
        } else {
            (&[][..], &cell.suffix[skipped - prefix.len()..])
        };
        let bytes = cell_bytes(head.len() + tail.len(), cell.lsn, cell.payload.len());
        if self.slots_end + SLOT_BYTES + bytes > self.heap {
            return false;
        }
        self.heap -= bytes;
        self.page.write_cell(self.heap, &[head, tail], cell.lsn, cell.flags, cell.payload);
        self.page.set_u16(self.slots_end, self.heap);
        self.slots_end += SLOT_BYTES;
        self.count += 1;
        self.page.set_u16(COUNT, self.count);
        if self.page.is_leaf() {
            // Of two versions of a key, the elder notes the younger's LSN.
            self.page.note_removable(self.count - 1);
        }
        true
    }

    pub(crate) fn finish(mut self) -> Page {
        self.page.set_u16(HEAP, self.heap);
        self.page
    }
}

/// The number of bytes that two keys share from the start.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> NodeHead {
        NodeHead { id: 7, tree: 1, level: 0, window: false, fence_void: false }
    }

    fn fence(key: &str) -> Fence {
        Fence { key: key.into(), lsn: NEWEST }
    }

    fn put(page: &mut Page, key: &str, lsn: u64, value: &str) {
        let index = page.search(key.as_bytes(), lsn).unwrap_err();
        page.insert(index, key.as_bytes(), lsn, CellFlags::default(), value.as_bytes());
    }

    #[test]
    fn versions_of_a_key_stand_newest_first() {
        let mut page = Builder::new(head(), &fence("user/a"), Some(&fence("user/z"))).finish();
        for (key, lsn) in [("user/b", 10), ("user/b", 30), ("user/a", 5), ("user/b", 20)] {
            put(&mut page, key, lsn, &format!("{key}@{lsn}"));
        }
        let seen: Vec<_> =
            page.cells().map(|cell| String::from_utf8_lossy(cell.payload).into_owned()).collect();
        assert_eq!(seen, ["user/a@5", "user/b@30", "user/b@20", "user/b@10"]);
        assert_eq!(page.cell(0).suffix, b"a", "the prefix of the fences is stored once");
        assert_eq!(page.search(b"user/b", 25), Err(2), "as of 25 the version of 20 holds");
        assert_eq!((page.validate_node(), page.validate_order()), (Ok(()), Ok(())));
    }

    #[test]
    fn a_leaf_knows_when_something_becomes_removable() {
        let mut page = Builder::new(head(), &Fence::start(), None).finish();
        put(&mut page, "a", 10, "");
        put(&mut page, "b", 12, "");
        assert_eq!(page.removable_from(), NEVER, "one version of each key stays");
        put(&mut page, "b", 40, "");
        put(&mut page, "a", 30, "");
        assert_eq!(page.removable_from(), 30, "once the horizon reaches a's second version");
        page.insert(0, b"0", 20, CellFlags { delete: true, overflow: false }, b"");
        assert_eq!(page.removable_from(), 20, "a deletion goes by itself");
        assert_eq!(page.rebuilt().removable_from(), 20, "and copying the page finds the same");
    }

    #[test]
    fn room_given_back_is_used_again() {
        let mut page = Builder::new(head(), &Fence::start(), None).finish();
        let value = "v".repeat(100);
        let mut lsn = 1;
        while page.has_room(3, lsn, value.len()) {
            put(&mut page, "key", lsn, &value);
            lsn += 1;
        }
        let full = page.count();
        (0..full / 2).for_each(|index| page.remove(index));
        while page.has_room(3, lsn, value.len()) {
            put(&mut page, "key", lsn, &value);
            lsn += 1;
        }
        assert_eq!(page.count(), full);
        assert_eq!((page.validate_node(), page.validate_order()), (Ok(()), Ok(())));
    }

    #[test]
    fn cells_move_between_pages_of_shorter_and_longer_prefixes() {
        let mut page = Builder::new(head(), &fence("abc1"), Some(&fence("abc9"))).finish();
        put(&mut page, "abc5x", 1, "five");
        for (low, high, prefix) in [("ab", "abd", "ab"), ("abc5", "abc5z", "abc5"), ("", "z", "")] {
            let mut builder = Builder::new(head(), &fence(low), Some(&fence(high)));
            assert!(builder.push(page.prefix(), page.cell(0)));
            let moved = builder.finish();
            assert_eq!(moved.prefix(), prefix.as_bytes());
            assert_eq!(moved.key(0), b"abc5x");
            assert_eq!((moved.validate_node(), moved.validate_order()), (Ok(()), Ok(())));
        }
    }

    #[test]
    fn cells_take_what_they_say_whatever_their_lengths() {
        let lsns = [0, 1, 254, 255, 256, u64::from(u32::MAX), (1 << 56) - 2, 1 << 56, NEWEST - 1, NEWEST];
        for suffix_len in [0, 1, 251, 252, 255, 256, 511, 512, KEY_BYTES_MAX] {
            for payload_len in [0, 1, 4, CELL_BYTES_MAX - CELL_HEAD_BYTES - suffix_len] {
                for lsn in lsns {
                    let mut page = Builder::new(head(), &Fence::start(), None).finish();
                    let (key, payload) = (vec![b'k'; suffix_len], vec![b'p'; payload_len]);
                    let (free, said) =
                        (page.free_bytes(), page.footprint_bytes(suffix_len, lsn, payload_len));
                    let flags = CellFlags { delete: true, overflow: payload_len == 4 };
                    page.insert(0, &key, lsn, flags, &payload);
                    let cell = page.cell(0);
                    assert_eq!(
                        (cell.suffix, cell.lsn, cell.flags, cell.payload),
                        (&key[..], lsn, flags, &payload[..])
                    );
                    assert_eq!((cell.footprint_bytes(), free - page.free_bytes()), (said, said));
                    assert!(said <= SLOT_BYTES + CELL_HEAD_BYTES + suffix_len + payload_len);
                    assert_eq!(page.validate_node(), Ok(()));
                    page.remove(0);
                    assert_eq!((page.free_bytes(), page.validate_node()), (free, Ok(())));
                }
            }
        }
    }

    #[test]
    fn no_bytes_at_all_make_a_page_panic() {
        use rand::{Rng, SeedableRng};
        let mut page = Builder::new(head(), &fence("abc1"), Some(&fence("abc9"))).finish();
        (0..20).for_each(|lsn| put(&mut page, "abc5x", lsn, "five"));
        let mut random = rand::rngs::StdRng::seed_from_u64(1);
        for _ in 0..20_000 {
            let mut broken = page.clone();
            for _ in 0..random.random_range(1..4) {
                broken.bytes[random.random_range(0..PAGE_BYTES)] = random.random();
                broken.bytes[random.random_range(0..80)] ^= 1 << random.random_range(0..8);
            }
            if broken.validate_node().is_ok() {
                let _ = broken.validate_order();
                let _ = broken.cells().map(|cell| cell.payload.len()).sum::<usize>();
            }
        }
    }
}
