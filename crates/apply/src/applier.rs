//! The stream into the target: from messages to committed transactions.
//!
//! There are two tasks. The *planner* (this file) assembles messages, maps them onto the target,
//! gathers whole transactions into a batch and plans the statements. The *executor* sends them.
//!
//! The size of a batch follows from the load; no setting chooses it. The planner hands over whole
//! transactions as soon as the executor is idle. While the target keeps up, each transaction goes
//! by itself. The further the target is behind, the more transactions are folded into one. The
//! planner folds the backlog batch by batch as it gathers ([`crate::folded_backlog`]). The limits
//! only bound memory.
//!
//! The planner hands over a transaction larger than a batch in parts: one is executed, one waits
//! and one grows. The target commits the transaction when its commit has come. Where other
//! transactions may commit first, the large one stands aside in a file instead ([`crate::large`]).
//! A transaction that the source streams while it is open is executed as it arrives
//! ([`crate::open_transaction`]).

mod executing;
mod joining;
mod options;
mod streamed;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Lsn, Progress, Xid};
use client::{Canceller, Wire};
use plan::{Batch, Change, Digest, End};
use prefetch::Prefetch;
use proto::pgoutput::{CommitInfo, Relation};
use schedule::CommittedRanges;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use txn::{Assembler, Begin, Block, Event, Input, Spool};

use self::executing::start;
use self::options::AHEAD_ROWS;
pub use self::options::{CommitOrder, Options, SourceTypes, sessions};
use crate::chunk::Chunk;
use crate::counters::Counters;
use crate::error::{Error, Kind};
use crate::executor::span;
use crate::folded_backlog::{FILES_MAX, FoldedBacklog, Room};
use crate::join::{Asides, JoinRequests, Part, Request};
use crate::large::Growing;
use crate::mapping::Mappings;
use crate::open_transaction::{Ended, Start, Told};
use crate::shared_progress::{PerTransactionCost, SharedProgress};
use crate::snapshot_gate::{Passage, Passed};
use crate::target::Target;
use crate::work::Work;

/// The input of an applier.
pub struct Feed {
    /// The stream.
    pub blocks: mpsc::Receiver<Block>,
    /// Requests of tables to join the stream.
    pub joins: JoinRequests,
    /// Keeps on disk the changes that do not fit in memory.
    pub spool: Box<dyn Spool>,
}

/// On stop, the chunk in hand may run this long before it is cancelled.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// After one session is lost, how long the sessions that apply may take to report the cause.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Where order is not preserved, the longest wait for all workers of a batch below [`AHEAD_ROWS`].
const PATIENCE: Duration = Duration::from_millis(5);

/// With `keep_transactions` and several sessions: after this many transactions handed over one by
/// one, the planner tries one session again.
const KEPT_APART: u64 = 1_000;

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
    let fitting = shared.fitting();
    let kept = Arc::clone(&shared.kept);
    let lost = target.mappings.lost();
    let cancellers: Vec<Canceller> = target.sessions.wires.iter().map(Wire::canceller).collect();
    let (work, queue) = mpsc::channel(1);
    let (starts, early) = mpsc::unbounded_channel();
    let mut executing =
        AbortOnDropHandle::new(start(target.sessions, (queue, early), &options, shared, &prefetch));
    let mut planning = Planning {
        assembler: Assembler::new(feed.spool).with_binary(options.binary).with_local_only(options.local_only),
        intake: Passage::new(Arc::clone(&options.gate)),
        mappings: target.mappings,
        batch: Batch::default(),
        folded: None,
        growing: None,
        relaxed,
        early: None,
        given_up: None,
        starts: (sessions > workers).then_some(starts),
        ended: None,
        taken: Lsn::INVALID,
        handed: prefix,
        ready_since: None,
        fitting,
        kept,
        kept_apart: 0,
        joins: feed.joins.0,
        left_out: feed.joins.1,
        finishing: VecDeque::new(),
        asides: Asides::default(),
        prefetch,
        passed: None,
        transaction: None,
        continues: false,
        done: target.reached,
        workers,
        options,
        counters,
    };
    let planned = tokio::select! {
        planned = planning.run(feed.blocks, work, &stop) => planned,
        // The executor ends before the planner only if it failed.
        executed = &mut executing => return executed.unwrap_or(Err(Kind::LostTask.into())),
        // A crash ends all sessions, but the server tells the cause only to sessions that write.
        error = lost => return match tokio::time::timeout(LAST_WORDS, &mut executing).await {
            Ok(Ok(Err(explained))) => Err(explained),
            _ => Err(error),
        },
    };
    if let Err(error) = planned {
        // Whole transactions before the error were handed over, so they are still applied.
        return (&mut executing).await.unwrap_or(Err(Kind::LostTask.into())).and(Err(error));
    }
    // The queue is closed: the executor ends after the work that it has.
    if !stop.is_cancelled() {
        return (&mut executing).await.unwrap_or(Err(Kind::LostTask.into()));
    }
    match tokio::time::timeout(STOP_PATIENCE, &mut executing).await {
        Ok(executed) => executed.unwrap_or(Err(Kind::LostTask.into())),
        Err(_) => cancel(&cancellers, executing).await,
    }
}

