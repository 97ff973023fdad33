//! The store beside a model: an ordered map of versions, with snapshots, horizons, commits, and
//! crashes at any write.
//!
//! Each walk is one seed. A failure prints it. `STORE_SEED=n cargo test -p store --test model`
//! replays that walk alone, and `STORE_SECONDS=n` walks for longer than the default.

#![allow(clippy::unwrap_used)]

mod disk;
mod oracle;
mod stages;
mod walk;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use walk::Walk;

const OPERATIONS: u64 = 20_000;
const WALKS_MIN: u64 = 20;
const SECONDS: u64 = 20;

fn walk(seed: u64) -> Walk {
    Walk::drawn_from(Box::new(StdRng::seed_from_u64(seed)))
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn random_walks_answer_as_the_model_does() {
    let only = number("STORE_SEED");
    let budget = Duration::from_secs(number("STORE_SECONDS").unwrap_or(SECONDS));
    let started = Instant::now();
    let next = AtomicU64::new(only.unwrap_or(0));
    let walk_some = || {
        let (mut operations, mut crashes) = (0, 0);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            // A fixed number of walks first, so that every run makes at least these. Then as many
            // as the time allows.
            let is_over = only.map_or(seed >= WALKS_MIN && started.elapsed() > budget, |only| seed > only);
            if is_over {
                return (operations, crashes);
            }
            let mut walk = walk(seed);
            if let Err(failure) = walk.run(OPERATIONS, false) {
                panic!("seed {seed}: {failure}");
            }
            operations += walk.operations;
            crashes += walk.crashes;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let counts: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let walkers: Vec<_> = (0..threads).map(|_| scope.spawn(walk_some)).collect();
        walkers.into_iter().map(|walker| walker.join().expect("no walk failed")).collect()
    });
    let (operations, crashes) = counts.into_iter().fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
    println!("{operations} operations, {crashes} crashes");
    assert!(only.is_some() || crashes > 100, "the walks met crashes");
}

/// A disk that reports syncs it has not done loses commits. If the checks did not see that, they
/// would see nothing.
#[test]
fn canary_a_disk_that_lies_is_found_out() {
    let found = (0..200).find_map(|seed| walk(seed).run(5_000, true).err().map(|failure| (seed, failure)));
    let (seed, failure) = found.expect("a walk over a lying disk fails");
    println!("seed {seed}: {failure}");
}
