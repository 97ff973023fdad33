//! The vocabulary of every scenario: one source database, one target database per strategy, and the
//! words between.
//!
//! A pair of clusters per major serves all scenarios of the process, and each scenario has its own
//! databases there. A scenario that needs its own settings, or stops a server, starts its own pair
//! ([`Scenario::alone`]).
//!
//! *Strategies* are command lines that must all lead to the same rows ([`FOLDED`], [`ONE_BY_ONE`]).
//! The source is written once, and one pgsluice per strategy follows it into its own database. As
//! in a shell, words like `NAME=value` set the environment. If no word names a source mode, they
//! read WAL on some majors ([`source_mode`]).

mod clusters;
mod followers;
mod rows;
mod session;
mod source_mode;
mod waiting;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use testkit::{Builder, Cluster, Major, Pair, Rows, wait_for};

use clusters::shared;
use followers::Follower;
#[allow(unused_imports, reason = "the golden themes use other words of it")]
pub(crate) use followers::position;
pub(crate) use session::Session;

/// Nothing stands still for this long unless it is broken. A wait for a follower that moves lasts
/// longer, and so does every wait on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(90);
/// What a stop may take on a machine with nothing else to do.
pub(crate) const STOP: Duration = Duration::from_secs(5);

/// As a user runs it.
pub(crate) const FOLDED: &[&str] = &[];
/// Everything small and in text: parts of one row, no streaming.
pub(crate) const ONE_BY_ONE: &[&str] =
    &["--binary", "off", "--batch-rows-max", ROWS_OF_PARTS, "--streaming", "off"];
const ROWS_OF_PARTS: &str = "2";
/// WAL as it stands, decoded by us.
pub(crate) const DECODED: &[&str] = &["--source-mode", "wal"];
const ALL: &[&[&str]] = &[FOLDED, ONE_BY_ONE, DECODED];

/// Runs `scenario` on every major under test, or one that takes long on the major whose turn it is
/// ([`turns`]), followed by all strategies.
pub(crate) fn scenario(scenario: impl Fn(&mut Scenario) + Sync) {
    scenario_with(ALL, scenario);
}

/// [`scenario`] with other strategies.
pub(crate) fn scenario_with(strategies: &[&[&str]], scenario: impl Fn(&mut Scenario) + Sync) {
    Major::each_of(&Major::in_turn(), MAJORS_AT_ONCE, |major| {
        tell(Scenario::on(shared(major), strategies), &scenario)
    });
}

/// [`scenario_with`] on majors that differ in what is tested, whichever ones are under test.
pub(crate) fn scenario_on(majors: &[Major], strategies: &[&[&str]], scenario: impl Fn(&mut Scenario)) {
    for major in majors {
        tell(Scenario::on(shared(*major), strategies), &scenario);
    }
}

