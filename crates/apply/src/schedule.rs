//! Who executes what, when, and who may commit: several chunks on several
//! sessions (*lanes*), committed in their order.
//!
//! Pushed chunks with what they touch and what became of them, polled for
//! what is to be done; does no I/O and knows no clock, so that a simulation
//! can show it every order of events.
//!
//! ```text
//!            a lane is free, something of it is independent         executed
//!   Queued ----------------------------------------------> Ahead -----------> Open
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
//! - only the head is told to commit, and the next becomes head when that was
//!   acknowledged (rule P1);
//! - what is executed ahead shares no key with a chunk before it that is not
//!   committed, as far as the changes show their keys (A2). That is a hint:
//!   what an early execution met is void, and it is executed again as head (A1);
//! - a head that waits for a lock, or did not fit the target, finds nothing
//!   else open when it goes on (A3): whoever waits for a chunk ahead, which
//!   waits for its turn, is let go;
//! - a barrier is executed alone, with nothing else open.

mod either;
mod filter;
mod relaxed;

use std::collections::VecDeque;
use std::sync::Arc;

use base::Oid;
use rustc_hash::FxHashMap;

pub(crate) use either::Either;
pub(crate) use filter::Filter;
pub(crate) use relaxed::{Manner, Relaxed};

/// Keys of all chunks in flight that are remembered; a chunk with more is a
/// barrier. With two words each they take 16 MB.
const KEYS_MAX: usize = 1_000_000;
/// After executions ahead that were void, at most so many chunks go by before
/// another is tried.
const BACK_OFF_MAX: u32 = 64;

/// What a chunk touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Footprint {
    /// It may look at or change anything.
    Everything,
    /// In the order of the plan's tables.
    Tables(Vec<Touched>),
}

/// One table of a [`Footprint`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Touched {
    /// The target's table; for a partition, its root.
    pub(crate) root: Oid,
    /// Keys of different mappings cannot be compared.
    pub(crate) mapping: u64,
    pub(crate) units: Units,
}

/// What of a table can be early or late by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Units {
    /// The table, whose rows cannot be told apart.
    Whole,
    /// The table, to which rows are added that nothing can collide with.
    Append,
    /// Rows by their keys: the keys of unit n end before `ends[n]`.
    Keys { ends: Vec<u32>, keys: Vec<u64> },
    /// Rows by their keys, of a large transaction: all of it is one unit.
    Filtered(Arc<Filter>),
}

/// What of a table must wait for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Late {
    Nothing,
    All,
    /// These units, ascending.
    Units(Vec<u32>),
}

/// For each table of the plan.
pub(crate) type Split = Vec<Late>;

/// What is to be done; `lane` is the session that does it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Execute what is not late and keep the transaction open.
    Ahead { number: u64, lane: usize, split: Split },
    /// Execute what was late and commit.
    Finish { number: u64, lane: usize },
    /// Execute all and commit.
    Whole { number: u64, lane: usize },
    /// It did not hold: apply it with nothing else open, whatever it takes.
    /// As a set `again` if others may have been the reason.
    Replay { number: u64, lane: usize, again: bool },
    /// A barrier: do it.
    Alone { number: u64, lane: usize },
    /// Cancel the running statement, and say so when the server knows.
    Cancel { number: u64, lane: usize },
    /// Roll back, whatever the state of the transaction.
    Rollback { number: u64, lane: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// `tried`: it was executed ahead in vain.
    Queued {
        tried: bool,
    },
    Ahead,
    Open,
    /// Its statement is being cancelled.
    Stopping {
        answered: bool,
        cancelled: bool,
    },
    RollingBack,
    /// It is head, and told to commit. `contested`: others were open, or a
    /// part of it was executed early.
    Turn {
        contested: bool,
    },
    /// A head that did not hold waits until nothing else is open.
    Waiting {
        again: bool,
    },
}

impl State {
    /// Its lane holds an open transaction, or may.
    fn is_open(self) -> bool {
        !matches!(self, State::Queued { .. } | State::Waiting { .. })
    }
}

