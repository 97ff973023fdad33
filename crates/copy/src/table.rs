//! The steps on the target before a table's first row and after its last: the lock, the record,
//! emptying.

use base::Lsn;
use client::{SqlState, Wire};

use crate::record::{CopyRecord, Recorded};
use crate::session::first_text;
use crate::sql::target_only;
use crate::{CopyJob, Error};

/// First half of our advisory locks' key, "pgsc" in ASCII; the other is the
/// table's id. The subscription's own lock has another first half.
const LOCK_CLASS: u32 = 0x7067_7363;

/// How long this module waits for a predecessor's backend to end its transaction, and for readers
/// of the target so that it can empty a table.
const LOCK_TIMEOUT: &str = "60s";

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// The decision about a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// An earlier attempt finished it. No transaction is open.
    Finished,
    /// The transaction of the decision is still open: all rows go into it.
    OneTransaction,
    /// The record has the table as begun; no transaction is open.
    Ranges,
}

fn lock_sql(job: &CopyJob, function: &str) -> String {
    // The id is shown as a signed number of the same bits.
    let table = job.target.oid.0.cast_signed();
    format!("SELECT pg_catalog.{function}({}, {table})", LOCK_CLASS.cast_signed())
}

/// Decides how the table is copied, and empties what an earlier attempt left.
pub(crate) async fn start(
    target: &mut Wire,
    job: &CopyJob,
    ranges: bool,
    record: &dyn CopyRecord,
    consistent_point: Lsn,
) -> Result<Start, Error> {
    let failed = Error::client("begin it on the target");
    let lock = lock_sql(job, "pg_advisory_xact_lock");
    let begin = format!("{BEGIN}; SET LOCAL lock_timeout TO '{LOCK_TIMEOUT}'; {lock}");
    target.query(&begin).await.map_err(failed)?;
    let name = &job.table.name;
    let was_begun = match record.state(target, name).await.map_err(failed)? {
        Recorded::Finished => {
            target.query("ROLLBACK").await.map_err(failed)?;
            return Ok(Start::Finished);
        }
        Recorded::Begun => true,
        Recorded::Nothing => false,
    };
    if was_begun {
        empty(target, job).await?;
    }
    if ranges && (was_begun || is_empty(target, job).await?) {
        record.begun(target, name, consistent_point).await.map_err(failed)?;
        record.commit(target).await.map_err(failed)?;
        return Ok(Start::Ranges);
    }
    target.query("SET LOCAL lock_timeout TO 0").await.map_err(failed)?;
    Ok(Start::OneTransaction)
}

async fn is_empty(target: &mut Wire, job: &CopyJob) -> Result<bool, Error> {
    let sql = format!("SELECT NOT EXISTS (SELECT FROM {})", target_only(job));
    let rows = target.query(&sql).await.map_err(Error::client("see whether it is empty on the target"))?;
    Ok(first_text(&rows) == Some("t"))
}

/// Removes the rows of an unfinished attempt.
async fn empty(target: &mut Wire, job: &CopyJob) -> Result<(), Error> {
    /// Another table's foreign key refers to it; TRUNCATE is a right of its own.
    const NOT_TRUNCATED: [SqlState; 2] = [SqlState::FEATURE_NOT_SUPPORTED, SqlState::INSUFFICIENT_PRIVILEGE];
    let failed = Error::client("empty it on the target, where an earlier attempt left rows");
    let table = target_only(job);
    target.query("SAVEPOINT pgsluice_empty").await.map_err(failed)?;
    match target.query(&format!("TRUNCATE {table}")).await {
        Ok(_) => {}
        Err(error)
            if error.sqlstate().is_some_and(|code| NOT_TRUNCATED.contains(&SqlState::from_code(code))) =>
        {
            target.query("ROLLBACK TO SAVEPOINT pgsluice_empty").await.map_err(failed)?;
            target.query(&format!("DELETE FROM {table}")).await.map_err(failed)?;
        }
        Err(error) => return Err(failed(error)),
    }
    target.query("RELEASE SAVEPOINT pgsluice_empty").await.map(drop).map_err(failed)
}

/// Opens the transaction of one range.
pub(crate) async fn begin_range(target: &mut Wire, job: &CopyJob) -> Result<(), Error> {
    let sql = format!("{BEGIN}; {}", lock_sql(job, "pg_advisory_xact_lock_shared"));
    target.query(&sql).await.map(drop).map_err(Error::client("begin a range of it on the target"))
}

/// Ends the transaction of one range.
pub(crate) async fn commit_range(target: &mut Wire, record: &dyn CopyRecord) -> Result<(), Error> {
    record.commit(target).await.map_err(Error::client("commit a range of it on the target"))
}

/// Opens the transaction that [`finish`] ends, after the last range.
pub(crate) async fn begin_finish(target: &mut Wire) -> Result<(), Error> {
    target.query(BEGIN).await.map(drop).map_err(Error::client("record it as copied on the target"))
}

/// Records the table as finished and commits the open transaction, waiting
/// for its WAL. WAL is flushed in order, so all ranges are durable then too.
pub(crate) async fn finish(
    target: &mut Wire,
    job: &CopyJob,
    record: &dyn CopyRecord,
    consistent_point: Lsn,
    rows: u64,
) -> Result<(), Error> {
    let failed = Error::client("record it as copied on the target");
    // `local` is the least that waits; a stronger setting stays.
    let wait = "SELECT pg_catalog.set_config('synchronous_commit', 'local', true) \
                WHERE pg_catalog.current_setting('synchronous_commit') = 'off'";
    target.query(wait).await.map_err(failed)?;
    record.finished(target, &job.table.name, consistent_point, rows).await.map_err(failed)?;
    record.commit(target).await.map_err(failed)
}
