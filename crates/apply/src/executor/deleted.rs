//! Whether a row that an UPDATE does not find was deleted on the target (rule D1).
//!
//! The deletion memory knows a row by the columns of the target's replica identity. The change
//! shows the columns by which the applier finds rows. Where these are others, nothing is known of
//! the row, and that is counted.
//!
//! An answer costs a flush of the target. If nothing is written whatever the answer is, the
//! question waits until the transaction is replayed or a thousand rows are missed, and one flush
//! serves all of them. If a rule may write, or where many transactions miss rows, [`super::ahead`]
//! looks ahead.

use conflict::{Commit, ConflictType, Met, Origin, Resolution, TableRules, Written};
use proto::pgoutput::{Column, Tuple};
use retention::{Answer, AskedTable, Missed, Retention, RowKey, Tombstone, Value};

use super::met::old_values;
use super::*;

/// How the memory knows the row of a change.
pub(super) enum Remembered {
    /// Nobody remembers deletions, or the change asks for none.
    Never,
    /// It cannot know the row.
    Unnamed,
    /// By this key.
    By(RowKey),
}

/// What is known of the deletion of a row that an UPDATE missed.
pub(super) enum Deletion {
    /// Somebody deleted it.
    By(Written),
    /// None is remembered, so all UPDATEs that are older than a deletion were applied: this UPDATE
    /// is newer than any.
    NoneNewer,
    /// It may have been forgotten, because the UPDATE is older than what must be remembered.
    Unknown,
    /// Deletions of the row are not remembered, or not all of them.
    NotCovered,
}

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
    /// How the memory knows the row of a change.
    pub(super) async fn remembered(&mut self, table: &Table, op: &Op) -> Remembered {
        let Some(retention) = self.conflicts.settings.retention.clone() else { return Remembered::Never };
        let Op::Update { .. } = op else { return Remembered::Never };
        let named = retention.table(table.oid, table.id).await;
        let key = named.and_then(|named| old_values(op).and_then(|old| key_of(table, old, &named)));
        key.map_or(Remembered::Unnamed, Remembered::By)
    }

    /// What became of the row of that key.
    pub(super) async fn deletion(&mut self, key: &RowKey, begin: Begin) -> Result<Deletion, Error> {
        let Some(retention) = self.conflicts.settings.retention.clone() else { return Ok(Deletion::Unknown) };
        let missed = Missed { key: key.clone(), time: begin.commit_time };
        match self.answers(&retention, &[missed]).await.first() {
            Some(Answer::Deleted(tombstone)) => {
                let written = self.described(&[*tombstone]).await?.pop();
                Ok(written.map_or(Deletion::Unknown, Deletion::By))
            }
            Some(Answer::NotSeen { may_be_forgotten: false }) => Ok(Deletion::NoneNewer),
            Some(Answer::NotSeen { may_be_forgotten: true }) => Ok(Deletion::Unknown),
            Some(Answer::NotCovered | Answer::NotYet) | None => Ok(Deletion::NotCovered),
        }
    }

    /// What is known of rows that were missed. Those that were missed before a fence that is known
    /// need no other one.
    async fn answers(&mut self, retention: &Retention, missed: &[Missed]) -> Vec<Answer> {
        let missing = &mut self.conflicts.missing;
        match missing.fence_for(missed) {
            Some(fence) => retention.known_since(missed, fence),
            None => {
                missing.asked(missed.len());
                retention.ask(missed).await
            }
        }
    }

    /// Asks about all rows that wait for it in the open transaction.
    pub(super) async fn ask_about_missed(&mut self) -> Result<(), Error> {
        let Some(retention) = self.conflicts.settings.retention.clone() else { return Ok(()) };
        let (mut places, mut missed) = (Vec::new(), Vec::new());
        let asked = std::mem::replace(&mut self.conflicts.asked, self.conflicts.resolved.len());
        self.conflicts.awaiting = 0;
        for (place, resolved) in self.conflicts.resolved.iter_mut().enumerate().skip(asked) {
            if let Some(key) = resolved.missed.take() {
                places.push(place);
                missed.push(Missed { key, time: resolved.begin.commit_time });
            }
        }
        if missed.is_empty() {
            return Ok(());
        }
        let answers = self.answers(&retention, &missed).await;
        let (mut deleted, mut tombstones) = (Vec::new(), Vec::new());
        for (place, answer) in places.into_iter().zip(answers) {
            match answer {
                Answer::Deleted(tombstone) => {
                    deleted.push(place);
                    tombstones.push(tombstone);
                }
                Answer::NotCovered => self.conflicts.resolved[place].is_uncovered = true,
                _ => {}
            }
        }
        for (place, written) in deleted.into_iter().zip(self.described(&tombstones).await?) {
            let kind = ConflictType::UpdateDeleted;
            let resolution = self.conflicts.rules_of(&self.conflicts.resolved[place].table).of(kind);
            let resolved = &mut self.conflicts.resolved[place];
            resolved.conflict.kind = kind;
            resolved.conflict.met = by(written, std::mem::take(&mut resolved.conflict.met));
            resolved.resolution = resolution;
        }
        Ok(())
    }

    /// Tombstones in the words of the target: its time zone, and the names of origins.
    pub(super) async fn described(&mut self, tombstones: &[Tombstone]) -> Result<Vec<Written>, Error> {
        let unknown: Vec<Tombstone> =
            tombstones.iter().filter(|own| !self.conflicts.missing.is_described(own)).copied().collect();
        for some in unknown.chunks(DESCRIBED_MAX) {
            let rows = self.wire.query(&describing(some)).await?;
            for (tombstone, row) in some.iter().zip(rows) {
                self.conflicts.missing.describe(tombstone, written(tombstone, row));
            }
        }
        Ok(tombstones.iter().map(|own| self.conflicts.missing.description(own)).collect())
    }
}

