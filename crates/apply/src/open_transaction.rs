//! Executes a streamed transaction before its end has come (`commit_order = preserve`), on a
//! session of its own.
//!
//! ```text
//!   planner --Grown, Grown--> worker: executes the arrived parts one by one in an open transaction
//!      \--StreamedEnd--> workers --Turn--> worker: executes the rest and commits
//! ```
//! The worker reads the spool at its own pace, so no other task waits for it. It executes a part
//! only when the target has everything that preceded the part in the stream.
//!
//! The source's locks kept later transactions that commit before its turn apart from it. If
//! something local to the target makes them meet, the worker lets the transaction go (rule A3).
//! Every outcome other than success is void (rule A1): the worker rolls back, and the next streamed
//! transaction may begin. When the turn of the void one comes, all of it is applied from the spool,
//! as if this module did not exist.
//!
//! Each transaction gets one attempt, and only one transaction is open at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Lsn, PgTimestamp, Xid};
use client::Canceller;
use plan::{Batch, Change, Digest, End, Plan, Table, Tally};
use proto::pgoutput::{CommitInfo, Relation};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use txn::{AssemblyError, Begin, Event, Streamed};

use crate::chunk::{Chunk, Originals};
use crate::counters::add;
use crate::error::{Error, Kind};
use crate::executor::{ComingParts, Executor};

/// Limits of one part: changes and bytes.
const PART_ROWS: usize = 10_000;
const PART_BYTES: usize = 8 * 1024 * 1024;
/// Interval between checks whether the target has everything before a part.
const PACE: Duration = Duration::from_millis(5);
/// Interval between cancel requests.
const CANCEL_AGAIN: Duration = Duration::from_millis(50);

/// A relation of the stream and its target table; `None` if its changes are not for this target.
pub(crate) type Mapped = (Arc<Relation>, Option<Arc<Table>>);

/// Messages to the worker; they may arrive in any order.
pub(crate) enum Tell {
    /// The first `bytes` may be read. They may be executed once the target has everything before
    /// `after`.
    Grown { bytes: u64, after: Lsn, tables: Vec<Mapped> },
    /// The transaction has ended, everything before it is on the target, and nothing else is open.
    Turn(u64, End),
    /// Another session may wait for this transaction.
    LetGo,
    /// The transaction will not get a turn.
    Abandon,
}

/// The worker's initial data.
pub(crate) struct StreamedStart {
    streamed: Streamed,
    told: UnboundedReceiver<Tell>,
    /// The sender of messages to this worker.
    pub(crate) tell: UnboundedSender<Tell>,
}

/// A transaction whose commit has come.
pub(crate) struct StreamedEnd {
    /// The whole transaction, from the start.
    streamed: Streamed,
    tables: Vec<Mapped>,
    begin: Begin,
    pub(crate) commit: CommitInfo,
    /// Sends to the worker that executes the transaction while it is open.
    pub(crate) tell: UnboundedSender<Tell>,
}

impl StreamedEnd {
    /// Whether `tell` sends to the worker of this transaction.
    pub(crate) fn is_of(&self, tell: &UnboundedSender<Tell>) -> bool {
        self.tell.same_channel(tell)
    }

    pub(crate) fn end(&self) -> End {
        End { changes_end: 0, begin: self.begin, commit: self.commit, skipped: false }
    }
}

/// The planner's handle on the transaction that the worker executes.
pub(crate) struct StreamedHandle {
    pub(crate) xid: Xid,
    /// One entry for each relation: no relation was described in two ways.
    pub(crate) tables: Vec<Mapped>,
    /// How many descriptions of relations have come.
    pub(crate) described: usize,
    /// `None` after the end was handed over.
    tell: Option<UnboundedSender<Tell>>,
}

impl StreamedHandle {
    /// Starts with a transaction of which some changes have arrived.
    pub(crate) fn new(streamed: Streamed) -> (StreamedHandle, StreamedStart) {
        let (tell, told) = unbounded_channel();
        let early = StreamedHandle {
            xid: streamed.xid(),
            tables: Vec::new(),
            described: 0,
            tell: Some(tell.clone()),
        };
        (early, StreamedStart { streamed, told, tell })
    }

    /// More changes have arrived. `tables` are the new ones; `described` counts all descriptions.
    pub(crate) fn grown(&mut self, bytes: u64, after: Lsn, tables: Vec<Mapped>, described: usize) {
        self.described = described;
        self.tables.extend(tables.iter().cloned());
        self.say(Tell::Grown { bytes, after, tables });
    }

