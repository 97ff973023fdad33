//! pgsluice is killed, or overtaken by changes, while it builds the schema.

use testkit::wait_for;

use super::{assert_same_schema, on_an_empty_target, start};
use crate::support::{BOUND, Scenario};

/// Also what waits for the stream.
fn wait_until_done(s: &Scenario) {
    let done = "SELECT bool_and(done) FROM pgsluice.schema_step";
    wait_for("the whole schema", BOUND, || Ok(s.target_one(done) == "t")).unwrap();
}

/// A copy and indexes that can be slowed down, so that a kill finds the wanted phase.
const PACED: &str = "
CREATE FUNCTION in_copy(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN n; END';
CREATE FUNCTION in_build(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN n; END';
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a, v int CHECK (in_copy(v) >= 0));";

/// `function` as it is to be from now on.
fn pace(function: &str, slow: bool) -> String {
    let sleep = if slow { "PERFORM pg_catalog.pg_sleep(0.002);" } else { "" };
    format!(
        "CREATE OR REPLACE FUNCTION {function}(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN {sleep} RETURN n; END'"
    )
}

#[test]
fn killed_while_it_copies_and_while_it_builds_it_ends_complete() {
    on_an_empty_target(|s, pg_dump| {
        s.source(PACED);
        s.source("INSERT INTO a SELECT i, i FROM generate_series(1, 3000) i");
        s.source("INSERT INTO b SELECT i, i, 1 FROM generate_series(1, 3000) i");
        s.source("CREATE INDEX a_slow ON a (in_build(v)); CREATE UNIQUE INDEX b_slow ON b (in_build(id))");
        s.source(&[pace("in_copy", true), pace("in_build", true)].join(";"));
        // While pg_dump runs, and as soon as the tables are there.
        start(s, pg_dump);
        s.wait_for_log("reads the source's schema");
        s.kill();
        start(s, pg_dump);
        let there = "SELECT to_regclass('pgsluice.schema_step') IS NOT NULL";
        wait_for("the tables", BOUND, || Ok(s.target_one(there) == "t")).unwrap();
        s.kill();
        start(s, pg_dump);
        let copying = "SELECT to_regclass('pgsluice.copied_table') IS NOT NULL AND EXISTS (SELECT FROM pg_stat_activity
                        WHERE datname = current_database() AND state = 'active' AND query LIKE 'COPY %\"b\"%')";
        wait_for("the copy of b", BOUND, || Ok(s.target_one(copying) == "t")).unwrap();
        s.kill();
        // Rows that only the second snapshot of b can see, with their keys in a.
        s.source("INSERT INTO a VALUES (9001, 1); INSERT INTO b VALUES (9001, 9001, 1)");
        s.both(&pace("in_copy", false));
        for (index, killed) in [("b_slow", true), ("a_slow", true), ("a_slow", false)] {
            start(s, pg_dump);
            // Told by the process itself: its predecessor's backend may still be building, too.
            let object = format!("INDEX public.{index}");
            let is_told = |s: &Scenario| {
                let status = s.status(0);
                let building = status["schema"]["building"].as_array();
                status["phase"] == "indexing"
                    && building.is_some_and(|all| all.iter().any(|own| own["object"] == *object))
            };
            wait_for(index, BOUND, || Ok(is_told(s))).unwrap_or_else(|error| panic!("{error}\n{}", s.log(0)));
            if killed {
                s.kill();
            } else {
                s.stop();
            }
        }
        s.both(&pace("in_build", false));
        // Without the flag as well: what was begun is ended.
        s.follow();
        s.same();
        wait_until_done(s);
        assert_same_schema(&s.source_url(), &s.target_url(0), |_| false);
        assert!(s.log(0).matches("created 3 tables").count() <= 1, "{}", s.log(0));
    });
}

/// Tables copied under different snapshots: a foreign key holds only when the stream has caught up.
#[test]
fn a_foreign_key_over_half_arrived_rows_is_validated_later() {
    on_an_empty_target(|s, pg_dump| {
        s.source(PACED);
        s.source(
            "CREATE TABLE parts (id int, a int REFERENCES a, v int CHECK (in_copy(v) >= 0)) PARTITION BY RANGE (id);
             CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10000);
             COMMENT ON CONSTRAINT parts_a_fkey ON parts IS 'of a key that comes later'",
        );
        s.source("INSERT INTO a SELECT i, i FROM generate_series(1, 10) i");
        s.source(
            "INSERT INTO b SELECT i, i % 10 + 1, 1 FROM generate_series(1, 3000) i;
             INSERT INTO parts SELECT i, i % 10 + 1, 1 FROM generate_series(1, 3000) i",
        );
        s.source(&pace("in_copy", true));
        start(s, pg_dump);
        let finished = |table: &str| {
            format!(
                "coalesce((SELECT finished FROM pgsluice.copied_table WHERE table_name = '{table}'), false)"
            )
        };
        let there = "SELECT to_regclass('pgsluice.copied_table') IS NOT NULL";
        wait_for("the schema", BOUND, || Ok(s.target_one(there) == "t")).unwrap();
        let half =
            format!("SELECT {} AND NOT {} AND NOT {}", finished("a"), finished("b"), finished("parts_1"));
        wait_for("a and nothing else", BOUND, || Ok(s.target_one(&half) == "t")).unwrap();
        s.kill();
        // b and parts will be copied with these, a only gets them from the stream.
        s.source("INSERT INTO a VALUES (9001, 1); INSERT INTO b VALUES (9001, 9001, 1); INSERT INTO parts VALUES (9001, 9001, 1)");
        s.both(&pace("in_copy", false));
        s.follow();
        s.same();
        assert!(s.log(0).contains("does not hold yet"), "{}", s.log(0));
        let told = s.log(0);
        let told =
            told.lines().find(|line| line.contains("catching up to consistency: until")).unwrap_or_default();
        assert!(told.contains("public.b") && told.contains("; foreign keys to be validated"), "{}", s.log(0));
        let valid = "SELECT count(*) || ' ' || bool_and(convalidated) FROM pg_constraint WHERE contype = 'f' AND conparentid = 0
                        AND conrelid::regclass::text IN ('b', 'parts')";
        wait_for("the keys to be validated", BOUND, || Ok(s.target_one(valid) == "2 true")).unwrap();
        wait_until_done(s);
        assert_same_schema(&s.source_url(), &s.target_url(0), |row| {
            row.contains("of a key that comes later")
        });
    });
}
