//! A publisher: its clock, its WAL, and sessions that commit as slowly as they may.
//!
//! Some sessions are apply workers: the publisher subscribes to a third server, and forwards that
//! server's transactions with the times that they got there.

use base::{Lsn, PgTimestamp, Xid};
use deletions::{Doing, Publisher as Id, Session as Seen};
use rand::Rng;
use rand::rngs::StdRng;

use crate::check::{Checker, Update};
use crate::world::{MS, ROWS, SECOND};

const PAGE: u64 = 8192;
const HEADER: u64 = 24;

/// A commit record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) end: u64,
    pub(crate) update: Update,
    pub(crate) row: u64,
}

/// What comes after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Commit,
    Between,
    Prepare,
    Abort,
}

/// Where a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    /// A statement executes, which began then.
    Statement {
        xid: u32,
        begun: i64,
        next: Next,
    },
    /// The client has the word.
    Between {
        xid: u32,
    },
    /// The commit time is taken, the record not written.
    InCommit {
        xid: u32,
        begun: i64,
        update: Update,
    },
    /// The record ends there; it is not flushed, or a standby does not have it.
    Written {
        xid: u32,
        begun: i64,
        end: u64,
    },
    /// COMMIT PREPARED has begun.
    Finishing {
        of: u32,
        begun: i64,
    },
    FinishInCommit {
        of: u32,
        begun: i64,
        update: Update,
    },
    FinishWritten {
        of: u32,
        begun: i64,
        end: u64,
    },
}

#[derive(Debug, Clone, Copy)]
struct Prepared {
    xid: u32,
    /// Nobody will ever commit it.
    is_dormant: bool,
    /// An apply worker prepared it.
    is_forwarded: bool,
    /// Where its record ends.
    end: u64,
}

#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) id: Id,
    /// Of its clock, to the true time.
    pub(crate) offset: i64,
    phases: Vec<Phase>,
    prepared: Vec<Prepared>,
    pub(crate) records: Vec<Record>,
    insert: u64,
    pub(crate) flushed: u64,
    /// What its standby has.
    pub(crate) standby: u64,
    pub(crate) is_standby_up: bool,
    /// Commits wait for the standby.
    is_synchronous: bool,
    next_xid: u32,
    /// One behind the newest transaction that has ended.
    xmax: u32,
    /// The role that asks may see what sessions do.
    pub(crate) can_see: bool,
    /// No session begins anything more.
    pub(crate) is_quiet: bool,
    /// Writers that never come back to their open transaction.
    sleepers: usize,
    /// The last of the sessions are apply workers.
    workers: usize,
    /// The workers wait for the rest of a transaction that the third server never ends.
    has_open_streams: bool,
    /// How far the clock of the standby is ahead.
    standby_ahead: i64,
}

impl Publisher {
    pub(crate) fn new(random: &mut StdRng) -> Publisher {
        let clients = random.random_range(2..7);
        let workers = if random.random_bool(0.5) { random.random_range(1..3) } else { 0 };
        Publisher {
            id: Id { system_id: 1, timeline: 1, is_primary: true },
            offset: random.random_range(-200..200) * MS,
            phases: vec![Phase::Idle; clients + workers],
            prepared: Vec::new(),
            records: Vec::new(),
            insert: PAGE + HEADER,
            flushed: PAGE,
            standby: PAGE,
            is_standby_up: true,
            is_synchronous: random.random_bool(0.4),
            next_xid: 100,
            xmax: 100,
            can_see: random.random_bool(0.85),
            is_quiet: false,
            sleepers: random.random_range(0..clients / 2 + 1),
            workers,
            has_open_streams: random.random_bool(0.5),
            standby_ahead: ahead(random),
        }
    }

    pub(crate) fn sessions(&self) -> usize {
        self.phases.len()
    }

    pub(crate) fn clock(&self, now: i64) -> PgTimestamp {
        PgTimestamp(now + self.offset)
    }

