//! LMDB: a copy-on-write B-tree in a memory map, synced at each commit. Its cache is the kernel's.

use std::ops::Bound;
use std::path::Path;

use anyhow::Result;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RwTxn};

use super::{Engine, Operations, TOMBSTONE, live, versioned};

/// Address space, not memory: more than any case needs.
const MAP_BYTES: usize = 64 << 30;

pub(crate) struct Lmdb {
    env: Env,
    table: Database<Bytes, Bytes>,
}

impl Lmdb {
    #[allow(unsafe_code)]
    pub(crate) fn open(dir: &Path) -> Result<Lmdb> {
        let dir = dir.join("lmdb");
        std::fs::create_dir_all(&dir)?;
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        // SAFETY: the flag only keeps the kernel from reading ahead, as LMDB advises where data
        // outgrow memory; the directory was made for this process, nobody else maps or changes its
        // files.
        let env = unsafe { options.flags(EnvFlags::NO_READ_AHEAD).open(&dir)? };
        let mut transaction = env.write_txn()?;
        let table = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Lmdb { env, table })
    }
}

impl Lmdb {
    /// One transaction, in which these versions come, and those go.
    pub(crate) fn write<'v>(
        &mut self,
        come: impl Iterator<Item = (&'v [u8], &'v [u8])>,
        go: impl Iterator<Item = &'v [u8]>,
    ) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        for (version, value) in come {
            self.table.put(&mut transaction, version, value)?;
        }
        for version in go {
            self.table.delete(&mut transaction, version)?;
        }
        Ok(transaction.commit()?)
    }
}

struct Open<'a> {
    transaction: RwTxn<'a>,
    table: Database<Bytes, Bytes>,
}

impl Operations for Open<'_> {
    fn put(&mut self, key: u64, lsn: u64, value: &[u8]) -> Result<()> {
        Ok(self.table.put(&mut self.transaction, &versioned(key, lsn), value)?)
    }

    fn delete(&mut self, key: u64, lsn: u64) -> Result<()> {
        self.put(key, lsn, TOMBSTONE)
    }

    fn get(&mut self, key: u64) -> Result<Option<usize>> {
        let first = versioned(key, u64::MAX);
        let newest = self.table.get_greater_than_or_equal_to(&self.transaction, &first)?;
        Ok(newest.filter(|(found, _)| found[..8] == first[..8]).and_then(|(_, value)| live(value)))
    }

    fn forget(&mut self, key: u64, lsn: u64) -> Result<()> {
        let (first, last) = (versioned(key, lsn.saturating_sub(1)), versioned(key, 0));
        let range = (Bound::Included(&first[..]), Bound::Included(&last[..]));
        self.table.delete_range(&mut self.transaction, &range)?;
        Ok(())
    }
}

impl Engine for Lmdb {
    fn batch(
        &mut self,
        _lsn: u64,
        _horizon: u64,
        work: &mut dyn FnMut(&mut dyn Operations) -> Result<()>,
    ) -> Result<()> {
        let mut open = Open { transaction: self.env.write_txn()?, table: self.table };
        work(&mut open)?;
        Ok(open.transaction.commit()?)
    }
}
