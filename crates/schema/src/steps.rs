//! The steps as the target keeps them ([`state::schema_steps`]), and the sizes of their tables.
//!
//! Stored in the transaction that creates the tables; each is marked as done
//! in the transaction that carries it out.

use std::collections::HashMap;

use base::SubscriptionName;
use client::Session;
use state::schema_steps::{self, SchemaStep};

use crate::Error;
use crate::plan::{Stage, Step};

/// Whether this subscription has created a schema on the target.
///
/// # Errors
/// The session fails.
pub async fn has_steps(target: &Session, subscription: &SubscriptionName) -> Result<bool, Error> {
    schema_steps::is_begun(&**target, subscription).await.map_err(|error| unread(target, error))
}

fn unread(target: &Session, error: tokio_postgres::Error) -> Error {
    Error::client("read pgsluice.schema_step on the target", target.error(error))
}

/// Stores `steps` in the open transaction.
pub(crate) async fn store(
    target: &Session,
    subscription: &SubscriptionName,
    steps: &[Step],
) -> Result<(), tokio_postgres::Error> {
    let stored = |step: &Step| {
        let Step { number, stage, object, relations, exclusive, statements } = step.clone();
        SchemaStep { number, stage: stage.as_str().to_owned(), object, relations, exclusive, statements }
    };
    let steps: Vec<SchemaStep> = steps.iter().map(stored).collect();
    schema_steps::store(&**target, subscription, &steps).await
}

/// The steps that are not done, in the order of the dump, and how many are.
pub(crate) async fn pending(
    target: &Session,
    subscription: &SubscriptionName,
) -> Result<(Vec<Step>, usize), Error> {
    let pending = schema_steps::pending(&**target, subscription).await;
    let (steps, done) = pending.map_err(|error| unread(target, error))?;
    let step = |step: SchemaStep| {
        let SchemaStep { number, stage, object, relations, exclusive, statements } = step;
        // A word that a later version has stored: its order is the safe one.
        let stage = Stage::ALL.into_iter().find(|own| own.as_str() == stage).unwrap_or(Stage::Rest);
        Step { number, stage, object, relations, exclusive, statements }
    };
    Ok((steps.into_iter().map(step).collect(), done))
}

/// Bytes of the tables that `steps` lock, by the names they use.
pub(crate) async fn sizes(target: &Session, steps: &[Step]) -> Result<HashMap<String, i64>, Error> {
    let names: Vec<&String> = steps.iter().flat_map(|step| &step.relations).collect();
    let sql = "SELECT n, pg_catalog.pg_table_size(pg_catalog.to_regclass(n)) \
                 FROM (SELECT DISTINCT pg_catalog.unnest($1::text[]) AS n) names";
    let rows = target.query(sql, &[&names]).await;
    let failed = |error| Error::client("ask the target for the size of its tables", target.error(error));
    let rows = rows.map_err(failed)?;
    Ok(rows.iter().map(|row| (row.get(0), row.get::<_, Option<i64>>(1).unwrap_or(0))).collect())
}
