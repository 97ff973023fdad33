//! Pages in memory: a bounded map from page id to the page's current content.
//!
//! The cache always has a page's newest state. The writer changes pages in place, under the lock of
//! the page's shard. A page whose current form is not on disk yet is never evicted. Readers take a
//! reference and release the lock; if the writer then changes that page, it changes a copy. A lock
//! is held for the lookup or the change of one page and never while the disk works, so neither side
//! waits for the other's reads.
//!
//! Eviction is a clock that counts uses: a page that is used again stays, a page that was read once
//! leaves first. When every page is dirty, the cache grows beyond its size; the writer bounds that
//! by starting a checkpoint in time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::page::Page;

/// Enough that readers rarely meet on one shard. More shards would only give each clock fewer pages
/// to judge what is cold by.
const SHARDS: usize = 16;

/// A page that is used often stays for this many rounds of the hand without a use. A page that was
/// used once leaves in the next round.
const USES_MAX: u8 = 3;

/// How a page in memory relates to its place on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Equal to the disk's.
    Clean,
    /// Newer than the disk.
    Dirty,
    /// The running checkpoint writes it; it is not on disk before the checkpoint ends.
    Writing,
}

#[derive(Debug)]
struct Frame {
    id: u32,
    page: Arc<Page>,
    state: State,
    /// Uses since the hand last passed, at most [`USES_MAX`].
    uses: u8,
}

impl Frame {
    fn touch(&mut self) {
        self.uses = (self.uses + 1).min(USES_MAX);
    }
}

#[derive(Debug, Default)]
struct Shard {
    places: FxHashMap<u32, usize>,
    frames: Vec<Frame>,
    hand: usize,
}

impl Shard {
    fn frame(&mut self, id: u32) -> Option<&mut Frame> {
        let place = *self.places.get(&id)?;
        Some(&mut self.frames[place])
    }

    fn add(&mut self, frame: Frame, frames_max: usize) {
        while self.frames.len() >= frames_max && self.evict() {}
        self.places.insert(frame.id, self.frames.len());
        self.frames.push(frame);
    }

    /// Makes room for one page. False if every page must stay.
    fn evict(&mut self) -> bool {
        // As many rounds as a page may have uses, and one more: each round takes one use away.
        for _ in 0..(usize::from(USES_MAX) + 1) * self.frames.len() {
            self.hand = if self.hand + 1 < self.frames.len() { self.hand + 1 } else { 0 };
            let frame = &mut self.frames[self.hand];
            if frame.state == State::Clean && frame.uses == 0 {
                self.drop_at(self.hand);
                return true;
            }
            frame.uses = frame.uses.saturating_sub(1);
        }
        false
    }

    fn drop_at(&mut self, place: usize) {
        let frame = self.frames.swap_remove(place);
        self.places.remove(&frame.id);
        if let Some(moved) = self.frames.get(place) {
            self.places.insert(moved.id, place);
        }
    }
}

/// The pages in memory.
#[derive(Debug)]
pub(crate) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    frames_max: usize,
}

impl Cache {
    /// Holds about `pages_max` pages.
    pub(crate) fn new(pages_max: usize) -> Cache {
        Cache { shards: Default::default(), frames_max: pages_max.div_ceil(SHARDS) }
    }

    fn shard(&self, id: u32) -> MutexGuard<'_, Shard> {
        // A panic while a page is changed is a bug, and poisons the writer. Readers still see whole
        // pages.
        self.shards[id as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: u32) -> Option<Arc<Page>> {
        let mut shard = self.shard(id);
        let frame = shard.frame(id)?;
        frame.touch();
        Some(frame.page.clone())
    }

    /// Adds a page as it was read from the disk, if `is_current` still holds. Returns the page that
    /// the cache has now.
    ///
    /// `is_current` is called under the lock that the writer needs for a change. Between the read
    /// and this call, the page may have been changed, written back and evicted.
    pub(crate) fn add_clean(
        &self,
        id: u32,
        page: Arc<Page>,
        is_current: impl FnOnce() -> bool,
    ) -> Option<Arc<Page>> {
        let mut shard = self.shard(id);
        if let Some(frame) = shard.frame(id) {
            return Some(frame.page.clone());
        }
        if !is_current() {
            return None;
        }
        shard.add(Frame { id, page: page.clone(), state: State::Clean, uses: 0 }, self.frames_max);
        Some(page)
    }

