//! The record of the first copy, in the subscription's tables on the target.
//!
//! It is written on the copy's own connection and in the copy's transactions, because the record is
//! true only together with the rows.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use base::{Lsn, Oid, PgSnapshot, SubscriptionName};
use client::Wire;
use copy::{CopyRecord, Recorded};
use source::publication::TableName;
use state::{Since, commit_under, statements};
use tokio::sync::Mutex;

pub(crate) struct CopiedTableRecord {
    pub(crate) subscription: SubscriptionName,
    /// A copied table has not joined yet. The stream has passed its consistent point, and the
    /// changes that came meanwhile are applied as the table joins. Until then it counts as begun,
    /// so a later attempt empties it.
    pub(crate) joins_later: bool,
    /// What the copy's snapshot sees, if that differs from what committed before the consistent
    /// point.
    pub(crate) snapshot: Option<Arc<PgSnapshot>>,
    /// The tables' OIDs on the source.
    pub(crate) oids: HashMap<TableName, Oid>,
    /// The replication origin of the copy, for one connection at a time.
    pub(crate) origin: Option<Mutex<String>>,
}

impl CopiedTableRecord {
    /// The copied state, as columns of the table's row: what the copy does not contain, and its
    /// relation.
    fn since(&self, table: &TableName, consistent_point: Lsn) -> String {
        let since = Since { lsn: consistent_point, snapshot: self.snapshot.clone() }.columns();
        let oid = self.oids.get(table).map_or("NULL".to_owned(), ToString::to_string);
        format!("{since}, source_oid = {oid}, replaced = NULL")
    }

    async fn set(&self, target: &mut Wire, table: &TableName, values: &str) -> Result<(), client::Error> {
        let sql = statements::set_copied_table(&self.subscription, (&table.schema, &table.name), values);
        target.query(&sql).await.map(drop)
    }
}

#[async_trait]
impl CopyRecord for CopiedTableRecord {
    async fn state(&self, target: &mut Wire, table: &TableName) -> Result<Recorded, client::Error> {
        let sql = statements::read_copied_table(&self.subscription, (&table.schema, &table.name));
        let rows = target.query(&sql).await?;
        let is = |at: usize| {
            rows.first().and_then(|row| row.get(at)).and_then(|value| value.as_deref()) == Some("true")
        };
        Ok(match (is(0), is(1)) {
            (true, _) => Recorded::Finished,
            (false, true) => Recorded::Begun,
            (false, false) => Recorded::Nothing,
        })
    }

    async fn begun(
        &self,
        target: &mut Wire,
        table: &TableName,
        consistent_point: Lsn,
    ) -> Result<(), client::Error> {
        self.set(target, table, &format!("begun = true, {}", self.since(table, consistent_point))).await
    }

    async fn finished(
        &self,
        target: &mut Wire,
        table: &TableName,
        consistent_point: Lsn,
        rows: u64,
    ) -> Result<(), client::Error> {
        let values = format!(
            "begun = true, finished = {}, {}, rows = {rows}",
            !self.joins_later,
            self.since(table, consistent_point)
        );
        self.set(target, table, &values).await
    }

    async fn commit(&self, target: &mut Wire) -> Result<(), client::Error> {
        match &self.origin {
            Some(origin) => target.query(&commit_under(&origin.lock().await)).await.map(drop),
            None => target.query("COMMIT").await.map(drop),
        }
    }
}
