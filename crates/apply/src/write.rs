//! From a plan to set-based statements, one after another.
//!
//! Statements are made as they are sent, so that a plan of many megabytes does not stand in memory
//! a second time. A large set is written in pieces.
//!
//! The order within a fold is: probe, DELETE, UPDATE, INSERT. It frees values of other unique keys
//! before other rows take them, where that is possible. Where it is not (a swap), the statement
//! fails and exact replay applies the chunk. A bag has the same order, without the probe.

use std::collections::VecDeque;
use std::sync::Arc;

use base::Lsn;
use plan::{
    Arrays, Exceptions, Fold, KeyBytes, Lookup, Mask, Misfit, Net, PIECE, Parameters, Plan, Stage, Statement,
    Step, Table,
    bag::{Bag, Row, Rules},
    plain_statement, row_statement,
    sql::{Kind, Present, Shape, Shapes, bags, non_key, plain},
};
use prefetch::{Hand, Prefetch, Written};
use proto::pgoutput::{Column, Tuple};
use rustc_hash::FxHashMap;
use txn::Op;

/// A COPY of fewer rows loses in its start what it saves.
const COPY_ROWS_MIN: u64 = 32;

/// For fewer rows than these, a table that no index leads into is not read whole, joined and
/// sorted.
const SCAN_ROWS_MIN: usize = 4;

/// Makes the statements of one session, and keeps the shapes they are made of.
pub(crate) struct Writer {
    shapes: Shapes,
    /// Values come in binary form.
    binary: bool,
    /// Memory of arrays that were sent.
    spare: Vec<Vec<u8>>,
    /// Refuse every plan, so that everything goes to exact replay.
    exact_only: bool,
    /// Reads the pages that are about to be written.
    prefetch: Prefetch,
    /// The size in bytes at which a statement ends, approximately.
    piece: usize,
    join_by_hash: Arc<Shape>,
    join_by_index: Arc<Shape>,
}

/// A plan that is being written.
pub(crate) struct Writing {
    stages: VecDeque<Stage>,
    tables: VecDeque<(Arc<Table>, VecDeque<Step>)>,
    fold: Option<(Arc<Table>, Folding)>,
    /// The statements of a bag, already made.
    made: VecDeque<Statement>,
    /// The plan's rows, whose pages are read ahead. Dropped when the plan is written.
    hand: Option<Arc<Hand>>,
    /// See [`Writing::up_to`].
    up_to: Option<Lsn>,
    /// The last statement has rows whose pages are being read ahead.
    paced: bool,
    /// See [`Writing::telling`].
    telling: Option<Telling>,
}

/// What the answers of statements are about that tell which rows were not as the source had them.
struct Telling {
    /// Rows that somebody else wrote last are written like others.
    of_anyone: bool,
    folds: Vec<(Arc<Table>, Fold)>,
    /// For each statement the number of its fold, and the entry of each of its rows.
    asked: Vec<(usize, Vec<usize>)>,
}

impl Telling {
    /// Notes the entries of a set of the next fold. Returns the kind of the statement that tells.
    fn ask(&mut self, set: Kind, entries: Vec<usize>) -> Kind {
        self.asked.push((self.folds.len(), entries));
        match self.of_anyone {
            true => Kind::TellingOfAnyone(Box::new(set)),
            false => Kind::Telling(Box::new(set)),
        }
    }
}

impl Writing {
    pub(crate) fn new(plan: Plan) -> Writing {
        let (stages, tables) = (plan.stages.into(), VecDeque::new());
        Writing {
            stages,
            tables,
            fold: None,
            made: VecDeque::new(),
            hand: None,
            up_to: None,
            paced: false,
            telling: None,
        }
    }

    /// Lets each statement take the rows that are as the source had them, and tell which are not.
    /// With `of_anyone` it does not matter who wrote them. The plan must be one that takes
    /// exceptions.
    pub(crate) fn telling(self, of_anyone: bool) -> Writing {
        let telling = Telling { of_anyone, folds: Vec::new(), asked: Vec::new() };
        Writing { telling: Some(telling), ..self }
    }

