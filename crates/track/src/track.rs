//! The writing end of a track.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use base::{Lsn, PgTimestamp};
use proto::frame::copy_data_header;
use proto::replication::xlog_data_header;
use tokio::sync::watch;

use crate::cursor::{Cursor, Entrance, NotHere};
use crate::error::Error;
use crate::files::Files;
use crate::memory::TrackMemory;
use crate::portion::Portion;
use crate::scan::{BEFORE, Open, Role, role};
use crate::shared::{Chapter, Recent, Shared, State};

/// What lies in files is read in pieces of this size, or smaller ones where less memory is there.
const PIECE_BYTES: u64 = 128 << 10;
const PIECES: u64 = 64;

/// The most that a track keeps.
#[derive(Debug, Clone)]
pub struct Limits {
    /// For the newest part, shared with other tracks.
    pub memory: TrackMemory,
    /// Bytes in files.
    pub file_bytes: u64,
    /// A chapter with more bytes than this ends at the next opportunity.
    pub chapter_bytes: u64,
    /// Where files are made.
    pub dir: PathBuf,
}

/// What the writer has to do after a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// Nothing.
    GoesOn,
    /// A chapter begins with the next message. Relations must be described again in it.
    ChapterBegins,
}

/// A message that is longer than a frame can be; its length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong(pub usize);

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message of {} bytes is longer than the protocol allows (1 GiB)", self.0)
    }
}

impl std::error::Error for TooLong {}

/// The writing end. Dropping it ends the track; what was written can still be read.
#[derive(Debug)]
pub struct Track {
    shared: Arc<Shared>,
    limits: Limits,
    /// What is not visible yet.
    pending: Vec<u8>,
    /// See [`Portion::last`].
    pending_last: Lsn,
    /// Where `pending` begins.
    offset: u64,
    open: Open,
    /// The last end of a transaction, and one byte.
    complete_from: Lsn,
    chapter: u64,
}

