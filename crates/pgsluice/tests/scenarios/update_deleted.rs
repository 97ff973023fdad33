//! The kind: an UPDATE finds no row because somebody deleted it on the target.
//!
//! Deletions are captured from the target's WAL, so each scenario first waits until capture runs.
//! What a look-up may answer is tested in `deletions`, what comes out of WAL in `retention`.

use testkit::{Builder, wait_for};

use crate::support::{BOUND, ONE_BY_ONE, Scenario, Session, scenario_alone, scenario_with};

use End::{Source, Target};

/// Where a statement runs.
pub(crate) enum End {
    Source,
    Target,
}

pub(crate) const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, v text)";
pub(crate) const RETAIN: &[&str] = &["--retain-dead-tuples", "on"];
pub(crate) const LOGICAL: &[&str] = &["--source-mode", "logical"];
pub(crate) const WAL: &[&str] = &["--source-mode", "wal"];

/// Runs the scenario with deletions remembered, in both source modes and one change at a time.
fn retaining(of: &[&str], run: impl Fn(&mut Scenario) + Sync) {
    let rules: Vec<&str> = of.iter().flat_map(|rule| ["--conflict", rule]).collect();
    let strategies = [LOGICAL, WAL, ONE_BY_ONE].map(|strategy| [RETAIN, &rules, strategy].concat());
    let strategies = strategies.each_ref().map(Vec::as_slice);
    scenario_with(&strategies, run);
}

pub(crate) fn deletions(s: &Scenario, number: usize, what: &str) -> serde_json::Value {
    s.status(number)["deletions"][what].clone()
}

/// Waits until each follower captures deletions, and has passed the beginning of capture.
pub(crate) fn wait_for_capture(s: &Scenario) {
    for number in 0..s.followers() {
        let captures = || {
            let state = deletions(s, number, "state");
            Ok(state == "capturing" && deletions(s, number, "cut_lsn").is_null())
        };
        wait_for("capture, and a horizon behind its beginning", BOUND, captures).unwrap();
    }
}

pub(crate) fn follow(s: &mut Scenario) {
    s.both(TABLE);
    s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
    s.follow();
    wait_for_capture(s);
}

fn rows(s: &Scenario) -> String {
    s.target_one("SELECT string_agg(concat_ws(' ', id, v), ', ' ORDER BY id) FROM t WHERE id < 5")
}

/// Runs `source` and `target` while nobody applies, so that an update that is older than a deletion
/// meets it. A deletion that is older than an update may be forgotten by then.
pub(crate) fn apart(s: &mut Scenario, statements: &[(End, &str)]) {
    s.stop();
    for (end, sql) in statements {
        match end {
            End::Source => s.source(sql),
            End::Target => s.target(sql),
        }
    }
    s.run();
    s.catch_up();
}

#[test]
fn d1_each_way_to_lose_a_row_is_reported() {
    retaining(&[], |s| {
        s.both("CREATE TABLE e (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO e VALUES (1, 'v')");
        follow(s);
        let updates = "UPDATE t SET v = 'w' WHERE id IN (1, 2, 3); UPDATE t SET id = 101 WHERE id = 1; UPDATE e SET v = 'w'";
        apart(
            s,
            &[
                (Source, updates),
                (Target, "DELETE FROM t WHERE id = 1"),
                (Target, "UPDATE t SET id = 100 WHERE id = 2"),
                (Target, "TRUNCATE e"),
            ],
        );
        assert_eq!(rows(s), "3 w, 4 v");
        assert_eq!((s.conflicts("update_deleted"), s.conflicts("update_missing")), (4, 0));
        s.wait_for_log(
            "conflict detected on relation \"public.t\": conflict=update_deleted: The row to be updated was deleted \
             locally in transaction ",
        );
        let history = "SELECT string_agg(DISTINCT concat_ws(' ', resolution, outcome, local_origin, local_time IS NOT NULL), ',') \
                       FROM pgsluice.conflict_history WHERE type = 'update_deleted'";
        assert_eq!(s.target_one(history), "skip kept  t");
        // A row that came back and is updated is no conflict.
        s.target("INSERT INTO t VALUES (1, 'back')");
        s.source("INSERT INTO t VALUES (11, 'v'); UPDATE t SET v = 'x' WHERE id = 11");
        s.catch_up();
        assert_eq!(s.conflicts("update_deleted"), 4);
    });
}

