//! WAL from files: segments of an archive or a `pg_wal`, in their order.
//!
//! Callers name directories and files. A directory stands for the segments in it; other files there
//! are ignored. A file may be compressed, as `pg_receivewal` and archives do it: `.gz`, `.lz4`,
//! `.zst`. A segment that is not complete yet has `.partial` in its name. It is used only if there
//! is no complete file.
//!
//! If there are several timelines, each segment comes from the newest timeline that has it, as in
//! recovery. A history file of the newest timeline says which older timelines it came from, and
//! from where on each of them has segments. The reader of the records must judge whether the pages
//! are those that must come next.
//!
//! Bytes come in the order of their LSNs without a hole. A segment that is missing, or too short
//! although others follow, is an error that names it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::Lsn;

use crate::frames::{Lz4Frames, ZstdFrames};
use crate::slot::Fork;

/// Most bytes in one read. The first read is smaller, because it is often the only one where files
/// grow.
const PIECE_BYTES: usize = 1 << 20;
const FIRST_BYTES: usize = 64 << 10;
/// `XLP_LONG_HEADER`, and the place in a segment's first page that gives the length of segments.
const LONG_HEADER: u16 = 2;
const INFO_AT: usize = 2;
const ADDRESS_AT: usize = 8;
const SYSTEM_AT: usize = 24;
const SEGMENT_SIZE_AT: usize = 32;
const HEADER_BYTES: usize = 40;
/// Hexadecimal digits: eight of the timeline and sixteen of the segment.
const NAME_DIGITS: usize = 24;
/// What may stand behind the name of a whole segment.
const WHOLE_ENDINGS: [&str; 4] = ["", ".gz", ".lz4", ".zst"];

/// Files that are not the expected WAL.
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    /// A file or directory cannot be read, or a file cannot be decompressed.
    Io {
        path: PathBuf,
        error: io::Error,
    },
    /// There is nothing to read.
    None {
        places: Vec<PathBuf>,
    },
    /// A file was named that has no segment's name.
    Name(PathBuf),
    /// A file does not begin as segments do.
    Header(PathBuf),
    Missing {
        name: String,
        lsn: Lsn,
        place: PathBuf,
    },
    Short {
        path: PathBuf,
        bytes: u64,
        wanted: u64,
    },
    /// A history file that is malformed.
    History(PathBuf),
}

impl Error {
    pub(crate) fn new(kind: Kind) -> Error {
        Error(Box::new(kind))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Whether a segment is missing between or before others.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(*self.0, Kind::Missing { .. })
    }

    /// Whether there is no segment at all.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(*self.0, Kind::None { .. })
    }

    /// Whether more may come later: the archive may lag, or may just have replaced one file by
    /// another.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match &*self.0 {
            Kind::Io { error, .. } => error.kind() == io::ErrorKind::NotFound,
            Kind::None { .. } | Kind::Header(_) | Kind::Short { .. } | Kind::Missing { .. } => true,
            Kind::Name(_) | Kind::History(_) => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Io { path, error } => write!(f, "could not read {}: {error}", path.display()),
            Kind::None { places } => {
                let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
                write!(f, "there is no WAL segment in {}", places.join(", "))
            }
            Kind::Name(path) => write!(
                f,
                "{} is not named as a WAL segment: 24 hexadecimal digits, then .partial, .gz, .lz4 or .zst if need be",
                path.display()
            ),
            Kind::Header(path) => write!(f, "{} does not begin as a WAL segment does", path.display()),
            Kind::Missing { name, lsn, place } => {
                write!(f, "WAL is missing: segment {name}, which has {lsn}, is not in {}", place.display())
            }
            Kind::Short { path, bytes, wanted } => write!(
                f,
                "{} has {bytes} bytes of the {wanted} of a segment, and others follow it",
                path.display()
            ),
            Kind::History(path) => write!(f, "{} is no history of a timeline", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Io { error, .. } => error.source(),
            _ => None,
        }
    }
}

type Result<T> = std::result::Result<T, Error>;

fn io_at(path: &Path) -> impl Fn(io::Error) -> Error + use<'_> {
    |error| Error::new(Kind::Io { path: path.to_owned(), error })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Lz4,
    Zstd,
}

/// A file that was opened somewhere in its middle.
enum Middle {
    At(Box<dyn Read + Send>),
    /// It ends before that place, after `bytes` bytes.
    Ends {
        bytes: u64,
    },
}

/// A file with a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    path: PathBuf,
    timeline: u32,
    /// The two halves of its number, as its name has them.
    number: (u32, u32),
    is_partial: bool,
    compression: Compression,
}

