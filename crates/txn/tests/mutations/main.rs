//! Recorded streams of every major through the assembler, as they are and damaged, compared with a
//! simple model.
//!
//! The assembler and the model see the same transactions, up to the same error, whatever is done to
//! the messages. The tests in `proto` show that a message is what its bytes say. A failure prints
//! the recording and the seed of its case. `PGSLUICE_MUTATIONS` sets the number of cases.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod beside;
mod model;
#[path = "../../../proto/tests/mutations/recorded.rs"]
#[allow(dead_code, reason = "the reader's tests use more of it")]
mod recorded;

use std::collections::HashMap;

use beside::{agree, assembled};
use bytes::Bytes;
use model::Seen;
use rand::Rng;
use recorded::{Recorded, cases, damage, random, recorded};

fn streams() -> impl Iterator<Item = (Recorded, Vec<Bytes>)> {
    recorded().into_iter().filter(|recording| !recording.is_two_phase()).map(|recording| {
        let messages = recording.messages().into_iter().map(|(message, _)| message).collect();
        (recording, messages)
    })
}

#[test]
fn recordings_of_one_major_hold_the_same_rows_however_they_were_asked_for() {
    let mut rows = HashMap::<String, usize>::new();
    for (recording, messages) in streams() {
        assert!(!agree(&messages, recording.is_binary(), &recording.name));
        let (seen, _) = assembled(&messages, recording.is_binary());
        assert!(matches!(seen.last(), Some(Seen::Commit(_))), "{}", recording.name);
        let changes = seen.iter().filter(|seen| matches!(seen, Seen::Row(..) | Seen::Truncate(..))).count();
        assert!(changes > 20, "{}: {changes} changes", recording.name);
        let major = recording.name.split('-').next().unwrap().to_owned();
        assert_eq!(*rows.entry(major).or_insert(changes), changes, "{}", recording.name);
    }
    assert_eq!(rows.len(), 5);
}

#[test]
fn two_phase_messages_are_refused_by_name() {
    for recording in recorded().into_iter().filter(Recorded::is_two_phase) {
        let messages: Vec<Bytes> = recording.messages().into_iter().map(|(message, _)| message).collect();
        let (_, error) = assembled(&messages, false);
        assert!(
            error.is_some_and(|error| error.to_string().contains("two-phase message")),
            "{}",
            recording.name
        );
    }
}

#[test]
fn binary_values_that_were_not_asked_for_are_refused() {
    for (recording, messages) in streams().filter(|(recording, _)| recording.is_binary()) {
        let (_, error) = assembled(&messages, false);
        let error = error.expect("an error").to_string();
        assert!(error.contains("a binary value that was not asked for"), "{}: {error}", recording.name);
    }
}

#[test]
fn a_damaged_message_is_an_error_or_what_its_bytes_say() {
    let (mut wrong, mut all) = (0, 0);
    for (recording, messages) in streams() {
        for seed in 0..cases(400) {
            let mut random = random(seed);
            let mut damaged = messages.clone();
            let which = random.random_range(0..damaged.len());
            damaged[which] = damage(&damaged[which], &mut random).into();
            wrong += u64::from(agree(
                &damaged,
                recording.is_binary(),
                &format!("{}, seed {seed}", recording.name),
            ));
            all += 1;
        }
    }
    assert!(wrong > all / 4, "{wrong} of {all} are errors: the damage does not reach what it should");
}

/// A commit is announced before its changes come, so another commit cannot be taken for it.
#[test]
fn a_changed_position_or_time_of_a_commit_is_noticed() {
    for (recording, messages) in streams() {
        for (which, message) in messages.iter().enumerate().filter(|(_, message)| message[0] == b'C') {
            for at in (2..10).chain(18..26) {
                let mut changed = messages.clone();
                let mut bytes = message.to_vec();
                bytes[at] ^= 0x10;
                changed[which] = bytes.into();
                let (_, error) = assembled(&changed, recording.is_binary());
                let error = error.expect("an error").to_string();
                assert!(error.contains("was announced"), "{}: {error}", recording.name);
            }
        }
    }
}

#[test]
fn lost_doubled_and_swapped_messages_make_no_transaction_of_two() {
    for (recording, messages) in streams() {
        for seed in 0..cases(400) {
            let mut random = random(seed);
            let mut damaged = messages.clone();
            for _ in 0..random.random_range(1..=3) {
                let at = random.random_range(0..damaged.len() - 1);
                match random.random_range(0..4) {
                    0 => drop(damaged.remove(at)),
                    1 => damaged.insert(at, damaged[at].clone()),
                    2 => damaged.swap(at, at + 1),
                    _ => damaged.truncate(at + 2),
                }
            }
            agree(&damaged, recording.is_binary(), &format!("{}, seed {seed}", recording.name));
        }
    }
}
