//! A publisher with its relay, a stock subscriber, and scenarios on them.
//!
//! Every [`Scene`] has a database of its own at the publisher and two at the subscriber. One
//! subscribes to the publisher, the other one to the relay. Whatever a scenario does, both must end
//! alike. So the publisher's own walsender is the oracle, also for what fails.
//!
//! Servers start with the first scenario of a major and end with the last one that runs.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tempfile::TempDir;
use testkit::{Cluster, Major, Output, Rows, Sluice, wait_for};
use tokio_postgres::{Client, NoTls};

use crate::BOUND;

/// The database that belongs to no scenario.
const DB: &str = "postgres";
/// The role of subscribers at the publisher, and its password.
const USER: &str = "sub";
const PASSWORD: &str = "geheim";
const HBA: &str = "\
local all all trust
host all,replication postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
";
/// Ports of relays: below those that the kernel gives to clients, and others than the clusters
/// have.
const PORTS: std::ops::Range<u16> = 12_000..20_000;
/// Room for several scenarios at once.
const SETTINGS: [(&str, &str); 12] = [
    ("max_wal_senders", "60"),
    ("max_replication_slots", "100"),
    ("max_worker_processes", "80"),
    ("max_logical_replication_workers", "60"),
    ("max_sync_workers_per_subscription", "6"),
    ("max_prepared_transactions", "20"),
    ("wal_retrieve_retry_interval", "200ms"),
    ("wal_receiver_status_interval", "1s"),
    ("track_commit_timestamp", "on"),
    ("logical_decoding_work_mem", "64kB"),
    ("autovacuum", "off"),
    ("max_wal_size", "4GB"),
];
/// How a worker of a subscription says in the log that it has started.
const STARTED: &str = "has started";
/// Lines of a log that a failed scenario shows.
const LINES_SHOWN: usize = 40;

/// Where a subscription connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Direct,
    Relayed,
}

impl Way {
    pub(crate) const BOTH: [Way; 2] = [Way::Direct, Way::Relayed];

    fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Relayed => "relayed",
        }
    }
}

/// What the tests of a binary share, for each major.
struct Shared<T>([Mutex<Weak<T>>; Major::ALL.len()]);

impl<T> Shared<T> {
    const fn new() -> Shared<T> {
        Shared([const { Mutex::new(Weak::new()) }; Major::ALL.len()])
    }

    /// What a major has. It is started if no other test has it.
    fn of(&self, major: Major, start: impl FnOnce(Major) -> T) -> Arc<T> {
        // Another test may have failed to start it.
        let mut known = self.0[major as usize].lock().unwrap_or_else(PoisonError::into_inner);
        known.upgrade().unwrap_or_else(|| {
            let started = Arc::new(start(major));
            *known = Arc::downgrade(&started);
            started
        })
    }

    /// Whatever runs now, of any major.
    fn running(&self) -> Vec<Arc<T>> {
        self.0.iter().filter_map(|known| known.try_lock().ok()?.upgrade()).collect()
    }
}

/// Scenes so far. A test may have several of the same majors.
static SCENES: AtomicU32 = AtomicU32::new(1);
static SERVED: Shared<Served> = Shared::new();
static SUBSCRIBERS: Shared<Cluster> = Shared::new();

/// A publisher and its relay.
struct Served {
    /// Ends before its publisher does.
    relay: Sluice,
    relay_port: u16,
    publisher: Cluster,
    _files: TempDir,
}

impl Served {
    fn start(major: Major) -> Served {
        let publisher = with_settings(major).hba(HBA).start().unwrap();
        let role = format!(
            "SET password_encryption = 'scram-sha-256';
             CREATE ROLE {USER} LOGIN REPLICATION PASSWORD '{PASSWORD}';
             GRANT pg_read_all_data, pg_read_all_stats TO {USER}"
        );
        publisher.sql(DB, &role).unwrap();
        let files = tempfile::tempdir().unwrap();
        let relay_port = free_port();
        let config = configure(files.path(), &publisher.url(DB), relay_port);
        let config = config.to_str().unwrap();
        run(&["user", "add", USER, "--from-source", "--config", config]).expect_success();
        let mut relay = Sluice::start(pgsluice(&["relay", "--config", config])).unwrap();
        wait_for("the relay to serve", BOUND, || {
            assert!(relay.is_running(), "{}", relay.stderr());
            Ok(relay.stderr().contains("serving subscribers"))
        })
        .unwrap();
        Served { relay, relay_port, publisher, _files: files }
    }
}

