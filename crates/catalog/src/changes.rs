//! Which answers become void when a transaction commits.
//!
//! | what changed | whose answers are void |
//! | --- | --- |
//! | a relation's row in `pg_class`, an index | the relation's |
//! | the same of a partitioned table, or its schema | all of the database: partitions are published as their parents |
//! | columns of a relation that was there before and after | all: other tables may have its rows as values |
//! | publications, inheritance, a schema's name, an enum's labels, a type that stays | all |
//! | a type or a schema that is new or gone | none: no relation that stays has it |

use std::collections::{BTreeMap, BTreeSet};

use base::Oid;

use crate::rows::CatalogRow;

/// Answers that no longer hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Relations, each with its database.
    pub relations: BTreeSet<(Oid, Oid)>,
    /// Databases whose answers are all void.
    pub databases: BTreeSet<Oid>,
    /// Whether names of replication origins are void.
    pub origins: bool,
}

impl Changes {
    /// Whether all answers hold.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.relations.is_empty() && self.databases.is_empty() && !self.origins
    }
}

/// Rows that one transaction added and removed.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// There was a row.
    pub(crate) is_something: bool,
    changes: Changes,
    /// The schema of each relation, before and after.
    before: BTreeMap<(Oid, Oid), Oid>,
    after: BTreeMap<(Oid, Oid), Oid>,
    columns: BTreeSet<(Oid, Oid)>,
    types_before: BTreeSet<(Oid, Oid)>,
    types_after: BTreeSet<(Oid, Oid)>,
}

impl Collected {
    /// Adds a row of a catalog of `database` that is now there, or is now gone.
    pub(crate) fn add(&mut self, database: Oid, row: &CatalogRow, deleted: bool) {
        self.is_something = true;
        match row {
            CatalogRow::Class(row) => {
                let side = if deleted { &mut self.before } else { &mut self.after };
                side.insert((database, row.oid), row.namespace);
                self.changes.relations.insert((database, row.oid));
                if row.kind == b'p' {
                    self.changes.databases.insert(database);
                }
            }
            CatalogRow::Attribute(row) => {
                self.columns.insert((database, row.relation));
            }
            CatalogRow::Index(row) => {
                self.changes.relations.insert((database, row.relation));
            }
            CatalogRow::Type(row) => {
                let side = if deleted { &mut self.types_before } else { &mut self.types_after };
                side.insert((database, row.oid));
            }
            CatalogRow::Namespace(_) if !deleted => {}
            CatalogRow::Namespace(_)
            | CatalogRow::Inherits(_)
            | CatalogRow::Enum(_)
            | CatalogRow::Publication(_)
            | CatalogRow::PublicationTable(_)
            | CatalogRow::PublicationSchema(_) => {
                self.changes.databases.insert(database);
            }
            CatalogRow::Origin(_) => self.changes.origins = true,
            // A range's row never changes, a filter's chunks come with the filter's own row, and
            // databases make no answers.
            CatalogRow::Range(_) | CatalogRow::FilterChunk(_) | CatalogRow::Database(_) => {}
        }
    }

    pub(crate) fn finish(mut self) -> Changes {
        let stays =
            |relation: &(Oid, Oid)| self.before.contains_key(relation) == self.after.contains_key(relation);
        let altered = self.columns.iter().filter(|relation| stays(relation)).map(|(database, _)| *database);
        self.changes.databases.extend(altered);
        let moved = self
            .before
            .iter()
            .filter(|(relation, schema)| self.after.get(relation).is_some_and(|after| after != *schema));
        self.changes.databases.extend(moved.map(|((database, _), _)| *database));
        let types = self.types_before.intersection(&self.types_after).map(|(database, _)| *database);
        self.changes.databases.extend(types);
        self.changes
    }
}
