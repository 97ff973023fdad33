//! The settings of an applier, and limits derived from them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, Oid, SubscriptionName};
use prefetch::PrefetchOptions;
use state::{CopiedFrom, TableKey};

use crate::snapshot_gate::SnapshotGate;

/// A batch is full at this fraction of the maximum written at once; the rest is for the folded
/// backlog. A part of a large transaction has the same size.
const BATCHES: usize = 4;
/// Waiting for a batch of more rows does not pay.
const BATCH_ROWS: usize = 10_000;
/// Where each transaction goes by itself, this many rows may wait behind it, so that prefetch can
/// read ahead. While work is being executed, this many changes are worth another session and two
/// more round trips. A smaller set costs the target more than it gains; changes that wait a little
/// longer are folded.
pub(crate) const AHEAD_ROWS: usize = 2_000;

/// How an applier works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Names the sessions and the origin.
    pub subscription: SubscriptionName,
    /// The stream's values are in binary form where types have one.
    pub binary: bool,
    /// Changes that came to the source by replication are left out (`origin = none`).
    pub local_only: bool,
    /// The present types of the source's columns, from which `binary` was decided, if it was. Older
    /// WAL may have been written with other types.
    pub types: Option<Arc<SourceTypes>>,
    /// `synchronous_commit` of the sessions that apply.
    pub synchronous_commit: String,
    /// Maximum rows that are written as one batch.
    pub batch_rows_max: usize,
    /// Maximum bytes of these rows.
    pub batch_bytes_max: usize,
    /// One source transaction is one target transaction (rule F3).
    pub keep_transactions: bool,
    /// Apply every change by a statement of its own (exact replay), as after a batch that does not
    /// fit; for tests of that path.
    pub exact_only: bool,
    /// Continue where `session_replication_role` may not be set.
    pub allow_triggers: bool,
    /// Both databases are in SQL_ASCII. Their bytes pass unconverted, and the stream was asked not
    /// to convert them either.
    pub unconverted: bool,
    /// Maximum number of sessions that apply at the same time.
    pub workers: usize,
    /// Whether transactions become visible in the source's order.
    pub commit_order: CommitOrder,
    /// The stream may bring transactions while they are open. Where order is preserved, one more
    /// session executes them as they arrive.
    pub streaming: bool,
    /// The source relations that the tables were copied from.
    pub copied_from: CopiedFrom,
    /// Commit LSN of the transaction to skip.
    pub skip_lsn: Option<Lsn>,
    /// How conflicts are resolved.
    pub conflict_rules: conflict::Rules,
    /// Rows that others wrote are conflicts even without a rule, if the target knows who wrote
    /// them.
    pub detect_origin_differs: bool,
    /// The source and the target, which decide between equal commit times; `None` where one of them
    /// is not known.
    pub conflict_nodes: Option<(conflict::Node, conflict::Node)>,
    /// The longest hold of a transaction whose commit time the target's clock has not passed, where
    /// a rule compares commit times; `None` for no limit.
    pub clock_skew_max: Option<Duration>,
    /// Which rows the target lost; `None` if nobody remembers that.
    pub retention: Option<Arc<retention::Retention>>,
    /// Holds the stream between transactions on request.
    pub gate: Arc<SnapshotGate>,
    /// Whether conflicts are recorded on the target.
    pub conflict_history: bool,
    /// Whether records and messages of conflicts have keys and rows.
    pub conflict_log_values: bool,
    /// Settings of prefetching; `None` if it is off.
    pub prefetch: Option<PrefetchOptions>,
}

/// Types of the source's columns, by table and column name.
pub type SourceTypes = HashMap<TableKey, HashMap<String, Oid>>;

/// Whether transactions become visible on the target in the source's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOrder {
    /// In the source's order.
    Preserve,
    /// A transaction that is independent of all earlier ones may commit before them.
    Relaxed,
}

/// The number of sessions that apply, if the target has room. Each of `workers` takes one. Where
/// order is preserved and `streaming` is on, one more executes transactions while they are open.
#[must_use]
pub fn sessions(workers: usize, order: CommitOrder, streaming: bool) -> usize {
    workers + usize::from(streaming && (order == CommitOrder::Preserve || workers == 1))
}

impl Options {
    pub(crate) fn batch_rows(&self) -> usize {
        let most = if self.keep_transactions { AHEAD_ROWS } else { BATCH_ROWS };
        (self.batch_rows_max / BATCHES).clamp(1, most)
    }

    /// Whether transactions commit out of order with this many workers.
    pub(crate) fn is_relaxed(&self, workers: usize) -> bool {
        self.commit_order == CommitOrder::Relaxed && workers > 1
    }

    pub(crate) fn sessions(&self) -> usize {
        sessions(self.workers, self.commit_order, self.streaming && !self.exact_only)
    }

    /// Maximum bytes of a batch with this many workers.
    pub(crate) fn batch_bytes(&self, workers: usize) -> usize {
        self.batch_bytes_max / workers.max(BATCHES)
    }
}
