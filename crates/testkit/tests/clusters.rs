//! Tests the harness itself, on real servers. A test of a test must be able to fail, so each one
//! breaks something.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use testkit::{Cluster, Major, Pair, StopMode, assert_same_rows, same_rows, wait_for};

#[test]
fn a_pair_starts_answers_and_leaves_nothing_behind() {
    for major in Major::under_test() {
        let started = Instant::now();
        let pair = Pair::start(major, major).unwrap();
        println!("a pair of {major} started in {:?}", started.elapsed());
        let version = pair.source.one("postgres", "SHOW server_version_num");
        assert!(version.starts_with(&major.to_string()), "{version}");
        assert_eq!(pair.target.one("postgres", "SHOW wal_level"), "logical");
        let dirs = [pair.source.data_dir(), pair.target.data_dir(), pair.state_dir().to_owned()];
        let url = pair.source.url("postgres");
        drop(pair);
        assert!(dirs.iter().all(|dir| !dir.exists()), "{dirs:?}");
        assert!(testkit::query(&url, "SELECT 1").is_err(), "the server is gone");
    }
}

#[test]
fn the_second_cluster_of_a_major_is_a_copy_with_a_life_of_its_own() {
    let first = Cluster::start(Major::V18).unwrap();
    first.sql("postgres", "CREATE TABLE t AS SELECT 1 AS a").unwrap();
    let second = Cluster::start(Major::V18).unwrap();
    assert_ne!(first.port(), second.port());
    assert_eq!(second.one("postgres", "SELECT to_regclass('t') IS NULL"), "t");
    let identifier = "SELECT system_identifier FROM pg_control_system()";
    assert_ne!(first.one("postgres", identifier), second.one("postgres", identifier));
}

#[test]
fn what_was_committed_survives_kill9() {
    for major in Major::under_test() {
        let mut cluster = Cluster::builder(major).durable().start().unwrap();
        cluster.sql("postgres", "CREATE TABLE t AS SELECT generate_series(1, 1000) AS a").unwrap();
        let (port, pid) = (cluster.port(), cluster.pid());
        cluster.kill9();
        assert!(cluster.pid().is_none());
        assert!(cluster.sql("postgres", "SELECT 1").is_err());
        cluster.start_again().unwrap();
        assert_eq!(cluster.port(), port);
        assert_ne!(cluster.pid(), pid);
        assert_eq!(cluster.one("postgres", "SELECT count(*) FROM t"), "1000");
        assert!(cluster.log().contains("automatic recovery in progress"), "it was a crash");
    }
}

#[test]
fn settings_reach_the_server_and_survive_a_restart() {
    let mut cluster = Cluster::builder(Major::V15).setting("work_mem", "7MB").start().unwrap();
    assert_eq!(cluster.one("postgres", "SHOW work_mem"), "7MB");
    assert_eq!(cluster.one("postgres", "SHOW fsync"), "off");
    cluster.restart(StopMode::Fast).unwrap();
    assert_eq!(cluster.one("postgres", "SHOW work_mem"), "7MB");
}

#[test]
fn a_clock_of_its_own_is_ahead_for_sessions_and_commits_and_after_a_crash() {
    for major in Major::under_test() {
        let builder = Cluster::builder(major).own_clock().setting("track_commit_timestamp", "on");
        let mut cluster = builder.start().unwrap();
        // Hours, which no machine is busy for.
        let ahead = |cluster: &Cluster, time: &str| {
            let seconds = format!("SELECT extract(epoch FROM {time})::bigint");
            let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            cluster.one("postgres", &seconds).parse::<u64>().unwrap().saturating_sub(here) / 3_600
        };
        assert_eq!(ahead(&cluster, "clock_timestamp()"), 0);
        cluster.sql("postgres", "CREATE TABLE t (a int)").unwrap();
        cluster.set_clock_ahead(Duration::from_secs(10 * 3_600 + 1_800));
        cluster.sql("postgres", "INSERT INTO t VALUES (1)").unwrap();
        let committed = "(SELECT pg_xact_commit_timestamp(xmin) FROM t)";
        assert_eq!((ahead(&cluster, "clock_timestamp()"), ahead(&cluster, committed)), (10, 10));
        cluster.kill9();
        cluster.start_again().unwrap();
        assert_eq!((ahead(&cluster, "clock_timestamp()"), ahead(&cluster, committed)), (10, 10));
    }
}

