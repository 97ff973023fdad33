//! Receives the publisher's WAL once, and keeps it.
//!
//! ```text
//! walsender --physical slot--> Receiver --write--> wal_dir --sync--> confirmed
//! ```
//! What is confirmed is durable here, and nothing else moves the slot: no subscriber does (rule L2,
//! point 4). So the receiver is a synchronous standby that the server may wait for. It reports no
//! applied position, because nothing is applied here.
//!
//! WAL is synced whenever nothing more has arrived. If the disk is full, the receiver stops to
//! confirm and tries again, and the connection stays.
//!
//! If the publisher does not have the WAL any more that must come next, an archive may have it. The
//! slot keeps WAL meanwhile, from where it was made anew on. What is copied ends where that begins.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{Lsn, PgTimestamp, quote_ident, quote_literal};
use bytes::Bytes;
use client::{ConnInfo, Replication, SqlState, Wire};
use proto::replication::{StandbyStatus, WalsenderMessage, start_physical};
use source::segments::Lineage;
use source::slot::{Fork, identify_system, shown};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use wal_dir::{Opened, Writer, forks};

use crate::archive::WalArchive;
use crate::fill::{FillError, Filling, Gap};

/// Between two looks at what is due.
const LOOK: Duration = Duration::from_millis(100);
/// Between two attempts to write while the disk is full.
const FULL_RETRY: Duration = Duration::from_secs(1);
/// Between two removals of segments that nobody needs.
const REMOVE: Duration = Duration::from_secs(1);
const COPY_DONE: u8 = b'c';
/// A physical slot with WAL since the last checkpoint.
const MADE: &str = "RESERVE_WAL";

/// Where WAL comes from, and with which limits.
#[derive(Debug, Clone)]
pub struct ReceiverSettings {
    /// The publisher.
    pub source: ConnInfo,
    /// The physical slot, which is made if there is none.
    pub slot: String,
    /// The connection's name, by which `synchronous_standby_names` can name it.
    pub application_name: String,
    /// Report at least this often (`wal_receiver_status_interval`).
    pub status_interval: Duration,
    /// Give up after this much silence; zero: never (`wal_receiver_timeout`).
    pub timeout: Duration,
    /// What may have WAL that the publisher does not have any more.
    pub archive: Option<WalArchive>,
}

/// What the receiver has, for all who want to know.
#[derive(Debug, Default)]
pub struct Received {
    written: AtomicU64,
    timeline: AtomicU32,
    synced: AtomicU64,
    server_end: AtomicU64,
    /// WAL before is not needed.
    needed: AtomicU64,
    /// Of a timeline, WAL before is in an archive, and is not to be kept here.
    archived: Mutex<(u32, Lsn)>,
    is_full: std::sync::atomic::AtomicBool,
}

impl Received {
    /// WAL is written up to here.
    #[must_use]
    pub fn written(&self) -> Lsn {
        Lsn::new(self.written.load(Ordering::Relaxed))
    }

    /// The timeline of the last bytes.
    #[must_use]
    pub fn timeline(&self) -> u32 {
        self.timeline.load(Ordering::Relaxed)
    }

    /// WAL is durable, and confirmed to the server, up to here.
    #[must_use]
    pub fn synced(&self) -> Lsn {
        Lsn::new(self.synced.load(Ordering::Relaxed))
    }

    /// WAL is on the server up to here, by its last message.
    #[must_use]
    pub fn server_end(&self) -> Lsn {
        Lsn::new(self.server_end.load(Ordering::Relaxed))
    }

    /// Whether WAL waits for room on the disk.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Says that WAL before `lsn` is not needed any more. It never falls.
    pub fn needs_from(&self, lsn: Lsn) {
        self.needed.fetch_max(lsn.as_u64(), Ordering::Relaxed);
    }

    /// Says that WAL of `timeline`, and of those before it, may go before `lsn`, although it may be
    /// needed: an archive has it.
    pub(crate) fn is_archived(&self, timeline: u32, lsn: Lsn) {
        *self.archived.lock().unwrap_or_else(PoisonError::into_inner) = (timeline, lsn);
    }

