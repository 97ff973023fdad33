//! COPY as it is on the wire: blocks of whole `CopyData` messages, passed from one connection to
//! another without looking inside.
//!
//! Reading hands on all messages that have arrived as one piece of memory and looks only at their
//! headers. Writing gathers small blocks, so that one system call carries many. While a write
//! waits, this module reads what the server sends. So an error of the server ends the copy, and
//! full buffers on both sides cannot wait for each other.

use bytes::Bytes;
use postgres_protocol::message::frontend;
use proto::frame::{self, COPY_DATA};

use crate::error::Kind;
use crate::wire::{Taken, Wire, WireState};
use crate::{Error, startup};

/// Whole `CopyData` messages with their headers, as the server sent them.
#[derive(Debug, Clone)]
pub struct CopyBlock {
    /// The messages, one behind the other.
    pub bytes: Bytes,
    /// The number of messages. A text or CSV copy has one message for each row. So does a binary
    /// copy, with the header and the trailer inside the first and the last.
    pub messages: u64,
}

/// Blocks are gathered up to this size before they are written.
const GATHER_SIZE: usize = 64 << 10;

impl Wire {
    /// Starts `COPY ... TO STDOUT`.
    ///
    /// # Errors
    /// As [`Wire::query`].
    pub async fn copy_out(&mut self, sql: &str) -> Result<(), Error> {
        let result = self.start_copy(sql, b'H', WireState::CopyOut).await;
        self.placed(result)
    }

    /// The next block of [`Wire::copy_out`]; `None` at its end, when the
    /// connection is free again. Cancel safe.
    ///
    /// # Errors
    /// As [`Wire::query`].
    pub async fn copy_out_block(&mut self) -> Result<Option<CopyBlock>, Error> {
        let result = self.copy_out_block_inner().await;
        self.placed(result)
    }

    async fn copy_out_block_inner(&mut self) -> Result<Option<CopyBlock>, Error> {
        self.expect(WireState::CopyOut)?;
        loop {
            let (size, messages) = frame::run_of(COPY_DATA, &self.link.inbox)?;
            if size > 0 {
                let bytes = self.link.inbox.split_to(size).freeze();
                return Ok(Some(CopyBlock { bytes, messages }));
            }
            // Either a part of a message, which needs more bytes, or a
            // message of another kind: the end, or a notice between rows.
            let data_is_cut = self.link.inbox.first() == Some(&COPY_DATA);
            let taken = if data_is_cut { Taken::Nothing } else { self.take()? };
            match taken {
                Taken::Nothing => self.fill().await?,
                Taken::Handled => {}
                Taken::Frame(frame) => match frame.tag {
                    // CopyDone, CommandComplete.
                    b'c' | b'C' => {}
                    b'Z' => {
                        self.state = WireState::Idle;
                        return Ok(None);
                    }
                    _ => return Err(startup::refusal(&frame, "reading a copy")),
                },
            }
        }
    }

    /// Starts `COPY ... FROM STDIN`.
    ///
    /// # Errors
    /// As [`Wire::query`].
    pub async fn copy_in(&mut self, sql: &str) -> Result<(), Error> {
        let result = self.start_copy(sql, b'G', WireState::CopyIn).await;
        self.placed(result)
    }

    /// Sends whole `CopyData` messages, headers included, as
    /// [`CopyBlock::bytes`] has them. Small blocks may wait for the next
    /// ones. Not cancel safe.
    ///
    /// # Errors
    /// The server's error as soon as it has arrived, after which the
    /// connection can be used again; or a lost connection.
    pub async fn copy_in_block(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let result = self.copy_in_block_inner(bytes).await;
        self.placed(result)
    }

    async fn copy_in_block_inner(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.expect(WireState::CopyIn)?;
        if self.link.outbox.len() + bytes.len() < GATHER_SIZE {
            self.link.outbox.extend_from_slice(bytes);
            return Ok(());
        }
        self.send_copy(bytes).await
    }

    /// Ends the copy in order; returns the number of rows that the server stored.
    ///
    /// # Errors
    /// As [`Wire::copy_in_block`].
    pub async fn copy_in_finish(&mut self) -> Result<u64, Error> {
        let result = self.copy_in_finish_inner().await;
        self.placed(result)
    }

    async fn copy_in_finish_inner(&mut self) -> Result<u64, Error> {
        self.expect(WireState::CopyIn)?;
        frontend::copy_done(&mut self.link.outbox);
        self.state = WireState::Broken;
        self.link.send_while_reading(&[]).await?;
        let mut rows = 0;
        loop {
            let frame = self.next().await?;
            match frame.tag {
                b'C' => rows = copied_rows(&frame.body)?,
                b'Z' => {
                    self.state = WireState::Idle;
                    return Ok(rows);
                }
                _ => return Err(startup::refusal(&frame, "ending a copy")),
            }
        }
    }

    /// Gives the copy up: the server drops the rows that it received. `reason` appears in the
    /// server's log.
    ///
    /// # Errors
    /// A lost connection. The server's message that the copy was given up is not an error.
    pub async fn copy_in_fail(&mut self, reason: &str) -> Result<(), Error> {
        let result = self.copy_in_fail_inner(reason).await;
        self.placed(result)
    }

    async fn copy_in_fail_inner(&mut self, reason: &str) -> Result<(), Error> {
        self.expect(WireState::CopyIn)?;
        frontend::copy_fail(&reason.replace('\0', " "), &mut self.link.outbox)
            .map_err(|error| Error::protocol(error.to_string()))?;
        let mut result = self.send_copy(&[]).await;
        while result.is_ok() && self.state != WireState::Idle {
            self.state = WireState::Broken;
            result = match self.next().await {
                Ok(frame) if frame.tag == b'Z' => {
                    self.state = WireState::Idle;
                    Ok(())
                }
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
        }
        match result {
            Err(error) if self.state == WireState::Draining && matches!(error.kind(), Kind::Server(_)) => {
                self.drain().await
            }
            result => result,
        }
    }

    /// Sends what was gathered and `bytes`. On an error of the server the
    /// rest of the block is still sent, because the server throws it away
    /// message by message until it is ready for a command.
    async fn send_copy(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.state = WireState::Broken;
        self.link.send_while_reading(bytes).await?;
        if let Some(frame) = self.buffered()? {
            return Err(startup::refusal(&frame, "sending a copy"));
        }
        self.state = WireState::CopyIn;
        Ok(())
    }
}

/// The number in `COPY 17`.
fn copied_rows(body: &[u8]) -> Result<u64, Error> {
    let tag = String::from_utf8_lossy(body);
    let tag = tag.trim_end_matches('\0');
    tag.strip_prefix("COPY ")
        .and_then(|rows| rows.parse().ok())
        .ok_or_else(|| Error::protocol(format!("the copy ended with \"{tag}\"")))
}
