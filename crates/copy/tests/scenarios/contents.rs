//! What is copied: every type, every shape of table, every name, exactly as
//! the snapshot sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Scenario, block_on, session};
use copy::{Options, TableState, copy_tables};
use testkit::Major;

/// What [`crate::run`] runs on every major.
pub(crate) const SCENARIOS: &[crate::Named] = &[
    ("every_type_arrives_unchanged", every_type_arrives_unchanged),
    ("ranges_under_a_writer_hold_exactly_the_snapshot", ranges_under_a_writer_hold_exactly_the_snapshot),
    ("column_list_and_row_filter", column_list_and_row_filter),
    ("inheritance_children_stay_tables_of_their_own", inheritance_children_stay_tables_of_their_own),
    ("names_are_quoted_wherever_they_stand", names_are_quoted_wherever_they_stand),
    ("as_many_columns_as_a_table_can_have", as_many_columns_as_a_table_can_have),
    ("generated_and_identity_columns", generated_and_identity_columns),
    ("partitioned_tables_by_root_and_by_leaf", partitioned_tables_by_root_and_by_leaf),
    ("encodings_are_converted_in_both_formats", encodings_are_converted_in_both_formats),
    (
        "bytes_of_unknown_encoding_pass_between_two_databases_without_one",
        bytes_of_unknown_encoding_pass_between_two_databases_without_one,
    ),
];

const ALL_TYPES: &str = r#"
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE builtin (id int PRIMARY KEY, a bool, b bytea, c "char", d name, e int8, f int2, g text, h oid, i tid,
    j xid, k json, l xml, m point, n lseg, o path, p box, q polygon, r line, s float4, t float8, u circle, v money,
    w macaddr, x inet, y cidr, z macaddr8, aa bpchar(7), ab varchar(9), ac date, ad time, ae timestamp, af timestamptz(3),
    ag interval, ah timetz, ai bit(5), aj varbit, ak numeric(12, 3), al uuid, am pg_lsn, an tsvector,
    ap jsonb, aq int4range, ar nummultirange, "as" tstzrange, at jsonpath, au xid8,
    ax int[], ay text[], az timestamptz[], ba numeric[], bb int4range[], bc jsonb[], bd mood, be positive, bf refcursor);
CREATE TABLE named (id int PRIMARY KEY, a regclass, b regtype[], c regnamespace);
CREATE TABLE oneway (id int PRIMARY KEY, a int2vector, b oidvector, c tsquery);
CREATE TABLE silent (id int PRIMARY KEY, a aclitem, b aclitem[]);
CREATE TYPE pair AS (x int, y text);
CREATE TABLE users (id int PRIMARY KEY, a pair, b mood[], c pair[], d positive[]);
"#;

const ALL_VALUES: &str = r#"
INSERT INTO builtin VALUES (1, true, '\x00ff0a5c', 'x', 'n', -9223372036854775808, -32768, E'tab\t nl\n \\N äöü €',
    4294967295, '(1,2)', '7', '{"a": [1, "\n"]}', '<a>b</a>', '(1.5,2)', '((1,2),(3,4))', '((1,2),(3,4))', '((1,2),(3,4))',
    '((0,0),(1,1),(2,0))', '{1,2,3}', 1.1, 'NaN', '<(1,2),3>', '$1,234.56', '08:00:2b:01:02:03', '::1/64', '10.0.0.0/8',
    '08:00:2b:01:02:03:04:05', 'abc', 'naïve', '4713-01-01 BC', '24:00', 'infinity', '2024-02-29 12:34:56.789+02',
    '1 year -2 days 3.5 sec', '12:00+05:30', '10101', '1', 123456789.125, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
    '16/B374D848', 'fat:1A cat:2', '{"k": [1.50, null]}', '[1,5)', '{[1,2],[3,)}',
    '["2024-01-01 00:00+00",)', '$.a[*] ? (@ > 1)', '123456789012', '[0:1]={1,NULL}', '{a,"b,c",NULL}',
    '{now}', '{1.10,NaN}', '{empty}', '{"{}"}', 'glad', 5, 'cur');
INSERT INTO builtin (id) SELECT g FROM generate_series(2, 500) g;
INSERT INTO named VALUES (1, 'builtin', '{int4,mood}', 'public'), (2, 'pg_class', NULL, 'pg_catalog');
INSERT INTO oneway VALUES (1, '1 2 3', '4 5', 'fat & !rat'), (2, '', '', '');
INSERT INTO silent VALUES (1, 'postgres=r/postgres', '{postgres=w/postgres}');
INSERT INTO users VALUES (1, '(1,"a,b")', '{sad,glad}', '{"(2,x)",NULL}', '{1,2}');
"#;

