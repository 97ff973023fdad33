//! A streamed transaction, executed before its end has come (`commit_order = preserve`, several sessions).
//!
//! ```text
//!   planner --Grown, Grown--> worker: executes what has come, part by part, in a transaction that stays open
//!      \--Ended--> crew --Turn--> worker: executes the rest and commits
//! ```
//! The worker reads what the spool has at its own pace, so nobody waits for it, and a part is executed only when
//! everything that the stream had before it is on the target. What others change after that, and commit before its turn,
//! the source has kept apart from it by its own locks; should something of the target's own make them meet, it is let go
//! (RULES A3). Whatever it meets is void (RULES A1): it is rolled back, and when its turn has come all of it is applied
//! from the spool, as without this.
//!
//! It is begun again by nobody: one attempt for each transaction, one transaction at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, PgTimestamp, Xid};
use proto::pgoutput::{CommitInfo, Relation};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use txn::{AssemblyError, Begin, Event, Streamed};

use crate::batch::{Batch, Change, Chunk, Digest, End, Tally};
use crate::counters::add;
use crate::error::{Error, Kind};
use crate::executor::Executor;
use crate::plan::Plan;
use crate::table::Table;

/// Changes of one part, and bytes of them.
const PART_ROWS: usize = 10_000;
const PART_BYTES: usize = 8 * 1024 * 1024;
/// Between two looks whether what comes before a part is on the target.
const PACE: Duration = Duration::from_millis(5);

/// A relation of the stream and its table; `None` if its changes are not for this target.
pub(crate) type Mapped = (Arc<Relation>, Option<Arc<Table>>);

/// What the worker is told, in any order.
pub(crate) enum Tell {
    /// So many bytes may be read, and executed when the target has everything before `after`.
    Grown { bytes: u64, after: Lsn, tables: Vec<Mapped> },
    /// It has ended, everything before it is on the target, and nothing else is open.
    Turn(u64, Box<Ended>),
    /// Somebody may wait for it: its statement is being cancelled.
    LetGo,
    /// The server knows of that.
    Cancelled,
    /// It will not get a turn.
    Abandon,
}

/// What the worker begins with.
pub(crate) struct Start {
    streamed: Streamed,
    told: UnboundedReceiver<Tell>,
    /// To tell it something.
    pub(crate) tell: UnboundedSender<Tell>,
}

/// A transaction whose commit has come.
pub(crate) struct Ended {
    /// All of it, from the start.
    pub(crate) streamed: Streamed,
    pub(crate) begin: Begin,
    pub(crate) commit: CommitInfo,
    /// To tell who executes it early.
    tell: UnboundedSender<Tell>,
}

impl Ended {
    /// Whether this is its worker.
    pub(crate) fn is_of(&self, tell: &UnboundedSender<Tell>) -> bool {
        self.tell.same_channel(tell)
    }

    pub(crate) fn end(&self) -> End {
        End { changes_end: 0, begin: self.begin, commit: self.commit, skipped: false }
    }
}

/// The planner's side.
pub(crate) struct Told {
    pub(crate) xid: Xid,
    pub(crate) tables: Vec<Mapped>,
    /// `None`: its end was handed over.
    tell: Option<UnboundedSender<Tell>>,
}

impl Told {
    /// For a transaction of which something has come.
    pub(crate) fn new(streamed: Streamed) -> (Told, Start) {
        let (tell, told) = unbounded_channel();
        let early = Told { xid: streamed.xid(), tables: Vec::new(), tell: Some(tell.clone()) };
        (early, Start { streamed, told, tell })
    }

    /// More has come; `tables` are those described since.
    pub(crate) fn grown(&mut self, bytes: u64, after: Lsn, tables: Vec<Mapped>) {
        self.tables.extend(tables.iter().cloned());
        self.say(Tell::Grown { bytes, after, tables });
    }

    /// Its end, which is to be handed over, so that it gets its turn. `streamed` is all of it, from the start.
    pub(crate) fn ended(mut self, begin: Begin, (streamed, commit): (Streamed, CommitInfo)) -> Option<Ended> {
        Some(Ended { streamed, begin, commit, tell: self.tell.take()? })
    }