/// Cancels the statements that are being executed, so that the target rolls them back.
async fn cancel(
    cancellers: &[Canceller],
    mut executing: AbortOnDropHandle<Result<(), Error>>,
) -> Result<(), Error> {
    tracing::info!("rolling back the batch in hand");
    for canceller in cancellers {
        if let Err(error) = canceller.cancel().await {
            tracing::warn!("the running statement could not be cancelled: {error}");
        }
    }
    // The executor was told to stop, so its result does not matter. Dropping the task closes the
    // connection, which also rolls back.
    let _ = tokio::time::timeout(Duration::from_secs(1), &mut executing).await;
    Ok(())
}

/// The transaction whose changes are arriving.
#[derive(Clone, Copy)]
struct Current {
    begin: Begin,
    skipped: bool,
    /// The planner has handed over a part of it already.
    begun: bool,
}

/// Waits until `wanted` workers are idle, or after `patience` for only one of them. Then waits for
/// room in the queue. The permit returned makes one worker busy.
async fn when_idle<'w>(
    idle: &Arc<Semaphore>,
    wanted: u32,
    patience: Option<Instant>,
    work: &'w mpsc::Sender<Work>,
) -> (Option<OwnedSemaphorePermit>, Result<mpsc::Permit<'w, Work>, mpsc::error::SendError<()>>) {
    let enough = Arc::clone(idle).acquire_many_owned(wanted);
    // The semaphore is never closed.
    let mut busy = match patience {
        None => enough.await.ok(),
        Some(until) => match tokio::time::timeout_at(until, enough).await {
            Ok(busy) => busy.ok(),
            Err(_) => Arc::clone(idle).acquire_owned().await.ok(),
        },
    };
    drop(busy.as_mut().and_then(|busy| busy.split(wanted as usize - 1)));
    (busy, work.reserve().await)
}

struct Planning {
    assembler: Assembler,
    intake: Passage,
    mappings: Mappings,
    batch: Batch,
    /// Folded transactions that come before those of the batch.
    folded: Option<FoldedBacklog>,
    /// A large transaction that stands aside, while its changes arrive or just after its end.
    growing: Option<Growing>,
    /// Transactions commit out of order.
    relaxed: bool,
    /// The streamed transaction that is executed while it is open.
    early: Option<Told>,
    /// A streamed transaction that is no longer executed while it is open.
    given_up: Option<Xid>,
    /// `None` where no session is free for streamed transactions.
    starts: Option<mpsc::UnboundedSender<Start>>,
    /// The end of the streamed transaction; it is handed over behind everything before it.
    ended: Option<Box<Ended>>,
    /// End of the last transaction that has changes for this target.
    taken: Lsn,
    /// End of the last transaction that was handed over.
    handed: Lsn,
    /// When a whole transaction became ready to hand over, where it may pass chunks in flight.
    ready_since: Option<Instant>,
    /// How many transactions fit in one set; the executor decides.
    fitting: Arc<AtomicUsize>,
    /// The cost of transactions that stay single (`keep_transactions`), and how many of them went
    /// to several sessions because of that cost.
    kept: Arc<PerTransactionCost>,
    kept_apart: u64,
    joins: mpsc::Receiver<Request>,
    /// Notified when a table was left out.
    left_out: Arc<Notify>,
    /// Tables that join between two transactions.
    finishing: VecDeque<Request>,
    asides: Asides,
    prefetch: Prefetch,
    /// The last transaction that the planner passed, with or without changes for this target.
    passed: Option<End>,
    transaction: Option<Current>,
    /// The batch continues a transaction whose earlier parts were handed over.
    continues: bool,
    /// The committed ranges of the target at the start.
    done: CommittedRanges,
    /// The number of sessions that apply.
    workers: usize,
    options: Options,
    counters: Arc<Counters>,
}

