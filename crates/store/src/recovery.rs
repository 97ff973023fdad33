//! Opening a store: takes the last checkpoint, takes back changes that were never committed,
//! applies the log.
//!
//! A checkpoint may hold changes of a batch that was open when it was written. If the log has that
//! batch's commit, its records are applied once more, which changes nothing. If not, opening looks
//! at every leaf once and removes versions above the last commit. This loses nothing else: until a
//! batch is durable, no older version is removed because of it (rule S3).
//!
//! A head between two stages of a checkpoint leads to some leaves as of the previous checkpoint and
//! to others as of its own instant. The log then begins at the previous checkpoint. So opening may
//! meet commits that the head already covers. The last commit and the horizon never go back for
//! them. See the README.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use base::Lsn;

use crate::checkpoint::{Checkpointer, Job};
use crate::disk::Disk;
use crate::error::{Error, Place, Result};
use crate::log::{Commit, Log, Opened};
use crate::meta::{Meta, SLOTS};
use crate::page::{Fence, KEY_BYTES_MAX, NEWEST, PAGE_BYTES, VALUE_BYTES_MAX};
use crate::pager::Pager;
use crate::pages::Pages;
use crate::reader::SharedStore;
use crate::store::{Checkpoints, Options, Stats, Store, Tidying, TreeState};
use crate::tree::VersionChange;

/// Opening on disks instead of files.
impl Store {
    /// Opens the store on two disks, as [`Store::open`] does on two files.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(data: Arc<dyn Disk>, log: Arc<dyn Disk>, options: Options) -> Result<Store> {
        open(data, log, options)
    }
}

/// Opens the store on two disks. Makes one if both are empty.
fn open(data: Arc<dyn Disk>, log: Arc<dyn Disk>, options: Options) -> Result<Store> {
    // A program that was killed may have left writes that only the kernel's cache has. They are
    // read here like all others, so they must be durable before anything relies on them.
    data.sync().map_err(Error::io("sync the data file"))?;
    log.sync().map_err(Error::io("sync the log"))?;
    let Some(meta) = Meta::read(&*data)? else {
        if !is_unborn(&*data, &*log)? {
            return Err(Error::damaged(Place::Meta, "neither of its two slots is whole"));
        }
        return create(data, log, options);
    };
    let Opened { log, commits, is_torn } = Log::open(log, &meta)?;
    let checkpointer = Checkpointer::load(data.clone(), &meta)?;
    let mut store = assemble(data, log, checkpointer, &meta, options);
    // Committed changes fitted when they were written. They must be accepted now, although leaves
    // may be filled differently.
    store.pages.set_pages_max(u32::MAX);
    let is_changed = !commits.is_empty() || meta.open_writes || is_torn;
    if meta.open_writes && commits.last().is_none_or(|last| last.lsn <= meta.committed) {
        take_back(&mut store, &meta)?;
    }
    replay_all(&mut store, &commits, &meta)?;
    if is_changed {
        store.begin_checkpoint(Tidying::default())?;
        store.finish_checkpoint()?;
    }
    if store.log.blocks() != store.options.log_blocks() && store.log.used() == 0 {
        store.log.resize(store.options.log_blocks());
        store.begin_checkpoint(Tidying::default())?;
        store.finish_checkpoint()?;
    }
    store.pages.set_pages_max(store.options.pages_max());
    Ok(store)
}

/// Whether these are disks of a store that a crash interrupted while it was made, or disks that
/// were never used.
fn is_unborn(data: &dyn Disk, log: &dyn Disk) -> Result<bool> {
    let data_bytes = data.size_bytes().map_err(Error::io("find the size of the data file"))?;
    let log_bytes = log.size_bytes().map_err(Error::io("find the size of the log"))?;
    Ok(data_bytes <= u64::from(SLOTS) * PAGE_BYTES as u64 && log_bytes <= PAGE_BYTES as u64)
}

fn create(data: Arc<dyn Disk>, log: Arc<dyn Disk>, options: Options) -> Result<Store> {
    // The id only has to tell this store's log from another's.
    let store_id = RandomState::new().hash_one(std::process::id());
    // The log first: a head of the data file without a log would be damage.
    let log = Log::create(log, store_id, options.log_blocks())?;
    // Heads are written inside of the file's size.
    let slots = u64::from(SLOTS) * PAGE_BYTES as u64;
    data.set_size(slots).and_then(|()| data.sync()).map_err(Error::io("make the data file"))?;
    let mut checkpointer = Checkpointer::new(data.clone(), store_id);
    let empty = || Job {
        parts: Vec::new(),
        stage_pages: usize::MAX,
        freed: Vec::new(),
        table_len: 0,
        committed: 0,
        horizon: 0,
        open_writes: false,
        log_block: log.position().0,
        commit_no: log.position().1,
        log_blocks: log.blocks(),
        log_file_blocks: log.file_blocks(),
        trees: Vec::new(),
        truncate: false,
        rewrite_table: false,
    };
    // Twice, so that both slots are whole from the start.
    checkpointer.write(empty())?;
    checkpointer.write(empty())?;
    let meta = Meta::read(&*data)?.ok_or_else(|| Error::damaged(Place::Meta, "it cannot be read back"))?;
    Ok(assemble(data, log, checkpointer, &meta, options))
}

