//! Bytes between a client and the publisher, in which statements see the relay's views.
//!
//! ```text
//! client --Query, Parse: views put in; Bind: rows of now--> publisher
//!        <--all but the answers to what was added----------
//! ```
//! A statement that was prepared has the rows of that time. So before it is bound once more, it is
//! prepared once more. The client must not see the answers to that: all that are expected stand in
//! a queue, and those of the relay's own messages are left out.
//!
//! Messages that are of no interest here are passed on as they come, also in parts.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::views::Views;

const READ_SIZE: usize = 64 << 10;
/// The kind and the length of a message.
const HEAD_SIZE: usize = 5;
/// A longer statement is passed on as it is.
const STATEMENT_SIZE_MAX: usize = 1 << 20;
/// Longer names in a `Bind` are not looked at.
const NAMES_SIZE_MAX: usize = 64 << 10;

const PARSE_COMPLETE: u8 = b'1';
const CLOSE_COMPLETE: u8 = b'3';

/// An answer that the publisher owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owed {
    /// `ParseComplete` or `CloseComplete`, which the client gets.
    Passed,
    /// One of these, to a message of the relay.
    Hidden,
    /// `ReadyForQuery` after `Sync`.
    Synced,
    /// `ReadyForQuery` after `Query` or `FunctionCall`.
    Queried,
}

/// The answers that are owed, in their order.
#[derive(Debug, Clone, Default)]
struct Debts(Arc<Mutex<VecDeque<Owed>>>);

impl Debts {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Owed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, owed: Owed) {
        self.queue().push_back(owed);
    }

    /// The client has ended what it copies. The publisher ignores a `Sync` that came before.
    fn copied(&self) {
        let mut queue = self.queue();
        while queue.back() == Some(&Owed::Synced) {
            queue.pop_back();
        }
    }

    /// `ReadyForQuery` has come: what was owed before it was left out after an error.
    fn ready(&self) {
        let mut queue = self.queue();
        while queue.pop_front().is_some_and(|owed| !matches!(owed, Owed::Synced | Owed::Queried)) {}
    }

    /// `ParseComplete` or `CloseComplete` has come. Returns whether the client gets it.
    fn is_passed(&self) -> bool {
        self.queue().pop_front() != Some(Owed::Hidden)
    }
}

/// A prepared statement that names a view.
struct Prepared {
    /// What the client sent.
    parse: Bytes,
    /// The publisher has it with rows of this round of messages.
    is_fresh: bool,
}

/// The client's messages on their way to the publisher.
struct Requests<'a> {
    views: &'a Views,
    inbox: BytesMut,
    /// Bytes of a message that are still to be passed on.
    rest: usize,
    prepared: HashMap<Bytes, Prepared>,
    debts: Debts,
}