    /// WAL before may go.
    fn goes_before(&self) -> Lsn {
        let needed = Lsn::new(self.needed.load(Ordering::Relaxed));
        // What was compared before the publisher left its timeline may have been taken back.
        let (timeline, archived) = *self.archived.lock().unwrap_or_else(PoisonError::into_inner);
        if timeline == self.timeline() { needed.max(archived) } else { needed }
    }
}

/// Why no WAL comes.
#[derive(Debug)]
pub struct ReceiverError(pub(crate) Kind);

#[derive(Debug)]
pub(crate) enum Kind {
    Client {
        doing: String,
        error: client::Error,
    },
    Source(source::Error),
    Wal(wal_dir::Error),
    /// An answer of the server that makes no sense.
    Answer {
        doing: String,
        answer: String,
    },
    Silent(Duration),
    Ended,
    /// Another cluster answers.
    OtherSystem {
        known: u64,
        found: u64,
    },
    /// It left the timeline that is kept here, and nobody has heard of it yet.
    Left {
        timeline: u32,
        fork: Lsn,
    },
    /// The server's history does not have the timeline that is kept here.
    OtherHistory {
        kept: u32,
        end: Lsn,
        found: u32,
    },
    /// The server does not have the WAL any more that is needed here.
    Gone {
        slot: String,
        needed: Lsn,
        error: client::Error,
    },
    /// Nor does the archive.
    Fill {
        needed: Lsn,
        error: FillError,
    },
}

impl From<wal_dir::Error> for ReceiverError {
    fn from(error: wal_dir::Error) -> ReceiverError {
        ReceiverError(Kind::Wal(error))
    }
}

impl fmt::Display for ReceiverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Client { doing, error } => write!(f, "cannot {doing}: {error}"),
            Kind::Source(error) => error.fmt(f),
            Kind::Wal(error) => error.fmt(f),
            Kind::Answer { doing, answer } => write!(f, "cannot {doing}: the server answered {answer}"),
            Kind::Silent(time) => write!(
                f,
                "the publisher has sent nothing for {} s; see whether it and the network are up, or raise \
                 wal_receiver_timeout",
                time.as_secs()
            ),
            Kind::Ended => f.write_str("the publisher ended the stream of WAL"),
            Kind::OtherSystem { known, found } => write!(
                f,
                "the relay's WAL is of system {known}, and the server is system {found}; give the connection string \
                 of the publisher, or begin with an empty data directory"
            ),
            Kind::Left { timeline, fork } => write!(f, "the publisher left timeline {timeline} at {fork}"),
            Kind::OtherHistory { kept, end, found } => write!(
                f,
                "the relay has WAL of timeline {kept} up to {end}, and the server, on timeline {found}, does not come \
                 from there; begin with an empty data directory, and make the subscriptions anew"
            ),
            Kind::Gone { slot, needed, error } => write!(
                f,
                "the relay needs WAL from {needed} on, and the publisher does not have it any more: {error}; give the \
                 directory that its archive_command fills as wal_archive; or begin with an empty data directory, make \
                 the subscriptions anew, and let slot \"{slot}\" keep more (max_slot_wal_keep_size)"
            ),
            Kind::Fill { needed, error } => write!(
                f,
                "the publisher does not have WAL from {needed} on any more, and the archive cannot supply it: {error}"
            ),
        }
    }
}

impl std::error::Error for ReceiverError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Client { error, .. } | Kind::Gone { error, .. } => Some(error),
            Kind::Source(error) => Some(error),
            Kind::Wal(error) | Kind::Fill { error: FillError::Write(error), .. } => Some(error),
            _ => None,
        }
    }
}

impl ReceiverError {
    /// Where the publisher left its timeline, if more was received of it than that. What is behind
    /// is to be taken back: see [`Receiver::cut`].
    #[must_use]
    pub fn fork(&self) -> Option<Lsn> {
        match &self.0 {
            Kind::Wal(error) => error.fork(),
            _ => None,
        }
    }

    /// Where the publisher left its timeline, as far as that is not known elsewhere. A subscriber
    /// may have more, since an earlier process of the relay may have received more: see
    /// [`Receiver::goes_on_behind`].
    #[must_use]
    pub fn left(&self) -> Option<Lsn> {
        match self.0 {
            Kind::Left { fork, .. } => Some(fork),
            _ => None,
        }
    }

