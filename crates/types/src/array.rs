//! Arrays: dimensions, lower bounds, a bitmap if there are NULLs, and the elements one after the
//! other.
//!
//! ```text
//! payload  0  number of dimensions (i32)
//!          4  offset of the elements if there is a bitmap, counted from the header; else 0
//!          8  OID of the elements' type
//!         12  lengths, then lower bounds (i32 for each dimension)
//!             bitmap, a bit for each element, 1 where there is a value
//!             the elements, from the next multiple of eight
//! ```

use std::borrow::Cow;

use base::Oid;

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::number::{signed, unsigned};
use crate::reader::ByteReader;
use crate::settings::Settings;
use crate::text::is_space;
use crate::tuple::{Align, Value, take};
use crate::varlena::HEADER;

const DAMAGED: Error = Error::damaged("array");

/// `MAXDIM`.
const DIMENSIONS_MAX: usize = 6;

/// An array whose header has been read.
#[derive(Debug, Clone, Copy)]
struct Array<'a> {
    element: Oid,
    dimensions: usize,
    /// Lengths, then lower bounds.
    bounds: &'a [u8],
    count: usize,
    nulls: Option<&'a [u8]>,
    payload: &'a [u8],
    data_at: usize,
}

impl<'a> Array<'a> {
    fn read(payload: &'a [u8]) -> Result<Self> {
        let mut reader = ByteReader::new(payload, "array");
        let dimensions =
            usize::try_from(reader.i32()?).ok().filter(|&count| count <= DIMENSIONS_MAX).ok_or(DAMAGED)?;
        let data_offset = reader.i32()?;
        let element = Oid(reader.u32()?);
        let bounds = reader.take(dimensions * 8)?;
        let mut array = Array { element, dimensions, bounds, count: 0, nulls: None, payload, data_at: 0 };
        array.count = array.product()?;
        array.data_at = match data_offset {
            0 => Align::Double.up(reader.at() + HEADER) - HEADER,
            _ => {
                array.nulls = Some(reader.take(array.count.div_ceil(8))?);
                usize::try_from(data_offset).ok().and_then(|at| at.checked_sub(HEADER)).ok_or(DAMAGED)?
            }
        };
        // An element without a bit takes at least a byte.
        if array.nulls.is_none() && array.count > payload.len() {
            return Err(DAMAGED);
        }
        Ok(array)
    }

    fn product(&self) -> Result<usize> {
        if self.dimensions == 0 {
            return Ok(0);
        }
        let mut lengths = (0..self.dimensions).map(|dimension| self.length(dimension));
        lengths
            .try_fold(1_usize, |product, length| product.checked_mul(usize::try_from(length).ok()?))
            .ok_or(DAMAGED)
    }

    fn bound(&self, index: usize) -> i32 {
        i32::from_le_bytes(self.bounds.as_chunks().0[index])
    }

    fn length(&self, dimension: usize) -> i32 {
        self.bound(dimension)
    }

    fn lower(&self, dimension: usize) -> i32 {
        self.bound(self.dimensions + dimension)
    }

    /// The number of elements, including NULLs.
    fn count(&self) -> usize {
        self.count
    }

    /// The elements' bytes.
    fn data(&self) -> &'a [u8] {
        self.payload.get(self.data_at..).unwrap_or_default()
    }

    /// The elements.
    fn values(&self, len: i16, align: Align) -> impl Iterator<Item = Result<Value<'a>>> + use<'a> {
        let (nulls, payload, mut at) = (self.nulls, self.payload, self.data_at);
        (0..self.count).map(move |index| {
            if nulls.is_some_and(|nulls| nulls[index / 8] >> (index % 8) & 1 == 0) {
                return Ok(Value::Null);
            }
            take(payload, &mut at, HEADER, len, align)
        })
    }
}

/// Takes the value for [`Attribute::missing`](crate::Attribute::missing) from
/// `pg_attribute.attmissingval`. That is the payload of an array of one element; the result is the
/// element's stored bytes.
///
/// # Errors
/// When it is not an array of one element.
pub fn missing_value(payload: &[u8], len: i16, align: Align) -> Result<Box<[u8]>> {
    let array = Array::read(payload)?;
    if array.count != 1 {
        return Err(DAMAGED);
    }
    let start = align.up(array.data_at + HEADER) - HEADER;
    let mut at = start;
    take(payload, &mut at, HEADER, len, align)?;
    Ok(payload[start..at].into())
}

