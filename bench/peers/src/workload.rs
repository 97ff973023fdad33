//! The message's workload in one process: one update and two look-ups per transaction, and the
//! growth of the files.
//!
//! A run loads, and then has four phases. In warm-up and steady, the horizon is a fixed number of
//! transactions behind. In pinned, the horizon stands still and a reader holds its snapshot. Last
//! comes released. Every operation is timed.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

use crate::engines::{Arm, Engine, Operations};

/// Transactions the horizon stays behind.
const LAG: u64 = 10_000;
const VALUE_BYTES: usize = 100;
/// Values are drawn from here: other bytes each time, so that nothing compresses.
const POOL_BYTES: usize = 1 << 20;
const ZIPF_EXPONENT: f64 = 0.99;
/// Longer than any operation may take.
const HOUR_NANOS: u64 = 3_600_000_000_000;
/// Between two looks at the file.
const SAMPLE: Duration = Duration::from_millis(500);

/// Which keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Keys {
    /// Updates and look-ups of keys drawn uniformly.
    Uniform,
    /// The same by Zipf's law: few keys get most.
    Zipf,
    /// Uniform, and every fourth transaction inserts a new key as well.
    Mixed,
    /// Increasing keys inserted, and the oldest deleted; look-ups among those that wait.
    Queue,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) keys: Keys,
    pub(crate) count: u64,
    pub(crate) per_commit: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) seconds: f64,
}

/// One kind of operation, in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

/// What a look at the file and the counters says.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) transactions: u64,
    pub(crate) file_bytes: u64,
}

/// A run's result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) transactions_per_second: f64,
    pub(crate) update: Latency,
    pub(crate) look_up: Latency,
    pub(crate) commit: Latency,
    pub(crate) read_bytes_per_transaction: f64,
    pub(crate) written_bytes_per_transaction: f64,
    /// Keys that are there when steady ends.
    pub(crate) keys: u64,
    pub(crate) file_loaded: u64,
    /// When steady begins and ends, at the end of pinned, of released, and after compacting (ours).
    pub(crate) file_warm: u64,
    pub(crate) file_steady: u64,
    pub(crate) file_pinned: u64,
    pub(crate) file_released: u64,
    pub(crate) file_compacted: u64,
    /// Look-ups that found nothing where something had to be.
    pub(crate) missing: u64,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Default)]
struct Clocks {
    update: Option<Histogram<u64>>,
    look_up: Option<Histogram<u64>>,
    commit: Option<Histogram<u64>>,
}

fn timed<T>(clock: &mut Option<Histogram<u64>>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(clock) = clock else { return work() };
    let started = Instant::now();
    let result = work()?;
    clock.saturating_record(started.elapsed().as_nanos() as u64);
    Ok(result)
}

fn latency(clock: &Option<Histogram<u64>>) -> Latency {
    let Some(clock) = clock.as_ref().filter(|clock| !clock.is_empty()) else { return Latency::default() };
    let micros = |nanos: u64| nanos as f64 / 1000.0;
    Latency {
        mean: clock.mean() / 1000.0,
        p50: micros(clock.value_at_quantile(0.5)),
        p99: micros(clock.value_at_quantile(0.99)),
        p999: micros(clock.value_at_quantile(0.999)),
    }
}

/// Spreads numbers over all keys, so that neighbours by number are not neighbours in the tree.
fn scattered(number: u64) -> u64 {
    // An odd factor is a permutation of 64 bits.
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

struct Driver<'a> {
    engine: Box<dyn Engine>,
    dir: &'a Path,
    plan: &'a Plan,
    random: SmallRng,
    zipf: Zipf<f64>,
    pool: Vec<u8>,
    /// The next LSN; one per transaction.
    lsn: u64,
    /// The first and one past the last number of a key that is there.
    first: u64,
    end: u64,
    horizon: u64,
    /// Keys with old versions that somebody must forget: the LSN of the change, the key, and the
    /// LSN before which versions are to go.
    obsolete: VecDeque<(u64, u64, u64)>,
    clocks: Clocks,
    missing: u64,
    started: Instant,
    sampled: Instant,
    samples: Vec<Sample>,
}

