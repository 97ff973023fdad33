//! Two snapshots that hold the same commits (rule V1), and the locks that
//! keep them readable.
//!
//! ```text
//!   source holder: BEGIN, LOCK tables
//!        stream:   held -----------------------------------------------> goes on
//!   source holder:      snapshot, end of WAL                  ^
//!        stream:             passes exactly what it sees      |
//!   target holder:                 BEGIN, LOCK tables, snapshot
//!   workers:                                                      SET TRANSACTION SNAPSHOT
//! ```
//!
//! ## Hazards
//! 1. TRUNCATE, and every ALTER that writes a table anew, is not transactional for older snapshots:
//!    to them the table looks empty. So both holders lock the tables (ACCESS SHARE) before they
//!    take their snapshot, and for as long as it is used. LOCK TABLE as a transaction's first
//!    statement takes no snapshot.
//! 2. A session that wants to TRUNCATE queues behind the holder, and a worker that reads the table
//!    for the first time queues behind that session. Neither moves, and no server sees a deadlock,
//!    because the holder waits for nothing. So workers give up after a moment, and the holders
//!    release their snapshots and take new ones. The same happens on the target, where `run`
//!    truncates. If a session truncates faster than that, the holders read the table themselves:
//!    they need no other lock.
//! 3. A transaction that the snapshot sees may be in WAL that is not flushed yet, and no walsender
//!    sends unflushed WAL. So a message in WAL is committed after the snapshot, which flushes that
//!    WAL.
//! 4. The stream is held while the holder locks the target's tables. If another session has one of
//!    them locked, the attempt fails soon, the stream goes on, and the holder tries again.

use std::time::Duration;

use async_trait::async_trait;
use client::{ConnInfo, Session};
use tokio::time::Instant;

use crate::error::{Error, Kind};
use crate::session::{self, End, Pair};
use crate::sql::Side;
use crate::table::ComparedTable;

/// How long to try for snapshots: long enough for a first copy of a small table, a reconnection, or
/// another session's ALTER TABLE.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// Snapshots tried under one hold: each differs from a prefix only by the
/// moment between a commit's flush and its visibility.
const TRIES_MAX: u64 = 50;

/// A snapshot of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSnapshot {
    /// `pg_current_snapshot()`.
    pub snapshot: String,
    /// End of WAL, read after the snapshot was taken.
    pub end: String,
}

/// Why the stream could not be held or advanced.
#[derive(Debug)]
pub enum ApplierError {
    /// Another attempt may succeed.
    Passing(String),
    /// No attempt will succeed.
    Final(String),
}

/// The applier of changes to the target, which can wait between two commits.
#[async_trait]
pub trait Applier: Send {
    /// Whether there is an applier.
    fn is_live(&self) -> bool;
    /// Commits nothing more.
    async fn hold(&mut self) -> Result<(), ApplierError>;
    /// Commits exactly what the snapshot sees; false if that is no prefix of
    /// the commits, so that another snapshot is needed.
    async fn advance(&mut self, snapshot: &SourceSnapshot) -> Result<bool, ApplierError>;
    /// Goes on. The held applier also goes on by itself when `verify` is gone.
    async fn release(&mut self);
}

/// Nobody applies changes: the ends are compared as they are.
#[derive(Debug, Clone, Copy)]
pub struct NoApplier;

#[async_trait]
impl Applier for NoApplier {
    fn is_live(&self) -> bool {
        false
    }

    async fn hold(&mut self) -> Result<(), ApplierError> {
        Ok(())
    }

    async fn advance(&mut self, _: &SourceSnapshot) -> Result<bool, ApplierError> {
        Ok(true)
    }

    async fn release(&mut self) {}
}

/// Names of exported snapshots.
#[derive(Debug, Clone)]
pub(crate) struct Snapshots {
    pub(crate) source: String,
    pub(crate) target: String,
}

/// The cost of taking snapshots.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PinFigures {
    pub(crate) held_max: Duration,
    pub(crate) not_a_prefix: u64,
}

/// Why there are no snapshots.
pub(crate) enum SnapshotFailure {
    /// This table cannot be locked.
    Table(usize, Error),
    All(Error),
}

impl From<Error> for SnapshotFailure {
    fn from(error: Error) -> Self {
        SnapshotFailure::All(error)
    }
}

impl From<ApplierError> for Attempt {
    fn from(error: ApplierError) -> Self {
        match error {
            ApplierError::Passing(message) => Attempt::Passing(Kind::Applier(message).into()),
            ApplierError::Final(message) => {
                Attempt::Final(SnapshotFailure::All(Kind::Applier(message).into()))
            }
        }
    }
}

/// Why an attempt failed.
enum Attempt {
    Passing(Error),
    Final(SnapshotFailure),
}

impl From<Error> for Attempt {
    fn from(error: Error) -> Self {
        Attempt::Final(SnapshotFailure::All(error))
    }
}

/// The sessions that hold snapshots and locks.
pub(crate) struct Holders {
    pair: Pair,
    /// Writes the message of hazard 3.
    nudge: Session,
    /// When the stream was held, if it is.
    held_at: Option<Instant>,
    pub(crate) figures: PinFigures,
}

/// A holder waits for a lock while it holds others. The bound is short, so that the holder is
/// rarely part of a deadlock that the server resolves (`deadlock_timeout` is 1 s). While the holder
/// waits on the target, the stream stands still.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL lock_timeout = '100ms'";

