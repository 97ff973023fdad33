//! Transactions that have not ended, as far as catalogs need them: what they changed in catalogs,
//! their subtransactions, the catalogs that they rewrote, and the unknown files that they wrote.
//!
//! A transaction is not here at all if it changes only rows of tables and has no subtransactions.
//!
//! A transaction ends with its commit or abort record. A subtransaction ends with its own abort
//! record or with its top-level transaction. After a crash, a shutdown checkpoint (which ends
//! recovery) ends transactions, or a list of running transactions that are all younger. Prepared
//! transactions survive a crash.

use base::{Lsn, Oid, RelFileLocator, Xid};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::field::field_struct;
use crate::pages::Tid;
use crate::rows::Kind;

/// A change of a catalog that waits for the end of its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) locator: RelFileLocator,
    pub(crate) tid: Tid,
    pub(crate) deletes: bool,
}

field_struct!(Entry { locator, tid, deletes });

/// A catalog that a transaction reads from another file than all others do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnFile {
    pub(crate) database: Oid,
    pub(crate) kind: Kind,
    pub(crate) locator: RelFileLocator,
    pub(crate) xid: Xid,
}

field_struct!(OwnFile { database, kind, locator, xid });

/// A change to files that no known relation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unknown {
    pub(crate) locator: RelFileLocator,
    pub(crate) lsn: Lsn,
    pub(crate) xid: Xid,
}

field_struct!(Unknown { locator, lsn, xid });

/// A top-level transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Open {
    /// In the order in which they were assigned. Some may have aborted by themselves, and have left
    /// nothing.
    pub(crate) subs: Vec<Xid>,
    pub(crate) own_files: Vec<OwnFile>,
    pub(crate) unknown: Vec<Unknown>,
    pub(crate) is_prepared: bool,
}

field_struct!(Open { subs, own_files, unknown, is_prepared });

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Transactions {
    /// The top-level transactions of subtransactions.
    tops: FxHashMap<Xid, Xid>,
    open: FxHashMap<Xid, Open>,
    logs: FxHashMap<Xid, Vec<Entry>>,
    /// Transactions that aborted after they changed a catalog, or while a rewrite is under way. The
    /// copies of a rewrite may still take them for running.
    aborted: FxHashSet<Xid>,
}

impl Transactions {
    pub(crate) fn top(&self, xid: Xid) -> Xid {
        self.tops.get(&xid).copied().unwrap_or(xid)
    }

    /// Notes that `sub` is a part of `top`.
    pub(crate) fn assign(&mut self, sub: Xid, top: Xid) {
        if sub != top && sub.is_valid() && top.is_valid() && self.tops.insert(sub, top) != Some(top) {
            self.open.entry(top).or_default().subs.push(sub);
        }
    }

    pub(crate) fn open(&mut self, top: Xid) -> &mut Open {
        self.open.entry(top).or_default()
    }

    pub(crate) fn get(&self, top: Xid) -> Option<&Open> {
        self.open.get(&top)
    }

    /// Notes a change that waits for `xid`, which is part of `top`.
    pub(crate) fn log(&mut self, xid: Xid, top: Xid, entry: Entry) {
        self.open(top);
        self.logs.entry(xid).or_default().push(entry);
    }

    /// Whether changes of exactly this (sub)transaction wait for its end.
    pub(crate) fn has_changes(&self, xid: Xid) -> bool {
        self.logs.contains_key(&xid)
    }

    /// Whether any changes wait for an end. Most of the time there are none.
    #[inline]
    pub(crate) fn have_changes(&self) -> bool {
        !self.logs.is_empty()
    }

    /// Whether any change of this top-level transaction waits for its end.
    pub(crate) fn has_changes_of(&self, top: Xid) -> bool {
        if self.has_changes(top) {
            return true;
        }
        let subs = self.open.get(&top).map_or(&[][..], |open| &open.subs);
        // This is called for each row, also for a transaction with very many savepoints.
        if self.logs.len() < subs.len() {
            return self.logs.keys().any(|xid| self.top(*xid) == top);
        }
        subs.iter().any(|sub| self.has_changes(*sub))
    }

    /// Whether the same changes wait for the same transactions, whatever else is known of these.
    pub(crate) fn have_the_same_changes(&self, other: &Transactions) -> bool {
        let own_files = |of: &Transactions| {
            let own = of.open.iter().filter(|(_, open)| !open.own_files.is_empty());
            own.map(|(top, open)| (*top, open.own_files.clone())).collect::<FxHashMap<_, _>>()
        };
        self.logs == other.logs && own_files(self) == own_files(other)
    }

