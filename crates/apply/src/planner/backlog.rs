//! The changes that no session has yet: gathered in a batch, folded, or put aside in a file.
//!
//! Changes enter in the order of the stream, between the begin and the end of their transaction.
//! They leave as chunks in the same order:
//!
//! ```text
//!   folded backlog (whole transactions) --> batch (whole ones, then the open one)
//!                                           or: a large open transaction in its file
//! ```
//! - A full batch of whole transactions is folded while all sessions are busy
//!   ([`crate::folded_backlog`]).
//! - A transaction larger than a batch leaves in parts: one is executed, one waits and one grows.
//!   The target commits the transaction when its commit has come.
//! - Where other transactions may commit first, the large one stands aside in a file instead
//!   ([`crate::large`]).
//!
//! When a chunk leaves is not decided here.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Lsn;
use plan::{Batch, Change};
use proto::pgoutput::CommitInfo;
use schedule::Footprint;
use txn::Begin;

use crate::applier::{AHEAD_ROWS, Options};
use crate::chunk::Chunk;
use crate::counters::Counters;
use crate::error::{Error, Kind};
use crate::executor::span;
use crate::folded_backlog::{BacklogRoom, FILES_MAX, FoldedBacklog};
use crate::large::{Large, UnfinishedLarge};
use crate::shared_progress::{PerTransactionCost, SharedProgress};

/// With `keep_transactions` and several sessions: after this many transactions handed over one by
/// one, the planner tries one session again.
const KEPT_APART: u64 = 1_000;

/// Makes a file that is deleted with its last handle.
type Scratch<'s> = &'s mut dyn FnMut() -> io::Result<File>;

/// See the module.
pub(crate) struct Backlog {
    batch: Batch,
    /// Folded transactions that come before those of the batch.
    folded: Option<FoldedBacklog>,
    /// A large transaction that stands aside, while its changes arrive or just after its end.
    growing: Option<UnfinishedLarge>,
    /// The transaction whose changes are arriving.
    open: Option<Begin>,
    /// The batch continues a transaction whose earlier parts were handed over.
    continues: bool,
    limits: Limits,
    /// How many transactions fit in one set; the executor decides.
    fitting: Arc<AtomicUsize>,
    /// The cost of transactions that stay single (`keep_transactions`), and how many of them went
    /// to several sessions because of that cost.
    kept: Arc<PerTransactionCost>,
    kept_apart: u64,
    counters: Arc<Counters>,
}

/// What bounds the backlog, and how it leaves.
struct Limits {
    /// Rows and bytes of a full batch.
    batch_rows: usize,
    batch_bytes: usize,
    /// The room of the folded backlog, without its number of transactions.
    folded: BacklogRoom,
    /// The number of sessions that apply.
    workers: usize,
    /// The form of the stream's values.
    binary: bool,
    /// Each source transaction stays one.
    keep_transactions: bool,
    exact_only: bool,
    /// Transactions commit out of order.
    relaxed: bool,
}

impl Limits {
    fn new(options: &Options, workers: usize, relaxed: bool) -> Limits {
        let folded = BacklogRoom {
            rows: options.batch_rows_max,
            // All workers together may use as many bytes as one worker alone.
            bytes: options.batch_bytes_max / workers,
            file_bytes: FILES_MAX / (workers as u64 + 1),
            transactions: 0,
        };
        Limits {
            batch_rows: options.batch_rows(),
            batch_bytes: options.batch_bytes(workers),
            folded,
            workers,
            binary: options.binary,
            keep_transactions: options.keep_transactions,
            exact_only: options.exact_only,
            relaxed,
        }
    }
}

