//! The filters under test: written ones for every form and type, refused ones, and random ones.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Every form and every type.
pub(crate) const WRITTEN: &[&str] = &[
    "true",
    "bo",
    "NOT bo",
    "bo IS TRUE",
    "bo IS NOT TRUE",
    "bo IS FALSE",
    "bo IS NOT FALSE",
    "bo IS UNKNOWN",
    "bo IS NOT UNKNOWN",
    "(a > 0) IS NOT TRUE",
    "bo = true OR bo < true",
    "a = 1",
    "a <> 1 AND b >= 0 OR s < 3",
    "a = b",
    "a < s AND b > s OR s <= a",
    "a::int8 = b OR s::int4 = a OR s::int8 <> b",
    "a IN (1, 2, 3)",
    "a NOT IN (1, 2, 3)",
    "a IN (1, NULL)",
    "a NOT IN (1, NULL)",
    "a IN (b::int4, s, 5)",
    "a = ANY ('{1,2,NULL}'::int[])",
    "a = ANY ('{}'::int[])",
    "a <> ALL ('{}'::int[])",
    "a > ANY ('{3,5}'::int[]) AND b < ALL ('{8,9}'::int8[])",
    "c = ANY ('{0.25,0.50,NaN}'::numeric[])",
    "e = ANY ('{a,\"b  \",NULL}'::text[])",
    "v = ANY (ARRAY['a', 'b'])",
    "u = ANY ('{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'::uuid[])",
    "g <> ALL ('{2020-01-01,infinity}'::date[])",
    "a BETWEEN -3 AND 3",
    "a NOT BETWEEN SYMMETRIC 3 AND -3",
    "(a, b) = (1, 2) OR (a, b) <> (0, 0)",
    "a IS NULL OR e IS NOT NULL",
    "j IS NULL AND iv IS NOT NULL",
    "(a = 1) IS NULL",
    "a IS DISTINCT FROM 1",
    "a IS NOT DISTINCT FROM s",
    "e IS DISTINCT FROM v",
    "c = a",
    "c > 1.5",
    "cn > 0 AND cn <> 'NaN'",
    "cn = 'NaN' OR cn < '-Infinity'::numeric OR cn >= 10000",
    "cn::float8 > 1 OR c::float8 = r",
    "c::int4 = a OR c::int8 = b OR c::int2 = s",
    "c::float4 = r",
    "d > 1 OR d = 'NaN'",
    "d = 0 AND d <= '-0'",
    "d < r OR d >= r",
    "r > d AND r = 1.5",
    "d::numeric > 1 OR r::numeric = c",
    "r::int4 = a OR r::int8 = b OR r::int2 = s",
    "a::float8 = r OR b::float4 > d OR s::float8 < c::float8",
    "e = 'a'",
    "e < 'b' AND e >= ''",
    "v > 'a' OR v = e",
    "e > v COLLATE \"C\"",
    "ch = 'ab'",
    "ch = 'ab  ' OR ch > 'b'",
    "ch::text = e",
    "nm = 'a' OR nm::text < 'b'",
    "g = '2020-01-01' OR g < '1900-01-01'",
    "g > h OR g = h",
    "h <= g AND h <> g",
    "h::date = g OR h > '2020-01-01 00:00:01'",
    "i >= '2020-01-01 12:00:00+00'",
    "t >= '12:00' AND t < '24:00'",
    "tz = '12:00+00' OR tz > '12:00+00'",
    "iv = '30 days' OR iv > '1 mon'",
    "u > '00000000-0000-0000-0000-000000000000'",
    "o = 3 OR o > 4",
    "j IS NOT NULL OR g IS NULL",
    "added = 3 AND late IS NULL",
    "a::bool OR bo::int4 = 0",
    "NOT (a > 0 AND (b > 0 OR bo) AND NOT (c < 0 OR e = 'a'))",
    "b = 1 AND (a = 1 OR NULL) OR s = 1",
    "NULL::bool",
];

