//! Where messages of pgoutput come from: the slot that is made, and what is read from it.
//!
//! | source | slot | snapshot of the first copy | messages |
//! | --- | --- | --- | --- |
//! | `logical` | logical, pgoutput | the slot's | as the walsender sends them |
//! | `wal` | physical | that of the look at the catalogs | decoded here, from what the walsender ships |
//! | `wal`, `wal_stream = off` | none | as above | decoded here, from the archive |

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::crash_phases::{self, Phase};
use base::{Lsn, Progress};
use catalog::{Catalog, Look};
use client::{Replication, Session, Wire};
use output::TakesPart;
use proto::replication::PgoutputOptions;
use source::segments::Lineage;
use source::slot::{self, NewSlot, SlotState};
use source::stream::{Heard, Kept, QUEUE_BLOCKS, Stream, StreamOptions, What};
use state::TableKey;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use txn::Block;

use super::archive::{self, Archive, Growing, WAITS_BETWEEN_WARNINGS};
use super::shipping::{Carrier, Shipping};
use super::snapshot::{Exported, Holder, end_of_flushed, flush};
use super::standbys::{Standbys, held};
use super::{Attempt, Ends, FAREWELL, SOURCE_SETTINGS, broke, identity};
use crate::decoding::{Ask, Decoding, Restart, Wanted};
use crate::error::{Error, Kind};
use crate::left_out::Judge;
use crate::refusal::Refusal;
use crate::shared::{self, Part, Starting, Streams, Way};
use crate::{Origin, Settings, SourceMode};

/// For how long transactions that run when the catalogs are looked at are waited for; a logical slot waits for ever.
pub(super) const LOOK_WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How often a slot is moved that no walsender uses.
const MOVE_SLOT: Duration = Duration::from_secs(5);
/// How often it is touched where there is nothing to move.
const TOUCH_SLOT: Duration = Duration::from_secs(30);

/// Where messages of pgoutput come from.
pub(super) struct Feed {
    begin: Arc<Begin>,
    /// Where the stream begins.
    start: Lsn,
    /// `None` until it is begun, and while it is not this one's own.
    shipping: Option<Shipping>,
    /// What comes before the stream, and its connection.
    archive: Option<(Archive, Wire)>,
    /// Of WAL that comes as it stands, until it is begun.
    decoding: Option<Decoding>,
    /// Where that is asked for its catalogs.
    pub(super) asks: Option<mpsc::Sender<Ask>>,
    /// The same for tables that are to join.
    pub(super) judge: Option<Judge>,
    /// The slot that a stream was read from before the archive was followed instead; it is not needed any more once everything
    /// up to there has come from the archive.
    pub(super) left_slot: Option<(String, Lsn)>,
}

/// What streams are begun with.
struct Begin {
    settings: Arc<Settings>,
    options: StreamOptions,
    /// What is followed instead of a stream.
    archive: Option<Growing>,
    /// Who must have WAL before it is decoded.
    standbys: Option<Standbys>,
}

impl Feed {
    /// Hands blocks to `out` until `stop` is cancelled or nobody takes them.
    pub(super) async fn run(
        &mut self,
        progress: &Progress,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let Some(mut decoding) = self.decoding.take() else {
            return self.receive(progress, heard, out, stop).await;
        };
        loop {
            let (alone, way) = match self.decode_alone(decoding, progress, heard, out, stop).await? {
                Some(ready) => ready,
                None => return Ok(()),
            };
            // The slot must be free to be moved.
            let _ = tokio::time::timeout(FAREWELL, self.finish(progress)).await;
            let streams: Arc<dyn Streams> = Arc::<Begin>::clone(&self.begin);
            let (kept, part) = (alone.kept(), Part { out, heard, streams: &streams });
            tokio::select! {
                back = decode_with_others(alone, way, &part) => match back? {
                    Some(back) => decoding = back,
                    None => return Ok(()),
                },
                lost = self.begin.move_slot(&kept) => {
                    let Err(error) = lost;
                    return Err(error);
                }
                () = stop.cancelled() => return Ok(()),
            }
            self.start = decoding.position();
            let options = self.begin.options_at(self.start);
            self.shipping = Some(self.begin.ship("stream", options, decoding.last_record()).await?);
        }
    }

