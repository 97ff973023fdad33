//! The store as its only writer sees it: changes, commits, checkpoints.
//!
//! A change goes into its leaf in memory at once, and as a record into the open batch.
//! [`Store::commit`] writes the batch to the log and syncs it; a commit waits for nothing else. A
//! checkpoint is due when enough pages differ from the disk, or the log is long in comparison with
//! the pages to write. It writes the pages while work goes on, and gives the log's space back.
//!
//! A change does not wait for a leaf that is not in memory either: see [`crate::pending`].
//!
//! ```text
//!   put, delete --> leaf in the cache ----------- checkpoint --> data file (copy on write, then the head)
//!        \--------> open batch --- commit + sync --> log --- released by the checkpoint that holds it
//! ```

use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};

use base::Lsn;

use crate::checkpoint::{Checkpointer, Done, Job};
use crate::disk::FileDisk;
use crate::error::{Error, Result};
use crate::log::{Log, Record};
use crate::meta::{Kind, TREE_NAME_BYTES_MAX, TREES_MAX, TreeInfo};
use crate::page::{Fence, KEY_BYTES_MAX, NEWEST, PAGE_BYTES, VALUE_BYTES_MAX};
use crate::pager::TreeRef;
use crate::pages::{Changed, Pages};
use crate::pending::{PAGES_CHANGED, PAGES_PER_VERSION, PENDING_MAX};
use crate::reader::{Reader, Scan, SharedStore, Tree, Version};
use crate::room::{BottomUp, Written};
use crate::tree::{Swept, VersionChange};

/// The number of leaves swept for each split. A tree grows by splits only, and the sweep looks at a
/// multiple of that. So garbage that no full leaf meets stays a fraction of the tree. Four is the
/// least that keeps a queue's garbage under a quarter of it.
const SWEEP_LEAVES: u64 = 4;

/// Sweeping starts when one in this many versions is, or will be, removable. Under churn, leaves
/// clean themselves and hold less.
const SWEEP_SHARE: u64 = 16;

/// A pass over a tree that removed less than one version for this many leaves was not worth its
/// reads. The next pass waits until the horizon has reached the newest LSN of that time, or the
/// garbage has doubled.
const SWEEP_WORTH_LEAVES: u64 = 4;

/// The options for opening a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Memory for pages. A checkpoint needs up to as much again, because it holds pages that change
    /// meanwhile.
    pub cache_bytes: usize,
    /// The size that the log never exceeds. A larger log means fewer checkpoints and a longer start
    /// after a crash.
    pub log_bytes: usize,
    /// The size that the data file never exceeds. A change that does not fit is refused
    /// ([`Error::is_full`]).
    pub size_bytes_max: Option<u64>,
    /// Pages that a checkpoint writes before it gives back the blocks that they replace, and uses
    /// these for the next pages. 0 stands for a thirty-second of the pages in use, at least 128 and
    /// at most 512. A smaller number makes the data file smaller and causes more syncs.
    pub checkpoint_pages: usize,
    /// What bottom-up deletion may look at.
    pub bottom_up: BottomUp,
    /// Whether checkpoints run on a thread of their own.
    pub background: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_bytes: 64 << 20,
            log_bytes: 2 << 20,
            size_bytes_max: None,
            checkpoint_pages: 0,
            bottom_up: BottomUp::Full,
            background: true,
        }
    }
}

impl Options {
    pub(crate) fn cache_pages(&self) -> usize {
        (self.cache_bytes / PAGE_BYTES).max(64)
    }

    pub(crate) fn log_blocks(&self) -> u32 {
        u32::try_from(self.log_bytes / PAGE_BYTES).unwrap_or(u32::MAX - 1).max(16)
    }

    fn blocks_max(&self) -> Option<u32> {
        let blocks = self.size_bytes_max? / PAGE_BYTES as u64;
        Some(u32::try_from(blocks).unwrap_or(u32::MAX))
    }

