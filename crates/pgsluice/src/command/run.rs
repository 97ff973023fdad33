//! `pgsluice run`: runs every chosen subscription until stopped.
//!
//! Each subscription has its own lock, control socket, status and stop token below the process's
//! token. A stop through its socket leaves the others running; a signal stops all. A subscription
//! that fails for good does not stop the others either. The process ends when all have ended, with
//! the code of the first that failed.

use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use engine::{CommitOrder, Direction, Passes, Phase, Settings, Status, monitor};
use indicatif::MultiProgress;
use operate::control::{Lock, Server};
use operate::metrics;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{from_control, from_engine};
use crate::both_ways::directions;
use crate::exit::{Code, code_of};
use crate::failure::Failure;
use crate::invocation::complete;
use crate::progress::Quiet;
use crate::settings::{LogFormat, Process};
use crate::subject::Subject;
use crate::{logging, progress};

/// A pipeline that has not ended this long after a stop request is cut off, and its servers roll
/// back its current work. SIGTERM promises 5 s, of which a busy machine may need one to end a
/// process.
const STOP_BOUND: Duration = Duration::from_secs(4);

/// How long servers may take to notice a cancelled statement.
const SETTLE_BOUND: Duration = Duration::from_millis(200);

/// One subscription of this process.
struct Pipeline {
    settings: Arc<Settings>,
    direction: Option<Direction>,
    status: Arc<Status>,
    stop: CancellationToken,
    server: Server,
}

/// Runs `subjects` until they end or a signal comes.
pub(crate) async fn run(subjects: &[Subject], process: &Process) -> anyhow::Result<Code> {
    let settings = subjects.iter().map(Subject::pipeline).collect::<anyhow::Result<Vec<_>>>()?;
    let settings = settings.into_iter().zip(directions(subjects)).collect();
    let bars = MultiProgress::new();
    logging::start(&process.log, &bars)?;
    run_logged(settings, process, &bars).await
}

/// [`run`], once the log has been started.
pub(super) async fn run_logged(
    settings: Vec<(Settings, Option<Direction>)>,
    process: &Process,
    bars: &MultiProgress,
) -> anyhow::Result<Code> {
    // All locks before the first pipeline: either all of them run or none.
    let locks = settings.iter().map(|(own, _)| Lock::acquire(&own.state_dir, &own.subscription));
    let locks = locks.collect::<Result<Vec<_>, _>>().map_err(from_control)?;
    let stop = CancellationToken::new();
    let quiet: Arc<Mutex<Option<Quiet>>> = Arc::default();
    watch_signals(stop.clone(), (bars.clone(), Arc::clone(&quiet)))?;
    let mut pipelines = Vec::new();
    for ((settings, direction), lock) in settings.into_iter().zip(locks) {
        let status = Arc::new(Status::new(settings.subscription.clone()));
        // A client that asks for the status may know less than this process, so commands are
        // completed here.
        status.complete_errors_by(|name, message| complete(message, Some(name)));
        let stop = stop.child_token();
        let server = Server::start(lock, Arc::clone(&status), stop.clone()).map_err(from_control)?;
        pipelines.push(Pipeline { settings: Arc::new(settings), direction, status, stop, server });
    }
    let statuses: Vec<_> = pipelines.iter().map(|pipeline| Arc::clone(&pipeline.status)).collect();
    if let Some(address) = process.metrics {
        let (bound, _task) = metrics::serve(address, statuses.clone(), stop.clone())
            .await
            .map_err(|error| Failure::Metrics { address, error })?;
        tracing::info!("serving metrics at http://{bound}/metrics");
    }
    let on_terminal = std::io::stderr().is_terminal() && process.log.log_format == LogFormat::Text;
    *quiet.lock().unwrap_or_else(PoisonError::into_inner) = Some(Quiet::when(on_terminal));
    let code = tokio::select! {
        code = run_all(pipelines) => code,
        () = progress::show(&statuses, bars, on_terminal) => unreachable!("it shows for ever"),
    };
    // A bar left on the screen would look as if it still moved.
    let _ = bars.clear();
    // The task that waits for a second signal holds another reference.
    drop(quiet.lock().unwrap_or_else(PoisonError::into_inner).take());
    Ok(code)
}

