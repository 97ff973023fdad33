//! Tables that are to be copied again, and the permission to do so.
//!
//! A table that takes part no longer keeps its row, with `finished` false. `begun` says that the
//! next copy may remove the table's rows from the target, as it may after an unfinished attempt.

use base::Lsn;
use tokio_postgres::types::PgLsn;

use crate::error::Error;
use crate::since::TableKey;
use crate::state::State;

impl State {
    /// Stops these tables, given as schema and name, from taking part until they are copied again.
    /// With `empties` the copy removes the rows that the target has of them. Tables that do not
    /// take part stay as they are.
    ///
    /// # Errors
    /// A query failed.
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

    /// Records that this table, which does not take part yet, has lost changes. It may join only by
    /// a copy that empties it.
    ///
    /// # Errors
    /// A query failed.
    pub async fn must_be_copied(&self, table: &TableKey) -> Result<(), Error> {
        let sql = "INSERT INTO pgsluice.copied_table (subscription, schema_name, table_name, begun) \
                   VALUES ($1, $2, $3, true) ON CONFLICT (subscription, schema_name, table_name) DO UPDATE \
                      SET begun = true WHERE NOT copied_table.finished";
        self.execute(sql, &[&table.0, &table.1]).await.map(drop)
    }

    /// Asks for permission: the catalogs read at `look` cannot be followed any further, and to
    /// continue, tables would have to be copied again.
    ///
    /// # Errors
    /// A query failed.
    pub async fn ask_for_relook(&self, look: Lsn) -> Result<(), Error> {
        self.make_columns("subscription", &["lost_lsn pg_catalog.pg_lsn", "relook_lsn pg_catalog.pg_lsn"])
            .await?;
        let sql = "UPDATE pgsluice.subscription SET lost_lsn = $2 WHERE name = $1";
        self.execute(sql, &[&PgLsn::from(look.as_u64())]).await.map(drop)
    }

    /// Whether that permission was given since, for this look and no other.
    ///
    /// # Errors
    /// A query failed.
    pub async fn is_relook_allowed(&self, look: Lsn) -> Result<bool, Error> {
        let sql = "SELECT coalesce((pg_catalog.to_jsonb(s) ->> 'relook_lsn')::pg_lsn = $2, false) \
                     FROM pgsluice.subscription s WHERE name = $1";
        let row = self.session.query_one(sql, &[&self.name.as_str(), &PgLsn::from(look.as_u64())]).await;
        Ok(row.map_err(|error| self.damaged(error))?.get(0))
    }

    /// Withdraws the request, because the catalogs were read anew. If permission was requested,
    /// call it only after [`State::is_relook_allowed`].
    ///
    /// # Errors
    /// A query failed.
    pub async fn has_relooked(&self) -> Result<(), Error> {
        let sql = "UPDATE pgsluice.subscription SET lost_lsn = NULL, relook_lsn = NULL WHERE name = $1";
        self.execute(sql, &[]).await.map(drop)
    }
}
