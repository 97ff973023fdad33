//! From applied to flushed: what may be confirmed to the source.
//!
//! A commit with `synchronous_commit = off` is visible before it is durable.
//! At intervals, or when the source asks, the stored progress is read with a
//! flush (rule P3). What lies behind it, up to where the applier has
//! caught up, was for nobody here: before that is confirmed it is stored
//! durably, so that a target restored from a backup can be told from one that
//! has seen it (P4).

use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, Progress};
use schedule::CommittedRanges;
use tokio::time::Instant;

use crate::error::Error;
use crate::state::State;

/// How often the positions are looked at; looking costs nothing.
const POLL: Duration = Duration::from_millis(50);
/// Between two flushes nobody asked for: the WAL writer's own pace is 200 ms,
/// and the source keeps WAL only that much longer.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Between two writes of an idle position nobody asked for: soon after the
/// last commit, then ever more slowly up to the default of
/// `wal_receiver_status_interval`. Each write makes WAL on the target; where
/// that is a source in turn, quick ones would keep both ends busy for ever.
const IDLE_INTERVAL_FIRST: Duration = Duration::from_millis(250);
const IDLE_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Between two removals of rows of progress that newer ones have replaced:
/// one for each target transaction, so some ten thousand at most.
const PRUNE_INTERVAL: Duration = Duration::from_secs(5);
/// Rows of ranges that are folded before: they are read with every flush.
const RANGES_MAX: usize = 1_000;

/// Flushes and confirms until it is dropped or fails.
///
/// # Errors
/// The control session failed.
pub async fn flush_continuously(state: &State, progress: &Arc<Progress>) -> Result<(), Error> {
    let mut flushed_at = Instant::now();
    let mut idle_at = Instant::now();
    let mut idle_interval = IDLE_INTERVAL_FIRST;
    let mut origin = Lsn::INVALID;
    let mut reached = CommittedRanges::default();
    let (mut pruned, mut pruned_at) = (Lsn::INVALID, Instant::now());
    loop {
        tokio::time::sleep(POLL).await;
        let now = progress.snapshot();
        let behind = now.applied > now.flushed;
        if !behind && reached.rows == 0 && !state.is_relaxed() {
            continue;
        }
        if behind && (progress.take_flush_wanted() || idle_at.elapsed() >= idle_interval) {
            let before = origin;
            reached = flush_now(state, progress).await?;
            origin = reached.prefix;
            idle_interval = if origin == before {
                (idle_interval * 2).min(IDLE_INTERVAL_MAX)
            } else {
                IDLE_INTERVAL_FIRST
            };
            idle_at = Instant::now();
            flushed_at = idle_at;
        } else if behind && flushed_at.elapsed() >= FLUSH_INTERVAL {
            reached = state.flushed_progress().await?;
            progress.advance_flushed(reached.prefix);
            if reached.prefix != origin {
                // Commits are coming: an idle position would be passed soon.
                origin = reached.prefix;
                idle_interval = IDLE_INTERVAL_FIRST;
                idle_at = Instant::now();
            }
            flushed_at = Instant::now();
        }
        // Whichever way it was flushed: the row of `origin` is durable. Where there are ranges, the rows
        // below may be the only ones that say where the first of them begins.
        let due = pruned_at.elapsed() >= PRUNE_INTERVAL;
        if due && state.is_relaxed() {
            // Behind a transaction that takes its time ranges come, and nothing else is to be told.
            reached = state.flushed_progress().await?;
            progress.advance_flushed(reached.prefix);
            origin = reached.prefix;
        }
        if due || reached.rows > RANGES_MAX {
            if reached.rows == 0 {
                state.prune_progress(pruned, origin).await?;
            } else if reached.rows > reached.beyond.len() || pruned != origin {
                state.fold_ranges(&reached).await?;
            }
            // They are read again before they are folded again.
            reached = CommittedRanges { prefix: origin, ..CommittedRanges::default() };
            (pruned, pruned_at) = (origin, Instant::now());
        }
    }
}

/// Flushes and confirms all that is applied; returns how far the target is.
///
/// # Errors
/// The control session failed.
pub async fn flush_now(state: &State, progress: &Progress) -> Result<CommittedRanges, Error> {
    // Read before the origin: every commit up to here is then in what the
    // origin says, and what it does not say held nothing for us.
    let applied = progress.snapshot().applied;
    let reached = state.flushed_progress().await?;
    progress.advance_flushed(reached.prefix);
    if applied > reached.prefix {
        state.confirm(applied).await?;
        progress.advance_flushed(applied);
    }
    Ok(reached)
}
