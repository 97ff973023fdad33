//! Columns and their types, as either server's catalog describes them.
//!
//! One query serves both ends, so that compared values were read in the same way. This module has
//! only the facts; other modules decide what a type's binary form contains.

use std::collections::HashMap;

use base::Oid;
use client::Session;

use super::table::{TableKind, TableName};
use crate::Error;

/// How a column gets its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generated {
    /// Statements write it.
    No,
    /// `GENERATED ALWAYS AS (...) STORED`.
    Stored,
    /// `GENERATED ALWAYS AS (...) VIRTUAL` (18).
    Virtual,
}

/// A type, with the facts that decide whether its binary form means the same on another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataType {
    /// Its OID.
    pub oid: Oid,
    /// Its name in SQL, without modifier.
    pub name: String,
    /// `typtype`: `b` base, `c` composite, `d` domain, `e` enum, `p` pseudo,
    /// `r` range, `m` multirange.
    pub class: char,
    /// The type below a domain; for other types the type itself.
    pub base: Oid,
    /// `typtype` of [`DataType::base`]; never `d`.
    pub base_class: char,
    /// Element type, if the base type is an array (also `int2vector` and `oidvector`).
    pub element: Option<Oid>,
    /// `typtype` of the element.
    pub element_class: Option<char>,
    /// It has an array type.
    pub has_array_type: bool,
    /// It has a binary output function, and so does its element.
    pub has_send: bool,
    /// It has a binary input function, and so does its element.
    pub has_receive: bool,
    /// Bytes of a value, if all values have the same length.
    pub width: Option<u16>,
}

/// A column of a table on either end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// `attnum`.
    pub number: i16,
    /// Its name, unquoted.
    pub name: String,
    /// Its type.
    pub data_type: DataType,
    /// Type modifier, -1 for none.
    pub typmod: i32,
    /// NOT NULL.
    pub not_null: bool,
    /// Computed by the server.
    pub generated: Generated,
    /// `GENERATED ALWAYS AS IDENTITY`.
    pub identity_always: bool,
    /// Part of the replica identity; true for every column under `REPLICA IDENTITY FULL`.
    pub in_replica_identity: bool,
}

#[cfg(test)]
impl Column {
    /// A column with a base type that has no element. `oid` also decides whether the type is a
    /// user's.
    pub(crate) fn for_tests(number: i16, name: &str, oid: u32) -> Column {
        Column {
            number,
            name: name.into(),
            data_type: DataType {
                oid: Oid(oid),
                name: format!("type {oid}"),
                class: 'b',
                base: Oid(oid),
                base_class: 'b',
                element: None,
                element_class: None,
                has_array_type: true,
                has_send: true,
                has_receive: true,
                width: Some(4),
            },
            typmod: -1,
            not_null: false,
            generated: Generated::No,
            identity_always: false,
            in_replica_identity: false,
        }
    }
}

/// A table on the target that changes are applied to.
#[derive(Debug, Clone)]
pub struct TargetTable {
    /// Its OID on the target.
    pub oid: Oid,
    /// Its name, the same as on the source.
    pub name: TableName,
    /// The kind of relation that has this name.
    pub kind: TableKind,
    /// All columns in the table's order, generated ones included.
    pub columns: Vec<Column>,
}

impl TargetTable {
    /// The column of that name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

const COLUMNS: &str = "\
WITH RECURSIVE attribute AS MATERIALIZED (
    SELECT a.* FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped),
below(oid, base) AS (
    SELECT DISTINCT a.atttypid, a.atttypid FROM attribute a
    UNION ALL
    SELECT below.oid, t.typbasetype FROM below JOIN pg_catalog.pg_type t ON t.oid = below.base WHERE t.typtype = 'd')
