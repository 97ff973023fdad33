//! Which relation of the source each table was copied from.
//!
//! The target finds tables by name. On the source, a name may pass to another relation: DROP and
//! CREATE, a rename over it, a swap. Rows of one relation must not be applied to a copy of another.
//! So a table is identified by its name and the OID that it was copied from, which the stream's
//! relation messages carry.
//!
//! | name in the stream | OID in the stream | the change |
//! | --- | --- | --- |
//! | the table's | the table's | is the table's |
//! | the table's | another | no table's: the name was taken |
//! | another | the table's | no table's: the table has moved |
//! | another | another | another table's |
//!
//! Where a change is no table's, the table is left out before the change is passed over, and the
//! target records that durably. When the name comes back, the passed change is still missing. A
//! change that the copy's snapshot saw proves nothing, because the parting then came before the
//! copy.

use std::collections::HashMap;
use std::fmt;

use base::Oid;
use rustc_hash::FxHashMap;

use crate::since::TableKey;

/// Tables and the source relations that they were copied from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopiedFrom {
    oids: HashMap<TableKey, Oid>,
    keys: FxHashMap<Oid, TableKey>,
}

impl CopiedFrom {
    /// Notes that `table` was copied from `oid`.
    pub fn insert(&mut self, table: TableKey, oid: Oid) {
        self.remove(&table);
        self.keys.insert(oid, table.clone());
        self.oids.insert(table, oid);
    }

    /// The relation that `table` was copied from, if it is known.
    #[must_use]
    pub fn oid(&self, table: &TableKey) -> Option<Oid> {
        self.oids.get(table).copied()
    }

    /// The table that was copied from `oid`.
    #[must_use]
    pub fn table(&self, oid: Oid) -> Option<&TableKey> {
        self.keys.get(&oid)
    }

    /// Forgets `table`; returns its relation, if it was known.
    pub fn remove(&mut self, table: &TableKey) -> Option<Oid> {
        let oid = self.oids.remove(table)?;
        if self.keys.get(&oid) == Some(table) {
            self.keys.remove(&oid);
        }
        Some(oid)
    }
}

/// How a table's name and its source relation have parted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parting {
    /// Another relation has the table's name.
    Taken {
        /// The relation that was copied.
        was: Oid,
        /// The relation that has the name.
        now: Oid,
        /// The present name of the copied relation, if it is published.
        moved_to: Option<TableKey>,
    },
    /// The relation has another name, and no relation has the table's name.
    Moved {
        /// The relation that was copied.
        was: Oid,
        /// Its present name.
        to: TableKey,
    },
    /// The relation does not exist any more.
    Dropped {
        /// The relation that was copied.
        was: Oid,
    },
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parting::Taken { was, now, moved_to: None } => {
                write!(f, "the source has another table of this name (OID {now}) than was copied (OID {was})")
            }
            Parting::Taken { was, now, moved_to: Some(to) } => write!(
                f,
                "the source has another table of this name (OID {now}) than was copied (OID {was}), which is named \
                 \"{}.{}\" now",
                to.0, to.1
            ),
            Parting::Moved { was, to } => {
                write!(
                    f,
                    "on the source the table that was copied (OID {was}) is named \"{}.{}\" now",
                    to.0, to.1
                )
            }
            Parting::Dropped { was } => {
                write!(f, "the table that was copied (OID {was}) was dropped on the source")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> TableKey {
        ("public".to_owned(), name.to_owned())
    }

    #[test]
    fn tables_that_swap_their_relations_are_both_found() {
        let mut from = CopiedFrom::default();
        from.insert(key("a"), Oid(1));
        from.insert(key("b"), Oid(2));
        from.insert(key("a"), Oid(2));
        from.insert(key("b"), Oid(1));
        assert_eq!((from.oid(&key("a")), from.oid(&key("b"))), (Some(Oid(2)), Some(Oid(1))));
        assert_eq!((from.table(Oid(2)), from.table(Oid(1))), (Some(&key("a")), Some(&key("b"))));
        assert_eq!(from.remove(&key("a")), Some(Oid(2)));
        assert_eq!((from.table(Oid(2)), from.table(Oid(1))), (None, Some(&key("b"))));
        assert_eq!(from.remove(&key("a")), None);
    }
}
