//! Versions that do not wait for their leaf.
//!
//! Where a tree is larger than memory, most of what a change costs is the read of its leaf, and nobody needs the
//! leaf before the next checkpoint. So a version whose leaf is not in memory is kept here, is read from here, and
//! goes into its leaf when a thread has read that ([`Fetchers`]): the caller goes on meanwhile.
//!
//! ```text
//!   put --> leaf in memory? --yes--> into it
//!              | no
//!              +--> pending --asks--> fetchers --> cache      the writer, at its next change:
//!                      ^--- readers look here first           all pending of that leaf into it
//! ```
//!
//! Invariants: a pending version is newer than every version of its key in the tree, so that it answers alone, and
//! elders go into their leaf first, so that what is judged removable there does not depend on what is pending; it is
//! taken away after it is in its leaf, and readers look here before they look there; a checkpoint begins with none;
//! there are at most [`PENDING_MAX`], and pages for all of them ([`PAGES_PER_VERSION`]) are kept free under a size
//! limit.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::page::{Fence, NEWEST, Page};
use crate::reader::Shared;
use crate::store::Store;
use crate::tree::{Change, TreeRef, fits_cell};

/// At most so many: a checkpoint waits for the reads of all of them, some milliseconds.
pub(crate) const PENDING_MAX: usize = 64;

/// Threads that read, beside the caller's own look-ups.
const FETCHERS: usize = 2;

/// Who waits longer for a leaf reads one itself.
const READ_TIME_MAX: Duration = Duration::from_millis(5);

/// Pages that one version may add to a tree: one per level, and trees of the longest keys have some twenty.
pub(crate) const PAGES_PER_VERSION: u32 = 24;

/// A version without its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Versioned {
    pub(crate) delete: bool,
    pub(crate) value: Vec<u8>,
}

/// Tree, key, LSN from the newest on: the order of a leaf.
type Place = (u8, Vec<u8>, Reverse<u64>);

/// All of them, of all trees.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    count: AtomicUsize,
    versions: RwLock<BTreeMap<Place, Versioned>>,
}

impl Pending {
    /// How many. Who reads none here finds in the tree what was here before.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Place, Versioned>> {
        self.versions.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Place, Versioned>> {
        self.versions.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a version, in place of one of the same key and LSN.
    pub(crate) fn add(&self, tree: u8, change: Change<'_>) {
        let Change { key, lsn, delete, value } = change;
        let mut versions = self.write();
        versions.insert((tree, key.to_vec(), Reverse(lsn)), Versioned { delete, value: value.to_vec() });
        self.count.store(versions.len(), Ordering::Release);
    }

    /// It is in its leaf now.
    pub(crate) fn remove(&self, tree: u8, key: &[u8], lsn: u64) {
        let mut versions = self.write();
        versions.remove(&(tree, key.to_vec(), Reverse(lsn)));
        self.count.store(versions.len(), Ordering::Release);
    }

    /// The newest version of `key` at or below `as_of`.
    pub(crate) fn get(&self, tree: u8, key: &[u8], as_of: u64) -> Option<(u64, Versioned)> {
        if self.count() == 0 {
            return None;
        }
        let versions = self.read();
        let from = (tree, key.to_vec(), Reverse(as_of));
        let ((.., lsn), version) =
            versions.range(from..).next().filter(|(at, _)| at.0 == tree && at.1 == key)?;
        Some((lsn.0, version.clone()))
    }

    /// What belongs into `leaf`, in its order, from `from` on.
    pub(crate) fn of_leaf(&self, tree: u8, leaf: &Page, from: &Fence) -> Vec<(Vec<u8>, u64, Versioned)> {
        if self.count() == 0 {
            return Vec::new();
        }
        let versions = self.read();
        let begin = Bound::Included((tree, from.key.clone(), Reverse(from.lsn)));
        versions
            .range((begin, Bound::Unbounded))
            .take_while(|((of, key, lsn), _)| *of == tree && leaf.covers(key, lsn.0))
            .map(|((_, key, lsn), version)| (key.clone(), lsn.0, version.clone()))
            .collect()
    }

    /// The first of all.
    pub(crate) fn first(&self) -> Option<(u8, Vec<u8>, u64)> {
        self.read().keys().next().map(|(tree, key, lsn)| (*tree, key.clone(), lsn.0))
    }
}

/// What the writer does about them.
impl Store {
    /// Whether a change may go into its leaf later, because that is not in memory, the change is newer than all that
    /// is there, and there will be room for it.
    pub(crate) fn may_wait(&self, tree: TreeRef, change: Change<'_>) -> bool {
        let Change { key, lsn, value, .. } = change;
        let is_larger_than_memory = self.pages.in_use() as usize > self.options.cache_pages();
        is_larger_than_memory
            && lsn >= self.written_max
            && fits_cell(key, value)
            && self.has_room_for_pending(PAGES_PER_VERSION)
            && !self.pages.is_in_memory(tree, key, lsn)
    }

    /// Whether there is room for what is pending and `pages` more.
    pub(crate) fn has_room_for_pending(&self, pages: u32) -> bool {
        let versions = u32::try_from(self.shared.pending.count()).unwrap_or(u32::MAX);
        self.pages.ensure_room(versions.saturating_mul(PAGES_PER_VERSION).saturating_add(pages)).is_ok()
    }

