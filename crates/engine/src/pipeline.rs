//! One subscription, from the first look at both ends until it is stopped.
//!
//! An *attempt* goes through the phases below; when it fails, the retry table
//! says what then. Nothing is kept between attempts but counters: all that
//! must be remembered stands on the target.
//!
//! ```text
//!   look at both ends -> (bring the schema over) -> make slot and snapshot
//!        -> copy what is not copied -> (create indexes and constraints)
//!        -> attach the origin -> stream: source -> txn -> apply
//!                                   ^------ Progress ------|
//! ```

mod beginning;
mod copied_from;
mod form;
mod relook;
mod snapshot;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use apply::{JoinedTables, Joins, State, SubscriptionRow, TableKey, Target};
use base::{Lsn, Progress};
use client::{Replication, Wire};
use copy::CopyJob;
use output::TakesPart;
use source::publication::{self, Generated, PublishedTable, TableName, TargetTable};
use source::queue::queue;
use source::slot;
use source::stream::Heard;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use txn::Block;

pub use self::copied_from::learn_at_adoption;
pub(crate) use self::form::may_be_binary;
use self::relook::Cause;
use crate::abort_on_drop::AbortOnDrop;
use crate::adoption::{self, Adoption};
use crate::copied_table::CopiedTableRecord;
use crate::error::{Error, Kind};
use crate::history;
use crate::message_source::{Logical, MessageSource};
use crate::refresh::{self, Refreshing, StreamKind};
use crate::refusal::Refusal;
use crate::repeated::{Repeated, tell_when_over};
use crate::retry::{Backoff, Verdict, verdict};
use crate::source_end::{Exported, FAREWELL, SOURCE_SETTINGS, SourceEnd, flush};
use crate::spooling::Watched;
use crate::status::Failing;
use crate::wal_source::{self, Begun, Beside, Context, Passes, Restart, WalSource};
use crate::{Binary, Origin, Phase, Settings, SourceMode, Status, preflight, statistics, target_schema};

/// How often figures that the stages do not push are carried to the status.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// How long the applier may take to say why the target went, once the control session was lost.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs one subscription until `stop`. Those that are handed the same `passes` share the pass over the WAL of a server that
/// they follow with [`SourceMode::Wal`].
///
/// # Errors
/// An error that trying again cannot help; see [`Error`].
pub async fn run(
    settings: Arc<Settings>,
    status: Arc<Status>,
    passes: Arc<Passes>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let mut backoff = Backoff::new(settings.wal_retrieve_retry_interval);
    let mut skip = status.skip_lsn();
    let mut past = Past::default();
    let mut past_applied = Lsn::INVALID;
    while !stop.is_cancelled() {
        status.set_phase(Phase::Starting);
        let attempt = Attempt { settings: &settings, status: &status, passes: &passes, stop: &stop };
        let before = past.failing.run();
        let result = tokio::select! {
            result = attempt.run(&mut backoff, &mut past) => result,
            // Only while nothing streams: a stream ends by itself in order.
            () = stop_before_streaming(&stop, &status) => return Ok(()),
            never = tell_when_over(&settings, &status, before, past_applied) => match never {},
        };
        status.counters().conflict_log.tell_rest(true);
        if status.failing().is_none() {
            // It got further than those before.
            past.failing.over();
        }
        past_applied = status.progress().snapshot().applied;
        past.in_text = result.as_ref().is_err_and(Error::needs_text);
        let Err(error) = result else { continue };
        past.note(&error);
        if error.is_stopped() || stop.is_cancelled() {
            return Ok(());
        }
        let verdict = verdict(&error, settings.disable_on_error);
        match verdict {
            Verdict::Stop => return Err(error),
            Verdict::Disable => return disable(&settings, error).await,
            Verdict::Soon | Verdict::Later => {}
        }
        let wait = backoff.wait(verdict);
        let told = match error.lost_end(&settings) {
            Some(end) => format!("the {end} was lost: {}", base::with_causes(&error)),
            None => base::with_causes(&error),
        };
        past.failing.met(&told).tell(&settings.subscription, &told, wait);
        status.set_failing(
            past.failing.run().map(|run| Failing {
                since_unix_ms: run.since.unix_micros() / 1_000,
                attempts: run.attempts,
            }),
        );
        status.record_error(told);
        status.set_phase(Phase::Waiting);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => {}
            _ = skip.changed() => {}
        }
    }
    Ok(())
}

