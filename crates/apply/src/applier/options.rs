//! The settings of an applier, and what follows from them.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Lsn, Oid, SubscriptionName};
use state::{CopiedFrom, TableKey};

use crate::gate::Gate;
use crate::prefetch::Options as PrefetchOptions;

/// A batch is full at this share of what is written at once: the rest is for
/// what is settled. It is also how large a part of a large transaction is.
const BATCHES: usize = 4;
/// A batch of more rows is not worth waiting for.
const BATCH_ROWS: usize = 10_000;
/// Where each transaction goes by itself, so many rows wait behind it, for who reads ahead. And while something is
/// being executed, so many changes are worth another session and two more round trips: a set of fewer costs the
/// target more than it is worth, and what waits a moment longer is folded.
pub(super) const AHEAD_ROWS: usize = 2_000;

/// How an applier works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Names sessions and origin.
    pub subscription: SubscriptionName,
    /// The stream's values are in binary form where types have one.
    pub binary: bool,
    /// What that was decided by, if it was: the types that the source's columns have now. What is read may have been
    /// written when they had others.
    pub types: Option<Arc<SourceTypes>>,
    /// `synchronous_commit` of the sessions that apply.
    pub synchronous_commit: String,
    /// Rows that are written as one batch, at most.
    pub batch_rows_max: usize,
    /// Bytes of them.
    pub batch_bytes_max: usize,
    /// One source transaction is one target transaction (rule F3).
    pub keep_transactions: bool,
    /// Every change is applied by itself, as after a batch that does not fit:
    /// for tests of that path.
    pub exact_only: bool,
    /// Go on where `session_replication_role` may not be set.
    pub allow_triggers: bool,
    /// Both databases are in SQL_ASCII: their bytes pass as they are, and the
    /// stream was asked not to convert them either.
    pub unconverted: bool,
    /// Sessions that apply at the same time, at most.
    pub workers: usize,
    /// Whether transactions become visible in the source's order.
    pub commit_order: CommitOrder,
    /// The stream may bring transactions while they are open: where order is preserved, they are then executed while
    /// they come, on a session besides.
    pub streaming: bool,
    /// The relations that the tables were copied from.
    pub copied_from: CopiedFrom,
    /// The transaction to pass over, by its commit LSN.
    pub skip_lsn: Option<Lsn>,
    /// Where the stream can be held between transactions.
    pub gate: Arc<Gate>,
    /// Pages that are read ahead, if any are.
    pub prefetch: Option<PrefetchOptions>,
}

/// Types of the source's columns, by table and name.
pub type SourceTypes = HashMap<TableKey, HashMap<String, Oid>>;

/// Whether transactions become visible on the target in the source's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOrder {
    /// They do.
    Preserve,
    /// One that is independent of all before it may commit before them.
    Relaxed,
}

/// Sessions that apply, if there is room for them on the target: one for each of `workers`, and where order is preserved
/// and the stream brings transactions while they are open (`streaming`), one that executes these while they come.
#[must_use]
pub fn sessions(workers: usize, order: CommitOrder, streaming: bool) -> usize {
    workers + usize::from(streaming && (order == CommitOrder::Preserve || workers == 1))
}

impl Options {
    pub(super) fn batch_rows(&self) -> usize {
        let most = if self.keep_transactions { AHEAD_ROWS } else { BATCH_ROWS };
        (self.batch_rows_max / BATCHES).clamp(1, most)
    }

    /// Whether transactions commit out of order, with so many workers.
    pub(crate) fn is_relaxed(&self, workers: usize) -> bool {
        self.commit_order == CommitOrder::Relaxed && workers > 1
    }

    pub(crate) fn sessions(&self) -> usize {
        sessions(self.workers, self.commit_order, self.streaming && !self.exact_only)
    }

    /// With so many workers.
    pub(super) fn batch_bytes(&self, workers: usize) -> usize {
        self.batch_bytes_max / workers.max(BATCHES)
    }
}
