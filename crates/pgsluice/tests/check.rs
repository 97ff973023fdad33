//! `pgsluice check` against real servers: each finding is provoked, seen with its object, and seen to go away once its
//! remedy was run, wherever the remedy is SQL.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use testkit::{Cluster, Major, Output, Pair, Sluice, StopMode, assert_same_rows, query, wait_for};

const BOUND: Duration = Duration::from_secs(45);

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pgsluice"))
}

/// Every major at the same time.
fn each_major(test: impl Fn(Major) + Sync) {
    std::thread::scope(|scope| {
        let told: Vec<_> = Major::under_test()
            .into_iter()
            .map(|major| {
                scope.spawn({
                    let test = &test;
                    move || test(major)
                })
            })
            .collect();
        for result in told.into_iter().map(std::thread::ScopedJoinHandle::join) {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

/// What one check said.
#[derive(Debug)]
struct Said {
    code: i32,
    report: Value,
}

impl Said {
    fn findings(&self) -> &[Value] {
        self.report["findings"].as_array().unwrap()
    }

    fn find(&self, expected: &Expected) -> Option<&Value> {
        let (severity, end, object, what) = (expected.severity, expected.end, expected.object, expected.what);
        self.findings().iter().find(|found| {
            found["severity"] == severity
                && found["end"] == end
                && found["object"].as_str().unwrap().contains(object)
                && found["what"].as_str().unwrap().contains(what)
        })
    }

    #[track_caller]
    fn expect(&self, expected: &Expected) -> &Value {
        self.find(expected)
            .unwrap_or_else(|| panic!("{expected:?} is not among {:#}", self.report["findings"]))
    }

    fn worse_than_a_note(&self) -> Vec<&Value> {
        self.findings().iter().filter(|found| found["severity"] != "note").collect()
    }
}

/// Both ends of one check.
struct Ends<'a> {
    pair: &'a Pair,
    db: String,
    /// Instead of the superuser.
    role: Option<String>,
}

impl<'a> Ends<'a> {
    /// Databases of their own on shared servers.
    fn new(pair: &'a Pair, db: &str) -> Ends<'a> {
        pair.both("postgres", &format!("CREATE DATABASE {db}")).unwrap();
        Ends { pair, db: db.to_owned(), role: None }
    }

    fn call(&self, args: &[&str]) -> Output {
        let mut running = self.start(args);
        let status = running.wait(BOUND).unwrap().expect("it ends");
        Output { status, stdout: running.stdout(), stderr: running.stderr() }
    }

    fn start(&self, args: &[&str]) -> Sluice {
        let mut command = Sluice::command_of(program(), self.pair, args);
        for (name, cluster) in
            [("PGSLUICE_SOURCE", &self.pair.source), ("PGSLUICE_TARGET", &self.pair.target)]
        {
            let url = cluster.url(&self.db);
            let user = self.role.as_deref().unwrap_or("postgres");
            command.env(name, url.replace("postgres://postgres@", &format!("postgres://{user}@")));
        }
        command.env("PGSLUICE_PUBLICATION", "p").env("PGSLUICE_SUBSCRIPTION", &self.db);
        Sluice::start(command).unwrap()
    }

    fn check(&self, args: &[&str]) -> Said {
        let output = self.call(&[&["check", "--json"], args].concat());
        let report =
            serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        Said { code: output.status.code().unwrap(), report }
    }

    fn at(&self, end: &str) -> &Cluster {
        if end == "source" { &self.pair.source } else { &self.pair.target }
    }

    /// Runs the SQL of a finding, one statement after the other, as a superuser.
    #[track_caller]
    fn apply(&self, finding: &Value) {
        for sql in finding["sql"].as_array().unwrap() {
            let (end, sql) = (finding["end"].as_str().unwrap(), sql.as_str().unwrap());
            self.at(end)
                .sql(&self.db, sql)
                .unwrap_or_else(|error| panic!("{error:#}, remedy of {finding:#}"));
        }
    }
}

/// A finding that must be there.
#[derive(Clone, Copy, Debug)]
struct Expected {
    severity: &'static str,
    end: &'static str,
    object: &'static str,
    what: &'static str,
    /// Its SQL makes it go away.
    cured: bool,
}

const fn cured(
    severity: &'static str,
    end: &'static str,
    object: &'static str,
    what: &'static str,
) -> Expected {
    Expected { severity, end, object, what, cured: true }
}

const fn told(
    severity: &'static str,
    end: &'static str,
    object: &'static str,
    what: &'static str,
) -> Expected {
    Expected { severity, end, object, what, cured: false }
}

/// What both ends have, and what is said of it.
struct Case {
    name: &'static str,
    since: u32,
    both: &'static str,
    source: &'static str,
    target: &'static str,
    args: &'static [&'static str],
    expected: &'static [Expected],
}

const CASE: Case = Case { name: "", since: 14, both: "", source: "", target: "", args: &[], expected: &[] };

const CASES: &[Case] = &[
    Case {
        name: "absent",
        both: "CREATE TABLE shared (id int PRIMARY KEY, v text)",
        source: "CREATE TABLE absent (id int, k text, v numeric(10,2) NOT NULL, PRIMARY KEY (k, id)); CREATE SCHEMA far;
            CREATE TABLE far.away (id int PRIMARY KEY); CREATE TABLE far.further (id int PRIMARY KEY);
            CREATE TABLE short (id int PRIMARY KEY, \"It's\" varchar(7));
            CREATE TABLE seen (id int PRIMARY KEY); CREATE TYPE mood AS ENUM ('a'); CREATE TABLE moody (id int PRIMARY KEY, m mood);
            CREATE PUBLICATION p FOR ALL TABLES",
        target: "CREATE TABLE short (id int PRIMARY KEY); CREATE VIEW seen AS SELECT 1 AS id",
        expected: &[
            cured("cannot", "target", "table public.absent", "does not exist"),
            cured("cannot", "target", "table far.away", "does not exist"),
            cured("cannot", "target", "table far.further", "does not exist"),
            cured("cannot", "target", "column It's of table public.short", "does not exist"),
            told("cannot", "target", "table public.seen", "a view"),
            told("cannot", "target", "table public.moody", "does not exist"),
        ],
        ..CASE
    },
    Case {
        name: "columns",
        source: "CREATE TABLE computed (id int PRIMARY KEY, x int); CREATE TABLE more (id int PRIMARY KEY);
            CREATE TABLE empty (id int PRIMARY KEY, v text); CREATE TABLE made (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED);
            CREATE PUBLICATION p FOR ALL TABLES",
        target: "CREATE TABLE computed (id int PRIMARY KEY, x int GENERATED ALWAYS AS (id) STORED);
            CREATE TABLE more (id int PRIMARY KEY, must int NOT NULL, may int, has int NOT NULL DEFAULT 1);
            CREATE TABLE empty (id int PRIMARY KEY, v text NOT NULL); CREATE TABLE made (id int PRIMARY KEY)",
        expected: &[
            cured("cannot", "target", "column x of table public.computed", "generated on the target"),
            cured("cannot", "target", "column must of table public.more", "NOT NULL without a default"),
            cured("warning", "target", "column v of table public.empty", "NOT NULL on the target only"),
            told("note", "source", "table public.made", "generated columns are not published"),
        ],
        ..CASE
    },
    Case {
        name: "types",
        source: "CREATE TYPE mood AS ENUM ('sad', 'it''s fine', 'happy');
            CREATE TABLE t (id int PRIMARY KEY, a int8, b numeric(8,4), c varchar(20), d timestamptz, e time, f mood, g int, h text, i int[]);
            CREATE PUBLICATION p FOR ALL TABLES",
        target: "CREATE TYPE mood AS ENUM ('happy');
            CREATE TABLE t (id int PRIMARY KEY, a int4, b numeric(8,2), c varchar(10), d timestamp, e date, f mood, g int8, h date, i int[])",
        expected: &[
            cured("warning", "target", "column a of table public.t", "is bigint on the source and integer on the target"),
            cured("warning", "target", "column b of table public.t", "rounded"),
            cured("warning", "target", "column c of table public.t", "too long"),
            cured("warning", "target", "column d of table public.t", "time zone"),
            cured("cannot", "target", "column e of table public.t", "reads no value"),
            cured("warning", "target", "column f of table public.t", "sad, it's fine"),
            told("note", "target", "column g of table public.t", "holds every value"),
            cured("warning", "target", "column h of table public.t", "does not read"),
            told("note", "source", "binary", "values come as text"),
        ],
        ..CASE
    },
    Case {
        name: "identity",
        both: "CREATE TABLE whole (id int, v text); CREATE TABLE always (id int PRIMARY KEY, n int);
            CREATE TABLE kept (id numeric PRIMARY KEY); CREATE TABLE busy (id int PRIMARY KEY, r int4range, v text)",
        source: "CREATE TABLE none (id int); ALTER TABLE whole REPLICA IDENTITY FULL; CREATE TABLE keyed (id int PRIMARY KEY, v text);
            CREATE TABLE indexed (id int PRIMARY KEY); CREATE TABLE later (id int PRIMARY KEY);
            CREATE TABLE maybe (id int PRIMARY KEY); CREATE TABLE fully (id int PRIMARY KEY, v text);
            ALTER TABLE fully REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR ALL TABLES",
        target: "CREATE TABLE none (id int); CREATE TABLE keyed (id int, v text); CREATE TABLE indexed (id int); CREATE INDEX ON indexed (id);
            CREATE TABLE later (id int PRIMARY KEY DEFERRABLE); CREATE TABLE maybe (id int UNIQUE);
            CREATE TABLE fully (id int PRIMARY KEY, v text);
            ALTER TABLE always ALTER n SET NOT NULL, ALTER n ADD GENERATED ALWAYS AS IDENTITY; ALTER TABLE always ALTER id DROP DEFAULT;
            ALTER TABLE busy ADD CONSTRAINT apart EXCLUDE USING gist (r WITH &&);
            CREATE UNIQUE INDEX lowered ON busy (lower(v)); CREATE UNIQUE INDEX partly ON busy (v) WHERE id > 5",
        expected: &[
            cured("warning", "source", "table public.none", "no replica identity"),
            told("warning", "target", "table public.whole", "reads the whole table"),
            cured("warning", "target", "table public.keyed", "every UPDATE and DELETE reads the whole table"),
            cured("note", "target", "table public.indexed", "one at a time"),
            cured("note", "target", "table public.later", "later_pkey is deferrable"),
            cured("note", "target", "column id of table public.maybe", "may be NULL"),
            told("note", "target", "column id of table public.kept", "equal without being the same"),
            cured("note", "target", "table public.always", "GENERATED ALWAYS AS IDENTITY"),
            told("note", "target", "table public.busy", "apart"),
            told("note", "target", "table public.busy", "lowered"),
            told("note", "target", "table public.busy", "partly"),
            told("note", "source", "table public.fully", "REPLICA IDENTITY FULL"),
        ],
        ..CASE
    },
    Case {
        name: "acting",
        both: "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE r (id int PRIMARY KEY); CREATE TABLE ruled (id int PRIMARY KEY)",
        source: "CREATE TABLE u (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES",
        target: "CREATE UNLOGGED TABLE u (id int PRIMARY KEY); ALTER TABLE r ADD FOREIGN KEY (id) REFERENCES t; INSERT INTO t VALUES (1); INSERT INTO r VALUES (1);
            CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
            CREATE TRIGGER one AFTER INSERT ON t EXECUTE FUNCTION f(); ALTER TABLE t ENABLE ALWAYS TRIGGER one;
            CREATE TRIGGER two BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE t ENABLE REPLICA TRIGGER two;
            CREATE TRIGGER idle BEFORE UPDATE ON r FOR EACH ROW EXECUTE FUNCTION f();
            CREATE RULE odd AS ON DELETE TO ruled DO ALSO DELETE FROM t; ALTER TABLE ruled ENABLE ALWAYS RULE odd;
            CREATE PUBLICATION all_of_it FOR ALL TABLES",
        expected: &[
            cured("warning", "target", "table public.u", "unlogged"),
            cured("warning", "target", "tables public.r, public.t", "not empty"),
            cured("warning", "target", "table public.t", "one, two"),
            cured("cannot", "target", "table public.ruled", "odd"),
            told("note", "target", "foreign key r_id_fkey of public.r", "not checked"),
            told("note", "target", "publication all_of_it", "pgsluice's own state"),
        ],
        ..CASE
    },
    Case {
        name: "partitions",
        source: "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9);
            CREATE TABLE high PARTITION OF root FOR VALUES FROM (9) TO (99); CREATE TABLE bare (id int PRIMARY KEY);
            CREATE TABLE equal (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE one PARTITION OF equal FOR VALUES IN (1);
            CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)",
        target: "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9);
            CREATE TABLE bare (id int PRIMARY KEY) PARTITION BY HASH (id);
            CREATE TABLE equal (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE one PARTITION OF equal FOR VALUES IN (1)",
        expected: &[
            cured("warning", "target", "table public.root", "lacks partitions of the source"),
            told("cannot", "target", "table public.bare", "no partition on the target"),
        ],
        ..CASE
    },
    Case {
        name: "publication",
        both: "CREATE TABLE t (id int PRIMARY KEY, v text)",
        source: "CREATE UNLOGGED TABLE scratch (id int); CREATE SEQUENCE s; SELECT lo_create(0);
            CREATE FOREIGN DATA WRAPPER w; CREATE SERVER elsewhere FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE remote (id int) SERVER elsewhere;
            CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert, update'); CREATE PUBLICATION nothing",
        args: &["--publication", "p", "--publication", "nothing", "--publication", "No such"],
        expected: &[
            cured("cannot", "source", "publication No such", "does not exist"),
            told("warning", "source", "publication nothing", "no table"),
            told("note", "source", "publication p", "of 1 table, new ones as well"),
            cured("note", "source", "publication p", "does not publish delete, truncate"),
            told("note", "source", "table public.scratch", "unlogged"),
            told("note", "source", "table public.remote", "foreign"),
            told("note", "source", "sequences", "1 in this database"),
            told("warning", "source", "large objects", "1 in this database"),
            told("note", "source", "schema", "not replicated"),
        ],
        ..CASE
    },
    Case {
        name: "lists",
        since: 15,
        both: "CREATE TABLE listed (id int PRIMARY KEY, v text); CREATE TABLE filtered (id int PRIMARY KEY, v text)",
        source: "CREATE PUBLICATION p FOR TABLE listed (v), filtered WHERE (v = 'x')",
        expected: &[
            told("warning", "source", "table public.listed", "leaves out columns of the replica identity: id"),
            cured("warning", "source", "table public.filtered", "columns outside of the replica identity: v"),
        ],
        ..CASE
    },
    Case {
        name: "contradiction",
        since: 15,
        both: "CREATE TABLE t (id int PRIMARY KEY, v text)",
        source: "CREATE PUBLICATION p FOR TABLE t (id); CREATE PUBLICATION q FOR TABLE t",
        args: &["--publication", "p", "--publication", "q"],
        expected: &[told("cannot", "source", "publications", "different column lists")],
        ..CASE
    },
    Case {
        name: "virtual",
        since: 18,
        source: "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED);
            CREATE PUBLICATION p FOR ALL TABLES WITH (publish_generated_columns = stored)",
        target: "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) VIRTUAL)",
        expected: &[told("cannot", "target", "column g of table public.t", "generated on the target")],
        ..CASE
    },
    Case {
        name: "slot_taken",
        both: "CREATE TABLE t (id int PRIMARY KEY)",
        source: "CREATE PUBLICATION p FOR TABLE t; COMMIT; SELECT pg_create_logical_replication_slot('pgsluice_slot_taken', 'pgoutput')",
        target: "SELECT pg_replication_origin_create('pgsluice_slot_taken_0')",
        expected: &[
            cured("cannot", "source", "replication slot pgsluice_slot_taken", "in use by another target"),
            cured("cannot", "target", "replication origin pgsluice_slot_taken_0", "another database"),
        ],
        ..CASE
    },
    Case {
        name: "slot_odd",
        both: "CREATE TABLE t (id int PRIMARY KEY)",
        source: "CREATE PUBLICATION p FOR TABLE t; COMMIT; SELECT pg_create_logical_replication_slot('pgsluice_slot_odd', 'test_decoding')",
        expected: &[cured("cannot", "source", "replication slot pgsluice_slot_odd", "plugin test_decoding")],
        ..CASE
    },
    Case {
        name: "read_only",
        both: "CREATE TABLE t (id int PRIMARY KEY)",
        source: "CREATE PUBLICATION p FOR TABLE t",
        target: "ALTER DATABASE read_only SET default_transaction_read_only = on",
        expected: &[told("cannot", "target", "default_transaction_read_only", "is on")],
        ..CASE
    },
];

/// What a careful operator has is found to be so, and nothing else.
fn nothing_to_say(pair: &Pair) {
    let ends = Ends::new(pair, "clean");
    pair.both(
        "clean",
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (k uuid PRIMARY KEY, n numeric(9,2))",
    )
    .unwrap();
    pair.source.sql("clean", "CREATE PUBLICATION p FOR TABLE t, u; INSERT INTO t VALUES (1, 'a')").unwrap();
    let said = ends.check(&[]);
    assert_eq!((said.code, said.worse_than_a_note().len()), (0, 0), "{:#}", said.report);
    assert_eq!((&said.report["verdict"], &said.report["tables"]), (&"ok".into(), &2.into()));
    let text = ends.call(&["check"]).expect_success();
    assert!(text.starts_with("clean: ok\nsource  ") && text.contains("\nnotes\n"), "{text}");
}

fn case(pair: &Pair, case: &Case) {
    let ends = Ends::new(pair, case.name);
    pair.both(case.name, case.both).unwrap();
    pair.source.sql(case.name, case.source).unwrap();
    pair.target.sql(case.name, case.target).unwrap();
    let said = ends.check(case.args);
    // The exit code is the worst finding's.
    let worst = ["note", "warning", "cannot"]
        .into_iter()
        .rposition(|severity| said.findings().iter().any(|found| found["severity"] == severity));
    assert_eq!(usize::try_from(said.code).ok(), worst, "{:#}", said.report);
    for found in said.findings().iter().filter(|found| found["severity"] != "note") {
        let has = |field: &str| !found[field].as_str().unwrap().is_empty();
        assert!(has("object") && has("what"), "{found:#}");
        assert!(has("remedy") || !found["sql"].as_array().unwrap().is_empty(), "no remedy: {found:#}");
    }
    for expected in case.expected {
        let found = said.expect(expected);
        assert!(!expected.cured || !found["sql"].as_array().unwrap().is_empty(), "{found:#}");
    }
    for expected in case.expected.iter().filter(|expected| expected.cured) {
        ends.apply(said.expect(expected));
    }
    let again = ends.check(case.args);
    for expected in case.expected {
        let found = again.find(expected);
        assert!(found.is_none() || !expected.cured, "its remedy did not help: {found:#?}");
        assert!(found.is_some() || expected.cured, "gone by itself: {expected:?}");
    }
}

#[test]
fn every_finding_has_an_object_and_a_remedy_that_helps() {
    each_major(|major| {
        let pair = Pair::start(major, major).unwrap();
        nothing_to_say(&pair);
        let cases: Vec<&Case> = CASES.iter().filter(|own| major.number() >= own.since).collect();
        std::thread::scope(|scope| {
            for half in cases.chunks(cases.len().div_ceil(2)) {
                let pair = &pair;
                scope.spawn(move || half.iter().for_each(|own| case(pair, own)));
            }
        });
        two_databases(&pair);
        other_writers(&pair);
        locked_tables(&pair);
    });
}

/// Encodings, one server twice, a server that is not there.
fn two_databases(pair: &Pair) {
    let ends = Ends::new(pair, "ends");
    pair.both("ends", "CREATE TABLE t (id int PRIMARY KEY)").unwrap();
    pair.source.sql("ends", "CREATE PUBLICATION p FOR TABLE t").unwrap();
    pair.target.sql("postgres", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0").unwrap();
    let latin = pair.target.url("latin");
    ends.check(&["--target", &latin]).expect(&told(
        "warning",
        "target",
        "encoding",
        "is LATIN1, the source's UTF8",
    ));
    let itself = pair.source.url("ends");
    let said = ends.check(&["--target", &itself]);
    said.expect(&told("cannot", "target", "database", "itself"));
    assert_eq!(said.code, 2);
    let beside = pair.source.url("postgres");
    ends.check(&["--target", &beside]).expect(&told("note", "target", "database", "own server"));
    let nowhere = "host=127.0.0.1 port=1 user=postgres dbname=postgres connect_timeout=2";
    let said = ends.check(&["--target", nowhere]);
    said.expect(&told("cannot", "target", "connection", "cannot connect"));
    assert_eq!((said.code, &said.report["target"]), (2, &Value::Null));
    if pair.source.major() < Major::V16 {
        let said = ends.check(&["--origin", "none"]);
        said.expect(&told("cannot", "source", "--origin", "version 16"));
    }
}

/// What cannot be read at the moment is said to be unknown, not to be missing.
fn locked_tables(pair: &Pair) {
    let ends = Ends::new(pair, "locked");
    pair.both("locked", "CREATE TABLE t (id int PRIMARY KEY)").unwrap();
    pair.source.sql("locked", "CREATE PUBLICATION p FOR TABLE t").unwrap();
    for (end, cluster) in [("target", &pair.target), ("source", &pair.source)] {
        let sleeping = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        let url = cluster.url("locked");
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| query(&url, "BEGIN; LOCK t; SELECT pg_sleep(60)"));
            wait_for("the lock", BOUND, || Ok(cluster.one("locked", sleeping) != "0")).unwrap();
            let said = ends.check(&[]);
            cluster.sql("locked", &format!("SELECT pg_terminate_backend(({sleeping}))")).unwrap();
            assert!(holder.join().unwrap().is_err());
            assert_eq!(said.code, 1, "{:#}", said.report);
            said.expect(&told("warning", end, "", "could not be read"));
            assert!(said.findings().iter().all(|found| found["refuses"] == "never"), "{:#}", said.report);
        });
    }
    assert_eq!(ends.check(&[]).code, 0);
}

/// A native subscription into the same table.
fn other_writers(pair: &Pair) {
    let ends = Ends::new(pair, "native");
    pair.both("native", "CREATE TABLE t (id int PRIMARY KEY)").unwrap();
    pair.source.sql("native", "CREATE PUBLICATION p FOR TABLE t").unwrap();
    let source = format!("host=127.0.0.1 port={} user=postgres dbname=native", pair.source.port());
    pair.target
        .sql("native", &format!("CREATE SUBSCRIPTION other CONNECTION '{source}' PUBLICATION p"))
        .unwrap();
    let expected = cured("warning", "target", "subscription other", "public.t");
    let said = ends.check(&[]);
    ends.apply(said.expect(&expected));
    assert!(ends.check(&[]).find(&expected).is_none());
    pair.target.sql("native", "DROP SUBSCRIPTION other").unwrap();
}

/// Settings that a server reads at its start, all of them wrong at once; their remedies are run, the servers restarted.
#[test]
fn limits_and_settings() {
    each_major(|major| {
        let mut source = Cluster::builder(major)
            .setting("wal_level", "replica")
            .setting("max_wal_senders", "1")
            .setting("max_replication_slots", "1")
            .setting("max_connections", "8")
            .setting("max_slot_wal_keep_size", "64MB")
            .setting("wal_sender_timeout", "0");
        let mut target = Cluster::builder(major)
            .setting("max_connections", "7")
            .setting("track_commit_timestamp", "on")
            .setting("max_wal_senders", "0");
        if major >= Major::V18 {
            source = source.setting("idle_replication_slot_timeout", "1h");
            target = target.setting("max_active_replication_origins", "0");
        } else {
            target = target.setting("max_replication_slots", "0");
        }
        let mut pair = Pair::with(source, target).unwrap();
        pair.both("postgres", "CREATE TABLE t (id int PRIMARY KEY)").unwrap();
        pair.source.sql("postgres", "SELECT pg_create_physical_replication_slot('standby')").unwrap();
        pair.source.sql("postgres", "CREATE PUBLICATION p FOR TABLE t").unwrap();
        let origins =
            if major >= Major::V18 { "max_active_replication_origins" } else { "max_replication_slots" };
        let mut expected = vec![
            cured("cannot", "source", "wal_level", "is replica"),
            cured(
                "cannot",
                "source",
                "max_replication_slots",
                "is 1: 1 in use, 0 left, 1 replication slots needed",
            ),
            cured("cannot", "source", "max_wal_senders", "is 1: 0 in use, 1 left, 2 walsenders needed"),
            cured(
                "warning",
                "source",
                "max_connections",
                "leaves 8 connections to this role; 3 to 12 are needed",
            ),
            cured(
                "warning",
                "target",
                "max_connections",
                "leaves 7 connections to this role; 3 to 11 are needed",
            ),
            told("note", "source", "max_slot_wal_keep_size", "is 64 MB"),
            told("note", "source", "wal_sender_timeout", "is 0"),
            told("note", "target", "track_commit_timestamp", "is on"),
            cured("cannot", "target", origins, "is 0: 0 replication origins in use, 0 left, 1 needed"),
        ];
        if major >= Major::V18 {
            expected.push(cured("warning", "source", "idle_replication_slot_timeout", "is 3600 s"));
        }
        let args = ["--max-sync-workers-per-subscription", "10", "--subscription", "s"];
        let ends = Ends { pair: &pair, db: "postgres".to_owned(), role: None };
        let said = ends.check(&args);
        let found: Vec<Value> = expected.iter().map(|expected| said.expect(expected).clone()).collect();
        for (found, _) in found.iter().zip(&expected).filter(|(_, expected)| expected.cured) {
            ends.apply(found);
        }
        pair.source.restart(StopMode::Fast).unwrap();
        pair.target.restart(StopMode::Fast).unwrap();
        let ends = Ends { pair: &pair, db: "postgres".to_owned(), role: None };
        let said = ends.check(&args);
        assert_eq!((said.code, said.worse_than_a_note().len()), (0, 0), "{:#}", said.report);
        transactions_in_the_way(&ends);
        service(&ends);
        standbys(&mut pair);
    });
}

/// A new slot waits for them.
fn transactions_in_the_way(ends: &Ends<'_>) {
    let url = ends.pair.source.url("postgres");
    ends.pair.source.sql("postgres", "BEGIN; INSERT INTO t VALUES (-1); PREPARE TRANSACTION 'left'").unwrap();
    std::thread::scope(|scope| {
        let open = scope.spawn(|| query(&url, "BEGIN; INSERT INTO t VALUES (-2); SELECT pg_sleep(60)"));
        let pid = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        wait_for("the transaction", BOUND, || Ok(ends.pair.source.one("postgres", pid) != "0")).unwrap();
        let pid = ends.pair.source.one("postgres", pid);
        let said = ends.check(&[]);
        ends.pair.source.sql("postgres", &format!("SELECT pg_terminate_backend({pid})")).unwrap();
        assert!(open.join().unwrap().is_err());
        said.expect(&told("warning", "source", "prepared transactions", "'left' in database postgres"));
        let running = said.expect(&told("note", "source", "running transactions", "postgres, "));
        assert!(running["what"].as_str().unwrap().contains(&format!("pid {pid} ")), "{running:#}");
    });
    ends.pair.source.sql("postgres", "ROLLBACK PREPARED 'left'").unwrap();
}

/// Roles by which a managed service is known.
fn service(ends: &Ends<'_>) {
    ends.pair
        .source
        .sql("postgres", "CREATE ROLE rds_replication; CREATE ROLE app LOGIN; GRANT SELECT ON t TO app")
        .unwrap();
    ends.pair.target.sql("postgres", "CREATE ROLE cloudsqlsuperuser; CREATE ROLE app LOGIN").unwrap();
    let ends = Ends { pair: ends.pair, db: "postgres".to_owned(), role: Some("app".to_owned()) };
    let said = ends.check(&[]);
    said.expect(&told("note", "source", "service", "Amazon RDS"));
    said.expect(&told("note", "target", "service", "cloudsql.logical_decoding"));
    let expected = cured("cannot", "source", "role app", "may not replicate");
    let found = said.expect(&expected);
    assert_eq!(found["sql"][0], "GRANT rds_replication TO \"app\"");
    ends.apply(found);
    assert!(ends.check(&[]).find(&expected).is_none());
    ends.pair.source.sql("postgres", "DROP OWNED BY app; DROP ROLE app, rds_replication").unwrap();
    ends.pair.target.sql("postgres", "DROP ROLE app, cloudsqlsuperuser").unwrap();
}

/// Both servers in recovery.
fn standbys(pair: &mut Pair) {
    for cluster in [&mut pair.source, &mut pair.target] {
        cluster.stop(StopMode::Fast).unwrap();
        std::fs::write(cluster.data_dir().join("standby.signal"), "").unwrap();
        cluster.start_again().unwrap();
    }
    let ends = Ends { pair, db: "postgres".to_owned(), role: None };
    let said = ends.check(&[]);
    said.expect(&told("cannot", "target", "server", "is a standby"));
    let severity = if pair.source.major() >= Major::V16 { "warning" } else { "cannot" };
    said.expect(&told(severity, "source", "server", "is a standby"));
}

/// A role that may do nothing is led, check by check, to one that replicates.
#[test]
fn the_remedies_lead_an_unprivileged_role_to_replication() {
    each_major(|major| {
        let pair = Pair::start(major, major).unwrap();
        let mut ends = Ends::new(&pair, "app");
        let tables = "CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)";
        pair.both(
            "app",
            &format!("{tables}; CREATE ROLE sluice LOGIN; REVOKE ALL ON SCHEMA public FROM public"),
        )
        .unwrap();
        pair.source
            .sql(
                "app",
                "ALTER TABLE s.t ENABLE ROW LEVEL SECURITY; INSERT INTO s.t VALUES (1, 'a'), (2, 'b'); INSERT INTO u VALUES (7);
                 CREATE PUBLICATION p FOR TABLE s.t, u",
            )
            .unwrap();
        pair.target.sql("app", "ALTER TABLE u ENABLE ROW LEVEL SECURITY").unwrap();
        ends.role = Some("sluice".to_owned());
        let first = ends.check(&[]);
        for expected in [
            told("cannot", "source", "role sluice", "may not replicate"),
            told("cannot", "source", "tables public.u, s.t", "has no SELECT"),
            told("cannot", "source", "schema public, s", "has no USAGE"),
            told("cannot", "source", "table s.t", "row level security"),
            told("cannot", "target", "schema public, s", "has no USAGE"),
            told("cannot", "target", "tables public.u, s.t", "has no INSERT"),
            told("cannot", "target", "tables public.u, s.t", "has no UPDATE"),
            told("cannot", "target", "tables public.u, s.t", "has no DELETE"),
            told("cannot", "target", "tables public.u, s.t", "has no TRUNCATE"),
            told("cannot", "target", "tables public.u, s.t", "has no SELECT"),
            told("cannot", "target", "table public.u", "row level security"),
            told("cannot", "target", "schema pgsluice", "cannot be made"),
            told("cannot", "target", "replication origin functions", "may not be called"),
            told("cannot", "target", "session_replication_role", "cannot be set"),
        ] {
            first.expect(&expected);
        }
        // Refused with everything at once, and nothing is made.
        let refused = ends.call(&["run"]);
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        for found in first.findings().iter().filter(|found| found["severity"] == "cannot") {
            for part in [&found["object"], &found["what"], &found["sql"][0]] {
                assert!(refused.stderr.contains(part.as_str().unwrap()), "{part} in {}", refused.stderr);
            }
        }
        let slots = pair.source.one("app", "SELECT count(*) FROM pg_replication_slots");
        let schemas = pair.target.one("app", "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgsluice'");
        assert_eq!((slots.as_str(), schemas.as_str()), ("0", "0"));
        for found in first.findings() {
            ends.apply(found);
        }
        let second = ends.check(&[]);
        assert_eq!((second.code, second.worse_than_a_note().len()), (0, 0), "{:#}", second.report);
        let mut running = ends.start(&["run"]);
        let arrived = "SELECT (SELECT count(*) FROM s.t) + (SELECT count(*) FROM u)";
        wait_for("the copy", BOUND, || Ok(pair.target.one("app", arrived) == "3")).unwrap();
        pair.source.sql("app", "UPDATE s.t SET v = 'c' WHERE id = 1; DELETE FROM s.t WHERE id = 2; TRUNCATE u; INSERT INTO u VALUES (8), (9)").unwrap();
        wait_for("the changes", BOUND, || {
            Ok(pair.target.one("app", "SELECT count(*) FROM u WHERE id > 7") == "2")
        })
        .unwrap();
        assert_same_rows(&pair.source, &pair.target, "app", "s.t");
        continued(&ends);
        assert!(running.terminate(Duration::from_secs(10)).unwrap().success());
        disabled_or_lost(&ends);
    });
}

/// A subscription that runs is checked as one that is continued.
fn continued(ends: &Ends<'_>) {
    let said = ends.check(&[]);
    said.expect(&told("note", "target", "subscription app", "is running: 2 tables, 0 not copied yet"));
    assert_eq!((said.code, said.worse_than_a_note().len()), (0, 0), "{:#}", said.report);
}

fn disabled_or_lost(ends: &Ends<'_>) {
    ends.call(&["disable"]).expect_success();
    let expected = told("cannot", "target", "subscription app", "is disabled");
    ends.check(&[]).expect(&expected);
    assert_eq!(ends.call(&["run"]).status.code(), Some(4));
    ends.call(&["enable"]).expect_success();
    assert!(ends.check(&[]).find(&expected).is_none());
    let drop = "SELECT pg_drop_replication_slot('pgsluice_app')";
    wait_for("the slot to be free", BOUND, || Ok(ends.pair.source.sql("app", drop).is_ok())).unwrap();
    ends.check(&[]).expect(&told(
        "cannot",
        "source",
        "replication slot pgsluice_app",
        "does not exist any more",
    ));
    ends.pair.target.sql("app", "UPDATE pgsluice.subscription SET source_sysid = '1'").unwrap();
    ends.check(&[]).expect(&told("cannot", "target", "subscription app", "system identifier 1,"));
    // A new one is refused for a table that is missing, this one for its slot alone.
    ends.pair
        .source
        .sql("app", "CREATE TABLE later (id int PRIMARY KEY); ALTER PUBLICATION p ADD TABLE later")
        .unwrap();
    let refused = ends.call(&["run"]);
    assert!(
        refused.status.code() == Some(1) && refused.stderr.contains("give the right --source"),
        "{}",
        refused.stderr
    );
    assert!(!refused.stderr.contains("cannot replicate as they are"), "{}", refused.stderr);
}

/// Tables that `check` calls slow are those that the applier takes row by row, and no others.
#[test]
fn what_is_said_of_a_table_is_what_the_applier_does() {
    each_major(|major| {
        let pair = Pair::start(major, major).unwrap();
        let ends = Ends::new(&pair, "app");
        let keys = [
            ("a_int", "int"),
            ("a_text", "text"),
            ("a_varchar", "varchar(9)"),
            ("a_uuid", "uuid"),
            ("a_date", "date"),
            ("a_scaled", "numeric(9,2)"),
            ("a_char", "char(3)"),
            ("a_mood", "mood"),
            ("b_numeric", "numeric"),
            ("b_float", "float8"),
            ("b_interval", "interval"),
            ("b_odd", "text COLLATE odd"),
            ("b_jsonb", "jsonb"),
        ];
        let mut both = "CREATE TYPE mood AS ENUM ('a'); CREATE COLLATION odd (provider = icu, locale = 'und', deterministic = false);".to_owned();
        let mut names: Vec<String> = Vec::new();
        for (name, own) in keys {
            both.push_str(&format!("CREATE TABLE {name} (k {own} PRIMARY KEY, v int DEFAULT 1);"));
            names.push(name.to_owned());
        }
        pair.both("app", &both).unwrap();
        let plain = [
            "c_deferred",
            "c_nullable",
            "c_bare",
            "c_other_type",
            "c_always",
            "c_trigger",
            "c_full",
            "c_full_bare",
        ];
        for name in plain {
            pair.source
                .sql("app", &format!("CREATE TABLE {name} (k int PRIMARY KEY, v int DEFAULT 1)"))
                .unwrap();
            names.push(name.to_owned());
        }
        pair.source.sql("app", "ALTER TABLE c_full REPLICA IDENTITY FULL; ALTER TABLE c_full_bare REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR ALL TABLES").unwrap();
        pair.target
            .sql(
                "app",
                "CREATE TABLE c_deferred (k int PRIMARY KEY DEFERRABLE, v int); CREATE TABLE c_nullable (k int UNIQUE, v int);
                 CREATE TABLE c_bare (k int, v int); CREATE TABLE c_other_type (k bigint PRIMARY KEY, v int);
                 CREATE TABLE c_always (k int PRIMARY KEY, v int GENERATED ALWAYS AS IDENTITY);
                 CREATE TABLE c_trigger (k int PRIMARY KEY, v int); CREATE TABLE c_full (k int PRIMARY KEY, v int);
                 CREATE TABLE c_full_bare (k int, v int); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
                 CREATE TRIGGER f BEFORE INSERT ON c_trigger FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE c_trigger ENABLE ALWAYS TRIGGER f",
            )
            .unwrap();
        let said = ends.check(&[]);
        let slow = |name: &str| {
            said.findings().iter().any(|found| {
                let (object, what) = (found["object"].as_str().unwrap(), found["what"].as_str().unwrap());
                object.ends_with(&format!("table public.{name}"))
                    && (what.contains("one at a time") || what.contains("reads the whole table"))
            })
        };
        let running = ends.start(&["run", "--log-level", "info,apply=debug"]);
        wait_for("the stream", BOUND, || Ok(running.stderr().contains("streaming from"))).unwrap();
        let values = "INSERT INTO a_int VALUES (1); INSERT INTO a_text VALUES ('a'); INSERT INTO a_varchar VALUES ('a');
            INSERT INTO a_uuid VALUES ('c0ffee00-0000-0000-0000-000000000000'); INSERT INTO a_date VALUES ('2000-01-01');
            INSERT INTO a_scaled VALUES (1); INSERT INTO a_char VALUES ('a'); INSERT INTO a_mood VALUES ('a');
            INSERT INTO b_numeric VALUES (1); INSERT INTO b_float VALUES (1); INSERT INTO b_interval VALUES ('1 day');
            INSERT INTO b_odd VALUES ('a'); INSERT INTO b_jsonb VALUES ('1');";
        pair.source.sql("app", values).unwrap();
        for name in plain {
            pair.source.sql("app", &format!("INSERT INTO {name} VALUES (1)")).unwrap();
        }
        for name in &names {
            let mapped = || {
                running
                    .stderr()
                    .lines()
                    .find(|line| line.contains("mapped") && line.contains(&format!("public.{name} ")))
                    .map(str::to_owned)
            };
            wait_for(name, BOUND, || Ok(mapped().is_some())).unwrap();
            let line = mapped().unwrap();
            assert_eq!(
                slow(name),
                !line.contains("path=Fold"),
                "{name}: {line}\n{:#}",
                said.report["findings"]
            );
        }
    });
}
