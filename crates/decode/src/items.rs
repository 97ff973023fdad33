//! Lists of equal items in a record, read where they are.

use std::fmt;
use std::marker::PhantomData;

use base::{Oid, RelFileLocator, Xid};
use wal::Fields;

use crate::input::{CUT_SHORT, Read};

/// An item of a list.
pub trait Item: Sized {
    /// Its length in WAL.
    const SIZE: usize;

    /// Reads an item from `bytes`, which have [`Item::SIZE`].
    fn read(bytes: Fields<'_>) -> Option<Self>;
}

/// A list in a record.
pub struct Items<'a, T> {
    bytes: &'a [u8],
    of: PhantomData<T>,
}

impl<'a, T: Item> Items<'a, T> {
    /// Takes `count` items.
    pub(crate) fn take(fields: &mut Fields<'a>, count: usize) -> Read<Items<'a, T>> {
        let length = count.checked_mul(T::SIZE).ok_or(CUT_SHORT)?;
        Ok(Items { bytes: fields.take(length).ok_or(CUT_SHORT)?, of: PhantomData })
    }

    /// Takes a signed count, as most lists have it, and as many items.
    pub(crate) fn counted(fields: &mut Fields<'a>) -> Read<Items<'a, T>> {
        let count = fields.i32().ok_or(CUT_SHORT)?;
        Items::take(fields, usize::try_from(count).map_err(|_| "a count is negative")?)
    }

    pub(crate) const fn none() -> Items<'a, T> {
        Items { bytes: &[], of: PhantomData }
    }

    /// The number of items.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / T::SIZE
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The items from the first to the last.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        self.bytes.chunks_exact(T::SIZE).filter_map(|bytes| T::read(Fields::new(bytes)))
    }
}

impl<T> Clone for Items<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Items<'_, T> {}

impl<T: Item + fmt::Debug> fmt::Debug for Items<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Item for Xid {
    const SIZE: usize = 4;

    fn read(mut bytes: Fields<'_>) -> Option<Xid> {
        bytes.xid()
    }
}

impl Item for Oid {
    const SIZE: usize = 4;

    fn read(mut bytes: Fields<'_>) -> Option<Oid> {
        bytes.oid()
    }
}

impl Item for RelFileLocator {
    const SIZE: usize = 12;

    fn read(mut bytes: Fields<'_>) -> Option<RelFileLocator> {
        bytes.locator()
    }
}

/// The files of a mapped catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapEntry {
    /// The catalog.
    pub relation: Oid,
    /// Its files.
    pub relfilenumber: u32,
}

impl Item for MapEntry {
    const SIZE: usize = 8;

    fn read(mut bytes: Fields<'_>) -> Option<MapEntry> {
        Some(MapEntry { relation: bytes.oid()?, relfilenumber: bytes.u32()? })
    }
}

/// What a server throws out of its caches (`storage/sinval.h`). It shows which catalog rows
/// changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalidation {
    /// Rows of one of the system caches. The numbers of caches differ between majors, so this only
    /// shows that something changed.
    CatCache {
        /// The cache's number.
        cache: i8,
        /// The database, 0 for shared catalogs.
        database: Oid,
    },
    /// All rows of a catalog.
    Catalog {
        /// The database, 0 for shared catalogs.
        database: Oid,
        /// The catalog.
        catalog: Oid,
    },
    /// A relation's description.
    Relation {
        /// The database, 0 for shared catalogs.
        database: Oid,
        /// The relation; 0 for all of them.
        relation: Oid,
    },
    /// Files that were dropped or cut.
    Files(RelFileLocator),
    /// The relation map.
    RelationMap {
        /// The database, 0 for the shared map.
        database: Oid,
    },
    /// Snapshots of a catalog.
    Snapshot {
        /// The database, 0 for shared catalogs.
        database: Oid,
        /// The catalog.
        relation: Oid,
    },
    /// pgoutput's entry for a relation (18 and later).
    RelationSync {
        /// The database.
        database: Oid,
        /// The relation; 0 for all of them.
        relation: Oid,
    },
    /// An unknown kind. Code that relies on a cache must drop all of it.
    Unknown(i8),
}

impl Item for Invalidation {
    const SIZE: usize = 16;

    fn read(mut bytes: Fields<'_>) -> Option<Invalidation> {
        let id = i8::from_le_bytes([bytes.u8()?]);
        if id == -3 {
            // The number of the process that owns temporary files. It is never logged.
            bytes.take(3)?;
            return Some(Invalidation::Files(bytes.locator()?));
        }
        bytes.take(3)?;
        let database = bytes.oid()?;
        let object = bytes.oid()?;
        Some(match id {
            0.. => Invalidation::CatCache { cache: id, database },
            -1 => Invalidation::Catalog { database, catalog: object },
            -2 => Invalidation::Relation { database, relation: object },
            -4 => Invalidation::RelationMap { database },
            -5 => Invalidation::Snapshot { database, relation: object },
            -6 => Invalidation::RelationSync { database, relation: object },
            _ => Invalidation::Unknown(id),
        })
    }
}
