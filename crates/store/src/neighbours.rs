//! Operations on neighbours under one parent: merge, share room, fill up from the left.
//!
//! `tree` decides when. Pages change in the order of its hazard 1. The page that takes a range has
//! it before the parent leads there. The page that gives it up has it until the parent no longer
//! leads there.

use std::sync::Arc;

use crate::error::Result;
use crate::page::{
    Builder, Cell, CellFlags, Fence, NEWEST, NodeHead, Page, ROOM_BYTES, common_prefix, order,
};
use crate::pager::TreeRef;
use crate::pages::Pages;
use crate::room::{MERGE_BELOW_BYTES, ROOM_MIN_BYTES, Wanted, Written, without_old};

/// How full a leaf at the end of the tree is left when keys come in order. It is PostgreSQL's
/// default fillfactor: the free tenth takes the first new versions, until old versions have become
/// removable.
const FILL_AT_END_PERCENT: usize = 90;

/// The same for a tree larger than half of the cache. A lagging horizon pins versions in many
/// leaves but few in each, and filling the leaves more leaves memory for others.
const FILL_AT_END_LARGE_PERCENT: usize = 94;

/// When the last leaf is full, the leaf before it is filled first if it has at least this much to
/// fill. Less would mean filling up every page for the sake of one cell.
const FILL_MIN_BYTES: usize = ROOM_BYTES / 16;

/// The distance, on either side, within which a leaf with full neighbours looks for room. Under
/// churn, leaves differ by chance, and a few leaves away there is as much room as another page
/// would bring. See "Leaves that stay full" in the README.
const FAR_MAX: usize = 6;

/// Room that each leaf must have after cells were moved further than to a neighbour: that is work,
/// and should last.
const FAR_ROOM_MIN_BYTES: usize = ROOM_BYTES / 12;

/// How full a merge may make a page: three quarters, so that the next insert does not split it
/// again.
pub(crate) const MERGE_FILL_BYTES: usize = ROOM_BYTES * 3 / 4;

impl Pages {
    /// Makes room in the leaf that `steps` lead to, and returns whether there is enough. It divides
    /// the leaf's cells and those of its emptier neighbour evenly. If the neighbours are full too
    /// and the leaf is not crowded, it moves cells further. No page is allocated.
    pub(crate) fn share(
        &mut self,
        tree: TreeRef,
        steps: &[(u32, usize)],
        wanted: Wanted<'_>,
        is_crowded: bool,
        written: &mut Written,
    ) -> Result<bool> {
        let Some(&(parent_id, index)) = steps.last() else { return Ok(false) };
        let parent = self.fetch_node(parent_id, tree.id)?;
        let is_done = self.share_with_neighbour(tree, &parent, index, wanted, written)?
            || (!is_crowded && self.share_with_far(tree, parent, index, wanted, written)?);
        written.shares += u64::from(is_done);
        Ok(is_done)
    }

    fn share_with_neighbour(
        &mut self,
        tree: TreeRef,
        parent: &Page,
        index: usize,
        wanted: Wanted<'_>,
        written: &mut Written,
    ) -> Result<bool> {
        let Some((room, left)) = self.emptier_neighbour(tree, parent, index, wanted, written)? else {
            return Ok(false);
        };
        let (left_page, right_page) = self.pair(tree, parent, left)?;
        let here = if left == index { &left_page } else { &right_page };
        if room + here.free_bytes() < 2 * ROOM_MIN_BYTES {
            return Ok(false);
        }
        let has_room = |page: &Page| {
            let is_its = page.covers(wanted.key, wanted.lsn);
            page.free_bytes() >= ROOM_MIN_BYTES
                && (!is_its || page.has_room(wanted.key.len(), wanted.lsn, wanted.payload_len))
        };
        let nodes = [&*left_page, &*right_page];
        match halves(&nodes).filter(|pages| pages.iter().all(has_room)) {
            Some(pages) => self.replace(tree, parent, left, nodes, pages),
            None => Ok(false),
        }
    }

    /// The room in the emptier neighbour of child `index` after bottom-up deletion in both
    /// neighbours, and the child left of the border to that neighbour. `None` for an only child.
    fn emptier_neighbour(
        &mut self,
        tree: TreeRef,
        parent: &Page,
        index: usize,
        wanted: Wanted<'_>,
        written: &mut Written,
    ) -> Result<Option<(usize, usize)>> {
        let mut emptier = None;
        for left in index.saturating_sub(1)..(index + 1).min(parent.count() - 1) {
            let neighbour = if left < index { left } else { left + 1 };
            let page = self.fetch_node(parent.child(neighbour), tree.id)?;
            let examined_max = wanted.bottom_up.examined_max(&page);
            let free = page.free_bytes() + self.remove_old(&page, 0, examined_max, wanted.view, written);
            if emptier.is_none_or(|(most, _)| free > most) {
                emptier = Some((free, left));
            }
        }
        Ok(emptier)
    }

