//! Transactions in flight that each stay one on the target, and how many of them are committed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use base::Lsn;
use plan::{Batch, Digest, Tally};

use crate::shared_progress::SharedProgress;

/// The server is asked for its answers behind this many transactions. What it sends wakes us;
/// asking behind each would cost a fifth of all the server's work.
pub(super) const ASK_EACH: usize = 8;
/// In a run of at most this many that cost does not matter: the server is asked behind each
/// transaction.
pub(super) const ASK_OF_FEW: usize = 16;

/// A transaction in flight.
pub(super) struct Sent {
    /// The number of statements up to its COMMIT, counted from the first transaction.
    pub(super) statements: usize,
    /// Rows that it writes.
    pub(super) written: u64,
    pub(super) changes: Range<usize>,
}

/// The transactions sent, and how many of them are known to be committed.
pub(super) struct SentTransactions<'b> {
    batch: &'b Batch,
    shared: Arc<SharedProgress>,
    pub(super) sent: Vec<Sent>,
    committed: usize,
    /// When a commit was first known, how many were known then, and when one was last known.
    times: Option<(Instant, usize, Instant)>,
    /// Where the next transaction's range of the stream begins.
    since: Lsn,
}

impl<'b> SentTransactions<'b> {
    /// For the first transactions of `batch`; everything done before them ends at `since`.
    pub(super) fn new(
        batch: &'b Batch,
        shared: &Arc<SharedProgress>,
        since: Lsn,
        sent: Vec<Sent>,
    ) -> SentTransactions<'b> {
        SentTransactions { batch, shared: Arc::clone(shared), sent, committed: 0, times: None, since }
    }

    /// Returns how many were committed, and sets `since` to the end of the last one.
    pub(super) fn finish(self, since: &mut Lsn) -> usize {
        if let Some((first, known, last)) = self.times {
            self.shared.kept.took(self.committed - known, last - first);
        }
        *since = self.since;
        self.committed
    }

    /// Reports the transactions that are committed now that the first `statements` statements are
    /// complete.
    pub(super) fn completed(&mut self, statements: usize) {
        let before = self.committed;
        while let Some(sent) = self.sent.get(self.committed).filter(|sent| sent.statements <= statements) {
            let end = &self.batch.ends[self.committed];
            self.shared.store(self.since, end);
            self.since = end.commit.end_lsn;
            let tally =
                Tally { written: sent.written, ..Tally::of(&self.batch.changes[sent.changes.clone()]) };
            self.shared.committed(tally, &Digest::of_ends(std::slice::from_ref(end)));
            self.committed += 1;
        }
        if self.committed > before {
            let now = Instant::now();
            let (first, known) = self.times.map_or((now, self.committed), |(first, known, _)| (first, known));
            self.times = Some((first, known, now));
        }
    }
}
