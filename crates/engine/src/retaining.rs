//! Remembers the target's deletions beside a subscription, for as long as the subscription runs.
//!
//! Capture and the horizon outlive attempts, because deletions that happen between two attempts
//! count, too. Neither ever ends the subscription.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::Lsn;
use retention::{Applied, AskApplied, Retention};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::{Direction, Settings, Status};

/// How long the memory may take to be closed in order.
const FAREWELL: Duration = Duration::from_secs(5);

/// What runs beside the subscription; nothing where deletions are not remembered.
pub(crate) struct Retaining {
    stop: CancellationToken,
    tasks: Vec<AbortOnDropHandle<()>>,
    /// The subscription has begun to copy, in this process or an earlier one.
    has_begun: AtomicBool,
    /// Deletions are remembered.
    captures: bool,
}

impl Retaining {
    /// Begins to remember, or removes what an earlier process has left of it.
    pub(crate) fn start(
        settings: &Settings,
        status: &Arc<Status>,
        direction: Option<&Direction>,
    ) -> Retaining {
        let stop = CancellationToken::new();
        let Some(bounds) = settings.retain_deletions else {
            let tasks = if settings.deletions_dir().exists() { vec![removing(settings)] } else { Vec::new() };
            return Retaining { stop, tasks, has_begun: AtomicBool::new(true), captures: false };
        };
        let retention = Retention::new(retention::Settings {
            subscription: settings.subscription.clone(),
            target: settings.target.clone(),
            shared_slot: direction.and_then(Direction::shared_slot),
            dir: settings.deletions_dir(),
            bounds,
            status_interval: settings.wal_receiver_status_interval,
            interval: settings.retention_interval,
            timeout: settings.wal_receiver_timeout,
        });
        status.set_retention(Arc::clone(&retention));
        let capturing = retention::run(Arc::clone(&retention), stop.clone());
        let horizon = retention::advance_horizon(
            retention,
            settings.source.clone(),
            applied(Arc::clone(status)),
            stop.clone(),
        );
        let tasks = [tokio::spawn(capturing), tokio::spawn(horizon)].map(AbortOnDropHandle::new);
        Retaining { stop, tasks: tasks.into(), has_begun: AtomicBool::new(false), captures: true }
    }

    /// Notes that the subscription has begun to copy.
    pub(crate) fn has_begun(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// Ends in order, so that the next start finds everything. If the subscription `is_refused` and
    /// has never begun, there may be no next start, and nothing is left: a slot on the target would
    /// keep WAL for nobody.
    pub(crate) async fn finish(self, settings: &Settings, is_refused: bool) {
        let leaves_nothing = is_refused && self.captures && !self.has_begun.load(Ordering::Relaxed);
        self.stop.cancel();
        let ended = async {
            for task in self.tasks {
                // Only a panic breaks it, and the subscription has ended anyway.
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(FAREWELL, ended).await;
        if leaves_nothing {
            let _ = tokio::time::timeout(FAREWELL, removing(settings)).await;
        }
    }
}

/// Removes the slot and the files.
fn removing(settings: &Settings) -> AbortOnDropHandle<()> {
    let (target, name, dir) =
        (settings.target.clone(), settings.subscription.clone(), settings.deletions_dir());
    AbortOnDropHandle::new(tokio::spawn(async move {
        match retention::remove(&target, &name, &dir).await {
            Ok(()) => {
                tracing::info!(subscription = %name, "removed what was remembered of the target's deletions");
            }
            Err(error) => tracing::warn!(
                subscription = %name,
                "{}: {}; it is tried again at the next start",
                dir.display(),
                base::with_causes(&error)
            ),
        }
    }))
}

/// What the target has of the publisher's WAL. Nothing counts while no stream is open.
fn applied(status: Arc<Status>) -> AskApplied {
    Arc::new(move || {
        let progress = status.progress();
        let (joined, is_joining) = status.tables();
        let mut of = DefaultHasher::new();
        (status.connects(), joined).hash(&mut of);
        // A target that was restored, or failed over, does not have what the stream has applied on
        // the server before.
        let captured = status.retention().map(|retention| retention.captures_from());
        let is_of_captured = captured == status.target_started();
        let is_known = status.streams() && is_of_captured;
        let flushed = if is_known { progress.snapshot().flushed } else { Lsn::INVALID };
        Applied { flushed, is_joining, generation: of.finish() }
    })
}
