//! Catching up with a backlog that was written while the subscriber was off.
//!
//! ```text
//!   copy, native -> image, parked slot ─┐
//!   copy, ours   -> image, parked slot ─┴─> subscriber off, backlog written once, mark
//!        ┌──────────────────────────────────────────────┘
//!        └─> per run: image and slot back, warm up, clock on, replicate, mark seen, clock off, compare
//! ```
//!
//! The mark is a row written after the backlog: changes are applied in commit order, so who sees it sees everything.
//! The plot shows how much of the backlog's WAL is not applied yet, from the replication origins, which both sides
//! advance with each commit.
//!
//! On slow storage ([`crate::slow`]) buffers are cold when a run begins; the first copy is not
//! slowed.

use std::time::Instant;

use anyhow::{Context, Result};
use testkit::{Major, StopMode, wait_for};

use crate::limit::{Limit, SET_ROWS, Sets, sets_alone, walsender_alone};
use crate::load::{self, Script, Written};
use crate::measure::{Look, Run, finish, measure};
use crate::probe::Probe;
use crate::report::Case;
use crate::rig::{DB, NAME, Rig, STEP_BOUND, first, slot};
use crate::slow;
use crate::{Arm, Options, Say};

/// Catching up is to take at most half of native's time.
const GOAL: f64 = 2.0;
const TRANSACTIONS: u64 = 400_000;
const TRANSACTIONS_QUICK: u64 = 100_000;
const ROWS: u64 = 100_000;
/// A million accounts: 130 MB, so that it fits in `shared_buffers`.
const SCALE: u64 = 10;
const ACCOUNTS_PER_SCALE: u64 = 100_000;
const BYTES_PER_MEGABYTE: f64 = 1e6;

const MARK: &str = "CREATE TABLE mark (id int PRIMARY KEY);";

/// First scenario of the message on prefetching for logical replication.
const UPDATES_SCHEMA: &str = "CREATE TABLE t (pk integer PRIMARY KEY, counter integer, \
    filler text DEFAULT repeat('x', 1000)) WITH (fillfactor = 10);";

/// What `pgbench --initialize` makes.
const TPCB_SCHEMA: &str = "
    CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88)) WITH (fillfactor = 100);
    CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84)) WITH (fillfactor = 100);
    CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84)) WITH (fillfactor = 100);
    CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));";

/// The same message's figures with 0.1 ms for each read were 7:40 against 3:10 and 10:10 against 5:50; the goals are
/// this project's own.
const GOAL_UPDATES_SLOW: f64 = 15.0;
const GOAL_INSERTS_SLOW: f64 = 8.0;
const INSERT_ROWS: u64 = 10_000_000;
const INSERT_ROWS_QUICK: u64 = 2_000_000;
/// The updated table has 781 MB with its free space.
const BUFFERS_UPDATES: &str = "128MB";
/// Five eighths of the second key's index at either size: 214 MB and 43 MB.
const BUFFERS_INSERTS: &str = "128MB";
const BUFFERS_INSERTS_QUICK: &str = "26MB";

/// Second scenario of the message.
const INSERTS_SCHEMA: &str = "CREATE TABLE t (pk integer PRIMARY KEY, sk integer, counter integer DEFAULT 0); \
    CREATE INDEX t_sk ON t (sk);";

/// One kind of backlog.
pub(crate) struct Backlog {
    pub(crate) case: &'static str,
    what: String,
    schema: &'static str,
    rows: String,
    tables: Vec<String>,
    /// Reads through the indexes what is written to, so that no run begins with cold buffers.
    warm_up: &'static str,
    script: Script,
    /// Writes as many rows as the backlog does, without replication.
    sets: Sets,
    transactions: u64,
    changes_per_transaction: u64,
    goal: f64,
    /// On slow storage, with this much of `shared_buffers`.
    slow: Option<&'static str>,
}

impl Backlog {
    /// What it needs of the servers.
    fn settings(&self, major: Major) -> Vec<(&'static str, String)> {
        self.slow.map_or_else(Vec::new, |buffers| slow::settings(major, buffers))
    }
}

