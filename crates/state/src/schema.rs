//! The schema on the target and its tables, as SQL.
//!
//! [`make_tables`] makes what every subscription needs. Two tables are made only when a command
//! first needs them: the steps of a schema that is brought over, and the adopted subscriptions.

use tokio_postgres::GenericClient;

/// The schema that holds our state; never copied, never applied.
pub const STATE_SCHEMA: &str = "pgsluice";

/// Makes the schema and its tables where they are missing. IF NOT EXISTS fails where two sessions
/// do it at the same time, so one waits for the other.
const TABLES: &str = "
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('pgsluice'));
CREATE SCHEMA IF NOT EXISTS pgsluice;
CREATE TABLE IF NOT EXISTS pgsluice.subscription (
    name text PRIMARY KEY,
    slot text NOT NULL,
    publications text[] NOT NULL,
    source_sysid text NOT NULL,
    source_timeline int8 NOT NULL,
    source_dbname text NOT NULL,
    consistent_point pg_lsn,
    confirmed_lsn pg_lsn,
    enabled bool NOT NULL DEFAULT true,
    skip_lsn pg_lsn,
    last_error text,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now());
CREATE TABLE IF NOT EXISTS pgsluice.copied_table (
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    consistent_point pg_lsn,
    snapshot pg_snapshot,
    begun bool NOT NULL DEFAULT false,
    finished bool NOT NULL DEFAULT false,
    rows int8,
    source_oid oid,
    replaced text,
    PRIMARY KEY (subscription, schema_name, table_name));
CREATE TABLE IF NOT EXISTS pgsluice.progress (
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE,
    applied_lsn pg_lsn NOT NULL,
    PRIMARY KEY (subscription, applied_lsn));
CREATE TABLE IF NOT EXISTS pgsluice.ahead (
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE,
    since_lsn pg_lsn NOT NULL,
    applied_lsn pg_lsn NOT NULL,
    PRIMARY KEY (subscription, applied_lsn));
CREATE TABLE IF NOT EXISTS pgsluice.partition (
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE,
    root_oid oid NOT NULL,
    root_schema text NOT NULL,
    root_name text NOT NULL,
    partition_oid oid NOT NULL,
    partition_schema text NOT NULL,
    partition_name text NOT NULL,
    filenode oid NOT NULL,
    bounds text NOT NULL,
    suspicion text,
    PRIMARY KEY (subscription, root_oid, partition_oid));
CREATE TABLE IF NOT EXISTS pgsluice.conflict_history (
    id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE,
    at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    type text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    index_name text,
    resolution text NOT NULL,
    outcome text NOT NULL,
    remote_xid int8 NOT NULL,
    finished_at pg_lsn NOT NULL,
    remote_time timestamptz NOT NULL,
    remote_origin text,
    local_xid int8,
    local_origin text,
    local_time timestamptz,
    key json,
    local_row json,
    remote_row json,
    replica_identity json,
    detail text NOT NULL);
CREATE INDEX IF NOT EXISTS conflict_history_at ON pgsluice.conflict_history (subscription, at);
CREATE INDEX IF NOT EXISTS conflict_history_error ON pgsluice.conflict_history (subscription, finished_at)
 WHERE outcome = 'error'";

/// Makes the schema and its tables where they are missing, in the open transaction if there is one.
///
/// # Errors
/// The role may not create them, or the query failed.
pub(crate) async fn make_tables(client: &impl GenericClient) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(TABLES).await
}

/// Whether the schema has the table called `table`.
pub(crate) async fn has_table(
    client: &impl GenericClient,
    table: &str,
) -> Result<bool, tokio_postgres::Error> {
    let sql = format!("SELECT pg_catalog.to_regclass('{STATE_SCHEMA}.{table}') IS NOT NULL");
    client.query_one(&sql, &[]).await?.try_get(0)
}
