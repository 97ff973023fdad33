//! The sessions of a comparison, set up so that equal values have equal text.

use client::{ConnInfo, Session};
use tokio_postgres::SimpleQueryMessage;

use crate::Error;

/// Settings that change the results of output functions, or could end or disturb a long query. Both
/// ends use this one list, because they must agree.
const SETTINGS: [(&str, &str); 20] = [
    ("search_path", ""),
    ("client_encoding", "UTF8"),
    ("datestyle", "ISO, MDY"),
    ("intervalstyle", "postgres"),
    ("timezone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("lc_monetary", "C"),
    ("xmlbinary", "base64"),
    ("quote_all_identifiers", "off"),
    // A policy that would hide rows is an error instead.
    ("row_security", "off"),
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    ("statement_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("jit", "off"),
    ("synchronous_commit", "local"),
    ("tcp_keepalives_idle", "30"),
    // Of a look at the catalogs; see WORKER_LOCK_TIMEOUT for the rest.
    ("lock_timeout", "60s"),
];

/// Workers wait for a lock only if another session queues behind a holder's lock. The snapshots are
/// then given up.
const WORKER_LOCK_TIMEOUT: &str = "SET lock_timeout = '200ms'";

/// Rows of text, as the simple protocol gives them.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

/// One of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Target,
}

impl End {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            End::Source => "source",
            End::Target => "target",
        }
    }
}

/// Opens a session at `end`.
pub(crate) async fn connect(end: End, info: &ConnInfo, name: &str) -> Result<Session, Error> {
    let session = client::connect(info, name, &SETTINGS)
        .await
        .map_err(Error::client(format!("connect to the {}", end.as_str())))?;
    if session.version().major() >= 17 {
        run(&session, "set up a session", "SET transaction_timeout = 0").await?;
    }
    // A long query must not run to its end after `verify` is killed. Not every platform can notice
    // that, so a refusal is not an error.
    let _ = session.batch_execute("SET client_connection_check_interval = '5s'").await;
    Ok(session)
}

/// Runs `sql`, one or more statements.
pub(crate) async fn run(session: &Session, attempt: &str, sql: &str) -> Result<(), Error> {
    session.batch_execute(sql).await.map_err(|error| Error::query(session, attempt, error))
}

/// The rows of `sql`, values as their types' output functions give them.
pub(crate) async fn rows(session: &Session, attempt: &str, sql: &str) -> Result<Rows, Error> {
    let messages = session.simple_query(sql).await.map_err(|error| Error::query(session, attempt, error))?;
    let text = |row: tokio_postgres::SimpleQueryRow| {
        (0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect()
    };
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(text(row)),
        _ => None,
    });
    Ok(rows.collect())
}

/// The value in `column` as a number; 0 for NULL.
pub(crate) fn number(row: &[Option<String>], column: usize) -> u64 {
    row.get(column).and_then(|value| value.as_deref()?.parse().ok()).unwrap_or(0)
}

/// A worker's sessions at both ends.
pub(crate) struct Pair {
    pub(crate) source: Session,
    pub(crate) target: Session,
}

impl Pair {
    pub(crate) async fn connect(source: &ConnInfo, target: &ConnInfo, name: &str) -> Result<Pair, Error> {
        let pair = Pair {
            source: connect(End::Source, source, name).await?,
            target: connect(End::Target, target, name).await?,
        };
        for session in [&pair.source, &pair.target] {
            run(session, "set up a session", WORKER_LOCK_TIMEOUT).await?;
        }
        Ok(pair)
    }

    /// Begins transactions that see exported snapshots.
    pub(crate) async fn begin(&self, source: &str, target: &str) -> Result<(), Error> {
        let begin = |name: &str| {
            let name = base::quote_literal(name);
            format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {name}")
        };
        let (ours, theirs) = (begin(source), begin(target));
        let begun = tokio::try_join!(
            run(&self.source, "use the snapshot of the source", &ours),
            run(&self.target, "use the snapshot of the target", &theirs)
        );
        begun.map(drop)
    }

    /// Ends the transactions, whatever became of them.
    pub(crate) async fn end(&self) -> Result<(), Error> {
        let ended = tokio::try_join!(
            run(&self.source, "end a transaction", "ROLLBACK"),
            run(&self.target, "end a transaction", "ROLLBACK")
        );
        ended.map(drop)
    }
}
