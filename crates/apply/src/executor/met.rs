//! The rows of the target that a change meets, locked and with their last writer, as SQL.
//!
//! Two questions are asked about a change that could not be applied as it came:
//!
//! - *Which rows hold its unique keys?* One query for each unique index, expressions and predicates
//!   included. The new row is made as the server would make it: values that an UPDATE does not send
//!   come from the row it changes, generated columns from their expressions. Columns that only the
//!   target has count as NULL in a new row, so a default value is not looked for.
//! - *Who wrote the row that it is for?*
//!
//! Both lock what they find, so what is decided about a row is still true when it is written.

use std::fmt::Write;

use base::{Oid, PgTimestamp, Xid};
use conflict::{ColumnValues, Commit, Met, Origin, Values, Written};

use plan::Table;
use plan::sql::{Kind, last_writer, located, row_parameters};
use proto::pgoutput::Tuple;
use txn::Op;

/// Microseconds from the Unix epoch to PostgreSQL's.
const PG_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// A unique index of the target's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UniqueIndex {
    pub(super) name: String,
    predicate: Option<String>,
    nulls_distinct: bool,
    columns: Vec<IndexColumn>,
}

/// A column of it, as SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IndexColumn {
    expression: String,
    equality: String,
    collate: String,
}

/// A column of the target's table, as SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TableColumn {
    name: String,
    type_name: String,
    /// The expression that generates it.
    generated: Option<String>,
}

/// What a table's unique keys are made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UniqueKeys {
    pub(super) indexes: Vec<UniqueIndex>,
    columns: Vec<TableColumn>,
}

/// Rows as text.
type Rows = Vec<Vec<Option<String>>>;

/// Asks for the unique indexes of a table, a row for each column of each.
pub(super) fn ask_for_indexes(table: Oid) -> String {
    format!(
        "SELECT c.relname, pg_catalog.pg_get_expr(i.indpred, i.indrelid), \
         COALESCE((pg_catalog.to_jsonb(i) OPERATOR(pg_catalog.->>) 'indnullsnotdistinct')::pg_catalog.bool, false), \
         pg_catalog.pg_get_indexdef(i.indexrelid, k.n, false), \
         pg_catalog.format('OPERATOR(%I.%s)', s.nspname, o.oprname), \
         CASE WHEN i.indcollation[k.n - 1] OPERATOR(pg_catalog.<>) 0 THEN (SELECT pg_catalog.format(' COLLATE %I.%I', \
         cn.nspname, co.collname) FROM pg_catalog.pg_collation co JOIN pg_catalog.pg_namespace cn \
         ON cn.oid OPERATOR(pg_catalog.=) co.collnamespace \
         WHERE co.oid OPERATOR(pg_catalog.=) i.indcollation[k.n - 1]) END \
         FROM pg_catalog.pg_index i \
         JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.indexrelid \
         CROSS JOIN LATERAL pg_catalog.generate_series(1, i.indnkeyatts::pg_catalog.int4) AS k(n) \
         JOIN pg_catalog.pg_opclass oc ON oc.oid OPERATOR(pg_catalog.=) i.indclass[k.n - 1] \
         JOIN pg_catalog.pg_amop a ON a.amopfamily OPERATOR(pg_catalog.=) oc.opcfamily \
         AND a.amoplefttype OPERATOR(pg_catalog.=) oc.opcintype \
         AND a.amoprighttype OPERATOR(pg_catalog.=) oc.opcintype AND a.amopstrategy OPERATOR(pg_catalog.=) 3 \
         JOIN pg_catalog.pg_operator o ON o.oid OPERATOR(pg_catalog.=) a.amopopr \
         JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) o.oprnamespace \
         WHERE i.indrelid OPERATOR(pg_catalog.=) {table} AND i.indisunique AND i.indislive \
         ORDER BY i.indexrelid, k.n"
    )
}

