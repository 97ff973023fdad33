//! One row in pgoutput's form.
//!
//! Layout: a count of columns (u16), then for each column one byte of kind and, for values, a
//! length (u32) and the bytes. [`Tuple`] holds the part after the count. Invariant:
//! [`Tuple::split_from`] has walked the bytes once, or [`TupleBuilder`] has written them, so
//! [`Columns`] relies on them.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// One value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column<'a> {
    /// SQL NULL.
    Null,
    /// A TOAST value that the UPDATE did not change and the publisher did not send.
    Unchanged,
    /// In text form, in the connection's client encoding.
    Text(&'a [u8]),
    /// In the form of the type's send function.
    Binary(&'a [u8]),
}

/// A row: checked bytes, shared with the message they came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tuple {
    columns: Bytes,
    count: u16,
    has_unchanged: bool,
    has_binary: bool,
}

/// The columns of a [`Tuple`] in order.
#[derive(Debug, Clone)]
pub struct Columns<'a> {
    rest: &'a [u8],
}

impl Tuple {
    /// Takes one tuple off the front of `bytes`.
    pub(super) fn split_from(bytes: &mut Bytes) -> Result<Tuple, &'static str> {
        if bytes.len() < 2 {
            return Err("a tuple is cut short");
        }
        let count = bytes.get_u16();
        let (mut has_unchanged, mut has_binary) = (false, false);
        let mut length = 0;
        for _ in 0..count {
            match column_length(&bytes[length..]) {
                Ok(column) => {
                    has_unchanged |= bytes[length] == b'u';
                    has_binary |= bytes[length] == b'b';
                    length += column;
                }
                // Leaves `bytes` at the wrong column, so that the error can name it.
                Err(error) => {
                    bytes.advance(length);
                    return Err(error);
                }
            }
        }
        Ok(Tuple { columns: bytes.split_to(length), count, has_unchanged, has_binary })
    }

    /// Takes a tuple from the front of `bytes`, as [`Tuple::write`] wrote it.
    ///
    /// # Errors
    /// The text says what is wrong with the bytes.
    pub fn read(bytes: &mut Bytes) -> Result<Tuple, &'static str> {
        Tuple::split_from(bytes)
    }

    /// Appends the tuple in its form on the wire.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u16(self.count);
        out.put_slice(&self.columns);
    }

    /// The same row in memory of its own. Keeping it does not keep the message that it came in, nor
    /// the messages that were received with that one.
    #[must_use]
    pub fn detached(&self) -> Tuple {
        Tuple { columns: Bytes::copy_from_slice(&self.columns), ..*self }
    }

    /// The number of columns.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are no columns, which is possible for a table.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The size in bytes on the wire.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.columns.len()
    }

    /// The columns from the first to the last.
    #[must_use]
    pub fn columns(&self) -> Columns<'_> {
        Columns { rest: &self.columns }
    }

    /// Walks columns that were taken from a tuple, in a tuple's encoding.
    ///
    /// # Panics
    /// While walking, if `bytes` are something else.
    #[must_use]
    pub fn walk(bytes: &[u8]) -> Columns<'_> {
        Columns { rest: bytes }
    }

    /// Whether a TOAST value is missing.
    #[must_use]
    pub fn has_unchanged(&self) -> bool {
        self.has_unchanged
    }

    /// Whether a value is in binary form.
    #[must_use]
    pub fn has_binary(&self) -> bool {
        self.has_binary
    }
}

/// The length of the first column in `bytes`, including kind and length.
fn column_length(bytes: &[u8]) -> Result<usize, &'static str> {
    match bytes.first() {
        Some(b'n' | b'u') => Ok(1),
        Some(b't' | b'b') => {
            let length: [u8; 4] =
                bytes.get(1..5).and_then(|l| l.try_into().ok()).ok_or("a column's length is cut short")?;
            let end = 5 + u32::from_be_bytes(length) as usize;
            if end <= bytes.len() { Ok(end) } else { Err("a column is longer than its message") }
        }
        Some(_) => Err("a column is of an unknown kind"),
        None => Err("a tuple is cut short"),
    }
}

impl<'a> Iterator for Columns<'a> {
    type Item = Column<'a>;

    #[inline]
    fn next(&mut self) -> Option<Column<'a>> {
        let kind = *self.rest.first()?;
        if matches!(kind, b'n' | b'u') {
            self.rest = &self.rest[1..];
            return Some(if kind == b'n' { Column::Null } else { Column::Unchanged });
        }
        let length = u32::from_be_bytes(self.rest[1..5].try_into().expect("four bytes")) as usize;
        let (value, rest) = self.rest[5..].split_at(length);
        self.rest = rest;
        Some(if kind == b't' { Column::Text(value) } else { Column::Binary(value) })
    }
}

/// Writes a tuple column by column, for net effects and for tests.
#[derive(Debug, Default)]
pub struct TupleBuilder {
    columns: BytesMut,
    count: u16,
    has_unchanged: bool,
    has_binary: bool,
}

impl TupleBuilder {
    /// Adds one column. A value is at most 1 GiB, PostgreSQL's own limit.
    pub fn push(&mut self, column: Column<'_>) {
        let mut value = |kind: u8, bytes: &[u8]| {
            let length = u32::try_from(bytes.len()).expect("a value is at most 1 GiB");
            self.columns.put_u8(kind);
            self.columns.put_u32(length);
            self.columns.put_slice(bytes);
        };
        match column {
            Column::Null => self.columns.put_u8(b'n'),
            Column::Unchanged => self.columns.put_u8(b'u'),
            Column::Text(bytes) => value(b't', bytes),
            Column::Binary(bytes) => value(b'b', bytes),
        }
        self.has_unchanged |= column == Column::Unchanged;
        self.has_binary |= matches!(column, Column::Binary(_));
        self.count += 1;
    }

    /// The tuple.
    #[must_use]
    pub fn finish(self) -> Tuple {
        let TupleBuilder { columns, count, has_unchanged, has_binary } = self;
        Tuple { columns: columns.freeze(), count, has_unchanged, has_binary }
    }
}

impl<'a> FromIterator<Column<'a>> for Tuple {
    fn from_iter<I: IntoIterator<Item = Column<'a>>>(columns: I) -> Tuple {
        let mut builder = TupleBuilder::default();
        columns.into_iter().for_each(|column| builder.push(column));
        builder.finish()
    }
}
