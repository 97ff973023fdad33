//! Roles: what they may do while the schema is created, and what they own afterwards.

use super::{left_behind, on_an_empty_target, start};

/// Roles that may not enough, on either end.
#[test]
fn rights_that_are_missing_are_named_and_nothing_is_left() {
    on_an_empty_target(|s, pg_dump| {
        let role = format!("{}_weak", s.name(0));
        s.source(&format!("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE secret (id int); CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON t, mark TO {role}"));
        s.source("CREATE SCHEMA other; CREATE TABLE other.t (id int PRIMARY KEY)");
        s.source(&format!("GRANT USAGE ON SCHEMA other TO {role}; GRANT SELECT ON other.t TO {role}"));
        s.publish("FOR TABLE t, mark, other.t");
        s.target(&format!("CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC"));
        let weak = |url: String| url.replace("postgres@", &format!("{role}@"));
        let flags = ["--publication", "p", "--create-schema", "--pg-dump", pg_dump, "--allow-triggers"];
        let (source, target) = (weak(s.source_url()), weak(s.target_url(0)));
        let words: [(&str, &str, &[&str]); 2] = [
            (
                "--target",
                &target,
                &[
                    "schema public: tables cannot be created",
                    "GRANT CREATE ON SCHEMA \"public\"",
                    "schema other cannot be created",
                    "GRANT CREATE ON DATABASE",
                ],
            ),
            ("--source", &source, &["permission denied", "secret", "pg_read_all_data"]),
        ];
        for (end, url, words) in words {
            let args = [&["run", end, url], flags.as_slice()].concat();
            let refused = s.call(0, &args);
            assert!(!refused.status.success(), "{}", refused.stderr);
            assert!(
                words.iter().all(|word| refused.stderr.contains(word)),
                "{words:?} in: {}",
                refused.stderr
            );
            assert_eq!(left_behind(s), [""; 0], "{}", refused.stderr);
        }
        // A role that may create owns everything, and pgsluice reports that.
        s.target(&format!("GRANT CREATE ON SCHEMA public TO {role}"));
        s.target(&format!(
            "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$"
        ));
        s.target(&format!(
            "GRANT EXECUTE ON FUNCTION pg_replication_origin_create(text), pg_replication_origin_drop(text),
               pg_replication_origin_session_setup(text), pg_replication_origin_xact_setup(pg_lsn, timestamptz),
               pg_replication_origin_session_reset(), pg_replication_origin_progress(text, boolean) TO {role}"
        ));
        s.run_with(|command| {
            command.args(["--target", &target]).args(&flags[2..]);
        });
        s.catch_up();
        let owner = "SELECT string_agg(DISTINCT pg_get_userbyid(relowner), ',') FROM pg_class WHERE relname IN ('t', 'secret', 'mark')";
        assert_eq!(s.target_one(owner), role);
        let log = s.log(0);
        assert!(log.contains("leaves out owners and privileges") && log.contains("is no superuser"), "{log}");
        s.stop();
        s.target(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
        s.source(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    });
}

/// Roles that both servers have keep what is theirs; one that is missing is named.
#[test]
fn owners_and_privileges_are_kept_if_the_target_has_the_roles() {
    for there in [true, false] {
        on_an_empty_target(|s, pg_dump| {
            let (owner, reader) = (format!("{} owner", s.name(0)), format!("{}_reader", s.name(0)));
            let roles = format!("CREATE ROLE \"{owner}\"; CREATE ROLE {reader}");
            s.source(&roles);
            s.source(&format!(
                "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO \"{owner}\"; GRANT SELECT (id) ON t TO {reader};
                 CREATE TABLE u (id int PRIMARY KEY); GRANT SELECT, UPDATE ON u TO {reader} WITH GRANT OPTION;
                 ALTER DEFAULT PRIVILEGES FOR ROLE \"{owner}\" GRANT SELECT ON TABLES TO {reader}"
            ));
            let missing = reader.clone();
            s.target(if there { &roles } else { "SELECT 1" });
            start(s, pg_dump);
            s.catch_up();
            s.live(&["INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)"]);
            let acl = "SELECT string_agg(o, ' ' ORDER BY o) FROM (SELECT relname || pg_get_userbyid(relowner) || coalesce(relacl::text, '') ||
                       coalesce((SELECT string_agg(attacl::text, '') FROM pg_attribute WHERE attrelid = c.oid), '')
                       FROM pg_class c WHERE relname IN ('t', 'u') AND relkind = 'r' UNION ALL SELECT defaclacl::text FROM pg_default_acl) AS o (o)";
            let (source, target) = (s.source_one(acl), s.target_one(acl));
            let warned = s.log(0).contains(&format!("the target has no role {owner}, {missing}"));
            assert_eq!((source == target, warned), (there, !there), "{source}\n{target}\n{}", s.log(0));
            s.stop();
            for role in [owner, reader] {
                let drop = format!("DROP OWNED BY \"{role}\"; DROP ROLE \"{role}\"");
                s.source(&drop);
                s.target(if there { &drop } else { "SELECT 1" });
            }
        });
    }
}
