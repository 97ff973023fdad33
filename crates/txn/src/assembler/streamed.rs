//! The part of a streamed transaction that is in the spool, read back after its end or while it
//! grows.

use std::fmt;
use std::io::{self, Read};

use base::Xid;
use bytes::{Buf, Bytes, BytesMut};
use proto::pgoutput;

use super::error::{AssemblyError, Kind};
use super::event::Event;
use super::rows::Rows;

/// Bytes that are written to or read from the spool at once. It is large enough that system calls
/// cost little beside the copying, and small against the memory limit.
pub(super) const BLOCK: usize = 256 * 1024;

/// Messages of a spool file; the length stands before each.
pub(super) struct Messages {
    input: Option<Box<dyn Read + Send>>,
    buffer: BytesMut,
    /// Bytes that were read.
    read: u64,
}

impl Messages {
    /// Reads messages from `input`; without one there are none.
    pub(super) fn new(input: Option<Box<dyn Read + Send>>) -> Messages {
        Messages { input, buffer: BytesMut::new(), read: 0 }
    }

    /// Whether nothing has been read yet.
    pub(super) fn is_at_start(&self) -> bool {
        self.read == 0
    }

    /// Returns the next message of the file's first `end` bytes; `None` behind the last. A message
    /// must end at `end`.
    pub(super) fn next(&mut self, end: u64) -> io::Result<Option<Bytes>> {
        loop {
            let mut wanted = 4;
            if let Some(length) = self.buffer.first_chunk::<4>() {
                wanted += u32::from_be_bytes(*length) as usize;
                if self.buffer.len() >= wanted {
                    let mut message = self.buffer.split_to(wanted);
                    message.advance(4);
                    return Ok(Some(message.freeze()));
                }
            }
            if !self.fill(wanted, end)? {
                let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the spool file was cut short");
                return if self.buffer.is_empty() { Ok(None) } else { Err(cut()) };
            }
        }
    }

    /// Reads one block, or as much as a longer message needs. Returns false at the end.
    fn fill(&mut self, wanted: usize, end: u64) -> io::Result<bool> {
        let Some(input) = &mut self.input else { return Ok(false) };
        let have = self.buffer.len();
        let left = usize::try_from(end.saturating_sub(self.read)).unwrap_or(usize::MAX);
        let more = BLOCK.max(wanted.saturating_sub(have)).min(left);
        // Allocates a new block each time, because messages that were handed out share the old one.
        let mut block = BytesMut::zeroed(have + more);
        block[..have].copy_from_slice(&self.buffer);
        let read = input.read(&mut block[have..])?;
        block.truncate(have + read);
        self.buffer = block;
        self.read += read as u64;
        Ok(read > 0)
    }
}

/// A streamed transaction as far as it has been received. No part of it may have been aborted.
pub struct Streamed {
    xid: Xid,
    messages: Messages,
    rows: Rows,
}

impl fmt::Debug for Streamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streamed").field("xid", &self.xid).finish_non_exhaustive()
    }
}

impl Streamed {
    pub(super) fn new(xid: Xid, input: Option<Box<dyn Read + Send>>, rows: Rows) -> Streamed {
        Streamed::of(xid, Messages::new(input), rows)
    }

    pub(super) fn of(xid: Xid, messages: Messages, rows: Rows) -> Streamed {
        Streamed { xid, messages, rows }
    }

    /// Its id on the source.
    #[must_use]
    pub fn xid(&self) -> Xid {
        self.xid
    }

    /// Returns the next change in the file's first `end` bytes, where a block of the stream has
    /// ended. `end` is `u64::MAX` when nothing more will come.
    ///
    /// # Errors
    /// A message is malformed or out of place, or the disk failed.
    pub fn next(&mut self, end: u64) -> Result<Option<Event>, AssemblyError> {
        let xid = self.xid;
        while let Some(data) = self.messages.next(end).map_err(|error| Kind::Spool { xid, error })? {
            let (_, message) = pgoutput::decode(data, true)?;
            if let Some(event) = self.rows.event(message)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}