impl Holders {
    pub(crate) async fn connect(source: &ConnInfo, target: &ConnInfo, name: &str) -> Result<Holders, Error> {
        Ok(Holders {
            pair: Pair {
                source: session::connect(End::Source, source, name).await?,
                target: session::connect(End::Target, target, name).await?,
            },
            nudge: session::connect(End::Source, source, name).await?,
            held_at: None,
            figures: PinFigures::default(),
        })
    }

    /// The sessions that have the snapshots and the locks.
    pub(crate) fn pair(&self) -> &Pair {
        &self.pair
    }

    /// The sessions, for looking at both ends while no snapshot is held.
    pub(crate) fn sessions(&self) -> (&Session, &Session) {
        (&self.pair.source, &self.pair.target)
    }

    /// Takes snapshots in which `tables`, by their number, can be read.
    pub(crate) async fn take(
        &mut self,
        applier: &mut dyn Applier,
        tables: &[(usize, &ComparedTable)],
    ) -> Result<Snapshots, SnapshotFailure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let attempt = self.attempt(applier, tables).await;
            applier.release().await;
            if let Some(held_at) = self.held_at.take() {
                self.figures.held_max = self.figures.held_max.max(held_at.elapsed());
            }
            let error = match attempt {
                Ok(snapshots) => return Ok(snapshots),
                Err(attempt) => {
                    self.let_go().await?;
                    match attempt {
                        Attempt::Final(refused) => return Err(refused),
                        Attempt::Passing(error) => error,
                    }
                }
            };
            if Instant::now() >= deadline {
                return Err(SnapshotFailure::All(error));
            }
            tracing::debug!("no snapshots yet: {error}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Releases snapshots and locks.
    pub(crate) async fn let_go(&self) -> Result<(), Error> {
        self.pair.end().await
    }

    async fn attempt(
        &mut self,
        applier: &mut dyn Applier,
        tables: &[(usize, &ComparedTable)],
    ) -> Result<Snapshots, Attempt> {
        lock(&self.pair.source, tables, |table| &table.source).await?;
        applier.hold().await?;
        self.held_at = applier.is_live().then(Instant::now);
        let mut tries = 0;
        let source = loop {
            let (name, snapshot) = self.source_snapshot(applier.is_live()).await?;
            if applier.advance(&snapshot).await? {
                break name;
            }
            self.figures.not_a_prefix += 1;
            tries += 1;
            if tries >= TRIES_MAX {
                return Err(Attempt::Passing(Kind::NoPrefix { tries: TRIES_MAX }.into()));
            }
            session::run(&self.pair.source, "end a transaction", "ROLLBACK").await?;
            lock(&self.pair.source, tables, |table| &table.source).await?;
        };
        lock(&self.pair.target, tables, |table| &table.target).await?;
        let rows =
            session::rows(&self.pair.target, "export a snapshot", "SELECT pg_catalog.pg_export_snapshot()")
                .await?;
        let target = rows.into_iter().flatten().flatten().next().unwrap_or_default();
        Ok(Snapshots { source, target })
    }

    /// The name of the source's snapshot, and what it sees.
    async fn source_snapshot(&self, live: bool) -> Result<(String, SourceSnapshot), Error> {
        // The snapshot is taken before any of the functions runs.
        let end = if live { "pg_catalog.pg_current_wal_insert_lsn()::text" } else { "''" };
        let sql =
            format!("SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text, {end}");
        let rows = session::rows(&self.pair.source, "export a snapshot", &sql).await?;
        let mut values = rows.into_iter().flatten().map(Option::unwrap_or_default);
        let mut next = || values.next().unwrap_or_default();
        let (name, snapshot, end) = (next(), next(), next());
        if live {
            let sql = "SELECT pg_catalog.pg_logical_emit_message(true, 'pgsluice', '')";
            // Without the message, the WAL of what the snapshot sees is flushed a moment later.
            if let Err(error) = session::rows(&self.nudge, "write a message into WAL", sql).await {
                tracing::debug!("{error}");
            }
        }
        Ok((name, SourceSnapshot { snapshot, end }))
    }
}

/// Begins a transaction that holds the tables.
async fn lock(
    holder: &Session,
    tables: &[(usize, &ComparedTable)],
    side: fn(&ComparedTable) -> &Side,
) -> Result<(), Attempt> {
    let statement =
        |table: &ComparedTable| format!("LOCK TABLE {} IN ACCESS SHARE MODE", side(table).relation);
    let all: Vec<String> = tables.iter().map(|(_, table)| statement(table)).collect();
    let locked = session::run(holder, "lock the tables", &format!("{BEGIN}; {}", all.join("; "))).await;
    let Err(error) = locked else { return Ok(()) };
    if error.is_locked() {
        return Err(Attempt::Passing(error));
    }
    if error.is_connection_lost() {
        return Err(error.into());
    }
    // Which one?
    session::run(holder, "end a transaction", "ROLLBACK").await?;
    for (number, table) in tables {
        session::run(holder, "begin a transaction", BEGIN).await?;
        match session::run(holder, "lock the table", &statement(table)).await {
            Err(error) if error.is_locked() => return Err(Attempt::Passing(error)),
            Err(error) if error.is_connection_lost() => return Err(error.into()),
            Err(error) => return Err(Attempt::Final(SnapshotFailure::Table(*number, error))),
            Ok(()) => session::run(holder, "end a transaction", "ROLLBACK").await?,
        }
    }
    Err(Attempt::Passing(error))
}
