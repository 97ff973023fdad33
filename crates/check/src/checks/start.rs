//! Whether the subscription runs, and what its next start would do.

use crate::publisher::Publisher;
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

/// Whether the next start will copy tables.
pub(super) fn copies(wanted: &Wanted, target: &Subscriber) -> bool {
    match &target.state.subscription {
        Some(subscription) if subscription.begun => subscription.unfinished > 0,
        _ => wanted.copy_data,
    }
}

/// Whether the subscription runs at this moment, and so holds its slots and sessions already. The
/// lock on the target says so, because a member of a shared pass uses no slot, and a subscription
/// that only reads an archive has none. While a native subscription that is to be adopted uses the
/// slot, its walsender counts as ours, too.
pub(super) fn is_running(source: &Publisher, target: &Subscriber) -> bool {
    target.state.is_running || source.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some())
}

/// Whether a start would look for tables to create.
pub(super) fn creates_schema(wanted: &Wanted, target: &Subscriber) -> bool {
    wanted.create_schema.is_some() && !target.state.is_begun()
}
