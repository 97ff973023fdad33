//! Changes as WAL has them, to transactions as pgoutput has them.
//!
//! Handed what records say, in the order of WAL, by [`ReorderBuffer::record`] or by the functions that it is made of;
//! after each, [`ReorderBuffer::next`] is called until it returns `None`. Promises: a transaction comes out when it
//! commits, in the order of commits, whole, with the rows of its subtransactions that committed and no others, in the
//! order of WAL; each row with the relation that was named when it went in, and with its large values. Or it comes out
//! in blocks while it is open ([`Options::streaming`]), or when it is prepared ([`Options::two_phase_at`]).
//!
//! Invariants: all that is kept of changes is in memory ([`ReorderBuffer::memory_bytes`]) or in the spool. When
//! `next` has returned `None`, the former is within the limit, but for insertions that wait to be confirmed.
//! After an error nothing comes out any more.
//!
//! Does not belong here: what a relation is and whether anybody wants it ([`Resolve`] says that), values, and when
//! decoding may begin. A transaction must come from its first record on, or not at all. README.md says how this differs
//! from the server's, and why it is the same.

mod entry;
mod error;
mod event;
mod input;
mod open;
mod records;
mod replay;
mod run;
mod toast;
mod transaction;

use std::cell::Cell;
use std::collections::VecDeque;
use std::hash::Hash;

use base::{Lsn, PgTimestamp, Xid};
use rustc_hash::{FxHashMap, FxHashSet};

pub use error::{Error, Unknown};
pub use event::{Action, Boundary, Event, Finished, Message, Origin, Prepared, Row, Truncate};
pub use input::{At, Change, End, Options, Resolve, Target};
pub use toast::Chunks;

use crate::Spool;
use replay::Replay;
use run::Pieces;
use transaction::Transaction;

/// What was done, as `pg_stat_replication_slots` counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Transactions that were spilled.
    pub spill_txns: u64,
    /// How often.
    pub spill_count: u64,
    /// Bytes of changes written to the spool.
    pub spill_bytes: u64,
    /// Transactions that were streamed.
    pub stream_txns: u64,
    /// Their blocks.
    pub stream_count: u64,
}

/// See the module. `R` is what the caller calls a relation at a moment; it is compared for each change, so it should be
/// a number or a pointer that compares as one. It is kept as long as a transaction has a change to it.
pub struct ReorderBuffer<R> {
    options: Options,
    spool: Box<dyn Spool>,
    /// By top-level id, or by the id of a subtransaction of which that is not known.
    open: FxHashMap<Xid, Transaction<R>>,
    subs: FxHashMap<Xid, Sub>,
    /// Of all open transactions.
    memory: usize,
    /// Kept for them; with theirs within the limit.
    pieces: Pieces,
    /// How many transactions have chunks that wait for their row.
    waiting: usize,
    /// Where the last record was.
    lsn: Lsn,
    output: VecDeque<Output<R>>,
    /// The transaction of which a block comes out and which goes on.
    streaming: Option<Xid>,
    /// What [`ReorderBuffer::next`] gave last.
    current: Option<Output<R>>,
    failed: Cell<bool>,
    counters: Counters,
    /// Room for the ids of subtransactions of one record.
    xids: Vec<Xid>,
}

/// A subtransaction.
#[derive(Debug)]
struct Sub {
    top: Xid,
    /// Where its first entry is in the transaction's run, or a place before that.
    start: Option<u64>,
    /// It has entries, there or in a run of its own.
    wrote: bool,
    /// A row of it was streamed.
    streamed: bool,
    /// It is over; what it left in a file does not count.
    aborted: bool,
}

/// What comes out next.
enum Output<R> {
    Boundary(Boundary),
    Message { lsn: Lsn, xid: Xid, prefix: Vec<u8>, content: Vec<u8> },
    Replay(Box<Replay<R>>),
}

impl<R: Clone + Eq + Hash> ReorderBuffer<R> {
    /// An empty one that spills to `spool`, which it has for itself.
    #[must_use]
    pub fn new(options: Options, spool: Box<dyn Spool>) -> ReorderBuffer<R> {
        ReorderBuffer {
            options,
            spool,
            open: FxHashMap::default(),
            subs: FxHashMap::default(),
            memory: 0,
            pieces: Pieces::default(),
            waiting: 0,
            lsn: Lsn::INVALID,
            output: VecDeque::new(),
            streaming: None,
            current: None,
            failed: Cell::new(false),
            counters: Counters::default(),
            xids: Vec::new(),
        }
    }

    /// Where reading has to begin again, once everything that came out before `position` is confirmed, and with
    /// [`Options::start`] at `position`. `position` is where the last record ended.
    #[must_use]
    pub fn restart_lsn(&self, position: Lsn) -> Lsn {
        self.open.values().map(|transaction| transaction.first_lsn).fold(position, Lsn::min)
    }

