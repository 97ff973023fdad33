//! The B-tree as the writer changes it: insert, make room, split, merge.
//!
//! Readers walk the tree at the same time and wait for no other thread. Three rules keep their
//! answers right:
//!
//! 1. A page's fences give the range that it holds. A reader that arrives at a page with another
//!    range than the wanted one, or at no page at all, starts over from the root. *Split:* the new
//!    right page is there first. Then the left page gives up half of its range, then the parent
//!    leads to the new page. Between the last two, a reader of the right half starts over. *Merge:*
//!    the left page takes the range first. Then the parent no longer leads to the right page, then
//!    the right page is freed. *Share* (the fence between two neighbours moves, left or right): the
//!    page that takes a range has it first. Then the parent leads there, then the other page gives
//!    the range up. Until then, both pages have it, with the same cells, and either serves. A
//!    reader that saw the parent before the change and arrives after the end starts over. With
//!    another order, no reader would see a wrong page, but more readers would start over while the
//!    writer is in the middle. The writer counts all such moves. If a reader loses its way and
//!    nothing has moved meanwhile, a page is damaged.
//! 2. A tree's root keeps its id. *Grow:* its content moves to a new child first. *Shrink:* the
//!    other way round.
//! 3. Any image of a leaf that was current after the reader began is good enough. Later writes are
//!    above the reader's LSN, and no version that a registered reader sees is removed (see
//!    `removal`).
//!
//! Rejected: latch coupling, where a reader that waits for the disk would hold up the writer. Also
//! rejected: the right links of Lehman and Yao, where a page that a merge emptied would have to
//! stay until every reader is gone. Starting over is as rare and simpler.

use std::sync::Arc;

use crate::error::Result;
use crate::neighbours::{MERGE_FILL_BYTES, halves};
use crate::page::{
    Builder, CELL_BYTES_MAX, CELL_HEAD_BYTES, Cell, CellFlags, Fence, NEVER, NEWEST, NodeHead,
    OVERFLOW_BYTES, Page,
};
use crate::pager::{TreeRef, overflow_parts};
use crate::pages::Pages;
use crate::removal::View;
use crate::room::{
    BottomUp, MERGE_BELOW_BYTES, ROOM_MIN_BYTES, ROOM_MIN_NEW_KEY_BYTES, Wanted, Written, without_old,
};

/// If one in this many of a leaf's versions belongs to one key, the leaf will soon get more of
/// them. Then it shares with a neighbour or is split, and does not look further away.
const CROWD_SHARE: usize = 4;

/// The way to a leaf: each inner page, and the index of the child that was taken.
type Steps = Vec<(u32, usize)>;

/// A version to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VersionChange<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) lsn: u64,
    pub(crate) delete: bool,
    pub(crate) value: &'a [u8],
}

/// What one step of a sweep did.
#[derive(Debug)]
pub(crate) struct Swept {
    pub(crate) removed: u64,
    /// Whether the leaf still holds versions that some horizon will make removable.
    pub(crate) more_to_come: bool,
    /// Where the next step goes; `None` at the end of the tree.
    pub(crate) next: Option<Fence>,
}

/// Whether a value fits beside its key, so that it needs no pages of its own.
pub(crate) fn fits_cell(key: &[u8], value: &[u8]) -> bool {
    CELL_HEAD_BYTES + key.len() + value.len() <= CELL_BYTES_MAX
}

impl Pages {
    /// Makes an empty tree and returns its root.
    pub(crate) fn create_tree(&mut self, id: u8, window: bool) -> Result<u32> {
        self.ensure_room(1)?;
        let root = self.allocate();
        let head = NodeHead { id: root, tree: id, level: 0, window, fence_void: false };
        self.put(Builder::new(head, &Fence::start(), None).finish());
        Ok(root)
    }

    /// The leaf for (key, LSN). `steps` becomes the way there.
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

