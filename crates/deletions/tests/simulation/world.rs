//! Everything that happens, one event after the other, from one seed.
//!
//! A round is wild at first: crashes, failovers, clocks that step, tables that join. Then it is
//! calm: everybody makes progress, except for sessions that never wake up. At last nobody writes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use base::{Lsn, Oid, PgTimestamp};
use deletions::{
    Answer, Bounds, Deletion, Dropped, Equality, HorizonEvent as Told, Identity, Memory, Miss, Opened,
    RowKey, Server, Value,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::check::{Checker, Excuse};
use crate::disk::SimDisks;
use crate::publisher::{Publisher, Record};
use crate::sabotage::Sabotage;
use crate::target::{Pipeline, Target, is_copied};
use crate::wiring::Wiring;

pub(crate) const MS: i64 = 1000;
pub(crate) const SECOND: i64 = 1000 * MS;
pub(crate) const ROWS: u64 = 24;

const WILD: i64 = 25 * SECOND;
const CALM: i64 = 40 * SECOND;
const QUIET: i64 = 30 * SECOND;
/// A deletion is forgotten within this time while everybody makes progress: two rounds of the
/// machine, each with the longest statement, commit and difference of clocks.
const STALL_MAX: i64 = 25 * SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Session(usize),
    PublisherFlushes,
    StandbyFollows,
    StandbyGoesOrComes,
    Delete,
    TargetFlushes,
    Capture,
    Commit,
    Receive(usize),
    Apply(usize),
    /// What was left is applied.
    ApplyLate(usize),
    Flush(usize),
    JoinBegins,
    JoinEnds,
    PipelineComes,
    PipelineIsKnown,
    PublisherCrashes,
    FailOver,
    TargetCrashes,
    ProcessCrashes,
    ClockSteps,
    /// The WAL is gone that capture would have read next.
    CaptureLosesWal,
    /// The connection to the publisher ends at its standby, or at the primary again.
    AsksStandby,
    AsksPrimary,
    /// Of the machine; with the number of the connection that it asks on.
    Machine(u64, crate::wiring::Step),
}

pub(crate) struct World {
    pub(crate) now: i64,
    pub(crate) random: StdRng,
    queue: BinaryHeap<Reverse<(i64, u64, Event)>>,
    sequence: u64,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) publisher: Publisher,
    pub(crate) target: Target,
    pub(crate) pipelines: Vec<Pipeline>,
    pub(crate) memory: Memory,
    disks: SimDisks,
    bounds: Bounds,
    pub(crate) wiring: Wiring,
    pub(crate) checker: Checker,
    pub(crate) is_joining: bool,
    /// The publisher may fail over, so that nothing is applied that its standby does not have.
    has_failovers: bool,
    /// The target's WAL up to here is gone for capture.
    lost_up_to: Lsn,
    /// Records that were given to pipelines.
    routed: usize,
    is_wild: bool,
}

fn server() -> Server {
    Server {
        system_id: 2,
        database: Oid(5),
        timeline: 1,
        timeline_start: Lsn::INVALID,
        wal_end: Lsn::new(u64::MAX >> 1),
        clock: PgTimestamp(i64::MAX >> 1),
    }
}

fn key(row: u64) -> RowKey {
    let mut key = RowKey::default();
    let identity = Identity::new(vec![Equality::Integer(8)], false);
    identity.write(Oid(16_400), [Value::Text(row.to_string().as_bytes())], &mut key).unwrap();
    key
}

