//! Takes a heap tuple apart.
//!
//! It is handed the tuple's bytes and the properties of its columns from `pg_attribute` (`attlen`,
//! `attalign`). It never uses those in `pg_type`, because a dropped column's type may be gone. It
//! returns one [`Value`] for each column. A column that was added after the tuple was written has
//! its missing value, or is NULL. Alignment counts from the start of the data, which the server
//! keeps at a multiple of eight.
//!
//! Composite values are tuples as well, and are read by the same code.

use std::borrow::Cow;

use base::Oid;

use crate::error::{Error, Result};
use crate::varlena::Varlena;

/// `HEAP_HASNULL`.
const HAS_NULL: u16 = 0x0001;
/// `HEAP_NATTS_MASK`.
const NATTS_MASK: u16 = 0x07ff;
/// The fixed part of a tuple's header (`SizeofHeapTupleHeader`). The null bitmap follows it.
const HEADER_SIZE: usize = 23;

/// `typalign`, `attalign`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// `c`: none.
    Char,
    /// `s`: 2 bytes.
    Short,
    /// `i`: 4 bytes.
    Int,
    /// `d`: 8 bytes.
    Double,
}

impl Align {
    /// The alignment for the letter in the catalog.
    #[must_use]
    pub fn from_letter(letter: u8) -> Option<Self> {
        match letter {
            b'c' => Some(Align::Char),
            b's' => Some(Align::Short),
            b'i' => Some(Align::Int),
            b'd' => Some(Align::Double),
            _ => None,
        }
    }

    /// The first aligned position from `offset` on.
    pub(crate) fn up(self, offset: usize) -> usize {
        let mask = match self {
            Align::Char => return offset,
            Align::Short => 1,
            Align::Int => 3,
            Align::Double => 7,
        };
        (offset + mask) & !mask
    }
}

/// `attgenerated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generated {
    /// An ordinary column.
    #[default]
    No,
    /// Computed when the row is written, and stored like any other column.
    Stored,
    /// Computed when the row is read. Nothing is stored.
    Virtual,
}

/// The properties of a column that are needed to find its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// `atttypid`; 0 if it was dropped.
    pub type_oid: Oid,
    /// `attlen`: a length, -1 for values with a header, -2 for values that end with a zero byte.
    pub len: i16,
    /// `attalign`.
    pub align: Align,
    /// `attisdropped`.
    pub dropped: bool,
    /// `attgenerated`.
    pub generated: Generated,
    /// The value in tuples that were written before the column was added, from
    /// [`missing_value`](crate::missing_value).
    pub missing: Option<Box<[u8]>>,
}

/// A column's value in its stored form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// No value. Also stands for dropped columns and virtual generated ones.
    Null,
    /// Bytes of a type of fixed length, or of a `cstring` without its end.
    Fixed(&'a [u8]),
    /// A value that has a header.
    Varlena(Varlena<'a>),
}

impl<'a> Value<'a> {
    /// The bytes that [`crate::Codec`] renders; `None` is NULL.
    ///
    /// # Errors
    /// As [`Varlena::payload`].
    pub fn payload(&self) -> Result<Option<Cow<'a, [u8]>>> {
        match self {
            Value::Null => Ok(None),
            Value::Fixed(bytes) => Ok(Some(Cow::Borrowed(bytes))),
            Value::Varlena(varlena) => varlena.payload().map(Some),
        }
    }
}

/// A tuple whose header has been read.
#[derive(Debug, Clone, Copy)]
pub struct HeapTuple<'a> {
    natts: usize,
    bitmap: Option<&'a [u8]>,
    data: &'a [u8],
}

impl<'a> HeapTuple<'a> {
    /// A tuple in the form of WAL: `xl_heap_header`, and what follows the fixed header of 23 bytes.
    ///
    /// # Errors
    /// When the data would begin outside of `bytes`, or the null bitmap does not fit before it.
    pub fn new(infomask2: u16, infomask: u16, hoff: u8, bytes: &'a [u8]) -> Result<Self> {
        const DAMAGED: Error = Error::damaged("header of a tuple");
        let natts = usize::from(infomask2 & NATTS_MASK);
        let start = usize::from(hoff).checked_sub(HEADER_SIZE).ok_or(DAMAGED)?;
        let data = bytes.get(start..).filter(|_| hoff.is_multiple_of(8)).ok_or(DAMAGED)?;
        let bitmap = match infomask & HAS_NULL {
            0 => None,
            _ => Some(bytes[..start].get(..natts.div_ceil(8)).ok_or(DAMAGED)?),
        };
        Ok(HeapTuple { natts, bitmap, data })
    }

    /// A tuple from a heap page, with its whole header.
    ///
    /// # Errors
    /// As [`HeapTuple::new`].
    pub fn from_page(item: &'a [u8]) -> Result<Self> {
        let (header, bytes) =
            item.split_first_chunk::<HEADER_SIZE>().ok_or(Error::damaged("header of a tuple"))?;
        let [.., i2_low, i2_high, i_low, i_high, hoff] = *header;
        HeapTuple::new(
            u16::from_le_bytes([i2_low, i2_high]),
            u16::from_le_bytes([i_low, i_high]),
            hoff,
            bytes,
        )
    }

