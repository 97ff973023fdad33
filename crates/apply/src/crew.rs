//! Several sessions that apply chunks, by the rules of the schedule.
//!
//! ```text
//!   planner --Work--> crew --Order--> worker 0 --> session, origin _0
//!                      |  \--Order--> worker 1 --> session, origin _1
//!                      |  <--Answer-- ...
//!                      +-- schedule: what is to be done next
//! ```
//! The crew keeps what a chunk consists of and carries out what the schedule
//! says; each worker is a task with a session that does one thing at a time.
//! With the first error all of it ends: sessions that are dropped roll back,
//! and whether a COMMIT on its way arrived is asked behind the fences of the
//! next start (RULES P2).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use client::Canceller;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use crate::applier::{AbortOnDrop, Work};
use crate::batch::{Chunk, Digest};
use crate::counters::add;
use crate::error::{Error, Kind};
use crate::executor::{Executor, Shared};
use crate::join::Join;
use crate::lock_watch::{LockWatch, Wait};
use crate::plan::Plan;
use crate::schedule::{Action, Footprint, Schedule};
use crate::settled::Originals;

/// What a worker is told.
enum Order {
    Ahead(Plan),
    Finish(Plan, Digest),
    Whole(Plan, Digest),
    /// Whatever it takes; first as a set if `again`.
    Replay {
        originals: Originals,
        digest: Digest,
        again: bool,
    },
    Chunk(Box<Chunk>),
    Join(Join),
    Rollback,
}

/// What became of it.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Executed,
    Voided,
    Committed,
    Stumbled,
    RolledBack,
    /// The server knows that it shall cancel.
    Cancelled,
    /// What the session waits for.
    Waits(Wait),
}

/// To the lock watch: what the head's backend waits for, if for one of ours.
struct Question {
    head: u64,
    pid: i32,
    ours: Vec<i32>,
}

/// When the lock watch is asked first. Who really executes for so long can
/// spare a question.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// At most so long from look to look.
const LOOKS_APART_MAX: Duration = Duration::from_millis(250);

/// The head, as the lock watch saw it.
struct Watched {
    head: u64,
    next: Instant,
    pause: Duration,
    /// Since when it was seen waiting for others than ours.
    waits_since: Option<Instant>,
}

impl Watched {
    fn new(head: u64) -> Watched {
        let pause = FIRST_LOOK;
        Watched { head, next: Instant::now() + pause, pause, waits_since: None }
    }

    /// Whether those behind it must be let go (RULES A3).
    fn saw(&mut self, wait: Wait, patience: Duration) -> bool {
        let now = Instant::now();
        self.pause = (self.pause * 2).min(LOOKS_APART_MAX);
        self.next = now + self.pause;
        match wait {
            Wait::None => self.waits_since = None,
            Wait::Ours => return true,
            // They may wait for us in a way that no server sees: as when one
            // client has two sessions.
            Wait::Others | Wait::Unknown => {
                let until = *self.waits_since.get_or_insert(now) + patience;
                self.next = self.next.min(until);
                return now >= until;
            }
        }
        false
    }
}

type Report = (u64, Result<Answer, Error>);

/// A worker's session from outside.
pub(crate) struct Lane {
    orders: mpsc::Sender<(u64, Order)>,
    task: AbortOnDrop,
    canceller: Canceller,
    pid: i32,
}

/// What is in flight, in commit order.
enum Piece {
    /// Whole transactions that can be executed as a set; its plans are taken
    /// when they are executed.
    Set {
        /// `None` once it is replayed.
        originals: Option<Originals>,
        digest: Digest,
        plan: Option<Plan>,
        late: Option<Plan>,
    },
    /// To be done alone.
    Alone(Option<Order>),
    CaughtUp(base::Lsn),
}

/// See the module.
pub(crate) struct Crew {
    schedule: Schedule,
    lanes: Vec<Lane>,
    /// Each with what says that a worker is busy, until it is done.
    pieces: VecDeque<(Piece, Option<OwnedSemaphorePermit>)>,
    /// The number of the first piece.
    first: u64,
    reports: mpsc::UnboundedReceiver<Report>,
    reporter: mpsc::UnboundedSender<Report>,
    questions: mpsc::UnboundedSender<Question>,
    _watching: AbortOnDrop,
    watched: Option<Watched>,
    asking: bool,
    /// The target's `deadlock_timeout`.
    patience: Duration,
    shared: Arc<Shared>,
    applying: Arc<AtomicI32>,
    binary: bool,
    exact_only: bool,
}

