//! The comparison must see what it is there for: a server's output that was changed in one place is
//! a difference.

use testkit::Major;

use crate::compare::{compare, compare_sides};
use crate::message::{Message, Sent, read};
use crate::stage::{DB, Form, PLAIN, Stage, TWO_PHASE, builder};
use crate::told::Side;

const PREPARE: &str = "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id int PRIMARY KEY, a text, m mood); \
    CREATE TABLE k (id int PRIMARY KEY, a text); ALTER TABLE k REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR ALL TABLES; \
    SELECT pg_replication_origin_create('elsewhere')";

const WORK: [&str; 9] = [
    "INSERT INTO t VALUES (1, 'one', 'ok'), (2, NULL, 'sad')",
    "BEGIN; INSERT INTO k VALUES (1, 'x'); SAVEPOINT a; INSERT INTO k VALUES (2, 'y'); ROLLBACK TO a; UPDATE k SET a = 'z'; COMMIT",
    "SELECT pg_logical_emit_message(false, 'p', 'aside'), pg_logical_emit_message(true, 'p', 'inside')",
    "UPDATE t SET id = 3 WHERE id = 1; DELETE FROM k",
    "TRUNCATE t, k RESTART IDENTITY CASCADE",
    "BEGIN; INSERT INTO t SELECT n, repeat('x', 1900), 'ok' FROM generate_series(10, 30) n; SAVEPOINT a; \
     INSERT INTO k SELECT n, repeat('y', 1900) FROM generate_series(10, 30) n; ROLLBACK TO a; \
     INSERT INTO k SELECT n, repeat('y', 1900) FROM generate_series(410, 440) n; COMMIT",
    "SELECT pg_replication_origin_session_setup('elsewhere'); INSERT INTO k VALUES (5, 'from there')",
    "BEGIN; INSERT INTO k VALUES (6, 'prepared'); PREPARE TRANSACTION 'g'",
    "COMMIT PREPARED 'g'",
];

/// The server's output, whole and in blocks.
fn outputs(major: Major) -> Vec<(&'static str, Vec<Sent>)> {
    let cluster = builder(major).start().unwrap();
    cluster.sql(DB, PREPARE).unwrap();
    let stage = Stage::new(cluster, &[]);
    for sql in WORK {
        stage.cluster.sql(DB, sql).unwrap();
    }
    let mut forms = vec![
        Form::new("whole", PLAIN, 1, &["p"]).messages(),
        Form::new("streamed", PLAIN, 2, &["p"]).messages().memory(0).streaming(output::Streaming::On),
    ];
    // Slots with two-phase commit came with 15.
    if major > Major::V14 {
        forms.push(Form::new("two-phase", TWO_PHASE, 3, &["p"]).messages().binary());
    }
    forms.iter().map(|form| (form.name, stage.peek(form).unwrap())).collect()
}

/// Whether `ours` passes for `theirs`.
fn passes(ours: &[Sent], theirs: &[Sent]) -> bool {
    let (mut our_side, mut side) = (Side::default(), Side::server());
    side.read(theirs).unwrap();
    our_side.read(ours).is_ok()
        && compare(&our_side.take(), &side.take())
            .is_ok_and(|compared| compare_sides(&mut our_side, &mut side, &compared.aside).is_ok())
}

/// Whether this is a Relation or Type message, which may be repeated.
fn repeats(sent: &Sent) -> bool {
    matches!(sent.data[0], b'R' | b'Y')
}

/// False for the abort of a subtransaction without anything streamed.
fn takes_back(theirs: &[Sent], at: usize) -> bool {
    let Ok((_, Message::StreamAbort { sub, .. })) = read(&theirs[at].data, false) else { return true };
    let is_of = |sent: &Sent| read(&sent.data, true).is_ok_and(|(of, _)| of == Some(sub));
    theirs[..at].iter().any(is_of)
}

/// Whether a table or type is announced again in the words of an earlier message. A wrong
/// announcement would do no harm then, because no change needs it.
fn is_said_again(theirs: &[Sent], at: usize) -> bool {
    let data = &theirs[at].data;
    let same = |earlier: &Sent| earlier.data[0] == data[0] && earlier.data.ends_with(&data[5..]);
    repeats(&theirs[at]) && theirs[..at].iter().any(same)
}

