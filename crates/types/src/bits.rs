//! bit and varbit: a number of bits, then bytes that hold them, highest bit first.

use crate::error::{Error, Result};
use crate::reader::ByteReader;

fn read(payload: &[u8]) -> Result<(usize, &[u8])> {
    const DAMAGED: Error = Error::damaged("bit string");
    let mut reader = ByteReader::new(payload, "bit string");
    let count = usize::try_from(reader.i32()?).map_err(|_| DAMAGED)?;
    let bytes = reader.rest();
    if bytes.len() == count.div_ceil(8) { Ok((count, bytes)) } else { Err(DAMAGED) }
}

/// `bit_out`, `varbit_out`.
pub(crate) fn text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (count, bytes) = read(payload)?;
    out.extend((0..count).map(|bit| b'0' + (bytes[bit / 8] >> (7 - bit % 8) & 1)));
    Ok(())
}

/// `bit_send`, `varbit_send`.
pub(crate) fn binary(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (count, bytes) = read(payload)?;
    out.extend_from_slice(&(count as i32).to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}
