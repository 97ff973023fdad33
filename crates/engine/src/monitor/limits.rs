//! Looks at the parts of a pipeline a few times a second while its target is behind.
//!
//! `status` says from these looks which part has no time left. They need a session at each end,
//! which goes soon after the target has caught up. What cannot be asked is left out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{ConnInfo, Session};
use tokio_util::sync::CancellationToken;

use super::ANSWER_TIMEOUT;
use super::target::look_at;
use crate::status::{Sample, Walsender, is_behind};
use crate::{Phase, Settings, Status};

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long sessions stay without being needed.
const STAY: Duration = Duration::from_secs(10);
/// Between two attempts to connect.
const RETRY: Duration = Duration::from_secs(5);

/// What the walsender waits for that sends to us. No row: none does.
const SENDS: &str = "\
SELECT a.wait_event FROM pg_catalog.pg_stat_activity a
WHERE a.backend_type = 'walsender' AND pg_catalog.starts_with(a.application_name, $1)
ORDER BY a.backend_start DESC LIMIT 1";

/// Keeps what limits the pipeline in `status` up to date until `stop`.
pub async fn watch_limits(settings: Arc<Settings>, status: Arc<Status>, stop: CancellationToken) {
    let mut target = End::of(&settings.target);
    let mut source = End::of(&settings.source);
    let name = settings.subscription.application_name("monitor");
    let ours = settings.subscription.application_name("");
    let looking = async {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let streams = matches!(status.phase(), Phase::CatchingUp | Phase::Streaming);
            if !streams || !is_behind(&status.total_lag()) {
                target.rest();
                source.rest();
                continue;
            }
            let pid = status.applying();
            let (target, walsender) = tokio::join!(
                async {
                    let session = target.session(&name).await?;
                    bounded(async { look_at(session, pid?, &ours).await.ok().flatten() }).await
                },
                async {
                    let session = source.session(&name).await?;
                    bounded(sends(session, &ours)).await
                },
            );
            status.limits().note(Sample {
                at: Instant::now(),
                target,
                walsender,
                has_sent: !status.counters().activity.in_hand().is_empty(),
                cpu_us: status.stage_times(),
            });
        }
    };
    tokio::select! {
        () = looking => {}
        () = stop.cancelled() => {}
    }
}

/// A server that is asked now and then.
struct End<'a> {
    info: &'a ConnInfo,
    session: Option<Session>,
    used_at: Instant,
    retry_at: Instant,
}

impl<'a> End<'a> {
    fn of(info: &'a ConnInfo) -> End<'a> {
        End { info, session: None, used_at: Instant::now(), retry_at: Instant::now() }
    }

    fn rest(&mut self) {
        if self.used_at.elapsed() >= STAY {
            self.session = None;
        }
    }

    async fn session(&mut self, name: &str) -> Option<&Session> {
        self.used_at = Instant::now();
        if self.session.as_ref().is_some_and(|session| session.is_closed()) {
            self.session = None;
        }
        if self.session.is_none() {
            if Instant::now() < self.retry_at {
                return None;
            }
            self.retry_at = Instant::now() + RETRY;
            let settings = [("search_path", ""), ("statement_timeout", "10s"), ("jit", "off")];
            let connected = bounded(async { client::connect(self.info, name, &settings).await.ok() }).await;
            self.session = Some(connected?);
        }
        self.session.as_ref()
    }
}

async fn bounded<T>(asking: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::time::timeout(ANSWER_TIMEOUT, asking).await.ok().flatten()
}

async fn sends(session: &Session, ours: &str) -> Option<Walsender> {
    let row = session.query_opt(SENDS, &[&ours]).await.ok()??;
    Some(Walsender::of(row.get::<_, Option<&str>>(0)))
}