    /// Makes the end to hand over, with which the transaction gets its turn. `streamed` is the
    /// whole transaction from the start.
    pub(crate) fn ended(
        mut self,
        begin: Begin,
        (streamed, commit): (Streamed, CommitInfo),
    ) -> Option<StreamedEnd> {
        let tables = std::mem::take(&mut self.tables);
        Some(StreamedEnd { streamed, tables, begin, commit, tell: self.tell.take()? })
    }

    fn say(&self, tell: Tell) {
        if let Some(to) = &self.tell {
            // A worker that has ended has reported its error.
            let _ = to.send(tell);
        }
    }
}

/// Without its end handed over, the transaction gets no turn.
impl Drop for StreamedHandle {
    fn drop(&mut self) {
        self.say(Tell::Abandon);
    }
}

/// How the execution ended.
pub(crate) enum StreamedOutcome {
    /// Committed, as the chunk of this number.
    Committed(u64),
    /// The target has nothing of the transaction.
    Left,
    /// The target has nothing of the transaction, and the session is lost.
    Lost(Error),
}

/// The state of the transaction on the target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Nothing,
    /// The transaction is open.
    Open,
    /// The attempt is void.
    Void,
}

/// Messages received, some of which are put off.
struct Inbox {
    told: UnboundedReceiver<Tell>,
    put_off: VecDeque<Tell>,
}

impl Inbox {
    /// The next message that is already here.
    fn at_hand(&mut self) -> Option<Tell> {
        self.put_off.pop_front().or_else(|| self.told.try_recv().ok())
    }

    async fn next(&mut self) -> Tell {
        match self.put_off.pop_front() {
            Some(tell) => tell,
            None => self.told.recv().await.unwrap_or(Tell::Abandon),
        }
    }

    /// Returns when the worker must let the transaction go.
    async fn let_go(&mut self) {
        loop {
            match self.told.recv().await {
                Some(Tell::LetGo | Tell::Abandon) => return,
                Some(tell) => self.put_off.push_back(tell),
                None => std::future::pending().await,
            }
        }
    }
}

struct Worker<'e> {
    executor: &'e mut Executor,
    canceller: &'e Canceller,
    inbox: Inbox,
    parts: Parts,
    standing: Standing,
    tally: Tally,
}

/// Executes the arriving parts until the transaction commits, must leave, or its attempt is void.
pub(crate) async fn apply(
    executor: &mut Executor,
    canceller: &Canceller,
    start: StreamedStart,
) -> Result<StreamedOutcome, Error> {
    let StreamedStart { streamed, told, tell } = start;
    drop(tell);
    let parts = Parts::new(streamed, Vec::new(), executor.binary());
    let inbox = Inbox { told, put_off: VecDeque::new() };
    let (standing, tally) = (Standing::Nothing, Tally::default());
    let mut worker = Worker { executor, canceller, inbox, parts, standing, tally };
    // How many bytes may be read, and the position that the target must have reached first.
    let mut grown: VecDeque<(u64, Lsn)> = VecDeque::new();
    while worker.standing != Standing::Void {
        let stored = worker.executor.shared.stored();
        while grown.get(1).is_some_and(|(_, after)| *after <= stored) {
            grown.pop_front();
        }
        let (bytes, after) = grown.front().copied().unwrap_or_default();
        let waits = !grown.is_empty() && stored < after;
        let tell = match grown.is_empty() || waits {
            false => worker.inbox.at_hand(),
            true => tokio::select! {
                tell = worker.inbox.next() => Some(tell),
                () = tokio::time::sleep(PACE), if waits => None,
            },
        };
        match tell {
            Some(Tell::Grown { bytes, after, tables }) => {
                grown.push_back((bytes, after));
                worker.parts.tables.extend(tables);
            }
            Some(Tell::Turn(number, end)) => match worker.finish(end).await? {
                true => return Ok(StreamedOutcome::Committed(number)),
                false => break,
            },
            Some(Tell::LetGo | Tell::Abandon) => break,
            None if waits => {}
            None => match worker.execute(bytes).await {
                Ok(()) => drop(grown.pop_front()),
                Err(error) => return worker.lost(error),
            },
        }
    }
    match worker.leave().await {
        Ok(()) => Ok(StreamedOutcome::Left),
        Err(error) => worker.lost(error),
    }
}

