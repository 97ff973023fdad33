//! How the arrays of a set are put into types of ours that hold one array each.
//!
//! The parameters of a set are one array for each column. PostgreSQL has no array of arrays:
//! `array_recv` accepts none, and `unnest` takes a multidimensional array apart down to its last
//! values. In text form an array is an element like any other. In binary form it needs a wrapper: a
//! row of one column, because every type, a row type too, has an array type.
//!
//! ```text
//!   pgsluice.array_of_int4 AS (value int4[])        $2  pgsluice.array_of_int4[]
//!   (pg_catalog.unnest($2)).value                   an array for each row, NULL where there is none
//! ```
//! As bytes (`record_recv`), the row is the number of columns, the column's type, the length of the
//! value and the value. A NULL row gives NULL. One type serves every table. pgsluice makes the
//! types that it needs before the stream begins or before a table joins it. They go with the
//! schema.
//!
//! Rejected: the table's own row type, which changes with its columns and checks the domains of
//! columns that are not sent. Also rejected: temporary types, which on 14 and 15 would move the
//! origin (crate `state`).

use base::Oid;
use bytes::{BufMut, BytesMut};

/// A type that holds arrays of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// In `pg_type`.
    pub oid: Oid,
    /// Its array type.
    pub array_oid: Oid,
    /// As SQL.
    pub name: String,
}

/// The element type of an array parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    /// The element type that the array's header names.
    pub oid: Oid,
    /// `Some` if each element is a holder, of an array of this type.
    pub holds: Option<Oid>,
}

impl From<Oid> for Element {
    fn from(oid: Oid) -> Element {
        Element { oid, holds: None }
    }
}

/// Bytes of a holder before the length of its value.
const HEAD: usize = 8;

/// Appends `elements`, each preceded by its length (-1 for NULL), as rows of one column of the type
/// `held`.
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

/// The number of bytes that [`put_held`] appends.
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
