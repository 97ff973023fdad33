//! pgoutput messages in, events of whole transactions out.
//!
//! Handed messages in the order of the stream with [`Assembler::push`]; after
//! each, [`Assembler::next`] is called until it returns `None`. Events always
//! read `Begin (Change | Truncate)* Commit`, never interleaved.
//!
//! ```text
//!            Begin                        Commit
//!   outside -------> in a transaction ------------> outside
//!      |  StreamStart                 StreamStop
//!      |-------------> in a block ----------------> outside   (to the spool)
//!      |  StreamCommit                spool empty
//!      |-------------> replaying -----------------> outside   (from the spool)
//! ```
//! Any other arrow is an error: the stream would not be pgoutput's.
//!
//! Invariants: a message inside a block is written to the spool as it came
//! and is decoded when its transaction commits, so the relations it was sent
//! with take effect then, as they do in native apply. Changes of an aborted
//! subtransaction stay in the spool and are passed over when it is read.
//! Memory: one write buffer and one read buffer of [`BLOCK`] bytes, plus
//! eight bytes for each aborted subtransaction of an open transaction.

pub(crate) mod catalogue;

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use base::flight::{self, Inside, Phase};
use base::{Lsn, Oid, PgTimestamp, Xid};
use bytes::{Buf, Bytes, BytesMut};
use proto::pgoutput::{self, CommitInfo, DecodeError, Message, OldTuple, Relation, Tuple};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::spool::Spool;

/// What is written to and read from the spool at once: large enough that
/// system calls vanish beside the copying, small against the memory limit.
const BLOCK: usize = 256 * 1024;

/// The start of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Its id on the source.
    pub xid: Xid,
    /// The LSN of its commit record, by which it is skipped or joined.
    pub final_lsn: Lsn,
    /// When it committed.
    pub commit_time: PgTimestamp,
}

/// A row that changed.
#[derive(Debug, Clone)]
pub struct Change {
    /// The relation as the source described it before this change.
    pub relation: Arc<Relation>,
    /// What happened to the row.
    pub op: Op,
}

/// What happened to a row.
#[derive(Debug, Clone)]
pub enum Op {
    /// It is new.
    Insert(Tuple),
    /// It changed.
    Update {
        /// The old identity, or under FULL the old row; absent when the
        /// identity is the same.
        old: Option<OldTuple>,
        /// The new row.
        new: Tuple,
    },
    /// It is gone.
    Delete(OldTuple),
}

impl Op {
    /// The same in memory of its own; see [`Tuple::detached`].
    #[must_use]
    pub fn detached(&self) -> Op {
        let old = |old: &OldTuple| OldTuple { key_only: old.key_only, tuple: old.tuple.detached() };
        match self {
            Op::Insert(new) => Op::Insert(new.detached()),
            Op::Update { old: before, new } => {
                Op::Update { old: before.as_ref().map(old), new: new.detached() }
            }
            Op::Delete(before) => Op::Delete(old(before)),
        }
    }

    /// Bytes of the row data, for limits.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        match self {
            Op::Insert(new) => new.byte_len(),
            Op::Update { old, new } => new.byte_len() + old.as_ref().map_or(0, |old| old.tuple.byte_len()),
            Op::Delete(old) => old.tuple.byte_len(),
        }
    }
}

/// Tables truncated by one statement.
#[derive(Debug, Clone)]
pub struct TruncateChange {
    /// All of them.
    pub relations: Vec<Arc<Relation>>,
    /// RESTART IDENTITY was said.
    pub restart_identity: bool,
}

/// Part of a whole transaction.
#[derive(Debug, Clone)]
pub enum Event {
    /// It begins.
    Begin(Begin),
    /// A row of it.
    Change(Change),
    /// A TRUNCATE of it.
    Truncate(TruncateChange),
    /// It is complete.
    Commit(CommitInfo),
}

/// The stream was not what pgoutput sends, or the spool failed.
#[derive(Debug)]
pub struct AssemblyError(Kind, Option<Begin>);

