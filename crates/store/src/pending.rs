//! Versions that do not wait for their leaf.
//!
//! If a tree is larger than memory, most of the cost of a change is the read of its leaf, and the
//! leaf is not needed before the next checkpoint. So a version whose leaf is not in memory is kept
//! here and read from here. The disk is told that the leaf is going to be read, and the caller goes
//! on meanwhile.
//!
//! ```text
//!   put --> leaf in memory? --yes--> into it
//!              | no
//!              +--> pending, prefetch of the leaf     the writer, when there are as many as may be:
//!                      ^--- readers look here first   all pending of the eldest's leaf into that
//! ```
//!
//! Invariants:
//!
//! - A pending version is newer than every version of its key in the tree, so it answers alone.
//! - Elders go into their leaf first. So what may be removed there does not depend on pending
//!   versions.
//! - A version is removed from here after it has gone into its leaf, and readers look here before
//!   they look there.
//! - No version is pending when a checkpoint begins.
//! - There are at most [`PENDING_MAX`] versions. Under a size limit, pages for all of them
//!   ([`PAGES_PER_VERSION`]) are kept free.

mod writer;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::page::{Fence, Page};
use crate::tree::VersionChange;

/// The most pending versions. The eldest's leaf has then been read when its turn comes, even if
/// other pages are being read, and a checkpoint waits for few versions.
pub(crate) const PENDING_MAX: usize = 64;

/// The most pages that a version changes when it goes into its leaf, apart from splits further up.
/// These are the leaf, a new one and their parent; six leaves on either side that are cleaned; and
/// twice four leaves that are swept, at the end of the key's history and elsewhere. Each of the
/// latter comes with a neighbour and a parent if it is merged.
pub(crate) const PAGES_CHANGED: usize = 3 + 2 * 6 + 2 * 4 * 3;

/// Pages that one version may add to a tree: one per level. Trees of the longest keys have some
/// twenty levels.
pub(crate) const PAGES_PER_VERSION: u32 = 24;

/// A version without its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Versioned {
    pub(crate) delete: bool,
    pub(crate) value: Vec<u8>,
}

/// Tree, key, LSN from the newest on: the order within a leaf.
type Place = (u8, Vec<u8>, Reverse<u64>);

#[derive(Debug, Default)]
struct Versions {
    /// Each version with its number in `by_age`.
    by_place: BTreeMap<Place, (u64, Versioned)>,
    by_age: BTreeMap<u64, Place>,
    /// The next number for `by_age`.
    next: u64,
}

impl Versions {
    fn remove(&mut self, place: &Place) {
        if let Some((age, _)) = self.by_place.remove(place) {
            self.by_age.remove(&age);
        }
    }
}

/// All pending versions of all trees.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    count: AtomicUsize,
    versions: RwLock<Versions>,
}

impl Pending {
    /// The number of pending versions. If it is 0, the tree has every version that was pending
    /// before.
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
    pub(crate) fn add(&self, tree: u8, change: VersionChange<'_>) {
        let VersionChange { key, lsn, delete, value } = change;
        let place = (tree, key.to_vec(), Reverse(lsn));
        let version = Versioned { delete, value: value.to_vec() };
        self.change(|versions| {
            versions.remove(&place);
            versions.by_age.insert(versions.next, place.clone());
            versions.by_place.insert(place, (versions.next, version));
            versions.next += 1;
        });
    }

    /// Removes a version that is in its leaf now.
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

    /// The versions that belong into `leaf`, in its order, from `from` on.
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

    /// The version that has waited longest.
    fn eldest(&self) -> Option<(u8, Vec<u8>, u64)> {
        self.read().by_age.values().next().map(|(tree, key, lsn)| (*tree, key.clone(), lsn.0))
    }
}
