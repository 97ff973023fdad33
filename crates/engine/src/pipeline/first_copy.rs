//! The first copy: the slot, the snapshot that goes with it, and the rows. A later start completes
//! what is left of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Lsn, quote_ident};
use copy::CopyJob;
use source::end::{Exported, SourceEnd, snapshot_wire};
use source::publication::{Generated, PublishedTable, TableName, TargetTable};
use source::slot::{self, NewSlot};
use state::{State, SubscriptionRow, TableKey};
use tokio::sync::Mutex;

use super::attempt::{Attempt, Ends, Past};
use super::snapshot::of_slot;
use crate::copied_table::CopiedTableRecord;
use crate::direction::first_with_rows;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::{Direction, Phase, SourceMode};

impl Attempt<'_> {
    /// Makes the slot and copies what its snapshot sees. Returns what was copied.
    ///
    /// `must_be_empty`: rows that the slot's snapshot sees are refused. They would not be sent.
    pub(super) async fn first_copy(
        &self,
        ends: &mut Ends,
        must_be_empty: bool,
    ) -> Result<Vec<TableName>, Error> {
        let name = &self.settings.subscription;
        // Checks that every table fits before anything is left on the source.
        let jobs = self.jobs(ends, |_| true)?;
        if must_be_empty {
            self.refuse_rows(ends, None).await?;
        }
        let dbname = ends.source.identity.dbname.clone().unwrap_or_default();
        let sysid = ends.source.identity.system_id.to_string();
        let timeline = i64::from(ends.source.identity.timeline);
        ends.state.create(&self.settings.publications, &sysid, timeline, &dbname).await?;
        ends.state.keep_oids().await?;
        if ends.row.is_some() {
            // The subscription may have been begun on another timeline, of which nothing was kept.
            ends.state.change_timeline(timeline, Lsn::INVALID).await?;
        }
        if ends.source.slot.is_some() {
            // The slot is ours, by the row just found: an earlier attempt did not finish its
            // creation.
            slot::drop_slot(&ends.source.session, &name.slot()).await?;
        }
        let exported = self.make_slot(ends).await?;
        if must_be_empty && let Err(refused) = self.refuse_rows(ends, Some(&exported.snapshot_name)).await {
            exported.close().await;
            slot::drop_slot(&ends.source.session, &name.slot()).await?;
            return Err(refused);
        }
        let began = exported.since.lsn;
        let tables: Vec<(String, String)> = ends
            .source
            .published
            .iter()
            .map(|table| (table.name.schema.clone(), table.name.name.clone()))
            .collect();
        ends.state.begin_at(began, &tables, self.settings.copy_data).await?;
        let slot = match self.settings.followed_archive() {
            None => format!("created replication slot \"{}\"", name.slot()),
            Some(_) => "begins".to_owned(),
        };
        tracing::info!(subscription = %name, "{slot} at {began}, {} tables", tables.len());
        let mut copied = Vec::new();
        if self.settings.copy_data {
            self.status.set_phase(Phase::Copying);
            copied = self.copy_while_target_lives(ends, &exported, jobs).await?;
        }
        exported.close().await;
        Ok(copied)
    }

    /// Refuses a source that has rows, as a snapshot sees it or as it is now.
    async fn refuse_rows(&self, ends: &Ends, snapshot: Option<&str>) -> Result<(), Error> {
        let SourceEnd { session, published, .. } = &ends.source;
        match first_with_rows(session, published, snapshot).await? {
            None => Ok(()),
            Some(table) => Err(Error::refused(Refusal::BothHaveRows {
                table,
                database: self.settings.source.describe(),
            })),
        }
    }

    /// Makes the slot, and the snapshot for the first copy.
    async fn make_slot(&self, ends: &Ends) -> Result<Exported, Error> {
        if self.settings.source_mode == SourceMode::Wal {
            return Ok(self.wal(ends).make_slot().await?);
        }
        let subscription = &self.settings.subscription;
        let name = &subscription.slot();
        let mut wire = snapshot_wire(&self.settings.source, subscription).await?;
        let new = NewSlot { name, temporary: false, snapshot: slot::SlotSnapshot::Export, failover: false };
        let made = slot::create_logical_slot(&mut wire, &new).await?;
        of_slot(made, wire)
    }

    /// Completes the first copy under a snapshot of its own (rule C1). Tables that were added after
    /// the first copy wait for the stream; see [`crate::refresh`].
    pub(super) async fn copy_unfinished(
        &self,
        ends: &Ends,
        refused: &BTreeSet<TableKey>,
    ) -> Result<Vec<TableName>, Error> {
        if is_over(ends.row.as_ref()) {
            return Ok(Vec::new());
        }
        // Clients may write to both sides of a pair once back has its slot, which it has before a
        // copy begins, and only on a side without rows.
        let rows_are_clients = self.direction.is_some_and(Direction::is_forth);
        let recorded = ends.state.copied_tables().await?;
        let mut unfinished: Vec<TableName> = Vec::new();
        for table in recorded.iter().filter(|table| !table.finished && table.replaced.is_none()) {
            let key = (table.schema.clone(), table.table.clone());
            let may_have_rows = table.begun || rows_are_clients;
            if !refused.contains(&key) && (may_have_rows || !self.has_rows(ends, &key).await?) {
                unfinished.push(TableName::new(&table.schema, &table.table));
            }
        }
        let jobs = self.jobs(ends, |table| unfinished.contains(&table.name))?;
        let mut copied = Vec::new();
        if !jobs.is_empty() {
            let exported = self.late_snapshot(&ends.source.session, &ends.state).await?;
            tracing::info!(subscription = %self.settings.subscription, "copying {} unfinished tables", jobs.len());
            self.status.set_phase(Phase::Copying);
            copied = self.copy_while_target_lives(ends, &exported, jobs).await?;
            exported.close().await;
        }
        Ok(copied)
    }

    /// Whether the target has rows of a table. If no copy of ours has begun, they are not an
    /// unfinished copy's: the table was left out, and waits for the refresh until it is emptied.
    async fn has_rows(&self, ends: &Ends, (schema, table): &TableKey) -> Result<bool, Error> {
        let name = TableName::new(schema, table);
        if !ends.targets.contains_key(&name) {
            return Ok(false);
        }
        let session = ends.state.session();
        let sql = format!("SELECT EXISTS (SELECT FROM {}.{})", quote_ident(schema), quote_ident(table));
        let row = session.query_one(&sql, &[]).await.map_err(|error| session.error(error))?;
        Ok(row.get(0))
    }

    /// Records on the target that tables which could not be decoded no longer take part; see
    /// `wal_source::Judge`.
    pub(super) async fn leave_out(&self, ends: &Ends, past: &mut Past) -> Result<(), Error> {
        while let Some(refused) = past.refused.last() {
            let table = TableKey::clone(&refused.published_as);
            // Without a copy, nothing would say later that changes are missing.
            ends.state.copy_again(std::slice::from_ref(&table), !self.settings.copy_data).await?;
            tracing::warn!(
                subscription = %self.settings.subscription,
                "{refused}. pgsluice leaves its changes out from here on, and copies it again once it can be \
                 decoded"
            );
            past.refused_before.insert(table);
            past.refused.pop();
        }
        Ok(())
    }

    /// Returns the published tables that `wanted` chooses, matched with the target's.
    fn jobs(&self, ends: &Ends, wanted: impl Fn(&PublishedTable) -> bool) -> Result<Vec<CopyJob>, Error> {
        let (source, target) = (ends.source.wire.version(), ends.state.session().version());
        let tables = ends.source.published.iter().filter(|table| wanted(table));
        let job = |table: &PublishedTable| {
            let found = ends.targets.get(&table.name);
            if let Some(target) = found {
                refuse_generated(table, target)?;
            }
            Ok(CopyJob::new(table.clone(), found, source, target)?)
        };
        tables.map(job).collect()
    }

    /// Copies tables under one snapshot, once the target's clock allows it. Ends when the target
    /// does: a worker that waits for rows of the source writes nothing, and so would not notice.
    async fn copy_while_target_lives(
        &self,
        ends: &Ends,
        exported: &Exported,
        jobs: Vec<CopyJob>,
    ) -> Result<Vec<TableName>, Error> {
        self.pass_clock_of(&ends.source.session, ends.state.session()).await?;
        tokio::select! {
            // A worker's own error says more than the loss of a session beside it.
            biased;
            copied = self.copy(exported, jobs, &ends.state, false) => copied,
            lost = ends.state.session().ended() => Err(lost.into()),
        }
    }

    /// Copies tables under one snapshot. `joins_later`: other tables stream meanwhile. Returns the
    /// names of the copied tables.
    pub(crate) async fn copy(
        &self,
        exported: &Exported,
        jobs: Vec<CopyJob>,
        state: &State,
        joins_later: bool,
    ) -> Result<Vec<TableName>, Error> {
        let settings = self.settings;
        let copied = jobs.iter().map(|job| job.table().name.clone()).collect();
        let oids = jobs.iter().map(|job| (job.table().name.clone(), job.table().oid)).collect();
        let snapshot = copy::ExportedSnapshot {
            name: exported.snapshot_name.clone(),
            consistent_point: exported.since.lsn,
        };
        let options = copy::Options {
            connections: settings.max_sync_workers_per_subscription,
            split_bytes: settings.copy_split_bytes,
            synchronous_commit: settings.synchronous_commit.as_str().to_owned(),
            whole_tables: self.direction.is_some_and(Direction::is_forth),
            allow_triggers: settings.allow_triggers,
            application_name: settings.subscription.application_name("copy"),
        };
        // The apply workers' origins are free until the stream begins.
        let worker = if joins_later { settings.apply_sessions() } else { 0 };
        let origin = self.copy_origin(state, worker).await?.map(Mutex::new);
        let attempt = copy::Attempt {
            source: settings.source.clone(),
            target: settings.target.clone(),
            snapshot,
            options,
            progress: Arc::clone(self.status.copy()),
            record: Arc::new(CopiedTableRecord {
                subscription: settings.subscription.clone(),
                joins_later,
                snapshot: exported.since.snapshot.clone(),
                oids,
                origin,
            }),
        };
        copy::copy_tables(attempt, jobs, self.stop).await?;
        Ok(copied)
    }
}

