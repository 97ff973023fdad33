//! When deletions can be forgotten: once every UPDATE that may need them is applied.
//!
//! An UPDATE needs a deletion only if it is older than that, by the time of its commit. So let `L`
//! be a position that capture has come to, and `t` the greatest time of a deletion up to there. The
//! deletions up to `L` can go when every update with a time up to `t` is durable on the target. The
//! publisher does not say when that is; the horizon finds out in steps.
//!
//! ```text
//!        nothing to forget: the interval doubles
//!                 .-------.
//!                 v       |
//!      .------> Idle -----' timer: Candidate
//!      |          |
//!      |          | candidate: L and t
//!      |          v        clock <= t: pause, and ask again
//!      |        Clock <----.------------------------.
//!      |          |  '-----'                        |
//!      |          | clock > t: F := transactions    | clock <= t: it was set back
//!      |          |        that may be in commit    |
//!      |          v        some left, not all: pause, and ask again
//!      |      Committing <-.
//!      |          |  |  '--'
//!      |          |  '------------------------------'
//!      |          | all of F have left
//!      |          v
//!      |       Position
//!      |          | W := where the publisher's WAL ends
//!      |          v
//!      |       Applied
//!      |          | every pipeline has flushed W, and no table is joining
//!      '----------' the horizon is L
//!
//! any state ---> Idle: reconnected, another timeline, a new pipeline, a table that joins
//! ```
//!
//! Why every update U with a time up to `t` is durable then. U took its time before the publisher's
//! clock was past `t`, and so before F was read.
//!
//! - If U's commit record was in WAL when `W` was read, it is before `W`, and is flushed.
//! - If it was not, U was in commit when F was read: its time was taken, its record not written,
//!   and the lock on its id held. So it was in F. It left F before `W` was read. A transaction
//!   leaves when it has ended or waits for a standby; then its record is in WAL. It also leaves
//!   when it is seen to do something else; then it was not in commit, and its time will be later
//!   than `t`. Either contradicts that U is in commit with a time up to `t`.
//!
//! The claim needs a clock that does not go back, and says nothing about updates that were
//! forwarded from a third server with a time of that. [`crate::Answer::NotSeen`] tells these. A
//! clock that is seen to be set back begins the wait anew, so only steps that are over between two
//! questions void the claim.
//!
//! | hazard | remedy |
//! | --- | --- |
//! | a transaction runs whose id is at or above a snapshot's `xmax` | locks are read, no snapshot |
//! | a synchronous standby is away, and commits wait for it | their records are in WAL: they leave F |
//! | a writer sits idle in its transaction | it was seen outside of its commit: it leaves F |
//! | an apply worker of the publisher has a transaction open | it is forwarded: it is not in F |
//! | a prepared transaction sleeps | it is in F only while a COMMIT PREPARED runs that began before |
//! | an idle publisher's WAL "ends" behind a header not yet written | `W` is the last record's end |
//! | the target crashes and applies U again | flushed counts, not applied |
//! | the publisher fails over, and `W` is past the fork | the candidate is dropped |
//! | the publisher is a standby | every step asks its primary; another's answer is not taken |
//! | an answer comes late | it has the number of its question, and others are not taken |
//!
//! The horizon does no I/O and reads no clock. [`Horizon::question`] says what it wants to know,
//! the caller finds out and [answers](Horizon::answer), or [tells](Horizon::tell) what happens.

use std::time::Duration;

use base::{Lsn, PgTimestamp, Xid};

use crate::coverage::Candidate;
use crate::interval::Interval;
use crate::publisher::{Activity, InCommit, Publisher};

/// The shortest and longest pause between two questions about the publisher's activity. A
/// transaction leaves its commit within milliseconds as a rule.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// `XLOG_BLCKSZ`, and the lengths of a page's header. The long one begins a segment.
const PAGE_BYTES: u64 = 8192;
const SHORT_HEADER_BYTES: u64 = 24;
const LONG_HEADER_BYTES: u64 = 40;

/// A time on the caller's clock, which only goes forward: since any beginning.
pub type Moment = Duration;

/// What a horizon needs to know once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// `wal_receiver_status_interval`; zero for never.
    pub status_interval: Duration,
    /// `max_retention_duration`, if that is set.
    pub duration_max: Option<Duration>,
    /// `retention_interval`, if that is set.
    pub interval: Option<Duration>,
    /// `wal_segment_size` of the publisher, in bytes.
    pub segment_size: u64,
}

/// What the horizon wants to know now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Goes back with the answer.
    pub number: u64,
    /// What to find out.
    pub ask: Ask,
}

/// What to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Nothing before that time: [`HorizonEvent::Timer`].
    Wait(Moment),
    /// How far the memory could forget: [`Reply::Candidate`].
    Candidate,
    /// What happens on the publisher's primary: [`Reply::Activity`].
    Activity,
    /// `pg_current_wal_insert_lsn()` on the publisher's primary: [`Reply::Position`].
    Position,
    /// Nothing: [`HorizonEvent::Flushed`] whenever the target has flushed more, at least up to
    /// there.
    Flushed(Lsn),
}

