//! Values that are compressed, stored out of line, or both.

use crate::oracle::{Oracle, Totals};

/// Types of variable length, each with two expressions in `i`: one makes a long value, the other
/// one that can hardly be compressed.
const LONG: &[(&str, &str, &str)] = &[
    (
        "text",
        "repeat('abc ' || i, 600)",
        "(SELECT string_agg(md5((i * n)::text), '') FROM generate_series(1, 150) n)",
    ),
    (
        "bytea",
        "decode(repeat(md5(i::text), 400), 'hex')",
        "(SELECT string_agg(sha256((i * n)::text::bytea), '') FROM generate_series(1, 150) n)",
    ),
    (
        "jsonb",
        "to_jsonb(array_fill(i, ARRAY[900]))",
        "(SELECT jsonb_object_agg(n, md5((i * n)::text)) FROM generate_series(1, 150) n)",
    ),
    (
        "numeric",
        "repeat('123' || i, 2000)::numeric",
        "(SELECT string_agg((i * n * 7919)::text, '') FROM generate_series(1, 3000) n)::numeric",
    ),
    (
        "int4[]",
        "array_fill(i, ARRAY[40, 25])",
        "(SELECT array_agg(i * n * 7919) FROM generate_series(1, 2500) n)",
    ),
    (
        "text[]",
        "array_fill(repeat('x', 100 + i), ARRAY[30])",
        "(SELECT array_agg(md5((i * n)::text)) FROM generate_series(1, 200) n)",
    ),
    (
        "tsvector",
        "(SELECT to_tsvector('simple', string_agg('wordword' || n * i, ' ')) FROM generate_series(1, 400) n)",
        "(SELECT to_tsvector('simple', string_agg(md5((i * n)::text), ' ')) FROM generate_series(1, 150) n)",
    ),
    (
        "xml",
        "('<a>' || repeat('<b/>', 1000 + i) || '</a>')::xml",
        "('<a>' || (SELECT string_agg(md5((i * n)::text), '') FROM generate_series(1, 150) n) || '</a>')::xml",
    ),
    (
        "path",
        "(SELECT path(string_agg('(1,' || i + n % 2 || ')', ',')) FROM generate_series(1, 200) n)",
        "(SELECT path(string_agg('(' || n * 0.1 || ',' || i || ')', ',')) FROM generate_series(1, 500) n)",
    ),
    (
        "int4multirange",
        "(SELECT range_agg(int4range(n * 10, n * 10 + 5)) FROM generate_series(i, i + 400) n)",
        "(SELECT range_agg(int4range(n * 97, n * 97 + 1 + n % 50)) FROM generate_series(i, i + 1500) n)",
    ),
    (
        "varbit",
        "repeat('01', 9000)::varbit",
        "(SELECT string_agg(('x' || md5((i * n)::text))::bit(128)::text, '') FROM generate_series(1, 150) n)::varbit",
    ),
];

#[test]
fn compressed_and_out_of_line() {
    Oracle::each(|oracle| {
        let with_lz4 = oracle.cluster.sql("postgres", "SET default_toast_compression = 'lz4'");
        let methods: &[&str] = match with_lz4 {
            Ok(_) => &["pglz", "lz4"],
            Err(error) => {
                println!("{}: no lz4, because: {error}", oracle.major());
                &["pglz"]
            }
        };
        let types = oracle.types();
        let mut totals = Totals::default();
        for (number, (name, long, random)) in LONG.iter().enumerate() {
            for method in methods {
                for storage in ["MAIN", "EXTENDED", "EXTERNAL"] {
                    let table = format!("{method}_{storage}_{number}");
                    oracle.sql(&format!(
                        "SET default_toast_compression = '{method}'; CREATE TABLE {table} (id int, v {name}); \
                         ALTER TABLE {table} ALTER v SET STORAGE {storage}; \
                         INSERT INTO {table} SELECT i, {long} FROM generate_series(1, 10) i; \
                         INSERT INTO {table} SELECT i, {random} FROM generate_series(1, 10) i; \
                         INSERT INTO {table} VALUES (0, NULL)"
                    ));
                    let found = oracle.compare_with(&table, &types);
                    match storage {
                        "EXTERNAL" => {
                            assert!(found.external >= 10 && found.compressed == 0, "{table}: {found}")
                        }
                        _ => assert!(found.compressed >= 5, "{table}: {found}"),
                    }
                    totals += found;
                }
            }
        }
        println!("{}: {totals}", oracle.major());
        assert!(totals.external > 200 && totals.compressed > 200, "{totals}");
    });
}
