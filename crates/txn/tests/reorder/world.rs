//! What a server would have logged, and what that means. Sessions write at random, one record after
//! the other. The simple model keeps every change of every (sub)transaction in a map until its end.

mod maker;

use base::{Lsn, Oid, PgTimestamp, RelFileLocator, Xid};
use rand::rngs::StdRng;
use txn::reorder::{At, Origin, Target};

use self::maker::Maker;
use crate::row::Made;
use crate::seen::Seen;

pub(crate) const START: u64 = 1 << 32;
/// With two-phase decoding, transactions that were prepared before this come out at their commit.
pub(crate) const TWO_PHASE_AT: Lsn = Lsn::new(START + 8_000);

/// What an object that was unknown at its record turns out to be at the end of the transaction, by
/// the number that is added to the relation's: the relation itself, an unwanted relation, a TOAST
/// relation, or still unknown.
pub(crate) const LATER: u32 = 1_000;
pub(crate) const LATER_UNWANTED: u32 = 2_000;
pub(crate) const LATER_TOAST: u32 = 3_000;
pub(crate) const NEVER: u32 = 4_000;

/// The properties of a world.
#[derive(Debug, Clone)]
pub(crate) struct Habits {
    pub(crate) sessions: usize,
    pub(crate) acts: usize,
    /// A new subtransaction's first record does not always name its top-level transaction.
    pub(crate) late: bool,
    pub(crate) two_phase: bool,
}

impl Default for Habits {
    fn default() -> Habits {
        Habits { sessions: 5, acts: 500, late: false, two_phase: false }
    }
}

/// One statement of a record.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Assign { lsn: Lsn, top: Xid, sub: Xid },
    Change { at: At, files: RelFileLocator, target: Target<u32>, change: Changed },
    Confirm(At),
    TakeBack(At),
    Chunk { at: At, files: RelFileLocator, target: Target<u32>, value: Oid, number: u32, bytes: Vec<u8> },
    Dropped(At),
    Truncate { at: At, cascade: bool, restart: bool, relations: Vec<(Oid, Target<u32>)> },
    Message { at: At, end: Lsn, transactional: bool, prefix: Vec<u8>, content: Vec<u8> },
    Commit(Ending),
    Prepare(Ending),
    Abort(Ending),
    Running { lsn: Lsn, oldest: Xid },
}

#[derive(Debug, Clone)]
pub(crate) enum Changed {
    Insert { new: Made, last_of_chunks: bool, speculative: bool },
    Update { old: Option<(bool, Made)>, new: Made },
    Delete(Option<(bool, Made)>),
}

#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) xid: Xid,
    pub(crate) is_top: bool,
    pub(crate) lsn: Lsn,
    pub(crate) end: Lsn,
    pub(crate) time: PgTimestamp,
    pub(crate) origin: Option<Origin>,
    pub(crate) subxacts: Vec<Xid>,
    pub(crate) gid: Option<Vec<u8>>,
}

impl Step {
    pub(crate) fn lsn(&self) -> Lsn {
        match self {
            Step::Assign { lsn, .. } | Step::Running { lsn, .. } => *lsn,
            Step::Change { at, .. } | Step::Chunk { at, .. } => at.lsn,
            Step::Truncate { at, .. } | Step::Message { at, .. } => at.lsn,
            Step::Confirm(at) | Step::TakeBack(at) | Step::Dropped(at) => at.lsn,
            Step::Commit(end) | Step::Prepare(end) | Step::Abort(end) => end.lsn,
        }
    }
}

/// See the module.
pub(crate) struct World {
    pub(crate) steps: Vec<Step>,
    pub(crate) expected: Vec<Seen>,
}

impl World {
    pub(crate) fn new(random: &mut StdRng, habits: &Habits) -> World {
        let mut maker = Maker::new(random, habits);
        for _ in 0..habits.acts {
            maker.act();
        }
        maker.finish();
        World { steps: maker.steps, expected: maker.expected }
    }
}