async fn stop_before_streaming(stop: &CancellationToken, status: &Status) {
    stop.cancelled().await;
    if status.streams() {
        std::future::pending::<()>().await;
    }
}

/// `disable_on_error`: the subscription stays as it is until it is enabled.
async fn disable(settings: &Settings, error: Error) -> Result<(), Error> {
    let state = State::open(&settings.target, &settings.subscription).await?;
    state.disable(&error.to_string()).await?;
    Err(Kind::DisabledNow { name: settings.subscription.clone(), error: Box::new(error) }.into())
}

/// What earlier attempts leave to the next.
#[derive(Default)]
struct Past {
    /// Both ends were checked.
    checked: bool,
    /// The backend of the last control session.
    control_pid: Option<i32>,
    /// What comes next was written when columns had other types: values must come as text.
    in_text: bool,
    /// Why the catalogs must be looked at anew.
    lost: Option<Cause>,
    /// Tables that took part and cannot be decoded, as long as the target was not told.
    refused: Vec<output::Refused>,
    /// All such tables so far.
    refused_before: BTreeSet<TableKey>,
    /// How they failed.
    failing: Repeated,
}

impl Past {
    /// What the next attempt has to do about it.
    fn note(&mut self, error: &Error) {
        if let Some(lost) = error.lost() {
            self.lost = Some(Cause { lost, told: base::with_causes(error) });
        }
        self.refused.extend(error.undecodable().cloned());
    }
}

/// One try, from connecting to whatever ends it.
pub(crate) struct Attempt<'a> {
    pub(crate) settings: &'a Arc<Settings>,
    pub(crate) status: &'a Arc<Status>,
    pub(crate) passes: &'a Passes,
    pub(crate) stop: &'a CancellationToken,
}

/// Both ends as they were found.
struct Ends {
    source: SourceEnd,
    state: State,
    row: Option<SubscriptionRow>,
    adopted: Option<Adoption>,
    targets: HashMap<TableName, TargetTable>,
    /// See [`Past::in_text`].
    in_text: bool,
}

