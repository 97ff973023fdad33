//! A publisher, a relay that runs beside it as a process, and stock subscribers.
//!
//! Everything is real: testkit's clusters, `CREATE SUBSCRIPTION` through the relay, and the program
//! as an operator starts it. The relay keeps its port and its directory over all its processes.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::{Cluster, Major, Sluice, assert_same_rows, wait_for};

/// Nothing stands still for so long.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
/// The publisher's first database.
pub(crate) const DB: &str = "postgres";
/// Every published table; both ends have them.
pub(crate) const TABLES: [&str; 3] = ["t", "ledger", "mark"];

const HBA: &str = "\
local all all trust
host all,replication postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
";
/// `ledger` has no key, so a row that comes twice shows. `mark` says how far a subscriber is.
const SCHEMA: &str = "
    CREATE TABLE t (id int PRIMARY KEY, v text);
    ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
    CREATE TABLE ledger (worker int, seq int8, n int8);
    CREATE TABLE mark (id serial PRIMARY KEY)";
const PUBLISHED: &str = "
    GRANT SELECT ON ALL TABLES IN SCHEMA public TO sub;
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO sub;
    INSERT INTO t SELECT n, 'before ' || n FROM generate_series(1, 500) n;
    CREATE PUBLICATION p FOR TABLE t, ledger, mark";

/// Ports of relays: below those that the kernel gives to clients, which could take one while its
/// relay is down, and others than the clusters have.
const PORTS: std::ops::Range<u16> = 12_000..20_000;

/// A port without a listener.
pub(crate) fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| rand::random_range(PORTS)).find(is_free).unwrap()
}

/// The major for tests in which it does not matter.
pub(crate) fn newest() -> Major {
    *Major::under_test().last().unwrap()
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, BOUND, || Ok(condition())).unwrap_or_else(|error| panic!("{error:#}"));
}

/// `pgsluice` with these arguments.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--", env!("CARGO_BIN_EXE_pgsluice")]).args(args);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command
}

/// A publisher with the role `sub` and the published tables.
pub(crate) fn publisher(major: Major) -> Cluster {
    let cluster = Cluster::builder(major).hba(HBA).setting("wal_sender_timeout", "30s").start().unwrap();
    let role = "SET password_encryption = 'scram-sha-256';
                CREATE ROLE sub LOGIN REPLICATION PASSWORD 'geheim'";
    cluster.sql(DB, role).unwrap();
    publish(&cluster, DB);
    cluster
}

/// Makes the tables and the publication in a database.
pub(crate) fn publish(cluster: &Cluster, db: &str) {
    cluster.sql(db, &format!("{SCHEMA}; {PUBLISHED}")).unwrap();
}

/// A cluster for subscribers. Its workers come back soon after an error.
pub(crate) fn subscriber(major: Major) -> Cluster {
    let cluster = Cluster::builder(major)
        .setting("wal_retrieve_retry_interval", "200ms")
        .setting("wal_receiver_status_interval", "1s")
        .setting("max_logical_replication_workers", "12")
        .setting("max_worker_processes", "24")
        .start()
        .unwrap();
    cluster.sql(DB, SCHEMA).unwrap();
    cluster
}

/// One more database for a subscription of its own.
pub(crate) fn database(cluster: &Cluster, db: &str) {
    cluster.sql(DB, &format!("CREATE DATABASE {db}")).unwrap();
    cluster.sql(db, SCHEMA).unwrap();
}

/// How a subscriber connects to the relay, or to a proxy before it.
pub(crate) fn conninfo(port: u16, db: &str) -> String {
    format!(
        "host=127.0.0.1 port={port} user=sub password=geheim dbname={db} sslmode=disable gssencmode=disable"
    )
}

/// Makes a subscription in `db` to the same tables of `from` at the publisher.
pub(crate) fn subscribe(cluster: &Cluster, (db, name): (&str, &str), (port, from): (u16, &str), with: &str) {
    let with = if with.is_empty() { String::new() } else { format!("WITH ({with})") };
    let conninfo = conninfo(port, from);
    let sql = format!("CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION p {with}");
    // A slot of the publisher must not be free at this moment.
    cluster.sql(db, &sql).unwrap_or_else(|error| panic!("{error:#}"));
}

