//! The net effect of changes, as it grows.
//!
//! Tables that fold and tables whose rows go one at a time are independent of one another. No
//! trigger fires and no foreign key is checked, so only the order within a table matters. A table
//! with a firing trigger, and TRUNCATE, are barriers: everything before them is written first.
//!
//! `write.rs` of crate `apply` makes the statements of a plan, one after another.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use txn::Op;

use crate::bag::{Bag, Rules};
use crate::batch::{CHANGE_OVERHEAD, Change};
use crate::fold::{Fold, Folded};
use crate::statement::{Arrays, Misfit, PIECE};
use crate::table::{Path, Table};

/// One step for one table. The steps of a table are executed in order.
#[derive(Debug)]
pub enum Step {
    /// Rows by key.
    Fold(Fold),
    /// Rows without a key.
    Bag(Bag),
    /// Consecutive INSERTs into a table that does not fold by key.
    Append(Arrays),
    /// One change by itself.
    Row(Op),
}

/// One stage of a plan. Stages are executed in order.
#[derive(Debug)]
pub enum Stage {
    /// Steps of several tables, in any order between tables.
    Tables(Tables),
    /// One change by itself.
    Row(Arc<Table>, Op),
    /// The tables that one TRUNCATE names.
    Truncate {
        /// As the source named them.
        tables: Vec<Arc<Table>>,
        /// Sequences begin anew.
        restart_identity: bool,
    },
}

/// Tables between two barriers.
#[derive(Debug, Default)]
pub struct Tables {
    /// The steps of each table, in order.
    pub tables: Vec<(Arc<Table>, Vec<Step>)>,
    index: FxHashMap<u64, usize>,
}

impl Tables {
    fn steps(&mut self, table: &Arc<Table>) -> &mut Vec<Step> {
        let at = *self.index.entry(table.id).or_insert_with(|| {
            self.tables.push((Arc::clone(table), Vec::new()));
            self.tables.len() - 1
        });
        &mut self.tables[at].1
    }
}

/// See the module.
#[derive(Debug)]
pub struct Plan {
    /// In order.
    pub stages: Vec<Stage>,
    /// Values come in binary form.
    binary: bool,
    detached: bool,
    rows: usize,
    /// Those of `rows` that are statements of their own.
    single_rows: usize,
    bytes: usize,
}

impl Plan {
    /// A plan for changes that are kept as long as the plan is.
    pub fn new(binary: bool) -> Plan {
        Plan { stages: Vec::new(), binary, detached: false, rows: 0, single_rows: 0, bytes: 0 }
    }

    /// A plan with values of its own: the messages they came in are not kept.
    pub fn detached(binary: bool) -> Plan {
        Plan { detached: true, ..Plan::new(binary) }
    }

    /// Whether values come in binary form.
    pub fn binary(&self) -> bool {
        self.binary
    }

