//! What a track's writer and its cursors share.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Lsn;
use tokio::sync::watch;

use crate::files::{Files, InFile};
use crate::memory::Part;
use crate::portion::Portion;
use crate::scan::Open;

/// So much, and no more than half of the memory, is ready for the first reader if the writer waits
/// for it. It is still in the processor's cache when readers come that are close behind.
const AHEAD: u64 = 2 << 20;

/// What the writer and all cursors share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    /// A reader has come near the end while the writer waits for one.
    pub(crate) came_near: Condvar,
    /// The end of what can be read.
    pub(crate) tail: watch::Sender<u64>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Consecutive portions, the newest part, by their first byte.
    pub(crate) portions: VecDeque<(u64, Portion)>,
    /// The memory of `portions`.
    pub(crate) memory: Part,
    pub(crate) files: Files,
    pub(crate) recent: Recent,
    /// Where the chapters begin that can be entered.
    pub(crate) chapters: VecDeque<Chapter>,
    pub(crate) cursors: HashMap<u64, Needs>,
    /// The writer waits until a reader is near the end.
    pub(crate) writer_waits: bool,
    pub(crate) next_cursor: u64,
    /// Bytes before are gone.
    pub(crate) floor: u64,
    /// Every transaction that ends at or behind this position ends behind what can be read.
    pub(crate) complete_from: Lsn,
}

/// What was read from files last: readers that are near one another read it once.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// By their first byte; the latest comes last.
    pieces: VecDeque<(u64, Portion)>,
    bytes: usize,
}

/// Where a cursor is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    /// The first byte that it may still ask for.
    pub(crate) from: u64,
    /// What it reads next.
    pub(crate) at: u64,
}

impl Recent {
    /// The bytes from `at` on.
    fn find(&self, at: u64) -> Option<Portion> {
        let has =
            |(start, portion): &&(u64, Portion)| (*start..start + portion.bytes.len() as u64).contains(&at);
        self.pieces.iter().rev().find(has).map(|(start, portion)| portion.behind(at - start))
    }

    /// Keeps the piece that begins at `start`, and no more than `bytes_max` of all.
    fn keep(&mut self, start: u64, portion: Portion, bytes_max: usize) {
        // One that has grown takes the place of what it was.
        self.forget(|known, _| known == start);
        self.bytes += portion.bytes.len();
        self.pieces.push_back((start, portion));
        while self.bytes > bytes_max {
            let Some((_, oldest)) = self.pieces.pop_front() else { break };
            self.bytes -= oldest.bytes.len();
        }
    }

    /// Forgets what is before `needed`.
    pub(crate) fn release(&mut self, needed: u64) {
        self.forget(|_, end| end <= needed);
    }

    fn forget(&mut self, is_it: impl Fn(u64, u64) -> bool) {
        self.pieces.retain(|(start, portion)| !is_it(*start, start + portion.bytes.len() as u64));
        self.bytes = self.pieces.iter().map(|(_, portion)| portion.bytes.len()).sum();
    }
}

/// Where a chapter begins.
#[derive(Debug, Clone)]
pub(crate) struct Chapter {
    pub(crate) offset: u64,
    /// Every transaction that ends at or behind this position ends in this chapter or later.
    pub(crate) complete_from: Lsn,
    /// What is open there.
    pub(crate) open: Open,
}

/// Where bytes are.
pub(crate) enum Found {
    Memory(Portion),
    File(InFile),
    Dry,
    Gone,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where a cursor is.
    pub(crate) fn needs(&self, cursor: u64, needs: Needs) {
        let mut state = self.state();
        state.cursors.insert(cursor, needs);
        self.tell_writer(&state);
    }

    /// The cursor is gone.
    pub(crate) fn forget(&self, cursor: u64) {
        let mut state = self.state();
        state.cursors.remove(&cursor);
        self.tell_writer(&state);
    }

    fn tell_writer(&self, state: &State) {
        if state.writer_waits && !state.is_far_ahead() {
            self.came_near.notify_one();
        }
    }

