//! Frames of a track, one by one: what each is for somebody who enters.

use std::collections::HashMap;

use base::{Lsn, Xid};
use bytes::{Buf, Bytes, BytesMut};
use proto::frame::HEADER_SIZE;
use proto::replication::XLOG_DATA_HEADER_SIZE;

/// Bytes of a frame before pgoutput's message.
pub(crate) const BEFORE: usize = HEADER_SIZE + XLOG_DATA_HEADER_SIZE;

/// What a message is for somebody who enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Begins a transaction that comes as a whole; its commit or PREPARE is there.
    Begin(Lsn),
    /// The same of one that was prepared before the track's place of two-phase commit. It comes
    /// with the end that follows it.
    BeginsLate,
    /// Ends it.
    Ends,
    /// Stands alone: a message without a transaction, or the end of a prepared one. It is there.
    Single(Lsn),
    /// Describes a relation or a type.
    Describes,
    /// Begins a block of an open transaction.
    BlockBegins(Xid),
    /// Ends it.
    BlockEnds,
    /// Ends a transaction that came in blocks: its commit or PREPARE is there, or it aborted.
    StreamEnds(Xid, Option<Lsn>),
    /// A part of an open transaction was rolled back.
    PartAborts(Xid),
    /// Anything else inside of a transaction or block.
    Other,
}

/// The role of a message of pgoutput that comes where this is open.
pub(crate) fn role(message: &[u8], open: &Open) -> Role {
    let xid = |at: usize| message.get(at..at + 4).map_or(Xid::INVALID, |mut bytes| Xid(bytes.get_u32()));
    let lsn = |at: usize| message.get(at..at + 8).map_or(Lsn::INVALID, |mut bytes| Lsn::new(bytes.get_u64()));
    match message.first() {
        Some(b'S') => Role::BlockBegins(xid(1)),
        Some(b'E') => Role::BlockEnds,
        _ if open.block.is_some() => Role::Other,
        Some(b'b') if lsn(1) < open.two_phase_at => Role::BeginsLate,
        Some(b'B' | b'b') => Role::Begin(lsn(1)),
        Some(b'C' | b'P') => Role::Ends,
        Some(b'R' | b'Y') => Role::Describes,
        // Flags, then the position of COMMIT PREPARED.
        Some(b'K') => Role::Single(lsn(2)),
        // Flags, the end of PREPARE, the end of the record that rolls it back.
        Some(b'r') => Role::Single(lsn(10)),
        // Whether it belongs to a transaction, then its position.
        Some(b'M') if message.get(1) == Some(&0) => Role::Single(lsn(2)),
        // The transaction, flags, the position of the commit.
        Some(b'c') => Role::StreamEnds(xid(1), Some(lsn(6))),
        // Flags, the position of PREPARE, its end, its time, the transaction.
        Some(b'p') => Role::StreamEnds(xid(26), Some(lsn(2))),
        Some(b'A') if xid(1) == xid(5) => Role::StreamEnds(xid(1), None),
        Some(b'A') => Role::PartAborts(xid(1)),
        _ => Role::Other,
    }
}

/// The parts of a track that are open at a place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Open {
    /// Inside of a transaction that comes as a whole.
    pub(crate) in_transaction: bool,
    /// Inside of a block of this transaction.
    pub(crate) block: Option<Xid>,
    /// Where the first block of each open transaction begins.
    pub(crate) streams: HashMap<Xid, u64>,
    /// Where a transaction began that comes with the end that follows it.
    pub(crate) late: Option<u64>,
    /// Transactions that were prepared before come when they commit, as a whole.
    pub(crate) two_phase_at: Lsn,
}

impl Open {
    /// Takes a message that begins `at`.
    pub(crate) fn take(&mut self, role: Role, at: u64) {
        match role {
            Role::Begin(_) => self.in_transaction = true,
            Role::BeginsLate => (self.in_transaction, self.late) = (true, Some(at)),
            Role::Ends => self.in_transaction = self.late.is_some(),
            Role::Single(_) if self.late.is_some() => (self.in_transaction, self.late) = (false, None),
            Role::BlockBegins(xid) => {
                self.block = Some(xid);
                self.streams.entry(xid).or_insert(at);
            }
            Role::BlockEnds => self.block = None,
            Role::StreamEnds(xid, _) => {
                self.streams.remove(&xid);
            }
            Role::Single(_) | Role::Describes | Role::PartAborts(_) | Role::Other => {}
        }
    }

    /// Whether this is between transactions and blocks.
    pub(crate) fn is_between(&self) -> bool {
        !self.in_transaction && self.block.is_none()
    }
}

/// Takes frames out of bytes that come in pieces.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: BytesMut,
}

impl Frames {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let size = frame_size(&self.buffer)?;
        (self.buffer.len() >= size).then(|| self.buffer.split_to(size).freeze())
    }

    /// All whole frames that are left. A part of one behind them is forgotten.
    pub(crate) fn take_whole(&mut self) -> Bytes {
        let size = whole_size(&self.buffer);
        let whole = self.buffer.split_to(size).freeze();
        self.buffer.clear();
        whole
    }
}

/// The size of the first frame, once its header is there.
pub(crate) fn frame_size(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(1..HEADER_SIZE)?;
    Some(u32::from_be_bytes(length.try_into().ok()?) as usize + 1)
}

/// How many of these bytes are whole frames.
pub(crate) fn whole_size(bytes: &[u8]) -> usize {
    let mut whole = 0;
    while let Some(size) = frame_size(&bytes[whole..]).filter(|size| whole + size <= bytes.len()) {
        whole += size;
    }
    whole
}

/// The greatest position in frames of `CopyData` that have `XLogData`. Messages that are not the
/// last of their callback have none.
pub(crate) fn last_lsn(frames: &[u8]) -> Lsn {
    /// The frame's kind and length, the message's kind, and its position.
    const HEAD_SIZE: usize = 1 + 4 + 1 + 8;
    let (mut rest, mut last) = (frames, 0);
    while let Some(head) = rest.first_chunk::<HEAD_SIZE>() {
        let [_, l0, l1, l2, l3, _, lsn @ ..] = *head;
        last = last.max(u64::from_be_bytes(lsn));
        let size = 1 + u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        rest = rest.get(size.max(HEAD_SIZE)..).unwrap_or_default();
    }
    Lsn::new(last)
}

/// The message in a frame.
pub(crate) fn message(frame: &[u8]) -> &[u8] {
    frame.get(BEFORE..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_position_of_several_frames_is_found() {
        let frame = |lsn: u64, text: &[u8]| {
            let mut body = vec![b'w'];
            body.extend_from_slice(&lsn.to_be_bytes());
            body.extend_from_slice(&[0; 16]);
            body.extend_from_slice(text);
            let length = u32::try_from(body.len() + 4).unwrap();
            [&b"d"[..], &length.to_be_bytes(), &body].concat()
        };
        let frames = [frame(0, b"R"), frame(200, b"I and more"), frame(0, b"R")].concat();
        assert_eq!(last_lsn(&frames), Lsn::new(200));
        assert_eq!(last_lsn(&[]), Lsn::INVALID);
        assert_eq!(last_lsn(&frames[..20]), Lsn::INVALID);
    }
}
