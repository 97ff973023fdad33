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
//! `lookups` says which look-ups there are, `queue` how many wait, and `gauge` when they
//! pause. `indexes` reads indexes and plans from the target, and `worker` runs the look-ups.
//!
//! Invariants: the applier never waits for anything here, and no error here reaches the applier.
//! Look-ups change nothing: their sessions are read-only, hold no snapshot beyond one statement,
//! and give up on a lock at once.

mod explain;
mod figures;
mod gauge;
mod indexes;
mod known;
mod lookups;
mod options;
mod queue;
mod shared_queue;
mod worker;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Lsn, Progress};
use plan::{Arrays, Table};
use tokio::task::JoinSet;
use txn::Op;

pub use explain::{explain, whole_scan};
pub use figures::PrefetchFigures;
use figures::add;
use known::KnownLookups;
pub use lookups::Written;
pub use options::{PrefetchMode, PrefetchOptions};
use queue::ROWS_MIN;
pub use shared_queue::UNFINISHED;
use shared_queue::{STATEMENT_ROWS, SharedQueue};

/// Reads from storage that takes 0.1 ms overlap eightfold; more sessions gain little on one disk.
const WORKERS_AUTO: usize = 8;

/// Hands changes over to be looked up; does nothing if prefetching is off.
#[derive(Clone, Default)]
pub struct Prefetch(Option<Arc<SharedQueue>>);

impl Prefetch {
    /// Starts the workers, which end with the returned set. They connect when there is work.
    pub fn start(
        options: Option<PrefetchOptions>,
        progress: &Arc<Progress>,
        figures: &Arc<PrefetchFigures>,
    ) -> (Prefetch, JoinSet<()>) {
        let mut workers = JoinSet::new();
        let count = options.as_ref().map_or(0, |options| options.workers.unwrap_or(WORKERS_AUTO));
        let wanted = options.filter(|options| options.mode != PrefetchMode::Off && count > 0);
        figures.set_mode(wanted.as_ref().and_then(|options| options.mode.word()));
        figures.set_trouble(None);
        figures.workers.store(0, Ordering::Relaxed);
        let Some(options) = wanted else { return (Prefetch(None), workers) };
        let shared = Arc::new(SharedQueue::new(options, progress, figures, count));
        for number in 0..count {
            workers.spawn(worker::work(Arc::clone(&shared), number));
        }
        (Prefetch(Some(shared)), workers)
    }

    /// Takes a change that enters the batch; its transaction's commit record is at `commit`.
    pub fn coming(&self, table: &Arc<Table>, op: &Op, commit: Lsn) {
        if let Some(shared) = &self.0 {
            shared.coming(table, op, commit);
        }
    }

    /// Marks a chunk as being written, until the result is dropped. The chunk has all changes up to
    /// the commit record at `up_to`, if that is given.
    pub fn hand(&self, up_to: Option<Lsn>) -> Hand {
        let number = self.0.as_ref().map_or(0, |shared| shared.hands.fetch_add(1, Ordering::Relaxed));
        Hand { shared: self.0.clone(), number, up_to }
    }
}

/// The rows of a chunk that is being written.
pub struct Hand {
    shared: Option<Arc<SharedQueue>>,
    number: u64,
    up_to: Option<Lsn>,
}

/// How a set is cut into statements, so that pages of later ones can be read while one is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Maximum rows of a statement.
    pub rows_max: usize,
    /// A set of fewer rows is not paced.
    pub rows_min: usize,
}

impl Hand {
    /// How to cut a set that is `written` to `table`; `None` where nothing is read ahead. `columns`
    /// are the columns that it writes.
    pub fn pace(&self, table: &Table, written: Written, columns: &[usize]) -> Option<Pace> {
        let shared = self.shared.as_ref()?;
        // A statement that was sent cannot be cut any more if its pages then have to be read.
        let unknown = Pace { rows_max: *STATEMENT_ROWS.end(), rows_min: *STATEMENT_ROWS.end() };
        let table_lookups = match shared.known.of(table) {
            KnownLookups::Known(table_lookups) => table_lookups,
            KnownLookups::Asked => return Some(unknown),
            KnownLookups::None => return None,
        };
        let lookups = table_lookups.lookups(table_lookups.need(written, columns));
        if lookups.iter().any(|lookup| lookup.gauge.is_on()) {
            Some(Pace { rows_max: shared.statement_rows(lookups.len()), rows_min: ROWS_MIN })
        } else {
            (!lookups.is_empty()).then_some(unknown)
        }
    }

