//! Several sessions that apply chunks, by the rules of the schedule.
//!
//! ```text
//!   planner --Work--> Workers --Command--> worker 0 --> session, origin _0
//!                      |  \--Command--> worker 1 --> session, origin _1
//!                      |  <--WorkerAnswer-- ...
//!                      +-- schedule: what is to be done next
//! ```
//! [`Workers`] keeps the contents of each chunk in flight and carries out the schedule's actions.
//! Each worker is a task with a session that does one thing at a time.
//!
//! The first error ends all of it. Sessions that are dropped roll back, and the fences of the next
//! start find out whether a COMMIT on its way arrived (rule P2).

mod command;
mod in_flight;
mod open;
mod questions;
mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use base::Lsn;
use client::Canceller;
use plan::Plan;
use schedule::{Action, Either, Footprint, Manner, Preserve, Relaxed};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::command::{Command, Report, WorkerAnswer};
use self::in_flight::{Bytes, InFlight, InFlightChunk, OpenTransaction, Set, run_large};
use self::questions::{Question, Watched, watch};
use self::worker::work;
use crate::chunk::{Chunk, Originals};
use crate::counters::add;
use crate::error::{Error, Kind};
use crate::executor::Executor;
use crate::folded_backlog::FILES_MAX;
use crate::lock_watch::LockWatch;
use crate::open_transaction::StreamedStart;
use crate::shared_progress::SharedProgress;
use crate::work::Work;

/// Where independent chunks may pass: how long a chunk that waits for another counts as busy. So a
/// hot row does not make all chunks small.
const PATIENCE: Duration = Duration::from_millis(100);
/// After a crash of the target, how long the other sessions may take to explain it. They end within
/// milliseconds of one another.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// The handle on a worker.
pub(crate) struct WorkerSession {
    commands: mpsc::Sender<(u64, Command)>,
    task: AbortOnDropHandle<Result<(), Error>>,
    canceller: Canceller,
    pid: i32,
}

/// The sessions that apply and the chunks in flight; the module explains it.
pub(crate) struct Workers {
    schedule: Either,
    /// The number of sessions that the schedule uses.
    workers: usize,
    sessions: Vec<WorkerSession>,
    /// Each chunk with the permit that makes a worker busy, until the chunk is done.
    chunks: BTreeMap<u64, InFlight>,
    /// Where order is preserved: positions that are reached when the chunk of that number commits.
    /// They are not chunks, so they delay nothing behind them.
    positions: VecDeque<(u64, Lsn)>,
    /// Where order is not preserved: about how many bytes may be in flight. Otherwise the schedule
    /// takes no more chunks than there are sessions.
    bytes_max: Option<usize>,
    /// Bytes of all chunks in flight, in memory and in files.
    bytes: Bytes,
    /// Chunks and the time until which they count as busy. One that still waits then gives up its
    /// permit.
    patient: VecDeque<(u64, Instant)>,
    /// Streamed transactions that may be executed while they are open.
    starts: mpsc::UnboundedReceiver<StreamedStart>,
    /// A start that waits until no other transaction is open.
    waiting: Option<StreamedStart>,
    open_transaction: Option<OpenTransaction>,
    /// Index of the session for the open transaction, after those of the schedule; `None` without
    /// one.
    open_session: Option<usize>,
    reports: mpsc::UnboundedReceiver<Report>,
    reporter: mpsc::UnboundedSender<Report>,
    questions: mpsc::UnboundedSender<Question>,
    _watching: AbortOnDropHandle<Result<(), Error>>,
    watched: Option<Watched>,
    asking: bool,
    /// The target's `deadlock_timeout`.
    patience: Duration,
    shared: Arc<SharedProgress>,
    applying: Arc<AtomicI32>,
    binary: bool,
    exact_only: bool,
}

/// The parts from which [`Workers`] is made.
pub(crate) struct Parts {
    /// One for each worker, and one more if streamed transactions are executed while they are open.
    pub(crate) executors: Vec<Executor>,
    pub(crate) cancellers: Vec<Canceller>,
    pub(crate) pids: Vec<i32>,
    pub(crate) workers: usize,
    pub(crate) lock_watch: LockWatch,
    pub(crate) shared: Arc<SharedProgress>,
    /// Receives the backend pid of the head's session.
    pub(crate) applying: Arc<AtomicI32>,
    pub(crate) binary: bool,
    pub(crate) exact_only: bool,
    /// `Some` if independent transactions may commit before earlier ones. The value bounds the
    /// bytes in flight, approximately.
    pub(crate) relaxed: Option<usize>,
    pub(crate) starts: mpsc::UnboundedReceiver<StreamedStart>,
}

