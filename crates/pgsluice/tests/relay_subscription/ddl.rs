//! Publications, schemas and subscriptions that change while changes are sent.

use testkit::Major;

use crate::stage::{Way, scenario};

#[test]
fn publications_are_added_to_a_subscription_and_dropped() {
    scenario(Major::V14, |scene| {
        scene.everywhere(
            "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY)",
        );
        let fill = |n: u32| {
            format!("INSERT INTO a VALUES ({n}); INSERT INTO b VALUES ({n}); INSERT INTO c VALUES ({n})")
        };
        let counts = "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b), (SELECT count(*) FROM c)";
        scene.publisher("CREATE PUBLICATION pa FOR TABLE a; CREATE PUBLICATION pb FOR TABLE b; CREATE PUBLICATION pc FOR TABLE c");
        scene.publisher(&fill(1));
        scene.subscribe("pa", "");
        scene.shows(counts, "1|0|0");
        scene.subscribers("ALTER SUBSCRIPTION {sub} ADD PUBLICATION pb, pc");
        scene.ready();
        scene.publisher(&fill(2));
        scene.level();
        scene.shows(counts, "2|2|2");
        scene.subscribers("ALTER SUBSCRIPTION {sub} DROP PUBLICATION pb");
        scene.publisher(&fill(3));
        scene.level();
        scene.shows(counts, "3|2|3");
        // Without a refresh, its tables are not known to the subscription.
        scene.subscribers("ALTER SUBSCRIPTION {sub} ADD PUBLICATION pb WITH (refresh = false)");
        scene.publisher(&fill(4));
        scene.level();
        scene.shows(counts, "4|2|4");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION WITH (copy_data = false)");
        scene.publisher(&fill(5));
        scene.level();
        scene.shows(counts, "5|3|5");
        // The publications themselves change.
        scene.publisher("ALTER PUBLICATION pa DROP TABLE a; ALTER PUBLICATION pb ADD TABLE a; ALTER PUBLICATION pc RENAME TO pd");
        scene.publisher("DELETE FROM a; DELETE FROM b");
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET PUBLICATION pb, pd, marks");
        scene.ready();
        scene.publisher(&fill(6));
        scene.level();
        scene.shows(
            "SELECT (SELECT string_agg(id::text, ' ') FROM a), (SELECT string_agg(id::text, ' ') FROM b)",
            "6|6",
        );
        scene.same(&["a", "b", "c"]);
    });
}

/// From 18 on, a publication that is missing publishes nothing. Before, it stops the stream.
#[test]
fn a_publication_that_is_missing() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY)");
        scene.publisher("CREATE PUBLICATION p FOR TABLE t");
        scene.subscribe("p", "");
        scene.subscribers("ALTER SUBSCRIPTION {sub} ADD PUBLICATION nowhere WITH (refresh = false)");
        scene.publisher("INSERT INTO t VALUES (1)");
        if scene.major >= Major::V18 {
            scene.level();
            scene.same(&["t"]);
            scene.everywhere("CREATE TABLE u (id int PRIMARY KEY)");
            scene.publisher(
                "INSERT INTO u VALUES (1); CREATE PUBLICATION nowhere FOR TABLE u; INSERT INTO u VALUES (2)",
            );
            scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION WITH (copy_data = false)");
            scene.publisher("INSERT INTO u VALUES (3)");
            scene.level();
            scene.alike("SELECT id FROM u ORDER BY id");
            scene.shows("SELECT count(*) FROM u WHERE id = 3", "1");
        } else {
            scene.logged("publication \"nowhere\" does not exist");
            scene.subscribers("ALTER SUBSCRIPTION {sub} DROP PUBLICATION nowhere WITH (refresh = false)");
            scene.level();
            scene.same(&["t"]);
        }
        // A publication that is dropped and made again.
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET PUBLICATION p, marks WITH (refresh = false)");
        scene.publisher("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE t; INSERT INTO t VALUES (9)");
        scene.level();
        scene.same(&["t"]);
    });
}