impl Segment {
    /// Parses a file's name; `None` if it is no segment's.
    fn of(path: &Path) -> Option<Segment> {
        let name = path.file_name()?.to_str()?;
        let (digits, rest) = name.split_at_checked(NAME_DIGITS)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_lowercase()) {
            return None;
        }
        // The file was compressed and then renamed, or the other way round.
        let partial = rest.strip_suffix(".partial").or_else(|| rest.strip_prefix(".partial"));
        let compression = match partial.unwrap_or(rest) {
            "" => Compression::None,
            ".gz" => Compression::Gzip,
            ".lz4" => Compression::Lz4,
            ".zst" => Compression::Zstd,
            _ => return None,
        };
        let number = |at: usize| u32::from_str_radix(&digits[at..at + 8], 16).ok();
        let (timeline, number) = (number(0)?, (number(8)?, number(16)?));
        let is_partial = partial.is_some();
        Some(Segment { path: path.to_owned(), timeline, number, is_partial, compression })
    }

    /// Whether the file was not written to within the time `settled`. A file that has gone since it
    /// was listed is not settled. A file with a time in the future has another clock's time, and
    /// counts as settled.
    fn is_settled(&self, settled: Duration) -> Result<bool> {
        match fs::metadata(&self.path).and_then(|metadata| metadata.modified()) {
            Ok(modified) => Ok(modified.elapsed().unwrap_or(Duration::MAX) >= settled),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_at(&self.path)(error)),
        }
    }

    fn open(&self) -> Result<Box<dyn Read + Send>> {
        self.decompress(BufReader::new(File::open(&self.path).map_err(io_at(&self.path))?))
    }

    /// Opens the file at `within`. A compressed file may end before that, or be damaged there while
    /// it `grows`.
    fn open_at(&self, within: u64, grows: bool) -> Result<Middle> {
        let mut file = BufReader::new(File::open(&self.path).map_err(io_at(&self.path))?);
        if self.compression == Compression::None {
            file.seek(SeekFrom::Start(within)).map_err(io_at(&self.path))?;
            return Ok(Middle::At(Box::new(file)));
        }
        let opened = self.decompress(file).and_then(|mut file| {
            let skipped = io::copy(&mut file.by_ref().take(within), &mut io::sink());
            match skipped.map_err(io_at(&self.path))? {
                skipped if skipped == within => Ok(Middle::At(file)),
                bytes => Ok(Middle::Ends { bytes }),
            }
        });
        match opened {
            Err(_) if grows => Ok(Middle::Ends { bytes: 0 }),
            opened => opened,
        }
    }

    fn decompress(&self, file: BufReader<File>) -> Result<Box<dyn Read + Send>> {
        Ok(match self.compression {
            Compression::None => Box::new(file),
            // A file may have been put together from several frames.
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
            Compression::Lz4 => Box::new(Lz4Frames::new(file)),
            Compression::Zstd => Box::new(ZstdFrames::new(file)),
        })
    }

    /// Reads the header of the first page.
    fn header(&self) -> Result<[u8; HEADER_BYTES]> {
        let mut header = [0; HEADER_BYTES];
        match self.open()?.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.unfit()),
            other => other.map(|()| header).map_err(io_at(&self.path)),
        }
    }

    fn unfit(&self) -> Error {
        Error::new(Kind::Header(self.path.clone()))
    }

    /// The length of the segments of this cluster.
    fn segment_size(&self) -> Result<u64> {
        let header = self.header()?;
        let info = u16::from_le_bytes([header[INFO_AT], header[INFO_AT + 1]]);
        let size: [u8; 4] = header[SEGMENT_SIZE_AT..SEGMENT_SIZE_AT + 4].try_into().expect("four bytes");
        let size = u32::from_le_bytes(size);
        let is_size = size.is_power_of_two() && (1 << 20..=1 << 30).contains(&size);
        if info & LONG_HEADER == 0 || !is_size {
            return Err(self.unfit());
        }
        Ok(size.into())
    }

    /// Whether the file's first page was written for this segment, and not for an earlier one in a
    /// recycled file.
    fn is_begun(&self, begin: Lsn) -> bool {
        let address = |header: [u8; HEADER_BYTES]| header[ADDRESS_AT..].first_chunk().copied();
        let address = self.header().ok().and_then(address);
        address.map(u64::from_le_bytes) == Some(begin.as_u64())
    }
}

/// The timelines that led to a timeline, the oldest first, each with its beginning.
#[derive(Debug, PartialEq, Eq)]
struct History(Vec<(u32, Lsn)>);

impl History {
    /// Parses the lines of a history file, each with a timeline and the place where it was left:
    /// `1\t0/3000000\twhy`.
    fn parse(text: &str, own: u32) -> Option<History> {
        let (mut all, mut begins) = (Vec::new(), Lsn::INVALID);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            all.push((words.next()?.parse().ok()?, begins));
            begins = words.next()?.parse().ok()?;
        }
        all.push((own, begins));
        Some(History(all))
    }

    /// Whether a timeline may supply a segment that ends at `segment_end`.
    fn has(&self, timeline: u32, segment_end: Lsn) -> bool {
        self.0.iter().any(|(own, begins)| *own == timeline && *begins < segment_end)
    }
}

/// The WAL that belongs to a server: that of its timeline, and of the timelines before it.
#[derive(Debug, Clone)]
pub struct Lineage {
    /// The server's timeline.
    pub timeline: u32,
    /// Where each earlier timeline was left, the oldest first.
    pub forks: Vec<Fork>,
    /// `wal_segment_size`.
    pub segment_size: u64,
}

impl Lineage {
    /// Returns the timeline that supplies the segment of `lsn`: the one that wrote its end. A
    /// server that leaves a timeline copies the segment of the fork and goes on in the copy. So
    /// from the beginning of that segment on, only the copy is needed.
    #[must_use]
    pub fn timeline_at(&self, lsn: Lsn) -> u32 {
        let end = (lsn.as_u64() / self.segment_size).saturating_add(1).saturating_mul(self.segment_size);
        let left = |fork: &&Fork| end <= fork.end.as_u64();
        self.forks.iter().find(left).map_or(self.timeline, |fork| fork.timeline)
    }
}

