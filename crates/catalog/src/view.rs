//! What one transaction sees of one database, at the record that was followed last.

use base::{Oid, RelFileLocator, Xid};

use crate::rows::{self, Class, Is};
use crate::{Catalog, GLOBAL_TABLESPACE, SHARED, Space};

/// What has some files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Files {
    /// A table, partition or materialized view. Whether it is published is another question.
    Table(Oid),
    /// The TOAST table of a table (0 if that is not known).
    Toast {
        /// The TOAST table.
        relation: Oid,
        /// Its table.
        of: Oid,
    },
    /// An index or a sequence: no rows that anybody is sent.
    NoTable(Oid),
    /// A catalog, or another table that the server made for itself, and what belongs to one: never published.
    Catalog(Oid),
    /// New files of a table (or of its TOAST table) that is being rewritten: nothing in them is a change.
    Rewrite(Oid),
    /// Of a database that is not followed.
    Elsewhere,
    /// Of this database, and nobody has them: [`Catalog::keep_unknown`].
    Unknown,
}

/// What one transaction sees of one database.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    catalog: &'a Catalog,
    database: Oid,
    space: &'a Space,
    viewer: Xid,
}

/// Kinds of relations, as `relkind` has them.
mod kind {
    pub(super) const INDEXES_AND_SEQUENCES: [u8; 3] = [b'i', b'I', b'S'];
    pub(super) const TOAST: u8 = b't';
    pub(super) const WITH_ROWS: [u8; 2] = [b'r', b'm'];
}

const TEMPORARY: u8 = b't';

