//! Opening from each head that a checkpoint writes on its way, compared with the oracle.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use store::{Disk, Error, Kind, Options, Store, Tree};

use crate::oracle::{Answer, Oracle, answer, lsn};

const NAMES: [(&str, Kind); 2] = [("history", Kind::History), ("window", Kind::Window)];
const PATIENCE: Duration = Duration::from_secs(120);

/// Both files of a store at one instant.
type Image = [Vec<u8>; 2];

#[derive(Debug, Default)]
struct State {
    files: Image,
    /// One image for each sync of the data file.
    images: Vec<Image>,
    /// How many more syncs of the data file may return; `None` for all.
    permits: Option<usize>,
    /// Whether a sync waits for a permit.
    is_waiting: bool,
    read: HeldRead,
}

/// A read of the data file that the test holds back.
#[derive(Debug, Default, PartialEq)]
enum HeldRead {
    #[default]
    None,
    /// The next read will be held back.
    Next,
    Waits,
}

/// Both disks of a store in memory. Keeps what each sync of the data file made durable.
#[derive(Debug, Default)]
struct Medium {
    state: Mutex<State>,
    changed: Condvar,
}

impl Medium {
    fn of(files: Image) -> Arc<Medium> {
        let state = State { files, ..State::default() };
        Arc::new(Medium { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn open(self: &Arc<Medium>, options: &Options) -> Result<(Store, [Tree; 2]), Error> {
        let half = |file| Arc::new(Half { medium: self.clone(), file });
        let mut store = Store::open_on(half(0), half(1), options.clone())?;
        let trees = [store.tree(NAMES[0].0, NAMES[0].1)?, store.tree(NAMES[1].0, NAMES[1].1)?];
        Ok((store, trees))
    }

    fn files(&self) -> Image {
        self.state.lock().unwrap().files.clone()
    }

    fn take_images(&self) -> Vec<Image> {
        std::mem::take(&mut self.state.lock().unwrap().images)
    }

    /// Lets `permits` syncs of the data file return from here on.
    fn permit(&self, permits: Option<usize>) {
        self.state.lock().unwrap().permits = permits;
        self.changed.notify_all();
    }

    /// Waits until a sync of the data file waits. Returns whether one does.
    fn wait_for_sync(&self) -> bool {
        let state = self.state.lock().unwrap();
        self.changed.wait_timeout_while(state, PATIENCE, |state| !state.is_waiting).unwrap().0.is_waiting
    }
}

impl Medium {
    fn set_read(&self, read: HeldRead) {
        self.state.lock().unwrap().read = read;
        self.changed.notify_all();
    }

    fn wait_for_read(&self) {
        let state = self.state.lock().unwrap();
        let waits = |state: &mut State| state.read != HeldRead::Waits;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, waits).unwrap();
        assert_eq!(waited.0.read, HeldRead::Waits, "nobody reads");
    }
}

#[derive(Debug)]
struct Half {
    medium: Arc<Medium>,
    file: usize,
}

impl Disk for Half {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut state = self.medium.state.lock().unwrap();
        if self.file == 0 && state.read == HeldRead::Next {
            state.read = HeldRead::Waits;
            self.medium.changed.notify_all();
            state = self.medium.changed.wait_while(state, |state| state.read == HeldRead::Waits).unwrap();
        }
        let bytes = state.files[self.file].get(offset as usize..offset as usize + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = &mut self.medium.state.lock().unwrap().files[self.file];
        let end = offset as usize + bytes.len();
        file.resize(file.len().max(end), 0);
        file[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.medium.state.lock().unwrap().files[self.file].len() as u64)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.medium.state.lock().unwrap().files[self.file].resize(bytes as usize, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.file == 1 {
            return Ok(());
        }
        let mut state = self.medium.state.lock().unwrap();
        while state.permits == Some(0) {
            state.is_waiting = true;
            self.medium.changed.notify_all();
            state = self.medium.changed.wait(state).unwrap();
        }
        state.is_waiting = false;
        state.permits = state.permits.map(|permits| permits - 1);
        let image = state.files.clone();
        state.images.push(image);
        Ok(())
    }
}

/// What was written, and the horizon of each commit.
#[derive(Debug, Clone)]
struct History {
    oracle: Oracle,
    horizons: BTreeMap<u64, u64>,
}

impl History {
    fn new() -> History {
        let trees = NAMES.iter().map(|(_, kind)| (*kind, Default::default())).collect();
        History { oracle: Oracle { trees, ..Oracle::default() }, horizons: BTreeMap::from([(0, 0)]) }
    }

    fn write(&mut self, store: &mut Store, trees: [Tree; 2], change: (usize, &[u8], u64, bool, &[u8])) {
        let (tree, key, at, delete, value) = change;
        let write = if delete { Store::delete } else { Store::put };
        write(store, trees[tree], key, lsn(at), value).unwrap();
        self.oracle.write(tree, key, at, delete, value);
    }

    fn commit(&mut self, store: &mut Store, at: u64, horizon: u64) {
        self.expect(at, horizon);
        store.set_horizon(lsn(horizon));
        store.commit(lsn(at)).unwrap();
    }

    /// Notes a commit that may become durable.
    fn expect(&mut self, at: u64, horizon: u64) {
        self.horizons.insert(at, horizon);
    }

    /// Opens `image`. The store must be exactly as of a commit not before `least`, and stay so.
    fn look_at(&self, image: Image, options: &Options, least: u64) -> u64 {
        let options = Options { background: false, ..options.clone() };
        let (mut store, trees) = Medium::of(image).open(&options).unwrap();
        let committed = store.committed().as_u64();
        assert!(committed >= least, "{committed} is before {least}");
        let horizon = self.horizons.get(&committed).copied();
        assert_eq!(Some(store.horizon().as_u64()), horizon, "the horizon of commit {committed}");
        self.compare(&mut store, trees);
        store.sweep_all().unwrap();
        self.compare(&mut store, trees);
        store.set_horizon(lsn(committed));
        store.commit(lsn(committed)).unwrap();
        store.sweep_all().unwrap();
        self.compare(&mut store, trees);
        committed
    }

    fn compare(&self, store: &mut Store, trees: [Tree; 2]) {
        let (committed, floor) = (store.committed().as_u64(), store.horizon().as_u64());
        let all = (Bound::Unbounded, Bound::Unbounded);
        for (index, tree) in trees.into_iter().enumerate() {
            for as_of in [floor, floor.midpoint(committed), committed, u64::MAX] {
                let seen: Result<Vec<(Vec<u8>, Answer)>, Error> = store
                    .scan(tree, .., lsn(as_of))
                    .unwrap()
                    .map(|item| item.map(|(key, version)| (key, answer(version))))
                    .collect();
                let expected = self.oracle.scan(index, all, as_of.min(committed), floor, usize::MAX);
                assert!(seen.unwrap() == expected, "tree {index} as of {as_of}, horizon {floor}");
            }
        }
        assert!(store.check().unwrap().newest.as_u64() <= committed, "a version was never committed");
    }
}

fn options() -> Options {
    Options {
        cache_bytes: 1 << 20,
        log_bytes: 1 << 17,
        checkpoint_pages: 2,
        background: false,
        ..Options::default()
    }
}

/// After each sync of the checkpoints of a random walk, the disks open as of the last commit.
#[test]
fn every_head_of_a_checkpoint_opens_with_the_same_content() {
    let (mut looked, mut stages_max) = (0, 0);
    for seed in 0..10_u64 {
        let mut random = StdRng::seed_from_u64(seed);
        let keys = [3_u64, 40, 400][random.random_range(0..3)];
        let value_max = [30, 200, 200, 5000][random.random_range(0..4)];
        let lag = [0, 100, 1000][random.random_range(0..3)];
        let options = Options { checkpoint_pages: random.random_range(1..6), ..options() };
        let medium = Medium::of(Image::default());
        let (mut store, trees) = medium.open(&options).unwrap();
        let mut history = History::new();
        let (mut last, mut committed, mut horizon) = (0_u64, 0, 0);
        let mut batch = Vec::new();
        for step in 0..4000 {
            // A batch has LSNs in any order.
            last += random.random_range(0..3) + u64::from(last == committed);
            let at = if random.random_bool(0.3) { random.random_range(committed + 1..=last) } else { last };
            let mut change = (random.random_range(0..2), random.random_range(0..keys).to_be_bytes(), at);
            if random.random_bool(0.2) && !batch.is_empty() {
                // The same version again. It replaces the one that a checkpoint may have.
                change = batch[random.random_range(0..batch.len())];
            }
            batch.push(change);
            let (tree, key, at) = change;
            let value = vec![random.random(); random.random_range(0..value_max)];
            history.write(&mut store, trees, (tree, &key, at, random.random_bool(0.3), &value));
            if random.random_bool(0.02) {
                committed = last;
                batch.clear();
                horizon = horizon.max(committed.saturating_sub(lag));
                history.expect(committed, horizon);
                history.commit(&mut store, committed, horizon);
            }
            if random.random_bool(0.002) {
                store.checkpoint().unwrap();
            }
            let images = medium.take_images();
            stages_max = stages_max.max(images.len() / 2);
            if step > 1000 {
                for image in images.into_iter().filter(|_| random.random_bool(0.15)) {
                    // A checkpoint that made room for a commit was written before that commit.
                    history.look_at(image, &options, 0);
                    looked += 1;
                }
            }
        }
    }
    println!("{looked} images, up to {stages_max} stages");
    assert!(looked > 200 && stages_max > 20, "{looked} images, up to {stages_max} stages");
}

/// Keys that have leaves of their own.
fn key(number: u64) -> Vec<u8> {
    [&number.to_be_bytes()[..], &[b'k'; 500]].concat()
}

/// The smallest cache: 16 changed pages begin a checkpoint.
fn smallest() -> Options {
    Options { cache_bytes: 1, log_bytes: 1 << 20, ..options() }
}

/// Keys so short that a leaf holds some thirty.
fn short(number: u64) -> [u8; 8] {
    (1000 + number).to_be_bytes()
}

/// A store of some seventy leaves without a free block. Each leaf has room for a few changes.
fn filled() -> (Image, History) {
    let medium = Medium::of(Image::default());
    let (mut store, trees) = medium.open(&smallest()).unwrap();
    let mut history = History::new();
    for number in 0..2000 {
        history.write(&mut store, trees, (0, &short(number), number + 1, false, &[1; 100]));
    }
    history.commit(&mut store, 2000, 0);
    store.compact().unwrap();
    drop(store);
    (medium.files(), history)
}

/// A checkpoint begins within a batch. Between two of its heads, the batch is committed, or it is
/// not.
#[test]
fn a_batch_is_committed_or_not_while_a_checkpoint_is_between_two_heads() {
    let (before, history) = filled();
    let options = Options { background: true, ..smallest() };
    // The first round runs to the end, to count the syncs.
    let mut syncs = None;
    for round in 0_usize.. {
        let permits = round.saturating_sub(1);
        let medium = Medium::of(before.clone());
        let (mut store, trees) = medium.open(&options).unwrap();
        let mut history = history.clone();
        // A commit that only the log has, then a batch that the checkpoint has in part.
        for number in 0..8 {
            // The leaf is in memory then, so that a change makes a page dirty at once, and always
            // the same number of pages.
            store.latest(trees[0], &short(number * 60)).unwrap();
            history.write(&mut store, trees, (0, &short(number * 60), 2100 + number, false, b"in the log"));
        }
        history.commit(&mut store, 2110, 2105);
        // Opening synced, too.
        drop(medium.take_images());
        medium.permit(syncs.map(|_| permits));
        for number in 0..24 {
            let deletes = number % 3 == 0;
            store.latest(trees[0], &short(number * 60)).unwrap();
            history.write(&mut store, trees, (0, &short(number * 60), 2200 + number, deletes, b"open"));
        }
        let Some(syncs) = syncs else {
            drop(store);
            syncs = Some(medium.take_images().len());
            continue;
        };
        if permits == syncs {
            break;
        }
        let is_between = medium.wait_for_sync();
        let not_committed = medium.files();
        history.commit(&mut store, 2300, 2250);
        let committed = medium.files();
        medium.permit(None);
        assert!(is_between, "{permits} of {syncs} syncs");
        assert_eq!(history.look_at(not_committed, &options, 2110), 2110, "{permits} syncs, not committed");
        assert_eq!(history.look_at(committed, &options, 2300), 2300, "{permits} syncs, committed");
    }
    assert!(syncs.is_some_and(|syncs| syncs > 12), "{syncs:?} syncs");
}

/// Opening writes checkpoints too: while it takes back a batch, and has not applied the log yet.
#[test]
fn a_crash_while_a_batch_is_taken_back_loses_no_commit() {
    let (before, mut history) = filled();
    let medium = Medium::of(before);
    let (mut store, trees) = medium.open(&options()).unwrap();
    for number in 40..60 {
        history.write(&mut store, trees, (0, &short(number * 30), 2100 + number, false, b"in the log"));
    }
    history.commit(&mut store, 2200, 2105);
    for number in 0..40 {
        history.write(&mut store, trees, (0, &short(number * 30), 2300 + number, false, b"open"));
    }
    store.checkpoint().unwrap();
    let mut looked = 0;
    // About forty leaves are as of the batch, and the others are not yet as of the commit.
    for image in medium.take_images().into_iter().skip(30).step_by(6) {
        let crashed = Medium::of(image);
        drop(crashed.open(&smallest()).unwrap());
        for image in crashed.take_images().into_iter().step_by(3) {
            assert_eq!(history.look_at(image, &smallest(), 2200), 2200);
            looked += 1;
        }
    }
    assert!(looked > 50, "{looked} images");
}

/// Between two stages, the log must have every commit that the head has. If the log ends before,
/// that is damage.
#[test]
fn a_log_that_ends_before_what_the_head_covers_is_refused() {
    let (before, mut history) = filled();
    let medium = Medium::of(before);
    let (mut store, trees) = medium.open(&options()).unwrap();
    for at in [2100, 2200] {
        for number in 0..40 {
            history.write(&mut store, trees, (0, &short(number * 30), at + number, false, b"in the log"));
        }
        history.commit(&mut store, at + 50, 0);
    }
    store.checkpoint().unwrap();
    let mut image = medium.take_images().swap_remove(9);
    history.look_at(image.clone(), &options(), 2250);
    // A block of the log has its number at byte 16.
    let number = |block: &[u8]| u64::from_le_bytes(block[16..24].try_into().unwrap());
    let newest = image[1].chunks(4096).enumerate().skip(1).max_by_key(|(_, block)| number(block));
    let at = newest.unwrap().0 * 4096 + 100;
    image[1][at] ^= 1;
    let refused = Medium::of(image).open(&options()).unwrap_err();
    assert!(refused.is_damaged() && refused.to_string().contains("the data file has commit"), "{refused}");
}

/// Between two heads, blocks are given away that a reader may be about to read.
#[test]
fn a_reader_does_not_mind_that_a_stage_writes_where_it_reads() {
    let (before, mut history) = filled();
    let medium = Medium::of(before);
    let (mut store, trees) = medium.open(&Options { background: true, ..smallest() }).unwrap();
    // Inner pages are in memory after this, so the next read is of a leaf.
    store.get(trees[0], &short(1999), lsn(2000)).unwrap();
    let snapshot = store.reader().snapshot().unwrap();
    medium.set_read(HeldRead::Next);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| snapshot.get(trees[0], &short(0)));
        medium.wait_for_read();
        medium.permit(Some(10));
        for number in 0..24 {
            store.latest(trees[0], &short(number * 60)).unwrap();
            history.write(&mut store, trees, (0, &short(number * 60), 2200 + number, false, b"new"));
        }
        let is_between = medium.wait_for_sync();
        medium.set_read(HeldRead::None);
        let seen = reading.join().unwrap();
        medium.permit(None);
        assert!(is_between, "no checkpoint runs");
        let seen = seen.unwrap().unwrap();
        assert_eq!((seen.lsn, seen.value), (lsn(1), vec![1; 100]));
    });
}