/// The answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// [`crate::Memory::candidate`].
    Candidate(Option<Candidate>),
    /// Read after the question was asked: the clock first, then the rest.
    Activity(&'a Activity),
    /// Read after the question was asked.
    Position {
        /// Who says so.
        publisher: Publisher,
        /// Where the next record may start.
        insert_lsn: Lsn,
    },
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HorizonEvent {
    /// The time of [`Ask::Wait`] has come.
    Timer,
    /// A deletion was captured.
    Deletion,
    /// What the target has of the publisher's WAL.
    Flushed {
        /// Every pipeline's target has flushed everything up to there. With `commit_order =
        /// relaxed` that is the prefix without gaps.
        lsn: Lsn,
        /// Changes of a table wait for its copy.
        is_joining: bool,
    },
    /// What was found out about the publisher may not hold any more.
    Dropped(Dropped),
}

/// Why a candidate is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// The connection to the publisher was lost: it may be another server, or have crashed.
    Reconnected,
    /// The publisher is on another timeline: positions may be past the fork.
    Timeline,
    /// A pipeline was added, whose position may be behind.
    NewPipeline,
    /// A table was added: changes that others have behind them will be applied to it.
    NewTable,
}

/// What keeps the horizon where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing: it looks again at that time.
    UntilLooking(Moment),
    /// The publisher's clock is behind the time of the last deletion by so much, when it was last
    /// asked.
    Clock(Option<Duration>),
    /// These transactions may be in commit on the publisher.
    Transactions(Vec<Xid>),
    /// The publisher has not said where its WAL ends.
    Position,
    /// The target has not flushed everything up to there, or a table is joining.
    Flush(Lsn),
}

/// What became of candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// The horizon has moved.
    pub advanced: u64,
    /// Candidates that were dropped.
    pub dropped: u64,
    /// The publisher's clock had not passed the time of a deletion.
    pub clock_waits: u64,
    /// The publisher's clock was seen to have been set back. The claim is void then.
    pub clock_steps: u64,
    /// Answers of a server that is no primary.
    pub not_primary: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Idle { due: Moment },
    Candidate,
    Clock { of: Candidate, behind: Option<Duration> },
    Committing { of: Candidate, publisher: Publisher, in_commit: InCommit },
    Position { of: Candidate, publisher: Publisher },
    Applied { of: Candidate, until: Lsn },
}

/// See the module.
#[derive(Debug)]
pub struct Horizon {
    segment_size: u64,
    interval: Interval,
    state: State,
    /// The present question.
    number: u64,
    /// No question about activity before that time.
    pause_until: Option<Moment>,
    pause: Duration,
    /// The publisher's clock, when it was last seen.
    clock: Option<(Publisher, PgTimestamp)>,
    progress: Progress,
}

impl Horizon {
    /// A horizon that first looks for something to forget after 100 ms.
    #[must_use]
    pub fn new(settings: &Settings, now: Moment) -> Horizon {
        let interval = Interval::new(settings.status_interval, settings.duration_max, settings.interval);
        Horizon {
            segment_size: settings.segment_size,
            interval,
            state: State::Idle { due: now + interval.current() },
            number: 0,
            pause_until: None,
            pause: PAUSE_MIN,
            clock: None,
            progress: Progress::default(),
        }
    }

    /// What the horizon wants to know now.
    #[must_use]
    pub fn question(&self) -> Question {
        let ask = match &self.state {
            State::Idle { due } => Ask::Wait(*due),
            State::Candidate => Ask::Candidate,
            State::Clock { .. } | State::Committing { .. } => {
                self.pause_until.map_or(Ask::Activity, Ask::Wait)
            }
            State::Position { .. } => Ask::Position,
            State::Applied { until, .. } => Ask::Flushed(*until),
        };
        Question { number: self.number, ask }
    }

    /// Takes the answer to the question of that number. An answer to an earlier one is not taken.
    pub fn answer(&mut self, number: u64, reply: Reply<'_>, now: Moment) {
        if number != self.number {
            return;
        }
        match (reply, &self.state) {
            (Reply::Candidate(candidate), State::Candidate) => self.candidate(candidate, now),
            (Reply::Activity(activity), State::Clock { .. } | State::Committing { .. }) => {
                self.activity(activity, now);
            }
            (Reply::Position { publisher, insert_lsn }, State::Position { of, publisher: before }) => {
                let (of, is_same) = (*of, publisher == *before);
                if is_same {
                    self.enter(State::Applied { of, until: end_of_record(insert_lsn, self.segment_size) });
                } else {
                    self.drop_candidate(now);
                }
            }
            _ => {}
        }
    }