/// What a crew is made of.
pub(crate) struct Parts {
    pub(crate) executors: Vec<Executor>,
    pub(crate) cancellers: Vec<Canceller>,
    pub(crate) pids: Vec<i32>,
    pub(crate) lock_watch: LockWatch,
    pub(crate) shared: Arc<Shared>,
    /// Told whose answer is waited for.
    pub(crate) applying: Arc<AtomicI32>,
    pub(crate) binary: bool,
    pub(crate) exact_only: bool,
}

impl Crew {
    pub(crate) fn new(parts: Parts) -> Crew {
        let (reporter, reports) = mpsc::unbounded_channel();
        let sessions = parts.executors.into_iter().zip(parts.cancellers).zip(parts.pids);
        let lane = |((executor, canceller), pid)| {
            let (orders, queue) = mpsc::channel(1);
            let task = AbortOnDrop(tokio::spawn(work(executor, queue, reporter.clone())));
            Lane { orders, task, canceller, pid }
        };
        let lanes: Vec<Lane> = sessions.map(lane).collect();
        let patience = parts.lock_watch.patience;
        let (questions, asked) = mpsc::unbounded_channel();
        let watching = AbortOnDrop(tokio::spawn(watch(parts.lock_watch, asked, reporter.clone())));
        Crew {
            schedule: Schedule::new(lanes.len()),
            lanes,
            pieces: VecDeque::new(),
            first: 1,
            reports,
            reporter,
            questions,
            _watching: watching,
            watched: None,
            asking: false,
            patience,
            shared: parts.shared,
            applying: parts.applying,
            binary: parts.binary,
            exact_only: parts.exact_only,
        }
    }

