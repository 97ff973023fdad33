//! What was written between two places of the WAL, where nobody knows the catalogs in between.
//!
//! ```text
//!   kept catalogs        applied       following ended      new look
//!        |------------------|----------------|-----------------|--> to
//!        |  read again: which files did transactions write?    |
//! ```
//! Decoding ends where catalogs cannot be followed any further, and goes on from a new look at them. Transactions that the
//! look saw do not come out behind it. What they wrote is on the target if they had committed before the place that is
//! applied; of all others the tables are named, to be copied again.
//!
//! | what happened to a table | how it is noticed |
//! | --- | --- |
//! | rows were written | their records name its files, which both catalogs know, or the new look alone |
//! | it was truncated, rewritten or made again | its files are not those of the kept catalogs |
//! | its partitions came or went | the partition was not there before, or is named as the others |
//!
//! Too many tables may be named, never too few: reading begins where the catalogs were kept, before the first record of each
//! transaction that was open when following ended. Transactions that are open at the end are not seen by the look either,
//! which waits for all that ran before it, and come out whole.
//!
//! No record's contents are looked at, so that it does not matter how much was logged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{Lsn, Oid, RelFileLocator, Xid};
use catalog::{Catalog, View};
use decode::{What, decode};
use rustc_hash::{FxHashMap, FxHashSet};
use wal::{Reader, Record, Rmgr, Start};

use crate::error::{Error, Result};
use crate::options::Options;
use crate::table::Table;
use crate::tables::Tables;

/// A table as it is published, and why it cannot be decoded, if it cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// Schema and name.
    pub name: (String, String),
    /// Why its changes, or a partition's, cannot come out.
    pub refused: Option<crate::Refused>,
}

/// What is published of a database as its catalogs are; partitions that are sent as a table above them are part of that one.
///
/// # Errors
/// When the catalogs contradict themselves.
pub fn published(catalog: &Catalog, options: &Options) -> Result<Vec<PublishedTable>, Error> {
    let mut all: BTreeMap<(String, String), Option<crate::Refused>> = BTreeMap::new();
    for table in described(catalog, options)? {
        let refused = table.refused().cloned();
        let known = all.entry(table.published_as.clone()).or_default();
        *known = known.take().or(refused);
    }
    Ok(all.into_iter().map(|(name, refused)| PublishedTable { name, refused }).collect())
}

fn described(catalog: &Catalog, options: &Options) -> Result<Vec<Arc<Table>>> {
    Tables::new(Arc::new(options.clone())).all(catalog)
}

/// See the module.
pub struct Survey {
    reader: Reader,
    database: Oid,
    /// What committed before is on the target.
    applied: Lsn,
    /// Read up to here.
    to: Lsn,
    /// The numbers of files that (sub)transactions have written which have not ended.
    open: FxHashMap<Xid, FxHashSet<u32>>,
    /// Those of transactions that committed and may not be on the target.
    written: FxHashSet<u32>,
    is_over: bool,
}

impl Survey {
    /// Begins where `kept` was followed to. What committed before `applied` is on the target; `to` is a place behind the new
    /// look behind which a record will come.
    ///
    /// # Errors
    /// When WAL cannot be read in segments of that size.
    pub fn new(
        kept: &Catalog,
        segment_size: u64,
        database: Oid,
        (applied, to): (Lsn, Lsn),
    ) -> Result<Survey, Error> {
        let last = kept.last();
        let start = Start {
            lsn: if last.is_valid() { last } else { kept.start() },
            segment_size,
            system_id: Some(kept.server().system_id),
            timeline: None,
        };
        Ok(Survey {
            reader: Reader::new(start)?,
            database,
            applied,
            to,
            open: FxHashMap::default(),
            written: FxHashSet::default(),
            is_over: false,
        })
    }

    /// Where the next bytes must begin.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.reader.position()
    }

    /// Takes bytes of WAL; true once everything up to the end was read.
    ///
    /// # Errors
    /// WAL is damaged.
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let Survey { reader, database, applied, to, open, written, is_over } = self;
        let mut records = reader.push(reader.position(), bytes)?;
        while !*is_over && let Some(record) = records.poll()? {
            if record.lsn() >= *to {
                *is_over = true;
                break;
            }
            match record.rmgr() {
                Rmgr::Transaction => ended(&record, *applied, open, written)?,
                _ => {
                    let files = written_by(&record).filter(|files| files.database == *database);
                    files.into_iter().for_each(|files| {
                        open.entry(record.xid()).or_default().insert(files.relfilenumber);
                    });
                }
            }
            *is_over = record.end() >= *to;
        }
        Ok(*is_over)
    }

    /// The published tables, as `now` has them, of which something may be neither on the target nor come out behind the look
    /// `now`: by schema and name. `kept` is what it was begun with.
    ///
    /// # Errors
    /// When the catalogs contradict themselves.
    pub fn affected(
        &self,
        kept: &Catalog,
        now: &Catalog,
        options: &Options,
    ) -> Result<BTreeSet<(String, String)>, Error> {
        let files = |catalog: &Catalog| -> FxHashMap<Oid, u32> {
            let view = catalog.view(options.database, Xid::INVALID);
            view.iter().flat_map(View::table_files).collect()
        };
        let (before, after) = (files(kept), files(now));
        let is_affected = |table: &&Arc<Table>| match after.get(&table.oid) {
            Some(file) => before.get(&table.oid) != Some(file) || self.written.contains(file),
            // It is partitioned and has no rows.
            None => false,
        };
        let tables = described(now, options)?;
        Ok(tables.iter().filter(is_affected).map(|table| table.published_as.clone()).collect())
    }
}

/// A transaction, or a part of one, has ended: whether what it wrote counts is known.
fn ended(
    record: &Record<'_>,
    applied: Lsn,
    open: &mut FxHashMap<Xid, FxHashSet<u32>>,
    written: &mut FxHashSet<u32>,
) -> Result<()> {
    let (ended, counts) = match decode(record)?.what {
        What::Commit(ended) => (ended, record.lsn() >= applied),
        What::Abort(ended) => (ended, false),
        _ => return Ok(()),
    };
    for xid in ended.subxacts.iter().chain([ended.xid]) {
        let files = open.remove(&xid).filter(|_| counts);
        written.extend(files.into_iter().flatten());
    }
    Ok(())
}

/// Kinds of record of `Heap`, `xl_info & XLOG_HEAP_OPMASK`, that leave rows as they are, and the one of `Heap2` that does not.
mod op {
    pub(super) const MASK: u8 = 0x70;
    pub(super) const LOCK: u8 = 0x60;
    /// Of `Heap2`.
    pub(super) const MULTI_INSERT: u8 = 0x50;
}

/// The files whose rows a record changes.
fn written_by(record: &Record<'_>) -> Option<RelFileLocator> {
    let op = record.info() & op::MASK;
    let changes = match record.rmgr() {
        Rmgr::Heap => op != op::LOCK,
        Rmgr::Heap2 => op == op::MULTI_INSERT,
        _ => false,
    };
    record.first_locator().filter(|_| changes)
}
