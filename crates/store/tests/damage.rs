//! Damage of every kind to the files: what the store reports, and that it never answers from
//! damaged bytes.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Lsn;
use store::{Disk, Error, FileDisk, Kind, Options, Store};

const BLOCK_BYTES: usize = 4096;

fn options() -> Options {
    Options { cache_bytes: 1 << 20, log_bytes: 1 << 18, background: false, ..Options::default() }
}

/// All keys of all trees as of the last commit.
type Content = Vec<(Vec<u8>, Lsn, Vec<u8>)>;

/// Makes a store with two trees, some commits in pages and three more in the log.
fn make(dir: &Path) -> (PathBuf, Content) {
    let path = dir.join("versions");
    let mut store = Store::open(&path, options()).unwrap();
    let trees = [("history", Kind::History), ("window", Kind::Window)];
    let trees = trees.map(|(name, kind)| store.tree(name, kind).unwrap());
    for lsn in 1..=3003_u64 {
        let value = vec![lsn as u8; if lsn % 100 == 0 { 9000 } else { 70 }];
        store.put(trees[(lsn % 2) as usize], &(lsn % 500).to_be_bytes(), Lsn::new(lsn), &value).unwrap();
        if lsn == 3000 {
            store.commit(Lsn::new(lsn)).unwrap();
            store.checkpoint().unwrap();
        }
        if lsn >= 3000 {
            store.commit(Lsn::new(lsn)).unwrap();
        }
    }
    let content = content(&mut store).unwrap();
    (path, content)
}

fn content(store: &mut Store) -> Result<Content, Error> {
    store.check()?;
    let mut content = Vec::new();
    for (name, kind) in [("history", Kind::History), ("window", Kind::Window)] {
        let tree = store.tree(name, kind)?;
        for item in store.scan(tree, .., store.committed())? {
            let (key, version) = item?;
            content.push((key, version.lsn, version.value));
        }
    }
    Ok(content)
}

fn look(path: &Path) -> Result<Content, Error> {
    content(&mut Store::open(path, options())?)
}

fn log_path(path: &Path) -> PathBuf {
    path.with_file_name("versions.log")
}

/// Restores `data` and `log`, lets `harm` change them, and reads the store.
fn harmed(
    path: &Path,
    files: &(Vec<u8>, Vec<u8>),
    harm: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>),
) -> Result<Content, Error> {
    let (mut data, mut log) = files.clone();
    harm(&mut data, &mut log);
    fs::write(path, data).unwrap();
    fs::write(log_path(path), log).unwrap();
    look(path)
}

fn files(path: &Path) -> (Vec<u8>, Vec<u8>) {
    (fs::read(path).unwrap(), fs::read(log_path(path)).unwrap())
}

#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (path, before) = make(dir.path());
    let files = files(&path);
    let (mut refused, mut named) = (0, 0);
    let blocks = files.0.len() / BLOCK_BYTES;
    for block in 0..blocks {
        let at = block * BLOCK_BYTES + 10 + block * 37 % 4000;
        match harmed(&path, &files, |data, _| data[at] ^= 16) {
            // A block that is not in use, or the older head.
            Ok(after) => assert_eq!(after, before, "a flipped bit in block {block} was answered from"),
            Err(error) => {
                assert!(error.is_damaged(), "block {block}: {error}");
                refused += 1;
                named += usize::from(
                    error.to_string().contains("of tree \"history\"")
                        || error.to_string().contains("of tree \"window\""),
                );
            }
        }
    }
    assert!(refused * 2 > blocks, "{refused} of {blocks} blocks");
    assert!(named > refused / 2, "{named} of {refused} named page and tree");
}

#[test]
fn a_flipped_bit_in_the_log_is_found_except_in_the_last_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (path, before) = make(dir.path());
    let files = files(&path);
    // The log's head, then the commits in order. A damaged last commit looks like one that a crash
    // tore.
    let written =
        |block: &usize| files.1[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES].iter().any(|byte| *byte != 0);
    let blocks: Vec<usize> = (0..files.1.len() / BLOCK_BYTES).filter(written).collect();
    let last = *blocks.last().unwrap();
    for block in blocks {
        match harmed(&path, &files, |_, log| log[block * BLOCK_BYTES + 9] ^= 1) {
            Err(error) => assert!(error.is_damaged(), "{error}"),
            Ok(after) if block == last => assert_ne!(after, before),
            Ok(after) => assert_eq!(after, before, "block {block} belongs to an older time round"),
        }
    }
    for block in [last - 2, last - 1] {
        let error = harmed(&path, &files, |_, log| log[block * BLOCK_BYTES + 100] ^= 1).unwrap_err();
        assert!(error.to_string().contains("of the log is damaged"), "{error}");
    }
}

