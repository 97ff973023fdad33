//! The writer's side of the pages: only the writer changes, allocates and frees them.
//!
//! Beside the pager that it shares with readers, the writer keeps which ids are free and which
//! pages differ from the last checkpoint. Readers see a change of a page at once. The order in
//! which the writer changes several pages keeps every page reachable (see `tree`).
//!
//! Pages that took part in one change are **bound** until a checkpoint has written them: on disk,
//! they must be as of one instant. Every change binds its page to all other bound pages, with two
//! exceptions. The caller may say that the change concerns few pages. Or the change concerns one
//! leaf **alone**: cells without overflow pages came or went, and what its fences say stays true.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::checkpoint::Done;
use crate::error::{Error, Result};
use crate::page::Page;
use crate::pager::{Entry, Pager};

/// No tree has this number: a page that is only moved is not looked at.
const NAMELESS: u8 = u8::MAX;

#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) pager: Arc<Pager>,
    /// Free since the last checkpoint began, or longer. The lowest id comes first, so that the end
    /// of the page table can become empty.
    free: BinaryHeap<Reverse<u32>>,
    /// Freed since then and not in use again. They are not used before the next checkpoint, if that
    /// can be avoided.
    free_next: Vec<u32>,
    /// All ids below this are in use or free.
    len: u32,
    in_use: u32,
    pages_max: u32,
    /// Ids that became dirty since the last checkpoint began. Some may be free again.
    dirty: Vec<u32>,
    bonds: Bonds,
    /// Ids freed since the last checkpoint began. Some may be in use again.
    freed: Vec<u32>,
}

/// Which changed pages changed together, since the last checkpoint began.
#[derive(Debug, Default)]
struct Bonds {
    /// For each bound page another page that it is bound to. Following them leads to one page that
    /// stands for all of them.
    to: FxHashMap<u32, u32>,
}

/// Not the id of any page. Stands for all pages that are bound to an unknown set of pages.
const MANY: u32 = u32::MAX;

impl Bonds {
    /// The page that stands for `id` and all pages that it is bound to.
    fn root(&mut self, mut id: u32) -> u32 {
        while let Some(next) = self.to.get(&id).copied() {
            // Every second page on the way skips one, which keeps the ways short.
            let Some(after) = self.to.get(&next).copied() else { return next };
            self.to.insert(id, after);
            id = after;
        }
        id
    }

    fn bind(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            let (from, to) = if a == MANY { (b, a) } else { (a, b) };
            self.to.insert(from, to);
        }
    }
}

/// The difference from the last checkpoint.
#[derive(Debug)]
pub(crate) struct Changed {
    /// Changed pages, divided by what is bound: a head leads to all pages of a part or to none. The
    /// first part belongs together with the freed ids.
    pub(crate) parts: Vec<Vec<Arc<Page>>>,
    /// Ids that are free now and were not at the last checkpoint.
    pub(crate) freed: Vec<u32>,
    /// Length of the page table.
    pub(crate) len: u32,
}

impl Pages {
    /// The pages of `table`; at most `pages_max` will be in use.
    pub(crate) fn new(pager: Arc<Pager>, table: &[Entry], pages_max: u32) -> Pages {
        let ids = (0..).zip(table);
        let free: BinaryHeap<_> =
            ids.filter(|(_, entry)| !entry.is_some()).map(|(id, _)| Reverse(id)).collect();
        let len = u32::try_from(table.len()).expect("the table's length was read from 32 bits");
        let in_use = len - u32::try_from(free.len()).expect("a part of the table");
        let (free_next, dirty, bonds, freed) = (Vec::new(), Vec::new(), Bonds::default(), Vec::new());
        Pages { pager, free, free_next, len, in_use, pages_max, dirty, bonds, freed }
    }

    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    pub(crate) fn set_pages_max(&mut self, pages_max: u32) {
        self.pages_max = pages_max;
    }

    /// The number of pages that differ from the last checkpoint. It is not exact.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Refuses a change that would not fit, before anything has changed.
    pub(crate) fn ensure_room(&self, pages: u32) -> Result<()> {
        let fits = self.in_use.checked_add(pages).is_some_and(|wanted| wanted <= self.pages_max);
        if fits { Ok(()) } else { Err(Error::full(self.pages_max)) }
    }

    /// Returns a page that must exist.
    pub(crate) fn fetch(&self, id: u32, tree: u8) -> Result<Arc<Page>> {
        let page = self.pager.fetch(id, tree)?;
        page.ok_or_else(|| self.pager.damaged(id, tree, "it is referred to and not in use"))
    }

    /// Returns a page of a tree that must exist.
    pub(crate) fn fetch_node(&self, id: u32, tree: u8) -> Result<Arc<Page>> {
        let page = self.fetch(id, tree)?;
        if !page.is_node() || page.tree() != tree {
            return Err(self.pager.damaged(id, tree, "it is no part of the tree"));
        }
        Ok(page)
    }

    /// Changes a page in place.
    pub(crate) fn change<R>(&mut self, id: u32, tree: u8, change: impl FnOnce(&mut Page) -> R) -> Result<R> {
        self.change_with(MANY, id, tree, change)
    }

