//! What the target holds when transactions commit out of order (`commit_order = relaxed`).
//!
//! The planner hands over the stream as *ranges* that follow one another without a gap. Each range
//! begins where the previous one ended. It commits as one target transaction, or as several in its
//! order. Every target transaction stores a row that names its range. So the rows tell what the
//! target has, whatever the order was:
//!
//! ```text
//!   progress          rows of `pgsluice.ahead`
//!   |================|[=====)    [===)[========)     --> the source's WAL
//!                           ^    not there: not committed
//!                           the prefix: all before is on the target
//! ```
//! Only the prefix is reported, confirmed, and told to the origins. After a restart, commits beyond
//! the prefix that lie in a range are passed over. Ranges that meet are joined, so there are never
//! many: each gap needs a chunk in flight.

use std::collections::BTreeMap;

use base::{Lsn, PgTimestamp};

/// The transactions that a target holds: every one that commits on the source before `prefix`, and
/// those that commit in a range beyond it. A range includes its first position and excludes its
/// second.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommittedRanges {
    /// The target has everything before this position.
    pub prefix: Lsn,
    /// Ranges beyond the prefix, ascending. They touch neither one another nor the prefix.
    pub beyond: Vec<(Lsn, Lsn)>,
    /// Number of the target's rows that tell this.
    pub rows: usize,
}

impl CommittedRanges {
    /// Joins `rows` of ranges, in any order, with everything before `prefix`.
    #[must_use]
    pub fn new(prefix: Lsn, mut rows: Vec<(Lsn, Lsn)>) -> CommittedRanges {
        rows.sort_unstable();
        let mut reached = CommittedRanges { prefix, beyond: Vec::new(), rows: rows.len() };
        for (since, end) in rows {
            if since <= reached.prefix {
                reached.prefix = reached.prefix.max(end);
                continue;
            }
            match reached.beyond.last_mut() {
                Some(last) if since <= last.1 => last.1 = last.1.max(end),
                _ => reached.beyond.push((since, end)),
            }
        }
        reached
    }

    /// Whether the target holds the transaction whose commit record is at `lsn`.
    #[must_use]
    pub fn has(&self, lsn: Lsn) -> bool {
        lsn < self.prefix || self.beyond.iter().any(|&(since, end)| since <= lsn && lsn < end)
    }

    /// The end of the last transaction that the target holds.
    #[must_use]
    pub fn furthest(&self) -> Lsn {
        self.beyond.last().map_or(self.prefix, |&(_, end)| end)
    }
}

/// The growing [`CommittedRanges`], in the memory of the process that commits.
#[derive(Debug, Default)]
pub struct RangeTracker {
    prefix: Lsn,
    /// Keyed by the start of each range: its end, and when its last transaction committed on the
    /// source.
    beyond: BTreeMap<Lsn, (Lsn, PgTimestamp)>,
    /// Everything before this position was handed over.
    handed: Lsn,
    /// Once the target has everything before the first position, nothing is left for it before the
    /// second.
    idle: Option<(Lsn, Lsn)>,
    /// When the last transaction of the prefix committed on the source.
    time: Option<PgTimestamp>,
}

impl RangeTracker {
    /// Begins with everything before `prefix` on the target.
    #[must_use]
    pub fn new(prefix: Lsn) -> RangeTracker {
        RangeTracker { prefix, handed: prefix, ..RangeTracker::default() }
    }

    /// The target has everything before this position, and acknowledged it.
    #[must_use]
    pub fn prefix(&self) -> Lsn {
        self.prefix
    }

    /// Notes that a range that ends here was handed over.
    pub fn handed(&mut self, end: Lsn) {
        self.handed = self.handed.max(end);
    }

    /// Notes that the stream has nothing for the target between the last handover and `lsn`.
    pub fn caught_up(&mut self, lsn: Lsn) {
        self.idle = Some((self.handed, lsn));
    }

