//! The SQL of every statement the applier sends, by shape.
//!
//! A shape is what a prepared statement is made for: a table, an operation and the columns it
//! writes. There are two families, which must agree on what they do:
//!
//! - *Sets* write the net effect of many rows. Each parameter is an array, one per column, joined
//!   by `unnest`. In text form the arrays are `text[]`, and each value is cast to the column's type
//!   *without* its modifier. So assignment judges a value that is too long, and the cast does not
//!   cut it. Many new rows are a COPY; rows without a key are in [`bags`].
//! - *Rows* write one change. Each parameter has the column's own type, so the type's input or
//!   receive function sees what the source sent.
//!
//! Names are always qualified and operators written out, because sessions run with an empty
//! `search_path`.

pub mod bags;
mod lists;
mod telling;

use std::fmt::Write;
use std::sync::Arc;

use bags::Finding;
use base::Oid;
use lists::{arrays, columns_at, from_arrays, list};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::holder::Element;
use crate::search::{self, Search};
use crate::table::{Column, Lookup, Mask, Table, TargetColumn};

const TEXT: Oid = Oid(25);
const TEXT_ARRAY: Oid = Oid(1009);

/// The fewest rows of a table that looks large. The planner assumes ten look-ups for any set; with
/// the sessions' costs they cost about 25. The cheapest other plan reads the index once, which
/// costs more than 0.015 for each row and 0.0125 for each of ten pairs. The two meet at 1,400 rows.
pub const LARGE: f64 = 10_000.0;

/// A statement to prepare.
#[derive(Debug)]
pub struct Shape {
    /// The prepared statement's name within its session.
    pub name: String,
    /// Its text.
    pub sql: String,
    /// The type of each parameter.
    pub parameter_types: Vec<Oid>,
    /// For arrays: the element type of each parameter.
    pub element_types: Vec<Element>,
    /// The table, for messages, if a unique index must find its rows.
    pub by_index: Option<String>,
}

impl Shape {
    /// The same statement, made to fail if it meets an unexpected number of rows. It must meet
    /// every row it is given, and a probe must meet none. It reports one row. `None` where SQL
    /// cannot say so; a COPY fails by itself and stays as it is.
    pub fn insisting(&self) -> Option<Shape> {
        let (first_word, _) = self.sql.split_once(' ')?;
        let (returning, must) = match first_word {
            "COPY" => return Some(self.twin(self.name.clone(), self.sql.clone())),
            "SELECT" => ("", "0"),
            "INSERT" | "UPDATE" | "DELETE" if self.element_types.is_empty() => (" RETURNING 1", "1"),
            "INSERT" | "UPDATE" | "DELETE" => (" RETURNING 1", "pg_catalog.cardinality($1)"),
            _ => return None,
        };
        // The text depends on the count, so the planner cannot evaluate the cast and fail on it.
        let sql = format!(
            "WITH met AS ({}{returning}) SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) {must} THEN 1 \
             ELSE pg_catalog.concat('pgsluice: ', pg_catalog.count(*), ' rows instead of ', {must}, \
             ', now looked at one at a time')::pg_catalog.int4 END FROM met",
            self.sql
        );
        Some(self.twin(format!("{}_met", self.name), sql))
    }

    /// Another statement for the same parameters.
    fn twin(&self, name: String, sql: String) -> Shape {
        Shape {
            name,
            sql,
            parameter_types: self.parameter_types.clone(),
            element_types: self.element_types.clone(),
            by_index: self.by_index.clone(),
        }
    }
}

/// The columns that an UPDATE writes: those whose value was sent.
pub type Present = Mask;

