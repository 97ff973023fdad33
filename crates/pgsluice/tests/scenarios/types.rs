//! Every column type the server has passes through unchanged, copied and streamed, in text and in
//! binary.

use crate::support::{FOLDED, Scenario, scenario, scenario_with};

pub(crate) mod values;

use values::{BINARY, LATER, TEXT, Type, WITHOUT_INPUT};

/// Text and binary, as sets and replayed exactly.
const FORMS: &[&[&str]] = &[
    FOLDED,
    &["--binary", "off"],
    &["PGSLUICE_EXACT_ONLY=1"],
    &["PGSLUICE_EXACT_ONLY=1", "--binary", "off"],
];

/// [`BINARY`], and what came later.
pub(crate) fn binary_types(major: u32) -> Vec<Type> {
    let later = LATER.iter().filter(|(since, _)| *since <= major).map(|(_, later)| later);
    BINARY.iter().chain(later).copied().collect()
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Each type in a table with a key and in one that is looked up by its whole row.
fn create(values: &[Type]) -> String {
    let mut sql = String::new();
    for (number, (name, _)) in values.iter().enumerate() {
        sql += &format!(
            "CREATE TABLE t{number} (id int PRIMARY KEY, v {name}, w {name}); CREATE TABLE f{number} (v {name}, n int); \
             ALTER TABLE f{number} REPLICA IDENTITY FULL;"
        );
    }
    sql
}

fn fill(values: &[Type], from: usize) -> String {
    let mut sql = String::new();
    for (number, (_, values)) in values.iter().enumerate() {
        for (row, value) in values.iter().enumerate() {
            let (id, value) = (from + row, literal(value));
            sql += &format!(
                "INSERT INTO t{number} VALUES ({id}, {value}, NULL); INSERT INTO f{number} VALUES ({value}, {from});"
            );
        }
        sql += &format!(
            "INSERT INTO t{number} VALUES ({}, NULL, NULL); INSERT INTO f{number} VALUES (NULL, {from});",
            from + 50
        );
    }
    sql
}

fn change(values: &[Type], from: usize) -> String {
    let mut sql = String::new();
    for (number, (_, values)) in values.iter().enumerate() {
        let first = literal(values[0]);
        sql += &format!(
            "UPDATE t{number} SET w = v WHERE id >= {from}; UPDATE t{number} SET v = {first} WHERE id = {};
             UPDATE t{number} SET v = NULL WHERE id = {from}; DELETE FROM t{number} WHERE id = {};
             UPDATE t{number} SET id = -id WHERE id = {from};
             UPDATE f{number} SET n = n + 1 WHERE n = {from}; UPDATE f{number} SET v = {first} WHERE v IS NULL;
             DELETE FROM f{number} WHERE ctid = (SELECT max(ctid) FROM f{number});",
            from + 50,
            from + 1,
        );
    }
    sql
}

fn pass_through(types: impl Fn(u32) -> Vec<Type> + Sync, binary: bool) {
    scenario_with(FORMS, |s| {
        let values = &types(s.major())[..];
        s.both(&create(values));
        s.source(&fill(values, 100));
        s.follow();
        s.same();
        for (number, form) in FORMS.iter().enumerate() {
            let expected = binary && !form.contains(&"off");
            assert!(s.log(number).contains(&format!("binary={expected}")), "{form:?}: {}", s.log(number));
        }
        s.live(&[&fill(values, 200), &change(values, 200)]);
        // What is looked up by its whole row may have duplicates.
        s.backlog(&[&change(values, 100), &fill(values, 300)]);
        s.live(&[&format!("{}{}", fill(values, 400), change(values, 400))]);
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
    });
}

#[test]
fn built_in_types_in_binary() {
    pass_through(binary_types, true);
}

#[test]
fn built_in_types_in_text() {
    pass_through(|_| TEXT.to_vec(), false);
}

/// Arrays of one type: all its values and NULL, none, two dimensions that begin elsewhere, and NULL
/// itself.
fn arrays((name, values): Type) -> [String; 4] {
    // typdelim: a comma but for box, whose text has commas.
    let delimiter = if name == "box" { ";" } else { "," };
    let quoted = |value: &str| format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""));
    let elements: Vec<String> = values.iter().map(|value| quoted(value)).chain(["NULL".to_owned()]).collect();
    let line = format!("{{{}}}", elements.join(delimiter));
    let rectangle =
        format!("[-1:0][5:6]={{{{{0}{delimiter}NULL}}{delimiter}{{NULL{delimiter}{0}}}}}", elements[0]);
    [literal(&line), literal("{}"), literal(&rectangle), "NULL".to_owned()]
}