impl Attempt<'_> {
    /// The origin of a copy, made if there is none: see [`State::copy_origin`].
    async fn copy_origin(&self, state: &State, worker: usize) -> Result<Option<String>, Error> {
        let origin = state.copy_origin(worker, self.settings.conflict_rules.compares_times()).await?;
        // Before a table is emptied.
        self.note_origins(state).await?;
        Ok(origin)
    }

    /// Makes the origin of copies beside the stream. To be called before anything asks which
    /// origins are the subscription's own: a table that joins is described to conflict rules before
    /// its copy begins.
    pub(crate) async fn make_copy_origin(&self, state: &State) -> Result<(), Error> {
        self.copy_origin(state, self.settings.apply_sessions()).await.map(drop)
    }

    /// Tells who remembers deletions under which origins the subscription itself deletes.
    pub(super) async fn note_origins(&self, state: &State) -> Result<(), Error> {
        if let Some(retention) = self.status.retention() {
            retention.note_own_origins(&state.own_origins().await?);
        }
        Ok(())
    }
}

/// Refuses a published column that the target computes. The copy could leave it out, but none of
/// its changes could be applied.
pub(crate) fn refuse_generated(table: &PublishedTable, target: &TargetTable) -> Result<(), Error> {
    let computed = |name: &str| target.column(name).is_some_and(|found| found.generated != Generated::No);
    match table.columns.iter().find(|column| computed(&column.name)) {
        None => Ok(()),
        Some(column) => {
            Err(Error::refused(Refusal::Generated { table: table.name.clone(), column: column.name.clone() }))
        }
    }
}

/// Whether the stream has begun behind the first copy. Tables that an earlier process left
/// unfinished then join while the stream flows.
pub(super) fn is_over(row: Option<&SubscriptionRow>) -> bool {
    row.is_some_and(|row| match (row.confirmed_lsn, row.consistent_point) {
        (Some(confirmed), Some(began)) => confirmed > began,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_copy_is_over_when_something_was_confirmed_behind_it() {
        let row = |confirmed: Option<u64>, began: Option<u64>| SubscriptionRow {
            source_sysid: "1".into(),
            source_timeline: 1,
            consistent_point: began.map(Lsn::new),
            confirmed_lsn: confirmed.map(Lsn::new),
            enabled: true,
            skip_lsn: None,
            last_error: None,
            slot: "s".into(),
        };
        assert!(!is_over(None));
        assert!(!is_over(Some(&row(None, None))));
        assert!(!is_over(Some(&row(Some(5), Some(5)))));
        assert!(is_over(Some(&row(Some(6), Some(5)))));
    }
}
