//! The reading end of a track: one reader's place.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use base::{Lsn, Xid};
use bytes::Bytes;
use tokio::sync::watch;

use crate::error::Error;
use crate::portion::Portion;
use crate::scan::{Frames, Open, Role, last_lsn, message, role};
use crate::shared::{Chapter, Found, Needs, Shared};

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// These frames.
    Frames(Portion),
    /// Nothing more is there.
    Dry,
    /// What comes next was not kept. The reader must enter somewhere else.
    Evicted,
}

/// Why nobody can enter at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotHere {
    /// The track began later, or has not kept it. It has everything from this position on.
    Gone(Lsn),
}

/// Lets readers in. Clones lead to the same track.
#[derive(Debug, Clone)]
pub struct Entrance {
    shared: Arc<Shared>,
}

impl Entrance {
    pub(crate) fn new(shared: Arc<Shared>) -> Entrance {
        Entrance { shared }
    }

    /// Makes a cursor for a reader that has confirmed everything before `from`.
    ///
    /// # Errors
    /// The track does not have everything that is needed.
    pub fn enter(&self, from: Lsn) -> Result<Cursor, NotHere> {
        let mut state = self.shared.state();
        let floor = state.floor;
        let can_enter = |chapter: &&Chapter| chapter.complete_from <= from && chapter.first() >= floor;
        let Some(chapter) = state.chapters.iter().rev().find(can_enter).cloned() else {
            let first = state.chapters.front().map_or(state.complete_from, |chapter| chapter.complete_from);
            return Err(NotHere::Gone(first));
        };
        let id = state.next_cursor;
        state.next_cursor += 1;
        state.cursors.insert(id, Needs { from: chapter.first(), at: chapter.offset });
        drop(state);
        Ok(Cursor::new(Arc::clone(&self.shared), id, from, chapter))
    }

    /// How many cursors read it.
    #[must_use]
    pub fn cursors(&self) -> usize {
        self.shared.state().cursors.len()
    }
}

/// One reader's place.
#[derive(Debug)]
pub struct Cursor {
    shared: Arc<Shared>,
    tail: watch::Receiver<u64>,
    id: u64,
    /// Where the next bytes are.
    at: u64,
    stage: Stage,
    /// Everything that ends before this position can be read.
    complete_to: Lsn,
    /// What is handed out before anything else is read.
    ready: VecDeque<Bytes>,
    looks: u64,
}

#[derive(Debug)]
enum Stage {
    /// Passes over what was confirmed.
    Seeking { from: Lsn, walk: Walk },
    /// Picks the blocks of transactions that are still open, up to the first that is needed whole.
    Picking { until: u64, open: HashSet<Xid>, walk: Walk },
    /// Everything is needed. Descriptions that were passed over come behind the next BEGIN.
    Describing { walk: Walk },
    /// Everything is needed as it is.
    Sending,
}

/// Goes through a track frame by frame.
#[derive(Debug)]
struct Walk {
    frames: Frames,
    /// Where the next frame begins.
    at: u64,
    open: Open,
    /// Descriptions that were passed over.
    described: Vec<Bytes>,
}

impl Walk {
    fn new(at: u64, open: Open, described: Vec<Bytes>) -> Walk {
        Walk { frames: Frames::default(), at, open, described }
    }

    /// The next whole frame with its role and the place where it begins.
    fn next(&mut self) -> Option<(Bytes, Role, u64)> {
        let frame = self.frames.next()?;
        let at = self.at;
        self.at += frame.len() as u64;
        let role = role(message(&frame), &self.open);
        Some((frame, role, at))
    }
}

impl Cursor {
    fn new(shared: Arc<Shared>, id: u64, from: Lsn, chapter: Chapter) -> Cursor {
        let tail = shared.tail.subscribe();
        let at = chapter.offset;
        let walk = Walk::new(at, chapter.open, Vec::new());
        Cursor {
            tail,
            id,
            at,
            stage: Stage::Seeking { from, walk },
            complete_to: Lsn::INVALID,
            ready: VecDeque::new(),
            looks: 0,
            shared,
        }
    }

    /// How often it found nothing more.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Whether everything that could be read was handed out.
    #[must_use]
    pub fn is_level(&self) -> bool {
        self.ready.is_empty() && self.at >= *self.tail.borrow()
    }

    /// Says that everything that ends before `lsn` can be read already. So what is open now ends
    /// behind that, and a reader that has confirmed no more than that needs it.
    pub fn came_to(&mut self, lsn: Lsn) {
        self.complete_to = self.complete_to.max(lsn);
    }

