//! Between a physical stream and the applier: WAL in, messages of pgoutput out.
//!
//! ```text
//! walsender --> Stream --blocks of WAL--> Decoding --blocks of messages--> apply
//!                  ^ RestartLsn              |  '-- Keeper: catalogs as of a restart, in a file
//!                  '-------------------------'
//! ```
//! A [`Decoding`] serves one subscription alone. The part beside its decoder, the [`Outlet`], goes
//! with the subscription into a pass that decodes for several: see `pass`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, Progress, SubscriptionName};
use catalog::Catalog;
use output::{Decoder, OnRefused, Place, Publications, Streaming, TakesPart};
use source::publication::{PublishedTable, TableName};
use source::queue::BLOCK_BYTES;
use source::restart_lsn::RestartLsn;
use source::stream::Heard;
use tokio::sync::{mpsc, oneshot};
use txn::{Block, Input};

use crate::decoded::Decoded;
use crate::error::{Error, Kind};
use crate::gather::{Gather, Handed};
use crate::keeper::Keeper;
use crate::restart::Restart;
use crate::unfit::Unfit;
use crate::{OpenSpool, Settings};

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
    /// Opens the spool for what waits on disk.
    pub(crate) open_spool: OpenSpool,
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
        let filter = |refused: &output::RefusedTable| {
            let name = TableName::new(&refused.schema, &refused.table);
            let table = published.iter().find(|table| refused.is_filter && table.name == name)?;
            table.row_filter.as_deref()
        };
        let told = |refused: &output::RefusedTable| match filter(refused) {
            Some(sql) => format!("{refused}: WHERE {sql}"),
            None => refused.to_string(),
        };
        Err(Unfit::Undecodable(refused.iter().map(told).collect()).into())
    }

    fn decoder(&self, catalog: Catalog) -> Result<Decoder, Error> {
        let options = self.options(&catalog)?;
        let spool = (self.open_spool)().map_err(Kind::Spool)?;
        Ok(Decoder::new(catalog, options, spool)?)
    }

    /// The options with which everything in these catalogs is decoded.
    pub(crate) fn options(&self, catalog: &Catalog) -> Result<output::Options, Error> {
        let settings = self.settings;
        // The look was at one database, whatever its name is by now.
        let database = catalog.databases().first().map(|(oid, _)| *oid).ok_or_else(|| {
            let why = "it has no database".to_owned();
            Unfit::NoRestart { path: settings.restart_file.clone(), why }
        })?;
        let publications = Publications::Named(settings.publications.clone());
        let rendering = types::Settings::new(self.version);
        let mut options = output::Options::new(database, publications, self.start, rendering);
        options.proto_version = self.version.pgoutput_protocol_max();
        options.binary = self.binary;
        options.streaming = if settings.streaming { Streaming::On } else { Streaming::Off };
        options.origin = settings.origin;
        options.segment_size = self.segment_size;
        options.work_mem_bytes = self.work_mem_bytes;
        options.refused = OnRefused::LeaveOutOthers(self.takes_part.clone());
        options.all_publications = true;
        Ok(options)
    }
}

/// Asks for the catalogs as they are once everything up to `to` was decoded.
pub struct Ask {
    pub(crate) to: Lsn,
    pub(crate) answer: oneshot::Sender<AtPlace>,
}

/// The catalogs at a place in the WAL.
pub(crate) struct AtPlace {
    pub(crate) catalog: Catalog,
    /// Where they were last changed for all transactions.
    pub(crate) changed: Lsn,
}

/// The other subscriptions that follow the same server, as one that decodes alone sees them.
pub(crate) trait Others {
    /// What to do instead of decoding alone.
    type Step;

    /// Whether the others wait for this subscription.
    fn is_waited_for(&self) -> bool;

