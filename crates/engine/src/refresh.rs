//! Tables that are added to the publication, or taken out of it, while the stream flows.
//!
//! ```text
//!   look at the publication --> gone: forgotten
//!        ^                 \--> new: changes put aside -> snapshot -> copy -> joins
//!        |                                                      (apply::Joins)
//!        +---- every refresh_interval, and when somebody asks
//! ```
//! The other tables go on meanwhile, and no failure here stops them. A table that cannot join is
//! named with its reason, once in the log and in the status until it can join. It is tried again.
//!
//! A table that is dropped from the publication is not forgotten at once, since changes that were
//! written before still come. It is forgotten when the target has come to where the source was when
//! the drop was seen. If the table is added again later, it counts as new, because the changes in
//! between never came.
//!
//! A table is copied only if the target's table is empty, or if an earlier attempt of ours began to
//! fill it. Copied rows could otherwise collide with existing ones long after the operator could
//! have decided about them.
//!
//! If another table on the source has taken a table's name, the table is left out. It joins again
//! as a new table does ([`replaced`]).
//!
//! Before PostgreSQL 15 the source's stream goes by what a table was when it first met it. So it
//! starts again before a new table joins, and before a look reports partitions that came or went.

mod apart;
mod replaced;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use apply::Joins;
use base::{Lsn, Oid};
use client::Session;
use copy::CopyJob;
use source::end::{flush, written};
use source::publication::{self, PublishedTable, TableName};
use state::{CopiedTable, Since, State, TableKey};
use wal_source::Judge;

use self::apart::{Apart, key};
use crate::OnTableReplaced;
use crate::error::Error;
use crate::partitions::{Partitions, Subscription};
use crate::pipeline::{Attempt, may_be_binary};
use crate::refusal::Refusal;
use crate::repeated::Repeated;
use crate::statistics;
use crate::status::{Refresh, WaitingTable};

/// Waits after failures; each is longer, and the last one repeats.
const RETRY_INTERVALS: [Duration; 3] =
    [Duration::from_secs(2), Duration::from_secs(15), Duration::from_secs(60)];

/// Wait until comparisons that were postponed are tried again.
const POSTPONED: Duration = Duration::from_secs(1);
/// Wait between looks while the stream has yet to come to the place where a table is left out.
const APART_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the list of tables of one stream up to date.
pub(crate) struct Refreshing<'a> {
    attempt: &'a Attempt<'a>,
    state: &'a State,
    joins: Joins,
    stream: StreamKind,
    /// Judges whether a table can be decoded; only where WAL is decoded here.
    judge: Option<Judge>,
    /// Tables that are not published any more, each with the source's position when a look saw
    /// that.
    gone: BTreeMap<TableName, Lsn>,
    /// The partitions of published roots.
    partitions: Partitions,
    /// Why the last look at the partitions failed, as logged.
    partitions_failed: Option<String>,
    /// Tables that still take part, although other tables on the source have their names now.
    apart: BTreeMap<TableKey, Apart>,
}

/// The properties of the stream that a joining table must fit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamKind {
    /// The stream sends values in binary form.
    pub(crate) binary: bool,
    /// The subscription was adopted from a native one, which has its own list of tables.
    pub(crate) adopted: bool,
    /// The source's `pgoutput` goes by what a table was when the stream first met it: after ATTACH
    /// or DETACH it sends changes under the wrong name or not at all, until the stream starts
    /// again. So it is before PostgreSQL 15, whose `rel_sync_cache_relation_cb` looks anew.
    pub(crate) keeps_partitions: bool,
}

/// The result of a look at the publication.
struct PublicationLook {
    /// Tables to copy, or to join without a copy.
    new: Vec<(PublishedTable, CopyJob)>,
    /// A table was forgotten. The digest may have been read for another list of tables. If the
    /// table is added again, the digest would be the old one.
    forgot: bool,
    refresh: Refresh,
}

/// The stream must start anew before a table can join.
struct Restart;

impl<'a> Refreshing<'a> {
    pub(crate) fn new(
        attempt: &'a Attempt<'a>,
        state: &'a State,
        joins: Joins,
        (stream, judge): (StreamKind, Option<Judge>),
    ) -> Self {
        Refreshing {
            attempt,
            state,
            joins,
            stream,
            judge,
            gone: BTreeMap::new(),
            partitions: Partitions::default(),
            partitions_failed: None,
            apart: BTreeMap::new(),
        }
    }

