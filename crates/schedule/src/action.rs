//! What a worker must do with a chunk.

use crate::Split;

/// The next step of chunk `number`, for session `worker`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Execute the part that is not late before the chunk's turn, and keep the transaction open.
    Speculate {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
        /// What must wait for the turn.
        split: Split,
    },
    /// Execute the late part and commit.
    Finish {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
    },
    /// Execute everything and commit.
    Whole {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
    },
    /// The chunk did not hold: apply it with nothing else open, by whatever path works.
    Replay {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
        /// Try it as a set once more, because other chunks may have been the reason.
        again: bool,
    },
    /// Execute a barrier.
    Alone {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
    },
    /// Cancel the running statement, and report when the server has the request.
    Cancel {
        /// The chunk.
        number: u64,
        /// The session.
        worker: usize,
    },
    /// Roll the transaction back, whatever its state.
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
