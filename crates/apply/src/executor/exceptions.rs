//! A set with exceptions: the rows that are not as the source had them cost only themselves (rule
//! D5).
//!
//! ```text
//!   chunk --> set that tells --> rows that were not as the source had them
//!                 |                    |                        |
//!                 | all others         | written by others      | missing, or their key is taken
//!                 | are written        v                        v
//!                 |              sets of `foreign`        exact replay ---> conflicts, rules
//!                 +--------------------+------------------------+
//!                                      v
//!                            one target transaction
//! ```
//! Why the result is that of replaying everything: all changes of a row come together, in the
//! source's order, and what happens to other rows does not matter to them. No trigger fires and no
//! foreign key is checked. Other unique keys do matter. Where a table has such keys, an exception
//! may be kept or passed over, but not written: then the chunk is rolled back, and cut into pieces
//! as before. The same is done where a conflict is an error, so that everything before it is kept.
//!
//! The first chunk that meets a conflict is executed twice. The chunks behind it begin in this
//! form, until several in a row met none.

use plan::Exceptions;
use state::ConflictOutcome;

use super::*;

/// Of fewer rows than these, none needs to be taken out: they are replayed at once.
const ROWS_MIN: usize = 2;

impl Executor {
    /// Whether a chunk begins in this form: conflicts are expected, and the form suits it.
    pub(super) fn begins_telling(&self, plan: &Plan) -> bool {
        self.shared.expecting.is_likely() && self.may_tell(plan)
    }

    fn may_tell(&self, plan: &Plan) -> bool {
        !self.writer.is_exact_only() && plan.rows() >= ROWS_MIN && plan.takes_exceptions()
    }

    /// Applies whole transactions as one target transaction, with exceptions. Returns false, with
    /// everything rolled back, if that is not possible.
    pub(super) async fn apply_excepting(&mut self, batch: &Batch) -> Result<bool, Error> {
        let Some(end) = batch.ends.last() else { return Ok(true) };
        let Some(plan) = self.plan_excepting(batch) else { return Ok(false) };
        let digest = Digest::of(batch);
        let Some(written) = self.try_excepting(plan, batch, true).await? else {
            self.roll_back().await?;
            return Ok(false);
        };
        self.open += digest.tally;
        self.open.written += written;
        match self.commit(end, digest.skipped > 0).await {
            Ok(()) => {
                self.committed(&digest);
                self.shared.set_size().fitted(digest.transactions);
                self.look_at_plans().await?;
                Ok(true)
            }
            Err(_) if self.wire_is_alive() => self.roll_back().await.map(|()| false),
            Err(error) => Err(error),
        }
    }

    /// Applies a part of a transaction behind its savepoint, with exceptions. Returns `None`, with
    /// the part rolled back, if that is not possible.
    pub(super) async fn apply_part_excepting(&mut self, batch: &Batch) -> Result<Option<u64>, Error> {
        let Some(plan) = self.plan_excepting(batch) else { return Ok(None) };
        let mark = self.conflicts.mark();
        let written = self.try_excepting(plan, batch, false).await?;
        let after = if written.is_some() { &Which::Release } else { &Which::RollbackTo };
        if written.is_none() {
            self.conflicts.back_to(mark);
        }
        self.one(&[after]).await?;
        self.heal().await?;
        Ok(written)
    }

    fn plan_excepting(&self, batch: &Batch) -> Option<Plan> {
        let mut plan = Plan::new(self.writer.binary());
        let fits = plan.add_all(&batch.changes).is_ok() && self.may_tell(&plan);
        fits.then_some(plan)
    }

