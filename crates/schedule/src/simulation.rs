//! Runs the schedule against an adversarial target: rows, locks and sessions, where everything that
//! may be late is late, and everything that may fail fails.
//!
//! One seed is one run of each commit order. The workload and the target are here. [`checkers`]
//! judge from the history alone what must hold. `PGSLUICE_SIM_SEED` repeats one run, and
//! `PGSLUICE_SIM_SEEDS` sets the number of runs.
//!
//! When everything is lost, a COMMIT on its way may or may not have arrived. Commits that were not
//! flushed may be gone, the last ones first. The next start begins with what the target's own rows
//! say ([`crate::committed_ranges`]).
//!
//! The target keeps a lock for each row and each unique value that a transaction has written. Like
//! a server, it finds cycles among the sessions that wait for locks. It cannot see which chunks
//! wait for their turn. Local sessions that lock one row and then wait for another make the hang of
//! rule A3.

mod checkers;
mod source;
mod target;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use base::Lsn;
use checkers::SimulationEvent;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use source::{Op, Rows, SimulatedKey, SimulatedRow, Source, split_ops};
use target::{Done, Local, Lock};

use crate::{Action, CommittedRanges, Either, Footprint, KeyFilter, Manner, Preserve, Relaxed, Units};

const SEEDS: u64 = 2_000;
/// A run that takes more steps hangs.
const STEPS_MAX: usize = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Worker(usize),
    Local(usize),
}

/// A worker's command.
#[derive(Debug)]
struct Job {
    number: u64,
    ops: VecDeque<Op>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Speculative,
    /// Commits at its end. A set that does not fit stumbles.
    Set,
    /// Commits at its end. Anything that fails is tried again.
    Exact,
    Rollback,
}

#[derive(Debug, Clone, Copy)]
enum Report {
    Executed,
    Voided,
    Stumbled,
    Committed,
    RolledBack,
    Cancelled,
}

#[derive(Debug, Default)]
struct Worker {
    job: Option<Job>,
    /// The rows that its open transaction wrote.
    writes: BTreeMap<SimulatedKey, Option<SimulatedRow>>,
    open: bool,
    waits_for: Option<Lock>,
    /// A cancel is on its way to the server.
    cancel: bool,
    reports: VecDeque<(u64, Report)>,
}

/// The records of the target's WAL, in order.
#[derive(Debug)]
enum Record {
    /// A chunk's writes, and its range.
    Commit { chunk: u64, writes: BTreeMap<SimulatedKey, Option<SimulatedRow>>, range: (Lsn, Lsn) },
    /// The rows of ranges were folded.
    Folded(CommittedRanges),
}

struct World {
    random: StdRng,
    source: Source,
    relaxed: bool,
    schedule: Either,
    workers: Vec<Worker>,
    locals: Vec<Local>,
    locks: BTreeMap<Lock, Who>,
    rows: Rows,
    /// The chunks that are committed on the target.
    held: BTreeSet<u64>,
    /// What the target's rows say about that. Chunk n commits at position n - 1, and ends at n.
    prefix: Lsn,
    ranges: Vec<(Lsn, Lsn)>,
    wal: Vec<Record>,
    /// Number of WAL records that survive a crash.
    flushed: usize,
    /// What the rows said at the last start.
    done: CommittedRanges,
    /// The last chunk that was passed, handed over or not, and the last that was handed over.
    passed: u64,
    handed: u64,
    /// Where the range of each chunk begins.
    since: BTreeMap<u64, u64>,
    /// The chunk of each number of the schedule, from 1 on; numbering starts anew after a loss.
    numbers: Vec<u64>,
    late: BTreeMap<u64, Vec<Op>>,
    history: Vec<SimulationEvent>,
    /// How many of ten thousand statements fail.
    failures: u32,
    /// In how many of ten thousand steps everything is lost.
    losses: u32,
    watches_locks: bool,
}