fn with_settings(major: Major) -> testkit::Builder {
    let mut builder = Cluster::builder(major);
    if major >= Major::V18 {
        // Before, max_replication_slots counts for origins, too.
        builder = builder.setting("max_active_replication_origins", "100");
    }
    SETTINGS.iter().fold(builder, |builder, (name, value)| builder.setting(name, value))
}

/// The relay's file of settings.
fn configure(dir: &Path, source: &str, port: u16) -> PathBuf {
    let path = dir.join("relay.toml");
    let data = dir.join("data");
    let text = format!("source = '{source}'\nlisten = '127.0.0.1:{port}'\ndata_dir = '{}'\n", data.display());
    std::fs::write(&path, text).unwrap();
    path
}

fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| rand::random_range(PORTS)).find(is_free).unwrap()
}

/// The program under test, which ends with this process.
fn pgsluice(args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--", env!("CARGO_BIN_EXE_pgsluice")]).args(args);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command
}

/// Runs a command of the program to its end.
fn run(args: &[&str]) -> Output {
    let mut running = Sluice::start(pgsluice(args)).unwrap();
    let status = running.wait(BOUND).unwrap();
    let status = status.unwrap_or_else(|| panic!("pgsluice {} still runs", args.join(" ")));
    Output { status, stdout: running.stdout(), stderr: running.stderr() }
}

/// Runs a scenario on the majors whose turn it is, from `since` on.
pub(crate) fn scenario(since: Major, test: impl Fn(&Scene) + Sync) {
    let mut majors: Vec<Major> = Major::in_turn().into_iter().filter(|major| *major >= since).collect();
    if majors.is_empty() {
        // It was the turn of an older one.
        majors.extend(Major::under_test().into_iter().rfind(|major| *major >= since));
    }
    Major::each_of(&majors, 2, |major| between(major, major, &test));
}

/// Runs a scenario with a publisher and a subscriber of these majors.
pub(crate) fn between(publisher: Major, subscriber: Major, test: impl FnOnce(&Scene)) {
    let scene = Scene::begin(publisher, subscriber);
    test(&scene);
    scene.end();
}

/// The databases of a scenario.
pub(crate) struct Scene {
    /// The publisher's major.
    pub(crate) major: Major,
    served: Arc<Served>,
    subscriber: Arc<Cluster>,
    /// What other tests have stays until the last test ends.
    _running: (Vec<Arc<Served>>, Vec<Arc<Cluster>>),
    /// The publisher's database.
    name: String,
}

impl Scene {
    fn begin(publisher: Major, subscriber: Major) -> Scene {
        let (served, cluster) = std::thread::scope(|scope| {
            let cluster =
                scope.spawn(|| SUBSCRIBERS.of(subscriber, |major| with_settings(major).start().unwrap()));
            (SERVED.of(publisher, Served::start), cluster.join().unwrap())
        });
        let test = testkit::test_name();
        let test: String = test.rsplit("::").next().unwrap_or_default().chars().take(40).collect();
        let scene = Scene {
            major: publisher,
            served,
            subscriber: cluster,
            _running: (SERVED.running(), SUBSCRIBERS.running()),
            name: format!("{test}_{publisher}_{subscriber}_{}", SCENES.fetch_add(1, Ordering::Relaxed)),
        };
        let marks = "CREATE TABLE mark (id serial PRIMARY KEY)";
        let create = |cluster: &Cluster, db: &str| {
            cluster.sql(DB, &format!("CREATE DATABASE {db}")).unwrap_or_else(|error| panic!("{error:#}"));
            cluster.sql(db, marks).unwrap();
        };
        create(&scene.served.publisher, &scene.name);
        scene.publisher("CREATE PUBLICATION marks FOR TABLE mark");
        Way::BOTH.iter().for_each(|way| create(&scene.subscriber, &scene.sub(*way)));
        scene
    }

