//! What pgsluice remembers on the target, and who may write it.
//!
//! Tables in schema `pgsluice` and one replication origin per apply
//! worker. What was applied is written by the transactions that apply: to the
//! origin (RULES P1), and from 16 on, where an abort moves the origin too, to
//! a row of `progress`, which is then the truth. Where transactions commit out
//! of order each writes a row of `ahead` instead, which says what stretch of
//! the stream it holds ([`crate::reach`]). The origin also marks those
//! transactions, gives them the source's commit time, and is the fence below.
//! The other tables hold which source this is, where a table's copy stands
//! (RULES C1), how far an idle subscription was confirmed (P4), and what
//! partitions published roots have ([`partitions`]).
//!
//! Fences, in the order in which they are passed:
//! 1. A session-level advisory lock named after the subscription: one process
//!    per subscription and target, wherever it runs. A process that died
//!    leaves it when its socket closes; until then a bounded wait.
//! 2. Every origin of the subscription is attached once, those of workers
//!    that will not run again included, and then those of the sessions that
//!    will apply. A backend of a dead process may still be committing: it is
//!    waited for, then terminated (P2). Only then is progress read.

mod again;
mod partitions;
mod replaced;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Lsn, Oid, SubscriptionName, quote_literal};
use client::{ConnInfo, Session, SnapshotText, Wire};
use tokio_postgres::types::PgLsn;

use crate::catalog::Since;
use crate::error::{Error, Kind};
use crate::join::TableKey;
use crate::reach::Reached;

pub(crate) use self::replaced::LEAVE_OUT;
pub use partitions::{PartitionRow, Suspicion};

/// The schema that holds our state; never copied, never applied.
pub const STATE_SCHEMA: &str = "pgsluice";

/// "pgsl": the first half of our advisory locks' keys.
const LOCK_CLASS: i32 = 0x7067_736c;

/// How long a backend of a dead process may keep a lock or an origin: its
/// socket is closed at once, but it may be in the middle of a statement.
const FENCE_WAIT: Duration = Duration::from_secs(20);
/// After this, backends that hold an origin under our name are terminated.
const FENCE_PATIENCE: Duration = Duration::from_secs(5);
const FENCE_POLL: Duration = Duration::from_millis(100);

/// The subscription's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRow {
    /// Its slot on the source.
    pub slot: String,
    /// The source's system identifier.
    pub source_sysid: String,
    /// The source's timeline when it was last looked at; 0 if it was a standby.
    pub source_timeline: i64,
    /// Where the slot began; `None` while its creation was not finished.
    pub consistent_point: Option<Lsn>,
    /// Everything before was confirmed to the source.
    pub confirmed_lsn: Option<Lsn>,
    /// False after `disable` or `disable_on_error`.
    pub enabled: bool,
    /// The transaction to pass over.
    pub skip_lsn: Option<Lsn>,
    /// Why it was disabled.
    pub last_error: Option<String>,
}

/// A table's row: see RULES C1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedTable {
    /// Schema on both sides.
    pub schema: String,
    /// Name on both sides.
    pub table: String,
    /// What is not in its copy, which was or is being made; see [`Since`].
    pub since: Option<Since>,
    /// An attempt of ours may have left rows in what was an empty table.
    pub begun: bool,
    /// All of it was copied, and it takes part.
    pub finished: bool,
    /// The relation of the source that it was copied from; not known where an older version copied it.
    pub source_oid: Option<Oid>,
    /// Why it was left out: its name and that relation have parted ([`crate::Parting`]).
    pub replaced: Option<String>,
}

/// The control session and the subscription it speaks for.
pub struct State {
    session: Session,
    name: SubscriptionName,
    /// There is a table of stretches: an older version made none.
    has_ahead: AtomicBool,
    /// Transactions commit out of order.
    relaxed: AtomicBool,
}

/// A position in a row, if there is one.
fn lsn(row: &tokio_postgres::Row, at: usize) -> Option<Lsn> {
    row.get::<_, Option<PgLsn>>(at).map(|lsn| Lsn::new(lsn.into()))
}

/// A process id in a server's words, which may be in any language.
fn last_number(message: &str) -> Option<i32> {
    message.split(|c: char| !c.is_ascii_digit()).rfind(|word| !word.is_empty())?.parse().ok()
}

