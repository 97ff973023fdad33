//! The reorder buffer compared with a model that keeps everything in memory. The worlds are made
//! from a seed: sessions with nested savepoints, aborts, crashes, prepared transactions, upserts
//! and large values, interleaved at random.
//!
//! The same transactions come out for every memory limit, streamed or not. A failure prints its
//! seed. `PGSLUICE_REORDER_SEED=n cargo test -p txn --test reorder` replays that world alone, and
//! `PGSLUICE_REORDER_WORLDS=n` makes more of them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod behaviour;
mod drive;
mod faults;
mod recorded;
mod row;
mod seen;
mod spools;
mod world;

use base::Lsn;
use drive::{Driven, drive, options, try_drive};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use seen::Seen;
use spools::{Files, MemorySpool};
use world::{Habits, Step, World};

/// Limits at which nothing fits, next to nothing, some, or all.
const LIMITS: [usize; 5] = [0, 700, 5_000, 60_000, usize::MAX];
const WORLDS: u64 = 60;

fn worlds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("PGSLUICE_REORDER_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("PGSLUICE_REORDER_WORLDS").unwrap_or(WORLDS)).collect(),
    }
}

/// Runs `test` with the habits and the steps of each world. A panic names the seed.
fn each_world(habits: impl Fn(&mut StdRng) -> Habits, test: impl Fn(&mut StdRng, &Habits, &World)) {
    for seed in worlds() {
        let run = || {
            let mut random = StdRng::seed_from_u64(seed);
            let habits = habits(&mut random);
            let world = World::new(&mut random, &habits);
            test(&mut random, &habits, &world);
        };
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
            panic!("world {seed}");
        }
    }
}

/// Reports the first difference, without the equal part before it.
fn assert_same(got: &[Seen], expected: &[Seen], of: &str) {
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got, expected, "{of}: number {index}");
    }
    assert_eq!(got.len(), expected.len(), "{of}");
}

#[test]
fn every_memory_limit_gives_what_the_model_gives() {
    let totals = std::cell::Cell::new((0, 0, 0));
    each_world(
        |random| Habits { late: random.random_bool(0.3), two_phase: random.random(), ..Habits::default() },
        |_, habits, world| {
            for limit in LIMITS {
                let Driven { seen, counters, .. } =
                    drive(world, txn::reorder::Options { work_mem_bytes: limit, ..options(habits) });
                assert_same(&seen, &world.expected, &format!("limit {limit}"));
                assert_eq!(counters.stream_count, 0);
                let (transactions, rows, spills) = totals.get();
                let more: usize = seen.iter().map(|seen| seen.items().len()).sum();
                totals.set((transactions + seen.len(), rows + more, spills + counters.spill_count));
            }
        },
    );
    let (transactions, rows, spills) = totals.get();
    println!("{transactions} transactions, {rows} rows, {spills} spills");
    assert!(rows > 1_000 && spills > 1_000);
}

#[test]
fn what_is_streamed_in_blocks_is_the_same() {
    let blocks = std::cell::Cell::new(0);
    each_world(
        |random| Habits { two_phase: random.random(), ..Habits::default() },
        |_, habits, world| {
            for limit in LIMITS {
                let options =
                    txn::reorder::Options { work_mem_bytes: limit, streaming: true, ..options(habits) };
                let Driven { seen, counters, .. } = drive(world, options);
                assert_same(&seen, &world.expected, &format!("limit {limit}"));
                assert!(counters.stream_count > 0 || limit > 0);
                assert!(counters.stream_count == 0 || limit < usize::MAX);
                blocks.set(blocks.get() + counters.stream_count);
            }
        },
    );
    assert!(blocks.get() > 1_000, "{} blocks", blocks.get());
}

/// Whatever was confirmed, reading begins again at the restart position, and the rest comes out as
/// before.
#[test]
fn from_the_restart_position_the_rest_comes_again() {
    let skipped = std::cell::Cell::new(0);
    each_world(
        |random| Habits { two_phase: random.random(), late: random.random_bool(0.2), ..Habits::default() },
        |random, habits, world| {
            let streaming = !habits.late && random.random();
            let work_mem_bytes = LIMITS[random.random_range(0..LIMITS.len())];
            let whole = txn::reorder::Options { streaming, work_mem_bytes, ..options(habits) };
            let first = drive(world, whole.clone());
            for _ in 0..6 {
                let cut = random.random_range(0..world.steps.len());
                let (restart, position, before) = first.places[cut];
                let steps = world.steps.iter().filter(|step| step.lsn() >= restart).cloned().collect();
                let rest = World { steps, expected: world.expected[before..].to_vec() };
                let again = drive(&rest, txn::reorder::Options { start: position, ..whole.clone() });
                assert_same(&again.seen, &rest.expected, &format!("from step {cut}"));
                skipped.set(skipped.get() + world.steps.len() - rest.steps.len());
            }
        },
    );
    assert!(skipped.get() > 1_000, "only {} steps were not read again", skipped.get());
}

/// A canary: a buffer that loses a row, or keeps rows of an aborted subtransaction, is noticed.
#[test]
fn canary_a_lost_or_a_revived_row_is_found_out() {
    let (mut lost, mut revived) = (0, 0);
    let habits = Habits::default();
    let is_found_out = |steps: Vec<Step>, world: &World| {
        let changed = World { steps, expected: Vec::new() };
        let spool = Box::new(MemorySpool::new(Files::default()));
        let (driven, end) = try_drive(&changed, options(&habits), spool);
        end.is_err() || driven.seen != world.expected
    };
    for seed in 0..20 {
        let world = World::new(&mut StdRng::seed_from_u64(seed), &habits);
        // The last row that comes out.
        let rows = world.expected.iter().flat_map(Seen::items).filter(|item| item.lsn.is_valid());
        let last = rows.map(|item| item.lsn).max().unwrap();
        let is_row = |step: &Step| step.lsn() == last && !matches!(step, Step::Assign { .. });
        let mut without = world.steps.clone();
        without.remove(world.steps.iter().rposition(is_row).unwrap());
        lost += usize::from(is_found_out(without, &world));
        let mut kept = world.steps.clone();
        kept.retain(|step| !matches!(step, Step::Abort(end) if !end.is_top));
        revived += usize::from(is_found_out(kept, &world));
    }
    // An aborted subtransaction may have written nothing.
    assert!(lost == 20 && revived > 15, "{lost} and {revived} of 20");
}

#[test]
fn a_world_ends_with_nothing_left() {
    each_world(
        |_| Habits { late: true, ..Habits::default() },
        |_, habits, world| {
            for limit in LIMITS {
                let options = txn::reorder::Options { work_mem_bytes: limit, ..options(habits) };
                let driven = drive(world, options);
                assert_eq!(driven.open_count, 0);
                assert_eq!(driven.memory_bytes, 0);
                assert_eq!(driven.files_left, 0);
                let (restart, position, _) = *driven.places.last().unwrap();
                assert_eq!(restart, position, "nothing is open");
                assert!(position > Lsn::new(1 << 32));
            }
        },
    );
}
