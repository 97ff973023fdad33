//! Exact replay: one change at a time, in the source's order. Only exact replay finds and names
//! conflicts.

use client::SqlState;

use super::*;

impl Executor {
    /// Exact replay of whole transactions, each a target transaction.
    pub(super) async fn replay_transactions(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut start = 0;
        for end in &batch.ends {
            let mut tries = 0;
            while let Err(error) = self.replay_transaction(batch, start, end).await {
                self.open = Tally::default();
                // A cancel that was meant for the set before this transaction.
                let away = error.sqlstate().is_some_and(|code| self.ran_away(code));
                if away && self.away_from.is_empty() {
                    self.away_from = tables_of(&batch.changes[start..end.changes_end]);
                }
                let passes = error.is_transient() || away;
                if self.wire_is_alive() {
                    self.roll_back().await?;
                }
                tries += 1;
                if !passes || tries > TRANSIENT_RETRIES {
                    return Err(error);
                }
                tracing::info!(xid = %end.begin.xid, "trying a transaction again: {error}");
            }
            start = end.changes_end;
        }
        Ok(())
    }

    async fn replay_transaction(&mut self, batch: &Batch, start: usize, end: &End) -> Result<(), Error> {
        let _replaying = (crash_phases::inside(Phase::Replay), self.activity.enter(Doing::Rows));
        self.one(&[&Which::Begin]).await?;
        self.replay_changes(batch, start..end.changes_end, end.begin).await?;
        let changes = &batch.changes[start..end.changes_end];
        self.open += Tally { written: changes.len() as u64, ..Tally::of(changes) };
        self.commit(end, end.skipped).await?;
        self.committed(&Digest::of_ends(std::slice::from_ref(end)));
        Ok(())
    }

    /// Exact replay of a part of a transaction, behind the savepoint.
    pub(super) async fn replay_part(&mut self, batch: &Batch) -> Result<(), Error> {
        let begin = batch.open.or(batch.ends.last().map(|end| end.begin));
        let Some(begin) = begin else { return Ok(()) };
        let _replaying = (crash_phases::inside(Phase::Replay), self.activity.enter(Doing::Rows));
        self.replay_changes(batch, 0..batch.changes.len(), begin).await?;
        self.one(&[&Which::Release]).await
    }

    async fn replay_changes(
        &mut self,
        batch: &Batch,
        range: std::ops::Range<usize>,
        begin: Begin,
    ) -> Result<(), Error> {
        for number in range {
            match &batch.changes[number] {
                Change::Row { table, op } => self.replay_row(table, op, begin).await?,
                Change::Truncate { tables, restart_identity } => {
                    let statement = truncate(tables, *restart_identity);
                    let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
                    if let Some(error) = result.error {
                        let table = tables.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join("\", \"");
                        return Err(change_error(table, "TRUNCATE", begin, error));
                    }
                }
            }
        }
        Ok(())
    }

    async fn replay_row(&mut self, table: &Arc<Table>, op: &Op, begin: Begin) -> Result<(), Error> {
        let operation = operation(op);
        let Ok(statement) = self.writer.row(table, op) else {
            let (xid, finished_at) = (begin.xid, begin.final_lsn);
            return Err(Kind::NoIdentity { table: table.name.clone(), operation, xid, finished_at }.into());
        };
        let missing = match op {
            // An INSERT that a BEFORE trigger swallows is no conflict.
            Op::Insert(_) => None,
            Op::Update { .. } => Some(ConflictType::UpdateMissing),
            Op::Delete(_) => Some(ConflictType::DeleteMissing),
        };
        let mut again = false;
        self.activity.row(operation, table);
        loop {
            let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
            if let Some(error) = result.error {
                return Err(self.failed(table, op, begin, error));
            }
            let (Some(kind), Some(0)) = (missing, result.rows.first()) else { return Ok(()) };
            // While we wait for a row, another session may delete it and insert it again. Neither
            // half of our look then sees it. A plain look does not wait: a row that it does not
            // find is not there (rule F6).
            if !self.is_there(table, op, begin).await? {
                self.report(kind, table, begin);
                return Ok(());
            }
            // Otherwise a BEFORE trigger returned NULL: the row stays as it is, which is no
            // conflict.
            if table.path == Path::RowsAlone && again {
                return Ok(());
            }
            again = true;
        }
    }

    /// Whether the row that `op` is for exists.
    async fn is_there(&mut self, table: &Arc<Table>, op: &Op, begin: Begin) -> Result<bool, Error> {
        let Ok(statement) = self.writer.probe(table, op) else { return Ok(false) };
        let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
        match result.error {
            Some(error) => Err(self.failed(table, op, begin, error)),
            None => Ok(result.rows.first().is_some_and(|&rows| rows > 0)),
        }
    }

    /// Reports a conflict after which native apply goes on.
    fn report(&self, kind: ConflictType, table: &Table, begin: Begin) {
        debug_assert_eq!(kind.native(), Resolution::Skip);
        self.shared.counters.conflicts.add(kind);
        let conflict = Conflict { kind, relation: table.name.clone(), met: Vec::new() };
        self.shared.counters.conflict_log.met(&conflict, begin.xid, begin.final_lsn);
    }

    /// Turns the error of one change into a conflict or a plain error.
    fn failed(&self, table: &Table, op: &Op, begin: Begin, error: ServerError) -> Error {
        // Violated exclusion constraints are plain errors, as in native apply.
        if error.code != SqlState::UNIQUE_VIOLATION.code() {
            return change_error(table.name.clone(), operation(op), begin, error);
        }
        let kind =
            if matches!(op, Op::Insert(_)) { ConflictType::InsertExists } else { ConflictType::UpdateExists };
        self.shared.counters.conflicts.add(kind);
        let met = vec![Met { index: error.constraint, ..Met::default() }];
        let conflict = Conflict { kind, relation: table.name.clone(), met };
        Kind::Conflict { conflict, xid: begin.xid, finished_at: begin.final_lsn }.into()
    }
}

/// The tables of these changes, each once.
fn tables_of(changes: &[Change]) -> Vec<Arc<Table>> {
    let mut tables: Vec<Arc<Table>> = Vec::new();
    for change in changes {
        if let Change::Row { table, .. } = change
            && !tables.iter().any(|known| Arc::ptr_eq(known, table))
        {
            tables.push(Arc::clone(table));
        }
    }
    tables
}
