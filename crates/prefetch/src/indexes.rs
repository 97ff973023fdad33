//! Asks the target for a table's indexes, and for the plan of a look-up.

use base::quote_literal;
use client::Wire;
use plan::Table;

use crate::explain::explain;
use crate::lookups::{BtreeIndex, IndexColumn, Indexes, PageLookup, TableLookups};
use crate::options::PrefetchMode;

/// Why a table cannot be looked up.
pub(crate) type Failure = client::Error;

/// Makes a table's table_lookups, in which each look-up has the plan that it is meant to have.
///
/// A look-up that the server would not execute by its indexes is left out and logged.
pub(crate) async fn learn(
    wire: &mut Wire,
    table: &Table,
    mode: PrefetchMode,
    binary: bool,
) -> Result<TableLookups, Failure> {
    let indexes = read_indexes(wire, table).await?;
    learn_from(wire, table, indexes, mode, binary).await
}

/// Does the same with catalogs that were read already.
pub(crate) async fn learn_from(
    wire: &mut Wire,
    table: &Table,
    mut indexes: Indexes,
    mode: PrefetchMode,
    binary: bool,
) -> Result<TableLookups, Failure> {
    let read = indexes.clone();
    loop {
        let mut table_lookups = TableLookups::new(table, &indexes, mode, binary);
        let mut refused = None;
        for lookup in table_lookups.all() {
            if let Err(misuse) = check(wire, lookup).await? {
                refused = Some((lookup.shape.name.clone(), misuse));
                break;
            }
        }
        let Some((name, Misuse { index, why })) = refused else {
            table_lookups.made_of = read;
            return Ok(table_lookups);
        };
        tracing::debug!(table = %table.name, lookup = %name, "not prefetched: {why}");
        match index {
            // The other look-ups may work without that index.
            Some(index) => indexes.btrees.retain(|own| own.name != index),
            None => {
                table_lookups.row = None;
                table_lookups.new_version = None;
                table_lookups.new_row.clear();
                table_lookups.made_of = read;
                return Ok(table_lookups);
            }
        }
    }
}

/// Reads the B-trees of the target's table, and the columns that block HOT.
pub(crate) async fn read_indexes(wire: &mut Wire, table: &Table) -> Result<Indexes, Failure> {
    let relation = format!("{}::pg_catalog.regclass", quote_literal(&table.sql));
    let summarizing = if wire.version().major() >= 16 { "m.amname = 'brin'" } else { "false" };
    let text = |row: &[Option<String>], at: usize| row.get(at).cloned().flatten().unwrap_or_default();
    let mut indexes = Indexes::default();
    for row in wire.query(&format!("SELECT {relation}::pg_catalog.oid")).await? {
        indexes.table_oid = text(&row, 0).parse().unwrap_or(0);
    }
    for row in wire.query(&BTREES.replace("$1", &relation)).await? {
        let oid = text(&row, 0).parse().unwrap_or(0);
        if indexes.btrees.last().is_none_or(|index| index.oid != oid) {
            indexes.btrees.push(BtreeIndex { oid, name: text(&row, 1), keys: Vec::new() });
        }
        let [name, less, equal, greater, collate, order] = [2, 3, 4, 5, 6, 7].map(|at| text(&row, at));
        if let Some(index) = indexes.btrees.last_mut() {
            index.keys.push(IndexColumn { name, less, equal, greater, collate, order });
        }
    }
    let blocking = HOT_BLOCKING.replace("$1", &relation).replace("$2", summarizing);
    indexes.hot_blocking = wire.query(&blocking).await?.iter().map(|row| text(row, 0)).collect();
    Ok(indexes)
}

/// A row for each key column of each valid and full B-tree without expressions. The operators are
/// those of the index's operator class; a class that lacks one is ignored.
const BTREES: &str = "
SELECT i.indexrelid, pg_catalog.quote_ident(c.relname), a.attname, o.less, o.equal, o.greater,
       coalesce((SELECT pg_catalog.format(' COLLATE %I.%I', n.nspname, l.collname)
                   FROM pg_catalog.pg_collation l JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
                  WHERE l.oid = i.indcollation[k.n] AND l.oid <> a.attcollation), ''),
       'USING ' || CASE WHEN i.indoption[k.n] & 1 = 0 THEN o.less ELSE o.greater END
       || CASE WHEN i.indoption[k.n] & 2 = 0 THEN ' NULLS LAST' ELSE ' NULLS FIRST' END
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_am m ON m.oid = c.relam AND m.amname = 'btree'
 CROSS JOIN LATERAL pg_catalog.generate_series(0, i.indnkeyatts - 1) k(n)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.n]
  JOIN pg_catalog.pg_opclass s ON s.oid = i.indclass[k.n]
 CROSS JOIN LATERAL (
       SELECT min(x.sql) FILTER (WHERE x.strategy = 1), min(x.sql) FILTER (WHERE x.strategy = 3),
              min(x.sql) FILTER (WHERE x.strategy = 5)
         FROM (SELECT p.amopstrategy, pg_catalog.format('OPERATOR(%I.%s)', n.nspname, q.oprname)
                 FROM pg_catalog.pg_amop p
                 JOIN pg_catalog.pg_operator q ON q.oid = p.amopopr
                 JOIN pg_catalog.pg_namespace n ON n.oid = q.oprnamespace
                WHERE p.amopfamily = s.opcfamily AND p.amoplefttype = s.opcintype
                  AND p.amoprighttype = s.opcintype) x (strategy, sql)) o (less, equal, greater)
 WHERE i.indrelid = $1 AND i.indisvalid AND i.indisready AND i.indpred IS NULL AND i.indexprs IS NULL
 ORDER BY i.indexrelid, k.n";

