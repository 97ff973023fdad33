//! One attempt of applying: connects the stream, the planner and the sessions that apply.
//!
//! There are two tasks. The *planner* ([`crate::planner`]) assembles messages, maps them onto the
//! target, gathers whole transactions into a batch and plans the statements. The *executor*, or
//! several workers, sends them. A transaction that the source streams while it is open is executed
//! as it arrives ([`crate::open_transaction`]).

mod executing;
mod options;

use std::sync::Arc;
use std::time::Duration;

use base::Progress;
use client::{Canceller, Wire};
use prefetch::Prefetch;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use txn::{Block, Spool};

use self::executing::start;
pub(crate) use self::options::AHEAD_ROWS;
pub use self::options::{CommitOrder, Options, SourceTypes, sessions};
use crate::counters::Counters;
use crate::error::{Error, Kind};
use crate::join::JoinRequests;
use crate::planner::{Backlog, ClockHold, Handover, Intake, Planner, StreamedExecution};
use crate::shared_progress::SharedProgress;
use crate::target::Target;

/// The input of an applier.
pub struct Feed {
    /// The stream.
    pub blocks: mpsc::Receiver<Block>,
    /// Requests of tables to join the stream.
    pub joins: JoinRequests,
    /// Keeps on disk the changes that do not fit in memory.
    pub spool: Box<dyn Spool>,
}

/// The task that executes what the planner hands over.
type Executing = AbortOnDropHandle<Result<(), Error>>;

/// On stop, the chunk in hand may run this long before it is cancelled.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// After one session is lost, how long the sessions that apply may take to report the cause.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Applies `feed` to `target` until the feed ends or `stop` is cancelled. On stop, the chunk in
/// hand is finished if it soon completes its transaction. Otherwise it is rolled back.
///
/// # Errors
/// Whatever stopped it. The target holds whole transactions.
pub async fn apply(
    target: Target,
    feed: Feed,
    options: Options,
    progress: Arc<Progress>,
    counters: Arc<Counters>,
    stop: CancellationToken,
) -> Result<(), Error> {
    counters.begin();
    let (prefetch, _looking_up) = Prefetch::start(options.prefetch.clone(), &progress, &counters.prefetch);
    let shared =
        SharedProgress::new(Arc::clone(&counters), progress).telling(Arc::clone(&target.mappings.changed));
    let sessions = target.sessions.wires.len();
    let workers = sessions.min(options.workers);
    let relaxed = options.is_relaxed(workers);
    let prefix = target.reached.prefix;
    let shared = Arc::new(if relaxed { shared.relaxed(prefix) } else { shared });
    let lost = target.mappings.lost();
    let cancellers: Vec<Canceller> = target.sessions.wires.iter().map(Wire::canceller).collect();
    let (work, queue) = mpsc::channel(1);
    let (starts, early) = mpsc::unbounded_channel();
    let streaming = StreamedExecution::new((sessions > workers).then_some(starts));
    let backlog = Backlog::new(&options, workers, &shared);
    let mut executing =
        AbortOnDropHandle::new(start(target.sessions, (queue, early), &options, shared, &prefetch));
    let hold = ClockHold::new(&options, Arc::clone(&counters));
    let (known, input) = ((target.mappings, target.reached), (feed.spool, feed.joins));
    let mut planner = Planner {
        intake: Intake::new(&options, input, known, prefetch, (streaming, hold)),
        backlog,
        handover: Handover::new(workers, relaxed, prefix, counters),
    };
    let planned = tokio::select! {
        planned = planner.run(feed.blocks, work, &stop) => planned,
        // The executor ends before the planner only if it failed.
        executed = &mut executing => return executed.unwrap_or(Err(Kind::LostTask.into())),
        // A crash ends all sessions, but the server tells the cause only to sessions that write.
        error = lost => return match tokio::time::timeout(LAST_WORDS, &mut executing).await {
            Ok(Ok(Err(explained))) => Err(explained),
            _ => Err(error),
        },
    };
    finish(planned, executing, &cancellers, &stop).await
}

/// Waits for the executor after the planner has ended. The queue is closed: the executor ends after
/// the work that it has.
async fn finish(
    planned: Result<(), Error>,
    mut executing: Executing,
    cancellers: &[Canceller],
    stop: &CancellationToken,
) -> Result<(), Error> {
    if let Err(error) = planned {
        // Whole transactions before the error were handed over, so they are still applied.
        return (&mut executing).await.unwrap_or(Err(Kind::LostTask.into())).and(Err(error));
    }
    if !stop.is_cancelled() {
        return (&mut executing).await.unwrap_or(Err(Kind::LostTask.into()));
    }
    match tokio::time::timeout(STOP_PATIENCE, &mut executing).await {
        Ok(executed) => executed.unwrap_or(Err(Kind::LostTask.into())),
        Err(_) => cancel(cancellers, executing).await,
    }
}

/// Cancels the statements that are being executed, so that the target rolls them back.
async fn cancel(cancellers: &[Canceller], mut executing: Executing) -> Result<(), Error> {
    tracing::info!("rolling back the batch in hand");
    for canceller in cancellers {
        if let Err(error) = canceller.cancel().await {
            tracing::warn!("could not cancel the running statement: {error}");
        }
    }
    // The executor was told to stop, so its result does not matter. Dropping the task closes the
    // connection, which also rolls back.
    let _ = tokio::time::timeout(Duration::from_secs(1), &mut executing).await;
    Ok(())
}
