//! When the sessions that apply get the next work, and how much of the backlog it is.
//!
//! Handed the backlog, it says how many sessions must be idle, waits for them, and makes the work.
//! It notes how far the target will be once everything handed over is done. What is in the backlog,
//! and in which order it leaves, is not decided here.

use std::sync::Arc;
use std::time::Duration;

use base::Lsn;
use plan::Digest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::backlog::Backlog;
use crate::counters::Counters;
use crate::error::Error;
use crate::work::Work;

/// Where order is not preserved, the longest wait for all workers of a batch that is not worth a
/// session of its own.
const PATIENCE: Duration = Duration::from_millis(5);

/// See the module.
pub(crate) struct Handover {
    /// The number of sessions that apply.
    workers: usize,
    /// One permit for each of them that is idle.
    idle: Arc<Semaphore>,
    /// Transactions commit out of order.
    relaxed: bool,
    /// When a whole transaction became ready to hand over, where it may pass chunks in flight.
    ready_since: Option<Instant>,
    /// End of the last transaction that was handed over.
    handed: Lsn,
    counters: Arc<Counters>,
}

/// Room in the queue for one piece of work.
type QueueRoom<'w> = Result<mpsc::Permit<'w, Work>, mpsc::error::SendError<()>>;

impl Handover {
    /// Begins behind `prefix`, which the target has.
    pub(crate) fn new(workers: usize, relaxed: bool, prefix: Lsn, counters: Arc<Counters>) -> Handover {
        let idle = Arc::new(Semaphore::new(workers));
        Handover { workers, idle, relaxed, ready_since: None, handed: prefix, counters }
    }

    /// Whether no session can take work now. Behind a chunk that must run alone, most workers of
    /// several may be idle.
    pub(super) fn is_taken(&self, work: &mpsc::Sender<Work>) -> bool {
        self.idle.available_permits() == 0 || work.capacity() == 0
    }

    /// Notes since when the backlog has a transaction that may pass the chunks in flight.
    pub(super) fn look_at(&mut self, backlog: &Backlog) {
        let waits = self.relaxed && backlog.is_ready();
        self.ready_since = waits.then(|| self.ready_since.unwrap_or_else(Instant::now));
    }

    /// How many workers must be idle for the backlog at hand. A small batch waits for all workers.
    /// So it goes by itself when the target keeps up, and is folded with its successors when it
    /// does not.
    fn wanted_idle(&self, backlog: &Backlog) -> u32 {
        let wanted = if backlog.is_worth_a_session() { 1 } else { self.workers };
        u32::try_from(wanted).expect("a handful of workers")
    }

    /// Waits until as many workers are idle as the backlog is to wait for, and for room in the
    /// queue. A batch that may pass the chunks in flight waits for all workers no longer than
    /// [`PATIENCE`], and then for one of them. The permit returned makes one worker busy.
    pub(super) fn when_idle<'w>(
        &self,
        backlog: &Backlog,
        work: &'w mpsc::Sender<Work>,
    ) -> impl Future<Output = (Option<OwnedSemaphorePermit>, QueueRoom<'w>)> + use<'w> {
        let (idle, wanted) = (Arc::clone(&self.idle), self.wanted_idle(backlog));
        let patience = self.ready_since.map(|since| since + PATIENCE);
        async move {
            let enough = Arc::clone(&idle).acquire_many_owned(wanted);
            // The semaphore is never closed.
            let mut busy = match patience {
                None => enough.await.ok(),
                Some(until) => match tokio::time::timeout_at(until, enough).await {
                    Ok(busy) => busy.ok(),
                    Err(_) => idle.acquire_owned().await.ok(),
                },
            };
            drop(busy.as_mut().and_then(|busy| busy.split(wanted as usize - 1)));
            (busy, work.reserve().await)
        }
    }

    /// Makes the next work of the backlog; `busy` is the permit that makes a worker busy.
    pub(super) fn work(
        &mut self,
        backlog: &mut Backlog,
        busy: Option<OwnedSemaphorePermit>,
    ) -> Result<Work, Error> {
        if let Some((large, footprint)) = backlog.take_large(self.handed)? {
            self.note(&large.digest);
            return Ok(Work::Large(Box::new(large), footprint));
        }
        self.ready_since = None;
        let mut chunk = backlog.take_chunk();
        chunk.digest.since = self.handed;
        self.note(&chunk.digest);
        Ok(Work::Chunk(Box::new(chunk), busy))
    }

    /// Notes that the transactions of `digest` are handed over.
    pub(super) fn note(&mut self, digest: &Digest) {
        if let Some(end) = &digest.last {
            self.handed = end.commit.end_lsn;
            self.counters.set_handed(end.commit.end_lsn, end.commit.commit_time);
        }
    }
}
