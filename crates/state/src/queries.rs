//! Queries on schema `pgsluice` for a reader that runs them in its own way.
//!
//! The crate `check` wraps a query so that a refusal becomes a finding, and reads each column by
//! its name. So it is handed SQL. What it makes of the answer does not belong here.

use crate::origins::origins_of;
use crate::state::is_lock_of;

/// One row about the schema and the role's rights in it:
///
/// | column | whether |
/// | --- | --- |
/// | `schema` | the schema exists |
/// | `tables` | it has its tables |
/// | `has_steps` | a schema was brought over |
/// | `create` | the role has CREATE on the database |
/// | `usage`, `create_in_schema` | the role has the right on the schema, or the schema does not exist |
/// | `forbidden` | lists the tables that the role may not write, as SQL |
pub const RIGHTS: &str = "
SELECT n.oid IS NOT NULL AS schema, pg_catalog.to_regclass('pgsluice.copied_table') IS NOT NULL AS tables,
       pg_catalog.to_regclass('pgsluice.schema_step') IS NOT NULL AS has_steps,
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS create,
       n.oid IS NULL OR pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS usage,
       n.oid IS NULL OR pg_catalog.has_schema_privilege(n.oid, 'CREATE') AS create_in_schema,
       ARRAY(SELECT pg_catalog.format('pgsluice.%I', c.relname) FROM pg_catalog.pg_class c
              WHERE c.relnamespace = n.oid AND c.relkind = 'r'
                AND c.relname IN ('subscription', 'copied_table', 'progress')
                AND NOT (pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT')
                     AND pg_catalog.has_table_privilege(c.oid, CASE c.relname WHEN 'progress' THEN 'DELETE' ELSE 'UPDATE' END))
              ORDER BY 1) AS forbidden
  FROM (VALUES (1)) v LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'pgsluice'";

/// `$1` is the subscription's name. One row, or none, with `begun`, `enabled`, `source_sysid`, and
/// the numbers `tables` and `unfinished`.
pub const SUBSCRIPTION: &str = "
SELECT s.consistent_point IS NOT NULL AS begun, s.enabled, s.source_sysid,
       (SELECT pg_catalog.count(*) FROM pgsluice.copied_table t WHERE t.subscription = s.name) AS tables,
       (SELECT pg_catalog.count(*) FROM pgsluice.copied_table t
         WHERE t.subscription = s.name AND NOT t.finished) AS unfinished
  FROM pgsluice.subscription s WHERE s.name = $1::text";

/// `$1` is the subscription's name. One row, whose `is_running` says whether a process holds the
/// subscription's lock, and so runs it.
#[must_use]
pub fn running() -> String {
    let lock = is_lock_of("$1::text");
    format!("SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE {lock}) AS is_running")
}

/// `$1` is the subscription's name. One row, whose `count` is the number of indexes that a schema
/// that was brought over still lacks.
pub const UNBUILT: &str = "
SELECT pg_catalog.count(*) AS count FROM pgsluice.schema_step s
 WHERE s.subscription = $1::text AND NOT s.done AND s.stage IN ('key', 'index', 'attach')";

/// `$1` is the name of the subscription's first origin, `$2` that of the subscription. One row:
/// `named` counts the origins of the whole cluster, `ours` says whether the first one exists, and
/// `own` counts the subscription's.
#[must_use]
pub fn origins() -> String {
    format!(
        "SELECT pg_catalog.count(*) AS named, COALESCE(pg_catalog.bool_or(o.roname = $1::text), false) AS ours,
                pg_catalog.count(*) FILTER (WHERE {}) AS own
           FROM pg_catalog.pg_replication_origin o",
        origins_of("$2::text")
    )
}
