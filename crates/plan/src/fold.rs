//! The net effect of changes, per key.
//!
//! A fold is handed changes of one table in source order. For each key it keeps what the first
//! change expects of the target and what the row is in the end. So a row that changed a thousand
//! times is written once, and the versions in between never cost a page.
//!
//! States of a key; the first arrow sets the expectation (rule F1):
//!
//! ```text
//!            INSERT           UPDATE          DELETE
//! (none)     Insert  absent   Update present  Delete present
//! Insert     void             Insert          Absent
//! Update     void             Update          Delete
//! Delete     Replace          void            void
//! Absent     Insert           void            void
//! Replace    void             Replace         Delete
//! ```
//! `Absent` is a key that was inserted and deleted: nothing is written, but the statements still
//! check that the key was absent. `void` means that the changes contradict one another, which is a
//! conflict on any target. Exact replay then applies the chunk, to find and name the conflict.
//!
//! An UPDATE that changes the key is not folded. The changes before it are one step, that UPDATE is
//! a step of its own, and a new fold begins after it.
//!
//! Invariant: keys within one fold are pairwise different as the target compares them, or at most
//! one of those that are equal is a row in the end. Most types that fold are equal only when their
//! bytes are. Others (numeric, for one) fold where the source's unique index follows the same rule.
//! There a row whose key gets other bytes changes its key, so the next equal key is an INSERT after
//! a DELETE. The statements write it in that order, too. If that row is deleted again in the end,
//! the probe for it finds the earlier row, and exact replay applies the chunk.

use std::hash::Hasher;

use hashbrown::HashTable;
use proto::pgoutput::{Column, Columns, Tuple};
use rustc_hash::FxHasher;
use txn::Op;

use crate::batch::CHANGE_OVERHEAD;
use crate::table::Table;

/// What a key is in the end. Tuples may lack unchanged TOAST values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Net {
    /// A new row.
    Insert(Tuple),
    /// A row that was there, and its new values.
    Update(Tuple),
    /// A row that was there and goes.
    Delete,
    /// A key that must be absent and stays so.
    Absent,
    /// A row that was there, and goes for a new one.
    Replace(Tuple),
}

impl Net {
    fn byte_len(&self) -> usize {
        match self {
            Net::Insert(tuple) | Net::Update(tuple) | Net::Replace(tuple) => tuple.byte_len(),
            Net::Delete | Net::Absent => 0,
        }
    }
}

/// One key. Its values stand in the fold's arena.
#[derive(Debug)]
struct Entry {
    start: usize,
    end: usize,
    hash: u64,
    net: Net,
}

/// Whether a change was folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folded {
    Yes,
    /// The change alters the key, or must be kept apart for another reason: it is a step of its
    /// own.
    KeyChange,
    /// The change contradicts earlier ones.
    Void,
}

/// Net effects by key, in the order in which the keys first appeared. A fold that was sorted takes
/// no more changes.
#[derive(Debug, Default)]
pub struct Fold {
    index: HashTable<usize>,
    /// The keys' columns, one after another, in the tuples' own encoding.
    arena: Vec<u8>,
    entries: Vec<Entry>,
    /// Bytes of the net effects' tuples.
    tuple_bytes: usize,
    /// Tuples are copied out of the messages they came in.
    detached: bool,
}

impl Fold {
    /// A `detached` fold holds tuples in memory of its own. Any other fold shares the memory of the
    /// messages they came in, which suits a fold that does not outlive them.
    pub fn new(detached: bool) -> Fold {
        Fold { detached, ..Fold::default() }
    }

    /// The number of keys.
    pub fn rows(&self) -> usize {
        self.entries.len()
    }

    /// Memory, approximately.
    pub fn bytes(&self) -> usize {
        self.arena.len() + self.tuple_bytes + self.entries.len() * CHANGE_OVERHEAD
    }

    /// Each key (as a row of key columns only) with its net effect.
    pub fn entries(&self) -> impl Iterator<Item = (Columns<'_>, &Net)> {
        (0..self.entries.len()).map(|at| self.entry(at))
    }

    /// One key with its net effect, by its number below [`Fold::rows`].
    pub fn entry(&self, at: usize) -> (Columns<'_>, &Net) {
        let entry = &self.entries[at];
        (Tuple::walk(&self.arena[entry.start..entry.end]), &entry.net)
    }

    /// The key of an entry, as bytes that are equal exactly for equal keys.
    pub(crate) fn key_bytes(&self, at: usize) -> &[u8] {
        let entry = &self.entries[at];
        &self.arena[entry.start..entry.end]
    }

