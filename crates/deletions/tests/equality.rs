//! Two keys are equal exactly if PostgreSQL says that the values are equal, whether these came as
//! text or in binary.
//!
//! Each type has a column of its own on a real server of each major under test, with chosen values
//! and random ones. The server compares each pair with its own operator.

#![allow(clippy::unwrap_used)]

use std::error::Error;
use std::fmt::Write;

use base::Oid;
use deletions::{ColumnType, Equality, Identity, RowKey, Shape, Value};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use testkit::{Cluster, Major};
use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// As pgsluice's own sessions, in a time zone with odd offsets.
const SESSION: &str = "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET extra_float_digits = 3; \
    SET timezone = 'America/St_Johns'; SET bytea_output = 'hex'";
/// Random values of each type, beside the chosen ones.
const RANDOM: usize = 60;

/// A value as the server sends it in binary; `None` for NULL.
struct Raw(Option<Vec<u8>>);

impl<'a> FromSql<'a> for Raw {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Raw, Box<dyn Error + Sync + Send>> {
        Ok(Raw(Some(raw.to_vec())))
    }

    fn from_sql_null(_: &Type) -> Result<Raw, Box<dyn Error + Sync + Send>> {
        Ok(Raw(None))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A value as text and in binary.
type Sent = (String, Vec<u8>);
/// Two values by their places.
type Pair = (usize, usize);

/// A type, its OID and element, values of it, and the parts that random values are made of.
struct Case {
    name: &'static str,
    oid: u32,
    element: Option<u32>,
    values: &'static [&'static str],
    random: fn(&mut StdRng) -> String,
}

fn pick(random: &mut StdRng, from: &[&str]) -> String {
    (*from.choose(random).unwrap()).to_owned()
}

/// Few numbers, so that many are equal, in many ways to write them.
fn decimal(random: &mut StdRng) -> String {
    let sign = pick(random, &["", "-"]);
    let zeros = "0".repeat(random.random_range(0..9));
    let digits = random.random_range(0..30) * 10_u64.pow(random.random_range(0..12));
    let places = random.random_range(0..9_u32);
    if places == 0 {
        return format!("{sign}{digits}{zeros}");
    }
    format!("{sign}{}.{:0width$}{zeros}", digits / 7, digits % 10_u64.pow(places), width = places as usize)
}

fn word(random: &mut StdRng) -> String {
    let letters = [
        "a", "A", "ä", "e\u{301}", "é", " ", "  ", "\\", "\"", "'", ",", "{", "}", "NULL", "\u{a0}", "ß",
        "\t",
    ];
    (0..random.random_range(0..4)).map(|_| pick(random, &letters)).collect()
}

fn bits(random: &mut StdRng) -> String {
    (0..random.random_range(0..20)).map(|_| pick(random, &["0", "0", "1"])).collect()
}

fn date(random: &mut StdRng) -> String {
    let era = pick(random, &["", "", " BC"]);
    let year: u32 = *[1, 4, 1900, 2000, 2024].choose(random).unwrap();
    format!("{year:04}-{:02}-{:02}{era}", random.random_range(1..4), random.random_range(27..32))
}

fn time(random: &mut StdRng) -> String {
    let fraction = pick(random, &["", ".5", ".50", ".000001", ".999999"]);
    format!(
        "{:02}:{:02}:{:02}{fraction}",
        random.random_range(0..24),
        pick(random, &["00", "30"]),
        pick(random, &["00", "59"])
    )
}

fn offset(random: &mut StdRng) -> String {
    pick(random, &["+00", "-00", "+01", "-03:30", "+05:45", "+00:19:32", "-11"])
}

fn timestamp(random: &mut StdRng) -> String {
    let (date, time) = (date(random), time(random));
    match date.strip_suffix(" BC") {
        Some(date) => format!("{date} {time} BC"),
        None => format!("{date} {time}"),
    }
}

fn timestamp_with_zone(random: &mut StdRng) -> String {
    // Midnights of several zones are often the same moment.
    let (day, hour, zone) =
        (random.random_range(1..4), random.random_range(0..24), random.random_range(-12..13));
    format!("2024-02-{day:02} {hour:02}:00:00{zone:+03}")
}

fn interval(random: &mut StdRng) -> String {
    let mut text = String::new();
    for (unit, most) in [("months", 3), ("days", 61), ("hours", 49)] {
        if random.random_bool(0.6) {
            let _ = write!(text, "{} {unit} ", random.random_range(-most..=most));
        }
    }
    if text.is_empty() { "0".to_owned() } else { text }
}

fn network(random: &mut StdRng) -> String {
    let address =
        pick(random, &["10.0.0.0", "10.0.0.1", "::", "::1", "::10.0.0.1", "::ffff:10.0.0.1", "2001:db8::"]);
    let bits = random.random_range(0..=if address.contains(':') { 128 } else { 32 });
    if random.random_bool(0.3) { address } else { format!("{address}/{bits}") }
}

fn subnet(random: &mut StdRng) -> String {
    pick(
        random,
        &[
            "10.0.0.0/8",
            "10.0.0.0/24",
            "10.1/16",
            "10.1.0.0/16",
            "::/0",
            "2001:db8::/32",
            "2001:0db8::/32",
            "0.0.0.0/0",
        ],
    )
}

fn document(random: &mut StdRng) -> String {
    let number = decimal(random);
    let number = number.trim_start_matches('-').trim_start_matches('0');
    let number =
        if number.is_empty() || number.starts_with('.') { format!("0{number}") } else { number.to_owned() };
    let text = pick(random, &["1.0", "1", "\\\"", "\\\\", "\\u00e4", "ä", ".00"]);
    match random.random_range(0..5) {
        0 => number,
        1 => format!("[{number}, \"{text}\"]"),
        2 => format!("{{\"{text}\": {number}, \"a\": \"{text}\"}}"),
        3 => format!("{{\"a\": {{\"b\": [-{number}, null, true]}}}}"),
        _ => format!("\"{text}\""),
    }
}

fn array_of(random: &mut StdRng, element: impl Fn(&mut StdRng) -> String) -> String {
    let mut quoted = || {
        let text = element(random).replace('\\', "\\\\").replace('"', "\\\"");
        if random.random_bool(0.1) { "NULL".to_owned() } else { format!("\"{text}\"") }
    };
    match quoted().len() % 4 {
        0 => "{}".to_owned(),
        1 => format!("{{{},{}}}", quoted(), quoted()),
        2 => format!("[0:1]={{{},{}}}", quoted(), quoted()),
        _ => format!("{{{{{},{}}},{{{},{}}}}}", quoted(), quoted(), quoted(), quoted()),
    }
}

const CASES: &[Case] = &[
    Case {
        name: "boolean",
        oid: 16,
        element: None,
        values: &["t", "f"],
        random: |random| pick(random, &["true", "no"]),
    },
    Case {
        name: "bytea",
        oid: 17,
        element: None,
        values: &["", "\\x00", "\\x0000", "\\xff"],
        random: word_hex,
    },
    Case {
        name: "\"char\"",
        oid: 18,
        element: None,
        values: &["", "a", "\\"],
        random: |random| pick(random, &["a", "b", "A", " ", "0"]),
    },
    Case { name: "name", oid: 19, element: None, values: &["", "a"], random: word },
    Case {
        name: "bigint",
        oid: 20,
        element: None,
        values: &["-9223372036854775808", "9223372036854775807"],
        random: small,
    },
    Case { name: "smallint", oid: 21, element: None, values: &["-32768", "32767"], random: small },
    Case { name: "integer", oid: 23, element: None, values: &["-2147483648", "2147483647"], random: small },
    Case { name: "text", oid: 25, element: None, values: &["", "a", "a ", "\u{301}"], random: word },
    Case { name: "varchar(20)", oid: 1043, element: None, values: &["", "a", "a "], random: word },
    Case { name: "char(12)", oid: 1042, element: None, values: &["", " ", "a", "a  ", " a"], random: word },
    Case { name: "oid", oid: 26, element: None, values: &["0", "4294967295"], random: unsigned },
    Case { name: "xid8", oid: 5069, element: None, values: &["0", "18446744073709551615"], random: unsigned },
    Case {
        name: "inet",
        oid: 869,
        element: None,
        values: &["10.0.0.1", "10.0.0.1/32", "::1/128", "::1"],
        random: network,
    },
    Case { name: "cidr", oid: 650, element: None, values: &["10.0.0.0/8", "::/0"], random: subnet },
    Case {
        name: "real",
        oid: 700,
        element: None,
        values: &["0", "-0", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38", "0.1"],
        random: decimal,
    },
    Case {
        name: "double precision",
        oid: 701,
        element: None,
        values: &["0", "-0", "NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308", "0.1"],
        random: decimal,
    },
    Case {
        name: "numeric",
        oid: 1700,
        element: None,
        values: &["0", "0.000", "NaN", "Infinity", "-Infinity", "1e100", "1e-100", "1e131071", "1.50", "1.5"],
        random: decimal,
    },
    Case {
        name: "numeric(30,9)",
        oid: 1700,
        element: None,
        values: &["0", "1", "1.000000001"],
        random: decimal,
    },
    Case {
        name: "macaddr",
        oid: 829,
        element: None,
        values: &["08:00:2b:01:02:03", "08-00-2b-01-02-03", "08002b:010203"],
        random: |random| format!("00:00:00:00:00:{:02x}", random.random_range(0..9)),
    },
    Case {
        name: "macaddr8",
        oid: 774,
        element: None,
        values: &["08:00:2b:01:02:03:04:05", "08:00:2b:01:02:03"],
        random: |random| format!("00:00:00:00:00:00:00:{:02x}", random.random_range(0..9)),
    },
    Case {
        name: "date",
        oid: 1082,
        element: None,
        values: &["infinity", "-infinity", "4714-11-24 BC", "5874897-12-31", "2024-02-29", "0001-01-01"],
        random: date,
    },
    Case {
        name: "time",
        oid: 1083,
        element: None,
        values: &["00:00", "24:00", "23:59:59.999999"],
        random: time,
    },
    Case {
        name: "time with time zone",
        oid: 1266,
        element: None,
        values: &["12:00+00", "13:00+01", "24:00-15:59:59"],
        random: |random| time(random) + &offset(random),
    },
    Case {
        name: "timestamp",
        oid: 1114,
        element: None,
        values: &["infinity", "-infinity", "4714-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999"],
        random: timestamp,
    },
    Case {
        name: "timestamp with time zone",
        oid: 1184,
        element: None,
        values: &[
            "infinity",
            "-infinity",
            "4714-11-24 12:00:00+00 BC",
            "294276-12-31 00:00:00+00",
            "1800-01-01 00:00:00+00",
            "0044-03-15 00:00:00+00 BC",
        ],
        random: timestamp_with_zone,
    },
    Case {
        name: "interval",
        oid: 1186,
        element: None,
        values: &[
            "0",
            "1 month",
            "30 days",
            "720 hours",
            "-1 day 24 hours",
            "1 year",
            "12 months",
            "360 days",
            "178956970 years 7 months",
            "-2562047788:00:54.775808",
            "2562047788:00:54.775807",
            "1 year -2 months +3 days -04:05:06.789",
            "infinity",
            "-infinity",
        ],
        random: interval,
    },
    Case {
        name: "bit varying",
        oid: 1562,
        element: None,
        values: &["", "0", "00", "1", "10000000", "100000000"],
        random: bits,
    },
    Case {
        name: "bit(3)",
        oid: 1560,
        element: None,
        values: &["000", "101", "111"],
        random: |random| pick(random, &["001", "101"]),
    },
    Case {
        name: "uuid",
        oid: 2950,
        element: None,
        values: &["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}"],
        random: |random| format!("00000000-0000-0000-0000-00000000000{}", random.random_range(0..9)),
    },
    Case {
        name: "pg_lsn",
        oid: 3220,
        element: None,
        values: &["0/0", "FFFFFFFF/FFFFFFFF", "1/0"],
        random: |random| format!("0/{}", small(random).replace('-', "")),
    },
    Case {
        name: "jsonb",
        oid: 3802,
        element: None,
        values: &["1", "1.0", "[1]", "{}", "[]", "null", "\"1.0\""],
        random: document,
    },
    Case {
        name: "integer[]",
        oid: 1007,
        element: Some(23),
        values: &["{}", "{1}", "{{1}}", "[1:1]={1}", "{NULL}"],
        random: |random| array_of(random, small),
    },
    Case {
        name: "text[]",
        oid: 1009,
        element: Some(25),
        values: &["{}", "{\"\"}", "{\"NULL\"}", "{NULL}"],
        random: |random| array_of(random, word),
    },
    Case {
        name: "numeric[]",
        oid: 1231,
        element: Some(1700),
        values: &["{1.0}", "{1}"],
        random: |random| array_of(random, decimal),
    },
];

fn small(random: &mut StdRng) -> String {
    random.random_range(-9..10).to_string()
}

fn unsigned(random: &mut StdRng) -> String {
    random.random_range(0..20).to_string()
}

fn word_hex(random: &mut StdRng) -> String {
    let mut text = "\\x".to_owned();
    (0..random.random_range(0..3)).for_each(|_| text.push_str(&pick(random, &["00", "0F", "0f", "ff"])));
    text
}

impl Case {
    fn identity(&self) -> Identity {
        let base =
            |oid| ColumnType { oid: Oid(oid), name: self.name, shape: Shape::Base, is_deterministic: true };
        let column = match self.element {
            Some(element) => ColumnType { shape: Shape::Array(Box::new(base(element))), ..base(self.oid) },
            None => base(self.oid),
        };
        Identity::new(vec![Equality::of(&column).unwrap()], false)
    }
}

struct Server {
    runtime: tokio::runtime::Runtime,
    client: Client,
    _cluster: Cluster,
}

impl Server {
    fn start(major: Major) -> Server {
        let cluster = Cluster::start(major).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&cluster.url("postgres"), NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute(SESSION).await.unwrap();
            client
        });
        Server { runtime, client, _cluster: cluster }
    }

