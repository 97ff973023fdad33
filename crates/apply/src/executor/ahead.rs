//! Rows of coming changes that are missing, found together, so that one fence serves all of them
//! (rule D1).
//!
//! ```text
//!   a miss that was asked about by itself
//!     v
//!   in one round trip, probes for the rows of the coming changes, in later transactions as well
//!     v
//!   those that are missing
//!     v
//!   one fence --> capture passes it --> each of these rows is answered without waiting
//! ```
//! Why the answer of an earlier fence is right: the row was missing before the fence was taken, and
//! nothing of ours has written it since. Keys that a coming change may write are left out, and so
//! is a row that a rule has written. The memory is asked when the change comes, so it tells of
//! deletions that were captured since.
//!
//! What another session inserts and deletes again after the fence may be missed by as much as
//! capture is late. So a fence counts for a second. The same holds of a row that comes and goes
//! between an answer and the change that it decides about.

use retention::{Answer, Missed, RowKey, Tombstone};
use rustc_hash::FxHashSet;

use super::deleted::key_of;
use super::met::old_values;
use super::*;

impl Executor {
    /// Looks ahead from change `number` on, if misses were asked about one by one.
    pub(super) async fn look_ahead(
        &mut self,
        number: usize,
        coming: impl Iterator<Item = &Change>,
    ) -> Result<(), Error> {
        if !self.conflicts.missing.is_due(number) {
            return Ok(());
        }
        let ahead = self.conflicts.missing.look(number);
        let Some(retention) = self.conflicts.settings.retention.clone() else { return Ok(()) };
        let (changes, keys, probes) = self.probes(coming.take(ahead)).await;
        self.conflicts.missing.looked_up_to(number + changes.max(1));
        let looked = keys.len();
        // One by itself would not share anything.
        if looked < 2 {
            return Ok(());
        }
        let mut statements = vec![&self.change_savepoint];
        statements.extend(probes.iter().chain([&self.change_release]));
        let result = run(&mut self.wire, &mut self.prepared, &statements).await?;
        if let Some(error) = result.error {
            // The change itself reports what is wrong with it.
            tracing::debug!(code = %error.code, "looking ahead: {}", error.message);
            return self.back_to_change().await;
        }
        let is_missing = result.rows.iter().skip(1).map(|rows| *rows == 0);
        let keys: FxHashSet<RowKey> = keys
            .into_iter()
            .zip(is_missing)
            .filter_map(|(key, is_missing)| is_missing.then_some(key))
            .collect();
        if keys.is_empty() {
            self.conflicts.missing.learn(looked, 0);
            return Ok(());
        }
        let Some(fence) = retention.passed_fence().await else {
            self.conflicts.missing.learn(looked, 0);
            return Ok(());
        };
        // The times do not matter to what is described here.
        let time = base::PgTimestamp(i64::MAX);
        let missed: Vec<Missed> = keys.iter().map(|key| Missed { key: key.clone(), time }).collect();
        let tombstones =
            retention.known_since(&missed, fence).into_iter().filter_map(|answer| match answer {
                Answer::Deleted(tombstone) => Some(tombstone),
                _ => None,
            });
        let mut tombstones: Vec<Tombstone> = tombstones.collect();
        tombstones.sort_unstable_by_key(|own| (own.lsn, own.xid.0));
        tombstones.dedup_by_key(|own| (own.lsn, own.xid));
        self.described(&tombstones).await?;
        self.conflicts.missing.found(looked, keys, fence);
        Ok(())
    }

    /// How many of the first transactions are known to miss a row, and small enough to be replayed
    /// at once.
    pub(super) async fn known_to_miss(&self, batch: &Batch, changes_max: usize) -> usize {
        let mut start = 0;
        for (number, end) in batch.ends.iter().enumerate() {
            let changes = &batch.changes[start..end.changes_end];
            if changes.len() > changes_max || !self.misses(changes).await {
                return number;
            }
            start = end.changes_end;
        }
        batch.ends.len()
    }

    /// Whether one of the changes is an UPDATE of a row that is known to be missing.
    async fn misses(&self, changes: &[Change]) -> bool {
        let missing = &self.conflicts.missing;
        let Some(retention) = self.conflicts.settings.retention.as_ref() else { return false };
        if missing.keys.is_empty() {
            return false;
        }
        for change in changes {
            let Change::Row { table, op: op @ Op::Update { .. } } = change else { continue };
            let Some(named) = retention.table(table.oid, table.id).await else { continue };
            let key = old_values(op).and_then(|old| key_of(table, old, &named));
            if key.is_some_and(|key| missing.keys.contains(&key)) {
                return true;
            }
        }
        false
    }

    /// How many of the coming changes can be looked at, what asks whether the rows of their UPDATEs
    /// are there, and the keys of these. Rows that one of the changes may write are left out.
    async fn probes(
        &mut self,
        coming: impl Iterator<Item = &Change>,
    ) -> (usize, Vec<RowKey>, Vec<Statement>) {
        let Some(retention) = self.conflicts.settings.retention.clone() else { return Default::default() };
        let (mut changes, mut asked, mut written) = (0, Vec::new(), FxHashSet::default());
        for change in coming {
            // What it empties is missing behind it.
            let Change::Row { table, op } = change else { break };
            changes += 1;
            let Some(named) = retention.table(table.oid, table.id).await else { continue };
            let old = old_values(op).and_then(|old| key_of(table, old, &named));
            match op {
                Op::Insert(new) => written.extend(key_of(table, new, &named)),
                // One that keeps its key writes nothing if its row is missing. A rule that inserts
                // it says so.
                Op::Update { old: Some(_), new } => {
                    written.extend(key_of(table, new, &named).filter(|new| Some(new) != old.as_ref()));
                }
                Op::Update { old: None, .. } | Op::Delete(_) => {}
            }
            let Some(key) = old.filter(|_| matches!(op, Op::Update { .. })) else { continue };
            if let Ok(probe) = self.writer.probe(table, op) {
                asked.push((key, probe));
            }
        }
        let mut known = FxHashSet::default();
        let asked = asked.into_iter().filter(|(key, _)| !written.contains(key) && known.insert(key.clone()));
        let (keys, probes) = asked.unzip();
        (changes, keys, probes)
    }
}
