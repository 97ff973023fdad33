//! Random values of every type, thousands of each. They are sent to the server in its binary
//! format, which can express everything that a type can hold, and read from its pages.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};

use crate::oracle::{Oracle, Totals};

/// The number of values of each type in one run; `PGSLUICE_TYPES_VALUES` sets it.
const VALUES: usize = 2_000;

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

type Generate = fn(&mut StdRng) -> Vec<u8>;

/// Each type with a function that makes its binary form.
const TYPES: &[(&str, Generate)] = &[
    ("bool", |rng| vec![rng.random_range(0..2)]),
    ("bytea", |rng| bytes(rng, 60)),
    ("name", |rng| text(rng, 20).into_bytes()),
    ("text", |rng| text(rng, 200).into_bytes()),
    ("varchar", |rng| text(rng, 30).into_bytes()),
    ("char(9)", |rng| text(rng, 9).into_bytes()),
    ("json", |rng| json(rng, 3).into_bytes()),
    ("int2", |rng| (small(rng) as i16).to_be_bytes().into()),
    ("int4", |rng| (small(rng) as i32).to_be_bytes().into()),
    ("int8", |rng| small(rng).to_be_bytes().into()),
    ("oid", |rng| (small(rng) as u32).to_be_bytes().into()),
    ("xid", |rng| (small(rng) as u32).to_be_bytes().into()),
    ("xid8", |rng| small(rng).to_be_bytes().into()),
    ("tid", |rng| bytes_of(rng, 6)),
    ("pg_lsn", |rng| small(rng).to_be_bytes().into()),
    ("float4", |rng| float4(rng).to_be_bytes().into()),
    ("float8", |rng| float8(rng).to_be_bytes().into()),
    ("numeric", numeric),
    ("money", |rng| small(rng).to_be_bytes().into()),
    ("date", |rng| date(rng).to_be_bytes().into()),
    ("time", |rng| rng.random_range(0..=DAY).to_be_bytes().into()),
    ("timetz", |rng| {
        let zone: i32 = rng.random_range(-57_599..=57_599);
        let zone = if rng.random() { zone / 3600 * 3600 } else { zone };
        [&rng.random_range(0..=DAY).to_be_bytes()[..], &zone.to_be_bytes()].concat()
    }),
    ("timestamp", |rng| timestamp(rng).to_be_bytes().into()),
    ("timestamptz", |rng| timestamp(rng).to_be_bytes().into()),
    ("interval", |rng| {
        // 14 cannot write an interval with more hours than an int holds.
        let time =
            small(rng).clamp(-i64::from(i32::MAX) * 3_600_000_000, i64::from(i32::MAX) * 3_600_000_000);
        let (days, months) = (small(rng) as i32, small(rng) as i32);
        [&time.to_be_bytes()[..], &days.to_be_bytes(), &months.to_be_bytes()].concat()
    }),
    ("uuid", |rng| bytes_of(rng, 16)),
    ("bit varying", |rng| {
        let count = rng.random_range(0..100_usize);
        let mut bits = bytes_of(rng, count.div_ceil(8));
        if let Some(last) = bits.last_mut().filter(|_| count % 8 != 0) {
            *last &= 0xff << (8 - count % 8);
        }
        [&(count as i32).to_be_bytes()[..], &bits].concat()
    }),
    ("inet", inet),
    ("macaddr", |rng| bytes_of(rng, 6)),
    ("macaddr8", |rng| bytes_of(rng, 8)),
    ("point", |rng| floats(rng, 2)),
    ("line", |rng| [&1.5_f64.to_be_bytes()[..], &floats(rng, 2)].concat()),
    ("lseg", |rng| floats(rng, 4)),
    ("box", |rng| floats(rng, 4)),
    ("circle", |rng| [&floats(rng, 2)[..], &float8(rng).abs().to_be_bytes()].concat()),
    ("path", |rng| {
        let count = rng.random_range(1..6);
        [&[rng.random_range(0..2)][..], &(count as i32).to_be_bytes(), &floats(rng, count * 2)].concat()
    }),
    ("polygon", |rng| {
        let count = rng.random_range(1..6);
        [&(count as i32).to_be_bytes()[..], &floats(rng, count * 2)].concat()
    }),
    ("jsonb", |rng| [b"\x01", json(rng, 4).as_bytes()].concat()),
    ("jsonpath", |rng| [b"\x01", jsonpath(rng).as_bytes()].concat()),
    ("tsvector", tsvector),
    ("tsquery", tsquery),
    ("pg_snapshot", |rng| {
        let mut xids: Vec<i64> =
            (0..rng.random_range(0..5)).map(|_| rng.random_range(100..1_000_000)).collect();
        xids.sort_unstable();
        xids.dedup();
        let numbers =
            [[rng.random_range(1..100), rng.random_range(1_000_000..i64::MAX)].to_vec(), xids.clone()];
        let numbers = numbers.concat().into_iter().flat_map(i64::to_be_bytes);
        (xids.len() as i32).to_be_bytes().into_iter().chain(numbers).collect()
    }),
    ("xml", |rng| {
        let declaration = ["", "<?xml version='1.0'?>", "<?xml version=\"1.1\" standalone='yes'?>", "\n"]
            .choose(rng)
            .unwrap();
        format!("{declaration}<a b=\"{}\">é</a>", rng.random::<u16>()).into_bytes()
    }),
];

