//! The choice of the form of values must tell a type that is the same on every server from one that
//! is not.
//!
//! Arrays, ranges and multiranges of built-in types go in binary, from either source, between any
//! majors, and by every way of applying rows. One column of a user's type costs the stream its
//! binary form, and `status` names it.

use serde_json::Value;

use crate::refresh::wait_until_joined;
use crate::support::{FOLDED, Scenario, scenario_with};
use crate::types::{arrays_pass_through, binary_types};

/// Either source, in either form; rows as sets, by a procedure, one by one, by many sessions.
const ROUTES: &[&[&str]] = &[
    &["--source-mode", "logical"],
    &["--source-mode", "wal"],
    &["--source-mode", "wal", "--binary", "off"],
    &["--source-mode", "logical", "PGSLUICE_EXACT_ONLY=1"],
    &["--source-mode", "logical", "--keep-commit-timestamps", "on", "--prefetch", "all"],
];

const EITHER_SOURCE: &[&[&str]] = &[&["--source-mode", "logical"], &["--source-mode", "wal"]];

/// What `status` says of the form of values, the same as JSON and for people.
#[track_caller]
fn values(s: &Scenario, number: usize) -> Value {
    let values = s.status(number)["values"].clone();
    let shown = s.call(number, &["status"]).stdout;
    let line = shown.lines().find_map(|line| line.strip_prefix("values")).expect("a line").trim().to_owned();
    match values["reason"].as_str() {
        Some(reason) => assert_eq!(line, format!("as text: {reason}")),
        None => assert_eq!(line, "in binary form"),
    }
    values
}

#[test]
fn arrays_of_every_built_in_type_go_in_binary() {
    arrays_pass_through(ROUTES, binary_types, true);
}

/// An array in the key, in a secondary index, beside one that is not sent, and one that no row has
/// stored (a default that came later).
#[test]
fn arrays_and_ranges_as_keys() {
    scenario_with(ROUTES, |s| {
        s.both(
            "CREATE TABLE k (a int[], r int4range, v text[], PRIMARY KEY (a, r)); CREATE INDEX ON k (v); \
             CREATE TABLE big (id int PRIMARY KEY, v float8[], n int, m int8multirange); CREATE INDEX ON big (n); \
             ALTER TABLE big ALTER v SET STORAGE EXTERNAL",
        );
        s.source(
            "INSERT INTO k SELECT ARRAY[i, NULL], int4range(i, i + 1), ARRAY[i::text] FROM generate_series(1, 50) i; \
             INSERT INTO big SELECT i, array_agg(x), i, '{[1,2)}' FROM generate_series(1, 20) i, generate_series(1, 500) x GROUP BY i",
        );
        s.both("ALTER TABLE big ADD w int[] DEFAULT '[2:3]={7,NULL}', ADD x numrange[] DEFAULT '{empty}'");
        s.live(&[
            "UPDATE k SET v = v || '{x,NULL}' WHERE upper(r) % 2 = 0",
            "DELETE FROM k WHERE a[1] > 40",
            "UPDATE big SET n = -n",
        ]);
        s.backlog(&[
            "UPDATE k SET a = '[0:1]={7,8}' || a, v = NULL WHERE a[1] < 10",
            "UPDATE k SET r = 'empty' WHERE a[1] = 20",
            "UPDATE big SET n = n - 1, m = '{}' WHERE id % 2 = 0; UPDATE big SET v = '{}' WHERE id = 4",
            "INSERT INTO k SELECT ARRAY[[i, 1], [2, 3]], 'empty', '{}' FROM generate_series(100, 150) i",
        ]);
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
    });
}