    /// The rows that the statements told of. `told` gives the numbers, from 1, that a statement
    /// answered with. `None` if an answer cannot be read, or names a row that was not sent.
    pub(crate) fn exceptions(&self, mut told: impl FnMut(usize) -> Option<Vec<usize>>) -> Option<Exceptions> {
        let mut exceptions = Exceptions::default();
        let Some(Telling { folds, asked, .. }) = &self.telling else { return Some(exceptions) };
        // A statement without entries appends rows, and tells nothing.
        for (statement, (fold, entries)) in asked.iter().enumerate().filter(|(_, asked)| !asked.1.is_empty())
        {
            let (table, fold) = folds.get(*fold)?;
            for number in told(statement)? {
                exceptions.add(table, fold, *entries.get(number.checked_sub(1)?)?);
            }
        }
        Some(exceptions)
    }

    /// Says that everything up to this commit record is in the plan, or already written.
    pub(crate) fn up_to(self, up_to: Option<Lsn>) -> Writing {
        Writing { up_to, ..self }
    }

    /// Whether the last statement is one of many small ones whose pages are read ahead, or may be.
    /// No more than [`UNFINISHED`](prefetch::UNFINISHED) of them may be in flight, or pages
    /// would be read too early.
    pub(crate) fn is_paced(&self) -> bool {
        self.paced
    }

    /// Returns the handle that keeps pages being read ahead for statements in flight.
    pub(crate) fn into_hand(self) -> Option<Arc<Hand>> {
        self.hand
    }

    /// The next step of a table, when nothing of the one before is left.
    fn step(&mut self) -> Option<(Arc<Table>, Step)> {
        while let Some((table, steps)) = self.tables.front_mut() {
            if let Some(step) = steps.pop_front() {
                return Some((Arc::clone(table), step));
            }
            self.tables.pop_front();
        }
        None
    }
}

impl Writer {
    pub(crate) fn new(binary: bool) -> Self {
        Writer {
            shapes: Shapes::new(),
            binary,
            spare: Vec::new(),
            exact_only: false,
            prefetch: Prefetch::default(),
            piece: PIECE,
            join_by_hash: Arc::new(plain("join_by_hash", bags::JOIN_BY_HASH)),
            join_by_index: Arc::new(plain("join_by_index", bags::JOIN_BY_INDEX)),
        }
    }

    /// Sets whether everything is applied one change at a time.
    pub(crate) fn exact_only(self, exact_only: bool) -> Self {
        Writer { exact_only, ..self }
    }

    /// Whether everything is applied one change at a time.
    pub(crate) fn is_exact_only(&self) -> bool {
        self.exact_only
    }

    /// Tells `prefetch` of each set before it is sent.
    pub(crate) fn prefetching(self, prefetch: Prefetch) -> Self {
        Writer { prefetch, ..self }
    }

    /// For one of `workers` sessions, which share the memory for statements.
    pub(crate) fn one_of(self, workers: usize) -> Self {
        Writer { piece: PIECE / workers.clamp(1, 4), ..self }
    }

    /// Whether values come in binary form.
    pub(crate) fn binary(&self) -> bool {
        self.binary
    }

