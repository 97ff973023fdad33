//! How the row of a key is found, as SQL whose only possible plan is a look-up.
//!
//! The planner chooses by its estimate of a table, and a plan is kept as long as the session. A
//! table that looked empty when the plan was made may have a million rows when the plan is used. A
//! transaction can fill it, and no ANALYZE counts rows that are not committed. For one row every
//! plan costs the same. So the planner may read a whole index for each row of a set, or take an
//! index that shares a column with the key. Statements therefore have a form for which no other
//! plan exists (rule Q1), whatever the statistics say:
//!
//! | form      | the key's condition                      | why the plan is a look-up in the key's index  |
//! |-----------|------------------------------------------|-----------------------------------------------|
//! | `Plain`   | `t.a = s.c0 AND t.b = s.c1`              | only a table that is known to look large: the |
//! |           |                                          | look-up costs a fraction of all other plans   |
//! | `Guarded` | `t.a = ANY (ARRAY[s.c0]) AND t.b = s.c1` | `= ANY` orders nothing, so no index is read   |
//! |           |                                          | whole for its order; no other index has a     |
//! |           |                                          | column of the key                             |
//! | `Ordered` | place of the first of `a, b` in order    | only an index in that order gives it without  |
//! |           | between `b >= s.c1` and `b <= s.c1`      | sorting                                       |
//!
//! `Guarded` and `Ordered` need what the sessions that apply have switched off (`target.rs` of
//! crate `apply`): scans of whole tables and bitmaps, index-only scans, sorting, and joins by hash
//! or merge. `Plain` is the fastest. Of 5 us for a narrow row, on 15 and 18, `Guarded` takes the
//! backend 0.5 us more and `Ordered` 1.2 us more.

use std::fmt::Write;

use crate::key_index::{Bounds, KeyColumn, KeyIndex};
use crate::table::{Column, Table};

/// See the table in the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Search {
    /// The key is compared for equality.
    Plain,
    /// The same, in a form that implies no order.
    Guarded,
    /// By the place of the first row in the order of the key's index.
    Ordered,
}

impl Search {
    /// The form for a set of rows. `is_large` says that the planner takes the table for large, and
    /// so searches it by its key.
    pub fn of_set(table: &Table, is_large: bool) -> Search {
        match &table.key_index {
            None => Search::Plain,
            // Partitions have indexes of their own, and a row's place alone does not say in which
            // partition it is.
            Some(_) if table.partitioned => Search::Guarded,
            Some(_) if is_large => Search::Plain,
            Some(index) if index.has_rival => Search::Ordered,
            Some(_) => Search::Guarded,
        }
    }

    /// The form for one row. Without a join the planner gains nothing from reading a whole index.
    pub fn of_row(table: &Table) -> Search {
        let has_rival = table.key_index.as_ref().is_some_and(|index| index.has_rival);
        if has_rival && !table.partitioned { Search::Ordered } else { Search::Plain }
    }
}

/// The value that a key column is compared with, given the column's number within the key.
pub type Value<'v> = &'v dyn Fn(usize) -> String;

fn equals(column: &Column, row: &str, value: &str) -> String {
    let (name, equality) = (&column.sql, column.equality());
    format!("{row}.{name}{} {equality} {}", column.collate, column.compared(value.to_owned()))
}

/// `row.key = value` for the whole key.
pub fn is_key(table: &Table, row: &str, value: Value<'_>) -> String {
    conjunction(table.key.iter().enumerate().map(|(n, &at)| equals(&table.columns[at], row, &value(n))))
}

/// The same in a form that no index and no join can use: for a row that was found by its place.
pub fn is_still_key(table: &Table, row: &str, value: Value<'_>) -> String {
    format!("({}) IS TRUE", is_key(table, row, value))
}

/// The condition that joins a set of rows with the table; not for the form `Ordered`.
pub fn joins(table: &Table, search: Search, row: &str, value: Value<'_>) -> String {
    let (Search::Guarded, Some(index)) = (search, &table.key_index) else {
        return is_key(table, row, value);
    };
    conjunction(table.key.iter().enumerate().map(|(n, &at)| {
        let column = &table.columns[at];
        match index.columns.first().filter(|first| first.position == at) {
            Some(first) => is_among(column, &first.bounds, row, &value(n)),
            None => equals(column, row, &value(n)),
        }
    }))
}

