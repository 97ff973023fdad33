//! Why a comparison could not be made.

use std::fmt;

use client::{Session, SqlState};

/// A comparison that could not be made. A difference between the ends is not an error.
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    /// A server's error, and a text that says what was being attempted.
    Client { attempt: String, cause: client::Error },
    /// The publication could not be read.
    Source(source::Error),
    /// The process that runs the subscription could not hold it; the text is its message.
    Applier(String),
    /// This many snapshots in a row were of no use.
    NoPrefix { tries: u64 },
}

const LOCKED: [SqlState; 2] = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED];

impl Error {
    /// For `map_err`: `attempt` completes "cannot ...".
    pub(crate) fn client(attempt: impl Into<String>) -> impl FnOnce(client::Error) -> Error {
        move |cause| Error(Box::new(Kind::Client { attempt: attempt.into(), cause }))
    }

    /// An error of `session`.
    pub(crate) fn query(
        session: &Session,
        attempt: impl Into<String>,
        error: tokio_postgres::Error,
    ) -> Error {
        Error::client(attempt)(session.error(error))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// A server went away.
    #[must_use]
    pub fn is_connection_lost(&self) -> bool {
        matches!(&*self.0, Kind::Client { cause, .. } if cause.is_connection_lost())
    }

    /// Another session's lock was in the way.
    pub(crate) fn is_locked(&self) -> bool {
        self.sqlstate().is_some_and(|code| LOCKED.contains(&SqlState::from_code(code)))
    }

    /// The SQLSTATE, if a server answered with an error.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        match &*self.0 {
            Kind::Client { cause, .. } => cause.sqlstate(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Client { attempt, cause } => write!(f, "cannot {attempt}: {cause}"),
            Kind::Source(error) => error.fmt(f),
            Kind::Applier(message) => f.write_str(message),
            Kind::NoPrefix { tries } => write!(
                f,
                "none of {tries} snapshots of the source was a prefix of its commits, as happens while transactions \
                 wait for a synchronous standby; repeat the comparison at a quieter time"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Client { cause, .. } => Some(cause),
            Kind::Source(error) => error.source(),
            Kind::Applier(_) | Kind::NoPrefix { .. } => None,
        }
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Self {
        Error(Box::new(kind))
    }
}

impl From<source::Error> for Error {
    fn from(error: source::Error) -> Self {
        Kind::Source(error).into()
    }
}
