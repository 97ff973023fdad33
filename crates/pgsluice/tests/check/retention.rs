//! Findings about what the capture of deletions needs of the target.

use serde_json::Value;
use testkit::{Cluster, Pair, StopMode, wait_for};

use crate::{BOUND, Ends, Said, cured, each_major, told};

const RETAIN: &[&str] = &["--retain-dead-tuples"];
const NO_SLOT: &str = "is 2: 2 in use, 0 left, 1 replication slot needed to capture deletions";

#[test]
fn what_the_capture_of_deletions_needs_of_the_target() {
    each_major(|major| {
        let target = Cluster::builder(major)
            .setting("wal_level", "replica")
            .setting("full_page_writes", "off")
            .setting("max_wal_senders", "0")
            .setting("max_replication_slots", "2");
        let mut pair = Pair::with(Cluster::builder(major), target).unwrap();
        pair.both("postgres", "CREATE TABLE t (id int PRIMARY KEY)").unwrap();
        pair.both("postgres", "CREATE PUBLICATION p FOR TABLE t").unwrap();
        let fill = "SELECT pg_create_physical_replication_slot(n) FROM unnest(ARRAY['one', 'two']) n";
        pair.target.sql("postgres", fill).unwrap();
        let ends = Ends { pair: &pair, db: "postgres".to_owned(), role: None };
        let args = [&["--subscription", "s"][..], RETAIN].concat();
        let expected = [
            cured("cannot", "target", "wal_level", "is replica, so WAL does not name deleted rows"),
            cured("cannot", "target", "retain_dead_tuples", "(full_page_writes is off)"),
            cured("cannot", "target", "max_replication_slots", NO_SLOT),
            cured(
                "cannot",
                "target",
                "max_wal_senders",
                "is 0: 0 in use, 0 left, 1 walsender needed to capture deletions",
            ),
        ];
        let said = ends.check(&args);
        let found: Vec<Value> = expected.iter().map(|expected| said.expect(expected).clone()).collect();
        assert!(found.iter().all(|found| found["refuses"] == "never"), "changes flow without: {found:#?}");
        let without = ends.check(&["--subscription", "s"]);
        assert_eq!((without.code, without.worse_than_a_note().len()), (0, 0), "{:#}", without.report);
        in_a_pair(&ends);
        found.iter().for_each(|found| ends.apply(found));
        pair.target.restart(StopMode::Fast).unwrap();
        let ends = Ends { pair: &pair, db: "postgres".to_owned(), role: None };
        let clean = || {
            let said = ends.check(&args);
            assert_eq!((said.code, said.worse_than_a_note().len()), (0, 0), "{:#}", said.report);
        };
        clean();
        // What it needed was all that is left, and it is not asked for a second time.
        let mut running = ends.start(&[&["run"][..], &args].concat());
        let captures =
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgsluice_s_dead' AND active";
        wait_for("capture", BOUND, || Ok(pair.target.one("postgres", captures) == "1")).unwrap();
        wait_for("the stream", BOUND, || Ok(running.stderr().contains("streaming from"))).unwrap();
        let left =
            "SELECT current_setting('max_replication_slots')::int - count(*) FROM pg_replication_slots";
        assert_eq!(pair.target.one("postgres", left), "0");
        clean();
        assert!(running.terminate(BOUND).unwrap().success(), "{}", running.stderr());
        let streams = "SELECT count(*) FROM pg_stat_replication";
        wait_for("the walsender to end", BOUND, || Ok(pair.target.one("postgres", streams) == "0")).unwrap();
        clean();
    });
}

/// The slot of the other direction serves, where it ships WAL.
fn in_a_pair(ends: &Ends<'_>) {
    for (mode, is_asked_for) in [("logical", true), ("wal", false)] {
        let args = ["check", "--json", "--both-ways", "--subscription", "s", "--source-mode", mode];
        let output = ends.call(&[&args[..], RETAIN].concat());
        let first = output.stdout.lines().next().unwrap();
        let said = Said { code: 0, report: serde_json::from_str(first).unwrap() };
        let found = said.find(&told("cannot", "target", "max_replication_slots", NO_SLOT));
        assert_eq!(found.is_some(), is_asked_for, "{mode}: {:#}", said.report);
    }
}

#[test]
fn a_role_a_service_and_an_encoding_without_capture() {
    each_major(|major| {
        let pair = Pair::start(major, major).unwrap();
        let mut ends = Ends::new(&pair, "app");
        pair.both(
            "app",
            "CREATE TABLE t (id int PRIMARY KEY); CREATE ROLE \"the applier\" LOGIN REPLICATION",
        )
        .unwrap();
        pair.source.sql("app", "CREATE PUBLICATION p FOR TABLE t").unwrap();
        pair.target.sql("app", "ALTER ROLE \"the applier\" NOREPLICATION").unwrap();
        let role = cured("cannot", "target", "role the applier", "so deletions cannot be captured");
        ends.role = Some("the%20applier".to_owned());
        assert!(ends.check(&[]).find(&role).is_none());
        let said = ends.check(RETAIN);
        let found = said.expect(&role).clone();
        // A service gives physical WAL to no role.
        pair.target.sql("app", "CREATE ROLE rds_superuser").unwrap();
        let said = ends.check(RETAIN);
        let what = "Amazon RDS sends physical WAL to no client), so an update of a deleted row counts as update_missing";
        let service = told("cannot", "target", "retain_dead_tuples", what);
        let remedy = said.expect(&service)["remedy"].as_str().unwrap();
        assert!(remedy.contains("--conflict update_missing="), "{remedy}");
        assert!(said.find(&role).is_none(), "{:#}", said.report);
        pair.target.sql("app", "DROP ROLE rds_superuser").unwrap();
        ends.apply(&found);
        assert!(ends.check(RETAIN).find(&role).is_none());
        ends.role = None;
        pair.target.sql("postgres", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0").unwrap();
        let latin = pair.target.url("latin");
        let said = ends.check(&[&["--target", &latin][..], RETAIN].concat());
        said.expect(&told(
            "cannot",
            "target",
            "retain_dead_tuples",
            "the database is in LATIN1, not in UTF8",
        ));
    });
}
