//! Bytes to messages.

use base::{Lsn, Oid, PgTimestamp, Xid};
use bytes::{Buf, Bytes};

use super::{CommitInfo, DecodeError, Message, OldTuple, Relation, RelationColumn, ReplicaIdentity, Tuple};

/// Reads one message.
///
/// `in_stream` says whether the message came between stream start and stream stop. If so, the first
/// half of the result is the (sub)transaction that the message names, for kinds that name one.
///
/// # Errors
/// An unknown kind, a message that is cut short, or bytes left over.
pub fn decode(data: Bytes, in_stream: bool) -> Result<(Option<Xid>, Message), DecodeError> {
    let (kind, length) = (data.first().copied(), data.len());
    let mut reader = Reader(data);
    message(&mut reader, in_stream)
        .and_then(|decoded| if reader.0.is_empty() { Ok(decoded) } else { Err("bytes are left over") })
        .map_err(|reason| DecodeError { kind, at: length - reader.0.len(), reason })
}

fn message(r: &mut Reader, in_stream: bool) -> Result<(Option<Xid>, Message), &'static str> {
    let kind = r.u8()?;
    let carries_xid = in_stream && matches!(kind, b'R' | b'Y' | b'I' | b'U' | b'D' | b'T' | b'M');
    let xid = if carries_xid { Some(Xid(r.u32()?)) } else { None };
    let message = match kind {
        b'I' => insert(r)?,
        b'U' => update(r)?,
        b'D' => delete(r)?,
        b'B' => Message::Begin { final_lsn: r.lsn()?, commit_time: r.time()?, xid: Xid(r.u32()?) },
        b'C' => Message::Commit(commit(r)?),
        b'O' => Message::Origin { lsn: r.lsn()?, name: r.string()? },
        b'R' => Message::Relation(relation(r)?),
        b'Y' => Message::Type { id: Oid(r.u32()?), namespace: namespace(r)?, name: r.string()? },
        b'T' => truncate(r)?,
        b'M' => logical(r)?,
        b'S' => Message::StreamStart { xid: Xid(r.u32()?), first_segment: r.flag()? },
        b'E' => Message::StreamStop,
        b'c' => Message::StreamCommit { xid: Xid(r.u32()?), commit: commit(r)? },
        b'A' => stream_abort(r)?,
        b'b' | b'P' | b'K' | b'r' | b'p' => {
            r.0.clear();
            Message::TwoPhase { kind }
        }
        _ => return Err("unknown kind of message"),
    };
    Ok((xid, message))
}

fn insert(r: &mut Reader) -> Result<Message, &'static str> {
    let relation = Oid(r.u32()?);
    r.expect(b'N')?;
    Ok(Message::Insert { relation, new: Tuple::split_from(&mut r.0)? })
}

fn update(r: &mut Reader) -> Result<Message, &'static str> {
    let relation = Oid(r.u32()?);
    let old = match r.u8()? {
        b'N' => None,
        kind => {
            let old = old_tuple(kind, r)?;
            r.expect(b'N')?;
            Some(old)
        }
    };
    Ok(Message::Update { relation, old, new: Tuple::split_from(&mut r.0)? })
}

fn delete(r: &mut Reader) -> Result<Message, &'static str> {
    let relation = Oid(r.u32()?);
    let kind = r.u8()?;
    Ok(Message::Delete { relation, old: old_tuple(kind, r)? })
}

fn old_tuple(kind: u8, r: &mut Reader) -> Result<OldTuple, &'static str> {
    let key_only = match kind {
        b'K' => true,
        b'O' => false,
        _ => return Err("neither a key nor an old row"),
    };
    Ok(OldTuple { key_only, tuple: Tuple::split_from(&mut r.0)? })
}

fn commit(r: &mut Reader) -> Result<CommitInfo, &'static str> {
    if r.u8()? != 0 {
        return Err("unknown commit flags");
    }
    Ok(CommitInfo { commit_lsn: r.lsn()?, end_lsn: r.lsn()?, commit_time: r.time()? })
}