pub(crate) fn every_type(scenario: &Scenario) {
    // Object ids of users' types must differ between the ends.
    scenario.target("CREATE TYPE shift1 AS ENUM ('a'); CREATE TYPE shift2 AS ENUM ('b')");
    scenario.both(ALL_TYPES);
    scenario.source(ALL_VALUES);
    scenario.source("CREATE PUBLICATION p FOR ALL TABLES");
    let jobs = block_on(scenario.jobs()).unwrap();
    let binary: Vec<(&str, bool)> =
        jobs.iter().map(|job| (job.table().name.name.as_str(), job.is_binary())).collect();
    // An interval of 17 and up may be infinite, which an older server would
    // misread in binary.
    let (source, target) = (scenario.pair.source.major().number(), scenario.pair.target.major().number());
    let intervals_agree = source < 17 || target >= 17;
    let text = ["named", "oneway", "silent", "users"].map(|table| (table, false));
    assert_eq!(binary, [&[("builtin", intervals_agree)], text.as_slice()].concat());
    scenario.copy().unwrap();
    for table in ["builtin", "named", "oneway", "silent", "users"] {
        scenario.assert_same(table);
        assert!(scenario.is_finished(table));
    }
}

fn every_type_arrives_unchanged(major: Major) {
    every_type(&Scenario::new(major, "every_type"));
}

fn ranges_under_a_writer_hold_exactly_the_snapshot(major: Major) {
    let mut scenario = Scenario::new(major, "ranges");
    scenario.options = Options { connections: 3, split_bytes: 1 << 20, ..Options::default() };
    scenario.both("CREATE TABLE big (id int PRIMARY KEY, v int NOT NULL, pad text)");
    scenario.source(
        "INSERT INTO big SELECT g, 0, repeat('x', g % 90) FROM generate_series(1, 300000) g;
         CREATE PUBLICATION p FOR TABLE big",
    );
    let running = AtomicBool::new(true);
    let digest = "SELECT count(*)::text || md5(string_agg(md5(b::text), '' ORDER BY id)) FROM big b";
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while running.load(Ordering::Relaxed) {
                scenario.source(
                    "UPDATE big SET v = v + 1 WHERE id % 97 = (random() * 96)::int;
                     DELETE FROM big WHERE id IN (SELECT (random() * 300000)::int FROM generate_series(1, 50));
                     INSERT INTO big SELECT max(id) + 1, -1, 'new' FROM big",
                );
            }
        });
        let expected: String = block_on(async {
            let jobs = scenario.jobs().await?;
            let (_exporter, snapshot) = scenario.export().await?;
            let reader = session(&scenario.source_info()).await?;
            reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
            reader.batch_execute(&format!("SET TRANSACTION SNAPSHOT '{}'", snapshot.name)).await?;
            copy_tables(scenario.attempt(snapshot), jobs, &scenario.stop).await?;
            anyhow::Ok(reader.query_one(digest, &[]).await?.get(0))
        })
        .inspect_err(|_| running.store(false, Ordering::Relaxed))
        .unwrap();
        running.store(false, Ordering::Relaxed);
        assert_eq!(scenario.target_value(digest), expected);
    });
    let table = Arc::clone(&scenario.progress.tables()[0]);
    assert_eq!(table.state(), TableState::Done);
    assert_eq!(table.rows().to_string(), scenario.target_value("SELECT count(*) FROM big"));
    assert_eq!(table.rows().to_string(), scenario.target_value("SELECT copied FROM pgsluice.copied"));
    // It was copied in ranges: a table in one transaction has one xmin.
    let transactions = scenario.target_value("SELECT count(DISTINCT xmin::text) FROM big");
    assert!(transactions.parse::<u32>().unwrap() >= 3, "{transactions} transactions");
}