/// Numbers of every magnitude.
fn small(rng: &mut StdRng) -> i64 {
    let number = rng.random::<i64>();
    number >> rng.random_range(0..64)
}

fn bytes_of(rng: &mut StdRng, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    rng.fill_bytes(&mut bytes);
    // Zeros matter to compression, padding and ends of strings.
    bytes.iter_mut().for_each(|byte| *byte *= u8::from(rng.random_ratio(3, 4)));
    bytes
}

fn bytes(rng: &mut StdRng, below: usize) -> Vec<u8> {
    let count = rng.random_range(0..below);
    bytes_of(rng, count)
}

/// Letters, also those that some text output has to escape or quote.
fn text(rng: &mut StdRng, below: usize) -> String {
    const LETTERS: &[char] = &[
        'a', 'b', 'N', '"', '\\', '\'', '{', '}', '(', ')', '[', ']', ',', ';', ' ', '\t', '\n', '\r',
        '\u{b}', '\u{c}', '\u{1}', '\u{7f}', 'é', '🐜',
    ];
    let count = rng.random_range(0..below);
    let mut text = String::new();
    while text.len() + 4 < count {
        text.push(*LETTERS.choose(rng).unwrap());
    }
    text
}

fn float4(rng: &mut StdRng) -> f32 {
    match rng.random_range(0..4) {
        0 => small(rng) as f32,
        1 => (rng.random_range(-100_000_i32..100_000) as f32) / 1000.0,
        // Powers of two: the float below them is nearer.
        2 => f32::from_bits((rng.random_range(0..512_u32)) << 23),
        _ => f32::from_bits(rng.random()),
    }
}

fn float8(rng: &mut StdRng) -> f64 {
    match rng.random_range(0..6) {
        0 => small(rng) as f64,
        1 => (rng.random_range(-100_000_i32..100_000) as f64) / 1000.0,
        2 => f64::from_bits(rng.random_range(0..4096_u64) << 52),
        // Decimals of few digits. Some lie half-way between two floats.
        3 => format!("{}e{}", rng.random_range(1..1_000_000), rng.random_range(-30..30)).parse().unwrap(),
        4 => 2_f64.powi(rng.random_range(50..80)) * f64::from(rng.random_range(1_u32..100_000)),
        _ => f64::from_bits(rng.random()),
    }
}

fn floats(rng: &mut StdRng, count: usize) -> Vec<u8> {
    (0..count).flat_map(|_| float8(rng).to_be_bytes()).collect()
}