/// A column of the target that rounds when it stores a value also rounds when pgsluice looks for
/// the value, as with native apply.
#[test]
fn values_that_the_target_rounds_are_found_again() {
    scenario(|s| {
        let columns = "n numeric, at timestamp, i interval, e float8";
        let rounded = "n numeric(10,2), at timestamp(0), i interval(0), e numeric(6,1)";
        s.source(&format!("CREATE TABLE f ({columns}); ALTER TABLE f REPLICA IDENTITY FULL; CREATE TABLE k (id numeric PRIMARY KEY, v int)"));
        s.target(&format!(
            "CREATE TABLE f ({rounded}); CREATE TABLE k (id numeric(10,2) PRIMARY KEY, v int)"
        ));
        s.source(
            "INSERT INTO f SELECT i + 0.005, '2001-01-01 00:00:00.7'::timestamp + i * interval '1 day', interval '1.6 s' * i, i + 0.25 \
             FROM generate_series(1, 40) i; \
             INSERT INTO k SELECT i + 0.0049, 0 FROM generate_series(1, 40) i",
        );
        s.follow();
        s.source("UPDATE f SET e = 7.77 WHERE n < 5; DELETE FROM f WHERE n > 20");
        s.source("UPDATE k SET v = 1; DELETE FROM k WHERE id < 9");
        s.catch_up();
        s.source("UPDATE k SET id = -id WHERE id > 30; UPDATE f SET n = NULL WHERE n > 10; UPDATE f SET at = NULL WHERE n IS NULL");
        s.catch_up();
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
        s.same_as("f", "SELECT n::numeric(10,2), at::timestamp(0), i::interval(0), e::numeric(6,1) FROM f");
        s.same_as("k", "SELECT id::numeric(10,2), v FROM k");
    });
}

/// A column for each type that has arrays, in a table with a key and in one that is looked up by
/// its whole row.
pub(crate) fn arrays_pass_through(forms: &[&[&str]], types: impl Fn(u32) -> Vec<Type> + Sync, binary: bool) {
    scenario_with(forms, |s| {
        let mut types = types(s.major());
        types.retain(|(name, _)| !name.ends_with("[]"));
        let columns: Vec<String> =
            types.iter().enumerate().map(|(number, (name, _))| format!("a{number} {name}[]")).collect();
        s.both(&format!(
            "CREATE TABLE t (id int PRIMARY KEY, {0}); CREATE TABLE f (id int, {0}); ALTER TABLE f REPLICA IDENTITY FULL",
            columns.join(", ")
        ));
        let fill = |from: usize| {
            let mut sql = String::new();
            for row in 0..4 {
                let values: Vec<String> = types.iter().map(|&of| arrays(of)[row].clone()).collect();
                let (id, values) = (from + row, values.join(", "));
                sql += &format!(
                    "INSERT INTO t VALUES ({id}, {values}); INSERT INTO f VALUES ({id}, {values}), ({id}, {values});"
                );
            }
            sql
        };
        let everything = |value: &dyn Fn(usize) -> String| {
            let set: Vec<String> =
                (0..types.len()).map(|number| format!("a{number} = {}", value(number))).collect();
            set.join(", ")
        };
        s.source(&fill(100));
        s.follow();
        s.same();
        for (number, form) in forms.iter().enumerate() {
            let expected = binary && !form.contains(&"off");
            assert!(s.log(number).contains(&format!("binary={expected}")), "{form:?}: {}", s.log(number));
        }
        let of_another = everything(&|n| format!("(SELECT a{n} FROM t WHERE id = 102)"));
        let null = everything(&|_| "NULL".to_owned());
        let shifted = everything(&|n| format!("(SELECT o.a{n} FROM t o WHERE o.id = 400 + (t.id + 1) % 4)"));
        let many: Vec<String> = (0..types.len()).map(|number| format!("a{number}")).collect();
        let changes = [
            fill(200),
            format!("UPDATE t SET {of_another} WHERE id = 100"),
            format!("UPDATE t SET {null}, id = -id WHERE id = 101; DELETE FROM t WHERE id = 200"),
            "UPDATE f SET id = -id WHERE id > 101; DELETE FROM f WHERE ctid = (SELECT max(ctid) FROM f WHERE id = 100)".to_owned(),
            fill(400),
            // Sets of several rows, and enough new ones for a COPY.
            format!("UPDATE t SET {shifted} WHERE id >= 400"),
            format!("INSERT INTO t SELECT 1000 + i * 4 + id % 4, {} FROM t, generate_series(1, 10) i WHERE id >= 400", many.join(", ")),
            format!("UPDATE t SET {null} WHERE id > 1030"),
        ];
        let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
        s.live(&changes[..1]);
        s.backlog(&changes[1..]);
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
        for number in 0..s.followers() {
            assert!(!s.log(number).contains("refuses the faster temporary procedure"), "{}", s.log(number));
        }
    });
}

