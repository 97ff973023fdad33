//! Sends a form's track to one subscriber, and hears what it has.
//!
//! ```text
//! track --Cursor--> Walsender --CopyData--> subscriber
//!                        <--status updates--
//!                   ActiveSlot: confirmed, restart
//! ```
//! A sender sleeps until its track has more, its subscriber says something, or a timer is due. A
//! keepalive carries the position of this sender's own cursor (rule L3). It is the form's position
//! only if the form had come there before the cursor was found dry.
//!
//! Source: `walsender.c` (`WalSndLoop`, `WalSndKeepaliveIfNecessary`, `ProcessRepliesIfAny`).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{Lsn, PgTimestamp};
use bytes::Bytes;
use listener::{Link, LinkError, LinkReader, LinkWriter};
use proto::backend;
use proto::frame::copy_data_header;
use proto::replication::{ReceiverMessage, StandbyStatus, keepalive};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use track::{Cursor, Next};

use crate::feed::FormHandle;
use crate::lag::LagTracker;
use crate::slots::ActiveSlot;
use crate::told::{Told, code};

/// A subscriber says little: the longest message is a status update.
const REPLY_SIZE_MAX: usize = 1 << 10;
/// Between two looks whether the slot may still be read.
const SLOT_LOOK: Duration = Duration::from_secs(1);
/// Between two keepalives that only say that there was nothing for this subscriber.
const PROGRESS: Duration = Duration::from_secs(1);
/// The same at the beginning, when a table that is copied may wait for it.
const PROGRESS_EARLY: Duration = Duration::from_millis(100);
const EARLY: Duration = Duration::from_secs(60);

/// Where decoding would begin again, if everything before a position was confirmed.
pub type RestartOf<'a> = &'a (dyn Fn(Lsn) -> Lsn + Send + Sync);

/// Enters a form in which nothing is decoded that ended before the sender's own beginning.
pub type EnterAlone<'a> = &'a (dyn Fn() -> Result<(Cursor, FormHandle), Told> + Send + Sync);

/// What a sender has sent and heard, as `pg_stat_replication` shows it.
#[derive(Debug, Default)]
pub struct Sent {
    sent: AtomicU64,
    written: AtomicU64,
    flushed: AtomicU64,
    applied: AtomicU64,
    bytes: AtomicU64,
    flush_ptr_reads: AtomicU64,
    wakeups: AtomicU64,
    has_caught_up: AtomicBool,
    /// The time of the last reply, as the subscriber says; zero if there was none.
    replied: AtomicI64,
    lag: Mutex<LagTracker>,
}

/// [`Sent`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SentShown {
    /// `sent_lsn`
    pub sent: Lsn,
    /// `write_lsn`
    pub written: Lsn,
    /// `flush_lsn`
    pub flushed: Lsn,
    /// `replay_lsn`
    pub applied: Lsn,
    /// Bytes of messages, with their frames.
    pub bytes: u64,
    /// How often it had run dry, and looked how far WAL is.
    pub flush_ptr_reads: u64,
    /// How often more came while it waited for that.
    pub sender_wakeups: u64,
    /// There was nothing more to send at some time.
    pub has_caught_up: bool,
    /// `reply_time`
    pub replied: Option<PgTimestamp>,
    /// `write_lag`, `flush_lag` and `replay_lag`
    pub lags: [Option<Duration>; 3],
}

impl Sent {
    /// What it is now.
    #[must_use]
    pub fn shown(&self) -> SentShown {
        let get = |of: &AtomicU64| of.load(Ordering::Relaxed);
        SentShown {
            sent: Lsn::new(get(&self.sent)),
            written: Lsn::new(get(&self.written)),
            flushed: Lsn::new(get(&self.flushed)),
            applied: Lsn::new(get(&self.applied)),
            bytes: get(&self.bytes),
            flush_ptr_reads: get(&self.flush_ptr_reads),
            sender_wakeups: get(&self.wakeups),
            has_caught_up: self.has_caught_up.load(Ordering::Relaxed),
            replied: Some(self.replied.load(Ordering::Relaxed)).filter(|at| *at != 0).map(PgTimestamp),
            lags: self.lag.lock().unwrap_or_else(PoisonError::into_inner).lags,
        }
    }

    /// Everything before `lsn` was handed over.
    fn sent(&self, lsn: Lsn) {
        self.sent.fetch_max(lsn.as_u64(), Ordering::Relaxed);
        let now = std::time::Instant::now();
        self.lag.lock().unwrap_or_else(PoisonError::into_inner).sent(lsn, now);
    }

    fn heard(&self, status: &StandbyStatus) {
        self.replied.store(status.at.0, Ordering::Relaxed);
        let sent = Lsn::new(self.sent.load(Ordering::Relaxed));
        let positions = [status.written, status.flushed, status.applied];
        let now = std::time::Instant::now();
        self.lag.lock().unwrap_or_else(PoisonError::into_inner).heard(positions, sent, now);
        for (place, lsn) in [
            (&self.written, status.written),
            (&self.flushed, status.flushed),
            (&self.applied, status.applied),
        ] {
            if lsn.is_valid() {
                place.store(lsn.as_u64(), Ordering::Relaxed);
            }
        }
    }
}

