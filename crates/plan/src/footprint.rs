//! What a plan touches, and how a plan is split in two: one part is executed speculatively, the
//! other when its turn has come.
//!
//! Keys are hashes. Two keys that are equal by accident make one dependency too many, which costs a
//! moment and nothing else.

use std::hash::Hasher;
use std::sync::Arc;

use base::Oid;
use proto::pgoutput::{Column, Tuple};
use rustc_hash::FxHasher;
use schedule::{Footprint, KeyFilter, Late, Touched, Units};
use txn::Op;

use crate::batch::Change;
use crate::fold::{Fold, Net};
use crate::plan::{Plan, Stage, Step, Tables};
use crate::table::{Collisions, Path, Table};

impl Plan {
    /// The keys and tables that the plan touches.
    pub fn footprint(&self) -> Footprint {
        // A trigger may look at anything, and TRUNCATE changes what a snapshot sees.
        let [Stage::Tables(stage)] = self.stages.as_slice() else { return Footprint::Everything };
        let mut touched: Vec<Touched> =
            stage.tables.iter().map(|(table, steps)| touch(table, steps)).collect();
        // One table under two mappings: the first mapping's changes come before the second's.
        for at in 1..touched.len() {
            let root = touched[at].root;
            if let Some(other) = touched[..at].iter().position(|other| other.root == root) {
                touched[at].units = Units::Whole;
                touched[other].units = Units::Whole;
            }
        }
        Footprint::Tables(touched)
    }

    /// Splits the plan into the part that need not wait and the part that must, by `split` of its
    /// footprint.
    pub fn split(mut self, split: &[Late]) -> (Plan, Plan) {
        let mut later = Plan::new(self.binary());
        let Some(Stage::Tables(stage)) = self.stages.first_mut() else { return (later, self) };
        let mut late_stage = Tables::default();
        let mut early_stage = Tables::default();
        for ((table, mut steps), late) in std::mem::take(&mut stage.tables).into_iter().zip(split) {
            match (late, steps.as_mut_slice()) {
                (Late::Nothing, _) => early_stage.tables.push((table, steps)),
                (Late::Units(units), [Step::Fold(fold)]) => {
                    let taken = fold.take_out(units);
                    late_stage.tables.push((table.clone(), vec![Step::Fold(taken)]));
                    early_stage.tables.push((table, steps));
                }
                (Late::All | Late::Units(_), _) => late_stage.tables.push((table, steps)),
            }
        }
        self.stages = vec![Stage::Tables(early_stage)];
        later.stages = vec![Stage::Tables(late_stage)];
        (self, later)
    }

    /// Whether the plan is one set, which can be split.
    pub fn is_set(&self) -> bool {
        matches!(self.stages.as_slice(), [Stage::Tables(_)])
    }

    /// Whether no row must be written by itself and nothing is truncated.
    pub fn is_sets(&self) -> bool {
        self.stages.iter().all(|stage| matches!(stage, Stage::Tables(_)))
    }

    /// Whether the plan writes nothing.
    pub fn is_empty(&self) -> bool {
        self.stages.iter().all(|stage| matches!(stage, Stage::Tables(tables) if tables.tables.is_empty()))
    }
}

fn touch(table: &Table, steps: &[Step]) -> Touched {
    let append = || steps.iter().all(|step| matches!(step, Step::Append(_)));
    let units = match (&table.collisions, table.path) {
        (Collisions::None, Path::Rows | Path::Bag) if append() => Units::Append,
        (Collisions::Keys(others), Path::Fold) => keys(table, others, steps).unwrap_or(Units::Whole),
        _ => Units::Whole,
    };
    Touched { root: table.root, mapping: table.id, units }
}

/// Each row of a fold is a unit. With several folds, which an UPDATE of a key separates, the order
/// of all is kept: they are one unit.
fn keys(table: &Table, others: &[Vec<usize>], steps: &[Step]) -> Option<Units> {
    let (mut ends, mut keys) = (Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Fold(fold) => {
                for at in 0..fold.rows() {
                    keys.push(key(table.root, 0, fold.hash(at)));
                    if let (_, Net::Insert(row) | Net::Update(row) | Net::Replace(row)) = fold.entry(at) {
                        keys.extend(other_keys(table, others, row));
                    }
                    ends.push(u32::try_from(keys.len()).ok()?);
                }
            }
            Step::Row(op) => keys_of(table, others, op, &mut |key| keys.push(key))?,
            Step::Append(_) | Step::Bag(_) => return None,
        }
    }
    if steps.len() > 1 || !matches!(steps, [Step::Fold(_)]) {
        ends = vec![u32::try_from(keys.len()).ok()?];
    }
    Some(Units::Keys { ends, keys })
}

