//! Decides whether a record is wanted, before a byte of its tuple is looked at, let alone copied.
//!
//! The cache maps the files that a record names to the relation and its wanted actions: the
//! founding message's `LocatorFilterCache`. One look-up settles a record. Three maps (files to
//! relation, relation to publications, publications to actions) and a catalog snapshot are needed
//! only when an entry is missing.
//!
//! An entry holds for the point in WAL at which it was made (rule W1). The code that follows the
//! catalogs drops it before the first record for which it may be wrong, with
//! [`LocatorFilterCache::forget`] and its relatives. The reasons are ALTER PUBLICATION, rewrites,
//! attach and detach, and SET SCHEMA. The cache is shared by all transactions, so it does not have
//! what a transaction changed only for itself. While a transaction has uncommitted changes that
//! decide, its caller asks the catalog instead.
//!
//! One cache serves one set of publications. A pass for several sets keeps one cache for their
//! union. That cache saves work when no set wants a record; each set decides about the remaining
//! records by itself.
//!
//! Dropping a record loses one thing: the first record of a subtransaction names its top-level
//! transaction. So call [`Record::top_level_xid`] for dropped records too; it costs a look at one
//! byte.

use std::ops::BitOr;

use base::{Oid, RelFileLocator};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::record::Record;
use crate::rmgr::Rmgr;

/// The actions on a relation that may be wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Actions(u8);

impl Actions {
    /// Nothing.
    pub const NONE: Actions = Actions(0);
    /// New rows.
    pub const INSERT: Actions = Actions(1);
    /// Changed rows.
    pub const UPDATE: Actions = Actions(2);
    /// Deleted rows.
    pub const DELETE: Actions = Actions(4);
    /// TRUNCATE. Its record names relations and no files. The entry keeps it for the code that
    /// resolves the relations.
    pub const TRUNCATE: Actions = Actions(8);
    /// Changed rows whose new version is not on the page of the old one, or has entries in indexes.
    /// A change of an indexed column is among them.
    pub const NOT_HOT: Actions = Actions(16);
    /// Everything that a publication can publish.
    pub const ALL: Actions = Actions(15);

    /// Whether one of `others` is among these.
    #[must_use]
    pub const fn any_of(self, others: Actions) -> bool {
        self.0 & others.0 != 0
    }
}

impl BitOr for Actions {
    type Output = Actions;

    fn bitor(self, other: Actions) -> Actions {
        Actions(self.0 | other.0)
    }
}

/// Why a relation's records are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// For these actions on its rows. A TOAST relation is wanted with its table: its inserts are,
    /// if the table's inserts or updates are.
    Rows(Actions),
    /// It is a followed catalog: every record counts, including in-place updates.
    Catalog,
}

/// What happens with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is no change of a row, so the filter does not decide.
    Other,
    /// A wanted change of this relation.
    Wanted(Oid),
    /// An unwanted change. It was counted.
    Dropped,
    /// A change of unknown files. Ask the catalog, [`LocatorFilterCache::insert`] the answer, and
    /// judge again.
    Unknown(RelFileLocator),
}

/// Counts of what was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// Records.
    pub records: u64,
    /// Their bytes in WAL.
    pub bytes: u64,
}

impl Dropped {
    fn count(&mut self, record: &Record<'_>) {
        self.records += 1;
        self.bytes += record.bytes().len() as u64;
    }

    fn add(&mut self, other: Dropped) {
        self.records += other.records;
        self.bytes += other.bytes;
    }
}

#[derive(Debug)]
struct Entry {
    relation: Oid,
    interest: Interest,
    /// The look-up leads here anyway. When the entry goes, this is added to the relation's sum.
    dropped: Dropped,
}

/// An entry with a wanted action.
#[derive(Debug, Clone, Copy)]
struct Recent {
    locator: RelFileLocator,
    wanted: Actions,
    relation: Oid,
}

/// Maps files to the wanted actions of their relation.
#[derive(Debug, Default)]
pub struct LocatorFilterCache {
    /// The databases whose relations may be wanted.
    databases: FxHashSet<Oid>,
    entries: FxHashMap<RelFileLocator, Entry>,
    /// The last entry with a wanted action: rows of a table come one after the other.
    recent: Option<Recent>,
    /// By database and relation, for entries that are gone.
    dropped: FxHashMap<(Oid, Oid), Dropped>,
    elsewhere: Dropped,
}

/// Kinds of record that change a row, `xl_info & XLOG_HEAP_OPMASK`.
mod op {
    pub(super) const MASK: u8 = 0x70;
    pub(super) const INSERT: u8 = 0x00;
    pub(super) const DELETE: u8 = 0x10;
    pub(super) const UPDATE: u8 = 0x20;
    pub(super) const HOT_UPDATE: u8 = 0x40;
    pub(super) const CONFIRM: u8 = 0x50;
    pub(super) const INPLACE: u8 = 0x70;
    /// Of `Heap2`.
    pub(super) const MULTI_INSERT: u8 = 0x50;
}

