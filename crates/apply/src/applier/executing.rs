//! Starts the executors of an applier, and the tasks that watch their statements.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use client::{Canceller, Wire};
use prefetch::Prefetch;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::options::Options;
use crate::error::{Error, Kind};
use crate::executor::{Executor, Identity, resolved};
use crate::open_transaction::StreamedStart;
use crate::runaway::{self, Watched};
use crate::shared_progress::SharedProgress;
use crate::target::Sessions;
use crate::work::Work;
use crate::workers::{Parts, Workers};
use crate::write::Writer;

/// Executes the work on one session or on several.
pub(super) fn start(
    sessions: Sessions,
    (queue, starts): (mpsc::Receiver<Work>, mpsc::UnboundedReceiver<StreamedStart>),
    options: &Options,
    shared: Arc<SharedProgress>,
    prefetch: &Prefetch,
) -> tokio::task::JoinHandle<Result<(), Error>> {
    let Sessions { wires, pids, lock_watch, applying } = sessions;
    let (workers, binary, exact_only) =
        (wires.len().min(options.workers), options.binary, options.exact_only);
    let conflicts = resolved::Settings {
        rules: options.conflict_rules.clone(),
        nodes: options.conflict_nodes.clone(),
        history: options.conflict_history,
        values: options.conflict_log_values,
        retention: options.retention.clone(),
    };
    let identity = Identity { subscription: options.subscription.to_string(), conflicts };
    let cancellers: Vec<Canceller> = wires.iter().map(Wire::canceller).collect();
    let executor = |wire| {
        let writer = Writer::new(binary).exact_only(exact_only).one_of(workers).prefetching(prefetch.clone());
        Executor::new(wire, writer, &identity, Arc::clone(&shared))
    };
    let mut executors: Vec<Executor> = wires.into_iter().map(executor).collect();
    let watched = pids.iter().zip(&cancellers).zip(&executors).map(|((pid, canceller), executor)| {
        let (cancelled, hand) = (executor.cancelled(), executor.hand());
        Watched { pid: *pid, canceller: canceller.clone(), cancelled, hand }
    });
    let (info, name) = lock_watch.asks();
    let looks = runaway::watch(info, name, watched.collect());
    let watching = AbortOnDropHandle::<Result<(), Error>>::new(tokio::spawn(async move {
        looks.await;
        Ok(())
    }));
    match executors.pop() {
        Some(executor) if executors.is_empty() => tokio::spawn(async move {
            let _watching = watching;
            let counters = Arc::clone(&shared.counters);
            counters.write_cpu.of(execute(executor, queue, shared)).await
        }),
        last => {
            executors.extend(last);
            let relaxed = options.is_relaxed(workers).then_some(options.batch_bytes_max);
            let parts = Parts {
                executors,
                cancellers,
                pids,
                workers,
                lock_watch,
                shared,
                applying,
                binary,
                exact_only,
                relaxed,
                starts,
            };
            let counters = Arc::clone(&parts.shared.counters);
            let workers = Workers::new(parts);
            tokio::spawn(async move {
                let _watching = watching;
                counters.write_cpu.of(workers.run(queue)).await
            })
        }
    }
}

async fn execute(
    mut executor: Executor,
    mut queue: mpsc::Receiver<Work>,
    shared: Arc<SharedProgress>,
) -> Result<(), Error> {
    let counters = &shared.counters;
    loop {
        let work = tokio::select! {
            biased;
            work = queue.recv() => work,
            lost = executor.lost() => return Err(lost),
        };
        let Some(work) = work else { break };
        match work {
            Work::Chunk(chunk, _busy) => {
                counters.executing.store(true, Ordering::Relaxed);
                executor.apply(*chunk).await?;
                counters.executing.store(false, Ordering::Relaxed);
            }
            // These come only where several sessions apply.
            Work::Large(..) | Work::Ended(_) => return Err(Kind::LostTask.into()),
            Work::Join(join) => {
                counters.executing.store(true, Ordering::Relaxed);
                executor.join(join).await?;
                counters.executing.store(false, Ordering::Relaxed);
            }
            Work::CaughtUp(lsn) => shared.caught_up(lsn),
        }
    }
    executor.close().await;
    Ok(())
}