    /// Writes a version, replacing one of the same key and LSN. Calls `view` when a leaf is full.
    ///
    /// # Errors
    /// The size limit, and then nothing has changed. Disk and damage.
    pub(crate) fn write(
        &mut self,
        tree: TreeRef,
        change: VersionChange<'_>,
        bottom_up: BottomUp,
        view: impl Fn() -> View,
    ) -> Result<Written> {
        let VersionChange { key, lsn, value, .. } = change;
        let mut flags = CellFlags { delete: change.delete, overflow: false };
        if fits_cell(key, value) {
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

    /// Moves a value to pages of its own, and returns the cell's payload.
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

    /// The cell has the ids, so no page is visited to free them.
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
        let mut leaf = self.descend(tree, key, lsn, &mut steps)?;
        loop {
            let id = leaf.id();
            let index = match leaf.search(key, lsn) {
                Err(index) => index,
                Ok(index) => {
                    // The insertion may split every page on the way, and a failure must not lose
                    // the old version.
                    self.ensure_room(steps.len() as u32 + 2)?;
                    self.take_out(&leaf, index)?;
                    leaf = self.fetch_node(id, tree.id)?;
                    continue;
                }
            };
            if leaf.has_room(key.len(), lsn, payload.len()) {
                let supersedes = leaf.is_of(index, key) || (index == leaf.count() && leaf.goes_on_right(key));
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
                let wanted = Wanted { key, lsn, payload_len: payload.len(), bottom_up, view: &view() };
                let has_room = self.make_room(tree, &steps, &leaf, index, wanted, &mut written)?;
                leaf = self.fetch_node(id, tree.id)?;
                if has_room && leaf.covers(key, lsn) {
                    continue;
                }
                // The removable versions are gone and made too little room. Split now, instead of
                // trying again at the next entry.
                if !has_room {
                    written.has_history |= leaf.goes_on_right(key);
                    self.split(tree, &steps, &leaf, Some(index.min(leaf.count())), &mut written)?;
                }
            } else {
                written.has_history |= leaf.goes_on_right(key);
                self.split(tree, &steps, &leaf, Some(index), &mut written)?;
            }
            leaf = self.descend(tree, key, lsn, &mut steps)?;
        }
    }

    /// Makes room in a full leaf by other means than a split in half. Returns whether there is
    /// enough now.
    fn make_room(
        &mut self,
        tree: TreeRef,
        steps: &[(u32, usize)],
        leaf: &Page,
        index: usize,
        wanted: Wanted<'_>,
        written: &mut Written,
    ) -> Result<bool> {
        let Wanted { key, lsn, payload_len, .. } = wanted;
        let is_version = leaf.is_of(index, key) || (index > 0 && leaf.is_of(index - 1, key));
        let least = if is_version { ROOM_MIN_BYTES } else { ROOM_MIN_NEW_KEY_BYTES };
        let bytes = leaf.footprint_bytes(key.len(), lsn, payload_len).max(least);
        let examined_max = wanted.bottom_up.examined_max(leaf);
        let freed = self.remove_old(leaf, index, examined_max, wanted.view, written);
        if freed > 0 && leaf.free_bytes() + freed >= bytes {
            return Ok(true);
        }
        // New keys stay, at the end of the tree or everywhere. Sharing would only put the split
        // off, and made a load in random order twice as slow.
        if !is_version {
            return Ok(false);
        }
        let is_crowded = leaf.is_of(index + leaf.count() / CROWD_SHARE, key);
        self.share(tree, steps, wanted, is_crowded, written)
    }

    /// Removes a cell, and frees the pages of its value.
    fn take_out(&mut self, leaf: &Page, index: usize) -> Result<()> {
        let cell = leaf.cell(index);
        if cell.flags.overflow {
            self.free_overflow(cell.payload);
            return self.change(leaf.id(), leaf.tree(), |page| page.remove(index));
        }
        self.change_alone(leaf.id(), leaf.tree(), |page| page.remove(index))
    }

    /// Bottom-up deletion on one leaf: removes versions that no reader can need. Returns the number
    /// of bytes that this freed.
    pub(crate) fn remove_old(
        &mut self,
        leaf: &Page,
        first: usize,
        examined_max: usize,
        view: &View,
        written: &mut Written,
    ) -> usize {
        let page = without_old(leaf, first, examined_max, view, written);
        page.map_or(0, |page| self.put_without_old(leaf, page, written))
    }

    /// Replaces `leaf` by `page`, which has some of its cells. Returns the number of bytes that
    /// this freed.
    pub(crate) fn put_without_old(&mut self, leaf: &Page, page: Page, written: &mut Written) -> usize {
        written.removed += (leaf.count() - page.count()) as u64;
        let freed = page.free_bytes() - leaf.free_bytes();
        let overflow = self.overflow_of_removed(leaf, &page);
        if overflow.is_empty() {
            self.put_alone(page);
        } else {
            self.put(page);
        }
        overflow.iter().for_each(|payload| self.free_overflow(payload));
        freed
    }

    /// Overflow payloads in `before` that are not in `after`, which has some of the same cells.
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

    /// Divides one page into two, or first makes what this needs: an inner page as the root, or
    /// room in the parent. The caller descends again.
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
        let cut = at_end.then(|| self.cut_at_end(node)).flatten().or_else(|| halves(&[node]));
        let [left, right] = cut.expect("KEY_BYTES_MAX is chosen so that each half fits");
        let fence = right.low_fence();
        let parent = self.fetch_node(parent_id, tree.id)?;
        if !parent.has_room(fence.key.len(), fence.lsn, 4) {
            let at_end = (index + 1 == parent.count()).then_some(parent.count());
            return self.split(tree, above, &parent, at_end, written);
        }
        if at_end && node.is_leaf() && self.fill_before_last(tree, &parent, index)? {
            return Ok(());
        }
        let _moving = self.pager.moving();
        let right_id = self.allocate();
        self.put_with(parent_id, right.with_id(right_id));
        self.put_with(parent_id, left);
        drop(parent);
        self.change_with(right_id, parent_id, tree.id, |page| {
            let place = page.search(&fence.key, fence.lsn).expect_err("no two children begin alike");
            page.insert(place, &fence.key, fence.lsn, CellFlags::default(), &right_id.to_le_bytes());
        })?;
        written.splits += 1;
        Ok(())
    }

