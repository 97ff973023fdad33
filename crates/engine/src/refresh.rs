//! Tables that are added to the publication, or taken out of it, while the
//! stream flows.
//!
//! ```text
//!   look at the publication --> gone: forgotten
//!        ^                 \--> new: changes put aside -> snapshot -> copy -> joins
//!        |                                                      (apply::Joins)
//!        +---- every refresh_interval, and when somebody asks
//! ```
//! The other tables go on meanwhile, and nothing that fails here stops them: a
//! table that cannot join is named with its reason, in the log once and in the
//! status until it can, and is tried again.
//!
//! A table that is dropped from the publication is forgotten when the target
//! has come to where the source was then: what was written before still comes.
//! If it is added again later, it is a new table, because what was written in
//! between never came.
//!
//! A table is copied only if the target's is empty (or an attempt of ours has
//! begun to fill it): rows that are there already would collide with the
//! copied ones long after somebody could have said what to do with them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use apply::{Joins, Since, State, TableKey};
use base::Lsn;
use client::Session;
use copy::CopyJob;
use source::publication::{self, PublishedTable, TableName};

use crate::error::Error;
use crate::pipeline::Attempt;
use crate::refusal::Refusal;
use crate::repeated::Repeated;
use crate::statistics;
use crate::status::{Refresh, WaitingTable};

/// After a failure; longer each time, up to the last.
const RETRY_INTERVALS: [Duration; 3] =
    [Duration::from_secs(2), Duration::from_secs(15), Duration::from_secs(60)];

/// Behind all that has committed, flushed or not.
const WRITTEN: &str = "\
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
             ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text";

/// Keeps the tables of one stream.
pub(crate) struct Refreshing<'a> {
    attempt: &'a Attempt<'a>,
    state: &'a State,
    joins: Joins,
    stream: StreamKind,
    /// Tables that are not published any more, and where the source was when
    /// that was seen.
    gone: BTreeMap<TableName, Lsn>,
}

/// What is to be known of the stream that tables would join.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamKind {
    /// Values come in binary form.
    pub(crate) binary: bool,
    /// It is a native subscription's, which has its own list of tables.
    pub(crate) adopted: bool,
}

/// What a look at the publication found.
struct Found {
    /// Tables to copy, or to join as they are.
    new: Vec<(PublishedTable, CopyJob)>,
    /// A table was forgotten. The list may have been another one when its
    /// digest was read: if the table is added again, the digest is the old one.
    forgot: bool,
    refresh: Refresh,
}

/// The stream must start anew for a table to join.
struct Restart;

impl<'a> Refreshing<'a> {
    pub(crate) fn new(attempt: &'a Attempt<'a>, state: &'a State, joins: Joins, stream: StreamKind) -> Self {
        Refreshing { attempt, state, joins, stream, gone: BTreeMap::new() }
    }

    /// Returns when the stream must start anew.
    pub(crate) async fn run(mut self) {
        let settings = self.attempt.settings;
        let mut asked = self.attempt.status.refresh_asked();
        let mut failures = 0;
        let mut failing = Repeated::default();
        let mut source = None;
        let mut digest = None;
        loop {
            let number = *asked.borrow_and_update();
            let wait = match self.round(&mut source, &mut digest, number).await {
                Ok(Ok(())) => {
                    failures = 0;
                    if let Some(run) = failing.over().filter(|run| run.attempts > 1) {
                        tracing::info!(subscription = %settings.subscription,
                            "going on: the publication's tables were brought level; before, {run}");
                    }
                    settings.refresh_interval
                }
                Ok(Err(Restart)) => return,
                Err(error) => {
                    let wait = RETRY_INTERVALS[failures.min(RETRY_INTERVALS.len() - 1)];
                    failures += 1;
                    let told = format!(
                        "the publication's tables could not be brought level: {}",
                        base::with_causes(&error)
                    );
                    failing.met(&told).tell(&settings.subscription, &told, wait);
                    // Whatever was left half done is looked at again.
                    (source, digest) = (None, None);
                    wait
                }
            };
            let sleep = async {
                match wait.is_zero() {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(wait).await,
                }
            };
            tokio::select! {
                () = sleep => {}
                changed = asked.changed() => {
                    digest = None;
                    // The sender lives as long as the status.
                    if changed.is_err() { std::future::pending::<()>().await; }
                }
            }
        }
    }