    /// That of its standby.
    pub(crate) fn standby_clock(&self, now: i64) -> PgTimestamp {
        PgTimestamp(self.clock(now).0 + self.standby_ahead)
    }

    fn is_worker(&self, session: usize) -> bool {
        session >= self.phases.len() - self.workers
    }

    /// Its transaction stays open.
    fn is_asleep(&self, session: usize) -> bool {
        session < self.sleepers || self.is_worker(session) && self.has_open_streams
    }

    /// `pg_current_wal_insert_lsn()`.
    pub(crate) fn insert_lsn(&self) -> Lsn {
        Lsn::new(self.insert)
    }

    /// Where its WAL ends, as receivers name it.
    fn end(&self) -> u64 {
        if self.insert % PAGE == HEADER { self.insert - HEADER } else { self.insert }
    }

    pub(crate) fn flush(&mut self) {
        self.flushed = self.end();
    }

    pub(crate) fn replicate(&mut self) {
        if self.is_standby_up {
            self.standby = self.flushed;
        }
    }

    /// Writes a record, which ends where the result says. Some end exactly with a page.
    fn write(&mut self, random: &mut StdRng) -> u64 {
        let end = self.insert + random.random_range(40..400);
        let page = end.next_multiple_of(PAGE);
        self.insert = if random.random_bool(0.3) {
            page + HEADER
        } else if end % PAGE < HEADER {
            end + HEADER
        } else {
            end
        };
        self.end()
    }

    fn xid(&mut self) -> u32 {
        self.next_xid += 1;
        self.next_xid - 1
    }

    /// Goes one step on in a session; returns when the next one is.
    pub(crate) fn step(
        &mut self,
        session: usize,
        now: i64,
        random: &mut StdRng,
        checker: &mut Checker,
    ) -> i64 {
        let clock = now + self.offset;
        checker.clock(PgTimestamp(clock));
        let is_worker = self.is_worker(session);
        let (next, wait) = match self.phases[session] {
            Phase::Idle => self.begin(is_worker, clock, random),
            Phase::Statement { xid, begun, next } => match next {
                Next::Between => (Phase::Between { xid }, random.random_range(1..1500) * MS),
                Next::Commit => (
                    Phase::InCommit { xid, begun, update: take_time(is_worker, clock, random, checker) },
                    commit(random),
                ),
                Next::Abort => {
                    self.ended(xid);
                    (Phase::Idle, pause(random))
                }
                Next::Prepare => {
                    let end = self.write(random);
                    let is_dormant = random.random_bool(0.2);
                    self.prepared.push(Prepared { xid, is_dormant, is_forwarded: is_worker, end });
                    (Phase::Idle, pause(random))
                }
            },
            // Its client never comes back.
            asleep @ Phase::Between { .. } if self.is_asleep(session) => (asleep, SECOND),
            Phase::Between { xid } => {
                let next = match random.random_range(0..10) {
                    0 => Next::Abort,
                    1 => Next::Prepare,
                    2 | 3 => Next::Between,
                    _ => Next::Commit,
                };
                (Phase::Statement { xid, begun: clock, next }, statement(random) / 4)
            }
            Phase::InCommit { xid, begun, update } => {
                let end = self.record(update, random, checker);
                (Phase::Written { xid, begun, end }, 2 * MS)
            }
            Phase::Written { xid, end, .. } if self.is_safe(end) => {
                self.ended(xid);
                (Phase::Idle, pause(random))
            }
            Phase::Finishing { of, begun } => (
                Phase::FinishInCommit { of, begun, update: take_time(is_worker, clock, random, checker) },
                commit(random),
            ),
            Phase::FinishInCommit { of, begun, update } => {
                let end = self.record(update, random, checker);
                (Phase::FinishWritten { of, begun, end }, 2 * MS)
            }
            Phase::FinishWritten { of, end, .. } if self.is_safe(end) => {
                self.prepared.retain(|prepared| prepared.xid != of);
                self.ended(of);
                (Phase::Idle, pause(random))
            }
            waits @ (Phase::Written { .. } | Phase::FinishWritten { .. }) => (waits, 5 * MS),
        };
        self.phases[session] = next;
        now + wait
    }

