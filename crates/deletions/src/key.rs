//! The key of a row: two rows have the same key exactly if PostgreSQL says that their identities
//! are equal.
//!
//! A deletion is captured from WAL, and an UPDATE that asks for it comes from another server, as
//! text or in binary. Both must lead to the same bytes, so a value is put into one *canonical*
//! form, whatever form it came in. [`Equality`] knows the form of each type, and refuses the types
//! whose equality is not known here.
//!
//! ```text
//! u32  the OID of the table, of the topmost one for a partition
//! u8   what follows: 0 the identity, 1 a hash of it, 2 a table that was emptied, 3 nothing: a row
//!      that nobody could name
//! for each identity column, in the order of the table's columns:
//!   u8      0 NULL, 1 a value
//!   varint  length of the canonical bytes, and the bytes
//! ```
//!
//! An identity that would exceed the store's limit is hashed to 128 bits, and so is the whole row
//! of REPLICA IDENTITY FULL. What was hashed is kept beside it as the *witness*, so that rows of
//! equal hash are told apart.
//!
//! It does not belong here which columns are a table's identity, and how its catalogs describe
//! them.

mod array;
mod canonical;
mod equality;
mod moment;
mod network;
mod number;
mod value;
mod words;

use base::Oid;
use sha2::{Digest, Sha256};
use store::KEY_BYTES_MAX;

pub use equality::{ColumnType, Equality, Shape, UnknownEquality};
pub use value::{Malformed, Value};

/// Bytes of a SHA-256 that stand for an identity: 128 bits.
const HASH_BYTES: usize = 16;
/// Length of what every key begins with: the table and what follows.
const HEAD_BYTES: usize = 5;
/// A longer witness is replaced by its SHA-256, so that a tombstone fits a value of the store.
const WITNESS_BYTES_MAX: usize = 64 << 10;

/// What stands behind the table in a key.
mod tag {
    pub(super) const IDENTITY: u8 = 0;
    pub(super) const HASH: u8 = 1;
    pub(super) const TABLE: u8 = 2;
    pub(super) const UNNAMED: u8 = 3;
}

/// The key of a row or of an emptied table. It may be written again, and keeps its memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RowKey {
    bytes: Vec<u8>,
    /// What was hashed; empty where the bytes say everything.
    witness: Vec<u8>,
}

/// How the keys of one table's rows are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    columns: Vec<Equality>,
    is_whole_row: bool,
}

impl Identity {
    /// The identity that these columns are, in the order of the table's columns. `is_whole_row`
    /// says that these are all columns, because no fewer identify a row.
    #[must_use]
    pub fn new(columns: Vec<Equality>, is_whole_row: bool) -> Identity {
        Identity { columns, is_whole_row }
    }

    /// How many values [`Identity::write`] takes.
    #[must_use]
    pub fn column_count(&self) -> usize {
        self.columns.len()
    }

    /// Makes `key` the key of the row of `table` that has these values in its identity columns.
    /// For a partition, `table` is the topmost table above it.
    ///
    /// # Errors
    /// A value is none of its type. The key is then of no use.
    ///
    /// # Panics
    /// There are more or fewer values than columns.
    pub fn write<'v>(
        &self,
        table: Oid,
        values: impl IntoIterator<Item = Value<'v>>,
        key: &mut RowKey,
    ) -> Result<(), Malformed> {
        key.begin(table, tag::IDENTITY);
        let mut values = values.into_iter();
        for column in &self.columns {
            let value = values.next().expect("there is a value for each column");
            canonical::field(column, value, &mut key.bytes)?;
        }
        assert!(values.next().is_none(), "there is a column for each value");
        if self.is_whole_row || key.bytes.len() > KEY_BYTES_MAX {
            key.hash();
        }
        Ok(())
    }
}

impl RowKey {
    /// The key under which it is remembered that `relation` was emptied. It is `table` itself, or
    /// a partition below it.
    #[must_use]
    pub fn of_emptied(table: Oid, relation: Oid) -> RowKey {
        let mut key = RowKey::default();
        key.begin(table, tag::TABLE);
        key.bytes.extend_from_slice(&relation.0.to_be_bytes());
        key
    }

