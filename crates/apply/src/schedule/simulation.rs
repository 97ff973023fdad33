//! The schedule against an adversarial target: a world of rows, locks and
//! sessions in which everything that may be late is late, and what may fail
//! fails.
//!
//! One seed is one run. The workload and the target are here; what must hold
//! is judged from the history alone, by [`checkers`]. `PGSLUICE_SIM_SEED`
//! repeats one run, `PGSLUICE_SIM_SEEDS` says how many there are.
//!
//! The target keeps a lock for each row and each unique value that a
//! transaction has written, and finds cycles among those who wait, as a server
//! does. It cannot see who waits for a turn: local sessions that lock a row
//! and then wait for another make the hang of RULES A3.

mod checkers;
mod source;
mod target;

use std::collections::{BTreeMap, VecDeque};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Action, Schedule, State};
use checkers::Event;
use source::{Key, Op, Row, Rows, Source, split_ops};
use target::{Done, Local, Lock};

const SEEDS: u64 = 2_000;
/// No run takes so many steps unless it hangs.
const STEPS_MAX: usize = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Lane(usize),
    Local(usize),
}

/// What a lane was told.
#[derive(Debug)]
struct Job {
    number: u64,
    ops: VecDeque<Op>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ahead,
    /// Commits at its end; a set that does not fit stumbles.
    Set,
    /// Commits at its end; whatever fails is tried again.
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
struct Lane {
    job: Option<Job>,
    /// Its transaction: the rows that it wrote.
    writes: BTreeMap<Key, Option<Row>>,
    open: bool,
    waits_for: Option<Lock>,
    /// A cancel that the server has not seen.
    cancel: bool,
    reports: VecDeque<(u64, Report)>,
}

struct World {
    random: StdRng,
    source: Source,
    schedule: Schedule,
    lanes: Vec<Lane>,
    locals: Vec<Local>,
    locks: BTreeMap<Lock, Who>,
    rows: Rows,
    /// The last chunk that is committed on the target.
    progress: u64,
    pushed: u64,
    /// The schedule numbers anew after a loss: its chunk 1 is the one behind this.
    base: u64,
    late: BTreeMap<u64, Vec<Op>>,
    history: Vec<Event>,
    /// How many of ten thousand statements fail.
    failures: u32,
    /// After how many of ten thousand steps everything is lost.
    losses: u32,
    watches_locks: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = StdRng::seed_from_u64(seed);
        let blind = random.random_bool(0.5);
        let chunks = random.random_range(5..40);
        let source = Source::write(&mut random, chunks, blind);
        let lanes = random.random_range(1..6);
        World {
            schedule: Schedule::new(lanes),
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            locals: Vec::new(),
            locks: BTreeMap::new(),
            rows: source.states[0].clone(),
            progress: 0,
            pushed: 0,
            base: 0,
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

    /// Runs until all is committed; false if that does not come.
    fn run(&mut self) -> bool {
        for _ in 0..STEPS_MAX {
            if self.progress == self.source.chunks.len() as u64 && self.schedule.is_empty() {
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
        match self.random.random_range(0..10) {
            0 => self.push(),
            1 => self.local(),
            2 => self.watch_locks(),
            3 | 4 => self.deliver(),
            _ => self.work(),
        }
    }

    fn push(&mut self) {
        if self.schedule.has_room() && self.pushed < self.source.chunks.len() as u64 {
            let footprint = self.source.chunks[self.pushed as usize].1.clone();
            self.pushed += 1;
            self.history.push(Event::Pushed(self.pushed, footprint.clone()));
            let number = self.schedule.push(footprint);
            assert_eq!(number + self.base, self.pushed);
        }
    }

    fn act(&mut self, action: Action) {
        let (number, lane, kind) = match action {
            Action::Ahead { number, lane, split } => {
                let chunk = number + self.base;
                self.history.push(Event::Ahead(chunk, split.clone()));
                let (ops, footprint) = &self.source.chunks[chunk as usize - 1];
                let (early, late) = split_ops(ops, footprint, &split);
                self.late.insert(number, late);
                return self.begin(lane, number, early, Kind::Ahead);
            }
            Action::Finish { number, lane } => {
                let late = self.late.remove(&number).expect("a late part");
                assert!(self.lanes[lane].open, "a transaction to finish");
                return self.begin(lane, number, late, Kind::Set);
            }
            Action::Cancel { lane, .. } => {
                self.lanes[lane].cancel = true;
                return;
            }
            Action::Whole { number, lane } => (number, lane, Kind::Set),
            Action::Replay { number, lane, .. } | Action::Alone { number, lane } => {
                let others = self.lanes.iter().enumerate().filter(|(at, other)| *at != lane && other.open);
                self.history.push(Event::Alone(number + self.base, others.count()));
                (number, lane, Kind::Exact)
            }
            Action::Rollback { number, lane } => return self.begin(lane, number, Vec::new(), Kind::Rollback),
        };
        let ops = self.source.chunks[(number + self.base) as usize - 1].0.clone();
        assert!(!self.lanes[lane].open, "a whole chunk begins its transaction");
        self.begin(lane, number, ops, kind);
    }

    fn begin(&mut self, lane: usize, number: u64, ops: Vec<Op>, kind: Kind) {
        let lane = &mut self.lanes[lane];
        assert!(lane.job.is_none() && lane.reports.is_empty(), "one order at a time");
        lane.open = true;
        lane.job = Some(Job { number, ops: ops.into(), kind });
    }

    /// One step of one lane.
    fn work(&mut self) {
        let at = self.random.random_range(0..self.lanes.len());
        let failures = self.failures;
        if self.lanes[at].cancel && self.chance(3_000) {
            self.lanes[at].cancel = false;
            // It hits whatever runs.
            if let Some(job) = &self.lanes[at].job {
                self.history.push(Event::Cancelled(matches!(job.kind, Kind::Ahead | Kind::Rollback)));
                if job.kind == Kind::Ahead {
                    self.fail(at);
                }
            }
            return;
        }
        let Some(job) = &self.lanes[at].job else { return };
        let (kind, number) = (job.kind, job.number);
        if let Some(&op) = job.ops.front() {
            if kind != Kind::Exact && self.chance(failures) {
                return self.fail(at);
            }
            match self.execute(at, op) {
                Done::Yes => drop(self.lanes[at].job.as_mut().and_then(|job| job.ops.pop_front())),
                Done::Blocked => self.find_deadlock(Who::Lane(at)),
                Done::No => self.fail(at),
            }
            return;
        }
        let report = match kind {
            Kind::Ahead => Report::Executed,
            Kind::Rollback => {
                // The signal was sent before: it arrives before this is answered.
                self.lanes[at].cancel = false;
                self.end(at, false);
                Report::RolledBack
            }
            Kind::Set | Kind::Exact => {
                self.history.push(Event::CommitSent(number + self.base));
                self.commit(at, number + self.base);
                Report::Committed
            }
        };
        self.lanes[at].job = None;
        self.lanes[at].reports.push_back((number, report));
    }

    fn commit(&mut self, at: usize, chunk: u64) {
        for (key, row) in std::mem::take(&mut self.lanes[at].writes) {
            match row {
                Some(row) => self.rows.insert(key, row),
                None => self.rows.remove(&key),
            };
        }
        self.progress = chunk;
        self.end(at, true);
        self.history.push(Event::Committed(chunk, self.rows == self.source.states[chunk as usize]));
    }

    /// Ends the transaction of a lane.
    fn end(&mut self, at: usize, committed: bool) {
        let lane = &mut self.lanes[at];
        debug_assert!(!committed || lane.writes.is_empty());
        lane.writes.clear();
        (lane.open, lane.waits_for) = (false, None);
        self.release(Who::Lane(at));
    }

    /// A statement failed: rolled back, and said so, but for exact replay,
    /// which begins anew.
    fn fail(&mut self, at: usize) {
        self.end(at, false);
        let Some(job) = self.lanes[at].job.take() else { return };
        let report = match job.kind {
            Kind::Ahead => Report::Voided,
            Kind::Set => Report::Stumbled,
            Kind::Exact => {
                let ops = self.source.chunks[(job.number + self.base) as usize - 1].0.clone();
                return self.begin(at, job.number, ops, Kind::Exact);
            }
            Kind::Rollback => unreachable!("a rollback does not fail"),
        };
        self.lanes[at].reports.push_back((job.number, report));
    }

    /// What an answer brings, in the order of each lane.
    fn deliver(&mut self) {
        let at = self.random.random_range(0..self.lanes.len());
        let Some(&(number, report)) = self.lanes[at].reports.front() else {
            // The cancel's own answer comes by another way; the signal may come later.
            return self.deliver_cancelled(at);
        };
        self.lanes[at].reports.pop_front();
        match report {
            Report::Executed => self.schedule.executed(number),
            Report::Voided => self.schedule.voided(number),
            Report::Stumbled => self.schedule.stumbled(number),
            Report::RolledBack => self.schedule.rolled_back(number),
            Report::Cancelled => self.schedule.cancelled(number),
            Report::Committed => {
                self.history.push(Event::Acknowledged(number + self.base));
                self.schedule.committed(number);
            }
        }
    }

    fn deliver_cancelled(&mut self, at: usize) {
        let stopping = self.schedule.entries.iter().find(|entry| {
            entry.lane == Some(at) && matches!(entry.state, State::Stopping { cancelled: false, .. })
        });
        if let Some(number) = stopping.map(|entry| entry.number) {
            self.lanes[at].reports.push_back((number, Report::Cancelled));
        }
    }

    /// The head waits: said now, or later.
    fn watch_locks(&mut self) {
        if let Some((number, lane, true)) = self.schedule.head()
            && self.watches_locks
            && (self.lanes[lane].waits_for.is_some() && self.random.random_bool(0.2) || self.chance(5))
        {
            self.schedule.waits_for_lock(number);
        }
    }

    /// Every connection is lost; a COMMIT on its way may have arrived.
    fn lose_everything(&mut self) {
        let under_way = self.lanes.iter().position(|lane| {
            let job = lane.job.as_ref();
            job.is_some_and(|job| job.ops.is_empty() && matches!(job.kind, Kind::Set | Kind::Exact))
        });
        if let Some(at) = under_way
            && self.random.random_bool(0.5)
        {
            let chunk = self.lanes[at].job.as_ref().expect("found").number + self.base;
            self.history.push(Event::CommitSent(chunk));
            self.commit(at, chunk);
        }
        for at in 0..self.lanes.len() {
            self.end(at, false);
            self.lanes[at] = Lane::default();
        }
        self.schedule = Schedule::new(self.lanes.len());
        (self.pushed, self.base) = (self.progress, self.progress);
        self.late.clear();
        self.history.push(Event::Lost(self.progress));
    }
}

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}: {value}")))
}

fn judge(world: &World) -> Result<(), String> {
    checkers::order(&world.history)?;
    checkers::atomicity(&world.history)?;
    checkers::dependency(&world.history)?;
    checkers::solitude(&world.history)
}

#[test]
fn whatever_the_target_does_chunks_commit_in_order_whole_and_all() {
    let seeds = match environment("PGSLUICE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..environment("PGSLUICE_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut seen = BTreeMap::new();
    for seed in seeds.clone() {
        println!("PGSLUICE_SIM_SEED={seed}");
        let mut world = World::new(seed);
        let finished = world.run();
        judge(&world).unwrap_or_else(|error| panic!("PGSLUICE_SIM_SEED={seed}: {error}"));
        assert!(finished, "PGSLUICE_SIM_SEED={seed}: it hangs: {:?}", world.schedule);
        for event in &world.history {
            *seen.entry(event.name()).or_insert(0) += 1;
        }
    }
    // What never happened was not tested.
    let rare =
        ["Ahead", "Alone", "Cancelled", "Lost"].map(|name| (name, seen.get(name).copied().unwrap_or(0)));
    assert!(seeds.end - seeds.start < 1_000 || rare.iter().all(|(_, times)| *times > 100), "{rare:?}");
}

/// RULES A3: nobody but the schedule can end that wait.
#[test]
fn a3_without_letting_go_some_run_hangs() {
    let hangs = (0..200).any(|seed| {
        let mut world = World::new(seed);
        world.watches_locks = false;
        !world.run()
    });
    assert!(hangs, "the world makes no such wait");
}
