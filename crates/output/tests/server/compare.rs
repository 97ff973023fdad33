//! Messages of two sides, without what may differ. That is how often relations and types are
//! announced, and where a streamed transaction is cut into blocks, or whether it is streamed at
//! all.

use std::collections::{BTreeMap, BTreeSet};

use base::{Lsn, Xid};
use bytes::Bytes;
use proto::pgoutput;

use crate::stage::Message;

/// A message in the form that is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    lsn: Lsn,
    xid: Xid,
    data: Vec<u8>,
    /// The subtransaction, if it was streamed.
    sub: Option<u32>,
    /// What the receiver knows of the relations that the message names.
    known: Vec<Vec<u8>>,
}

/// What a receiver knows: announcements by kind and OID.
type Known = BTreeMap<(u8, u32), Vec<u8>>;

#[derive(Default)]
struct Stream {
    lines: Vec<Line>,
    known: Known,
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// The relations that a message without its transaction names.
fn relations(data: &[u8]) -> Vec<u32> {
    match data[0] {
        b'I' | b'U' | b'D' => vec![number(&data[1..])],
        b'T' => data[6..].chunks(4).map(number).collect(),
        _ => Vec::new(),
    }
}

/// The types of an announced relation's columns.
fn types(relation: &[u8]) -> Vec<u32> {
    match pgoutput::decode(Bytes::copy_from_slice(relation), false).unwrap().1 {
        pgoutput::Message::Relation(relation) => {
            relation.columns.iter().map(|column| column.type_oid.0).filter(|oid| *oid >= 10_000).collect()
        }
        other => panic!("{other:?} is no relation"),
    }
}

fn known_of(data: &[u8], of: &[&Known]) -> Vec<Vec<u8>> {
    let find = |key: (u8, u32)| of.iter().rev().find_map(|known| known.get(&key)).cloned();
    let mut known = Vec::new();
    for oid in relations(data) {
        let relation = find((b'R', oid)).unwrap_or_else(|| panic!("relation {oid} was not announced"));
        for oid in types(&relation) {
            // The name does not matter: the server does not notice that a type was renamed, and we
            // do.
            assert!(find((b'Y', oid)).is_some(), "type {oid} was not announced");
        }
        known.push(relation);
    }
    known
}

/// The lines for messages. A streamed transaction stands where it ended.
pub(crate) fn lines(messages: &[Message]) -> Vec<Line> {
    let (mut lines, mut known, mut open) = (Vec::new(), Known::new(), BTreeMap::<u32, Stream>::new());
    let mut block: Option<u32> = None;
    for Message { lsn, xid, data } in messages {
        let (lsn, xid) = (*lsn, *xid);
        let line = |data: Vec<u8>, sub, known| Line { lsn, xid, data, sub, known };
        match (data[0], block) {
            (b'S', None) => {
                let top = number(&data[1..]);
                assert_eq!(data[5] == 1, !open.contains_key(&top), "the first block of {top}");
                open.entry(top).or_default();
                block = Some(top);
            }
            (b'E', Some(_)) => block = None,
            (b'O', Some(top)) => {
                let stream = open.get_mut(&top).unwrap();
                stream.lines.push(line([b"O", &data[9..]].concat(), None, Vec::new()));
            }
            (kind @ (b'R' | b'Y' | b'I' | b'U' | b'D' | b'T' | b'M'), Some(top)) => {
                let stream = open.get_mut(&top).unwrap();
                let sub = number(&data[1..]);
                let plain = [&data[..1], &data[5..]].concat();
                if matches!(kind, b'R' | b'Y') {
                    stream.known.insert((kind, number(&plain[1..])), plain);
                } else {
                    let names = known_of(&plain, &[&known, &stream.known]);
                    // A message names the top-level transaction, a row its own.
                    let sub = (kind != b'M').then_some(sub);
                    stream.lines.push(line(plain, sub, names));
                }
            }
            (b'A', None) => {
                let (top, sub) = (number(&data[1..]), number(&data[5..]));
                if top == sub {
                    open.remove(&top);
                } else if let Some(stream) = open.get_mut(&top) {
                    stream.lines.retain(|line| line.sub != Some(sub));
                }
            }
            (kind @ (b'c' | b'p'), None) => {
                let top = if kind == b'c' { number(&data[1..]) } else { number(&data[26..]) };
                let stream = open.remove(&top).unwrap();
                let rows = stream.lines.iter().any(|line| !is_origin(line));
                if kind == b'c' {
                    known.extend(stream.known);
                }
                // A transaction that was streamed by chance, with nothing published in it, counts
                // as absent.
                if rows || kind == b'p' {
                    lines.extend(stream.lines);
                    let end =
                        if kind == b'c' { [b"C", &data[5..]].concat() } else { [b"P", &data[1..]].concat() };
                    lines.push(line(end, None, Vec::new()));
                }
            }
            (kind @ (b'R' | b'Y'), None) => {
                known.insert((kind, number(&data[1..])), data.clone());
            }
            (_, None) => lines.push(line(data.clone(), None, known_of(data, &[&known]))),
            (kind, Some(_)) => panic!("{} in a block", char::from(kind)),
        }
    }
    assert_eq!(block, None);
    lines
}

fn is_origin(line: &Line) -> bool {
    line.data[0] == b'O'
}

/// The announced names of types.
pub(crate) fn type_names(messages: &[Message]) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    let mut in_stream = false;
    for Message { data, .. } in messages {
        in_stream = data[0] == b'S' || in_stream && data[0] != b'E';
        if data[0] == b'Y' {
            names.insert(data[if in_stream { 5 } else { 1 }..].to_vec());
        }
    }
    names
}

/// The lines as if nothing had been streamed: without what begins transactions, and without what
/// only streams have.
pub(crate) fn unstreamed(lines: Vec<Line>) -> Vec<Line> {
    let keeps = |line: &Line| !matches!(line.data[0], b'B' | b'b' | b'O');
    lines.into_iter().filter(keeps).map(|line| Line { sub: None, ..line }).collect()
}

pub(crate) fn show(line: &Line) -> String {
    let decoded = pgoutput::decode(Bytes::copy_from_slice(&line.data), false);
    let text = decoded.map_or_else(|error| error.to_string(), |(_, message)| format!("{message:?}"));
    let hex: String = line.data.iter().take(120).map(|byte| format!("{byte:02x}")).collect();
    format!("{} {} {:?} {text}\n      {hex}\n      known: {:?}", line.lsn, line.xid, line.sub, line.known)
}

/// Checks that both sides have the same lines.
#[track_caller]
pub(crate) fn assert_same(what: &str, ours: &[Line], theirs: &[Line]) {
    for at in 0..ours.len().max(theirs.len()) {
        if ours.get(at) == theirs.get(at) {
            continue;
        }
        let around = |side: &[Line]| -> String {
            let some = side.iter().enumerate().skip(at.saturating_sub(2)).take(5);
            some.map(|(number, line)| format!("\n  {number}: {}", show(line))).collect()
        };
        panic!("{what}: line {at} differs\nours:{}\ntheirs:{}", around(ours), around(theirs));
    }
}
