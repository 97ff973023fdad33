//! The source's schema on an empty target, as part of a start.
//!
//! A start creates the subscription's tables if the target has none of them. Indexes and
//! constraints that must wait for the rows are created when all tables are copied. A later start
//! does that even if it was not told to create a schema, because a table without its keys must not
//! join. Constraints that hold only after the stream has caught up with the copy are validated
//! beside the stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Lsn;
use client::Session;
use schema::{Build, PgDump, Schema};
use source::publication::{self, PublishedTable, TableName, TargetTable};
use state::State;

use crate::refusal::Refusal;
use crate::{Error, Phase, Settings, Status};

/// Interval between checks of how far the stream is.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Creates the schema if the settings ask for it and the target has none of the published tables.
/// Afterwards `targets` contains the new tables.
pub(crate) async fn create(
    settings: &Settings,
    state: &State,
    source: &Session,
    published: &[PublishedTable],
    targets: &mut HashMap<TableName, TargetTable>,
) -> Result<(), Error> {
    let missing = published.iter().filter(|table| !targets.contains_key(&table.name)).count();
    if !settings.create_schema || missing == 0 {
        return Ok(());
    }
    if missing < published.len() {
        return Err(Error::refused(partly(published, targets)));
    }
    let started = Instant::now();
    let name = &settings.subscription;
    let pg_dump = PgDump::find(settings.pg_dump.as_deref(), source.version().major()).await?;
    tracing::info!(subscription = %name, "{pg_dump} reads the source's schema");
    let dump = pg_dump.dump(&settings.source, &name.application_name("dump")).await?;
    let schema = Schema::read(&dump)?;
    if let Some(created) = schema.create(&settings.target, name).await? {
        for left_out in &created.left_out {
            tracing::warn!(subscription = %name, "{left_out}");
        }
        tracing::info!(
            subscription = %name,
            "created {} tables and {} other objects in {:.1} s; {} more when the tables are copied",
            created.tables,
            created.objects - created.tables,
            started.elapsed().as_secs_f64(),
            created.later
        );
    }
    let names: Vec<TableName> = published.iter().map(|table| table.name.clone()).collect();
    *targets = publication::target_tables(state.session(), &names).await?;
    Ok(())
}

/// The refusal for a target that has some of the tables and lacks others.
fn partly(published: &[PublishedTable], targets: &HashMap<TableName, TargetTable>) -> Refusal {
    let names = |there: bool| {
        let those = published.iter().filter(|table| targets.contains_key(&table.name) == there);
        those.map(|table| table.name.to_string()).collect()
    };
    Refusal::PartOfTheTables { there: names(true), missing: names(false) }
}

/// The validation that runs beside the stream and ends with it.
pub(crate) struct Validating(Option<(tokio::task::JoinHandle<()>, Arc<Status>)>);

impl Drop for Validating {
    fn drop(&mut self) {
        if let Some((task, status)) = &self.0 {
            task.abort();
            status.await_foreign_keys(false);
        }
    }
}

/// Creates what the schema's first part left for the time after the copy.
pub(crate) async fn finish(
    settings: &Settings,
    status: &Arc<Status>,
    state: &State,
) -> Result<Validating, Error> {
    let name = &settings.subscription;
    if !schema::has_steps(state.session(), name).await? {
        return Ok(Validating(None));
    }
    let build = Build {
        target: settings.target.clone(),
        subscription: name.clone(),
        connections: settings.max_sync_workers_per_subscription,
        progress: Arc::clone(status.schema()),
    };
    let (phase, started) = (status.phase(), Instant::now());
    status.set_phase(Phase::Indexing);
    let (done, waiting) = schema::finish(&build, state.session()).await?;
    if done > 0 {
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(subscription = %name, "created {done} indexes, constraints and other objects in {seconds:.1} s");
    }
    status.set_phase(phase);
    if !waiting {
        return Ok(Validating(None));
    }
    let copied = state.copied_tables().await?;
    let point =
        copied.iter().filter_map(|table| Some(table.since.as_ref()?.lsn)).max().unwrap_or(Lsn::INVALID);
    status.await_foreign_keys(true);
    let task = tokio::spawn(validate(build, Arc::clone(status), point));
    Ok(Validating(Some((task, Arc::clone(status)))))
}

/// Waits until the target has passed `point`; from there on, each of its states is one that the
/// source had.
async fn validate(build: Build, status: Arc<Status>, point: Lsn) {
    // Positions from before this stream belong to an earlier attempt.
    while !(status.streams() && status.progress().snapshot().applied >= point) {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    if let Err(error) = schema::validate(&build).await {
        tracing::error!(subscription = %build.subscription, "{error}; the next start tries again");
    }
    status.await_foreign_keys(false);
}