/// The first scenario with 0.1 ms for each read.
pub(crate) fn updates_slow(options: &Options) -> Backlog {
    let updates = updates(options);
    Backlog {
        case: "updates-slow",
        what: format!(
            "{}, of which every page has one; shared_buffers = {BUFFERS_UPDATES}, 0.1 ms per 8 KB read",
            updates.what
        ),
        goal: GOAL_UPDATES_SLOW,
        slow: Some(BUFFERS_UPDATES),
        ..updates
    }
}

/// The second scenario with 0.1 ms for each read.
pub(crate) fn inserts_slow(options: &Options) -> Backlog {
    let rows = options.rows.unwrap_or(if options.quick { INSERT_ROWS_QUICK } else { INSERT_ROWS });
    let transactions = options.transactions.unwrap_or(full_or_quick(options));
    let buffers = if rows < INSERT_ROWS { BUFFERS_INSERTS_QUICK } else { BUFFERS_INSERTS };
    Backlog {
        case: "inserts-slow",
        what: format!(
            "{transactions} single-row inserts with a random second key, each a transaction, into {rows} rows; \
             shared_buffers = {buffers}, 0.1 ms per 8 KB read"
        ),
        schema: INSERTS_SCHEMA,
        rows: format!(
            "CREATE SEQUENCE t_pk_seq; ALTER TABLE t ALTER pk SET DEFAULT nextval('t_pk_seq');
             INSERT INTO t (sk) SELECT random() * 10000000 FROM generate_series(1, {rows})"
        ),
        tables: vec!["t".to_owned()],
        warm_up: "SELECT 1",
        script: Script::Insert,
        sets: Sets {
            feed: format!(
                "SELECT i / {SET_ROWS} AS batch, {rows} + 1 + i AS pk, (random() * 10000000)::int AS sk \
                 FROM generate_series(0, {transactions} - 1) i"
            ),
            statements: &["INSERT INTO t SELECT pk, sk, 0 FROM feed f WHERE f.batch = b"],
        },
        transactions,
        changes_per_transaction: 1,
        goal: GOAL_INSERTS_SLOW,
        slow: Some(buffers),
    }
}

fn updates(options: &Options) -> Backlog {
    let rows = options.rows.unwrap_or(ROWS);
    let transactions = options.transactions.unwrap_or(full_or_quick(options));
    Backlog {
        case: "updates",
        what: format!("{transactions} single-row updates at random, each a transaction, {rows} rows of 1 KB"),
        schema: UPDATES_SCHEMA,
        rows: format!("INSERT INTO t SELECT i, 0 FROM generate_series(1, {rows}) i"),
        tables: vec!["t".to_owned()],
        warm_up: "SELECT sum(counter) FROM t WHERE pk > 0",
        script: Script::Update { rows },
        sets: Sets {
            feed: format!(
                "SELECT DISTINCT ON (batch, pk) * FROM (SELECT i / {SET_ROWS} AS batch, \
                 1 + floor(random() * {rows})::int AS pk, i AS counter, repeat('x', 1000) AS filler \
                 FROM generate_series(0, {transactions} - 1) i) f ORDER BY batch, pk"
            ),
            statements: &["UPDATE t SET pk = f.pk, counter = f.counter, filler = f.filler FROM feed f \
                 WHERE f.batch = b AND t.pk = f.pk"],
        },
        transactions,
        changes_per_transaction: 1,
        goal: GOAL,
        slow: None,
    }
}

