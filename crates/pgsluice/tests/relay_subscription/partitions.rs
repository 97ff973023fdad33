//! Partitioned tables, sent as their partitions or as their root.

use testkit::Major;

use crate::stage::scenario;

/// Notes each row that a replica trigger sees.
const NOTES: &str = "
    CREATE TABLE log (said text);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.log VALUES (TG_RELNAME || ' ' || TG_OP || ' ' || coalesce(OLD.a::text, '-') || ' '
                                       || coalesce(NEW.a::text, '-'));
        RETURN NULL;
    END $$";

#[test]
fn partitions_are_sent_by_their_own_names() {
    scenario(Major::V14, |scene| {
        scene.publisher(
            "CREATE TABLE t (a int PRIMARY KEY, b text) PARTITION BY LIST (a);
             CREATE TABLE t_low (b text, a int NOT NULL);
             ALTER TABLE t ATTACH PARTITION t_low FOR VALUES IN (1, 2, 3);
             CREATE TABLE t_high PARTITION OF t FOR VALUES IN (4, 5, 6);
             CREATE TABLE t_rest PARTITION OF t DEFAULT;
             INSERT INTO t VALUES (1, 'copied'), (5, 'copied'), (9, 'copied');
             CREATE PUBLICATION p FOR TABLE t",
        );
        // Partitioned otherwise: one is a plain table, one has partitions of its own.
        scene.subscribers(
            "CREATE TABLE t_low (a int PRIMARY KEY, b text, c text DEFAULT 'plain');
             CREATE TABLE t_high (c text DEFAULT 'split', a int PRIMARY KEY, b text) PARTITION BY LIST (a);
             CREATE TABLE t_high_five (b text, a int NOT NULL, c text DEFAULT 'split');
             ALTER TABLE t_high ATTACH PARTITION t_high_five FOR VALUES IN (5);
             CREATE TABLE t_high_others PARTITION OF t_high FOR VALUES IN (4, 6);
             CREATE TABLE t_rest (a int PRIMARY KEY, b text)",
        );
        scene.subscribers(NOTES);
        scene.subscribers(
            "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON t_high FOR EACH ROW EXECUTE FUNCTION note();
             ALTER TABLE t_high ENABLE REPLICA TRIGGER note;
             ALTER TABLE t_high_others ENABLE REPLICA TRIGGER note",
        );
        scene.subscribe("p", "");
        scene.publisher(
            "INSERT INTO t VALUES (2, 'new'), (4, 'new'), (7, 'new'); INSERT INTO t_low (a) VALUES (3)",
        );
        // Within a partition of both, across the subscriber's own, and across the publisher's.
        scene.publisher("UPDATE t SET a = 6, b = 'moved' WHERE a = 4; UPDATE t SET a = 4 WHERE a = 5");
        scene.publisher(
            "UPDATE t SET a = 5 WHERE a = 4; UPDATE t SET a = 8 WHERE a = 1; UPDATE t SET a = 1 WHERE a = 9",
        );
        scene.publisher("DELETE FROM t WHERE a IN (3, 7)");
        scene.level();
        scene.same(&["(SELECT a, b FROM t_low)", "(SELECT a, b FROM t_high)", "(SELECT a, b FROM t_rest)"]);
        scene.shows(
            "SELECT tableoid::regclass, a, c FROM t_high ORDER BY a",
            "t_high_five|5|split, t_high_others|6|split",
        );
        scene.alike("SELECT said FROM log ORDER BY said");
        scene.shows("SELECT count(*) > 3 FROM log", "t");
        scene.publisher("TRUNCATE t_high");
        scene.level();
        scene.shows("SELECT (SELECT count(*) FROM t_high), (SELECT count(*) FROM t_low)", "0|2");
        scene.publisher("TRUNCATE t");
        scene.level();
        scene.shows("SELECT (SELECT count(*) FROM t_low) + (SELECT count(*) FROM t_rest)", "0");
    });
}

/// A walsender of 14 does not see that a partition has left (`output`'s README).
#[test]
fn partitions_come_and_go() {
    scenario(Major::V15, |scene| {
        scene.publisher(
            "CREATE TABLE t (a int PRIMARY KEY, b text) PARTITION BY LIST (a);
             CREATE TABLE t_low PARTITION OF t FOR VALUES IN (1, 2, 3);
             CREATE TABLE t_high PARTITION OF t FOR VALUES IN (4, 5, 6);
             CREATE PUBLICATION p FOR TABLE t",
        );
        scene.subscribers(
            "CREATE TABLE t_low (a int PRIMARY KEY, b text); CREATE TABLE t_high (a int PRIMARY KEY, b text)",
        );
        scene.subscribe("p", "");
        scene.publisher("INSERT INTO t VALUES (1, 'in'), (4, 'in')");
        // One that has left is published no more, and one that comes is not known yet.
        scene.publisher("ALTER TABLE t DETACH PARTITION t_low");
        scene.publisher(
            "INSERT INTO t_low VALUES (100, 'alone'); TRUNCATE t_high; INSERT INTO t VALUES (5, 'anew')",
        );
        scene.everywhere("CREATE TABLE t_more (a int PRIMARY KEY, b text)");
        scene.publisher("INSERT INTO t_more VALUES (20, 'before')");
        scene.publisher("ALTER TABLE t ATTACH PARTITION t_more FOR VALUES IN (20, 21)");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
        scene.ready();
        scene.publisher("INSERT INTO t VALUES (21, 'behind')");
        scene.level();
        scene.shows("SELECT * FROM t_low", "1|in");
        scene.same(&["t_more", "t_high"]);
    });
}