/// `status` names a column of a user's type with the form of values. Without that column values
/// come in binary again.
#[test]
fn the_column_that_costs_the_binary_form_is_named() {
    scenario_with(EITHER_SOURCE, |s| {
        s.target("CREATE TYPE before AS (x int)");
        s.both(
            "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN few AS int4[] CHECK (cardinality(value) < 4); \
             CREATE TYPE pair AS (a int4[], m mood); CREATE TYPE floats AS RANGE (subtype = float8, multirange_type_name = many); \
             CREATE TABLE plain (id int PRIMARY KEY, v int4[], r tstzrange[]); \
             CREATE TABLE users (id int PRIMARY KEY, ms mood[], f few, p pair, ps pair[], fl floats, mm many, fs floats[])",
        );
        s.publish("FOR TABLE plain, users, mark");
        s.source("INSERT INTO plain VALUES (1, '{1,NULL}', '{empty}'); INSERT INTO users (id) VALUES (1)");
        s.follow();
        for number in 0..s.followers() {
            let values = values(s, number);
            assert_eq!((&values["form"], &values["table"]), (&"text".into(), &"public.users".into()));
            assert_eq!(values["column"], "ms");
            let reason = values["reason"].as_str().unwrap();
            assert!(
                reason.contains("user-defined type public.mood[] (and 6 more columns are in the way)"),
                "{reason}"
            );
            assert!(s.log(number).contains(&format!("values come as text: {reason}")), "{}", s.log(number));
        }
        s.live(&[
            "INSERT INTO users VALUES (2, '{sad,NULL}', '{1,2}', ROW('{{3}}', 'ok'), ARRAY[ROW(NULL, 'sad')::pair], '[1,2.5]', \
             '{[1,2],[3,]}', '{\"[0,1]\",empty}'), (3, '{}', '{}', NULL, '{}', 'empty', '{}', '{}')",
            "UPDATE users SET ms = '{ok}', fl = '(,)', mm = NULL WHERE id < 3",
        ]);
        s.stop();
        s.source("ALTER PUBLICATION p DROP TABLE users");
        s.follow();
        for number in 0..s.followers() {
            let values = values(s, number);
            assert_eq!(values["form"], "binary");
            assert!(["reason", "table", "column"].iter().all(|key| values[*key].is_null()), "{values}");
        }
        s.source("UPDATE plain SET v = '[5:5]={7}', r = '{\"[2020-01-01,)\",NULL}'");
        s.catch_up();
        s.same_table("plain");
        // What arrays are applied with goes with the rest.
        s.stop();
        for number in 0..s.followers() {
            s.call(number, &["drop"]).expect_success();
            assert_eq!(s.target_one_of(number, "SELECT to_regnamespace('pgsluice') IS NULL"), "t");
        }
    });
}

/// A new table with arrays joins a stream in binary. One with a user's type turns the stream to
/// text, and `status` says so.
#[test]
fn c3_tables_that_join_keep_the_form_or_are_named() {
    let often: &[&str] = &["--refresh-interval", "200ms"];
    scenario_with(&[&[EITHER_SOURCE[0], often].concat(), &[EITHER_SOURCE[1], often].concat()], |s| {
        s.both("CREATE TABLE old (id int PRIMARY KEY)");
        s.follow();
        s.both("CREATE TABLE late (id int PRIMARY KEY, v uuid[], r numrange[])");
        s.source("INSERT INTO late VALUES (1, NULL, '{\"[1,2]\"}')");
        wait_until_joined(s, "late");
        s.source("INSERT INTO late VALUES (2, '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}', '{}')");
        s.source("UPDATE late SET v = '{NULL}' WHERE id < 3");
        s.catch_up();
        s.same();
        for number in 0..s.followers() {
            assert!(!s.log(number).contains("starting the stream again"), "{}", s.log(number));
            assert_eq!(values(s, number)["form"], "binary");
        }
        s.both("CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE later (id int PRIMARY KEY, m mood)");
        wait_until_joined(s, "later");
        s.source("INSERT INTO later VALUES (1, 'sad'); UPDATE late SET r = NULL");
        s.catch_up();
        s.same();
        for number in 0..s.followers() {
            assert_eq!(
                (&values(s, number)["form"], &values(s, number)["column"]),
                (&"text".into(), &"m".into())
            );
        }
    });
}

