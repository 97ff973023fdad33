//! The steps of a schema that is brought over, each stored until it is carried out.
//!
//! The steps are stored in the transaction that creates the tables. Each is marked as done in the
//! transaction that carries it out. The rows stay when all steps are done, so a later start knows
//! that nothing is left to create. They go with the subscription's other rows.
//!
//! What a step does belongs to the crate `schema`.

use base::SubscriptionName;
use tokio_postgres::{Error, GenericClient, Row};

use crate::schema::{has_table, make_tables};

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

/// Number 0, which is done from the start: it is there also if no step is left for later.
const BEGUN: &str = "INSERT INTO pgsluice.schema_step (subscription, number, stage, object, relations, exclusive, \
                            statements, done) VALUES ($1, 0, 'rest', 'SCHEMA', '{}', true, '{}', true)";

const STEP: &str = "INSERT INTO pgsluice.schema_step (subscription, number, stage, object, relations, exclusive, \
                           statements) VALUES ($1, $2, $3, $4, $5, $6, $7)";

/// A step, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaStep {
    /// Its place in the dump, from 1 on.
    pub number: i32,
    /// The stage that carries it out, by a word of the crate `schema`. The stages `key`, `index`
    /// and `attach` build indexes.
    pub stage: String,
    /// The object that it creates, as a person reads it.
    pub object: String,
    /// The relations that it locks, as SQL.
    pub relations: Vec<String>,
    /// Whether it must be alone on them.
    pub exclusive: bool,
    /// Its statements, in order.
    pub statements: Vec<String>,
}

/// Whether this subscription has created a schema on the target.
///
/// # Errors
/// A query failed.
pub async fn is_begun(target: &impl GenericClient, subscription: &SubscriptionName) -> Result<bool, Error> {
    if !has_table(target, "schema_step").await? {
        return Ok(false);
    }
    let sql = "SELECT EXISTS (SELECT FROM pgsluice.schema_step WHERE subscription = $1)";
    target.query_one(sql, &[&subscription.as_str()]).await?.try_get(0)
}

/// Makes the schema's tables where they are missing, and stores `steps`, in the open transaction.
///
/// # Errors
/// The role may not create the tables, or a query failed.
pub async fn store(
    target: &impl GenericClient,
    subscription: &SubscriptionName,
    steps: &[SchemaStep],
) -> Result<(), Error> {
    let name = subscription.as_str();
    make_tables(target).await?;
    target.batch_execute(TABLE).await?;
    target.execute(BEGUN, &[&name]).await?;
    let insert = target.prepare(STEP).await?;
    for SchemaStep { number, stage, object, relations, exclusive, statements } in steps {
        target.execute(&insert, &[&name, number, stage, object, relations, exclusive, statements]).await?;
    }
    Ok(())
}

/// The steps that are not done, in the order of the dump, and the number of those that are.
///
/// # Errors
/// A query failed.
pub async fn pending(
    target: &impl GenericClient,
    subscription: &SubscriptionName,
) -> Result<(Vec<SchemaStep>, usize), Error> {
    if !has_table(target, "schema_step").await? {
        return Ok((Vec::new(), 0));
    }
    let name = subscription.as_str();
    let sql = "SELECT number, stage, object, relations, exclusive, statements FROM pgsluice.schema_step \
                WHERE subscription = $1 AND NOT done ORDER BY number";
    let rows = target.query(sql, &[&name]).await?;
    let sql = "SELECT pg_catalog.count(*) FROM pgsluice.schema_step WHERE subscription = $1 AND done AND number > 0";
    let done: i64 = target.query_one(sql, &[&name]).await?.get(0);
    let steps = rows.iter().map(step).collect::<Result<_, _>>()?;
    Ok((steps, usize::try_from(done).unwrap_or(0)))
}

fn step(row: &Row) -> Result<SchemaStep, Error> {
    Ok(SchemaStep {
        number: row.try_get(0)?,
        stage: row.try_get(1)?,
        object: row.try_get(2)?,
        relations: row.try_get(3)?,
        exclusive: row.try_get(4)?,
        statements: row.try_get(5)?,
    })
}

/// Whether another process has done the step, or moved it to another stage. Ask this while holding
/// the step's lock.
///
/// # Errors
/// The query failed.
pub async fn is_over(
    target: &impl GenericClient,
    subscription: &SubscriptionName,
    number: i32,
    stage: &str,
) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT FROM pgsluice.schema_step \
                WHERE subscription = $1 AND number = $2 AND stage = $3 AND NOT done)";
    let row = target.query_one(sql, &[&subscription.as_str(), &number, &stage]).await?;
    Ok(!row.get::<_, bool>(0))
}

/// Marks the step as done, in the open transaction.
///
/// # Errors
/// The query failed.
pub async fn mark_done(
    target: &impl GenericClient,
    subscription: &SubscriptionName,
    number: i32,
) -> Result<(), Error> {
    let sql = "UPDATE pgsluice.schema_step SET done = true WHERE subscription = $1 AND number = $2";
    target.execute(sql, &[&subscription.as_str(), &number]).await.map(drop)
}

/// Leaves `statements` of the step to another `stage`, in the open transaction.
///
/// # Errors
/// The query failed.
pub async fn put_off(
    target: &impl GenericClient,
    subscription: &SubscriptionName,
    number: i32,
    stage: &str,
    statements: &[String],
) -> Result<(), Error> {
    let sql =
        "UPDATE pgsluice.schema_step SET stage = $3, statements = $4 WHERE subscription = $1 AND number = $2";
    target.execute(sql, &[&subscription.as_str(), &number, &stage, &statements]).await.map(drop)
}