    /// The values as text and in binary, and the pairs that the server calls equal.
    fn ask(&self, case: &Case, values: &[String]) -> (Vec<Sent>, Vec<Pair>) {
        self.runtime.block_on(async {
            let create = format!("DROP TABLE IF EXISTS v; CREATE TABLE v (id serial, v {})", case.name);
            self.client.batch_execute(&create).await.unwrap();
            for value in values {
                let value = base::quote_literal(value);
                // A random value may be too long, or none; the other ones do not suffer.
                let _ = self.client.batch_execute(&format!("INSERT INTO v (v) VALUES ({value})")).await;
            }
            let texts = self.client.simple_query("SELECT v FROM v ORDER BY id").await.unwrap();
            let texts = texts.into_iter().filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap().to_owned()),
                _ => None,
            });
            let rows = self.client.query("SELECT v FROM v ORDER BY id", &[]).await.unwrap();
            let binary = rows.iter().map(|row| row.get::<_, Raw>(0).0.unwrap());
            let pairs = "WITH n AS (SELECT row_number() OVER (ORDER BY id) - 1 AS at, v FROM v)
                         SELECT a.at, b.at FROM n a JOIN n b ON a.at < b.at AND a.v = b.v ORDER BY 1, 2";
            let pairs = self.client.query(pairs, &[]).await.unwrap();
            let pairs =
                pairs.iter().map(|row| (row.get::<_, i64>(0) as usize, row.get::<_, i64>(1) as usize));
            (texts.zip(binary).collect(), pairs.collect())
        })
    }
}