    /// Decodes what comes through this one's own slot; what it gives back may decode together with others.
    async fn decode_alone(
        &mut self,
        decoding: Decoding,
        progress: &Progress,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<Option<(Decoding, Way)>, Error> {
        let (blocks, wal) = mpsc::channel(QUEUE_BLOCKS);
        let running = tokio::spawn(decoding.run(wal, out.clone(), Arc::clone(heard)));
        let mut decoding = AbortOnDropHandle::new(running);
        tokio::select! {
            ended = self.receive(progress, heard, &blocks, stop) => ended?,
            ended = &mut decoding => return ended.unwrap_or_else(|error| Err(broke(&error))),
        }
        // It takes no more, perhaps because it goes on with others, or is to.
        drop(blocks);
        let ended = (&mut decoding).await.unwrap_or_else(|error| Err(broke(&error)))?;
        Ok(ended.filter(|_| !stop.is_cancelled()))
    }

    /// What comes as it comes: first from the archive, if need be.
    async fn receive(
        &mut self,
        progress: &Progress,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        if let Some((archive, wire)) = self.archive.take() {
            let from = archive.from;
            held(self.begin.standbys.as_ref(), from, out, stop, |out| async move {
                archive.run(&out, stop).await
            })
            .await?;
            if stop.is_cancelled() || out.is_closed() {
                return Ok(());
            }
            let stream = Stream::start(wire, self.begin.options_at(self.start)).await?;
            self.shipping = Some(self.begin.shipping(Carrier::Stream(Box::new(stream)), self.start));
        }
        match &mut self.shipping {
            Some(shipping) => shipping.run(progress, heard, out, stop).await,
            None => Ok(()),
        }
    }

    /// Of which system and timeline the archive is that is followed instead of a stream.
    pub(super) fn followed(&self) -> Option<(u64, u32)> {
        self.begin.archive.as_ref().map(|archive| (archive.system_id, archive.lineage.timeline))
    }

    /// Says the last word, if there is somebody to hear it.
    pub(super) async fn finish(&mut self, progress: &Progress) {
        if let Some(shipping) = self.shipping.take() {
            shipping.finish(progress).await;
        }
    }
}

impl Begin {
    fn options_at(&self, start: Lsn) -> StreamOptions {
        StreamOptions { start, ..self.options.clone() }
    }

    /// Begins what ships from `options.start` on, behind the record at `last`; `role` names its connection, if it needs one.
    async fn ship(&self, role: &str, options: StreamOptions, last: Lsn) -> Result<Shipping, Error> {
        let from = options.start;
        if let Some(archive) = &self.archive {
            let archive = Growing { from, last, ..archive.clone() };
            return Ok(self.shipping(Carrier::Archive(archive), from));
        }
        let name = self.settings.subscription.application_name(role);
        let wire = Wire::connect(&self.settings.source, &name, Replication::Database, &SOURCE_SETTINGS);
        let stream = Stream::start(wire.await?, options).await?;
        Ok(self.shipping(Carrier::Stream(Box::new(stream)), from))
    }

    fn shipping(&self, carrier: Carrier, from: Lsn) -> Shipping {
        Shipping::new(carrier, from, self.standbys.clone())
    }

    /// Moves the slot, which no walsender of this one does any more. A server gives up slots that stay as they are for too
    /// long, so it is touched also where there is nothing to move.
    ///
    /// # Errors
    /// It is gone or lost.
    async fn move_slot(&self, kept: &Kept) -> Result<Infallible, Error> {
        let Some(slot) = &self.options.slot else { return std::future::pending().await };
        let mut session = None;
        let (mut moved, mut at) = (Lsn::INVALID, Instant::now());
        loop {
            tokio::time::sleep(MOVE_SLOT).await;
            let lsn = kept.lsn();
            if lsn == moved && at.elapsed() < TOUCH_SLOT {
                continue;
            }
            match self.move_slot_to(&mut session, slot, lsn).await {
                Ok(true) => (moved, at) = (lsn, Instant::now()),
                Ok(false) => {}
                Err(error) if error.is_refused() || matches!(error.kind(), Kind::Pass(_)) => {
                    return Err(error);
                }
                // The stream will tell, if it lasts.
                Err(error) => {
                    tracing::warn!("{}; it is tried again", base::with_causes(&error));
                    session = None;
                }
            }
        }
    }

