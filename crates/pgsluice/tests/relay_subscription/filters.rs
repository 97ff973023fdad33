//! Row filters: at the copy, when a row changes sides, and of several publications at once.

use testkit::{Major, wait_for};

use crate::BOUND;
use crate::stage::{Way, scenario};

#[test]
fn rows_are_copied_and_sent_by_their_filter() {
    scenario(Major::V15, |scene| {
        scene.everywhere(
            "CREATE TYPE pair AS (a int, b int);
             CREATE TABLE by_key (id int PRIMARY KEY, v text);
             CREATE TABLE whole (a int, v text, n numeric, at timestamptz);
             CREATE TABLE wide (id int PRIMARY KEY, v text);
             CREATE TABLE empty (id int PRIMARY KEY);
             ALTER TABLE whole REPLICA IDENTITY FULL; ALTER TABLE wide REPLICA IDENTITY FULL;
             ALTER TABLE wide ALTER v SET STORAGE EXTERNAL",
        );
        scene.publisher(
            "INSERT INTO by_key SELECT n, 'row ' || n FROM generate_series(1, 20) n;
             INSERT INTO whole SELECT n, CASE WHEN n % 4 > 0 THEN 'v' || n END, n / 3.0, '2026-01-01'::timestamptz + n * '1 d'::interval
               FROM generate_series(1, 20) n;
             INSERT INTO wide VALUES (1, repeat('1', 3000)), (2, repeat('2', 3000)); INSERT INTO empty VALUES (1);
             CREATE PUBLICATION p FOR TABLE by_key WHERE (id > 5 AND id <> 10),
                 whole WHERE (v IS NOT NULL AND n > 1 AND (v < 'v2' OR at > '2026-01-15')),
                 wide WHERE (v > '2'), empty WHERE (false);",
        );
        scene.subscribe("p", "");
        scene.shows("SELECT count(*), min(id), max(id) FROM by_key", "14|6|20");
        scene.shows("SELECT (SELECT count(*) FROM wide), (SELECT count(*) FROM empty)", "1|0");
        // In to out, out to in, in to in, out to out; the key decides.
        scene.publisher("UPDATE by_key SET id = CASE id WHEN 4 THEN 44 ELSE -7 END WHERE id IN (4, 7); UPDATE by_key SET v = v || '!' WHERE id < 9");
        scene.publisher(
            "INSERT INTO by_key VALUES (0, 'out'), (30, 'in'); DELETE FROM by_key WHERE id IN (1, 20)",
        );
        // Any column decides, with the row before and behind.
        scene.publisher("UPDATE whole SET v = NULL WHERE a % 5 = 0; UPDATE whole SET v = 'v1 again' WHERE v IS NULL AND a > 10");
        scene.publisher("UPDATE whole SET n = 0 WHERE a = 11; UPDATE whole SET n = n + 100 WHERE a < 4; DELETE FROM whole WHERE a = 17");
        scene.publisher(
            "INSERT INTO whole VALUES (50, 'V1', 2, NULL), (51, 'x', 2, NULL), (52, NULL, NULL, NULL)",
        );
        // The large value is not in the new row, and still decides.
        scene.publisher("UPDATE wide SET id = id + 10; UPDATE wide SET v = repeat('2', 3000) WHERE id = 11; INSERT INTO empty VALUES (2)");
        scene.level();
        scene.same(&["(SELECT * FROM by_key WHERE id > 5 AND id <> 10)"]);
        scene.same(&["(SELECT * FROM wide WHERE v > '2')"]);
        scene.alike("SELECT * FROM by_key ORDER BY id");
        scene.alike("SELECT * FROM whole ORDER BY a");
        scene.same(&[
            "(SELECT * FROM whole WHERE v IS NOT NULL AND n > 1 AND (v < 'v2' OR at > '2026-01-15'))",
        ]);
        scene.shows("SELECT count(*) FROM empty", "0");
        // Another filter from here on.
        scene.publisher("ALTER PUBLICATION p SET TABLE by_key WHERE (id < 5), whole, wide");
        scene.publisher("INSERT INTO by_key VALUES (-1, 'in'), (31, 'out'); INSERT INTO whole VALUES (60, NULL, NULL, NULL)");
        scene.level();
        scene.shows(
            "SELECT count(*) FILTER (WHERE id = -1), count(*) FILTER (WHERE id = 31) FROM by_key",
            "1|0",
        );
        scene.shows("SELECT count(*) FROM whole WHERE a = 60", "1");
    });
}

