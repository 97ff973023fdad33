//! Columns of catalog rows, read from both sources of rows.
//!
//! A row comes from SQL (the one look at the catalogs) or from WAL (a tuple as it lies on disk).
//! Each form of column can be read from both, with equal results, so no other module has to know
//! where a row came from. Two forms keep what only one source has: a missing value (stored bytes
//! from disk, text and binary from SQL), and a text that is out of line on disk.

use base::Oid;
use types::{Align, ToastPointer, Value, Varlena};
use wal::Fields;

use crate::field::Field;

/// A form of column.
pub(crate) trait Cell: Field {
    /// The expression that SQL selects for it.
    fn sql(column: &str) -> String {
        format!("{column}::text")
    }

    /// `None` if the text cannot be such a value.
    fn from_sql(text: Option<&str>) -> Option<Self>;

    /// `None` if the stored value cannot be such a value.
    fn from_disk(value: &Value<'_>) -> Option<Self>;
}

fn fixed<const N: usize>(value: &Value<'_>) -> Option<[u8; N]> {
    match value {
        Value::Fixed(bytes) => (*bytes).try_into().ok(),
        _ => None,
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Cell for $number {
            fn from_sql(text: Option<&str>) -> Option<Self> {
                text?.parse().ok()
            }

            fn from_disk(value: &Value<'_>) -> Option<Self> {
                fixed(value).map(<$number>::from_le_bytes)
            }
        }
    )*};
}

numbers!(u32, i16, i32);

impl Cell for Oid {
    fn from_sql(text: Option<&str>) -> Option<Self> {
        text?.parse().ok().map(Oid)
    }

    fn from_disk(value: &Value<'_>) -> Option<Self> {
        u32::from_disk(value).map(Oid)
    }
}

impl Cell for bool {
    fn from_sql(text: Option<&str>) -> Option<Self> {
        match text? {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    fn from_disk(value: &Value<'_>) -> Option<Self> {
        fixed::<1>(value).map(|[byte]| byte != 0)
    }
}

/// A `"char"`; 0 if it is empty.
impl Cell for u8 {
    fn from_sql(text: Option<&str>) -> Option<Self> {
        match text?.as_bytes() {
            [] => Some(0),
            [letter] => Some(*letter),
            _ => None,
        }
    }

    fn from_disk(value: &Value<'_>) -> Option<Self> {
        fixed::<1>(value).map(|[byte]| byte)
    }
}

/// A name.
impl Cell for String {
    fn from_sql(text: Option<&str>) -> Option<Self> {
        text.map(str::to_owned)
    }

    fn from_disk(value: &Value<'_>) -> Option<Self> {
        let Value::Fixed(bytes) = value else { return None };
        let end = bytes.iter().position(|&byte| byte == 0)?;
        String::from_utf8(bytes[..end].to_vec()).ok()
    }
}

/// A text or a node tree, which may be out of line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Text {
    Here(String),
    /// `chunk_id`, the length of all chunks and the length of the value, as in [`ToastPointer`].
    There(ToastPointer),
}

impl Cell for Text {
    fn from_sql(text: Option<&str>) -> Option<Self> {
        text.map(|text| Text::Here(text.to_owned()))
    }

    fn from_disk(value: &Value<'_>) -> Option<Self> {
        match value {
            Value::Varlena(Varlena::External(pointer)) => Some(Text::There(*pointer)),
            Value::Varlena(varlena) => {
                String::from_utf8(varlena.payload().ok()?.into_owned()).ok().map(Text::Here)
            }
            _ => None,
        }
    }
}

/// Whether a column is not NULL, for columns whose content does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Present(pub(crate) bool);

impl Cell for Present {
    fn sql(column: &str) -> String {
        format!("({column} IS NOT NULL)::text")
    }

    fn from_sql(text: Option<&str>) -> Option<Self> {
        bool::from_sql(text).map(Present)
    }

    fn from_disk(value: &Value<'_>) -> Option<Self> {
        Some(Present(*value != Value::Null))
    }
}

/// An `int2vector`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbers(pub(crate) Vec<i16>);

impl Cell for Numbers {
    fn from_sql(text: Option<&str>) -> Option<Self> {
        text?.split_ascii_whitespace().map(|number| number.parse().ok()).collect::<Option<_>>().map(Numbers)
    }

    fn from_disk(value: &Value<'_>) -> Option<Self> {
        let payload = value.payload().ok()??;
        let (_, elements) = types::array_elements(&payload, |_| Some((2, Align::Short))).ok()??;
        let number = |element: Option<std::borrow::Cow<'_, [u8]>>| {
            Some(i16::from_le_bytes(element?.as_ref().try_into().ok()?))
        };
        elements.into_iter().map(number).collect::<Option<_>>().map(Numbers)
    }
}

