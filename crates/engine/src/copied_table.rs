//! The first copy's record, in the subscription's tables on the target.
//!
//! Written on the copy's own connection and in its own transactions, because
//! the record is true only together with the rows.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use base::{Lsn, Oid, PgSnapshot, SubscriptionName};
use client::Wire;
use copy::{CopyRecord, Recorded};
use source::publication::TableName;
use state::{Since, statements};

pub(crate) struct CopiedTableRecord {
    pub(crate) subscription: SubscriptionName,
    /// A table that is copied has not joined yet: the stream has passed its
    /// consistent point, and what came meanwhile is applied as it joins. Until
    /// then it counts as begun, so that a later attempt empties it.
    pub(crate) joins_later: bool,
    /// What the copy's snapshot sees, where it is not what committed before the consistent point.
    pub(crate) snapshot: Option<Arc<PgSnapshot>>,
    /// What the tables are on the source.
    pub(crate) oids: HashMap<TableName, Oid>,
}

impl CopiedTableRecord {
    /// What is copied, and what is not in the copy, as columns of the table's row.
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
}
