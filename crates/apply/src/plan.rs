//! A batch of changes to set-based statements.
//!
//! Tables that fold, and tables whose rows go one at a time, are independent
//! of one another: no trigger fires and no foreign key is checked, so only
//! the order within a table matters. A table with a firing trigger, and
//! TRUNCATE, are barriers: everything before is written first.
//!
//! Within a fold: probe, DELETE, UPDATE, INSERT. Values of other unique keys
//! are freed before they are taken where that is possible; where it is not
//! (a swap), the statement fails and the chunk is applied exactly.

use std::sync::Arc;

use proto::pgoutput::{Column, Tuple};
use rustc_hash::FxHashMap;
use txn::Op;

use crate::batch::{Batch, Change};
use crate::fold::{Fold, Folded, Net};
use crate::shape::{Kind, Present, Shape, Shapes, non_key, plain};
use crate::statement::{Arrays, Misfit, Statement, plain_statement, row_statement};
use crate::table::{Lookup, Path, Table};

/// What is done to one table, in order.
enum Step {
    Fold(Fold),
    Append(Arrays),
    Row(Statement),
}

/// Tables between two barriers.
#[derive(Default)]
struct Stage {
    tables: Vec<(Arc<Table>, Vec<Step>)>,
    index: FxHashMap<u64, usize>,
}

impl Stage {
    fn steps(&mut self, table: &Arc<Table>) -> &mut Vec<Step> {
        let at = *self.index.entry(table.id).or_insert_with(|| {
            self.tables.push((Arc::clone(table), Vec::new()));
            self.tables.len() - 1
        });
        &mut self.tables[at].1
    }
}

/// Makes statements; keeps the shapes they are made of.
pub(crate) struct Planner {
    shapes: Shapes,
    /// Values come in binary form.
    binary: bool,
}

impl Planner {
    /// Statements are named `prefix` and a number: two planners that serve
    /// one session need different prefixes.
    pub(crate) fn new(prefix: &'static str, binary: bool) -> Self {
        Planner { shapes: Shapes::new(prefix), binary }
    }

    /// The statements that write the net effect of `batch`; `None` if its
    /// changes contradict one another or a value does not fit.
    pub(crate) fn plan(&mut self, batch: &Batch) -> Option<Vec<Statement>> {
        let mut statements = Vec::new();
        let mut stage = Stage::default();
        for change in &batch.changes {
            match change {
                Change::Row { table, op } if table.path == Path::RowsAlone => {
                    self.write(std::mem::take(&mut stage), &mut statements).ok()?;
                    statements.push(self.row(table, op).ok()?);
                }
                Change::Row { table, op } => self.add(stage.steps(table), table, op).ok()?,
                Change::Truncate { tables, restart_identity } => {
                    self.write(std::mem::take(&mut stage), &mut statements).ok()?;
                    statements.push(truncate(tables, *restart_identity));
                }
            }
        }
        self.write(stage, &mut statements).ok()?;
        Some(statements)
    }

    fn add(&mut self, steps: &mut Vec<Step>, table: &Table, op: &Op) -> Result<(), Misfit> {
        if table.path == Path::Fold {
            if !matches!(steps.last(), Some(Step::Fold(_))) {
                steps.push(Step::Fold(Fold::default()));
            }
            let Some(Step::Fold(fold)) = steps.last_mut() else { return Err(Misfit) };
            return match fold.add(table, op) {
                Folded::Yes => Ok(()),
                Folded::Void => Err(Misfit),
                Folded::KeyChange => {
                    steps.push(Step::Row(self.row(table, op)?));
                    Ok(())
                }
            };
        }
        match op {
            Op::Insert(new) if !table.columns.is_empty() => {
                if !matches!(steps.last(), Some(Step::Append(_))) {
                    steps.push(Step::Append(Arrays::new(table.columns.len(), self.binary)));
                }
                let Some(Step::Append(arrays)) = steps.last_mut() else { return Err(Misfit) };
                arrays.push(new.columns())
            }
            _ => {
                steps.push(Step::Row(self.row(table, op)?));
                Ok(())
            }
        }
    }

