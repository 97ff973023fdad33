//! Rule Q1 on real servers: statements look rows up, whatever the table looked like when they were
//! planned.
//!
//! The tests judge a plan by the rows that it visits, not by its text. Each statement is planned in
//! one state of the table: empty, tiny, truncated, dead rows only, never counted, large. It is
//! executed when the table has another size, in one transaction that fills the table, so no ANALYZE
//! can help. The session itself counts the rows and index entries that it visited.
//!
//! `PGSLUICE_PLAN_ROWS=1000000` makes tables of a million rows; `PGSLUICE_TEST_MAJORS=all` tests
//! all majors.

use std::sync::Arc;

use base::Oid;
use client::{ConnInfo, Replication, Wire};
use plan::{
    Lookup, Mask, Table,
    sql::{Kind, Shape, Shapes, bags},
};
use proto::pgoutput::{Relation, RelationColumn, ReplicaIdentity};
use testkit::{Cluster, Major};

use crate::mapping::Mappings;
use crate::sizes::{answer, question};
use crate::target::session_settings;

/// Number of rows for which a statement is executed.
const SET: usize = 100;
/// Maximum visits for each row. An index finds the row, and the look-up may meet each of its
/// versions of this transaction, in each index.
const VISITS: usize = 40;

/// A table `t` with the key's columns, `v` and `w`.
struct Sample {
    name: &'static str,
    ddl: &'static str,
    /// Columns of the identity; empty for REPLICA IDENTITY FULL.
    key: &'static [&'static str],
    /// SQL for the values of all columns of row `i`.
    values: &'static str,
}

const SAMPLES: &[Sample] = &[
    Sample {
        name: "a key alone",
        ddl: "CREATE TABLE t (id bigint PRIMARY KEY, v int, w text)",
        key: &["id"],
        values: "i, i % 7, 'w' || i",
    },
    Sample {
        name: "a column of the key behind another one",
        ddl: "CREATE TABLE t (id bigint PRIMARY KEY, v int, w text); CREATE INDEX ON t (v, id)",
        key: &["id"],
        values: "i, i % 7, 'w' || i",
    },
    Sample {
        name: "two columns alone",
        ddl: "CREATE TABLE t (k int, id bigint, v int, w text, PRIMARY KEY (k, id))",
        key: &["k", "id"],
        values: "i % 2, i, i % 7, 'w' || i",
    },
    Sample {
        name: "two columns with rivals",
        ddl: "CREATE TABLE t (k int, id bigint, v int, w text, PRIMARY KEY (k, id)); CREATE INDEX ON t (k); \
              CREATE INDEX ON t (k, v); CREATE INDEX ON t (v, id)",
        key: &["k", "id"],
        values: "i % 2, i, i % 7, 'w' || i",
    },
    Sample {
        name: "an index that is not the primary key, in three columns and two directions",
        ddl: "CREATE TABLE t (a int NOT NULL, b text NOT NULL, c bigint NOT NULL, v int, w text); \
              CREATE UNIQUE INDEX i ON t (b DESC, c, a NULLS FIRST); ALTER TABLE t REPLICA IDENTITY USING INDEX i; \
              CREATE INDEX ON t (b); CREATE INDEX ON t (v, a)",
        key: &["a", "b", "c"],
        values: "i % 2, 'b' || i % 3, i, i % 7, 'w' || i",
    },
    Sample {
        name: "domains and enums",
        ddl: "DROP DOMAIN IF EXISTS d; CREATE DOMAIN d AS varchar(20); CREATE TABLE t (id d PRIMARY KEY, v int, w text)",
        key: &["id"],
        values: "'x' || i, i % 7, 'w' || i",
    },
    Sample {
        name: "arrays",
        ddl: "CREATE TABLE t (id int[], k int, v int, w text, PRIMARY KEY (id, k))",
        key: &["id", "k"],
        values: "ARRAY[i, 1], i % 5, i % 7, 'w' || i",
    },
    Sample {
        name: "partitions",
        ddl: "CREATE TABLE t (id bigint, k int, v int, w text, PRIMARY KEY (id, k)) PARTITION BY HASH (k); \
              CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0); \
              CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        key: &["id", "k"],
        values: "i, i % 5, i % 7, 'w' || i",
    },
    Sample {
        name: "no key and an index",
        ddl: "CREATE TABLE t (id bigint, v int, w text); CREATE INDEX ON t (id)",
        key: &[],
        values: "i, i % 7, 'w' || i",
    },
    Sample {
        name: "no key and no index",
        ddl: "CREATE TABLE t (id bigint, v int, w text)",
        key: &[],
        values: "i, i % 7, 'w' || i",
    },
];

