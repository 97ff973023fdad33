//! From rows to bytes: the parameters of a statement in the form that the Bind message requires.
//!
//! A set's parameters are one-dimensional arrays in binary form (`array_recv`): dimensions, a flag
//! for NULLs, the element type, then each element behind its length. In pgoutput's tuple a value's
//! length and bytes have the same form. So each value is copied once into its column's array and
//! once more into the message. A value that is an array itself is wrapped there
//! ([`crate::holder`]). Arrays take megabytes, so their memory is handed from statement to
//! statement and not returned to the system.
//!
//! Many new rows go by COPY, which reads the arrays row by row. The server then fills pages by the
//! dozen rows, with one WAL record for each page.

use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use proto::pgoutput::Column;

use crate::holder::{Element, held_len, put_held};
use crate::sql::Shape;

/// A set is written by statements of about this many bytes each. That is large enough for a
/// statement's own cost to vanish. It is small against the memory of either end, where a value
/// stands several times while its set is executed.
pub const PIECE: usize = 4 * 1024 * 1024;

/// One execution of a shape.
#[derive(Debug)]
pub struct Statement {
    /// What is executed.
    pub shape: Arc<Shape>,
    /// What it is executed with.
    pub parameters: Parameters,
    /// Rows it must report. Any other count means that the target differs from what the source had.
    pub rows_expected: u64,
}

/// The parameters of one execution.
#[derive(Debug)]
pub enum Parameters {
    /// Formats, count and values, as in Bind.
    Values(BytesMut),
    /// One array for each parameter.
    Arrays(Arrays),
    /// No parameters, but rows for a COPY.
    Rows(Arrays),
}

impl Statement {
    /// Size of its parameters, approximately.
    pub fn byte_len(&self) -> usize {
        match &self.parameters {
            Parameters::Values(values) => values.len(),
            Parameters::Arrays(arrays) => arrays.byte_len(),
            Parameters::Rows(_) => 0,
        }
    }

    /// Appends its parameters, as in Bind.
    pub fn put(&self, out: &mut BytesMut) {
        match &self.parameters {
            Parameters::Values(values) => out.put_slice(values),
            Parameters::Arrays(arrays) => arrays.put(&self.shape, out),
            Parameters::Rows(_) => out.put_u32(0),
        }
    }

    /// The rows that follow it as COPY data; `None` if it is not a COPY.
    pub fn copy_rows(&self) -> Option<CopyRows<'_>> {
        match &self.parameters {
            Parameters::Values(_) | Parameters::Arrays(_) => None,
            Parameters::Rows(arrays) => Some(CopyRows::new(arrays)),
        }
    }
}

/// A value that cannot stand in an array: an unchanged TOAST value, or one whose form is not the
/// column's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misfit;

/// The columns of a set, row by row.
#[derive(Debug)]
pub struct Arrays {
    binary: bool,
    columns: Vec<Array>,
    rows: u32,
}

#[derive(Debug, Default)]
struct Array {
    elements: Vec<u8>,
    has_null: bool,
}

impl Array {
    /// Appends the array as `array_recv` reads it.
    fn put(&self, element: Element, elements: u32, out: &mut BytesMut) {
        let bytes = element.holds.map_or(self.elements.len(), |_| held_len(&self.elements));
        let length = u32::try_from(bytes + 20).expect("a statement is far below 4 GiB");
        out.put_u32(length);
        out.put_u32(1);
        out.put_u32(u32::from(self.has_null));
        out.put_u32(element.oid.0);
        out.put_u32(elements);
        out.put_u32(1);
        match element.holds {
            Some(held) => put_held(&self.elements, held, out),
            None => out.put_slice(&self.elements),
        }
    }
}

impl Arrays {
    /// No rows yet, of this many columns.
    pub fn new(columns: usize, binary: bool) -> Self {
        Arrays::within(columns, binary, &mut Vec::new())
    }

    /// Like `new`, but reuses the memory of arrays that were sent.
    pub fn within(columns: usize, binary: bool, spare: &mut Vec<Vec<u8>>) -> Self {
        let array = || Array { elements: spare.pop().unwrap_or_default(), has_null: false };
        Arrays { binary, columns: std::iter::repeat_with(array).take(columns).collect(), rows: 0 }
    }

    /// Leaves its memory to later arrays.
    pub fn leave(self, spare: &mut Vec<Vec<u8>>) {
        spare.clear();
        let elements = self.columns.into_iter().map(|array| array.elements);
        spare.extend(elements.map(|mut elements| {
            elements.clear();
            elements
        }));
        // The last element of `spare` is taken first.
        spare.reverse();
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        u64::from(self.rows)
    }

