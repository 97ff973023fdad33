//! pgsluice takes a native subscription over and hands it back: nothing is lost, and nothing comes
//! twice.
//!
//! `history` has no key and gets a row from every transaction, so a transaction that is applied
//! twice stays visible. `counter` shows the last transaction that touched a row.

mod ends;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::{Builder, Output, Sluice, wait_for};

use crate::support::{BOUND, FOLDED, STOP, Scenario, Session, scenario_alone};

const TABLES: &str =
    "CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL); CREATE TABLE history (n int NOT NULL)";

/// One pgsluice.
fn adopting(scenario: impl Fn(&mut Scenario) + Sync) {
    scenario_alone(&[FOLDED], |source| source.setting("max_prepared_transactions", "2"), impatient, scenario);
}

/// A target whose native worker tries again soon.
fn impatient(target: Builder) -> Builder {
    target.setting("wal_retrieve_retry_interval", "100ms").setting("max_prepared_transactions", "2")
}

/// Tables, publication and a native subscription under the follower's name, level with the source.
fn begin(s: &mut Scenario) {
    s.both(TABLES);
    s.source("INSERT INTO counter SELECT i, 0 FROM generate_series(1, 20) i; INSERT INTO history VALUES (0)");
    s.publish("FOR ALL TABLES");
    let name = s.name(0).to_owned();
    s.target(&format!("CREATE SUBSCRIPTION {name} CONNECTION '{}' PUBLICATION p", s.source_url()));
    native_ready(s);
}

fn native_ready(s: &Scenario) {
    let ready = "SELECT (count(*) = 3 AND bool_and(srsubstate = 'r'))::text FROM pg_subscription_rel";
    wait_for("the native copy", BOUND, || Ok(s.target_one(ready) == "true")).unwrap();
}

/// Waits until the target has everything that the source has, whichever side applies it.
fn level(s: &mut Scenario) {
    let id = s.mark();
    let there = format!("SELECT count(*) FROM mark WHERE id = {id}");
    let reached = wait_for("the target to be level", BOUND, || Ok(s.target_one(&there) == "1"));
    assert!(reached.is_ok(), "{reached:?}\n{}", s.pair().target.log());
}

fn call(s: &Scenario, args: &[&str]) -> Output {
    s.call(0, args)
}

