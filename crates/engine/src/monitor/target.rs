//! Why the target does not go on: a lock that somebody holds, or a connection
//! that brings nothing any more.
//!
//! The stages' own figures say that something is under way and does not move.
//! Only then the target is asked, on a session of its own, which must disturb
//! nothing: when it fails, it is asked again a second later.
//!
//! | what the target says | then |
//! |---|---|
//! | a session of ours waits for a lock | status and one log line name the table, who holds the lock, and the remedy |
//! | a backend of ours waits for us, or is gone, while we wait for it, for longer than `wal_receiver_timeout` | the connection is taken for lost |
//! | anything else | it works |
//!
//! A lock may be held for as long as its holder likes: nothing is given up for
//! it. A network that stalls without a word is noticed by TCP, but only when the
//! kernel gives up, after a quarter of an hour, and not at all behind a proxy
//! that is alive.

use std::sync::Arc;
use std::time::Duration;

use client::Session;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ANSWER_TIMEOUT, INTERVAL};
use crate::status::{Blocked, Motion};
use crate::{Settings, Status};

/// Nothing is asked before work has stood still for so long.
const PATIENCE: Duration = Duration::from_secs(2);

/// Our sessions that wait for a lock: the table and the seconds, and who is
/// waited for. Of a row that another transaction holds the waiter has a lock on
/// the row's place, which tells the table. Process 0 stands for prepared
/// transactions.
const WAITS: &str = "\
SELECT a.pid, EXTRACT(epoch FROM pg_catalog.clock_timestamp() - l.waitstart)::float8,
       COALESCE(l.relation, (SELECT t.relation FROM pg_catalog.pg_locks t
                              WHERE t.pid = a.pid AND t.locktype = 'tuple' AND t.granted LIMIT 1))::regclass::text,
       b.pids, (SELECT pg_catalog.string_agg(CASE WHEN p.pid = 0 THEN 'a prepared transaction' ELSE
                 pg_catalog.format('process %s (%s, user %s, %s)', p.pid,
                     COALESCE(NULLIF(h.application_name, ''), h.backend_type, 'unknown'),
                     COALESCE(h.usename, '-'),
                     COALESCE(h.state || COALESCE(' for ' || EXTRACT(epoch FROM pg_catalog.now() - h.state_change)::int || ' s', ''),
                              'state unknown')) END, ', ')
            FROM pg_catalog.unnest(b.pids) AS p (pid) LEFT JOIN pg_catalog.pg_stat_activity h ON h.pid = p.pid)
FROM pg_catalog.pg_stat_activity a
JOIN pg_catalog.pg_locks l ON l.pid = a.pid AND NOT l.granted
CROSS JOIN LATERAL (SELECT ARRAY(SELECT DISTINCT u FROM pg_catalog.unnest(pg_catalog.pg_blocking_pids(a.pid)) u) AS pids) b
WHERE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid() AND pg_catalog.cardinality(b.pids) > 0
  AND (pg_catalog.starts_with(a.application_name, $1)
       OR a.application_name = pg_catalog.current_setting('application_name'))
ORDER BY 2 DESC NULLS LAST LIMIT 1";

/// Whether the backend that applies is executing something. Between two statements of a pipeline it is `active` too.
const WORKS: &str = "\
SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity a
                WHERE a.pid = $1 AND (a.state IS NULL OR a.state IN ('active', 'fastpath function call'))
                  AND a.wait_event IS DISTINCT FROM 'ClientRead')";

/// Keeps `status` told of what the target waits for until `stop`.
pub async fn watch_target(settings: Arc<Settings>, status: Arc<Status>, stop: CancellationToken) {
    let mut watch =
        Watch { settings: &settings, status: &status, session: None, told: None, silent_since: None };
    tokio::select! {
        () = watch.run() => {}
        () = stop.cancelled() => {}
    }
}

struct Watch<'a> {
    settings: &'a Settings,
    status: &'a Status,
    /// Only while there is something to ask.
    session: Option<Session>,
    /// What the log has been told.
    told: Option<String>,
    /// Since when the target says that it waits for us.
    silent_since: Option<Instant>,
}

impl Watch<'_> {
    async fn run(&mut self) {
        let mut motion = self.status.motion();
        let mut moved_at = Instant::now();
        loop {
            tokio::time::sleep(INTERVAL).await;
            let now = self.status.motion();
            if now != motion || !now.under_way {
                motion = now;
                moved_at = Instant::now();
                self.moves();
            } else if moved_at.elapsed() >= PATIENCE {
                match tokio::time::timeout(ANSWER_TIMEOUT, self.ask(&motion)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        tracing::debug!("could not ask the target what it waits for: {error}");
                        self.session = None;
                    }
                    Err(_) => self.session = None,
                }
            }
        }
    }

    fn moves(&mut self) {
        self.session = None;
        self.silent_since = None;
        self.status.set_blocked(None);
        if self.told.take().is_some() {
            tracing::info!(subscription = %self.settings.subscription, "going on: the lock on the target was released");
        }
    }

    async fn ask(&mut self, motion: &Motion) -> Result<(), client::Error> {
        let ours = self.settings.subscription.application_name("");
        let session = self.session().await?;
        let row = session.query_opt(WAITS, &[&ours]).await.map_err(|error| session.error(error))?;
        let blocked = row.map(|row| Blocked {
            pid: row.get(0),
            seconds: row.get::<_, Option<f64>>(1).unwrap_or_default().max(0.0),
            table: row.get(2),
            blocking_pids: row.get(3),
            held_by: row.get(4),
        });
        if let Some(blocked) = &blocked {
            self.tell(blocked);
        }
        let is_blocked = blocked.is_some();
        self.status.set_blocked(blocked);
        match motion.awaited.filter(|_| !is_blocked) {
            Some(pid) => self.check_silence(pid).await,
            None => {
                self.silent_since = None;
                Ok(())
            }
        }
    }

    async fn session(&mut self) -> Result<&Session, client::Error> {
        let name = self.settings.subscription.application_name("monitor");
        let settings = [("search_path", ""), ("statement_timeout", "10s"), ("jit", "off")];
        match self.session.take() {
            Some(session) => Ok(self.session.insert(session)),
            None => Ok(self.session.insert(client::connect(&self.settings.target, &name, &settings).await?)),
        }
    }

    /// Once for each table and holder.
    fn tell(&mut self, blocked: &Blocked) {
        let pids: Vec<String> = blocked.blocking_pids.iter().map(ToString::to_string).collect();
        let key = format!("{} {}", blocked.table.as_deref().unwrap_or_default(), pids.join(","));
        if self.told.as_ref() == Some(&key) {
            return;
        }
        self.told = Some(key);
        tracing::warn!(subscription = %self.settings.subscription, "{}; {}", blocked, blocked.remedy());
    }

    /// We wait for the backend `pid`: does it work, or does it wait for us?
    async fn check_silence(&mut self, pid: i32) -> Result<(), client::Error> {
        let session = self.session().await?;
        let works = session.query_one(WORKS, &[&pid]).await.map_err(|error| session.error(error))?;
        let timeout = self.settings.wal_receiver_timeout;
        if works.get(0) || timeout.is_zero() {
            self.silent_since = None;
            return Ok(());
        }
        let since = *self.silent_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= timeout {
            self.silent_since = None;
            self.status.give_up_target(pid, since.elapsed());
        }
        Ok(())
    }
}
