//! What a set of publications publishes, in pgoutput's names.
//!
//! Callers hand in an ordinary session on the publisher and the publications' names. This module
//! returns exactly the tables that a walsender with these publications sends. Each has the name
//! that the stream gives it, which is the partitioned root's where `publish_via_partition_root`
//! says so. Each has the columns and the row filter that apply when all publications are taken
//! together. The rules are the walsender's (`get_rel_sync_entry` in `pgoutput.c`) and the table
//! synchronization's (`tablesync.c`):
//!
//! - A partition whose ancestor is published as a root is not listed itself, even if another
//!   publication lists it.
//! - Only publications that list the table itself contribute column lists and filters. Lists must
//!   agree, filters are combined with OR, and one publication without a filter removes them all.
//! - The first copy ignores `publish = 'insert, ...'`, as the native one does.
//! - Generated columns are published where the server says so (18), and never before.
//!
//! Tables of the schema `pgsluice` are never listed: they hold the state of a subscription that has
//! this server as its target. How tables are copied
//! and changes are read does not belong here.

mod binary;
mod columns;
mod table;

use std::collections::{BTreeMap, HashSet};

use base::Oid;
use client::Session;
use state::STATE_SCHEMA;
use tokio_postgres::types::ToSql;

use crate::error::{Error, Kind};

pub use binary::{BinaryRefusal, array_types, binary_allowed};
pub use columns::{Column, DataType, Generated, TargetTable, target_tables};
pub use table::{ReplicaIdentity, TableKind, TableName};

/// A table as pgoutput publishes it.
#[derive(Debug, Clone)]
pub struct PublishedTable {
    /// Its OID on the publisher.
    pub oid: Oid,
    /// The name the stream gives it.
    pub name: TableName,
    /// An ordinary table, or a partitioned root published as one table.
    pub kind: TableKind,
    /// The published columns in the table's order.
    pub columns: Vec<Column>,
    /// An SQL expression over the table's columns; rows for which it is not true are not published.
    /// Names in it are qualified: it needs `search_path = ''`.
    pub row_filter: Option<String>,
    /// How rows are identified.
    pub identity: ReplicaIdentity,
    /// Bytes of its heap, TOAST included; for a root, the sum over its leaves.
    pub bytes: u64,
    /// Rows at the last ANALYZE or VACUUM, scaled to the present size. Without one, an estimate by
    /// the width of the columns.
    pub rows_estimate: u64,
    /// The publications that contribute to it, sorted.
    pub publications: Vec<String>,
}

/// Returns every table that the publications publish together, sorted by name.
///
/// Sets the session's `search_path` to the empty one.
///
/// # Errors
/// A publication does not exist, or two publications give one table different column lists
/// ([`Error::is_configuration`]). Or the session fails.
pub async fn inspect(session: &Session, publications: &[String]) -> Result<Vec<PublishedTable>, Error> {
    let attempt = || format!("inspect publication {}", quoted_list(publications));
    let failed = |error: tokio_postgres::Error| Error::client(attempt(), error);
    // pg_get_expr qualifies names outside the search_path. So an empty one makes filters mean the
    // same in every session.
    session.batch_execute("SELECT pg_catalog.set_config('search_path', '', false)").await.map_err(failed)?;
    check_publications(session, publications).await?;
    let listed = listed_tables(session, publications).await.map_err(failed)?;
    let oids: Vec<u32> = listed.keys().copied().collect();
    let mut relations = relations(session, &oids).await.map_err(failed)?;
    remove_published_through_ancestors(&mut relations);
    let kept: Vec<u32> = relations.iter().map(|relation| relation.oid).collect();
    let mut columns = columns::of_relations(session, &kept).await.map_err(failed)?;
    relations
        .into_iter()
        .map(|relation| {
            let columns = columns.remove(&relation.oid).unwrap_or_default();
            let listings = listed.get(&relation.oid).map_or(&[][..], Vec::as_slice);
            published_table(relation, columns, listings)
        })
        .collect()
}