    /// Keeps a change, and has its leaf read.
    pub(crate) fn keep_pending(&mut self, tree: TreeRef, change: Change<'_>) -> Result<()> {
        self.shared.pending.add(tree.id, change);
        self.stats.pending += 1;
        if self.options.background {
            let fetchers = match self.fetchers.take() {
                Some(fetchers) => fetchers,
                None => {
                    let started = Fetchers::start(&self.shared);
                    self.poison_on_error(started)?
                }
            };
            let wanted = Wanted { tree, key: change.key.to_vec(), lsn: change.lsn };
            self.fetchers.insert(fetchers).ask(wanted);
        }
        Ok(())
    }

    /// Puts pending versions into leaves that were read, and waits for such while there are more than `pending_max`.
    pub(crate) fn apply_fetched(&mut self, pending_max: usize) -> Result<()> {
        while self.shared.pending.count() > 0 {
            let wait = self.shared.pending.count() > pending_max;
            let fetched = self.fetchers.as_ref().and_then(|fetchers| fetchers.next(wait));
            let (tree, key, lsn) = match (fetched, self.shared.pending.first()) {
                (Some(wanted), _) => (wanted.tree, wanted.key, wanted.lsn),
                // Nobody reads for us.
                (None, Some((tree, key, lsn))) if wait => {
                    (self.trees[usize::from(tree)].reference(usize::from(tree)), key, lsn)
                }
                _ => return Ok(()),
            };
            self.apply_pending_of_leaf(tree, &key, lsn)?;
        }
        Ok(())
    }

    /// Puts everything that is pending into its leaf.
    pub(crate) fn apply_pending(&mut self) -> Result<()> {
        self.apply_fetched(0)
    }

    /// Puts what is pending into the leaf that (key, LSN) belongs to.
    pub(crate) fn apply_pending_of_leaf(&mut self, tree: TreeRef, key: &[u8], lsn: u64) -> Result<()> {
        if self.shared.pending.count() == 0 {
            return Ok(());
        }
        let result = self.pages.descend(tree, key, lsn, &mut Vec::new());
        let leaf = self.poison_on_error(result)?;
        // A key that goes on in the next leaf may have elders pending there, above a fence that a crash made void.
        if let Some((key, at)) = leaf.high().filter(|(_, at)| *at != NEWEST)
            && let Some((lsn, _)) = self.shared.pending.get(tree.id, key, at)
        {
            self.apply_pending_of_leaf(tree, key, lsn)?;
        }
        // Elders first: a deletion goes when nothing older of its key is there, and what came later would be back.
        for (key, lsn, version) in
            self.shared.pending.of_leaf(tree.id, &leaf, &leaf.low_fence()).into_iter().rev()
        {
            let change = Change { key: &key, lsn, delete: version.delete, value: &version.value };
            let result = self.apply_and_sweep(tree, change);
            // There was room for it when it was accepted.
            self.is_poisoned |= result.is_err();
            result?;
            self.shared.pending.remove(tree.id, &key, lsn);
        }
        Ok(())
    }
}

/// A version whose leaf is to be read.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) tree: TreeRef,
    pub(crate) key: Vec<u8>,
    pub(crate) lsn: u64,
}

/// The threads that read leaves into the cache.
#[derive(Debug)]
pub(crate) struct Fetchers {
    wanted: Vec<SyncSender<Wanted>>,
    next: usize,
    read: Receiver<Wanted>,
    threads: Vec<JoinHandle<()>>,
}

impl Fetchers {
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Fetchers> {
        let (done, read) = mpsc::channel();
        let mut fetchers = Fetchers { wanted: Vec::new(), next: 0, read, threads: Vec::new() };
        for _ in 0..FETCHERS {
            let (sender, wanted) = mpsc::sync_channel(PENDING_MAX);
            let (shared, done) = (shared.clone(), done.clone());
            let fetch = move || fetch(&shared, &wanted, &done);
            let thread = std::thread::Builder::new().name("fetch".to_owned()).spawn(fetch);
            fetchers.threads.push(thread.map_err(Error::io("start a thread"))?);
            fetchers.wanted.push(sender);
        }
        Ok(fetchers)
    }

    pub(crate) fn ask(&mut self, wanted: Wanted) {
        self.next = (self.next + 1) % self.wanted.len();
        // A thread that is gone read nothing: the writer reads it itself.
        let _ = self.wanted[self.next].send(wanted);
    }

    /// One whose leaf was read; if `wait`, it is waited for, but no longer than a read should take.
    pub(crate) fn next(&self, wait: bool) -> Option<Wanted> {
        if wait { self.read.recv_timeout(READ_TIME_MAX).ok() } else { self.read.try_recv().ok() }
    }
}

impl Drop for Fetchers {
    fn drop(&mut self) {
        self.wanted.clear();
        for thread in self.threads.drain(..) {
            // What it met, the writer meets, too.
            let _ = thread.join();
        }
    }
}

fn fetch(shared: &Shared, wanted: &Receiver<Wanted>, done: &Sender<Wanted>) {
    for wanted in wanted {
        // Damage and errors of the disk are the writer's to meet: it reads the leaf once more.
        let _ = shared.leaf(wanted.tree, &wanted.key, wanted.lsn);
        if done.send(wanted).is_err() {
            return;
        }
    }
}
