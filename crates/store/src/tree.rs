//! The B-tree as the writer changes it: insert, make room, split, merge.
//!
//! Readers walk the tree at the same time and wait for nobody. What keeps them right:
//!
//! 1. A page tells the range it holds by its fences. A reader that arrives at a page whose range does not
//!    hold what it looks for, or at no page at all, starts over from the root. *Split:* the new right page is
//!    there first, then the left one gives up half of its range, then the parent learns of it; between the
//!    last two a reader of the right half starts over. *Merge:* the left page takes the range first, then the
//!    parent forgets the right one, then that is freed. The writer counts such moves: where a reader loses
//!    its way and nothing moved meanwhile, that is damage.
//! 2. A tree's root keeps its id. *Grow:* its content moves to a new child first. *Shrink:* the other way
//!    round.
//! 3. An image of a leaf that was current at any time after the reader began is good enough: later writes
//!    are above the reader's LSN, and what is removed is nothing a registered reader sees (see `removal`).
//!
//! Turned down: latch coupling (a reader that waits for the disk would hold up the writer) and right links as
//! Lehman and Yao have them (a page that a merge emptied would have to stay until every reader is gone;
//! starting over is as rare and simpler).

use std::sync::Arc;

use crate::error::Result;
use crate::page::{
    Builder, CELL_BYTES_MAX, CELL_HEAD_BYTES, Cell, CellFlags, Fence, NEWEST, NodeHead, OVERFLOW_BYTES, Page,
    ROOM_BYTES, common_prefix,
};
use crate::pager::overflow_parts;
use crate::pages::Pages;
use crate::removal::{View, removable};

/// How full a leaf at the end of the tree is left when keys come in order: PostgreSQL's default fillfactor.
/// The tenth that is free takes the first new versions, until old ones have become removable.
const FILL_AT_END_PERCENT: usize = 90;

/// Room that must be there after bottom-up deletion for the leaf not to be split when a new version of a known
/// key comes, if the entry itself does not take more: a twenty-fourth of the page, as nbtree asks after its
/// pass. It is the room that counts, not what was freed: a leaf that has little beyond one version per key
/// can free only that little, and must not split over it.
const ROOM_MIN_BYTES: usize = ROOM_BYTES / 24;

/// The same when a new key comes: the leaf holds more keys than before, so a split is due anyway, and putting
/// it off must win more.
const ROOM_MIN_NEW_KEY_BYTES: usize = ROOM_BYTES / 16;

/// Under this a leaf or an inner page looks for a neighbour to merge with.
const MERGE_BELOW_BYTES: usize = ROOM_BYTES / 4;

/// What a merge in passing may fill: three quarters, so that the next insert does not split again.
pub(crate) const MERGE_FILL_BYTES: usize = ROOM_BYTES * 3 / 4;

/// What bottom-up deletion may look at when a leaf is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BottomUp {
    /// The whole leaf: versions, horizon and fences stand in it, so no other page is visited.
    #[default]
    Full,
    /// Half the entries of the leaf, from the incoming key on: the message's restricted variant.
    Restricted,
    /// Never: a full leaf splits.
    Off,
}

/// A tree as its functions need it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeRef {
    pub(crate) id: u8,
    pub(crate) root: u32,
    pub(crate) window: bool,
}

/// The way to a leaf: each inner page and which child was taken.
type Steps = Vec<(u32, usize)>;

/// What a version written brings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Versions that some horizon will make removable: this one, or its elder.
    pub(crate) debt: u64,
    /// Versions removed to make room.
    pub(crate) removed: u64,
    /// Attempts at bottom-up deletion.
    pub(crate) attempts: u64,
    /// Pages that were split.
    pub(crate) splits: u64,
}

/// A version to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) lsn: u64,
    pub(crate) delete: bool,
    pub(crate) value: &'a [u8],
}

/// What one step of a sweep did.
#[derive(Debug)]
pub(crate) struct Swept {
    pub(crate) removed: u64,
    /// Where the next step goes; `None` at the end of the tree.
    pub(crate) next: Option<Fence>,
}

