//! A transaction that is larger than a batch, where others may commit before
//! it (`commit_order = relaxed`).
//!
//! Those that follow it in the stream can only pass it when all of it has been
//! read. So it stands aside in a file as it comes, and what it touches is
//! gathered; when its commit has come it is handed over, and executed part by
//! part from the file, in one target transaction.
//!
//! An open target transaction that waited for parts from the planner would
//! be a wait that no server sees, and the planner waits for room: from the file
//! it waits for nobody.

use std::fs::File;
use std::io;

use schedule::Footprint;
use txn::Begin;

use crate::batch::{Batch, Digest};
use crate::footprint::Gathering;
use crate::spill::{Spill, Spilled};

/// As it grows.
#[derive(Debug)]
pub(crate) struct Growing {
    spill: Spill,
    gathering: Gathering,
    digest: Digest,
}

/// As a whole.
#[derive(Debug)]
pub(crate) struct Large {
    pub(crate) changes: Spilled,
    pub(crate) begin: Begin,
    pub(crate) digest: Digest,
    /// Changes of one part.
    pub(crate) part: usize,
}

impl Growing {
    /// Nothing yet. `file` is empty and becomes its own.
    pub(crate) fn new(file: File) -> Growing {
        Growing { spill: Spill::new(file), gathering: Gathering::default(), digest: Digest::default() }
    }

    /// Takes in what comes next.
    pub(crate) fn add(&mut self, batch: &Batch) -> io::Result<()> {
        self.spill.add(batch)?;
        batch.changes.iter().for_each(|change| self.gathering.add(change));
        self.digest.extend(&Digest::of(batch));
        Ok(())
    }

    /// All of it; `part` as in [`Large`]. `None` unless its end has come.
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
    use proto::pgoutput::{Column, CommitInfo, Tuple};
    use txn::Op;

    use super::*;
    use crate::batch::Change;
    use crate::table::fixtures;

    const BEGIN: Begin = Begin { xid: Xid(7), final_lsn: Lsn::new(80), commit_time: PgTimestamp(0) };

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
            let mut growing = Growing::new(tempfile::tempfile().unwrap());
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
        let mut growing = Growing::new(tempfile::tempfile().unwrap());
        growing.add(&batch(0..3)).unwrap();
        assert!(growing.into_large(Lsn::INVALID, 1).is_none());
    }
}
