//! Which pages a change of a table will need, expressed as look-ups.
//!
//! This module takes a mapped table and the target's catalog data about its indexes, and returns
//! SQL. It does no I/O: [`crate::indexes`] reads the catalogs and checks the plans.
//!
//! | change                      | `identity`                     | `all` adds                |
//! |-----------------------------|--------------------------------|---------------------------|
//! | INSERT                      | nothing                        | leaf in each B-tree       |
//! | UPDATE of no indexed column | identity's index and heap page | nothing: it can be HOT    |
//! | UPDATE of an indexed column | identity's index and heap page | leaf in each other B-tree |
//! | UPDATE of the identity      | as DELETE of the old           | as INSERT of the new      |
//! | DELETE                      | identity's index and heap page | nothing: left to VACUUM   |
//!
//! The leaves are those that the new values enter.
//!
//! The stream does not say which columns an UPDATE changed. So the look-up compares the new values
//! with the row that it has just read, byte by byte, as the server does when it decides about HOT.
//!
//! A look-up reads a leaf by asking for rows that lie both above and below the value (rule R1). The
//! descent ends at the leaf that the value will enter. Nothing matches, so no heap page is visited.
//! A NULL in a key, or a value that `CASE` withholds, reads nothing.
//!
//! Not looked up: indexes other than B-trees, expression and partial indexes, and indexes over
//! columns that the source does not send. Also rows that no unique key finds, and partitioned
//! tables of the target.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base::{Oid, quote_ident};
use plan::{
    Column, Element, Lookup as Located, Table, TargetColumn,
    search::{self, Search},
    sql::Shape,
};

use crate::gauge::Gauge;
use crate::options::PrefetchMode;

/// What a set does to its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It inserts them.
    Inserted,
    /// It updates them.
    Updated,
    /// It deletes them.
    Deleted,
}

/// A key column of a B-tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexColumn {
    pub(crate) name: String,
    /// Operators of the index's own operator class, as SQL.
    pub(crate) less: String,
    pub(crate) equal: String,
    pub(crate) greater: String,
    /// ` COLLATE ...`, if the index's collation differs from the column's.
    pub(crate) collate: String,
    /// The text behind the column in ORDER BY that gives the index's order.
    pub(crate) order: String,
}

/// A valid B-tree of the target that is not partial and has no expressions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BtreeIndex {
    pub(crate) oid: u32,
    /// The name as EXPLAIN shows it.
    pub(crate) name: String,
    pub(crate) keys: Vec<IndexColumn>,
}

/// The indexes of a table, as the catalogs describe them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Indexes {
    pub(crate) table_oid: u32,
    pub(crate) btrees: Vec<BtreeIndex>,
    /// Columns in indexes of any kind, their expressions and predicates, that keep an UPDATE from
    /// being HOT.
    pub(crate) hot_blocking: Vec<String>,
}

/// The pages that a change needs; [`TableLookups::lookups`] has the look-ups for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Need {
    /// The row of a key.
    Row,
    /// The row of a key, and the leaves that its new version enters.
    NewVersion,
    /// The leaves that a new row enters.
    NewRow,
}

/// A statement that reads pages for many rows.
#[derive(Debug)]
pub(crate) struct PageLookup {
    pub(crate) shape: Arc<Shape>,
    /// Positions, in the source's tuple, of the values that it takes.
    pub(crate) columns: Vec<usize>,
    /// Names of the indexes that it must use; with `reads_row` also the identity's.
    pub(crate) indexes: Vec<String>,
    pub(crate) reads_row: bool,
    /// The relation of the table_lookups that it reads; `None` for all of them.
    pub(crate) relation: Option<usize>,
    pub(crate) gauge: Gauge,
}

/// The look-ups of a table.
#[derive(Debug)]
pub(crate) struct TableLookups {
    /// Distinguishes layouts within one process.
    pub(crate) id: u64,
    /// The catalog data that it was made from.
    pub(crate) made_of: Indexes,
    /// The table and its B-trees.
    pub(crate) relations: Vec<u32>,
    pub(crate) row: Option<PageLookup>,
    pub(crate) new_version: Option<PageLookup>,
    pub(crate) new_row: Vec<PageLookup>,
    /// The look-up of `new_row` that was first seen to read.
    order: OnceLock<usize>,
}

const TEXT: Oid = Oid(25);
const TEXT_ARRAY: Oid = Oid(1009);

static TABLES: AtomicU64 = AtomicU64::new(0);