/// Pages alone have a part of a batch that is too long for the log. A deletion in that part must
/// not be missing when its elder comes from the log.
#[test]
fn a_deletion_forgotten_with_its_elder_does_not_let_the_elder_come_back() {
    let options = options();
    let medium = Medium::of(Image::default());
    let (mut store, trees) = medium.open(&options).unwrap();
    let mut history = History::new();
    for number in 0..200 {
        history.write(&mut store, trees, (0, &key(number), number + 1, false, &[1; 50]));
    }
    history.commit(&mut store, 300, 0);
    store.checkpoint().unwrap();
    let mut at = 1000;
    // The deletion first, then more changes than the log keeps of a batch, then the deletion's
    // elder.
    for number in 0..200 {
        history.write(&mut store, trees, (0, &key(number), 2000 + number, true, b"deletion"));
    }
    store.checkpoint().unwrap();
    for number in 0..200 {
        history.write(&mut store, trees, (0, &key(number), at + number, false, b"elder"));
    }
    at = 3000;
    history.commit(&mut store, at, 300);
    medium.take_images();
    // Both are forgotten, and the checkpoint that records this begins.
    history.commit(&mut store, at + 1, at);
    store.sweep_all().unwrap();
    store.checkpoint().unwrap();
    history.expect(at + 2, at);
    let images = medium.take_images();
    for image in images {
        history.look_at(image, &options, at);
    }
    // The same through opening: all of the log is applied, both are forgotten, and a checkpoint
    // records this.
    let log_only = Options { checkpoint_pages: 1, ..options };
    for number in 0..60 {
        history.write(&mut store, trees, (0, &key(number), at + 2000 + number, true, &[b'd'; 150]));
    }
    store.checkpoint().unwrap();
    for number in 0..30 {
        history.write(&mut store, trees, (0, &key(number), at + 1000 + number, false, b"elder"));
    }
    history.commit(&mut store, at + 3000, at);
    history.commit(&mut store, at + 3001, at + 3000);
    // Enough to fill their leaves, and few enough that no checkpoint begins.
    for number in 0..15 {
        let filler = [&key(2 * number)[..], b"+"].concat();
        history.write(&mut store, trees, (0, &filler, at + 3100 + number, false, &[b'f'; 200]));
    }
    history.commit(&mut store, at + 4000, at + 3000);
    let crashed = Medium::of(medium.files());
    drop(crashed.open(&log_only).unwrap());
    let images = crashed.take_images();
    assert!(images.len() > 4, "{} syncs", images.len());
    for image in images {
        history.look_at(image, &log_only, at + 4000);
    }
}

