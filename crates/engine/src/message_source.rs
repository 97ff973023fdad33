//! The pipeline's source of pgoutput's messages.
//!
//! | source | implementation | decoded by |
//! | --- | --- | --- |
//! | `logical` | [`Logical`] | the walsender |
//! | `wal` | [`WalSource`] | this process |
//!
//! From here on both look alike: blocks of messages in a queue of bounded bytes ([`txn::Block`]).

use std::sync::Arc;

use async_trait::async_trait;
use base::{Lsn, PgVersion, Progress};
use client::Wire;
use proto::replication::PgoutputOptions;
use source::stream::{Heard, Stream, StreamOptions, What};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use txn::Block;
use wal_source::WalSource;

use crate::error::Error;
use crate::{Origin, Settings};

/// Hands over messages of pgoutput in the order of the stream.
#[async_trait]
pub(crate) trait MessageSource: Send {
    /// Hands blocks to `out` until `stop` is cancelled or `out` is closed.
    ///
    /// # Errors
    /// Nothing more can come; the retry table says what happens next.
    async fn run(
        &mut self,
        progress: &Progress,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error>;

    /// Sends the last report, if there is a server to receive it. The source may be gone; it gets
    /// the report next time.
    async fn finish(&mut self, progress: &Progress);
}

/// The stream of a logical slot.
pub(crate) struct Logical(Option<Stream>);

impl Logical {
    /// Starts the stream of `slot` on `wire`, behind everything before `start`.
    ///
    /// # Errors
    /// The server refuses.
    pub(crate) async fn start(
        settings: &Settings,
        wire: Wire,
        slot: String,
        (start, binary): (Lsn, bool),
    ) -> Result<Logical, Error> {
        let pgoutput = PgoutputOptions {
            publications: settings.publications.clone(),
            binary,
            streaming: settings.streaming && !is_filtered_here(settings, wire.version()),
            origin_none: settings.origin == Origin::None,
        };
        let options = StreamOptions {
            slot: Some(slot),
            start,
            what: What::Pgoutput(pgoutput),
            status_interval: settings.wal_receiver_status_interval,
            timeout: settings.wal_receiver_timeout,
        };
        Ok(Logical(Some(Stream::start(wire, options).await?)))
    }
}

/// Whether transactions with an origin are left out here, because the source cannot do it. A copy
/// in the other direction has its origin only in its commit record. A source names it at the
/// transaction's begin, but not where it streams the transaction before its commit.
fn is_filtered_here(settings: &Settings, source: PgVersion) -> bool {
    settings.origin == Origin::None && source.major() < 16
}

#[async_trait]
impl MessageSource for Logical {
    async fn run(
        &mut self,
        progress: &Progress,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        match &mut self.0 {
            Some(stream) => Ok(stream.run(progress, heard, out, stop).await?),
            None => Ok(()),
        }
    }

    async fn finish(&mut self, progress: &Progress) {
        if let Some(stream) = self.0.take() {
            let _ = stream.finish(progress).await;
        }
    }
}

#[async_trait]
impl MessageSource for WalSource {
    async fn run(
        &mut self,
        progress: &Progress,
        heard: &Arc<Heard>,
        out: &mpsc::Sender<Block>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        Ok(WalSource::run(self, progress, heard, out, stop).await?)
    }

    async fn finish(&mut self, progress: &Progress) {
        WalSource::finish(self, progress).await;
    }
}
