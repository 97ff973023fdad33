//! redb: a copy-on-write B-tree. One sync per commit, its default.

use std::path::Path;

use anyhow::Result;
use redb::{Database, ReadableTable, Table, TableDefinition};

use super::{Engine, Operations, TOMBSTONE, live, versioned};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("history");

pub(crate) struct Redb(Database);

impl Redb {
    pub(crate) fn open(dir: &Path, cache_bytes: usize) -> Result<Redb> {
        Ok(Redb(Database::builder().set_cache_size(cache_bytes).create(dir.join("redb"))?))
    }
}

struct Open<'a>(Table<'a, &'static [u8], &'static [u8]>);

impl Operations for Open<'_> {
    fn put(&mut self, key: u64, lsn: u64, value: &[u8]) -> Result<()> {
        self.0.insert(&versioned(key, lsn)[..], value)?;
        Ok(())
    }

    fn delete(&mut self, key: u64, lsn: u64) -> Result<()> {
        self.put(key, lsn, TOMBSTONE)
    }

    fn get(&mut self, key: u64) -> Result<Option<usize>> {
        let (first, last) = (versioned(key, u64::MAX), versioned(key, 0));
        let newest = self.0.range(&first[..]..=&last[..])?.next().transpose()?;
        Ok(newest.and_then(|(_, value)| live(value.value())))
    }

    fn forget(&mut self, key: u64, lsn: u64) -> Result<()> {
        let (first, last) = (versioned(key, lsn.saturating_sub(1)), versioned(key, 0));
        self.0.retain_in(&first[..]..=&last[..], |_, _| false)?;
        Ok(())
    }
}

impl Engine for Redb {
    fn batch(
        &mut self,
        _lsn: u64,
        _horizon: u64,
        work: &mut dyn FnMut(&mut dyn Operations) -> Result<()>,
    ) -> Result<()> {
        let transaction = self.0.begin_write()?;
        work(&mut Open(transaction.open_table(TABLE)?))?;
        Ok(transaction.commit()?)
    }
}