/// How many tombstones are described by one statement.
const DESCRIBED_MAX: usize = 1000;

/// Asks for the times and origins of tombstones, in their order.
fn describing(tombstones: &[Tombstone]) -> String {
    let list = |of: fn(&Tombstone) -> String| tombstones.iter().map(of).collect::<Vec<_>>().join(",");
    let times = list(|own| own.time.0.to_string());
    let origins = list(|own| own.origin.unwrap_or_default().to_string());
    format!(
        "SELECT ('2000-01-01 00:00:00+00'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) \
         (u.micros::pg_catalog.float8 OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval))\
         ::pg_catalog.text, (SELECT o.roname FROM pg_catalog.pg_replication_origin o \
         WHERE o.roident OPERATOR(pg_catalog.=) u.origin) \
         FROM ROWS FROM (pg_catalog.unnest('{{{times}}}'::pg_catalog.int8[]), \
         pg_catalog.unnest('{{{origins}}}'::pg_catalog.oid[])) WITH ORDINALITY AS u(micros, origin, place) \
         ORDER BY u.place"
    )
}

fn written(tombstone: &Tombstone, row: Vec<Option<String>>) -> Written {
    let mut row = row.into_iter();
    let time_text = row.next().flatten().unwrap_or_default();
    let origin = match (tombstone.origin, row.next().flatten()) {
        (None, _) => Origin::Local,
        (Some(_), Some(name)) => Origin::Named(name),
        (Some(_), None) => Origin::Dropped,
    };
    Written { xid: tombstone.xid, commit: Some(Commit { origin, time: tombstone.time, time_text }) }
}

/// The key of the row with these values; `None` unless it is made of the columns by which the
/// applier finds it.
pub(super) fn key_of(table: &Table, tuple: &Tuple, named: &AskedTable) -> Option<RowKey> {
    if table.key.len() != named.columns().len() {
        return None;
    }
    let values: Vec<Column<'_>> = tuple.columns().collect();
    let value = |name: &String| {
        let place = *table.key.iter().find(|&&place| table.columns[place].target.name == *name)?;
        match values.get(place)? {
            Column::Null => Some(Value::Null),
            Column::Text(text) => Some(Value::Text(text)),
            Column::Binary(bytes) => Some(Value::Binary(bytes)),
            Column::Unchanged => None,
        }
    };
    named.key(named.columns().iter().map(value).collect::<Option<Vec<_>>>()?)
}