    /// One look and what follows from it.
    async fn round(
        &mut self,
        source: &mut Option<Session>,
        digest: &mut Option<String>,
        number: u64,
    ) -> Result<Result<(), Restart>, Error> {
        let settings = self.attempt.settings;
        let session = match source {
            Some(session) => session,
            None => {
                let name = settings.subscription.application_name("refresh");
                let made = client::connect(&settings.source, &name, &crate::pipeline::SOURCE_SETTINGS);
                source.insert(made.await?)
            }
        };
        let seen = published_digest(session, &settings.publications).await?;
        if digest.as_ref() == Some(&seen) {
            return Ok(Ok(()));
        }
        let Found { new, forgot, mut refresh } = self.look(session).await?;
        refresh.number = number;
        // What waits may be able to join, and what is gone be forgotten, without any change of the publication.
        let settled = refresh.waiting.is_empty() && self.gone.is_empty() && !forgot;
        *digest = settled.then_some(seen);
        self.tell(&refresh);
        self.attempt.status.set_refresh(refresh.clone());
        if new.is_empty() {
            return Ok(Ok(()));
        }
        let pairs = new.iter().map(|(table, job)| (table, job.target()));
        let versions = (session.version(), self.state.session().version());
        if self.stream.binary && publication::binary_allowed(versions.0, versions.1, pairs).is_err() {
            let keys: Vec<TableKey> = new.iter().map(|(table, _)| key(&table.name)).collect();
            self.state.add_tables(&keys).await?;
            tracing::info!(
                subscription = %settings.subscription,
                "starting the stream anew: values come as text, for the sake of a table that was added"
            );
            return Ok(Err(Restart));
        }
        self.join(session, new).await?;
        // Once more, for the status, and for what was added meanwhile.
        *digest = None;
        let Found { mut refresh, .. } = self.look(session).await?;
        refresh.number = number;
        self.attempt.status.set_refresh(refresh);
        Ok(Ok(()))
    }

    /// Compares the publication with what the target knows.
    async fn look(&mut self, source: &Session) -> Result<Found, Error> {
        let settings = self.attempt.settings;
        let published = publication::inspect(source, &settings.publications).await?;
        let recorded = self.state.copied_tables().await?;
        let mut refresh = Refresh::default();
        let mut forgot = false;
        if !self.stream.adopted {
            let names = recorded.iter().map(|table| TableName::new(&table.schema, &table.table));
            let gone = names.filter(|name| !published.iter().any(|published| published.name == *name));
            forgot = self.forget(gone.collect(), source).await?;
        }
        let recorded: HashMap<TableKey, _> =
            recorded.into_iter().map(|table| ((table.schema.clone(), table.table.clone()), table)).collect();
        let is_joined = |table: &PublishedTable| {
            recorded.get(&key(&table.name)).is_some_and(|recorded| recorded.finished)
        };
        let (joined, missing): (Vec<_>, Vec<_>) = published.into_iter().partition(is_joined);
        refresh.joined = joined.len() as u64;
        let names: Vec<TableName> = missing.iter().map(|table| table.name.clone()).collect();
        let targets = publication::target_tables(self.state.session(), &names).await?;
        let mut new = Vec::new();
        for table in missing {
            let begun = recorded.get(&key(&table.name)).is_some_and(|recorded| recorded.begun);
            let target = targets.get(&table.name);
            let versions = (source.version(), self.state.session().version());
            match self.job(&table, target, versions, begun).await? {
                Ok(job) => {
                    refresh.joining.push(table.name.to_string());
                    new.push((table, job));
                }
                Err(reason) => refresh.waiting.push(WaitingTable { table: table.name.to_string(), reason }),
            }
        }
        Ok(Found { new, forgot, refresh })
    }

    /// Forgets those of `gone` whose last changes have come; whether there were
    /// any.
    async fn forget(&mut self, gone: Vec<TableName>, source: &Session) -> Result<bool, Error> {
        let mut forgot = false;
        self.gone.retain(|name, _| gone.contains(name));
        let applied = self.attempt.status.progress().snapshot().applied;
        for name in gone {
            let since = match self.gone.get(&name) {
                Some(since) => *since,
                None => {
                    let row = source.query_one(WRITTEN, &[]).await.map_err(|error| source.error(error))?;
                    let end: Option<String> = row.get(0);
                    let end = end.and_then(|text| text.parse().ok()).unwrap_or(Lsn::INVALID);
                    self.gone.insert(name.clone(), end);
                    end
                }
            };
            if applied >= since {
                tracing::info!(subscription = %self.attempt.settings.subscription, table = %name,
                    "no longer in the publication: not replicated any more");
                self.state.forget_table(&key(&name)).await?;
                self.ended(self.joins.forget(key(&name)).await).await;
                self.gone.remove(&name);
                forgot = true;
            }
        }
        Ok(forgot)
    }

