//! Decides which worker copies what next.
//!
//! Handed: how many units each table has, the largest table first. Promises: every unit of every
//! table is given out exactly once, and nothing else of a table while its first unit is decided.
//!
//! A worker stays with its table while units are left. It then takes the largest table that nobody
//! has begun, and then helps with the table that has most left. So tables finish early. Connections
//! share a table only if there are fewer tables than connections, and ranges keep all of them busy
//! until the end.
//!
//! ```text
//! Waiting --claimed--> Starting --started(ranges)--> Open --last unit claimed--> Given
//!                          \-----started(whole)--------------------------------> Given
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// What a worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Decide how table `table` is copied and say so by
    /// [`Schedule::started`].
    Start { table: usize },
    /// Copy this range.
    Range { table: usize, unit: usize },
}

/// How a table is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyMethod {
    /// Whole, by the worker that started it, or not at all.
    Whole,
    /// Range by range, by all workers.
    Ranges,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Starting,
    Open { next: usize, done: usize },
    Given { done: usize },
}

/// Shared by all workers of one attempt.
#[derive(Debug)]
pub(crate) struct Schedule {
    units: Vec<usize>,
    states: Mutex<Vec<State>>,
    changed: Notify,
}

impl Schedule {
    /// `units[i]` is how many ranges table `i` has.
    pub(crate) fn new(units: Vec<usize>) -> Schedule {
        let states = Mutex::new(vec![State::Waiting; units.len()]);
        Schedule { units, states, changed: Notify::new() }
    }

    /// The next work of a worker whose last work was of table `current`. `None`: no work is left.
    pub(crate) async fn claim(&self, current: Option<usize>) -> Option<Claim> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that no change is missed.
            changed.as_mut().enable();
            match self.claim_now(current) {
                Next::Claim(claim) => return Some(claim),
                Next::Nothing => return None,
                Next::Wait => changed.await,
            }
        }
    }

    fn claim_now(&self, current: Option<usize>) -> Next {
        let mut states = self.states();
        let open = |table: &usize| matches!(states[*table], State::Open { .. });
        let left = |table: &usize| match states[*table] {
            State::Open { next, .. } => self.units[*table] - next,
            _ => 0,
        };
        if let Some(table) = current.filter(open) {
            return Next::Claim(self.take_range(&mut states, table));
        }
        if let Some(table) = states.iter().position(|state| *state == State::Waiting) {
            states[table] = State::Starting;
            return Next::Claim(Claim::Start { table });
        }
        // max_by_key gives the last of equals; the first is the largest.
        if let Some(table) = (0..states.len()).rev().filter(open).max_by_key(left) {
            return Next::Claim(self.take_range(&mut states, table));
        }
        if states.contains(&State::Starting) { Next::Wait } else { Next::Nothing }
    }

    fn take_range(&self, states: &mut [State], table: usize) -> Claim {
        let State::Open { next, done } = states[table] else {
            unreachable!("only open tables give out ranges");
        };
        states[table] = match next + 1 < self.units[table] {
            true => State::Open { next: next + 1, done },
            false => State::Given { done },
        };
        Claim::Range { table, unit: next }
    }

    /// The claim to start `table` was decided.
    pub(crate) fn started(&self, table: usize, way: CopyMethod) {
        let mut states = self.states();
        debug_assert_eq!(states[table], State::Starting);
        states[table] = match way {
            CopyMethod::Ranges if self.units[table] > 0 => State::Open { next: 0, done: 0 },
            _ => State::Given { done: 0 },
        };
        drop(states);
        self.changed.notify_waiters();
    }

    /// A range was committed. True for the table's last one.
    pub(crate) fn range_done(&self, table: usize) -> bool {
        let mut states = self.states();
        match &mut states[table] {
            State::Open { done, .. } | State::Given { done } => {
                *done += 1;
                *done == self.units[table]
            }
            _ => unreachable!("a range is given out only after its table was started"),
        }
    }

    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Next {
    Claim(Claim),
    Wait,
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn now(schedule: &Schedule, current: Option<usize>) -> Option<Claim> {
        match schedule.claim_now(current) {
            Next::Claim(claim) => Some(claim),
            _ => None,
        }
    }

    #[test]
    fn own_table_first_then_a_new_one_then_help() {
        let schedule = Schedule::new(vec![3, 1, 4]);
        assert_eq!(now(&schedule, None), Some(Claim::Start { table: 0 }));
        schedule.started(0, CopyMethod::Ranges);
        assert_eq!(now(&schedule, None), Some(Claim::Start { table: 1 }));
        assert_eq!(now(&schedule, Some(0)), Some(Claim::Range { table: 0, unit: 0 }));
        schedule.started(1, CopyMethod::Whole);
        assert_eq!(now(&schedule, Some(1)), Some(Claim::Start { table: 2 }));
        assert!(matches!(schedule.claim_now(Some(1)), Next::Claim(Claim::Range { table: 0, unit: 1 })));
        assert!(!schedule.range_done(0));
        schedule.started(2, CopyMethod::Ranges);
        assert_eq!(now(&schedule, None), Some(Claim::Range { table: 2, unit: 0 }));
        assert_eq!(now(&schedule, Some(0)), Some(Claim::Range { table: 0, unit: 2 }));
        assert!(!schedule.range_done(0));
        assert!(schedule.range_done(0));
    }

    #[test]
    fn a_table_being_started_is_waited_for() {
        let schedule = Schedule::new(vec![2]);
        assert!(matches!(schedule.claim_now(None), Next::Claim(Claim::Start { .. })));
        assert!(matches!(schedule.claim_now(None), Next::Wait));
        schedule.started(0, CopyMethod::Whole);
        assert!(matches!(schedule.claim_now(None), Next::Nothing));
    }

    proptest! {
        #[test]
        fn every_range_is_given_out_once(
            units in prop::collection::vec(1usize..9, 0..6),
            picks in prop::collection::vec(0usize..5, 200),
        ) {
            let schedule = Schedule::new(units.clone());
            let mut current = [None; 5];
            let (mut ranges, mut last) = (HashSet::new(), 0);
            // Enough turns for every worker to run dry.
            for worker in picks.into_iter().chain((0..5).cycle().take(400)) {
                match now(&schedule, current[worker]) {
                    Some(Claim::Start { table }) => {
                        schedule.started(table, CopyMethod::Ranges);
                        current[worker] = Some(table);
                    }
                    Some(Claim::Range { table, unit }) => {
                        prop_assert!(ranges.insert((table, unit)));
                        last += usize::from(schedule.range_done(table));
                        current[worker] = Some(table);
                    }
                    None => {}
                }
            }
            prop_assert_eq!(ranges.len(), units.iter().sum::<usize>());
            prop_assert_eq!(last, units.len());
        }
    }
}