impl TableLookups {
    pub(crate) fn new(table: &Table, indexes: &Indexes, mode: PrefetchMode, binary: bool) -> TableLookups {
        let id = TABLES.fetch_add(1, Ordering::Relaxed);
        let relations =
            std::iter::once(indexes.table_oid).chain(indexes.btrees.iter().map(|index| index.oid));
        let mut table_lookups = TableLookups {
            id,
            made_of: indexes.clone(),
            relations: relations.collect(),
            row: None,
            new_version: None,
            new_row: Vec::new(),
            order: OnceLock::new(),
        };
        if table.partitioned {
            return table_lookups;
        }
        let making = Making { table, binary, id };
        if table.lookup == Located::UniqueKey {
            table_lookups.row = Some(making.row());
        }
        if mode == PrefetchMode::All {
            // Only indexes whose every value the source sends.
            let whole = || {
                let position = |key: &IndexColumn| making.position(&key.name);
                indexes.btrees.iter().enumerate().filter_map(move |(number, index)| {
                    Some((number, index, index.keys.iter().map(position).collect::<Option<Vec<_>>>()?))
                })
            };
            table_lookups.new_row =
                whole().map(|(number, index, columns)| making.new_row(number, index, columns)).collect();
            if table.lookup == Located::UniqueKey {
                table_lookups.new_version = making.new_version(whole().collect(), &indexes.hot_blocking);
            }
        }
        table_lookups
    }

    /// The need of rows that are `written`, with values for `columns`.
    pub(crate) fn need(&self, written: Written, columns: &[usize]) -> Need {
        let has = |lookup: &PageLookup| lookup.columns.iter().all(|column| columns.contains(column));
        match written {
            Written::Inserted => Need::NewRow,
            Written::Updated if self.new_version.as_ref().is_some_and(has) => Need::NewVersion,
            Written::Updated | Written::Deleted => Need::Row,
        }
    }

    /// The columns of the index, other than that of `key`, whose leaves had to be read for new
    /// rows. The choice stays: rows sorted by that index hardly read it any more, but rows sorted
    /// otherwise would.
    pub(crate) fn order(&self, key: &[usize]) -> Option<Vec<usize>> {
        let reads = |lookup: &PageLookup| lookup.columns != key && lookup.gauge.is_on();
        let at = match self.order.get() {
            Some(at) => *at,
            None => {
                let at = self.new_row.iter().position(reads)?;
                *self.order.get_or_init(|| at)
            }
        };
        self.new_row.get(at).map(|lookup| lookup.columns.clone())
    }

    /// The look-ups for a need.
    pub(crate) fn lookups(&self, need: Need) -> &[PageLookup] {
        match need {
            Need::Row => self.row.as_slice(),
            Need::NewVersion => self.new_version.as_slice(),
            Need::NewRow => &self.new_row,
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &PageLookup> {
        self.row.iter().chain(&self.new_version).chain(&self.new_row)
    }

    /// The statement that counts pages of these relations in the session's transaction: how many it
    /// requested, and how many were in memory.
    pub(crate) fn measure_sql(&self) -> String {
        let mut sql = "SELECT ".to_owned();
        for (number, oid) in self.relations.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(
                sql,
                "{comma}pg_catalog.pg_stat_get_xact_blocks_fetched({oid}), \
                 pg_catalog.pg_stat_get_xact_blocks_hit({oid})"
            )
            .expect("a string takes everything");
        }
        sql
    }
}

/// Makes the look-ups of one table.
struct Making<'t> {
    table: &'t Table,
    binary: bool,
    id: u64,
}

