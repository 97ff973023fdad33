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

mod early;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use base::Lsn;
use client::Canceller;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use self::early::Early;
use crate::applier::{AbortOnDrop, Work};
use crate::batch::{Chunk, Digest};
use crate::counters::add;
use crate::early::{self as streamed, Ended, Outcome, Start};
use crate::error::{Error, Kind};
use crate::executor::Executor;
use crate::join::Join;
use crate::large::Large;
use crate::lock_watch::{LockWatch, Wait};
use crate::plan::Plan;
use crate::settled::{FILES_MAX, Originals};
use crate::shared::Shared;
use schedule::{Action, Either, Footprint, Manner, Preserve, Relaxed};

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
    Large(Box<Large>),
    /// Until it had its turn or must leave.
    Early(Start),
    /// All of one that nobody has open.
    Ended(Box<Ended>),
    Join(Join),
    Rollback,
}

impl Order {
    /// Where its stretch of the stream begins, if it has one.
    fn since(&self) -> Option<Lsn> {
        match self {
            Order::Finish(_, digest) | Order::Whole(_, digest) | Order::Replay { digest, .. } => {
                Some(digest.since)
            }
            Order::Chunk(chunk) => Some(chunk.digest.since),
            Order::Large(large) => Some(large.digest.since),
            Order::Ahead(_) | Order::Early(_) | Order::Ended(_) | Order::Join(_) | Order::Rollback => None,
        }
    }
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
    /// What was executed early was rolled back, and its worker is free again.
    Left,
    /// The session that executed early is no more.
    Lost,
    /// Whether a session of the target's waits for what was executed early.
    EarlyWait(Wait),
}

/// To the lock watch.
enum Question {
    /// What the head's backend waits for, if for one of ours.
    Head { head: u64, pid: i32, ours: Vec<i32> },
    /// Whether anybody waits for this one, which executes early.
    Early { pid: i32 },
}

/// When the lock watch is asked first. Who really executes for so long can
/// spare a question.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// Where what is independent may pass, a chunk that waits for another is taken
/// for busy so long, so that a hot row does not make all chunks small.
const PATIENCE: Duration = Duration::from_millis(100);
/// What the sessions of a target that crashed say of it is heard so long: they
/// end within milliseconds of one another.
const LAST_WORDS: Duration = Duration::from_millis(300);
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

impl Work {
    /// How much it is, about. A large transaction is in a file, however large.
    fn bytes(&self) -> Bytes {
        let Work::Chunk(chunk, _) = self else { return Bytes::default() };
        let plan = chunk.plan.as_ref().map_or(0, Plan::bytes);
        match &chunk.originals {
            Originals::Memory(batch) => Bytes { memory: plan.max(batch.bytes), files: 0 },
            Originals::Disk(spilled) => Bytes { memory: plan, files: spilled.byte_len() },
        }
    }
}

type Report = (u64, Result<Answer, Error>);

/// A worker's session from outside.
pub(crate) struct WorkerSession {
    orders: mpsc::Sender<(u64, Order)>,
    task: AbortOnDrop,
    canceller: Canceller,
    pid: i32,
}

/// What is in flight.
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
    /// A transaction in a file, which others may pass.
    Large(Option<Box<Large>>),
    /// The end of one that a worker executes early.
    Early(Option<Box<Ended>>),
    /// To be done alone.
    Alone(Option<Order>),
}