    /// The next statement of `writing`; `None` at the end.
    pub(crate) fn next(&mut self, writing: &mut Writing) -> Result<Option<Statement>, Misfit> {
        if self.exact_only {
            return Err(Misfit);
        }
        let hand =
            Arc::clone(writing.hand.get_or_insert_with(|| Arc::new(self.prefetch.hand(writing.up_to))));
        writing.paced = false;
        loop {
            if let Some(statement) = writing.made.pop_front() {
                return Ok(Some(statement));
            }
            if let Some((table, folding)) = &mut writing.fold {
                if let Some((statement, paced)) =
                    folding.next_statement(table, self, &hand, writing.telling.as_mut())?
                {
                    writing.paced = paced;
                    return Ok(Some(statement));
                }
                let written = writing.fold.take().map(|(table, folding)| (table, folding.fold));
                if let Some(telling) = &mut writing.telling {
                    telling.folds.extend(written);
                }
            }
            match writing.step() {
                Some((table, Step::Fold(fold))) => {
                    let folding = Folding::new(&table, fold);
                    writing.fold = Some((table, folding));
                    continue;
                }
                Some((table, Step::Append(arrays))) => {
                    let all: Vec<usize> = (0..table.columns.len()).collect();
                    let pace = hand.pace(&table, Written::Inserted, &all);
                    let rows = arrays.rows();
                    if let Some(pace) = pace
                        && rows > pace.rows_max as u64
                    {
                        let pieces = arrays.cut(pace.rows_max).into_iter().map(Step::Append);
                        writing.tables.push_front((table, pieces.collect()));
                        continue;
                    }
                    writing.paced = pace.is_some_and(|pace| rows >= pace.rows_min as u64);
                    hand.set(&table, Written::Inserted, &all, &arrays);
                    if let Some(telling) = &mut writing.telling {
                        telling.asked.push((telling.folds.len(), Vec::new()));
                    }
                    return Ok(Some(self.insert(&table, arrays)));
                }
                Some((table, Step::Bag(bag))) => {
                    self.bag(&table, bag, &mut writing.made)?;
                    continue;
                }
                Some((table, Step::Row(op))) => return self.row(&table, &op).map(Some),
                None => {}
            }
            match writing.stages.pop_front() {
                None => return Ok(None),
                Some(Stage::Row(table, op)) => return self.row(&table, &op).map(Some),
                Some(Stage::Truncate { tables, restart_identity }) => {
                    tables.iter().for_each(|table| self.shapes.looks(table, 0.0));
                    return Ok(Some(truncate(&tables, restart_identity)));
                }
                Some(Stage::Tables(stage)) => {
                    let tables = stage.tables.into_iter();
                    writing.tables = tables.map(|(table, steps)| (table, steps.into())).collect();
                }
            }
        }
    }

    /// The statement for new rows.
    fn insert(&mut self, table: &Table, rows: Arrays) -> Statement {
        if rows.rows() >= COPY_ROWS_MIN {
            return rows.into_copy(self.shapes.get(table, self.binary, Kind::Copy));
        }
        let count = rows.rows();
        rows.into_statement(self.shapes.get(table, self.binary, Kind::SetInsert), count)
    }

    /// Makes the statements of a bag.
    fn bag(&mut self, table: &Table, bag: Bag, made: &mut VecDeque<Statement>) -> Result<(), Misfit> {
        let (mut deleted, mut updated, mut inserted) = (Groups::default(), Groups::default(), Vec::new());
        for row in bag.into_rows() {
            match (&row.old, &row.new) {
                (Some(_), None) => deleted.add(row),
                (Some(_), Some(_)) => updated.add(row),
                (None, Some(_)) => inserted.extend(row.new),
                (None, None) => {}
            }
        }
        for group in deleted.groups {
            self.found_rows(table, &group, None, made)?;
        }
        for group in updated.groups {
            let all = || vec![true; table.columns.len()];
            self.found_rows(table, &group, Some(group.sent.clone().unwrap_or_else(all)), made)?;
        }
        if !inserted.is_empty() {
            let mut arrays = Arrays::within(table.columns.len(), self.binary, &mut self.spare);
            inserted.iter().try_for_each(|new| arrays.push(new.columns()))?;
            made.push_back(self.insert(table, arrays));
        }
        Ok(())
    }

