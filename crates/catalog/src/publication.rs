//! Whether and how a relation is published: `get_rel_sync_entry` of pgoutput, without its cache.
//!
//! A publication publishes a relation by itself, by its schema, by an ancestor that it is a
//! partition of, or because it is for all tables. With `publish_via_partition_root`, it publishes
//! the relation as that ancestor. Of several publications, those with the topmost ancestor decide
//! about columns and filters. The actions of all of them count.

use base::Oid;
use wal::Actions;

use crate::cell::Text;
use crate::error::{Error, Kind, Result};
use crate::rows::{Class, Inherits, Publication, PublicationSchema, PublicationTable};
use crate::view::View;

/// How a relation is published by a set of publications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The relation that its changes are sent as: itself, or a partitioned table above it.
    pub as_relation: Oid,
    /// The actions that are published.
    pub actions: Actions,
    /// The numbers of the published columns of `as_relation`, in their order.
    pub columns: Vec<i16>,
    /// The filters that decide which rows are published.
    pub filters: Filters,
}

/// Row filters by action. A row is published if one of them keeps it. `None` keeps every row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    /// For inserts; each is a `pg_node_tree`.
    pub insert: Option<Vec<String>>,
    /// For updates.
    pub update: Option<Vec<String>>,
    /// For deletes.
    pub delete: Option<Vec<String>>,
}

const PARTITIONED: u8 = b'p';
const TABLE: u8 = b'r';
const PERMANENT: u8 = b'p';

impl Publication {
    fn actions(&self) -> Actions {
        let pairs = [
            (self.insert, Actions::INSERT),
            (self.update, Actions::UPDATE),
            (self.delete, Actions::DELETE),
            (self.truncate, Actions::TRUNCATE),
        ];
        pairs.iter().filter(|(is_on, _)| *is_on).fold(Actions::NONE, |all, (_, action)| all | *action)
    }
}

/// How one publication publishes a relation.
struct PublishedThrough {
    level: usize,
    relation: Oid,
}