    /// What an idle session does next.
    fn begin(&mut self, is_worker: bool, clock: i64, random: &mut StdRng) -> (Phase, i64) {
        if self.is_quiet {
            return (Phase::Idle, SECOND);
        }
        let busy: Vec<u32> = self.phases.iter().filter_map(finishes).collect();
        // A worker commits what a worker prepared; a client may commit anything.
        let is_theirs = |of: &&Prepared| of.is_forwarded || !is_worker;
        let free = self.prepared.iter().filter(|of| !of.is_dormant && of.end <= self.flushed);
        let free = free.filter(is_theirs);
        let free = free.map(|of| of.xid).find(|xid| !busy.contains(xid));
        if let Some(of) = free.filter(|_| random.random_bool(0.5)) {
            return (Phase::Finishing { of, begun: clock }, statement(random));
        }
        let next = match random.random_range(0..10) {
            0..5 => Next::Commit,
            5 => Next::Prepare,
            6 => Next::Abort,
            _ => Next::Between,
        };
        (Phase::Statement { xid: self.xid(), begun: clock, next }, statement(random))
    }

    fn record(&mut self, update: Update, random: &mut StdRng, checker: &Checker) -> u64 {
        let end = self.write(random);
        self.records.push(Record { end, update, row: checker.row(update).0 });
        end
    }

    /// A commit may be told to its client.
    fn is_safe(&self, end: u64) -> bool {
        self.flushed >= end && (!self.is_synchronous || self.standby >= end)
    }

    fn ended(&mut self, xid: u32) {
        self.xmax = self.xmax.max(xid + 1);
    }

    /// What `pg_locks` shows. `below_xmax` is what a snapshot would show.
    pub(crate) fn locks(&self, below_xmax: bool) -> Vec<(Xid, Option<u32>)> {
        let of_session = |(pid, phase): (u32, &Phase)| holds(phase).map(|xid| (xid, Some(pid)));
        let sessions = (0..).zip(&self.phases).filter_map(of_session);
        let all = sessions.chain(self.prepared.iter().map(|prepared| (prepared.xid, None)));
        all.filter(|(xid, _)| !below_xmax || *xid < self.xmax).map(|(xid, pid)| (Xid(xid), pid)).collect()
    }

    /// What `pg_stat_activity` shows, and whether it may be a COMMIT PREPARED.
    pub(crate) fn activity(&self) -> Vec<(Seen, bool)> {
        let seen = |(pid, phase): (u32, &Phase)| {
            let doing = match (self.can_see, self.is_worker(pid as usize)) {
                (false, _) => Doing::Unknown,
                (true, true) => Doing::Applying,
                (true, false) => self.doing(phase),
            };
            let may_finish = match doing {
                Doing::Applying => false,
                _ if self.can_see => finishes(phase).is_some(),
                _ => holds(phase).is_none(),
            };
            (Seen { pid, doing }, may_finish)
        };
        (0..).zip(&self.phases).map(seen).collect()
    }

    fn doing(&self, phase: &Phase) -> Doing {
        match *phase {
            Phase::Idle => Doing::Unknown,
            Phase::Between { .. } => Doing::BetweenStatements,
            Phase::Written { end, .. } | Phase::FinishWritten { end, .. }
                if self.is_synchronous && self.flushed >= end && self.standby < end =>
            {
                Doing::WaitingForStandby
            }
            Phase::Statement { begun, .. }
            | Phase::InCommit { begun, .. }
            | Phase::Written { begun, .. }
            | Phase::Finishing { begun, .. }
            | Phase::FinishInCommit { begun, .. }
            | Phase::FinishWritten { begun, .. } => Doing::Statement { begun: PgTimestamp(begun) },
        }
    }

