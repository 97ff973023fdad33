//! Turns changes as WAL has them into transactions as pgoutput has them.
//!
//! Callers hand in records in the order of WAL, with [`ReorderBuffer::record`] or the functions
//! below it. After each record they call [`ReorderBuffer::next`] until it returns `None`. A
//! transaction comes out as a whole when it commits, in the order of commits. It has the rows of
//! its subtransactions that committed and no others, in the order of WAL. Each row has the relation
//! that was named when it went in, and its large values. A transaction may also come out in blocks
//! while it is open ([`Options::streaming`]), or when it is prepared ([`Options::two_phase_at`]).
//!
//! Invariants: all kept changes are in memory ([`ReorderBuffer::memory_bytes`]) or in the spool.
//! When `next` has returned `None`, memory is within the limit, except for insertions that wait for
//! confirmation. After an error nothing comes out any more.
//!
//! Some things do not belong here: what a relation is and whether anybody wants it ([`Resolve`]),
//! values, and when decoding may begin. A transaction must be handed in from its first record on,
//! or not at all. README.md says how this differs from the server's reorder buffer, and why it is
//! equivalent.

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
pub use event::{
    Boundary, Finished, Origin, Prepared, RawAction, ReorderedEvent, ReorderedMessage, ReorderedRow,
    ReorderedTruncate,
};
pub use input::{At, End, Options, RawChange, Resolve, Target};
pub use toast::Chunks;

use crate::Spool;
use replay::Replay;
use run::Pieces;
use transaction::Transaction;

/// Totals, as `pg_stat_replication_slots` counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Transactions that were spilled.
    pub spill_txns: u64,
    /// How often transactions were spilled.
    pub spill_count: u64,
    /// Bytes of changes written to the spool.
    pub spill_bytes: u64,
    /// Transactions that were streamed.
    pub stream_txns: u64,
    /// The blocks that were streamed.
    pub stream_count: u64,
}

/// See the module. `R` is the caller's name for a relation at a moment. It is compared for each
/// change, so it should be a number, or a pointer that compares like one. It is kept as long as a
/// transaction has a change to it.
pub struct ReorderBuffer<R> {
    options: Options,
    spool: Box<dyn Spool>,
    /// By top-level id; or by the id of a subtransaction whose top-level transaction is unknown.
    open: FxHashMap<Xid, Transaction<R>>,
    subs: FxHashMap<Xid, Sub>,
    /// Bytes of all open transactions.
    memory: usize,
    /// Free pieces for them; with the transactions' memory within the limit.
    pieces: Pieces,
    /// The number of transactions with chunks that wait for their row.
    waiting: usize,
    /// The position of the last record.
    lsn: Lsn,
    output: VecDeque<Output<R>>,
    /// The open transaction of which a block is coming out.
    streaming: Option<Xid>,
    /// The last output of [`ReorderBuffer::next`].
    current: Option<Output<R>>,
    failed: Cell<bool>,
    counters: Counters,
    /// Space for the subtransaction ids of one record.
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
    /// It was aborted; its entries in a file do not count.
    aborted: bool,
}

/// The next output.
enum Output<R> {
    Boundary(Boundary),
    Message { lsn: Lsn, xid: Xid, prefix: Vec<u8>, content: Vec<u8> },
    Replay(Box<Replay<R>>),
}

impl<R: Clone + Eq + Hash> ReorderBuffer<R> {
    /// Makes an empty buffer that spills to `spool`, which no other buffer may use.
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

    /// Returns where a restart must begin reading. It assumes that everything that came out before
    /// `position` is confirmed, and that [`Options::start`] is `position`. `position` is where the
    /// last record ended.
    #[must_use]
    pub fn restart_lsn(&self, position: Lsn) -> Lsn {
        self.open.values().map(|transaction| transaction.first_lsn).fold(position, Lsn::min)
    }

    /// Bytes of memory that changes of open transactions take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory
    }

    /// The number of open transactions that have left entries here.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// The totals so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The top-level transaction of `xid`, as far as it is known.
    #[must_use]
    pub fn top_of(&self, xid: Xid) -> Xid {
        self.subs.get(&xid).map_or(xid, |sub| sub.top)
    }

    /// Returns the next event; `None` if more records must go in first.
    ///
    /// # Errors
    /// The spool failed, or an ended transaction is not as it must be. After an error all calls
    /// return errors.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<ReorderedEvent<'_, R>>, Error> {
        if !self.go()? {
            return Ok(None);
        }
        match self.event() {
            Some(event) => Ok(Some(event)),
            None => Err(self.cut_short()),
        }
    }

    /// Moves to the next event, which [`ReorderBuffer::event`] then returns. Returns false if more
    /// records must go in first.
    ///
    /// # Errors
    /// As [`ReorderBuffer::next`].
    pub fn go(&mut self) -> Result<bool, Error> {
        self.alive()?;
        let went = self.advance();
        self.noting(went)
    }

    /// The event that [`ReorderBuffer::go`] moved to. `None` if it is cut short;
    /// [`ReorderBuffer::cut_short`] has the error.
    #[must_use]
    pub fn event(&self) -> Option<ReorderedEvent<'_, R>> {
        Some(match self.current.as_ref()? {
            Output::Boundary(boundary) => ReorderedEvent::Boundary(boundary),
            Output::Message { lsn, xid, prefix, content } => {
                let (lsn, xid) = (*lsn, *xid);
                ReorderedEvent::Message(ReorderedMessage { lsn, xid, transactional: false, prefix, content })
            }
            Output::Replay(replay) => return replay.event(),
        })
    }

    /// The error because of which there is no event. Nothing comes after it.
    #[must_use]
    pub fn cut_short(&self) -> Error {
        self.failed.set(true);
        match &self.current {
            Some(Output::Replay(replay)) => replay.broken(),
            _ => error::Kind::Over.into(),
        }
    }

    /// Remembers an error, because nothing comes after it.
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

    /// Frees the memory of what came out.
    fn close(&mut self, replay: &mut Replay<R>) -> Result<(), Error> {
        let Some(block) = replay.close(&mut self.pieces, &mut *self.spool)? else { return Ok(()) };
        self.counters.stream_count += u64::from(block.has_rows);
        if self.streaming.take() != Some(block.top) {
            // This was the last block of a transaction that has ended. The transaction may still be
            // open, like a prepared one whose outcome must be sent.
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

    /// Removes the largest transaction from memory: streams it if that is wanted and possible, or
    /// else spills it. Returns false if there is none.
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

    /// Puts the entries of an open transaction into the output, as a block.
    fn stream(&mut self, xid: Xid) -> Result<(), Error> {
        let Some(transaction) = self.open.get_mut(&xid) else { return Ok(()) };
        let before = transaction.memory();
        let names = std::mem::take(&mut transaction.main.names);
        let main = transaction::NamedRun { run: transaction.main.run.take(), names };
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

/// The boundaries of a block; its positions are those of its rows.
fn block(xid: Xid, first_segment: bool) -> (Boundary, Boundary) {
    let first_lsn = Lsn::INVALID;
    let opening = Boundary::StreamStart { xid, first_segment, first_lsn, origin: None };
    (opening, Boundary::StreamStop { xid, last_lsn: Lsn::INVALID })
}

fn aborted(subs: &FxHashMap<Xid, Sub>, children: &[Xid]) -> FxHashSet<Xid> {
    let is_aborted = |xid: &&Xid| subs.get(xid).is_some_and(|sub| sub.aborted);
    children.iter().filter(is_aborted).copied().collect()
}

/// The time of a transaction that a crash ended, which is unknown.
const NO_TIME: PgTimestamp = PgTimestamp(0);