impl World {
    pub(crate) fn new(seed: u64, sabotage: Option<Sabotage>) -> World {
        let mut random = StdRng::seed_from_u64(seed);
        let disks = SimDisks::default();
        let duration_max =
            random.random_bool(0.2).then(|| Duration::from_millis(random.random_range(200..5000)));
        let bounds = Bounds { duration_max, size_bytes_max: None };
        let (memory, _) = Memory::open_on(disks.disks(), server(), bounds).unwrap();
        let (publisher, target) = (Publisher::new(&mut random), Target::new(&mut random));
        let parts = random.random_range(1..3);
        let is_relaxed = random.random_bool(0.5);
        let pipelines = vec![Pipeline::new((0, parts), publisher.flushed, true, is_relaxed)];
        let has_failovers = random.random_bool(0.5);
        let mut world = World {
            now: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            sabotage,
            publisher,
            target,
            pipelines,
            memory,
            disks,
            bounds,
            wiring: Wiring::new(bounds.duration_max, 0),
            checker: Checker::new(duration_max.is_some()),
            is_joining: false,
            has_failovers,
            lost_up_to: Lsn::INVALID,
            routed: 0,
            is_wild: true,
            random,
        };
        let from = world.target.flush();
        world.captures_from(from);
        world.start(parts > 1);
        world
    }

    fn start(&mut self, has_second_pipeline: bool) {
        (0..self.publisher.sessions()).for_each(|session| self.after(MS, Event::Session(session)));
        use Event::{
            Apply, ApplyLate, Capture, Commit, Delete, Flush, PublisherFlushes, Receive, StandbyFollows,
            TargetFlushes,
        };
        for event in [
            PublisherFlushes,
            StandbyFollows,
            Delete,
            TargetFlushes,
            Capture,
            Commit,
            Receive(0),
            Apply(0),
            ApplyLate(0),
            Flush(0),
        ] {
            self.after(MS, event);
        }
        let rare = [
            (Event::StandbyGoesOrComes, 4),
            (Event::JoinBegins, 8),
            (Event::PublisherCrashes, 12),
            (Event::TargetCrashes, 6),
            (Event::ProcessCrashes, 10),
            (Event::ClockSteps, 6),
            (Event::CaptureLosesWal, 20),
            (Event::AsksStandby, 12),
        ];
        for (event, seconds) in rare {
            self.within(seconds, event);
        }
        if self.has_failovers {
            self.within(15, Event::FailOver);
        }
        if has_second_pipeline {
            self.within(20, Event::PipelineComes);
        }
    }

    pub(crate) fn after(&mut self, delay: i64, event: Event) {
        self.at(self.now + delay, event);
    }