    /// The statement of one change by itself.
    pub(crate) fn row(&mut self, table: &Table, op: &Op) -> Result<Statement, Misfit> {
        if table.lookup == Lookup::None && !matches!(op, Op::Insert(_)) {
            return Err(Misfit);
        }
        let key_of = |tuple: &Tuple| Key(table, tuple.clone());
        match op {
            Op::Insert(new) => {
                let shape = self.shapes.get(table, self.binary, Kind::RowInsert);
                row_statement(shape, new.columns())
            }
            Op::Update { old, new } => {
                let present: Present = new.columns().map(|column| column != Column::Unchanged).collect();
                let shape = self.shapes.get(table, self.binary, Kind::RowUpdate(present));
                let key = key_of(old.as_ref().map_or(new, |old| &old.tuple));
                let written = new.columns().filter(|column| *column != Column::Unchanged);
                row_statement(shape, written.chain(key.columns()))
            }
            Op::Delete(old) => {
                let shape = self.shapes.get(table, self.binary, Kind::RowDelete);
                row_statement(shape, key_of(&old.tuple).columns())
            }
        }
    }

    /// The statement that finds the row which an UPDATE or DELETE is for.
    pub(crate) fn probe(&mut self, table: &Table, op: &Op) -> Result<Statement, Misfit> {
        let old = match op {
            Op::Insert(_) => return Err(Misfit),
            Op::Update { old: None, new } => new,
            Op::Update { old: Some(old), .. } | Op::Delete(old) => &old.tuple,
        };
        let shape = self.shapes.get(table, self.binary, Kind::RowProbe);
        row_statement(shape, Key(table, old.clone()).columns())
    }

    fn write(&mut self, stage: Stage, statements: &mut Vec<Statement>) -> Result<(), Misfit> {
        for (table, steps) in stage.tables {
            for step in steps {
                match step {
                    Step::Fold(mut fold) => {
                        // Where another unique key's value wanders from row to row, the source's order frees it
                        // before it is taken.
                        if table.sole_unique_key {
                            fold.sort();
                        }
                        self.write_fold(&table, &fold, statements)?;
                    }
                    Step::Append(arrays) => {
                        let shape = self.shapes.get(&table, self.binary, Kind::SetInsert);
                        let rows = arrays.rows();
                        statements.push(arrays.into_statement(shape, rows));
                    }
                    Step::Row(statement) => statements.push(statement),
                }
            }
        }
        Ok(())
    }

    fn write_fold(&mut self, table: &Table, fold: &Fold, out: &mut Vec<Statement>) -> Result<(), Misfit> {
        let binary = self.binary;
        let keys = || Arrays::new(table.key.len(), binary);
        let (mut absent, mut deletes, mut inserts) =
            (keys(), keys(), Arrays::new(table.columns.len(), binary));
        let everything = vec![true; table.columns.len()];
        let replaced = non_key(table, &everything);
        let mut replaces = Arrays::new(table.key.len() + replaced.len(), binary);
        let mut updates: Vec<(Present, Vec<usize>, Arrays)> = Vec::new();
        for (key, net) in fold.entries() {
            match net {
                Net::Absent => absent.push(key)?,
                Net::Delete => deletes.push(key)?,
                Net::Insert(new) => inserts.push(new.columns())?,
                Net::Replace(new) => replaces.push(key.chain(NonKey(table, new).columns()))?,
                Net::Update(new) => {
                    let group = update_group(table, new, &mut updates, binary);
                    let written = NonKey(table, new).columns().filter(|column| *column != Column::Unchanged);
                    group.push(key.chain(written))?;
                }
            }
        }
        let mut add = |arrays: Arrays, kind: Kind, rows: u64| {
            if arrays.rows() > 0 {
                out.push(arrays.into_statement(self.shapes.get(table, binary, kind), rows));
            }
        };
        add(absent, Kind::SetProbe, 0);
        let rows = deletes.rows();
        add(deletes, Kind::SetDelete, rows);
        for (present, _, arrays) in updates {
            let rows = arrays.rows();
            add(arrays, Kind::SetUpdate(present), rows);
        }
        let rows = replaces.rows();
        add(replaces, Kind::SetReplace, rows);
        let rows = inserts.rows();
        add(inserts, Kind::SetInsert, rows);
        Ok(())
    }
}

