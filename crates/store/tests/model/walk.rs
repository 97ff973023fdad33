//! A random walk over all operations of a store, compared with the oracle, with crashes in between.

use std::ops::Bound;
use std::sync::Arc;

use rand::{Rng, RngCore};
use store::{BottomUp, Error, Kind, Options, Snapshot, Store, Tree};

use crate::disk::{Fuse, SimDisk};
use crate::oracle::{Answer, Oracle, answer, lsn};

type Failure = String;
type Walked<T> = Result<T, Failure>;

/// The parameters of a walk, drawn from its seed.
#[derive(Debug, Clone)]
struct Shape {
    keys: u32,
    key_bytes_max: usize,
    prefix_bytes: usize,
    value_bytes_max: usize,
    batch_max: u32,
    horizon_lag: u64,
    crash_in_thousand: u32,
}

impl Shape {
    fn draw(random: &mut Source) -> Shape {
        let pick = |random: &mut Source, from: &[u32]| from[random.random_range(0..from.len())];
        Shape {
            keys: pick(random, &[1, 5, 60, 1000, 20_000]),
            key_bytes_max: pick(random, &[8, 24, 100, 700]) as usize,
            prefix_bytes: pick(random, &[0, 0, 10, 60]) as usize,
            value_bytes_max: pick(random, &[0, 20, 150, 150, 1500, 9000]) as usize,
            batch_max: pick(random, &[1, 5, 50, 500]),
            horizon_lag: u64::from(pick(random, &[0, 20, 300, 5000])),
            crash_in_thousand: pick(random, &[0, 5, 30, 100]),
        }
    }
}

/// The source of every decision in a walk: random numbers from a seed, or a fuzzer's bytes.
pub(crate) type Source = Box<dyn RngCore + Send>;

/// Tree, key, LSN, whether it is a deletion, value.
type Change = (usize, Vec<u8>, u64, bool, Vec<u8>);

pub(crate) struct Walk {
    random: Source,
    shape: Shape,
    options: Options,
    fuse: Arc<Fuse>,
    data: Arc<SimDisk>,
    log: Arc<SimDisk>,
    store: Option<Store>,
    trees: Vec<Tree>,
    /// Includes the changes since the last commit.
    now: Oracle,
    durable: Oracle,
    /// Changes since the last commit.
    batch: Vec<Change>,
    lsn: u64,
    /// Each snapshot with the oracle's floor.
    snapshots: Vec<(Snapshot, u64)>,
    pub(crate) operations: u64,
    pub(crate) crashes: u64,
}

/// How many items of a scan are compared if not all are.
const SCANNED_MAX: usize = 40;

const NAMES: [(&str, Kind); 3] =
    [("catalog", Kind::History), ("deletions", Kind::Window), ("second", Kind::History)];

impl Walk {
    pub(crate) fn drawn_from(mut random: Source) -> Walk {
        let shape = Shape::draw(&mut random);
        let bottom_up = [BottomUp::Full, BottomUp::Full, BottomUp::Restricted, BottomUp::Off];
        let options = Options {
            cache_bytes: [1 << 18, 1 << 20][random.random_range(0..2)],
            log_bytes: [1 << 16, 1 << 19][random.random_range(0..2)],
            size_bytes_max: None,
            // For at most some hundred pages: many stages, some, one.
            checkpoint_pages: [1, 4, 16, 0][random.random_range(0..4)],
            bottom_up: bottom_up[random.random_range(0..4)],
            background: false,
        };
        let fuse = Arc::new(Fuse::default());
        let data = Arc::new(SimDisk::new(fuse.clone()));
        let log = Arc::new(SimDisk::new(fuse.clone()));
        let oracle = Oracle {
            trees: NAMES.iter().map(|(_, kind)| (*kind, Default::default())).collect(),
            ..Oracle::default()
        };
        Walk {
            random,
            shape,
            options,
            fuse,
            data,
            log,
            store: None,
            trees: Vec::new(),
            now: oracle.clone(),
            durable: oracle,
            batch: Vec::new(),
            lsn: 0,
            snapshots: Vec::new(),
            operations: 0,
            crashes: 0,
        }
    }

