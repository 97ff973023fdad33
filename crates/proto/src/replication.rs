//! The messages inside CopyData of a replication connection, and the commands that start one.
//!
//! This module is handed the body of a CopyData frame and returns the message, in both directions:
//! what a walsender sends, and what its receiver answers. It writes both, too. Source: the chapter
//! "Streaming Replication Protocol" of PostgreSQL's documentation.

use std::fmt;

use base::{Lsn, PgTimestamp, PgVersion, quote_ident};
use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::command;

/// A message of a walsender inside CopyData.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WalsenderMessage {
    /// `w`: WAL bytes, or one message of the output plugin.
    XLogData {
        /// Where `data` starts; zero for output without a position.
        start: Lsn,
        /// The end of WAL, as far as the server knows.
        wal_end: Lsn,
        /// The plugin's message or the WAL bytes.
        data: Bytes,
    },
    /// `k`: the server has nothing to send, or asks whether this side is alive.
    Keepalive {
        /// The server has sent everything up to here.
        wal_end: Lsn,
        /// When the server sent it.
        sent_at: PgTimestamp,
        /// Whether the server wants an answer at once.
        reply_requested: bool,
    },
}

/// A CopyData body that is no message of a walsender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedMessage {
    kind: Option<u8>,
    length: usize,
}

impl fmt::Display for MalformedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(
                f,
                "the walsender sent a message of kind '{}' with {} bytes, which is unknown or cut short",
                char::from(kind).escape_default(),
                self.length
            ),
            None => f.write_str("the walsender sent an empty message"),
        }
    }
}

impl std::error::Error for MalformedMessage {}

impl WalsenderMessage {
    /// Reads the body of one CopyData frame. `data` shares its memory.
    ///
    /// # Errors
    /// An unknown kind, or a body that is too short for its kind.
    pub fn decode(mut body: Bytes) -> Result<Self, MalformedMessage> {
        let malformed = MalformedMessage { kind: body.first().copied(), length: body.len() };
        match malformed.kind {
            Some(b'w') if body.len() >= 25 => {
                body.advance(1);
                let start = Lsn::new(body.get_u64());
                let wal_end = Lsn::new(body.get_u64());
                let _sent_at = body.get_i64();
                Ok(WalsenderMessage::XLogData { start, wal_end, data: body })
            }
            Some(b'k') if body.len() >= 18 => {
                body.advance(1);
                let wal_end = Lsn::new(body.get_u64());
                let sent_at = PgTimestamp(body.get_i64());
                Ok(WalsenderMessage::Keepalive { wal_end, sent_at, reply_requested: body.get_u8() != 0 })
            }
            _ => Err(malformed),
        }
    }
}

/// `r`: the positions that this side has received, flushed and applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyStatus {
    /// Received up to here.
    pub written: Lsn,
    /// Durable up to here. The slot's `confirmed_flush_lsn` follows this.
    pub flushed: Lsn,
    /// Visible up to here.
    pub applied: Lsn,
    /// The time of this message.
    pub at: PgTimestamp,
    /// Whether the server should answer at once.
    pub reply_requested: bool,
}

impl StandbyStatus {
    /// The body of the CopyData frame.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut body = BytesMut::with_capacity(34);
        body.put_u8(b'r');
        for lsn in [self.written, self.flushed, self.applied] {
            body.put_u64(lsn.as_u64());
        }
        body.put_i64(self.at.0);
        body.put_u8(u8::from(self.reply_requested));
        body.freeze()
    }
}

/// The size of a WAL message's own fields, before its data.
pub const XLOG_DATA_HEADER_SIZE: usize = 25;

/// The fields of a `w` before its data.
#[must_use]
pub fn xlog_data_header(start: Lsn, wal_end: Lsn, sent_at: PgTimestamp) -> [u8; XLOG_DATA_HEADER_SIZE] {
    let mut header = [0; XLOG_DATA_HEADER_SIZE];
    header[0] = b'w';
    header[1..9].copy_from_slice(&start.as_u64().to_be_bytes());
    header[9..17].copy_from_slice(&wal_end.as_u64().to_be_bytes());
    header[17..].copy_from_slice(&sent_at.0.to_be_bytes());
    header
}

/// The body of a `k`: everything up to `wal_end` was sent (rule L3).
#[must_use]
pub fn keepalive(wal_end: Lsn, sent_at: PgTimestamp, reply_requested: bool) -> [u8; 18] {
    let mut body = [0; 18];
    body[0] = b'k';
    body[1..9].copy_from_slice(&wal_end.as_u64().to_be_bytes());
    body[9..17].copy_from_slice(&sent_at.0.to_be_bytes());
    body[17] = u8::from(reply_requested);
    body
}

/// A message of the receiver inside CopyData.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiverMessage {
    /// `r`: its positions.
    Status(StandbyStatus),
    /// `h`: what its queries still need. Concerns physical replication only.
    HotStandbyFeedback,
    /// `p`: it asks which transactions are in commit (major 19).
    PrimaryStatusRequest,
}

/// A CopyData body that is no message of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MalformedReply {
    /// Its first byte is unknown, or it is empty.
    Kind(Option<u8>),
    /// It is too short for its kind.
    Length(usize),
}

/// As the server words it (`ProcessStandbyMessage`, `pq_copymsgbytes`).
impl fmt::Display for MalformedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MalformedReply::Kind(Some(kind)) => {
                write!(f, "unexpected message type \"{}\"", char::from(*kind).escape_default())
            }
            MalformedReply::Kind(None) => f.write_str("no data left in message"),
            MalformedReply::Length(_) => f.write_str("insufficient data left in message"),
        }
    }
}

impl std::error::Error for MalformedReply {}

