//! Transaction, object and file ids.

use std::fmt;

/// A 32-bit transaction id, as in the stream. Ids wrap around: order transactions by LSN and not by
/// id, unless only a snapshot is available ([`Xid::precedes`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Xid(pub u32);

/// An object id of one cluster's catalogs. Ids of users' objects mean nothing on another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Oid(pub u32);

impl Oid {
    /// The first id of objects made after initdb (`FirstNormalObjectId` in `access/transam.h`).
    /// Lower ids are the same on every server of one major version.
    pub const FIRST_NORMAL: Oid = Oid(16384);

    /// The first id that initdb assigns by itself (`FirstGenbkiObjectId`). Lower ids are fixed in
    /// the server's own catalogs, and are the same in every version. Ids from here to
    /// [`Oid::FIRST_NORMAL`] are those of row types of catalogs and of `information_schema`, and
    /// differ between versions.
    pub const FIRST_ASSIGNED: Oid = Oid(10000);

    /// Whether the id stands for the same object on every server of every version.
    #[must_use]
    pub fn is_built_in(self) -> bool {
        self < Self::FIRST_ASSIGNED
    }

    /// Whether the object was made by a user and so has another id elsewhere.
    #[must_use]
    pub fn is_user_defined(self) -> bool {
        self >= Self::FIRST_NORMAL
    }
}

/// The files that hold a relation now. WAL names them where SQL names a table. A rewrite (TRUNCATE,
/// VACUUM FULL, CLUSTER, some ALTER TABLE) gives a relation other files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RelFileLocator {
    /// The tablespace; never zero, unlike in `pg_class.reltablespace`.
    pub tablespace: Oid,
    /// The database, zero for shared catalogs.
    pub database: Oid,
    /// `relfilenode` in `pg_class`. It is unique only in a tablespace and database, and is not the
    /// relation's id.
    pub relfilenumber: u32,
}

impl Xid {
    /// No transaction: PostgreSQL's `InvalidTransactionId`.
    pub const INVALID: Xid = Xid(0);

    /// False for [`Xid::INVALID`].
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 != 0
    }

    /// Whether it was assigned before `other`, for ids that are less than 2^31 apart
    /// (`TransactionIdPrecedes` without its special ids).
    #[must_use]
    pub const fn precedes(self, other: Xid) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }
}

/// As in the server's logs and in `pg_waldump`.
impl fmt::Display for RelFileLocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.tablespace, self.database, self.relfilenumber)
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