impl Workers {
    pub(crate) fn new(parts: Parts) -> Workers {
        let (reporter, reports) = mpsc::unbounded_channel();
        let sessions = parts.executors.into_iter().zip(parts.cancellers).zip(parts.pids);
        let worker = |((executor, canceller), pid): ((Executor, Canceller), i32)| {
            let (commands, queue) = mpsc::channel(1);
            let counters = Arc::clone(&parts.shared.counters);
            let working = work(executor, canceller.clone(), queue, reporter.clone());
            let task = tokio::spawn(async move { counters.write_cpu.of(working).await });
            let task = AbortOnDropHandle::new(task);
            WorkerSession { commands, task, canceller, pid }
        };
        let sessions: Vec<WorkerSession> = sessions.map(worker).collect();
        let patience = parts.lock_watch.patience;
        let (questions, asked) = mpsc::unbounded_channel();
        let watching = AbortOnDropHandle::new(tokio::spawn(watch(parts.lock_watch, asked, reporter.clone())));
        Workers {
            schedule: match parts.relaxed {
                None => Either::Preserve(Preserve::new(parts.workers)),
                Some(_) => Either::Relaxed(Relaxed::new(parts.workers)),
            },
            workers: parts.workers,
            open_session: (sessions.len() > parts.workers).then_some(parts.workers),
            sessions,
            chunks: BTreeMap::new(),
            positions: VecDeque::new(),
            bytes_max: parts.relaxed,
            bytes: Bytes::default(),
            patient: VecDeque::new(),
            starts: parts.starts,
            waiting: None,
            open_transaction: None,
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

    /// Applies the work until the queue is closed and every chunk is done.
    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<Work>) -> Result<(), Error> {
        let mut open = true;
        while open || !self.schedule.is_empty() {
            while let Some(action) = self.schedule.poll() {
                self.act(action)?;
            }
            self.begin_open();
            if let Some((_, worker, _)) = self.head() {
                self.applying.store(self.sessions[worker].pid, Ordering::Relaxed);
            }
            // Set it before waiting: the chunk that just came may be done already.
            self.shared.counters.executing.store(!self.schedule.is_empty(), Ordering::Relaxed);
            let (question, look) = (self.next_question(), self.open_look());
            tokio::select! {
                biased;
                Some((number, answer)) = self.reports.recv() => match answer {
                    Ok(answer) => self.take(number, answer),
                    Err(error) => return Err(self.reason(error).await),
                },
                work = queue.recv(), if open && self.has_room() => match work {
                    Some(work) => self.push(work),
                    None => open = false,
                },
                Some(start) = self.starts.recv(), if self.waiting.is_none() => self.waiting = Some(start),
                () = sleep_until(self.patient.front().map(|(_, until)| *until)) => self.lose_patience(),
                () = sleep_until(look) => self.look_at_open(),
                () = tokio::time::sleep_until(question.unwrap_or_else(Instant::now)), if question.is_some() => {
                    self.ask();
                }
            }
        }
        // The open transaction may wait for long, and one that is not begun need not be.
        self.let_open_go();
        self.starts.close();
        for worker in self.sessions {
            drop(worker.commands);
            let mut task = worker.task;
            // An error while a session closes does not matter any more.
            let _ = (&mut task).await;
        }
        Ok(())
    }

    /// Finds the cause of a lost session. A crash of the target ends all sessions, and the server
    /// explains it to only some of them.
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

    /// A chunk that still waits for another gives up its permit, so that other chunks can pass it.
    fn lose_patience(&mut self) {
        if let Some((number, _)) = self.patient.pop_front()
            && self.schedule.is_waiting(number)
        {
            self.let_worker_go(number);
        }
    }

    fn let_worker_go(&mut self, number: u64) {
        if let Some(chunk) = self.chunks.get_mut(&number) {
            chunk.busy = None;
        }
    }

    /// Files in flight may hold as much as one worker's folded backlog.
    fn has_room(&self) -> bool {
        let fits = |most| self.bytes.memory < most && self.bytes.files < FILES_MAX;
        self.schedule.has_room() && (self.chunks.is_empty() || self.bytes_max.is_none_or(fits))
    }

    fn push(&mut self, work: Work) {
        let bytes = Bytes::of(&work);
        let (chunk, footprint, busy) = match work {
            Work::CaughtUp(lsn) => return self.caught_up(lsn),
            Work::Large(large, footprint) => {
                self.shared.handed(large.digest.last.map_or(large.digest.since, |end| end.commit.end_lsn));
                (InFlightChunk::Large(Some(large)), footprint, None)
            }
            Work::Join(join) => {
                (InFlightChunk::Alone(Some(Command::Join(join))), Footprint::Everything, None)
            }
            Work::Ended(ended) => (InFlightChunk::Ended(Some(ended)), Footprint::Everything, None),
            Work::Chunk(chunk, busy) => {
                if let Some(end) = &chunk.digest.last {
                    self.shared.handed(end.commit.end_lsn);
                }
                let (chunk, footprint) = self.taken_in(chunk);
                (chunk, footprint, busy)
            }
        };
        let manner = if matches!(chunk, InFlightChunk::Large(_)) { Manner::Large } else { Manner::Set };
        let number = self.schedule.push(footprint, manner);
        // Behind a large transaction the wait is long, so the planner may hand over more meanwhile.
        let busy = busy.filter(|_| !self.schedule.is_behind_large(number));
        self.bytes.memory += bytes.memory;
        self.bytes.files += bytes.files;
        if busy.is_some() && self.bytes_max.is_some() {
            self.patient.push_back((number, Instant::now() + PATIENCE));
        }
        self.chunks.insert(number, InFlight { chunk, busy, bytes });
    }

    /// Parts of a transaction, and chunks that will not hold as one set, run alone. So do those of
    /// one worker that may meet conflicts: nothing runs beside them anyway, and alone they are not
    /// tried as plain sets first.
    fn taken_in(&self, chunk: Box<Chunk>) -> (InFlightChunk, Footprint) {
        let fits = chunk.digest.transactions <= self.shared.set_size().transactions();
        let tells = self.workers == 1
            && self.shared.expecting.is_likely()
            && chunk.plan.as_ref().is_some_and(Plan::takes_exceptions);
        let alone = !(chunk.first && chunk.last && fits) || self.exact_only || tells;
        if alone || !chunk.plan.as_ref().is_some_and(Plan::is_set) {
            return (InFlightChunk::Alone(Some(Command::Chunk(chunk))), Footprint::Everything);
        }
        let Chunk { plan, originals, digest, .. } = *chunk;
        // With one worker, no other chunk runs beside it, so no footprint is needed.
        let footprint = match &plan {
            Some(plan) if self.workers > 1 => plan.footprint(),
            _ => Footprint::Everything,
        };
        (InFlightChunk::Set { originals: Some(originals), digest, plan, late: None }, footprint)
    }

    fn act(&mut self, action: Action) -> Result<(), Error> {
        let (number, worker, command) = match action {
            Action::Speculate { number, worker, split } => {
                let (now, later) = self.plan(number)?.split(&split);
                *self.set(number).late = Some(later);
                (number, worker, Command::Speculate(now))
            }
            Action::Finish { number, worker } => {
                let Set { late, digest, .. } = self.set(number);
                let late = late.take().expect("a chunk that was executed speculatively has a late part");
                (number, worker, Command::Finish(late, digest))
            }
            Action::Whole { number, worker } => match self.chunk(number) {
                InFlightChunk::Large(large) => (number, worker, run_large(large)),
                _ => (number, worker, self.whole(number)?),
            },
            Action::Replay { number, worker, again } => {
                let Set { originals, digest, .. } = self.set(number);
                let originals = originals.take().expect("a set is replayed once");
                (number, worker, Command::Replay { originals, digest, again })
            }
            Action::Alone { number, worker } => match self.chunk(number) {
                InFlightChunk::Alone(command) => {
                    (number, worker, command.take().expect("a barrier is done once"))
                }
                InFlightChunk::Large(large) => (number, worker, run_large(large)),
                InFlightChunk::Ended(_) => match self.give_turn(number, worker) {
                    true => return Ok(()),
                    false => (number, worker, self.ended(number)),
                },
                // The set has more keys than the schedule remembers.
                InFlightChunk::Set { .. } => (number, worker, self.whole(number)?),
            },
            Action::Rollback { number, worker } => (number, worker, Command::Rollback),
            Action::Cancel { number, worker } => {
                self.cancel(number, worker);
                return Ok(());
            }
        };
        // A worker that has ended has reported its error.
        let _ = self.sessions[worker].commands.try_send((number, command));
        Ok(())
    }

    fn chunk(&mut self, number: u64) -> &mut InFlightChunk {
        &mut self.chunks.get_mut(&number).expect("the schedule names chunks in flight").chunk
    }

    /// The chunk of this number, which is a set: only sets are executed speculatively or replayed.
    fn set(&mut self, number: u64) -> Set<'_> {
        match self.chunk(number) {
            InFlightChunk::Set { originals, digest, plan, late } => {
                Set { originals, digest: *digest, plan, late }
            }
            InFlightChunk::Large(_) | InFlightChunk::Ended(_) | InFlightChunk::Alone(_) => {
                unreachable!("chunk {number} is no set")
            }
        }
    }