/// At the first start, capture begins before any of the subscription's origins exists.
///
/// Fails if what the subscription itself deletes is remembered as somebody else's.
#[test]
fn d1_own_deletions_are_not_remembered_from_the_first_start_on() {
    let with = |strategy: &[&'static str]| [RETAIN, strategy, &["--batch-rows-max", "50"]].concat();
    let strategies = [with(LOGICAL), with(WAL)];
    let strategies = strategies.each_ref().map(Vec::as_slice);
    let source = |builder: Builder| builder.setting("logical_decoding_work_mem", "64kB");
    scenario_alone(
        &strategies,
        source,
        |target| target,
        |s| {
            s.both(TABLE);
            s.source("INSERT INTO t SELECT i, repeat('v', 100) FROM generate_series(1, 9000) i");
            s.follow();
            wait_for_capture(s);
            s.source("DELETE FROM t WHERE id <= 3");
            s.source("DELETE FROM t WHERE id BETWEEN 11 AND 8000");
            s.catch_up();
            // What is remembered from now on stays: an older change is not applied.
            let hold = |number| {
                let mut session = Session::to(&s.target_url(number));
                session.run("BEGIN; LOCK TABLE mark IN EXCLUSIVE MODE");
                session
            };
            let holds: Vec<Session> = (0..s.followers()).map(hold).collect();
            let id = s.mark();
            s.target("DELETE FROM t WHERE id = 9000");
            for number in 0..s.followers() {
                // Deletions are captured in their order.
                let is_remembered = || Ok(deletions(s, number, "count").as_u64() > Some(0));
                wait_for("the client's deletion to be captured", BOUND, is_remembered).unwrap();
                assert_eq!(deletions(s, number, "count"), 1);
            }
            drop(holds);
            s.wait_for_mark(id);
        },
    );
}

#[test]
fn a_deleted_row_is_inserted_again_or_stops() {
    retaining(&["update_deleted=apply_remote"], |s| {
        follow(s);
        let updates = "UPDATE t SET v = 'w' WHERE id IN (1, 2)";
        apart(s, &[(Source, updates), (Target, "DELETE FROM t WHERE id IN (1, 2)")]);
        s.same();
        assert_eq!((s.conflicts("update_deleted"), s.conflicts("update_missing")), (2, 0));
    });
    retaining(&["update_deleted=error"], |s| {
        follow(s);
        s.stop();
        s.source("UPDATE t SET v = 'w' WHERE id = 1");
        s.target("DELETE FROM t WHERE id = 1");
        s.run();
        s.wait_for_log("conflict=update_deleted: The row to be updated was deleted locally in transaction ");
        s.target("INSERT INTO t VALUES (1, 'back')");
        s.catch_up();
        s.same();
    });
}

#[test]
fn the_later_of_update_and_deletion_wins() {
    retaining(&["update_deleted=last_update_wins"], |s| {
        follow(s);
        apart(
            s,
            &[
                (Target, "DELETE FROM t WHERE id = 1"),
                (Source, "UPDATE t SET v = 'later' WHERE id = 1"),
                (Source, "UPDATE t SET v = 'earlier' WHERE id = 2"),
                (Target, "DELETE FROM t WHERE id = 2"),
            ],
        );
        assert_eq!(rows(s), "1 later, 3 v, 4 v");
        assert_eq!(s.conflicts("update_deleted"), 2);
    });
}

/// The setting's other name, as a flag, as a variable and in the file.
#[test]
fn deletions_are_remembered_under_the_other_name_of_the_setting() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pgsluice.toml");
    std::fs::write(&file, "detect_update_deleted = true\n").unwrap();
    let strategies: [&[&str]; 3] = [
        &["--detect-update-deleted"],
        &["PGSLUICE_DETECT_UPDATE_DELETED=on"],
        &["--config", file.to_str().unwrap()],
    ];
    scenario_with(&strategies, |s| {
        follow(s);
        let update = "UPDATE t SET v = 'w' WHERE id = 1";
        apart(s, &[(Source, update), (Target, "DELETE FROM t WHERE id = 1")]);
        assert_eq!((s.conflicts("update_deleted"), s.conflicts("update_missing")), (1, 0));
    });
}

#[test]
fn d1_what_is_deleted_before_a_kill_is_known_afterwards() {
    retaining(&[], |s| {
        follow(s);
        // The applier waits for the row, so the horizon stands.
        let mut sessions: Vec<Session> =
            (0..s.followers()).map(|number| Session::to(&s.target_url(number))).collect();
        sessions.iter_mut().for_each(|session| session.run("BEGIN; SELECT FROM t WHERE id = 5 FOR UPDATE"));
        s.source("UPDATE t SET v = 'w' WHERE id = 5");
        s.source("UPDATE t SET v = 'w' WHERE id = 1");
        s.target("DELETE FROM t WHERE id = 1");
        for number in 0..s.followers() {
            let is_remembered = || Ok(deletions(s, number, "count") == 1);
            wait_for("the deletion to be captured", BOUND, is_remembered).unwrap();
        }
        s.kill();
        sessions.iter_mut().for_each(|session| session.run("COMMIT"));
        s.run();
        s.catch_up();
        assert_eq!((s.conflicts("update_deleted"), s.conflicts("update_missing")), (1, 0));
    });
}