    fn say(&self, tell: Tell) {
        if let Some(to) = &self.tell {
            // A worker that is gone has said why.
            let _ = to.send(tell);
        }
    }
}

/// It gets no turn unless its end is handed over.
impl Drop for Told {
    fn drop(&mut self) {
        self.say(Tell::Abandon);
    }
}

/// How it ended.
pub(crate) enum Outcome {
    /// As this piece.
    Committed(u64),
    /// Nothing of it is on the target.
    Left,
}

/// What there is of it on the target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Nothing,
    /// An open transaction.
    Open,
    /// It was in vain.
    Void,
}

struct Worker<'e> {
    executor: &'e mut Executor,
    parts: Parts,
    standing: Standing,
    tally: Tally,
}

/// Applies what comes until it has had its turn or is abandoned; `let_go` says that it was rolled back as it was told.
pub(crate) async fn apply(
    executor: &mut Executor,
    start: Start,
    let_go: impl Fn(),
) -> Result<Outcome, Error> {
    let Start { streamed, mut told, tell } = start;
    drop(tell);
    let parts = Parts::new(streamed, executor.binary());
    let mut worker = Worker { executor, parts, standing: Standing::Nothing, tally: Tally::default() };
    // How far it may be read, behind what.
    let mut grown: VecDeque<(u64, Lsn)> = VecDeque::new();
    let (mut cancelling, mut abandoned) = (false, false);
    let mut turn: Option<(u64, Box<Ended>)> = None;
    loop {
        if !cancelling && let Some((number, ended)) = turn.take() {
            worker.finish(*ended).await?;
            return Ok(Outcome::Committed(number));
        }
        if !cancelling && abandoned {
            worker.void().await?;
            return Ok(Outcome::Left);
        }
        let stored = worker.executor.shared.stored();
        while grown.get(1).is_some_and(|(_, after)| *after <= stored) {
            grown.pop_front();
        }
        let (bytes, after) = grown.front().copied().unwrap_or_default();
        let works = !grown.is_empty() && !cancelling && worker.standing != Standing::Void;
        let waits = works && stored < after;
        let tell = match works && !waits {
            true => told.try_recv().ok(),
            false => tokio::select! {
                tell = told.recv() => Some(tell.unwrap_or(Tell::Abandon)),
                () = tokio::time::sleep(PACE), if waits => None,
            },
        };
        match tell {
            Some(Tell::Grown { bytes, after, tables }) => {
                grown.push_back((bytes, after));
                worker.parts.tables.extend(tables);
            }
            Some(Tell::Turn(number, ended)) => turn = Some((number, ended)),
            Some(Tell::LetGo) => cancelling = true,
            Some(Tell::Cancelled) => {
                cancelling = false;
                worker.void().await?;
                let_go();
            }
            Some(Tell::Abandon) => abandoned = true,
            None if waits => {}
            None => {
                if !worker.execute(bytes).await? {
                    grown.pop_front();
                }
            }
        }
    }
}

