//! Faults around both servers: forgotten locks, networks that stall silently, full disks. Each is
//! reported with its remedy. When it is over, pgsluice continues by itself and nothing is lost.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use testkit::{Cluster, Proxy, SmallDisk, StopMode, wait_for};

use crate::support::{BOUND, FOLDED, Scenario, Session, scenario_alone, scenario_with};

/// A session that holds the locks of `sql` on the target, and its process id.
fn holder(s: &Scenario, sql: &str) -> (Session, String) {
    let mut session = Session::to(&(s.target_url(0) + "?application_name=forgotten"));
    let pid = session.query("SELECT pg_backend_pid()").unwrap()[0][0].clone().unwrap();
    session.run(&format!("BEGIN; {sql}"));
    (session, pid)
}

/// Waits until `status` names the holder, and returns its description of the lock.
#[track_caller]
fn blocked_by(s: &Scenario, pid: &str) -> Value {
    let pid: i64 = pid.parse().unwrap();
    let mut blocked = Value::Null;
    let named = wait_for("status to name the holder", BOUND, || {
        blocked = s.status(0)["blocked"].clone();
        Ok(blocked["blocking_pids"][0] == pid)
    });
    assert!(named.is_ok(), "{blocked}\n{}", s.log(0));
    blocked
}

#[track_caller]
fn free_again(s: &Scenario) {
    wait_for("status to be free again", BOUND, || Ok(s.status(0)["blocked"] == Value::Null)).unwrap();
}

#[test]
fn a_target_that_waits_for_a_lock_names_who_holds_it() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i");
        s.follow();
        let waits = [
            ("LOCK t IN SHARE MODE", "UPDATE t SET n = n + 1", Some("public.t")),
            ("SELECT FROM t WHERE id = 5 FOR UPDATE", "UPDATE t SET n = n + 1", Some("public.t")),
            // The server does not tell the table of a lock on a key that does not exist yet.
            ("INSERT INTO t VALUES (11, 0)", "INSERT INTO t VALUES (11, 0)", None),
        ];
        for (lock, sql, table) in waits {
            let (mut session, pid) = holder(s, lock);
            s.source(sql);
            let blocked = blocked_by(s, &pid);
            assert_eq!(blocked["table"].as_str(), table, "{blocked}");
            assert!(blocked["seconds"].as_f64().unwrap() > 0.0, "{blocked}");
            let words = format!("held by process {pid} (forgotten, user postgres, idle in transaction for ");
            s.wait_for_log(&words);
            s.wait_for_log(&format!("SELECT pg_terminate_backend({pid})"));
            let text = s.call(0, &["status"]).expect_success();
            assert!(text.contains("blocked ") && text.contains(&words), "{text}");
            session.run("ROLLBACK");
            s.catch_up();
            free_again(s);
            s.same();
            assert_eq!(s.log(0).matches(&words).count(), 1, "told once: {}", s.log(0));
        }
        // A new connection meets the lock before anything is applied.
        s.stop();
        let (mut session, pid) = holder(s, "LOCK t");
        s.source("UPDATE t SET n = n + 1");
        s.run();
        assert_eq!(blocked_by(s, &pid)["table"], "public.t");
        session.run("ROLLBACK");
        s.catch_up();
        s.same();
    });
}

#[test]
fn a_first_copy_that_waits_for_a_lock_names_who_holds_it() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.source("INSERT INTO t SELECT generate_series(1, 100)");
        let (mut session, pid) = holder(s, "LOCK t IN SHARE MODE");
        s.run();
        assert_eq!(blocked_by(s, &pid)["table"], "public.t");
        s.wait_for_log(&format!("waiting for a lock on table public.t of the target, held by process {pid}"));
        session.run("ROLLBACK");
        s.follow();
        s.same();
    });
}

