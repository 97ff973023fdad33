//! The sizes of files and the number of pages under churn, and in queues.

use base::Lsn;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use store::{BottomUp, Options};

use crate::{churn, key, load, open, options, scratch};

#[test]
fn churn_grows_the_file_only_without_bottom_up_deletion() {
    let mut pages = Vec::new();
    for bottom_up in [BottomUp::Full, BottomUp::Restricted, BottomUp::Off] {
        let dir = scratch();
        let (mut store, tree) = open(dir.path(), Options { bottom_up, ..options() });
        let lsn = load(&mut store, tree, 5000);
        let lsn = churn(&mut store, tree, 5000, 30_000, 200, lsn);
        let warm = store.stats().pages;
        churn(&mut store, tree, 5000, 50_000, 200, lsn);
        store.check().unwrap();
        pages.push((warm, store.stats().pages));
    }
    let [full, restricted, off] = pages[..] else { unreachable!() };
    assert!(full.1 * 100 <= full.0 * 105, "{pages:?}");
    assert!(restricted.1 * 5 < off.1, "half the examination finds half as much, and that late: {pages:?}");
    assert!(off.1 > 5 * full.1 && off.1 > off.0 * 3 / 2, "the plain tree keeps every version: {pages:?}");
}

#[test]
fn leaves_stay_nearly_as_full_under_churn_as_they_were_loaded() {
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), options());
    let lsn = load(&mut store, tree, 10_000);
    let loaded = store.stats().pages;
    // On average, more versions wait for the horizon than a leaf has room for beside its keys.
    let lsn = churn(&mut store, tree, 10_000, 200_000, 1200, lsn);
    let churned = store.stats().pages;
    assert!(churned * 5 <= loaded * 6, "{churned} pages after churn, {loaded} loaded");
    churn(&mut store, tree, 10_000, 100_000, 1200, lsn);
    assert!(store.stats().pages * 100 <= churned * 103, "{:?}, {churned} before", store.stats());
    store.check().unwrap();
}

/// Measures the README's table.
#[test]
#[ignore = "a minute, to be built with optimisation; the one before is the same in small"]
fn pages_of_two_hundred_thousand_keys_under_churn() {
    const KEYS: u64 = 200_000;
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), Options { cache_bytes: 192 << 20, ..Options::default() });
    // Multiplication by an odd number is a permutation: neighbours by number are not neighbours in
    // the tree.
    let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let mut keys: Vec<_> = (0..KEYS).map(key).collect();
    keys.sort_unstable();
    for (lsn, chunk) in (1..).zip(keys.chunks(10_000)) {
        for key in chunk {
            store.put(tree, key, Lsn::new(lsn), &[b'v'; 100]).unwrap();
        }
        store.commit(Lsn::new(lsn)).unwrap();
    }
    let loaded = store.stats().pages;
    println!("loaded: {loaded} pages");
    let mut random = StdRng::seed_from_u64(1);
    let first = 10_000;
    for update in 1..=16_000_000 {
        let lsn = first + update;
        let number = random.random_range(0..KEYS);
        store.put(tree, &key(number), Lsn::new(lsn), &[b'v'; 100]).unwrap();
        if update % 1000 == 0 {
            store.set_horizon(Lsn::new(lsn - 10_000));
            store.commit(Lsn::new(lsn)).unwrap();
        }
        if [100_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 16_000_000].contains(&update) {
            println!("{update} updates: {} pages", store.stats().pages);
        }
    }
    assert!(store.stats().pages * 100 <= loaded * 112, "{:?}", store.stats());
    store.check().unwrap();
}

#[test]
fn the_file_takes_little_more_than_its_pages_though_all_of_them_change() {
    let dir = scratch();
    let (mut store, tree) =
        open(dir.path(), Options { cache_bytes: 16 << 20, checkpoint_pages: 64, ..options() });
    let mut lsn = load(&mut store, tree, 30_000);
    for round in 0..4 {
        let written = store.stats().pages_written;
        lsn = churn(&mut store, tree, 30_000, 60_000, 500, lsn);
        store.checkpoint().unwrap();
        let stats = store.stats();
        assert!(stats.pages_written - written > 2 * stats.pages, "{stats:?}");
        // With room for a second copy of each changed page, the file was nearly twice as large.
        let (file, pages) = (stats.file_bytes, stats.pages * 4096);
        assert!(file * 10 <= pages * 12, "round {round}: {file} bytes for {pages} of pages");
    }
    store.check().unwrap();
}

