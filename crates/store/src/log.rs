//! The log: the changes since the last checkpoint, commit by commit.
//!
//! It is a ring of blocks behind one head block. A commit is one run of blocks with its records,
//! written together and synced once. It starts in a block of its own, so a torn write never touches
//! an earlier commit. Each block names the store, its number in the endless sequence of blocks, its
//! commit, and the checkpoint that it follows. So any block found anywhere in the ring can be
//! placed.
//!
//! The file is only as long as it had to be. Before it would grow, a commit goes **back to the
//! beginning** of the ring, if a checkpoint gave enough of that back and checkpoints are cheap. The
//! block numbers between are skipped.
//!
//! Opening follows blocks from the position in the head of the data file. It judges the end of the
//! sequence by all other blocks of the ring:
//!
//! | what is found behind the last whole commit `n` | means |
//! | --- | --- |
//! | nothing of a later commit, or parts of `n + 1` | a crash before `n + 1` was durable: the end |
//! | a block of `n + 2` or later | `n + 1` was durable and is gone: damage |
//! | a block that follows a later checkpoint | the head of the data file is older than the log: damage |

use std::ops::Range;
use std::sync::Arc;

use crate::disk::Disk;
use crate::error::{Error, Place, Result};
use crate::page::PAGE_BYTES;

const MAGIC: &[u8; 8] = b"pgslslog";
const HEAD_BYTES: usize = 40;
/// Bytes of records that fit in a block.
const PAYLOAD_BYTES: usize = PAGE_BYTES - HEAD_BYTES;
const LAST_OF_COMMIT: u16 = 1;
const FIRST_OF_COMMIT: u16 = 2;
/// The file grows with zeros by an eighth of the ring, and at most by this: a sync that does not
/// change the file's size is much cheaper.
const GROWTH_BLOCKS_MAX: u32 = 32;
/// From one in this many blocks of the ring on, a checkpoint takes over what the log holds, if it
/// writes no more than [`CHEAP_PAGES`] pages for each of these blocks. Waiting longer would not
/// make it cheaper. The log is as long as what one checkpoint takes over and what comes meanwhile.
const CHEAP_SHARE: u64 = 4;
const CHEAP_PAGES: u64 = 4;
/// The start of a commit's bytes: its LSN, and the horizon that holds from then on.
const COMMIT_HEAD_BYTES: usize = 16;
/// The bytes before a record's key: whether it is a deletion, its tree, two lengths, the LSN.
const RECORD_HEAD_BYTES: usize = 16;

/// One change in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) tree: u8,
    pub(crate) delete: bool,
    pub(crate) lsn: u64,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// One commit, read back.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) lsn: u64,
    pub(crate) horizon: u64,
    /// The number of its first block.
    pub(crate) block: u64,
    pub(crate) commit_no: u64,
    records: Vec<u8>,
}

impl Commit {
    /// Its changes in order; `None` in place of bytes that are no record.
    pub(crate) fn records(&self) -> impl Iterator<Item = Option<Record<'_>>> {
        let mut rest = self.records.as_slice();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let Some((record, after)) = parse_record(rest) else {
                rest = &[];
                return Some(None);
            };
            rest = after;
            Some(Some(record))
        })
    }
}

fn parse_record(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let (head, rest) = bytes.split_at_checked(RECORD_HEAD_BYTES)?;
    let key_len = usize::from(u16::from_le_bytes([head[2], head[3]]));
    let value_len = u32::from_le_bytes(head[4..8].try_into().ok()?) as usize;
    let (key, rest) = rest.split_at_checked(key_len)?;
    let (value, rest) = rest.split_at_checked(value_len)?;
    let lsn = u64::from_le_bytes(head[8..16].try_into().ok()?);
    Some((Record { tree: head[0], delete: head[1] != 0, lsn, key, value }, rest))
}

/// What opening found.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) log: Log,
    pub(crate) commits: Vec<Commit>,
    /// Parts of a commit stand behind `commits`: a checkpoint must come before the next commit.
    pub(crate) is_torn: bool,
}

