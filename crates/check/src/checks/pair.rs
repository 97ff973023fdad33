//! A published table beside the target's.

use source::publication::{PublishedTable, TableName};

use crate::publisher::{Publisher, SourceTable};
use crate::subscriber::{Subscriber, TargetTable};

/// A published table and the target's of the same name.
pub(super) struct Pair<'a> {
    pub(super) name: &'a TableName,
    pub(super) publisher: &'a Publisher,
    pub(super) source: &'a SourceTable,
    pub(super) target: &'a TargetTable,
}

impl Pair<'_> {
    pub(super) fn published(&self) -> &PublishedTable {
        &self.source.published
    }

    /// `table public.t`
    pub(super) fn object(&self) -> String {
        format!("table {}", self.name)
    }

    /// `column a of table public.t`
    pub(super) fn column(&self, column: &str) -> String {
        format!("column {column} of table {}", self.name)
    }
}

/// The published tables that the target has.
pub(super) fn pairs<'a>(
    source: Option<&'a Publisher>,
    target: Option<&'a Subscriber>,
) -> impl Iterator<Item = Pair<'a>> {
    source.zip(target).into_iter().flat_map(|(publisher, target)| {
        publisher.tables.iter().filter_map(move |source| {
            let name = &source.published.name;
            Some(Pair { name, publisher, source, target: target.tables.get(name)? })
        })
    })
}