    /// The number of changed pages from which on a checkpoint must start, with `pages` in use. It
    /// is a quarter of the cache: as many again may be in the checkpoint that is being written, and
    /// half of the cache is for pages that are only read. It is half of the cache if all pages fit
    /// there. It is at most a sixteenth of a limited file, because changed pages need blocks beside
    /// those that they replace.
    pub(crate) fn dirty_max(&self, pages: u32) -> usize {
        let share = self.blocks_max().map_or(usize::MAX, |blocks| blocks as usize / 16);
        let fits = pages as usize <= self.cache_pages() / 2;
        (self.cache_pages() / if fits { 2 } else { 4 }).min(share).max(16)
    }

    /// The most versions that may wait for their leaf. When a checkpoint is due, the pages that
    /// they change are still to be changed. Under a size limit, there is room for that.
    pub(crate) fn pending_max(&self) -> usize {
        let share = if self.size_bytes_max.is_some() { 8 } else { 4 };
        (self.dirty_max(u32::MAX) / share).min(PENDING_MAX)
    }

    /// The number of pages in a stage of a checkpoint, with `pages` in use. The file has as many
    /// more blocks than pages. Below 128, two syncs cost more than the writes between them; above
    /// 512 there is no gain.
    fn stage_pages(&self, pages: u32) -> usize {
        if self.checkpoint_pages > 0 { self.checkpoint_pages } else { (pages as usize / 32).clamp(128, 512) }
    }

    /// The most pages in use for which the file keeps its limit. Beside the old pages, a checkpoint
    /// writes changed pages, pages that pending versions change, twice the pages that one write may
    /// add, and the page table. The table has eight bytes per page, counted twice.
    pub(crate) fn pages_max(&self) -> u32 {
        let Some(blocks) = self.blocks_max() else { return u32::MAX };
        let pending = if blocks as usize > self.cache_pages() { self.pending_max() } else { 0 };
        let changed = self.dirty_max(0) + PAGES_CHANGED * pending;
        let beside = 2 * (VALUE_BYTES_MAX / PAGE_BYTES + 16) + changed + 2 * (blocks as usize / 500 + 2);
        blocks.saturating_sub(u32::try_from(beside).unwrap_or(u32::MAX))
    }
}

/// What the store did since it was opened, and what it holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages in use.
    pub pages: u64,
    /// Size of the data file.
    pub file_bytes: u64,
    /// Size of the log file.
    pub log_bytes: u64,
    /// Pages in memory.
    pub pages_cached: u64,
    /// Pages read from the data file.
    pub pages_read: u64,
    /// Blocks written to the data file.
    pub pages_written: u64,
    /// Blocks written to the log.
    pub log_blocks_written: u64,
    /// Checkpoints that have ended.
    pub checkpoints: u64,
    /// Versions that did not wait for their leaf to be read.
    pub pending: u64,
    /// Leaves in which bottom-up deletion looked for removable versions.
    pub attempts: u64,
    /// Versions removed.
    pub removed: u64,
    /// Pages split.
    pub splits: u64,
    /// Full leaves that shared their cells with a neighbour instead of being split.
    pub shares: u64,
    /// Leaves that were swept.
    pub swept: u64,
    /// Versions in all trees. The number is not exact.
    pub versions: u64,
}

/// A tree, and the state of its sweep.
#[derive(Debug)]
pub(crate) struct TreeState {
    pub(crate) info: TreeInfo,
    sweep_at: Fence,
    /// The leaf where a sweep last found something, if more will become removable there; otherwise
    /// the leaf behind it, which is next where keys are deleted in order. The tree's beginning at
    /// first.
    found_at: Fence,
    /// Leaves looked at and versions removed in this pass over the tree.
    pass_leaves: u64,
    pass_removed: u64,
    /// No sweep before the horizon or the number of removable versions reaches this.
    rest: Option<(u64, u64)>,
}

