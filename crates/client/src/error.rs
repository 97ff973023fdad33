//! What can go wrong with a connection, in words an operator can act on.
//!
//! Every message names the server, database and user, the cause, and the next step if there is one.
//! No message has a password: errors are built from
//! [`ConnInfo::describe`](crate::ConnInfo::describe), which has none.

use std::fmt;
use std::io;
use std::time::Duration;

use proto::frame::ServerError;
use tokio_postgres::error::SqlState;

use crate::denial::{Tls, Unauthenticated, Unsuitable};

/// A connection that could not be made or used.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    /// `host:port/dbname as user`, where one server is concerned.
    place: Option<String>,
    kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// The connection string, a file it names or the environment is wrong.
    Configuration(String),
    /// No connection was established.
    Unreachable(io::Error),
    /// No answer within `connect_timeout`.
    TimedOut(Duration),
    /// An established connection ended.
    Lost(Option<io::Error>),
    /// TLS could not be agreed on.
    Tls(Tls),
    /// The peer went away while TLS was being agreed on: it may not speak
    /// TLS, or it may be a server that is just being stopped.
    Handshake(io::Error),
    /// pgsluice would not or could not authenticate.
    Authentication(Unauthenticated),
    /// The server's own words.
    Server(Box<ServerError>),
    /// The server is not what `target_session_attrs` asks for.
    Unsuitable(Unsuitable),
    /// The peer does not speak the protocol, or a caller called out of turn.
    Protocol(String),
    /// tokio-postgres could not encode or decode a value.
    Session(tokio_postgres::Error),
    /// One error for each of several hosts.
    Several(Vec<Error>),
}

impl Error {
    pub(crate) fn new(kind: Kind) -> Error {
        Error(Box::new(Inner { place: None, kind }))
    }

    pub(crate) fn configuration(message: impl Into<String>) -> Error {
        Error::new(Kind::Configuration(message.into()))
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Error {
        Error::new(Kind::Protocol(message.into()))
    }

    pub(crate) fn lost(error: io::Error) -> Error {
        // A TLS error, such as the server's refusal of our certificate, surfaces as one of input or
        // output.
        let of_tls = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        if let Some(cause) = of_tls {
            return Error::new(Kind::Tls(Tls::Alert(cause.clone())));
        }
        let end = error.kind() == io::ErrorKind::UnexpectedEof;
        Error::new(Kind::Lost(if end { None } else { Some(error) }))
    }

    /// Adds the server's description, unless the error has one already.
    pub(crate) fn at(mut self, place: &str) -> Error {
        self.0.place.get_or_insert_with(|| place.to_owned());
        self
    }

    /// The server, database and user that the error is about, if it is one server: as
    /// [`ConnInfo::describe`](crate::ConnInfo::describe) says.
    #[must_use]
    pub fn place(&self) -> Option<&str> {
        self.0.place.as_deref()
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    /// The server cannot be reached at present or went away: the same call
    /// may succeed later. True also for a server that is starting up,
    /// shutting down or out of connection slots.
    #[must_use]
    pub fn is_connection_lost(&self) -> bool {
        match &self.0.kind {
            Kind::Unreachable(_)
            | Kind::TimedOut(_)
            | Kind::Lost(_)
            | Kind::Handshake(_)
            | Kind::Unsuitable(_) => true,
            Kind::Server(error) => is_passing(&error.code),
            Kind::Several(errors) => errors.iter().any(Error::is_connection_lost),
            Kind::Session(error) => error.is_closed(),
            _ => false,
        }
    }

    /// The SQLSTATE, if the server answered with an error.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.server().map(|error| error.code.as_str())
    }

    /// The server's error in full. Of several hosts, the last that sent one.
    #[must_use]
    pub fn server(&self) -> Option<&ServerError> {
        match &self.0.kind {
            Kind::Server(error) => Some(&**error),
            Kind::Several(errors) => errors.iter().rev().find_map(Error::server),
            _ => None,
        }
    }

    /// The server refused the connection, or asked for credentials that pgsluice does not have or
    /// may not give.
    #[must_use]
    pub fn is_authentication(&self) -> bool {
        match &self.0.kind {
            Kind::Authentication(_) => true,
            Kind::Server(error) => error.code.starts_with("28"),
            Kind::Several(errors) => errors.iter().any(Error::is_authentication),
            _ => false,
        }
    }

    /// The connection string, the environment or a file named there is
    /// wrong: trying again is of no use.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match &self.0.kind {
            Kind::Configuration(_) => true,
            Kind::Several(errors) => errors.iter().any(Error::is_configuration),
            _ => false,
        }
    }

    /// TLS could not be agreed on, or the certificate was not accepted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        match &self.0.kind {
            Kind::Tls(_) | Kind::Handshake(_) => true,
            Kind::Several(errors) => errors.iter().any(Error::is_tls),
            _ => false,
        }
    }
}