/// [`scenario_with`] in databases created with these options of `CREATE DATABASE`. Not every
/// encoding can be read from WAL: a strategy that does not name a source reads a logical slot.
pub(crate) fn scenario_in(
    source: &str,
    target: &str,
    strategies: &[&[&str]],
    scenario: impl Fn(&mut Scenario) + Sync,
) {
    Major::each_of(&Major::in_turn(), MAJORS_AT_ONCE, |major| {
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
    Major::each_of(&Major::in_turn(), MAJORS_AT_ONCE, |major| {
        let (source, target) = (source(Cluster::builder(major)), target(Cluster::builder(major)));
        let pair = Pair::with(source, target).expect("two clusters");
        tell(Scenario::alone(pair, strategies), &scenario);
    });
}

fn tell(mut told: Scenario, scenario: &impl Fn(&mut Scenario)) {
    scenario(&mut told);
    told.stop();
}

/// Majors that are tested at the same time. A scenario mostly waits, but each of its strategies is
/// a process.
const MAJORS_AT_ONCE: usize = 2;

enum Ends {
    Shared(&'static Pair),
    Own(Box<Pair>),
}

/// See the module.
pub(crate) struct Scenario {
    ends: Ends,
    db: String,
    followers: Vec<Follower>,
    /// What they read, if it was chosen here.
    source_mode: Option<&'static str>,
    publication: Option<String>,
    /// Where the source stood before each.
    marks: Vec<u64>,
    sessions: RefCell<BTreeMap<String, Session>>,
}

/// A schema without rows, a publication of it, some statements: the whole of most scenarios.
impl Scenario {
    fn on(pair: &'static Pair, strategies: &[&[&str]]) -> Scenario {
        Scenario::new(Ends::Shared(pair), strategies, [""; 2]).over_either_source()
    }

    pub(crate) fn alone(pair: Pair, strategies: &[&[&str]]) -> Scenario {
        Scenario::new(Ends::Own(Box::new(pair)), strategies, [""; 2]).over_either_source()
    }

    /// A scenario that names a source is about that one, or has the other beside it.
    fn over_either_source(mut self) -> Scenario {
        let says = |word: &String| word.starts_with("--source-mode");
        if !self.followers.iter().flat_map(|follower| &follower.args).any(says) {
            self.source_mode = source_mode::chosen(self.pair().source.major());
        }
        self
    }

    fn new(ends: Ends, strategies: &[&[&str]], options: [&str; 2]) -> Scenario {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let db = format!("s{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let mut told = Scenario {
            ends,
            db: db.clone(),
            followers: Vec::new(),
            source_mode: None,
            publication: None,
            marks: Vec::new(),
            sessions: RefCell::default(),
        };
        let [source, target] =
            options.map(|options| move |db: &str| format!("CREATE DATABASE {db} {options}"));
        told.pair().source.sql("postgres", &source(&db)).expect("a database");
        for (number, args) in strategies.iter().enumerate() {
            let name = format!("{db}_{number}");
            told.pair().target.sql("postgres", &target(&name)).expect("a database");
            let args = args.iter().map(|&arg| chunks_for_workers(arg).to_owned()).collect();
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
            self.until_no_deadlock(&self.target_url(number), sql)
                .unwrap_or_else(|error| panic!("on the target: {error}"));
        }
    }

    /// Runs a statement that may lock rows in another order than what is applied meanwhile. The
    /// server ends one of two sessions that wait for each other; a client tries again then.
    fn until_no_deadlock(&self, url: &str, sql: &str) -> Result<Rows, String> {
        const TRIES: u32 = 5;
        for number in 1..TRIES {
            match self.at(url, sql) {
                Err(error) if error.contains("40P01") => println!("deadlock {number}, in: {sql}"),
                answer => return answer,
            }
        }
        self.at(url, sql)
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

    /// Runs the statements, each a transaction, while pgsluice follows; compares all tables after.
    #[track_caller]
    pub(crate) fn live(&mut self, statements: &[&str]) {
        self.follow();
        statements.iter().for_each(|sql| self.source(sql));
        self.catch_up();
        self.same();
    }

    /// Runs the statements while pgsluice is stopped, so that they come as one backlog; compares
    /// all tables after.
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
            "SELECT coalesce(s.confirmed_flush_lsn, r.replay_lsn) >= '{lsn}' \
               FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid \
              WHERE s.slot_name = '{}'",
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
                let (args, mode) = (&follower.args, self.source_mode.unwrap_or("as it says"));
                eprintln!("--- {} {args:?}, source_mode {mode}:\n{}", follower.name, self.short_log(number));
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

/// Parts of a transaction are applied alone, so several workers have work only with chunks of whole
/// transactions.
fn chunks_for_workers(arg: &str) -> &str {
    let several = testkit::apply_workers().is_some_and(|workers| workers > 1);
    if several && arg == ROWS_OF_PARTS { "16" } else { arg }
}

#[track_caller]
fn one(rows: Result<Rows, String>, sql: &str) -> String {
    match rows.unwrap_or_else(|error| panic!("{error}")).as_slice() {
        [row] if row.len() == 1 => row[0].clone().unwrap_or_default(),
        rows => panic!("one value expected, {} rows came from: {sql}", rows.len()),
    }
}