/// See the module.
pub(crate) struct Crew {
    schedule: Either,
    /// Of the schedule.
    workers: usize,
    sessions: Vec<WorkerSession>,
    /// Each with what says that a worker is busy, until it is done.
    pieces: BTreeMap<u64, InFlight>,
    /// Positions that are reached once the piece of that number is committed, where order is preserved. They are
    /// nobody's work: what comes behind one is executed ahead as if it were not there.
    positions: VecDeque<(u64, Lsn)>,
    /// Where order is not preserved, what is in flight has at most about so
    /// many bytes; else the schedule takes no more than there are sessions.
    bytes_max: Option<usize>,
    /// Bytes of all of it, in memory and in files.
    bytes: Bytes,
    /// Pieces that may still wait for others then: they let go of their worker.
    patient: VecDeque<(u64, Instant)>,
    /// Streamed transactions that may be executed early.
    starts: mpsc::UnboundedReceiver<Start>,
    /// One that waits until there is none before it.
    waiting: Option<Start>,
    early: Option<Early>,
    /// Its session, after those of the schedule; none where nothing is executed early.
    early_session: Option<usize>,
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

struct InFlight {
    piece: Piece,
    busy: Option<OwnedSemaphorePermit>,
    bytes: Bytes,
}

#[derive(Debug, Default, Clone, Copy)]
struct Bytes {
    memory: usize,
    files: u64,
}

/// What a crew is made of.
pub(crate) struct Parts {
    /// As many as workers, and one more if streamed transactions are executed early.
    pub(crate) executors: Vec<Executor>,
    pub(crate) cancellers: Vec<Canceller>,
    pub(crate) pids: Vec<i32>,
    pub(crate) workers: usize,
    pub(crate) lock_watch: LockWatch,
    pub(crate) shared: Arc<Shared>,
    /// Told whose answer is waited for.
    pub(crate) applying: Arc<AtomicI32>,
    pub(crate) binary: bool,
    pub(crate) exact_only: bool,
    /// Independent transactions may commit before earlier ones; in flight are
    /// then at most about so many bytes.
    pub(crate) relaxed: Option<usize>,
    pub(crate) starts: mpsc::UnboundedReceiver<Start>,
}

impl Crew {
    pub(crate) fn new(parts: Parts) -> Crew {
        let (reporter, reports) = mpsc::unbounded_channel();
        let sessions = parts.executors.into_iter().zip(parts.cancellers).zip(parts.pids);
        let worker = |((executor, canceller), pid): ((Executor, Canceller), i32)| {
            let (orders, queue) = mpsc::channel(1);
            let task = AbortOnDrop(tokio::spawn(work(executor, canceller.clone(), queue, reporter.clone())));
            WorkerSession { orders, task, canceller, pid }
        };
        let sessions: Vec<WorkerSession> = sessions.map(worker).collect();
        let patience = parts.lock_watch.patience;
        let (questions, asked) = mpsc::unbounded_channel();
        let watching = AbortOnDrop(tokio::spawn(watch(parts.lock_watch, asked, reporter.clone())));
        Crew {
            schedule: match parts.relaxed {
                None => Either::Preserve(Preserve::new(parts.workers)),
                Some(_) => Either::Relaxed(Relaxed::new(parts.workers)),
            },
            workers: parts.workers,
            early_session: (sessions.len() > parts.workers).then_some(parts.workers),
            sessions,
            pieces: BTreeMap::new(),
            positions: VecDeque::new(),
            bytes_max: parts.relaxed,
            bytes: Bytes::default(),
            patient: VecDeque::new(),
            starts: parts.starts,
            waiting: None,
            early: None,
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
            self.begin_early();
            if let Some((_, worker, _)) = self.head() {
                self.applying.store(self.sessions[worker].pid, Ordering::Relaxed);
            }
            // Before it waits: what just came may be done already.
            self.shared.counters.executing.store(!self.schedule.is_empty(), Ordering::Relaxed);
            let (question, look) = (self.next_question(), self.early_look());
            tokio::select! {
                biased;
                Some((number, answer)) = self.reports.recv() => match answer {
                    Ok(answer) => self.take(number, answer)?,
                    Err(error) => return Err(self.reason(error).await),
                },
                work = queue.recv(), if open && self.has_room() => match work {
                    Some(work) => self.push(work),
                    None => open = false,
                },
                Some(start) = self.starts.recv(), if self.waiting.is_none() => self.waiting = Some(start),
                () = sleep_until(self.patient.front().map(|(_, until)| *until)) => self.lose_patience(),
                () = sleep_until(look) => self.look_at_early(),
                () = tokio::time::sleep_until(question.unwrap_or_else(Instant::now)), if question.is_some() => {
                    self.ask();
                }
            }
        }
        // What it waits for may take long, and what was not begun need not be.
        self.let_early_go();
        self.starts.close();
        for worker in self.sessions {
            drop(worker.orders);
            let mut task = worker.task;
            // Whatever a goodbye meets does not matter any more.
            let _ = (&mut task.0).await;
        }
        Ok(())
    }