/// Runs every pipeline to its end.
async fn run_all(pipelines: Vec<Pipeline>) -> Code {
    let mut running = JoinSet::new();
    let passes = Arc::<Passes>::default();
    for pipeline in pipelines {
        running.spawn(run_one(pipeline, Arc::clone(&passes)));
    }
    let mut code = Code::Done;
    while let Some(ended) = running.join_next().await {
        let failure = match ended {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => code_of(&error),
            Err(error) => {
                tracing::error!("a pipeline broke down: {error}");
                Code::Failed
            }
        };
        if code == Code::Done {
            code = failure;
        }
    }
    code
}

/// Runs one pipeline and returns how it ended.
async fn run_one(pipeline: Pipeline, passes: Arc<Passes>) -> anyhow::Result<()> {
    let Pipeline { settings, direction, status, stop, server } = pipeline;
    let name = settings.subscription.clone();
    tracing::info!(
        subscription = %name,
        "replicating from {} to {}",
        settings.source.describe(),
        settings.target.describe()
    );
    if settings.commit_order == CommitOrder::Relaxed
        && settings.max_parallel_apply_workers_per_subscription == 1
    {
        tracing::warn!(
            subscription = %name,
            "commit_order = relaxed preserves the order, because one apply worker has nothing to overtake: set \
             max_parallel_apply_workers_per_subscription to 2 or more"
        );
    }
    let ended = stop.child_token();
    let source = monitor::watch_source(Arc::clone(&settings), Arc::clone(&status), ended.clone());
    let target = monitor::watch_target(Arc::clone(&settings), Arc::clone(&status), ended.clone());
    let limits = monitor::watch_limits(Arc::clone(&settings), Arc::clone(&status), ended.clone());
    let watcher = tokio::spawn(async { tokio::join!(source, target, limits) });
    let too_long = async {
        stop.cancelled().await;
        status.set_phase(Phase::Stopping);
        tokio::time::sleep(STOP_BOUND).await;
    };
    let running = engine::run(Arc::clone(&settings), Arc::clone(&status), passes, direction, stop.clone());
    let outcome = tokio::select! {
        outcome = running => outcome,
        () = too_long => {
            tracing::warn!(
                subscription = %name,
                "the subscription has not ended after {} s: pgsluice cuts it off, and the servers roll back",
                STOP_BOUND.as_secs()
            );
            Ok(())
        }
    };
    ended.cancel();
    // The watcher only waits for this token.
    let _ = watcher.await;
    // Cancels statements that were cut off: no server works for this subscription when its lock is
    // free.
    client::settle(SETTLE_BOUND).await;
    status.set_phase(Phase::Stopped);
    // The lock goes last: the next process that takes it finds nothing of this one left.
    drop(server);
    match outcome {
        Ok(()) => {
            tracing::info!(subscription = %name, "stopped");
            Ok(())
        }
        Err(error) => {
            let text = base::with_causes(&error);
            tracing::error!(subscription = %name, "{text}");
            status.record_error(text);
            Err(from_engine(&error))
        }
    }
}

/// The first SIGTERM or SIGINT cancels `stop`, the second ends the process.
fn watch_signals(
    stop: CancellationToken,
    (bars, quiet): (MultiProgress, Arc<Mutex<Option<Quiet>>>),
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("could not listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("could not listen for SIGINT")?;
    tokio::spawn(async move {
        let mut first = true;
        loop {
            let (name, number) = tokio::select! {
                _ = terminate.recv() => ("SIGTERM", 15),
                _ = interrupt.recv() => ("SIGINT", 2),
            };
            if !first {
                let _ = bars.clear();
                drop(quiet.lock().unwrap_or_else(PoisonError::into_inner).take());
                std::process::exit(128 + number);
            }
            first = false;
            tracing::info!("{name}: stopping");
            stop.cancel();
        }
    });
    Ok(())
}
