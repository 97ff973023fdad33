//! What the target keeps of one conflict, as the applier hands it over.
//!
//! The applier writes a record in the transaction that resolves the conflict, so that both are
//! there or neither ([`crate::statements::record_conflicts`]). What was rolled back is recorded
//! afterwards, in a transaction of its own.

use std::borrow::Cow;

use base::{Lsn, Oid, PgTimestamp, Xid, quote_literal};
use conflict::{ConflictType, Resolution, Written};

/// What became of a change that met a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictOutcome {
    /// The change was written.
    Applied,
    /// The target's row stays, and the change was left out.
    Kept,
    /// The transaction was rolled back.
    Error,
}

impl ConflictOutcome {
    /// The name in the history.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ConflictOutcome::Applied => "applied",
            ConflictOutcome::Kept => "kept",
            ConflictOutcome::Error => "error",
        }
    }

    /// The outcome of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<ConflictOutcome> {
        [ConflictOutcome::Applied, ConflictOutcome::Kept, ConflictOutcome::Error]
            .into_iter()
            .find(|own| own.name() == name)
    }
}

/// The key and the rows of a conflict, each a JSON object by the names of the target's columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordedValues<'v> {
    /// The key by which the change met the row.
    pub key: Option<&'v str>,
    /// The target's row before the change.
    pub local_row: Option<&'v str>,
    /// The row as the source sent it. It lacks the columns that the source did not send.
    pub remote_row: Option<&'v str>,
    /// The replica identity that the source sent.
    pub replica_identity: Option<&'v str>,
}

/// One conflict: a row of the target that a change met, or the lack of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConflictRecord<'r> {
    /// What kind.
    pub kind: ConflictType,
    /// Schema and name of the target's table.
    pub table: (&'r str, &'r str),
    /// The unique index that the change violates.
    pub index: Option<&'r str>,
    /// The rule that decided.
    pub resolution: Resolution,
    /// What it decided.
    pub outcome: ConflictOutcome,
    /// The source's transaction.
    pub remote_xid: Xid,
    /// The LSN that the messages call `finished at`.
    pub finished_at: Lsn,
    /// The source's commit time.
    pub remote_time: PgTimestamp,
    /// The origin that the source names; `None` for what was written on the source itself.
    pub remote_origin: Option<&'r str>,
    /// The last writer of the target's row, if there is a row and it was looked at.
    pub local: Option<&'r Written>,
    /// Nothing, unless the user asked for values.
    pub values: RecordedValues<'r>,
    /// PostgreSQL's DETAIL.
    pub detail: &'r str,
}

/// A conflict with the last writer of a row, where the server itself decides and records it. The
/// texts are SQL expressions, but for the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterConflict<'s> {
    /// What kind.
    pub kind: ConflictType,
    /// Schema and name of the target's table.
    pub table: (&'s str, &'s str),
    /// The rule that decided.
    pub resolution: Resolution,
    /// Whether the change is written.
    pub is_applied: &'s str,
    /// The source's transaction, an integer.
    pub remote_xid: &'s str,
    /// The LSN that the messages call `finished at`.
    pub finished_at: &'s str,
    /// The source's commit time.
    pub remote_time: &'s str,
    /// The last writer's transaction, an integer.
    pub local_xid: &'s str,
    /// The name of its origin.
    pub local_origin: &'s str,
    /// Its commit time.
    pub local_time: &'s str,
    /// PostgreSQL's DETAIL.
    pub detail: &'s str,
}

impl WriterConflict<'_> {
    /// The columns that have values, each with its value as SQL.
    pub(crate) fn columns(&self) -> Vec<(&'static str, String)> {
        let [applied, kept] =
            [ConflictOutcome::Applied, ConflictOutcome::Kept].map(|of| quote_literal(of.name()));
        vec![
            ("type", quote_literal(self.kind.name())),
            ("schema_name", quote_literal(self.table.0)),
            ("table_name", quote_literal(self.table.1)),
            ("resolution", quote_literal(self.resolution.name())),
            ("outcome", format!("CASE WHEN {} THEN {applied} ELSE {kept} END", self.is_applied)),
            ("remote_xid", self.remote_xid.to_owned()),
            ("finished_at", self.finished_at.to_owned()),
            ("remote_time", self.remote_time.to_owned()),
            ("local_xid", self.local_xid.to_owned()),
            ("local_origin", self.local_origin.to_owned()),
            ("local_time", self.local_time.to_owned()),
            ("detail", self.detail.to_owned()),
        ]
    }
}

/// The type of a column of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordType {
    /// `text`
    Text,
    /// `json`
    Json,
    /// `int8`
    Integer,
    /// `pg_lsn`
    Lsn,
    /// `timestamptz`
    Time,
}