    /// The same of a change that keeps its row's key, in a fold that holds nothing else. `None`
    /// where a key value is missing.
    pub(crate) fn only_key_of(&mut self, table: &Table, op: &Op) -> Option<&[u8]> {
        let tuple = match op {
            Op::Insert(new) | Op::Update { old: None, new } => new,
            Op::Update { old: Some(old), .. } | Op::Delete(old) => &old.tuple,
        };
        self.arena.clear();
        self.push_key(table, tuple).then_some(self.arena.as_slice())
    }

    /// The hash of an entry's key.
    pub fn hash(&self, at: usize) -> u64 {
        self.entries[at].hash
    }

    /// The hash of a row's key, the same as for a folded one; `None` where a key value is missing.
    pub fn hash_of(table: &Table, tuple: &Tuple) -> Option<u64> {
        let mut fold = Fold::default();
        fold.push_key(table, tuple).then(|| hash(&fold.arena))
    }

    /// Takes the entries at `units` out, which must be ascending and precede any sorting. The fold
    /// takes no more changes.
    pub fn take_out(&mut self, units: &[u32]) -> Fold {
        let mut taken = Fold::new(self.detached);
        let mut wanted = units.iter().map(|&unit| unit as usize).peekable();
        for (at, mut entry) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            if wanted.next_if_eq(&at).is_none() {
                self.entries.push(entry);
                continue;
            }
            let start = taken.arena.len();
            taken.arena.extend_from_slice(&self.arena[entry.start..entry.end]);
            (entry.start, entry.end) = (start, taken.arena.len());
            taken.entries.push(entry);
        }
        self.index.clear();
        taken
    }

    /// Frees the tuple of an entry that was written.
    pub fn written(&mut self, at: usize) {
        self.entries[at].net = Net::Absent;
    }

    /// Sorts the keys so that neighbours lie near one another in an index: by their bytes, shorter
    /// values first. For numbers that is their own order.
    pub fn sort(&mut self) {
        let Fold { arena, entries, index, .. } = self;
        entries.sort_unstable_by(|a, b| arena[a.start..a.end].cmp(&arena[b.start..b.end]));
        // The index holds positions from before sorting.
        index.clear();
    }

    /// Sorts the rows to insert by the values at `columns` of their tuples, in the same sense as
    /// [`Fold::sort`]. They come after all other entries.
    pub fn sort_inserts(&mut self, columns: &[usize]) {
        let mut values = Vec::new();
        let mut put = |net: &Net| {
            let start = values.len();
            let Net::Insert(new) = net else { return None };
            for &position in columns {
                if let Some(Column::Text(value) | Column::Binary(value)) = new.columns().nth(position) {
                    values.extend_from_slice(&value.len().to_be_bytes());
                    values.extend_from_slice(value);
                }
            }
            Some(start..values.len())
        };
        let ranges: Vec<_> = self.entries.iter().map(|entry| put(&entry.net)).collect();
        let mut order: Vec<(Option<&[u8]>, Entry)> = std::mem::take(&mut self.entries)
            .into_iter()
            .zip(&ranges)
            .map(|(entry, range)| (range.clone().map(|range| &values[range]), entry))
            .collect();
        order.sort_by_key(|(values, _)| *values);
        self.entries = order.into_iter().map(|(_, entry)| entry).collect();
        self.index.clear();
    }

    /// Takes one change in.
    pub fn add(&mut self, table: &Table, op: &Op) -> Folded {
        let start = self.arena.len();
        let folded = match op {
            Op::Insert(new) => self.push_key(table, new).then_some(()),
            Op::Delete(old) => self.push_key(table, &old.tuple).then_some(()),
            // One statement must meet all equal keys of other bytes, or one would overtake another.
            Op::Update { new, .. } if !table.exact_key && new.has_unchanged() => return Folded::KeyChange,
            Op::Update { old: None, new } => self.push_key(table, new).then_some(()),
            Op::Update { old: Some(old), new } => {
                if !same_key(table, &old.tuple, new) {
                    return Folded::KeyChange;
                }
                self.push_key(table, &old.tuple).then_some(())
            }
        };
        // A key with a NULL or without a value is no key. Exact replay reports it.
        if folded.is_none() {
            self.arena.truncate(start);
            return Folded::Void;
        }
        self.fold(start, op)
    }

    /// Appends the key columns of `tuple` to the arena; false if one is missing.
    fn push_key(&mut self, table: &Table, tuple: &Tuple) -> bool {
        let mut wanted = table.key.iter().copied().peekable();
        for (position, column) in tuple.columns().enumerate() {
            if wanted.peek() != Some(&position) {
                continue;
            }
            wanted.next();
            let (kind, value) = match column {
                Column::Text(value) => (b't', value),
                Column::Binary(value) => (b'b', value),
                Column::Null | Column::Unchanged => return false,
            };
            let length = u32::try_from(value.len()).expect("a value is at most 1 GiB");
            self.arena.push(kind);
            self.arena.extend_from_slice(&length.to_be_bytes());
            self.arena.extend_from_slice(value);
            if wanted.peek().is_none() {
                return true;
            }
        }
        false
    }

    /// Applies `op` to the key at the end of the arena.
    fn fold(&mut self, start: usize, op: &Op) -> Folded {
        let Fold { index, arena, entries, tuple_bytes, detached } = self;
        let own = |tuple: &Tuple| if *detached { tuple.detached() } else { tuple.clone() };
        let hash = hash(&arena[start..]);
        let known = index.find(hash, |&at| arena[entries[at].start..entries[at].end] == arena[start..]);
        if let Some(&at) = known {
            arena.truncate(start);
            let before = std::mem::replace(&mut entries[at].net, Net::Absent);
            *tuple_bytes -= before.byte_len();
            let Some(net) = next(before, op, own) else { return Folded::Void };
            *tuple_bytes += net.byte_len();
            entries[at].net = net;
            return Folded::Yes;
        }
        let net = match op {
            Op::Insert(new) => Net::Insert(own(new)),
            Op::Update { new, .. } => Net::Update(own(new)),
            Op::Delete(_) => Net::Delete,
        };
        *tuple_bytes += net.byte_len();
        index.insert_unique(hash, entries.len(), |&at| entries[at].hash);
        entries.push(Entry { start, end: arena.len(), hash, net });
        Folded::Yes
    }
}

