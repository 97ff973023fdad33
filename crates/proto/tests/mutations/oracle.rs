//! Turns messages back into bytes, by the protocol's documentation and not by the reader's code.
//!
//! A message was read correctly if writing it gives the same bytes. Two kinds of message are read
//! in part. For these, the part that was read must be the same, and the rest must have the right
//! length.

use base::Xid;
use bytes::{BufMut, Bytes, BytesMut};
use proto::frame;
use proto::pgoutput::{self, Column, CommitInfo, Message, OldTuple, Relation, ReplicaIdentity, Tuple};
use proto::replication::WalsenderMessage;

use crate::recorded::kind;

/// Reads `data` as one message. Checks that it is what the bytes say, or that the error names the
/// message. Returns the message.
pub(crate) fn message(data: &[u8], in_stream: bool) -> Option<Message> {
    match pgoutput::decode(Bytes::copy_from_slice(data), in_stream) {
        Ok((xid, message)) => {
            assert_eq!(data.first(), Some(&kind(&message)));
            assert!(is_said(data, in_stream, xid, &message), "{message:?} is not what {data:?} says");
            columns(&message);
            Some(message)
        }
        Err(error) => {
            let text = error.to_string();
            match data.first() {
                Some(kind) => {
                    let begins = format!("pgoutput message '{}', byte ", kind.escape_ascii());
                    let rest = text.strip_prefix(&begins).unwrap_or_else(|| panic!("{text}"));
                    let at = rest.split(':').next().and_then(|at| at.parse::<usize>().ok());
                    assert!(at.is_some_and(|at| at <= data.len()), "{text}");
                }
                None => assert!(text.starts_with("pgoutput message: "), "{text}"),
            }
            None
        }
    }
}

fn is_said(data: &[u8], in_stream: bool, xid: Option<Xid>, message: &Message) -> bool {
    let mut out = BytesMut::new();
    out.put_u8(kind(message));
    let carries_xid = matches!(kind(message), b'R' | b'Y' | b'I' | b'U' | b'D' | b'T' | b'M');
    assert_eq!(xid.is_some(), in_stream && carries_xid);
    if let Some(xid) = xid {
        out.put_u32(xid.0);
    }
    let rest = write(message, &mut out);
    let Some(left) = data.strip_prefix(&out[..]) else { return false };
    match rest {
        Rest::Nothing => left.is_empty(),
        Rest::Anything => true,
        // Only sent with streaming = parallel.
        Rest::LsnAndTime => left.is_empty() || left.len() == 16,
    }
}

/// What follows the part of a message that is read.
enum Rest {
    Nothing,
    Anything,
    LsnAndTime,
}

fn write(message: &Message, out: &mut BytesMut) -> Rest {
    match message {
        Message::Begin { final_lsn, commit_time, xid } => {
            out.put_u64(final_lsn.as_u64());
            out.put_i64(commit_time.0);
            out.put_u32(xid.0);
        }
        Message::Commit(info) => commit(info, out),
        Message::Origin { lsn, name } => {
            out.put_u64(lsn.as_u64());
            string(name, out);
        }
        Message::Relation(description) => relation(description, out),
        Message::Type { id, namespace: schema, name } => {
            out.put_u32(id.0);
            namespace(schema, out);
            string(name, out);
        }
        Message::Insert { relation, new } => {
            out.put_u32(relation.0);
            out.put_u8(b'N');
            tuple(new, out);
        }
        Message::Update { relation, old, new } => {
            out.put_u32(relation.0);
            old.iter().for_each(|old| old_tuple(old, out));
            out.put_u8(b'N');
            tuple(new, out);
        }
        Message::Delete { relation, old } => {
            out.put_u32(relation.0);
            old_tuple(old, out);
        }
        Message::Truncate { relations, cascade, restart_identity } => {
            out.put_u32(relations.len() as u32);
            out.put_u8(u8::from(*cascade) | u8::from(*restart_identity) << 1);
            relations.iter().for_each(|relation| out.put_u32(relation.0));
        }
        Message::Logical { transactional, lsn, prefix, content } => {
            out.put_u8(u8::from(*transactional));
            out.put_u64(lsn.as_u64());
            string(prefix, out);
            out.put_u32(content.len() as u32);
            out.put_slice(content);
        }
        Message::StreamStart { xid, first_segment } => {
            out.put_u32(xid.0);
            out.put_u8(u8::from(*first_segment));
        }
        Message::StreamStop => {}
        Message::StreamCommit { xid, commit: info } => {
            out.put_u32(xid.0);
            commit(info, out);
        }
        Message::StreamAbort { xid, subxid } => {
            out.put_u32(xid.0);
            out.put_u32(subxid.0);
            return Rest::LsnAndTime;
        }
        // The receiver refuses these.
        Message::TwoPhase { .. } => return Rest::Anything,
    }
    Rest::Nothing
}

fn string(text: &str, out: &mut BytesMut) {
    out.put_slice(text.as_bytes());
    out.put_u8(0);
}

fn namespace(name: &str, out: &mut BytesMut) {
    string(if name == "pg_catalog" { "" } else { name }, out);
}

