//! The schedule in which a transaction may commit before earlier ones that it does not depend on
//! (`commit_order = relaxed`).
//!
//! ```text
//!              all that it depends on is committed, a worker is free    acknowledged
//!   Queued -----------------------------------------------------> Running ---------> gone
//!    ^  barrier, large: only as head                                | stumbled
//!    |                                                              v
//!    +--- never                                                   Failed --head, a worker is free--> Running
//! ```
//! Rules, which the simulation checks:
//!
//! - A chunk is executed once every earlier chunk that shares a key with it was acknowledged, as
//!   far as changes show their keys (A2).
//! - The keys are a hint. A failure of a chunk that ran before its turn is void. The chunk was
//!   rolled back, and is executed again as head, the first chunk that is not committed (A1). Only
//!   then does it report.
//! - An open transaction never waits for a turn. It ends by itself or waits for locks, and the
//!   server sees cycles of these. So there is nothing to let go (A3).
//! - A barrier begins as head, and nothing passes it. A large transaction begins as head, so that
//!   it need not be executed twice. Independent chunks pass it while it is executed.

use std::collections::VecDeque;
use std::sync::Arc;

use base::Oid;
use rustc_hash::FxHashMap;

use crate::{Action, Footprint, KEYS_MAX, KeyFilter, Manner, Touched, Units};

/// Maximum chunks in flight, waiting ones included. When this many are behind a large transaction,
/// independent chunks have to wait too.
const WINDOW: usize = 1_024;
/// Maximum large transactions in flight, of which one is executed. Each has a file, and a filter in
/// memory.
const LARGE_MAX: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Queued,
    /// `contested`: if the chunk fails, another chunk may be the reason.
    Running {
        worker: usize,
        contested: bool,
    },
    /// The chunk was executed, did not hold, and waits to become head.
    Failed {
        again: bool,
    },
}

#[derive(Debug)]
struct Entry {
    number: u64,
    barrier: bool,
    manner: Manner,
    /// It waits for a large transaction, directly or through other chunks.
    behind_large: bool,
    /// Chunks that must commit first, ascending.
    after: Vec<u64>,
    /// What it touches, to forget its keys later.
    touched: Vec<Touched>,
    state: State,
}

/// One chunk's use of a table.
#[derive(Debug)]
struct Use {
    number: u64,
    mapping: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Whole,
    Append,
    /// The keys are in the schedule's common map.
    Keys,
    Filtered(Arc<KeyFilter>),
}

impl Use {
    /// Whether a chunk that touches `table` comes after this one. The common map of keys decides
    /// about equal keys of one mapping.
    fn precedes(&self, table: &Touched) -> bool {
        match (&self.kind, &table.units) {
            (Kind::Append, Units::Append) => false,
            (Kind::Keys, Units::Keys { .. }) => self.mapping != table.mapping,
            (Kind::Filtered(filter), Units::Keys { keys, .. }) => {
                self.mapping != table.mapping || keys.iter().any(|&key| filter.contains(key))
            }
            _ => true,
        }
    }
}

/// The schedule of `commit_order = relaxed`; the module explains it.
#[derive(Debug)]
pub struct Relaxed {
    /// In the source's commit order. The first is the head.
    entries: VecDeque<Entry>,
    /// The number of the last chunk.
    last: u64,
    free: Vec<usize>,
    /// The last chunk that touched each key. It waits for earlier ones itself.
    keys: FxHashMap<u64, u64>,
    tables: FxHashMap<Oid, Vec<Use>>,
    actions: VecDeque<Action>,
}

impl Relaxed {
    /// Makes a schedule for `workers` sessions, at least two.
    #[must_use]
    pub fn new(workers: usize) -> Relaxed {
        Relaxed {
            entries: VecDeque::new(),
            last: 0,
            free: (0..workers).rev().collect(),
            keys: FxHashMap::default(),
            tables: FxHashMap::default(),
            actions: VecDeque::new(),
        }
    }