impl Pages {
    /// An empty tree; its root.
    pub(crate) fn create_tree(&mut self, id: u8, window: bool) -> Result<u32> {
        self.ensure_room(1)?;
        let root = self.allocate();
        let head = NodeHead { id: root, tree: id, level: 0, window, fence_void: false };
        self.put(Builder::new(head, &Fence::start(), None).finish());
        Ok(root)
    }

    /// The leaf for (key, LSN); `steps` becomes the way there.
    pub(crate) fn descend(
        &self,
        tree: TreeRef,
        key: &[u8],
        lsn: u64,
        steps: &mut Steps,
    ) -> Result<Arc<Page>> {
        steps.clear();
        let mut page = self.fetch_node(tree.root, tree.id)?;
        while !page.is_leaf() {
            let index = page.child_index(key, lsn);
            steps.push((page.id(), index));
            let child = self.fetch_node(page.child(index), tree.id)?;
            if child.level() + 1 != page.level() || !child.covers(key, lsn) {
                return Err(self.pager.damaged(child.id(), tree.id, "it is not what its parent says"));
            }
            page = child;
        }
        Ok(page)
    }

    /// Writes a version, over one of the same key and LSN if there is one. `view` is asked for when a leaf is
    /// full.
    ///
    /// # Errors
    /// The size limit: nothing has changed then. Disk and damage.
    pub(crate) fn write(
        &mut self,
        tree: TreeRef,
        change: Change<'_>,
        bottom_up: BottomUp,
        view: impl Fn() -> View,
    ) -> Result<Written> {
        let Change { key, lsn, value, .. } = change;
        let mut flags = CellFlags { delete: change.delete, overflow: false };
        if CELL_HEAD_BYTES + key.len() + value.len() <= CELL_BYTES_MAX {
            return self.write_cell(tree, key, lsn, flags, value, bottom_up, view);
        }
        flags.overflow = true;
        let payload = self.write_overflow(tree.id, value)?;
        let written = self.write_cell(tree, key, lsn, flags, &payload, bottom_up, view);
        if written.is_err() {
            self.free_overflow(&payload);
        }
        written
    }

    /// Moves a value to pages of its own; the cell's payload.
    fn write_overflow(&mut self, tree: u8, value: &[u8]) -> Result<Vec<u8>> {
        let pages = u32::try_from(value.len().div_ceil(OVERFLOW_BYTES)).expect("a value's length is limited");
        self.ensure_room(pages)?;
        let mut payload = u32::try_from(value.len()).expect("limited").to_le_bytes().to_vec();
        for part in value.chunks(OVERFLOW_BYTES) {
            let id = self.allocate();
            self.put(Page::new_overflow(id, tree, part));
            payload.extend_from_slice(&id.to_le_bytes());
        }
        Ok(payload)
    }

    /// The ids stand in the cell, so no page is visited to free them.
    fn free_overflow(&mut self, payload: &[u8]) {
        overflow_parts(payload).1.for_each(|id| self.free(id));
    }

