//! A published table matched with the target's, and how its rows are named,
//! put into ranges and made comparable.
//!
//! - Columns are matched by name. The target may have more, in another order.
//! - Where a column has another type on the target, the source's value is
//!   compared as that type writes it, as it is when it is applied.
//! - The key is a unique index of the source over published columns that
//!   cannot be NULL: the replica identity, else the primary key, else any.
//! - Ranges need more: the same order on both ends, whatever their collations
//!   are, an index on both, and rows that lie about in that order on disk.
//!   Elsewhere each range would read the whole table.
//! - A row filter holds on both ends: rows of the target for which it is not
//!   true came from elsewhere. Where the target cannot evaluate it, because a
//!   column of it is not there, every row of the target counts.

use std::collections::HashMap;

use base::Oid;
use client::Session;
use source::publication::{self, Column, PublishedTable, TableKind, TableName, TargetTable};

use crate::Error;
use crate::session;
use crate::sql::{self, Bytes, Side};

/// A table that can be compared.
#[derive(Debug, Clone)]
pub(crate) struct ComparedTable {
    pub(crate) name: TableName,
    /// Published columns, in the source's order.
    pub(crate) columns: Vec<String>,
    /// The columns that name a row, by their number; none if there is no key.
    pub(crate) key: Vec<usize>,
    /// How many of the key's first columns can bound ranges.
    pub(crate) range_columns: usize,
    pub(crate) source: Side,
    pub(crate) target: Side,
    /// Of the source's table.
    pub(crate) bytes: u64,
    /// For the report.
    pub(crate) notes: Vec<String>,
}

/// The outcome of matching a published table.
pub(crate) enum Matched {
    Table(Box<ComparedTable>),
    /// The target has no such table, or not all of its columns.
    Mismatch(TableName, String),
}

/// Facts of a column that `source::publication` does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    /// With its modifier.
    full_type: String,
    /// Its order is that of bytes, or of a type without collations.
    plain_order: bool,
}

/// A unique index whose columns cannot be NULL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UniqueIndex {
    columns: Vec<String>,
    /// The index serves ranges: a B-tree with default operators.
    ordered: bool,
}

/// One end's catalogs.
struct Catalog {
    facts: HashMap<(u32, String), Facts>,
    indexes: HashMap<u32, Vec<UniqueIndex>>,
    encoding: String,
}

// The order of a collation is that of bytes for C and POSIX, by whatever name:
// libc's, or the builtin provider's (17), whose C.UTF-8 orders by code point.
const FACTS: &str = "\
SELECT a.attrelid::text, a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod),
       (a.attcollation = 0 OR CASE WHEN co.collprovider = 'd'
            THEN pg_catalog.to_jsonb(d) ->> 'datlocprovider' = 'b'
                 OR (COALESCE(pg_catalog.to_jsonb(d) ->> 'datlocprovider', 'c') = 'c' AND d.datcollate IN ('C', 'POSIX'))
            ELSE co.collisdeterministic AND co.collprovider = 'c' AND co.collcollate IN ('C', 'POSIX') END)::text
FROM pg_catalog.pg_attribute a
CROSS JOIN (SELECT * FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) d
LEFT JOIN pg_catalog.pg_collation co ON co.oid = a.attcollation
WHERE a.attrelid IN (OIDS) AND a.attnum > 0 AND NOT a.attisdropped";

const INDEXES: &str = "\
SELECT i.indrelid::text, (am.amname = 'btree' AND k.default_opclass)::text, k.names::text[]
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_am am ON am.oid = c.relam
CROSS JOIN LATERAL (
    SELECT pg_catalog.array_agg(a.attname::text ORDER BY u.n) AS names, pg_catalog.bool_and(a.attnotnull) AS not_null,
           pg_catalog.bool_and(o.opcdefault) AS default_opclass
    FROM ROWS FROM (pg_catalog.unnest(i.indkey::int2[]), pg_catalog.unnest(i.indclass::oid[])) WITH ORDINALITY u(att, class, n)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.att
    JOIN pg_catalog.pg_opclass o ON o.oid = u.class
    WHERE u.n <= i.indnkeyatts) k
WHERE i.indrelid IN (OIDS) AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
  AND i.indexprs IS NULL AND k.not_null
ORDER BY i.indrelid, i.indisreplident DESC, i.indisprimary DESC, i.indexrelid";

