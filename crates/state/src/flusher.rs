//! From applied to flushed: which position may be confirmed to the source.
//!
//! A commit with `synchronous_commit = off` is visible before it is durable. At intervals, or when
//! the source asks, the flusher reads the stored progress with a flush (rule P3).
//!
//! Behind that progress, up to where the applier has caught up, the stream had nothing for this
//! target. Before the flusher confirms such an idle position, it stores it durably. So a target
//! restored from a backup can be told from one that has seen the position (P4).

use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, Progress};
use schedule::CommittedRanges;
use tokio::time::Instant;

use crate::error::Error;
use crate::state::State;

/// Interval between checks of the positions, which cost nothing.
const POLL: Duration = Duration::from_millis(50);
/// Interval between flushes that the source did not ask for. The WAL writer's own pace is 200 ms,
/// and the source keeps WAL only this much longer.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between writes of an idle position that the source did not ask for. It is short after
/// the last commit, then grows up to the default of `wal_receiver_status_interval`. Each write
/// makes WAL on the target. If the target is itself a source, quick writes would keep both ends
/// busy without end.
const IDLE_INTERVAL_FIRST: Duration = Duration::from_millis(250);
const IDLE_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Interval between removals of old rows of progress. Each target transaction adds a row, so there
/// are some ten thousand at most.
const PRUNE_INTERVAL: Duration = Duration::from_secs(5);
/// More rows of ranges than this are folded sooner, because every flush reads them.
const RANGES_MAX: usize = 1_000;

/// Flushes and confirms until this future is dropped or fails.
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
                // Commits are coming, so an idle position would soon be passed.
                origin = reached.prefix;
                idle_interval = IDLE_INTERVAL_FIRST;
                idle_at = Instant::now();
            }
            flushed_at = Instant::now();
        }
        // The row of `origin` is durable, whichever way it was flushed. With ranges, only the rows
        // below may say where the first range begins.
        let due = pruned_at.elapsed() >= PRUNE_INTERVAL;
        if due && state.is_relaxed() {
            // Behind a slow transaction ranges pile up, and nothing else triggers a look.
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
            // The ranges are read again before they are folded again.
            reached = CommittedRanges { prefix: origin, ..CommittedRanges::default() };
            (pruned, pruned_at) = (origin, Instant::now());
        }
    }
}

/// Flushes and confirms everything that is applied; returns how far the target is.
///
/// # Errors
/// The control session failed.
pub async fn flush_now(state: &State, progress: &Progress) -> Result<CommittedRanges, Error> {
    // Read before the origin. So the origin covers every commit up to here, and beyond it the
    // stream had nothing for this target.
    let applied = progress.snapshot().applied;
    let reached = state.flushed_progress().await?;
    progress.advance_flushed(reached.prefix);
    if applied > reached.prefix {
        state.confirm(applied).await?;
        progress.advance_flushed(applied);
    }
    Ok(reached)
}