    /// The tables whose rows the plan writes; a table may come twice.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.stages.iter().flat_map(|stage| {
            let (many, one) = match stage {
                Stage::Tables(stage) => (stage.tables.as_slice(), None),
                Stage::Row(table, _) => ([].as_slice(), Some(table)),
                Stage::Truncate { .. } => ([].as_slice(), None),
            };
            many.iter().map(|(table, _)| table).chain(one)
        })
    }

    /// Whether single rows can be taken out of it: no row depends on another one, and no key has
    /// two forms.
    pub fn takes_exceptions(&self) -> bool {
        let folds = |(table, steps): &(Arc<Table>, Vec<Step>)| match steps.as_slice() {
            [Step::Fold(_)] => table.exact_key,
            [Step::Append(_)] => true,
            _ => false,
        };
        matches!(self.stages.as_slice(), [Stage::Tables(stage)] if stage.tables.iter().all(folds))
    }

    /// Rows to write.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows that each take a statement of their own, the first row of each bag included. A
    /// statement may even read a whole table, so more of these rows gain nothing from being written
    /// together.
    pub fn single_rows(&self) -> usize {
        self.single_rows
    }

    /// Memory, approximately.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds changes in source order. An error means that they contradict earlier changes or that a
    /// value does not fit; the plan is of no further use then.
    pub fn add_all(&mut self, changes: &[Change]) -> Result<(), Misfit> {
        changes.iter().try_for_each(|change| self.add(change))
    }

    fn add(&mut self, change: &Change) -> Result<(), Misfit> {
        match change {
            Change::Row { table, op } if table.path == Path::RowsAlone => {
                let op = self.own(op);
                self.count_single(&op);
                self.stages.push(Stage::Row(Arc::clone(table), op));
                Ok(())
            }
            Change::Row { table, op } => self.add_row(table, op),
            Change::Truncate { tables, restart_identity } => {
                let (tables, restart_identity) = (tables.clone(), *restart_identity);
                self.stages.push(Stage::Truncate { tables, restart_identity });
                Ok(())
            }
        }
    }

    fn own(&self, op: &Op) -> Op {
        if self.detached { op.detached() } else { op.clone() }
    }

    fn count(&mut self, rows: usize, bytes: usize) {
        self.rows += rows;
        self.bytes += bytes;
    }

    fn count_single(&mut self, op: &Op) {
        self.single_rows += 1;
        self.count(1, op.byte_len() + CHANGE_OVERHEAD);
    }

    fn add_row(&mut self, table: &Arc<Table>, op: &Op) -> Result<(), Misfit> {
        if !matches!(self.stages.last(), Some(Stage::Tables(_))) {
            self.stages.push(Stage::Tables(Tables::default()));
        }
        let (binary, detached) = (self.binary, self.detached);
        let Some(Stage::Tables(tables)) = self.stages.last_mut() else { return Err(Misfit) };
        let steps = tables.steps(table);
        if table.path == Path::Bag
            && let Some((before, after)) = add_to_bag(steps, table, op, detached)
        {
            // A bag of one row is written by itself.
            self.single_rows += usize::from(before.rows == 0);
            self.rows = self.rows + after.rows - before.rows;
            self.bytes = self.bytes + after.bytes - before.bytes;
            return Ok(());
        }
        match (table.path, op) {
            (Path::Fold, _) => {
                if !matches!(steps.last(), Some(Step::Fold(_))) {
                    steps.push(Step::Fold(Fold::new(detached)));
                }
                let Some(Step::Fold(fold)) = steps.last_mut() else { return Err(Misfit) };
                let (rows, bytes) = (fold.rows(), fold.bytes());
                match fold.add(table, op) {
                    Folded::Yes => {
                        self.rows = self.rows + fold.rows() - rows;
                        self.bytes = self.bytes + fold.bytes() - bytes;
                        return Ok(());
                    }
                    Folded::Void => return Err(Misfit),
                    Folded::KeyChange => {}
                }
            }
            (_, Op::Insert(new)) if !table.columns.is_empty() => {
                let full = |arrays: &Arrays| arrays.byte_len() >= PIECE;
                if !matches!(steps.last(), Some(Step::Append(arrays)) if !full(arrays)) {
                    steps.push(Step::Append(Arrays::new(table.columns.len(), binary)));
                }
                let Some(Step::Append(arrays)) = steps.last_mut() else { return Err(Misfit) };
                arrays.push(new.columns())?;
                self.count(1, new.byte_len());
                return Ok(());
            }
            _ => {}
        }
        steps.push(Step::Row(if detached { op.detached() } else { op.clone() }));
        self.count_single(op);
        Ok(())
    }
}

/// How large a bag is.
#[derive(Clone, Copy, Default)]
struct Size {
    rows: usize,
    bytes: usize,
}

/// Takes a change of a table without a key into the last bag or a new one. Returns that bag's size
/// before and after, or `None` where the change cannot be in a bag.
fn add_to_bag(steps: &mut Vec<Step>, table: &Table, op: &Op, detached: bool) -> Option<(Size, Size)> {
    let size = |bag: &Bag| Size { rows: bag.len(), bytes: bag.bytes() };
    if let Some(Step::Bag(bag)) = steps.last_mut() {
        let before = size(bag);
        if bag.add(op) {
            return Some((before, size(bag)));
        }
    }
    // No later change looks for rows that were only inserted, so they need not be remembered one by
    // one.
    if matches!(op, Op::Insert(_)) {
        return None;
    }
    let mut bag = Bag::new(Rules::of(table), detached);
    bag.add(op).then(|| {
        let after = size(&bag);
        steps.push(Step::Bag(bag));
        (Size::default(), after)
    })
}
