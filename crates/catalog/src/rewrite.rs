//! Catalogs that get other files: VACUUM FULL and CLUSTER of a catalog, also inside a transaction
//! that goes on.
//!
//! ```text
//!  pg_class row with relrewrite    pages, as images      first row written        commit (pg_class), or
//!  = the catalog                   of the new file       into it, or pg_class     the relation map's record
//!        |                              |                names it                        |
//!        v                              v                     v                          v
//!   the file is known ---------> it is filled -------> the transaction's own ------> everybody's
//!        \______________________________|_____________________|
//!                          abort: the file is forgotten
//! ```
//!
//! Logically nothing changes: the same rows get other places. But records name a row by its place.
//! So the rows of the new file are read from its pages. A copied row names the transactions that
//! inserted and deleted it. Hint bits that settle the matter are believed. If one of the
//! transactions that we know to be open inserted or deletes the row, that becomes a stamp. The copy
//! may take a transaction for running that has aborted in WAL. For the copy is older than the time
//! at which we read it, and a transaction writes its abort record before it leaves the list of
//! running ones.
//! Without a hint bit, we could not tell such a transaction from one that committed. So aborted
//! transactions are remembered until no rewrite is under way and a list of running transactions
//! (`RUNNING_XACTS`) shows that they are over.
//!
//! The catalog is locked, so no other transaction writes it from the copy to the end of the
//! transaction. But other transactions may have written it before and still be open. So their end
//! is noted in both files.

use base::{Lsn, Oid, RelFileLocator};
use decode::MapEntry;

use crate::error::{Error, Result};
use crate::follow::At;
use crate::pages::{Copied, Pages};
use crate::rows::{CatalogRow, Class, Kind, Place};
use crate::table::{CatalogTable, Stamp};
use crate::transactions::{Entry, OwnFile};
use crate::{Catalog, File, GLOBAL_TABLESPACE, SHARED, Space};

/// Bits of `t_infomask`.
mod bits {
    pub(super) const XMIN_COMMITTED: u16 = 0x0100;
    pub(super) const XMAX_COMMITTED: u16 = 0x0400;
    pub(super) const XMAX_INVALID: u16 = 0x0800;
    pub(super) const XMAX_IS_MULTI: u16 = 0x1000;
    pub(super) const XMAX_LOCK_ONLY: u16 = 0x0080;
    pub(super) const XMAX_EXCLUSIVE: u16 = 0x0040;
    pub(super) const XMAX_SHARED: u16 = 0x0010;
}

fn is_only_locked(infomask: u16) -> bool {
    use bits::{XMAX_EXCLUSIVE, XMAX_IS_MULTI, XMAX_LOCK_ONLY, XMAX_SHARED};
    infomask & XMAX_LOCK_ONLY != 0
        || infomask & (XMAX_IS_MULTI | XMAX_EXCLUSIVE | XMAX_SHARED) == XMAX_EXCLUSIVE
}

/// The transactions that inserted and that deletes a row, while they are open.
type Stamps = (Option<Stamp>, Option<Stamp>);

impl Space {
    /// The files of a row of `pg_class` whose file number is `number`. A shared catalog's successor
    /// is not a shared relation, but its files are where shared ones are.
    fn locator(&self, database: Oid, row: &Class, number: u32) -> RelFileLocator {
        let (tablespace, database) = match row.tablespace {
            GLOBAL_TABLESPACE => (GLOBAL_TABLESPACE, SHARED),
            Oid(0) => (self.tablespace, database),
            tablespace => (tablespace, database),
        };
        RelFileLocator { tablespace, database, relfilenumber: number }
    }
}

impl Catalog {
    /// Notes that a transaction writes into a file. If it has filled the file itself, the file is
    /// its own from here on.
    pub(crate) fn enter(&mut self, at: &At) -> Result<()> {
        let file = &self.files[&at.locator];
        if file.table.is_some() {
            return Ok(());
        }
        let (database, kind) = (file.database, file.kind);
        self.load(at.lsn, at.locator)?;
        self.own(at, database, kind, at.locator);
        Ok(())
    }

    fn own(&mut self, at: &At, database: Oid, kind: Kind, locator: RelFileLocator) {
        let file = OwnFile { database, kind, locator, xid: at.stamp.xid };
        self.transactions.open(at.stamp.top).own_files.push(file);
    }

    /// Takes what a new row says about the files of catalogs.
    pub(crate) fn rewritten(&mut self, at: &At, row: &CatalogRow) -> Result<()> {
        self.check_database(at, row)?;
        let CatalogRow::Class(row) = row else { return Ok(()) };
        let database = self.files[&at.locator].database;
        let Some(space) = self.spaces.get(&database) else { return Ok(()) };
        let of = |oid: Oid| {
            let kind = Kind::of_oid(oid)?;
            let database = if kind.place() == Place::Shared { SHARED } else { database };
            self.spaces.get(&database)?.current.contains_key(&kind).then_some((database, kind))
        };
        if let Some((owner, kind)) = of(row.rewrite) {
            // A mapped catalog's successor is mapped too, and its file has the number of its OID.
            let number = if row.file == 0 { row.oid.0 } else { row.file };
            let locator = space.locator(database, row, number);
            // TOAST is not copied as pages but written row by row.
            let table = (kind == Kind::FilterChunk).then(|| CatalogTable::new(kind));
            let file = File { database: owner, kind, pages: Pages::default(), table, owner: Some(at.stamp) };
            self.files.entry(locator).or_insert(file);
        } else if let Some((owner, kind)) = of(row.oid).filter(|_| row.file != 0) {
            let locator = space.locator(database, row, row.file);
            if self.file_of(owner, kind, at.stamp.top) != Some(locator) {
                self.load(at.lsn, locator)?;
                self.own(at, owner, kind, locator);
            }
        }
        Ok(())
    }