/// pgoutput writes `pg_catalog` as an empty name.
fn namespace(r: &mut Reader) -> Result<String, &'static str> {
    let name = r.string()?;
    Ok(if name.is_empty() { "pg_catalog".to_owned() } else { name })
}

fn relation(r: &mut Reader) -> Result<Relation, &'static str> {
    let id = Oid(r.u32()?);
    let namespace = namespace(r)?;
    let name = r.string()?;
    let identity = match r.u8()? {
        b'd' => ReplicaIdentity::Default,
        b'n' => ReplicaIdentity::Nothing,
        b'f' => ReplicaIdentity::Full,
        b'i' => ReplicaIdentity::Index,
        _ => return Err("unknown replica identity"),
    };
    let count = r.u16()?;
    let columns = (0..count).map(|_| relation_column(r)).collect::<Result<_, _>>()?;
    Ok(Relation { id, namespace, name, identity, columns })
}

fn relation_column(r: &mut Reader) -> Result<RelationColumn, &'static str> {
    Ok(RelationColumn {
        identity: r.flag()?,
        name: r.string()?,
        type_oid: Oid(r.u32()?),
        typmod: r.u32()?.cast_signed(),
    })
}

fn truncate(r: &mut Reader) -> Result<Message, &'static str> {
    let count = r.u32()? as usize;
    let flags = r.u8()?;
    if flags > 3 {
        return Err("unknown truncate flags");
    }
    if r.0.len() != count * 4 {
        return Err("the number of relations does not fit the message");
    }
    let relations = (0..count).map(|_| r.u32().map(Oid)).collect::<Result<_, _>>()?;
    Ok(Message::Truncate { relations, cascade: flags & 1 != 0, restart_identity: flags & 2 != 0 })
}

fn logical(r: &mut Reader) -> Result<Message, &'static str> {
    let transactional = r.flag()?;
    let (lsn, prefix) = (r.lsn()?, r.string()?);
    let length = r.u32()? as usize;
    if r.0.len() != length {
        return Err("the content does not fit the message");
    }
    let content = r.0.split_to(length);
    Ok(Message::Logical { transactional, lsn, prefix, content })
}

fn stream_abort(r: &mut Reader) -> Result<Message, &'static str> {
    let message = Message::StreamAbort { xid: Xid(r.u32()?), subxid: Xid(r.u32()?) };
    // Only with streaming = parallel: the abort's LSN and time.
    if !r.0.is_empty() {
        r.lsn()?;
        r.time()?;
    }
    Ok(message)
}

/// Big-endian fields, each length checked before it is believed.
struct Reader(Bytes);

const CUT_SHORT: &str = "the message is cut short";

