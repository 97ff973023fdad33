//! The promises of `status` about consistency.
//!
//! From the first *streaming* on, readers of the target see states that the source had at a commit
//! boundary. While anything is at a later position than the rest, `status` says *catching up to
//! consistency*, until which position, and what waits. One observer per follower asks for the phase
//! and believes it.
//!
//! Every step on the source is a transaction that leaves the same number in each table. So a state
//! of the target in which they differ is one that the source never had.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use operate::control::{self, Request};
use serde_json::Value;
use testkit::wait_for;

use crate::support::{BOUND, Scenario, Session, scenario_with};

const CATCHING_UP: &str = "catching up to consistency";

/// Reads the target from the first moment at which the status of a follower claims that its states
/// are the source's.
struct Observer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    states: u64,
    violations: Vec<String>,
}

impl Observer {
    /// `state` reads one state of the target, in numbers that the source has all alike.
    fn start(s: &Scenario, number: usize, state: &'static str) -> Observer {
        let stop = Arc::new(AtomicBool::new(false));
        let (state_dir, name) = (s.pair().state_dir().to_owned(), s.name(number).to_owned());
        let (url, stopping) = (s.target_url(number), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut asking = Asking::new(state_dir, &name);
            let mut target = Session::to(&url);
            target.run("SELECT");
            let mut seen = Seen::default();
            while !asking.is_streaming() {
                if stopping.load(Ordering::Relaxed) {
                    return seen;
                }
                // Between two looks at a condition that has a bound.
                std::thread::sleep(Duration::from_millis(5));
            }
            while !stopping.load(Ordering::Relaxed) || seen.states == 0 {
                let row = target.query(state).unwrap().remove(0);
                seen.states += 1;
                if row.iter().any(|value| *value != row[0]) {
                    seen.violations.push(format!("{row:?}"));
                }
                // The pace of a load; no test waits for it.
                std::thread::sleep(Duration::from_millis(2));
            }
            seen
        });
        Observer { stop, thread }
    }

    fn start_all(s: &Scenario, state: &'static str) -> Vec<Observer> {
        (0..s.followers()).map(|number| Observer::start(s, number, state)).collect()
    }

    /// It must have seen states, and only the source's.
    #[track_caller]
    fn check(self, log: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.thread.join().expect("an observer does not panic");
        assert!(seen.states > 0, "never told that it streams:\n{log}");
        let (count, first) = (seen.violations.len(), &seen.violations[..seen.violations.len().min(5)]);
        assert_eq!(count, 0, "of {} states these were never the source's: {first:?}\n{log}", seen.states);
    }
}

/// Asks a running process, again and again.
struct Asking {
    runtime: tokio::runtime::Runtime,
    state_dir: PathBuf,
    name: base::SubscriptionName,
}

impl Asking {
    fn new(state_dir: PathBuf, name: &str) -> Asking {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Asking { runtime: runtime.unwrap(), state_dir, name: name.parse().unwrap() }
    }

    fn is_streaming(&mut self) -> bool {
        let answer = self.runtime.block_on(control::ask(&self.state_dir, &self.name, &Request::Status));
        answer.ok().and_then(|answer| answer.status).is_some_and(|status| status.phase == "streaming")
    }
}

/// Holds the target of every follower: what `sql` locks.
fn hold(s: &Scenario, sql: &str) -> Vec<Session> {
    let hold = |number| {
        let mut holder = Session::to(&s.target_url(number));
        holder.run(&format!("BEGIN; {sql}"));
        holder
    };
    (0..s.followers()).map(hold).collect()
}

fn release(holders: Vec<Session>) {
    holders.into_iter().for_each(|mut holder| holder.run("COMMIT"));
}

/// Waits until `table` is copied and takes part, everywhere.
#[track_caller]
fn wait_for_tables(s: &Scenario, tables: &str) {
    let finished = format!(
        "SELECT coalesce(bool_and(finished), false) FROM pgsluice.copied_table WHERE table_name IN ({tables})"
    );
    for number in 0..s.followers() {
        let copied = wait_for("tables to be copied", BOUND, || Ok(s.target_one_of(number, &finished) == "t"));
        assert!(copied.is_ok(), "{tables}: {copied:?}\n{}", s.log(number));
    }
}

