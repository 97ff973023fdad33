//! Who wants a record: asked before a byte of its tuple is looked at, let alone copied.
//!
//! The cache maps the files that a record names to the relation and the actions that somebody wants of it: the
//! founding message's `LocatorFilterCache`. One look-up settles a record; three maps (files to relation, relation to
//! publications, publications to actions) and a catalog snapshot are asked only when an entry is missing.
//!
//! An entry holds for the point in WAL at which it was made (rule W1). Whoever follows the catalogs drops it before
//! the first record for which it may be wrong, with [`LocatorFilterCache::forget`] and its relatives: ALTER
//! PUBLICATION, rewrites, attach and detach, SET SCHEMA. What a transaction changed for itself only is not for this
//! cache: it is shared by all transactions, so its caller asks the catalog instead while one of them has uncommitted
//! changes to what decides.
//!
//! One cache serves one set of publications. A pass for several sets keeps one of the union, whose answer "nobody" is
//! the one that saves work, and asks theirs for what is left.
//!
//! Dropping a record loses one thing: the first record of a subtransaction names its top-level transaction. So ask
//! [`Record::top_level_xid`] of dropped ones too; it costs a look at one byte.

use std::ops::BitOr;

use base::{Oid, RelFileLocator};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::record::Record;
use crate::rmgr::Rmgr;

/// What may be wanted of a relation.
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
    /// TRUNCATE. Its record names relations and no files: kept with the entry for whoever resolves it.
    pub const TRUNCATE: Actions = Actions(8);
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

/// Why a relation's records are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// For these actions on its rows. A TOAST relation is wanted as its table is: its inserts, when the table's inserts
    /// or updates are.
    Rows(Actions),
    /// A catalog that is followed: every record counts, in-place updates among them.
    Catalog,
}

/// What becomes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is no change to a row: not the filter's business.
    Other,
    /// A change that somebody wants, to this relation.
    Wanted(Oid),
    /// A change that nobody wants. It was counted.
    Dropped,
    /// A change to files nobody told us about: ask the catalog, [`LocatorFilterCache::insert`] the answer, ask again.
    Unknown(RelFileLocator),
}

/// How much was dropped.
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
    /// Here, where the look-up leads anyway; moved to the relation's sum when the entry goes.
    dropped: Dropped,
}

/// An entry that somebody wanted something of.
#[derive(Debug, Clone, Copy)]
struct Recent {
    locator: RelFileLocator,
    wanted: Actions,
    relation: Oid,
}

/// Files to what is wanted of the relation they hold.
#[derive(Debug, Default)]
pub struct LocatorFilterCache {
    /// Databases whose relations may be wanted; every other one's are not.
    databases: FxHashSet<Oid>,
    entries: FxHashMap<RelFileLocator, Entry>,
    /// The last entry that somebody wanted something of: rows of a table come one after the other.
    recent: Option<Recent>,
    /// By database and relation, of entries that are gone.
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

/// Of which actions a record that changes a row is part; `None` when it changes none.
#[inline]
fn actions(record: &Record<'_>) -> Option<Actions> {
    let actions = match (record.rmgr(), record.info() & op::MASK) {
        // A confirmed speculative insertion is an insertion.
        (Rmgr::Heap, op::INSERT | op::CONFIRM) | (Rmgr::Heap2, op::MULTI_INSERT) => Actions::INSERT,
        (Rmgr::Heap, op::UPDATE | op::HOT_UPDATE) => Actions::UPDATE,
        // A speculative insertion that is taken back is a deletion in WAL: whoever sees the one sees the other.
        (Rmgr::Heap, op::DELETE) => Actions::DELETE | Actions::INSERT,
        // Of catalogs only.
        (Rmgr::Heap, op::INPLACE) => Actions::NONE,
        _ => return None,
    };
    Some(actions)
}

impl LocatorFilterCache {
    /// A cache that looks at `databases` only, beside what all databases share.
    #[must_use]
    pub fn new(databases: impl IntoIterator<Item = Oid>) -> LocatorFilterCache {
        LocatorFilterCache { databases: databases.into_iter().collect(), ..LocatorFilterCache::default() }
    }

    /// What becomes of `record`. Counts it, if it is dropped.
    #[must_use]
    pub fn judge(&mut self, record: &Record<'_>) -> Verdict {
        self.judge_of(record, record.first_locator())
    }

    /// The same for who has looked at [`Record::first_locator`] before.
    #[must_use]
    #[inline]
    pub fn judge_of(&mut self, record: &Record<'_>, locator: Option<RelFileLocator>) -> Verdict {
        let Some(actions) = actions(record) else { return Verdict::Other };
        // Without a locator it is broken, which whoever takes it apart will say.
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
                    // Every record counts, also one of no action at all, which always comes here.
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

    /// From here on these files hold `relation`, of which this is wanted.
    pub fn insert(&mut self, locator: RelFileLocator, relation: Oid, interest: Interest) {
        self.forget(locator);
        self.entries.insert(locator, Entry { relation, interest, dropped: Dropped::default() });
    }

    /// What is wanted of the relation in these files.
    #[must_use]
    pub fn get(&self, locator: RelFileLocator) -> Option<(Oid, Interest)> {
        self.entries.get(&locator).map(|entry| (entry.relation, entry.interest))
    }

    /// These files may hold something else, or something else may be wanted of it.
    pub fn forget(&mut self, locator: RelFileLocator) {
        self.recent = None;
        if let Some(entry) = self.entries.remove(&locator) {
            self.settle(locator, &entry);
        }
    }

    /// Something about a relation of a database changed, or about a publication of it. Shared relations are in
    /// database 0.
    pub fn forget_relation(&mut self, database: Oid, relation: Oid) {
        self.forget_if(|locator, entry| locator.database == database && entry.relation == relation);
    }

    /// Something changed that may concern every relation of a database: a publication of all tables, a schema's.
    pub fn forget_database(&mut self, database: Oid) {
        self.forget_if(|locator, _| locator.database == database);
    }

    /// Nothing holds any more.
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

    /// What was dropped of each relation, by database and relation, in their order.
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

    /// What was dropped because it is of a database that nobody looks at.
    #[must_use]
    pub fn dropped_elsewhere(&self) -> Dropped {
        self.elsewhere
    }
}
