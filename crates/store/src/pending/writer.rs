//! What the writer does with pending versions: which may wait, and when they go into their leaves.

use super::PAGES_PER_VERSION;
use crate::error::Result;
use crate::page::NEWEST;
use crate::pager::TreeRef;
use crate::store::Store;
use crate::tree::{VersionChange, fits_cell};

impl Store {
    /// Whether a change may go into its leaf later. It may if the leaf is not in memory, the change
    /// is newer than all versions there, and there will be room for it.
    pub(crate) fn may_wait(&self, tree: TreeRef, change: VersionChange<'_>) -> bool {
        let VersionChange { key, lsn, value, .. } = change;
        let is_larger_than_memory = self.pages.in_use() as usize > self.options.cache_pages();
        is_larger_than_memory
            && lsn >= self.written_max
            && fits_cell(key, value)
            && self.has_room_for_pending(PAGES_PER_VERSION)
            && self.pages.pager.missing(tree, key, lsn).is_some()
    }

    /// Whether there is room for the pending versions and `pages` more pages.
    pub(crate) fn has_room_for_pending(&self, pages: u32) -> bool {
        let versions = u32::try_from(self.shared.pending.count()).unwrap_or(u32::MAX);
        self.pages.ensure_room(versions.saturating_mul(PAGES_PER_VERSION).saturating_add(pages)).is_ok()
    }

    /// Keeps a change, and starts reading its leaf.
    pub(crate) fn keep_pending(&mut self, tree: TreeRef, change: VersionChange<'_>) {
        self.shared.pending.add(tree.id, change);
        self.stats.pending += 1;
        self.pages.pager.prefetch(tree, change.key, change.lsn);
    }

    /// Puts pending versions into their leaves, the eldest first, until there are at most
    /// `pending_max`.
    pub(crate) fn apply_eldest(&mut self, pending_max: usize) -> Result<()> {
        while self.shared.pending.count() > pending_max
            && let Some((tree, key, lsn)) = self.shared.pending.eldest()
        {
            let tree = self.trees[usize::from(tree)].reference(usize::from(tree));
            self.apply_pending_of_leaf(tree, &key, lsn)?;
        }
        Ok(())
    }

    /// Puts all pending versions into their leaves.
    pub(crate) fn apply_pending(&mut self) -> Result<()> {
        self.apply_eldest(0)
    }

    /// Puts pending versions into the leaf that (key, LSN) belongs to.
    pub(crate) fn apply_pending_of_leaf(&mut self, tree: TreeRef, key: &[u8], lsn: u64) -> Result<()> {
        if self.shared.pending.count() == 0 {
            return Ok(());
        }
        let result = self.pages.descend(tree, key, lsn, &mut Vec::new());
        let leaf = self.poison_on_error(result)?;
        // If a key goes on in the next leaf, elders may be pending there, above a fence that a
        // crash made void.
        if let Some((key, at)) = leaf.high().filter(|(_, at)| *at != NEWEST)
            && let Some((lsn, _)) = self.shared.pending.get(tree.id, key, at)
        {
            self.apply_pending_of_leaf(tree, key, lsn)?;
        }
        // Elders first. A deletion is removed when the leaf has nothing older of its key. An elder
        // that came later would become visible again.
        for (key, lsn, version) in
            self.shared.pending.of_leaf(tree.id, &leaf, &leaf.low_fence()).into_iter().rev()
        {
            let change = VersionChange { key: &key, lsn, delete: version.delete, value: &version.value };
            let result = self.apply_and_sweep(tree, change);
            // There was room for the version when it was accepted.
            self.is_poisoned |= result.is_err();
            result?;
            self.shared.pending.remove(tree.id, &key, lsn);
        }
        Ok(())
    }
}
