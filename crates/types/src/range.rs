//! Ranges: the range's OID, the existing bounds, and one byte of flags at the very end.
//! Multiranges: the OID, a count, the positions of the second and later ranges, a byte of flags for
//! each, and the bounds of all.

use crate::codec::Codec;
use crate::composite::quote;
use crate::error::{Error, Result};
use crate::reader::ByteReader;
use crate::settings::Settings;
use crate::tuple::{Value, take};
use crate::varlena::HEADER;

const EMPTY: u8 = 0x01;
const LOWER_INCLUSIVE: u8 = 0x02;
const UPPER_INCLUSIVE: u8 = 0x04;
const LOWER_INFINITE: u8 = 0x08;
const UPPER_INFINITE: u8 = 0x10;
/// `RANGE_LB_NULL` and `RANGE_UB_NULL`: the bound does not exist either. The server never writes
/// these flags.
const NULL_BOUNDS: u8 = 0x60;

/// One range, taken apart.
struct RangeValue<'a> {
    flags: u8,
    lower: Value<'a>,
    upper: Value<'a>,
}

impl<'a> RangeValue<'a> {
    /// The range with these flags whose bounds begin at `at`.
    fn bounds(flags: u8, payload: &'a [u8], at: &mut usize, subtype: &Codec) -> Result<Self> {
        let mut bound = |absent: u8| {
            if flags & (EMPTY | absent) != 0 {
                return Ok(Value::Null);
            }
            take(payload, at, HEADER, subtype.len(), subtype.align())
        };
        let (lower, upper) =
            (bound(LOWER_INFINITE | NULL_BOUNDS & 0x20)?, bound(UPPER_INFINITE | NULL_BOUNDS & 0x40)?);
        Ok(RangeValue { flags, lower, upper })
    }

    fn read(payload: &'a [u8], subtype: &Codec) -> Result<Self> {
        let (&flags, bounds) = payload.split_last().ok_or(Error::damaged("range"))?;
        RangeValue::bounds(flags, bounds, &mut 4, subtype)
    }

    /// `range_deparse`.
    fn text(&self, subtype: &Codec, settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
        if self.flags & EMPTY != 0 {
            out.extend_from_slice(b"empty");
            return Ok(());
        }
        out.push(if self.flags & LOWER_INCLUSIVE != 0 { b'[' } else { b'(' });
        bound_text(&self.lower, subtype, settings, out)?;
        out.push(b',');
        bound_text(&self.upper, subtype, settings, out)?;
        out.push(if self.flags & UPPER_INCLUSIVE != 0 { b']' } else { b')' });
        Ok(())
    }

    /// `range_send`.
    fn binary(&self, subtype: &Codec, settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
        out.push(self.flags & (EMPTY | LOWER_INCLUSIVE | UPPER_INCLUSIVE | LOWER_INFINITE | UPPER_INFINITE));
        for bound in [&self.lower, &self.upper] {
            if *bound != Value::Null {
                subtype.field(bound, settings, out)?;
            }
        }
        Ok(())
    }
}

fn bound_text(bound: &Value<'_>, subtype: &Codec, settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
    if let Some(payload) = bound.payload()? {
        let start = out.len();
        subtype.text(&payload, settings, out)?;
        quote(out, start, b"()[],");
    }
    Ok(())
}

/// `range_out`.
pub(crate) fn text(payload: &[u8], subtype: &Codec, settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
    RangeValue::read(payload, subtype)?.text(subtype, settings, out)
}

/// `range_send`.
pub(crate) fn binary(payload: &[u8], subtype: &Codec, settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
    RangeValue::read(payload, subtype)?.binary(subtype, settings, out)
}

/// The ranges of a multirange. Bounds lie one after the other, each aligned. The stored positions
/// only repeat where.
fn ranges<'a>(payload: &'a [u8], subtype: &Codec) -> Result<Vec<RangeValue<'a>>> {
    let mut reader = ByteReader::new(payload, "multirange");
    reader.u32()?;
    // Each range has at least a byte of flags.
    let count = reader.count(1)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    reader.take((count - 1) * 4)?;
    let flags = reader.take(count)?;
    let mut at = subtype.align().up(reader.at() + HEADER) - HEADER;
    flags
        .iter()
        .map(|&flags| {
            // Each range begins like a single one: with its first bound aligned.
            RangeValue::bounds(flags, payload, &mut at, subtype)
        })
        .collect()
}

/// `multirange_out`.
pub(crate) fn multi_text(
    payload: &[u8],
    subtype: &Codec,
    settings: &Settings,
    out: &mut Vec<u8>,
) -> Result<()> {
    out.push(b'{');
    for (index, range) in ranges(payload, subtype)?.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        range.text(subtype, settings, out)?;
    }
    out.push(b'}');
    Ok(())
}

/// `multirange_send`.
pub(crate) fn multi_binary(
    payload: &[u8],
    subtype: &Codec,
    settings: &Settings,
    out: &mut Vec<u8>,
) -> Result<()> {
    let ranges = ranges(payload, subtype)?;
    out.extend_from_slice(&(ranges.len() as i32).to_be_bytes());
    for range in ranges {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        range.binary(subtype, settings, out)?;
        let length = (out.len() - start - 4) as i32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}