/// Makes the schema and its tables where they are missing. IF NOT EXISTS fails where two do it at the same time, so one
/// waits for the other.
pub const STATE_SCHEMA_SQL: &str = "
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('pgsluice'));
CREATE SCHEMA IF NOT EXISTS pgsluice;
CREATE TABLE IF NOT EXISTS pgsluice.subscription (
    name text PRIMARY KEY,
    slot text NOT NULL,
    publications text[] NOT NULL,
    source_sysid text NOT NULL,
    source_timeline int8 NOT NULL,
    source_dbname text NOT NULL,
    consistent_point pg_lsn,
    confirmed_lsn pg_lsn,
    enabled bool NOT NULL DEFAULT true,
    skip_lsn pg_lsn,
    last_error text,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now());
CREATE TABLE IF NOT EXISTS pgsluice.copied_table (
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    consistent_point pg_lsn,
    snapshot pg_snapshot,
    begun bool NOT NULL DEFAULT false,
    finished bool NOT NULL DEFAULT false,
    rows int8,
    source_oid oid,
    replaced text,
    PRIMARY KEY (subscription, schema_name, table_name));
CREATE TABLE IF NOT EXISTS pgsluice.progress (
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE,
    applied_lsn pg_lsn NOT NULL,
    PRIMARY KEY (subscription, applied_lsn));
CREATE TABLE IF NOT EXISTS pgsluice.ahead (
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE,
    since_lsn pg_lsn NOT NULL,
    applied_lsn pg_lsn NOT NULL,
    PRIMARY KEY (subscription, applied_lsn));
CREATE TABLE IF NOT EXISTS pgsluice.partition (
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE,
    root_oid oid NOT NULL,
    root_schema text NOT NULL,
    root_name text NOT NULL,
    partition_oid oid NOT NULL,
    partition_schema text NOT NULL,
    partition_name text NOT NULL,
    filenode oid NOT NULL,
    bounds text NOT NULL,
    suspicion text,
    PRIMARY KEY (subscription, root_oid, partition_oid))";

/// $1 the subscription. An origin's name ends in the worker's number; a number
/// behind another number is a subscription of another name's.
const ORIGINS: &str = "SELECT o.roname FROM pg_catalog.pg_replication_origin o \
                        WHERE o.roname ~ ('^pgsluice_' || $1 || '_[0-9]+$')";

/// The target has no state left for an origin, or no connection, and more of
/// either is not to be expected: too_many_connections,
/// configuration_limit_exceeded.
pub(crate) fn is_without_room(error: &Error) -> bool {
    matches!(error.sqlstate(), Some("53300" | "53400"))
}

/// From this target version on a transaction that aborts after it was told its
/// origin's position moves the origin all the same (seen on 16, 17 and 18, not
/// on 14 and 15). Whatever ends a backend between the two would lose the
/// transaction, so there each target transaction also writes a row, and the
/// rows are the truth. Rows and not one row that is updated: under a long
/// snapshot on the target the versions of one row would pile up before every
/// look-up, while the last key of an index is found first.
pub(crate) const ABORT_MOVES_ORIGIN: u32 = 16;

impl State {
    /// Connects and takes the advisory lock. Makes nothing yet.
    ///
    /// # Errors
    /// Another process holds the lock ([`Error::is_refused`]), or the
    /// connection failed.
    pub async fn open(target: &ConnInfo, name: &SubscriptionName) -> Result<State, Error> {
        State::open_again(target, name, None).await
    }

    /// [`State::open`], where `earlier` is the backend of this process's last
    /// one: a server that has not noticed that its connection is lost would
    /// keep the lock for it.
    ///
    /// # Errors
    /// As [`State::open`]'s.
    pub async fn open_again(
        target: &ConnInfo,
        name: &SubscriptionName,
        earlier: Option<i32>,
    ) -> Result<State, Error> {
        // Its own settings, above all that what it stores is durable (P4).
        let settings = [
            ("search_path", ""),
            ("synchronous_commit", "on"),
            ("statement_timeout", "0"),
            ("lock_timeout", "0"),
            ("idle_session_timeout", "0"),
            ("default_transaction_read_only", "off"),
            ("tcp_keepalives_idle", "30"),
            ("tcp_keepalives_interval", "10"),
            ("tcp_keepalives_count", "6"),
        ];
        let session = client::connect(target, &name.application_name("control"), &settings).await?;
        if session.version().major() >= 17 {
            let set = session.batch_execute("SET transaction_timeout = 0").await;
            set.map_err(|error| session.error(error))?;
        }
        let state = State {
            session,
            name: name.clone(),
            has_ahead: AtomicBool::new(false),
            relaxed: AtomicBool::new(false),
        };
        state.lock(earlier).await?;
        Ok(state)
    }

