//! A spool that fails: an error that names the transaction, and never a transaction without one of
//! its rows.

use std::panic::AssertUnwindSafe;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use txn::reorder::{Options, ReorderBuffer};
use txn::{DirSpool, Spool};

use crate::drive::{drain, drive, options, take, try_drive};
use crate::seen::Watcher;
use crate::spools::{Fault, Files, MemorySpool};
use crate::world::{Habits, World};

fn small() -> Habits {
    Habits { sessions: 3, acts: 150, ..Habits::default() }
}

fn limited(work_mem_bytes: usize, streaming: bool) -> Options {
    Options { work_mem_bytes, streaming, ..options(&small()) }
}

/// Checks that everything before the error is right.
fn assert_beginning(watched: &[crate::seen::Seen], world: &World, of: &str) {
    let expected = &world.expected[..watched.len().min(world.expected.len())];
    crate::assert_same(watched, expected, of);
}

#[test]
fn every_failing_call_of_the_spool_is_an_error() {
    let mut failed = std::collections::BTreeMap::new();
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let world = World::new(&mut random, &small());
        for fault in [Fault::Full, Fault::Short, Fault::Unreadable, Fault::BadSector, Fault::Stuck] {
            for at in [0, 1, 2, 5, 9, random.random_range(10..60)] {
                for limit in [0, 1_500] {
                    let files = Files::default();
                    let spool = MemorySpool::faulty(files.clone(), fault, at);
                    let (driven, end) = try_drive(&world, limited(limit, seed % 3 == 0), Box::new(spool));
                    let of = format!("seed {seed}, {fault:?} at {at}, limit {limit}");
                    assert_beginning(&driven.seen, &world, &of);
                    let Err(error) = end else {
                        // The call never came, or what was not written was never read.
                        crate::assert_same(&driven.seen, &world.expected, &of);
                        continue;
                    };
                    assert!(error.is_disk(), "{of}: {error}");
                    let text = error.to_string();
                    assert!(text.contains("transaction"), "{text}");
                    *failed.entry(format!("{fault:?}")).or_insert(0) += 1;
                }
            }
        }
    }
    assert_eq!(failed.len(), 5, "{failed:?}");
    assert!(failed.values().all(|count| *count > 20), "{failed:?}");
}

/// Damages files between writing and reading.
#[test]
fn every_damage_to_a_spool_file_is_noticed() {
    let mut noticed = 0;
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let world = World::new(&mut random, &Habits { acts: 90, ..small() });
        let files = Files::default();
        let spool = MemorySpool::new(files.clone());
        let mut buffer = ReorderBuffer::new(limited(0, false), Box::new(spool));
        let mut watcher = Watcher::default();
        let damage_at = random.random_range(0..world.steps.len());
        let mut damaged = None;
        let mut end = Ok(());
        for (number, step) in world.steps.iter().enumerate() {
            if number >= damage_at && damaged.is_none() {
                files.change(|files| damaged = damage(files, &mut random));
            }
            let run =
                AssertUnwindSafe(|| take(&mut buffer, step).and_then(|()| drain(&mut buffer, &mut watcher)));
            end = std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("seed {seed}: {damaged:?}"));
            if end.is_err() {
                break;
            }
        }
        let of = format!("seed {seed}: {damaged:?}");
        assert_beginning(&watcher.seen, &world, &of);
        match end {
            // The transaction never came out.
            Ok(()) => crate::assert_same(&watcher.seen, &world.expected, &of),
            Err(error) => {
                assert!(error.is_disk(), "{of}: {error}");
                assert!(error.to_string().contains("transaction"), "{error}");
                noticed += 1;
            }
        }
    }
    assert!(noticed > 100, "{noticed}");
}

/// Damages a bit, the end or a part in the middle, or swaps in another file's contents.
fn damage(
    files: &mut std::collections::HashMap<base::Xid, Vec<u8>>,
    random: &mut StdRng,
) -> Option<(base::Xid, &'static str)> {
    let mut names: Vec<_> = files.keys().copied().collect();
    names.sort_by_key(|xid| xid.0);
    let name = *names.get(random.random_range(0..names.len().max(1)))?;
    let other = names.iter().find(|other| **other != name).map(|other| files[other].clone());
    let file = files.get_mut(&name).unwrap();
    let at = random.random_range(0..file.len());
    let how = match random.random_range(0..5) {
        0 => {
            file[at] ^= 1 << random.random_range(0..8);
            "a bit"
        }
        1 => {
            file.truncate(at);
            "cut short"
        }
        2 => {
            file.remove(at);
            "a byte is missing"
        }
        3 => {
            let twice = file.clone();
            file.extend_from_slice(&twice);
            "twice"
        }
        _ => {
            *file = other?;
            "another's"
        }
    };
    Some((name, how))
}

/// A process that dies leaves its files. The next one removes them and reads the WAL again.
#[test]
fn a_crash_leaves_files_that_the_next_start_removes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spool");
    let count = || std::fs::read_dir(&path).unwrap().count();
    let mut random = StdRng::seed_from_u64(7);
    let world = World::new(&mut random, &small());
    let mut buffer = ReorderBuffer::new(limited(0, false), Box::new(DirSpool::open(path.clone()).unwrap()));
    let mut watcher = Watcher::default();
    let mut most = 0;
    for step in &world.steps {
        take(&mut buffer, step).unwrap();
        drain(&mut buffer, &mut watcher).unwrap();
        most = most.max(count());
        if count() > 1 {
            break;
        }
    }
    assert!(most > 1, "several transactions were spilled");
    std::mem::forget(buffer);
    assert_eq!(count(), most, "nobody has cleaned up");
    let spool: Box<dyn Spool> = Box::new(DirSpool::open(path.clone()).unwrap());
    assert_eq!(count(), 0);
    let (driven, end) = try_drive(&world, limited(0, false), spool);
    end.unwrap();
    crate::assert_same(&driven.seen, &drive(&world, limited(usize::MAX, false)).seen, "again");
    assert_eq!(count(), 0, "every transaction has ended");
}

/// The error of a real disk names the file.
#[test]
fn a_directory_that_is_gone_is_an_error_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spool");
    let spool = DirSpool::open(path.clone()).unwrap();
    std::fs::remove_dir(&path).unwrap();
    let world = World::new(&mut StdRng::seed_from_u64(3), &small());
    let (_, end) = try_drive(&world, limited(0, false), Box::new(spool));
    let text = end.unwrap_err().to_string();
    assert!(text.contains("spooling open transaction") && text.contains(".spool"), "{text}");
}
