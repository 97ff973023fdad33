//! One subscription, from the first look at both ends until it is stopped.
//!
//! An *attempt* goes through the phases below; when it fails, the retry table says what happens
//! next. Attempts pass on little: counters, and what an attempt learned for the next one.
//! Everything that must outlive the process is stored on the target.
//!
//! ```text
//!   look at both ends -> (bring the schema over) -> make slot and snapshot
//!        -> copy what is not copied -> (create indexes and constraints)
//!        -> attach the origin -> stream: source -> txn -> apply
//!                                   ^------ Progress ------|
//! ```
//! | phase | module |
//! | --- | --- |
//! | look at both ends, and judge what was found | `look` |
//! | slot, snapshot, copy | `first_copy`, `snapshot` |
//! | repair what failed before: another timeline, catalogs that were lost | `beginning`, `relook` |
//! | build the applier's options | `apply_options`, `form`, `copied_from` |
//! | find where the stream begins; run all that flows beside it | `beginning`, `flow` |

mod apply_options;
mod beginning;
mod copied_from;
mod first_copy;
mod flow;
mod form;
mod look;
mod relook;
mod snapshot;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use base::Lsn;
use source::end::SourceEnd;
use source::publication::{TableName, TargetTable};
use state::{State, SubscriptionRow, TableKey};
use tokio_util::sync::CancellationToken;
use txn::Spool;
use wal_source::{Context, OpenSpool, Passes};

pub use self::copied_from::learn_at_adoption;
pub(crate) use self::first_copy::refuse_generated;
pub(crate) use self::form::may_be_binary;
use self::relook::Cause;
use crate::error::{Error, Kind};
use crate::repeated::{Repeated, tell_when_over};
use crate::retry::{Backoff, Verdict, verdict};
use crate::spooling::Watched;
use crate::status::Failing;
use crate::{Phase, Settings, Status, preflight, statistics, target_schema};

/// Runs one subscription until `stop`. Subscriptions that get the same `passes`, follow the same
/// server and use [`crate::SourceMode::Wal`] share a pass over its WAL.
///
/// # Errors
/// An error that another attempt cannot cure; see [`Error`].
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
    let of_wal = Arc::new(settings.of_wal());
    while !stop.is_cancelled() {
        status.set_phase(Phase::Starting);
        let attempt =
            Attempt { settings: &settings, of_wal: &of_wal, status: &status, passes: &passes, stop: &stop };
        let before = past.failing.run();
        let result = tokio::select! {
            result = attempt.run(&mut backoff, &mut past) => result,
            // Only while nothing streams: a stream ends by itself in order.
            () = stop_before_streaming(&stop, &status) => return Ok(()),
            never = tell_when_over(&settings, &status, before, past_applied) => match never {},
        };
        status.counters().conflict_log.tell_rest(true);
        if status.failing().is_none() {
            // This attempt got further than the ones before.
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

/// `disable_on_error`: disables the subscription until somebody enables it.
async fn disable(settings: &Settings, error: Error) -> Result<(), Error> {
    let state = State::open(&settings.target, &settings.subscription).await?;
    state.disable(&error.to_string()).await?;
    Err(Kind::DisabledNow { name: settings.subscription.clone(), error: Box::new(error) }.into())
}

/// What earlier attempts leave to the next one.
#[derive(Default)]
struct Past {
    /// Both ends have been checked.
    checked: bool,
    /// The backend of the last control session.
    control_pid: Option<i32>,
    /// The next changes were written when columns had other types, so values must come as text.
    in_text: bool,
    /// Why the catalogs must be looked at anew.
    lost: Option<Cause>,
    /// Tables that took part and cannot be decoded, until the target has stored that.
    refused: Vec<output::Refused>,
    /// All such tables so far.
    refused_before: BTreeSet<TableKey>,
    /// How those attempts failed.
    failing: Repeated,
}

impl Past {
    /// Records what the next attempt has to do about `error`.
    fn note(&mut self, error: &Error) {
        if let Some(lost) = error.lost() {
            self.lost = Some(Cause { lost, told: base::with_causes(error) });
        }
        self.refused.extend(error.undecodable().cloned());
    }
}

/// One attempt, from connecting to the error or stop that ends it.
pub(crate) struct Attempt<'a> {
    pub(crate) settings: &'a Arc<Settings>,
    /// What the settings ask of WAL that is decoded here.
    pub(crate) of_wal: &'a Arc<wal_source::Settings>,
    pub(crate) status: &'a Arc<Status>,
    pub(crate) passes: &'a Passes,
    pub(crate) stop: &'a CancellationToken,
}

/// Both ends as the attempt found them.
struct Ends {
    source: SourceEnd,
    state: State,
    row: Option<SubscriptionRow>,
    adopted: Option<state::Adoption>,
    targets: HashMap<TableName, TargetTable>,
    /// See [`Past::in_text`].
    in_text: bool,
}

impl Ends {
    /// Whether the slot and the snapshot of the first copy were made.
    fn has_begun(&self) -> bool {
        self.row.as_ref().is_some_and(|row| row.consistent_point.is_some())
    }
}

impl Attempt<'_> {
    /// The context in which the source's WAL is read.
    fn wal<'a>(&'a self, ends: &'a Ends) -> Context<'a> {
        let (dir, spooling) = (self.settings.decoding_dir(), Arc::clone(self.status.spooling()));
        let open_spool: OpenSpool = Arc::new(move || {
            let spool = Watched::open(dir.clone(), &spooling)?;
            Ok(Box::new(spool) as Box<dyn Spool>)
        });
        Context {
            settings: self.of_wal,
            figures: self.status.decoded(),
            open_spool,
            passes: self.passes,
            source: &ends.source,
        }
    }

    /// Runs from the first look at both ends to the end of the stream.
    async fn run(&self, backoff: &mut Backoff, past: &mut Past) -> Result<(), Error> {
        self.check_once(past).await?;
        self.status.spooling().check_room()?;
        let mut ends = self.look(past).await?;
        self.check(&ends)?;
        if ends.row.is_some() {
            ends.state.keep_oids().await?;
        }
        let copied = match ends.has_begun() {
            false => self.begin(&mut ends).await?,
            true => self.resume(&mut ends, past).await?,
        };
        let _validating = target_schema::finish(self.settings, self.status, &ends.state).await?;
        statistics::analyze(self.settings, copied, self.stop);
        let joined = self.joined(&ends).await?;
        self.stream(ends, joined, (backoff, past)).await
    }

    /// Checks both ends as `pgsluice check` does, before the first attempt of a process.
    async fn check_once(&self, past: &mut Past) -> Result<(), Error> {
        if !past.checked {
            preflight::before_start(self.settings).await?;
            past.checked = true;
        }
        Ok(())
    }

    /// Makes the first start: the schema, the slot with its snapshot, the copy. Returns the copied
    /// tables.
    async fn begin(&self, ends: &mut Ends) -> Result<Vec<TableName>, Error> {
        let Ends { state, source, targets, .. } = &mut *ends;
        let SourceEnd { session, published, .. } = source;
        target_schema::create(self.settings, state, session, published, targets).await?;
        self.first_copy(ends).await
    }

    /// Makes a later start: repairs what failed before, and completes the first copy. Returns the
    /// copied tables.
    async fn resume(&self, ends: &mut Ends, past: &mut Past) -> Result<Vec<TableName>, Error> {
        self.judge_timeline(ends).await?;
        self.leave_out(ends, past).await?;
        if let Some(cause) = &past.lost {
            self.relook(ends, cause).await?;
            past.lost = None;
        }
        self.copy_unfinished(ends, &past.refused_before).await
    }
}
