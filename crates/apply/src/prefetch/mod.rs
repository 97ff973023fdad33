//! Reads pages of the target before the applier needs them.
//!
//! Applying reads one page after another, so on slow storage the applier waits. Other sessions of
//! the target read ahead of it. The rows that they look up are thrown away, but the pages stay in
//! the target's shared buffers.
//!
//! ```text
//!   planner: a change enters the batch  ----> ahead   \                 worker 0 --- target
//!                                                      >-- groups of -- worker 1 --- target
//!   writer: a set is about to be sent   ----> in hand /    keys         ...
//! ```
//! [`layout`] says which look-ups there are, [`queue`] how many wait, and [`gauge`] when they
//! pause. [`target`] reads indexes and plans from the target, and [`worker`] runs the look-ups.
//!
//! Invariants: the applier never waits for anything here, and no error here reaches the applier.
//! Look-ups change nothing: their sessions are read-only, hold no snapshot beyond one statement,
//! and give up on a lock at once.

mod figures;
mod gauge;
mod layout;
mod queue;
mod target;
mod worker;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::{Lsn, Progress, SubscriptionName};
use client::ConnInfo;
use proto::pgoutput::{Column, Tuple};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use txn::Op;

use crate::counters::{Counters, add};
use crate::statement::Arrays;
use crate::table::Table;
pub use figures::PrefetchFigures;
use layout::{Layout, Need};
pub(crate) use queue::ROWS_MIN;
use queue::{Bounds, Group, Queue, Row, Taken, Whose};

/// Which pages are read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// The replica identity's index and heap pages of rows that change.
    Identity,
    /// The same, and the leaf of every B-tree that a change enters.
    All,
}

impl Mode {
    fn word(self) -> Option<&'static str> {
        match self {
            Mode::Off => None,
            Mode::Identity => Some("identity"),
            Mode::All => Some("all"),
        }
    }
}

/// Settings of prefetching.
#[derive(Debug, Clone)]
pub struct Options {
    /// The target's address.
    pub target: ConnInfo,
    /// Names the sessions.
    pub subscription: SubscriptionName,
    /// Which pages are read.
    pub mode: Mode,
    /// Maximum number of sessions; `None` for as many as the target can spare.
    pub workers: Option<usize>,
    /// The stream's values are in binary form where types have one.
    pub binary: bool,
}

/// Reads from storage that takes 0.1 ms overlap eightfold; more sessions gain little on one disk.
const WORKERS_AUTO: usize = 8;
/// Without a setting, prefetching takes at most one of this many connections that the target has
/// left.
const CONNECTIONS_SHARE: usize = 4;
/// Initial size of a group. A group should take some tens of milliseconds.
const GROUP_ROWS: usize = 64;
/// Pages that may be ahead until the target has reported the size of its shared buffers.
const PAGES_AHEAD: u64 = 1_024;
/// Maximum age of a table's look-ups, because indexes come and go.
const LAYOUT_AGE_MAX: Duration = Duration::from_secs(60);
/// Fewer rows are not worth a statement, and more gain nothing.
const STATEMENT_ROWS: std::ops::RangeInclusive<usize> = 64..=4_096;
/// How many statements may be unfinished while pages are read ahead: one is executed and one waits.
/// The next is made as soon as the first is done.
pub(crate) const UNFINISHED: usize = 2;
/// Delay before groups that are too far ahead are looked at again. The applier writes some hundred
/// rows meanwhile.
const NEARER: Duration = Duration::from_millis(5);
/// Pause after an error.
const TROUBLE: Duration = Duration::from_secs(60);

/// A table's look-ups, as far as they are known; part of its mapping.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Known>);

#[derive(Default)]
struct Known {
    layout: Option<Arc<Layout>>,
    /// When the look-ups must be found out again; `None` if nothing is known yet.
    until: Option<Instant>,
    /// A worker is finding out the look-ups.
    asked: bool,
    /// Rows that came before anything was known.
    rows: usize,
}

