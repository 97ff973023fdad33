//! Which rows of coming changes are known to be missing, and since which fence. [`super::ahead`]
//! finds them, and says why an earlier fence is enough.

use std::time::{Duration, Instant};

use base::{Lsn, Xid};
use conflict::Written;
use retention::{Missed, RowKey, Tombstone};
use rustc_hash::{FxHashMap, FxHashSet};

/// How many coming changes are looked at together: at first, and at most. As many share a flush,
/// and their probes are soon answered.
const AHEAD_MIN: usize = 16;
const AHEAD_MAX: usize = 1024;

/// An older fence is taken anew, because capture may have stood still since.
const FENCE_AGE_MAX: Duration = Duration::from_secs(1);

/// Descriptions that are kept from one replay to the next. A large DELETE needs one.
const DESCRIBED_MAX: usize = 1024;

/// What is known of rows that are missing.
#[derive(Debug)]
pub(super) struct Missing {
    /// They were missing before this fence, and when that was taken.
    fence: Option<(Lsn, Instant)>,
    pub(super) keys: FxHashSet<RowKey>,
    /// The first change that was not looked at.
    end: usize,
    /// How many changes the next look is about: more while most of them miss their rows.
    ahead: usize,
    /// A miss was asked about by itself since the last look.
    is_wanted: bool,
    /// Tombstones in the words of the target, by transaction.
    described: FxHashMap<(Lsn, Xid), Written>,
}

impl Default for Missing {
    fn default() -> Missing {
        Missing {
            fence: None,
            keys: FxHashSet::default(),
            end: 0,
            ahead: AHEAD_MIN,
            is_wanted: false,
            described: FxHashMap::default(),
        }
    }
}

impl Missing {
    /// Forgets all rows: other changes are replayed from here on. Who deleted what stays as it was,
    /// and what was learned of how many are missing.
    pub(super) fn begin(&mut self) {
        let mut described = std::mem::take(&mut self.described);
        if described.len() > DESCRIBED_MAX {
            described.clear();
        }
        *self = Missing { described, ahead: self.ahead, ..Missing::default() };
    }

    /// Begins a look at the changes from `number` on, and returns how many it is about.
    pub(super) fn look(&mut self, number: usize) -> usize {
        self.begin();
        self.end = number + self.ahead;
        self.ahead
    }

    /// Notes that of the rows of these `looked` changes, those of `keys` were missing before
    /// `fence`.
    pub(super) fn found(&mut self, looked: usize, keys: FxHashSet<RowKey>, fence: Lsn) {
        self.learn(looked, keys.len());
        (self.fence, self.keys) = (Some((fence, Instant::now())), keys);
    }

    /// Notes how many of `looked` rows are missing. Where few are, a look at many would cost more
    /// than the fences that it saves.
    pub(super) fn learn(&mut self, looked: usize, missing: usize) {
        let most = 2 * missing >= looked.max(2);
        self.ahead = if most { (4 * self.ahead).min(AHEAD_MAX) } else { AHEAD_MIN };
    }

    /// The first `changes` changes are applied; the others are numbered anew.
    pub(super) fn passed(&mut self, changes: usize) {
        self.end = self.end.saturating_sub(changes);
    }

    /// The fence that covers all of these misses, if there is one.
    pub(super) fn fence_for(&self, missed: &[Missed]) -> Option<Lsn> {
        let (fence, taken) = self.fence?;
        let is_fresh = taken.elapsed() <= FENCE_AGE_MAX;
        (is_fresh && missed.iter().all(|missed| self.keys.contains(&missed.key))).then_some(fence)
    }

    /// This number of misses paid for a fence together. Few would better share it with others.
    pub(super) fn asked(&mut self, misses: usize) {
        self.is_wanted |= misses < AHEAD_MIN;
    }

    /// The look that has begun ends before change `end`.
    pub(super) fn looked_up_to(&mut self, end: usize) {
        self.end = end;
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
        let mut missing = Missing::default();
        missing.found(2, keys.into_iter().collect(), Lsn::new(7));
        assert_eq!(missing.fence_for(&[missed(1), missed(2)]), Some(Lsn::new(7)));
        assert_eq!(missing.fence_for(&[missed(1), missed(3)]), None);
        missing.written(&missed(1).key);
        assert_eq!(missing.fence_for(&[missed(1)]), None);
        assert_eq!(missing.fence_for(&[missed(2)]), Some(Lsn::new(7)));
        missing.fence = missing.fence.map(|(fence, taken)| (fence, taken - 2 * FENCE_AGE_MAX));
        assert_eq!(missing.fence_for(&[missed(2)]), None, "too long ago");
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
        missing.asked(1000);
        assert!(!missing.is_due(0), "they share a fence already");
        missing.asked(1);
        assert!(missing.is_due(0));
        assert_eq!(missing.look(10), AHEAD_MIN);
        missing.asked(1);
        assert!(!missing.is_due(9 + AHEAD_MIN) && missing.is_due(10 + AHEAD_MIN));
        missing.passed(10);
        assert!(!missing.is_due(AHEAD_MIN - 1) && missing.is_due(AHEAD_MIN));
    }

    #[test]
    fn where_most_rows_are_missing_more_are_looked_at() {
        let mut missing = Missing::default();
        for looked in [16, 64, 256, 1024, 1024] {
            assert_eq!(missing.look(0), looked);
            missing.learn(looked, looked / 2);
        }
        missing.learn(1024, 500);
        assert_eq!(missing.look(0), AHEAD_MIN);
        missing.learn(0, 0);
        assert_eq!(missing.look(0), AHEAD_MIN, "nothing was asked");
    }
}