/// The actions that a record belongs to; `None` if it changes no row.
#[inline]
fn actions(record: &Record<'_>) -> Option<Actions> {
    let actions = match (record.rmgr(), record.info() & op::MASK) {
        // A confirmed speculative insertion is an insertion.
        (Rmgr::Heap, op::INSERT | op::CONFIRM) | (Rmgr::Heap2, op::MULTI_INSERT) => Actions::INSERT,
        (Rmgr::Heap, op::UPDATE) => Actions::UPDATE | Actions::NOT_HOT,
        (Rmgr::Heap, op::HOT_UPDATE) => Actions::UPDATE,
        // In WAL, a speculative insertion is taken back by a deletion. If inserts are wanted, both
        // are.
        (Rmgr::Heap, op::DELETE) => Actions::DELETE | Actions::INSERT,
        // Only catalogs have these.
        (Rmgr::Heap, op::INPLACE) => Actions::NONE,
        _ => return None,
    };
    Some(actions)
}

impl LocatorFilterCache {
    /// Makes a cache for `databases` and for what all databases share.
    #[must_use]
    pub fn new(databases: impl IntoIterator<Item = Oid>) -> LocatorFilterCache {
        LocatorFilterCache { databases: databases.into_iter().collect(), ..LocatorFilterCache::default() }
    }

    /// Decides about `record`. Counts it if it is dropped.
    #[must_use]
    pub fn judge(&mut self, record: &Record<'_>) -> Verdict {
        self.judge_of(record, record.first_locator())
    }

    /// Like [`LocatorFilterCache::judge`], for a caller that has read [`Record::first_locator`]
    /// already.
    #[must_use]
    #[inline]
    pub fn judge_of(&mut self, record: &Record<'_>, locator: Option<RelFileLocator>) -> Verdict {
        let Some(actions) = actions(record) else { return Verdict::Other };
        // A record without a locator is broken. The code that parses it will report that.
        let Some(locator) = locator else { return Verdict::Other };
        match &self.recent {
            Some(recent) if recent.locator == locator && recent.wanted.any_of(actions) => {
                Verdict::Wanted(recent.relation)
            }
            _ => self.look_up(record, locator, actions),
        }
    }

    fn look_up(&mut self, record: &Record<'_>, locator: RelFileLocator, actions: Actions) -> Verdict {
        match self.entries.get_mut(&locator) {
            Some(entry) => {
                let wanted = match entry.interest {
                    // Every record counts, even one without an action. Such a record always comes
                    // here.
                    Interest::Catalog => None,
                    Interest::Rows(wanted) => Some(wanted),
                };
                if wanted.is_none_or(|wanted| wanted.any_of(actions)) {
                    let wanted = wanted.unwrap_or(Actions::ALL);
                    self.recent = Some(Recent { locator, wanted, relation: entry.relation });
                    return Verdict::Wanted(entry.relation);
                }
                entry.dropped.count(record);
                Verdict::Dropped
            }
            None if locator.database == Oid(0) || self.databases.contains(&locator.database) => {
                Verdict::Unknown(locator)
            }
            None => {
                self.elsewhere.count(record);
                Verdict::Dropped
            }
        }
    }

    /// Notes that these files hold `relation`, with these wanted actions.
    pub fn insert(&mut self, locator: RelFileLocator, relation: Oid, interest: Interest) {
        self.forget(locator);
        self.entries.insert(locator, Entry { relation, interest, dropped: Dropped::default() });
    }

    /// The relation in these files, and its wanted actions.
    #[must_use]
    pub fn get(&self, locator: RelFileLocator) -> Option<(Oid, Interest)> {
        self.entries.get(&locator).map(|entry| (entry.relation, entry.interest))
    }

    /// Drops the entry of these files: they may hold another relation, or other actions may be
    /// wanted.
    pub fn forget(&mut self, locator: RelFileLocator) {
        self.recent = None;
        if let Some(entry) = self.entries.remove(&locator) {
            self.settle(locator, &entry);
        }
    }

    /// Drops the entries of a relation that changed, or whose publications changed. Shared
    /// relations are in database 0.
    pub fn forget_relation(&mut self, database: Oid, relation: Oid) {
        self.forget_if(|locator, entry| locator.database == database && entry.relation == relation);
    }

    /// Drops the entries of a database after a change that may concern all of its relations: of a
    /// publication for all tables, or for a schema.
    pub fn forget_database(&mut self, database: Oid) {
        self.forget_if(|locator, _| locator.database == database);
    }

    /// Drops all entries.
    pub fn forget_all(&mut self) {
        self.forget_if(|_, _| true);
    }

    fn forget_if(&mut self, goes: impl Fn(&RelFileLocator, &Entry) -> bool) {
        self.recent = None;
        let gone: Vec<_> = self.entries.extract_if(|locator, entry| goes(locator, entry)).collect();
        for (locator, entry) in gone {
            self.settle(locator, &entry);
        }
    }

    fn settle(&mut self, locator: RelFileLocator, entry: &Entry) {
        if entry.dropped.records > 0 {
            self.dropped.entry((locator.database, entry.relation)).or_default().add(entry.dropped);
        }
    }

    /// What was dropped for each relation, in the order of databases and relations.
    #[must_use]
    pub fn dropped(&self) -> Vec<((Oid, Oid), Dropped)> {
        let mut sums = self.dropped.clone();
        for (locator, entry) in self.entries.iter().filter(|(_, entry)| entry.dropped.records > 0) {
            sums.entry((locator.database, entry.relation)).or_default().add(entry.dropped);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_unstable_by_key(|(relation, _)| *relation);
        sums
    }

    /// What was dropped because its database is not among the wanted ones.
    #[must_use]
    pub fn dropped_elsewhere(&self) -> Dropped {
        self.elsewhere
    }
}
