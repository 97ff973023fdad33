//! The record that a subscription was adopted from a native one.
//!
//! The crate `operate` has the commands that adopt and release. A start only reads what they left
//! here.

use base::SubscriptionName;
use tokio_postgres::GenericClient;

use crate::schema::{has_table, make_tables};

/// The options of a native subscription, in pgsluice's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeOptions {
    /// Its connection string, if the role may read it and it still exists.
    pub conninfo: Option<String>,
    /// Its publications.
    pub publications: Vec<String>,
    /// `binary`
    pub binary: bool,
    /// `streaming`, `parallel` included.
    pub streaming: bool,
    /// `any` or `none`
    pub origin: String,
    /// `synchronous_commit`
    pub synchronous_commit: String,
    /// `disable_on_error`
    pub disable_on_error: bool,
}

/// A subscription that was adopted, and the present state of the native one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adoption {
    /// OID of the native subscription.
    pub native_oid: u32,
    /// The native subscription's name, if it still exists.
    pub native: Option<String>,
    /// The slot that the native subscription names; it should be `None`.
    pub native_slot: Option<String>,
    /// The slot that was taken over.
    pub slot: String,
    /// The command that adopts has finished.
    pub finished: bool,
    /// The options of the native subscription.
    pub options: NativeOptions,
}

/// The source of an adopted subscription, as it identifies itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptedSource {
    /// Its system identifier.
    pub sysid: String,
    /// Its timeline.
    pub timeline: i64,
    /// The database of the slot.
    pub dbname: String,
}

/// Every role that runs a subscription of this database reads this table; nothing in it is secret.
const TABLE: &str = "\
CREATE TABLE IF NOT EXISTS pgsluice.adopted (
    subscription text PRIMARY KEY REFERENCES pgsluice.subscription ON DELETE CASCADE,
    native_oid oid NOT NULL,
    binary_values bool NOT NULL,
    streaming bool NOT NULL,
    origin text NOT NULL,
    synchronous_commit text NOT NULL,
    disable_on_error bool NOT NULL,
    adopted_at timestamptz NOT NULL DEFAULT pg_catalog.now());
GRANT SELECT ON pgsluice.adopted TO PUBLIC";

const ADOPTED: &str = "\
SELECT a.native_oid, n.subname::text, n.subslotname::text, s.slot, s.consistent_point IS NOT NULL, s.publications,
       a.binary_values, a.streaming, a.origin, a.synchronous_commit, a.disable_on_error
  FROM pgsluice.adopted a
  JOIN pgsluice.subscription s ON s.name = a.subscription
  LEFT JOIN pg_catalog.pg_subscription n ON n.oid = a.native_oid
   AND n.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
 WHERE a.subscription = $1";

/// Reads whether the subscription was adopted.
///
/// # Errors
/// The target failed.
pub async fn adoption(
    target: &impl GenericClient,
    name: &SubscriptionName,
) -> Result<Option<Adoption>, tokio_postgres::Error> {
    if !has_table(target, "adopted").await? {
        return Ok(None);
    }
    let row = target.query_opt(ADOPTED, &[&name.as_str()]).await?;
    Ok(row.map(|row| Adoption {
        native_oid: row.get(0),
        native: row.get(1),
        native_slot: row.get(2),
        slot: row.get(3),
        finished: row.get(4),
        options: NativeOptions {
            conninfo: None,
            publications: row.get(5),
            binary: row.get(6),
            streaming: row.get(7),
            origin: row.get(8),
            synchronous_commit: row.get(9),
            disable_on_error: row.get(10),
        },
    }))
}

/// Makes the tables of an adopted subscription where they are missing, in the open transaction.
///
/// # Errors
/// The role may not create them, or the query failed.
pub async fn make_adopted(target: &impl GenericClient) -> Result<(), tokio_postgres::Error> {
    if !has_table(target, "copied_table").await? {
        make_tables(target).await?;
    }
    if !has_table(target, "adopted").await? {
        target.batch_execute(TABLE).await?;
    }
    Ok(())
}

/// Stores in the open transaction that `name` takes over the native subscription `native_oid`, its
/// `slot` and its `options`. The adoption is finished by [`crate::State::begin_at`].
///
/// # Errors
/// A query failed.
pub async fn store_adoption(
    target: &impl GenericClient,
    name: &SubscriptionName,
    source: &AdoptedSource,
    slot: &str,
    (native_oid, options): (u32, &NativeOptions),
) -> Result<(), tokio_postgres::Error> {
    let AdoptedSource { sysid, timeline, dbname } = source;
    let sql = "INSERT INTO pgsluice.subscription (name, slot, publications, source_sysid, source_timeline, source_dbname) \
               VALUES ($1, $2, $3, $4, $5, $6)";
    target.execute(sql, &[&name.as_str(), &slot, &options.publications, sysid, timeline, dbname]).await?;
    let sql = "INSERT INTO pgsluice.adopted (subscription, native_oid, binary_values, streaming, origin, \
                                             synchronous_commit, disable_on_error) VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let NativeOptions { binary, streaming, origin, synchronous_commit, disable_on_error, .. } = options;
    target
        .execute(
            sql,
            &[&name.as_str(), &native_oid, binary, streaming, origin, synchronous_commit, disable_on_error],
        )
        .await?;
    Ok(())
}
