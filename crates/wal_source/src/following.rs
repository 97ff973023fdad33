//! Ships WAL and decodes it here: alone at first, then in a pass with others.
//!
//! | where the WAL comes from | slot |
//! | --- | --- |
//! | a walsender's stream | physical, moved by the stream, or by SQL while a pass decodes |
//! | an archive for what the slot has lost; then the stream | as above |
//! | an archive alone, `wal_stream = off` | none |

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Lsn, Progress};
use client::{Replication, Session, Wire};
use source::end::{FAREWELL, SOURCE_SETTINGS};
use source::queue::queue;
use source::restart_lsn::RestartLsn;
use source::slot;
use source::stream::{Heard, Stream, StreamOptions, What};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use txn::Block;

use crate::Settings;
use crate::archive::{Archive, Growing};
use crate::beginning::{Begun, Supply};
use crate::decoded::Decoded;
use crate::decoding::Ask;
use crate::error::{Error, Kind, broke};
use crate::left_out::Judge;
use crate::pass::{self, MemberLinks};
use crate::sharing::{LinkedDecoding, SharingStep, Starting, Streams};
use crate::shipping::{Carrier, Shipping};
use crate::wait_for_standbys::{Standbys, behind_standbys};

/// How often a slot is moved that no walsender uses.
const MOVE_SLOT: Duration = Duration::from_secs(5);
/// How often a slot is touched that need not move.
const TOUCH_SLOT: Duration = Duration::from_secs(30);

/// Decodes WAL into messages of pgoutput.
pub struct WalSource {
    begin: Arc<Begin>,
    /// Where the stream begins.
    start: Lsn,
    /// `None` before the start, and while a shared pass reads for this subscription.
    shipping: Option<Shipping>,
    /// The archive that comes before the stream, and the connection for that stream.
    archive: Option<(Archive, Wire)>,
    /// `None` once decoding has begun.
    decoding: Option<LinkedDecoding>,
}

/// What the pipeline asks of decoding, besides taking its messages.
pub struct Beside {
    /// Asks decoding for its catalogs.
    pub asks: mpsc::Sender<Ask>,
    /// Asks whether tables that are to join can be decoded.
    pub judge: Judge,
    /// System and timeline of the archive that is followed instead of a stream.
    pub followed: Option<(u64, u32)>,
    /// The slot that was used before the archive was followed instead. It is needed until
    /// everything up to this position has come from the archive.
    pub left_slot: Option<(String, Lsn)>,
}

/// What a new stream needs at its start.
struct Begin {
    settings: Arc<Settings>,
    options: StreamOptions,
    /// The archive that is followed instead of a stream.
    archive: Option<Growing>,
    /// The standbys that must have WAL before it is decoded.
    standbys: Option<Standbys>,
}

impl WalSource {
    /// Hands blocks of messages to `out` until `stop` is cancelled or `out` is closed.
    ///
    /// # Errors
    /// Nothing more can come.
    pub async fn run(
        &mut self,
        progress: &Progress,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let Some(mut linked) = self.decoding.take() else {
            return self.receive(progress, heard, out, stop).await;
        };
        loop {
            let (alone, step) = match self.decode_alone(linked, progress, heard, out, stop).await? {
                Some(ready) => ready,
                None => return Ok(()),
            };
            // Ends the walsender, because the slot must be free to be moved.
            let _ = tokio::time::timeout(FAREWELL, self.finish(progress)).await;
            let streams: Arc<dyn Streams> = Arc::<Begin>::clone(&self.begin);
            let (restart_lsn, links) =
                (alone.decoding.restart_lsn(), MemberLinks { out, heard, streams: &streams });
            tokio::select! {
                back = decode_with_others(alone, step, &links) => match back? {
                    Some(back) => linked = back,
                    None => return Ok(()),
                },
                lost = self.begin.move_slot(&restart_lsn) => {
                    let Err(error) = lost;
                    return Err(error);
                }
                () = stop.cancelled() => return Ok(()),
            }
            self.start = linked.decoding.position();
            let options = self.begin.options_at(self.start);
            self.shipping = Some(self.begin.ship("stream", options, linked.decoding.last_record()).await?);
        }
    }

    /// Sends the last report, if there is a server to receive it. The source may be gone; it gets
    /// the report next time.
    pub async fn finish(&mut self, progress: &Progress) {
        if let Some(shipping) = self.shipping.take() {
            shipping.finish(progress).await;
        }
    }