    /// The key under which it is remembered that rows of `table` were deleted whose identity is not
    /// known.
    #[must_use]
    pub fn of_unnamed(table: Oid) -> RowKey {
        let mut key = RowKey::default();
        key.begin(table, tag::UNNAMED);
        key
    }

    /// The topmost table.
    #[must_use]
    pub fn table(&self) -> Oid {
        let table = self.bytes.first_chunk().copied().unwrap_or_default();
        Oid(u32::from_be_bytes(table))
    }

    /// The key's bytes, at most [`KEY_BYTES_MAX`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What tells rows of equal hash apart; empty where the bytes say everything.
    #[must_use]
    pub fn witness(&self) -> &[u8] {
        &self.witness
    }

    fn begin(&mut self, table: Oid, tag: u8) {
        self.witness.clear();
        self.bytes.clear();
        self.bytes.extend_from_slice(&table.0.to_be_bytes());
        self.bytes.push(tag);
    }

    fn hash(&mut self) {
        let digest = Sha256::digest(&self.bytes[HEAD_BYTES..]);
        if self.bytes.len() - HEAD_BYTES <= WITNESS_BYTES_MAX {
            self.witness.extend_from_slice(&self.bytes[HEAD_BYTES..]);
        } else {
            self.witness.extend_from_slice(&digest);
        }
        self.bytes.truncate(HEAD_BYTES);
        self.bytes[HEAD_BYTES - 1] = tag::HASH;
        self.bytes.extend_from_slice(&digest[..HASH_BYTES]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(identity: &Identity, values: &[Value<'_>]) -> RowKey {
        let mut key = RowKey::default();
        identity.write(Oid(16400), values.iter().copied(), &mut key).unwrap();
        key
    }

    #[test]
    fn columns_do_not_run_into_one_another() {
        let identity = Identity::new(vec![Equality::Text, Equality::Text], false);
        let keys = [
            [Value::Text(b"ab"), Value::Text(b"c")],
            [Value::Text(b"a"), Value::Text(b"bc")],
            [Value::Null, Value::Text(b"abc")],
            [Value::Text(b""), Value::Text(b"abc")],
            [Value::Text(b"abc"), Value::Null],
        ];
        let keys = keys.map(|values| key(&identity, &values).bytes);
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[at + 1..].iter().all(|other| one != other), "{keys:?}");
        }
    }

    #[test]
    fn an_integer_takes_few_bytes() {
        let identity = Identity::new(vec![Equality::Integer(8)], false);
        let key = key(&identity, &[Value::Text(b"123456789")]);
        assert_eq!((key.bytes.len(), key.witness.len(), key.table()), (15, 0, Oid(16400)));
    }

    #[test]
    fn a_long_identity_is_hashed_and_has_a_witness() {
        let identity = Identity::new(vec![Equality::Text], false);
        let (short, long) = (vec![b'x'; 700], vec![b'x'; 800]);
        assert!(key(&identity, &[Value::Text(&short)]).witness.is_empty());
        let hashed = key(&identity, &[Value::Text(&long)]);
        assert_eq!((hashed.bytes.len(), hashed.witness.len()), (21, 803));
        let huge = vec![b'x'; 1 << 20];
        assert_eq!(key(&identity, &[Value::Binary(&huge)]).witness.len(), 32);
        let mut again = hashed.clone();
        identity.write(Oid(16400), [Value::Text(&short)], &mut again).unwrap();
        assert_eq!(
            again,
            key(&identity, &[Value::Text(&short)]),
            "a key that is written again is another one"
        );
    }

    #[test]
    fn a_whole_row_is_hashed_however_short_it_is() {
        let columns = || vec![Equality::Integer(4), Equality::Text];
        let values = [Value::Text(b"1"), Value::Null];
        let whole = key(&Identity::new(columns(), true), &values);
        let part = key(&Identity::new(columns(), false), &values);
        assert_eq!(whole.witness, part.bytes[HEAD_BYTES..]);
        assert_ne!(whole.bytes, part.bytes);
    }

    #[test]
    fn an_emptied_table_is_no_row() {
        let (table, partition) = (RowKey::of_emptied(Oid(1), Oid(1)), RowKey::of_emptied(Oid(1), Oid(2)));
        assert_ne!(table, partition);
        assert_eq!((table.table(), partition.table()), (Oid(1), Oid(1)));
    }
}
