//! Tables are copied without a logical slot, under a snapshot, while transactions are between their
//! commit and the moment at which they are seen.

use std::time::Duration;

use testkit::{Builder, Major, wait_for};

use crate::refresh::wait_until_joined;
use crate::support::{BOUND, Scenario, Session, scenario_alone};

/// Sessions that write to `late`, each to a row of its own, too.
const WRITERS: usize = 6;

const OFTEN: &[&[&str]] = &[&["--source-mode", "wal", "--refresh-interval", "200ms"]];

/// There is room for our physical slot, and for no other. Between the commit record of a
/// transaction and the moment at which it is seen there is time enough for a snapshot, for sessions
/// that say [`SLOW_COMMITS`].
fn one_slot(source: Builder) -> Builder {
    source.setting("max_replication_slots", "1").setting("fsync", "on")
}

const SLOW_COMMITS: &str =
    "SET synchronous_commit = local; SET commit_siblings = 0; SET commit_delay = 50000";

/// Writers to `late` until the sender is dropped; they return how many transactions they made.
fn writers(
    url: &str,
    count: usize,
) -> (Vec<std::sync::mpsc::Sender<()>>, Vec<std::thread::JoinHandle<usize>>) {
    let start = |writer: usize| {
        let (url, (stop, stopped)) = (url.to_owned(), std::sync::mpsc::channel::<()>());
        let write = move || {
            let mut session = Session::to(&url);
            // Those that do not wait have newer ids and are seen before.
            let waits = writer.is_multiple_of(2);
            session.run(if waits { SLOW_COMMITS } else { "SET synchronous_commit = off" });
            let mut rounds = 0;
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                session.run(&format!(
                    "INSERT INTO late VALUES (1000 + {writer} + {count} * {rounds}, 0); UPDATE late SET n = n + 1 WHERE id = {writer}"
                ));
                rounds += 1;
                if !waits {
                    // The pace of a load, which nobody waits for.
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            rounds
        };
        (stop, std::thread::spawn(write))
    };
    (0..count).map(start).unzip()
}

/// Waits until each of [`WRITERS`] has made a few transactions more.
fn wait_for_rounds(s: &Scenario) {
    const ROUNDS: u64 = 3;
    let least = || -> u64 {
        let least = format!("SELECT min(n) FROM late WHERE id < {WRITERS}");
        s.source_one(&least).parse().unwrap()
    };
    let goal = least() + ROUNDS;
    wait_for("the writers to go on", BOUND, || Ok(least() >= goal)).unwrap();
}

/// Ends the writers: both ends are the same. Whether the copy of `late` was taken while some of
/// them were committing.
fn wait_for_writers(
    s: &mut Scenario,
    stop: Vec<std::sync::mpsc::Sender<()>>,
    running: Vec<std::thread::JoinHandle<usize>>,
) -> bool {
    drop(stop);
    assert!(running.into_iter().all(|writer| writer.join().unwrap() > 5));
    s.catch_up();
    s.same();
    assert_eq!(s.conflicts("insert_exists") + s.conflicts("update_missing"), 0);
    let unseen = "SELECT count(*) FROM pgsluice.copied_table t, pg_snapshot_xip(t.snapshot) WHERE t.table_name = 'late'";
    s.target_one(unseen) != "0"
}

/// Writers that wait for the disk commit together, and a copy may be taken when they all have just
/// begun again.
const TOLD_MAX: usize = 6;

/// With [`one_slot`], until on each major `scenario` met what it is about; it says whether it did.
fn told_until_met(scenario: impl Fn(&mut Scenario) -> bool + Sync) {
    let missing = std::sync::Mutex::new(Major::in_turn());
    for _ in 0..TOLD_MAX {
        scenario_alone(
            OFTEN,
            one_slot,
            |target| target,
            |s| {
                let major = s.pair().source.major();
                let is_missing = missing.lock().unwrap().contains(&major);
                if is_missing && scenario(s) {
                    missing.lock().unwrap().retain(|other| *other != major);
                }
            },
        );
        if missing.lock().unwrap().is_empty() {
            return;
        }
    }
    panic!("nothing was committing in {TOLD_MAX} copies on {:?}", missing.into_inner().unwrap());
}

#[test]
fn c2_a_table_that_is_added_joins_without_a_slot_while_transactions_are_between_commit_and_sight() {
    told_until_met(|s| {
        s.both("CREATE TABLE old (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO late SELECT i, 0 FROM generate_series(0, 99) i");
        s.publish("FOR TABLE old, mark");
        s.follow();
        let (stop, running) = writers(&s.source_url(), WRITERS);
        wait_for_rounds(s);
        s.source("ALTER PUBLICATION p ADD TABLE late");
        wait_until_joined(s, "late");
        wait_for_rounds(s);
        // What is filtered by the snapshot is so also after a restart that goes back before it.
        s.kill();
        s.follow();
        wait_for_writers(s, stop, running)
    });
}

#[test]
fn c2_a_transaction_that_was_passed_before_it_was_seen_is_in_the_copy() {
    scenario_alone(
        OFTEN,
        one_slot,
        |target| target,
        |s| {
            s.both("CREATE TABLE old (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY, n int)");
            s.publish("FOR TABLE old, mark");
            s.follow();
            s.source("SET synchronous_commit = local");
            let db = s.source_one("SELECT quote_ident(current_database())");
            s.source(&format!("ALTER DATABASE {db} SET synchronous_commit = local"));
            s.pair().source.set_synchronous_standby_names("nobody").unwrap();
            // It is in WAL, and waits for a standby that there is not: nobody sees it.
            let url = s.source_url();
            let waits = std::thread::spawn(move || {
                let mut session = Session::to(&url);
                session.run("SET synchronous_commit = on");
                session.run("INSERT INTO late VALUES (100, 1)");
            });
            wait_for("a commit to wait", BOUND, || {
                Ok(s.source_one("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1")
            })
            .unwrap();
            s.catch_up();
            s.source("ALTER PUBLICATION p ADD TABLE late");
            s.source("INSERT INTO late VALUES (2, 2)");
            s.catch_up();
            s.wait_for_log("copying 1 tables that were added");
            // Nothing comes while the commit is not seen: only time can tell.
            std::thread::sleep(Duration::from_secs(1));
            assert_eq!(
                s.target_one("SELECT count(*) FROM late"),
                "0",
                "it was copied without what nobody sees yet"
            );
            s.pair().source.set_synchronous_standby_names("").unwrap();
            waits.join().unwrap();
            wait_until_joined(s, "late");
            s.source("INSERT INTO late VALUES (3, 3)");
            s.catch_up();
            s.same();
        },
    );
}

#[test]
fn c2_a_first_copy_that_was_interrupted_is_finished_without_a_slot() {
    told_until_met(|s| {
        s.both(
            "CREATE TABLE whole (id int PRIMARY KEY, n int); CREATE TABLE late (id int PRIMARY KEY, n int)",
        );
        s.source("INSERT INTO whole SELECT i, 0 FROM generate_series(0, 999) i; INSERT INTO late SELECT i, 0 FROM generate_series(0, 99) i");
        s.publish("FOR TABLE whole, late, mark");
        let (stop, running) = writers(&s.source_url(), WRITERS);
        let mut lock = Session::to(&s.target_url(0));
        lock.run("BEGIN; LOCK TABLE late IN EXCLUSIVE MODE");
        s.run();
        let finished = "SELECT count(*) FROM pgsluice.copied_table WHERE finished";
        let url = s.target_url(0);
        wait_for("the others to be copied", BOUND, || {
            let rows = testkit::query(&url, finished);
            Ok(rows.is_ok_and(|rows| rows[0][0].as_deref() == Some("2")))
        })
        .unwrap();
        s.source("UPDATE whole SET n = n + 1");
        s.kill();
        s.source("UPDATE whole SET n = n + 1");
        lock.run("COMMIT");
        s.follow();
        wait_for_rounds(s);
        s.kill();
        s.follow();
        let met = wait_for_writers(s, stop, running);
        assert!(!s.log(0).contains("max_replication_slots"), "nothing is short: {}", s.log(0));
        met
    });
}