impl Driver<'_> {
    fn key_of(&self, number: u64) -> u64 {
        if self.plan.keys == Keys::Queue { number } else { scattered(number) }
    }

    fn draw(&mut self) -> u64 {
        let count = self.end - self.first;
        match self.plan.keys {
            Keys::Zipf => self.first + (self.zipf.sample(&mut self.random) as u64 - 1) % count,
            _ => self.random.random_range(self.first..self.end),
        }
    }

    fn value(&mut self) -> std::ops::Range<usize> {
        let start = self.random.random_range(0..POOL_BYTES - VALUE_BYTES);
        start..start + VALUE_BYTES
    }

    /// Puts the first keys there, in the order of the tree as a bulk load would.
    fn load(&mut self) -> Result<()> {
        let mut keys: Vec<u64> = (0..self.plan.count).map(|number| self.key_of(number)).collect();
        keys.sort_unstable();
        for chunk in keys.chunks(10_000) {
            let values: Vec<_> = chunk.iter().map(|_| self.value()).collect();
            self.lsn += 1;
            let (lsn, pool) = (self.lsn, &self.pool);
            self.engine.batch(lsn, 0, &mut |open| {
                for (key, value) in chunk.iter().zip(&values) {
                    open.put(*key, lsn, &pool[value.clone()])?;
                }
                Ok(())
            })?;
        }
        self.end = self.plan.count;
        Ok(())
    }

    /// One commit's worth of transactions.
    fn batch(&mut self, is_pinned: bool) -> Result<()> {
        let count = self.plan.per_commit;
        let first_lsn = self.lsn + 1;
        self.lsn += count;
        if !is_pinned {
            self.horizon = self.lsn.saturating_sub(LAG);
        }
        let (is_forgetting, is_queue, is_mixed) =
            (self.engine.needs_forgetting(), self.plan.keys == Keys::Queue, self.plan.keys == Keys::Mixed);
        let mut writes = Vec::new();
        let mut reads = Vec::new();
        for lsn in first_lsn..=self.lsn {
            if is_queue {
                writes.push((lsn, self.end, Some(self.value())));
                writes.push((lsn, self.first, None));
                (self.first, self.end) = (self.first + 1, self.end + 1);
            } else {
                let number = self.draw();
                writes.push((lsn, self.key_of(number), Some(self.value())));
                if is_mixed && lsn % 4 == 0 {
                    writes.push((lsn, self.key_of(self.end), Some(self.value())));
                    self.end += 1;
                }
            }
            // Not the keys of this batch: some stores show them only after the commit.
            let last = self.end.saturating_sub(2 * count);
            let mut read = || {
                let number = self.draw();
                let number = if is_queue || is_mixed {
                    number.min(last).max(self.first + count.min(1))
                } else {
                    number
                };
                self.key_of(number)
            };
            reads.push((read(), read()));
        }
        let mut forgotten = Vec::new();
        if is_forgetting {
            while self.obsolete.front().is_some_and(|(at, ..)| *at <= self.horizon) {
                forgotten.extend(self.obsolete.pop_front().map(|(_, key, before)| (key, before)));
            }
            for (lsn, key, value) in &writes {
                let before = if value.is_some() { *lsn } else { u64::MAX };
                if value.is_none() || !is_queue {
                    self.obsolete.push_back((*lsn, *key, before));
                }
            }
        }
        let (lsn, horizon, per) = (self.lsn, self.horizon, writes.len() / count as usize);
        let (clocks, pool, missing) = (&mut self.clocks, &self.pool, &mut self.missing);
        let mut in_work = Duration::ZERO;
        let whole = Instant::now();
        self.engine.batch(lsn, horizon, &mut |open: &mut dyn Operations| {
            let started = Instant::now();
            let mut next = writes.iter();
            for (transaction, (a, b)) in reads.iter().enumerate() {
                let until = if transaction + 1 == reads.len() { writes.len() } else { per };
                for (lsn, key, value) in next.by_ref().take(until) {
                    timed(&mut clocks.update, || match value {
                        Some(value) => open.put(*key, *lsn, &pool[value.clone()]),
                        None => open.delete(*key, *lsn),
                    })?;
                }
                // Both keys are known, so the first look-up's time includes the announcement of the
                // second.
                let first = timed(&mut clocks.look_up, || {
                    open.prefetch(*b);
                    open.get(*a)
                })?;
                let second = timed(&mut clocks.look_up, || open.get(*b))?;
                *missing += [first, second].iter().filter(|found| found.is_none()).count() as u64;
            }
            // What keeping versions costs is part of the commit.
            in_work = started.elapsed();
            forgotten.iter().try_for_each(|(key, before)| open.forget(*key, *before))
        })?;
        if let Some(commit) = &mut clocks.commit {
            commit.saturating_record((whole.elapsed() - in_work).as_nanos() as u64);
        }
        self.sample()
    }

    fn sample(&mut self) -> Result<()> {
        if self.sampled.elapsed() >= SAMPLE {
            self.sampled = Instant::now();
            let file_bytes = dir_bytes(self.dir)?;
            let seconds = self.started.elapsed().as_secs_f64();
            self.samples.push(Sample { seconds, transactions: self.lsn, file_bytes });
        }
        Ok(())
    }

    /// Batches for `seconds`; how many transactions and the time they took.
    fn phase(&mut self, seconds: f64, is_pinned: bool) -> Result<(u64, f64)> {
        let (started, before) = (Instant::now(), self.lsn);
        while started.elapsed().as_secs_f64() < seconds {
            self.batch(is_pinned)?;
        }
        Ok((self.lsn - before, started.elapsed().as_secs_f64()))
    }
}

