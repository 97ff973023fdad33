//! Pages by id, for the writer and every reader: the cache, and behind it the page table and the
//! disk.
//!
//! A page keeps its id while its place on disk changes with each checkpoint. The **page table** has
//! the place and the checksum of what was written there. So a parent never changes because a child
//! was written. A lost write shows, because the block has another checksum.
//!
//! A reader may follow an id that the writer has freed meanwhile. It then finds no page, or a page
//! with other fences, and starts over from the root. It never takes one page for another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::cache::Cache;
use crate::disk::Disk;
use crate::error::{Error, Place, Result};
use crate::page::{PAGE_BYTES, Page};

/// A tree, as the functions on pages need it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeRef {
    pub(crate) id: u8,
    pub(crate) root: u32,
    pub(crate) window: bool,
}

/// Where a page is on disk, and the checksum of its bytes. Block 0 is the head of the file, so it
/// stands for "nowhere".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    pub(crate) block: u32,
    pub(crate) crc: u32,
}

impl Entry {
    pub(crate) const NONE: Entry = Entry { block: 0, crc: 0 };

    pub(crate) fn is_some(self) -> bool {
        self.block != 0
    }
}

/// The offset of a block.
pub(crate) fn offset(block: u32) -> u64 {
    u64::from(block) * PAGE_BYTES as u64
}

#[derive(Debug)]
pub(crate) struct Pager {
    disk: Arc<dyn Disk>,
    pub(crate) cache: Cache,
    table: RwLock<Vec<Entry>>,
    /// Names of the trees, for messages about damage.
    names: RwLock<Vec<String>>,
    pages_read: AtomicU64,
    /// Odd while the writer moves ranges between pages. It is another number afterwards.
    moves: Arc<AtomicU64>,
}