    fn whole(&mut self, number: u64) -> Result<Command, Error> {
        let plan = self.plan(number)?;
        Ok(Command::Whole(plan, self.set(number).digest))
    }

    fn ended(&mut self, number: u64) -> Command {
        match self.chunk(number) {
            InFlightChunk::Ended(ended) => Command::Ended(ended.take().expect("it is applied once")),
            _ => unreachable!("chunk {number} is no streamed transaction"),
        }
    }

    /// The plan of a set, made anew if its execution was void.
    fn plan(&mut self, number: u64) -> Result<Plan, Error> {
        let binary = self.binary;
        let Set { originals, plan, late, .. } = self.set(number);
        *late = None;
        if let Some(plan) = plan.take() {
            return Ok(plan);
        }
        let planned = match originals.as_ref().expect("a set that is replayed is not planned again") {
            Originals::Memory(batch) => {
                let mut plan = Plan::new(binary);
                plan.add_all(&batch.changes).ok().map(|()| plan)
            }
            Originals::Disk(spilled) => spilled.plan(binary).map_err(Kind::PutAside)?,
        };
        Ok(planned.expect("what could be planned once can be planned again"))
    }

    fn take(&mut self, number: u64, answer: WorkerAnswer) {
        match answer {
            WorkerAnswer::Stumbled => {
                if self.bytes_max.is_some() {
                    self.let_worker_go(number);
                }
                match &mut self.open_transaction {
                    Some(open) => {
                        open.stumbled = Some(number);
                        self.let_open_go();
                    }
                    None => self.schedule.stumbled(number),
                }
            }
            WorkerAnswer::Committed => self.committed(number),
            WorkerAnswer::Left => self.open_has_left(),
            WorkerAnswer::Lost => {
                self.open_session = None;
                self.open_has_left();
            }
            WorkerAnswer::OpenWait(wait) => self.open_is_waited_for(wait),
            speculative => self.take_of_speculative(number, speculative),
        }
    }

