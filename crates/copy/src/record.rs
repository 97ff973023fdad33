//! What the target remembers about tables being copied.

use async_trait::async_trait;
use base::Lsn;
use client::Wire;
use source::publication::TableName;

/// What is recorded of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing: no attempt left rows behind.
    Nothing,
    /// Ranges of it may have been written into what was then an empty table:
    /// it is emptied before it is copied.
    Begun,
    /// It is copied.
    Finished,
}

/// Keeps the record, in a table of the target.
///
/// Every method is given a connection to the target inside a transaction that
/// the caller commits, and must use that connection: the record is true only
/// because it is written with the rows or behind them. A method neither
/// commits nor rolls back, except [`CopyRecord::commit`]. Statements run with an empty
/// `search_path`.
#[async_trait]
pub trait CopyRecord: Send + Sync {
    /// What is recorded of `table`.
    async fn state(&self, target: &mut Wire, table: &TableName) -> Result<Recorded, client::Error>;

    /// Records that the empty `table` is about to be filled by several
    /// transactions, under the snapshot of `consistent_point`.
    async fn begun(
        &self,
        target: &mut Wire,
        table: &TableName,
        consistent_point: Lsn,
    ) -> Result<(), client::Error>;

    /// Records that `table` holds the `rows` that the snapshot of
    /// `consistent_point` sees: the stream applies to it what commits later.
    async fn finished(
        &self,
        target: &mut Wire,
        table: &TableName,
        consistent_point: Lsn,
        rows: u64,
    ) -> Result<(), client::Error>;

    /// Commits the open transaction of rows and record. It may mark the transaction as replicated.
    async fn commit(&self, target: &mut Wire) -> Result<(), client::Error> {
        target.query("COMMIT").await.map(drop)
    }
}
