//! Writes segments as WAL comes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use base::Lsn;
use tokio::sync::watch;

use crate::error::{Error, Kind};
use crate::names::{SegmentName, forks, history, history_of};
use crate::reader::{Reader, Readers};
use crate::shared::{Fork, Shared, Timelines};

/// What a directory has when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// Nothing. [`Writer::begin`] says where WAL begins.
    Empty,
    /// WAL, which goes on here.
    GoesOn {
        /// On this timeline.
        timeline: u32,
        /// From here. What was written of this segment before comes again.
        at: Lsn,
    },
}

/// Writes a directory's WAL. There is one for a directory.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    /// The segment that is not complete yet.
    open: Option<Segment>,
    timeline: u32,
    end: Lsn,
    synced: Lsn,
    /// A file has got a name since the directory was synced.
    has_new_name: bool,
    _lock: File,
}

#[derive(Debug)]
struct Segment {
    file: File,
    number: u64,
}

impl Writer {
    /// Opens the directory, and makes it if there is none. Segments have `segment_size` bytes
    /// (`wal_segment_size`).
    ///
    /// # Errors
    /// The directory cannot be used, another process uses it, or its segments do not follow one
    /// another.
    pub fn open(dir: &Path, segment_size: u64) -> Result<(Writer, Opened), Error> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(Error::io("make the directory", dir))?;
        let lock = lock(dir)?;
        let found = Found::look(dir, segment_size)?;
        let (opened, at, oldest) = match found.span(dir, segment_size)? {
            None => (Opened::Empty, Lsn::INVALID, Lsn::INVALID),
            Some((oldest, at)) => (Opened::GoesOn { timeline: found.timelines.current, at }, at, oldest),
        };
        let shared = Shared {
            dir: dir.to_owned(),
            segment_size,
            end: watch::Sender::new(at),
            written: AtomicU64::new(at.as_u64()),
            limit: AtomicU64::new(u64::MAX),
            generation: AtomicU64::new(0),
            timelines: Mutex::new(found.timelines.clone()),
            oldest: AtomicU64::new(oldest.as_u64()),
            older: OnceLock::new(),
        };
        let writer = Writer {
            shared: Arc::new(shared),
            open: None,
            timeline: found.timelines.current,
            end: at,
            synced: at,
            has_new_name: false,
            _lock: lock,
        };
        Ok((writer, opened))
    }

    /// Says where WAL begins in an empty directory: at the segment that has `lsn`. Returns where
    /// the first bytes must begin.
    pub fn begin(&mut self, timeline: u32, lsn: Lsn) -> Lsn {
        let at = Lsn::new(lsn.as_u64() / self.shared.segment_size * self.shared.segment_size);
        *self.shared.timelines() = Timelines { current: timeline, forks: Vec::new() };
        (self.timeline, self.end, self.synced) = (timeline, at, at);
        self.shared.oldest.store(at.as_u64(), Ordering::Release);
        self.show();
        at
    }

    /// Where the next bytes must begin.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// The timeline that is being written.
    #[must_use]
    pub fn timeline(&self) -> u32 {
        self.timeline
    }

    /// The first byte that is kept.
    #[must_use]
    pub fn oldest(&self) -> Lsn {
        self.shared.oldest()
    }

    /// `wal_segment_size`, in bytes.
    #[must_use]
    pub fn segment_size(&self) -> u64 {
        self.shared.segment_size
    }

    /// What makes readers, also from other threads.
    #[must_use]
    pub fn readers(&self) -> Readers {
        Readers::new(Arc::clone(&self.shared))
    }

    /// See [`Readers::reader`].
    ///
    /// # Errors
    /// As there.
    pub fn reader(&self, from: Lsn) -> Result<Reader, Error> {
        self.readers().reader(from)
    }

    /// A reader of what is written now, although others may not read it yet
    /// ([`Readers::limit`]).
    ///
    /// # Errors
    /// As [`Readers::reader`].
    pub fn reader_of_written(&self, from: Lsn) -> Result<Reader, Error> {
        Reader::of_written(Arc::clone(&self.shared), from)
    }

    /// Writes bytes that begin `at`. They can be read at once, and are durable after the next
    /// [`Writer::sync`].
    ///
    /// # Errors
    /// The bytes do not go on where the last ones ended, or cannot be written. What comes before
    /// [`Writer::end`] was written; the rest may be given again.
    pub fn write(&mut self, at: Lsn, bytes: &[u8]) -> Result<(), Error> {
        if at != self.end {
            return Err(Error(Kind::OutOfPlace { at, end: self.end }));
        }
        let written = self.write_segments(bytes);
        self.show();
        written
    }

    fn show(&self) {
        self.shared.written.store(self.end.as_u64(), Ordering::Release);
        self.shared.show();
    }

    fn write_segments(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let size = self.shared.segment_size;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (number, within) = (self.end.as_u64() / size, self.end.as_u64() % size);
            let room = usize::try_from(size - within).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(rest.len().min(room));
            self.open_segment(number)?;
            if let Some(segment) = &self.open {
                let path = || self.shared.path(self.timeline, number, true);
                segment.file.write_all_at(now, within).map_err(|error| Error::io("write", path())(error))?;
            }
            rest = later;
            self.end = Lsn::new(self.end.as_u64() + now.len() as u64);
            if now.len() == room {
                self.complete()?;
            }
        }
        Ok(())
    }

    /// Makes the segment with this number, unless it is open.
    fn open_segment(&mut self, number: u64) -> Result<(), Error> {
        if self.open.as_ref().is_some_and(|open| open.number == number) {
            return Ok(());
        }
        let path = self.shared.path(self.timeline, number, true);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io("make", path))?;
        self.open = Some(Segment { file, number });
        self.has_new_name = true;
        Ok(())
    }

    /// Gives the open segment, which is full, its final name.
    fn complete(&mut self) -> Result<(), Error> {
        let Some(segment) = self.open.take() else { return Ok(()) };
        let [partial, whole] =
            [true, false].map(|is_partial| self.shared.path(self.timeline, segment.number, is_partial));
        segment.file.sync_all().map_err(Error::io("sync", partial.clone()))?;
        fs::rename(&partial, &whole).map_err(Error::io("rename", partial))?;
        self.sync_dir()?;
        self.synced = self.end;
        Ok(())
    }

    fn sync_dir(&mut self) -> Result<(), Error> {
        sync_dir(&self.shared.dir)?;
        self.has_new_name = false;
        Ok(())
    }

    /// Makes durable what was written, and returns up to where that is. Only this may be confirmed
    /// to the server.
    ///
    /// # Errors
    /// The system cannot say that it is durable. Nothing that was written since the last call may
    /// then be believed: the writer must be opened again.
    pub fn sync(&mut self) -> Result<Lsn, Error> {
        if self.synced < self.end {
            if let Some(segment) = &self.open {
                let path = || self.shared.path(self.timeline, segment.number, true);
                segment.file.sync_data().map_err(|error| Error::io("sync", path())(error))?;
            }
            if self.has_new_name {
                self.sync_dir()?;
            }
            self.synced = self.end;
        }
        Ok(self.synced)
    }

    /// Goes on with the timeline that the server went to at `fork`. `text` is its history file. The
    /// next bytes begin at `fork`, which is where the last ones ended.
    ///
    /// # Errors
    /// More was received than the new timeline has of the old one: nothing is changed then. Or a
    /// file cannot be written.
    pub fn follow_timeline(&mut self, timeline: u32, fork: Lsn, text: &str) -> Result<(), Error> {
        if self.end > fork {
            return Err(Error(Kind::PastFork { end: self.end, fork, timeline }));
        }
        if self.end < fork {
            return Err(Error(Kind::OutOfPlace { at: fork, end: self.end }));
        }
        let path = self.shared.dir.join(history(timeline));
        let Some(forks) = forks(text) else { return Err(Error(Kind::History(path))) };
        self.sync()?;
        write_durably(&path, |file| file.write_all(text.as_bytes()))?;
        let number = fork.as_u64() / self.shared.segment_size;
        let before = self.shared.path(self.timeline, number, true);
        self.open = None;
        // Nothing may have been written on the timeline that is left: it was copied itself then.
        let within = fork.as_u64() % self.shared.segment_size;
        let has_begun = within > 0;
        if has_begun {
            let copy = self.shared.path(timeline, number, true);
            let old = File::open(&before).map_err(Error::io("open", &before))?;
            write_durably(&copy, |file| io::copy(&mut old.take(within), file).map(|_| ()))?;
        }
        sync_dir(&self.shared.dir)?;
        let forks = forks.into_iter().map(|(timeline, end)| Fork { timeline, end }).collect();
        *self.shared.timelines() = Timelines { current: timeline, forks };
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.timeline = timeline;
        if has_begun {
            // A reader that needs it has it open. A crash before this leaves a file of no use.
            fs::remove_file(&before).map_err(Error::io("remove", before))?;
        }
        Ok(())
    }

    /// Takes back WAL from `at` on, which the server does not have any more. The next bytes begin
    /// there; or at the beginning of its segment, if that is not kept any more. Readers that have
    /// read more must not be used any more.
    ///
    /// # Errors
    /// A file cannot be changed. It can be tried again.
    pub fn cut(&mut self, at: Lsn) -> Result<(), Error> {
        if at >= self.end {
            return Ok(());
        }
        let size = self.shared.segment_size;
        let last = at.as_u64() / size;
        self.open = None;
        let at = if at < self.shared.oldest() { self.begin_again(last)? } else { at };
        // One file must say after a crash where WAL goes on.
        let is_first = at <= self.shared.oldest();
        let within = at.as_u64() % size;
        (self.end, self.synced) = (at, self.synced.min(at));
        self.show();
        self.shared.generation.fetch_add(1, Ordering::Release);
        // The newest first, so that a crash leaves no hole.
        let mut found = Found::look(&self.shared.dir, size)?;
        found.segments.sort_unstable_by_key(|name| std::cmp::Reverse(name.number));
        let goes = |name: &&SegmentName| name.timeline == self.timeline && name.number >= last;
        for name in found.segments.iter().filter(goes) {
            let path = self.shared.dir.join(name.text(size));
            if name.number > last || within == 0 && !is_first {
                fs::remove_file(&path).map_err(Error::io("remove", path))?;
            } else if !name.is_partial {
                let partial = self.shared.path(self.timeline, last, true);
                fs::rename(&path, partial).map_err(Error::io("rename", path))?;
            }
        }
        sync_dir(&self.shared.dir)
    }

    /// Begins at a segment before all that are kept. Returns where that is. After a crash, its file
    /// says that WAL goes on there.
    fn begin_again(&mut self, number: u64) -> Result<Lsn, Error> {
        self.open_segment(number)?;
        self.open = None;
        self.sync_dir()?;
        let at = number * self.shared.segment_size;
        self.shared.oldest.store(at, Ordering::Release);
        Ok(Lsn::new(at))
    }

    /// Removes complete segments that end at or before `lsn`, and returns their number. Readers
    /// that are still there find out.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_before(&mut self, lsn: Lsn) -> Result<u64, Error> {
        let size = self.shared.segment_size;
        let first = self.shared.oldest().as_u64() / size;
        // The segment with the last byte stays: without it, nobody would know where WAL goes on.
        let last = self.end.as_u64().saturating_sub(1) / size;
        let end = (lsn.as_u64() / size).min(last);
        if end <= first {
            return Ok(0);
        }
        self.shared.oldest.store(end * size, Ordering::Release);
        // The oldest first, so that a crash leaves no hole.
        let mut found = Found::look(&self.shared.dir, size)?;
        found.segments.sort_unstable_by_key(|name| name.number);
        for name in found.segments.iter().filter(|name| name.number < end) {
            let path = self.shared.dir.join(name.text(size));
            fs::remove_file(&path).map_err(Error::io("remove", path))?;
        }
        sync_dir(&self.shared.dir)?;
        Ok(end - first)
    }
}

