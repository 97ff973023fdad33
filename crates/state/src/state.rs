//! What pgsluice remembers on the target, and which process may write it.
//!
//! The state is tables in schema `pgsluice` and one replication origin for each apply worker.
//!
//! The transactions that apply also write their progress. They write it to the origin (rule P1).
//! From 16 on, where an abort moves the origin too, they also write a row of `progress`, and the
//! row is then the truth. Where transactions commit out of order, each writes a row of `ahead`
//! instead, which names its range of the stream ([`CommittedRanges`]). The origin also marks those
//! transactions, gives them the source's commit time, and serves as the fence below.
//!
//! The other tables hold the identity of the source, the state of each table's copy (rule C1), the
//! confirmed position of an idle subscription (P4), and the partitions of published roots
//! ([`crate::PartitionRow`]).
//!
//! A process passes these fences in order:
//! 1. A session-level advisory lock named after the subscription. It admits one process for each
//!    subscription and target, wherever that runs. The lock of a dead process goes when its socket
//!    closes; a new process waits for that, with a bound.
//! 2. Every origin of the subscription is attached once, also those of workers that will not run
//!    again. Then come the origins of the sessions that will apply. A backend of a dead process may
//!    still be committing. The new process waits for it, then terminates it (P2). Only then is
//!    progress read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Lsn, Oid, SubscriptionName, quote_literal};
use client::{ConnInfo, Session, SnapshotText, SqlState, Wire};
use schedule::CommittedRanges;
use tokio_postgres::types::PgLsn;

use crate::error::{Error, Kind};
use crate::origins::{self, origins_of};
use crate::schema;
use crate::since::{Since, TableKey};

/// "pgsl": the first half of our advisory locks' keys.
const LOCK_CLASS: i32 = 0x7067_736c;

/// SQL that is true for the row `l` of `pg_locks` that is the granted lock of a subscription.
/// `name` is SQL, too, and gives the subscription's name.
pub(crate) fn is_lock_of(name: &str) -> String {
    format!(
        "l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::int8 = {LOCK_CLASS} \
         AND l.objid::int8 & 4294967295 = pg_catalog.hashtext({name})::int8 & 4294967295 \
         AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d \
                            WHERE d.datname = pg_catalog.current_database())"
    )
}

/// How long to wait for a backend of a dead process that holds a lock or an origin. Its socket
/// closes at once, but it may be in the middle of a statement.
pub(crate) const FENCE_WAIT: Duration = Duration::from_secs(20);
/// After this, backends that hold an origin under our name are terminated.
const FENCE_PATIENCE: Duration = Duration::from_secs(5);
pub(crate) const FENCE_POLL: Duration = Duration::from_millis(100);

/// A subscription's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRow {
    /// Its slot on the source.
    pub slot: String,
    /// The source's system identifier.
    pub source_sysid: String,
    /// The source's timeline at the last look; 0 if the source was a standby.
    pub source_timeline: i64,
    /// Where the slot began; `None` while its creation was not finished.
    pub consistent_point: Option<Lsn>,
    /// Everything before this position was confirmed to the source.
    pub confirmed_lsn: Option<Lsn>,
    /// False after `disable` or `disable_on_error`.
    pub enabled: bool,
    /// The transaction to skip.
    pub skip_lsn: Option<Lsn>,
    /// Why the subscription was disabled.
    pub last_error: Option<String>,
}

/// A table's row: see rule C1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedTable {
    /// Schema on both sides.
    pub schema: String,
    /// Name on both sides.
    pub table: String,
    /// The transactions that its copy, finished or not, lacks; see [`Since`].
    pub since: Option<Since>,
    /// An attempt of ours may have left rows in a table that was empty.
    pub begun: bool,
    /// The copy is complete, and the table takes part.
    pub finished: bool,
    /// The source relation that it was copied from; unknown where an older version copied it.
    pub source_oid: Option<Oid>,
    /// Why the table was left out: its name and its source relation have parted
    /// ([`crate::Parting`]).
    pub replaced: Option<String>,
}

/// The control session and its subscription.
pub struct State {
    pub(crate) session: Session,
    pub(crate) name: SubscriptionName,
    /// Whether the table of ranges exists; an older version made none.
    has_ahead: AtomicBool,
    /// Whether transactions commit out of order.
    relaxed: AtomicBool,
}

/// The position in a row's column, if it is not NULL.
fn lsn(row: &tokio_postgres::Row, at: usize) -> Option<Lsn> {
    row.get::<_, Option<PgLsn>>(at).map(|lsn| Lsn::new(lsn.into()))
}

