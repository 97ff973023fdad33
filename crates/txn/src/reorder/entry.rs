//! A change as bytes. The bytes are the same in memory and in a spool file, so spilling only writes
//! them.
//!
//! ```text
//!  0  u32  length of all of it
//!  4  u8   kind
//!  5  u8   flags
//!  6  u16  replication origin, 0 for none
//!  8  u32  the (sub)transaction
//! 12  u32  subject: which of the transaction's relations, or with the top bit which of its unknown objects
//! 16  u64  LSN of the record
//! 24  what is particular to the kind:
//!       insert, delete   a tuple (a deletion may have none)
//!       update           if flagged: u32 length, the old tuple; then the new tuple
//!       truncate         u32 subjects, one behind the other
//!       message          u64 LSN of the message, u32 length of the prefix, the prefix, the content
//!       chunk            u32 value, u32 number in the value, the bytes
//!       forget chunks    nothing
//! ```
//! A tuple is `infomask2` u16, `infomask` u16, `hoff` u8 and the bytes behind the fixed header, to
//! the end of its part. Numbers are little-endian and unaligned. Only this process reads them. The
//! layout may change at any time, and `docs/spools.md` with it.

use base::{Lsn, Oid, Xid};
use decode::{OldTuple, RawTuple};
use wal::Fields;

/// Length of the head of every entry.
pub(crate) const HEAD: usize = 24;
/// Length of a tuple's own header.
const TUPLE_HEAD: usize = 5;

/// The kind of an entry. [`Kind::of`] has them in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Insert = 1,
    Update,
    Delete,
    Truncate,
    Message,
    /// A piece of a value that a later row of the transaction points to.
    Chunk,
    /// The row for the chunks before it does not come.
    ForgetChunks,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        use Kind::{Chunk, Delete, ForgetChunks, Insert, Message, Truncate, Update};
        const ALL: [Kind; 7] = [Insert, Update, Delete, Truncate, Message, Chunk, ForgetChunks];
        ALL.get(usize::from(number).wrapping_sub(1)).copied()
    }
}

/// Flag bits of an entry.
pub(crate) mod flag {
    /// The chunks before this row belong to no later row.
    pub(crate) const LAST_OF_CHUNKS: u8 = 0x01;
    pub(crate) const HAS_OLD: u8 = 0x02;
    pub(crate) const OLD_IS_KEY: u8 = 0x04;
    pub(crate) const CASCADE: u8 = 0x08;
    pub(crate) const RESTART_IDENTITY: u8 = 0x10;
}

/// The head of every entry, without the length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) origin: u16,
    pub(crate) xid: Xid,
    pub(crate) subject: Subject,
    pub(crate) lsn: Lsn,
}

/// The relation that an entry is about, as a number within the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subject(pub(crate) u32);

impl Subject {
    const UNKNOWN: u32 = 1 << 31;
    /// For entries without a relation.
    pub(crate) const NONE: Subject = Subject(0);

    pub(crate) fn relation(index: usize) -> Subject {
        let index = u32::try_from(index).expect("fewer relations in a transaction than there are oids");
        assert!(index & Self::UNKNOWN == 0, "fewer relations in a transaction than there are oids");
        Subject(index)
    }

    pub(crate) fn unknown(index: usize) -> Subject {
        Subject(Self::relation(index).0 | Self::UNKNOWN)
    }

    /// The index among the relations; the error has the index among the unknown objects.
    pub(crate) fn index(self) -> Result<usize, usize> {
        let index = (self.0 & !Self::UNKNOWN) as usize;
        if self.0 & Self::UNKNOWN == 0 { Ok(index) } else { Err(index) }
    }
}