    /// Makes the statements that find rows by all of their values. They write the columns of
    /// `present` in each row, or delete it.
    fn found_rows(
        &mut self,
        table: &Table,
        group: &Group,
        present: Option<Present>,
        made: &mut VecDeque<Statement>,
    ) -> Result<(), Misfit> {
        let rows = &group.rows;
        let finding = self.shapes.finding(table, group.nulls.clone());
        let is_led = finding.is_led(table);
        let mask = present.clone().unwrap_or_default();
        // A few rows are looked for one by one, each until its first match. So are rows of which
        // several are alike. Where the rules are uniform only a single row counts as few, because a
        // statement must not find a row that one before it wrote.
        let few = if Rules::of(table).uniform { rows.len() < 2 } else { rows.len() < SCAN_ROWS_MIN };
        if !is_led && (few || group.nth > 0) {
            let shape = self.shapes.get(table, self.binary, present.map_or(Kind::RowDelete, Kind::RowUpdate));
            for row in rows {
                let old = row.old.iter().flat_map(Tuple::columns);
                made.push_back(row_statement(Arc::clone(&shape), written(&row.new, &mask).chain(old))?);
            }
            return Ok(());
        }
        let columns = table.columns.len() + mask.iter().filter(|present| **present).count();
        let mut arrays = Arrays::within(columns, self.binary, &mut self.spare);
        for row in rows {
            let old = row.old.iter().flat_map(Tuple::columns);
            arrays.push(old.chain(written(&row.new, &mask)))?;
        }
        let kind = match present {
            Some(present) => Kind::BagUpdate(present, finding),
            None => Kind::BagDelete(finding),
        };
        let statement = arrays.into_statement(self.shapes.get(table, self.binary, kind), rows.len() as u64);
        if is_led {
            made.push_back(statement);
        } else {
            let by_hash = plain_statement(Arc::clone(&self.join_by_hash));
            let by_index = plain_statement(Arc::clone(&self.join_by_index));
            made.extend([by_hash, statement, by_index]);
        }
        Ok(())
    }

    /// The shapes, with what is known of how large tables look.
    pub(crate) fn shapes(&mut self) -> &mut Shapes {
        &mut self.shapes
    }

    /// The statement that locks the rows of these keys.
    pub(crate) fn lock<'k>(
        &mut self,
        table: &Table,
        mut keys: impl Iterator<Item = &'k KeyBytes>,
    ) -> Result<Statement, Misfit> {
        let mut arrays = Arrays::within(table.key.len(), self.binary, &mut self.spare);
        keys.try_for_each(|key| arrays.push(key.columns()))?;
        Ok(arrays.into_statement(self.shapes.get(table, self.binary, Kind::SetLock), 1))
    }

    /// Takes back the memory of a statement that was sent.
    pub(crate) fn reuse(&mut self, statement: Statement) {
        if let Parameters::Arrays(arrays) | Parameters::Rows(arrays) = statement.parameters {
            arrays.leave(&mut self.spare);
        }
    }

    /// The statement of one change by itself, for a row that is ours to write.
    pub(crate) fn row(&mut self, table: &Table, op: &Op) -> Result<Statement, Misfit> {
        self.row_of(table, op, false)
    }

    /// The statement of one change by itself; with `anyones` also for a row that somebody
    /// else wrote last.
    pub(crate) fn row_of(&mut self, table: &Table, op: &Op, anyones: bool) -> Result<Statement, Misfit> {
        let mut values = Vec::new();
        let kind = match one_change(table, op, &mut values)? {
            Kind::RowUpdate(present) if anyones => Kind::AnyonesUpdate(present),
            Kind::RowDelete if anyones => Kind::AnyonesDelete,
            kind => kind,
        };
        row_statement(self.shapes.get(table, self.binary, kind), values.into_iter())
    }

    /// The statement that finds the row of an UPDATE or DELETE.
    pub(crate) fn probe(&mut self, table: &Table, op: &Op) -> Result<Statement, Misfit> {
        let old = match op {
            Op::Insert(_) => return Err(Misfit),
            Op::Update { old: None, new } => new,
            Op::Update { old: Some(old), .. } | Op::Delete(old) => &old.tuple,
        };
        let shape = self.shapes.get(table, self.binary, Kind::RowProbe);
        row_statement(shape, Key(table, old.clone()).columns())
    }
}