    /// Returns what comes next.
    ///
    /// # Errors
    /// A file cannot be read.
    #[allow(clippy::should_implement_trait, reason = "more may come after it was dry")]
    pub fn next(&mut self) -> Result<Next, Error> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Ok(Next::Frames(Portion { last: last_lsn(&bytes), bytes }));
            }
            let found = self.shared.state().find(self.at);
            let portion = match found {
                Found::Memory(portion) => portion,
                Found::File(place) => {
                    let portion = place.read()?;
                    self.shared.state().was_read(&place, portion, self.at)
                }
                Found::Gone => return Ok(Next::Evicted),
                Found::Dry if self.needs_what_is_open() => continue,
                Found::Dry => {
                    self.looks += 1;
                    self.tail.borrow_and_update();
                    return Ok(Next::Dry);
                }
            };
            self.at += portion.bytes.len() as u64;
            if let Stage::Sending = self.stage {
                self.note();
                return Ok(Next::Frames(portion));
            }
            self.walk(&portion.bytes);
            self.note();
        }
    }

    /// Goes back to the first of the transactions that are open at the end, if they are known to be
    /// needed.
    fn needs_what_is_open(&mut self) -> bool {
        let Stage::Seeking { from, walk } = &mut self.stage else { return false };
        if self.complete_to < *from || !walk.open.is_between() || walk.open.streams.is_empty() {
            return false;
        }
        self.at = walk.at;
        let stage = needed_from(walk, walk.at);
        self.enter_stage(stage);
        true
    }

    /// Says where it is, and which bytes are needed from now on.
    fn note(&self) {
        let needed = match &self.stage {
            Stage::Seeking { walk, .. } => {
                let open = walk.open.streams.values().copied().chain(walk.open.late);
                open.min().unwrap_or(walk.at).min(walk.at)
            }
            Stage::Picking { walk, .. } | Stage::Describing { walk } => walk.at,
            Stage::Sending => self.at,
        };
        self.shared.needs(self.id, Needs { from: needed.min(self.at), at: self.at });
    }

    /// Takes bytes while not everything is needed as it is.
    fn walk(&mut self, bytes: &[u8]) {
        let (Stage::Seeking { walk, .. } | Stage::Picking { walk, .. } | Stage::Describing { walk }) =
            &mut self.stage
        else {
            return;
        };
        walk.frames.push(bytes);
        let next = match &mut self.stage {
            Stage::Seeking { from, walk } => seek(*from, walk),
            Stage::Picking { until, open, walk } => pick(*until, open, walk, &mut self.ready),
            Stage::Describing { walk } => describe(walk, &mut self.ready),
            Stage::Sending => None,
        };
        if let Some(stage) = next {
            self.enter_stage(stage);
        }
    }

    fn enter_stage(&mut self, stage: Stage) {
        // The next stage begins where it says, or where this one ended.
        let walk = match (&stage, &self.stage) {
            (Stage::Picking { walk, .. } | Stage::Describing { walk }, _) => Some(walk),
            (_, Stage::Describing { walk }) => Some(walk),
            _ => None,
        };
        self.at = walk.map_or(self.at, |walk| walk.at);
        self.stage = stage;
    }

    /// Waits until there is more. Cancel safe.
    pub async fn more(&mut self) {
        let at = self.at;
        let _ = self.tail.wait_for(|tail| *tail > at).await;
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.shared.forget(self.id);
    }
}

/// Looks for the first transaction or message that is needed whole.
fn seek(from: Lsn, walk: &mut Walk) -> Option<Stage> {
    while let Some((frame, role, at)) = walk.next() {
        let is_needed = match role {
            Role::Begin(end) | Role::Single(end) | Role::StreamEnds(_, Some(end)) => end >= from,
            _ => false,
        };
        if is_needed {
            // What was prepared too early to be sent then comes just before its end.
            let at = match role {
                Role::Single(_) => walk.open.late.unwrap_or(at),
                _ => at,
            };
            return Some(needed_from(walk, at));
        }
        if role == Role::Describes {
            // Kind and object: a later description takes the place of an earlier one.
            let of = |frame: &Bytes| message(frame).first_chunk::<5>().copied();
            walk.described.retain(|known| of(known) != of(&frame));
            walk.described.push(frame);
        }
        walk.open.take(role, at);
    }
    None
}

/// What comes after looking: everything from `at` on is needed, and before it what is open there.
fn needed_from(walk: &mut Walk, at: u64) -> Stage {
    let described = std::mem::take(&mut walk.described);
    let open: HashSet<Xid> = walk.open.streams.keys().copied().collect();
    let first = walk.open.streams.values().copied().min();
    match first {
        Some(first) => {
            let walk = Walk::new(first, Open::default(), described);
            Stage::Picking { until: at, open, walk }
        }
        None => Stage::Describing { walk: Walk::new(at, Open::default(), described) },
    }
}

/// Hands out the blocks of open transactions.
fn pick(until: u64, open: &HashSet<Xid>, walk: &mut Walk, ready: &mut VecDeque<Bytes>) -> Option<Stage> {
    while walk.at < until {
        let (frame, role, at) = walk.next()?;
        let of = match role {
            Role::BlockBegins(xid) | Role::PartAborts(xid) => Some(xid),
            _ => walk.open.block,
        };
        if of.is_some_and(|xid| open.contains(&xid)) {
            ready.push_back(frame);
        }
        walk.open.take(role, at);
    }
    let described = std::mem::take(&mut walk.described);
    Some(Stage::Describing { walk: Walk::new(until, Open::default(), described) })
}

/// Hands out everything, with what was described before behind the first BEGIN.
fn describe(walk: &mut Walk, ready: &mut VecDeque<Bytes>) -> Option<Stage> {
    while !walk.described.is_empty() {
        let (frame, role, at) = walk.next()?;
        walk.open.take(role, at);
        ready.push_back(frame);
        if matches!(role, Role::Begin(_) | Role::BeginsLate) {
            ready.extend(walk.described.drain(..));
        }
    }
    let rest = walk.frames.take_whole();
    if !rest.is_empty() {
        walk.at += rest.len() as u64;
        ready.push_back(rest);
    }
    Some(Stage::Sending)
}
