//! pgoutput messages in, events of whole transactions out.
//!
//! Callers hand in messages in the order of the stream with [`Assembler::push`]. After each message
//! they call [`Assembler::next`] until it returns `None`. Events always read `Begin (Change |
//! Truncate)* Commit`, never interleaved.
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
//! Invariants: a message inside a block is written to the spool unchanged, and decoded when its
//! transaction commits. The relations that were sent with it take effect then, as they do in native
//! apply. Changes of an aborted subtransaction stay in the spool and are skipped when it is read.
//!
//! Memory: one write buffer and one read buffer of [`BLOCK`] bytes, plus eight bytes for each
//! aborted subtransaction of an open transaction.

mod error;
pub(crate) mod error_reference;
mod event;
mod origin;
mod rows;
mod streamed;

use std::io;
use std::sync::Arc;

use base::Xid;
use base::crash_phases::{self, Inside, Phase};
use bytes::{Bytes, BytesMut};
use proto::pgoutput::{self, CommitInfo, Message, Relation};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::spool::Spool;
pub use error::AssemblyError;
use error::{Kind, name};
pub use event::{Begin, Change, Event, Op, TruncateChange};
pub use origin::stored_origin;
use rows::Rows;
pub use streamed::Streamed;
use streamed::{BLOCK, Messages};

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
    /// Bytes that were appended to the spool.
    spooled: u64,
    /// The relations that it described, in order, each with the (sub)transaction that did.
    described: Vec<(Xid, Arc<Relation>)>,
    /// It came to the source by replication, and its changes are left out.
    replicated: bool,
    /// Where it came from.
    origin: Option<&'static str>,
}

/// News of a streamed transaction that has not committed yet.
#[derive(Debug, Clone)]
pub enum Notice {
    /// Another block of the transaction has ended.
    Grown {
        /// Its id on the source.
        xid: Xid,
        /// Bytes of it in the spool.
        bytes: u64,
        /// All relations that it has described so far, in order.
        relations: Vec<Arc<Relation>>,
    },
    /// The transaction, or one of its subtransactions, was aborted.
    Aborted(Xid),
}

/// A committed streamed transaction being read back.
struct Replay {
    xid: Xid,
    commit: CommitInfo,
    origin: Option<&'static str>,
    aborted: FxHashSet<Xid>,
    described: Vec<(Xid, Arc<Relation>)>,
    messages: Messages,
}

/// See the module.
pub struct Assembler {
    spool: Box<dyn Spool>,
    state: State,
    rows: Rows,
    open: FxHashMap<Xid, Open>,
    pending: Option<Event>,
    notice: Option<Notice>,
    /// Present while in a block.
    spooling: Option<Inside>,
    /// Changes of transactions that have an origin are left out.
    local_only: bool,
    /// The transaction that the stream is in has an origin.
    replicated: bool,
}

impl Assembler {
    /// Makes an assembler that knows no relation yet. Open transactions go to `spool`.
    #[must_use]
    pub fn new(spool: Box<dyn Spool>) -> Self {
        Assembler {
            spool,
            state: State::Outside,
            rows: Rows::new(true),
            open: FxHashMap::default(),
            pending: None,
            notice: None,
            spooling: None,
            local_only: false,
            replicated: false,
        }
    }

    /// Sets whether the changes of transactions that came to the source by replication are left
    /// out, as a source does from version 16 on with `origin = none`. Such a transaction comes out
    /// without changes. It is known by its [`Message::Origin`], which a source does not send if the
    /// origin was dropped meanwhile.
    #[must_use]
    pub fn with_local_only(mut self, local_only: bool) -> Self {
        self.local_only = local_only;
        self
    }

    /// Sets whether values were requested in binary form. If not, a binary value is an error.
    #[must_use]
    pub fn with_binary(mut self, binary: bool) -> Self {
        self.rows.set_binary(binary);
        self
    }

    /// Whether the stream is between transactions and blocks, so that everything before the present
    /// position is complete.
    #[must_use]
    pub fn is_outside(&self) -> bool {
        matches!(self.state, State::Outside) && self.pending.is_none()
    }

    /// Makes a file in the spool, for what its owner puts aside.
    ///
    /// # Errors
    /// The disk failed.
    pub fn scratch(&mut self) -> io::Result<std::fs::File> {
        self.spool.scratch()
    }