#[test]
fn arrays_of_built_in_types_in_text() {
    arrays_pass_through(&[FOLDED, &["PGSLUICE_EXACT_ONLY=1"]], |_| TEXT.to_vec(), false);
}

/// Types whose values cannot be written.
#[test]
fn types_without_input_pass_as_null() {
    scenario_with(FORMS, |s| {
        let columns: Vec<String> =
            WITHOUT_INPUT.iter().enumerate().map(|(number, name)| format!("c{number} {name}")).collect();
        s.both(&format!("CREATE TABLE t (id int PRIMARY KEY, {})", columns.join(", ")));
        s.source("INSERT INTO t (id) VALUES (1), (2)");
        s.live(&["INSERT INTO t (id) VALUES (3), (4); UPDATE t SET id = -id WHERE id % 2 = 0"]);
        s.backlog(&["DELETE FROM t WHERE id = 1", "INSERT INTO t (id) VALUES (5)"]);
    });
}

/// No type that a column can have is missing above. A type that a new major adds fails here first.
#[test]
fn c3_every_built_in_type_is_tried() {
    scenario_with(&[FOLDED], |s| {
        let tried: Vec<String> = BINARY.iter().chain(TEXT).map(|(name, _)| literal(name)).collect();
        let known: Vec<String> = WITHOUT_INPUT.iter().map(|name| literal(name)).collect();
        // Arrays are tested with their element. Those of catalogs' rows have elements that are not
        // base types.
        let missing = s.source_one(&format!(
            "WITH tried AS (SELECT x::regtype::oid AS oid FROM unnest(ARRAY[{}]) x), \
                  element AS (SELECT oid, coalesce((SELECT e.oid FROM pg_type e WHERE e.typarray = t.oid), oid) AS of FROM pg_type t) \
             SELECT coalesce(string_agg(format_type(t.oid, NULL), ' ' ORDER BY t.oid), '') \
               FROM pg_type t JOIN element USING (oid) JOIN pg_type e ON e.oid = element.of \
              WHERE t.typtype IN ('b', 'r', 'm') AND e.typtype IN ('b', 'r', 'm') AND t.oid < 16384 \
                AND e.oid NOT IN (SELECT oid FROM tried) AND e.typname <> ALL (ARRAY[{}])",
            tried.join(", "),
            known.join(", ")
        ));
        assert_eq!(missing, "", "types that were not tried");
        // Without an input function still?
        for name in WITHOUT_INPUT {
            let error = s.try_source(&format!("SELECT '1'::{name}")).expect_err(name);
            assert!(error.starts_with("0A000 "), "{error}");
        }
    });
}

/// A byte that is not a letter. From 15 on, text has a notation for it. Before 15, the target
/// refuses the byte, and nothing is lost.
#[test]
fn high_bytes_of_char() {
    // As numbers, because 14 prints the byte, which is no text.
    let rows = "SELECT string_agg(concat(id, ':', v::int), ' ' ORDER BY id) FROM t";
    let same = |s: &Scenario| assert_eq!(s.target_one(rows), s.source_one(rows));
    let (text, binary): (Vec<_>, Vec<_>) = FORMS.iter().copied().partition(|form| form.contains(&"off"));
    for forms in [binary, text] {
        scenario_with(&forms, |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v \"char\")");
            s.source("INSERT INTO t VALUES (1, (-1)::\"char\")");
            s.follow();
            same(s);
            s.source("INSERT INTO t VALUES (2, (-128)::\"char\"), (3, 0::\"char\"), (4, 127::\"char\")");
            if s.major() == 14 && forms[0].contains(&"off") {
                s.wait_for_log("while processing INSERT for replication target relation \"public.t\"");
                assert_eq!(s.target_one(rows), "1:-1");
                return;
            }
            s.stop();
            s.source("UPDATE t SET v = (-2)::\"char\" WHERE id < 3");
            s.source("UPDATE t SET id = -id");
            s.follow();
            same(s);
        });
    }
}