/// The arrived part of the transaction, cut into parts for the executor.
struct Coming<'p> {
    parts: &'p mut Parts,
    bytes: u64,
    is_last: bool,
    /// Set to stop handing out parts.
    stop: &'p AtomicBool,
    /// A part cannot be read or executed as sets.
    is_void: bool,
    tally: Tally,
}

impl ComingParts for Coming<'_> {
    async fn next(&mut self) -> Option<Plan> {
        while !self.is_last && !self.is_void && !self.stop.load(Ordering::Relaxed) {
            // Any reading error recurs when the transaction is applied in its turn, and is handled
            // there.
            let Ok((chunk, is_last)) = self.parts.next(self.bytes, BEGIN).await else {
                self.is_void = true;
                return None;
            };
            self.is_last = is_last;
            if chunk.digest.tally.is_nothing() {
                continue;
            }
            self.tally += chunk.digest.tally;
            let plan = chunk.plan.filter(Plan::is_sets);
            self.is_void = plan.is_none();
            return plan;
        }
        None
    }
}

impl Worker<'_> {
    /// Executes the changes in the first `bytes`.
    async fn execute(&mut self, bytes: u64) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.standing, Standing::Void);
        let stop = AtomicBool::new(false);
        let mut coming = Coming {
            parts: &mut self.parts,
            bytes,
            is_last: false,
            stop: &stop,
            is_void: false,
            tally: Tally::default(),
        };
        let mut executing =
            Box::pin(self.executor.execute_parts_ahead(&mut coming, before == Standing::Nothing));
        let holds = tokio::select! {
            biased;
            holds = &mut executing => holds?,
            () = self.inbox.let_go() => {
                stop.store(true, Ordering::Relaxed);
                // A cancel request has no effect when no statement runs, so one request is not
                // enough. But no request may be under way when this returns.
                let cancelled = loop {
                    if let Err(error) = self.canceller.cancel().await {
                        tracing::warn!("could not cancel the running statement: {error}");
                    }
                    if let Ok(holds) = tokio::time::timeout(CANCEL_AGAIN, &mut executing).await {
                        break holds;
                    }
                };
                cancelled.map(|_| false)?
            }
        };
        drop(executing);
        if holds && !coming.is_void {
            self.standing = if coming.tally.is_nothing() { before } else { Standing::Open };
            self.tally += coming.tally;
        }
        Ok(())
    }

    /// Executes the rest and commits; returns false if the execution does not hold.
    async fn finish(&mut self, end: End) -> Result<bool, Error> {
        self.execute(u64::MAX).await?;
        if self.standing != Standing::Open {
            return Ok(false);
        }
        self.standing = Standing::Void;
        let digest = Digest { tally: self.tally, ..Digest::of_ends(&[end]) };
        let empty = Plan::new(self.executor.binary());
        let holds = self.executor.complete(Some(empty), false, &digest).await?;
        add(&self.executor.shared.counters.ahead, u64::from(holds));
        Ok(holds)
    }

    /// The transaction had no turn. If its session is lost, the target has nothing of it.
    fn lost(&self, error: Error) -> Result<StreamedOutcome, Error> {
        match self.executor.wire_is_alive() {
            true => Err(error),
            false => Ok(StreamedOutcome::Lost(error)),
        }
    }

    /// Rolls the transaction back.
    async fn leave(&mut self) -> Result<(), Error> {
        add(&self.executor.shared.counters.ahead_void, u64::from(self.standing != Standing::Nothing));
        // Roll back even where nothing is open: a cancel may have come late.
        self.executor.roll_back().await
    }
}

/// Applies the whole of a transaction that has ended, by whatever path works.
pub(crate) async fn apply_ended(executor: &mut Executor, ended: StreamedEnd) -> Result<(), Error> {
    let (begin, end) = (ended.begin, ended.end());
    let mut parts = Parts::new(ended.streamed, ended.tables, executor.binary());
    let mut is_first = true;
    loop {
        let part = parts.next(u64::MAX, begin).await;
        let (mut chunk, is_last) = part.map_err(|cause| match cause {
            Unread::Stream(error) => Kind::Assembly(error),
            Unread::Unmapped | Unread::Gone => Kind::LostTask,
        })?;
        if is_first && is_last {
            let Originals::Memory(mut batch) = chunk.originals else { return Err(Kind::LostTask.into()) };
            batch.open = None;
            batch.end(begin, ended.commit, false);
            return executor.apply_transactions(Chunk::whole(batch, executor.binary())).await;
        }
        (chunk.first, chunk.last) = (is_first, is_last);
        if is_last {
            let tally = chunk.digest.tally;
            chunk.digest = Digest { tally, ..Digest::of_ends(&[end]) };
        }
        executor.apply_part(chunk).await?;
        is_first = false;
        if is_last {
            return Ok(());
        }
    }
}

