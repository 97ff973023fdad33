//! Numbers in the form of WAL: little-endian, unaligned, one after the other.

use base::{Lsn, Oid, RelFileLocator, Xid};

/// The rest of some bytes. Every method takes from the front. It returns `None` and takes nothing
/// if there are not enough bytes.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// All of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }

    /// The bytes that were not taken yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Whether everything was taken.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes `length` bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Four bytes with a sign.
    pub fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Eight bytes with a sign.
    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// A position.
    pub fn lsn(&mut self) -> Option<Lsn> {
        self.u64().map(Lsn::new)
    }

    /// A transaction's id.
    pub fn xid(&mut self) -> Option<Xid> {
        self.u32().map(Xid)
    }

    /// An object's id.
    pub fn oid(&mut self) -> Option<Oid> {
        self.u32().map(Oid)
    }

    /// Tablespace, database and number of a relation's files.
    pub fn locator(&mut self) -> Option<RelFileLocator> {
        let mut fields = Fields(self.take(12)?);
        Some(RelFileLocator {
            tablespace: fields.oid()?,
            database: fields.oid()?,
            relfilenumber: fields.u32()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_takes_nothing() {
        let mut fields = Fields::new(&[1, 2, 3]);
        assert_eq!(fields.u32(), None);
        assert_eq!(fields.locator(), None);
        assert_eq!(fields.u16(), Some(0x0201));
        assert_eq!(fields.take(2), None);
        assert_eq!(fields.take(1), Some(&[3][..]));
        assert!(fields.is_empty());
    }
}