impl Making<'_> {
    fn position(&self, name: &str) -> Option<usize> {
        self.table.columns.iter().position(|column| column.target.name == name)
    }

    fn from(&self) -> String {
        format!("{}{} AS t", self.table.only(), self.table.sql)
    }

    /// The arrays as a relation `s(c0, c1, ...)`, sorted by the first `sorted` of them. Neighbours
    /// then lie close together in the index.
    fn sorted_arrays(&self, columns: &[usize], sorted: usize) -> String {
        let list =
            |item: &dyn Fn(usize) -> String, count| (0..count).map(item).collect::<Vec<_>>().join(", ");
        let element = |n: usize| format!("pg_catalog.unnest(${})", n + 1);
        let order = list(&|n| (n + 1).to_string(), sorted);
        if self.binary {
            let value = |n: usize| self.column(columns[n]).target.value_of(element(n));
            let rows = list(&|n| format!("{} AS c{n}", value(n)), columns.len());
            return format!("(SELECT {rows} ORDER BY {order}) AS s");
        }
        let rows = list(&|n| format!("{} AS c{n}", element(n)), columns.len());
        let cast = |n| format!("u.c{n}::{} AS c{n}", self.column(columns[n]).target.type_name);
        let casts = list(&cast, columns.len());
        format!("(SELECT {casts} FROM (SELECT {rows}) AS u ORDER BY {order}) AS s")
    }

    fn column(&self, position: usize) -> &Column {
        &self.table.columns[position]
    }

    fn lookup(&self, what: &str, sql: String, columns: Vec<usize>) -> PageLookup {
        let targets = columns.iter().map(|&position| &self.column(position).target);
        let (parameter_types, element_types) = if self.binary {
            targets.map(TargetColumn::parameter).unzip()
        } else {
            targets.map(|_| (TEXT_ARRAY, Element::from(TEXT))).unzip()
        };
        let name = format!("prefetch{}_{what}", self.id);
        PageLookup {
            shape: Arc::new(Shape { name, sql, parameter_types, element_types, by_index: None }),
            columns,
            indexes: Vec::new(),
            reads_row: false,
            relation: None,
            gauge: Gauge::new(),
        }
    }

    /// Finds the row of a key, whose values come first, with `more` of its columns, as `o`. OFFSET
    /// makes it one query for each row of the set; as a join it might read the whole table. It
    /// selects the row's place, which no index has, so that the heap page is read even if all of it
    /// is visible.
    fn found(&self, more: &str) -> String {
        let (from, value) = (self.from(), |n: usize| format!("s.c{n}"));
        let still = match &self.table.key_index {
            Some(index) if Search::of_row(self.table) == Search::Ordered => {
                format!("t.ctid = ({})", search::place(self.table, index, &value))
            }
            _ => search::is_key(self.table, "t", &value),
        };
        format!("(SELECT t.ctid{more} FROM {from} WHERE {still} OFFSET 0) AS o")
    }

    fn row(&self) -> PageLookup {
        let arrays = self.sorted_arrays(&self.table.key, self.table.key.len());
        let sql =
            format!("SELECT pg_catalog.count(o.ctid) FROM {arrays} CROSS JOIN LATERAL {}", self.found(""));
        PageLookup { reads_row: true, ..self.lookup("row", sql, self.table.key.clone()) }
    }

    fn new_row(&self, number: usize, index: &BtreeIndex, columns: Vec<usize>) -> PageLookup {
        let arrays = self.sorted_arrays(&columns, columns.len());
        let values: Vec<String> = (0..columns.len()).map(|n| format!("s.c{n}")).collect();
        let leaf = self.leaf(index, &values);
        let sql = format!("SELECT FROM {arrays} CROSS JOIN LATERAL ({leaf}) AS i");
        PageLookup {
            indexes: vec![index.name.clone()],
            // The table is relation 0.
            relation: Some(number + 1),
            ..self.lookup(&format!("new_row{number}"), sql, columns)
        }
    }

    /// Finds nothing, at the leaf where `values` belong. Only this index gives the order without
    /// sorting, and LIMIT makes it one query for each row.
    fn leaf(&self, index: &BtreeIndex, values: &[String]) -> String {
        let last = index.keys.len() - 1;
        let (mut condition, mut order) = (String::new(), String::new());
        for (number, (key, value)) in index.keys.iter().zip(values).enumerate() {
            let column = format!("t.{}{}", quote_ident(&key.name), key.collate);
            let written = if number < last {
                write!(condition, "{column} {} {value} AND ", key.equal)
            } else {
                order = format!("{column} {}", key.order);
                write!(condition, "{column} {} {value} AND {column} {} {value}", key.greater, key.less)
            };
            written.expect("a string takes everything");
        }
        format!("SELECT FROM {} WHERE {condition} ORDER BY {order} LIMIT 1", self.from())
    }

    /// `None` if a new version enters no index but the identity's own.
    fn new_version(
        &self,
        indexes: Vec<(usize, &BtreeIndex, Vec<usize>)>,
        hot_blocking: &[String],
    ) -> Option<PageLookup> {
        let key = &self.table.key;
        let is_identity = |columns: &[usize]| {
            let mut sorted = columns.to_vec();
            sorted.sort_unstable();
            sorted == *key
        };
        let entered: Vec<_> = indexes.iter().filter(|(_, _, columns)| !is_identity(columns)).collect();
        let mut compared: Vec<usize> = hot_blocking.iter().filter_map(|name| self.position(name)).collect();
        compared.retain(|position| !key.contains(position));
        compared.sort_unstable();
        if entered.is_empty() || compared.is_empty() {
            return None;
        }
        let columns = [key.as_slice(), &compared].concat();
        let place = |position: &usize| columns.iter().position(|column| column == position);
        let mut sql = format!(
            "SELECT pg_catalog.count(o.ctid) FROM {} CROSS JOIN LATERAL {}",
            self.sorted_arrays(&columns, key.len()),
            self.found(&format!(", {} AS moved", self.differs(&compared)))
        );
        for (number, index, positions) in &entered {
            // Every indexed column blocks HOT, so each is in the list.
            let places: Vec<usize> = positions.iter().map(place).collect::<Option<_>>()?;
            let values: Vec<String> =
                places.iter().map(|n| format!("CASE WHEN o.moved THEN s.c{n} END")).collect();
            write!(sql, " LEFT JOIN LATERAL ({}) AS i{number} ON true", self.leaf(index, &values))
                .expect("a string takes everything");
        }
        let indexes = entered.iter().map(|(_, index, _)| index.name.clone()).collect();
        Some(PageLookup { reads_row: true, indexes, ..self.lookup("new_version", sql, columns) })
    }

    /// Whether the row's values differ from the new ones in any byte. The types must agree, also
    /// beneath domains.
    fn differs(&self, compared: &[usize]) -> String {
        let columns = |item: &dyn Fn(usize, &Column) -> String| {
            let items = compared.iter().enumerate().map(|(n, &position)| item(n, self.column(position)));
            items.collect::<Vec<_>>().join(", ")
        };
        let old = columns(&|_, column| format!("t.{}::{}", column.sql, column.target.type_name));
        let first = self.table.key.len();
        let new = columns(&|n, column| format!("s.c{}::{}", first + n, column.target.type_name));
        format!("pg_catalog.record_image_ne(ROW({old}), ROW({new}))")
    }
}

