//! Rules F5 and F6: triggers and rules that fire for replicas, row level security, roles without
//! superuser rights.

use std::sync::{Mutex, PoisonError};

use crate::support::{FOLDED, scenario, scenario_with};

const NOTE: &str = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE log (n serial, what text); \
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
      INSERT INTO public.log (what) VALUES (lower(TG_OP) || ' ' || coalesce(CASE TG_LEVEL WHEN 'ROW' THEN \
        CASE TG_OP WHEN 'DELETE' THEN OLD.v ELSE NEW.v END END, 'statement')); \
      RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END; END $$;";

/// Everything the triggers saw, in order.
const SEEN: &str = "SELECT coalesce(string_agg(what, ', ' ORDER BY n), '') FROM log";

#[test]
fn f5_row_triggers_for_replicas_see_every_change_in_order() {
    for enable in ["ALWAYS", "REPLICA"] {
        scenario(|s| {
            s.source("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.target(&format!("{NOTE} CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note(); ALTER TABLE t ENABLE {enable} TRIGGER note"));
            s.follow();
            s.source(
                "INSERT INTO t VALUES (1, 'a'); UPDATE t SET v = 'b'; UPDATE t SET v = 'c'; DELETE FROM t; \
                 INSERT INTO t VALUES (1, 'd'); DELETE FROM t; INSERT INTO t VALUES (2, 'e')",
            );
            s.catch_up();
            s.same();
            assert_eq!(
                s.target_one(SEEN),
                "insert a, update b, update c, delete c, insert d, delete d, insert e"
            );
        });
    }
}

#[test]
fn f5_statement_triggers_for_replicas_fire_for_every_change() {
    scenario(|s| {
        s.source("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.target(&format!("{NOTE} CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON t EXECUTE FUNCTION note(); ALTER TABLE t ENABLE ALWAYS TRIGGER note"));
        s.follow();
        // The copy was a statement as well, as it is in native apply.
        s.target("TRUNCATE log");
        s.source("INSERT INTO t VALUES (1, 'a'), (2, 'b'); UPDATE t SET v = 'c' WHERE id = 1; TRUNCATE t; INSERT INTO t VALUES (3, 'd')");
        s.catch_up();
        s.same();
        let seen =
            "insert statement, insert statement, update statement, truncate statement, insert statement";
        assert_eq!(s.target_one(SEEN), seen);
    });
}

/// What a firing trigger of one table looks up in another is as the source had it.
#[test]
fn f5_a_firing_trigger_is_a_barrier_for_other_tables() {
    scenario(|s| {
        s.both("CREATE TABLE prices (id int PRIMARY KEY, price int); CREATE TABLE orders (id int PRIMARY KEY, price_id int)");
        s.target(
            "CREATE TABLE seen (id int, price int); CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO public.seen SELECT NEW.id, (SELECT price FROM public.prices p WHERE p.id = NEW.price_id); RETURN NEW; END $$; \
             CREATE TRIGGER look BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION look(); ALTER TABLE orders ENABLE ALWAYS TRIGGER look",
        );
        s.follow();
        s.source(
            "INSERT INTO prices VALUES (1, 10); INSERT INTO orders VALUES (1, 1); UPDATE prices SET price = 20; \
             INSERT INTO orders VALUES (2, 1); DELETE FROM prices; INSERT INTO orders VALUES (3, 1)",
        );
        s.catch_up();
        assert_eq!(
            s.target_one("SELECT string_agg(id || ':' || coalesce(price, -1), ' ' ORDER BY id) FROM seen"),
            "1:10 2:20 3:-1"
        );
    });
}

/// A BEFORE trigger that returns NULL is no missing row.
#[test]
fn f6_a_swallowed_change_is_no_conflict() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO t VALUES (1, 'a'), (2, 'keep')");
        s.follow();
        s.stop();
        s.target(
            "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF coalesce(OLD.v, NEW.v) = 'keep' THEN RETURN NULL; END IF; RETURN coalesce(NEW, OLD); END $$; \
             CREATE TRIGGER swallow BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION swallow(); \
             ALTER TABLE t ENABLE ALWAYS TRIGGER swallow",
        );
        s.follow();
        s.source("UPDATE t SET v = v || '!'; DELETE FROM t; INSERT INTO t VALUES (3, 'keep'), (4, 'b')");
        s.catch_up();
        assert_eq!(s.target_one("SELECT string_agg(id || v, ' ' ORDER BY id) FROM t"), "2keep 4b");
        assert_eq!(
            s.conflicts("update_missing") + s.conflicts("delete_missing") + s.conflicts("insert_exists"),
            0
        );
    });
}

#[test]
fn f5_ordinary_triggers_and_foreign_keys_do_not_fire() {
    scenario(|s| {
        s.source("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE r (id int PRIMARY KEY, t int)");
        s.target(&format!("{NOTE} CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note(); CREATE TABLE r (id int PRIMARY KEY, t int REFERENCES t ON DELETE CASCADE)"));
        s.source("INSERT INTO r VALUES (1, 5); INSERT INTO t VALUES (5, 'a')");
        s.live(&[
            "INSERT INTO r VALUES (2, 77); INSERT INTO t VALUES (6, 'b')",
            "DELETE FROM t WHERE id = 5",
        ]);
        assert_eq!(s.target_one(SEEN), "");
    });
}

