//! Column lists: at the copy, when they change, of partitions, and where they contradict.

use testkit::{Major, wait_for};

use crate::BOUND;
use crate::stage::{Way, scenario};

#[test]
fn listed_columns_are_copied_and_sent() {
    scenario(Major::V15, |scene| {
        scene.publisher(
            "CREATE TYPE mood AS ENUM ('calm', 'wild');
             CREATE TABLE t (a int PRIMARY KEY, \"B\" text, c int, d mood);
             CREATE TABLE late (a int PRIMARY KEY, b text, c text);
             CREATE TABLE whole (a int NOT NULL, b text, c int);
             CREATE UNIQUE INDEX whole_key ON whole (a); ALTER TABLE whole REPLICA IDENTITY USING INDEX whole_key;
             INSERT INTO t VALUES (1, 'one', 1, 'calm'), (2, 'two', 2, NULL); INSERT INTO whole VALUES (1, 'one', 1);
             CREATE PUBLICATION p FOR TABLE t (a, \"B\"), whole (c, a) WHERE (a < 100)",
        );
        // The type of a column that is not sent does not exist there.
        scene.subscribers(
            "CREATE TABLE t (a int PRIMARY KEY, \"B\" text, c int DEFAULT 55);
             CREATE TABLE late (a int PRIMARY KEY, b text, c text); CREATE TABLE whole (a int PRIMARY KEY, b text, c int)",
        );
        scene.subscribe("p", "");
        scene.publisher(
            "INSERT INTO t VALUES (3, 'three', 3, 'wild'); UPDATE t SET \"B\" = 'TWO', c = 9 WHERE a = 2",
        );
        // Nothing that is sent has changed, or the key has.
        scene.publisher("UPDATE t SET c = 7 WHERE a = 1; UPDATE t SET a = 33 WHERE a = 3; UPDATE whole SET b = 'x', c = 2");
        scene.publisher("INSERT INTO whole VALUES (2, 'b', 2), (200, 'b', 2); DELETE FROM whole WHERE a = 1");
        scene.level();
        scene.same(&["(SELECT a, \"B\" FROM t)", "(SELECT a, c FROM whole WHERE a < 100)"]);
        scene.alike("SELECT * FROM t ORDER BY a");
        scene.shows("SELECT a, b, c FROM whole", "2|NULL|2");
        // Other columns from here on, and a table more.
        scene.publisher("ALTER PUBLICATION p SET TABLE t (a, c), whole, late (a, c)");
        scene.publisher(
            "UPDATE t SET c = c + 1000, \"B\" = 'not sent'; INSERT INTO whole VALUES (3, 'three', 3)",
        );
        scene.publisher("INSERT INTO late VALUES (1, 'b', 'c')");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
        scene.ready();
        scene.publisher("UPDATE late SET b = 'B', c = 'C'; INSERT INTO late VALUES (2, 'b', 'c')");
        scene.level();
        scene.same(&["(SELECT a, c FROM t)", "(SELECT a, c FROM late)"]);
        scene.shows("SELECT count(*) FILTER (WHERE \"B\" = 'not sent') FROM t", "0");
        scene.shows("SELECT a, b, c FROM whole WHERE a = 3", "3|three|3");
        // Columns behind the list do not matter to it.
        scene.publisher(
            "ALTER TABLE t DROP COLUMN d, ADD COLUMN e int DEFAULT 1; ALTER TABLE t RENAME COLUMN \"B\" TO b",
        );
        scene.publisher("UPDATE t SET c = 1");
        scene.level();
        scene.same(&["(SELECT a, c FROM t)"]);
    });
}

/// One publication's list has more columns than another's.
#[test]
fn lists_that_contradict_are_refused_alike() {
    scenario(Major::V15, |scene| {
        scene.everywhere(
            "CREATE TABLE t (a int PRIMARY KEY, b int, c int); CREATE TABLE u (a int PRIMARY KEY, b int)",
        );
        scene.publisher(
            "CREATE PUBLICATION narrow FOR TABLE t (a, b); CREATE PUBLICATION wide FOR TABLE t (a, c);
             CREATE PUBLICATION same FOR TABLE t (b, a); CREATE PUBLICATION later FOR TABLE u (a)",
        );
        let [direct, relayed] =
            Way::BOTH.map(|way| scene.try_to_subscribe(way, "narrow, wide", "").expect_err("it was made"));
        let words = "cannot use different column lists for table \"public.t\" in different publications";
        assert!(direct.contains(words) && relayed.contains(words), "{direct}\n{relayed}");
        scene.subscribe("narrow, same, later", "");
        scene.publisher("INSERT INTO t VALUES (1, 2, 3); INSERT INTO u VALUES (1, 2)");
        scene.level();
        scene.shows("SELECT * FROM t", "1|2|NULL");
        // Later they do, which stops the stream until they do not.
        scene.publisher("ALTER PUBLICATION same SET TABLE t (a, c)");
        scene.publisher("INSERT INTO t VALUES (2, 3, 4)");
        for (way, words) in [
            (Way::Direct, words),
            (Way::Relayed, "publications of table \"public.t\": they publish different columns"),
        ] {
            wait_for(words, BOUND, || Ok(scene.log(way).contains(words)))
                .unwrap_or_else(|error| panic!("{}: {error}", scene.sub(way)));
        }
        scene.subscribers(
            "ALTER SUBSCRIPTION {sub} SET PUBLICATION same, later, marks WITH (refresh = false)",
        );
        scene.level();
        scene.shows("SELECT * FROM t ORDER BY a", "1|2|NULL, 2|NULL|4");
    });
}

#[test]
fn lists_of_partitions_and_of_their_root() {
    scenario(Major::V15, |scene| {
        scene.publisher(
            "CREATE TABLE t (a int, b text, c int, PRIMARY KEY (a, c)) PARTITION BY RANGE (c);
             CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10);
             CREATE TABLE t_2 (c int NOT NULL, b text, a int NOT NULL); ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES FROM (10) TO (20);
             INSERT INTO t SELECT n, 'row ' || n, n FROM generate_series(0, 19) n;
             CREATE PUBLICATION root FOR TABLE t (c, a) WITH (publish_via_partition_root = true);
             CREATE PUBLICATION leaves FOR TABLE t_1, t_2 (a, c)",
        );
        let table = |name: &str| {
            format!("CREATE TABLE {name} (a int, b text DEFAULT 'none', c int, PRIMARY KEY (a, c))")
        };
        scene.subscribers(&["t", "t_1", "t_2"].map(table).join("; "));
        scene.subscribe("root", "");
        scene.publisher("UPDATE t SET b = 'changed', c = 19 - c WHERE a < 5; DELETE FROM t WHERE a = 7");
        scene.publisher("INSERT INTO t VALUES (100, 'new', 3), (101, 'new', 13)");
        scene.level();
        scene.same(&["(SELECT a, c FROM t)"]);
        scene.shows("SELECT DISTINCT b FROM t", "none");
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET PUBLICATION leaves, marks");
        scene.ready();
        scene.publisher("UPDATE t SET b = 'again', c = 19 - c WHERE a < 3; INSERT INTO t VALUES (102, 'new', 4), (103, 'new', 14)");
        scene.level();
        scene.same(&["(SELECT a, b, c FROM t_1)", "(SELECT a, c FROM t_2)"]);
        scene.shows("SELECT DISTINCT b FROM t_2", "none");
    });
}