    /// Whether somebody must bring WAL back to the archive, so that the same may come many times.
    #[must_use]
    pub fn waits_for_archive(&self) -> bool {
        matches!(self.0, Kind::Fill { .. })
    }

    fn is_gone(&self) -> bool {
        matches!(self.0, Kind::Gone { .. })
    }

    /// Whether another attempt may help.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match &self.0 {
            Kind::Client { error, .. } => !error.is_configuration(),
            Kind::Source(error) => !error.is_configuration(),
            Kind::Wal(error) => error.is_full() || error.fork().is_some(),
            Kind::Fill { error: FillError::Write(error), .. } => error.is_full(),
            Kind::Silent(_) | Kind::Ended | Kind::Answer { .. } | Kind::Fill { .. } | Kind::Left { .. } => {
                true
            }
            Kind::OtherSystem { .. } | Kind::OtherHistory { .. } | Kind::Gone { .. } => false,
        }
    }
}

/// Receives WAL into a directory, over one connection after the other.
pub struct Receiver {
    settings: ReceiverSettings,
    writer: Writer,
    is_empty: bool,
    /// The system whose WAL the directory has, once it is known.
    system_id: Option<u64>,
    publisher: Publisher,
    /// The slot does not keep the WAL that is needed.
    gives_up_slot: bool,
    /// Where the publisher left a timeline, as far as everybody has heard of it.
    left: Option<Lsn>,
    received: Arc<Received>,
}

/// The publisher, when it was last connected to.
#[derive(Debug, Default)]
struct Publisher {
    timeline: u32,
    /// Where it left earlier timelines, if it is on another one than the WAL that is kept.
    forks: Vec<Fork>,
    /// It keeps WAL from there on.
    slot_at: Lsn,
}

/// How a gap ended.
#[derive(Debug, PartialEq, Eq)]
enum Filled {
    /// The publisher has what comes next, or was asked not to wait for it.
    Done,
    /// The slot is not behind the gap.
    SlotIsOfNoUse,
}

/// One connection.
struct Streaming<'a> {
    receiver: &'a mut Receiver,
    wire: Wire,
    last_heard: Instant,
    last_report: Instant,
    last_removal: Instant,
    /// The server was asked for an answer, and has not given it.
    has_asked: bool,
    /// The stream is of a timeline that the server has left.
    is_left: bool,
    /// Bytes that there was no room for.
    waiting: Option<(Lsn, Bytes)>,
    /// When they are written again. A moment, because looks come more often than that.
    retry_at: Instant,
}

impl Receiver {
    /// A receiver that goes on where the directory ends, or where the slot begins if it is empty.
    /// `system_id` is the system whose WAL the directory has, if that is known.
    #[must_use]
    pub fn new(
        settings: ReceiverSettings,
        (writer, opened): (Writer, Opened),
        system_id: Option<u64>,
        received: Arc<Received>,
    ) -> Receiver {
        let receiver = Receiver {
            settings,
            writer,
            is_empty: opened == Opened::Empty,
            system_id,
            publisher: Publisher::default(),
            gives_up_slot: false,
            left: None,
            received,
        };
        receiver.note();
        receiver
    }

    /// Connects, and receives until `stop` is cancelled. After an error that passes, it may be
    /// called again.
    ///
    /// # Errors
    /// The server cannot be reached, is another one, does not have that WAL, or ends the stream; or
    /// WAL cannot be kept.
    pub async fn run(&mut self, stop: &CancellationToken) -> Result<(), ReceiverError> {
        let mut has_given_up = false;
        loop {
            let gone = match self.stream(stop).await {
                Err(error) if error.is_gone() => error,
                ended => return ended,
            };
            let Some(archive) = self.settings.archive.clone() else { return Err(gone) };
            match self.fill(archive, stop)? {
                Filled::Done if stop.is_cancelled() => return Ok(()),
                Filled::Done => has_given_up = false,
                Filled::SlotIsOfNoUse if has_given_up => return Err(gone),
                Filled::SlotIsOfNoUse => (self.gives_up_slot, has_given_up) = (true, true),
            }
        }
    }