impl Known {
    /// Whether the look-ups are still to be found out.
    fn is_awaited(&self) -> bool {
        self.layout.is_none() && (self.asked || self.until.is_none())
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}

impl Slot {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, layout: Option<Arc<Layout>>, lasts: Duration) {
        *self.known() = Known { layout, until: Some(Instant::now() + lasts), ..Known::default() };
    }
}

/// Shared by the applier, which hands over changes, and the workers.
pub(crate) struct Shared {
    options: Options,
    queue: Mutex<Queue>,
    /// Notified when there is work.
    ready: Notify,
    progress: Arc<Progress>,
    counters: Arc<Counters>,
    hands: AtomicU64,
    group_rows: AtomicUsize,
    pages_ahead: AtomicU64,
    /// Number of workers that may connect.
    workers: AtomicUsize,
    /// After an error, nothing is looked up until this time.
    trouble: Mutex<Option<Instant>>,
}

/// Hands changes over to be looked up; does nothing if prefetching is off.
#[derive(Clone, Default)]
pub(crate) struct Prefetch(Option<Arc<Shared>>);

impl Prefetch {
    /// Starts the workers, which end with the returned set. They connect when there is work.
    pub(crate) fn start(
        options: Option<Options>,
        progress: &Arc<Progress>,
        counters: &Arc<Counters>,
    ) -> (Prefetch, JoinSet<()>) {
        let mut workers = JoinSet::new();
        let count = options.as_ref().map_or(0, |options| options.workers.unwrap_or(WORKERS_AUTO));
        let wanted = options.filter(|options| options.mode != Mode::Off && count > 0);
        counters.prefetch.set_mode(wanted.as_ref().and_then(|options| options.mode.word()));
        counters.prefetch.set_trouble(None);
        counters.prefetch.workers.store(0, Ordering::Relaxed);
        let Some(options) = wanted else { return (Prefetch(None), workers) };
        let shared = Arc::new(Shared::new(options, progress, counters, count));
        for number in 0..count {
            workers.spawn(worker::work(Arc::clone(&shared), number));
        }
        (Prefetch(Some(shared)), workers)
    }

    /// Takes a change that enters the batch; its transaction's commit record is at `commit`.
    pub(crate) fn coming(&self, table: &Arc<Table>, op: &Op, commit: Lsn) {
        if let Some(shared) = &self.0 {
            shared.coming(table, op, commit);
        }
    }

    /// Marks a chunk as being written, until the result is dropped. The chunk has all changes up to
    /// the commit record at `up_to`, if that is given.
    pub(crate) fn hand(&self, up_to: Option<Lsn>) -> Hand {
        let number = self.0.as_ref().map_or(0, |shared| shared.hands.fetch_add(1, Ordering::Relaxed));
        Hand { shared: self.0.clone(), number, up_to }
    }
}

/// The rows of a chunk that is being written.
pub(crate) struct Hand {
    shared: Option<Arc<Shared>>,
    number: u64,
    up_to: Option<Lsn>,
}

/// What a set does to its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    Inserted,
    Updated,
    Deleted,
}

/// How a set is cut into statements, so that pages of later ones can be read while one is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Maximum rows of a statement.
    pub(crate) rows_max: usize,
    /// A set of fewer rows is not paced ([`Writing::is_paced`](crate::write::Writing::is_paced)).
    pub(crate) rows_min: usize,
}