    /// Notes the commit of a range; returns true if something before it is not committed.
    pub fn committed(&mut self, since: Lsn, end: Lsn, time: PgTimestamp) -> bool {
        let overtook = since > self.prefix;
        self.beyond.insert(since, (end, time));
        while let Some(first) = self.beyond.first_entry()
            && *first.key() <= self.prefix
        {
            let (end, time) = first.remove();
            if end > self.prefix {
                (self.prefix, self.time) = (end, Some(time));
            }
        }
        overtook
    }

    /// The position before which everything for the target was applied.
    #[must_use]
    pub fn applied(&self) -> Lsn {
        match self.idle {
            Some((since, lsn)) if since <= self.prefix => self.prefix.max(lsn),
            _ => self.prefix,
        }
    }

    /// When the last transaction of the prefix committed on the source, if this process committed
    /// it.
    #[must_use]
    pub fn time(&self) -> Option<PgTimestamp> {
        self.time
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn lsn(n: u64) -> Lsn {
        Lsn::new(n)
    }

    fn ranges(pairs: &[(u64, u64)]) -> Vec<(Lsn, Lsn)> {
        pairs.iter().map(|&(since, end)| (lsn(since), lsn(end))).collect()
    }

    #[test]
    fn the_prefix_ends_where_something_is_missing() {
        let reached = CommittedRanges::new(lsn(10), ranges(&[(40, 50), (10, 20), (30, 40), (70, 80)]));
        assert_eq!((reached.prefix, reached.rows), (lsn(20), 4));
        assert_eq!(reached.beyond, ranges(&[(30, 50), (70, 80)]));
        assert_eq!(reached.furthest(), lsn(80));
        // A commit record at a position belongs to the range that begins there.
        let held: Vec<u64> = [0, 19, 20, 29, 30, 49, 50, 69, 70, 79, 80]
            .into_iter()
            .filter(|&at| reached.has(lsn(at)))
            .collect();
        assert_eq!(held, [0, 19, 30, 49, 70, 79]);
    }

    /// After a restart the ranges are cut differently, so they may overlap the stored ones.
    #[test]
    fn ranges_may_overlap() {
        let reached = CommittedRanges::new(lsn(10), ranges(&[(30, 40), (10, 60), (60, 70), (35, 38)]));
        assert_eq!((reached.prefix, reached.beyond.len()), (lsn(70), 0));
    }

    #[test]
    fn what_grows_in_memory_is_what_the_rows_say() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..300 {
            let count = random.random_range(1..12);
            let mut order: Vec<u64> = (0..count).collect();
            order.shuffle(&mut random);
            let mut reach = RangeTracker::new(lsn(5));
            let mut rows = Vec::new();
            for n in order {
                let range = (lsn(5 + n * 10), lsn(15 + n * 10));
                let before = CommittedRanges::new(lsn(5), rows.clone());
                assert_eq!(reach.committed(range.0, range.1, PgTimestamp(0)), range.0 > before.prefix);
                rows.push(range);
                assert_eq!(reach.prefix(), CommittedRanges::new(lsn(5), rows.clone()).prefix);
            }
            assert_eq!(reach.prefix(), lsn(5 + count * 10));
        }
    }

    /// A position without changes counts only when the target has everything that was handed over
    /// before it.
    #[test]
    fn p4_an_idle_position_waits_for_what_lies_before_it() {
        let mut reach = RangeTracker::new(lsn(10));
        reach.caught_up(lsn(12));
        assert_eq!(reach.applied(), lsn(12));
        reach.handed(lsn(20));
        reach.handed(lsn(30));
        reach.caught_up(lsn(99));
        reach.committed(lsn(20), lsn(30), PgTimestamp(7));
        assert_eq!((reach.applied(), reach.time()), (lsn(10), None));
        reach.committed(lsn(10), lsn(20), PgTimestamp(6));
        assert_eq!((reach.applied(), reach.prefix(), reach.time()), (lsn(99), lsn(30), Some(PgTimestamp(7))));
    }
}
