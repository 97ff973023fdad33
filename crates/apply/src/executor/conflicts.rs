//! What becomes of a change that meets a conflict: the executor finds out what the change met, the
//! user's rule decides, and what was decided is written and recorded.
//!
//! ```text
//!   the change's statement
//!     | 23505 ----> back to the savepoint --> holders of its unique keys, locked --+
//!     | 0 rows ---> the row itself, locked: none, or written by another origin ----+--> rule
//!     | 1 row                                                                      |
//!     v                                                                            v
//!   applied                         error: roll back   keep: nothing   apply: make room, try again
//! ```
//! A conflict that was resolved is recorded in the transaction that resolves it. It is counted and
//! logged when that transaction has committed, so one that is tried again counts once. A conflict
//! that is an error is recorded after the rollback.

use conflict::{ColumnValues, Conflict, ConflictType, Met, Resolution, Stamp, TableRules, Verdict, Written};
use plan::{Arrays, row_statement};
use proto::pgoutput::{Column, Tuple};
use state::ConflictOutcome;

use super::deleted::{self, Deletion, Remembered};
use super::met::{self, ChangeValues, Row, UniqueKeys, With};
use super::resolved::{Resolved, records};
use super::*;
use crate::write::one_change;

/// How often a change is tried again because what it met was gone when the executor looked.
const TRIES: u32 = 10;

/// Misses are asked about together, and no later than when there are this many, so that an answer
/// does not wait for the end of a large set.
const AWAITING_MAX: usize = 1000;

/// One change that is applied by itself.
struct Single<'b> {
    table: &'b Arc<Table>,
    begin: Begin,
    rules: TableRules,
    /// The change stands behind a savepoint.
    guarded: bool,
    /// A rule decided that the row is written although somebody else wrote it last.
    anyones: bool,
    /// The row was there and locked, and a statement did not write it.
    passed_over: bool,
    /// How many conflicts were resolved before this change.
    mark: usize,
}

/// Where a change stands after a try.
enum Step {
    Done,
    /// What it met is gone or was removed.
    Again,
    /// It became this other change.
    Instead(Op),
}

/// What a look for the row of a change found.
enum OwnRow {
    Missing,
    /// It was there, and was gone when it was to be locked.
    Unclear,
    Locked(Row),
}

impl Executor {
    /// Applies one change by itself, and resolves the conflicts that it meets. Behind a savepoint
    /// (`guarded`) every conflict is found and named in full.
    pub(super) async fn replay_row(
        &mut self,
        table: &Arc<Table>,
        op: &Op,
        begin: Begin,
        guarded: bool,
    ) -> Result<(), Error> {
        // Where conflicts are expected, the look that finds them comes first.
        let unlike = self.shared.expecting.is_likely() && !matches!(op, Op::Insert(_));
        self.replay_single(table, op, begin, guarded, unlike).await
    }

    /// The same for a change whose row is known not to be as the source had it. Behind a savepoint,
    /// if the change can violate a unique key.
    pub(super) async fn replay_exception(
        &mut self,
        table: &Arc<Table>,
        op: &Op,
        begin: Begin,
    ) -> Result<(), Error> {
        let inserts = matches!(op, Op::Insert(_));
        self.replay_single(table, op, begin, inserts, !inserts).await
    }

    /// `unlike` looks at the row before it tries to write it.
    async fn replay_single(
        &mut self,
        table: &Arc<Table>,
        op: &Op,
        begin: Begin,
        guarded: bool,
        unlike: bool,
    ) -> Result<(), Error> {
        let rules = self.conflicts.rules_of(table);
        let guarded = guarded || rules.resolves_unique();
        let mark = self.conflicts.mark();
        let mut single = Single { table, begin, rules, guarded, anyones: false, passed_over: false, mark };
        self.activity.row(operation(op), table);
        let mut instead = None;
        if unlike {
            match self.not_written(&mut single, op).await? {
                Step::Done => return Ok(()),
                Step::Again => {}
                Step::Instead(other) => instead = Some(other),
            }
        }
        for _ in 0..TRIES {
            match self.try_row(&mut single, instead.as_ref().unwrap_or(op)).await? {
                Step::Done => return Ok(()),
                Step::Again => {}
                Step::Instead(other) => instead = Some(other),
            }
        }
        let (xid, finished_at) = (begin.xid, begin.final_lsn);
        let operation = operation(instead.as_ref().unwrap_or(op));
        Err(Kind::Unsettled { table: table.name.clone(), operation, xid, finished_at }.into())
    }

