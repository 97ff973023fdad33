//! A schedule of either kind, by what `commit_order` says.

use super::{Action, Footprint, Manner, Relaxed, Schedule};

/// See the module.
#[derive(Debug)]
pub(crate) enum Either {
    Preserve(Schedule),
    Relaxed(Relaxed),
}

impl Either {
    /// Whether another chunk may be pushed.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Either::Preserve(schedule) => schedule.has_room(),
            Either::Relaxed(schedule) => schedule.has_room(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Either::Preserve(schedule) => schedule.is_empty(),
            Either::Relaxed(schedule) => schedule.is_empty(),
        }
    }

    /// Takes in the next chunk in the source's order; its number. Where order
    /// is preserved, a large transaction comes in parts that are barriers.
    pub(crate) fn push(&mut self, footprint: Footprint, manner: Manner) -> u64 {
        match self {
            Either::Preserve(schedule) => schedule.push(footprint),
            Either::Relaxed(schedule) => schedule.push(footprint, manner),
        }
    }

    /// The next thing to do; to be asked until there is none.
    pub(crate) fn poll(&mut self) -> Option<Action> {
        match self {
            Either::Preserve(schedule) => schedule.poll(),
            Either::Relaxed(schedule) => schedule.poll(),
        }
    }

    /// The first chunk that is being executed, its lane, and whether letting
    /// others go could help it.
    pub(crate) fn head(&self) -> Option<(u64, usize, bool)> {
        match self {
            Either::Preserve(schedule) => schedule.head(),
            Either::Relaxed(schedule) => schedule.first_running().map(|(number, lane)| (number, lane, false)),
        }
    }

    /// Whether it waits for a large transaction.
    pub(crate) fn is_behind_large(&self, number: u64) -> bool {
        match self {
            Either::Preserve(_) => false,
            Either::Relaxed(schedule) => schedule.is_behind_large(number),
        }
    }

    /// Whether it is not being executed.
    pub(crate) fn is_waiting(&self, number: u64) -> bool {
        match self {
            Either::Preserve(_) => false,
            Either::Relaxed(schedule) => schedule.is_waiting(number),
        }
    }

    /// The head did not hold, or fell to a deadlock, and was rolled back.
    pub(crate) fn stumbled(&mut self, number: u64) {
        match self {
            Either::Preserve(schedule) => schedule.stumbled(number),
            Either::Relaxed(schedule) => schedule.stumbled(number),
        }
    }

    /// Its COMMIT was acknowledged, or the barrier is done.
    pub(crate) fn committed(&mut self, number: u64) {
        match self {
            Either::Preserve(schedule) => schedule.committed(number),
            Either::Relaxed(schedule) => schedule.committed(number),
        }
    }

    /// What only that schedule is told: of what was executed before its turn.
    pub(crate) fn preserve(&mut self) -> Option<&mut Schedule> {
        match self {
            Either::Preserve(schedule) => Some(schedule),
            Either::Relaxed(_) => None,
        }
    }
}