    /// How a new table is copied; the inner error says why it cannot be.
    async fn job(
        &self,
        table: &PublishedTable,
        target: Option<&publication::TargetTable>,
        versions: (base::PgVersion, base::PgVersion),
        begun: bool,
    ) -> Result<Result<CopyJob, String>, Error> {
        if self.stream.adopted {
            return Ok(Err(format!(
                "table \"{}\": the subscription was adopted, and its tables are its native owner's: after pgsluice \
                 release, ALTER SUBSCRIPTION ... REFRESH PUBLICATION takes it in",
                table.name
            )));
        }
        if let Some(target) = target
            && let Err(error) = crate::pipeline::refuse_generated(table, target)
        {
            return Ok(Err(error.to_string()));
        }
        let job = match CopyJob::new(table.clone(), target, versions.0, versions.1) {
            Ok(job) => job,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if self.attempt.settings.copy_data && !begun {
            let session = self.state.session();
            let sql = format!("SELECT EXISTS (SELECT FROM {})", table.name.quoted());
            let row = session.query_one(&sql, &[]).await.map_err(|error| session.error(error))?;
            if row.get(0) {
                return Ok(Err(format!(
                    "table \"{0}\" of the target holds rows already, which the copied ones may collide with; empty it: \
                     TRUNCATE {1}",
                    table.name,
                    table.name.quoted()
                )));
            }
        }
        Ok(Ok(job))
    }

    /// Copies new tables and lets them join.
    async fn join(&mut self, source: &Session, new: Vec<(PublishedTable, CopyJob)>) -> Result<(), Error> {
        let attempt = self.attempt;
        let name = &attempt.settings.subscription;
        let keys: Vec<TableKey> = new.iter().map(|(table, _)| key(&table.name)).collect();
        self.ended(self.joins.begin(keys.clone()).await).await;
        let joined = self.copy_and_finish(source, new, &keys).await;
        if joined.is_err() {
            for key in keys {
                let recorded = self.state.copied_tables().await?;
                let is_joined = |table: &apply::CopiedTable| {
                    table.finished && (&table.schema, &table.table) == (&key.0, &key.1)
                };
                if !recorded.iter().any(is_joined) {
                    self.ended(self.joins.forget(key).await).await;
                }
            }
            tracing::debug!(subscription = %name, "tables did not join");
        }
        joined
    }

    async fn copy_and_finish(
        &self,
        source: &Session,
        new: Vec<(PublishedTable, CopyJob)>,
        keys: &[TableKey],
    ) -> Result<(), Error> {
        let attempt = self.attempt;
        let name = &attempt.settings.subscription;
        self.state.add_tables(keys).await?;
        let mut since = Since::from(Lsn::INVALID);
        let mut copied = Vec::new();
        if attempt.settings.copy_data {
            let jobs: Vec<CopyJob> = new.into_iter().map(|(_, job)| job).collect();
            tracing::info!(subscription = %name, "copying {} tables that were added to the publication", jobs.len());
            let exported = attempt.late_snapshot(source, self.state).await?;
            copied = attempt.copy(&exported, jobs, true).await?;
            since = exported.since.clone();
            exported.close().await;
        }
        for key in keys {
            let joined = self.joins.finish(key.clone(), since.clone()).await;
            if let Err(reason) = self.ended(joined).await {
                let table = format!("{}.{}", key.0, key.1);
                return Err(Error::refused(Refusal::NotJoined { table, reason: reason.to_string() }));
            }
            tracing::info!(subscription = %name, table = %format!("{}.{}", key.0, key.1), "joined: replicated from now on");
        }
        statistics::analyze(attempt.settings, copied, attempt.stop);
        Ok(())
    }

    /// The applier has ended: so will this, as soon as that is noticed.
    async fn ended<T>(&self, result: Result<T, apply::Ended>) -> T {
        match result {
            Ok(value) => value,
            Err(apply::Ended) => std::future::pending().await,
        }
    }

    /// Says once why a table waits.
    fn tell(&self, refresh: &Refresh) {
        for WaitingTable { reason, .. } in self.attempt.status.newly_waiting(&refresh.waiting) {
            tracing::warn!(
                subscription = %self.attempt.settings.subscription,
                "a table of the publication is not replicated yet: {reason}"
            );
        }
    }
}

fn key(name: &TableName) -> TableKey {
    (name.schema.clone(), name.name.clone())
}

/// Changes when the list of published tables, their columns or their filters
/// do; asked often, so it must cost little.
async fn published_digest(source: &Session, publications: &[String]) -> Result<String, Error> {
    let sql = "SELECT pg_catalog.md5(coalesce(pg_catalog.string_agg(t::text, ' ' \
                      ORDER BY t.pubname, t.schemaname, t.tablename), '')) \
                 FROM pg_catalog.pg_publication_tables t WHERE t.pubname = ANY ($1)";
    let row = source.query_one(sql, &[&publications]).await.map_err(|error| source.error(error))?;
    Ok(row.get(0))
}

/// The tables that an earlier process left unfinished after the first copy
/// was over: they join while the stream flows.
pub(crate) fn is_late(row: Option<&apply::SubscriptionRow>) -> bool {
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
        let row = |confirmed: Option<u64>, began: Option<u64>| apply::SubscriptionRow {
            source_sysid: "1".into(),
            source_timeline: 1,
            consistent_point: began.map(Lsn::new),
            confirmed_lsn: confirmed.map(Lsn::new),
            enabled: true,
            skip_lsn: None,
            last_error: None,
            slot: "s".into(),
        };
        assert!(!is_late(None));
        assert!(!is_late(Some(&row(None, None))));
        assert!(!is_late(Some(&row(Some(5), Some(5)))));
        assert!(is_late(Some(&row(Some(6), Some(5)))));
    }
}