#[test]
fn all_tables_of_schemas_are_published() {
    scenario(Major::V15, |scene| {
        scene.everywhere(
            "CREATE SCHEMA one; CREATE SCHEMA two; CREATE TABLE one.a (id int PRIMARY KEY); CREATE TABLE one.b (id int PRIMARY KEY);
             CREATE TABLE two.c (id int PRIMARY KEY); CREATE TABLE two.moves (id int PRIMARY KEY);
             CREATE TABLE one.moves (id int PRIMARY KEY)",
        );
        scene.publisher("DROP TABLE two.moves; INSERT INTO one.a VALUES (1); CREATE PUBLICATION p FOR TABLES IN SCHEMA one");
        scene.subscribe("p", "");
        scene.publisher("INSERT INTO one.a VALUES (2); INSERT INTO one.b VALUES (1); INSERT INTO two.c VALUES (1); INSERT INTO one.moves VALUES (1)");
        scene.level();
        scene.same(&["one.a", "one.b", "one.moves"]);
        scene.shows("SELECT count(*) FROM two.c", "0");
        // A table that comes with a refresh, one that leaves, and a schema more.
        scene.everywhere("CREATE TABLE one.late (id int PRIMARY KEY)");
        scene.publisher("INSERT INTO one.late VALUES (1); ALTER TABLE one.moves SET SCHEMA two; INSERT INTO two.moves VALUES (2)");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
        scene.ready();
        scene.publisher("INSERT INTO one.late VALUES (2)");
        scene.level();
        scene.same(&["one.late"]);
        scene.shows("SELECT count(*) FROM one.moves", "1");
        scene.publisher("ALTER PUBLICATION p ADD TABLES IN SCHEMA two");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
        scene.ready();
        scene.publisher("INSERT INTO two.moves VALUES (3); DELETE FROM two.c");
        scene.level();
        scene.same(&["two.c", "two.moves"]);
        // A table of its own beside schemas, and schemas that are published no more.
        scene.publisher("ALTER PUBLICATION p SET TABLES IN SCHEMA two, TABLE one.a");
        scene.publisher("INSERT INTO one.a VALUES (5); INSERT INTO one.b VALUES (5)");
        scene.level();
        scene.shows("SELECT (SELECT count(*) FROM one.a), (SELECT count(*) FROM one.b)", "3|1");
        scene.publisher("ALTER PUBLICATION p DROP TABLES IN SCHEMA two");
        scene.publisher("INSERT INTO two.c VALUES (9)");
        scene.level();
        scene.shows("SELECT count(*) FROM two.c", "0");
    });
}

/// Within one transaction a schema becomes another one, and there is a new table under its name.
/// A walsender before 16 goes on with the old name.
#[test]
fn a_schema_is_renamed_between_rows() {
    scenario(Major::V16, |scene| {
        scene
            .publisher("CREATE SCHEMA one; CREATE TABLE one.t (id int); CREATE PUBLICATION p FOR ALL TABLES");
        scene.subscribers(
            "CREATE SCHEMA one; CREATE TABLE one.t (id int); CREATE SCHEMA two; CREATE TABLE two.t (id int)",
        );
        scene.subscribe("p", "");
        scene.publisher(
            "BEGIN; INSERT INTO one.t VALUES (1); ALTER SCHEMA one RENAME TO two; CREATE SCHEMA one;
             CREATE TABLE one.t (id int); INSERT INTO one.t VALUES (2); INSERT INTO two.t VALUES (3); COMMIT",
        );
        scene.level();
        scene.shows("SELECT string_agg(id::text, ' ' ORDER BY id) FROM one.t", "1 2");
        scene.shows("SELECT count(*) FROM two.t", "0");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
        scene.ready();
        scene.shows("SELECT string_agg(id::text, ' ' ORDER BY id) FROM two.t", "1 3");
        // And a table, which is not subscribed to under its other name.
        scene.subscribers("CREATE TABLE two.elsewhere (id int)");
        scene.publisher("ALTER TABLE two.t RENAME TO elsewhere; INSERT INTO two.elsewhere VALUES (4)");
        scene.publisher("ALTER TABLE two.elsewhere RENAME TO t; INSERT INTO two.t VALUES (5)");
        scene.level();
        scene.shows("SELECT string_agg(id::text, ' ' ORDER BY id) FROM two.t", "1 3 5");
    });
}