/// Asks for the columns of a table.
pub(super) fn ask_for_columns(table: Oid) -> String {
    format!(
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, NULL), \
         CASE WHEN a.attgenerated OPERATOR(pg_catalog.<>) '' \
         THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END \
         FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d \
         ON d.adrelid OPERATOR(pg_catalog.=) a.attrelid AND d.adnum OPERATOR(pg_catalog.=) a.attnum \
         WHERE a.attrelid OPERATOR(pg_catalog.=) {table} AND a.attnum OPERATOR(pg_catalog.>) 0 \
         AND NOT a.attisdropped ORDER BY a.attnum"
    )
}

impl UniqueKeys {
    /// Reads the answers to [`ask_for_indexes`] and [`ask_for_columns`].
    pub(super) fn read(indexes: Rows, columns: Rows) -> UniqueKeys {
        let mut keys = UniqueKeys::default();
        for row in indexes {
            let Ok([Some(name), predicate, not_distinct, Some(expression), Some(equality), collate]) =
                <[Option<String>; 6]>::try_from(row)
            else {
                continue;
            };
            let column = IndexColumn { expression, equality, collate: collate.unwrap_or_default() };
            match keys.indexes.last_mut().filter(|index| index.name == name) {
                Some(index) => index.columns.push(column),
                None => keys.indexes.push(UniqueIndex {
                    name,
                    predicate,
                    nulls_distinct: not_distinct.as_deref() != Some("t"),
                    columns: vec![column],
                }),
            }
        }
        for row in columns {
            if let Ok([Some(name), Some(type_name), generated]) = <[Option<String>; 3]>::try_from(row) {
                keys.columns.push(TableColumn { name: base::quote_ident(&name), type_name, generated });
            }
        }
        keys
    }

    /// The new row of a change as a query, whose parameters are those of the change's own
    /// statement. For an UPDATE it also has the place of the row that is changed.
    fn new_row(&self, table: &Table, kind: &Kind) -> String {
        let positions = row_parameters(table, kind);
        let sent = match kind {
            Kind::RowUpdate(present) => present.iter().filter(|present| **present).count(),
            _ => positions.len(),
        };
        let given = |name: &str| positions[..sent].iter().position(|&at| table.columns[at].sql == name);
        let is_update = matches!(kind, Kind::RowUpdate(_));
        let mut values = String::new();
        for TableColumn { name, type_name, .. } in self.columns.iter().filter(|c| c.generated.is_none()) {
            let value = match given(name) {
                Some(n) => format!("${}", n + 1),
                None if is_update => format!("t.{name}"),
                None => format!("NULL::{type_name}"),
            };
            write!(values, ", {value} AS {name}").expect("a string takes it");
        }
        let plain = match is_update {
            true => {
                let condition = located(table, sent, &|n| format!("${}", n + 1));
                format!(
                    "SELECT t.tableoid AS pgsluice_part, t.ctid AS pgsluice_place{values} FROM {}{} AS t WHERE {condition}",
                    table.only(),
                    table.sql
                )
            }
            false => format!("SELECT {}", values.trim_start_matches(", ")),
        };
        let mut generated = String::new();
        for column in &self.columns {
            if let Some(expression) = &column.generated {
                write!(generated, ", ({expression}) AS {}", column.name).expect("a string takes it");
            }
        }
        if generated.is_empty() { plain } else { format!("SELECT g.*{generated} FROM ({plain}) AS g") }
    }

    /// What to read of a row's values, and of its key in `index`.
    pub(super) fn listed(&self, index: Option<&UniqueIndex>, with: With) -> Listed {
        if !with.values {
            return Listed::default();
        }
        let key = index.into_iter().flat_map(|index| &index.columns);
        let key: Vec<&str> = key.map(|column| column.expression.as_str()).collect();
        let mut sql = String::new();
        self.columns.iter().for_each(|column| sql.extend([", t.", &column.name]));
        key.iter().for_each(|expression| sql.extend([", (", expression, ")"]));
        let columns = self.columns.iter().map(|column| unquoted(&column.name)).collect();
        Listed { sql, columns, key: key.into_iter().map(unquoted).collect() }
    }

