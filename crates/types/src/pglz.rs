//! Decompresses what `pg_lzcompress.c` wrote: a control byte says of each of the next eight items, lowest bit first,
//! whether it is a literal byte (0) or a reference to earlier output (1).
//!
//! A reference is two bytes: the length less 3 in the low half of the first, the distance in its high half (bits 8 to
//! 11) and the second byte. A length of 18 is followed by a byte that is added to it. A reference may reach into what
//! it is itself writing.

use crate::error::{Error, Result};

/// The most one byte of input can become: 273 bytes from a reference of three, its control bit left out of account.
const EXPANSION_MAX: usize = 91;

const DAMAGED: Error = Error::damaged("pglz data");

/// The `raw_size` bytes that `input` stands for.
///
/// # Errors
/// When the input ends early, refers to what is not there, or stands for more or fewer bytes.
pub fn decompress(input: &[u8], raw_size: usize) -> Result<Vec<u8>> {
    if raw_size / EXPANSION_MAX > input.len() {
        return Err(DAMAGED);
    }
    let mut output = Vec::with_capacity(raw_size);
    let mut at = 0;
    while at < input.len() && output.len() < raw_size {
        let control = input[at];
        at += 1;
        for bit in 0..8 {
            if at >= input.len() || output.len() >= raw_size {
                break;
            }
            if control >> bit & 1 == 0 {
                output.push(input[at]);
                at += 1;
            } else {
                at = refer(input, at, raw_size, &mut output)?;
            }
        }
    }
    if output.len() != raw_size || at != input.len() {
        return Err(DAMAGED);
    }
    Ok(output)
}

/// Follows the reference at `at`; where the next item is.
fn refer(input: &[u8], mut at: usize, raw_size: usize, output: &mut Vec<u8>) -> Result<usize> {
    let &[first, second] = input.get(at..at + 2).and_then(<[u8]>::first_chunk).ok_or(DAMAGED)?;
    at += 2;
    let mut length = usize::from(first & 0x0f) + 3;
    let distance = usize::from(first & 0xf0) << 4 | usize::from(second);
    if length == 18 {
        length += usize::from(*input.get(at).ok_or(DAMAGED)?);
        at += 1;
    }
    let start = output.len().checked_sub(distance).filter(|_| distance > 0).ok_or(DAMAGED)?;
    // The server stops at the size it was told, so a last reference may be longer.
    let length = length.min(raw_size - output.len());
    if distance >= length {
        output.extend_from_within(start..start + length);
    } else {
        for from in start..start + length {
            output.push(output[from]);
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_references_that_overlap() {
        // "ab", then nine bytes from two back.
        assert_eq!(decompress(&[0b100, b'a', b'b', 0x06, 0x02], 11).unwrap(), b"abababababa");
        // A long reference: 18 + 2 bytes from one back.
        assert_eq!(decompress(&[0b10, b'x', 0x0f, 0x01, 0x02], 21).unwrap(), [b'x'; 21]);
        assert_eq!(decompress(&[], 0).unwrap(), b"");
    }

    #[test]
    fn what_does_not_hold_is_an_error() {
        for (input, size) in [
            (&[0b1, 0x00, 0x01][..], 3),     // nothing to refer to
            (&[0b10, b'x', 0x00, 0x00], 4),  // a distance of nothing
            (&[0b10, b'x', 0x00], 4),        // half a reference
            (&[0b10, b'x', 0x0f, 0x01], 21), // no extension
            (&[0, b'x'], 2),                 // too short
            (&[0, b'x', b'y'], 1),           // too long
            (&[0], 1 << 30),                 // a size that is not believed
        ] {
            assert!(decompress(input, size).unwrap_err().is_damaged(), "{input:?}");
        }
    }
}