impl World {
    fn new(seed: u64, relaxed: bool) -> World {
        let mut random = StdRng::seed_from_u64(seed);
        // A row's own keys may be missing only where locks are kept until the turn.
        let blind = random.random_bool(0.5) && !relaxed;
        let chunks = random.random_range(5..40);
        let source = Source::write(&mut random, chunks, blind);
        let workers = random.random_range(if relaxed { 2..6 } else { 1..6 });
        World {
            schedule: schedule(workers, relaxed),
            relaxed,
            workers: (0..workers).map(|_| Worker::default()).collect(),
            locals: Vec::new(),
            locks: BTreeMap::new(),
            rows: source.states[0].clone(),
            held: BTreeSet::new(),
            prefix: Lsn::INVALID,
            ranges: Vec::new(),
            wal: Vec::new(),
            flushed: 0,
            done: CommittedRanges::default(),
            passed: 0,
            handed: 0,
            since: BTreeMap::new(),
            numbers: Vec::new(),
            late: BTreeMap::new(),
            history: Vec::new(),
            failures: [0, 20, 300][random.random_range(0..3)],
            losses: [0, 0, 20][random.random_range(0..3)],
            watches_locks: true,
            source,
            random,
        }
    }

    fn chance(&mut self, of_ten_thousand: u32) -> bool {
        self.random.random_range(0..10_000) < of_ten_thousand
    }

    /// Runs until all chunks are committed; returns false if that never happens.
    fn run(&mut self) -> bool {
        for _ in 0..STEPS_MAX {
            if self.held.len() == self.source.chunks.len() && self.schedule.is_empty() {
                return true;
            }
            self.step();
            while let Some(action) = self.schedule.poll() {
                self.act(action);
            }
        }
        false
    }

    fn step(&mut self) {
        if self.chance(self.losses) {
            return self.lose_everything();
        }
        match self.random.random_range(0..20) {
            0 | 1 => self.push(),
            2 | 3 => self.local(),
            4 | 5 => self.watch_locks(),
            6..=9 => self.deliver(),
            10 => self.flush(),
            _ => self.work(),
        }
    }

    fn push(&mut self) {
        while self.done.has(Lsn::new(self.passed)) {
            self.passed += 1;
        }
        if self.schedule.has_room() && self.passed < self.source.chunks.len() as u64 {
            self.passed += 1;
            let chunk = self.passed;
            let manner = self.manner(chunk);
            let mut footprint = self.source.chunks[chunk as usize - 1].1.clone();
            if manner == Manner::Large {
                footprint = filtered(footprint);
            }
            self.since.insert(chunk, self.handed);
            self.handed = chunk;
            self.history.push(SimulationEvent::Pushed(chunk, footprint.clone()));
            self.numbers.push(chunk);
            assert_eq!(self.schedule.push(footprint, manner), self.numbers.len() as u64);
        }
    }

    /// One chunk in eight is large, always the same ones.
    fn manner(&self, chunk: u64) -> Manner {
        if self.relaxed && chunk % 8 == 3 { Manner::Large } else { Manner::Set }
    }

    fn chunk(&self, number: u64) -> u64 {
        self.numbers[number as usize - 1]
    }

    fn ops(&self, number: u64) -> Vec<Op> {
        self.source.chunks[self.chunk(number) as usize - 1].0.clone()
    }

    fn reached(&self) -> CommittedRanges {
        CommittedRanges::new(self.prefix, self.ranges.clone())
    }

    /// Flushes what may be confirmed to the source; sometimes folds the rows of ranges.
    fn flush(&mut self) {
        let reached = self.reached();
        if self.random.random_bool(0.3) {
            (self.prefix, self.ranges) = (reached.prefix, reached.beyond.clone());
            self.wal.push(Record::Folded(reached.clone()));
        }
        self.flushed = self.wal.len();
        self.history.push(SimulationEvent::Confirmed(reached.prefix.as_u64()));
    }