/// A publication changes beside an open transaction that has written already.
#[test]
fn publications_change_beside_an_open_transaction() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)");
        scene.publisher("CREATE PUBLICATION p FOR TABLE t");
        scene.subscribe("p", "");
        let session = scene.session();
        session.run("BEGIN; INSERT INTO t VALUES (1, 'one'); INSERT INTO u VALUES (1)");
        scene.publisher("ALTER PUBLICATION p ADD TABLE u");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION WITH (copy_data = false)");
        session.run("INSERT INTO t VALUES (2, 'two'); INSERT INTO u VALUES (2)");
        scene.publisher("ALTER PUBLICATION p SET (publish = 'insert')");
        session.run("UPDATE t SET v = 'not published'; INSERT INTO u VALUES (3); COMMIT");
        scene.level();
        scene.alike("SELECT 't', id, v FROM t UNION ALL SELECT 'u', id, NULL FROM u ORDER BY 1, 2");
        scene.shows("SELECT string_agg(v, ' ' ORDER BY id) FROM t", "one two");
        scene.shows("SELECT count(*) FROM u WHERE id = 3", "1");
        scene.publisher("ALTER PUBLICATION p DROP TABLE u, t");
        scene.publisher("INSERT INTO t VALUES (10, 'no'); INSERT INTO u VALUES (10)");
        scene.level();
        scene.shows(
            "SELECT (SELECT count(*) FROM t WHERE id = 10) + (SELECT count(*) FROM u WHERE id = 10)",
            "0",
        );
    });
}

/// A subscription that is made without a connection, in a transaction that is rolled back, or at a
/// publication that is not there.
#[test]
fn subscriptions_are_made_in_other_ways() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY)");
        scene.publisher("INSERT INTO t VALUES (1); CREATE PUBLICATION p FOR TABLE t");
        for way in Way::BOTH {
            let refused = scene
                .try_at(way, "BEGIN; CREATE SUBSCRIPTION {sub} CONNECTION '{place}' PUBLICATION p")
                .unwrap_err();
            assert!(refused.contains("cannot run inside a transaction block"), "{refused}");
            scene.at(way, "BEGIN; CREATE SUBSCRIPTION {sub} CONNECTION '{place}' PUBLICATION p WITH (create_slot = false, enabled = false); ROLLBACK");
            let nobody = scene.conninfo(way, scene.database()).replace("user=sub", "user=nobody");
            let refused = scene
                .try_at(way, &format!("CREATE SUBSCRIPTION {{sub}} CONNECTION '{nobody}' PUBLICATION p"))
                .unwrap_err();
            assert!(refused.contains("password authentication failed for user \"nobody\""), "{refused}");
            let missing = scene.conninfo(way, "no_such_database");
            let refused = scene
                .try_at(way, &format!("CREATE SUBSCRIPTION {{sub}} CONNECTION '{missing}' PUBLICATION p"))
                .unwrap_err();
            assert!(refused.contains("database \"no_such_database\" does not exist"), "{refused}");
            scene.at(
                way,
                "CREATE SUBSCRIPTION {sub} CONNECTION '{place}' PUBLICATION p, marks WITH (connect = false)",
            );
            scene.create_slot(way, &scene.sub(way));
            scene.at(way, "ALTER SUBSCRIPTION {sub} ENABLE");
            scene.at(way, "ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
        }
        scene.ready();
        scene.publisher("INSERT INTO t VALUES (2)");
        scene.level();
        scene.same(&["t"]);
        // A name that is taken is refused.
        for way in Way::BOTH {
            let refused = scene
                .try_at(way, "CREATE SUBSCRIPTION {sub}_2 CONNECTION '{place}' PUBLICATION p WITH (slot_name = '{sub}')")
                .unwrap_err();
            assert!(
                refused.contains(&format!("replication slot \"{}\" already exists", scene.sub(way))),
                "{refused}"
            );
        }
    });
}
