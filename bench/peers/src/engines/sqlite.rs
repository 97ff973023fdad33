//! SQLite with a write-ahead log that is synced at each commit. The table is its index.

use std::path::Path;

use anyhow::Result;
use rusqlite::{Connection, OptionalExtension, params};

use super::{Engine, Operations, TOMBSTONE, live, versioned};

pub(crate) struct Sqlite(Connection);

impl Sqlite {
    pub(crate) fn open(dir: &Path, cache_bytes: usize) -> Result<Sqlite> {
        let connection = Connection::open(dir.join("sqlite"))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "cache_size", -(cache_bytes as i64 / 1024))?;
        connection.execute_batch(
            "create table if not exists history (key blob primary key, value blob not null) without rowid",
        )?;
        connection.set_prepared_statement_cache_capacity(8);
        Ok(Sqlite(connection))
    }
}

struct Open<'a>(&'a Connection);

impl Operations for Open<'_> {
    fn put(&mut self, key: u64, lsn: u64, value: &[u8]) -> Result<()> {
        let mut statement = self.0.prepare_cached("insert or replace into history values (?1, ?2)")?;
        statement.execute(params![&versioned(key, lsn)[..], value])?;
        Ok(())
    }

    fn delete(&mut self, key: u64, lsn: u64) -> Result<()> {
        self.put(key, lsn, TOMBSTONE)
    }

    fn get(&mut self, key: u64) -> Result<Option<usize>> {
        let mut statement = self
            .0
            .prepare_cached("select value from history where key >= ?1 and key <= ?2 order by key limit 1")?;
        let bounds = params![&versioned(key, u64::MAX)[..], &versioned(key, 0)[..]];
        let found = statement.query_row(bounds, |row| Ok(live(row.get_ref(0)?.as_blob()?))).optional()?;
        Ok(found.flatten())
    }

    fn forget(&mut self, key: u64, lsn: u64) -> Result<()> {
        let mut statement = self.0.prepare_cached("delete from history where key >= ?1 and key <= ?2")?;
        statement.execute(params![&versioned(key, lsn.saturating_sub(1))[..], &versioned(key, 0)[..]])?;
        Ok(())
    }
}

impl Engine for Sqlite {
    fn batch(
        &mut self,
        _lsn: u64,
        _horizon: u64,
        work: &mut dyn FnMut(&mut dyn Operations) -> Result<()>,
    ) -> Result<()> {
        self.0.execute_batch("begin immediate")?;
        work(&mut Open(&self.0))?;
        Ok(self.0.execute_batch("commit")?)
    }
}
