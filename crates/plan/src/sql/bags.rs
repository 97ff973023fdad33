//! Sets of rows that are found by all of their values ([`crate::bag`]): one match for each.
//!
//! ```text
//!   rows to look for (arrays)  -- one match each -->  f (ctid, what to find, what to write)  -->  UPDATE, DELETE by ctid
//! ```
//! Where an index may lead to the rows, each row is matched by a look-up that ends with the first
//! match. Where no index leads to them, a hash join reads the table once for all rows. Sessions
//! that apply may join only by index, so the hash join stands between [`JOIN_BY_HASH`] and
//! [`JOIN_BY_INDEX`].
//!
//! The statement compares the values once more with the row that it writes, because another session
//! may have changed it since. A changed row counts as another row, as in native apply. No join and
//! no index can use that comparison, so the row is fetched only by its place.

use super::lists::{columns_at, list, unnested};
use crate::table::{Column, Mask, Table};

/// The equality of every built-in type, and of arrays of them.
const ANY_EQUALITY: &str = "OPERATOR(pg_catalog.=)";
/// Conditions that are added for a join by hashes: a few tell rows apart as well as all.
const HASHED_MAX: usize = 4;

/// Settings for the next statement, which is a hash join; it returns no row. No index is of use,
/// not even one that reads the table in another order. The statement is planned when it is
/// executed, so that the planner sees the table's size at that time. For a table that it takes for
/// empty, it would read the set once for each row of the table.
pub const JOIN_BY_HASH: &str = "SELECT 1 WHERE pg_catalog.set_config('plan_cache_mode', 'force_custom_plan', true) OPERATOR(pg_catalog.=) '' \
     OR pg_catalog.set_config('enable_hashjoin', 'on', true) OPERATOR(pg_catalog.=) '' \
     OR pg_catalog.set_config('enable_seqscan', 'on', true) OPERATOR(pg_catalog.=) '' \
     OR pg_catalog.set_config('enable_sort', 'on', true) OPERATOR(pg_catalog.=) '' \
     OR pg_catalog.set_config('enable_indexscan', 'off', true) OPERATOR(pg_catalog.=) ''";
/// Restores the settings of the sessions that apply.
pub const JOIN_BY_INDEX: &str = "SELECT 1 WHERE pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true) OPERATOR(pg_catalog.=) '' \
     OR pg_catalog.set_config('enable_hashjoin', 'off', true) OPERATOR(pg_catalog.=) '' \
     OR pg_catalog.set_config('enable_seqscan', 'off', true) OPERATOR(pg_catalog.=) '' \
     OR pg_catalog.set_config('enable_sort', 'off', true) OPERATOR(pg_catalog.=) '' \
     OR pg_catalog.set_config('enable_indexscan', 'on', true) OPERATOR(pg_catalog.=) ''";

/// How a set of rows is found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Finding {
    /// The columns in which each row has a NULL; `None` where a NULL may be in any column.
    pub nulls: Option<Mask>,
}

impl Finding {
    /// Whether an index may lead to the rows.
    pub fn is_led(&self, table: &Table) -> bool {
        table.indexed.iter().any(|index| match &self.nulls {
            Some(nulls) => index.finds_nulls || !nulls[index.column],
            // No index serves a condition that is for a value or a NULL.
            None => table.columns[index.column].target.not_null,
        })
    }

    /// The condition that `row` and the arrays' row `s` are the same.
    fn alike(&self, table: &Table, row: &str, s: &str) -> String {
        list(table.columns.iter().enumerate(), " AND ", |(n, column)| {
            let name = format!("{row}.{}", column.sql);
            let (operator, value) = (column.equality(), column.compared(format!("{s}.c{n}")));
            match (&column.target.equality, self.nulls.as_ref().map(|nulls| nulls[n])) {
                // Not IS NULL, which a row of NULLs satisfies.
                (_, Some(true)) => format!("{name} IS NOT DISTINCT FROM NULL"),
                // Values of types without equality are the same when their text is.
                (None, _) => {
                    format!("{name}::pg_catalog.text IS NOT DISTINCT FROM {value}::pg_catalog.text")
                }
                (Some(_), None) if !column.target.not_null => {
                    format!(
                        "({name} {operator} {value} OR {name} IS NOT DISTINCT FROM NULL AND {value} IS NOT DISTINCT FROM NULL)"
                    )
                }
                (Some(_), _) => format!("{name} {operator} {value}"),
            }
        })
    }

