//! A checkpoint writes changed pages to free blocks, then the table that finds them, then a head
//! that puts both in force.
//!
//! Nothing that the head in force leads to is overwritten. Pages go to blocks that it does not use.
//! When they, the table and the directories are durable, the next head is written. When that is
//! durable, the blocks of replaced pages become free. A crash at any instant leaves the old state
//! or the new one, whole.
//!
//! This takes a free block for every page that is written. So a checkpoint of many pages works in
//! **stages**, and each stage writes into the blocks that the one before gave back. Between two
//! stages, the pages are a mixture of this checkpoint's instant and of the previous checkpoint. The
//! README says why the log makes the mixture whole again. The mixture demands two things here.
//! Pages that must be as of one instant together are in one stage. Until the head of the last stage
//! is durable, the log is kept from where the previous checkpoint needs it.
//!
//! [`Checkpointer`] owns what this needs and nothing else: which blocks are free, and the table as
//! it is on disk. So it can work on a thread of its own while the writer goes on. It is handed the
//! pages as references that the writer no longer changes, and hands back their new places.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::disk::Disk;
use crate::error::{Error, Place, Result};
use crate::meta::{DIRECTORIES_MAX, Meta, SLOTS, TreeInfo};
use crate::page::{PAGE_BYTES, Page};
use crate::pager::{Entry, offset};

const KIND_TABLE: u8 = 3;
const KIND_DIRECTORY: u8 = 4;
const ENTRIES_START: usize = 16;
/// Entries that fit on a table page or a directory.
pub(crate) const ENTRIES: usize = (PAGE_BYTES - ENTRIES_START) / 8;

/// Neighbouring blocks are written together up to this size. Beyond it, the bytes cost time and not
/// the calls.
const RUN_BYTES_MAX: usize = 256 * 1024;

/// Which blocks of the data file are in use.
#[derive(Debug, Default)]
struct Blocks {
    words: Vec<u64>,
    /// No word before this one has a free block.
    first_free: usize,
    used: u32,
}

impl Blocks {
    /// Returns false if the block was in use already.
    fn take(&mut self, block: u32) -> bool {
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let was_free = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.used += u32::from(was_free);
        was_free
    }

    /// Takes the lowest free block, so that the end of the file can become free.
    fn allocate(&mut self) -> u32 {
        while self.words.get(self.first_free).is_some_and(|word| *word == u64::MAX) {
            self.first_free += 1;
        }
        let bit = self.words.get(self.first_free).map_or(0, |word| word.trailing_ones());
        let block = self.first_free as u32 * 64 + bit;
        self.take(block);
        block
    }

    fn free(&mut self, block: u32) {
        let word = block as usize / 64;
        self.words[word] &= !(1 << (block % 64));
        self.first_free = self.first_free.min(word);
        self.used -= 1;
    }

    /// One past the highest block in use.
    fn end(&self) -> u32 {
        let last = self.words.iter().rposition(|word| *word != 0);
        last.map_or(0, |word| (word as u32 + 1) * 64 - self.words[word].leading_zeros())
    }
}

/// The work that the writer hands over.
#[derive(Debug)]
pub(crate) struct Job {
    /// Changed pages, all as of one instant. As a whole, each part may also stay as of the previous
    /// checkpoint; see [`Changed`](crate::pages::Changed).
    pub(crate) parts: Vec<Vec<Arc<Page>>>,
    /// Pages between two heads, as far as the parts allow.
    pub(crate) stage_pages: usize,
    /// Ids that were freed and are not among the pages.
    pub(crate) freed: Vec<u32>,
    pub(crate) table_len: u32,
    pub(crate) committed: u64,
    pub(crate) horizon: u64,
    pub(crate) open_writes: bool,
    pub(crate) log_block: u64,
    pub(crate) commit_no: u64,
    pub(crate) log_blocks: u32,
    pub(crate) log_file_blocks: u32,
    pub(crate) trees: Vec<TreeInfo>,
    /// Cut the file behind the last block in use.
    pub(crate) truncate: bool,
    /// Write the whole table anew, so that it moves to the front.
    pub(crate) rewrite_table: bool,
}

/// The result that the writer gets back.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Where the pages are now.
    pub(crate) entries: Vec<(u32, Entry)>,
    pub(crate) seq: u64,
    /// Blocks written, heads included.
    pub(crate) blocks_written: u64,
    /// Blocks of the file: those in use, and all.
    pub(crate) blocks_used: u32,
    pub(crate) blocks_end: u32,
}

