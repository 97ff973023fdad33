//! What the target has stored of a subscription, as commands read and change it.
//!
//! Handed is a session that holds no lock of the subscription, while a process may run it. Where
//! the schema is missing, nothing is stored. The process itself works through [`crate::State`].
//!
//! Each function that changes a row returns the number of rows that it found.

use base::{Lsn, SubscriptionName};
use schedule::CommittedRanges;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Error, GenericClient, Row};

use crate::origins::origins_of;
use crate::schema::has_table;
use crate::state::CopiedTable;

/// A subscription's row, with what its other rows add up to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSubscription {
    /// Whether it may run.
    pub enabled: bool,
    /// Its slot on the source.
    pub slot: Option<String>,
    /// Its publications.
    pub publications: Vec<String>,
    /// The position at which the slot began.
    pub consistent_point: Option<Lsn>,
    /// Confirmed to the source up to here, or about to be.
    pub confirmed_lsn: Option<Lsn>,
    /// The newest stored progress, else that of the replication origins.
    pub applied_lsn: Option<Lsn>,
    /// The transaction to skip.
    pub skip_lsn: Option<Lsn>,
    /// Why the subscription was disabled, or last failed.
    pub last_error: Option<String>,
    /// Tables whose first copy is finished.
    pub tables_copied: i64,
    /// Tables whose first copy is not finished.
    pub tables_unfinished: i64,
}

fn lsn(row: &Row, at: usize) -> Result<Option<Lsn>, Error> {
    Ok(row.try_get::<_, Option<PgLsn>>(at)?.map(|lsn| Lsn::new(lsn.into())))
}

/// Whether the target has the tables at all.
///
/// # Errors
/// The query failed.
pub async fn has_tables(target: &impl GenericClient) -> Result<bool, Error> {
    has_table(target, "subscription").await
}

/// The subscription's row.
///
/// # Errors
/// The query failed, also because there is no such table: ask [`has_tables`] before.
pub async fn subscription(
    target: &impl GenericClient,
    name: &SubscriptionName,
) -> Result<Option<StoredSubscription>, Error> {
    let sql = format!(
        "SELECT s.enabled, s.slot, s.publications, s.consistent_point, s.confirmed_lsn,
                coalesce((SELECT max(p.applied_lsn) FROM pgsluice.progress p WHERE p.subscription = s.name),
                  (SELECT max(pg_catalog.pg_replication_origin_progress(o.roname, true))
                     FROM pg_catalog.pg_replication_origin o WHERE {})),
                s.skip_lsn, s.last_error,
                (SELECT count(*) FROM pgsluice.copied_table t WHERE t.subscription = s.name AND t.finished),
                (SELECT count(*) FROM pgsluice.copied_table t WHERE t.subscription = s.name AND NOT t.finished)
           FROM pgsluice.subscription s WHERE s.name = $1",
        origins_of("s.name")
    );
    let Some(row) = target.query_opt(&sql, &[&name.as_str()]).await? else { return Ok(None) };
    Ok(Some(StoredSubscription {
        enabled: row.try_get::<_, Option<bool>>(0)?.unwrap_or(true),
        slot: row.try_get(1)?,
        publications: row.try_get::<_, Option<Vec<String>>>(2)?.unwrap_or_default(),
        consistent_point: lsn(&row, 3)?,
        confirmed_lsn: lsn(&row, 4)?,
        applied_lsn: lsn(&row, 5)?,
        skip_lsn: lsn(&row, 6)?.filter(|lsn| lsn.is_valid()),
        last_error: row.try_get(7)?,
        tables_copied: row.try_get(8)?,
        tables_unfinished: row.try_get(9)?,
    }))
}

/// The name of the slot that the subscription streams from. An adopted one keeps its own.
///
/// # Errors
/// The query failed, also because there is no such table.
pub async fn slot_name(
    target: &impl GenericClient,
    name: &SubscriptionName,
) -> Result<Option<String>, Error> {
    let sql = "SELECT slot FROM pgsluice.subscription WHERE name = $1::text";
    target.query_opt(sql, &[&name.as_str()]).await?.map(|row| row.try_get(0)).transpose()
}