    /// A crash of the target ends all sessions, and only to one of them the server says why.
    async fn reason(&mut self, lost: Error) -> Error {
        if !lost.is_unexplained() {
            return lost;
        }
        let explained = async {
            while let Some((_, answer)) = self.reports.recv().await {
                if let Err(error) = answer
                    && !error.is_unexplained()
                {
                    return Some(error);
                }
            }
            None
        };
        tokio::time::timeout(LAST_WORDS, explained).await.ok().flatten().unwrap_or(lost)
    }

    /// A piece that still waits for another keeps no worker from what may pass it.
    fn lose_patience(&mut self) {
        if let Some((number, _)) = self.patient.pop_front()
            && self.schedule.is_waiting(number)
        {
            self.let_worker_go(number);
        }
    }

    fn let_worker_go(&mut self, number: u64) {
        if let Some(piece) = self.pieces.get_mut(&number) {
            piece.busy = None;
        }
    }

    /// What waits in files is as much as one worker may settle.
    fn has_room(&self) -> bool {
        let fits = |most| self.bytes.memory < most && self.bytes.files < FILES_MAX;
        self.schedule.has_room() && (self.pieces.is_empty() || self.bytes_max.is_none_or(fits))
    }

    fn push(&mut self, work: Work) {
        let bytes = work.bytes();
        let (piece, footprint, busy) = match work {
            Work::CaughtUp(lsn) => return self.caught_up(lsn),
            Work::Large(large, footprint) => {
                self.shared.handed(large.digest.last.map_or(large.digest.since, |end| end.commit.end_lsn));
                (Piece::Large(Some(large)), footprint, None)
            }
            Work::Join(join) => (Piece::Alone(Some(Order::Join(join))), Footprint::Everything, None),
            Work::Early(ended) => (Piece::Early(Some(ended)), Footprint::Everything, None),
            Work::Chunk(chunk, busy) => {
                if let Some(end) = &chunk.digest.last {
                    self.shared.handed(end.commit.end_lsn);
                }
                let (piece, footprint) = self.piece(chunk);
                (piece, footprint, busy)
            }
        };
        let manner = if matches!(piece, Piece::Large(_)) { Manner::Large } else { Manner::Set };
        let number = self.schedule.push(footprint, manner);
        // Who waits for a large transaction waits for long, and keeps nobody from being handed more.
        let busy = busy.filter(|_| !self.schedule.is_behind_large(number));
        self.bytes.memory += bytes.memory;
        self.bytes.files += bytes.files;
        if busy.is_some() && self.bytes_max.is_some() {
            self.patient.push_back((number, Instant::now() + PATIENCE));
        }
        self.pieces.insert(number, InFlight { piece, busy, bytes });
    }

    /// Parts of a transaction, and what will not hold as one set, are alone.
    fn piece(&self, chunk: Box<Chunk>) -> (Piece, Footprint) {
        let fits = chunk.digest.transactions <= self.shared.fit().transactions();
        let alone = !(chunk.first && chunk.last && fits) || self.exact_only;
        if alone || !chunk.plan.as_ref().is_some_and(Plan::is_set) {
            return (Piece::Alone(Some(Order::Chunk(chunk))), Footprint::Everything);
        }
        let Chunk { plan, originals, digest, .. } = *chunk;
        // One worker has nothing beside it that could depend on it.
        let footprint = match &plan {
            Some(plan) if self.workers > 1 => plan.footprint(),
            _ => Footprint::Everything,
        };
        (Piece::Set { originals: Some(originals), digest, plan, late: None }, footprint)
    }

