//! A transaction that is larger than a batch, where others may commit before it
//! (`commit_order = relaxed`).
//!
//! The transactions behind it in the stream can only pass it when all of it has been read. So its
//! changes go to a file as they arrive, and its footprint is gathered. When its commit has come,
//! the planner hands it over. A worker then executes it part by part from the file, in one target
//! transaction.
//!
//! Rejected: to keep a target transaction open that waits for parts from the planner. No server
//! sees that wait, and the planner itself waits for room. Reading from the file waits for no other
//! task.

use std::fs::File;
use std::io;

use plan::{Batch, Digest, Gathering};
use schedule::Footprint;
use txn::Begin;

use crate::spill::{Spill, Spilled};

/// A large transaction whose changes are arriving.
#[derive(Debug)]
pub(crate) struct UnfinishedLarge {
    spill: Spill,
    gathering: Gathering,
    digest: Digest,
}

/// A large transaction, complete.
#[derive(Debug)]
pub(crate) struct Large {
    pub(crate) changes: Spilled,
    pub(crate) begin: Begin,
    pub(crate) digest: Digest,
    /// Number of changes in one part.
    pub(crate) part: usize,
}

impl UnfinishedLarge {
    /// Makes an empty one. `file` is empty, and this owns it from now on.
    pub(crate) fn new(file: File) -> UnfinishedLarge {
        UnfinishedLarge {
            spill: Spill::new(file),
            gathering: Gathering::default(),
            digest: Digest::default(),
        }
    }

    /// Adds the next changes.
    pub(crate) fn add(&mut self, batch: &Batch) -> io::Result<()> {
        self.spill.add(batch)?;
        batch.changes.iter().for_each(|change| self.gathering.add(change));
        self.digest.extend(&Digest::of(batch));
        Ok(())
    }

    /// Returns the complete transaction, or `None` if its end has not come. `part` is as in
    /// [`Large`].
    pub(crate) fn into_large(self, since: base::Lsn, part: usize) -> Option<(Large, Footprint)> {
        let begin = self.digest.last?.begin;
        let digest = Digest { since, ..self.digest };
        let large = Large { changes: self.spill.into_spilled(), begin, digest, part };
        Some((large, self.gathering.into_footprint()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::{Lsn, PgTimestamp, Xid};
    use plan::{Change, fixtures};
    use proto::pgoutput::{Column, CommitInfo, Tuple};
    use txn::Op;

    use super::*;

    const BEGIN: Begin =
        Begin { xid: Xid(7), final_lsn: Lsn::new(80), commit_time: PgTimestamp(0), origin: None };

    fn batch(ids: std::ops::Range<usize>) -> Batch {
        let table = fixtures::table();
        let mut batch = Batch::default();
        for id in ids {
            let id = id.to_string();
            let tuple =
                [Column::Text(id.as_bytes()), Column::Null, Column::Null].into_iter().collect::<Tuple>();
            batch.push(Change::Row { table: Arc::clone(&table), op: Op::Insert(tuple) });
        }
        batch
    }

    fn ends(mut batch: Batch) -> Batch {
        let commit =
            CommitInfo { commit_lsn: Lsn::new(80), end_lsn: Lsn::new(90), commit_time: PgTimestamp(0) };
        batch.end(BEGIN, commit, false);
        batch
    }

    #[test]
    fn every_change_comes_back_once_and_the_end_with_the_last_part() {
        for (sizes, part) in [(vec![5, 5, 3], 4), (vec![5, 5, 0], 5), (vec![1], 1), (vec![7, 2], 100)] {
            let mut growing = UnfinishedLarge::new(tempfile::tempfile().unwrap());
            let (mut from, last) = (0, sizes.len() - 1);
            for (number, size) in sizes.iter().enumerate() {
                let part = batch(from..from + size);
                growing.add(&if number == last { ends(part) } else { part }).unwrap();
                from += size;
            }
            let (large, _) = growing.into_large(Lsn::new(10), part).unwrap();
            assert_eq!((large.digest.transactions, large.digest.tally.inserts), (1, from as u64));
            assert_eq!((large.begin.final_lsn, large.digest.since), (Lsn::new(80), Lsn::new(10)));
            let mut reader = large.changes.read().unwrap();
            let (mut seen, mut ended) = (0, false);
            while let Some(read) = reader.part(large.begin, part, usize::MAX).unwrap() {
                assert!(!ended && read.changes.len() <= part);
                seen += read.changes.len();
                ended = read.open.is_none();
                assert_eq!(ended, read.ends.len() == 1);
            }
            assert_eq!((seen, ended), (from, true), "{sizes:?} in parts of {part}");
        }
    }

    #[test]
    fn what_has_no_end_is_not_handed_over() {
        let mut growing = UnfinishedLarge::new(tempfile::tempfile().unwrap());
        growing.add(&batch(0..3)).unwrap();
        assert!(growing.into_large(Lsn::INVALID, 1).is_none());
    }
}