#[derive(Debug)]
enum Kind {
    Decode(DecodeError),
    OutOfPlace {
        message: &'static str,
        state: &'static str,
    },
    UnknownRelation(Oid),
    /// A row has more or fewer values than its relation has columns.
    Columns {
        relation: String,
        values: usize,
        columns: usize,
    },
    /// A value in binary form, which was not asked for.
    Binary {
        relation: String,
    },
    /// BEGIN named another commit than the one that came.
    Commit {
        announced: Lsn,
        came: Lsn,
    },
    TwoPhase(u8),
    Spool {
        xid: Xid,
        error: io::Error,
    },
}

const STREAM: &str = "the source's stream cannot be read";

/// Once it was the network or a proxy; nothing of it was applied.
const REMEDY: &str = "it is read again from the last commit; if this repeats, look at what stands between, and for a \
                      pgsluice that knows this server";

impl AssemblyError {
    /// The disk failed, not the stream: worth another try later.
    #[must_use]
    pub fn is_disk(&self) -> bool {
        matches!(self.0, Kind::Spool { .. })
    }
}

impl fmt::Display for AssemblyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_stream = !matches!(self.0, Kind::TwoPhase(_) | Kind::Spool { .. });
        if is_stream {
            write!(f, "{STREAM}: ")?;
        }
        self.0.fmt(f)?;
        if let Some(begin) = &self.1 {
            write!(f, ", in transaction {} that finished at {}", begin.xid, begin.final_lsn)?;
        }
        write!(f, "; {}", self.0.remedy())
    }
}

impl Kind {
    fn remedy(&self) -> &'static str {
        match self {
            Kind::TwoPhase(_) => "drop the slot and start again: pgsluice drop",
            Kind::Spool { .. } => "make room there or give another --state-dir; it is received again",
            _ => REMEDY,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Decode(error) => error.fmt(f),
            Kind::OutOfPlace { message, state } => write!(f, "{message} came {state}"),
            Kind::UnknownRelation(id) => {
                write!(f, "a change came for relation {id}, which the source has not described")
            }
            Kind::Columns { relation, values, columns } => write!(
                f,
                "a row with {values} values came for relation \"{relation}\", which has {columns} columns"
            ),
            Kind::Binary { relation } => {
                write!(f, "a binary value that was not asked for came for relation \"{relation}\"")
            }
            Kind::Commit { announced, came } => {
                write!(f, "a commit at {came} came where {announced} was announced")
            }
            Kind::TwoPhase(kind) => write!(
                f,
                "two-phase message {:?} came from a slot that pgsluice creates without two_phase",
                char::from(*kind)
            ),
            Kind::Spool { xid, error } => write!(f, "spooling open transaction {xid}: {error}"),
        }
    }
}

impl std::error::Error for AssemblyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Decode(error) => Some(error),
            Kind::Spool { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<DecodeError> for AssemblyError {
    fn from(error: DecodeError) -> Self {
        Kind::Decode(error).into()
    }
}

impl From<Kind> for AssemblyError {
    fn from(kind: Kind) -> Self {
        AssemblyError(kind, None)
    }
}

enum State {
    Outside,
    InTransaction(Begin),
    InBlock(Xid),
    Replaying(Replay),
}

impl State {
    fn describe(&self) -> &'static str {
        match self {
            State::Outside => "outside a transaction",
            State::InTransaction(_) => "inside a transaction",
            State::InBlock(_) => "inside a stream block",
            State::Replaying(_) => "before a streamed transaction was read to its end",
        }
    }
}

/// An open streamed transaction.
#[derive(Debug, Default)]
struct Open {
    /// Written to the spool when it reaches [`BLOCK`] and when the block ends.
    buffer: BytesMut,
    aborted: FxHashSet<Xid>,
    /// Something was appended to the spool.
    spooled: bool,
}

/// A committed streamed transaction being read back.
struct Replay {
    xid: Xid,
    commit: CommitInfo,
    aborted: FxHashSet<Xid>,
    input: Option<Box<dyn Read + Send>>,
    buffer: BytesMut,
}

