//! What an assembler hands out: transactions in events, and what happened to each row.

use std::sync::Arc;

use base::{Lsn, PgTimestamp, Xid};
use proto::pgoutput::{CommitInfo, OldTuple, Relation, Tuple};

/// The start of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Its id on the source.
    pub xid: Xid,
    /// The LSN of its commit record, by which it is skipped or joined.
    pub final_lsn: Lsn,
    /// The time of its commit.
    pub commit_time: PgTimestamp,
    /// The origin by which it came to the source, if it was not made there and the source says so.
    /// Of a transaction that was not streamed, [`Event::Origin`] tells it afterwards.
    pub origin: Option<&'static str>,
}

/// A row that changed.
#[derive(Debug, Clone)]
pub struct Change {
    /// The relation as the source described it before this change.
    pub relation: Arc<Relation>,
    /// What happened to the row.
    pub op: Op,
}

/// What happened to a row.
#[derive(Debug, Clone)]
pub enum Op {
    /// A new row.
    Insert(Tuple),
    /// A changed row.
    Update {
        /// The old identity, or the old row under FULL; absent if the identity is unchanged.
        old: Option<OldTuple>,
        /// The new row.
        new: Tuple,
    },
    /// A deleted row.
    Delete(OldTuple),
}

impl Op {
    /// A copy in memory of its own; see [`Tuple::detached`].
    #[must_use]
    pub fn detached(&self) -> Op {
        let old = |old: &OldTuple| OldTuple { key_only: old.key_only, tuple: old.tuple.detached() };
        match self {
            Op::Insert(new) => Op::Insert(new.detached()),
            Op::Update { old: before, new } => {
                Op::Update { old: before.as_ref().map(old), new: new.detached() }
            }
            Op::Delete(before) => Op::Delete(old(before)),
        }
    }

    /// Bytes of the row data, for limits.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        match self {
            Op::Insert(new) => new.byte_len(),
            Op::Update { old, new } => new.byte_len() + old.as_ref().map_or(0, |old| old.tuple.byte_len()),
            Op::Delete(old) => old.tuple.byte_len(),
        }
    }
}

/// Tables truncated by one statement.
#[derive(Debug, Clone)]
pub struct TruncateChange {
    /// The tables.
    pub relations: Vec<Arc<Relation>>,
    /// The statement said RESTART IDENTITY.
    pub restart_identity: bool,
}

/// Part of a whole transaction.
#[derive(Debug, Clone)]
pub enum Event {
    /// The transaction begins.
    Begin(Begin),
    /// The transaction came to the source by this origin. A streamed one has it in its [`Begin`].
    Origin(&'static str),
    /// A row changed.
    Change(Change),
    /// Tables were truncated.
    Truncate(TruncateChange),
    /// The transaction is complete.
    Commit(CommitInfo),
}
