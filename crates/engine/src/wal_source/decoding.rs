//! Between a physical stream and the applier: WAL in, messages of pgoutput out.
//!
//! ```text
//! walsender --> Stream --blocks of WAL--> Decoding --blocks of messages--> apply
//!                  ^ RestartLsn              |  '-- Keeper: catalogs as of a restart, in a file
//!                  '-------------------------'
//! ```
//! A [`Decoding`] serves one subscription alone. The part beside its decoder, the [`Outlet`], goes
//! with the subscription into a pass that decodes for several: see `pass`.
//!
//! After a restart, reading begins where the kept catalogs are. That place must lie before the
//! first record of every transaction that is not confirmed. So the keeper copies the catalogs at
//! some place, and writes them to the file only when two conditions hold:
//!
//! 1. The server has said that all transactions which were met before that place have ended.
//! 2. Everything that was read until the server said so is durable on the target.
//!
//! Only then is the slot moved to that place. After a kill at any moment, the file and the slot
//! belong together, or the slot is behind the file, which only keeps more WAL.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::crash_phases::{self, Phase};
use base::{Lsn, Progress, SubscriptionName, Xid};
use bytes::{Bytes, BytesMut};
use catalog::Catalog;
use output::{Decoder, OnRefused, OriginFilter, Place, Publications, Running, Streaming, TakesPart};
use source::publication::{PublishedTable, TableName};
use source::queue::{BLOCK_BYTES, Room};
use source::stream::{Heard, RestartLsn};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use txn::{Block, Input};

use super::pass::{Sharing, SharingStep};
use super::restart::{Restart, last_record};
use crate::error::{Error, Kind};
use crate::refusal::Refusal;
use crate::spooling::{Spooling, Watched};
use crate::{Origin, Settings};

/// Longest time for which messages are gathered while more WAL is there, since little may come out
/// of it.
const HAND_OVER_AFTER: Duration = Duration::from_millis(100);
/// Catalogs are kept anew after this much WAL and [`KEEP_AFTER`], or after [`KEEP_BYTES_MAX`].
const KEEP_BYTES: u64 = 1 << 20;
const KEEP_AFTER: Duration = Duration::from_secs(5);
const KEEP_BYTES_MAX: u64 = 256 << 20;
/// Interval between looks at whether candidate catalogs can be kept, and at which other
/// subscriptions are there.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// The same while a joiner waits for a pass, or a message for a full queue.
pub(crate) const LOOK_OFTEN: Duration = Duration::from_millis(5);

/// What a subscription asks of decoding.
pub(crate) struct Wanted<'s> {
    pub(crate) settings: &'s Settings,
    pub(crate) version: base::PgVersion,
    /// Sends values in binary form.
    pub(crate) binary: bool,
    /// Everything that committed before this position has been applied.
    pub(crate) start: Lsn,
    pub(crate) segment_size: u64,
    /// The source's own `logical_decoding_work_mem`.
    pub(crate) work_mem_bytes: usize,
    /// Tables that cannot be decoded are left out, unless they are among these.
    pub(crate) takes_part: TakesPart,
    /// Figures of what waits on disk.
    pub(crate) spooling: &'s Arc<Spooling>,
}