#[test]
fn a_target_that_cannot_be_captured_is_named_and_changes_flow() {
    let strategies = [LOGICAL, WAL].map(|strategy| [RETAIN, strategy].concat());
    let strategies = strategies.each_ref().map(Vec::as_slice);
    let plain = |builder: Builder| builder;
    let replica = |builder: Builder| builder.setting("wal_level", "replica");
    scenario_alone(&strategies, plain, replica, |s| {
        s.both(TABLE);
        s.source("INSERT INTO t VALUES (1, 'v'), (2, 'v')");
        s.follow();
        s.target("DELETE FROM t WHERE id = 1");
        s.source("UPDATE t SET v = 'w'");
        s.catch_up();
        assert_eq!(rows(s), "2 w");
        assert_eq!((s.conflicts("update_deleted"), s.conflicts("update_missing")), (0, 1));
        for number in 0..s.followers() {
            assert_eq!(deletions(s, number, "state"), "unfit");
            let trouble = deletions(s, number, "trouble").to_string();
            assert!(trouble.contains("wal_level of the target is replica"), "{trouble}");
            assert_eq!(deletions(s, number, "retention_exceeded"), 1);
        }
    });
}

#[test]
fn a_table_whose_deletions_have_no_key_is_named_and_counted() {
    retaining(&[], |s| {
        s.source("CREATE TABLE n (id int PRIMARY KEY, v text); INSERT INTO n VALUES (1, 'v'), (2, 'v')");
        // Nothing on the target says which row a deletion is of.
        s.target("CREATE TABLE n (id int, v text)");
        follow(s);
        let checked = s.call(0, &["check", "--json", "--publication", "p", "--retain-dead-tuples"]);
        let report: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
        let named: Vec<&str> = report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|found| {
                found["what"].as_str().unwrap().contains("deletions of its rows cannot be asked for")
            })
            .map(|found| found["object"].as_str().unwrap())
            .collect();
        assert_eq!(named, ["table public.n"], "{report:#}");
        apart(s, &[(Source, "UPDATE n SET v = 'w' WHERE id = 1"), (Target, "DELETE FROM n WHERE id = 1")]);
        assert_eq!((s.conflicts("update_deleted"), s.conflicts("update_missing")), (0, 1));
        for number in 0..s.followers() {
            assert_eq!(deletions(s, number, "retention_exceeded"), 1);
        }
        // The identity that it gets now does not know what was deleted before.
        s.target("ALTER TABLE n ADD PRIMARY KEY (id)");
        apart(
            s,
            &[
                (Source, "UPDATE n SET v = 'x' WHERE id = 1; UPDATE n SET v = 'x' WHERE id = 2"),
                (Target, "DELETE FROM n WHERE id = 2"),
            ],
        );
        assert_eq!((s.conflicts("update_deleted"), s.conflicts("update_missing")), (1, 1));
    });
}

/// Its transaction fails for another reason, and is tried until that has gone.
#[test]
fn a_miss_that_is_not_covered_counts_once_however_often_it_is_tried() {
    retaining(&[], |s| {
        s.source("CREATE TABLE n (id int PRIMARY KEY, v text); INSERT INTO n VALUES (1, 'v')");
        s.target("CREATE TABLE n (id int, v text)");
        follow(s);
        s.stop();
        s.source("UPDATE n SET v = 'w' WHERE id = 1; INSERT INTO t VALUES (10, 'v')");
        s.target("DELETE FROM n; INSERT INTO t VALUES (10, 'in its place')");
        s.run();
        for number in 0..s.followers() {
            let often = || Ok(s.status(number)["failing"]["attempts"].as_u64() >= Some(3));
            wait_for("three attempts", BOUND, often).unwrap();
            assert_eq!(deletions(s, number, "retention_exceeded"), 0, "it has not committed");
        }
        s.target("DELETE FROM t WHERE id = 10");
        s.catch_up();
        assert_eq!((s.conflicts("insert_exists"), s.conflicts("update_missing")), (1, 1));
        for number in 0..s.followers() {
            assert_eq!(deletions(s, number, "retention_exceeded"), 1);
        }
    });
}