/// Passes on the keys of one change; returns `None` if one is unknown.
fn keys_of(table: &Table, others: &[Vec<usize>], op: &Op, take: &mut dyn FnMut(u64)) -> Option<()> {
    let (old, new) = match op {
        Op::Insert(new) => (None, Some(new)),
        Op::Update { old, new } => (old.as_ref().map(|old| &old.tuple), Some(new)),
        Op::Delete(old) => (Some(&old.tuple), None),
    };
    for row in [old, new].into_iter().flatten() {
        take(key(table.root, 0, Fold::hash_of(table, row)?));
    }
    new.into_iter().flat_map(|row| other_keys(table, others, row)).for_each(take);
    Some(())
}

/// Gathers, change by change, the footprint of a transaction that is too large for a plan.
#[derive(Debug, Default)]
pub struct Gathering {
    /// In the order of their roots' first changes.
    tables: Vec<(Oid, u64, Extent)>,
    filter: KeyFilter,
    everything: bool,
}

/// How much of a table is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Append,
    /// The rows whose keys are in the filter.
    Rows,
    Whole,
}

impl Gathering {
    /// Takes the next change in.
    pub fn add(&mut self, change: &Change) {
        match change {
            Change::Row { table, op } if table.path != Path::RowsAlone => {
                let extent = self.extent(table, op);
                match self.tables.iter_mut().find(|(root, ..)| *root == table.root) {
                    None => self.tables.push((table.root, table.id, extent)),
                    Some((_, mapping, before)) if *mapping != table.id || *before != extent => {
                        *before = Extent::Whole;
                    }
                    Some(_) => {}
                }
            }
            // A trigger may look at anything, as in a plan.
            Change::Row { .. } | Change::Truncate { .. } => self.everything = true,
        }
    }

    fn extent(&mut self, table: &Table, op: &Op) -> Extent {
        match (&table.collisions, table.path) {
            (Collisions::None, Path::Rows | Path::Bag) if matches!(op, Op::Insert(_)) => Extent::Append,
            (Collisions::Keys(others), Path::Fold) => {
                let filter = &mut self.filter;
                let told = keys_of(table, others, op, &mut |key| filter.add(key));
                told.map_or(Extent::Whole, |()| Extent::Rows)
            }
            _ => Extent::Whole,
        }
    }

    /// The footprint of all changes.
    pub fn into_footprint(self) -> Footprint {
        if self.everything || self.tables.is_empty() {
            return Footprint::Everything;
        }
        let filter = Arc::new(self.filter);
        let touched = self.tables.into_iter().map(|(root, mapping, extent)| {
            let units = match extent {
                Extent::Append => Units::Append,
                Extent::Rows => Units::Filtered(Arc::clone(&filter)),
                Extent::Whole => Units::Whole,
            };
            Touched { root, mapping, units }
        });
        Footprint::Tables(touched.collect())
    }
}

/// The values of other unique keys, as far as the change shows them. NULLs differ from one another.
fn other_keys(table: &Table, others: &[Vec<usize>], row: &Tuple) -> impl Iterator<Item = u64> {
    others.iter().zip(1..).filter_map(move |(positions, number)| {
        let mut hasher = FxHasher::default();
        let mut wanted = positions.iter().copied().peekable();
        for (position, column) in row.columns().enumerate() {
            if wanted.next_if_eq(&position).is_none() {
                continue;
            }
            match column {
                Column::Text(value) | Column::Binary(value) => {
                    hasher.write_usize(value.len());
                    hasher.write(value);
                }
                Column::Null | Column::Unchanged => return None,
            }
        }
        Some(key(table.root, number, hasher.finish()))
    })
}

