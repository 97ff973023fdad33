//! The output of the reorder buffer: rows and the boundaries around them, as pgoutput's messages
//! have them.

use std::sync::Arc;

use base::{Lsn, PgTimestamp, Xid};
use decode::{OldTuple, RawTuple};

use super::toast::Chunks;

/// One step of the output. Rows, truncations and messages always stand between an opening and a
/// closing boundary. The exception is messages that do not belong to a transaction.
#[derive(Debug)]
pub enum ReorderedEvent<'a, R> {
    /// A transaction, or a block of one, begins or ends; or its outcome is known.
    Boundary(&'a Boundary),
    /// A row changed.
    Row(ReorderedRow<'a, R>),
    /// Tables were emptied.
    Truncate(ReorderedTruncate<'a, R>),
    /// `pg_logical_emit_message`.
    Message(ReorderedMessage<'a>),
}

/// Where transactions, and blocks of them, begin and end.
///
/// ```text
/// Begin rows* Commit                              a transaction that committed
/// BeginPrepare rows* Prepare                      one that was prepared, with two_phase
/// (StreamStart rows* StreamStop)+ StreamCommit    one that was too large to wait for its end, with streaming;
///                                 StreamPrepare   or StreamAbort of all of it
/// CommitPrepared, RollbackPrepared, StreamAbort   alone
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boundary {
    /// Begins a transaction that committed and was not streamed.
    Begin(Finished),
    /// The transaction is complete.
    Commit(Finished),
    /// Begins a transaction that was prepared and was not streamed.
    BeginPrepare(Prepared),
    /// The prepared transaction is complete; its outcome comes later.
    Prepare(Prepared),
    /// A transaction that was prepared before has committed.
    CommitPrepared {
        /// The transaction and its commit.
        commit: Finished,
        /// The name under which it was prepared.
        gid: Arc<[u8]>,
    },
    /// A transaction that was prepared before was rolled back.
    RollbackPrepared {
        /// How it was prepared, so that a receiver can find out whether it has the transaction.
        prepared: Prepared,
        /// Where the record of the rollback ends.
        end_lsn: Lsn,
        /// When it was rolled back.
        time: PgTimestamp,
    },
    /// A block of an open transaction begins.
    StreamStart {
        /// The top-level transaction.
        xid: Xid,
        /// It is the transaction's first block.
        first_segment: bool,
        /// The LSN of the block's first row.
        first_lsn: Lsn,
        /// The origin of that row.
        origin: Option<u16>,
    },
    /// The block ends.
    StreamStop {
        /// The top-level transaction.
        xid: Xid,
        /// The LSN of the block's last row.
        last_lsn: Lsn,
    },
    /// A transaction that was streamed committed.
    StreamCommit(Finished),
    /// A transaction that was streamed was prepared.
    StreamPrepare(Prepared),
    /// A streamed transaction, or one of its subtransactions, was aborted.
    StreamAbort {
        /// The top-level transaction.
        xid: Xid,
        /// The transaction itself, or the subtransaction.
        subxid: Xid,
        /// Where the abort record ends; invalid if a crash ended the transaction.
        end_lsn: Lsn,
        /// When it was aborted.
        time: PgTimestamp,
    },
}

/// The origin of a transaction that was replayed on the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The replication origin's number on the source.
    pub id: u16,
    /// The commit's position there; invalid if it is not known.
    pub lsn: Lsn,
}

/// A transaction that committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// Its top-level id.
    pub xid: Xid,
    /// Its first record that was kept.
    pub first_lsn: Lsn,
    /// Where its commit record starts.
    pub final_lsn: Lsn,
    /// Where the commit record ends.
    pub end_lsn: Lsn,
    /// When it committed, at its origin if it has one.
    pub commit_time: PgTimestamp,
    /// Its origin.
    pub origin: Option<Origin>,
}

/// A transaction that was prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Its top-level id.
    pub xid: Xid,
    /// Its first record that was kept.
    pub first_lsn: Lsn,
    /// Where the prepare record starts.
    pub prepare_lsn: Lsn,
    /// Where the prepare record ends.
    pub end_lsn: Lsn,
    /// When it was prepared, at its origin if it has one.
    pub prepare_time: PgTimestamp,
    /// The name under which it was prepared.
    pub gid: Arc<[u8]>,
    /// Its origin.
    pub origin: Option<Origin>,
}

/// A row that changed.
#[derive(Debug)]
pub struct ReorderedRow<'a, R> {
    /// The record's LSN.
    pub lsn: Lsn,
    /// The (sub)transaction.
    pub xid: Xid,
    /// The origin that the session was replaying.
    pub origin: Option<u16>,
    /// The relation as it was at the record.
    pub relation: &'a R,
    /// What happened to the row.
    pub action: RawAction<'a>,
    /// The large values that came with the row.
    pub chunks: &'a Chunks,
}

/// What happened to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawAction<'a> {
    /// A new row.
    Insert(RawTuple<'a>),
    /// A changed row.
    Update {
        /// The old row, as far as the replica identity requires it.
        old: Option<OldTuple<'a>>,
        /// The new row.
        new: RawTuple<'a>,
    },
    /// A deleted row, if the replica identity describes it.
    Delete(Option<OldTuple<'a>>),
}

/// Tables that one TRUNCATE emptied.
#[derive(Debug)]
pub struct ReorderedTruncate<'a, R> {
    /// The record's LSN.
    pub lsn: Lsn,
    /// The (sub)transaction.
    pub xid: Xid,
    /// The statement said CASCADE.
    pub cascade: bool,
    /// The statement said RESTART IDENTITY.
    pub restart_identity: bool,
    /// The wanted tables, in the record's order.
    pub relations: Vec<&'a R>,
}

/// A logical message in WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReorderedMessage<'a> {
    /// Where its record ends, the position that pgoutput reports.
    pub lsn: Lsn,
    /// The (sub)transaction; may be invalid if it is not transactional.
    pub xid: Xid,
    /// Whether it belongs to a transaction. If not, it came out when it was read, whatever happens
    /// to the transaction.
    pub transactional: bool,
    /// Its addressee.
    pub prefix: &'a [u8],
    /// Its content.
    pub content: &'a [u8],
}
