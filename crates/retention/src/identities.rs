//! How rows of each table are named: the topmost table, the identity's columns and the equality of
//! their types, as the target says.
//!
//! A key has the identity's columns in the order of their names, because partitions may have them
//! in another order than their table.
//!
//! WAL has the columns and values. It does not have which table is topmost and which collations are
//! deterministic, so the target is asked once for each description of a table. A table that is gone
//! by then has no rows that anybody could miss.
//!
//! A commit record is flushed before its transaction is visible. So capture may be ahead of what a
//! session sees, and waits until the deleting transaction has let go of the lock on its id.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::{Oid, Xid};
use client::Session;
use deletions::{ColumnType, Equality, Identity, Shape, UnknownEquality};
use output::DeletedFrom;

use crate::error::Error;

/// How rows of one table or partition are named.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    /// The topmost table.
    pub(crate) root: Oid,
    /// `None` if deletions of its rows cannot be remembered.
    pub(crate) identity: Option<Arc<Identity>>,
    /// Where a deletion has the value of each of its columns.
    pub(crate) places: Vec<usize>,
}

/// What the target has said.
#[derive(Debug, Default)]
pub(crate) struct Identities {
    /// By table, and the number of the description that was asked about.
    tables: HashMap<Oid, (u64, Option<Named>)>,
}

/// Pause between looks at whether a transaction is visible.
const POLL: Duration = Duration::from_millis(5);
/// A commit that waits for a synchronous standby stays invisible. Capture then begins again, rather
/// than going on with an answer from before the commit.
const INVISIBLE_MAX: Duration = Duration::from_secs(30);

const RUNS: &str = "\
SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l
               WHERE l.locktype = 'transactionid' AND l.transactionid = $1::text::xid AND l.granted)";

const ROOT: &str = "\
SELECT COALESCE(pg_catalog.pg_partition_root(c.oid)::pg_catalog.oid, c.oid)
FROM pg_catalog.pg_class c WHERE c.oid = $1";

// A domain's type is the one beneath all domains. An element that is a domain is refused.
const COLUMNS: &str = "\
WITH RECURSIVE beneath AS (
  SELECT a.attrelid, a.attname, a.attcollation, a.atttypid AS type FROM pg_catalog.pg_attribute a
  WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT b.attrelid, b.attname, b.attcollation, t.typbasetype FROM beneath b
  JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
)
SELECT b.attname::text, t.oid, t.typname::text, t.typtype::text,
       e.oid, e.typname::text, e.typtype::text, COALESCE(c.collisdeterministic, true),
       b.attrelid
FROM beneath b JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd'
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typlen = -1 AND t.typcategory = 'A'
LEFT JOIN pg_catalog.pg_collation c ON c.oid = b.attcollation";

impl Identities {
    /// How rows of a table are named; `None` if the target does not have it any more.
    /// `by` deleted one of these rows, and has committed.
    pub(crate) async fn of(
        &mut self,
        session: &Session,
        table: &DeletedFrom,
        by: Xid,
    ) -> Result<Option<&Named>, Error> {
        let is_known = self.tables.get(&table.relation).is_some_and(|(number, _)| *number == table.number);
        if !is_known {
            wait_until_visible(session, by).await?;
            let named = ask(session, table).await?;
            self.tables.insert(table.relation, (table.number, named));
        }
        Ok(self.tables.get(&table.relation).and_then(|(_, named)| named.as_ref()))
    }
}

/// The topmost table above a table or partition; `None` if the target does not have it any more.
pub(crate) async fn root_of(session: &Session, relation: Oid) -> Result<Option<Oid>, Error> {
    let row = session.query_opt(ROOT, &[&relation.0]).await.map_err(|error| session.error(error))?;
    Ok(row.map(|row| Oid(row.get(0))))
}

/// Waits until what `xid` has committed is visible to all.
pub(crate) async fn wait_until_visible(session: &Session, xid: Xid) -> Result<(), Error> {
    let since = tokio::time::Instant::now();
    loop {
        let row = session.query_one(RUNS, &[&xid.to_string()]).await.map_err(|error| session.error(error))?;
        if !row.get::<_, bool>(0) {
            return Ok(());
        }
        if since.elapsed() > INVISIBLE_MAX {
            return Err(Error::invisible(xid));
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn ask(session: &Session, table: &DeletedFrom) -> Result<Option<Named>, Error> {
    let Some(root) = root_of(session, table.relation).await? else { return Ok(None) };
    let mut places: Vec<usize> = (0..table.columns.len()).collect();
    places.sort_unstable_by_key(|place| &table.columns[*place]);
    let columns: Vec<&str> = places.iter().map(|place| table.columns[*place].as_str()).collect();
    let mut known = equalities(session, &[table.relation]).await?;
    let identity = match of_columns(known.remove(&table.relation), &columns) {
        Ok(equalities) => Some(Arc::new(Identity::new(equalities, table.is_whole_row))),
        Err(refused) => {
            let (schema, table) = &table.name;
            tracing::warn!("deletions of \"{schema}\".\"{table}\" are not remembered by row: {refused}");
            None
        }
    };
    Ok(Some(Named { root, identity, places }))
}

/// How values of a table's columns are compared, or why that is not known.
pub(crate) type Equalities = HashMap<String, Result<Equality, UnknownEquality>>;

/// The same for all columns of these tables.
pub(crate) async fn equalities(session: &Session, tables: &[Oid]) -> Result<HashMap<Oid, Equalities>, Error> {
    let oids: Vec<u32> = tables.iter().map(|table| table.0).collect();
    let rows = session.query(COLUMNS, &[&oids]).await.map_err(|error| session.error(error))?;
    let mut known: HashMap<Oid, Equalities> = HashMap::new();
    for row in &rows {
        let columns = known.entry(Oid(row.get(8))).or_default();
        columns.insert(row.get(0), Equality::of(&column(row)));
    }
    Ok(known)
}

/// How values of these columns are compared, or why that is not known.
pub(crate) fn of_columns(known: Option<Equalities>, columns: &[&str]) -> Result<Vec<Equality>, String> {
    if columns.is_empty() {
        return Err("the table has no replica identity".to_owned());
    }
    let mut known = known.unwrap_or_default();
    let mut equality = |name: &&str| match known.remove(*name) {
        Some(equality) => equality.map_err(|refused| format!("column \"{name}\": {refused}")),
        // It was dropped or renamed since, and with it what deletions were known by.
        None => Err(format!("column \"{name}\" is gone")),
    };
    columns.iter().map(&mut equality).collect()
}

/// A column's type as a row of [`COLUMNS`] has it.
fn column(row: &tokio_postgres::Row) -> ColumnType<'_> {
    let shape = |kind: &str| match kind {
        "b" => Shape::Base,
        "e" => Shape::Enum,
        _ => Shape::Other,
    };
    let is_deterministic = row.get(7);
    let own =
        ColumnType { oid: Oid(row.get(1)), name: row.get(2), shape: shape(row.get(3)), is_deterministic };
    let Some(element) = row.get::<_, Option<u32>>(4) else { return own };
    let element =
        ColumnType { oid: Oid(element), name: row.get(5), shape: shape(row.get(6)), is_deterministic };
    ColumnType { shape: Shape::Array(Box::new(element)), ..own }
}
