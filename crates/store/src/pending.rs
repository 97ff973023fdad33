//! Versions that do not wait for their leaf.
//!
//! Where a tree is larger than memory, most of what a change costs is the read of its leaf, and nobody needs the
//! leaf before the next checkpoint. So a version whose leaf is not in memory is kept here and read from here, the
//! disk is told that the leaf is going to be read, and the caller goes on meanwhile.
//!
//! ```text
//!   put --> leaf in memory? --yes--> into it
//!              | no
//!              +--> pending, prefetch of the leaf     the writer, when there are as many as may be:
//!                      ^--- readers look here first   all pending of the eldest's leaf into that
//! ```
//!
//! Invariants: a pending version is newer than every version of its key in the tree, so that it answers alone, and
//! elders go into their leaf first, so that what is judged removable there does not depend on what is pending; it is
//! taken away after it is in its leaf, and readers look here before they look there; a checkpoint begins with none;
//! there are at most [`PENDING_MAX`], and pages for all of them ([`PAGES_PER_VERSION`]) are kept free under a size
//! limit.

mod writer;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::page::{Fence, Page};
use crate::tree::Change;

/// At most so many: enough for the eldest's leaf to have been read when its turn comes, whatever else is being read,
/// and a checkpoint waits for few of them.
pub(crate) const PENDING_MAX: usize = 64;

/// Pages that a version changes when it goes into its leaf, at the most but for splits further up: the leaf, the new one,
/// their parent, six leaves on either side that are cleaned, and twice four that are swept, the end of the key's history and
/// others, each with a neighbour and a parent if it is merged.
pub(crate) const PAGES_CHANGED: usize = 3 + 2 * 6 + 2 * 4 * 3;

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

#[derive(Debug, Default)]
struct Versions {
    /// With the number in `by_age`.
    by_place: BTreeMap<Place, (u64, Versioned)>,
    by_age: BTreeMap<u64, Place>,
    /// The next number.
    next: u64,
}

impl Versions {
    fn remove(&mut self, place: &Place) {
        if let Some((age, _)) = self.by_place.remove(place) {
            self.by_age.remove(&age);
        }
    }
}

/// All of them, of all trees.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    count: AtomicUsize,
    versions: RwLock<Versions>,
}

impl Pending {
    /// How many. Who reads none here finds in the tree what was here before.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn read(&self) -> RwLockReadGuard<'_, Versions> {
        self.versions.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Versions)) {
        let mut versions = self.versions.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut versions);
        self.count.store(versions.by_place.len(), Ordering::Release);
    }

    /// Keeps a version, in place of one of the same key and LSN.
    pub(crate) fn add(&self, tree: u8, change: Change<'_>) {
        let Change { key, lsn, delete, value } = change;
        let place = (tree, key.to_vec(), Reverse(lsn));
        let version = Versioned { delete, value: value.to_vec() };
        self.change(|versions| {
            versions.remove(&place);
            versions.by_age.insert(versions.next, place.clone());
            versions.by_place.insert(place, (versions.next, version));
            versions.next += 1;
        });
    }

    /// It is in its leaf now.
    pub(crate) fn remove(&self, tree: u8, key: &[u8], lsn: u64) {
        self.change(|versions| versions.remove(&(tree, key.to_vec(), Reverse(lsn))));
    }

    /// The newest version of `key` at or below `as_of`.
    pub(crate) fn get(&self, tree: u8, key: &[u8], as_of: u64) -> Option<(u64, Versioned)> {
        if self.count() == 0 {
            return None;
        }
        let versions = self.read();
        let from = (tree, key.to_vec(), Reverse(as_of));
        let ((.., lsn), (_, version)) =
            versions.by_place.range(from..).next().filter(|(at, _)| at.0 == tree && at.1 == key)?;
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
            .by_place
            .range((begin, Bound::Unbounded))
            .take_while(|((of, key, lsn), _)| *of == tree && leaf.covers(key, lsn.0))
            .map(|((_, key, lsn), (_, version))| (key.clone(), lsn.0, version.clone()))
            .collect()
    }

    /// The one that waits longest.
    fn eldest(&self) -> Option<(u8, Vec<u8>, u64)> {
        self.read().by_age.values().next().map(|(tree, key, lsn)| (*tree, key.clone(), lsn.0))
    }
}