    async fn move_slot_to(&self, session: &mut Option<Session>, slot: &str, lsn: Lsn) -> Result<bool, Error> {
        let session = match session {
            Some(session) => session,
            None => {
                let name = self.settings.subscription.application_name("slot");
                session.insert(client::connect(&self.settings.source, &name, &SOURCE_SETTINGS).await?)
            }
        };
        // The next attempt says what becomes of that: the source may have failed over meanwhile.
        let of_no_use = |what: &str| Error::from(Kind::Pass(format!("replication slot \"{slot}\" {what}")));
        let found =
            slot::slot_state(session, slot).await?.ok_or_else(|| of_no_use("does not exist any more"))?;
        if found.is_lost() {
            return Err(of_no_use("has lost WAL"));
        }
        Ok(slot::advance_physical_slot(session, slot, lsn).await?)
    }
}

impl Streams for Begin {
    fn start(&self, at: Lsn, last: Lsn) -> Starting {
        let (settings, archive) = (Arc::clone(&self.settings), self.archive.clone());
        let begin =
            Begin { settings, options: self.options_at(at), archive, standbys: self.standbys.clone() };
        Box::pin(async move {
            let mut options = StreamOptions { slot: None, ..begin.options.clone() };
            if let What::Wal { kept, .. } = &mut options.what {
                // The slot is its own affair.
                *kept = Arc::default();
            }
            begin.ship("pass", options, last).await
        })
    }
}

async fn decode_with_others(
    decoding: Decoding,
    way: Way,
    part: &Part<'_>,
) -> Result<Option<Decoding>, Error> {
    match way {
        Way::Alone => Ok(Some(decoding)),
        Way::Join(commands) => shared::take_part(commands, decoding, part).await,
        Way::Found(commands) => shared::found(commands, decoding, part).await,
    }
}

/// Decoding that is about to go on.
pub(super) struct Decoded {
    decoding: Decoding,
    asks: mpsc::Sender<Ask>,
    judge: Judge,
    lineage: Lineage,
    from: Supply,
}

/// Where its WAL is.
enum Supply {
    Stream,
    /// What must come before the stream.
    ArchiveThenStream(Archive),
    /// And what is left of a slot: see [`Feed::left_slot`].
    Archive(Growing, Option<(String, Lsn)>),
}

impl Attempt<'_> {
    /// Whether WAL that the slot has lost is to be had elsewhere.
    pub(super) fn has_archive(&self) -> bool {
        self.settings.source_mode == SourceMode::Wal && self.settings.wal_archive.is_some()
    }

    /// Whether the source is another than the one whose slot it was: a standby that has taken its place need not have one.
    fn has_failed_over(&self, ends: &Ends, restart: &Restart) -> bool {
        restart.timeline != ends.identity.timeline
    }

    /// Whether a slot that is not there may be made anew.
    pub(super) fn can_do_without_slot(&self, ends: &Ends) -> bool {
        let failed_over = || {
            let restart = Restart::open(&self.settings.restart_file());
            restart.is_ok_and(|restart| self.has_failed_over(ends, &restart))
        };
        self.has_archive() || self.settings.source_mode == SourceMode::Wal && failed_over()
    }

    /// The slot as it is; one that is gone or of no use is made anew where what it has lost is to be had elsewhere, or may
    /// still be there.
    pub(super) async fn slot_to_stream_from(
        &self,
        ends: &Ends,
        restart: Option<&Restart>,
    ) -> Result<Option<SlotState>, Error> {
        let name = &ends.slot_name;
        let found = slot::slot_state(&ends.source, name).await?;
        if let Some(restart) = restart
            && let Some(archive) = self.followed_archive(ends, restart.lsn()).await?
        {
            archive.check()?;
            return Ok(found);
        }
        let Some(restart) = restart else { return Ok(found) };
        let is_of_use = found.as_ref().is_some_and(|slot| !slot.is_lost());
        if is_of_use || !self.has_archive() && !self.has_failed_over(ends, restart) {
            return Ok(found);
        }
        if found.is_some() {
            slot::drop_slot(&ends.source, name).await?;
        }
        let kept = slot::create_physical_slot(&ends.source, name).await?;
        let (segment_size, _) = self.sizes(ends).await?;
        if restart.lsn().as_u64() / segment_size < kept.as_u64() / segment_size
            && let Some(dir) = &self.settings.wal_archive
            && let Err(error) = archive::check(dir, &ends.lineage(segment_size), restart.lsn())
        {
            // One that nobody can use would only keep WAL.
            slot::drop_slot(&ends.source, name).await?;
            return Err(error);
        }
        tracing::warn!("made replication slot \"{name}\" anew, which keeps WAL from {kept} on");
        Ok(slot::slot_state(&ends.source, name).await?)
    }

