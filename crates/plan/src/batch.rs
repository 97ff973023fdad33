//! Changes in source order, as they came. A plan is made from them, and exact replay applies them
//! one at a time if the plan fails.

use std::sync::Arc;

use base::Lsn;
use proto::pgoutput::CommitInfo;
use txn::{Begin, Op};

use crate::table::Table;

/// One change, mapped onto the target.
#[derive(Debug)]
pub enum Change {
    /// One row.
    Row {
        /// Where it is written.
        table: Arc<Table>,
        /// What happened to it.
        op: Op,
    },
    /// TRUNCATE.
    Truncate {
        /// As the source named them.
        tables: Vec<Arc<Table>>,
        /// Sequences begin anew.
        restart_identity: bool,
    },
}

/// The end of a source transaction within a batch.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// The transaction's changes end before this index.
    pub changes_end: usize,
    /// How the transaction began.
    pub begin: Begin,
    /// Its commit.
    pub commit: CommitInfo,
    /// `skip --lsn` named the transaction, so its changes are not in the batch.
    pub skipped: bool,
}

/// Whole transactions, or a part of one that is too large for a batch.
#[derive(Debug, Default)]
pub struct Batch {
    /// In source order.
    pub changes: Vec<Change>,
    /// The transactions that end here, in commit order.
    pub ends: Vec<End>,
    /// The transaction that does not end here. If there is one, the batch holds nothing else.
    pub open: Option<Begin>,
    /// Bytes of row data.
    pub bytes: usize,
}

/// What a change costs besides its row data: the enum, the tables' counters, the entry of the fold.
/// Measured in tens of bytes; rounded up.
pub const CHANGE_OVERHEAD: usize = 160;

impl Change {
    fn cost(&self) -> usize {
        CHANGE_OVERHEAD
            + match self {
                Change::Row { op, .. } => op.byte_len(),
                Change::Truncate { .. } => 0,
            }
    }
}

impl Batch {
    /// Adds a change of the transaction that has begun.
    pub fn push(&mut self, change: Change) {
        self.bytes += change.cost();
        self.changes.push(change);
    }

    /// Splits the batch into its first `transactions` and the rest.
    pub fn split(mut self, transactions: usize) -> (Batch, Batch) {
        let mut later = Batch { ends: self.ends.split_off(transactions), ..Batch::default() };
        let middle = self.ends.last().map_or(0, |end| end.changes_end);
        later.changes = self.changes.split_off(middle);
        later.ends.iter_mut().for_each(|end| end.changes_end -= middle);
        later.bytes = later.changes.iter().map(Change::cost).sum();
        self.bytes = self.bytes.saturating_sub(later.bytes);
        (self, later)
    }

    /// Ends the transaction that the last changes belong to.
    pub fn end(&mut self, begin: Begin, commit: CommitInfo, skipped: bool) {
        self.ends.push(End { changes_end: self.changes.len(), begin, commit, skipped });
    }

    /// The number of leading transactions that stay within all three limits, but at least one.
    pub fn count_within(&self, transactions: usize, changes: usize, bytes: usize) -> usize {
        let mut cost = 0;
        let mut start = 0;
        let fits = |end: &&End| {
            cost += self.changes[start..end.changes_end].iter().map(Change::cost).sum::<usize>();
            start = end.changes_end;
            start <= changes && cost <= bytes
        };
        self.ends.iter().take(transactions).take_while(fits).count().max(1)
    }

    /// Takes out the first `transactions` of those that end here.
    pub fn take_first(&mut self, transactions: usize) -> Batch {
        let ends: Vec<End> = self.ends.drain(..self.ends.len().min(transactions)).collect();
        let end = ends.last().map_or(0, |end| end.changes_end);
        self.ends.iter_mut().for_each(|later| later.changes_end -= end);
        let changes: Vec<Change> = self.changes.drain(..end).collect();
        let bytes = changes.iter().map(Change::cost).sum();
        self.bytes -= bytes;
        Batch { changes, ends, open: None, bytes }
    }