/// What is in a directory.
struct Found {
    segments: Vec<SegmentName>,
    timelines: Timelines,
}

impl Found {
    fn look(dir: &Path, segment_size: u64) -> Result<Found, Error> {
        let failed = || Error::io("read the directory", dir);
        let (mut segments, mut histories) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(dir).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            let Some(name) = name.to_str() else { continue };
            segments.extend(SegmentName::parse(name, segment_size));
            histories.extend(history_of(name));
        }
        let newest = segments.iter().map(|name| name.timeline).max();
        // A history without a segment: the crash came between the two, and the fork comes again.
        let newest = newest.unwrap_or(0);
        let mut timelines = Timelines { current: newest, forks: Vec::new() };
        if histories.contains(&newest) {
            let path = dir.join(history(newest));
            let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
            let forks = forks(&text).ok_or(Error(Kind::History(path)))?;
            timelines.forks = forks.into_iter().map(|(timeline, end)| Fork { timeline, end }).collect();
        }
        Ok(Found { segments, timelines })
    }

    /// Where WAL begins and where it goes on; `None` if there is none.
    fn span(&self, dir: &Path, segment_size: u64) -> Result<Option<(Lsn, Lsn)>, Error> {
        let timelines = &self.timelines;
        let supplies = |name: &&SegmentName| {
            let end = (name.number + 1) * segment_size;
            let left = |fork: &&Fork| end <= fork.end.as_u64();
            let owner = timelines.forks.iter().find(left).map_or(timelines.current, |fork| fork.timeline);
            name.timeline == owner
        };
        let own: Vec<&SegmentName> = self.segments.iter().filter(supplies).collect();
        let mut whole: Vec<u64> = Vec::new();
        for name in own.iter().filter(|name| !name.is_partial) {
            let path = dir.join(name.text(segment_size));
            let size = fs::metadata(&path).map_err(Error::io("look at", &path))?.len();
            if size != segment_size {
                return Err(Error(Kind::Size { path, size, wanted: segment_size }));
            }
            whole.push(name.number);
        }
        whole.sort_unstable();
        if let Some(pair) = whole.windows(2).find(|pair| pair[1] != pair[0] + 1) {
            let name = SegmentName { timeline: timelines.current, number: pair[0] + 1, is_partial: false };
            return Err(Error(Kind::Hole { path: dir.to_owned(), name: name.text(segment_size) }));
        }
        let at = |number: u64| Lsn::new(number * segment_size);
        let partial = own.iter().filter(|name| name.is_partial).map(|name| name.number).max();
        Ok(match (whole.first(), whole.last(), partial) {
            (Some(first), Some(last), _) => Some((at(*first), at(last + 1))),
            (_, _, Some(partial)) => Some((at(partial), at(partial))),
            _ => None,
        })
    }
}

fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(Error::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error(Kind::Locked(dir.to_owned()))),
        Err(TryLockError::Error(error)) => Err(Error::io("lock", path)(error)),
    }
}

/// Makes a file whose contents and name survive a crash, or do not appear.
fn write_durably(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Error> {
    let new = path.with_extension("new");
    let made = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        write(&mut file)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    made().map_err(Error::io("write", path))
}

fn sync_dir(dir: &Path) -> Result<(), Error> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::io("sync the directory", dir))
}
