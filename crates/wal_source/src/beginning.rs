//! Where decoding begins: the slot, the look at the catalogs, and what the restart file has of
//! both.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use base::crash_phases::{self, Phase};
use base::{Lsn, Progress};
use catalog::{Catalog, Look};
use client::{Replication, Wire};
use output::TakesPart;
use source::end::{
    Exported, Holder, LOOK_WAIT_MAX, SOURCE_SETTINGS, end_of_flushed, flush, snapshot_session,
};
use source::restart_lsn::RestartLsn;
use source::segments::Lineage;
use source::slot::{self, SlotState};
use source::stream::{Stream, StreamOptions, What};
use state::TableKey;
use tokio::sync::mpsc;

use crate::Context;
use crate::archive::{self, Archive, Growing, WAITS_BETWEEN_WARNINGS};
use crate::decoding::{Ask, Decoding, Wanted};
use crate::error::{Error, Kind};
use crate::left_out::Judge;
use crate::restart::Restart;
use crate::sharing::LinkedDecoding;
use crate::shipping::{Carrier, Shipping};
use crate::unfit::Unfit;

/// Decoding that is ready to go on.
pub struct Begun {
    pub(super) linked: LinkedDecoding,
    pub(super) asks: mpsc::Sender<Ask>,
    pub(super) judge: Judge,
    pub(super) lineage: Lineage,
    pub(super) from: Supply,
}

/// Where the WAL comes from.
pub(super) enum Supply {
    Stream,
    /// From an archive first, then from the stream.
    ArchiveThenStream(Archive),
    /// From an archive alone. The pair is a slot that is left over: see
    /// [`crate::Beside::left_slot`].
    Archive(Growing, Option<(String, Lsn)>),
}

