//! Operators plan with these figures, so they must rest on data and not on a guess from column
//! types. Before the first row is copied, the estimate of rows is about right, also for tables that
//! were never analysed.

use testkit::wait_for;

use crate::support::{BOUND, Session, scenario_with};

const EITHER_SOURCE: &[&[&str]] = &[&["--source-mode", "logical"], &["--source-mode", "wal"]];

/// Short texts, long ones stored out of line, partitions, rows that a filter excludes, and empty
/// pages. A lock on the target delays the copy meanwhile.
#[test]
fn rows_of_tables_that_were_never_analysed() {
    scenario_with(EITHER_SOURCE, |s| {
        let tables = ["short", "toasted", "parted", "filtered", "emptied"];
        let never = "WITH (autovacuum_enabled = off)";
        s.both(&format!(
            "CREATE TABLE short (id int PRIMARY KEY, a text, b text, c varchar, d text) {never}; \
             CREATE TABLE toasted (id int PRIMARY KEY, v text) {never}; ALTER TABLE toasted ALTER v SET STORAGE EXTERNAL; \
             CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); \
             CREATE TABLE parted1 PARTITION OF parted FOR VALUES FROM (0) TO (20001) {never}; \
             CREATE TABLE parted2 PARTITION OF parted FOR VALUES FROM (20001) TO (90000) {never}; \
             CREATE TABLE filtered (id int PRIMARY KEY, n int) {never}; CREATE TABLE emptied (id int PRIMARY KEY, v text) {never}"
        ));
        s.source(
            "INSERT INTO short SELECT i, 'a', repeat('b', i % 200), 'c', NULL FROM generate_series(1, 60000) i; \
             INSERT INTO toasted SELECT i, CASE WHEN i % 50 = 0 THEN repeat('x', 5000) ELSE 'short' END FROM generate_series(1, 40000) i; \
             INSERT INTO parted SELECT i, repeat('p', 20 + i / 1000) FROM generate_series(1, 60000) i; \
             INSERT INTO filtered SELECT i, i % 10 FROM generate_series(1, 60000) i; \
             INSERT INTO emptied SELECT i, repeat('e', 40) FROM generate_series(1, 60000) i",
        );
        s.source("DELETE FROM emptied WHERE id % 4 <> 0");
        // Column lists and row filters exist from 15 on.
        let filter = if s.major() >= 15 { " WHERE (n = 0)" } else { "" };
        s.publish(&format!(
            "FOR TABLE short, toasted, parted, filtered{filter}, emptied, mark WITH (publish_via_partition_root = true)"
        ));
        let locks: Vec<_> = (0..s.followers())
            .map(|number| {
                let mut session = Session::to(&s.target_url(number));
                session.run(&format!("BEGIN; LOCK TABLE {} IN SHARE MODE", tables.join(", ")));
                session
            })
            .collect();
        s.run();
        for number in 0..s.followers() {
            let told = wait_for("figures of the copy", BOUND, || {
                let known = s.status(number)["copy"]["tables"].as_array().is_some_and(|all| all.len() == 6);
                Ok(known)
            });
            assert!(told.is_ok(), "{told:?}\n{}", s.log(number));
            let status = s.status(number);
            for table in tables {
                let condition = if table == "filtered" { filter } else { "" };
                let rows = s.source_one(&format!("SELECT count(*) FROM {table}{condition}"));
                let rows: f64 = rows.parse().unwrap();
                let told = status["copy"]["tables"].as_array().unwrap().iter();
                let told = told.clone().find(|told| told["table"] == format!("public.{table}")).unwrap();
                assert_eq!(told["rows"], 0, "{told}");
                let estimated = told["rows_estimated"].as_f64().unwrap();
                assert!((0.8..1.25).contains(&(estimated / rows)), "{rows} rows: {told}");
            }
        }
        drop(locks);
        s.wait_for_copy();
        s.catch_up();
        s.same_table("short");
        // The estimate has kept no lock and written nothing.
        let status = s.status(0);
        let told = status["copy"]["tables"]
            .as_array()
            .unwrap()
            .iter()
            .find(|told| told["table"] == "public.short")
            .unwrap();
        assert_eq!((told["rows"].as_u64(), told["rows_estimated"].as_u64()), (Some(60_000), Some(60_000)));
        let analysed = s.source_one("SELECT reltuples > 0 FROM pg_class WHERE relname = 'short'");
        assert_eq!(analysed, "f");
    });
}