impl Hand {
    /// How to cut a set that is `written` to `table`; `None` where nothing is read ahead. `columns`
    /// are the columns that it writes.
    pub(crate) fn pace(&self, table: &Table, written: Written, columns: &[usize]) -> Option<Pace> {
        let shared = self.shared.as_ref()?;
        // A statement that was sent cannot be cut any more if its pages then have to be read.
        let unknown = Pace { rows_max: *STATEMENT_ROWS.end(), rows_min: *STATEMENT_ROWS.end() };
        let layout = {
            let known = table.prefetch.known();
            match &known.layout {
                Some(layout) => Arc::clone(layout),
                None => return known.is_awaited().then_some(unknown),
            }
        };
        let lookups = layout.lookups(layout.need(written, columns));
        if lookups.iter().any(|lookup| lookup.gauge.is_on()) {
            Some(Pace { rows_max: shared.statement_rows(lookups.len()), rows_min: ROWS_MIN })
        } else {
            (!lookups.is_empty()).then_some(unknown)
        }
    }

    /// The index columns by which new rows of `table` are best sorted, because that index's leaves
    /// have to be read. `None` where no order is better than the key's.
    pub(crate) fn order(&self, table: &Table) -> Option<Vec<usize>> {
        self.shared.as_ref()?;
        table.prefetch.known().layout.as_ref()?.order(&table.key)
    }

    /// Takes `rows` of `table` that are about to be written. Their columns are those at `columns`
    /// of the source's tuple.
    pub(crate) fn set(&self, table: &Arc<Table>, written: Written, columns: &[usize], rows: &Arrays) {
        if let Some(shared) = &self.shared
            && rows.rows() >= ROWS_MIN as u64
        {
            shared.in_hand(table, written, columns, rows, self);
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            let dropped = shared.queue().close_hand(self.number);
            add(&shared.counters.prefetch.dropped, dropped as u64);
        }
    }
}

/// The result of asking for a table's look-ups.
enum Lookups {
    Known(Arc<Layout>),
    /// A worker is finding them out.
    Asked,
    /// The table has none at present.
    None,
}

/// A worker's next job.
enum Job {
    Learn(Arc<Table>),
    LookUp(Group),
}

impl Shared {
    fn new(options: Options, progress: &Arc<Progress>, counters: &Arc<Counters>, workers: usize) -> Shared {
        Shared {
            options,
            queue: Mutex::default(),
            ready: Notify::new(),
            progress: Arc::clone(progress),
            counters: Arc::clone(counters),
            hands: AtomicU64::new(0),
            group_rows: AtomicUsize::new(GROUP_ROWS),
            pages_ahead: AtomicU64::new(PAGES_AHEAD),
            workers: AtomicUsize::new(workers),
            trouble: Mutex::new(None),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            rows_max: self.group_rows.load(Ordering::Relaxed),
            pages_max: self.pages_ahead.load(Ordering::Relaxed),
        }
    }