impl ReceiverMessage {
    /// Reads the body of one CopyData frame of the receiver.
    ///
    /// # Errors
    /// An unknown kind, or a body that is too short for its kind.
    pub fn decode(mut body: &[u8]) -> Result<ReceiverMessage, MalformedReply> {
        let length = body.len();
        match body.first() {
            Some(b'r') if length >= 34 => {
                body.advance(1);
                let [written, flushed, applied] = std::array::from_fn(|_| Lsn::new(body.get_u64()));
                let at = PgTimestamp(body.get_i64());
                let reply_requested = body.get_u8() != 0;
                let status = StandbyStatus { written, flushed, applied, at, reply_requested };
                Ok(ReceiverMessage::Status(status))
            }
            Some(b'h') if length >= 17 => Ok(ReceiverMessage::HotStandbyFeedback),
            Some(b'p') if length >= 9 => Ok(ReceiverMessage::PrimaryStatusRequest),
            Some(b'r' | b'h' | b'p') => Err(MalformedReply::Length(length)),
            kind => Err(MalformedReply::Kind(kind.copied())),
        }
    }
}

/// The options for pgoutput.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgoutputOptions {
    /// Publications by name.
    pub publications: Vec<String>,
    /// Whether values come in the types' binary form, if they have one.
    pub binary: bool,
    /// Whether large transactions are sent before they commit.
    pub streaming: bool,
    /// Whether only changes without an origin are sent (16 and later).
    pub origin_none: bool,
}

impl PgoutputOptions {
    /// The command that starts streaming from `slot` at `start`, for a server of `version`.
    #[must_use]
    pub fn start_replication(&self, slot: &str, start: Lsn, version: PgVersion) -> String {
        let protocol = version.pgoutput_protocol_max();
        let names: Vec<String> = self.publications.iter().map(|name| quote_ident(name)).collect();
        let mut options = vec![
            format!("proto_version '{protocol}'"),
            format!("publication_names {}", command::quoted(&names.join(","))),
        ];
        if self.binary {
            options.push("binary 'true'".to_owned());
        }
        if self.streaming && protocol >= 2 {
            // Not 'parallel', because the LSN of an abort is not needed.
            options.push("streaming 'on'".to_owned());
        }
        if version.major() >= 16 {
            options.push(format!("origin '{}'", if self.origin_none { "none" } else { "any" }));
        }
        format!("START_REPLICATION SLOT {} LOGICAL {start} ({})", quote_ident(slot), options.join(", "))
    }
}

/// The command that starts streaming WAL as it is from `slot` at `start`, which must be on
/// `timeline`.
#[must_use]
pub fn start_physical(slot: Option<&str>, start: Lsn, timeline: u32) -> String {
    let slot = slot.map(|slot| format!("SLOT {} ", quote_ident(slot))).unwrap_or_default();
    format!("START_REPLICATION {slot}PHYSICAL {start} TIMELINE {timeline}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cut_short_are_errors() {
        let mut whole = vec![b'w'];
        whole.extend([0; 24]);
        assert!(WalsenderMessage::decode(Bytes::from(whole.clone())).is_ok());
        for length in 0..whole.len() {
            assert!(WalsenderMessage::decode(Bytes::copy_from_slice(&whole[..length])).is_err());
        }
        assert!(WalsenderMessage::decode(Bytes::from_static(b"x0123456789012345678901234")).is_err());
    }

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let (start, wal_end, at) = (Lsn::new(0x1_0000_0028), Lsn::new(0x1_0000_0100), PgTimestamp(77));
        let mut body = xlog_data_header(start, wal_end, at).to_vec();
        body.extend_from_slice(b"data");
        let data = Bytes::from_static(b"data");
        assert_eq!(
            WalsenderMessage::decode(body.into()),
            Ok(WalsenderMessage::XLogData { start, wal_end, data })
        );
        assert_eq!(
            WalsenderMessage::decode(Bytes::copy_from_slice(&keepalive(wal_end, at, true))),
            Ok(WalsenderMessage::Keepalive { wal_end, sent_at: at, reply_requested: true })
        );
        let status = StandbyStatus {
            written: Lsn::new(3),
            flushed: Lsn::new(2),
            applied: Lsn::new(1),
            at,
            reply_requested: true,
        };
        let body = status.encode();
        assert_eq!(ReceiverMessage::decode(&body), Ok(ReceiverMessage::Status(status)));
        for end in 1..body.len() {
            assert_eq!(ReceiverMessage::decode(&body[..end]), Err(MalformedReply::Length(end)));
        }
    }

    #[test]
    fn messages_of_receivers_that_are_unknown_are_errors() {
        assert_eq!(ReceiverMessage::decode(b""), Err(MalformedReply::Kind(None)));
        let error = ReceiverMessage::decode(b"x").unwrap_err();
        assert_eq!(error.to_string(), "unexpected message type \"x\"");
        assert_eq!(
            ReceiverMessage::decode(&[b'h'; 25]),
            Ok(ReceiverMessage::HotStandbyFeedback),
            "with the catalogs' xmin, from 10 on"
        );
    }

    #[test]
    fn publication_names_are_quoted_twice() {
        let options = PgoutputOptions {
            publications: vec!["it's \"p\"".to_owned(), "q\\".to_owned()],
            binary: true,
            streaming: true,
            origin_none: false,
        };
        assert_eq!(
            options.start_replication("s", Lsn::new(1), PgVersion::from_num(140_023)),
            "START_REPLICATION SLOT \"s\" LOGICAL 0/1 (proto_version '2', \
             publication_names '\"it''s \"\"p\"\"\",\"q\\\"', binary 'true', streaming 'on')"
        );
        assert!(
            options
                .start_replication("s", Lsn::new(1), PgVersion::from_num(180_004))
                .ends_with("origin 'any')")
        );
    }
}