    /// Takes out the transactions that end here. A transaction that has only begun stays.
    pub fn take_whole(&mut self) -> Batch {
        let mut whole = std::mem::take(self);
        let end = whole.ends.last().map_or(0, |end| end.changes_end);
        for change in whole.changes.split_off(end) {
            self.push(change);
        }
        whole.bytes -= self.bytes;
        whole
    }
}

impl Batch {
    /// The changes of rows in source order: the number of each among all changes, its table and
    /// operation, and how its transaction began.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &Arc<Table>, &Op, Begin)> {
        let ends = self.ends.iter().map(|end| (end.changes_end, end.begin));
        let mut ends = ends.chain(self.open.map(|begin| (self.changes.len(), begin))).peekable();
        self.changes.iter().enumerate().filter_map(move |(at, change)| {
            while ends.next_if(|(end, _)| *end <= at).is_some() {}
            let Change::Row { table, op } = change else { return None };
            Some((at, table, op, ends.peek()?.1))
        })
    }

    /// The changes of each transaction, also of the one that is still open.
    pub fn transactions(&self) -> impl Iterator<Item = (std::ops::Range<usize>, Begin)> {
        let ends = self.ends.iter().map(|end| (end.changes_end, end.begin));
        let mut start = 0;
        ends.chain(self.open.map(|begin| (self.changes.len(), begin))).map(move |(end, begin)| {
            let own = start..end;
            start = end;
            (own, begin)
        })
    }

    /// Keeps the changes of transactions that `is_wanted`. All of its transactions have ended.
    pub fn only(self, is_wanted: impl Fn(&Begin) -> bool) -> Batch {
        let mut kept = Batch::default();
        let mut changes = self.changes.into_iter();
        let mut start = 0;
        for end in self.ends {
            let own = changes.by_ref().take(end.changes_end - start);
            start = end.changes_end;
            if is_wanted(&end.begin) {
                own.for_each(|change| kept.push(change));
                kept.end(end.begin, end.commit, end.skipped);
            } else {
                own.for_each(drop);
            }
        }
        kept
    }

    /// Undoes [`Batch::take_whole`].
    pub fn put_back(&mut self, mut whole: Batch) {
        whole.bytes += self.bytes;
        whole.changes.append(&mut self.changes);
        *self = whole;
    }
}

/// What changes did, counted when they are committed.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tally {
    /// Rows inserted.
    pub inserts: u64,
    /// Rows updated.
    pub updates: u64,
    /// Rows deleted.
    pub deletes: u64,
    /// Tables truncated.
    pub truncates: u64,
    /// Rows written after folding.
    pub written: u64,
}

impl Tally {
    /// Whether nothing changed.
    pub fn is_nothing(&self) -> bool {
        self.inserts + self.updates + self.deletes + self.truncates == 0
    }

    /// Counts `changes`.
    pub fn of(changes: &[Change]) -> Tally {
        let mut tally = Tally::default();
        for change in changes {
            match change {
                Change::Row { op: Op::Insert(_), .. } => tally.inserts += 1,
                Change::Row { op: Op::Update { .. }, .. } => tally.updates += 1,
                Change::Row { op: Op::Delete(_), .. } => tally.deletes += 1,
                Change::Truncate { tables, .. } => tally.truncates += tables.len() as u64,
            }
        }
        tally
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        self.inserts += more.inserts;
        self.updates += more.updates;
        self.deletes += more.deletes;
        self.truncates += more.truncates;
        self.written += more.written;
    }
}

/// Summary of the changes that become one target transaction.
#[derive(Debug, Default, Clone, Copy)]
pub struct Digest {
    /// Source transactions that end in it, skipped ones included.
    pub transactions: usize,
    /// How many of these were skipped.
    pub skipped: u64,
    /// The end of the last of them.
    pub last: Option<End>,
    /// The end of what was handed over before it.
    pub since: Lsn,
    /// Bytes of row data as they came.
    pub bytes: usize,
    /// What the changes did.
    pub tally: Tally,
}

impl Digest {
    /// The digest of a batch.
    pub fn of(batch: &Batch) -> Digest {
        Digest { bytes: batch.bytes, tally: Tally::of(&batch.changes), ..Digest::of_ends(&batch.ends) }
    }