    /// Whether another chunk may be pushed.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let large = self.entries.iter().filter(|entry| entry.manner == Manner::Large).count();
        self.entries.len() < WINDOW
            && large < LARGE_MAX
            && self.keys.len() < KEYS_MAX / 2
            && !self.entries.iter().any(|entry| entry.barrier)
    }

    /// Whether no chunk is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the next chunk in the source's order and returns its number.
    pub fn push(&mut self, footprint: Footprint, manner: Manner) -> u64 {
        let number = self.last + 1;
        let touched = match footprint {
            Footprint::Tables(touched) if !self.is_full(&touched) => touched,
            _ => Vec::new(),
        };
        let barrier = touched.is_empty();
        // A chunk that begins as head comes after all earlier ones anyway.
        let after = match manner {
            Manner::Set if !barrier => self.after(&touched),
            _ => Vec::new(),
        };
        let is_long = |entry: &Entry| entry.manner == Manner::Large || entry.behind_large;
        let behind_large = match barrier || manner == Manner::Large {
            true => self.entries.iter().any(is_long),
            false => {
                self.entries.iter().filter(|entry| after.binary_search(&entry.number).is_ok()).any(is_long)
            }
        };
        touched.iter().for_each(|table| self.remember(table, number));
        self.last = number;
        let state = State::Queued;
        self.entries.push_back(Entry { number, barrier, manner, behind_large, after, touched, state });
        self.advance();
        number
    }

    fn is_full(&self, touched: &[Touched]) -> bool {
        let keys = touched.iter().map(|table| match &table.units {
            Units::Keys { keys, .. } => keys.len(),
            _ => 0,
        });
        self.keys.len() + keys.sum::<usize>() > KEYS_MAX
    }

    /// The chunks that it comes after, ascending.
    fn after(&self, touched: &[Touched]) -> Vec<u64> {
        let mut after: Vec<u64> =
            self.entries.iter().filter(|entry| entry.barrier).map(|entry| entry.number).collect();
        for table in touched {
            let uses = self.tables.get(&table.root).into_iter().flatten();
            after.extend(uses.filter(|used| used.precedes(table)).map(|used| used.number));
            if let Units::Keys { keys, .. } = &table.units {
                after.extend(keys.iter().filter_map(|key| self.keys.get(key)));
            }
        }
        after.sort_unstable();
        after.dedup();
        after
    }

    fn remember(&mut self, table: &Touched, number: u64) {
        let kind = match &table.units {
            Units::Whole => Kind::Whole,
            Units::Append => Kind::Append,
            Units::Filtered(filter) => Kind::Filtered(Arc::clone(filter)),
            Units::Keys { keys, .. } => {
                self.keys.extend(keys.iter().map(|&key| (key, number)));
                Kind::Keys
            }
        };
        self.tables.entry(table.root).or_default().push(Use { number, mapping: table.mapping, kind });
    }

    fn forget(&mut self, entry: &Entry) {
        for table in &entry.touched {
            if let Units::Keys { keys, .. } = &table.units {
                for key in keys {
                    if self.keys.get(key) == Some(&entry.number) {
                        self.keys.remove(key);
                    }
                }
            }
            if let Some(uses) = self.tables.get_mut(&table.root) {
                uses.retain(|used| used.number != entry.number);
                if uses.is_empty() {
                    self.tables.remove(&table.root);
                }
            }
        }
    }

    /// Whether the schedule remembers nothing any more.
    #[cfg(test)]
    pub(crate) fn remembers_nothing(&self) -> bool {
        self.entries.is_empty() && self.keys.is_empty() && self.tables.is_empty()
    }

    /// Returns the next action. Call it until there is none.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The first chunk in the source's order that is being executed, and its worker.
    #[must_use]
    pub fn first_running(&self) -> Option<(u64, usize)> {
        self.entries.iter().find_map(|entry| match entry.state {
            State::Running { worker, .. } => Some((entry.number, worker)),
            _ => None,
        })
    }

    /// Whether the chunk waits for a large transaction.
    #[must_use]
    pub fn is_behind_large(&self, number: u64) -> bool {
        self.at(number).is_some_and(|at| self.entries[at].behind_large)
    }

    /// Whether the chunk is in flight and not being executed.
    #[must_use]
    pub fn is_waiting(&self, number: u64) -> bool {
        let state = self.at(number).map(|at| self.entries[at].state);
        matches!(state, Some(State::Queued | State::Failed { .. }))
    }

    fn at(&self, number: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }

    /// The chunk did not hold or fell to a deadlock, and was rolled back.
    pub fn stumbled(&mut self, number: u64) {
        let at = self.at(number).expect("it is in flight");
        let State::Running { worker, contested } = self.entries[at].state else {
            unreachable!("stumbled in {:?}", self.entries[at].state)
        };
        let running = |entry: &&Entry| matches!(entry.state, State::Running { .. });
        let others = self.entries.iter().filter(running).count() > 1;
        self.entries[at].state = State::Failed { again: contested || others };
        self.free.push(worker);
        self.advance();
    }

    /// The COMMIT of the chunk was acknowledged, or the barrier is done.
    pub fn committed(&mut self, number: u64) {
        let at = self.at(number).expect("it is in flight");
        let entry = self.entries.remove(at).expect("just found");
        let State::Running { worker, .. } = entry.state else {
            unreachable!("committed in {:?}", entry.state)
        };
        self.forget(&entry);
        for other in &mut self.entries {
            if let Ok(at) = other.after.binary_search(&number) {
                other.after.remove(at);
            }
        }
        self.free.push(worker);
        self.advance();
    }

    fn advance(&mut self) {
        for at in 0..self.entries.len() {
            if self.free.is_empty() {
                return;
            }
            let entry = &self.entries[at];
            let (number, head) = (entry.number, at == 0);
            let action: fn(u64, usize) -> Action = match entry.state {
                State::Queued if entry.barrier && head => |number, worker| Action::Alone { number, worker },
                State::Queued if entry.barrier => return,
                State::Queued if entry.manner == Manner::Large && !head => continue,
                State::Queued if entry.after.is_empty() => |number, worker| Action::Whole { number, worker },
                State::Failed { again: true } if head => {
                    |number, worker| Action::Replay { number, worker, again: true }
                }
                State::Failed { again: false } if head => {
                    |number, worker| Action::Replay { number, worker, again: false }
                }
                _ => continue,
            };
            let (place, _) =
                self.free.iter().enumerate().min_by_key(|(_, worker)| **worker).expect("one is free");
            let worker = self.free.swap_remove(place);
            self.entries[at].state = State::Running { worker, contested: !head };
            self.actions.push_back(action(number, worker));
        }
    }
}

#[cfg(test)]
mod tests;
