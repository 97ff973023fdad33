//! Messages for people (`text`), for programs (`json`), and as they are (`pgoutput`).
//!
//! | format | |
//! | --- | --- |
//! | text | a line each: LSN, transaction, what happened, the table, its columns as `name='value'` |
//! | json | an object a line with `lsn`, `xid` and `kind`; values are texts |
//! | pgoutput | length of the message (4 bytes), LSN (8), transaction (4), all big-endian, then the message |

use std::collections::HashMap;
use std::io::{self, Write};

use base::{Oid, PgTimestamp};
use bytes::Bytes;
use output::Output;
use proto::pgoutput::{self, Column, CommitInfo, Message, OldTuple, Relation, Tuple};
use serde::ser::{Serialize, SerializeMap, Serializer};
use types::{Align, Codec, Settings, TypeInfo, TypeKind};

use crate::cli::DecodeFormat;
use crate::exit::{Code, exit};

/// `timestamptz`.
const TIMESTAMPTZ: Oid = Oid(1184);

/// Writes messages.
pub(super) struct Renderer<W> {
    format: DecodeFormat,
    out: W,
    relations: HashMap<Oid, Relation>,
    time: Option<(Codec, Settings)>,
}

/// One line of JSON.
#[derive(serde::Serialize)]
struct Line<'a> {
    lsn: String,
    xid: u32,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<RenderedRow<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old: Option<RenderedRow<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new: Option<RenderedRow<'a>>,
    /// Names of large values that the change did not touch, so that WAL does not have them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unchanged: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tables: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit_lsn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cascade: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_identity: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transactional: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// A row's columns and their values, in column order.
#[derive(Clone, Copy)]
struct RenderedRow<'a> {
    relation: &'a Relation,
    tuple: &'a Tuple,
    /// Only the columns of the replica identity.
    key_only: bool,
}

impl<'a> RenderedRow<'a> {
    fn columns(self) -> impl Iterator<Item = (&'a str, Column<'a>)> {
        let columns = self.relation.columns.iter().zip(self.tuple.columns());
        let wanted = columns.filter(move |(column, _)| !self.key_only || column.identity);
        wanted.map(|(column, value)| (column.name.as_str(), value))
    }

    fn unchanged(self) -> Vec<&'a str> {
        self.columns().filter(|(_, value)| *value == Column::Unchanged).map(|(name, _)| name).collect()
    }
}

impl Serialize for RenderedRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.columns() {
            match value {
                Column::Unchanged => {}
                Column::Null => map.serialize_entry(name, &None::<()>)?,
                Column::Text(bytes) | Column::Binary(bytes) => {
                    map.serialize_entry(name, &String::from_utf8_lossy(bytes))?;
                }
            }
        }
        map.end()
    }
}

impl<W: Write> Renderer<W> {
    pub(super) fn new(format: DecodeFormat, settings: &Settings, out: W) -> Renderer<W> {
        let timestamptz = TypeInfo {
            oid: TIMESTAMPTZ,
            name: "timestamptz".to_owned(),
            len: 8,
            align: Align::Double,
            delimiter: b',',
            kind: TypeKind::Base,
        };
        let codec = Codec::compile(TIMESTAMPTZ, &HashMap::from([(TIMESTAMPTZ, timestamptz)]), settings);
        let time = codec.ok().map(|codec| (codec, settings.clone()));
        Renderer { format, out, relations: HashMap::new(), time }
    }