SELECT a.attrelid, a.attnum, a.attname::text, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated::text,
       a.attidentity::text, pg_catalog.format_type(a.atttypid, NULL), t.typtype::text, b.oid, b.typtype::text,
       e.oid,
       t.typarray <> 0, t.typsend <> 0 AND COALESCE(e.typsend <> 0, true),
       t.typreceive <> 0 AND COALESCE(e.typreceive <> 0, true), t.typlen,
       c.relreplident = 'f' OR COALESCE(a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false),
       e.typtype::text
FROM attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN below ON below.oid = a.atttypid
JOIN pg_catalog.pg_type b ON b.oid = below.base AND b.typtype <> 'd'
LEFT JOIN pg_catalog.pg_type e
       ON e.oid = b.typelem AND b.typsubscript = 'pg_catalog.array_subscript_handler'::regproc
LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = pg_catalog.pg_get_replica_identity_index(a.attrelid)
ORDER BY a.attrelid, a.attnum";

/// Reads the columns of relations by OID, each in the table's order.
pub(super) async fn of_relations(
    session: &Session,
    oids: &[u32],
) -> Result<HashMap<u32, Vec<Column>>, tokio_postgres::Error> {
    let mut columns: HashMap<u32, Vec<Column>> = HashMap::new();
    for row in session.query(COLUMNS, &[&oids]).await? {
        columns.entry(row.try_get(0)?).or_default().push(column(&row)?);
    }
    Ok(columns)
}

fn column(row: &tokio_postgres::Row) -> Result<Column, tokio_postgres::Error> {
    let first = |text: &str| text.chars().next().unwrap_or(' ');
    let element: Option<u32> = row.try_get(12)?;
    let length: i16 = row.try_get(16)?;
    Ok(Column {
        number: row.try_get(1)?,
        name: row.try_get(2)?,
        data_type: DataType {
            oid: Oid(row.try_get(3)?),
            name: row.try_get(8)?,
            class: first(row.try_get(9)?),
            base: Oid(row.try_get(10)?),
            base_class: first(row.try_get(11)?),
            element: element.map(Oid),
            element_class: row.try_get::<_, Option<&str>>(18)?.map(first),
            has_array_type: row.try_get(13)?,
            has_send: row.try_get(14)?,
            has_receive: row.try_get(15)?,
            width: u16::try_from(length).ok(),
        },
        typmod: row.try_get(4)?,
        not_null: row.try_get(5)?,
        generated: match row.try_get(6)? {
            "s" => Generated::Stored,
            "v" => Generated::Virtual,
            _ => Generated::No,
        },
        identity_always: row.try_get::<_, &str>(7)? == "a",
        in_replica_identity: row.try_get(17)?,
    })
}

/// Reads the tables of these names on the target. A name without a relation is missing in the
/// result.
///
/// # Errors
/// The session fails.
pub async fn target_tables(
    session: &Session,
    names: &[TableName],
) -> Result<HashMap<TableName, TargetTable>, Error> {
    let failed = |error: tokio_postgres::Error| Error::client("describe the target's tables", error);
    let schemas: Vec<&str> = names.iter().map(|name| name.schema.as_str()).collect();
    let tables: Vec<&str> = names.iter().map(|name| name.name.as_str()).collect();
    let sql = "SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text \
               FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) AS wanted(schema, name) \
               JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema \
               JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name";
    let mut found = Vec::new();
    for row in session.query(sql, &[&schemas, &tables]).await.map_err(failed)? {
        let oid: u32 = row.try_get(0).map_err(failed)?;
        let name =
            TableName { schema: row.try_get(1).map_err(failed)?, name: row.try_get(2).map_err(failed)? };
        found.push((oid, name, TableKind::from_relkind(row.try_get(3).map_err(failed)?)));
    }
    let oids: Vec<u32> = found.iter().map(|(oid, ..)| *oid).collect();
    let mut columns = of_relations(session, &oids).await.map_err(failed)?;
    let described = found.into_iter().map(|(oid, name, kind)| {
        let columns = columns.remove(&oid).unwrap_or_default();
        (name.clone(), TargetTable { oid: Oid(oid), name, kind, columns })
    });
    Ok(described.collect())
}
