//! Ships the WAL that is decoded here: through a walsender, or from a growing archive.

use std::sync::Arc;

use base::{Lsn, Progress};
use source::stream::{Heard, Stream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use txn::Block;

use crate::archive::Growing;
use crate::error::Error;
use crate::wait_for_standbys::{Standbys, behind_standbys};

/// A running shipment of WAL.
pub(crate) struct Shipping {
    carrier: Carrier,
    /// Where it began.
    from: Lsn,
    /// The standbys that must have WAL first.
    standbys: Option<Standbys>,
}

pub(super) enum Carrier {
    Stream(Box<Stream>),
    Archive(Growing),
}

impl Shipping {
    pub(super) fn new(carrier: Carrier, from: Lsn, standbys: Option<Standbys>) -> Shipping {
        Shipping { carrier, from, standbys }
    }

    /// Hands blocks to `out` until `stop` is cancelled or `out` is closed. It runs once: blocks
    /// that were handed over do not come again.
    ///
    /// # Errors
    /// The stream has ended or was lost; or the archive is damaged or has lost WAL that is needed.
    pub(crate) async fn run(
        &mut self,
        progress: &Progress,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let carrier = &mut self.carrier;
        behind_standbys(self.standbys.as_ref(), self.from, out, stop, |out| async move {
            match carrier {
                Carrier::Stream(stream) => Ok(stream.run(progress, heard, &out, stop).await?),
                Carrier::Archive(archive) => archive.run(heard, &out, stop).await,
            }
        })
        .await
    }

    /// Sends the last report, if there is a server to receive it.
    pub(crate) async fn finish(self, progress: &Progress) {
        if let Carrier::Stream(stream) = self.carrier {
            // The source may be gone; it gets the report next time.
            let _ = stream.finish(progress).await;
        }
    }
}
