//! Why the schema could not be brought over.

use std::fmt;

/// A schema that was not created, or not all of it.
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug)]
enum Kind {
    /// No pg_dump, one that will not do, or one that failed.
    PgDump { what: String, remedy: Option<String>, passing: bool },
    /// A server refused a statement or was lost, while doing what the text
    /// says.
    Client { attempt: String, cause: client::Error, remedy: Option<String> },
    /// A worker of ours ended as it never should.
    Broken(String),
}

impl Error {
    pub(crate) fn pg_dump(what: impl Into<String>) -> Error {
        Error(Box::new(Kind::PgDump { what: what.into(), remedy: None, passing: false }))
    }

    /// `attempt` completes "cannot ...".
    pub(crate) fn client(attempt: impl Into<String>, cause: client::Error) -> Error {
        Error(Box::new(Kind::Client { attempt: attempt.into(), cause, remedy: None }))
    }

    pub(crate) fn broken(message: impl Into<String>) -> Error {
        Error(Box::new(Kind::Broken(message.into())))
    }

    /// Adds whether the same may succeed later.
    pub(crate) fn passing(mut self, is: bool) -> Error {
        if let Kind::PgDump { passing, .. } = &mut *self.0 {
            *passing = is;
        }
        self
    }

    /// Adds what to do.
    pub(crate) fn with_remedy(mut self, text: Option<String>) -> Error {
        if let Kind::Client { remedy, .. } | Kind::PgDump { remedy, .. } = &mut *self.0 {
            *remedy = text;
        }
        self
    }

    /// What is so, without what to do.
    #[must_use]
    pub fn what(&self) -> String {
        match &*self.0 {
            Kind::PgDump { what, .. } => what.clone(),
            Kind::Client { attempt, cause, .. } => format!("cannot {attempt}: {cause}"),
            Kind::Broken(message) => format!("internal error: {message}"),
        }
    }

    /// What to do, if that is known here.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match &*self.0 {
            Kind::PgDump { remedy, .. } | Kind::Client { remedy, .. } => remedy.as_deref(),
            Kind::Broken(_) => None,
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
            Kind::PgDump { passing, .. } => *passing,
            Kind::Broken(_) => false,
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
    code.starts_with("40") || code.starts_with("57") || matches!(code, "53100" | "53300" | "55P03")
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

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Client { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
