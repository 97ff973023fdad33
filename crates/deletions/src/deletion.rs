//! A deletion as it is captured, and the tombstone that is kept of it.
//!
//! ```text
//! u8   kind
//! u32  the transaction that deleted the row
//! u16  its origin, 0 for none
//! i64  when it committed
//! ..   the key's witness, if it has one
//! ```
//! The tombstone's LSN is that of its version in the store. Numbers are little-endian.

use base::{Lsn, PgTimestamp, Xid};

use crate::key::RowKey;

/// Length of a tombstone without the witness.
const HEAD_BYTES: usize = 15;

/// What removed a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// DELETE, or an UPDATE that moved the row to another partition.
    Delete,
    /// An UPDATE that changed the key.
    KeyChange,
    /// TRUNCATE, which removed all rows of a table.
    Truncate,
    /// Any of these, of a row that nobody could name ([`RowKey::of_unnamed`]).
    Unnamed,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Delete, Kind::KeyChange, Kind::Truncate, Kind::Unnamed];

    fn number(self) -> u8 {
        match self {
            Kind::Delete => 0,
            Kind::KeyChange => 1,
            Kind::Truncate => 2,
            Kind::Unnamed => 3,
        }
    }
}

/// A row that was deleted, or a table that was emptied.
#[derive(Debug, Clone, Copy)]
pub struct Deletion<'a> {
    /// Which one.
    pub key: &'a RowKey,
    /// What is kept of it.
    pub tombstone: Tombstone,
}

/// Who deleted a row, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tombstone {
    /// Where the commit of the deleting transaction ends in the WAL of the server it ran on.
    pub lsn: Lsn,
    /// The deleting transaction, or the subtransaction of it: the `xmax` that the row got.
    pub xid: Xid,
    /// The replication origin of that transaction.
    pub origin: Option<u16>,
    /// When it committed, at its origin if it has one.
    pub time: PgTimestamp,
    /// What it did.
    pub kind: Kind,
}

impl Tombstone {
    /// Puts the value that the store keeps into `out`.
    pub(crate) fn encode(&self, witness: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.push(self.kind.number());
        out.extend_from_slice(&self.xid.0.to_le_bytes());
        out.extend_from_slice(&self.origin.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&self.time.0.to_le_bytes());
        out.extend_from_slice(witness);
    }

    /// The tombstone that the store keeps at `lsn`, and its witness; `None` if it is none.
    pub(crate) fn decode(lsn: Lsn, value: &[u8]) -> Option<(Tombstone, &[u8])> {
        let (head, witness) = value.split_first_chunk::<HEAD_BYTES>()?;
        let [kind, x0, x1, x2, x3, o0, o1, time @ ..] = *head;
        let kind = *Kind::ALL.get(usize::from(kind))?;
        let xid = Xid(u32::from_le_bytes([x0, x1, x2, x3]));
        let origin = Some(u16::from_le_bytes([o0, o1])).filter(|origin| *origin != 0);
        let time = PgTimestamp(i64::from_le_bytes(time));
        Some((Tombstone { lsn, xid, origin, time, kind }, witness))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tombstone_comes_back_as_it_was() {
        for (kind, origin) in
            [(Kind::Delete, None), (Kind::KeyChange, Some(7)), (Kind::Truncate, Some(u16::MAX))]
        {
            let lsn = Lsn::new(1 << 40);
            let tombstone = Tombstone { lsn, xid: Xid(u32::MAX), origin, time: PgTimestamp(-5), kind };
            let mut value = vec![1, 2, 3];
            tombstone.encode(b"row", &mut value);
            assert_eq!(Tombstone::decode(lsn, &value), Some((tombstone, &b"row"[..])));
        }
        assert_eq!(Kind::ALL.map(Kind::number), [0, 1, 2, 3]);
        assert_eq!(Tombstone::decode(Lsn::INVALID, &[4; HEAD_BYTES]), None);
        assert_eq!(Tombstone::decode(Lsn::INVALID, &[0; HEAD_BYTES - 1]), None);
    }
}