fn key(identity: &Identity, value: Value<'_>) -> RowKey {
    let mut key = RowKey::default();
    identity.write(Oid(1), [value], &mut key).unwrap_or_else(|error| panic!("{value:?}: {error}"));
    key
}

/// A pair of values about which key and server differ, and what of it.
fn difference(values: &[Sent], pairs: &[Pair], identity: &Identity) -> Option<String> {
    let keys: Vec<RowKey> =
        values.iter().map(|(text, _)| key(identity, Value::Text(text.as_bytes()))).collect();
    for ((text, binary), of_text) in values.iter().zip(&keys) {
        if key(identity, Value::Binary(binary)) != *of_text {
            return Some(format!("{text:?} has another key in binary"));
        }
    }
    let all = (0..keys.len()).flat_map(|one| (one + 1..keys.len()).map(move |other| (one, other)));
    let equal: Vec<_> = all.filter(|(one, other)| keys[*one] == keys[*other]).collect();
    let differs = |pair: &&Pair| pairs.contains(pair) != equal.contains(pair);
    let (one, other) = pairs.iter().chain(&equal).find(differs)?;
    let by_server = if pairs.contains(&(*one, *other)) { "equal" } else { "different" };
    Some(format!("{:?} and {:?} are {by_server} to the server only", values[*one].0, values[*other].0))
}