#[test]
fn the_comparison_sees_one_changed_row_and_forgives_the_order_of_columns() {
    let pair = Pair::start(Major::V15, Major::V18).unwrap();
    pair.source.sql("postgres", "CREATE TABLE t (a int PRIMARY KEY, b text)").unwrap();
    pair.target.sql("postgres", "CREATE TABLE t (b text, a int PRIMARY KEY, more int DEFAULT 1)").unwrap();
    pair.both("postgres", "INSERT INTO t (a, b) SELECT i, 'row ' || i FROM generate_series(1, 100) i")
        .unwrap();
    assert_same_rows(&pair.source, &pair.target, "postgres", "t");
    assert_eq!(same_rows(&pair.source, &pair.target, "postgres", "t").unwrap().rows, 100);
    pair.target.sql("postgres", "UPDATE t SET b = 'else' WHERE a = 17").unwrap();
    let error = same_rows(&pair.source, &pair.target, "postgres", "t").unwrap_err().to_string();
    assert!(error.contains("(17,\"row 17\")") && error.contains("(17,else)"), "{error}");
}

#[test]
fn a_value_of_the_last_statement_comes_back_and_an_error_shows_the_servers_words() {
    let cluster = Cluster::start(Major::V15).unwrap();
    let rows = cluster.sql("postgres", "SELECT 1; SELECT NULL, 'two'").unwrap();
    assert_eq!(rows, [[None, Some("two".to_owned())]]);
    assert!(cluster.sql("postgres", "SELECT 1; CREATE TABLE t (a int)").unwrap().is_empty());
    let error = cluster.sql("postgres", "SELECT * FROM missing").unwrap_err().to_string();
    assert!(error.contains("42P01") && error.contains("missing"), "{error}");
}

#[test]
fn cpu_time_is_told_by_kind_of_process_even_after_its_end() {
    let cluster = Cluster::start(Major::V15).unwrap();
    cluster.sql("postgres", "SELECT count(*) FROM generate_series(1, 2000000)").unwrap();
    let seconds = |kind: &str| cluster.cpu_seconds().iter().find(|(k, _)| k == kind).map_or(0.0, |(_, s)| *s);
    wait_for("the backend's time", Duration::from_secs(10), || Ok(seconds("exited") > 0.05)).unwrap();
    assert!(cluster.cpu_seconds().iter().any(|(kind, _)| kind == "checkpointer"));
}

/// Set in the process that [`a_killed_test_leaves_no_server_behind`] starts: where to write the
/// postmaster's pid.
const HOLD: &str = "TESTKIT_HOLD";

#[test]
fn a_killed_test_leaves_no_server_behind() {
    if let Ok(path) = std::env::var(HOLD) {
        let cluster = Cluster::start(Major::V15).unwrap();
        std::fs::write(&path, format!("{} {}", cluster.pid().unwrap(), cluster.data_dir().display()))
            .unwrap();
        loop {
            std::thread::park();
        }
    }
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("held");
    let mut test = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_test_leaves_no_server_behind"])
        .env(HOLD, &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let held = || std::fs::read_to_string(&path).unwrap_or_default();
    let bound = Duration::from_secs(60);
    wait_for("the other process's server", bound, || Ok(held().contains(' '))).unwrap();
    let held = held();
    let (pid, data) = held.split_once(' ').unwrap();
    assert!(std::fs::exists(format!("/proc/{pid}")).unwrap());
    test.kill().unwrap();
    test.wait().unwrap();
    wait_for("the server's end", bound, || Ok(!std::fs::exists(format!("/proc/{pid}"))?)).unwrap();
    // The directory is swept by the next process that starts a cluster: not asserted, another test
    // may be first.
    let _ = std::fs::remove_dir_all(std::path::Path::new(data).parent().unwrap());
}