    /// Returns the news of a streamed transaction from the last message, if there is any.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notice.take()
    }

    /// Returns the received part of an open transaction, to be read while more comes. No part of it
    /// may have been aborted.
    ///
    /// # Errors
    /// The disk failed.
    pub fn streamed(&mut self, xid: Xid) -> io::Result<Streamed> {
        Ok(Streamed::new(xid, Some(self.spool.read(xid)?), self.rows.anew()))
    }

    /// Hands a streamed transaction to the caller, if its [`Event::Begin`] was the last event.
    /// Returns its changes from the start, and its commit, which then is no event. `None` if that
    /// was not the last event, or if a part of it was aborted.
    ///
    /// # Errors
    /// The disk failed.
    pub fn take_over(&mut self) -> Result<Option<(Streamed, CommitInfo)>, AssemblyError> {
        let is_whole = |replay: &Replay| replay.aborted.is_empty() && replay.messages.is_at_start();
        let replay = match std::mem::replace(&mut self.state, State::Outside) {
            State::Replaying(replay) if self.pending.is_none() && is_whole(&replay) => replay,
            state => {
                self.state = state;
                return Ok(None);
            }
        };
        let Replay { xid, commit, described, messages, .. } = replay;
        let taken = Streamed::of(xid, messages, self.rows.anew());
        described.into_iter().for_each(|(_, relation)| self.rows.learn(relation));
        self.spool.remove(xid).map_err(|error| Kind::Spool { xid, error })?;
        Ok(Some((taken, commit)))
    }

    /// The number of transactions that wait in the spool.
    #[must_use]
    pub fn open_transactions(&self) -> usize {
        self.open.len()
    }

    /// Takes the next message. [`Assembler::next`] must have returned `None`.
    ///
    /// # Errors
    /// The message is malformed or out of place, or the spool failed. The assembler cannot be used
    /// after that.
    pub fn push(&mut self, data: Bytes) -> Result<(), AssemblyError> {
        debug_assert!(self.pending.is_none());
        if let State::InBlock(xid) = self.state
            && data.first() != Some(&b'E')
        {
            return self.spool_message(xid, &data);
        }
        if self.replicated && is_change(&data) {
            return Ok(());
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

    /// Returns the next event, if the messages so far make one.
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
            let message = replay.messages.next(u64::MAX).map_err(|error| Kind::Spool { xid, error })?;
            let Some(data) = message else {
                let commit = replay.commit;
                self.state = State::Outside;
                self.spool.remove(xid).map_err(|error| Kind::Spool { xid, error })?;
                return Ok(Some(Event::Commit(commit)));
            };
            let decoded = pgoutput::decode(data, true).map_err(Kind::Decode);
            let (subxid, message) = decoded.map_err(|kind| AssemblyError(kind, Some(begin)))?;
            // Skips relations, too: after an abort the source describes them again.
            if subxid.is_some_and(|subxid| replay.aborted.contains(&subxid)) {
                continue;
            }
            if let Some(event) =
                self.rows.event(message).map_err(|error| AssemblyError(error.0, Some(begin)))?
            {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Handles one message outside a block.
    fn take(&mut self, message: Message) -> Result<Option<Event>, AssemblyError> {
        match (&self.state, message) {
            (State::Outside, Message::Begin { final_lsn, commit_time, xid }) => {
                let begin = Begin { xid, final_lsn, commit_time, origin: None };
                self.state = State::InTransaction(begin);
                self.replicated = false;
                Ok(Some(Event::Begin(begin)))
            }
            (State::InTransaction(begin), Message::Commit(commit)) => {
                let (announced, came) = (begin.final_lsn, commit.commit_lsn);
                // The stream names this record twice, and both must agree.
                if announced != came || begin.commit_time != commit.commit_time {
                    return Err(Kind::Commit { announced, came }.into());
                }
                self.state = State::Outside;
                self.replicated = false;
                Ok(Some(Event::Commit(commit)))
            }
            (State::Outside, Message::StreamStart { xid, first_segment }) => {
                if first_segment == self.open.contains_key(&xid) {
                    let state = if first_segment { "a second time" } else { "without the blocks before it" };
                    return Err(Kind::OutOfPlace { message: "stream start", state }.into());
                }
                self.open.entry(xid).or_default();
                self.state = State::InBlock(xid);
                self.spooling = Some(crash_phases::inside(Phase::Spool));
                Ok(None)
            }
            (State::InBlock(xid), Message::StreamStop) => {
                let xid = *xid;
                self.state = State::Outside;
                self.flush(xid)?;
                self.spooling = None;
                self.notice = self
                    .open
                    .get(&xid)
                    .filter(|open| open.spooled > 0 && open.aborted.is_empty())
                    .map(|open| Notice::Grown {
                        xid,
                        bytes: open.spooled,
                        relations: open.described.iter().map(|(_, relation)| Arc::clone(relation)).collect(),
                    });
                Ok(None)
            }
            (State::Outside, Message::StreamAbort { xid, subxid }) => self.abort(xid, subxid).map(|()| None),
            (State::Outside, Message::StreamCommit { xid, commit }) => self.replay(xid, commit).map(Some),
            (_, Message::TwoPhase { kind }) => Err(Kind::TwoPhase(kind).into()),
            (State::InTransaction(_), Message::Origin { name, .. }) => {
                self.replicated = self.local_only;
                Ok(stored_origin(&name).map(Event::Origin))
            }
            // The publisher sends these unasked, and a subscriber ignores them: a type's name, a
            // message from an application, an origin's name in any other place.
            (_, Message::Origin { .. } | Message::Type { .. } | Message::Logical { .. }) => Ok(None),
            // A relation may be described before the first change.
            (_, message @ Message::Relation(_)) => self.rows.event(message),
            (State::InTransaction(_), message) => self.rows.event(message),
            (state, message) => {
                Err(Kind::OutOfPlace { message: name(&message), state: state.describe() }.into())
            }
        }
    }

    /// Appends one message to the open transaction, with its length before it.
    fn spool_message(&mut self, xid: Xid, data: &[u8]) -> Result<(), AssemblyError> {
        let open = self.open.entry(xid).or_default();
        // The first block names the origin before any change.
        let is_origin = data.first() == Some(&b'O');
        open.replicated |= self.local_only && is_origin;
        if is_origin
            && let Ok((_, Message::Origin { name, .. })) =
                pgoutput::decode(Bytes::copy_from_slice(data), true)
        {
            open.origin = stored_origin(&name);
        }
        if open.replicated && is_change(data) {
            return Ok(());
        }
        // An unreadable message is an error when it is read again, unless its subtransaction was
        // aborted.
        if data.first() == Some(&b'R')
            && let Ok((Some(by), Message::Relation(relation))) =
                pgoutput::decode(Bytes::copy_from_slice(data), true)
        {
            let last = open.described.iter().rev().find(|(_, other)| other.id == relation.id);
            // The source describes a relation again after every invalidation.
            if last.is_none_or(|(of, other)| *of != by || **other != relation) {
                open.described.push((by, self.rows.shared(relation)));
            }
        }
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
            open.spooled += open.buffer.len() as u64;
        }
        // The buffer is not kept, because many transactions may be open, each with a buffer.
        open.buffer = BytesMut::new();
        Ok(())
    }

    fn abort(&mut self, xid: Xid, subxid: Xid) -> Result<(), AssemblyError> {
        self.notice = Some(Notice::Aborted(xid));
        if xid == subxid {
            self.open.remove(&xid);
            return self.spool.remove(xid).map_err(|error| Kind::Spool { xid, error }.into());
        }
        // If it is not there, the transaction has sent nothing since this process started, and
        // there is nothing to skip.
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
        let input = if open.spooled > 0 {
            Some(self.spool.read(xid).map_err(|error| Kind::Spool { xid, error })?)
        } else {
            None
        };
        let Open { aborted, described, origin, .. } = open;
        let replay = Replay { xid, commit, origin, aborted, described, messages: Messages::new(input) };
        let begin = replay.begin();
        self.state = State::Replaying(replay);
        Ok(Event::Begin(begin))
    }
}

impl Replay {
    fn begin(&self) -> Begin {
        let CommitInfo { commit_lsn, commit_time, .. } = self.commit;
        Begin { xid: self.xid, final_lsn: commit_lsn, commit_time, origin: self.origin }
    }
}

/// Whether a message is a change of rows: an INSERT, UPDATE, DELETE or TRUNCATE.
fn is_change(data: &[u8]) -> bool {
    matches!(data.first(), Some(b'I' | b'U' | b'D' | b'T'))
}

#[cfg(test)]
mod tests;