/// See the module.
pub struct Assembler {
    spool: Box<dyn Spool>,
    state: State,
    relations: FxHashMap<Oid, Arc<Relation>>,
    open: FxHashMap<Xid, Open>,
    pending: Option<Event>,
    /// Values may come in binary form.
    binary: bool,
    /// While in a block.
    spooling: Option<Inside>,
}

impl Assembler {
    /// Knows no relation yet; open transactions go to `spool`.
    #[must_use]
    pub fn new(spool: Box<dyn Spool>) -> Self {
        Assembler {
            spool,
            state: State::Outside,
            relations: FxHashMap::default(),
            open: FxHashMap::default(),
            pending: None,
            binary: true,
            spooling: None,
        }
    }

    /// Whether values were asked for in binary form; if not, one that comes is
    /// an error.
    #[must_use]
    pub fn with_binary(self, binary: bool) -> Self {
        Assembler { binary, ..self }
    }

    /// Whether the stream stands between transactions and blocks, so that
    /// everything before the present position is complete.
    #[must_use]
    pub fn is_outside(&self) -> bool {
        matches!(self.state, State::Outside) && self.pending.is_none()
    }

    /// A file of the spool's for what its owner puts aside.
    ///
    /// # Errors
    /// The disk's.
    pub fn scratch(&mut self) -> io::Result<std::fs::File> {
        self.spool.scratch()
    }

    /// How many transactions wait in the spool.
    #[must_use]
    pub fn open_transactions(&self) -> usize {
        self.open.len()
    }

    /// Takes the next message. [`Assembler::next`] must have returned `None`.
    ///
    /// # Errors
    /// The message is malformed or out of place, or the spool failed. The
    /// assembler is of no further use then.
    pub fn push(&mut self, data: Bytes) -> Result<(), AssemblyError> {
        debug_assert!(self.pending.is_none());
        if let State::InBlock(xid) = self.state
            && data.first() != Some(&b'E')
        {
            return self.spool_message(xid, &data);
        }
        let begin = match self.state {
            State::InTransaction(begin) => Some(begin),
            _ => None,
        };
        let taken = pgoutput::decode(data, false).map_err(AssemblyError::from);
        let taken = taken.and_then(|(_, message)| self.take(message));
        self.pending = taken.map_err(|error| AssemblyError(error.0, begin))?;
        Ok(())
    }