impl Attempt<'_> {
    /// What the source's WAL is asked through.
    fn wal<'a>(&'a self, ends: &'a Ends) -> Context<'a> {
        Context { settings: self.settings, status: self.status, passes: self.passes, source: &ends.source }
    }

    async fn run(&self, backoff: &mut Backoff, past: &mut Past) -> Result<(), Error> {
        if !past.checked {
            preflight::before_start(self.settings).await?;
            past.checked = true;
        }
        self.status.spooling().check_room()?;
        let mut ends = self.look(past).await?;
        self.check(&ends)?;
        if ends.row.is_some() {
            ends.state.keep_oids().await?;
        }
        let began = ends.row.as_ref().and_then(|row| row.consistent_point);
        if began.is_none() {
            let Ends { state, source, targets, .. } = &mut ends;
            let SourceEnd { session, published, .. } = source;
            target_schema::create(self.settings, state, session, published, targets).await?;
        }
        let copied = match began {
            None => self.begin(&mut ends).await?,
            Some(_) => {
                self.judge_timeline(&mut ends).await?;
                self.leave_out(&ends, past).await?;
                if let Some(cause) = &past.lost {
                    self.relook(&mut ends, cause).await?;
                    past.lost = None;
                }
                self.resume(&ends, &past.refused_before).await?
            }
        };
        let _validating = target_schema::finish(self.settings, self.status, &ends.state).await?;
        statistics::analyze(self.settings, copied, self.stop);
        let joined = self.joined(&ends).await?;
        self.stream(ends, joined, (backoff, past)).await
    }

    /// Connects to both ends and reads what is there.
    async fn look(&self, past: &mut Past) -> Result<Ends, Error> {
        let settings = self.settings;
        let name = &settings.subscription;
        let state = State::open_again(&settings.target, name, past.control_pid).await?;
        past.control_pid = Some(state.session().pid());
        let stream_name = name.application_name("stream");
        let mut wire =
            Wire::connect(&settings.source, &stream_name, Replication::Database, &SOURCE_SETTINGS).await?;
        let identity = slot::identify_system(&mut wire).await?;
        let forks = match settings.source_mode {
            SourceMode::Wal => slot::timeline_forks(&mut wire, identity.timeline).await?,
            SourceMode::Logical => Vec::new(),
        };
        let session =
            client::connect(&settings.source, &name.application_name("look"), &SOURCE_SETTINGS).await?;
        // Of several hosts, each may have been connected to.
        let is_standby =
            [wire.parameter("in_hot_standby").map(str::to_owned), session.parameter("in_hot_standby")]
                .contains(&Some("on".to_owned()));
        if is_standby && settings.source_mode == SourceMode::Wal {
            return Err(Kind::SourceIsStandby.into());
        }
        let row = state.load().await?;
        let adopted = adoption::adoption(&**state.session(), name).await;
        let adopted = adopted.map_err(|error| state.session().error(error))?;
        let slot_name = row.as_ref().map_or_else(|| name.slot(), |row| row.slot.clone());
        let slot = slot::slot_state(&session, &slot_name).await?;
        let published = publication::inspect(&session, &settings.publications).await?;
        let names: Vec<TableName> = published.iter().map(|table| table.name.clone()).collect();
        let targets = publication::target_tables(state.session(), &names).await?;
        let in_text = past.in_text;
        let source = SourceEnd { wire, session, identity, slot_name, slot, forks, published };
        Ok(Ends { source, state, row, adopted, targets, in_text })
    }

    /// What must hold before anything is changed.
    fn check(&self, ends: &Ends) -> Result<(), Error> {
        let (name, slot) = (self.settings.subscription.clone(), ends.source.slot_name.clone());
        if self.settings.origin == Origin::None && ends.source.wire.version().major() < 16 {
            return Err(Error::refused(Refusal::OriginNoneTooOld(ends.source.wire.version())));
        }
        let Some(row) = &ends.row else {
            return match &ends.source.slot {
                None => Ok(()),
                Some(_) => Err(Error::refused(Refusal::SlotOfAnotherTarget { slot, name })),
            };
        };
        if !row.enabled {
            return Err(Kind::Disabled { name, after: row.last_error.clone() }.into());
        }
        if row.source_sysid != ends.source.identity.system_id.to_string() {
            let (made_for, found) = (row.source_sysid.clone(), ends.source.identity.system_id.to_string());
            return Err(Error::refused(Refusal::OtherSource { name, made_for, found }));
        }
        if let Some(adopted) = &ends.adopted
            && let Some(why) = adopted.refusal(&name, self.settings.origin == Origin::None)
        {
            return Err(why);
        }
        if row.consistent_point.is_none() {
            return Ok(());
        }
        let Some(found) = &ends.source.slot else {
            return match self.wal(ends).can_do_without_slot() {
                true => Ok(()),
                false => Err(Error::refused(Refusal::SlotGone { slot })),
            };
        };
        let is_logical = found.is_pgoutput_of(ends.source.identity.dbname.as_deref());
        let (is_ours, is_other) = match self.settings.source_mode {
            SourceMode::Logical => (is_logical, found.is_physical() && self.settings.restart_file().exists()),
            SourceMode::Wal => (found.is_physical(), is_logical),
        };
        if is_other {
            let made_for = if is_logical { "logical" } else { "wal" };
            return Err(Error::refused(Refusal::OtherMode { name, made_for }));
        }
        if !is_ours {
            let (plugin, database) = (found.plugin.clone(), found.database.clone());
            return Err(Error::refused(Refusal::NotOurSlot { slot, name, plugin, database }));
        }
        if found.is_lost() && !self.wal(ends).can_do_without_slot() {
            return Err(Error::refused(Refusal::SlotLost { slot, why: found.invalidation.clone() }));
        }
        Ok(())
    }

    /// The first start: slot, snapshot, copy. Returns what was copied.
    async fn begin(&self, ends: &mut Ends) -> Result<Vec<TableName>, Error> {
        let name = &self.settings.subscription;
        // Before anything is left on the source: does every table fit?
        let jobs = self.jobs(ends, |_| true)?;
        let dbname = ends.source.identity.dbname.clone().unwrap_or_default();
        let sysid = ends.source.identity.system_id.to_string();
        let timeline = i64::from(ends.source.identity.timeline);
        ends.state.create(&self.settings.publications, &sysid, timeline, &dbname).await?;
        ends.state.keep_oids().await?;
        if ends.row.is_some() {
            // It may have been begun on another, of which nothing was kept.
            ends.state.change_timeline(timeline, Lsn::INVALID).await?;
        }
        if ends.source.slot.is_some() {
            // Ours, by the row just found: its creation was not finished.
            slot::drop_slot(&ends.source.session, &name.slot()).await?;
        }
        let exported = self.make_slot(ends).await?;
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
            copied = self.copy(&exported, jobs, false).await?;
        }
        exported.close().await;
        Ok(copied)
    }

    /// A source on another timeline than last time is judged before anything is copied from it, which is of its own then; and what
    /// it has of the WAL that is needed is kept from then on.
    async fn judge_timeline(&self, ends: &mut Ends) -> Result<(), Error> {
        let timeline = i64::from(ends.source.identity.timeline);
        let known = [timeline, history::UNKNOWN];
        let Some(row) = ends.row.clone().filter(|row| !known.contains(&row.source_timeline)) else {
            return Ok(());
        };
        let restart = match self.settings.source_mode {
            SourceMode::Logical => None,
            SourceMode::Wal => Some(self.wal(ends).restart()?),
        };
        let (joined, options) = (self.joined(ends).await?, self.apply_options(ends, None).await?);
        let copied = furthest(&joined);
        // The fence: nobody applies any more what was sent before.
        let target = Target::attach(&self.settings.target, &ends.state, &options, joined).await?;
        let Ends { source: SourceEnd { wire, session, .. }, state, .. } = &mut *ends;
        history::start_position(wire, session, state, &row, (target.reached(), copied)).await?;
        if restart.is_some() {
            self.wal(ends).slot_to_stream_from(restart.as_ref()).await?;
        }
        Ok(())
    }

    /// A later start: what is left of the first copy is made under a snapshot
    /// of its own (RULES C1). Tables that were added after it wait for the
    /// stream; see [`crate::refresh`].
    async fn resume(&self, ends: &Ends, refused: &BTreeSet<TableKey>) -> Result<Vec<TableName>, Error> {
        if refresh::is_late(ends.row.as_ref()) {
            return Ok(Vec::new());
        }
        let recorded = ends.state.copied_tables().await?;
        let unfinished: Vec<TableName> = recorded
            .iter()
            .filter(|table| {
                let key = (table.schema.clone(), table.table.clone());
                !table.finished && table.replaced.is_none() && !refused.contains(&key)
            })
            .map(|table| TableName::new(&table.schema, &table.table))
            .collect();
        let jobs = self.jobs(ends, |table| unfinished.contains(&table.name))?;
        let mut copied = Vec::new();
        if !jobs.is_empty() {
            let exported = self.late_snapshot(&ends.source.session, &ends.state).await?;
            tracing::info!(subscription = %self.settings.subscription, "copying {} unfinished tables", jobs.len());
            self.status.set_phase(Phase::Copying);
            copied = self.copy(&exported, jobs, false).await?;
            exported.close().await;
        }
        Ok(copied)
    }

    /// Has the target know that tables take part no longer which could not be decoded; see `wal_source::left_out`.
    async fn leave_out(&self, ends: &Ends, past: &mut Past) -> Result<(), Error> {
        while let Some(refused) = past.refused.last() {
            let table = TableKey::clone(&refused.published_as);
            // Without a copy, nothing would say later that changes are missing.
            ends.state.copy_again(std::slice::from_ref(&table), !self.settings.copy_data).await?;
            tracing::warn!(
                subscription = %self.settings.subscription,
                "{refused}. Its changes are left out from here on, and it is copied again once it can be decoded"
            );
            past.refused_before.insert(table);
            past.refused.pop();
        }
        Ok(())
    }

    /// Published tables that `wanted` chooses, matched with the target's.
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

    /// Copies tables under one snapshot; `joins_later`: while others stream.
    /// Returns their names.
    pub(crate) async fn copy(
        &self,
        exported: &Exported,
        jobs: Vec<CopyJob>,
        joins_later: bool,
    ) -> Result<Vec<TableName>, Error> {
        let settings = self.settings;
        let copied = jobs.iter().map(|job| job.table().name.clone()).collect();
        let oids = jobs.iter().map(|job| (job.table().name.clone(), job.table().oid)).collect();
        let snapshot =
            copy::Snapshot { name: exported.snapshot_name.clone(), consistent_point: exported.since.lsn };
        let options = copy::Options {
            connections: settings.max_sync_workers_per_subscription,
            split_bytes: settings.copy_split_bytes,
            synchronous_commit: settings.synchronous_commit.as_str().to_owned(),
            allow_triggers: settings.allow_triggers,
            application_name: settings.subscription.application_name("copy"),
        };
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
            }),
        };
        copy::copy_tables(attempt, jobs, self.stop).await?;
        Ok(copied)
    }

    async fn joined(&self, ends: &Ends) -> Result<JoinedTables, Error> {
        let recorded = ends.state.copied_tables().await?;
        let finished = recorded.into_iter().filter(|table| table.finished);
        let joined = finished.filter_map(|table| Some(((table.schema, table.table), table.since?)));
        Ok(joined.collect())
    }

    /// Attaches the target, starts the stream where it left off, and lets it
    /// flow until something ends it.
    async fn stream(
        &self,
        mut ends: Ends,
        joined: JoinedTables,
        (backoff, past): (&mut Backoff, &Past),
    ) -> Result<(), Error> {
        let settings = self.settings;
        // From here on a `skip` is noticed; what was said before is in the row.
        let mut skip = self.status.skip_lsn();
        skip.mark_unchanged();
        let mut row = ends.state.load().await?.ok_or_else(|| Error::refused(Refusal::Dropped))?;
        let mut options = self.apply_options(&ends, row.skip_lsn.take()).await?;
        if options.unconverted {
            ends.source.wire.query("SET client_encoding TO 'SQL_ASCII'").await?;
        }
        let binary = options.binary;
        let restart = match settings.source_mode {
            SourceMode::Logical => None,
            SourceMode::Wal => Some(self.wal(&ends).restart()?),
        };
        options.copied_from = self.copied_from(&ends, restart.as_ref()).await?;
        let kind = StreamKind { binary, adopted: ends.adopted.is_some() };
        let copied = furthest(&joined);
        let takes_part: Vec<TableKey> = joined.keys().cloned().collect();
        let target = Target::attach(&settings.target, &ends.state, &options, joined).await?;
        self.status.set_backends(target.backends());
        let reached = target.reached();
        let Ends { source: SourceEnd { wire, session, .. }, state, .. } = &mut ends;
        let start = history::start_position(wire, session, state, &row, (reached, copied)).await?;
        let progress = Arc::new(Progress::starting_at(start));
        self.tell_positions(&ends, restart.as_ref(), &progress).await?;
        let tables = (takes_part.into_iter().collect(), past.refused_before.clone());
        let decoding = self.decode_from(&ends, restart, (&progress, binary), tables).await?;
        let SourceEnd { wire, identity, slot_name, session, .. } = ends.source;
        drop(session);
        let (stream, beside): (Box<dyn MessageSource>, Option<Beside>) = match decoding {
            None => (Box::new(Logical::start(settings, wire, slot_name, (start, binary)).await?), None),
            Some(begun) => {
                let wire = (wire, (identity.system_id, identity.timeline));
                let figures = self.status.decoded();
                let (stream, beside) = WalSource::start(settings, figures, wire, slot_name, begun).await?;
                (Box::new(stream), Some(beside))
            }
        };
        let spool = Watched::open(settings.spool_dir(), self.status.spooling()).map_err(Kind::Spool)?;
        self.status.set_phase(Phase::Streaming);
        self.tell_start(start, binary);
        backoff.reset();
        let (blocks, inputs) = queue();
        let (joins, join_requests) = apply::joins();
        let stopping = CancellationToken::new();
        let counters = Arc::clone(self.status.counters());
        let applying = apply::apply(
            target,
            apply::Feed { blocks: inputs, joins: join_requests, spool: Box::new(spool) },
            options,
            Arc::clone(&progress),
            counters,
            stopping.clone(),
        );
        let flow = Flow {
            stream,
            beside,
            applying: AbortOnDrop(tokio::spawn(applying)),
            progress,
            state: ends.state,
            joins,
            kind,
        };
        flow.run(self, blocks, stopping, skip).await
    }

    async fn apply_options(&self, ends: &Ends, skip_lsn: Option<Lsn>) -> Result<apply::Options, Error> {
        let settings = self.settings;
        let binary = self.binary(ends).await?;
        Ok(apply::Options {
            subscription: settings.subscription.clone(),
            binary,
            types: (binary && settings.binary == Binary::Auto)
                .then(|| Arc::new(source_types(&ends.source.published))),
            synchronous_commit: settings.synchronous_commit.as_str().to_owned(),
            batch_rows_max: settings.batch_rows_max,
            batch_bytes_max: settings.batch_bytes_max,
            // RULES F3: a commit timestamp belongs to one source transaction.
            keep_transactions: match settings.keep_commit_timestamps {
                Some(keep) => keep,
                None => ends.state.tracks_commit_timestamps().await?,
            },
            exact_only: settings.exact_only,
            allow_triggers: settings.allow_triggers,
            unconverted: unconverted(ends),
            workers: settings.max_parallel_apply_workers_per_subscription,
            commit_order: settings.commit_order,
            streaming: settings.streaming,
            copied_from: apply::CopiedFrom::default(),
            skip_lsn,
            gate: Arc::clone(self.status.gate()),
            prefetch: Some(apply::PrefetchOptions {
                target: settings.target.clone(),
                subscription: settings.subscription.clone(),
                mode: settings.prefetch,
                workers: settings.max_parallel_prefetch_workers_per_subscription,
                binary,
            }),
        })
    }
}

