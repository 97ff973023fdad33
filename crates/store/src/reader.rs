//! Reading: snapshots that any thread may take at any time, and that hold up neither writer nor
//! readers.
//!
//! A snapshot is an LSN, the horizon at the time it was taken, and an entry in the registry, so
//! that the writer removes no version that it sees. Readers walk the tree while it changes (see the
//! hazards in `tree`): a page whose fences do not hold the wanted key sends the reader back to the
//! root.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Lsn;

use crate::error::{Error, Result};
use crate::page::{Cell, Fence, NEWEST, Page, order};
use crate::pager::{Pager, TreeRef};
use crate::pending::{Pending, Versioned};
use crate::removal::{View, hidden};

/// The number of times that a reader starts over at once. After that, it sleeps before each walk,
/// because the writer was interrupted in the middle of a change.
const RESTARTS_AT_ONCE: u32 = 100;

/// A tree of a store, returned by [`Store::tree`](crate::Store::tree).
#[derive(Debug, Clone, Copy)]
pub struct Tree(pub(crate) TreeRef);

/// A version as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The LSN it was written at.
    pub lsn: Lsn,
    /// Whether it is a deletion.
    pub is_delete: bool,
    /// Its value. A deletion has one too.
    pub value: Vec<u8>,
}

/// What is committed, and which snapshots exist.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) committed: u64,
    pub(crate) horizon: u64,
    /// Snapshots by (floor, LSN).
    readers: BTreeMap<(u64, u64), usize>,
}

/// The part of a store that readers and the writer share.
#[derive(Debug)]
pub(crate) struct SharedStore {
    pub(crate) pager: Arc<Pager>,
    pub(crate) pending: Pending,
    registry: Mutex<Registry>,
}