impl Reader {
    fn u8(&mut self) -> Result<u8, &'static str> {
        self.0.try_get_u8().map_err(|_| CUT_SHORT)
    }

    fn flag(&mut self) -> Result<bool, &'static str> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("unknown flags"),
        }
    }

    fn u16(&mut self) -> Result<u16, &'static str> {
        self.0.try_get_u16().map_err(|_| CUT_SHORT)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.0.try_get_u32().map_err(|_| CUT_SHORT)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.0.try_get_u64().map_err(|_| CUT_SHORT)
    }

    fn lsn(&mut self) -> Result<Lsn, &'static str> {
        self.u64().map(Lsn::new)
    }

    fn time(&mut self) -> Result<PgTimestamp, &'static str> {
        self.u64().map(|us| PgTimestamp(us.cast_signed()))
    }

    fn expect(&mut self, marker: u8) -> Result<(), &'static str> {
        if self.u8()? == marker { Ok(()) } else { Err("the new row is not where it should be") }
    }

    fn string(&mut self) -> Result<String, &'static str> {
        let end = self.0.iter().position(|&b| b == 0).ok_or("a name has no end")?;
        let name = self.0.split_to(end);
        self.0.advance(1);
        String::from_utf8(name.into()).map_err(|_| "a name is not UTF-8")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Column, TupleBuilder};
    use super::*;

    fn tuple_bytes(columns: &[Column<'_>]) -> Vec<u8> {
        let mut bytes = u16::try_from(columns.len()).unwrap().to_be_bytes().to_vec();
        for column in columns {
            match column {
                Column::Null => bytes.push(b'n'),
                Column::Unchanged => bytes.push(b'u'),
                Column::Text(v) | Column::Binary(v) => {
                    bytes.push(if matches!(column, Column::Text(_)) { b't' } else { b'b' });
                    bytes.extend(u32::try_from(v.len()).unwrap().to_be_bytes());
                    bytes.extend(*v);
                }
            }
        }
        bytes
    }

    fn samples() -> Vec<(Vec<u8>, bool)> {
        let row = [Column::Text(b"1"), Column::Null, Column::Unchanged, Column::Binary(b"\0\x01")];
        let mut insert = b"I\0\0\x40\0N".to_vec();
        insert.extend(tuple_bytes(&row));
        let mut update = b"U\0\0\0\x07\0\0\x40\0K".to_vec();
        update.extend(tuple_bytes(&row));
        update.push(b'N');
        update.extend(tuple_bytes(&row));
        let mut relation = b"R\0\0\x40\0public\0t\0d\0\x01\x01id\0".to_vec();
        relation.extend([0, 0, 0, 23, 255, 255, 255, 255]);
        let mut commit = b"C\0".to_vec();
        commit.extend([1; 24]);
        vec![
            (insert, false),
            (update, true),
            (relation, false),
            (commit, false),
            (b"T\0\0\0\x01\x03\0\0\x40\0".to_vec(), false),
            (b"A\0\0\0\x01\0\0\0\x02".to_vec(), false),
        ]
    }

    #[test]
    fn every_prefix_of_a_message_is_an_error_and_never_a_panic() {
        for (bytes, in_stream) in samples() {
            assert!(decode(Bytes::from(bytes.clone()), in_stream).is_ok(), "{bytes:?}");
            for length in 0..bytes.len() {
                assert!(decode(Bytes::copy_from_slice(&bytes[..length]), in_stream).is_err());
            }
            let mut longer = bytes;
            longer.push(0);
            assert!(decode(Bytes::from(longer), in_stream).is_err());
        }
    }

    #[test]
    fn errors_name_the_message_and_the_place_in_it() {
        let (mut bytes, _) = samples().remove(0);
        // Kind and relation, the marker, the count, then a text of one byte.
        bytes[8 + 6] = b'x';
        let error = decode(Bytes::from(bytes.clone()), false).unwrap_err();
        assert_eq!(error.to_string(), "pgoutput message 'I', byte 14: a column is of an unknown kind");
        bytes[8 + 4] = 200;
        let error = decode(Bytes::from(bytes), false).unwrap_err();
        assert_eq!(error.to_string(), "pgoutput message 'I', byte 8: a column is longer than its message");
        let error = decode(Bytes::from_static(b"\xff"), false).unwrap_err();
        assert_eq!(error.to_string(), "pgoutput message '\\xff', byte 1: unknown kind of message");
    }

    #[test]
    fn a_streamed_change_names_its_transaction() {
        let (bytes, _) = samples().remove(1);
        let (xid, message) = decode(Bytes::from(bytes), true).unwrap();
        assert_eq!(xid, Some(Xid(7)));
        let Message::Update { relation, old: Some(old), new } = message else { panic!("{message:?}") };
        assert_eq!(relation, Oid(16384));
        assert!(old.key_only && new.has_unchanged());
        let columns: Vec<_> = new.columns().collect();
        assert_eq!(columns, [Column::Text(b"1"), Column::Null, Column::Unchanged, Column::Binary(b"\0\x01")]);
    }

    #[test]
    fn a_built_tuple_reads_back() {
        let mut builder = TupleBuilder::default();
        builder.push(Column::Text(b"x"));
        builder.push(Column::Unchanged);
        let tuple = builder.finish();
        assert_eq!(tuple.len(), 2);
        assert!(tuple.columns().eq([Column::Text(b"x".as_slice()), Column::Unchanged]));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, in_stream: bool) {
            let _ = decode(Bytes::from(bytes), in_stream);
        }
    }
}