    /// Decides what to do at `place`, while the source has WAL up to `wal_end`. `None` means to go
    /// on alone.
    fn look(&mut self, place: Place<'_>, wal_end: Lsn) -> Option<Self::Step>;
}

/// One subscription's decoding.
pub(crate) struct Decoding {
    decoder: Decoder,
    outlet: Outlet,
}

/// What takes the messages that are decoded for one subscription, alone or in a pass with others.
pub(crate) struct Outlet {
    pub(crate) name: SubscriptionName,
    /// What the status shows of this decoding.
    pub(crate) figures: Arc<Decoded>,
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

impl Decoding {
    /// Goes on from the kept catalogs.
    pub(crate) fn new(
        restart: Restart,
        restart_lsn: Arc<RestartLsn>,
        progress: Arc<Progress>,
        asks: mpsc::Receiver<Ask>,
        figures: &Arc<Decoded>,
        wanted: &Wanted<'_>,
    ) -> Result<Decoding, Error> {
        restart_lsn.advance(restart.lsn());
        let Restart { slot, timeline, seen, catalog, .. } = restart;
        let saved = catalog.needs_from();
        let decoder = wanted.decoder(catalog)?;
        let path = wanted.settings.restart_file.clone();
        let keeper = Keeper::new(path, (slot, timeline, seen), restart_lsn, saved);
        let name = wanted.settings.subscription.clone();
        let figures = Arc::clone(figures);
        let outlet = Outlet { name, figures, keeper, progress, gather: Gather::new(), asks, asked: None };
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

    /// What the status shows of this decoding.
    pub(crate) fn figures(&self) -> &Arc<Decoded> {
        &self.outlet.figures
    }

    /// Where the stream must begin.
    pub(crate) fn position(&self) -> Lsn {
        self.decoder.position()
    }

    /// Where the last record before [`Decoding::position`] begins that was read; if none was, where
    /// reading begins.
    pub(crate) fn last_record(&self) -> Lsn {
        self.decoder.place().catalog.needs_from()
    }

    /// The position from which its slot must keep WAL.
    pub(crate) fn restart_lsn(&self) -> Arc<RestartLsn> {
        self.outlet.keeper.restart_lsn()
    }

    /// Decodes until no more WAL comes, `out` is closed, or `others` say that there is something
    /// else to do.
    pub(crate) async fn run<O: Others>(
        self,
        others: O,
        mut wal: mpsc::Receiver<Block>,
        out: mpsc::Sender<Block>,
        heard: Arc<Heard>,
    ) -> Result<Option<(Decoding, O, O::Step)>, Error> {
        // The link to the others is dropped last: as long as it exists, the next attempt leaves the
        // spool alone.
        let mut others = others;
        let mut own = self;
        // Takes up what was left over from a pass.
        if !own.push(&[], &out, &heard).await? {
            return Ok(None);
        }
        loop {
            let patience = if others.is_waited_for() { LOOK_OFTEN } else { LOOK };
            match tokio::time::timeout(patience, wal.recv()).await {
                Ok(Some(block)) => {
                    for input in &block.inputs {
                        let Input::Bytes(bytes) = input else { continue };
                        match own.push(bytes, &out, &heard).await {
                            Ok(true) => {}
                            Ok(false) => return Ok(None),
                            Err(error) => return Err(own.outlet.drained(error, &out).await),
                        }
                    }
                }
                Ok(None) => return Ok(None),
                Err(_) => {}
            }
            let place = own.decoder.place();
            own.outlet.progress.advance_received(place.decoded);
            // Everything that ended before has been handed over by then.
            if own.outlet.gather.is_due(wal.is_empty())
                && !own.outlet.gather.hand_over(Some(place.decoded), &out).await
            {
                return Ok(None);
            }
            own.outlet.look(place)?;
            if let Some(step) = others.look(place, heard.wal_end()) {
                // Gathered messages go with it.
                return Ok(Some((own, others, step)));
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
            if gather.bytes() >= BLOCK_BYTES && !gather.hand_over(None, out).await {
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
        if self.gather.bytes() < BLOCK_BYTES {
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
        self.gather.waits_for_room()
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
        tracing::warn!(
            subscription = %self.name,
            "{}; pgsluice first applies what came before",
            base::with_causes(&error)
        );
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
        self.figures.needs_from(self.keeper.saved());
        Ok(())
    }
}