/// The log of one store.
#[derive(Debug)]
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    store_id: u64,
    /// Blocks of the ring.
    blocks: u32,
    /// Blocks of the file, the head block included.
    file_blocks: u32,
    /// The next block to be written.
    next: u64,
    /// The oldest block that opening would need.
    needed_from: u64,
    /// The block numbers that were skipped last; no block has them.
    skipped: Range<u64>,
    /// A checkpoint has taken something over since opening. So the head has today's format, the
    /// only one with skipped numbers.
    is_released: bool,
    commit_no: u64,
    /// The records of the open batch, behind room for a commit's head.
    batch: Vec<u8>,
    is_batch_cut: bool,
    frame: Vec<u8>,
    blocks_written: u64,
}

impl Log {
    /// A new log for a new store.
    pub(crate) fn create(disk: Arc<dyn Disk>, store_id: u64, blocks: u32) -> Result<Log> {
        let mut head = [0; PAGE_BYTES];
        head[..8].copy_from_slice(MAGIC);
        head[8..16].copy_from_slice(&store_id.to_le_bytes());
        let crc = crc32fast::hash(&head[..16]);
        head[16..20].copy_from_slice(&crc.to_le_bytes());
        disk.write_at(0, &head).and_then(|()| disk.sync()).map_err(Error::io("write the log's head"))?;
        Ok(Log::at(disk, store_id, blocks, 1, 0, 1))
    }

    fn at(
        disk: Arc<dyn Disk>,
        store_id: u64,
        blocks: u32,
        file_blocks: u32,
        next: u64,
        commit_no: u64,
    ) -> Log {
        let batch = vec![0; COMMIT_HEAD_BYTES];
        Log {
            disk,
            store_id,
            blocks,
            file_blocks,
            next,
            needed_from: next,
            skipped: next..next,
            is_released: false,
            commit_no,
            batch,
            is_batch_cut: false,
            frame: Vec::new(),
            blocks_written: 0,
        }
    }

    /// Opens the log that `meta` leads to, and reads its commits.
    ///
    /// # Errors
    /// The disk's, and damage.
    pub(crate) fn open(disk: Arc<dyn Disk>, meta: &crate::meta::Meta) -> Result<Opened> {
        let size_bytes = disk.size_bytes().map_err(Error::io("find the size of the log"))?;
        let size = u32::try_from(size_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        if size < meta.log_file_blocks {
            let why = format!("the log should have {} blocks and has {size}", meta.log_file_blocks);
            return Err(Error::damaged(Place::Log { block: 0 }, why));
        }
        let mut head = [0; PAGE_BYTES];
        disk.read_at(0, &mut head).map_err(Error::io("read the log's head"))?;
        let crc = crc32fast::hash(&head[..16]).to_le_bytes();
        if &head[..8] != MAGIC || head[8..16] != meta.store_id.to_le_bytes() || head[16..20] != crc {
            return Err(Error::damaged(Place::Log { block: 0 }, "it is not this store's log"));
        }
        let ring = Ring::read(&*disk, meta, size)?;
        let commits = ring.commits(meta)?;
        let (next, mut commit_no) = ring.end;
        let is_torn = ring.has_torn_commit();
        if is_torn {
            // Blocks of the torn commit have this number and must not complete a later commit.
            commit_no += 1;
        }
        let mut log = Log::at(disk, meta.store_id, meta.log_blocks, size.max(1), next, commit_no);
        log.needed_from = meta.log_block;
        Ok(Opened { log, commits, is_torn })
    }

    /// Adds a change to the open batch.
    pub(crate) fn add(&mut self, record: Record<'_>) {
        let Record { tree, delete, lsn, key, value } = record;
        let mut head = [0; RECORD_HEAD_BYTES];
        head[0] = tree;
        head[1] = u8::from(delete);
        head[2..4].copy_from_slice(&(key.len() as u16).to_le_bytes());
        head[4..8].copy_from_slice(&(value.len() as u32).to_le_bytes());
        head[8..16].copy_from_slice(&lsn.to_le_bytes());
        self.batch.extend_from_slice(&head);
        self.batch.extend_from_slice(key);
        self.batch.extend_from_slice(value);
    }

    /// The number of bytes in the open batch.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.batch.len() - COMMIT_HEAD_BYTES
    }

    /// Whether the open batch takes so much of the ring that a checkpoint should take over a part
    /// of it.
    pub(crate) fn is_batch_long(&self) -> bool {
        self.batch_bytes() > self.blocks as usize * PAGE_BYTES / 4
    }