impl Requests<'_> {
    /// Appends to `out` what is to be sent now.
    fn take(&mut self, out: &mut Vec<u8>) {
        loop {
            let Some(size) = next_size(&mut self.inbox, &mut self.rest, out) else { return };
            let tag = self.inbox[0];
            match tag {
                b'Q' | b'P' | b'C' if size <= STATEMENT_SIZE_MAX => {
                    if self.inbox.len() < size {
                        return;
                    }
                    let message = self.inbox.split_to(size).freeze();
                    self.statement(tag, &message, out);
                }
                b'B' => {
                    let Some(name) = bound(&self.inbox[..size.min(self.inbox.len())]) else {
                        if self.inbox.len() < size.min(NAMES_SIZE_MAX) {
                            return;
                        }
                        self.rest = size;
                        continue;
                    };
                    let name = Bytes::copy_from_slice(name);
                    self.refresh(&name, out);
                    self.rest = size;
                }
                other => {
                    self.note(other);
                    self.rest = size;
                }
            }
        }
    }

    /// A message that is whole.
    fn statement(&mut self, tag: u8, message: &Bytes, out: &mut Vec<u8>) {
        let body = message.slice(HEAD_SIZE..);
        match tag {
            b'Q' => {
                self.debts.push(Owed::Queried);
                let shown = text_of(&body).and_then(|(sql, _)| self.views.put_into(sql));
                match shown {
                    Some(sql) => append(b'Q', &[sql.as_bytes(), &[0]], out),
                    None => out.extend_from_slice(message),
                }
            }
            b'P' => {
                self.debts.push(Owed::Passed);
                let Some(name) = name_of(&body) else { return out.extend_from_slice(message) };
                match self.parse(message) {
                    Some(parse) => {
                        out.extend_from_slice(&parse);
                        self.prepared.insert(name, Prepared { parse: message.clone(), is_fresh: true });
                    }
                    None => {
                        out.extend_from_slice(message);
                        self.prepared.remove(&name);
                    }
                }
            }
            _ => {
                self.debts.push(Owed::Passed);
                if body.first() == Some(&b'S')
                    && let Some(name) = name_of(&body.slice(1..))
                {
                    self.prepared.remove(&name);
                }
                out.extend_from_slice(message);
            }
        }
    }

    /// A `Parse` with the rows of now; `None` if it names no view.
    fn parse(&self, message: &Bytes) -> Option<Vec<u8>> {
        let body = message.slice(HEAD_SIZE..);
        let name = name_of(&body)?;
        let (sql, types) = text_of(&body[name.len() + 1..])?;
        let sql = self.views.put_into(sql)?;
        let mut parse = Vec::with_capacity(message.len() + sql.len());
        append(b'P', &[&name, &[0], sql.as_bytes(), &[0], types], &mut parse);
        Some(parse)
    }

    /// Before a statement is bound: prepares it once more if its rows may be old.
    fn refresh(&mut self, name: &Bytes, out: &mut Vec<u8>) {
        let Some(prepared) = self.prepared.get(name).filter(|prepared| !prepared.is_fresh) else { return };
        let Some(parse) = self.parse(&prepared.parse) else { return };
        if !name.is_empty() {
            append(b'C', &[b"S", name, &[0]], out);
            self.debts.push(Owed::Hidden);
        }
        out.extend_from_slice(&parse);
        self.debts.push(Owed::Hidden);
        if let Some(prepared) = self.prepared.get_mut(name) {
            prepared.is_fresh = true;
        }
    }

    /// A message that is passed on as it is.
    fn note(&mut self, tag: u8) {
        match tag {
            b'S' => {
                self.debts.push(Owed::Synced);
                self.prepared.values_mut().for_each(|prepared| prepared.is_fresh = false);
            }
            b'Q' | b'F' => self.debts.push(Owed::Queried),
            b'P' | b'C' => self.debts.push(Owed::Passed),
            b'c' | b'f' => self.debts.copied(),
            _ => {}
        }
    }
}

/// The publisher's messages on their way to the client.
struct Answers {
    inbox: BytesMut,
    rest: usize,
    debts: Debts,
}

impl Answers {
    /// Appends to `out` what is to be sent now.
    fn take(&mut self, out: &mut Vec<u8>) {
        loop {
            let Some(size) = next_size(&mut self.inbox, &mut self.rest, out) else { return };
            match self.inbox[0] {
                PARSE_COMPLETE | CLOSE_COMPLETE if !self.debts.is_passed() => {
                    // It has no body.
                    self.inbox.advance(HEAD_SIZE);
                    continue;
                }
                b'Z' => self.debts.ready(),
                _ => {}
            }
            self.rest = size;
        }
    }
}

/// Passes on what is left of a message, and returns the size of the next one, if its head is there.
fn next_size(inbox: &mut BytesMut, rest: &mut usize, out: &mut Vec<u8>) -> Option<usize> {
    let now = inbox.len().min(*rest);
    out.extend_from_slice(&inbox.split_to(now));
    *rest -= now;
    size_of(inbox)
}

/// The size of the message that `inbox` begins with; `None` while its head is not there. Bytes that
/// are no message are the receiver's to refuse.
fn size_of(inbox: &[u8]) -> Option<usize> {
    let [_, length @ ..] = *inbox.first_chunk::<HEAD_SIZE>()?;
    Some((1 + u32::from_be_bytes(length) as usize).max(HEAD_SIZE))
}

