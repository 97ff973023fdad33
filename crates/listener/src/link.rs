//! A client's connection with its two buffers: frames come out, messages go in.

use std::io;

use bytes::BytesMut;
use proto::frame::{self, Frame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes in both directions, encrypted or not.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// Bytes that are asked for at once.
const READ_SIZE: usize = 8 << 10;

/// A connection whose messages are read and written one by one.
pub struct Link {
    stream: Box<dyn Transport>,
    inbox: BytesMut,
    /// What is to be sent; see [`Link::flush`].
    pub outbox: Vec<u8>,
}

/// Why no message comes.
#[derive(Debug)]
pub enum LinkError {
    /// The client has closed the connection between two messages.
    Closed,
    /// The connection broke, or the client closed it inside of a message.
    Lost(io::Error),
    /// The bytes are no message.
    Frame(frame::Error),
    /// A message is longer than what is accepted here.
    TooLong {
        /// Its kind.
        tag: u8,
        /// Its size in bytes.
        size: usize,
        /// The most that is accepted.
        most: usize,
    },
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkError::Closed => f.write_str("the client closed the connection"),
            LinkError::Lost(error) => write!(f, "the connection was lost: {error}"),
            LinkError::Frame(error) => error.fmt(f),
            LinkError::TooLong { tag, size, most } => {
                write!(f, "message '{}' has {size} bytes, at most {most} are accepted", tag.escape_ascii())
            }
        }
    }
}

impl std::error::Error for LinkError {}

impl Link {
    pub(crate) fn new(stream: Box<dyn Transport>) -> Link {
        Link { stream, inbox: BytesMut::new(), outbox: Vec::new() }
    }

    /// The bytes that have come and are not taken.
    pub(crate) fn inbox(&mut self) -> &mut BytesMut {
        &mut self.inbox
    }

    pub(crate) fn into_stream(self) -> Box<dyn Transport> {
        self.stream
    }

    /// Waits for more bytes. Cancel safe.
    pub(crate) async fn fill(&mut self) -> Result<(), LinkError> {
        self.inbox.reserve(READ_SIZE);
        match self.stream.read_buf(&mut self.inbox).await {
            Ok(0) if self.inbox.is_empty() => Err(LinkError::Closed),
            Ok(0) => Err(LinkError::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(LinkError::Lost(error)),
        }
    }

    /// The next message of at most `most` bytes. A longer one is an error as soon as its length is
    /// there. Cancel safe.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn frame(&mut self, most: usize) -> Result<Frame, LinkError> {
        loop {
            if let Some(size) = frame::first_size(&self.inbox).map_err(LinkError::Frame)?
                && size > most
            {
                return Err(LinkError::TooLong { tag: self.inbox[0], size, most });
            }
            if let Some(frame) = frame::next(&mut self.inbox).map_err(LinkError::Frame)? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Sends what is to be sent. Not cancel safe.
    ///
    /// # Errors
    /// The connection was lost.
    pub async fn flush(&mut self) -> Result<(), LinkError> {
        let sent = async {
            self.stream.write_all(&self.outbox).await?;
            self.stream.flush().await
        };
        let sent = sent.await;
        self.outbox.clear();
        sent.map_err(LinkError::Lost)
    }

    /// Closes the connection; what is to be sent is sent before. Somebody who is gone is no error.
    pub async fn close(mut self) {
        let _ = self.flush().await;
        let _ = self.stream.shutdown().await;
    }
}
