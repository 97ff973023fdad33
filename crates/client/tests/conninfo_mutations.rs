//! Connection strings with characters lost, changed or added: never a panic, and no password in
//! what is printed.
//!
//! `PGSLUICE_MUTATIONS` runs more cases than a smoke run has time for.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use client::ConnInfo;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Stands in the corpus wherever a password does.
const SECRET: &str = "s3cr3t";

fn corpus() -> impl Iterator<Item = &'static str> {
    include_str!("corpus/conninfo.txt").lines()
}

/// A process without any of libpq's variables.
fn bare(name: &str) -> Option<String> {
    (name == "HOME").then(|| "/nonexistent".to_owned())
}

/// Reads `text`; whether it is a connection string.
fn read(text: &str) -> bool {
    let read = ConnInfo::parse_with(text, &bare);
    let printed = match &read {
        Ok(info) => format!("{} {info:?}", info.describe()),
        Err(error) => {
            assert!(error.is_configuration(), "{text}: {error}");
            error.to_string()
        }
    };
    // In damaged ones it may have become a name like any other.
    assert!(!corpus().any(|whole| whole == text) || !printed.contains(SECRET), "{text}: {printed}");
    read.is_ok()
}

fn damage(text: &str, random: &mut StdRng) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    const ODD: [char; 16] =
        ['\'', '\\', '=', ' ', '%', ':', '/', '@', '?', '&', ',', '[', ']', '\0', 'ü', '9'];
    for _ in 0..random.random_range(1..=3) {
        if letters.is_empty() {
            break;
        }
        let at = random.random_range(0..letters.len());
        match random.random_range(0..4) {
            0 => drop(letters.remove(at)),
            1 => letters[at] = ODD[random.random_range(0..ODD.len())],
            2 => letters.insert(at, ODD[random.random_range(0..ODD.len())]),
            _ => letters.truncate(at),
        }
    }
    letters.into_iter().collect()
}

#[test]
fn damaged_connection_strings_are_read_or_refused() {
    let cases = std::env::var("PGSLUICE_MUTATIONS").ok().filter(|text| !text.is_empty());
    let cases: u64 = cases.map_or(3_000, |text| text.parse().expect("PGSLUICE_MUTATIONS is a number"));
    let (mut well, mut refused) = (0, 0);
    for text in corpus() {
        for seed in 0..cases {
            let damaged = damage(text, &mut StdRng::seed_from_u64(seed));
            let read = std::panic::catch_unwind(|| read(&damaged));
            match read.unwrap_or_else(|_| panic!("seed {seed} of {text}: {damaged:?}")) {
                true => well += 1,
                false => refused += 1,
            }
        }
    }
    // Both happen, or the damage does not reach what it should.
    assert!(well > cases && refused > cases, "{well} read, {refused} refused");
}

#[test]
fn the_corpus_is_made_of_connection_strings() {
    assert!(corpus().count() >= 10);
    let refused: Vec<&str> = corpus().filter(|text| !read(text)).collect();
    assert_eq!(refused, ["service=none passfile=/nonexistent host=h user=u"], "the service does not exist");
}