impl Wanted<'_> {
    /// Refuses published tables that cannot be decoded outside the server. This runs before the
    /// first copy, not at each start. A start sees the catalogs as they were, and not what the
    /// operator has done since.
    pub(crate) fn refuse(&self, catalog: &Catalog, published: &[PublishedTable]) -> Result<(), Error> {
        let refused = self.decoder(catalog.clone())?.refused()?;
        if refused.is_empty() {
            return Ok(());
        }
        let filter = |refused: &output::Refused| {
            let name = TableName::new(&refused.schema, &refused.table);
            let table = published.iter().find(|table| refused.is_filter && table.name == name)?;
            table.row_filter.as_deref()
        };
        let told = |refused: &output::Refused| match filter(refused) {
            Some(sql) => format!("{refused}: WHERE {sql}"),
            None => refused.to_string(),
        };
        Err(Error::refused(Refusal::Undecodable(refused.iter().map(told).collect())))
    }

    fn decoder(&self, catalog: Catalog) -> Result<Decoder, Error> {
        let options = self.options(&catalog)?;
        let spool = Watched::open(self.settings.decoding_dir(), self.spooling).map_err(Kind::Spool)?;
        Ok(Decoder::new(catalog, options, Box::new(spool))?)
    }

    /// The options with which everything in these catalogs is decoded.
    pub(crate) fn options(&self, catalog: &Catalog) -> Result<output::Options, Error> {
        let settings = self.settings;
        // The look was at one database, whatever its name is by now.
        let database = catalog.databases().first().map(|(oid, _)| *oid).ok_or_else(|| {
            let why = "it has no database".to_owned();
            Error::refused(Refusal::NoRestart { path: settings.restart_file(), why })
        })?;
        let publications = Publications::Named(settings.publications.clone());
        let rendering = types::Settings::new(self.version);
        let mut options = output::Options::new(database, publications, self.start, rendering);
        options.proto_version = self.version.pgoutput_protocol_max();
        options.binary = self.binary;
        options.streaming = if settings.streaming { Streaming::On } else { Streaming::Off };
        options.origin = match settings.origin {
            Origin::Any => OriginFilter::Any,
            Origin::None => OriginFilter::None,
        };
        options.segment_size = self.segment_size;
        options.work_mem_bytes = self.work_mem_bytes;
        options.refused = OnRefused::LeaveOutOthers(self.takes_part.clone());
        options.all_publications = true;
        Ok(options)
    }
}

/// Asks for the catalogs as they are once everything up to `to` was decoded.
pub(crate) struct Ask {
    pub(crate) to: Lsn,
    pub(crate) answer: oneshot::Sender<AtPlace>,
}

/// The catalogs at a place in the WAL.
pub(crate) struct AtPlace {
    pub(crate) catalog: Catalog,
    /// Where they were last changed for all transactions.
    pub(crate) changed: Lsn,
}

/// One subscription's decoding.
pub(crate) struct Decoding {
    decoder: Decoder,
    outlet: Outlet,
}

/// What takes the messages that are decoded for one subscription, alone or in a pass with others.
pub(crate) struct Outlet {
    pub(crate) name: SubscriptionName,
    pub(crate) sharing: Sharing,
    keeper: Keeper,
    progress: Arc<Progress>,
    gather: Gather,
    asks: mpsc::Receiver<Ask>,
    /// A question that cannot be answered yet.
    asked: Option<Ask>,
}

impl fmt::Debug for Decoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Decoding of {} at {}", self.outlet.name, self.decoder.decoded())
    }
}

/// Whether messages were handed over.
pub(crate) enum Handed {
    Yes,
    /// This many bytes wait for room.
    Later(usize),
    /// The receiver has gone.
    Gone,
}

impl Decoding {
    /// Goes on from the kept catalogs.
    pub(crate) fn new(
        restart: Restart,
        restart_lsn: Arc<RestartLsn>,
        progress: Arc<Progress>,
        asks: mpsc::Receiver<Ask>,
        sharing: Sharing,
        wanted: &Wanted<'_>,
    ) -> Result<Decoding, Error> {
        restart_lsn.advance(restart.lsn());
        let Restart { slot, timeline, seen, catalog, .. } = restart;
        let saved = last_record(&catalog);
        let decoder = wanted.decoder(catalog)?;
        let path = wanted.settings.restart_file();
        let keeper = Keeper {
            path,
            slot,
            timeline,
            seen,
            restart_lsn,
            saved,
            at: Instant::now(),
            candidate: None,
            saving: None,
        };
        let name = wanted.settings.subscription.clone();
        let outlet = Outlet { name, sharing, keeper, progress, gather: Gather::new(), asks, asked: None };
        Ok(Decoding { decoder, outlet })
    }

    /// Goes on where a pass has come to.
    pub(crate) fn of(decoder: Decoder, outlet: Outlet) -> Decoding {
        Decoding { decoder, outlet }
    }

    pub(crate) fn into_parts(self) -> (Decoder, Outlet) {
        (self.decoder, self.outlet)
    }

    /// The name of the subscription.
    pub(crate) fn name(&self) -> &SubscriptionName {
        &self.outlet.name
    }

    /// The link to other subscriptions that follow the same server.
    pub(crate) fn sharing(&mut self) -> &mut Sharing {
        &mut self.outlet.sharing
    }