fn tpcb(options: &Options) -> Backlog {
    // As many changed rows as in the other case.
    let transactions = options.transactions.unwrap_or(full_or_quick(options)) / 4;
    let scale = options.rows.map_or(SCALE, |rows| (rows / ACCOUNTS_PER_SCALE).max(1));
    Backlog {
        case: "tpcb",
        what: format!("{transactions} transactions of pgbench TPC-B, scale {scale}, four changed rows each"),
        schema: TPCB_SCHEMA,
        rows: format!(
            "INSERT INTO pgbench_branches SELECT i, 0, '' FROM generate_series(1, {scale}) i;
             INSERT INTO pgbench_tellers SELECT i, (i - 1) / 10 + 1, 0, '' FROM generate_series(1, {scale} * 10) i;
             INSERT INTO pgbench_accounts SELECT i, (i - 1) / {ACCOUNTS_PER_SCALE} + 1, 0, ''
                 FROM generate_series(1, {scale} * {ACCOUNTS_PER_SCALE}) i"
        ),
        tables: ["branches", "tellers", "accounts", "history"].map(|name| format!("pgbench_{name}")).to_vec(),
        warm_up: "SELECT sum(abalance) FROM pgbench_accounts WHERE aid > 0",
        script: Script::Tpcb { scale },
        sets: Sets {
            feed: format!(
                "SELECT i * 4 / {SET_ROWS} AS batch, 1 + floor(random() * {scale})::int AS bid, \
                 1 + floor(random() * {scale} * 10)::int AS tid, \
                 1 + floor(random() * {scale} * {ACCOUNTS_PER_SCALE})::int AS aid, \
                 i AS delta, now()::timestamp AS mtime, ''::char(84) AS filler \
                 FROM generate_series(0, {transactions} - 1) i"
            ),
            statements: &[
                "UPDATE pgbench_accounts a SET aid = f.aid, bid = f.bid, abalance = f.delta, filler = f.filler \
                 FROM (SELECT DISTINCT ON (aid) * FROM feed WHERE batch = b ORDER BY aid) f WHERE a.aid = f.aid",
                "UPDATE pgbench_tellers t SET tid = f.tid, bid = f.bid, tbalance = f.delta, filler = f.filler \
                 FROM (SELECT DISTINCT ON (tid) * FROM feed WHERE batch = b ORDER BY tid) f WHERE t.tid = f.tid",
                "UPDATE pgbench_branches t SET bid = f.bid, bbalance = f.delta, filler = f.filler \
                 FROM (SELECT DISTINCT ON (bid) * FROM feed WHERE batch = b ORDER BY bid) f WHERE t.bid = f.bid",
                "INSERT INTO pgbench_history SELECT tid, bid, aid, delta, mtime, NULL FROM feed WHERE batch = b",
            ],
        },
        transactions,
        changes_per_transaction: 4,
        goal: GOAL,
        slow: None,
    }
}

fn full_or_quick(options: &Options) -> u64 {
    if options.quick { TRANSACTIONS_QUICK } else { TRANSACTIONS }
}

/// Every case on every major.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for major in options.majors() {
        for backlog in [updates(options), tpcb(options), updates_slow(options), inserts_slow(options)] {
            if options.wants(backlog.case) {
                let case = run_case(options, say, major, &backlog);
                cases.push(case.with_context(|| format!("{} on {major}", backlog.case))?);
            }
        }
    }
    Ok(cases)
}

fn run_case(options: &Options, say: &Say, major: Major, backlog: &Backlog) -> Result<Case> {
    let name = format!("catchup {}-{major}", backlog.case);
    let mut ready = prepare(options, say, &name, major, backlog, &[])?;
    let mut case = ready.case(backlog, backlog.case.to_owned(), backlog.goal);
    if backlog.slow.is_none() {
        // Slow storage has no limit of this kind: who reads ahead waits less than one session that writes sets.
        let limit = limit(&mut ready.rig, options.order(0)[0], backlog, ready.written.transactions)?;
        say.line(&format!(
            "{name}: walsender alone {:.2} s ({:.2} CPU s), sets alone {:.2} s ({:.2} CPU s)",
            limit.walsender.seconds, limit.walsender.cpu, limit.sets.seconds, limit.sets.cpu
        ));
        case.limit = Some(limit);
    }
    for repeat in 0..options.repeats {
        for arm in options.order(repeat) {
            // What its users on slow storage are told to set.
            let words =
                backlog.slow.map_or_else(Vec::new, |_| ["--prefetch", "all"].map(str::to_owned).to_vec());
            let run = ready.catch_up(backlog, arm, &words)?;
            say.line(&format!("{name}: {}", case.describe(arm, repeat + 1, options.repeats, &run)));
            case.add(arm, run);
        }
    }
    Ok(case)
}