    async fn try_row(&mut self, single: &mut Single<'_>, op: &Op) -> Result<Step, Error> {
        let &mut Single { table, begin, guarded, anyones, .. } = single;
        let Ok(statement) = self.writer.row_of(table, op, anyones) else {
            let (xid, finished_at) = (begin.xid, begin.final_lsn);
            let operation = operation(op);
            return Err(Kind::NoIdentity { table: table.name.clone(), operation, xid, finished_at }.into());
        };
        let guarded = guarded && !matches!(op, Op::Delete(_));
        let mut statements = vec![&statement];
        if guarded {
            statements = vec![&self.change_savepoint, &statement, &self.change_release];
        }
        let result = run(&mut self.wire, &mut self.prepared, &statements).await?;
        let place = usize::from(guarded);
        if let Some(error) = result.error {
            let violates = error.code == SqlState::UNIQUE_VIOLATION.code() && result.rows.len() == place;
            if !guarded || !violates {
                return Err(self.failed(table, op, begin, error));
            }
            self.back_to_change().await?;
            return self.taken(single, op, error).await;
        }
        match (op, result.rows.get(place)) {
            // An INSERT that a BEFORE trigger swallows is no conflict.
            (Op::Update { .. } | Op::Delete(_), Some(0)) => self.not_written(single, op).await,
            _ => Ok(Step::Done),
        }
    }

    /// Resolves what a change met that violates unique keys.
    async fn taken(&mut self, single: &mut Single<'_>, op: &Op, error: ServerError) -> Result<Step, Error> {
        let &mut Single { table, begin, rules, mark, .. } = single;
        let holders = self.holders(table, op).await?;
        let kind = match (holders.len(), op) {
            // Gone meanwhile; or in a partition's own index, or over columns that no change shows.
            (0, _) if self.is_known_index(table, &error).await? => return Ok(Step::Again),
            (0, _) => return Err(self.failed(table, op, begin, error)),
            (1, Op::Insert(_)) => ConflictType::InsertExists,
            (1, _) => ConflictType::UpdateExists,
            _ => ConflictType::MultipleUniqueConflicts,
        };
        let change = self.change_values(table, op).await?;
        let met = holders.iter().map(|(index, row)| row.met(Some(index.clone()), change.as_ref())).collect();
        let conflict = Conflict { kind, relation: table.name.clone(), met };
        let local: Vec<Stamp> = holders.iter().map(|(_, row)| self.conflicts.local(&row.writer)).collect();
        match rules.of(kind).decide(&self.conflicts.remote(begin), &local) {
            Verdict::Refuse => Err(self.refused(conflict, begin, table)),
            Verdict::KeepLocal => {
                self.conflicts.leave_out(mark);
                Ok(self.kept(conflict, begin, table))
            }
            Verdict::ApplyRemote => {
                let step = match (op, holders.first()) {
                    (Op::Insert(new), Some((_, row))) if kind == ConflictType::InsertExists => {
                        self.overwrite(table, new, row, begin).await?
                    }
                    _ => None,
                };
                match step {
                    // Nothing was written: the next try meets the conflict anew.
                    Some(Step::Again) => return Ok(Step::Again),
                    Some(step) => return Ok(self.applied(conflict, begin, table, step)),
                    None => {}
                }
                for (_, row) in &holders {
                    let (only, sql, place) = (table.only(), &table.sql, &row.place);
                    self.write_plain(format!("DELETE FROM {only}{sql} AS t WHERE {place}"), table, op, begin)
                        .await?;
                }
                Ok(self.applied(conflict, begin, table, Step::Again))
            }
        }
    }

