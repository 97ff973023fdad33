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

/// Whether the subscription runs at this moment, and so holds its slots and sessions already.
pub(super) fn is_running(source: &Publisher) -> bool {
    source.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some())
}

/// Whether a start would look for tables to create.
pub(super) fn creates_schema(wanted: &Wanted, target: &Subscriber) -> bool {
    wanted.create_schema.is_some() && !target.state.is_begun()
}
