//! The schedule that the setting `commit_order` asks for.

use crate::{Action, Footprint, Manner, Preserve, Relaxed};

/// One of the two schedules, with the calls that both have.
#[derive(Debug)]
pub enum Either {
    /// Transactions commit in the source's order.
    Preserve(Preserve),
    /// Independent transactions may commit before earlier ones.
    Relaxed(Relaxed),
}

impl Either {
    /// Whether another chunk may be pushed.
    #[must_use]
    pub fn has_room(&self) -> bool {
        match self {
            Either::Preserve(schedule) => schedule.has_room(),
            Either::Relaxed(schedule) => schedule.has_room(),
        }
    }

    /// Whether no chunk is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Either::Preserve(schedule) => schedule.is_empty(),
            Either::Relaxed(schedule) => schedule.is_empty(),
        }
    }

    /// Adds the next chunk in the source's order and returns its number. Where order is preserved,
    /// a large transaction comes in parts that are barriers.
    pub fn push(&mut self, footprint: Footprint, manner: Manner) -> u64 {
        match self {
            Either::Preserve(schedule) => schedule.push(footprint),
            Either::Relaxed(schedule) => schedule.push(footprint, manner),
        }
    }

    /// Returns the next action. Call it until there is none.
    pub fn poll(&mut self) -> Option<Action> {
        match self {
            Either::Preserve(schedule) => schedule.poll(),
            Either::Relaxed(schedule) => schedule.poll(),
        }
    }

    /// The first chunk that is being executed, its worker, and whether letting others go could help
    /// it.
    #[must_use]
    pub fn head(&self) -> Option<(u64, usize, bool)> {
        match self {
            Either::Preserve(schedule) => schedule.head(),
            Either::Relaxed(schedule) => {
                schedule.first_running().map(|(number, worker)| (number, worker, false))
            }
        }
    }

    /// Whether the chunk waits for a large transaction.
    #[must_use]
    pub fn is_behind_large(&self, number: u64) -> bool {
        match self {
            Either::Preserve(_) => false,
            Either::Relaxed(schedule) => schedule.is_behind_large(number),
        }
    }

    /// Whether the chunk is not being executed.
    #[must_use]
    pub fn is_waiting(&self, number: u64) -> bool {
        match self {
            Either::Preserve(_) => false,
            Either::Relaxed(schedule) => schedule.is_waiting(number),
        }
    }

    /// The head did not hold or fell to a deadlock, and was rolled back.
    pub fn stumbled(&mut self, number: u64) {
        match self {
            Either::Preserve(schedule) => schedule.stumbled(number),
            Either::Relaxed(schedule) => schedule.stumbled(number),
        }
    }

    /// The COMMIT of the chunk was acknowledged, or the barrier is done.
    pub fn committed(&mut self, number: u64) {
        match self {
            Either::Preserve(schedule) => schedule.committed(number),
            Either::Relaxed(schedule) => schedule.committed(number),
        }
    }

    /// The schedule that preserves order, if it is in use. Only it takes reports of speculative
    /// executions.
    pub fn preserve(&mut self) -> Option<&mut Preserve> {
        match self {
            Either::Preserve(schedule) => Some(schedule),
            Either::Relaxed(_) => None,
        }
    }
}
