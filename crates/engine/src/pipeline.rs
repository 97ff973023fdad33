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
//! | slot, snapshot, copy | `first_copy`, `snapshot`, `target_clock` |
//! | wait for the other direction of a pair | `turns` |
//! | repair what failed before: another timeline, catalogs that were lost | `beginning`, `relook` |
//! | build the applier's options | `apply_options`, `form`, `copied_from` |
//! | find where the stream begins; run all that flows beside it | `beginning`, `flow` |

mod apply_options;
mod attempt;
mod beginning;
mod copied_from;
mod first_copy;
mod flow;
mod form;
mod look;
mod relook;
mod snapshot;
mod target_clock;
mod turns;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use base::Lsn;
use source::end::SourceEnd;
use source::publication::TableName;
use state::State;
use tokio_util::sync::CancellationToken;
use wal_source::Passes;

pub(crate) use self::attempt::Attempt;
use self::attempt::{Ends, Past};
pub use self::copied_from::learn_at_adoption;
use self::first_copy::is_over;
pub(crate) use self::first_copy::refuse_generated;
pub(crate) use self::form::may_be_binary;
use crate::error::{Error, Kind};
use crate::repeated::tell_when_over;
use crate::retaining::Retaining;
use crate::retry::{Backoff, Verdict, verdict};
use crate::status::{Failing, Pause};
use crate::{Direction, Phase, Settings, Status, preflight, statistics, target_schema};

/// Runs one subscription until `stop`. Subscriptions that get the same `passes`, follow the same
/// server and use [`crate::SourceMode::Wal`] share a pass over its WAL. `direction` is given if
/// another pipeline of this process replicates the other way.
///
/// # Errors
/// An error that another attempt cannot cure; see [`Error`].
pub async fn run(
    settings: Arc<Settings>,
    status: Arc<Status>,
    passes: Arc<Passes>,
    direction: Option<Direction>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let beside = OnceLock::new();
    let ended = run_attempts(Arc::clone(&settings), status, passes, direction, (&beside, stop)).await;
    if let Some(retaining) = beside.into_inner() {
        retaining.finish(&settings, ended.is_err()).await;
    }
    ended
}

async fn run_attempts(
    settings: Arc<Settings>,
    status: Arc<Status>,
    passes: Arc<Passes>,
    direction: Option<Direction>,
    (beside, stop): (&OnceLock<Retaining>, CancellationToken),
) -> Result<(), Error> {
    let mut backoff = Backoff::new(settings.wal_retrieve_retry_interval);
    let mut skip = status.skip_lsn();
    let mut past = Past::default();
    let mut past_applied = Lsn::INVALID;
    let of_wal = Arc::new(settings.of_wal(direction.as_ref().and_then(Direction::kept_beside)));
    while !stop.is_cancelled() {
        status.set_phase(Phase::Starting);
        let attempt = Attempt {
            settings: &settings,
            of_wal: &of_wal,
            status: &status,
            passes: &passes,
            direction: direction.as_ref(),
            beside,
            stop: &stop,
        };
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
        status.set_waiting(Pause::Retry(Instant::now() + wait));
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

impl Attempt<'_> {
    /// Runs from the first look at both ends to the end of the stream.
    async fn run(&self, backoff: &mut Backoff, past: &mut Past) -> Result<(), Error> {
        self.check_once(past).await?;
        self.status.spooling().check_room()?;
        let (mut ends, must_be_empty) = self.look_in_turn(past).await?;
        // Not before the subscription is this process's: its slot on the target may be another's.
        let retaining =
            self.beside.get_or_init(|| Retaining::start(self.settings, self.status, self.direction));
        if ends.has_begun() {
            retaining.has_begun();
        }
        if ends.row.is_some() {
            ends.state.keep_oids().await?;
        }
        let copied = match ends.has_begun() {
            false => self.begin(&mut ends, must_be_empty).await?,
            true => self.resume(&mut ends, past).await?,
        };
        retaining.has_begun();
        let _validating = target_schema::finish(self.settings, self.status, &ends.state).await?;
        statistics::analyze(self.settings, copied, self.stop);
        if self.has_waited_for_copy(&ends).await? {
            // What was found on both ends is from before the copy.
            return Ok(());
        }
        let joined = self.joined(&ends).await?;
        self.stream(ends, joined, (backoff, past)).await
    }

    /// Checks both ends as `pgsluice check` does, before the first attempt of a process.
    async fn check_once(&self, past: &mut Past) -> Result<(), Error> {
        if !past.checked {
            preflight::before_start(self.settings, self.direction).await?;
            past.checked = true;
        }
        self.direction.inspect(|direction| direction.say_checked());
        Ok(())
    }

    /// Makes the first start: the schema, the slot with its snapshot, the copy. Returns the copied
    /// tables.
    async fn begin(&self, ends: &mut Ends, must_be_empty: bool) -> Result<Vec<TableName>, Error> {
        if let Some(direction) = self.direction {
            direction.other_checked().await?;
        }
        let Ends { state, source, targets, .. } = &mut *ends;
        let SourceEnd { session, published, .. } = source;
        target_schema::create(self.settings, state, session, published, targets).await?;
        self.after_the_slot_of_back(ends, true).await?;
        self.first_copy(ends, must_be_empty).await
    }

    /// Makes a later start: repairs what failed before, and completes the first copy. Returns the
    /// copied tables.
    async fn resume(&self, ends: &mut Ends, past: &mut Past) -> Result<Vec<TableName>, Error> {
        self.judge_timeline(ends).await?;
        self.leave_out(ends, past).await?;
        let is_unfinished = !is_over(ends.row.as_ref());
        self.after_the_slot_of_back(ends, is_unfinished).await?;
        if let Some(cause) = &past.lost {
            self.relook(ends, cause).await?;
            past.lost = None;
        }
        self.copy_unfinished(ends, &past.refused_before).await
    }
}
