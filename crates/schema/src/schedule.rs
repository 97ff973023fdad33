//! Which step a worker takes next.
//!
//! Handed: for every step the tables it locks and whether it suffers others
//! there. Promises that every step is given out once, in the order given as
//! far as locks allow, and that no two run together whose locks would meet.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::plan::Step;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Done,
}

/// Shared by all workers of one group of steps.
#[derive(Debug)]
pub(crate) struct Schedule {
    steps: Vec<Step>,
    states: Mutex<Vec<State>>,
    changed: Notify,
}

enum Next {
    Step(usize),
    Wait,
    Nothing,
}

impl Schedule {
    pub(crate) fn new(steps: Vec<Step>) -> Schedule {
        let states = Mutex::new(vec![State::Waiting; steps.len()]);
        Schedule { steps, states, changed: Notify::new() }
    }

    pub(crate) fn step(&self, index: usize) -> &Step {
        &self.steps[index]
    }

    /// The next step; `None`: there will be none any more.
    pub(crate) async fn claim(&self) -> Option<usize> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that no change is missed.
            changed.as_mut().enable();
            match self.claim_now() {
                Next::Step(index) => return Some(index),
                Next::Nothing => return None,
                Next::Wait => changed.await,
            }
        }
    }

    fn claim_now(&self) -> Next {
        let mut states = self.states();
        let runs = |index: &usize| states[*index] == State::Running;
        let running: Vec<&Step> = (0..states.len()).filter(runs).map(|index| &self.steps[index]).collect();
        let may_run = |index: &usize| {
            states[*index] == State::Waiting && !running.iter().any(|other| meet(&self.steps[*index], other))
        };
        if let Some(index) = (0..states.len()).find(may_run) {
            states[index] = State::Running;
            return Next::Step(index);
        }
        if states.contains(&State::Waiting) { Next::Wait } else { Next::Nothing }
    }

    /// A claimed step has ended.
    pub(crate) fn done(&self, index: usize) {
        self.states()[index] = State::Done;
        self.changed.notify_waiters();
    }

    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether one would wait for the other's locks.
fn meet(one: &Step, other: &Step) -> bool {
    (one.exclusive || other.exclusive)
        && one.relations.iter().any(|relation| other.relations.contains(relation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Stage;

    fn step(number: i32, relations: &[&str], exclusive: bool) -> Step {
        Step {
            number,
            stage: Stage::Index,
            object: String::new(),
            relations: relations.iter().map(|&name| name.to_owned()).collect(),
            exclusive,
            statements: Vec::new(),
        }
    }

    fn now(schedule: &Schedule) -> Option<i32> {
        match schedule.claim_now() {
            Next::Step(index) => Some(schedule.step(index).number),
            Next::Wait => None,
            Next::Nothing => Some(0),
        }
    }

    #[test]
    fn locks_never_meet_and_nothing_is_left_out() {
        let schedule = Schedule::new(vec![
            step(1, &["a"], true),
            step(2, &["a"], false),
            step(3, &["b"], false),
            step(4, &["b"], false),
            step(5, &["b", "c"], true),
            step(6, &["c"], false),
        ]);
        assert_eq!([now(&schedule), now(&schedule), now(&schedule)], [Some(1), Some(3), Some(4)]);
        assert_eq!([now(&schedule), now(&schedule)], [Some(6), None]);
        schedule.done(0);
        assert_eq!([now(&schedule), now(&schedule)], [Some(2), None]);
        (1..4).for_each(|index| schedule.done(index));
        // Still one that reads the other table.
        assert_eq!(now(&schedule), None);
        schedule.done(5);
        assert_eq!([now(&schedule), now(&schedule)], [Some(5), Some(0)]);
    }
}