    /// Walks `operations` steps. A failure says what was expected. If `lies`, the disks report
    /// syncs that they have not done, from the start on.
    pub(crate) fn run(&mut self, operations: u64, lies: bool) -> Walked<()> {
        self.reopen()?;
        self.data.lie(lies);
        self.log.lie(lies);
        while self.operations < operations {
            self.operations += 1;
            match self.step() {
                Ok(()) => {}
                Err(Stop::Failure(failure)) => {
                    return Err(format!("{failure} (operation {}, {:?})", self.operations, self.shape));
                }
                Err(Stop::Io) => self.power_cut()?,
            }
        }
        self.fuse.disarm();
        self.snapshots.clear();
        self.compare_all()
    }

    fn store(&mut self) -> &mut Store {
        self.store.as_mut().expect("it is open between steps")
    }

    fn step(&mut self) -> Result<(), Stop> {
        match self.random.random_range(0..1000) {
            0..600 => self.write(),
            600..800 => self.look_up(),
            800..830 => self.scan(),
            830..900 => self.commit_sometimes(),
            900..930 => self.snapshot(),
            930..960 => self.look_at_snapshot(),
            960..963 => Ok(self.store().checkpoint()?),
            963..967 => self.rarely(),
            967..968 => {
                self.snapshots.clear();
                self.now.forget();
                self.durable.forget();
                Ok(())
            }
            _ => {
                let crash = self.random.random_range(0..1000) < self.shape.crash_in_thousand;
                if crash {
                    let steps = self.random.random_range(1..60);
                    self.fuse.arm(steps);
                }
                Ok(())
            }
        }
    }

