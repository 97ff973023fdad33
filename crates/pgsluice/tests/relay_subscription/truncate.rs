//! TRUNCATE: of several tables, by foreign keys, with sequences, and where it is not published.

use testkit::Major;

use crate::stage::scenario;

#[test]
fn tables_are_emptied_where_it_is_published() {
    scenario(Major::V14, |scene| {
        scene.everywhere(
            "CREATE SEQUENCE owned; CREATE TABLE numbered (id int PRIMARY KEY DEFAULT nextval('owned'), v int);
             ALTER SEQUENCE owned OWNED BY numbered.id;
             CREATE TABLE keeps (id int PRIMARY KEY); CREATE TABLE first (id int); CREATE TABLE second (id int);
             CREATE TABLE parent (id int PRIMARY KEY);
             CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
             CREATE TABLE apart (id int PRIMARY KEY, parent int REFERENCES parent)",
        );
        // A subscriber never cascades, so there nothing else may refer to what is emptied.
        scene.subscribers("ALTER TABLE apart DROP CONSTRAINT apart_parent_fkey");
        scene.publisher(
            "CREATE PUBLICATION p FOR TABLE numbered, first, second, parent, child;
             CREATE PUBLICATION rows_only FOR TABLE keeps WITH (publish = 'insert, update, delete')",
        );
        scene.subscribe("p, rows_only", "");
        let fill =
            "INSERT INTO keeps VALUES (1), (2); INSERT INTO first VALUES (1); INSERT INTO second VALUES (1);
                    INSERT INTO numbered (v) VALUES (1), (2)";
        scene.publisher(fill);
        scene.publisher("TRUNCATE keeps, first, second");
        scene.subscribers("SELECT setval('owned', 100)");
        scene.publisher("TRUNCATE numbered");
        scene.level();
        scene.shows("SELECT count(*) FROM keeps", "2");
        scene.shows("SELECT (SELECT count(*) FROM first) + (SELECT count(*) FROM second)", "0");
        scene.shows("SELECT count(*), (SELECT last_value FROM owned) FROM numbered", "0|100");
        // The sequence of the subscriber begins anew, too.
        scene.publisher("TRUNCATE numbered RESTART IDENTITY; INSERT INTO numbered (v) VALUES (3)");
        scene.level();
        scene.shows("SELECT count(*), (SELECT last_value FROM owned) FROM numbered", "1|1");
        scene.publisher(
            "INSERT INTO first VALUES (1); BEGIN; TRUNCATE first; INSERT INTO first VALUES (2); COMMIT",
        );
        scene.publisher("BEGIN; TRUNCATE second; ROLLBACK");
        scene.publisher("INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1, 1)");
        scene.publisher("TRUNCATE parent, child, apart; INSERT INTO parent VALUES (2)");
        scene.level();
        scene.same(&["first", "second", "parent", "child", "numbered"]);
        // The subscriber keeps its rows of a table that is not published.
        scene.subscribers("INSERT INTO apart VALUES (5, 2)");
        scene.publisher("INSERT INTO child VALUES (2, 2); TRUNCATE parent CASCADE");
        scene.level();
        scene.same(&["parent", "child"]);
        scene.shows("SELECT id FROM apart", "5");
    });
}

/// A publication gives up TRUNCATE, and takes it back, while a subscriber follows.
#[test]
fn publishing_of_truncate_is_switched() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (id int)");
        scene.publisher("CREATE PUBLICATION p FOR TABLE t; INSERT INTO t VALUES (1)");
        scene.subscribe("p", "");
        scene.publisher("ALTER PUBLICATION p SET (publish = 'insert')");
        scene.publisher("TRUNCATE t; INSERT INTO t VALUES (2)");
        scene.level();
        scene.shows("SELECT string_agg(id::text, ' ' ORDER BY id) FROM t", "1 2");
        scene.publisher("ALTER PUBLICATION p SET (publish = 'insert, truncate')");
        scene.publisher("TRUNCATE t; INSERT INTO t VALUES (3)");
        scene.level();
        scene.same(&["t"]);
    });
}
