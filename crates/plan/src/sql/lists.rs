//! Lists in SQL, and the rows of arrays as a relation.

use crate::table::{Column, Table};

pub(super) fn list<T>(
    items: impl IntoIterator<Item = T>,
    separator: &str,
    mut write: impl FnMut(T) -> String,
) -> String {
    let mut text = String::new();
    for (position, item) in items.into_iter().enumerate() {
        if position > 0 {
            text.push_str(separator);
        }
        text.push_str(&write(item));
    }
    text
}

/// The arrays as a relation `s(c0, c1, ...)`.
pub(super) fn from_arrays(columns: &[&Column], binary: bool) -> String {
    format!("{} AS s", arrays(columns, binary))
}

/// The same without a name.
pub(super) fn arrays(columns: &[&Column], binary: bool) -> String {
    format!("({})", unnested(columns, binary))
}

/// The same, with the number of each row, from 1, as column `n`.
pub(super) fn numbered_arrays(columns: &[&Column], binary: bool) -> String {
    const NUMBER: &str = ", pg_catalog.generate_subscripts($1, 1) AS n";
    if binary {
        return format!("({}{NUMBER})", unnested(columns, binary));
    }
    let (rows, casts) = (rows(columns.len()), casts(columns));
    format!("(SELECT {casts}, u.n FROM (SELECT {rows}{NUMBER}) AS u)")
}

/// A query for the rows of arrays with values for these columns. The arrays are unnested in a
/// select list, in step with one another. In FROM their rows would be copied to a tuplestore first,
/// and to a file if they exceed `work_mem`.
pub(super) fn unnested(columns: &[&Column], binary: bool) -> String {
    if binary {
        let rows = list(columns.iter().enumerate(), ", ", |(n, column)| {
            format!("{} AS c{n}", column.target.value_of(element(n)))
        });
        return format!("SELECT {rows}");
    }
    format!("SELECT {} FROM (SELECT {}) AS u", casts(columns), rows(columns.len()))
}

fn element(n: usize) -> String {
    format!("pg_catalog.unnest(${})", n + 1)
}

fn rows(columns: usize) -> String {
    list(0..columns, ", ", |n| format!("{} AS c{n}", element(n)))
}

fn casts(columns: &[&Column]) -> String {
    list(columns.iter().enumerate(), ", ", |(n, column)| {
        format!("u.c{n}::{} AS c{n}", column.target.type_name)
    })
}

pub(super) fn columns_at<'a>(table: &'a Table, positions: &[usize]) -> Vec<&'a Column> {
    positions.iter().map(|&position| &table.columns[position]).collect()
}
