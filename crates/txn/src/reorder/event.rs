//! What comes out: rows and what stands around them, as pgoutput's messages have it.

use std::sync::Arc;

use base::{Lsn, PgTimestamp, Xid};
use decode::{OldTuple, RawTuple};

use super::toast::Chunks;

/// One step of the output. Rows, truncations and messages always stand between an opening and a closing boundary, but
/// for messages that do not belong to a transaction.
#[derive(Debug)]
pub enum Event<'a, R> {
    /// A transaction, or a block of one, begins or ends; or its fate is told.
    Boundary(&'a Boundary),
    /// A row changed.
    Row(Row<'a, R>),
    /// Tables were emptied.
    Truncate(Truncate<'a, R>),
    /// `pg_logical_emit_message`.
    Message(Message<'a>),
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
    /// A transaction begins that committed and has not been streamed.
    Begin(Finished),
    /// It is complete.
    Commit(Finished),
    /// A transaction begins that was prepared and has not been streamed.
    BeginPrepare(Prepared),
    /// It is complete; whether it commits comes later.
    Prepare(Prepared),
    /// A transaction that was prepared before has committed.
    CommitPrepared {
        /// Which, and when.
        commit: Finished,
        /// By which name it was prepared.
        gid: Arc<[u8]>,
    },
    /// A transaction that was prepared before was rolled back.
    RollbackPrepared {
        /// How it was prepared, by which a receiver knows whether it has it.
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
    /// What was streamed of a transaction, or of one of its subtransactions, is void.
    StreamAbort {
        /// The top-level transaction.
        xid: Xid,
        /// The same, or the subtransaction.
        subxid: Xid,
        /// Where the abort record ends; invalid when a crash ended it.
        end_lsn: Lsn,
        /// When it was aborted.
        time: PgTimestamp,
    },
}

/// Where a transaction comes from that was replayed on the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The replication origin's number on the source.
    pub id: u16,
    /// The commit there; invalid if it is not known.
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
    /// Where that ends.
    pub end_lsn: Lsn,
    /// When it committed, at its origin if it has one.
    pub commit_time: PgTimestamp,
    /// Where it comes from.
    pub origin: Option<Origin>,
}

/// A transaction that was prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Its top-level id.
    pub xid: Xid,
    /// Its first record that was kept.
    pub first_lsn: Lsn,
    /// Where the record starts that prepared it.
    pub prepare_lsn: Lsn,
    /// Where that ends.
    pub end_lsn: Lsn,
    /// When it was prepared, at its origin if it has one.
    pub prepare_time: PgTimestamp,
    /// By which name.
    pub gid: Arc<[u8]>,
    /// Where it comes from.
    pub origin: Option<Origin>,
}

/// A row that changed.
#[derive(Debug)]
pub struct Row<'a, R> {
    /// The record.
    pub lsn: Lsn,
    /// The (sub)transaction.
    pub xid: Xid,
    /// The origin that its session was replaying.
    pub origin: Option<u16>,
    /// The relation as it was at the record.
    pub relation: &'a R,
    /// What happened to the row.
    pub action: Action<'a>,
    /// The large values that came with it.
    pub chunks: &'a Chunks,
}

/// What happened to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// It is new.
    Insert(RawTuple<'a>),
    /// It changed.
    Update {
        /// What it was, as far as the replica identity asks for it.
        old: Option<OldTuple<'a>>,
        /// What it is.
        new: RawTuple<'a>,
    },
    /// It is gone; what it was, if the replica identity says it.
    Delete(Option<OldTuple<'a>>),
}

/// Tables that one TRUNCATE emptied.
#[derive(Debug)]
pub struct Truncate<'a, R> {
    /// The record.
    pub lsn: Lsn,
    /// The (sub)transaction.
    pub xid: Xid,
    /// CASCADE was said.
    pub cascade: bool,
    /// RESTART IDENTITY was said.
    pub restart_identity: bool,
    /// Which, in the record's order, without those that nobody wants.
    pub relations: Vec<&'a R>,
}

/// What somebody wrote into WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Where its record ends, which is what pgoutput says.
    pub lsn: Lsn,
    /// The (sub)transaction; may be invalid if it is not transactional.
    pub xid: Xid,
    /// It belongs to a transaction. If not, it came when it was read, whatever becomes of that.
    pub transactional: bool,
    /// Whom it is for.
    pub prefix: &'a [u8],
    /// What it says.
    pub content: &'a [u8],
}