    #[allow(clippy::too_many_arguments)] // The parts of one cell; a struct for one caller would hide them.
    fn write_cell(
        &mut self,
        tree: TreeRef,
        key: &[u8],
        lsn: u64,
        flags: CellFlags,
        payload: &[u8],
        bottom_up: BottomUp,
        view: impl Fn() -> View,
    ) -> Result<Written> {
        let mut written = Written::default();
        let mut steps = Steps::new();
        let mut may_attempt = bottom_up != BottomUp::Off;
        loop {
            let leaf = self.descend(tree, key, lsn, &mut steps)?;
            let id = leaf.id();
            let index = match leaf.search(key, lsn) {
                Err(index) => index,
                Ok(index) => {
                    // What follows may split every page on the way, and the old version must not be lost over
                    // it.
                    self.ensure_room(steps.len() as u32 + 2)?;
                    self.take_out(&leaf, index)?;
                    continue;
                }
            };
            if leaf.has_room(key.len(), payload.len()) {
                let supersedes = leaf.is_of(index, key)
                    || (index == leaf.count()
                        && leaf.high().is_some_and(|(high, at)| high == key && at != NEWEST));
                written.debt = u64::from(tree.window)
                    + u64::from(!tree.window && supersedes)
                    + u64::from(!tree.window && flags.delete);
                drop(leaf);
                let insert = |page: &mut Page| page.insert(index, key, lsn, flags, payload);
                if flags.overflow {
                    self.change(id, tree.id, insert)?;
                } else {
                    self.change_alone(id, tree.id, insert)?;
                }
                return Ok(written);
            }
            if may_attempt {
                may_attempt = false;
                let is_version = leaf.is_of(index, key) || (index > 0 && leaf.is_of(index - 1, key));
                let least = if is_version { ROOM_MIN_BYTES } else { ROOM_MIN_NEW_KEY_BYTES };
                let wanted = leaf.footprint_bytes(key.len(), payload.len()).max(least);
                let examined_max =
                    if bottom_up == BottomUp::Full { usize::MAX } else { leaf.count().div_ceil(2) };
                let (removed, freed) = self.remove_old(&leaf, index, examined_max, &view, &mut written);
                written.removed += removed;
                if freed > 0 && leaf.free_bytes() + freed >= wanted {
                    continue;
                }
                // What was found is gone, but not enough of it: split now, rather than try again at the next
                // entry.
                let leaf = self.fetch_node(id, tree.id)?;
                self.split(tree, &steps, &leaf, Some(index.min(leaf.count())), &mut written)?;
                continue;
            }
            self.split(tree, &steps, &leaf, Some(index), &mut written)?;
        }
    }

    /// Takes a cell out and frees what its value lies on.
    fn take_out(&mut self, leaf: &Page, index: usize) -> Result<()> {
        let cell = leaf.cell(index);
        if cell.flags.overflow {
            self.free_overflow(cell.payload);
            return self.change(leaf.id(), leaf.tree(), |page| page.remove(index));
        }
        self.change_alone(leaf.id(), leaf.tree(), |page| page.remove(index))
    }

    /// Bottom-up deletion on one leaf: removes what nobody needs; how many versions and bytes.
    ///
    /// One comparison tells whether there can be anything: the leaf knows from which LSN on.
    fn remove_old(
        &mut self,
        leaf: &Page,
        first: usize,
        examined_max: usize,
        view: impl Fn() -> View,
        written: &mut Written,
    ) -> (u64, usize) {
        let view = view();
        if leaf.removable_from() > view.horizon {
            return (0, 0);
        }
        written.attempts += 1;
        let marks = removable(leaf, &view, first, examined_max);
        let removed = marks.iter().filter(|mark| **mark).count() as u64;
        if removed == 0 {
            return (0, 0);
        }
        let mut builder = Builder::new(leaf.head(), &leaf.low_fence(), leaf.high_fence().as_ref());
        for (cell, mark) in leaf.cells().zip(marks) {
            if !mark {
                assert!(builder.push(leaf.prefix(), cell), "fewer cells than before");
            }
        }
        let page = builder.finish();
        let freed = page.free_bytes() - leaf.free_bytes();
        let overflow: Vec<Vec<u8>> = self.overflow_of_removed(leaf, &page);
        if overflow.is_empty() {
            self.put_alone(page)
        } else {
            self.put(page)
        }
        overflow.iter().for_each(|payload| self.free_overflow(payload));
        (removed, freed)
    }

    /// Overflow payloads in `before` that are not in `after`, which has a part of the same cells.
    fn overflow_of_removed(&self, before: &Page, after: &Page) -> Vec<Vec<u8>> {
        let mut kept = after.cells().filter(|cell| cell.flags.overflow).peekable();
        let mut gone = Vec::new();
        for cell in before.cells().filter(|cell| cell.flags.overflow) {
            if kept.next_if(|kept| kept.payload == cell.payload).is_none() {
                gone.push(cell.payload.to_vec());
            }
        }
        gone
    }

