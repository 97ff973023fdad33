//! The head of the data file: what the last checkpoint, or its last stage, puts in force.
//!
//! There are two slots, blocks 0 and 1. When everything that a new head leads to is durable, it
//! goes to the slot that the previous head is not in. So one slot is whole at any instant, and the
//! higher number wins. The head leads to everything else with checksums: directories, page table,
//! pages.

use std::fmt;

use crate::disk::Disk;
use crate::error::{Error, Place, Result};
use crate::page::PAGE_BYTES;
use crate::pager::{Entry, offset};

/// Version of the format that is written. FORMAT.md describes it and the earlier formats, which can
/// be read.
pub(crate) const FORMAT: u32 = 3;
/// The oldest format that can be read.
const FORMAT_OLDEST: u32 = 1;
const MAGIC: &[u8; 8] = b"pgslstor";
/// Blocks of the two slots.
pub(crate) const SLOTS: u32 = 2;

/// The most trees in a store. This number leaves room for directories in the head.
pub const TREES_MAX: usize = 32;
/// The most bytes in a tree's name.
pub const TREE_NAME_BYTES_MAX: usize = 34;

const TREES: usize = 88;
const TREE_BYTES: usize = 56;
const DIRECTORIES: usize = TREES + TREES_MAX * TREE_BYTES;
const CRC: usize = PAGE_BYTES - 4;
/// The most directories in the head. Each leads to 510 table pages of 510 entries: about 270 GB of
/// pages.
pub(crate) const DIRECTORIES_MAX: usize = (CRC - DIRECTORIES) / 8;

/// What a tree keeps; rule S1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The newest version of each key at or below the horizon stays readable, and so does every
    /// version above.
    History,
    /// Everything below the horizon is forgotten.
    Window,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::History => "history",
            Kind::Window => "window",
        })
    }
}

/// A named tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeInfo {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) root: u32,
    /// Versions that some horizon will make removable. The number is not exact: it still counts
    /// versions that a crash took back.
    pub(crate) debt: u64,
    /// All versions, just as inexact.
    pub(crate) versions: u64,
}

/// Everything a checkpoint fixes beside the pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) store_id: u64,
    /// Number of this head.
    pub(crate) seq: u64,
    pub(crate) committed: u64,
    pub(crate) horizon: u64,
    /// The pages may hold versions after `committed`. Unless the log has their commit, opening
    /// takes them back.
    pub(crate) open_writes: bool,
    /// Opening applies the log from this block on. Between two stages of a checkpoint, the block is
    /// before `committed`.
    pub(crate) log_block: u64,
    pub(crate) commit_no: u64,
    /// Blocks the ring of the log has room for.
    pub(crate) log_blocks: u32,
    /// Blocks of the log file that exist: it may not be shorter.
    pub(crate) log_file_blocks: u32,
    /// Length of the page table.
    pub(crate) table_len: u32,
    /// Blocks of the data file: it may not be shorter.
    pub(crate) blocks: u32,
    pub(crate) trees: Vec<TreeInfo>,
    pub(crate) directories: Vec<Entry>,
}