/// Stands in before the commit has come: messages from an early execution name no transaction.
const BEGIN: Begin =
    Begin { xid: Xid::INVALID, final_lsn: Lsn::INVALID, commit_time: PgTimestamp(0), origin: None };

/// Why a part could not be read.
enum Unread {
    Stream(AssemblyError),
    /// The planner has not announced this relation.
    Unmapped,
    /// The reading task has ended.
    Gone,
}

impl From<AssemblyError> for Unread {
    fn from(error: AssemblyError) -> Unread {
        Unread::Stream(error)
    }
}

/// Parts of a transaction: the next is read and planned while one is executed.
struct Parts {
    /// `None` while the next part is read.
    reader: Option<PartReader>,
    next: Option<JoinHandle<(PartReader, Part)>>,
    tables: Vec<Mapped>,
    binary: bool,
}

/// The chunk that was read, and whether it is the last.
type Part = Result<(Chunk, bool), Unread>;

impl Parts {
    fn new(streamed: Streamed, tables: Vec<Mapped>, binary: bool) -> Parts {
        let reader = Some(PartReader { streamed, tables: Vec::new(), last: None });
        Parts { reader, next: None, tables, binary }
    }

    /// Returns the next changes of the first `bytes`, as a chunk of their own, and whether they are
    /// the last. The caller keeps `bytes` the same until the last one.
    async fn next(&mut self, bytes: u64, begin: Begin) -> Result<(Chunk, bool), Unread> {
        if self.next.is_none() {
            self.read_on(bytes, begin);
        }
        let next = self.next.take().ok_or(Unread::Gone)?;
        let (reader, part) = next.await.map_err(|_| Unread::Gone)?;
        self.reader = Some(reader);
        let (chunk, is_last) = part?;
        if !is_last {
            self.read_on(bytes, begin);
        }
        Ok((chunk, is_last))
    }

    fn read_on(&mut self, bytes: u64, begin: Begin) {
        let Some(mut reader) = self.reader.take() else { return };
        reader.tables.extend_from_slice(&self.tables[reader.tables.len()..]);
        let binary = self.binary;
        self.next = Some(tokio::task::spawn_blocking(move || {
            let part = reader.part(bytes, begin);
            let part = part.map(|(batch, is_last)| (Chunk::new(batch, false, binary), is_last));
            (reader, part)
        }));
    }
}

/// Reads changes and maps them onto the target.
struct PartReader {
    streamed: Streamed,
    tables: Vec<Mapped>,
    /// The relation that was looked up last.
    last: Option<Mapped>,
}

impl PartReader {
    /// Returns the next changes of the first `bytes`, and whether they are the last.
    fn part(&mut self, bytes: u64, begin: Begin) -> Result<(Batch, bool), Unread> {
        let mut batch = Batch { open: Some(begin), ..Batch::default() };
        while batch.changes.len() < PART_ROWS && batch.bytes < PART_BYTES {
            match self.streamed.next(bytes)? {
                None => return Ok((batch, true)),
                Some(Event::Change(change)) => {
                    if let Some(table) = self.table(&change.relation)? {
                        batch.push(Change::Row { table, op: change.op });
                    }
                }
                Some(Event::Truncate(truncate)) => {
                    let tables: Result<Vec<_>, _> =
                        truncate.relations.iter().map(|relation| self.table(relation)).collect();
                    let tables: Vec<_> = tables?.into_iter().flatten().collect();
                    if !tables.is_empty() {
                        batch.push(Change::Truncate { tables, restart_identity: truncate.restart_identity });
                    }
                }
                // The spool has rows only, not where the transaction begins and ends.
                Some(Event::Begin(_) | Event::Origin(_) | Event::Commit(_)) => {}
            }
        }
        Ok((batch, false))
    }

    fn table(&mut self, relation: &Arc<Relation>) -> Result<Option<Arc<Table>>, Unread> {
        if let Some((_, table)) = self.last.as_ref().filter(|(last, _)| Arc::ptr_eq(last, relation)) {
            return Ok(table.clone());
        }
        let found = self.tables.iter().find(|(told, _)| **told == **relation);
        let table = found.ok_or(Unread::Unmapped)?.1.clone();
        self.last = Some((Arc::clone(relation), table.clone()));
        Ok(table)
    }
}
