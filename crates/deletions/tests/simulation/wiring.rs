//! What the engine will do: finds out what the horizon asks, over connections that take time.
//!
//! Clock, locks and sessions are read one after the other, and the world goes on in between. The
//! sabotage is here: each kind is an engine that breaks one rule.

use std::time::Duration;

use base::{Lsn, PgTimestamp, Xid};
use deletions::{
    Activity, Ask, By, Candidate, Doing, Holder, Horizon, HorizonEvent as Told, Publisher, Reply, Session,
    Settings, Tombstone,
};
use rand::Rng;

use crate::sabotage::Sabotage;
use crate::world::{Event, MS, World};

/// A step towards an answer, with the number of the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Timer,
    Clock(u64),
    Locks(u64, bool),
    Sessions(u64, bool),
    Activity(u64),
    Position(u64),
    Told(u64),
}

pub(crate) struct Wiring {
    pub(crate) horizon: Horizon,
    /// Counts connections to the publisher, and processes of ours.
    pub(crate) connection: u64,
    asked: Option<u64>,
    timer: Option<Duration>,
    publisher: Option<Publisher>,
    clock: PgTimestamp,
    locks: Vec<(Xid, Option<u32>)>,
    sessions: Vec<(Session, bool)>,
    position: Lsn,
    /// The connection ends at the publisher's standby.
    pub(crate) is_on_standby: bool,
    /// Of sabotage: the greatest clock that was read.
    greatest_clock: PgTimestamp,
    /// Of sabotage: what was read too early.
    early_position: Lsn,
}

fn horizon(duration_max: Option<Duration>, now: i64) -> Horizon {
    let settings = Settings {
        status_interval: Duration::from_secs(10),
        duration_max,
        interval: None,
        segment_size: 16 << 20,
    };
    Horizon::new(&settings, moment(now))
}

fn moment(now: i64) -> Duration {
    Duration::from_micros(now.unsigned_abs())
}

impl Wiring {
    pub(crate) fn new(duration_max: Option<Duration>, now: i64) -> Wiring {
        Wiring {
            horizon: horizon(duration_max, now),
            connection: 0,
            asked: None,
            timer: None,
            publisher: None,
            clock: PgTimestamp(0),
            locks: Vec::new(),
            sessions: Vec::new(),
            position: Lsn::INVALID,
            is_on_standby: false,
            greatest_clock: PgTimestamp(i64::MIN),
            early_position: Lsn::INVALID,
        }
    }

    pub(crate) fn restart(&mut self, duration_max: Option<Duration>, now: i64) {
        let (connection, is_on_standby) = (self.connection + 1, self.is_on_standby);
        *self = Wiring { connection, is_on_standby, ..Wiring::new(duration_max, now) };
    }
}

impl World {
    pub(crate) fn tell(&mut self, event: Told) {
        if let Some(to) = self.wiring.horizon.tell(event, moment(self.now)) {
            self.moves(to);
        }
    }

    fn moves(&mut self, to: Candidate) {
        self.checker.moves(to);
        self.memory.advance(to);
    }

    /// Tells what all pipelines have flushed.
    pub(crate) fn told_flushed(&mut self) {
        let known = self.pipelines.iter().filter(|pipeline| pipeline.is_known);
        let is_applied_enough = self.is(Sabotage::AppliedForFlushed);
        let are_gaps_ignored = self.is(Sabotage::GapsIgnored);
        let flushed = |pipeline: &crate::target::Pipeline| match is_applied_enough {
            true => pipeline.applied,
            // What is durable, whatever is missing before it.
            false if are_gaps_ignored => pipeline.flushed_last(),
            false => pipeline.flushed,
        };
        let Some(least) = known.map(flushed).min() else { return };
        let is_joining = self.is_joining && !self.is(Sabotage::JoiningNotTold);
        self.tell(Told::Flushed { lsn: Lsn::new(least), is_joining });
    }

