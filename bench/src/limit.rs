//! The machine's own limit for catching up: how fast the publisher's walsender decodes and sends the backlog to a
//! reader that throws everything away. Nobody who reads from a slot can be faster.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use client::{ConnInfo, Replication, Wire};

use crate::rig::NAME;

/// `XLogData`, and the bytes of its header: its tag and three 8-byte numbers.
const XLOG_DATA: u8 = b'w';
const XLOG_DATA_HEADER: usize = 25;
/// pgoutput's Commit.
const COMMIT: u8 = b'C';
/// A reader that hears nothing for this long counts on something that was not sent.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Seconds until `commits` transactions have come from `slot` of the server at `url`; nothing is confirmed.
pub(crate) fn walsender_seconds(url: &str, slot: &str, commits: u64) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(read(url, slot, commits)).context("reading the backlog without applying it")
}

async fn read(url: &str, slot: &str, commits: u64) -> Result<f64> {
    let mut wire = Wire::connect(&ConnInfo::parse(url)?, "bench limit", Replication::Database, &[]).await?;
    let command = format!(
        "START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '2', publication_names '{NAME}', binary 'true')"
    );
    let started = Instant::now();
    wire.copy_both(&command).await?;
    let mut seen = 0;
    while seen < commits {
        let frame = tokio::time::timeout(SILENCE_MAX, wire.read_frame())
            .await
            .with_context(|| format!("only {seen} of {commits} transactions came"))??;
        let is_data = frame.body.first() == Some(&XLOG_DATA);
        seen += u64::from(is_data && frame.body.get(XLOG_DATA_HEADER) == Some(&COMMIT));
    }
    let seconds = started.elapsed().as_secs_f64();
    // The walsender is told nothing; it ends with the connection, and the slot is dropped then.
    drop(wire);
    Ok(seconds)
}
