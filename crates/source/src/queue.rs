//! The bounded queue between the reader of a source and its consumer: a channel of [`txn::Block`]s,
//! and room for their bytes.
//!
//! The sender owns a [`Room`]. A block takes room for its bytes, and gives it back when it is
//! dropped, wherever it is by then. So a reader waits once [`QUEUE_BYTES`] of the blocks that it
//! handed over are still in use. These queues carry messages of a logical slot, WAL of a physical
//! one, WAL from files, and messages that were decoded here.

use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use txn::{Block, Input};

/// A block is handed over when it holds this many bytes, or when nothing more has arrived.
pub const BLOCK_BYTES: usize = 256 * 1024;

/// Bytes that may wait between a source and the applier. It is enough for the applier to find a
/// full batch of small changes, and a small part of the memory limit. A single message may be
/// larger; then it waits alone.
pub const QUEUE_BYTES: usize = 8 * 1024 * 1024;

/// Most blocks in the queue, because many small ones cost more than their bytes.
const QUEUE_BLOCKS: usize = 256;

/// Makes an empty queue.
#[must_use]
pub fn queue() -> (Sender<Block>, Receiver<Block>) {
    mpsc::channel(QUEUE_BLOCKS)
}

/// Room for bytes that were handed over and are still in use.
#[derive(Debug, Clone)]
pub struct Room {
    /// One permit per KiB of [`QUEUE_BYTES`].
    permits: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Room {
        Room { permits: Arc::new(Semaphore::new(QUEUE_BYTES / 1024)) }
    }
}

impl Room {
    /// Waits until there is room for `bytes`, and takes it.
    pub async fn place(&self, bytes: usize) -> Place {
        // The semaphore is never closed; it is dropped with this.
        Place(Arc::clone(&self.permits).acquire_many_owned(permits(bytes)).await.ok())
    }

    /// As [`Room::place`], without waiting; `None` if there is no room now.
    #[must_use]
    pub fn try_place(&self, bytes: usize) -> Option<Place> {
        let taken = Arc::clone(&self.permits).try_acquire_many_owned(permits(bytes));
        taken.ok().map(|taken| Place(Some(taken)))
    }

    /// Waits for room and for a place in the queue. Returns false if the receiver is gone.
    pub async fn hand_over(&self, inputs: Vec<Input>, bytes: usize, out: &Sender<Block>) -> bool {
        let place = self.place(bytes).await;
        out.send(place.with(inputs)).await.is_ok()
    }
}

/// Room that a block has taken.
#[derive(Debug)]
pub struct Place(
    #[expect(dead_code, reason = "dropping it gives the room back")] Option<OwnedSemaphorePermit>,
);

impl Place {
    /// Makes a block, which gives the room back when it is dropped.
    #[must_use]
    pub fn with(self, inputs: Vec<Input>) -> Block {
        Block { inputs, room: Some(Box::new(self)) }
    }
}

/// One message may be larger than the queue; then it waits alone.
fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.min(QUEUE_BYTES) / 1024).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_waits_while_what_it_handed_over_is_in_use() {
        let (room, (out, mut taken)) = (Room::default(), queue());
        assert!(room.hand_over(Vec::new(), 2 * QUEUE_BYTES, &out).await, "one that is too large waits alone");
        assert!(room.try_place(BLOCK_BYTES).is_none());
        let block = taken.recv().await.unwrap();
        assert!(room.try_place(BLOCK_BYTES).is_none(), "taken, and in use");
        drop(block);
        assert!(room.try_place(BLOCK_BYTES).is_some());
        drop(taken);
        assert!(!room.hand_over(Vec::new(), 1, &out).await, "nobody takes it");
    }
}