/// A text that ends with a zero, and what follows.
fn text_of(body: &[u8]) -> Option<(&str, &[u8])> {
    let end = body.iter().position(|byte| *byte == 0)?;
    Some((std::str::from_utf8(&body[..end]).ok()?, &body[end + 1..]))
}

/// A name that ends with a zero.
fn name_of(body: &Bytes) -> Option<Bytes> {
    let end = body.iter().position(|byte| *byte == 0)?;
    Some(body.slice(..end))
}

/// The statement that a `Bind` names, if that much of it is there.
fn bound(message: &[u8]) -> Option<&[u8]> {
    let mut names = message.get(HEAD_SIZE..)?.split(|byte| *byte == 0);
    let (_portal, statement) = (names.next()?, names.next()?);
    // Something must follow: else the name may go on.
    names.next().map(|_| statement)
}

fn append(tag: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    let size: usize = parts.iter().map(|part| part.len()).sum();
    let length = u32::try_from(size + 4).expect("a statement is shorter than its limit");
    out.push(tag);
    out.extend_from_slice(&length.to_be_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Passes everything on, until both have closed. `said` and `heard` have come already. Returns
/// bytes to the publisher, and from it.
pub(crate) async fn pass<C, S>(
    (client, said): (C, BytesMut),
    (publisher, heard): (S, BytesMut),
    views: &Views,
) -> io::Result<(u64, u64)>
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = tokio::io::split(client);
    let (from_publisher, to_publisher) = tokio::io::split(publisher);
    let debts = Debts::default();
    let prepared = HashMap::new();
    let mut requests = Requests { views, inbox: said, rest: 0, prepared, debts: debts.clone() };
    let mut answers = Answers { inbox: heard, rest: 0, debts };
    let to = copy(from_client, to_publisher, |bytes, out| {
        requests.inbox.extend_from_slice(bytes);
        requests.take(out);
    });
    let from = copy(from_publisher, to_client, |bytes, out| {
        answers.inbox.extend_from_slice(bytes);
        answers.take(out);
    });
    tokio::try_join!(to, from)
}

/// Copies what `change` makes of the bytes. Ends with the reader, and tells the writer.
async fn copy(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    mut change: impl FnMut(&[u8], &mut Vec<u8>),
) -> io::Result<u64> {
    let mut read = vec![0; READ_SIZE];
    let (mut out, mut count) = (Vec::with_capacity(READ_SIZE), 0);
    // What has come already.
    change(&[], &mut out);
    loop {
        writer.write_all(&out).await?;
        writer.flush().await?;
        count += out.len() as u64;
        out.clear();
        match reader.read(&mut read).await? {
            0 => break,
            size => change(&read[..size], &mut out),
        }
    }
    writer.shutdown().await?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::senders::Senders;
    use crate::slots::Slots;

    const SHOWN: &str = "SELECT 1 FROM pg_replication_slots";

    fn message(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        append(tag, parts, &mut out);
        out
    }

    fn parse(name: &str, sql: &str) -> Vec<u8> {
        message(b'P', &[name.as_bytes(), &[0], sql.as_bytes(), &[0, 0, 0]])
    }

    fn bind(name: &str) -> Vec<u8> {
        message(b'B', &[&[0], name.as_bytes(), &[0, 0, 0, 0, 0, 0, 0]])
    }

    fn sync() -> Vec<u8> {
        message(b'S', &[])
    }

    /// The kinds of the messages that the publisher gets, with this many bytes at a time.
    fn sent(bytes: &[u8], at_once: usize) -> (Vec<u8>, Debts) {
        let dir = tempfile::tempdir().expect("a directory");
        let slots = Slots::open(dir.path(), 18).expect("no slots");
        let views = Views::new(slots, Senders::default());
        let debts = Debts::default();
        let mut requests = Requests {
            views: &views,
            inbox: BytesMut::new(),
            rest: 0,
            prepared: HashMap::new(),
            debts: debts.clone(),
        };
        let mut out = Vec::new();
        for part in bytes.chunks(at_once) {
            requests.inbox.extend_from_slice(part);
            requests.take(&mut out);
        }
        (out, debts)
    }

    fn kinds(mut bytes: &[u8]) -> String {
        let mut kinds = String::new();
        while let Some(size) = size_of(bytes) {
            kinds.push(char::from(bytes[0]));
            bytes = &bytes[size..];
        }
        assert!(bytes.is_empty());
        kinds
    }

    #[test]
    fn what_names_no_view_is_passed_on_as_it_is() {
        let said = [
            parse("a", "SELECT 1"),
            bind("a"),
            message(b'd', &[&[7; 10_000]]),
            message(b'Q', &[b"SELECT 'pg_replication_slots'", &[0]]),
            message(b'C', &[b"Sa", &[0]]),
            sync(),
        ]
        .concat();
        for at_once in [1, 3, 7, said.len()] {
            assert_eq!(sent(&said, at_once).0, said);
        }
    }

    #[test]
    fn a_prepared_statement_gets_the_rows_of_now_whenever_it_is_bound() {
        let said = [parse("a", SHOWN), bind("a"), bind("a"), sync(), bind("a"), sync()].concat();
        for at_once in [1, said.len()] {
            let (out, debts) = sent(&said, at_once);
            assert_eq!(kinds(&out), "PBBSCPBS");
            assert_eq!(
                Vec::from(debts.queue().clone()),
                [Owed::Passed, Owed::Synced, Owed::Hidden, Owed::Hidden, Owed::Synced]
            );
        }
        // One without a name needs no `Close`, and one that was closed is not prepared again.
        let said = [parse("", SHOWN), sync(), bind(""), message(b'C', &[b"S", &[0]]), sync(), bind("")];
        assert_eq!(kinds(&sent(&said.concat(), 5).0), "PSPBCSB");
        let said = [parse("", SHOWN), parse("", "SELECT 1"), sync(), bind("")];
        assert_eq!(kinds(&sent(&said.concat(), 5).0), "PPSB");
    }

    #[test]
    fn the_client_does_not_see_answers_to_what_was_added() {
        let said = [parse("a", SHOWN), sync(), bind("a"), parse("b", "SELECT 1"), sync()].concat();
        let (_, debts) = sent(&said, 11);
        let mut answers = Answers { inbox: BytesMut::new(), rest: 0, debts };
        let answer = |tag: u8| message(tag, if tag == b'Z' { &[b"I"] } else { &[] });
        let all: Vec<u8> = b"1Z3121Z".iter().flat_map(|tag| answer(*tag)).collect();
        let mut out = Vec::new();
        for byte in all {
            answers.inbox.extend_from_slice(&[byte]);
            answers.take(&mut out);
        }
        assert_eq!(kinds(&out), "1Z21Z");
    }

    #[test]
    fn an_error_leaves_out_what_was_owed_until_sync() {
        let said = [parse("a", SHOWN), sync(), bind("a"), sync(), parse("b", "SELECT 1"), sync()].concat();
        let (_, debts) = sent(&said, 11);
        let mut answers = Answers { inbox: BytesMut::new(), rest: 0, debts: debts.clone() };
        let answer = |tag: u8| message(tag, if tag == b'Z' { &[b"I"] } else { &[] });
        // The added `Close` fails here, as nothing of it does in truth.
        answers.inbox.extend(b"1ZEZ1Z".iter().flat_map(|tag| answer(*tag)));
        let mut out = Vec::new();
        answers.take(&mut out);
        assert_eq!(kinds(&out), "1ZEZ1Z");
        assert!(debts.queue().is_empty());
    }

    #[test]
    fn a_sync_before_the_end_of_a_copy_is_not_answered() {
        let said = [parse("", "COPY t FROM STDIN"), sync(), message(b'c', &[]), sync()].concat();
        let (_, debts) = sent(&said, 100);
        assert_eq!(Vec::from(debts.queue().clone()), [Owed::Passed, Owed::Synced]);
        let said = [message(b'Q', &[b"COPY t FROM STDIN", &[0]]), message(b'c', &[])].concat();
        assert_eq!(Vec::from(sent(&said, 100).1.queue().clone()), [Owed::Queried]);
    }
}