/// What a shape is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Returns a row if any of the keys exists.
    SetProbe,
    /// Inserts rows.
    SetInsert,
    /// An INSERT of rows that follow as COPY data.
    Copy,
    /// Deletes rows by their keys.
    SetDelete,
    /// Updates these columns of rows, by their keys.
    SetUpdate(Present),
    /// An UPDATE that keeps nothing of the old row.
    SetReplace,
    /// Deletes rows that are found by all of their values.
    BagDelete(Finding),
    /// Updates these columns of rows that are found by all of their values.
    BagUpdate(Present, Finding),
    /// Inserts one row.
    RowInsert,
    /// Updates these columns of one row.
    RowUpdate(Present),
    /// Deletes one row.
    RowDelete,
    /// As [`Kind::RowUpdate`], also for a row that somebody else wrote last.
    AnyonesUpdate(Present),
    /// As [`Kind::RowDelete`], also for a row that somebody else wrote last.
    AnyonesDelete,
    /// Finds the row that an UPDATE or DELETE is for.
    RowProbe,
    /// The set, for rows some of which may not be as the source had them: see [`telling`].
    Telling(Box<Kind>),
    /// The same, also for rows that somebody else wrote last.
    TellingOfAnyone(Box<Kind>),
    /// Locks rows by their keys, and returns who wrote them last.
    SetLock,
}

impl Kind {
    /// Whether it writes or finds one row, with a parameter for each value.
    fn is_row(&self) -> bool {
        matches!(
            self,
            Kind::RowInsert
                | Kind::RowUpdate(_)
                | Kind::RowDelete
                | Kind::AnyonesUpdate(_)
                | Kind::AnyonesDelete
                | Kind::RowProbe
        )
    }
}

/// Every shape in use, made once.
#[derive(Debug, Default)]
pub struct Shapes {
    made: FxHashMap<(u64, bool, Kind, Search), Arc<Shape>>,
    /// Tables, by their ids, that the planner is known to take for large, and the lowest row count
    /// that it may still assume.
    large: FxHashMap<u64, f64>,
    /// Tables, by their ids, that are no longer believed to be large.
    doubted: FxHashSet<u64>,
    /// For each table, the sets of columns in which NULLs were looked for.
    nulls: FxHashMap<u64, Vec<Mask>>,
    count: u64,
}

/// How many sets of columns with NULLs have statements of their own for each table. One more
/// statement stands for all others.
const NULLS_MAX: usize = 32;

impl Shapes {
    /// No shape yet.
    pub fn new() -> Self {
        Shapes::default()
    }

    /// How rows of `table` are found that have a NULL in each of these columns. Such rows have
    /// conditions of their own, which an index and hash joins can serve, until there are
    /// [`NULLS_MAX`] kinds.
    pub fn finding(&mut self, table: &Table, nulls: Mask) -> Finding {
        let known = self.nulls.entry(table.id).or_default();
        if !known.contains(&nulls) {
            if known.len() == NULLS_MAX {
                return Finding { nulls: None };
            }
            known.push(nulls.clone());
        }
        Finding { nulls: Some(nulls) }
    }

    /// Notes how many rows the planner takes the table to have.
    pub fn looks(&mut self, table: &Table, rows: f64) {
        if rows >= LARGE && !self.doubted.contains(&table.id) {
            self.large.insert(table.id, rows);
        } else {
            self.large.remove(&table.id);
        }
    }

    /// Notes that rows were deleted: the next count of the table may find few.
    pub fn shrinks(&mut self, table: &Table, rows: u64) {
        if let Some(large) = self.large.get_mut(&table.id) {
            *large -= rows as f64;
            if *large < LARGE {
                self.large.remove(&table.id);
            }
        }
    }

    /// The statements that find rows of the table by its key.
    pub fn made_for(&self, table: &Table) -> impl Iterator<Item = Arc<Shape>> {
        let id = table.id;
        let of_table = self.made.iter().filter(move |((made_for, ..), _)| *made_for == id);
        of_table.map(|(_, shape)| Arc::clone(shape)).filter(|shape| shape.by_index.is_some())
    }

    /// Notes that the table was taken for large and a statement then ran away.
    pub fn doubt(&mut self, table: &Table) {
        self.large.remove(&table.id);
        self.doubted.insert(table.id);
    }