    fn act(&mut self, action: Action) -> Result<(), Error> {
        let (number, worker, order) = match action {
            Action::Speculate { number, worker, split } => {
                let (early, later) = self.plan(number)?.split(&split);
                if let Piece::Set { late, .. } = self.piece_of(number) {
                    *late = Some(later);
                }
                (number, worker, Order::Ahead(early))
            }
            Action::Finish { number, worker } => {
                let Piece::Set { late, digest, .. } = self.piece_of(number) else {
                    return Err(Kind::Lost.into());
                };
                (number, worker, Order::Finish(late.take().ok_or(Kind::Lost)?, *digest))
            }
            Action::Whole { number, worker } if matches!(self.piece_of(number), Piece::Large(_)) => {
                (number, worker, self.large(number)?)
            }
            Action::Whole { number, worker } => {
                let plan = self.plan(number)?;
                let Piece::Set { digest, .. } = self.piece_of(number) else { return Err(Kind::Lost.into()) };
                (number, worker, Order::Whole(plan, *digest))
            }
            Action::Replay { number, worker, again } => {
                let Piece::Set { originals, digest, .. } = self.piece_of(number) else {
                    return Err(Kind::Lost.into());
                };
                let originals = originals.take().ok_or(Kind::Lost)?;
                (number, worker, Order::Replay { originals, digest: *digest, again })
            }
            Action::Alone { number, worker } => match self.piece_of(number) {
                Piece::Alone(order) => (number, worker, order.take().ok_or(Kind::Lost)?),
                Piece::Large(_) => (number, worker, self.large(number)?),
                Piece::Early(_) => match self.give_turn(number, worker) {
                    true => return Ok(()),
                    false => (number, worker, self.ended(number)?),
                },
                // It has more keys than are remembered.
                Piece::Set { digest, .. } => {
                    let digest = *digest;
                    (number, worker, Order::Whole(self.plan(number)?, digest))
                }
            },
            Action::Rollback { number, worker } => (number, worker, Order::Rollback),
            Action::Cancel { number, worker } => {
                self.cancel(number, worker);
                return Ok(());
            }
        };
        // A worker that is gone has said why.
        let _ = self.sessions[worker].orders.try_send((number, order));
        Ok(())
    }

    fn piece_of(&mut self, number: u64) -> &mut Piece {
        &mut self.pieces.get_mut(&number).expect("what is in flight").piece
    }

    fn large(&mut self, number: u64) -> Result<Order, Error> {
        let Piece::Large(large) = self.piece_of(number) else { return Err(Kind::Lost.into()) };
        Ok(Order::Large(large.take().ok_or(Kind::Lost)?))
    }

