//! Rows that wait to be looked up, in groups of one table and need.
//!
//! There are two lines, and *in hand* goes first.
//!
//! - *In hand*: rows of the sets that the executor is sending, in the order in which it writes
//!   them. The executor follows behind. Rows still here when its chunk is done are dropped.
//! - *Ahead*: changes as they enter the batch, with their commit. Rows that are applied meanwhile
//!   are dropped. So are rows of a table that the executor begins to send in sets, because sets
//!   have another order.
//!
//! Both lines together hold at most [`BYTES_MAX`] of values, whatever the batch is. A batch may
//! need more pages than fit into the buffers. So a group ahead waits until it is within a number of
//! pages of the applied position. Otherwise pages would be evicted before they are used. A key that
//! was looked up recently, or waits in the same line, is not added again.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Instant;

use base::Lsn;
use plan::{Arrays, CHANGE_OVERHEAD, Table};
use proto::pgoutput::Column;
use rustc_hash::{FxHashSet, FxHasher};
use txn::Op;

use crate::lookups::{Need, TableLookups};

/// Limit of the values that wait, in bytes. A batch takes 16 MB by default. Each small change costs
/// [`CHANGE_OVERHEAD`] and as much again for values. That makes 50,000 keys, each of 80 bytes at
/// most.
pub(crate) const BYTES_MAX: usize = 4 * 1024 * 1024;
/// The share of rows ahead, so that there is room for rows in hand.
const AHEAD_BYTES_MAX: usize = BYTES_MAX / 4 * 3;
/// Limit of the changes of tables just met, in bytes. They wait for milliseconds.
const WAITING_BYTES_MAX: usize = 1024 * 1024;
/// A smaller group is not worth a round trip: the applier is as fast.
pub(crate) const ROWS_MIN: usize = 16;

/// To what the rows belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// To transactions up to the one whose commit record is here.
    Commit(Lsn),
    /// To the chunk in hand with this number.
    Hand(u64),
}

/// Rows that are looked up together.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) table: Arc<Table>,
    pub(crate) table_lookups: Arc<TableLookups>,
    pub(crate) need: Need,
    /// Each with the number of its look-up among those for the need.
    pub(crate) sets: Vec<(usize, Arrays)>,
    pub(crate) rows: usize,
    bytes: usize,
    whose: Whose,
    /// Pages needed by all changes before its first row.
    from: u64,
    /// Hashes of its rows, for a group ahead.
    hashes: Vec<u64>,
}

impl Group {
    /// An empty group for `row` and others like it. `None` if all its look-ups pause.
    fn new(row: &WantedRow<'_>, from: u64, now: Instant) -> Option<Group> {
        let lookups = row.table_lookups.lookups(row.need).iter().enumerate();
        let awake = lookups.filter(|(_, lookup)| lookup.gauge.is_awake(now));
        let sets: Vec<_> =
            awake.map(|(number, lookup)| (number, Arrays::new(lookup.columns.len(), row.binary))).collect();
        (!sets.is_empty()).then(|| Group {
            table: Arc::clone(row.table),
            table_lookups: Arc::clone(row.table_lookups),
            need: row.need,
            sets,
            rows: 0,
            bytes: 0,
            whose: row.whose,
            from,
            hashes: Vec::new(),
        })
    }

    fn takes(&self, row: &WantedRow<'_>, rows_max: usize) -> bool {
        self.table_lookups.id == row.table_lookups.id
            && self.need == row.need
            && self.rows < rows_max
            && std::mem::discriminant(&self.whose) == std::mem::discriminant(&row.whose)
    }

