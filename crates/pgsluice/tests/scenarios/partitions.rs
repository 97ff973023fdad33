//! Events that a publication through the root hides, reported when they happen. They are leaves
//! that are attached, detached or emptied as tables, and replica identities that differ between
//! root and leaf.

use serde_json::Value;
use testkit::{Major, wait_for};

use crate::support::{BOUND, Scenario, scenario_on, scenario_with};

/// Both source modes, with a short refresh interval.
const OFTEN: &[&[&str]] = &[
    &["--refresh-interval", "200ms", "--source-mode", "logical"],
    &["--refresh-interval", "200ms", "--source-mode", "wal"],
];

/// Waits until `status` mentions `partition`, and returns its entry.
#[track_caller]
fn told(s: &Scenario, number: usize, partition: &str) -> Value {
    let mut seen = Value::Null;
    let found = wait_for("a partition to be told", BOUND, || {
        seen = s.status(number)["refresh"]["partitions"].clone();
        let own = seen.as_array().into_iter().flatten().find(|own| own["partition"] == partition).cloned();
        Ok(own.map(|own| seen = own).is_some())
    });
    assert!(found.is_ok(), "{found:?}: {seen:#}\n{}", s.log(number));
    seen
}

/// The statement after `on the END: `, up to the next one.
fn statement<'a>(told: &'a Value, end: &str) -> &'a str {
    let remedy = told["remedy"].as_str().unwrap();
    let (_, sql) =
        remedy.split_once(&format!("on the {end}: ")).unwrap_or_else(|| panic!("no SQL: {told:#}"));
    sql.split_once("; then, as the source").map_or(sql, |(sql, _)| sql)
}

/// Waits until `refresh` reports no difference.
#[track_caller]
fn level(s: &Scenario) {
    for number in 0..s.followers() {
        let level = wait_for("nothing to differ", BOUND, || {
            Ok(s.call(number, &["refresh"]).status.code() == Some(0)
                && s.status(number)["refresh"]["partitions"].as_array().is_some_and(Vec::is_empty))
        });
        assert!(level.is_ok(), "{level:?}\n{}", s.log(number));
    }
}

/// Checks that every follower reports `partition` with `words` and the root, in the log as well,
/// and with the same remedy.
#[track_caller]
fn told_by_all(s: &mut Scenario, partition: &str, root: &str, words: &str) -> Value {
    let all: Vec<Value> = (0..s.followers()).map(|number| told(s, number, partition)).collect();
    for (number, own) in all.iter().enumerate() {
        assert!(own["what"].as_str().unwrap().contains(words), "{own:#}");
        assert_eq!(own["root"], root);
        let printed = s.call(number, &["refresh"]);
        assert_eq!(printed.status.code(), Some(6), "{printed:?}");
        assert!(printed.stdout.contains(own["remedy"].as_str().unwrap()), "{printed:?}");
        let status = s.call(number, &["status"]).stdout;
        assert!(status.contains(&format!(" partition {partition} of {root}: ")), "{status}");
        assert!(status.contains(own["remedy"].as_str().unwrap()), "{status}");
    }
    s.wait_for_log(&format!("partition {partition} of {root}: "));
    assert_eq!(all[0]["remedy"], all[all.len() - 1]["remedy"]);
    all[0].clone()
}

