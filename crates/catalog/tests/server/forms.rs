//! Publications and types in every form, compared with what the server says of them.

use std::collections::{BTreeMap, BTreeSet};

use base::{PgVersion, Xid};
use catalog::{Published, View};
use testkit::Major;
use types::{Codec, Settings};
use wal::Actions;

use crate::stage::{DB, Stage, Talk};

const TABLES: &str = "CREATE SCHEMA s; CREATE SCHEMA s2; \
    CREATE TABLE plain (id int PRIMARY KEY, v text, n numeric, w int); \
    CREATE TABLE s.inside (id int PRIMARY KEY, v text); CREATE TABLE s.other (id int, gone int, v text); \
    ALTER TABLE s.other DROP gone; \
    CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); \
    CREATE TABLE mid (v text, id int NOT NULL) PARTITION BY RANGE (id); \
    CREATE TABLE leaf1 PARTITION OF root FOR VALUES FROM (0) TO (100); \
    CREATE TABLE s.leaf2 PARTITION OF mid FOR VALUES FROM (100) TO (150); \
    ALTER TABLE root ATTACH PARTITION mid FOR VALUES FROM (100) TO (200); \
    CREATE TABLE stored (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, v text); \
    CREATE UNLOGGED TABLE unlogged (id int); CREATE VIEW a_view AS SELECT 1; CREATE MATERIALIZED VIEW mat AS SELECT 1 AS id";

/// Statements that make publications, from a major on.
const PUBLICATIONS: &[(u32, &str)] = &[
    (14, "CREATE PUBLICATION every FOR ALL TABLES"),
    (14, "CREATE PUBLICATION every_root FOR ALL TABLES WITH (publish_via_partition_root)"),
    (14, "CREATE PUBLICATION empty"),
    (14, "CREATE PUBLICATION one FOR TABLE plain WITH (publish = 'insert, delete')"),
    (14, "CREATE PUBLICATION a_leaf FOR TABLE s.leaf2, leaf1"),
    (14, "CREATE PUBLICATION a_root FOR TABLE root"),
    (14, "CREATE PUBLICATION via_root FOR TABLE root WITH (publish_via_partition_root)"),
    (14, "CREATE PUBLICATION via_mid FOR TABLE mid, plain WITH (publish_via_partition_root)"),
    (15, "CREATE PUBLICATION a_schema FOR TABLES IN SCHEMA s"),
    (15, "CREATE PUBLICATION schema_root FOR TABLES IN SCHEMA s, public WITH (publish_via_partition_root)"),
    (15, "CREATE PUBLICATION mixed FOR TABLE plain WHERE (id > 10), TABLES IN SCHEMA s"),
    (15, "CREATE PUBLICATION some_columns FOR TABLE plain (n, id), s.other (v, id)"),
    (15, "CREATE PUBLICATION filtered FOR TABLE plain WHERE (id > 5), leaf1 WHERE (v <> 'x')"),
    (
        15,
        "CREATE PUBLICATION filtered_root FOR TABLE root (id) WHERE (id < 150) WITH (publish_via_partition_root)",
    ),
    (18, "CREATE PUBLICATION generated FOR ALL TABLES WITH (publish_generated_columns = stored)"),
    (18, "CREATE PUBLICATION listed FOR TABLE stored (id, twice)"),
];

/// Publication, published table, columns, filter.
type Lines = BTreeSet<(String, String, Vec<String>, Option<String>)>;

fn theirs(talk: &Talk<'_>, major: u32) -> Lines {
    let columns = if major >= 15 { "attnames::text[]::text, rowfilter" } else { "NULL, NULL" };
    let list = |text: &str| -> Vec<String> {
        text.trim_matches(['{', '}']).split(',').map(str::to_owned).filter(|name| !name.is_empty()).collect()
    };
    let rows = talk.sql(&format!(
        "SELECT pubname, schemaname || '.' || tablename, {columns} FROM pg_publication_tables"
    ));
    let line = |row: Vec<Option<String>>| {
        let text = |at: usize| row[at].clone().unwrap_or_default();
        let mut columns = list(&text(2));
        // Up to 17, the server lists generated columns, but pgoutput sends none of them.
        columns.retain(|column| major >= 18 || column != "twice");
        (text(0), text(1), columns, row[3].clone())
    };
    rows.into_iter().map(line).collect()
}