impl Context<'_> {
    /// Ships WAL from `from` on for a survey that begins at the `kept` catalogs.
    pub(crate) async fn ship_for_survey(
        &self,
        kept: &Restart,
        from: Lsn,
        segment_size: u64,
    ) -> Result<Shipping, Error> {
        let carrier = match self.followed_archive(kept.lsn()).await? {
            Some(archive) => Carrier::Archive(Growing { from, last: kept.lsn(), ..archive }),
            None => {
                let settings = self.settings;
                let role = settings.subscription.application_name("survey");
                let wire =
                    Wire::connect(&settings.source, &role, Replication::Database, &SOURCE_SETTINGS).await?;
                let options = StreamOptions {
                    slot: None,
                    start: from,
                    what: What::Wal {
                        lineage: self.source.lineage(segment_size),
                        restart_lsn: Arc::<RestartLsn>::default(),
                    },
                    status_interval: settings.wal_receiver_status_interval,
                    timeout: settings.wal_receiver_timeout,
                };
                Carrier::Stream(Box::new(Stream::start(wire, options).await?))
            }
        };
        Ok(Shipping::new(carrier, from, None))
    }

    /// Whether an archive may have the WAL that the slot has lost.
    pub(crate) fn has_archive(&self) -> bool {
        self.settings.wal_archive.is_some()
    }

    /// Whether the source is another server than the one that has the slot. A standby that was
    /// promoted need not have the slot.
    fn has_failed_over(&self, restart: &Restart) -> bool {
        restart.timeline != self.source.identity.timeline
    }

    /// Whether a missing slot may be made anew.
    pub fn can_do_without_slot(&self) -> bool {
        let failed_over = || {
            let restart = Restart::open(&self.settings.restart_file);
            restart.is_ok_and(|restart| self.has_failed_over(&restart))
        };
        self.has_archive() || failed_over()
    }

    /// Returns the slot as it is. A slot that is gone or lost is made anew if an archive may have
    /// the WAL that it lost, or if the source, after a failover, may still have it.
    pub async fn slot_to_stream_from(&self, restart: &Restart) -> Result<Option<SlotState>, Error> {
        let name = &self.source.slot_name;
        let found = slot::slot_state(&self.source.session, name).await?;
        if let Some(archive) = self.followed_archive(restart.lsn()).await? {
            archive.check()?;
            return Ok(found);
        }
        let is_of_use = found.as_ref().is_some_and(|slot| !slot.is_lost());
        if is_of_use || !self.has_archive() && !self.has_failed_over(restart) {
            return Ok(found);
        }
        if found.is_some() {
            slot::drop_slot(&self.source.session, name).await?;
        }
        let kept = slot::create_physical_slot(&self.source.session, name).await?;
        let (segment_size, _) = self.sizes().await?;
        if restart.lsn().as_u64() / segment_size < kept.as_u64() / segment_size
            && let Some(dir) = &self.settings.wal_archive
            && let Err(error) = archive::check(dir, &self.source.lineage(segment_size), restart.lsn())
        {
            // Without the WAL before it, the new slot would only keep WAL in vain.
            slot::drop_slot(&self.source.session, name).await?;
            return Err(error);
        }
        tracing::warn!("created replication slot \"{name}\" again; it keeps WAL from {kept} on");
        Ok(slot::slot_state(&self.source.session, name).await?)
    }

    /// Makes the slot, if one is needed, and the snapshot for the first copy.
    pub async fn make_slot(&self) -> Result<Exported, Error> {
        let name = &self.settings.subscription.slot();
        if self.settings.followed_archive().is_some() {
            let redo = self.archived_redo().await?;
            return self.look_at_catalogs(name, redo).await;
        }
        let redo = slot::create_physical_slot(&self.source.session, name).await?;
        let made = self.look_at_catalogs(name, redo).await;
        if made.is_err() {
            // The slot would keep WAL until somebody drops it.
            slot::drop_slot(&self.source.session, name).await?;
        }
        made
    }

    /// Looks at the catalogs, and saves them as the beginning for decoding from the slot that was
    /// made at `redo`.
    async fn look_at_catalogs(&self, slot: &str, redo: Lsn) -> Result<Exported, Error> {
        let _look = crash_phases::inside(Phase::Look);
        let session = snapshot_session(&self.settings.source, &self.settings.subscription).await?;
        let look = Look { redo: Some(redo), wait_max: LOOK_WAIT_MAX };
        self.figures.set_looking(true);
        let looked = Catalog::look_and_export(&session, &look).await;
        self.figures.set_looking(false);
        let (catalog, snapshot_name) = looked.map_err(output::Error::from)?;
        // A crash of the source may take back unflushed transactions and give out their ids again.
        // They must not count as seen.
        flush(&self.source.session).await?;
        let seen = end_of_flushed(&self.source.session).await?;
        crate::wait_for_standbys(self.settings, self.figures, &self.source.session, seen).await?;
        // Transactions that the look does not see commit behind the end of WAL at its beginning,
        // and so behind what was flushed before. Transactions that it sees and that commit there
        // are known by their ids.
        let consistent_point = self.source.identity.xlogpos.min(catalog.looked());
        let wanted = self.wanted((consistent_point, false), TakesPart::default()).await?;
        wanted.refuse(&catalog, &self.source.published)?;
        let timeline = self.source.identity.timeline;
        let restart = Restart { slot: slot.to_owned(), timeline, confirmed: consistent_point, seen, catalog };
        restart.save(&self.settings.restart_file)?;
        // The archive's needs are reported already while rows are copied.
        self.figures.begins(timeline, wanted.segment_size);
        self.figures.needs_from(restart.lsn());
        let (since, holder) = (consistent_point.into(), Holder::Session(Box::new(session)));
        Ok(Exported { snapshot_name, since, holder })
    }

    /// Reads the restart file, if it belongs to WAL that the source has: to its timeline, or to one
    /// that it has left since (rule W3).
    pub fn restart(&self) -> Result<Restart, Error> {
        let mut restart = Restart::open(&self.settings.restart_file)?;
        if self.has_failed_over(&restart) {
            let (before, now) = (restart.timeline, self.source.identity.timeline);
            let fork = self.source.left_at(before);
            let Some(fork) = fork.filter(|fork| restart.is_within(*fork)) else {
                let kept = restart.lsn();
                return Err(Unfit::OtherTimeline { before, now, fork, kept }.into());
            };
            restart.confirmed = restart.confirmed.min(fork);
        }
        Ok(restart)
    }

    /// Returns the redo position of a checkpoint of the source whose segment is in the followed
    /// archive. Waits for one: an archive may hold only full segments, or may have been begun after
    /// the latest checkpoint.
    pub(crate) async fn archived_redo(&self) -> Result<Lsn, Error> {
        let mut redo = slot::latest_redo(&self.source.session).await?;
        let mut waited = 0_u32;
        while let Some(archive) = self.followed_archive(redo).await? {
            let Err(error) = archive.check() else { break };
            let Kind::Archive(missing) = error.kind() else { return Err(error) };
            if !missing.is_missing() && !missing.is_none() {
                return Err(error);
            }
            self.figures.awaits(Some(missing.to_string()));
            if waited.is_multiple_of(WAITS_BETWEEN_WARNINGS) {
                tracing::warn!(
                    subscription = %self.settings.subscription,
                    "{}; pgsluice waits for it, because the first copy begins at a checkpoint that the archive has: \
                     CHECKPOINT on the source if the archive was begun later, and SELECT pg_switch_wal() if it has \
                     only full segments",
                    base::with_causes(&error)
                );
            }
            waited += 1;
            tokio::time::sleep(archive::POLL).await;
            if archive.begins_behind(redo) {
                redo = slot::latest_redo(&self.source.session).await?;
            }
        }
        self.figures.awaits(None);
        Ok(redo)
    }

    /// The archive to follow from `lsn` on, if one replaces the stream.
    pub(crate) async fn followed_archive(&self, lsn: Lsn) -> Result<Option<Growing>, Error> {
        let Some(dir) = self.settings.followed_archive().map(Path::to_owned) else { return Ok(None) };
        let (segment_size, _) = self.sizes().await?;
        let (system_id, lineage) = (self.source.identity.system_id, self.source.lineage(segment_size));
        let (patience, figures) = (self.settings.wal_receiver_timeout, Arc::clone(self.figures));
        Ok(Some(Growing { dir, system_id, lineage, from: lsn, last: lsn, patience, figures }))
    }

    /// Goes on decoding where it stopped. The slot keeps WAL from `reserved` on. The tables are
    /// those that take part, and those that could not be decoded before.
    pub async fn decoding(
        &self,
        restart: Restart,
        reserved: Option<Lsn>,
        progress: &Arc<Progress>,
        binary: bool,
        (takes_part, refused_before): (TakesPart, BTreeSet<TableKey>),
    ) -> Result<Begun, Error> {
        let wanted = self.wanted((progress.snapshot().applied, binary), takes_part.clone()).await?;
        let segment = |lsn: Lsn| lsn.as_u64() / wanted.segment_size;
        let (has_slot, reserved) = (reserved.is_some(), reserved.unwrap_or(Lsn::INVALID));
        let followed = self.followed_archive(restart.lsn()).await?;
        let is_removed = followed.is_none() && segment(restart.lsn()) < segment(reserved);
        let may_be_there = self.has_archive() || self.has_failed_over(&restart);
        if restart.slot != self.source.slot_name || is_removed && !may_be_there {
            let why = format!(
                "it is of slot \"{}\" at {}, and slot \"{}\" keeps WAL from {reserved} on",
                restart.slot,
                restart.lsn(),
                self.source.slot_name
            );
            return Err(Unfit::NoRestart { path: self.settings.restart_file.clone(), why }.into());
        }
        let options = wanted.options(&restart.catalog)?;
        let (asks, asked) = mpsc::channel(1);
        let restart_lsn = Arc::new(RestartLsn::beside(self.settings.kept_beside.clone()));
        let judge = Judge { asks: asks.clone(), takes_part, options, refused_before };
        if is_removed {
            // Never moves the slot back to where it has no WAL.
            restart_lsn.advance(reserved);
        }
        let timeline = self.source.identity.timeline;
        let restart = Restart { timeline, ..restart };
        let name = &self.settings.subscription;
        let place = self.place(followed.as_ref());
        let figures = self.figures;
        figures.begins(timeline, wanted.segment_size);
        figures.needs_from(restart.lsn());
        let sharing = self.passes.sharing(name, (place, self.source.identity.system_id, timeline)).await;
        let decoding = Decoding::new(restart, restart_lsn, Arc::clone(progress), asked, figures, &wanted)?;
        let lost = self.settings.wal_archive.clone().filter(|_| is_removed).map(|dir| {
            let until = Lsn::new(segment(reserved) * wanted.segment_size);
            let figures = Arc::clone(self.figures);
            Archive {
                dir,
                lineage: self.source.lineage(wanted.segment_size),
                from: decoding.position(),
                until,
                figures,
            }
        });
        let from = match (followed, lost) {
            (Some(archive), _) => {
                let left = has_slot.then(|| (self.source.slot_name.clone(), self.source.identity.xlogpos));
                Supply::Archive(Growing { from: decoding.position(), ..archive }, left)
            }
            (None, Some(lost)) => Supply::ArchiveThenStream(lost),
            (None, None) => Supply::Stream,
        };
        let linked = LinkedDecoding { decoding, sharing };
        Ok(Begun { linked, asks, judge, lineage: self.source.lineage(wanted.segment_size), from })
    }

    /// Names the place where WAL is read and how far. Subscriptions with the same one may share a
    /// pass.
    fn place(&self, followed: Option<&Growing>) -> String {
        let place = match followed {
            Some(archive) => archive.dir.display().to_string(),
            None => match self.settings.source.address() {
                // Each of several hosts may be a different server.
                several if several.contains(',') => format!("{several} of {}", self.settings.subscription),
                one => one,
            },
        };
        // A subscription that waits for other standbys reads the same WAL up to a different
        // position.
        [&[place], self.settings.synchronized_standby_slots.as_slice()].concat().join(" behind ")
    }

    /// `wal_segment_size` and `logical_decoding_work_mem`.
    async fn sizes(&self) -> Result<(u64, u64), Error> {
        const SIZES: &str = "SELECT pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')), \
                                    pg_catalog.pg_size_bytes(pg_catalog.current_setting('logical_decoding_work_mem'))";
        let row = self
            .source
            .session
            .query_one(SIZES, &[])
            .await
            .map_err(|error| self.source.session.error(error))?;
        let size = |at: usize| row.get::<_, i64>(at).cast_unsigned();
        Ok((size(0), size(1)))
    }

    pub(crate) async fn wanted(
        &self,
        (start, binary): (Lsn, bool),
        takes_part: TakesPart,
    ) -> Result<Wanted<'_>, Error> {
        let (segment_size, work_mem_bytes) = self.sizes().await?;
        Ok(Wanted {
            settings: self.settings,
            version: self.source.wire.version(),
            binary,
            start,
            segment_size,
            work_mem_bytes: usize::try_from(work_mem_bytes).unwrap_or(usize::MAX),
            takes_part,
            open_spool: Arc::clone(&self.open_spool),
        })
    }
}
