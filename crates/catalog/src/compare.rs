//! Whether two catalogs say the same: one that was followed, and a fresh look. A periodic check of the follower.

use std::collections::{BTreeMap, BTreeSet};

use base::{Oid, Xid};

use crate::cell::Text;
use crate::pages::Tid;
use crate::rows::{Kind, Place, Row};
use crate::{Catalog, SHARED};

impl Catalog {
    /// What of the committed state differs: files and rows with their places, as sentences. Databases that only one of
    /// them follows are left out, and missing values are compared by whether they are there.
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
                differences.push(format!(
                    "the relation map of database {database}: {:?}, {:?}",
                    ours.map, theirs.map
                ));
            }
            let kinds = Kind::ALL.iter().filter(|kind| ours.current.contains_key(kind));
            for &kind in kinds {
                if enough(&differences) {
                    return differences;
                }
                if ours.current.get(&kind) != theirs.current.get(&kind) {
                    let files =
                        [ours, theirs].map(|space| space.current.get(&kind).map(|file| file.relfilenumber));
                    differences
                        .push(format!("the files of {} in database {database}: {files:?}", kind.name()));
                }
                // Nobody can look at them by SQL.
                if kind.place() != Place::Hidden {
                    self.compare_rows(other, database, kind, &mut differences);
                }
            }
        }
        differences
    }

    /// Whether other changes of catalogs wait for the end of transactions, or other files are theirs.
    #[must_use]
    pub fn differs_in_open_changes(&self, other: &Catalog) -> bool {
        !self.transactions.have_the_same_changes(&other.transactions)
    }

    fn compare_rows(&self, other: &Catalog, database: Oid, kind: Kind, differences: &mut Vec<String>) {
        let (ours, theirs) = (self.comparable(database, kind), other.comparable(database, kind));
        for (tid, row) in &ours {
            if theirs.get(tid) != Some(row) {
                differences.push(format!(
                    "{} ({},{}): {row:?} is not there",
                    kind.name(),
                    tid.block,
                    tid.offset
                ));
            }
        }
        for (tid, row) in &theirs {
            if ours.get(tid) != Some(row) {
                differences.push(format!(
                    "{} ({},{}): {row:?} was not followed",
                    kind.name(),
                    tid.block,
                    tid.offset
                ));
            }
        }
    }

    /// The committed rows of a catalog, without what depends on where they were read.
    fn comparable(&self, database: Oid, kind: Kind) -> BTreeMap<Tid, Row> {
        let view = self.view(database, Xid::INVALID);
        let same = |row: &Row| match row.clone() {
            Row::Attribute(mut row) => {
                row.missing = None;
                Row::Attribute(row)
            }
            Row::PublicationTable(mut row) => {
                if let (Some(Text::There(pointer)), Some(view)) = (&row.filter, &view) {
                    row.filter = view.detoast(pointer).map(Text::Here);
                }
                Row::PublicationTable(row)
            }
            row => row,
        };
        let table = self.table(database, kind, Xid::INVALID);
        let rows = table.into_iter().flat_map(|table| table.rows(Xid::INVALID));
        rows.map(|(tid, row)| (tid, same(row))).collect()
    }
}
