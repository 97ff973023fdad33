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

use std::ops::Range;
use std::time::Instant;

use super::*;

/// The most transactions in one run: one wait for that many costs a few per cent of their time.
pub(crate) const TRANSACTIONS_MAX: usize = 128;
/// The most changes in one run, unless one transaction has more.
pub(crate) const CHANGES_MAX: usize = 4_096;
/// The most bytes of row data in one run. What fits into the sockets is sent, and answers are read,
/// even while a statement waits for a lock.
pub(crate) const BYTES_MAX: usize = 128 * 1024;

/// The server is asked for its answers behind this many transactions. What it sends wakes us;
/// asking behind each would cost a fifth of all the server's work.
pub(super) const ASK_EACH: usize = 8;
/// In a run of at most this many that cost does not matter: the server is asked behind each
/// transaction.
pub(super) const ASK_OF_FEW: usize = 16;

/// The forms that fail by themselves, by the names of the statements they are made from.
#[derive(Default)]
pub(super) struct Insisting(FxHashMap<String, Option<Arc<Shape>>>);

impl Insisting {
    /// Returns the form of `statement` that fails by itself; `None` if it has none.
    fn of(&mut self, statement: Statement) -> Option<Statement> {
        let name = &statement.shape.name;
        if name.is_empty() {
            // The statement is not made for a table.
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

/// Decides how many transactions are sent at a time: as many as succeed.
#[derive(Debug)]
pub(super) struct Span {
    most: usize,
    /// How many transactions go by themselves before more are tried together.
    alone: u32,
    back_off: u32,
}

/// The most that go by themselves before more are tried together: a try that fails then costs a few
/// per cent.
const BACK_OFF_MAX: u32 = 64;

impl Default for Span {
    fn default() -> Span {
        Span { most: TRANSACTIONS_MAX, alone: 0, back_off: 0 }
    }
}

impl Span {
    /// How many of `ready` transactions to send next. A single one is applied by itself.
    fn next(&mut self, ready: usize) -> usize {
        if self.alone > 0 {
            self.alone -= 1;
            return 1;
        }
        ready.min(self.most)
    }

    /// Notes that of `count` transactions sent, the first `committed` committed. After repeated
    /// failures fewer are sent, so the server passes over few. Where none ever succeeds with
    /// others, tries become rare.
    fn sent(&mut self, count: usize, committed: usize) {
        if committed == count {
            self.most = self.most.max(2 * count).min(TRANSACTIONS_MAX);
        } else {
            self.most = committed.max(2);
        }
        if committed > 0 {
            self.back_off = 0;
        } else {
            self.back_off = (2 * self.back_off).clamp(1, BACK_OFF_MAX);
            // The first of them is the one that failed.
            self.alone = self.back_off - 1;
        }
    }
}

/// A transaction in flight.
pub(super) struct Sent {
    /// The number of statements up to its COMMIT, counted from the first transaction.
    pub(super) statements: usize,
    /// Rows that it writes.
    pub(super) written: u64,
    pub(super) changes: Range<usize>,
}

/// The transactions sent, and how many of them are known to be committed.
pub(super) struct Way<'b> {
    batch: &'b Batch,
    shared: Arc<Shared>,
    sent: Vec<Sent>,
    committed: usize,
    /// When a commit was first known, how many were known then, and when one was last known.
    times: Option<(Instant, usize, Instant)>,
    /// Where the next transaction's range of the stream begins.
    since: Lsn,
}

impl<'b> Way<'b> {
    /// For the first transactions of `batch`; everything done before them ends at `since`.
    pub(super) fn new(batch: &'b Batch, shared: &Arc<Shared>, since: Lsn, sent: Vec<Sent>) -> Way<'b> {
        Way { batch, shared: Arc::clone(shared), sent, committed: 0, times: None, since }
    }

    /// Returns how many were committed, and sets `since` to the end of the last one.
    pub(super) fn finish(self, since: &mut Lsn) -> usize {
        if let Some((first, known, last)) = self.times {
            self.shared.kept.took(self.committed - known, last - first);
        }
        *since = self.since;
        self.committed
    }

    /// Reports the transactions that are committed now that the first `statements` statements are
    /// complete.
    pub(super) fn completed(&mut self, statements: usize) {
        let before = self.committed;
        while let Some(sent) = self.sent.get(self.committed).filter(|sent| sent.statements <= statements) {
            let end = &self.batch.ends[self.committed];
            self.shared.store(self.since, end);
            self.since = end.commit.end_lsn;
            let tally =
                Tally { written: sent.written, ..Tally::of(&self.batch.changes[sent.changes.clone()]) };
            self.shared.committed(tally, &Digest::of_ends(std::slice::from_ref(end)));
            self.committed += 1;
        }
        if self.committed > before {
            let now = Instant::now();
            let (first, known) = self.times.map_or((now, self.committed), |(first, known, _)| (first, known));
            self.times = Some((first, known, now));
        }
    }
}

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
        while !rest.ends.is_empty() {
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
                (_, rest) = rest.split(committed);
            }
            if committed < count {
                let one = rest.take_first(1);
                self.apply_transactions(Chunk::whole(one, self.writer.binary())).await?;
            }
        }
        Ok(())
    }

