//! `pgsluice relay`, `user` and `slots`, as an operator uses them.
//!
//! | file | has |
//! | --- | --- |
//! | `archive` | WAL that the publisher or the relay has removed comes from the publisher's archive |
//! | `failover` | a promoted standby is followed, and what it lacks is taken back |
//! | `moving` | a subscription that goes to a relay and comes back |
//! | `retention` | slots that are given up, and what goes with the last slot |
//! | `snapshots` | what a copy sees |
//! | `views` | what psql and `pgsluice slots` show of slots and streams, and logins by the user map |

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod archive;
mod failover;
mod moving;
mod retention;
mod snapshots;
mod views;

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Cluster, Major, Output, Sluice, assert_same_rows, wait_for};

const BOUND: Duration = Duration::from_secs(60);
const DB: &str = "postgres";
const HBA: &str = "\
local all all trust
host all,replication postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
";

fn command(args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--", env!("CARGO_BIN_EXE_pgsluice")]).args(args);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command
}

/// Runs a command to its end, with this on its standard input.
fn call(args: &[&str], input: &str) -> Output {
    let mut command = command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Output { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn publisher(major: Major) -> Cluster {
    let cluster = Cluster::builder(major).hba(HBA).start().unwrap();
    fill(&cluster);
    cluster
}

/// Makes what the tests need at a publisher.
fn fill(cluster: &Cluster) {
    cluster
        .sql(
            DB,
            "SET password_encryption = 'scram-sha-256';
             CREATE ROLE sub LOGIN REPLICATION PASSWORD 'geheim';
             CREATE ROLE nobody LOGIN;
             CREATE TABLE t (id serial PRIMARY KEY, v text);
             GRANT SELECT ON t TO sub;
             INSERT INTO t (v) SELECT 'before ' || n FROM generate_series(1, 1000) n;
             CREATE PUBLICATION p FOR TABLE t",
        )
        .unwrap();
}

/// Ports of relays: below those that the kernel gives to clients, which could take one while its
/// relay is down, and others than the clusters have.
const PORTS: std::ops::Range<u16> = 12_000..20_000;

/// A port that nobody has now.
fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| rand::random_range(PORTS)).find(is_free).unwrap()
}

struct Relaying {
    sluice: Sluice,
    port: u16,
}

/// Starts a relay whose file of settings is `config`, and waits until it serves.
fn start(config: &Path, port: u16) -> Relaying {
    let mut sluice = Sluice::start(command(&["relay", "--config", config.to_str().unwrap()])).unwrap();
    wait_for("the relay to serve", BOUND, || {
        assert!(sluice.is_running(), "{}", sluice.stderr());
        Ok(sluice.stderr().contains("serving subscribers"))
    })
    .unwrap();
    Relaying { sluice, port }
}

