//! The horizon and the memory in a world that does its worst.
//!
//! The publisher's commits take long between their time and their record. There are prepared
//! transactions, and standbys that go away. Apply workers forward what a third server wrote.
//! Everybody crashes, capture loses WAL, and clocks step forward and back at both ends. Tables and
//! pipelines come, and some pipelines commit out of order.
//!
//! Each round is one seed, which is printed; `PGSLUICE_HORIZON_SEED=n` repeats it, and
//! `PGSLUICE_HORIZON_ROUNDS=n` runs more of them. The checker knows what really happened and not
//! what the horizon believes. A canary breaks each rule in turn and must be caught.

#![allow(clippy::unwrap_used)]

mod check;
#[path = "../memory/disk.rs"]
#[allow(dead_code, reason = "shared with the walks of the memory, which need more of it")]
mod disk;
mod publisher;
mod sabotage;
mod target;
mod wiring;
mod world;

use sabotage::Sabotage;
use world::World;

const ROUNDS: u64 = 100;
/// Rounds in which a sabotage must show.
const CANARY_ROUNDS: u64 = 1000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn d2_nothing_is_forgotten_too_early_and_everything_in_the_end() {
    let only = number("PGSLUICE_HORIZON_SEED");
    let rounds = only.map_or(number("PGSLUICE_HORIZON_ROUNDS").unwrap_or(ROUNDS), |_| 1);
    let first = only.unwrap_or_else(|| rand::random::<u32>().into());
    println!("PGSLUICE_HORIZON_SEED={first} to {}", first + rounds - 1);
    let (mut moves, mut answers, mut deleted) = (0, 0, 0);
    for seed in first..first + rounds {
        let mut world = World::new(seed, None);
        if let Err(failure) = world.run() {
            panic!("PGSLUICE_HORIZON_SEED={seed}: {failure}");
        }
        moves += world.checker.moves;
        answers += world.checker.answers;
        deleted += world.checker.deleted;
    }
    println!("the horizon moved {moves} times, {answers} updates asked, {deleted} met a deletion");
    assert!(moves > 10 * rounds && answers > 100 * rounds && deleted > rounds, "the rounds did something");
}

/// The round in which a sabotage shows, and how.
fn caught(sabotage: Sabotage) -> Option<(u64, String)> {
    (0..CANARY_ROUNDS).find_map(|seed| Some(seed).zip(World::new(seed, Some(sabotage)).run().err()))
}

#[test]
fn canary_d2_each_rule_that_is_broken_is_found_out() {
    for sabotage in Sabotage::UNSAFE {
        let (seed, failure) = caught(sabotage).unwrap_or_else(|| panic!("{sabotage:?} is found out"));
        println!("{sabotage:?}: seed {seed}: {failure}");
        assert!(!failure.contains("is not forgotten"), "{sabotage:?}: {failure}");
    }
}

#[test]
fn canary_d2_a_horizon_that_stalls_is_found_out() {
    for sabotage in Sabotage::STALLING {
        let (seed, failure) = caught(sabotage).unwrap_or_else(|| panic!("{sabotage:?} is found out"));
        println!("{sabotage:?}: seed {seed}: {failure}");
        assert!(failure.contains("is not forgotten"), "{sabotage:?}: {failure}");
    }
}
