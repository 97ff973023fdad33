//! What it costs the subscriber's own clients that deletions are remembered: the experiment of the
//! message that proposed `update_deleted`, on 2024-12-11.
//!
//! ```text
//! publisher --feed, 200 transactions a second--> pgsluice --> subscriber <-- TPC-B, the clients
//! ```
//! | file | measures |
//! | --- | --- |
//! | `tpcb` | the clients' transactions per second, what they leave, and where CPU time goes |
//! | `misses` | how many missing rows a second are looked up |
//! | `memory` | what deletions occupy while they come steadily, in pgsluice and in stores by themselves |
//!
//! Both ends are compared by the tables that the publisher writes. The clients' tables are
//! published, so that their deletions are captured, but only the clients write them.

mod memory;
mod misses;
mod tpcb;

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value as Json;
use testkit::{Major, Sluice, wait_for};

use crate::lab::backlog::MARK;
use crate::lab::load::{self, Amount, Script, Value};
use crate::lab::rig::{DB, NAME, Rig, STEP_BOUND, first};
use crate::report::{Case, Stock};
use crate::{Arm, Options, Say};

/// The sides of each case.
pub(crate) const STOCK: Stock = Stock {
    sides: &[
        "off: pgsluice replicates and remembers no deletions. The subscriber has `wal_level = replica`.",
        "`adaptive`, and a time without more words: pgsluice with `--retain-dead-tuples on`, and with that \
         `--retention-interval`. The subscriber has `wal_level = logical`.",
        "`held-`: as off, but a session on the subscriber holds a snapshot, and takes a new one each time this has \
         passed. The subscriber then keeps dead rows as it would if they were retained in their tables.",
    ],
    columns: &[
        "Each side runs once in each repeat, and the order turns. A pair is a side's run and the run of off in the same \
         repeat. The interval of a ratio is Student's, at 95 %.",
        "The share of HOT updates of `pgbench_accounts` rises with the updates of a run, because a page first fills up. So a \
         slower side has a lower one.",
        "CPU seconds: `exited` are the subscriber's backends that served the clients, `client backend` the sessions of \
         pgsluice, and its `walsender` serves capture. Capture in pgsluice is the CPU time of pgsluice beyond that of off.",
        "A look-up is timed from the question to the answer. Changes that miss their rows are gathered before that, \
         so that one look-up answers many.",
        "`memory`: the memory alone is what pgsluice keeps deletions in, in a process without anything else. LMDB is the \
         fastest other store of [churn](churn.md) where keys come and go in order. Both get the rows, the commits and the \
         horizon of pgsluice's run. LMDB keeps each row's key with the LSN, and its tombstone, and removes them one by \
         one when the horizon has passed them. Its resident memory has the pages of the file that it maps. Ours reads \
         and writes its file by way of the kernel's cache, which is no part of a process. CPU seconds are those since \
         the beginning. Those of pgsluice include replication, capture and decoding.",
        "\"Equal\": after every run both ends held the same rows of the tables that the publisher writes.",
    ],
};

/// Remembers deletions.
const RETAIN: [&str; 2] = ["--retain-dead-tuples", "on"];
const FEED: &str = "CREATE TABLE feed (pk integer PRIMARY KEY, counter integer) WITH (fillfactor = 50)";
const FEED_ROWS: i64 = 10_000;
const FEED_PER_SECOND: f64 = 200.0;
/// The image of a subscriber that has all tables.
const FILLED: &str = "filled";
/// Between two looks at what the subscriber has.
const PACE: Duration = Duration::from_millis(20);

/// Every case on every major.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for major in options.majors() {
        cases.extend(tpcb::run(options, say, major)?);
        cases.extend(misses::run(options, say, major).with_context(|| format!("misses on {major}"))?);
        if options.wants("memory") {
            cases.push(memory::run(options, say, major).with_context(|| format!("memory on {major}"))?);
        }
    }
    Ok(cases)
}

/// The publisher, the subscriber, and the rows that each run begins with.
struct Stage {
    rig: Rig,
    /// SQL that gives the publisher's tables the rows of the image.
    fill: String,
    /// The tables that are compared.
    compared: Vec<String>,
}

impl Stage {
    /// `schema` is created at both ends and `published` are its tables' names. `rows` is run on the
    /// subscriber. `fill` gives both ends the rows of the tables `written` by the publisher.
    fn prepare(options: &Options, major: Major, of: &Tables) -> Result<Stage> {
        let tracks = [("track_commit_timestamp", "on".to_owned())];
        let mut rig = Rig::with(major, options.connections, &tracks)?;
        rig.pair.both(DB, &format!("{MARK}{FEED}; {}", of.schema))?;
        let published = [&["mark", "feed"], of.published].concat().join(", ");
        rig.pair.source.sql(DB, &format!("CREATE PUBLICATION {NAME} FOR TABLE {published}"))?;
        let fill =
            format!("INSERT INTO feed SELECT i, 0 FROM generate_series(1, {FEED_ROWS}) i; {}", of.fill);
        rig.pair.target.sql(DB, &format!("{fill}; {}", of.rows))?;
        rig.pair.target.sql(DB, "VACUUM ANALYZE")?;
        rig.pair.target.sql(DB, "CHECKPOINT")?;
        rig.save(FILLED)?;
        let compared: Vec<String> =
            ["mark", "feed"].iter().chain(of.written).map(|table| (*table).to_owned()).collect();
        let fill = format!("TRUNCATE {}; {fill}", compared.join(", "));
        Ok(Stage { rig, fill, compared })
    }

