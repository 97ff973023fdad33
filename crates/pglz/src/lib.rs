//! Unpacks PostgreSQL's own compression (`common/pg_lzcompress.c`).
//!
//! The stream consists of groups of eight items behind a control byte, lowest bit first. A clear
//! bit stands for a literal byte. A set bit stands for a copy of earlier output:
//!
//! | byte | bits | what |
//! | --- | --- | --- |
//! | 0 | 0..4 | length less 3; 15 means that a third byte is added |
//! | 0 | 4..8 | bits 8..12 of the distance |
//! | 1 | 0..8 | bits 0..8 of the distance, which is at least 1 |
//! | 2 | 0..8 | added to the length, if the low bits of byte 0 are 15 |
//!
//! A copy may reach into its own output, which makes runs.
//!
//! No crate unpacks this format, which only the server has. It is used for values that the server
//! compressed in a row (`types`) and for page images in the WAL (`wal`).

use std::fmt;

/// The stream is not one of pglz, or has another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("compressed data is corrupt (pglz)")
    }
}

impl std::error::Error for Corrupt {}

/// The shortest copy, and the length whose code announces another byte.
const COPY_MIN: usize = 3;
const COPY_EXTENDED: usize = 18;

/// The most bytes that one byte can become: 273 bytes from a copy of three, without its control
/// bit.
const EXPANSION_MAX: usize = 91;

/// Unpacks all of `compressed`, which must fill `raw` exactly.
///
/// # Errors
/// When it does not, or when it is not a stream of pglz.
pub fn decompress(compressed: &[u8], raw: &mut [u8]) -> Result<(), Corrupt> {
    let mut source = compressed.iter().copied();
    let mut written = 0;
    while written < raw.len() {
        let Some(mut control) = source.next() else { return Err(Corrupt) };
        for _ in 0..8 {
            if written == raw.len() || source.len() == 0 {
                break;
            }
            if control & 1 == 0 {
                raw[written] = source.next().ok_or(Corrupt)?;
                written += 1;
            } else {
                written = copy(&mut source, raw, written)?;
            }
            control >>= 1;
        }
    }
    if source.len() == 0 { Ok(()) } else { Err(Corrupt) }
}

/// Like [`decompress`], into memory of its own. A size that is impossible for so few bytes is an
/// error.
///
/// # Errors
/// As [`decompress`].
pub fn decompress_to_vec(compressed: &[u8], raw_size: usize) -> Result<Vec<u8>, Corrupt> {
    if raw_size / EXPANSION_MAX > compressed.len() {
        return Err(Corrupt);
    }
    let mut raw = vec![0; raw_size];
    decompress(compressed, &mut raw).map(|()| raw)
}

/// Unpacks one copy item. Returns where writing goes on.
fn copy(source: &mut impl Iterator<Item = u8>, raw: &mut [u8], written: usize) -> Result<usize, Corrupt> {
    let mut byte = || source.next().map(usize::from).ok_or(Corrupt);
    let (first, second) = (byte()?, byte()?);
    let mut length = (first & 0x0f) + COPY_MIN;
    if length == COPY_EXTENDED {
        length += byte()?;
    }
    let distance = (first & 0xf0) << 4 | second;
    if distance == 0 || distance > written {
        return Err(Corrupt);
    }
    // Like the server, this cuts the last copy at the end of the output.
    let end = (written + length).min(raw.len());
    if distance >= end - written {
        raw.copy_within(written - distance..end - distance, written);
    } else {
        for at in written..end {
            raw[at] = raw[at - distance];
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(compressed: &[u8], length: usize) -> Result<Vec<u8>, Corrupt> {
        let mut raw = vec![0; length];
        decompress(compressed, &mut raw).map(|()| raw)
    }

    #[test]
    fn literals_copies_and_runs() {
        assert_eq!(unpacked(&[0, b'a', b'b', b'c'], 3).unwrap(), b"abc");
        // Three literals, then a copy of three bytes with distance three.
        assert_eq!(unpacked(&[0b1000, b'a', b'b', b'c', 0, 3], 6).unwrap(), b"abcabc");
        // A run: one literal, then a copy of 18 + 2 bytes with distance one.
        assert_eq!(unpacked(&[0b10, b'x', 0x0f, 1, 2], 21).unwrap(), [b'x'; 21]);
        // Distances that need more than a byte.
        let far: Vec<u8> = (0..40).flat_map(|n: u8| [vec![0], vec![n; 8]].concat()).collect();
        let far = [far, vec![0b1, 0x10, 0x2c]].concat();
        assert_eq!(unpacked(&far, 323).unwrap()[320..], [2, 2, 2]);
        assert_eq!(unpacked(&[], 0).unwrap(), b"");
    }

    #[test]
    fn what_does_not_fill_its_output_exactly_is_corrupt() {
        assert_eq!(unpacked(&[0, b'a', b'b'], 3), Err(Corrupt), "too little");
        assert_eq!(unpacked(&[0, b'a', b'b', b'c'], 2), Err(Corrupt), "too much");
        assert_eq!(unpacked(&[], 1), Err(Corrupt));
        assert_eq!(decompress_to_vec(&[0], 1 << 30), Err(Corrupt), "a size that is not believed");
        assert_eq!(unpacked(&[0b1, 0, 1], 3), Err(Corrupt), "from before the start");
        assert_eq!(unpacked(&[0b10, b'x', 0, 0], 4), Err(Corrupt), "from nowhere");
        assert_eq!(unpacked(&[0b10, b'x', 0], 4), Err(Corrupt), "cut short");
        assert_eq!(unpacked(&[0b10, b'x', 0x0f, 1], 30), Err(Corrupt), "cut short");
    }
}