/// A head between two stages has a horizon above commits that are applied to its pages. A deletion
/// in such a commit is not forgotten before its elder, which is in the same batch, has come.
#[test]
fn a_deletion_waits_for_its_elder_though_the_horizon_is_above_it() {
    let options = Options { cache_bytes: 1 << 22, log_bytes: 1 << 20, checkpoint_pages: 1, ..options() };
    let medium = Medium::of(Image::default());
    let (mut store, trees) = medium.open(&options).unwrap();
    let mut history = History::new();
    for number in 0..40 {
        history.write(&mut store, trees, (0, &key(number), number + 1, false, &[1; 50]));
    }
    // In leaves with room for one more version, for stages after the first.
    for number in 0..500 {
        history.write(&mut store, trees, (0, &short(number), number + 100, false, &[1; 50]));
    }
    history.commit(&mut store, 700, 0);
    store.checkpoint().unwrap();
    // Deletions, then versions that fill their leaves, then the elders of the deletions.
    for number in 0..40 {
        history.write(&mut store, trees, (0, &key(number), 2000 + number, true, b"deletion"));
    }
    for number in 0..120 {
        let beside = [&key(number % 40)[..], b"+"].concat();
        history.write(&mut store, trees, (0, &beside, 2100 + number, false, &[2; 200]));
    }
    for number in 0..40 {
        history.write(&mut store, trees, (0, &key(number), 1000 + number, false, b"elder"));
    }
    history.commit(&mut store, 3000, 700);
    history.commit(&mut store, 3001, 3000);
    // The second call merges leaves that the first left nearly empty.
    store.sweep_all().unwrap();
    store.sweep_all().unwrap();
    for number in (0..500).step_by(60) {
        history.write(&mut store, trees, (0, &short(number), 4000 + number, false, b""));
    }
    history.commit(&mut store, 5000, 3000);
    medium.take_images();
    store.checkpoint().unwrap();
    let images = medium.take_images();
    assert!(images.len() > 4, "{} syncs", images.len());
    for image in images {
        history.look_at(image, &options, 5000);
    }
}