    /// The index columns by which new rows of `table` are best sorted, because that index's leaves
    /// have to be read. `None` where no order is better than the key's.
    pub fn order(&self, table: &Table) -> Option<Vec<usize>> {
        self.shared.as_ref()?.known.table_lookups(table)?.order(&table.key)
    }

    /// Takes `rows` of `table` that are about to be written. Their columns are those at `columns`
    /// of the source's tuple.
    pub fn set(&self, table: &Arc<Table>, written: Written, columns: &[usize], rows: &Arrays) {
        if let Some(shared) = &self.shared
            && rows.rows() >= ROWS_MIN as u64
        {
            shared.in_hand(table, written, columns, rows, self.number, self.up_to);
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            let dropped = shared.queue().close_hand(self.number);
            add(&shared.figures.dropped, dropped as u64);
        }
    }
}

#[cfg(feature = "fixtures")]
pub mod on_servers {
    //! Gives the tests of plans access to the look-ups.

    use client::Wire;
    use plan::sql::Shape;

    use super::lookups::TableLookups;
    use super::*;

    /// The settings of a session that looks rows up.
    pub fn settings() -> Vec<(&'static str, &'static str)> {
        worker::SETTINGS.to_vec()
    }

    /// Returns every look-up of `table`, and the columns that it takes.
    pub async fn look_ups(wire: &mut Wire, table: &Table) -> Vec<(Arc<Shape>, Vec<usize>)> {
        let indexes = indexes::read_indexes(wire, table).await.expect("the catalogs");
        let table_lookups = TableLookups::new(table, &indexes, PrefetchMode::All, false);
        table_lookups.all().map(|lookup| (Arc::clone(&lookup.shape), lookup.columns.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use plan::fixtures;
    use proto::pgoutput::{Column, OldTuple, Tuple};

    use client::ConnInfo;

    use super::known::LOOKUPS_AGE_MAX;
    use super::lookups::tests::indexes;
    use super::lookups::{Need, TableLookups};
    use super::shared_queue::{GROUP_ROWS, Job, PAGES_AHEAD, TROUBLE};
    use super::*;

    /// A table with an index on `a` whose look-ups are known, and no workers.
    fn world() -> (Prefetch, Arc<SharedQueue>, Arc<Table>) {
        let options = PrefetchOptions {
            target: ConnInfo::parse("host=nowhere.invalid").unwrap(),
            subscription: "p".parse().unwrap(),
            mode: PrefetchMode::All,
            workers: Some(2),
            binary: false,
        };
        let shared = Arc::new(SharedQueue::new(options, &Arc::default(), &Arc::default(), 2));
        let table = fixtures::table();
        let of = indexes(&[("t_pkey", &["id"]), ("t_a", &["a"])], &["id", "a"]);
        let table_lookups = TableLookups::new(&table, &of, PrefetchMode::All, false);
        shared.known.set(&table, Some(Arc::new(table_lookups)), LOOKUPS_AGE_MAX);
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

    fn next(shared: &SharedQueue) -> Option<(Need, usize)> {
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
            assert_eq!(shared.figures.dropped.load(Ordering::Relaxed), 80 - GROUP_ROWS as u64);
        }
    }

    #[test]
    fn statements_are_small_while_their_pages_are_read_ahead() {
        let (prefetch, shared, table) = world();
        let hand = prefetch.hand(None);
        let of = |written| hand.pace(&table, written, &[0, 1, 2]).map(|pace| (pace.rows_max, pace.rows_min));
        let most = *STATEMENT_ROWS.end();
        assert_eq!(of(Written::Inserted), Some((most, most)), "it may turn out that it pays");
        let KnownLookups::Known(table_lookups) = shared.table_lookups(&table, 0, Instant::now()) else {
            panic!("it is known")
        };
        table_lookups.new_row[1].gauge.note(10_000, 10_000, Instant::now());
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
        shared.known.forget(&table);
        assert_eq!(of(Written::Inserted), Some((most, most)), "its look-ups are not known yet");
        shared.known.set(&table, None, TROUBLE);
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
        let KnownLookups::Known(table_lookups) = shared.table_lookups(&table, 0, Instant::now()) else {
            panic!("it is known")
        };
        table_lookups.row.as_ref().unwrap().gauge.note(10_000, 10_000, Instant::now());
        assert!(shared.take(1).0.is_some());
        assert!(shared.take(2).0.is_none(), "there are two");
    }

    #[test]
    fn for_a_few_changes_nobody_connects() {
        let (prefetch, shared, table) = world();
        shared.known.forget(&table);
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
        assert_eq!(shared.figures.trouble().as_deref(), Some("no connection"));
    }
}
