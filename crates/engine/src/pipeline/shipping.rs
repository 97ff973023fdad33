//! Who ships what is decoded or applied: a walsender, or an archive of WAL that grows.

use std::sync::Arc;

use base::Progress;
use source::stream::{Heard, Stream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use txn::Block;

use super::archive::Growing;
use crate::error::Error;

/// It has begun.
pub(crate) enum Shipping {
    Stream(Box<Stream>),
    Archive(Growing),
}

impl Shipping {
    /// Hands blocks to `out` until `stop` is cancelled or nobody takes them.
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
        match self {
            Shipping::Stream(stream) => Ok(stream.run(progress, heard, out, stop).await?),
            Shipping::Archive(archive) => archive.run(heard, out, stop).await,
        }
    }

    /// Says the last word, if there is somebody to hear it.
    pub(crate) async fn finish(self, progress: &Progress) {
        if let Shipping::Stream(stream) = self {
            // The source may be gone; it will be told next time.
            let _ = stream.finish(progress).await;
        }
    }
}