    fn is_null(&self, index: usize) -> bool {
        self.bitmap.is_some_and(|bitmap| bitmap[index / 8] >> (index % 8) & 1 == 0)
    }

    /// Puts one value for each of `attributes`, in their order, into `values`.
    ///
    /// # Errors
    /// When a value does not fit into the tuple, or the tuple has more columns than are described.
    pub fn deform(&self, attributes: &'a [Attribute], values: &mut Vec<Value<'a>>) -> Result<()> {
        values.clear();
        if self.natts > attributes.len() {
            return Err(Error::damaged("number of columns of a tuple"));
        }
        values.reserve(attributes.len());
        let mut at = 0;
        let (stored, later) = attributes.split_at(self.natts);
        for (index, attribute) in stored.iter().enumerate() {
            if self.is_null(index) {
                values.push(Value::Null);
                continue;
            }
            let value = take(self.data, &mut at, 0, attribute.len, attribute.align)?;
            values.push(if attribute.dropped { Value::Null } else { value });
        }
        for attribute in later {
            values.push(attribute.missing_value()?);
        }
        Ok(())
    }
}

impl Attribute {
    /// The column's value in a tuple that is older than the column.
    fn missing_value(&self) -> Result<Value<'_>> {
        match &self.missing {
            Some(bytes) if !self.dropped && self.generated != Generated::Virtual => {
                take(bytes, &mut 0, 0, self.len, self.align)
            }
            _ => Ok(Value::Null),
        }
    }
}

/// The next value in `data`. The server counts alignment from `before` bytes in front of `data`.
pub(crate) fn take<'a>(
    data: &'a [u8],
    at: &mut usize,
    before: usize,
    len: i16,
    align: Align,
) -> Result<Value<'a>> {
    const DAMAGED: Error = Error::damaged("value that reaches beyond its row");
    let aligned = |at: usize| align.up(at + before) - before;
    match len {
        -1 => {
            // Padding is zero, and no header that may be unaligned begins with zero.
            if data.get(*at) == Some(&0) {
                *at = aligned(*at);
            }
            let (varlena, total) = Varlena::read(data.get(*at..).ok_or(DAMAGED)?)?;
            *at += total;
            Ok(Value::Varlena(varlena))
        }
        -2 => {
            let rest = data.get(*at..).ok_or(DAMAGED)?;
            let length = rest.iter().position(|&byte| byte == 0).ok_or(DAMAGED)?;
            *at += length + 1;
            Ok(Value::Fixed(&rest[..length]))
        }
        len => {
            let len = usize::try_from(len).map_err(|_| Error::damaged("length of a column's type"))?;
            let start = aligned(*at);
            let value = data.get(start..start + len).ok_or(DAMAGED)?;
            *at = start + len;
            Ok(Value::Fixed(value))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(len: i16, align: Align) -> Attribute {
        Attribute { type_oid: Oid(1), len, align, dropped: false, generated: Generated::No, missing: None }
    }

    /// A row of one column, `repeat('written by a server ', 200)` compressed with LZ4, as a server
    /// of 15 stored it.
    #[test]
    fn lz4_as_a_server_wrote_it() {
        let data = b"\xda\0\0\0\xa0\x0f\0\x40\xff\x05written by a server \x14\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x83\x50rver ";
        let bytes = [&[0][..], data].concat();
        let attributes = [column(-1, Align::Int)];
        let mut values = Vec::new();
        HeapTuple::new(1, 2, 24, &bytes).unwrap().deform(&attributes, &mut values).unwrap();
        let expected = "written by a server ".repeat(200);
        assert_eq!(values[0].payload().unwrap().unwrap().as_ref(), expected.as_bytes());
        // A value that is cut off is damaged.
        let Value::Varlena(Varlena::Compressed { raw_size, method, bytes }) = values[0] else {
            panic!("{values:?}")
        };
        let cut = Varlena::Compressed { raw_size, method, bytes: &bytes[..bytes.len() - 9] };
        assert!(cut.payload().unwrap_err().is_damaged());
        assert!(
            Varlena::Compressed { raw_size: raw_size + 1, method, bytes }.payload().unwrap_err().is_damaged()
        );
    }

    #[test]
    fn headers_that_do_not_hold() {
        // Data before the header's end, unaligned data, no room for the bitmap, more columns than
        // there are.
        for (natts, infomask, hoff) in [(1, 0, 16), (1, 0, 25), (9, 1, 24), (1, 0, 48)] {
            assert!(HeapTuple::new(natts, infomask, hoff, &[0xff; 9]).is_err(), "{natts} {infomask} {hoff}");
        }
        let tuple = HeapTuple::new(2, 0, 24, &[0, 1, 2, 3, 4]).unwrap();
        assert!(tuple.deform(&[column(4, Align::Int)], &mut Vec::new()).is_err());
        assert!(tuple.deform(&[column(4, Align::Int), column(1, Align::Char)], &mut Vec::new()).is_err());
        assert!(HeapTuple::from_page(&[0; 22]).is_err());
    }
}
