//! Makes the file as small as its content: removes old versions, packs leaves, moves pages to the
//! front, cuts the file.
//!
//! Every step is an ordinary change of pages followed by an ordinary checkpoint. So a crash leaves
//! a whole store, compacted in part, and readers go on meanwhile.

use std::sync::Arc;

use crate::error::Result;
use crate::page::{Fence, Page};
use crate::store::{Checkpoints, Store, Tidying};

impl Store {
    /// Removes versions that no reader can need, fills leaves, moves pages to the front of the file
    /// and cuts off the rest.
    ///
    /// # Errors
    /// Disk and damage.
    pub fn compact(&mut self) -> Result<()> {
        // A change in the middle could split, and so merge, the pages that are being packed.
        self.apply_pending()?;
        self.sweep_all()?;
        for id in 0..self.trees.len() {
            // Inner pages first, so that more leaves share a parent. Then inner pages once more,
            // because they now have fewer children.
            let levels = self.root(id)?.level();
            for level in (2..=levels).chain(1..=levels) {
                self.pack_level(id, level)?;
            }
        }
        self.move_to_front()
    }

    fn root(&self, id: usize) -> Result<Arc<Page>> {
        let tree = self.trees[id].reference(id);
        self.pages.fetch_node(tree.root, tree.id)
    }

    /// Packs the children of all pages of `level`.
    fn pack_level(&mut self, id: usize, level: u8) -> Result<()> {
        let tree = self.trees[id].reference(id);
        let mut place = Some(Fence::start());
        while let Some(at) = place {
            let mut steps = Vec::new();
            self.pages.descend(tree, &at.key, at.lsn, &mut steps)?;
            // The root is the first step, a page of level 1 the last.
            let Some(index) = steps.len().checked_sub(usize::from(level)) else { return Ok(()) };
            let parent = steps[index].0;
            let mut child = Some(0);
            while let Some(from) = child {
                let result = self.pages.pack(tree, parent, from);
                child = self.poison_on_error(result)?;
                self.relieve()?;
            }
            place = self.pages.fetch_node(parent, tree.id)?.high_fence();
        }
        let result = self.pages.shrink_root(tree);
        self.poison_on_error(result)
    }

    /// Moves the pages that are behind the end of a file without gaps, until none is.
    fn move_to_front(&mut self) -> Result<()> {
        // Pages that are freed while a checkpoint runs must be known until it ends.
        self.finish_checkpoint()?;
        self.pages.trim();
        let mut behind_before = usize::MAX;
        loop {
            // The first checkpoint gives replaced blocks back, the second may use them.
            self.tidy(Tidying { truncate: true, rewrite_table: true })?;
            self.tidy(Tidying { truncate: true, rewrite_table: false })?;
            let Checkpoints::Idle(checkpointer) = &self.checkpoints else {
                unreachable!("it was waited for, and failure poisons");
            };
            let enough = checkpointer.blocks_used();
            let behind: Vec<u32> = (0..)
                .zip(checkpointer.table())
                .filter(|(_, entry)| entry.block >= enough)
                .map(|(id, _)| id)
                .collect();
            // There are as many free blocks below as there are pages behind, so each round moves
            // all pages that it may.
            if behind.is_empty() || behind.len() >= behind_before {
                return self.tidy(Tidying { truncate: true, rewrite_table: false });
            }
            behind_before = behind.len();
            for page in behind.into_iter().take(self.dirty_max()) {
                let result = self.pages.touch(page);
                self.poison_on_error(result)?;
            }
        }
    }

    fn tidy(&mut self, tidying: Tidying) -> Result<()> {
        self.finish_checkpoint()?;
        self.begin_checkpoint(tidying)?;
        self.finish_checkpoint()
    }
}