fn quoted_list(names: &[String]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

async fn check_publications(session: &Session, publications: &[String]) -> Result<(), Error> {
    let attempt = "look up publications";
    if publications.is_empty() {
        return Err(Error::new(attempt, Kind::NoneNamed));
    }
    let sql = "SELECT wanted FROM pg_catalog.unnest($1::pg_catalog.text[]) AS wanted \
               WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = wanted)";
    let missing =
        session.query(sql, &[&publications]).await.map_err(|error| Error::client(attempt, error))?;
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<String> = missing.iter().map(|row| row.get(0)).collect();
    Err(Error::new(attempt, Kind::Missing(missing)))
}

/// What one publication says about one table.
#[derive(Debug, Clone)]
struct Listing {
    publication: String,
    /// Column numbers; `None` for all columns that are not generated.
    column_numbers: Option<Vec<i16>>,
    row_filter: Option<String>,
}

/// Reads the tables that each publication lists by itself, by OID.
async fn listed_tables(
    session: &Session,
    publications: &[String],
) -> Result<BTreeMap<u32, Vec<Listing>>, tokio_postgres::Error> {
    // Column lists and row filters came with 15. From 16 on the function takes several names; one
    // name at a time means the same on every version.
    let details = match session.version().major() {
        0..=14 => "NULL::pg_catalog.int2[], NULL::pg_catalog.text",
        _ => "t.attrs::pg_catalog.int2[], pg_catalog.pg_get_expr(t.qual, t.relid)",
    };
    let sql = format!(
        "SELECT p.pubname::pg_catalog.text, t.relid, {details} \
         FROM pg_catalog.pg_publication p, \
              LATERAL pg_catalog.pg_get_publication_tables(p.pubname::pg_catalog.text) t \
         WHERE p.pubname = ANY ($1::pg_catalog.text[]) ORDER BY 1, 2"
    );
    let mut listed: BTreeMap<u32, Vec<Listing>> = BTreeMap::new();
    for row in session.query(&sql, &[&publications]).await? {
        let listing = Listing {
            publication: row.try_get(0)?,
            column_numbers: row.try_get(2)?,
            row_filter: row.try_get(3)?,
        };
        listed.entry(row.try_get(1)?).or_default().push(listing);
    }
    Ok(listed)
}

/// One row of `pg_class`, with the related facts that are needed here.
struct Relation {
    oid: u32,
    name: TableName,
    kind: TableKind,
    identity: ReplicaIdentity,
    ancestors: Vec<u32>,
    heap_bytes: u64,
    bytes: u64,
    pages: u64,
    tuples: f64,
    block_size: u64,
}

const RELATIONS: &str = "\
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text,
       CASE WHEN c.relispartition
            THEN ARRAY(SELECT a.relid::oid FROM pg_catalog.pg_partition_ancestors(c.oid) a WHERE a.relid <> c.oid)
            ELSE '{}'::oid[] END,
       COALESCE(s.heap_bytes, 0)::int8, COALESCE(s.bytes, 0)::int8, COALESCE(s.pages, 0)::int8,
       COALESCE(s.tuples, 0)::float8, pg_catalog.current_setting('block_size')::int8
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT sum(pg_catalog.pg_relation_size(l.oid)) AS heap_bytes, sum(pg_catalog.pg_table_size(l.oid)) AS bytes,
           sum(l.relpages) FILTER (WHERE l.reltuples >= 0) AS pages,
           sum(l.reltuples::float8) FILTER (WHERE l.reltuples >= 0) AS tuples
    FROM (SELECT c.oid AS relid WHERE c.relkind <> 'p'
          UNION ALL
          SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(c.oid) p WHERE p.isleaf AND c.relkind = 'p') x
    JOIN pg_catalog.pg_class l ON l.oid = x.relid AND l.relkind = 'r') s
WHERE c.oid = ANY ($1::oid[]) AND n.nspname <> $2
ORDER BY 2, 3";

async fn relations(session: &Session, oids: &[u32]) -> Result<Vec<Relation>, tokio_postgres::Error> {
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    let mut relations = Vec::new();
    for row in session.query(RELATIONS, &[&oids as &(dyn ToSql + Sync), &STATE_SCHEMA]).await? {
        relations.push(Relation {
            oid: row.try_get(0)?,
            name: TableName { schema: row.try_get(1)?, name: row.try_get(2)? },
            kind: TableKind::from_relkind(row.try_get(3)?),
            identity: match row.try_get(4)? {
                "f" => ReplicaIdentity::Full,
                "n" => ReplicaIdentity::Nothing,
                "i" => ReplicaIdentity::Index,
                _ => ReplicaIdentity::Default,
            },
            ancestors: row.try_get(5)?,
            heap_bytes: unsigned(row.try_get(6)?),
            bytes: unsigned(row.try_get(7)?),
            pages: unsigned(row.try_get(8)?),
            tuples: row.try_get(9)?,
            block_size: unsigned(row.try_get(10)?),
        });
    }
    Ok(relations)
}