#[test]
fn each_changed_bit_is_a_difference() {
    for major in Major::in_turn() {
        for (form, theirs) in outputs(major) {
            assert!(passes(&theirs, &theirs), "{form}");
            let mut ours = theirs.clone();
            let mut flipped = 0;
            for at in 0..ours.len() {
                // An abort of a subtransaction without output says nothing.
                if !takes_back(&theirs, at) || is_said_again(&theirs, at) {
                    continue;
                }
                for bit in 0..ours[at].data.len().min(120) * 8 {
                    // In long rows, not every bit of every byte: the bytes are alike.
                    if bit > 240 && bit % 7 != 0 {
                        continue;
                    }
                    ours[at].data[bit / 8] ^= 1 << (bit % 8);
                    let told = || read(&theirs[at].data, false).map(|(_, message)| message);
                    assert!(
                        !passes(&ours, &theirs),
                        "{major}, {form}: bit {bit} of message {at}: {:?}",
                        told()
                    );
                    ours[at].data[bit / 8] ^= 1 << (bit % 8);
                    flipped += 1;
                }
            }
            println!("{major}: {form}: {} messages, {flipped} bits flipped, all noticed", ours.len());
            assert!(flipped > 5_000);
        }
    }
}

#[test]
fn each_message_that_is_lost_doubled_or_elsewhere_is_a_difference() {
    for major in Major::under_test() {
        for (form, theirs) in outputs(major) {
            let changes = theirs.iter().filter(|sent| sent.data[0] == b'I').count();
            assert!(changes > 10, "{form}: {changes}");
            for at in (0..theirs.len()).filter(|at| !repeats(&theirs[*at])) {
                let mut lost = theirs.clone();
                lost.remove(at);
                // A block that ends and goes on in the same place is just a cut of the transaction.
                let is_cut =
                    |at: usize| theirs.get(at).is_some_and(|sent| matches!(sent.data[0], b'S' | b'E'));
                let counts = takes_back(&theirs, at);
                assert_eq!(passes(&lost, &theirs), !counts, "{major}, {form}: lost {at}: {:?}", theirs[at]);
                let mut doubled = theirs.clone();
                doubled.insert(at, theirs[at].clone());
                assert!(!passes(&doubled, &theirs), "{major}, {form}: doubled {at}");
                let next = (at + 1..theirs.len()).find(|next| !repeats(&theirs[*next]));
                if let Some(next) = next.filter(|next| !is_cut(at) && !is_cut(*next)) {
                    let mut swapped = theirs.clone();
                    swapped.swap(at, next);
                    assert!(!passes(&swapped, &theirs), "{major}, {form}: swapped {at} and {next}");
                }
                for (lsn, xid) in [(8, 0), (0, 1)] {
                    let mut moved = theirs.clone();
                    moved[at].lsn += lsn;
                    moved[at].xid += xid;
                    let counts = !matches!(theirs[at].data[0], b'S' | b'E' | b'O' | b'A');
                    assert_eq!(passes(&moved, &theirs), !counts, "{major}, {form}: {at} sent from elsewhere");
                }
            }
            let without: Vec<_> = theirs.iter().filter(|sent| !repeats(sent)).cloned().collect();
            assert!(!passes(&without, &theirs), "{form}: nothing was described");
        }
    }
}

/// What may differ is no difference: a transaction whole or in blocks, and repeated descriptions of
/// relations.
#[test]
fn what_may_differ_is_no_difference() {
    for major in Major::under_test() {
        let outputs = outputs(major);
        let of = |name: &str| &outputs.iter().find(|(form, _)| *form == name).unwrap().1;
        let (whole, streamed) = (of("whole"), of("streamed"));
        assert!(streamed.iter().any(|sent| sent.data[0] == b'S'), "nothing was streamed");
        assert!(passes(whole, streamed) && passes(streamed, whole));
        let mut again = Vec::new();
        let mut described = Vec::new();
        for sent in whole {
            if repeats(sent) {
                described.push(sent.clone());
            } else if matches!(sent.data[0], b'I' | b'U' | b'D') {
                again.extend(described.iter().cloned());
            }
            again.push(sent.clone());
        }
        assert!(again.len() > whole.len() && passes(&again, whole));
    }
}
