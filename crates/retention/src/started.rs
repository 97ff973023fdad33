//! When a server was started. As long as it runs, its WAL goes one way, and its positions mean one
//! thing.

use base::PgTimestamp;
use client::Session;

/// In microseconds, as [`PgTimestamp`] counts them.
pub(crate) const STARTED: &str = "\
SELECT (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time() - '2000-01-01 00:00:00+00'::timestamptz) * 1000000)::int8";

/// When the server of a session was started.
///
/// # Errors
/// The session failed.
pub async fn started(session: &Session) -> Result<PgTimestamp, client::Error> {
    Ok(PgTimestamp(session.query_once(STARTED).await?.get(0)))
}