    /// Moves the root's content to a new child.
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

    /// Sweeps the leaf at `place`: removes versions that no reader can need, and merges the leaf if
    /// it is nearly empty.
    pub(crate) fn sweep(&mut self, tree: TreeRef, place: &Fence, view: &View) -> Result<Swept> {
        let mut steps = Steps::new();
        let leaf = self.descend(tree, &place.key, place.lsn, &mut steps)?;
        let next = leaf.high_fence();
        let mut written = Written::default();
        let freed = self.remove_old(&leaf, 0, usize::MAX, view, &mut written);
        let more_to_come = self.fetch_node(leaf.id(), tree.id)?.removable_from() != NEVER;
        if leaf.used_bytes() - freed < MERGE_BELOW_BYTES {
            self.merge_upwards(tree, &steps)?;
        }
        Ok(Swept { removed: written.removed, more_to_come, next })
    }

    /// Merges the page that `steps` lead to with a neighbour. Then does the same with its parent if
    /// that became small, up to the root.
    fn merge_upwards(&mut self, tree: TreeRef, steps: &[(u32, usize)]) -> Result<()> {
        for &(parent_id, index) in steps.iter().rev() {
            let parent = self.fetch_node(parent_id, tree.id)?;
            // An only child has no neighbour to merge with before its parent is merged.
            let mut merged = parent.count() == 1;
            // The right neighbour first: it is the next one where keys are deleted in order. Its
            // cells may not fit beside longer cells, which fences further apart cause.
            for left in [Some(index), index.checked_sub(1)].into_iter().flatten() {
                if !merged && left + 1 < parent.count() {
                    merged = self.merge(tree, &parent, left, MERGE_FILL_BYTES)?;
                }
            }
            if !merged || self.fetch_node(parent_id, tree.id)?.used_bytes() >= MERGE_BELOW_BYTES {
                break;
            }
        }
        self.shrink_root(tree)
    }

    /// While the root has a single child, the child's content replaces the root's.
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

    /// Takes back versions newer than `committed` in the leaf at `place`. Returns where the next
    /// leaf begins.
    pub(crate) fn take_back(
        &mut self,
        tree: TreeRef,
        place: &Fence,
        committed: u64,
    ) -> Result<Option<Fence>> {
        let leaf = self.descend(tree, &place.key, place.lsn, &mut Steps::new())?;
        let low = leaf.low_fence();
        // The version that the fence was made from is taken back now, so the fence names no
        // successor any more.
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