impl TreeState {
    pub(crate) fn new(info: TreeInfo) -> TreeState {
        let (sweep_at, found_at) = (Fence::start(), Fence::start());
        TreeState { info, sweep_at, found_at, pass_leaves: 0, pass_removed: 0, rest: None }
    }

    /// Whether enough versions are, or will be, removable.
    fn wants_sweep(&self) -> bool {
        self.info.debt.saturating_mul(SWEEP_SHARE) >= self.info.versions
    }

    /// Whether another pass would be useless for now, judging by the last one.
    fn rests(&self, horizon: u64) -> bool {
        self.rest.is_some_and(|(until, debt)| horizon < until && self.info.debt < debt)
    }

    /// Notes the end of a pass over the tree. `newest` is the last LSN so far.
    fn end_pass(&mut self, newest: u64) {
        let was_worth_it = self.pass_removed * SWEEP_WORTH_LEAVES >= self.pass_leaves;
        self.rest = (!was_worth_it).then(|| (newest, 2 * self.info.debt));
        (self.pass_leaves, self.pass_removed) = (0, 0);
    }

    pub(crate) fn reference(&self, id: usize) -> TreeRef {
        let id = u8::try_from(id).expect("there are few trees");
        TreeRef { id, root: self.info.root, window: self.info.kind == Kind::Window }
    }

    fn count(&mut self, debt: u64, written: u64, removed: u64) {
        self.info.debt = (self.info.debt + debt).saturating_sub(removed);
        self.info.versions = (self.info.versions + written).saturating_sub(removed);
    }
}

/// What the writer of the data file does at present.
#[derive(Debug)]
pub(crate) enum Checkpoints {
    Idle(Box<Checkpointer>),
    Running(Running),
    /// A checkpoint has failed.
    Lost,
}

#[derive(Debug)]
pub(crate) struct Running {
    done: mpsc::Receiver<(Box<Checkpointer>, Result<Done>)>,
    thread: std::thread::JoinHandle<()>,
    began: Began,
}

/// The position of the log when a checkpoint began.
#[derive(Debug, Clone, Copy)]
struct Began {
    log_block: u64,
    commit_no: u64,
    /// The bytes of the open batch whose changes the pages have.
    batch_bytes: usize,
}

/// What a checkpoint does in addition to writing changes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tidying {
    pub(crate) truncate: bool,
    pub(crate) rewrite_table: bool,
}

/// An open store, for its only writer. Readers use a [`Reader`].
#[derive(Debug)]
pub struct Store {
    pub(crate) shared: Arc<SharedStore>,
    pub(crate) pages: Pages,
    pub(crate) log: Log,
    pub(crate) trees: Vec<TreeState>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) options: Options,
    pub(crate) seq: u64,
    pub(crate) committed: u64,
    pub(crate) horizon: u64,
    /// The wanted horizon, in force from the next commit on.
    pub(crate) horizon_next: u64,
    /// The newest version of the open batch; 0 if it is empty.
    pub(crate) written_max: u64,
    pub(crate) is_poisoned: bool,
    pub(crate) stats: Stats,
    pub(crate) blocks: (u32, u32),
}

impl Store {
    /// Opens the store in the file `path`, with its log in `path` + `.log`. Makes it if it is
    /// missing. The store is then exactly as of its last commit.
    ///
    /// # Errors
    /// The disk's, damage, or another process has the store open.
    pub fn open(path: &Path, options: Options) -> Result<Store> {
        let data = FileDisk::open(path).map_err(Error::io("open the data file"))?;
        let log = FileDisk::open(&log_path(path)).map_err(Error::io("open the log"))?;
        Store::open_on(Arc::new(data), Arc::new(log), options)
    }