    /// The shape of `kind` on `table`. `binary` chooses the form of a set's parameters and means
    /// nothing for rows.
    pub fn get(&mut self, table: &Table, binary: bool, kind: Kind) -> Arc<Shape> {
        let is_set = matches!(
            kind,
            Kind::SetProbe
                | Kind::SetDelete
                | Kind::SetUpdate(_)
                | Kind::SetReplace
                | Kind::Telling(_)
                | Kind::TellingOfAnyone(_)
                | Kind::SetLock
        );
        let search = match is_set {
            true => Search::of_set(table, self.large.contains_key(&table.id)),
            false => Search::of_row(table),
        };
        let identity = (table.id, binary, kind, search);
        if let Some(shape) = self.made.get(&identity) {
            return Arc::clone(shape);
        }
        let shape = Arc::new(make(format!("shape{}", self.count), table, binary, &identity.2, search));
        self.count += 1;
        self.made.insert(identity, Arc::clone(&shape));
        shape
    }
}

/// A statement without parameters, such as `BEGIN`.
pub fn plain(name: &str, sql: &str) -> Shape {
    let (name, sql) = (name.to_owned(), sql.to_owned());
    Shape { name, sql, parameter_types: Vec::new(), element_types: Vec::new(), by_index: None }
}

fn make(name: String, table: &Table, binary: bool, kind: &Kind, search: Search) -> Shape {
    let all: Vec<usize> = (0..table.columns.len()).collect();
    let key = || table.key.clone();
    let (sql, parameters) = match kind {
        Kind::BagDelete(finding) => (finding.delete(table, binary), all),
        Kind::BagUpdate(present, finding) => {
            (finding.update(table, binary, present), [all, bags::written(present)].concat())
        }
        Kind::SetProbe => (set_probe(table, binary, search), key()),
        Kind::SetInsert => (set_insert(table, binary), all),
        Kind::Copy => (copy(table, binary), Vec::new()),
        Kind::SetDelete => {
            let rows = arrays(&columns_at(table, &table.key), binary);
            (set_delete(table, &rows, search, table.and_ours()), key())
        }
        Kind::Telling(set) => telling::make(table, binary, set, search, table.and_ours()),
        Kind::TellingOfAnyone(set) => telling::make(table, binary, set, search, ""),
        Kind::SetLock => (telling::lock(table, binary, search), key()),
        Kind::SetUpdate(present) => {
            let columns = [key(), non_key(table, present)].concat();
            let rows = arrays(&columns_at(table, &columns), binary);
            (set_update(table, &rows, search, (&columns, &[]), table.and_ours()), columns)
        }
        Kind::SetReplace => {
            let columns = [key(), non_key(table, &vec![true; table.columns.len()])].concat();
            let rows = arrays(&columns_at(table, &columns), binary);
            (set_update(table, &rows, search, (&columns, &table.extras), table.and_ours()), columns)
        }
        _ => {
            let positions = row_parameters(table, kind);
            (row_sql(table, kind, &|n| format!("${}", n + 1)), positions)
        }
    };
    let finds = !matches!(kind, Kind::SetInsert | Kind::Copy | Kind::RowInsert);
    let by_index = (finds && table.lookup == Lookup::UniqueKey).then(|| table.name.clone());
    let columns = parameters.iter().map(|&position| &table.columns[position].target);
    if kind.is_row() {
        let parameter_types = columns.map(|column| column.type_oid).collect();
        Shape { name, sql, parameter_types, element_types: Vec::new(), by_index }
    } else if binary {
        let (parameter_types, element_types) = columns.map(TargetColumn::parameter).unzip();
        Shape { name, sql, parameter_types, element_types, by_index }
    } else {
        let count = parameters.len();
        let parameter_types = vec![TEXT_ARRAY; count];
        Shape { name, sql, parameter_types, element_types: vec![TEXT.into(); count], by_index }
    }
}

