//! One COPY from one socket to the other.
//!
//! Reading and writing overlap: while the target takes a block, the next ones
//! are already read, up to a small bound. The target's COPY is ended only
//! after the source said that its own is complete, never because reading
//! stopped.

use client::{CopyBlock, Wire};
use tokio::sync::mpsc;

use crate::Error;
use crate::progress::TableProgress;

/// Blocks read ahead of the target. A block is at most what one read of the
/// socket returns, unless a single row is larger.
const BLOCKS_AHEAD: usize = 4;

enum Item {
    Block(CopyBlock),
    /// The source has sent everything.
    End,
}

/// Copies the output of `copy_out` into `copy_in`. Returns the target's count of rows, and their
/// bytes of COPY data. After an error, both connections are in the middle of a COPY and can no
/// longer be used.
pub(crate) async fn transfer(
    source: &mut Wire,
    target: &mut Wire,
    copy_out: &str,
    copy_in: &str,
    progress: &TableProgress,
) -> Result<(u64, u64), Error> {
    let read_failed = Error::client("read it from the source");
    let write_failed = Error::client("write it into the target");
    let (sender, mut receiver) = mpsc::channel(BLOCKS_AHEAD);
    let read = async move {
        source.copy_out(copy_out).await.map_err(read_failed)?;
        loop {
            let block = source.copy_out_block().await.map_err(read_failed)?;
            let is_end = block.is_none();
            // The receiver ends only with an error of its own.
            if sender.send(block.map_or(Item::End, Item::Block)).await.is_err() || is_end {
                return Ok::<(), Error>(());
            }
        }
    };
    let write = async move {
        target.copy_in(copy_in).await.map_err(write_failed)?;
        let (mut messages, mut bytes) = (0, 0);
        while let Some(item) = receiver.recv().await {
            let Item::Block(block) = item else {
                let rows = target.copy_in_finish().await.map_err(write_failed)?;
                progress.correct(messages, rows);
                return Ok((rows, bytes));
            };
            target.copy_in_block(&block.bytes).await.map_err(write_failed)?;
            messages += block.messages;
            bytes += block.bytes.len() as u64;
            progress.add_block(block.messages, block.bytes.len() as u64);
        }
        Err(Error::broken("reading ended without an end"))
    };
    let ((), copied) = tokio::try_join!(read, write)?;
    Ok(copied)
}