    /// Forgets the first `bytes` of the open batch: a durable checkpoint holds them.
    pub(crate) fn forget(&mut self, bytes: usize) {
        self.batch.drain(COMMIT_HEAD_BYTES..COMMIT_HEAD_BYTES + bytes);
        self.is_batch_cut = true;
    }

    /// Whether a part of the open batch was forgotten. Then all of it must be forgotten before its
    /// commit: the log has a batch's records whole or not at all, see the README on stages.
    pub(crate) fn is_batch_cut(&self) -> bool {
        self.is_batch_cut
    }

    /// Whether the open batch can be written without overwriting blocks that opening would need.
    pub(crate) fn has_room(&self) -> bool {
        let wanted = self.batch.len().div_ceil(PAYLOAD_BYTES) as u64;
        self.next - self.needed_from + wanted <= u64::from(self.blocks)
    }

    /// The number of blocks that opening would read.
    pub(crate) fn used(&self) -> u64 {
        let skipped = self.skipped.end.saturating_sub(self.skipped.start.max(self.needed_from));
        self.next - self.needed_from - skipped
    }

    /// Whether a checkpoint that has `pages` pages to write should take over the log.
    pub(crate) fn is_checkpoint_due(&self, pages: usize) -> bool {
        let (used, blocks) = (self.used(), u64::from(self.blocks));
        // A third of the log is left for what comes while the checkpoint runs. That is more than
        // the longest batch, a quarter. With a half, a fifth more pages were written and updates
        // were no faster. Skipped blocks cannot be used either.
        used >= blocks * 2 / 3
            || self.next - self.needed_from >= blocks - blocks / CHEAP_SHARE
            || (used >= blocks / CHEAP_SHARE && is_cheap(pages, used))
    }

    /// Where the next commit begins: its block and its number.
    pub(crate) fn position(&self) -> (u64, u64) {
        (self.next, self.commit_no)
    }

    /// Gives back the blocks before `block`: a checkpoint holds their changes.
    pub(crate) fn release(&mut self, block: u64) {
        self.is_released = true;
        // Skipped numbers have no block.
        self.needed_from = if self.skipped.contains(&block) { self.skipped.end } else { block };
    }