fn assemble(
    data: Arc<dyn Disk>,
    log: Log,
    checkpointer: Checkpointer,
    meta: &Meta,
    options: Options,
) -> Store {
    let pager = Arc::new(Pager::new(data, options.cache_pages(), checkpointer.table().to_vec()));
    let pages = Pages::new(pager.clone(), checkpointer.table(), options.pages_max());
    let store = Store {
        shared: Arc::new(SharedStore::new(pager, meta.committed, meta.horizon)),
        pages,
        log,
        trees: meta.trees.iter().cloned().map(TreeState::new).collect(),
        blocks: (checkpointer.blocks_used(), checkpointer.file_blocks()),
        checkpoints: Checkpoints::Idle(Box::new(checkpointer)),
        options,
        seq: meta.seq,
        committed: meta.committed,
        horizon: meta.horizon,
        horizon_next: meta.horizon,
        written_max: 0,
        is_poisoned: false,
        stats: Stats::default(),
    };
    store.name_trees();
    store
}

/// Takes versions above the last commit out of every leaf.
fn take_back(store: &mut Store, meta: &Meta) -> Result<()> {
    for id in 0..store.trees.len() {
        let tree = store.trees[id].reference(id);
        let mut place = Some(Fence::start());
        while let Some(at) = place {
            place = store.pages.take_back(tree, &at, store.committed)?;
            if store.pages.dirty() >= store.dirty_max() {
                // After a crash from here on, opening starts over and has the whole log to apply.
                let position = (meta.log_block, meta.commit_no);
                store.begin_checkpoint_at(position, true, Tidying::default())?;
                store.finish_checkpoint()?;
            }
        }
    }
    Ok(())
}

/// Applies the log.
fn replay_all(store: &mut Store, commits: &[Commit], meta: &Meta) -> Result<()> {
    let (Some(first), Some(last)) = (commits.first(), commits.last()) else { return Ok(()) };
    let is_covered = first.lsn <= meta.committed;
    if is_covered && last.lsn < meta.committed {
        let (end, covered) = (Lsn::new(last.lsn), Lsn::new(meta.committed));
        let why = format!("it ends at {end}, the data file has commit {covered}");
        return Err(Error::damaged(Place::Log { block: last.block }, why));
    }
    let mut before = if is_covered { 0 } else { meta.committed };
    for commit in commits {
        replay(store, commit, before)?;
        before = commit.lsn;
    }
    Ok(())
}

/// Applies a commit of the log. The commit before it was at `before`.
fn replay(store: &mut Store, commit: &Commit, before: u64) -> Result<()> {
    let oldest = commit.records().flatten().map(|record| record.lsn).min().unwrap_or(NEWEST);
    // Versions that are removed during this must be older than all of the commit's. Otherwise a
    // deletion at or below the horizon would be removed before the elder that it hides has come.
    store.shared.registry().horizon = store.horizon.min(oldest.saturating_sub(1));
    let damaged = |why: &str| Error::damaged(Place::Log { block: commit.block }, why);
    for record in commit.records() {
        let record = record.ok_or_else(|| damaged("a record ends behind its commit"))?;
        let tree = usize::from(record.tree);
        let Some(state) = store.trees.get(tree) else {
            return Err(damaged("a record is of a tree that does not exist"));
        };
        if record.key.len() > KEY_BYTES_MAX
            || record.value.len() > VALUE_BYTES_MAX
            || record.lsn <= before
            || record.lsn > commit.lsn
        {
            return Err(damaged("a record is not one that could have been written"));
        }
        let reference = state.reference(tree);
        let change =
            VersionChange { key: record.key, lsn: record.lsn, delete: record.delete, value: record.value };
        store.apply(reference, change)?;
        if store.pages.dirty() >= store.dirty_max() {
            // After a crash from here on, opening reads this commit again.
            store.begin_checkpoint_at((commit.block, commit.commit_no), true, Tidying::default())?;
            store.finish_checkpoint()?;
        }
    }
    store.committed = store.committed.max(commit.lsn);
    store.horizon = store.horizon.max(commit.horizon);
    store.horizon_next = store.horizon;
    let mut registry = store.shared.registry();
    (registry.committed, registry.horizon) = (store.committed, store.horizon);
    Ok(())
}