/// The last number in a server's message, which may be in any language: a process id.
fn last_number(message: &str) -> Option<i32> {
    message.split(|c: char| !c.is_ascii_digit()).rfind(|word| !word.is_empty())?.parse().ok()
}

/// Whether an error says that the target has no room for another origin or connection, so that
/// waiting will not help.
#[must_use]
pub fn is_without_room(sqlstate: Option<&str>) -> bool {
    matches!(
        sqlstate.map(SqlState::from_code),
        Some(SqlState::TOO_MANY_CONNECTIONS | SqlState::CONFIGURATION_LIMIT_EXCEEDED)
    )
}

/// From this target version on, a transaction moves the origin even if it aborts after it was given
/// the origin's position (seen on 16, 17 and 18, not on 14 and 15). A backend that ends between the
/// two would lose the transaction. So there each target transaction also writes a row, and the rows
/// are the truth.
///
/// Each transaction adds a row instead of updating one. Under a long snapshot on the target, the
/// versions of one row would pile up before every look-up, while the last key of an index is found
/// first.
pub const ABORT_MOVES_ORIGIN: u32 = 16;

impl State {
    /// Connects and takes the advisory lock. Makes nothing yet.
    ///
    /// # Errors
    /// Another process holds the lock ([`Error::is_refused`]), or the connection failed.
    pub async fn open(target: &ConnInfo, name: &SubscriptionName) -> Result<State, Error> {
        State::open_again(target, name, None).await
    }