    /// Operations that look at everything and so take long.
    fn rarely(&mut self) -> Result<(), Stop> {
        match self.random.random_range(0..16) {
            0 | 1 => Ok(self.store().sweep_all()?),
            2 => Ok(self.store().compact()?),
            3 => Ok(self.store().check().map(|_| ())?),
            4 => {
                self.snapshots.clear();
                Ok(self.reopen()?)
            }
            5 => {
                // Opening then has nothing to do, and the log goes on where it was.
                self.store().checkpoint()?;
                self.snapshots.clear();
                Ok(self.reopen()?)
            }
            _ => Ok(()),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.random.random_range(0..self.shape.keys);
        let prefix = self.shape.prefix_bytes;
        let mut key = vec![b'p'; prefix];
        // The length follows from the number, so that the same key is drawn again.
        let length = number as usize * 7919 % (self.shape.key_bytes_max - 3).min(768 - prefix - 8) + 4;
        key.extend_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
        key.resize(prefix + length, number as u8);
        key
    }

    fn value(&mut self) -> Vec<u8> {
        let length = self.random.random_range(0..=self.shape.value_bytes_max);
        vec![self.random.random(); length]
    }

    fn write(&mut self) -> Result<(), Stop> {
        let tree = self.random.random_range(0..NAMES.len());
        let (key, value) = (self.key(), self.value());
        // Within a batch, LSNs may come in any order, and the same LSN replaces.
        let is_within = self.random.random_bool(0.1) && self.lsn > self.now.committed;
        let at = if is_within {
            self.random.random_range(self.now.committed + 1..=self.lsn)
        } else {
            self.lsn += self.random.random_range(1..3);
            self.lsn
        };
        let delete = self.random.random_bool(0.2);
        let handle = self.trees[tree];
        let store = self.store();
        if delete {
            store.delete(handle, &key, lsn(at), &value)?;
        } else {
            store.put(handle, &key, lsn(at), &value)?;
        }
        self.now.write(tree, &key, at, delete, &value);
        self.batch.push((tree, key, at, delete, value));
        if self.batch.len() >= self.shape.batch_max as usize { self.commit() } else { Ok(()) }
    }

    fn commit_sometimes(&mut self) -> Result<(), Stop> {
        if self.random.random_bool(0.5) {
            let lag = self.shape.horizon_lag;
            let horizon = self.lsn.saturating_sub(self.random.random_range(0..=lag));
            // Never below an earlier horizon: like the store's, the oracle's horizon only goes
            // forward.
            self.now.horizon = self.now.horizon.max(horizon);
            self.store().set_horizon(lsn(horizon));
        }
        self.commit()
    }

    fn commit(&mut self) -> Result<(), Stop> {
        let at = self.lsn;
        let horizon = self.now.horizon;
        // From here on, the commit may be durable or not, whatever the store reports.
        let mut after = Vec::new();
        std::mem::swap(&mut after, &mut self.batch);
        let result = self.store().commit(lsn(at));
        if let Err(error) = result {
            let stop = Stop::from(error);
            if let Stop::Failure(_) = stop {
                return Err(stop);
            }
            self.power_cut_in_commit(after, at, horizon)?;
            return Ok(());
        }
        self.make_durable(after, at, horizon);
        Ok(())
    }

    fn make_durable(&mut self, batch: Vec<Change>, at: u64, horizon: u64) {
        for (tree, key, lsn, delete, value) in batch {
            self.durable.write(tree, &key, lsn, delete, &value);
        }
        self.durable.committed = at;
        self.durable.horizon = horizon.min(at).max(self.durable.horizon);
        self.now.committed = at;
    }

    /// The horizon in force, by the oracle.
    fn floor(&self) -> u64 {
        self.durable.horizon
    }

    fn as_of(&mut self) -> u64 {
        let floor = self.floor();
        self.random.random_range(floor..=self.lsn.max(floor) + 2)
    }

    fn look_up(&mut self) -> Result<(), Stop> {
        let tree = self.random.random_range(0..NAMES.len());
        let (key, as_of, floor) = (self.key(), self.as_of(), self.floor());
        let handle = self.trees[tree];
        self.store().prefetch(handle, &key);
        let seen = self.store().get(handle, &key, lsn(as_of))?.map(answer);
        let expected = self.now.get(tree, &key, as_of, floor);
        same("get", &seen, &expected).map_err(|failure| format!("{key:?} as of {as_of}: {failure}"))?;
        let seen = self.store().latest(handle, &key)?.map(answer);
        same("latest", &seen, &self.now.get(tree, &key, u64::MAX, floor))?;
        if floor > 0 && !self.store().get(handle, &key, lsn(floor - 1)).is_err_and(|e| e.is_below_horizon()) {
            return Err(Stop::Failure("a state below the horizon was answered".into()));
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<(), Stop> {
        let tree = self.random.random_range(0..NAMES.len());
        let (a, b, as_of, floor) = (self.key(), self.key(), self.as_of(), self.floor());
        let bounds = [Bound::Included(&a[..]), Bound::Excluded(&a[..]), Bound::Unbounded];
        let ends = [Bound::Included(&b[..]), Bound::Excluded(&b[..]), Bound::Unbounded];
        let range = (bounds[self.random.random_range(0..3)], ends[self.random.random_range(0..3)]);
        let handle = self.trees[tree];
        let seen: Result<Vec<(Vec<u8>, Answer)>, Error> = self
            .store()
            .scan(handle, range, lsn(as_of))?
            .take(SCANNED_MAX)
            .map(|item| item.map(|(key, version)| (key, answer(version))))
            .collect();
        Ok(same("scan", &seen?, &self.now.scan(tree, range, as_of, floor, SCANNED_MAX))?)
    }

    fn snapshot(&mut self) -> Result<(), Stop> {
        if self.snapshots.len() >= 4 || self.random.random_bool(0.3) {
            if !self.snapshots.is_empty() {
                let index = self.random.random_range(0..self.snapshots.len());
                self.snapshots.swap_remove(index);
            }
            return Ok(());
        }
        let (floor, committed) = (self.floor(), self.durable.committed);
        let at = self.random.random_range(floor..=committed);
        let snapshot = self.store().reader().snapshot_at(lsn(at))?;
        self.snapshots.push((snapshot, floor));
        Ok(())
    }

    fn look_at_snapshot(&mut self) -> Result<(), Stop> {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let index = self.random.random_range(0..self.snapshots.len());
        let (tree, key) = (self.random.random_range(0..NAMES.len()), self.key());
        let (snapshot, floor) = &self.snapshots[index];
        let as_of = snapshot.lsn().as_u64();
        let seen = snapshot.get(self.trees[tree], &key)?.map(answer);
        same("get of a snapshot", &seen, &self.durable.get(tree, &key, as_of, *floor))?;
        if self.random.random_bool(0.2) {
            let seen: Result<Vec<_>, Error> = snapshot
                .scan(self.trees[tree], ..)
                .take(SCANNED_MAX)
                .map(|item| item.map(|(key, version)| (key, answer(version))))
                .collect();
            let all = (Bound::Unbounded, Bound::Unbounded);
            same("scan of a snapshot", &seen?, &self.durable.scan(tree, all, as_of, *floor, SCANNED_MAX))?;
        }
        Ok(())
    }

    /// Closes the store and opens it. The batch is gone.
    fn reopen(&mut self) -> Walked<()> {
        self.store = None;
        self.batch.clear();
        self.open()
    }

    fn open(&mut self) -> Walked<()> {
        loop {
            let opened = Store::open_on(self.data.clone(), self.log.clone(), self.options.clone());
            let ready = opened.and_then(|mut store| {
                let trees: Result<Vec<_>, _> =
                    NAMES.iter().map(|(name, kind)| store.tree(name, *kind)).collect();
                Ok((trees?, store))
            });
            match ready {
                Ok((trees, store)) => {
                    (self.trees, self.store) = (trees, Some(store));
                    break;
                }
                Err(error) if error.is_io() || error.is_poisoned() => self.cut_power(),
                Err(error) => return Err(format!("opening: {error}")),
            }
        }
        // Changes that a crash took back are gone.
        self.now = self.durable.clone();
        self.lsn = self.lsn.max(self.durable.committed);
        Ok(())
    }

    fn cut_power(&mut self) {
        self.crashes += 1;
        self.snapshots.clear();
        self.store = None;
        self.data.crash(&mut self.random);
        self.log.crash(&mut self.random);
        self.fuse.disarm();
        if self.random.random_bool(0.2) {
            // Crashes once more, during recovery.
            self.fuse.arm(self.random.random_range(1..30));
        }
    }

    fn power_cut(&mut self) -> Walked<()> {
        self.cut_power();
        self.batch.clear();
        self.open()?;
        self.compare_all()
    }

    /// The interrupted commit is there wholly or not at all.
    fn power_cut_in_commit(&mut self, batch: Vec<Change>, at: u64, horizon: u64) -> Walked<()> {
        self.cut_power();
        let before = self.durable.clone();
        self.make_durable(batch, at, horizon);
        self.open()?;
        let store = self.store.as_ref().expect("it was opened");
        if (store.committed(), store.horizon()) != (lsn(at), lsn(self.durable.horizon)) {
            self.durable = before.clone();
            self.now = before;
        }
        self.compare_all()
    }

    fn compare_all(&mut self) -> Walked<()> {
        self.fuse.disarm();
        let floor = self.floor();
        let committed = self.durable.committed;
        let (now, trees) = (self.now.clone(), self.trees.clone());
        let as_of = self.random.random_range(floor..=committed.max(floor));
        let store = self.store.as_mut().expect("it is open");
        same("the last commit", &(store.committed(), store.horizon()), &(lsn(committed), lsn(floor)))?;
        for (tree, handle) in trees.iter().enumerate() {
            for as_of in [as_of, committed, u64::MAX] {
                let seen: Result<Vec<(Vec<u8>, Answer)>, Error> = store
                    .scan(*handle, .., lsn(as_of))
                    .map_err(|error| error.to_string())?
                    .map(|item| item.map(|(key, version)| (key, answer(version))))
                    .collect();
                let seen = seen.map_err(|error| error.to_string())?;
                let all = (Bound::Unbounded, Bound::Unbounded);
                same(
                    &format!("tree {tree} as of {as_of}"),
                    &seen,
                    &now.scan(tree, all, as_of, floor, usize::MAX),
                )?;
            }
        }
        let checked = store.check().map_err(|error| error.to_string())?;
        if self.batch.is_empty() && checked.newest.as_u64() > committed {
            return Err(format!("a version of {} was never committed", checked.newest));
        }
        Ok(())
    }
}

enum Stop {
    /// The disk failed because the test made it fail.
    Io,
    Failure(Failure),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        if error.is_io() || error.is_poisoned() { Stop::Io } else { Stop::Failure(error.to_string()) }
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failure(failure)
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, expected: &T) -> Walked<()> {
    if seen == expected {
        return Ok(());
    }
    let short = |value: &T| format!("{value:?}").chars().take(300).collect::<String>();
    Err(format!("{what}: the store says {}, it should be {}", short(seen), short(expected)))
}
