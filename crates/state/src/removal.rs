//! Removing a subscription from the target: its rows, its origins, and the schema with the last
//! subscription.
//!
//! All of it runs in one transaction of the caller's. Origins belong to the whole cluster, the rows
//! to one database. So origins without a row here may belong to a subscription of the same name
//! elsewhere, and are kept unless forced.

use base::{SubscriptionName, quote_ident};
use client::SqlState;
use tokio_postgres::{Error, GenericClient, Transaction};

use crate::origins::origins;
use crate::schema::STATE_SCHEMA;

/// The tables of the schema, and the column that names the subscription.
const TABLES: &str = "\
SELECT c.relname::text, a.attname::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
WHERE c.relnamespace = 'pgsluice'::pg_catalog.regnamespace AND c.relkind = 'r'
  AND a.attname = CASE c.relname WHEN 'subscription' THEN 'name' ELSE 'subscription' END
ORDER BY c.relname = 'subscription', c.relname";

/// The types with which arrays are applied ([`crate::State::make_holders`]).
const HOLDERS: &str = "\
SELECT pg_catalog.format('pgsluice.%I', t.typname)
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_class c ON c.oid = t.typrelid AND c.relkind = 'c'
WHERE t.typnamespace = 'pgsluice'::pg_catalog.regnamespace AND t.typname ~ '^array_of_'";

/// What [`remove`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removed {
    /// Everything is gone: descriptions of what there was.
    All(Vec<String>),
    /// Nothing was removed: these origins exist without a row, and may belong to another database.
    Nothing {
        /// The names of the origins.
        origins: Vec<String>,
    },
}

/// Keeps every process from adding a subscription until the transaction ends, so that the last one
/// can be removed with the schema.
///
/// # Errors
/// The query failed, also because there is no such table.
pub async fn lock(transaction: &impl GenericClient) -> Result<(), Error> {
    transaction.batch_execute("LOCK TABLE pgsluice.subscription IN ACCESS EXCLUSIVE MODE").await
}

/// Removes everything of the subscription, and commits. `has_tables` says whether the schema is
/// there at all.
///
/// # Errors
/// A query failed, also because a session still uses an origin.
pub async fn remove(
    mut transaction: Transaction<'_>,
    name: &SubscriptionName,
    has_tables: bool,
    force: bool,
) -> Result<Removed, Error> {
    let mut known = false;
    if has_tables {
        lock(&transaction).await?;
        let sql = "SELECT 1 FROM pgsluice.subscription WHERE name = $1";
        known = transaction.query_opt(sql, &[&name.as_str()]).await?.is_some();
    }
    if !known && !force {
        let origins = origins(&transaction, name).await?;
        if !origins.is_empty() {
            return Ok(Removed::Nothing { origins });
        }
    }
    let origins = drop_origins(&transaction, name).await?;
    let described = |origin: String| format!("replication origin \"{origin}\" on the target");
    let mut removed: Vec<String> = origins.into_iter().map(described).collect();
    if has_tables {
        removed.append(&mut remove_rows(&mut transaction, name).await?);
    }
    transaction.commit().await?;
    Ok(Removed::All(removed))
}

/// Drops the subscription's origins, and returns their names.
///
/// # Errors
/// A query failed, also because a session still uses an origin.
pub async fn drop_origins(
    client: &impl GenericClient,
    name: &SubscriptionName,
) -> Result<Vec<String>, Error> {
    let origins = origins(client, name).await?;
    for origin in &origins {
        client.execute("SELECT pg_catalog.pg_replication_origin_drop($1)", &[origin]).await?;
    }
    Ok(origins)
}

/// Removes the subscription's rows, and with the last subscription also the schema. Returns
/// descriptions of what it removed.
///
/// # Errors
/// A query failed.
pub async fn remove_rows(
    transaction: &mut Transaction<'_>,
    name: &SubscriptionName,
) -> Result<Vec<String>, Error> {
    let mut removed = Vec::new();
    let tables: Vec<(String, String)> =
        transaction.query(TABLES, &[]).await?.iter().map(|row| (row.get(0), row.get(1))).collect();
    for (table, column) in &tables {
        let sql =
            format!("DELETE FROM {STATE_SCHEMA}.{} WHERE {} = $1", quote_ident(table), quote_ident(column));
        let count = transaction.execute(&sql, &[&name.as_str()]).await?;
        if count > 0 {
            let rows = if count == 1 { "row" } else { "rows" };
            removed.push(format!("{count} {rows} of {STATE_SCHEMA}.{table} on the target"));
        }
    }
    let sql = "SELECT EXISTS (SELECT FROM pgsluice.subscription)";
    let is_last = !transaction.query_one(sql, &[]).await?.get::<_, bool>(0);
    if is_last && drop_schema(transaction, &tables).await? {
        removed.push(format!("schema \"{STATE_SCHEMA}\" on the target"));
    }
    Ok(removed)
}

/// Drops the schema with `tables`, but only our own objects: any other object in the schema keeps
/// it. Returns whether the schema is gone.
async fn drop_schema(transaction: &mut Transaction<'_>, tables: &[(String, String)]) -> Result<bool, Error> {
    let holders = transaction.query(HOLDERS, &[]).await?;
    let holders: String =
        holders.iter().map(|row| format!("DROP TYPE {}; ", row.get::<_, &str>(0))).collect();
    let tables: Vec<_> =
        tables.iter().map(|(table, _)| format!("{STATE_SCHEMA}.{}", quote_ident(table))).collect();
    let savepoint = transaction.transaction().await?;
    let sql = format!("DROP TABLE {}; {holders}DROP SCHEMA {STATE_SCHEMA}", tables.join(", "));
    match savepoint.batch_execute(&sql).await {
        Ok(()) => savepoint.commit().await.map(|()| true),
        Err(error) if error.code() == Some(&SqlState::DEPENDENT_OBJECTS_STILL_EXIST) => {
            tracing::warn!("schema pgsluice stays on the target: it holds objects that are not pgsluice's");
            savepoint.rollback().await.map(|()| false)
        }
        Err(error) => Err(error),
    }
}