    /// Adds a row that has all values; returns the bytes by which the group grew.
    fn push(&mut self, row: &WantedRow<'_>, hash: u64) -> usize {
        let before = self.bytes;
        self.bytes = 0;
        let lookups = row.table_lookups.lookups(row.need);
        for (number, set) in &mut self.sets {
            let columns = &lookups[*number].columns;
            set.push(columns.iter().map(|&position| row.values[position])).expect("each is a value");
            self.bytes += set.byte_len();
        }
        if matches!(row.whose, Whose::Commit(_)) {
            self.hashes.push(hash);
        }
        self.bytes += size_of_val(self.hashes.as_slice());
        self.rows += 1;
        self.whose = row.whose;
        self.bytes - before
    }

    /// Whether a probe has shown that its look-ups pay.
    pub(crate) fn is_on(&self) -> bool {
        let lookups = self.table_lookups.lookups(self.need);
        self.sets.iter().any(|(number, _)| lookups[*number].gauge.is_on())
    }
}

/// Measures the pages between the applied position and the newest change.
#[derive(Debug, Default)]
struct Distance {
    /// Pages needed up to the commit record at each mark.
    marks: VecDeque<(Lsn, u64)>,
    come: u64,
    applied: u64,
}

impl Distance {
    /// Minimum pages between two marks, so that even a long distance has few.
    const STEP: u64 = 64;

    fn come(&mut self, commit: Lsn, pages: u64) {
        self.come += pages;
        let near = self.come - self.marked_before() < Self::STEP;
        match self.marks.back_mut() {
            Some(last) if last.0 == commit || near => *last = (commit, self.come),
            _ => self.marks.push_back((commit, self.come)),
        }
    }

    /// Pages up to the mark before the last.
    fn marked_before(&self) -> u64 {
        let before = self.marks.len().checked_sub(2).and_then(|at| self.marks.get(at));
        before.map_or(self.applied, |(_, pages)| *pages)
    }

    /// Returns the distance. `applied` is behind the end of the last transaction on the target.
    fn pages(&mut self, applied: Lsn) -> u64 {
        while let Some((_, pages)) = self.marks.front().filter(|(commit, _)| *commit < applied) {
            self.applied = *pages;
            self.marks.pop_front();
        }
        self.come - self.applied
    }
}

/// Hashes of recently looked-up keys: between `keep` and twice as many.
#[derive(Debug, Default)]
struct Recent {
    new: FxHashSet<u64>,
    old: FxHashSet<u64>,
}

impl Recent {
    fn has(&self, hash: u64) -> bool {
        self.old.contains(&hash) || self.new.contains(&hash)
    }

    /// Adds a hash; returns false if it was there.
    fn add(&mut self, hash: u64, keep: usize) -> bool {
        if self.old.contains(&hash) || !self.new.insert(hash) {
            return false;
        }
        if self.new.len() >= keep {
            self.old = std::mem::take(&mut self.new);
        }
        true
    }
}

/// The two lines; the module explains them.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    hand: VecDeque<Group>,
    ahead: VecDeque<Group>,
    bytes: usize,
    distance: Distance,
    recent: Recent,
    /// Hashes of rows that are, or recently were, in the line ahead.
    asked: Recent,
    /// Tables whose look-ups are not known yet.
    pub(crate) unknown: VecDeque<Arc<Table>>,
    /// Changes of these tables, and the size of the changes in bytes.
    waiting: Vec<(Arc<Table>, Op, Lsn)>,
    waiting_bytes: usize,
}

/// A row to look up.
pub(crate) struct WantedRow<'r> {
    pub(crate) table: &'r Arc<Table>,
    pub(crate) table_lookups: &'r Arc<TableLookups>,
    pub(crate) need: Need,
    pub(crate) whose: Whose,
    /// Indexed by position in the source's tuple.
    pub(crate) values: &'r [Column<'r>],
    pub(crate) binary: bool,
}

impl WantedRow<'_> {
    /// Whether every value that the look-ups take was sent, in the form that they take.
    fn has_all_values(&self) -> bool {
        let is_value = |position: &usize| match self.values.get(*position) {
            Some(Column::Null) => true,
            Some(Column::Text(_)) => !self.binary,
            Some(Column::Binary(_)) => self.binary,
            Some(Column::Unchanged) | None => false,
        };
        let lookups = self.table_lookups.lookups(self.need);
        lookups.iter().all(|lookup| lookup.columns.iter().all(is_value))
    }
}

