//! Every store behind one interface: batches of puts, deletes and look-ups, each made durable as a
//! whole.
//!
//! Our store forgets by its horizon. The others keep versions as is usual with ordered stores. The
//! key is followed by the inverted LSN, so the newest version comes first. For each key with a
//! newer version, the range behind the horizon is deleted. Each store has its default settings
//! except for memory and durability.

mod fjall;
pub(crate) mod lmdb;
mod ours;
mod redb;
mod sqlite;

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use store::BottomUp;

use crate::workload::Keys;

/// The measured stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Arm {
    Ours,
    /// Look-ups one after the other.
    OursApart,
    OursRestricted,
    OursOff,
    Redb,
    Fjall,
    Sqlite,
    Lmdb,
}

impl Arm {
    pub(crate) const ALL: [Arm; 8] = [
        Arm::Ours,
        Arm::OursApart,
        Arm::OursRestricted,
        Arm::OursOff,
        Arm::Redb,
        Arm::Fjall,
        Arm::Sqlite,
        Arm::Lmdb,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Arm::Ours => "ours",
            Arm::OursApart => "ours-apart",
            Arm::OursRestricted => "ours-restricted",
            Arm::OursOff => "ours-off",
            Arm::Redb => "redb",
            Arm::Fjall => "fjall",
            Arm::Sqlite => "sqlite",
            Arm::Lmdb => "lmdb",
        }
    }

    /// Whether it is another store, not ours in some setting.
    pub(crate) fn is_peer(self) -> bool {
        matches!(self, Arm::Redb | Arm::Fjall | Arm::Sqlite | Arm::Lmdb)
    }

    pub(crate) fn open(self, dir: &Path, memory_bytes: u64, keys: Keys) -> Result<Box<dyn Engine>> {
        // A half made every store that has a cache of its own slower where data outgrow memory. But
        // fjall with more was killed by the limit under Zipf's law.
        let is_half = self == Arm::Fjall && keys == Keys::Zipf;
        let cache_bytes = memory_bytes as usize / 4 * if is_half { 2 } else { 3 };
        let ours = |bottom_up, is_apart| ours::Ours::open(dir, cache_bytes, bottom_up, is_apart);
        Ok(match self {
            Arm::Ours => Box::new(ours(BottomUp::Full, false)?),
            Arm::OursApart => Box::new(ours(BottomUp::Full, true)?),
            Arm::OursRestricted => Box::new(ours(BottomUp::Restricted, false)?),
            Arm::OursOff => Box::new(ours(BottomUp::Off, false)?),
            Arm::Redb => Box::new(redb::Redb::open(dir, cache_bytes)?),
            Arm::Fjall => Box::new(fjall::Fjall::open(dir, cache_bytes)?),
            Arm::Sqlite => Box::new(sqlite::Sqlite::open(dir, cache_bytes)?),
            Arm::Lmdb => Box::new(lmdb::Lmdb::open(dir)?),
        })
    }
}

/// What a transaction does.
pub(crate) trait Operations {
    fn put(&mut self, key: u64, lsn: u64, value: &[u8]) -> Result<()>;
    fn delete(&mut self, key: u64, lsn: u64) -> Result<()>;
    /// Bytes of the newest version.
    fn get(&mut self, key: u64) -> Result<Option<usize>>;
    /// Says that `key` is going to be looked up, where the store has a use for that.
    fn prefetch(&mut self, _key: u64) {}
    /// Removes every version of `key` before `lsn`.
    fn forget(&mut self, key: u64, lsn: u64) -> Result<()>;
}

/// A store.
pub(crate) trait Engine {
    /// Runs `work` and makes it durable, as of `lsn`, with `horizon` in force.
    fn batch(
        &mut self,
        lsn: u64,
        horizon: u64,
        work: &mut dyn FnMut(&mut dyn Operations) -> Result<()>,
    ) -> Result<()>;

    /// Whether somebody has to call [`Operations::forget`].
    fn needs_forgetting(&self) -> bool {
        true
    }

    /// Holds what a reader sees now, until told otherwise.
    fn pin(&mut self, _pinned: bool) -> Result<()> {
        Ok(())
    }

    /// Makes the file as small as it can be, where that is offered and measured.
    fn compact(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The key of a version: newest first.
fn versioned(key: u64, lsn: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.to_be_bytes());
    bytes[8..].copy_from_slice(&(!lsn).to_be_bytes());
    bytes
}

/// A deletion's value: as short as can be told from an empty one.
const TOMBSTONE: &[u8] = b"-";

/// What a look-up answers for a version's bytes.
fn live(value: &[u8]) -> Option<usize> {
    (value != TOMBSTONE).then_some(value.len())
}