    async fn has_schema(&self) -> Result<bool, Error> {
        Ok(self.one("SELECT pg_catalog.to_regclass('pgsluice.copied_table') IS NOT NULL").await?.get(0))
    }

    /// What a query of our tables met: where one is not as we made it, only a
    /// person can help.
    fn damaged(&self, error: tokio_postgres::Error) -> Error {
        let error = self.session.error(error);
        match error.sqlstate() {
            // undefined_table, undefined_column, undefined_object,
            // undefined_function, datatype_mismatch
            Some("42P01" | "42703" | "42704" | "42883" | "42804") => Kind::Damaged(error).into(),
            _ => error.into(),
        }
    }

    async fn one(&self, sql: &str) -> Result<tokio_postgres::Row, Error> {
        self.session.query_one(sql, &[]).await.map_err(|error| self.session.error(error).into())
    }

    /// Runs a statement whose first parameter is the subscription's name.
    async fn execute(
        &self,
        sql: &str,
        parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<u64, Error> {
        let name = self.name.as_str();
        let mut all: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> = vec![&name];
        all.extend(parameters);
        self.session.execute(sql, &all).await.map_err(|error| self.session.error(error).into())
    }

    async fn lock(&self, earlier: Option<i32>) -> Result<(), Error> {
        let name = self.name.as_str();
        let lost = |error| Error::from(self.session.error(error));
        let deadline = tokio::time::Instant::now() + FENCE_WAIT;
        loop {
            let sql = "SELECT pg_catalog.pg_try_advisory_lock($1, pg_catalog.hashtext($2))";
            let row = self.session.query_one(sql, &[&LOCK_CLASS, &name]).await.map_err(lost)?;
            if row.get(0) {
                return Ok(());
            }
            let sql = "SELECT pg_catalog.format('process %s (%s, %s)', a.pid, a.application_name, \
                              coalesce(a.client_addr::text, 'local')), a.pid \
                         FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
                        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::int8 = $1::int8 \
                          AND l.objid::int8 & 4294967295 = pg_catalog.hashtext($2)::int8 & 4294967295 \
                          AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d \
                                             WHERE d.datname = pg_catalog.current_database())";
            let class = i64::from(LOCK_CLASS);
            let holder = self.session.query_opt(sql, &[&class, &name]).await.map_err(lost)?;
            if let Some(pid) = holder.as_ref().map(|row| row.get::<_, i32>(1))
                && Some(pid) == earlier
            {
                let sql = "SELECT pg_catalog.pg_terminate_backend($1)";
                self.session.query_one(sql, &[&pid]).await.map_err(lost)?;
                tracing::warn!("terminated backend {pid}, whose connection to this process was lost");
            }
            if tokio::time::Instant::now() >= deadline {
                let holder = holder.map_or_else(|| "another process".to_owned(), |row| row.get(0));
                return Err(Kind::InUse { name: name.to_owned(), holder }.into());
            }
            tokio::time::sleep(FENCE_POLL).await;
        }
    }

    /// Transactions will commit out of order: makes the table of stretches where
    /// an older version made the others.
    ///
    /// # Errors
    /// As every query's.
    pub(crate) async fn make_ahead(&self) -> Result<(), Error> {
        self.relaxed.store(true, Ordering::Relaxed);
        self.look_for_ahead().await?;
        if !self.has_ahead.load(Ordering::Relaxed) {
            self.session.batch_execute(STATE_SCHEMA_SQL).await.map_err(|error| self.session.error(error))?;
        }
        Ok(())
    }

    /// Whether transactions commit out of order.
    pub(crate) fn is_relaxed(&self) -> bool {
        self.relaxed.load(Ordering::Relaxed)
    }

    async fn look_for_ahead(&self) -> Result<(), Error> {
        let row = self.one("SELECT pg_catalog.to_regclass('pgsluice.ahead') IS NOT NULL").await?;
        self.has_ahead.store(row.get(0), Ordering::Relaxed);
        Ok(())
    }