/// The same lines from the view: each publication alone, for each relation.
fn ours(view: &View<'_>, major: u32, filters: &BTreeMap<String, String>) -> Lines {
    let mut lines = Lines::new();
    for name in view.publications() {
        for oid in view.relations() {
            let Some(published) = view.published(&[name], oid).unwrap() else { continue };
            let target = view.relation(published.as_relation).unwrap().unwrap();
            let columns = published.columns.iter();
            let columns = columns.map(|number| target.columns[*number as usize - 1].name.clone());
            let columns = if major >= 15 { columns.collect() } else { Vec::new() };
            let filter = tree(&published).map(|tree| filters[tree].clone());
            lines.insert((name.to_owned(), format!("{}.{}", target.schema, target.name), columns, filter));
        }
    }
    lines
}

fn tree(published: &Published) -> Option<&str> {
    let filters = &published.filters;
    let all = [&filters.insert, &filters.update, &filters.delete];
    all.into_iter().flatten().flatten().map(String::as_str).next()
}

/// The SQL of each stored filter.
fn filters(talk: &Talk<'_>, major: u32) -> BTreeMap<String, String> {
    if major < 15 {
        return BTreeMap::new();
    }
    let rows = talk
        .sql("SELECT prqual, pg_get_expr(prqual, prrelid) FROM pg_publication_rel WHERE prqual IS NOT NULL");
    rows.into_iter().map(|row| (row[0].clone().unwrap(), row[1].clone().unwrap())).collect()
}

/// Compares within `talk`'s transaction, which is `xid`.
fn compare(stage: &mut Stage, talk: &Talk<'_>, xid: Xid, where_: &str) -> usize {
    stage.catch_up();
    let major = stage.major();
    let expected = theirs(talk, major);
    let found = ours(&stage.view(xid), major, &filters(talk, major));
    let missing: Vec<_> = expected.difference(&found).collect();
    let wrong: Vec<_> = found.difference(&expected).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "{major}: {where_}: missing {missing:#?}, wrong {wrong:#?}"
    );
    found.len()
}

