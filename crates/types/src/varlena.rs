//! Values of variable length: their header, and the payload without it.
//!
//! ```text
//! first byte   header                               what follows
//! ......00     4 bytes: total length << 2           the payload
//! ......10     4 bytes: total length << 2 | 2       u32: raw size, method in the top two bits; compressed bytes
//! .......1     1 byte: total length << 1 | 1        the payload, up to 126 bytes
//! 00000001     1 byte, then a tag (18)              a TOAST pointer of 16 bytes
//! ```
//!
//! The server counts offsets inside a payload from the four-byte header, even if a shorter header
//! is stored. Code that aligns inside a payload therefore adds [`HEADER`].

use std::borrow::Cow;

use base::Oid;

use crate::error::{Error, Result};
use crate::reader::ByteReader;

/// Length of the plain header, from which the server counts alignment.
pub(crate) const HEADER: usize = 4;

/// `VARTAG_ONDISK`: the only kind of pointer on disk.
const TAG_ON_DISK: u8 = 18;

/// The low bits of `va_tcinfo` and `va_extinfo` are a size. The two bits above are the method.
const SIZE_MASK: u32 = 0x3fff_ffff;

/// The most bytes that one byte of LZ4 can become.
const LZ4_EXPANSION_MAX: usize = 255;

/// How a value was compressed (`ToastCompressionId`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// PostgreSQL's own compression.
    Pglz,
    /// A block of LZ4 without a frame.
    Lz4,
}

impl Compression {
    fn from_bits(info: u32) -> Result<Self> {
        match info >> 30 {
            0 => Ok(Compression::Pglz),
            1 => Ok(Compression::Lz4),
            _ => Err(Error::damaged("compression method")),
        }
    }
}

/// The place of a value that is stored out of line (`varatt_external`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToastPointer {
    /// Length of the value itself, without a header.
    pub raw_size: u32,
    /// Length of all its chunks together.
    pub stored_size: u32,
    /// `chunk_id` of its chunks.
    pub value: Oid,
    /// The TOAST table.
    pub relation: Oid,
    compression: Option<Compression>,
}

impl ToastPointer {
    /// Length of [`ToastPointer::to_bytes`].
    pub const SIZE: usize = 16;

    /// The bytes behind the tag in a row, for code that stores the pointer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ToastPointer::SIZE] {
        let method = if self.compression == Some(Compression::Lz4) { 1 << 30 } else { 0 };
        let numbers =
            [self.raw_size.wrapping_add(4), self.stored_size | method, self.value.0, self.relation.0];
        let mut bytes = [0; ToastPointer::SIZE];
        for (bytes, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads the bytes that [`ToastPointer::to_bytes`] made.
    ///
    /// # Errors
    /// When they cannot be a pointer.
    pub fn from_bytes(bytes: &[u8]) -> Result<ToastPointer> {
        ToastPointer::read(bytes)
    }

    fn read(bytes: &[u8]) -> Result<Self> {
        let mut reader = ByteReader::new(bytes, "TOAST pointer");
        let raw_size = reader.u32()?.checked_sub(4).ok_or(Error::damaged("TOAST pointer"))?;
        let info = reader.u32()?;
        let stored_size = info & SIZE_MASK;
        let compression = if stored_size < raw_size { Some(Compression::from_bits(info)?) } else { None };
        Ok(ToastPointer {
            raw_size,
            stored_size,
            value: Oid(reader.u32()?),
            relation: Oid(reader.u32()?),
            compression,
        })
    }

    /// The value with these chunks, one after the other in the order of `chunk_seq`.
    ///
    /// # Errors
    /// When they do not have the length that the pointer gives.
    pub fn assemble<'a>(&self, chunks: &'a [u8]) -> Result<Varlena<'a>> {
        if chunks.len() != self.stored_size as usize {
            return Err(Error::damaged("chunks of a TOAST value"));
        }
        let varlena = match self.compression {
            None => Varlena::Plain(chunks),
            Some(_) => Varlena::compressed(chunks)?,
        };
        match varlena {
            Varlena::Compressed { raw_size, .. } if raw_size != self.raw_size as usize => {
                Err(Error::damaged("raw size of a TOAST value"))
            }
            Varlena::Plain(payload) if payload.len() != self.raw_size as usize => {
                Err(Error::damaged("size of a TOAST value"))
            }
            varlena => Ok(varlena),
        }
    }
}

/// A value of variable length in its stored form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Varlena<'a> {
    /// The payload itself.
    Plain(&'a [u8]),
    /// The payload compressed, in the row.
    Compressed {
        /// Length of the payload.
        raw_size: usize,
        /// How it was compressed.
        method: Compression,
        /// The compressed bytes.
        bytes: &'a [u8],
    },
    /// The payload is in a TOAST table.
    External(ToastPointer),
}