#[test]
fn s2_increasing_keys_deleted_in_order_keep_the_size() {
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), options());
    let waiting = 2000;
    let mut sizes = Vec::new();
    let mut lsn = 1;
    for number in 0..60_000_u64 {
        store.put(tree, &key(number), Lsn::new(lsn), &[b'q'; 60]).unwrap();
        if number >= waiting {
            store.delete(tree, &key(number - waiting), Lsn::new(lsn + 1), b"done").unwrap();
        }
        lsn += 2;
        if number % 200 == 199 {
            store.set_horizon(Lsn::new(lsn.saturating_sub(500)));
            store.commit(Lsn::new(lsn)).unwrap();
            lsn += 1;
        }
        if number % 1000 == 999 {
            sizes.push(store.stats().pages);
        }
    }
    store.check().unwrap();
    // No leaf on the left is ever full again. Without sweeping, there were twenty times as many
    // pages.
    let (early, late) = sizes[10..].split_at(25);
    assert!(late.iter().max().unwrap() * 10 <= early.iter().max().unwrap() * 11, "{sizes:?}");
}

/// The left end of a long queue is swept as it becomes removable, not once in a pass over the whole
/// queue.
#[test]
fn s2_a_long_queue_keeps_little_that_nobody_needs() {
    const WAITING: u64 = 20_000;
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), options());
    let lsn = load(&mut store, tree, WAITING);
    let loaded = store.stats().pages;
    let mut most = 0;
    for (number, lsn) in (lsn..lsn + 60_000).enumerate() {
        let number = number as u64;
        store.put(tree, &key(number + WAITING), Lsn::new(lsn), &[b'v'; 60]).unwrap();
        store.delete(tree, &key(number), Lsn::new(lsn), b"").unwrap();
        if number % 200 == 199 {
            store.set_horizon(Lsn::new(lsn.saturating_sub(500)));
            store.commit(Lsn::new(lsn)).unwrap();
            most = most.max(store.stats().pages);
        }
    }
    store.check().unwrap();
    // The horizon keeps a thirtieth of the versions, in leaves that deletions split.
    assert!(most * 100 <= loaded * 108, "{most} pages, {loaded} loaded: {:?}", store.stats());
    let kept = WAITING + 2 * 700;
    assert!(store.stats().versions * 100 <= kept * 101, "{:?}", store.stats());
}

/// If a key's history fills leaves of its own, everything behind the horizon is given back as the
/// history grows.
#[test]
fn s2_a_key_that_changes_all_the_time_leaves_no_history_behind() {
    const KEYS: u64 = 30_000;
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), options());
    let first = load(&mut store, tree, KEYS);
    let loaded = store.stats().pages;
    for lsn in first..first + 100_000 {
        // Ten keys that are far from each other.
        store.put(tree, &key(lsn % 10 * (KEYS / 10)), Lsn::new(lsn), &[b'v'; 60]).unwrap();
        if lsn % 200 == 0 {
            store.set_horizon(Lsn::new(lsn.saturating_sub(2000)));
            store.commit(Lsn::new(lsn)).unwrap();
        }
    }
    store.check().unwrap();
    let stats = store.stats();
    let kept = KEYS + 2200;
    assert!(stats.versions * 100 <= kept * 102, "{stats:?}");
    assert!(stats.pages * 100 <= loaded * 112, "{loaded} pages loaded: {stats:?}");
}

#[test]
fn a_reader_that_pins_the_horizon_costs_growth_only_while_it_does() {
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), options());
    let lsn = load(&mut store, tree, 3000);
    let lsn = churn(&mut store, tree, 3000, 6000, 300, lsn);
    // The horizon stands still during two rounds of churn.
    let lsn = churn(&mut store, tree, 3000, 6000, u64::MAX, lsn);
    let pinned = store.stats().pages;
    store.set_horizon(Lsn::new(lsn - 300));
    store.commit(Lsn::new(lsn)).unwrap();
    let lsn = lsn + 1;
    let lsn = churn(&mut store, tree, 3000, 30_000, 300, lsn);
    assert!(store.stats().pages <= pinned, "ten passes later: {} of {pinned}", store.stats().pages);
    drop(store.reader().snapshot().unwrap());
    let before = store.stats().file_bytes;
    store.compact().unwrap();
    let after = store.stats();
    assert!(after.file_bytes < before);
    assert_eq!(std::fs::metadata(dir.path().join("versions")).unwrap().len(), after.file_bytes);
    let fresh = scratch();
    let (mut loaded, in_order) = open(fresh.path(), options());
    load(&mut loaded, in_order, 3000);
    loaded.compact().unwrap();
    let ideal = loaded.stats().file_bytes;
    assert!(
        after.file_bytes * 100 <= ideal * 115,
        "{} after, {ideal} when loaded in order",
        after.file_bytes
    );
    churn(&mut store, tree, 3000, 1000, 300, lsn);
    store.check().unwrap();
}
