//! What readers see, and what they keep from being removed, while the writer goes on.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::Lsn;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use store::Options;

use crate::{churn, key, load, open, options, scratch};

#[test]
fn readers_miss_no_key_while_neighbours_share() {
    const KEYS: u64 = 3000;
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), options());
    let mut lsn = load(&mut store, tree, KEYS);
    let is_over = AtomicBool::new(false);
    let reader = store.reader();
    // Readers look at the place where the writer works.
    let place = AtomicU64::new(0);
    let look = |seed: u64| {
        let mut random = StdRng::seed_from_u64(seed);
        while !is_over.load(Ordering::Relaxed) {
            let snapshot = reader.snapshot().unwrap();
            let start = place.load(Ordering::Relaxed);
            let range = start..(start + 80).min(KEYS);
            let numbers =
                snapshot.scan(tree, (Bound::Included(&*key(range.start)), Bound::Excluded(&*key(range.end))));
            let numbers = numbers.map(|item| item.unwrap().0);
            assert!(numbers.eq(range.clone().map(key)), "a scan as of {} is whole", snapshot.lsn());
            for _ in 0..400 {
                let number = random.random_range(range.clone());
                let version = snapshot.get(tree, &key(number)).unwrap();
                assert!(version.is_some(), "{number} as of {}", snapshot.lsn());
            }
        }
    };
    std::thread::scope(|scope| {
        let readers = [1, 2].map(|seed| {
            scope.spawn({
                let look = &look;
                move || look(seed)
            })
        });
        // Bursts of versions move from place to place, and the leaves around a burst give room on
        // both sides.
        let mut random = StdRng::seed_from_u64(3);
        for burst in 0..6000_u64 {
            let start = random.random_range(0..KEYS - 40);
            place.store(start.saturating_sub(20), Ordering::Relaxed);
            for _ in 0..60 {
                let number = start + random.random_range(0..40);
                let value = vec![b'v'; random.random_range(20..90)];
                store.put(tree, &key(number), Lsn::new(lsn), &value).unwrap();
                lsn += 1;
            }
            store.set_horizon(Lsn::new(lsn.saturating_sub(60)));
            store.commit(Lsn::new(lsn)).unwrap();
            lsn += 1;
            if burst % 100 == 0 && readers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(store.stats().shares > 1000, "{:?}", store.stats());
    store.check().unwrap();
}

#[test]
fn s3_a_version_stays_until_its_successor_is_durable() {
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), options());
    store.put(tree, b"key", Lsn::new(10), b"durable").unwrap();
    // The wanted horizon is above the commit. Then successors fill leaf after leaf.
    store.set_horizon(Lsn::new(1_000_000));
    store.commit(Lsn::new(10)).unwrap();
    for lsn in 11..2000 {
        store.put(tree, b"key", Lsn::new(lsn), &[b'x'; 100]).unwrap();
    }
    // The disk now holds versions that were never committed.
    store.checkpoint().unwrap();
    drop(store);
    let (mut store, tree) = open(dir.path(), options());
    let version = store.latest(tree, b"key").unwrap().unwrap();
    assert_eq!((version.lsn, version.value.as_slice()), (Lsn::new(10), &b"durable"[..]));
    assert_eq!(store.check().unwrap().versions, 1, "what was not committed was taken back");
    // The fences between those leaves named successors that are gone. The leaf of the version
    // becomes full under a horizon above them, and the version must stay.
    store.set_horizon(Lsn::new(2000));
    store.commit(Lsn::new(2000)).unwrap();
    for lsn in 2001..2300 {
        store.put(tree, b"other", Lsn::new(lsn), &[b'x'; 100]).unwrap();
        store.set_horizon(Lsn::new(lsn));
        store.commit(Lsn::new(lsn)).unwrap();
    }
    assert!(store.stats().removed > 200, "leaves were full and cleaned");
    store.sweep_all().unwrap();
    assert_eq!(store.latest(tree, b"key").unwrap().unwrap().lsn, Lsn::new(10));
    store.check().unwrap();
}

#[test]
fn a_reader_pins_only_what_it_sees() {
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), options());
    let lsn = load(&mut store, tree, 1000);
    let snapshot = store.reader().snapshot().unwrap();
    churn(&mut store, tree, 1000, 30_000, 100, lsn);
    store.sweep_all().unwrap();
    // For each key, the version that the reader sees, the newest, and versions that the horizon has
    // not reached.
    assert!(store.check().unwrap().versions <= 2200, "{:?}", store.stats());
    let seen = snapshot.scan(tree, ..).map(|item| item.unwrap().1.lsn.as_u64());
    assert_eq!(seen.collect::<Vec<_>>(), (1..=1000).collect::<Vec<_>>());
}

#[test]
fn readers_see_whole_commits_while_the_writer_goes_on() {
    const ACCOUNTS: u64 = 400;
    let dir = scratch();
    // The cache holds a part of the pages, so that readers meet pages on their way to and from the
    // disk.
    let small =
        Options { cache_bytes: 1 << 18, log_bytes: 1 << 18, checkpoint_pages: 4, ..Options::default() };
    let (mut store, tree) = open(dir.path(), small);
    let is_over = AtomicBool::new(false);
    let total = |snapshot: &store::Snapshot| -> i64 {
        let balance = |item: Result<(_, store::Version), _>| {
            let value = item.unwrap().1.value;
            i64::from_le_bytes(value[..8].try_into().unwrap())
        };
        snapshot.scan(tree, ..).map(balance).sum()
    };
    let reader = store.reader();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut looks = 0;
                    while !is_over.load(Ordering::Relaxed) || looks == 0 {
                        let snapshot = reader.snapshot().unwrap();
                        assert_eq!(total(&snapshot), 0, "as of {}", snapshot.lsn());
                        let again = snapshot.get(tree, &key(7)).unwrap().map(|version| version.lsn);
                        let first = snapshot.get(tree, &key(7)).unwrap().map(|version| version.lsn);
                        assert_eq!(again, first);
                        looks += 1;
                    }
                    looks
                })
            })
            .collect();
        let mut random = StdRng::seed_from_u64(9);
        let mut balances = vec![0_i64; ACCOUNTS as usize];
        let mut lsn = 1;
        for transfer in 0..12_000_u64 {
            let amount = random.random_range(-100..100);
            for amount in [amount, -amount] {
                let account = random.random_range(0..ACCOUNTS);
                balances[account as usize] += amount;
                let mut value = balances[account as usize].to_le_bytes().to_vec();
                // Accounts grow and shrink, and some are on pages of their own.
                value.resize(if account == 3 { 6000 } else { random.random_range(8..200) }, 0);
                store.put(tree, &key(account), Lsn::new(lsn), &value).unwrap();
                lsn += 1;
            }
            if transfer % 60 == 0 {
                store.set_horizon(Lsn::new(lsn.saturating_sub(50)));
                store.commit(Lsn::new(lsn)).unwrap();
                lsn += 1;
            }
            if transfer % 5000 == 4999 {
                store.commit(Lsn::new(lsn)).unwrap();
                store.compact().unwrap();
                lsn += 1;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let looks: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(looks > 0);
    });
    store.check().unwrap();
}