    /// Starts shipping WAL on `wire`, and the checks beside it. `source` is a system identifier and
    /// a timeline.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn start(
        settings: &Arc<Settings>,
        figures: &Arc<Decoded>,
        (wire, source): (Wire, (u64, u32)),
        slot: String,
        begun: Begun,
    ) -> Result<(WalSource, Beside), Error> {
        let Begun { linked, asks, judge, lineage, from } = begun;
        let decoding = &linked.decoding;
        let start = match &from {
            Supply::ArchiveThenStream(archive) => archive.until,
            Supply::Stream | Supply::Archive(..) => decoding.position(),
        };
        let mut options = StreamOptions {
            slot: Some(slot),
            start,
            what: What::Wal { lineage, restart_lsn: decoding.restart_lsn() },
            status_interval: settings.wal_receiver_status_interval,
            timeout: settings.wal_receiver_timeout,
        };
        let (mut lost, mut followed, mut left_slot) = (None, None, None);
        let carrier = match from {
            Supply::Stream => {
                let stream = Stream::start(wire, options.clone()).await?;
                Some(Carrier::Stream(Box::new(stream)))
            }
            // Nobody would answer the walsender while the archive is read, so its stream begins
            // later.
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
        let is_waited_for = !settings.synchronized_standby_slots.is_empty();
        let standbys = is_waited_for.then(|| Standbys::new(settings, figures, source));
        let identity = |archive: &Growing| (archive.system_id, archive.lineage.timeline);
        let beside = Beside { asks, judge, followed: followed.as_ref().map(identity), left_slot };
        let begin = Begin { settings: Arc::clone(settings), options, archive: followed, standbys };
        let shipping = carrier.map(|carrier| begin.shipping(carrier, start));
        let decoding = Some(linked);
        let own = WalSource { begin: Arc::new(begin), start, shipping, archive: lost, decoding };
        Ok((own, beside))
    }

    /// Decodes WAL from this subscription's own slot. Returns the decoding when it may go on in a
    /// pass with others.
    async fn decode_alone(
        &mut self,
        linked: LinkedDecoding,
        progress: &Progress,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<Option<(LinkedDecoding, SharingStep)>, Error> {
        let (blocks, wal) = queue();
        let LinkedDecoding { decoding, sharing } = linked;
        let figures = Arc::clone(decoding.figures());
        let alone = decoding.run(sharing, wal, out.clone(), Arc::clone(heard));
        let running = tokio::spawn(async move {
            let ended = figures.cpu.of(alone).await?;
            Ok(ended.map(|(decoding, sharing, step)| (LinkedDecoding { decoding, sharing }, step)))
        });
        let mut decoding = AbortOnDropHandle::new(running);
        tokio::select! {
            ended = self.receive(progress, heard, &blocks, stop) => ended?,
            ended = &mut decoding => return ended.unwrap_or_else(|error| Err(broke(&error))),
        }
        // Decoding takes no more, perhaps because it goes on with others, or is about to.
        drop(blocks);
        let ended = (&mut decoding).await.unwrap_or_else(|error| Err(broke(&error)))?;
        Ok(ended.filter(|_| !stop.is_cancelled()))
    }

    /// Receives WAL: first from the archive, if necessary, then from the stream.
    async fn receive(
        &mut self,
        progress: &Progress,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        if let Some((archive, wire)) = self.archive.take() {
            let from = archive.from;
            behind_standbys(self.begin.standbys.as_ref(), from, out, stop, |out| async move {
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
}

impl Begin {
    fn options_at(&self, start: Lsn) -> StreamOptions {
        StreamOptions { start, ..self.options.clone() }
    }

    /// Starts shipping from `options.start` on, behind the record at `last`. If a connection is
    /// needed, its name has `role`.
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

    /// Moves the slot while no walsender of this subscription does. A server invalidates slots that
    /// stay unused for too long, so this also touches a slot that need not move.
    ///
    /// # Errors
    /// The slot is gone or lost.
    async fn move_slot(&self, restart_lsn: &RestartLsn) -> Result<Infallible, Error> {
        let Some(slot) = &self.options.slot else { return std::future::pending().await };
        let mut session = None;
        let (mut moved, mut at) = (Lsn::INVALID, Instant::now());
        loop {
            tokio::time::sleep(MOVE_SLOT).await;
            let lsn = restart_lsn.slot_lsn();
            if lsn == moved && at.elapsed() < TOUCH_SLOT {
                continue;
            }
            match self.move_slot_to(&mut session, slot, lsn).await {
                Ok(true) => (moved, at) = (lsn, Instant::now()),
                Ok(false) => {}
                Err(error) if error.is_refused() || matches!(error.kind(), Kind::Pass(_)) => {
                    return Err(error);
                }
                // If the cause lasts, the stream fails, too, and reports it.
                Err(error) => {
                    tracing::warn!("{}; pgsluice tries again", base::with_causes(&error));
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
        // The next attempt decides what to do: the source may have failed over meanwhile.
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
            if let What::Wal { restart_lsn, .. } = &mut options.what {
                // The slot is moved separately in this case.
                *restart_lsn = Arc::default();
            }
            begin.ship("pass", options, last).await
        })
    }
}

async fn decode_with_others(
    linked: LinkedDecoding,
    step: SharingStep,
    links: &MemberLinks<'_>,
) -> Result<Option<LinkedDecoding>, Error> {
    match step {
        SharingStep::Join(commands) => pass::take_part(commands, linked, links).await,
        SharingStep::Found(commands) => pass::found(commands, linked, links).await,
    }
}