/// Waits until the follower says what it has to catch up with, of these tables.
#[track_caller]
fn wait_until_catching_up(s: &Scenario, number: usize, tables: &[&str]) -> Value {
    let mut status = Value::Null;
    let told = wait_for(CATCHING_UP, BOUND, || {
        status = s.status(number);
        let named = status["catching_up"]["tables"].as_array().map_or(0, Vec::len);
        Ok(status["phase"] == CATCHING_UP && named == tables.len())
    });
    assert!(told.is_ok(), "{told:?}: {status}\n{}", s.log(number));
    let named: Vec<_> =
        status["catching_up"]["tables"].as_array().unwrap().iter().map(|table| &table["table"]).collect();
    assert_eq!(named, tables, "{status}");
    status
}

/// Waits until every follower says that it streams.
#[track_caller]
fn wait_until_streaming(s: &Scenario) {
    for number in 0..s.followers() {
        let streams = wait_for("streaming", BOUND, || Ok(s.status(number)["phase"] == "streaming"));
        assert!(streams.is_ok(), "{streams:?}: {}\n{}", s.status(number), s.log(number));
    }
}

/// The last position at which a table of the follower is level with the others.
fn latest(s: &Scenario, number: usize) -> String {
    s.target_one_of(number, "SELECT max(consistent_point) FROM pgsluice.copied_table")
}

/// One step: the next number, in every table. `rewritten` need not have it already.
const STEP: &str = "CREATE PROCEDURE step(times int) LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1 .. times LOOP \
    UPDATE clock SET n = n + 1 WHERE id = 1; \
    INSERT INTO ledger SELECT n, repeat('x', 200) FROM clock WHERE id = 1; \
    UPDATE rewritten SET n = (SELECT n FROM clock WHERE id = 1); \
    INSERT INTO emptied SELECT n FROM clock WHERE id = 1; \
    COMMIT; END LOOP; END $$";

/// The number as each table has it. `emptied` has one row of each step since it was emptied, which
/// was at step 100.
const STATE: &str = "SELECT (SELECT n FROM clock WHERE id = 1), (SELECT count(*) FROM ledger WHERE at > 0), \
    (SELECT max(at) FROM ledger), (SELECT n FROM rewritten), (SELECT max(n) FROM emptied), \
    (SELECT 100 + count(*) FROM emptied WHERE n > 100) FROM (VALUES (1)) v";

/// A table that is emptied or rewritten during the first copy is copied under a later snapshot than
/// the rest, behind a backlog.
#[test]
fn c1_streaming_is_said_when_what_was_copied_later_is_level_and_not_before() {
    let one = ["--max-sync-workers-per-subscription", "1"];
    let decoded = ["--max-sync-workers-per-subscription", "1", "--source-mode", "wal"];
    scenario_with(&[&one, &decoded], |s| {
        s.both(
            "CREATE TABLE big (id int PRIMARY KEY, v text); CREATE TABLE clock (id int PRIMARY KEY, n int8); \
             CREATE TABLE ledger (at int PRIMARY KEY, v text); CREATE TABLE rewritten (id int PRIMARY KEY, n int8); \
             CREATE TABLE emptied (n int PRIMARY KEY)",
        );
        // The largest is copied first, and is held up.
        s.source(
            "INSERT INTO big SELECT i, repeat('x', 200) FROM generate_series(1, 5000) i; \
             INSERT INTO clock SELECT i, 0 FROM generate_series(1, 1000) i; \
             INSERT INTO ledger SELECT -i, repeat('x', 200) FROM generate_series(1, 500) i; \
             INSERT INTO rewritten VALUES (1, 0)",
        );
        s.source(STEP);
        let (big, rewritten) = (hold(s, "LOCK big IN SHARE MODE"), hold(s, "LOCK rewritten IN SHARE MODE"));
        s.run();
        s.wait_for_log(", 6 tables");
        s.source("CALL step(99)");
        s.source(
            "BEGIN; TRUNCATE emptied; UPDATE clock SET n = 100 WHERE id = 1; INSERT INTO ledger VALUES (100, ''); \
             UPDATE rewritten SET n = 100; INSERT INTO emptied VALUES (100); COMMIT",
        );
        s.source("ALTER TABLE rewritten ALTER n TYPE int8 USING n + 0");
        s.source("CALL step(400)");
        release(big);
        wait_for_tables(s, "'big', 'clock', 'ledger'");
        // The stream will not get past its first transaction.
        let clock = hold(s, "SELECT FROM clock WHERE id = 1 FOR UPDATE");
        let observers = Observer::start_all(s, STATE);
        release(rewritten);
        let tables = ["public.emptied", "public.rewritten"];
        let told: Vec<Value> = (0..s.followers())
            .map(|number| {
                let told = wait_until_catching_up(s, number, &tables);
                let lsn = latest(s, number);
                assert_eq!(told["catching_up"]["lsn"], lsn.as_str());
                assert!(told["catching_up"]["bytes"].as_u64().unwrap() > 0, "{told}");
                let text = s.call(number, &["status"]).stdout;
                assert!(text.contains(&format!("{CATCHING_UP}, process")), "{text}");
                assert!(text.contains(&format!("from {lsn} on, ")), "{text}");
                assert!(
                    text.contains("copied later than the rest: public.emptied, public.rewritten"),
                    "{text}"
                );
                told
            })
            .collect();
        // The next process reads it from the target.
        s.stop();
        for (number, before) in told.iter().enumerate() {
            let stored = s.status(number);
            assert_eq!(stored["stored"]["catching_up"]["lsn"], before["catching_up"]["lsn"], "{stored}");
            let text = s.call(number, &["status"]).stdout;
            assert!(text.contains("copied later than the rest: public.emptied, public.rewritten"), "{text}");
        }
        s.run();
        for (number, before) in told.iter().enumerate() {
            let told = wait_until_catching_up(s, number, &tables);
            assert_eq!(told["catching_up"]["lsn"], before["catching_up"]["lsn"]);
        }
        release(clock);
        s.source("CALL step(300)");
        s.catch_up();
        wait_until_streaming(s);
        s.wait_for_log("caught up to consistency at ");
        s.source("CALL step(50)");
        s.catch_up();
        for (number, observer) in observers.into_iter().enumerate() {
            observer.check(&s.log(number));
            let status = s.status(number);
            assert_eq!((&status["phase"], &status["catching_up"]), (&"streaming".into(), &Value::Null));
            let began = format!("until the target has flushed {}", latest(s, number));
            assert!(s.log(number).contains(&began), "{}", s.log(number));
        }
        s.same();
    });
}

