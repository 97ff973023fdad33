//! Batches that are folded while the executor is busy.
//!
//! When no worker can take a full batch, the planner folds it: the changes enter a plan, where a
//! row that is written repeatedly is held once. The changes as they came go to a file
//! ([`crate::spill`]), in case the plan does not hold. So memory holds what will be written, not
//! every change. The further the target is behind, the more is written at once.
//!
//! ```text
//!   batch full, executor busy --> plan (net effect, in memory)   \
//!        |                                                        > one chunk
//!        +----------------------> file (every change, in order)  /
//! ```
//! Invariants: a batch is in the file before it is in the plan. A batch that cannot be written to
//! the file stays where it was, and nothing more is folded.

use std::fs::File;

use plan::{Batch, Digest, Plan};

use crate::chunk::{Chunk, Originals};
use crate::spill::Spill;

/// Limit of all these files together, in bytes; further changes wait.
pub(crate) const FILES_MAX: u64 = 1024 * 1024 * 1024;
/// Above this many rows that each take a statement, nothing is added. More would delay the target's
/// next commit, without bringing its last one closer.
const SINGLE_ROWS_MAX: usize = 1_000;

/// Whole transactions that will be one chunk.
#[derive(Debug)]
pub(crate) struct FoldedBacklog {
    spill: Spill,
    /// `None` after changes that contradict one another.
    plan: Option<Plan>,
    digest: Digest,
    /// Takes no more transactions.
    closed: bool,
}

/// Limits of what may be folded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BacklogRoom {
    /// Rows to write.
    pub(crate) rows: usize,
    /// Bytes of these rows.
    pub(crate) bytes: usize,
    /// Bytes of the changes as they came.
    pub(crate) file_bytes: u64,
    /// Number of transactions. More than have fitted in a set are not worth gathering.
    pub(crate) transactions: usize,
}

impl FoldedBacklog {
    /// Makes an empty one. `file` is empty, and this owns it from now on.
    pub(crate) fn new(file: File, binary: bool) -> FoldedBacklog {
        FoldedBacklog {
            spill: Spill::new(file),
            plan: Some(Plan::detached(binary)),
            digest: Digest::default(),
            closed: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.digest.transactions == 0
    }

    /// Whether the transactions that end in `batch` fit.
    pub(crate) fn has_room(&self, batch: &Batch, room: BacklogRoom) -> bool {
        let Some(plan) = &self.plan else { return false };
        !self.closed
            && plan.rows() + batch.changes.len() <= room.rows
            && plan.single_rows() <= SINGLE_ROWS_MAX
            && plan.bytes() + batch.bytes <= room.bytes
            && self.digest.transactions + batch.ends.len() <= room.transactions
            && self.spill.byte_len() + batch.bytes as u64 <= room.file_bytes
    }

    /// Adds `whole`, which has no open transaction; returns it if the file cannot be written.
    pub(crate) fn add(&mut self, whole: Batch) -> Result<(), Batch> {
        debug_assert!(whole.open.is_none());
        if let Err(error) = self.spill.add(&whole) {
            tracing::warn!(
                "pgsluice cannot put changes aside in the spool directory, so batches stay small: {error}; make \
                 room there"
            );
            self.closed = true;
            return Err(whole);
        }
        self.digest.extend(&Digest::of(&whole));
        let folded = self.plan.as_mut().is_some_and(|plan| plan.add_all(&whole.changes).is_ok());
        if !folded {
            self.plan = None;
        }
        Ok(())
    }

    pub(crate) fn into_chunk(self) -> Chunk {
        let FoldedBacklog { spill, plan, digest, .. } = self;
        let originals = Originals::Disk(spill.into_spilled());
        Chunk { originals, digest, plan, first: true, last: true, each: false }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock};

    use base::{Lsn, PgTimestamp, Xid};
    use plan::{Change, Table, fixtures};
    use proto::pgoutput::{Column, CommitInfo, OldTuple, Tuple};
    use txn::{Begin, Op, stored_origin};

    use super::*;

    const ROOM: BacklogRoom =
        BacklogRoom { rows: 1_000, bytes: 1_000_000, file_bytes: 1_000_000, transactions: 1_000 };

    fn table() -> Arc<Table> {
        static TABLE: LazyLock<Arc<Table>> = LazyLock::new(fixtures::table);
        Arc::clone(&TABLE)
    }

    fn scratch() -> File {
        tempfile::tempfile().unwrap()
    }

    fn tuple(id: usize, a: Option<&str>) -> Tuple {
        let id = id.to_string();
        let a = a.map_or(Column::Unchanged, |a| Column::Text(a.as_bytes()));
        [Column::Text(id.as_bytes()), a, Column::Null].into_iter().collect()
    }

    fn row(op: Op) -> Change {
        Change::Row { table: table(), op }
    }

    /// Every kind of change, and a transaction that was skipped.
    fn batch(first: u32) -> Batch {
        let key = |id| OldTuple { key_only: true, tuple: tuple(id, None) };
        let full = OldTuple { key_only: false, tuple: tuple(7, Some("full")) };
        let transactions = [
            vec![row(Op::Insert(tuple(1, Some("x")))), row(Op::Update { old: None, new: tuple(1, None) })],
            vec![],
            vec![
                row(Op::Update { old: Some(full), new: tuple(7, Some("y")) }),
                row(Op::Delete(key(7))),
                Change::Truncate { tables: vec![table()], restart_identity: true },
            ],
        ];
        let mut batch = Batch::default();
        for (xid, changes) in (first..).zip(transactions) {
            let skipped = changes.is_empty();
            changes.into_iter().for_each(|change| batch.push(change));
            let lsn = |n| Lsn::new(u64::from(xid) * 100 + n);
            let origin = if xid % 2 == 0 { None } else { stored_origin(&"elsewhere".repeat(50)) };
            let begin = Begin { xid: Xid(xid), final_lsn: lsn(1), commit_time: PgTimestamp(-5), origin };
            let commit = CommitInfo { commit_lsn: lsn(1), end_lsn: lsn(2), commit_time: PgTimestamp(9) };
            batch.end(begin, commit, skipped);
        }
        batch
    }

    fn shown(batches: &[Batch]) -> Vec<String> {
        let mut all = Vec::new();
        for batch in batches {
            let mut start = 0;
            for end in &batch.ends {
                all.extend(batch.changes[start..end.changes_end].iter().map(|change| format!("{change:?}")));
                all.push(format!("{:?} {:?} {}", end.begin, end.commit, end.skipped));
                start = end.changes_end;
            }
        }
        all
    }

    #[test]
    fn changes_come_back_as_they_were_put_aside() {
        let mut folded = FoldedBacklog::new(scratch(), false);
        for first in [10, 20, 30] {
            assert!(folded.has_room(&batch(first), ROOM));
            folded.add(batch(first)).unwrap();
        }
        assert_eq!(folded.digest.transactions, 9);
        let chunk = folded.into_chunk();
        assert_eq!((chunk.digest.skipped, chunk.digest.tally.updates), (3, 6));
        let Originals::Disk(spilled) = chunk.originals else { panic!("not on disk") };
        let mut reader = spilled.read().unwrap();
        let mut read = Vec::new();
        while let Some(batch) = reader.next(1).unwrap() {
            assert!(batch.ends.len() < 3, "one transaction exceeds a byte");
            read.push(batch);
        }
        assert_eq!(shown(&read), shown(&[batch(10), batch(20), batch(30)]));
    }

    #[test]
    fn what_cannot_be_written_is_given_back_and_what_was_stays() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut folded = FoldedBacklog::new(scratch(), false);
        folded.add(batch(10)).unwrap();
        // A file that may not be written to stands for a full disk.
        let closed = File::open(path.path()).unwrap();
        let writable = folded.spill.exchange(closed);
        let back = folded.add(batch(20)).unwrap_err();
        assert_eq!(shown(&[back]), shown(&[batch(20)]));
        assert!(!folded.has_room(&batch(20), ROOM), "nothing more is folded");
        folded.spill.exchange(writable);
        let Originals::Disk(spilled) = folded.into_chunk().originals else { panic!("not on disk") };
        let read = spilled.read().unwrap().next(usize::MAX).unwrap().unwrap();
        assert_eq!(shown(&[read]), shown(&[batch(10)]));
    }

