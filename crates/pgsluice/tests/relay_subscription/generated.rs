//! Generated columns at either end.

use testkit::Major;

use crate::stage::scenario;

#[test]
fn each_end_generates_its_own_columns() {
    scenario(Major::V14, |scene| {
        scene.publisher(
            "CREATE TABLE t (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED, c text);
             CREATE TABLE whole (a int, b int GENERATED ALWAYS AS (a + 1) STORED);
             ALTER TABLE whole REPLICA IDENTITY FULL;
             INSERT INTO t (a, c) VALUES (1, 'one'), (2, 'two'); INSERT INTO whole (a) VALUES (1), (2);
             CREATE PUBLICATION p FOR TABLE t, whole",
        );
        // Another expression, and a column of its own that is generated from what is sent.
        scene.subscribers(
            "CREATE TABLE t (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 22) STORED, c text,
                             d int GENERATED ALWAYS AS (length(c)) STORED);
             CREATE TABLE whole (a int, b int GENERATED ALWAYS AS (a + 1) STORED);
             CREATE TABLE log (said text);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN INSERT INTO public.log VALUES (TG_OP || '' '' || NEW.b); RETURN NULL; END';
             CREATE TRIGGER note AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note();
             ALTER TABLE t ENABLE REPLICA TRIGGER note",
        );
        scene.subscribe("p", "");
        scene.shows("SELECT * FROM t ORDER BY a", "1|22|one|3, 2|44|two|3");
        scene.publisher(
            "INSERT INTO t (a, c) VALUES (3, 'three'); UPDATE t SET c = 'second', a = 6 WHERE a = 2",
        );
        // 18 refuses this, because the generated column is a part of the identity.
        if scene.major < Major::V18 {
            scene.publisher("UPDATE whole SET a = 5 WHERE a = 1; DELETE FROM whole WHERE a = 2");
        }
        scene.level();
        scene.shows("SELECT * FROM t ORDER BY a", "1|22|one|3, 3|66|three|5, 6|132|second|6");
        scene.same(&["whole"]);
        scene.alike("SELECT said FROM log ORDER BY said");
    });
}

/// From 18 on a publication may send stored ones, by its option or by a list of columns.
#[test]
fn stored_columns_are_sent_where_the_publication_says_so() {
    scenario(Major::V18, |scene| {
        scene.publisher(
            "CREATE TABLE sent (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED,
                                v int GENERATED ALWAYS AS (a * 3) VIRTUAL);
             CREATE TABLE listed (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED, c int);
             CREATE TABLE kept (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED);
             INSERT INTO sent VALUES (1); INSERT INTO listed VALUES (1, DEFAULT, 5); INSERT INTO kept VALUES (1);
             CREATE PUBLICATION sends FOR TABLE sent WITH (publish_generated_columns = stored);
             CREATE PUBLICATION lists FOR TABLE listed (a, b) WITH (publish_generated_columns = none);
             CREATE PUBLICATION keeps FOR TABLE kept",
        );
        scene.subscribers(
            "CREATE TABLE sent (a int PRIMARY KEY, b int, v int);
             CREATE TABLE listed (a int PRIMARY KEY, b int, c int); CREATE TABLE kept (a int PRIMARY KEY, b int)",
        );
        scene.subscribe("sends, lists, keeps", "");
        scene.publisher("INSERT INTO sent VALUES (2); INSERT INTO listed VALUES (2, DEFAULT, 6); INSERT INTO kept VALUES (2)");
        scene.publisher("UPDATE sent SET a = 10 WHERE a = 1; UPDATE listed SET a = 10, c = 7 WHERE a = 1");
        scene.level();
        scene.shows("SELECT * FROM sent ORDER BY a", "2|4|NULL, 10|20|NULL");
        scene.shows("SELECT * FROM listed ORDER BY a", "2|4|NULL, 10|20|NULL");
        scene.shows("SELECT * FROM kept ORDER BY a", "1|NULL, 2|NULL");
        scene.publisher("ALTER PUBLICATION sends SET (publish_generated_columns = none)");
        scene.publisher("INSERT INTO sent VALUES (3)");
        scene.level();
        scene.shows("SELECT * FROM sent WHERE a = 3", "3|NULL|NULL");
    });
}
