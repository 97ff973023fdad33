//! What relations, types and publications were at a place in the WAL, without asking the server
//! again.
//!
//! [`Catalog::look`] reads the catalogs once, with an ordinary role's rights. [`Catalog::follow`]
//! is then handed every record from [`Catalog::start`] on, and changes its copy as the server
//! changes the catalogs. [`Catalog::view`] answers for one transaction, at the place that was
//! reached: which relation has these files, what its columns, types and replica identity are, and
//! whether and how publications publish it. A transaction sees its own changes. Other transactions
//! see them once it has committed (rule W1).
//!
//! Promises: an answer is that of the server's own decoding at this record, or there is an
//! [`Error`]. This crate does not guess: a record that does not fit to what is known stops the
//! following, and so do files that no relation has. Damaged bytes never panic.
//!
//! Does not belong here: rows of tables, and which transaction a change ends up in. README.md says
//! why following is right, and what a crash leaves.

mod bootstrap;
mod cell;
mod changes;
mod compare;
mod error;
mod field;
mod file;
mod follow;
mod missing;
mod pages;
mod publication;
mod relation;
mod rewrite;
mod rows;
mod table;
mod transactions;
mod typing;
mod view;

pub use bootstrap::{Look, wait_for_running};
pub use changes::Changes;
pub use error::{Error, Lost};
pub use file::replace_file;
pub use follow::Followed;
pub use missing::Missing;
pub use publication::{Filters, Published};
pub use relation::{Column, Identity, Relation};
pub use view::{Files, View};

use base::{Lsn, Oid, PgSnapshot, RelFileLocator, Xid};
use rustc_hash::FxHashMap;

use crate::pages::Pages;
use crate::rows::{Kind, Shape};
use crate::table::{CatalogTable, Stamp};
use crate::transactions::Transactions;

/// Stands for the database of shared catalogs.
pub(crate) const SHARED: Oid = Oid(0);
/// `pg_global`.
pub(crate) const GLOBAL_TABLESPACE: Oid = Oid(1664);

/// The catalogs of some databases of a server, at a place in its WAL.
#[derive(Debug, Clone)]
pub struct Catalog {
    pub(crate) server: Server,
    /// The redo position of a checkpoint before the look.
    pub(crate) start: Lsn,
    /// Where WAL ended when the look began.
    pub(crate) looked: Lsn,
    /// The last record that was followed; invalid before the first.
    pub(crate) last: Lsn,
    /// By database. The shared catalogs have a space of their own.
    pub(crate) spaces: FxHashMap<Oid, Space>,
    pub(crate) files: FxHashMap<RelFileLocator, File>,
    pub(crate) shapes: FxHashMap<Kind, Shape>,
    pub(crate) transactions: Transactions,
}

/// The server that the catalogs are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// The cluster's id, the same on its standbys.
    pub system_id: u64,
    /// 15 for 15.18.
    pub major: u32,
    /// The timeline at the time of the look.
    pub timeline: u32,
}

/// A database, or what all databases share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) name: String,
    /// The tablespace of files that name no other.
    pub(crate) tablespace: Oid,
    pub(crate) collation_is_c: bool,
    /// What the look has seen; `None` when no transaction is left that it may have seen.
    pub(crate) snapshot: Option<PgSnapshot>,
    /// Catalogs whose files are not in `pg_class` but in the relation map.
    pub(crate) map: FxHashMap<Oid, u32>,
    /// The files of the followed catalogs. A transaction that rewrites a catalog has another file
    /// for it.
    pub(crate) current: FxHashMap<Kind, RelFileLocator>,
}

/// A file of a followed catalog, or one that is about to become that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) database: Oid,
    pub(crate) kind: Kind,
    pub(crate) pages: Pages,
    /// `None` while a rewrite fills it.
    pub(crate) table: Option<CatalogTable>,
    /// The transaction that made it, while no other transaction uses it.
    pub(crate) owner: Option<Stamp>,
}

impl Catalog {
    /// Where following has to begin. WAL from here on is needed.
    #[must_use]
    pub fn start(&self) -> Lsn {
        self.start
    }

    /// Where WAL ended when the look began. No record before it is new. Answers hold from where
    /// this was followed to, for transactions that the look has not seen ([`Catalog::is_before`]).
    #[must_use]
    pub fn looked(&self) -> Lsn {
        self.looked
    }

    /// The last record that was followed; invalid before the first.
    #[must_use]
    pub fn last(&self) -> Lsn {
        self.last
    }

    /// Where the last record begins that was followed, or where following begins. WAL from here on
    /// is needed to go on.
    #[must_use]
    pub fn needs_from(&self) -> Lsn {
        if self.last.is_valid() { self.last } else { self.start }
    }

    /// The server that these catalogs are of.
    #[must_use]
    pub fn server(&self) -> Server {
        self.server
    }

    /// The followed databases with their names, in the order of their OIDs.
    #[must_use]
    pub fn databases(&self) -> Vec<(Oid, &str)> {
        let followed = self.spaces.iter().filter(|(oid, _)| **oid != SHARED);
        let mut databases: Vec<_> = followed.map(|(oid, space)| (*oid, space.name.as_str())).collect();
        databases.sort_unstable();
        databases
    }

    /// Whether the look saw this transaction (or the one that it is part of). It ended before, and
    /// what it wrote in this database belongs to no change after the look.
    #[must_use]
    pub fn is_before(&self, database: Oid, xid: Xid) -> bool {
        let snapshot = self.spaces.get(&database).and_then(|space| space.snapshot.as_ref());
        snapshot.is_some_and(|snapshot| snapshot.sees(self.transactions.top(xid)))
    }

    /// Whether all transactions that the look saw are over.
    #[must_use]
    pub fn is_past_look(&self) -> bool {
        self.spaces.values().all(|space| space.snapshot.is_none())
    }

    /// What `xid` (or the transaction that it is part of) sees of a database at the last record
    /// that was followed. [`Xid::INVALID`] sees what has committed. `None` for a database that is
    /// not followed.
    #[must_use]
    pub fn view(&self, database: Oid, xid: Xid) -> Option<View<'_>> {
        let space = self.spaces.get(&database).filter(|_| database != SHARED)?;
        Some(View::new(self, database, space, self.transactions.top(xid)))
    }

    /// The name of a replication origin at the last record that was followed.
    #[must_use]
    pub fn origin_name(&self, origin: u16) -> Option<&str> {
        let table = self.table(SHARED, Kind::Origin, Xid::INVALID)?;
        table.find::<rows::Origin>(0, origin.into(), Xid::INVALID).find_map(|row| match &row.name {
            cell::Text::Here(name) => Some(name.as_str()),
            cell::Text::There(_) => None,
        })
    }

    /// The rows of a catalog as a transaction sees them.
    pub(crate) fn table(&self, database: Oid, kind: Kind, viewer: Xid) -> Option<&CatalogTable> {
        let locator = self.file_of(database, kind, viewer)?;
        self.files.get(&locator)?.table.as_ref()
    }

    /// The file of a catalog that a transaction reads and writes.
    pub(crate) fn file_of(&self, database: Oid, kind: Kind, viewer: Xid) -> Option<RelFileLocator> {
        let own = self.transactions.own_file(viewer, database, kind);
        own.or_else(|| self.spaces.get(&database)?.current.get(&kind).copied())
    }
}
