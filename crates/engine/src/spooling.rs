//! The spool as an operator sees it: how many bytes open transactions have in it, how long writes
//! take, and whether the disk has room.
//!
//! After an error, the source streams its open transactions again from their beginning. A spool
//! that was full would fill up again after as many gigabytes. An attempt that found the disk full
//! therefore records how many bytes it needed. The next attempt begins only if the disk has room
//! for them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::Xid;
use txn::{DirSpool, Spool};

use crate::byte_size::ByteSize;
use crate::error::{Error, Kind};

/// Figures of all spools of a subscription, for `status`, and the bytes that the last attempt
/// needed.
#[derive(Debug, Default)]
pub(crate) struct Spooling(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Bytes of each open transaction, by the directory of its spool.
    held: BTreeMap<(PathBuf, u32), u64>,
    /// Since when a spool has been waiting for the disk.
    busy_since: Option<Instant>,
    full: Option<Full>,
}

/// An attempt found no room in a spool.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Full {
    dir: PathBuf,
    /// Bytes of everything in the spool, including the write that failed.
    needed: u64,
}

impl Spooling {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of open transactions that have data in a spool, and their bytes.
    pub(crate) fn held(&self) -> (usize, u64) {
        let state = self.state();
        (state.held.len(), state.held.values().sum())
    }

    /// How long a spool has been waiting for the disk.
    pub(crate) fn busy(&self) -> Option<Duration> {
        self.state().busy_since.map(|since| since.elapsed())
    }

    /// Checks whether the disk now has the room that an earlier attempt needed.
    ///
    /// # Errors
    /// It has not, or its free space could not be read.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        let Some(Full { dir, needed }) = self.state().full.clone() else { return Ok(()) };
        // Files that the earlier attempt left are removed here, so their space counts as free.
        drop(DirSpool::open(dir.clone()).map_err(Kind::Spool)?);
        let free = free_bytes(&dir).map_err(Kind::Spool)?;
        if free < needed {
            return Err(Kind::NoRoom { dir, free, needed }.into());
        }
        self.state().full = None;
        tracing::info!("spool directory {} has room for {} again", dir.display(), ByteSize(needed));
        Ok(())
    }
}

/// Free bytes on the disk that holds `dir`.
fn free_bytes(dir: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(dir)
        .map_err(|error| io::Error::other(format!("spool directory {}: {error}", dir.display())))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// A spool that keeps the figures up to date.
pub(crate) struct Watched {
    spool: DirSpool,
    dir: PathBuf,
    figures: Arc<Spooling>,
}

impl Watched {
    /// Takes over `dir`, as [`DirSpool::open`] does.
    ///
    /// # Errors
    /// Those of [`DirSpool::open`].
    pub(crate) fn open(dir: PathBuf, figures: &Arc<Spooling>) -> io::Result<Watched> {
        let spool = DirSpool::open(dir.clone())?;
        Ok(Watched { spool, dir, figures: Arc::clone(figures) })
    }

    /// Runs `act`, which may take long, and records that the disk is being waited for.
    fn busy<T>(&mut self, act: impl FnOnce(&mut DirSpool) -> io::Result<T>) -> io::Result<T> {
        self.figures.state().busy_since = Some(Instant::now());
        let done = act(&mut self.spool);
        self.figures.state().busy_since = None;
        done
    }
}

impl Spool for Watched {
    fn append(&mut self, xid: Xid, bytes: &[u8]) -> io::Result<()> {
        let done = self.busy(|spool| spool.append(xid, bytes));
        let mut state = self.figures.state();
        match &done {
            Ok(()) => *state.held.entry((self.dir.clone(), xid.0)).or_default() += bytes.len() as u64,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                let needed = state.held.values().sum::<u64>() + bytes.len() as u64;
                state.full = Some(Full { dir: self.dir.clone(), needed });
            }
            Err(_) => {}
        }
        done
    }

    fn read(&mut self, xid: Xid) -> io::Result<Box<dyn Read + Send>> {
        self.busy(|spool| spool.read(xid))
    }

    fn remove(&mut self, xid: Xid) -> io::Result<()> {
        self.figures.state().held.remove(&(self.dir.clone(), xid.0));
        self.busy(|spool| spool.remove(xid))
    }

    fn scratch(&mut self) -> io::Result<File> {
        self.busy(DirSpool::scratch)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.figures.state().held.retain(|(dir, _), _| *dir != self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_by_transaction_and_forgotten_with_its_spool() {
        let dir = tempfile::tempdir().unwrap();
        let figures = Arc::<Spooling>::default();
        let mut one = Watched::open(dir.path().join("one"), &figures).unwrap();
        let mut two = Watched::open(dir.path().join("two"), &figures).unwrap();
        one.append(Xid(7), &[0; 10]).unwrap();
        one.append(Xid(7), &[0; 10]).unwrap();
        one.append(Xid(8), &[0; 1]).unwrap();
        two.append(Xid(7), &[0; 100]).unwrap();
        assert_eq!(figures.held(), (3, 121));
        one.remove(Xid(7)).unwrap();
        assert_eq!(figures.held(), (2, 101));
        drop(two);
        assert_eq!(figures.held(), (1, 1));
        assert_eq!(figures.busy(), None);
    }

    #[test]
    fn an_attempt_begins_only_where_there_is_room_for_what_there_was_none() {
        let dir = tempfile::tempdir().unwrap();
        let figures = Spooling::default();
        figures.check_room().unwrap();
        let full = |needed| Some(Full { dir: dir.path().to_owned(), needed });
        figures.state().full = full(u64::MAX);
        let refused = figures.check_room().unwrap_err();
        assert!(matches!(refused.kind(), Kind::NoRoom { .. }), "{refused}");
        figures.state().full = full(1);
        figures.check_room().unwrap();
        assert_eq!(figures.state().full, None, "asked once");
    }
}
