//! The situations that a simple follower of catalogs gets wrong, one by one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{PgVersion, RelFileLocator, Xid};
use catalog::{Catalog, Files};
use decode::{NewTuple, What};
use testkit::{Major, StopMode};
use types::{Codec, HeapTuple, Settings, Value};

use crate::stage::{DB, Stage, Talk, builder, try_look};

/// Catalogs that a transaction may give new files, each with one of its indexes.
const REWRITTEN: [(&str, &str); 9] = [
    ("pg_class", "pg_class_oid_index"),
    ("pg_attribute", "pg_attribute_relid_attnum_index"),
    ("pg_type", "pg_type_oid_index"),
    ("pg_namespace", "pg_namespace_oid_index"),
    ("pg_index", "pg_index_indrelid_index"),
    ("pg_inherits", "pg_inherits_parent_index"),
    ("pg_enum", "pg_enum_oid_index"),
    ("pg_publication", "pg_publication_oid_index"),
    ("pg_publication_rel", "pg_publication_rel_oid_index"),
];

/// Something of everything that the catalogs in question hold.
fn ddl(n: usize) -> String {
    format!(
        "CREATE SCHEMA s{n}; CREATE TYPE e{n} AS ENUM ('a', 'b'); \
         CREATE TABLE s{n}.t{n} (id int PRIMARY KEY, v e{n}); ALTER TABLE s{n}.t{n} ADD w text DEFAULT 'w{n}'; \
         CREATE TABLE parent{n} (id int) PARTITION BY LIST (id); \
         CREATE TABLE child{n} PARTITION OF parent{n} FOR VALUES IN (1); \
         CREATE PUBLICATION p{n} FOR TABLE s{n}.t{n}; INSERT INTO s{n}.t{n} VALUES (1, 'a')"
    )
}

fn locator(talk: &Talk<'_>, table: &str) -> RelFileLocator {
    let path = talk.one(&format!("SELECT pg_relation_filepath('{table}')"));
    let mut numbers = path.strip_prefix("base/").unwrap().split('/').map(|number| number.parse().unwrap());
    let (database, relfilenumber) = (base::Oid(numbers.next().unwrap()), numbers.next().unwrap());
    RelFileLocator { tablespace: base::Oid(1663), database, relfilenumber }
}

/// A first sketch silently lost two rows here: a transaction rewrites a catalog and then makes a
/// table.
#[test]
fn a_catalog_rewritten_inside_a_transaction_that_goes_on() {
    for major in Major::under_test() {
        let mut stage = Stage::start(major, &[]);
        let (runtime, url) = (Stage::runtime(), stage.cluster.url(DB));
        let mut n = 0;
        for (catalog, index) in REWRITTEN {
            // Both endings for a mapped catalog and for one whose files are in pg_class. One ending
            // for the others, which are like these.
            let ends = match catalog {
                "pg_class" | "pg_namespace" => &["COMMIT", "ROLLBACK"][..],
                _ => &["COMMIT"],
            };
            for &end in ends {
                n += 4;
                let (ours, other) = (Talk::connect(&runtime, &url), Talk::connect(&runtime, &url));
                // Changes of another open transaction are copied too, and that transaction ends
                // afterwards.
                other.sql(&format!("BEGIN; {}; SAVEPOINT a; {}; ROLLBACK TO a", ddl(n), ddl(n + 1)));
                ours.sql(&format!("BEGIN; {}; CLUSTER {catalog} USING {index}; {}", ddl(n + 2), ddl(n + 3)));
                let (xid, table) = (ours.xid(), locator(&ours, &format!("s{0}.t{0}", n + 3)));
                stage.catch_up();
                let where_ = format!("{catalog} {end}");
                stage.check_view(&ours, xid, &where_);
                assert!(matches!(stage.view(xid).files(table), Files::Table(_)), "{where_}");
                assert_eq!(stage.view(Xid::INVALID).files(table), Files::Unknown, "{where_}");
                assert!(stage.relation(Xid::INVALID, &format!("t{}", n + 3)).is_none(), "{where_}");
                // Either transaction may end first: the one that has written the old files, or the
                // one that made the new ones.
                let swapped = n % 8 == 0;
                if swapped {
                    other.sql("COMMIT");
                }
                ours.sql(end);
                if !swapped {
                    other.sql("ROLLBACK");
                }
                stage.catch_up();
                stage.check(&where_);
                let made = stage.relation(Xid::INVALID, &format!("t{}", n + 3)).is_some();
                assert_eq!(made, end == "COMMIT", "{where_}");
                assert_eq!(stage.relation(Xid::INVALID, &format!("t{n}")).is_some(), swapped, "{where_}");
            }
        }
        stage.sql("VACUUM FULL");
        stage.sql(&ddl(n + 4));
        stage.check("VACUUM FULL of everything");
    }
}