    /// The query for the holder of the new row's key in `index`.
    pub(super) fn holder(
        &self,
        table: &Table,
        index: &UniqueIndex,
        kind: &Kind,
        with: With,
    ) -> (String, Listed) {
        let listed = self.listed(Some(index), with);
        let mut made = String::new();
        let mut found = String::new();
        for (n, IndexColumn { expression, equality, collate }) in index.columns.iter().enumerate() {
            write!(made, ", ({expression}) AS pgsluice_key{n}").expect("a string takes it");
            let value = format!("(SELECT n.pgsluice_key{n} FROM n)");
            let equal = format!("({expression}){collate} {equality} {value}");
            match index.nulls_distinct {
                true => write!(found, " AND {equal}"),
                false => {
                    write!(found, " AND ({equal} OR (({expression}) IS NULL AND {value} IS NULL))")
                }
            }
            .expect("a string takes it");
        }
        let within =
            index.predicate.as_ref().map_or_else(String::new, |predicate| format!(" AND ({predicate})"));
        let mut place = String::new();
        if matches!(kind, Kind::RowUpdate(_)) {
            made.push_str(", t.pgsluice_part, t.pgsluice_place");
            place.push_str(
                " AND NOT (t.tableoid OPERATOR(pg_catalog.=) (SELECT n.pgsluice_part FROM n) \
                 AND t.ctid OPERATOR(pg_catalog.=) (SELECT n.pgsluice_place FROM n))",
            );
        }
        let sql = format!(
            "WITH n AS MATERIALIZED (SELECT {} FROM ({}) AS t WHERE true{within}) \
             {} WHERE EXISTS (SELECT FROM n){found}{within}{place} LIMIT 1 FOR UPDATE OF t",
            made.trim_start_matches(", "),
            self.new_row(table, kind),
            locked(table, with, &listed)
        );
        (sql, listed)
    }
}

/// The name of a column as it is in the catalogs. An expression stays as it is.
fn unquoted(sql: &str) -> String {
    match sql.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(name) => name.replace("\"\"", "\""),
        None => sql.to_owned(),
    }
}

/// What to read of a row besides its place and its writer's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct With {
    /// The writer's origin and time: the server keeps them (`track_commit_timestamp`).
    pub(super) commit: bool,
    /// The row itself.
    pub(super) values: bool,
}

/// The values that a query lists behind a row's place and writer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// The list itself, each with a comma before it.
    sql: String,
    /// The columns of the row.
    columns: Vec<String>,
    /// The columns and expressions of the index's key.
    key: Vec<String>,
}

impl Listed {
    /// Reads the values that were listed; `None` if none were.
    fn read(&self, values: Vec<Option<String>>) -> Option<RowValues> {
        if self.columns.is_empty() || values.len() != self.columns.len() + self.key.len() {
            return None;
        }
        let mut named = self.columns.iter().chain(&self.key).cloned().zip(values);
        let row = named.by_ref().take(self.columns.len()).collect();
        let key: Vec<_> = named.collect();
        Some(RowValues {
            row: ColumnValues { columns: row, whole: true },
            key: (!key.is_empty()).then_some(ColumnValues { columns: key, whole: false }),
        })
    }
}

/// The values of a row of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowValues {
    row: ColumnValues,
    /// Its key in the unique index by which it was found.
    key: Option<ColumnValues>,
}

/// The values of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ChangeValues {
    /// The new row, as far as it was sent.
    pub(super) remote_row: Option<ColumnValues>,
    pub(super) replica_identity: Option<ColumnValues>,
    /// The columns of the replica identity by which the target finds the row.
    pub(super) key: Option<ColumnValues>,
}

