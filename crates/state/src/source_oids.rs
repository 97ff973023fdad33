//! The target's record of the source relations that tables were copied from: see
//! [`crate::copied_from`].

use base::Oid;

use crate::copied_from::Parting;
use crate::error::Error;
use crate::since::TableKey;
use crate::state::State;

/// $1 subscription, $2 schema, $3 name, $4 reason. The table's rows are not the source's any more.
/// They are not left from an attempt of ours either, so they may not be removed without permission.
pub const LEAVE_OUT: &str = "\
UPDATE pgsluice.copied_table SET finished = false, begun = false, replaced = $4
 WHERE subscription = $1 AND schema_name = $2 AND table_name = $3";

impl State {
    /// Adds the columns for the source's OIDs, where an older version made none.
    ///
    /// # Errors
    /// A query failed.
    pub async fn keep_oids(&self) -> Result<(), Error> {
        self.make_columns("copied_table", &["source_oid pg_catalog.oid", "replaced pg_catalog.text"]).await
    }

    /// Stores the relations that tables were copied from, where none was known.
    ///
    /// # Errors
    /// A query failed.
    pub async fn learn_oids(&self, tables: &[(TableKey, Oid)]) -> Result<(), Error> {
        let (schemas, names, oids) = columns(tables);
        let sql = "UPDATE pgsluice.copied_table t SET source_oid = l.source_oid \
                     FROM unnest($2::text[], $3::text[], $4::oid[]) AS l (schema_name, table_name, source_oid) \
                    WHERE t.subscription = $1 AND t.schema_name = l.schema_name AND t.table_name = l.table_name \
                      AND t.source_oid IS NULL";
        self.execute(sql, &[&schemas, &names, &oids]).await.map(drop)
    }

    /// Adds tables that are to take part and do not yet, each with its OID on the source. For a
    /// table that has a row, only the OID changes.
    ///
    /// # Errors
    /// A query failed.
    pub async fn add_tables(&self, tables: &[(TableKey, Oid)]) -> Result<(), Error> {
        let (schemas, names, oids) = columns(tables);
        let sql = "INSERT INTO pgsluice.copied_table AS c (subscription, schema_name, table_name, source_oid) \
                   SELECT $1, t.schema_name, t.table_name, t.source_oid \
                     FROM unnest($2::text[], $3::text[], $4::oid[]) AS t (schema_name, table_name, source_oid) \
                   ON CONFLICT (subscription, schema_name, table_name) \
                   DO UPDATE SET source_oid = excluded.source_oid WHERE NOT c.finished";
        self.execute(sql, &[&schemas, &names, &oids]).await.map(drop)
    }

    /// Stops applying to `table` until it is copied again.
    ///
    /// # Errors
    /// A query failed.
    pub async fn leave_out(&self, table: &TableKey, why: &Parting) -> Result<(), Error> {
        self.execute(LEAVE_OUT, &[&table.0, &table.1, &why.to_string()]).await.map(drop)
    }

    /// Marks `table`, which was left out, to be copied again; its rows are removed for that.
    ///
    /// # Errors
    /// A query failed.
    pub async fn copy_replaced_again(&self, table: &TableKey) -> Result<(), Error> {
        let sql = "UPDATE pgsluice.copied_table SET begun = true WHERE subscription = $1 AND schema_name = $2 \
                   AND table_name = $3 AND NOT finished AND replaced IS NOT NULL";
        self.execute(sql, &[&table.0, &table.1]).await.map(drop)
    }
}

fn columns(tables: &[(TableKey, Oid)]) -> (Vec<&str>, Vec<&str>, Vec<u32>) {
    let mut columns = (Vec::new(), Vec::new(), Vec::new());
    for ((schema, name), oid) in tables {
        columns.0.push(schema.as_str());
        columns.1.push(name.as_str());
        columns.2.push(oid.0);
    }
    columns
}