/// After a checkpoint, a changed page's image is the only source of a new row, plain or compressed.
#[test]
fn page_images_as_the_only_source_of_rows() {
    for major in Major::under_test() {
        // 14 has one method and does not name it.
        for compression in ["off", if major < Major::V15 { "on" } else { "pglz" }] {
            let cluster = builder(major).setting("wal_compression", compression).start().unwrap();
            cluster.sql(DB, "CREATE TABLE u (id int, v text); CREATE TYPE mood AS ENUM ('ok')").unwrap();
            let mut stage = Stage::look(cluster, &[DB]);
            for n in 0..6 {
                // Each statement finds all pages without an image since the last checkpoint.
                for sql in [
                    format!("CREATE TABLE t{n} (id int PRIMARY KEY, v text)"),
                    format!("ALTER TABLE t{n} RENAME v TO w"),
                    format!("ALTER TYPE mood ADD VALUE 'm{n}'"),
                    format!("ALTER TABLE u ADD c{n} int DEFAULT {n}"),
                    format!("DROP TABLE t{}", n / 2 * 2),
                ] {
                    stage.sql("CHECKPOINT");
                    let _ = stage.cluster.sql(DB, &sql);
                }
            }
            let (mut in_image, mut spliced) = (0, 0);
            stage.catch_up_and(|catalog, record| {
                let database = catalog.databases()[0].0;
                let tuple = match decode::decode(record).unwrap().what {
                    What::Insert(insert) => insert.tuple,
                    What::Update(update) => update.tuple,
                    _ => return,
                };
                if record.first_locator().is_some_and(|locator| locator.database == database) {
                    in_image += usize::from(matches!(tuple, NewTuple::InImage(_)));
                    spliced += usize::from(matches!(tuple, NewTuple::Spliced(_)));
                }
            });
            stage.check(&format!("wal_compression {compression}"));
            println!("{major}: wal_compression {compression}: {in_image} rows in images, {spliced} spliced");
            assert!(in_image > 25 && spliced > 5, "{in_image} {spliced}");
        }
    }
}

/// A crash leaves transactions without an end, and their rows on pages. Prepared transactions stay.
#[test]
fn a_crash_ends_transactions_without_a_record() {
    for major in Major::under_test() {
        let mut stage = Stage::start(major, &["CREATE TABLE u (id int)"]);
        let (runtime, url) = (Stage::runtime(), stage.cluster.url(DB));
        let lost = Talk::connect(&runtime, &url);
        lost.sql(
            "BEGIN; DROP TABLE u; CREATE TABLE lost (id int); SAVEPOINT a; CREATE TABLE lost_too (id int)",
        );
        let xid = lost.xid();
        let clustering = Talk::connect(&runtime, &url);
        stage.sql("BEGIN; CREATE TABLE prepared (id int); SAVEPOINT a; CREATE TABLE sub (id int); PREPARE TRANSACTION 'p'");
        clustering.sql("BEGIN; CLUSTER pg_namespace USING pg_namespace_oid_index; CREATE SCHEMA lost_schema");
        // No commit in this database comes before this, because pg_namespace is locked.
        stage.catch_up();
        assert!(stage.catalog.has_changes(xid) && stage.relation(xid, "lost_too").is_some());
        assert!(stage.relation(xid, "u").is_none() && stage.relation(Xid::INVALID, "u").is_some());
        stage.restart(StopMode::Immediate);
        // Takes the places of lost rows.
        for n in 0..20 {
            stage.sql(&format!("CREATE TABLE after{n} (id int)"));
        }
        stage.catch_up();
        assert!(!stage.catalog.has_changes(xid));
        for (name, is_there) in
            [("u", true), ("lost", false), ("lost_too", false), ("prepared", false), ("after1", true)]
        {
            assert_eq!(stage.relation(Xid::INVALID, name).is_some(), is_there, "{major}: {name}");
        }
        stage.sql("COMMIT PREPARED 'p'");
        stage.sql("ALTER TABLE u ADD v text");
        stage.check("after a crash");
        assert!(
            stage.relation(Xid::INVALID, "prepared").is_some()
                && stage.relation(Xid::INVALID, "sub").is_some()
        );
    }
}

