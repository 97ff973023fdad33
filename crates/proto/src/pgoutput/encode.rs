//! Messages to bytes, as pgoutput writes them, for code that takes its place.
//!
//! Every function appends one message, or a part of one, to the caller's bytes. Messages between
//! stream start and stream stop get a transaction id, others do not. A row is written in steps, so
//! that values are rendered directly into the message:
//!
//! ```text
//! insert:  row('I')                     marker(New) tuple value*
//! update:  row('U') [marker(Key | Old) tuple value*] marker(New) tuple value*
//! delete:  row('D')  marker(Key | Old) tuple value*
//! ```

use base::{Lsn, Oid, PgTimestamp, Xid};

use super::{CommitInfo, ReplicaIdentity};

/// The kind of the row that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// The new row.
    New,
    /// The old row, only with its replica identity.
    Key,
    /// The whole old row.
    Old,
}

/// A prepared transaction, as messages name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared<'a> {
    /// Where its prepare record starts.
    pub prepare_lsn: Lsn,
    /// Where its prepare record ends.
    pub end_lsn: Lsn,
    /// When it was prepared.
    pub time: PgTimestamp,
    /// Its id.
    pub xid: Xid,
    /// Its name.
    pub gid: &'a [u8],
}

fn u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn lsn(out: &mut Vec<u8>, lsn: Lsn) {
    out.extend_from_slice(&lsn.as_u64().to_be_bytes());
}

fn time(out: &mut Vec<u8>, time: PgTimestamp) {
    out.extend_from_slice(&time.0.to_be_bytes());
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.push(0);
}

/// Appends the kind, and in a stream the transaction.
fn head(out: &mut Vec<u8>, kind: u8, xid: Option<Xid>) {
    out.push(kind);
    if let Some(xid) = xid {
        u32(out, xid.0);
    }
}

/// `pg_catalog` is written as an empty name.
fn namespace(out: &mut Vec<u8>, name: &str) {
    string(out, if name == "pg_catalog" { b"" } else { name.as_bytes() });
}

fn length(length: usize) -> u32 {
    u32::try_from(length).expect("lengths that the server can have")
}

/// `B`.
pub fn begin(out: &mut Vec<u8>, final_lsn: Lsn, commit_time: PgTimestamp, xid: Xid) {
    out.push(b'B');
    lsn(out, final_lsn);
    time(out, commit_time);
    u32(out, xid.0);
}

fn commit_info(out: &mut Vec<u8>, commit: &CommitInfo) {
    // Flags, of which there are none.
    out.push(0);
    lsn(out, commit.commit_lsn);
    lsn(out, commit.end_lsn);
    time(out, commit.commit_time);
}

/// `C`.
pub fn commit(out: &mut Vec<u8>, commit: &CommitInfo) {
    out.push(b'C');
    commit_info(out, commit);
}

/// `O`. `origin_lsn` is the commit at the origin.
pub fn origin(out: &mut Vec<u8>, origin_lsn: Lsn, name: &str) {
    out.push(b'O');
    lsn(out, origin_lsn);
    string(out, name.as_bytes());
}

/// `R`. As many [`relation_column`]s must follow.
pub fn relation(
    out: &mut Vec<u8>,
    xid: Option<Xid>,
    oid: Oid,
    (schema, name): (&str, &str),
    identity: ReplicaIdentity,
    columns: u16,
) {
    head(out, b'R', xid);
    u32(out, oid.0);
    namespace(out, schema);
    string(out, name.as_bytes());
    out.push(match identity {
        ReplicaIdentity::Default => b'd',
        ReplicaIdentity::Nothing => b'n',
        ReplicaIdentity::Full => b'f',
        ReplicaIdentity::Index => b'i',
    });
    out.extend_from_slice(&columns.to_be_bytes());
}

/// A column of a relation.
pub fn relation_column(out: &mut Vec<u8>, in_identity: bool, name: &str, type_oid: Oid, typmod: i32) {
    out.push(in_identity.into());
    string(out, name.as_bytes());
    u32(out, type_oid.0);
    u32(out, typmod.cast_unsigned());
}

/// `Y`.
pub fn type_name(out: &mut Vec<u8>, xid: Option<Xid>, oid: Oid, (schema, name): (&str, &str)) {
    head(out, b'Y', xid);
    u32(out, oid.0);
    namespace(out, schema);
    string(out, name.as_bytes());
}

