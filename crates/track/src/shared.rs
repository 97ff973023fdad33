//! What a track's writer and its cursors share.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::Lsn;
use tokio::sync::watch;

use crate::files::{Files, InFile};
use crate::portion::Portion;
use crate::scan::Open;

/// What the writer and all cursors share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    /// The end of what can be read.
    pub(crate) tail: watch::Sender<u64>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Consecutive portions, the newest part, by their first byte.
    pub(crate) portions: VecDeque<(u64, Portion)>,
    pub(crate) memory: usize,
    pub(crate) files: Files,
    pub(crate) recent: Recent,
    /// Where the chapters begin that can be entered.
    pub(crate) chapters: VecDeque<Chapter>,
    /// By cursor, the first byte that it needs.
    pub(crate) cursors: HashMap<u64, u64>,
    pub(crate) next_cursor: u64,
    /// Bytes before are gone.
    pub(crate) floor: u64,
    /// Every transaction that ends at or behind this position ends behind what can be read.
    pub(crate) complete_from: Lsn,
}

/// What was read from files last: readers that are near one another read it once.
#[derive(Debug)]
pub(crate) struct Recent {
    /// By their first byte; the latest comes last.
    pieces: VecDeque<(u64, Portion)>,
    bytes: usize,
    bytes_max: usize,
}

impl Recent {
    pub(crate) fn new(bytes_max: usize) -> Recent {
        Recent { pieces: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// The bytes from `at` on.
    fn find(&self, at: u64) -> Option<Portion> {
        let has =
            |(start, portion): &&(u64, Portion)| (*start..start + portion.bytes.len() as u64).contains(&at);
        self.pieces.iter().rev().find(has).map(|(start, portion)| portion.behind(at - start))
    }

    /// Keeps the piece that begins at `start`.
    fn keep(&mut self, start: u64, portion: Portion) {
        // One that has grown takes the place of what it was.
        self.forget(|known, _| known == start);
        self.bytes += portion.bytes.len();
        self.pieces.push_back((start, portion));
        while self.bytes > self.bytes_max {
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
        self.recent.keep(place.start(), portion);
        rest
    }

    pub(crate) fn needs(&mut self, cursor: u64, at: u64) {
        self.cursors.insert(cursor, at);
    }

    pub(crate) fn forget(&mut self, cursor: u64) {
        self.cursors.remove(&cursor);
    }

    pub(crate) fn least_needed(&self) -> Option<u64> {
        self.cursors.values().copied().filter(|at| *at >= self.floor).min()
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
        let mut recent = Recent::new(8);
        let found = |recent: &Recent, at: u64| recent.find(at).map(|portion| portion.bytes);
        recent.keep(10, portion(b"abc"));
        assert_eq!(found(&recent, 11).as_deref(), Some(&b"bc"[..]));
        assert!(found(&recent, 9).is_none() && found(&recent, 13).is_none());
        // A piece that has grown.
        recent.keep(10, portion(b"abcde"));
        assert_eq!((found(&recent, 13).as_deref(), recent.bytes), (Some(&b"de"[..]), 5));
        recent.keep(15, portion(b"fgh"));
        assert!(found(&recent, 10).is_some());
        recent.keep(18, portion(b"i"));
        assert!(found(&recent, 10).is_none() && found(&recent, 15).is_some(), "the oldest goes");
        recent.release(18);
        assert!(found(&recent, 15).is_none() && found(&recent, 18).is_some());
        assert_eq!(recent.bytes, 1);
        recent.keep(19, portion(b"larger than all"));
        assert_eq!((recent.bytes, recent.pieces.len()), (0, 0));
    }
}
