//! The session that look-ups ask the target on, and how tables are named for them.
//!
//! The session is not the applier's, which may be in the middle of a transaction. It asks for
//! nothing but catalogs and a flush, so it waits for no lock that the applier holds.

use std::collections::HashMap;
use std::sync::Arc;

use base::Oid;
use client::Session;
use deletions::{Identity, RowKey, Value};
use source::end::SOURCE_SETTINGS;

use crate::error::Error;
use crate::identities::{equalities, root_of};
use crate::settings::Settings;

/// The session for questions, and what it has learned.
#[derive(Default)]
pub(crate) struct Asking {
    session: Option<Session>,
    /// By table, and the number of the mapping that was asked about.
    pub(crate) tables: HashMap<Oid, (u64, Option<Arc<AskedTable>>)>,
}

/// How rows of a table are named for look-ups.
#[derive(Debug)]
pub struct AskedTable {
    root: Oid,
    columns: Vec<String>,
    identity: Identity,
}

impl AskedTable {
    /// The columns that a key is made of, as the catalogs name them.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The key of the row with these values, one for each column; `None` if one of them is no value
    /// of the target's type.
    pub fn key<'v>(&self, values: impl IntoIterator<Item = Value<'v>>) -> Option<RowKey> {
        let mut key = RowKey::default();
        self.identity.write(self.root, values, &mut key).ok()?;
        Some(key)
    }
}

// The identity of a partitioned table is that of the partitions that have its rows, if they agree.
const IDENTITY: &str = "\
WITH RECURSIVE below AS (
  SELECT $1::oid AS oid
  UNION ALL
  SELECT i.inhrelid FROM below b
  JOIN pg_catalog.pg_class c ON c.oid = b.oid AND c.relkind = 'p'
  JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid
), identities AS (
  SELECT DISTINCT c.relreplident = 'f' AS whole, (
    SELECT pg_catalog.array_agg(a.attname::text ORDER BY a.attname::text COLLATE \"C\")
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND CASE WHEN c.relreplident = 'f' THEN a.attgenerated = '' ELSE a.attnum = ANY (k.columns) END
  ) AS columns
  FROM below b JOIN pg_catalog.pg_class c ON c.oid = b.oid AND c.relkind = 'r'
  LEFT JOIN LATERAL (
    SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS columns FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND i.indisvalid
      AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
  ) k ON true
)
SELECT whole, columns FROM identities";

impl Asking {
    pub(crate) async fn session(&mut self, settings: &Settings) -> Result<&Session, Error> {
        if self.session.as_ref().is_none_or(|session| session.is_closed()) {
            let name = settings.subscription.application_name("fence");
            self.session = Some(client::connect(&settings.target, &name, &SOURCE_SETTINGS).await?);
        }
        self.session.as_ref().ok_or_else(Error::ended)
    }

    /// Forgets the session.
    pub(crate) fn lost(&mut self, error: &Error) {
        tracing::warn!("asking what became of a missing row: {}", base::with_causes(error));
        self.session = None;
    }
}

/// How rows of a table are named, as the target says now.
pub(crate) async fn look_up_table(session: &Session, table: Oid) -> Result<Option<AskedTable>, Error> {
    let Some(root) = root_of(session, table).await? else { return Ok(None) };
    let rows = session.query(IDENTITY, &[&table.0]).await.map_err(|error| session.error(error))?;
    let [row] = rows.as_slice() else { return Ok(None) };
    let Some(columns) = row.get::<_, Option<Vec<String>>>(1) else { return Ok(None) };
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let equalities = equalities(session, table, &names).await?;
    Ok(equalities.ok().map(|equalities| AskedTable {
        root,
        identity: Identity::new(equalities, row.get(0)),
        columns,
    }))
}