    pub(crate) fn own_file(&self, top: Xid, database: Oid, kind: Kind) -> Option<RelFileLocator> {
        let files = &self.open.get(&top)?.own_files;
        let own = |file: &&OwnFile| file.kind == kind && file.database == database;
        files.iter().rev().find(own).map(|file| file.locator)
    }

    /// The changes of a (sub)transaction that has ended.
    pub(crate) fn take_log(&mut self, xid: Xid) -> Vec<Entry> {
        self.logs.remove(&xid).unwrap_or_default()
    }

    /// Ends a top-level transaction and all its subtransactions. `None` if nothing waited for that.
    pub(crate) fn take(&mut self, top: Xid) -> Option<Open> {
        let open = self.open.remove(&top)?;
        for sub in &open.subs {
            self.tops.remove(sub);
        }
        Some(open)
    }

    /// Notes that a subtransaction aborted by itself.
    pub(crate) fn drop_sub(&mut self, sub: Xid) {
        let Some(top) = self.tops.remove(&sub) else { return };
        if let Some(open) = self.open.get_mut(&top) {
            // A session takes back its last savepoints first. Looking through all of them would be
            // quadratic with many savepoints.
            while open.subs.last().is_some_and(|last| self.tops.get(last) != Some(&top)) {
                open.subs.pop();
            }
            open.own_files.retain(|file| file.xid != sub);
            open.unknown.retain(|unknown| unknown.xid != sub);
        }
    }

    /// The top-level transactions that have ended, because all running ones are `oldest` or
    /// younger. With `None`, only prepared transactions are running.
    pub(crate) fn ended_before(&self, oldest: Option<Xid>) -> Vec<Xid> {
        let is_over = |xid: Xid, open: &Open| match oldest {
            Some(oldest) => xid.precedes(oldest),
            None => !open.is_prepared,
        };
        self.open.iter().filter(|(xid, open)| is_over(**xid, open)).map(|(xid, _)| *xid).collect()
    }

    pub(crate) fn remember_aborted(&mut self, xid: Xid) {
        self.aborted.insert(xid);
    }

    /// Forgets the aborted transactions that are older than all running ones. With `None`, all.
    pub(crate) fn forget_aborted(&mut self, oldest: Option<Xid>) {
        self.aborted.retain(|xid| oldest.is_some_and(|oldest| !xid.precedes(oldest)));
    }

    pub(crate) fn has_aborted(&self, xid: Xid) -> bool {
        self.aborted.contains(&xid)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        use crate::field::Field;
        self.tops.write(out);
        self.open.write(out);
        self.logs.write(out);
        let mut aborted: Vec<_> = self.aborted.iter().copied().collect();
        aborted.sort_unstable_by_key(|xid| xid.0);
        aborted.write(out);
    }

    pub(crate) fn read(fields: &mut wal::Fields<'_>) -> Option<Transactions> {
        use crate::field::Field;
        let (tops, open, logs) = (Field::read(fields)?, Field::read(fields)?, Field::read(fields)?);
        let aborted: Vec<Xid> = Field::read(fields)?;
        Some(Transactions { tops, open, logs, aborted: aborted.into_iter().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn savepoints_that_are_rolled_back_leave_nothing() {
        let mut transactions = Transactions::default();
        let top = Xid(1_000);
        transactions.assign(Xid(1_001), top);
        for sub in (1_002..200_000).step_by(3) {
            let nested = [sub, sub + 1, sub + 2].map(Xid);
            nested.into_iter().for_each(|sub| transactions.assign(sub, top));
            // The record has the nested subtransactions first, then the one that is taken back.
            for sub in [nested[1], nested[2], nested[0]] {
                transactions.drop_sub(sub);
            }
        }
        assert_eq!(transactions.get(top).map(|open| open.subs.clone()), Some(vec![Xid(1_001)]));
        assert_eq!(transactions.tops.len(), 1);
        transactions.take(top);
        assert!(transactions.tops.is_empty());
    }

    #[test]
    fn one_that_is_not_the_last_is_forgotten_with_those_behind_it() {
        let mut transactions = Transactions::default();
        let top = Xid(10);
        [11, 12, 13].into_iter().for_each(|sub| transactions.assign(Xid(sub), top));
        transactions.drop_sub(Xid(12));
        assert_eq!(transactions.top(Xid(12)), Xid(12));
        transactions.drop_sub(Xid(13));
        assert_eq!(transactions.get(top).map(|open| open.subs.clone()), Some(vec![Xid(11)]));
    }
}