#[track_caller]
fn done(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

#[track_caller]
fn refused(output: &Output, words: &[&str]) {
    assert!(!output.status.success(), "{output:?}");
    for word in words {
        assert!(output.stderr.contains(word), "{word} in {output:?}");
    }
}

/// A process that stays, with what the command line lacks taken from the target.
fn start(s: &Scenario, args: &[&str]) -> Sluice {
    let mut command = s.command(0, args);
    command.env_remove("PGSLUICE_SOURCE");
    let sluice = Sluice::start(command).unwrap();
    let streams = wait_for("the stream", BOUND, || Ok(sluice.stderr().contains("streaming from")));
    assert!(streams.is_ok(), "{}{}", sluice.stdout(), sluice.stderr());
    sluice
}

/// Nothing of pgsluice is left on either end, and the native subscription works.
#[track_caller]
fn handed_back(s: &Scenario) {
    assert_eq!(s.left_behind(), Vec::<String>::new());
    assert_eq!(s.target_one("SELECT count(*) FROM pg_namespace WHERE nspname = 'pgsluice'"), "0");
    assert_eq!(
        s.target_one("SELECT concat(subenabled, ' ', subslotname) FROM pg_subscription"),
        format!("t {}", s.name(0))
    );
}

/// Writes until it is dropped: short transactions, now and then a large one or one that is rolled
/// back.
struct Load {
    stop: Arc<AtomicBool>,
    commits: Arc<AtomicU32>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn on(s: &Scenario) -> Load {
        let (stop, commits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let writer = |number: u32| {
            let (stop, commits, url) = (Arc::clone(&stop), Arc::clone(&commits), s.source_url());
            std::thread::spawn(move || {
                let mut session = Session::to(&url);
                let mut n = number * 1_000_000;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let rows = if n.is_multiple_of(500) { 3_000 } else { 1 };
                    let end = if n.is_multiple_of(7) { "ROLLBACK" } else { "COMMIT" };
                    session.run(&format!(
                        "BEGIN; UPDATE counter SET n = n + 1 WHERE id = {}; \
                         INSERT INTO history SELECT {n} FROM generate_series(1, {rows}); {end}",
                        number * 10 - n % 10
                    ));
                    commits.fetch_add(1, Ordering::Relaxed);
                    // The pace of a load; no test waits for it.
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        };
        let threads = vec![writer(1), writer(2)];
        Load { stop, commits, threads }
    }

    fn end(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.commits.load(Ordering::Relaxed)
    }
}

/// `rounds` times to pgsluice and back while the source is written to.
fn there_and_back(s: &mut Scenario, rounds: u32) {
    begin(s);
    let name = s.name(0).to_owned();
    let load = Load::on(s);
    for round in 0..rounds {
        let mut sluice = start(s, &["adopt"]);
        level(s);
        assert_eq!(s.target_one("SELECT concat(subenabled, ' ', subslotname) FROM pg_subscription"), "f ");
        if round > 0 {
            // Stopped and continued as any other.
            assert!(sluice.terminate(STOP).unwrap().success(), "{}", sluice.stderr());
            sluice = start(s, &["run"]);
        }
        if round == 1 {
            sluice.kill9();
            sluice = start(s, &["run"]);
            level(s);
        }
        let status = s.status(0);
        assert_eq!(status["running"], true, "{status}");
        assert_eq!(status["copy"]["tables"].as_array().map(Vec::len), Some(0), "{status}");
        // Handed back while it runs.
        let said = done(call(s, &["release"]));
        assert!(said.contains("stopped (process") && said.contains("handed back at"), "{said}");
        assert!(!sluice.is_running());
        handed_back(s);
        level(s);
    }
    assert!(load.end() > 100);
    level(s);
    s.same();
    assert_eq!(
        s.source_one(&format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{name}'")),
        "1"
    );
}

#[test]
fn there_and_back_under_load_loses_and_repeats_nothing() {
    adopting(|s| there_and_back(s, 3));
}

#[test]
fn killed_at_any_instant_it_is_repeated() {
    adopting(|s| {
        begin(s);
        let load = Load::on(s);
        let killed_after = |s: &Scenario, args: &[&str], after: u64| {
            let mut sluice = Sluice::start(s.command(0, args)).unwrap();
            // The instants of the kills are what is tested.
            std::thread::sleep(Duration::from_millis(after));
            sluice.kill9();
        };
        for (round, after) in [50, 120, 300, 700, 1_100].into_iter().enumerate() {
            killed_after(s, &["adopt", "--prepare-only"], after);
            if round % 2 == 0 {
                // Half adopted or not at all: it can be given back.
                done(call(s, &["release"]));
                level(s);
            }
            done(call(s, &["adopt", "--prepare-only"]));
            assert!(done(call(s, &["adopt", "--prepare-only"])).contains("adopted already"));
            let mut sluice = start(s, &["run"]);
            level(s);
            if round % 2 == 1 {
                sluice.kill9();
            } else {
                assert!(sluice.terminate(STOP).unwrap().success());
            }
            killed_after(s, &["release"], after / 3);
            done(call(s, &["release"]));
            assert!(done(call(s, &["release"])).contains("has nothing of it"));
            handed_back(s);
        }
        assert!(load.end() > 100);
        level(s);
        s.same();
    });
}

#[test]
fn a_backlog_is_applied_and_not_copied_again() {
    adopting(|s| {
        begin(s);
        let name = s.name(0).to_owned();
        s.target(&format!("ALTER SUBSCRIPTION {name} DISABLE"));
        s.source(
            "INSERT INTO history SELECT i FROM generate_series(1, 20000) i; UPDATE counter SET n = n + 1",
        );
        for n in 0..50 {
            s.source(&format!("INSERT INTO history VALUES ({n}); UPDATE counter SET n = n + 1"));
        }
        // A row that only a copy would bring, and one that a copy would trip over.
        s.target("DELETE FROM history WHERE n = 0");
        let mut sluice = start(s, &["adopt"]);
        level(s);
        assert_eq!(s.target_one("SELECT count(*) FROM history"), "20050");
        assert_eq!(s.status(0)["copy"]["tables"].as_array().map(Vec::len), Some(0));
        s.same_table("counter");
        // A table that is new is not taken in silently.
        s.both("CREATE TABLE later (id int PRIMARY KEY)");
        s.source("INSERT INTO later VALUES (1)");
        level(s);
        assert_eq!(s.target_one("SELECT count(*) FROM later"), "0");
        // Its former owner can be dropped; slot and stream are not concerned.
        s.target(&format!("DROP SUBSCRIPTION {name}"));
        level(s);
        assert!(sluice.terminate(STOP).unwrap().success());
        refused(&call(s, &["release"]), &["has been dropped"]);
        let mut sluice = Sluice::start(s.command(0, &["run"])).unwrap();
        level(s);
        assert!(sluice.terminate(STOP).unwrap().success());
        done(call(s, &["drop"]));
        assert_eq!(s.source_one("SELECT count(*) FROM pg_replication_slots"), "0");
        assert_eq!(s.left_behind(), Vec::<String>::new());
    });
}

#[test]
fn what_cannot_be_adopted_is_refused_and_left_as_it_is() {
    adopting(|s| {
        begin(s);
        let name = s.name(0).to_owned();
        let adopt = ["adopt", "--prepare-only"];
        let untouched = |s: &Scenario| handed_back(s);
        let missing = call(s, &["adopt", "--prepare-only", "--native", "nobody"]);
        assert_eq!(missing.status.code(), Some(5), "{missing:?}");
        refused(&missing, &["no native subscription \"nobody\""]);
        assert!(done(call(s, &["release"])).contains("has nothing of it"));
        // A table that is still synchronising: its first copy cannot succeed.
        s.both("CREATE TABLE late (id int PRIMARY KEY)");
        s.source("INSERT INTO late VALUES (1)");
        s.target("INSERT INTO late VALUES (1)");
        s.target(&format!("ALTER SUBSCRIPTION {name} REFRESH PUBLICATION"));
        refused(&call(s, &adopt), &["still synchronising public.late", "pg_subscription_rel"]);
        untouched(s);
        s.target("DELETE FROM late");
        let ready = "SELECT bool_and(srsubstate = 'r')::text FROM pg_subscription_rel";
        wait_for("the native copy", BOUND, || Ok(s.target_one(ready) == "true")).unwrap();
        // A role that does not own it.
        s.target("CREATE ROLE stranger LOGIN");
        let mut command = s.command(0, &adopt);
        let url = s.target_url(0);
        let stranger = url.replacen("postgres://", "", 1);
        let stranger = stranger.split_once('@').map_or(stranger.as_str(), |(_, rest)| rest).to_owned();
        command.env("PGSLUICE_TARGET", format!("postgres://stranger@{stranger}"));
        let mut sluice = Sluice::start(command).unwrap();
        sluice.wait(BOUND).unwrap();
        assert!(sluice.stderr().contains("belongs to role"), "{}", sluice.stderr());
        untouched(s);
        // What the native worker has yet to skip, and what pgsluice does not have.
        if s.major() >= 15 {
            s.target(&format!("ALTER SUBSCRIPTION {name} SKIP (lsn = 'FFFF/0')"));
            refused(&call(s, &adopt), &["waits to skip", "SKIP (lsn = NONE)"]);
            s.target(&format!("ALTER SUBSCRIPTION {name} SKIP (lsn = NONE)"));
            s.target(&format!("CREATE SUBSCRIPTION two CONNECTION '{}' PUBLICATION p WITH (two_phase, copy_data = off, enabled = off)", s.source_url()));
            refused(&call(s, &["adopt", "--prepare-only", "--native", "two"]), &["two_phase enabled"]);
            s.target("DROP SUBSCRIPTION two");
        }
        untouched(s);
        // Another slot than the native one's is not touched: a wrong source.
        let elsewhere = s.source_url().replace(&format!("/{}", name.trim_end_matches("_0")), "/postgres");
        refused(
            &call(s, &["adopt", "--prepare-only", "--source", &elsewhere]),
            &["is another's", "--source"],
        );
        untouched(s);
        // Adopted: what would use the slot besides is kept away, or noticed.
        let said = done(call(s, &adopt));
        assert!(said.contains("nothing copied"), "{said}");
        refused(&call(s, &["drop"]), &["pgsluice release"]);
        let sessions = Session::to(&s.target_url(0)).query(&format!("ALTER SUBSCRIPTION {name} ENABLE"));
        assert!(sessions.unwrap_err().contains("does not have a slot name"));
        s.target(&format!("ALTER SUBSCRIPTION {name} SET (slot_name = '{name}')"));
        let given_back = format!("slot \"{name}\" again");
        refused(&call(s, &["run"]), &[&given_back]);
        refused(&call(s, &["release"]), &[&given_back]);
        let status = call(s, &["status"]).stdout;
        assert!(status.contains(&given_back) && status.contains("from native subscription"), "{status}");
        s.target(&format!("ALTER SUBSCRIPTION {name} SET (slot_name = NONE)"));
        let mut sluice = start(s, &["run"]);
        level(s);
        let check = call(s, &["check"]);
        assert_ne!(check.status.code(), Some(2), "{check:?}");
        assert!(sluice.terminate(STOP).unwrap().success());
        done(call(s, &["release"]));
        untouched(s);
        level(s);
        s.same();
        // Forced, it goes with its slot.
        done(call(s, &adopt));
        let forced = call(s, &["drop", "--force"]);
        assert!(forced.stderr.contains("left disabled and without a slot"), "{forced:?}");
        assert_eq!(s.source_one("SELECT count(*) FROM pg_replication_slots"), "0");
        assert_eq!(s.left_behind(), Vec::<String>::new());
    });
}

#[test]
fn the_native_worker_ends_its_transaction_first() {
    adopting(|s| {
        begin(s);
        let mut holder = Session::to(&s.target_url(0));
        holder.run("BEGIN; UPDATE counter SET n = n WHERE id = 1");
        s.source("UPDATE counter SET n = 1 WHERE id = 1; INSERT INTO history VALUES (1)");
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        wait_for("the native worker to wait", BOUND, || Ok(s.target_one(waits) == "1")).unwrap();
        let mut sluice = Sluice::start(s.command(0, &["adopt"])).unwrap();
        let disabled = "SELECT (NOT subenabled)::text FROM pg_subscription";
        wait_for("the subscription to be disabled", BOUND, || Ok(s.target_one(disabled) == "true")).unwrap();
        sluice.kill9();
        // Half adopted: no process may start from nothing with this name.
        refused(&call(s, &["run"]), &["was interrupted", "pgsluice adopt"]);
        let mut sluice = Sluice::start(s.command(0, &["adopt"])).unwrap();
        let looks = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgsluice % command' \
                      AND query LIKE '%pg_stat_subscription%'";
        wait_for("adopt to wait", BOUND, || Ok(s.target_one(looks) != "0")).unwrap();
        let unfinished = "SELECT (consistent_point IS NULL)::text FROM pgsluice.subscription";
        assert_eq!(s.target_one(unfinished), "true");
        assert!(sluice.is_running());
        holder.run("ROLLBACK");
        level(s);
        s.same();
        assert!(sluice.terminate(STOP).unwrap().success(), "{}", sluice.stderr());
        done(call(s, &["release"]));
        level(s);
        s.same();
    });
}