impl SharedStore {
    pub(crate) fn new(pager: Arc<Pager>, committed: u64, horizon: u64) -> SharedStore {
        let registry = Registry { committed, horizon, readers: BTreeMap::new() };
        SharedStore { pager, pending: Pending::default(), registry: Mutex::new(registry) }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The horizon and readers that decide which versions the writer may remove.
    pub(crate) fn view(&self) -> View {
        let registry = self.registry();
        View { horizon: registry.horizon, readers: registry.readers.keys().copied().collect() }
    }

    fn snapshot(self: &Arc<SharedStore>, as_of: Option<Lsn>) -> Result<Snapshot> {
        let mut registry = self.registry();
        let (floor, committed) = (registry.horizon, registry.committed);
        let lsn = as_of.map_or(committed, Lsn::as_u64);
        if lsn > committed {
            return Err(Error::not_committed(Lsn::new(lsn), Lsn::new(committed)));
        }
        if lsn < floor {
            return Err(Error::below_horizon(Lsn::new(lsn), Lsn::new(floor)));
        }
        *registry.readers.entry((floor, lsn)).or_insert(0) += 1;
        drop(registry);
        Ok(Snapshot { shared: self.clone(), floor, lsn })
    }

    /// The leaf for (key, LSN) as of now.
    pub(crate) fn leaf(&self, tree: TreeRef, key: &[u8], lsn: u64) -> Result<Arc<Page>> {
        for restart in 0_u32.. {
            let before = self.pager.moves();
            let lost = match self.walk(tree, key, lsn)? {
                Ok(leaf) => return Ok(leaf),
                Err(lost) => lost,
            };
            if before.is_multiple_of(2) && self.pager.moves() == before {
                // Nothing moved meanwhile: the pages themselves are wrong.
                return Err(self.pager.damaged(lost.0, tree.id, lost.1));
            }
            if restart < RESTARTS_AT_ONCE {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        unreachable!("it returns before it has counted that far");
    }

    /// One walk from the root. Returns the leaf, or the page where the way was lost and why.
    #[allow(clippy::type_complexity)]
    fn walk(&self, tree: TreeRef, key: &[u8], lsn: u64) -> Result<Result<Arc<Page>, (u32, &'static str)>> {
        let mut id = tree.root;
        let mut level = None;
        loop {
            let Some(page) = self.pager.fetch(id, tree.id)? else {
                return Ok(Err((id, "it is referred to and not in use")));
            };
            let is_expected = page.is_node()
                && page.tree() == tree.id
                && level.is_none_or(|level| page.level() == level)
                && page.covers(key, lsn);
            if !is_expected {
                return Ok(Err((id, "it is not what its parent says")));
            }
            if page.is_leaf() {
                return Ok(Ok(page));
            }
            level = Some(page.level() - 1);
            id = page.child(page.child_index(key, lsn));
        }
    }

    /// The newest version of `key` at or below `as_of`, unless the floor hides it.
    pub(crate) fn get(&self, tree: TreeRef, key: &[u8], as_of: u64, floor: u64) -> Result<Option<Version>> {
        // Fences use the highest LSN, so no version has it.
        let as_of = as_of.min(NEWEST - 1);
        if let Some((lsn, version)) = self.pending.get(tree.id, key, as_of) {
            return Ok(visible(tree, lsn, version, floor));
        }
        let mut at = as_of;
        loop {
            let leaf = self.leaf(tree, key, at)?;
            let (Ok(index) | Err(index)) = leaf.search(key, at);
            if leaf.is_of(index, key) {
                return self.version(tree, leaf.cell(index), floor);
            }
            // If the leaf's range ends within the key, older versions may begin the next leaf.
            match leaf.high() {
                Some((high, lsn)) if index == leaf.count() && high == key && lsn != NEWEST => at = lsn,
                _ => return Ok(None),
            }
        }
    }

    fn version(&self, tree: TreeRef, cell: Cell<'_>, floor: u64) -> Result<Option<Version>> {
        if hidden(tree.window, floor, cell.lsn, cell.flags.delete) {
            return Ok(None);
        }
        let value = if cell.flags.overflow {
            self.pager.value(tree.id, cell.payload)?
        } else {
            cell.payload.to_vec()
        };
        Ok(Some(Version { lsn: Lsn::new(cell.lsn), is_delete: cell.flags.delete, value }))
    }
}

fn visible(tree: TreeRef, lsn: u64, version: Versioned, floor: u64) -> Option<Version> {
    let Versioned { delete, value } = version;
    let is_hidden = hidden(tree.window, floor, lsn, delete);
    (!is_hidden).then(|| Version { lsn: Lsn::new(lsn), is_delete: delete, value })
}

/// Takes snapshots. Cheap to clone and to hand to other threads.
#[derive(Debug, Clone)]
pub struct Reader(pub(crate) Arc<SharedStore>);

impl Reader {
    /// Takes a snapshot as of the last commit.
    ///
    /// # Errors
    /// None today; the horizon is never above the last commit.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.0.snapshot(None)
    }

    /// Takes a snapshot as of `lsn`, which is not below the horizon and not above the last commit.
    ///
    /// # Errors
    /// `lsn` is outside of that range.
    pub fn snapshot_at(&self, lsn: Lsn) -> Result<Snapshot> {
        self.0.snapshot(Some(lsn))
    }

    /// The last commit: every change up to here is durable.
    #[must_use]
    pub fn committed(&self) -> Lsn {
        Lsn::new(self.0.registry().committed)
    }

    /// The horizon: the store may have forgotten versions below it.
    #[must_use]
    pub fn horizon(&self) -> Lsn {
        Lsn::new(self.0.registry().horizon)
    }
}

/// The store as of one LSN, unchanged as long as this value lives. It keeps the versions that it
/// sees from being removed.
#[derive(Debug)]
pub struct Snapshot {
    shared: Arc<SharedStore>,
    floor: u64,
    lsn: u64,
}

impl Snapshot {
    /// The LSN as of which it shows the store.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        Lsn::new(self.lsn)
    }

    /// The newest version of `key`. It may be a deletion. In a history tree, a deletion at or below
    /// the horizon is not returned; in a window tree, no version below the horizon is.
    ///
    /// # Errors
    /// Disk and damage.
    pub fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Version>> {
        self.shared.get(tree.0, key, self.lsn, self.floor)
    }

    /// Announces a look-up of `key`; see [`Store::prefetch`](crate::Store::prefetch).
    pub fn prefetch(&self, tree: Tree, key: &[u8]) {
        self.shared.pager.prefetch(tree.0, key, self.lsn);
    }

    /// The result of [`Snapshot::get`] for every key of `range`, in the order of the keys.
    pub fn scan<'a>(&'a self, tree: Tree, range: impl RangeBounds<[u8]>) -> Scan<'a> {
        Scan::new(&self.shared, tree.0, range, self.lsn, self.floor)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let mut registry = self.shared.registry();
        if let Some(count) = registry.readers.get_mut(&(self.floor, self.lsn)) {
            *count -= 1;
            if *count == 0 {
                registry.readers.remove(&(self.floor, self.lsn));
            }
        }
    }
}

