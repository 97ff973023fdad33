//! How far the standbys of physical slots are.
//!
//! A standby may be promoted without having received all of its primary's WAL. Who hands over
//! changes only behind the standbys can follow that (rule W3). A physical slot stands where its
//! standby has reported that it flushed.

use base::Lsn;
use client::Session;

use crate::Error;
use crate::slot::{SlotState, slot_state};

/// The standby that is furthest behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Late {
    /// Everything before was flushed by all standbys.
    pub have: Lsn,
    /// Which slot is there, and what may be wrong with it.
    pub why: String,
}

/// The standby of these physical slots that is furthest behind. A slot that is missing or was never
/// used has nothing.
///
/// # Errors
/// The session fails.
pub async fn latest(session: &Session, names: &[String]) -> Result<Late, Error> {
    let mut last: Option<Late> = None;
    for name in names {
        let late = late(name, slot_state(session, name).await?.as_ref());
        if last.as_ref().is_none_or(|last| late.have < last.have) {
            last = Some(late);
        }
    }
    Ok(last.unwrap_or(Late { have: Lsn::INVALID, why: String::new() }))
}

/// How far the standby of slot `name` has flushed.
fn late(name: &str, found: Option<&SlotState>) -> Late {
    let nothing = |why: &str| Late { have: Lsn::INVALID, why: format!("slot \"{name}\" {why}") };
    let Some(slot) = found else { return nothing("does not exist on the source") };
    if !slot.is_physical() {
        return nothing("is a logical one");
    }
    if slot.is_lost() {
        return nothing("has lost WAL");
    }
    let Some(have) = slot.restart_lsn else { return nothing("was never used by a standby") };
    let user = if slot.active_pid.is_some() { "" } else { ", and no standby uses it" };
    Late { have, why: format!("slot \"{name}\" is at {have}{user}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_says_nothing_of_a_standby_holds_everything_up() {
        let physical = SlotState {
            plugin: None,
            database: None,
            temporary: false,
            active_pid: Some(1),
            confirmed_flush: None,
            restart_lsn: Some(Lsn::new(0x100)),
            wal_status: Some("reserved".to_owned()),
            safe_wal_size: None,
            invalidation: None,
        };
        let told = |slot: Option<SlotState>| {
            let Late { have, why } = late("s", slot.as_ref());
            (have.as_u64(), why)
        };
        assert_eq!(told(Some(physical.clone())), (0x100, "slot \"s\" is at 0/100".to_owned()));
        let idle = told(Some(SlotState { active_pid: None, ..physical.clone() }));
        assert_eq!((idle.0, idle.1.contains("no standby uses it")), (0x100, true), "it keeps what it had");
        let silent = [
            (None, "does not exist"),
            (Some(SlotState { restart_lsn: None, ..physical.clone() }), "never used"),
            (Some(SlotState { invalidation: Some("wal_removed".to_owned()), ..physical.clone() }), "lost"),
            (Some(SlotState { plugin: Some("pgoutput".to_owned()), ..physical }), "logical"),
        ];
        for (slot, why) in silent {
            let told = told(slot);
            assert!(told.0 == 0 && told.1.contains(why), "{told:?}");
        }
    }
}