/// The kind of statement for one change by itself; appends its parameters to `values`.
pub(crate) fn one_change<'o>(
    table: &Table,
    op: &'o Op,
    values: &mut Vec<Column<'o>>,
) -> Result<Kind, Misfit> {
    if table.lookup == Lookup::None && !matches!(op, Op::Insert(_)) {
        return Err(Misfit);
    }
    let of_key = |tuple: &'o Tuple| {
        let columns = tuple.columns().zip(&table.key_mask);
        columns.filter(|(_, key)| **key).map(|(value, _)| value)
    };
    Ok(match op {
        Op::Insert(new) => {
            values.extend(new.columns());
            Kind::RowInsert
        }
        Op::Update { old, new } => {
            values.extend(new.columns().filter(|column| is_sent(*column)));
            values.extend(of_key(old.as_ref().map_or(new, |old| &old.tuple)));
            Kind::RowUpdate(new.columns().map(is_sent).collect())
        }
        Op::Delete(old) => {
            values.extend(of_key(&old.tuple));
            Kind::RowDelete
        }
    })
}

/// A fold that is being written. Its entries are gone through once for each kind of statement that
/// it needs.
struct Folding {
    fold: Fold,
    passes: VecDeque<Pass>,
    /// The entry that the first pass has reached.
    at: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pass {
    Absent,
    Delete,
    /// For the rows that sent these columns. There is one pass for each set of unchanged TOAST
    /// columns: few.
    Update(Present),
    Replace,
    Insert,
}

impl Pass {
    fn of(net: &Net) -> Pass {
        match net {
            Net::Absent => Pass::Absent,
            Net::Delete => Pass::Delete,
            Net::Update(new) => Pass::Update(new.columns().map(is_sent).collect()),
            Net::Replace(_) => Pass::Replace,
            Net::Insert(_) => Pass::Insert,
        }
    }

    fn takes(&self, net: &Net) -> bool {
        match (self, net) {
            (Pass::Update(present), Net::Update(new)) => {
                new.columns().map(is_sent).eq(present.iter().copied())
            }
            (Pass::Absent, Net::Absent)
            | (Pass::Delete, Net::Delete)
            | (Pass::Replace, Net::Replace(_))
            | (Pass::Insert, Net::Insert(_)) => true,
            _ => false,
        }
    }

    /// What the pass does to its rows; `None` if it writes none.
    fn written(&self) -> Option<Written> {
        match self {
            Pass::Absent => None,
            Pass::Delete => Some(Written::Deleted),
            Pass::Update(_) | Pass::Replace => Some(Written::Updated),
            Pass::Insert => Some(Written::Inserted),
        }
    }

    fn order(&self) -> u8 {
        match self {
            Pass::Absent => 0,
            Pass::Delete => 1,
            Pass::Update(_) => 2,
            Pass::Replace => 3,
            Pass::Insert => 4,
        }
    }
}

/// Rows of a bag that one statement finds and writes. No two of them are alike.
struct Group {
    nulls: Mask,
    sent: Option<Mask>,
    nth: u32,
    rows: Vec<Row>,
}

/// Groups in the order of their first rows.
#[derive(Default)]
struct Groups {
    groups: Vec<Group>,
    index: FxHashMap<(Mask, Option<Mask>, u32), usize>,
}

impl Groups {
    fn add(&mut self, row: Row) {
        let sent = row.sent.clone().filter(|_| row.new.is_some());
        let key = (row.nulls(), sent, row.nth);
        let at = match self.index.get(&key) {
            Some(at) => *at,
            None => {
                let (nulls, sent, nth) = key.clone();
                self.groups.push(Group { nulls, sent, nth, rows: Vec::new() });
                self.index.insert(key, self.groups.len() - 1);
                self.groups.len() - 1
            }
        };
        self.groups[at].rows.push(row);
    }
}

/// The values of a row, if there is one, in the columns of `present`.
fn written<'a>(row: &'a Option<Tuple>, present: &'a [bool]) -> impl Iterator<Item = Column<'a>> + Clone {
    let columns = row.iter().flat_map(Tuple::columns).zip(present);
    columns.filter(|(_, present)| **present).map(|(value, _)| value)
}

fn is_sent(column: Column<'_>) -> bool {
    column != Column::Unchanged
}

impl Folding {
    fn new(table: &Table, mut fold: Fold) -> Folding {
        // Where a value of another unique key moves from row to row, the source's order frees it
        // before it is taken.
        if table.sole_unique_key {
            fold.sort();
        }
        let mut passes: Vec<Pass> = Vec::new();
        for (_, net) in fold.entries() {
            // The pass found last is the likeliest.
            if !passes.iter().rev().any(|pass| pass.takes(net)) {
                passes.push(Pass::of(net));
            }
        }
        passes.sort_by_key(Pass::order);
        Folding { fold, passes: passes.into(), at: 0 }
    }

