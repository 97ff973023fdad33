//! Which rows of coming changes are known to be missing, and since which fence. [`super::ahead`]
//! finds them, and says why an earlier fence is enough.

use base::{Lsn, Xid};
use conflict::Written;
use retention::{Missed, RowKey, Tombstone};
use rustc_hash::{FxHashMap, FxHashSet};

/// Descriptions that are kept from one replay to the next. A large DELETE needs one.
const DESCRIBED_MAX: usize = 1024;

/// What is known of rows that are missing.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// They were missing before this fence.
    pub(super) fence: Lsn,
    pub(super) keys: FxHashSet<RowKey>,
    /// The first change that was not looked at.
    pub(super) end: usize,
    /// A miss was asked about by itself since the last look.
    is_wanted: bool,
    /// Tombstones in the words of the target, by transaction.
    described: FxHashMap<(Lsn, Xid), Written>,
}

impl Missing {
    /// Forgets all rows: other changes are replayed from here on. Who deleted what stays as it was.
    pub(super) fn begin(&mut self) {
        let mut described = std::mem::take(&mut self.described);
        if described.len() > DESCRIBED_MAX {
            described.clear();
        }
        *self = Missing { described, ..Missing::default() };
    }

    /// The fence that covers all of these misses, if there is one.
    pub(super) fn fence_for(&self, missed: &[Missed]) -> Option<Lsn> {
        missed.iter().all(|missed| self.keys.contains(&missed.key)).then_some(self.fence)
    }

    /// A miss paid for its own fence.
    pub(super) fn asked_alone(&mut self) {
        self.is_wanted = true;
    }

    /// This row is written.
    pub(super) fn written(&mut self, key: &RowKey) {
        self.keys.remove(key);
    }

    /// Whether it is worth looking ahead from change `number` on.
    pub(super) fn is_due(&self, number: usize) -> bool {
        number >= self.end && (self.is_wanted || !self.keys.is_empty())
    }

    pub(super) fn is_described(&self, tombstone: &Tombstone) -> bool {
        self.described.contains_key(&(tombstone.lsn, tombstone.xid))
    }

    pub(super) fn describe(&mut self, tombstone: &Tombstone, written: Written) {
        self.described.insert((tombstone.lsn, tombstone.xid), written);
    }

    pub(super) fn description(&self, tombstone: &Tombstone) -> Written {
        let unknown = || Written { xid: tombstone.xid, commit: None };
        self.described.get(&(tombstone.lsn, tombstone.xid)).cloned().unwrap_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use base::PgTimestamp;

    use super::*;

    fn missed(table: u32) -> Missed {
        Missed { key: RowKey::of_emptied(base::Oid(table), base::Oid(table)), time: PgTimestamp(0) }
    }

    #[test]
    fn a_row_shares_the_fence_until_it_is_written() {
        let keys = [missed(1), missed(2)].map(|missed| missed.key);
        let mut missing =
            Missing { fence: Lsn::new(7), keys: keys.into_iter().collect(), ..Missing::default() };
        assert_eq!(missing.fence_for(&[missed(1), missed(2)]), Some(Lsn::new(7)));
        assert_eq!(missing.fence_for(&[missed(1), missed(3)]), None);
        missing.written(&missed(1).key);
        assert_eq!(missing.fence_for(&[missed(1)]), None);
        assert_eq!(missing.fence_for(&[missed(2)]), Some(Lsn::new(7)));
        missing.begin();
        assert_eq!(missing.fence_for(&[missed(2)]), None);
    }

    #[test]
    fn a_description_is_kept_for_the_next_replay_up_to_a_bound() {
        let tombstone = |number: u64| Tombstone {
            lsn: Lsn::new(number),
            xid: Xid(7),
            origin: None,
            time: PgTimestamp(0),
            kind: retention::DeletionKind::Delete,
        };
        let written = || Written { xid: Xid(7), commit: None };
        let mut missing = Missing::default();
        missing.describe(&tombstone(1), written());
        missing.begin();
        assert!(missing.is_described(&tombstone(1)) && !missing.is_described(&tombstone(2)));
        (0..=DESCRIBED_MAX as u64).for_each(|number| missing.describe(&tombstone(number), written()));
        assert!(missing.is_described(&tombstone(1)), "one replay may need all of them");
        missing.begin();
        assert!(!missing.is_described(&tombstone(1)));
    }

    #[test]
    fn changes_are_looked_at_once() {
        let mut missing = Missing::default();
        assert!(!missing.is_due(0), "nothing was missed");
        missing.asked_alone();
        assert!(missing.is_due(0));
        (missing.end, missing.is_wanted) = (10, true);
        assert!(!missing.is_due(9) && missing.is_due(10));
    }
}
