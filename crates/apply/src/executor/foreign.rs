//! Rows that somebody else wrote last, decided and written as sets.
//!
//! In a two-way pair such rows are ordinary, so they must not cost a round trip each. All of them
//! are locked at once, which tells who wrote them. The rules decide here, change by change, in the
//! source's order. What is to be written is one more set.
//!
//! ```text
//!   exceptions --> lock as a set --> rule, for each change of a row that is still somebody else's
//!       |                              | keep: the next change of the row is decided anew
//!       | not found; a key that        | apply: this change and all later ones of the row
//!       | is to be inserted            v
//!       v                            a set
//!   exact replay
//! ```

use conflict::{Conflict, Met, Verdict};
use plan::{Exceptions, RowKeys};
use state::ConflictOutcome;

use super::conflicts::{completed, origin_differs};
use super::met::{LastWriter, With};
use super::*;

/// The most rows that one statement locks: its answer is one value.
const LOCKED_MAX: usize = 10_000;

/// A row that is locked.
struct Standing {
    writer: LastWriter,
    /// It is, or becomes, as the source has it: later changes are written.
    written: bool,
}

impl Executor {
    /// Decides the changes of exceptions that somebody else wrote last, writes what is to be
    /// written, and takes them out of `exceptions`. Returns false if everything is to be rolled
    /// back.
    pub(super) async fn decide_foreign(
        &mut self,
        batch: &Batch,
        tables: &[Arc<Table>],
        exceptions: &mut Exceptions,
    ) -> Result<bool, Error> {
        let _deciding = self.activity.enter(Doing::Rows);
        // The values of rows are read and shown one by one.
        if !matches!(self.with().await?, With { commit: true, values: false }) {
            return Ok(true);
        }
        let wanted = candidates(batch, exceptions);
        if wanted.is_empty() {
            return Ok(true);
        }
        let Some(mut rows) = self.lock_rows(tables, wanted).await? else { return Ok(false) };
        let mut plan = Plan::new(self.writer.binary());
        for (at, table, op, begin) in batch.rows() {
            let Some(row) = rows.get_mut(table, op) else { continue };
            // What was ours was merely being written when the set came by.
            let mut instead = None;
            if !row.written && table.is_foreign(row.writer.origin) {
                self.conflicts.change = at;
                match self.decide_writer(table, op, begin, &row.writer) {
                    Verdict::Refuse => return Ok(false),
                    Verdict::KeepLocal => continue,
                    Verdict::ApplyRemote => {
                        let rule = self.conflicts.rules_of(table).of(origin_differs(op));
                        let completed = completed(op, rule);
                        instead = completed.map(|op| Change::Row { table: Arc::clone(table), op });
                    }
                }
            }
            row.written = true;
            let change = instead.as_ref().unwrap_or(&batch.changes[at]);
            if plan.add_all(std::slice::from_ref(change)).is_err() {
                return Ok(false);
            }
        }
        exceptions.remove_all(&rows);
        if plan.rows() == 0 {
            return Ok(true);
        }
        match self.write_excepting(plan, tables, false, true).await {
            Ok(told) => Ok(told.is_empty()),
            Err(Setback::Broken(error)) => Err(error),
            Err(Setback::Failed(_) | Setback::Unexpected) => Ok(false),
        }
    }

    /// Decides one change of a row that somebody else wrote last.
    fn decide_writer(&mut self, table: &Arc<Table>, op: &Op, begin: Begin, writer: &LastWriter) -> Verdict {
        let kind = origin_differs(op);
        let rule = self.conflicts.rules_of(table).of(kind);
        let verdict = rule.decide(&self.conflicts.remote(begin), &[self.conflicts.local(writer)]);
        let outcome = match verdict {
            Verdict::Refuse => return verdict,
            Verdict::KeepLocal => ConflictOutcome::Kept,
            Verdict::ApplyRemote => ConflictOutcome::Applied,
        };
        let met = vec![Met { written: Some(writer.written.clone()), ..Met::default() }];
        self.resolved(Conflict { kind, relation: table.name.clone(), met }, begin, table, outcome);
        verdict
    }

    /// Locks rows by their keys. Those that are not there are left out. Returns `None` if an answer
    /// was not as expected.
    async fn lock_rows(
        &mut self,
        tables: &[Arc<Table>],
        mut wanted: RowKeys<()>,
    ) -> Result<Option<RowKeys<Standing>>, Error> {
        let mut rows = RowKeys::default();
        for table in tables {
            for keys in wanted.take(table).chunks(LOCKED_MAX) {
                let keys = keys.iter().map(|(key, ())| key);
                let Ok(statement) = self.writer.lock(table, keys.clone()) else { return Ok(None) };
                let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
                if let Some(error) = result.error {
                    tracing::debug!(code = %error.code, "a set was not locked: {}", error.message);
                    return Ok(None);
                }
                let Some(told) = told(&result.last_row(0)) else {
                    tracing::warn!(table = %table.name, "cannot read who wrote the rows of a set");
                    return Ok(None);
                };
                let keys: Vec<_> = keys.collect();
                for (number, writer) in told {
                    let key = number.checked_sub(1).and_then(|at| keys.get(at));
                    let Some(key) = key else { return Ok(None) };
                    rows.put(table, (*key).clone(), Standing { writer, written: false });
                }
            }
        }
        Ok(Some(rows))
    }
}

/// The exceptions that only have UPDATEs and DELETEs, where it matters who wrote a row last, and
/// where rows cannot collide with others.
fn candidates(batch: &Batch, exceptions: &mut Exceptions) -> RowKeys<()> {
    let (mut wanted, mut inserted) = (RowKeys::default(), RowKeys::default());
    for (_, table, op, _) in batch.rows() {
        if table.and_ours().is_empty() || !table.sole_unique_key || !exceptions.has(table, op) {
            continue;
        }
        let keys = if matches!(op, Op::Insert(_)) { &mut inserted } else { &mut wanted };
        keys.insert(table, op, ());
    }
    wanted.remove_all(&inserted);
    wanted
}

/// Reads an answer of [`plan::sql::Kind::SetLock`]: rows by their numbers, from 1.
fn told(row: &[Option<String>]) -> Option<Vec<(usize, LastWriter)>> {
    let [answer] = row else { return None };
    let Some(answer) = answer else { return Some(Vec::new()) };
    type Answered = (usize, String, Option<String>, Option<String>, Option<String>, Option<String>);
    let rows: Vec<Answered> = serde_json::from_str(answer).ok()?;
    let read = |(number, xmin, micros, time, origin, name): Answered| {
        Some((number, LastWriter::read([Some(xmin), micros, time, origin, name])?))
    };
    rows.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        assert!(told(&[None]).is_some_and(|rows| rows.is_empty()), "no row was found");
        let answer = r#"[[2, "741", "1750000000000000", "2025-06-15 15:06:40+00", "0", null],
                         [1, "740", null, null, null, null]]"#;
        let rows = told(&[Some(answer.to_owned())]).unwrap();
        assert_eq!(rows.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2, 1]);
        assert_eq!((rows[0].1.origin, rows[1].1.origin), (Some(0), None));
        assert!(rows[0].1.written.commit.is_some() && rows[1].1.written.commit.is_none());
        for wrong in ["", "{}", "[[1]]", r#"[["x", "1", null, null, null, null]]"#] {
            assert!(told(&[Some(wrong.to_owned())]).is_none(), "{wrong}");
        }
        assert!(told(&[]).is_none());
    }
}
