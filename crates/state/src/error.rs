//! Why the state on the target could not be read or written.

use std::fmt;

use crate::schema::STATE_SCHEMA;

/// A failure to read or write the state on the target.
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    /// A query or the connection failed.
    Client(client::Error),
    /// The same subscription runs elsewhere.
    InUse { name: String, holder: String },
    /// A session that is not ours holds the origin.
    Held {
        origin: String,
        name: String,
        pid: i32,
        /// The session's description of itself; may be empty.
        who: String,
    },
    /// Our tables are not as we made them.
    Damaged(client::Error),
    /// An origin has our name, but our row is missing.
    OriginTaken { origin: String, name: String },
    /// The origin does not exist any more.
    OriginGone { origin: String, name: String },
    /// The server has no place for an origin under which copied rows are the subscription's own.
    NoPlace { name: String },
}

impl Error {
    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Returns the error of the query or the connection, if this error is nothing more.
    ///
    /// # Errors
    /// This error, if it says more than that.
    pub fn into_client(self) -> Result<client::Error, Error> {
        match *self.0 {
            Kind::Client(error) => Ok(error),
            kind => Err(kind.into()),
        }
    }

    /// Whether another process applies the same subscription.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(&*self.0, Kind::InUse { .. })
    }

    /// Whether trying again cannot help: the state or the origin is not ours, or is in use.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        match &*self.0 {
            Kind::Damaged(_) | Kind::OriginTaken { .. } | Kind::OriginGone { .. } | Kind::InUse { .. } => {
                true
            }
            Kind::Client(error) => {
                error.is_configuration()
                    || error.is_authentication()
                    || error.is_tls()
                    || self.is_missing_right()
            }
            Kind::Held { .. } | Kind::NoPlace { .. } => false,
        }
    }

    /// Whether the role lacks a right on the target (`insufficient_privilege`).
    #[must_use]
    pub fn is_missing_right(&self) -> bool {
        self.sqlstate() == Some("42501")
    }

    /// The SQLSTATE of a query that failed.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        match &*self.0 {
            Kind::Client(error) => error.sqlstate(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Client(error) => write!(f, "{error}"),
            Kind::InUse { name, holder } => write!(
                f,
                "subscription \"{name}\" is already being applied to this target by {holder}; \
                 stop that one first, or choose another --subscription"
            ),
            Kind::Held { origin, name, pid, who } => write!(
                f,
                "replication origin \"{origin}\" of subscription \"{name}\" is held by process {pid}{who} on the \
                 target, so pgsluice can apply nothing; end it: SELECT pg_terminate_backend({pid})"
            ),
            Kind::Damaged(error) => write!(
                f,
                "schema \"{STATE_SCHEMA}\" on the target is damaged, or belongs to something else: {error}; restore \
                 it, or give up what it knows: pgsluice drop --force, DROP SCHEMA {STATE_SCHEMA} CASCADE, and copy \
                 again"
            ),
            Kind::OriginTaken { origin, name } => write!(
                f,
                "replication origin \"{origin}\" exists on the target, but this database knows no subscription \
                 \"{name}\": another database of the cluster uses the name; choose another --subscription"
            ),
            Kind::NoPlace { name } => write!(
                f,
                "the target has no place for another replication origin, by which rules of subscription \"{name}\" that \
                 compare commit times would know the rows that it copies as its own; set max_replication_slots (from 18 \
                 on max_active_replication_origins) higher and restart the target"
            ),
            Kind::OriginGone { origin, name } => write!(
                f,
                "replication origin \"{origin}\" of subscription \"{name}\" does not exist on the target any more, \
                 and with it the record of what was applied; drop the subscription and copy again"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Client(error) => error.source(),
            _ => None,
        }
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Self {
        Error(Box::new(kind))
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        Kind::Client(error).into()
    }
}