/// ATTACH with rows, TRUNCATE, DETACH and DROP are reported by name, and the printed statements
/// repair them; also those that happened while pgsluice was stopped.
#[test]
fn leaves_that_come_go_or_are_emptied_as_tables_are_told_with_a_remedy_that_works() {
    scenario_with(OFTEN, |s| {
        s.source(
            "CREATE TABLE root (id int PRIMARY KEY, v text, twice int GENERATED ALWAYS AS (id * 2) STORED) PARTITION BY RANGE (id); \
             CREATE TABLE p0 PARTITION OF root FOR VALUES FROM (0) TO (100); \
             CREATE TABLE p1 PARTITION OF root FOR VALUES FROM (100) TO (200); \
             INSERT INTO root SELECT i, 'copied' FROM generate_series(1, 150) i",
        );
        s.target("CREATE TABLE root (id int PRIMARY KEY, v text)");
        s.publish("FOR TABLE root, mark WITH (publish_via_partition_root)");
        s.follow();
        // Replicated changes, and new files for other reasons, are not reported.
        s.source(
            "CREATE TABLE p2 PARTITION OF root FOR VALUES FROM (200) TO (300); \
             INSERT INTO root SELECT i, 'streamed' FROM generate_series(200, 250) i",
        );
        s.source("VACUUM FULL p0");
        s.catch_up();
        level(s);
        assert!(!s.log(0).contains("partition public."), "{}", s.log(0));

        s.source(
            "CREATE TABLE p3 (v text, id int NOT NULL, twice int GENERATED ALWAYS AS (id * 2) STORED); \
             INSERT INTO p3 SELECT 'before', i FROM generate_series(300, 320) i; \
             ALTER TABLE root ATTACH PARTITION p3 FOR VALUES FROM (300) TO (400)",
        );
        let attached = told_by_all(s, "public.p3", "public.root", "rows that the target does not have");
        // Streamed transactions at the same time.
        s.source("INSERT INTO root SELECT i, 'after' FROM generate_series(321, 330) i");
        s.source(statement(&attached, "source"));
        s.catch_up();
        level(s);

        s.source("TRUNCATE p1");
        let emptied = told_by_all(s, "public.p1", "public.root", "emptied on the source by TRUNCATE");
        s.target(statement(&emptied, "target"));
        level(s);

        // No follower runs.
        s.stop();
        s.source("ALTER TABLE root DETACH PARTITION p2");
        s.source(
            "CREATE TABLE p4 (id int NOT NULL, v text, twice int GENERATED ALWAYS AS (id * 2) STORED); \
             INSERT INTO p4 VALUES (400, 'unseen'); \
             ALTER TABLE root ATTACH PARTITION p4 FOR VALUES FROM (400) TO (500); \
             CREATE TRIGGER quiet BEFORE DELETE ON p4 FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        );
        s.run();
        let detached = told_by_all(s, "public.p2", "public.root", "detached on the source");
        let unseen = told_by_all(s, "public.p4", "public.root", "rows that the target does not have");
        // The rows of the detached partition were replaced meanwhile.
        s.source(
            "CREATE TABLE again PARTITION OF root FOR VALUES FROM (200) TO (300); INSERT INTO root VALUES (299, 'new')",
        );
        let wait = wait_for("the remedy to count with new rows", BOUND, || {
            Ok((0..s.followers())
                .all(|n| told(s, n, "public.p2")["remedy"].as_str().unwrap().contains("then, as")))
        });
        wait.unwrap();
        let replaced = told(s, 0, "public.p2");
        assert_ne!(replaced["remedy"], detached["remedy"]);
        s.target(statement(&replaced, "target"));
        s.source(replaced["remedy"].as_str().unwrap().rsplit_once("on the source: ").unwrap().1);
        s.source(statement(&unseen, "source"));
        s.catch_up();
        level(s);

        s.source("DROP TABLE p0");
        let dropped = told_by_all(s, "public.p0", "public.root", "dropped on the source");
        s.target(statement(&dropped, "target"));
        level(s);
        s.catch_up();
        assert_eq!(s.target_one("SELECT count(*) FROM root"), "33");
        s.same_as("root", "SELECT id, v FROM root");
    });
}

/// Equally partitioned targets, hash bounds, and a root without a key: the remedies work there,
/// too.
#[test]
fn leaves_of_hashes_and_of_roots_without_a_key_are_told_where_the_target_has_the_same() {
    scenario_with(&OFTEN[..1], |s| {
        s.both(
            "CREATE TABLE hashed (id int PRIMARY KEY, v text) PARTITION BY HASH (id); \
             CREATE TABLE h0 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 0); \
             CREATE TABLE h1 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 1); \
             CREATE TABLE bare (id int, v text) PARTITION BY LIST (v); CREATE TABLE b0 PARTITION OF bare FOR VALUES IN ('a'); \
             CREATE TABLE rest PARTITION OF bare DEFAULT; \
             ALTER TABLE bare REPLICA IDENTITY FULL; ALTER TABLE b0 REPLICA IDENTITY FULL; ALTER TABLE rest REPLICA IDENTITY FULL",
        );
        s.source(
            "INSERT INTO hashed SELECT i, 'x' FROM generate_series(1, 50) i; \
             INSERT INTO bare SELECT i, 'a' FROM generate_series(1, 5) i; INSERT INTO bare VALUES (1, 'other'), (NULL, NULL)",
        );
        s.publish("FOR TABLE hashed, bare, mark WITH (publish_via_partition_root)");
        s.follow();
        level(s);
        s.source("TRUNCATE h0, b0");
        for (partition, root) in [("public.h0", "public.hashed"), ("public.b0", "public.bare")] {
            let emptied = told_by_all(s, partition, root, "emptied on the source by TRUNCATE");
            let sql = statement(&emptied, "target");
            assert!(sql.starts_with("TRUNCATE"), "{sql}");
            s.target(sql);
        }
        level(s);
        s.same_table("hashed");
        s.same_table("bare");
    });
}

/// Which identity counts: the leaf's for the content of WAL, the root's for what the subscriber is
/// told. Servers prove the findings of `check`: what it accepts loses nothing, and what it reports
/// as lost is lost.
#[test]
fn a_root_and_a_leaf_with_different_identities_lose_what_check_says() {
    scenario_with(OFTEN, |s| {
        s.source(
            "CREATE TABLE full_fits (id int, v int) PARTITION BY RANGE (id); \
             CREATE TABLE full_fits_0 PARTITION OF full_fits (PRIMARY KEY (id)) DEFAULT; ALTER TABLE full_fits REPLICA IDENTITY FULL; \
             CREATE TABLE key_fits (id int PRIMARY KEY, v int) PARTITION BY RANGE (id); CREATE TABLE key_fits_0 PARTITION OF key_fits DEFAULT; \
             ALTER TABLE key_fits_0 REPLICA IDENTITY FULL; \
             CREATE TABLE within (id int PRIMARY KEY, v int NOT NULL) PARTITION BY RANGE (id); CREATE TABLE within_0 PARTITION OF within DEFAULT; \
             CREATE UNIQUE INDEX both_0 ON within_0 (v, id); ALTER TABLE within_0 REPLICA IDENTITY USING INDEX both_0; \
             CREATE TABLE full_lost (id int, v int) PARTITION BY RANGE (id); \
             CREATE TABLE full_lost_0 PARTITION OF full_lost DEFAULT; ALTER TABLE full_lost REPLICA IDENTITY FULL; \
             ALTER TABLE full_lost_0 ADD PRIMARY KEY (id), REPLICA IDENTITY FULL; \
             CREATE TABLE key_lost (id int PRIMARY KEY, v int NOT NULL) PARTITION BY RANGE (id); CREATE TABLE key_lost_0 PARTITION OF key_lost DEFAULT; \
             CREATE UNIQUE INDEX v_0 ON key_lost_0 (v); \
             CREATE TABLE stops (id int PRIMARY KEY, v int) PARTITION BY RANGE (id); CREATE TABLE stops_0 PARTITION OF stops DEFAULT",
        );
        s.target(
            "CREATE TABLE full_fits (id int PRIMARY KEY, v int); CREATE TABLE key_fits (id int PRIMARY KEY, v int); \
             CREATE TABLE within (id int PRIMARY KEY, v int); CREATE TABLE full_lost (id int, v int); \
             CREATE TABLE key_lost (id int PRIMARY KEY, v int); CREATE TABLE stops (id int PRIMARY KEY, v int)",
        );
        const FIT: [&str; 3] = ["full_fits", "key_fits", "within"];
        let all = [&FIT[..], &["full_lost", "key_lost", "stops"]].concat();
        for table in &all {
            s.source(&format!("INSERT INTO {table} SELECT i, i FROM generate_series(1, 9) i"));
        }
        s.publish(&format!("FOR TABLE {}, mark WITH (publish_via_partition_root)", all.join(", ")));
        s.follow();
        let change = |table: &str| {
            format!(
                "UPDATE {table} SET v = v + 100 WHERE id < 4; UPDATE {table} SET id = id + 50 WHERE id = 5; DELETE FROM {table} WHERE id = 6"
            )
        };
        FIT.iter().for_each(|table| s.source(&change(table)));
        s.catch_up();
        FIT.iter().for_each(|table| s.same_table(table));
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);

        s.source("ALTER TABLE full_lost_0 REPLICA IDENTITY DEFAULT; ALTER TABLE key_lost_0 REPLICA IDENTITY USING INDEX v_0");
        s.source(&change("full_lost"));
        s.source(&change("key_lost"));
        s.catch_up();
        assert!(s.conflicts("update_missing") > 0 && s.conflicts("delete_missing") > 0);
        assert_eq!(s.target_one("SELECT count(*) FROM full_lost WHERE id = 6"), "1");
        assert_eq!(s.target_one("SELECT count(*) FROM key_lost WHERE id = 6"), "1");

        // Of the root alone: its leaf keeps its key.
        s.source("ALTER TABLE stops REPLICA IDENTITY NOTHING");
        let checked = s.call(0, &["check", "--json", "--publication", "p"]);
        let report: Value = serde_json::from_str(&checked.stdout).unwrap();
        let said = |table: &str, words: &str| {
            report["findings"].as_array().unwrap().iter().any(|found| {
                found["object"] == format!("table public.{table}")
                    && found["severity"] == "cannot"
                    && found["what"].as_str().unwrap().contains(words)
                    && !found["sql"].as_array().unwrap().is_empty()
            })
        };
        assert!(said("stops", "the first UPDATE or DELETE stops the subscription"), "{report:#}");
        assert!(said("full_lost", "are lost") && said("key_lost", "are lost"), "{report:#}");
        FIT.iter().for_each(|table| assert!(!said(table, ""), "{report:#}"));
        s.source("UPDATE stops SET v = 0 WHERE id = 1");
        s.source("INSERT INTO mark VALUES (1000)");
        s.wait_for_log("public.stops");
        assert_eq!(s.target_one("SELECT count(*) FROM mark WHERE id = 1000"), "0");
        s.kill();
    });
}

