//! Bounds the relay's own WAL while an archive has the rest.
//!
//! ```text
//! WAL  |---- goes ----|------------ stays ------------>
//!      oldest         '- least of: the bound; the first segment that the archive does not have
//! ```
//! A segment goes only after it was compared with the archive's, byte for byte. Slots that need it
//! stay as they are: decoding reads it in the archive. When slots are given up is another matter
//! (`max_slot_wal_keep_size`).

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use base::Lsn;
use tokio::time::Instant;
use wal_dir::{Piece, Readers};

use crate::archive::WalArchive;
use crate::session::Context;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// A file that has not changed for this long counts as completely written.
const SETTLED: Duration = Duration::from_secs(2);
/// How long an archive may lag behind until the log says so.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much WAL stays in the relay's own directory, if an archive has the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WalKeep {
    /// `wal_keep_size`: bytes of WAL; `None`: any number.
    pub bytes: Option<u64>,
    /// `wal_keep_time`: how long ago a segment was received; `None`: any time.
    pub time: Option<Duration>,
}

impl WalKeep {
    pub(crate) fn is_limited(self) -> bool {
        self != WalKeep::default()
    }

    /// Whether the segment that begins `at` is beyond the limits. WAL is written up to `written`.
    fn is_beyond(self, readers: &Readers, at: Lsn, (written, segment_size): (Lsn, u64)) -> bool {
        if at.as_u64() + segment_size > written.as_u64() {
            return false;
        }
        let behind = written.as_u64() - at.as_u64();
        let is_old = |time: Duration| {
            let age = readers.written_at(at).and_then(|written_at| written_at.elapsed().ok());
            age.is_some_and(|age| age >= time)
        };
        self.bytes.is_some_and(|most| behind > most) || self.time.is_some_and(is_old)
    }
}

/// Looks again and again at what may go, until the relay stops.
pub(crate) async fn trim(context: Arc<Context>, archive: WalArchive, keep: WalKeep) {
    let mut trim = Trim { archive, keep, same: (0, Lsn::INVALID), stays: None };
    let mut tick = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = context.stop.cancelled() => return,
        }
        let context = Arc::clone(&context);
        // Whole segments are read.
        let looked = tokio::task::spawn_blocking(move || {
            trim.once(&context);
            trim
        });
        match looked.await {
            Ok(back) => trim = back,
            Err(_) => return,
        }
    }
}

struct Trim {
    archive: WalArchive,
    keep: WalKeep,
    /// Of this timeline, the archive has the same WAL as the relay up to there.
    same: (u32, Lsn),
    /// Why WAL stays that is beyond the limits.
    stays: Option<Stays>,
}

struct Stays {
    why: String,
    since: Instant,
    is_told: bool,
}

/// Why the archive does not have what the relay has.
struct Lacking {
    why: String,
    /// It may only lag behind.
    may_come: bool,
}

impl Lacking {
    fn never(why: impl ToString) -> Lacking {
        Lacking { why: why.to_string(), may_come: false }
    }
}

impl Trim {
    fn once(&mut self, context: &Context) {
        let (readers, received) = (&context.readers, &context.received);
        // Before anything is compared: what is taken back later is of this timeline.
        let timeline = received.timeline();
        let (written, size) = (received.written(), self.archive.segment_size());
        let known = if self.same.0 == timeline { self.same.1 } else { Lsn::INVALID };
        let mut at = readers.oldest().max(known);
        let mut stays = None;
        while !context.stop.is_cancelled() && self.keep.is_beyond(readers, at, (written, size)) {
            match self.has_same(readers, at) {
                Ok(true) => at = Lsn::new(at.as_u64() + size),
                // Standbys lack it, so nobody may read it.
                Ok(false) => break,
                Err(why) => {
                    stays = Some(why);
                    break;
                }
            }
        }
        self.same = (timeline, at);
        received.is_archived(timeline, at);
        self.tell(stays, at);
    }

    /// Compares a segment with the archive's. Returns false if it may not be read yet.
    fn has_same(&self, readers: &Readers, at: Lsn) -> Result<bool, Lacking> {
        let of = self.archive.of_timeline(readers.timeline_of(at));
        let mut archived = self
            .archive
            .open(&of, at, SETTLED)
            .map_err(|error| Lacking { why: error.to_string(), may_come: error.is_missing() })?;
        let mut own = readers.reader(at).map_err(Lacking::never)?;
        let mut buffer = Vec::new();
        let end = at.as_u64() + self.archive.segment_size();
        while own.position().as_u64() < end {
            let Piece::Bytes(from, bytes) = own.next().map_err(Lacking::never)? else { return Ok(false) };
            buffer.resize(bytes.len(), 0);
            let read = archived.bytes.read_exact(&mut buffer);
            let place = archived.path.display();
            read.map_err(|error| Lacking::never(format!("could not read {place}: {error}")))?;
            if buffer != bytes {
                return Err(Lacking::never(format!(
                    "{place} differs from the relay's own segment behind {from}; put the publisher's segment there"
                )));
            }
        }
        Ok(true)
    }

    /// Says why WAL stays, once, if that lasts.
    fn tell(&mut self, stays: Option<Lacking>, at: Lsn) {
        let Some(Lacking { why, may_come }) = stays else {
            self.stays = None;
            return;
        };
        let stays = match &mut self.stays {
            Some(stays) if stays.why == why => stays,
            other => other.insert(Stays { why, since: Instant::now(), is_told: false }),
        };
        if !stays.is_told && (!may_come || stays.since.elapsed() >= PATIENCE) {
            stays.is_told = true;
            tracing::warn!(
                "WAL from {at} on stays in the data directory, beyond wal_keep_size or wal_keep_time: {}",
                stays.why
            );
        }
    }
}
