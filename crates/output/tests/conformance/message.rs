//! Messages of pgoutput, read by code of its own, so that a mistake in the product is not repeated
//! here.
//!
//! Every byte of a message ends up in a field that is compared, or reading fails.

use std::fmt;

/// A row of `pg_logical_slot_peek_binary_changes` or of the decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) lsn: u64,
    pub(crate) xid: u32,
    pub(crate) data: Vec<u8>,
}

/// An LSN as PostgreSQL prints it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At(pub(crate) u64);

impl fmt::Debug for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Null,
    Unchanged,
    Text(Vec<u8>),
    Binary(Vec<u8>),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Unchanged => f.write_str("unchanged"),
            Value::Text(text) => write!(f, "'{}'", short(&String::from_utf8_lossy(text), text.len())),
            Value::Binary(bytes) => {
                let hex: String = bytes.iter().take(40).map(|byte| format!("{byte:02x}")).collect();
                write!(f, "x{}", short(&hex, bytes.len()))
            }
        }
    }
}

/// Shows a long value as its beginning and its length.
fn short(text: &str, length: usize) -> String {
    const SHOWN_MAX: usize = 80;
    if text.chars().count() <= SHOWN_MAX {
        return text.to_owned();
    }
    let start: String = text.chars().take(SHOWN_MAX).collect();
    format!("{start}... ({length} bytes)")
}

pub(crate) type Row = Vec<Value>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) flags: u8,
    pub(crate) name: String,
    pub(crate) type_oid: u32,
    pub(crate) typmod: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Relation {
    pub(crate) id: u32,
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) identity: char,
    pub(crate) columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) flags: u8,
    pub(crate) lsn: At,
    pub(crate) end: At,
    pub(crate) time: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) lsn: At,
    pub(crate) end: At,
    pub(crate) time: i64,
    pub(crate) xid: u32,
    pub(crate) gid: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Begin { final_lsn: At, time: i64, xid: u32 },
    Commit(End),
    Origin { lsn: At, name: String },
    Relation(Relation),
    Type { id: u32, schema: String, name: String },
    Insert { relation: u32, new: Row },
    Update { relation: u32, old: Option<(char, Row)>, new: Row },
    Delete { relation: u32, old: (char, Row) },
    Truncate { flags: u8, relations: Vec<u32> },
    Logical { flags: u8, lsn: At, prefix: String, content: Vec<u8> },
    BeginPrepare(Prepared),
    Prepare { flags: u8, prepared: Prepared },
    CommitPrepared { flags: u8, prepared: Prepared },
    RollbackPrepared { flags: u8, end: At, rollback_end: At, times: [i64; 2], xid: u32, gid: String },
    StreamStart { xid: u32, first: u8 },
    StreamStop,
    StreamCommit { xid: u32, end: End },
    StreamAbort { xid: u32, sub: u32, at: Option<(At, i64)> },
    StreamPrepare { flags: u8, prepared: Prepared },
}