    #[test]
    fn a_row_that_is_written_again_takes_no_more_room() {
        let mut folded = FoldedBacklog::new(scratch(), false);
        let update = |n: usize| {
            let mut batch = batch(10);
            batch.changes = vec![row(Op::Update { old: None, new: tuple(n % 10, Some("value")) })];
            batch.ends.truncate(1);
            batch.ends[0].changes_end = 1;
            batch
        };
        for n in 0..500 {
            folded.add(update(n)).unwrap();
        }
        let plan = folded.plan.as_ref().unwrap();
        assert_eq!(plan.rows(), 10);
        assert!(plan.bytes() < 10 * 300, "{}", plan.bytes());
        assert_eq!(folded.digest.tally.updates, 500);
    }

    #[test]
    fn rows_that_each_take_a_statement_are_not_gathered() {
        let mut folded = FoldedBacklog::new(scratch(), false);
        let mut moves = batch(10);
        let moved = |n| {
            let old = OldTuple { key_only: true, tuple: tuple(n, None) };
            row(Op::Update { old: Some(old), new: tuple(n + 10_000, Some("x")) })
        };
        moves.changes = (0..=SINGLE_ROWS_MAX).map(moved).collect();
        moves.ends.truncate(1);
        moves.ends[0].changes_end = moves.changes.len();
        assert!(folded.has_room(&batch(10), BacklogRoom { rows: 10_000, ..ROOM }));
        folded.add(moves).unwrap();
        assert!(!folded.has_room(&batch(10), BacklogRoom { rows: 10_000, ..ROOM }));
    }

    #[test]
    fn changes_that_contradict_one_another_end_it() {
        let mut folded = FoldedBacklog::new(scratch(), false);
        for _ in 0..2 {
            let mut twice = batch(10);
            twice.changes = vec![row(Op::Insert(tuple(1, Some("x"))))];
            twice.ends.truncate(1);
            twice.ends[0].changes_end = 1;
            folded.add(twice).unwrap();
        }
        assert!(!folded.has_room(&batch(10), ROOM));
        let chunk = folded.into_chunk();
        assert!(chunk.plan.is_none());
        assert_eq!(chunk.digest.transactions, 2);
    }
}