    /// Takes the map of a database's mapped catalogs. It holds at once, even if the transaction
    /// aborts.
    pub(crate) fn map_relations(
        &mut self,
        lsn: Lsn,
        database: Oid,
        entries: impl Iterator<Item = MapEntry>,
    ) -> Result<()> {
        let Some(space) = self.spaces.get_mut(&database) else { return Ok(()) };
        space.map = entries.map(|entry| (entry.relation, entry.relfilenumber)).collect();
        let tablespace = space.tablespace;
        let locator = |kind: &Kind| {
            let relfilenumber = *space.map.get(&kind.oid())?;
            Some((*kind, RelFileLocator { tablespace, database, relfilenumber }))
        };
        let moved = |(kind, locator): &(Kind, RelFileLocator)| {
            space.current.get(kind).is_some_and(|current| current != locator)
        };
        let moved: Vec<_> = Kind::ALL.iter().filter_map(locator).filter(moved).collect();
        for (kind, locator) in moved {
            self.load(lsn, locator)?;
            self.make_current(database, kind, locator);
        }
        self.sweep_files(|_| false);
        Ok(())
    }

    /// Makes the files of a committed transaction the current ones for all.
    pub(crate) fn swap_files(&mut self, lsn: Lsn, own: &[OwnFile]) -> Result<()> {
        for file in own {
            self.load(lsn, file.locator)?;
            self.make_current(file.database, file.kind, file.locator);
        }
        Ok(())
    }

    fn make_current(&mut self, database: Oid, kind: Kind, locator: RelFileLocator) {
        if let Some(space) = self.spaces.get_mut(&database) {
            space.current.insert(kind, locator);
        }
        if let Some(file) = self.files.get_mut(&locator) {
            file.owner = None;
        }
    }

    /// Forgets files that no transaction reads: replaced files, and files whose makers are `gone`.
    pub(crate) fn sweep_files(&mut self, gone: impl Fn(Stamp) -> bool) {
        let is_swept = |file: &File| file.owner.is_none_or(&gone);
        let is_current =
            |spaces: &rustc_hash::FxHashMap<Oid, Space>, locator: &RelFileLocator, file: &File| {
                spaces.get(&file.database).and_then(|space| space.current.get(&file.kind)) == Some(locator)
            };
        let spaces = &self.spaces;
        self.files.retain(|locator, file| is_current(spaces, locator, file) || !is_swept(file));
    }

    /// Whether a transaction that has not ended has made other files for a catalog.
    pub(crate) fn is_rewriting(&self) -> bool {
        self.files.values().any(|file| file.owner.is_some())
    }

    /// Reads the rows of a file that a rewrite has filled, unless that was done.
    fn load(&mut self, lsn: Lsn, locator: RelFileLocator) -> Result<()> {
        let unseen =
            || Error::broken(lsn, format!("it names files {locator} of a catalog that were never seen"));
        let file = self.files.get(&locator).ok_or_else(unseen)?;
        if file.table.is_some() {
            return Ok(());
        }
        let shape = self.shapes.get(&file.kind).ok_or_else(unseen)?;
        let mut table = CatalogTable::new(file.kind);
        let mut waiting = Vec::new();
        for copied in file.pages.copied() {
            let unfit = |what: &str| Error::broken(lsn, format!("a row of {} {what}", file.kind.name()));
            let Some((inserter, deleter)) = self.stamps(&copied).map_err(unfit)? else { continue };
            let row = shape.row(&copied.tuple).ok_or_else(|| unfit("cannot be read"))?;
            table.insert(copied.tid, row, inserter);
            if let Some(stamp) = inserter {
                waiting.push((stamp, Entry { locator, tid: copied.tid, deletes: false }));
            }
            if let Some(stamp) = deleter {
                table.delete(copied.tid, stamp);
                waiting.push((stamp, Entry { locator, tid: copied.tid, deletes: true }));
            }
        }
        for (stamp, entry) in waiting {
            self.transactions.log(stamp.xid, stamp.top, entry);
        }
        self.files.get_mut(&locator).expect("looked up before").table = Some(table);
        Ok(())
    }

    /// The transactions that inserted and that deletes a copied row. `None` if no transaction sees
    /// the row.
    fn stamps(&self, copied: &Copied<'_>) -> Result<Option<Stamps>, &'static str> {
        let infomask = copied.tuple.infomask;
        let open = |xid| {
            let top = self.transactions.top(xid);
            self.transactions.has_changes(xid).then_some(Stamp { xid, top })
        };
        let inserter = if infomask & bits::XMIN_COMMITTED != 0 { None } else { open(copied.xmin) };
        if inserter.is_none()
            && infomask & bits::XMIN_COMMITTED == 0
            && self.transactions.has_aborted(copied.xmin)
        {
            return Ok(None);
        }
        if infomask & bits::XMAX_INVALID != 0 || !copied.xmax.is_valid() || is_only_locked(infomask) {
            return Ok(Some((inserter, None)));
        }
        if infomask & bits::XMAX_COMMITTED != 0 {
            return Ok(None);
        }
        if infomask & bits::XMAX_IS_MULTI != 0 {
            return Err("was changed and locked at once when it was copied");
        }
        match open(copied.xmax) {
            Some(deleter) => Ok(Some((inserter, Some(deleter)))),
            None if self.transactions.has_aborted(copied.xmax) => Ok(Some((inserter, None))),
            None => Ok(None),
        }
    }
}