/// Runs a statement that must succeed.
#[track_caller]
pub(crate) fn run(cluster: &Cluster, db: &str, sql: &str) {
    cluster.sql(db, sql).unwrap_or_else(|error| panic!("{error:#}"));
}

/// Whether every table of the subscriptions in `db` is ready.
pub(crate) fn is_ready(cluster: &Cluster, db: &str) -> bool {
    let sql = "SELECT count(*) > 0 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel";
    answers(cluster, db, sql, "t")
}

/// Whether a query returns this. A server that does not answer is a no.
pub(crate) fn answers(cluster: &Cluster, db: &str, sql: &str, expected: &str) -> bool {
    cluster.sql(db, sql).is_ok_and(|rows| {
        rows.first().and_then(|row| row.first()).is_some_and(|value| value.as_deref() == Some(expected))
    })
}

/// The process that applies for a subscription.
pub(crate) fn apply_worker(cluster: &Cluster, name: &str) -> Pid {
    let sql = format!(
        "SELECT pid FROM pg_stat_subscription WHERE subname = '{name}' AND relid IS NULL AND pid IS NOT NULL
          ORDER BY received_lsn NULLS LAST LIMIT 1"
    );
    let mut pid = None;
    wait("an apply worker", || {
        let rows = cluster.sql(DB, &sql).unwrap_or_default();
        pid = rows.into_iter().flatten().flatten().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        pid.is_some()
    });
    pid.unwrap()
}

/// A process that is stopped, and goes on when this is dropped.
pub(crate) struct Stopped(Pid);

