//! Large values on their way to their row.
//!
//! The server writes a value that does not fit into its row as chunks into a TOAST table, just
//! before the row. The row gets a pointer. So the chunks since a transaction's last row belong to
//! its next row, or to the next several rows if one command inserts them together. A pointer to a
//! value that is not among these chunks points to an older value. That value did not change, and
//! WAL does not contain it.

use base::Oid;
use rustc_hash::FxHashMap;
use types::{ToastPointer, Varlena};

/// The large values that came with a row.
#[derive(Debug, Default)]
pub struct Chunks {
    values: FxHashMap<Oid, Value>,
}

#[derive(Debug, Default)]
struct Value {
    /// The number of chunks.
    count: u32,
    bytes: Vec<u8>,
}

impl Chunks {
    /// Returns the value that `pointer` in the row points to, in its stored form, compressed or
    /// not. `None` if the value did not change with this row.
    ///
    /// # Errors
    /// The chunks do not have the length that the pointer names.
    pub fn value(&self, pointer: &ToastPointer) -> types::Result<Option<Varlena<'_>>> {
        self.values.get(&pointer.value).map(|value| pointer.assemble(&value.bytes)).transpose()
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Takes the next chunk of a value. Returns false if it is not the next one.
    pub(crate) fn add(&mut self, value: Oid, number: u32, bytes: &[u8]) -> bool {
        let value = self.values.entry(value).or_default();
        if value.count != number {
            return false;
        }
        value.count += 1;
        value.bytes.extend_from_slice(bytes);
        true
    }

    /// Ends the row.
    pub(crate) fn clear(&mut self) {
        if !self.values.is_empty() {
            self.values.clear();
        }
    }
}