/// Positions of the columns that an UPDATE of a set writes. The key is equal by construction, and
/// an identity column GENERATED ALWAYS in the key must not even be assigned its own value.
pub fn non_key(table: &Table, present: &[bool]) -> Vec<usize> {
    (0..table.columns.len()).filter(|&at| present[at] && !table.columns[at].key).collect()
}

fn set_probe(table: &Table, binary: bool, search: Search) -> String {
    let keys = from_arrays(&columns_at(table, &table.key), binary);
    let found = is_found(table, search, &of_set("s"));
    format!("SELECT 1 FROM {keys} WHERE {found} LIMIT 1")
}

/// Who wrote a row `t` last, as a list of SQL expressions: the commit time in microseconds since
/// 1970 and as text, and the replication origin's number and name. Each is NULL where the server
/// does not know it.
///
/// These stand in a select list and nowhere else: where a query waits for a lock, the server makes
/// the list anew from the version that it waited for, but joins the old version's rows of other
/// relations.
pub fn last_writer() -> [String; 4] {
    let of =
        |what: &str| format!("(SELECT {what} FROM pg_catalog.pg_xact_commit_timestamp_origin(t.xmin) AS w)");
    [
        of("(EXTRACT(epoch FROM w.timestamp) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8"),
        of("w.timestamp::pg_catalog.text"),
        of("w.roident"),
        of("(SELECT o.roname FROM pg_catalog.pg_replication_origin o \
            WHERE o.roident OPERATOR(pg_catalog.=) w.roident)"),
    ]
}

/// The condition that a row of the table has this key.
fn is_found(table: &Table, search: Search, value: search::Value<'_>) -> String {
    match (search, &table.key_index) {
        (Search::Ordered, Some(index)) => format!("({}) IS NOT NULL", search::place(table, index, value)),
        // OFFSET keeps it a query for each row: as a join the planner might read the whole table.
        _ => {
            let (only, sql, matches) = (table.only(), &table.sql, search::is_key(table, "t", value));
            format!("EXISTS (SELECT FROM {only}{sql} AS t WHERE {matches} OFFSET 0)")
        }
    }
}

/// The key's values in rows of a set, whose first columns are the key.
fn of_set(rows: &str) -> impl Fn(usize) -> String {
    move |n| format!("{rows}.c{n}")
}

/// What joins rows of a set with the table's rows `t` of the same keys: one text for FROM and one
/// for WHERE.
fn met(table: &Table, search: Search, arrays: &str, rows: &str) -> (String, String) {
    match (search, &table.key_index) {
        (Search::Ordered, Some(index)) => {
            let place = search::place(table, index, &of_set("a"));
            let still = search::is_still_key(table, "t", &of_set(rows));
            (
                format!("(SELECT ({place}) AS at, a.* FROM {arrays} AS a OFFSET 0) AS {rows}"),
                format!("t.ctid = {rows}.at AND {still}"),
            )
        }
        _ => (format!("{arrays} AS {rows}"), search::joins(table, search, "t", &of_set(rows))),
    }
}

fn insert_into(table: &Table) -> String {
    let names = list(&table.columns, ", ", |column| column.sql.clone());
    format!("INSERT INTO {} ({names}) OVERRIDING SYSTEM VALUE", table.sql)
}

fn set_insert(table: &Table, binary: bool) -> String {
    let columns: Vec<&Column> = table.columns.iter().collect();
    let values = list(0..columns.len(), ", ", |n| format!("s.c{n}"));
    format!("{} SELECT {values} FROM {}", insert_into(table), from_arrays(&columns, binary))
}

fn copy(table: &Table, binary: bool) -> String {
    let names = list(&table.columns, ", ", |column| column.sql.clone());
    let format = if binary { "binary" } else { "text" };
    format!("COPY {} ({names}) FROM STDIN (FORMAT {format})", table.sql)
}