    /// Takes note of what happened. If the horizon may move, returns to where: that is for
    /// [`crate::Memory::advance`].
    pub fn tell(&mut self, event: HorizonEvent, now: Moment) -> Option<Candidate> {
        match event {
            HorizonEvent::Timer => self.timer(now),
            HorizonEvent::Deletion => {
                self.interval.found_deletion();
                if let State::Idle { due } = &mut self.state {
                    *due = (*due).min(now + self.interval.current());
                }
            }
            HorizonEvent::Flushed { lsn, is_joining } => {
                if let State::Applied { of, until } = &self.state
                    && lsn >= *until
                    && !is_joining
                {
                    let of = *of;
                    self.progress.advanced += 1;
                    self.idle(now);
                    return Some(of);
                }
            }
            HorizonEvent::Dropped(_) => self.drop_candidate(now),
        }
        None
    }

    /// What keeps the horizon where it is.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        match &self.state {
            State::Idle { due } => Waiting::UntilLooking(*due),
            State::Candidate => Waiting::UntilLooking(Moment::ZERO),
            State::Clock { behind, .. } => Waiting::Clock(*behind),
            State::Committing { in_commit, .. } => Waiting::Transactions(in_commit.xids().collect()),
            State::Position { .. } => Waiting::Position,
            State::Applied { until, .. } => Waiting::Flush(*until),
        }
    }

    /// What became of candidates.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.number += 1;
        self.pause_until = None;
        self.pause = PAUSE_MIN;
    }

    fn idle(&mut self, now: Moment) {
        self.enter(State::Idle { due: now + self.interval.current() });
    }

    fn drop_candidate(&mut self, now: Moment) {
        if !matches!(self.state, State::Idle { .. } | State::Candidate) {
            self.progress.dropped += 1;
            self.idle(now);
        }
    }

    fn timer(&mut self, now: Moment) {
        match &self.state {
            State::Idle { due } if now >= *due => self.enter(State::Candidate),
            State::Clock { .. } | State::Committing { .. }
                if self.pause_until.is_some_and(|until| now >= until) =>
            {
                self.pause_until = None;
                self.number += 1;
            }
            _ => {}
        }
    }

    fn candidate(&mut self, candidate: Option<Candidate>, now: Moment) {
        match candidate {
            Some(of) => {
                self.interval.found_deletion();
                self.enter(State::Clock { of, behind: None });
            }
            None => {
                self.interval.found_nothing();
                self.idle(now);
            }
        }
    }

    /// The same question again, after a while.
    fn ask_again(&mut self, pause: Duration, now: Moment) {
        self.pause_until = Some(now + pause);
        self.number += 1;
    }

    fn activity(&mut self, activity: &Activity, now: Moment) {
        if !activity.publisher.is_primary {
            self.progress.not_primary += 1;
            return self.ask_again(PAUSE_MAX, now);
        }
        let before = self.clock.replace((activity.publisher, activity.clock));
        if before.is_some_and(|(publisher, clock)| publisher == activity.publisher && clock > activity.clock)
        {
            self.progress.clock_steps += 1;
        }
        match &mut self.state {
            State::Clock { of, .. } => {
                let of = *of;
                self.clock(of, activity, now);
            }
            State::Committing { publisher, .. } if *publisher != activity.publisher => {
                self.drop_candidate(now)
            }
            State::Committing { of, .. } if activity.clock <= of.time => {
                // Others may have taken a time up to `t` since.
                let of = *of;
                self.enter(State::Clock { of, behind: None });
                self.clock(of, activity, now);
            }
            State::Committing { of, publisher, in_commit } => {
                in_commit.leave(activity);
                if in_commit.is_empty() {
                    let (of, publisher) = (*of, *publisher);
                    self.enter(State::Position { of, publisher });
                } else {
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                    self.ask_again(self.pause, now);
                }
            }
            _ => {}
        }
    }

    /// Whether the publisher's clock has passed the candidate's time, and who was in commit then.
    fn clock(&mut self, of: Candidate, activity: &Activity, now: Moment) {
        let Activity { publisher, clock, .. } = *activity;
        if clock <= of.time {
            let micros = of.time.0.saturating_sub(clock.0).saturating_add(1);
            let behind = Duration::from_micros(micros.unsigned_abs());
            self.progress.clock_waits += 1;
            self.state = State::Clock { of, behind: Some(behind) };
            return self.ask_again(behind.clamp(PAUSE_MIN, PAUSE_MAX), now);
        }
        let in_commit = InCommit::new(activity, of.time);
        if in_commit.is_empty() {
            return self.enter(State::Position { of, publisher });
        }
        self.enter(State::Committing { of, publisher, in_commit });
        self.ask_again(PAUSE_MIN, now);
    }
}

/// Where the record before `lsn` ends. A server whose WAL ends with a page names the place behind
/// the next page's header, which nothing reaches before the next record is written.
fn end_of_record(lsn: Lsn, segment_size: u64) -> Lsn {
    let position = lsn.as_u64();
    let header = match position {
        _ if position % segment_size == LONG_HEADER_BYTES => LONG_HEADER_BYTES,
        _ if position % PAGE_BYTES == SHORT_HEADER_BYTES => SHORT_HEADER_BYTES,
        _ => 0,
    };
    Lsn::new(position - header)
}

#[cfg(test)]
mod tests;