    /// Size of the message that the arrays make, approximately.
    pub fn byte_len(&self) -> usize {
        self.columns.iter().map(|array| array.elements.len() + 24).sum::<usize>() + 6
    }

    /// Adds one row; `values` has a value for every column.
    pub fn push<'a>(&mut self, values: impl Iterator<Item = Column<'a>>) -> Result<(), Misfit> {
        let mut filled = 0;
        for (array, value) in self.columns.iter_mut().zip(values) {
            let bytes = match value {
                Column::Null => {
                    array.elements.extend_from_slice(&(-1_i32).to_be_bytes());
                    array.has_null = true;
                    filled += 1;
                    continue;
                }
                Column::Text(bytes) if !self.binary => bytes,
                Column::Binary(bytes) if self.binary => bytes,
                Column::Text(_) | Column::Binary(_) | Column::Unchanged => return Err(Misfit),
            };
            let length = u32::try_from(bytes.len()).expect("a value is at most 1 GiB");
            array.elements.extend_from_slice(&length.to_be_bytes());
            array.elements.extend_from_slice(bytes);
            filled += 1;
        }
        if filled < self.columns.len() {
            return Err(Misfit);
        }
        self.rows += 1;
        Ok(())
    }

    /// Goes through the rows from the first.
    pub fn walk(&self) -> Walk<'_> {
        Walk { arrays: self, at: vec![0; self.columns.len()], left: self.rows }
    }

    /// Cuts the rows into pieces of `rows` each.
    pub fn cut(self, rows: usize) -> Vec<Arrays> {
        let mut pieces = Vec::new();
        let places: Vec<usize> = (0..self.columns.len()).collect();
        let mut row = vec![Column::Unchanged; places.len()];
        let mut walk = self.walk();
        while walk.next(&places, &mut row) {
            if !matches!(pieces.last(), Some(Arrays { rows: full, .. }) if (*full as usize) < rows) {
                pieces.push(Arrays::new(places.len(), self.binary));
            }
            let piece = pieces.last_mut().expect("one was pushed");
            piece.push(row.iter().copied()).expect("it came out of such a set");
        }
        pieces
    }

    /// The COPY that inserts these rows.
    pub fn into_copy(self, shape: Arc<Shape>) -> Statement {
        let rows_expected = self.rows();
        Statement { shape, parameters: Parameters::Rows(self), rows_expected }
    }

    /// The statement that writes these rows.
    pub fn into_statement(self, shape: Arc<Shape>, rows_expected: u64) -> Statement {
        Statement { shape, parameters: Parameters::Arrays(self), rows_expected }
    }

    /// Appends the arrays as parameters, as in Bind.
    fn put(&self, shape: &Shape, out: &mut BytesMut) {
        out.put_u16(1);
        out.put_u16(1);
        out.put_u16(count(self.columns.len()));
        for (array, element) in self.columns.iter().zip(&shape.element_types) {
            array.put(*element, self.rows, out);
        }
    }

    /// Parameters, as in Bind, from arrays of one column each that differ in length.
    pub fn parameters(each: &[(Element, Arrays)]) -> Parameters {
        let mut out = BytesMut::with_capacity(each.iter().map(|(_, arrays)| arrays.byte_len()).sum());
        out.put_u16(1);
        out.put_u16(1);
        out.put_u16(count(each.len()));
        for (element, arrays) in each {
            arrays.columns.iter().for_each(|array| array.put(*element, arrays.rows, &mut out));
        }
        Parameters::Values(out)
    }
}

/// The rows of a set, one after another.
pub struct Walk<'a> {
    arrays: &'a Arrays,
    /// Where each column's next value begins.
    at: Vec<usize>,
    left: u32,
}

impl<'a> Walk<'a> {
    /// Puts the next row's values into `row`, each at its column's place in `places`; false at the
    /// end.
    pub fn next(&mut self, places: &[usize], row: &mut [Column<'a>]) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        let binary = self.arrays.binary;
        for ((array, at), &place) in self.arrays.columns.iter().zip(&mut self.at).zip(places) {
            let (length, rest) =
                array.elements[*at..].split_first_chunk::<4>().expect("as many values as rows");
            *at += 4;
            row[place] = match usize::try_from(i32::from_be_bytes(*length)) {
                Ok(length) => {
                    *at += length;
                    let value = &rest[..length];
                    if binary { Column::Binary(value) } else { Column::Text(value) }
                }
                Err(_) => Column::Null,
            };
        }
        true
    }
}

/// A set's rows in the format of COPY: binary if the values are binary, text if they are text.
pub struct CopyRows<'a> {
    arrays: &'a Arrays,
    walk: Walk<'a>,
    row: Vec<Column<'a>>,
    places: Vec<usize>,
    begun: bool,
}

