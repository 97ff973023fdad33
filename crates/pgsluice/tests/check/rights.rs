//! Findings about privileges, and about a subscription that exists already.

use serde_json::Value;
use std::time::Duration;

use testkit::{Pair, assert_same_rows, wait_for};

use crate::{BOUND, Ends, Said, each_major, told};

/// Enough connections to reach the limits.
const COPYING: &[&str] = &["--max-sync-workers-per-subscription", "4"];

/// A role that may do nothing is led, check by check, to one that replicates.
#[test]
fn the_remedies_lead_an_unprivileged_role_to_replication() {
    each_major(|major| {
        let pair = Pair::start(major, major).unwrap();
        let mut ends = Ends::new(&pair, "app");
        let tables = "CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)";
        pair.both(
            "app",
            &format!("{tables}; CREATE ROLE sluice LOGIN; REVOKE ALL ON SCHEMA public FROM public"),
        )
        .unwrap();
        pair.source
            .sql(
                "app",
                "ALTER TABLE s.t ENABLE ROW LEVEL SECURITY; INSERT INTO s.t VALUES (1, 'a'), (2, 'b'); INSERT INTO u VALUES (7);
                 CREATE PUBLICATION p FOR TABLE s.t, u",
            )
            .unwrap();
        pair.target.sql("app", "ALTER TABLE u ENABLE ROW LEVEL SECURITY").unwrap();
        ends.role = Some("sluice".to_owned());
        let first = ends.check(&[]);
        for expected in [
            told("cannot", "source", "role sluice", "may not replicate"),
            told("cannot", "source", "tables public.u, s.t", "has no SELECT"),
            told("cannot", "source", "schema public, s", "has no USAGE"),
            told("cannot", "source", "table s.t", "row level security"),
            told("cannot", "target", "schema public, s", "has no USAGE"),
            told("cannot", "target", "tables public.u, s.t", "has no INSERT"),
            told("cannot", "target", "tables public.u, s.t", "has no UPDATE"),
            told("cannot", "target", "tables public.u, s.t", "has no DELETE"),
            told("cannot", "target", "tables public.u, s.t", "has no TRUNCATE"),
            told("cannot", "target", "tables public.u, s.t", "has no SELECT"),
            told("cannot", "target", "table public.u", "row level security"),
            told("cannot", "target", "schema pgsluice", "cannot be made"),
            told("cannot", "target", "replication origin functions", "may not be called"),
            told("cannot", "target", "session_replication_role", "cannot be set"),
        ] {
            first.expect(&expected);
        }
        // Refused with everything at once, and nothing is made.
        let refused = ends.call(&["run"]);
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        for found in first.findings().iter().filter(|found| found["severity"] == "cannot") {
            for part in [&found["object"], &found["what"], &found["sql"][0]] {
                assert!(refused.stderr.contains(part.as_str().unwrap()), "{part} in {}", refused.stderr);
            }
        }
        let slots = pair.source.one("app", "SELECT count(*) FROM pg_replication_slots");
        let schemas = pair.target.one("app", "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgsluice'");
        assert_eq!((slots.as_str(), schemas.as_str()), ("0", "0"));
        for found in first.findings() {
            ends.apply(found);
        }
        let second = ends.check(&[]);
        assert_eq!((second.code, second.worse_than_a_note().len()), (0, 0), "{:#}", second.report);
        connection_limits(&ends);
        let mut running = ends.start(&[&["run"], COPYING].concat());
        let arrived = "SELECT (SELECT count(*) FROM s.t) + (SELECT count(*) FROM u)";
        wait_for("the copy", BOUND, || Ok(pair.target.one("app", arrived) == "3")).unwrap();
        pair.source.sql("app", "UPDATE s.t SET v = 'c' WHERE id = 1; DELETE FROM s.t WHERE id = 2; TRUNCATE u; INSERT INTO u VALUES (8), (9)").unwrap();
        wait_for("the changes", BOUND, || {
            Ok(pair.target.one("app", "SELECT count(*) FROM u WHERE id > 7") == "2")
        })
        .unwrap();
        assert_same_rows(&pair.source, &pair.target, "app", "s.t");
        assert!(!running.stderr().contains("too many connections"), "{}", running.stderr());
        continued(&ends);
        assert!(running.terminate(Duration::from_secs(10)).unwrap().success());
        disabled_or_lost(&ends);
    });
}

