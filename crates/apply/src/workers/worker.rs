//! One worker: a session that carries out one command after another.
//!
//! It receives commands through a queue of one, and reports each with its number. It ends when the
//! queue is closed or the session is lost.

use client::Canceller;
use plan::Digest;
use tokio::sync::mpsc;

use super::command::{Command, Report, WorkerAnswer};
use crate::chunk::{Chunk, Originals};
use crate::error::{Error, Kind};
use crate::executor::Executor;
use crate::open_transaction::{self as streamed, StreamedOutcome};

/// Runs a worker: one command after another, until there are no more.
pub(super) async fn work(
    mut executor: Executor,
    canceller: Canceller,
    mut commands: mpsc::Receiver<(u64, Command)>,
    reporter: mpsc::UnboundedSender<Report>,
) -> Result<(), Error> {
    let _farewell = Farewell(reporter.clone());
    loop {
        let command = tokio::select! {
            biased;
            command = commands.recv() => command,
            lost = executor.lost() => {
                let _ = reporter.send((0, Err(lost)));
                break;
            }
        };
        let Some((number, command)) = command else { break };
        let report = match command {
            Command::Open(start) => match streamed::apply(&mut executor, &canceller, start).await {
                Ok(StreamedOutcome::Committed(number)) => (number, Ok(WorkerAnswer::Committed)),
                Ok(StreamedOutcome::Left) => (0, Ok(WorkerAnswer::Left)),
                Ok(StreamedOutcome::Lost(error)) => {
                    tracing::warn!(
                        "from now on pgsluice applies large transactions only after their commit: {error}"
                    );
                    (0, Ok(WorkerAnswer::Lost))
                }
                Err(error) => (number, Err(error)),
            },
            command => (number, carry_out(&mut executor, command).await),
        };
        let _ = reporter.send(report);
    }
    executor.close().await;
    Ok(())
}

async fn carry_out(executor: &mut Executor, command: Command) -> Result<WorkerAnswer, Error> {
    let held = |executor: &Executor, digest: &Digest, held: bool| {
        if held {
            executor.shared.fitted(digest.transactions);
            WorkerAnswer::Committed
        } else {
            WorkerAnswer::Stumbled
        }
    };
    if let Some(since) = command.since() {
        executor.begins_at(since);
    }
    Ok(match command {
        Command::Speculate(plan) => match executor.execute_ahead(plan).await? {
            true => WorkerAnswer::Executed,
            false => WorkerAnswer::Voided,
        },
        Command::Finish(late, digest) => {
            let done = executor.complete(Some(late), false, &digest).await?;
            held(executor, &digest, done)
        }
        Command::Whole(plan, digest) => {
            let done = executor.apply_whole(Some(plan), &digest).await?;
            held(executor, &digest, done)
        }
        Command::Replay { originals, digest, again } => {
            match originals {
                Originals::Memory(batch) if again => {
                    executor.apply_transactions(Chunk::whole(batch, executor.binary())).await?;
                }
                originals => {
                    if !again {
                        executor.shared.set_size().failed(digest.transactions);
                    }
                    executor.replay(originals).await?;
                }
            }
            WorkerAnswer::Committed
        }
        Command::Chunk(chunk) => {
            executor.apply(*chunk).await?;
            WorkerAnswer::Committed
        }
        Command::Large(large) => {
            executor.apply_large(*large).await?;
            WorkerAnswer::Committed
        }
        Command::Ended(ended) => {
            streamed::apply_ended(executor, *ended).await?;
            WorkerAnswer::Committed
        }
        Command::Open(_) => unreachable!("the worker's loop takes it"),
        Command::Join(join) => {
            executor.join(join).await?;
            WorkerAnswer::Committed
        }
        Command::Rollback => {
            executor.roll_back().await?;
            WorkerAnswer::RolledBack
        }
    })
}

/// Reports a worker that panicked.
struct Farewell(mpsc::UnboundedSender<Report>);

impl Drop for Farewell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send((0, Err(Kind::LostTask.into())));
        }
    }
}
