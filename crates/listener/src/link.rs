//! A client's connection with its two buffers: frames come out, messages go in.

use std::collections::VecDeque;
use std::io;

use bytes::{Bytes, BytesMut};
use proto::frame::{self, Frame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

/// Bytes in both directions, encrypted or not.
pub trait Transport: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Transport for T {}

/// Bytes that are asked for at once.
const READ_SIZE: usize = 8 << 10;

/// A connection whose messages are read and written one by one. [`Link::split`] makes it one that
/// reads and writes at the same time.
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

/// The reading half of a connection.
pub struct LinkReader {
    half: ReadHalf<Box<dyn Transport>>,
    inbox: BytesMut,
}

/// The writing half of a connection.
pub struct LinkWriter {
    half: WriteHalf<Box<dyn Transport>>,
    /// What is to be sent, in this order.
    queue: VecDeque<Bytes>,
}

impl Link {
    pub(crate) fn new(stream: Box<dyn Transport>) -> Link {
        Link { stream, inbox: BytesMut::new(), outbox: Vec::new() }
    }

    /// Makes a link over any stream.
    pub fn over(stream: impl Transport + 'static) -> Link {
        Link::new(Box::new(stream))
    }

    /// Lets both directions go on at the same time. What is to be sent goes first.
    #[must_use]
    pub fn split(self) -> (LinkReader, LinkWriter) {
        let (read, write) = tokio::io::split(self.stream);
        let mut queue = VecDeque::new();
        if !self.outbox.is_empty() {
            queue.push_back(Bytes::from(self.outbox));
        }
        (LinkReader { half: read, inbox: self.inbox }, LinkWriter { half: write, queue })
    }

    /// The reverse of [`Link::split`], of halves that belong together.
    #[must_use]
    pub fn unsplit(reader: LinkReader, writer: LinkWriter) -> Link {
        let outbox = writer.queue.into_iter().flatten().collect();
        Link { stream: reader.half.unsplit(writer.half), inbox: reader.inbox, outbox }
    }

    /// The bytes that have come and are not taken.
    pub(crate) fn inbox(&mut self) -> &mut BytesMut {
        &mut self.inbox
    }

    pub(crate) fn into_stream(self) -> Box<dyn Transport> {
        self.stream
    }

    /// The stream, and what has come over it and was not taken. What is to be sent is lost.
    #[must_use]
    pub fn into_parts(self) -> (Box<dyn Transport>, BytesMut) {
        (self.stream, self.inbox)
    }

    /// Waits for more bytes. Cancel safe.
    pub(crate) async fn fill(&mut self) -> Result<(), LinkError> {
        fill(&mut self.stream, &mut self.inbox).await
    }

    /// The next message of at most `most` bytes. A longer one is an error as soon as its length is
    /// there. Cancel safe.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn frame(&mut self, most: usize) -> Result<Frame, LinkError> {
        loop {
            if let Some(frame) = next(&mut self.inbox, most)? {
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

impl LinkReader {
    /// As [`Link::frame`].
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn frame(&mut self, most: usize) -> Result<Frame, LinkError> {
        loop {
            if let Some(frame) = next(&mut self.inbox, most)? {
                return Ok(frame);
            }
            fill(&mut self.half, &mut self.inbox).await?;
        }
    }
}

impl LinkWriter {
    /// Appends bytes to what is to be sent.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.queue.push_back(bytes);
        }
    }

    /// Whether nothing is to be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Sends what is to be sent. Cancel safe: another call goes on where this one ended.
    ///
    /// # Errors
    /// The connection was lost.
    pub async fn flush(&mut self) -> Result<(), LinkError> {
        while let Some(first) = self.queue.front_mut() {
            match self.half.write_buf(first).await {
                Ok(0) => return Err(LinkError::Lost(io::ErrorKind::WriteZero.into())),
                Ok(_) if first.is_empty() => {
                    self.queue.pop_front();
                }
                Ok(_) => {}
                Err(error) => return Err(LinkError::Lost(error)),
            }
        }
        self.half.flush().await.map_err(LinkError::Lost)
    }
}

/// Takes the first message of at most `most` bytes; `None` while it is not whole.
fn next(inbox: &mut BytesMut, most: usize) -> Result<Option<Frame>, LinkError> {
    if let Some(size) = frame::first_size(inbox).map_err(LinkError::Frame)?
        && size > most
    {
        return Err(LinkError::TooLong { tag: inbox[0], size, most });
    }
    frame::next(inbox).map_err(LinkError::Frame)
}

async fn fill(stream: &mut (impl AsyncRead + Unpin), inbox: &mut BytesMut) -> Result<(), LinkError> {
    inbox.reserve(READ_SIZE);
    match stream.read_buf(inbox).await {
        Ok(0) if inbox.is_empty() => Err(LinkError::Closed),
        Ok(0) => Err(LinkError::Lost(io::ErrorKind::UnexpectedEof.into())),
        Ok(_) => Ok(()),
        Err(error) => Err(LinkError::Lost(error)),
    }
}