/// Removes partitions that are published through an ancestor. Only a publication that publishes
/// through the root lists a partitioned table. The walsender then names the topmost ancestor that
/// is listed, whatever other publications say about the partition.
fn remove_published_through_ancestors(relations: &mut Vec<Relation>) {
    let roots: HashSet<u32> =
        relations.iter().filter(|r| r.kind == TableKind::Partitioned).map(|r| r.oid).collect();
    relations.retain(|relation| !relation.ancestors.iter().any(|ancestor| roots.contains(ancestor)));
}

fn published_table(
    relation: Relation,
    columns: Vec<Column>,
    listings: &[Listing],
) -> Result<PublishedTable, Error> {
    let columns = published_columns(&relation.name, columns, listings)?;
    let rows_estimate = estimate_rows(&relation, &columns);
    let mut publications: Vec<String> = listings.iter().map(|listing| listing.publication.clone()).collect();
    publications.sort();
    Ok(PublishedTable {
        oid: Oid(relation.oid),
        name: relation.name,
        kind: relation.kind,
        columns,
        row_filter: merged_filter(listings),
        identity: relation.identity,
        bytes: relation.bytes,
        rows_estimate,
        publications,
    })
}

/// Returns the columns on which all listings agree.
fn published_columns(
    name: &TableName,
    columns: Vec<Column>,
    listings: &[Listing],
) -> Result<Vec<Column>, Error> {
    let published = |listing: &Listing, column: &Column| match &listing.column_numbers {
        Some(numbers) => numbers.contains(&column.number),
        None => column.generated == Generated::No,
    };
    let Some((first, others)) = listings.split_first() else { return Ok(Vec::new()) };
    for other in others {
        if let Some(column) =
            columns.iter().find(|column| published(first, column) != published(other, column))
        {
            let publications = [first, other].map(|listing| listing.publication.clone());
            let kind = Kind::ColumnLists { publications, column: column.name.clone() };
            return Err(Error::new(format!("publish table \"{name}\""), kind));
        }
    }
    Ok(columns.into_iter().filter(|column| published(first, column)).collect())
}

/// Combines the filters. One listing without a filter publishes every row.
fn merged_filter(listings: &[Listing]) -> Option<String> {
    let filters: Option<Vec<&str>> = listings.iter().map(|listing| listing.row_filter.as_deref()).collect();
    let mut filters = filters?;
    filters.sort_unstable();
    filters.dedup();
    match filters.as_slice() {
        [] => None,
        several => Some(several.iter().map(|filter| format!("({filter})")).collect::<Vec<_>>().join(" OR ")),
    }
}

/// Estimates rows as the planner does (`estimate_rel_size`): rows per page at the last count, times
/// the present number of pages. Without a count, it uses the width of the columns.
fn estimate_rows(relation: &Relation, columns: &[Column]) -> u64 {
    let rows = if relation.pages > 0 && relation.tuples > 0.0 {
        let pages_now = relation.heap_bytes as f64 / relation.block_size.max(1) as f64;
        relation.tuples / relation.pages as f64 * pages_now
    } else {
        // Tuple header and line pointer, and 32 bytes for a value without a fixed length.
        let width: u64 = columns.iter().map(|column| u64::from(column.data_type.width.unwrap_or(32))).sum();
        relation.heap_bytes as f64 / (28 + width) as f64
    };
    rows as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(publication: &str, numbers: Option<&[i16]>, filter: Option<&str>) -> Listing {
        Listing {
            publication: publication.into(),
            column_numbers: numbers.map(<[i16]>::to_vec),
            row_filter: filter.map(Into::into),
        }
    }

    #[test]
    fn filters_are_or_ed_and_lifted_by_a_publication_without_one() {
        let (a, b) = (listing("a", None, Some("(x > 1)")), listing("b", None, Some("(y = 2)")));
        assert_eq!(merged_filter(&[a.clone(), b]).as_deref(), Some("((x > 1)) OR ((y = 2))"));
        assert_eq!(merged_filter(&[a.clone(), a.clone()]).as_deref(), Some("((x > 1))"));
        assert_eq!(merged_filter(&[a, listing("c", None, None)]), None);
    }

    #[test]
    fn different_column_lists_are_refused_with_both_names() {
        let name = TableName::new("s", "t");
        let columns = vec![Column::for_tests(1, "id", 23), Column::for_tests(2, "v", 25)];
        let same = [listing("a", Some(&[1, 2]), None), listing("b", None, None)];
        assert_eq!(published_columns(&name, columns.clone(), &same).unwrap().len(), 2);
        let different = [listing("a", Some(&[1]), None), listing("b", None, None)];
        let error = published_columns(&name, columns, &different).unwrap_err();
        assert!(error.is_configuration());
        let text = error.to_string();
        assert!(text.contains("\"a\" and \"b\"") && text.contains("column \"v\""), "{text}");
    }
}
