//! The net effect of changes on a table without a key.
//!
//! Its rows are found by all of their values (REPLICA IDENTITY FULL), so rows that look alike are one another's equals:
//! the table is a bag. Handed changes in source order; keeps which rows must be found and what each becomes. A row that
//! changed a thousand times is found once and written once.
//!
//! ```text
//!            INSERT new     UPDATE old -> new                       DELETE old
//! old is a row of this bag  that row is `new` now                   that row goes; one that was inserted leaves nothing
//! else       a new row      `old` is looked for, and becomes `new`  `old` is looked for, and goes
//! ```
//! Each row that is looked for is looked for once: changes that need a second row like it begin another bag. So the rows
//! that one bag finds are pairwise different as their bytes go, and as many must be met as are looked for. Values that
//! are equal and have other bytes (1.0 and 1.00) may lead to one row; then too few are met, and the changes are
//! applied one at a time.
//!
//! Why it is correct: a row that is looked for is none that the bag itself has made, or it would have been taken; so it
//! was there before. Rows to delete are found first, then all rows to update at once, by the state before; so none of them is
//! one that the bag wrote. Which of several equal rows was meant, nobody can tell; native apply takes any, too.

use std::hash::Hasher;

use hashbrown::HashTable;
use proto::pgoutput::{Column, Tuple};
use rustc_hash::FxHasher;
use txn::Op;

use crate::batch::CHANGE_OVERHEAD;
use crate::plan::PIECE;

/// One row: what is looked for, and what it becomes.
#[derive(Debug)]
pub(crate) struct Row {
    /// `None` for a new one.
    pub(crate) old: Option<Tuple>,
    /// With every value; `None` for one that goes.
    pub(crate) new: Option<Tuple>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Bag {
    rows: Vec<Row>,
    /// By what is looked for.
    looked_for: HashTable<usize>,
    /// By what they are now.
    now: HashTable<usize>,
    /// The columns that an UPDATE of any row sent; the others are TOAST values that nobody changed.
    sent: Vec<bool>,
    tuple_bytes: usize,
    /// Tuples are copied out of the messages they came in.
    detached: bool,
}

impl Bag {
    /// Of rows with so many columns; `detached` as in [`crate::fold::Fold::new`].
    pub(crate) fn new(columns: usize, detached: bool) -> Bag {
        Bag { sent: vec![false; columns], detached, ..Bag::default() }
    }

    /// Rows to look for or to write.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Memory, about.
    pub(crate) fn bytes(&self) -> usize {
        self.tuple_bytes + self.rows.len() * CHANGE_OVERHEAD
    }

    /// The rows, and which columns an UPDATE of them writes.
    pub(crate) fn into_rows(self) -> (Vec<Row>, Vec<bool>) {
        (self.rows, self.sent)
    }

    /// Takes one change in; false if another bag is to begin with it, or it is no change of a bag.
    pub(crate) fn add(&mut self, op: &Op) -> bool {
        if self.bytes() >= PIECE {
            return false;
        }
        let (old, new) = match op {
            Op::Insert(new) => (None, Some(new)),
            Op::Update { old: Some(old), new } if !old.key_only => (Some(&old.tuple), Some(new)),
            Op::Delete(old) if !old.key_only => (Some(&old.tuple), None),
            Op::Update { .. } | Op::Delete(_) => return false,
        };
        if let (Some(_), Some(new)) = (old, new) {
            for (sent, column) in self.sent.iter_mut().zip(new.columns()) {
                *sent |= column != Column::Unchanged;
            }
        }
        let Some(old) = old else {
            self.push(None, new.map(|new| self.own(new)));
            return true;
        };
        if old.has_unchanged() {
            return false;
        }
        let after = new.map(|new| if new.has_unchanged() { complete(old, new) } else { self.own(new) });
        let (rows, hash) = (&self.rows, hash(old));
        let is_now = |&at: &usize| rows[at].new.as_ref() == Some(old);
        if let Ok(found) = self.now.find_entry(hash, is_now) {
            let (at, _) = found.remove();
            self.become_(at, after);
            return true;
        }
        if self.looked_for.find(hash, |&at| rows[at].old.as_ref() == Some(old)).is_some() {
            return false;
        }
        let before = self.own(old);
        self.push(Some(before), after);
        true
    }