    async fn stream(&mut self, stop: &CancellationToken) -> Result<(), ReceiverError> {
        let mut streaming = self.connect().await?;
        streaming.run(stop).await
    }

    /// Copies from an archive what the publisher does not have any more, as far as the slot or the
    /// next fork, or until `stop` is cancelled.
    fn fill(&mut self, archive: WalArchive, stop: &CancellationToken) -> Result<Filled, ReceiverError> {
        let (needed, segment_size) = (self.writer.end(), archive.segment_size());
        let Publisher { timeline, forks, slot_at } = &self.publisher;
        let slot_at = Lsn::new(slot_at.as_u64() / segment_size * segment_size);
        let fork = forks.iter().find(|fork| fork.timeline == self.writer.timeline());
        let until = fork.map_or(slot_at, |fork| fork.end.min(slot_at));
        let failed = |error| ReceiverError(Kind::Fill { needed, error });
        let lineage = Lineage { timeline: *timeline, forks: forks.clone(), segment_size };
        if until <= needed {
            // Without the WAL before it, another slot would be of no more use.
            archive
                .open(&lineage, needed, Duration::ZERO)
                .map_err(|error| failed(FillError::Segment(error)))?;
            return Ok(Filled::SlotIsOfNoUse);
        }
        let (dir, system_id) = (archive.dir().display().to_string(), self.system_id.unwrap_or_default());
        let gap = Gap { archive, lineage, system_id, until };
        let mut filling = self.blocking(|receiver| Filling::start(gap, &receiver.writer)).map_err(failed)?;
        let (mut is_done, mut is_told) = (false, false);
        while !is_done && !stop.is_cancelled() {
            let copied = self.blocking(|receiver| filling.segment(&mut receiver.writer));
            // Also what came before an error.
            self.sync()?;
            is_done = copied.map_err(failed)?;
            self.remove()?;
            if !std::mem::replace(&mut is_told, true) {
                tracing::info!(
                    "the publisher does not have WAL from {needed} on any more: reading it up to {until} in {dir}"
                );
            }
        }
        tracing::info!("WAL up to {} came from {dir}", self.writer.end());
        Ok(Filled::Done)
    }

    /// Does what may take its time, while others go on.
    fn blocking<T>(&mut self, run: impl FnOnce(&mut Receiver) -> T) -> T {
        tokio::task::block_in_place(|| run(self))
    }

    /// Makes durable what was written. Returns whether anything was.
    fn sync(&mut self) -> Result<bool, ReceiverError> {
        let before = self.received.synced();
        let synced = self.blocking(|receiver| receiver.writer.sync())?;
        self.note();
        self.received.synced.store(synced.as_u64(), Ordering::Relaxed);
        Ok(synced > before)
    }

    /// Removes segments that are not to be kept.
    fn remove(&mut self) -> Result<(), ReceiverError> {
        // What is not durable is needed, whatever anybody says.
        self.writer.remove_before(self.received.goes_before().min(self.received.synced()))?;
        Ok(())
    }

    /// Takes back WAL from `at` on, which the publisher does not have any more.
    ///
    /// # Errors
    /// A file cannot be changed.
    pub fn cut(&mut self, at: Lsn) -> Result<(), ReceiverError> {
        self.writer.cut(at)?;
        // It may begin before `at` again.
        self.received.synced.fetch_min(self.writer.end().as_u64(), Ordering::Relaxed);
        self.note();
        Ok(())
    }

