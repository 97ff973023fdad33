//! Why a server does not go on: another session holds a lock, a statement or a COMMIT takes long,
//! or a connection brings nothing any more.
//!
//! The stages' own figures show that work is under way and does not move. Only then this module
//! asks the server, on a session of its own. That session must not disturb the pipeline; if it
//! fails, the next question comes a second later. The target is watched in every phase. The source
//! is watched until the stream has begun, because until then a slot waits for transactions and the
//! first copy for locks.
//!
//! | what the server says | then |
//! |---|---|
//! | a session of ours waits for a lock | status and one log line name the table, the holder of the lock, and the remedy |
//! | a backend of ours executes something | status names it, with what it waits for; the log does when it has taken long |
//! | a backend of ours on the target waits for us, or is gone, while we wait for it, for longer than `wal_receiver_timeout` | the connection is taken for lost |
//!
//! Another session may hold a lock for as long as it likes, and pgsluice keeps waiting. A network
//! that drops packets silently is different. TCP notices only when the kernel gives up, after a
//! quarter of an hour. Behind a proxy that is alive, it never notices.

use std::sync::Arc;
use std::time::Duration;

use client::{ConnInfo, Session};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ANSWER_TIMEOUT, INTERVAL};
use crate::status::{BackendLook, Blocked, Motion, WaitsFor, read_statement};
use crate::{Settings, Status};

/// How long work must stand still before the server is asked.
const PATIENCE: Duration = Duration::from_millis(900);
/// Interval between checks of whether work moves.
const LOOK: Duration = Duration::from_millis(250);
/// Statements that take longer than this are logged as well.
const LONG: Duration = Duration::from_secs(10);

/// Our sessions that wait for a lock: the table, the seconds, and the sessions that they wait for.
/// A session that waits for another transaction's row holds a lock on the row's place, which names
/// the table. Process 0 stands for prepared transactions.
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

/// The oldest transaction that writes. A look at the catalogs waits for all that ran when it began.
const OLDEST: &str = "\
SELECT t.pid, EXTRACT(epoch FROM pg_catalog.clock_timestamp() - t.began)::float8, t.words
FROM (SELECT h.pid, h.xact_start AS began,
             pg_catalog.format('process %s (%s, user %s, %s)', h.pid, COALESCE(NULLIF(h.application_name, ''), h.backend_type, 'unknown'),
                 COALESCE(h.usename, '-'), COALESCE(h.state, 'state unknown')) AS words
        FROM pg_catalog.pg_stat_activity h WHERE h.backend_xid IS NOT NULL AND h.pid <> pg_catalog.pg_backend_pid()
      UNION ALL SELECT 0, p.prepared, 'a prepared transaction' FROM pg_catalog.pg_prepared_xacts p) t
ORDER BY t.began LIMIT 1";

/// What the backend $1 does. If $1 is 0, what one of our sessions does that executes something.
/// Between two statements of a pipeline a backend is `active`, too.
const DOES: &str = "\
SELECT a.pid, a.state, a.wait_event_type, a.wait_event, a.query,
       EXTRACT(epoch FROM pg_catalog.clock_timestamp() - a.query_start)::float8
FROM pg_catalog.pg_stat_activity a
WHERE CASE WHEN $1::int4 <> 0 THEN a.pid = $1::int4
           ELSE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid() AND a.state = 'active'
                AND pg_catalog.starts_with(a.application_name, $2) END
ORDER BY a.wait_event IS NOT DISTINCT FROM 'ClientRead', a.query_start LIMIT 1";

