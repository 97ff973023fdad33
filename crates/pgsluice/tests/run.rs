//! A running subscription and the commands that talk to it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{Major, Output, Pair, Sluice, assert_same_rows, wait_for};

const BOUND: Duration = Duration::from_secs(30);

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pgsluice"))
}

fn on_every_major(test: impl Fn(&Pair)) {
    for major in Major::under_test() {
        test(&pair(major));
    }
}

/// Two servers with a table of 100 rows on the source, which is published.
fn pair(major: Major) -> Pair {
    let pair = Pair::start(major, major).unwrap();
    pair.both("postgres", "CREATE TABLE t (id int PRIMARY KEY, v text)").unwrap();
    pair.source
        .sql(
            "postgres",
            "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i; CREATE PUBLICATION p FOR TABLE t",
        )
        .unwrap();
    pair
}

fn start(pair: &Pair, args: &[&str]) -> Sluice {
    Sluice::start(Sluice::command_of(program(), pair, &[&["run"], args].concat())).unwrap()
}

fn call(pair: &Pair, args: &[&str]) -> Output {
    Sluice::call_of(program(), pair, args).unwrap()
}

fn status(pair: &Pair, name: &str) -> Value {
    let output = call(pair, &["status", "--json", "--subscription", name]);
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Waits until `name` streams and has applied everything.
fn wait_until_level(pair: &Pair, name: &str, sluice: &Sluice) {
    let end = pair.source.one("postgres", "SELECT pg_current_wal_insert_lsn()");
    let level = || {
        let status = status(pair, name);
        let applied = status["flushed"].as_str().unwrap_or("0/0").to_owned();
        let sql = format!("SELECT '{applied}'::pg_lsn >= '{end}'::pg_lsn");
        Ok(status["phase"] == "streaming" && pair.source.one("postgres", &sql) == "t")
    };
    if let Err(error) = wait_for("the target to be level", BOUND, level) {
        panic!("{error}: {}\n{}", status(pair, name), sluice.stderr());
    }
}

/// Slots, origins and schemas of ours on both servers.
fn left_behind(pair: &Pair) -> Vec<String> {
    let mut found = Vec::new();
    for cluster in [&pair.source, &pair.target] {
        let sql = "SELECT 'slot ' || slot_name FROM pg_replication_slots
                   UNION ALL SELECT 'origin ' || roname FROM pg_replication_origin
                   UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname = 'pgsluice'
                   UNION ALL SELECT 'session ' || application_name FROM pg_stat_activity
                              WHERE application_name LIKE 'pgsluice %'";
        found.extend(cluster.sql("postgres", sql).unwrap().into_iter().map(|mut row| row.remove(0).unwrap()));
    }
    found
}

#[test]
fn a_life_from_run_to_drop() {
    on_every_major(|pair| {
        let mut sluice = start(pair, &["--publication", "p"]);
        wait_until_level(pair, "p", &sluice);
        pair.source
            .sql("postgres", "UPDATE t SET v = 'w' WHERE id <= 10; DELETE FROM t WHERE id > 90")
            .unwrap();
        wait_until_level(pair, "p", &sluice);
        assert_same_rows(&pair.source, &pair.target, "postgres", "t");

        let seen = status(pair, "p");
        assert_eq!((&seen["running"], &seen["pid"]), (&true.into(), &sluice.pid().into()));
        assert_eq!(
            (&seen["totals"]["updates"], &seen["totals"]["deletes"]),
            (&10.into(), &10.into()),
            "{seen}"
        );
        assert_eq!(
            (&seen["copy"]["tables"][0]["state"], &seen["copy"]["tables"][0]["rows"]),
            (&"done".into(), &100.into())
        );
        wait_for("no lag", BOUND, || {
            let lag = &status(pair, "p")["lag"];
            Ok(lag["total"]["bytes"] == 0 && lag["total"]["seconds"] == 0.0 && lag["queue"]["bytes"] == 0)
        })
        .unwrap();
        let text = call(pair, &["status", "--subscription", "p"]).expect_success();
        assert!(text.contains("streaming, process") && text.contains("10 updated, 10 deleted"), "{text}");

        // Neither a second run nor a drop while it runs.
        for args in [&["run", "--publication", "p"][..], &["drop", "--subscription", "p"]] {
            let refused = call(pair, args);
            assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
            assert!(refused.stderr.contains(&sluice.pid().to_string()), "{}", refused.stderr);
        }

        let began = Instant::now();
        let said = call(pair, &["stop", "--subscription", "p"]).expect_success();
        let in_time = began.elapsed() < testkit::at_this_load(Duration::from_secs(5));
        assert!(said.contains("stopped") && in_time, "{said}");
        let ended = sluice.wait(Duration::from_secs(5)).unwrap().expect("it has ended");
        assert_eq!(ended.code(), Some(0), "{}", sluice.stderr());
        let seen = status(pair, "p");
        assert_eq!(
            (&seen["running"], &seen["stored"]["tables_copied"]),
            (&false.into(), &1.into()),
            "{seen}"
        );

        call(pair, &["drop", "--subscription", "p"]).expect_success();
        assert_eq!(left_behind(pair), [""; 0]);
        assert_eq!(std::fs::read_dir(pair.state_dir()).unwrap().count(), 0);
        assert_eq!(pair.target.one("postgres", "SELECT count(*) FROM t"), "90");
    });
}

#[test]
fn another_state_directory_does_not_get_round_the_lock_on_the_target() {
    // The lock is waited for, which takes its time: one major is enough.
    let pair = &pair(Major::under_test().pop().unwrap());
    let sluice = start(pair, &["--publication", "p"]);
    wait_until_level(pair, "p", &sluice);
    let elsewhere = tempfile::tempdir().unwrap();
    let dir = elsewhere.path().to_str().unwrap();
    let refused = call(pair, &["run", "--publication", "p", "--state-dir", dir]);
    assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
    let refused = call(pair, &["drop", "--subscription", "p", "--state-dir", dir]);
    assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
    assert_eq!(status(pair, "p")["phase"], "streaming");
}

#[test]
fn a_signal_ends_it_within_five_seconds() {
    on_every_major(|pair| {
        let mut sluice = start(pair, &["--publication", "p"]);
        wait_until_level(pair, "p", &sluice);
        assert_eq!(sluice.terminate(Duration::from_secs(5)).unwrap().code(), Some(0));
        // And while it waits for a server that is away.
        let mut sluice =
            start(pair, &["--publication", "p", "--source", "host=127.0.0.1 port=1 user=u dbname=d"]);
        wait_for("an attempt to fail", BOUND, || Ok(status(pair, "p")["last_error"].is_object())).unwrap();
        assert_eq!(sluice.terminate(Duration::from_secs(5)).unwrap().code(), Some(0));
    });
}

/// Has the applier wait for a lock on the target while `then` runs.
fn while_the_applier_waits(pair: &Pair, id: u32, then: impl FnOnce()) {
    let sessions = |condition: &str| {
        pair.target.one("postgres", &format!("SELECT count(*) FROM pg_stat_activity WHERE {condition}"))
    };
    std::thread::scope(|scope| {
        let url = pair.target.url("postgres");
        let holder = scope.spawn(move || testkit::query(&url, "BEGIN; LOCK TABLE t; SELECT pg_sleep(300)"));
        let held = "wait_event = 'PgSleep'";
        wait_for("the lock", BOUND, || Ok(sessions(held) == "1")).unwrap();
        pair.source.sql("postgres", &format!("INSERT INTO t VALUES ({id}, 'late')")).unwrap();
        let waiting = "application_name LIKE 'pgsluice p %' AND wait_event_type = 'Lock'";
        wait_for("the applier to wait", BOUND, || Ok(sessions(waiting) == "1")).unwrap();
        then();
        let sql = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {held}");
        pair.target.sql("postgres", &sql).unwrap();
        assert!(holder.join().unwrap().is_err());
    });
}

#[test]
fn a_batch_that_waits_for_a_lock_does_not_delay_the_end() {
    on_every_major(|pair| {
        let mut sluice = start(pair, &["--publication", "p"]);
        wait_until_level(pair, "p", &sluice);
        let mut ended = None;
        while_the_applier_waits(pair, 300, || ended = sluice.terminate(Duration::from_secs(5)).ok());
        assert_eq!(ended.and_then(|status| status.code()), Some(0), "{}", sluice.stderr());

        // The second signal does not even wait for that.
        let mut sluice = start(pair, &["--publication", "p"]);
        wait_until_level(pair, "p", &sluice);
        while_the_applier_waits(pair, 301, || {
            sluice.ask_to_stop();
            wait_for("the first signal to be heard", BOUND, || Ok(sluice.stderr().contains("stopping")))
                .unwrap();
            sluice.ask_to_stop();
            ended = sluice.wait(Duration::from_secs(2)).unwrap();
        });
        assert_eq!(ended.and_then(|status| status.code()), Some(128 + 15), "{}", sluice.stderr());
        let sluice = start(pair, &["--publication", "p"]);
        wait_until_level(pair, "p", &sluice);
        assert_same_rows(&pair.source, &pair.target, "postgres", "t");
    });
}

#[test]
fn after_a_kill_the_name_is_free_again() {
    on_every_major(|pair| {
        let mut sluice = start(pair, &["--publication", "p"]);
        wait_until_level(pair, "p", &sluice);
        sluice.kill9();
        assert_eq!(status(pair, "p")["running"], false);
        pair.source.sql("postgres", "INSERT INTO t VALUES (1000, 'after')").unwrap();
        let sluice = start(pair, &["--publication", "p"]);
        wait_until_level(pair, "p", &sluice);
        assert_same_rows(&pair.source, &pair.target, "postgres", "t");
    });
}

/// The LSN of the transaction that cannot be applied, as the error names it.
fn failing_lsn(pair: &Pair) -> Option<String> {
    let status = status(pair, "p");
    let message = status["last_error"]["message"].as_str()?;
    let lsn = message
        .split(|c: char| !c.is_ascii_hexdigit() && c != '/')
        .find(|word| word.split_once('/').is_some_and(|(high, low)| !high.is_empty() && !low.is_empty()));
    lsn.map(str::to_owned)
}

#[test]
fn one_transaction_can_be_skipped() {
    on_every_major(|pair| {
        let sluice = start(pair, &["--publication", "p", "--wal-retrieve-retry-interval", "1h"]);
        wait_until_level(pair, "p", &sluice);
        pair.target.sql("postgres", "INSERT INTO t VALUES (200, 'local')").unwrap();
        pair.source.sql("postgres", "INSERT INTO t VALUES (200, 'source'), (201, 'source')").unwrap();
        pair.source.sql("postgres", "INSERT INTO t VALUES (202, 'source')").unwrap();
        wait_for("the conflict", BOUND, || Ok(failing_lsn(pair).is_some())).unwrap();
        let seen = status(pair, "p");
        assert_eq!(seen["totals"]["conflicts"]["insert_exists"], 1, "{seen}");
        // It waits an hour; skip wakes it.
        call(pair, &["skip", "--subscription", "p", "--lsn", &failing_lsn(pair).unwrap()]).expect_success();
        wait_until_level(pair, "p", &sluice);
        let rows =
            pair.target.one("postgres", "SELECT string_agg(id || v, ',' ORDER BY id) FROM t WHERE id >= 200");
        assert_eq!(rows, "200local,202source");
        assert_eq!(status(pair, "p")["totals"]["skipped_transactions"], 1);
        assert_eq!(pair.target.one("postgres", "SELECT skip_lsn FROM pgsluice.subscription"), "");
    });
}

#[test]
fn what_fails_can_be_disabled_and_enabled_again() {
    on_every_major(|pair| {
        let mut sluice = start(pair, &["--publication", "p", "--disable-on-error"]);
        wait_until_level(pair, "p", &sluice);
        pair.target.sql("postgres", "INSERT INTO t VALUES (200, 'local')").unwrap();
        pair.source.sql("postgres", "INSERT INTO t VALUES (200, 'source')").unwrap();
        let ended = sluice.wait(BOUND).unwrap().expect("it ends");
        assert_eq!(ended.code(), Some(4), "{}", sluice.stderr());
        assert_eq!(status(pair, "p")["stored"]["enabled"], false);
        assert_eq!(call(pair, &["run", "--publication", "p"]).status.code(), Some(4));
        pair.target.sql("postgres", "DELETE FROM t WHERE id = 200").unwrap();
        call(pair, &["enable", "--subscription", "p"]).expect_success();
        let mut sluice = start(pair, &["--publication", "p"]);
        wait_until_level(pair, "p", &sluice);
        assert_same_rows(&pair.source, &pair.target, "postgres", "t");
        call(pair, &["disable", "--subscription", "p"]).expect_success();
        assert_eq!(sluice.wait(BOUND).unwrap().expect("it ends").code(), Some(0));
    });
}

/// One HTTP answer's body.
fn fetch(address: &str, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn several_subscriptions_in_one_process_and_their_metrics() {
    on_every_major(|pair| {
        pair.both("postgres", "CREATE TABLE u (id int PRIMARY KEY)").unwrap();
        pair.source.sql("postgres", "INSERT INTO u VALUES (1); CREATE PUBLICATION q FOR TABLE u").unwrap();
        let file = pair.state_dir().join("pgsluice.toml");
        let text = "metrics = \"127.0.0.1:0\"\nlog_format = \"json\"\n\
                    [[subscription]]\nname = \"one\"\npublication = \"p\"\n\
                    [[subscription]]\nname = \"two\"\npublication = [\"q\"]\nwal_receiver_timeout = \"30s\"\n";
        std::fs::write(&file, text).unwrap();
        let config = file.to_str().unwrap();
        let mut sluice = start(pair, &["--config", config]);
        wait_until_level(pair, "one", &sluice);
        wait_until_level(pair, "two", &sluice);
        assert_same_rows(&pair.source, &pair.target, "postgres", "u");

        let log = sluice.stderr();
        let mut address = None;
        for line in log.lines() {
            let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let message = event["message"].as_str().unwrap_or_default();
            let found = message
                .strip_prefix("serving metrics at http://")
                .and_then(|rest| rest.strip_suffix("/metrics"));
            address = address.or(found.map(str::to_owned));
        }
        let address = address.expect("the log names the address");
        assert!(fetch(&address, "/healthz").starts_with("HTTP/1.1 200"));
        let metrics = fetch(&address, "/metrics");
        for line in [
            "pgsluice_up{subscription=\"one\"} 1",
            "pgsluice_up{subscription=\"two\"} 1",
            "pgsluice_copy_rows_total{subscription=\"one\",table=\"public.t\"} 100",
            "pgsluice_confl_update_missing_total{subscription=\"two\"} 0",
        ] {
            assert!(metrics.lines().any(|found| found == line), "{line} in\n{metrics}");
        }

        // Stopping one leaves the other.
        call(pair, &["stop", "--config", config, "--subscription", "one"]).expect_success();
        assert_eq!(status(pair, "one")["running"], false);
        pair.source.sql("postgres", "INSERT INTO u VALUES (2)").unwrap();
        wait_until_level(pair, "two", &sluice);
        assert_same_rows(&pair.source, &pair.target, "postgres", "u");
        assert_eq!(sluice.terminate(Duration::from_secs(5)).unwrap().code(), Some(0));
        for name in ["one", "two"] {
            call(pair, &["drop", "--config", config, "--subscription", name]).expect_success();
        }
        assert_eq!(left_behind(pair), [""; 0]);
    });
}
