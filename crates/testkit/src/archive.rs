//! A directory that gets a server's WAL while it is written, as `pg_receivewal` leaves it.
//!
//! It has whole segments, and the last one with `.partial` in its name, which is as long as a
//! segment from the start.
//!
//! `pg_receivewal` itself follows no server that is newer than it, and only one major's is
//! installed here. So this module reads the pages from `pg_wal`, which is the same as long as the
//! machine does not go down.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

const PAGE: usize = 8192;
/// The segments that a test's source keeps. A longer WAL does not belong to a test.
const SEGMENTS_MAX: usize = 64;
const INTERVAL: Duration = Duration::from_millis(20);
/// Hexadecimal digits of a segment's name.
const NAME_DIGITS: usize = 24;

/// Fills a directory until it is dropped, which removes the directory as well.
#[derive(Debug)]
pub struct Archive {
    dir: TempDir,
    stop: Arc<AtomicBool>,
    filling: Option<JoinHandle<()>>,
}

impl Archive {
    /// An archive of the server with this data directory, from its oldest segment on. It lies
    /// beside that directory, and is removed with it at the latest.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made.
    pub fn start(data_dir: &Path) -> Result<Archive> {
        let dir = tempfile::Builder::new()
            .prefix("archive-")
            .tempdir_in(data_dir.parent().context("a data directory has a place")?)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, mut filler) = (
            Arc::clone(&stop),
            Filler { from: data_dir.join("pg_wal"), to: dir.path().to_owned(), segments: BTreeMap::new() },
        );
        let filling = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // A segment may have been removed or recycled since it was listed.
                let _ = filler.look();
                // The archive itself decides how often it takes new WAL.
                thread::sleep(INTERVAL);
            }
        });
        Ok(Archive { dir, stop, filling: Some(filling) })
    }

    /// The archive's directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(filling) = self.filling.take() {
            let _ = filling.join();
        }
    }
}

struct Filler {
    from: PathBuf,
    to: PathBuf,
    /// The last page's offset by the segment's name; `None` for whole segments.
    segments: BTreeMap<String, Option<u64>>,
}

impl Filler {
    fn look(&mut self) -> io::Result<()> {
        let mut names: Vec<String> = fs::read_dir(&self.from)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.retain(|name| name.len() == NAME_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit()));
        names.sort();
        // The next segment is checked first: once it has begun, this one is not written to any
        // more.
        let begun: Vec<bool> = names.iter().map(|name| self.is_begun(name)).collect();
        for (at, name) in names.iter().enumerate().filter(|(at, _)| begun[*at]) {
            let is_followed = names.get(at + 1).is_some_and(|next| next[..8] == name[..8]) && begun[at + 1];
            self.copy(name, is_followed)?;
        }
        Ok(())
    }

    fn is_begun(&self, name: &str) -> bool {
        let begun = || -> io::Result<bool> {
            let (mut page, file) = ([0; PAGE], File::open(self.from.join(name))?);
            file.read_exact_at(&mut page, 0)?;
            Ok(is_of(&page, name, 0, file.metadata()?.len()))
        };
        begun().unwrap_or(false)
    }

    /// Copies the pages that have come, and the last one again.
    fn copy(&mut self, name: &str, is_followed: bool) -> io::Result<()> {
        let partial = self.to.join(format!("{name}.partial"));
        let Some(at) = self.segments.entry(name.to_owned()).or_insert(Some(0)) else { return Ok(()) };
        let from = File::open(self.from.join(name))?;
        let size = from.metadata()?.len();
        let to = OpenOptions::new().create(true).truncate(false).write(true).open(&partial)?;
        to.set_len(size)?;
        let mut page = [0; PAGE];
        let mut next = *at;
        while next < size {
            from.read_exact_at(&mut page, next)?;
            // Behind a switch there are zeros.
            if !is_followed && !is_of(&page, name, next, size) {
                break;
            }
            if next > *at {
                // The segment was written to for the last time before this point. An earlier read
                // may have been older in one half.
                let mut before = [0; PAGE];
                from.read_exact_at(&mut before, *at)?;
                to.write_all_at(&before, *at)?;
            }
            to.write_all_at(&page, next)?;
            *at = next;
            next += PAGE as u64;
        }
        if is_followed {
            fs::rename(partial, self.to.join(name))?;
            self.segments.insert(name.to_owned(), None);
            let whole: Vec<_> =
                self.segments.iter().filter(|(_, at)| at.is_none()).map(|(name, _)| name).collect();
            for old in whole.iter().rev().skip(SEGMENTS_MAX) {
                // It may be gone already.
                let _ = fs::remove_file(self.to.join(old));
            }
        }
        Ok(())
    }
}

/// Whether a page was written for its place, and not before the file got its name.
fn is_of(page: &[u8; PAGE], name: &str, within: u64, size: u64) -> bool {
    let number = |digits: &str| u64::from_str_radix(digits, 16).unwrap_or(u64::MAX);
    let begin = (number(&name[8..16]) << 32) + number(&name[16..24]) * size;
    let address = page[8..16].try_into().map(u64::from_le_bytes);
    page[..2] != [0, 0] && address.is_ok_and(|address: u64| address == begin + within)
}
