//! Errors on the publisher's side.
//!
//! Every message says what was being attempted; `source()` has the cause. The caller decides by the
//! predicates whether to try again.

use std::fmt;

/// A request to the publisher that failed.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    attempt: String,
    kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// The connection failed, or the server reported an error.
    Client(client::Error),
    /// The caller named no publication.
    NoneNamed,
    /// These publications do not exist.
    Missing(Vec<String>),
    /// Two publications have column lists that cannot be published together.
    ColumnLists { publications: [String; 2], column: String },
    /// An answer that no PostgreSQL server gives.
    Reply(String),
    /// A publication did not exist when the next changes were written.
    Unpublished(String),
    /// The server has removed the requested WAL.
    Removed(String),
    /// The server ended the stream, as it does when it shuts down.
    Ended,
    /// The server was silent for longer than `wal_receiver_timeout`.
    Silent(std::time::Duration),
}

impl Error {
    pub(crate) fn client(attempt: impl Into<String>, cause: impl Into<client::Error>) -> Error {
        Error(Box::new(Inner { attempt: attempt.into(), kind: Kind::Client(cause.into()) }))
    }

    pub(crate) fn new(attempt: impl Into<String>, kind: Kind) -> Error {
        Error(Box::new(Inner { attempt: attempt.into(), kind }))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    pub(crate) fn reply(attempt: impl Into<String>, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { attempt: attempt.into(), kind: Kind::Reply(message.into()) }))
    }

    pub(crate) fn unpublished(attempt: impl Into<String>, words: impl Into<String>) -> Error {
        Error(Box::new(Inner { attempt: attempt.into(), kind: Kind::Unpublished(words.into()) }))
    }

    pub(crate) fn removed(attempt: impl Into<String>, words: impl Into<String>) -> Error {
        Error(Box::new(Inner { attempt: attempt.into(), kind: Kind::Removed(words.into()) }))
    }

    pub(crate) fn ended(attempt: impl Into<String>) -> Error {
        Error(Box::new(Inner { attempt: attempt.into(), kind: Kind::Ended }))
    }

    pub(crate) fn silent(attempt: impl Into<String>, silence: std::time::Duration) -> Error {
        Error(Box::new(Inner { attempt: attempt.into(), kind: Kind::Silent(silence) }))
    }

    /// Whether the connection ended or the server is away. The same call may succeed later.
    #[must_use]
    pub fn is_connection_lost(&self) -> bool {
        match &self.0.kind {
            Kind::Client(error) => error.is_connection_lost(),
            Kind::Silent(_) | Kind::Ended => true,
            Kind::NoneNamed
            | Kind::Missing(_)
            | Kind::ColumnLists { .. }
            | Kind::Unpublished(_)
            | Kind::Removed(_)
            | Kind::Reply(_) => false,
        }
    }

    /// Whether publications or settings on the publisher are wrong. The operator must change them
    /// first.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match &self.0.kind {
            Kind::Client(error) => error.is_configuration(),
            Kind::NoneNamed
            | Kind::Missing(_)
            | Kind::ColumnLists { .. }
            | Kind::Unpublished(_)
            | Kind::Removed(_) => true,
            Kind::Reply(_) | Kind::Silent(_) | Kind::Ended => false,
        }
    }

    /// The SQLSTATE, if the server answered with an error.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        match &self.0.kind {
            Kind::Client(error) => error.sqlstate(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: ", self.0.attempt)?;
        match &self.0.kind {
            Kind::Client(error) => write!(f, "{error}"),
            Kind::NoneNamed => f.write_str("none is named; name at least one with --publication"),
            Kind::Missing(names) => write!(
                f,
                "publication {} does not exist in the source database; create it with CREATE PUBLICATION, or check \
                 the name and the database",
                names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
            ),
            Kind::ColumnLists { publications: [first, other], column } => write!(
                f,
                "publications \"{first}\" and \"{other}\" have different column lists for it (column \"{column}\" \
                 is in one of them only), which the server cannot publish together; make the lists equal"
            ),
            Kind::Unpublished(words) => write!(
                f,
                "{words}: it was dropped, and perhaps created again since; no server can decode what was written \
                 meanwhile; drop the subscription and copy again"
            ),
            Kind::Removed(words) => write!(
                f,
                "{words}: no slot has kept it here; give wal_archive a directory that has it, or drop the subscription \
                 and copy again"
            ),
            Kind::Ended => f.write_str("the server ended the stream; is it shutting down?"),
            Kind::Silent(silence) => write!(
                f,
                "the server has sent nothing for {} s; check the network, and see wal_receiver_timeout",
                silence.as_secs()
            ),
            Kind::Reply(message) => write!(f, "unexpected answer from the server: {message}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            Kind::Client(error) => Some(error),
            _ => None,
        }
    }
}