/// Types, each with a default that old rows have without storing it.
const DEFAULTS: &[(&str, &str)] = &[
    ("int", "42"),
    ("bigint", "-42"),
    ("smallint", "7"),
    ("boolean", "true"),
    ("text", "'te\"x\\t, {}'"),
    ("varchar(9)", "''"),
    ("char(5)", "'ab'"),
    ("name", "'nm'"),
    ("numeric", "-1234567.8900"),
    ("numeric", "'NaN'"),
    ("numeric(6,2)", "0"),
    ("float8", "1.5e300"),
    ("real", "-0.1"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    ("date", "'2020-02-29'"),
    ("timestamptz", "'2020-02-29 12:00:00.5+02'"),
    ("time", "'23:59'"),
    ("timetz", "'23:59+02'"),
    ("interval", "'1 mon -3 days 04:05'"),
    ("bytea", "'\\x00ff'"),
    ("bit varying", "B'10101'"),
    ("point", "'(1,2)'"),
    ("box", "'(3,4),(1,2)'"),
    ("mood", "'ok'"),
    ("short", "'dom'"),
    ("json", "'{\"a\": 1}'"),
    ("jsonb", "'{\"a\": [1, null]}'"),
    ("int[]", "'{1,NULL,3}'"),
    ("inet", "'10.0.0.1/8'"),
    ("int4range", "'[1,5)'"),
    ("pair", "'(1,two)'"),
    ("mood[]", "'{ok,sad}'"),
];

/// SQL before the look gives what the server rendered. WAL after the look gives the stored form.
#[test]
fn missing_values_of_either_side_of_the_look() {
    for major in Major::under_test() {
        let cluster = builder(major).start().unwrap();
        cluster
            .sql(
                DB,
                "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN short AS text; CREATE TYPE pair AS (a int, b text); \
                 CREATE TABLE before_look (id int); INSERT INTO before_look VALUES (1); \
                 CREATE TABLE after_look (id int); INSERT INTO after_look VALUES (1)",
            )
            .unwrap();
        let add = |table: &str| {
            let column =
                |(n, (kind, value)): (usize, &(&str, &str))| format!("ADD c{n} {kind} DEFAULT {value}");
            let columns: Vec<_> = DEFAULTS.iter().enumerate().map(column).collect();
            format!(
                "ALTER TABLE {table} ADD gone int DEFAULT 1, {}; ALTER TABLE {table} DROP gone",
                columns.join(", ")
            )
        };
        cluster.sql(DB, &add("before_look")).unwrap();
        let mut stage = Stage::look(cluster, &[DB]);
        stage.sql(&add("after_look"));
        stage.catch_up();
        let mut stored = BTreeMap::new();
        for table in ["before_look", "after_look"] {
            stored.insert(table, compare_missing(&stage, table));
        }
        println!("{major}: stored forms of missing values: {stored:?} of {}", DEFAULTS.len());
        assert_eq!(stored["after_look"], DEFAULTS.len());
        // All but jsonb, arrays, inet, range and composite.
        assert_eq!(stored["before_look"], DEFAULTS.len() - 6);
        stage.sql("VACUUM FULL before_look");
        stage.check("missing values");
        let relation = stage.relation(Xid::INVALID, "before_look").unwrap();
        assert!(relation.columns.iter().all(|column| column.missing.is_none()));
    }
}

/// Compares all missing values with the server's answer for the old row. Returns how many are known
/// in their stored form.
fn compare_missing(stage: &Stage, table: &str) -> usize {
    let relation = stage.relation(Xid::INVALID, table).unwrap();
    let types =
        stage.view(Xid::INVALID).types(relation.columns.iter().map(|column| column.stored.type_oid)).unwrap();
    let settings = Settings::new(PgVersion::from_num(stage.major() * 10_000));
    let expected = stage.cluster.sql(DB, &format!("SELECT * FROM {table}")).unwrap();
    let mut stored = 0;
    let columns = relation.columns.iter().filter(|column| !column.stored.dropped);
    for (column, expected) in columns.zip(&expected[0]).skip(1) {
        let missing = column.missing.as_ref().unwrap_or_else(|| panic!("{table}.{}", column.name));
        let codec = Codec::compile(column.stored.type_oid, &types, &settings).unwrap();
        if let Some(text) = &missing.text {
            assert_eq!(Some(text), expected.as_ref(), "{table}.{}", column.name);
        }
        if missing.stored.is_some() {
            let attributes = [column.stored.clone()];
            let mut values: Vec<Value<'_>> = Vec::new();
            HeapTuple::new(0, 0, 24, &[0]).unwrap().deform(&attributes, &mut values).unwrap();
            let payload = values[0].payload().unwrap().unwrap();
            let (mut text, mut binary) = (Vec::new(), Vec::new());
            codec.text(&payload, &settings, &mut text).unwrap();
            codec.binary(&payload, &settings, &mut binary).unwrap();
            assert_eq!(Some(String::from_utf8(text).unwrap()), *expected, "{table}.{}", column.name);
            assert!(missing.binary.as_ref().is_none_or(|sent| *sent == binary), "{table}.{}", column.name);
            stored += 1;
        } else {
            assert!(missing.text.is_some() && missing.binary.is_some(), "{table}.{}", column.name);
        }
    }
    stored
}

/// Looks at the catalogs while other sessions make and change tables and rewrite catalogs. Then
/// each look is followed to the same end.
#[test]
fn a_look_in_the_middle_of_ddl_and_of_a_catalogs_rewrite() {
    for major in Major::under_test() {
        let cluster = builder(major).start().unwrap();
        let stop = AtomicBool::new(false);
        let url = cluster.url(DB);
        let looks = std::thread::scope(|scope| {
            for worker in 0..3 {
                let (url, stop) = (&url, &stop);
                scope.spawn(move || {
                    let runtime = Stage::runtime();
                    let talk = Talk::connect(&runtime, url);
                    talk.sql("SET client_min_messages = error");
                    let mut n = 0;
                    while !stop.load(Ordering::Relaxed) {
                        n += 1;
                        if worker == 2 {
                            let (catalog, index) = REWRITTEN[n % REWRITTEN.len()];
                            let _ = talk.try_sql(&format!("BEGIN; CREATE TABLE r{n} (id int)"));
                            let _ = talk.try_sql(&format!(
                                "CLUSTER {catalog} USING {index}; DROP TABLE r{n}; COMMIT"
                            ));
                            let _ = talk.try_sql("ROLLBACK");
                            // A look could not wait for a session that rewrites catalogs without a
                            // pause.
                            talk.sql("SELECT pg_sleep(0.3)");
                            continue;
                        }
                        let end = if n % 4 == 0 { "ROLLBACK" } else { "COMMIT" };
                        let _ = talk.try_sql(&format!(
                            "BEGIN; CREATE TABLE w{worker}_{n} (id serial PRIMARY KEY, v text); SAVEPOINT a; \
                             ALTER TABLE w{worker}_{n} ADD x int DEFAULT 5; ROLLBACK TO a; SAVEPOINT b; \
                             ALTER TABLE w{worker}_{n} ADD y int; RELEASE b; {end}"
                        ));
                        let _ = talk.try_sql("ROLLBACK");
                        let _ = talk.try_sql(&format!("DROP TABLE IF EXISTS w{worker}_{}", n - n / 3));
                    }
                });
            }
            let runtime = Stage::runtime();
            let looks: Vec<_> = (0..4)
                .map(|_| try_look(&runtime, &cluster, &[DB], Duration::from_secs(60)).unwrap())
                .collect();
            stop.store(true, Ordering::Relaxed);
            looks
        });
        let mut looks = looks.into_iter();
        let mut stage = Stage::with(cluster, Stage::runtime(), looks.next().unwrap());
        stage.check("the first look");
        let (end, mut followed) = (stage.position(), 0);
        for (number, mut catalog) in looks.enumerate() {
            stage.again(&mut catalog, end).unwrap();
            let differences = stage.catalog.differences(&catalog);
            assert!(differences.is_empty(), "{major}: look {number}: {differences:#?}");
            followed += 1;
        }
        assert_eq!(followed, 3);
    }
}

/// A transaction writes its abort record first and leaves the list of running ones later. A rewrite
/// in between copies its rows as if they could still commit, and the rows it deleted as if they
/// could still go.
#[test]
fn a_copy_that_takes_an_aborted_transaction_for_running() {
    for major in Major::under_test() {
        let prepared = builder(major).setting("max_prepared_transactions", "5").setting("fsync", "on");
        let cluster = prepared.start().unwrap();
        cluster.sql(DB, "CREATE TABLE stays (id serial PRIMARY KEY, v text)").unwrap();
        let mut stage = Stage::look(cluster, &[DB]);
        let (runtime, url) = (Stage::runtime(), stage.cluster.url(DB));
        let (ours, other) = (Talk::connect(&runtime, &url), Talk::connect(&runtime, &url));
        // The server waits this long between the record and the list. It is the longest time that
        // can be set.
        other.sql("SET commit_delay = 100000; SET commit_siblings = 0");
        let mut hit = 0;
        for (n, (catalog, index)) in REWRITTEN.iter().enumerate() {
            other.sql("BEGIN; DROP TABLE stays; CREATE TABLE goes (id serial PRIMARY KEY, v text)");
            other.sql(&format!("CREATE SCHEMA goes; PREPARE TRANSACTION 'p{n}'"));
            ours.sql(&format!("BEGIN; CREATE TABLE r{n} (id int)"));
            let before = ours.one("SELECT pg_current_wal_insert_lsn()");
            let is_running = std::thread::scope(|scope| {
                let aborting = scope.spawn(|| other.sql(&format!("ROLLBACK PREPARED 'p{n}'")));
                let written = format!("SELECT pg_current_wal_insert_lsn() > '{before}'");
                while ours.one(&written) != "t" {}
                ours.sql(&format!("CLUSTER {catalog} USING {index}"));
                let is_running = !aborting.is_finished();
                aborting.join().unwrap();
                is_running
            });
            hit += usize::from(is_running);
            ours.sql("COMMIT");
            stage.check(&format!("round {n}, {catalog}, still in the list: {is_running}"));
        }
        assert!(hit > 0, "{major}: no rewrite was done while the server waited");
    }
}

/// The transaction that does not end is named, and the wait has a bound.
#[test]
fn a_look_waits_for_transactions_only_so_long() {
    for major in Major::under_test() {
        let stage = Stage::start(major, &[]);
        let talk = stage.talk();
        talk.sql("BEGIN; CREATE TABLE t (id int)");
        let xid = talk.xid();
        let runtime = Stage::runtime();
        let error = try_look(&runtime, &stage.cluster, &[DB], Duration::from_millis(200)).unwrap_err();
        assert!(error.is_passing() && error.to_string().contains(&xid.to_string()), "{error}");
        talk.sql("COMMIT");
        try_look(&runtime, &stage.cluster, &[DB], Duration::from_secs(60)).unwrap();
    }
}

/// Changes to files that no relation has are kept until their transaction ends. If it commits,
/// following stops there.
#[test]
fn w1_unknown_files_stop_at_commit_and_only_there() {
    for major in Major::under_test() {
        let mut stage = Stage::start(major, &["CREATE TABLE t (id int)"]);
        let nobodys =
            RelFileLocator { tablespace: base::Oid(1663), database: stage.database, relfilenumber: 7 };
        assert_eq!(stage.view(Xid::INVALID).files(nobodys), Files::Unknown);
        for (sql, stops) in [
            ("BEGIN; INSERT INTO t VALUES (1); ROLLBACK", false),
            ("BEGIN; SAVEPOINT a; INSERT INTO t VALUES (1); ROLLBACK TO a; COMMIT", false),
            ("BEGIN; SAVEPOINT a; INSERT INTO t VALUES (1); COMMIT", true),
        ] {
            stage.sql(sql);
            let mut kept = 0;
            let followed = stage.each(|catalog, record, _| {
                let is_insert =
                    matches!(decode::decode(record).unwrap().what, What::Insert(insert) if insert.is_logical);
                if is_insert {
                    catalog.check_at_commit(record, nobodys);
                    kept += 1;
                }
            });
            assert_eq!(kept, 1, "{sql}");
            match followed {
                Ok(()) => assert!(!stops, "{sql}"),
                Err(error) => {
                    assert!(stops && error.is_unknown_files() && error.lsn().is_some(), "{sql}: {error}")
                }
            }
        }
    }
}

/// What happens to earlier answers: each change is reported, with the transactions that it
/// concerns.
#[test]
fn w2_changes_are_told_when_they_hold() {
    for major in Major::under_test().into_iter().filter(|major| *major >= Major::V15) {
        let prepare = "CREATE SCHEMA s; CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE p (id int) PARTITION BY LIST (id); \
            CREATE TABLE p1 (id int); CREATE PUBLICATION pub FOR TABLE t";
        let mut stage = Stage::start(major, &[prepare]);
        stage.catch_up();
        let oid = stage.relation(Xid::INVALID, "t").unwrap().oid;
        for (sql, database, relation) in [
            ("TRUNCATE t", false, true),
            ("VACUUM FULL t", false, true),
            ("CREATE INDEX ON t (id)", false, true),
            ("CREATE TEMP TABLE x (id int)", false, false),
            ("CREATE TABLE y (id int, v text)", false, false),
            ("DROP TABLE y", false, false),
            ("ALTER TABLE t REPLICA IDENTITY FULL", false, true),
            ("ALTER TABLE t ADD v text", true, true),
            ("ALTER TABLE t SET SCHEMA s", true, true),
            ("ALTER PUBLICATION pub SET (publish = 'insert')", true, false),
            ("ALTER PUBLICATION pub ADD TABLES IN SCHEMA s", true, false),
            ("ALTER TABLE p ATTACH PARTITION p1 FOR VALUES IN (1)", true, false),
            ("ALTER TABLE p DETACH PARTITION p1", true, false),
            ("ALTER SCHEMA s RENAME TO s2", true, false),
            ("CREATE TABLE n (id int)", false, false),
        ] {
            stage.sql(sql);
            let (mut databases, mut relations, mut own) = (Vec::new(), Vec::new(), 0);
            stage
                .each(|_, _, followed| {
                    let changes = followed.changes.unwrap_or_default();
                    databases.extend(changes.databases);
                    relations.extend(changes.relations);
                    own += usize::from(followed.own.is_some());
                })
                .unwrap();
            let here = stage.database;
            assert_eq!(databases.contains(&here), database, "{major}: {sql}: {databases:?}");
            // Only when its own row changes is a publication's table reported by its relation.
            if !sql.contains("PUBLICATION") {
                assert_eq!(relations.contains(&(here, oid)), relation, "{major}: {sql}: {relations:?}");
            }
            assert!(own > 0, "{major}: {sql}");
        }
    }
}

/// Settings without which catalogs cannot be followed.
#[test]
fn what_makes_following_impossible_stops_it() {
    for major in Major::under_test() {
        for (line, text) in
            [("full_page_writes = off", "full_page_writes"), ("wal_level = replica", "wal_level")]
        {
            let mut stage = Stage::start(major, &[]);
            stage.catch_up();
            let (name, value) = line.split_once(" = ").unwrap();
            stage.sql(&format!("ALTER SYSTEM SET {name} = {value}"));
            stage.restart(StopMode::Fast);
            // A server that starts with full_page_writes off reports that only with its next
            // checkpoint.
            stage.sql("CHECKPOINT");
            let error = stage.each(|_, _, _| {}).expect_err(line);
            assert!(error.is_unfit() && error.to_string().contains(text), "{major}: {error}");
            let error = try_look(&Stage::runtime(), &stage.cluster, &[DB], Duration::ZERO).unwrap_err();
            assert!(error.is_unfit() && error.to_string().contains(text), "{major}: {error}");
        }
    }
}

/// A record that is left out is noticed with the next one.
#[test]
fn a_record_that_was_not_followed_is_noticed() {
    let mut stage = Stage::start(Major::V15, &[]);
    stage.sql("CREATE TABLE t (id int)");
    let (mut copy, mut count, mut noticed): (Catalog, _, _) = (stage.catalog.clone(), 0, None);
    stage
        .each(|_, record, _| {
            count += 1;
            if count != 20 && noticed.is_none() {
                noticed = copy.follow(record).err();
            }
        })
        .unwrap();
    let error = noticed.unwrap();
    assert!(error.to_string().contains("record by record"), "{error}");
}