fn seed() -> u64 {
    let given = std::env::var("PGSLUICE_EQUALITY_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed = given.unwrap_or_else(rand::random);
    println!("PGSLUICE_EQUALITY_SEED={seed}");
    seed
}

/// The chosen values, each twice so that some are equal, and random ones.
fn values(case: &Case, random: &mut StdRng) -> Vec<String> {
    let chosen = case.values.iter().chain(case.values).map(|value| (*value).to_owned());
    chosen.chain((0..RANDOM).map(|_| (case.random)(random))).collect()
}

#[test]
fn keys_are_equal_exactly_where_the_server_says_that_values_are() {
    let seed = seed();
    for major in Major::under_test() {
        let server = Server::start(major);
        let mut random = StdRng::seed_from_u64(seed);
        for case in CASES {
            let (values, pairs) = server.ask(case, &values(case, &mut random));
            let enough = case.values.len() + RANDOM / 2;
            assert!(values.len() >= enough, "{major}, {}: {} values were taken", case.name, values.len());
            assert!(!pairs.is_empty(), "{major}, {}: some values are equal", case.name);
            let difference = difference(&values, &pairs, &case.identity());
            assert_eq!(difference, None, "{major}, {}", case.name);
        }
    }
}

/// Bytes alone do not say which values of these types are equal, and the check notices.
#[test]
fn canary_texts_as_keys_are_found_out() {
    let server = Server::start(Major::under_test()[0]);
    let mut random = StdRng::seed_from_u64(seed());
    let text = Identity::new(vec![Equality::Text], false);
    for case in CASES.iter().filter(|case| ["numeric", "real", "interval", "jsonb"].contains(&case.name)) {
        let (values, pairs) = server.ask(case, &values(case, &mut random));
        let texts: Vec<_> = values.into_iter().map(|(text, _)| (text.clone(), text.into_bytes())).collect();
        let difference = difference(&texts, &pairs, &text);
        assert!(difference.is_some(), "{}", case.name);
    }
}