/// Runs `plan` on a new store in `dir`.
pub(crate) fn run(arm: Arm, plan: &Plan, dir: &Path) -> Result<Outcome> {
    let mut pool = vec![0; POOL_BYTES];
    SmallRng::seed_from_u64(7).fill_bytes(&mut pool);
    let now = Instant::now();
    let mut driver = Driver {
        engine: arm.open(dir, plan.memory_bytes, plan.keys)?,
        dir,
        plan,
        random: SmallRng::seed_from_u64(1),
        zipf: Zipf::new(plan.count as f64, ZIPF_EXPONENT)?,
        pool,
        lsn: 0,
        first: 0,
        end: 0,
        horizon: 0,
        obsolete: VecDeque::new(),
        clocks: Clocks::default(),
        missing: 0,
        started: now,
        sampled: now,
        samples: Vec::new(),
    };
    driver.load()?;
    let file_loaded = dir_bytes(dir)?;
    driver.lsn = driver.lsn.next_multiple_of(10_000);
    driver.started = Instant::now();
    driver.phase(plan.seconds * 0.3, false)?;
    let file_warm = dir_bytes(dir)?;
    let histogram = || Some(Histogram::new_with_bounds(1, HOUR_NANOS, 3).expect("the bounds are allowed"));
    driver.clocks = Clocks { update: histogram(), look_up: histogram(), commit: histogram() };
    let io = io_bytes()?;
    let (transactions, seconds) = driver.phase(plan.seconds * 0.4, false)?;
    let io = (io_bytes()?.0 - io.0, io_bytes()?.1 - io.1);
    let clocks = std::mem::take(&mut driver.clocks);
    let (file_steady, keys) = (dir_bytes(dir)?, driver.end - driver.first);
    driver.engine.pin(true)?;
    driver.phase(plan.seconds * 0.1, true)?;
    let file_pinned = dir_bytes(dir)?;
    driver.engine.pin(false)?;
    driver.phase(plan.seconds * 0.2, false)?;
    let file_released = dir_bytes(dir)?;
    driver.engine.compact()?;
    Ok(Outcome {
        transactions_per_second: transactions as f64 / seconds,
        update: latency(&clocks.update),
        look_up: latency(&clocks.look_up),
        commit: latency(&clocks.commit),
        read_bytes_per_transaction: io.0 as f64 / transactions.max(1) as f64,
        written_bytes_per_transaction: io.1 as f64 / transactions.max(1) as f64,
        keys,
        file_loaded,
        file_warm,
        file_steady,
        file_pinned,
        file_released,
        file_compacted: dir_bytes(dir)?,
        missing: driver.missing,
        samples: driver.samples,
    })
}

/// Only new keys, nothing to delete: what the look for old versions costs where there are none.
pub(crate) fn insert_only(arm: Arm, count: u64, dir: &Path) -> Result<()> {
    let mut engine = arm.open(dir, 256 << 20, Keys::Uniform)?;
    let value = [7; VALUE_BYTES];
    for batch in 0..count / 1000 {
        let lsn = batch + 1;
        engine.batch(lsn, lsn, &mut |open| {
            (batch * 1000..(batch + 1) * 1000).try_for_each(|number| open.put(scattered(number), lsn, &value))
        })?;
    }
    Ok(())
}

/// Bytes of all files below `dir`, as they take space on the disk.
fn dir_bytes(dir: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        // A merge may remove a file between the two calls.
        let Ok(entry) = entry else { continue };
        let Ok(metadata) = entry.metadata() else { continue };
        bytes +=
            if metadata.is_dir() { dir_bytes(&entry.path()).unwrap_or(0) } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

/// Bytes that this process made the disk read, and that it handed to the kernel to be written. What
/// the kernel counts as written is whole units of its cache, whatever part of one changed.
fn io_bytes() -> Result<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok()).with_context(|| format!("{name} of /proc/self/io"))
    };
    Ok((field("read_bytes:")?, field("wchar:")?))
}
