//! Has the session's procedure ([`super::procedure`]) apply transactions, and makes the procedure
//! anew where it lacks a branch.

use conflict::{Conflict, Met};
use plan::{Arrays, Element};
use state::ConflictOutcome;

use super::conflicts::origin_differs;
use super::procedure::{Decided, Decides, Gathered};
use super::sent::SentTransactions;
use super::*;

/// What the procedure reports of transactions that it has committed.
enum Report {
    /// How many of them there are.
    Committed(usize),
    /// The rows of one that somebody else wrote last.
    Decided(Vec<Decided>),
}

impl Report {
    /// `None` if it is not from the procedure, whose reports begin with `word`.
    fn read(report: &str, word: &str) -> Option<Report> {
        let text = report.strip_prefix(word)?;
        if let Ok(count) = text.parse() {
            return Some(Report::Committed(count));
        }
        match Decided::read(text) {
            Ok(rows) => Some(Report::Decided(rows)),
            Err(error) => {
                tracing::warn!("cannot read the report of a conflict: {error}");
                None
            }
        }
    }
}

/// After this many calls in a row that commit nothing, and not because of the rows, the procedure
/// counts as unable to run here.
const VAIN_MAX: u32 = 8;

/// Whether an error comes from the procedure itself and not from the rows it meets. A name that it
/// uses is missing or forbidden, or a COMMIT is not allowed where it is.
fn is_of_itself(code: &str) -> bool {
    ["0A", "2D", "42"].iter().any(|class| code.starts_with(class))
}

/// Whether an error comes from the rows that the procedure meets: one is missing, a key is taken,
/// or somebody else holds a lock. The procedure itself does its work.
fn is_of_rows(code: &str) -> bool {
    ["23", "40", "55", "57", "P0"].iter().any(|class| code.starts_with(class))
}

impl Executor {
    /// Has the procedure apply as many of the first `count` transactions as it can. Returns how
    /// many it was given and how many it committed.
    pub(super) async fn call(&mut self, batch: &Batch, count: usize) -> Result<(usize, usize), Error> {
        if self.wire.version().major() < ABORT_MOVES_ORIGIN {
            return Ok((0, 0));
        }
        let batching = (crash_phases::inside(Phase::Batch), self.activity.enter(Doing::Sets));
        let with = self.with().await?;
        let decides = Decides { settings: &self.conflicts.settings, subscription: &self.subscription, with };
        let Some(gathered) = self.procedure.gather(batch, count, self.writer.binary(), &decides) else {
            return Ok((0, 0));
        };
        if !self.procedure.is_made() && !self.make_procedure().await? {
            return Ok((0, 0));
        }
        let Some((shape, _)) = &self.procedure.made else { return Ok((0, 0)) };
        let Gathered { which, ends, times, xids, finished, values, sent } = gathered;
        let fixed = [which, ends, times, xids, finished];
        let arrays: Vec<(Element, Arrays)> =
            shape.element_types.iter().copied().zip(fixed.into_iter().chain(values)).collect();
        let parameters = Arrays::parameters(&arrays);
        let statement = Statement { shape: Arc::clone(shape), parameters, rows_expected: 0 };
        let called = sent.len();
        let mut commits = SentTransactions::new(batch, &self.shared, self.since, sent);
        let mut sending = Sending::start(&mut self.wire, &mut self.prepared).await?;
        sending.push(&statement);
        drop(batching);
        let word = &self.procedure.word;
        let (mut read, mut decided) = (0, Vec::new());
        let result = {
            let _committing = (crash_phases::inside(Phase::Commit), self.activity.enter(Doing::Commit));
            let watch = |result: &PipelineResult| {
                for report in &result.reports[read..] {
                    match Report::read(report, word) {
                        Some(Report::Committed(transactions)) => commits.completed(transactions),
                        Some(Report::Decided(rows)) => decided.extend(rows),
                        None => {}
                    }
                }
                read = result.reports.len();
            };
            sending.finish_watched(watch).await?.0
        };
        self.tell_decided(batch, decided);
        match &result.error {
            None => commits.completed(called),
            Some(error) => {
                tracing::debug!(code = %error.code, "one of many failed: {}", error.message);
                let reached = self.reached().await?;
                commits.completed(batch.ends[..called].partition_point(|end| end.commit.end_lsn <= reached));
            }
        }
        let committed = commits.finish(&mut self.since);
        if committed > 0 {
            self.procedure.vain = 0;
        } else if result.error.as_ref().is_none_or(|error| !is_of_rows(&error.code)) {
            self.procedure.vain += 1;
        }
        if let Some(error) = &result.error
            && (self.procedure.vain == VAIN_MAX || is_of_itself(&error.code))
        {
            self.procedure.refuse(error);
        }
        self.look_at_plans().await?;
        Ok((called, committed))
    }