    /// Makes the slot, and the snapshot that the first copy is taken under.
    pub(super) async fn make_slot(&self, ends: &Ends) -> Result<Exported, Error> {
        let settings = self.settings;
        let name = &settings.subscription.slot();
        match settings.source_mode {
            SourceMode::Logical => {
                let mut wire = self.snapshot_wire().await?;
                let new =
                    NewSlot { name, temporary: false, snapshot: slot::Snapshot::Export, failover: false };
                let made = slot::create_logical_slot(&mut wire, &new).await?;
                Exported::of_slot(made, wire)
            }
            SourceMode::Wal if settings.followed_archive().is_some() => {
                let redo = self.archived_redo(ends).await?;
                self.look_at_catalogs(ends, name, redo).await
            }
            SourceMode::Wal => {
                let redo = slot::create_physical_slot(&ends.source, name).await?;
                let made = self.look_at_catalogs(ends, name, redo).await;
                if made.is_err() {
                    // It would keep WAL for ever.
                    slot::drop_slot(&ends.source, name).await?;
                }
                made
            }
        }
    }

    /// Looks at the catalogs, and keeps what they are for the decoding from the slot that was made at `redo`.
    async fn look_at_catalogs(&self, ends: &Ends, slot: &str, redo: Lsn) -> Result<Exported, Error> {
        let _look = crash_phases::inside(Phase::Look);
        let session = self.snapshot_session().await?;
        let look = Look { redo: Some(redo), wait_max: LOOK_WAIT_MAX };
        self.status.set_looking(true);
        let looked = Catalog::look_and_export(&session, &look).await;
        self.status.set_looking(false);
        let (catalog, snapshot_name) = looked.map_err(output::Error::from)?;
        // What a crash of the source would take back must not be taken for seen: its ids are given out again.
        flush(&ends.source).await?;
        let seen = end_of_flushed(&ends.source).await?;
        self.wait_for_standbys(&ends.source, seen).await?;
        // What the look does not see commits behind the place where WAL ended when it began, and so behind what had been
        // flushed before; what it sees and lies there is known by its id.
        let consistent_point = ends.identity.xlogpos.min(catalog.looked());
        let wanted = self.wanted(ends, (consistent_point, false), TakesPart::default()).await?;
        wanted.refuse(&catalog, &ends.published)?;
        let timeline = ends.identity.timeline;
        let restart = Restart { slot: slot.to_owned(), timeline, confirmed: consistent_point, seen, catalog };
        restart.save(&self.settings.restart_file()).map_err(Kind::Spool)?;
        // An archive is told already while rows are copied.
        self.status.decoded().begins(timeline, wanted.segment_size);
        self.status.decoded().needs_from(restart.lsn());
        let (since, holder) = (consistent_point.into(), Holder::Session(Box::new(session)));
        Ok(Exported { snapshot_name, since, holder })
    }

    /// Returns when the standbys that are waited for have flushed what is before `lsn`, which is of the WAL of `source`.
    ///
    /// # Errors
    /// Another server answers for it by now.
    pub(super) async fn wait_for_standbys(&self, source: &Session, lsn: Lsn) -> Result<(), Error> {
        if self.settings.synchronized_standby_slots.is_empty() {
            return Ok(());
        }
        let identity = identity::of(source).await.map_err(|error| source.error(error))?;
        Standbys::new(self.settings, self.status.decoded(), identity).wait_for(lsn).await
    }

    /// What was kept, if it is of the WAL that the source has: of its timeline, or of one that it has left since (rule W3).
    pub(super) fn restart(&self, ends: &Ends) -> Result<Restart, Error> {
        let mut restart = Restart::open(&self.settings.restart_file())?;
        if self.has_failed_over(ends, &restart) {
            let (before, now) = (restart.timeline, ends.identity.timeline);
            let fork = ends.left_at(before);
            let Some(fork) = fork.filter(|fork| restart.is_within(*fork)) else {
                let kept = restart.lsn();
                return Err(Error::refused(Refusal::OtherTimeline { before, now, fork, kept }));
            };
            restart.confirmed = restart.confirmed.min(fork);
        }
        Ok(restart)
    }