    /// Changes a page in place; `None` if it is not in the cache. Also returns whether the page was
    /// clean or being written before.
    pub(crate) fn change<R>(&self, id: u32, change: impl FnOnce(&mut Page) -> R) -> Option<(R, bool)> {
        let mut shard = self.shard(id);
        let frame = shard.frame(id)?;
        frame.touch();
        let result = change(Arc::make_mut(&mut frame.page));
        let newly = frame.state != State::Dirty;
        frame.state = State::Dirty;
        Some((result, newly))
    }

    /// Puts a dirty page in place of whatever had its id. Returns whether no dirty page was there
    /// before.
    pub(crate) fn put_dirty(&self, page: Page) -> bool {
        let id = page.id();
        let mut shard = self.shard(id);
        if let Some(frame) = shard.frame(id) {
            frame.page = Arc::new(page);
            frame.touch();
            return std::mem::replace(&mut frame.state, State::Dirty) != State::Dirty;
        }
        let frame = Frame { id, page: Arc::new(page), state: State::Dirty, uses: 0 };
        shard.add(frame, self.frames_max);
        true
    }

    pub(crate) fn remove(&self, id: u32) {
        let mut shard = self.shard(id);
        if let Some(&place) = shard.places.get(&id) {
            shard.drop_at(place);
        }
    }

    /// Returns a dirty page for the checkpoint to write; `None` if it is gone.
    pub(crate) fn begin_write(&self, id: u32) -> Option<Arc<Page>> {
        let mut shard = self.shard(id);
        let frame = shard.frame(id).filter(|frame| frame.state == State::Dirty)?;
        frame.state = State::Writing;
        Some(frame.page.clone())
    }

    /// The checkpoint has written it. A page that was changed meanwhile stays dirty.
    pub(crate) fn end_write(&self, id: u32) {
        let mut shard = self.shard(id);
        if let Some(frame) = shard.frame(id).filter(|frame| frame.state == State::Writing) {
            frame.state = State::Clean;
        }
        while shard.frames.len() > self.frames_max && shard.evict() {}
    }

    /// The number of pages that fit.
    pub(crate) fn pages_max(&self) -> usize {
        SHARDS * self.frames_max
    }

    /// The number of pages in memory now.
    pub(crate) fn pages(&self) -> usize {
        let count = |shard: &Mutex<Shard>| shard.lock().unwrap_or_else(PoisonError::into_inner).frames.len();
        self.shards.iter().map(count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(id: u32) -> Page {
        Page::new_overflow(id, 0, &id.to_le_bytes())
    }

    #[test]
    fn cold_clean_pages_leave_and_dirty_ones_stay() {
        let cache = Cache::new(SHARDS * 4);
        (0..8).for_each(|id| assert!(cache.put_dirty(page(id))));
        (8..4096).for_each(|id| assert!(cache.add_clean(id, Arc::new(page(id)), || true).is_some()));
        assert!(cache.pages() <= SHARDS * 4);
        assert!((0..8).all(|id| cache.get(id).is_some()), "they are nowhere else");
        (0..8).for_each(|id| assert!(cache.begin_write(id).is_some()));
        cache.change(3, |_| ()).unwrap();
        (0..8).for_each(|id| cache.end_write(id));
        (8..4096).for_each(|id| assert!(cache.add_clean(id, Arc::new(page(id)), || true).is_some()));
        assert!(cache.get(3).is_some(), "it was changed while it was written");
        assert!(cache.get(2).is_none());
    }

    #[test]
    fn a_page_read_too_early_is_not_taken() {
        let cache = Cache::new(100);
        assert!(cache.add_clean(5, Arc::new(page(5)), || false).is_none());
        assert!(cache.get(5).is_none());
    }

    #[test]
    fn a_reader_keeps_what_it_took() {
        let cache = Cache::new(100);
        cache.put_dirty(page(5));
        let before = cache.get(5).unwrap();
        cache.change(5, |page| *page = Page::new_overflow(5, 0, b"new")).unwrap();
        assert_eq!(before.overflow(), Some(&5_u32.to_le_bytes()[..]));
        assert_eq!(cache.get(5).unwrap().overflow(), Some(&b"new"[..]));
    }
}
