//! Rows of tables with every kind of identity, and tables that are not alike at both ends.

use testkit::Major;

use crate::stage::{Scene, Way, between, scenario};

const TABLES: &str = "
    CREATE TABLE keyed (id int PRIMARY KEY, v text);
    CREATE TABLE whole (a int, b text);
    CREATE TABLE grows (a int);
    CREATE TABLE wide (id int PRIMARY KEY, large text, small int);
    CREATE TABLE by_index (a int NOT NULL, b int NOT NULL, v text);
    CREATE UNIQUE INDEX by_index_key ON by_index (b, a);
    CREATE TABLE columnless ();
    CREATE TABLE apart (a int);
    ALTER TABLE whole REPLICA IDENTITY FULL;
    ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key;
    ALTER TABLE wide ALTER large SET STORAGE EXTERNAL";

const CHANGES: [&str; 8] = [
    "UPDATE keyed SET v = upper(v) WHERE id % 3 = 0; DELETE FROM keyed WHERE id % 5 = 0;
     UPDATE keyed SET id = id + 1000 WHERE id % 7 = 0",
    "INSERT INTO whole SELECT n % 4, 'twin' FROM generate_series(1, 12) n;
     INSERT INTO whole VALUES (NULL, NULL), (NULL, NULL), (NULL, '')",
    "UPDATE whole SET b = b || a WHERE a < 2; DELETE FROM whole WHERE a = 3;
     UPDATE whole SET a = 9 WHERE b = ''",
    "DELETE FROM grows WHERE a > 20; INSERT INTO grows VALUES (0), (NULL)",
    "INSERT INTO wide VALUES (1, repeat('abc', 3000), 1), (2, repeat('x', 20000), 2), (3, NULL, 3)",
    "UPDATE wide SET small = small + 10; UPDATE wide SET id = id + 10 WHERE id = 2;
     UPDATE wide SET large = repeat('z', 9000) WHERE id = 3",
    "INSERT INTO by_index SELECT n, n % 5, 'row ' || n FROM generate_series(1, 20) n;
     UPDATE by_index SET v = v || '!' WHERE b = 1; UPDATE by_index SET a = -a WHERE b = 2;
     DELETE FROM by_index WHERE b = 3",
    "INSERT INTO columnless DEFAULT VALUES; INSERT INTO apart VALUES (1)",
];

fn all_kinds_of_rows(scene: &Scene) {
    scene.everywhere(TABLES);
    scene.publisher(
        "INSERT INTO keyed SELECT n, 'before ' || n FROM generate_series(1, 100) n;
         INSERT INTO whole SELECT n, 'before' FROM generate_series(1, 3) n;
         INSERT INTO grows SELECT generate_series(1, 50);
         INSERT INTO columnless DEFAULT VALUES;
         CREATE PUBLICATION changes FOR TABLE keyed, whole, wide, by_index;
         CREATE PUBLICATION additions FOR TABLE grows, columnless WITH (publish = 'insert')",
    );
    scene.subscribe("changes, additions", "");
    scene.same(&["keyed", "whole", "grows"]);
    CHANGES.iter().for_each(|sql| scene.publisher(sql));
    scene.level();
    scene.same(&["keyed", "whole", "wide", "by_index", "columnless"]);
    scene.shows("SELECT count(*), count(a), min(a), max(a) FROM grows", "52|51|0|50");
    scene.shows("SELECT count(*) FROM apart", "0");
}

#[test]
fn rows_with_every_kind_of_identity_arrive() {
    scenario(Major::V14, all_kinds_of_rows);
}

#[test]
fn subscribers_of_other_majors_follow() {
    let majors = Major::under_test();
    let (first, last) = (majors[0], majors[majors.len() - 1]);
    // With one major, the test before has done it.
    if first != last {
        between(first, last, all_kinds_of_rows);
        between(last, first, all_kinds_of_rows);
    }
}

/// Columns by another order, with other types and defaults, and more of them.
#[test]
fn a_subscribers_table_may_have_other_columns() {
    scenario(Major::V14, |scene| {
        scene.publisher(
            "CREATE TABLE narrow (a int PRIMARY KEY, b text, gone int, c numeric);
             ALTER TABLE narrow DROP COLUMN gone;
             INSERT INTO narrow SELECT n, 'n' || n, n / 4.0 FROM generate_series(1, 20) n;
             CREATE PUBLICATION p FOR TABLE narrow",
        );
        scene.subscribers(
            "CREATE TABLE narrow (since date DEFAULT '2026-01-01', c float8, b varchar(50), number bigserial,
                                  gone int, a bigint PRIMARY KEY, more int DEFAULT 999);
             ALTER TABLE narrow DROP COLUMN gone",
        );
        scene.subscribe("p", "");
        scene.subscribers("UPDATE narrow SET more = -a");
        scene.publisher("UPDATE narrow SET b = b || '!' WHERE a <= 10; DELETE FROM narrow WHERE a = 20");
        scene.publisher(
            "UPDATE narrow SET a = a + 100 WHERE a = 5; INSERT INTO narrow VALUES (30, NULL, 0.5)",
        );
        scene.level();
        scene.shows(
            "SELECT count(*), count(*) FILTER (WHERE more = -a), sum(c), max(since) FROM narrow",
            "20|18|48|2026-01-01",
        );
        scene.alike("SELECT * FROM narrow ORDER BY a");
        // A column that only the publisher has stops both, until they have it.
        scene.publisher("ALTER TABLE narrow ADD COLUMN late int DEFAULT 7");
        scene.publisher("UPDATE narrow SET b = 'with it' WHERE a = 1");
        scene.logged("missing replicated column: \"late\"");
        scene.subscribers("ALTER TABLE narrow ADD COLUMN late int");
        scene.level();
        scene.shows("SELECT a, b, late FROM narrow WHERE late IS NOT NULL", "1|with it|7");
    });
}

