//! Our output compared with the server's, message by message: a random walk, hand-written themes,
//! and canaries.
//!
//! Environment variables: `PGSLUICE_CONFORMANCE_SEED` repeats a walk.
//! `PGSLUICE_CONFORMANCE_MINUTES` makes it long, on each major under test.
//! `PGSLUICE_CONFORMANCE_TOTALS` is the file to which a long walk adds a line, with the commit in
//! `PGSLUICE_CONFORMANCE_COMMIT`. `cargo x conformance` sets them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod canary;
mod census;
mod compare;
mod message;
mod regress;
#[path = "../../../wal/tests/live/server.rs"]
#[allow(dead_code, reason = "the tests of `wal` use the rest")]
mod server;
mod stage;
mod statements;
mod themes;
mod together;
mod told;
mod totals;
mod walk;

use std::time::{Duration, Instant};

use testkit::Major;

use crate::walk::{Walked, walk};

/// The share of the default suite: this many transactions over its majors, however many rounds that
/// takes.
const TRANSACTIONS_MIN: u64 = 10_000;
/// In these numbers of rounds, both kinds of round come as often as traps must occur, and every run
/// ends.
const ROUNDS_MIN: usize = 22;
const ROUNDS_MAX: usize = 200;
const STEPS: usize = 70;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is no number")))
}

fn run(major: Major, seed: u64, minutes: Option<u64>, share: u64) -> (Walked, Option<String>) {
    println!("{major}: PGSLUICE_CONFORMANCE_SEED={seed}");
    let began = Instant::now();
    let go_on = |round: usize, walked: &Walked| match minutes {
        Some(minutes) => began.elapsed() < Duration::from_secs(minutes * 60),
        None => round < ROUNDS_MIN || (walked.transactions < share && round < ROUNDS_MAX),
    };
    let (walked, difference) = walk(major, seed, go_on, STEPS);
    let compared = walked.compared;
    println!(
        "{major}: seed {seed}: {} transactions ({} statements, {} of them failed, {} MB of WAL) in {:?}; compared over \
         all forms: {} transactions ({} streamed), {} rows, {} others; {} differences",
        walked.transactions,
        walked.statements,
        walked.failed,
        walked.wal_bytes >> 20,
        began.elapsed(),
        compared.transactions,
        compared.streamed,
        compared.rows,
        compared.others,
        u8::from(difference.is_some()),
    );
    (walked, difference)
}

/// The walk. Without a seed, it is a different one each time.
#[test]
fn a_random_walk_is_decoded_as_the_server_does() {
    let seed = number("PGSLUICE_CONFORMANCE_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    let minutes = number("PGSLUICE_CONFORMANCE_MINUTES");
    let majors: Vec<_> = Major::under_test().into_iter().filter(|major| *major >= Major::V15).collect();
    let share = TRANSACTIONS_MIN.div_ceil(majors.len() as u64);
    let walks = std::thread::scope(|scope| {
        let start = |major: &Major| {
            let major = *major;
            (major, scope.spawn(move || run(major, seed, minutes, share)))
        };
        let walks: Vec<_> = majors.iter().map(start).collect();
        walks.into_iter().map(|(major, walk)| (major, walk.join().unwrap())).collect::<Vec<_>>()
    });
    let mut all = Walked::default();
    let mut differences = Vec::new();
    for (major, (walked, difference)) in walks {
        if minutes.is_some() {
            totals::add(major, seed, &walked, difference.is_some());
        }
        walked.traps.print(&major.to_string());
        all.absorb(&walked);
        differences.extend(difference);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    all.traps.print("all");
    println!(
        "all: {} transactions, {} compared, {} rows",
        all.transactions, all.compared.transactions, all.compared.rows
    );
    let rare = all.traps.rare();
    assert!(rare.is_empty(), "seed {seed}: traps that occurred too rarely to show anything: {rare:?}");
    assert!(minutes.is_some() || all.transactions >= TRANSACTIONS_MIN, "{} transactions", all.transactions);
}