#[test]
fn a_short_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = make(dir.path());
    let files = files(&path);
    for blocks in [0, 1, 2, 3, files.0.len() / BLOCK_BYTES - 1] {
        let error = harmed(&path, &files, |data, _| data.truncate(blocks * BLOCK_BYTES)).unwrap_err();
        assert!(error.is_damaged(), "{blocks} blocks: {error}");
    }
    for blocks in [0, 1, 2] {
        let error = harmed(&path, &files, |_, log| log.truncate(blocks * BLOCK_BYTES)).unwrap_err();
        assert!(error.is_damaged() || error.is_io(), "{blocks} blocks: {error}");
    }
}

#[test]
fn a_lost_write_is_found_because_references_carry_checksums() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = make(dir.path());
    let old = files(&path);
    let mut store = Store::open(&path, options()).unwrap();
    let tree = store.tree("history", Kind::History).unwrap();
    for lsn in 4000..7000_u64 {
        store.put(tree, &(lsn % 500).to_be_bytes(), Lsn::new(lsn), &[1; 70]).unwrap();
    }
    store.commit(Lsn::new(7000)).unwrap();
    store.close().unwrap();
    let before = look(&path).unwrap();
    let new = files(&path);
    let mut found = 0;
    for block in 0..old.0.len().min(new.0.len()) / BLOCK_BYTES {
        let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        if old.0[range.clone()] == new.0[range.clone()] {
            continue;
        }
        // Each block is whole, and was right at an earlier time.
        match harmed(&path, &new, |data, _| data[range.clone()].copy_from_slice(&old.0[range.clone()])) {
            Ok(after) => assert_eq!(after, before, "block {block}"),
            Err(error) => {
                assert!(error.is_damaged(), "{error}");
                found += 1;
            }
        }
    }
    assert!(found > 10, "{found}");
    // A whole old data file beside the new log.
    let error = harmed(&path, &new, |data, _| data.clone_from(&old.0)).unwrap_err();
    assert!(error.is_damaged(), "{error}");
}

/// A crash may leave the tail of a commit without its head. The next commit takes the same blocks,
/// and a crash may leave its head without its tail. Together they would look whole.
#[test]
fn a_torn_commit_is_never_completed_by_blocks_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("versions");
    let write = |store: &mut Store, from: u64| {
        let tree = store.tree("history", Kind::History).unwrap();
        for lsn in from..from + 3 {
            store.put(tree, &lsn.to_be_bytes(), Lsn::new(lsn), &[from as u8; 4000]).unwrap();
        }
        store.commit(Lsn::new(from + 3)).unwrap();
    };
    let mut store = Store::open(&path, options()).unwrap();
    store.tree("history", Kind::History).unwrap();
    drop(store);
    let files_before = files(&path);
    let mut store = Store::open(&path, options()).unwrap();
    write(&mut store, 10);
    drop(store);
    let block = |log: &[u8], index: usize| log[index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES].to_vec();
    let first = files(&path).1;
    // The head of the first commit is lost. The data file has nothing of it.
    fs::write(&path, &files_before.0).unwrap();
    let mut torn = first.clone();
    torn[BLOCK_BYTES..2 * BLOCK_BYTES].fill(0);
    fs::write(log_path(&path), &torn).unwrap();
    let mut store = Store::open(&path, options()).unwrap();
    assert_eq!(store.committed(), Lsn::INVALID);
    write(&mut store, 20);
    drop(store);
    let mut torn = files(&path).1;
    assert_ne!(block(&torn, 1), block(&first, 1));
    // Only the head of the second commit reached the disk.
    torn[2 * BLOCK_BYTES..5 * BLOCK_BYTES].copy_from_slice(&first[2 * BLOCK_BYTES..5 * BLOCK_BYTES]);
    fs::write(log_path(&path), torn).unwrap();
    let store = Store::open(&path, options()).unwrap();
    assert_eq!(store.committed(), Lsn::INVALID, "half of one commit and half of another are none");
}

/// A file whose syncs can be made to fail.
#[derive(Debug)]
struct Failing(FileDisk, Arc<AtomicBool>);

