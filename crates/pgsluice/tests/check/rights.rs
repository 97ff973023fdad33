//! Findings of privileges, and a subscription that exists already.

use std::time::Duration;

use testkit::{Pair, assert_same_rows, wait_for};

use crate::{BOUND, Ends, each_major, told};

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
        let mut running = ends.start(&["run"]);
        let arrived = "SELECT (SELECT count(*) FROM s.t) + (SELECT count(*) FROM u)";
        wait_for("the copy", BOUND, || Ok(pair.target.one("app", arrived) == "3")).unwrap();
        pair.source.sql("app", "UPDATE s.t SET v = 'c' WHERE id = 1; DELETE FROM s.t WHERE id = 2; TRUNCATE u; INSERT INTO u VALUES (8), (9)").unwrap();
        wait_for("the changes", BOUND, || {
            Ok(pair.target.one("app", "SELECT count(*) FROM u WHERE id > 7") == "2")
        })
        .unwrap();
        assert_same_rows(&pair.source, &pair.target, "app", "s.t");
        continued(&ends);
        assert!(running.terminate(Duration::from_secs(10)).unwrap().success());
        disabled_or_lost(&ends);
    });
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
