//! How rows are found: identities that change, indexes of the subscriber, and columns that come and
//! go.

use testkit::Major;

use crate::stage::{Way, scenario};

#[test]
fn an_identity_changes_while_a_subscriber_follows() {
    scenario(Major::V14, |scene| {
        scene.everywhere(
            "CREATE FUNCTION twice(n int) RETURNS int IMMUTABLE LANGUAGE SQL AS 'SELECT n * 2';
             CREATE TABLE t (a int NOT NULL, b int NOT NULL, c text, v text);
             CREATE UNIQUE INDEX by_a ON t (a); CREATE UNIQUE INDEX by_b ON t (b);
             CREATE INDEX ON t (c) WHERE a > twice(1); CREATE INDEX ON t (twice(b))",
        );
        scene.publisher(
            "ALTER TABLE t REPLICA IDENTITY USING INDEX by_a; CREATE PUBLICATION p FOR ALL TABLES",
        );
        scene.subscribers("ALTER TABLE t REPLICA IDENTITY USING INDEX by_b");
        scene.publisher("INSERT INTO t SELECT n, -n, 'c', 'v' FROM generate_series(1, 20) n");
        scene.subscribe("p", "");
        scene.publisher("ALTER TABLE t REPLICA IDENTITY USING INDEX by_b");
        scene.publisher("UPDATE t SET a = a + 100 WHERE a < 5; DELETE FROM t WHERE a = 5");
        scene.publisher("ALTER TABLE t REPLICA IDENTITY FULL; UPDATE t SET v = 'full' WHERE a = 6; DELETE FROM t WHERE a = 7");
        scene.publisher("BEGIN; UPDATE t SET v = 'before' WHERE a = 8; ALTER TABLE t ADD PRIMARY KEY (b);
                         ALTER TABLE t REPLICA IDENTITY DEFAULT; UPDATE t SET v = 'behind', a = 900 WHERE a = 9; COMMIT");
        scene.level();
        scene.same(&["t"]);
        // Nothing identifies a row: the publisher refuses, and insertions go on.
        scene.publisher("ALTER TABLE t REPLICA IDENTITY NOTHING");
        let refused = scene.publisher_cluster().sql(scene.database(), "UPDATE t SET v = 'no'").unwrap_err();
        assert!(format!("{refused:#}").contains("does not have a replica identity"), "{refused:#}");
        scene.publisher("INSERT INTO t VALUES (1000, 1000, NULL, NULL)");
        scene.level();
        scene.same(&["t"]);
    });
}

/// Rows of which a column was dropped, or was added without a rewrite.
#[test]
fn whole_rows_are_found_after_columns_came_and_went() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (a int, gone int, c int); CREATE TABLE grown (a int)");
        scene.publisher(
            "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE grown REPLICA IDENTITY FULL;
             INSERT INTO t VALUES (1, 1, 1), (2, NULL, 2); INSERT INTO grown VALUES (1), (2)",
        );
        scene.everywhere(
            "ALTER TABLE grown ADD COLUMN b bool NOT NULL DEFAULT false, ADD COLUMN n numeric DEFAULT 1.5",
        );
        scene.publisher("INSERT INTO grown VALUES (3, true, NULL); CREATE PUBLICATION p FOR TABLE t, grown");
        scene.subscribe("p", "");
        scene.everywhere("ALTER TABLE t DROP COLUMN gone");
        scene.publisher("UPDATE t SET a = a + 100; DELETE FROM t WHERE c = 2");
        scene.publisher("UPDATE grown SET a = a + 10; DELETE FROM grown WHERE a = 12");
        scene.level();
        scene.same(&["t", "grown"]);
        scene.shows("SELECT * FROM grown ORDER BY a", "11|f|1.5, 13|t|NULL");
    });
}

/// From 16 on a subscriber looks for whole rows by an index that fits.
#[test]
fn whole_rows_are_found_by_an_index() {
    scenario(Major::V16, |scene| {
        scene.everywhere("CREATE TABLE t (a int, b text, c int); CREATE TABLE none (a int, b text)");
        scene.publisher(
            "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE none REPLICA IDENTITY FULL;
             INSERT INTO t SELECT n / 2, 'b' || n, NULLIF(n % 7, 0) FROM generate_series(1, 2000) n;
             INSERT INTO none SELECT n, 'b' FROM generate_series(1, 100) n; CREATE PUBLICATION p FOR TABLE t, none",
        );
        scene.subscribers(
            "CREATE INDEX fits ON t (a, c); CREATE INDEX partial ON none (a) WHERE a > 0; CREATE INDEX computed ON none ((a + 1))",
        );
        scene.subscribe("p", "");
        scene.publisher(
            "UPDATE t SET c = -1 WHERE a BETWEEN 100 AND 110; DELETE FROM t WHERE a BETWEEN 200 AND 210",
        );
        scene.publisher("UPDATE none SET b = 'changed' WHERE a < 10; DELETE FROM none WHERE a > 90; INSERT INTO t VALUES (NULL, NULL, NULL)");
        scene.publisher("UPDATE t SET b = 'null' WHERE a IS NULL");
        scene.level();
        scene.same(&["t", "none"]);
        let scans = "SELECT string_agg(indexrelname || ' ' || (idx_scan > 0), ', ' ORDER BY indexrelname)
                       FROM pg_stat_user_indexes WHERE indexrelname IN ('fits', 'partial', 'computed')";
        scene.until("the scans to be counted", scans, "computed false, fits true, partial false");
    });
}

/// From 18 on an identity may be a range that does not overlap.
#[test]
fn rows_with_a_temporal_key_are_found() {
    scenario(Major::V18, |scene| {
        let key = "id int4range, valid daterange, v text";
        scene.everywhere(&format!(
            "CREATE TABLE by_key ({key}, PRIMARY KEY (id, valid WITHOUT OVERLAPS));
             CREATE TABLE by_index ({key}, CONSTRAINT u UNIQUE (id, valid WITHOUT OVERLAPS));
             ALTER TABLE by_index ALTER id SET NOT NULL, ALTER valid SET NOT NULL;
             ALTER TABLE by_index REPLICA IDENTITY USING INDEX u;
             CREATE TABLE whole ({key}, PRIMARY KEY (id, valid WITHOUT OVERLAPS)); ALTER TABLE whole REPLICA IDENTITY FULL"
        ));
        let tables = ["by_key", "by_index", "whole"];
        for table in tables {
            scene.publisher(&format!(
                "INSERT INTO {table} SELECT int4range(n, n + 1), daterange('2026-01-01', '2026-02-01'), 'copied' FROM generate_series(1, 5) n"
            ));
        }
        scene.publisher(&format!("CREATE PUBLICATION p FOR TABLE {}", tables.join(", ")));
        scene.subscribe("p", "");
        for table in tables {
            scene.publisher(&format!(
                "INSERT INTO {table} VALUES ('[1,2)', '[2026-02-01,2026-03-01)', 'beside');
                 UPDATE {table} SET v = 'changed' WHERE id = '[2,3)'; UPDATE {table} SET valid = '[2025-01-01,2026-01-15)' WHERE id = '[3,4)';
                 DELETE FROM {table} WHERE id = '[4,5)'"
            ));
        }
        scene.level();
        scene.same(&tables);
        assert_eq!(scene.rows(Way::Relayed, "SELECT count(*) FROM by_key"), "5");
    });
}