impl Catalog {
    async fn read(session: &Session, oids: &[Oid]) -> Result<Catalog, Error> {
        let list: Vec<String> = oids.iter().map(ToString::to_string).collect();
        let list = if list.is_empty() { "0".to_owned() } else { list.join(",") };
        let attempt = "read the catalogs";
        let mut catalog = Catalog {
            facts: HashMap::new(),
            indexes: HashMap::new(),
            encoding: session.parameter("server_encoding").unwrap_or_default(),
        };
        let oid =
            |text: &Option<String>| text.as_deref().and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        for row in session::rows(session, attempt, &FACTS.replace("OIDS", &list)).await? {
            let text = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
            let facts = Facts { full_type: text(2), plain_order: text(3) == "true" };
            catalog.facts.insert((oid(&row[0]), text(1)), facts);
        }
        let sql = INDEXES.replace("OIDS", &list);
        let rows = session.query(&sql, &[]).await.map_err(|error| Error::query(session, attempt, error))?;
        for row in rows {
            let read = || -> Result<(String, UniqueIndex), tokio_postgres::Error> {
                let ordered: &str = row.try_get(1)?;
                let index = UniqueIndex { columns: row.try_get(2)?, ordered: ordered == "true" };
                Ok((row.try_get(0)?, index))
            };
            let (relation, index) = read().map_err(|error| Error::query(session, attempt, error))?;
            catalog.indexes.entry(oid(&Some(relation))).or_default().push(index);
        }
        Ok(catalog)
    }

    fn facts(&self, table: Oid, column: &str) -> Option<&Facts> {
        self.facts.get(&(table.0, column.to_owned()))
    }

    fn indexes(&self, table: Oid) -> &[UniqueIndex] {
        self.indexes.get(&table.0).map_or(&[], Vec::as_slice)
    }
}

/// Both ends of every published table, in the order of names.
pub(crate) async fn match_tables(
    source: &Session,
    target: &Session,
    publications: &[String],
) -> Result<Vec<Matched>, Error> {
    let published = publication::inspect(source, publications).await?;
    let names: Vec<TableName> = published.iter().map(|table| table.name.clone()).collect();
    let targets = publication::target_tables(target, &names).await?;
    let oids: Vec<Oid> = published.iter().map(|table| table.oid).collect();
    let source_catalog = Catalog::read(source, &oids).await?;
    let oids: Vec<Oid> = targets.values().map(|table| table.oid).collect();
    let target_catalog = Catalog::read(target, &oids).await?;
    let mut matched = Vec::with_capacity(published.len());
    for table in published {
        let found = match targets.get(&table.name) {
            Some(found) if found.kind != TableKind::Other => found,
            Some(_) => {
                let why = "on the target this name stands for something other than a table".to_owned();
                matched.push(Matched::Mismatch(table.name, why));
                continue;
            }
            None => {
                matched
                    .push(Matched::Mismatch(table.name, "the target has no table of this name".to_owned()));
                continue;
            }
        };
        let ends = Both {
            table: &table,
            target: found,
            source_catalog: &source_catalog,
            target_catalog: &target_catalog,
        };
        let mut made = match ends.matched() {
            Ok(made) => made,
            Err(why) => {
                matched.push(Matched::Mismatch(table.name, why));
                continue;
            }
        };
        check_filter(target, &mut made).await?;
        check_order(source, target, &mut made).await?;
        matched.push(Matched::Table(Box::new(made)));
    }
    Ok(matched)
}

/// A table on both ends.
struct Both<'a> {
    table: &'a PublishedTable,
    target: &'a TargetTable,
    source_catalog: &'a Catalog,
    target_catalog: &'a Catalog,
}

