//! Whether a session of ours waits for a lock, and for whom, asked on another
//! (rule A3).
//!
//! The server finds cycles among those who wait for locks. A chunk that was
//! executed ahead and waits for its turn waits for no lock, so a cycle through
//! it is never found. It is asked for while others are open, soon at first and
//! then ever more seldom: what is asked is cheap, but not free.

use std::time::Duration;

use client::{ConnInfo, Session};
use tokio_postgres::types::ToSql;

/// The longest an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// PostgreSQL's default, should the target not say.
const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// What a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// No lock.
    None,
    /// A session of ours, or one that waits for a session of ours: that never
    /// ends by itself.
    Ours,
    /// Others, as far as the server knows.
    Others,
    /// It could not be asked.
    Unknown,
}

pub(crate) struct LockWatch {
    info: ConnInfo,
    application_name: String,
    /// From the first question on.
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

    /// Where the target is, and how sessions that ask it are called.
    pub(crate) fn asks(&self) -> (ConnInfo, String) {
        (self.info.clone(), self.application_name.clone())
    }

    /// What the backend `pid` waits for, if for one of `ours` in the end.
    pub(crate) async fn look(&mut self, pid: i32, ours: &[i32]) -> Wait {
        match self.answer(BLOCKING, &[&pid, &ours]).await {
            None => Wait::Unknown,
            Some((false, _)) => Wait::None,
            Some((true, true)) => Wait::Ours,
            Some((true, false)) => Wait::Others,
        }
    }

    /// Whether anybody waits for the backend `pid`: [`Wait::Others`] or [`Wait::None`].
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

/// $1 who may be waited for.
const BLOCKED: &str = "SELECT pg_catalog.count(*) > 0, false FROM pg_catalog.pg_locks l \
     WHERE NOT l.granted AND $1 = ANY (pg_catalog.pg_blocking_pids(l.pid))";

/// $1 who waits, $2 ours. Whoever waits behind another in a lock's queue is
/// among those who are blocked by it.
const BLOCKING: &str = "WITH RECURSIVE b (pid) AS ( \
    SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids($1)) \
    UNION SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids(b.pid)) FROM b WHERE b.pid <> ALL ($2)) \
    SELECT pg_catalog.count(*) > 0, COALESCE(pg_catalog.bool_or(b.pid = ANY ($2)), false) FROM b";
