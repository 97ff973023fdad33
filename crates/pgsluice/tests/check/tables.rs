//! Findings about tables, publications and slots: a table of cases, each in its own databases.

use testkit::Pair;

use crate::{Ends, Expected, cured, each_major, told};

/// The content of both ends, and the expected findings.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) since: u32,
    pub(crate) both: &'static str,
    pub(crate) source: &'static str,
    pub(crate) target: &'static str,
    pub(crate) args: &'static [&'static str],
    pub(crate) expected: &'static [Expected],
}

pub(crate) const CASE: Case =
    Case { name: "", since: 14, both: "", source: "", target: "", args: &[], expected: &[] };

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
            cured("cannot", "target", "column e of table public.t", "reads none of its values"),
            cured("warning", "target", "column f of table public.t", "sad, it's fine"),
            told("note", "target", "column g of table public.t", "holds every value"),
            cured("warning", "target", "column h of table public.t", "does not read"),
            told("note", "source", "binary", "values come as text"),
        ],
        ..CASE
    },
    Case {
        name: "identity",
        both: "CREATE TABLE whole (id int, v text); CREATE TABLE led (id int, v text); CREATE TABLE always (id int PRIMARY KEY, n int);
            CREATE TABLE kept (id bpchar PRIMARY KEY); CREATE TABLE busy (id int PRIMARY KEY, r int4range, v text)",
        source: "CREATE TABLE none (id int); ALTER TABLE whole REPLICA IDENTITY FULL; ALTER TABLE led REPLICA IDENTITY FULL; CREATE TABLE keyed (id int PRIMARY KEY, v text);
            CREATE TABLE indexed (id int PRIMARY KEY); CREATE TABLE later (id int PRIMARY KEY);
            CREATE TABLE maybe (id int PRIMARY KEY); CREATE TABLE fully (id int PRIMARY KEY, v text);
            ALTER TABLE fully REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR ALL TABLES",
        target: "CREATE TABLE none (id int); CREATE TABLE keyed (id int, v text); CREATE TABLE indexed (id int); CREATE INDEX ON indexed (id);
            CREATE TABLE later (id int PRIMARY KEY DEFERRABLE); CREATE TABLE maybe (id int UNIQUE);
            CREATE TABLE fully (id int PRIMARY KEY, v text); CREATE INDEX ON led (v);
            ALTER TABLE always ALTER n SET NOT NULL, ALTER n ADD GENERATED ALWAYS AS IDENTITY; ALTER TABLE always ALTER id DROP DEFAULT;
            ALTER TABLE busy ADD CONSTRAINT apart EXCLUDE USING gist (r WITH &&);
            CREATE UNIQUE INDEX lowered ON busy (lower(v)); CREATE UNIQUE INDEX partly ON busy (v) WHERE id > 5",
        expected: &[
            cured("warning", "source", "table public.none", "no replica identity"),
            told("warning", "target", "table public.whole", "reads the whole table"),
            told("note", "target", "table public.led", "by all of their values"),
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
        name: "decodable",
        both: "CREATE TABLE t (id int PRIMARY KEY, v text)",
        source: "CREATE PUBLICATION p FOR TABLE t",
        expected: &[told("note", "source", "source_mode", "both logical and wal are possible; it writes ")],
        ..CASE
    },
    Case {
        name: "undecodable",
        both: "CREATE EXTENSION citext; CREATE DOMAIN word AS citext; CREATE TABLE c (id int PRIMARY KEY, words word[])",
        source: "CREATE PUBLICATION p FOR TABLE c",
        expected: &[told(
            "note",
            "source",
            "source_mode",
            "only logical is possible: table public.c, column \"words\": type public.citext, it is a base type of an",
        )],
        ..CASE
    },
    Case {
        name: "undecodable_wal",
        both: "CREATE EXTENSION citext; CREATE TABLE c (id int PRIMARY KEY, word citext, at regclass)",
        source: "CREATE PUBLICATION p FOR TABLE c",
        args: &["--source-mode", "wal"],
        expected: &[
            told("cannot", "source", "source_mode", "wal is not possible: table public.c, column \"at\": type regclass"),
            told("cannot", "source", "source_mode", "column \"word\": type public.citext"),
        ],
        ..CASE
    },
    Case {
        name: "standbys",
        both: "CREATE TABLE t (id int PRIMARY KEY)",
        source: "CREATE PUBLICATION p FOR TABLE t; COMMIT; SELECT pg_create_physical_replication_slot('standbys_idle', true)",
        args: &["--source-mode", "wal", "--synchronized-standby-slots", "standbys_gone,standbys_idle"],
        expected: &[
            cured("cannot", "source", "synchronized_standby_slots standbys_gone", "there is no such slot"),
            told("warning", "source", "synchronized_standby_slots standbys_idle", "no standby uses it"),
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

pub(crate) fn case(pair: &Pair, case: &Case) {
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
        let cases: Vec<&Case> = CASES.iter().filter(|own| major.number() >= own.since).collect();
        std::thread::scope(|scope| {
            for half in cases.chunks(cases.len().div_ceil(2)) {
                let pair = &pair;
                scope.spawn(move || half.iter().for_each(|own| case(pair, own)));
            }
        });
    });
}
