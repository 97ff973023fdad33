//! Whether a row that an UPDATE does not find was deleted on the target (rule D1).
//!
//! The deletion memory knows a row by the columns of the target's replica identity. The change
//! shows the columns by which the applier finds rows. Where these are others, nothing is known of
//! the row, and that is counted.
//!
//! An answer costs a flush of the target. If nothing is written whatever the answer is, the
//! question waits until the transaction is replayed, and one flush serves all of them.

use base::PgTimestamp;
use conflict::{Commit, ConflictType, Met, Origin, Resolution, TableRules, Written};
use proto::pgoutput::Column;
use retention::{Answer, Missed, RowKey, Tombstone, Value};

use super::met::old_values;
use super::*;

/// Whether both answers about a missing row leave the target as it is.
pub(super) fn writes_nothing(rules: &TableRules) -> bool {
    [ConflictType::UpdateMissing, ConflictType::UpdateDeleted]
        .iter()
        .all(|kind| matches!(rules.of(*kind), Resolution::Skip | Resolution::KeepLocal))
}

/// What an UPDATE met whose row is gone: nothing but the deletion, and perhaps its own values.
pub(super) fn by(deletion: Written, met: Vec<Met>) -> Vec<Met> {
    let values = met.into_iter().next().unwrap_or_default();
    vec![Met { written: Some(deletion), ..values }]
}

impl Executor {
    /// The key by which the memory knows the row of an UPDATE; `None` if it cannot know it, or
    /// nobody remembers deletions.
    pub(super) async fn remembered(&mut self, table: &Table, op: &Op) -> Option<RowKey> {
        let retention = self.conflicts.settings.retention.clone()?;
        let Op::Update { .. } = op else { return None };
        let key = match retention.table(table.oid, table.id).await {
            Some(named) => values_of(table, op, named.columns()).and_then(|values| named.key(values)),
            None => None,
        };
        if key.is_none() {
            retention.exceeded(1);
        }
        key
    }

    /// Who deleted the row of that key; `None` if nobody is known to have.
    pub(super) async fn deletion(&mut self, key: RowKey, begin: Begin) -> Result<Option<Written>, Error> {
        let Some(retention) = self.conflicts.settings.retention.clone() else { return Ok(None) };
        let missed = Missed { key, time: begin.commit_time };
        match retention.ask(std::slice::from_ref(&missed)).await.first() {
            Some(Answer::Deleted(tombstone)) => Ok(Some(self.described(tombstone).await?)),
            _ => Ok(None),
        }
    }

    /// Asks about all rows that are awaited in the open transaction.
    pub(super) async fn ask_about_missed(&mut self) -> Result<(), Error> {
        let Some(retention) = self.conflicts.settings.retention.clone() else { return Ok(()) };
        let (mut places, mut missed) = (Vec::new(), Vec::new());
        for (place, resolved) in self.conflicts.resolved.iter_mut().enumerate() {
            if let Some(key) = resolved.missed.take() {
                places.push(place);
                missed.push(Missed { key, time: resolved.begin.commit_time });
            }
        }
        if missed.is_empty() {
            return Ok(());
        }
        for (place, answer) in places.into_iter().zip(retention.ask(&missed).await) {
            let Answer::Deleted(tombstone) = answer else { continue };
            let written = self.described(&tombstone).await?;
            let kind = ConflictType::UpdateDeleted;
            let resolution = self.conflicts.rules_of(&self.conflicts.resolved[place].table).of(kind);
            let resolved = &mut self.conflicts.resolved[place];
            resolved.conflict.kind = kind;
            resolved.conflict.met = by(written, std::mem::take(&mut resolved.conflict.met));
            resolved.resolution = resolution;
        }
        Ok(())
    }

    /// A tombstone in the words of the target: its time zone, and the name of the origin.
    async fn described(&mut self, tombstone: &Tombstone) -> Result<Written, Error> {
        let PgTimestamp(micros) = tombstone.time;
        let origin = tombstone.origin.unwrap_or_default();
        let sql = format!(
            "SELECT ('2000-01-01 00:00:00+00'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) \
             ({micros}::pg_catalog.float8 OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval))\
             ::pg_catalog.text, (SELECT o.roname FROM pg_catalog.pg_replication_origin o \
             WHERE o.roident OPERATOR(pg_catalog.=) {origin}::pg_catalog.oid)"
        );
        let mut row = self.wire.query(&sql).await?.into_iter().flatten();
        let time_text = row.next().flatten().unwrap_or_default();
        let origin = match (tombstone.origin, row.next().flatten()) {
            (None, _) => Origin::Local,
            (Some(_), Some(name)) => Origin::Named(name),
            (Some(_), None) => Origin::Dropped,
        };
        let commit = Commit { origin, time: tombstone.time, time_text };
        Ok(Written { xid: tombstone.xid, commit: Some(commit) })
    }
}

/// The values of these columns of the row that an UPDATE is for; `None` unless they are the columns
/// by which the applier finds it.
fn values_of<'o>(table: &Table, op: &'o Op, columns: &[String]) -> Option<Vec<Value<'o>>> {
    if table.key.len() != columns.len() {
        return None;
    }
    let values: Vec<Column<'o>> = old_values(op)?.columns().collect();
    let value = |name: &String| {
        let place = *table.key.iter().find(|&&place| table.columns[place].target.name == *name)?;
        match values.get(place)? {
            Column::Null => Some(Value::Null),
            Column::Text(text) => Some(Value::Text(text)),
            Column::Binary(bytes) => Some(Value::Binary(bytes)),
            Column::Unchanged => None,
        }
    };
    columns.iter().map(value).collect()
}