    /// Counts and logs the conflicts that the procedure has resolved, in transactions that are
    /// committed.
    fn tell_decided(&mut self, batch: &Batch, decided: Vec<Decided>) {
        for Decided { transaction, change, applied, writer } in decided {
            let (Some(end), Some(Change::Row { table, op }), Some(writer)) =
                (batch.ends.get(transaction), batch.changes.get(change), writer)
            else {
                tracing::warn!(transaction, change, "cannot read the report of a conflict");
                continue;
            };
            let met = vec![Met { written: Some(writer.written), ..Met::default() }];
            let conflict = Conflict { kind: origin_differs(op), relation: table.name.clone(), met };
            let outcome = if applied { ConflictOutcome::Applied } else { ConflictOutcome::Kept };
            self.resolved(conflict, end.begin, table, outcome);
        }
        self.tell_resolved();
    }

    /// Makes the procedure anew, with a branch for every kind of change that came. Returns false if
    /// it cannot be made.
    async fn make_procedure(&mut self) -> Result<bool, Error> {
        self.procedure.made = None;
        let progress = statements::write_progress(&self.subscription, "($2)[pgsluice_end]");
        let old = self.procedure.rename();
        let create = plain("", &self.procedure.text(&progress));
        let drop = old.map(|old| plain("", &format!("DROP PROCEDURE IF EXISTS pg_temp.{old}")));
        let statements: Vec<Statement> =
            std::iter::once(create).chain(drop).map(|shape| plain_statement(Arc::new(shape))).collect();
        let statements: Vec<&Statement> = statements.iter().collect();
        if let Some(error) = run(&mut self.wire, &mut self.prepared, &statements).await?.error {
            if is_of_itself(&error.code) {
                self.procedure.refuse(&error);
            }
            return Ok(false);
        }
        self.prepared.unseen.append(&mut self.procedure.unseen);
        self.procedure.made = Some((Arc::new(self.procedure.call()), self.procedure.branches.len()));
        Ok(true)
    }

    /// The source position at which the last transaction ended that this session committed.
    async fn reached(&mut self) -> Result<Lsn, Error> {
        let sql = statements::last_progress(&self.subscription);
        let statement = plain_statement(Arc::new(plain("reached", &sql)));
        let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
        if let Some(error) = result.error {
            return Err(Kind::Statement { what: "reading progress", error }.into());
        }
        let reached = result.last_row(0).into_iter().next().flatten();
        Ok(reached.and_then(|lsn| lsn.parse().ok()).unwrap_or(Lsn::INVALID))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_rows_cause_says_nothing_about_the_procedure() {
        // RAISE, a taken key, a deadlock, a lock that is not to be had, a cancel.
        for code in ["P0001", "23505", "40P01", "55P03", "57014"] {
            assert!(is_of_rows(code) && !is_of_itself(code), "{code}");
        }
        for code in ["42883", "0A000", "2D000"] {
            assert!(is_of_itself(code) && !is_of_rows(code), "{code}");
        }
    }
}