/// Nothing that was copied is of later.
fn furthest(joined: &JoinedTables) -> Lsn {
    joined.values().map(|since| since.lsn).max().unwrap_or(Lsn::INVALID)
}

/// What binary is decided by.
fn source_types(published: &[PublishedTable]) -> apply::SourceTypes {
    let columns = |table: &PublishedTable| {
        table.columns.iter().map(|column| (column.name.clone(), column.data_type.oid)).collect()
    };
    let key = |name: &TableName| (name.schema.clone(), name.name.clone());
    published.iter().map(|table| (key(&table.name), columns(table))).collect()
}

/// Nothing is known of the bytes of either database, and so nothing may be
/// converted; the first copy decides alike.
fn unconverted(ends: &Ends) -> bool {
    const UNKNOWN: &str = "SQL_ASCII";
    let target = ends.state.session().parameter("server_encoding");
    ends.source.wire.parameter("server_encoding") == Some(UNKNOWN) && target.as_deref() == Some(UNKNOWN)
}

/// A published column that the target computes could be copied past, but none
/// of its changes could be applied.
pub(crate) fn refuse_generated(table: &PublishedTable, target: &TargetTable) -> Result<(), Error> {
    let computed = |name: &str| target.column(name).is_some_and(|found| found.generated != Generated::No);
    match table.columns.iter().find(|column| computed(&column.name)) {
        None => Ok(()),
        Some(column) => {
            Err(Error::refused(Refusal::Generated { table: table.name.clone(), column: column.name.clone() }))
        }
    }
}

