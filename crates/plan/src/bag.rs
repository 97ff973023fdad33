//! The net effect of changes on a table without a key.
//!
//! REPLICA IDENTITY FULL finds a row by all of its values, so rows that look alike are
//! interchangeable: the table is a bag. A bag is handed changes in source order. It keeps which
//! rows must be found and what each becomes. A row that changed a thousand times is found once and
//! written once.
//!
//! ```text
//!            INSERT new     UPDATE old -> new                       DELETE old
//! old is a row of this bag  that row is `new` now                   that row goes; one that was inserted leaves nothing
//! else       a new row      `old` is looked for, and becomes `new`  `old` is looked for, and goes
//! ```
//! A change begins another bag in two cases: it would make a row like one that this bag looks for,
//! or the bag would look for too many rows that are alike ([`LIKE_MAX`]). So a bag never looks for
//! a row that it writes itself, in whatever order its statements find the rows. Rows that are alike
//! are looked for by one statement after the other, and each finds one fewer.
//!
//! The bag compares bytes, and the target compares values. Values that are equal but have other
//! bytes (1.0 and 1.00) may lead to the same row. Then the statement meets too few rows, and exact
//! replay applies the changes. Where a table has such types, one statement finds all rows that a
//! bag updates. It sees the table as it was before it ([`Rules::uniform`]).
//!
//! Where rows can collide on the target, every version counts, in its order: a version that another
//! one follows may be refused. There no row changes twice in a bag, and a bag is one statement
//! ([`Rules::chains`]).
//!
//! Why it is correct: a row that is looked for is not one that the bag itself made, because the bag
//! would have taken that one. So it was there before. Nobody can tell which of several equal rows
//! was meant; native apply takes any, too.

use std::hash::Hasher;

use hashbrown::HashTable;
use proto::pgoutput::{Column, Tuple};
use rustc_hash::FxHasher;
use txn::Op;

use crate::batch::CHANGE_OVERHEAD;
use crate::statement::PIECE;
use crate::table::{Collisions, Mask, Table};

/// How many rows that are alike one bag looks for: each takes a statement of its own.
const LIKE_MAX: u32 = 16;

/// One row: its old values, which are looked for, and its new values.
#[derive(Debug)]
pub struct Row {
    /// `None` for a new row.
    pub old: Option<Tuple>,
    /// How many rows like it are looked for before it.
    pub nth: u32,
    /// The row with every value; `None` for a row that is deleted.
    pub new: Option<Tuple>,
    /// The columns that an UPDATE sent, if not all. The others are TOAST values that did not
    /// change.
    pub sent: Option<Mask>,
}

impl Row {
    /// The columns in which a NULL is looked for.
    pub fn nulls(&self) -> Mask {
        self.old.iter().flat_map(Tuple::columns).map(|value| value == Column::Null).collect()
    }
}

/// What a table requires of its bags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A row may change more than once, and rows may be written in another order.
    pub chains: bool,
    /// All rows to update have NULLs in the same columns, and write the same columns.
    pub uniform: bool,
}