/// States of the table in which statements are planned; `FILL n` stands for rows up to `n`.
const STATES: &[(&str, &[&str])] = &[
    ("never counted", &[]),
    ("counted empty", &["ANALYZE t"]),
    ("counted one row", &["FILL 1", "ANALYZE t"]),
    ("counted three rows", &["FILL 3", "ANALYZE t"]),
    ("truncated", &["FILL 1000", "ANALYZE t", "TRUNCATE t"]),
    ("dead rows only", &["FILL 3000", "DELETE FROM t", "FILL 1", "VACUUM (TRUNCATE off, ANALYZE) t"]),
    ("counted large", &["FILL max", "ANALYZE t", "DELETE FROM t"]),
];

/// Rows of a table when statements are executed. A whole scan for each row of a set would be fifty
/// times the limit.
fn sizes() -> Vec<usize> {
    match std::env::var("PGSLUICE_PLAN_ROWS") {
        Ok(rows) => vec![0, 1, 1_000, rows.parse().expect("PGSLUICE_PLAN_ROWS is a number")],
        Err(_) => vec![0, 1, 2_000],
    }
}

/// Rows of a large-looking table.
const MANY: usize = 12_000;

#[test]
fn q1_statements_look_rows_up_whatever_the_table_looked_like() {
    Major::each(2, |major| {
        let cluster = Cluster::builder(major).setting("autovacuum", "off");
        let cluster = cluster.setting("track_commit_timestamp", "on").start().expect("a cluster");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut failures = Vec::new();
            for sample in SAMPLES {
                for state in STATES {
                    failures.extend(Stage::set(&cluster, sample, state).await.run().await);
                }
            }
            assert!(failures.is_empty(), "{}", failures.join("\n"));
        });
    });
}

/// One table in one state, and the sessions that use it.
struct Stage<'s> {
    sample: &'s Sample,
    state: &'static str,
    /// A session with the settings of one that applies.
    applies: Wire,
    /// A session with the settings of one that looks rows up for prefetch.
    looks_up: Wire,
    table: Arc<Table>,
    /// The size of the table as the applier estimates it, which decides whether sets use the form
    /// for large tables.
    rows: f64,
    failures: Vec<String>,
}

/// A prepared statement and its arguments.
struct Prepared {
    name: String,
    columns: Vec<usize>,
    is_set: bool,
    /// Statements to run before and after it.
    around: Option<(&'static str, &'static str)>,
}

