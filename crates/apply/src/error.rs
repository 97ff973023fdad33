//! Why applying stopped.

use std::fmt;
use std::time::Duration;

use base::{Lsn, Xid};
use client::SqlState;
use conflict::Conflict;
use plan::{MappingError, quoted_name};
use proto::frame::ServerError;
use txn::{AssemblyError, Begin};

/// The reason why the applier stopped. In every case the target holds whole transactions up to its
/// stored progress.
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    Client(client::Error),
    /// The state on the target, or its origins, failed.
    State(state::Error),
    /// A table of the stream does not fit the target's.
    Mapping {
        error: MappingError,
        /// The transaction that needs the table, and where it finished.
        transaction: Option<(Xid, Lsn)>,
    },
    /// A column had another type when its values were written than when binary was chosen.
    OtherTypes {
        table: String,
        column: String,
    },
    Assembly(AssemblyError),
    /// A change could not be applied.
    Change {
        table: String,
        operation: &'static str,
        xid: Xid,
        finished_at: Lsn,
        error: ServerError,
    },
    Conflict {
        conflict: Conflict,
        xid: Xid,
        finished_at: Lsn,
    },
    /// COMMIT failed, for example by a deferred constraint.
    Commit {
        xid: Xid,
        finished_at: Lsn,
        error: ServerError,
    },
    /// A statement that belongs to no row failed.
    Statement {
        what: &'static str,
        error: ServerError,
    },
    NoIdentity {
        table: String,
        operation: &'static str,
        xid: Xid,
        finished_at: Lsn,
    },
    /// An UPDATE was to be inserted, and the source did not send all values of its row.
    Incomplete {
        table: String,
        xid: Xid,
        finished_at: Lsn,
    },
    /// A change met something else each time it was tried.
    Unsettled {
        table: String,
        operation: &'static str,
        xid: Xid,
        finished_at: Lsn,
    },
    /// Changes put aside on disk could not be read back.
    PutAside(std::io::Error),
    /// The role may not set `session_replication_role`.
    NotReplica,
    /// A rule for conflicts needs commit times, which the target does not keep.
    NoCommitTimes {
        rule: String,
    },
    /// The commit time of a transaction is too far ahead of the target's clock.
    ClockSkew {
        ahead: Duration,
        max: Duration,
        xid: Xid,
        finished_at: Lsn,
    },
    /// The table that was joining was forgotten meanwhile.
    Forgotten {
        table: String,
    },
    /// The executor's task ended without an error, as only a panic does.
    LostTask,
}

impl Error {
    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Adds the transaction that met a table that does not fit, so that it can be skipped.
    pub(crate) fn met_by(mut self, begin: Begin) -> Self {
        if let Kind::Mapping { transaction, .. } = &mut *self.0 {
            *transaction = Some((begin.xid, begin.final_lsn));
        }
        self
    }

    /// Whether the connection to the target was lost, or the server is not ready.
    #[must_use]
    pub fn is_connection_lost(&self) -> bool {
        matches!(&*self.0, Kind::Client(error) if error.is_connection_lost())
    }

    /// Whether the connection to the target was lost and the server gave no reason.
    #[must_use]
    pub fn is_unexplained(&self) -> bool {
        self.is_connection_lost() && self.sqlstate().is_none()
    }

    /// Whether values must come as text.
    #[must_use]
    pub fn needs_text(&self) -> bool {
        matches!(&*self.0, Kind::OtherTypes { .. })
    }