/// A backlog that is written, and a subscriber's image for each side to go back to.
pub(crate) struct Ready {
    rig: Rig,
    window: Window,
    written: Written,
    version: String,
}

/// Makes servers with these settings `more`, copies, writes the backlog.
pub(crate) fn prepare(
    options: &Options,
    say: &Say,
    name: &str,
    major: Major,
    backlog: &Backlog,
    more: &[(&'static str, String)],
) -> Result<Ready> {
    let settings = [backlog.settings(major).as_slice(), more].concat();
    let mut rig = Rig::with(major, options.connections, &settings)?;
    let tables = backlog.tables.join(", ");
    rig.pair.both(DB, &format!("{MARK}{}", backlog.schema))?;
    rig.pair.source.sql(DB, &backlog.rows)?;
    rig.pair.source.sql(DB, &format!("CREATE PUBLICATION {NAME} FOR TABLE mark, {tables}"))?;
    rig.pair.source.sql(DB, "VACUUM ANALYZE")?;
    say.line(&format!("{name}: rows are on the publisher"));
    rig.save("empty")?;
    for arm in options.order(0) {
        rig.restore("empty")?;
        synchronise(&mut rig, arm)?;
        say.line(&format!("{name}: {} has copied and is stopped", arm.name()));
    }
    let (written, window) = write_backlog(&rig, backlog)?;
    say.line(&format!(
        "{name}: {} transactions written by {} in {:.1} s, {:.0} MB of WAL",
        written.transactions,
        written.by,
        written.seconds,
        window.bytes() / BYTES_PER_MEGABYTE
    ));
    if backlog.slow.is_some() {
        rig.read_slowly()?;
    }
    let version = rig.version()?;
    Ok(Ready { rig, window, written, version })
}

impl Ready {
    pub(crate) fn case(&self, backlog: &Backlog, name: String, goal: f64) -> Case {
        let changes = self.written.transactions * backlog.changes_per_transaction;
        let mut case = Case::new(name, self.rig.major(), self.version.clone(), goal, changes);
        case.what.clone_from(&backlog.what);
        case.publisher = Some(self.written);
        case.curve_label = "MB of WAL not applied yet";
        case
    }

    /// One run; pgsluice is told `words` besides.
    pub(crate) fn catch_up(&mut self, backlog: &Backlog, arm: Arm, words: &[String]) -> Result<Run> {
        self.rig.words = words.to_vec();
        catch_up(&mut self.rig, backlog, arm, &self.window)
    }
}

/// First copy by `arm`; then its slot is parked and the stopped subscriber kept as an image.
fn synchronise(rig: &mut Rig, arm: Arm) -> Result<()> {
    let target = &rig.pair.target;
    match arm {
        Arm::Native => {
            // Not by `Cluster::sql`: two statements would be one transaction, in which no slot can be made.
            target.sql(DB, &rig.create_subscription())?;
            wait_for("native's first copy", STEP_BOUND, || {
                let ready = "SELECT coalesce(bool_and(srsubstate = 'r'), false) FROM pg_subscription_rel";
                Ok(first(target.sql(DB, ready)?) == "t")
            })?;
            target.sql(DB, &format!("ALTER SUBSCRIPTION {NAME} DISABLE"))?;
        }
        Arm::Ours => {
            let mut sluice = rig.run_sluice()?;
            // A row that comes by the stream: all tables have joined.
            rig.pair.source.sql(DB, "INSERT INTO mark VALUES (0)")?;
            let streams = format!(
                "SELECT count(*) FROM pg_stat_replication WHERE application_name LIKE '%{NAME}%stream'"
            );
            let streamed = wait_for("our first copy", STEP_BOUND, || {
                anyhow::ensure!(sluice.is_running(), "pgsluice ended");
                let copied = first(target.sql(DB, "SELECT count(*) FROM mark WHERE id = 0")?) == "1";
                let finished = "SELECT coalesce(bool_and(finished), false) FROM pgsluice.copied_table";
                Ok(copied
                    && first(target.sql(DB, finished)?) == "t"
                    && first(rig.pair.source.sql(DB, &streams)?) != "0")
            });
            streamed.with_context(|| sluice.stderr())?;
            finish(Some(sluice))?;
        }
    }
    target.sql(DB, "VACUUM ANALYZE")?;
    rig.save(arm.name())?;
    rig.park(arm)
}

/// The backlog's place in the WAL.
struct Window {
    start: u64,
    end: u64,
}

impl Window {
    fn bytes(&self) -> f64 {
        (self.end - self.start) as f64
    }
}

/// The subscriber is off.
fn write_backlog(rig: &Rig, backlog: &Backlog) -> Result<(Written, Window)> {
    let source = &rig.pair.source;
    let lsn = || -> Result<u64> {
        Ok(first(source.sql(DB, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")?).parse()?)
    };
    let start = lsn()?;
    let written = load::write(source.port(), backlog.script, backlog.transactions)?;
    source.sql(DB, "INSERT INTO mark VALUES (1)")?;
    let end = lsn()?;
    source.sql(DB, "CHECKPOINT")?;
    Ok((written, Window { start, end }))
}

/// What the servers need for this backlog whoever replicates it. The subscriber is off, and is stopped again.
fn limit(rig: &mut Rig, arm: Arm, backlog: &Backlog, transactions: u64) -> Result<Limit> {
    rig.unpark(arm)?;
    // The mark is one more.
    let walsender = walsender_alone(rig, &slot(arm), transactions + 1)?;
    rig.drop_slots()?;
    rig.restore(arm.name())?;
    warm_up(rig, backlog)?;
    let sets = sets_alone(&rig.pair.target, &backlog.sets)?;
    rig.pair.target.stop(StopMode::Fast)?;
    Ok(Limit { walsender, sets, cores: std::thread::available_parallelism()?.get() })
}

/// So that no run begins with cold buffers.
fn warm_up(rig: &Rig, backlog: &Backlog) -> Result<()> {
    let begun = Instant::now();
    let plan =
        "SET enable_seqscan = off; SET enable_bitmapscan = off; SET max_parallel_workers_per_gather = 0";
    rig.pair.target.sql(DB, &format!("{plan}; {}", backlog.warm_up))?;
    anyhow::ensure!(begun.elapsed() < STEP_BOUND, "warming up took {:?}", begun.elapsed());
    rig.settle()
}

fn catch_up(rig: &mut Rig, backlog: &Backlog, arm: Arm, window: &Window) -> Result<Run> {
    rig.restore(arm.name())?;
    rig.unpark(arm)?;
    if backlog.slow.is_none() {
        warm_up(rig, backlog)?;
    } else {
        rig.settle()?;
    }
    let start = |probe: &Probe| match arm {
        Arm::Native => probe.row(&format!("ALTER SUBSCRIPTION {NAME} ENABLE")).map(|_| None),
        Arm::Ours => rig.run_sluice().map(Some),
    };
    let (mut run, sluice) = measure(rig, start, |probe| look(probe, window))?;
    let mut tables = backlog.tables.clone();
    // Ours has seen one mark before the backlog; native gets that with it.
    tables.push("mark".to_owned());
    run.equal = rig.is_equal(&tables);
    finish(sluice)?;
    rig.pair.target.stop(StopMode::Fast)?;
    rig.drop_slots()?;
    Ok(run)
}

fn look(probe: &Probe, window: &Window) -> Result<Look> {
    let row = probe.row(
        "SELECT max(remote_lsn) - '0/0'::pg_lsn, EXISTS (SELECT FROM mark WHERE id = 1) \
         FROM pg_replication_origin_status",
    )?;
    let column = |index: usize| row.get(index).cloned().flatten();
    let applied = column(0).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let left = window.end.saturating_sub(applied.clamp(window.start, window.end));
    let done = column(1).as_deref() == Some("t");
    Ok(Look { value: if done { 0.0 } else { left as f64 / BYTES_PER_MEGABYTE }, done })
}
