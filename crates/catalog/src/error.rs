//! Why following the catalogs stops.
//!
//! Following never ignores anything: a catalog decides which rows are published, and as what, so it
//! must be known for sure.

use std::fmt;

use base::{Lsn, RelFileLocator, Xid};

/// The catalogs cannot be looked at, or cannot be followed any further.
#[derive(Debug)]
pub struct Error(Box<Kind>);

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug)]
pub(crate) enum Kind {
    /// A record that `decode` refuses.
    Decode(decode::Error),
    /// A record that `wal` cannot parse.
    Wal(wal::Error),
    Image {
        lsn: Lsn,
        cause: wal::ImageError,
    },
    /// A record about a catalog does not fit to what is known.
    Broken {
        lsn: Lsn,
        what: String,
    },
    /// Pages may be changed without their images.
    FullPageWritesOff {
        lsn: Lsn,
    },
    WalLevel {
        lsn: Lsn,
    },
    /// A followed database has moved to other files.
    Moved {
        lsn: Lsn,
        database: String,
    },
    /// A transaction committed changes to files that no relation has.
    UnknownFiles {
        lsn: Lsn,
        locator: RelFileLocator,
        xid: Xid,
    },
    /// An error in the one look at the catalogs.
    Look {
        attempt: &'static str,
        cause: client::Error,
    },
    /// The WAL of the server, or of one of its databases, cannot be decoded.
    Unfit(String),
    /// Transactions that ran before the look did not end in time.
    StillRunning {
        xmin: String,
        wanted: String,
    },
    /// A catalog was rewritten during every attempt.
    Rewritten(&'static str),
    /// A catalog has a row that is not possible.
    Row {
        catalog: &'static str,
        what: String,
    },
    /// Publications contradict one another about a table.
    Publication {
        table: String,
        what: String,
    },
    /// A file that is not a saved catalog.
    File(String),
    Io(std::io::Error),
}

/// Catalogs that cannot be followed any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The record at which this was noticed. A look must begin behind it, because following would
    /// meet it again.
    pub at: Option<Lsn>,
    /// Everything before that record was followed correctly. If false, it is not known since when
    /// it was not.
    pub is_proven: bool,
}

impl Error {
    pub(crate) fn new(kind: Kind) -> Error {
        Error(Box::new(kind))
    }

    pub(crate) fn broken(lsn: Lsn, what: impl Into<String>) -> Error {
        Error::new(Kind::Broken { lsn, what: what.into() })
    }

    pub(crate) fn row(catalog: &'static str, what: impl Into<String>) -> Error {
        Error::new(Kind::Row { catalog, what: what.into() })
    }

    pub(crate) fn file(what: impl Into<String>) -> Error {
        Error::new(Kind::File(what.into()))
    }

    /// The place in the WAL, if the error has one.
    #[must_use]
    pub fn lsn(&self) -> Option<Lsn> {
        match &*self.0 {
            Kind::Decode(error) => Some(error.lsn()),
            Kind::Wal(error) => Some(error.lsn()),
            Kind::Image { lsn, .. }
            | Kind::Broken { lsn, .. }
            | Kind::FullPageWritesOff { lsn }
            | Kind::WalLevel { lsn }
            | Kind::Moved { lsn, .. }
            | Kind::UnknownFiles { lsn, .. } => Some(*lsn),
            _ => None,
        }
    }

    /// A transaction committed changes to files that no relation has. They would be lost.
    #[must_use]
    pub fn is_unknown_files(&self) -> bool {
        matches!(*self.0, Kind::UnknownFiles { .. })
    }

    /// Following has ended at a record, and can go on only from a new look at the catalogs. Returns
    /// what is known about the end.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        let (at, is_proven) = match *self.0 {
            // The server reports this at its place, so everything before it was followed.
            Kind::FullPageWritesOff { lsn } | Kind::WalLevel { lsn } | Kind::Moved { lsn, .. } => {
                (Some(lsn), true)
            }
            Kind::Broken { lsn, .. } | Kind::UnknownFiles { lsn, .. } | Kind::Image { lsn, .. } => {
                (Some(lsn), false)
            }
            Kind::Row { .. } | Kind::Publication { .. } => (None, false),
            _ => return None,
        };
        Some(Lost { at, is_proven })
    }

    /// Another look at the catalogs may succeed.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match &*self.0 {
            Kind::StillRunning { .. } | Kind::Rewritten(_) => true,
            Kind::Look { cause, .. } => cause.is_connection_lost(),
            _ => false,
        }
    }

    /// The server or a database does not fit; the message says why.
    #[must_use]
    pub fn is_unfit(&self) -> bool {
        matches!(*self.0, Kind::Unfit(_) | Kind::FullPageWritesOff { .. } | Kind::WalLevel { .. })
    }

    /// The file is not a catalog's, or is damaged.
    #[must_use]
    pub fn is_file(&self) -> bool {
        matches!(*self.0, Kind::File(_))
    }
}

impl From<decode::Error> for Error {
    fn from(error: decode::Error) -> Error {
        Error::new(Kind::Decode(error))
    }
}

impl From<wal::Error> for Error {
    fn from(error: wal::Error) -> Error {
        Error::new(Kind::Wal(error))
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::new(Kind::Io(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Decode(error) => error.fmt(f),
            Kind::Wal(error) => error.fmt(f),
            Kind::Image { lsn, .. } => write!(f, "WAL record {lsn}: the image of a catalog's page"),
            Kind::Broken { lsn, what } => write!(f, "WAL record {lsn}: {what}"),
            Kind::FullPageWritesOff { lsn } => write!(
                f,
                "WAL record {lsn}: full_page_writes was switched off, so pgsluice cannot follow the catalogs; \
                 switch it on"
            ),
            Kind::WalLevel { lsn } => write!(
                f,
                "WAL record {lsn}: wal_level is lower than logical, so the WAL lacks parts of rows; set it to \
                 logical"
            ),
            Kind::Moved { lsn, database } => {
                write!(f, "WAL record {lsn}: database \"{database}\" was moved to another tablespace")
            }
            Kind::UnknownFiles { lsn, locator, xid } => write!(
                f,
                "WAL record {lsn}: transaction {xid} committed changes to files {locator}, and no known relation \
                 has them; pgsluice leaves out nothing that it does not know, and stops; report this"
            ),
            Kind::Look { attempt, .. } => write!(f, "{attempt}"),
            Kind::Unfit(what) => f.write_str(what),
            Kind::StillRunning { xmin, wanted } => write!(
                f,
                "transaction {xmin} was running before pgsluice read the catalogs and has not ended, nor have all \
                 before {wanted}; end it (pg_stat_activity, pg_prepared_xacts) or wait longer"
            ),
            Kind::Rewritten(catalog) => {
                write!(
                    f,
                    "{catalog} was rewritten each time that pgsluice read the catalogs; try again later"
                )
            }
            Kind::Row { catalog, what } => write!(f, "{catalog}: {what}"),
            Kind::Publication { table, what } => write!(f, "publications of table \"{table}\": {what}"),
            Kind::File(what) => write!(f, "catalog file: {what}"),
            Kind::Io(_) => f.write_str("reading or writing a catalog file"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Decode(error) => std::error::Error::source(error),
            Kind::Image { cause, .. } => Some(cause),
            Kind::Look { cause, .. } => Some(cause),
            Kind::Io(cause) => Some(cause),
            _ => None,
        }
    }
}
