//! Altered tables, and users' types.

use types::{Generated, HeapTuple, Value};

use crate::oracle::Oracle;

/// Dropped columns, and columns that were added after rows had been written.
#[test]
fn columns_that_came_and_went() {
    Oracle::each(|oracle| {
        let tables = oracle.major() >= 18;
        oracle.sql(
            "CREATE TABLE t (id int, gone text, n numeric, also int8, b bool); \
             INSERT INTO t SELECT i, 'text ' || i, i * 1.5, i, i % 2 = 0 FROM generate_series(1, 20) i; \
             ALTER TABLE t DROP gone; INSERT INTO t SELECT i, i, NULL, true FROM generate_series(21, 30) i; \
             ALTER TABLE t ADD a text DEFAULT 'a value that was not there', ADD c int2 DEFAULT 7, ADD d timestamptz, \
                 ADD e int[] DEFAULT '{1,NULL}', ADD f name DEFAULT 'named', ADD g numeric DEFAULT 12.50, ADD h \"char\" DEFAULT 'x'; \
             INSERT INTO t (id, a) SELECT i, NULL FROM generate_series(31, 40) i; \
             ALTER TABLE t DROP also, ADD s int GENERATED ALWAYS AS (id * 2) STORED, ADD long text DEFAULT repeat('long', 500); \
             ALTER TABLE t DROP c; ALTER TABLE t ADD l int8 DEFAULT -1; INSERT INTO t (id) VALUES (41); \
             CREATE TABLE none (); INSERT INTO none DEFAULT VALUES; INSERT INTO none DEFAULT VALUES; ALTER TABLE none ADD x int DEFAULT 5",
        );
        if tables {
            oracle.sql(
                "ALTER TABLE t ADD v int GENERATED ALWAYS AS (id + 1) VIRTUAL, ADD last date DEFAULT '2020-02-29'; \
                 INSERT INTO t (id) VALUES (42)",
            );
        }
        let totals = oracle.compare("t");
        assert_eq!(oracle.compare("none").values, 2);
        println!("{}: {totals}", oracle.major());
        assert!(totals.rows > 40 && totals.values > 300, "{totals}");
        if tables {
            nothing_is_stored_of_a_virtual_column(oracle);
        }
    });
}

fn nothing_is_stored_of_a_virtual_column(oracle: &Oracle) {
    let (_, attributes) = oracle.attributes("t");
    let index = attributes.iter().position(|attribute| attribute.generated == Generated::Virtual).unwrap();
    for item in oracle.tuples("t") {
        let mut values = Vec::new();
        HeapTuple::from_page(&item).unwrap().deform(&attributes, &mut values).unwrap();
        assert_eq!(values[index], Value::Null);
    }
}