/// An inner page that merges with its neighbour is then bound to the changes below that neighbour.
#[test]
fn an_inner_page_that_takes_its_neighbour_is_bound_to_what_changed_below_that() {
    let options = Options { cache_bytes: 8 << 20, log_bytes: 8 << 20, checkpoint_pages: 1, ..options() };
    let medium = Medium::of(Image::default());
    let (mut store, trees) = medium.open(&options).unwrap();
    let mut history = History::new();
    // Three inner pages below the root. The second one then becomes less than half full.
    for number in 0..12_000 {
        history.write(&mut store, trees, (0, &short(number), number + 1, false, &[1; 100]));
    }
    history.commit(&mut store, 12_000, 0);
    for number in 7000..11_000 {
        history.write(&mut store, trees, (0, &short(number), 13_000 + number, true, b""));
    }
    history.commit(&mut store, 30_000, 29_000);
    store.sweep_all().unwrap();
    store.checkpoint().unwrap();
    let before = store.stats();
    // A leaf below the second inner page shares its room. Then the first inner page becomes small
    // and takes the second.
    for number in 0.. {
        history.write(&mut store, trees, (0, &short(6000 + number), 30_001 + number, false, &[2; 100]));
        if store.stats().shares > before.shares {
            break;
        }
    }
    assert_eq!(store.stats().splits, before.splits);
    for number in 0..5400 {
        history.write(&mut store, trees, (0, &short(number), 31_000 + number, true, b""));
    }
    history.commit(&mut store, 40_000, 39_000);
    store.sweep_all().unwrap();
    assert_eq!(store.stats().checkpoints, before.checkpoints, "all of it is in one checkpoint");
    drop(medium.take_images());
    store.checkpoint().unwrap();
    let images = medium.take_images();
    for image in images {
        assert_eq!(history.look_at(image, &options, 40_000), 40_000);
    }
}

