//! Looks at both ends for an attempt, and checks them before anything is changed.

use client::{Replication, Wire};
use source::end::{SOURCE_SETTINGS, SourceEnd};
use source::publication::{self, TableName};
use source::slot;
use state::State;
use wal_source::OtherSource;

use super::attempt::{Attempt, Ends, Past};
use crate::adoption_refuses;
use crate::error::{Error, Kind};
use crate::refusal::Refusal;
use crate::{Origin, SourceMode};

impl Attempt<'_> {
    /// Connects to both ends and reads their state.
    pub(super) async fn look(&self, past: &mut Past) -> Result<Ends, Error> {
        let settings = self.settings;
        let name = &settings.subscription;
        let state = State::open_again(&settings.target, name, past.control_pid).await?;
        past.control_pid = Some(state.session().pid());
        let stream_name = name.application_name("stream");
        let mut wire =
            Wire::connect(&settings.source, &stream_name, Replication::Database, &SOURCE_SETTINGS).await?;
        let identity = slot::identify_system(&mut wire).await?;
        let forks = match settings.source_mode {
            SourceMode::Wal => slot::timeline_forks(&mut wire, identity.timeline).await?,
            SourceMode::Logical => Vec::new(),
        };
        let session =
            client::connect(&settings.source, &name.application_name("look"), &SOURCE_SETTINGS).await?;
        // The connection string may name several hosts, and the two sessions may have reached
        // different ones.
        let is_standby =
            [wire.parameter("in_hot_standby").map(str::to_owned), session.parameter("in_hot_standby")]
                .contains(&Some("on".to_owned()));
        if is_standby && settings.source_mode == SourceMode::Wal {
            return Err(Kind::SourceIsStandby.into());
        }
        let row = state.load().await?;
        let adopted = state::adoption(&**state.session(), name).await;
        let adopted = adopted.map_err(|error| state.session().error(error))?;
        let slot_name = row.as_ref().map_or_else(|| name.slot(), |row| row.slot.clone());
        let slot = slot::slot_state(&session, &slot_name).await?;
        let published = publication::inspect(&session, &settings.publications).await?;
        let names: Vec<TableName> = published.iter().map(|table| table.name.clone()).collect();
        let targets = publication::target_tables(state.session(), &names).await?;
        let in_text = past.in_text;
        let source = SourceEnd { wire, session, identity, slot_name, slot, forks, published };
        Ok(Ends { source, state, row, adopted, targets, in_text })
    }

    /// Whether a missing slot may be made anew.
    fn can_do_without_slot(&self, ends: &Ends) -> bool {
        self.settings.source_mode == SourceMode::Wal && self.wal(ends).can_do_without_slot()
    }

    /// Checks the conditions that must hold before anything is changed.
    pub(super) fn check(&self, ends: &Ends) -> Result<(), Error> {
        let (name, slot) = (self.settings.subscription.clone(), ends.source.slot_name.clone());
        let Some(row) = &ends.row else {
            return match &ends.source.slot {
                None => Ok(()),
                Some(_) => Err(Error::refused(Refusal::SlotOfAnotherTarget { slot, name })),
            };
        };
        if !row.enabled {
            return Err(Kind::Disabled { name, after: row.last_error.clone() }.into());
        }
        if row.source_sysid != ends.source.identity.system_id.to_string() {
            let (made_for, found) = (row.source_sysid.clone(), ends.source.identity.system_id.to_string());
            return Err(Error::refused(Refusal::OtherSource(OtherSource { name, made_for, found })));
        }
        if let Some(adopted) = &ends.adopted
            && let Some(why) = adoption_refuses(adopted, &name, self.settings.origin == Origin::None)
        {
            return Err(why);
        }
        if row.consistent_point.is_none() {
            return Ok(());
        }
        let Some(found) = &ends.source.slot else {
            return match self.can_do_without_slot(ends) {
                true => Ok(()),
                false => Err(Error::refused(Refusal::SlotGone { slot })),
            };
        };
        let is_logical = found.is_pgoutput_of(ends.source.identity.dbname.as_deref());
        let (is_ours, is_other) = match self.settings.source_mode {
            SourceMode::Logical => (is_logical, found.is_physical() && self.settings.restart_file().exists()),
            SourceMode::Wal => (found.is_physical(), is_logical),
        };
        if is_other {
            let made_for = if is_logical { "logical" } else { "wal" };
            return Err(Error::refused(Refusal::OtherMode { name, made_for }));
        }
        if !is_ours {
            let (plugin, database) = (found.plugin.clone(), found.database.clone());
            return Err(Error::refused(Refusal::NotOurSlot { slot, name, plugin, database }));
        }
        if found.is_lost() && !self.can_do_without_slot(ends) {
            return Err(Error::refused(Refusal::SlotLost { slot, why: found.invalidation.clone() }));
        }
        Ok(())
    }
}