impl Stage<'_> {
    async fn set<'s>(cluster: &Cluster, sample: &'s Sample, state: &(&'static str, &[&str])) -> Stage<'s> {
        let url = cluster.url("postgres");
        let info = ConnInfo::parse(&url).expect("a URL");
        let session = |settings: Vec<(&'static str, &'static str)>| {
            let info = info.clone();
            async move { Wire::connect(&info, "test", Replication::Off, &settings).await.expect("a session") }
        };
        let mut setup = session(vec![("search_path", "public")]).await;
        let mut run =
            async |sql: &str| drop(setup.query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}")));
        run("DROP TABLE IF EXISTS t").await;
        run(sample.ddl).await;
        for step in state.1 {
            match step.strip_prefix("FILL ") {
                Some(rows) => {
                    let rows = if rows == "max" { MANY } else { rows.parse().expect("a number") };
                    run(&fill(sample, rows)).await;
                }
                None => run(step).await,
            }
        }
        let mut applies = session(session_settings("off")).await;
        let looks_up = session(prefetch::on_servers::settings()).await;
        let table = map(&url, sample).await;
        let told = applies.query(&question(&[table.oid])).await.expect("an answer");
        let rows = answer(&told[0]).expect("a size").rows;
        Stage { sample, state: state.0, applies, looks_up, table, rows, failures: Vec::new() }
    }

    /// Runs all statements; returns those that visited too much.
    async fn run(mut self) -> Vec<String> {
        let statements = self.prepare().await;
        let look_ups = self.prepare_look_ups().await;
        for rows in sizes() {
            self.execute_all(&statements, rows, true).await;
            self.execute_all(&look_ups, rows, false).await;
        }
        self.failures
    }

    /// Prepares every statement of the applier, and has the server plan it.
    async fn prepare(&mut self) -> Vec<Prepared> {
        let (table, mut shapes) = (Arc::clone(&self.table), Shapes::new());
        shapes.looks(&table, self.rows);
        let (all, present): (Vec<usize>, Mask) = (0..table.columns.len()).map(|at| (at, true)).unzip();
        let written: Vec<usize> = all.iter().copied().filter(|at| !table.columns[*at].key).collect();
        let kinds = match table.lookup {
            Lookup::UniqueKey => vec![
                (Kind::SetProbe, table.key.clone(), true),
                (Kind::SetUpdate(present.clone()), [table.key.clone(), written.clone()].concat(), true),
                (Kind::SetReplace, [table.key.clone(), written].concat(), true),
                (Kind::RowUpdate(present), [all, table.key.clone()].concat(), false),
                (Kind::RowProbe, table.key.clone(), false),
                (Kind::RowDelete, table.key.clone(), false),
                (Kind::SetLock, table.key.clone(), true),
                (Kind::SetDelete, table.key.clone(), true),
            ],
            _ => {
                // Rows without NULLs, and rows that may have one in any column.
                let findings = [Some(vec![false; table.columns.len()]), None];
                let kinds = findings.map(|nulls| bags::Finding { nulls }).map(|finding| {
                    [
                        (
                            Kind::BagUpdate(present.clone(), finding.clone()),
                            [all.clone(), all.clone()].concat(),
                            true,
                        ),
                        (Kind::BagDelete(finding), all.clone(), true),
                    ]
                });
                kinds.into_iter().flatten().collect()
            }
        };
        let mut prepared = Vec::new();
        for (kind, columns, is_set) in kinds {
            // A statement that insists on finding no row would fail.
            let is_probe = matches!(kind, Kind::SetProbe | Kind::RowProbe | Kind::SetLock);
            let around = match &kind {
                Kind::BagUpdate(_, finding) | Kind::BagDelete(finding) if !finding.is_led(&table) => {
                    Some((bags::JOIN_BY_HASH, bags::JOIN_BY_INDEX))
                }
                _ => None,
            };
            let shape = shapes.get(&table, false, kind);
            let insisting = shape.insisting().filter(|_| !is_probe);
            for shape in std::iter::once(&*shape).chain(&insisting) {
                let statement =
                    Prepared { name: shape.name.clone(), columns: columns.clone(), is_set, around };
                plan(&mut self.applies, shape).await;
                prepared.push(statement);
            }
        }
        self.execute_all(&prepared, 0, true).await;
        prepared
    }

    async fn prepare_look_ups(&mut self) -> Vec<Prepared> {
        let mut prepared = Vec::new();
        for (shape, columns) in prefetch::on_servers::look_ups(&mut self.looks_up, &self.table).await {
            plan(&mut self.looks_up, &shape).await;
            prepared.push(Prepared { name: shape.name.clone(), columns, is_set: true, around: None });
        }
        self.execute_all(&prepared, 0, false).await;
        prepared
    }

    /// Executes each statement in a transaction in which the table gets `rows` rows, independently
    /// of the other statements, and judges its visits. With no rows the table stays as it is.
    async fn execute_all(&mut self, statements: &[Prepared], rows: usize, applies: bool) {
        self.ask("BEGIN READ WRITE", applies).await;
        // Filling a million rows takes longer than a look-up may.
        self.ask("SET LOCAL statement_timeout = 0", applies).await;
        if rows > 0 {
            self.ask("TRUNCATE public.t", applies).await;
            self.ask(&fill(self.sample, rows), applies).await;
        }
        for statement in statements {
            self.execute(statement, rows, applies).await;
        }
        self.ask("ROLLBACK", applies).await;
    }

    async fn execute(&mut self, statement: &Prepared, rows: usize, applies: bool) {
        let (visited, set) = (self.visited_sql(), if statement.is_set { SET.min(rows.max(1)) } else { 1 });
        let arguments = self.ask(&self.arguments_sql(statement, set, rows.max(1)), applies).await;
        let arguments: Vec<String> = arguments[0].iter().flatten().cloned().collect();
        let execute = format!("EXECUTE {} ({})", statement.name, arguments.join(", "));
        let (before, after) = statement.around.unwrap_or(("SELECT 1", "SELECT 1"));
        for sql in ["SAVEPOINT s", before] {
            self.ask(sql, applies).await;
        }
        let count = |rows: Vec<Vec<Option<String>>>| -> usize {
            rows[0][0].as_ref().expect("a count").parse().expect("a count")
        };
        let already = count(self.ask(&visited, applies).await);
        match self.try_to(&execute, applies).await {
            Ok(_) => {}
            // A statement that insists on its rows fails where there are none.
            Err(_) if rows == 0 => {
                self.ask("ROLLBACK TO s", applies).await;
                return;
            }
            Err(error) => panic!("{}, {}: {execute:.1000}: {error}", self.sample.name, self.state),
        }
        let visited = count(self.ask(&visited, applies).await) - already;
        for sql in [after, "ROLLBACK TO s"] {
            self.ask(sql, applies).await;
        }
        // One pass finds the rows, and another one writes them.
        let passes = if statement.around.is_some() { 2 * rows } else { 0 };
        let limit = VISITS * set + passes;
        if visited > limit {
            self.failures.push(format!(
                "{}, planned when {}: {execute:.30} for {set} of {rows} rows visited {visited}, more than {limit}",
                self.sample.name, self.state
            ));
        }
    }

    async fn try_to(&mut self, sql: &str, applies: bool) -> Result<Vec<Vec<Option<String>>>, client::Error> {
        if applies { self.applies.query(sql).await } else { self.looks_up.query(sql).await }
    }

    async fn ask(&mut self, sql: &str, applies: bool) -> Vec<Vec<Option<String>>> {
        let told = self.try_to(sql, applies).await;
        told.unwrap_or_else(|error| panic!("{}, {}: {sql:.1000}: {error}", self.sample.name, self.state))
    }

    /// SQL that counts the rows and index entries that the session has visited.
    fn visited_sql(&self) -> String {
        let tables = "SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = 'public.t'::pg_catalog.regclass \
                      UNION SELECT 'public.t'::pg_catalog.regclass::pg_catalog.oid";
        format!(
            "WITH t AS ({tables}), o AS (SELECT inhrelid AS oid FROM t UNION SELECT indexrelid FROM pg_catalog.pg_index \
             WHERE indrelid IN (SELECT inhrelid FROM t)) SELECT sum(pg_catalog.pg_stat_get_xact_tuples_returned(oid) \
             + pg_catalog.pg_stat_get_xact_tuples_fetched(oid)) FROM o"
        )
    }

    /// Query for the arguments. The rows lie evenly among the first `rows`. They come as arrays, or
    /// as the values of the first row.
    fn arguments_sql(&self, statement: &Prepared, set: usize, rows: usize) -> String {
        let names: Vec<&str> = self.table.columns.iter().map(|column| column.target.name.as_str()).collect();
        let argument = |at: &usize| match statement.is_set {
            true => format!("quote_literal(pg_catalog.array_agg({}::text ORDER BY n)::text)", names[*at]),
            false => format!("quote_literal(pg_catalog.min({}::text))", names[*at]),
        };
        let arguments: Vec<String> = statement.columns.iter().map(argument).collect();
        let (values, step, names) = (self.sample.values, rows / set, names.join(", "));
        let series = format!("pg_catalog.generate_series({step}, {}, {step})", step * set);
        format!("SELECT {} FROM (SELECT i, {values} FROM {series} i) AS x (n, {names})", arguments.join(", "))
    }
}