#[cfg(test)]
pub(crate) mod tests {

    use plan::fixtures;

    use super::*;

    pub(crate) fn index(oid: u32, name: &str, columns: &[&str]) -> BtreeIndex {
        let operator = |sign: &str| format!("OPERATOR(pg_catalog.{sign})");
        let key = |name: &&str| IndexColumn {
            name: (*name).to_owned(),
            less: operator("<"),
            equal: operator("="),
            greater: operator(">"),
            collate: String::new(),
            order: format!("USING {} NULLS LAST", operator("<")),
        };
        BtreeIndex { oid, name: name.to_owned(), keys: columns.iter().map(key).collect() }
    }

    pub(crate) fn indexes(btrees: &[(&str, &[&str])], hot_blocking: &[&str]) -> Indexes {
        let btrees = (1..).zip(btrees).map(|(oid, (name, columns))| index(oid, name, columns)).collect();
        let hot_blocking = hot_blocking.iter().map(|name| (*name).to_owned()).collect();
        Indexes { table_oid: 100, btrees, hot_blocking }
    }

    fn table_lookups(mode: PrefetchMode, indexes: &Indexes) -> TableLookups {
        TableLookups::new(&fixtures::table(), indexes, mode, true)
    }

    /// The indexes whose leaves are read for a need.
    fn entered(table_lookups: &TableLookups, need: Need) -> Vec<String> {
        table_lookups.lookups(need).iter().flat_map(|lookup| lookup.indexes.clone()).collect()
    }

    #[test]
    fn r1_an_insert_enters_every_btree_and_an_update_all_but_the_identitys() {
        let of = indexes(&[("t_pkey", &["id"]), ("t_a", &["a"]), ("t_ba", &["b", "a"])], &["id", "a", "b"]);
        let all = table_lookups(PrefetchMode::All, &of);
        assert_eq!(entered(&all, Need::NewRow), ["t_pkey", "t_a", "t_ba"]);
        assert_eq!(entered(&all, Need::NewVersion), ["t_a", "t_ba"]);
        assert!(entered(&all, Need::Row).is_empty() && all.row.as_ref().unwrap().reads_row);
        assert_eq!(all.new_version.as_ref().unwrap().columns, [0, 1, 2]);
        assert_eq!(all.new_row[2].columns, [2, 1]);

        let identity = table_lookups(PrefetchMode::Identity, &of);
        assert!(identity.row.is_some() && identity.new_version.is_none() && identity.new_row.is_empty());
    }