#[test]
fn partitions_are_sent_as_their_root() {
    scenario(Major::V14, |scene| {
        scene.publisher(
            "CREATE TABLE t (a int PRIMARY KEY, b text) PARTITION BY LIST (a);
             CREATE TABLE t_low (b text, gone int, a int NOT NULL);
             ALTER TABLE t_low DROP COLUMN gone;
             ALTER TABLE t ATTACH PARTITION t_low FOR VALUES IN (1, 2, 3);
             CREATE TABLE t_high PARTITION OF t FOR VALUES IN (4, 5, 6) PARTITION BY LIST (a);
             CREATE TABLE t_high_five PARTITION OF t_high FOR VALUES IN (5);
             CREATE TABLE t_high_others PARTITION OF t_high FOR VALUES IN (4, 6);
             CREATE TABLE u (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
             CREATE TABLE u_one PARTITION OF u FOR VALUES FROM (0) TO (10);
             INSERT INTO t VALUES (1, 'copied'), (5, 'copied'); INSERT INTO u VALUES (1, 'copied');
             CREATE PUBLICATION roots FOR TABLE t, u WITH (publish_via_partition_root = true);
             CREATE PUBLICATION leaf FOR TABLE u_one",
        );
        // A table without partitions, and one that is partitioned by hash.
        scene.subscribers(
            "CREATE TABLE t (b text, a int PRIMARY KEY, c text DEFAULT 'here');
             CREATE TABLE u (a int PRIMARY KEY, b text) PARTITION BY HASH (a);
             CREATE TABLE u_0 PARTITION OF u FOR VALUES WITH (MODULUS 2, REMAINDER 0);
             CREATE TABLE u_1 PARTITION OF u FOR VALUES WITH (MODULUS 2, REMAINDER 1);
             CREATE TABLE u_one (a int PRIMARY KEY, b text)",
        );
        scene.subscribe("roots", "");
        scene.publisher("INSERT INTO t VALUES (2, 'new'), (4, 'new'); INSERT INTO u SELECT n, 'u' FROM generate_series(2, 9) n");
        scene.publisher("UPDATE t SET a = 3 WHERE a = 5; UPDATE t SET a = 6, b = 'moved' WHERE a = 4; DELETE FROM t_low WHERE a = 1");
        scene.publisher("UPDATE u SET a = 0 WHERE a = 9; DELETE FROM u WHERE a = 3");
        scene.level();
        scene.same(&["(SELECT a, b FROM t)", "u"]);
        scene.alike("SELECT tableoid::regclass, a FROM u ORDER BY a");
        // TRUNCATE is sent of the root only.
        scene.publisher("TRUNCATE t_low; INSERT INTO t VALUES (5, 'anew')");
        scene.level();
        scene.alike("SELECT a, b, c FROM t ORDER BY a");
        scene.publisher("TRUNCATE t; INSERT INTO t VALUES (1, 'last')");
        // A partition that is attached is there at once, under the name of the root.
        scene.publisher("CREATE TABLE u_two (a int NOT NULL, b text); ALTER TABLE u ATTACH PARTITION u_two FOR VALUES FROM (10) TO (20)");
        scene.publisher("INSERT INTO u VALUES (15, 'attached')");
        scene.level();
        scene.same(&["(SELECT a, b FROM t)", "u"]);
        scene.shows("SELECT count(*) FROM u_one", "0");
        // Of two publications, the root's counts.
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET PUBLICATION roots, leaf, marks");
        scene.ready();
        scene.publisher("INSERT INTO u VALUES (3, 'which')");
        scene.level();
        scene.alike("SELECT 'u', a, b FROM u UNION ALL SELECT 'u_one', a, b FROM u_one ORDER BY 1, 2");
        scene.shows("SELECT count(*) FROM u WHERE b = 'which'", "1");
        // And without the option they come by their own names.
        scene.publisher("ALTER PUBLICATION roots SET (publish_via_partition_root = false)");
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET PUBLICATION leaf, marks WITH (copy_data = false)");
        scene.publisher("DELETE FROM u WHERE a = 3; INSERT INTO u VALUES (3, 'leaf')");
        scene.level();
        scene.shows("SELECT a, b FROM u_one WHERE b = 'leaf'", "3|leaf");
    });
}
