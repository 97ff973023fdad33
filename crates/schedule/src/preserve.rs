//! The schedule that keeps the source's order: chunks commit one after another, and workers execute
//! what is independent before its turn (*speculatively*).
//!
//! Callers push chunks with what they touch, report what became of them, and poll for actions.
//!
//! ```text
//!            a worker is free, part of it is independent        executed
//!   Queued ----------------------------------------> Speculating -----------> Open
//!     |  ^ ^                                                | | lock wait       | | lock wait,
//!     |  | +------------------ voided (A1) -----------------+ v stumbled head   | v stumbled head
//!     |  |                                              Stopping ----------> RollingBack
//!     |  |                                           cancel sent, answered      | |
//!     |  +------------------------------ rolled back ---------------------------|-+
//!     | head                                                                    | head
//!     +------------------------------> Turn <-----------------------------------+
//!                                      | ^ |  committed: the next is head
//!                             stumbled v | nothing else is open
//!                                     Waiting (then it is applied again, alone)
//! ```
//! Rules, which the simulation checks:
//!
//! - Only the head is told to commit. The next chunk becomes head when that commit was acknowledged
//!   (rule P1).
//! - A chunk that is executed speculatively shares no key with an uncommitted chunk before it, as
//!   far as the changes show their keys (A2). The keys are a hint. A failure of a speculative
//!   execution is void, and the chunk is executed again as head (A1).
//! - A head that waits for a lock, or did not fit the target, finds nothing else open when it
//!   continues (A3). The schedule lets every chunk go that waits for its turn.
//! - A barrier is executed alone, with nothing else open.

use std::collections::VecDeque;

use base::Oid;
use rustc_hash::FxHashMap;

use crate::{Action, Footprint, KEYS_MAX, Late, Split, Touched, Units};

/// After void speculative executions, at most this many chunks go by before the next one is tried.
const BACK_OFF_MAX: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// `tried`: an earlier speculative execution was void.
    Queued {
        tried: bool,
    },
    Speculating,
    Open,
    /// The worker's statement is being cancelled.
    Stopping {
        answered: bool,
        cancelled: bool,
    },
    RollingBack,
    /// The chunk is head and was told to commit. `contested`: other chunks were open, or a part of
    /// this one was executed speculatively.
    Turn {
        contested: bool,
    },
    /// A head that did not hold waits until nothing else is open.
    Waiting {
        again: bool,
    },
}

impl State {
    /// Whether its worker holds an open transaction, or may hold one.
    fn is_open(self) -> bool {
        !matches!(self, State::Queued { .. } | State::Waiting { .. })
    }
}

/// The dependencies of one table's units.
#[derive(Debug)]
struct After {
    /// The last chunk that all units come after.
    all: u64,
    /// Units that also come after another chunk, ascending, each with that chunk.
    units: Vec<(u32, u64)>,
    /// The number of units.
    count: u32,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    barrier: bool,
    /// Its keys, to forget them later; empty for a chunk that touches everything.
    touched: Vec<Touched>,
    after: Vec<After>,
    state: State,
    worker: Option<usize>,
}

/// Which chunks touched a table last.
#[derive(Debug, Clone, Copy)]
struct Use {
    mapping: u64,
    any: u64,
    whole: u64,
}

/// The schedule of `commit_order = preserve`; the module explains it.
#[derive(Debug)]
pub struct Preserve {
    /// In commit order. The first is the head.
    entries: VecDeque<Entry>,
    /// The number of the last chunk.
    last: u64,
    free: Vec<usize>,
    workers: usize,
    /// The chunk that touched each key last.
    keys: FxHashMap<u64, u64>,
    tables: FxHashMap<Oid, Use>,
    /// The last chunk that touched everything.
    everything: u64,
    /// While this chunk is the head, nothing is executed speculatively.
    held: u64,
    /// Chunks that must commit before the next speculative execution.
    pause: u32,
    back_off: u32,
    actions: VecDeque<Action>,
}

