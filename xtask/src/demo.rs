//! `cargo x demo`: the whole story on two throw-away clusters.
//!
//! Load, copy while somebody writes, stream, kill -9, start again, stop the writers, catch up,
//! compare. Every figure printed was measured in this run. Nothing outside of the two clusters' own
//! directories is touched, and they are gone at the end, after an error and after Ctrl-C too.

mod load;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use testkit::{Cluster, Major, Pair, Sluice, same_rows};

use crate::cargo::{Profile, build_pgsluice};
use load::Load;
use watch::Watch;

const DB: &str = "postgres";
/// A stream that has not caught up by then does not keep up at all.
const CATCH_UP_BOUND: Duration = Duration::from_secs(120);
const COPY_BOUND: Duration = Duration::from_secs(120);
/// What a stopped program may take to exit.
const STOP_BOUND: Duration = Duration::from_secs(5);
/// How long pgsluice stays dead: long enough to see the lag grow.
const DEAD_SECONDS: u32 = 3;

/// How much, how long, between what.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// pgbench's scale: 100,000 accounts each.
    #[arg(long, default_value_t = 10)]
    scale: u32,
    /// Connections that write to the publisher.
    #[arg(long, default_value_t = 4)]
    writers: usize,
    /// Seconds of streaming, half of them before the kill -9.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// The publisher's major.
    #[arg(long, default_value_t = 15)]
    source: u32,
    /// The subscriber's major.
    #[arg(long, default_value_t = 18)]
    target: u32,
}

/// Tells the story; an error is a part of it that did not come true.
pub(crate) fn run(options: &Options) -> Result<()> {
    let program = build_pgsluice(Profile::Demo, &[])?;
    let interrupted = interrupted_by_ctrl_c()?;
    Story { program, interrupted, started: Instant::now(), options: options.clone() }.tell()
}

fn interrupted_by_ctrl_c() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let flag = Arc::clone(&interrupted);
    std::thread::spawn(move || {
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            flag.store(true, Ordering::Relaxed);
        }
    });
    Ok(interrupted)
}

struct Story {
    program: std::path::PathBuf,
    interrupted: Arc<AtomicBool>,
    started: Instant,
    options: Options,
}

impl Story {
    fn say(&self, text: &str) {
        println!("[{:6.1} s] {text}", self.started.elapsed().as_secs_f64());
    }

    fn tell(&self) -> Result<()> {
        let Options { scale, writers, seconds, .. } = self.options;
        let pair = self.start_clusters()?;
        let loading = Instant::now();
        load::create(&pair, scale)?;
        self.say(&format!(
            "{} accounts are on the publisher ({:.1} s)",
            u64::from(scale) * load::ACCOUNTS_PER_SCALE,
            loading.elapsed().as_secs_f64()
        ));
        let load = Load::start(&pair.source.url(DB), scale, writers)?;
        self.say(&format!(
            "{writers} writers run pgbench's TPC-B transaction against the publisher, and go on"
        ));

        let mut sluice = self.start_pgsluice(&pair)?;
        let mut watch = Watch::new(&pair, &self.program);
        let copying = Instant::now();
        self.watch_copy(&mut watch, &mut sluice, &load)?;
        let copied_in = copying.elapsed().as_secs_f64();
        self.say(&format!("the first copy is done after {copied_in:.1} s"));

        let half = Duration::from_secs(seconds / 2);
        self.watch_for(&mut watch, &mut sluice, &load, half)?;
        sluice.kill9();
        self.say("pgsluice was killed with kill -9; the writers go on");
        drop(sluice);
        self.watch_slot(&pair, &load)?;
        let mut sluice = self.start_pgsluice(&pair)?;
        watch.restarted(load.transactions());
        self.watch_for(&mut watch, &mut sluice, &load, half)?;

        let written = load.stop()?;
        self.say(&format!(
            "the writers have stopped: {} transactions, {:.0} a second",
            written.transactions,
            written.rate()
        ));
        let end = pair.source.one(DB, "SELECT pg_current_wal_lsn()");
        let catching_up = Instant::now();
        self.wait_confirmed(&pair, &mut sluice, &end)?;
        self.say(&format!("caught up with {end} in {:.1} s", catching_up.elapsed().as_secs_f64()));
        self.compare(&pair, written.transactions)?;
        self.clean_up(&pair, sluice)?;
        let (copied, lag) = (watch.copied_max(), watch.lag_max());
        drop(pair);
        self.say("both clusters are stopped and removed");
        println!(
            "\n{copied} rows copied in {copied_in:.1} s ({:.0} rows/s) while {:.0} transactions a second were written;\n\
             {} transactions replicated in their order, one kill -9, largest lag seen {lag:.1} s; both ends equal.",
            copied as f64 / copied_in,
            written.rate(),
            written.transactions
        );
        Ok(())
    }

