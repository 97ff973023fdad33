//! Messages of pgoutput that a client received, and their comparison.

use std::collections::{HashMap, HashSet};

use base::{Oid, Xid};
use bytes::Bytes;
use proto::pgoutput::{Message, decode};

/// A round of the load has more messages than this.
const ROUND_MIN: usize = 60;

/// The messages in a file of pg_recvlogical, which puts a line feed behind each.
///
/// A message may have line feeds inside, but no part of it is a message.
pub(crate) fn split(file: Vec<u8>) -> Vec<Bytes> {
    let mut rest = Bytes::from(file);
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let feeds = rest.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        let end = feeds.into_iter().find(|&end| decode(rest.slice(..end), false).is_ok());
        let end = end.unwrap_or_else(|| panic!("no message at the start of {rest:?}"));
        messages.push(rest.split_to(end));
        let _ = rest.split_to(1);
    }
    messages
}

/// What a message says, for a failure's text.
fn shown(message: &Bytes) -> String {
    match decode(message.clone(), false) {
        Ok((_, message)) => format!("{message:?}"),
        Err(error) => format!("{error}: {message:?}"),
    }
}

/// What a publisher sent, without transactions that have nothing: 14 sends those, and the relay
/// leaves them out as 15 and later do.
pub(crate) fn without_empty<T>(messages: impl IntoIterator<Item = (Bytes, T)>) -> Vec<(Bytes, T)> {
    let mut kept: Vec<(Bytes, T)> = Vec::new();
    for (message, about) in messages {
        let ends = message.first() == Some(&b'C');
        if ends && kept.last().is_some_and(|(last, _)| last.first() == Some(&b'B')) {
            kept.pop();
        } else {
            kept.push((message, about));
        }
    }
    kept
}

/// Whether it only says what a relation or a type is.
pub(crate) fn is_description(message: &Bytes) -> bool {
    matches!(message.first(), Some(b'R' | b'Y'))
}

/// A message, with the description of its relation that was in force.
fn described(messages: &[Bytes]) -> Vec<(Bytes, Option<Bytes>)> {
    let mut relations: HashMap<Oid, Bytes> = HashMap::new();
    let mut all = Vec::new();
    for message in messages {
        let of = match decode(message.clone(), false).unwrap().1 {
            Message::Relation(relation) => {
                relations.insert(relation.id, message.clone());
                continue;
            }
            Message::Type { .. } => continue,
            Message::Insert { relation, .. }
            | Message::Update { relation, .. }
            | Message::Delete { relation, .. } => Some(relation),
            _ => None,
        };
        let relation = of.map(|oid| {
            let known = relations.get(&oid).cloned();
            known.unwrap_or_else(|| panic!("nothing describes the relation of {}", shown(message)))
        });
        all.push((message.clone(), relation));
    }
    all
}

/// Compares the messages of a session that began where another had ended.
///
/// The relay may describe relations earlier than the publisher, and again (rule L2, point 6). So
/// each row is compared with the description that is in force there.
pub(crate) fn assert_same_rows(what: &str, publisher: &[Bytes], relay: &[Bytes]) {
    let [(publisher, known), (relay, described)] =
        [publisher, relay].map(|messages| described(messages).into_iter().unzip::<_, _, Vec<_>, Vec<_>>());
    assert_same(what, &publisher, &relay);
    let first = known.iter().zip(&described).position(|(ours, theirs)| ours != theirs);
    if let Some(at) = first {
        let [ours, theirs] = [&known[at], &described[at]].map(|relation| relation.as_ref().map(shown));
        panic!("{what}: the relation of message {at}\n  publisher {ours:?}\n  relay     {theirs:?}");
    }
}

/// Compares the messages of a round, byte by byte.
pub(crate) fn assert_same(what: &str, publisher: &[Bytes], relay: &[Bytes]) {
    let first = publisher.iter().zip(relay).position(|(ours, theirs)| ours != theirs);
    if let Some(at) = first {
        panic!(
            "{what}: message {at} differs\n  publisher {}\n  relay     {}",
            shown(&publisher[at]),
            shown(&relay[at])
        );
    }
    let at = publisher.len().min(relay.len());
    for (end, rest) in [("publisher", &publisher[at..]), ("relay", &relay[at..])] {
        let rest: Vec<String> = rest.iter().map(shown).collect();
        assert!(rest.is_empty(), "{what}: only the {end} sent\n  {}", rest.join("\n  "));
    }
    assert!(at > ROUND_MIN, "{what}: only {at} messages came");
}

/// The transactions in `messages`, in their order.
fn transactions(messages: &[Bytes]) -> impl Iterator<Item = Xid> {
    messages.iter().filter_map(|message| match decode(message.clone(), false) {
        Ok((_, Message::Begin { xid, .. })) => Some(xid),
        _ => None,
    })
}

/// No transaction comes twice.
pub(crate) fn assert_once(what: &str, received: &[Vec<Bytes>]) {
    let mut seen = HashSet::new();
    for xid in received.iter().flat_map(|messages| transactions(messages)) {
        assert!(seen.insert(xid), "{what}: transaction {xid} came twice");
    }
}