impl Both<'_> {
    fn matched(&self) -> Result<ComparedTable, String> {
        let Both { table, target, .. } = self;
        let missing: Vec<String> = table
            .columns
            .iter()
            .filter(|column| target.column(&column.name).is_none())
            .map(|column| format!("\"{}\"", column.name))
            .collect();
        if !missing.is_empty() {
            return Err(format!("the target's table has no column {}", missing.join(", ")));
        }
        let columns: Vec<String> = table.columns.iter().map(|column| column.name.clone()).collect();
        let (key, range_columns) = self.key(&columns);
        let bytes = match (self.source_catalog.encoding.as_str(), self.target_catalog.encoding.as_str()) {
            (ours, theirs) if ours != theirs => Bytes::Converted,
            ("SQL_ASCII", _) => Bytes::Unknown,
            _ => Bytes::Alike,
        };
        let names: Vec<String> = columns.iter().map(|name| sql::column(name)).collect();
        let side = |kind, values: Vec<String>| Side {
            relation: match kind {
                TableKind::Partitioned => table.name.quoted(),
                _ => format!("ONLY {}", table.name.quoted()),
            },
            values,
            key: key.iter().map(|column| names[*column].clone()).collect(),
            key_values: key.clone(),
            filter: table.row_filter.clone(),
            bytes,
        };
        let values = table.columns.iter().map(|column| self.source_value(column)).collect();
        let (source, target) = (side(table.kind, values), side(target.kind, names.clone()));
        let (name, bytes) = (table.name.clone(), table.bytes);
        Ok(ComparedTable { name, columns, key, range_columns, source, target, bytes, notes: Vec::new() })
    }

    /// The source's column as the target's type writes it.
    fn source_value(&self, column: &Column) -> String {
        let name = sql::column(&column.name);
        let ours = self.source_catalog.facts(self.table.oid, &column.name);
        let theirs = self.target_catalog.facts(self.target.oid, &column.name);
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return name };
        let builtin =
            self.target.column(&column.name).is_some_and(|found| !found.data_type.oid.is_user_defined());
        if ours.full_type == theirs.full_type || !builtin {
            return name;
        }
        format!("CASE WHEN {name} IS NOT NULL THEN pg_catalog.concat({name})::{} END", theirs.full_type)
    }

    /// The key's columns, and how many of them can bound ranges.
    fn key(&self, columns: &[String]) -> (Vec<usize>, usize) {
        let position = |name: &String| columns.iter().position(|column| column == name);
        for index in self.source_catalog.indexes(self.table.oid) {
            if let Some(key) = index.columns.iter().map(position).collect::<Option<Vec<_>>>() {
                let range_columns = if index.ordered { self.range_columns(&index.columns) } else { 0 };
                return (key, range_columns);
            }
        }
        (Vec::new(), 0)
    }

    fn range_columns(&self, key: &[String]) -> usize {
        let served = |index: &UniqueIndex| {
            let same = key.iter().zip(&index.columns).take_while(|(ours, theirs)| ours == theirs).count();
            if index.ordered { same } else { 0 }
        };
        let served = self.target_catalog.indexes(self.target.oid).iter().map(served).max().unwrap_or(0);
        key.iter().take(served).take_while(|name| self.orders_alike(name)).count()
    }

    /// Whether both ends order this column's values alike.
    fn orders_alike(&self, name: &str) -> bool {
        let ours = self.table.columns.iter().find(|column| column.name == name);
        let (Some(ours), Some(theirs)) = (ours, self.target.column(name)) else { return false };
        let (source, target) = (ours.data_type.base, theirs.data_type.base);
        let plain = |facts: Option<&Facts>| facts.is_some_and(|facts| facts.plain_order);
        match (family(source), family(target)) {
            (Some(ours), Some(theirs)) if ours == theirs => {
                let same_bytes = self.source_catalog.encoding == self.target_catalog.encoding;
                ours != Family::Text
                    || (same_bytes
                        && plain(self.source_catalog.facts(self.table.oid, name))
                        && plain(self.target_catalog.facts(self.target.oid, name)))
            }
            _ => false,
        }
    }
}

/// Types that order their values alike on every server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Integer,
    Text,
    Other(Oid),
}

/// OIDs of `pg_type.dat`.
fn family(base: Oid) -> Option<Family> {
    match base.0 {
        // int8, int2, int4
        20 | 21 | 23 => Some(Family::Integer),
        // text, varchar
        25 | 1043 => Some(Family::Text),
        // bytea, oid, date, time, timestamp, timestamptz, numeric, uuid, pg_lsn
        17 | 26 | 1082 | 1083 | 1114 | 1184 | 1700 | 2950 | 3220 => Some(Family::Other(base)),
        _ => None,
    }
}

/// Drops the row filter on the target if the target cannot evaluate it.
async fn check_filter(target: &Session, table: &mut ComparedTable) -> Result<(), Error> {
    let Some(filter) = &table.target.filter else { return Ok(()) };
    let sql = format!("EXPLAIN SELECT FROM {} WHERE ({filter})", table.target.relation);
    match session::rows(target, "look at the row filter", &sql).await {
        Ok(_) => {}
        // Class 42: no such column, function or operator.
        Err(error) if error.sqlstate().is_some_and(|code| code.starts_with("42")) => {
            table.notes.push(format!(
                "the target cannot evaluate the row filter, so all of its rows are compared ({error})"
            ));
            table.target.filter = None;
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// How well the order of rows on disk must follow the key, from 0 to 1.
const CORRELATION_MIN: f64 = 0.5;

/// Gives up ranges where the rows of a range lie all over the table.
async fn check_order(source: &Session, target: &Session, table: &mut ComparedTable) -> Result<(), Error> {
    let Some(first) = table.key.first().map(|column| table.columns[*column].clone()) else { return Ok(()) };
    if table.range_columns == 0 {
        return Ok(());
    }
    let sql = "SELECT correlation::float8 FROM pg_catalog.pg_stats \
               WHERE schemaname = $1 AND tablename = $2 AND attname = $3 AND NOT inherited";
    for end in [source, target] {
        let failed = |error| Error::query(end, "read statistics", error);
        let row =
            end.query_opt(sql, &[&table.name.schema, &table.name.name, &first]).await.map_err(failed)?;
        // Without statistics: keys that are given out grow.
        let correlation = row.and_then(|row| row.get::<_, Option<f64>>(0)).unwrap_or(1.0);
        if correlation.abs() < CORRELATION_MIN {
            table.range_columns = 0;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_one_family_order_alike() {
        let same = |a, b| family(Oid(a)).is_some() && family(Oid(a)) == family(Oid(b));
        assert!(same(23, 20) && same(25, 1043) && same(2950, 2950));
        // int4 and numeric, uuid and text, float8, jsonb.
        assert!(!same(23, 1700) && !same(2950, 25) && !same(701, 701) && !same(3802, 3802));
    }
}
