//! Entries of one transaction in the order of WAL: the older ones in its spool file, the newer ones
//! in memory.
//!
//! Memory consists of pieces of at most [`PIECE`] bytes that hold whole entries, so a growing
//! transaction is not copied. Spilling writes each piece behind a header as a block; reading takes
//! one block at a time.
//!
//! ```text
//!  0  u32  length of the block, without this header
//!  4  u32  number of the block in the file, from 0
//!  8  u32  the file's transaction
//! 12  u32  CRC-32C of the twelve bytes before and of the block
//! ```
//! `docs/spools.md` has this format beside the others.
//!
//! Memory has the number of blocks and bytes of the file. A file that is shorter or longer is
//! damaged.

use std::io::{self, Read};

use base::{Lsn, Xid};

use crate::Spool;
use crate::reorder::entry::{Entry, HEAD, Head};
use crate::reorder::error::{Error, Kind};

/// Bytes that are written to or read from the spool at once, unless one entry is longer.
pub(crate) const PIECE: usize = 256 * 1024;

/// Large enough for most transactions of one row.
const FIRST_PIECE: usize = 512;

const BLOCK_HEAD: usize = 16;
const BLOCK_CRC_AT: usize = 12;

/// Used pieces that are kept for later use. The system clears returned memory page by page when it
/// is taken again, which costs more than all other work for a change.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    spare: Vec<Vec<u8>>,
}

impl Pieces {
    /// Bytes of memory that the pieces hold.
    pub(crate) fn allocated(&self) -> usize {
        self.spare.len() * PIECE
    }

    fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(PIECE))
    }

    /// Takes back a piece if it has the usual size.
    pub(crate) fn put(&mut self, mut piece: Vec<u8>) {
        if piece.capacity() == PIECE {
            piece.clear();
            self.spare.push(piece);
        }
    }

    /// Frees pieces beyond `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.spare.truncate(bytes / PIECE);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Run {
    /// Names its spool file.
    key: Xid,
    /// The blocks in the transaction's spool file; 0 if there is none.
    blocks: u32,
    /// Bytes of all blocks, without their headers.
    spilled: u64,
    pieces: Vec<Vec<u8>>,
    /// Bytes of the pieces, filled and allocated.
    length: usize,
    allocated: usize,
    /// Where the next entry begins. It counts everything that was ever appended, except entries
    /// that were removed.
    end: u64,
}

impl Run {
    pub(crate) fn new(key: Xid) -> Run {
        Run { key, blocks: 0, spilled: 0, pieces: Vec::new(), length: 0, allocated: 0, end: 0 }
    }

    /// The id of the transaction or subtransaction that began the run.
    pub(crate) fn key(&self) -> Xid {
        self.key
    }

    /// Bytes of memory that it holds.
    pub(crate) fn allocated(&self) -> usize {
        self.allocated
    }

