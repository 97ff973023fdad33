//! Why the schema could not be brought over.

use std::fmt;
use std::path::PathBuf;

use client::SqlState;

use crate::PgDump;

/// A schema that was not created, or not all of it.
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    /// What `--pg-dump` names will not do.
    NotPgDump {
        path: PathBuf,
        why: String,
        source_major: u32,
    },
    NoPgDump {
        source_major: u32,
    },
    OldPgDump {
        found: Vec<PgDump>,
        source_major: u32,
    },
    /// It ended with these words.
    DumpFailed {
        program: PgDump,
        words: String,
        passing: bool,
    },
    /// The source's names cannot be read.
    NotUtf8 {
        program: PgDump,
    },
    /// The dump ends in the middle, in this object.
    CutDump {
        within: String,
    },
    /// The dump has a command for psql that is not known here.
    UnknownCommand {
        line: String,
    },
    /// Policies name roles that the target lacks.
    MissingRoles {
        roles: String,
    },
    /// A server refused a statement or was lost, while doing what the text
    /// says.
    Client {
        attempt: String,
        cause: client::Error,
        remedy: Option<String>,
    },
    /// A worker of ours ended as it never should.
    Broken(String),
}

impl Error {
    /// `attempt` completes "cannot ...".
    pub(crate) fn client(attempt: impl Into<String>, cause: client::Error) -> Error {
        Kind::Client { attempt: attempt.into(), cause, remedy: None }.into()
    }

    pub(crate) fn broken(message: impl Into<String>) -> Error {
        Kind::Broken(message.into()).into()
    }

    /// Adds what to do.
    pub(crate) fn with_remedy(mut self, text: Option<String>) -> Error {
        if let Kind::Client { remedy, .. } = &mut *self.0 {
            *remedy = text;
        }
        self
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// What is so, without what to do.
    #[must_use]
    pub fn what(&self) -> String {
        match &*self.0 {
            Kind::NotPgDump { path, why, .. } => {
                format!("--pg-dump {} cannot be used: {why}", path.display())
            }
            Kind::NoPgDump { source_major } => format!(
                "pg_dump is not installed on this machine, and --create-schema needs one of version {source_major}, \
                 the source's, or newer"
            ),
            Kind::OldPgDump { found, source_major } => format!(
                "{} cannot read a source of version {source_major}: pg_dump must not be older than the server",
                found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ),
            Kind::DumpFailed { program, words, .. } => {
                format!("{program} could not read the source's schema: {words}")
            }
            Kind::NotUtf8 { program } => format!(
                "{program} could not read the source's schema: it has names that are not UTF-8, as a database of \
                 encoding SQL_ASCII may"
            ),
            Kind::CutDump { within } => {
                format!("what pg_dump printed ends in the middle of a statement, in {within}")
            }
            Kind::UnknownCommand { line } => {
                format!("pg_dump printed a command for psql that is not known here: {line}")
            }
            Kind::MissingRoles { roles } => format!(
                "row level security policies of the source name roles that the target has not got: {roles}"
            ),
            Kind::Client { attempt, cause, .. } => format!("cannot {attempt}: {cause}"),
            Kind::Broken(message) => format!("creating the schema broke down, an internal error: {message}"),
        }
    }

    /// What to do, if that is known here.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match &*self.0 {
            Kind::NotPgDump { source_major, .. } => {
                Some(format!("give the path of a pg_dump of version {source_major} or newer"))
            }
            Kind::NoPgDump { source_major } | Kind::OldPgDump { source_major, .. } => Some(format!(
                "install that of version {source_major} or newer on this machine (on Debian \
                 postgresql-client-{source_major}), or give its path by --pg-dump"
            )),
            Kind::NotUtf8 { .. } => Some("rename them".to_owned()),
            Kind::CutDump { .. } | Kind::UnknownCommand { .. } => {
                Some("give another pg_dump by --pg-dump, or create the tables yourself".to_owned())
            }
            Kind::MissingRoles { .. } => Some("create them on the target, with CREATE ROLE".to_owned()),
            Kind::Client { remedy, cause, .. } => {
                remedy.clone().or_else(|| cause.server().and_then(client::advice))
            }
            Kind::DumpFailed { .. } | Kind::Broken(_) => None,
        }
    }

    /// The same again may succeed: a connection was lost, a server is away or
    /// short of something, a lock was not to be had.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match &*self.0 {
            Kind::Client { cause, .. } => {
                cause.is_connection_lost() || cause.sqlstate().is_some_and(is_passing)
            }
            Kind::DumpFailed { passing, .. } => *passing,
            _ => false,
        }
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

/// Transaction rollback (40), a full disk and too many connections, operator
/// intervention (57), a lock that was not to be had in time. Not all of 53:
/// a lock table that is too small stays so.
fn is_passing(code: &str) -> bool {
    let is_state = matches!(
        SqlState::from_code(code),
        SqlState::DISK_FULL | SqlState::TOO_MANY_CONNECTIONS | SqlState::LOCK_NOT_AVAILABLE
    );
    is_state || code.starts_with("40") || code.starts_with("57")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        match self.remedy() {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Error {
        Error(Box::new(kind))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Client { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