impl<'a> CopyRows<'a> {
    /// Size of a message: few calls, little memory.
    const MESSAGE: usize = 64 * 1024;

    fn new(arrays: &'a Arrays) -> CopyRows<'a> {
        let places: Vec<usize> = (0..arrays.columns.len()).collect();
        let row = vec![Column::Unchanged; places.len()];
        CopyRows { arrays, walk: arrays.walk(), row, places, begun: false }
    }

    /// The next message; false if it is the last.
    pub fn put(&mut self, out: &mut BytesMut) -> bool {
        let (binary, start) = (self.arrays.binary, out.len());
        if binary && !self.begun {
            out.put_slice(b"PGCOPY\n\xff\r\n\0");
            // The header has no flags and no extension.
            out.put_u64(0);
        }
        self.begun = true;
        while out.len() - start < Self::MESSAGE {
            if !self.walk.next(&self.places, &mut self.row) {
                if binary {
                    out.put_i16(-1);
                }
                return false;
            }
            if binary { put_binary_row(&self.row, out) } else { put_text_row(&self.row, out) }
        }
        true
    }
}

fn put_binary_row(row: &[Column<'_>], out: &mut BytesMut) {
    out.put_u16(count(row.len()));
    for value in row {
        match value {
            Column::Text(bytes) | Column::Binary(bytes) => {
                out.put_u32(u32::try_from(bytes.len()).expect("a value is at most 1 GiB"));
                out.put_slice(bytes);
            }
            Column::Null | Column::Unchanged => out.put_i32(-1),
        }
    }
}

fn put_text_row(row: &[Column<'_>], out: &mut BytesMut) {
    for (number, value) in row.iter().enumerate() {
        if number > 0 {
            out.put_u8(b'\t');
        }
        match value {
            Column::Text(bytes) | Column::Binary(bytes) => put_escaped(bytes, out),
            Column::Null | Column::Unchanged => out.put_slice(b"\\N"),
        }
    }
    out.put_u8(b'\n');
}

fn put_escaped(mut bytes: &[u8], out: &mut BytesMut) {
    let special = |byte: &u8| matches!(byte, b'\\' | b'\t' | b'\n' | b'\r');
    while let Some(at) = bytes.iter().position(special) {
        out.put_slice(&bytes[..at]);
        let letter = match bytes[at] {
            b'\t' => b't',
            b'\n' => b'n',
            b'\r' => b'r',
            other => other,
        };
        out.put_slice(&[b'\\', letter]);
        bytes = &bytes[at + 1..];
    }
    out.put_slice(bytes);
}

/// Converts a number of parameters, which PostgreSQL counts in 16 bits. A table has at most 1,600
/// columns, and an UPDATE gives the key a second time.
fn count(parameters: usize) -> u16 {
    u16::try_from(parameters).expect("at most twice 1,600 parameters")
}

/// The statement of one change.
pub fn row_statement<'a>(
    shape: Arc<Shape>,
    values: impl Iterator<Item = Column<'a>> + Clone,
) -> Result<Statement, Misfit> {
    let mut parameters = BytesMut::new();
    let parameter_count = count(shape.parameter_types.len());
    parameters.put_u16(parameter_count);
    let mut filled = 0;
    for value in values.clone() {
        parameters.put_u16(u16::from(matches!(value, Column::Binary(_))));
        filled += 1;
    }
    if filled != parameter_count {
        return Err(Misfit);
    }
    parameters.put_u16(parameter_count);
    for value in values {
        match value {
            Column::Null => parameters.put_i32(-1),
            Column::Unchanged => return Err(Misfit),
            Column::Text(bytes) | Column::Binary(bytes) => {
                parameters.put_u32(u32::try_from(bytes.len()).expect("a value is at most 1 GiB"));
                parameters.put_slice(bytes);
            }
        }
    }
    Ok(Statement { shape, parameters: Parameters::Values(parameters), rows_expected: 1 })
}

/// A statement without parameters whose row count says nothing.
pub fn plain_statement(shape: Arc<Shape>) -> Statement {
    let mut parameters = BytesMut::with_capacity(4);
    parameters.put_u32(0);
    Statement { shape, parameters: Parameters::Values(parameters), rows_expected: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::sql::{Kind, Shapes};

    #[test]
    fn rows_come_back_as_they_were_pushed() {
        let mut arrays = Arrays::new(2, true);
        let rows = [[Column::Binary(b"ab"), Column::Null], [Column::Binary(b""), Column::Binary(b"c")]];
        rows.iter().for_each(|row| arrays.push(row.iter().copied()).unwrap());
        let mut walk = arrays.walk();
        let mut row = [Column::Unchanged; 3];
        for [first, second] in rows {
            assert!(walk.next(&[2, 0], &mut row));
            assert_eq!(row, [second, Column::Unchanged, first]);
        }
        assert!(!walk.next(&[2, 0], &mut row));
    }

    fn copied(arrays: &Arrays) -> Vec<u8> {
        let (mut rows, mut out) = (CopyRows::new(arrays), BytesMut::new());
        while rows.put(&mut out) {}
        out.to_vec()
    }

    #[test]
    fn rows_for_a_copy_have_the_layout_of_its_formats() {
        let mut arrays = Arrays::new(2, true);
        arrays.push([Column::Binary(b"ab"), Column::Null].into_iter()).unwrap();
        assert_eq!(
            copied(&arrays),
            b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x02ab\xff\xff\xff\xff\xff\xff"
        );
        let mut arrays = Arrays::new(2, false);
        arrays.push([Column::Text(b"a\tb\\N\r\n"), Column::Null].into_iter()).unwrap();
        arrays.push([Column::Text(b""), Column::Text(b"\\.")].into_iter()).unwrap();
        assert_eq!(copied(&arrays), b"a\\tb\\\\N\\r\\n\t\\N\n\t\\\\.\n");
    }

    #[test]
    fn a_copy_comes_in_messages() {
        let mut arrays = Arrays::new(1, false);
        let value = "x".repeat(CopyRows::MESSAGE / 4);
        (0..9).for_each(|_| arrays.push([Column::Text(value.as_bytes())].into_iter()).unwrap());
        let (mut rows, mut messages) = (CopyRows::new(&arrays), Vec::new());
        loop {
            let mut out = BytesMut::new();
            let more = rows.put(&mut out);
            messages.push(out.len() / value.len());
            if !more {
                break;
            }
        }
        assert_eq!(messages, [4, 4, 1]);
    }

    #[test]
    fn pieces_are_the_whole() {
        let mut arrays = Arrays::new(2, false);
        for id in 0..7 {
            let id = id.to_string();
            arrays.push([Column::Text(id.as_bytes()), Column::Null].into_iter()).unwrap();
        }
        let pieces = arrays.cut(3);
        assert_eq!(pieces.iter().map(Arrays::rows).collect::<Vec<_>>(), [3, 3, 1]);
        let mut ids = Vec::new();
        for piece in &pieces {
            let (mut walk, mut row) = (piece.walk(), [Column::Unchanged; 2]);
            while walk.next(&[0, 1], &mut row) {
                let [Column::Text(id), Column::Null] = row else { panic!("{row:?}") };
                ids.push(String::from_utf8_lossy(id).into_owned());
            }
        }
        assert_eq!(ids.join(""), "0123456");
    }

    #[test]
    fn arrays_have_the_layout_of_array_recv() {
        let mut arrays = Arrays::new(1, false);
        arrays.push([Column::Text(b"ab")].into_iter()).unwrap();
        arrays.push([Column::Null].into_iter()).unwrap();
        assert_eq!(arrays.push([Column::Binary(b"x")].into_iter()), Err(Misfit));
        assert_eq!(arrays.push(std::iter::empty()), Err(Misfit));
        let shape = Shapes::new().get(&fixtures::table(), false, Kind::SetDelete);
        let expected: &[u32] =
            &[0x0001_0001, 0x0001_0000, 0x001e_0000, 0x0001_0000, 0x0001_0000, 0x0019_0000];
        let bytes: Vec<u8> = expected.iter().flat_map(|word| word.to_be_bytes()).collect();
        let mut parameters = BytesMut::new();
        arrays.put(&shape, &mut parameters);
        assert_eq!(parameters.len(), arrays.byte_len());
        assert_eq!(&parameters[..bytes.len()], &bytes);
        assert_eq!(&parameters[bytes.len()..], b"\0\x02\0\0\0\x01\0\0\0\x02ab\xff\xff\xff\xff");
    }
}