impl ChangeValues {
    /// Together with those of the row that the change met, if it met one.
    pub(super) fn with(&self, row: Option<&RowValues>) -> Values {
        let key = row.and_then(|row| row.key.as_ref()).or(self.key.as_ref());
        Values {
            key: key.cloned(),
            local_row: row.map(|row| row.row.clone()),
            remote_row: self.remote_row.clone(),
            replica_identity: self.replica_identity.clone(),
        }
    }
}

/// The beginning of a query for a row `t`. [`Row::read`] reads its answer.
fn locked(table: &Table, With { commit, .. }: With, listed: &Listed) -> String {
    let commit = match commit {
        true => last_writer().join(", "),
        false => "NULL, NULL, NULL, NULL".to_owned(),
    };
    let values = &listed.sql;
    format!("SELECT t.tableoid, t.ctid, t.xmin, {commit}{values} FROM {}{} AS t", table.only(), table.sql)
}

/// The query for the row that an UPDATE or DELETE is for. Its parameters are the key's.
pub(super) fn own_row(table: &Table, with: With, listed: &Listed) -> String {
    let condition = located(table, 0, &|n| format!("${}", n + 1));
    format!("{} WHERE {condition} FOR UPDATE OF t", locked(table, with, listed))
}

/// The values by which the row of an UPDATE or DELETE is found.
pub(super) fn old_values(op: &Op) -> Option<&Tuple> {
    match op {
        Op::Insert(_) => None,
        Op::Update { old: None, new } => Some(new),
        Op::Update { old: Some(old), .. } | Op::Delete(old) => Some(&old.tuple),
    }
}

/// Who wrote a row of the target last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LastWriter {
    pub(super) written: Written,
    /// The replication origin; 0 for a session of the target.
    pub(super) origin: Option<u32>,
}

impl LastWriter {
    /// Reads a row's `xmin` and [`last_writer`].
    pub(super) fn read([xmin, micros, time_text, origin, name]: [Option<String>; 5]) -> Option<LastWriter> {
        let origin: Option<u32> = origin.and_then(|origin| origin.parse().ok());
        let time = micros.and_then(|micros| micros.parse::<i64>().ok());
        let commit = time.zip(time_text).zip(origin).map(|((micros, time_text), origin)| Commit {
            origin: match (origin, name) {
                (0, _) => Origin::Local,
                (_, Some(name)) => Origin::Named(name),
                (_, None) => Origin::Dropped,
            },
            time: PgTimestamp(micros - PG_EPOCH_MICROS),
            time_text,
        });
        Some(LastWriter { written: Written { xid: Xid(xmin?.parse().ok()?), commit }, origin })
    }
}

/// A row of the target that is locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// Its place, as SQL: a condition on `t`.
    pub(super) place: String,
    pub(super) writer: LastWriter,
    /// Its values, if asked for.
    values: Option<RowValues>,
}

impl Row {
    /// Reads the answer to a query that [`locked`] begins; `None` if no row was found.
    pub(super) fn read(mut answer: Vec<Option<String>>, listed: &Listed) -> Option<Row> {
        let values = answer.split_off(answer.len().min(7));
        let [part, place, xmin, micros, time_text, origin, origin_name] =
            <[Option<String>; 7]>::try_from(answer).ok()?;
        let writer = LastWriter::read([xmin, micros, time_text, origin, origin_name])?;
        let place = format!(
            "t.tableoid OPERATOR(pg_catalog.=) {} AND t.ctid OPERATOR(pg_catalog.=) '{}'::pg_catalog.tid",
            part?, place?
        );
        Some(Row { place, writer, values: listed.read(values) })
    }

    pub(super) fn met(&self, index: Option<String>, change: Option<&ChangeValues>) -> Met {
        let values = change.map(|change| change.with(self.values.as_ref()));
        Met { index, written: Some(self.writer.written.clone()), values }
    }
}
