//! The contents of chunks in flight, and of the transaction that is executed while it is open.

use plan::{Digest, Plan};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use super::command::Command;
use crate::chunk::Originals;
use crate::large::Large;
use crate::open_transaction::{StreamedEnd, Tell};
use crate::work::Work;

/// A chunk in flight.
pub(super) enum InFlightChunk {
    /// Whole transactions that can be executed as a set. Execution takes the plans.
    Set {
        /// `None` once it is replayed.
        originals: Option<Originals>,
        digest: Digest,
        plan: Option<Plan>,
        late: Option<Plan>,
    },
    /// A transaction in a file; others may pass it.
    Large(Option<Box<Large>>),
    /// The end of a transaction that a worker may have open.
    Ended(Option<Box<StreamedEnd>>),
    /// Executed with nothing else open.
    Alone(Option<Command>),
}

/// The fields of [`InFlightChunk::Set`], borrowed.
pub(super) struct Set<'c> {
    pub(super) originals: &'c mut Option<Originals>,
    pub(super) digest: Digest,
    pub(super) plan: &'c mut Option<Plan>,
    pub(super) late: &'c mut Option<Plan>,
}

pub(super) fn run_large(large: &mut Option<Box<Large>>) -> Command {
    Command::Large(large.take().expect("a large transaction is executed once"))
}

pub(super) struct InFlight {
    pub(super) chunk: InFlightChunk,
    pub(super) busy: Option<OwnedSemaphorePermit>,
    pub(super) bytes: Bytes,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Bytes {
    pub(super) memory: usize,
    pub(super) files: u64,
}

impl Bytes {
    /// The approximate size of `work`. A large transaction is in a file and counts as nothing.
    pub(super) fn of(work: &Work) -> Bytes {
        let Work::Chunk(chunk, _) = work else { return Bytes::default() };
        let plan = chunk.plan.as_ref().map_or(0, Plan::bytes);
        match &chunk.originals {
            Originals::Memory(batch) => Bytes { memory: plan.max(batch.bytes), files: 0 },
            Originals::Disk(spilled) => Bytes { memory: plan, files: spilled.byte_len() },
        }
    }
}

/// A streamed transaction that a worker executes while it is open.
pub(super) struct OpenTransaction {
    pub(super) tell: mpsc::UnboundedSender<Tell>,
    /// It was told to leave, because another session waits for it.
    pub(super) lets_go: bool,
    /// The head that did not hold beside it; the head continues when this transaction has left.
    pub(super) stumbled: Option<u64>,
    /// Its chunk number and that chunk's worker, once it was told that its turn has come.
    pub(super) turn: Option<(u64, usize)>,
    /// Time of the next check; `None` while an answer is awaited.
    pub(super) look: Option<Instant>,
    /// When a session was first seen waiting for it.
    pub(super) waited_for_since: Option<Instant>,
}
