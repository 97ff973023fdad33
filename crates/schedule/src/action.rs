//! What a worker is to do with a chunk.

use crate::Split;

/// The next step of chunk `number`, done by session `worker`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Execute what is not late before the chunk's turn, and keep the transaction open.
    Speculate {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
        /// What must wait for the turn.
        split: Split,
    },
    /// Execute what was late and commit.
    Finish {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
    },
    /// Execute all and commit.
    Whole {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
    },
    /// The chunk did not hold: apply it with nothing else open, whatever it takes.
    Replay {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
        /// Try it as a set once more, because others may have been the reason.
        again: bool,
    },
    /// Do a barrier.
    Alone {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
    },
    /// Cancel the running statement, and report when the server knows.
    Cancel {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
    },
    /// Roll back, whatever the state of the transaction.
    Rollback {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
    },
}

/// How a chunk is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// As a set.
    Set,
    /// From its file.
    Large,
}