fn numeric(rng: &mut StdRng) -> Vec<u8> {
    let mut words: Vec<u16> = Vec::new();
    if rng.random_ratio(1, 50) {
        words.extend([0, 0, *[0xc000, 0xd000, 0xf000].choose(rng).unwrap(), 0]);
    } else {
        let count = rng.random_range(0..8_u16);
        let weight: i16 =
            if rng.random_ratio(1, 10) { rng.random_range(-200..200) } else { rng.random_range(-5..6) };
        let dscale = if rng.random_ratio(1, 10) { rng.random_range(0..900) } else { rng.random_range(0..40) };
        words.extend([count, weight as u16, if rng.random() { 0x4000 } else { 0 }, dscale]);
        words.extend((0..count).map(|_| rng.random_range(0..10_000)));
    }
    words.into_iter().flat_map(u16::to_be_bytes).collect()
}

fn date(rng: &mut StdRng) -> i32 {
    match rng.random_range(0..20) {
        0 => i32::MAX,
        1 => i32::MIN,
        2..10 => rng.random_range(-50_000..50_000),
        // From 4714-11-24 BC.
        _ => rng.random_range(-2_451_545..2_145_031_949),
    }
}

fn timestamp(rng: &mut StdRng) -> i64 {
    match rng.random_range(0..20) {
        0 => i64::MAX,
        1 => i64::MIN,
        2..6 => rng.random_range(-800_000_000..800_000_000) * 1_000_000,
        // From 4714-11-24 BC to 294277-01-01.
        _ => rng.random_range(-211_813_488_000_000_000..9_223_371_331_200_000_000),
    }
}

fn inet(rng: &mut StdRng) -> Vec<u8> {
    if rng.random() {
        [&[2, *[32, 24, 0, 31].choose(rng).unwrap(), 0, 4][..], &bytes_of(rng, 4)].concat()
    } else {
        let words = (0..8).flat_map(|_| match rng.random_range(0..4) {
            0 => 0xffff_u16.to_be_bytes(),
            1 => rng.random::<u16>().to_be_bytes(),
            _ => [0, 0],
        });
        let words: Vec<u8> = words.collect();
        [&[3, *[128, 64, 0, 127].choose(rng).unwrap(), 0, 16][..], &words].concat()
    }
}