#[test]
fn a_subscription_gets_another_name_connection_and_publications() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE keyed (id int PRIMARY KEY); CREATE TABLE grows (a int)");
        scene.publisher(
            "INSERT INTO keyed SELECT generate_series(1, 10);
             CREATE PUBLICATION changes FOR TABLE keyed;
             CREATE PUBLICATION additions FOR TABLE grows WITH (publish = 'insert')",
        );
        scene.subscribe("changes, additions", "");
        let streams = |name: &str| {
            format!(
                "SELECT count(*) FROM pg_stat_replication WHERE application_name = '{name}' AND state = 'streaming'"
            )
        };
        scene.until_upstream("the stream", &streams("{sub}"), "1");
        scene.subscribers("ALTER SUBSCRIPTION {sub} RENAME TO {sub}_n");
        scene.until_upstream("the stream under its new name", &streams("{sub}_n"), "1");
        scene.subscribers("ALTER SUBSCRIPTION {sub}_n RENAME TO {sub}");
        scene.subscribers("ALTER SUBSCRIPTION {sub} CONNECTION '{place} application_name={sub}_c'");
        scene.until_upstream("the stream of the new connection", &streams("{sub}_c"), "1");
        scene.publisher("INSERT INTO keyed VALUES (11); INSERT INTO grows VALUES (1)");
        scene.level();
        scene.same(&["keyed", "grows"]);
        // What is not subscribed to any more stays as it is.
        scene.subscribers(
            "ALTER SUBSCRIPTION {sub} SET PUBLICATION additions, marks WITH (copy_data = false)",
        );
        scene.publisher("DELETE FROM keyed; INSERT INTO grows VALUES (2), (3)");
        scene.level();
        scene.shows("SELECT count(*) FROM keyed", "11");
        // Deletions are published from here on, and not those before.
        scene.everywhere("ALTER TABLE grows REPLICA IDENTITY FULL");
        scene.publisher("DELETE FROM grows WHERE a = 1");
        scene.publisher("ALTER PUBLICATION additions SET (publish = 'insert, delete')");
        scene.publisher("DELETE FROM grows WHERE a = 2; INSERT INTO grows VALUES (4)");
        scene.level();
        scene.shows("SELECT string_agg(a::text, ' ' ORDER BY a) FROM grows", "1 3 4");
    });
}

/// Views, sequences, messages, and tables that are not in the WAL, beside published tables.
#[test]
fn what_is_no_published_table_is_ignored() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY, v text)");
        scene.publisher("CREATE PUBLICATION p FOR ALL TABLES");
        scene.subscribe("p", "");
        scene.publisher("CREATE MATERIALIZED VIEW seen AS SELECT id FROM t; CREATE SEQUENCE numbers");
        scene.publisher("CREATE UNLOGGED TABLE unlogged AS SELECT 1 AS a; UPDATE unlogged SET a = 2");
        scene.publisher("CREATE TEMPORARY TABLE temporary AS SELECT 1 AS a; UPDATE temporary SET a = 2");
        scene.publisher(
            "INSERT INTO t SELECT n, 'v' FROM generate_series(1, 10) n; REFRESH MATERIALIZED VIEW seen;
             SELECT nextval('numbers'), pg_logical_emit_message(true, 'test', 'with the transaction'),
                    pg_logical_emit_message(false, 'test', 'at once')",
        );
        scene.publisher("BEGIN; SELECT pg_logical_emit_message(true, 'test', 'rolled back'); ROLLBACK");
        scene.publisher("DELETE FROM t WHERE id < 4; REFRESH MATERIALIZED VIEW seen");
        scene.level();
        scene.same(&["t"]);
        scene.shows("SELECT count(*) FROM pg_class WHERE relname IN ('seen', 'unlogged', 'numbers')", "0");
    });
}

/// Both ends rewrite a table, with rows before and behind it in one transaction.
#[test]
fn rewritten_tables_go_on() {
    scenario(Major::V14, |scene| {
        scene.everywhere(
            "CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        );
        scene.publisher("CREATE PUBLICATION p FOR TABLE t");
        scene.subscribe("p", "");
        scene.publisher("INSERT INTO t SELECT n, repeat('v', n * 100) FROM generate_series(1, 50) n");
        scene.level();
        scene.everywhere("ALTER TABLE t ADD COLUMN at timestamptz DEFAULT clock_timestamp()");
        scene.publisher("UPDATE t SET at = '2026-11-28'");
        scene.level();
        scene.same(&["t"]);
        scene.subscribers("ALTER TABLE t ALTER id TYPE bigint, ADD COLUMN n int");
        scene.publisher(
            "BEGIN; INSERT INTO t VALUES (100, repeat('a', 5000), NULL);
             ALTER TABLE t ALTER id TYPE bigint, ADD COLUMN n int DEFAULT 1;
             INSERT INTO t VALUES (101, repeat('b', 5000), NULL, 2); UPDATE t SET n = n + 1 WHERE id > 48; COMMIT",
        );
        scene.publisher("VACUUM FULL t");
        scene.publisher("UPDATE t SET n = 5 WHERE id = 2");
        scene.level();
        scene.shows("SELECT count(*), sum(n), sum(length(v)) FROM t WHERE id > 48", "4|9|19900");
        scene.shows("SELECT n FROM t WHERE id = 2", "5");
        assert_eq!(
            scene.at_publisher("SELECT sum(n) FROM t WHERE id > 48"),
            scene.rows(Way::Relayed, "SELECT sum(n) FROM t WHERE id > 48")
        );
    });
}