impl Meta {
    pub(crate) fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, MAGIC);
        put(8, &FORMAT.to_le_bytes());
        put(12, &(PAGE_BYTES as u32).to_le_bytes());
        for (index, word) in [self.store_id, self.seq, self.committed, self.horizon].into_iter().enumerate() {
            put(16 + 8 * index, &word.to_le_bytes());
        }
        put(48, &u32::from(self.open_writes).to_le_bytes());
        put(52, &self.log_blocks.to_le_bytes());
        put(56, &self.log_block.to_le_bytes());
        put(64, &self.commit_no.to_le_bytes());
        put(72, &self.table_len.to_le_bytes());
        put(76, &self.blocks.to_le_bytes());
        put(80, &(self.trees.len() as u16).to_le_bytes());
        put(82, &(self.directories.len() as u16).to_le_bytes());
        put(84, &self.log_file_blocks.to_le_bytes());
        for (index, tree) in self.trees.iter().enumerate() {
            let at = TREES + TREE_BYTES * index;
            put(at, &tree.root.to_le_bytes());
            put(at + 4, &[u8::from(tree.kind == Kind::Window), tree.name.len() as u8]);
            put(at + 6, tree.name.as_bytes());
            put(at + 40, &tree.debt.to_le_bytes());
            put(at + 48, &tree.versions.to_le_bytes());
        }
        for (index, entry) in self.directories.iter().enumerate() {
            put(DIRECTORIES + 8 * index, &entry.block.to_le_bytes());
            put(DIRECTORIES + 8 * index + 4, &entry.crc.to_le_bytes());
        }
        let crc = crc32fast::hash(&bytes[..CRC]);
        bytes[CRC..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The head in `bytes`; `None` if they are no head.
    ///
    /// # Errors
    /// A whole head, but of another format.
    fn decode(bytes: &[u8; PAGE_BYTES]) -> Result<Option<Meta>> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let u16_at = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        if &bytes[..8] != MAGIC || u32_at(CRC) != crc32fast::hash(&bytes[..CRC]) {
            return Ok(None);
        }
        if !(FORMAT_OLDEST..=FORMAT).contains(&u32_at(8)) || u32_at(12) as usize != PAGE_BYTES {
            return Err(Error::misuse(format!(
                "the file has format {} with pages of {} bytes, this program reads formats {FORMAT_OLDEST} to {FORMAT} with {PAGE_BYTES}",
                u32_at(8),
                u32_at(12)
            )));
        }
        let (tree_count, directory_count) = (u16_at(80), u16_at(82));
        if tree_count > TREES_MAX || directory_count > DIRECTORIES_MAX {
            return Ok(None);
        }
        let tree = |index: usize| {
            let at = TREES + TREE_BYTES * index;
            let length = usize::from(bytes[at + 5]).min(TREE_NAME_BYTES_MAX);
            TreeInfo {
                name: String::from_utf8_lossy(&bytes[at + 6..at + 6 + length]).into_owned(),
                kind: if bytes[at + 4] == 0 { Kind::History } else { Kind::Window },
                root: u32_at(at),
                debt: u64_at(at + 40),
                versions: u64_at(at + 48),
            }
        };
        let directory = |index: usize| {
            let at = DIRECTORIES + 8 * index;
            Entry { block: u32_at(at), crc: u32_at(at + 4) }
        };
        Ok(Some(Meta {
            store_id: u64_at(16),
            seq: u64_at(24),
            committed: u64_at(32),
            horizon: u64_at(40),
            open_writes: u32_at(48) != 0,
            log_blocks: u32_at(52),
            log_block: u64_at(56),
            commit_no: u64_at(64),
            table_len: u32_at(72),
            blocks: u32_at(76),
            log_file_blocks: u32_at(84),
            trees: (0..tree_count).map(tree).collect(),
            directories: (0..directory_count).map(directory).collect(),
        }))
    }

    /// The newest whole head; `None` if the file has none.
    pub(crate) fn read(disk: &dyn Disk) -> Result<Option<Meta>> {
        let size_bytes = disk.size_bytes().map_err(Error::io("find the size of the data file"))?;
        let mut newest: Option<Meta> = None;
        for slot in 0..SLOTS {
            if size_bytes < offset(slot + 1) {
                continue;
            }
            let mut bytes = [0; PAGE_BYTES];
            disk.read_at(offset(slot), &mut bytes).map_err(Error::io("read the head of the data file"))?;
            if let Some(meta) = Meta::decode(&bytes)?
                && newest.as_ref().is_none_or(|newest| newest.seq < meta.seq)
            {
                newest = Some(meta);
            }
        }
        if let Some(meta) = &newest
            && size_bytes < offset(meta.blocks)
        {
            return Err(Error::damaged(
                Place::Meta,
                format!("the file should have {} blocks and has {size_bytes} bytes", meta.blocks),
            ));
        }
        Ok(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let meta = Meta {
            store_id: 1,
            seq: 2,
            committed: 3,
            horizon: 4,
            open_writes: true,
            log_block: 5,
            commit_no: 6,
            log_blocks: 7,
            log_file_blocks: 8,
            table_len: 9,
            blocks: 10,
            trees: (0..TREES_MAX)
                .map(|index| TreeInfo {
                    name: format!("{index:0>width$}", width = TREE_NAME_BYTES_MAX),
                    kind: if index % 2 == 0 { Kind::History } else { Kind::Window },
                    root: index as u32,
                    debt: u64::MAX - index as u64,
                    versions: index as u64,
                })
                .collect(),
            directories: (0..DIRECTORIES_MAX as u32)
                .map(|index| Entry { block: index, crc: !index })
                .collect(),
        };
        let bytes = meta.encode();
        assert_eq!(Meta::decode(&bytes).unwrap(), Some(meta));
        for at in (0..PAGE_BYTES).step_by(7) {
            let mut broken = bytes;
            broken[at] ^= 4;
            assert_eq!(Meta::decode(&broken).unwrap(), None, "a flipped bit in byte {at}");
        }
    }
}