fn commit(info: &CommitInfo, out: &mut BytesMut) {
    out.put_u8(0);
    out.put_u64(info.commit_lsn.as_u64());
    out.put_u64(info.end_lsn.as_u64());
    out.put_i64(info.commit_time.0);
}

fn relation(relation: &Relation, out: &mut BytesMut) {
    out.put_u32(relation.id.0);
    namespace(&relation.namespace, out);
    string(&relation.name, out);
    out.put_u8(match relation.identity {
        ReplicaIdentity::Default => b'd',
        ReplicaIdentity::Nothing => b'n',
        ReplicaIdentity::Full => b'f',
        ReplicaIdentity::Index => b'i',
    });
    out.put_u16(relation.columns.len() as u16);
    for column in &relation.columns {
        out.put_u8(u8::from(column.identity));
        string(&column.name, out);
        out.put_u32(column.type_oid.0);
        out.put_i32(column.typmod);
    }
}

fn old_tuple(old: &OldTuple, out: &mut BytesMut) {
    out.put_u8(if old.key_only { b'K' } else { b'O' });
    tuple(&old.tuple, out);
}

fn tuple(tuple: &Tuple, out: &mut BytesMut) {
    out.put_u16(tuple.len() as u16);
    for column in tuple.columns() {
        let (kind, value) = match column {
            Column::Null => (b'n', None),
            Column::Unchanged => (b'u', None),
            Column::Text(value) => (b't', Some(value)),
            Column::Binary(value) => (b'b', Some(value)),
        };
        out.put_u8(kind);
        if let Some(value) = value {
            out.put_u32(value.len() as u32);
            out.put_slice(value);
        }
    }
}

/// Checks that a tuple's answers about all its columns agree with the columns themselves.
fn columns(message: &Message) {
    let check = |tuple: &Tuple| {
        assert_eq!(tuple.columns().count(), tuple.len());
        assert_eq!(tuple.has_unchanged(), tuple.columns().any(|column| column == Column::Unchanged));
        assert_eq!(tuple.has_binary(), tuple.columns().any(|column| matches!(column, Column::Binary(_))));
    };
    match message {
        Message::Insert { new, .. } => check(new),
        Message::Update { old, new, .. } => {
            old.iter().for_each(|old| check(&old.tuple));
            check(new);
        }
        Message::Delete { old, .. } => check(&old.tuple),
        _ => {}
    }
}

/// Parses `bytes` as a socket's: whole messages without gaps, then an error or an incomplete
/// message. Returns the number of messages.
pub(crate) fn stream(bytes: &[u8]) -> usize {
    let mut buffer = BytesMut::from(bytes);
    let (mut at, mut messages, mut in_stream) = (0, 0, false);
    loop {
        match frame::next(&mut buffer) {
            Ok(Some(frame)) => {
                let size = u32::from_be_bytes(bytes[at + 1..at + 5].try_into().expect("four bytes"));
                assert_eq!((frame.tag, frame.body.len() + 4), (bytes[at], size as usize));
                assert_eq!(frame.body, bytes[at + frame::HEADER_SIZE..][..frame.body.len()]);
                let end = at + size as usize + 1;
                assert_eq!(frame::run_of(frame.tag, &bytes[at..end]), Ok((end - at, 1)));
                at = end;
                messages += 1;
                body(frame.tag, &frame.body, &mut in_stream);
            }
            Ok(None) => {
                assert_eq!(at + buffer.len(), bytes.len(), "bytes are lost");
                return messages;
            }
            Err(error) => {
                assert!(error.to_string().contains(&format!("'{}'", bytes[at].escape_ascii())), "{error}");
                return messages;
            }
        }
    }
}

fn body(tag: u8, body: &Bytes, in_stream: &mut bool) {
    match tag {
        frame::COPY_DATA => walsender(body, in_stream),
        frame::ERROR_RESPONSE | frame::NOTICE_RESPONSE => {
            let Ok(error) = frame::ServerError::parse(body) else { return };
            for text in [&error.severity, &error.code, &error.message] {
                let lossy = String::from_utf8_lossy(body);
                assert!(lossy.contains(text.as_str()), "{text:?} is not in {lossy:?}");
            }
        }
        _ => {}
    }
}

fn walsender(data: &Bytes, in_stream: &mut bool) {
    match WalsenderMessage::decode(data.clone()) {
        Ok(WalsenderMessage::XLogData { start, wal_end, data: message_bytes }) => {
            let (start, wal_end) = (start.as_u64().to_be_bytes(), wal_end.as_u64().to_be_bytes());
            assert_eq!(data[..17], [&[b'w'][..], &start, &wal_end].concat());
            assert_eq!(data[25..], message_bytes);
            match message(&message_bytes, *in_stream) {
                Some(Message::StreamStart { .. }) => *in_stream = true,
                Some(Message::StreamStop) => *in_stream = false,
                _ => {}
            }
        }
        Ok(WalsenderMessage::Keepalive { wal_end, sent_at, reply_requested }) => {
            assert_eq!(data[1..9], wal_end.as_u64().to_be_bytes());
            assert_eq!(data[9..17], sent_at.0.to_be_bytes());
            assert_eq!(data[17] != 0, reply_requested);
        }
        Err(error) => assert!(error.to_string().contains("walsender"), "{error}"),
    }
}