/// Filters that are refused, each with a word of the reason.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("a + 1 > 2", "operator"),
    ("a % 2 = 0", "operator"),
    ("lower(e) = 'a'", "calls lower()"),
    ("e LIKE 'a%'", "operator"),
    ("e ~ 'a'", "operator"),
    ("coalesce(a, 1) = 1", "COALESCE"),
    ("CASE WHEN a = 1 THEN bo ELSE false END", "CASE"),
    ("nullif(a, 1) = 2", "NULLIF"),
    ("c::numeric(4,1) = 1.5", "calls numeric()"),
    ("j = '1'", "operator"),
    ("j = ANY ('{1}'::jsonb[])", "operator"),
    ("greatest(a, 1) = 1", "GREATEST or LEAST"),
    ("e > ('b' COLLATE \"ucs_basic\")", "collation"),
    ("a = 1 AND length(e) = 1", "calls length()"),
    ("a = ANY (ARRAY[[1, 2], [3, 4]])", "ARRAY[...]"),
];

const OPERATORS: [&str; 6] = ["=", "<>", "<", "<=", ">", ">="];

/// Expressions that can be compared with each other.
const COMPARABLE: &[&[&str]] = &[
    &["a", "b", "s", "3", "-2", "a::int8", "s::int4", "r::int4", "c::int8", "added"],
    &["c", "cn", "1.5", "a::numeric", "d::numeric", "r::numeric", "'NaN'::numeric", "-10000"],
    &[
        "d",
        "r",
        "a::float8",
        "cn::float8",
        "'NaN'::float8",
        "0.1::float8",
        "b::float4",
        "'-Infinity'::float8",
    ],
    &["e", "v", "'ab'::text", "''::varchar", "nm::text", "ch::text"],
    &["ch", "'ab'::bpchar", "'zz  '::bpchar"],
    &["g", "h", "'2020-01-01'::date", "'infinity'::timestamp", "h::date"],
    &["i", "'2020-01-01 12:00:00+00'::timestamptz"],
    &["t", "'12:00'::time"],
    &["tz", "'13:00+01'::timetz"],
    &["iv", "'30 days'::interval", "'-1 day'::interval"],
    &["u", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid"],
    &["bo", "true", "NULL::bool"],
];

/// A filter that the server accepts, with at most this many levels of AND, OR and NOT.
pub(crate) fn random(rng: &mut StdRng, depth: usize) -> String {
    match rng.random_range(0..if depth == 0 { 3 } else { 8 }) {
        0..3 => comparison(rng),
        3 => format!("NOT ({})", random(rng, depth - 1)),
        4 | 5 => format!("({}) AND ({})", random(rng, depth - 1), random(rng, depth - 1)),
        6 => format!(
            "({}) OR ({}) OR ({})",
            random(rng, depth - 1),
            random(rng, depth - 1),
            random(rng, depth - 1)
        ),
        _ => {
            let test = [
                "IS TRUE",
                "IS NOT TRUE",
                "IS FALSE",
                "IS NOT FALSE",
                "IS UNKNOWN",
                "IS NOT UNKNOWN",
                "IS NULL",
            ];
            format!("({}) {}", random(rng, depth - 1), test.choose(rng).unwrap())
        }
    }
}

fn comparison(rng: &mut StdRng) -> String {
    let group = COMPARABLE.choose(rng).unwrap();
    let mut one = || *group.choose(rng).unwrap();
    let (left, right, third) = (one(), one(), one());
    let operator = OPERATORS.choose(rng).unwrap();
    match rng.random_range(0..8) {
        0 => format!("{left} IS NULL"),
        1 => format!("{left} IS NOT NULL"),
        2 => format!("{left} IS DISTINCT FROM {right}"),
        3 => format!("{left} BETWEEN {right} AND {third}"),
        _ => format!("{left} {operator} {right}"),
    }
}