    /// Drops the subscriptions. Nothing of them must be left at either end.
    fn end(&self) {
        for way in Way::BOTH {
            if self.rows(way, "SELECT count(*) FROM pg_subscription WHERE subname = '{sub}'") == "1" {
                self.at(way, "DROP SUBSCRIPTION {sub}");
            }
            let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
            wait_for("the slots to be gone", BOUND, || Ok(self.upstream(way, slots) == "0"))
                .unwrap_or_else(|error| panic!("{}: {error}", way.name()));
        }
        let said = self.served.relay.stderr();
        assert!(!said.contains("panicked"), "{said}");
    }

    /// The name of a subscription, its database and its slot.
    pub(crate) fn sub(&self, way: Way) -> String {
        format!("{}_{}", self.name, way.name())
    }

    fn port(&self, way: Way) -> u16 {
        match way {
            Way::Direct => self.served.publisher.port(),
            Way::Relayed => self.served.relay_port,
        }
    }

    /// How a subscriber connects to a database of the publisher.
    pub(crate) fn conninfo(&self, way: Way, db: &str) -> String {
        format!("host=127.0.0.1 port={} user={USER} password={PASSWORD} dbname={db}", self.port(way))
    }

    /// `{sub}` is the subscription's name, `{place}` how it connects.
    fn put_names(&self, way: Way, sql: &str) -> String {
        sql.replace("{sub}", &self.sub(way)).replace("{place}", &self.conninfo(way, &self.name))
    }