    /// Bytes of entries in memory.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0 && self.blocks == 0
    }

    /// Where the next entry begins.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Where memory begins; earlier entries are in the file, or were handed out.
    pub(crate) fn memory_start(&self) -> u64 {
        self.end - self.length as u64
    }

    /// Appends an entry that consists of `head` and `parts`.
    pub(crate) fn push(&mut self, pieces: &mut Pieces, head: &Head, parts: &[&[u8]]) {
        let rest = parts.iter().map(|part| part.len()).sum();
        let piece = self.room(pieces, HEAD + rest);
        piece.extend_from_slice(&head.bytes(rest));
        for part in parts {
            piece.extend_from_slice(part);
        }
    }

    /// Returns a piece that has room for `length` more bytes, and counts them.
    fn room(&mut self, pieces: &mut Pieces, length: usize) -> &mut Vec<u8> {
        let fits = self.pieces.last().is_some_and(|piece| piece.len() + length <= PIECE);
        if !fits {
            let piece = match self.pieces.is_empty() {
                true => Vec::with_capacity(FIRST_PIECE.max(length)),
                false if length <= PIECE => pieces.take(),
                false => Vec::with_capacity(length),
            };
            self.allocated += piece.capacity();
            self.pieces.push(piece);
        }
        let piece = self.pieces.last_mut().expect("pushed if there was none");
        let before = piece.capacity();
        piece.reserve(length);
        self.allocated += piece.capacity() - before;
        self.length += length;
        self.end += length as u64;
        piece
    }

    /// Removes from memory the entries that `goes` selects, beginning at `start`. Entries in the
    /// file stay there. Returns whether an entry stayed.
    pub(crate) fn remove_from(&mut self, start: u64, goes: impl Fn(&Head) -> bool) -> bool {
        let mut begin = self.memory_start();
        let (mut stayed, mut length) = (false, 0);
        for piece in &mut self.pieces {
            let end = begin + piece.len() as u64;
            if end > start {
                let from = start.saturating_sub(begin) as usize;
                stayed |= remove(piece, from, &goes);
            }
            length += piece.len();
            begin = end;
        }
        self.end -= (self.length - length) as u64;
        self.length = length;
        self.pieces.retain(|piece| !piece.is_empty());
        self.allocated = self.pieces.iter().map(Vec::capacity).sum();
        stayed
    }

    /// Writes the pieces in memory to the file. Returns the number of bytes.
    pub(crate) fn spill(&mut self, pieces: &mut Pieces, spool: &mut dyn Spool) -> Result<usize, Error> {
        let failed = |error| Kind::Spool { xid: self.key, error };
        for piece in self.pieces.drain(..) {
            spool.append(self.key, &block_head(self.key, self.blocks, &piece)).map_err(failed)?;
            spool.append(self.key, &piece).map_err(failed)?;
            self.blocks += 1;
            self.spilled += piece.len() as u64;
            pieces.put(piece);
        }
        self.allocated = 0;
        Ok(std::mem::take(&mut self.length))
    }

    /// Takes all entries out. The caller must remove the file.
    pub(crate) fn take(&mut self) -> Run {
        let end = self.end;
        let taken = std::mem::replace(self, Run::new(self.key));
        // Positions go on, so that an earlier one is never mistaken for a later one.
        self.end = end;
        taken
    }

    /// Drops everything, and removes the file.
    pub(crate) fn discard(self, spool: &mut dyn Spool) -> Result<(), Error> {
        remove_file(self.key, self.blocks, spool)
    }

    pub(crate) fn read(self, spool: &mut dyn Spool) -> Result<RunReader, Error> {
        let input = if self.blocks > 0 {
            Some(spool.read(self.key).map_err(|error| Kind::Spool { xid: self.key, error })?)
        } else {
            None
        };
        Ok(RunReader {
            key: self.key,
            input,
            blocks: self.blocks,
            next: 0,
            bytes_left: self.spilled,
            memory: self.pieces.into_iter(),
            spent: Vec::new(),
            block: Vec::new(),
            at: 0,
            length: 0,
        })
    }
}

fn remove_file(key: Xid, blocks: u32, spool: &mut dyn Spool) -> Result<(), Error> {
    if blocks == 0 {
        return Ok(());
    }
    spool.remove(key).map_err(|error| Kind::Spool { xid: key, error }.into())
}

/// Removes entries from a piece, beginning with the entry at `from`. Returns whether an entry
/// stayed there.
fn remove(piece: &mut Vec<u8>, from: usize, goes: &impl Fn(&Head) -> bool) -> bool {
    let (mut at, mut kept) = (from, from);
    while let Some(entry) = Entry::read(&piece[at..]) {
        let (length, goes) = (entry.len(), goes(&entry.head));
        if !goes {
            piece.copy_within(at..at + length, kept);
            kept += length;
        }
        at += length;
    }
    debug_assert_eq!(at, piece.len(), "a piece holds whole entries");
    piece.truncate(kept);
    kept > from
}

fn block_head(key: Xid, number: u32, block: &[u8]) -> [u8; BLOCK_HEAD] {
    let length = u32::try_from(block.len()).expect("a piece, or one entry");
    let mut head = [0; BLOCK_HEAD];
    head[0..4].copy_from_slice(&length.to_le_bytes());
    head[4..8].copy_from_slice(&number.to_le_bytes());
    head[8..12].copy_from_slice(&key.0.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..BLOCK_CRC_AT]), block);
    head[BLOCK_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    head
}