    /// Rows of a statement, with `lookups` look-ups for each. The pages of [`UNFINISHED`]
    /// statements and one more must fit in memory.
    fn statement_rows(&self, lookups: usize) -> usize {
        let pages = usize::try_from(self.pages_ahead.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        (pages / (1 + lookups) / (UNFINISHED + 1)).clamp(*STATEMENT_ROWS.start(), *STATEMENT_ROWS.end())
    }

    /// The look-ups of `table`, of which `rows` have come. If they are unknown or too old, a worker
    /// finds them out. No session connects for only a few rows.
    fn layout(&self, table: &Arc<Table>, rows: usize, now: Instant) -> Lookups {
        let mut known = table.prefetch.known();
        known.rows = known.rows.saturating_add(rows);
        if known.until.is_none_or(|until| until <= now) && known.rows >= ROWS_MIN {
            known.until = Some(now + LAYOUT_AGE_MAX);
            known.asked = true;
            self.queue().unknown.push_back(Arc::clone(table));
            self.ready.notify_waiters();
        }
        match &known.layout {
            Some(layout) => Lookups::Known(Arc::clone(layout)),
            None if known.is_awaited() => Lookups::Asked,
            None => Lookups::None,
        }
    }

    /// Takes up the changes that came while the look-ups of `table` were found out.
    fn learned(&self, table: &Arc<Table>) {
        let waited = self.queue().take_waiting(table);
        for (op, commit) in waited {
            self.coming(table, &op, commit);
        }
    }

    fn coming(&self, table: &Arc<Table>, op: &Op, commit: Lsn) {
        let now = Instant::now();
        if self.is_in_trouble(now) {
            return;
        }
        let layout = match self.layout(table, 1, now) {
            Lookups::Known(layout) => layout,
            Lookups::Asked => {
                let applied = self.progress.snapshot().applied;
                return self.queue().wait(table, op, commit, applied);
            }
            Lookups::None => return,
        };
        let whose = Whose::Commit(commit);
        match op {
            Op::Insert(new) => self.look_up(table, &layout, &[(Need::NewRow, new)], whose, now),
            Op::Delete(old) => self.look_up(table, &layout, &[(Need::Row, &old.tuple)], whose, now),
            Op::Update { old: Some(old), new } if !same_key(table, &old.tuple, new) => {
                let needs = [(Need::Row, &old.tuple), (Need::NewRow, new)];
                self.look_up(table, &layout, &needs, whose, now);
            }
            Op::Update { new, .. } => {
                // A value that was not sent did not change, so only the row is needed.
                let whole = layout.new_version.is_some() && !new.has_unchanged();
                let need = if whole { Need::NewVersion } else { Need::Row };
                self.look_up(table, &layout, &[(need, new)], whose, now);
            }
        }
    }

    fn look_up(
        &self,
        table: &Arc<Table>,
        layout: &Arc<Layout>,
        needs: &[(Need, &Tuple)],
        whose: Whose,
        now: Instant,
    ) {
        let awake = |need| layout.lookups(need).iter().any(|lookup| lookup.gauge.is_awake(now));
        let Whose::Commit(commit) = whose else { return };
        if !needs.iter().any(|(need, _)| awake(*need)) {
            return;
        }
        let bounds = self.bounds();
        let applied = self.progress.snapshot().applied;
        let mut ready = false;
        let mut dropped = 0;
        for (need, tuple) in needs.iter().filter(|(need, _)| awake(*need)) {
            let values: Vec<Column<'_>> = tuple.columns().collect();
            let row = Row { table, layout, need: *need, whose, values: &values, binary: self.options.binary };
            let pages = 1 + layout.lookups(*need).len() as u64;
            let mut queue = self.queue();
            queue.come(commit, pages, applied);
            let taken = queue.push(&row, bounds, now);
            ready |= taken == Taken::Ready;
            dropped += u64::from(taken == Taken::No);
        }
        add(&self.counters.prefetch.dropped, dropped);
        if ready {
            self.ready.notify_waiters();
        }
    }

    fn in_hand(&self, table: &Arc<Table>, written: Written, columns: &[usize], rows: &Arrays, hand: &Hand) {
        let now = Instant::now();
        if self.is_in_trouble(now) {
            return;
        }
        let Lookups::Known(layout) = self.layout(table, ROWS_MIN, now) else { return };
        let need = layout.need(written, columns);
        let lookups = layout.lookups(need);
        if !lookups.iter().any(|lookup| lookup.gauge.is_awake(now)) {
            return;
        }
        let mut values = vec![Column::Unchanged; table.columns.len()];
        let mut walk = rows.walk();
        let bounds = self.bounds();
        // Each of the sessions should get some of it.
        let workers = self.workers.load(Ordering::Relaxed).max(1);
        let share = self.statement_rows(lookups.len()) * UNFINISHED / workers;
        let bounds = Bounds { rows_max: bounds.rows_max.min(share.max(ROWS_MIN)), ..bounds };
        let (mut taken, whose) = (0, Whose::Hand(hand.number));
        if let Some(up_to) = hand.up_to {
            self.queue().overtake(&layout, up_to);
        }
        while walk.next(columns, &mut values) {
            let row =
                Row { table, layout: &layout, need, whose, values: &values, binary: self.options.binary };
            let full = self.queue().push(&row, bounds, now) == Taken::No;
            if full {
                break;
            }
            taken += 1;
            if taken % bounds.rows_max == 0 {
                self.ready.notify_waiters();
            }
        }
        self.ready.notify_waiters();
        add(&self.counters.prefetch.dropped, rows.rows() - taken as u64);
    }

    /// Waits for the next job of worker `number`. All workers but the first help only where a probe
    /// has shown that look-ups pay.
    async fn next(&self, number: usize) -> Job {
        loop {
            let ready = self.ready.notified();
            tokio::pin!(ready);
            ready.as_mut().enable();
            let (job, waits_for_applier) = self.take(number);
            if let Some(job) = job {
                return job;
            }
            if waits_for_applier {
                let _ = tokio::time::timeout(NEARER, ready).await;
            } else {
                ready.await;
            }
        }
    }

    /// The next job. Without one, whether a group waits that is still too far ahead.
    fn take(&self, number: usize) -> (Option<Job>, bool) {
        if number >= self.workers.load(Ordering::Relaxed) {
            return (None, false);
        }
        let mut queue = self.queue();
        if number == 0
            && let Some(table) = queue.unknown.pop_front()
        {
            return (Some(Job::Learn(table)), false);
        }
        let applied = self.progress.snapshot().applied;
        let bounds = self.bounds();
        let (group, dropped) = queue.take(applied, bounds, |group| number == 0 || group.is_on());
        add(&self.counters.prefetch.dropped, dropped as u64);
        (group.map(Job::LookUp), queue.waits_for_applier(bounds))
    }

    fn is_in_trouble(&self, now: Instant) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match *trouble {
            Some(until) if now < until => true,
            Some(_) => {
                *trouble = None;
                false
            }
            None => false,
        }
    }

