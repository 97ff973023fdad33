//! Random walks: what the memory answers beside all deletions that ever were.
//!
//! The checker keeps every deletion and knows nothing of trees, marks or entries. It knows what it
//! told the memory itself, and where the memory says that it has cut.

use base::{Lsn, PgTimestamp};
use deletions::{Answer, Bounds, Memory, Opened, Tombstone};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::disk::SimDisks;
use crate::{miss, open, record, row, tombstone};

const ROWS: u64 = 300;
const STEPS: usize = 1500;
const ROUNDS: u64 = 40;

struct Walk {
    random: StdRng,
    disks: SimDisks,
    bounds: Bounds,
    memory: Memory,
    /// Everything that was deleted, in the order of LSNs.
    history: Vec<(u64, Tombstone)>,
    /// Where the server's WAL ends, and its clock.
    lsn: u64,
    time: i64,
    /// What the last horizon was told to be.
    horizon: Lsn,
    crashes: u32,
    answers: [u64; 4],
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut random = StdRng::seed_from_u64(seed);
        let disks = SimDisks::default();
        let duration_max =
            random.random_bool(0.3).then(|| std::time::Duration::from_micros(random.random_range(50..5000)));
        let bounds = Bounds { duration_max, size_bytes_max: random.random_bool(0.3).then_some(16 << 20) };
        let (memory, _) = open(&disks, bounds);
        let mut walk = Walk {
            random,
            disks,
            bounds,
            memory,
            history: Vec::new(),
            lsn: 1000,
            time: 1000,
            horizon: Lsn::INVALID,
            crashes: 0,
            answers: [0; 4],
        };
        walk.memory.begin(Lsn::new(walk.lsn), PgTimestamp(walk.time));
        walk
    }

    /// Where the memory may have forgotten.
    fn floor(&self) -> Lsn {
        self.memory.figures().cut.map_or(self.horizon, |cut| cut.lsn.max(self.horizon))
    }

    /// A transaction that deletes some rows; its time may come from elsewhere.
    fn delete(&mut self) {
        self.lsn += self.random.random_range(1..100);
        self.time += self.random.random_range(0..20);
        let skew = if self.random.random_bool(0.1) { self.random.random_range(-500..500) } else { 0 };
        for _ in 0..self.random.random_range(1..8) {
            let number = self.random.random_range(0..ROWS);
            let tombstone = tombstone(self.lsn, self.time + skew);
            record(&mut self.memory, &row(number), tombstone);
            self.history.push((number, tombstone));
        }
        if self.random.random_bool(0.8) {
            self.memory.passed(Lsn::new(self.lsn), Lsn::new(self.lsn));
        }
    }

    fn advance(&mut self) {
        if let Some(candidate) = self.memory.candidate() {
            let times = self.history.iter().map(|(_, tombstone)| tombstone);
            let before =
                times.filter(|tombstone| tombstone.lsn > self.horizon && tombstone.lsn <= candidate.lsn);
            let newest = before.map(|tombstone| tombstone.time).max();
            let floor = self.floor();
            let is_cut = newest.is_some_and(|newest| newest > candidate.time) && floor < candidate.lsn;
            assert!(!is_cut, "{candidate:?} is not as new as a deletion of {newest:?} before it");
            if self.random.random_bool(0.7) {
                self.memory.advance(candidate);
                self.horizon = self.horizon.max(candidate.lsn);
            }
        }
    }

    fn look_up(&mut self) {
        let number = self.random.random_range(0..ROWS + 10);
        let time = self.time - self.random.random_range(-100..3000);
        let fence = self.random.random_range(self.lsn - 200..self.lsn + 2);
        let captured = self.memory.captured();
        let answer = self.memory.look_up(&row(number), miss(time, fence)).unwrap();
        let last = self.history.iter().rfind(|(of, _)| *of == number).map(|(_, tombstone)| *tombstone);
        let (cut, floor) = (self.memory.figures().cut, self.floor());
        let time = PgTimestamp(time);
        let context = format!("row {number} at {time:?}: {answer:?}, {last:?}, cut {cut:?}, floor {floor}");
        match answer {
            Answer::NotYet => assert!(captured < Lsn::new(fence), "{context}"),
            Answer::Deleted(tombstone) => assert_eq!(Some(tombstone), last, "{context}"),
            Answer::NotSeen { may_be_forgotten } => {
                let is_forgotten = |last: &Tombstone| last.lsn <= floor;
                assert!(last.as_ref().is_none_or(is_forgotten), "{context}");
                let is_older = |last: &Tombstone| last.time < time;
                assert!(may_be_forgotten || last.as_ref().is_none_or(is_older), "{context}");
            }
            Answer::NotCovered => {
                assert!(last.is_none_or(|last| last.lsn <= floor), "{context}");
                assert!(cut.is_some_and(|cut| time <= cut.time), "{context}");
            }
        }
        self.answers[match answer {
            Answer::Deleted(_) => 0,
            Answer::NotSeen { .. } => 1,
            Answer::NotCovered => 2,
            Answer::NotYet => 3,
        }] += 1;
    }

    /// The process ends, or the power goes. Capture goes on where the memory says, or later.
    fn restart(&mut self) {
        self.crashes += 1;
        let spare = SimDisks::default();
        let (other, _) = open(&spare, Bounds::default());
        drop(std::mem::replace(&mut self.memory, other));
        if self.random.random_bool(0.7) {
            self.disks.crash(&mut self.random);
        }
        let (memory, opened) = open(&self.disks, self.bounds);
        self.memory = memory;
        let captured = match opened {
            Opened::Resumed { captured, .. } => captured,
            // Nothing was committed yet.
            Opened::New => Lsn::INVALID,
            Opened::Discarded(why) => panic!("nothing is wrong, and yet {why:?}"),
        };
        self.horizon = self.memory.horizon();
        let has_gap = !captured.is_valid() || self.random.random_bool(0.1);
        let from = if has_gap { Lsn::new(self.lsn) } else { captured };
        self.memory.begin(from, PgTimestamp(self.time + 500));
        for (number, tombstone) in self.history.clone() {
            // More may come than is new.
            if tombstone.lsn.as_u64() + 50 > from.as_u64() {
                record(&mut self.memory, &row(number), tombstone);
            }
        }
        self.memory.passed(Lsn::new(self.lsn), Lsn::new(self.lsn));
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            match self.random.random_range(0..100) {
                0..40 => self.delete(),
                40..55 => {
                    self.time += 1;
                    self.memory.commit(PgTimestamp(self.time)).unwrap();
                }
                55..62 => self.advance(),
                62..98 => self.look_up(),
                98 => self.restart(),
                _ => {
                    self.lsn += 5;
                    self.memory.passed(Lsn::new(self.lsn), Lsn::new(self.lsn));
                }
            }
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn random_walks_answer_as_the_history_says() {
    let only = number("PGSLUICE_DELETIONS_SEED");
    let rounds = number("PGSLUICE_DELETIONS_ROUNDS").unwrap_or(ROUNDS);
    let first = only.unwrap_or_else(|| rand::random::<u32>().into());
    let (mut crashes, mut answers) = (0, [0; 4]);
    for seed in first..first + only.map_or(rounds, |_| 1) {
        println!("PGSLUICE_DELETIONS_SEED={seed}");
        let mut walk = Walk::new(seed);
        walk.run();
        crashes += walk.crashes;
        answers.iter_mut().zip(walk.answers).for_each(|(all, of)| *all += of);
    }
    println!("{crashes} crashes; deleted, not seen, not covered, not yet: {answers:?}");
    let enough = only.is_some() || crashes > 100 && answers.iter().all(|count| *count > 100);
    assert!(enough, "the walks met everything: {crashes} crashes, {answers:?}");
}
