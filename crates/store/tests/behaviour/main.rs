//! What the store promises, each promise by name, on real files.

#![allow(clippy::unwrap_used)]

mod files;
mod growth;
mod readers;
mod waiting;

use std::path::Path;

use base::Lsn;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use store::{Kind, Options, Store, Tree};
use tempfile::TempDir;

fn options() -> Options {
    Options { cache_bytes: 4 << 20, log_bytes: 1 << 20, ..Options::default() }
}

/// In memory if the system has a directory for that: no test here depends on whether the disk keeps
/// what was synced.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn open(dir: &Path, options: Options) -> (Store, Tree) {
    let mut store = Store::open(&dir.join("versions"), options).unwrap();
    let tree = store.tree("history", Kind::History).unwrap();
    (store, tree)
}

fn key(number: u64) -> Vec<u8> {
    format!("relation/{number:012}").into_bytes()
}

/// Updates random keys from `lsn` on, 250 to a commit, with the horizon `lag` behind. Returns the
/// next LSN.
fn churn(store: &mut Store, tree: Tree, keys: u64, updates: u64, lag: u64, mut lsn: u64) -> u64 {
    let mut random = StdRng::seed_from_u64(lsn);
    for update in 1..=updates {
        store.put(tree, &key(random.random_range(0..keys)), Lsn::new(lsn), &[b'v'; 60]).unwrap();
        lsn += 1;
        if update % 250 == 0 || update == updates {
            store.set_horizon(Lsn::new(lsn.saturating_sub(lag)));
            store.commit(Lsn::new(lsn)).unwrap();
            lsn += 1;
        }
    }
    lsn
}

/// Writes one version of each key, in order.
fn load(store: &mut Store, tree: Tree, keys: u64) -> u64 {
    for number in 0..keys {
        store.put(tree, &key(number), Lsn::new(number + 1), &[b'v'; 60]).unwrap();
    }
    store.commit(Lsn::new(keys + 1)).unwrap();
    keys + 2
}

/// The value of a version says when it was written, so that any answer can be judged by itself.
fn dated(lsn: u64) -> Vec<u8> {
    format!("{lsn:080}").into_bytes()
}
