//! What a worker is told to do, and what it answers.

use base::Lsn;
use plan::{Digest, Plan};

use crate::chunk::{Chunk, Originals};
use crate::error::Error;
use crate::join::Join;
use crate::large::Large;
use crate::lock_watch::Wait;
use crate::open_transaction::{StreamedEnd, StreamedStart};

/// What a worker is told to do.
pub(super) enum Command {
    Speculate(Plan),
    Finish(Plan, Digest),
    Whole(Plan, Digest),
    /// Apply the chunk by whatever path works; try it as a set first if `again`.
    Replay {
        originals: Originals,
        digest: Digest,
        again: bool,
    },
    Chunk(Box<Chunk>),
    Large(Box<Large>),
    /// Execute a transaction while it is open, until it has its turn or must leave.
    Open(StreamedStart),
    /// Apply all of a streamed transaction that no worker has open.
    Ended(Box<StreamedEnd>),
    Join(Join),
    Rollback,
}

impl Command {
    /// Where the command's range of the stream begins, if it has one.
    pub(super) fn since(&self) -> Option<Lsn> {
        match self {
            Command::Finish(_, digest) | Command::Whole(_, digest) | Command::Replay { digest, .. } => {
                Some(digest.since)
            }
            Command::Chunk(chunk) => Some(chunk.digest.since),
            Command::Large(large) => Some(large.digest.since),
            Command::Speculate(_)
            | Command::Open(_)
            | Command::Ended(_)
            | Command::Join(_)
            | Command::Rollback => None,
        }
    }
}

/// The result of a command.
#[derive(Debug, Clone, Copy)]
pub(super) enum WorkerAnswer {
    Executed,
    Voided,
    Committed,
    Stumbled,
    RolledBack,
    /// The cancel request has reached the server.
    Cancelled,
    /// The answer to [`super::questions::Question::Head`].
    Waits(Wait),
    /// The open transaction was rolled back, and its worker is free again.
    Left,
    /// The session of the open transaction is lost.
    Lost,
    /// The answer to [`super::questions::Question::Open`].
    OpenWait(Wait),
}

/// The number of the chunk, and what became of it.
pub(super) type Report = (u64, Result<WorkerAnswer, Error>);
