//! The session that look-ups ask the target on, and how tables are named for them.
//!
//! The session is not the applier's, which may be in the middle of a transaction. It asks for
//! nothing but catalogs and a flush, so it waits for no lock that the applier holds.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Oid, PgTimestamp};
use client::Session;
use deletions::{Identity, RowKey, Value};
use futures_util::future::BoxFuture;
use source::end::SOURCE_SETTINGS;

use crate::error::Error;
use crate::identities::{equalities, of_columns};
use crate::settings::Settings;
use crate::started::started;

/// The session for questions, and what it has learned.
#[derive(Default)]
pub(crate) struct Asking {
    session: Option<Session>,
    /// When the server of the session was started.
    pub(crate) started: PgTimestamp,
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
  SELECT t.oid AS top, t.oid FROM pg_catalog.unnest($1::oid[]) AS t(oid)
  UNION ALL
  SELECT b.top, i.inhrelid FROM below b
  JOIN pg_catalog.pg_class c ON c.oid = b.oid AND c.relkind = 'p'
  JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid
), identities AS (
  SELECT DISTINCT b.top, c.relreplident = 'f' AS whole, (
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
SELECT whole, columns, top, COALESCE(pg_catalog.pg_partition_root(top)::pg_catalog.oid, top) FROM identities";

impl Asking {
    /// What `question` learns on the session. One that was used before may have ended since, so its
    /// failure is tried once more, on a new session. The session is kept only behind an answer:
    /// a caller that stops waiting for a silent one leaves none behind.
    pub(crate) async fn learn<T>(
        &mut self,
        settings: &Settings,
        question: impl for<'s> Fn(&'s Session) -> BoxFuture<'s, Result<T, Error>>,
    ) -> Result<T, Error> {
        if let Some(used) = self.session.take().filter(|session| !session.is_closed()) {
            match question(&used).await {
                Ok(learned) => {
                    self.session = Some(used);
                    return Ok(learned);
                }
                Err(error) => tracing::debug!(
                    "asking what became of a missing row, once more on a new session: {}",
                    base::with_causes(&error)
                ),
            }
        }
        let name = settings.subscription.application_name("fence");
        let session = client::connect(&settings.target, &name, &SOURCE_SETTINGS).await?;
        self.started = started(&session).await?;
        let learned = question(&session).await?;
        self.session = Some(session);
        Ok(learned)
    }
}

/// How rows of a table are named, as the target says now.
pub(crate) async fn look_up_table(session: &Session, table: Oid) -> Result<Option<AskedTable>, Error> {
    Ok(named(session, &[table]).await?.remove(&table).and_then(Result::ok))
}

/// How rows of each of these tables are named, or why the memory cannot know them. A table that has
/// no rows because it has no partitions is left out.
pub(crate) async fn named(
    session: &Session,
    tables: &[Oid],
) -> Result<HashMap<Oid, Result<AskedTable, String>>, Error> {
    let oids: Vec<u32> = tables.iter().map(|table| table.0).collect();
    let rows = session.query(IDENTITY, &[&oids]).await.map_err(|error| session.error(error))?;
    let mut known = equalities(session, tables).await?;
    let mut named = HashMap::new();
    for row in &rows {
        let table = Oid(row.get(2));
        let columns: Vec<String> = row.get::<_, Option<_>>(1).unwrap_or_default();
        let names: Vec<&str> = columns.iter().map(String::as_str).collect();
        let asked = of_columns(known.remove(&table), &names).map(|equalities| AskedTable {
            root: Oid(row.get(3)),
            identity: Identity::new(equalities, row.get(0)),
            columns,
        });
        let differs = || Err("its partitions have different replica identities".to_owned());
        named.entry(table).and_modify(|of| *of = differs()).or_insert(asked);
    }
    Ok(named)
}

/// By which columns the memory knows the rows of each of these tables, or why it cannot know them.
///
/// # Errors
/// The session failed.
pub async fn identities(
    session: &Session,
    tables: &[Oid],
) -> Result<HashMap<Oid, Result<Vec<String>, String>>, Error> {
    let named = named(session, tables).await?;
    Ok(named.into_iter().map(|(table, named)| (table, named.map(|named| named.columns))).collect())
}