fn hash(key: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(key);
    hasher.finish()
}

/// The table of states; `None` is `void`. `own` makes a tuple the fold's.
fn next(before: Net, op: &Op, own: impl Fn(&Tuple) -> Tuple) -> Option<Net> {
    // `new`, with the values that it did not send taken from the earlier version.
    let merge = |before: &Tuple, new: &Tuple| {
        if !new.has_unchanged() {
            return own(new);
        }
        let pairs = before.columns().zip(new.columns());
        pairs.map(|(old, new)| if new == Column::Unchanged { old } else { new }).collect()
    };
    match (before, op) {
        (Net::Insert(row), Op::Update { new, .. }) => Some(Net::Insert(merge(&row, new))),
        (Net::Insert(_), Op::Delete(_)) => Some(Net::Absent),
        (Net::Update(row), Op::Update { new, .. }) => Some(Net::Update(merge(&row, new))),
        (Net::Update(_) | Net::Replace(_), Op::Delete(_)) => Some(Net::Delete),
        (Net::Delete, Op::Insert(new)) => Some(Net::Replace(own(new))),
        (Net::Absent, Op::Insert(new)) => Some(Net::Insert(own(new))),
        (Net::Replace(row), Op::Update { new, .. }) => Some(Net::Replace(merge(&row, new))),
        (Net::Insert(_) | Net::Update(_) | Net::Replace(_), Op::Insert(_))
        | (Net::Delete | Net::Absent, Op::Update { .. } | Op::Delete(_)) => None,
    }
}