impl Backlog {
    /// Begins empty, for this many `workers`.
    pub(crate) fn new(options: &Options, workers: usize, shared: &SharedProgress) -> Backlog {
        Backlog {
            batch: Batch::default(),
            folded: None,
            growing: None,
            open: None,
            continues: false,
            limits: Limits::new(options, workers, shared.is_relaxed()),
            fitting: shared.fitting(),
            kept: Arc::clone(&shared.kept),
            kept_apart: 0,
            counters: Arc::clone(&shared.counters),
        }
    }

    /// Begins a transaction, or says more of the one that has begun.
    pub(super) fn begin(&mut self, begin: Begin) {
        self.open = Some(begin);
    }

    /// Adds a change of the open transaction.
    pub(super) fn push(&mut self, change: Change) {
        let before = self.batch.bytes;
        self.batch.push(change);
        let added = (self.batch.bytes - before) as u64;
        self.counters.queued_bytes.fetch_add(added, Ordering::Relaxed);
    }

    /// Ends the open transaction. Returns false if it has left no trace here: it has no changes,
    /// and was not `skipped` on request.
    pub(super) fn end(&mut self, commit: CommitInfo, skipped: bool) -> bool {
        let Some(begin) = self.open.take() else { return false };
        let start = self.batch.ends.last().map_or(0, |end| end.changes_end);
        let has_begun = self.continues || self.growing.is_some();
        if !has_begun && self.batch.changes.len() == start && !skipped {
            return false;
        }
        self.batch.end(begin, commit, skipped);
        true
    }

    /// Whether the batch is full.
    pub(super) fn is_full(&self) -> bool {
        self.batch.changes.len() >= self.limits.batch_rows || self.batch.bytes >= self.limits.batch_bytes
    }

    /// Whether nothing more may be added before something leaves: the batch is full, or it ends a
    /// large transaction, whose last part is committed by itself.
    pub(super) fn is_closed(&self) -> bool {
        self.is_full()
            || self.continues && self.is_ready()
            || self.growing.is_some() && !self.batch.ends.is_empty()
    }

    /// Whether a whole transaction is ready to hand over.
    pub(super) fn is_ready(&self) -> bool {
        !self.batch.ends.is_empty() || self.folded.is_some()
    }

    /// Whether one idle session is enough to hand over the backlog. A smaller batch waits for all.
    pub(super) fn is_worth_a_session(&self) -> bool {
        let rows = self.limits.batch_rows.min(AHEAD_ROWS);
        self.folded.is_some()
            || self.is_full()
            || self.batch.changes.len() >= rows
            || self.limits.keep_transactions
    }

    /// Whether the next handover is a part of a large transaction, or a large transaction that
    /// stood aside.
    pub(super) fn is_in_parts(&self) -> bool {
        self.continues || !self.is_ready() || self.has_stood_aside()
    }

    /// Whether the next handover is a large transaction that stood aside.
    fn has_stood_aside(&self) -> bool {
        self.growing.is_some() && self.folded.is_none() && !self.batch.ends.is_empty()
    }

    /// Moves the changes of a large transaction into its file, if others may pass it. Returns false
    /// if the changes stay in the batch.
    pub(super) fn stand_aside(&mut self, scratch: Scratch<'_>) -> Result<bool, Error> {
        if !self.limits.relaxed || self.continues || !self.batch.ends.is_empty() || self.open.is_none() {
            return Ok(false);
        }
        let growing = match &mut self.growing {
            Some(growing) => growing,
            None => match scratch() {
                Ok(file) => self.growing.insert(UnfinishedLarge::new(file)),
                Err(error) => {
                    tracing::warn!(
                        "a large transaction delays others: {error}; make room in the spool directory"
                    );
                    return Ok(false);
                }
            },
        };
        let mut part = std::mem::take(&mut self.batch);
        part.open = self.open;
        self.counters.activity.disk(|| growing.add(&part)).map_err(Kind::PutAside)?;
        Ok(true)
    }