    /// Changes the size of the ring, which must be empty.
    pub(crate) fn resize(&mut self, blocks: u32) {
        assert_eq!(
            self.next, self.needed_from,
            "blocks of another ring would be looked for in the wrong place"
        );
        self.blocks = blocks;
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    pub(crate) fn file_blocks(&self) -> u32 {
        self.file_blocks
    }

    pub(crate) fn blocks_written(&self) -> u64 {
        self.blocks_written
    }

    /// Makes the open batch durable. A checkpoint now would have `pages` pages to write. There must
    /// be room.
    ///
    /// # Errors
    /// The disk's. Whether the commit is durable is then unknown.
    pub(crate) fn commit(&mut self, lsn: u64, horizon: u64, seq: u64, pages: usize) -> Result<()> {
        assert!(self.has_room(), "the caller looks for room first");
        self.go_back(pages);
        self.batch[..8].copy_from_slice(&lsn.to_le_bytes());
        self.batch[8..16].copy_from_slice(&horizon.to_le_bytes());
        self.frame.clear();
        let parts = self.batch.chunks(PAYLOAD_BYTES);
        let last = parts.len() - 1;
        for (index, part) in parts.enumerate() {
            let start = self.frame.len();
            self.frame.resize(start + PAGE_BYTES, 0);
            let block = &mut self.frame[start..];
            block[4..6].copy_from_slice(&(part.len() as u16).to_le_bytes());
            let is_last = if index == last { LAST_OF_COMMIT } else { 0 };
            let is_first = if index == 0 { FIRST_OF_COMMIT } else { 0 };
            let flags = is_first | is_last;
            block[6..8].copy_from_slice(&flags.to_le_bytes());
            block[8..16].copy_from_slice(&self.store_id.to_le_bytes());
            block[16..24].copy_from_slice(&(self.next + index as u64).to_le_bytes());
            block[24..32].copy_from_slice(&self.commit_no.to_le_bytes());
            block[32..40].copy_from_slice(&seq.to_le_bytes());
            block[HEAD_BYTES..HEAD_BYTES + part.len()].copy_from_slice(part);
            let crc = crc32fast::hash(&block[4..]);
            block[..4].copy_from_slice(&crc.to_le_bytes());
        }
        let written = last as u64 + 1;
        self.write_frame().map_err(Error::io("write the log"))?;
        self.next += written;
        self.blocks_written += written;
        self.commit_no += 1;
        self.batch.truncate(COMMIT_HEAD_BYTES);
        self.is_batch_cut = false;
        Ok(())
    }

    /// Skips to the beginning of the ring, if the file would grow otherwise and there is room
    /// there. The room must hold what comes before the next cheap checkpoint, and as much again
    /// while that runs. All blocks that opening needs must be of this round, so that the blocks
    /// before them are free. If checkpoints are not cheap, all of the ring will be needed soon.
    fn go_back(&mut self, pages: usize) {
        let blocks = u64::from(self.blocks);
        let wanted = self.batch.len().div_ceil(PAYLOAD_BYTES) as u64;
        let grows = self.next % blocks + wanted >= u64::from(self.file_blocks);
        let is_one_round = self.needed_from / blocks == self.next / blocks;
        let free = self.needed_from % blocks;
        let cheap = blocks / CHEAP_SHARE;
        let has_room = free >= wanted.max(cheap) && free + self.used() >= 2 * cheap;
        if self.is_released && grows && is_one_round && has_room && is_cheap(pages, self.used() + wanted) {
            let first = round_after(self.next, blocks);
            self.skipped = self.next..first;
            self.next = first;
        }
    }

    /// Writes the frame and makes it durable. At the ring's end, it is written in two parts.
    fn write_frame(&mut self) -> std::io::Result<()> {
        let file_blocks = self.file_blocks;
        let first = (self.next % u64::from(self.blocks)) as u32;
        let until_end = (self.blocks - first) as usize * PAGE_BYTES;
        let (head, tail) = self.frame.split_at(until_end.min(self.frame.len()));
        for (first, part) in [(first, head), (0, tail)] {
            let end = 1 + first + (part.len() / PAGE_BYTES) as u32;
            if part.is_empty() {
                continue;
            }
            if end > self.file_blocks {
                let step = (self.blocks / 8).clamp(1, GROWTH_BLOCKS_MAX);
                let grown = end.next_multiple_of(step).min(self.blocks + 1);
                // Block by block: the kernel keeps bytes that were written together as one unit,
                // and would write the unit for each commit.
                for block in self.file_blocks..grown {
                    self.disk.write_at(u64::from(block) * PAGE_BYTES as u64, &[0; PAGE_BYTES])?;
                }
                self.file_blocks = grown;
            }
            let offset = u64::from(1 + first) * PAGE_BYTES as u64;
            if tail.is_empty() && self.file_blocks == file_blocks {
                return self.disk.write_durably(offset, part);
            }
            self.disk.write_at(offset, part)?;
        }
        self.disk.sync()
    }
}

/// Whether a checkpoint of `pages` pages writes little in comparison with `logged` blocks of the
/// log.
fn is_cheap(pages: usize, logged: u64) -> bool {
    pages as u64 <= CHEAP_PAGES * logged
}

/// The first number of the round after the round of block `number`.
fn round_after(number: u64, blocks: u64) -> u64 {
    (number / blocks + 1) * blocks
}

/// A block of the ring that is whole and belongs to this store.
struct RingBlock {
    number: u64,
    commit_no: u64,
    seq: u64,
    /// Only blocks since format 3 have this mark.
    is_first: bool,
    is_last: bool,
    payload: Vec<u8>,
}

/// All blocks that opening looks at.
struct Ring {
    /// By place; `None` in a place without a whole block.
    places: Vec<Option<RingBlock>>,
    /// The block and commit behind the last whole one.
    end: (u64, u64),
}

impl Ring {
    fn read(disk: &dyn Disk, meta: &crate::meta::Meta, size: u32) -> Result<Ring> {
        let mut places = Vec::new();
        for place in 1..size.min(meta.log_blocks.saturating_add(1)) {
            let mut bytes = [0; PAGE_BYTES];
            let read = disk.read_at(u64::from(place) * PAGE_BYTES as u64, &mut bytes);
            read.map_err(Error::io("read the log"))?;
            let mut block = parse_block(&bytes, meta.store_id);
            if let Some(block) = block.as_mut().filter(|block| block.number < meta.log_block) {
                // Of an earlier round: only its numbers matter.
                block.payload = Vec::new();
            }
            places.push(block);
        }
        let mut ring = Ring { places, end: (meta.log_block, meta.commit_no) };
        ring.find_end(meta);
        Ok(ring)
    }

