//! What a subscriber has of its own: triggers, constraints, roles, and rights on tables.

use testkit::Major;

use crate::stage::{Way, scenario};

#[test]
fn constraints_and_triggers_of_the_subscriber_hold() {
    scenario(Major::V14, |scene| {
        scene.publisher(
            "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int PRIMARY KEY, parent int, v text);
             CREATE PUBLICATION p FOR TABLE parent, child",
        );
        scene.subscribers(
            "CREATE TABLE parent (id int PRIMARY KEY);
             CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE, v text);
             CREATE TABLE log (said text);
             CREATE FUNCTION changes() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF NEW.id = 13 THEN RETURN NULL; END IF;
                 NEW.v := NEW.v || ' (changed)';
                 RETURN NEW;
             END $$;
             CREATE FUNCTION notes() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 INSERT INTO public.log VALUES (TG_NAME || ' ' || TG_OP || ' ' || coalesce(NEW.id, OLD.id));
                 RETURN NULL;
             END $$;
             CREATE TRIGGER changes BEFORE INSERT ON child FOR EACH ROW EXECUTE FUNCTION changes();
             CREATE TRIGGER origin_only AFTER INSERT ON child FOR EACH ROW EXECUTE FUNCTION notes();
             CREATE TRIGGER of_v AFTER UPDATE OF v ON child FOR EACH ROW EXECUTE FUNCTION notes();
             CREATE TRIGGER of_parent AFTER UPDATE OF parent ON child FOR EACH ROW EXECUTE FUNCTION notes();
             CREATE TRIGGER removes AFTER DELETE ON child FOR EACH ROW EXECUTE FUNCTION notes();
             ALTER TABLE child ENABLE REPLICA TRIGGER changes, ENABLE ALWAYS TRIGGER of_v,
                 ENABLE ALWAYS TRIGGER of_parent, ENABLE REPLICA TRIGGER removes",
        );
        scene.subscribe("p", "");
        // There is no parent 7, and no row 13 at the subscriber.
        scene.publisher("INSERT INTO parent VALUES (1), (2)");
        scene.publisher(
            "INSERT INTO child VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 7, 'three'), (13, 1, 'thirteen')",
        );
        scene.publisher(
            "UPDATE child SET v = 'ONE' WHERE id = 1; UPDATE child SET parent = 1 WHERE id IN (2, 13)",
        );
        scene.publisher("DELETE FROM parent WHERE id = 1; DELETE FROM child WHERE id = 3");
        scene.level();
        scene.shows("SELECT * FROM child ORDER BY id", "1|1|ONE, 2|1|two");
        scene.shows("SELECT * FROM parent", "2");
        scene.alike("SELECT said FROM log ORDER BY said");
        scene.shows(
            "SELECT count(*) FROM log WHERE said = 'removes DELETE 3' OR said LIKE 'origin_only%'",
            "1",
        );
    });
}

#[test]
fn a_check_that_fails_stops_a_subscription_until_it_is_gone() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY, n int)");
        scene.publisher("CREATE PUBLICATION p FOR TABLE t");
        scene.subscribe("p", "");
        scene.subscribers("ALTER TABLE t ADD CONSTRAINT positive CHECK (n > 0)");
        scene.publisher("INSERT INTO t VALUES (1, 1); INSERT INTO t VALUES (2, -2)");
        scene.logged("violates check constraint \"positive\"");
        scene.shows("SELECT count(*) FROM t", "0");
        scene.subscribers("ALTER TABLE t DROP CONSTRAINT positive");
        scene.level();
        scene.same(&["t"]);
    });
}

