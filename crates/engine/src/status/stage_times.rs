//! CPU time of our own stages.

use serde::{Deserialize, Serialize};

/// What the stages of a subscription have taken of this machine's processors since the process
/// started, in microseconds. Copies and captured deletions are not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StageTimes {
    /// Receiving the stream.
    pub receive: u64,
    /// Decoding WAL; a share of it where one pass decodes for several subscriptions. 0 if the
    /// source decodes.
    pub decode: u64,
    /// Putting transactions together, and planning statements.
    pub plan: u64,
    /// Executing statements, of all sessions.
    pub write: u64,
}
