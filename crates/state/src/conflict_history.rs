//! The history of conflicts on the target: made, pruned and read.
//!
//! The applier writes it ([`crate::statements::record_conflicts`]). The process that holds the
//! subscription's lock removes old records. Commands read it at any time; where the table is
//! missing, there was no conflict.

use std::time::Duration;

use base::{Lsn, SubscriptionName};
use conflict::{ConflictType, Resolution};
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::schema::has_table;
use crate::state::State;
use crate::statements::{PRUNED_CONFLICTS_MAX, prune_conflicts};

/// Interval between removals of old records.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

impl State {
    /// Makes the history where an older version made only the other tables.
    ///
    /// # Errors
    /// A query failed, also because the role may not make it.
    pub async fn make_conflict_history(&self) -> Result<(), Error> {
        if !self.has_table("conflict_history").await? {
            self.make_tables().await?;
        }
        Ok(())
    }

    /// Removes the records that are older than `age`, and all but the newest `rows`. Returns how
    /// many it removed.
    ///
    /// # Errors
    /// A query failed.
    pub async fn prune_conflict_history(&self, age: Duration, rows: u64) -> Result<u64, Error> {
        let sql = prune_conflicts(self.name.as_str(), age, rows);
        let mut removed = 0;
        loop {
            let now = self.session.execute(&sql, &[]).await.map_err(|error| self.damaged(error))?;
            removed += now;
            if now < PRUNED_CONFLICTS_MAX {
                return Ok(removed);
            }
        }
    }

    /// Removes old records, as [`State::prune_conflict_history`], until this future is dropped or
    /// fails.
    ///
    /// # Errors
    /// A query failed.
    pub async fn prune_conflict_history_continuously(&self, age: Duration, rows: u64) -> Result<(), Error> {
        loop {
            self.prune_conflict_history(age, rows).await?;
            tokio::time::sleep(PRUNE_INTERVAL).await;
        }
    }
}

/// Which records to read. What is `None` does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The type.
    pub kind: Option<ConflictType>,
    /// Schema and name of the table.
    pub table: Option<(String, String)>,
    /// A JSON object whose members the recorded key has.
    pub key: Option<String>,
    /// Not older than this time, as the server reads it.
    pub since: Option<String>,
    /// Older than this time, as the server reads it.
    pub until: Option<String>,
    /// The rule that decided.
    pub resolution: Option<Resolution>,
}

/// A record as it was stored. Times are in UTC, as ISO 8601 writes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredConflict {
    /// Its number on this target.
    pub id: i64,
    /// When the conflict was met.
    pub at: String,
    /// The type's name.
    pub kind: String,
    /// Schema and name of the table.
    pub table: (String, String),
    /// The unique index that the change violated.
    pub index: Option<String>,
    /// The name of the rule that decided.
    pub resolution: String,
    /// What was done: the name of an [`crate::ConflictOutcome`].
    pub outcome: String,
    /// The source's transaction.
    pub remote_xid: i64,
    /// The LSN that the messages call `finished at`.
    pub finished_at: Lsn,
    /// The source's commit time.
    pub remote_time: String,
    /// The origin that the source named.
    pub remote_origin: Option<String>,
    /// The target's transaction that wrote the row last.
    pub local_xid: Option<i64>,
    /// Its origin: empty for the target itself, `?` for one that was dropped.
    pub local_origin: Option<String>,
    /// Its commit time.
    pub local_time: Option<String>,
    /// The key, as JSON.
    pub key: Option<String>,
    /// The target's row before the change, as JSON.
    pub local_row: Option<String>,
    /// The source's row, as JSON.
    pub remote_row: Option<String>,
    /// The replica identity, as JSON.
    pub replica_identity: Option<String>,
    /// PostgreSQL's DETAIL.
    pub detail: String,
}