    /// Returns when the stream must start anew.
    pub(crate) async fn run(mut self) {
        let settings = self.attempt.settings;
        let mut asked = self.attempt.status.refresh_asked();
        let mut failures = 0;
        let mut failing = Repeated::default();
        let mut source = None;
        let mut digest = None;
        let joins = self.joins.clone();
        loop {
            let number = *asked.borrow_and_update();
            let wait = match self.round(&mut source, &mut digest, number).await {
                Ok(Ok(())) => {
                    failures = 0;
                    if let Some(run) = failing.over().filter(|run| run.attempts > 1) {
                        tracing::info!(subscription = %settings.subscription,
                            "going on: the publication's tables were brought level; before, {run}");
                    }
                    self.until_next()
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
                    // The next round looks again at everything that was left half done.
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
                () = joins.left_out() => digest = None,
                changed = asked.changed() => {
                    digest = None;
                    // The sender lives as long as the status.
                    if changed.is_err() { std::future::pending::<()>().await; }
                }
            }
        }
    }

    /// Looks once, and acts on the result.
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
                let made = client::connect(&settings.source, &name, &source::end::SOURCE_SETTINGS);
                source.insert(made.await?)
            }
        };
        if self.look_at_partitions(session).await? {
            return Ok(Err(self.streams_anew()));
        }
        let seen = published_digest(session, &settings.publications).await?;
        if digest.as_ref() == Some(&seen) {
            return Ok(Ok(()));
        }
        let PublicationLook { new, forgot, mut refresh } = self.look(session).await?;
        refresh.number = number;
        refresh.partitions = self.partitions.differing();
        // Waiting tables may become able to join, and gone tables may be forgotten, without a
        // change of the publication.
        let settled = refresh.waiting.is_empty() && self.gone.is_empty() && self.apart.is_empty() && !forgot;
        *digest = settled.then_some(seen);
        self.tell(&refresh);
        self.attempt.status.set_refresh(refresh.clone());
        if new.is_empty() {
            return Ok(Ok(()));
        }
        let pairs = new.iter().map(|(table, job)| (table, job.target()));
        if self.stream.binary
            && let Err(why) = may_be_binary((session.version(), self.state), pairs).await?
        {
            self.state.add_tables(&with_oids(&new)).await?;
            tracing::info!(
                subscription = %settings.subscription,
                "starting the stream again: values come as text, because a table that was added needs that: {why}"
            );
            return Ok(Err(Restart));
        }
        if self.needs_other_stream(&new) {
            return Ok(Err(self.streams_anew()));
        }
        self.join(session, new).await?;
        // Looks once more, for the status and for tables that were added meanwhile.
        *digest = None;
        let PublicationLook { mut refresh, .. } = self.look(session).await?;
        refresh.number = number;
        refresh.partitions = self.partitions.differing();
        self.attempt.status.set_refresh(refresh);
        Ok(Ok(()))
    }

    /// The time until the next look.
    fn until_next(&self) -> Duration {
        let interval = self.attempt.settings.refresh_interval;
        if !self.apart.is_empty() {
            return APART_INTERVAL;
        }
        match self.partitions.postponed {
            true if interval.is_zero() => POSTPONED,
            true => interval.min(POSTPONED),
            false => interval,
        }
    }

    /// The subscription, as the look at partitions sees it.
    fn subscription(&self) -> Subscription<'a> {
        Subscription { settings: self.attempt.settings, status: self.attempt.status }
    }

    /// Says that the stream starts again, for a source that keeps the partitions it saw first.
    fn streams_anew(&self) -> Restart {
        tracing::info!(
            subscription = %self.attempt.settings.subscription,
            "beginning a new stream: tables or partitions came or went, and the source's PostgreSQL goes by \
             what each was when a stream first met it"
        );
        Restart
    }

    /// Whether the stream has not yet started again for one of these tables. Each may have been a
    /// partition for a while, even between two looks.
    fn needs_other_stream(&self, new: &[(PublishedTable, CopyJob)]) -> bool {
        let oids = new.iter().map(|(table, _)| table.oid);
        self.stream.keeps_partitions && self.attempt.status.streams_anew_for(oids)
    }

    /// Looks at the partitions. It only reports, and never keeps tables from joining. Returns
    /// whether the stream must start again before anything is reported.
    async fn look_at_partitions(&mut self, source: &Session) -> Result<bool, Error> {
        let stale = self.stream.keeps_partitions;
        let looked = self.partitions.look(self.subscription(), source, self.state, stale).await;
        self.attempt.status.set_partitions(self.partitions.differing());
        let error = match looked {
            Ok(must_restart) => {
                self.partitions_failed = None;
                return Ok(must_restart);
            }
            Err(error) => error,
        };
        if source.is_closed() || self.state.session().is_closed() {
            return Err(error);
        }
        let reason = base::with_causes(&error).to_string();
        if self.partitions_failed.as_ref() != Some(&reason) {
            tracing::warn!(
                subscription = %self.attempt.settings.subscription,
                "could not look for partitions that were attached, emptied or dropped: {reason}; pgsluice looks \
                 again at the next refresh"
            );
            self.partitions_failed = Some(reason);
        }
        Ok(false)
    }

    /// Compares the publication with the tables that the target knows.
    async fn look(&mut self, source: &Session) -> Result<PublicationLook, Error> {
        let settings = self.attempt.settings;
        let published = publication::inspect(source, &settings.publications).await?;
        let mut recorded = self.state.copied_tables().await?;
        if self.attempt.status.is_catching_up() {
            // Without this flush, a crash of the target could take back the join of a table that
            // counts as joined here.
            flush(self.state.session()).await?;
        }
        self.leave_out(&published, &mut recorded, source).await?;
        self.forget_left(&published, &recorded).await?;
        let mut refresh = Refresh::default();
        let mut forgot = false;
        if !self.stream.adopted {
            let names = recorded
                .iter()
                .filter(|table| !self.is_apart(table))
                .map(|table| (TableName::new(&table.schema, &table.table), table.source_oid));
            let gone = names.filter(|(name, _)| !published.iter().any(|published| published.name == *name));
            forgot = self.forget(gone.collect(), source).await?;
        }
        let all = recorded;
        let recorded: HashMap<TableKey, &CopiedTable> =
            all.iter().map(|table| ((table.schema.clone(), table.table.clone()), table)).collect();
        let still: Vec<CopiedTable> = published
            .iter()
            .filter_map(|table| recorded.get(&key(&table.name)).map(|table| (*table).clone()))
            .collect();
        self.attempt.status.await_recorded(&still);
        let is_joined = |table: &PublishedTable| {
            let key = key(&table.name);
            recorded.get(&key).is_some_and(|recorded| recorded.finished) && !self.apart.contains_key(&key)
        };
        let (joined, missing): (Vec<_>, Vec<_>) = published.into_iter().partition(is_joined);
        refresh.joined = joined.len() as u64;
        let names: Vec<TableName> = missing.iter().map(|table| table.name.clone()).collect();
        let targets = publication::target_tables(self.state.session(), &names).await?;
        let refused = self.refused(&missing, source).await?;
        let mut new = Vec::new();
        for table in missing {
            if let Some(reason) = self.waits_for_stream(&table) {
                refresh.waiting.push(WaitingTable { table: table.name.to_string(), reason });
                continue;
            }
            if let Some(reason) = refused.get(&key(&table.name)) {
                let reason = reason.clone();
                refresh.waiting.push(WaitingTable { table: table.name.to_string(), reason });
                continue;
            }
            let target = targets.get(&table.name);
            let known = recorded.get(&key(&table.name)).copied();
            let job = match self.job(&table, target, source, known)? {
                Ok(job) => self.rows_in_the_way(source, &table, known).await?.map_or(Ok(job), Err),
                Err(error) => Err(self.remedy(&table, &all, error).await?),
            };
            match job {
                Ok(job) => {
                    if known.is_some_and(|known| known.replaced.is_some() && self.may_empty(known)) {
                        self.state.copy_replaced_again(&key(&table.name)).await?;
                    }
                    refresh.joining.push(table.name.to_string());
                    new.push((table, job));
                }
                Err(reason) => refresh.waiting.push(WaitingTable { table: table.name.to_string(), reason }),
            }
        }
        Ok(PublicationLook { new, forgot, refresh })
    }

    /// Returns the tables of `missing` that cannot be decoded from WAL, with reasons; see
    /// [`Judge`].
    async fn refused(
        &self,
        missing: &[PublishedTable],
        source: &Session,
    ) -> Result<HashMap<TableKey, String>, Error> {
        let Some(judge) = self.judge.as_ref().filter(|_| !missing.is_empty()) else {
            return Ok(HashMap::new());
        };
        let tables: Vec<TableKey> = missing.iter().map(|table| key(&table.name)).collect();
        let refused = judge.refused(&tables, source).await?;
        if !self.attempt.settings.copy_data {
            for table in refused.keys() {
                self.state.must_be_copied(table).await?;
            }
        }
        Ok(refused)
    }

    /// Forgets the tables of `gone` whose last changes have come. Returns whether there were any.
    async fn forget(&mut self, gone: Vec<(TableName, Option<Oid>)>, source: &Session) -> Result<bool, Error> {
        let mut forgot = false;
        self.gone.retain(|name, _| gone.iter().any(|(gone, _)| gone == name));
        let applied = self.attempt.status.progress().snapshot().applied;
        for (name, oid) in gone {
            let since = match self.gone.get(&name) {
                Some(since) => *since,
                None => {
                    let end = written(source).await?;
                    self.gone.insert(name.clone(), end);
                    end
                }
            };
            if applied >= since {
                self.take_off(&name, oid, source).await?;
                self.attempt.status.leaves_stream(oid);
                self.ended(self.joins.forget(key(&name)).await).await;
                self.judge.iter().for_each(|judge| judge.takes_part.remove(&key(&name)));
                self.gone.remove(&name);
                forgot = true;
            }
        }
        Ok(forgot)
    }

    /// Decides how a new table is copied. The inner error says why it cannot be copied.
    fn job(
        &self,
        table: &PublishedTable,
        target: Option<&publication::TargetTable>,
        source: &Session,
        known: Option<&CopiedTable>,
    ) -> Result<Result<CopyJob, String>, Error> {
        let is_replaced = known.is_some_and(|known| known.replaced.is_some());
        if self.stream.adopted && !is_replaced {
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
        if !self.attempt.settings.copy_data && known.is_some_and(|known| known.begun) && !is_replaced {
            return Ok(Err(format!(
                "table \"{}\" was left out for some time, and copy_data is off. To have it emptied on the target and copied \
                 again: pgsluice run --copy-data on",
                table.name
            )));
        }
        let versions = (source.version(), self.state.session().version());
        Ok(CopyJob::new(table.clone(), target, versions.0, versions.1).map_err(|error| error.to_string()))
    }

    /// Whether the rows that the target has of a table may be removed. They may if an attempt of
    /// ours wrote them. They also may if the table was replaced and `on_table_replaced` allows it.
    fn may_empty(&self, known: &CopiedTable) -> bool {
        let copies = self.attempt.settings.on_table_replaced == OnTableReplaced::Copy;
        known.begun || known.replaced.is_some() && copies
    }

    /// Copies new tables and lets them join.
    async fn join(&mut self, source: &Session, new: Vec<(PublishedTable, CopyJob)>) -> Result<(), Error> {
        let attempt = self.attempt;
        let name = &attempt.settings.subscription;
        let tables = with_oids(&new);
        if self.copies_some_of(&new).await? {
            attempt.make_copy_origin(self.state).await?;
        }
        if let Some(judge) = &self.judge {
            // Done before the snapshot is requested: from now on decoding must not leave out any of
            // their changes.
            tables.iter().for_each(|(key, _)| judge.takes_part.insert(key.clone()));
        }
        self.ended(self.joins.begin(tables.clone()).await).await;
        let joined = self.copy_and_finish(source, new, &tables).await;
        if joined.is_err() {
            for (key, _) in tables {
                let recorded = self.state.copied_tables().await?;
                let is_joined = |table: &state::CopiedTable| {
                    table.finished && (&table.schema, &table.table) == (&key.0, &key.1)
                };
                if !recorded.iter().any(is_joined) {
                    self.judge.iter().for_each(|judge| judge.takes_part.remove(&key));
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
        tables: &[(TableKey, Oid)],
    ) -> Result<(), Error> {
        let attempt = self.attempt;
        let name = &attempt.settings.subscription;
        self.state.add_tables(tables).await?;
        let mut since = Since::from(Lsn::INVALID);
        let mut copied = Vec::new();
        let jobs = self.to_copy(new).await?;
        if !jobs.is_empty() {
            tracing::info!(subscription = %name, "copying {} tables that were added to the publication", jobs.len());
            let exported = attempt.late_snapshot(source, self.state).await?;
            let keys: Vec<TableKey> = tables.iter().map(|(key, _)| key.clone()).collect();
            attempt.pass_clock_of(source, self.state.session()).await?;
            attempt.status.await_copies(&keys, exported.since.lsn);
            copied = attempt.copy(&exported, jobs, self.state, true).await?;
            since = exported.since.clone();
            exported.close().await;
        }
        for (key, _) in tables {
            let is_copied = copied.contains(&TableName::new(&key.0, &key.1));
            let since = if is_copied { since.clone() } else { Since::from(Lsn::INVALID) };
            let joined = self.joins.finish(key.clone(), since).await;
            if let Err(reason) = self.ended(joined).await {
                let table = format!("{}.{}", key.0, key.1);
                return Err(Error::refused(Refusal::NotJoined { table, reason: reason.to_string() }));
            }
            tracing::info!(subscription = %name, table = %format!("{}.{}", key.0, key.1), "joined: replicated from now on");
        }
        statistics::analyze(attempt.settings, copied, attempt.stop);
        Ok(())
    }

    /// Returns the new tables to copy.
    async fn to_copy(&self, new: Vec<(PublishedTable, CopyJob)>) -> Result<Vec<CopyJob>, Error> {
        let owed = self.owed().await?;
        let is_wanted =
            |table: &PublishedTable| owed.as_ref().is_none_or(|owed| owed.contains(&key(&table.name)));
        Ok(new.into_iter().filter(|(table, _)| is_wanted(table)).map(|(_, job)| job).collect())
    }

    async fn copies_some_of(&self, new: &[(PublishedTable, CopyJob)]) -> Result<bool, Error> {
        let owed = self.owed().await?;
        Ok(owed.is_none_or(|owed| new.iter().any(|(table, _)| owed.contains(&key(&table.name)))))
    }

    /// The tables that are copied; `None` for all. Without `copy_data`, these are only replaced
    /// tables and tables whose copy was begun for that reason.
    async fn owed(&self) -> Result<Option<HashSet<TableKey>>, Error> {
        if self.attempt.settings.copy_data {
            return Ok(None);
        }
        let recorded = self.state.copied_tables().await?;
        let owed = recorded.into_iter().filter(|table| table.begun || table.replaced.is_some());
        Ok(Some(owed.map(|table| (table.schema, table.table)).collect()))
    }

    /// Never returns if the applier has ended: the caller is dropped as soon as that is noticed.
    async fn ended<T>(&self, result: Result<T, apply::ApplierEnded>) -> T {
        match result {
            Ok(value) => value,
            Err(apply::ApplierEnded) => std::future::pending().await,
        }
    }

    /// Logs once why a table waits.
    fn tell(&self, refresh: &Refresh) {
        for WaitingTable { reason, .. } in self.attempt.status.newly_waiting(&refresh.waiting) {
            tracing::warn!(
                subscription = %self.attempt.settings.subscription,
                "a table of the publication is not replicated yet: {reason}"
            );
        }
    }
}

/// The tables with their OIDs on the source.
fn with_oids(new: &[(PublishedTable, CopyJob)]) -> Vec<(TableKey, Oid)> {
    new.iter().map(|(table, _)| (key(&table.name), table.oid)).collect()
}

/// A digest of the published tables, the relations that have their names, their columns and their
/// filters. It is read often, so it must cost little.
async fn published_digest(source: &Session, publications: &[String]) -> Result<String, Error> {
    let sql = "SELECT pg_catalog.md5(coalesce(pg_catalog.string_agg(t::text || \
                      coalesce(c.oid::text, ''), ' ' ORDER BY t.pubname, t.schemaname, t.tablename), '')) \
                 FROM pg_catalog.pg_publication_tables t \
                 LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname \
                 LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename \
                WHERE t.pubname = ANY ($1)";
    let row = source.query_one(sql, &[&publications]).await.map_err(|error| source.error(error))?;
    Ok(row.get(0))
}