    /// Further conditions for a join by hashes, which follow from [`Self::alike`]: empty where a
    /// column's plain equality makes hashes already. Two arrays of one element are equal also where
    /// both elements are NULL.
    fn hashed(&self, table: &Table, row: &str, s: &str) -> String {
        let is_null = |n: usize| self.nulls.as_ref().map(|nulls| nulls[n]);
        let columns = || table.columns.iter().enumerate().filter(|(n, _)| is_null(*n) != Some(true));
        let is_plain = |(n, column): (usize, &Column)| {
            column.target.equality.is_some() && (is_null(n).is_some() || column.target.not_null)
        };
        if columns().any(is_plain) {
            return String::new();
        }
        let pair = |(n, column): (usize, &Column)| {
            let (name, value) = (format!("{row}.{}", column.sql), column.compared(format!("{s}.c{n}")));
            match &column.target.equality {
                // Arrays of arrays are of more dimensions, and other operators have other arrays.
                Some(equality) if equality == ANY_EQUALITY && column.target.holder.is_none() => {
                    Some(format!("ARRAY[{name}] {ANY_EQUALITY} ARRAY[{value}] AND "))
                }
                Some(_) => None,
                None => Some(format!(
                    "ARRAY[{name}::pg_catalog.text COLLATE \"C\"] {ANY_EQUALITY} ARRAY[{value}::pg_catalog.text COLLATE \"C\"] AND "
                )),
            }
        };
        columns().filter_map(pair).take(HASHED_MAX).collect()
    }

    /// The arrays' rows, each with the place of one matching row of the table. The arrays hold all
    /// columns, then those that are `written`.
    fn found(&self, table: &Table, binary: bool, written: &[usize]) -> String {
        let all: Vec<usize> = (0..table.columns.len()).collect();
        let columns = columns_at(table, &[&all, written].concat());
        // OFFSET 0 makes values from text once, and not for each row that they are compared with.
        let arrays = format!("({} OFFSET 0) AS s", unnested(&columns, binary));
        let (sql, alike) = (&table.sql, self.alike(table, "x", "s"));
        if self.is_led(table) {
            return format!(
                "(SELECT (SELECT x.ctid FROM ONLY {sql} AS x WHERE {alike} LIMIT 1) AS at, s.* FROM {arrays} OFFSET 0) AS f"
            );
        }
        // LEFT JOIN, so that the planner never compares each of the table's rows with the whole
        // set.
        format!(
            "(SELECT DISTINCT ON (s.i) x.ctid AS at, s.* \
             FROM (SELECT pg_catalog.row_number() OVER () AS i, s.* FROM {arrays}) AS s \
             LEFT JOIN ONLY {sql} AS x ON {}{alike}) AS f",
            self.hashed(table, "x", "s")
        )
    }

    pub(super) fn update(&self, table: &Table, binary: bool, present: &Mask) -> String {
        let written = written(present);
        let mut assignments = list(written.iter().enumerate(), ", ", |(n, &at)| {
            format!("{} = f.c{}", table.columns[at].sql, n + table.columns.len())
        });
        if assignments.is_empty() {
            let first = &table.columns[0].sql;
            assignments = format!("{first} = t.{first}");
        }
        let (found, same) = (self.found(table, binary, &written), self.alike(table, "t", "f"));
        format!(
            "UPDATE ONLY {} AS t SET {assignments} FROM {found} WHERE t.ctid = f.at AND ({same}) IS TRUE{}",
            table.sql,
            table.and_ours()
        )
    }

    pub(super) fn delete(&self, table: &Table, binary: bool) -> String {
        let (found, same) = (self.found(table, binary, &[]), self.alike(table, "t", "f"));
        let (sql, ours) = (&table.sql, table.and_ours());
        format!("DELETE FROM ONLY {sql} AS t USING {found} WHERE t.ctid = f.at AND ({same}) IS TRUE{ours}")
    }
}

/// Positions of the columns in the mask.
pub(super) fn written(present: &Mask) -> Vec<usize> {
    (0..present.len()).filter(|&at| present[at]).collect()
}