/// Ids that are the same from major to major, and those that are not.
#[test]
fn arrays_between_majors() {
    let majors = testkit::Major::under_test();
    let (Some(&old), Some(&new)) = (majors.first(), majors.last()) else { return };
    for (source, target) in [(old, new), (new, old)] {
        let pair = testkit::Pair::start(source, target).unwrap();
        let mut s = Scenario::alone(pair, EITHER_SOURCE);
        s.both(
            "CREATE TABLE t (id int PRIMARY KEY, a int8[], b tstzrange[], c datemultirange[], d jsonb[], e pg_lsn[], f numrange)",
        );
        let row = "ARRAY[[i, NULL]], ARRAY[tstzrange(now(), NULL)], '{\"{[2020-01-01,2020-02-01)}\"}', ARRAY['{\"a\": 1.10}'::jsonb], \
                   ARRAY['1/2'::pg_lsn], numrange(i, i + 0.5)";
        s.source(&format!("INSERT INTO t SELECT i, {row} FROM generate_series(1, 50) i"));
        s.live(&["UPDATE t SET a = '[3:4]={1,2}', c = '{}' WHERE id % 2 = 0"]);
        (0..s.followers()).for_each(|number| assert_eq!(values(&s, number)["form"], "binary"));
        s.backlog(&[
            "UPDATE t SET b = '{empty,NULL}', d = NULL WHERE id > 10",
            &format!("INSERT INTO t SELECT i, {row} FROM generate_series(100, 150) i"),
        ]);
        // An interval of 17 may be infinite, and its binary form is another number to an older
        // server.
        let intervals = source.number() < 17 || target.number() >= 17;
        s.both("CREATE TABLE i (id int PRIMARY KEY, v interval[]); CREATE TABLE c (id int PRIMARY KEY, v pg_auth_members[])");
        s.source("INSERT INTO i VALUES (1, '{1 day,NULL}')");
        s.source("ALTER PUBLICATION p RENAME TO q; CREATE PUBLICATION p FOR TABLE t, i, mark");
        s.stop();
        s.follow();
        wait_until_joined(&s, "i");
        s.live(&["UPDATE i SET v = '{{-1 mon}}'"]);
        for number in 0..s.followers() {
            let expected = if intervals { "binary" } else { "text" };
            assert_eq!(values(&s, number)["form"], expected);
            assert_eq!(values(&s, number)["column"].is_null(), intervals);
        }
        // Row types of catalogs have an id that stays, and columns that do not.
        s.source("ALTER PUBLICATION p ADD TABLE c");
        wait_until_joined(&s, "c");
        s.catch_up();
        for number in 0..s.followers() {
            // A stream that was text already stays as it was told.
            let expected = if intervals { "pg_auth_members[]" } else { "the type interval[], whose" };
            let values = values(&s, number);
            assert!(values["reason"].as_str().unwrap().contains(expected), "{values}");
        }
        s.stop();
    }
}

/// If the role may not create the functions that apply arrays, `auto` says so and `on` refuses. The
/// role also may not ANALYZE the copied tables, which causes only a warning of the server.
#[test]
fn a_role_that_may_not_create_gets_text() {
    scenario_with(&[FOLDED], |s| {
        if s.major() < 15 {
            // Only a superuser may set session_replication_role.
            return;
        }
        s.both("CREATE TABLE t (id int PRIMARY KEY, v int2[])");
        s.source("INSERT INTO t VALUES (1, '{1}')");
        s.publish("FOR TABLE t, mark");
        s.both("CREATE TABLE u (id int PRIMARY KEY, v int2[])");
        let role = format!("weak_{}", s.name(0));
        let db = s.name(0).to_owned();
        s.follow();
        s.stop();
        // As a later version finds a schema that an administrator has made.
        s.target(&format!(
            "DROP TYPE pgsluice.array_of_int2; CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA pgsluice TO {role}; \
             GRANT ALL ON ALL TABLES IN SCHEMA pgsluice TO {role}; GRANT pg_read_all_data, pg_write_all_data TO {role}; \
             GRANT CREATE ON DATABASE {db} TO {role}; \
             DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname ~ '^pg_replication_origin' LOOP \
               EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {role}', f); END LOOP; END $$; \
             GRANT SELECT ON pg_replication_origin, pg_replication_origin_status TO {role}; \
             GRANT SET ON PARAMETER session_replication_role TO {role}"
        ));
        let weak = s.target_url(0).replace("postgres@", &format!("{role}@"));
        let refused = s.call(0, &["run", "--publication", "p", "--binary", "on", "--target", &weak]);
        let why = "arrays need types in schema pgsluice, which the target's role may not create";
        assert!(!refused.status.success() && refused.stderr.contains(why), "{}", refused.stderr);
        s.run_with(|command| {
            command.args(["--target", &weak]);
        });
        s.source("UPDATE t SET v = '{2,NULL}'");
        s.catch_up();
        s.same_table("t");
        assert!(values(s, 0)["reason"].as_str().unwrap().contains(why));
        s.source("ALTER PUBLICATION p ADD TABLE u");
        s.call(0, &["refresh"]);
        s.wait_for_log("tables have no statistics after their copy");
        let analyze = "ANALYZE \"public\".\"u\";";
        assert!(s.log(0).contains(&format!("run there, as their owner, {analyze}")), "{}", s.log(0));
        s.target(analyze);
        s.kill();
        s.target(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    });
}
