//! The tests' rows: an id and some columns of text, in a tuple as the server makes it.

use base::Oid;
use decode::RawTuple;
use rand::Rng;
use rand::rngs::StdRng;
use txn::reorder::Chunks;
use types::{Align, Attribute, Generated, HeapTuple, Value, Varlena};

/// The bytes of a chunk. It is small, so that a value has several chunks.
const CHUNK: usize = 40;

/// The expected content of a column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Column {
    Text(Vec<u8>),
    /// Out of line, and not written with this row.
    Unchanged,
}

/// The parts of a tuple: the fields of the header that matter, and the bytes behind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Made {
    pub(crate) columns: Vec<Column>,
    pub(crate) chunks: Vec<(Oid, u32, Vec<u8>)>,
    bytes: Vec<u8>,
}

impl Made {
    pub(crate) fn tuple(&self) -> RawTuple<'_> {
        RawTuple { infomask2: self.columns.len() as u16, infomask: 0, hoff: 24, bytes: &self.bytes }
    }
}

/// Makes a row of up to three columns; large values get ids from `next_value` on.
pub(crate) fn make(random: &mut StdRng, next_value: &mut u32, may_have_chunks: bool) -> Made {
    let mut made = Made { columns: Vec::new(), chunks: Vec::new(), bytes: vec![0] };
    for _ in 0..random.random_range(1..=3) {
        let length = random.random_range(0..100);
        let text: Vec<u8> = (0..length).map(|_| random.random_range(b'a'..=b'd')).collect();
        let kind = random.random_range(0..10);
        if kind < 6 || (kind < 9 && !may_have_chunks) {
            made.bytes.push((text.len() as u8 + 1) << 1 | 1);
            made.bytes.extend_from_slice(&text);
            made.columns.push(Column::Text(text));
            continue;
        }
        *next_value += 1;
        let value = Oid(*next_value);
        let length = text.len().min(4);
        let text = text[..length].repeat(random.random_range(1..60));
        let (stored, method) = match kind {
            6 => (text.clone(), 0),
            7 => (compressed(&text, 0, pglz(&text)), 0),
            8 => (compressed(&text, 1, lz4_flex::block::compress(&text)), 1),
            // An earlier row has written it, and nothing of that is here.
            _ => (text.clone(), 0),
        };
        // A value that did not become shorter is stored uncompressed.
        let stored = if stored.len() < text.len() { stored } else { text.clone() };
        let info = stored.len() as u32 | if stored.len() < text.len() { method << 30 } else { 0 };
        made.bytes.extend_from_slice(&[1, 18]);
        for number in [text.len() as u32 + 4, info, value.0, 99] {
            made.bytes.extend_from_slice(&number.to_le_bytes());
        }
        if kind == 9 {
            made.columns.push(Column::Unchanged);
            continue;
        }
        // An empty value has one empty chunk.
        let pieces = stored.chunks(CHUNK).map(<[u8]>::to_vec);
        let pieces = if stored.is_empty() { vec![Vec::new()] } else { pieces.collect() };
        made.chunks.extend(pieces.into_iter().enumerate().map(|(n, piece)| (value, n as u32, piece)));
        made.columns.push(Column::Text(text));
    }
    made
}

/// The stored form: size and method, then the bytes.
fn compressed(text: &[u8], method: u32, bytes: Vec<u8>) -> Vec<u8> {
    [&(text.len() as u32 | method << 30).to_le_bytes()[..], &bytes].concat()
}

/// A stream of pglz: the longest repetition of a byte becomes a copy with distance 1, everything
/// else is literal.
fn pglz(text: &[u8]) -> Vec<u8> {
    let mut items = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let period = 4.min(at);
        let run = text[at..].iter().zip(&text[at - period..]).take(17).take_while(|(a, b)| a == b).count();
        if period == 4 && run >= 3 {
            items.push((true, vec![(run - 3) as u8, 4]));
            at += run;
        } else {
            items.push((false, vec![text[at]]));
            at += 1;
        }
    }
    let mut stream = Vec::new();
    for group in items.chunks(8) {
        let control = group.iter().enumerate().fold(0, |bits, (n, (copy, _))| bits | u8::from(*copy) << n);
        stream.push(control);
        stream.extend(group.iter().flat_map(|(_, bytes)| bytes.clone()));
    }
    stream
}

/// Takes a tuple apart, with the large values that came with it.
pub(crate) fn columns(tuple: &RawTuple<'_>, chunks: &Chunks) -> Vec<Column> {
    let text = Attribute {
        type_oid: Oid(25),
        len: -1,
        align: Align::Int,
        dropped: false,
        generated: Generated::No,
        missing: None,
    };
    let attributes = vec![text; tuple.attributes()];
    let mut values = Vec::new();
    let read = HeapTuple::new(tuple.infomask2, tuple.infomask, tuple.hoff, tuple.bytes).unwrap();
    read.deform(&attributes, &mut values).unwrap();
    let column = |value: &Value<'_>| match value {
        Value::Varlena(Varlena::External(pointer)) => match chunks.value(pointer).unwrap() {
            Some(varlena) => Column::Text(varlena.payload().unwrap().into_owned()),
            None => Column::Unchanged,
        },
        value => Column::Text(value.payload().unwrap().unwrap().into_owned()),
    };
    values.iter().map(column).collect()
}