    /// Returns the number of rows written; `None` if everything is to be rolled back.
    async fn try_excepting(&mut self, plan: Plan, batch: &Batch, first: bool) -> Result<Option<u64>, Error> {
        let tables: Vec<Arc<Table>> = plan.tables().cloned().collect();
        let rows = plan.rows() as u64;
        let mut exceptions = match self.write_excepting(plan, &tables, first, false).await {
            Ok(exceptions) => exceptions,
            Err(Setback::Failed(code)) => {
                self.failed_set(&code, tables);
                return Ok(None);
            }
            Err(Setback::Unexpected) => return Ok(None),
            Err(Setback::Broken(error)) => return Err(error),
        };
        tracing::debug!(rows, exceptions = exceptions.len(), "a set with exceptions");
        if exceptions.is_empty() {
            self.shared.expecting.met(false);
            return Ok(Some(rows));
        }
        let mark = self.conflicts.mark();
        let resolved = match self.decide_foreign(batch, &tables, &mut exceptions).await {
            Ok(true) => self.replay_exceptions(batch, &mut exceptions).await,
            others => others,
        };
        match resolved {
            Ok(true) => {
                self.conflicts.sort_from(mark);
                self.record_resolved().await?;
                self.shared.expecting.met(true);
                Ok(Some(rows))
            }
            // The error comes again where it is reported.
            Err(_) if self.wire_is_alive() => {
                self.conflicts.refused = None;
                Ok(None)
            }
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends the plan's sets in the form that tells, and returns the rows that were not as the
    /// source had them. With `of_anyone` it does not matter who wrote them.
    pub(super) async fn write_excepting(
        &mut self,
        plan: Plan,
        tables: &[Arc<Table>],
        first: bool,
        of_anyone: bool,
    ) -> Result<Exceptions, Setback> {
        let _sending = (crash_phases::inside(Phase::Batch), self.activity.enter(Doing::Sets));
        let broken = |error: client::Error| Setback::Broken(error.into());
        self.look_at_sizes(tables.iter(), first).await.map_err(Setback::Broken)?;
        let mut sending = Sending::start(&mut self.wire, &mut self.prepared).await.map_err(broken)?;
        if first {
            sending.push(&self.begin);
        }
        let prologue = sending.expected.len();
        let mut writing = Writing::new(plan).telling(of_anyone);
        let fits = sending.send(&mut self.writer, &mut writing).await.map_err(broken)?;
        let result = sending.answers(prologue, fits).await?;
        // An answer that cannot be read says nothing about the other rows.
        let told = |statement| numbers(&result.last_row(prologue + statement));
        writing.exceptions(told).ok_or(Setback::Unexpected)
    }

    /// Replays the changes of the exceptions. Returns false if one was written whose table has
    /// other unique keys.
    async fn replay_exceptions(&mut self, batch: &Batch, exceptions: &mut Exceptions) -> Result<bool, Error> {
        let _replaying = (crash_phases::inside(Phase::Replay), self.activity.enter(Doing::Rows));
        let found: Vec<(usize, Begin)> = batch
            .rows()
            .filter(|(_, table, op, _)| exceptions.has(table, op))
            .map(|(at, .., begin)| (at, begin))
            .collect();
        let changes = || found.iter().map(|(at, _)| &batch.changes[*at]);
        self.conflicts.missing.begin();
        if changes().any(|change| self.asks_at_once(change)) {
            self.conflicts.missing.asked(1);
        }
        for (number, (at, begin)) in found.iter().enumerate() {
            let Change::Row { table, op } = &batch.changes[*at] else { continue };
            self.look_ahead(number, changes().skip(number)).await?;
            self.conflicts.change = *at;
            let mark = self.conflicts.mark();
            self.replay_exception(table, op, *begin).await?;
            let met = &self.conflicts.resolved[mark..];
            let kept = !met.is_empty() && met.iter().all(|met| met.outcome == ConflictOutcome::Kept);
            if !table.sole_unique_key && !kept {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a change that misses its row must know at once what became of it.
    fn asks_at_once(&self, change: &Change) -> bool {
        let Change::Row { table, op: Op::Update { .. } } = change else { return false };
        self.conflicts.settings.retention.is_some()
            && !deleted::writes_nothing(&self.conflicts.rules_of(table))
    }
}

/// The numbers of an array, as the server writes it. NULL has none; anything else cannot be read.
fn numbers(row: &[Option<String>]) -> Option<Vec<usize>> {
    let [array] = row else { return None };
    let Some(array) = array else { return Some(Vec::new()) };
    let array = array.strip_prefix('{')?.strip_suffix('}')?;
    array.split(',').map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_numbers() {
        let read = |text: &str| numbers(&[Some(text.to_owned())]);
        assert_eq!(read("{3,10}"), Some(vec![3, 10]));
        assert_eq!(numbers(&[None]), Some(Vec::new()));
        for wrong in ["", "{}", "{3,}", "{3,x}", "3"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(numbers(&[]), None, "no row is no answer");
    }
}
