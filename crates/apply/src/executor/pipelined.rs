//! Transactions that each stay one on the target, many of them on their way at a time.
//!
//! Where commits keep their times (RULES F3), nothing is folded across transactions, and two round trips for each cost
//! many times what the transaction itself does. So they go one behind the other in one pipeline, each from BEGIN to
//! COMMIT:
//!
//! ```text
//!   BEGIN set set progress origin COMMIT  BEGIN set ... COMMIT  BEGIN set ... COMMIT  Sync
//!                                               ^ another count than it must be: an error
//!   <--------------- committed ---------------> <--- passed over by the server ---->
//! ```
//! Nobody looks at a count before the next statement runs, so the server must: each statement is one that fails by
//! itself if it met other rows than it must ([`Shape::insisting`]). Behind an error the server passes over everything
//! up to the Sync, so what was committed is what precedes it, without a gap. The transaction that failed is applied by
//! itself, with a look at each row if need be, and the others follow.
//!
//! A COMMIT that is sent before the one before it was answered is in order, because one session carries out one thing
//! after another. If the connection is lost, how many were committed is asked on the next start, as it is for one
//! (RULES P2).

use std::ops::Range;

use super::*;

/// So many at a time: waiting once for so many costs a few per cent of them.
pub(crate) const TRANSACTIONS_MAX: usize = 128;
/// Nor more changes than these, unless one transaction has more.
pub(crate) const CHANGES_MAX: usize = 4_096;

/// The statements that fail by themselves, by the names of those they are made of.
#[derive(Default)]
pub(super) struct Insisting(FxHashMap<String, Option<Arc<Shape>>>);

impl Insisting {
    /// `None` if there is none for it.
    fn of(&mut self, statement: Statement) -> Option<Statement> {
        let name = &statement.shape.name;
        if name.is_empty() {
            // Not a statement that is made for a table.
            return (statement.rows_expected == 0).then_some(statement);
        }
        if !self.0.contains_key(name) {
            let made = statement.shape.insisting().map(Arc::new);
            self.0.insert(name.clone(), made);
        }
        let shape = self.0.get(name)?.clone()?;
        Some(Statement { shape, ..statement })
    }
}

/// A transaction on its way.
struct Sent {
    /// Statements up to its COMMIT, with all before it.
    statements: usize,
    written: u64,
    changes: Range<usize>,
}

impl Executor {
    /// Applies whole transactions, each as one.
    pub(super) async fn apply_each(&mut self, mut rest: Batch) -> Result<(), Error> {
        while !rest.ends.is_empty() {
            let count = rest.ends.len().min(self.on_their_way);
            let committed = if count > 1 { self.send(&rest, count).await? } else { 0 };
            if committed > 0 {
                (_, rest) = rest.split(committed);
            }
            if committed < count {
                // What is met again and again costs few that are passed over.
                self.on_their_way = committed.max(1);
                let one = rest.take_first(1);
                self.apply_transactions(Chunk::whole(one, self.writer.binary())).await?;
            }
            self.on_their_way = (self.on_their_way * 2).min(TRANSACTIONS_MAX);
        }
        Ok(())
    }

    /// Sends the first `count` and waits for all of them; how many were committed. The one behind these, if there is
    /// one, is to be applied by itself.
    async fn send(&mut self, batch: &Batch, count: usize) -> Result<usize, Error> {
        let binary = self.writer.binary();
        let stores = self.wire.version().major() >= ABORT_MOVES_ORIGIN;
        let sending_phase = flight::inside(Phase::Batch);
        let mut sending = Sending::start(&mut self.wire, &mut self.prepared).await?;
        let mut sent: Vec<Sent> = Vec::with_capacity(count);
        'transactions: for end in &batch.ends[..count] {
            let from = sent.last().map_or(0, |sent| sent.changes.end);
            let changes = from..end.changes_end;
            let mut plan = Plan::new(binary);
            if end.skipped || plan.add_all(&batch.changes[changes.clone()]).is_err() {
                break;
            }
            sending.push(&self.begin);
            let mut writing = Writing::new(plan);
            let mut written = 0;
            loop {
                let statement = match self.writer.next(&mut writing) {
                    Ok(None) => break,
                    Ok(Some(statement)) => {
                        written += statement.rows_expected;
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
                if writing.is_paced() && !sending.keep_up().await? {
                    break 'transactions;
                }
            }
            if stores {
                sending.push(&row_of(&self.write_progress, &[end.commit.end_lsn]));
            }
            sending.push(&self.check_deferred);
            sending.push(&origin_setup(end.commit.end_lsn, end));
            sending.push(&self.commit);
            sent.push(Sent { statements: sending.expected.len(), written, changes });
        }
        drop(sending_phase);
        let (result, _) = {
            let _committing = flight::inside(Phase::Commit);
            sending.finish().await?
        };
        let done = sent.iter().take_while(|sent| sent.statements <= result.rows.len()).count();
        for (end, sent) in batch.ends.iter().zip(&sent[..done]) {
            self.shared.store(self.since, end);
            self.since = end.commit.end_lsn;
            let tally = Tally::of(&batch.changes[sent.changes.clone()]);
            self.open = Tally { written: sent.written, ..tally };
            self.committed(&Digest::of_ends(std::slice::from_ref(end)));
        }
        if let Some(error) = &result.error {
            tracing::debug!(code = %error.code, committed = done, "one of many failed: {}", error.message);
            self.roll_back().await?;
        }
        self.look_at_plans().await?;
        Ok(done)
    }
}