    fn own(&self, tuple: &Tuple) -> Tuple {
        if self.detached { tuple.detached() } else { tuple.clone() }
    }

    fn push(&mut self, old: Option<Tuple>, new: Option<Tuple>) {
        let at = self.rows.len();
        if let Some(old) = &old {
            self.tuple_bytes += old.byte_len();
            let rows = &self.rows;
            let hash_of = |&other: &usize| rows[other].old.as_ref().map_or(0, hash);
            self.looked_for.insert_unique(hash(old), at, hash_of);
        }
        self.rows.push(Row { old, new: None });
        self.become_(at, new);
    }

    /// The row, which is in no index of what rows are now, is `new` from now on.
    fn become_(&mut self, at: usize, new: Option<Tuple>) {
        self.tuple_bytes -= self.rows[at].new.as_ref().map_or(0, Tuple::byte_len);
        self.tuple_bytes += new.as_ref().map_or(0, Tuple::byte_len);
        let hash_now = new.as_ref().map(hash);
        self.rows[at].new = new;
        if let Some(hash_now) = hash_now {
            let rows = &self.rows;
            let hash_of = |&other: &usize| rows[other].new.as_ref().map_or(0, hash);
            self.now.insert_unique(hash_now, at, hash_of);
        }
    }
}

/// `new` with the values it did not send taken from `old`.
fn complete(old: &Tuple, new: &Tuple) -> Tuple {
    let pairs = old.columns().zip(new.columns());
    pairs.map(|(old, new)| if new == Column::Unchanged { old } else { new }).collect()
}

fn hash(tuple: &Tuple) -> u64 {
    let mut hasher = FxHasher::default();
    for column in tuple.columns() {
        match column {
            Column::Text(value) | Column::Binary(value) => {
                hasher.write_usize(value.len());
                hasher.write(value);
            }
            Column::Null | Column::Unchanged => hasher.write_usize(usize::MAX),
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use proto::pgoutput::OldTuple;

    use super::*;

    /// A small number, so that many rows look alike; 0 is NULL.
    fn column(value: u8) -> Option<String> {
        (value > 0).then(|| value.to_string())
    }

    fn row((a, b): (u8, u8)) -> Tuple {
        let values = [column(a), column(b)];
        values
            .iter()
            .map(|value| value.as_ref().map_or(Column::Null, |v| Column::Text(v.as_bytes())))
            .collect()
    }

    fn old(values: (u8, u8)) -> OldTuple {
        OldTuple { key_only: false, tuple: row(values) }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert((u8, u8)),
        Update((u8, u8), (u8, u8)),
        /// The second column is a TOAST value that stays.
        Touch((u8, u8), u8),
        Delete((u8, u8)),
    }

    impl Step {
        fn op(&self) -> Op {
            match *self {
                Step::Insert(new) => Op::Insert(row(new)),
                Step::Update(before, new) => Op::Update { old: Some(old(before)), new: row(new) },
                Step::Touch(before, a) => {
                    let a = column(a);
                    let a = a.as_ref().map_or(Column::Null, |a| Column::Text(a.as_bytes()));
                    Op::Update { old: Some(old(before)), new: [a, Column::Unchanged].into_iter().collect() }
                }
                Step::Delete(before) => Op::Delete(old(before)),
            }
        }
    }

    /// How many there are of each row.
    type Model = BTreeMap<(u8, u8), usize>;

    fn take(model: &mut Model, row: (u8, u8)) -> bool {
        match model.get_mut(&row) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    fn put(model: &mut Model, row: (u8, u8)) {
        *model.entry(row).or_default() += 1;
    }

    /// One change as PostgreSQL would apply it; false on a conflict.
    fn apply(model: &mut Model, step: &Step) -> bool {
        let (before, after) = match *step {
            Step::Insert(new) => (None, Some(new)),
            Step::Update(before, new) => (Some(before), Some(new)),
            Step::Touch(before, a) => (Some(before), Some((a, before.1))),
            Step::Delete(before) => (Some(before), None),
        };
        let met = before.is_none_or(|before| take(model, before));
        if let (true, Some(after)) = (met, after) {
            put(model, after);
        }
        met
    }

    fn values(tuple: &Tuple) -> (u8, u8) {
        let mut columns = tuple.columns().map(|column| match column {
            Column::Text(text) => std::str::from_utf8(text).unwrap().parse().unwrap(),
            Column::Null => 0,
            other => panic!("{other:?}"),
        });
        (columns.next().unwrap(), columns.next().unwrap())
    }

    /// As the statements do it: one that deletes, one that updates, one that inserts, each of which sees what was there
    /// before it. False where too few rows are met.
    fn write(model: &mut Model, bag: Bag) -> bool {
        let (rows, _) = bag.into_rows();
        for updates in [false, true] {
            let before = model.clone();
            for Row { old, new } in rows.iter().filter(|row| row.new.is_some() == updates) {
                let Some(old) = old else { continue };
                if before.get(&values(old)).is_none_or(|count| *count == 0) || !take(model, values(old)) {
                    return false;
                }
                if let Some(new) = new {
                    put(model, values(new));
                }
            }
        }
        for Row { old, new } in &rows {
            if let (None, Some(new)) = (old, new) {
                put(model, values(new));
            }
        }
        true
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let some = || (0..3_u8, 0..2_u8);
        let step = prop_oneof![
            some().prop_map(Step::Insert),
            (some(), some()).prop_map(|(before, after)| Step::Update(before, after)),
            (some(), 0..3_u8).prop_map(|(before, a)| Step::Touch(before, a)),
            some().prop_map(Step::Delete),
        ];
        prop::collection::vec(step, 0..40)
    }

    proptest! {
        /// Where changes one at a time meet no conflict, bags lead to the same rows and meet none; where these meet one,
        /// the bags do not go through unseen.
        #[test]
        fn the_net_effect_is_the_effect(
            steps in steps(),
            start in prop::collection::btree_map((0..3_u8, 0..2_u8), 0..3_usize, 0..6),
        ) {
            let mut one_at_a_time = start.clone();
            let clean = steps.iter().all(|step| apply(&mut one_at_a_time, step));
            let mut at_once = start;
            let (mut through, mut bag) = (true, Bag::new(2, false));
            for step in &steps {
                if !bag.add(&step.op()) {
                    let full = std::mem::replace(&mut bag, Bag::new(2, false));
                    through = through && write(&mut at_once, full);
                    prop_assert!(bag.add(&step.op()));
                }
            }
            through = through && write(&mut at_once, bag);
            prop_assert_eq!(through, clean);
            if clean {
                one_at_a_time.retain(|_, count| *count > 0);
                at_once.retain(|_, count| *count > 0);
                prop_assert_eq!(at_once, one_at_a_time);
            }
        }
    }

    #[test]
    fn a_row_that_changes_often_is_looked_for_once_and_written_once() {
        let mut bag = Bag::new(2, false);
        assert!((1..100).all(|n| bag.add(&Step::Update((n, 7), (n + 1, 7)).op())));
        let (rows, sent) = bag.into_rows();
        assert_eq!((rows.len(), sent), (1, vec![true, true]));
        assert_eq!(rows[0].old.as_ref().map(values), Some((1, 7)));
        assert_eq!(rows[0].new.as_ref().map(values), Some((100, 7)));
    }

    #[test]
    fn what_nobody_changed_is_kept_and_not_written() {
        let mut bag = Bag::new(2, true);
        assert!(bag.add(&Step::Touch((1, 7), 2).op()));
        assert!(bag.add(&Step::Touch((2, 7), 3).op()));
        let (rows, sent) = bag.into_rows();
        assert_eq!(sent, [true, false]);
        assert_eq!(rows[0].new.as_ref().map(values), Some((3, 7)));
    }

    #[test]
    fn a_second_row_like_one_that_is_looked_for_begins_another_bag() {
        let mut bag = Bag::new(2, false);
        assert!(bag.add(&Step::Delete((1, 1)).op()));
        assert!(!bag.add(&Step::Delete((1, 1)).op()));
        assert!(
            !bag.add(&Op::Delete(OldTuple { key_only: true, tuple: row((2, 2)) })),
            "no row of all values"
        );
        assert_eq!(bag.len(), 1);
    }

    #[test]
    fn a_bag_is_no_larger_than_a_statement_may_be() {
        let mut bag = Bag::new(1, false);
        let value = "x".repeat(PIECE / 4);
        let insert = Op::Insert([Column::Text(value.as_bytes())].into_iter().collect());
        assert_eq!((0..10).take_while(|_| bag.add(&insert)).count(), 4);
    }
}