    /// The subscription's row, if there is one.
    ///
    /// # Errors
    /// As every query's.
    pub async fn load(&self) -> Result<Option<SubscriptionRow>, Error> {
        if !self.has_schema().await? {
            return Ok(None);
        }
        let sql = "SELECT source_sysid, source_timeline, consistent_point, confirmed_lsn, enabled, skip_lsn, \
                          last_error, slot FROM pgsluice.subscription WHERE name = $1";
        let row = self.session.query_opt(sql, &[&self.name.as_str()]).await;
        let row = row.map_err(|error| self.damaged(error))?;
        Ok(row.map(|row| SubscriptionRow {
            source_sysid: row.get(0),
            source_timeline: row.get(1),
            consistent_point: lsn(&row, 2),
            confirmed_lsn: lsn(&row, 3),
            enabled: row.get(4),
            skip_lsn: lsn(&row, 5),
            last_error: row.get(6),
            slot: row.get(7),
        }))
    }

    /// Remembers that a slot is about to be made, and makes the origin; both
    /// or neither. Origins belong to the whole cluster, the row to this
    /// database: an origin that exists without the row is somebody else's.
    ///
    /// # Errors
    /// The origin is in use ([`Error::is_refused`]), the role may not create
    /// the schema, or as every query's.
    pub async fn create(
        &self,
        publications: &[String],
        sysid: &str,
        timeline: i64,
        dbname: &str,
    ) -> Result<(), Error> {
        if !self.has_schema().await? {
            self.session.batch_execute(STATE_SCHEMA_SQL).await.map_err(|error| self.session.error(error))?;
        }
        let origin = self.name.origin(0);
        let sql = "WITH s AS (INSERT INTO pgsluice.subscription \
                   (name, slot, publications, source_sysid, source_timeline, source_dbname) \
                   VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name) DO NOTHING RETURNING name) \
                   SELECT pg_catalog.pg_replication_origin_create($7) FROM s";
        let created =
            self.execute(sql, &[&self.name.slot(), &publications, &sysid, &timeline, &dbname, &origin]).await;
        match created {
            // unique_violation, duplicate_object
            Err(error) if matches!(error.sqlstate(), Some("23505" | "42710")) => {
                Err(Kind::OriginTaken { origin, name: self.name.to_string() }.into())
            }
            other => other.map(drop),
        }
    }

    /// Stores durably that everything before `lsn` may be confirmed (P4).
    ///
    /// # Errors
    /// As every query's.
    pub async fn confirm(&self, lsn: Lsn) -> Result<(), Error> {
        let sql = "UPDATE pgsluice.subscription SET confirmed_lsn = $2 WHERE name = $1 \
                   AND (confirmed_lsn IS NULL OR confirmed_lsn < $2)";
        self.execute(sql, &[&PgLsn::from(lsn.as_u64())]).await.map(drop)
    }

    /// The source is on `timeline` now, and what was confirmed past `confirmed`
    /// is not part of its history.
    ///
    /// # Errors
    /// As every query's.
    pub async fn change_timeline(&self, timeline: i64, confirmed: Lsn) -> Result<(), Error> {
        let sql = "UPDATE pgsluice.subscription SET source_timeline = $2, \
                   confirmed_lsn = CASE WHEN confirmed_lsn > $3 THEN $3 ELSE confirmed_lsn END WHERE name = $1";
        self.execute(sql, &[&timeline, &PgLsn::from(confirmed.as_u64())]).await.map(drop)
    }

    /// Stops the subscription until somebody enables it again.
    ///
    /// # Errors
    /// As every query's.
    pub async fn disable(&self, reason: &str) -> Result<(), Error> {
        let sql = "UPDATE pgsluice.subscription SET enabled = false, last_error = $2 WHERE name = $1";
        self.execute(sql, &[&reason]).await.map(drop)
    }

