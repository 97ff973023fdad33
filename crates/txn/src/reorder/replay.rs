//! Entries on their way out: those of one transaction, or of a block of it, in the order of WAL.
//!
//! ```text
//!         first row found              last row          closing was taken
//!   Start ---------------> Opening ---> Row ---> Closing ---------------> Over
//!     |                       \------------------^
//!     |                         there is none, and it comes out all the same
//!     \--- there is none ------------------------------------------------^
//! ```
//! Entries that an aborted subtransaction left in a file are skipped here. Chunks are collected
//! until their row comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hash;

use base::{Lsn, Xid};
use rustc_hash::FxHashSet;

use super::entry::{Entry, Kind, flag};
use super::error::{Error, Kind as Failure};
use super::event::{Boundary, RawAction, ReorderedEvent, ReorderedMessage, ReorderedRow, ReorderedTruncate};
use super::run::{Pieces, RunReader};
use super::toast::Chunks;
use super::transaction::{NamedRun, Names};
use crate::Spool;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Start,
    Opening { has_row: bool },
    Row,
    Closing,
    Over,
}

/// Several readers as one, by LSN. There is nearly always only one. Others have entries that were
/// read before their top-level transaction was known.
struct Merge<R> {
    main: (RunReader, Names<R>),
    late: Vec<(RunReader, Names<R>)>,
    /// The index of the current reader; 0 is the main one.
    current: usize,
    /// The positions of the other readers. Of equal positions, the main reader's comes first.
    waiting: BinaryHeap<Reverse<(Lsn, usize)>>,
}

impl<R> Merge<R> {
    /// Starts all readers but the main one, which the first [`Merge::advance`] starts.
    fn open((main, late): (NamedRun<R>, Vec<NamedRun<R>>), spool: &mut dyn Spool) -> Result<Merge<R>, Error> {
        let main = (main.run.read(spool)?, main.names);
        let mut merge = Merge { main, late: Vec::new(), current: 0, waiting: BinaryHeap::new() };
        for part in late {
            let mut reader = part.run.read(spool)?;
            let lsn = if reader.advance()? { Some(reader.lsn()) } else { None };
            merge.late.push((reader, part.names));
            merge.waiting.extend(lsn.map(|lsn| Reverse((lsn, merge.late.len()))));
        }
        Ok(merge)
    }

    fn advance(&mut self) -> Result<bool, Error> {
        let current = self.current;
        let reader = match current {
            0 => &mut self.main.0,
            _ => &mut self.late[current - 1].0,
        };
        let has_more = reader.advance()?;
        if self.waiting.is_empty() {
            return Ok(has_more);
        }
        if has_more {
            self.waiting.push(Reverse((reader.lsn(), current)));
        }
        let next = self.waiting.pop();
        self.current = next.map_or(current, |Reverse((_, index))| index);
        Ok(next.is_some())
    }

    fn current(&self) -> &(RunReader, Names<R>) {
        if self.current == 0 { &self.main } else { &self.late[self.current - 1] }
    }

    fn entry(&self) -> (Entry<'_>, &Names<R>) {
        let (reader, names) = self.current();
        (reader.entry(), names)
    }

    fn broken(&self) -> Error {
        self.current().0.broken()
    }
}

/// See the module.
pub(crate) struct Replay<R> {
    top: Xid,
    merge: Merge<R>,
    aborted: FxHashSet<Xid>,
    opening: Boundary,
    closing: Boundary,
    /// The boundaries come out even if there is no row.
    always: bool,
    phase: Phase,
    chunks: Chunks,
    /// The chunks belong to the current row and to no later one.
    chunks_end: bool,
    /// For a block, the subtransactions of which a row came out.
    streamed: Option<FxHashSet<Xid>>,
}

impl<R: Clone + Eq + Hash> Replay<R> {
    pub(crate) fn new(
        top: Xid,
        parts: (NamedRun<R>, Vec<NamedRun<R>>),
        aborted: FxHashSet<Xid>,
        (opening, closing): (Boundary, Boundary),
        spool: &mut dyn Spool,
    ) -> Result<Replay<R>, Error> {
        let is_block = matches!(opening, Boundary::StreamStart { .. });
        Ok(Replay {
            top,
            merge: Merge::open(parts, spool)?,
            aborted,
            always: matches!(opening, Boundary::BeginPrepare(_)),
            opening,
            closing,
            phase: Phase::Start,
            chunks: Chunks::default(),
            chunks_end: false,
            streamed: is_block.then(FxHashSet::default),
        })
    }

    /// Moves to the next event, if there is one.
    pub(crate) fn advance(&mut self) -> Result<bool, Error> {
        self.phase = match self.phase {
            Phase::Start => {
                let has_row = self.find()?;
                if has_row {
                    self.open_block();
                }
                if has_row || self.always { Phase::Opening { has_row } } else { Phase::Over }
            }
            Phase::Opening { has_row: true } => Phase::Row,
            Phase::Opening { has_row: false } => Phase::Closing,
            Phase::Row => match self.find()? {
                true => Phase::Row,
                false => Phase::Closing,
            },
            Phase::Closing | Phase::Over => Phase::Over,
        };
        Ok(self.phase != Phase::Over)
    }

