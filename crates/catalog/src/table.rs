//! The rows of one file of a catalog, with who inserted and who deleted them.
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
//! Who looks is a transaction, and sees what is there and what it inserted itself, without what it deleted itself. Old
//! versions are not kept: a record is judged when it is read, so nobody ever looks back.
//!
//! At one place there is one row. The server gives a place away again only when the row that was there is dead; if we
//! did not know that it was (a crash writes no abort), the new row says so.

use base::Xid;
use rustc_hash::FxHashMap;
use wal::Fields;

use crate::field::{Field, field_struct};
use crate::pages::Tid;
use crate::rows::{Is, KEYS, Kind, Row};

/// A transaction that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// It, or a subtransaction of it.
    pub(crate) xid: Xid,
    pub(crate) top: Xid,
}

field_struct!(Stamp { xid, top });

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) row: Row,
    /// `None` when it committed.
    pub(crate) inserter: Option<Stamp>,
    pub(crate) deleter: Option<Stamp>,
}

impl Version {
    /// Whether a transaction that has not ended inserted it and deleted it again.
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
pub(crate) struct Table {
    kind: Kind,
    versions: FxHashMap<Tid, Version>,
    keys: [FxHashMap<u32, Vec<Tid>>; KEYS],
}

impl Table {
    pub(crate) fn new(kind: Kind) -> Table {
        Table { kind, versions: FxHashMap::default(), keys: Default::default() }
    }

    /// There is a new row. What was at its place is dead.
    pub(crate) fn insert(&mut self, tid: Tid, row: Row, inserter: Option<Stamp>) {
        self.remove(tid);
        for (keys, key) in self.keys.iter_mut().zip(row.keys()) {
            if key != 0 {
                keys.entry(key).or_default().push(tid);
            }
        }
        self.versions.insert(tid, Version { row, inserter, deleter: None });
    }

    /// Somebody deletes the row; false if there is none.
    pub(crate) fn delete(&mut self, tid: Tid, deleter: Stamp) -> bool {
        let version = self.versions.get_mut(&tid);
        version.map(|version| version.deleter = Some(deleter)).is_some()
    }

    pub(crate) fn get_mut(&mut self, tid: Tid) -> Option<&mut Version> {
        self.versions.get_mut(&tid)
    }

    pub(crate) fn remove(&mut self, tid: Tid) -> Option<Row> {
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

    /// As [`Table::all`], whatever they are.
    pub(crate) fn rows(&self, viewer: Xid) -> impl Iterator<Item = (Tid, &Row)> {
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

    pub(crate) fn read(kind: Kind, fields: &mut Fields<'_>) -> Option<Table> {
        let mut table = Table::new(kind);
        for _ in 0..fields.u32()? {
            let (tid, inserter, deleter) = Field::read(fields)?;
            table.insert(tid, kind.read_row(fields)?, inserter);
            table.get_mut(tid)?.deleter = deleter;
        }
        Some(table)
    }
}
