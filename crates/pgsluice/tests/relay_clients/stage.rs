//! The publisher and the relay that the tests of one major share, and programs that are run there.
//!
//! Every test has a database of its own, so what one writes is not in the stream of another. The
//! servers start with the first test of a major and end with the last one that runs.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base::Lsn;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::{Cluster, Major, Output, Sluice, wait_for};

/// For hangs only.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
/// The subscribers' role, and its password.
pub(crate) const USER: &str = "sub";
pub(crate) const PASSWORD: &str = "geheim";
/// The name in the relay's certificate.
const HOST: &str = "relay.example";
const HBA: &str = "\
local all all trust
host all,replication postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
";
/// Ports of relays: below those that the kernel gives to clients, and others than the clusters
/// have.
const PORTS: std::ops::Range<u16> = 12_000..20_000;

/// Where a client connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Publisher,
    Relay,
}

impl End {
    pub(crate) const BOTH: [End; 2] = [End::Publisher, End::Relay];
}

/// A publisher and its relay.
pub(crate) struct Stage {
    /// Ends before its publisher does.
    relay: Sluice,
    relay_port: u16,
    pub(crate) publisher: Cluster,
    files: TempDir,
}

impl Stage {
    /// Those of this major. They are started if no other test has them.
    pub(crate) fn of(major: Major) -> Arc<Stage> {
        static STAGES: Mutex<BTreeMap<Major, Weak<Stage>>> = Mutex::new(BTreeMap::new());
        // Another test may have failed to start them.
        let mut stages = STAGES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stage) = stages.get(&major).and_then(Weak::upgrade) {
            return stage;
        }
        let stage = Arc::new(Stage::start(major));
        stages.insert(major, Arc::downgrade(&stage));
        stage
    }

    fn start(major: Major) -> Stage {
        // Transactions of autovacuum are in the streams of 14, at one end and not at the other.
        let publisher = Cluster::builder(major).hba(HBA).setting("autovacuum", "off").start().unwrap();
        let roles = format!(
            "SET password_encryption = 'scram-sha-256';
             CREATE ROLE {USER} LOGIN REPLICATION PASSWORD '{PASSWORD}';
             CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'"
        );
        publisher.sql("postgres", &roles).unwrap();
        let files = tempfile::tempdir().unwrap();
        let relay_port = free_port();
        let config = configure(files.path(), &publisher.url("postgres"), relay_port);
        for user in [USER, "reader"] {
            let args = ["user", "add", user, "--from-source", "--config", config.to_str().unwrap()];
            run(pgsluice(&args)).expect_success();
        }
        let mut relay = Sluice::start(pgsluice(&["relay", "--config", config.to_str().unwrap()])).unwrap();
        wait_for("the relay to serve", BOUND, || {
            assert!(relay.is_running(), "{}", relay.stderr());
            Ok(relay.stderr().contains("serving subscribers"))
        })
        .unwrap();
        Stage { relay, relay_port, publisher, files }
    }

    pub(crate) fn port(&self, end: End) -> u16 {
        match end {
            End::Publisher => self.publisher.port(),
            End::Relay => self.relay_port,
        }
    }

    /// Makes the database of a test, with what `sql` makes. `USER` may read it all.
    pub(crate) fn database(&self, name: &str, sql: &str) {
        self.publisher.sql("postgres", &format!("CREATE DATABASE {name}")).unwrap();
        self.publisher.sql(name, sql).unwrap();
        let grant = format!("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {USER}, reader");
        self.publisher.sql(name, &grant).unwrap();
    }

    /// How a client connects without encryption.
    pub(crate) fn conninfo(&self, end: End, database: &str) -> String {
        let port = self.port(end);
        format!(
            "host=127.0.0.1 port={port} dbname={database} user={USER} password={PASSWORD} sslmode=disable \
             connect_timeout=20"
        )
    }

    /// How a client connects to the relay that trusts only its certificate, and binds its password
    /// to that.
    pub(crate) fn encrypted(&self, database: &str) -> String {
        format!(
            "host={HOST} hostaddr=127.0.0.1 port={} dbname={database} user={USER} password={PASSWORD} \
             sslmode=verify-full sslrootcert={} channel_binding=require connect_timeout=20",
            self.relay_port,
            self.file("root.crt").display()
        )
    }

    /// A file beside the relay's configuration.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// What the relay has logged.
    pub(crate) fn relay_log(&self) -> String {
        self.relay.stderr()
    }

    /// The end of what is written now. A client that waits for it does not wait for anybody else:
    /// something comes behind it at once, in a database that no client follows.
    pub(crate) fn end(&self) -> Lsn {
        let end = self.publisher.one("postgres", "SELECT pg_current_wal_flush_lsn()").parse().unwrap();
        self.publisher.sql("postgres", "SELECT pg_logical_emit_message(true, 'test', 'the end')").unwrap();
        end
    }

    /// The names of logical slots on the publisher that belong to no test.
    pub(crate) fn slots_of_the_relay(&self, database: &str) -> String {
        let sql = format!(
            "SELECT coalesce(string_agg(slot_name, ',' ORDER BY slot_name), '') FROM pg_replication_slots
              WHERE database = '{database}' AND slot_name NOT LIKE 'publisher%'"
        );
        self.publisher.one("postgres", &sql)
    }
}

/// The relay's file of settings, with its certificate beside it.
fn configure(dir: &Path, source: &str, port: u16) -> PathBuf {
    certificates(dir);
    let path = dir.join("relay.toml");
    let place = dir.display();
    let text = format!(
        "source = '{source}'\nlisten = '127.0.0.1:{port}'\ndata_dir = '{place}/data'\n\
         ssl_cert_file = '{place}/relay.crt'\nssl_key_file = '{place}/relay.key'\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// Writes the relay's certificate, its key and its root, and a root that has nothing to do with it.
fn certificates(dir: &Path) {
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    let mut params = CertificateParams::new(vec![HOST.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, HOST);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().unwrap();
    for (name, text) in [
        ("root.crt", ours.pem()),
        ("stranger.crt", theirs.pem()),
        ("relay.crt", params.signed_by(&key, &ours).unwrap().pem()),
        ("relay.key", key.serialize_pem()),
    ] {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
}

/// A port that is free now.
fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| rand::random_range(PORTS)).find(is_free).unwrap()
}

/// A program that ends with this process, and knows nothing of servers from its environment.
pub(crate) fn program(path: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--"]).arg(path);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C");
    command
}

/// The program under test.
pub(crate) fn pgsluice(args: &[&str]) -> Command {
    let mut command = program(Path::new(env!("CARGO_BIN_EXE_pgsluice")));
    command.args(args);
    command
}

/// Runs a program to its end.
pub(crate) fn run(command: Command) -> Output {
    let shown = format!("{command:?}");
    let mut running = Sluice::start(command).unwrap();
    let status = running.wait(BOUND).unwrap();
    let status = status.unwrap_or_else(|| panic!("{shown} still runs: {}", running.stderr()));
    Output { status, stdout: running.stdout(), stderr: running.stderr() }
}

/// SIGINT, as from a terminal.
pub(crate) fn interrupt(running: &Sluice) {
    let pid = Pid::from_raw(running.pid() as i32).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}