/// The owner of a subscription without rights on a table, as a superuser no more.
#[test]
fn an_owner_without_rights_is_stopped_until_it_has_them() {
    scenario(Major::V15, |scene| {
        scene.everywhere(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE guarded (id int PRIMARY KEY)",
        );
        scene.publisher("INSERT INTO t VALUES (1, 'one'); CREATE PUBLICATION p FOR TABLE t, guarded");
        scene.subscribe("p", "");
        scene.subscribers("CREATE ROLE {sub} SUPERUSER LOGIN");
        scene.subscribers("ALTER TABLE t OWNER TO {sub}; ALTER TABLE mark OWNER TO {sub}");
        scene.subscribers("ALTER SUBSCRIPTION {sub} OWNER TO {sub}");
        scene.subscribers("ALTER ROLE {sub} NOSUPERUSER");
        scene.publisher("UPDATE t SET v = 'two'");
        scene.level();
        scene.same(&["t"]);
        scene.publisher("INSERT INTO guarded VALUES (1)");
        // From 16 on a worker becomes the owner of the table, if it may.
        let refused = if scene.major >= Major::V16 {
            "cannot SET ROLE to"
        } else {
            "permission denied for table guarded"
        };
        scene.logged(refused);
        scene.subscribers("ALTER TABLE guarded OWNER TO {sub}");
        scene.level();
        scene.same(&["guarded"]);
        // Its own rights do not help it past the row security of somebody else.
        scene.subscribers("ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY");
        scene.publisher("UPDATE t SET v = 'three'");
        scene.logged("row-level security enabled");
        scene.subscribers("ALTER TABLE t DISABLE ROW LEVEL SECURITY");
        scene.level();
        scene.same(&["t"]);
        scene.subscribers("ALTER SUBSCRIPTION {sub} OWNER TO postgres");
    });
}

/// As who a trigger runs: the owner of the table, or of the subscription if that is asked for.
#[test]
fn changes_are_applied_as_the_owner_of_the_table() {
    scenario(Major::V16, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY)");
        scene.publisher("CREATE PUBLICATION p FOR TABLE t");
        scene.subscribers(
            "CREATE ROLE {sub}; CREATE TABLE log (id int, said text); GRANT INSERT ON log TO public;
             CREATE FUNCTION notes() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 INSERT INTO public.log VALUES (NEW.id, current_user);
                 RETURN NULL;
             END $$;
             CREATE TRIGGER notes AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION notes();
             ALTER TABLE t ENABLE REPLICA TRIGGER notes; ALTER TABLE t OWNER TO {sub}",
        );
        scene.subscribe("p", "");
        scene.publisher("INSERT INTO t VALUES (1)");
        scene.level();
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET (run_as_owner = true)");
        scene.publisher("INSERT INTO t VALUES (2)");
        scene.level();
        for way in Way::BOTH {
            let expected = format!("1|{}, 2|postgres", scene.sub(way));
            assert_eq!(scene.rows(way, "SELECT * FROM log ORDER BY id"), expected);
        }
    });
}

/// A subscription of an ordinary role must log in with a password, which the relay asks for.
#[test]
fn an_ordinary_role_makes_a_subscription() {
    scenario(Major::V16, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY)");
        scene.publisher("INSERT INTO t VALUES (1); CREATE PUBLICATION p FOR TABLE t");
        scene.subscribers(
            "CREATE ROLE {sub} LOGIN IN ROLE pg_create_subscription; ALTER TABLE t OWNER TO {sub}; ALTER TABLE mark OWNER TO {sub};
             GRANT CREATE ON DATABASE {sub} TO {sub}",
        );
        for way in Way::BOTH {
            let create = |place: &str| {
                let options = "enabled = false, create_slot = false, slot_name = NONE";
                let sql = format!(
                    "CREATE SUBSCRIPTION {{sub}} CONNECTION '{place}' PUBLICATION p, marks WITH ({options})"
                );
                scene.try_at(way, &format!("SET ROLE {{sub}}; {sql}"))
            };
            let place = scene.conninfo(way, scene.database());
            let refused = create(&place.replace("password=geheim", "")).expect_err("it has no password");
            assert!(refused.contains("password is required"), "{refused}");
            create(&place).unwrap();
            scene.create_slot(way, &scene.sub(way));
            scene.at(way, "ALTER SUBSCRIPTION {sub} SET (slot_name = '{sub}')");
            scene.at(way, "ALTER SUBSCRIPTION {sub} ENABLE");
        }
        scene.ready();
        scene.publisher("INSERT INTO t VALUES (2)");
        scene.level();
        scene.same(&["t"]);
    });
}
