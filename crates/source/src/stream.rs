//! The live stream of a slot, and the reports back to the source.
//!
//! The caller hands in a connection in replication mode. The stream hands over blocks of
//! [`txn::Input`] into a bounded queue, in order: pgoutput's messages of a logical slot, or the WAL
//! of a physical one ([`What`]). It sends feedback whatever the queue does. While the applier is
//! busy, the stream does not read the socket, so the walsender waits. But the walsender hears from
//! us at least once in every status interval, and so never takes us for dead.
//!
//! Of a logical slot, only [`Progress`]'s `flushed` is confirmed (rules P3, P4). Positions come
//! from commits and keepalives only, because positions of changes do not say that anything is
//! complete.
//!
//! A physical slot is moved to [`RestartLsn`], the position from which WAL is needed after a
//! restart. That is much earlier than what was received. If a report named it as flushed, the
//! server would wait at its shutdown until everything is flushed, which then never happens. The
//! server would also offer us as a synchronous standby. So each report says that no flushed
//! position is known, and the server takes what was received instead. A report that moves the slot
//! is followed by another one at once. The replayed position is what is durable on the target.
//!
//! A physical stream may begin on a timeline that the source has left. It ends where the source
//! left it, and goes on with the next timeline on the same connection, as a standby's stream does.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use base::crash_phases::{self, Phase};
use base::{Lsn, PgTimestamp, Progress};
use bytes::Bytes;
use client::{Pauses, SqlState, Wire};
use proto::replication::{PgoutputOptions, StandbyStatus, WalsenderMessage, start_physical};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use txn::{Block, Input};

use crate::Error;
use crate::queue::{BLOCK_BYTES, Room};
use crate::restart_lsn::RestartLsn;
use crate::segments::Lineage;
use crate::slot::shown;

/// Interval between checks of whether a report is due.
const FEEDBACK_POLL: Duration = Duration::from_millis(100);
/// While more WAL than this was received and is not applied, nobody waits for the newest message.
/// The limit is several times the WAL that is received in a pause.
const BEHIND_BYTES: u64 = 2 << 20;
/// A transaction that committed longer ago than this is late anyway.
const BEHIND: Duration = Duration::from_millis(500);
/// Messages that come further apart than this do not add up to a block.
const DENSE: Duration = Duration::from_millis(1);
/// The server has ended its side of the stream.
const COPY_DONE: u8 = b'c';
/// Shortest time between two reports that only say that more was flushed.
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(200);

/// What the source reported, for lag figures.
#[derive(Debug, Default)]
pub struct Heard {
    wal_end: AtomicU64,
    last_commit_time: AtomicI64,
}

impl Heard {
    /// The position that the source had decoded by its last report.
    #[must_use]
    pub fn wal_end(&self) -> Lsn {
        Lsn::new(self.wal_end.load(Ordering::Relaxed))
    }

    /// Notes that the source has reported `lsn` to another stream.
    pub fn advance_wal_end(&self, lsn: Lsn) {
        self.wal_end.fetch_max(lsn.as_u64(), Ordering::Relaxed);
    }

    /// The commit time of the last transaction that was received whole.
    #[must_use]
    pub fn last_commit_time(&self) -> Option<PgTimestamp> {
        match self.last_commit_time.load(Ordering::Relaxed) {
            0 => None,
            time => Some(PgTimestamp(time)),
        }
    }

    /// Notes a message of pgoutput.
    pub fn message(&self, data: &[u8]) {
        // Commit and stream commit end with their time.
        if matches!(data.first(), Some(b'C' | b'c'))
            && let Some(time) = data.last_chunk::<8>()
        {
            self.last_commit_time.store(i64::from_be_bytes(*time), Ordering::Relaxed);
        }
    }
}

/// The contents of a stream.
#[derive(Debug, Clone)]
pub enum What {
    /// Messages of pgoutput, from a logical slot.
    Pgoutput(PgoutputOptions),
    /// WAL from a physical slot. Each message goes on where the one before ended.
    Wal {
        /// The source's timelines.
        lineage: Lineage,
        /// Where the slot is moved to.
        restart_lsn: Arc<RestartLsn>,
    },
}