    /// Returns the tree called `name`. Makes it if it is missing, durably and at once.
    ///
    /// # Errors
    /// The tree exists with another kind. Or it is missing and the batch is not empty, the name is
    /// too long, or there are too many trees already. The disk's.
    pub fn tree(&mut self, name: &str, kind: Kind) -> Result<Tree> {
        if let Some(id) = self.trees.iter().position(|tree| tree.info.name == name) {
            let there = self.trees[id].info.kind;
            if there != kind {
                return Err(Error::misuse(format!("tree \"{name}\" is a {there} tree, not a {kind} tree")));
            }
            return Ok(Tree(self.trees[id].reference(id)));
        }
        self.ready()?;
        self.apply_pending()?;
        if name.is_empty() || name.len() > TREE_NAME_BYTES_MAX || self.trees.len() == TREES_MAX {
            return Err(Error::misuse(format!(
                "tree \"{name}\" cannot be made: a name has 1 to {TREE_NAME_BYTES_MAX} bytes, a store {TREES_MAX} trees"
            )));
        }
        if self.written_max != 0 {
            return Err(Error::misuse(format!(
                "tree \"{name}\" cannot be made between a change and its commit"
            )));
        }
        let id = self.trees.len();
        let root = self.pages.create_tree(id as u8, kind == Kind::Window)?;
        self.trees.push(TreeState::new(TreeInfo { name: name.to_owned(), kind, root, debt: 0, versions: 0 }));
        self.name_trees();
        self.checkpoint()?;
        Ok(Tree(self.trees[id].reference(id)))
    }

    pub(crate) fn name_trees(&self) {
        let names = self.trees.iter().map(|tree| tree.info.name.clone()).collect();
        self.shared.pager.name_trees(names);
    }

    /// Writes the version of `key` at `lsn`, which is after the last commit. It replaces a version
    /// of the same key and LSN.
    ///
    /// # Errors
    /// The size limit is reached, and then nothing has changed. The key or the value is too long,
    /// or the LSN is committed already. Disk and damage.
    pub fn put(&mut self, tree: Tree, key: &[u8], lsn: Lsn, value: &[u8]) -> Result<()> {
        self.write(tree, VersionChange { key, lsn: lsn.as_u64(), delete: false, value })
    }

    /// Writes the deletion of `key` at `lsn`, with a value of its own. Otherwise like
    /// [`Store::put`].
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn delete(&mut self, tree: Tree, key: &[u8], lsn: Lsn, value: &[u8]) -> Result<()> {
        self.write(tree, VersionChange { key, lsn: lsn.as_u64(), delete: true, value })
    }

    fn write(&mut self, tree: Tree, change: VersionChange<'_>) -> Result<()> {
        self.ready()?;
        if change.key.len() > KEY_BYTES_MAX || change.value.len() > VALUE_BYTES_MAX {
            return Err(Error::misuse(format!(
                "a key of {} bytes with a value of {} is too long: at most {KEY_BYTES_MAX} and {VALUE_BYTES_MAX}",
                change.key.len(),
                change.value.len()
            )));
        }
        if change.lsn <= self.committed || change.lsn == NEWEST {
            return Err(Error::misuse(format!(
                "a change at {} cannot be written: it must be after the last commit, {}",
                Lsn::new(change.lsn),
                Lsn::new(self.committed)
            )));
        }
        self.relieve()?;
        if self.may_wait(tree.0, change) {
            self.apply_eldest(self.options.pending_max() - 1)?;
            self.keep_pending(tree.0, change);
        } else {
            let pages = u32::try_from(change.value.len() / PAGE_BYTES + 1).unwrap_or(u32::MAX);
            if !self.has_room_for_pending(pages + PAGES_PER_VERSION) {
                self.apply_pending()?;
            }
            self.apply_pending_of_leaf(tree.0, change.key, change.lsn)?;
            self.apply_and_sweep(tree.0, change)?;
        }
        let VersionChange { key, lsn, delete, value } = change;
        self.log.add(Record { tree: tree.0.id, delete, lsn, key, value });
        self.written_max = self.written_max.max(lsn);
        Ok(())
    }

