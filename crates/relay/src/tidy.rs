//! Keeps what has moved, and lets go of what nobody needs.
//!
//! ```text
//! WAL  |---- goes ----|---------------------- stays ---------------------->
//!                     least of: anchors that slots name; the publisher's latest redo
//! ```
//! WAL that stays may be in an archive only: see `trim`.
//!
//! The order is that of rule L2, point 3: slots, anchors, WAL. A database without a slot has no
//! anchors. Its next slot begins with a look at the catalogs, and that needs WAL from the redo
//! position of the publisher's latest checkpoint on.
//!
//! A slot that is too far behind or too long without a reader is invalidated, as on a server.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, with_causes};

use crate::session::Context;

/// Between two rounds.
const ROUND: Duration = Duration::from_secs(5);
/// No connection has this number.
const NOBODY: u32 = 0;
/// Rounds between two looks at the publisher's checkpoint.
const ROUNDS_OF_REDO: u32 = 6;

/// Goes round until the relay stops.
pub(crate) async fn tidy(context: Arc<Context>) {
    let mut tick = tokio::time::interval(ROUND);
    let (mut round, mut redo) = (0_u32, Lsn::INVALID);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = context.stop.cancelled() => return,
        }
        if round.is_multiple_of(ROUNDS_OF_REDO) {
            redo = ask(&context).await.unwrap_or(redo);
        }
        round += 1;
        let context = Arc::clone(&context);
        // Files are written and removed.
        let _ = tokio::task::spawn_blocking(move || once(&context, redo)).await;
    }
}

/// Asks the publisher for its latest checkpoint, and drops slots of databases that it does not have
/// any more, as a server does when a database is dropped.
async fn ask(context: &Context) -> Option<Lsn> {
    // Before the question: a database of a slot that is made meanwhile may be new.
    let unused = context.slots.unused();
    let found = async {
        let session = client::connect(context.upstream.publisher(), "pgsluice relay", &[]).await;
        let session = session.map_err(|error| with_causes(&error))?;
        let rows = session.query("SELECT oid FROM pg_catalog.pg_database", &[]).await;
        let rows = rows.map_err(|error| with_causes(&session.error(error)))?;
        let known: HashSet<u32> = rows.iter().map(|row| row.get(0)).collect();
        for (name, database) in unused.iter().filter(|(_, database)| !known.contains(database)) {
            match context.slots.remove(name, NOBODY) {
                Ok(()) => tracing::warn!(
                    "replication slot \"{name}\" was dropped, because the publisher has no database with OID \
                     {database} any more"
                ),
                Err(told) => tracing::debug!("replication slot \"{name}\" of no database stays: {told}"),
            }
        }
        source::slot::latest_redo(&session).await.map_err(|error| with_causes(&error))
    };
    match found.await {
        Ok(redo) => Some(redo),
        Err(why) => {
            tracing::debug!("the publisher's latest checkpoint is not known: {why}");
            None
        }
    }
}

fn once(context: &Context, redo: Lsn) {
    let written = context.received.written();
    for (name, why) in context.slots.invalidate(context.retention, written) {
        tracing::warn!("replication slot \"{name}\" was invalidated: {why}");
    }
    // What is needed is what the files say, so that it goes on where one cannot be written: on a
    // full disk, only what goes here makes room.
    if let Err(told) = context.slots.keep_all() {
        tracing::warn!("{told}");
    }
    match context.databases.tidy(|database| context.slots.least_restart_in(database)) {
        // Before the first look at the checkpoint, everything stays.
        Ok(needed) if redo.is_valid() => {
            context.received.needs_from(needed.map_or(redo, |lsn| lsn.min(redo)))
        }
        Ok(_) => {}
        Err(error) => tracing::warn!("cannot tidy up: {error}"),
    }
}