    /// Makes two pages of one, or first makes what this needs: a root that is an inner page, a parent with
    /// room. The caller descends anew.
    fn split(
        &mut self,
        tree: TreeRef,
        steps: &[(u32, usize)],
        node: &Page,
        insert_at: Option<usize>,
        written: &mut Written,
    ) -> Result<()> {
        self.ensure_room(1)?;
        let Some((&(parent_id, index), above)) = steps.split_last() else {
            self.grow_root(tree, node);
            return Ok(());
        };
        let at_end = node.high().is_none() && insert_at == Some(node.count());
        let cut = at_end.then(|| cut_at_end(node)).flatten().or_else(|| cut_in_half(node));
        let (left, right, fence) = cut.expect("KEY_BYTES_MAX is chosen so that each half fits");
        let parent = self.fetch_node(parent_id, tree.id)?;
        if !parent.has_room(fence.key.len(), 4) {
            let at_end = (index + 1 == parent.count()).then_some(parent.count());
            return self.split(tree, above, &parent, at_end, written);
        }
        let _moving = self.pager.moving();
        let right_id = self.allocate();
        self.put(right.with_id(right_id));
        self.put(left);
        drop(parent);
        self.change(parent_id, tree.id, |page| {
            let place = page.search(&fence.key, fence.lsn).expect_err("no two children begin alike");
            page.insert(place, &fence.key, fence.lsn, CellFlags::default(), &right_id.to_le_bytes());
        })?;
        written.splits += 1;
        Ok(())
    }

    /// The root's content moves to a child of its own.
    fn grow_root(&mut self, tree: TreeRef, root: &Page) {
        let _moving = self.pager.moving();
        let child = self.allocate();
        self.put(root.with_id(child));
        let head = NodeHead { level: root.level() + 1, fence_void: false, ..root.head() };
        let mut builder = Builder::new(head, &Fence::start(), None);
        let payload = child.to_le_bytes();
        let cell = Cell { suffix: b"", lsn: NEWEST, flags: CellFlags::default(), payload: &payload };
        assert!(builder.push(b"", cell), "one cell fits");
        debug_assert_eq!(tree.root, root.id());
        self.put(builder.finish());
    }

    /// Sweeps the leaf at `place`: removes what nobody needs and merges what is nearly empty.
    pub(crate) fn sweep(&mut self, tree: TreeRef, place: &Fence, view: &View) -> Result<Swept> {
        let mut steps = Steps::new();
        let leaf = self.descend(tree, &place.key, place.lsn, &mut steps)?;
        let next = leaf.high_fence();
        let mut ignored = Written::default();
        let (removed, _) = self.remove_old(&leaf, 0, usize::MAX, || view.clone(), &mut ignored);
        let used =
            if removed == 0 { leaf.used_bytes() } else { self.fetch_node(leaf.id(), tree.id)?.used_bytes() };
        if used < MERGE_BELOW_BYTES {
            self.merge_upwards(tree, &steps)?;
        }
        Ok(Swept { removed, next })
    }

    /// Merges the page that `steps` lead to with a neighbour, then its parent if that became small, up to the
    /// root.
    fn merge_upwards(&mut self, tree: TreeRef, steps: &[(u32, usize)]) -> Result<()> {
        for &(parent_id, index) in steps.iter().rev() {
            let parent = self.fetch_node(parent_id, tree.id)?;
            let left = if index + 1 < parent.count() { Some(index) } else { index.checked_sub(1) };
            // An only child has nobody to merge with before its parent has.
            let merged = match left {
                Some(left) => self.merge(tree, &parent, left, MERGE_FILL_BYTES)?,
                None => true,
            };
            if !merged || self.fetch_node(parent_id, tree.id)?.used_bytes() >= MERGE_BELOW_BYTES {
                break;
            }
        }
        self.shrink_root(tree)
    }

