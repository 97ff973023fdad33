//! What every scenario is told with: one source database, one target database per strategy, and the words between.
//!
//! A pair of clusters per major serves all scenarios of the process; each scenario has databases of its own on it.
//! What needs settings of its own, or stops a server, starts a pair of its own ([`Scenario::alone`]).
//!
//! *Strategies* are command lines that must all lead to the same rows ([`FOLDED`], [`ONE_BY_ONE`]): the source is
//! written once, and one pgsluice per strategy follows it into its own database. As in a shell, words like
//! `NAME=value` set the environment.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde_json::Value;
use testkit::{Builder, Cluster, Major, Output, Pair, Rows, Sluice, wait_for};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Long enough for a debug build on a busy machine; nothing waits this long unless it is broken.
pub(crate) const BOUND: Duration = Duration::from_secs(90);
/// What a stop may take.
pub(crate) const STOP: Duration = Duration::from_secs(5);

/// As a user runs it.
pub(crate) const FOLDED: &[&str] = &[];
/// Everything small and in text: chunks of two rows, no streaming.
pub(crate) const ONE_BY_ONE: &[&str] = &["--binary", "off", "--batch-rows-max", "2", "--streaming", "off"];
const BOTH: &[&[&str]] = &[FOLDED, ONE_BY_ONE];

/// Runs `scenario` on every major under test, followed by both strategies.
pub(crate) fn scenario(scenario: impl Fn(&mut Scenario) + Sync) {
    scenario_with(BOTH, scenario);
}

/// [`scenario`] with other strategies.
pub(crate) fn scenario_with(strategies: &[&[&str]], scenario: impl Fn(&mut Scenario) + Sync) {
    each_major(|major| tell(Scenario::on(shared(major), strategies), &scenario));
}

/// [`scenario_with`] in databases created with these options of `CREATE DATABASE`.
pub(crate) fn scenario_in(
    source: &str,
    target: &str,
    strategies: &[&[&str]],
    scenario: impl Fn(&mut Scenario) + Sync,
) {
    each_major(|major| {
        tell(Scenario::new(Ends::Shared(shared(major)), strategies, [source, target]), &scenario);
    });
}

/// [`scenario_with`] on a pair of clusters that no other scenario uses.
pub(crate) fn scenario_alone(
    strategies: &[&[&str]],
    source: impl Fn(Builder) -> Builder + Sync,
    target: impl Fn(Builder) -> Builder + Sync,
    scenario: impl Fn(&mut Scenario) + Sync,
) {
    each_major(|major| {
        let (source, target) = (source(Cluster::builder(major)), target(Cluster::builder(major)));
        let pair = Pair::with(source, target).expect("two clusters");
        tell(Scenario::alone(pair, strategies), &scenario);
    });
}

fn tell(mut told: Scenario, scenario: &impl Fn(&mut Scenario)) {
    scenario(&mut told);
    told.stop();
}

