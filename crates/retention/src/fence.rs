//! The fence of a look-up (rule D1): a position behind everything that had committed when it was
//! asked for, and that the target has flushed.
//!
//! Capture sees flushed WAL only. A deletion that committed asynchronously may be visible before it
//! is flushed, so a flush is forced. A commit that only has a transaction id does not force one.

use base::Lsn;
use client::Session;
use source::end::{end_of_wal, flush};

/// The first major whose `pg_logical_emit_message` flushes.
const FLUSHES_SINCE: u32 = 17;
const FLUSHING_MESSAGE: &str = "SELECT pg_catalog.pg_logical_emit_message(false, 'pgsluice', '', true)";

/// Returns a fence behind everything that `session` could see before this call.
///
/// # Errors
/// The session failed.
pub async fn fence(session: &Session) -> Result<Lsn, client::Error> {
    if session.version().major() >= FLUSHES_SINCE {
        let row = session.query_once(FLUSHING_MESSAGE).await?;
        return Ok(Lsn::new(row.get::<_, tokio_postgres::types::PgLsn>(0).into()));
    }
    // The record that forces the flush lies behind this position.
    let end = end_of_wal(session).await?;
    flush(session).await?;
    Ok(end)
}