    /// Where a checkpoint of the source began whose segment is in the archive that is followed. It is waited for: an archive
    /// may have only full segments, or have been begun after the latest checkpoint.
    pub(super) async fn archived_redo(&self, ends: &Ends) -> Result<Lsn, Error> {
        let mut redo = slot::latest_redo(&ends.source).await?;
        let mut waited = 0_u32;
        while let Some(archive) = self.followed_archive(ends, redo).await? {
            let Err(error) = archive.check() else { break };
            let Kind::Archive(missing) = error.kind() else { return Err(error) };
            if !missing.is_missing() && !missing.is_none() {
                return Err(error);
            }
            self.status.decoded().awaits(Some(missing.to_string()));
            if waited.is_multiple_of(WAITS_BETWEEN_WARNINGS) {
                tracing::warn!(
                    subscription = %self.settings.subscription,
                    "{}; it is waited for, as the first copy begins at a checkpoint that the archive has: CHECKPOINT on the source \
                     if the archive was begun later, and SELECT pg_switch_wal() if it has only full segments",
                    base::with_causes(&error)
                );
            }
            waited += 1;
            tokio::time::sleep(archive::POLL).await;
            if archive.begins_behind(redo) {
                redo = slot::latest_redo(&ends.source).await?;
            }
        }
        self.status.decoded().awaits(None);
        Ok(redo)
    }

    /// The archive that is followed from `lsn` on, if one is instead of a stream.
    pub(super) async fn followed_archive(&self, ends: &Ends, lsn: Lsn) -> Result<Option<Growing>, Error> {
        let Some(dir) = self.settings.followed_archive().map(Path::to_owned) else { return Ok(None) };
        let (segment_size, _) = self.sizes(ends).await?;
        let (system_id, lineage) = (ends.identity.system_id, ends.lineage(segment_size));
        let (patience, figures) = (self.settings.wal_receiver_timeout, Arc::clone(self.status.decoded()));
        Ok(Some(Growing { dir, system_id, lineage, from: lsn, last: lsn, patience, figures }))
    }

    /// Goes on decoding where it was; `reserved` is from where on the slot keeps WAL. The tables are those that take part, and
    /// those that could not be decoded before.
    pub(super) async fn decoding(
        &self,
        ends: &Ends,
        restart: Restart,
        reserved: Option<Lsn>,
        progress: &Arc<Progress>,
        binary: bool,
        (takes_part, refused_before): (TakesPart, BTreeSet<TableKey>),
    ) -> Result<Decoded, Error> {
        let wanted = self.wanted(ends, (progress.snapshot().applied, binary), takes_part.clone()).await?;
        let segment = |lsn: Lsn| lsn.as_u64() / wanted.segment_size;
        let (has_slot, reserved) = (reserved.is_some(), reserved.unwrap_or(Lsn::INVALID));
        let followed = self.followed_archive(ends, restart.lsn()).await?;
        let is_removed = followed.is_none() && segment(restart.lsn()) < segment(reserved);
        let may_be_there = self.has_archive() || self.has_failed_over(ends, &restart);
        if restart.slot != ends.slot_name || is_removed && !may_be_there {
            let why = format!(
                "it is of slot \"{}\" at {}, and slot \"{}\" keeps WAL from {reserved} on",
                restart.slot,
                restart.lsn(),
                ends.slot_name
            );
            return Err(Error::refused(Refusal::NoRestart { path: self.settings.restart_file(), why }));
        }
        let options = wanted.options(&restart.catalog)?;
        let ((asks, asked), kept) = (mpsc::channel(1), Arc::<Kept>::default());
        let judge = Judge { asks: asks.clone(), takes_part, options, refused_before };
        if is_removed {
            // Never back to where the slot has nothing.
            kept.advance(reserved);
        }
        let timeline = ends.identity.timeline;
        let restart = Restart { timeline, ..restart };
        let name = &self.settings.subscription;
        let place = match &followed {
            Some(archive) => archive.dir.display().to_string(),
            None => match self.settings.source.address() {
                // Of several hosts, any may be connected to, and not all need be the same server.
                several if several.contains(',') => format!("{several} of {name}"),
                one => one,
            },
        };
        // Who waits for other standbys reads another part of the same WAL.
        let place = [&[place], self.settings.synchronized_standby_slots.as_slice()].concat().join(" behind ");
        let figures = self.status.decoded();
        figures.begins(timeline, wanted.segment_size);
        figures.needs_from(restart.lsn());
        let sharing = self.passes.sharing(name, (place, ends.identity.system_id, timeline), figures).await;
        let decoding = Decoding::new(restart, kept, Arc::clone(progress), asked, sharing, &wanted)?;
        let lost = self.settings.wal_archive.clone().filter(|_| is_removed).map(|dir| {
            let until = Lsn::new(segment(reserved) * wanted.segment_size);
            let figures = Arc::clone(self.status.decoded());
            Archive {
                dir,
                lineage: ends.lineage(wanted.segment_size),
                from: decoding.position(),
                until,
                figures,
            }
        });
        let from = match (followed, lost) {
            (Some(archive), _) => {
                let left = has_slot.then(|| (ends.slot_name.clone(), ends.identity.xlogpos));
                Supply::Archive(Growing { from: decoding.position(), ..archive }, left)
            }
            (None, Some(lost)) => Supply::ArchiveThenStream(lost),
            (None, None) => Supply::Stream,
        };
        Ok(Decoded { decoding, asks, judge, lineage: ends.lineage(wanted.segment_size), from })
    }