    async fn connect(&mut self) -> Result<Streaming<'_>, ReceiverError> {
        let (source, name) = (&self.settings.source, &self.settings.application_name);
        let wire = Wire::connect(source, name, Replication::Database, &[]).await;
        let mut wire = wire.map_err(client("connect to the publisher"))?;
        let identity =
            identify_system(&mut wire).await.map_err(|error| ReceiverError(Kind::Source(error)))?;
        let (system_id, timeline) = (identity.system_id, identity.timeline);
        if let Some(known) = self.system_id.filter(|known| *known != system_id) {
            return Err(ReceiverError(Kind::OtherSystem { known, found: system_id }));
        }
        self.system_id = Some(system_id);
        let slot_at = slot(&mut wire, &self.settings.slot, self.gives_up_slot).await?;
        self.gives_up_slot = false;
        self.publisher = Publisher { timeline, forks: Vec::new(), slot_at };
        if self.is_empty {
            self.writer.begin(timeline, slot_at);
            self.is_empty = false;
            self.note();
        }
        // What waited for room comes again.
        self.received.is_full.store(false, Ordering::Relaxed);
        let now = Instant::now();
        let mut streaming = Streaming {
            receiver: self,
            wire,
            last_heard: now,
            last_report: now,
            last_removal: now,
            has_asked: false,
            is_left: false,
            waiting: None,
            retry_at: now,
        };
        streaming.begin(timeline).await?;
        Ok(streaming)
    }

    /// Everybody has let go of what they had behind `fork`, where the publisher left its timeline.
    pub fn goes_on_behind(&mut self, fork: Lsn) {
        self.left = Some(fork);
    }

    /// What comes behind `fork` comes only after everybody has heard of it. If more was received,
    /// the writer says so.
    fn must_be_known(&self, timeline: u32, fork: Lsn) -> Result<(), ReceiverError> {
        if self.left == Some(fork) || self.writer.end() > fork {
            return Ok(());
        }
        Err(ReceiverError(Kind::Left { timeline, fork }))
    }

    fn note(&self) {
        self.received.written.store(self.writer.end().as_u64(), Ordering::Relaxed);
        self.received.timeline.store(self.writer.timeline(), Ordering::Relaxed);
    }
}