/// Every major at the same time: a scenario mostly waits.
fn each_major(scenario: impl Fn(Major) + Sync) {
    std::thread::scope(|scope| {
        let told = |major| {
            let scenario = &scenario;
            let name = format!("PostgreSQL {major}");
            std::thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, move || scenario(major))
                .expect("a thread")
        };
        let told: Vec<_> = Major::under_test().into_iter().map(told).collect();
        for result in told.into_iter().map(std::thread::ScopedJoinHandle::join) {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

/// The pair of `major` that scenarios share. Values of statics are never dropped: the servers stop with this process
/// (their parent), and a shell that waits for the end of this process then removes their directories.
fn shared(major: Major) -> &'static Pair {
    static PAIRS: [OnceLock<Pair>; Major::ALL.len()] = [const { OnceLock::new() }; Major::ALL.len()];
    static JANITORS: Mutex<Vec<std::process::Child>> = Mutex::new(Vec::new());
    PAIRS[major as usize].get_or_init(|| {
        let with = |builder: Builder| {
            let builder = builder.setting("max_replication_slots", "100").setting("max_wal_senders", "100");
            // From 18 on origins have a limit of their own.
            if major >= Major::V18 {
                builder.setting("max_active_replication_origins", "100")
            } else {
                builder
            }
        };
        let (source, target) = (with(Cluster::builder(major)), with(Cluster::builder(major)));
        let pair = Pair::with(source, target).expect("two clusters");
        if std::env::var_os("PGSLUICE_TEST_KEEP").is_none() {
            let dirs =
                [&pair.source, &pair.target].map(|cluster| cluster.data_dir().parent().unwrap().to_owned());
            let locks = dirs.clone().map(|dir| dir.with_extension("lock"));
            let janitor = Command::new("sh")
                .args(["-c", "cat; until rm -rf -- \"$@\" 2>/dev/null; do sleep 0.1; done", "janitor"])
                .args(dirs)
                .args(locks)
                .arg(pair.state_dir())
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            JANITORS.lock().unwrap().push(janitor.expect("a shell"));
        }
        pair
    })
}

enum Ends {
    Shared(&'static Pair),
    Own(Box<Pair>),
}

/// One pgsluice and the database it follows into.
struct Follower {
    name: String,
    db: String,
    args: Vec<String>,
    sluice: Option<Sluice>,
    /// Standard error of earlier runs.
    log: String,
}

/// See the module.
pub(crate) struct Scenario {
    ends: Ends,
    db: String,
    followers: Vec<Follower>,
    publication: Option<String>,
    marks: u32,
    sessions: RefCell<BTreeMap<String, Session>>,
}

/// A schema without rows, a publication of it, some statements: the whole of most scenarios.
impl Scenario {
    fn on(pair: &'static Pair, strategies: &[&[&str]]) -> Scenario {
        Scenario::new(Ends::Shared(pair), strategies, [""; 2])
    }

    pub(crate) fn alone(pair: Pair, strategies: &[&[&str]]) -> Scenario {
        Scenario::new(Ends::Own(Box::new(pair)), strategies, [""; 2])
    }

    fn new(ends: Ends, strategies: &[&[&str]], options: [&str; 2]) -> Scenario {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let db = format!("s{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let mut told = Scenario {
            ends,
            db: db.clone(),
            followers: Vec::new(),
            publication: None,
            marks: 0,
            sessions: RefCell::default(),
        };
        let [source, target] =
            options.map(|options| move |db: &str| format!("CREATE DATABASE {db} {options}"));
        told.pair().source.sql("postgres", &source(&db)).expect("a database");
        for (number, args) in strategies.iter().enumerate() {
            let name = format!("{db}_{number}");
            told.pair().target.sql("postgres", &target(&name)).expect("a database");
            let args = args.iter().map(|&arg| arg.to_owned()).collect();
            told.followers.push(Follower { db: name.clone(), name, args, sluice: None, log: String::new() });
        }
        told.both("CREATE TABLE mark (id int PRIMARY KEY)");
        told
    }

    pub(crate) fn pair(&self) -> &Pair {
        match &self.ends {
            Ends::Shared(pair) => pair,
            Ends::Own(pair) => pair,
        }
    }

    /// To stop and start servers.
    pub(crate) fn pair_mut(&mut self) -> &mut Pair {
        self.sessions.borrow_mut().clear();
        match &mut self.ends {
            Ends::Shared(_) => panic!("other scenarios use these servers: tell this one with scenario_alone"),
            Ends::Own(pair) => pair,
        }
    }

    pub(crate) fn major(&self) -> u32 {
        self.pair().source.major().number()
    }

    /// The source's database.
    pub(crate) fn source_url(&self) -> String {
        self.pair().source.url(&self.db)
    }

    /// The database of follower `number`.
    pub(crate) fn target_url(&self, number: usize) -> String {
        self.pair().target.url(&self.followers[number].db)
    }

    /// Subscription name of follower `number`.
    pub(crate) fn name(&self, number: usize) -> &str {
        &self.followers[number].name
    }

    fn at(&self, url: &str, sql: &str) -> Result<Rows, String> {
        let mut sessions = self.sessions.borrow_mut();
        sessions.entry(url.to_owned()).or_insert_with(|| Session::to(url)).query(sql)
    }

    /// On the source; several statements in one text are one transaction.
    #[track_caller]
    pub(crate) fn source(&self, sql: &str) {
        self.try_source(sql).unwrap_or_else(|error| panic!("on the source: {error}"));
    }

    pub(crate) fn try_source(&self, sql: &str) -> Result<Rows, String> {
        self.at(&self.source_url(), sql)
    }

    /// On the source in another session, for open transactions.
    #[track_caller]
    pub(crate) fn source_in(&self, session: &str, sql: &str) {
        let url = format!("{}?application_name={session}", self.source_url());
        self.at(&url, sql).unwrap_or_else(|error| panic!("on the source, in session {session}: {error}"));
    }

    /// One value from the source.
    #[track_caller]
    pub(crate) fn source_one(&self, sql: &str) -> String {
        one(self.try_source(sql), sql)
    }

    /// On every target database.
    #[track_caller]
    pub(crate) fn target(&self, sql: &str) {
        for number in 0..self.followers.len() {
            self.at(&self.target_url(number), sql).unwrap_or_else(|error| panic!("on the target: {error}"));
        }
    }

    /// One value that is the same in every target database.
    #[track_caller]
    pub(crate) fn target_one(&self, sql: &str) -> String {
        let mut values: Vec<String> =
            (0..self.followers.len()).map(|number| self.target_one_of(number, sql)).collect();
        let first = values.remove(0);
        assert!(
            values.iter().all(|value| *value == first),
            "strategies differ: {first} and {values:?}, in: {sql}"
        );
        first
    }

    /// One value from follower `number`'s database.
    #[track_caller]
    pub(crate) fn target_one_of(&self, number: usize, sql: &str) -> String {
        one(self.at(&self.target_url(number), sql), sql)
    }

    /// On both ends.
    #[track_caller]
    pub(crate) fn both(&self, sql: &str) {
        self.source(sql);
        self.target(sql);
    }

    /// Creates the publication, for example `FOR TABLE t, mark`.
    #[track_caller]
    pub(crate) fn publish(&mut self, what: &str) {
        self.source(&format!("CREATE PUBLICATION p {what}"));
        self.publication = Some("p".to_owned());
    }

    /// The command of follower `number`, not started.
    pub(crate) fn command(&self, number: usize, args: &[&str]) -> Command {
        let mut command = Sluice::command_of(program(), self.pair(), args);
        command.env("PGSLUICE_SOURCE", self.source_url());
        command.env("PGSLUICE_TARGET", self.target_url(number));
        command.env("PGSLUICE_SUBSCRIPTION", self.name(number));
        command
    }

    /// Starts every pgsluice that does not run, and publishes all tables if nothing was published before.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        self.run_with(|_| ());
    }

    /// [`Scenario::run`], after `change` was made to the command.
    #[track_caller]
    pub(crate) fn run_with(&mut self, change: impl Fn(&mut Command)) {
        if self.publication.is_none() {
            self.publish("FOR ALL TABLES");
        }
        for number in 0..self.followers.len() {
            if self.followers[number].sluice.is_some() {
                continue;
            }
            let own = self.followers[number].args.clone();
            let (environment, own): (Vec<_>, Vec<_>) = own.iter().partition(|word| is_assignment(word));
            let mut args = vec!["run", "--publication", "p", "--wal-retrieve-retry-interval", "200ms"];
            args.extend(own.into_iter().map(String::as_str));
            let mut command = self.command(number, &args);
            command.envs(environment.into_iter().filter_map(|word| word.split_once('=')));
            change(&mut command);
            self.followers[number].sluice = Some(Sluice::start(command).expect("pgsluice"));
        }
    }

    /// [`Scenario::run`], and waits until all that is on the source is on the targets.
    #[track_caller]
    pub(crate) fn follow(&mut self) {
        self.run();
        self.wait_for_copy();
        self.catch_up();
    }

    /// Waits until every table has been copied: a mark may be among what is copied.
    #[track_caller]
    pub(crate) fn wait_for_copy(&mut self) {
        for number in 0..self.followers.len() {
            let url = self.target_url(number);
            let copied = wait_for("the first copy", BOUND, || {
                self.assert_running(number);
                let finished = self.at(&url, "SELECT bool_and(finished)::text FROM pgsluice.copied_table");
                Ok(finished.is_ok_and(|rows| rows[0][0].as_deref() == Some("true")))
            });
            assert!(copied.is_ok(), "{copied:?}\n{}", self.short_log(number));
        }
    }

    /// Waits until every commit of the source so far is on the targets. Commit order is kept, so that a row that is
    /// written last arrives last.
    #[track_caller]
    pub(crate) fn catch_up(&mut self) {
        let id = self.mark();
        self.wait_for_mark(id);
    }

    /// Writes the row that [`Scenario::wait_for_mark`] waits for.
    #[track_caller]
    pub(crate) fn mark(&mut self) -> u32 {
        self.marks += 1;
        self.source(&format!("INSERT INTO mark VALUES ({})", self.marks));
        self.marks
    }

    #[track_caller]
    pub(crate) fn wait_for_mark(&mut self, id: u32) {
        (0..self.followers.len()).for_each(|number| self.wait_for_mark_of(number, id));
    }

    /// [`Scenario::wait_for_mark`] for one follower.
    #[track_caller]
    pub(crate) fn wait_for_mark_of(&mut self, number: usize, id: u32) {
        let url = self.target_url(number);
        let reached = wait_for("the target to be level", BOUND, || {
            let there = self.at(&url, &format!("SELECT count(*) FROM mark WHERE id = {id}"));
            self.assert_running(number);
            Ok(there.is_ok_and(|rows| rows[0][0].as_deref() == Some("1")))
        });
        assert!(
            reached.is_ok(),
            "{reached:?}, strategy {:?}\n{}",
            self.followers[number].args,
            self.short_log(number)
        );
    }

    #[track_caller]
    fn assert_running(&mut self, number: usize) {
        let runs = self.followers[number].sluice.as_mut().is_some_and(Sluice::is_running);
        assert!(
            runs,
            "pgsluice ended, strategy {:?}\n{}",
            self.followers[number].args,
            self.short_log(number)
        );
    }

    /// Runs the statements, each a transaction, while pgsluice follows; compares all tables after.
    #[track_caller]
    pub(crate) fn live(&mut self, statements: &[&str]) {
        self.follow();
        statements.iter().for_each(|sql| self.source(sql));
        self.catch_up();
        self.same();
    }

    /// Runs the statements while pgsluice is stopped, so that they come as one backlog; compares all tables after.
    #[track_caller]
    pub(crate) fn backlog(&mut self, statements: &[&str]) {
        if self.followers.iter().any(|follower| follower.sluice.is_none()) {
            self.follow();
        }
        self.stop();
        statements.iter().for_each(|sql| self.source(sql));
        self.follow();
        self.same();
    }

    /// Every published table holds the same rows in every database; columns by the source's names.
    #[track_caller]
    pub(crate) fn same(&self) {
        let sql = "SELECT format('%I.%I', schemaname, tablename) FROM pg_publication_tables WHERE pubname = 'p' ORDER BY 1";
        for row in self.try_source(sql).expect("the publication") {
            self.same_table(row[0].as_deref().unwrap());
        }
    }

    /// One table holds the same rows in every database.
    #[track_caller]
    pub(crate) fn same_table(&self, table: &str) {
        let sql = format!(
            "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute \
              WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped",
            table = table.replace('\'', "''")
        );
        let columns = self.source_one(&sql);
        let sql = format!("SELECT ROW({columns})::text FROM {table} ORDER BY 1");
        let expected = self.try_source(&sql).unwrap_or_else(|error| panic!("{error}"));
        self.same_rows(table, &expected, &sql);
    }

    /// In every target database the table holds the rows that `query` has on the source.
    #[track_caller]
    pub(crate) fn same_as(&self, table: &str, query: &str) {
        let rows = format!("SELECT q::text FROM ({query}) q ORDER BY 1");
        let expected = self.try_source(&rows).unwrap_or_else(|error| panic!("{error}"));
        self.same_rows(table, &expected, &format!("SELECT t::text FROM {table} t ORDER BY 1"));
    }

    #[track_caller]
    fn same_rows(&self, table: &str, expected: &Rows, sql: &str) {
        for number in 0..self.followers.len() {
            let found = self.at(&self.target_url(number), sql).unwrap_or_else(|error| panic!("{error}"));
            if found != *expected {
                let (args, log) = (&self.followers[number].args, self.short_log(number));
                panic!("{table} differs, strategy {args:?}: {}\n{log}", difference(expected, &found));
            }
        }
    }

    /// Waits until every pgsluice has said what it is about to do; before, a signal ends it as it ends any program.
    #[track_caller]
    pub(crate) fn wait_until_started(&mut self) {
        for number in 0..self.followers.len() {
            let Some(sluice) = &self.followers[number].sluice else { continue };
            wait_for("pgsluice to start", BOUND, || Ok(sluice.stderr().contains("replicating from")))
                .unwrap();
        }
    }

    /// SIGTERM to every pgsluice; each must end well and in time.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        self.stop_from(0);
    }

    /// [`Scenario::stop`], but followers before `first` go on.
    #[track_caller]
    pub(crate) fn stop_from(&mut self, first: usize) {
        self.wait_until_started();
        for follower in &mut self.followers[first..] {
            let Some(mut sluice) = follower.sluice.take() else { continue };
            let status = sluice.terminate(STOP).expect("it stops in time");
            follower.log.push_str(&sluice.stderr());
            assert!(status.success(), "{status}\n{}", follower.log);
        }
    }

    /// SIGKILL to every pgsluice.
    pub(crate) fn kill(&mut self) {
        for follower in &mut self.followers {
            let Some(mut sluice) = follower.sluice.take() else { continue };
            sluice.kill9();
            follower.log.push_str(&sluice.stderr());
        }
    }

    /// The process of follower `number`.
    pub(crate) fn sluice(&mut self, number: usize) -> &mut Sluice {
        self.followers[number].sluice.as_mut().expect("it runs")
    }

    /// Waits for every pgsluice to end by itself; its exit code and everything it logged.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> Vec<(i32, String)> {
        let mut ends = Vec::new();
        for follower in &mut self.followers {
            let mut sluice = follower.sluice.take().expect("it runs");
            let status = sluice.wait(BOUND).unwrap();
            follower.log.push_str(&sluice.stderr());
            let status = status.unwrap_or_else(|| panic!("pgsluice still runs:\n{}", follower.log));
            ends.push((status.code().unwrap_or(-1), follower.log.clone()));
        }
        ends
    }

    /// Everything follower `number` logged.
    pub(crate) fn log(&self, number: usize) -> String {
        let follower = &self.followers[number];
        follower.log.clone() + &follower.sluice.as_ref().map(Sluice::stderr).unwrap_or_default()
    }

    /// The beginning and the end of [`Scenario::log`], to be printed.
    fn short_log(&self, number: usize) -> String {
        let log = self.log(number);
        let lines: Vec<&str> = log.lines().collect();
        match lines.len() {
            ..30 => log,
            count => [&lines[..12], &["..."], &lines[count - 12..]].concat().join("\n"),
        }
    }

    /// Waits until every follower has logged `words`.
    #[track_caller]
    pub(crate) fn wait_for_log(&mut self, words: &str) {
        for number in 0..self.followers.len() {
            let seen = wait_for(words, BOUND, || Ok(self.log(number).contains(words)));
            assert!(
                seen.is_ok(),
                "{seen:?}, strategy {:?}\n{}",
                self.followers[number].args,
                self.short_log(number)
            );
        }
    }

    /// Another command for follower `number`.
    #[track_caller]
    pub(crate) fn call(&self, number: usize, args: &[&str]) -> Output {
        let mut running = Sluice::start(self.command(number, args)).expect("pgsluice");
        let status = running.wait(BOUND).unwrap().unwrap_or_else(|| panic!("{args:?} takes too long"));
        Output { status, stdout: running.stdout(), stderr: running.stderr() }
    }

    /// `pgsluice status --json`.
    #[track_caller]
    pub(crate) fn status(&self, number: usize) -> Value {
        let output = self.call(number, &["status", "--json"]);
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    /// A figure of `status`'s totals, the same in all strategies.
    #[track_caller]
    pub(crate) fn conflicts(&self, kind: &str) -> u64 {
        let count = |number| self.status(number)["totals"]["conflicts"][kind].as_u64().expect(kind);
        let first = count(0);
        (1..self.followers.len())
            .for_each(|number| assert_eq!(count(number), first, "{kind}, strategy {number}"));
        first
    }

    /// How many strategies follow.
    pub(crate) fn followers(&self) -> usize {
        self.followers.len()
    }

    /// The slot of follower `number`.
    pub(crate) fn slot(&self, number: usize) -> String {
        format!("pgsluice_{}", self.name(number))
    }

    /// Waits until the first follower's slot has confirmed all before `lsn`.
    #[track_caller]
    pub(crate) fn wait_until_confirmed(&self, lsn: &str) {
        let sql = format!(
            "SELECT confirmed_flush_lsn >= '{lsn}' FROM pg_replication_slots WHERE slot_name = '{}'",
            self.slot(0)
        );
        wait_for("the slot to be confirmed", BOUND, || Ok(self.source_one(&sql) == "t")).unwrap();
    }

    /// Slots, origins and state of this scenario on either server.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        let mut found = Vec::new();
        for number in 0..self.followers.len() {
            let name = self.name(number);
            let sql = format!(
                "SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE slot_name LIKE 'pgsluice\\_{name}%' \
                 UNION ALL SELECT 'origin ' || roname FROM pg_replication_origin WHERE roname LIKE 'pgsluice\\_{name}%'"
            );
            for rows in [self.try_source(&sql), self.at(&self.target_url(number), &sql)] {
                found.extend(rows.unwrap().into_iter().flatten().flatten());
            }
        }
        found
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (number, follower) in self.followers.iter().enumerate() {
                eprintln!("--- {} {:?}:\n{}", follower.name, follower.args, self.short_log(number));
            }
        }
        self.kill();
        let Ends::Shared(pair) = self.ends else { return };
        self.sessions.borrow_mut().clear();
        let ask = |cluster: &Cluster, db: &str, sql: &str| cluster.sql(db, sql).map(drop);
        let mut results = Vec::new();
        for follower in &self.followers {
            let name = &follower.name;
            // A walsender notices the end of its client only when it next looks.
            let gone = format!(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                  WHERE slot_name LIKE 'pgsluice\\_{name}%' AND active"
            );
            let drop = format!(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                  WHERE slot_name LIKE 'pgsluice\\_{name}%' AND NOT temporary"
            );
            results.push(ask(&pair.source, "postgres", &gone));
            results.push(wait_for("a slot to be dropped", BOUND, || {
                Ok(pair.source.sql("postgres", &drop).is_ok())
            }));
            results.push(ask(
                &pair.target,
                "postgres",
                &format!("DROP DATABASE {} WITH (FORCE)", follower.db),
            ));
            let origins = format!(
                "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname LIKE 'pgsluice\\_{name}%'"
            );
            results.push(ask(&pair.target, "postgres", &origins));
        }
        results.push(ask(&pair.source, "postgres", &format!("DROP DATABASE {} WITH (FORCE)", self.db)));
        for error in results.into_iter().filter_map(Result::err) {
            eprintln!("while cleaning up: {error:#}");
        }
    }
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pgsluice"))
}