/// An added table is copied under a later snapshot while the stream lags behind. The phase is
/// *catching up* from the table's first row until the stream has passed that snapshot.
#[test]
fn c1_a_table_that_joins_takes_the_promise_back_until_it_is_level() {
    let often = ["--refresh-interval", "200ms"];
    let decoded = ["--refresh-interval", "200ms", "--source-mode", "wal"];
    const STATE: &str = "SELECT (SELECT n FROM clock WHERE id = 1), (SELECT n FROM late WHERE id = 1)";
    scenario_with(&[&often, &decoded], |s| {
        s.both(
            "CREATE TABLE clock (id int PRIMARY KEY, n int8); CREATE TABLE late (id int PRIMARY KEY, n int8)",
        );
        s.source(
            "INSERT INTO clock VALUES (1, 0); INSERT INTO late SELECT i, 0 FROM generate_series(1, 1000) i",
        );
        s.source(
            "CREATE PROCEDURE step(times int) LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1 .. times LOOP \
             UPDATE clock SET n = n + 1 WHERE id = 1; \
             UPDATE late SET n = (SELECT n FROM clock WHERE id = 1) WHERE id = 1; COMMIT; END LOOP; END $$",
        );
        s.publish("FOR TABLE clock, mark");
        s.follow();
        let phase = |s: &Scenario, number| s.status(number)["phase"].clone();
        wait_until_streaming(s);
        let clock = hold(s, "SELECT FROM clock WHERE id = 1 FOR UPDATE");
        let late = hold(s, "LOCK late IN SHARE MODE");
        s.source("CALL step(100)");
        s.source("ALTER PUBLICATION p ADD TABLE late");
        for number in 0..s.followers() {
            let status = wait_until_catching_up(s, number, &["public.late"]);
            assert_eq!(status["catching_up"]["tables"][0]["joined"], false, "{status}");
        }
        let observers = Observer::start_all(s, STATE);
        release(late);
        s.source("CALL step(100)");
        for number in 0..s.followers() {
            // Its rows are there, and those of the others are not.
            let there = wait_for("rows", BOUND, || {
                Ok(s.target_one_of(number, "SELECT coalesce(max(n), 0) >= 100 FROM late") == "t")
            });
            assert!(there.is_ok(), "{there:?}\n{}", s.log(number));
            assert_eq!(s.target_one_of(number, "SELECT n FROM clock"), "0");
            assert_eq!(phase(s, number), CATCHING_UP);
        }
        release(clock);
        wait_for_tables(s, "'late'");
        wait_until_streaming(s);
        s.source("CALL step(200)");
        s.catch_up();
        for (number, observer) in observers.into_iter().enumerate() {
            observer.check(&s.log(number));
            assert_eq!(phase(s, number), "streaming");
            assert!(s.log(number).contains("caught up to consistency at "), "{}", s.log(number));
        }
        s.same();
    });
}
