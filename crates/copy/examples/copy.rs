//! Copies the tables of a publication once and prints how long it took:
//! `copy SOURCE TARGET PUBLICATION [CONNECTIONS] [SPLIT_MEGABYTES]`. For measuring the copy alone:
//! the target remembers nothing, and nothing follows the copy.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use async_trait::async_trait;
use base::Lsn;
use client::{ConnInfo, Replication, Wire};
use copy::{Attempt, CopyJob, CopyProgress, CopyRecord, ExportedSnapshot, Options, Recorded, copy_tables};
use source::publication::{self, TableName};
use source::slot::{self, NewSlot};
use tokio_util::sync::CancellationToken;

struct NoRecord;

#[async_trait]
impl CopyRecord for NoRecord {
    async fn state(&self, _: &mut Wire, _: &TableName) -> Result<Recorded, client::Error> {
        Ok(Recorded::Nothing)
    }

    async fn begun(&self, _: &mut Wire, _: &TableName, _: Lsn) -> Result<(), client::Error> {
        Ok(())
    }

    async fn finished(&self, _: &mut Wire, _: &TableName, _: Lsn, _: u64) -> Result<(), client::Error> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next =
        || arguments.next().context("usage: copy SOURCE TARGET PUBLICATION [CONNECTIONS] [MEGABYTES]");
    let (source, target, name) = (ConnInfo::parse(&next()?)?, ConnInfo::parse(&next()?)?, next()?);
    let mut options = Options::default();
    if let Ok(connections) = next() {
        options.connections = connections.parse()?;
    }
    if let Ok(megabytes) = next() {
        options.split_bytes = megabytes.parse::<u64>()? << 20;
    }
    let started = Instant::now();
    let jobs = jobs(&source, &target, &name).await?;
    let mut exporter =
        Wire::connect(&source, "copy example", Replication::Database, &slot::EXPORT_SETTINGS).await?;
    let slot_name = format!("copy_example_{}", exporter.pid());
    let new =
        NewSlot { name: &slot_name, temporary: true, snapshot: slot::SlotSnapshot::Export, failover: false };
    let created = slot::create_logical_slot(&mut exporter, &new).await?;
    let snapshot = ExportedSnapshot {
        name: created.snapshot_name.context("a snapshot was asked for")?,
        consistent_point: created.consistent_point,
    };
    let progress = Arc::new(CopyProgress::default());
    let record = Arc::new(NoRecord);
    let attempt = Attempt { source, target, snapshot, options, progress: Arc::clone(&progress), record };
    copy_tables(attempt, jobs, &CancellationToken::new()).await?;
    let (seconds, totals) = (started.elapsed().as_secs_f64(), progress.totals());
    println!(
        "{} rows, {} bytes in {seconds:.3} s: {:.0} rows/s",
        totals.rows,
        totals.bytes,
        totals.rows as f64 / seconds
    );
    Ok(())
}

async fn jobs(source: &ConnInfo, target: &ConnInfo, publication: &str) -> Result<Vec<CopyJob>> {
    let source = client::connect(source, "copy example", &[]).await?;
    let target = client::connect(target, "copy example", &[]).await?;
    let published = publication::inspect(&source, &[publication.to_owned()]).await?;
    let names: Vec<TableName> = published.iter().map(|table| table.name.clone()).collect();
    let targets = publication::target_tables(&target, &names).await?;
    let job = |table: publication::PublishedTable| {
        let target_table = targets.get(&table.name);
        CopyJob::new(table, target_table, source.version(), target.version())
    };
    Ok(published.into_iter().map(job).collect::<Result<_, _>>()?)
}