    /// The event that [`Replay::advance`] moved to; `None` if it is cut short.
    pub(crate) fn event(&self) -> Option<ReorderedEvent<'_, R>> {
        match self.phase {
            Phase::Opening { .. } => Some(ReorderedEvent::Boundary(&self.opening)),
            Phase::Row => self.row(),
            Phase::Start | Phase::Closing | Phase::Over => Some(ReorderedEvent::Boundary(&self.closing)),
        }
    }

    /// The error because of which there is no event.
    pub(crate) fn broken(&self) -> Error {
        self.merge.broken()
    }

    /// Sets the positions of a block, which are those of its rows.
    fn open_block(&mut self) {
        let head = self.merge.entry().0.head;
        if let Boundary::StreamStart { first_lsn, origin, .. } = &mut self.opening {
            *first_lsn = head.lsn;
            *origin = known_origin(head.origin);
        }
    }

    /// Moves to the next entry that is an event.
    fn find(&mut self) -> Result<bool, Error> {
        while self.merge.advance()? {
            if std::mem::take(&mut self.chunks_end) {
                self.chunks.clear();
            }
            let (entry, names) = self.merge.entry();
            let head = entry.head;
            let is_sub = head.xid != self.top;
            if is_sub && self.aborted.contains(&head.xid) {
                continue;
            }
            match head.kind {
                Kind::Chunk => {
                    let (value, number, bytes) = entry.chunk().ok_or_else(|| self.merge.broken())?;
                    if !self.chunks.add(value, number, bytes) {
                        let what = "a chunk of a large value came out of its order";
                        return Err(Failure::Row { lsn: head.lsn, xid: head.xid, what }.into());
                    }
                    continue;
                }
                Kind::ForgetChunks => {
                    self.chunks.clear();
                    continue;
                }
                Kind::Message => {}
                Kind::Truncate => {
                    if !entry.subjects().any(|subject| names.relation(subject).is_some()) {
                        continue;
                    }
                }
                Kind::Insert | Kind::Update | Kind::Delete => {
                    self.chunks_end = entry.is(flag::LAST_OF_CHUNKS);
                    if names.relation(head.subject).is_none() {
                        continue;
                    }
                }
            }
            if let Boundary::StreamStop { last_lsn, .. } = &mut self.closing {
                *last_lsn = head.lsn;
            }
            if let Some(streamed) = self.streamed.as_mut().filter(|_| is_sub) {
                streamed.insert(head.xid);
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn row(&self) -> Option<ReorderedEvent<'_, R>> {
        let (entry, names) = self.merge.entry();
        let head = entry.head;
        let (lsn, xid) = (head.lsn, head.xid);
        let action = match head.kind {
            Kind::Insert => RawAction::Insert(entry.new_tuple()?),
            Kind::Update => {
                let (old, new) = entry.both_tuples()?;
                RawAction::Update { old, new }
            }
            Kind::Delete => RawAction::Delete(entry.old_tuple()?),
            Kind::Truncate => {
                let relations = entry.subjects().filter_map(|subject| names.relation(subject)).collect();
                let (cascade, restart_identity) = (entry.is(flag::CASCADE), entry.is(flag::RESTART_IDENTITY));
                return Some(ReorderedEvent::Truncate(ReorderedTruncate {
                    lsn,
                    xid,
                    cascade,
                    restart_identity,
                    relations,
                }));
            }
            Kind::Message => {
                let (lsn, prefix, content) = entry.message()?;
                return Some(ReorderedEvent::Message(ReorderedMessage {
                    lsn,
                    xid,
                    transactional: true,
                    prefix,
                    content,
                }));
            }
            Kind::Chunk | Kind::ForgetChunks => return None,
        };
        let (origin, relation) = (known_origin(head.origin), names.relation(head.subject)?);
        Some(ReorderedEvent::Row(ReorderedRow { lsn, xid, origin, relation, action, chunks: &self.chunks }))
    }

    /// Removes the files; nothing is left. Returns what remains of a block.
    pub(crate) fn close(
        &mut self,
        pieces: &mut Pieces,
        spool: &mut dyn Spool,
    ) -> Result<Option<StreamedBlock<R>>, Error> {
        let merge = &mut self.merge;
        merge.main.0.close(pieces, spool)?;
        for (reader, _) in &mut merge.late {
            reader.close(pieces, spool)?;
        }
        let has_rows = matches!(self.closing, Boundary::StreamStop { last_lsn, .. } if last_lsn.is_valid());
        let names = &mut merge.main.1;
        Ok(self.streamed.take().map(|subs| StreamedBlock {
            top: self.top,
            names: std::mem::take(names),
            subs,
            has_rows,
        }))
    }
}

/// What remains of a block that came out.
pub(crate) struct StreamedBlock<R> {
    pub(crate) top: Xid,
    /// The names of the main part, which the transaction goes on using.
    pub(crate) names: Names<R>,
    /// Subtransactions of which a row came out.
    pub(crate) subs: FxHashSet<Xid>,
    /// A row came out.
    pub(crate) has_rows: bool,
}

fn known_origin(id: u16) -> Option<u16> {
    (id != 0).then_some(id)
}