    /// Moves the child right of `left` into it, if both fill at most `fill_bytes` or one is empty; whether
    /// they did.
    fn merge(&mut self, tree: TreeRef, parent: &Page, left: usize, fill_bytes: usize) -> Result<bool> {
        let (left_page, right_page) = self.pair(tree, parent, left)?;
        let mut builder =
            Builder::new(left_page.head(), &left_page.low_fence(), right_page.high_fence().as_ref());
        for page in [&left_page, &right_page] {
            if !page.cells().all(|cell| builder.push(page.prefix(), cell)) {
                return Ok(false);
            }
        }
        let merged = builder.finish();
        let is_one_empty = left_page.count() == 0 || right_page.count() == 0;
        if merged.used_bytes() > fill_bytes && !is_one_empty {
            return Ok(false);
        }
        let _moving = self.pager.moving();
        self.put(merged);
        self.change(parent.id(), tree.id, |page| page.remove(left + 1))?;
        self.free(right_page.id());
        Ok(true)
    }

    fn pair(&self, tree: TreeRef, parent: &Page, left: usize) -> Result<(Arc<Page>, Arc<Page>)> {
        let left_page = self.fetch_node(parent.child(left), tree.id)?;
        let right_page = self.fetch_node(parent.child(left + 1), tree.id)?;
        if left_page.high() != Some(right_page.low()) {
            return Err(self.pager.damaged(
                right_page.id(),
                tree.id,
                "it does not begin where its neighbour ends",
            ));
        }
        Ok((left_page, right_page))
    }

    /// A root with a single child takes its place.
    pub(crate) fn shrink_root(&mut self, tree: TreeRef) -> Result<()> {
        loop {
            let root = self.fetch_node(tree.root, tree.id)?;
            if root.is_leaf() || root.count() > 1 {
                return Ok(());
            }
            let child = self.fetch_node(root.child(0), tree.id)?;
            let _moving = self.pager.moving();
            self.put(child.with_id(tree.root));
            self.free(child.id());
        }
    }

    /// Fills the children of one parent from the left as far as [`FILL_AT_END_PERCENT`] allows.
    ///
    /// `from` is the child to fill next; afterwards the one to go on with, `None` at the end.
    pub(crate) fn pack(&mut self, tree: TreeRef, parent_id: u32, from: usize) -> Result<Option<usize>> {
        let parent = self.fetch_node(parent_id, tree.id)?;
        if from + 1 >= parent.count() {
            return Ok(None);
        }
        let fill_bytes = ROOM_BYTES * FILL_AT_END_PERCENT / 100;
        if self.merge(tree, &parent, from, fill_bytes)? {
            return Ok(Some(from));
        }
        self.shift(tree, &parent, from, fill_bytes)?;
        Ok(Some(from + 1))
    }