/// The segments in some places.
#[derive(Debug)]
pub struct Segments {
    /// By number, the file that counts for it.
    segments: BTreeMap<u64, Segment>,
    segment_size: u64,
    place: PathBuf,
    /// Files may still be written to.
    grows: bool,
}

impl Segments {
    /// Returns the complete segments in a directory that belong to a server's WAL. Files that were
    /// written to within `settled` do not count yet. Their writer may not have finished, and a file
    /// that has its full length from the beginning looks the same as a whole one.
    ///
    /// # Errors
    /// The directory cannot be read, or has no segment of that WAL.
    pub fn whole_of(place: &Path, of: &Lineage, settled: Duration) -> Result<Segments> {
        let is_whole = |segment: &Segment| {
            Ok(!segment.is_partial && (settled.is_zero() || segment.is_settled(settled)?))
        };
        Ok(Segments { grows: false, ..Segments::own(place, of, is_whole)? })
    }

    /// Returns the segments in a directory as they are now. This includes segments that are still
    /// being written, and those made in advance without WAL of their own. The records in them must
    /// show how far they are good.
    ///
    /// # Errors
    /// The directory cannot be read, or has no segment of that WAL.
    pub fn growing(place: &Path, of: &Lineage) -> Result<Segments> {
        Segments::own(place, of, |_| Ok(true))
    }

    /// Returns the segments of a server's WAL that `counts` accepts.
    fn own(place: &Path, of: &Lineage, counts: impl Fn(&Segment) -> Result<bool>) -> Result<Segments> {
        let mut segments: BTreeMap<u64, Segment> = BTreeMap::new();
        let mut is_empty = true;
        for entry in fs::read_dir(place).map_err(io_at(place))? {
            let Some(segment) = Segment::of(&entry.map_err(io_at(place))?.path()) else { continue };
            let number = number_of(segment.number, of.segment_size);
            // No server uses a name beyond that, and no LSN exists for it.
            let is_name = u64::from(segment.number.1) < (1 << 32) / of.segment_size;
            let Some(end) = (number + 1).checked_mul(of.segment_size).filter(|_| is_name) else { continue };
            if of.timeline_at(Lsn::new(end - of.segment_size)) == segment.timeline {
                is_empty = false;
                if counts(&segment)? {
                    keep(&mut segments, number, segment);
                }
            }
        }
        if is_empty {
            return Err(Error::new(Kind::None { places: vec![place.to_owned()] }));
        }
        Ok(Segments { segments, segment_size: of.segment_size, place: place.to_owned(), grows: true })
    }

    /// Finds the segments in these directories and files.
    ///
    /// # Errors
    /// A place cannot be read, a named file is no segment, or there is no segment at all.
    pub fn find(places: &[PathBuf]) -> Result<Segments> {
        let (mut found, mut histories) = (Vec::new(), BTreeMap::new());
        for place in places {
            if fs::metadata(place).map_err(io_at(place))?.is_dir() {
                for entry in fs::read_dir(place).map_err(io_at(place))? {
                    let path = entry.map_err(io_at(place))?.path();
                    found.extend(Segment::of(&path));
                    histories.extend(history_of(&path).map(|timeline| (timeline, path)));
                }
            } else {
                found.push(Segment::of(place).ok_or_else(|| Error::new(Kind::Name(place.clone())))?);
            }
        }
        let Some(newest) = found.iter().map(|segment| segment.timeline).max() else {
            return Err(Error::new(Kind::None { places: places.to_vec() }));
        };
        let segment_size = segment_size(&mut found)?;
        let history = histories.get(&newest).map(|path| read_history(path, newest)).transpose()?;
        let mut segments: BTreeMap<u64, Segment> = BTreeMap::new();
        for segment in found {
            let number = number_of(segment.number, segment_size);
            let end = Lsn::new((number + 1) * segment_size);
            if history.as_ref().is_some_and(|history| !history.has(segment.timeline, end)) {
                continue;
            }
            keep(&mut segments, number, segment);
        }
        let place = places.first().cloned().unwrap_or_default();
        Ok(Segments { segments, segment_size, place, grows: false })
    }

    /// `wal_segment_size`.
    #[must_use]
    pub fn segment_size(&self) -> u64 {
        self.segment_size
    }

    /// Where the first segment begins and the last one ends.
    #[must_use]
    pub fn span(&self) -> (Lsn, Lsn) {
        let at = |number: u64| Lsn::new(number * self.segment_size);
        let first = self.segments.first_key_value().map_or(0, |(number, _)| *number);
        let last = self.segments.last_key_value().map_or(0, |(number, _)| *number + 1);
        (at(first), at(last))
    }

    /// Returns the system identifier in the segment that has `lsn`.
    ///
    /// # Errors
    /// The segment is missing, or has no WAL of its own yet.
    pub fn system_id(&self, lsn: Lsn) -> Result<u64> {
        let number = lsn.as_u64() / self.segment_size;
        let segment = self.segments.get(&number).ok_or_else(|| self.missing(number, lsn))?;
        let begin = Lsn::new(number * self.segment_size);
        let header = segment.header()?;
        match header[SYSTEM_AT..].first_chunk() {
            Some(system_id) if segment.is_begun(begin) => Ok(u64::from_le_bytes(*system_id)),
            _ => Err(self.missing(number, lsn)),
        }
    }

