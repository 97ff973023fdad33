//! Where a stream begins, and who is told.

use super::*;

impl Attempt<'_> {
    /// Tells the status where a stream begins, and what it has to catch up with from there.
    pub(super) async fn tell_positions(
        &self,
        ends: &Ends,
        restart: Option<&Restart>,
        progress: &Arc<Progress>,
    ) -> Result<(), Error> {
        self.status.set_progress(Arc::clone(progress));
        let looked = restart.and_then(|restart| restart.may_have_seen(ends.identity.xlogpos));
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
    ) -> Result<Option<Decoded>, Error> {
        let start = progress.snapshot().applied;
        let behind = |confirmed: Lsn| match confirmed > start {
            true => {
                Err(Error::refused(Refusal::TargetBehind { slot: ends.slot_name.clone(), confirmed, start }))
            }
            false => Ok(()),
        };
        restart.as_ref().map_or(Ok(()), |restart| behind(restart.confirmed))?;
        let found = self.slot_to_stream_from(ends, restart.as_ref()).await?;
        match restart {
            None => {
                found.and_then(|slot| slot.confirmed_flush).map_or(Ok(()), behind)?;
                Ok(None)
            }
            Some(restart) => {
                let reserved = found.map(|slot| slot.restart_lsn.unwrap_or_default());
                Ok(Some(self.decoding(ends, restart, reserved, progress, binary, tables).await?))
            }
        }
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
