//! What a table is called, which kind it is, and how its rows are identified, on either end.

use std::fmt;

use base::quote_ident;

/// A table's name with its schema.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    /// The schema, unquoted.
    pub schema: String,
    /// The table, unquoted.
    pub name: String,
}

impl TableName {
    /// Makes a name from two unquoted parts.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> TableName {
        TableName { schema: schema.into(), name: name.into() }
    }

    /// The name for SQL, with both parts quoted.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("{}.{}", quote_ident(&self.schema), quote_ident(&self.name))
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// `relkind`, as far as it matters to replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// An ordinary table or a leaf partition (`r`).
    Plain,
    /// A partitioned table (`p`): its rows are in its leaves.
    Partitioned,
    /// Any other relation: a view, a foreign table.
    Other,
}

impl TableKind {
    pub(super) fn from_relkind(relkind: &str) -> TableKind {
        match relkind {
            "r" => TableKind::Plain,
            "p" => TableKind::Partitioned,
            _ => TableKind::Other,
        }
    }
}

/// `REPLICA IDENTITY` of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key, if there is one.
    Default,
    /// A named unique index.
    Index,
    /// The whole row.
    Full,
    /// No identity: updates and deletes are not published.
    Nothing,
}