/// The start of `I`, `U` or `D`.
pub fn row(out: &mut Vec<u8>, kind: u8, xid: Option<Xid>, relation: Oid) {
    head(out, kind, xid);
    u32(out, relation.0);
}

/// The kind of the row that follows.
pub fn marker(out: &mut Vec<u8>, marker: Marker) {
    out.push(match marker {
        Marker::New => b'N',
        Marker::Key => b'K',
        Marker::Old => b'O',
    });
}

/// The start of a row with this many values.
pub fn tuple(out: &mut Vec<u8>, columns: u16) {
    out.extend_from_slice(&columns.to_be_bytes());
}

/// NULL.
pub fn null(out: &mut Vec<u8>) {
    out.push(b'n');
}

/// A large value that did not change.
pub fn unchanged(out: &mut Vec<u8>) {
    out.push(b'u');
}

/// A value that `render` appends, as text or in binary form.
///
/// # Errors
/// That of `render`.
pub fn value<E>(
    out: &mut Vec<u8>,
    binary: bool,
    render: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    out.extend_from_slice(&[if binary { b'b' } else { b't' }, 0, 0, 0, 0]);
    let start = out.len();
    render(out)?;
    let length = length(out.len() - start).to_be_bytes();
    out[start - 4..start].copy_from_slice(&length);
    Ok(())
}

/// `T`.
pub fn truncate(
    out: &mut Vec<u8>,
    xid: Option<Xid>,
    relations: &[Oid],
    cascade: bool,
    restart_identity: bool,
) {
    head(out, b'T', xid);
    u32(out, length(relations.len()));
    out.push(u8::from(cascade) | u8::from(restart_identity) << 1);
    for relation in relations {
        u32(out, relation.0);
    }
}

/// `M`.
pub fn message(
    out: &mut Vec<u8>,
    xid: Option<Xid>,
    transactional: bool,
    at: Lsn,
    (prefix, content): (&[u8], &[u8]),
) {
    head(out, b'M', xid);
    out.push(transactional.into());
    lsn(out, at);
    string(out, prefix);
    u32(out, length(content.len()));
    out.extend_from_slice(content);
}

/// `S`.
pub fn stream_start(out: &mut Vec<u8>, xid: Xid, first_segment: bool) {
    out.push(b'S');
    u32(out, xid.0);
    out.push(first_segment.into());
}

/// `E`.
pub fn stream_stop(out: &mut Vec<u8>) {
    out.push(b'E');
}

/// `c`.
pub fn stream_commit(out: &mut Vec<u8>, xid: Xid, commit: &CommitInfo) {
    out.push(b'c');
    u32(out, xid.0);
    commit_info(out, commit);
}

/// `A`. Position and time are sent only with `streaming = parallel`.
pub fn stream_abort(out: &mut Vec<u8>, xid: Xid, subxid: Xid, at: Option<(Lsn, PgTimestamp)>) {
    out.push(b'A');
    u32(out, xid.0);
    u32(out, subxid.0);
    if let Some((end_lsn, aborted)) = at {
        lsn(out, end_lsn);
        time(out, aborted);
    }
}

fn prepared(out: &mut Vec<u8>, prepared: &Prepared<'_>) {
    lsn(out, prepared.prepare_lsn);
    lsn(out, prepared.end_lsn);
    time(out, prepared.time);
    u32(out, prepared.xid.0);
    string(out, prepared.gid);
}

/// `b`.
pub fn begin_prepare(out: &mut Vec<u8>, transaction: &Prepared<'_>) {
    out.push(b'b');
    prepared(out, transaction);
}

/// `P`.
pub fn prepare(out: &mut Vec<u8>, transaction: &Prepared<'_>) {
    out.extend_from_slice(&[b'P', 0]);
    prepared(out, transaction);
}

/// `p`.
pub fn stream_prepare(out: &mut Vec<u8>, transaction: &Prepared<'_>) {
    out.extend_from_slice(&[b'p', 0]);
    prepared(out, transaction);
}

/// `K`.
pub fn commit_prepared(out: &mut Vec<u8>, xid: Xid, commit: &CommitInfo, gid: &[u8]) {
    out.push(b'K');
    commit_info(out, commit);
    u32(out, xid.0);
    string(out, gid);
}

