//! Recorded streams of every major, as they are and damaged. Reading gives what the bytes say, or
//! an error.
//!
//! `cargo x corpus` records them anew. A failure prints the recording and the seed of its case.
//! `PGSLUICE_MUTATIONS` sets the number of cases; a smoke run has time for few.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod oracle;
#[allow(dead_code, reason = "the assembler's tests use more of it")]
mod recorded;
mod weigh;

use std::collections::BTreeSet;

use recorded::{cases, damage, random, recorded};

/// The memory that reading may hold at once: a relation's columns are larger than their
/// descriptions.
fn bound(bytes: usize) -> usize {
    bytes * 32 + (4 << 10)
}

#[test]
fn recordings_are_read_as_they_were_sent() {
    let mut kinds = BTreeSet::new();
    for recording in recorded() {
        assert!(oracle::stream(&recording.bytes) > 50, "{}", recording.name);
        for (message, in_stream) in recording.messages() {
            let read = oracle::message(&message, in_stream);
            assert!(read.is_some(), "{}: {message:?}", recording.name);
            kinds.insert(char::from(message[0]));
        }
    }
    // All messages of pgoutput except ROLLBACK PREPARED of a streamed transaction, which needs no
    // reading.
    assert_eq!(kinds.iter().collect::<String>(), "ABCDEIKMOPRSTUYbcpr");
}

/// Changes any byte of any message.
#[test]
fn a_changed_byte_is_an_error_or_another_value() {
    let (mut errors, mut values) = (0, 0);
    for recording in recorded() {
        for (message, in_stream) in recording.messages() {
            for at in 0..message.len().min(400) {
                for change in [0x01, 0x80, 0xff, message[at]] {
                    let mut changed = message.to_vec();
                    changed[at] ^= change;
                    let held = weigh::most_held(|| match oracle::message(&changed, in_stream) {
                        Some(_) => values += 1,
                        None => errors += 1,
                    });
                    assert!(held < bound(changed.len()), "{}: {held} bytes for {changed:?}", recording.name);
                }
            }
        }
    }
    // Both happen. Otherwise the changes do not reach the right places.
    assert!(errors > 10_000 && values > 10_000, "{errors} errors, {values} values");
}

#[test]
fn damaged_messages_are_errors_or_what_they_say() {
    for recording in recorded() {
        for (number, (message, in_stream)) in recording.messages().into_iter().enumerate() {
            for case in 0..cases(60) {
                let seed = (number as u64) << 32 | case;
                let damaged = damage(&message, &mut random(seed));
                let held = weigh::most_held(|| {
                    let read = std::panic::catch_unwind(|| drop(oracle::message(&damaged, in_stream)));
                    assert!(read.is_ok(), "{}: seed {seed}", recording.name);
                });
                assert!(held < bound(damaged.len()), "{}: {held} bytes, seed {seed}", recording.name);
            }
        }
    }
}

#[test]
fn damaged_streams_are_taken_apart_to_the_damage() {
    for recording in recorded() {
        for seed in 0..cases(150) {
            let damaged = damage(&recording.bytes, &mut random(seed));
            let held = weigh::most_held(|| {
                let read = std::panic::catch_unwind(|| oracle::stream(&damaged));
                assert!(read.is_ok(), "{}: seed {seed}", recording.name);
            });
            assert!(held < bound(damaged.len()), "{}: {held} bytes, seed {seed}", recording.name);
        }
    }
}

/// A length beyond the bytes that are there is not believed.
#[test]
fn a_length_beyond_the_input_allocates_nothing() {
    let messages: [&[u8]; 5] = [
        b"I\0\0\x40\0N\xff\xff",
        b"I\0\0\x40\0N\0\x01t\x7f\xff\xff\xff",
        b"R\0\0\x40\0s\0t\0d\xff\xff",
        b"T\xff\xff\xff\xff\0",
        b"M\0\0\0\0\0\0\0\0\0p\0\xff\xff\xff\xff",
    ];
    for message in messages {
        let held = weigh::most_held(|| assert!(oracle::message(message, false).is_none()));
        assert!(held < 1 << 10, "{held} bytes for {message:?}");
    }
    let frame = [b"d".as_slice(), &(1_u32 << 30).to_be_bytes(), b"w"].concat();
    let held = weigh::most_held(|| assert_eq!(oracle::stream(&frame), 0));
    assert!(held < 1 << 10, "{held} bytes");
}
