//! Large values on their way to the row that they belong to.
//!
//! The server writes a value that does not fit into its row as chunks into a TOAST table, just before the row, and a
//! pointer into the row. So the chunks that a transaction has written since its last row are those of its next one (of
//! the next several, for rows that one command inserts together). A pointer to a value that is not among them points
//! to what was there before: the value did not change, and nothing in WAL says what it is.

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
    /// How many chunks there are.
    count: u32,
    bytes: Vec<u8>,
}

impl Chunks {
    /// The value that `pointer`, found in the row, points to, compressed if that is how it is stored. `None` when it
    /// did not change with this row.
    ///
    /// # Errors
    /// When its chunks are not as long as the pointer says.
    pub fn value(&self, pointer: &ToastPointer) -> types::Result<Option<Varlena<'_>>> {
        self.values.get(&pointer.value).map(|value| pointer.assemble(&value.bytes)).transpose()
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Takes the next chunk of a value. False when it is not the next one.
    pub(crate) fn add(&mut self, value: Oid, number: u32, bytes: &[u8]) -> bool {
        let value = self.values.entry(value).or_default();
        if value.count != number {
            return false;
        }
        value.count += 1;
        value.bytes.extend_from_slice(bytes);
        true
    }

    /// The row is done.
    pub(crate) fn clear(&mut self) {
        if !self.values.is_empty() {
            self.values.clear();
        }
    }
}
