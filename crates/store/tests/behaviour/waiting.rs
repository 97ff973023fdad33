//! Versions that go into their leaf later, and can be read at once.

use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Lsn;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use store::{Options, Store, Tree};

use crate::{dated, key, load, open, options, scratch};

/// A version that does not wait for its leaf can be read: by the writer at once, and by readers in
/// their snapshots.
#[test]
fn versions_that_do_not_wait_for_their_leaf_are_read_all_the_same() {
    const KEYS: u64 = 20_000;
    const SCANNED: u64 = 400;
    let dir = scratch();
    // One leaf in six is in memory. Versions stay pending through several commits.
    let (mut store, tree) = open(dir.path(), Options { cache_bytes: 1 << 19, ..options() });
    for number in 0..KEYS {
        store.put(tree, &key(number), Lsn::new(number + 1), &dated(number + 1)).unwrap();
    }
    store.commit(Lsn::new(KEYS)).unwrap();
    let reader = store.reader();
    let is_over = AtomicBool::new(false);
    let mut newest: Vec<u64> = (1..=KEYS).collect();
    std::thread::scope(|scope| {
        let look = || {
            let mut random = StdRng::seed_from_u64(1);
            let mut looks = 0;
            while !is_over.load(Ordering::Relaxed) {
                let snapshot = reader.snapshot().unwrap();
                let number = random.random_range(0..KEYS - SCANNED);
                let range = key(number)..key(number + SCANNED);
                let bounds = (Bound::Included(&range.start[..]), Bound::Excluded(&range.end[..]));
                let scanned: Vec<_> = snapshot.scan(tree, bounds).map(|item| item.unwrap()).collect();
                assert_eq!(scanned.len() as u64, SCANNED, "no key is missing, and none comes twice");
                for (number, (found, version)) in (number..).zip(scanned) {
                    snapshot.prefetch(tree, &key(number + 50));
                    assert_eq!(found, key(number));
                    assert!(version.lsn <= snapshot.lsn() && version.value == dated(version.lsn.as_u64()));
                    assert_eq!(snapshot.get(tree, &found).unwrap(), Some(version), "the same twice");
                }
                looks += 1;
            }
            looks
        };
        let readers = [scope.spawn(look), scope.spawn(look)];
        let mut random = StdRng::seed_from_u64(2);
        let mut lsn = KEYS;
        for update in 1..=60_000_u64 {
            lsn += 1;
            let number = random.random_range(0..KEYS);
            store.put(tree, &key(number), Lsn::new(lsn), &dated(lsn)).unwrap();
            newest[number as usize] = lsn;
            let number = random.random_range(0..KEYS);
            let latest = store.latest(tree, &key(number)).unwrap().unwrap();
            assert_eq!(latest.lsn.as_u64(), newest[number as usize]);
            if update % 10 == 0 {
                store.set_horizon(Lsn::new(lsn.saturating_sub(2000)));
                store.commit(Lsn::new(lsn)).unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 100));
    });
    let all: Vec<_> = store.scan(tree, .., store.committed()).unwrap().map(|item| item.unwrap().1).collect();
    assert_eq!(all.iter().map(|version| version.lsn.as_u64()).collect::<Vec<_>>(), newest);
    store.check().unwrap();
    assert!(store.stats().pending > 30_000, "{:?}", store.stats());
}

/// A store with nearly all leaves on disk, in which nothing happens by itself.
fn larger_than_memory(dir: &Path, keys: u64, options: Options) -> (Store, Tree, u64) {
    let (mut store, tree) = open(dir, Options { background: false, ..options });
    let lsn = load(&mut store, tree, keys);
    store.checkpoint().unwrap();
    for number in (0..keys).step_by(40) {
        store.latest(tree, &key(number)).unwrap();
    }
    (store, tree, lsn)
}

/// A pending version fits when it goes into its leaf, although later changes have filled the file.
#[test]
fn what_does_not_wait_for_its_leaf_fits_under_the_limit() {
    const KEYS: u64 = 100_000;
    let dir = scratch();
    let limited = Options { size_bytes_max: Some(24 << 20), ..options() };
    let (mut store, tree, mut lsn) = larger_than_memory(dir.path(), KEYS, limited);
    // Each of six leaves gets more versions than it has room for.
    for number in 1..=60_u64 {
        lsn += 1;
        let between = [key(number / 10 * 1000), number.to_be_bytes().to_vec()].concat();
        store.put(tree, &between, Lsn::new(lsn), &[b'v'; 60]).unwrap();
    }
    assert!(store.stats().pending > 50, "{:?}", store.stats());
    for bytes in [20_000, 4000] {
        let refused = (0..10_000_u64).find_map(|number| {
            lsn += 1;
            store.put(tree, &key(1_000_000 + number), Lsn::new(lsn), &vec![b'v'; bytes]).err()
        });
        assert!(refused.unwrap().is_full());
    }
    store.commit(Lsn::new(lsn)).unwrap();
    store.checkpoint().unwrap();
    store.check().unwrap();
    assert!(store.stats().file_bytes <= 24 << 20);
    let end = key(1_000_000);
    let small = (Bound::Unbounded, Bound::Excluded(&end[..]));
    assert_eq!(store.scan(tree, small, Lsn::new(lsn)).unwrap().count() as u64, KEYS + 60);
}

/// Within a batch, a version may be older than one that is in its leaf already. It does not hide
/// the newer one.
#[test]
fn an_older_version_of_a_batch_does_not_hide_a_newer_one() {
    let dir = scratch();
    let (mut store, tree, lsn) =
        larger_than_memory(dir.path(), 20_000, Options { cache_bytes: 1 << 18, ..options() });
    store.put(tree, &key(7), Lsn::new(lsn + 10), b"newer").unwrap();
    store.checkpoint().unwrap();
    for number in 1000..20_000 {
        store.latest(tree, &key(number)).unwrap();
    }
    store.put(tree, &key(7), Lsn::new(lsn + 5), b"older").unwrap();
    assert_eq!(store.latest(tree, &key(7)).unwrap().unwrap().value, b"newer");
    assert_eq!(store.get(tree, &key(7), Lsn::new(lsn + 9)).unwrap().unwrap().value, b"older");
}