/// Limits of groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Maximum rows of a group.
    pub(crate) rows_max: usize,
    /// Maximum distance from the applied position, in pages.
    pub(crate) pages_max: u64,
}

/// The result of adding a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// A group has become ready for a waiting worker.
    Ready,
    /// The row is in the queue, or need not be.
    Yes,
    /// The queue has no room.
    No,
}

impl Queue {
    /// Keeps a change until its table's look-ups are known, if there is room. Changes that are
    /// applied already make room.
    pub(crate) fn wait(&mut self, table: &Arc<Table>, op: &Op, commit: Lsn, applied: Lsn) {
        let bytes = op.byte_len() + CHANGE_OVERHEAD;
        let applied_first = self.waiting.first().is_some_and(|(_, _, first)| *first < applied);
        if self.waiting_bytes + bytes > WAITING_BYTES_MAX && applied_first {
            self.waiting.retain(|(_, _, commit)| *commit >= applied);
            let cost = |(_, op, _): &(_, Op, _)| op.byte_len() + CHANGE_OVERHEAD;
            self.waiting_bytes = self.waiting.iter().map(cost).sum();
        }
        if self.waiting_bytes + bytes <= WAITING_BYTES_MAX {
            self.waiting_bytes += bytes;
            // Detached, so that the change does not keep its message alive.
            self.waiting.push((Arc::clone(table), op.detached(), commit));
        }
    }

    /// Takes the changes that wait for the look-ups of `table`.
    pub(crate) fn take_waiting(&mut self, table: &Arc<Table>) -> Vec<(Op, Lsn)> {
        let mut taken = Vec::new();
        for (of, op, commit) in std::mem::take(&mut self.waiting) {
            if Arc::ptr_eq(&of, table) {
                self.waiting_bytes -= op.byte_len() + CHANGE_OVERHEAD;
                taken.push((op, commit));
            } else {
                self.waiting.push((of, op, commit));
            }
        }
        taken
    }

    /// Notes a change that needs `pages`, and whose transaction's commit record is at `commit`.
    pub(crate) fn come(&mut self, commit: Lsn, pages: u64, applied: Lsn) {
        self.distance.pages(applied);
        self.distance.come(commit, pages);
    }

    /// Adds a row to a group of its line, unless its key was added recently.
    pub(crate) fn push(&mut self, row: &WantedRow<'_>, bounds: Bounds, now: Instant) -> Taken {
        let bytes_max = match row.whose {
            Whose::Hand(_) => BYTES_MAX,
            Whose::Commit(_) => AHEAD_BYTES_MAX,
        };
        if self.bytes >= bytes_max {
            return Taken::No;
        }
        if !row.has_all_values() {
            return Taken::Yes;
        }
        let keep = usize::try_from(bounds.pages_max).unwrap_or(usize::MAX);
        let hash = hash(row);
        let (line, is_new) = match row.whose {
            Whose::Hand(_) => (&mut self.hand, self.recent.add(hash, keep)),
            Whose::Commit(_) => (&mut self.ahead, !self.recent.has(hash) && self.asked.add(hash, keep)),
        };
        if !is_new {
            return Taken::Yes;
        }
        // Consecutive transactions touch few tables.
        let open = line.iter().rev().take(8).position(|group| group.takes(row, bounds.rows_max));
        let at = match open {
            Some(back) => line.len() - 1 - back,
            None => {
                let Some(group) = Group::new(row, self.distance.come, now) else { return Taken::Yes };
                line.push_back(group);
                line.len() - 1
            }
        };
        let group = &mut line[at];
        self.bytes += group.push(row, hash);
        if group.rows == ROWS_MIN { Taken::Ready } else { Taken::Yes }
    }

