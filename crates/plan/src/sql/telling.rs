//! Sets that tell which of their rows were not as the source had them.
//!
//! A plain set reports how many rows it met, so a wrong count condemns all of them. These forms
//! take the rows that are as the source had them, and return the numbers of the others, from 1, as
//! one array. They cost a little more, so they are for rows some of which are known to conflict.
//!
//! An INSERT leaves out rows whose identity is taken. A row that violates another unique key is an
//! error, as in the plain set.
//!
//! Rows that somebody else wrote last are told of, too. They are then locked as a set, which tells
//! who wrote them. A set that takes anyone's rows writes those that the user's rule overwrites.

use super::{
    Kind, columns_at, insert_into, is_found, last_writer, list, met, non_key, of_set, set_delete, set_update,
};
use crate::search::Search;
use crate::sql::lists::numbered_arrays;
use crate::table::Table;

/// The text of the form of `set`, and the positions of its parameters' columns. `whose` is one more
/// condition for rows that are there: ` AND ...`.
pub(super) fn make(
    table: &Table,
    binary: bool,
    set: &Kind,
    search: Search,
    whose: &str,
) -> (String, Vec<usize>) {
    let key = table.key.clone();
    let numbered = |columns: &[usize]| numbered_arrays(&columns_at(table, columns), binary);
    let updated = |present: &[bool]| [table.key.clone(), non_key(table, present)].concat();
    match set {
        Kind::SetDelete => (others(&set_delete(table, &numbered(&key), search, whose)), key),
        Kind::SetUpdate(present) => {
            let columns = updated(present);
            (others(&set_update(table, &numbered(&columns), search, (&columns, &[]), whose)), columns)
        }
        Kind::SetReplace => {
            let columns = updated(&vec![true; table.columns.len()]);
            (
                others(&set_update(table, &numbered(&columns), search, (&columns, &table.extras), whose)),
                columns,
            )
        }
        Kind::SetInsert => (insert(table, binary, search), (0..table.columns.len()).collect()),
        _ => {
            let found = is_found(table, search, &of_set("s"));
            let keys = numbered(&key);
            (format!("SELECT pg_catalog.array_agg(s.n) FROM {keys} AS s WHERE {found}"), key)
        }
    }
}

/// Returns the numbers of the rows that `statement` did not write. EXCEPT, because sessions that
/// apply join by no other means than one row at a time.
fn others(statement: &str) -> String {
    format!(
        "WITH met AS ({statement} RETURNING s.n) SELECT pg_catalog.array_agg(o.n) FROM \
         (SELECT pg_catalog.generate_series(1, pg_catalog.cardinality($1)) EXCEPT SELECT met.n FROM met) AS o (n)"
    )
}

/// Locks rows. The answer is one JSON array, or NULL if there is no row: for each row its number,
/// and as texts its last writer's transaction and [`last_writer`].
pub(super) fn lock(table: &Table, binary: bool, search: Search) -> String {
    let keys = numbered_arrays(&columns_at(table, &table.key), binary);
    let (keys, met) = met(table, search, &keys, "s");
    let (only, sql) = (table.only(), &table.sql);
    let writer = last_writer();
    let named = list(writer.iter().enumerate(), "", |(n, writer)| format!(", {writer} AS w{n}"));
    let values = list(0..writer.len(), "", |n| format!(", l.w{n}::pg_catalog.text"));
    format!(
        "SELECT pg_catalog.json_agg(pg_catalog.json_build_array(l.n, l.xmin{values})) FROM \
         (SELECT s.n, t.xmin::pg_catalog.text{named} FROM {keys}, {only}{sql} AS t WHERE {met} \
         FOR UPDATE OF t) AS l"
    )
}

fn insert(table: &Table, binary: bool, search: Search) -> String {
    let all: Vec<usize> = (0..table.columns.len()).collect();
    let rows = numbered_arrays(&columns_at(table, &all), binary);
    let taken = is_found(table, search, &|n| format!("a.c{}", table.key[n]));
    let values = list(all, ", ", |n| format!("s.c{n}"));
    format!(
        "WITH s AS MATERIALIZED (SELECT a.*, {taken} AS taken FROM {rows} AS a), \
         put AS ({} SELECT {values} FROM s WHERE NOT s.taken) \
         SELECT pg_catalog.array_agg(s.n) FROM s WHERE s.taken",
        insert_into(table)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn sql(binary: bool, set: &Kind) -> String {
        make(&fixtures::table(), binary, set, Search::Plain, "").0
    }

    #[test]
    fn what_was_not_written_is_numbered() {
        assert_eq!(
            sql(true, &Kind::SetDelete),
            "WITH met AS (DELETE FROM ONLY \"s\".\"t\" AS t USING (SELECT pg_catalog.unnest($1) AS c0, \
             pg_catalog.generate_subscripts($1, 1) AS n) AS s WHERE t.\"id\" OPERATOR(pg_catalog.=) s.c0 \
             RETURNING s.n) SELECT pg_catalog.array_agg(o.n) FROM (SELECT pg_catalog.generate_series(1, \
             pg_catalog.cardinality($1)) EXCEPT SELECT met.n FROM met) AS o (n)"
        );
        assert!(sql(false, &Kind::SetUpdate(vec![true, true, false])).contains(
            "FROM (SELECT u.c0::integer AS c0, u.c1::integer AS c1, u.n FROM (SELECT pg_catalog.unnest($1) AS c0, \
             pg_catalog.unnest($2) AS c1, pg_catalog.generate_subscripts($1, 1) AS n) AS u) AS s"
        ));
    }

    #[test]
    fn rows_whose_identity_is_taken_are_left_out() {
        let insert = sql(true, &Kind::SetInsert);
        assert!(insert.contains("SELECT s.c0, s.c1, s.c2 FROM s WHERE NOT s.taken"), "{insert}");
        assert!(insert.contains("OPERATOR(pg_catalog.=) a.c0 OFFSET 0) AS taken"), "{insert}");
    }

    #[test]
    fn rows_are_locked_and_their_writers_told() {
        let lock = lock(&fixtures::table(), true, Search::Plain);
        assert!(lock.starts_with(
            "SELECT pg_catalog.json_agg(pg_catalog.json_build_array(l.n, l.xmin, l.w0::pg_catalog.text, \
             l.w1::pg_catalog.text, l.w2::pg_catalog.text, l.w3::pg_catalog.text)) FROM (SELECT s.n, t.xmin::pg_catalog.text, (SELECT (EXTRACT("
        ));
        assert!(lock.ends_with(
            "AS s, ONLY \"s\".\"t\" AS t WHERE t.\"id\" OPERATOR(pg_catalog.=) s.c0 FOR UPDATE OF t) AS l"
        ));
    }

    #[test]
    fn keys_that_must_be_absent_are_looked_for() {
        assert!(sql(true, &Kind::SetProbe).starts_with("SELECT pg_catalog.array_agg(s.n) FROM (SELECT"));
    }
}
