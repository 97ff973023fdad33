//! Sets of rows that are found by all of their values ([`crate::bag`]): of those that match, one each.
//!
//! ```text
//!   rows to look for (arrays)  -- one match each -->  f (ctid, what to find, what to write)  -->  UPDATE, DELETE by ctid
//! ```
//! Where an index may lead to them the match is a look-up for each row, which ends with the first that it finds. Where none
//! may, it is a join by hashes, which reads the table once for all rows; the sessions that apply are told to join by
//! nothing but indexes, so the statement stands between [`HASH_JOIN`] and [`NO_HASH_JOIN`].
//!
//! The values are compared once more with the row that is written, because another session may have changed it since: it
//! is another row then, as for native apply.

use super::{Present, columns_at, equality, from_arrays, list};
use crate::table::Table;

/// For the statement behind it.
pub(crate) const HASH_JOIN: &str = "SET LOCAL enable_hashjoin = on";
pub(crate) const NO_HASH_JOIN: &str = "SET LOCAL enable_hashjoin = off";

/// `row` and the arrays' row `s` are the same, which has NULLs at most in the columns of `nulls`.
fn alike(table: &Table, row: &str, s: &str, nulls: &[bool]) -> String {
    list(table.columns.iter().enumerate(), " AND ", |(n, column)| {
        let name = format!("{row}.{}", column.sql);
        let operator = equality(column);
        match (&column.target.equality, nulls[n]) {
            // Types without equality are the same when they look the same.
            (None, _) => {
                format!("{name}::pg_catalog.text IS NOT DISTINCT FROM {s}.c{n}::pg_catalog.text")
            }
            (Some(_), true) => format!("({name} {operator} {s}.c{n} OR {name} IS NULL AND {s}.c{n} IS NULL)"),
            (Some(_), false) => format!("{name} {operator} {s}.c{n}"),
        }
    })
}

/// The arrays, of all columns and behind them those that are `written`, each row with the place of one that matches.
fn found(table: &Table, binary: bool, nulls: &[bool], written: &[usize]) -> String {
    let all: Vec<usize> = (0..table.columns.len()).collect();
    let arrays = from_arrays(&columns_at(table, &[&all, written].concat()), binary);
    let (sql, alike) = (&table.sql, alike(table, "x", "s", nulls));
    if table.indexed {
        return format!(
            "(SELECT (SELECT x.ctid FROM ONLY {sql} AS x WHERE {alike} LIMIT 1) AS at, s.* FROM {arrays} OFFSET 0) AS f"
        );
    }
    format!(
        "(SELECT DISTINCT ON (s.i) x.ctid AS at, s.* FROM (SELECT pg_catalog.row_number() OVER () AS i, s.* FROM {arrays}) \
         AS s JOIN ONLY {sql} AS x ON {alike}) AS f"
    )
}

pub(super) fn update(table: &Table, binary: bool, present: &Present, nulls: &[bool]) -> String {
    let written = written(present);
    let mut assignments = list(written.iter().enumerate(), ", ", |(n, &at)| {
        format!("{} = f.c{}", table.columns[at].sql, n + table.columns.len())
    });
    if assignments.is_empty() {
        let first = &table.columns[0].sql;
        assignments = format!("{first} = t.{first}");
    }
    let (found, same) = (found(table, binary, nulls, &written), alike(table, "t", "f", nulls));
    format!("UPDATE ONLY {} AS t SET {assignments} FROM {found} WHERE t.ctid = f.at AND {same}", table.sql)
}

pub(super) fn delete(table: &Table, binary: bool, nulls: &[bool]) -> String {
    let (found, same) = (found(table, binary, nulls, &[]), alike(table, "t", "f", nulls));
    format!("DELETE FROM ONLY {} AS t USING {found} WHERE t.ctid = f.at AND {same}", table.sql)
}

/// The columns that are.
pub(super) fn written(present: &Present) -> Vec<usize> {
    (0..present.len()).filter(|&at| present[at]).collect()
}
