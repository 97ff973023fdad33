//! Tables that are to be copied again, and the permission to do so.
//!
//! A table that does not take part any more keeps its row: `finished` is false, and `begun` says that the rows on the target
//! may be removed when it is copied, as rows of an unfinished attempt may.

use base::Lsn;
use tokio_postgres::types::PgLsn;

use super::State;
use crate::error::Error;
use crate::join::TableKey;

impl State {
    /// These tables, given as schema and name, take part no longer until they have been copied again. With `empties` the copy
    /// removes what the target holds of them. Those that do not take part stay as they are.
    ///
    /// # Errors
    /// As every query's.
    pub async fn copy_again(&self, tables: &[TableKey], empties: bool) -> Result<(), Error> {
        self.keep_snapshots().await?;
        let (schemas, names): (Vec<&str>, Vec<&str>) =
            tables.iter().map(|(schema, name)| (schema.as_str(), name.as_str())).unzip();
        let sql = "UPDATE pgsluice.copied_table \
                      SET finished = false, begun = $4, consistent_point = NULL, snapshot = NULL, rows = NULL \
                    WHERE subscription = $1 AND finished AND (schema_name, table_name) IN \
                          (SELECT t.schema_name, t.table_name \
                             FROM unnest($2::text[], $3::text[]) AS t (schema_name, table_name))";
        self.execute(sql, &[&schemas, &names, &empties]).await.map(drop)
    }

    /// This table, which does not take part yet, has lost changes: it may join only by a copy that empties it.
    ///
    /// # Errors
    /// As every query's.
    pub async fn must_be_copied(&self, table: &TableKey) -> Result<(), Error> {
        let sql = "INSERT INTO pgsluice.copied_table (subscription, schema_name, table_name, begun) \
                   VALUES ($1, $2, $3, true) ON CONFLICT (subscription, schema_name, table_name) DO UPDATE \
                      SET begun = true WHERE NOT copied_table.finished";
        self.execute(sql, &[&table.0, &table.1]).await.map(drop)
    }

    /// The catalogs that were looked at at `look` cannot be followed any further, and tables would have to be copied again to
    /// go on: somebody must allow it.
    ///
    /// # Errors
    /// As every query's.
    pub async fn ask_for_relook(&self, look: Lsn) -> Result<(), Error> {
        self.make_columns("subscription", &["lost_lsn pg_catalog.pg_lsn", "relook_lsn pg_catalog.pg_lsn"])
            .await?;
        let sql = "UPDATE pgsluice.subscription SET lost_lsn = $2 WHERE name = $1";
        self.execute(sql, &[&PgLsn::from(look.as_u64())]).await.map(drop)
    }

    /// Whether somebody has allowed it since, for that look and no other.
    ///
    /// # Errors
    /// As every query's.
    pub async fn is_relook_allowed(&self, look: Lsn) -> Result<bool, Error> {
        let sql = "SELECT coalesce((pg_catalog.to_jsonb(s) ->> 'relook_lsn')::pg_lsn = $2, false) \
                     FROM pgsluice.subscription s WHERE name = $1";
        let row = self.session.query_one(sql, &[&self.name.as_str(), &PgLsn::from(look.as_u64())]).await;
        Ok(row.map_err(|error| self.damaged(error))?.get(0))
    }

    /// Nothing is asked for any more: there are other catalogs. Only behind [`State::is_relook_allowed`], if it was.
    ///
    /// # Errors
    /// As every query's.
    pub async fn has_relooked(&self) -> Result<(), Error> {
        let sql = "UPDATE pgsluice.subscription SET lost_lsn = NULL, relook_lsn = NULL WHERE name = $1";
        self.execute(sql, &[]).await.map(drop)
    }
}
