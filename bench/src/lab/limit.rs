//! The machine's own limits for catching up, measured in the same run.
//!
//! The servers must do two things for any replication. The walsender decodes and sends the backlog,
//! or only sends it if WAL is read as it stands. The subscriber writes the rows. Each is measured
//! alone: the walsender with a reader that throws everything away, the writing with set-based
//! statements of a batch's size, fed from a table on the subscriber itself. Both use the machine's
//! cores. Together they cannot take less than the larger of the two, nor less than the sum of their
//! CPU seconds divided by the cores.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use client::{ConnInfo, Pauses, Replication, Wire};
use serde::{Deserialize, Serialize};
use testkit::Cluster;

use crate::lab::cpu::cpu_between;
use crate::lab::rig::{DB, NAME, Rig};

/// `XLogData`, and the bytes of its header: its tag and three 8-byte numbers.
const XLOG_DATA: u8 = b'w';
const XLOG_DATA_HEADER: usize = 25;
/// pgoutput's Commit, and Stream Commit.
const COMMITS: [u8; 2] = [b'C', b'c'];
/// A reader that hears nothing for this long counts on something that was not sent.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Rows of one set: the default of `batch_rows_max`.
pub(crate) const SET_ROWS: u64 = 100_000;

/// The time that one of the two took alone.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Alone {
    pub(crate) seconds: f64,
    pub(crate) cpu: f64,
}

/// The time that the servers need in any case.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Limit {
    pub(crate) walsender: Alone,
    pub(crate) sets: Alone,
    pub(crate) cores: usize,
}

impl Limit {
    /// A lower bound in seconds for any side that writes every change on this machine. A side that
    /// folds the changes of a row may be faster.
    pub(crate) fn seconds(&self) -> f64 {
        let shared = (self.walsender.cpu + self.sets.cpu) / self.cores as f64;
        shared.max(self.walsender.seconds).max(self.sets.seconds)
    }
}

/// Statements that write a backlog's rows, batch by batch.
pub(crate) struct Sets {
    /// Makes the table `feed`, with a column `batch` that counts from 0.
    pub(crate) feed: String,
    /// Each takes the rows of `batch = this_batch` from `feed`.
    pub(crate) statements: &'static [&'static str],
}

/// How long `sets` take on the running subscriber. They are planned as pgsluice's are.
pub(crate) fn sets_alone(target: &Cluster, sets: &Sets) -> Result<Alone> {
    target.sql(DB, &format!("CREATE UNLOGGED TABLE feed AS {}", sets.feed))?;
    target.sql(DB, "CREATE INDEX ON feed (batch)")?;
    target.sql(DB, "VACUUM ANALYZE feed")?;
    target.sql(DB, "CHECKPOINT")?;
    // One statement: a block that commits may not be part of a larger transaction.
    let work = format!(
        "DO $$ DECLARE this_batch int; BEGIN \
         PERFORM set_config('session_replication_role', 'replica', false); \
         PERFORM set_config('enable_' || plan, 'off', false) FROM unnest(ARRAY['hashjoin', 'mergejoin', 'seqscan']) plan; \
         FOR this_batch IN SELECT generate_series(0, (SELECT max(batch) FROM feed)) LOOP {}; COMMIT; END LOOP; END $$",
        sets.statements.join("; ")
    );
    let (alone, done) = timed(target, || target.sql(DB, &work));
    done.context("writing the backlog's rows as sets")?;
    Ok(alone)
}

/// The time in which the walsender sends `commits` transactions from `slot`; nothing is confirmed.
pub(crate) fn walsender_alone(rig: &Rig, slot: &str, commits: u64) -> Result<Alone> {
    let source = &rig.pair.source;
    let url = source.url(DB);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (alone, done) = timed(source, || runtime.block_on(read(&url, slot, commits)));
    done.context("reading the backlog without applying it")?;
    Ok(alone)
}

/// The time in which the walsender sends the WAL from `start` to `end` as it stands; nothing is
/// confirmed.
pub(crate) fn wal_alone(rig: &Rig, slot: &str, start: u64, end: u64) -> Result<Alone> {
    let source = &rig.pair.source;
    let url = source.url(DB);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (alone, done) = timed(source, || {
        runtime.block_on(async {
            let mut reader = Reader::of_wal(&url, slot, start).await?;
            let mut left = end - start;
            while left > 0 {
                let wal = tokio::time::timeout(SILENCE_MAX, reader.message()).await;
                let wal = wal.with_context(|| format!("{left} bytes of WAL did not come"))??;
                left = left.saturating_sub(wal.len() as u64);
            }
            anyhow::Ok(())
        })
    });
    done.context("reading the backlog's WAL without decoding it")?;
    Ok(alone)
}

/// Wall time of `work`, and what the server's processes spent on it.
fn timed<T>(server: &Cluster, work: impl FnOnce() -> T) -> (Alone, T) {
    let started = Instant::now();
    let (cpu, done) = cpu_between(server, work);
    (Alone { seconds: started.elapsed().as_secs_f64(), cpu }, done)
}

async fn read(url: &str, slot: &str, commits: u64) -> Result<()> {
    let mut reader = Reader::start(url, slot, true).await?;
    let mut seen = 0;
    while seen < commits {
        let message = tokio::time::timeout(SILENCE_MAX, reader.message()).await;
        let message = message.with_context(|| format!("only {seen} of {commits} transactions came"))??;
        seen += u64::from(message.first().is_some_and(|kind| COMMITS.contains(kind)));
    }
    // The reader says no goodbye: the walsender ends with the connection, and the slot is dropped
    // then.
    drop(reader);
    Ok(())
}

/// Reads what a slot has and confirms nothing.
pub(crate) struct Reader {
    wire: Wire,
    pauses: Option<Pauses>,
    taken: usize,
}

impl Reader {
    /// Values come as text unless `binary`; large transactions come while they are open.
    pub(crate) async fn start(url: &str, slot: &str, binary: bool) -> Result<Reader> {
        let command = format!(
            "START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '2', publication_names '{NAME}', \
             binary '{binary}', streaming 'on')"
        );
        Reader::begin(url, &command).await
    }

    /// WAL as it stands from `start` on.
    async fn of_wal(url: &str, slot: &str, start: u64) -> Result<Reader> {
        let command =
            format!("START_REPLICATION SLOT {slot} PHYSICAL {:X}/{:X}", start >> 32, start & 0xFFFF_FFFF);
        Reader::begin(url, &command).await
    }

    async fn begin(url: &str, command: &str) -> Result<Reader> {
        let mut wire =
            Wire::connect(&ConnInfo::parse(url)?, "bench limit", Replication::Database, &[]).await?;
        let pauses = wire.read_in_bulk().await?;
        wire.copy_both(command).await?;
        Ok(Reader { wire, pauses, taken: 0 })
    }

    /// The next message of pgoutput, or piece of WAL.
    pub(crate) async fn message(&mut self) -> Result<Bytes> {
        loop {
            let frame = match self.wire.buffered_frame()? {
                Some(frame) => frame,
                None => {
                    // The walsender is fastest while the reader does not listen.
                    let taken = std::mem::take(&mut self.taken);
                    if let Some(pause) = self.pauses.as_mut().and_then(|pauses| pauses.after(taken)) {
                        tokio::time::sleep(pause).await;
                    }
                    self.wire.read_frame().await?
                }
            };
            self.taken += frame.body.len();
            if frame.body.first() == Some(&XLOG_DATA) && frame.body.len() >= XLOG_DATA_HEADER {
                return Ok(frame.body.slice(XLOG_DATA_HEADER..));
            }
        }
    }
}
