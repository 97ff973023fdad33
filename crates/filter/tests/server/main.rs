//! Row filters of real publications on rows from a server's pages, compared with the server's own
//! answer for each row. Random filters are printed with their seed.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../../types/tests/server/catalog.rs"]
mod catalog;
mod expressions;
#[allow(dead_code, reason = "the tests of `types` use the rest")]
#[path = "../../../types/tests/server/oracle.rs"]
mod oracle;

use std::borrow::Cow;

use filter::{Filter, RefusedFilter, Surroundings};
use oracle::Oracle;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use types::{Attribute, HeapTuple, Value};

/// The clusters' locale is C.
const C: Surroundings = Surroundings { default_collation_is_c: true };

/// The number of random filters in one run; `PGSLUICE_FILTERS` sets it.
const FILTERS: usize = 200;

/// One column of each type that a filter may contain. `late` and `j` stay NULL.
const TABLE: &str = "CREATE TABLE f (id int, gone text, a int, b int8, s int2, c numeric, cn numeric, d float8, r float4, e text, v varchar(10), ch char(5), \
        nm name, g date, h timestamp, i timestamptz, t time, tz timetz, iv interval, u uuid, bo bool, o oid, late int8, j jsonb); \
    ALTER TABLE f DROP gone";

/// Inserts rows with few different values, so that comparisons meet equal ones, and with NULLs.
fn fill(oracle: &Oracle, rows: usize, seed: f64) {
    let odd = |values: &[&str]| {
        format!("(ARRAY['{}'])[1 + (random() * {})::int]", values.join("','"), values.len() - 1)
    };
    let texts = ["", "a", "b", "ab", "B", "a b", "ä", "b  ", "zz"];
    let columns = [
        "(random() * 20)::int - 10".to_owned(),
        "(random() * 20)::int - 10".to_owned(),
        "(random() * 20)::int - 10".to_owned(),
        "((random() * 80)::int - 40) / 4.0".to_owned(),
        format!(
            "{}::numeric",
            odd(&[
                "NaN",
                "Infinity",
                "-Infinity",
                "0",
                "1e20",
                "-1e-20",
                "1.500",
                "12345678.9",
                "10000",
                "9999.9999"
            ])
        ),
        format!(
            "{}::float8",
            odd(&["NaN", "Infinity", "-Infinity", "-0", "0", "0.1", "1.5", "-2.5", "1e300", "1e-300"])
        ),
        "((random() * 40)::int - 20) / 2.0".to_owned(),
        odd(&texts),
        odd(&texts),
        odd(&["a", "b", "ab ", "", "zz"]),
        format!("{}::name", odd(&["a", "b", "ab"])),
        format!(
            "{}::date",
            odd(&["2020-01-01", "2020-01-02", "infinity", "-infinity", "0044-03-15 BC", "5874897-12-31"])
        ),
        format!(
            "{}::timestamp",
            odd(&["2020-01-01", "2020-01-01 12:00", "infinity", "-infinity", "294276-12-31 23:59:59.999999"])
        ),
        format!("{}::timestamptz", odd(&["2020-01-01 00:00+00", "2020-01-01 12:00+00", "infinity"])),
        format!("{}::time", odd(&["00:00", "12:00", "24:00"])),
        format!("{}::timetz", odd(&["12:00+00", "13:00+01", "11:00+00"])),
        format!("{}::interval", odd(&["1 mon", "30 days", "720 hours", "-1 day", "1 year", "0"])),
        format!(
            "{}::uuid",
            odd(&["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"])
        ),
        "random() < 0.5".to_owned(),
        "((random() * 5)::int)::oid".to_owned(),
    ];
    let values: Vec<String> =
        columns.iter().map(|column| format!("CASE WHEN random() > 0.12 THEN {column} END")).collect();
    oracle.sql(&format!(
        "SELECT setseed({seed}); {TABLE}; INSERT INTO f SELECT i, {} FROM generate_series(1, {rows}) i; \
         ALTER TABLE f ADD added int DEFAULT 3",
        values.join(", ")
    ));
}

struct Rows {
    attributes: Vec<Attribute>,
    tuples: Vec<Vec<u8>>,
}

impl Rows {
    fn read(oracle: &Oracle) -> Rows {
        Rows { attributes: oracle.attributes("f").1, tuples: oracle.tuples("f") }
    }

    /// The filter's result for each row.
    fn judge(&self, filter: &Filter) -> Vec<filter::Result<bool>> {
        let judge = |tuple: &Vec<u8>| {
            let mut values: Vec<Value<'_>> = Vec::new();
            HeapTuple::from_page(tuple).unwrap().deform(&self.attributes, &mut values).unwrap();
            let payload = |number: i16| {
                let payload = values[usize::try_from(number).unwrap() - 1].payload()?;
                Ok(payload.map(|payload| Cow::Owned(payload.into_owned())))
            };
            filter.keeps(&payload)
        };
        self.tuples.iter().map(judge).collect()
    }
}

/// Compiles the filter as the server stored it.
fn compile(oracle: &Oracle, expression: &str, surroundings: Surroundings) -> Result<Filter, RefusedFilter> {
    oracle.sql(&format!("CREATE PUBLICATION p FOR TABLE f WHERE ({expression})"));
    let rows = oracle.rows("SELECT prqual, pg_get_expr(prqual, prrelid) FROM pg_publication_rel");
    oracle.sql("DROP PUBLICATION p");
    let [prqual, text] = [0, 1].map(|index| rows[0][index].clone().unwrap());
    Filter::compile(&prqual, &text, surroundings)
}