    /// Writes one message.
    pub(super) fn message(&mut self, output: &Output<'_>) -> anyhow::Result<()> {
        if self.format == DecodeFormat::Pgoutput {
            let length = u32::try_from(output.data.len())?;
            let head =
                [&length.to_be_bytes()[..], &output.lsn.as_u64().to_be_bytes(), &output.xid.0.to_be_bytes()];
            return written(
                self.out.write_all(&head.concat()).and_then(|()| self.out.write_all(output.data)),
            );
        }
        let (_, message) = pgoutput::decode(Bytes::copy_from_slice(output.data), false)?;
        if let Message::Relation(relation) = message {
            self.relations.insert(relation.id, relation);
            return Ok(());
        }
        let Some(line) = self.line(output, &message) else { return Ok(()) };
        let line = match self.format {
            DecodeFormat::Json => serde_json::to_string(&line)?,
            _ => text(&line),
        };
        written(writeln!(self.out, "{line}"))
    }

    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        written(self.out.flush())
    }

    fn time(&self, time: PgTimestamp) -> Option<String> {
        let (codec, settings) = self.time.as_ref()?;
        let mut text = Vec::new();
        codec.text(&time.0.to_le_bytes(), settings, &mut text).ok()?;
        String::from_utf8(text).ok()
    }

    /// The line for a message; `None` for messages that only describe others.
    fn line<'a>(&'a self, output: &Output<'_>, message: &'a Message) -> Option<Line<'a>> {
        let plain = |kind| Line {
            lsn: output.lsn.to_string(),
            xid: output.xid.0,
            kind,
            schema: None,
            table: None,
            key: None,
            old: None,
            new: None,
            unchanged: Vec::new(),
            tables: Vec::new(),
            time: None,
            commit_lsn: None,
            cascade: None,
            restart_identity: None,
            origin: None,
            prefix: None,
            transactional: None,
            content: None,
        };
        let of = |kind, relation: &Oid, old: Option<&'a OldTuple>, new: Option<&'a Tuple>| {
            let relation = self.relations.get(relation)?;
            let old = old.map(|old| RenderedRow { relation, tuple: &old.tuple, key_only: old.key_only });
            let new = new.map(|tuple| RenderedRow { relation, tuple, key_only: false });
            Some(Line {
                schema: Some(&relation.namespace),
                table: Some(&relation.name),
                key: old.filter(|old| old.key_only),
                old: old.filter(|old| !old.key_only),
                new,
                unchanged: new.map(RenderedRow::unchanged).unwrap_or_default(),
                ..plain(kind)
            })
        };
        Some(match message {
            Message::Insert { relation, new } => of("insert", relation, None, Some(new))?,
            Message::Update { relation, old, new } => of("update", relation, old.as_ref(), Some(new))?,
            Message::Delete { relation, old } => of("delete", relation, Some(old), None)?,
            Message::Begin { final_lsn, commit_time, .. } => {
                let (commit_lsn, time) = (Some(final_lsn.to_string()), self.time(*commit_time));
                Line { commit_lsn, time, ..plain("begin") }
            }
            Message::Commit(CommitInfo { commit_lsn, commit_time, .. }) => {
                let (commit_lsn, time) = (Some(commit_lsn.to_string()), self.time(*commit_time));
                Line { commit_lsn, time, ..plain("commit") }
            }
            Message::Origin { name, .. } => Line { origin: Some(name), ..plain("origin") },
            Message::Truncate { relations, cascade, restart_identity } => {
                let name = |relation: &Relation| name(&relation.namespace, &relation.name);
                let tables = relations.iter().filter_map(|oid| self.relations.get(oid)).map(name).collect();
                let (cascade, restart_identity) = (Some(*cascade), Some(*restart_identity));
                Line { tables, cascade, restart_identity, ..plain("truncate") }
            }
            Message::Logical { transactional, prefix, content, .. } => Line {
                prefix: Some(prefix),
                transactional: Some(*transactional),
                content: Some(String::from_utf8_lossy(content).into_owned()),
                ..plain("message")
            },
            _ => return None,
        })
    }
}

/// A closed pipe is not an error: the reader has seen enough.
fn written(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            Err(exit(Code::Failed, "nobody reads the output any more"))
        }
        other => Ok(other?),
    }
}

/// A name as SQL writes it.
fn identifier(name: &str) -> String {
    let is_plain = |(at, byte): (usize, u8)| {
        byte.is_ascii_lowercase() || byte == b'_' || at > 0 && (byte.is_ascii_digit() || byte == b'$')
    };
    match !name.is_empty() && name.bytes().enumerate().all(is_plain) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

fn name(schema: &str, table: &str) -> String {
    format!("{}.{}", identifier(schema), identifier(table))
}

/// A value as SQL writes it, always in one line.
fn literal(value: &str) -> String {
    let quoted = value.replace('\'', "''");
    if !value.chars().any(|character| character.is_control()) {
        return format!("'{quoted}'");
    }
    let mut text = "E'".to_owned();
    for character in quoted.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            character if character.is_control() => {
                text.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            character => text.push(character),
        }
    }
    text.push('\'');
    text
}

