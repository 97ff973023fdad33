//! A directory of WAL that is followed as it grows, instead of a slot and a stream.
//!
//! ```text
//!   handed over                  not yet
//!   ----------------|---------|----------------------
//!   records that are whole    | one that is cut off, zeros, or what the file had before
//! ```
//! Nothing outside a file says how much of it is good while it is being written. `pg_receivewal`
//! makes a file as long as a segment at once. A copy may be under way. A recycled file has the
//! records of an earlier segment. The records themselves decide: each has a checksum and names the
//! one before, and each page names its own address.
//!
//! So pgsluice hands over WAL up to the end of the last whole record, and begins each look at that
//! record again. Bytes behind it that are wrong now may be right a moment later. They count as
//! damaged only when the next segment has begun and they have still been wrong for a while.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use base::Lsn;
use bytes::{Bytes, BytesMut};
use source::segments::{self, Lineage, Segments};
use source::stream::Heard;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use txn::Block;
use wal::{Reader, Start, Whole};

use super::{POLL, SETTLED, hand_over};
use crate::decoded::Decoded;
use crate::error::{Error, Kind};
use crate::unfit::Unfit;

/// Interval between looks at whether a file has grown.
const LOOK: Duration = Duration::from_millis(50);
/// A look that finds nothing may take at most one part in `SHARE` of the time. A compressed file is
/// read from its beginning, and a directory may be large or far away.
const SHARE: u32 = 10;
/// Longest pause that results from [`SHARE`].
const REST_MAX: Duration = Duration::from_secs(2);
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The directory to follow.
#[derive(Debug, Clone)]
pub(crate) struct Growing {
    pub(crate) dir: PathBuf,
    pub(crate) system_id: u64,
    /// Segments of other timelines are not read.
    pub(crate) lineage: Lineage,
    /// Where to begin.
    pub(crate) from: Lsn,
    /// The position of an earlier record, or the start of its page. Records are checked from there
    /// on, so that the one at [`Growing::from`] can be.
    pub(crate) last: Lsn,
    /// How long a segment may be wrong after others have followed it; zero means no limit.
    pub(crate) patience: Duration,
    /// Tells the status what is waited for.
    pub(crate) figures: Arc<Decoded>,
}

/// Why a look went no further.
enum Stopped {
    /// There is no more, or the receiver takes no more.
    Here,
    /// Files are missing or incomplete.
    Files(segments::Error),
    /// The bytes are not the records that must follow.
    Records(wal::Error),
}

impl Growing {
    /// Checks that the directory has the segment of `from`, and that it is of this cluster.
    ///
    /// # Errors
    /// It does not have it, cannot be read, or is a directory that must not be followed.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if segments::is_pg_wal(&self.dir) {
            return Err(Unfit::ArchiveIsPgWal(self.dir.clone()).into());
        }
        let found = Segments::growing(&self.dir, &self.lineage).map_err(Kind::Archive)?;
        let found = found.system_id(self.last).map_err(Kind::Archive)?;
        if found != self.system_id {
            let (dir, own) = (self.dir.clone(), self.system_id);
            return Err(Unfit::ArchiveOfAnother { dir, own, found }.into());
        }
        Ok(())
    }

    /// Whether the directory begins behind `lsn`, and so will never have it.
    pub(crate) fn begins_behind(&self, lsn: Lsn) -> bool {
        Segments::growing(&self.dir, &self.lineage).is_ok_and(|found| found.span().0 > lsn)
    }

    fn reader(&self, lsn: Lsn) -> Result<Reader, Error> {
        let (segment_size, system_id) = (self.lineage.segment_size, Some(self.system_id));
        let reader = Reader::new(Start { lsn, segment_size, system_id, timeline: None });
        Ok(reader.map_err(output::Error::from)?)
    }

    /// Hands WAL to `out` as it comes, until `stop` is cancelled or `out` is closed. Reports to
    /// `heard` how far the directory has WAL.
    ///
    /// # Errors
    /// A file is damaged or cannot be read, or the directory has lost WAL that is needed.
    pub(crate) async fn run(
        &self,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let (own, heard) = (self.clone(), Arc::clone(heard));
        hand_over(move |pieces| own.read(&heard, pieces), out, stop).await
    }

    /// Ends when the receiver is gone.
    fn read(&self, heard: &Heard, out: &mpsc::Sender<Bytes>) -> Result<(), Error> {
        tracing::info!("following WAL from {} on in {}", self.from, self.dir.display());
        // What is handed over stays so, whatever the files contain later.
        let mut good = Whole { last: self.last, end: self.from };
        let mut read_to = self.from;
        let mut directory = Directory::default();
        let mut trouble = Trouble::default();
        while !out.is_closed() {
            let (before, began) = (good.end, Instant::now());
            // A record may go on in a segment that was not there yet.
            let is_at_segment = read_to.as_u64().is_multiple_of(self.lineage.segment_size);
            let stopped = match directory.look(self, if is_at_segment { LOOK } else { POLL }) {
                Ok(found) => {
                    heard.advance_wal_end(found.last_begun().max(good.end));
                    self.read_there(found, &mut good, &mut read_to, out)?
                }
                Err(error) => Stopped::Files(error),
            };
            if good.end > before && good.end.as_u64().is_multiple_of(self.lineage.segment_size) {
                // The segment before is not needed any more.
                good.last = good.end;
            }
            let took = began.elapsed();
            let rest = if good.end > before {
                heard.advance_wal_end(good.end);
                trouble.is_over(&self.figures);
                took
            } else {
                trouble.look(stopped, &mut directory, (good, read_to), self)?;
                took * SHARE
            };
            thread::sleep(rest.clamp(LOOK, REST_MAX));
        }
        Ok(())
    }

    /// Hands over good WAL that was not handed over before. Sets `read_to` to where it stopped,
    /// which may be in the middle of a record.
    fn read_there(
        &self,
        found: &Segments,
        good: &mut Whole,
        read_to: &mut Lsn,
        out: &mpsc::Sender<Bytes>,
    ) -> Result<Stopped, Error> {
        let mut reader = self.reader(good.last)?;
        let mut bytes = match found.read(reader.position()) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Stopped::Files(error)),
        };
        // Begins at `good.end`.
        let mut rest = BytesMut::new();
        loop {
            let at = reader.position();
            let piece = match bytes.next() {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(Stopped::Here),
                Err(error) => return Ok(Stopped::Files(error)),
            };
            let known = usize::try_from(good.end.as_u64().saturating_sub(at.as_u64())).unwrap_or(usize::MAX);
            rest.extend_from_slice(&piece[known.min(piece.len())..]);
            let before = good.end;
            let read = good.read(&mut reader, at, piece);
            *read_to = match &read {
                Ok(()) => reader.zeros_from().unwrap_or_else(|| reader.position()),
                Err(error) => error.lsn(),
            };
            let whole = usize::try_from(good.end.bytes_since(before)).unwrap_or(usize::MAX);
            if whole > 0 && out.blocking_send(rest.split_to(whole).freeze()).is_err() {
                return Ok(Stopped::Here);
            }
            if let Err(error) = read {
                return Ok(Stopped::Records(error));
            }
            if reader.zeros_from().is_some() {
                return Ok(Stopped::Here);
            }
        }
    }
}