    /// The next event, if what was pushed makes one.
    ///
    /// # Errors
    /// As [`Assembler::push`].
    #[allow(clippy::should_implement_trait)] // Not an iterator: None means "push more".
    pub fn next(&mut self) -> Result<Option<Event>, AssemblyError> {
        if let Some(event) = self.pending.take() {
            return Ok(Some(event));
        }
        while let State::Replaying(replay) = &mut self.state {
            let begin = replay.begin();
            let xid = begin.xid;
            let message = replay.read().map_err(|error| Kind::Spool { xid, error })?;
            let Some(data) = message else {
                let commit = replay.commit;
                self.state = State::Outside;
                self.spool.remove(xid).map_err(|error| Kind::Spool { xid, error })?;
                return Ok(Some(Event::Commit(commit)));
            };
            let decoded = pgoutput::decode(data, true).map_err(Kind::Decode);
            let (subxid, message) = decoded.map_err(|kind| AssemblyError(kind, Some(begin)))?;
            // Relations too: after an abort the source describes them again.
            if subxid.is_some_and(|subxid| replay.aborted.contains(&subxid)) {
                continue;
            }
            if let Some(event) = self.row(message).map_err(|error| AssemblyError(error.0, Some(begin)))? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// What one message outside a block means.
    fn take(&mut self, message: Message) -> Result<Option<Event>, AssemblyError> {
        match (&self.state, message) {
            (State::Outside, Message::Begin { final_lsn, commit_time, xid }) => {
                let begin = Begin { xid, final_lsn, commit_time };
                self.state = State::InTransaction(begin);
                Ok(Some(Event::Begin(begin)))
            }
            (State::InTransaction(begin), Message::Commit(commit)) => {
                let (announced, came) = (begin.final_lsn, commit.commit_lsn);
                // The same record, told twice.
                if announced != came || begin.commit_time != commit.commit_time {
                    return Err(Kind::Commit { announced, came }.into());
                }
                self.state = State::Outside;
                Ok(Some(Event::Commit(commit)))
            }
            (State::Outside, Message::StreamStart { xid, first_segment }) => {
                if first_segment == self.open.contains_key(&xid) {
                    let state = if first_segment { "a second time" } else { "without the blocks before it" };
                    return Err(Kind::OutOfPlace { message: "stream start", state }.into());
                }
                self.open.entry(xid).or_default();
                self.state = State::InBlock(xid);
                self.spooling = Some(flight::inside(Phase::Spool));
                Ok(None)
            }
            (State::InBlock(xid), Message::StreamStop) => {
                let xid = *xid;
                self.state = State::Outside;
                self.flush(xid)?;
                self.spooling = None;
                Ok(None)
            }
            (State::Outside, Message::StreamAbort { xid, subxid }) => self.abort(xid, subxid).map(|()| None),
            (State::Outside, Message::StreamCommit { xid, commit }) => self.replay(xid, commit).map(Some),
            (_, Message::TwoPhase { kind }) => Err(Kind::TwoPhase(kind).into()),
            // Sent by the publisher's own choice and without meaning for a
            // subscriber: an origin's name, a type's name, a message emitted
            // by an application.
            (_, Message::Origin { .. } | Message::Type { .. } | Message::Logical { .. }) => Ok(None),
            // A relation may be described before the first change.
            (_, message @ Message::Relation(_)) => self.row(message),
            (State::InTransaction(_), message) => self.row(message),
            (state, message) => {
                Err(Kind::OutOfPlace { message: name(&message), state: state.describe() }.into())
            }
        }
    }

    /// What one message inside a transaction means.
    fn row(&mut self, message: Message) -> Result<Option<Event>, AssemblyError> {
        match message {
            Message::Insert { relation, new } => self.change(relation, Op::Insert(new)),
            Message::Update { relation, old, new } => self.change(relation, Op::Update { old, new }),
            Message::Delete { relation, old } => self.change(relation, Op::Delete(old)),
            Message::Truncate { relations, restart_identity, cascade: _ } => {
                // CASCADE is not repeated: the list names every table that
                // was truncated and is published, as in native apply.
                let relations =
                    relations.into_iter().map(|id| self.relation(id)).collect::<Result<_, _>>()?;
                Ok(Some(Event::Truncate(TruncateChange { relations, restart_identity })))
            }
            Message::Relation(relation) => {
                // Sent again after every invalidation: only a change makes a
                // new relation, so that plans are kept.
                let known = self.relations.get(&relation.id);
                if known.is_none_or(|known| **known != relation) {
                    self.relations.insert(relation.id, Arc::new(relation));
                }
                Ok(None)
            }
            Message::Origin { .. } | Message::Type { .. } | Message::Logical { .. } => Ok(None),
            other => Err(Kind::OutOfPlace { message: name(&other), state: "inside a transaction" }.into()),
        }
    }

    fn relation(&self, id: Oid) -> Result<Arc<Relation>, AssemblyError> {
        self.relations.get(&id).cloned().ok_or(Kind::UnknownRelation(id).into())
    }

    fn change(&self, relation: Oid, op: Op) -> Result<Option<Event>, AssemblyError> {
        let relation = self.relation(relation)?;
        let (one, other) = match &op {
            Op::Insert(new) => (new, None),
            Op::Update { old, new } => (new, old.as_ref().map(|old| &old.tuple)),
            Op::Delete(old) => (&old.tuple, None),
        };
        for tuple in std::iter::once(one).chain(other) {
            let name = || format!("{}.{}", relation.namespace, relation.name);
            let (values, columns) = (tuple.len(), relation.columns.len());
            if values != columns {
                return Err(Kind::Columns { relation: name(), values, columns }.into());
            }
            if tuple.has_binary() && !self.binary {
                return Err(Kind::Binary { relation: name() }.into());
            }
        }
        Ok(Some(Event::Change(Change { relation, op })))
    }

    /// Appends one message, behind its length, to the open transaction.
    fn spool_message(&mut self, xid: Xid, data: &[u8]) -> Result<(), AssemblyError> {
        let open = self.open.entry(xid).or_default();
        let length = u32::try_from(data.len()).expect("a protocol message is below 2 GiB");
        open.buffer.extend_from_slice(&length.to_be_bytes());
        open.buffer.extend_from_slice(data);
        if open.buffer.len() >= BLOCK { self.flush(xid) } else { Ok(()) }
    }

    fn flush(&mut self, xid: Xid) -> Result<(), AssemblyError> {
        let open = self.open.entry(xid).or_default();
        if !open.buffer.is_empty() {
            let appended = self.spool.append(xid, &open.buffer);
            appended.map_err(|error| Kind::Spool { xid, error })?;
            open.spooled = true;
        }
        // Not kept: many transactions may be open, each with a buffer.
        open.buffer = BytesMut::new();
        Ok(())
    }

    fn abort(&mut self, xid: Xid, subxid: Xid) -> Result<(), AssemblyError> {
        if xid == subxid {
            self.open.remove(&xid);
            return self.spool.remove(xid).map_err(|error| Kind::Spool { xid, error }.into());
        }
        // Of a transaction that sent nothing since we started, if it is not
        // there: there is nothing to pass over.
        if let Some(open) = self.open.get_mut(&xid) {
            open.aborted.insert(subxid);
        }
        Ok(())
    }

    fn replay(&mut self, xid: Xid, commit: CommitInfo) -> Result<Event, AssemblyError> {
        let Some(open) = self.open.remove(&xid) else {
            let (message, state) = ("stream commit", "for a transaction that was never streamed");
            return Err(Kind::OutOfPlace { message, state }.into());
        };
        let input = if open.spooled {
            Some(self.spool.read(xid).map_err(|error| Kind::Spool { xid, error })?)
        } else {
            None
        };
        let replay = Replay { xid, commit, aborted: open.aborted, input, buffer: BytesMut::new() };
        let begin = replay.begin();
        self.state = State::Replaying(replay);
        Ok(Event::Begin(begin))
    }
}

impl Replay {
    fn begin(&self) -> Begin {
        Begin { xid: self.xid, final_lsn: self.commit.commit_lsn, commit_time: self.commit.commit_time }
    }

    /// The next message, `None` at the end.
    fn read(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let mut wanted = 4;
            if let Some(length) = self.buffer.first_chunk::<4>() {
                wanted += u32::from_be_bytes(*length) as usize;
                if self.buffer.len() >= wanted {
                    let mut message = self.buffer.split_to(wanted);
                    message.advance(4);
                    return Ok(Some(message.freeze()));
                }
            }
            if !self.fill(wanted)? {
                let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the spool file was cut short");
                return if self.buffer.is_empty() { Ok(None) } else { Err(cut()) };
            }
        }
    }

    /// Reads one block, or as much as a longer message needs; false at the end.
    fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        let Some(input) = &mut self.input else { return Ok(false) };
        let have = self.buffer.len();
        // A fresh block each time: the messages handed out share the old one.
        let mut block = BytesMut::zeroed(have + BLOCK.max(wanted.saturating_sub(have)));
        block[..have].copy_from_slice(&self.buffer);
        let read = input.read(&mut block[have..])?;
        block.truncate(have + read);
        self.buffer = block;
        Ok(read > 0)
    }
}

fn name(message: &Message) -> &'static str {
    match message {
        Message::Begin { .. } => "begin",
        Message::Commit(_) => "commit",
        Message::Origin { .. } => "origin",
        Message::Relation(_) => "relation",
        Message::Type { .. } => "type",
        Message::Insert { .. } => "insert",
        Message::Update { .. } => "update",
        Message::Delete { .. } => "delete",
        Message::Truncate { .. } => "truncate",
        Message::Logical { .. } => "logical message",
        Message::StreamStart { .. } => "stream start",
        Message::StreamStop => "stream stop",
        Message::StreamCommit { .. } => "stream commit",
        Message::StreamAbort { .. } => "stream abort",
        Message::TwoPhase { .. } => "two-phase message",
    }
}

#[cfg(test)]
mod tests;
