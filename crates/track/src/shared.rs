//! What a track's writer and its cursors share.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::Lsn;
use bytes::Bytes;
use tokio::sync::watch;

use crate::files::{Files, InFile};
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
    /// Consecutive bytes, the newest part, by their first byte.
    pub(crate) blocks: VecDeque<(u64, Bytes)>,
    pub(crate) memory: usize,
    pub(crate) files: Files,
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
    Memory(Bytes),
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
    /// The bytes from `at` on, at most `most` of them.
    pub(crate) fn find(&self, at: u64, most: usize) -> Found {
        if at < self.floor {
            return Found::Gone;
        }
        let number = self.blocks.partition_point(|(start, bytes)| start + bytes.len() as u64 <= at);
        match self.blocks.get(number) {
            Some((start, bytes)) if *start <= at => {
                let from = usize::try_from(at - start).unwrap_or(usize::MAX);
                Found::Memory(bytes.slice(from..))
            }
            // Before the first block, or there is none.
            _ => self.files.find(at, most).map_or(Found::Dry, Found::File),
        }
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