/// A row comes if one of the publications wants it, or if one has no filter.
#[test]
fn filters_of_several_publications_are_joined_by_or() {
    scenario(Major::V15, |scene| {
        scene.everywhere(
            "CREATE SCHEMA s; CREATE TABLE joined (id int PRIMARY KEY); CREATE TABLE free (id int PRIMARY KEY);
             CREATE TABLE kinds (id int PRIMARY KEY, v int); CREATE TABLE s.t (id int PRIMARY KEY)",
        );
        scene.publisher(
            "INSERT INTO joined SELECT generate_series(1, 9); INSERT INTO free SELECT generate_series(1, 9);
             INSERT INTO s.t SELECT generate_series(1, 9);
             CREATE PUBLICATION low FOR TABLE joined WHERE (id < 4), free WHERE (id < 4);
             CREATE PUBLICATION high FOR TABLE joined WHERE (id > 6), free;
             CREATE PUBLICATION adds FOR TABLE kinds WHERE (v > 10) WITH (publish = 'insert');
             CREATE PUBLICATION removes FOR TABLE kinds WHERE (id > 5) WITH (publish = 'update, delete');
             CREATE PUBLICATION filtered FOR TABLE s.t WHERE (id = 1);
             CREATE PUBLICATION whole_schema FOR TABLES IN SCHEMA s",
        );
        scene.subscribe("low, high, adds, removes, filtered, whole_schema", "");
        scene.shows(
            "SELECT (SELECT sum(id) FROM joined), (SELECT sum(id) FROM free), (SELECT sum(id) FROM s.t)",
            "30|45|45",
        );
        scene.publisher("INSERT INTO joined VALUES (-1), (10); DELETE FROM joined WHERE id = 4; UPDATE joined SET id = 5 - id WHERE id IN (1, 5); INSERT INTO s.t VALUES (20)");
        scene.publisher("INSERT INTO free VALUES (15); INSERT INTO kinds VALUES (1, 11), (2, 9), (6, 12), (7, 13), (8, 1)");
        scene.publisher("UPDATE kinds SET v = v + 100; DELETE FROM kinds WHERE id IN (1, 7, 8)");
        scene.level();
        scene.same(&["free", "s.t"]);
        scene.alike("SELECT id FROM joined ORDER BY id");
        scene.shows("SELECT * FROM kinds ORDER BY id", "1|11, 6|112");
    });
}

/// The filter of the root or of the leaf, as the publication sends it.
#[test]
fn filters_of_partitions() {
    scenario(Major::V15, |scene| {
        scene.publisher(
            "CREATE TABLE t (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
             CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10);
             CREATE TABLE t_2 (b text, a int NOT NULL PRIMARY KEY); ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES FROM (10) TO (20);
             INSERT INTO t SELECT n, 'copied' FROM generate_series(0, 19) n;
             CREATE PUBLICATION leaves FOR TABLE t_1 WHERE (a > 7), t_2 WHERE (a < 12);
             CREATE PUBLICATION root FOR TABLE t WHERE (a IN (0, 5, 10, 15)) WITH (publish_via_partition_root = true)",
        );
        scene.subscribers(
            "CREATE TABLE t_1 (a int PRIMARY KEY, b text); CREATE TABLE t_2 (a int PRIMARY KEY, b text);
             CREATE TABLE t (a int PRIMARY KEY, b text)",
        );
        scene.subscribe("leaves", "");
        scene.publisher("UPDATE t SET b = 'changed' WHERE a % 2 = 0; DELETE FROM t WHERE a IN (7, 9); UPDATE t SET a = 7 WHERE a = 8");
        scene.publisher("UPDATE t SET a = 9 WHERE a = 10; INSERT INTO t VALUES (8, 'new'), (10, 'new')");
        scene.level();
        scene.same(&["(SELECT a, b FROM t_1 WHERE a > 7)", "(SELECT a, b FROM t_2 WHERE a < 12)"]);
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET PUBLICATION root, marks");
        scene.ready();
        scene.publisher("DELETE FROM t WHERE a IN (15, 19); UPDATE t SET a = 20 - a WHERE a IN (1, 5); INSERT INTO t VALUES (5, 'again'), (1, 'out')");
        scene.level();
        scene.same(&["(SELECT a, b FROM t WHERE a IN (0, 5, 10, 15))"]);
        scene.alike("SELECT * FROM t ORDER BY a");
    });
}

/// The relay evaluates comparisons. Another filter is refused by name, and SQL shows it.
#[test]
fn a_filter_that_only_a_server_evaluates_is_refused_by_name() {
    scenario(Major::V15, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY)");
        scene.publisher("CREATE PUBLICATION p FOR TABLE t WHERE (id % 2 = 0); INSERT INTO t VALUES (1), (2)");
        scene.subscribe("p", "");
        // The copy is the publisher's.
        scene.shows("SELECT id FROM t", "2");
        scene.publisher("INSERT INTO t VALUES (3), (4)");
        let words =
            "the row filter of public.t cannot be evaluated outside the server: it has the operator %";
        wait_for(words, BOUND, || Ok(scene.log(Way::Relayed).contains(words))).unwrap();
        scene.publisher("ALTER PUBLICATION p SET TABLE t WHERE (id > 100)");
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET PUBLICATION marks WITH (refresh = false)");
        scene.level();
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET PUBLICATION p, marks WITH (refresh = false)");
        scene.level();
        scene.publisher("INSERT INTO t VALUES (5), (101)");
        scene.level();
        scene.shows("SELECT max(id) FROM t", "101");
    });
}