fn column_list_and_row_filter(major: Major) {
    if major.number() < 15 {
        return;
    }
    let mut scenario = Scenario::new(major, "lists");
    scenario.options.split_bytes = 1 << 20;
    scenario.both(
        "CREATE FUNCTION public.is_even(int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT $1 % 2 = 0'",
    );
    scenario.source("CREATE TABLE t (id int PRIMARY KEY, secret text, v text, kind int)");
    scenario.target("CREATE TABLE t (extra text DEFAULT 'mine', v text, kind int, id int PRIMARY KEY)");
    scenario.source(
        "INSERT INTO t SELECT g, 'no', repeat('v', 200), g % 5 FROM generate_series(1, 60000) g;
         CREATE PUBLICATION p FOR TABLE t (id, v, kind) WHERE (kind + 0 > 2 OR kind = 0)",
    );
    scenario.copy().unwrap();
    let digest = "SELECT count(*)::text || sum(id) || min(v) || sum(kind) FROM t";
    let expected = scenario.pair.source.one(scenario.db, &format!("{digest} WHERE kind > 2 OR kind = 0"));
    assert_eq!(scenario.target_value(digest), expected);
    assert_eq!(scenario.target_value("SELECT DISTINCT extra FROM t"), "mine");
}

fn partitioned_tables_by_root_and_by_leaf(major: Major) {
    const ROOT: &str = "CREATE TABLE root (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);";
    // The middle leaf has its columns in another order and had another one.
    const LEAVES: &str = "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (1000);
        CREATE TABLE mid (gone int, v text, id int PRIMARY KEY);
        ALTER TABLE mid DROP COLUMN gone;
        ALTER TABLE root ATTACH PARTITION mid FOR VALUES FROM (1000) TO (200000);
        CREATE TABLE high PARTITION OF root FOR VALUES FROM (200000) TO (300000) PARTITION BY RANGE (id);
        CREATE TABLE highest PARTITION OF high FOR VALUES FROM (200000) TO (300000);";
    const ROWS: &str = "INSERT INTO root SELECT g, 'v' || g FROM generate_series(0, 299999, 3) g;";
    for (db, target, via_root) in [
        ("root_into_plain", "CREATE TABLE root (v text, id int PRIMARY KEY)".to_owned(), true),
        ("root_into_root", format!("{ROOT} CREATE TABLE all_of_it PARTITION OF root DEFAULT"), true),
        ("leaf_into_leaf", format!("{ROOT} {LEAVES}"), false),
    ] {
        let mut scenario = Scenario::new(major, db);
        scenario.options.split_bytes = 512 << 10;
        scenario.source(&format!("{ROOT} {LEAVES} {ROWS}"));
        scenario.target(&target);
        scenario.source(&format!(
            "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root = {via_root})"
        ));
        scenario.copy().unwrap();
        scenario.assert_same("root");
        assert_eq!(scenario.is_finished("root"), via_root);
        assert_eq!(scenario.is_finished("highest"), !via_root);
    }
}

fn inheritance_children_stay_tables_of_their_own(major: Major) {
    let scenario = Scenario::new(major, "inheritance");
    scenario.both("CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent)");
    scenario.source(
        "INSERT INTO parent SELECT generate_series(1, 10); INSERT INTO child SELECT generate_series(11, 30);
         CREATE PUBLICATION p FOR ALL TABLES",
    );
    scenario.copy().unwrap();
    scenario.assert_same("parent");
    assert_eq!(scenario.target_value("SELECT count(*) FROM ONLY parent"), "10");
}