    /// `wal_segment_size` and `logical_decoding_work_mem`.
    async fn sizes(&self, ends: &Ends) -> Result<(u64, u64), Error> {
        const SIZES: &str = "SELECT pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')), \
                                    pg_catalog.pg_size_bytes(pg_catalog.current_setting('logical_decoding_work_mem'))";
        let row = ends.source.query_one(SIZES, &[]).await.map_err(|error| ends.source.error(error))?;
        let size = |at: usize| row.get::<_, i64>(at).cast_unsigned();
        Ok((size(0), size(1)))
    }

    pub(super) async fn wanted(
        &self,
        ends: &Ends,
        (start, binary): (Lsn, bool),
        takes_part: TakesPart,
    ) -> Result<Wanted<'_>, Error> {
        let (segment_size, work_mem_bytes) = self.sizes(ends).await?;
        Ok(Wanted {
            settings: self.settings,
            version: ends.wire.version(),
            binary,
            start,
            segment_size,
            work_mem_bytes: usize::try_from(work_mem_bytes).unwrap_or(usize::MAX),
            takes_part,
            spooling: self.status.spooling(),
        })
    }

    pub(super) async fn feed(
        &self,
        (wire, source): (Wire, (u64, u32)),
        slot: String,
        (start, binary): (Lsn, bool),
        decoded: Option<Decoded>,
    ) -> Result<Feed, Error> {
        let settings = self.settings;
        let (start, what) = match &decoded {
            None => {
                let pgoutput = PgoutputOptions {
                    publications: settings.publications.clone(),
                    binary,
                    streaming: settings.streaming,
                    origin_none: settings.origin == Origin::None,
                };
                (start, What::Pgoutput(pgoutput))
            }
            Some(Decoded { decoding, lineage, from, .. }) => {
                let start = match from {
                    Supply::ArchiveThenStream(archive) => archive.until,
                    Supply::Stream | Supply::Archive(..) => decoding.position(),
                };
                (start, What::Wal { lineage: lineage.clone(), kept: decoding.kept() })
            }
        };
        let mut options = StreamOptions {
            slot: Some(slot),
            start,
            what,
            status_interval: settings.wal_receiver_status_interval,
            timeout: settings.wal_receiver_timeout,
        };
        let (decoding, asks, judge, from) = match decoded {
            Some(Decoded { decoding, asks, judge, from, .. }) => {
                (Some(decoding), Some(asks), Some(judge), from)
            }
            None => (None, None, None, Supply::Stream),
        };
        let (mut lost, mut followed, mut left_slot) = (None, None, None);
        let carrier = match from {
            Supply::Stream => {
                let stream = Stream::start(wire, options.clone()).await?;
                Some(Carrier::Stream(Box::new(stream)))
            }
            // Nobody would answer the walsender meanwhile.
            Supply::ArchiveThenStream(archive) => {
                lost = Some((archive, wire));
                None
            }
            Supply::Archive(archive, left) => {
                wire.close().await;
                options.slot = None;
                (followed, left_slot) = (Some(archive.clone()), left);
                Some(Carrier::Archive(archive))
            }
        };
        let is_waited_for =
            settings.source_mode == SourceMode::Wal && !settings.synchronized_standby_slots.is_empty();
        let standbys = is_waited_for.then(|| Standbys::new(settings, self.status.decoded(), source));
        let begin = Begin { settings: Arc::clone(settings), options, archive: followed, standbys };
        let shipping = carrier.map(|carrier| begin.shipping(carrier, start));
        Ok(Feed { begin: Arc::new(begin), start, shipping, archive: lost, decoding, asks, judge, left_slot })
    }
}
