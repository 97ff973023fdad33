//! The messages of the output plugin pgoutput, protocol versions 1 to 4.
//!
//! [`decode()`] is handed the data of one XLogData message and returns one [`Message`]. [`encode`]
//! goes the other way. Tuples stay bytes: [`Tuple`] is checked once, here, so that walking its
//! columns later cannot fail, and no value is copied. Inside a stream block (between stream start
//! and stream stop), most messages carry the id of their (sub)transaction. The caller says whether
//! it is in a block, because the bytes do not.
//!
//! Does not belong here: what a relation id means, which transaction a change belongs to, and what
//! to do with a message. Source: the chapter "Logical Replication Message Formats" and
//! `src/backend/replication/logical/proto.c`.

mod decode;
pub mod encode;
mod tuple;

use std::fmt;

use base::{Lsn, Oid, PgTimestamp, Xid};
use bytes::Bytes;

pub use decode::decode;
pub use tuple::{Column, Columns, Tuple, TupleBuilder};

/// How the publisher identifies a row of a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// By the primary key, if there is one.
    Default,
    /// Not at all: no UPDATE or DELETE can be published.
    Nothing,
    /// By all columns.
    Full,
    /// By a chosen unique index.
    Index,
}

/// One column of a relation as the publisher describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationColumn {
    /// Part of the replica identity (every column under FULL).
    pub identity: bool,
    /// The column's name.
    pub name: String,
    /// The publisher's type id. Only ids below 16384 mean the same here.
    pub type_oid: Oid,
    /// The type modifier, -1 for none.
    pub typmod: i32,
}

/// `R`: the description of a relation from here on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// The publisher's id of the relation.
    pub id: Oid,
    /// Its schema. pgoutput sends `pg_catalog` as the empty name; this is the real name.
    pub namespace: String,
    /// Name without schema.
    pub name: String,
    /// How rows are identified.
    pub identity: ReplicaIdentity,
    /// The published columns, in the order of the tuples.
    pub columns: Vec<RelationColumn>,
}

/// The old row of an UPDATE or DELETE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldTuple {
    /// Whether only identity columns are given and the others are NULL. Otherwise it is the whole
    /// row (replica identity FULL).
    pub key_only: bool,
    /// The values.
    pub tuple: Tuple,
}

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitInfo {
    /// Where the commit record starts: PostgreSQL's "finished at".
    pub commit_lsn: Lsn,
    /// Where the commit record ends. This may be confirmed once the transaction is durable.
    pub end_lsn: Lsn,
    /// When it committed on the publisher.
    pub commit_time: PgTimestamp,
}

/// One message of pgoutput.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// `B`
    Begin {
        /// The LSN of the commit record. It is known because decoding happens at commit.
        final_lsn: Lsn,
        /// When it committed.
        commit_time: PgTimestamp,
        /// Its id.
        xid: Xid,
    },
    /// `C`
    Commit(CommitInfo),
    /// `O`: the transaction was replayed from another server.
    Origin {
        /// Its commit there.
        lsn: Lsn,
        /// The origin's name on the publisher.
        name: String,
    },
    /// `R`
    Relation(Relation),
    /// `Y`: the name of a type that a relation uses.
    Type {
        /// The publisher's id.
        id: Oid,
        /// Schema of the type (of the base type for a domain).
        namespace: String,
        /// Name of the type (of the base type for a domain).
        name: String,
    },
    /// `I`
    Insert {
        /// The publisher's id of the relation.
        relation: Oid,
        /// The new row.
        new: Tuple,
    },
    /// `U`
    Update {
        /// The publisher's id of the relation.
        relation: Oid,
        /// The old row, if the identity changed, or under FULL.
        old: Option<OldTuple>,
        /// The new row, without unchanged TOAST values.
        new: Tuple,
    },
    /// `D`
    Delete {
        /// The publisher's id of the relation.
        relation: Oid,
        /// The deleted row.
        old: OldTuple,
    },
    /// `T`
    Truncate {
        /// The publisher's ids of the relations.
        relations: Vec<Oid>,
        /// The statement said CASCADE.
        cascade: bool,
        /// The statement said RESTART IDENTITY.
        restart_identity: bool,
    },
    /// `M`: `pg_logical_emit_message`.
    Logical {
        /// Whether it belongs to a transaction.
        transactional: bool,
        /// Its position.
        lsn: Lsn,
        /// Its addressee.
        prefix: String,
        /// Its content.
        content: Bytes,
    },
    /// `S`: changes of an open transaction follow until stream stop.
    StreamStart {
        /// The top-level transaction.
        xid: Xid,
        /// Whether this is the first part of it that is sent.
        first_segment: bool,
    },
    /// `E`
    StreamStop,
    /// `c`: a streamed transaction committed.
    StreamCommit {
        /// The top-level transaction.
        xid: Xid,
        /// Position and time of the commit.
        commit: CommitInfo,
    },
    /// `A`: a streamed transaction, or one of its subtransactions, aborted.
    StreamAbort {
        /// The top-level transaction.
        xid: Xid,
        /// The aborted (sub)transaction; equal to `xid` for the whole transaction.
        subxid: Xid,
    },
    /// `b`, `P`, `K`, `r`, `p`: two-phase messages. A slot without TWO_PHASE never sends them.
    TwoPhase {
        /// The message's byte.
        kind: u8,
    },
}

/// Bytes that are no message of pgoutput.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    kind: Option<u8>,
    /// The position of the error in the message.
    at: usize,
    reason: &'static str,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => {
                write!(f, "pgoutput message '{}', byte {}: {}", kind.escape_ascii(), self.at, self.reason)
            }
            None => write!(f, "pgoutput message: {}", self.reason),
        }
    }
}

impl std::error::Error for DecodeError {}