#[track_caller]
fn one(rows: Result<Rows, String>, sql: &str) -> String {
    match rows.unwrap_or_else(|error| panic!("{error}")).as_slice() {
        [row] if row.len() == 1 => row[0].clone().unwrap_or_default(),
        rows => panic!("one value expected, {} rows came from: {sql}", rows.len()),
    }
}

fn is_assignment(word: &str) -> bool {
    let named = |(name, _): (&str, &str)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    word.split_once('=').is_some_and(named)
}

/// The first rows that only one side has, counted.
fn difference(expected: &Rows, found: &Rows) -> String {
    let mut balance = BTreeMap::<&str, i64>::new();
    expected
        .iter()
        .flatten()
        .for_each(|row| *balance.entry(row.as_deref().unwrap_or("NULL")).or_default() += 1);
    found.iter().flatten().for_each(|row| *balance.entry(row.as_deref().unwrap_or("NULL")).or_default() -= 1);
    let mut text = format!("{} rows on the source, {} on the target", expected.len(), found.len());
    for (side, sign) in [("source", 1), ("target", -1)] {
        for (row, count) in balance.iter().filter(|(_, count)| **count * sign > 0).take(5) {
            let row: String = row.chars().take(300).collect();
            text.push_str(&format!("\n  only on the {side}, {} times: {row}", count.abs()));
        }
    }
    text
}

