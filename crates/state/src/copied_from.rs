//! Which relation of the source each table was copied from.
//!
//! Tables are found by name on the target, but on the source a name may pass
//! to another relation: DROP and CREATE, a rename over it, a swap. Rows of the
//! one must not be applied to a copy of the other, so a table is its name and
//! the OID that it was copied from, which the stream's relation messages carry.
//!
//! | name in the stream | OID in the stream | the change |
//! | --- | --- | --- |
//! | the table's | the table's | is the table's |
//! | the table's | another | nobody's: the name was taken |
//! | another | the table's | nobody's: the table has moved |
//! | another | another | another table's |
//!
//! Where a change is nobody's, the table is left out before it is passed over,
//! and the target says so durably: when the name comes back, what was passed
//! over is missing all the same. A change that the copy's snapshot had seen
//! says nothing: the parting lies before the copy.

use std::collections::HashMap;
use std::fmt;

use base::Oid;
use rustc_hash::FxHashMap;

use crate::since::TableKey;

/// Tables and the relations of the source that they were copied from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopiedFrom {
    oids: HashMap<TableKey, Oid>,
    keys: FxHashMap<Oid, TableKey>,
}

impl CopiedFrom {
    /// `table` was copied from `oid`.
    pub fn insert(&mut self, table: TableKey, oid: Oid) {
        self.remove(&table);
        self.keys.insert(oid, table.clone());
        self.oids.insert(table, oid);
    }

    /// What `table` was copied from, if that is known.
    #[must_use]
    pub fn oid(&self, table: &TableKey) -> Option<Oid> {
        self.oids.get(table).copied()
    }

    /// The table that was copied from `oid`.
    #[must_use]
    pub fn table(&self, oid: Oid) -> Option<&TableKey> {
        self.keys.get(&oid)
    }

    /// Nothing is known of `table` any more; what was.
    pub fn remove(&mut self, table: &TableKey) -> Option<Oid> {
        let oid = self.oids.remove(table)?;
        if self.keys.get(&oid) == Some(table) {
            self.keys.remove(&oid);
        }
        Some(oid)
    }
}

/// How a table's name and the relation that it was copied from have parted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parting {
    /// Another relation has its name.
    Taken {
        /// What was copied.
        was: Oid,
        /// What has the name.
        now: Oid,
        /// What was copied has this name now, if it is published.
        moved_to: Option<TableKey>,
    },
    /// It has another name, and none has its own.
    Moved {
        /// What was copied.
        was: Oid,
        /// Its name.
        to: TableKey,
    },
    /// It does not exist any more.
    Dropped {
        /// What was copied.
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
