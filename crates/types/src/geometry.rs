//! Points, and types made of points. All numbers are float8.

use crate::error::{Error, Result};
use crate::float::float8;
use crate::reader::ByteReader;

/// The brackets around a list of points (`path_delim`).
#[derive(Clone, Copy)]
enum Enclosed {
    /// A box: nothing.
    Not,
    /// An open path, a line segment: `[...]`.
    Open,
    /// A closed path, a polygon: `(...)`.
    Closed,
}

fn point(reader: &mut ByteReader<'_>, out: &mut Vec<u8>) -> Result<()> {
    out.push(b'(');
    float8(reader.f64()?, out);
    out.push(b',');
    float8(reader.f64()?, out);
    out.push(b')');
    Ok(())
}

fn points(reader: &mut ByteReader<'_>, count: usize, enclosed: Enclosed, out: &mut Vec<u8>) -> Result<()> {
    match enclosed {
        Enclosed::Not => {}
        Enclosed::Open => out.push(b'['),
        Enclosed::Closed => out.push(b'('),
    }
    for index in 0..count {
        if index > 0 {
            out.push(b',');
        }
        point(reader, out)?;
    }
    match enclosed {
        Enclosed::Not => {}
        Enclosed::Open => out.push(b']'),
        Enclosed::Closed => out.push(b')'),
    }
    Ok(())
}

/// `point_out`.
pub(crate) fn point_text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    point(&mut ByteReader::new(payload, "point"), out)
}

/// `lseg_out`.
pub(crate) fn lseg_text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    points(&mut ByteReader::new(payload, "lseg"), 2, Enclosed::Open, out)
}

/// `box_out`.
pub(crate) fn box_text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    points(&mut ByteReader::new(payload, "box"), 2, Enclosed::Not, out)
}

/// `line_out`.
pub(crate) fn line_text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut reader = ByteReader::new(payload, "line");
    for before in *b"{,," {
        out.push(before);
        float8(reader.f64()?, out);
    }
    out.push(b'}');
    Ok(())
}

/// `circle_out`.
pub(crate) fn circle_text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut reader = ByteReader::new(payload, "circle");
    out.push(b'<');
    point(&mut reader, out)?;
    out.push(b',');
    float8(reader.f64()?, out);
    out.push(b'>');
    Ok(())
}

/// Whether the path is closed, and its points.
fn path(payload: &[u8]) -> Result<(bool, usize, ByteReader<'_>)> {
    let mut reader = ByteReader::new(payload, "path");
    let count = reader.count(16)?;
    let closed = reader.i32()? != 0;
    reader.i32()?;
    exact(&reader, count)?;
    Ok((closed, count, reader))
}

/// The polygon's points, without the box around them.
fn polygon(payload: &[u8]) -> Result<(usize, ByteReader<'_>)> {
    let mut reader = ByteReader::new(payload, "polygon");
    let count = reader.count(16)?;
    reader.take(32)?;
    exact(&reader, count)?;
    Ok((count, reader))
}

fn exact(reader: &ByteReader<'_>, count: usize) -> Result<()> {
    if reader.rest().len() == count * 16 { Ok(()) } else { Err(Error::damaged("number of points")) }
}

/// `path_out`.
pub(crate) fn path_text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (closed, count, mut reader) = path(payload)?;
    points(&mut reader, count, if closed { Enclosed::Closed } else { Enclosed::Open }, out)
}

/// `poly_out`.
pub(crate) fn polygon_text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (count, mut reader) = polygon(payload)?;
    points(&mut reader, count, Enclosed::Closed, out)
}

/// The send functions of types that consist of float8 only.
pub(crate) fn floats_binary(payload: &[u8], count: usize, out: &mut Vec<u8>) -> Result<()> {
    let mut reader = ByteReader::new(payload, "geometric value");
    (0..count).try_for_each(|_| {
        out.extend_from_slice(&reader.u64()?.to_be_bytes());
        Ok(())
    })
}

/// `path_send`.
pub(crate) fn path_binary(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (closed, count, reader) = path(payload)?;
    out.push(closed.into());
    out.extend_from_slice(&(count as i32).to_be_bytes());
    floats_binary(reader.rest(), count * 2, out)
}

/// `poly_send`.
pub(crate) fn polygon_binary(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (count, reader) = polygon(payload)?;
    out.extend_from_slice(&(count as i32).to_be_bytes());
    floats_binary(reader.rest(), count * 2, out)
}