/// A crash may take back the versions that made a fence within a key. New versions of the key may
/// then stand on both sides of that fence: they wait for two leaves, and the elder goes first.
#[test]
fn versions_on_both_sides_of_a_void_fence_go_into_their_leaves_in_order() {
    let (before, _) = filled();
    let medium = Medium::of(before);
    let (mut store, trees) = medium.open(&smallest()).unwrap();
    // More than fits in memory.
    for number in 2000..3000 {
        store.put(trees[0], &short(number), lsn(number + 1), &[1; 100]).unwrap();
    }
    store.commit(lsn(3000)).unwrap();
    let hot = short(1000);
    for number in 1..=300 {
        store.put(trees[0], &hot, lsn(3000 + number), &[3; 100]).unwrap();
    }
    store.checkpoint().unwrap();
    let crashed = medium.files();
    drop(store);
    let (mut store, trees) = Medium::of(crashed).open(&smallest()).unwrap();
    assert_eq!(store.committed(), lsn(3000));
    // After this, the leaf is not in memory.
    for number in (0..900).chain(1100..3000).step_by(10) {
        store.latest(trees[0], &short(number)).unwrap();
    }
    store.put(trees[0], &hot, lsn(3050), b"elder").unwrap();
    store.put(trees[0], &hot, lsn(3250), b"younger").unwrap();
    assert_eq!(store.stats().pending, 2, "both wait");
    // The leaf of the younger version is in memory now, and is changed.
    let from_here = (Bound::Included(&hot[..]), Bound::Unbounded);
    assert!(store.scan(trees[0], from_here, lsn(3300)).unwrap().next().is_some());
    store.put(trees[0], &hot, lsn(3300), b"youngest").unwrap();
    assert_eq!(store.stats().pending, 2, "this one did not wait");
    for (as_of, value) in [(3400, "youngest"), (3299, "younger"), (3249, "elder")] {
        assert_eq!(store.get(trees[0], &hot, lsn(as_of)).unwrap().unwrap().value, value.as_bytes());
    }
    store.commit(lsn(3300)).unwrap();
    store.check().unwrap();
}