    /// Writes the values of an INSERT into the one row that holds its key. `None` if that row must
    /// be deleted instead: an UPDATE may not give a value to an identity column GENERATED ALWAYS.
    async fn overwrite(
        &mut self,
        table: &Arc<Table>,
        new: &Tuple,
        row: &Row,
        begin: Begin,
    ) -> Result<Option<Step>, Error> {
        if table.columns.iter().any(|column| column.target.identity_always) {
            return Ok(None);
        }
        let assignments: Vec<String> = table
            .columns
            .iter()
            .enumerate()
            .map(|(n, column)| format!("{} = ${}", column.sql, n + 1))
            .collect();
        let (only, sql, place) = (table.only(), &table.sql, &row.place);
        let sql = format!("UPDATE {only}{sql} AS t SET {} WHERE {place}", assignments.join(", "));
        let all: Vec<usize> = (0..table.columns.len()).collect();
        let statement =
            with_values(table, sql, &all, new.columns()).ok_or_else(|| incomplete(table, begin))?;
        let statements = [&self.change_savepoint, &statement, &self.change_release];
        let result = run(&mut self.wire, &mut self.prepared, &statements).await?;
        let Some(error) = result.error else { return Ok(Some(Step::Done)) };
        if error.code != SqlState::UNIQUE_VIOLATION.code() {
            return Err(change_error(table.name.clone(), "UPDATE", begin, error));
        }
        // Another row came meanwhile that holds another of its keys.
        self.back_to_change().await?;
        Ok(Some(Step::Again))
    }

    /// Rolls back to the savepoint before a change, and releases it.
    pub(super) async fn back_to_change(&mut self) -> Result<(), Error> {
        let back = [&self.change_rollback, &self.change_release];
        let undone = run(&mut self.wire, &mut self.prepared, &back).await?;
        undone
            .error
            .map_or(Ok(()), |error| Err(Kind::Statement { what: "transaction control", error }.into()))
    }

    /// Finds out why an UPDATE or DELETE wrote no row, and resolves it.
    async fn not_written(&mut self, single: &mut Single<'_>, op: &Op) -> Result<Step, Error> {
        let &mut Single { table, begin, rules, .. } = single;
        let row = match self.own_row(table, op, begin).await? {
            OwnRow::Missing => return self.missing(single, op).await,
            OwnRow::Unclear => return Ok(Step::Again),
            OwnRow::Locked(row) => row,
        };
        if single.anyones || !table.is_foreign(row.writer.origin) {
            // A BEFORE trigger returned NULL: the row stays as it is, which is no conflict.
            if table.path == Path::RowsAlone && single.passed_over {
                return Ok(Step::Done);
            }
            single.passed_over = true;
            return Ok(Step::Again);
        }
        let kind = origin_differs(op);
        let change = self.change_values(table, op).await?;
        let met = vec![row.met(None, change.as_ref())];
        let conflict = Conflict { kind, relation: table.name.clone(), met };
        match rules.of(kind).decide(&self.conflicts.remote(begin), &[self.conflicts.local(&row.writer)]) {
            Verdict::Refuse => Err(self.refused(conflict, begin, table)),
            Verdict::KeepLocal => Ok(self.kept(conflict, begin, table)),
            Verdict::ApplyRemote => {
                single.anyones = true;
                let step = completed(op, rules.of(kind)).map_or(Step::Again, Step::Instead);
                Ok(self.applied(conflict, begin, table, step))
            }
        }
    }

    /// Resolves a change whose row is not there.
    async fn missing(&mut self, single: &Single<'_>, op: &Op) -> Result<Step, Error> {
        let &Single { table, begin, rules, .. } = single;
        let kind = match op {
            Op::Delete(_) => ConflictType::DeleteMissing,
            _ => ConflictType::UpdateMissing,
        };
        let change = self.change_values(table, op).await?;
        let met = change.map(|change| Met { values: Some(change.with(None)), ..Met::default() });
        let conflict = Conflict { kind, relation: table.name.clone(), met: met.into_iter().collect() };
        let key = match self.remembered(table, op).await {
            Remembered::Never => return self.never_there(single, op, conflict, false),
            Remembered::Unnamed => return self.uncovered(single, op, conflict),
            Remembered::By(key) => key,
        };
        if deleted::writes_nothing(&rules) {
            // Asked about together with others, before the transaction commits.
            let step = self.kept(conflict, begin, table);
            self.conflicts.await_answer(key);
            if self.conflicts.awaiting >= AWAITING_MAX {
                self.ask_about_missed().await?;
            }
            return Ok(step);
        }
        // If it is written, it is missing no longer.
        let deletion = self.deletion(&key, begin).await?;
        let step = match deletion {
            Deletion::By(deletion) => self.deleted(single, op, deletion, conflict.met)?,
            Deletion::NoneNewer => self.never_there(single, op, conflict, true)?,
            Deletion::Unknown => self.never_there(single, op, conflict, false)?,
            Deletion::NotCovered => self.uncovered(single, op, conflict)?,
        };
        if matches!(step, Step::Instead(_)) {
            self.conflicts.missing.written(&key);
        }
        Ok(step)
    }