#[test]
fn f5_rules_for_replicas_are_refused_by_name() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)");
        s.target("CREATE RULE odd AS ON UPDATE TO t DO ALSO DELETE FROM other; ALTER TABLE t ENABLE ALWAYS RULE odd; CREATE RULE idle AS ON INSERT TO other DO INSTEAD NOTHING");
        s.follow();
        s.source("INSERT INTO other VALUES (1)");
        s.catch_up();
        s.same();
        s.source("INSERT INTO t VALUES (1, 'a')");
        s.wait_for_log("rule \"odd\" of table \"public.t\"");
        s.target("ALTER TABLE t DISABLE RULE odd");
        s.catch_up();
        s.same();
    });
}

/// Rights on a parameter are one row for all databases of a cluster, which two sessions cannot
/// change at a time ("tuple concurrently updated").
static PARAMETERS: Mutex<()> = Mutex::new(());

/// Grants as documented: on the source REPLICATION and SELECT, on the target the tables, the origin
/// functions, a schema, and (15 and later) `session_replication_role`.
fn with_ordinary_roles(extra: &[&str], also: &str, check: impl Fn(&mut crate::support::Scenario) + Sync) {
    scenario_with(&[&[&["--max-sync-workers-per-subscription", "2"], extra].concat()], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i");
        s.publish("FOR TABLE t, mark");
        let role = format!("role_{}", s.name(0));
        s.source(&format!("CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON t, mark TO {role}"));
        let db = s.name(0).to_owned();
        s.target(&format!(
            "CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE {db} TO {role}; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON t, mark TO {role}; \
             GRANT EXECUTE ON FUNCTION pg_replication_origin_create(text), pg_replication_origin_drop(text), pg_replication_origin_oid(text), \
               pg_replication_origin_session_setup(text{pid}), pg_replication_origin_session_reset(), pg_replication_origin_xact_setup(pg_lsn, timestamptz), \
               pg_replication_origin_progress(text, boolean), pg_replication_origin_advance(text, pg_lsn) TO {role}; \
             GRANT SELECT ON pg_replication_origin, pg_replication_origin_status TO {role}",
            pid = if s.major() >= 19 { ", integer" } else { "" }
        ));
        {
            let _one = PARAMETERS.lock().unwrap_or_else(PoisonError::into_inner);
            if s.major() >= 15 && also.is_empty() {
                s.target(&format!("GRANT SET ON PARAMETER session_replication_role TO {role}"));
            }
            s.target(&also.replace("ROLE", &role));
        }
        s.run_with(|command| {
            let ends = command
                .get_envs()
                .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
                .collect::<Vec<_>>();
            for (name, value) in ends {
                if name == "PGSLUICE_SOURCE" || name == "PGSLUICE_TARGET" {
                    let value = value.unwrap().into_string().unwrap();
                    command.env(name, value.replace("postgres://postgres@", &format!("postgres://{role}@")));
                }
            }
        });
        check(s);
        s.kill();
        let _one = PARAMETERS.lock().unwrap_or_else(PoisonError::into_inner);
        s.target(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
        s.source(&format!("DROP OWNED BY {role}"));
    });
}

#[test]
fn f6_roles_without_superuser() {
    with_ordinary_roles(&[], "", |s| {
        if s.major() < 15 {
            let (code, log) = s.ended().remove(0);
            assert!(code == 1 && log.contains("--allow-triggers"), "{code} {log}");
            return;
        }
        s.live(&[
            "UPDATE t SET v = 'w' WHERE id % 2 = 0; DELETE FROM t WHERE id % 5 = 0",
            "INSERT INTO t VALUES (1000, 'n')",
            "TRUNCATE t; INSERT INTO t VALUES (1, 'x')",
        ]);
        s.stop();
    });
}

#[test]
fn f6_without_the_right_to_be_a_replica_it_refuses() {
    with_ordinary_roles(
        &[],
        "REVOKE ALL ON t FROM ROLE; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON t TO ROLE",
        |s| {
            let (code, log) = s.ended().remove(0);
            assert!(
                code == 1 && log.contains("session_replication_role") && log.contains("--allow-triggers"),
                "{code} {log}"
            );
        },
    );
}

#[test]
fn f6_allow_triggers_lets_triggers_fire() {
    let also = "CREATE TABLE log (n serial, what text); GRANT ALL ON log TO ROLE; GRANT ALL ON SEQUENCE log_n_seq TO ROLE; \
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.log (what) VALUES (TG_OP || NEW.id); \
        RETURN NEW; END $$; CREATE TRIGGER note BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note()";
    with_ordinary_roles(&["--allow-triggers"], also, |s| {
        s.live(&[
            "UPDATE t SET v = 'w' WHERE id < 3; UPDATE t SET v = 'x' WHERE id < 3",
            "DELETE FROM t WHERE id = 1",
        ]);
        assert_eq!(s.target_one(SEEN), "UPDATE1, UPDATE2, UPDATE1, UPDATE2");
        s.stop();
    });
}

/// Policies would hide rows silently; that is an error which names the table.
#[test]
fn f6_row_level_security_is_an_error_not_a_missing_row() {
    let also = "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY half ON t USING (id % 2 = 0); \
        GRANT SET ON PARAMETER session_replication_role TO ROLE";
    if testkit::Major::under_test().iter().any(|major| major.number() < 15) {
        return;
    }
    with_ordinary_roles(&["--copy-data", "off"], also, |s| {
        s.wait_for_log("streaming from");
        s.source("UPDATE t SET v = 'w'");
        s.wait_for_log("row-level security policy for table \"t\"");
        assert_eq!(s.conflicts("update_missing"), 0);
    });
}

#[test]
fn row_level_security_does_not_bother_a_superuser() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.target("ALTER TABLE t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY none ON t USING (false)");
        s.source("INSERT INTO t VALUES (1, 'a')");
        s.live(&["INSERT INTO t VALUES (2, 'b'); UPDATE t SET v = 'c'; DELETE FROM t WHERE id = 1"]);
    });
}
