//! jsonb: a tree of containers.
//!
//! A container is a header (28 bits count; scalar, object or array above), one entry of four bytes
//! for each element (for an object all keys, then all values), and their data. An entry's low 28
//! bits are a length, or the offset of its end if the top bit is set. Three bits give the kind.
//! Numbers and containers begin at a multiple of four, and the padding counts as theirs.
//!
//! The tree is walked with an explicit stack, because the server allows more levels than a thread's
//! stack does.

use crate::error::{Error, Result};
use crate::numeric;
use crate::reader::ByteReader;
use crate::text::json_string;
use crate::varlena::Varlena;

const DAMAGED: Error = Error::damaged("jsonb");

const COUNT: u32 = 0x0fff_ffff;
const SCALAR: u32 = 0x1000_0000;
const OBJECT: u32 = 0x2000_0000;
const ARRAY: u32 = 0x4000_0000;

const HAS_OFFSET: u32 = 0x8000_0000;
const KIND: u32 = 0x7000_0000;
const LENGTH: u32 = 0x0fff_ffff;

/// A container that is being written.
struct Frame<'a> {
    kind: u32,
    count: usize,
    entries: &'a [[u8; 4]],
    data: &'a [u8],
    /// The next key of an object, or the next element of an array.
    next: usize,
    /// Where the next key or element begins.
    at: usize,
    /// Where an object's next value begins.
    value_at: usize,
}

impl<'a> Frame<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = ByteReader::new(bytes, "jsonb");
        let header = reader.u32()?;
        let count = (header & COUNT) as usize;
        let kind = header & (OBJECT | ARRAY);
        let entries = match kind {
            OBJECT => count * 2,
            ARRAY => count,
            _ => return Err(DAMAGED),
        };
        if header & SCALAR != 0 && (kind != ARRAY || count != 1) {
            return Err(DAMAGED);
        }
        let entries = reader.take(entries * 4)?.as_chunks().0;
        let mut frame = Frame {
            kind: header & (SCALAR | OBJECT | ARRAY),
            count,
            entries,
            data: reader.rest(),
            next: 0,
            at: 0,
            value_at: 0,
        };
        if kind == OBJECT {
            for key in 0..count {
                frame.value_at = frame.end(key, frame.value_at)?;
            }
        }
        Ok(frame)
    }

    /// Where the entry ends that begins at `start`.
    fn end(&self, entry: usize, start: usize) -> Result<usize> {
        let entry = u32::from_le_bytes(self.entries[entry]);
        let length = (entry & LENGTH) as usize;
        let end = if entry & HAS_OFFSET != 0 { length } else { start + length };
        if end < start || end > self.data.len() { Err(DAMAGED) } else { Ok(end) }
    }

    /// Kind and data of an entry that begins at `at`. Moves `at` to its end.
    fn entry(&self, index: usize, at: &mut usize) -> Result<(u32, &'a [u8])> {
        let kind = u32::from_le_bytes(self.entries[index]) & KIND;
        let end = self.end(index, *at)?;
        // Numbers and containers are aligned.
        let start = if kind == 0x1000_0000 || kind == 0x5000_0000 { at.next_multiple_of(4) } else { *at };
        *at = end;
        Ok((kind, self.data.get(start..end).ok_or(DAMAGED)?))
    }

    fn brackets(&self) -> (&'static [u8], &'static [u8]) {
        match self.kind {
            OBJECT => (b"{", b"}"),
            ARRAY => (b"[", b"]"),
            _ => (b"", b""),
        }
    }

    /// The next value. Writes what stands before it.
    fn next(&mut self, out: &mut Vec<u8>) -> Result<Option<(u32, &'a [u8])>> {
        if self.next == self.count {
            return Ok(None);
        }
        if self.next > 0 {
            out.extend_from_slice(b", ");
        }
        let (index, mut at) = (self.next, self.at);
        let first = self.entry(index, &mut at)?;
        (self.at, self.next) = (at, index + 1);
        if self.kind != OBJECT {
            return Ok(Some(first));
        }
        let (0, key) = first else { return Err(DAMAGED) };
        json_string(key, out);
        out.extend_from_slice(b": ");
        let mut at = self.value_at;
        let value = self.entry(self.count + index, &mut at)?;
        self.value_at = at;
        Ok(Some(value))
    }
}

/// `jsonb_out`. `jsonb_send` puts the version 1 before it.
pub(crate) fn text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let root = Frame::open(payload)?;
    out.extend_from_slice(root.brackets().0);
    let mut stack = vec![root];
    while let Some(frame) = stack.last_mut() {
        let Some((kind, data)) = frame.next(out)? else {
            out.extend_from_slice(frame.brackets().1);
            stack.pop();
            continue;
        };
        match kind {
            0x0000_0000 => json_string(data, out),
            0x1000_0000 => numeric::text(&Varlena::read(data)?.0.payload()?, out)?,
            0x2000_0000 => out.extend_from_slice(b"false"),
            0x3000_0000 => out.extend_from_slice(b"true"),
            0x4000_0000 => out.extend_from_slice(b"null"),
            0x5000_0000 => {
                let inner = Frame::open(data)?;
                out.extend_from_slice(inner.brackets().0);
                stack.push(inner);
            }
            _ => return Err(DAMAGED),
        }
    }
    Ok(())
}