impl Message {
    /// The relations that the message names without describing them.
    pub(crate) fn relations(&self) -> Vec<u32> {
        match self {
            Message::Insert { relation, .. }
            | Message::Update { relation, .. }
            | Message::Delete { relation, .. } => vec![*relation],
            Message::Truncate { relations, .. } => relations.clone(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn is_row(&self) -> bool {
        matches!(self, Message::Insert { .. } | Message::Update { .. } | Message::Delete { .. })
    }

    /// The old row, if there is one, and the new one.
    pub(crate) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Row> {
        let (old, new) = match self {
            Message::Insert { new, .. } => (None, Some(new)),
            Message::Update { old, new, .. } => (old.as_mut().map(|(_, old)| old), Some(new)),
            Message::Delete { old: (_, old), .. } => (Some(old), None),
            _ => (None, None),
        };
        old.into_iter().chain(new)
    }
}

/// Reads one message. Inside a block of a stream, most messages name their (sub)transaction first.
pub(crate) fn read(data: &[u8], in_stream: bool) -> Result<(Option<u32>, Message), String> {
    let mut bytes = Bytes(data);
    let message = message(&mut bytes, in_stream);
    let shown = || String::from_utf8_lossy(&data[..data.len().min(60)]).into_owned();
    let message = message.ok_or_else(|| format!("a message that cannot be read: {:?}", shown()))?;
    if bytes.0.is_empty() { Ok(message) } else { Err(format!("bytes are left of {message:?}")) }
}

fn message(b: &mut Bytes<'_>, in_stream: bool) -> Option<(Option<u32>, Message)> {
    let kind = b.u8()?;
    let sub = if in_stream && b"RYIUDTM".contains(&kind) { Some(b.u32()?) } else { None };
    let message = match kind {
        b'B' => Message::Begin { final_lsn: b.at()?, time: b.i64()?, xid: b.u32()? },
        b'C' => Message::Commit(b.end()?),
        b'O' => Message::Origin { lsn: b.at()?, name: b.text()? },
        b'R' => Message::Relation(relation(b)?),
        b'Y' => Message::Type { id: b.u32()?, schema: b.text()?, name: b.text()? },
        b'I' => Message::Insert { relation: b.u32()?, new: (b.u8()? == b'N').then(|| b.row())?? },
        b'U' => update(b)?,
        b'D' => Message::Delete {
            relation: b.u32()?,
            old: (b.u8().filter(|k| b"KO".contains(k))?.into(), b.row()?),
        },
        b'T' => {
            let (count, flags) = (b.u32()?, b.u8()?);
            Message::Truncate { flags, relations: (0..count).map(|_| b.u32()).collect::<Option<_>>()? }
        }
        b'M' => {
            let (flags, lsn, prefix, length) = (b.u8()?, b.at()?, b.text()?, b.u32()?);
            Message::Logical { flags, lsn, prefix, content: b.take(length as usize)?.to_vec() }
        }
        b'b' => Message::BeginPrepare(b.prepared()?),
        b'P' => Message::Prepare { flags: b.u8()?, prepared: b.prepared()? },
        b'K' => Message::CommitPrepared { flags: b.u8()?, prepared: b.prepared()? },
        b'r' => Message::RollbackPrepared {
            flags: b.u8()?,
            end: b.at()?,
            rollback_end: b.at()?,
            times: [b.i64()?, b.i64()?],
            xid: b.u32()?,
            gid: b.text()?,
        },
        b'p' => Message::StreamPrepare { flags: b.u8()?, prepared: b.prepared()? },
        b'S' => Message::StreamStart { xid: b.u32()?, first: b.u8()? },
        b'E' => Message::StreamStop,
        b'c' => Message::StreamCommit { xid: b.u32()?, end: b.end()? },
        b'A' => {
            let (xid, sub) = (b.u32()?, b.u32()?);
            let at = if b.0.is_empty() { None } else { Some((b.at()?, b.i64()?)) };
            Message::StreamAbort { xid, sub, at }
        }
        _ => return None,
    };
    Some((sub, message))
}

fn relation(b: &mut Bytes<'_>) -> Option<Relation> {
    let (id, schema, name, identity, count) = (b.u32()?, b.text()?, b.text()?, b.u8()?.into(), b.u16()?);
    let column = |_| {
        let (flags, name, type_oid) = (b.u8()?, b.text()?, b.u32()?);
        Some(Column { flags, name, type_oid, typmod: b.u32()?.cast_signed() })
    };
    Some(Relation { id, schema, name, identity, columns: (0..count).map(column).collect::<Option<_>>()? })
}

fn update(b: &mut Bytes<'_>) -> Option<Message> {
    let relation = b.u32()?;
    let old = match b.u8()? {
        b'N' => None,
        kind @ (b'K' | b'O') => {
            let old = (kind.into(), b.row()?);
            (b.u8()? == b'N').then_some(Some(old))?
        }
        _ => return None,
    };
    Some(Message::Update { relation, old, new: b.row()? })
}

/// Big-endian fields; `None` if the bytes end too early.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    fn at(&mut self) -> Option<At> {
        self.array().map(u64::from_be_bytes).map(At)
    }

    fn text(&mut self) -> Option<String> {
        let length = self.0.iter().position(|&byte| byte == 0)?;
        let text = self.take(length)?.to_vec();
        self.u8()?;
        String::from_utf8(text).ok()
    }

    fn end(&mut self) -> Option<End> {
        Some(End { flags: self.u8()?, lsn: self.at()?, end: self.at()?, time: self.i64()? })
    }

    fn prepared(&mut self) -> Option<Prepared> {
        let (lsn, end, time, xid) = (self.at()?, self.at()?, self.i64()?, self.u32()?);
        Some(Prepared { lsn, end, time, xid, gid: self.text()? })
    }

    fn row(&mut self) -> Option<Row> {
        let count = self.u16()?;
        (0..count).map(|_| self.value()).collect()
    }

    fn value(&mut self) -> Option<Value> {
        let kind = self.u8()?;
        let mut bytes = || {
            let length = self.u32()?;
            self.take(length as usize).map(<[u8]>::to_vec)
        };
        Some(match kind {
            b'n' => Value::Null,
            b'u' => Value::Unchanged,
            b't' => Value::Text(bytes()?),
            b'b' => Value::Binary(bytes()?),
            _ => return None,
        })
    }
}

/// The messages for people, one per line.
pub(crate) fn tell(sent: &[Sent]) -> String {
    let (mut in_stream, mut told) = (false, String::new());
    for Sent { lsn, xid, data } in sent {
        let message = read(data, in_stream);
        in_stream = match message {
            Ok((_, Message::StreamStart { .. })) => true,
            Ok((_, Message::StreamStop)) => false,
            _ => in_stream,
        };
        told.push_str(&format!("{:?} {xid} {message:?}\n", At(*lsn)));
    }
    told
}