/// A piece of a value that is out of line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Cell for Bytes {
    fn sql(column: &str) -> String {
        format!("encode({column}, 'hex')")
    }

    fn from_sql(text: Option<&str>) -> Option<Self> {
        unhex(text?).map(Bytes)
    }

    fn from_disk(value: &Value<'_>) -> Option<Self> {
        value.payload().ok()?.map(|payload| Bytes(payload.into_owned()))
    }
}

/// `attmissingval`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MissingArray {
    /// From disk: the payload of an array of one element.
    Stored(Vec<u8>),
    /// From SQL: the results of `array_send` and `array_out`.
    Rendered { binary: Vec<u8>, text: String },
}

impl Cell for MissingArray {
    fn sql(column: &str) -> String {
        format!("pg_catalog.encode(pg_catalog.array_send({column}), 'hex') || ' ' || {column}::text")
    }

    fn from_sql(text: Option<&str>) -> Option<Self> {
        let (binary, text) = text?.split_once(' ')?;
        Some(MissingArray::Rendered { binary: unhex(binary)?, text: text.to_owned() })
    }

    fn from_disk(value: &Value<'_>) -> Option<Self> {
        value.payload().ok()?.map(|payload| MissingArray::Stored(payload.into_owned()))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if text.len() % 2 == 1 {
        return None;
    }
    text.as_bytes().chunks(2).map(digits).collect()
}

impl<T: Cell> Cell for Option<T> {
    fn sql(column: &str) -> String {
        T::sql(column)
    }

    fn from_sql(text: Option<&str>) -> Option<Self> {
        match text {
            None => Some(None),
            text => T::from_sql(text).map(Some),
        }
    }

    fn from_disk(value: &Value<'_>) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            value => T::from_disk(value).map(Some),
        }
    }
}

macro_rules! wrappers {
    ($($name:ident),*) => {$(
        impl Field for $name {
            fn write(&self, out: &mut Vec<u8>) {
                self.0.write(out);
            }

            fn read(fields: &mut Fields<'_>) -> Option<Self> {
                Field::read(fields).map($name)
            }
        }
    )*};
}

wrappers!(Present, Numbers, Bytes);

impl Field for Text {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Text::Here(text) => (true, text.clone()).write(out),
            Text::There(pointer) => {
                false.write(out);
                out.extend_from_slice(&pointer.to_bytes());
            }
        }
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        if bool::read(fields)? {
            return String::read(fields).map(Text::Here);
        }
        let bytes = fields.take(ToastPointer::SIZE)?;
        ToastPointer::from_bytes(bytes).ok().map(Text::There)
    }
}

impl Field for MissingArray {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            MissingArray::Stored(payload) => (true, payload.clone()).write(out),
            MissingArray::Rendered { binary, text } => (false, (binary.clone(), text.clone())).write(out),
        }
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(if bool::read(fields)? {
            MissingArray::Stored(Field::read(fields)?)
        } else {
            let (binary, text) = Field::read(fields)?;
            MissingArray::Rendered { binary, text }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sql_and_disk_say_is_equal() {
        assert_eq!(Oid::from_sql(Some("4294967295")), Oid::from_disk(&Value::Fixed(&[255; 4])));
        assert_eq!(i16::from_sql(Some("-2")), i16::from_disk(&Value::Fixed(&[254, 255])));
        assert_eq!(u8::from_sql(Some("")), u8::from_disk(&Value::Fixed(&[0])));
        let mut name = [0; 64];
        name[..2].copy_from_slice(b"ab");
        assert_eq!(String::from_sql(Some("ab")), String::from_disk(&Value::Fixed(&name)));
        let vector = [1, 0, 0, 0, 0, 0, 0, 0, 21, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0];
        let stored = Value::Varlena(Varlena::Plain(&vector));
        assert_eq!(Numbers::from_sql(Some("3 1")), Numbers::from_disk(&stored));
        assert_eq!(Option::<Numbers>::from_sql(None), Option::<Numbers>::from_disk(&Value::Null));
        assert_eq!(Present::from_sql(Some("true")), Present::from_disk(&stored));
    }

    #[test]
    fn what_is_no_such_value_is_refused() {
        assert_eq!(Oid::from_sql(None), None);
        assert_eq!(Oid::from_disk(&Value::Fixed(&[1; 3])), None);
        assert_eq!(String::from_disk(&Value::Fixed(&[b'a'; 64])), None);
        assert_eq!(bool::from_sql(Some("t")), None);
        assert_eq!(Numbers::from_disk(&Value::Varlena(Varlena::Plain(&[1, 0]))), None);
        assert_eq!(Bytes::from_sql(Some("abc")), None);
    }
}