    /// [`State::open`], where `earlier` is the backend of this process's last session. A server
    /// that has not noticed the lost connection would keep the lock for it.
    ///
    /// # Errors
    /// As [`State::open`]'s.
    pub async fn open_again(
        target: &ConnInfo,
        name: &SubscriptionName,
        earlier: Option<i32>,
    ) -> Result<State, Error> {
        // It has settings of its own, above all so that the state it stores is durable (P4).
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

    /// Whether schema `pgsluice` has this table.
    pub(crate) async fn has_table(&self, table: &str) -> Result<bool, Error> {
        let found = schema::has_table(&**self.session(), table).await;
        found.map_err(|error| self.session.error(error).into())
    }

    /// Makes the schema and its tables where they are missing.
    pub(crate) async fn make_tables(&self) -> Result<(), Error> {
        let made = schema::make_tables(&**self.session()).await;
        made.map_err(|error| self.session.error(error).into())
    }

    async fn has_schema(&self) -> Result<bool, Error> {
        self.has_table("copied_table").await
    }

    /// Makes the error of a query on our tables. If a table is not as we made it, only a person can
    /// repair it.
    pub(crate) fn damaged(&self, error: tokio_postgres::Error) -> Error {
        let error = self.session.error(error);
        match error.sqlstate().map(SqlState::from_code) {
            Some(
                SqlState::UNDEFINED_TABLE
                | SqlState::UNDEFINED_COLUMN
                | SqlState::UNDEFINED_OBJECT
                | SqlState::UNDEFINED_FUNCTION
                | SqlState::DATATYPE_MISMATCH,
            ) => Kind::Damaged(error).into(),
            _ => error.into(),
        }
    }

    async fn one(&self, sql: &str) -> Result<tokio_postgres::Row, Error> {
        self.session.query_one(sql, &[]).await.map_err(|error| self.session.error(error).into())
    }

    /// Runs a statement whose first parameter is the subscription's name.
    pub(crate) async fn execute(
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
            let sql = format!(
                "SELECT pg_catalog.format('process %s (%s, %s)', a.pid, a.application_name, \
                        coalesce(a.client_addr::text, 'local')), a.pid \
                   FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
                  WHERE {}",
                is_lock_of("$1::text")
            );
            let holder = self.session.query_opt(&sql, &[&name]).await.map_err(lost)?;
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

    /// Prepares for transactions that commit out of order: makes the table of ranges where an older
    /// version made only the others.
    ///
    /// # Errors
    /// A query failed.
    pub async fn make_ahead(&self) -> Result<(), Error> {
        self.relaxed.store(true, Ordering::Relaxed);
        self.look_for_ahead().await?;
        if !self.has_ahead.load(Ordering::Relaxed) {
            self.make_tables().await?;
        }
        Ok(())
    }

    /// Whether transactions commit out of order.
    #[must_use]
    pub fn is_relaxed(&self) -> bool {
        self.relaxed.load(Ordering::Relaxed)
    }

    async fn look_for_ahead(&self) -> Result<(), Error> {
        self.has_ahead.store(self.has_table("ahead").await?, Ordering::Relaxed);
        Ok(())
    }

    /// The subscription's row, if there is one.
    ///
    /// # Errors
    /// A query failed.
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

    /// Records that a slot is about to be made, and makes the origin, in one transaction. Origins
    /// belong to the whole cluster, the row to this database. An origin that exists without the row
    /// belongs to another subscription.
    ///
    /// # Errors
    /// The origin is in use ([`Error::is_refused`]), the role may not create the schema, or a query
    /// failed.
    pub async fn create(
        &self,
        publications: &[String],
        sysid: &str,
        timeline: i64,
        dbname: &str,
    ) -> Result<(), Error> {
        if !self.has_schema().await? {
            self.make_tables().await?;
        }
        let origin = self.name.origin(0);
        let sql = "WITH s AS (INSERT INTO pgsluice.subscription \
                   (name, slot, publications, source_sysid, source_timeline, source_dbname) \
                   VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name) DO NOTHING RETURNING name) \
                   SELECT pg_catalog.pg_replication_origin_create($7) FROM s";
        let created =
            self.execute(sql, &[&self.name.slot(), &publications, &sysid, &timeline, &dbname, &origin]).await;
        match created {
            Err(error)
                if matches!(
                    error.sqlstate().map(SqlState::from_code),
                    Some(SqlState::UNIQUE_VIOLATION | SqlState::DUPLICATE_OBJECT)
                ) =>
            {
                Err(Kind::OriginTaken { origin, name: self.name.to_string() }.into())
            }
            other => other.map(drop),
        }
    }

    /// Stores durably that everything before `lsn` may be confirmed (P4).
    ///
    /// # Errors
    /// A query failed.
    pub async fn confirm(&self, lsn: Lsn) -> Result<(), Error> {
        let sql = "UPDATE pgsluice.subscription SET confirmed_lsn = $2 WHERE name = $1 \
                   AND (confirmed_lsn IS NULL OR confirmed_lsn < $2)";
        self.execute(sql, &[&PgLsn::from(lsn.as_u64())]).await.map(drop)
    }

    /// Records that the source is on `timeline` now. A position past `confirmed` is not part of its
    /// history.
    ///
    /// # Errors
    /// A query failed.
    pub async fn change_timeline(&self, timeline: i64, confirmed: Lsn) -> Result<(), Error> {
        let sql = "UPDATE pgsluice.subscription SET source_timeline = $2, \
                   confirmed_lsn = CASE WHEN confirmed_lsn > $3 THEN $3 ELSE confirmed_lsn END WHERE name = $1";
        self.execute(sql, &[&timeline, &PgLsn::from(confirmed.as_u64())]).await.map(drop)
    }

    /// Stops the subscription until it is enabled again.
    ///
    /// # Errors
    /// A query failed.
    pub async fn disable(&self, reason: &str) -> Result<(), Error> {
        let sql = "UPDATE pgsluice.subscription SET enabled = false, last_error = $2 WHERE name = $1";
        self.execute(sql, &[&reason]).await.map(drop)
    }

    /// Every table whose copy has begun.
    ///
    /// # Errors
    /// A query failed.
    pub async fn copied_tables(&self) -> Result<Vec<CopiedTable>, Error> {
        // Some columns are missing where an older version made the table.
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

    /// Records that the slot exists and begins at `consistent_point`, and that these tables take
    /// part, each given as schema and name. Without `copy_data` they join at once, as they are.
    ///
    /// # Errors
    /// A query failed.
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

    /// Adds the column for the snapshots of copies, where an older version made none.
    ///
    /// # Errors
    /// A query failed.
    pub async fn keep_snapshots(&self) -> Result<(), Error> {
        self.make_columns("copied_table", &["snapshot pg_catalog.pg_snapshot"]).await
    }

    /// Adds the missing ones of `columns`, each a name and a type, to a table of schema `pgsluice`
    /// that an older version made.
    ///
    /// # Errors
    /// A query failed, also because the table stays locked for three seconds.
    pub(crate) async fn make_columns(&self, table: &str, columns: &[&str]) -> Result<(), Error> {
        // ADD COLUMN IF NOT EXISTS alone waits for every reader of the table, even where the column
        // exists. A DO block needs PL/pgSQL, which a target may lack.
        let names: Vec<&str> = columns.iter().filter_map(|column| column.split(' ').next()).collect();
        let sql = "SELECT count(*) FROM pg_catalog.pg_attribute a \
                    WHERE a.attrelid = $1::pg_catalog.text::pg_catalog.regclass AND a.attname = ANY ($2::pg_catalog.text[])";
        let found = self.session.query_one(sql, &[&format!("pgsluice.{table}"), &names]).await;
        if found.map_err(|error| self.session.error(error))?.get::<_, i64>(0) == columns.len() as i64 {
            return Ok(());
        }
        let add: Vec<String> =
            columns.iter().map(|column| format!("ADD COLUMN IF NOT EXISTS {column}")).collect();
        // Sent together, they are one transaction. It may have to wait, for example for the copy of
        // a large table, and others must not wait long behind it.
        let make = format!(
            "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('pgsluice')), \
                    pg_catalog.set_config('lock_timeout', '3s', true); \
             ALTER TABLE pgsluice.{table} {}",
            add.join(", ")
        );
        self.session.batch_execute(&make).await.map_err(|error| self.session.error(error).into())
    }

    /// Removes a table, which takes part no longer.
    ///
    /// # Errors
    /// A query failed.
    pub async fn forget_table(&self, table: &TableKey) -> Result<(), Error> {
        let sql = "DELETE FROM pgsluice.copied_table \
                    WHERE subscription = $1 AND schema_name = $2 AND table_name = $3";
        self.execute(sql, &[&table.0, &table.1]).await.map(drop)
    }

    /// Attaches every origin of the subscription to `wire`, the first one to stay, and reads how
    /// far they came: the fence of rule P2.
    ///
    /// # Errors
    /// An origin could not be attached, or may not be used.
    pub async fn attach_origin(&self, wire: &mut Wire) -> Result<CommittedRanges, Error> {
        self.look_for_ahead().await?;
        let (first, own) = (self.name.origin(0), [wire.pid()]);
        let names = origins::origins(&**self.session(), &self.name).await;
        let names = names.map_err(|error| self.session.error(error))?;
        for name in &names {
            if *name == first {
                continue;
            }
            match self.attach(wire, name, &own).await {
                Ok(()) => {
                    wire.query("SELECT pg_catalog.pg_replication_origin_session_reset()").await?;
                }
                // Attaching needs room only if the origin has no state in the server. So no session
                // has it, and nothing was committed by it.
                Err(error) if is_without_room(error.sqlstate()) => {}
                Err(error) => return Err(error),
            }
        }
        self.attach(wire, &first, &own).await?;
        self.flushed_progress().await
    }

    /// Attaches the origin of `worker`, which may not exist yet, to `wire`. Call it after
    /// [`State::attach_origin`]. `own` are our sessions so far.
    ///
    /// # Errors
    /// The origin could not be attached, or may not be used.
    pub async fn attach_worker(&self, wire: &mut Wire, worker: usize, own: &[i32]) -> Result<(), Error> {
        let origin = self.name.origin(worker);
        self.create_origin(&origin).await?;
        self.attach(wire, &origin, own).await
    }

    /// `own` are sessions of this process.
    async fn attach(&self, wire: &mut Wire, origin: &str, own: &[i32]) -> Result<(), Error> {
        let setup =
            format!("SELECT pg_catalog.pg_replication_origin_session_setup({})", quote_literal(origin));
        let start = tokio::time::Instant::now();
        let mut terminated = false;
        while let Err(error) = wire.query(&setup).await {
            match error.sqlstate().map(SqlState::from_code) {
                // Usually a backend of a process that is gone has it.
                Some(SqlState::OBJECT_IN_USE) if start.elapsed() > FENCE_WAIT => {
                    return Err(self.held(origin, &error).await);
                }
                Some(SqlState::OBJECT_IN_USE) => {}
                Some(SqlState::UNDEFINED_OBJECT) => {
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

    /// Makes the error for an origin that another session holds, and names that session if the
    /// server's message tells.
    pub(crate) async fn held(&self, origin: &str, error: &client::Error) -> Error {
        let pid = error.server().and_then(|error| last_number(&error.message)).unwrap_or_default();
        let sql = "SELECT pg_catalog.format(' (%s, user %s, %s)', coalesce(nullif(application_name, ''), \
                   backend_type), usename, coalesce(client_addr::text, 'local')) \
                   FROM pg_catalog.pg_stat_activity WHERE pid = $1";
        let who = self.session.query_opt(sql, &[&pid]).await.ok().flatten();
        let who: String = who.map(|row| row.get(0)).unwrap_or_default();
        let (origin, name) = (origin.to_owned(), self.name.to_string());
        Kind::Held { origin, name, pid, who }.into()
    }

    /// The ranges that the target has committed, all of them flushed (rule P3).
    ///
    /// # Errors
    /// A query failed.
    pub async fn flushed_progress(&self) -> Result<CommittedRanges, Error> {
        let failed = |error| self.damaged(error);
        let last = |row: Option<tokio_postgres::Row>| {
            let lsn = row.and_then(|row| row.get::<_, Option<PgLsn>>(0));
            lsn.map_or(Lsn::INVALID, |lsn| Lsn::new(lsn.into()))
        };
        // Read this first: a row visible here has moved its origin's local position, up to which
        // the second query flushes.
        let sql = "SELECT applied_lsn FROM pgsluice.progress WHERE subscription = $1 \
                    ORDER BY applied_lsn DESC LIMIT 1";
        let name = self.name.as_str();
        let mut ranges = Vec::new();
        if self.has_ahead.load(Ordering::Relaxed) {
            let sql = "SELECT since_lsn, applied_lsn FROM pgsluice.ahead WHERE subscription = $1";
            let rows = self.session.query(sql, &[&name]).await.map_err(failed)?;
            let position = |row: &tokio_postgres::Row, at| Lsn::new(row.get::<_, PgLsn>(at).into());
            ranges.extend(rows.iter().map(|row| (position(row, 0), position(row, 1))));
        }
        // Before 16, only folded ranges have such rows.
        let written = last(self.session.query_opt(sql, &[&name]).await.map_err(failed)?);
        // The maximum over all workers, because commits follow one another.
        let sql = format!(
            "SELECT max(pg_catalog.pg_replication_origin_progress(o.roname, true)) \
               FROM pg_catalog.pg_replication_origin o WHERE {}",
            origins_of("$1")
        );
        let told = last(Some(self.session.query_one(&sql, &[&name]).await.map_err(failed)?));
        let prefix = if self.aborts_move_origins() { written } else { written.max(told) };
        Ok(CommittedRanges::new(prefix, ranges))
    }

    fn aborts_move_origins(&self) -> bool {
        self.session.version().major() >= ABORT_MOVES_ORIGIN
    }

    /// Writes `reached`, as it was read, with as few rows as possible. Rows written since then lie
    /// in none of its ranges, or deleting them changes nothing.
    ///
    /// # Errors
    /// A query failed.
    pub async fn fold_ranges(&self, reached: &CommittedRanges) -> Result<(), Error> {
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
        // Sent together, they are one transaction.
        self.session.batch_execute(&sql).await.map_err(|error| self.session.error(error).into())
    }

    /// Removes the rows of progress from `from` up to, but not including, `to`, which must be the
    /// newest row.
    ///
    /// # Errors
    /// A query failed.
    pub async fn prune_progress(&self, from: Lsn, to: Lsn) -> Result<(), Error> {
        if !self.aborts_move_origins() || from >= to {
            return Ok(());
        }
        let sql = "DELETE FROM pgsluice.progress WHERE subscription = $1 AND applied_lsn >= $2 AND applied_lsn < $3";
        self.execute(sql, &[&PgLsn::from(from.as_u64()), &PgLsn::from(to.as_u64())]).await.map(drop)
    }

    /// Whether the target has `track_commit_timestamp` on.
    ///
    /// # Errors
    /// A query failed.
    pub async fn tracks_commit_timestamps(&self) -> Result<bool, Error> {
        let row = self.one("SELECT pg_catalog.current_setting('track_commit_timestamp')").await?;
        Ok(row.get::<_, String>(0) == "on")
    }

    /// The target's system identifier and the name of its database; `None` where the role may not
    /// ask for the former.
    ///
    /// # Errors
    /// A query failed.
    pub async fn target_node(&self) -> Result<Option<(u64, String)>, Error> {
        let sql = "SELECT CASE WHEN pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') \
                   THEN (SELECT s.system_identifier FROM pg_catalog.pg_control_system() s) END, \
                   pg_catalog.current_database()";
        let row = self.one(sql).await?;
        // The server keeps it unsigned and shows it as int8.
        let system = row.get::<_, Option<i64>>(0).map(i64::cast_unsigned);
        Ok(system.map(|system| (system, row.get(1))))
    }

    /// The control session, for other queries on the target.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }
}