/// The dependencies of one table's units.
#[derive(Debug)]
struct After {
    /// The last chunk that all units come after.
    all: u64,
    /// Units that come after another chunk besides, ascending.
    units: Vec<(u32, u64)>,
    /// How many units there are.
    count: u32,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    barrier: bool,
    /// To forget its keys by; empty for what touches everything.
    touched: Vec<Touched>,
    after: Vec<After>,
    state: State,
    lane: Option<usize>,
}

/// Who touched a table last.
#[derive(Debug, Clone, Copy)]
struct Use {
    mapping: u64,
    any: u64,
    whole: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// In commit order. The first is the head.
    entries: VecDeque<Entry>,
    /// The number of the last chunk.
    last: u64,
    free: Vec<usize>,
    lanes: usize,
    /// Which chunk touched a key last.
    keys: FxHashMap<u64, u64>,
    tables: FxHashMap<Oid, Use>,
    /// The last chunk that touched everything.
    everything: u64,
    /// Nothing is executed ahead while this is the head.
    held: u64,
    /// Chunks to come before one is executed ahead.
    pause: u32,
    back_off: u32,
    actions: VecDeque<Action>,
}

impl Schedule {
    /// For so many lanes; at least one.
    pub(crate) fn new(lanes: usize) -> Schedule {
        Schedule {
            entries: VecDeque::new(),
            last: 0,
            free: (0..lanes).rev().collect(),
            lanes,
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
    pub(crate) fn has_room(&self) -> bool {
        self.entries.len() < self.lanes && !self.entries.iter().any(|entry| entry.barrier)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes in the next chunk in commit order; its number.
    pub(crate) fn push(&mut self, footprint: Footprint) -> u64 {
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
        self.entries.push_back(Entry { number, barrier, touched, after, state, lane: None });
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

    /// Which chunks the units of a table come after.
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
        // Keys of the mapping before say nothing to those that follow.
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

    /// The next thing to do; to be asked until there is none.
    pub(crate) fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The head that is being executed, its lane, and whether letting others
    /// go could help it. What is still executed ahead when its turn comes may
    /// wait for one behind it as well.
    pub(crate) fn head(&self) -> Option<(u64, usize, bool)> {
        let head = self.entries.front()?;
        let others = self.entries.iter().skip(1).any(|entry| entry.state.is_open());
        matches!(head.state, State::Turn { .. } | State::Ahead).then_some((head.number, head.lane?, others))
    }

    /// What could be executed ahead was.
    pub(crate) fn executed(&mut self, number: u64) {
        let entry = self.entry(number);
        match &mut entry.state {
            State::Ahead => entry.state = State::Open,
            State::Stopping { answered, .. } => *answered = true,
            state => unreachable!("executed in {state:?}"),
        }
        self.stopped(number);
        self.advance();
    }

    /// An execution ahead met something, and was rolled back (rule A1).
    pub(crate) fn voided(&mut self, number: u64) {
        let entry = self.entry(number);
        match &mut entry.state {
            State::Ahead => {
                entry.state = State::Queued { tried: true };
                let lane = entry.lane.take();
                self.free.extend(lane);
                self.back_off = (self.back_off * 2).clamp(1, BACK_OFF_MAX);
                self.pause = self.back_off;
            }
            State::Stopping { answered, .. } => *answered = true,
            state => unreachable!("voided in {state:?}"),
        }
        self.stopped(number);
        self.advance();
    }

    /// The server has been told to cancel: what it was told later is safe
    /// from that behind one more answer.
    pub(crate) fn cancelled(&mut self, number: u64) {
        let entry = self.entry(number);
        match &mut entry.state {
            State::Stopping { cancelled, .. } => *cancelled = true,
            state => unreachable!("cancelled in {state:?}"),
        }
        self.stopped(number);
    }

    fn stopped(&mut self, number: u64) {
        let entry = self.entry(number);
        if let (State::Stopping { answered: true, cancelled: true }, Some(lane)) = (entry.state, entry.lane) {
            entry.state = State::RollingBack;
            self.actions.push_back(Action::Rollback { number, lane });
        }
    }

    /// Nothing of it is left on the target.
    pub(crate) fn rolled_back(&mut self, number: u64) {
        let entry = self.entry(number);
        assert_eq!(entry.state, State::RollingBack);
        entry.state = State::Queued { tried: false };
        let lane = entry.lane.take();
        self.free.extend(lane);
        self.advance();
    }

    /// The head did not hold, or fell to a deadlock, and was rolled back.
    pub(crate) fn stumbled(&mut self, number: u64) {
        self.stumbled_beside(number, false);
    }

    /// The same; `others` if something was open that is none of the chunks.
    pub(crate) fn stumbled_beside(&mut self, number: u64, others: bool) {
        let others = others || self.head().is_some_and(|(_, _, others)| others);
        let entry = self.entry(number);
        let State::Turn { contested } = entry.state else { unreachable!("stumbled in {:?}", entry.state) };
        entry.state = State::Waiting { again: contested || others };
        self.let_go(number);
        self.advance();
    }

    /// The head waits for a lock and has done so for too long (rule A3).
    pub(crate) fn waits_for_lock(&mut self, number: u64) {
        // It may have gone on since.
        if self.entries.front().is_some_and(|head| head.number == number) {
            self.let_go(number);
        }
    }

    /// Its COMMIT was acknowledged, or the barrier is done.
    pub(crate) fn committed(&mut self, number: u64) {
        let entry = self.entries.pop_front().expect("the head commits");
        assert_eq!(entry.number, number, "out of order");
        assert!(matches!(entry.state, State::Turn { .. }), "committed in {:?}", entry.state);
        self.forget(&entry);
        self.free.extend(entry.lane);
        self.pause = self.pause.saturating_sub(1);
        self.advance();
    }

    fn entry(&mut self, number: u64) -> &mut Entry {
        let front = self.entries.front().map_or(0, |entry| entry.number);
        let at = usize::try_from(number - front).expect("few are in flight");
        &mut self.entries[at]
    }

    /// Rolls back what is open behind the head, and keeps it from being
    /// executed until the head is committed.
    fn let_go(&mut self, head: u64) {
        self.held = head;
        for entry in self.entries.iter_mut().skip(1) {
            let (number, Some(lane)) = (entry.number, entry.lane) else { continue };
            match entry.state {
                State::Ahead => {
                    entry.state = State::Stopping { answered: false, cancelled: false };
                    self.actions.push_back(Action::Cancel { number, lane });
                }
                State::Open => {
                    entry.state = State::RollingBack;
                    self.actions.push_back(Action::Rollback { number, lane });
                }
                _ => {}
            }
        }
    }

    fn take_lane(&mut self) -> Option<usize> {
        let (at, _) = self.free.iter().enumerate().min_by_key(|(_, lane)| **lane)?;
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
        let (action, lane): (fn(u64, usize) -> Action, _) = match state {
            State::Open => {
                // Early execution pays here.
                self.back_off /= 2;
                (|number, lane| Action::Finish { number, lane }, head.lane)
            }
            State::Queued { .. } if barrier => {
                debug_assert!(alone, "nothing goes past a barrier");
                (|number, lane| Action::Alone { number, lane }, self.take_lane())
            }
            State::Queued { .. } => (|number, lane| Action::Whole { number, lane }, self.take_lane()),
            State::Waiting { again: true } if alone => {
                (|number, lane| Action::Replay { number, lane, again: true }, head.lane)
            }
            State::Waiting { again: false } if alone => {
                (|number, lane| Action::Replay { number, lane, again: false }, head.lane)
            }
            _ => return,
        };
        let lane = lane.expect("as many lanes as chunks in flight");
        let head = &mut self.entries[0];
        head.lane = Some(lane);
        head.state = State::Turn { contested: state == State::Open };
        self.actions.push_back(action(number, lane));
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
            let Some(lane) = self.take_lane() else { return };
            let entry = &mut self.entries[at];
            (entry.state, entry.lane) = (State::Ahead, Some(lane));
            self.actions.push_back(Action::Ahead { number: entry.number, lane, split });
        }
    }
}

/// What is late while `front` is the head; `None` if everything is.
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
mod simulation;
#[cfg(test)]
mod tests;
