//! How the arrays of a set are put into types of ours that hold one array each.
//!
//! A set's parameters are an array for each column. There is no array of arrays: `array_recv` takes
//! none, and `unnest` takes an array of more dimensions apart to its last values. In text form an
//! array is an element like any other; in binary form it needs something around it. That is a row of
//! one column, whose type has arrays as every type has:
//!
//! ```text
//!   pgsluice.array_of_int4 AS (value int4[])        $2  pgsluice.array_of_int4[]
//!   (pg_catalog.unnest($2)).value                   an array for each row, NULL where there is none
//! ```
//! As bytes (`record_recv`): the number of columns, the column's type, then the value's length and the
//! value. A row that is NULL gives NULL. One type serves every table; those that are needed are made
//! before the stream begins, or a table joins it, and go with the schema.
//!
//! Rejected: the table's own row type, which changes with its columns and checks the domains of those
//! that are not sent; temporary types, which on 14 and 15 would move the origin ([`state::State`]).

use base::Oid;
use bytes::{BufMut, BytesMut};

/// A type that holds arrays of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) oid: Oid,
    pub(crate) array_oid: Oid,
    /// As SQL.
    pub(crate) name: String,
}

/// What the arrays of a set are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Element {
    /// The type that the array says it has.
    pub(crate) oid: Oid,
    /// Each is a holder, of an array of this type.
    pub(crate) holds: Option<Oid>,
}

impl From<Oid> for Element {
    fn from(oid: Oid) -> Element {
        Element { oid, holds: None }
    }
}

/// Bytes of a holder before the value's length.
const HEAD: usize = 8;

/// Appends `elements`, each behind its length (-1 for NULL), as rows of one column of the type `held`.
pub(crate) fn put_held(elements: &[u8], held: Oid, out: &mut BytesMut) {
    let mut rest = elements;
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let Ok(bytes) = usize::try_from(i32::from_be_bytes(*length)) else {
            out.put_slice(length);
            rest = behind;
            continue;
        };
        out.put_u32(u32::try_from(HEAD + 4 + bytes).expect("a value is at most 1 GiB"));
        out.put_u32(1);
        out.put_u32(held.0);
        out.put_slice(length);
        out.put_slice(&behind[..bytes]);
        rest = &behind[bytes..];
    }
}

/// How many bytes [`put_held`] appends.
pub(crate) fn held_len(elements: &[u8]) -> usize {
    let (mut rest, mut all) = (elements, elements.len());
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let bytes = usize::try_from(i32::from_be_bytes(*length));
        all += bytes.map_or(0, |_| HEAD + 4);
        rest = &behind[bytes.unwrap_or(0)..];
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_array_is_the_only_column_of_a_row() {
        let elements = b"\0\0\0\x02ab\xff\xff\xff\xff\0\0\0\0";
        let mut out = BytesMut::new();
        put_held(elements, Oid(1007), &mut out);
        let first = b"\0\0\0\x0e\0\0\0\x01\0\0\x03\xef\0\0\0\x02ab";
        let last = b"\0\0\0\x0c\0\0\0\x01\0\0\x03\xef\0\0\0\0";
        assert_eq!(out, [&first[..], b"\xff\xff\xff\xff", last].concat());
        assert_eq!(held_len(elements), out.len());
        assert_eq!(held_len(b""), 0);
    }
}