impl<'a> Varlena<'a> {
    /// The value that starts with the first byte of `bytes`, and its total length.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<(Self, usize)> {
        const DAMAGED: Error = Error::damaged("length of a value");
        let &first = bytes.first().ok_or(DAMAGED)?;
        if first == 1 {
            if bytes.get(1) != Some(&TAG_ON_DISK) {
                return Err(Error::damaged("tag of a TOAST pointer"));
            }
            let pointer = ToastPointer::read(bytes.get(2..18).ok_or(DAMAGED)?)?;
            return Ok((Varlena::External(pointer), 18));
        }
        if first & 1 == 1 {
            let total = usize::from(first >> 1);
            return Ok((Varlena::Plain(bytes.get(1..total).ok_or(DAMAGED)?), total));
        }
        let header = u32::from_le_bytes(*bytes.first_chunk().ok_or(DAMAGED)?);
        let total = (header >> 2) as usize;
        let payload = bytes.get(HEADER..total).ok_or(DAMAGED)?;
        let varlena = if first & 2 == 0 { Varlena::Plain(payload) } else { Varlena::compressed(payload)? };
        Ok((varlena, total))
    }

    /// Reads what follows the length of a compressed value, in a row or in chunks.
    fn compressed(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = ByteReader::new(bytes, "compressed value");
        let info = reader.u32()?;
        Ok(Varlena::Compressed {
            raw_size: (info & SIZE_MASK) as usize,
            method: Compression::from_bits(info)?,
            bytes: reader.rest(),
        })
    }

    /// The payload, decompressed if necessary.
    ///
    /// # Errors
    /// When compressed bytes are damaged, and for a value that is stored out of line.
    pub fn payload(&self) -> Result<Cow<'a, [u8]>> {
        match *self {
            Varlena::Plain(payload) => Ok(Cow::Borrowed(payload)),
            Varlena::Compressed { raw_size, method: Compression::Pglz, bytes } => {
                pglz::decompress_to_vec(bytes, raw_size)
                    .map(Cow::Owned)
                    .map_err(|_| Error::damaged("pglz data"))
            }
            Varlena::Compressed { raw_size, method: Compression::Lz4, bytes } => {
                lz4(bytes, raw_size).map(Cow::Owned)
            }
            Varlena::External(_) => Err(Error::external()),
        }
    }
}

/// The payload of a value with its header, decompressed if necessary.
///
/// # Errors
/// When the bytes are damaged, and for a value that is stored out of line.
pub fn payload(bytes: &[u8]) -> Result<Cow<'_, [u8]>> {
    Varlena::read(bytes)?.0.payload()
}

fn lz4(bytes: &[u8], raw_size: usize) -> Result<Vec<u8>> {
    const DAMAGED: Error = Error::damaged("LZ4 data");
    if raw_size / LZ4_EXPANSION_MAX > bytes.len() {
        return Err(DAMAGED);
    }
    let raw = lz4_flex::block::decompress(bytes, raw_size).map_err(|_| DAMAGED)?;
    if raw.len() == raw_size { Ok(raw) } else { Err(DAMAGED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header() {
        assert_eq!(Varlena::read(b"\x07abrest").unwrap(), (Varlena::Plain(b"ab"), 3));
        assert_eq!(Varlena::read(b"\x18\0\0\0abrest").unwrap(), (Varlena::Plain(b"ab"), 6));
        assert_eq!(Varlena::read(b"\x03").unwrap(), (Varlena::Plain(b""), 1));
        let (compressed, total) = Varlena::read(b"\x36\0\0\0\x0b\0\0\0\x04ab\x06\x02").unwrap();
        assert_eq!((compressed.payload().unwrap().as_ref(), total), (&b"abababababa"[..], 13));
        let (external, total) =
            Varlena::read(b"\x01\x12\x10\x27\0\0\x88\x13\0\x40\x39\x30\0\0\x38\x30\0\0").unwrap();
        let Varlena::External(pointer) = external else { panic!("{external:?}") };
        assert_eq!((pointer.raw_size, pointer.stored_size, total), (9996, 5000, 18));
        assert_eq!((pointer.value, pointer.relation), (Oid(12345), Oid(12344)));
        assert_eq!(pointer.compression, Some(Compression::Lz4));
        assert!(!external.payload().unwrap_err().is_damaged());
        assert_eq!(ToastPointer::from_bytes(&pointer.to_bytes()).unwrap(), pointer);
    }

    #[test]
    fn a_length_is_not_believed() {
        for bytes in [
            &b""[..],
            b"\x09ab",
            b"\x1c\0\0\0ab",
            b"\x08\0\0\0ab",
            b"\x00",
            b"\x01\x12\0",
            b"\x01\x01aaaaaaaaaaaaaaaa",
            b"\x12\0\0\0",
            b"\x22\0\0\0\xff\xff\xff\xff",
        ] {
            assert!(Varlena::read(bytes).is_err(), "{bytes:?}");
        }
        let pointer =
            ToastPointer { raw_size: 3, stored_size: 3, value: Oid(1), relation: Oid(2), compression: None };
        assert_eq!(pointer.assemble(b"abc").unwrap(), Varlena::Plain(b"abc"));
        assert!(pointer.assemble(b"ab").is_err());
    }
}