fn names_are_quoted_wherever_they_stand(major: Major) {
    let mut scenario = Scenario::new(major, "names");
    scenario.options.split_bytes = 1 << 20;
    let table = r#""Schä ""ma"."T'a\b.le""#;
    scenario.both(&format!(
        r#"CREATE SCHEMA "Schä ""ma"; CREATE TABLE {table} ("Sel ect" int PRIMARY KEY, "ÄÖ""ü'" text, "$1" int)"#
    ));
    scenario.source(&format!("INSERT INTO {table} SELECT g, 'ñ' || g, -g FROM generate_series(1, 80000) g"));
    let filter = if major.number() >= 15 { r#"WHERE ("ÄÖ""ü'" <> 'x''\')"# } else { "" };
    scenario.source(&format!("CREATE PUBLICATION p FOR TABLE {table} {filter}"));
    scenario.copy().unwrap();
    scenario.assert_same(table);
    assert!(scenario.is_finished(r"T'a\b.le"));
}

fn as_many_columns_as_a_table_can_have(major: Major) {
    let scenario = Scenario::new(major, "wide");
    let list = |format: fn(usize) -> String| (1..=1600).map(format).collect::<Vec<_>>().join(", ");
    scenario.both(&format!("CREATE TABLE wide ({})", list(|n| format!("column_{n} int2"))));
    scenario
        .source(&format!("INSERT INTO wide SELECT {} FROM generate_series(1, 20)", list(|n| n.to_string())));
    scenario.source("CREATE PUBLICATION p FOR TABLE wide");
    scenario.copy().unwrap();
    assert_eq!(scenario.target_value("SELECT count(*) || '/' || min(column_1600) FROM wide"), "20/1600");
}

fn generated_and_identity_columns(major: Major) {
    let scenario = Scenario::new(major, "generated");
    scenario.both(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int,
                         twice int GENERATED ALWAYS AS (a * 2) STORED)",
    );
    // The target computes what the source stores, and the other way round.
    scenario.source("CREATE TABLE stored (id int PRIMARY KEY, a int, b int)");
    scenario
        .target("CREATE TABLE stored (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a + 1) STORED)");
    scenario.source(
        "INSERT INTO t (a) SELECT generate_series(1, 100); INSERT INTO stored VALUES (1, 5, 6);
         CREATE PUBLICATION p FOR TABLE t, stored",
    );
    scenario.copy().unwrap();
    scenario.assert_same("t");
    scenario.assert_same("stored");
    if major.number() >= 18 {
        scenario
            .source("CREATE TABLE computed (id int PRIMARY KEY, c int GENERATED ALWAYS AS (id * 3) STORED)");
        scenario.target("CREATE TABLE computed (id int PRIMARY KEY, c int)");
        scenario.source("INSERT INTO computed SELECT generate_series(1, 9); DROP PUBLICATION p");
        scenario.source("CREATE PUBLICATION p FOR TABLE computed WITH (publish_generated_columns = stored)");
        scenario.copy().unwrap();
        scenario.assert_same("computed");
    }
}

fn encodings_are_converted_in_both_formats(major: Major) {
    const LATIN1: &str = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    for (db, is_latin_source) in [("from_latin1", true), ("to_latin1", false)] {
        let scenario = Scenario::new(major, db);
        let changed = if is_latin_source { &scenario.pair.source } else { &scenario.pair.target };
        changed.sql("postgres", &format!("DROP DATABASE {db}")).unwrap();
        changed.sql("postgres", &format!("CREATE DATABASE {db} {LATIN1}")).unwrap();
        if !is_latin_source {
            scenario.target(crate::support::RECORD_SCHEMA);
        }
        scenario.both(
            "CREATE TYPE bär AS ENUM ('groß', 'klein');
             CREATE TABLE binär (id int PRIMARY KEY, größe text, c varchar(4), j text[]);
             CREATE TABLE text (id int PRIMARY KEY, v text, e bär[])",
        );
        scenario.source(
            "INSERT INTO binär VALUES (1, 'naïve', 'äöüß', '{é}'); INSERT INTO text VALUES (1, 'ÄÖÜ', '{groß}');
             CREATE PUBLICATION p FOR ALL TABLES",
        );
        let jobs = block_on(scenario.jobs()).unwrap();
        assert_eq!(jobs.iter().map(copy::CopyJob::is_binary).collect::<Vec<_>>(), [true, false]);
        scenario.copy().unwrap();
        // MD5 is taken of the bytes, so both are converted first.
        let rows = "SELECT md5(convert_to(string_agg(t::text, '|'), 'UTF8')) FROM";
        for table in ["binär", "text"] {
            let rows = format!("{rows} {table} t");
            assert_eq!(scenario.target_value(&rows), scenario.pair.source.one(db, &rows), "{table}");
        }
        assert_eq!(scenario.target_value("SELECT length(c) FROM binär"), "4");
    }
}

fn bytes_of_unknown_encoding_pass_between_two_databases_without_one(major: Major) {
    const ASCII: &str = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    let scenario = Scenario::between(major, major, "sql_ascii", ASCII);
    scenario.both("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int, v text, a aclitem)");
    scenario.source(
        r"INSERT INTO t VALUES (1, E'\xff\xfe'), (2, E'\xe4'); INSERT INTO u VALUES (1, E'a\xfc', NULL);
          CREATE PUBLICATION p FOR ALL TABLES",
    );
    scenario.copy().unwrap();
    let bytes = "SELECT string_agg(v::bytea::text, ',' ORDER BY id) FROM";
    assert_eq!(scenario.target_value(&format!("{bytes} t")), r"\xfffe,\xe4");
    assert_eq!(scenario.target_value(&format!("{bytes} u")), r"\x61fc");
}