#[test]
fn user_defined_types() {
    scenario_with(FORMS, |s| {
        s.both(
            "CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree; \
             CREATE TYPE mood AS ENUM ('sad', 'so so', '\"'); \
             CREATE DOMAIN short AS varchar(5) NOT NULL CHECK (value <> 'bad'); \
             CREATE DOMAIN numbers AS int[] CHECK (array_length(value, 1) < 4); \
             CREATE DOMAIN deep AS short CHECK (value <> 'worse'); \
             CREATE TYPE pair AS (a int, b text, m mood); \
             CREATE TYPE nested AS (p pair, ps pair[], n numbers); \
             CREATE TYPE floats AS RANGE (subtype = float8, subtype_diff = float8mi); \
             CREATE TABLE t (id int PRIMARY KEY, c citext, h hstore, l ltree, m mood, ms mood[], s short DEFAULT 'x', n numbers, \
                             d deep DEFAULT 'y', p pair, ne nested, nes nested[], f floats, fm floats[], cs citext[], hs hstore[], \
                             ns numbers[]); \
             CREATE TABLE f AS TABLE t; ALTER TABLE f REPLICA IDENTITY FULL",
        );
        let row = |id: &str| {
            format!(
                "SELECT {id}, 'CiText', 'a=>1, \"b c\"=>NULL'::hstore, 'Top.Sub_1'::ltree, 'so so'::mood, ARRAY['\"', NULL]::mood[], \
                        'short'::short, '{{1,2}}'::numbers, 'deep'::deep, ROW({id}, 'a \"q\" ,()', 'sad')::pair, \
                        ROW(ROW(1, NULL, NULL), ARRAY[ROW(2, '', 'sad')::pair, NULL], '{{3}}')::nested, \
                        ARRAY[ROW(NULL, NULL, NULL)]::nested[], '[0.1,NaN)'::floats, ARRAY['empty', '(,)']::floats[], \
                        ARRAY['A', 'b']::citext[], ARRAY['x=>y']::hstore[], '{{\"{{1}}\",NULL}}'::numbers[] FROM generate_series(1, 20) i"
            )
        };
        s.source(&format!(
            "INSERT INTO t {0}; INSERT INTO f {0}; INSERT INTO t (id) VALUES (1000)",
            row("i")
        ));
        let changes = [
            format!("INSERT INTO t {0}; INSERT INTO f {0}", row("i + 100")),
            "UPDATE t SET p = ROW(9, 'x', NULL), ms = '{}', h = h || 'n=>1', d = 'other' WHERE id % 2 = 0"
                .to_owned(),
            "UPDATE f SET p = NULL, c = upper(c), m = NULL WHERE id % 3 = 0; DELETE FROM f WHERE id % 5 = 0"
                .to_owned(),
            "UPDATE t SET ne = NULL, nes = NULL, f = NULL, n = NULL; DELETE FROM t WHERE id % 4 = 0"
                .to_owned(),
        ];
        let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
        s.live(&changes);
        s.backlog(&[
            "UPDATE t SET id = -id, l = 'a.b'",
            "UPDATE f SET id = -id, l = 'a.b'",
            "INSERT INTO f (id, s, d) VALUES (7, '', '')",
        ]);
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
    });
}

/// What a value means must not depend on settings of the database or role.
#[test]
fn settings_of_databases_do_not_bend_values() {
    scenario_with(FORMS, |s| {
        for setting in [
            "datestyle = 'SQL, DMY'",
            "intervalstyle = 'sql_standard'",
            "extra_float_digits = 0",
            "bytea_output = 'escape'",
            "timezone = 'Asia/Kolkata'",
            "xmlbinary = 'hex'",
            "standard_conforming_strings = off",
        ] {
            let db = s.source_one("SELECT current_database()");
            s.source(&format!("ALTER DATABASE {db} SET {setting}"));
        }
        for number in 0..s.followers() {
            let db = s.name(number).to_owned();
            for setting in [
                "datestyle = 'German, YMD'",
                "intervalstyle = 'iso_8601'",
                "timezone = 'America/St_Johns'",
                "array_nulls = off",
                "xmloption = 'document'",
                "lc_monetary = 'C'",
                "default_transaction_read_only = off",
                "default_transaction_isolation = 'serializable'",
            ] {
                s.target(&format!("ALTER DATABASE {db} SET {setting}"));
                if number > 0 {
                    continue;
                }
            }
        }
        s.both("CREATE TABLE t (id int PRIMARY KEY, d date, ts timestamptz, i interval, f float8, b bytea, a int[], x xml, k text)");
        s.source("INSERT INTO t SELECT i, '2001-02-03', '2001-02-03 04:05:06.7+00', '-1 mon +2 days -3:04:05', i / 3.0, '\\x00ff5c', '{1,NULL}', 'a<b/>', 'back\\slash' FROM generate_series(1, 5) i");
        s.live(&[
            "INSERT INTO t SELECT i, '2003-02-01', '2001-07-03 04:05:06+00', '1 year 2 mons -3 days', 1 / 3.0, '\\x5c00ff', '{NULL}', 'c<b/>d', E'new\\nline' FROM generate_series(11, 15) i",
            "UPDATE t SET d = d + 300, ts = ts + i, i = -i, f = f * 1.1, b = b || b WHERE id % 2 = 0",
        ]);
        s.backlog(&["UPDATE t SET x = 'e<b/>', a = NULL, ts = 'infinity'", "DELETE FROM t WHERE id = 3"]);
    });
}

