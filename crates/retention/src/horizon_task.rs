//! Moves the retention horizon: asks the publisher and the applier what [`deletions::Horizon`]
//! wants to know, and tells the memory what can be forgotten.
//!
//! It runs beside capture. While capture is not running, or the publisher is away, the horizon
//! stands, and bounds alone limit the memory.

use std::sync::Arc;
use std::time::Duration;

use base::Lsn;
use client::ConnInfo;
use deletions::{Ask, Dropped, Horizon, HorizonEvent, Question, Reply, Settings};
use source::end::SOURCE_SETTINGS;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::handle::Retention;
use crate::publisher::PublisherEnd;

/// Interval between looks at what the target has flushed.
const POLL: Duration = Duration::from_millis(20);
/// Pause before the publisher is connected to again.
const PAUSE: Duration = Duration::from_secs(1);

/// What the target has of the publisher's WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Everything up to here is flushed on the target.
    pub flushed: Lsn,
    /// Changes of a table wait for its copy.
    pub is_joining: bool,
    /// Another number for each stream and each set of tables. Where it changes, what was found out
    /// before does not hold.
    pub generation: u64,
}

/// Answers what the target has.
pub type AskApplied = Arc<dyn Fn() -> Applied + Send + Sync>;

/// Moves the horizon until `stop` is cancelled.
pub async fn advance_horizon(
    retention: Arc<Retention>,
    publisher: ConnInfo,
    applied: AskApplied,
    stop: CancellationToken,
) {
    let mut told = None;
    while !stop.is_cancelled() {
        let ended = tokio::select! {
            ended = follow(&retention, &publisher, &applied) => ended,
            () = stop.cancelled() => return,
        };
        // The next connection has a horizon of its own: what this one has asked for is dropped.
        if let Err(error) = ended {
            let why = base::with_causes(&error);
            if told.as_ref() != Some(&why) {
                tracing::warn!(
                    subscription = %retention.settings().subscription,
                    "the retention horizon stands: {why}; it is tried again"
                );
            }
            told = Some(why);
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = stop.cancelled() => {}
        }
    }
}

async fn follow(retention: &Retention, publisher: &ConnInfo, applied: &AskApplied) -> Result<(), Error> {
    let settings = retention.settings();
    let name = settings.subscription.application_name("horizon");
    let session = client::connect(publisher, &name, &SOURCE_SETTINGS).await?;
    let publisher = PublisherEnd::new(session);
    let of = Settings {
        status_interval: settings.status_interval,
        duration_max: settings.bounds.duration_max,
        interval: settings.interval,
        segment_size: publisher.segment_size().await?,
    };
    let since = Instant::now();
    let mut horizon = Horizon::new(&of, Duration::ZERO);
    let mut generation = applied().generation;
    let mut recorded = retention.recorded();
    loop {
        let now = since.elapsed();
        if applied().generation != generation {
            generation = applied().generation;
            horizon.tell(HorizonEvent::Dropped(Dropped::NewPipeline), now);
        }
        let Question { number, ask } = horizon.question();
        match ask {
            Ask::Wait(until) => {
                let pause = until.saturating_sub(now);
                tokio::select! {
                    () = tokio::time::sleep(pause) => {
                        horizon.tell(HorizonEvent::Timer, since.elapsed());
                    }
                    changed = recorded.changed() => {
                        if changed.is_err() {
                            return Ok(());
                        }
                        horizon.tell(HorizonEvent::Deletion, since.elapsed());
                        // At most as often as the memory commits.
                        tokio::time::sleep(pause.min(POLL)).await;
                    }
                }
            }
            Ask::Candidate => {
                let candidate = retention.memory().as_ref().and_then(deletions::Memory::candidate);
                horizon.answer(number, Reply::Candidate(candidate), since.elapsed());
            }
            Ask::Activity => {
                let activity = publisher.activity().await?;
                horizon.answer(number, Reply::Activity(&activity), since.elapsed());
            }
            Ask::Position => {
                let (publisher, insert_lsn) = publisher.position().await?;
                horizon.answer(number, Reply::Position { publisher, insert_lsn }, since.elapsed());
            }
            Ask::Flushed(_) => {
                let Applied { flushed, is_joining, generation: now_of } = applied();
                if now_of == generation
                    && let Some(candidate) =
                        horizon.tell(HorizonEvent::Flushed { lsn: flushed, is_joining }, since.elapsed())
                {
                    retention.forget(candidate);
                } else {
                    tokio::time::sleep(POLL).await;
                }
            }
        }
        retention.set_waiting(horizon.waiting());
    }
}