    #[test]
    fn new_rows_are_written_in_the_order_of_an_index_that_reads_and_stay_so() {
        let of = indexes(&[("t_pkey", &["id"]), ("t_a", &["a"]), ("t_ba", &["b", "a"])], &["id", "a", "b"]);
        let all = table_lookups(PrefetchMode::All, &of);
        let now = std::time::Instant::now();
        let note = |at: usize, reads| all.new_row[at].gauge.note(10_000, reads, now);
        note(0, 10_000);
        assert_eq!(all.order(&[0]), None, "the key's order is what they have");
        note(2, 10_000);
        assert_eq!(all.order(&[0]), Some(vec![2, 1]));
        note(1, 10_000);
        note(2, 0);
        assert_eq!(all.order(&[0]), Some(vec![2, 1]), "it reads no more because of that order");
    }

    #[test]
    fn r1_an_update_that_can_only_be_hot_reads_no_leaf() {
        let all = table_lookups(PrefetchMode::All, &indexes(&[("t_pkey", &["id"])], &["id"]));
        assert!(all.row.is_some() && all.new_version.is_none());
        assert_eq!(entered(&all, Need::NewRow), ["t_pkey"]);
        // A new version can also enter every index because of a column that only an expression
        // uses, so that column is compared.
        let of = indexes(&[("t_pkey", &["id"]), ("t_a", &["a"])], &["id", "a", "b"]);
        assert_eq!(table_lookups(PrefetchMode::All, &of).new_version.unwrap().columns, [0, 1, 2]);
    }

    #[test]
    fn an_index_over_a_column_that_is_not_sent_is_left_alone() {
        let all = table_lookups(
            PrefetchMode::All,
            &indexes(&[("t_pkey", &["id"]), ("t_extra", &["a", "extra"])], &["id", "a", "extra"]),
        );
        assert_eq!(entered(&all, Need::NewRow), ["t_pkey"]);
        assert!(all.new_version.is_none());
    }

    #[test]
    fn a_table_without_a_unique_key_or_with_partitions_finds_no_row() {
        let of = indexes(&[("t_a", &["a"])], &["a"]);
        let mut target = fixtures::target();
        target.unique_keys.clear();
        let relation = fixtures::relation(proto::pgoutput::ReplicaIdentity::Default);
        let table = Table::map(1, Arc::clone(&relation), &target).unwrap();
        let keyless = TableLookups::new(&table, &of, PrefetchMode::All, true);
        assert!(keyless.row.is_none() && keyless.new_version.is_none());
        assert_eq!(entered(&keyless, Need::NewRow), ["t_a"]);
        target.partitioned = true;
        let partitioned =
            TableLookups::new(&Table::map(1, relation, &target).unwrap(), &of, PrefetchMode::All, true);
        assert_eq!(partitioned.all().count(), 0);
    }

    #[test]
    fn the_forms_of_the_statements() {
        let all = table_lookups(PrefetchMode::All, &indexes(&[("t_ba", &["b", "a"])], &["a", "b"]));
        assert_eq!(
            all.new_row[0].shape.sql,
            "SELECT FROM (SELECT pg_catalog.unnest($1) AS c0, pg_catalog.unnest($2) AS c1 ORDER BY 1, 2) AS s \
             CROSS JOIN LATERAL (SELECT FROM ONLY \"s\".\"t\" AS t WHERE t.\"b\" OPERATOR(pg_catalog.=) s.c0 \
             AND t.\"a\" OPERATOR(pg_catalog.>) s.c1 AND t.\"a\" OPERATOR(pg_catalog.<) s.c1 \
             ORDER BY t.\"a\" USING OPERATOR(pg_catalog.<) NULLS LAST LIMIT 1) AS i"
        );
        let text = TableLookups::new(&fixtures::table(), &Indexes::default(), PrefetchMode::Identity, false);
        let row = text.row.unwrap();
        assert_eq!(
            row.shape.sql,
            "SELECT pg_catalog.count(o.ctid) FROM (SELECT u.c0::integer AS c0 FROM (SELECT pg_catalog.unnest($1) \
             AS c0) AS u ORDER BY 1) AS s CROSS JOIN LATERAL (SELECT t.ctid FROM ONLY \"s\".\"t\" AS t WHERE \
             t.\"id\" OPERATOR(pg_catalog.=) s.c0 OFFSET 0) AS o"
        );
        assert_eq!(row.shape.parameter_types, [TEXT_ARRAY]);
    }
}