/// A value that the target's narrower column cannot hold is an error that names the table, never
/// cut short.
#[test]
fn a_value_that_does_not_fit_is_not_cut_short() {
    for narrow in ["varchar(3)", "short", "char(3)", "varchar(3)[]", "bit(3)", "numeric(3,0)", "short2"] {
        let value = match narrow {
            "bit(3)" => "10101",
            "numeric(3,0)" => "12345",
            "varchar(3)[]" => "{abc,abcdef}",
            _ => "abcdef",
        };
        let wide = match narrow {
            "bit(3)" => "varbit",
            "numeric(3,0)" => "numeric",
            "varchar(3)[]" => "varchar[]",
            _ => "text",
        };
        scenario_with(&[FOLDED, &["--binary", "off"]], |s| {
            s.target("CREATE DOMAIN short AS varchar(3); CREATE DOMAIN short2 AS short");
            s.source(&format!("CREATE TABLE t (id int PRIMARY KEY, v {wide})"));
            s.target(&format!("CREATE TABLE t (id int PRIMARY KEY, v {narrow})"));
            s.follow();
            s.source(&format!("INSERT INTO t VALUES (1, '{value}'), (2, NULL)"));
            s.wait_for_log("while processing INSERT for replication target relation \"public.t\"");
            assert_eq!(s.target_one("SELECT count(*) FROM t"), "0", "{narrow}");
        });
    }
}

/// Columns of another type that takes the text of the source's.
#[test]
fn other_types_that_fit() {
    scenario_with(FORMS, |s| {
        s.source("CREATE TABLE t (id int PRIMARY KEY, a int, b float4, c text, d varchar(10), e text, f timestamptz, g int[], h text)");
        s.target(
            "CREATE TYPE mood AS ENUM ('sad', 'ok'); \
             CREATE TABLE t (h mood, g text, f text, e jsonb, d text, c varchar(100), b float8, a bigint, id bigint PRIMARY KEY)",
        );
        s.source("INSERT INTO t SELECT i, i, i / 4.0, 'c', 'd', '{\"a\": 1}', '2020-01-01', '{1,2}', 'ok' FROM generate_series(1, 20) i");
        s.live(&["INSERT INTO t SELECT i, -i, i / 8.0, 'c', 'd', '[]', 'infinity', NULL, 'sad' FROM generate_series(21, 40) i", "UPDATE t SET a = a * 2, c = NULL WHERE id % 2 = 0"]);
        s.backlog(&[
            "DELETE FROM t WHERE id % 3 = 0",
            "UPDATE t SET id = -id, h = 'sad'",
            "UPDATE t SET g = '{{1},{NULL}}'",
        ]);
    });
}

/// The types at the start decide whether values come in binary; values that are read then may be
/// older.
#[test]
fn a_column_that_was_widened_on_both_ends_takes_what_came_before() {
    scenario_with(&[FOLDED, &["--binary", "off"]], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v int, w int2, x int[] DEFAULT '{1,NULL}')");
        s.live(&["INSERT INTO t VALUES (1, 1, 1)"]);
        s.stop();
        s.source("INSERT INTO t VALUES (2, 2, 2); UPDATE t SET v = 7 WHERE id = 1");
        for sql in [
            "ALTER TABLE t ALTER v TYPE int8",
            "ALTER TABLE t ALTER x TYPE int8[]",
            "ALTER TABLE t ALTER w TYPE numeric",
        ] {
            s.both(sql);
            s.source("INSERT INTO t SELECT max(id) + 1, 7, 7 FROM t");
        }
        s.source("INSERT INTO t VALUES (9, 5000000000, 0.5)");
        s.follow();
        s.same();
        assert!(s.log(0).contains("had another type on the source when"), "{}", s.log(0));
        // Binary again, once nothing of before comes any more.
        s.backlog(&["UPDATE t SET v = v + 1, w = w + 1"]);
    });
}