    fn ended(&mut self, number: u64) -> Result<Order, Error> {
        let Piece::Early(ended) = self.piece_of(number) else { return Err(Kind::Lost.into()) };
        Ok(Order::Ended(ended.take().ok_or(Kind::Lost)?))
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

    fn take(&mut self, number: u64, answer: Answer) -> Result<(), Error> {
        match answer {
            Answer::Stumbled => {
                if self.bytes_max.is_some() {
                    self.let_worker_go(number);
                }
                match &mut self.early {
                    Some(early) => {
                        early.stumbled = Some(number);
                        self.let_early_go();
                    }
                    None => self.schedule.stumbled(number),
                }
            }
            Answer::Committed => self.committed(number),
            Answer::Left => return self.early_has_left(),
            Answer::Lost => {
                self.early_session = None;
                return self.early_has_left();
            }
            Answer::EarlyWait(wait) => self.early_is_waited_for(wait),
            ahead => self.take_of_ahead(number, ahead),
        }
        Ok(())
    }

    /// What only those say that are executed before their turn.
    fn take_of_ahead(&mut self, number: u64, answer: Answer) {
        let Some(schedule) = self.schedule.preserve() else { return };
        match answer {
            Answer::Executed => {
                add(&self.shared.counters.ahead, 1);
                schedule.executed(number);
            }
            Answer::Voided => {
                add(&self.shared.counters.ahead_void, 1);
                schedule.voided(number);
            }
            Answer::RolledBack => schedule.rolled_back(number),
            Answer::Cancelled => schedule.cancelled(number),
            Answer::Waits(wait) => {
                self.asking = false;
                let watched = self.watched.as_mut().filter(|watched| watched.head == number);
                if watched.is_some_and(|watched| watched.saw(wait, self.patience)) {
                    tracing::debug!(?wait, "a lock is waited for: what was executed ahead is rolled back");
                    schedule.waits_for_lock(number);
                    self.let_early_go();
                }
            }
            Answer::Stumbled | Answer::Committed | Answer::Left | Answer::Lost | Answer::EarlyWait(_) => {}
        }
    }

    fn committed(&mut self, number: u64) {
        if let Some(InFlight { piece, bytes, .. }) = self.pieces.remove(&number) {
            self.bytes.memory -= bytes.memory;
            self.bytes.files -= bytes.files;
            match piece {
                Piece::Set { digest, .. } => self.shared.done(digest.bytes),
                // Another may have been begun since this one was left to others.
                Piece::Early(_) => drop(self.early.take_if(|early| early.turn.is_some())),
                Piece::Large(_) | Piece::Alone(_) => {}
            }
        }
        self.schedule.committed(number);
        while let Some(&(last, lsn)) = self.positions.front()
            && last <= number
        {
            self.positions.pop_front();
            self.shared.caught_up(lsn);
        }
    }

    /// Nothing of what comes between what was handed over last and `lsn` is for this target.
    fn caught_up(&mut self, lsn: Lsn) {
        match self.pieces.last_key_value() {
            // Where order is not preserved it is known what is still missing before it.
            Some((&last, _)) if self.bytes_max.is_none() => match self.positions.back_mut() {
                Some((number, position)) if *number == last => *position = lsn,
                _ => self.positions.push_back((last, lsn)),
            },
            _ => self.shared.caught_up(lsn),
        }
    }

    /// When the lock watch is to be asked about the head, if others are open.
    fn next_question(&mut self) -> Option<Instant> {
        let (number, _, others) = self.head()?;
        let watched = match self.watched.take() {
            Some(watched) if watched.head == number => watched,
            _ => Watched::new(number),
        };
        let watched = self.watched.insert(watched);
        (others && !self.asking).then_some(watched.next)
    }

    fn ask(&mut self) {
        if let Some((head, worker, _)) = self.head() {
            let pid = self.sessions[worker].pid;
            let ours = self.sessions.iter().map(|worker| worker.pid).filter(|&own| own != pid).collect();
            self.asking = self.questions.send(Question::Head { head, pid, ours }).is_ok();
        }
    }

    /// The head that is being executed, its worker, and whether letting others go could help it.
    fn head(&self) -> Option<(u64, usize, bool)> {
        let (number, worker, others) = self.schedule.head()?;
        Some(match &self.early {
            Some(Early { turn: Some(_), .. }) => (number, self.early_session.unwrap_or(worker), false),
            Some(early) => (number, worker, others || !early.lets_go),
            None => (number, worker, others),
        })
    }

    fn cancel(&self, number: u64, worker: usize) {
        let (canceller, reporter) = (self.sessions[worker].canceller.clone(), self.reporter.clone());
        tokio::spawn(async move {
            let told = canceller.cancel().await;
            let _ = reporter.send((number, told.map(|()| Answer::Cancelled).map_err(Error::from)));
        });
    }
}

/// A worker: one order after another, until there are no more.
async fn work(
    mut executor: Executor,
    canceller: Canceller,
    mut orders: mpsc::Receiver<(u64, Order)>,
    reporter: mpsc::UnboundedSender<Report>,
) -> Result<(), Error> {
    let _farewell = Farewell(reporter.clone());
    loop {
        let order = tokio::select! {
            biased;
            order = orders.recv() => order,
            lost = executor.lost() => {
                let _ = reporter.send((0, Err(lost)));
                break;
            }
        };
        let Some((number, order)) = order else { break };
        let report = match order {
            Order::Early(start) => match streamed::apply(&mut executor, &canceller, start).await {
                Ok(Outcome::Committed(number)) => (number, Ok(Answer::Committed)),
                Ok(Outcome::Left) => (0, Ok(Answer::Left)),
                Ok(Outcome::Lost(error)) => {
                    tracing::warn!("large transactions wait for their commit from now on: {error}");
                    (0, Ok(Answer::Lost))
                }
                Err(error) => (number, Err(error)),
            },
            order => (number, carry_out(&mut executor, order).await),
        };
        let _ = reporter.send(report);
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
    if let Some(since) = order.since() {
        executor.begins_at(since);
    }
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
        Order::Large(large) => {
            executor.apply_large(*large).await?;
            Answer::Committed
        }
        Order::Ended(ended) => {
            streamed::apply_ended(executor, *ended).await?;
            Answer::Committed
        }
        // Not one answer: the worker's own.
        Order::Early(_) => return Err(Kind::Lost.into()),
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

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
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
    while let Some(question) = questions.recv().await {
        let report = match question {
            Question::Head { head, pid, ours } => (head, Answer::Waits(locks.look(pid, &ours).await)),
            Question::Early { pid } => (0, Answer::EarlyWait(locks.waits_for(pid).await)),
        };
        let _ = reporter.send((report.0, Ok(report.1)));
    }
    Ok(())
}
