//! Reads numbers and slices from stored bytes. Numbers are little-endian, as on the supported
//! servers. No length is believed that the bytes do not have.

use crate::error::{Error, Result};

/// A position in stored bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByteReader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Names the value in errors.
    what: &'static str,
}

impl<'a> ByteReader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        ByteReader { bytes, at: 0, what }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Everything that has not been read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Moves to `at`. If that is behind the end, nothing can be read there.
    pub(crate) fn seek(&mut self, at: usize) {
        self.at = at;
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(length).ok_or(Error::damaged(self.what))?;
        let taken = self.bytes.get(self.at..end).ok_or(Error::damaged(self.what))?;
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| Error::damaged(self.what))
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn f64(&mut self) -> Result<f64> {
        self.array().map(f64::from_le_bytes)
    }

    /// A number of items that take at least `size` bytes each, and so must fit into the remaining
    /// bytes.
    pub(crate) fn count(&mut self, size: usize) -> Result<usize> {
        let count = usize::try_from(self.i32()?).map_err(|_| Error::damaged(self.what))?;
        if count.checked_mul(size).is_none_or(|bytes| bytes > self.rest().len()) {
            return Err(Error::damaged(self.what));
        }
        Ok(count)
    }
}

/// The value of a fixed length. `bytes` must have exactly that length.
pub(crate) fn fixed<const N: usize>(bytes: &[u8], what: &'static str) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| Error::damaged(what))
}
