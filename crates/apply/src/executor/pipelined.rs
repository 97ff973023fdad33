//! Transactions that each stay one on the target, many of them in flight at a time.
//!
//! Where commits keep their times (rule F3), nothing is folded across transactions. Two round trips
//! for each would cost many times the transaction itself. So the executor sends them one behind the
//! other in one pipeline, each from BEGIN to COMMIT:
//!
//! ```text
//!   BEGIN set set progress origin COMMIT  BEGIN set ... COMMIT  BEGIN set ... COMMIT  Sync
//!                                               ^ another count than it must be: an error
//!   <--------------- committed ---------------> <--- passed over by the server ---->
//! ```
//! The executor does not check a count before the next statement runs, so the server must. Each
//! statement has a form that fails if it meets an unexpected number of rows ([`Shape::insisting`]).
//! Behind an error the server passes over everything up to the Sync, so everything before the error
//! is committed, without a gap. The transaction that failed is applied by itself, change by change
//! if need be, and the others follow.
//!
//! One session executes its statements in order. So a COMMIT may be sent before the COMMIT before
//! it was answered. If the connection is lost, the next start asks how many were committed, as it
//! does for one transaction (rule P2). The server goes on with everything that it received. That
//! many transactions may still commit after this process has ended, and the fence of the next start
//! waits for them.

use std::time::Instant;

use super::sent::{ASK_EACH, ASK_OF_FEW, Sent, SentTransactions};
use super::*;

/// A transaction of at most this many changes that failed among others, or is expected to fail, is
/// replayed at once: it would fail as a set.
const REPLAYED_MAX: usize = 16;

impl Executor {
    /// Applies whole transactions, each as one target transaction.
    pub(super) async fn apply_each(&mut self, mut rest: Batch) -> Result<(), Error> {
        if self.sizes.are_old(Instant::now()) {
            let table = |change: &'_ Change| match change {
                Change::Row { table, .. } => Some(Arc::clone(table)),
                Change::Truncate { .. } => None,
            };
            let mut tables: Vec<Arc<Table>> = rest.changes.iter().filter_map(table).collect();
            tables.sort_unstable_by_key(|table| table.id);
            tables.dedup_by_key(|table| table.id);
            self.look_at_sizes(tables.iter(), true).await?;
        }
        self.conflicts.missing.begin();
        while !rest.ends.is_empty() {
            let missing = self.known_to_miss(&rest, REPLAYED_MAX).await;
            if missing > 0 {
                self.replay_first(&rest, missing).await?;
                self.shared.expecting.met(true);
                rest = self.behind(rest, missing);
                continue;
            }
            let mut count = self.span.next(rest.ends.len());
            let mut committed = 0;
            if count > 1 {
                (count, committed) = match self.call(&rest, count).await? {
                    (0, _) => (count, self.send(&rest, count).await?),
                    called => called,
                };
                self.span.sent(count, committed);
            }
            if committed > 0 {
                rest = self.behind(rest, committed);
            }
            if committed < count {
                let fails = count > 1 || self.shared.expecting.is_likely();
                if fails && rest.ends.first().is_some_and(|first| first.changes_end <= REPLAYED_MAX) {
                    let told = self.conflicts.told;
                    self.replay_first(&rest, 1).await?;
                    self.shared.expecting.met(self.conflicts.told > told);
                    rest = self.behind(rest, 1);
                } else {
                    let one = rest.take_first(1);
                    self.apply_transactions(Chunk::whole(one, self.writer.binary())).await?;
                    self.conflicts.missing.begin();
                }
            }
        }
        Ok(())
    }

    /// What is left of a batch whose first `transactions` are applied.
    fn behind(&mut self, batch: Batch, transactions: usize) -> Batch {
        let (done, rest) = batch.split(transactions);
        self.conflicts.missing.passed(done.changes.len());
        rest
    }

    /// Sends the first `count` transactions, waits for all of them, and returns how many were
    /// committed. If fewer than `count` were, the next one must be applied by itself.
    async fn send(&mut self, batch: &Batch, count: usize) -> Result<usize, Error> {
        let binary = self.writer.binary();
        let stores = self.wire.version().major() >= ABORT_MOVES_ORIGIN;
        let sending_phase = (crash_phases::inside(Phase::Batch), self.activity.enter(Doing::Sets));
        let mut sent = SentTransactions::new(batch, &self.shared, self.since, Vec::with_capacity(count));
        let mut sending = Sending::start(&mut self.wire, &mut self.prepared).await?;
        // Until these are dropped, the pages of their rows are read ahead.
        let mut written = Vec::with_capacity(count);
        'transactions: for end in &batch.ends[..count] {
            let from = sent.sent.last().map_or(0, |sent| sent.changes.end);
            let changes = from..end.changes_end;
            let mut plan = Plan::new(binary);
            if end.skipped || plan.add_all(&batch.changes[changes.clone()]).is_err() {
                break;
            }
            sending.push(&self.begin);
            let mut writing = Writing::new(plan);
            let mut rows = 0;
            loop {
                let statement = match self.writer.next(&mut writing) {
                    Ok(None) => break,
                    Ok(Some(statement)) => {
                        rows += statement.rows_expected;
                        self.insisting.of(statement)
                    }
                    Err(_) => None,
                };
                let Some(statement) = statement else {
                    sending.push(&self.rollback);
                    break 'transactions;
                };
                sending.push_and_flush(&statement).await?;
                self.writer.reuse(statement);
                if writing.is_paced() && !sending.keep_up(|result| sent.completed(result.rows.len())).await? {
                    break 'transactions;
                }
            }
            if stores {
                sending.push(&row_of(&self.write_progress, &[end.commit.end_lsn]));
            }
            sending.push(&self.check_deferred);
            sending.push(&origin_setup(end.commit.end_lsn, end));
            sending.push(&self.commit);
            written.push(writing);
            sent.sent.push(Sent { statements: sending.expected.len(), written: rows, changes });
            // A lock may delay the next transaction when these are already committed.
            if count <= ASK_OF_FEW || sent.sent.len().is_multiple_of(ASK_EACH) {
                sending.pipeline.ask_for_answers();
            }
        }
        drop(sending_phase);
        let result = {
            let _committing = (crash_phases::inside(Phase::Commit), self.activity.enter(Doing::Sets));
            let (result, _) = sending.finish_watched(|result| sent.completed(result.rows.len())).await?;
            result
        };
        sent.completed(result.rows.len());
        let committed = sent.finish(&mut self.since);
        if let Some(error) = &result.error {
            tracing::debug!(code = %error.code, committed, "one of many failed: {}", error.message);
            self.roll_back().await?;
        }
        self.look_at_plans().await?;
        Ok(committed)
    }
}