/// `whose` is one more condition for the row: ` AND ...`.
fn set_delete(table: &Table, rows: &str, search: Search, whose: &str) -> String {
    let (keys, met) = met(table, search, rows, "s");
    let (only, sql) = (table.only(), &table.sql);
    format!("DELETE FROM {only}{sql} AS t USING {keys} WHERE {met}{whose}")
}

/// Writes the columns behind the key of `rows`, and sets others to their defaults. `whose` is one
/// more condition for the row: ` AND ...`.
fn set_update(
    table: &Table,
    rows: &str,
    search: Search,
    (columns, defaults): (&[usize], &[String]),
    whose: &str,
) -> String {
    let written = &columns[table.key.len()..];
    let mut assignments = list(written.iter().enumerate(), ", ", |(n, &position)| {
        format!("{} = s.c{}", table.columns[position].sql, n + table.key.len())
    });
    for extra in defaults {
        let separator = if assignments.is_empty() { "" } else { ", " };
        write!(assignments, "{separator}{extra} = DEFAULT").expect("a string takes everything");
    }
    if assignments.is_empty() {
        // The set writes nothing but the key. The row must still be found and locked.
        let key = &table.columns[table.key[0]].sql;
        assignments = format!("{key} = t.{key}");
    }
    let (rows, met) = met(table, search, rows, "s");
    let (only, sql) = (table.only(), &table.sql);
    format!("UPDATE {only}{sql} AS t SET {assignments} FROM {rows} WHERE {met}{whose}")
}

/// The statement that deletes a set of rows where the table looks large, without a name.
pub fn of_large_set(table: &Table, binary: bool) -> Shape {
    make(String::new(), table, binary, &Kind::SetDelete, Search::Plain)
}

/// The statement of one change, without a name.
pub fn of_one_change(table: &Table, kind: &Kind) -> Shape {
    make(String::new(), table, true, kind, Search::of_row(table))
}

/// The columns whose values a statement of one change takes, in the statement's order.
pub fn row_parameters(table: &Table, kind: &Kind) -> Vec<usize> {
    let all = 0..table.columns.len();
    match kind {
        Kind::RowInsert => all.collect(),
        Kind::RowUpdate(present) | Kind::AnyonesUpdate(present) => {
            all.filter(|&at| present[at]).chain(table.key.iter().copied()).collect()
        }
        _ => table.key.clone(),
    }
}

/// Gives the SQL for the parameter of this number, from 0.
type Put<'p> = &'p dyn Fn(usize) -> String;

/// The statement of one change.
pub fn row_sql(table: &Table, kind: &Kind, put: Put<'_>) -> String {
    let whose = match kind {
        Kind::RowUpdate(_) | Kind::RowDelete => table.and_ours(),
        _ => "",
    };
    match kind {
        Kind::RowInsert => row_insert(table, put),
        Kind::RowUpdate(present) | Kind::AnyonesUpdate(present) => {
            let written: Vec<usize> = (0..table.columns.len()).filter(|&at| present[at]).collect();
            row_update(table, &written, whose, put)
        }
        Kind::RowDelete | Kind::AnyonesDelete => row_delete(table, whose, put),
        _ => row_probe(table, put),
    }
}

fn row_insert(table: &Table, put: Put<'_>) -> String {
    if table.columns.is_empty() {
        return format!("INSERT INTO {} DEFAULT VALUES", table.sql);
    }
    let values = list(0..table.columns.len(), ", ", put);
    format!("{} VALUES ({values})", insert_into(table))
}