    /// Puts a change into its leaf, and sweeps for the splits that it caused.
    pub(crate) fn apply_and_sweep(&mut self, tree: TreeRef, change: VersionChange<'_>) -> Result<()> {
        let written = self.apply(tree, change)?;
        if written.splits > 0 {
            if written.has_history {
                self.sweep_history(tree, change.key, written.splits)?;
            }
            self.sweep_some(tree, written.splits)?;
        }
        Ok(())
    }

    /// Sweeps the end of a key's history if the history fills leaves of its own. Such leaves get no
    /// more versions, and everything to the right of the horizon in the history may be removed.
    fn sweep_history(&mut self, tree: TreeRef, key: &[u8], splits: u64) -> Result<()> {
        if self.options.bottom_up == BottomUp::Off {
            return Ok(());
        }
        let leaf = self.pages.descend(tree, key, self.horizon, &mut Vec::new());
        let mut next = self.poison_on_error(leaf)?.high_fence();
        for _ in 0..splits.saturating_mul(SWEEP_LEAVES) {
            let Some(place) = next.filter(|next| next.key == key && next.lsn != NEWEST) else { break };
            next = self.sweep_leaf(usize::from(tree.id), &place)?.next;
        }
        Ok(())
    }

    /// Puts a change into its leaf, and counts what that did.
    pub(crate) fn apply(&mut self, tree: TreeRef, change: VersionChange<'_>) -> Result<Written> {
        let shared = &self.shared;
        let result = self.pages.write(tree, change, self.options.bottom_up, || shared.view());
        let written = self.poison_on_error(result)?;
        self.stats.attempts += written.attempts;
        self.stats.removed += written.removed;
        self.stats.splits += written.splits;
        self.stats.shares += written.shares;
        self.trees[usize::from(tree.id)].count(written.debt, 1, written.removed);
        Ok(written)
    }

    /// Sets the horizon: from the next commit on, versions below `lsn` may be forgotten, but never
    /// more than that commit covers. The horizon does not go back.
    pub fn set_horizon(&mut self, lsn: Lsn) {
        self.horizon_next = self.horizon_next.max(lsn.as_u64());
    }

    /// Makes every change up to `lsn` durable, and the horizon.
    ///
    /// # Errors
    /// `lsn` is before a written change or before the last commit. The disk's, and then only
    /// opening the store again tells what is durable.
    pub fn commit(&mut self, lsn: Lsn) -> Result<()> {
        self.ready()?;
        let lsn = lsn.as_u64();
        if lsn < self.written_max.max(self.committed) || lsn == NEWEST {
            return Err(Error::misuse(format!(
                "commit {} is before {}, which is written",
                Lsn::new(lsn),
                Lsn::new(self.written_max.max(self.committed))
            )));
        }
        let horizon = self.horizon.max(self.horizon_next.min(lsn));
        if (lsn, horizon) == (self.committed, self.horizon) {
            return Ok(());
        }
        if !self.log.has_room() {
            self.finish_checkpoint()?;
        }
        if !self.log.has_room() || self.log.is_batch_cut() {
            self.finish_checkpoint()?;
            self.begin_checkpoint(Tidying::default())?;
            self.finish_checkpoint()?;
        }
        let result = self.log.commit(lsn, horizon, self.seq, self.pages.dirty());
        self.poison_on_error(result)?;
        (self.committed, self.horizon, self.written_max) = (lsn, horizon, 0);
        let mut registry = self.shared.registry();
        (registry.committed, registry.horizon) = (lsn, horizon);
        drop(registry);
        self.checkpoint_if_due()
    }

    /// The version of `key` as of `as_of`, including changes that are not committed yet. See
    /// [`Snapshot::get`](crate::Snapshot::get).
    ///
    /// # Errors
    /// `as_of` is below the horizon. Disk and damage.
    pub fn get(&self, tree: Tree, key: &[u8], as_of: Lsn) -> Result<Option<Version>> {
        if as_of.as_u64() < self.horizon {
            return Err(Error::below_horizon(as_of, Lsn::new(self.horizon)));
        }
        self.shared.get(tree.0, key, as_of.as_u64(), self.horizon)
    }