/// $2 is the condition for an index that HOT does not care about. An index depends on every column
/// that its expressions and its predicate use.
const HOT_BLOCKING: &str = "
SELECT DISTINCT a.attname
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_am m ON m.oid = c.relam
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum > 0
 WHERE i.indrelid = $1 AND i.indislive AND NOT ($2)
   AND (a.attnum = ANY (i.indkey)
        OR EXISTS (SELECT FROM pg_catalog.pg_depend d
                    WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = i.indexrelid
                      AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = i.indrelid
                      AND d.refobjsubid = a.attnum))
 ORDER BY 1";

/// Why a plan does not suit its look-up.
#[derive(Debug, PartialEq, Eq)]
struct Misuse {
    /// The index that is not used as meant, if the reason is an index.
    index: Option<String>,
    why: String,
}

/// Checks the plan of `lookup`. An error of the server is a refusal as well: the table may have
/// been dropped, or the role may not read it.
async fn check(wire: &mut Wire, lookup: &PageLookup) -> Result<Result<(), Misuse>, Failure> {
    let plan = explain(wire, &lookup.shape).await?;
    Ok(judge(&plan, &lookup.indexes, lookup.reads_row))
}

/// Whether `plan`, the lines of EXPLAIN, reads by `indexes` and by nothing else. With `reads_row`
/// it also reads by one more index, which must not be enough to answer by itself.
fn judge(plan: &[String], indexes: &[String], reads_row: bool) -> Result<(), Misuse> {
    let mut missing: Vec<&str> = indexes.iter().map(String::as_str).collect();
    let (mut scans, mut conditions, mut rows) = (0, 0, 0);
    let misuse = |index: Option<&str>, why: String| Err(Misuse { index: index.map(str::to_owned), why });
    for line in plan {
        let line = line.trim_start_matches([' ', '-', '>']);
        if line.starts_with("Filter:") || line.starts_with("Join Filter:") {
            return misuse(missing.first().copied(), format!("rows would be read and thrown away ({line})"));
        }
        conditions += usize::from(line.starts_with("Index Cond:"));
        let scan = line.strip_prefix("Index Only Scan using ").or(line.strip_prefix("Index Scan using "));
        let Some(scan) = scan else {
            // `Tid Scan` reads only the row at a place that an index has found.
            let is_none = line.starts_with("Subquery Scan") || reads_row && line.starts_with("Tid Scan");
            if line.contains(" Scan on ") && !is_none {
                return misuse(
                    missing.first().copied(),
                    format!("the planner would use another way ({line})"),
                );
            }
            continue;
        };
        scans += 1;
        let used = |index: &&str| scan.strip_prefix(*index).is_some_and(|rest| rest.starts_with(" on "));
        match missing.iter().position(used) {
            Some(at) => drop(missing.swap_remove(at)),
            None if reads_row && rows == 0 && line.starts_with("Index Scan") => rows += 1,
            None => return misuse(missing.first().copied(), format!("another index would be used ({line})")),
        }
    }
    if let Some(index) = missing.first() {
        return misuse(Some(index), format!("index {index} would not be used"));
    }
    if rows != usize::from(reads_row) || conditions != scans {
        return misuse(None, "the row would not be found by its index".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    const LEAF: &str = " Nested Loop
   ->  Sort
         Sort Key: (unnest($1))
         ->  ProjectSet
               ->  Result
   ->  Index Only Scan using t_sk on t
         Index Cond: ((sk > (unnest($1))) AND (sk < (unnest($1))))";

    #[test]
    fn a_leaf_is_read_by_its_own_index_and_nothing_is_filtered() {
        let index = ["t_sk".to_owned()];
        assert_eq!(judge(&lines(LEAF), &index, false), Ok(()));
        let refused = |plan: String| judge(&lines(&plan), &index, false).unwrap_err().index;
        let by = |name: &str| LEAF.replace("using t_sk on", &format!("using {name} on"));
        assert_eq!(refused(by("t_sk_other")).as_deref(), Some("t_sk"));
        assert_eq!(
            refused(LEAF.replace("Index Only Scan using t_sk on t", "Seq Scan on t")).as_deref(),
            Some("t_sk")
        );
        assert!(judge(&lines(&format!("{LEAF}\n         Filter: (a > b)")), &index, false).is_err());
        assert!(judge(&lines(&LEAF.replace("Index Cond", "Other")), &index, false).is_err());
    }

    #[test]
    fn a_row_is_read_by_any_index_but_not_by_the_index_alone() {
        let row = LEAF.replace("Index Only Scan using t_sk", "Index Scan using t_pkey");
        assert_eq!(judge(&lines(&row), &[], true), Ok(()));
        assert!(judge(&lines(LEAF), &[], true).is_err());
        let both = format!("{row}\n{LEAF}");
        assert_eq!(judge(&lines(&both), &["t_sk".to_owned()], true), Ok(()));
        assert_eq!(
            judge(&lines(&row), &["t_sk".to_owned()], true).unwrap_err().index.as_deref(),
            Some("t_sk")
        );
    }
}