/// The condition that finds the row; its parameters start behind `before`. A condition that finds a
/// row by its place compares the values once more, because another session may have changed the row
/// since.
pub fn located(table: &Table, before: usize, put: Put<'_>) -> String {
    let value = |n: usize| put(before + n);
    let sql = &table.sql;
    match (table.lookup, &table.key_index) {
        (Lookup::UniqueKey, Some(index)) if Search::of_row(table) == Search::Ordered => {
            let still = search::is_still_key(table, "t", &value);
            format!("t.ctid = ({}) AND {still}", search::place(table, index, &value))
        }
        (Lookup::UniqueKey, _) => search::is_key(table, "t", &value),
        _ if !table.partitioned => {
            let condition = alike(table, before, put);
            format!(
                "t.ctid = (SELECT t.ctid FROM ONLY {sql} AS t WHERE {condition} LIMIT 1) AND ({condition}) IS TRUE"
            )
        }
        _ => {
            let condition = alike(table, before, put);
            format!(
                "(t.tableoid, t.ctid) IN (SELECT t.tableoid, t.ctid FROM {sql} AS t WHERE {condition} LIMIT 1) \
                 AND ({condition}) IS TRUE"
            )
        }
    }
}

/// The condition that a row has the given identity values, which are not unique on the target.
fn alike(table: &Table, before: usize, put: Put<'_>) -> String {
    list(table.key.iter().enumerate(), " AND ", |(n, &position)| {
        let column = &table.columns[position];
        let value = column.compared(put(before + n));
        let name = format!("{}{}", column.sql, column.collate);
        match (&column.target.equality, table.lookup) {
            // Values of types without equality are the same when their text is.
            (None, _) => format!("t.{name}::pg_catalog.text IS NOT DISTINCT FROM {value}::pg_catalog.text"),
            (Some(operator), Lookup::Full) => {
                format!(
                    "(t.{name} {operator} {value} OR t.{name} IS NOT DISTINCT FROM NULL AND {value} IS NOT DISTINCT FROM NULL)"
                )
            }
            (Some(operator), _) => format!("t.{name} {operator} {value}"),
        }
    })
}

fn row_delete(table: &Table, whose: &str, put: Put<'_>) -> String {
    format!("DELETE FROM {}{} AS t WHERE {}{whose}", table.only(), table.sql, located(table, 0, put))
}

fn row_probe(table: &Table, put: Put<'_>) -> String {
    format!("SELECT FROM {}{} AS t WHERE {}", table.only(), table.sql, located(table, 0, put))
}

fn row_update(table: &Table, written: &[usize], whose: &str, put: Put<'_>) -> String {
    let always = written.iter().any(|&at| table.columns[at].target.identity_always);
    if always {
        return row_update_identity(table, written, whose, put);
    }
    let condition = located(table, written.len(), put);
    let mut assignments =
        list(written.iter().enumerate(), ", ", |(n, &at)| format!("{} = {}", table.columns[at].sql, put(n)));
    if assignments.is_empty() {
        let key = &table.columns[0].sql;
        assignments = format!("{key} = t.{key}");
    }
    format!("UPDATE {}{} AS t SET {assignments} WHERE {condition}{whose}", table.only(), table.sql)
}