impl Disk for Failing {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, bytes)
    }
    fn size_bytes(&self) -> std::io::Result<u64> {
        self.0.size_bytes()
    }
    fn set_size(&self, bytes: u64) -> std::io::Result<()> {
        self.0.set_size(bytes)
    }
    fn sync(&self) -> std::io::Result<()> {
        if self.1.load(Ordering::Relaxed) {
            Err(std::io::Error::other("no space left on device"))
        } else {
            self.0.sync()
        }
    }
}

#[test]
fn after_a_sync_that_failed_nothing_is_written_until_the_store_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let disk = |name: &str| Arc::new(Failing(FileDisk::open(&dir.path().join(name)).unwrap(), fails.clone()));
    let mut store = Store::open_on(disk("versions"), disk("versions.log"), options()).unwrap();
    let tree = store.tree("history", Kind::History).unwrap();
    store.put(tree, b"a", Lsn::new(1), b"one").unwrap();
    store.commit(Lsn::new(1)).unwrap();
    store.put(tree, b"a", Lsn::new(2), b"two").unwrap();
    fails.store(true, Ordering::Relaxed);
    let error = store.commit(Lsn::new(2)).unwrap_err();
    assert!(error.is_io(), "{error}");
    // The next sync would succeed, because the kernel reports a failure once. What was lost stays
    // lost.
    fails.store(false, Ordering::Relaxed);
    assert!(store.commit(Lsn::new(2)).unwrap_err().is_poisoned());
    assert!(store.put(tree, b"a", Lsn::new(3), b"").unwrap_err().is_poisoned());
    assert_eq!(store.committed(), Lsn::new(1));
    assert_eq!(store.reader().snapshot().unwrap().get(tree, b"a").unwrap().unwrap().value, b"one");
    drop(store);
    let mut store = Store::open_on(disk("versions"), disk("versions.log"), options()).unwrap();
    assert!([Lsn::new(1), Lsn::new(2)].contains(&store.committed()), "one or the other, whole");
    store.check().unwrap();
}

/// A commit across the end of the log's ring has a block at the ring's beginning, like a commit
/// that went back there. If a crash left only that block, there is no commit.
#[test]
fn a_torn_commit_across_the_end_of_the_log_is_not_taken_for_one_that_went_back() {
    let options = || Options { log_bytes: 1 << 16, ..options() };
    // Eleven blocks. In the second case, the last block could pass for a commit without a change.
    for value_bytes in [44_000, 10 * (BLOCK_BYTES - 40) - 16 - 3] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("versions");
        let mut store = Store::open(&path, options()).unwrap();
        let tree = store.tree("history", Kind::History).unwrap();
        for lsn in 1..=6 {
            store.put(tree, b"key", Lsn::new(lsn), &[b'a'; 20]).unwrap();
            store.commit(Lsn::new(lsn)).unwrap();
        }
        store.close().unwrap();
        // The data file at the time of the commit: the checkpoint that follows is not there yet.
        let data = fs::read(&path).unwrap();
        let mut store = Store::open(&path, options()).unwrap();
        let tree = store.tree("history", Kind::History).unwrap();
        store.put(tree, b"key", Lsn::new(7), &vec![b'v'; value_bytes]).unwrap();
        store.commit(Lsn::new(7)).unwrap();
        drop(store);

        let mut bytes = fs::read(log_path(&path)).unwrap();
        let number = |bytes: &[u8], place: usize| {
            let at = place * BLOCK_BYTES + 16;
            u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
        };
        assert_eq!((number(&bytes, 7), number(&bytes, 1)), (6, 16), "it goes over the end");
        // None of the blocks before the ring's end arrived, the one at the beginning did.
        bytes[7 * BLOCK_BYTES..].fill(0);
        fs::write(log_path(&path), &bytes).unwrap();
        fs::write(&path, &data).unwrap();
        let mut store = Store::open(&path, options()).unwrap();
        assert_eq!(store.committed(), Lsn::new(6));
        assert_eq!(store.latest(tree, b"key").unwrap().unwrap().value, [b'a'; 20]);
        store.put(tree, b"key", Lsn::new(8), b"later").unwrap();
        store.commit(Lsn::new(8)).unwrap();
        drop(store);
        let store = Store::open(&path, options()).unwrap();
        assert_eq!(store.latest(tree, b"key").unwrap().unwrap().value, b"later");
    }
}