    /// Resolves an UPDATE whose row may have been deleted without being remembered.
    fn uncovered(&mut self, single: &Single<'_>, op: &Op, conflict: Conflict) -> Result<Step, Error> {
        let step = self.never_there(single, op, conflict, false);
        let resolved = match &step {
            Ok(_) => self.conflicts.resolved.last_mut(),
            Err(_) => self.conflicts.refused.as_mut(),
        };
        if let Some(resolved) = resolved {
            resolved.is_uncovered = true;
        }
        step
    }

    /// Resolves a change whose row is not known to have been deleted. `is_newest` says that no
    /// deletion of it can be newer.
    fn never_there(
        &mut self,
        single: &Single<'_>,
        op: &Op,
        conflict: Conflict,
        is_newest: bool,
    ) -> Result<Step, Error> {
        let &Single { table, begin, rules, .. } = single;
        let rule = match rules.of(conflict.kind) {
            Resolution::LastUpdateWins if is_newest => Resolution::ApplyRemote,
            rule => rule,
        };
        match (rule, op) {
            (Resolution::Error, _) => Err(self.refused(conflict, begin, table)),
            (Resolution::ApplyRemote, Op::Update { old, new }) => {
                let whole = whole(old.as_ref(), new).ok_or_else(|| incomplete(table, begin))?;
                Ok(self.applied(conflict, begin, table, Step::Instead(Op::Insert(whole))))
            }
            _ => Ok(self.kept(conflict, begin, table)),
        }
    }

    /// Resolves an UPDATE whose row was deleted.
    fn deleted(
        &mut self,
        single: &Single<'_>,
        op: &Op,
        deletion: Written,
        met: Vec<Met>,
    ) -> Result<Step, Error> {
        let &Single { table, begin, rules, .. } = single;
        let local = self.conflicts.local_of(&deletion);
        let met = deleted::by(deletion, met);
        let kind = ConflictType::UpdateDeleted;
        let conflict = Conflict { kind, relation: table.name.clone(), met };
        match (rules.of(kind).decide(&self.conflicts.remote(begin), &[local]), op) {
            (Verdict::Refuse, _) => Err(self.refused(conflict, begin, table)),
            (Verdict::ApplyRemote, Op::Update { old, new }) => {
                let whole = whole(old.as_ref(), new).ok_or_else(|| incomplete(table, begin))?;
                Ok(self.applied(conflict, begin, table, Step::Instead(Op::Insert(whole))))
            }
            _ => Ok(self.kept(conflict, begin, table)),
        }
    }

    /// Notes that the target's row stays.
    fn kept(&mut self, conflict: Conflict, begin: Begin, table: &Arc<Table>) -> Step {
        self.resolved(conflict, begin, table, ConflictOutcome::Kept);
        Step::Done
    }

    /// Notes that the change is written.
    fn applied(&mut self, conflict: Conflict, begin: Begin, table: &Arc<Table>, step: Step) -> Step {
        self.resolved(conflict, begin, table, ConflictOutcome::Applied);
        step
    }

    pub(super) fn resolved(
        &mut self,
        conflict: Conflict,
        begin: Begin,
        table: &Arc<Table>,
        outcome: ConflictOutcome,
    ) {
        let resolution = self.conflicts.rules_of(table).of(conflict.kind);
        let (table, change) = (Arc::clone(table), self.conflicts.change);
        let (missed, is_uncovered) = (None, false);
        let resolved = Resolved { conflict, begin, change, table, resolution, outcome, missed, is_uncovered };
        self.conflicts.resolved.push(resolved);
    }

