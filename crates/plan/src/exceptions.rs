//! Rows that are taken out of a set because they are not as the source had them.

use rustc_hash::{FxHashMap, FxHashSet};
use txn::Op;

use crate::fold::Fold;
use crate::table::Table;

/// Keys of rows, by the ids of their tables.
#[derive(Debug, Default)]
pub struct Exceptions {
    keys: FxHashMap<u64, FxHashSet<Box<[u8]>>>,
    /// The key that is looked for.
    looked_for: Fold,
}

impl Exceptions {
    /// Adds the key of an entry of a fold.
    pub fn add(&mut self, table: &Table, fold: &Fold, at: usize) {
        self.keys.entry(table.id).or_default().insert(fold.key_bytes(at).into());
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.values().map(FxHashSet::len).sum()
    }

    /// Whether the row of `op` is one. No key changes.
    pub fn has(&mut self, table: &Table, op: &Op) -> bool {
        let Some(keys) = self.keys.get(&table.id) else { return false };
        self.looked_for.only_key_of(table, op).is_some_and(|key| keys.contains(key))
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
    }
}