/// One connection that stays: open transactions, and questions asked often.
pub(crate) struct Session {
    url: String,
    runtime: tokio::runtime::Runtime,
    client: Option<Client>,
}

impl Session {
    pub(crate) fn to(url: &str) -> Session {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Session { url: url.to_owned(), runtime: runtime.expect("a runtime"), client: None }
    }

    /// Connects if that is necessary and runs `sql`; the rows of its last statement that returns any.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Rows, String> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let connected = self.runtime.block_on(tokio_postgres::connect(&self.url, NoTls));
            let (client, connection) =
                connected.map_err(|error| format!("connecting to {}: {error}", self.url))?;
            self.runtime.spawn(connection);
            self.client = Some(client);
        }
        let client = self.client.as_ref().expect("just connected");
        let messages = self.runtime.block_on(client.simple_query(sql)).map_err(|error| {
            let words = error.as_db_error().map_or(error.to_string(), |db| {
                format!("{} {} {}", db.code().code(), db.message(), db.detail().unwrap_or_default())
            });
            format!("{words}, in: {}", sql.chars().take(400).collect::<String>())
        })?;
        let mut rows = Rows::new();
        for message in &messages {
            match message {
                SimpleQueryMessage::RowDescription(_) => rows.clear(),
                SimpleQueryMessage::Row(row) => {
                    rows.push((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect());
                }
                _ => {}
            }
        }
        Ok(rows)
    }

    /// [`Session::query`] that must succeed.
    #[track_caller]
    pub(crate) fn run(&mut self, sql: &str) {
        self.query(sql).unwrap_or_else(|error| panic!("{error}"));
    }
}