/// A relay's file of settings, with the table of access beside it.
fn configure(dir: &Path, source: &str, port: u16) -> std::path::PathBuf {
    let path = dir.join("relay.toml");
    let hba = dir.join("hba.conf");
    std::fs::write(&hba, "host all,replication all 127.0.0.1/32 scram-sha-256\n").unwrap();
    let text = format!(
        "source = '{source}'\nlisten = '127.0.0.1:{port}'\ndata_dir = '{}'\nhba_file = '{}'\n",
        dir.join("data").display(),
        hba.display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// A publisher and its relay, which knows the role `sub`.
struct Served {
    publisher: Cluster,
    relaying: Relaying,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Served {
    fn on(major: Major) -> Served {
        Served::of(publisher(major))
    }

    fn of(publisher: Cluster) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = configure(dir.path(), &publisher.url(DB), port);
        call(&["user", "add", "sub", "--from-source", "--config", config.to_str().unwrap()], "")
            .expect_success();
        let relaying = start(&config, port);
        Served { publisher, relaying, port, _dir: dir }
    }

    /// How `sub` connects through the relay.
    fn place(&self) -> String {
        format!("host=127.0.0.1 port={} user=sub password=geheim dbname={DB}", self.port)
    }
}

fn level(publisher: &Cluster, subscriber: &Cluster) {
    publisher.sql(DB, "INSERT INTO t (v) VALUES ('the end')").unwrap();
    let end = "SELECT count(*) || ' ' || max(id) FROM t";
    let expected = publisher.one(DB, end);
    wait_for("the subscriber to be level", BOUND, || Ok(subscriber.one(DB, end) == expected))
        .unwrap_or_else(|error| panic!("{error}\n{}", subscriber.log()));
    assert_same_rows(publisher, subscriber, DB, "t");
}

fn signal(relaying: &Relaying, signal: Signal) {
    let pid = Pid::from_raw(relaying.sluice.pid() as i32).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The server's words when `user` asks for a connection through the relay.
fn try_to_connect(port: u16, user: &str) -> Result<(), String> {
    let url = format!("postgres://{user}:geheim@127.0.0.1:{port}/{DB}");
    testkit::query(&url, "SELECT 1").map(drop).map_err(|error| format!("{error:#}"))
}

#[test]
fn a_stock_subscription_follows_through_restarts_and_kills() {
    Major::each_of(&Major::in_turn(), 1, |major| {
        let (publisher, dir) = (publisher(major), tempfile::tempdir().unwrap());
        let port = free_port();
        let config = configure(dir.path(), &publisher.url(DB), port);
        let path = config.to_str().unwrap();
        call(&["user", "add", "sub", "--from-source", "--config", path], "").expect_success();
        let subscriber =
            Cluster::builder(major).setting("wal_retrieve_retry_interval", "200ms").start().unwrap();
        subscriber.sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text)").unwrap();
        let mut relaying = start(&config, port);
        let subscription = format!(
            "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port={port} user=sub password=geheim dbname={DB}' PUBLICATION p"
        );
        subscriber
            .sql(DB, &subscription)
            .unwrap_or_else(|error| panic!("{error}\n{}", relaying.sluice.stderr()));
        level(&publisher, &subscriber);
        // One relay has the directory.
        let second = call(&["relay", "--config", path, "--listen", "127.0.0.1:0"], "");
        assert_eq!(second.status.code(), Some(1), "{second:?}");
        let status = relaying.sluice.terminate(Duration::from_secs(20)).unwrap();
        assert!(status.success(), "{status}: {}", relaying.sluice.stderr());
        publisher.sql(DB, "UPDATE t SET v = v || '!' WHERE id % 7 = 0").unwrap();
        for _ in 0..3 {
            let mut relaying = start(&config, port);
            publisher.sql(DB, "DELETE FROM t WHERE id % 101 = 0; INSERT INTO t (v) VALUES ('once')").unwrap();
            level(&publisher, &subscriber);
            publisher.sql(DB, "INSERT INTO t (v) SELECT 'more' FROM generate_series(1, 500)").unwrap();
            relaying.sluice.kill9();
        }
        let mut relaying = start(&config, port);
        level(&publisher, &subscriber);
        let slots = "SELECT string_agg(slot_name || ' ' || slot_type, ',') FROM pg_replication_slots";
        assert_eq!(publisher.one(DB, slots), "pgsluice_relay physical");
        subscriber.sql(DB, "DROP SUBSCRIPTION s").unwrap();
        assert!(relaying.sluice.terminate(Duration::from_secs(20)).unwrap().success());
    });
}

#[test]
fn rules_are_read_again_at_sighup_and_a_mistake_keeps_the_old_ones() {
    let major = *Major::under_test().last().unwrap();
    let (publisher, dir) = (publisher(major), tempfile::tempdir().unwrap());
    let port = free_port();
    let config = configure(dir.path(), &publisher.url(DB), port);
    let path = config.to_str().unwrap();
    let relaying = start(&config, port);
    let refused = try_to_connect(port, "sub").unwrap_err();
    assert!(refused.contains("password authentication failed for user \"sub\""), "{refused}");
    call(&["user", "add", "sub", "--from-source", "--config", path], "").expect_success();
    let reload = |said: &str| {
        let count = || relaying.sluice.stderr().matches(said).count();
        let before = count();
        signal(&relaying, Signal::HUP);
        wait_for(said, BOUND, || Ok(count() > before))
            .unwrap_or_else(|error| panic!("{error}: {}", relaying.sluice.stderr()));
    };
    reload("were read again");
    try_to_connect(relaying.port, "sub").unwrap();
    let hba = dir.path().join("hba.conf");
    std::fs::write(&hba, "host all all 127.0.0.1/32 reject\nhost all all nowhere scram-sha-256\n").unwrap();
    reload("the old rules of access stay");
    assert!(relaying.sluice.stderr().contains("hba.conf: line 2"), "{}", relaying.sluice.stderr());
    try_to_connect(port, "sub").unwrap();
    std::fs::write(&hba, "host all all 127.0.0.1/32 reject\n").unwrap();
    reload("were read again");
    let refused = try_to_connect(port, "sub").unwrap_err();
    assert!(refused.contains("pg_hba.conf rejects connection"), "{refused}");
}

/// A signal ends it also while it still waits for a publisher that does not answer.
#[test]
fn a_relay_that_has_not_begun_ends_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let source = format!("host=127.0.0.1 port={} user=postgres", silent.local_addr().unwrap().port());
    let config = configure(dir.path(), &source, free_port());
    let args = ["relay", "--config", config.to_str().unwrap()];
    let mut sluice = Sluice::start(command(&args)).unwrap();
    let (_asking, _) = silent.accept().unwrap();
    let status = sluice.terminate(Duration::from_secs(20)).unwrap();
    assert!(
        status.success() && sluice.stderr().contains("SIGTERM: stopping"),
        "{status}: {}",
        sluice.stderr()
    );
}

#[test]
fn users_are_added_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let user = |args: &[&str], input: &str| call(&[&["user"], args, &["--data-dir", data]].concat(), input);
    assert_eq!(user(&["list"], "").expect_success(), "");
    assert_eq!(user(&["add", "b"], "one\n").expect_success(), "b: added\n");
    assert_eq!(user(&["add", "a"], "two").expect_success(), "a: added\n");
    let file = dir.path().join("data/users");
    let before = std::fs::read_to_string(&file).unwrap();
    assert!(!before.contains("one") && before.contains("\"b\" \"SCRAM-SHA-256$4096:"), "{before}");
    assert_eq!(user(&["add", "b"], "three\n").expect_success(), "b: changed\n");
    assert_ne!(std::fs::read_to_string(&file).unwrap(), before);
    assert_eq!(user(&["list"], "").expect_success(), "a\nb\n");
    assert_eq!(user(&["drop", "a"], "").expect_success(), "a: removed\n");
    let gone = user(&["drop", "a"], "");
    assert!(gone.status.code() == Some(1) && gone.stderr.contains("has no user \"a\""), "{gone:?}");
    let empty = user(&["add", "c"], "\n");
    assert!(empty.status.code() == Some(2) && empty.stderr.contains("the password is empty"), "{empty:?}");
    let name = user(&["add", "a\"b"], "x\n");
    assert!(name.status.code() == Some(2) && name.stderr.contains("cannot stand in"), "{name:?}");
    std::fs::write(&file, "\"b\" \"one\"\n").unwrap();
    let broken = user(&["list"], "");
    assert!(broken.status.code() == Some(2) && broken.stderr.contains("line 1"), "{broken:?}");
    assert!(!broken.stderr.contains("one\""), "{broken:?}");
}

