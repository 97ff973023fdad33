//! Keeps the catalogs for a restart, in a file.
//!
//! After a restart, reading begins where the kept catalogs are. That place must lie before the
//! first record of every transaction that is not confirmed. So the keeper copies the catalogs at
//! some place, and writes them to the file only when two conditions hold:
//!
//! 1. The server has said that all transactions which were met before that place have ended.
//! 2. Everything that was read until the server said so is durable on the target.
//!
//! Only then is the slot moved to that place. After a kill at any moment, the file and the slot
//! belong together, or the slot is behind the file, which only keeps more WAL.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::crash_phases::{self, Phase};
use base::{Lsn, Progress, Xid};
use catalog::Catalog;
use output::Place;
use source::restart_lsn::RestartLsn;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;

use crate::restart::Restart;

/// Catalogs are kept anew after this much WAL and [`KEEP_AFTER`], or after [`KEEP_BYTES_MAX`].
const KEEP_BYTES: u64 = 1 << 20;
const KEEP_AFTER: Duration = Duration::from_secs(5);
const KEEP_BYTES_MAX: u64 = 256 << 20;

/// Keeps the catalogs of one subscription.
pub struct Keeper {
    path: PathBuf,
    slot: String,
    timeline: u32,
    seen: Lsn,
    restart_lsn: Arc<RestartLsn>,
    /// The place of the catalogs that were kept last.
    saved: Lsn,
    at: Instant,
    candidate: Option<Candidate>,
    /// The place of the catalogs that are being written, and the result once it is there.
    saving: Option<(Lsn, oneshot::Receiver<io::Result<()>>)>,
}

/// Catalogs that may be kept when no WAL from before them is needed any more.
struct Candidate {
    catalog: Catalog,
    /// The last record before, and the newest transaction that was met up to there.
    lsn: Lsn,
    newest: Xid,
    /// How far decoding had read when those transactions had ended.
    ended: Option<Lsn>,
}

impl Keeper {
    /// Keeps what `restart` has, without its catalogs, in the file at `path`, from the place
    /// `saved` on.
    pub fn new(
        path: PathBuf,
        (slot, timeline, seen): (String, u32, Lsn),
        restart_lsn: Arc<RestartLsn>,
        saved: Lsn,
    ) -> Keeper {
        let at = Instant::now();
        Keeper { path, slot, timeline, seen, restart_lsn, saved, at, candidate: None, saving: None }
    }

    /// The place of the catalogs that were kept last. WAL from before it is not needed any more.
    #[must_use]
    pub fn saved(&self) -> Lsn {
        self.saved
    }

    /// The position from which the slot must keep WAL.
    pub(crate) fn restart_lsn(&self) -> Arc<RestartLsn> {
        Arc::clone(&self.restart_lsn)
    }

    /// Copies the catalogs, writes them once that is right, or moves the slot once they are
    /// written.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn look(&mut self, place: Place<'_>, progress: &Progress) -> io::Result<()> {
        if let Some((lsn, saving)) = &mut self.saving {
            match saving.try_recv() {
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Closed) => {
                    return Err(io::Error::other("what writes the catalogs broke down"));
                }
                Ok(saved) => saved?,
            }
            tracing::debug!("a restart would read WAL from {lsn} on");
            (self.saved, self.at) = (*lsn, Instant::now());
            self.restart_lsn.advance(*lsn);
            self.saving = None;
        }
        let Some(candidate) = &mut self.candidate else {
            let last = place.catalog.needs_from();
            // A slot that was made anew may not have this WAL yet. If the catalogs were kept now, a
            // restart would believe that it does.
            let since = if last < self.restart_lsn.lsn() { 0 } else { last.bytes_since(self.saved) };
            if since >= KEEP_BYTES_MAX || since >= KEEP_BYTES && self.at.elapsed() >= KEEP_AFTER {
                let (lsn, newest) = (place.catalog.last(), place.newest);
                let catalog = place.catalog.clone();
                self.candidate = Some(Candidate { catalog, lsn, newest, ended: None });
            }
            return Ok(());
        };
        let (lsn, newest) = (candidate.lsn, candidate.newest);
        if candidate.ended.is_none() && place.running.is_some_and(|running| running.have_ended(lsn, newest)) {
            candidate.ended = Some(place.decoded);
        }
        let confirmed = progress.snapshot().flushed;
        if candidate.ended.is_some_and(|ended| confirmed >= ended)
            && let Some(Candidate { catalog, .. }) = self.candidate.take()
        {
            let (slot, timeline, seen) = (self.slot.clone(), self.timeline, self.seen);
            self.save(Restart { slot, timeline, confirmed, seen, catalog });
        }
        Ok(())
    }

    /// Writes the file in the background.
    fn save(&mut self, restart: Restart) {
        let (path, lsn) = (self.path.clone(), restart.lsn());
        let (done, saving) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let _keep = crash_phases::inside(Phase::Keep);
            let saved = restart.write(&path);
            // The keeper may have gone.
            let _ =
                done.send(saved.map_err(|error| io::Error::other(format!("{}: {error}", path.display()))));
        });
        self.saving = Some((lsn, saving));
    }
}
