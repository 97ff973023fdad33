//! What one transaction sees of one database, at the last record that was followed.

use base::{Oid, RelFileLocator, Xid};

use crate::rows::{self, Class, Is};
use crate::{Catalog, GLOBAL_TABLESPACE, SHARED, Space};

/// The owner of some files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Files {
    /// A table, partition or materialized view, published or not.
    Table(Oid),
    /// The TOAST table of a table (0 if that is not known).
    Toast {
        /// The TOAST table.
        relation: Oid,
        /// Its table.
        of: Oid,
    },
    /// An index or a sequence, which has no rows to send.
    NoTable(Oid),
    /// A catalog, another table that the server made for itself, or a part of one. Never published.
    Catalog(Oid),
    /// New files of a table that is being rewritten, or of its TOAST table. Their rows are no
    /// changes.
    Rewrite(Oid),
    /// Files of a database that is not followed.
    Elsewhere,
    /// Files of this database that no relation has; see [`Catalog::check_at_commit`].
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

/// Kinds of relations, as in `relkind`.
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

    /// The database that is viewed.
    #[must_use]
    pub fn database(&self) -> Oid {
        self.database
    }

    /// Whether the database orders text by bytes, unless a collation is named.
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

    /// The owner of these files.
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
        // Temporary relations have numbers of their own, which may also be those of others.
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
            // No user's table is shared, so this is part of the server's own.
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

    /// A mapped catalog's successor. Its row names no files, and its files have the number of its
    /// OID.
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

    /// Tables and materialized views with the numbers of their files, in any tablespace.
    pub fn table_files(&self) -> impl Iterator<Item = (Oid, u32)> + use<'a> {
        let has_rows = |row: &&Class| kind::WITH_ROWS.contains(&row.kind) && row.persistence != TEMPORARY;
        self.all::<Class>().filter(has_rows).map(|row| (row.oid, row.file))
    }

    /// Schema and name of a type, as pgoutput sends them. For a domain, these are those of its base
    /// type.
    #[must_use]
    pub fn type_name(&self, oid: Oid) -> Option<(&'a str, &'a str)> {
        let mut row = self.find::<rows::Type>(0, oid).next()?;
        // Chains of domains have an end: each domain was made after the one below it.
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