/// What to stream, and with which time limits.
#[derive(Debug, Clone)]
pub struct StreamOptions {
    /// The slot. WAL can be streamed without one if another slot keeps it.
    pub slot: Option<String>,
    /// Where to start. The server starts no earlier than a logical slot's confirmed position.
    pub start: Lsn,
    /// The contents of the stream.
    pub what: What,
    /// Report at least this often; zero: only when asked.
    pub status_interval: Duration,
    /// Give up after this much silence; zero: never.
    pub timeout: Duration,
}

/// A stream that was started.
pub struct Stream {
    wire: Wire,
    options: StreamOptions,
    /// The positions that were last reported, from [`Stream::confirmed`].
    last_reported: (Lsn, Lsn),
    last_report_at: Instant,
    last_heard_at: Instant,
    asked: bool,
    /// The position up to which WAL was received.
    received: Lsn,
    /// The source has left the timeline that is streamed, so the stream will end.
    is_left: bool,
    room: Room,
    pauses: Option<Pauses>,
}

impl Stream {
    /// Starts streaming on `wire`, a connection with [`client::Replication::Database`].
    ///
    /// # Errors
    /// The server refuses: the slot is in use or lost, or a publication is missing.
    pub async fn start(mut wire: Wire, options: StreamOptions) -> Result<Stream, Error> {
        let (command, is_left) = match &options.what {
            What::Pgoutput(pgoutput) => {
                let slot = options.slot.as_deref().unwrap_or_default();
                (pgoutput.start_replication(slot, options.start, wire.version()), false)
            }
            What::Wal { lineage, .. } => {
                let timeline = lineage.timeline_at(options.start);
                let command = start_physical(options.slot.as_deref(), options.start, timeline);
                (command, timeline != lineage.timeline)
            }
        };
        let attempt = || match &options.slot {
            Some(slot) => format!("stream from replication slot \"{slot}\""),
            None => "stream WAL for several subscriptions".to_owned(),
        };
        let failed = |error| Error::client(attempt(), error);
        let pauses = match options.what {
            What::Pgoutput(_) => wire.read_in_bulk().await.map_err(failed)?,
            // WAL comes in large messages anyway.
            What::Wal { .. } => None,
        };
        wire.copy_both(&command).await.map_err(failed)?;
        let now = Instant::now();
        let (last_reported, options_start) = ((Lsn::INVALID, Lsn::INVALID), options.start);
        Ok(Stream {
            wire,
            options,
            last_reported,
            last_report_at: now,
            last_heard_at: now,
            asked: false,
            received: options_start,
            is_left,
            room: Room::default(),
            pauses,
        })
    }