/// What a head between two stages repeats of the last head of a whole checkpoint.
#[derive(Debug, Default)]
struct Last {
    open_writes: bool,
    log_block: u64,
    commit_no: u64,
    trees: Vec<TreeInfo>,
}

impl Last {
    fn of(meta: &Meta) -> Last {
        let (log_block, commit_no, trees) = (meta.log_block, meta.commit_no, meta.trees.clone());
        Last { open_writes: meta.open_writes, log_block, commit_no, trees }
    }

    /// Completes the head of a stage that is not the last one. Opening applies all that was logged
    /// since the last whole checkpoint to the pages of this head, and so counts it again.
    fn keep(&self, meta: &mut Meta) {
        (meta.log_block, meta.commit_no) = (self.log_block, self.commit_no);
        meta.open_writes |= self.open_writes;
        for (tree, last) in meta.trees.iter_mut().zip(&self.trees) {
            (tree.debt, tree.versions) = (last.debt, last.versions);
        }
    }
}

/// The data file as the last checkpoint left it.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    disk: Arc<dyn Disk>,
    store_id: u64,
    seq: u64,
    last: Last,
    blocks: Blocks,
    table: Vec<Entry>,
    table_pages: Vec<Entry>,
    directories: Vec<Entry>,
    /// Blocks the file has.
    file_blocks: u32,
}

impl Checkpointer {
    /// An empty data file.
    pub(crate) fn new(disk: Arc<dyn Disk>, store_id: u64) -> Checkpointer {
        let mut blocks = Blocks::default();
        (0..SLOTS).for_each(|slot| assert!(blocks.take(slot)));
        Checkpointer {
            disk,
            store_id,
            seq: 0,
            last: Last::default(),
            blocks,
            table: Vec::new(),
            table_pages: Vec::new(),
            directories: Vec::new(),
            file_blocks: SLOTS,
        }
    }

    /// Reads the directories and the table that `meta` leads to.
    pub(crate) fn load(disk: Arc<dyn Disk>, meta: &Meta) -> Result<Checkpointer> {
        let mut loaded = Checkpointer::new(disk, meta.store_id);
        loaded.seq = meta.seq;
        loaded.last = Last::of(meta);
        loaded.directories = meta.directories.clone();
        // A crash may have left the file longer.
        let size_bytes = loaded.disk.size_bytes().map_err(Error::io("find the size of the data file"))?;
        loaded.file_blocks =
            u32::try_from(size_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX).max(meta.blocks);
        let table_len = meta.table_len as usize;
        let pages = table_len.div_ceil(ENTRIES);
        loaded.table_pages = loaded.read_entries(&meta.directories, KIND_DIRECTORY, pages, meta)?;
        let table_pages = loaded.table_pages.clone();
        loaded.table = loaded.read_entries(&table_pages, KIND_TABLE, table_len, meta)?;
        for index in 0..loaded.table.len() {
            loaded.claim(loaded.table[index], meta)?;
        }
        Ok(loaded)
    }

    /// The entries on the pages that `pages` lists; there must be `count`.
    fn read_entries(&mut self, pages: &[Entry], kind: u8, count: usize, meta: &Meta) -> Result<Vec<Entry>> {
        if pages.len() != count.div_ceil(ENTRIES) {
            return Err(Error::damaged(Place::Meta, "its counts do not fit together"));
        }
        let mut entries = Vec::with_capacity(count);
        for (index, &page) in pages.iter().enumerate() {
            self.claim(page, meta)?;
            let place = || Place::Table { block: page.block };
            let mut bytes = [0; PAGE_BYTES];
            self.disk.read_at(offset(page.block), &mut bytes).map_err(Error::io("read the page table"))?;
            if crc32fast::hash(&bytes) != page.crc {
                return Err(Error::damaged(place(), "its checksum is not the one that was written"));
            }
            if bytes[0] != kind || bytes[4..8] != (index as u32).to_le_bytes() {
                return Err(Error::damaged(place(), "it is another part of the table"));
            }
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
            let here = ENTRIES.min(count - entries.len());
            entries.extend((0..here).map(|index| {
                let at = ENTRIES_START + 8 * index;
                Entry { block: word(at), crc: word(at + 4) }
            }));
        }
        Ok(entries)
    }

    /// Marks the block of `entry` as used; it must be inside the file and used once.
    fn claim(&mut self, entry: Entry, meta: &Meta) -> Result<()> {
        if entry.is_some() && (entry.block >= meta.blocks || !self.blocks.take(entry.block)) {
            let why = format!("block {} is used twice or lies behind the end", entry.block);
            return Err(Error::damaged(Place::Meta, why));
        }
        Ok(())
    }

