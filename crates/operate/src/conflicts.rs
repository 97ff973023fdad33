//! The conflicts that the target's history has, and the SQL that would undo what was decided.
//!
//! Everything is read from the target, whether a process runs the subscription or not. Nothing is
//! changed: the SQL is for a person to judge and to run.

mod table;
mod undo;

use base::SubscriptionName;
use client::Session;
use state::conflict_history;
pub use state::conflict_history::{Filter, StoredConflict};

use crate::admin::Error;
use table::TargetTable;
pub use undo::Undo;

/// The newest `limit` conflicts that the filter lets through, the newest first.
///
/// # Errors
/// The target cannot be asked.
pub async fn list(
    target: &Session,
    subscription: &SubscriptionName,
    filter: &Filter,
    limit: u32,
) -> Result<Vec<StoredConflict>, Error> {
    let found = conflict_history::list(&**target, subscription, filter, limit).await;
    found.map_err(|error| reading(target, error))
}

/// One conflict, and what would undo it. `None` if the history does not have it.
///
/// # Errors
/// The target cannot be asked.
pub async fn explain(
    target: &Session,
    subscription: &SubscriptionName,
    id: i64,
) -> Result<Option<(StoredConflict, Undo)>, Error> {
    let failed = |error| reading(target, error);
    let found = conflict_history::find(&**target, subscription, id).await.map_err(failed)?;
    let Some(conflict) = found else { return Ok(None) };
    let together = conflict_history::together(&**target, subscription, &conflict).await.map_err(failed)?;
    let table = TargetTable::read(target, &conflict.table).await?;
    let undo = undo::undo(&conflict, &together, table.as_ref());
    Ok(Some((conflict, undo)))
}

/// How the target reads a time, in UTC; the server's message if it cannot.
///
/// # Errors
/// The target cannot be asked.
pub async fn time(target: &Session, text: &str) -> Result<Result<String, String>, Error> {
    let sql = "SELECT $1::pg_catalog.text::pg_catalog.timestamptz::pg_catalog.text";
    let zone = target.batch_execute("SET TIME ZONE 'UTC'").await;
    zone.map_err(|error| Error::query(target, "set the time zone", error))?;
    match target.query_one(sql, &[&text]).await {
        Ok(row) => Ok(Ok(row.get(0))),
        Err(error) => match error.as_db_error() {
            Some(refused) if refused.code().code().starts_with("22") => Ok(Err(refused.message().to_owned())),
            _ => Err(Error::query(target, "ask how the target reads a time", error)),
        },
    }
}

fn reading(target: &Session, error: tokio_postgres::Error) -> Error {
    Error::query(target, "read pgsluice.conflict_history on the target", error)
}