impl Streaming<'_> {
    /// Starts the stream at the end of what is kept. The server is on `timeline`.
    async fn begin(&mut self, timeline: u32) -> Result<(), ReceiverError> {
        while self.receiver.writer.timeline() != timeline {
            let (kept, end) = (self.receiver.writer.timeline(), self.receiver.writer.end());
            let text = self.history(timeline).await?;
            let left = forks(&text).ok_or_else(|| unread("the history", &text))?;
            self.receiver.publisher.forks =
                left.iter().map(|&(timeline, end)| Fork { timeline, end }).collect();
            let Some(number) = left.iter().position(|(of, _)| *of == kept).filter(|_| kept < timeline) else {
                return Err(ReceiverError(Kind::OtherHistory { kept, end, found: timeline }));
            };
            let fork = left[number].1;
            self.receiver.must_be_known(kept, fork)?;
            if end < fork {
                // What is missing up to the fork comes first.
                self.is_left = true;
                return self.stream().await;
            }
            let next = left.get(number + 1).map_or(timeline, |(next, _)| *next);
            let text = self.history(next).await?;
            self.receiver.writer.follow_timeline(next, fork, &text)?;
        }
        self.is_left = false;
        self.stream().await
    }

    async fn stream(&mut self) -> Result<(), ReceiverError> {
        let (at, timeline) = (self.receiver.writer.end(), self.receiver.writer.timeline());
        let command = start_physical(Some(&self.receiver.settings.slot), at, timeline);
        let doing = format!("stream WAL from {at} on timeline {timeline}");
        self.wire.copy_both(&command).await.map_err(client(doing))
    }

    async fn history(&mut self, timeline: u32) -> Result<String, ReceiverError> {
        let doing = format!("read the history of timeline {timeline}");
        let rows = query(&mut self.wire, &doing, &format!("TIMELINE_HISTORY {timeline}")).await?;
        let text = rows.first().and_then(|row| row.get(1)?.clone());
        text.ok_or_else(|| answer(&doing, &rows))
    }

    /// Receives until `stop` is cancelled.
    ///
    /// # Errors
    /// No more can come over this connection, or WAL cannot be kept.
    async fn run(&mut self, stop: &CancellationToken) -> Result<(), ReceiverError> {
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (waits, retry_at) = (self.waiting.is_some(), self.retry_at);
            let frame = tokio::select! {
                frame = self.wire.read_frame(), if !waits => frame.map_err(|error| self.failed(error))?,
                () = tokio::time::sleep_until(retry_at), if waits => {
                    self.retry()?;
                    self.report(false).await?;
                    continue;
                }
                _ = tick.tick() => {
                    self.look().await?;
                    continue;
                }
                () = stop.cancelled() => return self.finish().await,
            };
            self.last_heard = Instant::now();
            self.has_asked = false;
            let mut wants_reply = self.take(frame).await?;
            while self.waiting.is_none()
                && let Some(frame) = self.wire.buffered_frame().map_err(|error| self.failed(error))?
            {
                wants_reply |= self.take(frame).await?;
            }
            if self.receiver.sync()? || wants_reply {
                self.report(false).await?;
            }
        }
    }

    fn failed(&self, error: client::Error) -> ReceiverError {
        // The segment was removed.
        if error.sqlstate() == Some(SqlState::UNDEFINED_FILE.code()) {
            let (slot, needed) = (self.receiver.settings.slot.clone(), self.receiver.writer.end());
            return ReceiverError(Kind::Gone { slot, needed, error });
        }
        client("receive WAL")(error)
    }

    /// Takes a message. Returns whether the server wants an answer at once.
    async fn take(&mut self, frame: proto::frame::Frame) -> Result<bool, ReceiverError> {
        let doing = "receive WAL";
        match frame.tag {
            b'd' => {}
            COPY_DONE if self.is_left => {
                self.next_timeline().await?;
                return Ok(true);
            }
            COPY_DONE | b'C' => return Err(ReceiverError(Kind::Ended)),
            tag => {
                return Err(ReceiverError(Kind::Answer {
                    doing: doing.to_owned(),
                    answer: format!("with message '{}'", tag.escape_ascii()),
                }));
            }
        }
        let message = WalsenderMessage::decode(frame.body).map_err(|error| {
            ReceiverError(Kind::Answer { doing: doing.to_owned(), answer: error.to_string() })
        })?;
        match message {
            WalsenderMessage::XLogData { start, wal_end, data } => {
                self.receiver.received.server_end.fetch_max(wal_end.as_u64(), Ordering::Relaxed);
                self.write(start, data)?;
                Ok(false)
            }
            WalsenderMessage::Keepalive { wal_end, reply_requested, .. } => {
                self.receiver.received.server_end.fetch_max(wal_end.as_u64(), Ordering::Relaxed);
                Ok(reply_requested)
            }
        }
    }

    /// Writes bytes. If there is no room for them, they wait, and nothing more is read.
    fn write(&mut self, at: Lsn, bytes: Bytes) -> Result<(), ReceiverError> {
        let begun = self.receiver.writer.end();
        match self.receiver.writer.write(at, &bytes) {
            Ok(()) => {}
            Err(error) if error.is_full() && at == begun => {
                let written = (self.receiver.writer.end().as_u64() - at.as_u64()) as usize;
                if !self.receiver.received.is_full.swap(true, Ordering::Relaxed) {
                    tracing::warn!("{error}; WAL is not confirmed until there is room");
                }
                self.waiting = Some((self.receiver.writer.end(), bytes.slice(written..)));
                self.retry_at = Instant::now() + FULL_RETRY;
            }
            Err(error) => return Err(error.into()),
        }
        self.receiver.note();
        Ok(())
    }

    fn retry(&mut self) -> Result<(), ReceiverError> {
        let Some((at, bytes)) = self.waiting.take() else { return Ok(()) };
        self.write(at, bytes)?;
        if self.waiting.is_none() {
            self.receiver.received.is_full.store(false, Ordering::Relaxed);
            tracing::info!("there is room for WAL again");
        }
        self.last_heard = Instant::now();
        Ok(())
    }

    /// What is due now and then.
    async fn look(&mut self) -> Result<(), ReceiverError> {
        let silent = self.last_heard.elapsed();
        let timeout = self.receiver.settings.timeout;
        if !timeout.is_zero() && self.waiting.is_none() && silent > timeout {
            return Err(ReceiverError(Kind::Silent(silent)));
        }
        let asks = !timeout.is_zero() && silent > timeout / 2 && !self.has_asked;
        if asks || self.last_report.elapsed() >= self.receiver.settings.status_interval {
            self.has_asked |= asks;
            self.report(asks).await?;
        }
        if self.last_removal.elapsed() >= REMOVE {
            self.last_removal = Instant::now();
            self.receiver.remove()?;
        }
        Ok(())
    }

    async fn report(&mut self, reply_requested: bool) -> Result<(), ReceiverError> {
        self.last_report = Instant::now();
        let status = StandbyStatus {
            written: self.receiver.writer.end(),
            flushed: self.receiver.received.synced(),
            applied: Lsn::INVALID,
            at: PgTimestamp::now(),
            reply_requested,
        };
        let sent = self.wire.send_copy_data(&status.encode()).await;
        sent.map_err(client("report to the publisher"))
    }

    /// Goes on with the next timeline, after everything of one that the server has left was sent.
    async fn next_timeline(&mut self) -> Result<(), ReceiverError> {
        let doing = "follow the publisher to its next timeline";
        let rows = self.wire.copy_both_finish().await.map_err(client(doing))?;
        let value = |at: usize| rows.first().and_then(|row| row.get(at)?.as_deref());
        // next_tli, next_tli_startpos
        let next: Option<(u32, Lsn)> =
            value(0).and_then(|next| next.parse().ok()).zip(value(1).and_then(|start| start.parse().ok()));
        let Some((next, start)) = next else { return Err(answer(doing, &rows)) };
        self.receiver.must_be_known(self.receiver.writer.timeline(), start)?;
        let text = self.history(next).await?;
        self.receiver.writer.follow_timeline(next, start, &text)?;
        tracing::info!("the publisher went on at {start} on timeline {next}");
        let identity = identify_system(&mut self.wire).await;
        let timeline = identity.map_err(|error| ReceiverError(Kind::Source(error)))?.timeline;
        // The server may have gone on further meanwhile.
        self.begin(timeline).await
    }

    async fn finish(&mut self) -> Result<(), ReceiverError> {
        self.receiver.sync()?;
        self.report(false).await
    }
}

