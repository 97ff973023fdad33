//! Where the source's WAL ends, asked once a second.
//!
//! The stream cannot say that, because a logical walsender reports only what it has decoded. So the
//! receive lag needs a question to the server, on a session of its own. That session must not
//! disturb the pipeline. If it fails, the pipeline goes on, the lag keeps its last figure, and the
//! question is asked again later.

mod limits;
mod target;

use std::sync::Arc;
use std::time::Duration;

use client::Session;
use tokio_util::sync::CancellationToken;

use crate::{Settings, Status};

pub use limits::watch_limits;
pub use target::watch_target;

/// A server's end of WAL, for a primary or a standby.
pub const WAL_END: &str = "\
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
             ELSE pg_catalog.pg_current_wal_flush_lsn() END)::text";

/// Time between two questions.
const INTERVAL: Duration = Duration::from_secs(1);

/// Wait after a failure; the pipeline learns by itself that a source is away.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Longest wait for an answer before the session is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps the source's end of WAL in `status` up to date until `stop`.
pub async fn watch_source(settings: Arc<Settings>, status: Arc<Status>, stop: CancellationToken) {
    let asking = async {
        loop {
            let error = ask_until_error(&settings, &status).await;
            tracing::debug!("could not ask the source for the end of its WAL: {error}");
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    };
    tokio::select! {
        () = asking => {}
        () = stop.cancelled() => {}
    }
}

async fn ask_until_error(settings: &Settings, status: &Status) -> client::Error {
    let name = settings.subscription.application_name("monitor");
    let session: Session = match client::connect(&settings.source, &name, &[]).await {
        Ok(session) => session,
        Err(error) => return error,
    };
    loop {
        match tokio::time::timeout(ANSWER_TIMEOUT, session.query_once(WAL_END)).await {
            Ok(Ok(row)) => {
                let end = row.get::<_, Option<String>>(0).and_then(|text| text.parse().ok());
                if let Some(lsn) = end {
                    status.note_source_end(lsn);
                }
            }
            Ok(Err(error)) => return error,
            Err(_) => tracing::debug!("the source did not answer within {ANSWER_TIMEOUT:?}"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