/// The publications of a subscription that exists.
///
/// # Errors
/// The query failed, or there is no such subscription.
pub async fn publications(
    target: &impl GenericClient,
    name: &SubscriptionName,
) -> Result<Vec<String>, Error> {
    let sql = "SELECT publications FROM pgsluice.subscription WHERE name = $1";
    target.query_one(sql, &[&name.as_str()]).await?.try_get(0)
}

/// What the target has applied: everything up to `prefix`, and what was committed out of order
/// behind it.
///
/// # Errors
/// The query failed.
pub async fn committed_ranges(
    target: &impl GenericClient,
    name: &SubscriptionName,
    prefix: Lsn,
) -> Result<CommittedRanges, Error> {
    // Older versions did not make this table.
    if !has_table(target, "ahead").await? {
        return Ok(CommittedRanges::new(prefix, Vec::new()));
    }
    let sql = "SELECT since_lsn, applied_lsn FROM pgsluice.ahead WHERE subscription = $1";
    let rows = target.query(sql, &[&name.as_str()]).await?;
    let lsn = |row: &Row, at| Lsn::new(row.get::<_, PgLsn>(at).into());
    Ok(CommittedRanges::new(prefix, rows.iter().map(|row| (lsn(row, 0), lsn(row, 1))).collect()))
}

/// The subscription's tables, without their OIDs and without the snapshots of their copies.
///
/// # Errors
/// The query failed.
pub async fn copied_tables(
    target: &impl GenericClient,
    name: &SubscriptionName,
) -> Result<Vec<CopiedTable>, Error> {
    let sql = "SELECT schema_name, table_name, begun, finished, consistent_point \
                 FROM pgsluice.copied_table WHERE subscription = $1";
    let rows = target.query(sql, &[&name.as_str()]).await?;
    let table = |row: &Row| -> Result<CopiedTable, Error> {
        Ok(CopiedTable {
            schema: row.try_get(0)?,
            table: row.try_get(1)?,
            since: lsn(row, 4)?.map(Into::into),
            begun: row.try_get(2)?,
            finished: row.try_get(3)?,
            source_oid: None,
            replaced: None,
        })
    };
    rows.iter().map(table).collect()
}

/// Allows or forbids the subscription to run.
///
/// # Errors
/// The query failed.
pub async fn set_enabled(
    target: &impl GenericClient,
    name: &SubscriptionName,
    enabled: bool,
) -> Result<u64, Error> {
    let sql = "UPDATE pgsluice.subscription SET enabled = $2 WHERE name = $1";
    target.execute(sql, &[&name.as_str(), &enabled]).await
}

/// Stores that the transaction that commits at `lsn` is to be skipped; `None` takes that back.
///
/// # Errors
/// The query failed.
pub async fn set_skip(
    target: &impl GenericClient,
    name: &SubscriptionName,
    lsn: Option<Lsn>,
) -> Result<u64, Error> {
    let sql = "UPDATE pgsluice.subscription SET skip_lsn = $2 WHERE name = $1";
    target.execute(sql, &[&name.as_str(), &lsn.map(|lsn| PgLsn::from(lsn.as_u64()))]).await
}

/// Allows what [`crate::State::ask_for_relook`] asked for. Returns false if nothing was asked.
///
/// # Errors
/// The query failed.
pub async fn allow_relook(target: &impl GenericClient, name: &SubscriptionName) -> Result<bool, Error> {
    // Older versions did not make this column, and so never asked.
    const CAN_ASK: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_attribute a \
        WHERE a.attrelid = pg_catalog.to_regclass('pgsluice.subscription') AND a.attname = 'lost_lsn')";
    if !target.query_one(CAN_ASK, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(false);
    }
    let sql =
        "UPDATE pgsluice.subscription SET relook_lsn = lost_lsn WHERE name = $1 AND lost_lsn IS NOT NULL";
    Ok(target.execute(sql, &[&name.as_str()]).await? > 0)
}
