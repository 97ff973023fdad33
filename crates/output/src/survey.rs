//! Finds the tables that were written between two places of the WAL, where the catalogs in between
//! are not known.
//!
//! ```text
//!   kept catalogs        applied       following ended      new look
//!        |------------------|----------------|-----------------|--> to
//!        |  read again: which files did transactions write?    |
//! ```
//! Decoding ends where catalogs cannot be followed any further, and goes on from a new look at
//! them. Transactions that the look saw do not come out after it. What they wrote is on the target
//! if they had committed before the position up to which changes are applied. The tables of all
//! others are named, to be copied again.
//!
//! | what happened to a table | how it is noticed |
//! | --- | --- |
//! | rows were written | their records name its files, which both catalogs know, or the new look alone |
//! | it was truncated, rewritten or made again | its files are not those of the kept catalogs |
//! | its partitions came or went | the partition was not there before, or is named like the others |
//!
//! This may name too many tables, but never too few. Reading begins where the catalogs were kept,
//! before the first record of each transaction that was open when following ended. The look does
//! not see transactions that are open at the end either. It waits for all that ran before it, so
//! these transactions come out whole.
//!
//! The contents of records do not matter, so it does not matter how much was logged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{Lsn, Oid, RelFileLocator, Xid};
use catalog::{Catalog, View};
use decode::{What, decode};
use rustc_hash::{FxHashMap, FxHashSet};
use wal::{Reader, Record, Rmgr, Start};

use crate::error::{Error, Result};
use crate::options::Options;
use crate::table::OutputTable;
use crate::tables::Tables;

/// A table as it is published, and why it cannot be decoded, if it cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// Schema and name.
    pub name: (String, String),
    /// Why its changes, or those of a partition, cannot come out.
    pub refused: Option<crate::RefusedTable>,
}

/// The published tables of a database, according to its catalogs. A partition that is sent as a
/// table above it counts as part of that table.
///
/// # Errors
/// The catalogs contradict themselves.
pub fn published(catalog: &Catalog, options: &Options) -> Result<Vec<PublishedTable>, Error> {
    let mut all: BTreeMap<(String, String), Option<crate::RefusedTable>> = BTreeMap::new();
    for table in described(catalog, options)? {
        let refused = table.refused().cloned();
        let known = all.entry(table.published_as.clone()).or_default();
        *known = known.take().or(refused);
    }
    Ok(all.into_iter().map(|(name, refused)| PublishedTable { name, refused }).collect())
}

fn described(catalog: &Catalog, options: &Options) -> Result<Vec<Arc<OutputTable>>> {
    Tables::new(Arc::new(options.clone())).all(catalog)
}

/// See the module.
pub struct Survey {
    reader: Reader,
    database: Oid,
    /// Everything that committed before this is on the target.
    applied: Lsn,
    /// Where reading ends.
    to: Lsn,
    /// The numbers of files that open transactions and subtransactions have written.
    open: FxHashMap<Xid, FxHashSet<u32>>,
    /// The numbers of files written by transactions that committed and may not be on the target.
    written: FxHashSet<u32>,
    is_over: bool,
}

impl Survey {
    /// Makes a survey that begins where `kept` was followed to. What committed before `applied` is
    /// on the target. `to` is a place behind the new look, and a record will come behind it.
    ///
    /// # Errors
    /// WAL cannot be read in segments of that size.
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

    /// Takes bytes of WAL. Returns true once everything up to the end was read.
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

    /// The published tables of `now`, by schema and name, that may have a change that is neither on
    /// the target nor comes out after the look `now`. `kept` must be the same as in
    /// [`Survey::new`].
    ///
    /// # Errors
    /// The catalogs contradict themselves.
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
        let is_affected = |table: &&Arc<OutputTable>| match after.get(&table.oid) {
            Some(file) => before.get(&table.oid) != Some(file) || self.written.contains(file),
            // The table is partitioned and has no rows of its own.
            None => false,
        };
        let tables = described(now, options)?;
        Ok(tables.iter().filter(is_affected).map(|table| table.published_as.clone()).collect())
    }
}

/// Notes the end of a transaction: it is now known whether its writes count.
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

/// Kinds of record: the one of `Heap` (`xl_info & XLOG_HEAP_OPMASK`) that changes no rows, and the
/// one of `Heap2` that does.
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