impl Rules {
    /// The rules of `table`.
    pub fn of(table: &Table) -> Rules {
        Rules {
            chains: table.collisions == Collisions::None,
            uniform: !table.columns.iter().all(|column| column.exact),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Bag {
    rules: Rules,
    rows: Vec<Row>,
    /// The first row that looks for a value, and how many rows do.
    looked_for: HashTable<(usize, u32)>,
    /// Rows by what they are now.
    now: HashTable<usize>,
    /// What the rows to update must have in common: the columns in which NULLs are looked for, and
    /// the columns sent. Where rows may collide this holds for all rows, and so does whether they
    /// are deleted or stay.
    common: Option<(Mask, Option<Mask>, bool)>,
    tuple_bytes: usize,
    /// Tuples are copied out of the messages they came in.
    detached: bool,
}

impl Bag {
    /// `detached` as in [`crate::fold::Fold::new`].
    pub fn new(rules: Rules, detached: bool) -> Bag {
        Bag {
            rules,
            rows: Vec::new(),
            looked_for: HashTable::new(),
            now: HashTable::new(),
            common: None,
            tuple_bytes: 0,
            detached,
        }
    }

    /// Rows to look for or to write.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Memory, approximately.
    pub fn bytes(&self) -> usize {
        self.tuple_bytes + self.rows.len() * CHANGE_OVERHEAD
    }

    /// The rows, in the order in which they first appeared.
    pub fn into_rows(self) -> Vec<Row> {
        self.rows
    }

    /// Takes one change in. Returns false, with nothing changed, if the change must begin another
    /// bag or cannot be in a bag.
    pub fn add(&mut self, op: &Op) -> bool {
        if self.bytes() >= PIECE {
            return false;
        }
        let (old, new) = match op {
            Op::Insert(new) if self.rules.chains => {
                self.push(None, 0, Some(self.own(new)), None);
                return true;
            }
            Op::Update { old: Some(old), new } if !old.key_only => (&old.tuple, Some(new)),
            Op::Delete(old) if !old.key_only => (&old.tuple, None),
            Op::Insert(_) | Op::Update { .. } | Op::Delete(_) => return false,
        };
        if old.has_unchanged() {
            return false;
        }
        let sent = new.filter(|new| new.has_unchanged()).map(|new| {
            let sent = new.columns().map(|column| column != Column::Unchanged);
            sent.collect::<Mask>()
        });
        let after = new.map(|new| if sent.is_some() { complete(old, new) } else { self.own(new) });
        let makes_one_like_it = after.as_ref().is_some_and(|after| self.count_of(after) > 0);
        let (rows, old_hash) = (&self.rows, hash(old));
        let known = self.now.find(old_hash, |&at| rows[at].new.as_ref() == Some(old)).copied();
        if let Some(at) = known {
            let is_new = rows[at].old.is_none();
            let sent = if is_new { None } else { union(rows[at].sent.clone(), sent) };
            let same = !self.rules.uniform || sent == rows[at].sent;
            let fits = is_new || after.is_none() || !makes_one_like_it && same;
            if !self.rules.chains || !fits {
                return false;
            }
            if let Ok(found) = self.now.find_entry(old_hash, |&other| other == at) {
                found.remove();
            }
            self.rows[at].sent = sent;
            self.become_(at, after);
            return true;
        }
        let nth = self.count_of(old);
        let row = Row { old: Some(self.own(old)), nth, new: None, sent };
        let stays = after.is_some();
        let has_common = !self.rules.chains || self.rules.uniform && stays;
        let like_max = if has_common { 1 } else { LIKE_MAX };
        let fits = !has_common || self.is_common(&row, stays);
        if nth == like_max || stays && makes_one_like_it || !fits {
            return false;
        }
        if has_common && self.common.is_none() {
            self.common = Some((row.nulls(), row.sent.clone(), stays));
        }
        self.push(row.old, nth, after, row.sent);
        true
    }

    /// Whether a row that is looked for may be in this bag.
    fn is_common(&self, row: &Row, stays: bool) -> bool {
        let same = |common: &(Mask, Option<Mask>, bool)| {
            common.0 == row.nulls() && common.1 == row.sent && common.2 == stays
        };
        self.common.as_ref().is_none_or(same)
    }

    /// How many rows that look like `tuple` are looked for.
    fn count_of(&self, tuple: &Tuple) -> u32 {
        let rows = &self.rows;
        let found = self.looked_for.find(hash(tuple), |&(at, _)| rows[at].old.as_ref() == Some(tuple));
        found.map_or(0, |&(_, count)| count)
    }

    fn own(&self, tuple: &Tuple) -> Tuple {
        if self.detached { tuple.detached() } else { tuple.clone() }
    }

    fn push(&mut self, old: Option<Tuple>, nth: u32, new: Option<Tuple>, sent: Option<Mask>) {
        let at = self.rows.len();
        if let Some(old) = &old {
            self.tuple_bytes += old.byte_len();
            let rows = &self.rows;
            let is_like = |&(other, _): &(usize, u32)| rows[other].old.as_ref() == Some(old);
            match self.looked_for.find_mut(hash(old), is_like) {
                Some((_, count)) => *count += 1,
                None => {
                    let hash_of = |&(other, _): &(usize, u32)| rows[other].old.as_ref().map_or(0, hash);
                    self.looked_for.insert_unique(hash(old), (at, 1), hash_of);
                }
            }
        }
        self.rows.push(Row { old, nth, new: None, sent });
        self.become_(at, new);
    }

    /// Makes `new` the present state of the row at `at`, which must not be in the index `now`.
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

/// The columns of either mask; `None` (all columns) if one is `None`.
fn union(one: Option<Mask>, other: Option<Mask>) -> Option<Mask> {
    let both: Mask = one?.into_iter().zip(other?).map(|(one, other)| one || other).collect();
    both.contains(&false).then_some(both)
}

/// `new`, with the values that it did not send taken from `old`.
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

    /// Writes a bag as the statements do: first the deletes, then the updates, then the inserts.
    /// The first two may meet their rows in any order; here they go one by one from the last. False
    /// if a statement meets too few rows. (Rows that are alike are never in one statement.)
    fn write(model: &mut Model, bag: Bag) -> bool {
        let rows = bag.into_rows();
        for updates in [false, true] {
            for Row { old, new, .. } in rows.iter().rev().filter(|row| row.new.is_some() == updates) {
                let Some(old) = old else { continue };
                if !take(model, values(old)) {
                    return false;
                }
                if let Some(new) = new {
                    put(model, values(new));
                }
            }
        }
        for Row { old, new, .. } in &rows {
            if let (None, Some(new)) = (old, new) {
                put(model, values(new));
            }
        }
        true
    }

    const FREE: Rules = Rules { chains: true, uniform: false };

    /// Writes all steps in bags, each before the next begins; false if a bag meets too few rows.
    fn write_all(model: &mut Model, steps: &[Step], rules: Rules) -> bool {
        let (mut through, mut bag) = (true, Bag::new(rules, false));
        for step in steps {
            if !bag.add(&step.op()) {
                through &= write(model, std::mem::replace(&mut bag, Bag::new(rules, false)));
                if !bag.add(&step.op()) {
                    let Step::Insert(new) = step else { panic!("an empty bag refuses {step:?}") };
                    put(model, *new);
                }
            }
        }
        write(model, bag) && through
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
        /// Where changes one at a time meet no conflict, bags meet none either and lead to the same
        /// rows. Where they meet one, the bags fail too.
        #[test]
        fn the_net_effect_is_the_effect(
            steps in steps(),
            start in prop::collection::btree_map((0..3_u8, 0..2_u8), 0..3_usize, 0..6),
            chains in any::<bool>(),
            uniform in any::<bool>(),
        ) {
            let mut one_at_a_time = start.clone();
            let clean = steps.iter().all(|step| apply(&mut one_at_a_time, step));
            let mut at_once = start;
            let through = write_all(&mut at_once, &steps, Rules { chains, uniform });
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
        let mut bag = Bag::new(FREE, false);
        assert!((1..100).all(|n| bag.add(&Step::Update((n, 7), (n + 1, 7)).op())));
        let rows = bag.into_rows();
        assert_eq!((rows.len(), &rows[0].sent), (1, &None));
        assert_eq!(rows[0].old.as_ref().map(values), Some((1, 7)));
        assert_eq!(rows[0].new.as_ref().map(values), Some((100, 7)));
    }

    #[test]
    fn where_rows_collide_each_version_is_written() {
        let mut bag = Bag::new(Rules { chains: false, uniform: false }, false);
        assert!(!bag.add(&Step::Insert((1, 1)).op()), "what it collides with is to be met");
        assert!(bag.add(&Step::Update((1, 1), (2, 1)).op()));
        assert!(!bag.add(&Step::Update((2, 1), (3, 1)).op()));
        assert!(bag.add(&Step::Update((5, 1), (3, 1)).op()));
        assert!(!bag.add(&Step::Delete((6, 1)).op()), "it would go before the others change");
        assert_eq!(bag.len(), 2);
    }

    #[test]
    fn what_nobody_changed_is_kept_and_not_written() {
        let mut bag = Bag::new(FREE, true);
        assert!(bag.add(&Step::Touch((1, 7), 2).op()));
        assert!(bag.add(&Step::Touch((2, 7), 3).op()));
        assert!(bag.add(&Step::Update((9, 7), (8, 7)).op()));
        let rows = bag.into_rows();
        assert_eq!(
            rows.iter().map(|row| row.sent.clone()).collect::<Vec<_>>(),
            [Some(vec![true, false]), None]
        );
        assert_eq!(rows[0].new.as_ref().map(values), Some((3, 7)));
    }

    #[test]
    fn values_that_may_be_equal_unseen_are_found_by_one_statement() {
        let mut bag = Bag::new(Rules { chains: true, uniform: true }, false);
        assert!(bag.add(&Step::Update((1, 7), (2, 7)).op()));
        assert!(bag.add(&Step::Delete((0, 7)).op()), "rows that go are found before");
        assert!(!bag.add(&Step::Update((0, 8), (2, 8)).op()), "a NULL elsewhere");
        assert!(!bag.add(&Step::Touch((3, 8), 4).op()), "not all columns");
        assert!(bag.add(&Step::Update((3, 8), (4, 8)).op()));
    }

    #[test]
    fn rows_that_are_alike_are_counted_up_to_a_bound() {
        let mut bag = Bag::new(FREE, false);
        let delete = Step::Delete((1, 1)).op();
        assert_eq!((0..100).take_while(|_| bag.add(&delete)).count(), LIKE_MAX as usize);
        assert!(
            !bag.add(&Op::Delete(OldTuple { key_only: true, tuple: row((2, 2)) })),
            "no row of all values"
        );
        assert_eq!(
            bag.into_rows().iter().map(|row| row.nth).collect::<Vec<_>>(),
            (0..LIKE_MAX).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_row_like_one_that_is_looked_for_is_of_another_bag() {
        let mut bag = Bag::new(FREE, false);
        assert!(bag.add(&Step::Update((1, 1), (2, 2)).op()));
        assert!(!bag.add(&Step::Update((3, 3), (1, 1)).op()));
        assert!(!bag.add(&Step::Update((2, 2), (1, 1)).op()));
        assert!(bag.add(&Step::Insert((1, 1)).op()), "new rows come last");
    }

    #[test]
    fn a_bag_is_no_larger_than_a_statement_may_be() {
        let mut bag = Bag::new(FREE, false);
        let value = "x".repeat(PIECE / 4);
        let insert = Op::Insert([Column::Text(value.as_bytes())].into_iter().collect());
        assert_eq!((0..10).take_while(|_| bag.add(&insert)).count(), 4);
    }
}