/// A leaf that a scan goes through.
#[derive(Debug)]
struct Leaf {
    page: Arc<Page>,
    index: usize,
    /// Pending versions that belong into it.
    pending: Peekable<std::vec::IntoIter<(Vec<u8>, u64, Versioned)>>,
}

/// Keys in order, each with its version. Ends after the first error.
#[derive(Debug)]
pub struct Scan<'a> {
    shared: &'a SharedStore,
    tree: TreeRef,
    as_of: u64,
    floor: u64,
    /// Where the next leaf begins; `None` at the end.
    next: Option<Fence>,
    leaf: Option<Leaf>,
    end: Bound<Vec<u8>>,
    /// The last key that the scan has decided about. It passes over the key's older versions.
    judged: Option<Vec<u8>>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(
        shared: &'a SharedStore,
        tree: TreeRef,
        range: impl RangeBounds<[u8]>,
        as_of: u64,
        floor: u64,
    ) -> Scan<'a> {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let (start, judged) = match owned(range.start_bound()) {
            Bound::Unbounded => (Fence::start(), None),
            Bound::Included(key) => (Fence { key, lsn: NEWEST }, None),
            Bound::Excluded(key) => (Fence { key: key.clone(), lsn: 0 }, Some(key)),
        };
        let end = owned(range.end_bound());
        Scan { shared, tree, as_of, floor, next: Some(start), leaf: None, end, judged }
    }

    fn is_behind_end(&self, key: &[u8]) -> bool {
        match &self.end {
            Bound::Unbounded => false,
            Bound::Included(end) => key > end.as_slice(),
            Bound::Excluded(end) => key >= end.as_slice(),
        }
    }

    /// The leaf at `from`, with the pending versions that belong into it. The pending versions are
    /// read before the leaf, because they may go into it meanwhile.
    fn leaf(&self, from: &Fence) -> Result<Leaf> {
        let is_any_pending = self.shared.pending.count() > 0;
        let mut page = self.shared.leaf(self.tree, &from.key, from.lsn)?;
        let mut pending = Vec::new();
        if is_any_pending {
            loop {
                pending = self.shared.pending.of_leaf(self.tree.id, &page, from);
                let after = self.shared.leaf(self.tree, &from.key, from.lsn)?;
                let is_same_range = after.high() == page.high();
                page = after;
                if is_same_range {
                    break;
                }
            }
        }
        let (Ok(index) | Err(index)) = page.search(&from.key, from.lsn);
        Ok(Leaf { page, index, pending: pending.into_iter().peekable() })
    }

    fn step(&mut self) -> Result<Option<(Vec<u8>, Version)>> {
        loop {
            let Some(leaf) = &mut self.leaf else {
                let Some(next) = self.next.take() else { return Ok(None) };
                self.leaf = Some(self.leaf(&next)?);
                continue;
            };
            let (page, place) = (leaf.page.clone(), leaf.index);
            let is_at_end = place == page.count();
            let is_first = |(key, lsn, _): &(Vec<u8>, u64, Versioned)| {
                is_at_end || order((key, *lsn), (&page.key(place), page.cell(place).lsn)).is_le()
            };
            if let Some((key, lsn, version)) = leaf.pending.next_if(is_first) {
                if lsn > self.as_of || self.judged.as_ref() == Some(&key) {
                    continue;
                }
                if self.is_behind_end(&key) {
                    self.leaf = None;
                    return Ok(None);
                }
                self.judged = Some(key.clone());
                if let Some(version) = visible(self.tree, lsn, version, self.floor) {
                    return Ok(Some((key, version)));
                }
                continue;
            }
            if is_at_end {
                self.next = page.high_fence();
                self.leaf = None;
                continue;
            }
            leaf.index += 1;
            let cell = page.cell(place);
            let is_judged = |judged: &Vec<u8>| {
                judged.strip_prefix(page.prefix()).is_some_and(|suffix| suffix == cell.suffix)
            };
            if cell.lsn > self.as_of || self.judged.as_ref().is_some_and(is_judged) {
                continue;
            }
            let key = page.key(place);
            if self.is_behind_end(&key) {
                self.leaf = None;
                return Ok(None);
            }
            self.judged = Some(key.clone());
            if let Some(version) = self.shared.version(self.tree, cell, self.floor)? {
                return Ok(Some((key, version)));
            }
        }
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<(Vec<u8>, Version)>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.next = None;
            self.leaf = None;
        }
        step.transpose()
    }
}
