//! Values at the edges of every type, and arrays of them.

use crate::oracle::{Oracle, Totals};
use crate::values::{BINARY, LATER, TEXT};

/// More edges that matter to rendering.
const MORE: &[(&str, &[&str])] = &[
    (
        "float8",
        &[
            "1e23",
            "9007199254740992",
            "1e15",
            "1e14",
            "0.0001",
            "0.00001",
            "2.2250738585072014e-308",
            "123456789012345680",
        ],
    ),
    ("float4", &["1e6", "999999", "16777216", "33554432", "1e-5", "1.17549435e-38", "8388608", "9.8e-45"]),
    ("numeric", &["0.0001", "10000", "99999999", "-1e-20", "12345678901234567890.123456789", "1e40", "0.00"]),
    (
        "interval",
        &[
            "1 year",
            "-1 year",
            "1 year -1 mon",
            "-1 day 1 sec",
            "100 hours",
            "-0.5 sec",
            "13 mons -1 days 00:00:01",
        ],
    ),
    (
        "timestamp",
        &["2000-01-01", "1999-12-31 23:59:59.5", "0001-01-01", "0001-12-31 BC", "12345-06-07 08:09:10.010"],
    ),
    ("timestamptz", &["10000-01-01 00:00:00+00", "1900-02-28 12:00:00-15:59"]),
    ("date", &["2000-02-29", "1900-03-01", "0005-02-29 BC", "9999-12-31", "10000-01-01"]),
    ("timetz", &["00:00:00+05:30", "00:00:00-00:00:01", "01:02:03.4+00:01"]),
    ("money", &["0", "-0.01", "999.99", "1000", "-1234567.8"]),
    (
        "inet",
        &[
            "::1",
            "::",
            "1::",
            "::1.2.3.4",
            "2001:db8::1:0:0:1/64",
            "1:0:2:3:4:5:6:7",
            "::ffff:0:0/96",
            "0:0:0:0:0:1:2:3",
            "1.2.3.4/0",
        ],
    ),
    ("cidr", &["::ffff:1.2.3.0/120", "10.0.0.0/8", "192.168.1.1/32"]),
    (
        "jsonb",
        &[
            "{}",
            "[]",
            "[[]]",
            "{\"a\": {}}",
            "[1, \"a\", null, true, false, {\"b\": [1.5, 2]}]",
            "1",
            "\"x\"",
            "true",
            "1E-20",
            "{\"z\": 1, \"aa\": 2, \"a\": 3}",
            "[0.10, -5, 12345678901234567890]",
            "\"\\u0001\\b\\f\\n\\r\\t\\\\\\\"/\\u007f\"",
        ],
    ),
    (
        "jsonpath",
        &[
            "$",
            "strict $",
            "$.a.b[0].*",
            "$[*]",
            "$[1 to 3, last - 1]",
            "$.**.a",
            "$.**{3}.a",
            "$.**{last}",
            "$.**{1 to last}",
            "$.**{last to 3}",
            "$.a ? (@.b == 1 && (@.c > 2 || !(@.d < 3)))",
            "$ ? (exists (@.x) && @.y starts with \"a\\\"b\")",
            "$ ? ((@.z == \"1\") is unknown)",
            "$ ? (@ like_regex \"^a.*\" flag \"ismq\")",
            "$ ? (@ like_regex \"b\")",
            "-$.a + +$.b * 3 - (2 - 1) % 5 / 1.5",
            "(1 + 2) * 3",
            "1 + (2 * 3)",
            "$.\"key with space\".size()",
            "$var.type()",
            "$\"v w\".abs().floor().ceiling().double()",
            "$.a.datetime()",
            "$.a.datetime(\"HH24:MI\")",
            "$.keyvalue().key",
            "(1).type()",
            "null",
            "true",
            "false",
            "\"str\"",
            "1.50",
            "(1.5).abs()",
            "-1",
            "-(1 + 2)",
            "$[$.a[0] to $.b]",
            "(-$.a).abs()",
            "$ ? (@ == null || @ != true && false == @)",
            "($.a + 1).double()",
            "!($ > 1)",
            "exists($.a)",
        ],
    ),
    ("tsvector", &["a:1,2A,3B,4C,5D", "'quo''te\\\\d':7 b", "x y z"]),
    (
        "tsquery",
        &[
            "a",
            "!a",
            "!!a",
            "!(a & b)",
            "(a | b) & c",
            "a | b & c",
            "a <-> b <-> c",
            "a <-> (b <-> c)",
            "a <2> b & c",
            "(a & b) <-> c",
            "a:A & b:BCD* | !c:*",
            "'it''s' & 'ba\\\\ck'",
            "!(a <-> b)",
            "a & (b & c)",
            "(a | b) | (c | d)",
            "!a <-> !b",
        ],
    ),
    (
        "xml",
        &[
            "<?xml version=\"1.0\"?><a/>",
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<a/>",
            "<?xml version='1.1'?><a/>",
            "<?xml version=\"1.0\" standalone=\"yes\"?>\n<a/>",
            "<?xml version=\"1.0\" standalone='no' ?><b>x</b>",
            "\nx",
            "<?xml-model a?>y",
        ],
    ),
    ("path", &["((0,0))", "[(1e20,1e-20),(3.5,4)]"]),
    ("bytea", &["\\x", "\\xdeadbeef00"]),
    ("text", &["\u{b}\u{c}\r", "null", "Null", "a}b", "\"", "\\", "(", "a;b"]),
    ("char(5)", &["a b"]),
    ("bit(9)", &["111111111"]),
    ("varbit", &["11111111", "111111110"]),
    ("int8", &["-1", "10", "1000000000000000000"]),
    ("int2", &["-1", "9"]),
    ("xid8", &["1"]),
    ("numrange", &["(1,2]", "[,5)", "[\"NaN\",NaN]"]),
    ("daterange", &["[0044-03-15 BC,0001-01-01)"]),
    ("nummultirange", &["{(,1),[2,2],(3.5,100000000000000000000.25]}"]),
    ("int4multirange", &["{[1,2),[3,4),[5,6),[7,8),[9,10),[11,12)}", "{(,1),[5,)}"]),
    ("int2vector", &["1", "-5 0 7"]),
    ("oidvector", &["4294967295"]),
];