/// Each form, made before the look and after it, seen from inside its transaction and from outside,
/// and after changes to what it depends on.
#[test]
fn publications_in_every_form() {
    for major in Major::under_test() {
        let known = |(since, sql): &&(u32, &'static str)| (*since <= major.number()).then_some(*sql);
        let all: Vec<_> = PUBLICATIONS.iter().filter_map(|entry| known(&entry)).collect();
        let (before, after) = all.split_at(all.len() / 2);
        let mut stage = Stage::start(major, &[&[TABLES], before].concat());
        let (runtime, url) = (Stage::runtime(), stage.cluster.url(DB));
        let (talk, other) = (Talk::connect(&runtime, &url), Talk::connect(&runtime, &url));
        talk.sql("SET client_min_messages = error");
        let mut compared = compare(&mut stage, &talk, Xid::INVALID, "as looked at");
        talk.sql("BEGIN");
        after.iter().for_each(|sql| drop(talk.sql(sql)));
        let xid = talk.xid();
        compared += compare(&mut stage, &talk, xid, "its own");
        compared += compare(&mut stage, &other, Xid::INVALID, "not committed");
        talk.sql("COMMIT");
        for sql in [
            "SELECT 1",
            "ALTER TABLE plain SET SCHEMA s",
            "ALTER TABLE s.inside SET SCHEMA s2",
            "ALTER TABLE root DETACH PARTITION mid",
            "ALTER TABLE mid ADD x int",
            "ALTER PUBLICATION via_mid ADD TABLE leaf1",
            "ALTER PUBLICATION a_leaf DROP TABLE leaf1",
            "ALTER TABLE mid DROP x",
            "ALTER TABLE root ATTACH PARTITION mid FOR VALUES FROM (100) TO (200)",
            "ALTER SCHEMA s RENAME TO renamed",
            "ALTER PUBLICATION via_root SET (publish_via_partition_root = false)",
            "DROP TABLE leaf1",
            "VACUUM FULL pg_publication_rel",
            "ALTER PUBLICATION one RENAME TO other_name",
            "DROP PUBLICATION every",
        ] {
            talk.sql(sql);
            compared += compare(&mut stage, &talk, Xid::INVALID, sql);
        }
        println!("{major}: {compared} published tables compared");
        // 14 has fewer forms.
        assert!(compared > if major < Major::V15 { 300 } else { 400 }, "{compared}");
        stage.check("publications");
    }
}

/// What several publications publish together, by pgoutput's rules.
#[test]
fn several_publications_of_one_table() {
    for major in Major::under_test().into_iter().filter(|major| *major >= Major::V15) {
        let stage = Stage::start(
            major,
            &[
                TABLES,
                "CREATE PUBLICATION inserts FOR TABLE plain WHERE (id > 1) WITH (publish = 'insert')",
                "CREATE PUBLICATION updates FOR TABLE plain WHERE (id > 2) WITH (publish = 'update')",
                "CREATE PUBLICATION more_inserts FOR TABLE plain WHERE (id > 3) WITH (publish = 'insert, truncate')",
                "CREATE PUBLICATION every_insert FOR ALL TABLES WITH (publish = 'insert')",
                "CREATE PUBLICATION narrow FOR TABLE plain (id)",
                "CREATE PUBLICATION leaf FOR TABLE leaf1 WHERE (id > 4)",
                "CREATE PUBLICATION root FOR TABLE root WITH (publish_via_partition_root, publish = 'insert')",
            ],
        );
        let view = stage.view(Xid::INVALID);
        let oid = |name| stage.relation(Xid::INVALID, name).unwrap().oid;
        let of = |names: &[&str], table| view.published(names, oid(table)).unwrap().unwrap();
        let counts = |published: &Published| {
            let filters = &published.filters;
            [&filters.insert, &filters.update, &filters.delete].map(|trees| trees.as_ref().map(Vec::len))
        };
        let both = of(&["inserts", "updates", "more_inserts", "not there"], "plain");
        assert_eq!(both.actions, Actions::INSERT | Actions::UPDATE | Actions::TRUNCATE);
        assert_eq!(counts(&both), [Some(2), Some(1), None]);
        assert_eq!(counts(&of(&["inserts", "every_insert", "updates"], "plain")), [None, Some(1), None]);
        assert!(view.published(&["inserts", "narrow"], oid("plain")).is_err(), "different columns");
        // The publication with the topmost ancestor decides. The actions of both count.
        let leaf = of(&["leaf", "root"], "leaf1");
        assert_eq!((leaf.as_relation, counts(&leaf)), (oid("root"), [None; 3]));
        assert_eq!(leaf.actions, Actions::ALL);
        assert_eq!(view.published(&["leaf"], oid("root")).unwrap(), None);
        assert_eq!(view.published(&["every_insert"], oid("unlogged")).unwrap(), None);
    }
}

/// A filter so long that it is out of line: before the look, after it, and moved by a rewrite.
#[test]
fn filters_that_are_out_of_line() {
    for major in Major::under_test().into_iter().filter(|major| *major >= Major::V15) {
        let filter = |seed: usize| {
            let parts: Vec<_> = (0..400)
                .map(|n| format!("v <> '{:x}'", seed.wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ (n * n * 7919))))
                .collect();
            parts.join(" AND ")
        };
        let before = format!("CREATE PUBLICATION before_look FOR TABLE plain WHERE ({})", filter(3));
        let mut stage = Stage::start(major, &[TABLES, "ALTER TABLE plain REPLICA IDENTITY FULL", &before]);
        let (runtime, url) = (Stage::runtime(), stage.cluster.url(DB));
        let talk = Talk::connect(&runtime, &url);
        talk.sql(&format!("CREATE PUBLICATION after_look FOR TABLE plain WHERE ({})", filter(5)));
        compare(&mut stage, &talk, Xid::INVALID, "as made");
        stage.sql("CHECKPOINT");
        talk.sql(&format!(
            "BEGIN; CREATE PUBLICATION inside FOR TABLE plain WHERE ({}); \
             CLUSTER pg_publication_rel USING pg_publication_rel_oid_index; \
             CREATE PUBLICATION behind FOR TABLE plain WHERE ({})",
            filter(7),
            filter(9)
        ));
        let xid = talk.xid();
        compare(&mut stage, &talk, xid, "its own");
        talk.sql("COMMIT");
        assert_eq!(compare(&mut stage, &talk, Xid::INVALID, "rewritten"), 4);
        assert!(
            talk.one("SELECT pg_relation_size('pg_toast.pg_toast_6106')") != "0",
            "nothing was out of line"
        );
        stage.sql("VACUUM FULL pg_publication_rel; ");
        compare(&mut stage, &talk, Xid::INVALID, "rewritten again");
        stage.check("long filters");
    }
}

