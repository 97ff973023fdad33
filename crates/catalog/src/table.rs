//! The rows of one file of a catalog, with the open transactions that inserted and delete them.
//!
//! ```text
//!            insert                commit of the inserter
//! (nothing) --------> inserted ----------------------------> there
//!                        |                                   |   ^
//!                        | abort of the inserter      delete |   | abort of the deleter
//!                        v                                   v   |
//!                     (nothing) <----------------------- being deleted
//!                                 commit of the deleter
//! ```
//!
//! The viewer is a transaction. It sees rows that are there and rows that it inserted itself,
//! without rows that it deleted itself. Old versions are not kept: a record is judged when it is
//! read, so an earlier state is never needed.
//!
//! A place has one row. The server gives a place away again only when its row is dead. If we did
//! not know that it was (a crash writes no abort), the new row shows it.

use base::Xid;
use rustc_hash::FxHashMap;
use wal::Fields;

use crate::field::{Field, field_struct};
use crate::pages::Tid;
use crate::rows::{CatalogRow, Is, KEYS, Kind};

/// A transaction that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The transaction itself, or a subtransaction of it.
    pub(crate) xid: Xid,
    pub(crate) top: Xid,
}

field_struct!(Stamp { xid, top });

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) row: CatalogRow,
    /// `None` when it has committed.
    pub(crate) inserter: Option<Stamp>,
    pub(crate) deleter: Option<Stamp>,
}

impl Version {
    /// Whether one open transaction inserted the row and deleted it again.
    pub(crate) fn is_only_its_makers(&self) -> bool {
        let top = |stamp: Stamp| stamp.top;
        self.inserter.is_some() && self.inserter.map(top) == self.deleter.map(top)
    }

    fn is_visible(&self, to: Xid) -> bool {
        self.inserter.is_none_or(|stamp| stamp.top == to) && self.deleter.is_none_or(|stamp| stamp.top != to)
    }
}

/// The rows of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CatalogTable {
    kind: Kind,
    versions: FxHashMap<Tid, Version>,
    keys: [FxHashMap<u32, Vec<Tid>>; KEYS],
}

impl CatalogTable {
    pub(crate) fn new(kind: Kind) -> CatalogTable {
        CatalogTable { kind, versions: FxHashMap::default(), keys: Default::default() }
    }

    /// Adds a new row. The row that was in its place is dead.
    pub(crate) fn insert(&mut self, tid: Tid, row: CatalogRow, inserter: Option<Stamp>) {
        self.remove(tid);
        for (keys, key) in self.keys.iter_mut().zip(row.keys()) {
            if key != 0 {
                keys.entry(key).or_default().push(tid);
            }
        }
        self.versions.insert(tid, Version { row, inserter, deleter: None });
    }

    /// Notes that a transaction deletes the row. False if there is none.
    pub(crate) fn delete(&mut self, tid: Tid, deleter: Stamp) -> bool {
        let version = self.versions.get_mut(&tid);
        version.map(|version| version.deleter = Some(deleter)).is_some()
    }

    pub(crate) fn get_mut(&mut self, tid: Tid) -> Option<&mut Version> {
        self.versions.get_mut(&tid)
    }

    pub(crate) fn remove(&mut self, tid: Tid) -> Option<CatalogRow> {
        let version = self.versions.remove(&tid)?;
        for (keys, key) in self.keys.iter_mut().zip(version.row.keys()) {
            if let Some(tids) = keys.get_mut(&key) {
                tids.retain(|other| *other != tid);
                if tids.is_empty() {
                    keys.remove(&key);
                }
            }
        }
        Some(version.row)
    }

    /// The rows with this key that `viewer` sees.
    pub(crate) fn find<R: Is + 'static>(&self, by: usize, key: u32, viewer: Xid) -> impl Iterator<Item = &R> {
        let tids = self.keys[by].get(&key).map_or(&[][..], Vec::as_slice);
        let versions = tids.iter().filter_map(|tid| self.versions.get(tid));
        versions.filter(move |version| version.is_visible(viewer)).filter_map(|version| R::of(&version.row))
    }

    /// All rows that `viewer` sees, with their places.
    pub(crate) fn all<R: Is + 'static>(&self, viewer: Xid) -> impl Iterator<Item = (Tid, &R)> {
        let versions = self.versions.iter().filter(move |(_, version)| version.is_visible(viewer));
        versions.filter_map(|(tid, version)| Some((*tid, R::of(&version.row)?)))
    }

    /// Like [`CatalogTable::all`], for rows of any kind.
    pub(crate) fn rows(&self, viewer: Xid) -> impl Iterator<Item = (Tid, &CatalogRow)> {
        let versions = self.versions.iter().filter(move |(_, version)| version.is_visible(viewer));
        versions.map(|(tid, version)| (*tid, &version.row))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut tids: Vec<_> = self.versions.keys().copied().collect();
        tids.sort_unstable();
        (tids.len() as u32).write(out);
        for tid in tids {
            let Version { row, inserter, deleter } = &self.versions[&tid];
            (tid, *inserter, *deleter).write(out);
            row.write(out);
        }
    }

    pub(crate) fn read(kind: Kind, fields: &mut Fields<'_>) -> Option<CatalogTable> {
        let mut table = CatalogTable::new(kind);
        for _ in 0..fields.u32()? {
            let (tid, inserter, deleter) = Field::read(fields)?;
            table.insert(tid, kind.read_row(fields)?, inserter);
            table.get_mut(tid)?.deleter = deleter;
        }
        Some(table)
    }
}