/// Compares with the server. Returns how many rows are kept.
fn compare(oracle: &Oracle, rows: &Rows, expression: &str) -> usize {
    let filter = compile(oracle, expression, C).unwrap_or_else(|refused| panic!("{expression}: {refused}"));
    let expected = oracle.rows(&format!("SELECT ({expression}) IS TRUE, f::text FROM f ORDER BY ctid"));
    let found = rows.judge(&filter);
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        let keeps = found.as_ref().unwrap_or_else(|error| panic!("{expression}: {error} for {expected:?}"));
        let server = expected[0].as_deref() == Some("t");
        assert_eq!(*keeps, server, "{expression} on {} for {expected:?}", oracle.major());
    }
    found.iter().filter(|keeps| matches!(keeps, Ok(true))).count()
}

/// Runs the test on majors that have row filters.
fn each(test: impl Fn(&Oracle)) {
    Oracle::each(|oracle| {
        if oracle.major() < 15 {
            println!("{}: not compared, as there are no row filters before 15", oracle.major());
        } else {
            oracle.sql("SET client_min_messages = 'error'");
            test(oracle);
        }
    });
}

#[test]
fn filters_keep_what_the_server_keeps() {
    each(|oracle| {
        fill(oracle, 300, 0.5);
        let rows = Rows::read(oracle);
        let mut kept = 0;
        for expression in expressions::WRITTEN {
            kept += compare(oracle, &rows, expression);
        }
        println!(
            "{}: {} filters over {} rows kept {kept}",
            oracle.major(),
            expressions::WRITTEN.len(),
            rows.tuples.len()
        );
        assert!(kept > expressions::WRITTEN.len() * 30, "{kept}");
    });
}

#[test]
fn random_filters_over_random_rows() {
    let number = |name: &str, default: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is no number")),
        Err(_) => default,
    };
    let seed = number("PGSLUICE_FILTER_SEED", rand::random());
    let filters = number("PGSLUICE_FILTERS", FILTERS as u64);
    each(|oracle| {
        println!("{}: PGSLUICE_FILTER_SEED={seed} PGSLUICE_FILTERS={filters}", oracle.major());
        let mut rng = StdRng::seed_from_u64(seed);
        fill(oracle, 300, rng.random());
        let rows = Rows::read(oracle);
        let mut kept = 0;
        for _ in 0..filters {
            kept += compare(oracle, &rows, &expressions::random(&mut rng, 3));
        }
        println!("{}: {filters} filters over {} rows kept {kept}", oracle.major(), rows.tuples.len());
        assert!(kept > 0);
    });
}

/// A filter that cannot be evaluated is refused with its text, before any row is seen.
#[test]
fn anything_else_is_refused_with_its_text() {
    each(|oracle| {
        fill(oracle, 1, 0.5);
        for (expression, reason) in expressions::REFUSED {
            let refused = compile(oracle, expression, C).expect_err(expression);
            assert!(refused.reason.contains(reason), "{expression}: {refused}");
            assert!(refused.to_string().contains(&refused.text), "{refused}");
        }
        // Under another collation, equality is the same and order is not.
        let other = Surroundings { default_collation_is_c: false };
        assert!(
            compile(oracle, "e = 'a' AND v <> 'b' AND nm < 'c' AND e < ('b' COLLATE \"C\")", other).is_ok()
        );
        for expression in ["e < 'a'", "v >= 'a'", "ch > 'a'", "e BETWEEN 'a' AND 'b'"] {
            let refused = compile(oracle, expression, other).expect_err(expression);
            assert!(refused.reason.contains("orders text"), "{refused}");
        }
    });
}

/// A row that makes the server's decoding fail is an error here, too; other rows are not.
#[test]
fn a_cast_that_fails_is_an_error() {
    each(|oracle| {
        oracle.sql(TABLE);
        oracle.sql(
            "INSERT INTO f (id, b, c, d, r, g) VALUES (1, 5, 5, 5, 5, '2020-01-01'), \
                (2, 3000000000, 3e30, 3e30, 3e9, '5874897-12-31'), (3, NULL, 'NaN', 'NaN', 'NaN', 'infinity')",
        );
        let rows = Rows::read(oracle);
        for (expression, fails) in [
            ("b::int4 = 5", [false, true, false]),
            ("b::int2 = 5", [false, true, false]),
            ("c::int4 = 5", [false, true, true]),
            ("c::int8 = 5", [false, true, true]),
            ("d::int4 = 5", [false, true, true]),
            ("d::int8 = 5", [false, true, true]),
            ("r::int4 = 5", [false, true, true]),
            ("g::timestamp = '2020-01-01'", [false, true, false]),
        ] {
            let filter = compile(oracle, expression, C).unwrap();
            for (row, (found, fails)) in rows.judge(&filter).into_iter().zip(fails).enumerate() {
                let server = oracle
                    .cluster
                    .sql("postgres", &format!("SELECT {expression} FROM f WHERE id = {}", row + 1));
                assert_eq!(server.is_err(), fails, "{expression} row {row}");
                assert_eq!(
                    found.is_err_and(|error| error.is_out_of_range()),
                    fails,
                    "{expression} row {row}"
                );
            }
        }
    });
}