fn fill(sample: &Sample, rows: usize) -> String {
    format!("INSERT INTO public.t SELECT {} FROM pg_catalog.generate_series(1, {rows}) i", sample.values)
}

async fn plan(wire: &mut Wire, shape: &Shape) {
    let types: Vec<String> = shape.parameter_types.iter().map(|oid| oid.0.to_string()).collect();
    let sql = format!(
        "SELECT pg_catalog.string_agg(pg_catalog.format_type(x.oid, NULL), ', ' ORDER BY x.n) \
         FROM pg_catalog.unnest('{{{}}}'::pg_catalog.oid[]) WITH ORDINALITY x (oid, n)",
        types.join(", ")
    );
    let types = wire.query(&sql).await.expect("types")[0][0].clone().unwrap_or_default();
    let prepare = format!("PREPARE {} ({types}) AS {}", shape.name, shape.sql);
    if let Err(error) = wire.query(&prepare).await {
        panic!("{prepare}: {error}");
    }
}

/// The mapping of the source's table, which has the same columns.
async fn map(url: &str, sample: &Sample) -> Arc<Table> {
    let info = ConnInfo::parse(url).expect("a URL");
    let session = client::connect(&info, "test", &[]).await.expect("a session");
    let sql = "SELECT attname::text, atttypid, atttypmod FROM pg_attribute \
               WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
    let rows = session.query(sql, &[]).await.expect("columns");
    let column = |row: &tokio_postgres::Row| RelationColumn {
        identity: sample.key.is_empty() || sample.key.contains(&row.get::<_, &str>(0)),
        name: row.get(0),
        type_oid: Oid(row.get(1)),
        typmod: row.get(2),
    };
    let identity = if sample.key.is_empty() { ReplicaIdentity::Full } else { ReplicaIdentity::Default };
    let columns = rows.iter().map(column).collect();
    let relation = Relation { id: Oid(1), namespace: "public".into(), name: "t".into(), identity, columns };
    let mappings = Mappings::new(session, state::JoinedTables::new(), false);
    let target = mappings.target("public", "t").await.expect("a table");
    Arc::new(Table::map(1, Arc::new(relation), &target).expect("a mapping"))
}
