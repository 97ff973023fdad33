//! fjall: a log-structured merge tree. Its journal is synced at each commit.

use std::path::Path;

use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};

use super::{Engine, Operations, TOMBSTONE, live, versioned};

pub(crate) struct Fjall {
    database: Database,
    keyspace: Keyspace,
}

impl Fjall {
    pub(crate) fn open(dir: &Path, cache_bytes: usize) -> Result<Fjall> {
        // Half for blocks, half for what is not flushed yet.
        let half = cache_bytes as u64 / 2;
        let database = Database::builder(dir.join("fjall")).cache_size(half).open()?;
        let memtable = (half / 2).min(32 << 20);
        let options = || KeyspaceCreateOptions::default().max_memtable_size(memtable);
        let keyspace = database.keyspace("history", options)?;
        Ok(Fjall { database, keyspace })
    }
}

struct Open<'a> {
    batch: OwnedWriteBatch,
    keyspace: &'a Keyspace,
}

impl Operations for Open<'_> {
    fn put(&mut self, key: u64, lsn: u64, value: &[u8]) -> Result<()> {
        self.batch.insert(self.keyspace, versioned(key, lsn), value);
        Ok(())
    }

    fn delete(&mut self, key: u64, lsn: u64) -> Result<()> {
        self.put(key, lsn, TOMBSTONE)
    }

    fn get(&mut self, key: u64) -> Result<Option<usize>> {
        let newest = self.keyspace.range(versioned(key, u64::MAX)..=versioned(key, 0)).next();
        let value = newest.map(fjall::Guard::value).transpose()?;
        Ok(value.and_then(|value| live(&value)))
    }

    fn forget(&mut self, key: u64, lsn: u64) -> Result<()> {
        for old in self.keyspace.range(versioned(key, lsn.saturating_sub(1))..=versioned(key, 0)) {
            self.batch.remove(self.keyspace, old.key()?);
        }
        Ok(())
    }
}

impl Engine for Fjall {
    fn batch(
        &mut self,
        _lsn: u64,
        _horizon: u64,
        work: &mut dyn FnMut(&mut dyn Operations) -> Result<()>,
    ) -> Result<()> {
        let batch = self.database.batch().durability(Some(PersistMode::SyncData));
        let mut open = Open { batch, keyspace: &self.keyspace };
        work(&mut open)?;
        Ok(open.batch.commit()?)
    }
}