    /// Where the stream must begin.
    pub(crate) fn position(&self) -> Lsn {
        self.decoder.position()
    }

    /// Where the last record before [`Decoding::position`] begins that was read; if none was, where
    /// reading begins.
    pub(crate) fn last_record(&self) -> Lsn {
        last_record(self.decoder.place().catalog)
    }

    /// The position from which its slot must keep WAL.
    pub(crate) fn restart_lsn(&self) -> Arc<RestartLsn> {
        Arc::clone(&self.outlet.keeper.restart_lsn)
    }

    /// Decodes until no more WAL comes, `out` is closed, or the subscription can found or join a
    /// pass.
    pub(crate) async fn run(
        mut self,
        mut wal: mpsc::Receiver<Block>,
        out: mpsc::Sender<Block>,
        heard: Arc<Heard>,
    ) -> Result<Option<(Decoding, SharingStep)>, Error> {
        // Takes up what was left over from a pass.
        if !self.push(&[], &out, &heard).await? {
            return Ok(None);
        }
        loop {
            let patience = if self.outlet.sharing.is_waited_for() { LOOK_OFTEN } else { LOOK };
            match tokio::time::timeout(patience, wal.recv()).await {
                Ok(Some(block)) => {
                    for input in &block.inputs {
                        let Input::Bytes(bytes) = input else { continue };
                        match self.push(bytes, &out, &heard).await {
                            Ok(true) => {}
                            Ok(false) => return Ok(None),
                            Err(error) => return Err(self.outlet.drained(error, &out).await),
                        }
                    }
                }
                Ok(None) => return Ok(None),
                Err(_) => {}
            }
            let place = self.decoder.place();
            self.outlet.progress.advance_received(place.decoded);
            // Everything that ended before has been handed over by then.
            if self.outlet.gather.is_due(wal.is_empty())
                && !self.outlet.gather.hand_over(Some(place.decoded), &out).await
            {
                return Ok(None);
            }
            self.outlet.look(place)?;
            match self.outlet.sharing.look(place, heard.wal_end()) {
                SharingStep::Alone => {}
                // Gathered messages go with it.
                step => return Ok(Some((self, step))),
            }
        }
    }