    /// Divides evenly what the children of `parent` from `index` to another one hold, where that
    /// makes most room.
    ///
    /// It moves one border after the other, beginning at the far end. Each move is between two
    /// neighbours and complete in itself.
    fn share_with_far(
        &mut self,
        tree: TreeRef,
        parent: Arc<Page>,
        index: usize,
        wanted: Wanted<'_>,
        written: &mut Written,
    ) -> Result<bool> {
        let Some((far, mean)) = self.far_with_room(tree, &parent, index, wanted, written)? else {
            return Ok(false);
        };
        let parent_id = parent.id();
        drop(parent);
        let lefts: Vec<usize> =
            if far < index { (far..index).collect() } else { (index..far).rev().collect() };
        for left in lefts {
            let parent = self.fetch_node(parent_id, tree.id)?;
            let (left_page, right_page) = self.pair(tree, &parent, left)?;
            let nodes = [&*left_page, &*right_page];
            let cells = cells_of(&nodes);
            // Without the fences, whose length hardly changes.
            let done = |page: &Page| {
                let in_cells: usize = page.cells().map(|cell| cell.footprint_bytes()).sum();
                (ROOM_BYTES - mean).saturating_sub(page.used_bytes() - in_cells)
            };
            let total: usize = cells.iter().map(|(_, cell)| cell.footprint_bytes()).sum();
            let left_bytes =
                if far < index { done(&left_page) } else { total.saturating_sub(done(&right_page)) };
            let Some(pages) = cut_near(&nodes, &cells, left_bytes, FAR_ROOM_MIN_BYTES / 2) else {
                return Ok(false);
            };
            if pages[1].low() == right_page.low() {
                continue;
            }
            if !self.replace(tree, &parent, left, nodes, pages)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Decides which child of `parent` is the far end, and how much room each leaf has then.
    /// Considers only leaves in memory, because a read would cost more than a page. Stops before a
    /// leaf that sweeping is about to merge away.
    fn far_with_room(
        &mut self,
        tree: TreeRef,
        parent: &Page,
        index: usize,
        wanted: Wanted<'_>,
        written: &mut Written,
    ) -> Result<Option<(usize, usize)>> {
        let here = self.fetch_node(parent.child(index), tree.id)?;
        let entry_bytes = here.footprint_bytes(wanted.key.len(), wanted.lsn, wanted.payload_len);
        // A border lies between two cells, so half a cell's room may be missing.
        let least = FAR_ROOM_MIN_BYTES.max(entry_bytes * 3 / 2);
        let mut best = None;
        for is_right in [false, true] {
            let mut room = here.free_bytes();
            for distance in 1..=FAR_MAX {
                let far = if is_right { index.checked_add(distance) } else { index.checked_sub(distance) };
                let Some(far) = far.filter(|far| *far < parent.count()) else { break };
                if self.pager.cache.get(parent.child(far)).is_none() {
                    break;
                }
                let page = self.fetch_node(parent.child(far), tree.id)?;
                room += page.free_bytes();
                let examined_max = wanted.bottom_up.examined_max(&page);
                if let Some(cleaned) = without_old(&page, 0, examined_max, wanted.view, written) {
                    if cleaned.used_bytes() < MERGE_BELOW_BYTES {
                        break;
                    }
                    room += self.put_without_old(&page, cleaned, written);
                }
                let mean = room / (distance + 1);
                if mean >= least && best.is_none_or(|(_, most)| mean > most) {
                    best = Some((far, mean));
                }
            }
        }
        Ok(best)
    }

    /// Replaces two neighbours, the child `left` of `parent` and the next one, by `pages`, which
    /// hold the same cells. Returns false if the parent has no room for the new fence, or the old
    /// fence is void.
    fn replace(
        &mut self,
        tree: TreeRef,
        parent: &Page,
        left: usize,
        nodes: [&Page; 2],
        pages: [Page; 2],
    ) -> Result<bool> {
        // A crash took back the version that this fence was made from. This is rare, and stays as
        // it is.
        if nodes[1].is_fence_void() {
            return Ok(false);
        }
        let id = nodes[1].id();
        let [left_page, right_page] = pages;
        let (fence, right_page) = (right_page.low_fence(), right_page.with_id(id));
        let old = parent.cell(left + 1).footprint_bytes();
        if parent.free_bytes() + old < parent.footprint_bytes(fence.key.len(), fence.lsn, 4) {
            return Ok(false);
        }
        let is_left_taking = order((&fence.key, fence.lsn), nodes[1].low()).is_gt();
        let (taking, giving) = if is_left_taking { (left_page, right_page) } else { (right_page, left_page) };
        let _moving = self.pager.moving();
        // Bound to each other and to nothing else: no page came or went.
        let parent_id = parent.id();
        self.put_with(parent_id, taking);
        self.change_with(id, parent_id, tree.id, |page| {
            page.remove(left + 1);
            page.insert(left + 1, &fence.key, fence.lsn, CellFlags::default(), &id.to_le_bytes());
        })?;
        self.put_with(parent_id, giving);
        Ok(true)
    }

    /// Moves the cells of the child right of `left` into it, if both fill at most `fill_bytes` or
    /// one is empty. Returns whether they were moved.
    pub(crate) fn merge(
        &mut self,
        tree: TreeRef,
        parent: &Page,
        left: usize,
        fill_bytes: usize,
    ) -> Result<bool> {
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

    /// The bytes to which a leaf at the end of a tree is filled.
    fn fill_at_end_bytes(&self) -> usize {
        let is_large = self.in_use() as usize > self.pager.cache.pages_max() / 2;
        ROOM_BYTES * if is_large { FILL_AT_END_LARGE_PERCENT } else { FILL_AT_END_PERCENT } / 100
    }

    /// Cuts a page for keys that come in order: the left part stays nearly full.
    pub(crate) fn cut_at_end(&self, node: &Page) -> Option<[Page; 2]> {
        cut_at(node, self.fill_at_end_bytes())
    }

    /// Fills the children of one parent from the left, as full as new leaves at the end of a tree.
    ///
    /// `from` is the child to fill next. Returns the child to go on with, `None` at the end.
    pub(crate) fn pack(&mut self, tree: TreeRef, parent_id: u32, from: usize) -> Result<Option<usize>> {
        let parent = self.fetch_node(parent_id, tree.id)?;
        if from + 1 >= parent.count() {
            return Ok(None);
        }
        let fill_bytes = self.fill_at_end_bytes();
        if self.merge(tree, &parent, from, fill_bytes)? {
            return Ok(Some(from));
        }
        self.fill(tree, &parent, from, fill_bytes)?;
        Ok(Some(from + 1))
    }

    /// Makes room in the last leaf of a tree, child `last` of `parent`, by filling up the leaf
    /// before it. Returns whether that made enough room to be worth it.
    ///
    /// The last leaf has no high fence and so no prefix. If a leaf full of whole keys is cut, the
    /// cells of the left part become shorter and leave room there.
    pub(crate) fn fill_before_last(&mut self, tree: TreeRef, parent: &Page, last: usize) -> Result<bool> {
        let Some(before) = last.checked_sub(1) else { return Ok(false) };
        let page = self.fetch_node(parent.child(before), tree.id)?;
        let fill_bytes = self.fill_at_end_bytes();
        if page.used_bytes() + FILL_MIN_BYTES > fill_bytes {
            return Ok(false);
        }
        self.fill(tree, parent, before, fill_bytes)
    }

    /// Moves cells from the right one of two neighbours to the left one until that is full. Returns
    /// whether any were moved.
    fn fill(&mut self, tree: TreeRef, parent: &Page, left: usize, fill_bytes: usize) -> Result<bool> {
        let (left_page, right_page) = self.pair(tree, parent, left)?;
        let mut bytes = left_page.used_bytes();
        let (prefix, longer) = (left_page.prefix(), right_page.prefix().len());
        let moves = |index: &usize| {
            // A key that does not begin with the left page's prefix would make all cells there
            // longer.
            let is_alike = right_page.key(*index).starts_with(prefix);
            bytes += right_page.cell(*index).footprint_bytes();
            bytes -= if is_alike { prefix.len().saturating_sub(longer) } else { 0 };
            is_alike && bytes <= fill_bytes
        };
        let moved = (0..right_page.count().saturating_sub(1)).take_while(moves).count();
        if moved == 0 {
            return Ok(false);
        }
        let nodes = [&*left_page, &*right_page];
        let Some(pages) = divide(&nodes, &cells_of(&nodes), left_page.count() + moved) else {
            return Ok(false);
        };
        self.replace(tree, parent, left, nodes, pages)
    }
}

/// The cells of neighbours, each with the prefix of its page.
fn cells_of<'a>(nodes: &[&'a Page]) -> Vec<(&'a [u8], Cell<'a>)> {
    nodes.iter().flat_map(|node| node.cells().map(|cell| (node.prefix(), cell))).collect()
}

/// Makes two pages, both with the id of the first of `nodes`, that hold `cells`, the cells of
/// `nodes`, cut before cell `at`. `None` if a part does not fit on a page.
///
/// A fence between two cells of a key is made from the left one, so it names a successor that
/// stands there. If that successor is not committed yet, opening after a crash marks the fence as
/// void, as it does after a split.
fn divide(nodes: &[&Page], cells: &[(&[u8], Cell<'_>)], at: usize) -> Option<[Page; 2]> {
    let (first, last) = (nodes.first()?, nodes.last()?);
    let fence = fence(&cells[at - 1], &cells[at], first.is_leaf());
    let mut left = Builder::new(first.head(), &first.low_fence(), Some(&fence));
    let right_head = NodeHead { fence_void: false, ..first.head() };
    let mut right = Builder::new(right_head, &fence, last.high_fence().as_ref());
    for (index, (prefix, cell)) in cells.iter().enumerate() {
        if !(if index < at { &mut left } else { &mut right }).push(prefix, *cell) {
            return None;
        }
    }
    Some([left.finish(), right.finish()])
}

/// The fence between two cells.
///
/// Between two keys of a leaf, it is just long enough to tell them apart. So inner pages hold more
/// children, and the keys of a leaf share more.
fn fence(left: &(&[u8], Cell<'_>), right: &(&[u8], Cell<'_>), is_leaf: bool) -> Fence {
    let key = [right.0, right.1.suffix].concat();
    if !is_leaf {
        return Fence { key, lsn: right.1.lsn };
    }
    let left_key = [left.0, left.1.suffix].concat();
    if left_key == key {
        return Fence { key, lsn: left.1.lsn - 1 };
    }
    Fence { key: key[..=common_prefix(&left_key, &key)].to_vec(), lsn: NEWEST }
}

/// Whether two cells are versions of one key.
fn is_one_key(left: &(&[u8], Cell<'_>), right: &(&[u8], Cell<'_>)) -> bool {
    if left.0 == right.0 {
        left.1.suffix == right.1.suffix
    } else {
        [left.0, left.1.suffix].concat() == [right.0, right.1.suffix].concat()
    }
}

/// Cuts a page so that the left part is filled to `fill_bytes`, as nearly as possible.
///
/// The last page of a tree has no high fence and so no prefix. The left part has one, so its cells
/// are shorter.
fn cut_at(node: &Page, fill_bytes: usize) -> Option<[Page; 2]> {
    let cells = cells_of(&[node]);
    let mut cuts = (1..node.count()).rev().filter_map(|at| divide(&[node], &cells, at));
    cuts.find(|[left, _]| left.used_bytes() <= fill_bytes)
}

/// Cuts the cells of neighbours, or of one page, as evenly as possible; see [`cut_near`].
pub(crate) fn halves(nodes: &[&Page]) -> Option<[Page; 2]> {
    let cells = cells_of(nodes);
    let total: usize = cells.iter().map(|(_, cell)| cell.footprint_bytes()).sum();
    // Versions of a key are best judged together. Keeping them on one page is worth a tenth of a
    // page.
    cut_near(nodes, &cells, total / 2, ROOM_BYTES / 10)
}

/// Cuts `cells`, the cells of neighbours or of one page, so that about `left_bytes` stay on the
/// left. It prefers a cut between two keys that lies within `near` bytes of that. `None` if one
/// part does not fit or there is nothing to cut.
fn cut_near(
    nodes: &[&Page],
    cells: &[(&[u8], Cell<'_>)],
    left_bytes: usize,
    near: usize,
) -> Option<[Page; 2]> {
    let mut before = 0;
    let mut best = None;
    for (at, pair) in (1..).zip(cells.windows(2)) {
        before += pair[0].1.footprint_bytes();
        let inside = if is_one_key(&pair[0], &pair[1]) { near } else { 0 };
        let cost = before.abs_diff(left_bytes) + inside;
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, at));
        }
    }
    divide(nodes, cells, best?.1)
}
