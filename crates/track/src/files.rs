//! The part of a track that is not in memory, in files that go with the process.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::error::Error;

/// A file of this size is complete.
const FILE_SIZE: u64 = 16 << 20;

/// Consecutive bytes of a track.
#[derive(Debug)]
pub(crate) struct Files {
    /// Where files are made.
    dir: PathBuf,
    files: VecDeque<Part>,
}

/// Of all tracks of this process, which may share a directory.
static NEXT_NAME: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
struct Part {
    start: u64,
    end: u64,
    file: Arc<File>,
}

/// Bytes in a file, to be read without a lock.
#[derive(Debug)]
pub(crate) struct InFile {
    file: Arc<File>,
    within: u64,
    size: usize,
    dir: PathBuf,
}

impl InFile {
    pub(crate) fn read(&self) -> Result<Bytes, Error> {
        let mut bytes = vec![0; self.size];
        let failed = |error| Error { doing: "read a spilled track in", path: self.dir.clone(), error };
        self.file.read_exact_at(&mut bytes, self.within).map_err(failed)?;
        Ok(bytes.into())
    }
}

impl Files {
    pub(crate) fn new(dir: PathBuf) -> Files {
        Files { dir, files: VecDeque::new() }
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

    /// Appends bytes that begin `at`, which is where the last ones ended.
    pub(crate) fn append(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        if self.files.back().is_none_or(|last| last.end - last.start >= FILE_SIZE) {
            let file = Arc::new(self.make()?);
            self.files.push_back(Part { start: at, end: at, file });
        }
        if let Some(last) = self.files.back_mut() {
            debug_assert_eq!(last.end, at);
            let failed = |error| Error { doing: "spill a track into", path: self.dir.clone(), error };
            last.file.write_all_at(bytes, last.end - last.start).map_err(failed)?;
            last.end += bytes.len() as u64;
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

    /// At most `most` bytes from `at` on, if they are here.
    pub(crate) fn find(&self, at: u64, most: usize) -> Option<InFile> {
        let number = self.files.partition_point(|part| part.end <= at);
        let part = self.files.get(number).filter(|part| part.start <= at)?;
        let size = usize::try_from(part.end - at).unwrap_or(most).min(most);
        Some(InFile { file: Arc::clone(&part.file), within: at - part.start, size, dir: self.dir.clone() })
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
                    let files = Files::new(dir.path().to_owned());
                    begin.wait();
                    (0..500).for_each(|_| drop(files.make().unwrap()));
                });
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