    /// Decodes `bytes`. Returns false if `out` is closed.
    async fn push(&mut self, bytes: &[u8], out: &mpsc::Sender<Block>, heard: &Heard) -> Result<bool, Error> {
        let gather = &mut self.outlet.gather;
        let mut outputs = self.decoder.push(bytes)?;
        while let Some(output) = outputs.next()? {
            heard.message(output.data);
            gather.add(output.data);
            if gather.bytes.len() >= BLOCK_BYTES && !gather.hand_over(None, out).await {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Outlet {
    /// Adds a message that came out for this subscription.
    pub(crate) fn add(&mut self, message: &[u8], out: &mpsc::Sender<Block>) -> Handed {
        self.gather.add(message);
        if self.gather.bytes.len() < BLOCK_BYTES {
            return Handed::Yes;
        }
        self.gather.try_hand_over(None, out)
    }

    /// Notes that everything up to `place` was decoded and has come out.
    pub(crate) fn came_to(&mut self, place: Place<'_>, nothing_waits: bool, out: &mpsc::Sender<Block>) {
        self.progress.advance_received(place.decoded);
        if self.gather.is_due(nothing_waits) {
            // A message that finds no room is handed over later; a closed queue is noticed
            // elsewhere.
            self.gather.try_hand_over(Some(place.decoded), out);
        }
    }

    /// Tries again to hand over messages that found no room.
    pub(crate) fn hand_over(&mut self, out: &mpsc::Sender<Block>) -> Handed {
        self.gather.try_hand_over(None, out)
    }

    /// Whether messages wait for room in a full queue.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.gather.waits
    }

    /// The position up to which the target has everything on disk.
    pub(crate) fn flushed(&self) -> Lsn {
        self.progress.snapshot().flushed
    }

    /// Returns `error` after waiting, if it proves that the catalogs were right up to its position.
    /// The wait lasts until everything before that position is durable on the target. The less is
    /// left, the fewer tables must be copied again. Each record comes out as a whole, or the
    /// catalogs would have followed it.
    pub(crate) async fn drained(&mut self, error: Error, out: &mpsc::Sender<Block>) -> Error {
        let Some(at) = error.lost().filter(|lost| lost.is_proven).and_then(|lost| lost.at) else {
            return error;
        };
        tracing::warn!(subscription = %self.name, "{}; what came before is applied first", base::with_causes(&error));
        if self.gather.hand_over(Some(at), out).await {
            while self.flushed() < at && !out.is_closed() {
                self.progress.want_flush();
                tokio::time::sleep(LOOK_OFTEN).await;
            }
        }
        error
    }

    /// Answers a question for the catalogs, and keeps them for a restart.
    ///
    /// # Errors
    /// They could not be kept.
    pub(crate) fn look(&mut self, place: Place<'_>) -> Result<(), Error> {
        self.asked = self.asked.take().or_else(|| self.asks.try_recv().ok());
        if let Some(ask) = self.asked.take_if(|ask| ask.to <= place.decoded) {
            // The session that asked may have gone.
            let _ = ask.answer.send(AtPlace { catalog: place.catalog.clone(), changed: place.changed });
        }
        self.keeper.look(place, &self.progress).map_err(Kind::Spool)?;
        self.sharing.needs_from(self.keeper.saved);
        Ok(())
    }
}

/// Messages that are handed over together.
struct Gather {
    bytes: BytesMut,
    ends: Vec<usize>,
    /// When messages were last handed over.
    since: Instant,
    room: Room,
    /// The last attempt found no room.
    waits: bool,
}

impl Gather {
    fn new() -> Gather {
        Gather {
            bytes: BytesMut::new(),
            ends: Vec::new(),
            since: Instant::now(),
            room: Room::default(),
            waits: false,
        }
    }

    /// Whether it is time to hand over messages, and to report how far decoding has come.
    fn is_due(&self, nothing_waits: bool) -> bool {
        nothing_waits || self.since.elapsed() >= HAND_OVER_AFTER || self.bytes.len() >= BLOCK_BYTES / 4
    }

    fn add(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.ends.push(self.bytes.len());
    }

    /// Waits for room. Returns false if `out` is closed.
    async fn hand_over(&mut self, caught_up: Option<Lsn>, out: &mpsc::Sender<Block>) -> bool {
        loop {
            let (count, size) = self.next_block();
            let place = self.room.place(size).await;
            let inputs = self.take((count, size), caught_up);
            if !inputs.is_empty() && out.send(place.with(inputs)).await.is_err() {
                return false;
            }
            if self.ends.is_empty() {
                return true;
            }
        }
    }

    /// As [`Gather::hand_over`], but without waiting for room.
    fn try_hand_over(&mut self, caught_up: Option<Lsn>, out: &mpsc::Sender<Block>) -> Handed {
        loop {
            let slot = match out.try_reserve() {
                Ok(slot) => slot,
                Err(TrySendError::Closed(())) => return Handed::Gone,
                Err(TrySendError::Full(())) => return self.later(),
            };
            let (count, size) = self.next_block();
            let Some(place) = self.room.try_place(size) else {
                return self.later();
            };
            let inputs = self.take((count, size), caught_up);
            if !inputs.is_empty() {
                slot.send(place.with(inputs));
            }
            if self.ends.is_empty() {
                return Handed::Yes;
            }
        }
    }

    fn later(&mut self) -> Handed {
        self.waits = true;
        Handed::Later(self.bytes.len())
    }

    /// How many messages go together next, and their bytes.
    fn next_block(&self) -> (usize, usize) {
        let fit = self.ends.partition_point(|end| *end <= BLOCK_BYTES);
        let count = fit.max(1).min(self.ends.len());
        (count, count.checked_sub(1).map_or(0, |last| self.ends[last]))
    }

    /// Takes messages; `caught_up` follows the last of them.
    fn take(&mut self, (count, size): (usize, usize), caught_up: Option<Lsn>) -> Vec<Input> {
        (self.since, self.waits) = (Instant::now(), false);
        let bytes: Bytes = self.bytes.split_to(size).freeze();
        let mut from = 0;
        let mut inputs: Vec<Input> = Vec::with_capacity(count + 1);
        for to in self.ends.drain(..count) {
            inputs.push(Input::Bytes(bytes.slice(from..to)));
            from = to;
        }
        self.ends.iter_mut().for_each(|end| *end -= size);
        inputs.extend(caught_up.filter(|_| self.ends.is_empty()).map(Input::CaughtUp));
        inputs
    }
}

/// Keeps the catalogs for a restart; see the module.
struct Keeper {
    path: PathBuf,
    slot: String,
    timeline: u32,
    seen: Lsn,
    restart_lsn: Arc<RestartLsn>,
    /// The place of the catalogs that were kept last.
    saved: Lsn,
    at: Instant,
    candidate: Option<Candidate>,
    /// The place of the catalogs that are being written, and the result once it is there.
    saving: Option<(Lsn, oneshot::Receiver<io::Result<()>>)>,
}

/// Catalogs that may be kept when no WAL from before them is needed any more.
struct Candidate {
    catalog: Catalog,
    met: Met,
    /// How far decoding had read when those transactions had ended.
    ended: Option<Lsn>,
}

/// Transactions that were met up to a place in the WAL.
struct Met {
    lsn: Lsn,
    /// The newest of them.
    newest: Xid,
}

impl Met {
    /// Whether the server's list of running transactions shows that all of these have ended.
    fn have_ended(&self, running: Running) -> bool {
        running.lsn > self.lsn && (!self.newest.is_valid() || self.newest.precedes(running.oldest))
    }
}

impl Keeper {
    /// Copies the catalogs, writes them once that is right, or moves the slot once they are
    /// written.
    fn look(&mut self, place: Place<'_>, progress: &Progress) -> io::Result<()> {
        if let Some((lsn, saving)) = &mut self.saving {
            match saving.try_recv() {
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Closed) => {
                    return Err(io::Error::other("what writes the catalogs broke down"));
                }
                Ok(saved) => saved?,
            }
            tracing::debug!("a restart would read WAL from {lsn} on");
            (self.saved, self.at) = (*lsn, Instant::now());
            self.restart_lsn.advance(*lsn);
            self.saving = None;
        }
        let Some(candidate) = &mut self.candidate else {
            let last = last_record(place.catalog);
            // A slot that was made anew may not have this WAL yet. If the catalogs were kept now, a
            // restart would believe that it does.
            let since = if last < self.restart_lsn.lsn() { 0 } else { last.bytes_since(self.saved) };
            if since >= KEEP_BYTES_MAX || since >= KEEP_BYTES && self.at.elapsed() >= KEEP_AFTER {
                let met = Met { lsn: place.catalog.last(), newest: place.newest };
                self.candidate = Some(Candidate { catalog: place.catalog.clone(), met, ended: None });
            }
            return Ok(());
        };
        if candidate.ended.is_none() && place.running.is_some_and(|running| candidate.met.have_ended(running))
        {
            candidate.ended = Some(place.decoded);
        }
        let confirmed = progress.snapshot().flushed;
        if candidate.ended.is_some_and(|ended| confirmed >= ended)
            && let Some(Candidate { catalog, .. }) = self.candidate.take()
        {
            let (slot, timeline, seen) = (self.slot.clone(), self.timeline, self.seen);
            self.save(Restart { slot, timeline, confirmed, seen, catalog });
        }
        Ok(())
    }

    /// Writes the file in the background.
    fn save(&mut self, restart: Restart) {
        let (path, lsn) = (self.path.clone(), restart.lsn());
        let (done, saving) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let _keep = crash_phases::inside(Phase::Keep);
            let saved = restart.save(&path);
            // The keeper may have gone.
            let _ =
                done.send(saved.map_err(|error| io::Error::other(format!("{}: {error}", path.display()))));
        });
        self.saving = Some((lsn, saving));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catalogs_are_kept_when_all_that_were_met_before_have_ended() {
        let met = |newest: u32| Met { lsn: Lsn::new(100), newest: Xid(newest) };
        let running = |lsn: u64, oldest: u32| Running { lsn: Lsn::new(lsn), oldest: Xid(oldest) };
        assert!(!met(900).have_ended(running(108, 900)), "it runs");
        assert!(!met(900).have_ended(running(108, 899)), "an older one runs");
        assert!(met(900).have_ended(running(108, 901)));
        assert!(!met(900).have_ended(running(100, 901)), "said before");
        assert!(met(u32::MAX).have_ended(running(108, 3)), "ids wrap around");
        assert!(met(0).have_ended(running(108, 3)), "none was met");
    }
}
