//! The target's side of the simulation: rows, locks, and sessions that are not ours.

use std::collections::{BTreeSet, VecDeque};

use rand::Rng;

use super::source::{Op, SimulatedKey, SimulatedRow};
use super::{Who, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lock {
    Row(SimulatedKey),
    Unique(u8, u8),
}

/// A session that is not ours. It locks rows one after another, then ends.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) wanted: VecDeque<Lock>,
    pub(super) waits_for: Option<Lock>,
}

pub(super) enum Done {
    Yes,
    No,
    Blocked,
}

impl World {
    fn row(&self, at: usize, key: SimulatedKey) -> Option<SimulatedRow> {
        let own = self.workers[at].writes.get(&key).copied();
        own.unwrap_or_else(|| self.rows.get(&key).copied())
    }

    fn lock(&mut self, who: Who, lock: Lock) -> bool {
        *self.locks.entry(lock).or_insert(who) == who
    }

    pub(super) fn release(&mut self, who: Who) {
        self.locks.retain(|_, holder| *holder != who);
    }

    /// Locks what the op needs, or waits; then executes the op if it fits.
    pub(super) fn execute(&mut self, at: usize, op: Op) -> Done {
        let (key, who) = (op.key(), Who::Worker(at));
        let mut wanted = vec![Lock::Row(key)];
        // A unique value that is taken or freed stays locked until the transaction has ended.
        wanted.extend(self.row(at, key).map(|row| Lock::Unique(key.0, row.1)));
        wanted.extend(op.row().map(|row| Lock::Unique(key.0, row.1)));
        self.workers[at].waits_for = None;
        for lock in wanted {
            if !self.lock(who, lock) {
                self.workers[at].waits_for = Some(lock);
                return Done::Blocked;
            }
        }
        let present = self.row(at, key).is_some();
        let fits = matches!(op, Op::Insert(..)) != present;
        let taken = |unique| {
            let keys: BTreeSet<SimulatedKey> =
                self.rows.keys().chain(self.workers[at].writes.keys()).copied().collect();
            let others = keys.into_iter().filter(|other| other.0 == key.0 && *other != key);
            others.filter_map(|other| self.row(at, other)).any(|row| row.1 == unique)
        };
        if !fits || op.row().is_some_and(|row| taken(row.1)) {
            return Done::No;
        }
        self.workers[at].writes.insert(key, op.row());
        Done::Yes
    }

    /// Steps a local session, or starts a new one.
    pub(super) fn local(&mut self) {
        if self.locals.len() < 2 && self.chance(500) {
            let mut row = || Lock::Row((self.random.random_range(0..3), self.random.random_range(0..6)));
            let wanted = [row(), row()].into();
            self.locals.push(Local { wanted, waits_for: None });
            return;
        }
        for at in 0..self.locals.len() {
            self.locals[at].waits_for = None;
            match self.locals[at].wanted.front().copied() {
                Some(lock) if self.lock(Who::Local(at), lock) => {
                    self.locals[at].wanted.pop_front();
                }
                Some(lock) => {
                    self.locals[at].waits_for = Some(lock);
                    self.find_deadlock(Who::Local(at));
                }
                None => self.end_local(at),
            }
        }
    }

    fn end_local(&mut self, at: usize) {
        self.release(Who::Local(at));
        // A new session takes its place, so that the others' numbers stay valid.
        let mut row = || Lock::Row((self.random.random_range(0..3), self.random.random_range(0..6)));
        let wanted = [row(), row()].into();
        self.locals[at] = Local { wanted, waits_for: None };
    }

    fn waits_for(&self, who: Who) -> Option<Who> {
        let lock = match who {
            Who::Worker(at) => self.workers[at].waits_for?,
            Who::Local(at) => self.locals[at].waits_for?,
        };
        self.locks.get(&lock).copied()
    }

    /// Ends one of the sessions in a cycle of waits.
    pub(super) fn find_deadlock(&mut self, from: Who) {
        let mut cycle = vec![from];
        while let Some(next) = self.waits_for(cycle[cycle.len() - 1]) {
            if next == from {
                let victim = cycle[self.random.random_range(0..cycle.len())];
                return match victim {
                    Who::Worker(at) => self.fail(at),
                    Who::Local(at) => self.end_local(at),
                };
            }
            if cycle.contains(&next) {
                return;
            }
            cycle.push(next);
        }
    }
}