    /// Applies what comes until the queue is closed and all of it is done.
    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<Work>) -> Result<(), Error> {
        let mut open = true;
        while open || !self.schedule.is_empty() {
            while let Some(action) = self.schedule.poll() {
                self.act(action)?;
            }
            if let Some((_, lane, _)) = self.schedule.head() {
                self.applying.store(self.lanes[lane].pid, Ordering::Relaxed);
            }
            let question = self.next_question();
            tokio::select! {
                biased;
                Some((number, answer)) = self.reports.recv() => self.take(number, answer?),
                work = queue.recv(), if open && self.schedule.has_room() => match work {
                    Some(work) => self.push(work),
                    None => open = false,
                },
                () = tokio::time::sleep_until(question.unwrap_or_else(Instant::now)), if question.is_some() => {
                    self.ask();
                }
            }
            self.shared.counters.executing.store(!self.schedule.is_empty(), Ordering::Relaxed);
        }
        for lane in self.lanes {
            drop(lane.orders);
            let mut task = lane.task;
            // Whatever a goodbye meets does not matter any more.
            let _ = (&mut task.0).await;
        }
        Ok(())
    }

    fn push(&mut self, work: Work) {
        let (piece, footprint, busy) = match work {
            Work::CaughtUp(lsn) => (Piece::CaughtUp(lsn), Footprint::Everything, None),
            Work::Join(join) => (Piece::Alone(Some(Order::Join(join))), Footprint::Everything, None),
            Work::Chunk(chunk, busy) => {
                let (piece, footprint) = self.piece(chunk);
                (piece, footprint, busy)
            }
        };
        self.pieces.push_back((piece, busy));
        self.schedule.push(footprint);
    }

    /// Parts of a transaction, and what will not hold as one set, are alone.
    fn piece(&self, mut chunk: Box<Chunk>) -> (Piece, Footprint) {
        let fits = chunk.digest.transactions <= self.shared.fit().transactions();
        let alone = !(chunk.first && chunk.last && fits) || self.exact_only;
        let footprint = match &chunk.plan {
            Some(plan) if !alone => plan.footprint(),
            _ => Footprint::Everything,
        };
        match (&footprint, chunk.plan.take()) {
            (Footprint::Tables(_), plan) => {
                let Chunk { originals, digest, .. } = *chunk;
                (Piece::Set { originals: Some(originals), digest, plan, late: None }, footprint)
            }
            (Footprint::Everything, plan) => {
                chunk.plan = plan;
                (Piece::Alone(Some(Order::Chunk(chunk))), footprint)
            }
        }
    }

    fn act(&mut self, action: Action) -> Result<(), Error> {
        let (number, lane, order) = match action {
            Action::Ahead { number, lane, split } => {
                let (early, later) = self.plan(number)?.split(&split);
                if let Piece::Set { late, .. } = self.piece_of(number) {
                    *late = Some(later);
                }
                (number, lane, Order::Ahead(early))
            }
            Action::Finish { number, lane } => {
                let Piece::Set { late, digest, .. } = self.piece_of(number) else {
                    return Err(Kind::Lost.into());
                };
                (number, lane, Order::Finish(late.take().ok_or(Kind::Lost)?, *digest))
            }
            Action::Whole { number, lane } => {
                let plan = self.plan(number)?;
                let Piece::Set { digest, .. } = self.piece_of(number) else { return Err(Kind::Lost.into()) };
                (number, lane, Order::Whole(plan, *digest))
            }
            Action::Replay { number, lane, again } => {
                let Piece::Set { originals, digest, .. } = self.piece_of(number) else {
                    return Err(Kind::Lost.into());
                };
                let originals = originals.take().ok_or(Kind::Lost)?;
                (number, lane, Order::Replay { originals, digest: *digest, again })
            }
            Action::Alone { number, lane } => match self.piece_of(number) {
                Piece::CaughtUp(lsn) => {
                    let lsn = *lsn;
                    self.shared.caught_up(lsn);
                    self.committed(number);
                    return Ok(());
                }
                Piece::Alone(order) => (number, lane, order.take().ok_or(Kind::Lost)?),
                // It has more keys than are remembered.
                Piece::Set { digest, .. } => {
                    let digest = *digest;
                    (number, lane, Order::Whole(self.plan(number)?, digest))
                }
            },
            Action::Rollback { number, lane } => (number, lane, Order::Rollback),
            Action::Cancel { number, lane } => {
                self.cancel(number, lane);
                return Ok(());
            }
        };
        // A worker that is gone has said why.
        let _ = self.lanes[lane].orders.try_send((number, order));
        Ok(())
    }

    fn piece_of(&mut self, number: u64) -> &mut Piece {
        let at = usize::try_from(number - self.first).expect("few are in flight");
        &mut self.pieces[at].0
    }

    /// The plan of a set: a new one if it was executed in vain.
    fn plan(&mut self, number: u64) -> Result<Plan, Error> {
        let binary = self.binary;
        let Piece::Set { originals, plan, late, .. } = self.piece_of(number) else {
            return Err(Kind::Lost.into());
        };
        *late = None;
        if let Some(plan) = plan.take() {
            return Ok(plan);
        }
        let planned = match originals {
            Some(Originals::Memory(batch)) => {
                let mut plan = Plan::new(binary);
                plan.add_all(&batch.changes).ok().map(|()| plan)
            }
            Some(Originals::Disk(spilled)) => spilled.plan(binary).map_err(Kind::PutAside)?,
            None => None,
        };
        // What could be planned once can be planned again.
        planned.ok_or_else(|| Kind::Lost.into())
    }

    fn take(&mut self, number: u64, answer: Answer) {
        match answer {
            Answer::Executed => {
                add(&self.shared.counters.ahead, 1);
                self.schedule.executed(number);
            }
            Answer::Voided => {
                add(&self.shared.counters.ahead_void, 1);
                self.schedule.voided(number);
            }
            Answer::Stumbled => self.schedule.stumbled(number),
            Answer::RolledBack => self.schedule.rolled_back(number),
            Answer::Cancelled => self.schedule.cancelled(number),
            Answer::Committed => self.committed(number),
            Answer::Waits(wait) => {
                self.asking = false;
                let watched = self.watched.as_mut().filter(|watched| watched.head == number);
                if watched.is_some_and(|watched| watched.saw(wait, self.patience)) {
                    tracing::debug!(?wait, "a lock is waited for: what was executed ahead is rolled back");
                    self.schedule.waits_for_lock(number);
                }
            }
        }
    }

    fn committed(&mut self, number: u64) {
        let done = self.pieces.pop_front();
        self.first += 1;
        if let Some((Piece::Set { digest, .. }, _)) = &done {
            self.shared.done(digest.bytes);
        }
        self.schedule.committed(number);
    }

    /// When the lock watch is to be asked about the head, if others are open.
    fn next_question(&mut self) -> Option<Instant> {
        let (number, _, others) = self.schedule.head()?;
        let watched = match self.watched.take() {
            Some(watched) if watched.head == number => watched,
            _ => Watched::new(number),
        };
        let watched = self.watched.insert(watched);
        (others && !self.asking).then_some(watched.next)
    }

    fn ask(&mut self) {
        if let Some((head, lane, _)) = self.schedule.head() {
            let pid = self.lanes[lane].pid;
            let ours = self.lanes.iter().map(|lane| lane.pid).filter(|&own| own != pid).collect();
            self.asking = self.questions.send(Question { head, pid, ours }).is_ok();
        }
    }

    fn cancel(&self, number: u64, lane: usize) {
        let (canceller, reporter) = (self.lanes[lane].canceller.clone(), self.reporter.clone());
        tokio::spawn(async move {
            let told = canceller.cancel().await;
            let _ = reporter.send((number, told.map(|()| Answer::Cancelled).map_err(Error::from)));
        });
    }
}