impl Head {
    /// Encodes the head, with the length of an entry that has `rest` bytes behind it.
    pub(crate) fn bytes(&self, rest: usize) -> [u8; HEAD] {
        let length = u32::try_from(HEAD + rest).expect("a WAL record is below 1 GiB");
        let mut bytes = [0; HEAD];
        bytes[0..4].copy_from_slice(&length.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[5] = self.flags;
        bytes[6..8].copy_from_slice(&self.origin.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.xid.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.subject.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.lsn.as_u64().to_le_bytes());
        bytes
    }
}

/// Encodes a tuple's own header, which stands before its bytes.
pub(crate) fn tuple_head(tuple: &RawTuple<'_>) -> [u8; TUPLE_HEAD] {
    let [two_low, two_high] = tuple.infomask2.to_le_bytes();
    let [low, high] = tuple.infomask.to_le_bytes();
    [two_low, two_high, low, high, tuple.hoff]
}

/// Encodes the length that stands before an old tuple when a new one follows.
pub(crate) fn tuple_length(tuple: &RawTuple<'_>) -> [u8; 4] {
    let length = TUPLE_HEAD + tuple.bytes.len();
    u32::try_from(length).expect("a WAL record is below 1 GiB").to_le_bytes()
}

/// An entry, read in place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) head: Head,
    pub(crate) rest: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Reads the entry that `bytes` begin with; `None` if they do not begin with one.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Entry<'a>> {
        // This runs several times for each change. With fixed places of an array, one bounds check
        // is enough.
        let fixed: &[u8; HEAD] = bytes.first_chunk()?;
        let u32_at = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let head = Head {
            kind: Kind::of(fixed[4])?,
            flags: fixed[5],
            origin: u16::from_le_bytes([fixed[6], fixed[7]]),
            xid: Xid(u32_at(8)),
            subject: Subject(u32_at(12)),
            lsn: Lsn::new(u64::from(u32_at(20)) << 32 | u64::from(u32_at(16))),
        };
        Some(Entry { head, rest: bytes.get(HEAD..u32_at(0) as usize)? })
    }

    /// Length of the whole entry.
    pub(crate) fn len(&self) -> usize {
        HEAD + self.rest.len()
    }

    pub(crate) fn is(&self, flag: u8) -> bool {
        self.head.flags & flag != 0
    }

    /// The new tuple of an insert.
    pub(crate) fn new_tuple(&self) -> Option<RawTuple<'a>> {
        tuple(self.rest)
    }

    /// The tuples of an update: the old one if it is there, and the new one.
    pub(crate) fn both_tuples(&self) -> Option<(Option<OldTuple<'a>>, RawTuple<'a>)> {
        if !self.is(flag::HAS_OLD) {
            return Some((None, tuple(self.rest)?));
        }
        let mut fields = Fields::new(self.rest);
        let length = fields.u32()? as usize;
        let old = self.old(fields.take(length)?)?;
        Some((Some(old), tuple(fields.rest())?))
    }

    /// The old tuple of a deletion: `Some(None)` if it has none.
    pub(crate) fn old_tuple(&self) -> Option<Option<OldTuple<'a>>> {
        if self.is(flag::HAS_OLD) { self.old(self.rest).map(Some) } else { Some(None) }
    }

    fn old(&self, bytes: &'a [u8]) -> Option<OldTuple<'a>> {
        Some(OldTuple { key_only: self.is(flag::OLD_IS_KEY), tuple: tuple(bytes)? })
    }

    /// The relations of a truncation.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = Subject> + use<'a> {
        let numbers = self.rest.chunks_exact(4);
        numbers.map(|number| Subject(u32::from_le_bytes([number[0], number[1], number[2], number[3]])))
    }

    /// The LSN, prefix and content of a message.
    pub(crate) fn message(&self) -> Option<(Lsn, &'a [u8], &'a [u8])> {
        let mut fields = Fields::new(self.rest);
        let (lsn, length) = (fields.lsn()?, fields.u32()? as usize);
        Some((lsn, fields.take(length)?, fields.rest()))
    }

    /// The value, number and bytes of a chunk.
    pub(crate) fn chunk(&self) -> Option<(Oid, u32, &'a [u8])> {
        let mut fields = Fields::new(self.rest);
        Some((fields.oid()?, fields.u32()?, fields.rest()))
    }
}

fn tuple(bytes: &[u8]) -> Option<RawTuple<'_>> {
    let (head, bytes) = bytes.split_first_chunk::<TUPLE_HEAD>()?;
    let [two_low, two_high, low, high, hoff] = *head;
    let (infomask2, infomask) = (u16::from_le_bytes([two_low, two_high]), u16::from_le_bytes([low, high]));
    Some(RawTuple { infomask2, infomask, hoff, bytes })
}
