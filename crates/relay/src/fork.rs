//! The publisher went on from an earlier place than the relay has: what is behind is taken back.
//!
//! ```text
//! old timeline  -----fork--------- received, perhaps sent
//! new timeline          '--------------------------->
//! ```
//! A subscriber that was sent more than the new timeline has of the old one cannot follow: its slot
//! is invalidated, with both positions (rule L2, point 8). The others enter again. If the relay was
//! started since it sent something, it does not know how far; then it compares with the place that
//! the subscriber names when it comes. With `synchronized_standby_slots`, nothing behind the fork
//! was sent to anybody.
//!
//! The order is that of the other removals: streams end, slots, anchors, WAL. After a crash in
//! between, the same is found again.

use std::time::Duration;

use base::Lsn;

use crate::session::Context;
use crate::told::Told;

/// How long streams may take to end.
const STREAMS_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// The publisher left its timeline at `fork`, and this process has received nothing behind it. An
/// earlier one may have: WAL is received again from the beginning of a segment.
///
/// # Errors
/// As [`take_back`].
pub(crate) async fn leave_timeline(context: &Context, fork: Lsn) -> Result<(), Told> {
    // An earlier attempt may have ended streams, and failed then.
    let is_begun = context.is_between_epochs();
    if is_begun || context.databases.have_more_than(fork) || !context.slots.pass(fork) {
        tracing::warn!("the publisher left its timeline at {fork}; the relay takes back what it had of more");
        take_back(context, fork).await?;
        context.begin_epoch();
        return Ok(());
    }
    context.slots.keep_all()
}

/// Lets go of everything behind `fork` but the WAL itself. Streams begin again once the caller says
/// that the WAL has gone, too ([`Context::begin_epoch`]).
///
/// # Errors
/// A file cannot be written or removed; or a stream does not end. It can be tried again.
pub(crate) async fn take_back(context: &Context, fork: Lsn) -> Result<(), Told> {
    let running = context.senders.running().into_iter();
    let sent: Vec<(String, Lsn)> = running.map(|stream| (stream.slot, stream.sent.shown().sent)).collect();
    let tell = |invalidated: Vec<(String, String)>| {
        for (name, why) in invalidated {
            tracing::warn!("replication slot \"{name}\" was invalidated: {why}");
        }
    };
    tell(context.slots.leave_behind(fork, &sent));
    context.end_epoch();
    let ended = async {
        while !context.senders.running().is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(STREAMS_MAX, ended).await.is_err() {
        return Err(Told::internal("a stream has not ended since the publisher failed over"));
    }
    // What was confirmed while the streams ended.
    tell(context.slots.leave_behind(fork, &[]));
    context.slots.keep_all()?;
    context.databases.leave_behind(fork).await.map_err(|error| Told::internal(&error.to_string()))
}