/// A prepared transaction has no process to end.
#[test]
fn a_lock_of_a_prepared_transaction_is_told_as_one() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO t VALUES (1, 0)");
        s.follow();
        let name = s.name(0).to_owned();
        s.target("BEGIN; UPDATE t SET n = 7 WHERE id = 1");
        s.target(&format!("PREPARE TRANSACTION '{name}'"));
        s.source("UPDATE t SET n = n + 1");
        blocked_by(s, "0");
        s.wait_for_log("held by a prepared transaction; it goes on when the lock is released");
        s.wait_for_log("pg_prepared_xacts");
        s.target(&format!("ROLLBACK PREPARED '{name}'"));
        s.catch_up();
        s.same();
    });
}

const IMPATIENT: &[&[&str]] = &[&["--wal-receiver-timeout", "3s", "--wal-receiver-status-interval", "500ms"]];

fn told_at(s: &mut Scenario, proxy: &Proxy, end: &str) {
    let source = if end == "source" { proxy.url(&s.source_url()) } else { s.source_url() };
    let target = if end == "target" { proxy.url(&s.target_url(0)) } else { s.target_url(0) };
    s.run_with(|command| {
        command.env("PGSLUICE_SOURCE", &source).env("PGSLUICE_TARGET", &target);
    });
}

/// The connections stay open and deliver nothing, without any error.
#[test]
fn a_network_to_the_source_that_stalls_is_noticed() {
    scenario_alone(
        IMPATIENT,
        |source| source.setting("wal_sender_timeout", "3s"),
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id serial PRIMARY KEY)");
            let proxy = Proxy::to(s.pair().source.port()).unwrap();
            told_at(s, &proxy, "source");
            s.follow();
            for _ in 0..2 {
                s.source("INSERT INTO t DEFAULT VALUES");
                assert!(proxy.stall() > 0);
                s.source("INSERT INTO t DEFAULT VALUES");
                s.wait_for_log(
                    "the server has sent nothing for 3 s; check the network, and see wal_receiver_timeout",
                );
                s.catch_up();
                s.same();
            }
        },
    );
}

/// The stall begins at any point, perhaps between a COMMIT and its answer.
#[test]
fn a_network_to_the_target_that_stalls_is_noticed() {
    scenario_with(IMPATIENT, |s| {
        s.both("CREATE TABLE t (id serial PRIMARY KEY, v text)");
        let proxy = Proxy::to(s.pair().target.port()).unwrap();
        told_at(s, &proxy, "target");
        s.follow();
        for rows in [1, 2_000] {
            s.source("INSERT INTO t DEFAULT VALUES");
            assert!(proxy.stall() > 0);
            s.source(&format!("INSERT INTO t (v) SELECT repeat('x', 2000) FROM generate_series(1, {rows})"));
            let told = s.log(0).matches("nothing has come from the target for 3 s").count();
            wait_for("the silence to be noticed", BOUND, || {
                Ok(s.log(0).matches("nothing has come from the target for").count() > told)
            })
            .unwrap();
            s.catch_up();
            s.same();
        }
        assert!(s.log(0).contains("whose connection to this process was lost"), "{}", s.log(0));
    });
}

/// The target sends nothing, because nothing is asked of it.
#[test]
fn a_target_that_has_nothing_to_do_is_not_taken_for_lost() {
    scenario_with(IMPATIENT, |s| {
        s.both("CREATE TABLE t (id serial PRIMARY KEY)");
        s.follow();
        s.source("INSERT INTO t DEFAULT VALUES");
        s.catch_up();
        // Only time can show that nothing happens: twice the timeout and the interval of checks.
        std::thread::sleep(Duration::from_secs(8));
        assert!(!s.log(0).contains("nothing has come from the target"), "{}", s.log(0));
        s.source("INSERT INTO t DEFAULT VALUES");
        s.catch_up();
        s.same();
    });
}

#[test]
fn a_full_disk_under_the_spool_is_waited_for() {
    scenario_alone(
        &[FOLDED],
        |source| source.setting("logical_decoding_work_mem", "64kB"),
        |target| target,
        |s| {
            let Some(disk) = SmallDisk::mount(1024) else { return };
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            let state_dir = disk.path().join("state");
            s.run_with(|command| {
                command.env("PGSLUICE_STATE_DIR", &state_dir);
            });
            s.follow();
            s.source("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 4000) i");
            s.source("DELETE FROM t WHERE id % 3 = 0");
            s.wait_for_log(&format!("spool file {}", state_dir.display()));
            s.wait_for_log("No space left on device");
            s.wait_for_log("make room there or give another --state-dir");
            disk.resize(64 << 10);
            s.catch_up();
            s.same();
            s.stop();
        },
    );
}