    /// Returns where the last segment begins that has WAL of its own; invalid if none has.
    #[must_use]
    pub fn last_begun(&self) -> Lsn {
        let begin = |number: u64| Lsn::new(number * self.segment_size);
        let mut all = self.segments.iter().rev().map(|(number, segment)| (begin(*number), segment));
        all.find(|(begin, segment)| segment.is_begun(*begin)).map_or(Lsn::INVALID, |(begin, _)| begin)
    }

    /// Returns the bytes from `from` on.
    ///
    /// # Errors
    /// The segment that has `from` is missing.
    pub fn read(&self, from: Lsn) -> Result<Bytes<'_>> {
        let number = from.as_u64() / self.segment_size;
        if !self.segments.contains_key(&number) {
            return Err(self.missing(number, from));
        }
        Ok(Bytes {
            segments: self,
            position: from,
            open: None,
            piece: FIRST_BYTES,
            buffer: Vec::new(),
            is_over: false,
        })
    }

    /// The error for the segment that has `end`, if that segment is good only up to there although
    /// others follow. `None` if the segment is not there.
    #[must_use]
    pub fn short(&self, end: Lsn) -> Option<Error> {
        let segment = self.segments.get(&(end.as_u64() / self.segment_size))?;
        Some(self.short_of(segment, end.as_u64() % self.segment_size))
    }

    /// Whether a segment must be whole, because others follow it and none is written to any more.
    fn is_followed(&self, number: u64) -> bool {
        !self.grows && self.segments.range(number + 1..).next().is_some()
    }

    fn short_of(&self, segment: &Segment, bytes: u64) -> Error {
        Error::new(Kind::Short { path: segment.path.clone(), bytes, wanted: self.segment_size })
    }

    fn missing(&self, number: u64, lsn: Lsn) -> Error {
        let before = self.segments.range(..number).next_back();
        let timeline = before
            .or_else(|| self.segments.range(number..).next())
            .map_or(1, |(_, segment)| segment.timeline);
        let name = name(timeline, Lsn::new(number * self.segment_size), self.segment_size);
        Error::new(Kind::Missing { name, lsn, place: self.place.clone() })
    }
}

/// Whether a directory is a server's own `pg_wal`, which has WAL that is not flushed yet.
#[must_use]
pub fn is_pg_wal(dir: &Path) -> bool {
    dir.join("archive_status").is_dir()
}

/// A whole segment that was opened somewhere in its middle.
pub struct Opened {
    /// The segment's file.
    pub path: PathBuf,
    /// The bytes up to the segment's end. Reading fails if the file ends before.
    pub bytes: Box<dyn Read + Send>,
}

/// Opens the whole segment of a server's WAL that has `lsn`, at that place. The segment is found by
/// its name, so it does not matter how many files the directory has.
///
/// # Errors
/// The segment is missing, or ends before `lsn`. A file that was written to within `settled` is not
/// whole yet.
pub fn open_whole(place: &Path, of: &Lineage, lsn: Lsn, settled: Duration) -> Result<Opened> {
    let name = name(of.timeline_at(lsn), lsn, of.segment_size);
    for ending in WHOLE_ENDINGS {
        let path = place.join(format!("{name}{ending}"));
        let Some(segment) = Segment::of(&path) else { continue };
        if !path.try_exists().map_err(io_at(&path))? || !settled.is_zero() && !segment.is_settled(settled)? {
            continue;
        }
        let within = lsn.as_u64() % of.segment_size;
        return match segment.open_at(within, false)? {
            Middle::At(bytes) => {
                let (at, wanted) = (within, of.segment_size);
                let bytes = Box::new(Rest { bytes, at, wanted, path: path.clone() });
                Ok(Opened { path, bytes })
            }
            Middle::Ends { bytes } => Err(Error::new(Kind::Short { path, bytes, wanted: of.segment_size })),
        };
    }
    Err(Error::new(Kind::Missing { name, lsn, place: place.to_owned() }))
}

/// The rest of a segment, which must be there.
struct Rest {
    bytes: Box<dyn Read + Send>,
    at: u64,
    wanted: u64,
    path: PathBuf,
}

impl Read for Rest {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.wanted - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.bytes.read(&mut buffer[..left])?;
        if read == 0 && left > 0 {
            let short = Kind::Short { path: self.path.clone(), bytes: self.at, wanted: self.wanted };
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, Error::new(short)));
        }
        self.at += read as u64;
        Ok(read)
    }
}

/// The name of the segment that has `lsn`.
#[must_use]
pub fn name(timeline: u32, lsn: Lsn, segment_size: u64) -> String {
    let (number, per_file) = (lsn.as_u64() / segment_size, (1 << 32) / segment_size);
    format!("{timeline:08X}{:08X}{:08X}", number / per_file, number % per_file)
}

/// Keeps `segment`, unless a better file is known for that number.
fn keep(segments: &mut BTreeMap<u64, Segment>, number: u64, segment: Segment) {
    let rank = |segment: &Segment| (segment.timeline, !segment.is_partial);
    if segments.get(&number).is_none_or(|other| rank(other) < rank(&segment)) {
        segments.insert(number, segment);
    }
}