    /// Both ends as in the beginning, and no replication.
    fn reset(&mut self, remembers: bool) -> Result<()> {
        let level = if remembers { "logical" } else { "replica" };
        self.rig.restore_with(FILLED, &format!("wal_level = {level}\n"))?;
        self.rig.drop_slots()?;
        self.rig.pair.source.sql(DB, &self.fill)?;
        self.rig.settle()
    }

    /// Starts pgsluice, which streams when this returns, and captures if it is to.
    fn start(&mut self, words: &[&str]) -> Result<Sluice> {
        self.rig.words = ["--copy-data", "off"].iter().chain(words).map(|word| (*word).to_owned()).collect();
        let mut sluice = self.rig.run_sluice(Arm::Ours)?;
        let remembers = words.starts_with(&RETAIN);
        let begun = self.arrives(&mut sluice, 0).and_then(|()| {
            if !remembers {
                return Ok(());
            }
            wait_for("capture", STEP_BOUND, || Ok(self.deletions("state")? == "capturing"))
        });
        begun.with_context(|| sluice.stderr())?;
        Ok(sluice)
    }

    /// Writes a mark on the publisher, and waits until it is on the subscriber.
    fn arrives(&self, sluice: &mut Sluice, mark: u32) -> Result<()> {
        // The slot must be there first, or the mark is not in its stream.
        wait_for("the slot", STEP_BOUND, || {
            ensure!(sluice.is_running(), "pgsluice ended:\n{}", sluice.stderr());
            let slots = "SELECT count(*) FROM pg_replication_slots WHERE active";
            Ok(first(self.rig.pair.source.sql(DB, slots)?) == "1")
        })?;
        self.rig.pair.source.sql(DB, &format!("INSERT INTO mark VALUES ({mark})"))?;
        self.has(sluice, mark)
    }

    /// Waits until the subscriber has a mark.
    fn has(&self, sluice: &mut Sluice, mark: u32) -> Result<()> {
        let sql = format!("SELECT count(*) FROM mark WHERE id = {mark}");
        wait_for("a mark on the subscriber", STEP_BOUND, || {
            ensure!(sluice.is_running(), "pgsluice ended:\n{}", sluice.stderr());
            thread::sleep(PACE);
            Ok(first(self.rig.pair.target.sql(DB, &sql)?) == "1")
        })
    }

    fn is_equal(&self) -> bool {
        self.rig.is_equal(&self.compared)
    }

    /// What the running pgsluice says of itself.
    fn status(&self) -> Result<Json> {
        let output = Sluice::call(&self.rig.pair, &["status", "--json", "--subscription", NAME])?;
        serde_json::from_str(&output.stdout).with_context(|| format!("pgsluice status: {}", output.stderr))
    }

    /// One of its figures about deletions.
    fn deletions(&self, what: &str) -> Result<Json> {
        Ok(self.status()?["deletions"][what].clone())
    }

    /// Runs `work` while the publisher writes for `time`.
    fn while_fed<T>(&self, time: Duration, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let port = self.rig.pair.source.port();
        let amount = Amount::Rate { per_second: FEED_PER_SECOND, time };
        thread::scope(|scope| {
            let feeding = scope.spawn(move || load::write(port, &feed(), amount));
            let done = work();
            feeding.join().map_err(|_| anyhow!("the thread that feeds panicked"))??;
            done
        })
    }
}

/// What a [`Stage`] has beside `mark` and `feed`.
struct Tables {
    schema: &'static str,
    published: &'static [&'static str],
    /// Those of them that the publisher writes.
    written: &'static [&'static str],
    /// SQL for the rows of `written`, at both ends.
    fill: String,
    /// SQL for the subscriber's other rows.
    rows: String,
}

/// The publisher's own load.
fn feed() -> Script {
    let pk = Value::Random { from: 1, to: FEED_ROWS };
    let script = Script::one(vec![("pk", pk)], "UPDATE feed SET counter = counter + 1 WHERE pk = :pk");
    Script { sessions: 2, ..script }
}

/// How busy the machine was before anything was measured.
fn busy() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let minutes = load.split_whitespace().take(2).collect::<Vec<_>>().join(" and ");
    format!("load average of the machine before: {minutes} (one minute, five minutes)")
}

/// For the description of a small run.
fn quick(options: &Options) -> &'static str {
    if options.quick { "; a quick run, not a result of record" } else { "" }
}
