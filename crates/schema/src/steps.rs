//! The steps as the target keeps them.
//!
//! Stored in the transaction that creates the tables; each is marked as done
//! in the transaction that carries it out. The rows stay when all are done: so
//! it is known that nothing is to be created any more. They go with the
//! subscription's other state.

use std::collections::HashMap;

use base::SubscriptionName;
use client::Session;
use tokio_postgres::Row;

use crate::Error;
use crate::plan::{Stage, Step};

const TABLE: &str = "
CREATE TABLE IF NOT EXISTS pgsluice.schema_step (
    subscription text NOT NULL,
    number int4 NOT NULL,
    stage text NOT NULL,
    object text NOT NULL,
    relations text[] NOT NULL,
    exclusive bool NOT NULL,
    statements text[] NOT NULL,
    done bool NOT NULL DEFAULT false,
    PRIMARY KEY (subscription, number))";

/// The number of a row that is there also if there is nothing to do later.
const BEGUN: i32 = 0;

/// Whether this subscription has created a schema on the target.
///
/// # Errors
/// The session fails.
pub async fn has_steps(target: &Session, subscription: &SubscriptionName) -> Result<bool, Error> {
    let failed = |error| Error::client("read pgsluice.schema_step on the target", target.error(error));
    if !is_there(target).await.map_err(failed)? {
        return Ok(false);
    }
    let sql = "SELECT EXISTS (SELECT FROM pgsluice.schema_step WHERE subscription = $1)";
    Ok(target.query_one(sql, &[&subscription.as_str()]).await.map_err(failed)?.get(0))
}

async fn is_there(target: &Session) -> Result<bool, tokio_postgres::Error> {
    let sql = "SELECT pg_catalog.to_regclass('pgsluice.schema_step') IS NOT NULL";
    Ok(target.query_one(sql, &[]).await?.get(0))
}

/// Stores `steps` in the open transaction.
pub(crate) async fn store(
    target: &Session,
    subscription: &SubscriptionName,
    steps: &[Step],
) -> Result<(), tokio_postgres::Error> {
    target.batch_execute(TABLE).await?;
    let sql = "INSERT INTO pgsluice.schema_step (subscription, number, stage, object, relations, exclusive, statements, done) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $2 = 0)";
    let insert = target.prepare(sql).await?;
    let begun = Step {
        number: BEGUN,
        stage: Stage::Rest,
        object: "SCHEMA".to_owned(),
        relations: Vec::new(),
        exclusive: true,
        statements: Vec::new(),
    };
    for step in std::iter::once(&begun).chain(steps) {
        let name = subscription.as_str();
        target
            .execute(
                &insert,
                &[
                    &name,
                    &step.number,
                    &step.stage.as_str(),
                    &step.object,
                    &step.relations,
                    &step.exclusive,
                    &step.statements,
                ],
            )
            .await?;
    }
    Ok(())
}

/// The steps that are not done, in the order of the dump, and how many are.
pub(crate) async fn pending(
    target: &Session,
    subscription: &SubscriptionName,
) -> Result<(Vec<Step>, usize), Error> {
    let failed = |error| Error::client("read pgsluice.schema_step on the target", target.error(error));
    if !is_there(target).await.map_err(failed)? {
        return Ok((Vec::new(), 0));
    }
    let name = subscription.as_str();
    let sql = "SELECT number, stage, object, relations, exclusive, statements FROM pgsluice.schema_step \
                WHERE subscription = $1 AND NOT done ORDER BY number";
    let rows = target.query(sql, &[&name]).await.map_err(failed)?;
    let sql = "SELECT pg_catalog.count(*) FROM pgsluice.schema_step WHERE subscription = $1 AND done AND number > 0";
    let done: i64 = target.query_one(sql, &[&name]).await.map_err(failed)?.get(0);
    let steps = rows.iter().map(step).collect::<Result<_, _>>().map_err(failed)?;
    Ok((steps, usize::try_from(done).unwrap_or(0)))
}

fn step(row: &Row) -> Result<Step, tokio_postgres::Error> {
    let stage: &str = row.try_get(1)?;
    Ok(Step {
        number: row.try_get(0)?,
        // A word that a later version has stored: its order is the safe one.
        stage: Stage::ALL.into_iter().find(|own| own.as_str() == stage).unwrap_or(Stage::Rest),
        object: row.try_get(2)?,
        relations: row.try_get(3)?,
        exclusive: row.try_get(4)?,
        statements: row.try_get(5)?,
    })
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

/// Whether somebody has done the step, or taken it to another stage; asked
/// under its lock.
pub(crate) async fn is_over(
    target: &Session,
    subscription: &SubscriptionName,
    step: &Step,
) -> Result<bool, tokio_postgres::Error> {
    let sql = "SELECT EXISTS (SELECT FROM pgsluice.schema_step \
                WHERE subscription = $1 AND number = $2 AND stage = $3 AND NOT done)";
    let row = target.query_one(sql, &[&subscription.as_str(), &step.number, &step.stage.as_str()]).await?;
    Ok(!row.get::<_, bool>(0))
}

/// Marks the step as done, in the open transaction.
pub(crate) async fn mark_done(
    target: &Session,
    subscription: &SubscriptionName,
    step: &Step,
) -> Result<(), tokio_postgres::Error> {
    let sql = "UPDATE pgsluice.schema_step SET done = true WHERE subscription = $1 AND number = $2";
    target.execute(sql, &[&subscription.as_str(), &step.number]).await.map(drop)
}

/// Leaves `statements` for when the changes flow, in the open transaction.
pub(crate) async fn put_off(
    target: &Session,
    subscription: &SubscriptionName,
    step: &Step,
    statements: &[String],
) -> Result<(), tokio_postgres::Error> {
    let sql =
        "UPDATE pgsluice.schema_step SET stage = $3, statements = $4 WHERE subscription = $1 AND number = $2";
    let late = Stage::Late.as_str();
    target.execute(sql, &[&subscription.as_str(), &step.number, &late, &statements]).await.map(drop)
}
