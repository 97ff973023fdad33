//! Why messages cannot be made into transactions.

use std::fmt;
use std::io;

use base::{Lsn, Oid, Xid};
use proto::pgoutput::{DecodeError, Message};

use super::event::Begin;

/// The stream was not what pgoutput sends, or the spool failed.
#[derive(Debug)]
pub struct AssemblyError(pub(super) Kind, pub(super) Option<Begin>);

#[derive(Debug)]
pub(super) enum Kind {
    Decode(DecodeError),
    OutOfPlace {
        message: &'static str,
        state: &'static str,
    },
    UnknownRelation(Oid),
    /// A row has more or fewer values than its relation has columns.
    Columns {
        relation: String,
        values: usize,
        columns: usize,
    },
    /// A value came in binary form, which was not requested.
    Binary {
        relation: String,
    },
    /// BEGIN named another commit than the one that came.
    Commit {
        announced: Lsn,
        came: Lsn,
    },
    TwoPhase(u8),
    Spool {
        xid: Xid,
        error: io::Error,
    },
}

const STREAM: &str = "the source's stream cannot be read";

/// A single occurrence points to the network or a proxy; nothing of the transaction was applied.
const REMEDY: &str = "pgsluice reads it again from the last commit; if this repeats, check what stands between, and \
                      look for a pgsluice that knows this server";

impl AssemblyError {
    /// Whether the disk failed, and not the stream; another try later may succeed.
    #[must_use]
    pub fn is_disk(&self) -> bool {
        matches!(self.0, Kind::Spool { .. })
    }
}

impl fmt::Display for AssemblyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_stream = !matches!(self.0, Kind::TwoPhase(_) | Kind::Spool { .. });
        if is_stream {
            write!(f, "{STREAM}: ")?;
        }
        self.0.fmt(f)?;
        if let Some(begin) = &self.1 {
            write!(f, ", in transaction {} that finished at {}", begin.xid, begin.final_lsn)?;
        }
        write!(f, "; {}", self.0.remedy())
    }
}

impl Kind {
    fn remedy(&self) -> &'static str {
        match self {
            Kind::TwoPhase(_) => "drop the slot and start again: pgsluice drop",
            Kind::Spool { .. } => "make room there or give another --state-dir; pgsluice receives it again",
            _ => REMEDY,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Decode(error) => error.fmt(f),
            Kind::OutOfPlace { message, state } => write!(f, "{message} came {state}"),
            Kind::UnknownRelation(id) => {
                write!(f, "a change came for relation {id}, which the source has not described")
            }
            Kind::Columns { relation, values, columns } => write!(
                f,
                "a row with {values} values came for relation \"{relation}\", which has {columns} columns"
            ),
            Kind::Binary { relation } => {
                write!(f, "a binary value that was not asked for came for relation \"{relation}\"")
            }
            Kind::Commit { announced, came } => {
                write!(f, "a commit at {came} came where {announced} was announced")
            }
            Kind::TwoPhase(kind) => write!(
                f,
                "two-phase message '{}' came from a slot that pgsluice creates without two_phase",
                char::from(*kind).escape_default()
            ),
            Kind::Spool { xid, error } => write!(f, "spooling open transaction {xid}: {error}"),
        }
    }
}

impl std::error::Error for AssemblyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Decode(error) => Some(error),
            Kind::Spool { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<DecodeError> for AssemblyError {
    fn from(error: DecodeError) -> Self {
        Kind::Decode(error).into()
    }
}

impl From<Kind> for AssemblyError {
    fn from(kind: Kind) -> Self {
        AssemblyError(kind, None)
    }
}

/// What an error calls a message.
pub(super) fn name(message: &Message) -> &'static str {
    match message {
        Message::Begin { .. } => "begin",
        Message::Commit(_) => "commit",
        Message::Origin { .. } => "origin",
        Message::Relation(_) => "relation",
        Message::Type { .. } => "type",
        Message::Insert { .. } => "insert",
        Message::Update { .. } => "update",
        Message::Delete { .. } => "delete",
        Message::Truncate { .. } => "truncate",
        Message::Logical { .. } => "logical message",
        Message::StreamStart { .. } => "stream start",
        Message::StreamStop => "stream stop",
        Message::StreamCommit { .. } => "stream commit",
        Message::StreamAbort { .. } => "stream abort",
        Message::TwoPhase { .. } => "two-phase message",
    }
}