/// The contents of the directory at the last look.
#[derive(Default)]
struct Directory {
    found: Option<Segments>,
    looked: Option<Instant>,
    took: Duration,
}

impl Directory {
    /// Reads the directory again if the last look is older than `every`.
    fn look(&mut self, of: &Growing, every: Duration) -> Result<&Segments, segments::Error> {
        let every = every.max((self.took * SHARE).min(REST_MAX));
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= every);
        let found = match self.found.take() {
            Some(found) if !is_due => found,
            _ => {
                let began = Instant::now();
                let found = Segments::growing(&of.dir, &of.lineage);
                (self.looked, self.took) = (Some(Instant::now()), began.elapsed());
                found?
            }
        };
        Ok(self.found.insert(found))
    }

    /// Makes the next look read the directory again.
    fn forget(&mut self) {
        self.found = None;
    }
}

/// The trouble that keeps reading from going on.
#[derive(Default)]
struct Trouble {
    /// The trouble, and since when it has been the same.
    since: Option<(String, Instant)>,
    warned: Option<Instant>,
}

impl Trouble {
    fn is_over(&mut self, figures: &Decoded) {
        if self.since.is_some() {
            *self = Trouble::default();
            figures.awaits(None);
        }
    }

    /// Reports why reading does not go on, if it should.
    ///
    /// # Errors
    /// It will never go on.
    fn look(
        &mut self,
        stopped: Stopped,
        directory: &mut Directory,
        (good, read_to): (Whole, Lsn),
        of: &Growing,
    ) -> Result<(), Error> {
        let found = directory.found.as_ref();
        let size = of.lineage.segment_size;
        let next = Lsn::new((read_to.as_u64() / size + 1) * size);
        let is_followed = found.is_some_and(|found| found.last_begun() >= next);
        let is_removed = found.is_some_and(|found| found.span().0 > good.last);
        let error = match stopped {
            Stopped::Files(error) if !error.is_passing() || error.is_missing() && is_removed => {
                return Err(Kind::Archive(error).into());
            }
            // The end, for now.
            Stopped::Here | Stopped::Records(_) if !is_followed => None,
            Stopped::Files(error) if error.is_missing() && !is_followed => None,
            Stopped::Here => found.and_then(|found| found.short(read_to)).map(Kind::Archive),
            Stopped::Files(error) => Some(Kind::Archive(error)),
            Stopped::Records(error) => Some(Kind::Decode(error.into())),
        };
        let Some(error) = error else {
            self.is_over(&of.figures);
            return Ok(());
        };
        let may_come = matches!(&error, Kind::Archive(error) if error.is_missing()) || !is_followed;
        if let Kind::Archive(_) = &error {
            // A file may have been renamed.
            directory.forget();
        }
        let error = Error::from(error);
        let what = error.to_string();
        let lasted = match &self.since {
            Some((before, since)) if *before == what => since.elapsed(),
            // Something has come, though perhaps not what is needed.
            _ => {
                self.since = Some((what.clone(), Instant::now()));
                Duration::ZERO
            }
        };
        if lasted >= of.patience && !of.patience.is_zero() && !may_come {
            return Err(error);
        }
        if lasted >= SETTLED {
            of.figures.awaits(Some(what));
            if self.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
                tracing::warn!("{}; pgsluice waits for it", base::with_causes(&error));
                self.warned = Some(Instant::now());
            }
        }
        Ok(())
    }
}
