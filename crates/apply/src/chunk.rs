//! The unit of work that an executor is handed: a plan, and the changes as they came in case the
//! plan does not hold. The changes stand in memory or in a file ([`crate::spill`]).

use plan::{Batch, Digest, Plan};

use crate::spill::Spilled;

/// The changes of a chunk, as they came.
#[derive(Debug)]
pub(crate) enum Originals {
    Memory(Batch),
    Disk(Spilled),
}

/// The unit of work that an executor is handed.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) originals: Originals,
    pub(crate) digest: Digest,
    /// The changes as sets; `None` where they contradict one another.
    pub(crate) plan: Option<Plan>,
    /// The target transaction begins with this chunk.
    pub(crate) first: bool,
    /// The target transaction ends with this chunk.
    pub(crate) last: bool,
    /// Each source transaction becomes one target transaction; there is no common plan then.
    pub(crate) each: bool,
}

impl Chunk {
    /// Whole transactions that become one target transaction.
    pub(crate) fn whole(batch: Batch, binary: bool) -> Chunk {
        Chunk::new(batch, true, binary)
    }

    /// Whole transactions that each stay one target transaction.
    pub(crate) fn each(batch: Batch) -> Chunk {
        let digest = Digest::of(&batch);
        Chunk { digest, plan: None, first: true, last: true, each: true, originals: Originals::Memory(batch) }
    }

    /// Whole transactions, or a part of one.
    pub(crate) fn new(batch: Batch, first: bool, binary: bool) -> Chunk {
        let mut plan = Plan::new(binary);
        let fits = plan.add_all(&batch.changes).is_ok();
        Chunk {
            digest: Digest::of(&batch),
            plan: fits.then_some(plan),
            first,
            last: batch.open.is_none(),
            each: false,
            originals: Originals::Memory(batch),
        }
    }
}
