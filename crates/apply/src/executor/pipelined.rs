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
//! (RULES P2). The server goes on with what it was sent: as many as that may still be committed after we are gone, and
//! the fence of the next start waits for them.

use std::ops::Range;
use std::time::Instant;

use super::*;

/// So many at a time: waiting once for so many costs a few per cent of them.
pub(crate) const TRANSACTIONS_MAX: usize = 128;
/// Nor more changes than these, unless one transaction has more.
pub(crate) const CHANGES_MAX: usize = 4_096;
/// Nor more bytes of row data: what the sockets hold is sent, and answers are read, though one waits for a lock.
pub(crate) const BYTES_MAX: usize = 128 * 1024;

/// The server is asked for its answers behind so many; what it sends wakes us, a fifth of all it does if that is for each.
pub(super) const ASK_EACH: usize = 8;
/// Not so many are behind as to make that matter: it is asked behind each.
pub(super) const ASK_OF_FEW: usize = 16;

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

/// How many are sent at a time: as many as go well.
#[derive(Debug)]
pub(super) struct Span {
    most: usize,
    /// So many go by themselves before more are tried.
    alone: u32,
    back_off: u32,
}

/// At most so many go by themselves before more are tried again: then a try that fails costs a few per cent.
const BACK_OFF_MAX: u32 = 64;

impl Default for Span {
    fn default() -> Span {
        Span { most: TRANSACTIONS_MAX, alone: 0, back_off: 0 }
    }
}

impl Span {
    /// Of `ready` ones. One is applied by itself.
    fn next(&mut self, ready: usize) -> usize {
        if self.alone > 0 {
            self.alone -= 1;
            return 1;
        }
        ready.min(self.most)
    }

    /// Of `count` that were sent, the first `committed` did. What is met again and again costs few that are passed over;
    /// where none ever goes with others, few are tried.
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

/// A transaction on its way.
pub(super) struct Sent {
    /// Statements up to its COMMIT, with all before it.
    pub(super) statements: usize,
    /// Rows that it writes.
    pub(super) written: u64,
    pub(super) changes: Range<usize>,
}

/// What was sent, and how much of it is known to have been committed.
pub(super) struct Way<'b> {
    batch: &'b Batch,
    shared: Arc<Shared>,
    sent: Vec<Sent>,
    committed: usize,
    /// When something was known first, and of how many; and last.
    times: Option<(Instant, usize, Instant)>,
    /// Where the next one's stretch of the stream begins.
    since: Lsn,
}

impl<'b> Way<'b> {
    /// Of the first transactions of `batch`; what was done before them ends at `since`.
    pub(super) fn new(batch: &'b Batch, shared: &Arc<Shared>, since: Lsn, sent: Vec<Sent>) -> Way<'b> {
        Way { batch, shared: Arc::clone(shared), sent, committed: 0, times: None, since }
    }

    /// How many were committed; `since` is where what was done ends.
    pub(super) fn finish(self, since: &mut Lsn) -> usize {
        if let Some((first, known, last)) = self.times {
            self.shared.kept.took(self.committed - known, last - first);
        }
        *since = self.since;
        self.committed
    }

    /// Reports what is committed now that so many statements are completed.
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
    /// Applies whole transactions, each as one.
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

    /// Sends the first `count` and waits for all of them; how many were committed. The one behind these, if there is
    /// one, is to be applied by itself.
    async fn send(&mut self, batch: &Batch, count: usize) -> Result<usize, Error> {
        let binary = self.writer.binary();
        let stores = self.wire.version().major() >= ABORT_MOVES_ORIGIN;
        let sending_phase = (crash_phases::inside(Phase::Batch), self.activity.enter(Doing::Sets));
        let mut way = Way::new(batch, &self.shared, self.since, Vec::with_capacity(count));
        let mut sending = Sending::start(&mut self.wire, &mut self.prepared).await?;
        // Until they are dropped, what they write is read ahead.
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
            // A lock may hold up the next one, and these are committed then.
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

    /// Attempts as many together, and transactions by themselves, until `count` are done of which each `misfit`th goes
    /// with no other.
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
        // A conflict in each thousand costs its own transaction and the few attempts in which it is found.
        let (attempts, alone) = cost(10_000, 1_000);
        assert_eq!(alone, 10);
        assert!(attempts < 110, "{attempts}");
        // Each tenth: three attempts for ten, as small as they are then.
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