const TYPES: &str = "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN dm AS mood; CREATE DOMAIN dd AS dm; \
    CREATE TYPE pair AS (x int, m mood, l dd[]); CREATE TYPE span AS RANGE (subtype = float8); \
    CREATE TABLE of_types (id int, a mood, b dd, c pair, d span, e mood[], f pair[], g int4multirange, h of_rows)";

const VALUES: &str = "SELECT 1, 'ok'::mood, 'new'::dd, ROW(1, 'new', '{sad,new}')::pair, '[1,2.5)'::span, \
    '{ok,new}'::mood[], ARRAY[ROW(2, 'ok', NULL)::pair], '{[1,3)}'::int4multirange, ROW(5, 'r')::of_rows";

/// Users' types, made after the look and changed in a transaction, compile correctly.
#[test]
fn types_of_every_kind() {
    for major in Major::under_test() {
        let mut stage = Stage::start(major, &["CREATE TABLE of_rows (id int, v text)"]);
        let (runtime, url) = (Stage::runtime(), stage.cluster.url(DB));
        let talk = Talk::connect(&runtime, &url);
        stage.sql(TYPES);
        stage.sql("ALTER TYPE mood ADD VALUE 'new' BEFORE 'ok'; ");
        stage.sql(&format!("INSERT INTO of_types {VALUES}"));
        stage.catch_up();
        let settings = Settings::new(PgVersion::from_num(major.number() * 10_000));
        let relation = stage.relation(Xid::INVALID, "of_types").unwrap();
        let view = stage.view(Xid::INVALID);
        let types = view.types(relation.columns.iter().map(|column| column.stored.type_oid)).unwrap();
        for column in &relation.columns {
            Codec::compile(column.stored.type_oid, &types, &settings)
                .unwrap_or_else(|error| panic!("{error}"));
        }
        for (column, kind) in [("a", "mood"), ("b", "mood"), ("c", "pair"), ("d", "span"), ("h", "of_rows")] {
            let oid = relation.columns.iter().find(|found| found.name == column).unwrap().stored.type_oid;
            assert_eq!(view.type_name(oid), Some(("public", kind)), "{column}");
        }
        // A label and a column that only the transaction has.
        talk.sql("BEGIN; ALTER TYPE pair ADD ATTRIBUTE z text; ALTER TYPE mood RENAME VALUE 'sad' TO 'glad'");
        let xid = talk.xid();
        stage.catch_up();
        let labels = |viewer| {
            let types = stage
                .view(viewer)
                .types(relation.columns.iter().map(|column| column.stored.type_oid))
                .unwrap();
            let mut described = Vec::new();
            for info in types.values() {
                match &info.kind {
                    types::TypeKind::Enum { labels } => {
                        described.extend(labels.iter().map(|(_, label)| label.clone()));
                    }
                    types::TypeKind::Composite { attributes } if info.name == "pair" => {
                        described.push(attributes.len().to_string());
                    }
                    _ => {}
                }
            }
            described.into_iter().collect::<BTreeSet<_>>()
        };
        let set = |texts: [&str; 4]| texts.map(str::to_owned).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(labels(Xid::INVALID), set(["sad", "new", "ok", "3"]));
        assert_eq!(labels(xid), set(["glad", "new", "ok", "4"]));
        talk.sql("ROLLBACK");
        stage.check("types");
        assert_eq!(labels_of(&stage), 3);
    }
}

fn labels_of(stage: &Stage) -> usize {
    let relation = stage.relation(Xid::INVALID, "of_types").unwrap();
    let oid = relation.columns[1].stored.type_oid;
    match &stage.view(Xid::INVALID).types([oid]).unwrap()[&oid].kind {
        types::TypeKind::Enum { labels } => labels.len(),
        kind => panic!("{kind:?}"),
    }
}
