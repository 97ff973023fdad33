//! What an attempt leaves behind when it does not come to its end, and what
//! the next one makes of it (rule C1).

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Scenario, block_on};
use copy::{Options, TableState};
use testkit::{Major, wait_for};

/// What [`crate::run`] runs on every major.
pub(crate) const SCENARIOS: &[crate::Named] = &[
    (
        "a_failed_table_is_emptied_and_copied_again_and_finished_ones_are_not",
        a_failed_table_is_emptied_and_copied_again_and_finished_ones_are_not,
    ),
    ("a_table_others_refer_to_is_emptied_all_the_same", a_table_others_refer_to_is_emptied_all_the_same),
    (
        "rows_that_were_there_stay_and_are_never_taken_for_ours",
        rows_that_were_there_stay_and_are_never_taken_for_ours,
    ),
    (
        "what_does_not_fit_is_named_before_anything_is_copied",
        what_does_not_fit_is_named_before_anything_is_copied,
    ),
    (
        "a_lost_connection_on_either_side_is_worth_another_attempt",
        a_lost_connection_on_either_side_is_worth_another_attempt,
    ),
    ("a_stopped_copy_says_so_and_goes_on_later", a_stopped_copy_says_so_and_goes_on_later),
    (
        "a_snapshot_whose_session_ended_is_worth_another_attempt",
        a_snapshot_whose_session_ended_is_worth_another_attempt,
    ),
    ("a_predecessor_that_still_commits_is_waited_for", a_predecessor_that_still_commits_is_waited_for),
];

/// Ranges of a megabyte, and a table of many of them besides a small one.
fn large_and_small(major: Major, db: &'static str) -> Scenario {
    let mut scenario = Scenario::new(major, db);
    scenario.options = Options { connections: 2, split_bytes: 1 << 20, ..Options::default() };
    scenario.both("CREATE TABLE large (id int PRIMARY KEY, v text); CREATE TABLE small (id int PRIMARY KEY)");
    scenario.source(
        "INSERT INTO large SELECT g, repeat('v', 100) FROM generate_series(1, 120000) g;
         INSERT INTO small SELECT generate_series(1, 10); CREATE PUBLICATION p FOR TABLE large, small",
    );
    scenario
}

fn a_failed_table_is_emptied_and_copied_again_and_finished_ones_are_not(major: Major) {
    let scenario = large_and_small(major, "resume");
    scenario.target("ALTER TABLE large ADD CONSTRAINT obstacle CHECK (id <> 119000)");
    let error = scenario.copy_fails();
    let text = error.to_string();
    assert!(!error.is_retryable() && error.sqlstate() == Some("23514"), "{text}");
    assert_eq!(error.table().unwrap().to_string(), "public.large");
    assert!(text.contains("\"public.large\"") && text.contains("at line "), "{text}");
    assert!(!scenario.is_finished("large"));
    assert_ne!(scenario.target_value("SELECT count(*) FROM large"), "0", "ranges before it are committed");

    // A second copy of `small` would bring its rows back.
    let small_was_finished = scenario.is_finished("small");
    scenario.target("DELETE FROM small; ALTER TABLE large DROP CONSTRAINT obstacle");
    scenario.copy().unwrap();
    scenario.assert_same("large");
    assert!(scenario.is_finished("large") && scenario.is_finished("small"));
    let expected = if small_was_finished { "0" } else { "10" };
    assert_eq!(scenario.target_value("SELECT count(*) FROM small"), expected);
    scenario.copy().unwrap();
    scenario.assert_same("large");
}

fn a_table_others_refer_to_is_emptied_all_the_same(major: Major) {
    let scenario = large_and_small(major, "referenced");
    scenario.target(
        "CREATE TABLE refers (id int REFERENCES large);
         ALTER TABLE large ADD CONSTRAINT obstacle CHECK (id <> 119000)",
    );
    scenario.copy_fails();
    scenario.target("ALTER TABLE large DROP CONSTRAINT obstacle");
    scenario.copy().unwrap();
    scenario.assert_same("large");
}

fn rows_that_were_there_stay_and_are_never_taken_for_ours(major: Major) {
    let scenario = large_and_small(major, "not_empty");
    scenario.target("INSERT INTO large VALUES (-1, 'mine'); INSERT INTO small VALUES (5)");
    let error = scenario.copy_fails();
    assert_eq!(error.table().unwrap().name, "small");
    assert_eq!(error.sqlstate(), Some("23505"), "{error}");
    // Whatever became of `large`, it holds its row and either all of the
    // source's or none.
    let count = scenario.target_value("SELECT count(*) FROM large");
    assert!(count == "1" || count == "120001", "{count} rows");
    scenario.target("DELETE FROM small");
    scenario.copy().unwrap();
    scenario.assert_same("small");
    assert_eq!(scenario.target_value("SELECT count(*) FROM large"), "120001");
    assert_eq!(scenario.target_value("SELECT count(DISTINCT xmin::text) FROM large WHERE id > 0"), "1");
}