#[test]
fn a_full_disk_of_the_target_is_waited_for() {
    scenario_alone(
        &[FOLDED],
        |source| source,
        |target| target,
        |s| {
            let Some(disk) = SmallDisk::mount(2048) else { return };
            let place = disk.path().join("space");
            std::fs::create_dir(&place).unwrap();
            let owner = std::fs::metadata(s.pair().target.data_dir()).unwrap();
            chown(&place, Some(owner.uid()), Some(owner.gid())).unwrap();
            s.source("CREATE TABLE t (id int PRIMARY KEY, v text)");
            let space = format!("CREATE TABLESPACE small LOCATION '{}'", place.display());
            s.pair().target.sql("postgres", &space).unwrap();
            s.target("CREATE TABLE t (id int PRIMARY KEY, v text) TABLESPACE small");
            s.follow();
            s.source("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 500) i");
            s.catch_up();
            s.source("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(501, 4000) i");
            s.source("UPDATE t SET v = 'y' WHERE id % 3 = 0");
            s.wait_for_log("No space left on device (SQLSTATE 53100) while processing INSERT for replication target relation \"public.t\"");
            s.wait_for_log("Check free disk space");
            disk.resize(64 << 10);
            s.catch_up();
            s.same();
            s.stop();
            s.target("DROP TABLE t");
            s.pair().target.sql("postgres", "DROP TABLESPACE small").unwrap();
        },
    );
}

/// A server that cannot write its WAL panics. It does not come back until there is room for the end
/// of its recovery.
#[test]
fn a_full_disk_under_the_wal_of_the_target_costs_nothing() {
    scenario_alone(
        &[FOLDED],
        |source| source,
        // No other process may meet the full disk first: a server tells only the writer why it
        // panics.
        |target| {
            target
                .setting("wal_writer_delay", "10s")
                .setting("wal_writer_flush_after", "64MB")
                .setting("bgwriter_lru_maxpages", "0")
                .setting("autovacuum", "off")
                .setting("wal_recycle", "off")
                .setting("min_wal_size", "32MB")
        },
        |s| {
            let Some(disk) = SmallDisk::mount(512 << 10) else { return };
            let wal = disk.path().join("wal");
            move_wal(&mut s.pair_mut().target, &wal);
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL");
            s.source("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i");
            s.follow();
            disk.resize(SmallDisk::used(disk.path()) + 1024);
            // More WAL than the existing segments can take.
            for from in [1_000, 2_000, 3_000, 4_000, 5_000] {
                s.source(&format!(
                    "INSERT INTO t SELECT i, repeat('x', 8000) FROM generate_series({from}, {from} + 999) i"
                ));
                s.source("UPDATE t SET v = v || 'y' WHERE id <= 100");
            }
            s.wait_for_log("No space left on device");
            s.wait_for_log("make room on the server's disk");
            assert!(s.pair().target.log().contains("PANIC"), "{}", s.log(0));
            disk.resize(512 << 10);
            // The server may have given up, so the administrator who makes room starts it again.
            s.pair_mut().target.restart(StopMode::Immediate).unwrap();
            s.catch_up();
            s.same();
            s.stop();
            s.pair_mut().target.stop(StopMode::Fast).unwrap();
        },
    );
}

/// Moves the WAL of a cluster to another directory.
fn move_wal(cluster: &mut Cluster, to: &Path) {
    cluster.stop(StopMode::Fast).unwrap();
    let place = cluster.data_dir().join("pg_wal");
    assert!(Command::new("cp").arg("-a").args([&place, to]).status().unwrap().success());
    std::fs::remove_dir_all(&place).unwrap();
    std::os::unix::fs::symlink(to, &place).unwrap();
    cluster.start_again().unwrap();
}