/// What the backend `pid` of the target does, or, if that is 0, one of `ours` that does something.
pub(super) async fn look_at(
    session: &Session,
    pid: i32,
    ours: &str,
) -> Result<Option<BackendLook>, client::Error> {
    let row = session.query_opt(DOES, &[&pid, &ours]).await.map_err(|error| session.error(error))?;
    Ok(row.map(|row| {
        let (kind, name): (Option<String>, Option<String>) = (row.get(2), row.get(3));
        let (operation, table) = read_statement(row.get::<_, Option<&str>>(4).unwrap_or_default());
        let lasts = row.get::<_, Option<f64>>(5).unwrap_or_default().max(0.0);
        BackendLook {
            end: Place::Target.word(),
            pid: row.get(0),
            state: row.get(1),
            wait_event: kind.zip(name),
            operation,
            table,
            lasts: Duration::try_from_secs_f64(lasts).unwrap_or_default(),
        }
    }))
}

/// Keeps what both servers wait for in `status` up to date until `stop`.
pub async fn watch_target(settings: Arc<Settings>, status: Arc<Status>, stop: CancellationToken) {
    let mut target = Watch::of(Place::Target, &settings, &status);
    let mut source = Watch::of(Place::Source, &settings, &status);
    tokio::select! {
        () = target.run() => {}
        () = source.run() => {}
        () = stop.cancelled() => {}
    }
}

/// The server that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Target,
    Source,
}

impl Place {
    const fn word(self) -> &'static str {
        match self {
            Place::Target => "target",
            Place::Source => "source",
        }
    }
}

/// What was logged last.
enum ToldWait {
    Lock(String),
    /// What took long, and since when.
    Long(String, Instant),
}

struct Watch<'a> {
    place: Place,
    settings: &'a Settings,
    status: &'a Status,
    /// Connected only while there is something to ask.
    session: Option<Session>,
    told: Option<ToldWait>,
    /// Since when the target has said that it waits for us.
    silent_since: Option<Instant>,
}

