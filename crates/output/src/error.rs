//! Why decoding stops.
//!
//! One opaque error with a kind for every stage. If a value or a filter is at fault, the error
//! names its table. It never shows values.

use std::fmt;

use base::Lsn;
use catalog::Lost;

/// Why decoding stops.
#[derive(Debug)]
pub struct Error(Box<Kind>);

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug)]
pub(crate) enum Kind {
    Options(String),
    Wal(wal::Error),
    Decode(decode::Error),
    Catalog(catalog::Error),
    Reorder(txn::reorder::Error),
    /// A table that cannot be rendered or filtered has a change that would come out.
    Refused {
        lsn: Lsn,
        refused: RefusedTable,
    },
    /// The publications do not say what is published. pgoutput reports an error here too.
    Publication {
        lsn: Lsn,
        what: String,
    },
    Value {
        lsn: Lsn,
        table: String,
        column: Option<String>,
        cause: types::Error,
    },
    Filter {
        lsn: Lsn,
        table: String,
        cause: filter::Error,
    },
    Over,
}

impl Error {
    pub(crate) fn new(kind: Kind) -> Error {
        Error(Box::new(kind))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    pub(crate) fn options(what: impl Into<String>) -> Error {
        Error::new(Kind::Options(what.into()))
    }

    /// The place in the WAL, if the error has one.
    #[must_use]
    pub fn lsn(&self) -> Option<Lsn> {
        match &*self.0 {
            Kind::Wal(error) => Some(error.lsn()),
            Kind::Decode(error) => Some(error.lsn()),
            Kind::Catalog(error) => error.lsn(),
            Kind::Refused { lsn, .. }
            | Kind::Publication { lsn, .. }
            | Kind::Value { lsn, .. }
            | Kind::Filter { lsn, .. } => Some(*lsn),
            Kind::Options(_) | Kind::Reorder(_) | Kind::Over => None,
        }
    }

    /// The table that cannot be rendered or filtered, if that is the error.
    #[must_use]
    pub fn refused(&self) -> Option<&RefusedTable> {
        match &*self.0 {
            Kind::Refused { refused, .. } => Some(refused),
            _ => None,
        }
    }

    /// The publications at a place in the WAL do not say what is published: one does not exist, or
    /// they contradict one another.
    #[must_use]
    pub fn is_publication(&self) -> bool {
        matches!(&*self.0, Kind::Publication { .. })
    }

    /// A server or a database cannot be decoded; the message says why.
    #[must_use]
    pub fn is_unfit(&self) -> bool {
        matches!(&*self.0, Kind::Catalog(error) if error.is_unfit())
    }

    /// The catalogs cannot be followed any further. Decoding can go on only from a new look at
    /// them.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        match &*self.0 {
            Kind::Catalog(error) => error.lost(),
            _ => None,
        }
    }

    /// Another try may succeed: with a new look at the catalogs, or when the spool's disk has room
    /// again.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match &*self.0 {
            Kind::Catalog(error) => error.is_passing(),
            Kind::Reorder(error) => error.is_disk(),
            _ => false,
        }
    }

    /// The WAL ended in the middle of a record; nothing else is wrong.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        matches!(&*self.0, Kind::Wal(error) if error.is_incomplete())
    }
}

macro_rules! from {
    ($($kind:ident($error:ty)),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::new(Kind::$kind(error))
            }
        }
    )*};
}

from!(Wal(wal::Error), Decode(decode::Error), Catalog(catalog::Error), Reorder(txn::reorder::Error));

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Options(what) => f.write_str(what),
            Kind::Wal(error) => error.fmt(f),
            Kind::Decode(error) => error.fmt(f),
            Kind::Catalog(error) => error.fmt(f),
            Kind::Reorder(error) => error.fmt(f),
            Kind::Refused { lsn, refused } => write!(f, "WAL record {lsn}: {refused}"),
            Kind::Publication { lsn, what } => write!(f, "WAL record {lsn}: {what}"),
            Kind::Value { lsn, table, column: Some(column), .. } => {
                write!(f, "WAL record {lsn}: column \"{column}\" of table {table}")
            }
            Kind::Value { lsn, table, column: None, .. } => {
                write!(f, "WAL record {lsn}: a row of table {table}")
            }
            Kind::Filter { lsn, table, .. } => write!(f, "WAL record {lsn}: the row filter of table {table}"),
            Kind::Over => f.write_str("nothing is decoded after an error"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Wal(error) => std::error::Error::source(error),
            Kind::Decode(error) => std::error::Error::source(error),
            Kind::Catalog(error) => std::error::Error::source(error),
            Kind::Reorder(error) => std::error::Error::source(error),
            Kind::Value { cause, .. } => Some(cause),
            Kind::Filter { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// A published table whose changes cannot be rendered or filtered here, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedTable {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub table: String,
    /// Schema and name of the table that its changes are sent as: itself, or a partitioned table
    /// above it.
    pub published_as: Box<(String, String)>,
    /// The column that cannot be rendered, if that is the reason.
    pub column: Option<String>,
    /// The reason is the row filter, which only the server can show as SQL.
    pub is_filter: bool,
    /// Why the table cannot be decoded.
    pub reason: String,
}

impl fmt::Display for RefusedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RefusedTable { schema, table, column, reason, .. } = self;
        write!(f, "table {schema}.{table} cannot be decoded")?;
        if let Some(column) = column {
            write!(f, " because of its column \"{column}\"")?;
        }
        write!(f, ": {reason}")
    }
}