impl<'a> View<'a> {
    /// The publication of this name.
    fn publication(&self, name: &str) -> Option<&'a Publication> {
        self.all::<Publication>().find(|row| row.name == name)
    }

    /// The names of all publications, sorted.
    #[must_use]
    pub fn publications(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = self.all::<Publication>().map(|row| row.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// How a relation is published by those of these publications that exist. `None` if none of
    /// them publishes it.
    ///
    /// # Errors
    /// The publications name different columns, where pgoutput has an error too. Or a filter cannot
    /// be read.
    pub fn published(&self, publications: &[&str], relation: Oid) -> Result<Option<Published>> {
        let Some(class) = self.class(relation) else { return Ok(None) };
        if relation < Oid::FIRST_NORMAL
            || ![TABLE, PARTITIONED].contains(&class.kind)
            || class.persistence != PERMANENT
            || class.rewrite != Oid(0)
        {
            return Ok(None);
        }
        let ancestors = self.ancestors(class);
        let mut actions = Actions::NONE;
        let mut best: Option<(PublishedThrough, Vec<&Publication>)> = None;
        for publication in publications.iter().filter_map(|name| self.publication(name)) {
            let Some(way) = self.way(publication, class, &ancestors) else { continue };
            actions = actions | publication.actions();
            match &mut best {
                Some((before, _)) if before.level > way.level => {}
                Some((before, rows)) if before.level == way.level => rows.push(publication),
                _ => best = Some((way, vec![publication])),
            }
        }
        let Some((way, rows)) = best else { return Ok(None) };
        let Some(target) = self.class(way.relation) else { return Ok(None) };
        let columns = self.published_columns(target, &rows)?;
        let filters = self.filters(target, &rows)?;
        Ok(Some(Published { as_relation: target.oid, actions, columns, filters }))
    }

    /// The partitioned tables above a partition, the nearest first.
    fn ancestors(&self, class: &Class) -> Vec<Oid> {
        let mut ancestors = Vec::new();
        let mut next = class.is_partition.then_some(class.oid);
        while let Some(child) = next {
            // A partition that is being detached concurrently has no ancestors any more.
            let parent = self.find::<Inherits>(0, child).find(|row| !row.is_detached).map(|row| row.parent);
            // Only a broken catalog could have a cycle.
            let parent = parent.filter(|parent| !ancestors.contains(parent));
            ancestors.extend(parent);
            next = parent.filter(|parent| self.class(*parent).is_some_and(|row| row.is_partition));
        }
        ancestors
    }

    fn names_table(&self, publication: &Publication, relation: Oid) -> Option<&'a PublicationTable> {
        self.find::<PublicationTable>(0, relation).find(|row| row.publication == publication.oid)
    }

    fn names_schema(&self, publication: &Publication, class: &Class) -> bool {
        let mut rows = self.find::<PublicationSchema>(0, class.namespace);
        rows.any(|row| row.publication == publication.oid)
    }

    /// Whether a publication names a relation itself, or its schema.
    fn names(&self, publication: &Publication, relation: Oid) -> bool {
        let by_schema = || self.class(relation).is_some_and(|class| self.names_schema(publication, class));
        self.names_table(publication, relation).is_some() || by_schema()
    }

    fn way(&self, publication: &Publication, class: &Class, ancestors: &[Oid]) -> Option<PublishedThrough> {
        let named = |(_, ancestor): &(usize, &Oid)| self.names(publication, **ancestor);
        let level =
            |(index, relation): (usize, &Oid)| PublishedThrough { level: index + 1, relation: *relation };
        let highest = || ancestors.iter().enumerate().rfind(named).map(level);
        let above = if publication.all_tables {
            ancestors.iter().enumerate().next_back().map(level)
        } else {
            highest()
        };
        let published = publication.all_tables || above.is_some() || self.names(publication, class.oid);
        if !published || (class.kind == PARTITIONED && !publication.via_root) {
            return None;
        }
        let itself = PublishedThrough { level: 0, relation: class.oid };
        Some(if publication.via_root { above.unwrap_or(itself) } else { itself })
    }

    /// The row that restricts what a publication publishes of a table, if there is one.
    fn restriction(&self, publication: &Publication, target: &Class) -> Option<&'a PublicationTable> {
        if publication.all_tables || self.names_schema(publication, target) {
            return None;
        }
        self.names_table(publication, target.oid)
    }

    fn published_columns(&self, target: &Class, publications: &[&Publication]) -> Result<Vec<i16>> {
        let mut found: Option<Vec<i16>> = None;
        for publication in publications {
            let columns = self.columns_by(target, publication);
            if found.as_ref().is_some_and(|before| *before != columns) {
                let what = "they publish different columns, which pgoutput refuses too".to_owned();
                return Err(self.contradiction(target, what));
            }
            found = Some(columns);
        }
        Ok(found.unwrap_or_default())
    }

    fn columns_by(&self, target: &Class, publication: &Publication) -> Vec<i16> {
        let listed = self.restriction(publication, target).and_then(|row| row.columns.as_ref());
        let stored = publication.generated == Some(b's');
        let is_sent = |row: &&crate::rows::Attribute| match listed {
            _ if row.is_dropped => false,
            Some(listed) => listed.0.contains(&row.number),
            None => row.generated == 0 || (stored && row.generated == b's'),
        };
        self.columns_of(target.oid).into_iter().filter(is_sent).map(|row| row.number).collect()
    }

    fn filters(&self, target: &Class, publications: &[&Publication]) -> Result<Filters> {
        let mut filters = Filters::default();
        let slots = [
            (&mut filters.insert, Actions::INSERT),
            (&mut filters.update, Actions::UPDATE),
            (&mut filters.delete, Actions::DELETE),
        ];
        for (slot, action) in slots {
            let with = publications.iter().filter(|row| row.actions().any_of(action));
            let mut trees = Vec::new();
            let mut everything = false;
            for publication in with {
                match self.restriction(publication, target).and_then(|row| row.filter.as_ref()) {
                    Some(text) => trees.push(self.filter(target, text)?),
                    None => everything = true,
                }
            }
            *slot = (!everything && !trees.is_empty()).then_some(trees);
        }
        Ok(filters)
    }

    fn filter(&self, target: &Class, text: &Text) -> Result<String> {
        match text {
            Text::Here(text) => Ok(text.clone()),
            Text::There(pointer) => self.detoast(pointer).ok_or_else(|| {
                let what = "a row filter's stored form is not known".to_owned();
                self.contradiction(target, what)
            }),
        }
    }

    fn contradiction(&self, target: &Class, what: String) -> Error {
        let schema = self.schema(target.namespace).unwrap_or("?");
        Error::new(Kind::Publication { table: format!("{schema}.{}", target.name), what })
    }
}
