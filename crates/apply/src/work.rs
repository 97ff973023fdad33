//! What the planner hands over to the sessions that apply.

use base::Lsn;
use schedule::Footprint;
use tokio::sync::OwnedSemaphorePermit;

use crate::chunk::Chunk;
use crate::join::Join;
use crate::large::Large;
use crate::open_transaction::StreamedEnd;

/// See the module.
pub(crate) enum Work {
    /// The permit marks the executor as busy.
    Chunk(Box<Chunk>, Option<OwnedSemaphorePermit>),
    /// A large transaction that others may pass.
    Large(Box<Large>, Footprint),
    /// The end of a transaction that is executed while it is open.
    Ended(Box<StreamedEnd>),
    Join(Join),
    /// The planner has handed over everything before this position.
    CaughtUp(Lsn),
}