    pub(crate) fn table(&self) -> &[Entry] {
        &self.table
    }

    pub(crate) fn blocks_used(&self) -> u32 {
        self.blocks.used
    }

    pub(crate) fn file_blocks(&self) -> u32 {
        self.file_blocks
    }

    /// Writes `job` and makes it the store's state.
    ///
    /// # Errors
    /// The disk's. The disk then has the state before or after one of the stages. Nothing more may
    /// be written.
    pub(crate) fn write(&mut self, mut job: Job) -> Result<Done> {
        let mut parts = std::mem::take(&mut job.parts).into_iter().peekable();
        let mut done = Done::default();
        loop {
            let mut pages = parts.next().unwrap_or_default();
            while let Some(part) = parts.next_if(|part| pages.len() + part.len() <= job.stage_pages) {
                pages.extend(part);
            }
            let is_last = parts.peek().is_none();
            self.write_stage(pages, &mut job, is_last, &mut done)?;
            if is_last {
                return Ok(done);
            }
        }
    }

    /// Writes some pages of `job`, and a head that leads to them.
    fn write_stage(
        &mut self,
        pages: Vec<Arc<Page>>,
        job: &mut Job,
        is_last: bool,
        done: &mut Done,
    ) -> Result<()> {
        let mut replaced = Vec::new();
        let mut dirty = BTreeSet::new();
        let mut writes: BTreeMap<u32, BlockContent> = BTreeMap::new();
        let table_len = job.table_len as usize;
        let gone = self.table.drain(table_len.min(self.table.len())..);
        replaced.extend(gone.filter(|entry| entry.is_some()).map(|entry| entry.block));
        self.table.resize(table_len, Entry::NONE);
        for page in pages {
            let entry = Entry { block: self.blocks.allocate(), crc: page.checksum() };
            self.set(page.id(), entry, &mut replaced, &mut dirty);
            done.entries.push((page.id(), entry));
            writes.insert(entry.block, BlockContent::Page(page));
        }
        // Freed ids belong to the first stage, which has the pages that led to them.
        for id in std::mem::take(&mut job.freed) {
            if (id as usize) < self.table.len() {
                self.set(id, Entry::NONE, &mut replaced, &mut dirty);
            }
        }
        let pages = self.table.len().div_ceil(ENTRIES);
        if (job.rewrite_table && is_last) || pages != self.table_pages.len() {
            dirty.extend(0..pages);
        }
        self.write_table(pages, dirty, &mut replaced, &mut writes)?;
        self.write_runs(&writes)?;
        self.disk.sync().map_err(Error::io("sync the data file"))?;

        let truncate = self.write_head(job, is_last)?;
        replaced.into_iter().for_each(|block| self.blocks.free(block));
        if let Some(end) = truncate {
            // Only now: the head before this one still led to blocks behind the new end.
            self.disk.set_size(offset(end)).map_err(Error::io("cut the data file"))?;
            self.file_blocks = end;
        }
        done.seq = self.seq;
        done.blocks_written += writes.len() as u64 + 1;
        (done.blocks_used, done.blocks_end) = (self.blocks.used, self.file_blocks);
        Ok(())
    }

    /// Writes the head that leads to the pages of this stage. Returns the end at which the file may
    /// be cut, if it shrinks.
    fn write_head(&mut self, job: &Job, is_last: bool) -> Result<Option<u32>> {
        self.seq += 1;
        self.file_blocks = self.file_blocks.max(self.blocks.end());
        let truncate =
            (job.truncate && is_last).then(|| self.blocks.end()).filter(|end| *end < self.file_blocks);
        let mut meta = Meta {
            store_id: self.store_id,
            seq: self.seq,
            committed: job.committed,
            horizon: job.horizon,
            open_writes: job.open_writes,
            log_block: job.log_block,
            commit_no: job.commit_no,
            log_blocks: job.log_blocks,
            log_file_blocks: job.log_file_blocks,
            table_len: job.table_len,
            blocks: truncate.unwrap_or(self.file_blocks),
            trees: job.trees.clone(),
            directories: self.directories.clone(),
        };
        if is_last {
            self.last = Last::of(&meta);
        } else {
            self.last.keep(&mut meta);
        }
        let slot = (self.seq % u64::from(SLOTS)) as u32;
        self.disk
            .write_durably(offset(slot), &meta.encode())
            .map_err(Error::io("write the head of the data file"))?;
        Ok(truncate)
    }

    fn set(&mut self, id: u32, entry: Entry, replaced: &mut Vec<u32>, dirty: &mut BTreeSet<usize>) {
        let old = std::mem::replace(&mut self.table[id as usize], entry);
        replaced.extend(old.is_some().then_some(old.block));
        dirty.insert(id as usize / ENTRIES);
    }