impl Track {
    /// Makes a track that has every transaction that ends at or behind `begins_at`.
    #[must_use]
    pub fn new(begins_at: Lsn, limits: Limits) -> Track {
        let chapter = Chapter { offset: 0, complete_from: begins_at, open: Open::default() };
        let piece_bytes = PIECE_BYTES.min(limits.memory.bytes() as u64 / PIECES);
        let state = State {
            portions: VecDeque::new(),
            memory: limits.memory.part(),
            files: Files::new(limits.dir.clone(), piece_bytes),
            recent: Recent::default(),
            chapters: VecDeque::from([chapter]),
            cursors: HashMap::new(),
            writer_waits: false,
            next_cursor: 0,
            floor: 0,
            complete_from: begins_at,
        };
        Track {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                came_near: Condvar::new(),
                tail: watch::Sender::new(0),
            }),
            limits,
            pending: Vec::new(),
            pending_last: Lsn::INVALID,
            offset: 0,
            open: Open::default(),
            complete_from: begins_at,
            chapter: 0,
        }
    }

    /// Says that transactions that were prepared before `at` come when they commit, with their
    /// PREPARE: who has not confirmed the commit needs both. To be called before anything else.
    #[must_use]
    pub fn with_two_phase_at(mut self, at: Lsn) -> Track {
        self.open.two_phase_at = at;
        self.shared.state().chapters.iter_mut().for_each(|chapter| chapter.open.two_phase_at = at);
        self
    }

    /// Appends a message of pgoutput. `lsn` is what the frame says, `at` the time. Nobody sees it
    /// before [`Track::flush`].
    ///
    /// # Errors
    /// The message is longer than the protocol allows. Nothing was appended.
    pub fn push(&mut self, lsn: Lsn, at: PgTimestamp, message: &[u8]) -> Result<Pushed, TooLong> {
        let begins = self.offset + self.pending.len() as u64;
        let header = copy_data_header(message.len() + BEFORE - proto::frame::HEADER_SIZE);
        let header = header.ok_or(TooLong(message.len()))?;
        self.pending.extend_from_slice(&header);
        self.pending.extend_from_slice(&xlog_data_header(lsn, lsn, at));
        self.pending.extend_from_slice(message);
        self.pending_last = self.pending_last.max(lsn);
        let role = role(message, &self.open);
        self.open.take(role, begins);
        if let Role::Begin(end) | Role::Single(end) | Role::StreamEnds(_, Some(end)) = role {
            self.complete_from = self.complete_from.max(Lsn::new(end.as_u64() + 1));
        }
        let end = self.offset + self.pending.len() as u64;
        if !self.open.is_between() || end - self.chapter < self.limits.chapter_bytes {
            return Ok(Pushed::GoesOn);
        }
        self.chapter = end;
        let chapter = Chapter { offset: end, complete_from: self.complete_from, open: self.open.clone() };
        self.shared.state().chapters.push_back(chapter);
        Ok(Pushed::ChapterBegins)
    }

    /// Bytes that nobody sees yet.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Lets everybody see what was pushed. Only those wake who had read everything before.
    ///
    /// # Errors
    /// An older part cannot be written into files. Cursors that needed it are evicted.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let last = std::mem::replace(&mut self.pending_last, Lsn::INVALID);
        // The next one is often as long.
        let next = Vec::with_capacity(self.pending.len());
        let portion = Portion { bytes: std::mem::replace(&mut self.pending, next).into(), last };
        let start = self.offset;
        self.offset += portion.bytes.len() as u64;
        {
            let mut state = self.shared.state();
            state.push(start, portion);
            state.complete_from = self.complete_from;
        }
        self.shared.tail.send_replace(self.offset);
        self.trim()
    }

    /// Keeps to the limits.
    fn trim(&mut self) -> Result<(), Error> {
        let mut state = self.shared.state();
        let state = &mut *state;
        let mut failed = None;
        while state.portions.len() > 1 && state.memory.is_over(false) {
            let Some((start, portion)) = state.portions.front().cloned() else { break };
            let end = start + portion.bytes.len() as u64;
            let least = state.least_needed();
            let is_needed = least.is_some_and(|least| least < end);
            if !state.memory.is_over(is_needed) {
                break;
            }
            let spilled = if is_needed { Some(state.files.append(start, &portion)) } else { None };
            if !matches!(spilled, Some(Ok(()))) {
                state.files.release(u64::MAX);
                state.raise(end);
            }
            failed = failed.or(spilled.and_then(Result::err));
            state.pop();
        }
        let least = state.least_needed();
        state.recent.release(least.unwrap_or(u64::MAX));
        if let Some(least) = least {
            state.files.release(least);
        }
        while state.files.size() > self.limits.file_bytes {
            let Some(left) = state.files.drop_oldest() else { break };
            state.raise(left);
        }
        let first = state.portions.front().map(|(start, _)| *start);
        if let Some(start) = state.files.start().or(first) {
            state.raise(start);
        }
        failed.map_or(Ok(()), Err)
    }

    /// What lets readers in, also from other threads.
    #[must_use]
    pub fn entrance(&self) -> Entrance {
        Entrance::new(Arc::clone(&self.shared))
    }

    /// See [`Entrance::enter`].
    ///
    /// # Errors
    /// As there.
    pub fn enter(&self, from: Lsn) -> Result<Cursor, NotHere> {
        self.entrance().enter(from)
    }

    /// Everything that was pushed ends before this byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.pending.len() as u64
    }

    /// Bytes in memory and in files.
    #[must_use]
    pub fn kept_bytes(&self) -> (usize, u64) {
        let state = self.shared.state();
        (state.memory.used() + self.pending.len(), state.files.size())
    }

    /// Waits while every reader has some megabytes before it, but no longer than `most`. Returns
    /// whether to go on: what is written long before somebody needs it has left the processor's
    /// cache by then, or memory. Without a reader it never waits.
    #[must_use]
    pub fn wait_for_readers(&self, most: Duration) -> bool {
        self.shared.wait_for_readers(most)
    }
}
