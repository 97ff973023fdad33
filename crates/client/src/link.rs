//! A stream with its two buffers: frames come out, messages go in.
//!
//! Received bytes stay in `inbox` until a caller takes them as whole frames. Bytes to be sent stay
//! in `outbox` until the stream takes them. So a caller can drop any wait here (as the losing arm
//! of a `select!`) and resume it without losing a byte.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use proto::frame::{self, Frame, ServerError};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::Error;
use crate::error::Kind;
use crate::stream::Stream;

/// Bytes requested from the socket in one call. The server writes 8 KiB at a time
/// (`PQ_SEND_BUFFER_SIZE`); one call takes all that piled up meanwhile.
const READ_SIZE: usize = 256 << 10;
/// Less room than this is not worth a call.
const READ_SIZE_MIN: usize = 64 << 10;
/// A message's claimed length is trusted with this much memory at a time.
const RESERVE_STEP: usize = 16 << 20;

/// Bytes that arrived before a reset are at hand, so nobody waits longer than this for more.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub(crate) struct Link {
    stream: Stream,
    pub(crate) inbox: BytesMut,
    pub(crate) outbox: BytesMut,
    /// Bytes that the kernel took and gave.
    pub(crate) traffic: Arc<AtomicU64>,
}

impl Link {
    pub(crate) fn new(stream: Stream) -> Link {
        Link { stream, inbox: BytesMut::new(), outbox: BytesMut::new(), traffic: Arc::default() }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn into_parts(self) -> (Stream, BytesMut) {
        (self.stream, self.inbox)
    }

    /// The next frame, waiting for it. Cancel safe.
    pub(crate) async fn frame(&mut self) -> Result<Frame, Error> {
        loop {
            if let Some(frame) = frame::next(&mut self.inbox)? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Waits for more bytes. Cancel safe.
    pub(crate) async fn fill(&mut self) -> Result<(), Error> {
        self.make_room()?;
        match self.stream.read_buf(&mut self.inbox).await {
            Ok(0) => Err(Error::new(Kind::Lost(None))),
            Ok(size) => {
                self.count(size);
                Ok(())
            }
            Err(error) => Err(Error::lost(error)),
        }
    }

    fn count(&self, size: usize) {
        self.traffic.fetch_add(size as u64, Ordering::Relaxed);
    }

    /// Room for one read, and for the whole of a long message soon.
    fn make_room(&mut self) -> Result<(), Error> {
        let missing = frame::first_size(&self.inbox)?.map_or(0, |size| size.saturating_sub(self.inbox.len()));
        let room = self.inbox.capacity() - self.inbox.len();
        let needed = missing.clamp(READ_SIZE_MIN, RESERVE_STEP);
        if room < needed {
            self.inbox.reserve(needed.max(READ_SIZE));
        }
        Ok(())
    }

    /// Takes what has arrived without waiting; `Ready` after each read.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        pin!(self.fill()).poll(cx)
    }

    /// Sends `outbox`. Cancel safe: the next flush goes on where this ended.
    pub(crate) async fn flush(&mut self) -> Result<(), Error> {
        while self.outbox.has_remaining() {
            match self.stream.write_buf(&mut self.outbox).await {
                Ok(0) => return Err(Error::lost(io::ErrorKind::WriteZero.into())),
                Ok(size) => self.count(size),
                Err(error) => return Err(Error::lost(error)),
            }
        }
        self.stream.flush().await.map_err(Error::lost)
    }

    /// Sends `outbox` and then `bytes`, taking in whatever the server says
    /// meanwhile: a server that is blocked writing to us would never read
    /// the rest. Not cancel safe.
    ///
    /// # Errors
    /// A lost connection; or the server's error, if that is why it went.
    pub(crate) async fn send_while_reading(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut rest = bytes;
        let sent = poll_fn(|cx| {
            loop {
                match self.poll_send(cx, &mut rest) {
                    Poll::Ready(Ok(())) => {
                        // Not waited for: an error of the server is noticed
                        // even if its buffers swallow everything we write.
                        if let Poll::Ready(read) = self.poll_fill(cx) {
                            read?;
                        }
                        return Poll::Ready(Ok(()));
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(Error::lost(error))),
                    Poll::Pending => match self.poll_fill(cx) {
                        Poll::Ready(read) => read?,
                        Poll::Pending => return Poll::Pending,
                    },
                }
            }
        });
        match sent.await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.last_words().await.unwrap_or(error)),
        }
    }

    /// The last message of a server that is gone, if it was an error. Bytes that arrived before the
    /// connection was reset can still be read.
    async fn last_words(&mut self) -> Option<Error> {
        while let Ok(Ok(())) = tokio::time::timeout(LAST_WORDS, self.fill()).await {}
        let mut said = None;
        while let Ok(Some(frame)) = frame::next(&mut self.inbox) {
            if frame.tag == frame::ERROR_RESPONSE {
                said = ServerError::parse(&frame.body).ok();
            }
        }
        said.map(|error| Error::new(Kind::Server(Box::new(error))))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, rest: &mut &[u8]) -> Poll<io::Result<()>> {
        loop {
            let chunk = if self.outbox.is_empty() { *rest } else { &self.outbox[..] };
            if chunk.is_empty() {
                return Pin::new(&mut self.stream).poll_flush(cx);
            }
            match Pin::new(&mut self.stream).poll_write(cx, chunk) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(size)) => {
                    self.count(size);
                    match self.outbox.is_empty() {
                        true => *rest = &rest[size..],
                        false => self.outbox.advance(size),
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Ends our side of the stream; a peer that is gone is no error.
    pub(crate) async fn shutdown(&mut self) {
        let _ = self.stream.shutdown().await;
    }
}