/// Connection exceptions (class 08), and a server that shuts down, starts, or has no free
/// connection.
fn is_passing(code: &str) -> bool {
    let is_state = matches!(
        SqlState::from_code(code),
        SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::CANNOT_CONNECT_NOW
            | SqlState::IDLE_SESSION_TIMEOUT
            | SqlState::TOO_MANY_CONNECTIONS
    );
    is_state || code.starts_with("08")
}

/// The next step after a server's refusal, if the server does not name one.
fn remedy(code: &str) -> Option<&'static str> {
    Some(match SqlState::from_code(code) {
        SqlState::INVALID_PASSWORD => {
            "check the user and the password in the connection string, PGPASSWORD or the password file"
        }
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            "check the user, and that pg_hba.conf on the server admits it from here to this database"
        }
        SqlState::INVALID_CATALOG_NAME => "check the database name, or create the database",
        SqlState::TOO_MANY_CONNECTIONS => {
            "raise max_connections on the server, or the role's connection limit"
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => {
            "give a server that can be written to (a primary; target_session_attrs=read-write finds it among several \
             hosts), or see default_transaction_read_only"
        }
        SqlState::DISK_FULL => "make room on the server's disk",
        _ => return None,
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.0.place {
            write!(f, "{place}: ")?;
        }
        match &self.0.kind {
            Kind::Configuration(message) | Kind::Protocol(message) => f.write_str(message),
            Kind::Authentication(why) => why.fmt(f),
            Kind::Unreachable(error) => {
                write!(
                    f,
                    "cannot connect: {error}; check host and port, and that the server runs and listens there"
                )
            }
            Kind::TimedOut(limit) => write!(
                f,
                "no connection within {} s (connect_timeout); check that the server runs and is reachable from here",
                limit.as_secs()
            ),
            Kind::Lost(None) => {
                f.write_str("the server closed the connection unexpectedly; its log says why")
            }
            Kind::Lost(Some(error)) => write!(f, "connection lost: {error}"),
            Kind::Tls(why) => write!(f, "TLS: {why}"),
            Kind::Handshake(error) => {
                write!(f, "TLS: the server broke off the handshake ({error}); its log says why")
            }
            Kind::Server(error) => {
                write!(f, "{error}")?;
                match remedy(&error.code).filter(|_| error.hint.is_none()) {
                    // The server's words when pg_hba.conf admits only hostssl.
                    _ if error.code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION.code()
 && error.message.ends_with("no encryption") => f.write_str(
                        "; the server may ask for TLS: try sslmode=require, or see pg_hba.conf on the server",
                    ),
                    Some(remedy) => write!(f, "; {remedy}"),
                    None => Ok(()),
                }
            }
            Kind::Unsuitable(why) => why.fmt(f),
            Kind::Session(error) => match std::error::Error::source(error) {
                Some(cause) => write!(f, "{error}: {cause}"),
                None => write!(f, "{error}"),
            },
            Kind::Several(errors) => {
                f.write_str("no host could be used")?;
                errors.iter().try_for_each(|error| write!(f, "; {error}"))
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            Kind::Unreachable(error) | Kind::Lost(Some(error)) | Kind::Handshake(error) => Some(error),
            Kind::Server(error) => Some(&**error),
            Kind::Session(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ServerError> for Error {
    fn from(error: ServerError) -> Error {
        Error::new(Kind::Server(Box::new(error)))
    }
}

impl From<proto::frame::Error> for Error {
    fn from(error: proto::frame::Error) -> Error {
        Error::protocol(error.to_string())
    }
}

/// For callers that work with both kinds of connection: the server's error
/// keeps its fields, a closed connection is a lost one.
impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Error {
        if let Some(db) = error.as_db_error() {
            return server_error(db).into();
        }
        let io = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
        if error.is_closed() {
            return Error::new(Kind::Lost(None));
        }
        match io {
            Some(io) => Error::new(Kind::Lost(Some(io::Error::new(io.kind(), io.to_string())))),
            None => Error::new(Kind::Session(error)),
        }
    }
}

fn server_error(db: &tokio_postgres::error::DbError) -> ServerError {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    ServerError {
        severity: db.parsed_severity().map_or_else(|| db.severity().to_owned(), |level| level.to_string()),
        code: db.code().code().to_owned(),
        message: db.message().to_owned(),
        detail: owned(db.detail()),
        hint: owned(db.hint()),
        position: match db.position() {
            Some(tokio_postgres::error::ErrorPosition::Original(position)) => Some(*position),
            _ => None,
        },
        context: owned(db.where_()),
        schema: owned(db.schema()),
        table: owned(db.table()),
        column: owned(db.column()),
        data_type: owned(db.datatype()),
        constraint: owned(db.constraint()),
        routine: owned(db.routine()),
    }
}