/// Where the slot is; it is made if there is none. One that has lost WAL, or is `given_up`, is made
/// anew, so that the publisher keeps the WAL from now on.
async fn slot(wire: &mut Wire, name: &str, mut given_up: bool) -> Result<Lsn, ReceiverError> {
    let doing = format!("use the physical slot \"{name}\"");
    let sql = format!(
        "SELECT restart_lsn, wal_status FROM pg_catalog.pg_replication_slots
          WHERE slot_type = 'physical' AND slot_name = {}",
        quote_literal(name)
    );
    for _ in 0..2 {
        let rows = query(wire, &doing, &sql).await?;
        if let Some(row) = rows.first() {
            let value = |at: usize| row.get(at).and_then(Option::as_deref);
            if !given_up && value(1) != Some("lost") {
                let at = value(0).and_then(|at| at.parse().ok());
                return at.ok_or_else(|| answer(&doing, &rows));
            }
            given_up = false;
            query(wire, &doing, &format!("DROP_REPLICATION_SLOT {}", quote_ident(name))).await?;
            tracing::warn!("the publisher's replication slot \"{name}\" has lost WAL, and is made anew");
        }
        let command = format!("CREATE_REPLICATION_SLOT {} PHYSICAL {MADE}", quote_ident(name));
        match wire.query(&command).await {
            Ok(_) => {}
            // Somebody else made it.
            Err(error) if error.sqlstate() == Some(SqlState::DUPLICATE_OBJECT.code()) => {}
            Err(error) => return Err(client(doing)(error)),
        }
    }
    Err(ReceiverError(Kind::Answer { doing, answer: "that it is no physical slot".to_owned() }))
}

async fn query(
    wire: &mut Wire,
    doing: &str,
    command: &str,
) -> Result<Vec<Vec<Option<String>>>, ReceiverError> {
    wire.query(command).await.map_err(client(doing))
}

fn client(doing: impl Into<String>) -> impl FnOnce(client::Error) -> ReceiverError {
    let doing = doing.into();
    move |error| ReceiverError(Kind::Client { doing, error })
}

fn answer(doing: &str, rows: &[Vec<Option<String>>]) -> ReceiverError {
    ReceiverError(Kind::Answer { doing: doing.to_owned(), answer: shown(rows) })
}

fn unread(what: &str, text: &str) -> ReceiverError {
    ReceiverError(Kind::Answer { doing: format!("read {what}"), answer: text.to_owned() })
}