    /// Returns the next group that `may` be taken, and the number of rows dropped because they are
    /// applied.
    pub(crate) fn take(
        &mut self,
        applied: Lsn,
        bounds: Bounds,
        may: impl Fn(&Group) -> bool,
    ) -> (Option<Group>, usize) {
        let mut dropped = 0;
        self.distance.pages(applied);
        let near = self.distance.applied.saturating_add(bounds.pages_max);
        if self.hand.front().is_some_and(&may)
            && let Some(group) = self.hand.pop_front()
        {
            self.bytes -= group.bytes;
            return (Some(group), dropped);
        }
        let mut at = 0;
        while let Some(group) = self.ahead.get(at).filter(|group| group.from <= near) {
            let stale = matches!(group.whose, Whose::Commit(commit) if commit < applied);
            let ready = group.rows >= ROWS_MIN && may(group);
            if !stale && !ready {
                at += 1;
                continue;
            }
            let Some(group) = self.ahead.remove(at) else { break };
            self.bytes -= group.bytes;
            if !stale {
                let keep = usize::try_from(bounds.pages_max).unwrap_or(usize::MAX);
                for hash in &group.hashes {
                    self.recent.add(*hash, keep);
                }
                return (Some(group), dropped);
            }
            dropped += group.rows;
        }
        (None, dropped)
    }

    /// Drops rows ahead of the commit record at `up_to`. They are now in hand, in the order in
    /// which they are written.
    pub(crate) fn overtake(&mut self, table_lookups: &Arc<TableLookups>, up_to: Lsn) {
        let Queue { ahead, bytes, .. } = self;
        ahead.retain(|group| {
            let over = group.table_lookups.id == table_lookups.id
                && matches!(group.whose, Whose::Commit(commit) if commit <= up_to);
            if over {
                *bytes -= group.bytes;
            }
            !over
        });
    }

    /// Whether groups wait until the applier has come closer to them.
    pub(crate) fn waits_for_applier(&self, bounds: Bounds) -> bool {
        let near = self.distance.applied.saturating_add(bounds.pages_max);
        self.ahead.back().is_some_and(|group| group.from > near)
    }

    /// Ends a chunk; returns how many of its rows were dropped.
    pub(crate) fn close_hand(&mut self, hand: u64) -> usize {
        let mut dropped = 0;
        let Queue { hand: line, bytes, .. } = self;
        line.retain(|group| {
            let over = group.whose == Whose::Hand(hand);
            if over {
                dropped += group.rows;
                *bytes -= group.bytes;
            }
            !over
        });
        dropped
    }

    /// Empties the queue, because look-ups pause.
    pub(crate) fn clear(&mut self) {
        let distance = std::mem::take(&mut self.distance);
        *self = Queue { distance, ..Queue::default() };
    }

    #[cfg(test)]
    fn waiting(&self) -> (usize, usize) {
        (self.hand.iter().map(|group| group.rows).sum(), self.ahead.iter().map(|group| group.rows).sum())
    }
}

fn hash(row: &WantedRow<'_>) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(row.table_lookups.id);
    for lookup in row.table_lookups.lookups(row.need) {
        hasher.write_u8(0);
        for &position in &lookup.columns {
            match row.values[position] {
                Column::Text(value) | Column::Binary(value) => {
                    hasher.write_usize(value.len());
                    hasher.write(value);
                }
                Column::Null | Column::Unchanged => hasher.write_usize(usize::MAX),
            }
        }
    }
    // A look-up for a new row differs from the look-up of the row with the same key.
    hasher.write_u8(row.need as u8);
    hasher.finish()
}

#[cfg(test)]
mod tests {

    use plan::fixtures;

    use super::*;
    use crate::lookups::tests::indexes;
    use crate::options::PrefetchMode;

    const BOUNDS: Bounds = Bounds { rows_max: 32, pages_max: 1_000 };