    fn act(&mut self, action: Action) {
        let (number, worker, kind) = match action {
            Action::Speculate { number, worker, split } => {
                let chunk = self.chunk(number);
                self.history.push(SimulationEvent::Speculated(chunk, split.clone()));
                let (ops, footprint) = &self.source.chunks[chunk as usize - 1];
                let (early, late) = split_ops(ops, footprint, &split);
                self.late.insert(number, late);
                return self.begin(worker, number, early, Kind::Speculative);
            }
            Action::Finish { number, worker } => {
                let late = self.late.remove(&number).expect("a late part");
                assert!(self.workers[worker].open, "a transaction to finish");
                return self.begin(worker, number, late, Kind::Set);
            }
            Action::Cancel { worker, .. } => {
                self.workers[worker].cancel = true;
                return;
            }
            Action::Whole { number, worker } if self.manner(self.chunk(number)) == Manner::Large => {
                (number, worker, Kind::Exact)
            }
            Action::Whole { number, worker } => (number, worker, Kind::Set),
            // Later chunks may be under way.
            Action::Replay { number, worker, .. } if self.relaxed => (number, worker, Kind::Exact),
            Action::Replay { number, worker, .. } | Action::Alone { number, worker } => {
                let others =
                    self.workers.iter().enumerate().filter(|(at, other)| *at != worker && other.open);
                self.history.push(SimulationEvent::Alone(self.chunk(number), others.count()));
                (number, worker, Kind::Exact)
            }
            Action::Rollback { number, worker } => {
                return self.begin(worker, number, Vec::new(), Kind::Rollback);
            }
        };
        let ops = self.ops(number);
        self.history.push(SimulationEvent::Began(self.chunk(number), kind == Kind::Exact));
        assert!(!self.workers[worker].open, "a whole chunk begins its transaction");
        self.begin(worker, number, ops, kind);
    }

    fn begin(&mut self, worker: usize, number: u64, ops: Vec<Op>, kind: Kind) {
        let worker = &mut self.workers[worker];
        assert!(worker.job.is_none() && worker.reports.is_empty(), "one order at a time");
        worker.open = true;
        worker.job = Some(Job { number, ops: ops.into(), kind });
    }

    /// Runs one step of one worker.
    fn work(&mut self) {
        let at = self.random.random_range(0..self.workers.len());
        let failures = self.failures;
        if self.workers[at].cancel && self.chance(3_000) {
            self.workers[at].cancel = false;
            // The cancel hits whatever runs.
            if let Some(job) = &self.workers[at].job {
                self.history
                    .push(SimulationEvent::Cancelled(matches!(job.kind, Kind::Speculative | Kind::Rollback)));
                if job.kind == Kind::Speculative {
                    self.fail(at);
                }
            }
            return;
        }
        let Some(job) = &self.workers[at].job else { return };
        let (kind, number) = (job.kind, job.number);
        if let Some(&op) = job.ops.front() {
            if kind != Kind::Exact && self.chance(failures) {
                return self.fail(at);
            }
            match self.execute(at, op) {
                Done::Yes => drop(self.workers[at].job.as_mut().and_then(|job| job.ops.pop_front())),
                Done::Blocked => self.find_deadlock(Who::Worker(at)),
                Done::No => self.fail(at),
            }
            return;
        }
        let report = match kind {
            Kind::Speculative => Report::Executed,
            Kind::Rollback => {
                // The cancel was sent earlier, so it arrives before this is answered.
                self.workers[at].cancel = false;
                self.end(at, false);
                Report::RolledBack
            }
            Kind::Set | Kind::Exact => {
                self.history.push(SimulationEvent::CommitSent(self.chunk(number)));
                self.commit(at, self.chunk(number));
                Report::Committed
            }
        };
        self.workers[at].job = None;
        self.workers[at].reports.push_back((number, report));
    }