    /// Gives changed parts of the table and the directories new places.
    fn write_table(
        &mut self,
        pages: usize,
        dirty: BTreeSet<usize>,
        replaced: &mut Vec<u32>,
        writes: &mut BTreeMap<u32, BlockContent>,
    ) -> Result<()> {
        if pages.div_ceil(ENTRIES) > DIRECTORIES_MAX {
            return Err(Error::full((DIRECTORIES_MAX * ENTRIES * ENTRIES) as u32));
        }
        let gone = self.table_pages.drain(pages.min(self.table_pages.len())..);
        replaced.extend(gone.map(|entry| entry.block));
        self.table_pages.resize(pages, Entry::NONE);
        let directories = pages.div_ceil(ENTRIES);
        let gone = self.directories.drain(directories.min(self.directories.len())..);
        replaced.extend(gone.map(|entry| entry.block));
        self.directories.resize(directories, Entry::NONE);

        let dirty_directories: BTreeSet<usize> = dirty.iter().map(|page| page / ENTRIES).collect();
        for index in dirty.into_iter().filter(|index| *index < pages) {
            let bytes = entries_page(KIND_TABLE, index, &self.table);
            let entry = Entry { block: self.blocks.allocate(), crc: crc32fast::hash(&bytes[..]) };
            let old = std::mem::replace(&mut self.table_pages[index], entry);
            replaced.extend(old.is_some().then_some(old.block));
            writes.insert(entry.block, BlockContent::Table(bytes));
        }
        for index in dirty_directories.into_iter().filter(|index| *index < directories) {
            let bytes = entries_page(KIND_DIRECTORY, index, &self.table_pages);
            let entry = Entry { block: self.blocks.allocate(), crc: crc32fast::hash(&bytes[..]) };
            let old = std::mem::replace(&mut self.directories[index], entry);
            replaced.extend(old.is_some().then_some(old.block));
            writes.insert(entry.block, BlockContent::Table(bytes));
        }
        Ok(())
    }

    /// Writes blocks in the order of the file, neighbours together.
    fn write_runs(&self, writes: &BTreeMap<u32, BlockContent>) -> Result<()> {
        let mut run = Vec::with_capacity(RUN_BYTES_MAX.min(writes.len() * PAGE_BYTES));
        let mut first = 0;
        let flush = |first: u32, run: &mut Vec<u8>| {
            let written = if run.is_empty() { Ok(()) } else { self.disk.write_at(offset(first), run) };
            run.clear();
            written.map_err(Error::io("write pages"))
        };
        for (&block, image) in writes {
            let next = first + (run.len() / PAGE_BYTES) as u32;
            if run.is_empty() || block != next || run.len() >= RUN_BYTES_MAX {
                flush(first, &mut run)?;
                first = block;
            }
            run.extend_from_slice(image.bytes());
        }
        flush(first, &mut run)
    }
}

/// The content of a block.
enum BlockContent {
    Page(Arc<Page>),
    Table(Box<[u8; PAGE_BYTES]>),
}

impl BlockContent {
    fn bytes(&self) -> &[u8; PAGE_BYTES] {
        match self {
            BlockContent::Page(page) => page.bytes(),
            BlockContent::Table(bytes) => bytes,
        }
    }
}

/// Part `index` of `all` as a block.
fn entries_page(kind: u8, index: usize, all: &[Entry]) -> Box<[u8; PAGE_BYTES]> {
    let mut bytes = Box::new([0; PAGE_BYTES]);
    bytes[0] = kind;
    bytes[4..8].copy_from_slice(&(index as u32).to_le_bytes());
    for (place, entry) in all.iter().skip(index * ENTRIES).take(ENTRIES).enumerate() {
        let at = ENTRIES_START + 8 * place;
        bytes[at..at + 4].copy_from_slice(&entry.block.to_le_bytes());
        bytes[at + 4..at + 8].copy_from_slice(&entry.crc.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_block_comes_first() {
        let mut blocks = Blocks::default();
        assert_eq!((0..200).map(|_| blocks.allocate()).collect::<Vec<_>>(), (0..200).collect::<Vec<_>>());
        blocks.free(150);
        blocks.free(3);
        assert_eq!((blocks.allocate(), blocks.allocate(), blocks.allocate()), (3, 150, 200));
        blocks.free(200);
        assert_eq!((blocks.end(), blocks.used), (200, 200));
        assert!(!blocks.take(7), "it is in use");
    }
}