    struct World {
        queue: Queue,
        table: Arc<Table>,
        table_lookups: Arc<TableLookups>,
        now: Instant,
    }

    impl World {
        fn new() -> World {
            let table = fixtures::table();
            let of = indexes(&[("t_pkey", &["id"]), ("t_a", &["a"])], &["id", "a"]);
            let table_lookups = Arc::new(TableLookups::new(&table, &of, PrefetchMode::All, false));
            World { queue: Queue::default(), table, table_lookups, now: Instant::now() }
        }

        fn push(&mut self, id: usize, need: Need, whose: Whose) -> Taken {
            let text = id.to_string();
            let values = [Column::Text(text.as_bytes()), Column::Text(text.as_bytes()), Column::Null];
            let row = WantedRow {
                table: &self.table,
                table_lookups: &self.table_lookups,
                need,
                whose,
                values: &values,
                binary: false,
            };
            self.queue.push(&row, BOUNDS, self.now)
        }

        fn fill(&mut self, ids: std::ops::Range<usize>, whose: Whose) {
            for id in ids {
                self.push(id, Need::Row, whose);
            }
        }

        fn take(&mut self, applied: u64) -> Option<usize> {
            self.queue.take(Lsn::new(applied), BOUNDS, |_| true).0.map(|group| group.rows)
        }
    }

    fn commit(lsn: u64) -> Whose {
        Whose::Commit(Lsn::new(lsn))
    }

    #[test]
    fn a_key_is_looked_up_once_for_each_need() {
        let mut world = World::new();
        for _ in 0..3 {
            world.push(1, Need::Row, commit(10));
        }
        assert_eq!(world.queue.waiting(), (0, 1));
        world.push(1, Need::NewRow, commit(10));
        world.push(2, Need::Row, Whose::Hand(1));
        assert_eq!(world.queue.waiting(), (1, 2));
    }

    #[test]
    fn what_is_in_hand_goes_first_and_is_dropped_with_its_chunk() {
        let mut world = World::new();
        world.fill(0..40, commit(10));
        world.fill(100..140, Whose::Hand(7));
        assert_eq!(world.take(0), Some(32));
        assert_eq!(world.queue.close_hand(7), 8);
        assert_eq!(world.queue.waiting(), (0, 40));
        assert_eq!((world.take(0), world.take(0)), (Some(32), None), "eight rows are too few");
        world.fill(200..208, commit(10));
        assert_eq!(world.take(0), Some(ROWS_MIN));
        assert_eq!(world.queue.bytes, 0);
    }

    #[test]
    fn what_is_applied_is_dropped() {
        let mut world = World::new();
        world.fill(0..32, commit(10));
        world.fill(32..64, commit(20));
        let (group, dropped) = world.queue.take(Lsn::new(15), BOUNDS, |_| true);
        assert_eq!((group.map(|group| group.rows), dropped), (Some(32), 32));
        assert_eq!(world.queue.bytes, 0);
    }

    #[test]
    fn what_waits_ahead_of_a_set_in_hand_is_looked_up_in_its_order() {
        let mut world = World::new();
        world.fill(0..40, commit(10));
        world.fill(40..80, commit(20));
        world.fill(80..120, commit(30));
        assert_eq!(world.take(0), Some(32), "of the first transaction");
        let table_lookups = Arc::clone(&world.table_lookups);
        world.queue.overtake(&table_lookups, Lsn::new(20));
        // The group with the last rows of the second chunk has some of the third.
        assert_eq!(world.queue.waiting(), (0, 56));
        world.fill(0..80, Whose::Hand(1));
        assert_eq!(world.queue.waiting(), (48, 56), "not again those that were taken");
        world.queue.close_hand(1);
        while world.take(21).is_some() {}
        assert_eq!((world.queue.waiting(), world.queue.bytes > 0), ((0, 0), false));
    }