    /// The error of a conflict whose rule is `error`. It is recorded after the rollback.
    fn refused(&mut self, conflict: Conflict, begin: Begin, table: &Arc<Table>) -> Error {
        self.conflicts.refused = Some(Resolved {
            conflict: conflict.clone(),
            begin,
            change: self.conflicts.change,
            table: Arc::clone(table),
            resolution: Resolution::Error,
            outcome: ConflictOutcome::Error,
            missed: None,
            is_uncovered: false,
        });
        refused(conflict, begin)
    }

    /// Records, in the open transaction, what it has resolved.
    pub(super) async fn record_resolved(&mut self) -> Result<(), Error> {
        let records = self.records().await?;
        let records: Vec<&Statement> = records.iter().collect();
        if records.is_empty() {
            return Ok(());
        }
        let error = run(&mut self.wire, &mut self.prepared, &records).await?.error;
        error.map_or(Ok(()), |error| Err(Kind::Statement { what: "recording conflicts", error }.into()))
    }

    /// The statements that record what the open transaction has resolved.
    pub(super) async fn records(&mut self) -> Result<Vec<Statement>, Error> {
        self.ask_about_missed().await?;
        if !self.conflicts.settings.history {
            return Ok(Vec::new());
        }
        let records = records(&self.conflicts.resolved[self.conflicts.recorded..]);
        self.conflicts.recorded = self.conflicts.resolved.len();
        let statement = |rows: Arrays| rows.into_statement(Arc::clone(&self.record_conflicts), 0);
        Ok(records.into_iter().map(statement).collect())
    }

