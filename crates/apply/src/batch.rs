//! Changes in source order, as they came: what a plan is made from, and what
//! is applied one at a time if the plan does not hold.

use std::sync::Arc;

use proto::pgoutput::CommitInfo;
use txn::{Begin, Op};

use crate::table::Table;

/// One change, mapped onto the target.
#[derive(Debug)]
pub(crate) enum Change {
    Row { table: Arc<Table>, op: Op },
    Truncate { tables: Vec<Arc<Table>>, restart_identity: bool },
}

/// The end of a source transaction within a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    /// Its changes end before this one.
    pub(crate) changes_end: usize,
    pub(crate) begin: Begin,
    pub(crate) commit: CommitInfo,
    /// `skip --lsn` named it: its changes are not here.
    pub(crate) skipped: bool,
}

/// Whole transactions, or a part of one that is too large for a batch.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) changes: Vec<Change>,
    /// The transactions that end here, in commit order.
    pub(crate) ends: Vec<End>,
    /// The transaction that does not end here: then it is the only one.
    pub(crate) open: Option<Begin>,
    /// Bytes of row data.
    pub(crate) bytes: usize,
}

/// What a change costs beside its row data: the enum, the tables' counters,
/// the entry of the fold. Measured in tens of bytes; rounded up.
const CHANGE_OVERHEAD: usize = 160;

impl Batch {
    pub(crate) fn push(&mut self, change: Change) {
        self.bytes += CHANGE_OVERHEAD
            + match &change {
                Change::Row { op, .. } => op.byte_len(),
                Change::Truncate { .. } => 0,
            };
        self.changes.push(change);
    }

    /// Its first `transactions`, and the others.
    pub(crate) fn split(mut self, transactions: usize) -> (Batch, Batch) {
        let mut later = Batch { ends: self.ends.split_off(transactions), ..Batch::default() };
        let middle = self.ends.last().map_or(0, |end| end.changes_end);
        later.changes = self.changes.split_off(middle);
        later.ends.iter_mut().for_each(|end| end.changes_end -= middle);
        (self, later)
    }

    pub(crate) fn end(&mut self, begin: Begin, commit: CommitInfo, skipped: bool) {
        self.ends.push(End { changes_end: self.changes.len(), begin, commit, skipped });
    }
}

/// What the executor is handed.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) batch: Batch,
    /// The set-based plan; `None` where changes contradict one another.
    pub(crate) statements: Option<Vec<crate::statement::Statement>>,
    /// Its target transaction begins here.
    pub(crate) first: bool,
}

impl Chunk {
    /// Its target transaction ends here.
    pub(crate) fn last(&self) -> bool {
        self.batch.open.is_none()
    }
}

#[cfg(test)]
mod tests {
    use base::{Lsn, PgTimestamp, Xid};
    use proto::pgoutput::Tuple;

    use super::*;
    use crate::table::fixtures;

    #[test]
    fn a_split_keeps_each_change_with_its_transaction() {
        let table = fixtures::table();
        let mut batch = Batch::default();
        for (transaction, changes) in [3, 0, 2, 1, 4].into_iter().enumerate() {
            for _ in 0..changes {
                batch.push(Change::Row { table: Arc::clone(&table), op: Op::Insert(Tuple::from_iter([])) });
            }
            let xid = Xid(u32::try_from(transaction).unwrap());
            let begin = Begin { xid, final_lsn: Lsn::new(1), commit_time: PgTimestamp(0) };
            let commit =
                CommitInfo { commit_lsn: Lsn::new(1), end_lsn: Lsn::new(2), commit_time: PgTimestamp(0) };
            batch.end(begin, commit, false);
        }
        let (earlier, later) = batch.split(2);
        let ends = |batch: &Batch| {
            batch.ends.iter().map(|end| (end.begin.xid.0, end.changes_end)).collect::<Vec<_>>()
        };
        assert_eq!((ends(&earlier), earlier.changes.len()), (vec![(0, 3), (1, 3)], 3));
        assert_eq!((ends(&later), later.changes.len()), (vec![(2, 2), (3, 3), (4, 7)], 7));
    }
}