/// Connection limits of the role and of the database, which hold for everybody but superusers.
/// Those of the role stay as the remedy left them: a subscription must be able to live within them.
fn connection_limits(ends: &Ends<'_>) {
    // Sessions that are asked for by us end a moment after we have their answer.
    let others =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = 'app' AND backend_type = 'client backend'";
    for (end, [least, most]) in [("source", [5, 8]), ("target", [3, 5])] {
        let server = ends.at(end);
        for whose in ["database app", "role sluice"] {
            let object = ["CONNECTION LIMIT of", whose].join(" ");
            let limit =
                |limit: i32| server.sql("app", &format!("ALTER {whose} CONNECTION LIMIT {limit}")).unwrap();
            let check = || {
                wait_for("nobody else", BOUND, || Ok(server.one("postgres", others) == "0")).unwrap();
                ends.check(COPYING)
            };
            let of_limit = |said: &Said, severity: &str| {
                let is_meant = |own: &&Value| own["object"] == object && own["severity"] == severity;
                let found = said.findings().iter().find(is_meant).cloned();
                found.unwrap_or_else(|| panic!("no {severity} for {object} of the {end}: {:#}", said.report))
            };
            limit(least - 1);
            // The target's remedy before 15; superusers are above such limits.
            if server.one("app", "SELECT rolsuper FROM pg_roles WHERE rolname = 'sluice'") == "t" {
                let said = check();
                assert!(said.findings().iter().all(|own| own["object"] != object), "{:#}", said.report);
                limit(-1);
                continue;
            }
            let refused = of_limit(&check(), "cannot");
            assert!(
                refused["what"].as_str().unwrap().contains(&format!("{least} to {most} are needed")),
                "{refused:#}"
            );
            limit(most - 1);
            let fewer = of_limit(&check(), "warning");
            assert!(fewer["what"].as_str().unwrap().contains("continues with fewer"), "{fewer:#}");
            ends.apply(&fewer);
            let left = check().findings().iter().find(|own| own["object"] == object).cloned();
            assert!(left.is_none(), "its remedy did not help: {left:#?}");
            if whose.starts_with("database") {
                limit(-1);
            }
        }
    }
}

/// A subscription that runs is checked as one that is continued.
fn continued(ends: &Ends<'_>) {
    let said = ends.check(&[]);
    said.expect(&told("note", "target", "subscription app", "is running: 2 tables, 0 not copied yet"));
    assert_eq!((said.code, said.worse_than_a_note().len()), (0, 0), "{:#}", said.report);
}

fn disabled_or_lost(ends: &Ends<'_>) {
    ends.call(&["disable"]).expect_success();
    let expected = told("cannot", "target", "subscription app", "is disabled");
    ends.check(&[]).expect(&expected);
    assert_eq!(ends.call(&["run"]).status.code(), Some(4));
    ends.call(&["enable"]).expect_success();
    assert!(ends.check(&[]).find(&expected).is_none());
    let drop = "SELECT pg_drop_replication_slot('pgsluice_app')";
    wait_for("the slot to be free", BOUND, || Ok(ends.pair.source.sql("app", drop).is_ok())).unwrap();
    ends.check(&[]).expect(&told(
        "cannot",
        "source",
        "replication slot pgsluice_app",
        "does not exist any more",
    ));
    ends.pair.target.sql("app", "UPDATE pgsluice.subscription SET source_sysid = '1'").unwrap();
    ends.check(&[]).expect(&told("cannot", "target", "subscription app", "system identifier 1,"));
    // A new one is refused for a table that is missing, this one for its slot alone.
    ends.pair
        .source
        .sql("app", "CREATE TABLE later (id int PRIMARY KEY); ALTER PUBLICATION p ADD TABLE later")
        .unwrap();
    let refused = ends.call(&["run"]);
    assert!(
        refused.status.code() == Some(1) && refused.stderr.contains("give the right --source"),
        "{}",
        refused.stderr
    );
    assert!(!refused.stderr.contains("cannot replicate as they are"), "{}", refused.stderr);
}