/// Enums, domains, composites and ranges, nested in each other.
#[test]
fn types_that_somebody_made() {
    Oracle::each(|oracle| {
        oracle.sql(
            "CREATE TYPE mood AS ENUM ('sad', 'so so', '\"', '', 'ünï'); ALTER TYPE mood ADD VALUE 'between' BEFORE 'so so'; \
             CREATE DOMAIN short AS varchar(9); CREATE DOMAIN deep AS short; CREATE DOMAIN numbers AS int[]; \
             CREATE TYPE pair AS (a int, gone text, b text, m mood); ALTER TYPE pair DROP ATTRIBUTE gone; \
             CREATE TYPE nested AS (x bool, p pair, ps pair[], n numbers, d deep, r int4range, f float8, c \"char\"); \
             CREATE TYPE floats AS RANGE (subtype = float8, multirange_type_name = many_floats); \
             CREATE TYPE texts AS RANGE (subtype = text, collation = \"C\"); CREATE TYPE moods AS RANGE (subtype = mood); \
             CREATE DOMAIN odd AS pair CHECK ((value).a IS NULL OR (value).a % 2 = 1); \
             CREATE TABLE row_type (i int, t text)",
        );
        oracle.sql(
            "CREATE TABLE t (m mood, ms mood[], d deep, ds deep[], n numbers, ns numbers[], p pair, ps pair[], ne nested, nes nested[], \
                             f floats, fs floats[], fm many_floats, x texts, xs texts[], mr moods, o odd, rt row_type, rts row_type[])",
        );
        oracle.sql(
            "INSERT INTO t SELECT (enum_range(NULL::mood))[1 + i % 6], ARRAY['\"', NULL, '', 'so so']::mood[], repeat('d', i % 9), \
                 ARRAY['a b', NULL, '']::deep[], ARRAY[i, NULL]::numbers, ARRAY['{1}'::numbers, NULL]::numbers[], \
                 ROW(i, 'a \"q\" \\ ,()' || i, 'sad')::pair, ARRAY[ROW(NULL, '', NULL)::pair, NULL, ROW(1, NULL, '\"')::pair], \
                 ROW(true, ROW(i, NULL, ''), ARRAY[ROW(2, 'x', 'sad')::pair], '{3,4}', 'deep', int4range(i, i + 5), i / 3.0, 'c')::nested, \
                 ARRAY[ROW(NULL, NULL, NULL, NULL, NULL, 'empty', NULL, NULL)::nested], floats(i, i * 1.5), \
                 ARRAY[floats(NULL, 'NaN'), 'empty', floats('-Infinity', NULL, '()')], many_floats(floats(i, i + 0.5), floats(i + 1, i + 2)), \
                 texts('a b' || i, 'c\"\\(', '[]'), ARRAY[texts('', NULL), texts(NULL, 'z')], moods('sad', 'ünï'), \
                 ROW(i * 2 + 1, 'odd', NULL)::pair::odd, ROW(i, 'row')::row_type, ARRAY[ROW(i, NULL)::row_type] \
               FROM generate_series(0, 50) i; \
             INSERT INTO t DEFAULT VALUES; ALTER TYPE pair ADD ATTRIBUTE later int; ALTER TABLE row_type ADD c date; \
             INSERT INTO t (p, ps, rt) VALUES (ROW(1, 'x', 'sad', 7), ARRAY[ROW(1, 'x', 'sad', 8)::pair], ROW(1, 't', '2020-01-01')); \
             INSERT INTO t (ps) SELECT array_agg(ROW(n, repeat('long', 30) || n, 'sad', n)::pair) FROM generate_series(1, 100) n; \
             INSERT INTO t (p) SELECT ROW(1, repeat('compressed ', 400), 'sad', 2)::pair",
        );
        let totals = oracle.compare("t");
        println!("{}: {totals}", oracle.major());
        assert!(totals.values > 900 && totals.compressed > 0, "{totals}");
    });
}

/// Catalogs are tables as well. This compares all catalogs whose columns can be rendered, as initdb
/// left them.
#[test]
fn catalogs() {
    Oracle::each(|oracle| {
        let types = oracle.types();
        let mut totals = crate::oracle::Totals::default();
        for table in [
            "pg_attribute",
            "pg_type",
            "pg_index",
            "pg_enum",
            "pg_cast",
            "pg_collation",
            "pg_operator",
            "pg_range",
        ] {
            let kept = oracle.rows(&format!(
                "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute \
                  WHERE attrelid = '{table}'::regclass AND attnum > 0 \
                    AND atttypid NOT IN ('anyarray'::regtype, 'regproc'::regtype, 'aclitem[]'::regtype)"
            ));
            let copy = format!("copy_of_{table}");
            oracle
                .sql(&format!("CREATE TABLE {copy} AS SELECT {} FROM {table}", kept[0][0].as_ref().unwrap()));
            totals += oracle.compare_with(&copy, &types);
        }
        println!("{}: {totals}", oracle.major());
        assert!(totals.rows > 3_000, "{totals}");
    });
}
