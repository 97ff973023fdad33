//! Finds where a stream begins, and reports the position to the status.

use std::collections::BTreeSet;
use std::sync::Arc;

use apply::Target;
use base::{Lsn, Progress};
use output::TakesPart;
use source::end::{SourceEnd, flush};
use source::slot;
use state::{JoinedTables, TableKey};
use wal_source::{Begun, Restart};

use super::attempt::{Attempt, Ends};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::{SourceMode, history};

impl Attempt<'_> {
    /// Judges a source that is on another timeline than last time, before anything is copied from
    /// it. From then on, a slot there keeps the WAL that is needed and that the source still has.
    pub(super) async fn judge_timeline(&self, ends: &mut Ends) -> Result<(), Error> {
        let timeline = i64::from(ends.source.identity.timeline);
        let known = [timeline, history::UNKNOWN];
        let Some(row) = ends.row.clone().filter(|row| !known.contains(&row.source_timeline)) else {
            return Ok(());
        };
        let restart = match self.settings.source_mode {
            SourceMode::Logical => None,
            SourceMode::Wal => Some(self.wal(ends).restart()?),
        };
        let (joined, options) = (self.joined(ends).await?, self.apply_options(ends, None).await?);
        let copied = furthest(&joined);
        // The fence: after this, no earlier session applies what was sent before.
        let target = Target::attach(&self.settings.target, &ends.state, &options, joined).await?;
        let Ends { source: SourceEnd { wire, session, .. }, state, .. } = &mut *ends;
        history::start_position(wire, session, state, &row, (target.reached(), copied)).await?;
        if let Some(restart) = &restart {
            self.wal(ends).slot_to_stream_from(restart).await?;
        }
        Ok(())
    }

    /// The tables that take part, and what the snapshots of their copies saw.
    pub(super) async fn joined(&self, ends: &Ends) -> Result<JoinedTables, Error> {
        let recorded = ends.state.copied_tables().await?;
        let finished = recorded.into_iter().filter(|table| table.finished);
        let joined = finished.filter_map(|table| Some(((table.schema, table.table), table.since?)));
        Ok(joined.collect())
    }

    /// Reports to the status where a stream begins, and what it has to catch up with from there.
    pub(super) async fn tell_positions(
        &self,
        ends: &Ends,
        restart: Option<&Restart>,
        progress: &Arc<Progress>,
    ) -> Result<(), Error> {
        self.status.set_progress(Arc::clone(progress));
        let looked = restart.and_then(|restart| restart.may_have_seen(ends.source.identity.xlogpos));
        let recorded = ends.state.copied_tables().await?;
        // A table counts as joined only when no crash of the target can take that back.
        flush(ends.state.session()).await?;
        self.status.await_consistency(&recorded, looked);
        Ok(())
    }

    /// Begins decoding behind what is applied, where WAL is decoded here. Refuses a slot that is
    /// past that position.
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
        match restart {
            None => {
                let found = slot::slot_state(&ends.source.session, &ends.source.slot_name).await?;
                found.and_then(|slot| slot.confirmed_flush).map_or(Ok(()), behind)?;
                Ok(None)
            }
            Some(restart) => {
                behind(restart.confirmed())?;
                let found = self.wal(ends).slot_to_stream_from(&restart).await?;
                let reserved = found.map(|slot| slot.restart_lsn.unwrap_or_default());
                Ok(Some(self.wal(ends).decoding(restart, reserved, progress, binary, tables).await?))
            }
        }
    }

    pub(super) fn tell_start(&self, start: Lsn, binary: bool) {
        if !self.repeats() {
            let name = &self.settings.subscription;
            tracing::info!(subscription = %name, binary, "streaming from {start}");
        }
    }

    /// Whether attempts keep failing alike. They then do not log their own steps.
    pub(crate) fn repeats(&self) -> bool {
        self.status.failing().is_some_and(|failing| failing.attempts > 1)
    }
}

/// The latest consistent point of any copied table.
pub(super) fn furthest(joined: &JoinedTables) -> Lsn {
    joined.values().map(|since| since.lsn).max().unwrap_or(Lsn::INVALID)
}
