//! Asks on a session of its own whether one of our sessions waits for a lock, and for which session
//! (rule A3).
//!
//! The server finds cycles among sessions that wait for locks. A chunk that was executed
//! speculatively and waits for its turn waits for no lock. So the server never finds a cycle
//! through it. The workers ask here while other chunks are open, soon at first and then less and
//! less often: the question is cheap, but not free.

use std::time::Duration;

use client::{ConnInfo, Session};
use tokio_postgres::types::ToSql;

/// The longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// PostgreSQL's default, if the target does not report its value.
const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// What a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It waits for no lock.
    None,
    /// It waits for one of our sessions, perhaps through others. That wait never ends by itself.
    Ours,
    /// It waits for other sessions only, as far as the server knows.
    Others,
    /// The question failed.
    Unknown,
}

pub(crate) struct LockWatch {
    info: ConnInfo,
    application_name: String,
    /// `None` before the first question.
    session: Option<Session>,
    /// The target's `deadlock_timeout`.
    pub(crate) patience: Duration,
}

impl LockWatch {
    /// `deadlock_timeout` is in milliseconds, as the server shows it.
    pub(crate) fn new(info: ConnInfo, application_name: String, deadlock_timeout: Option<&str>) -> LockWatch {
        let timeout = deadlock_timeout.and_then(|text| text.parse().ok());
        let patience = timeout.map_or(DEADLOCK_TIMEOUT, Duration::from_millis);
        LockWatch { info, application_name, session: None, patience }
    }

    /// The target's address and the name of sessions that question it.
    pub(crate) fn asks(&self) -> (ConnInfo, String) {
        (self.info.clone(), self.application_name.clone())
    }

    /// Whether the backend `pid` waits for a lock, and whether one of `ours` blocks it in the end.
    pub(crate) async fn look(&mut self, pid: i32, ours: &[i32]) -> Wait {
        match self.answer(BLOCKING, &[&pid, &ours]).await {
            None => Wait::Unknown,
            Some((false, _)) => Wait::None,
            Some((true, true)) => Wait::Ours,
            Some((true, false)) => Wait::Others,
        }
    }

    /// Whether any session waits for the backend `pid`: [`Wait::Others`] or [`Wait::None`].
    pub(crate) async fn waits_for(&mut self, pid: i32) -> Wait {
        match self.answer(BLOCKED, &[&pid]).await {
            None => Wait::Unknown,
            Some((true, _)) => Wait::Others,
            Some((false, _)) => Wait::None,
        }
    }

    async fn answer(&mut self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Option<(bool, bool)> {
        match tokio::time::timeout(ANSWER_TIMEOUT, self.ask(sql, parameters)).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                tracing::debug!("could not ask the target for locks: {error}");
                self.session = None;
                None
            }
            Err(_) => {
                self.session = None;
                None
            }
        }
    }

    async fn ask(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(bool, bool), client::Error> {
        if self.session.is_none() {
            let settings = [("search_path", ""), ("statement_timeout", "5s"), ("idle_session_timeout", "0")];
            self.session = Some(client::connect(&self.info, &self.application_name, &settings).await?);
        }
        let session = self.session.as_ref().expect("just connected");
        let row = session.query_one(sql, parameters).await.map_err(|error| session.error(error))?;
        Ok((row.get(0), row.get(1)))
    }
}

/// $1 is the backend that others may wait for.
const BLOCKED: &str = "SELECT pg_catalog.count(*) > 0, false FROM pg_catalog.pg_locks l \
     WHERE NOT l.granted AND $1 = ANY (pg_catalog.pg_blocking_pids(l.pid))";

/// $1 is the backend that waits, $2 are our backends. A backend ahead in the lock's queue counts as
/// a blocker too.
const BLOCKING: &str = "WITH RECURSIVE b (pid) AS ( \
    SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids($1)) \
    UNION SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids(b.pid)) FROM b WHERE b.pid <> ALL ($2)) \
    SELECT pg_catalog.count(*) > 0, COALESCE(pg_catalog.bool_or(b.pid = ANY ($2)), false) FROM b";