    /// Does what the horizon asks, unless it is being done.
    pub(crate) fn drive(&mut self) {
        if self.is(Sabotage::AppliedForFlushed) {
            self.told_flushed();
        }
        let question = self.wiring.horizon.question();
        if let Ask::Wait(until) = question.ask {
            if self.wiring.timer != Some(until) {
                self.wiring.timer = Some(until);
                let time = i64::try_from(until.as_micros()).unwrap();
                self.at(time, Event::Machine(self.wiring.connection, Step::Timer));
            }
            return;
        }
        if self.wiring.asked == Some(question.number) {
            return;
        }
        self.wiring.asked = Some(question.number);
        match question.ask {
            Ask::Candidate => {
                let candidate = self.candidate();
                if candidate.is_some() {
                    self.checker.begins_round();
                }
                let reply = Reply::Candidate(candidate);
                self.wiring.horizon.answer(question.number, reply, moment(self.now));
                self.drive();
            }
            Ask::Activity => self.ask_activity(question.number),
            Ask::Position => self.soon(Step::Position(question.number)),
            Ask::Wait(_) | Ask::Flushed(_) => {}
        }
    }

    fn candidate(&self) -> Option<Candidate> {
        let candidate = self.memory.candidate()?;
        let up_to = |(_, tombstone): &&(u64, Tombstone)| tombstone.lsn <= candidate.lsn;
        let time = match self.sabotage {
            Some(Sabotage::LastTime) => {
                let last = self.target.deletions.iter().rfind(up_to);
                last.map_or(candidate.time, |(_, tombstone)| tombstone.time)
            }
            Some(Sabotage::ClockOfTarget) => self.target.clock(self.now),
            _ => candidate.time,
        };
        Some(Candidate { time, ..candidate })
    }

    fn ask_activity(&mut self, number: u64) {
        let locks_first = self.random.random_bool(0.5);
        let first = if locks_first { Step::Locks(number, false) } else { Step::Sessions(number, false) };
        let is_early = self.is(Sabotage::LocksBeforeClock);
        self.soon(if is_early { first } else { Step::Clock(number) });
    }

    fn soon(&mut self, step: Step) {
        let delay = match self.random.random_range(0..10) {
            0 => self.random.random_range(0..300 * MS),
            _ => self.random.random_range(0..3 * MS),
        };
        self.after(delay, Event::Machine(self.wiring.connection, step));
    }

    pub(crate) fn machine(&mut self, connection: u64, step: Step) {
        if step == Step::Timer {
            self.wiring.timer = None;
            self.tell(Told::Timer);
            return;
        }
        // A connection that is lost gives no answer: the question is asked again on the next one.
        if connection != self.wiring.connection {
            let number = self.wiring.horizon.question().number;
            self.wiring.asked = self.wiring.asked.filter(|asked| *asked != number);
            return;
        }
        let is_early = self.is(Sabotage::LocksBeforeClock);
        match step {
            Step::Timer => {}
            Step::Clock(number) => {
                self.read_clock();
                let locks_first = self.random.random_bool(0.5);
                self.soon(match is_early {
                    true => Step::Activity(number),
                    false if locks_first => Step::Locks(number, false),
                    false => Step::Sessions(number, false),
                });
            }
            Step::Locks(number, is_second) => {
                let below_xmax = self.is(Sabotage::SnapshotForLocks);
                self.wiring.locks = match self.is(Sabotage::LocksOfStandby) {
                    true => Vec::new(),
                    false => self.publisher.locks(below_xmax),
                };
                let last = if is_early { Step::Clock(number) } else { Step::Activity(number) };
                self.soon(if is_second { last } else { Step::Sessions(number, true) });
            }
            Step::Sessions(number, is_second) => {
                if !self.is(Sabotage::SessionsBeforeClock) {
                    self.wiring.sessions = self.publisher.activity();
                }
                let last = if is_early { Step::Clock(number) } else { Step::Activity(number) };
                self.soon(if is_second { last } else { Step::Locks(number, true) });
            }
            Step::Activity(number) => {
                let activity = self.seen();
                self.wiring.horizon.answer(number, Reply::Activity(&activity), moment(self.now));
            }
            Step::Position(number) => {
                self.read_position();
                self.soon(Step::Told(number));
            }
            Step::Told(number) => {
                let publisher = self.wiring.publisher.unwrap_or(self.publisher.id);
                let reply = Reply::Position { publisher, insert_lsn: self.wiring.position };
                self.wiring.horizon.answer(number, reply, moment(self.now));
            }
        }
    }

