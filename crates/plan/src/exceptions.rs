//! Rows that are taken out of a set because they are not as the source had them.

use proto::pgoutput::{Columns, Tuple};
use rustc_hash::FxHashMap;
use txn::Op;

use crate::fold::Fold;
use crate::table::Table;

/// Something for each of some rows, by the id of the table and the key. No key changes, and equal
/// keys have equal bytes.
#[derive(Debug)]
pub struct RowKeys<T> {
    keys: FxHashMap<u64, FxHashMap<Box<[u8]>, T>>,
    /// The key that is looked for.
    looked_for: Fold,
}

impl<T> Default for RowKeys<T> {
    fn default() -> Self {
        RowKeys { keys: FxHashMap::default(), looked_for: Fold::default() }
    }
}

/// The key of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyBytes(Box<[u8]>);

impl KeyBytes {
    /// The values, as a row of key columns only.
    #[must_use]
    pub fn columns(&self) -> Columns<'_> {
        Tuple::walk(&self.0)
    }
}

/// Rows that were not as the source had them.
pub type Exceptions = RowKeys<()>;

impl Exceptions {
    /// Adds the key of an entry of a fold.
    pub fn add(&mut self, table: &Table, fold: &Fold, at: usize) {
        self.keys.entry(table.id).or_default().insert(fold.key_bytes(at).into(), ());
    }
}

impl<T> RowKeys<T> {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.values().all(FxHashMap::is_empty)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.values().map(FxHashMap::len).sum()
    }

    /// What there is for the row of `op`.
    pub fn get_mut(&mut self, table: &Table, op: &Op) -> Option<&mut T> {
        let keys = self.keys.get_mut(&table.id)?;
        keys.get_mut(self.looked_for.only_key_of(table, op)?)
    }

    /// Whether there is something for the row of `op`.
    pub fn has(&mut self, table: &Table, op: &Op) -> bool {
        self.get_mut(table, op).is_some()
    }

    /// Keeps it for the row of `op`, whose key is whole.
    pub fn insert(&mut self, table: &Table, op: &Op, value: T) {
        if let Some(key) = self.looked_for.only_key_of(table, op) {
            self.keys.entry(table.id).or_default().insert(key.into(), value);
        }
    }

    /// Takes out the rows of a table.
    pub fn take(&mut self, table: &Table) -> Vec<(KeyBytes, T)> {
        let keys = self.keys.remove(&table.id).into_iter().flatten();
        keys.map(|(key, value)| (KeyBytes(key), value)).collect()
    }

    /// Keeps something for a row of a table that was taken out of one of these.
    pub fn put(&mut self, table: &Table, key: KeyBytes, value: T) {
        self.keys.entry(table.id).or_default().insert(key.0, value);
    }

    /// Takes out the rows that are in `others`.
    pub fn remove_all<U>(&mut self, others: &RowKeys<U>) {
        for (table, keys) in &others.keys {
            if let Some(own) = self.keys.get_mut(table) {
                own.retain(|key, _| !keys.contains_key(key));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::pgoutput::{Column, OldTuple, Tuple};

    use super::*;
    use crate::fixtures;
    use crate::fold::Folded;

    fn tuple(id: &str, a: &str) -> Tuple {
        let columns = [Column::Text(id.as_bytes()), Column::Text(a.as_bytes()), Column::Null];
        columns.into_iter().collect()
    }

    #[test]
    fn every_change_of_a_row_is_an_exception_and_no_other() {
        let table = fixtures::table();
        let mut fold = Fold::new(true);
        for id in ["1", "12"] {
            assert_eq!(fold.add(&table, &Op::Insert(tuple(id, "x"))), Folded::Yes);
        }
        let mut exceptions = Exceptions::default();
        assert!(exceptions.is_empty());
        exceptions.add(&table, &fold, 1);
        let key_only = |id| OldTuple { key_only: true, tuple: tuple(id, "") };
        for (id, wanted) in [("12", true), ("1", false), ("2", false)] {
            assert_eq!(exceptions.has(&table, &Op::Insert(tuple(id, "x"))), wanted);
            assert_eq!(exceptions.has(&table, &Op::Update { old: None, new: tuple(id, "y") }), wanted);
            assert_eq!(exceptions.has(&table, &Op::Delete(key_only(id))), wanted);
        }
        assert_eq!(exceptions.len(), 1);
        let mut others: RowKeys<u32> = RowKeys::default();
        others.insert(&table, &Op::Insert(tuple("12", "x")), 7);
        assert_eq!(others.get_mut(&table, &Op::Delete(key_only("12"))), Some(&mut 7));
        exceptions.remove_all(&others);
        assert!(exceptions.is_empty());
        let mut taken = others.take(&table);
        assert!(others.is_empty());
        let (key, seven) = taken.pop().unwrap();
        assert_eq!((key.columns().collect::<Vec<_>>(), seven), (vec![Column::Text(b"12")], 7));
        others.put(&table, key, 8);
        assert_eq!(others.get_mut(&table, &Op::Insert(tuple("12", ""))), Some(&mut 8));
    }
}