fn json(rng: &mut StdRng, depth: usize) -> String {
    let string = |rng: &mut StdRng| {
        let mut quoted = String::from("\"");
        for letter in text(rng, 14).chars() {
            match letter {
                '"' | '\\' => quoted.extend(['\\', letter]),
                letter if letter < ' ' => quoted.push_str(&format!("\\u{:04x}", letter as u32)),
                letter => quoted.push(letter),
            }
        }
        quoted + "\""
    };
    match rng.random_range(0..if depth == 0 { 6 } else { 10 }) {
        0 => "null".to_owned(),
        1 => "true".to_owned(),
        2 => "false".to_owned(),
        3 => format!("{}.{:03}", small(rng), rng.random_range(0..1000)),
        4 => format!("{}e{}", rng.random_range(-9..9), rng.random_range(-9..30)),
        5 => string(rng),
        6 | 7 => {
            // Sometimes more than 32: every 32nd entry has an offset instead of a length.
            let count = if rng.random_ratio(1, 8) { 70 } else { rng.random_range(0..5) };
            let elements: Vec<String> = (0..count).map(|_| json(rng, depth - 1)).collect();
            format!("[{}]", elements.join(","))
        }
        _ => {
            let count = if rng.random_ratio(1, 8) { 40 } else { rng.random_range(0..5) };
            let members: Vec<String> =
                (0..count).map(|_| format!("{}: {}", string(rng), json(rng, depth - 1))).collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

/// A path that the server accepts: a random combination of operators and accessors.
fn jsonpath(rng: &mut StdRng) -> String {
    let mode = *["", "strict ", "lax "].choose(rng).unwrap();
    format!("{mode}{}", arithmetic(rng, 3))
}

fn arithmetic(rng: &mut StdRng, depth: usize) -> String {
    match rng.random_range(0..if depth == 0 { 2 } else { 5 }) {
        0 => rng.random_range(0..100).to_string(),
        1 => format!("${}", accessors(rng, depth)),
        2 => format!("(-{})", arithmetic(rng, depth - 1)),
        3 => format!("({}){}", arithmetic(rng, depth - 1), accessors(rng, depth - 1)),
        _ => {
            let operator = *["+", "-", "*", "/", "%"].choose(rng).unwrap();
            format!("({} {operator} {})", arithmetic(rng, depth - 1), arithmetic(rng, depth - 1))
        }
    }
}

fn accessors(rng: &mut StdRng, depth: usize) -> String {
    let mut path = String::new();
    for _ in 0..rng.random_range(0..3) {
        path += match rng.random_range(0..7) {
            0 => ".key",
            1 => ".\"a key\"",
            2 => "[*]",
            3 => "[0, 2 to last]",
            4 => ".**{2 to last}",
            5 => ".size()",
            _ if depth > 0 => {
                path += &format!(" ? ({})", predicate(rng, depth - 1));
                continue;
            }
            _ => ".*",
        };
    }
    path
}

fn predicate(rng: &mut StdRng, depth: usize) -> String {
    match rng.random_range(0..if depth == 0 { 3 } else { 7 }) {
        0 => {
            format!("@.a {} {}", ["==", "!=", "<", ">", "<=", ">="].choose(rng).unwrap(), rng.random::<i16>())
        }
        1 => "@ starts with \"x\\ty\"".to_owned(),
        2 => format!("@.b like_regex \"^q\"{}", ["", " flag \"i\"", " flag \"smq\""].choose(rng).unwrap()),
        3 => format!("!({})", predicate(rng, depth - 1)),
        4 => format!("(({}) is unknown)", predicate(rng, depth - 1)),
        5 => format!("exists (@{})", accessors(rng, depth - 1)),
        _ => {
            let operator = ["&&", "||"].choose(rng).unwrap();
            format!("({} {operator} {})", predicate(rng, depth - 1), predicate(rng, depth - 1))
        }
    }
}

fn lexeme(rng: &mut StdRng) -> Vec<u8> {
    let mut lexeme = text(rng, 12).into_bytes();
    lexeme.push(b'a' + rng.random_range(0..26));
    lexeme
}

fn tsvector(rng: &mut StdRng) -> Vec<u8> {
    let mut lexemes: Vec<Vec<u8>> = (0..rng.random_range(0..8)).map(|_| lexeme(rng)).collect();
    // The server wants lexemes in its order: of two with the same beginning, the shorter first.
    lexemes.sort_unstable();
    lexemes.dedup();
    let mut binary = (lexemes.len() as i32).to_be_bytes().to_vec();
    for lexeme in lexemes {
        binary.extend_from_slice(&lexeme);
        binary.push(0);
        let mut positions: Vec<u16> =
            (0..rng.random_range(0..4)).map(|_| rng.random_range(1..0x3fff)).collect();
        positions.sort_unstable();
        positions.dedup();
        binary.extend_from_slice(&(positions.len() as u16).to_be_bytes());
        for position in positions {
            binary.extend_from_slice(&(position | rng.random_range(0..4_u16) << 14).to_be_bytes());
        }
    }
    binary
}

fn tsquery(rng: &mut StdRng) -> Vec<u8> {
    let mut items = Vec::new();
    // The server sends an empty query, but does not receive one.
    query_item(rng, 5, &mut items);
    let count = items.len() as i32;
    count.to_be_bytes().into_iter().chain(items.concat()).collect()
}

/// An operator, before its operands.
fn query_item(rng: &mut StdRng, depth: usize, items: &mut Vec<Vec<u8>>) {
    match rng.random_range(0..if depth == 0 { 1 } else { 5 }) {
        0 => items
            .push([&[1, rng.random_range(0..16), rng.random_range(0..2)][..], &lexeme(rng), &[0]].concat()),
        1 => {
            items.push(vec![2, 1]);
            query_item(rng, depth - 1, items);
        }
        operator => {
            let mut item = vec![2, operator];
            if operator == 4 {
                item.extend_from_slice(&rng.random_range(0..300_i16).to_be_bytes());
            }
            items.push(item);
            query_item(rng, depth - 1, items);
            query_item(rng, depth - 1, items);
        }
    }
}

fn from_environment<T: std::str::FromStr>(name: &str, default: impl FnOnce() -> T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is no number")),
        Err(_) => default(),
    }
}

#[test]
fn random_values() {
    let seed = from_environment("PGSLUICE_TYPES_SEED", rand::random::<u64>);
    let values = from_environment("PGSLUICE_TYPES_VALUES", || VALUES);
    Oracle::each(|oracle| {
        println!("{}: PGSLUICE_TYPES_SEED={seed} PGSLUICE_TYPES_VALUES={values}", oracle.major());
        let types = oracle.types();
        let mut totals = Totals::default();
        for (number, (name, generate)) in TYPES.iter().enumerate() {
            // Each type has its own seed, so that it can be repeated alone.
            let mut rng = StdRng::seed_from_u64(seed ^ number as u64);
            let rows: Vec<_> = (0..values)
                .map(|row| {
                    vec![
                        Some((row as i32).to_be_bytes().to_vec()),
                        rng.random_ratio(24, 25).then(|| generate(&mut rng)),
                    ]
                })
                .collect();
            let (table, arrays) = (format!("random{number}"), format!("arrays{number}"));
            oracle.sql(&format!("CREATE TABLE {table} (id int, v {name})"));
            oracle.copy_in(&table, &rows);
            // Arrays with NULLs and without, of one dimension and of two.
            oracle.sql(&format!(
                "CREATE TABLE {arrays} AS SELECT array_agg(v) AS one, \
                    CASE WHEN count(*) >= 4 THEN ARRAY[(array_agg(v))[1:2], (array_agg(v))[3:4]] END AS two, \
                    array_agg(v) FILTER (WHERE v IS NOT NULL) AS filled \
                   FROM {table} GROUP BY id / 5"
            ));
            totals += oracle.compare_with(&table, &types);
            totals += oracle.compare_with(&arrays, &types);
        }
        totals += ranges(oracle, &types);
        println!("{}: {totals}", oracle.major());
        assert!(totals.values > TYPES.len() * values, "{totals}");
    });
}

/// Ranges and multiranges between random values.
fn ranges(oracle: &Oracle, types: &std::collections::HashMap<base::Oid, types::TypeInfo>) -> Totals {
    let mut totals = Totals::default();
    for (range, multirange, of) in [
        ("int4range", "int4multirange", "int4"),
        ("int8range", "int8multirange", "int8"),
        ("numrange", "nummultirange", "numeric"),
        ("tsrange", "tsmultirange", "timestamp"),
        ("tstzrange", "tstzmultirange", "timestamptz"),
        ("daterange", "datemultirange", "date"),
    ] {
        let table = TYPES.iter().position(|(name, _)| *name == of).unwrap();
        let highest = match of {
            "int4" => "v < 2147483647",
            "int8" => "v < 9223372036854775807",
            "date" => "v < '5874897-12-31'",
            _ => "true",
        };
        oracle.sql(&format!(
            "CREATE TABLE {range}s AS \
             SELECT {range}(least(v, w), greatest(v, w), (ARRAY['[]', '[)', '(]', '()'])[1 + id % 4]) AS r, id, \
                    {range}(v, NULL, '[)') AS l, {range}(NULL, w, '(]') AS u \
               FROM (SELECT id, v, lead(v) OVER (ORDER BY id) AS w FROM random{table} WHERE {highest}) x; \
             CREATE TABLE {multirange}s AS SELECT range_agg(r) AS m, array_agg(r) AS a, array_agg(l) AS b, array_agg(u) AS c \
               FROM {range}s GROUP BY id / 9"
        ));
        totals += oracle.compare_with(&format!("{range}s"), types);
        totals += oracle.compare_with(&format!("{multirange}s"), types);
    }
    totals
}