/// The type of an array's elements, and the payload of each element; `None` is NULL.
pub type Elements<'a> = (Oid, Vec<Option<Cow<'a, [u8]>>>);

/// The type of an array's elements, and their payloads in the order in which they are stored.
/// `layout` returns length and alignment of that type. `None` if `layout` returns none.
///
/// # Errors
/// When the array is damaged.
pub fn elements<'a>(
    payload: &'a [u8],
    layout: impl Fn(Oid) -> Option<(i16, Align)>,
) -> Result<Option<Elements<'a>>> {
    let array = Array::read(payload)?;
    let Some((len, align)) = layout(array.element) else { return Ok(None) };
    let payloads = array.values(len, align).map(|value| value?.payload());
    Ok(Some((array.element, payloads.collect::<Result<_>>()?)))
}

/// `array_out`.
pub(crate) fn text(
    payload: &[u8],
    element: &Codec,
    delimiter: u8,
    settings: &Settings,
    out: &mut Vec<u8>,
) -> Result<()> {
    let array = Array::read(payload)?;
    if array.count == 0 {
        out.extend_from_slice(b"{}");
        return Ok(());
    }
    lower_bounds(&array, out);
    // An element that is the first of its row has an open brace before it for each dimension in
    // which that is so.
    let mut rows = Vec::with_capacity(array.dimensions);
    let mut size = 1;
    for dimension in (0..array.dimensions).rev() {
        size *= array.length(dimension) as usize;
        rows.push(size);
    }
    for (index, value) in array.values(element.len(), element.align()).enumerate() {
        if index > 0 {
            out.push(delimiter);
        }
        out.extend(rows.iter().filter(|&&size| index % size == 0).map(|_| b'{'));
        match value?.payload()? {
            None => out.extend_from_slice(b"NULL"),
            Some(payload) => {
                let start = out.len();
                element.text(&payload, settings, out)?;
                quote(out, start, delimiter);
            }
        }
        out.extend(rows.iter().filter(|&&size| (index + 1) % size == 0).map(|_| b'}'));
    }
    Ok(())
}

/// `[2:3][0:4]=`, unless every dimension begins with 1.
fn lower_bounds(array: &Array<'_>, out: &mut Vec<u8>) {
    if (0..array.dimensions).all(|dimension| array.lower(dimension) == 1) {
        return;
    }
    for dimension in 0..array.dimensions {
        let lower = i64::from(array.lower(dimension));
        out.push(b'[');
        signed(lower, out);
        out.push(b':');
        signed(lower + i64::from(array.length(dimension)) - 1, out);
        out.push(b']');
    }
    out.push(b'=');
}

/// Puts the text in `out` from `start` on into quotes, if `array_in` would not read it back as it
/// is.
fn quote(out: &mut Vec<u8>, start: usize, delimiter: u8) {
    let text = &out[start..];
    let special =
        |byte: u8| matches!(byte, b'"' | b'\\' | b'{' | b'}') || byte == delimiter || is_space(byte);
    if !text.is_empty() && !text.eq_ignore_ascii_case(b"NULL") && !text.iter().any(|&byte| special(byte)) {
        return;
    }
    let text = out.split_off(start);
    out.push(b'"');
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// `int2vectorout` and `oidvectorout`: numbers with spaces between them.
pub(crate) fn vector_text(payload: &[u8], width: usize, out: &mut Vec<u8>) -> Result<()> {
    let array = Array::read(payload)?;
    for (index, number) in array.data().chunks_exact(width).take(array.count()).enumerate() {
        if index > 0 {
            out.push(b' ');
        }
        match *number {
            [low, high] => signed(i16::from_le_bytes([low, high]).into(), out),
            [a, b, c, d] => unsigned(u32::from_le_bytes([a, b, c, d]).into(), out),
            _ => return Err(Error::damaged("vector of numbers")),
        }
    }
    Ok(())
}

/// `array_send`, which is also the send function of vectors.
pub(crate) fn binary(payload: &[u8], element: &Codec, settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
    let array = Array::read(payload)?;
    out.extend_from_slice(&(array.dimensions as i32).to_be_bytes());
    out.extend_from_slice(&i32::from(array.nulls.is_some()).to_be_bytes());
    out.extend_from_slice(&array.element.0.to_be_bytes());
    for dimension in 0..array.dimensions {
        out.extend_from_slice(&array.length(dimension).to_be_bytes());
        out.extend_from_slice(&array.lower(dimension).to_be_bytes());
    }
    for value in array.values(element.len(), element.align()) {
        element.field(&value?, settings, out)?;
    }
    Ok(())
}
