//! Tables that have parted from their relations: other tables on the source have their names now.

use std::collections::BTreeMap;

use base::{Lsn, Oid};
use source::publication::{PublishedTable, TableName};
use state::{CopiedTable, Parting, TableKey};

/// A table that still takes part, although the last look saw that it has parted from its relation.
pub(super) struct Apart {
    /// The source's position when the look saw that.
    pub(super) since: Lsn,
    pub(super) why: Parting,
}

/// The name of a table that the target has recorded.
pub(super) fn key_of(table: &CopiedTable) -> TableKey {
    (table.schema.clone(), table.table.clone())
}

/// Returns the tables of `recorded` that have parted from their relations, by the published OIDs.
pub(super) fn parted(published: &[PublishedTable], recorded: &[CopiedTable]) -> BTreeMap<TableKey, Parting> {
    let by_name: BTreeMap<TableKey, Oid> =
        published.iter().map(|table| (key(&table.name), table.oid)).collect();
    let by_oid: BTreeMap<Oid, TableKey> =
        published.iter().map(|table| (table.oid, key(&table.name))).collect();
    let mut parted = BTreeMap::new();
    for table in recorded.iter().filter(|table| table.finished) {
        let (key, Some(was)) = (key_of(table), table.source_oid) else { continue };
        let moved_to = by_oid.get(&was).cloned();
        let why = match (by_name.get(&key), moved_to) {
            (Some(now), _) if *now == was => continue,
            (Some(now), moved_to) => Parting::Taken { was, now: *now, moved_to },
            (None, Some(to)) => Parting::Moved { was, to },
            // The table is not published any more.
            (None, None) => continue,
        };
        parted.insert(key, why);
    }
    parted
}

/// A published table's name, as the target's state has it.
pub(super) fn key(name: &TableName) -> TableKey {
    (name.schema.clone(), name.name.clone())
}