/// `r`.
pub fn rollback_prepared(
    out: &mut Vec<u8>,
    transaction: &Prepared<'_>,
    end_lsn: Lsn,
    rolled_back: PgTimestamp,
) {
    out.extend_from_slice(&[b'r', 0]);
    lsn(out, transaction.end_lsn);
    lsn(out, end_lsn);
    time(out, transaction.time);
    time(out, rolled_back);
    u32(out, transaction.xid.0);
    string(out, transaction.gid);
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;

    use super::super::{Column, Message, OldTuple, Relation, RelationColumn, Tuple, decode};
    use super::*;

    const SUB: Option<Xid> = Some(Xid(778));
    const COMMIT: CommitInfo = CommitInfo {
        commit_lsn: Lsn::new(0x1_0000_0010),
        end_lsn: Lsn::new(0x1_0000_0040),
        commit_time: PgTimestamp(-5),
    };

    /// Reads the message back: outside of a stream and, if possible, inside of one.
    fn read_back(write: impl Fn(&mut Vec<u8>, Option<Xid>), expected: &Message) {
        for xid in [None, SUB] {
            let mut out = Vec::new();
            write(&mut out, xid);
            assert_eq!(decode(Bytes::from(out), xid.is_some()).unwrap(), (xid, expected.clone()));
        }
    }

    fn read_back_alone(write: impl Fn(&mut Vec<u8>), expected: &Message) {
        let mut out = Vec::new();
        write(&mut out);
        assert_eq!(decode(Bytes::from(out), false).unwrap(), (None, expected.clone()));
    }

    fn values(out: &mut Vec<u8>, columns: &[Column<'_>]) {
        tuple(out, columns.len() as u16);
        for column in columns {
            let render = |bytes: &[u8], out: &mut Vec<u8>| {
                out.extend_from_slice(bytes);
                Ok::<(), Infallible>(())
            };
            match column {
                Column::Null => null(out),
                Column::Unchanged => unchanged(out),
                Column::Text(bytes) => value(out, false, |out| render(bytes, out)).unwrap(),
                Column::Binary(bytes) => value(out, true, |out| render(bytes, out)).unwrap(),
            }
        }
    }

    const OLD: [Column<'_>; 2] = [Column::Text(b"1"), Column::Null];
    const NEW: [Column<'_>; 2] = [Column::Binary(b"\0\x02"), Column::Unchanged];

    #[test]
    fn rows_read_back() {
        let (relation, new) = (Oid(16384), NEW.into_iter().collect::<Tuple>());
        let insert = |out: &mut Vec<u8>, xid| {
            row(out, b'I', xid, relation);
            marker(out, Marker::New);
            values(out, &NEW);
        };
        read_back(insert, &Message::Insert { relation, new: new.clone() });
        for (kind, key_only) in [(Marker::Key, true), (Marker::Old, false)] {
            let old = OldTuple { key_only, tuple: OLD.into_iter().collect() };
            let update = |out: &mut Vec<u8>, xid| {
                row(out, b'U', xid, relation);
                marker(out, kind);
                values(out, &OLD);
                marker(out, Marker::New);
                values(out, &NEW);
            };
            read_back(update, &Message::Update { relation, old: Some(old.clone()), new: new.clone() });
            let delete = |out: &mut Vec<u8>, xid| {
                row(out, b'D', xid, relation);
                marker(out, kind);
                values(out, &OLD);
            };
            read_back(delete, &Message::Delete { relation, old });
        }
    }

    #[test]
    fn what_is_said_of_relations_reads_back() {
        for (identity, namespace) in [
            (ReplicaIdentity::Default, "public"),
            (ReplicaIdentity::Nothing, "pg_catalog"),
            (ReplicaIdentity::Full, "s"),
            (ReplicaIdentity::Index, "Größe"),
        ] {
            let column = |name: &str, identity| RelationColumn {
                identity,
                name: name.to_owned(),
                type_oid: Oid(1700),
                typmod: if identity { -1 } else { 655_366 },
            };
            let described = Relation {
                id: Oid(16390),
                namespace: namespace.to_owned(),
                name: "t".to_owned(),
                identity,
                columns: vec![column("id", true), column("v", false)],
            };
            let write = |out: &mut Vec<u8>, xid| {
                relation(out, xid, described.id, (namespace, "t"), identity, 2);
                for column in &described.columns {
                    relation_column(out, column.identity, &column.name, column.type_oid, column.typmod);
                }
            };
            read_back(write, &Message::Relation(described.clone()));
        }
        let expected =
            Message::Type { id: Oid(16400), namespace: "pg_catalog".to_owned(), name: "int4".to_owned() };
        read_back(|out, xid| type_name(out, xid, Oid(16400), ("pg_catalog", "int4")), &expected);
        for (cascade, restart_identity) in [(false, false), (true, false), (false, true), (true, true)] {
            let relations = vec![Oid(1), Oid(0xffff_fff0)];
            let write = |out: &mut Vec<u8>, xid| {
                truncate(out, xid, &[Oid(1), Oid(0xffff_fff0)], cascade, restart_identity)
            };
            read_back(write, &Message::Truncate { relations, cascade, restart_identity });
        }
    }

    #[test]
    fn boundaries_and_messages_read_back() {
        let (at, when, xid) = (Lsn::new(0x2_0000_0018), PgTimestamp(700_000_000_000_001), Xid(777));
        let expected = Message::Begin { final_lsn: at, commit_time: when, xid };
        read_back_alone(|out| begin(out, at, when, xid), &expected);
        read_back_alone(|out| commit(out, &COMMIT), &Message::Commit(COMMIT));
        let expected = Message::Origin { lsn: at, name: "elsewhere".to_owned() };
        read_back_alone(|out| origin(out, at, "elsewhere"), &expected);
        for transactional in [true, false] {
            let content = Bytes::from_static(b"\0 what it says");
            let expected = Message::Logical {
                transactional,
                lsn: at,
                prefix: "for".to_owned(),
                content: content.clone(),
            };
            read_back(|out, xid| message(out, xid, transactional, at, (b"for", &content)), &expected);
        }
        for first_segment in [true, false] {
            let expected = Message::StreamStart { xid, first_segment };
            read_back_alone(|out| stream_start(out, xid, first_segment), &expected);
        }
        read_back_alone(stream_stop, &Message::StreamStop);
        let expected = Message::StreamCommit { xid, commit: COMMIT };
        read_back_alone(|out| stream_commit(out, xid, &COMMIT), &expected);
        for place in [None, Some((at, when))] {
            let expected = Message::StreamAbort { xid, subxid: Xid(778) };
            read_back_alone(|out| stream_abort(out, xid, Xid(778), place), &expected);
        }
    }

    #[test]
    fn messages_of_two_phases_are_laid_out_as_documented() {
        let transaction = Prepared {
            prepare_lsn: Lsn::new(0x11),
            end_lsn: Lsn::new(0x22),
            time: PgTimestamp(0x33),
            xid: Xid(0x44),
            gid: b"g",
        };
        let number = |number: u64| number.to_be_bytes().to_vec();
        let id = [0, 0, 0, 0x44, b'g', 0].to_vec();
        let body = [number(0x11), number(0x22), number(0x33), id.clone()].concat();
        type Write = fn(&mut Vec<u8>, &Prepared<'_>);
        let cases: [(Write, &[u8]); 3] = [(begin_prepare, b"b"), (prepare, b"P\0"), (stream_prepare, b"p\0")];
        for (write, start) in cases {
            let mut out = Vec::new();
            write(&mut out, &transaction);
            assert_eq!(out, [start, &body].concat());
            assert_eq!(decode(Bytes::from(out), false).unwrap().1, Message::TwoPhase { kind: start[0] });
        }
        let mut out = Vec::new();
        commit_prepared(&mut out, Xid(0x44), &COMMIT, b"g");
        let commit = [number(0x1_0000_0010), number(0x1_0000_0040), (-5_i64).to_be_bytes().to_vec()].concat();
        assert_eq!(out, [b"K\0".to_vec(), commit, id.clone()].concat());
        let mut out = Vec::new();
        rollback_prepared(&mut out, &transaction, Lsn::new(0x55), PgTimestamp(0x66));
        let places = [number(0x22), number(0x55), number(0x33), number(0x66)].concat();
        assert_eq!(out, [b"r\0".to_vec(), places, id].concat());
    }
}
