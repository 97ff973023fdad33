//! Compares two catalogs: one that was followed, and a fresh look. It is a periodic check of the
//! follower.

use std::collections::{BTreeMap, BTreeSet};

use base::{Oid, Xid};

use crate::cell::Text;
use crate::pages::Tid;
use crate::rows::{CatalogRow, Kind, Place, Publication};
use crate::{Catalog, SHARED};

impl Catalog {
    /// The differences in the committed state, as sentences: files, and rows with their places.
    /// Databases that only one catalog follows are left out. Missing values are compared only by
    /// whether they exist.
    #[must_use]
    pub fn differences(&self, other: &Catalog) -> Vec<String> {
        self.differences_until(other, |_| false)
    }

    /// The first of [`Catalog::differences`].
    #[must_use]
    pub fn difference(&self, other: &Catalog) -> Option<String> {
        self.differences_until(other, |found| !found.is_empty()).into_iter().next()
    }

    fn differences_until(&self, other: &Catalog, enough: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut differences = Vec::new();
        let both: BTreeSet<Oid> =
            self.spaces.keys().filter(|database| other.spaces.contains_key(database)).copied().collect();
        for database in both {
            let (ours, theirs) = (&self.spaces[&database], &other.spaces[&database]);
            if database != SHARED && ours.map != theirs.map {
                differences.push(format!("the relation map of database \"{}\"", theirs.name));
            }
            let kinds = Kind::ALL.iter().filter(|kind| ours.current.contains_key(kind));
            for &kind in kinds {
                if enough(&differences) {
                    return differences;
                }
                if ours.current.get(&kind) != theirs.current.get(&kind) {
                    let [own, found] = [ours, theirs].map(|space| match space.current.get(&kind) {
                        Some(file) => file.relfilenumber.to_string(),
                        None => "none".to_owned(),
                    });
                    let (catalog, database) = (kind.name(), &theirs.name);
                    differences.push(format!(
                        "the files of {catalog} in database \"{database}\": followed {own}, found {found}"
                    ));
                }
                // SQL cannot read hidden catalogs.
                if kind.place() != Place::Hidden {
                    self.compare_rows(other, database, kind, &mut differences);
                }
            }
        }
        differences
    }

    /// Whether different changes of catalogs wait for the end of transactions, or transactions have
    /// different files of their own.
    #[must_use]
    pub fn differs_in_open_changes(&self, other: &Catalog) -> bool {
        !self.transactions.have_the_same_changes(&other.transactions)
    }

    fn compare_rows(&self, other: &Catalog, database: Oid, kind: Kind, differences: &mut Vec<String>) {
        let (ours, theirs) = (self.comparable(database, kind), other.comparable(database, kind));
        for (tid, row) in &ours {
            if theirs.get(tid) != Some(row) {
                differences.push(format!("{} is not there", self.named(database, *tid, row)));
            }
        }
        for (tid, row) in &theirs {
            if ours.get(tid) != Some(row) {
                differences.push(format!("{} was not followed", other.named(database, *tid, row)));
            }
        }
    }

    /// Names a row of a catalog by its place, and by the names of the objects it is about.
    fn named(&self, database: Oid, tid: Tid, row: &CatalogRow) -> String {
        let view = self.view(database, Xid::INVALID);
        let view = view.as_ref();
        let relation = |oid: Oid| {
            let class = view.and_then(|view| view.class(oid));
            let schema = class.and_then(|class| view?.schema(class.namespace));
            match class {
                Some(class) => format!("relation {}.{}", schema.unwrap_or("?"), class.name),
                None => format!("relation {oid}, which has no name,"),
            }
        };
        let type_of = |oid: Oid| match view.and_then(|view| view.type_name(oid)) {
            Some((schema, name)) => format!("type {schema}.{name}"),
            None => format!("type {oid}, which has no name,"),
        };
        let publication = |oid: Oid| match view.and_then(|view| view.find::<Publication>(0, oid).next()) {
            Some(row) => format!("publication \"{}\"", row.name),
            None => format!("publication {oid}, which has no name,"),
        };
        let (catalog, what) = match row {
            CatalogRow::Class(row) => (Kind::Class, format!("relation \"{}\"", row.name)),
            CatalogRow::Attribute(row) => {
                (Kind::Attribute, format!("column \"{}\" of {}", row.name, relation(row.relation)))
            }
            CatalogRow::Type(row) => (Kind::Type, format!("type \"{}\"", row.name)),
            CatalogRow::Namespace(row) => (Kind::Namespace, format!("schema \"{}\"", row.name)),
            CatalogRow::Index(row) => (Kind::Index, format!("index {}", relation(row.index))),
            CatalogRow::Inherits(row) => (Kind::Inherits, format!("{} as a child", relation(row.child))),
            CatalogRow::Enum(row) => {
                (Kind::Enum, format!("label \"{}\" of {}", row.label, type_of(row.type_oid)))
            }
            CatalogRow::Range(row) => (Kind::Range, type_of(row.range)),
            CatalogRow::Publication(row) => (Kind::Publication, format!("publication \"{}\"", row.name)),
            CatalogRow::PublicationTable(row) => {
                let (table, of) = (relation(row.relation), publication(row.publication));
                (Kind::PublicationTable, format!("{table} in {of}"))
            }
            CatalogRow::PublicationSchema(row) => (Kind::PublicationSchema, publication(row.publication)),
            CatalogRow::FilterChunk(_) => (Kind::FilterChunk, "a part of a row filter".to_owned()),
            CatalogRow::Database(row) => (Kind::Database, format!("database \"{}\"", row.name)),
            CatalogRow::Origin(row) => (Kind::Origin, format!("replication origin {}", row.id)),
        };
        format!("{} ({},{}): {what}", catalog.name(), tid.block, tid.offset)
    }

    /// The committed rows of a catalog, without what depends on where they were read.
    fn comparable(&self, database: Oid, kind: Kind) -> BTreeMap<Tid, CatalogRow> {
        let view = self.view(database, Xid::INVALID);
        let same = |row: &CatalogRow| match row.clone() {
            CatalogRow::Attribute(mut row) => {
                row.missing = None;
                CatalogRow::Attribute(row)
            }
            CatalogRow::PublicationTable(mut row) => {
                if let (Some(Text::There(pointer)), Some(view)) = (&row.filter, &view) {
                    row.filter = view.detoast(pointer).map(Text::Here);
                }
                CatalogRow::PublicationTable(row)
            }
            row => row,
        };
        let table = self.table(database, kind, Xid::INVALID);
        let rows = table.into_iter().flat_map(|table| table.rows(Xid::INVALID));
        rows.map(|(tid, row)| (tid, same(row))).collect()
    }
}
