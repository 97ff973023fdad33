//! pgbench's tables and its TPC-B transaction, without pgbench: Debian ships that with the server
//! package, which `make demo` does not install.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::Rng;
use testkit::Pair;
use tokio_postgres::{Client, NoTls};

pub(super) const PUBLICATION: &str = "demo";
pub(super) const TABLES: [&str; 4] =
    ["pgbench_branches", "pgbench_tellers", "pgbench_accounts", "pgbench_history"];
pub(super) const ACCOUNTS_PER_SCALE: u64 = 100_000;
const TELLERS_PER_SCALE: u64 = 10;

const SCHEMA: &str = "
    CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88));
    CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
    CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
    CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));";

/// Tables on both ends, rows and a publication on the source.
pub(super) fn create(pair: &Pair, scale: u32) -> Result<()> {
    let db = super::DB;
    pair.both(db, SCHEMA)?;
    let (tellers, accounts) = (u64::from(scale) * TELLERS_PER_SCALE, u64::from(scale) * ACCOUNTS_PER_SCALE);
    pair.source.sql(
        db,
        &format!(
            "INSERT INTO pgbench_branches SELECT i, 0, '' FROM generate_series(1, {scale}) i;
             INSERT INTO pgbench_tellers SELECT i, (i - 1) / {TELLERS_PER_SCALE} + 1, 0, ''
                 FROM generate_series(1, {tellers}) i;
             INSERT INTO pgbench_accounts SELECT i, (i - 1) / {ACCOUNTS_PER_SCALE} + 1, 0, ''
                 FROM generate_series(1, {accounts}) i;
             CREATE PUBLICATION {PUBLICATION} FOR TABLE {};",
            TABLES.join(", ")
        ),
    )?;
    pair.source.sql(db, "VACUUM ANALYZE")?;
    Ok(())
}

/// What the writers have done when they were stopped.
pub(super) struct Written {
    pub(super) transactions: u64,
    elapsed: Duration,
}

impl Written {
    /// Transactions a second.
    pub(super) fn rate(&self) -> f64 {
        self.transactions as f64 / self.elapsed.as_secs_f64()
    }
}

/// Writers at work.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    transactions: Arc<AtomicU64>,
    started: Instant,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Load {
    pub(super) fn start(url: &str, scale: u32, writers: usize) -> Result<Load> {
        let (stop, transactions) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (url, stops, counts) = (url.to_owned(), Arc::clone(&stop), Arc::clone(&transactions));
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let mut tasks = Vec::new();
                for _ in 0..writers {
                    tasks.push(tokio::spawn(write(
                        url.clone(),
                        scale,
                        Arc::clone(&stops),
                        Arc::clone(&counts),
                    )));
                }
                for task in tasks {
                    task.await??;
                }
                Ok(())
            })
        });
        Ok(Load { stop, transactions, started: Instant::now(), thread: Some(thread) })
    }

    /// Transactions committed so far.
    pub(super) fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    /// Lets every writer finish its transaction.
    pub(super) fn stop(mut self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it is joined once");
        thread.join().expect("a writer does not panic").context("a writer")?;
        Ok(Written { transactions: self.transactions(), elapsed: self.started.elapsed() })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // After an error elsewhere: that one is reported.
            let _ = thread.join();
        }
    }
}

/// One writer, until it is stopped.
async fn write(url: String, scale: u32, stop: Arc<AtomicBool>, count: Arc<AtomicU64>) -> Result<()> {
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let client: Client = client;
    // The publisher's disk is not what is shown here; its WAL is the same.
    client.batch_execute("SET synchronous_commit = off").await?;
    let account =
        client.prepare("UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2").await?;
    let read = client.prepare("SELECT abalance FROM pgbench_accounts WHERE aid = $1").await?;
    let teller = client.prepare("UPDATE pgbench_tellers SET tbalance = tbalance + $1 WHERE tid = $2").await?;
    let branch =
        client.prepare("UPDATE pgbench_branches SET bbalance = bbalance + $1 WHERE bid = $2").await?;
    let history = client
        .prepare("INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES ($1, $2, $3, $4, localtimestamp)")
        .await?;
    let (tellers, accounts) = (
        i32::try_from(u64::from(scale) * TELLERS_PER_SCALE)?,
        i32::try_from(u64::from(scale) * ACCOUNTS_PER_SCALE)?,
    );
    while !stop.load(Ordering::Relaxed) {
        let (aid, tid, bid, delta) = {
            let mut random = rand::rng();
            (
                random.random_range(1..=accounts),
                random.random_range(1..=tellers),
                random.random_range(1..=scale.cast_signed()),
                random.random_range(-5000..=5000),
            )
        };
        client.batch_execute("BEGIN").await?;
        client.execute(&account, &[&delta, &aid]).await?;
        client.query_one(&read, &[&aid]).await?;
        client.execute(&teller, &[&delta, &tid]).await?;
        client.execute(&branch, &[&delta, &bid]).await?;
        client.execute(&history, &[&tid, &bid, &aid, &delta]).await?;
        client.batch_execute("COMMIT").await?;
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{Major, wait_for};

    #[test]
    fn every_transaction_that_was_counted_is_a_row_of_the_history() {
        let pair = Pair::start(Major::V15, Major::V15).unwrap();
        create(&pair, 1).unwrap();
        let load = Load::start(&pair.source.url(super::super::DB), 1, 2).unwrap();
        wait_for("some transactions", Duration::from_secs(30), || Ok(load.transactions() > 20)).unwrap();
        let written = load.stop().unwrap();
        let db = super::super::DB;
        assert_eq!(
            pair.source.one(db, "SELECT count(*) FROM pgbench_history"),
            written.transactions.to_string()
        );
        let balances =
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)
            AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(tbalance) FROM pgbench_tellers)";
        assert_eq!(pair.source.one(db, balances), "t");
        assert_eq!(
            pair.target.one(db, "SELECT count(*) FROM pgbench_accounts"),
            "0",
            "only the schema is there"
        );
    }
}