impl Stopped {
    pub(crate) fn new(pid: Pid) -> Stopped {
        kill_process(pid, Signal::STOP).unwrap();
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A publisher with its relay.
pub(crate) struct Stage {
    pub(crate) publisher: Cluster,
    pub(crate) relay: Sluice,
    /// Where the relay listens.
    pub(crate) port: u16,
    /// What earlier processes of the relay wrote.
    past: String,
    data_dir: PathBuf,
    config: PathBuf,
    _dir: TempDir,
}

impl Stage {
    /// A relay with these further lines of configuration.
    pub(crate) fn new(major: Major, settings: &str) -> Stage {
        let publisher = publisher(major);
        let source = publisher.url(DB);
        Stage::beside(publisher, &source, None, settings)
    }

    /// A relay that reaches the publisher by `source`, and keeps everything in `data_dir`.
    pub(crate) fn beside(publisher: Cluster, source: &str, data_dir: Option<&Path>, settings: &str) -> Stage {
        let is_kept = std::env::var_os("PGSLUICE_TEST_KEEP").is_some();
        let dir =
            tempfile::Builder::new().prefix("pgsluice-relay-").disable_cleanup(is_kept).tempdir().unwrap();
        let (port, config) = (free_port(), dir.path().join("relay.toml"));
        let data_dir = data_dir.map_or_else(|| dir.path().join("data"), Path::to_owned);
        let hba = dir.path().join("hba.conf");
        std::fs::write(&hba, "host all,replication all 127.0.0.1/32 scram-sha-256\n").unwrap();
        let text = format!(
            "source = '{source}'\nlisten = '127.0.0.1:{port}'\ndata_dir = '{}'\nhba_file = '{}'\n{settings}\n",
            data_dir.display(),
            hba.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut user =
            command(&["user", "add", "sub", "--from-source", "--config", config.to_str().unwrap()]);
        let output = user.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let relay = begin(&config);
        Stage { publisher, relay, port, past: String::new(), data_dir, config, _dir: dir }
    }

    /// Everything that the relay keeps.
    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Ends the relay with SIGKILL.
    pub(crate) fn kill_relay(&mut self) {
        self.relay.kill9();
        self.past.push_str(&self.relay.stderr());
    }

    /// Whether a subscriber has dropped a slot, by what the relay wrote in all its processes.
    pub(crate) fn was_dropped(&self, slot: &str) -> bool {
        let line = format!("replication slot \"{slot}\" was dropped by");
        self.past.contains(&line) || self.relay.stderr().contains(&line)
    }

    /// Starts the relay again, and waits until it serves.
    pub(crate) fn start_relay(&mut self) {
        self.relay = begin(&self.config);
    }

    /// Starts the relay in the hands of strace, which kills it when one of its threads begins its
    /// `number`th `call`. Does not wait for anything. Returns false if there is no strace to do so.
    pub(crate) fn start_relay_until_sync(&mut self, call: &str, number: u32) -> bool {
        if !Command::new("strace").args(["-qq", "-f", "true"]).output().is_ok_and(|o| o.status.success()) {
            println!("not tested, because nothing can be traced here");
            return false;
        }
        let trace = format!("--trace={call}");
        let kill = format!("--inject={call}:signal=KILL:when={number}");
        let relay = command(&["relay", "--config", self.config.to_str().unwrap()]);
        let mut strace = Command::new("setpriv");
        // If strace is killed, the relay goes with it, because of its own setpriv.
        strace.args(["--pdeathsig=KILL", "--", "strace", "-qq", "-f", "--signal=none", &trace, &kill]);
        strace.arg(relay.get_program()).args(relay.get_args());
        for (name, _) in relay.get_envs() {
            strace.env_remove(name);
        }
        self.relay = Sluice::start(strace).unwrap();
        true
    }

    /// Ends the relay with SIGKILL, and starts it again.
    pub(crate) fn restart_relay(&mut self) {
        self.kill_relay();
        self.start_relay();
    }

    /// Runs a statement at the publisher's first database.
    #[track_caller]
    pub(crate) fn source(&self, sql: &str) {
        run(&self.publisher, DB, sql);
    }

    /// [`subscribe`] in a cluster's first database to the publisher's.
    pub(crate) fn subscribe(&self, cluster: &Cluster, name: &str, with: &str) {
        subscribe(cluster, (DB, name), (self.port, DB), with);
        wait("the copies to be ready", || is_ready(cluster, DB));
    }

    /// Waits until these subscribers, each a cluster and its database, have everything that was
    /// committed so far in the publisher's database `from`.
    pub(crate) fn reach(&self, from: &str, subscribers: &[(&Cluster, &str)]) {
        let mark = self.publisher.one(from, "INSERT INTO mark DEFAULT VALUES RETURNING id");
        let sql = format!("SELECT count(*) FROM mark WHERE id = {mark}");
        for (cluster, db) in subscribers {
            wait("a subscriber to be level", || answers(cluster, db, &sql, "1"));
        }
    }

    /// [`Stage::reach`] of the first databases.
    pub(crate) fn level_by_mark(&self, subscribers: &[&Cluster]) {
        let all: Vec<(&Cluster, &str)> = subscribers.iter().map(|cluster| (*cluster, DB)).collect();
        self.reach(DB, &all);
    }

    /// [`Stage::reach`] of the first databases, which then have the same rows.
    pub(crate) fn level(&self, subscribers: &[&Cluster]) {
        self.level_by_mark(subscribers);
        for cluster in subscribers {
            for table in TABLES {
                assert_same_rows(&self.publisher, cluster, DB, table);
            }
        }
    }

    /// What the relay has kept of a slot, as text of its file.
    pub(crate) fn slot_file(&self, slot: &str) -> Option<String> {
        std::fs::read_to_string(self.data_dir.join("slots").join(format!("{slot}.json"))).ok()
    }
}

fn begin(config: &Path) -> Sluice {
    let mut sluice = Sluice::start(command(&["relay", "--config", config.to_str().unwrap()])).unwrap();
    wait("the relay to serve", || {
        assert!(sluice.is_running(), "{}", sluice.stderr());
        sluice.stderr().contains("serving subscribers")
    });
    sluice
}