    /// Bytes of memory that changes of open transactions take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory
    }

    /// How many transactions are open and have left something here.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The top-level transaction of `xid`, as far as it is known.
    #[must_use]
    pub fn top_of(&self, xid: Xid) -> Xid {
        self.subs.get(&xid).map_or(xid, |sub| sub.top)
    }

    /// What comes out next; `None` when more has to go in first.
    ///
    /// # Errors
    /// The spool's; or a transaction that ended is not as it must be. After an error there is nothing but errors.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<Event<'_, R>>, Error> {
        if !self.go()? {
            return Ok(None);
        }
        match self.event() {
            Some(event) => Ok(Some(event)),
            None => Err(self.cut_short()),
        }
    }

    /// Goes to what comes out next, which [`ReorderBuffer::event`] then gives; false when more has to go in first.
    ///
    /// # Errors
    /// As [`ReorderBuffer::next`].
    pub fn go(&mut self) -> Result<bool, Error> {
        self.alive()?;
        let went = self.advance();
        self.noting(went)
    }

    /// Where [`ReorderBuffer::go`] went; `None` if that is cut short, of which [`ReorderBuffer::cut_short`] tells.
    #[must_use]
    pub fn event(&self) -> Option<Event<'_, R>> {
        Some(match self.current.as_ref()? {
            Output::Boundary(boundary) => Event::Boundary(boundary),
            Output::Message { lsn, xid, prefix, content } => {
                let (lsn, xid) = (*lsn, *xid);
                Event::Message(Message { lsn, xid, transactional: false, prefix, content })
            }
            Output::Replay(replay) => return replay.event(),
        })
    }

    /// Why there is no event. It is the last that happens.
    #[must_use]
    pub fn cut_short(&self) -> Error {
        self.failed.set(true);
        match &self.current {
            Some(Output::Replay(replay)) => replay.broken(),
            _ => error::Kind::Over.into(),
        }
    }

    /// An error is the last that happens.
    fn noting<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if result.is_err() {
            self.failed.set(true);
        }
        result
    }

    fn alive(&self) -> Result<(), Error> {
        if self.failed.get() { Err(error::Kind::Over.into()) } else { Ok(()) }
    }

    fn advance(&mut self) -> Result<bool, Error> {
        loop {
            if let Some(Output::Replay(replay)) = &mut self.current
                && replay.advance()?
            {
                return Ok(true);
            }
            if let Some(Output::Replay(mut replay)) = self.current.take() {
                self.close(&mut replay)?;
            }
            self.current = self.output.pop_front();
            match self.current {
                Some(Output::Replay(_)) => {}
                Some(_) => return Ok(true),
                None => {
                    let limit = self.options.work_mem_bytes;
                    if self.memory + self.pieces.allocated() > limit {
                        self.pieces.shrink(limit.saturating_sub(self.memory));
                    }
                    if self.memory <= limit || !self.make_room()? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// What came out needs no room any more.
    fn close(&mut self, replay: &mut Replay<R>) -> Result<(), Error> {
        let Some(block) = replay.close(&mut self.pieces, &mut *self.spool)? else { return Ok(()) };
        self.counters.stream_count += u64::from(block.has_rows);
        if self.streaming.take() != Some(block.top) {
            // The last block of one that has ended. It may be open all the same, as a prepared one that is to be told of.
            return Ok(());
        }
        if let Some(transaction) = self.open.get_mut(&block.top) {
            transaction.main.names = block.names;
            if block.has_rows {
                self.counters.stream_txns += u64::from(!transaction.streamed);
                transaction.streamed = true;
            }
        }
        for sub in block.subs {
            if let Some(sub) = self.subs.get_mut(&sub) {
                sub.streamed = true;
            }
        }
        Ok(())
    }

    /// Takes the largest transaction out of memory: streams it if that is wanted and possible, else spills it. False
    /// when there is none.
    fn make_room(&mut self) -> Result<bool, Error> {
        if self.options.streaming
            && self.lsn >= self.options.start
            && let Some(xid) = self.largest(|transaction| !transaction.is_partial())
        {
            return self.stream(xid).map(|()| true);
        }
        let Some(xid) = self.largest(|_| true) else { return Ok(false) };
        let Some(transaction) = self.open.get_mut(&xid) else { return Ok(false) };
        self.counters.spill_txns += u64::from(!std::mem::replace(&mut transaction.spilled, true));
        self.counters.spill_count += 1;
        let before = transaction.memory();
        for part in transaction.parts_mut().filter(|part| part.run.length() > 0) {
            self.counters.spill_bytes += part.run.spill(&mut self.pieces, &mut *self.spool)? as u64;
        }
        self.memory -= before - transaction.memory();
        Ok(true)
    }

    fn largest(&self, of: impl Fn(&Transaction<R>) -> bool) -> Option<Xid> {
        let candidates =
            self.open.values().filter(|transaction| transaction.movable() > 0 && of(transaction));
        candidates.max_by_key(|transaction| transaction.movable()).map(|transaction| transaction.xid)
    }

    /// Puts what there is of an open transaction into the output, as a block.
    fn stream(&mut self, xid: Xid) -> Result<(), Error> {
        let Some(transaction) = self.open.get_mut(&xid) else { return Ok(()) };
        let before = transaction.memory();
        let names = std::mem::take(&mut transaction.main.names);
        let main = transaction::Part { run: transaction.main.run.take(), names };
        let late = std::mem::take(&mut transaction.late);
        let (is_first, children) = (!transaction.streamed, &transaction.children);
        let aborted = aborted(&self.subs, children);
        self.memory -= before - transaction.memory();
        let replay = Replay::new(xid, (main, late), aborted, block(xid, is_first), &mut *self.spool)?;
        self.streaming = Some(xid);
        self.output.push_back(Output::Replay(Box::new(replay)));
        Ok(())
    }
}

/// Boundaries of a block; its positions are those of its rows.
fn block(xid: Xid, first_segment: bool) -> (Boundary, Boundary) {
    let first_lsn = Lsn::INVALID;
    let opening = Boundary::StreamStart { xid, first_segment, first_lsn, origin: None };
    (opening, Boundary::StreamStop { xid, last_lsn: Lsn::INVALID })
}

fn aborted(subs: &FxHashMap<Xid, Sub>, children: &[Xid]) -> FxHashSet<Xid> {
    let is_aborted = |xid: &&Xid| subs.get(xid).is_some_and(|sub| sub.aborted);
    children.iter().filter(is_aborted).copied().collect()
}

/// Nobody knows when a crash ended a transaction.
const NO_TIME: PgTimestamp = PgTimestamp(0);