impl<'a> Watch<'a> {
    fn of(place: Place, settings: &'a Settings, status: &'a Status) -> Watch<'a> {
        Watch { place, settings, status, session: None, told: None, silent_since: None }
    }

    async fn run(&mut self) {
        let mut motion = self.status.motion();
        let mut moved_at = Instant::now();
        let mut asked_at = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let now = self.status.motion();
            let is_watched = self.place == Place::Target || now.is_before_stream;
            if now != motion || !now.under_way || !is_watched {
                motion = now;
                moved_at = Instant::now();
                asked_at = None;
                self.moves();
            } else if moved_at.elapsed() >= PATIENCE
                && asked_at.is_none_or(|at: Instant| at.elapsed() >= INTERVAL)
            {
                asked_at = Some(Instant::now());
                match tokio::time::timeout(ANSWER_TIMEOUT, self.ask(&motion)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        tracing::debug!("could not ask the {} what it waits for: {error}", self.place.word());
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
        self.status.set_blocked(self.place as usize, None);
        self.status.set_looked(self.place as usize, None);
        let (name, place) = (&self.settings.subscription, self.place.word());
        match self.told.take() {
            Some(ToldWait::Lock(_)) => {
                tracing::info!(subscription = %name, "going on: the lock on the {place} was released");
            }
            Some(ToldWait::Long(what, since)) => {
                tracing::info!(subscription = %name, "going on, after {} s: {what}", since.elapsed().as_secs());
            }
            None => {}
        }
    }

    async fn ask(&mut self, motion: &Motion) -> Result<(), client::Error> {
        let ours = self.settings.subscription.application_name("");
        let end = self.place.word().to_owned();
        let session = self.session().await?;
        let row = session.query_opt(WAITS, &[&ours]).await.map_err(|error| session.error(error))?;
        let blocked = row.map(|row| Blocked {
            pid: row.get(0),
            seconds: row.get::<_, Option<f64>>(1).unwrap_or_default().max(0.0),
            table: row.get(2),
            blocking_pids: row.get(3),
            held_by: row.get(4),
            end,
        });
        let blocked = match blocked {
            None if self.place == Place::Source && self.status.decoded().is_looking() => {
                self.oldest().await?
            }
            blocked => blocked,
        };
        if let Some(blocked) = &blocked {
            self.tell(blocked);
        }
        let is_blocked = blocked.is_some();
        self.status.set_blocked(self.place as usize, blocked);
        match is_blocked {
            true => {
                self.silent_since = None;
                self.status.set_looked(self.place as usize, None);
                Ok(())
            }
            false => self.look(motion.awaited).await,
        }
    }

    /// The transaction that a look at the source's catalogs waits for.
    async fn oldest(&mut self) -> Result<Option<Blocked>, client::Error> {
        let end = self.place.word().to_owned();
        let session = self.session().await?;
        let row = session.query_opt(OLDEST, &[]).await.map_err(|error| session.error(error))?;
        Ok(row.map(|row| Blocked {
            // No backend waits for it: the look asks again and again.
            pid: 0,
            seconds: row.get::<_, Option<f64>>(1).unwrap_or_default().max(0.0),
            table: None,
            blocking_pids: vec![row.get(0)],
            held_by: row.get(2),
            end,
        }))
    }

    /// Finds out what the backend `awaited` does, or else any backend that works for us.
    async fn look(&mut self, awaited: Option<i32>) -> Result<(), client::Error> {
        let ours = self.settings.subscription.application_name("");
        let pid = awaited.unwrap_or(0);
        let session = self.session().await?;
        let look = look_at(session, pid, &ours).await?;
        let look = look.map(|look| BackendLook { end: self.place.word(), ..look });
        let works = look.as_ref().is_some_and(BackendLook::works);
        if let Some(look) = look.as_ref().filter(|_| works) {
            self.tell_long(look);
        }
        self.status.set_looked(self.place as usize, look);
        if let Some(pid) = awaited {
            self.check_silence(pid, works);
        }
        Ok(())
    }

    async fn session(&mut self) -> Result<&Session, client::Error> {
        let name = self.settings.subscription.application_name("monitor");
        let settings = [("search_path", ""), ("statement_timeout", "10s"), ("jit", "off")];
        let info: &ConnInfo = match self.place {
            Place::Target => &self.settings.target,
            Place::Source => &self.settings.source,
        };
        match self.session.take() {
            Some(session) => Ok(self.session.insert(session)),
            None => Ok(self.session.insert(client::connect(info, &name, &settings).await?)),
        }
    }

    /// Logs a lock once for each table and holder.
    fn tell(&mut self, blocked: &Blocked) {
        let pids: Vec<String> = blocked.blocking_pids.iter().map(ToString::to_string).collect();
        let key = format!("{} {}", blocked.table.as_deref().unwrap_or_default(), pids.join(","));
        if matches!(&self.told, Some(ToldWait::Lock(told)) if *told == key) {
            return;
        }
        self.told = Some(ToldWait::Lock(key));
        tracing::warn!(subscription = %self.settings.subscription, "{}; {}", blocked, blocked.remedy());
    }

    /// Logs each statement that has taken long once.
    fn tell_long(&mut self, look: &BackendLook) {
        if look.lasts < LONG {
            return;
        }
        let what = WaitsFor::of_look(look).what;
        if matches!(&self.told, Some(ToldWait::Long(told, _)) if *told == what) {
            return;
        }
        tracing::warn!(subscription = %self.settings.subscription, "waiting for {} s for {what}", look.lasts.as_secs());
        let began = Instant::now().checked_sub(look.lasts).unwrap_or_else(Instant::now);
        self.told = Some(ToldWait::Long(what, began));
    }

    /// Checks whether the backend `pid`, for which we wait, works or waits for us.
    fn check_silence(&mut self, pid: i32, works: bool) {
        let timeout = self.settings.wal_receiver_timeout;
        if works || timeout.is_zero() {
            self.silent_since = None;
            return;
        }
        let since = *self.silent_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= timeout {
            self.silent_since = None;
            self.status.give_up_target(pid, since.elapsed());
        }
    }
}
