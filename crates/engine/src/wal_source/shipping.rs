//! Who ships what is decoded or applied: a walsender, or an archive of WAL that grows.

use std::sync::Arc;

use base::{Lsn, Progress};
use source::stream::{Heard, Stream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use txn::Block;

use super::archive::Growing;
use super::wait_for_standbys::{Standbys, behind_standbys};
use crate::error::Error;

/// It has begun.
pub(crate) struct Shipping {
    carrier: Carrier,
    /// Where it has begun.
    from: Lsn,
    /// Who must have WAL first.
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

    /// Hands blocks to `out` until `stop` is cancelled or nobody takes them. Once: what was handed over does not come again.
    ///
    /// # Errors
    /// The stream has ended or was lost; the archive is damaged or does not have what is needed any more.
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

    /// Says the last word, if there is somebody to hear it.
    pub(crate) async fn finish(self, progress: &Progress) {
        if let Carrier::Stream(stream) = self.carrier {
            // The source may be gone; it will be told next time.
            let _ = stream.finish(progress).await;
        }
    }
}
