//! Which slot of the target keeps WAL for capture: the subscription's own one, or, in a two-way
//! pair, that of the other direction, which reads the same WAL.
//!
//! ```text
//!                          WAL that capture needs
//!   slot of the other direction  |---------------->    covers it: no slot more is needed
//!   own slot                |--------------------->    until then
//! ```
//! | when | what is done |
//! | --- | --- |
//! | the other direction has no slot yet | wait for it a little, then make the own one |
//! | its slot is behind the WAL that capture needs | it is held there, and the own slot is dropped |
//! | its slot is ahead of that, or lost | it is held, and the own slot keeps WAL until it covers |
//!
//! An attempt that follows one behind the own slot drops that. It tries until nobody uses the slot:
//! one that is left would go on keeping WAL.

use std::time::Duration;

use base::Lsn;
use client::Session;
use source::slot::{self, SlotState};
use tokio::time::Instant;

use crate::error::Error;
use crate::settings::Settings;
use crate::shared_slot::SharedSlot;

/// How long the other direction may take to make its slot, before the own one is made.
const WAIT_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);

/// What keeps WAL for capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    Own,
    Shared,
}

/// The slots as an attempt finds them.
pub(crate) struct Slots {
    own: Option<SlotState>,
    shared: Option<Lsn>,
}

impl Slots {
    /// Looks at both slots, and lets the shared one stay where it is from now on.
    pub(crate) async fn look(settings: &Settings, session: &Session) -> Result<Slots, Error> {
        let own = slot::slot_state(session, &settings.slot()).await?;
        let shared = match &settings.shared_slot {
            Some(shared) => position_of(shared, session).await?,
            None => None,
        };
        Ok(Slots { own, shared })
    }

    /// What has WAL from the segment of `lsn` on; the shared slot if both have.
    pub(crate) fn covers(&self, lsn: Lsn, segment_size: u64) -> Option<Keeps> {
        let segment = |lsn: Lsn| lsn.as_u64() / segment_size;
        let has = |reserved: Lsn| segment(reserved) <= segment(lsn);
        if self.shared.is_some_and(has) {
            return Some(Keeps::Shared);
        }
        let own = self.own.as_ref().filter(|slot| !slot.is_lost()).and_then(|slot| slot.restart_lsn);
        own.is_some_and(has).then_some(Keeps::Own)
    }

    /// Whether the shared slot has WAL from exactly `lsn` on.
    pub(crate) fn is_shared_behind(&self, lsn: Lsn) -> bool {
        self.shared.is_some_and(|shared| shared <= lsn)
    }

    /// Whether there is an own slot.
    pub(crate) fn has_own(&self) -> bool {
        self.own.is_some()
    }
}

/// Drops the own slot unless a walsender uses it, as that of the attempt before may for a moment.
/// Returns whether there is none any more.
pub(crate) async fn drop_own(settings: &Settings, session: &Session) -> Result<bool, Error> {
    let name = settings.slot();
    let Some(own) = slot::slot_state(session, &name).await? else { return Ok(true) };
    if own.active_pid.is_some() {
        return Ok(false);
    }
    Ok(slot::drop_slot(session, &name).await.is_ok())
}

/// Waits a little until the other direction has made its slot.
pub(crate) async fn wait_for_shared(settings: &Settings, session: &Session) -> Result<(), Error> {
    let Some(shared) = &settings.shared_slot else { return Ok(()) };
    let since = Instant::now();
    while slot::slot_state(session, &shared.name).await?.is_none() && since.elapsed() < WAIT_MAX {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// From where on the shared slot keeps WAL; `None` if it does not.
async fn position_of(shared: &SharedSlot, session: &Session) -> Result<Option<Lsn>, Error> {
    let moved = shared.kept.hold();
    let found = slot::slot_state(session, &shared.name).await?;
    // The server may not have heard yet how far it may move.
    let position = found.filter(|slot| !slot.is_lost()).and_then(|slot| slot.restart_lsn);
    Ok(position.map(|at| at.max(moved)))
}