impl Preserve {
    /// Makes a schedule for `workers` sessions, at least one.
    #[must_use]
    pub fn new(workers: usize) -> Preserve {
        Preserve {
            entries: VecDeque::new(),
            last: 0,
            free: (0..workers).rev().collect(),
            workers,
            keys: FxHashMap::default(),
            tables: FxHashMap::default(),
            everything: 0,
            held: 0,
            pause: 0,
            back_off: 0,
            actions: VecDeque::new(),
        }
    }

    /// Whether another chunk may be pushed.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.entries.len() < self.workers && !self.entries.iter().any(|entry| entry.barrier)
    }

    /// Whether no chunk is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the next chunk in commit order and returns its number.
    pub fn push(&mut self, footprint: Footprint) -> u64 {
        let number = self.last + 1;
        let touched = match footprint {
            Footprint::Tables(touched) if !self.is_full(&touched) => touched,
            _ => Vec::new(),
        };
        let barrier = touched.is_empty();
        let after = touched.iter().map(|table| self.after(table)).collect();
        touched.iter().for_each(|table| self.remember(table, number));
        if barrier {
            self.everything = number;
        }
        self.last = number;
        let state = State::Queued { tried: false };
        self.entries.push_back(Entry { number, barrier, touched, after, state, worker: None });
        self.advance();
        number
    }

    fn is_full(&self, touched: &[Touched]) -> bool {
        let keys = touched.iter().map(|table| match &table.units {
            Units::Keys { keys, .. } => keys.len(),
            Units::Whole | Units::Append | Units::Filtered(_) => 0,
        });
        self.keys.len() + keys.sum::<usize>() > KEYS_MAX
    }

    /// The chunks that the units of a table come after.
    fn after(&self, table: &Touched) -> After {
        let used = self.tables.get(&table.root);
        let comparable = used.is_none_or(|used| used.mapping == table.mapping);
        let any = used.map_or(0, |used| used.any);
        let whole = if comparable { used.map_or(0, |used| used.whole) } else { any };
        let (all, units, count) = match &table.units {
            Units::Whole | Units::Filtered(_) => (any, Vec::new(), 1),
            Units::Append => (whole, Vec::new(), 1),
            Units::Keys { ends, keys } => (whole, self.after_keys(ends, keys), ends.len()),
        };
        let count = u32::try_from(count).expect("a chunk has fewer than 2^32 rows");
        After { all: all.max(self.everything), units, count }
    }

    fn after_keys(&self, ends: &[u32], keys: &[u64]) -> Vec<(u32, u64)> {
        let mut units = Vec::new();
        let mut start = 0;
        for (unit, &end) in (0..).zip(ends) {
            let end = end as usize;
            let before = keys[start..end].iter().filter_map(|key| self.keys.get(key)).max();
            units.extend(before.map(|&before| (unit, before)));
            start = end;
        }
        units
    }

    fn remember(&mut self, table: &Touched, number: u64) {
        let used = self.tables.entry(table.root).or_insert(Use { mapping: table.mapping, any: 0, whole: 0 });
        // Keys of the previous mapping cannot be compared with later ones.
        if used.mapping != table.mapping || matches!(table.units, Units::Whole | Units::Filtered(_)) {
            used.whole = number;
        }
        used.mapping = table.mapping;
        used.any = number;
        if let Units::Keys { keys, .. } = &table.units {
            self.keys.extend(keys.iter().map(|&key| (key, number)));
        }
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
            if self.tables.get(&table.root).is_some_and(|used| used.any == entry.number) {
                self.tables.remove(&table.root);
            }
        }
    }

    /// Returns the next action. Call it until there is none.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The head that is being executed, its worker, and whether letting others go could help it. A
    /// head that is still executed speculatively counts: it too may wait for a chunk behind it.
    #[must_use]
    pub fn head(&self) -> Option<(u64, usize, bool)> {
        let head = self.entries.front()?;
        let others = self.entries.iter().skip(1).any(|entry| entry.state.is_open());
        matches!(head.state, State::Turn { .. } | State::Speculating).then_some((
            head.number,
            head.worker?,
            others,
        ))
    }

    /// The speculative part of the chunk was executed.
    pub fn executed(&mut self, number: u64) {
        let entry = self.entry(number);
        match &mut entry.state {
            State::Speculating => entry.state = State::Open,
            State::Stopping { answered, .. } => *answered = true,
            state => unreachable!("executed in {state:?}"),
        }
        self.stopped(number);
        self.advance();
    }

    /// A speculative execution failed and was rolled back (rule A1). Returns whether it failed by
    /// itself, and not because it was cancelled.
    pub fn voided(&mut self, number: u64) -> bool {
        let entry = self.entry(number);
        let by_itself = matches!(entry.state, State::Speculating);
        match &mut entry.state {
            State::Speculating => {
                entry.state = State::Queued { tried: true };
                let worker = entry.worker.take();
                self.free.extend(worker);
                self.back_off = (self.back_off * 2).clamp(1, BACK_OFF_MAX);
                self.pause = self.back_off;
            }
            State::Stopping { answered, .. } => *answered = true,
            state => unreachable!("voided in {state:?}"),
        }
        self.stopped(number);
        self.advance();
        by_itself
    }

    /// The cancel request has reached the server. Once the statement has also ended, it cannot hit
    /// later commands.
    pub fn cancelled(&mut self, number: u64) {
        let entry = self.entry(number);
        match &mut entry.state {
            State::Stopping { cancelled, .. } => *cancelled = true,
            state => unreachable!("cancelled in {state:?}"),
        }
        self.stopped(number);
    }

    /// The chunk whose statement this worker is to cancel, while the server does not know yet.
    #[cfg(test)]
    pub(crate) fn stopping(&self, worker: usize) -> Option<u64> {
        let stopping = |entry: &&Entry| {
            entry.worker == Some(worker) && matches!(entry.state, State::Stopping { cancelled: false, .. })
        };
        self.entries.iter().find(stopping).map(|entry| entry.number)
    }

    fn stopped(&mut self, number: u64) {
        let entry = self.entry(number);
        if let (State::Stopping { answered: true, cancelled: true }, Some(worker)) =
            (entry.state, entry.worker)
        {
            entry.state = State::RollingBack;
            self.actions.push_back(Action::Rollback { number, worker });
        }
    }

    /// The chunk was rolled back, so nothing of it is on the target.
    pub fn rolled_back(&mut self, number: u64) {
        let entry = self.entry(number);
        assert_eq!(entry.state, State::RollingBack);
        entry.state = State::Queued { tried: false };
        let worker = entry.worker.take();
        self.free.extend(worker);
        self.advance();
    }

    /// The head did not hold or fell to a deadlock, and was rolled back.
    pub fn stumbled(&mut self, number: u64) {
        self.stumbled_beside(number, false);
    }

    /// As [`Preserve::stumbled`]; `others` if something other than these chunks was open.
    pub fn stumbled_beside(&mut self, number: u64, others: bool) {
        let others = others || self.head().is_some_and(|(_, _, others)| others);
        let entry = self.entry(number);
        let State::Turn { contested } = entry.state else { unreachable!("stumbled in {:?}", entry.state) };
        entry.state = State::Waiting { again: contested || others };
        self.let_go(number);
        self.advance();
    }

    /// The head has waited too long for a lock (rule A3).
    pub fn waits_for_lock(&mut self, number: u64) {
        // The head may have committed meanwhile.
        if self.entries.front().is_some_and(|head| head.number == number) {
            self.let_go(number);
        }
    }

    /// The COMMIT of the head was acknowledged, or the barrier is done.
    pub fn committed(&mut self, number: u64) {
        let entry = self.entries.pop_front().expect("the head commits");
        assert_eq!(entry.number, number, "out of order");
        assert!(matches!(entry.state, State::Turn { .. }), "committed in {:?}", entry.state);
        self.forget(&entry);
        self.free.extend(entry.worker);
        self.pause = self.pause.saturating_sub(1);
        self.advance();
    }

    fn entry(&mut self, number: u64) -> &mut Entry {
        let front = self.entries.front().map_or(0, |entry| entry.number);
        let at = usize::try_from(number - front).expect("few are in flight");
        &mut self.entries[at]
    }

    /// Rolls back the open chunks behind the head, and keeps them from being executed until the
    /// head is committed.
    fn let_go(&mut self, head: u64) {
        self.held = head;
        for entry in self.entries.iter_mut().skip(1) {
            let (number, Some(worker)) = (entry.number, entry.worker) else { continue };
            match entry.state {
                State::Speculating => {
                    entry.state = State::Stopping { answered: false, cancelled: false };
                    self.actions.push_back(Action::Cancel { number, worker });
                }
                State::Open => {
                    entry.state = State::RollingBack;
                    self.actions.push_back(Action::Rollback { number, worker });
                }
                _ => {}
            }
        }
    }

    fn take_worker(&mut self) -> Option<usize> {
        let (at, _) = self.free.iter().enumerate().min_by_key(|(_, worker)| **worker)?;
        Some(self.free.swap_remove(at))
    }

    fn advance(&mut self) {
        self.advance_head();
        self.advance_others();
    }

    fn advance_head(&mut self) {
        let alone = !self.entries.iter().skip(1).any(|entry| entry.state.is_open());
        let Some(head) = self.entries.front() else { return };
        let (number, barrier, state) = (head.number, head.barrier, head.state);
        let (action, worker): (fn(u64, usize) -> Action, _) = match state {
            State::Open => {
                // Speculative execution paid here.
                self.back_off /= 2;
                (|number, worker| Action::Finish { number, worker }, head.worker)
            }
            State::Queued { .. } if barrier => {
                debug_assert!(alone, "nothing goes past a barrier");
                (|number, worker| Action::Alone { number, worker }, self.take_worker())
            }
            State::Queued { .. } => (|number, worker| Action::Whole { number, worker }, self.take_worker()),
            State::Waiting { again: true } if alone => {
                (|number, worker| Action::Replay { number, worker, again: true }, head.worker)
            }
            State::Waiting { again: false } if alone => {
                (|number, worker| Action::Replay { number, worker, again: false }, head.worker)
            }
            _ => return,
        };
        let worker = worker.expect("as many workers as chunks in flight");
        let head = &mut self.entries[0];
        head.worker = Some(worker);
        head.state = State::Turn { contested: state == State::Open };
        self.actions.push_back(action(number, worker));
    }

    fn advance_others(&mut self) {
        let Some(front) = self.entries.front().filter(|head| !head.barrier).map(|head| head.number) else {
            return;
        };
        if self.held == front || self.pause > 0 {
            return;
        }
        for at in 1..self.entries.len() {
            let entry = &self.entries[at];
            if entry.barrier {
                return;
            }
            if entry.state != (State::Queued { tried: false }) {
                continue;
            }
            let Some(split) = split(&entry.after, front) else { continue };
            let Some(worker) = self.take_worker() else { return };
            let entry = &mut self.entries[at];
            (entry.state, entry.worker) = (State::Speculating, Some(worker));
            self.actions.push_back(Action::Speculate { number: entry.number, worker, split });
        }
    }
}

/// The parts that are late while `front` is the head; `None` if everything is late.
fn split(after: &[After], front: u64) -> Option<Split> {
    let late = |table: &After| {
        if table.all >= front {
            return Late::All;
        }
        let units = table.units.iter().filter(|(_, before)| *before >= front);
        let units: Vec<u32> = units.map(|(unit, _)| *unit).collect();
        match units.len() {
            0 => Late::Nothing,
            all if all == table.count as usize => Late::All,
            _ => Late::Units(units),
        }
    };
    let split: Split = after.iter().map(late).collect();
    split.iter().any(|late| *late != Late::All).then_some(split)
}

#[cfg(test)]
mod tests;
