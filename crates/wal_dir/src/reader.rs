//! Reads WAL at any place, up to what is written.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use base::Lsn;
use tokio::sync::watch;

use crate::error::{Error, Kind};
use crate::older::Older;
use crate::shared::Shared;

/// Bytes that are read at once.
const PIECE_SIZE: usize = 128 << 10;

/// Reads a directory's WAL from a place on. Any number of readers may be there, each at its own
/// place.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    ends: watch::Receiver<Lsn>,
    position: Lsn,
    /// Everything before is written. It is asked for only when it is reached.
    end: Lsn,
    generation: u64,
    open: Option<(u64, Place)>,
    buffer: Vec<u8>,
    looks: u64,
}

/// Where a segment is read.
enum Place {
    Kept(File),
    /// Comes in order, from the reader's position on.
    Older(Box<dyn Read + Send>),
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Kept(file) => file.fmt(f),
            Place::Older(_) => f.write_str("Older"),
        }
    }
}

/// Makes readers of a directory's WAL. Clones are of the same directory.
#[derive(Debug, Clone)]
pub struct Readers {
    shared: Arc<Shared>,
}

impl Readers {
    pub(crate) fn new(shared: Arc<Shared>) -> Readers {
        Readers { shared }
    }

    /// Makes a reader that begins at `from`.
    ///
    /// # Errors
    /// WAL of that place is not kept any more, and nothing else may have it.
    pub fn reader(&self, from: Lsn) -> Result<Reader, Error> {
        Reader::new(Arc::clone(&self.shared), from)
    }

    /// Whether WAL from `at` on can be read here, or perhaps in what was given to
    /// [`Readers::fall_back_on`].
    #[must_use]
    pub fn can_read(&self, at: Lsn) -> bool {
        at >= self.oldest() || self.shared.older.get().is_some()
    }

    /// Has all readers read WAL from `older` that is not kept any more. The first one counts.
    pub fn fall_back_on(&self, older: Arc<dyn Older>) {
        let _ = self.shared.older.set(older);
    }

    /// The first byte that is kept.
    #[must_use]
    pub fn oldest(&self) -> Lsn {
        self.shared.oldest()
    }

    /// The timeline of the segment that has `lsn`.
    #[must_use]
    pub fn timeline_of(&self, lsn: Lsn) -> u32 {
        self.shared.timeline_of(lsn.as_u64() / self.shared.segment_size)
    }

    /// When the whole segment that has `lsn` was written to for the last time; `None` if there is
    /// none.
    #[must_use]
    pub fn written_at(&self, lsn: Lsn) -> Option<SystemTime> {
        let number = lsn.as_u64() / self.shared.segment_size;
        let path = self.shared.path(self.shared.timeline_of(number), number, false);
        fs::metadata(path).and_then(|segment| segment.modified()).ok()
    }

    /// Everything before may be read.
    #[must_use]
    pub fn end(&self) -> Lsn {
        *self.shared.end.borrow()
    }

    /// Says that nothing behind `limit` may be read, although it is written. What was read already
    /// stays read.
    pub fn limit(&self, limit: Lsn) {
        self.shared.limit.store(limit.as_u64(), Ordering::Release);
        self.shared.show();
    }
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes that begin here.
    Bytes(Lsn, &'a [u8]),
    /// Nothing more is written.
    Dry,
}

impl Reader {
    /// A reader of what is written now, also where readers may not read it yet.
    pub(crate) fn of_written(shared: Arc<Shared>, from: Lsn) -> Result<Reader, Error> {
        let end = Lsn::new(shared.written.load(Ordering::Acquire));
        Ok(Reader { end, ..Reader::new(shared, from)? })
    }

    fn new(shared: Arc<Shared>, from: Lsn) -> Result<Reader, Error> {
        let ends = shared.end.subscribe();
        let reader = Reader {
            ends,
            position: from,
            end: Lsn::INVALID,
            generation: shared.generation.load(Ordering::Acquire),
            open: None,
            buffer: Vec::new(),
            looks: 0,
            shared,
        };
        reader.check()?;
        Ok(reader)
    }

    /// Where the next bytes begin.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.position
    }

    /// How often it has asked how much is written.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.looks
    }

    fn check(&self) -> Result<(), Error> {
        let (at, oldest) = (self.position, self.shared.oldest());
        if at < oldest && self.shared.older.get().is_none() {
            Err(Error(Kind::Removed { at, oldest }))
        } else {
            Ok(())
        }
    }

    /// Returns the next bytes, if any are written.
    ///
    /// # Errors
    /// WAL of this place is not kept any more, or cannot be read. It may be tried again.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Result<Piece<'_>, Error> {
        if self.position >= self.end && !self.look() {
            return Ok(Piece::Dry);
        }
        let size = self.shared.segment_size;
        let (number, within) = (self.position.as_u64() / size, self.position.as_u64() % size);
        let wanted = (size - within).min(self.end.as_u64() - self.position.as_u64());
        let wanted = usize::try_from(wanted).unwrap_or(PIECE_SIZE).min(PIECE_SIZE);
        self.open(number)?;
        self.buffer.resize(wanted, 0);
        let at = self.position;
        let read = match &mut self.open {
            None => return Ok(Piece::Dry),
            Some((_, Place::Kept(file))) => {
                let path = || self.shared.path(self.shared.timeline_of(number), number, false);
                let read = file.read_exact_at(&mut self.buffer, within);
                read.map_err(|error| Error::io("read", path())(error))
            }
            Some((_, Place::Older(bytes))) => {
                bytes.read_exact(&mut self.buffer).map_err(|error| Error(Kind::Older { at, error }))
            }
        };
        if let Err(error) = read {
            self.open = None;
            return Err(error);
        }
        self.position = Lsn::new(at.as_u64() + wanted as u64);
        Ok(Piece::Bytes(at, &self.buffer))
    }

    /// Asks how much is written. Returns whether that is more than was read.
    fn look(&mut self) -> bool {
        self.looks += 1;
        self.end = *self.ends.borrow_and_update();
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.open = None;
        }
        self.position < self.end
    }

    /// Opens the segment with this number. It may get its final name meanwhile, or go.
    fn open(&mut self, number: u64) -> Result<(), Error> {
        if self.open.as_ref().is_some_and(|(open, _)| *open == number) {
            return Ok(());
        }
        let timeline = self.shared.timeline_of(number);
        if self.open_older(number, timeline)? {
            return Ok(());
        }
        let [whole, partial] = [false, true].map(|is_partial| self.shared.path(timeline, number, is_partial));
        let mut failed = None;
        for path in [&whole, &partial, &whole] {
            match File::open(path) {
                Ok(file) => {
                    self.open = Some((number, Place::Kept(file)));
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => failed = Some(error),
                Err(error) => return Err(Error::io("open", path)(error)),
            }
        }
        self.check()?;
        if self.open_older(number, timeline)? {
            return Ok(());
        }
        Err(Error::io("open", whole)(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into())))
    }

    /// Opens a segment that is not kept any more. Returns whether that is so.
    fn open_older(&mut self, number: u64, timeline: u32) -> Result<bool, Error> {
        let at = self.position;
        let Some(older) = self.shared.older_than_kept(at) else { return Ok(false) };
        let bytes = older.open(timeline, at).map_err(|error| Error(Kind::Older { at, error }))?;
        self.open = Some((number, Place::Older(bytes)));
        Ok(true)
    }

    /// Waits until more is written than was read. Cancel safe. Returns at once if the writer is
    /// gone.
    pub async fn more(&mut self) {
        let position = self.position;
        let _ = self.ends.wait_for(|end| *end > position).await;
    }
}