    /// Whether it was a deadlock, a serialization failure or a lock that was not available. The
    /// same work may succeed at once.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.sqlstate().is_some_and(is_transient)
    }

    /// Whether a change of the stream does not fit the target. Trying again helps only after the
    /// data was repaired or the transaction skipped.
    #[must_use]
    pub fn is_data(&self) -> bool {
        matches!(
            &*self.0,
            Kind::Change { .. }
                | Kind::Conflict { .. }
                | Kind::Commit { .. }
                | Kind::Mapping { .. }
                | Kind::NoIdentity { .. }
                | Kind::Incomplete { .. }
                | Kind::Unsettled { .. }
        )
    }

    /// Whether it is a violated unique key of which nobody has seen yet which rows hold it.
    pub(crate) fn is_unexamined(&self) -> bool {
        match &*self.0 {
            Kind::Conflict { conflict, .. } => {
                conflict.met.iter().any(|met| met.index.is_some() && met.written.is_none())
            }
            _ => false,
        }
    }

    /// Whether trying again cannot help: settings, rights, or a slot that does not match the state
    /// on the target.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        match &*self.0 {
            Kind::NotReplica | Kind::NoCommitTimes { .. } => true,
            Kind::State(error) => error.is_refused(),
            Kind::Client(error) => {
                error.is_configuration()
                    || error.is_authentication()
                    || error.is_tls()
                    || error.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE.code())
            }
            _ => false,
        }
    }

    /// Whether another process applies the same subscription.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(&*self.0, Kind::State(error) if error.is_in_use())
    }

    /// The commit LSN of the transaction that could not be applied, in the form for `skip --lsn`.
    #[must_use]
    pub fn finished_at(&self) -> Option<Lsn> {
        match &*self.0 {
            Kind::Change { finished_at, .. }
            | Kind::Conflict { finished_at, .. }
            | Kind::Commit { finished_at, .. }
            | Kind::NoIdentity { finished_at, .. }
            | Kind::Incomplete { finished_at, .. }
            | Kind::Unsettled { finished_at, .. }
            | Kind::ClockSkew { finished_at, .. } => Some(*finished_at),
            Kind::Mapping { transaction, .. } => transaction.map(|(_, finished_at)| finished_at),
            _ => None,
        }
    }

    /// Whether the role lacks a right on the target (`insufficient_privilege`).
    #[must_use]
    pub fn is_missing_right(&self) -> bool {
        self.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE.code())
    }

    pub(crate) fn sqlstate(&self) -> Option<&str> {
        match &*self.0 {
            Kind::Client(error) => error.sqlstate(),
            Kind::Change { error, .. } | Kind::Commit { error, .. } | Kind::Statement { error, .. } => {
                Some(&error.code)
            }
            _ => None,
        }
    }
}

/// Whether the same statements may succeed on the next attempt.
pub(crate) fn is_transient(sqlstate: &str) -> bool {
    matches!(
        SqlState::from_code(sqlstate),
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED | SqlState::LOCK_NOT_AVAILABLE
    )
}

/// Writes the server's error about a part of a transaction. Adds how to skip that transaction,
/// unless trying again may help.
fn refused_by_server(
    f: &mut fmt::Formatter<'_>,
    error: &ServerError,
    doing: &str,
    finished_at: Lsn,
) -> fmt::Result {
    let ServerError { severity, message, code, .. } = error;
    write!(f, "{severity}: {message} (SQLSTATE {code}) while processing {doing}, finished at {finished_at}")?;
    match client::advice(error) {
        // The server's own hint would then be about another problem.
        Some(advice) => write!(f, "; {advice}; pgsluice then goes on by itself")?,
        None => error.hint.iter().try_for_each(|hint| write!(f, "; hint: {hint}"))?,
    }
    match is_transient(code) {
        true => Ok(()),
        false => write!(f, "; to skip the transaction: pgsluice skip --lsn {finished_at}"),
    }
}

/// Adds to an error which transaction needs its remedy.
fn needed_by(f: &mut fmt::Formatter<'_>, xid: Xid, finished_at: Lsn) -> fmt::Result {
    write!(
        f,
        "; transaction {xid}, finished at {finished_at}, needs it; to skip that transaction: \
         pgsluice skip --lsn {finished_at}"
    )
}

fn no_identity(
    f: &mut fmt::Formatter<'_>,
    table: &str,
    operation: &str,
    xid: Xid,
    finished_at: Lsn,
) -> fmt::Result {
    write!(
        f,
        "the source sent {operation} for table \"{table}\" without a replica identity, in transaction {xid}, \
         finished at {finished_at}; ALTER TABLE {} REPLICA IDENTITY FULL on the source, and skip what was \
         sent already: pgsluice skip --lsn {finished_at}",
        quoted_name(table)
    )
}

fn incomplete(f: &mut fmt::Formatter<'_>, table: &str, xid: Xid, finished_at: Lsn) -> fmt::Result {
    write!(
        f,
        "an UPDATE for table \"{table}\" found no row and cannot be inserted instead, because the source did not \
         send the large values that it left as they were, in transaction {xid}, finished at {finished_at}; \
         ALTER TABLE {} REPLICA IDENTITY FULL on the source makes it send them from then on; to skip the \
         transaction: pgsluice skip --lsn {finished_at}",
        quoted_name(table)
    )
}