    #[test]
    fn a_full_line_ahead_leaves_room_for_what_is_in_hand() {
        let mut world = World::new();
        let full = (0..1_000_000).position(|id| world.push(id, Need::Row, commit(10)) == Taken::No);
        assert!(full.is_some());
        assert_eq!(world.push(2_000_000, Need::Row, Whose::Hand(1)), Taken::Yes);
    }

    #[test]
    fn what_is_too_far_ahead_waits_until_the_applier_is_nearer() {
        let mut world = World::new();
        // Each in its own transaction, which needs two pages.
        for id in 0..3_000_u64 {
            world.queue.come(Lsn::new(id + 1), 2, Lsn::INVALID);
            assert_ne!(world.push(id as usize, Need::Row, commit(id + 1)), Taken::No);
        }
        let taken = |world: &mut World, applied| std::iter::from_fn(|| world.take(applied)).sum::<usize>();
        let first = taken(&mut world, 0);
        assert!((500..=532).contains(&first), "{first}");
        assert!(world.queue.waits_for_applier(BOUNDS));
        assert_eq!(taken(&mut world, 1), 0);
        // Everything before this is applied: all that was taken, and as much again.
        let more = taken(&mut world, first as u64);
        assert!((460..=532).contains(&more), "{more}");
        // The applier overtakes groups that it came too close to; the rest is within reach.
        let rest = taken(&mut world, 2_601);
        assert!((399..=431).contains(&rest), "{rest}");
        assert!(!world.queue.waits_for_applier(BOUNDS));
        assert!(world.queue.distance.marks.len() < 100, "{}", world.queue.distance.marks.len());
    }

    #[test]
    fn changes_wait_for_the_look_ups_of_their_own_table() {
        let (mut queue, table, other) = (Queue::default(), fixtures::table(), fixtures::table());
        let tuple = [Column::Text(b"1"), Column::Null, Column::Null].into_iter().collect();
        let op = Op::Insert(tuple);
        (1..=3).for_each(|lsn| queue.wait(&table, &op, Lsn::new(lsn), Lsn::INVALID));
        queue.wait(&other, &op, Lsn::new(9), Lsn::INVALID);
        assert_eq!(queue.take_waiting(&table).len(), 3);
        assert_eq!((queue.take_waiting(&table).len(), queue.waiting.len()), (0, 1));
        (0..100_000).for_each(|lsn| queue.wait(&table, &op, Lsn::new(lsn), Lsn::INVALID));
        assert!(queue.waiting_bytes <= WAITING_BYTES_MAX && queue.waiting.len() < 100_000);
        // A change that is applied meanwhile makes room.
        queue.wait(&table, &op, Lsn::new(100_000), Lsn::new(100_000));
        assert_eq!(queue.waiting.len(), 1);
        queue.take_waiting(&table);
        assert_eq!((queue.waiting_bytes, queue.waiting.len()), (0, 0));
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut world = World::new();
        let pushed = (0..1_000_000).position(|id| world.push(id, Need::NewRow, Whose::Hand(1)) == Taken::No);
        assert!(pushed.is_some());
        assert!(world.queue.bytes < BYTES_MAX + 1_000);
    }

    #[test]
    fn a_value_that_was_not_sent_is_not_looked_up() {
        let mut world = World::new();
        let values = [Column::Text(b"1"), Column::Unchanged, Column::Null];
        let (table, table_lookups) = (Arc::clone(&world.table), Arc::clone(&world.table_lookups));
        let row = |need| WantedRow {
            table: &table,
            table_lookups: &table_lookups,
            need,
            whose: commit(1),
            values: &values,
            binary: false,
        };
        world.queue.push(&row(Need::NewVersion), BOUNDS, world.now);
        assert_eq!(world.queue.waiting(), (0, 0));
        world.queue.push(&row(Need::Row), BOUNDS, world.now);
        assert_eq!(world.queue.waiting(), (0, 1));
    }
}
