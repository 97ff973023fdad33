//! Where a stream begins, and who is told.

use source::slot::NewSlot;

use super::*;
use crate::source_end::snapshot_wire;

impl Attempt<'_> {
    /// Tells the status where a stream begins, and what it has to catch up with from there.
    pub(super) async fn tell_positions(
        &self,
        ends: &Ends,
        restart: Option<&Restart>,
        progress: &Arc<Progress>,
    ) -> Result<(), Error> {
        self.status.set_progress(Arc::clone(progress));
        let looked = restart.and_then(|restart| restart.may_have_seen(ends.source.identity.xlogpos));
        let recorded = ends.state.copied_tables().await?;
        // That a table has joined counts when no crash of the target takes it back.
        flush(ends.state.session()).await?;
        self.status.await_consistency(&recorded, looked);
        Ok(())
    }

    /// Where WAL is decoded here, goes on with it behind what is applied; a slot must not be past that.
    pub(super) async fn decode_from(
        &self,
        ends: &Ends,
        restart: Option<Restart>,
        (progress, binary): (&Arc<Progress>, bool),
        tables: (TakesPart, BTreeSet<TableKey>),
    ) -> Result<Option<Begun>, Error> {
        let start = progress.snapshot().applied;
        let behind = |confirmed: Lsn| match confirmed > start {
            true => Err(Error::refused(Refusal::TargetBehind {
                slot: ends.source.slot_name.clone(),
                confirmed,
                start,
            })),
            false => Ok(()),
        };
        restart.as_ref().map_or(Ok(()), |restart| behind(restart.confirmed))?;
        let found = self.wal(ends).slot_to_stream_from(restart.as_ref()).await?;
        match restart {
            None => {
                found.and_then(|slot| slot.confirmed_flush).map_or(Ok(()), behind)?;
                Ok(None)
            }
            Some(restart) => {
                let reserved = found.map(|slot| slot.restart_lsn.unwrap_or_default());
                Ok(Some(self.wal(ends).decoding(restart, reserved, progress, binary, tables).await?))
            }
        }
    }

    /// Makes the slot, and the snapshot that the first copy is taken under.
    pub(super) async fn make_slot(&self, ends: &Ends) -> Result<Exported, Error> {
        if self.settings.source_mode == SourceMode::Wal {
            return self.wal(ends).make_slot().await;
        }
        let name = &self.settings.subscription.slot();
        let mut wire = snapshot_wire(self.settings).await?;
        let new = NewSlot { name, temporary: false, snapshot: slot::Snapshot::Export, failover: false };
        let made = slot::create_logical_slot(&mut wire, &new).await?;
        Exported::of_slot(made, wire)
    }

    pub(super) fn tell_start(&self, start: Lsn, binary: bool) {
        if !self.repeats() {
            let name = &self.settings.subscription;
            tracing::info!(subscription = %name, binary, "streaming from {start}");
        }
    }

    /// Whether attempts fail alike, which say nothing of what each does.
    pub(crate) fn repeats(&self) -> bool {
        self.status.failing().is_some_and(|failing| failing.attempts > 1)
    }
}