/// Whether an UPDATE leaves the key as it was. A key value that is not sent again has not changed.
fn same_key(table: &Table, old: &Tuple, new: &Tuple) -> bool {
    let pairs = old.columns().zip(new.columns()).zip(&table.columns);
    pairs.filter(|(_, column)| column.key).all(|((old, new), _)| new == Column::Unchanged || old == new)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use proto::pgoutput::OldTuple;

    use super::*;
    use crate::fixtures;

    fn row(id: u8, a: Option<u8>, b: u8) -> Tuple {
        let (id, text, b) = (id.to_string(), a.map(|a| a.to_string()), b.to_string());
        let a = text.as_ref().map_or(Column::Unchanged, |a| Column::Text(a.as_bytes()));
        [Column::Text(id.as_bytes()), a, Column::Text(b.as_bytes())].into_iter().collect()
    }

    fn key(id: u8) -> OldTuple {
        let id = id.to_string();
        let tuple = [Column::Text(id.as_bytes()), Column::Null, Column::Null].into_iter().collect();
        OldTuple { key_only: true, tuple }
    }

    #[test]
    fn inserts_are_sorted_by_other_columns_and_stand_last() {
        let table = fixtures::table();
        let mut fold = Fold::new(false);
        for (id, a, b) in [(1, 9, 5), (2, 10, 5), (3, 7, 6)] {
            assert_eq!(fold.add(&table, &Op::Insert(row(id, Some(a), b))), Folded::Yes);
        }
        assert_eq!(fold.add(&table, &Op::Delete(key(4))), Folded::Yes);
        let mut ids_by = |columns: &[usize]| {
            fold.sort_inserts(columns);
            let ids = fold.entries().map(|(mut key, _)| number(key.next().unwrap()).unwrap());
            ids.collect::<Vec<_>>()
        };
        assert_eq!(ids_by(&[1]), [4, 3, 1, 2], "numbers, not their text");
        assert_eq!(ids_by(&[2, 1]), [4, 1, 2, 3]);
        assert_eq!(ids_by(&[2, 0]), [4, 1, 2, 3]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u8, u8, u8),
        Update(u8, Option<u8>, u8),
        Delete(u8),
    }

    impl Step {
        fn op(&self) -> Op {
            match *self {
                Step::Insert(id, a, b) => Op::Insert(row(id, Some(a), b)),
                Step::Update(id, a, b) => Op::Update { old: None, new: row(id, a, b) },
                Step::Delete(id) => Op::Delete(key(id)),
            }
        }
    }

    type Model = BTreeMap<u8, (u8, u8)>;

    /// One change as PostgreSQL would apply it; false on a conflict.
    fn apply(model: &mut Model, step: &Step) -> bool {
        match *step {
            Step::Insert(id, a, b) => model.insert(id, (a, b)).is_none(),
            Step::Update(id, a, b) => match model.get_mut(&id) {
                Some(row) => {
                    *row = (a.unwrap_or(row.0), b);
                    true
                }
                None => false,
            },
            Step::Delete(id) => model.remove(&id).is_some(),
        }
    }

    fn number(column: Column<'_>) -> Option<u8> {
        match column {
            Column::Text(text) => Some(std::str::from_utf8(text).unwrap().parse().unwrap()),
            _ => None,
        }
    }

    /// Writes the net effects as the statements would; false where an expectation fails.
    fn write(model: &mut Model, fold: &Fold) -> bool {
        fold.entries().all(|(mut key, net)| {
            let id = number(key.next().unwrap()).unwrap();
            let present = model.contains_key(&id);
            let mut set = |tuple: &Tuple| {
                let columns: Vec<_> = tuple.columns().map(number).collect();
                let before = model.get(&id).copied().unwrap_or_default();
                model.insert(id, (columns[1].unwrap_or(before.0), columns[2].unwrap()));
            };
            match net {
                Net::Insert(tuple) => set(tuple),
                Net::Update(tuple) | Net::Replace(tuple) => set(tuple),
                Net::Delete => drop(model.remove(&id)),
                Net::Absent => {}
            }
            present == matches!(net, Net::Update(_) | Net::Delete | Net::Replace(_))
        })
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let id = 0..4_u8;
        let step = prop_oneof![
            (id.clone(), any::<u8>(), any::<u8>()).prop_map(|(id, a, b)| Step::Insert(id, a, b)),
            (id.clone(), any::<Option<u8>>(), any::<u8>()).prop_map(|(id, a, b)| Step::Update(id, a, b)),
            id.prop_map(Step::Delete),
        ];
        prop::collection::vec(step, 0..40)
    }

    proptest! {
        /// Folding is exact. Where changes one at a time meet no conflict, the fold meets none
        /// either and leads to the same rows. Where they meet one, the fold fails too.
        #[test]
        fn the_net_effect_is_the_effect(
            steps in steps(),
            start in prop::collection::btree_map(0..4_u8, any::<(u8, u8)>(), 0..4),
        ) {
            let table = fixtures::table();
            let mut one_at_a_time = start.clone();
            let clean = steps.iter().all(|step| apply(&mut one_at_a_time, step));
            let mut fold = Fold::default();
            let folded = steps.iter().all(|step| fold.add(&table, &step.op()) == Folded::Yes);
            let mut at_once = start;
            let through = folded && write(&mut at_once, &fold);
            prop_assert_eq!(through, clean);
            if clean {
                prop_assert_eq!(at_once, one_at_a_time);
            }
        }
    }

    /// Writes by value in the passes of the statements; false where an expectation fails.
    fn write_in_passes(model: &mut Model, fold: &Fold) -> bool {
        let pass = |net: &Net| match net {
            Net::Absent => 0,
            Net::Delete => 1,
            Net::Update(_) => 2,
            Net::Replace(_) => 3,
            Net::Insert(_) => 4,
        };
        (0..5).all(|wanted| {
            fold.entries().filter(|(_, net)| pass(net) == wanted).all(|(mut key, net)| {
                let id = number(key.next().unwrap()).unwrap();
                let row = |tuple: &Tuple| {
                    let columns: Vec<_> = tuple.columns().map(number).collect();
                    (columns[1].unwrap(), columns[2].unwrap())
                };
                match net {
                    Net::Absent => !model.contains_key(&id),
                    Net::Delete => model.remove(&id).is_some(),
                    Net::Update(tuple) | Net::Replace(tuple) => model.insert(id, row(tuple)).is_some(),
                    Net::Insert(tuple) => model.insert(id, row(tuple)).is_none(),
                }
            })
        })
    }

    proptest! {
        /// The same for keys that may be equal but have other bytes, from a source whose index
        /// compares them as equal. A fold that succeeds matches what one change at a time does.
        #[test]
        fn equal_keys_of_other_bytes_are_not_taken_for_one_another(
            steps in prop::collection::vec((0..3_u8, 0..3_u8, any::<bool>(), any::<u8>()), 0..30),
            there in prop::collection::btree_map(0..3_u8, any::<bool>(), 0..3),
            start in prop::collection::btree_map(0..3_u8, any::<(u8, u8)>(), 0..3),
        ) {
            let table = fixtures::table();
            let (mut source, mut one_at_a_time, mut at_once) = (there, start.clone(), start);
            let (mut fold, mut folded, mut clean) = (Fold::default(), true, true);
            for (id, kind, zero, value) in steps {
                let bytes = |zero: bool| format!("{}{id}", if zero { "0" } else { "" });
                let tuple = |id: &str| -> Tuple {
                    let value = value.to_string();
                    let values = [id, &value, &value].map(|text| Column::Text(text.as_bytes()));
                    values.into_iter().collect()
                };
                let (op, step) = match (kind, source.get(&id).copied()) {
                    (0, None) => {
                        source.insert(id, zero);
                        (Op::Insert(tuple(&bytes(zero))), Step::Insert(id, value, value))
                    }
                    (1, Some(zero)) => {
                        let new = tuple(&bytes(zero));
                        (Op::Update { old: None, new }, Step::Update(id, Some(value), value))
                    }
                    (2, Some(zero)) => {
                        source.remove(&id);
                        let old = OldTuple { key_only: true, tuple: tuple(&bytes(zero)) };
                        (Op::Delete(old), Step::Delete(id))
                    }
                    _ => continue,
                };
                clean &= apply(&mut one_at_a_time, &step);
                folded = folded && fold.add(&table, &op) == Folded::Yes;
            }
            if folded && write_in_passes(&mut at_once, &fold) {
                prop_assert!(clean);
                prop_assert_eq!(at_once, one_at_a_time);
            }
        }
    }

    #[test]
    fn a_changed_key_is_not_folded() {
        let table = fixtures::table();
        let mut fold = Fold::default();
        let moved = Op::Update { old: Some(key(1)), new: row(2, Some(0), 0) };
        assert_eq!(fold.add(&table, &moved), Folded::KeyChange);
        let same = Op::Update { old: Some(key(1)), new: row(1, Some(0), 0) };
        assert_eq!(fold.add(&table, &same), Folded::Yes);
        assert_eq!(fold.entries().count(), 1);
    }

    #[test]
    fn a_key_without_a_value_is_left_to_the_exact_path() {
        let table = fixtures::table();
        let tuple: Tuple = [Column::Null, Column::Null, Column::Null].into_iter().collect();
        assert_eq!(Fold::default().add(&table, &Op::Insert(tuple)), Folded::Void);
    }

    #[test]
    fn sorted_keys_are_in_the_order_of_numbers_with_their_own_rows() {
        let (table, mut fold) = (fixtures::table(), Fold::default());
        for id in [100, 9, 20, 3, 255, 10] {
            assert_eq!(fold.add(&table, &Op::Insert(row(id, Some(id), id))), Folded::Yes);
        }
        fold.sort();
        let rows: Vec<(Option<u8>, Option<u8>)> = fold
            .entries()
            .map(|(mut key, net)| {
                let Net::Insert(tuple) = net else { panic!("{net:?}") };
                (key.next().and_then(number), tuple.columns().nth(2).and_then(number))
            })
            .collect();
        let expected = [3, 9, 10, 20, 100, 255].map(|id| (Some(id), Some(id)));
        assert_eq!(rows, expected);
    }
}