/// Returns the length of the segments, by the first one that was ever written: a server makes some
/// in advance.
fn segment_size(found: &mut [Segment]) -> Result<u64> {
    found.sort_by_key(|segment| (segment.number, segment.timeline, segment.is_partial));
    let mut sizes = found.iter().map(Segment::segment_size);
    let first = sizes.next().unwrap_or(Ok(0));
    first.or_else(|error| sizes.find_map(Result::ok).ok_or(error))
}

fn number_of((high, low): (u32, u32), segment_size: u64) -> u64 {
    u64::from(high) * ((1 << 32) / segment_size) + u64::from(low)
}

/// Returns the timeline whose history the file is.
fn history_of(path: &Path) -> Option<u32> {
    let digits = path.file_name()?.to_str()?.strip_suffix(".history")?;
    (digits.len() == 8).then(|| u32::from_str_radix(digits, 16).ok())?
}

fn read_history(path: &Path, timeline: u32) -> Result<History> {
    let text = fs::read_to_string(path).map_err(io_at(path))?;
    History::parse(&text, timeline).ok_or_else(|| Error::new(Kind::History(path.to_owned())))
}

/// The bytes of segments, one after the other.
pub struct Bytes<'a> {
    segments: &'a Segments,
    position: Lsn,
    open: Option<Box<dyn Read + Send>>,
    /// Bytes to read next.
    piece: usize,
    buffer: Vec<u8>,
    is_over: bool,
}

impl Bytes<'_> {
    /// The position of the next bytes.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.position
    }

    /// Returns the next bytes. `None` behind the last segment, or where the segments end for now.
    ///
    /// # Errors
    /// A segment is missing, is too short although others follow, or cannot be read.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        let all = self.segments;
        let (segments, size) = (&all.segments, all.segment_size);
        if self.is_over {
            return Ok(None);
        }
        let number = self.position.as_u64() / size;
        let Some(segment) = segments.get(&number) else {
            return match segments.range(number..).next() {
                Some(_) => Err(all.missing(number, self.position)),
                None => Ok(None),
            };
        };
        let within = self.position.as_u64() % size;
        let file = match &mut self.open {
            Some(file) => file,
            open => match segment.open_at(within, all.grows)? {
                Middle::At(file) => open.insert(file),
                Middle::Ends { bytes } if all.is_followed(number) => return Err(all.short_of(segment, bytes)),
                Middle::Ends { .. } => return Ok(None),
            },
        };
        let wanted = usize::try_from(size - within).unwrap_or(self.piece).min(self.piece);
        self.piece = (self.piece * 2).min(PIECE_BYTES);
        self.buffer.resize(wanted, 0);
        let read = match fill(file, &mut self.buffer) {
            // A compressed file has no fixed end while it is being written.
            (read, Some(_)) if all.grows && segment.compression != Compression::None => read,
            (_, Some(error)) => return Err(io_at(&segment.path)(error)),
            (read, None) => read,
        };
        if read < wanted && all.is_followed(number) {
            return Err(all.short_of(segment, within + read as u64));
        }
        // Bytes that come later are for another look.
        self.is_over = all.grows && read < wanted;
        self.position = Lsn::new(self.position.as_u64() + read as u64);
        if self.position.as_u64().is_multiple_of(size) {
            self.open = None;
        }
        Ok((read > 0).then(|| &self.buffer[..read]))
    }
}