    /// The newest version of `key`, committed or not.
    ///
    /// # Errors
    /// Disk and damage.
    pub fn latest(&self, tree: Tree, key: &[u8]) -> Result<Option<Version>> {
        self.shared.get(tree.0, key, NEWEST, self.horizon)
    }

    /// Announces a look-up of `key`, so that its leaf is read meanwhile if it is not in memory. A
    /// caller that wants several keys announces all but the first and then looks all of them up:
    /// their reads take the time of one.
    pub fn prefetch(&self, tree: Tree, key: &[u8]) {
        self.shared.pager.prefetch(tree.0, key, NEWEST);
    }

    /// Every key of `range` with its version as of `as_of`, in order.
    ///
    /// # Errors
    /// `as_of` is below the horizon. Later errors come as items.
    pub fn scan(&self, tree: Tree, range: impl RangeBounds<[u8]>, as_of: Lsn) -> Result<Scan<'_>> {
        if as_of.as_u64() < self.horizon {
            return Err(Error::below_horizon(as_of, Lsn::new(self.horizon)));
        }
        Ok(Scan::new(&self.shared, tree.0, range, as_of.as_u64(), self.horizon))
    }

    /// Makes a reader for other threads.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader(self.shared.clone())
    }

    /// The last commit: every change up to here is durable.
    #[must_use]
    pub fn committed(&self) -> Lsn {
        Lsn::new(self.committed)
    }

    /// The horizon in force.
    #[must_use]
    pub fn horizon(&self) -> Lsn {
        Lsn::new(self.horizon)
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            pages: self.pages.in_use().into(),
            file_bytes: u64::from(self.blocks.1) * PAGE_BYTES as u64,
            log_bytes: u64::from(self.log.file_blocks()) * PAGE_BYTES as u64,
            pages_cached: self.shared.pager.cache.pages() as u64,
            pages_read: self.shared.pager.pages_read(),
            log_blocks_written: self.log.blocks_written(),
            versions: self.trees.iter().map(|tree| tree.info.versions).sum(),
            ..self.stats
        }
    }

    /// Removes every version that no reader can need from every tree, leaf by leaf. It is for a
    /// caller that met the size limit.
    ///
    /// # Errors
    /// Disk and damage.
    pub fn sweep_all(&mut self) -> Result<()> {
        self.ready()?;
        for id in 0..self.trees.len() {
            self.trees[id].sweep_at = Fence::start();
            while self.sweep_step(id)? {
                self.relieve()?;
            }
        }
        Ok(())
    }

    /// Rule S2: the growth of a tree pays for sweeping leaves that may never be full again.
    fn sweep_some(&mut self, tree: TreeRef, splits: u64) -> Result<()> {
        let id = usize::from(tree.id);
        let leaves = splits.saturating_mul(SWEEP_LEAVES);
        // First the place where the last sweep found something, as long as it finds more. Then the
        // leaves of the tree in turn, again and again.
        let mut finds = true;
        for _ in 0..leaves {
            let state = &self.trees[id];
            if self.options.bottom_up == BottomUp::Off || !state.wants_sweep() {
                break;
            }
            let rests = state.rests(self.horizon);
            if finds && (rests || state.found_at != state.sweep_at) {
                let place = state.found_at.clone();
                finds = self.sweep_at(id, &place)?.removed > 0;
            } else if rests {
                break;
            } else {
                self.sweep_step(id)?;
            }
        }
        Ok(())
    }

    /// Sweeps the next leaf. Returns whether there are leaves behind it.
    fn sweep_step(&mut self, id: usize) -> Result<bool> {
        let place = self.trees[id].sweep_at.clone();
        let Swept { removed, next, .. } = self.sweep_at(id, &place)?;
        let newest = self.committed.max(self.written_max);
        let state = &mut self.trees[id];
        state.pass_leaves += 1;
        state.pass_removed += removed;
        let goes_on = next.is_some();
        if !goes_on {
            state.end_pass(newest);
        }
        state.sweep_at = next.unwrap_or_else(Fence::start);
        Ok(goes_on)
    }

    /// Sweeps the leaf at `place`, and remembers where the next one is likely to find something.
    fn sweep_at(&mut self, id: usize, place: &Fence) -> Result<Swept> {
        let swept = self.sweep_leaf(id, place)?;
        let state = &mut self.trees[id];
        if swept.removed > 0 || *place == state.found_at {
            let waits = swept.more_to_come.then_some(place);
            state.found_at = waits.or(swept.next.as_ref()).cloned().unwrap_or_else(Fence::start);
        }
        Ok(swept)
    }

    fn sweep_leaf(&mut self, id: usize, place: &Fence) -> Result<Swept> {
        let view = self.shared.view();
        let tree = self.trees[id].reference(id);
        let result = self.pages.sweep(tree, place, &view);
        let swept = self.poison_on_error(result)?;
        self.stats.swept += 1;
        self.stats.removed += swept.removed;
        self.trees[id].count(0, 0, swept.removed);
        Ok(swept)
    }

    /// Writes all changes to the data file. The log is empty afterwards.
    ///
    /// # Errors
    /// The disk's.
    pub fn checkpoint(&mut self) -> Result<()> {
        self.ready()?;
        self.finish_checkpoint()?;
        self.begin_checkpoint(Tidying::default())?;
        self.finish_checkpoint()
    }

    /// Writes a last checkpoint, so that opening has nothing to do, and closes the files.
    ///
    /// # Errors
    /// The disk's.
    pub fn close(mut self) -> Result<()> {
        self.checkpoint()
    }

    pub(crate) fn ready(&self) -> Result<()> {
        if self.is_poisoned { Err(Error::poisoned()) } else { Ok(()) }
    }

    /// After an error in the middle of a change, the store writes nothing more: memory or disk may
    /// have only a part of the change.
    pub(crate) fn poison_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.is_poisoned |= !error.is_full();
        }
        result
    }

    pub(crate) fn dirty_max(&self) -> usize {
        self.options.dirty_max(self.pages.in_use())
    }

    /// Keeps memory bounded before a change: starts a checkpoint when there are too many changed
    /// pages or the open batch is too long.
    pub(crate) fn relieve(&mut self) -> Result<()> {
        let is_batch_long = self.log.is_batch_long();
        if self.pages.dirty() < self.dirty_max() && !is_batch_long {
            return Ok(());
        }
        self.finish_checkpoint()?;
        self.begin_checkpoint(Tidying::default())?;
        if is_batch_long { self.finish_checkpoint() } else { Ok(()) }
    }

    fn checkpoint_if_due(&mut self) -> Result<()> {
        self.poll_checkpoint()?;
        // A little earlier than necessary, so that the checkpoint starts at a commit.
        let dirty = self.pages.dirty();
        let is_due = dirty >= self.dirty_max() / 8 * 7 || self.log.is_checkpoint_due(dirty);
        if is_due && matches!(self.checkpoints, Checkpoints::Idle(_)) {
            self.begin_checkpoint(Tidying::default())?;
        }
        Ok(())
    }

    /// Starts a checkpoint. None may be running.
    pub(crate) fn begin_checkpoint(&mut self, tidying: Tidying) -> Result<()> {
        self.begin_checkpoint_at(self.log.position(), self.written_max != 0, tidying)
    }

    /// Starts a checkpoint after which opening reads the log from `position` on. None may be
    /// running.
    pub(crate) fn begin_checkpoint_at(
        &mut self,
        (log_block, commit_no): (u64, u64),
        open_writes: bool,
        tidying: Tidying,
    ) -> Result<()> {
        self.apply_pending()?;
        let checkpoints = std::mem::replace(&mut self.checkpoints, Checkpoints::Lost);
        let Checkpoints::Idle(mut checkpointer) = checkpoints else {
            unreachable!("callers finish the one before first");
        };
        let Changed { parts, freed, len } = self.pages.begin_checkpoint();
        let job = Job {
            parts,
            stage_pages: self.options.stage_pages(self.pages.in_use()),
            freed,
            table_len: len,
            committed: self.committed,
            horizon: self.horizon,
            open_writes,
            log_block,
            commit_no,
            log_blocks: self.log.blocks(),
            log_file_blocks: self.log.file_blocks(),
            trees: self.trees.iter().map(|tree| tree.info.clone()).collect(),
            truncate: tidying.truncate,
            rewrite_table: tidying.rewrite_table,
        };
        let began = Began { log_block, commit_no, batch_bytes: self.log.batch_bytes() };
        if !self.options.background {
            let result = checkpointer.write(job);
            return self.install(checkpointer, result, began);
        }
        let (sender, done) = mpsc::channel();
        let write = move || {
            let result = checkpointer.write(job);
            // If the store was dropped, no thread waits for the result; the disk has the checkpoint
            // anyway.
            let _ = sender.send((checkpointer, result));
        };
        let spawned = std::thread::Builder::new().name("checkpoint".to_owned()).spawn(write);
        let spawned = spawned.map_err(Error::io("start a thread"));
        let thread = self.poison_on_error(spawned)?;
        self.checkpoints = Checkpoints::Running(Running { done, thread, began });
        Ok(())
    }

    /// Takes the result of a running checkpoint, if it has ended.
    fn poll_checkpoint(&mut self) -> Result<()> {
        match &self.checkpoints {
            Checkpoints::Running(running) => match running.done.try_recv() {
                Ok((checkpointer, result)) => {
                    let began = running.began;
                    self.install(checkpointer, result, began)
                }
                Err(TryRecvError::Empty) => Ok(()),
                Err(TryRecvError::Disconnected) => self.finish_checkpoint(),
            },
            _ => Ok(()),
        }
    }

    /// Waits for the running checkpoint, if there is one.
    pub(crate) fn finish_checkpoint(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.checkpoints, Checkpoints::Lost) {
            Checkpoints::Running(running) => {
                let received = running.done.recv();
                if let Err(panic) = running.thread.join() {
                    self.is_poisoned = true;
                    std::panic::resume_unwind(panic);
                }
                let (checkpointer, result) = received.expect("the thread ended without a panic");
                self.install(checkpointer, result, running.began)
            }
            other => {
                self.checkpoints = other;
                Ok(())
            }
        }
    }

    /// Takes over the result of a checkpoint, which is durable or has failed.
    fn install(&mut self, checkpointer: Box<Checkpointer>, result: Result<Done>, began: Began) -> Result<()> {
        // After a failure, it is not known which blocks are free, so the checkpointer stays lost.
        self.checkpoints = Checkpoints::Lost;
        let done = self.poison_on_error(result)?;
        self.checkpoints = Checkpoints::Idle(checkpointer);
        self.pages.end_checkpoint(&done);
        self.log.release(began.log_block);
        // A batch that is not long goes to the log as a whole.
        let is_cut = self.log.is_batch_long() || self.log.is_batch_cut();
        if began.commit_no == self.log.position().1 && is_cut {
            self.log.forget(began.batch_bytes);
        }
        self.seq = done.seq;
        self.blocks = (done.blocks_used, done.blocks_end);
        self.stats.checkpoints += 1;
        self.stats.pages_written += done.blocks_written;
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // The files stay locked while a checkpoint writes, and the next opening must not find them
        // locked.
        let _ = self.finish_checkpoint();
    }
}

/// The path of the log of the store in `path`.
fn log_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".log");
    PathBuf::from(name)
}
