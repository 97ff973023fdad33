//! Types that are little more than bytes: bytea, "char", name, uuid, pg_lsn, snapshots. Also the
//! escapes of JSON strings.

use base::PgVersion;

use crate::error::{Error, Result};
use crate::number::unsigned;
use crate::reader::{ByteReader, fixed};

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends two lower-case digits for each byte.
pub(crate) fn hex(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() * 2);
    for &byte in bytes {
        out.push(HEX[usize::from(byte >> 4)]);
        out.push(HEX[usize::from(byte & 15)]);
    }
}

/// `charout`: one byte, or none for zero. From 15 on, a byte that is not ASCII is written in octal.
pub(crate) fn char(byte: u8, version: PgVersion, out: &mut Vec<u8>) {
    match byte {
        0 => {}
        0x80.. if version.major() >= 15 => {
            let digit = |shift: u32| b'0' + (byte >> shift & 7);
            out.extend_from_slice(&[b'\\', digit(6), digit(3), digit(0)]);
        }
        byte => out.push(byte),
    }
}

/// The part of a name before its first zero byte.
pub(crate) fn name(payload: &[u8]) -> &[u8] {
    payload.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// `uuid_out`.
pub(crate) fn uuid(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let bytes: [u8; 16] = fixed(payload, "uuid")?;
    for (index, part) in
        [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].iter().enumerate()
    {
        if index > 0 {
            out.push(b'-');
        }
        hex(part, out);
    }
    Ok(())
}

/// `pg_lsn_out`.
pub(crate) fn lsn(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let lsn = u64::from_le_bytes(fixed(payload, "pg_lsn")?);
    out.extend_from_slice(format!("{:X}/{:X}", lsn >> 32, lsn as u32).as_bytes());
    Ok(())
}

/// Block and line of a tid. The block is stored as two halves, the high one first.
pub(crate) fn tid(payload: &[u8]) -> Result<(u32, u16)> {
    let mut reader = ByteReader::new(payload, "tid");
    let block = u32::from(reader.u16()?) << 16 | u32::from(reader.u16()?);
    Ok((block, reader.u16()?))
}

/// A snapshot: xmin, xmax, and the xids between them.
pub(crate) struct PgSnapshot<'a> {
    pub(crate) xmin: u64,
    pub(crate) xmax: u64,
    xip: &'a [u8],
}

impl<'a> PgSnapshot<'a> {
    pub(crate) fn read(payload: &'a [u8]) -> Result<Self> {
        let mut reader = ByteReader::new(payload, "pg_snapshot");
        let count = reader.u32()? as usize;
        let (xmin, xmax) = (reader.u64()?, reader.u64()?);
        let xip = reader.rest();
        if xip.len() / 8 == count && xip.len().is_multiple_of(8) {
            Ok(PgSnapshot { xmin, xmax, xip })
        } else {
            Err(Error::damaged("pg_snapshot"))
        }
    }

    fn xip(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.xip.as_chunks().0.iter().map(|&xid| u64::from_le_bytes(xid))
    }

    /// `pg_snapshot_out`: `10:20:10,14`.
    pub(crate) fn text(&self, out: &mut Vec<u8>) {
        unsigned(self.xmin, out);
        out.push(b':');
        unsigned(self.xmax, out);
        for (index, xid) in self.xip().enumerate() {
            out.push(if index == 0 { b':' } else { b',' });
            unsigned(xid, out);
        }
        if self.xip.is_empty() {
            out.push(b':');
        }
    }

    /// `pg_snapshot_send`.
    pub(crate) fn binary(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.xip().len() as u32).to_be_bytes());
        for number in [self.xmin, self.xmax].into_iter().chain(self.xip()) {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// `escape_json`: quotes, and escapes for what JSON does not allow between them.
pub(crate) fn json_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0..0x20 => {
                out.extend_from_slice(b"\\u00");
                hex(&[byte], out);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// The characters that both C's `isspace` and the server's `array_isspace` count as space.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}
