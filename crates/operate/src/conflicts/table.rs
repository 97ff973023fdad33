//! The target's table of a conflict, as far as an undo must know it.

use base::quote_ident;
use client::Session;

use crate::admin::Error;

/// A column of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TargetColumn {
    pub(super) name: String,
    /// Its type as SQL, without a modifier that could cut a value short.
    pub(super) type_name: String,
    /// The target computes it.
    pub(super) generated: bool,
    /// An identity column GENERATED ALWAYS: an UPDATE may not give it a value.
    pub(super) identity_always: bool,
    /// The primary key or the replica identity has it.
    pub(super) key: bool,
    /// Its values may be large, so an UPDATE may not send one that it left as it was.
    pub(super) may_be_large: bool,
}

/// The table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TargetTable {
    /// Quoted, and with ONLY where other tables inherit from it.
    pub(super) sql: String,
    pub(super) columns: Vec<TargetColumn>,
}

const COLUMNS: &str = "\
SELECT a.attname, pg_catalog.format_type(a.atttypid, -1), a.attgenerated <> '', a.attidentity = 'a', \
       COALESCE(pg_catalog.array_position(k.indkey::pg_catalog.int2[], a.attnum) < k.indnkeyatts, false), \
       a.attlen = -1, c.relkind = 'r' AND c.relhassubclass \
  FROM pg_catalog.pg_class c \
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
  LEFT JOIN LATERAL (SELECT i.indkey, i.indnkeyatts FROM pg_catalog.pg_index i \
                      WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident) \
                      ORDER BY i.indisprimary DESC LIMIT 1) k ON true \
 WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped \
 ORDER BY a.attnum";

impl TargetTable {
    /// Reads it; `None` if the target has no such table any more.
    pub(super) async fn read(
        target: &Session,
        (schema, name): &(String, String),
    ) -> Result<Option<TargetTable>, Error> {
        let doing = || format!("read the columns of table {schema}.{name}");
        let rows = target.query(COLUMNS, &[schema, name]).await;
        let rows = rows.map_err(|error| Error::query(target, doing(), error))?;
        let Some(first) = rows.first() else { return Ok(None) };
        let only = if first.get(6) { "ONLY " } else { "" };
        let columns = rows.iter().map(|row| TargetColumn {
            name: row.get(0),
            type_name: row.get(1),
            generated: row.get(2),
            identity_always: row.get(3),
            key: row.get(4),
            may_be_large: row.get(5),
        });
        let columns = columns.collect();
        Ok(Some(TargetTable { sql: format!("{only}{}.{}", quote_ident(schema), quote_ident(name)), columns }))
    }

    /// The columns that can be written.
    pub(super) fn written(&self) -> impl Iterator<Item = &TargetColumn> {
        self.columns.iter().filter(|column| !column.generated)
    }
}
