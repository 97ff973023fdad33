//! Rows of coming changes that are missing, found together, so that one fence serves all of them
//! (rule D1).
//!
//! ```text
//!   a miss that was asked about by itself
//!     v
//!   probes for the rows of the coming changes, in one round trip --> those that are missing
//!     v
//!   one fence --> capture passes it --> each of these rows is answered without waiting
//! ```
//! Why the answer of an earlier fence is right: the row was missing before the fence was taken, and
//! nothing of ours has written it since. Keys that a coming change may write are left out, and so
//! is a row that a rule has written. The memory is asked when the change comes, so it tells of
//! deletions that were captured since.
//!
//! What another session inserts and deletes again after the fence may be missed for the few
//! milliseconds by which capture is late. The same holds of a row that comes and goes between an
//! answer and the change that it decides about.

use retention::{Answer, Missed, RowKey, Tombstone};
use rustc_hash::FxHashSet;

use super::deleted::key_of;
use super::met::old_values;
use super::*;

/// How many changes are looked at together: enough to share a flush, and few enough that their
/// probes are soon answered.
const AHEAD_MAX: usize = 1000;

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
        self.conflicts.missing.begin();
        self.conflicts.missing.end = number + AHEAD_MAX;
        let Some(retention) = self.conflicts.settings.retention.clone() else { return Ok(()) };
        let (keys, probes) = self.probes(coming).await;
        // One by itself would not share anything.
        if keys.len() < 2 {
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
            return Ok(());
        }
        let Some(fence) = retention.passed_fence().await else { return Ok(()) };
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
        let missing = &mut self.conflicts.missing;
        (missing.fence, missing.keys) = (fence, keys);
        Ok(())
    }

    /// What asks whether the rows of coming UPDATEs are there, and their keys. Rows that one of the
    /// changes may write are left out.
    async fn probes(&mut self, coming: impl Iterator<Item = &Change>) -> (Vec<RowKey>, Vec<Statement>) {
        let Some(retention) = self.conflicts.settings.retention.clone() else { return Default::default() };
        let (mut asked, mut written) = (Vec::new(), FxHashSet::default());
        for change in coming.take(AHEAD_MAX) {
            // What it empties is missing behind it.
            let Change::Row { table, op } = change else { break };
            let Some(named) = retention.table(table.oid, table.id).await else { continue };
            match op {
                Op::Insert(new) | Op::Update { old: Some(_), new } => {
                    written.extend(key_of(table, new, &named));
                }
                Op::Update { old: None, .. } | Op::Delete(_) => {}
            }
            let key = old_values(op).filter(|_| matches!(op, Op::Update { .. }));
            let Some(key) = key.and_then(|old| key_of(table, old, &named)) else { continue };
            if let Ok(probe) = self.writer.probe(table, op) {
                asked.push((key, probe));
            }
        }
        let mut known = FxHashSet::default();
        asked.into_iter().filter(|(key, _)| !written.contains(key) && known.insert(key.clone())).unzip()
    }
}