    /// Sends the first `count` transactions, waits for all of them, and returns how many were
    /// committed. If fewer than `count` were, the next one must be applied by itself.
    async fn send(&mut self, batch: &Batch, count: usize) -> Result<usize, Error> {
        let binary = self.writer.binary();
        let stores = self.wire.version().major() >= ABORT_MOVES_ORIGIN;
        let sending_phase = (crash_phases::inside(Phase::Batch), self.activity.enter(Doing::Sets));
        let mut way = Way::new(batch, &self.shared, self.since, Vec::with_capacity(count));
        let mut sending = Sending::start(&mut self.wire, &mut self.prepared).await?;
        // Until these are dropped, the pages of their rows are read ahead.
        let mut written = Vec::with_capacity(count);
        'transactions: for end in &batch.ends[..count] {
            let from = way.sent.last().map_or(0, |sent| sent.changes.end);
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
                if writing.is_paced() && !sending.keep_up(|result| way.completed(result.rows.len())).await? {
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
            way.sent.push(Sent { statements: sending.expected.len(), written: rows, changes });
            // A lock may delay the next transaction when these are already committed.
            if count <= ASK_OF_FEW || way.sent.len().is_multiple_of(ASK_EACH) {
                sending.pipeline.ask_for_answers();
            }
        }
        drop(sending_phase);
        let result = {
            let _committing = (crash_phases::inside(Phase::Commit), self.activity.enter(Doing::Sets));
            let (result, _) = sending.finish_watched(|result| way.completed(result.rows.len())).await?;
            result
        };
        way.completed(result.rows.len());
        let committed = way.finish(&mut self.since);
        if let Some(error) = &result.error {
            tracing::debug!(code = %error.code, committed, "one of many failed: {}", error.message);
            self.roll_back().await?;
        }
        self.look_at_plans().await?;
        Ok(committed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends transactions together or by themselves until `count` are done, of which each
    /// `misfit`th succeeds only by itself. Returns the number of tries and of transactions applied
    /// by themselves.
    fn cost(count: usize, misfit: usize) -> (usize, usize) {
        let (mut span, mut done, mut attempts, mut alone) = (Span::default(), 0, 0, 0);
        while done < count {
            let sent = span.next(count - done);
            let mut committed = 0;
            if sent > 1 {
                attempts += 1;
                committed = (done..done + sent).take_while(|number| number % misfit != misfit - 1).count();
                span.sent(sent, committed);
                done += committed;
            }
            if committed < sent {
                alone += 1;
                done += 1;
            }
        }
        (attempts, alone)
    }

    #[test]
    fn as_many_go_together_as_go_well() {
        assert_eq!(cost(1_280, usize::MAX), (10, 0));
        // A conflict in each thousand costs its own transaction and the few tries that find it.
        let (attempts, alone) = cost(10_000, 1_000);
        assert_eq!(alone, 10);
        assert!(attempts < 110, "{attempts}");
        // A conflict in each tenth costs three small tries for ten transactions.
        let (attempts, alone) = cost(10_000, 10);
        assert_eq!(alone, 1_000);
        assert!(attempts <= 3_100, "{attempts}");
    }

    #[test]
    fn where_none_goes_with_others_few_are_tried() {
        let (attempts, alone) = cost(10_000, 1);
        assert_eq!(alone, 10_000);
        assert!(attempts < 170, "{attempts}");
    }
}