    /// Hands blocks to `out` until `stop` is cancelled or `out` is closed.
    ///
    /// # Errors
    /// The connection was lost, or the server ended the stream or was silent for too long.
    pub async fn run(
        &mut self,
        progress: &Progress,
        heard: &Heard,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let mut tick = tokio::time::interval(FEEDBACK_POLL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let waiting_since = Instant::now();
            let frame = tokio::select! {
                frame = self.wire.read_frame() => frame.map_err(|error| self.failed(error))?,
                _ = tick.tick() => {
                    self.check_silence()?;
                    self.report_if_due(progress).await?;
                    continue;
                }
                () = stop.cancelled() => return Ok(()),
            };
            self.check_publications()?;
            self.last_heard_at = Instant::now();
            let dense = self.last_heard_at - waiting_since < DENSE;
            self.asked = false;
            let (inputs, bytes) = self.gather(frame, progress, heard).await?;
            if inputs.is_empty() {
                continue;
            }
            if !self.hand_over((inputs, bytes), progress, out, (&mut tick, stop)).await? {
                return Ok(());
            }
            if let Some(pauses) = self.pauses.as_mut()
                && dense
                && is_behind(progress, heard)
                && let Some(pause) = pauses.after(bytes)
            {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = stop.cancelled() => return Ok(()),
                }
            }
            // While the queue was full, this did not listen to the server either.
            self.last_heard_at = Instant::now();
            // A stream that never pauses must not starve the feedback.
            if self.last_report_at.elapsed() >= REPORT_INTERVAL_MIN {
                self.report_if_due(progress).await?;
            }
        }
    }

    /// Takes `frame` and the frames that have arrived behind it, up to the size of a block. Returns
    /// the inputs and their bytes.
    async fn gather(
        &mut self,
        frame: proto::frame::Frame,
        progress: &Progress,
        heard: &Heard,
    ) -> Result<(Vec<Input>, usize), Error> {
        let (mut inputs, mut bytes) = (Vec::new(), 0);
        let mut next = Some(frame);
        while let Some(frame) = next {
            if self.is_left && frame.tag == COPY_DONE {
                let timeout = self.options.timeout;
                let patience = if timeout.is_zero() { Duration::MAX } else { timeout };
                let next = tokio::time::timeout(patience, self.next_timeline()).await;
                next.map_err(|_| Error::silent(self.attempt(), timeout))??;
                break;
            }
            bytes += self.take(frame, &mut inputs, progress, heard)?;
            if bytes >= BLOCK_BYTES {
                break;
            }
            next = self.wire.buffered_frame().map_err(|error| self.failed(error))?;
            self.check_publications()?;
        }
        Ok((inputs, bytes))
    }

    /// Waits for room and hands a block to `out`, and reports meanwhile. Returns false if `stop`
    /// was cancelled or `out` is closed.
    async fn hand_over(
        &mut self,
        (inputs, bytes): (Vec<Input>, usize),
        progress: &Progress,
        out: &mpsc::Sender<Block>,
        (tick, stop): (&mut Interval, &CancellationToken),
    ) -> Result<bool, Error> {
        let room = self.room.clone();
        let handing_over = room.hand_over(inputs, bytes, out);
        tokio::pin!(handing_over);
        loop {
            tokio::select! {
                taken = &mut handing_over => return Ok(taken),
                _ = tick.tick() => self.report_if_due(progress).await?,
                () = stop.cancelled() => return Ok(false),
            }
        }
    }

    /// Adds the contents of `frame` to `inputs`. Returns their bytes.
    fn take(
        &mut self,
        frame: proto::frame::Frame,
        inputs: &mut Vec<Input>,
        progress: &Progress,
        heard: &Heard,
    ) -> Result<usize, Error> {
        let reply = |message: String| Error::reply("read the replication stream", message);
        // CopyDone or CommandComplete: the walsender ends the stream.
        if matches!(frame.tag, COPY_DONE | b'C') {
            return Err(Error::ended(self.attempt()));
        }
        if frame.tag != b'd' {
            return Err(reply(format!(
                "the server ended the stream with message '{}'",
                frame.tag.escape_ascii()
            )));
        }
        let message = WalsenderMessage::decode(frame.body).map_err(|error| reply(error.to_string()))?;
        match message {
            WalsenderMessage::XLogData { start, wal_end, data } => {
                heard.wal_end.fetch_max(wal_end.as_u64(), Ordering::Relaxed);
                match self.options.what {
                    What::Pgoutput(_) => {
                        check_commit(start, &data).map_err(reply)?;
                        heard.message(&data);
                        progress.advance_received(wal_end);
                    }
                    What::Wal { .. } if start != self.received => {
                        let expected = self.received;
                        return Err(reply(format!("WAL of {start} came where {expected} was expected")));
                    }
                    What::Wal { .. } => self.received = Lsn::new(start.as_u64() + data.len() as u64),
                }
                let size = Bytes::len(&data);
                inputs.push(Input::Bytes(data));
                Ok(size)
            }
            WalsenderMessage::Keepalive { wal_end, reply_requested, .. } => {
                heard.wal_end.fetch_max(wal_end.as_u64(), Ordering::Relaxed);
                if let What::Pgoutput(_) = self.options.what {
                    progress.advance_received(wal_end);
                }
                if reply_requested {
                    progress.want_flush();
                    // Answered at the next check, at most FEEDBACK_POLL away.
                    progress.want_report();
                }
                inputs.push(Input::CaughtUp(wal_end));
                Ok(0)
            }
        }
    }

    /// Asks for the next timeline, after everything of a timeline that the source has left was
    /// sent.
    async fn next_timeline(&mut self) -> Result<(), Error> {
        let rows = self.wire.copy_both_finish().await.map_err(|error| self.failed(error))?;
        let value = |at: usize| rows.first().and_then(|row| row.get(at)?.as_deref());
        // next_tli, next_tli_startpos
        let next: Option<(u32, Lsn)> = value(0)
            .and_then(|timeline| timeline.parse().ok())
            .zip(value(1).and_then(|start| start.parse().ok()));
        let Some((timeline, start)) = next.filter(|(_, start)| *start == self.received) else {
            let answer = format!("after a timeline that ended at {} came {}", self.received, shown(&rows));
            return Err(Error::reply(self.attempt(), answer));
        };
        let What::Wal { lineage, .. } = &self.options.what else { return Ok(()) };
        // The server may name a timeline that nothing was written to; then the one after it is
        // needed.
        let timeline = timeline.max(lineage.timeline_at(start));
        self.is_left = timeline != lineage.timeline;
        tracing::info!("the source continued at {start} on timeline {timeline}: pgsluice follows it");
        let command = start_physical(self.options.slot.as_deref(), start, timeline);
        self.wire.copy_both(&command).await.map_err(|error| self.failed(error))
    }

    /// Gives up on a server that is silent while we listen.
    fn check_silence(&self) -> Result<(), Error> {
        let (silent, timeout) = (self.last_heard_at.elapsed(), self.options.timeout);
        if timeout.is_zero() || silent <= timeout {
            return Ok(());
        }
        Err(Error::silent(self.attempt(), silent))
    }

    async fn report_if_due(&mut self, progress: &Progress) -> Result<(), Error> {
        let timeout = self.options.timeout;
        let ask = !timeout.is_zero() && self.last_heard_at.elapsed() > timeout / 2 && !self.asked;
        let since = self.last_report_at.elapsed();
        let interval = self.options.status_interval;
        let moved = self.confirmed(progress) != self.last_reported && since >= REPORT_INTERVAL_MIN;
        if ask || moved || progress.take_report_wanted() || !interval.is_zero() && since >= interval {
            self.asked |= ask;
            self.report(progress, ask).await?;
        }
        Ok(())
    }

    /// The position for the slot, and the position that is durable on the target. The second one is
    /// for observers of the source, where nothing else shows it.
    fn confirmed(&self, progress: &Progress) -> (Lsn, Lsn) {
        let now = progress.snapshot();
        match &self.options.what {
            What::Pgoutput(_) => (now.flushed, Lsn::INVALID),
            What::Wal { restart_lsn, .. } => (restart_lsn.slot_lsn(), now.flushed),
        }
    }

    /// Reports our positions to the server.
    async fn report(&mut self, progress: &Progress, reply_requested: bool) -> Result<(), Error> {
        let now = progress.snapshot();
        let confirmed = self.confirmed(progress);
        let mut status = StandbyStatus {
            written: now.received,
            flushed: confirmed.0,
            applied: now.applied.min(now.received),
            at: PgTimestamp::now(),
            reply_requested,
        };
        if let What::Wal { .. } = self.options.what {
            (status.written, status.applied) = (self.received, confirmed.1);
            if confirmed.0 != self.last_reported.0 {
                // Names no position that a commit of the server might wait for.
                let moves = StandbyStatus { written: confirmed.0, applied: confirmed.0, ..status };
                self.say(&moves).await?;
            }
            status.flushed = Lsn::INVALID;
        }
        self.say(&status).await?;
        if now.flushed >= now.applied {
            crash_phases::set(Phase::Unreported, false);
        }
        self.last_reported = confirmed;
        self.last_report_at = Instant::now();
        Ok(())
    }

    async fn say(&mut self, status: &StandbyStatus) -> Result<(), Error> {
        let sent = self.wire.send_copy_data(&status.encode()).await;
        sent.map_err(|error| self.failed(error))
    }

    /// Reports once more and ends the stream in order.
    ///
    /// # Errors
    /// The connection was lost; the slot then stays at its last reported position.
    pub async fn finish(mut self, progress: &Progress) -> Result<(), Error> {
        self.report(progress, false).await?;
        let ended = self.wire.copy_both_finish().await;
        ended.map_err(|error| self.failed(error))?;
        self.wire.close().await;
        Ok(())
    }

    /// Checks for skipped publications. From 18 on, the server skips a publication that does not
    /// exist at this point of WAL, and only warns. The changes of its tables would be lost. So that
    /// is an error here, as it was before 18.
    fn check_publications(&mut self) -> Result<(), Error> {
        // No other warning has this state.
        let skipped = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
        match self.wire.take_warning().filter(|warning| warning.code == skipped.code()) {
            None => Ok(()),
            Some(warning) => {
                let words = [Some(warning.message), warning.detail].into_iter().flatten();
                Err(Error::unpublished(self.attempt(), words.collect::<Vec<_>>().join(". ")))
            }
        }
    }

    fn attempt(&self) -> String {
        match &self.options.slot {
            Some(slot) => format!("read the replication stream of slot \"{slot}\""),
            None => "read the stream of WAL of several subscriptions".to_owned(),
        }
    }

    fn failed(&self, error: client::Error) -> Error {
        match (error.sqlstate().map(SqlState::from_code), &self.options.what) {
            // Up to 17, a publication.
            (Some(SqlState::UNDEFINED_OBJECT), _) => Error::unpublished(self.attempt(), error.to_string()),
            // A segment of WAL.
            (Some(SqlState::UNDEFINED_FILE), What::Wal { .. }) => {
                Error::removed(self.attempt(), error.to_string())
            }
            _ => Error::client(self.attempt(), error),
        }
    }
}