    /// The next statement, of at most about [`Writer::piece`] bytes, and whether it is paced
    /// ([`Writing::is_paced`]).
    fn next_statement(
        &mut self,
        table: &Arc<Table>,
        writer: &mut Writer,
        hand: &Hand,
        telling: Option<&mut Telling>,
    ) -> Result<Option<(Statement, bool)>, Misfit> {
        while let Some(pass) = self.passes.front() {
            let (kind, columns) = shape_of(pass, table);
            let written = pass.written();
            let pace = written.and_then(|written| hand.pace(table, written, &columns));
            let rows_max = pace.map_or(u64::MAX, |pace| pace.rows_max as u64);
            if *pass == Pass::Insert
                && self.at == 0
                && table.sole_unique_key
                && telling.is_none()
                && let Some(order) = hand.order(table)
            {
                self.fold.sort_inserts(&order);
            }
            let mut arrays = Arrays::within(columns.len(), writer.binary, &mut writer.spare);
            let mut entries = Vec::new();
            while self.at < self.fold.rows() && arrays.byte_len() < writer.piece && arrays.rows() < rows_max {
                let at = self.at;
                self.at += 1;
                let (key, net) = self.fold.entry(at);
                if !pass.takes(net) {
                    continue;
                }
                match net {
                    Net::Absent | Net::Delete => arrays.push(key)?,
                    Net::Insert(new) => arrays.push(new.columns())?,
                    Net::Update(new) | Net::Replace(new) => {
                        let written = NonKey(table, new).columns().filter(|column| is_sent(*column));
                        arrays.push(key.chain(written))?;
                    }
                }
                if *pass != Pass::Absent {
                    self.fold.written(at);
                }
                if telling.is_some() {
                    entries.push(at);
                }
            }
            // Written entries are marked as absent. They are not mistaken for keys that must be
            // absent, because the pass over those comes first.
            let rows = if *pass == Pass::Absent { 0 } else { arrays.rows() };
            if self.at == self.fold.rows() {
                self.passes.pop_front();
                self.at = 0;
            }
            if arrays.rows() > 0 {
                if let Some(written) = written {
                    hand.set(table, written, &columns, &arrays);
                }
                let paced = pace.is_some_and(|pace| arrays.rows() >= pace.rows_min as u64);
                if kind == Kind::SetDelete {
                    writer.shapes.shrinks(table, rows);
                }
                let statement = match telling {
                    Some(telling) => {
                        let kind = telling.ask(kind, entries);
                        arrays.into_statement(writer.shapes.get(table, writer.binary, kind), 1)
                    }
                    None if kind == Kind::SetInsert => writer.insert(table, arrays),
                    None => arrays.into_statement(writer.shapes.get(table, writer.binary, kind), rows),
                };
                return Ok(Some((statement, paced)));
            }
        }
        Ok(None)
    }
}

/// The kind of statement, and the columns of the arrays it takes.
fn shape_of(pass: &Pass, table: &Table) -> (Kind, Vec<usize>) {
    let key = || table.key.clone();
    let with = |present: &[bool]| [table.key.clone(), non_key(table, present)].concat();
    match pass {
        Pass::Absent => (Kind::SetProbe, key()),
        Pass::Delete => (Kind::SetDelete, key()),
        Pass::Update(present) => (Kind::SetUpdate(present.clone()), with(present)),
        Pass::Replace => (Kind::SetReplace, with(&vec![true; table.columns.len()])),
        Pass::Insert => (Kind::SetInsert, (0..table.columns.len()).collect()),
    }
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

/// As in native apply: exactly the tables that the source names, RESTRICT.
pub(crate) fn truncate(tables: &[Arc<Table>], restart_identity: bool) -> Statement {
    let names: Vec<String> = tables.iter().map(|table| format!("{}{}", table.only(), table.sql)).collect();
    let restart = if restart_identity { " RESTART IDENTITY" } else { "" };
    let sql = format!("TRUNCATE {}{restart}", names.join(", "));
    let shape: Shape = plain("", &sql);
    plain_statement(Arc::new(shape))
}

#[cfg(test)]
mod tests {

    use plan::{Change, fixtures};

    use super::*;

    fn tuple(id: &str, a: Option<&str>) -> Tuple {
        let a = a.map_or(Column::Unchanged, |a| Column::Text(a.as_bytes()));
        [Column::Text(id.as_bytes()), a, Column::Null].into_iter().collect()
    }

    /// The verb of each statement, and the rows it must report.
    fn written(ops: impl IntoIterator<Item = Op>, binary: bool) -> Result<Vec<String>, Misfit> {
        let table = fixtures::table();
        let mut plan = Plan::new(binary);
        for op in ops {
            plan.add_all(&[Change::Row { table: Arc::clone(&table), op }])?;
        }
        let (mut writing, mut writer) = (Writing::new(plan), Writer::new(binary));
        let mut verbs = Vec::new();
        while let Some(statement) = writer.next(&mut writing)? {
            let verb = statement.shape.sql.split(' ').next().unwrap().to_owned();
            verbs.push(format!("{verb} {}", statement.rows_expected));
        }
        Ok(verbs)
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
        assert_eq!(
            written(ops, false).unwrap(),
            ["SELECT 0", "DELETE 1", "UPDATE 1", "UPDATE 1", "UPDATE 1", "INSERT 1"]
        );
    }

    #[test]
    fn a_large_set_is_written_in_pieces_that_are_the_whole() {
        let value = "x".repeat(PIECE / 4);
        let key = |id: &str| proto::pgoutput::OldTuple { key_only: true, tuple: tuple(id, None) };
        let ops = (0..20_u32).map(|id| {
            let id = id.to_string();
            match id.len() {
                1 => Op::Insert(tuple(&id, Some(&value))),
                _ if id.ends_with('3') => Op::Delete(key(&id)),
                _ => Op::Update { old: None, new: tuple(&id, Some(&value)) },
            }
        });
        assert_eq!(
            written(ops, false).unwrap(),
            ["DELETE 1", "UPDATE 4", "UPDATE 4", "UPDATE 1", "INSERT 4", "INSERT 4", "INSERT 2"]
        );
    }

    #[test]
    fn many_new_rows_are_copied() {
        let inserts = |count: u64| (0..count).map(|id| Op::Insert(tuple(&id.to_string(), Some("x"))));
        assert_eq!(written(inserts(COPY_ROWS_MIN - 1), false).unwrap(), ["INSERT 31"]);
        assert_eq!(written(inserts(COPY_ROWS_MIN), false).unwrap(), ["COPY 32"]);
    }

    #[test]
    fn a_key_change_stands_between_two_folds() {
        let moved = Op::Update {
            old: Some(proto::pgoutput::OldTuple { key_only: true, tuple: tuple("1", None) }),
            new: tuple("2", Some("y")),
        };
        let ops = [Op::Insert(tuple("1", Some("x"))), moved, Op::Insert(tuple("1", Some("z")))];
        assert_eq!(written(ops, false).unwrap(), ["INSERT 1", "UPDATE 1", "INSERT 1"]);
    }

    #[test]
    fn contradictions_and_the_other_form_have_no_statements() {
        let twice = [Op::Insert(tuple("1", Some("x"))), Op::Insert(tuple("1", Some("x")))];
        assert_eq!(written(twice, false), Err(Misfit));
        assert_eq!(written([Op::Insert(tuple("1", Some("x")))], true), Err(Misfit));
    }
}
