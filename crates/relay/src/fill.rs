//! Copies WAL that the publisher does not have any more from an archive into the relay's directory.
//!
//! ```text
//!   kept here      | missing                | on the publisher
//!   ---------------|------------------------|------------------->
//!                 end                     until: the segment of the slot, or a fork
//! ```
//! Each record must follow the one before, from the last segment that is kept here on. Each page
//! must be of this cluster, of its place, and of a timeline that may come there. Only whole records
//! are written, so a segment that is damaged in the archive can be replaced there. Only the record
//! that goes on behind `until` is not checked as a whole: decoding does that.
//!
//! The publisher's own history says which timeline has a segment, whatever else the archive has. At
//! a fork the filling ends, and begins again on the next timeline.

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use base::Lsn;
use bytes::BytesMut;
use source::segments::{self, Lineage, Opened};
use wal::{Reader, Start, Whole};
use wal_dir::{Piece, Writer};

use crate::archive::WalArchive;

/// Most bytes in one read.
const PIECE_BYTES: u64 = 1 << 20;

/// What is missing, and where it is.
#[derive(Debug)]
pub(crate) struct Gap {
    pub(crate) archive: WalArchive,
    pub(crate) lineage: Lineage,
    pub(crate) system_id: u64,
    /// Everything before is to be here.
    pub(crate) until: Lsn,
}

/// A gap that is being filled.
pub(crate) struct Filling {
    gap: Gap,
    reader: Reader,
    whole: Whole,
    /// What was read behind the last whole record. It begins where the directory ends.
    rest: BytesMut,
    buffer: Vec<u8>,
}

/// Why a gap is not filled.
#[derive(Debug)]
pub(crate) enum FillError {
    /// A segment is missing or too short.
    Segment(segments::Error),
    Read(PathBuf, io::Error),
    /// The file has other bytes than the records that must come.
    Records(PathBuf, wal::Error),
    /// The segment is not full, and no other one may follow it.
    Ends(PathBuf, Lsn),
    /// The relay's own WAL, which the archive's must follow.
    Own(wal::Error),
    Write(wal_dir::Error),
}

impl fmt::Display for FillError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let replace = "put the publisher's own segment there, and the relay goes on by itself";
        match self {
            FillError::Segment(error) => {
                write!(f, "{error}; bring the segment back, and the relay goes on by itself")
            }
            FillError::Read(path, error) => {
                write!(f, "could not read {}: {error}; {replace}", path.display())
            }
            FillError::Records(path, error) => {
                write!(f, "{} has other WAL than must come: {error}; {replace}", path.display())
            }
            FillError::Ends(path, at) => {
                write!(f, "{} has no WAL from {at} on, and should be full; {replace}", path.display())
            }
            FillError::Own(error) => write!(f, "the relay's own WAL before it is damaged: {error}"),
            FillError::Write(error) => error.fmt(f),
        }
    }
}

impl Filling {
    /// Reads the end of what is kept, so that the archive's first record must follow it.
    ///
    /// # Errors
    /// The relay's own WAL cannot be read.
    pub(crate) fn start(gap: Gap, writer: &Writer) -> Result<Filling, FillError> {
        let (end, size) = (writer.end(), gap.lineage.segment_size);
        let last = Lsn::new(end.as_u64().saturating_sub(1) / size * size);
        let from = if writer.oldest() < end { last.max(writer.oldest()) } else { end };
        let start = Start { lsn: from, segment_size: size, system_id: Some(gap.system_id), timeline: None };
        let mut reader = Reader::new(start).map_err(FillError::Own)?;
        let mut whole = Whole { last: from, end };
        let mut kept = writer.reader_of_written(from).map_err(FillError::Write)?;
        while reader.position() < end {
            match kept.next().map_err(FillError::Write)? {
                Piece::Bytes(at, bytes) => {
                    whole.read(&mut reader, at, bytes).map_err(FillError::Own)?;
                }
                Piece::Dry => break,
            }
        }
        Ok(Filling { gap, reader, whole, rest: BytesMut::new(), buffer: Vec::new() })
    }

    /// Copies what the next segment has. Returns whether that was the last one.
    ///
    /// # Errors
    /// The segment is not the one that must come, or cannot be written. The records before the
    /// error are written.
    pub(crate) fn segment(&mut self, writer: &mut Writer) -> Result<bool, FillError> {
        let (until, size) = (self.gap.until, self.gap.lineage.segment_size);
        let begin = self.reader.position();
        if begin >= until {
            return Ok(true);
        }
        // The records show whether the file is whole.
        let opened = self.gap.archive.open(&self.gap.lineage, begin, Duration::ZERO);
        let Opened { path, mut bytes } = opened.map_err(FillError::Segment)?;
        let end = Lsn::new((begin.as_u64() / size + 1) * size).min(until);
        while self.reader.position() < end {
            let at = self.reader.position();
            let wanted = (end.as_u64() - at.as_u64()).min(PIECE_BYTES);
            self.buffer.resize(wanted as usize, 0);
            bytes.read_exact(&mut self.buffer).map_err(|error| FillError::Read(path.clone(), error))?;
            let read = self.whole.read(&mut self.reader, at, &self.buffer);
            self.rest.extend_from_slice(&self.buffer);
            let good = if self.reader.position() >= until && read.is_ok() { until } else { self.whole.end };
            self.write(writer, good)?;
            read.map_err(|error| FillError::Records(path.clone(), error))?;
            if let Some(at) = self.reader.zeros_from() {
                return Err(FillError::Ends(path, at));
            }
        }
        Ok(end >= until)
    }

    /// Writes what was read before `good`.
    fn write(&mut self, writer: &mut Writer, good: Lsn) -> Result<(), FillError> {
        let end = writer.end();
        let whole = good.as_u64().saturating_sub(end.as_u64()).min(self.rest.len() as u64);
        writer.write(end, &self.rest.split_to(whole as usize)).map_err(FillError::Write)
    }
}