    fn commit(&mut self, at: usize, chunk: u64) {
        let writes = std::mem::take(&mut self.workers[at].writes);
        let range = (Lsn::new(self.since[&chunk]), Lsn::new(chunk));
        let record = Record::Commit { chunk, writes, range };
        self.redo(&record);
        self.wal.push(record);
        self.end(at, true);
        self.history.push(SimulationEvent::Committed(chunk, self.rows == self.source.after(&self.held)));
    }

    fn redo(&mut self, record: &Record) {
        match record {
            Record::Commit { chunk, writes, range } => {
                source::write(&mut self.rows, writes);
                self.held.insert(*chunk);
                self.ranges.push(*range);
            }
            Record::Folded(reached) => {
                (self.prefix, self.ranges) = (reached.prefix, reached.beyond.clone());
            }
        }
    }

    /// The target restarts from the WAL that survived.
    fn recover(&mut self) {
        (self.rows, self.held) = (self.source.states[0].clone(), BTreeSet::new());
        (self.prefix, self.ranges) = (Lsn::INVALID, Vec::new());
        let wal = std::mem::take(&mut self.wal);
        wal.iter().for_each(|record| self.redo(record));
        (self.flushed, self.wal) = (wal.len(), wal);
    }

    /// Ends the transaction of a worker.
    fn end(&mut self, at: usize, committed: bool) {
        let worker = &mut self.workers[at];
        debug_assert!(!committed || worker.writes.is_empty());
        worker.writes.clear();
        (worker.open, worker.waits_for) = (false, None);
        self.release(Who::Worker(at));
    }

    /// A statement failed: the transaction is rolled back and reported. Exact replay begins anew
    /// instead.
    fn fail(&mut self, at: usize) {
        self.end(at, false);
        let Some(job) = self.workers[at].job.take() else { return };
        let report = match job.kind {
            Kind::Speculative => Report::Voided,
            Kind::Set => Report::Stumbled,
            Kind::Exact => {
                let ops = self.ops(job.number);
                return self.begin(at, job.number, ops, Kind::Exact);
            }
            Kind::Rollback => unreachable!("a rollback does not fail"),
        };
        self.workers[at].reports.push_back((job.number, report));
    }

    /// Delivers an answer, in each worker's order.
    fn deliver(&mut self) {
        let at = self.random.random_range(0..self.workers.len());
        let Some(&(number, report)) = self.workers[at].reports.front() else {
            // The answer to the cancel takes another way; the signal may come later.
            return self.deliver_cancelled(at);
        };
        self.workers[at].reports.pop_front();
        match report {
            Report::Stumbled => self.schedule.stumbled(number),
            Report::Committed => {
                self.history.push(SimulationEvent::Acknowledged(self.chunk(number)));
                self.schedule.committed(number);
            }
            Report::Executed => self.preserve().executed(number),
            Report::Voided => {
                self.preserve().voided(number);
            }
            Report::RolledBack => self.preserve().rolled_back(number),
            Report::Cancelled => self.preserve().cancelled(number),
        }
    }

    fn preserve(&mut self) -> &mut Preserve {
        self.schedule.preserve().expect("nothing else is executed before its turn")
    }

    fn deliver_cancelled(&mut self, at: usize) {
        let Either::Preserve(schedule) = &self.schedule else { return };
        if let Some(number) = schedule.stopping(at) {
            self.workers[at].reports.push_back((number, Report::Cancelled));
        }
    }

    /// Reports that the head waits, sooner or later.
    fn watch_locks(&mut self) {
        if let Some((number, worker, true)) = self.schedule.head()
            && self.watches_locks
            && (self.workers[worker].waits_for.is_some() && self.random.random_bool(0.2) || self.chance(5))
        {
            self.preserve().waits_for_lock(number);
        }
    }

