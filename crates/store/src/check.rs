//! Checks the whole store: every page of every tree as the writer sees it, and every page on disk.

use base::Lsn;

use crate::error::Result;
use crate::page::{Fence, NEVER, Page};
use crate::pager::{Entry, TreeRef, overflow_parts};
use crate::store::{Checkpoints, Store};

/// What [`Store::check`] counted in a store without damage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checked {
    /// Pages in the trees.
    pub pages: u64,
    /// Versions in all leaves.
    pub versions: u64,
    /// Pages on disk whose checksums are right.
    pub pages_on_disk: u64,
    /// The newest version.
    pub newest: Lsn,
}

impl Store {
    /// Checks the checksum of every page on disk, the order of cells, fences, levels and values on
    /// overflow pages. Also checks that each page is used once and that none is lost.
    ///
    /// # Errors
    /// The first damage, with its page and tree, or an error of the disk.
    pub fn check(&mut self) -> Result<Checked> {
        self.ready()?;
        self.finish_checkpoint()?;
        let mut checked = Checked::default();
        let mut owners: Vec<Option<u8>> = Vec::new();
        for id in 0..self.trees.len() {
            let tree = self.trees[id].reference(id);
            self.check_node(tree, tree.root, None, &mut owners, &mut checked)?;
        }
        if checked.pages != u64::from(self.pages.in_use()) {
            let why = format!("{} pages are in use and {} are reached", self.pages.in_use(), checked.pages);
            return Err(self.shared.pager.damaged(0, 0, why));
        }
        self.check_disk(&owners, &mut checked)?;
        Ok(checked)
    }

    /// Checks a page and all pages below it. `expected` is its level and range as its parent has
    /// them.
    fn check_node(
        &self,
        tree: TreeRef,
        id: u32,
        expected: Option<(u8, Fence, Option<Fence>)>,
        owners: &mut Vec<Option<u8>>,
        checked: &mut Checked,
    ) -> Result<()> {
        let page = self.pages.fetch_node(id, tree.id)?;
        let damaged = |why: &str| Err(self.shared.pager.damaged(id, tree.id, why));
        self.claim(tree, id, owners, checked)?;
        let (level, low, high) = expected.unwrap_or((page.level(), Fence::start(), None));
        if page.level() != level || page.low_fence() != low || page.high_fence() != high {
            return damaged("its level or fences are not what its parent says");
        }
        if let Err(why) = page.validate_node().and_then(|()| page.validate_order()) {
            return damaged(why);
        }
        if page.is_leaf() {
            return self.check_leaf(tree, &page, owners, checked);
        }
        for index in 0..page.count() {
            let begin = |index: usize| Fence { key: page.key(index), lsn: page.cell(index).lsn };
            let end = if index + 1 < page.count() { Some(begin(index + 1)) } else { high.clone() };
            let below = (level - 1, begin(index), end);
            self.check_node(tree, page.child(index), Some(below), owners, checked)?;
        }
        Ok(())
    }

    fn check_leaf(
        &self,
        tree: TreeRef,
        page: &Page,
        owners: &mut Vec<Option<u8>>,
        checked: &mut Checked,
    ) -> Result<()> {
        let mut earliest = NEVER;
        let mut newer: Option<(&[u8], u64)> = None;
        for cell in page.cells() {
            checked.versions += 1;
            checked.newest = checked.newest.max(Lsn::new(cell.lsn));
            let successor = match newer {
                Some((suffix, lsn)) => (suffix == cell.suffix).then_some(lsn),
                None => page.fence_successor(cell.suffix),
            };
            newer = Some((cell.suffix, cell.lsn));
            let own = if tree.window {
                cell.lsn + 1
            } else if cell.flags.delete {
                cell.lsn
            } else {
                NEVER
            };
            earliest = earliest.min(own).min(successor.filter(|_| !tree.window).unwrap_or(NEVER));
            if cell.flags.overflow {
                self.pages.pager.value(tree.id, cell.payload)?;
                for id in overflow_parts(cell.payload).1 {
                    self.claim(tree, id, owners, checked)?;
                }
            }
        }
        // An LSN that is too low only costs an attempt. One that is too high would hide garbage
        // forever.
        if page.removable_from() > earliest {
            let why = "it holds removable versions and does not say so";
            return Err(self.shared.pager.damaged(page.id(), tree.id, why));
        }
        Ok(())
    }

    fn claim(
        &self,
        tree: TreeRef,
        id: u32,
        owners: &mut Vec<Option<u8>>,
        checked: &mut Checked,
    ) -> Result<()> {
        if owners.len() <= id as usize {
            owners.resize(id as usize + 1, None);
        }
        if owners[id as usize].replace(tree.id).is_some() {
            return Err(self.shared.pager.damaged(id, tree.id, "it is used twice"));
        }
        checked.pages += 1;
        Ok(())
    }

    /// Reads every page on disk, past the cache.
    fn check_disk(&self, owners: &[Option<u8>], checked: &mut Checked) -> Result<()> {
        let Checkpoints::Idle(checkpointer) = &self.checkpoints else {
            unreachable!("it was waited for, and failure poisons");
        };
        for (id, &entry) in (0_u32..).zip(checkpointer.table()) {
            let Some(owner) = owners.get(id as usize).copied().flatten() else { continue };
            // Only if the entry is still in force: a page that was freed and used again since then
            // is not on disk yet.
            if entry.is_some() && self.shared.pager.entry(id) == entry && entry != Entry::NONE {
                let page = self.shared.pager.read(id, owner, entry)?;
                if page.tree() != owner {
                    return Err(self.shared.pager.damaged(id, owner, "it is another tree's"));
                }
                checked.pages_on_disk += 1;
            }
        }
        Ok(())
    }
}
