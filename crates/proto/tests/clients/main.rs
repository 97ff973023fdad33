//! What clients send to a server, as it is and damaged: first packets, replication commands, SCRAM.
//!
//! The fuzz targets `startup`, `command` and `scram` begin with the same [`seeds`] and ask the same
//! [`oracle`]. `PGSLUICE_MUTATIONS` sets the number of cases, as for `mutations`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod oracle;
#[path = "../mutations/recorded.rs"]
#[allow(dead_code, reason = "the recordings are a server's")]
mod recorded;
mod seeds;

use recorded::{cases, damage, random};

/// Every seed as it is, and damaged in many ways. Returns how many are what they claim to be: of
/// the seeds, and of the damaged.
fn each(seeds: &[Vec<u8>], is_fine: impl Fn(&[u8]) -> bool + std::panic::RefUnwindSafe) -> [usize; 2] {
    let whole = seeds.iter().filter(|seed| is_fine(seed)).count();
    let mut damaged = 0;
    for (number, seed) in seeds.iter().enumerate() {
        for case in 0..cases(2_000) {
            let case = (number as u64) << 32 | case;
            let bytes = damage(seed, &mut random(case));
            let read = std::panic::catch_unwind(|| is_fine(&bytes));
            assert!(read.is_ok(), "seed {case}: {}", bytes.escape_ascii());
            damaged += usize::from(read.unwrap());
        }
    }
    [whole, damaged]
}

#[test]
fn first_packets_are_read_or_refused() {
    let seeds = seeds::startup();
    let [whole, damaged] = each(&seeds, oracle::startup);
    assert_eq!(whole, seeds.len());
    assert!(damaged > 0);
}

#[test]
fn commands_are_read_or_refused() {
    let seeds = seeds::commands();
    let of = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok_and(|text| oracle::command(text).is_some());
    let [whole, damaged] = each(&seeds, of);
    assert_eq!(whole, seeds.len());
    assert!(damaged > 0);
}

/// Without the password, no message is accepted as the last one.
#[test]
fn exchanges_without_the_password_fail() {
    let seeds = seeds::scram();
    let [begun, damaged] = each(&seeds, oracle::scram);
    assert_eq!(begun, seeds.len());
    assert!(damaged > 0);
}
