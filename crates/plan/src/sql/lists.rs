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

/// A query for the rows of arrays with values for these columns. The arrays are unnested in a
/// select list, in step with one another. In FROM their rows would be copied to a tuplestore first,
/// and to a file if they exceed `work_mem`.
pub(super) fn unnested(columns: &[&Column], binary: bool) -> String {
    let element = |n: usize| format!("pg_catalog.unnest(${})", n + 1);
    if binary {
        let rows = list(columns.iter().enumerate(), ", ", |(n, column)| {
            format!("{} AS c{n}", column.target.value_of(element(n)))
        });
        return format!("SELECT {rows}");
    }
    let rows = list(0..columns.len(), ", ", |n| format!("{} AS c{n}", element(n)));
    let casts = list(columns.iter().enumerate(), ", ", |(n, column)| {
        format!("u.c{n}::{} AS c{n}", column.target.type_name)
    });
    format!("SELECT {casts} FROM (SELECT {rows}) AS u")
}

pub(super) fn columns_at<'a>(table: &'a Table, positions: &[usize]) -> Vec<&'a Column> {
    positions.iter().map(|&position| &table.columns[position]).collect()
}