    /// Loses every connection. COMMITs on their way may have arrived, and commits that were not
    /// flushed may be gone.
    fn lose_everything(&mut self) {
        for at in 0..self.workers.len() {
            let job = self.workers[at].job.as_ref();
            let sent = job.filter(|job| job.ops.is_empty() && matches!(job.kind, Kind::Set | Kind::Exact));
            if let Some(chunk) = sent.map(|job| self.chunk(job.number))
                && self.random.random_bool(0.5)
            {
                self.history.push(SimulationEvent::CommitSent(chunk));
                self.commit(at, chunk);
            }
        }
        for at in 0..self.workers.len() {
            self.end(at, false);
            self.workers[at] = Worker::default();
        }
        if self.random.random_bool(0.5) {
            let left = self.random.random_range(self.flushed..=self.wal.len());
            self.wal.truncate(left);
            self.recover();
        }
        self.schedule = schedule(self.workers.len(), self.relaxed);
        // A process that starts flushes what it reads.
        self.flushed = self.wal.len();
        self.done = self.reached();
        (self.passed, self.handed) = (self.done.prefix.as_u64(), self.done.prefix.as_u64());
        self.numbers.clear();
        self.since.clear();
        self.late.clear();
        self.history.push(SimulationEvent::Lost(self.held.clone()));
    }
}

fn schedule(workers: usize, relaxed: bool) -> Either {
    if relaxed { Either::Relaxed(Relaxed::new(workers)) } else { Either::Preserve(Preserve::new(workers)) }
}

/// Shows keys as a large transaction does.
fn filtered(footprint: Footprint) -> Footprint {
    let Footprint::Tables(mut touched) = footprint else { return footprint };
    let mut filter = KeyFilter::default();
    for table in &touched {
        if let Units::Keys { keys, .. } = &table.units {
            keys.iter().for_each(|&key| filter.add(key));
        }
    }
    let filter = Arc::new(filter);
    for table in &mut touched {
        if let Units::Keys { .. } = table.units {
            table.units = Units::Filtered(Arc::clone(&filter));
        }
    }
    Footprint::Tables(touched)
}

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}: {value}")))
}

fn judge(world: &World) -> Result<(), String> {
    if !world.relaxed {
        checkers::order(&world.history)?;
    }
    checkers::exactly_once(&world.history)?;
    checkers::atomicity(&world.history)?;
    checkers::dependency(&world.history)?;
    checkers::solitude(&world.history)
}

#[test]
fn whatever_the_target_does_chunks_commit_in_order_whole_and_all() {
    simulate(false, &["Speculated", "Alone", "Cancelled", "Lost"]);
}

#[test]
fn p1_whatever_the_target_does_relaxed_chunks_commit_once_whole_and_behind_what_they_depend_on() {
    simulate(true, &["Overtook", "Alone", "Lost"]);
}

/// `rare` names events that must have happened, or they were not tested.
fn simulate(relaxed: bool, rare: &[&str]) {
    let seeds = match environment("PGSLUICE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..environment("PGSLUICE_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut seen = BTreeMap::new();
    for seed in seeds.clone() {
        println!("PGSLUICE_SIM_SEED={seed}");
        let mut world = World::new(seed, relaxed);
        let finished = world.run();
        judge(&world).unwrap_or_else(|error| panic!("PGSLUICE_SIM_SEED={seed}: {error}"));
        assert!(finished, "PGSLUICE_SIM_SEED={seed}: it hangs: {:?}", world.schedule);
        for event in &world.history {
            *seen.entry(event.name()).or_insert(0) += 1;
        }
        *seen.entry("Overtook").or_insert(0) += checkers::overtakings(&world.history);
    }
    let rare: Vec<_> = rare.iter().map(|&name| (name, seen.get(name).copied().unwrap_or(0))).collect();
    assert!(relaxed || seen["Overtook"] == 0, "{seen:?}");
    assert!(seeds.end - seeds.start < 1_000 || rare.iter().all(|(_, times)| *times > 100), "{rare:?}");
}

/// Rule A3: only the schedule can end that wait.
#[test]
fn a3_without_letting_go_some_run_hangs() {
    let hangs = (0..200).any(|seed| {
        let mut world = World::new(seed, false);
        world.watches_locks = false;
        !world.run()
    });
    assert!(hangs, "the world makes no such wait");
}