    /// The digest of transactions whose changes are elsewhere.
    pub fn of_ends(ends: &[End]) -> Digest {
        Digest {
            transactions: ends.len(),
            skipped: ends.iter().filter(|end| end.skipped).count() as u64,
            last: ends.last().copied(),
            ..Digest::default()
        }
    }

    /// Adds the digest of later changes.
    pub fn extend(&mut self, later: &Digest) {
        self.transactions += later.transactions;
        self.skipped += later.skipped;
        self.last = later.last.or(self.last);
        self.bytes += later.bytes;
        self.tally += later.tally;
    }
}

#[cfg(test)]
mod tests {
    use base::{PgTimestamp, Xid};
    use proto::pgoutput::Tuple;

    use super::*;
    use crate::fixtures;

    fn batch(changes: &[usize]) -> Batch {
        let table = fixtures::table();
        let mut batch = Batch::default();
        for (transaction, &changes) in changes.iter().enumerate() {
            for _ in 0..changes {
                batch.push(Change::Row { table: Arc::clone(&table), op: Op::Insert(Tuple::from_iter([])) });
            }
            let xid = Xid(u32::try_from(transaction).unwrap());
            let begin = Begin { xid, final_lsn: Lsn::new(1), commit_time: PgTimestamp(0), origin: None };
            let commit =
                CommitInfo { commit_lsn: Lsn::new(1), end_lsn: Lsn::new(2), commit_time: PgTimestamp(0) };
            batch.end(begin, commit, false);
        }
        batch
    }

    #[test]
    fn a_split_keeps_each_change_with_its_transaction() {
        let (earlier, later) = batch(&[3, 0, 2, 1, 4]).split(2);
        let ends = |batch: &Batch| {
            batch.ends.iter().map(|end| (end.begin.xid.0, end.changes_end)).collect::<Vec<_>>()
        };
        assert_eq!((ends(&earlier), earlier.changes.len()), (vec![(0, 3), (1, 3)], 3));
        assert_eq!((ends(&later), later.changes.len()), (vec![(2, 2), (3, 3), (4, 7)], 7));
        assert_eq!((earlier.bytes, later.bytes), (3 * CHANGE_OVERHEAD, 7 * CHANGE_OVERHEAD));
    }

    #[test]
    fn the_first_transaction_is_taken_with_its_bytes() {
        let mut growing = batch(&[3, 0, 2]);
        let all = growing.bytes;
        growing.push(Change::Row { table: fixtures::table(), op: Op::Insert(Tuple::from_iter([])) });
        let taken: Vec<Batch> = (0..4).map(|_| growing.take_first(1)).collect();
        let sizes: Vec<_> = taken.iter().map(|one| (one.changes.len(), one.ends.len())).collect();
        assert_eq!(sizes, [(3, 1), (0, 1), (2, 1), (0, 0)]);
        assert_eq!(taken.iter().map(|one| one.bytes).sum::<usize>(), all);
        assert_eq!((growing.changes.len(), growing.bytes), (1, CHANGE_OVERHEAD));
    }

    #[test]
    fn transactions_are_counted_within_bounds() {
        let batch = batch(&[3, 0, 2, 1]);
        let count =
            |transactions, changes, rows| batch.count_within(transactions, changes, rows * CHANGE_OVERHEAD);
        assert_eq!(count(9, 9, 9), 4);
        assert_eq!((count(3, 9, 9), count(9, 5, 9), count(9, 9, 5)), (3, 3, 3));
        assert_eq!((count(9, 2, 9), count(9, 9, 2)), (1, 1), "one goes, however large");
    }

    #[test]
    fn a_transaction_that_has_only_begun_stays() {
        let mut growing = batch(&[3, 2]);
        let (table, bytes) = (fixtures::table(), growing.bytes);
        growing.push(Change::Row { table, op: Op::Insert(Tuple::from_iter([])) });
        let whole = growing.take_whole();
        assert_eq!((whole.changes.len(), whole.ends.len(), whole.bytes), (5, 2, bytes));
        assert_eq!((growing.changes.len(), growing.ends.len(), growing.bytes), (1, 0, CHANGE_OVERHEAD));
        let digest = Digest::of(&whole);
        assert_eq!((digest.transactions, digest.tally.inserts), (2, 5));
    }
}
