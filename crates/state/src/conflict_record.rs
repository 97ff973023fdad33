//! What the target keeps of one conflict, as the applier hands it over.
//!
//! The applier writes a record in the transaction that resolves the conflict, so that both are
//! there or neither ([`crate::statements::record_conflicts`]). What was rolled back is recorded
//! afterwards, in a transaction of its own.

use base::{Lsn, PgTimestamp, Xid, quote_literal};
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

/// A literal, or NULL.
fn text(value: Option<&str>) -> String {
    value.map_or_else(|| "NULL".to_owned(), quote_literal)
}

/// A literal of type json, or NULL.
fn json(value: Option<&str>) -> String {
    format!("{}::json", text(value))
}

/// `time`, as SQL. Servers before 15 read no interval of that many microseconds.
fn timestamp(time: PgTimestamp) -> String {
    format!("('2000-01-01 00:00:00+00'::timestamptz + {}::float8 * '1 microsecond'::interval)", time.0)
}

impl ConflictRecord<'_> {
    /// The columns of the record, each with its value as SQL.
    pub(crate) fn columns(&self) -> Vec<(&'static str, String)> {
        let commit = self.local.and_then(|local| local.commit.as_ref());
        let RecordedValues { key, local_row, remote_row, replica_identity } = self.values;
        let or_null = |value: Option<String>| value.unwrap_or_else(|| "NULL".to_owned());
        vec![
            ("type", quote_literal(self.kind.name())),
            ("schema_name", quote_literal(self.table.0)),
            ("table_name", quote_literal(self.table.1)),
            ("index_name", text(self.index)),
            ("resolution", quote_literal(self.resolution.name())),
            ("outcome", quote_literal(self.outcome.name())),
            ("remote_xid", self.remote_xid.to_string()),
            ("finished_at", format!("'{}'::pg_lsn", self.finished_at)),
            ("remote_time", timestamp(self.remote_time)),
            ("remote_origin", text(self.remote_origin)),
            ("local_xid", format!("{}::int8", or_null(self.local.map(|local| local.xid.to_string())))),
            ("local_origin", text(commit.map(|commit| commit.origin.name()))),
            ("local_time", format!("{}::timestamptz", or_null(commit.map(|commit| timestamp(commit.time))))),
            ("key", json(key)),
            ("local_row", json(local_row)),
            ("remote_row", json(remote_row)),
            ("replica_identity", json(replica_identity)),
            ("detail", quote_literal(self.detail)),
        ]
    }
}