/// Whether nobody waits for the newest message, because the applier is behind.
fn is_behind(progress: &Progress, heard: &Heard) -> bool {
    let now = progress.snapshot();
    let unapplied = now.received.as_u64().saturating_sub(now.applied.as_u64());
    let late = || {
        let committed = heard.last_commit_time().map_or(i64::MAX, |time| time.0);
        u128::try_from(PgTimestamp::now().0.saturating_sub(committed))
            .is_ok_and(|late| late > BEHIND.as_micros())
    };
    unapplied > BEHIND_BYTES || late()
}

/// Checks that a commit ends where its header says. The target stores the end that the commit names
/// as its progress, and a wrong end would skip transactions.
fn check_commit(start: Lsn, data: &[u8]) -> Result<(), String> {
    // The end follows kind, flags and the LSN of the start; a streamed transaction's id comes
    // before. The reader reports messages that are too short.
    let at = match data.first() {
        Some(b'C') => 10,
        Some(b'c') => 14,
        _ => return Ok(()),
    };
    match data.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(end) if u64::from_be_bytes(*end) != start.as_u64() => {
            let end = Lsn::new(u64::from_be_bytes(*end));
            Err(format!("a commit that ends at {end} came at {start}: the stream is damaged"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks every recording; see `cargo x corpus`.
    #[test]
    fn every_commit_ends_where_its_header_says_and_no_other_is_believed() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto/tests/corpus");
        let mut commits = 0;
        for entry in std::fs::read_dir(corpus).unwrap() {
            let mut buffer = bytes::BytesMut::from(&std::fs::read(entry.unwrap().path()).unwrap()[..]);
            while let Some(frame) = proto::frame::next(&mut buffer).unwrap() {
                let message = (frame.tag == b'd').then(|| WalsenderMessage::decode(frame.body));
                let Some(Ok(WalsenderMessage::XLogData { start, data, .. })) = message else { continue };
                check_commit(start, &data).unwrap();
                let end = match data[0] {
                    b'C' => 10..18,
                    b'c' => 14..22,
                    _ => continue,
                };
                commits += 1;
                for at in end {
                    let mut changed = data.to_vec();
                    changed[at] ^= 1;
                    assert!(check_commit(start, &changed).is_err());
                }
            }
        }
        assert!(commits > 100, "{commits} commits");
    }
}