    /// Pauses all look-ups because of `why`, and logs it once while that lasts.
    fn fail(&self, why: String) {
        if self.counters.prefetch.trouble().is_none() {
            tracing::warn!(
                subscription = %self.options.subscription,
                "prefetch is off for {} s, and as long as it lasts: {why}", TROUBLE.as_secs()
            );
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + TROUBLE);
        self.counters.prefetch.set_trouble(Some(why));
        self.queue().clear();
    }
}

fn same_key(table: &Table, old: &Tuple, new: &Tuple) -> bool {
    let key = |tuple: &Tuple| -> Vec<u8> {
        let mut bytes = Vec::new();
        for (value, _) in tuple.columns().zip(&table.key_mask).filter(|(_, key)| **key) {
            if let Column::Text(value) | Column::Binary(value) = value {
                bytes.extend_from_slice(&value.len().to_be_bytes());
                bytes.extend_from_slice(value);
            }
        }
        bytes
    };
    key(old) == key(new)
}

#[cfg(test)]
pub(crate) mod on_servers {
    //! Gives the tests of plans access to the look-ups.

    use client::Wire;

    use super::*;
    use crate::shape::Shape;

    pub(crate) use super::worker::SETTINGS;

    /// Returns every look-up of `table`, and the columns that it takes.
    pub(crate) async fn look_ups(wire: &mut Wire, table: &Table) -> Vec<(Arc<Shape>, Vec<usize>)> {
        let indexes = target::read_indexes(wire, table).await.expect("the catalogs");
        let layout = Layout::new(table, &indexes, Mode::All, false);
        layout.all().map(|lookup| (Arc::clone(&lookup.shape), lookup.columns.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use proto::pgoutput::OldTuple;

    use super::layout::tests::indexes;
    use super::*;
    use crate::table::fixtures;

    /// A table with an index on `a` whose look-ups are known, and no workers.
    fn world() -> (Prefetch, Arc<Shared>, Arc<Table>) {
        let options = Options {
            target: ConnInfo::parse("host=nowhere.invalid").unwrap(),
            subscription: "p".parse().unwrap(),
            mode: Mode::All,
            workers: Some(2),
            binary: false,
        };
        let shared = Arc::new(Shared::new(options, &Arc::default(), &Arc::default(), 2));
        let table = fixtures::table();
        let of = indexes(&[("t_pkey", &["id"]), ("t_a", &["a"])], &["id", "a"]);
        table.prefetch.set(Some(Arc::new(Layout::new(&table, &of, Mode::All, false))), LAYOUT_AGE_MAX);
        (Prefetch(Some(Arc::clone(&shared))), shared, table)
    }

    fn set(columns: usize, rows: usize) -> Arrays {
        let mut arrays = Arrays::new(columns, false);
        for row in 0..rows {
            let text = row.to_string();
            arrays.push(std::iter::repeat_n(Column::Text(text.as_bytes()), columns)).unwrap();
        }
        arrays
    }

    fn tuple(id: usize, a: Column<'_>) -> Tuple {
        let id = id.to_string();
        [Column::Text(id.as_bytes()), a, Column::Null].into_iter().collect()
    }

    fn next(shared: &Shared) -> Option<(Need, usize)> {
        match shared.take(0).0? {
            Job::LookUp(group) => Some((group.need, group.rows)),
            Job::Learn(_) => panic!("it is known"),
        }
    }

    #[test]
    fn a_set_in_hand_is_looked_up_as_what_it_writes() {
        for (written, columns, need) in [
            (Written::Inserted, &[0, 1, 2][..], Need::NewRow),
            (Written::Updated, &[0, 1], Need::NewVersion),
            // `a` is a TOAST value that was not sent.
            (Written::Updated, &[0, 2], Need::Row),
            (Written::Deleted, &[0], Need::Row),
        ] {
            let (prefetch, shared, table) = world();
            let hand = prefetch.hand(None);
            hand.set(&table, written, columns, &set(columns.len(), 80));
            assert_eq!(next(&shared), Some((need, GROUP_ROWS)), "{written:?}");
            drop(hand);
            assert_eq!(next(&shared), None, "the chunk is written");
            assert_eq!(shared.counters.prefetch.dropped.load(Ordering::Relaxed), 80 - GROUP_ROWS as u64);
        }
    }

    #[test]
    fn statements_are_small_while_their_pages_are_read_ahead() {
        let (prefetch, shared, table) = world();
        let hand = prefetch.hand(None);
        let of = |written| hand.pace(&table, written, &[0, 1, 2]).map(|pace| (pace.rows_max, pace.rows_min));
        let most = *STATEMENT_ROWS.end();
        assert_eq!(of(Written::Inserted), Some((most, most)), "it may turn out that it pays");
        let Lookups::Known(layout) = shared.layout(&table, 0, Instant::now()) else { panic!("it is known") };
        layout.new_row[1].gauge.note(10_000, 10_000, Instant::now());
        // Two look-ups and the row itself, with the pages ahead shared by three statements.
        let each = usize::try_from(PAGES_AHEAD).unwrap() / 3 / 3;
        assert_eq!(of(Written::Inserted), Some((each, ROWS_MIN)));
        assert_eq!(of(Written::Deleted), Some((most, most)), "of that it is not known");
        assert_eq!(hand.order(&table), Some(vec![1]));
        hand.set(&table, Written::Inserted, &[0, 1, 2], &set(3, 340));
        let of_two_workers = std::iter::from_fn(|| next(&shared)).map(|(_, rows)| rows).collect::<Vec<_>>();
        assert_eq!(of_two_workers.iter().sum::<usize>(), 340);
        assert!(of_two_workers.iter().all(|rows| *rows <= GROUP_ROWS));
        shared.workers.store(16, Ordering::Relaxed);
        let hand = prefetch.hand(None);
        let mut others = set(3, 340);
        (340..680).for_each(|row| {
            let text = row.to_string();
            others.push(std::iter::repeat_n(Column::Text(text.as_bytes()), 3)).unwrap();
        });
        hand.set(&table, Written::Inserted, &[0, 1, 2], &others);
        let smallest = std::iter::from_fn(|| next(&shared)).map(|(_, rows)| rows).max();
        assert_eq!(smallest, Some((each * 2 / 16).max(ROWS_MIN)), "each of sixteen has a part");
        assert_eq!(Prefetch::default().hand(None).pace(&table, Written::Inserted, &[0, 1, 2]), None);
        *table.prefetch.known() = Known::default();
        assert_eq!(of(Written::Inserted), Some((most, most)), "its look-ups are not known yet");
        table.prefetch.set(None, TROUBLE);
        assert_eq!(of(Written::Inserted), None, "they cannot be known for a while");
    }

    #[test]
    fn a_change_is_looked_up_by_what_it_needs() {
        let (prefetch, shared, table) = world();
        let key = |id| OldTuple { key_only: true, tuple: tuple(id, Column::Null) };
        let a = Column::Text(b"5");
        let looked_up = |op: &dyn Fn(usize) -> Op| {
            (0..ROWS_MIN).for_each(|id| prefetch.coming(&table, &op(id), Lsn::new(10)));
            next(&shared)
        };
        let group = |need| Some((need, ROWS_MIN));
        assert_eq!(looked_up(&|id| Op::Insert(tuple(id, a))), group(Need::NewRow));
        let update = |id: usize| Op::Update { old: None, new: tuple(1_000 + id, a) };
        assert_eq!(looked_up(&update), group(Need::NewVersion));
        assert_eq!(looked_up(&|id| Op::Delete(key(2_000 + id))), group(Need::Row));
        // The key changes: the row of the old key, the leaves of the new one.
        let moved = |id: usize| Op::Update { old: Some(key(3_000 + id)), new: tuple(4_000 + id, a) };
        assert_eq!(looked_up(&moved), group(Need::Row));
        assert_eq!(next(&shared), group(Need::NewRow));
    }

    #[test]
    fn only_the_first_session_looks_while_it_is_not_known_to_pay() {
        let (prefetch, shared, table) = world();
        let hand = prefetch.hand(None);
        hand.set(&table, Written::Deleted, &[0], &set(1, 200));
        assert!(shared.take(1).0.is_none());
        assert!(shared.take(0).0.is_some());
        let Lookups::Known(layout) = shared.layout(&table, 0, Instant::now()) else { panic!("it is known") };
        layout.row.as_ref().unwrap().gauge.note(10_000, 10_000, Instant::now());
        assert!(shared.take(1).0.is_some());
        assert!(shared.take(2).0.is_none(), "there are two");
    }

    #[test]
    fn for_a_few_changes_nobody_connects() {
        let (prefetch, shared, table) = world();
        *table.prefetch.known() = Known::default();
        let mut asked = 0;
        for id in 0..40 {
            prefetch.coming(&table, &Op::Insert(tuple(id, Column::Null)), Lsn::new(10));
            if id + 1 < ROWS_MIN {
                assert!(shared.take(0).0.is_none(), "after {id}");
            } else if shared.take(0).0.is_some() {
                asked += 1;
            }
        }
        assert_eq!(asked, 1);
        assert_eq!(shared.queue().take_waiting(&table).len(), 40);
    }

    #[test]
    fn in_trouble_nothing_is_taken_in() {
        let (prefetch, shared, table) = world();
        let hand = prefetch.hand(None);
        hand.set(&table, Written::Deleted, &[0], &set(1, 200));
        shared.fail("no connection".to_owned());
        assert!(shared.take(0).0.is_none(), "what waited is dropped");
        hand.set(&table, Written::Deleted, &[0], &set(1, 200));
        prefetch.coming(&table, &Op::Insert(tuple(1, Column::Null)), Lsn::new(10));
        assert!(shared.take(0).0.is_none());
        assert_eq!(shared.counters.prefetch.trouble().as_deref(), Some("no connection"));
    }
}