/// Reads until the buffer is full, nothing more comes, or an error occurs. Returns the number of
/// bytes.
fn fill(file: &mut dyn Read, buffer: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (filled, Some(error)),
        }
    }
    (filled, None)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const SIZE: u64 = 1 << 20;

    /// A segment with a header, whose bytes tell their place.
    fn segment(number: u64) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            (0..SIZE / 8).flat_map(|at| (number * SIZE + at * 8).to_le_bytes()).collect();
        bytes[INFO_AT] = LONG_HEADER as u8;
        bytes[SEGMENT_SIZE_AT..SEGMENT_SIZE_AT + 4].copy_from_slice(&(SIZE as u32).to_le_bytes());
        bytes
    }

    fn name(timeline: u32, number: u64) -> String {
        format!("{timeline:08X}{:08X}{:08X}", number / 4096, number % 4096)
    }

    fn all(segments: &Segments, from: u64) -> Result<Vec<u8>> {
        let (mut bytes, mut read) = (Vec::new(), segments.read(Lsn::new(from))?);
        while let Some(piece) = read.next()? {
            bytes.extend_from_slice(piece);
        }
        Ok(bytes)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn lz4(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn what_was_written_just_now_is_not_whole_yet() {
        const SETTLED: Duration = Duration::from_secs(10);
        let dir = tempfile::tempdir().unwrap();
        for number in 1..=2 {
            std::fs::write(dir.path().join(name(1, number)), segment(number)).unwrap();
        }
        let aged = |number, age: Duration| {
            let file = File::options().write(true).open(dir.path().join(name(1, number))).unwrap();
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        };
        let whole = || Segments::whole_of(dir.path(), &lineage(1, &[]), SETTLED).unwrap();
        let end = || whole().span().1;
        aged(1, SETTLED * 2);
        assert_eq!(end(), Lsn::new(2 * SIZE));
        let missing = whole();
        assert!(missing.read(Lsn::new(2 * SIZE)).is_err_and(|error| error.is_missing()));
        aged(2, SETTLED * 2);
        assert_eq!(end(), Lsn::new(3 * SIZE));
    }

    fn lineage(timeline: u32, forks: &[(u32, u64)]) -> Lineage {
        let forks = forks.iter().map(|&(timeline, end)| Fork { timeline, end: Lsn::new(end) }).collect();
        Lineage { timeline, forks, segment_size: SIZE }
    }

    #[test]
    fn a_segment_is_of_the_timeline_that_was_written_to_at_its_end() {
        let of = lineage(4, &[(1, 2 * SIZE + 5), (2, 2 * SIZE + 5), (3, 5 * SIZE)]);
        let at = [0, 2 * SIZE - 1, 2 * SIZE, 2 * SIZE + 4, 3 * SIZE, 5 * SIZE - 1, 5 * SIZE, 9 * SIZE];
        assert_eq!(at.map(|lsn| of.timeline_at(Lsn::new(lsn))), [1, 1, 3, 3, 3, 3, 4, 4]);
        assert_eq!(of.timeline_at(Lsn::new(u64::MAX)), 4);
    }

    #[test]
    fn names_say_what_a_file_is() {
        let of = |name: &str| {
            Segment::of(Path::new(name))
                .map(|found| (found.timeline, found.number, found.is_partial, found.compression))
        };
        let plain = "0000000A0000000B000000FC";
        assert_eq!(of(plain), Some((10, (11, 0xfc), false, Compression::None)));
        for (suffix, is_partial, compression) in [
            (".partial", true, Compression::None),
            (".gz", false, Compression::Gzip),
            (".gz.partial", true, Compression::Gzip),
            (".partial.gz", true, Compression::Gzip),
            (".lz4", false, Compression::Lz4),
            (".lz4.partial", true, Compression::Lz4),
            (".zst", false, Compression::Zstd),
        ] {
            assert_eq!(
                of(&format!("{plain}{suffix}")),
                Some((10, (11, 0xfc), is_partial, compression)),
                "{suffix}"
            );
        }
        for other in [
            "00000002.history",
            "0000000a0000000B000000FC",
            "0000000A0000000B000000FC.00000028.backup",
            "x",
            "0000000A0000000B000000FCgz",
            "0000000A0000000B000000FC.gzip",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn segments_of_every_kind_come_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: String, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
        let expected: Vec<u8> = (4095..4100).flat_map(segment).collect();
        put(name(1, 4095), &segment(4095));
        put(format!("{}.gz", name(1, 4096)), &gzip(&segment(4096)));
        put(format!("{}.lz4", name(1, 4097)), &lz4(&segment(4097)));
        put(format!("{}.zst", name(1, 4098)), &zstd(&segment(4098)));
        put(format!("{}.partial", name(1, 4099)), &segment(4099));
        put("archive_status".to_owned(), b"");
        let segments = Segments::find(&[dir.path().to_owned()]).unwrap();
        assert_eq!(segments.segment_size(), SIZE);
        assert_eq!(segments.span(), (Lsn::new(4095 * SIZE), Lsn::new(4100 * SIZE)));
        assert!(all(&segments, 4095 * SIZE).unwrap() == expected);
        let from = 4096 * SIZE + 3 * 8192;
        assert!(all(&segments, from).unwrap() == expected[(from - 4095 * SIZE) as usize..]);
        // Frames one after another, some of which have no data.
        let halves = |number: u64, pack: fn(&[u8]) -> Vec<u8>| {
            let whole = segment(number);
            let (first, second) = whole.split_at(300_000);
            [pack(first), pack(&[]), pack(second)]
        };
        put(format!("{}.gz", name(1, 4096)), &halves(4096, gzip).concat());
        put(format!("{}.lz4", name(1, 4097)), &halves(4097, lz4).concat());
        let [first, empty, second] = halves(4098, zstd);
        let skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec();
        let frames = [skippable.clone(), first, empty, skippable, second].concat();
        put(format!("{}.zst", name(1, 4098)), &frames);
        assert!(all(&segments, 4095 * SIZE).unwrap() == expected);
        assert!(all(&segments, from).unwrap() == expected[(from - 4095 * SIZE) as usize..]);
        // The last segment may be shorter; a complete file counts more than a partial one.
        put(format!("{}.gz.partial", name(1, 4100)), &gzip(&segment(4100)[..5000]));
        let segments = Segments::find(&[dir.path().to_owned()]).unwrap();
        assert_eq!(all(&segments, 4099 * SIZE).unwrap().len(), SIZE as usize + 5000);
        put(name(1, 4100), &segment(4100));
        let segments = Segments::find(&[dir.path().to_owned()]).unwrap();
        assert_eq!(all(&segments, 4099 * SIZE).unwrap().len(), 2 * SIZE as usize);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().to_owned();
        let error = Segments::find(std::slice::from_ref(&place)).unwrap_err().to_string();
        assert!(error.starts_with("there is no WAL segment in "), "{error}");
        for number in [5, 6, 8] {
            fs::write(place.join(name(3, number)), segment(number)).unwrap();
        }
        let segments = Segments::find(std::slice::from_ref(&place)).unwrap();
        let error = all(&segments, 5 * SIZE).unwrap_err();
        assert!(
            error.is_missing() && error.to_string().contains("segment 000000030000000000000007"),
            "{error}"
        );
        let error = segments.read(Lsn::new(4 * SIZE + 8)).err().unwrap().to_string();
        assert!(error.contains("segment 000000030000000000000004, which has 0/400008"), "{error}");
        fs::write(place.join(name(3, 7)), &segment(7)[..8192]).unwrap();
        let segments = Segments::find(std::slice::from_ref(&place)).unwrap();
        let error = all(&segments, 5 * SIZE).unwrap_err().to_string();
        assert!(error.contains("has 8192 bytes of the 1048576 of a segment"), "{error}");
        // A compressed one that ends early, read from its beginning and from behind its end.
        fs::remove_file(place.join(name(3, 7))).unwrap();
        for (suffix, pack) in [(".gz", gzip as fn(&[u8]) -> Vec<u8>), (".lz4", lz4), (".zst", zstd)] {
            let path = place.join(name(3, 7) + suffix);
            fs::write(&path, pack(&segment(7)[..8192])).unwrap();
            let segments = Segments::find(std::slice::from_ref(&place)).unwrap();
            for from in [5 * SIZE, 7 * SIZE + 8192, 7 * SIZE + 9000] {
                let error = all(&segments, from).unwrap_err().to_string();
                assert!(error.contains("has 8192 bytes of the 1048576 of a segment"), "{suffix}: {error}");
            }
            fs::remove_file(path).unwrap();
        }
        let other = place.join("00000003.txt");
        fs::write(&other, b"").unwrap();
        let error = Segments::find(&[other]).unwrap_err().to_string();
        assert!(error.contains("is not named as a WAL segment"), "{error}");
        let damaged = place.join(format!("{}.gz", name(3, 9)));
        fs::write(&damaged, b"no gzip at all").unwrap();
        let error = Segments::find(&[damaged]).unwrap_err().to_string();
        assert!(error.starts_with("could not read "), "{error}");
        let empty = place.join(name(3, 9));
        fs::write(&empty, [0; 8192]).unwrap();
        let error = Segments::find(&[empty]).unwrap_err().to_string();
        assert!(error.ends_with("does not begin as a WAL segment does"), "{error}");
    }

    #[test]
    fn the_newest_timeline_counts_from_where_it_begins() {
        let dir = tempfile::tempdir().unwrap();
        let put = |timeline, number, mark: u8| {
            let mut bytes = segment(number);
            bytes[8000] = mark;
            fs::write(dir.path().join(name(timeline, number)), bytes).unwrap();
        };
        // Timeline 1 was left in segment 2 for timeline 2. Timeline 3 also came from 1, and belongs
        // to another server.
        for (timeline, numbers) in [(1, 1..4), (2, 2..4), (3, 3..5), (4, 3..5)] {
            numbers.for_each(|number| put(timeline, number, timeline as u8));
        }
        let history = "1\t0/280000\tno recovery target specified\n\n2\t0/300010\tas well\n";
        fs::write(dir.path().join("00000004.history"), history).unwrap();
        let marks = |segments: &Segments| -> Vec<u8> {
            let bytes = all(segments, SIZE).unwrap();
            bytes.chunks(SIZE as usize).map(|segment| segment[8000]).collect()
        };
        let segments = Segments::find(&[dir.path().to_owned()]).unwrap();
        assert_eq!(marks(&segments), [1, 2, 4, 4]);
        fs::remove_file(dir.path().join(name(4, 3))).unwrap();
        let segments = Segments::find(&[dir.path().to_owned()]).unwrap();
        assert_eq!(marks(&segments), [1, 2, 2, 4], "the third is none of its own");
        // A clone archives into the same place: a follower of timeline 1 reads nothing of the
        // clone's.
        put(1, 4, 1);
        fs::write(dir.path().join(format!("{}.partial", name(1, 5))), segment(5)).unwrap();
        let whole = |of: &Lineage| Segments::whole_of(dir.path(), of, Duration::ZERO).unwrap();
        assert_eq!(marks(&whole(&lineage(1, &[]))), [1, 1, 1, 1]);
        // Nor does a follower of the clone read on in timeline 1 behind the fork, if the clone's
        // own segment is not there yet.
        let followed = whole(&lineage(4, &[(1, 2 * SIZE + SIZE / 2), (2, 3 * SIZE + 16)]));
        let error = all(&followed, SIZE).unwrap_err();
        assert!(error.is_missing() && error.to_string().contains("which has 0/300000"), "{error}");
        fs::write(dir.path().join("00000004.history"), "what?\n").unwrap();
        let error = Segments::find(&[dir.path().to_owned()]).unwrap_err().to_string();
        assert!(error.ends_with("is no history of a timeline"), "{error}");
    }

    #[test]
    fn what_grows_is_of_the_sources_own_timelines_and_ends_where_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: String, number, mark: u8| {
            let mut bytes = segment(number);
            bytes[ADDRESS_AT..ADDRESS_AT + 8].copy_from_slice(&(number * SIZE).to_le_bytes());
            bytes[SYSTEM_AT..SYSTEM_AT + 8].copy_from_slice(&7_u64.to_le_bytes());
            bytes[8000] = mark;
            fs::write(dir.path().join(name), bytes).unwrap();
        };
        let growing =
            |timeline, forks: &[(u32, u64)]| Segments::growing(dir.path(), &lineage(timeline, forks));
        assert!(growing(1, &[]).unwrap_err().is_none());
        // Timeline 1 was left in segment 2 for timeline 2, and went on nevertheless. So did a
        // timeline that the source never had.
        for (timeline, numbers) in [(1, 1..6), (2, 2..4), (3, 2..6)] {
            numbers.for_each(|number| put(name(timeline, number), number, timeline as u8));
        }
        put(name(2, 4) + ".partial", 4, 20);
        // Names that no server uses, and one behind the last LSN.
        for other in ["0000000200000000FFFFFFFF", "00000002FFFFFFFFFFFFFFFF", "00000002FFFFFFFF00000FFF"] {
            put(other.to_owned(), 9, 99);
        }
        put(name(2, 3) + ".partial", 3, 30);
        let marks = |segments: &Segments| -> Vec<u8> {
            let bytes = all(segments, SIZE).unwrap();
            bytes.chunks(SIZE as usize).map(|segment| segment[8000]).collect()
        };
        let found = growing(2, &[(1, 2 * SIZE + SIZE / 2)]).unwrap();
        assert_eq!(marks(&found), [1, 2, 2, 20]);
        assert_eq!((found.last_begun(), found.span().1), (Lsn::new(4 * SIZE), Lsn::new(5 * SIZE)));
        assert_eq!(found.system_id(Lsn::new(4 * SIZE + 5)).unwrap(), 7);
        assert!(found.system_id(Lsn::new(5 * SIZE)).unwrap_err().is_missing());
        // A timeline that was left at the end of a segment has whole segments only.
        assert_eq!(marks(&growing(2, &[(1, 2 * SIZE)]).unwrap()), [1, 2, 2, 20]);
        assert_eq!(marks(&growing(1, &[]).unwrap()), [1; 5]);
        // Made in advance, and short although others follow.
        put(name(1, 6), 2, 1);
        fs::write(dir.path().join(name(1, 3)), &segment(3)[..9000]).unwrap();
        let found = growing(1, &[]).unwrap();
        assert_eq!(found.last_begun(), Lsn::new(5 * SIZE));
        assert!(found.system_id(Lsn::new(6 * SIZE)).unwrap_err().is_missing());
        assert_eq!(all(&found, SIZE).unwrap().len() as u64, 2 * SIZE + 9000);
        let error = found.short(Lsn::new(3 * SIZE + 9000)).unwrap();
        assert!(error.is_passing() && error.to_string().contains("has 9000 bytes of the 1048576"), "{error}");
        // A compressed file is read as far as it goes, from its beginning and from the middle.
        let compressed = gzip(&segment(3));
        fs::remove_file(dir.path().join(name(1, 3))).unwrap();
        fs::write(dir.path().join(format!("{}.gz", name(1, 3))), &compressed[..compressed.len() / 2])
            .unwrap();
        let found = growing(1, &[]).unwrap();
        let read = all(&found, 3 * SIZE).unwrap().len() as u64;
        assert!(read > SIZE / 8 && read < SIZE, "{read}");
        assert_eq!(all(&found, 3 * SIZE + 8192).unwrap().len() as u64, read - 8192);
        assert_eq!(all(&found, 4 * SIZE - 8192).unwrap(), [0_u8; 0]);
    }

    #[test]
    fn a_whole_segment_is_opened_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: String, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
        let of = lineage(2, &[(1, 5 * SIZE)]);
        let open = |lsn: u64, settled| open_whole(dir.path(), &of, Lsn::new(lsn), settled);
        let rest = |lsn: u64| -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            open(lsn, Duration::ZERO).map_err(io::Error::other)?.bytes.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        for (number, ending, pack) in [
            (4, "", <[u8]>::to_vec as fn(&[u8]) -> Vec<u8>),
            (5, ".gz", gzip),
            (6, ".lz4", lz4),
            (7, ".zst", zstd),
        ] {
            let timeline = if number < 5 { 1 } else { 2 };
            put(name(timeline, number) + ending, &pack(&segment(number)));
            // What follows the whole segment does not belong to it.
            for within in [0, 8192 + 5] {
                let mut bytes = vec![0; (SIZE - within) as usize];
                let at = number * SIZE + within;
                open(at, Duration::ZERO).unwrap().bytes.read_exact(&mut bytes).unwrap();
                assert!(bytes == segment(number)[within as usize..], "{number} from {within}");
            }
            // A file that ends early says so, wherever it is read from.
            put(name(timeline, number) + ending, &pack(&segment(number)[..9000]));
            for within in [0, 8192, 9001] {
                let error = rest(number * SIZE + within).unwrap_err().to_string();
                let is_short = error.contains("has 9000 bytes of the 1048576 of a segment");
                assert!(is_short || ending.is_empty() && within > 9000, "{number} from {within}: {error}");
            }
        }
        // Neither a file that is being written nor another timeline's counts.
        put(name(2, 8) + ".partial", &segment(8));
        put(name(1, 8), &segment(8));
        let error = open(8 * SIZE, Duration::ZERO).err().unwrap();
        assert!(error.is_missing() && error.to_string().contains("000000020000000000000008"), "{error}");
        put(name(2, 8), &segment(8));
        assert!(open(8 * SIZE, Duration::from_secs(60)).is_err_and(|error| error.is_missing()));
        open(8 * SIZE, Duration::ZERO).unwrap();
    }
}
