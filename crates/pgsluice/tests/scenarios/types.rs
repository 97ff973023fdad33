//! Every column type the server has passes through unchanged, copied and streamed, in text and in binary.

use crate::support::{FOLDED, scenario_with};

/// Text and binary, folded and row by row.
const FORMS: &[&[&str]] = &[
    FOLDED,
    &["--binary", "off"],
    &["--batch-rows-max", "1"],
    &["--binary", "off", "--batch-rows-max", "1"],
];

/// A column of each type with values at its edges. The first value is also what UPDATE writes.
type Values = &'static [(&'static str, &'static [&'static str])];

/// Types whose values go through a stream in binary, with values at their edges.
const BINARY: Values = &[
    ("bool", &["true", "false"]),
    ("bytea", &["\\x00ff5c27", "", "\\x"]),
    ("\"char\"", &["a", "", "'", "\\\\"]),
    ("name", &["some name", "", "ünïcode"]),
    ("int8", &["-9223372036854775808", "9223372036854775807"]),
    ("int2", &["-32768", "32767"]),
    ("int4", &["-2147483648", "2147483647"]),
    ("text", &["", "a\nb\t\\ 'q' \"d\" {x,y} NULL", "\u{1f41c} ünï", "NULL"]),
    ("oid", &["4294967295", "0"]),
    ("tid", &["(4294967295,65535)", "(0,1)"]),
    ("xid", &["4294967295"]),
    ("cid", &["4294967295"]),
    ("xid8", &["18446744073709551615"]),
    ("json", &["{\"a\":  1, \"a\": [null]}", "\"\\u00e9\"", "  1 "]),
    ("jsonb", &["{\"a\": 1.10, \"b\": [null, true]}", "\"\"", "1e100"]),
    ("jsonpath", &["$.\"a\"[*]?(@ > 1)"]),
    ("xml", &["<a b=\"c\">d</a>", "text &amp; more"]),
    ("point", &["(1e-300,-Infinity)", "(NaN,0)"]),
    ("lseg", &["[(1,2),(3,4)]"]),
    ("path", &["((1,2),(3,4))", "[(1,2)]"]),
    ("box", &["(3,4),(1,2)"]),
    ("polygon", &["((1,2),(3,4),(5,6))"]),
    ("line", &["{1,2,3}"]),
    ("circle", &["<(1,2),3.5>"]),
    ("float4", &["3.4028235e+38", "NaN", "-0", "1e-45", "Infinity"]),
    ("float8", &["1.7976931348623157e+308", "NaN", "-0", "5e-324", "-Infinity", "0.1"]),
    ("money", &["-92233720368547758.08", "0.01"]),
    ("macaddr", &["08:00:2b:01:02:03"]),
    ("macaddr8", &["08:00:2b:01:02:03:04:05"]),
    ("inet", &["192.168.0.1/24", "::ffff:1.2.3.4/128", "10.0.0.1"]),
    ("cidr", &["192.168.0.0/24", "2001:db8::/32"]),
    ("bpchar", &["trailing  ", ""]),
    ("char(8)", &["ab", ""]),
    ("varchar(12)", &["  varchar", ""]),
    ("date", &["infinity", "4713-01-01 BC", "5874897-12-31"]),
    ("time(3)", &["24:00:00", "00:00:00.001"]),
    ("timetz", &["23:59:59.999999-15:59", "24:00:00+00"]),
    ("timestamp", &["infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999"]),
    ("timestamptz(0)", &["-infinity", "4713-01-01 00:00:00+00 BC", "2020-03-29 02:30:00+00"]),
    ("interval", &["-178000000 years", "1 mon -1 day 00:00:00.000001", "0"]),
    ("interval day to second(2)", &["3 days 04:05:06.78"]),
    ("bit(11)", &["10101010101"]),
    ("varbit", &["", "1", "101010101010101010"]),
    ("numeric", &["NaN", "Infinity", "-Infinity", "1.000", "0.00000000000000000001", "1e1000", "-0.0"]),
    ("numeric(10,3)", &["-1234567.890", "0", "NaN"]),
    ("uuid", &["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("pg_lsn", &["FFFFFFFF/FFFFFFFF", "0/0"]),
    ("tsvector", &["'a':1A 'b c':2B,3", ""]),
    ("txid_snapshot", &["10:20:10,14,15"]),
    ("pg_snapshot", &["10:20:10,14,15", "1:1:"]),
    ("int4range", &["[1,10)", "empty", "(,)"]),
    ("int8range", &["[1,)"]),
    ("numrange", &["[1.10,2.00]", "(1,)"]),
    ("tsrange", &["[2020-01-01 00:00:00,infinity)"]),
    ("tstzrange", &["(,2020-01-01 00:00:00+00]"]),
    ("daterange", &["[2020-01-01,2020-02-01)"]),
    ("int4multirange", &["{[1,3),[5,7)}", "{}"]),
    ("int8multirange", &["{[1,3),[5,7)}"]),
    ("tsmultirange", &["{[2020-01-01 00:00:00,2021-01-01 00:00:00)}"]),
    ("nummultirange", &["{[1.0,2.0],(3,)}"]),
    ("tstzmultirange", &["{[2020-01-01 00:00:00+00,2021-01-01 00:00:00+00)}"]),
    ("datemultirange", &["{(,2020-01-01)}"]),
    ("refcursor", &["cursor"]),
];

/// Types that make a stream a text stream.
const TEXT: Values = &[
    ("int2vector", &["1 2 3", ""]),
    ("oidvector", &["1 2 4294967295", ""]),
    ("tsquery", &["'a' & !'b' | 'c' <-> 'd':*A", ""]),
    ("regclass", &["pg_class"]),
    ("regtype", &["integer"]),
    ("regproc", &["now"]),
    ("regprocedure", &["sum(integer)"]),
    ("regoper", &["||/"]),
    ("regoperator", &["+(integer,integer)"]),
    ("regrole", &["postgres"]),
    ("regnamespace", &["pg_catalog"]),
    ("regconfig", &["english"]),
    ("regdictionary", &["simple"]),
    ("regcollation", &["\"C\""]),
    ("aclitem", &["postgres=r/postgres"]),
    ("bool[]", &["{t,f,NULL}", "{}"]),
    ("int4[]", &["{{1,2},{3,NULL}}", "[2:3]={1,2}", "{}", "[-1:0][5:5]={{1},{2}}"]),
    ("text[]", &[r#"{"a,b","",NULL,"NULL","q\"\\","{}"}"#, "{{{x}}}"]),
    ("numeric[]", &["{NaN,1.00,NULL}"]),
    ("timestamptz[]", &["{infinity,\"2020-01-01 00:00:00+00\"}"]),
    ("jsonb[]", &[r#"{"{\"a\": 1}",NULL}"#]),
    ("bytea[]", &[r#"{"\\x00ff",NULL}"#]),
    ("box[]", &["{(3,4),(1,2);(1,1),(0,0)}"]),
    ("int4range[]", &["{\"[1,2)\",empty}"]),
    ("inet[]", &["{10.0.0.1,::1}"]),
    ("varchar(4)[]", &["{abcd,NULL}"]),
    ("char(3)[]", &["{a,bcd}"]),
    ("interval[]", &["{\"1 day\",\"-1 mons\"}"]),
    ("\"char\"[]", &["{a,\"\"}"]),
    ("name[]", &["{a,b}"]),
    ("uuid[]", &["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"]),
    ("bit(3)[]", &["{101,NULL}"]),
    ("money[]", &["{$1.00}"]),
    ("float8[]", &["{-0,NaN,5e-324}"]),
    ("regclass[]", &["{pg_class}"]),
];

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Each type in a table with a key and in one that is looked up by its whole row.
fn create(values: Values) -> String {
    let mut sql = String::new();
    for (number, (name, _)) in values.iter().enumerate() {
        sql += &format!(
            "CREATE TABLE t{number} (id int PRIMARY KEY, v {name}, w {name}); CREATE TABLE f{number} (v {name}, n int); \
             ALTER TABLE f{number} REPLICA IDENTITY FULL;"
        );
    }
    sql
}

fn fill(values: Values, from: usize) -> String {
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

fn change(values: Values, from: usize) -> String {
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

fn pass_through(values: Values, binary: bool) {
    scenario_with(FORMS, |s| {
        s.both(&create(values));
        s.source(&fill(values, 100));
        s.follow();
        s.same();
        assert_eq!(s.log(0).contains("binary=true"), binary, "{}", s.log(0));
        assert!(s.log(1).contains("binary=false"));
        s.live(&[&fill(values, 200), &change(values, 200)]);
        // What is looked up by its whole row may have duplicates.
        s.backlog(&[&change(values, 100), &fill(values, 300)]);
        s.live(&[&format!("{}{}", fill(values, 400), change(values, 400))]);
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
    });
}

#[test]
fn built_in_types_in_binary() {
    pass_through(BINARY, true);
}

#[test]
fn built_in_types_in_text() {
    pass_through(TEXT, false);
}

/// No type of the server is missing above, but those that no column should or can have.
#[test]
fn c3_every_built_in_type_is_tried() {
    scenario_with(&[FOLDED], |s| {
        let tried: Vec<String> = BINARY.iter().chain(TEXT).map(|(name, _)| literal(name)).collect();
        let missing = s.source_one(&format!(
            "SELECT coalesce(string_agg(format_type(t.oid, NULL), ' ' ORDER BY t.oid), '') FROM pg_type t \
              WHERE t.typtype IN ('b', 'r', 'm') AND t.typcategory <> 'A' AND t.oid < 16384 AND t.typrelid = 0 \
                AND t.typnamespace = 'pg_catalog'::regnamespace \
                AND t.oid NOT IN (SELECT x::regtype FROM unnest(ARRAY[{}]) x)",
            tried.join(", ")
        ));
        // Contents of catalogs, which have no input function, and the row types of MCV lists and such.
        let expected = [
            "pg_node_tree",
            "pg_ndistinct",
            "pg_dependencies",
            "pg_mcv_list",
            "pg_brin_bloom_summary",
            "pg_brin_minmax_multi_summary",
            "gtsvector",
        ];
        let odd: Vec<&str> = missing.split(' ').filter(|name| !expected.contains(name)).collect();
        assert!(odd.iter().all(|name| name.is_empty()), "not tried: {odd:?}");
    });
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

/// A value that the target's narrower column cannot hold is an error that names the table, never cut short.
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
