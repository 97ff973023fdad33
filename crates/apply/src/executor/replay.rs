//! Exact replay: one change at a time, in the source's order. Only exact replay finds and names
//! conflicts.

use super::*;

/// From which change on every change stands behind a savepoint.
///
/// A change that violates a unique key aborts the transaction, and with it the view of what it met.
/// Savepoints keep that view, but each costs the server a subtransaction. So a transaction is first
/// replayed without them. If it fails at a key, it is replayed again, with savepoints from the
/// change on that failed.
#[derive(Debug, Clone, Copy)]
struct GuardedFrom(usize);

impl GuardedFrom {
    const NONE: GuardedFrom = GuardedFrom(usize::MAX);

    /// Lowers it to change `at` if an error there calls for it.
    fn lower(&mut self, error: &Error, at: usize) -> bool {
        let lowers = error.is_unexamined() && at < self.0;
        if lowers {
            self.0 = at;
        }
        lowers
    }
}

impl Executor {
    /// Exact replay of whole transactions, each a target transaction.
    pub(super) async fn replay_transactions(&mut self, batch: &Batch) -> Result<(), Error> {
        self.conflicts.missing.begin();
        self.replay_first(batch, batch.ends.len()).await
    }

    /// The same of the first `transactions`. Looks ahead into the others, with what is known of
    /// missing rows from before.
    pub(super) async fn replay_first(&mut self, batch: &Batch, transactions: usize) -> Result<(), Error> {
        let mut start = 0;
        for end in &batch.ends[..transactions] {
            let (mut tries, mut guarded) = (0, GuardedFrom::NONE);
            while let Err(error) = self.replay_transaction(batch, start, end, guarded).await {
                self.open = Tally::default();
                self.conflicts.missing.begin();
                // A cancel that was meant for the set before this transaction.
                let away = error.sqlstate().is_some_and(|code| self.ran_away(code));
                if away && self.away_from.is_empty() {
                    self.away_from = tables_of(&batch.changes[start..end.changes_end]);
                }
                let passes = error.is_transient() || away;
                if self.wire_is_alive() {
                    self.roll_back().await?;
                }
                if guarded.lower(&error, self.replaying) {
                    continue;
                }
                tries += 1;
                if !passes || tries > TRANSIENT_RETRIES {
                    self.tell_refused(&error);
                    if self.wire_is_alive() {
                        self.record_refused().await?;
                    }
                    return Err(error);
                }
                tracing::info!(xid = %end.begin.xid, "trying a transaction again: {error}");
            }
            start = end.changes_end;
        }
        Ok(())
    }

    async fn replay_transaction(
        &mut self,
        batch: &Batch,
        start: usize,
        end: &End,
        guarded: GuardedFrom,
    ) -> Result<(), Error> {
        let _replaying = (crash_phases::inside(Phase::Replay), self.activity.enter(Doing::Rows));
        self.one(&[&Which::Begin]).await?;
        self.replay_changes(batch, start..end.changes_end, end.begin, guarded).await?;
        let records = self.records().await?;
        let changes = &batch.changes[start..end.changes_end];
        self.open += Tally { written: changes.len() as u64, ..Tally::of(changes) };
        self.commit_with(records, end, end.skipped).await?;
        self.committed(&Digest::of_ends(std::slice::from_ref(end)));
        Ok(())
    }

    /// Exact replay behind the savepoint: of a part of a transaction, or of what came while a table
    /// was copied, which are many.
    pub(super) async fn replay_part(&mut self, batch: &Batch) -> Result<(), Error> {
        let _replaying = (crash_phases::inside(Phase::Replay), self.activity.enter(Doing::Rows));
        let mark = self.conflicts.mark();
        self.conflicts.missing.begin();
        let mut guarded = GuardedFrom::NONE;
        while let Err(error) = self.replay_all(batch, guarded).await {
            if !guarded.lower(&error, self.replaying) {
                self.tell_refused(&error);
                if self.conflicts.has_refused() && self.wire_is_alive() {
                    self.roll_back().await?;
                    self.record_refused().await?;
                }
                return Err(error);
            }
            self.conflicts.back_to(mark);
            self.conflicts.missing.begin();
            self.one(&[&Which::RollbackTo]).await?;
        }
        self.record_resolved().await?;
        self.one(&[&Which::Release]).await
    }

    /// Each transaction's changes as that one's: its commit time decides conflicts.
    async fn replay_all(&mut self, batch: &Batch, guarded: GuardedFrom) -> Result<(), Error> {
        for (range, begin) in batch.transactions() {
            self.replay_changes(batch, range, begin, guarded).await?;
        }
        Ok(())
    }

    async fn replay_changes(
        &mut self,
        batch: &Batch,
        range: std::ops::Range<usize>,
        begin: Begin,
        guarded: GuardedFrom,
    ) -> Result<(), Error> {
        for number in range {
            self.replaying = number;
            self.look_ahead(number, batch.changes[number..].iter()).await?;
            match &batch.changes[number] {
                Change::Row { table, op } => self.replay_row(table, op, begin, number >= guarded.0).await?,
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