    fn start_clusters(&self) -> Result<Pair> {
        let major = |number| Major::from_number(number).context(format!("{number} is no supported major"));
        let (source, target) = (major(self.options.source)?, major(self.options.target)?);
        for major in [source, target] {
            testkit::server_dir(major)?;
        }
        let builder = |major| {
            Cluster::builder(major)
                .durable()
                .setting("shared_buffers", "256MB")
                .setting("max_wal_size", "4GB")
        };
        let pair = Pair::with(builder(source), builder(target))?;
        let (from, to) = (pair.source.port(), pair.target.port());
        self.say(&format!(
            "publisher: PostgreSQL {source} on port {from}; subscriber: PostgreSQL {target} on port {to}"
        ));
        Ok(pair)
    }

    fn start_pgsluice(&self, pair: &Pair) -> Result<Sluice> {
        let arguments = ["run", "--publication", load::PUBLICATION];
        self.say(&format!("pgsluice {} --source ... --target ...", arguments.join(" ")));
        Sluice::start(Sluice::command_of(&self.program, pair, &arguments))
    }

    /// Prints a line a second until every table has joined.
    fn watch_copy(&self, watch: &mut Watch, sluice: &mut Sluice, load: &Load) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < COPY_BOUND {
            self.second(watch, sluice, load)?;
            if watch.is_streaming() {
                return Ok(());
            }
        }
        bail!("the first copy took more than {COPY_BOUND:?}; pgsluice said:\n{}", sluice.stderr())
    }

    fn watch_for(&self, watch: &mut Watch, sluice: &mut Sluice, load: &Load, length: Duration) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < length {
            self.second(watch, sluice, load)?;
        }
        Ok(())
    }

    /// What piles up on the publisher while nobody replicates.
    fn watch_slot(&self, pair: &Pair, load: &Load) -> Result<()> {
        let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint / 1024 \
                   FROM pg_replication_slots";
        let before = load.transactions();
        for _ in 0..DEAD_SECONDS {
            std::thread::sleep(Duration::from_secs(1));
            ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
            let waiting = pair.source.one(DB, sql);
            let more = load.transactions() - before;
            self.say(&format!("(dead)    {more} more transactions, {waiting} kB of WAL wait in the slot"));
        }
        Ok(())
    }

    /// One second of the story.
    fn second(&self, watch: &mut Watch, sluice: &mut Sluice, load: &Load) -> Result<()> {
        let next = Instant::now() + Duration::from_secs(1);
        while Instant::now() < next {
            std::thread::sleep(Duration::from_millis(50));
            ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
            ensure!(sluice.is_running(), "pgsluice ended:\n{}", sluice.stderr());
        }
        self.say(&watch.look(load.transactions()));
        Ok(())
    }

    /// Until the slot has confirmed all of `end`: what the publisher itself believes to be safe on
    /// the subscriber.
    fn wait_confirmed(&self, pair: &Pair, sluice: &mut Sluice, end: &str) -> Result<()> {
        let sql = format!(
            "SELECT coalesce(bool_and(confirmed_flush_lsn >= '{end}'), false) FROM pg_replication_slots \
             WHERE slot_type = 'logical' AND NOT temporary"
        );
        let started = Instant::now();
        while started.elapsed() < CATCH_UP_BOUND {
            ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
            ensure!(sluice.is_running(), "pgsluice ended:\n{}", sluice.stderr());
            if pair.source.one(DB, &sql) == "t" {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("not caught up after {CATCH_UP_BOUND:?}; pgsluice said:\n{}", sluice.stderr())
    }

    fn compare(&self, pair: &Pair, transactions: u64) -> Result<()> {
        for table in load::TABLES {
            let same = same_rows(&pair.source, &pair.target, DB, table)?;
            self.say(&format!("equal: {table:17} {:>9} rows, md5 {} on both ends", same.rows, same.md5));
        }
        // Every transaction the writers saw committed added one row.
        let rows = pair.target.one(DB, "SELECT count(*) FROM pgbench_history");
        ensure!(
            rows == transactions.to_string(),
            "{transactions} transactions were committed, {rows} arrived"
        );
        self.say(&format!("all {transactions} transactions arrived exactly once, over one kill -9"));
        Ok(())
    }

    fn clean_up(&self, pair: &Pair, mut sluice: Sluice) -> Result<()> {
        let stopping = Instant::now();
        let status = sluice.terminate(STOP_BOUND)?;
        ensure!(status.success(), "pgsluice ended with {status}:\n{}", sluice.stderr());
        self.say(&format!("pgsluice stopped on SIGTERM in {:.2} s", stopping.elapsed().as_secs_f64()));
        let drop = Sluice::call_of(&self.program, pair, &["drop", "--subscription", load::PUBLICATION])?;
        ensure!(drop.status.success(), "pgsluice drop: {}{}", drop.stdout, drop.stderr);
        let slots = pair.source.one(DB, "SELECT count(*) FROM pg_replication_slots");
        ensure!(slots == "0", "pgsluice drop left {slots} replication slots");
        self.say("pgsluice drop removed slot, origin and progress");
        Ok(())
    }
}