    /// Every table whose copy has begun.
    ///
    /// # Errors
    /// As every query's.
    pub async fn copied_tables(&self) -> Result<Vec<CopiedTable>, Error> {
        // An older version made no columns for some of it.
        let sql = "SELECT schema_name, table_name, consistent_point, begun, finished, \
                          pg_catalog.to_jsonb(t) ->> 'snapshot', \
                          (pg_catalog.to_jsonb(t) ->> 'source_oid')::pg_catalog.oid, \
                          pg_catalog.to_jsonb(t) ->> 'replaced' \
                     FROM pgsluice.copied_table t WHERE subscription = $1";
        let rows = self.session.query(sql, &[&self.name.as_str()]).await;
        let table = |row: tokio_postgres::Row| {
            let snapshot: Option<SnapshotText> = row.try_get(5).map_err(|error| self.session.error(error))?;
            let snapshot = snapshot.map(|text| Arc::new(text.0));
            Ok(CopiedTable {
                schema: row.get(0),
                table: row.get(1),
                since: lsn(&row, 2).map(|lsn| Since { lsn, snapshot }),
                begun: row.get(3),
                finished: row.get(4),
                source_oid: row.get::<_, Option<u32>>(6).map(Oid),
                replaced: row.get(7),
            })
        };
        rows.map_err(|error| self.damaged(error))?.into_iter().map(table).collect()
    }

    /// The slot exists and begins at `consistent_point`; these tables take
    /// part, each given as schema and name. Without `copy_data` they join at
    /// once, as they are.
    ///
    /// # Errors
    /// As every query's.
    pub async fn begin_at(
        &self,
        consistent_point: Lsn,
        tables: &[(String, String)],
        copy_data: bool,
    ) -> Result<(), Error> {
        let (schemas, names): (Vec<&str>, Vec<&str>) =
            tables.iter().map(|(schema, name)| (schema.as_str(), name.as_str())).unzip();
        // One statement, so that a crash leaves all of it or nothing.
        let sql = "WITH s AS (UPDATE pgsluice.subscription SET consistent_point = $2, confirmed_lsn = $2 \
                               WHERE name = $1) \
                   INSERT INTO pgsluice.copied_table \
                          (subscription, schema_name, table_name, consistent_point, finished) \
                   SELECT $1, t.schema_name, t.table_name, CASE WHEN $5 THEN NULL ELSE $2 END, NOT $5 \
                     FROM unnest($3::text[], $4::text[]) AS t (schema_name, table_name)";
        self.execute(sql, &[&PgLsn::from(consistent_point.as_u64()), &schemas, &names, &copy_data])
            .await
            .map(drop)
    }

    /// Makes room for the snapshots of copies, where an older version has made none.
    ///
    /// # Errors
    /// As every query's.
    pub async fn keep_snapshots(&self) -> Result<(), Error> {
        self.make_columns("copied_table", &["snapshot pg_catalog.pg_snapshot"]).await
    }

    /// Adds those of `columns`, each a name and a type, to a table of pgsluice's schema that an older version made without.
    ///
    /// # Errors
    /// As every query's; also where the table stays locked for three seconds.
    async fn make_columns(&self, table: &str, columns: &[&str]) -> Result<(), Error> {
        // Not ADD COLUMN IF NOT EXISTS alone: that waits for everybody who reads the table also where there is nothing to do.
        // Nor a DO block: a target need not have PL/pgSQL.
        let names: Vec<&str> = columns.iter().filter_map(|column| column.split(' ').next()).collect();
        let sql = "SELECT count(*) FROM pg_catalog.pg_attribute a \
                    WHERE a.attrelid = $1::pg_catalog.text::pg_catalog.regclass AND a.attname = ANY ($2::pg_catalog.text[])";
        let found = self.session.query_one(sql, &[&format!("pgsluice.{table}"), &names]).await;
        if found.map_err(|error| self.session.error(error))?.get::<_, i64>(0) == columns.len() as i64 {
            return Ok(());
        }
        let add: Vec<String> =
            columns.iter().map(|column| format!("ADD COLUMN IF NOT EXISTS {column}")).collect();
        // Sent as one, they are one transaction. Nobody is to wait for long behind this where it has to wait itself, as for the
        // copy of a large table.
        let make = format!(
            "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('pgsluice')), \
                    pg_catalog.set_config('lock_timeout', '3s', true); \
             ALTER TABLE pgsluice.{table} {}",
            add.join(", ")
        );
        self.session.batch_execute(&make).await.map_err(|error| self.session.error(error).into())
    }

    /// A table takes part no longer.
    ///
    /// # Errors
    /// As every query's.
    pub async fn forget_table(&self, table: &TableKey) -> Result<(), Error> {
        let sql = "DELETE FROM pgsluice.copied_table \
                    WHERE subscription = $1 AND schema_name = $2 AND table_name = $3";
        self.execute(sql, &[&table.0, &table.1]).await.map(drop)
    }

