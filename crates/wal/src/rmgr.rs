//! Resource managers, to which records belong. Their numbers are the same in 14 to 18
//! (`access/rmgrlist.h`).

use std::fmt;

/// A resource manager, with its name in `pg_waldump`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are PostgreSQL's names")]
pub enum Rmgr {
    Xlog,
    Transaction,
    Storage,
    Clog,
    Database,
    Tablespace,
    MultiXact,
    RelMap,
    Standby,
    Heap2,
    Heap,
    Btree,
    Hash,
    Gin,
    Gist,
    Sequence,
    SpGist,
    Brin,
    CommitTs,
    ReplicationOrigin,
    Generic,
    LogicalMessage,
    /// An extension's, by its number (128 to 255).
    Custom(u8),
}

/// In the order of their numbers.
const BUILTIN: [(Rmgr, &str); 22] = [
    (Rmgr::Xlog, "XLOG"),
    (Rmgr::Transaction, "Transaction"),
    (Rmgr::Storage, "Storage"),
    (Rmgr::Clog, "CLOG"),
    (Rmgr::Database, "Database"),
    (Rmgr::Tablespace, "Tablespace"),
    (Rmgr::MultiXact, "MultiXact"),
    (Rmgr::RelMap, "RelMap"),
    (Rmgr::Standby, "Standby"),
    (Rmgr::Heap2, "Heap2"),
    (Rmgr::Heap, "Heap"),
    (Rmgr::Btree, "Btree"),
    (Rmgr::Hash, "Hash"),
    (Rmgr::Gin, "Gin"),
    (Rmgr::Gist, "Gist"),
    (Rmgr::Sequence, "Sequence"),
    (Rmgr::SpGist, "SPGist"),
    (Rmgr::Brin, "BRIN"),
    (Rmgr::CommitTs, "CommitTs"),
    (Rmgr::ReplicationOrigin, "ReplicationOrigin"),
    (Rmgr::Generic, "Generic"),
    (Rmgr::LogicalMessage, "LogicalMessage"),
];

/// `RM_MIN_CUSTOM_ID`.
const CUSTOM_FIRST: u8 = 128;

impl Rmgr {
    /// The resource manager with this number. `custom` says whether extensions may have some.
    pub(crate) fn of_id(id: u8, custom: bool) -> Option<Rmgr> {
        match BUILTIN.get(usize::from(id)) {
            Some((rmgr, _)) => Some(*rmgr),
            None if custom && id >= CUSTOM_FIRST => Some(Rmgr::Custom(id)),
            None => None,
        }
    }
}

impl fmt::Display for Rmgr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rmgr::Custom(id) => write!(f, "custom{id:03}"),
            rmgr => f.write_str(BUILTIN.iter().find(|(known, _)| known == rmgr).map_or("", |(_, name)| name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_list_are_an_extensions_or_nobodys() {
        assert_eq!(Rmgr::of_id(10, false), Some(Rmgr::Heap));
        assert_eq!(Rmgr::of_id(21, true).map(|rmgr| rmgr.to_string()).as_deref(), Some("LogicalMessage"));
        assert_eq!(Rmgr::of_id(22, true), None);
        assert_eq!(Rmgr::of_id(128, false), None);
        assert_eq!(Rmgr::of_id(128, true).map(|rmgr| rmgr.to_string()).as_deref(), Some("custom128"));
    }
}
