//! Messages on their way to the applier: gathered into blocks, and handed over as there is room.
//!
//! A block has messages of about [`BLOCK_BYTES`]. The last block of a hand-over also says how far
//! decoding has come.

use std::time::Duration;

use base::Lsn;
use bytes::{Bytes, BytesMut};
use source::queue::{BLOCK_BYTES, Room};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;
use txn::{Block, Input};

/// Longest time for which messages are gathered while more WAL is there, since little may come out
/// of it.
const HAND_OVER_AFTER: Duration = Duration::from_millis(100);

/// Whether messages were handed over.
pub(crate) enum Handed {
    Yes,
    /// This many bytes wait for room.
    Later(usize),
    /// The receiver has gone.
    Gone,
}

/// Messages that are handed over together.
pub(crate) struct Gather {
    bytes: BytesMut,
    ends: Vec<usize>,
    /// When messages were last handed over.
    since: Instant,
    room: Room,
    /// The last attempt found no room.
    waits: bool,
}

impl Gather {
    pub(crate) fn new() -> Gather {
        Gather {
            bytes: BytesMut::new(),
            ends: Vec::new(),
            since: Instant::now(),
            room: Room::default(),
            waits: false,
        }
    }

    /// Whether it is time to hand over messages, and to report how far decoding has come.
    pub(crate) fn is_due(&self, nothing_waits: bool) -> bool {
        nothing_waits || self.since.elapsed() >= HAND_OVER_AFTER || self.bytes.len() >= BLOCK_BYTES / 4
    }

    pub(crate) fn add(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.ends.push(self.bytes.len());
    }

    /// Waits for room. Returns false if `out` is closed.
    pub(crate) async fn hand_over(&mut self, caught_up: Option<Lsn>, out: &mpsc::Sender<Block>) -> bool {
        loop {
            let (count, size) = self.next_block();
            let place = self.room.place(size).await;
            let inputs = self.take((count, size), caught_up);
            if !inputs.is_empty() && out.send(place.with(inputs)).await.is_err() {
                return false;
            }
            if self.ends.is_empty() {
                return true;
            }
        }
    }

    /// As [`Gather::hand_over`], but without waiting for room.
    pub(crate) fn try_hand_over(&mut self, caught_up: Option<Lsn>, out: &mpsc::Sender<Block>) -> Handed {
        loop {
            let slot = match out.try_reserve() {
                Ok(slot) => slot,
                Err(TrySendError::Closed(())) => return Handed::Gone,
                Err(TrySendError::Full(())) => return self.later(),
            };
            let (count, size) = self.next_block();
            let Some(place) = self.room.try_place(size) else {
                return self.later();
            };
            let inputs = self.take((count, size), caught_up);
            if !inputs.is_empty() {
                slot.send(place.with(inputs));
            }
            if self.ends.is_empty() {
                return Handed::Yes;
            }
        }
    }

    /// Bytes that were gathered and not handed over.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the last attempt to hand over found no room.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.waits
    }

    fn later(&mut self) -> Handed {
        self.waits = true;
        Handed::Later(self.bytes.len())
    }

    /// How many messages go together next, and their bytes.
    fn next_block(&self) -> (usize, usize) {
        let fit = self.ends.partition_point(|end| *end <= BLOCK_BYTES);
        let count = fit.max(1).min(self.ends.len());
        (count, count.checked_sub(1).map_or(0, |last| self.ends[last]))
    }

    /// Takes messages; `caught_up` follows the last of them.
    fn take(&mut self, (count, size): (usize, usize), caught_up: Option<Lsn>) -> Vec<Input> {
        (self.since, self.waits) = (Instant::now(), false);
        let bytes: Bytes = self.bytes.split_to(size).freeze();
        let mut from = 0;
        let mut inputs: Vec<Input> = Vec::with_capacity(count + 1);
        for to in self.ends.drain(..count) {
            inputs.push(Input::Bytes(bytes.slice(from..to)));
            from = to;
        }
        self.ends.iter_mut().for_each(|end| *end -= size);
        inputs.extend(caught_up.filter(|_| self.ends.is_empty()).map(Input::CaughtUp));
        inputs
    }
}