/// One line of text.
fn text(line: &Line<'_>) -> String {
    let mut words = vec![line.lsn.clone(), line.xid.to_string(), line.kind.to_ascii_uppercase()];
    if let (Some(schema), Some(table)) = (line.schema, line.table) {
        words.push(name(schema, table));
    }
    for (what, row) in [("key", line.key), ("old", line.old), ("new", line.new)] {
        let Some(row) = row else { continue };
        // An INSERT can only have a new row.
        if what != "new" || line.kind != "insert" {
            words.push(format!("{what}:"));
        }
        words.extend(row.columns().map(|(name, value)| match value {
            Column::Null => format!("{}=NULL", identifier(name)),
            Column::Unchanged => format!("{}=(unchanged)", identifier(name)),
            Column::Text(bytes) | Column::Binary(bytes) => {
                format!("{}={}", identifier(name), literal(&String::from_utf8_lossy(bytes)))
            }
        }));
    }
    if !line.tables.is_empty() {
        words.push(line.tables.join(", "));
    }
    words.extend(line.cascade.filter(|is| *is).map(|_| "CASCADE".to_owned()));
    words.extend(line.restart_identity.filter(|is| *is).map(|_| "RESTART IDENTITY".to_owned()));
    words.extend(line.origin.map(literal));
    words.extend(line.prefix.map(literal));
    words.extend(line.content.as_deref().map(literal));
    words.extend(line.transactional.filter(|is| !is).map(|_| "(not transactional)".to_owned()));
    words.extend(line.time.clone());
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use base::{Lsn, Xid};
    use proto::pgoutput::encode::{self, Marker};

    use super::*;

    fn row(out: &mut Vec<u8>, values: &[Option<&str>]) {
        encode::tuple(out, values.len() as u16);
        for value in values {
            match value {
                None => encode::null(out),
                Some("(unchanged)") => encode::unchanged(out),
                Some(text) => {
                    let bytes = text.as_bytes();
                    let append = |out: &mut Vec<u8>| {
                        out.extend_from_slice(bytes);
                        Ok::<(), std::convert::Infallible>(())
                    };
                    encode::value(out, false, append).unwrap();
                }
            }
        }
    }

    fn messages() -> Vec<Vec<u8>> {
        let write = |of: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            of(&mut out);
            out
        };
        vec![
            write(&|out| encode::begin(out, Lsn::new(0x20), PgTimestamp(0), Xid(7))),
            write(&|out| {
                encode::relation(out, None, Oid(1), ("public", "T"), pgoutput::ReplicaIdentity::Default, 2);
                encode::relation_column(out, true, "id", Oid(23), -1);
                encode::relation_column(out, false, "v", Oid(25), -1);
            }),
            write(&|out| {
                encode::row(out, b'I', None, Oid(1));
                encode::marker(out, Marker::New);
                row(out, &[Some("1"), Some("it's\ntwo \\ lines")]);
            }),
            write(&|out| {
                encode::row(out, b'U', None, Oid(1));
                encode::marker(out, Marker::Key);
                row(out, &[Some("1"), None]);
                encode::marker(out, Marker::New);
                row(out, &[Some("2"), Some("(unchanged)")]);
            }),
            write(&|out| encode::truncate(out, None, &[Oid(1)], true, false)),
            write(&|out| encode::message(out, None, false, Lsn::new(0x18), (b"p", b"c"))),
        ]
    }

    fn rendered(format: DecodeFormat) -> Vec<u8> {
        let mut out = Vec::new();
        let mut renderer =
            Renderer::new(format, &Settings::new(base::PgVersion::from_num(180_000)), &mut out);
        for data in messages() {
            renderer.message(&Output { lsn: Lsn::new(0x10), xid: Xid(7), data: &data }).unwrap();
        }
        renderer.flush().unwrap();
        out
    }

    #[test]
    fn text_is_a_line_a_change() {
        let text = String::from_utf8(rendered(DecodeFormat::Text)).unwrap();
        let expected = "\
0/10 7 BEGIN 2000-01-01 00:00:00+00
0/10 7 INSERT public.\"T\" id='1' v=E'it''s\\ntwo \\\\ lines'
0/10 7 UPDATE public.\"T\" key: id='1' new: id='2' v=(unchanged)
0/10 7 TRUNCATE public.\"T\" CASCADE
0/10 7 MESSAGE 'p' 'c' (not transactional)
";
        assert_eq!(text, expected);
    }

    #[test]
    fn json_is_an_object_a_change() {
        let json = String::from_utf8(rendered(DecodeFormat::Json)).unwrap();
        let lines: Vec<serde_json::Value> =
            json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(
            lines[2],
            serde_json::json!({"lsn": "0/10", "xid": 7, "kind": "update", "schema": "public", "table": "T",
                "key": {"id": "1"}, "new": {"id": "2"}, "unchanged": ["v"]})
        );
        assert_eq!(lines[1]["new"]["v"], "it's\ntwo \\ lines");
    }

    #[test]
    fn raw_messages_are_framed() {
        let mut bytes = &rendered(DecodeFormat::Pgoutput)[..];
        for message in messages() {
            let (head, rest) = bytes.split_at(16);
            assert_eq!(head[..4], (message.len() as u32).to_be_bytes());
            assert_eq!(head[4..], [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 7]);
            assert_eq!(rest[..message.len()], message);
            bytes = &rest[message.len()..];
        }
        assert!(bytes.is_empty());
    }
}