impl<'a> View<'a> {
    pub(crate) fn new(catalog: &'a Catalog, database: Oid, space: &'a Space, viewer: Xid) -> View<'a> {
        View { catalog, database, space, viewer }
    }

    /// Which database.
    #[must_use]
    pub fn database(&self) -> Oid {
        self.database
    }

    /// Whether the database orders text as C does, unless another collation is named.
    #[must_use]
    pub fn default_collation_is_c(&self) -> bool {
        self.space.collation_is_c
    }

    pub(crate) fn major(&self) -> u32 {
        self.catalog.server.major
    }

    /// The rows of a catalog with a key.
    pub(crate) fn find<R: Is + 'static>(
        &self,
        by: usize,
        key: Oid,
    ) -> impl Iterator<Item = &'a R> + use<'a, R> {
        let viewer = self.viewer;
        let table = self.catalog.table(self.database, R::KIND, viewer);
        table.into_iter().flat_map(move |table| table.find::<R>(by, key.0, viewer))
    }

    /// All rows of a catalog.
    pub(crate) fn all<R: Is + 'static>(&self) -> impl Iterator<Item = &'a R> + use<'a, R> {
        let viewer = self.viewer;
        let table = self.catalog.table(self.database, R::KIND, viewer);
        table.into_iter().flat_map(move |table| table.all::<R>(viewer)).map(|(_, row)| row)
    }

    /// A relation's row.
    pub(crate) fn class(&self, oid: Oid) -> Option<&'a Class> {
        self.find::<Class>(0, oid).next()
    }

    /// A schema's name.
    pub(crate) fn schema(&self, oid: Oid) -> Option<&'a str> {
        self.find::<rows::Namespace>(0, oid).next().map(|row| row.name.as_str())
    }

    /// What has these files.
    #[must_use]
    pub fn files(&self, locator: RelFileLocator) -> Files {
        match locator.database {
            SHARED => return self.shared_files(locator),
            database if database != self.database => return Files::Elsewhere,
            _ => {}
        }
        if let Some(file) = self.catalog.files.get(&locator) {
            return Files::Catalog(file.kind.oid());
        }
        let mapped = self.space.map.iter().find(|(_, number)| **number == locator.relfilenumber);
        if let Some((oid, _)) = mapped.filter(|_| locator.tablespace == self.space.tablespace) {
            return Files::Catalog(*oid);
        }
        let tablespace =
            if locator.tablespace == self.space.tablespace { Oid(0) } else { locator.tablespace };
        // Numbers of temporary relations are their own: they may be those of others.
        let is_it = |row: &&Class| row.tablespace == tablespace && row.persistence != TEMPORARY;
        match self.find::<Class>(1, Oid(locator.relfilenumber)).find(is_it) {
            Some(row) => self.what_is(row),
            None => self.new_catalog(locator),
        }
    }

    fn shared_files(&self, locator: RelFileLocator) -> Files {
        let mapped = self.catalog.spaces.get(&SHARED).map(|space| &space.map);
        let mapped = mapped.and_then(|map| map.iter().find(|(_, number)| **number == locator.relfilenumber));
        match mapped.filter(|_| locator.tablespace == GLOBAL_TABLESPACE) {
            Some((oid, _)) => Files::Catalog(*oid),
            // Whatever it is, no table of a user's is shared.
            None => Files::Catalog(Oid(0)),
        }
    }

    fn what_is(&self, row: &Class) -> Files {
        if row.rewrite != Oid(0) {
            return Files::Rewrite(row.rewrite);
        }
        if row.oid < Oid::FIRST_NORMAL {
            return Files::Catalog(row.oid);
        }
        if kind::INDEXES_AND_SEQUENCES.contains(&row.kind) {
            return Files::NoTable(row.oid);
        }
        if row.kind == kind::TOAST {
            let of = self.find::<Class>(2, row.oid).next().map_or(Oid(0), |row| row.oid);
            return Files::Toast { relation: row.oid, of };
        }
        Files::Table(row.oid)
    }

    /// A mapped catalog's successor, whose row names no files: they are numbered as it is.
    fn new_catalog(&self, locator: RelFileLocator) -> Files {
        let row = self.class(Oid(locator.relfilenumber));
        match row.filter(|row| row.file == 0 && row.rewrite != Oid(0)) {
            Some(row) => Files::Catalog(row.rewrite),
            None => Files::Unknown,
        }
    }

    /// The OIDs of all relations, in their order.
    #[must_use]
    pub fn relations(&self) -> Vec<Oid> {
        let mut oids: Vec<Oid> = self.all::<Class>().map(|row| row.oid).collect();
        oids.sort_unstable();
        oids
    }

    /// Tables and materialized views with the number of their files, whichever tablespace these are in.
    pub fn table_files(&self) -> impl Iterator<Item = (Oid, u32)> + use<'a> {
        let has_rows = |row: &&Class| kind::WITH_ROWS.contains(&row.kind) && row.persistence != TEMPORARY;
        self.all::<Class>().filter(has_rows).map(|row| (row.oid, row.file))
    }

    /// Schema and name of a type, as pgoutput sends them: a domain's are those of what it is over.
    #[must_use]
    pub fn type_name(&self, oid: Oid) -> Option<(&'a str, &'a str)> {
        let mut row = self.find::<rows::Type>(0, oid).next()?;
        // Domains over domains end somewhere: each was made after the one below it.
        for _ in 0..DOMAINS_DEEP_MAX {
            if row.kind != b'd' {
                break;
            }
            row = self.find::<rows::Type>(0, row.base).next()?;
        }
        Some((self.schema(row.namespace)?, &row.name))
    }

    /// A value of a catalog that is out of line.
    pub(crate) fn detoast(&self, pointer: &types::ToastPointer) -> Option<String> {
        let mut chunks: Vec<_> = self.find::<rows::FilterChunk>(0, pointer.value).collect();
        chunks.sort_unstable_by_key(|chunk| chunk.sequence);
        let bytes: Vec<u8> = chunks.iter().flat_map(|chunk| &chunk.data.0).copied().collect();
        let payload = pointer.assemble(&bytes).ok()?.payload().ok()?.into_owned();
        String::from_utf8(payload).ok()
    }
}

const DOMAINS_DEEP_MAX: usize = 64;