/// Equality in a form that implies no order.
fn is_among(column: &Column, bounds: &Bounds, row: &str, value: &str) -> String {
    // `ANY` over an array of arrays compares elements, which have another type.
    if column.target.type_name.ends_with("[]") {
        return is_between(column, bounds, row, value);
    }
    let (name, equality) = (&column.sql, column.equality());
    let value = column.compared(value.to_owned());
    format!("{row}.{name}{} {equality} ANY (ARRAY[{value}])", column.collate)
}

fn is_between(column: &Column, Bounds { at_least, at_most, .. }: &Bounds, row: &str, value: &str) -> String {
    let name = format!("{row}.{}{}", column.sql, column.collate);
    let value = column.compared(value.to_owned());
    format!("{name} {at_least} {value} AND {name} {at_most} {value}")
}

/// A query for the row's place, in the form `Ordered`. For a key in one column it is
/// `SELECT x.ctid FROM ONLY t AS x WHERE x.a >= v AND x.a <= v ORDER BY x.a LIMIT 1`.
///
/// A column that is known to be equal needs no order, so every index would serve. Therefore the
/// last column is compared by its bounds, and the first by `= ANY`. The columns between are
/// compared for equality. The planner could take an index on the first and the last column without
/// them, which reads the rows that these two select.
pub fn place(table: &Table, index: &KeyIndex, value: Value<'_>) -> String {
    let number = |position: usize| table.key.iter().position(|at| *at == position).unwrap_or_default();
    let (mut conditions, mut order) = (Vec::new(), String::new());
    let last = index.columns.len() - 1;
    for (n, KeyColumn { position, bounds }) in index.columns.iter().enumerate() {
        let column = &table.columns[*position];
        let (name, value) = (format!("x.{}{}", column.sql, column.collate), value(number(*position)));
        if n == last {
            conditions.push(is_between(column, bounds, "x", &value));
        } else if n == 0 {
            conditions.push(is_among(column, bounds, "x", &value));
        } else {
            conditions.push(equals(column, "x", &value));
            continue;
        }
        let comma = if order.is_empty() { "" } else { ", " };
        write!(order, "{comma}{name} {}", bounds.order).expect("a string takes everything");
    }
    let (sql, conditions) = (&table.sql, conditions.join(" AND "));
    format!("SELECT x.ctid FROM ONLY {sql} AS x WHERE {conditions} ORDER BY {order} LIMIT 1")
}

fn conjunction(conditions: impl Iterator<Item = String>) -> String {
    conditions.collect::<Vec<_>>().join(" AND ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn a_key_with_a_rival_is_searched_in_its_order() {
        let mut target = fixtures::target();
        let named = |name| fixtures::unique_key(name);
        let (first, second) = (named("b"), named("id"));
        let mut key = first;
        key.names.extend(second.names);
        key.collate.extend(second.collate);
        key.bounds.extend(second.bounds);
        key.has_rival = true;
        target.unique_keys = vec![key];
        let relation = fixtures::relation_with_key(&["id", "b"]);
        let table = Table::map(1, relation, &target).unwrap();
        assert_eq!(
            (Search::of_set(&table, false), Search::of_row(&table)),
            (Search::Ordered, Search::Ordered)
        );
        assert_eq!(Search::of_set(&table, true), Search::Plain);
        let index = table.key_index.as_ref().unwrap();
        assert_eq!(
            place(&table, index, &|n| format!("${n}")),
            "SELECT x.ctid FROM ONLY \"s\".\"t\" AS x WHERE x.\"b\" OPERATOR(pg_catalog.=) ANY (ARRAY[$1]) \
             AND x.\"id\" OPERATOR(pg_catalog.>=) $0 AND x.\"id\" OPERATOR(pg_catalog.<=) $0 \
             ORDER BY x.\"b\" USING OPERATOR(pg_catalog.<) NULLS LAST, \
             x.\"id\" USING OPERATOR(pg_catalog.<) NULLS LAST LIMIT 1"
        );
    }

    #[test]
    fn a_key_without_a_rival_is_joined_by_what_orders_nothing() {
        let table = fixtures::table();
        assert_eq!((Search::of_set(&table, false), Search::of_row(&table)), (Search::Guarded, Search::Plain));
        assert_eq!(
            joins(&table, Search::Guarded, "t", &|n| format!("s.c{n}")),
            "t.\"id\" OPERATOR(pg_catalog.=) ANY (ARRAY[s.c0])"
        );
        assert_eq!(
            is_still_key(&table, "t", &|n| format!("s.c{n}")),
            "(t.\"id\" OPERATOR(pg_catalog.=) s.c0) IS TRUE"
        );
    }
}