/// An UPDATE may not give a value to an identity column GENERATED ALWAYS, but an INSERT may. So one
/// statement deletes the row and inserts it again, and takes the values that the source did not
/// send from the deleted row.
fn row_update_identity(table: &Table, written: &[usize], whose: &str, put: Put<'_>) -> String {
    let condition = located(table, written.len(), put);
    let kept: Vec<&String> = (0..table.columns.len())
        .filter(|at| !written.contains(at))
        .map(|at| &table.columns[at].sql)
        .chain(&table.extras)
        .collect();
    let names = list(
        written.iter().map(|&at| &table.columns[at].sql).chain(kept.iter().copied()),
        ", ",
        String::clone,
    );
    let values = list(0..written.len(), ", ", put);
    let kept = list(kept, "", |name| format!(", d.{name}"));
    let (only, sql) = (table.only(), &table.sql);
    format!(
        "WITH d AS (DELETE FROM {only}{sql} AS t WHERE {condition}{whose} RETURNING t.*) \
         INSERT INTO {sql} ({names}) OVERRIDING SYSTEM VALUE SELECT {values}{kept} FROM d"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::holder::Holder;

    fn sql(binary: bool, kind: Kind) -> String {
        make("p".into(), &fixtures::table(), binary, &kind, Search::Plain).sql
    }

    #[test]
    fn sets_join_arrays_by_key() {
        assert_eq!(
            sql(true, Kind::SetUpdate(vec![true, true, false])),
            "UPDATE ONLY \"s\".\"t\" AS t SET \"a\" = s.c1 \
             FROM (SELECT pg_catalog.unnest($1) AS c0, pg_catalog.unnest($2) AS c1) AS s \
             WHERE t.\"id\" OPERATOR(pg_catalog.=) s.c0"
        );
        assert_eq!(
            sql(false, Kind::SetDelete),
            "DELETE FROM ONLY \"s\".\"t\" AS t USING (SELECT u.c0::integer AS c0 FROM (SELECT pg_catalog.unnest($1) \
             AS c0) AS u) AS s WHERE t.\"id\" OPERATOR(pg_catalog.=) s.c0"
        );
        assert!(sql(true, Kind::SetReplace).contains("\"a\" = s.c1, \"b\" = s.c2, \"extra\" = DEFAULT FROM"));
    }

    #[test]
    fn arrays_of_a_set_come_in_what_holds_them() {
        let mut target = fixtures::target();
        (target.columns[1].type_oid, target.columns[1].array_oid) = (Oid(1007), Oid(0));
        target.columns[1].holder =
            Some(Holder { oid: Oid(16_500), array_oid: Oid(16_501), name: "pgsluice.array_of_int4".into() });
        let relation = fixtures::relation(proto::pgoutput::ReplicaIdentity::Default);
        let table = Table::map(1, relation, &target).unwrap();
        let shape = make("p".into(), &table, true, &Kind::SetUpdate(vec![true, true, false]), Search::Plain);
        assert!(
            shape
                .sql
                .contains("(SELECT pg_catalog.unnest($1) AS c0, (pg_catalog.unnest($2)).value AS c1) AS s")
        );
        assert_eq!(shape.parameter_types, [Oid(1007), Oid(16_501)]);
        let held = Element { oid: Oid(16_500), holds: Some(Oid(1007)) };
        assert_eq!(shape.element_types, [Oid(23).into(), held]);
        let row = make("p".into(), &table, true, &Kind::RowInsert, Search::Plain);
        assert_eq!(row.parameter_types[1], Oid(1007), "one row takes the array as it is");
    }

    #[test]
    fn rows_take_the_changed_columns_before_the_key() {
        assert_eq!(
            sql(false, Kind::RowUpdate(vec![true, false, true])),
            "UPDATE ONLY \"s\".\"t\" AS t SET \"id\" = $1, \"b\" = $2 WHERE t.\"id\" OPERATOR(pg_catalog.=) $3"
        );
    }

    #[test]
    fn a_statement_insists_on_its_rows() {
        let insisting = |kind| make("p".into(), &fixtures::table(), true, &kind, Search::Guarded).insisting();
        let begins_with = |kind, wanted: &str| insisting(kind).unwrap().sql.contains(wanted);
        assert!(begins_with(
            Kind::SetDelete,
            "RETURNING 1) SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) pg_catalog.cardinality($1) "
        ));
        assert!(begins_with(
            Kind::SetProbe,
            "LIMIT 1) SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 0 "
        ));
        assert!(begins_with(
            Kind::RowDelete,
            "RETURNING 1) SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 1 "
        ));
        assert!(begins_with(Kind::Copy, "COPY "));
        assert!(plain("t", "TRUNCATE t").insisting().is_none());
    }

    #[test]
    fn a_shape_is_made_once() {
        let (mut shapes, table) = (Shapes::new(), fixtures::table());
        let first = shapes.get(&table, true, Kind::SetInsert);
        assert!(Arc::ptr_eq(&first, &shapes.get(&table, true, Kind::SetInsert)));
        assert_ne!(first.name, shapes.get(&table, false, Kind::SetInsert).name);
    }
}