    /// Who answers; an engine that does not notice a failover says that it is the same as ever.
    fn who(&self) -> Publisher {
        let timeline = if self.is(Sabotage::LossNotTold) { 1 } else { self.publisher.id.timeline };
        Publisher { timeline, is_primary: !self.wiring.is_on_standby, ..self.publisher.id }
    }

    fn read_clock(&mut self) {
        let clock = self.publisher.clock(self.now);
        let standby_clock = self.publisher.standby_clock(self.now);
        if !self.wiring.is_on_standby {
            self.checker.reads(clock);
        }
        self.wiring.greatest_clock = self.wiring.greatest_clock.max(clock);
        self.wiring.clock = match self.sabotage {
            Some(Sabotage::ClockNotAwaited) => PgTimestamp(i64::MAX),
            Some(Sabotage::ClockNeverBack) => self.wiring.greatest_clock,
            Some(Sabotage::ClockOfStandby) => standby_clock,
            _ if self.wiring.is_on_standby => standby_clock,
            _ => clock,
        };
        self.wiring.publisher = Some(self.who());
        if self.is(Sabotage::SessionsBeforeClock) {
            // The answer's clock is later than its sessions.
            self.wiring.sessions.is_empty().then(|| self.wiring.sessions = self.publisher.activity());
        }
        self.wiring.early_position = self.publisher.insert_lsn();
    }

    fn read_position(&mut self) {
        let insert = self.publisher.insert_lsn();
        self.wiring.publisher = Some(self.who());
        self.wiring.position = match self.sabotage {
            Some(Sabotage::PositionEarly) => self.wiring.early_position,
            Some(Sabotage::PositionOfStandby) => Lsn::new(self.publisher.standby),
            // Behind the end of the last record.
            Some(Sabotage::PositionNotNormal) => Lsn::new(insert.as_u64() + 8),
            _ => insert,
        };
    }

    /// Puts the answer together.
    fn seen(&mut self) -> Activity {
        let sabotage = self.sabotage;
        let clock = self.wiring.clock;
        let doing = |doing: Doing| match (sabotage, doing) {
            (Some(Sabotage::StatementsAreNew), Doing::Statement { .. }) => Doing::Statement { begun: clock },
            (Some(Sabotage::StandbyWaitsAreCommits), Doing::WaitingForStandby)
            | (Some(Sabotage::SleepersAreCommits), Doing::BetweenStatements)
            | (Some(Sabotage::WorkersAreCommits), Doing::Applying) => Doing::Unknown,
            (_, doing) => doing,
        };
        let sessions = std::mem::take(&mut self.wiring.sessions);
        let of = |pid: u32| sessions.iter().map(|(session, _)| *session).find(|session| session.pid == pid);
        let holders = self.wiring.locks.iter().map(|(xid, pid)| {
            let session = pid.map(|pid| of(pid).unwrap_or(Session { pid, doing: Doing::Unknown }));
            let by = session.map_or(By::Prepared, |session| {
                By::Session(Session { doing: doing(session.doing), ..session })
            });
            Holder { xid: *xid, by }
        });
        let mut finishers: Vec<Session> =
            sessions.iter().filter(|(_, may_finish)| *may_finish).map(|(session, _)| *session).collect();
        match sabotage {
            Some(Sabotage::FinishersIgnored) => finishers.clear(),
            Some(Sabotage::WorkersMayFinish) => {
                let workers = sessions.iter().filter(|(session, _)| session.doing == Doing::Applying);
                finishers.extend(workers.map(|(worker, _)| Session { doing: Doing::Unknown, ..*worker }));
            }
            Some(Sabotage::DormantAreCommits) => finishers.push(Session { pid: 999, doing: Doing::Unknown }),
            _ => {}
        }
        let holders = holders.collect();
        let publisher = self.wiring.publisher.unwrap_or(self.publisher.id);
        if sabotage == Some(Sabotage::SessionsBeforeClock) {
            // For the next answer.
            self.wiring.sessions = self.publisher.activity();
        }
        Activity { publisher, clock, holders, finishers }
    }
}