/// The writer moves ranges between pages as long as this value lives.
#[derive(Debug)]
pub(crate) struct Moving(Arc<AtomicU64>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Pager {
    pub(crate) fn new(disk: Arc<dyn Disk>, cache_pages: usize, table: Vec<Entry>) -> Pager {
        Pager {
            disk,
            cache: Cache::new(cache_pages),
            table: RwLock::new(table),
            names: RwLock::default(),
            pages_read: AtomicU64::new(0),
            moves: Arc::default(),
        }
    }

    /// Tells readers that ranges move, until the returned value is dropped.
    pub(crate) fn moving(&self) -> Moving {
        self.moves.fetch_add(1, Ordering::SeqCst);
        Moving(self.moves.clone())
    }

    /// A number for the present ranges: if it is even and the same twice, no range has moved
    /// between the two calls.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    pub(crate) fn pages_read(&self) -> u64 {
        self.pages_read.load(Ordering::Relaxed)
    }

    pub(crate) fn name_trees(&self, names: Vec<String>) {
        *self.names.write().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// Damage of a page that was reached through `tree`.
    pub(crate) fn damaged(&self, id: u32, tree: u8, why: impl Into<String>) -> Error {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let tree = names.get(usize::from(tree)).map_or("?", String::as_str).to_owned();
        Error::damaged(Place::Page { page: id, tree }, why)
    }

    pub(crate) fn entry(&self, id: u32) -> Entry {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(id as usize).copied().unwrap_or(Entry::NONE)
    }

    /// Entries of the table: the largest number of pages that were in use at once, or more.
    fn ids(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Changes entries; the table grows as far as it must.
    pub(crate) fn set_entries(&self, entries: impl IntoIterator<Item = (u32, Entry)>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        for (id, entry) in entries {
            if table.len() <= id as usize {
                table.resize(id as usize + 1, Entry::NONE);
            }
            table[id as usize] = entry;
        }
    }

    /// The page with this id, from memory or disk; `None` if there is none, or none any more. If
    /// `id` was read some time ago, it may be a page of another tree by now, so the caller must
    /// check.
    pub(crate) fn fetch(&self, id: u32, tree: u8) -> Result<Option<Arc<Page>>> {
        loop {
            if let Some(page) = self.cache.get(id) {
                return Ok(Some(page));
            }
            let entry = self.entry(id);
            if !entry.is_some() {
                // A new page is in the cache before anything leads to it. It may have come just
                // now, so look again.
                return Ok(self.cache.get(id));
            }
            let page = match self.read(id, tree, entry) {
                Ok(page) => Arc::new(page),
                // The block may have been given to another page during the read. If a stage of the
                // running checkpoint did that, the cache has the page until the table has its new
                // place. If an earlier checkpoint did, the entry has changed.
                Err(_) if self.cache.get(id).is_some() || self.entry(id) != entry => continue,
                Err(error) => return Err(error),
            };
            if let Some(page) = self.cache.add_clean(id, page, || self.entry(id) == entry) {
                return Ok(Some(page));
            }
        }
    }

    /// The first page on the way to (key, LSN) that is not in memory, if there is one. It is
    /// usually the leaf.
    pub(crate) fn missing(&self, tree: TreeRef, key: &[u8], lsn: u64) -> Option<u32> {
        let (mut id, mut level_max) = (tree.root, u8::MAX);
        loop {
            let Some(page) = self.cache.get(id) else { return Some(id) };
            // The id that a reader follows may belong to another page by now.
            let is_on_the_way = page.is_node()
                && page.tree() == tree.id
                && page.level() <= level_max
                && page.covers(key, lsn);
            if !is_on_the_way || page.is_leaf() {
                return None;
            }
            level_max = page.level() - 1;
            id = page.child(page.child_index(key, lsn));
        }
    }

    /// Starts reading the first page that a look-up of (key, LSN) would wait for, without waiting
    /// itself.
    pub(crate) fn prefetch(&self, tree: TreeRef, key: &[u8], lsn: u64) {
        if self.ids() <= self.cache.pages_max() {
            // All pages fit in memory and will soon be there.
            return;
        }
        let entry = self.missing(tree, key, lsn).map_or(Entry::NONE, |id| self.entry(id));
        if entry.is_some() {
            self.disk.prefetch(offset(entry.block), PAGE_BYTES);
        }
    }

    /// Reads a page past the cache, and checks everything that can be checked in the page alone.
    pub(crate) fn read(&self, id: u32, tree: u8, entry: Entry) -> Result<Page> {
        let mut bytes = [0; PAGE_BYTES];
        self.pages_read.fetch_add(1, Ordering::Relaxed);
        match self.disk.read_at(offset(entry.block), &mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(self.damaged(id, tree, "the file ends before it"));
            }
            Err(error) => return Err(Error::io("read a page")(error)),
        }
        let page = Page::from_bytes(bytes);
        if page.checksum() != entry.crc {
            return Err(self.damaged(id, tree, "its checksum is not the one that was written"));
        }
        if page.id() != id {
            return Err(self.damaged(id, tree, format!("it is page {}", page.id())));
        }
        if page.overflow().is_some() {
            return Ok(page);
        }
        let page = page.into_format_2().map_err(|why| self.damaged(id, tree, why))?;
        page.validate_node().map_err(|why| self.damaged(id, tree, why))?;
        Ok(page)
    }

    /// The whole value from the overflow pages that `payload` lists.
    pub(crate) fn value(&self, tree: u8, payload: &[u8]) -> Result<Vec<u8>> {
        let (length, ids) = overflow_parts(payload);
        let mut value = Vec::with_capacity(length.min(crate::page::VALUE_BYTES_MAX));
        for id in ids {
            let page = self.fetch(id, tree)?.ok_or_else(|| self.damaged(id, tree, "it is not in use"))?;
            let part = page.overflow().filter(|_| page.tree() == tree);
            let part = part.ok_or_else(|| self.damaged(id, tree, "it holds no value of this tree"))?;
            value.extend_from_slice(part);
        }
        if value.len() != length {
            let first = overflow_parts(payload).1.next().unwrap_or_default();
            return Err(self.damaged(first, tree, "the value that begins here has another length"));
        }
        Ok(value)
    }
}

/// The content of an overflow cell's payload: the value's length and the ids of its pages.
pub(crate) fn overflow_parts(payload: &[u8]) -> (usize, impl Iterator<Item = u32>) {
    let mut words =
        payload.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    let length = words.next().unwrap_or_default() as usize;
    (length, words)
}