/// Everything in motion.
struct Flow {
    stream: Box<dyn MessageSource>,
    /// Of WAL that is decoded here.
    beside: Option<Beside>,
    applying: AbortOnDrop<Result<(), apply::Error>>,
    progress: Arc<Progress>,
    state: State,
    joins: Joins,
    kind: StreamKind,
}

impl Flow {
    async fn run(
        mut self,
        attempt: &Attempt<'_>,
        blocks: mpsc::Sender<Block>,
        stopping: CancellationToken,
        mut skip: watch::Receiver<Lsn>,
    ) -> Result<(), Error> {
        let heard = Arc::<Heard>::default();
        let (asks, judge, followed, left) = match self.beside.take() {
            Some(Beside { asks, judge, followed, left_slot }) => {
                (Some(asks), Some(judge), followed, left_slot)
            }
            None => (None, None, None, None),
        };
        let refreshing = Refreshing::new(attempt, &self.state, self.joins.clone(), (self.kind, judge));
        let lost = self.state.session().ended();
        tokio::select! {
            ended = self.stream.run(&self.progress, &heard, &blocks, &stopping) => {
                // The queue was refused: the applier has something to say.
                ended?;
                return Err(applier_end((&mut self.applying.0).await));
            }
            ended = &mut self.applying.0 => return Err(applier_end(ended)),
            failed = apply::flush_continuously(&self.state, &self.progress) => {
                let Err(error) = failed else { return Ok(()) };
                return Err(self.reason(error).await);
            }
            // Also while nothing is asked.
            error = lost => return Err(self.reason(error.into()).await),
            failed = wal_source::compare_catalogs(attempt.settings, attempt.status, asks) => {
                let Err(error) = failed;
                return Err(error);
            }
            failed = wal_source::watch_identity(attempt.settings, followed) => {
                let Err(error) = failed;
                return Err(error);
            }
            never = wal_source::drop_left_slot(attempt.settings, left, &self.progress) => match never {},
            silence = attempt.status.target_silent() => return Err(Kind::Silent(silence).into()),
            () = carry_figures(attempt.status, &heard) => {}
            () = attempt.stop.cancelled() => {}
            // A table needs another stream: the next attempt knows.
            () = refreshing.run() => {}
            // A transaction is to be skipped: the next attempt knows.
            _ = skip.changed() => {}
        }
        // In order: no more input, the batch in hand, its flush, the report.
        stopping.cancel();
        drop(blocks);
        if let Ok(Err(error)) = (&mut self.applying.0).await {
            tracing::warn!("while stopping: {}", base::with_causes(&error));
            return Ok(());
        }
        apply::flush_now(&self.state, &self.progress).await?;
        // The source may be gone; it will be told next time.
        let _ = tokio::time::timeout(FAREWELL, self.stream.finish(&self.progress)).await;
        Ok(())
    }