fn clock_skew(
    f: &mut fmt::Formatter<'_>,
    (ahead, max): (Duration, Duration),
    xid: Xid,
    finished_at: Lsn,
) -> fmt::Result {
    let (ahead, max) = (ahead.as_secs_f64(), max.as_secs_f64());
    write!(
        f,
        "the commit time of transaction {xid}, finished at {finished_at}, is {ahead:.1} s ahead of the target's clock, \
         and clock_skew_max is {max} s; correct the clocks of both servers: pgsluice then goes on by itself; to let it \
         wait that long: --clock-skew-max {}s; to skip the transaction: pgsluice skip --lsn {finished_at}",
        ahead.ceil()
    )
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Client(error) => write!(f, "{error}"),
            Kind::State(error) => error.fmt(f),
            Kind::Mapping { error, transaction } => {
                error.fmt(f)?;
                transaction.iter().try_for_each(|(xid, finished_at)| needed_by(f, *xid, *finished_at))
            }
            Kind::OtherTypes { table, column } => write!(
                f,
                "column \"{column}\" of table \"{table}\" had another type on the source when the coming changes \
                 were written: pgsluice reads them again with values as text"
            ),
            Kind::Assembly(error) => error.fmt(f),
            Kind::Change { table, operation, xid, finished_at, error } => {
                let doing = format!("{operation} for replication target relation \"{table}\" in transaction {xid}");
                refused_by_server(f, error, &doing, *finished_at)
            }
            Kind::Conflict { conflict, xid, finished_at } => write!(
                f,
                "{conflict} Transaction {xid}, finished at {finished_at}. \
                 Remove the row on the target, or skip the transaction: pgsluice skip --lsn {finished_at}"
            ),
            Kind::Commit { xid, finished_at, error } => {
                refused_by_server(f, error, &format!("COMMIT of transaction {xid}"), *finished_at)
            }
            Kind::Statement { what, error } => {
                write!(f, "{what} failed on the target: {} (SQLSTATE {})", error.message, error.code)?;
                error.hint.iter().try_for_each(|hint| write!(f, "; hint: {hint}"))
            }
            Kind::NoIdentity { table, operation, xid, finished_at } => {
                no_identity(f, table, operation, *xid, *finished_at)
            }
            Kind::Incomplete { table, xid, finished_at } => incomplete(f, table, *xid, *finished_at),
            Kind::Unsettled { table, operation, xid, finished_at } => write!(
                f,
                "{operation} for table \"{table}\" in transaction {xid}, finished at {finished_at}, met other rows each \
                 time it was tried; pgsluice tries again"
            ),
            Kind::PutAside(error) => {
                write!(f, "pgsluice cannot put changes aside in the spool directory, or read them back: {error}; \
                           the source sends them again")
            }
            Kind::NotReplica => f.write_str(
                "the target's role may not set session_replication_role, so its triggers and foreign keys would \
                 fire a second time for replicated changes; give it the right, with the GRANT that pgsluice check \
                 prints (15 and later), use a superuser, or accept this with --allow-triggers",
            ),
            Kind::NoCommitTimes { rule } => write!(
                f,
                "the conflict rule \"{rule}\" needs the commit times and origins of the target's rows, which the target \
                 does not keep; on the target: ALTER SYSTEM SET track_commit_timestamp = on, then restart it. Rows \
                 written before then count as older than all others"
            ),
            Kind::ClockSkew { ahead, max, xid, finished_at } => {
                clock_skew(f, (*ahead, *max), *xid, *finished_at)
            }
            Kind::Forgotten { table } => write!(
                f,
                "table \"{table}\" is no longer replicated: it was left out, or removed from pgsluice.copied_table, \
                 while it was copied; pgsluice starts the stream again without it"
            ),
            Kind::LostTask => f.write_str("the applier's task ended without a result"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Client(error) => error.source(),
            Kind::State(error) => error.source(),
            Kind::Assembly(error) => error.source(),
            Kind::PutAside(error) => Some(error),
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

impl From<state::Error> for Error {
    fn from(error: state::Error) -> Self {
        match error.into_client() {
            Ok(client) => client.into(),
            Err(error) => Kind::State(error).into(),
        }
    }
}

impl From<MappingError> for Error {
    fn from(error: MappingError) -> Self {
        Kind::Mapping { error, transaction: None }.into()
    }
}

impl From<AssemblyError> for Error {
    fn from(error: AssemblyError) -> Self {
        Kind::Assembly(error).into()
    }
}