/// The arrays for UPDATEs that sent the same columns as `new`. There are as
/// many groups as there are sets of unchanged TOAST columns: few, so a list
/// is searched, the last group first.
fn update_group<'a>(
    table: &Table,
    new: &Tuple,
    groups: &'a mut Vec<(Present, Vec<usize>, Arrays)>,
    binary: bool,
) -> &'a mut Arrays {
    let sent = |column: Column<'_>| column != Column::Unchanged;
    let same =
        |(present, _, _): &(Present, Vec<usize>, Arrays)| new.columns().map(sent).eq(present.iter().copied());
    let at = groups.iter().rposition(same).unwrap_or_else(|| {
        let present: Present = new.columns().map(sent).collect();
        let written = non_key(table, &present);
        let arrays = Arrays::new(table.key.len() + written.len(), binary);
        groups.push((present, written, arrays));
        groups.len() - 1
    });
    &mut groups[at].2
}

/// The key columns of a tuple.
struct Key<'t>(&'t Table, Tuple);

impl Key<'_> {
    fn columns(&self) -> impl Iterator<Item = Column<'_>> + Clone {
        let columns = self.1.columns().zip(&self.0.key_mask);
        columns.filter(|(_, key)| **key).map(|(value, _)| value)
    }
}

/// The other columns of a tuple.
struct NonKey<'t>(&'t Table, &'t Tuple);

impl<'t> NonKey<'t> {
    fn columns(&self) -> impl Iterator<Item = Column<'t>> + use<'t> {
        let columns = self.1.columns().zip(&self.0.columns);
        columns.filter(|(_, column)| !column.key).map(|(value, _)| value)
    }
}

/// As native apply: exactly the tables that the source names, RESTRICT.
pub(crate) fn truncate(tables: &[Arc<Table>], restart_identity: bool) -> Statement {
    let names: Vec<String> = tables.iter().map(|table| format!("{}{}", table.only(), table.sql)).collect();
    let restart = if restart_identity { " RESTART IDENTITY" } else { "" };
    let sql = format!("TRUNCATE {}{restart}", names.join(", "));
    let shape: Shape = plain("", &sql);
    plain_statement(Arc::new(shape))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::fixtures;

    fn tuple(id: &str, a: Option<&str>) -> Tuple {
        let a = a.map_or(Column::Unchanged, |a| Column::Text(a.as_bytes()));
        [Column::Text(id.as_bytes()), a, Column::Null].into_iter().collect()
    }

    fn batch(ops: impl IntoIterator<Item = Op>) -> Batch {
        let table = fixtures::table();
        let mut batch = Batch::default();
        for op in ops {
            batch.push(Change::Row { table: Arc::clone(&table), op });
        }
        batch
    }

    fn verbs(statements: &[Statement]) -> Vec<String> {
        let verb = |s: &Statement| format!("{} {}", s.shape.sql.split(' ').next().unwrap(), s.rows_expected);
        statements.iter().map(verb).collect()
    }

    #[test]
    fn a_fold_probes_deletes_updates_and_inserts() {
        let key = |id| proto::pgoutput::OldTuple { key_only: true, tuple: tuple(id, None) };
        let ops = [
            Op::Insert(tuple("1", Some("x"))),
            Op::Update { old: None, new: tuple("2", Some("y")) },
            Op::Update { old: None, new: tuple("3", None) },
            Op::Insert(tuple("4", Some("x"))),
            Op::Delete(key("4")),
            Op::Delete(key("5")),
            Op::Delete(key("6")),
            Op::Insert(tuple("6", Some("z"))),
        ];
        let statements = Planner::new("p", false).plan(&batch(ops)).unwrap();
        assert_eq!(
            verbs(&statements),
            ["SELECT 0", "DELETE 1", "UPDATE 1", "UPDATE 1", "UPDATE 1", "INSERT 1"]
        );
    }

    #[test]
    fn a_key_change_stands_between_two_folds() {
        let moved = Op::Update {
            old: Some(proto::pgoutput::OldTuple { key_only: true, tuple: tuple("1", None) }),
            new: tuple("2", Some("y")),
        };
        let ops = [Op::Insert(tuple("1", Some("x"))), moved, Op::Insert(tuple("1", Some("z")))];
        let statements = Planner::new("p", false).plan(&batch(ops)).unwrap();
        assert_eq!(verbs(&statements), ["INSERT 1", "UPDATE 1", "INSERT 1"]);
    }

    #[test]
    fn contradictions_and_the_other_form_have_no_plan() {
        let twice = [Op::Insert(tuple("1", Some("x"))), Op::Insert(tuple("1", Some("x")))];
        assert!(Planner::new("p", false).plan(&batch(twice)).is_none());
        let mut binary = Planner::new("p", true);
        assert!(binary.plan(&batch([Op::Insert(tuple("1", Some("x")))])).is_none());
    }
}
