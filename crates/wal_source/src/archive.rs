//! WAL from a directory that the source's `archive_command` or `pg_receivewal` fills.
//!
//! The archive supplies the WAL that the slot has lost, up to the segment where the slot's WAL
//! begins. Without a slot and a stream it supplies all WAL ([`growing`]).
//!
//! ```text
//!   needed from      segment of the slot's restart_lsn
//!        |--- archive ---|------ stream ------>
//! ```
//! Only whole segments are read of what the slot has lost. Reading waits for a segment that is
//! missing or still being written. The slot keeps the rest meanwhile. If the slot is lost again,
//! the next attempt begins where this one ended.

mod growing;

pub(crate) use growing::Growing;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::Lsn;
use bytes::Bytes;
use source::queue::Room;
use source::segments::{self, Lineage, Segments};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use txn::{Block, Input};

use crate::decoded::Decoded;
use crate::error::{Error, Kind, broke};

/// Interval between looks for a segment.
pub(crate) const POLL: Duration = Duration::from_secs(1);
/// A file that has not changed for this long counts as completely written.
const SETTLED: Duration = Duration::from_secs(2);
/// One warning a minute.
pub(crate) const WAITS_BETWEEN_WARNINGS: u32 = 60;

/// The part of the archive that must be read.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) dir: PathBuf,
    /// Segments of other timelines are not read.
    pub(crate) lineage: Lineage,
    pub(crate) from: Lsn,
    /// The end, which is the start of a segment.
    pub(crate) until: Lsn,
    /// Tells the status what reading waits for.
    pub(crate) figures: Arc<Decoded>,
}

/// Checks that the archive has the segment of `lsn`.
///
/// # Errors
/// It has not, or cannot be read.
pub(crate) fn check(dir: &Path, lineage: &Lineage, lsn: Lsn) -> Result<(), Error> {
    let found = Segments::whole_of(dir, lineage, Duration::ZERO);
    found.and_then(|found| found.read(lsn).map(drop)).map_err(|error| Kind::Archive(error).into())
}

/// Hands what `read` produces to `out`, until `read` ends, `stop` is cancelled or `out` is closed.
///
/// # Errors
/// Those of `read`, which ends when its channel is closed.
async fn hand_over(
    read: impl FnOnce(&mpsc::Sender<Bytes>) -> Result<(), Error> + Send + 'static,
    out: &mpsc::Sender<Block>,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let room = Room::default();
    let (pieces, mut come) = mpsc::channel::<Bytes>(1);
    let reading = tokio::task::spawn_blocking(move || read(&pieces));
    loop {
        let piece = tokio::select! {
            piece = come.recv() => piece,
            () = stop.cancelled() => return Ok(()),
            // Reading may have nothing to hand over for a long time.
            () = out.closed() => return Ok(()),
        };
        let Some(piece) = piece else { break };
        let bytes = piece.len();
        let handing_over = room.hand_over(vec![Input::Bytes(piece)], bytes, out);
        tokio::select! {
            taken = handing_over => if !taken { return Ok(()) },
            () = stop.cancelled() => return Ok(()),
        }
    }
    reading.await.map_err(|error| broke(&error))?
}

impl Archive {
    /// Hands WAL to `out` until everything is handed over, `stop` is cancelled or `out` is closed.
    ///
    /// # Errors
    /// A file is damaged or cannot be read, or the archive, too, has lost WAL that is needed.
    pub(crate) async fn run(self, out: &mpsc::Sender<Block>, stop: &CancellationToken) -> Result<(), Error> {
        tracing::info!("reading WAL from {} to {} from {}", self.from, self.until, self.dir.display());
        hand_over(move |pieces| self.read(pieces), out, stop).await
    }

    /// Ends when everything was read or the receiver is gone.
    fn read(self, out: &mpsc::Sender<Bytes>) -> Result<(), Error> {
        let mut position = self.from;
        let mut waited = 0_u32;
        while position < self.until && !out.is_closed() {
            let before = position;
            let missing = self.read_there(&mut position, out).map_err(Kind::Archive)?;
            if let Some(missing) = &missing
                && waited.is_multiple_of(WAITS_BETWEEN_WARNINGS)
            {
                tracing::warn!("{missing}; pgsluice waits for it");
            }
            self.figures.awaits(missing.map(|missing| missing.to_string()));
            if position > before {
                waited = 0;
            } else {
                waited += 1;
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    /// Reads as far as there are segments. Returns a missing segment that may still come, because
    /// an archive lags behind.
    fn read_there(
        &self,
        position: &mut Lsn,
        out: &mpsc::Sender<Bytes>,
    ) -> Result<Option<segments::Error>, segments::Error> {
        let found = Segments::whole_of(&self.dir, &self.lineage, SETTLED)?;
        let is_removed = found.span().0 > *position;
        let late = |error: segments::Error| match error.is_missing() && !is_removed {
            true => Ok(Some(error)),
            false => Err(error),
        };
        let mut bytes = match found.read(*position) {
            Ok(bytes) => bytes,
            Err(error) => return late(error),
        };
        while *position < self.until {
            let piece = match bytes.next() {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) => return late(error),
            };
            let left = usize::try_from(self.until.as_u64() - position.as_u64()).unwrap_or(usize::MAX);
            let piece = &piece[..piece.len().min(left)];
            if out.blocking_send(Bytes::copy_from_slice(piece)).is_err() {
                break;
            }
            *position = Lsn::new(position.as_u64() + piece.len() as u64);
        }
        Ok(None)
    }
}