impl Worker<'_> {
    /// Executes the next part of what the first `bytes` have; whether there is more.
    async fn execute(&mut self, bytes: u64) -> Result<bool, Error> {
        let (chunk, is_last) = match self.parts.next(bytes, BEGIN).await {
            Ok(part) => part,
            // Whatever it is, it is met again in its turn.
            Err(_) => return self.void().await.map(|()| false),
        };
        if chunk.digest.tally.is_nothing() {
            return Ok(!is_last);
        }
        let is_first = self.standing == Standing::Nothing;
        // What was begun is rolled back by who finds that it does not hold.
        self.standing = Standing::Void;
        let holds = match chunk.plan.filter(Plan::is_sets) {
            Some(plan) => self.executor.execute_ahead(plan, is_first).await?,
            None => self.executor.roll_back().await.map(|()| false)?,
        };
        if holds {
            self.standing = Standing::Open;
            self.tally += chunk.digest.tally;
        }
        Ok(holds && !is_last)
    }

    async fn void(&mut self) -> Result<(), Error> {
        self.standing = Standing::Void;
        // Also where nothing is open: a cancel may have come late.
        self.executor.roll_back().await
    }

    /// The rest, and commits; all of it if there is nothing yet.
    async fn finish(&mut self, ended: Ended) -> Result<(), Error> {
        while self.standing != Standing::Void && self.execute(u64::MAX).await? {}
        let is_early = self.standing == Standing::Open;
        let digest = Digest { tally: self.tally, ..Digest::of_ends(&[ended.end()]) };
        let empty = Plan::new(self.executor.binary());
        let counters = Arc::clone(&self.executor.shared.counters);
        if is_early && self.executor.complete(Some(empty), false, &digest).await? {
            add(&counters.ahead, 1);
            return Ok(());
        }
        add(&counters.ahead_void, u64::from(self.standing != Standing::Nothing));
        self.apply_all(ended).await
    }

    /// All of it, from the start, whatever it takes.
    async fn apply_all(&mut self, ended: Ended) -> Result<(), Error> {
        let (begin, end) = (ended.begin, ended.end());
        let tables = std::mem::take(&mut self.parts.tables);
        self.parts = Parts { tables, ..Parts::new(ended.streamed, self.executor.binary()) };
        let mut is_first = true;
        loop {
            let part = self.parts.next(u64::MAX, begin).await;
            let (mut chunk, is_last) = part.map_err(|cause| match cause {
                Unread::Stream(error) => Kind::Assembly(error),
                Unread::Unmapped | Unread::Gone => Kind::Lost,
            })?;
            (chunk.first, chunk.last) = (is_first, is_last);
            if is_last {
                let tally = chunk.digest.tally;
                chunk.digest = Digest { tally, ..Digest::of_ends(&[end]) };
            }
            self.executor.apply_part(chunk).await?;
            is_first = false;
            if is_last {
                return Ok(());
            }
        }
    }
}

/// Until its commit has come; who is executed early names no transaction in what it says.
const BEGIN: Begin = Begin { xid: Xid::INVALID, final_lsn: Lsn::INVALID, commit_time: PgTimestamp(0) };

/// Why a part could not be read.
enum Unread {
    Stream(AssemblyError),
    /// A relation that the planner has not told.
    Unmapped,
    /// Who read it ended.
    Gone,
}

impl From<AssemblyError> for Unread {
    fn from(error: AssemblyError) -> Unread {
        Unread::Stream(error)
    }
}

/// Parts, of which the next is read and planned while one is executed.
struct Parts {
    /// `None` while the next is read.
    reader: Option<Reader>,
    next: Option<JoinHandle<(Reader, Part)>>,
    tables: Vec<Mapped>,
    binary: bool,
}

/// As far as it may be read; what is there of it, and whether that is all.
type Part = (u64, Result<(Chunk, bool), Unread>);

impl Parts {
    fn new(streamed: Streamed, binary: bool) -> Parts {
        let reader = Some(Reader { streamed, tables: Vec::new(), last: None });
        Parts { reader, next: None, tables: Vec::new(), binary }
    }

    /// The next changes of what the first `bytes` have, as if they were the only ones, and whether there are no more.
    async fn next(&mut self, bytes: u64, begin: Begin) -> Result<(Chunk, bool), Unread> {
        if self.next.is_none() {
            self.read_on(bytes, begin);
        }
        let next = self.next.take().ok_or(Unread::Gone)?;
        let (reader, (of, part)) = next.await.map_err(|_| Unread::Gone)?;
        self.reader = Some(reader);
        let (chunk, is_last) = part?;
        // More may have come since it was read.
        let is_last = is_last && of == bytes;
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
            (reader, (bytes, part))
        }));
    }
}

/// Changes, mapped onto the target.
struct Reader {
    streamed: Streamed,
    tables: Vec<Mapped>,
    /// What was looked up last.
    last: Option<Mapped>,
}

impl Reader {
    /// The next changes of what the first `bytes` have, and whether there are no more.
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
                // Rows only: where it begins and ends is not in the spool.
                Some(Event::Begin(_) | Event::Commit(_)) => {}
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