/// Edges that came with a major.
const MORE_LATER: &[(u32, &str, &[&str])] = &[(
    17,
    "jsonpath",
    &[
        "$.bigint()",
        "$.boolean()",
        "$.date()",
        "$.decimal()",
        "$.decimal(4,2)",
        "$.decimal(4)",
        "$.integer()",
        "$.number()",
        "$.string()",
        "$.time()",
        "$.time(3)",
        "$.time_tz(1)",
        "$.timestamp(0)",
        "$.timestamp_tz()",
    ],
)];

/// Types whose text only the server can write.
pub(crate) fn is_refused(name: &str) -> bool {
    name.starts_with("reg") || name == "aclitem"
}

fn literal(text: &str) -> String {
    base::quote_literal(text)
}

fn fill(oracle: &Oracle, table: &str, name: &str, values: &[&str]) {
    let rows: Vec<String> = values.iter().map(|value| format!("({}::{name})", literal(value))).collect();
    if name.ends_with("vector") && !name.starts_with("ts") {
        // To SQL, these are arrays themselves.
        oracle.sql(&format!(
            "CREATE TABLE {table} (v {name}, a {name}[]); INSERT INTO {table} (v) VALUES {}; \
             INSERT INTO {table} (a) SELECT ('{{{{\"' || v::text || '\",NULL}}}}')::{name}[] FROM {table}",
            rows.join(", ")
        ));
        return;
    }
    oracle.sql(&format!(
        "CREATE TABLE {table} (v {name}, a {name}[]); INSERT INTO {table} VALUES (NULL, NULL), (NULL, '{{}}');
         INSERT INTO {table} SELECT v, ARRAY[v] FROM (VALUES {}) x (v);
         INSERT INTO {table} SELECT v, ARRAY[[[v, NULL]], [[NULL, v]]] FROM {table} WHERE v IS NOT NULL;
         INSERT INTO {table} (a) SELECT array_agg(v) FROM {table};
         INSERT INTO {table} (a) SELECT ('[-1:0][5:5]=' || ARRAY[[v], [v]]::text)::{name}[] FROM {table} WHERE v IS NOT NULL",
        rows.join(", "),
    ));
}

#[test]
fn values_at_the_edges() {
    Oracle::each(|oracle| {
        let later = LATER.iter().filter(|(since, _)| *since <= oracle.major()).map(|(_, later)| *later);
        let more_later = MORE_LATER
            .iter()
            .filter(|(since, ..)| *since <= oracle.major())
            .map(|&(_, name, values)| (name, values));
        let all: Vec<(&str, &[&str])> =
            BINARY.iter().chain(TEXT).chain(MORE).copied().chain(later).chain(more_later).collect();
        let scalars = all.iter().filter(|(name, _)| !is_refused(name) && !name.ends_with("[]"));
        let mut tables = Vec::new();
        for (number, (name, values)) in scalars.enumerate() {
            let table = format!("edge{number}");
            fill(oracle, &table, name, values);
            tables.push(table);
        }
        for (number, (name, values)) in
            all.iter().filter(|(name, _)| name.ends_with("[]") && !is_refused(name)).enumerate()
        {
            let values: Vec<String> = values.iter().map(|value| format!("({})", literal(value))).collect();
            oracle.sql(&format!(
                "CREATE TABLE edges{number} (v {name}); INSERT INTO edges{number} VALUES {}",
                values.join(", ")
            ));
            tables.push(format!("edges{number}"));
        }
        let types = oracle.types();
        let mut totals = Totals::default();
        tables.iter().for_each(|table| totals += oracle.compare_with(table, &types));
        println!("{}: {} tables, {totals}", oracle.major(), tables.len());
        assert!(totals.values > 1_500, "{totals}");
    });
}

/// A byte that is no letter. Before 15, its text is that byte, which is no text to a client, so
/// only binary is compared.
#[test]
fn bytes_of_char() {
    Oracle::each(|oracle| {
        let bytes = if oracle.major() < 15 { "0, 127" } else { "-128, 127" };
        println!("{}: \"char\" from {bytes}", oracle.major());
        oracle.sql(&format!(
            "CREATE TABLE c AS SELECT i::\"char\" v, ARRAY[i::\"char\"] a FROM generate_series({bytes}) i"
        ));
        let totals = oracle.compare("c");
        assert!(totals.values >= 256, "{totals}");
    });
}