    /// Waits while all readers are far from the end, but no longer than `most`. Returns whether one
    /// is near, or there is none.
    pub(crate) fn wait_for_readers(&self, most: Duration) -> bool {
        let mut state = self.state();
        if !state.is_far_ahead() {
            return true;
        }
        state.writer_waits = true;
        let waited = self.came_near.wait_timeout_while(state, most, |state| state.is_far_ahead());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.writer_waits = false;
        !state.is_far_ahead()
    }
}

impl State {
    /// The bytes from `at` on, as far as they are together.
    pub(crate) fn find(&self, at: u64) -> Found {
        if at < self.floor {
            return Found::Gone;
        }
        let number =
            self.portions.partition_point(|(start, portion)| start + portion.bytes.len() as u64 <= at);
        match self.portions.get(number) {
            Some((start, portion)) if *start <= at => Found::Memory(portion.behind(at - start)),
            // Before the first portion, or there is none.
            _ => match self.recent.find(at) {
                Some(portion) => Found::Memory(portion),
                None => self.files.find(at).map_or(Found::Dry, Found::File),
            },
        }
    }

    /// Keeps what was read at `place` for others. Returns the bytes from `at` on.
    pub(crate) fn was_read(&mut self, place: &InFile, portion: Portion, at: u64) -> Portion {
        let rest = portion.behind(at - place.start());
        self.recent.keep(place.start(), portion, self.memory.most() / 2);
        rest
    }

    pub(crate) fn least_needed(&self) -> Option<u64> {
        self.cursors.values().map(|needs| needs.from).filter(|from| *from >= self.floor).min()
    }

    /// Whether the reader that is furthest along has as much before it as a writer should be ahead.
    fn is_far_ahead(&self) -> bool {
        let end = self.portions.back().map_or(0, |(start, portion)| start + portion.bytes.len() as u64);
        let furthest = self.cursors.values().map(|needs| needs.at).max();
        furthest.is_some_and(|at| end.saturating_sub(at) > AHEAD.min(self.memory.most() as u64 / 2))
    }

    /// Appends what comes next.
    pub(crate) fn push(&mut self, start: u64, portion: Portion) {
        self.memory.take(portion.bytes.len());
        self.portions.push_back((start, portion));
    }

    /// Takes the oldest portion out of memory.
    pub(crate) fn pop(&mut self) {
        if let Some((_, portion)) = self.portions.pop_front() {
            self.memory.give_back(portion.bytes.len());
        }
    }

    /// Forgets what is before `floor`.
    pub(crate) fn raise(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        let floor = self.floor;
        while self.chapters.front().is_some_and(|chapter| chapter.offset < floor) {
            self.chapters.pop_front();
        }
    }
}

impl Chapter {
    /// The first byte that a reader may need who enters here.
    pub(crate) fn first(&self) -> u64 {
        self.open.streams.values().copied().min().unwrap_or(self.offset).min(self.offset)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn portion(bytes: &'static [u8]) -> Portion {
        Portion { bytes: Bytes::from_static(bytes), last: Lsn::new(bytes.len() as u64) }
    }

    #[test]
    fn what_was_read_last_is_kept_up_to_its_bound() {
        let mut recent = Recent::default();
        let keep = |recent: &mut Recent, start, bytes| recent.keep(start, portion(bytes), 8);
        let found = |recent: &Recent, at: u64| recent.find(at).map(|portion| portion.bytes);
        keep(&mut recent, 10, b"abc");
        assert_eq!(found(&recent, 11).as_deref(), Some(&b"bc"[..]));
        assert!(found(&recent, 9).is_none() && found(&recent, 13).is_none());
        // A piece that has grown.
        keep(&mut recent, 10, b"abcde");
        assert_eq!((found(&recent, 13).as_deref(), recent.bytes), (Some(&b"de"[..]), 5));
        keep(&mut recent, 15, b"fgh");
        assert!(found(&recent, 10).is_some());
        keep(&mut recent, 18, b"i");
        assert!(found(&recent, 10).is_none() && found(&recent, 15).is_some(), "the oldest goes");
        recent.release(18);
        assert!(found(&recent, 15).is_none() && found(&recent, 18).is_some());
        assert_eq!(recent.bytes, 1);
        keep(&mut recent, 19, b"larger than all");
        assert_eq!((recent.bytes, recent.pieces.len()), (0, 0));
    }
}