    /// Changes a page in place, and binds it to the page `with`.
    pub(crate) fn change_with<R>(
        &mut self,
        with: u32,
        id: u32,
        tree: u8,
        change: impl FnOnce(&mut Page) -> R,
    ) -> Result<R> {
        self.bonds.bind(id, with);
        self.change_alone(id, tree, change)
    }

    /// Changes a leaf in place that is bound to no other page by this.
    pub(crate) fn change_alone<R>(
        &mut self,
        id: u32,
        tree: u8,
        change: impl FnOnce(&mut Page) -> R,
    ) -> Result<R> {
        // The page may have been evicted since the caller looked at it.
        let mut change = Some(change);
        loop {
            let changed = self.pager.cache.change(id, |page| {
                let change = change.take().expect("the cache calls it once");
                change(page)
            });
            if let Some((result, newly)) = changed {
                self.dirty.extend(newly.then_some(id));
                return Ok(result);
            }
            self.fetch_node(id, tree)?;
        }
    }

    /// Puts a page under its id, new or in place of an older page.
    pub(crate) fn put(&mut self, page: Page) {
        self.put_with(MANY, page);
    }

    /// Puts a page in place of its older form, and binds it to the page `with`.
    pub(crate) fn put_with(&mut self, with: u32, page: Page) {
        self.bonds.bind(page.id(), with);
        self.put_alone(page);
    }

    /// Puts a leaf in place of its older form. This binds it to no other page.
    pub(crate) fn put_alone(&mut self, page: Page) {
        let id = page.id();
        if self.pager.cache.put_dirty(page) {
            self.dirty.push(id);
        }
    }

    /// Makes the next checkpoint write a page of any tree again.
    pub(crate) fn touch(&mut self, id: u32) -> Result<()> {
        self.bonds.bind(id, MANY);
        loop {
            if let Some(((), newly)) = self.pager.cache.change(id, |_| ()) {
                self.dirty.extend(newly.then_some(id));
                return Ok(());
            }
            self.fetch(id, NAMELESS)?;
        }
    }

    /// Returns an id for a new page. The caller has called [`Pages::ensure_room`].
    pub(crate) fn allocate(&mut self) -> u32 {
        self.in_use += 1;
        if let Some(Reverse(id)) = self.free.pop() {
            return id;
        }
        // The table must not grow longer than the size limit allows for.
        let again = if self.len < self.pages_max { None } else { self.free_next.pop() };
        let Some(id) = again else {
            self.len += 1;
            return self.len - 1;
        };
        // On disk, this id is still the old page. The first part of the next checkpoint removes it
        // together with the pages that led to it.
        self.bonds.bind(id, MANY);
        id
    }

    /// Gives an id back. Nothing leads to it any more, except for what readers remember.
    pub(crate) fn free(&mut self, id: u32) {
        // Pages that were bound to this one are bound to the pages that took its place, which this
        // function does not know.
        self.bonds.bind(id, MANY);
        // The table first: a reader that misses the cache must not find the old page on disk.
        self.pager.set_entries([(id, Entry::NONE)]);
        self.pager.cache.remove(id);
        self.freed.push(id);
        self.free_next.push(id);
        self.in_use -= 1;
    }

    /// The changes that a checkpoint has to write. Pages are in the order of their ids, so that the
    /// pages of a stage share pages of the table.
    pub(crate) fn begin_checkpoint(&mut self) -> Changed {
        let mut ids = std::mem::take(&mut self.dirty);
        ids.sort_unstable();
        ids.dedup();
        let pages: Vec<_> = ids.iter().filter_map(|id| self.pager.cache.begin_write(*id)).collect();
        let written: FxHashSet<u32> = pages.iter().map(|page| page.id()).collect();
        let mut freed = std::mem::take(&mut self.freed);
        freed.retain(|id| !written.contains(id));
        let mut bonds = std::mem::take(&mut self.bonds);
        let mut parts = vec![Vec::new()];
        let mut places = FxHashMap::from_iter([(MANY, 0)]);
        for page in pages {
            let place = *places.entry(bonds.root(page.id())).or_insert(parts.len());
            if place == parts.len() {
                parts.push(Vec::new());
            }
            parts[place].push(page);
        }
        self.free.extend(self.free_next.drain(..).map(Reverse));
        Changed { parts, freed, len: self.len }
    }

    /// The checkpoint is durable.
    pub(crate) fn end_checkpoint(&mut self, done: &Done) {
        // Ids that were freed meanwhile stay without a place. If they are in use again, the cache
        // has the pages.
        let freed: FxHashSet<u32> = self.freed.iter().copied().collect();
        let stay = done.entries.iter().filter(|(id, _)| !freed.contains(id));
        self.pager.set_entries(stay.copied());
        done.entries.iter().for_each(|(id, _)| self.pager.cache.end_write(*id));
    }

    /// Forgets free ids at the end of the table. A checkpoint must follow before any page is
    /// allocated, because ids that were freed since the last checkpoint count as free here.
    pub(crate) fn trim(&mut self) {
        let free = std::mem::take(&mut self.free).into_iter().map(|Reverse(id)| id);
        let mut free: Vec<u32> = free.chain(self.free_next.drain(..)).collect();
        free.sort_unstable();
        while free.last().is_some_and(|id| *id + 1 == self.len) {
            free.pop();
            self.len -= 1;
        }
        self.freed.retain(|id| *id < self.len);
        self.free = free.into_iter().map(Reverse).collect();
    }
}
