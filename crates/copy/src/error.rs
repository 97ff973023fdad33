//! Why a first copy stopped.

use std::fmt;

use client::SqlState;
use source::publication::TableName;

/// A first copy that stopped before its end. Finished tables stay finished.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    /// The table that the error is about, if it is about one.
    table: Option<TableName>,
    kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// The connection or the server, while doing what the text says.
    Client { attempt: &'static str, cause: client::Error },
    /// The target has no such table.
    NoTable,
    /// The target has another kind of relation with this name.
    NotATable,
    /// The target's table lacks these columns.
    MissingColumns(Vec<String>),
    /// The target's role may not set `session_replication_role`.
    NotReplica,
    /// The source's table disappeared during the copy: another attempt looks again.
    Dropped,
    /// The source's table was written anew, which the snapshot does not see: another attempt takes
    /// a new snapshot.
    Rewritten,
    /// The snapshot disappeared: another attempt takes a new one.
    SnapshotGone(client::Error),
    /// The caller asked for it.
    Stopped,
    /// A copy worker ended in a way that should be impossible.
    Broken(String),
}

impl Error {
    pub(crate) fn new(kind: Kind) -> Error {
        Error(Box::new(Inner { table: None, kind }))
    }

    /// For `map_err`: `attempt` completes "cannot ...".
    pub(crate) fn client(attempt: &'static str) -> impl Fn(client::Error) -> Error + Copy {
        move |cause| Error::new(Kind::Client { attempt, cause })
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    pub(crate) fn stopped() -> Error {
        Error::new(Kind::Stopped)
    }

    pub(crate) fn broken(message: impl Into<String>) -> Error {
        Error::new(Kind::Broken(message.into()))
    }

    /// Adds which table this was about.
    pub(crate) fn of(mut self, table: &TableName) -> Error {
        self.0.table.get_or_insert_with(|| table.clone());
        self
    }

    /// A new attempt under a new snapshot may succeed: a connection was lost, a server is away or
    /// short of a resource, the snapshot is gone, or a lock was not granted.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match &self.0.kind {
            Kind::Client { cause, .. } => {
                cause.is_connection_lost() || cause.sqlstate().is_some_and(is_passing)
            }
            Kind::Dropped | Kind::Rewritten | Kind::SnapshotGone(_) => true,
            Kind::NoTable
            | Kind::NotATable
            | Kind::MissingColumns(_)
            | Kind::NotReplica
            | Kind::Stopped
            | Kind::Broken(_) => false,
        }
    }

    /// The target's table refuses the rows until somebody does what the message says.
    #[must_use]
    pub fn is_repairable(&self) -> bool {
        match &self.0.kind {
            Kind::Client { cause, .. } => cause.server().and_then(client::advice).is_some(),
            _ => false,
        }
    }

    /// Only this table cannot be copied under this snapshot.
    pub(crate) fn is_rewritten(&self) -> bool {
        matches!(self.0.kind, Kind::Rewritten)
    }

    /// The caller asked for it; nothing is wrong.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self.0.kind, Kind::Stopped)
    }

    /// The SQLSTATE, if a server answered with an error.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        match &self.0.kind {
            Kind::Client { cause, .. } => cause.sqlstate(),
            _ => None,
        }
    }

    /// The table it was about.
    #[must_use]
    pub fn table(&self) -> Option<&TableName> {
        self.0.table.as_ref()
    }
}

/// Transaction rollback (40), insufficient resources (53), operator intervention (57), and a lock
/// that was not granted in time.
fn is_passing(code: &str) -> bool {
    matches!(&code[..2.min(code.len())], "40" | "53" | "57") || code == SqlState::LOCK_NOT_AVAILABLE.code()
}

/// Where in the COPY it was, without the value: `line 5, column v`.
fn copy_position(context: &str) -> Option<&str> {
    // "COPY t, line 5, column v: "value"", "COPY t, line 5", and the like.
    let line = context.lines().find(|line| line.starts_with("COPY "))?;
    let start = line
        .match_indices(", line ")
        .find(|(at, found)| line[at + found.len()..].starts_with(|c: char| c.is_ascii_digit()))?;
    let position = &line[start.0 + 2..];
    Some(position.split_once(": ").map_or(position, |(position, _)| position))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(table) = &self.0.table {
            write!(f, "first copy of table \"{table}\": ")?;
        } else {
            f.write_str("first copy: ")?;
        }
        match &self.0.kind {
            Kind::Client { attempt, cause } => {
                write!(f, "cannot {attempt}: {cause}")?;
                let context = cause.server().and_then(|error| error.context.as_deref());
                if let Some(position) = context.and_then(copy_position) {
                    write!(f, "; at {position} of the COPY")?;
                }
                match cause.server().and_then(client::advice) {
                    Some(advice) => write!(f, "; {advice}; pgsluice then goes on by itself"),
                    None => Ok(()),
                }
            }
            Kind::NoTable => f.write_str(
                "the target has no table of this name; create it there with the same columns, or take the table out \
                 of the publication",
            ),
            Kind::NotATable => f.write_str(
                "on the target this name stands for something other than a table; rename one of them",
            ),
            Kind::MissingColumns(columns) => write!(
                f,
                "the target's table has no column {}; add what is missing there, or publish a column list without it",
                columns.iter().map(|column| format!("\"{column}\"")).collect::<Vec<_>>().join(", ")
            ),
            Kind::NotReplica => f.write_str(
                "the target's role may not set session_replication_role, so triggers would fire for every copied \
                 row; give it the right, with the GRANT that pgsluice check prints (15 and later), or run with \
                 --allow-triggers",
            ),
            Kind::Dropped => f.write_str("the source's table was dropped since pgsluice looked at it; the next \
                                          attempt looks again"),
            Kind::Rewritten => f.write_str(
                "on the source it was rewritten since the snapshot was taken (ALTER TABLE, TRUNCATE, VACUUM FULL, \
                 CLUSTER); pgsluice copies it under another snapshot",
            ),
            Kind::SnapshotGone(error) => {
                write!(f, "the exported snapshot is gone, its session has ended: {error}")
            }
            Kind::Stopped => f.write_str("stopped"),
            Kind::Broken(message) => write!(f, "internal error: {message}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            Kind::Client { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_is_told_and_the_value_is_not() {
        let position = |context| copy_position(context);
        assert_eq!(position("COPY t, line 5, column v: \"secret\""), Some("line 5, column v"));
        assert_eq!(position("COPY t, line 7: \"a\tb\""), Some("line 7"));
        assert_eq!(position("COPY a, line x, line 12, column \"v\""), Some("line 12, column \"v\""));
        assert_eq!(position("PL/pgSQL function f() line 3\nCOPY t, line 9"), Some("line 9"));
        assert_eq!(position("SQL statement"), None);
    }
}
