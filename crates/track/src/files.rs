//! The part of a track that is not in memory, in files that go with the process.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Lsn;
use rustix::buffer::spare_capacity;

use crate::error::Error;
use crate::portion::Portion;

/// A file of this size is complete.
const FILE_SIZE: u64 = 16 << 20;

/// Consecutive bytes of a track.
#[derive(Debug)]
pub(crate) struct Files {
    /// Where files are made.
    dir: PathBuf,
    files: VecDeque<Part>,
    /// A piece of at least this many bytes is complete.
    piece_bytes: u64,
}

/// Of all tracks of this process, which may share a directory.
static NEXT_NAME: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
struct Part {
    start: u64,
    end: u64,
    file: Arc<File>,
    /// All its bytes, in their order.
    pieces: Vec<Piece>,
}

/// Whole frames, which are read at once.
#[derive(Debug, Clone, Copy)]
struct Piece {
    start: u64,
    end: u64,
    /// See [`Portion::last`].
    last: Lsn,
}

/// A piece of a file, to be read without a lock.
#[derive(Debug)]
pub(crate) struct InFile {
    file: Arc<File>,
    within: u64,
    piece: Piece,
    dir: PathBuf,
}

impl InFile {
    /// Where it begins in the track.
    pub(crate) fn start(&self) -> u64 {
        self.piece.start
    }

    pub(crate) fn read(&self) -> Result<Portion, Error> {
        let size = usize::try_from(self.piece.end - self.piece.start).unwrap_or(usize::MAX);
        let mut bytes = Vec::with_capacity(size);
        let failed = |error| Error { doing: "read a spilled track in", path: self.dir.clone(), error };
        // Not `read_exact_at`: the bytes would have to be cleared before.
        while bytes.len() < size {
            let at = self.within + bytes.len() as u64;
            match rustix::io::pread(&self.file, spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        // The allocator may have given more room than that.
        bytes.truncate(size);
        Ok(Portion { bytes: bytes.into(), last: self.piece.last })
    }
}

impl Files {
    pub(crate) fn new(dir: PathBuf, piece_bytes: u64) -> Files {
        Files { dir, files: VecDeque::new(), piece_bytes }
    }

    /// The bytes in the files.
    pub(crate) fn size(&self) -> u64 {
        match (self.files.front(), self.files.back()) {
            (Some(first), Some(last)) => last.end - first.start,
            _ => 0,
        }
    }

    pub(crate) fn start(&self) -> Option<u64> {
        self.files.front().map(|part| part.start)
    }

    /// Appends a portion that begins `at`, which is where the last one ended.
    pub(crate) fn append(&mut self, at: u64, portion: &Portion) -> Result<(), Error> {
        if self.files.back().is_none_or(|last| last.end - last.start >= FILE_SIZE) {
            let file = Arc::new(self.make()?);
            self.files.push_back(Part { start: at, end: at, file, pieces: Vec::new() });
        }
        if let Some(last) = self.files.back_mut() {
            debug_assert_eq!(last.end, at);
            let failed = |error| Error { doing: "spill a track into", path: self.dir.clone(), error };
            last.file.write_all_at(&portion.bytes, last.end - last.start).map_err(failed)?;
            last.end += portion.bytes.len() as u64;
            match last.pieces.last_mut().filter(|piece| piece.end - piece.start < self.piece_bytes) {
                Some(piece) => (piece.end, piece.last) = (last.end, piece.last.max(portion.last)),
                None => last.pieces.push(Piece { start: at, end: last.end, last: portion.last }),
            }
        }
        Ok(())
    }

    /// Makes a file without a name, so that it goes with the process.
    fn make(&self) -> Result<File, Error> {
        let number = NEXT_NAME.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("track-{}-{number}", std::process::id()));
        let made = || {
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            fs::remove_file(&path)?;
            Ok(file)
        };
        made().map_err(|error| Error { doing: "make", path: path.clone(), error })
    }

    /// Forgets files whose bytes are all before `needed`.
    pub(crate) fn release(&mut self, needed: u64) {
        while self.files.front().is_some_and(|part| part.end <= needed) {
            self.files.pop_front();
        }
    }

    /// Forgets the oldest file, and returns where the bytes begin that are left.
    pub(crate) fn drop_oldest(&mut self) -> Option<u64> {
        self.files.pop_front().map(|part| part.end)
    }

    /// The piece that has the byte `at`, if it is here.
    pub(crate) fn find(&self, at: u64) -> Option<InFile> {
        let number = self.files.partition_point(|part| part.end <= at);
        let part = self.files.get(number).filter(|part| part.start <= at)?;
        let number = part.pieces.partition_point(|piece| piece.end <= at);
        let piece = *part.pieces.get(number)?;
        let within = piece.start - part.start;
        Some(InFile { file: Arc::clone(&part.file), within, piece, dir: self.dir.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tracks of one process share their directory.
    #[test]
    fn tracks_that_spill_at_the_same_time_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let begin = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let files = Files::new(dir.path().to_owned(), 1);
                    begin.wait();
                    (0..500).for_each(|_| drop(files.make().unwrap()));
                });
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