/// A source of 14 goes by what a table was when its stream first met it, so the stream starts
/// again. The leaves are published as themselves here.
#[test]
fn a_leaf_that_changed_before_it_was_attached_joins_as_itself() {
    scenario_on(&[Major::V14, Major::V18], OFTEN, |s| {
        s.both(
            "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); \
             CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (100); \
             CREATE TABLE high (id int PRIMARY KEY, v text)",
        );
        s.publish("FOR TABLE root, mark");
        s.follow();
        for round in 1..=2 {
            // The stream meets the table while it is not published.
            s.source(&format!("INSERT INTO high VALUES ({}, 'alone')", 100 + round));
            s.catch_up();
            s.source("ALTER TABLE root ATTACH PARTITION high FOR VALUES FROM (100) TO (200)");
            s.target("ALTER TABLE root ATTACH PARTITION high FOR VALUES FROM (100) TO (200)");
            s.source(&format!("INSERT INTO root VALUES ({}, 'through the root')", 110 + round));
            for number in 0..s.followers() {
                let log = || Ok(s.log(number).matches("joined: replicated from now on").count() == round);
                wait_for("the leaf to join", BOUND, log).unwrap();
            }
            s.source(&format!(
                "INSERT INTO root VALUES ({}, 'later'); UPDATE high SET v = v || '.'",
                120 + round
            ));
            s.catch_up();
            s.same();
            s.source("ALTER TABLE root DETACH PARTITION high");
            s.target("ALTER TABLE root DETACH PARTITION high");
            for number in 0..s.followers() {
                let log = || Ok(s.log(number).matches("no longer in the publication").count() == round);
                wait_for("the leaf to be forgotten", BOUND, log).unwrap();
            }
            s.target("TRUNCATE high");
        }
    });
}