    /// A crash of the target ends all sessions, and only to who met the reason the server says it: mostly
    /// who writes.
    async fn reason(&mut self, lost: apply::Error) -> Error {
        if lost.is_unexplained()
            && let Ok(ended) = tokio::time::timeout(LAST_WORDS, &mut self.applying.0).await
        {
            return applier_end(ended);
        }
        lost.into()
    }
}

fn applier_end(ended: Result<Result<(), apply::Error>, tokio::task::JoinError>) -> Error {
    match ended {
        Ok(Err(error)) => error.into(),
        Ok(Ok(())) => Error::refused(Refusal::ApplierEnded),
        Err(error) => Error::refused(Refusal::ApplierBroke(error.to_string())),
    }
}

/// Carries figures to the status, for ever.
async fn carry_figures(status: &Status, heard: &Heard) {
    loop {
        tokio::time::sleep(STATUS_INTERVAL).await;
        if let Some(time) = heard.last_commit_time() {
            status.note_received_commit(time);
        }
        let counters = status.counters();
        if let Some((lsn, time)) = counters.last_part_handed() {
            status.note_part_handed(lsn, time);
        }
        if let Some((lsn, time)) = counters.last_handed() {
            status.note_handed(lsn, time);
        }
        counters.conflict_log.tell_rest(false);
        if let Some(time) = counters.last_commit_time() {
            status.note_applied_commit(time);
        }
        status.settle_consistency();
    }
}