    fn block(&self, number: u64, commit_no: u64, meta: &crate::meta::Meta) -> Option<&RingBlock> {
        let place = usize::try_from(number % u64::from(meta.log_blocks.max(1))).ok()?;
        let block = self.places.get(place)?.as_ref()?;
        (block.number == number && block.commit_no == commit_no).then_some(block)
    }

    /// The number of a commit's first block, if the commit before it ended at `number`: the same
    /// number, or the one at the beginning of the ring. A block there must say that it is a
    /// commit's first. A commit that goes across the ring's end also has a block there, which may
    /// be all that a crash left of it.
    fn start(&self, number: u64, commit_no: u64, meta: &crate::meta::Meta) -> Option<u64> {
        if self.block(number, commit_no, meta).is_some() {
            return Some(number);
        }
        let back = round_after(number, u64::from(meta.log_blocks.max(1)));
        self.block(back, commit_no, meta).filter(|block| block.is_first).map(|_| back)
    }

    /// Follows whole commits from where the checkpoint says.
    fn find_end(&mut self, meta: &crate::meta::Meta) {
        loop {
            let (end, commit_no) = self.end;
            let Some(mut number) = self.start(end, commit_no, meta) else { return };
            while let Some(block) = self.block(number, commit_no, meta) {
                number += 1;
                if block.is_last {
                    self.end = (number, commit_no + 1);
                    break;
                }
            }
            if self.end.0 == end {
                return;
            }
        }
    }

    /// Whether parts of a commit stand behind the end.
    fn has_torn_commit(&self) -> bool {
        self.places.iter().flatten().any(|block| block.number >= self.end.0)
    }

    /// The whole commits, after a check of all other blocks in the ring.
    fn commits(&self, meta: &crate::meta::Meta) -> Result<Vec<Commit>> {
        let (end, commit_no) = self.end;
        for block in self.places.iter().flatten() {
            let place = || Place::Log { block: block.number };
            if block.seq > meta.seq {
                let why = format!("it follows checkpoint {}, the data file has {}", block.seq, meta.seq);
                return Err(Error::damaged(place(), why));
            }
            if block.number >= end && block.commit_no > commit_no {
                let why =
                    format!("commit {} is here and commit {commit_no} before it is not", block.commit_no);
                return Err(Error::damaged(Place::Log { block: end }, why));
            }
        }
        let mut commits = Vec::new();
        let mut number = meta.log_block;
        for commit_no in meta.commit_no..commit_no {
            let first = self.start(number, commit_no, meta).expect("the end was found behind it");
            number = first;
            let mut bytes = Vec::new();
            loop {
                let block = self.block(number, commit_no, meta).expect("the end was found behind it");
                bytes.extend_from_slice(&block.payload);
                number += 1;
                if block.is_last {
                    break;
                }
            }
            let word = |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
            let (Some(lsn), Some(horizon)) = (word(0), word(8)) else {
                return Err(Error::damaged(Place::Log { block: first }, "its commit has no head"));
            };
            let (lsn, horizon) = (u64::from_le_bytes(lsn), u64::from_le_bytes(horizon));
            bytes.drain(..COMMIT_HEAD_BYTES);
            commits.push(Commit { lsn, horizon, block: first, commit_no, records: bytes });
        }
        Ok(commits)
    }
}

fn parse_block(bytes: &[u8; PAGE_BYTES], store_id: u64) -> Option<RingBlock> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let length = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
    let is_whole = bytes[..4] == crc32fast::hash(&bytes[4..]).to_le_bytes();
    if !is_whole || word(8) != store_id || length > PAYLOAD_BYTES {
        return None;
    }
    Some(RingBlock {
        number: word(16),
        commit_no: word(24),
        seq: word(32),
        is_first: bytes[6] & FIRST_OF_COMMIT as u8 != 0,
        is_last: bytes[6] & LAST_OF_COMMIT as u8 != 0,
        payload: bytes[HEAD_BYTES..HEAD_BYTES + length].to_vec(),
    })
}