/// The entries of a [`Run`] in order. Reading keeps one block in memory besides what was there.
pub(crate) struct RunReader {
    key: Xid,
    input: Option<Box<dyn Read + Send>>,
    blocks: u32,
    next: u32,
    bytes_left: u64,
    memory: std::vec::IntoIter<Vec<u8>>,
    /// Pieces of memory that have been read.
    spent: Vec<Vec<u8>>,
    block: Vec<u8>,
    /// Where the entry of [`RunReader::entry`] begins, and its length; 0 before the first.
    at: usize,
    length: usize,
}

impl RunReader {
    /// Moves to the next entry, if there is one.
    pub(crate) fn advance(&mut self) -> Result<bool, Error> {
        self.at += self.length;
        self.length = 0;
        while self.at == self.block.len() {
            if !self.load()? {
                return Ok(false);
            }
        }
        let entry = Entry::read(&self.block[self.at..]).ok_or_else(|| self.damaged("holds no entries"))?;
        self.length = entry.len();
        Ok(true)
    }

    /// The entry that [`RunReader::advance`] moved to.
    pub(crate) fn entry(&self) -> Entry<'_> {
        Entry::read(&self.block[self.at..]).expect("read before")
    }

    pub(crate) fn lsn(&self) -> Lsn {
        self.entry().head.lsn
    }

    /// The error for a current entry that lacks the parts of its kind.
    pub(crate) fn broken(&self) -> Error {
        self.damaged("holds an entry that is cut short")
    }

    /// Removes the file. Nothing is left to read.
    pub(crate) fn close(&mut self, pieces: &mut Pieces, spool: &mut dyn Spool) -> Result<(), Error> {
        self.input = None;
        self.spent.drain(..).for_each(|piece| pieces.put(piece));
        remove_file(self.key, std::mem::take(&mut self.blocks), spool)
    }

    /// Loads the next block, from the file first and then from memory. Returns false at the end.
    fn load(&mut self) -> Result<bool, Error> {
        self.at = 0;
        if self.next < self.blocks {
            self.load_block()?;
            return Ok(true);
        }
        if let Some(mut input) = self.input.take() {
            // Further bytes behind ours would mean that it is not our file.
            if read_up_to(&mut input, &mut [0]).map_err(|error| self.failed(error))? > 0 {
                return Err(self.damaged("is followed by what was never written"));
            }
        }
        let next = self.memory.next().unwrap_or_default();
        let read = std::mem::replace(&mut self.block, next);
        if read.capacity() == PIECE {
            self.spent.push(read);
        }
        Ok(!self.block.is_empty())
    }

    fn load_block(&mut self) -> Result<(), Error> {
        let Some(mut input) = self.input.take() else { return Err(self.damaged("has no file")) };
        let mut head = [0; BLOCK_HEAD];
        self.fill(&mut input, &mut head)?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        if u64::from(length) > self.bytes_left {
            return Err(self.damaged("is longer than what was written"));
        }
        let mut block = std::mem::take(&mut self.block);
        block.clear();
        block.resize(length as usize, 0);
        self.fill(&mut input, &mut block)?;
        if head != block_head(self.key, self.next, &block) {
            return Err(self.damaged("is not what was written: its checksum is another"));
        }
        self.block = block;
        self.input = Some(input);
        self.next += 1;
        self.bytes_left -= u64::from(length);
        Ok(())
    }

    fn fill(&self, input: &mut dyn Read, bytes: &mut [u8]) -> Result<(), Error> {
        let read = read_up_to(input, bytes).map_err(|error| self.failed(error))?;
        if read < bytes.len() { Err(self.damaged("is cut short")) } else { Ok(()) }
    }

    fn failed(&self, error: io::Error) -> Error {
        Kind::Spool { xid: self.key, error }.into()
    }

    fn damaged(&self, what: &'static str) -> Error {
        Kind::Damaged { xid: self.key, block: self.next, what }.into()
    }
}

/// Reads as many bytes as there are.
fn read_up_to(input: &mut dyn Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match input.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