impl Planning {
    async fn run(
        &mut self,
        mut inputs: mpsc::Receiver<Block>,
        work: mpsc::Sender<Work>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let mut waiting: std::vec::IntoIter<Input> = Vec::new().into_iter();
        // Released once all of a block is in the batch, which has its own limit: the next block may
        // need all of the room.
        let mut room_taken = None;
        let mut caught_up: Option<Lsn> = None;
        let idle = Arc::new(Semaphore::new(self.workers));
        loop {
            while let Ok(request) = self.joins.try_recv() {
                self.take_request(request);
            }
            // This comes before joins: the tables join behind that transaction.
            if self.ended.is_some() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    handed = self.hand_over_ended(&work) => handed?,
                }
            }
            if self.transaction.is_none() && !self.finishing.is_empty() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    finished = self.finish_joins(&work) => finished?,
                }
            }
            // First absorb everything at hand: that costs little compared with a round trip.
            let more = match self.absorb(&mut waiting, &mut caught_up).await {
                Ok(more) => more,
                Err(error) => {
                    self.hand_over_whole(&work).await?;
                    return Err(error);
                }
            };
            if self.ended.is_some() {
                continue;
            }
            room_taken = room_taken.filter(|_| more);
            let mut full = self.is_full();
            let aside = full && self.stand_aside()?;
            full &= !aside;
            // Behind a chunk that must run alone, most workers of several may be idle.
            let taken = idle.available_permits() == 0 || work.capacity() == 0;
            if full && taken && self.fold() {
                continue;
            }
            let patience = self.patience();
            if !self.is_ready() && !full && !aside {
                // A table joins behind a transaction that had nothing for this target. The rest of
                // the block comes behind that.
                if more {
                    continue;
                }
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    () = self.intake.changed() => {}
                    Some(request) = self.joins.recv() => self.take_request(request),
                    room = work.reserve(), if caught_up.is_some() => {
                        let Ok(room) = room else { return Ok(()) };
                        room.send(Work::CaughtUp(caught_up.take().unwrap_or_default()));
                    }
                    block = inputs.recv(), if waiting.as_slice().is_empty() && !self.intake.is_full() => match block {
                        Some(block) => (waiting, room_taken) = (block.inputs.into_iter(), block.room),
                        None => return Ok(()),
                    },
                }
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                room = work.reserve(), if self.is_in_parts() && !aside => {
                    let Ok(room) = room else { return Ok(()) };
                    room.send(self.take_work(None)?);
                }
                (busy, room) = when_idle(&idle, self.wanted_idle(), patience, &work), if !self.is_in_parts() => {
                    let Ok(room) = room else { return Ok(()) };
                    room.send(self.take_work(busy)?);
                }
                block = inputs.recv(), if !full && !more && waiting.as_slice().is_empty() => match block {
                    Some(block) => (waiting, room_taken) = (block.inputs.into_iter(), block.room),
                    None => break,
                },
                // The planner does not wait while it puts a large transaction aside.
                () = tokio::task::yield_now(), if aside => {}
            }
        }
        self.hand_over_whole(&work).await
    }

    /// The stream has ended; hands over all whole transactions. If the executor is gone, it failed
    /// and reports the error itself.
    async fn hand_over_whole(&mut self, work: &mpsc::Sender<Work>) -> Result<(), Error> {
        while self.is_ready() {
            let _ = work.send(self.take_work(None)?).await;
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.batch.changes.len() >= self.options.batch_rows()
            || self.batch.bytes >= self.options.batch_bytes(self.workers)
    }

    /// How many workers must be idle for the batch at hand. A small batch waits for all workers. So
    /// it goes by itself when the target keeps up, and is folded with its successors when it does
    /// not.
    fn wanted_idle(&self) -> u32 {
        let rows = self.options.batch_rows().min(AHEAD_ROWS);
        let much = self.folded.is_some() || self.is_full() || self.batch.changes.len() >= rows;
        let wanted = if much || self.options.keep_transactions { 1 } else { self.workers };
        u32::try_from(wanted).expect("a handful of workers")
    }

    /// Until when a small batch waits for all workers. A batch that may pass the chunks in flight
    /// does not wait for them longer than this.
    fn patience(&mut self) -> Option<Instant> {
        let waits = self.relaxed && self.is_ready();
        self.ready_since = waits.then(|| self.ready_since.unwrap_or_else(Instant::now));
        self.ready_since.map(|since| since + PATIENCE)
    }

    /// Whether a whole transaction is ready to hand over.
    fn is_ready(&self) -> bool {
        !self.batch.ends.is_empty() || self.folded.is_some()
    }

    /// Whether the next handover is a part of a large transaction, or a large transaction that
    /// stood aside.
    fn is_in_parts(&self) -> bool {
        self.continues || !self.is_ready() || self.has_stood_aside()
    }

    /// Whether the next handover is a large transaction that stood aside.
    fn has_stood_aside(&self) -> bool {
        self.growing.is_some() && self.folded.is_none() && !self.batch.ends.is_empty()
    }

    /// Moves the changes of a large transaction into its file, if others may pass it. Returns false
    /// if the changes stay in the batch.
    fn stand_aside(&mut self) -> Result<bool, Error> {
        if !self.relaxed || self.continues || !self.batch.ends.is_empty() || self.transaction.is_none() {
            return Ok(false);
        }
        let growing = match &mut self.growing {
            Some(growing) => growing,
            None => match self.assembler.scratch() {
                Ok(file) => self.growing.insert(Growing::new(file)),
                Err(error) => {
                    tracing::warn!(
                        "a large transaction delays others: {error}; make room in the spool directory"
                    );
                    return Ok(false);
                }
            },
        };
        let mut part = std::mem::take(&mut self.batch);
        part.open = self.transaction.map(|current| current.begin);
        self.counters.activity.disk(|| growing.add(&part)).map_err(Kind::PutAside)?;
        if let Some(current) = &mut self.transaction {
            current.begun = true;
        }
        Ok(true)
    }

    /// Folds the whole transactions of the batch into the backlog; returns false if they stay. With
    /// `keep_transactions` they always stay, and so does the end of a transaction that was begun.
    fn fold(&mut self) -> bool {
        let stays = self.options.keep_transactions || self.continues || self.growing.is_some();
        if self.batch.ends.is_empty() || stays {
            return false;
        }
        let room = Room {
            rows: self.options.batch_rows_max,
            // All workers together may use as many bytes as one worker alone.
            bytes: self.options.batch_bytes_max / self.workers,
            file_bytes: FILES_MAX / (self.workers as u64 + 1),
            transactions: self.fitting.load(Ordering::Relaxed),
        };
        let binary = self.options.binary;
        let folded = match &mut self.folded {
            Some(folded) => folded,
            None => match self.assembler.scratch() {
                Ok(file) => self.folded.insert(FoldedBacklog::new(file, binary)),
                Err(error) => {
                    tracing::warn!("batches stay small: {error}; make room in the spool directory");
                    return false;
                }
            },
        };
        let whole = self.batch.take_whole();
        let has_room = folded.has_room(&whole, room);
        let result = if has_room { self.counters.activity.disk(|| folded.add(whole)) } else { Err(whole) };
        self.folded.take_if(|folded| folded.is_empty());
        let Err(whole) = result else { return true };
        self.batch.put_back(whole);
        false
    }

    /// Absorbs the input at hand until the batch is full; returns true if some is left.
    async fn absorb(
        &mut self,
        waiting: &mut std::vec::IntoIter<Input>,
        caught_up: &mut Option<Lsn>,
    ) -> Result<bool, Error> {
        loop {
            while let Some(event) = self.next_event(caught_up)? {
                *caught_up = None;
                self.take(event, caught_up).await?;
                if self.ended.is_some() {
                    return Ok(true);
                }
                if self.transaction.is_none() && !self.finishing.is_empty() {
                    return Ok(true);
                }
                // The last part of a large transaction is committed by itself.
                let ended = self.continues && self.is_ready()
                    || self.growing.is_some() && !self.batch.ends.is_empty();
                if self.is_full() || ended {
                    return Ok(true);
                }
            }
            // The gate holds back a limited number of events; the rest waits in the queue.
            let input = if self.intake.is_full() { None } else { waiting.next() };
            match input {
                Some(Input::Bytes(data)) => {
                    self.assembler.push(data)?;
                    if let Some(notice) = self.assembler.notice() {
                        self.heed(notice).await?;
                    }
                }
                // Within a transaction, the position may lie behind the transaction's commit, which
                // is not applied yet.
                Some(Input::CaughtUp(lsn)) if self.transaction.is_none() => {
                    if self.intake.caught_up(lsn) {
                        *caught_up = Some(lsn);
                    }
                }
                Some(Input::CaughtUp(_)) => {}
                None => {
                    self.intake.judge(self.transaction.is_some());
                    return Ok(false);
                }
            }
        }
    }

    /// The next event that passes the gate, if the input at hand completes one.
    fn next_event(&mut self, caught_up: &mut Option<Lsn>) -> Result<Option<Event>, Error> {
        while let Some(passed) = self.intake.release() {
            match passed {
                Passed::Event(event) => return Ok(Some(event)),
                Passed::CaughtUp(lsn) => *caught_up = Some(lsn),
            }
        }
        while !self.intake.is_full() {
            let Some(event) = self.assembler.next()? else { break };
            if let Some(event) = self.intake.admit(event) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    async fn take(&mut self, event: Event, caught_up: &mut Option<Lsn>) -> Result<(), Error> {
        match event {
            Event::Begin(begin) if self.ends_early(begin).await? => {}
            Event::Begin(begin) => {
                let skipped = self.options.skip_lsn == Some(begin.final_lsn);
                if skipped {
                    tracing::warn!(xid = %begin.xid, "logical replication starts skipping transaction at LSN {}",
                        begin.final_lsn);
                }
                self.transaction = Some(Current { begin, skipped, begun: false });
            }
            Event::Change(change) => {
                let Some(current) = self.applicable() else { return Ok(()) };
                match self.resolve(&change.relation, current.begin).await? {
                    Part::Joined(table) => {
                        self.prefetch.coming(&table, &change.op, current.begin.final_lsn);
                        self.push(Change::Row { table, op: change.op });
                    }
                    Part::Joining(key, Ok(table)) => {
                        // The change is kept for long, so it must not keep its message alive.
                        let op = change.op.detached();
                        self.asides.push(&key, Change::Row { table, op });
                    }
                    Part::Joining(key, Err(why)) => self.asides.fail(&key, &why),
                    Part::Replaced(parted) => self.leave_out(parted).await?,
                    Part::None => {}
                }
            }
            Event::Truncate(truncate) => {
                let Some(current) = self.applicable() else { return Ok(()) };
                let mut tables = Vec::new();
                let restart_identity = truncate.restart_identity;
                for relation in &truncate.relations {
                    match self.resolve(relation, current.begin).await? {
                        Part::Joined(table) => tables.push(table),
                        Part::Joining(key, Ok(table)) => {
                            let tables = vec![table];
                            self.asides.push(&key, Change::Truncate { tables, restart_identity });
                        }
                        Part::Joining(key, Err(why)) => self.asides.fail(&key, &why),
                        Part::Replaced(parted) => self.leave_out(parted).await?,
                        Part::None => {}
                    }
                }
                if !tables.is_empty() {
                    self.push(Change::Truncate { tables, restart_identity });
                }
            }
            Event::Commit(commit) => self.commit(commit, caught_up),
        }
        Ok(())
    }

    /// Finds the part that the relation plays: its target table, if it has one.
    async fn resolve(&mut self, relation: &Arc<Relation>, begin: Begin) -> Result<Part, Error> {
        self.mappings
            .resolve(relation, (begin.final_lsn, begin.xid))
            .await
            .map_err(|error| error.met_by(begin))
    }

    /// The current transaction, if its changes are to be applied.
    fn applicable(&self) -> Option<Current> {
        self.transaction.filter(|current| !current.skipped && !self.done.has(current.begin.final_lsn))
    }

    fn push(&mut self, change: Change) {
        let before = self.batch.bytes;
        self.batch.push(change);
        let added = (self.batch.bytes - before) as u64;
        self.counters.queued_bytes.fetch_add(added, Ordering::Relaxed);
    }

    fn commit(&mut self, commit: CommitInfo, caught_up: &mut Option<Lsn>) {
        let Some(current) = self.transaction.take() else { return };
        if current.skipped {
            self.options.skip_lsn = None;
        }
        let done = self.done.has(current.begin.final_lsn);
        if !done {
            self.asides.end(current.begin, commit, &mut || self.assembler.scratch());
            self.passed = Some(End { changes_end: 0, begin: current.begin, commit, skipped: false });
        }
        let start = self.batch.ends.last().map_or(0, |end| end.changes_end);
        let nothing = !current.begun && self.batch.changes.len() == start && !current.skipped;
        // Nothing of the transaction is for this target. If an earlier transaction still waits for
        // its commit, progress follows with the successor of that one.
        if nothing || done {
            if !self.is_ready() {
                *caught_up = Some(commit.end_lsn);
            }
            return;
        }
        self.taken = commit.end_lsn;
        self.intake.handed(commit.end_lsn);
        self.batch.end(current.begin, commit, current.skipped);
    }

    /// Takes the next work; `busy` is the permit that makes a worker busy.
    fn take_work(&mut self, busy: Option<OwnedSemaphorePermit>) -> Result<Work, Error> {
        if self.has_stood_aside()
            && let Some(mut growing) = self.growing.take()
        {
            growing.add(&self.batch.take_whole()).map_err(Kind::PutAside)?;
            let large = growing.into_large(self.handed, self.options.batch_rows());
            let (large, footprint) = large.ok_or(Kind::LostTask)?;
            self.note_handed(&large.digest);
            return Ok(Work::Large(Box::new(large), footprint));
        }
        self.ready_since = None;
        let mut chunk = self.take_chunk();
        chunk.digest.since = self.handed;
        self.note_handed(&chunk.digest);
        Ok(Work::Chunk(Box::new(chunk), busy))
    }

    fn note_handed(&mut self, digest: &Digest) {
        if let Some(end) = &digest.last {
            self.handed = end.commit.end_lsn;
            self.counters.set_handed(end.commit.end_lsn, end.commit.commit_time);
        }
    }

    /// Takes the next chunk: all whole transactions, or the first few if each is to stay single, or
    /// a part of a transaction larger than a batch. The rest stays in the batch.
    fn take_chunk(&mut self) -> Chunk {
        if self.folded.is_some() {
            self.fold();
        }
        let chunk = match (self.folded.take(), &mut self.transaction) {
            (Some(folded), _) => folded.into_chunk(),
            (None, Some(current)) if self.batch.ends.is_empty() => {
                let mut batch = std::mem::take(&mut self.batch);
                batch.open = Some(current.begin);
                current.begun = true;
                Chunk::new(batch, !self.continues, self.options.binary)
            }
            (None, _) => {
                let batch = match self.options.keep_transactions {
                    true => {
                        let count = self.kept_at_a_time();
                        self.batch.take_first(count)
                    }
                    false => self.batch.take_whole(),
                };
                match self.options.keep_transactions && batch.ends.len() > 1 {
                    true => Chunk::each(batch),
                    false => Chunk::new(batch, !self.continues, self.options.binary),
                }
            }
        };
        self.continues = !chunk.last;
        if let (false, Some(current)) = (chunk.last, &self.transaction) {
            self.counters.set_part_handed(current.begin.final_lsn, current.begin.commit_time);
        }
        chunk
    }

    /// How many transactions that stay single are handed over together: as many as can be
    /// pipelined. Each goes by itself where several sessions are faster.
    fn kept_at_a_time(&mut self) -> usize {
        if self.relaxed || self.continues || self.options.exact_only {
            return 1;
        }
        if self.workers > 1 && self.kept.is_slow() && self.kept_apart < KEPT_APART {
            self.kept_apart += 1;
            return 1;
        }
        let count = self.batch.count_within(span::TRANSACTIONS_MAX, span::CHANGES_MAX, span::BYTES_MAX);
        if count > 1 {
            self.kept_apart = 0;
        }
        count
    }
}