/// Hash of a key value in index `number` of a table; 0 is the key by which changes name rows.
fn key(root: Oid, number: u32, value: u64) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u32(root.0);
    hasher.write_u32(number);
    hasher.write_u64(value);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proto::pgoutput::{OldTuple, ReplicaIdentity};

    use super::*;
    use crate::fixtures;
    use crate::table::TargetTable;

    fn table(change: fn(&mut TargetTable)) -> Arc<Table> {
        let mut target = fixtures::target();
        change(&mut target);
        Arc::new(Table::map(1, fixtures::relation(ReplicaIdentity::Default), &target).unwrap())
    }

    fn tuple(id: &str, a: &str) -> Tuple {
        [Column::Text(id.as_bytes()), Column::Text(a.as_bytes()), Column::Null].into_iter().collect()
    }

    fn update(id: &str, a: &str) -> Op {
        Op::Update { old: None, new: tuple(id, a) }
    }

    fn plan(table: &Arc<Table>, ops: impl IntoIterator<Item = Op>) -> Plan {
        let mut plan = Plan::new(false);
        let changes = ops.into_iter().map(|op| Change::Row { table: Arc::clone(table), op });
        plan.add_all(&changes.collect::<Vec<_>>()).unwrap();
        plan
    }

    fn units(plan: &Plan) -> (Vec<u32>, Vec<u64>) {
        let Footprint::Tables(touched) = plan.footprint() else { panic!("a barrier") };
        match &touched[0].units {
            Units::Keys { ends, keys } => (ends.clone(), keys.clone()),
            units => panic!("{units:?}"),
        }
    }

    fn rows_written(plan: &Plan) -> usize {
        let steps =
            |stage: &Tables| stage.tables.iter().flat_map(|(_, steps)| steps).map(rows).sum::<usize>();
        let rows_of_stage = |stage: &Stage| match stage {
            Stage::Tables(stage) => steps(stage),
            stage => panic!("{stage:?}"),
        };
        plan.stages.iter().map(rows_of_stage).sum()
    }

    fn rows(step: &Step) -> usize {
        match step {
            Step::Fold(fold) => fold.rows(),
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn a2_rows_share_their_keys_and_the_values_of_other_unique_keys() {
        let plain = table(|_| ());
        let two = table(|target| {
            target.unique_keys.push(fixtures::unique_key("a"));
            (target.constraints, target.sole_unique_key) = (2, false);
        });
        let shared = |table: &Arc<Table>, one: Op, other: Op| {
            let (one, other) = (units(&plan(table, [one])).1, units(&plan(table, [other])).1);
            one.iter().any(|key| other.contains(key))
        };
        assert!(shared(&plain, update("1", "x"), update("1", "y")));
        assert!(!shared(&plain, update("1", "x"), update("2", "x")));
        assert!(shared(&two, update("1", "x"), Op::Insert(tuple("2", "x"))));
        assert!(!shared(&two, update("1", "x"), Op::Insert(tuple("2", "y"))));
        // Value 1 of one index is not value 1 of the other.
        assert!(!shared(&two, update("1", "2"), update("2", "1")));
    }

    #[test]
    fn a2_what_changes_do_not_show_is_not_guessed() {
        for change in [(|target| target.constraints = 2) as fn(&mut TargetTable), |target| {
            target.columns[0].bytewise = false
        }] {
            let table = table(change);
            let Footprint::Tables(touched) = plan(&table, [update("1", "x")]).footprint() else { panic!() };
            assert_eq!(touched[0].units, Units::Whole);
        }
        let trigger = table(|target| target.firing_trigger = Some("t".into()));
        assert_eq!(plan(&trigger, [update("1", "x")]).footprint(), Footprint::Everything);
        let loose = table(|target| {
            target.unique_keys.clear();
            target.constraints = 0;
        });
        let units = |op: Op| match plan(&loose, [op]).footprint() {
            Footprint::Tables(touched) => touched[0].units.clone(),
            Footprint::Everything => panic!(),
        };
        assert_eq!(units(Op::Insert(tuple("1", "x"))), Units::Append);
        assert_eq!(units(update("1", "x")), Units::Whole);
    }

    #[test]
    fn a_split_writes_every_row_once() {
        let table = table(|_| ());
        let ops = || ["1", "2", "3", "4", "5"].map(|id| update(id, "x"));
        assert_eq!(units(&plan(&table, ops())).0, [1, 2, 3, 4, 5]);
        for (late, early_rows) in [(Late::Nothing, 5), (Late::All, 0), (Late::Units(vec![0, 3]), 3)] {
            let (early, late) = plan(&table, ops()).split(&[late]);
            assert_eq!((early.is_empty(), late.is_empty()), (early_rows == 0, early_rows == 5));
            assert_eq!((rows_written(&early), rows_written(&late)), (early_rows, 5 - early_rows));
        }
    }

    /// No plan exists for a large transaction, so its footprint must show the same keys as a plan
    /// would.
    #[test]
    fn a2_a_large_transaction_shows_the_keys_that_a_plan_shows() {
        let two = table(|target| {
            target.unique_keys.push(fixtures::unique_key("a"));
            (target.constraints, target.sole_unique_key) = (2, false);
        });
        let old = |id| OldTuple { key_only: true, tuple: tuple(id, "x") };
        let ops = || {
            let moved = Op::Update { old: Some(old("5")), new: tuple("6", "q") };
            vec![Op::Insert(tuple("1", "x")), update("2", "y"), Op::Delete(old("3")), moved]
        };
        let mut gathering = Gathering::default();
        for op in ops() {
            gathering.add(&Change::Row { table: Arc::clone(&two), op });
        }
        let Footprint::Tables(touched) = gathering.into_footprint() else { panic!() };
        let Units::Filtered(filter) = &touched[0].units else { panic!("{touched:?}") };
        let planned = units(&plan(&two, ops())).1;
        assert!(planned.len() >= 8 && planned.iter().all(|&key| filter.contains(key)), "{planned:?}");
        assert!(!units(&plan(&two, [update("7", "z")])).1.iter().any(|&key| filter.contains(key)));
    }

    #[test]
    fn a2_what_a_large_transaction_does_not_show_is_not_guessed() {
        let footprint = |changes: Vec<Change>| {
            let mut gathering = Gathering::default();
            changes.iter().for_each(|change| gathering.add(change));
            gathering.into_footprint()
        };
        let whole = |footprint: Footprint| match footprint {
            Footprint::Tables(touched) => touched[0].units == Units::Whole,
            Footprint::Everything => false,
        };
        let row = |table: &Arc<Table>, op| Change::Row { table: Arc::clone(table), op };
        let (plain, hidden) = (table(|_| ()), table(|target| target.constraints = 2));
        assert!(whole(footprint(vec![row(&hidden, update("1", "x"))])));
        // The relation is described again in the middle.
        let again = Arc::new(
            Table::map(2, fixtures::relation(ReplicaIdentity::Default), &fixtures::target()).unwrap(),
        );
        assert!(whole(footprint(vec![row(&plain, update("1", "x")), row(&again, update("2", "x"))])));
        let loose = table(|target| {
            target.unique_keys.clear();
            target.constraints = 0;
        });
        let inserted = || row(&loose, Op::Insert(tuple("1", "x")));
        let Footprint::Tables(touched) = footprint(vec![inserted(), inserted()]) else { panic!() };
        assert_eq!(touched[0].units, Units::Append);
        assert!(whole(footprint(vec![inserted(), row(&loose, update("1", "y"))])));
        let trigger = table(|target| target.firing_trigger = Some("t".into()));
        assert_eq!(footprint(vec![row(&trigger, update("1", "x"))]), Footprint::Everything);
        let truncate = Change::Truncate { tables: vec![Arc::clone(&plain)], restart_identity: false };
        assert_eq!(footprint(vec![row(&plain, update("1", "x")), truncate]), Footprint::Everything);
    }

    /// The order of the folds and of the steps between them is kept.
    #[test]
    fn a_changed_key_makes_a_table_one_unit() {
        let table = table(|_| ());
        let old = OldTuple { key_only: true, tuple: tuple("1", "x") };
        let moved = Op::Update { old: Some(old), new: tuple("2", "x") };
        let (ends, keys) = units(&plan(&table, [update("3", "x"), moved, update("4", "x")]));
        assert_eq!((ends, keys.len()), (vec![4], 4));
        for id in ["1", "2", "3", "4"] {
            assert!(keys.contains(&units(&plan(&table, [update(id, "y")])).1[0]), "{id}");
        }
    }
}