/// How a stream ended.
#[derive(Debug)]
pub enum Ended {
    /// The subscriber has ended it, and waits for the answer. The link takes commands again.
    Done,
    /// The subscriber has gone.
    Gone(LinkError),
    /// It has not answered for `wal_sender_timeout`.
    Silent,
    /// The relay stops.
    Stopped,
    /// The slot was invalidated.
    Invalidated,
    /// It has said something that is no answer, or what it needs is not there. It is to be told.
    Refused(Told),
    /// The track has moved on without it: it must enter again elsewhere.
    Evicted,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Done => f.write_str("the subscriber has ended it"),
            Ended::Gone(_) => f.write_str("the subscriber has gone"),
            Ended::Silent => f.write_str("the subscriber was silent for wal_sender_timeout"),
            Ended::Stopped => f.write_str("the relay stops, or begins anew after a failover"),
            Ended::Invalidated => f.write_str("the slot was invalidated"),
            Ended::Refused(told) => write!(f, "{told}"),
            Ended::Evicted => f.write_str("it lags behind what is kept, and must be decoded again"),
        }
    }
}

/// A stream to one subscriber.
pub struct Walsender<'a> {
    reader: LinkReader,
    writer: LinkWriter,
    cursor: Cursor,
    slot: ActiveSlot,
    form: FormHandle,
    restart_of: RestartOf<'a>,
    /// `None` when it was done.
    enter_alone: Option<EnterAlone<'a>>,
    /// `wal_sender_timeout`; zero: never.
    timeout: Duration,
    figures: Arc<Sent>,
    /// Everything before was handed over.
    sent: Lsn,
    begun: Instant,
    last_reply: Instant,
    last_keepalive: Instant,
    /// When the slot was last looked at.
    last_look: Instant,
    /// The last position that a keepalive said.
    said: Lsn,
    is_waiting_for_reply: bool,
    is_dry: bool,
}