    pub(crate) fn at(&mut self, time: i64, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((time.max(self.now), self.sequence, event)));
    }

    /// Happens some time within twice that many seconds.
    fn within(&mut self, seconds: i64, event: Event) {
        let delay = self.random.random_range(0..2 * seconds * SECOND);
        self.after(delay, event);
    }

    pub(crate) fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// Runs the round; what was wrong, if anything was.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        self.until(WILD)?;
        self.is_wild = false;
        // A standby may stay away, unless nothing is applied without it.
        if self.has_failovers {
            self.publisher.is_standby_up = true;
        }
        self.until(WILD + CALM - SECOND)?;
        self.stalls("although everybody makes progress", STALL_MAX)?;
        if self.has_failovers {
            // The last thing that happens is that a second of WAL is lost.
            self.publisher.is_standby_up = false;
            self.until(WILD + CALM)?;
            self.fails_over();
        }
        self.publisher.is_quiet = true;
        self.until(WILD + CALM + QUIET)?;
        self.stalls("although nobody writes any more", 0)
    }

    fn until(&mut self, end: i64) -> Result<(), String> {
        while let Some(Reverse((time, _, event))) = self.queue.pop() {
            if time > end {
                self.at(time, event);
                break;
            }
            self.now = time;
            self.happens(event);
            self.route();
            self.drive();
            if let Some(failure) = self.checker.failure.take() {
                return Err(format!("at {} us: {failure}", self.now));
            }
        }
        self.now = end;
        Ok(())
    }

    /// Whether a deletion that is older than this is remembered still. Without the right to see
    /// sessions nobody can tell sleepers from those in commit.
    fn stalls(&self, why: &str, age: i64) -> Result<(), String> {
        let is_old = |time: PgTimestamp| time.0 + age <= self.now + self.target.offset;
        let horizon = self.memory.horizon();
        let kept = self.target.deletions.iter().filter(|(_, of)| of.lsn > horizon && of.origin.is_none());
        match kept.map(|(_, of)| *of).find(|of| is_old(of.time)) {
            Some(of) if self.publisher.can_see => {
                let waiting = self.wiring.horizon.waiting();
                Err(format!("at {} us: {of:?} is not forgotten {why}: {waiting:?}", self.now))
            }
            _ => Ok(()),
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Session(session) => {
                let next = self.publisher.step(session, self.now, &mut self.random, &mut self.checker);
                self.at(next, event);
            }
            Event::PublisherFlushes => {
                self.publisher.flush();
                self.again(event, 20);
            }
            Event::StandbyFollows => {
                self.publisher.replicate();
                self.again(event, 30);
            }
            Event::Delete => {
                if !self.publisher.is_quiet {
                    self.target.delete(self.now, &mut self.random);
                }
                let is_rare = self.random.random_bool(0.05);
                self.again(event, if is_rare { 3000 } else { 200 });
            }
            Event::TargetFlushes => {
                self.target.flush();
                self.again(event, 100);
            }
            Event::Capture => {
                self.capture();
                let is_slow = self.is_wild && self.random.random_bool(0.03);
                self.again(event, if is_slow { 3000 } else { 60 });
            }
            Event::Commit => {
                self.memory.commit(PgTimestamp(self.now)).unwrap();
                self.after(100 * MS, event);
            }
            Event::Receive(of) => {
                let safe = if self.has_failovers { self.publisher.standby } else { u64::MAX };
                let pipeline = &mut self.pipelines[of];
                pipeline.received = pipeline.received.max(self.publisher.flushed.min(safe));
                self.again(event, 40);
            }
            Event::Apply(of) => {
                self.apply(of);
                let is_slow = self.is_wild && self.random.random_bool(0.02);
                self.again(event, if is_slow { 2000 } else { 8 });
            }
            Event::ApplyLate(of) => {
                self.apply_late(of);
                self.again(event, 200);
            }
            Event::Flush(of) => {
                self.flush(of);
                self.again(event, 150);
            }
            Event::Machine(connection, step) => self.machine(connection, step),
            _ if self.is_wild => self.disturb(event),
            // What began comes to its end.
            Event::JoinEnds | Event::PipelineIsKnown | Event::AsksPrimary => self.disturb(event),
            _ => {}
        }
    }

    /// The event comes again within `ms`.
    fn again(&mut self, event: Event, ms: i64) {
        let delay = self.random.random_range(0..ms * MS);
        self.after(delay, event);
    }

    fn disturb(&mut self, event: Event) {
        match event {
            Event::StandbyGoesOrComes => {
                self.publisher.is_standby_up = !self.publisher.is_standby_up;
                self.within(3, event);
            }
            Event::JoinBegins => self.join_begins(),
            Event::JoinEnds => self.join_ends(),
            Event::PipelineComes => self.pipeline_comes(),
            Event::PipelineIsKnown => self.pipelines.iter_mut().for_each(|pipeline| pipeline.is_known = true),
            Event::PublisherCrashes => {
                self.publisher.crash(&mut self.checker);
                self.publisher_is_lost(Dropped::Reconnected);
                self.within(12, event);
            }
            Event::FailOver => {
                self.fails_over();
                self.within(15, event);
            }
            Event::TargetCrashes => {
                self.target.crash();
                self.pipelines.iter_mut().for_each(Pipeline::crash);
                self.within(6, event);
            }
            Event::ProcessCrashes => {
                self.process_crashes();
                self.within(10, event);
            }
            Event::ClockSteps => {
                self.clocks_step();
                self.within(6, event);
            }
            Event::CaptureLosesWal => {
                self.lost_up_to = self.target.flush();
                self.captures_from(self.lost_up_to);
                self.within(20, event);
            }
            Event::AsksStandby => {
                self.asks(true);
                self.after(2 * SECOND, Event::AsksPrimary);
                self.within(12, event);
            }
            Event::AsksPrimary => self.asks(false),
            _ => {}
        }
    }

    /// Most steps are small ones. Others set both clocks anew, many of them back.
    fn clocks_step(&mut self) {
        self.checker.clock(self.publisher.clock(self.now));
        let random = &mut self.random;
        if random.random_bool(0.3) {
            self.publisher.offset = random.random_range(-4 * SECOND..4 * SECOND);
            self.target.offset = random.random_range(-2 * SECOND..2 * SECOND);
        } else {
            let step = if random.random_bool(0.15) { -300 * MS } else { 300 * MS };
            self.publisher.offset += random.random_range(step.min(0)..=step.max(0));
            self.target.offset += random.random_range(-300 * MS..=300 * MS);
        }
    }

    /// Where the next connection to the publisher ends.
    fn asks(&mut self, standby: bool) {
        self.wiring.is_on_standby = standby;
        self.wiring.connection += 1;
        self.tell(Told::Dropped(Dropped::Reconnected));
    }

    /// Capture goes on at `from`, and with it the answers. What it has not read until there is not
    /// known.
    fn captures_from(&mut self, from: Lsn) {
        let (clock, captured) = (self.target.clock(self.now), self.memory.captured());
        if captured < from {
            self.checker.captures_from((from, clock), captured, &self.target.deletions);
        }
        self.memory.begin(from, clock);
    }

    /// Routes new records: what no pipeline has yet, its copy will.
    fn route(&mut self) {
        self.routed = self.routed.min(self.publisher.records.len());
        for record in &self.publisher.records[self.routed..] {
            let has_pipeline = self.pipelines.iter().any(|pipeline| pipeline.has(record.row));
            if !has_pipeline {
                self.checker.durable(record.update);
            }
        }
        self.routed = self.publisher.records.len();
    }

    fn publisher_is_lost(&mut self, why: Dropped) {
        self.routed = 0;
        if !self.is(Sabotage::LossNotTold) {
            self.wiring.connection += 1;
            self.tell(Told::Dropped(why));
        }
    }

    fn fails_over(&mut self) {
        self.checker.clock(self.publisher.clock(self.now));
        self.publisher.fail_over(&mut self.random, &mut self.checker);
        self.publisher_is_lost(Dropped::Timeline);
    }

    fn join_begins(&mut self) {
        if !self.is(Sabotage::JoiningNotTold) {
            self.tell(Told::Dropped(Dropped::NewTable));
        }
        self.is_joining = true;
        self.within(2, Event::JoinEnds);
    }

    fn join_ends(&mut self) {
        let fence = self.target.flush();
        self.capture_up_to(fence);
        for of in 0..self.pipelines.len() {
            while let Some(record) = self.pipelines[of].joining.pop_front() {
                self.answer(record, fence);
                self.pipelines[of].undurable.push_back(record);
            }
            self.flush(of);
        }
        self.is_joining = false;
        if self.is_wild {
            self.within(8, Event::JoinBegins);
        }
    }

    fn pipeline_comes(&mut self) {
        // Its slot begins behind everything that the copy sees.
        self.publisher.flush();
        // A copy is not taken from what a failover may lose.
        self.publisher.standby = self.publisher.flushed;
        let is_told = !self.is(Sabotage::PipelineNotTold);
        if is_told {
            self.tell(Told::Dropped(Dropped::NewPipeline));
        } else {
            self.within(3, Event::PipelineIsKnown);
        }
        let is_relaxed = self.random.random_bool(0.5);
        self.pipelines.push(Pipeline::new((1, 2), self.publisher.flushed, is_told, is_relaxed));
        for event in [Event::Receive(1), Event::Apply(1), Event::ApplyLate(1), Event::Flush(1)] {
            self.after(self.random.clone().random_range(0..SECOND), event);
        }
    }

    /// Our process ends; the servers go on. What it knew of the publisher is gone.
    fn process_crashes(&mut self) {
        let spare = SimDisks::default();
        let (spare, _) = Memory::open_on(spare.disks(), server(), Bounds::default()).unwrap();
        drop(std::mem::replace(&mut self.memory, spare));
        if self.random.random_bool(0.7) {
            self.disks.crash(&mut self.random);
        }
        let (memory, opened) = Memory::open_on(self.disks.disks(), server(), self.bounds).unwrap();
        self.memory = memory;
        let from = match opened {
            Opened::Resumed { captured, .. } => captured.max(self.lost_up_to),
            // It had not committed: capture begins here.
            _ => Lsn::new(self.target.flushed),
        };
        self.captures_from(from);
        self.wiring.restart(self.bounds.duration_max, self.now);
        self.pipelines.iter_mut().for_each(|pipeline| pipeline.blocked = None);
    }

    fn capture(&mut self) {
        let end = Lsn::new(self.target.flushed);
        let captured = self.memory.captured();
        let new: Vec<Lsn> =
            self.target.deletions.iter().map(|(_, of)| of.lsn).filter(|lsn| *lsn > captured).collect();
        // It may have come to any of them.
        let at = self.random.random_range(0..=new.len());
        self.capture_up_to(new.get(at).copied().unwrap_or(end).min(end));
    }

    fn capture_up_to(&mut self, end: Lsn) {
        let captured = self.memory.captured();
        let is_new = |(_, of): &&(u64, deletions::Tombstone)| of.lsn > captured && of.lsn <= end;
        let mut any = false;
        for (row, tombstone) in self.target.deletions.iter().filter(is_new) {
            self.memory.record(&Deletion { key: &key(*row), tombstone: *tombstone }).unwrap();
            self.checker.deletion(*row, *tombstone);
            any = true;
        }
        self.memory.passed(end, end);
        if any {
            self.tell(Told::Deletion);
        }
    }

    fn apply(&mut self, of: usize) {
        if let Some((record, fence)) = self.pipelines[of].blocked {
            if self.memory.captured() >= fence {
                self.answer(record, fence);
                let pipeline = &mut self.pipelines[of];
                pipeline.blocked = None;
                pipeline.applied = record.end;
                pipeline.undurable.push_back(record);
            }
            return;
        }
        let pipeline = &mut self.pipelines[of];
        let records = &self.publisher.records;
        let from = records.partition_point(|record| record.end <= pipeline.applied);
        let is_next = |record: &&Record| pipeline.has(record.row) && !pipeline.is_done(record);
        let next = records[from..].iter().find(is_next);
        let Some(record) = next.copied().filter(|record| record.end <= pipeline.received) else {
            pipeline.applied = pipeline.applied.max(pipeline.received);
            return;
        };
        if self.is_joining && is_copied(record.row) {
            pipeline.joining.push_back(record);
            pipeline.applied = record.end;
        } else if pipeline.is_left(&mut self.random) {
            pipeline.late.push_back(record);
            pipeline.applied = record.end;
        } else {
            pipeline.blocked = Some((record, self.target.flush()));
        }
    }

    /// One that was left, after those that came behind it. A copy of its table has it.
    fn apply_late(&mut self, of: usize) {
        let Some(record) = self.pipelines[of].late.pop_front() else { return };
        if self.is_joining && is_copied(record.row) {
            self.pipelines[of].joining.push_back(record);
            return;
        }
        let fence = self.target.flush();
        self.capture_up_to(fence);
        self.answer(record, fence);
        self.pipelines[of].undurable.push_back(record);
    }

    fn answer(&mut self, record: Record, fence: Lsn) {
        let (row, time) = self.checker.row(record.update);
        let mut answer = self.memory.look_up(&key(row), Miss { time, fence }).unwrap();
        let is_unsaid = match self.checker.excuse(record.update) {
            Some(Excuse::Forwarded) => self.is(Sabotage::ForwardedNotSaid),
            Some(Excuse::SetBack) => self.is(Sabotage::SetBackNotSaid),
            None => false,
        };
        if let Answer::NotSeen { may_be_forgotten } = &mut answer {
            *may_be_forgotten &= !is_unsaid;
        }
        if answer == Answer::NotYet {
            self.checker.fail(format!("capture is at {}, and not past {fence}", self.memory.captured()));
        }
        self.checker.answers(record.update, answer, self.memory.captured());
    }

    fn flush(&mut self, of: usize) {
        let durable = self.pipelines[of].flush();
        durable.iter().for_each(|record| self.checker.durable(record.update));
        self.told_flushed();
    }
}