    /// Folds the whole transactions of the batch; returns false if they stay.
    pub(super) fn fold(&mut self, scratch: Scratch<'_>) -> bool {
        if !self.may_fold() {
            return false;
        }
        if self.folded.is_none() {
            match scratch() {
                Ok(file) => self.folded = Some(FoldedBacklog::new(file, self.limits.binary)),
                Err(error) => {
                    tracing::warn!("batches stay small: {error}; make room in the spool directory");
                    return false;
                }
            }
        }
        self.fold_more()
    }

    /// Whether the batch has transactions to fold. With `keep_transactions` they always stay, and
    /// so does the end of a transaction that was begun.
    fn may_fold(&self) -> bool {
        let stays = self.limits.keep_transactions || self.continues || self.growing.is_some();
        !self.batch.ends.is_empty() && !stays
    }

    fn fold_more(&mut self) -> bool {
        let Some(folded) = &mut self.folded else { return false };
        let room = BacklogRoom { transactions: self.fitting.load(Ordering::Relaxed), ..self.limits.folded };
        let whole = self.batch.take_whole();
        let has_room = folded.has_room(&whole, room);
        let result = if has_room { self.counters.activity.disk(|| folded.add(whole)) } else { Err(whole) };
        self.folded.take_if(|folded| folded.is_empty());
        let Err(whole) = result else { return true };
        self.batch.put_back(whole);
        false
    }

    /// Takes a large transaction that stood aside and has ended, if it comes next. The target then
    /// has everything up to `since`.
    pub(super) fn take_large(&mut self, since: Lsn) -> Result<Option<(Large, Footprint)>, Error> {
        if !self.has_stood_aside() {
            return Ok(None);
        }
        let Some(mut growing) = self.growing.take() else { return Ok(None) };
        growing.add(&self.batch.take_whole()).map_err(Kind::PutAside)?;
        let large = growing.into_large(since, self.limits.batch_rows);
        Ok(Some(large.ok_or(Kind::LostTask)?))
    }

    /// Takes the next chunk: all whole transactions, or the first few if each is to stay single, or
    /// a part of a transaction larger than a batch. The rest stays in the batch.
    pub(super) fn take_chunk(&mut self) -> Chunk {
        if self.folded.is_some() && self.may_fold() {
            self.fold_more();
        }
        let chunk = match (self.folded.take(), self.open) {
            (Some(folded), _) => folded.into_chunk(),
            (None, Some(begin)) if self.batch.ends.is_empty() => {
                let mut batch = std::mem::take(&mut self.batch);
                batch.open = Some(begin);
                Chunk::new(batch, !self.continues, self.limits.binary)
            }
            (None, _) => self.take_whole(),
        };
        self.continues = !chunk.last;
        if let (false, Some(begin)) = (chunk.last, self.open) {
            self.counters.set_part_handed(begin.final_lsn, begin.commit_time);
        }
        chunk
    }

    /// Takes the whole transactions of the batch, or those that may be handed over together.
    fn take_whole(&mut self) -> Chunk {
        let keeps = self.limits.keep_transactions;
        let batch = if keeps {
            let count = self.kept_at_a_time();
            self.batch.take_first(count)
        } else {
            self.batch.take_whole()
        };
        if keeps && batch.ends.len() > 1 {
            Chunk::each(batch)
        } else {
            Chunk::new(batch, !self.continues, self.limits.binary)
        }
    }

    /// How many transactions that stay single are handed over together: as many as can be
    /// pipelined. Each goes by itself where several sessions are faster.
    fn kept_at_a_time(&mut self) -> usize {
        if self.limits.relaxed || self.continues || self.limits.exact_only {
            return 1;
        }
        if self.limits.workers > 1 && self.kept.is_slow() && self.kept_apart < KEPT_APART {
            self.kept_apart += 1;
            return 1;
        }
        let count = self.batch.count_within(span::TRANSACTIONS_MAX, span::CHANGES_MAX, span::BYTES_MAX);
        if count > 1 {
            self.kept_apart = 0;
        }
        count
    }
}