/// A worker: one order after another, until there are no more.
async fn work(
    mut executor: Executor,
    mut orders: mpsc::Receiver<(u64, Order)>,
    reporter: mpsc::UnboundedSender<Report>,
) -> Result<(), Error> {
    let _farewell = Farewell(reporter.clone());
    while let Some((number, order)) = orders.recv().await {
        let answer = carry_out(&mut executor, order).await;
        let _ = reporter.send((number, answer));
    }
    executor.close().await;
    Ok(())
}

async fn carry_out(executor: &mut Executor, order: Order) -> Result<Answer, Error> {
    let held = |executor: &Executor, digest: &Digest, held: bool| {
        if held {
            executor.shared.fit().fitted(digest.transactions);
            Answer::Committed
        } else {
            Answer::Stumbled
        }
    };
    Ok(match order {
        Order::Ahead(plan) => match executor.execute_ahead(plan).await? {
            true => Answer::Executed,
            false => Answer::Voided,
        },
        Order::Finish(late, digest) => {
            let done = executor.complete(Some(late), false, &digest).await?;
            held(executor, &digest, done)
        }
        Order::Whole(plan, digest) => {
            let done = executor.apply_whole(Some(plan), &digest).await?;
            held(executor, &digest, done)
        }
        Order::Replay { originals, digest, again } => {
            match originals {
                Originals::Memory(batch) if again => {
                    executor.apply_transactions(Chunk::whole(batch, executor.binary())).await?;
                }
                originals => {
                    if !again {
                        executor.shared.fit().failed(digest.transactions);
                    }
                    executor.replay(originals).await?;
                }
            }
            Answer::Committed
        }
        Order::Chunk(chunk) => {
            executor.apply(*chunk).await?;
            Answer::Committed
        }
        Order::Join(join) => {
            executor.join(join).await?;
            Answer::Committed
        }
        Order::Rollback => {
            executor.roll_back().await?;
            Answer::RolledBack
        }
    })
}

/// Says that a worker is no more, which only a panic leaves unsaid.
struct Farewell(mpsc::UnboundedSender<Report>);

impl Drop for Farewell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send((0, Err(Kind::Lost.into())));
        }
    }
}

async fn watch(
    mut locks: LockWatch,
    mut questions: mpsc::UnboundedReceiver<Question>,
    reporter: mpsc::UnboundedSender<Report>,
) -> Result<(), Error> {
    while let Some(Question { head, pid, ours }) = questions.recv().await {
        let wait = locks.look(pid, &ours).await;
        let _ = reporter.send((head, Ok(Answer::Waits(wait))));
    }
    Ok(())
}