    /// Attaches every origin of the subscription to `wire`, the first one to
    /// stay, and reads how far they came: the fence of RULES P2.
    ///
    /// # Errors
    /// An origin could not be had, or may not be used.
    pub async fn attach_origin(&self, wire: &mut Wire) -> Result<Reached, Error> {
        self.look_for_ahead().await?;
        let (first, own) = (self.name.origin(0), [wire.pid()]);
        let rows = self.session.query(&format!("{ORIGINS} ORDER BY o.roname"), &[&self.name.as_str()]).await;
        let names = rows.map_err(|error| self.session.error(error))?;
        for row in &names {
            let name: &str = row.get(0);
            if name == first {
                continue;
            }
            match self.attach(wire, name, &own).await {
                Ok(()) => {
                    wire.query("SELECT pg_catalog.pg_replication_origin_session_reset()").await?;
                }
                // It has no state: nobody has it, and nothing was committed by it.
                Err(error) if is_without_room(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.attach(wire, &first, &own).await?;
        self.flushed_progress().await
    }

    /// Attaches the origin of `worker`, of which there may be none yet, to
    /// `wire`; behind [`State::attach_origin`]. `own` are our sessions so far.
    ///
    /// # Errors
    /// The origin could not be had, or may not be used.
    pub(crate) async fn attach_worker(
        &self,
        wire: &mut Wire,
        worker: usize,
        own: &[i32],
    ) -> Result<(), Error> {
        let origin = self.name.origin(worker);
        let sql = "SELECT pg_catalog.pg_replication_origin_create($1) \
                    WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_origin o WHERE o.roname = $1)";
        self.session.query_opt(sql, &[&origin]).await.map_err(|error| self.session.error(error))?;
        self.attach(wire, &origin, own).await
    }

    /// `own` are sessions of this process.
    async fn attach(&self, wire: &mut Wire, origin: &str, own: &[i32]) -> Result<(), Error> {
        let setup =
            format!("SELECT pg_catalog.pg_replication_origin_session_setup({})", quote_literal(origin));
        let start = tokio::time::Instant::now();
        let mut terminated = false;
        while let Err(error) = wire.query(&setup).await {
            match error.sqlstate() {
                // object_in_use: a backend of a process that is gone, as a rule.
                Some("55006") if start.elapsed() > FENCE_WAIT => {
                    return Err(self.held(origin, &error).await);
                }
                Some("55006") => {}
                // undefined_object
                Some("42704") => {
                    return Err(
                        Kind::OriginGone { origin: origin.to_owned(), name: self.name.to_string() }.into()
                    );
                }
                _ => return Err(error.into()),
            }
            if !terminated && start.elapsed() > FENCE_PATIENCE {
                terminated = true;
                let sql = "SELECT count(pg_catalog.pg_terminate_backend(pid)) FROM pg_catalog.pg_stat_activity \
                            WHERE application_name = $1 AND pid <> ALL ($2)";
                let name = self.name.application_name("apply");
                let ended = self.session.query_one(sql, &[&name, &own]).await;
                let ended: i64 = ended.map_err(|error| self.session.error(error))?.get(0);
                match ended {
                    0 => tracing::warn!("{}; waiting for it", self.held(origin, &error).await),
                    _ => tracing::warn!(
                        ended,
                        "terminated backends of an earlier process that still held the origin"
                    ),
                }
            }
            tokio::time::sleep(FENCE_POLL).await;
        }
        Ok(())
    }

    /// Another session has our origin: who, as far as the server's words tell.
    async fn held(&self, origin: &str, error: &client::Error) -> Error {
        let pid = error.server().and_then(|error| last_number(&error.message)).unwrap_or_default();
        let sql = "SELECT pg_catalog.format(' (%s, user %s, %s)', coalesce(nullif(application_name, ''), \
                   backend_type), usename, coalesce(client_addr::text, 'local')) \
                   FROM pg_catalog.pg_stat_activity WHERE pid = $1";
        let who = self.session.query_opt(sql, &[&pid]).await.ok().flatten();
        let who: String = who.map(|row| row.get(0)).unwrap_or_default();
        let (origin, name) = (origin.to_owned(), self.name.to_string());
        Kind::Held { origin, name, pid, who }.into()
    }

    /// How far the applied transactions came, all of it flushed (RULES P3).
    ///
    /// # Errors
    /// As every query's.
    pub async fn flushed_progress(&self) -> Result<Reached, Error> {
        let failed = |error| self.damaged(error);
        let last = |row: Option<tokio_postgres::Row>| {
            let lsn = row.and_then(|row| row.get::<_, Option<PgLsn>>(0));
            lsn.map_or(Lsn::INVALID, |lsn| Lsn::new(lsn.into()))
        };
        // Read first: what is visible here has moved its origin's local
        // position, up to which the second query flushes.
        let sql = "SELECT applied_lsn FROM pgsluice.progress WHERE subscription = $1 \
                    ORDER BY applied_lsn DESC LIMIT 1";
        let name = self.name.as_str();
        let mut stretches = Vec::new();
        if self.has_ahead.load(Ordering::Relaxed) {
            let sql = "SELECT since_lsn, applied_lsn FROM pgsluice.ahead WHERE subscription = $1";
            let rows = self.session.query(sql, &[&name]).await.map_err(failed)?;
            let position = |row: &tokio_postgres::Row, at| Lsn::new(row.get::<_, PgLsn>(at).into());
            stretches.extend(rows.iter().map(|row| (position(row, 0), position(row, 1))));
        }
        // Before 16 only of stretches that were forgotten.
        let written = last(self.session.query_opt(sql, &[&name]).await.map_err(failed)?);
        // The maximum: commits follow one another, whichever worker's they are.
        let sql = format!(
            "SELECT max(pg_catalog.pg_replication_origin_progress(o.roname, true)) FROM ({ORIGINS}) o"
        );
        let told = last(Some(self.session.query_one(&sql, &[&name]).await.map_err(failed)?));
        let prefix = if self.aborts_move_origins() { written } else { written.max(told) };
        Ok(Reached::new(prefix, stretches))
    }

    fn aborts_move_origins(&self) -> bool {
        self.session.version().major() >= ABORT_MOVES_ORIGIN
    }

    /// Writes what is `reached`, as it was read, with as few rows as say it.
    /// What was written since lies in none of its stretches, or changes nothing.
    ///
    /// # Errors
    /// As every query's.
    pub(crate) async fn fold_stretches(&self, reached: &Reached) -> Result<(), Error> {
        let (name, prefix) = (quote_literal(self.name.as_str()), reached.prefix);
        let of = format!("WHERE subscription = {name} AND");
        let mut sql = format!(
            "INSERT INTO pgsluice.progress (subscription, applied_lsn) SELECT {name}, '{prefix}' \
              WHERE '{prefix}'::pg_lsn > '0/0' ON CONFLICT DO NOTHING; \
             DELETE FROM pgsluice.progress {of} applied_lsn < '{prefix}'; \
             DELETE FROM pgsluice.ahead {of} applied_lsn <= '{prefix}'"
        );
        for (since, end) in &reached.beyond {
            sql += &format!(
                "; DELETE FROM pgsluice.ahead {of} since_lsn >= '{since}' AND applied_lsn <= '{end}'; \
                 INSERT INTO pgsluice.ahead (subscription, since_lsn, applied_lsn) VALUES ({name}, '{since}', '{end}')"
            );
        }
        // Sent as one, it is one transaction.
        self.session.batch_execute(&sql).await.map_err(|error| self.session.error(error).into())
    }

    /// Removes the rows of progress from `from` up to before `to`, which must
    /// be the last one's.
    ///
    /// # Errors
    /// As every query's.
    pub(crate) async fn prune_progress(&self, from: Lsn, to: Lsn) -> Result<(), Error> {
        if !self.aborts_move_origins() || from >= to {
            return Ok(());
        }
        let sql = "DELETE FROM pgsluice.progress WHERE subscription = $1 AND applied_lsn >= $2 AND applied_lsn < $3";
        self.execute(sql, &[&PgLsn::from(from.as_u64()), &PgLsn::from(to.as_u64())]).await.map(drop)
    }

    /// `track_commit_timestamp` of the target.
    ///
    /// # Errors
    /// As every query's.
    pub async fn tracks_commit_timestamps(&self) -> Result<bool, Error> {
        let row = self.one("SELECT pg_catalog.current_setting('track_commit_timestamp')").await?;
        Ok(row.get::<_, String>(0) == "on")
    }

    /// The control session, for what else is asked of the target.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }
}