/// The columns of [`StoredConflict`], in its order.
fn columns() -> String {
    let time = |column: &str| {
        format!("pg_catalog.to_char(h.{column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
    };
    format!(
        "h.id, {}, h.type, h.schema_name, h.table_name, h.index_name, h.resolution, h.outcome, h.remote_xid, \
         h.finished_at, {}, h.remote_origin, h.local_xid, h.local_origin, {}, h.key::text, h.local_row::text, \
         h.remote_row::text, h.replica_identity::text, h.detail",
        time("at"),
        time("remote_time"),
        time("local_time")
    )
}

fn stored(row: &Row) -> Result<StoredConflict, tokio_postgres::Error> {
    Ok(StoredConflict {
        id: row.try_get(0)?,
        at: row.try_get(1)?,
        kind: row.try_get(2)?,
        table: (row.try_get(3)?, row.try_get(4)?),
        index: row.try_get(5)?,
        resolution: row.try_get(6)?,
        outcome: row.try_get(7)?,
        remote_xid: row.try_get(8)?,
        finished_at: Lsn::new(row.try_get::<_, PgLsn>(9)?.into()),
        remote_time: row.try_get(10)?,
        remote_origin: row.try_get(11)?,
        local_xid: row.try_get(12)?,
        local_origin: row.try_get(13)?,
        local_time: row.try_get(14)?,
        key: row.try_get(15)?,
        local_row: row.try_get(16)?,
        remote_row: row.try_get(17)?,
        replica_identity: row.try_get(18)?,
        detail: row.try_get(19)?,
    })
}

/// The newest `limit` records that the filter lets through, the newest first.
///
/// # Errors
/// The query failed, also because a time or the key of the filter cannot be read.
pub async fn list(
    target: &impl GenericClient,
    name: &SubscriptionName,
    filter: &Filter,
    limit: u32,
) -> Result<Vec<StoredConflict>, tokio_postgres::Error> {
    if !has_table(target, "conflict_history").await? {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT {} FROM pgsluice.conflict_history h \
          WHERE h.subscription = $1 AND ($2::text IS NULL OR h.type = $2) \
            AND ($3::text IS NULL OR h.schema_name = $3) AND ($4::text IS NULL OR h.table_name = $4) \
            AND ($5::text IS NULL OR h.key::jsonb @> $5::text::jsonb) \
            AND ($6::text IS NULL OR h.at >= $6::text::timestamptz) \
            AND ($7::text IS NULL OR h.at < $7::text::timestamptz) \
            AND ($8::text IS NULL OR h.resolution = $8) \
          ORDER BY h.at DESC, h.id DESC LIMIT $9",
        columns()
    );
    let kind = filter.kind.map(ConflictType::name);
    let (schema, table) = filter.table.as_ref().map(|(schema, table)| (schema, table)).unzip();
    let resolution = filter.resolution.map(Resolution::name);
    let limit = i64::from(limit);
    let parameters: [&(dyn ToSql + Sync); 9] = [
        &name.as_str(),
        &kind,
        &schema,
        &table,
        &filter.key,
        &filter.since,
        &filter.until,
        &resolution,
        &limit,
    ];
    target.query(&sql, &parameters).await?.iter().map(stored).collect()
}

/// The record of this number.
///
/// # Errors
/// The query failed.
pub async fn find(
    target: &impl GenericClient,
    name: &SubscriptionName,
    id: i64,
) -> Result<Option<StoredConflict>, tokio_postgres::Error> {
    if !has_table(target, "conflict_history").await? {
        return Ok(None);
    }
    let sql = format!(
        "SELECT {} FROM pgsluice.conflict_history h WHERE h.subscription = $1 AND h.id = $2",
        columns()
    );
    target.query_opt(&sql, &[&name.as_str(), &id]).await?.as_ref().map(stored).transpose()
}

/// All records of the change that met `conflict`: one for each row that it met, in their order.
///
/// # Errors
/// The query failed.
pub async fn together(
    target: &impl GenericClient,
    name: &SubscriptionName,
    conflict: &StoredConflict,
) -> Result<Vec<StoredConflict>, tokio_postgres::Error> {
    let sql = format!(
        "SELECT {} FROM pgsluice.conflict_history h \
           JOIN pgsluice.conflict_history o ON o.id = $2 AND o.subscription = h.subscription \
          WHERE h.subscription = $1 AND h.finished_at = o.finished_at AND h.remote_xid = o.remote_xid \
            AND h.type = o.type AND h.outcome = o.outcome AND h.schema_name = o.schema_name \
            AND h.table_name = o.table_name AND h.detail = o.detail \
            AND h.remote_row::text IS NOT DISTINCT FROM o.remote_row::text \
            AND h.replica_identity::text IS NOT DISTINCT FROM o.replica_identity::text \
          ORDER BY h.id",
        columns()
    );
    target.query(&sql, &[&name.as_str(), &conflict.id]).await?.iter().map(stored).collect()
}