#[test]
fn what_a_relay_lacks_is_named() {
    let major = *Major::under_test().last().unwrap();
    let (publisher, dir) = (publisher(major), tempfile::tempdir().unwrap());
    let port = free_port();
    let config = configure(dir.path(), &publisher.url(DB), port);
    let path = config.to_str().unwrap();
    let said = |args: &[&str], code: i32, words: &str| {
        let output = call(args, "");
        assert!(output.status.code() == Some(code) && output.stderr.contains(words), "{words}: {output:?}");
    };
    said(&["relay", "--listen", "127.0.0.1:0"], 2, "no source is set: use --source, PGSLUICE_SOURCE");
    said(&["relay", "--source", "host=x"], 2, "no data_dir is set: use --data-dir, PGSLUICE_DATA_DIR");
    said(&["relay", "--config", path, "--listen", "nowhere"], 2, "invalid value 'nowhere' for '--listen");
    let held = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let taken = held.local_addr().unwrap();
    said(&["relay", "--config", path, "--listen", &taken.to_string()], 1, "could not listen at");
    said(&["relay", "--config", path, "--ssl-key-file", "/k"], 2, "--ssl-cert-file");
    said(&["relay", "--config", path, "--hba-file", "/there/is/none"], 2, "/there/is/none: ");
    said(&["relay", "--config", path, "--users-file", "/nor/is/this"], 2, "/nor/is/this: ");
    for (name, why) in [("nobody", "it has no password"), ("x", "there is no such role")] {
        said(&["user", "add", name, "--from-source", "--config", path], 1, why);
    }
    let as_sub = publisher.url(DB).replace("postgres@", "sub:geheim@");
    let args = ["user", "add", "sub", "--from-source", "--config", path, "--source", &as_sub];
    said(&args, 1, "a superuser may read it");
    std::fs::write(&config, "sourc = 'x'\n").unwrap();
    said(&["relay", "--config", path], 2, "unknown key \"sourc\"; did you mean \"source\"?");
    std::fs::write(&config, "[[subscription]]\nname = 'x'\n").unwrap();
    said(&["relay", "--config", path], 2, "unknown key \"subscription\"");
}