impl<'a> Walsender<'a> {
    /// Makes a sender that begins at `start`. The subscriber waits for `CopyBothResponse`.
    ///
    /// If `form` ends before it had anything for this subscriber, the sender goes on with what
    /// `enter_alone` returns. The form may have failed at what ended before `start`, which a server
    /// would not look at.
    pub fn new(
        mut link: Link,
        (cursor, slot, start): (Cursor, ActiveSlot, Lsn),
        (form, restart_of, enter_alone): (FormHandle, RestartOf<'a>, EnterAlone<'a>),
        timeout: Duration,
        figures: Arc<Sent>,
    ) -> Walsender<'a> {
        backend::copy_both_response(&mut link.outbox);
        let (reader, writer) = link.split();
        let now = Instant::now();
        Walsender {
            reader,
            writer,
            cursor,
            slot,
            form,
            restart_of,
            enter_alone: Some(enter_alone),
            timeout,
            figures,
            sent: start,
            begun: now,
            last_reply: now,
            last_keepalive: now,
            last_look: now,
            said: Lsn::INVALID,
            is_waiting_for_reply: false,
            is_dry: false,
        }
    }

    /// Sends until the stream ends. Returns the connection, with the answer to the end of the
    /// stream in its outbox if the subscriber waits for one, and the slot.
    pub async fn run(mut self, stop: &CancellationToken) -> (Ended, Link, ActiveSlot) {
        let ended = loop {
            if let Err(ended) = self.step(stop).await {
                break ended;
            }
        };
        self.slot.was_sent(self.figures.shown().sent);
        let mut link = Link::unsplit(self.reader, self.writer);
        if matches!(ended, Ended::Done) {
            backend::copy_done(&mut link.outbox);
            backend::command_complete(&mut link.outbox, "COPY 0");
            backend::command_complete(&mut link.outbox, "START_REPLICATION");
        }
        (ended, link, self.slot)
    }

    async fn step(&mut self, stop: &CancellationToken) -> Result<(), Ended> {
        // Before more is taken from the track, which may be of WAL that is taken back.
        if stop.is_cancelled() {
            return Err(Ended::Stopped);
        }
        if self.writer.is_empty() {
            self.fetch()?;
        }
        let due = self.due();
        let (is_dry, has_more) = (self.is_dry && self.writer.is_empty(), !self.writer.is_empty());
        tokio::select! {
            frame = self.reader.frame(REPLY_SIZE_MAX) => self.heard(frame.map_err(Ended::Gone)?)?,
            flushed = self.writer.flush(), if has_more => flushed.map_err(Ended::Gone)?,
            () = self.cursor.more(), if is_dry => {
                self.is_dry = false;
                self.figures.wakeups.fetch_add(1, Ordering::Relaxed);
            }
            // What came before the end is sent first.
            why = self.form.end.ended(), if is_dry => self.form_ended(why, stop)?,
            () = tokio::time::sleep_until(due) => {}
            () = stop.cancelled() => return Err(Ended::Stopped),
        }
        self.look()
    }

    fn form_ended(&mut self, why: String, stop: &CancellationToken) -> Result<(), Ended> {
        if stop.is_cancelled() {
            return Err(Ended::Stopped);
        }
        let has_sent = self.figures.bytes.load(Ordering::Relaxed) > 0;
        let Some(enter) = self.enter_alone.take().filter(|_| !has_sent) else {
            return Err(Ended::Refused(Told::new(code::INTERNAL_ERROR, why)));
        };
        tracing::debug!("decoding for this subscriber begins at its own place, because: {why}");
        (self.cursor, self.form) = enter().map_err(Ended::Refused)?;
        self.is_dry = false;
        Ok(())
    }

    /// Takes what comes next from the track.
    fn fetch(&mut self) -> Result<(), Ended> {
        // Before the cursor is looked at: what is decoded later is not sent yet.
        let position = self.form.position.get();
        self.cursor.came_to(position);
        let next = self
            .cursor
            .next()
            .map_err(|error| Ended::Refused(Told::new(code::IO_ERROR, error.to_string())))?;
        match next {
            Next::Frames(portion) => {
                self.is_dry = false;
                self.figures.bytes.fetch_add(portion.bytes.len() as u64, Ordering::Relaxed);
                self.figures.sent(portion.last);
                self.writer.push(portion.bytes);
            }
            Next::Dry => {
                self.is_dry = true;
                self.sent = self.sent.max(position);
                self.figures.sent(self.sent);
                self.figures.has_caught_up.store(true, Ordering::Relaxed);
                self.figures.flush_ptr_reads.store(self.cursor.looks(), Ordering::Relaxed);
            }
            Next::Evicted => return Err(Ended::Evicted),
        }
        Ok(())
    }

    /// When something is due at the latest.
    fn due(&self) -> Instant {
        let progress = (self.last_keepalive + self.pace()).min(self.last_look + SLOT_LOOK);
        if self.timeout.is_zero() {
            return progress;
        }
        let reply = if self.is_waiting_for_reply { self.timeout } else { self.timeout / 2 };
        // A subscriber that does not read is waited for, not asked.
        let look = self.last_look + SLOT_LOOK;
        if self.is_dry { progress.min(self.last_reply + reply) } else { look.min(self.last_reply + reply) }
    }

    fn pace(&self) -> Duration {
        if self.begun.elapsed() < EARLY { PROGRESS_EARLY } else { PROGRESS }
    }

    /// Does what is due.
    fn look(&mut self) -> Result<(), Ended> {
        if self.last_look.elapsed() >= SLOT_LOOK {
            self.last_look = Instant::now();
            if !self.slot.is_usable() {
                return Err(Ended::Invalidated);
            }
        }
        let silent = self.last_reply.elapsed();
        if !self.timeout.is_zero() {
            if silent >= self.timeout {
                return Err(Ended::Silent);
            }
            if silent >= self.timeout / 2 && !self.is_waiting_for_reply {
                self.is_waiting_for_reply = true;
                self.keepalive(true);
            }
        }
        if self.is_dry && self.writer.is_empty() && self.last_keepalive.elapsed() >= self.pace() {
            self.fetch()?;
            let confirmed = Lsn::new(self.figures.flushed.load(Ordering::Relaxed));
            if self.is_dry && self.sent > confirmed.max(self.said) {
                self.keepalive(false);
            }
            self.last_keepalive = Instant::now();
        }
        Ok(())
    }

    fn keepalive(&mut self, reply_requested: bool) {
        self.last_keepalive = Instant::now();
        self.said = self.sent;
        let body = keepalive(self.sent, PgTimestamp::now(), reply_requested);
        let header = copy_data_header(body.len()).expect("a keepalive is short");
        self.writer.push(Bytes::from([&header[..], &body].concat()));
    }

    fn heard(&mut self, frame: proto::frame::Frame) -> Result<(), Ended> {
        match frame.tag {
            b'd' => {}
            b'c' => return Err(Ended::Done),
            b'X' => return Err(Ended::Gone(LinkError::Closed)),
            tag => {
                let message = format!("unexpected message type 0x{tag:02X} during COPY");
                return Err(Ended::Refused(Told::new(code::PROTOCOL_VIOLATION, message)));
            }
        }
        let message = ReceiverMessage::decode(&frame.body)
            .map_err(|error| Ended::Refused(Told::new(code::PROTOCOL_VIOLATION, error.to_string())))?;
        self.last_reply = Instant::now();
        self.is_waiting_for_reply = false;
        if let ReceiverMessage::Status(status) = message {
            self.figures.heard(&status);
            if status.flushed.is_valid() {
                // Nobody can have flushed what was not sent. A message may be sent before the form
                // says that it has come there.
                let sent = Lsn::new(self.figures.sent.load(Ordering::Relaxed)).max(self.sent);
                let confirmed = status.flushed.min(sent.max(self.form.position.get()));
                self.slot.advance(confirmed, (self.restart_of)(confirmed));
            }
            if status.reply_requested {
                self.keepalive(false);
            }
        }
        Ok(())
    }
}