    /// Records the conflict because of which a transaction was rolled back, in a transaction of its
    /// own. Without the record the error is still reported.
    pub(super) async fn record_refused(&mut self) -> Result<(), Error> {
        let refused = self.conflicts.refused.take();
        let Some(refused) = refused.filter(|_| self.conflicts.settings.history) else { return Ok(()) };
        let mut records = Vec::new();
        refused.each_record(|record| {
            records.push(statements::record_refused_conflict(&self.subscription, record));
        });
        for record in records {
            match self.wire.query(&record).await {
                Ok(_) => {}
                Err(error) if self.wire_is_alive() => {
                    tracing::warn!("could not record a conflict in the history: {error}")
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Counts and logs what the transaction has resolved that has just committed.
    pub(super) fn tell_resolved(&mut self) {
        (self.conflicts.recorded, self.conflicts.asked) = (0, 0);
        self.conflicts.told += self.conflicts.resolved.len() as u64;
        let uncovered = self.conflicts.resolved.iter().filter(|resolved| resolved.is_uncovered).count();
        self.count_uncovered(uncovered);
        for Resolved { conflict, begin, .. } in self.conflicts.resolved.drain(..) {
            self.shared.counters.conflicts.add(conflict.kind);
            self.shared.counters.conflict_log.met(&conflict, begin.xid, begin.final_lsn);
        }
    }

    /// Counts the conflict that an error reports.
    pub(super) fn tell_refused(&self, error: &Error) {
        if let Kind::Conflict { conflict, finished_at, .. } = error.kind()
            && self.shared.counters.refused(*finished_at, conflict.kind, &conflict.relation)
        {
            let refused = self.conflicts.refused.iter();
            self.count_uncovered(refused.filter(|refused| refused.is_uncovered).count());
        }
    }

    fn count_uncovered(&self, count: usize) {
        if let Some(retention) = self.conflicts.settings.retention.as_ref().filter(|_| count > 0) {
            retention.exceeded(count);
        }
    }

    /// Looks for the row that an UPDATE or DELETE is for, and locks it.
    ///
    /// While we wait for a row, another session may delete it and insert it again. Neither half of
    /// a look that waits then sees it. A plain look does not wait: a row that it does not find is
    /// not there (rule F6).
    async fn own_row(&mut self, table: &Arc<Table>, op: &Op, begin: Begin) -> Result<OwnRow, Error> {
        let with = self.with().await?;
        let listed = match with.values {
            true => self.unique_keys(table).await?.listed(None, with),
            false => met::Listed::default(),
        };
        let Ok(probe) = self.writer.probe(table, op) else { return Ok(OwnRow::Missing) };
        let Some(old) = met::old_values(op) else { return Ok(OwnRow::Missing) };
        let key = old.columns().zip(&table.key_mask).filter(|(_, key)| **key).map(|(value, _)| value);
        let shape = self.conflicts.own_rows.entry(table.id).or_insert_with(|| {
            let mut shape = plain(&format!("own_row{}", table.id), &met::own_row(table, with, &listed));
            shape.parameter_types = table.key.iter().map(|&at| table.columns[at].target.type_oid).collect();
            Arc::new(shape)
        });
        let Ok(lock) = row_statement(Arc::clone(shape), key) else { return Ok(OwnRow::Unclear) };
        let result = run(&mut self.wire, &mut self.prepared, &[&probe, &lock]).await?;
        match result.error {
            Some(error) => Err(self.failed(table, op, begin, error)),
            None if result.rows.first() == Some(&0) => Ok(OwnRow::Missing),
            None => Ok(Row::read(result.last_row(1), &listed).map_or(OwnRow::Unclear, OwnRow::Locked)),
        }
    }

    /// The rows that hold the unique keys of a change, locked, each with the index's name.
    async fn holders(&mut self, table: &Arc<Table>, op: &Op) -> Result<Vec<(String, Row)>, Error> {
        let with = self.with().await?;
        let keys = self.unique_keys(table).await?;
        let mut values = Vec::new();
        let Ok(kind) = one_change(table, op, &mut values) else { return Ok(Vec::new()) };
        let positions = plan::sql::row_parameters(table, &kind);
        let mut found = Vec::new();
        // One after another, so that one that cannot be asked for does not hide the others.
        for index in &keys.indexes {
            let (sql, listed) = keys.holder(table, index, &kind, with);
            let Some(statement) = with_values(table, sql, &positions, values.iter().copied()) else {
                continue;
            };
            let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
            if let Some(error) = result.error {
                let (what, error) = ("the search for the row that holds a unique key", error);
                return Err(Kind::Statement { what, error }.into());
            }
            found.extend(Row::read(result.last_row(0), &listed).map(|row| (index.name.clone(), row)));
        }
        Ok(found)
    }

    /// Whether the index that an error names is one whose holder can be searched for.
    async fn is_known_index(&mut self, table: &Arc<Table>, error: &ServerError) -> Result<bool, Error> {
        let keys = self.unique_keys(table).await?;
        Ok(keys.indexes.iter().any(|index| Some(&index.name) == error.constraint.as_ref()))
    }

    async fn unique_keys(&mut self, table: &Table) -> Result<Arc<UniqueKeys>, Error> {
        if let Some(known) = self.conflicts.keys.get(&table.id) {
            return Ok(Arc::clone(known));
        }
        let indexes = self.wire.query(&met::ask_for_indexes(table.oid)).await?;
        let columns = self.wire.query(&met::ask_for_columns(table.oid)).await?;
        let keys = Arc::new(UniqueKeys::read(indexes, columns));
        self.conflicts.keys.insert(table.id, Arc::clone(&keys));
        Ok(keys)
    }

    pub(super) async fn with(&mut self) -> Result<With, Error> {
        let commit = match self.conflicts.commit_times {
            Some(known) => known,
            None => {
                let rows = self.wire.query("SHOW track_commit_timestamp").await?;
                rows.into_iter().flatten().next().flatten().as_deref() == Some("on")
            }
        };
        self.conflicts.commit_times = Some(commit);
        Ok(With { commit, values: self.conflicts.settings.values })
    }

    /// The values of a change, if the user asked for them.
    async fn change_values(&mut self, table: &Table, op: &Op) -> Result<Option<ChangeValues>, Error> {
        if !self.conflicts.settings.values {
            return Ok(None);
        }
        let mut change = ChangeValues::default();
        let all = |_: usize| true;
        if let Op::Insert(new) | Op::Update { new, .. } = op {
            change.remote_row = Some(self.as_text(table, new, all).await?);
        }
        if let Some(old) = met::old_values(op) {
            let key = self.as_text(table, old, |at| table.key_mask[at]).await?;
            let identity = match op {
                Op::Update { old: Some(full), .. } | Op::Delete(full) if !full.key_only => {
                    self.as_text(table, old, all).await?
                }
                _ => key.clone(),
            };
            (change.key, change.replica_identity) = (Some(key), Some(identity));
        }
        Ok(Some(change))
    }

    /// The sent values of these columns, as the target writes them.
    async fn as_text(
        &mut self,
        table: &Table,
        tuple: &Tuple,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<ColumnValues, Error> {
        let sent = tuple.columns().enumerate();
        let sent = sent.filter(|(at, value)| wanted(*at) && *value != Column::Unchanged);
        let positions: Vec<usize> = sent.clone().map(|(at, _)| at).collect();
        let list: Vec<String> = (1..=positions.len()).map(|n| format!("${n}")).collect();
        let values = sent.map(|(_, value)| value);
        let statement = with_values(table, format!("SELECT {}", list.join(", ")), &positions, values);
        let statement = statement.expect("a value for each position");
        let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
        if let Some(error) = result.error {
            return Err(Kind::Statement { what: "reading the values of a conflict", error }.into());
        }
        let names = positions.iter().map(|&at| table.columns[at].target.name.clone());
        let whole = positions.len() == table.columns.len();
        Ok(ColumnValues { columns: names.zip(result.last_row(0)).collect(), whole })
    }

    /// Executes a statement without parameters that belongs to a change.
    async fn write_plain(&mut self, sql: String, table: &Table, op: &Op, begin: Begin) -> Result<(), Error> {
        let statement = plain_statement(Arc::new(plain("", &sql)));
        let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
        result.error.map_or(Ok(()), |error| Err(self.failed(table, op, begin, error)))
    }

    /// Turns the error of one change into a conflict, of which only the index is known, or a plain
    /// error.
    pub(super) fn failed(&self, table: &Table, op: &Op, begin: Begin, error: ServerError) -> Error {
        // Violated exclusion constraints are plain errors, as in native apply.
        if error.code != SqlState::UNIQUE_VIOLATION.code() {
            return change_error(table.name.clone(), operation(op), begin, error);
        }
        let kind =
            if matches!(op, Op::Insert(_)) { ConflictType::InsertExists } else { ConflictType::UpdateExists };
        let met = vec![Met { index: error.constraint, ..Met::default() }];
        refused(Conflict { kind, relation: table.name.clone(), met }, begin)
    }
}

/// The type of the conflict of an UPDATE or DELETE with a row that somebody else wrote last.
pub(super) fn origin_differs(op: &Op) -> ConflictType {
    match op {
        Op::Delete(_) => ConflictType::DeleteOriginDiffers,
        _ => ConflictType::UpdateOriginDiffers,
    }
}

fn refused(conflict: Conflict, begin: Begin) -> Error {
    Kind::Conflict { conflict, xid: begin.xid, finished_at: begin.final_lsn }.into()
}

fn incomplete(table: &Table, begin: Begin) -> Error {
    Kind::Incomplete { table: table.name.clone(), xid: begin.xid, finished_at: begin.final_lsn }.into()
}

/// An UPDATE that replaces the row of somebody else because it is the later version, with the large
/// values that it left as they were on the source. The target's may belong to the version that
/// loses. `None` if it sends all values, or the source's replica identity does not have them.
pub(super) fn completed(op: &Op, rule: Resolution) -> Option<Op> {
    let Op::Update { old: Some(old), new } = op else { return None };
    let lacks = rule.compares_times() && new.has_unchanged();
    let whole = if lacks { whole(Some(old), new) } else { None };
    whole.map(|new| Op::Update { old: Some(old.clone()), new })
}

/// The whole new row of an UPDATE; `None` if the source did not send all of it.
fn whole(old: Option<&proto::pgoutput::OldTuple>, new: &Tuple) -> Option<Tuple> {
    if !new.has_unchanged() {
        return Some(new.clone());
    }
    let old = old.filter(|old| !old.key_only)?;
    let pairs = old.tuple.columns().zip(new.columns());
    let whole: Tuple = pairs.map(|(old, new)| if new == Column::Unchanged { old } else { new }).collect();
    (!whole.has_unchanged()).then_some(whole)
}

/// A statement that takes the values of these columns; `None` if one of them was not sent.
fn with_values<'v>(
    table: &Table,
    sql: String,
    positions: &[usize],
    values: impl Iterator<Item = Column<'v>> + Clone,
) -> Option<Statement> {
    let mut shape = plain("", &sql);
    shape.parameter_types = positions.iter().map(|&at| table.columns[at].target.type_oid).collect();
    row_statement(Arc::new(shape), values).ok()
}