    /// It crashes, and what was not flushed is gone.
    pub(crate) fn crash(&mut self, checker: &mut Checker) {
        self.lose(self.flushed, checker);
    }

    /// Its standby takes its place, with a clock of its own.
    pub(crate) fn fail_over(&mut self, random: &mut StdRng, checker: &mut Checker) {
        self.lose(self.standby, checker);
        self.id.timeline += 1;
        self.offset += self.standby_ahead;
        self.standby_ahead = ahead(random);
        self.is_standby_up = true;
    }

    fn lose(&mut self, end: u64, checker: &mut Checker) {
        for phase in &mut self.phases {
            match phase {
                Phase::InCommit { update, .. } | Phase::FinishInCommit { update, .. } => {
                    checker.gone(*update)
                }
                Phase::FinishWritten { of, end: of_record, .. } if *of_record <= end => {
                    self.prepared.retain(|prepared| prepared.xid != *of);
                }
                _ => {}
            }
            *phase = Phase::Idle;
        }
        let lost = self.records.iter().filter(|record| record.end > end).map(|record| record.update);
        lost.for_each(|update| checker.gone(update));
        self.records.retain(|record| record.end <= end);
        self.prepared.retain(|prepared| prepared.end <= end);
        self.insert = if end.is_multiple_of(PAGE) { end + HEADER } else { end };
        (self.flushed, self.standby) = (end, self.standby.min(end));
        self.xmax = self.next_xid;
    }
}

/// The lock that a session holds.
fn holds(phase: &Phase) -> Option<u32> {
    match phase {
        Phase::Statement { xid, .. }
        | Phase::Between { xid }
        | Phase::InCommit { xid, .. }
        | Phase::Written { xid, .. } => Some(*xid),
        Phase::Idle
        | Phase::Finishing { .. }
        | Phase::FinishInCommit { .. }
        | Phase::FinishWritten { .. } => None,
    }
}

/// The prepared transaction that a session commits.
fn finishes(phase: &Phase) -> Option<u32> {
    match phase {
        Phase::Finishing { of, .. } | Phase::FinishInCommit { of, .. } | Phase::FinishWritten { of, .. } => {
            Some(*of)
        }
        _ => None,
    }
}

/// Takes the time of a commit. A transaction that was forwarded has the third server's time: that
/// of a worker, and that of a client which has set up an origin.
fn take_time(is_worker: bool, clock: i64, random: &mut StdRng, checker: &mut Checker) -> Update {
    let row = random.random_range(0..ROWS);
    let is_forwarded = is_worker || random.random_bool(0.05);
    let back = match is_forwarded {
        // The third server was cut off for a while.
        true if random.random_bool(0.1) => random.random_range(0..20 * SECOND),
        true => random.random_range(-SECOND..5 * SECOND),
        false => 0,
    };
    checker.takes_time(row, PgTimestamp(clock - back), is_forwarded)
}

/// How far a standby's clock is ahead. Rarely it is behind; a failover then voids what was
/// concluded.
fn ahead(random: &mut StdRng) -> i64 {
    let is_behind = random.random_bool(0.1);
    MS * if is_behind { random.random_range(-400..0) } else { random.random_range(0..400) }
}

fn statement(random: &mut StdRng) -> i64 {
    match random.random_range(0..20) {
        0 => random.random_range(0..2500) * MS,
        _ => random.random_range(0..60) * MS,
    }
}

/// From the time taken to the record written.
fn commit(random: &mut StdRng) -> i64 {
    match random.random_range(0..10) {
        0 => random.random_range(0..2000) * MS,
        1 | 2 => random.random_range(0..200) * MS,
        _ => random.random_range(0..MS),
    }
}

fn pause(random: &mut StdRng) -> i64 {
    random.random_range(0..300) * MS
}
