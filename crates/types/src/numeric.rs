//! numeric: digits in base 10000 behind a header of two bytes, or of four for large scales and
//! weights.
//!
//! ```text
//! top bits  header
//! 10        short: sign 0x2000, display scale (6 bits from 0x1f80), weight (7 bits, two's complement)
//! 00, 01    long: sign 0x4000, display scale (14 bits), then the weight in a word of its own
//! 11        0xc000 NaN, 0xd000 Infinity, 0xf000 -Infinity
//! ```
//! This is the form on disk, which no crate reads. Crates for the wire's form hold fewer digits
//! than a numeric may have. The value is the sum of `digit[i] * 10000^(weight - i)`.

use crate::error::{Error, Result};

const DAMAGED: Error = Error::damaged("numeric");

/// `NUMERIC_NAN`.
const NAN: u16 = 0xc000;
/// `NUMERIC_PINF`.
const INFINITY: u16 = 0xd000;
/// `NUMERIC_NINF`.
const NEGATIVE_INFINITY: u16 = 0xf000;
/// `NUMERIC_NEG`, the sign on the wire.
const NEGATIVE: u16 = 0x4000;

/// A numeric whose header has been read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numeric<'a> {
    /// As on the wire: 0, [`NEGATIVE`], or a special value.
    pub(crate) sign: u16,
    pub(crate) dscale: u16,
    pub(crate) weight: i16,
    digits: &'a [u8],
}

impl<'a> Numeric<'a> {
    pub(crate) fn read(payload: &'a [u8]) -> Result<Self> {
        let (&header, rest) = payload.split_first_chunk().ok_or(DAMAGED)?;
        let header = u16::from_le_bytes(header);
        let numeric = match header >> 14 {
            0b10 => {
                let weight = (header & 0x3f) as i16 - (header & 0x40) as i16;
                let sign = if header & 0x2000 != 0 { NEGATIVE } else { 0 };
                Numeric { sign, dscale: header >> 7 & 0x3f, weight, digits: rest }
            }
            0b11 if ![NAN, INFINITY, NEGATIVE_INFINITY].contains(&header) => return Err(DAMAGED),
            // For these, the server reads the scale from the bits of a short header.
            0b11 => Numeric { sign: header, dscale: header >> 7 & 0x3f, weight: 0, digits: &[] },
            sign => {
                let (&weight, digits) = rest.split_first_chunk().ok_or(DAMAGED)?;
                Numeric {
                    sign: sign << 14,
                    dscale: header & 0x3fff,
                    weight: i16::from_le_bytes(weight),
                    digits,
                }
            }
        };
        let valid = numeric.digits.len().is_multiple_of(2) && numeric.digits().all(|digit| digit < 10_000);
        if valid { Ok(numeric) } else { Err(DAMAGED) }
    }

    pub(crate) fn digits(&self) -> impl ExactSizeIterator<Item = u16> + use<'a> {
        self.digits.chunks_exact(2).map(|digit| u16::from_le_bytes([digit[0], digit[1]]))
    }

    fn digit(&self, index: i32) -> u16 {
        match usize::try_from(index) {
            Ok(index) if index * 2 < self.digits.len() => {
                u16::from_le_bytes([self.digits[index * 2], self.digits[index * 2 + 1]])
            }
            _ => 0,
        }
    }
}

/// A numeric, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NumericParts {
    /// Not a number.
    NaN,
    /// More than every number.
    Infinity,
    /// Less than every number.
    NegativeInfinity,
    /// The sum of `digits[i] * 10000^(weight - i)`, with its sign.
    Finite {
        /// Whether it is below zero.
        negative: bool,
        /// The weight of the first digit.
        weight: i16,
        /// In base 10000.
        digits: Vec<u16>,
    },
}

/// Reads a numeric's payload.
///
/// # Errors
/// When it is damaged.
pub fn parts(payload: &[u8]) -> Result<NumericParts> {
    let numeric = Numeric::read(payload)?;
    Ok(match numeric.sign {
        NAN => NumericParts::NaN,
        INFINITY => NumericParts::Infinity,
        NEGATIVE_INFINITY => NumericParts::NegativeInfinity,
        sign => NumericParts::Finite {
            negative: sign == NEGATIVE,
            weight: numeric.weight,
            digits: numeric.digits().collect(),
        },
    })
}

/// `numeric_out`.
pub(crate) fn text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let numeric = Numeric::read(payload)?;
    match numeric.sign {
        NAN => out.extend_from_slice(b"NaN"),
        INFINITY => out.extend_from_slice(b"Infinity"),
        NEGATIVE_INFINITY => out.extend_from_slice(b"-Infinity"),
        sign => {
            if sign == NEGATIVE {
                out.push(b'-');
            }
            finite(&numeric, out);
        }
    }
    Ok(())
}

fn finite(numeric: &Numeric<'_>, out: &mut Vec<u8>) {
    let weight = i32::from(numeric.weight);
    if weight < 0 {
        out.push(b'0');
    } else {
        crate::number::unsigned(numeric.digit(0).into(), out);
        (1..=weight).for_each(|index| four(numeric.digit(index), out));
    }
    if numeric.dscale == 0 {
        return;
    }
    out.push(b'.');
    let end = out.len() + usize::from(numeric.dscale);
    let mut index = weight + 1;
    while out.len() < end {
        four(numeric.digit(index), out);
        index += 1;
    }
    out.truncate(end);
}

/// Writes a digit in base 10000 as four digits in base 10.
fn four(digit: u16, out: &mut Vec<u8>) {
    let letter = |value: u16| b'0' + (value % 10) as u8;
    out.extend_from_slice(&[letter(digit / 1000), letter(digit / 100), letter(digit / 10), letter(digit)]);
}

/// `numeric_send`.
pub(crate) fn binary(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let numeric = Numeric::read(payload)?;
    let count = u16::try_from(numeric.digits().len()).map_err(|_| DAMAGED)?;
    for word in
        [count, numeric.weight as u16, numeric.sign, numeric.dscale].into_iter().chain(numeric.digits())
    {
        out.extend_from_slice(&word.to_be_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(payload: &[u8]) -> String {
        let mut out = Vec::new();
        text(payload, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn short_long_and_special() {
        assert_eq!(shown(&[0x00, 0x81, 0x7b, 0x00, 0x94, 0x11]), "123.45");
        assert_eq!(shown(&[0x00, 0x80]), "0");
        assert_eq!(shown(&[0x7f, 0xa3, 0x01, 0x00, 0xfc, 0x08]), "-0.000123");
        assert_eq!(shown(&[0x00, 0x00, 0x01, 0x00, 0x01, 0x00]), "10000");
        assert_eq!(shown(&[0x00, 0xc0]), "NaN");
        assert_eq!(shown(&[0x00, 0xf0]), "-Infinity");
    }

    #[test]
    fn damaged_ones_are_errors() {
        for payload in
            [&[][..], &[0], &[0x00, 0x81, 0x7b], &[0x00, 0x81, 0x10, 0x27], &[0x00, 0x00], &[0x01, 0xc0]]
        {
            assert!(text(payload, &mut Vec::new()).unwrap_err().is_damaged(), "{payload:?}");
        }
    }
}