    /// Runs SQL at the publisher.
    #[track_caller]
    pub(crate) fn publisher(&self, sql: &str) {
        self.served.publisher.sql(&self.name, sql).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Runs SQL in one of the subscribers' databases.
    #[track_caller]
    pub(crate) fn at(&self, way: Way, sql: &str) {
        self.try_at(way, sql).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Runs SQL in both databases of the subscriber.
    #[track_caller]
    pub(crate) fn subscribers(&self, sql: &str) {
        Way::BOTH.iter().for_each(|way| self.at(*way, sql));
    }

    /// Runs SQL in all three databases.
    #[track_caller]
    pub(crate) fn everywhere(&self, sql: &str) {
        self.publisher(sql);
        self.subscribers(sql);
    }

    /// The server's words if the SQL fails.
    pub(crate) fn try_at(&self, way: Way, sql: &str) -> Result<Rows, String> {
        let sql = self.put_names(way, sql);
        self.subscriber.sql(&self.sub(way), &sql).map_err(|error| format!("{error:#}"))
    }

    /// Subscribes to these publications and waits for the copies.
    #[track_caller]
    pub(crate) fn subscribe(&self, publications: &str, with: &str) {
        Way::BOTH.iter().for_each(|way| self.try_to_subscribe(*way, publications, with).unwrap());
        self.ready();
    }

    /// Makes a subscription in `at`, a database of the publisher's server, to publication `p` of
    /// `from`, a database of the subscribers' server.
    ///
    /// Its slot is made before. The statement would wait for transactions of the other server with
    /// its own one open, and another test's statement there may wait for that one.
    #[track_caller]
    pub(crate) fn publisher_subscribes(&self, (at, name): (&str, &str), from: &str, with: &str) {
        let two_phase = with.contains("two_phase");
        let slot =
            format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', false, {two_phase})");
        self.subscriber.sql(from, &slot).unwrap_or_else(|error| panic!("{error:#}"));
        let place = format!("host=127.0.0.1 port={} user=postgres dbname={from}", self.subscriber.port());
        let with = [with, "create_slot = false"].map(str::trim).join(", ");
        let with = with.trim_start_matches(", ");
        let sql = format!("CREATE SUBSCRIPTION {name} CONNECTION '{place}' PUBLICATION p WITH ({with})");
        self.served.publisher.sql(at, &sql).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Makes one of the subscriptions.
    pub(crate) fn try_to_subscribe(&self, way: Way, publications: &str, with: &str) -> Result<(), String> {
        let with = if with.is_empty() { String::new() } else { format!("WITH ({with})") };
        let publications =
            if publications.is_empty() { "marks".to_owned() } else { format!("{publications}, marks") };
        let sql =
            format!("CREATE SUBSCRIPTION {{sub}} CONNECTION '{{place}}' PUBLICATION {publications} {with}");
        self.try_at(way, &sql).map(drop)
    }

    /// Waits until all tables are copied.
    #[track_caller]
    pub(crate) fn ready(&self) {
        let sql = "SELECT count(*) > 0 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel";
        self.until("the tables to be copied", sql, "t");
    }

    /// Waits until both subscribers have everything that was written so far.
    #[track_caller]
    pub(crate) fn level(&self) {
        let mark = self.at_publisher("INSERT INTO mark DEFAULT VALUES RETURNING id");
        let sql = format!("SELECT coalesce(max(id), 0) >= {mark} FROM mark");
        self.until("the subscribers to be level", &sql, "t");
    }

    /// Waits until a query returns this at both subscribers.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, sql: &str, expected: &str) {
        for way in Way::BOTH {
            wait_for(what, BOUND, || Ok(self.rows(way, sql) == expected)).unwrap_or_else(|error| {
                panic!("{}: {error}: {}", way.name(), self.rows(way, sql));
            });
        }
    }

    /// Waits until a query returns this where each subscription connects.
    #[track_caller]
    pub(crate) fn until_upstream(&self, what: &str, sql: &str, expected: &str) {
        for way in Way::BOTH {
            wait_for(what, BOUND, || Ok(self.upstream(way, sql) == expected))
                .unwrap_or_else(|error| panic!("{}: {error}: {}", way.name(), self.upstream(way, sql)));
        }
    }

    /// Waits until the workers of both subscriptions have logged this.
    #[track_caller]
    pub(crate) fn logged(&self, words: &str) {
        for way in Way::BOTH {
            wait_for(words, BOUND, || Ok(self.log(way).contains(words)))
                .unwrap_or_else(|error| panic!("{}: {error}", way.name()));
        }
    }

    /// What the relay has logged, of all scenarios.
    pub(crate) fn relay_log(&self) -> String {
        self.served.relay.stderr()
    }

    /// What the workers of a subscription have logged.
    pub(crate) fn log(&self, way: Way) -> String {
        let log = self.subscriber.log();
        let begins = format!("worker for subscription \"{}\"", self.sub(way));
        let pid = |line: &str| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned());
        let is_start = |line: &&str| line.contains(&begins) && line.contains(STARTED);
        let pids: Vec<String> = log.lines().filter(is_start).filter_map(pid).collect();
        // An error's details have no prefix in some lines, and belong to the line before.
        let (mut lines, mut is_ours) = (Vec::new(), false);
        for line in log.lines() {
            is_ours = pid(line).map_or(is_ours, |pid| pids.contains(&pid));
            lines.extend(is_ours.then_some(line));
        }
        lines.join("\n")
    }

    /// What a query returns at the publisher.
    #[track_caller]
    pub(crate) fn at_publisher(&self, sql: &str) -> String {
        shown(&self.served.publisher.sql(&self.name, sql).unwrap_or_else(|error| panic!("{error:#}")))
    }

    /// What a query returns at a subscriber.
    #[track_caller]
    pub(crate) fn rows(&self, way: Way, sql: &str) -> String {
        shown(&self.try_at(way, sql).unwrap_or_else(|error| panic!("{error}")))
    }

    /// What a query returns where a subscription connects, to the subscriber's role.
    #[track_caller]
    pub(crate) fn upstream(&self, way: Way, sql: &str) -> String {
        let url = format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{}", self.port(way), self.name);
        let rows = testkit::query(&url, &self.put_names(way, sql));
        shown(&rows.unwrap_or_else(|error| panic!("{error:#}")))
    }

    /// The publisher and both subscribers have the same rows in these tables.
    #[track_caller]
    pub(crate) fn same(&self, tables: &[&str]) {
        for table in tables {
            let sql = format!("SELECT t::text FROM {table} t ORDER BY t::text COLLATE \"C\"");
            let expected = self.at_publisher(&sql);
            for way in Way::BOTH {
                let rows = self.rows(way, &sql);
                assert!(rows == expected, "{}: {table} has\n{rows}\nand not\n{expected}", way.name());
            }
        }
    }

    /// A query returns the same at both subscribers, which is this.
    #[track_caller]
    pub(crate) fn shows(&self, sql: &str, expected: &str) {
        for way in Way::BOTH {
            let rows = self.rows(way, sql);
            assert!(rows == expected, "{}: {sql}:\n{rows}\nand not\n{expected}", way.name());
        }
    }

    /// A query returns the same at both subscribers, whatever it is.
    #[track_caller]
    pub(crate) fn alike(&self, sql: &str) {
        let (direct, relayed) = (self.rows(Way::Direct, sql), self.rows(Way::Relayed, sql));
        assert!(direct == relayed, "{sql}:\n{direct}\nand through the relay\n{relayed}");
    }

    /// A session at the publisher that stays.
    pub(crate) fn session(&self) -> Session {
        Session::begin(&self.served.publisher.url(&self.name))
    }

    /// Creates a slot with `pgsluice slots`.
    pub(crate) fn create_slot(&self, way: Way, name: &str) {
        let place = self.conninfo(way, &self.name);
        run(&["slots", "create", name, "--relay", &place]).expect_success();
    }

    /// Drops a slot with `pgsluice slots`.
    pub(crate) fn drop_slot(&self, way: Way, name: &str) {
        let place = self.conninfo(way, &self.name);
        run(&["slots", "drop", name, "--relay", &place]).expect_success();
    }

    /// Makes a database more, at the publisher and at the subscriber.
    pub(crate) fn more(&self, suffix: &str, options: &str) -> String {
        let name = format!("{}_{suffix}", self.name);
        for cluster in [&self.served.publisher, &*self.subscriber] {
            cluster
                .sql(DB, &format!("CREATE DATABASE {name} {options}"))
                .unwrap_or_else(|error| panic!("{error:#}"));
        }
        name
    }

    /// The cluster of subscribers, for what does not go through a [`Way`].
    pub(crate) fn subscriber_cluster(&self) -> &Cluster {
        &self.subscriber
    }

    /// The cluster of the publisher, for other databases than the scenario's own.
    pub(crate) fn publisher_cluster(&self) -> &Cluster {
        &self.served.publisher
    }

    /// The publisher's database.
    pub(crate) fn database(&self) -> &str {
        &self.name
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let end = |text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
        };
        eprintln!("--- the relay:\n{}", end(&self.served.relay.stderr()));
        Way::BOTH.iter().for_each(|way| eprintln!("--- {}:\n{}", way.name(), end(&self.log(*way))));
        // What stays prepared keeps others from making slots.
        let prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()";
        for gid in self.served.publisher.sql(&self.name, prepared).into_iter().flatten().flatten().flatten() {
            drop(self.served.publisher.sql(&self.name, &format!("ROLLBACK PREPARED '{gid}'")));
        }
        for way in Way::BOTH {
            drop(self.try_at(way, "ALTER SUBSCRIPTION {sub} DISABLE"));
        }
    }
}

/// Rows as text.
pub(crate) fn shown(rows: &Rows) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "NULL".to_owned());
    let row = |row: &Vec<Option<String>>| row.iter().map(value).collect::<Vec<_>>().join("|");
    rows.iter().map(row).collect::<Vec<_>>().join(", ")
}

/// A session that stays, for transactions that overlap.
pub(crate) struct Session {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Session {
    fn begin(url: &str) -> Session {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        Session { runtime, client }
    }

    /// Runs SQL, several statements if need be.
    #[track_caller]
    pub(crate) fn run(&self, sql: &str) {
        let done = self.runtime.block_on(self.client.batch_execute(sql));
        done.unwrap_or_else(|error| panic!("{sql}: {}", words_of(&error)));
    }
}

fn words_of(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string)
}