    /// Handles the answer of a chunk that was executed speculatively.
    fn take_of_speculative(&mut self, number: u64, answer: WorkerAnswer) {
        let Some(schedule) = self.schedule.preserve() else { return };
        match answer {
            WorkerAnswer::Executed => {
                add(&self.shared.counters.ahead, 1);
                schedule.executed(number);
            }
            WorkerAnswer::Voided => {
                let too_early = schedule.voided(number);
                add(&self.shared.counters.ahead_void, u64::from(too_early));
            }
            WorkerAnswer::RolledBack => schedule.rolled_back(number),
            WorkerAnswer::Cancelled => schedule.cancelled(number),
            WorkerAnswer::Waits(wait) => {
                self.asking = false;
                let watched = self.watched.as_mut().filter(|watched| watched.head == number);
                if watched.is_some_and(|watched| watched.saw(wait, self.patience)) {
                    tracing::debug!(
                        ?wait,
                        "a lock is waited for: what was executed speculatively is rolled back"
                    );
                    schedule.waits_for_lock(number);
                    self.let_open_go();
                }
            }
            WorkerAnswer::Stumbled
            | WorkerAnswer::Committed
            | WorkerAnswer::Left
            | WorkerAnswer::Lost
            | WorkerAnswer::OpenWait(_) => {}
        }
    }

    fn committed(&mut self, number: u64) {
        if let Some(InFlight { chunk, bytes, .. }) = self.chunks.remove(&number) {
            self.bytes.memory -= bytes.memory;
            self.bytes.files -= bytes.files;
            match chunk {
                InFlightChunk::Set { digest, .. } => self.shared.done(digest.bytes),
                // Another transaction may have been begun since this one was left to other workers.
                InFlightChunk::Ended(_) => drop(self.open_transaction.take_if(|open| open.turn.is_some())),
                InFlightChunk::Large(_) | InFlightChunk::Alone(_) => {}
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

    /// No change between the last handover and `lsn` is for this target.
    fn caught_up(&mut self, lsn: Lsn) {
        match self.chunks.last_key_value() {
            // Where order is not preserved, the committed ranges show what is missing before `lsn`.
            Some((&last, _)) if self.bytes_max.is_none() => match self.positions.back_mut() {
                Some((number, position)) if *number == last => *position = lsn,
                _ => self.positions.push_back((last, lsn)),
            },
            _ => self.shared.caught_up(lsn),
        }
    }

    /// When to ask the lock watch about the head, if other chunks are open.
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
        Some(match &self.open_transaction {
            Some(OpenTransaction { turn: Some(_), .. }) => {
                (number, self.open_session.unwrap_or(worker), false)
            }
            Some(open) => (number, worker, others || !open.lets_go),
            None => (number, worker, others),
        })
    }

    fn cancel(&self, number: u64, worker: usize) {
        let (canceller, reporter) = (self.sessions[worker].canceller.clone(), self.reporter.clone());
        tokio::spawn(async move {
            let told = canceller.cancel().await;
            let _ = reporter.send((number, told.map(|()| WorkerAnswer::Cancelled).map_err(Error::from)));
        });
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