fn what_does_not_fit_is_named_before_anything_is_copied(major: Major) {
    let scenario = large_and_small(major, "misfit");
    scenario.target("ALTER TABLE large DROP COLUMN v");
    let text = scenario.copy_fails().to_string();
    assert!(text.contains("\"public.large\"") && text.contains("no column \"v\""), "{text}");
    scenario
        .target("DROP TABLE small; CREATE VIEW small AS SELECT 1 AS id; ALTER TABLE large ADD COLUMN v text");
    let text = scenario.copy_fails().to_string();
    assert!(text.contains("\"public.small\"") && text.contains("something other than a table"), "{text}");
    scenario.target("DROP VIEW small");
    let text = scenario.copy_fails().to_string();
    assert!(text.contains("\"public.small\"") && text.contains("no table of this name"), "{text}");
    assert_eq!(scenario.target_value("SELECT count(*) FROM large"), "0");
}

/// Starts a copy, waits until the large table is under way, calls `disturb`.
fn disturbed(scenario: &Scenario, disturb: impl FnOnce()) -> copy::Error {
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| scenario.copy_fails());
        wait_for("the copy to be under way", Duration::from_secs(30), || {
            let tables = scenario.progress.tables();
            Ok(tables.iter().any(|table| table.state() == TableState::Copying && table.rows() > 5000))
        })
        .unwrap();
        disturb();
        copy.join().unwrap()
    })
}

/// A trigger that fires for replicas makes every row wait a little.
const SLOW: &str = "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN IF NEW.id % 500 = 0 THEN PERFORM pg_sleep(0.01); END IF; RETURN NEW; END $$;
    CREATE TRIGGER wait BEFORE INSERT ON large FOR EACH ROW EXECUTE FUNCTION wait();
    ALTER TABLE large ENABLE ALWAYS TRIGGER wait";

fn a_lost_connection_on_either_side_is_worth_another_attempt(major: Major) {
    let mut scenario = large_and_small(major, "lost");
    scenario.target(SLOW);
    let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE application_name = 'pgsluice copy' AND datname = current_database()";
    for end in ["source", "target"] {
        scenario.progress = Arc::default();
        let cluster = if end == "source" { &scenario.pair.source } else { &scenario.pair.target };
        let error = disturbed(&scenario, || drop(cluster.sql(scenario.db, terminate).unwrap()));
        assert!(error.is_retryable(), "{error}");
    }
    scenario.target("DROP TRIGGER wait ON large");
    scenario.copy().unwrap();
    scenario.assert_same("large");
    scenario.assert_same("small");
}

fn a_stopped_copy_says_so_and_goes_on_later(major: Major) {
    let mut scenario = large_and_small(major, "stopped");
    scenario.target(SLOW);
    let stop = scenario.stop.clone();
    let error = disturbed(&scenario, || stop.cancel());
    assert!(error.is_stopped() && !error.is_retryable(), "{error}");
    scenario.stop = tokio_util::sync::CancellationToken::new();
    scenario.target("DROP TRIGGER wait ON large");
    scenario.copy().unwrap();
    scenario.assert_same("large");
    let table = Arc::clone(&scenario.progress.tables()[0]);
    assert_eq!((table.state(), table.rows()), (TableState::Done, 120_000));
}

fn a_snapshot_whose_session_ended_is_worth_another_attempt(major: Major) {
    let scenario = large_and_small(major, "gone");
    let error = block_on(async {
        let jobs = scenario.jobs().await.unwrap();
        let (exporter, snapshot) = scenario.export().await.unwrap();
        let session = exporter.pid();
        exporter.close().await;
        // The snapshot goes with the backend, which may still be ending.
        let there = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {session}");
        let is_gone = || Ok(scenario.pair.source.one(scenario.db, &there) == "0");
        let gone = || wait_for("the exporter's backend to end", Duration::from_secs(30), is_gone);
        tokio::task::block_in_place(gone).unwrap();
        copy::copy_tables(scenario.attempt(snapshot), jobs, &scenario.stop).await.unwrap_err()
    });
    assert!(error.is_retryable(), "{error}");
}

fn a_predecessor_that_still_commits_is_waited_for(major: Major) {
    let scenario = large_and_small(major, "predecessor");
    scenario.source("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE small");
    // What a killed process leaves: its backend has the rows and the
    // record, and has not carried out the COMMIT yet.
    let predecessor = std::thread::scope(|scope| {
        let target = &scenario;
        let predecessor = scope.spawn(|| {
            target.target(
                "BEGIN; SELECT pg_advisory_xact_lock(1885827939, 'small'::regclass::oid::int);
                 INSERT INTO small SELECT generate_series(1, 10);
                 INSERT INTO pgsluice.copied VALUES ('public', 'small', true, '0/0', 10);
                 SELECT pg_sleep(1); COMMIT",
            );
        });
        wait_for("the predecessor to hold its lock", Duration::from_secs(30), || {
            Ok(scenario.target_value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") != "0")
        })
        .unwrap();
        scenario.copy().unwrap();
        predecessor.join()
    });
    predecessor.unwrap();
    scenario.assert_same("small");
    assert_eq!(scenario.target_value("SELECT point FROM pgsluice.copied"), "0/0");
}