impl RecordType {
    /// The type and its array type, in `pg_type`.
    #[must_use]
    pub const fn oids(self) -> (Oid, Oid) {
        match self {
            RecordType::Text => (Oid(25), Oid(1009)),
            RecordType::Json => (Oid(114), Oid(199)),
            RecordType::Integer => (Oid(20), Oid(1016)),
            RecordType::Lsn => (Oid(3220), Oid(3221)),
            RecordType::Time => (Oid(1184), Oid(1185)),
        }
    }
}

/// The columns of a record, in the order of [`ConflictRecord::values`].
pub const RECORD_COLUMNS: [(&str, RecordType); 18] = [
    ("type", RecordType::Text),
    ("schema_name", RecordType::Text),
    ("table_name", RecordType::Text),
    ("index_name", RecordType::Text),
    ("resolution", RecordType::Text),
    ("outcome", RecordType::Text),
    ("remote_xid", RecordType::Integer),
    ("finished_at", RecordType::Lsn),
    ("remote_time", RecordType::Time),
    ("remote_origin", RecordType::Text),
    ("local_xid", RecordType::Integer),
    ("local_origin", RecordType::Text),
    ("local_time", RecordType::Time),
    ("key", RecordType::Json),
    ("local_row", RecordType::Json),
    ("remote_row", RecordType::Json),
    ("replica_identity", RecordType::Json),
    ("detail", RecordType::Text),
];

/// A value of a record, which is never [`None`] where its column refuses NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordValue<'v> {
    /// Of a `text` or `json` column.
    Text(Option<&'v str>),
    /// An integer.
    Integer(Option<i64>),
    /// A position.
    Lsn(Lsn),
    /// A time.
    Time(Option<PgTimestamp>),
}

impl<'v> RecordValue<'v> {
    /// The value in the binary form of its type; `None` for NULL.
    #[must_use]
    pub fn binary(self) -> Option<Cow<'v, [u8]>> {
        let number = |bytes: [u8; 8]| Cow::Owned(bytes.to_vec());
        match self {
            RecordValue::Text(text) => text.map(|text| Cow::Borrowed(text.as_bytes())),
            RecordValue::Integer(integer) => integer.map(|integer| number(integer.to_be_bytes())),
            RecordValue::Lsn(lsn) => Some(number(lsn.as_u64().to_be_bytes())),
            RecordValue::Time(time) => time.map(|time| number(time.0.to_be_bytes())),
        }
    }

    /// The value as SQL of this type.
    pub(crate) fn sql(self, of: RecordType) -> String {
        let literal = match self {
            RecordValue::Text(text) => text.map(quote_literal),
            RecordValue::Integer(integer) => integer.map(|integer| integer.to_string()),
            RecordValue::Lsn(lsn) => Some(format!("'{lsn}'")),
            RecordValue::Time(time) => time.map(timestamp),
        };
        let literal = literal.unwrap_or_else(|| "NULL".to_owned());
        match of {
            RecordType::Text => literal,
            RecordType::Json => format!("{literal}::json"),
            RecordType::Integer => format!("{literal}::int8"),
            RecordType::Lsn => format!("{literal}::pg_lsn"),
            RecordType::Time => format!("{literal}::timestamptz"),
        }
    }
}

/// `time`, as SQL. Servers before 15 read no interval of that many microseconds.
fn timestamp(time: PgTimestamp) -> String {
    format!("('2000-01-01 00:00:00+00'::timestamptz + {}::float8 * '1 microsecond'::interval)", time.0)
}

impl<'r> ConflictRecord<'r> {
    /// The values of [`RECORD_COLUMNS`].
    #[must_use]
    pub fn values(&self) -> [RecordValue<'r>; RECORD_COLUMNS.len()] {
        use RecordValue::{Integer, Lsn, Text, Time};
        let commit = self.local.and_then(|local| local.commit.as_ref());
        let RecordedValues { key, local_row, remote_row, replica_identity } = self.values;
        [
            Text(Some(self.kind.name())),
            Text(Some(self.table.0)),
            Text(Some(self.table.1)),
            Text(self.index),
            Text(Some(self.resolution.name())),
            Text(Some(self.outcome.name())),
            Integer(Some(i64::from(self.remote_xid.0))),
            Lsn(self.finished_at),
            Time(Some(self.remote_time)),
            Text(self.remote_origin),
            Integer(self.local.map(|local| i64::from(local.xid.0))),
            Text(commit.map(|commit| commit.origin.name())),
            Time(commit.map(|commit| commit.time)),
            Text(key),
            Text(local_row),
            Text(remote_row),
            Text(replica_identity),
            Text(Some(self.detail)),
        ]
    }
}
