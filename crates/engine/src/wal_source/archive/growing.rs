//! A directory of WAL that is followed as it grows, instead of a slot and a stream.
//!
//! ```text
//!   handed over                  not yet
//!   ----------------|---------|----------------------
//!   records that are whole    | one that is cut off, zeros, or what the file had before
//! ```
//! Nobody says how far a file is good that is still being written: `pg_receivewal` makes it as long as a segment at once, a
//! copy may be under way, a recycled file has the records of an earlier segment. The records themselves say it: each has
//! a checksum and names the one before, each page its own address. So what is handed over ends behind the last record that
//! is whole, and each look begins with that record again. What is wrong behind it may be right a moment later; only when
//! the next segment has begun, and it has still been wrong for a while, it is taken for damaged.

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
use wal::{Reader, Start};

use super::{POLL, SETTLED, hand_over};
use crate::error::{Error, Kind};
use crate::refusal::Refusal;
use crate::status::Decoded;

/// Until it is looked whether a file has grown.
const LOOK: Duration = Duration::from_millis(50);
/// A look that finds nothing takes no more than one part of so many of the time: a compressed file is read from its
/// beginning, a directory may be large or far away.
const SHARE: u32 = 10;
/// But it is not waited for longer.
const REST_MAX: Duration = Duration::from_secs(2);
const WARN_EVERY: Duration = Duration::from_secs(60);

/// What is followed.
#[derive(Debug, Clone)]
pub(crate) struct Growing {
    pub(crate) dir: PathBuf,
    pub(crate) system_id: u64,
    /// Segments of others are not read.
    pub(crate) lineage: Lineage,
    /// Where to begin.
    pub(crate) from: Lsn,
    /// A record before that, or the start of its page: what is at [`Growing::from`] is judged from there on.
    pub(crate) last: Lsn,
    /// So long a segment may be wrong that others follow; zero is for ever.
    pub(crate) patience: Duration,
    /// Where it is told what is waited for.
    pub(crate) figures: Arc<Decoded>,
}

/// How far it is good.
#[derive(Debug, Clone, Copy)]
struct Good {
    /// The start of the last record.
    last: Lsn,
    /// Up to here everything was handed over.
    end: Lsn,
}

/// Why a look went no further.
enum Stopped {
    /// That is all there is, or nobody takes more.
    Here,
    /// Files are not there, or not whole.
    Files(segments::Error),
    /// What is there is not what must come.
    Records(wal::Error),
}

impl Growing {
    /// Whether the directory has the segment of `from`, of this cluster.
    ///
    /// # Errors
    /// It has not, cannot be read, or is none that may be followed.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if segments::is_pg_wal(&self.dir) {
            return Err(Error::refused(Refusal::ArchiveIsPgWal(self.dir.clone())));
        }
        let found = Segments::growing(&self.dir, &self.lineage).map_err(Kind::Archive)?;
        let found = found.system_id(self.last).map_err(Kind::Archive)?;
        if found != self.system_id {
            let (dir, own) = (self.dir.clone(), self.system_id);
            return Err(Error::refused(Refusal::ArchiveOfAnother { dir, own, found }));
        }
        Ok(())
    }

    /// Whether the directory has nothing of as far back as `lsn`, and so never will.
    pub(crate) fn begins_behind(&self, lsn: Lsn) -> bool {
        Segments::growing(&self.dir, &self.lineage).is_ok_and(|found| found.span().0 > lsn)
    }

    fn reader(&self, lsn: Lsn) -> Result<Reader, Error> {
        let (segment_size, system_id) = (self.lineage.segment_size, Some(self.system_id));
        let reader = Reader::new(Start { lsn, segment_size, system_id, timeline: None });
        Ok(reader.map_err(output::Error::from)?)
    }

    /// Hands WAL to `out` as it comes, until `stop` is cancelled or nobody takes it. How far the directory has it is told to
    /// `heard`.
    ///
    /// # Errors
    /// A file is damaged or cannot be read, or what is needed has gone from the directory.
    pub(crate) async fn run(
        &self,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let (own, heard) = (self.clone(), Arc::clone(heard));
        hand_over(move |pieces| own.read(&heard, pieces), out, stop).await
    }

    /// Ends when nobody listens.
    fn read(&self, heard: &Heard, out: &mpsc::Sender<Bytes>) -> Result<(), Error> {
        tracing::info!("following WAL from {} on in {}", self.from, self.dir.display());
        let mut good = Good { last: self.last, end: self.from };
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

    /// Hands over what is good and was not handed over; where it went no further, be it in the middle of a record, is put in
    /// `read_to`.
    fn read_there(
        &self,
        found: &Segments,
        good: &mut Good,
        read_to: &mut Lsn,
        out: &mpsc::Sender<Bytes>,
    ) -> Result<Stopped, Error> {
        let mut reader = self.reader(good.last)?;
        let mut bytes = match found.read(reader.position()) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Stopped::Files(error)),
        };
        // From `good.end` on.
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
            let read = read_records(&mut reader, at, piece, good);
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

/// Moves `good` behind the last record that is whole, never back: what was handed over stays so, whatever a file looks like by
/// now.
fn read_records(reader: &mut Reader, at: Lsn, piece: &[u8], good: &mut Good) -> Result<(), wal::Error> {
    let mut end = good.end;
    let mut records = reader.push(at, piece)?;
    let read = loop {
        match records.poll() {
            Ok(Some(record)) => (good.last, end) = (record.lsn(), record.end()),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    // Behind a switch the rest of the segment has no records, but belongs to it.
    if let Ok(next) = reader.finish() {
        end = end.max(next);
    }
    good.end = good.end.max(end.min(reader.position()));
    read
}

/// What the directory had when it was looked at last.
#[derive(Default)]
struct Directory {
    found: Option<Segments>,
    looked: Option<Instant>,
    took: Duration,
}

impl Directory {
    /// Looks at it anew if that was done longer ago than `every`.
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

    /// The next look is a new one.
    fn forget(&mut self) {
        self.found = None;
    }
}

/// What keeps it from going on, although it should.
#[derive(Default)]
struct Trouble {
    /// What it is, and since when it has been the same.
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

    /// Tells why it does not go on, if it should.
    ///
    /// # Errors
    /// It never will.
    fn look(
        &mut self,
        stopped: Stopped,
        directory: &mut Directory,
        (good, read_to): (Good, Lsn),
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
            // A file may have got another name.
            directory.forget();
        }
        let error = Error::from(error);
        let what = error.to_string();
        let lasted = match &self.since {
            Some((before, since)) if *before == what => since.elapsed(),
            // Something has come, if not what is needed.
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
                tracing::warn!("{}; it is waited for", base::with_causes(&error));
                self.warned = Some(Instant::now());
            }
        }
        Ok(())
    }
}