    /// Moves cells from the right one of two neighbours to the left one until that is full.
    fn shift(&mut self, tree: TreeRef, parent: &Page, left: usize, fill_bytes: usize) -> Result<()> {
        let (left_page, right_page) = self.pair(tree, parent, left)?;
        let mut bytes = left_page.used_bytes();
        let moves = |cell: &Cell<'_>| {
            bytes += cell.footprint_bytes();
            bytes <= fill_bytes
        };
        let moved = right_page.cells().take_while(moves).count();
        if moved == 0 || moved == right_page.count() {
            return Ok(());
        }
        let Some((head, tail, fence)) = cut(&right_page, moved) else { return Ok(()) };
        let mut builder = Builder::new(left_page.head(), &left_page.low_fence(), Some(&fence));
        for page in [&*left_page, &head] {
            if !page.cells().all(|cell| builder.push(page.prefix(), cell)) {
                return Ok(());
            }
        }
        // The right page's cell of the parent is replaced; its new fence must fit.
        let old = parent.cell(left + 1).footprint_bytes();
        if parent.free_bytes() + old < parent.footprint_bytes(fence.key.len(), 4) {
            return Ok(());
        }
        let _moving = self.pager.moving();
        self.put(builder.finish());
        let id = right_page.id();
        self.put(tail.with_id(id));
        self.change(parent.id(), tree.id, |page| {
            page.remove(left + 1);
            page.insert(left + 1, &fence.key, fence.lsn, CellFlags::default(), &id.to_le_bytes());
        })
    }

    /// Takes back what is newer than `committed` in the leaf at `place`; where the next leaf begins.
    pub(crate) fn take_back(
        &mut self,
        tree: TreeRef,
        place: &Fence,
        committed: u64,
    ) -> Result<Option<Fence>> {
        let leaf = self.descend(tree, &place.key, place.lsn, &mut Steps::new())?;
        let low = leaf.low_fence();
        // The fence was made from a version that is taken back now: it says nothing any more.
        let void = low.lsn != NEWEST && low.lsn + 1 > committed;
        if void || leaf.cells().any(|cell| cell.lsn > committed) {
            let head = NodeHead { fence_void: void || leaf.is_fence_void(), ..leaf.head() };
            let mut builder = Builder::new(head, &low, leaf.high_fence().as_ref());
            for cell in leaf.cells().filter(|cell| cell.lsn <= committed) {
                assert!(builder.push(leaf.prefix(), cell), "fewer cells than before");
            }
            let page = builder.finish();
            let overflow = self.overflow_of_removed(&leaf, &page);
            if overflow.is_empty() && !void {
                self.put_alone(page)
            } else {
                self.put(page)
            }
            overflow.iter().for_each(|payload| self.free_overflow(payload));
        }
        Ok(leaf.high_fence())
    }
}

/// The two parts of `node` cut before cell `at`, and the fence between them; `None` if one does not fit.
///
/// Between two keys the fence is as short as tells them apart: inner pages hold more children, leaves share
/// more.
fn cut(node: &Page, at: usize) -> Option<(Page, Page, Fence)> {
    let fence = if node.is_leaf() {
        let (left, right) = (node.key(at - 1), node.key(at));
        if left == right {
            Fence { key: right, lsn: node.cell(at - 1).lsn - 1 }
        } else {
            Fence { key: right[..=common_prefix(&left, &right)].to_vec(), lsn: NEWEST }
        }
    } else {
        Fence { key: node.key(at), lsn: node.cell(at).lsn }
    };
    let mut left = Builder::new(node.head(), &node.low_fence(), Some(&fence));
    let right_head = NodeHead { fence_void: false, ..node.head() };
    let mut right = Builder::new(right_head, &fence, node.high_fence().as_ref());
    for (index, cell) in node.cells().enumerate() {
        if !(if index < at { &mut left } else { &mut right }).push(node.prefix(), cell) {
            return None;
        }
    }
    Some((left.finish(), right.finish(), fence))
}

/// Keys come in order: the left part stays nearly full.
fn cut_at_end(node: &Page) -> Option<(Page, Page, Fence)> {
    let mut bytes = node.used_bytes();
    let over = |cell: &Cell<'_>| {
        bytes -= cell.footprint_bytes();
        bytes > ROOM_BYTES * FILL_AT_END_PERCENT / 100
    };
    let right = node.cells().rev().take_while(over).count() + 1;
    let at = node.count().checked_sub(right).filter(|at| *at > 0)?;
    cut(node, at)
}

/// The most even cut, moved to where a key begins if one is near.
fn cut_in_half(node: &Page) -> Option<(Page, Page, Fence)> {
    let total: usize = node.cells().map(|cell| cell.footprint_bytes()).sum();
    let mut before = 0;
    let mut best = None;
    for index in 1..node.count() {
        before += node.cell(index - 1).footprint_bytes();
        let uneven = before.abs_diff(total - before);
        // Versions of a key that stay together are judged together; worth a fifth of the page.
        let inside_key = node.cell(index - 1).suffix == node.cell(index).suffix;
        let cost = uneven + if inside_key { total / 5 } else { 0 };
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, index));
        }
    }
    cut(node, best?.1)
}
