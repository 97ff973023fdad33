//! Reads, changes and removes what a subscription has on the two servers.
//!
//! On the target that is schema `pgsluice`, with one row per subscription, the record of the first
//! copy, and replication origins. On the source it is the slot. The applier makes the schema and
//! reads it. These are the operator's commands, which work whether a process runs or not. They hold
//! no lock while they wait, and a missing schema means that nothing is stored.
//!
//! An adopted subscription (`adopt`) streams from the slot that its native owner made. The target's
//! row has that slot's name.
//!
//! ## Removing
//! The slot is removed first and the target's state second. If anything interrupts the command, the
//! target's row still says what there was, and the same command continues. On the target everything
//! is one transaction.
//!
//! Origins and slots belong to a whole cluster, but the row belongs to one database. So a slot of
//! another database, or origins without a row here, may belong to a subscription of the same name
//! elsewhere. They are not touched unless forced.
//!
//! A killed process may leave backends for a moment, until they notice. Objects in use are tried
//! again for `BUSY_BOUND`.

mod consistency;
mod error_reference;
mod skip;

use std::fmt;
use std::time::{Duration, Instant};

use base::{Lsn, SubscriptionName, quote_ident};
use client::{ConnInfo, Session, SqlState};
use engine::CatchingUp;
use engine::adoption::adoption;
use schedule::CommittedRanges;
use serde::Serialize;
use source::slot::{drop_slot, slot_state};
use tokio_postgres::types::PgLsn;

pub use error_reference::error_reference;
pub use skip::set_skip;

/// How long backends of a dead process may keep objects in use.
const BUSY_BOUND: Duration = Duration::from_secs(5);

/// Interval between looks at objects in use.
const BUSY_POLL: Duration = Duration::from_millis(200);

/// A subscription as the target's state describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// Whether it may run.
    pub enabled: bool,
    /// Its slot on the source.
    pub slot: Option<String>,
    /// The native subscription that it was adopted from and that still exists.
    pub adopted_from: Option<String>,
    /// Why an adopted subscription does not run.
    pub adoption_refuses: Option<String>,
    /// Its publications.
    pub publications: Vec<String>,
    /// The position at which the slot began.
    pub consistent_point: Option<String>,
    /// Confirmed to the source up to here, or about to be.
    pub confirmed_lsn: Option<String>,
    /// Durable on the target up to here, by its replication origins.
    pub applied_lsn: Option<String>,
    /// The LSN of the transaction to skip.
    pub skip_lsn: Option<String>,
    /// Why the subscription was disabled, or last failed.
    pub last_error: Option<String>,
    /// Tables whose first copy is finished.
    pub tables_copied: i64,
    /// Tables whose first copy is not finished.
    pub tables_unfinished: i64,
    /// What is missing until every state of the target is one that the source had, as far as the
    /// target knows.
    pub catching_up: Option<CatchingUp>,
}

impl Stored {
    /// The position that the target has durably reached: everything before it was applied, or was
    /// not for this target.
    #[must_use]
    pub fn reached(&self) -> Option<Lsn> {
        let parse = |lsn: &Option<String>| lsn.as_ref().and_then(|lsn| lsn.parse::<Lsn>().ok());
        parse(&self.applied_lsn).max(parse(&self.confirmed_lsn)).or_else(|| parse(&self.consistent_point))
    }
}

/// A subscription's slot as the source describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotFigures {
    /// Its name.
    pub slot: String,
    /// The walsender that streams from it.
    pub active_pid: Option<i32>,
    /// Everything before this position was confirmed.
    pub confirmed_flush_lsn: Option<String>,
    /// End of the source's WAL.
    pub source_end: String,
    /// Bytes from the confirmed position to the end.
    pub lag_bytes: Option<u64>,
    /// Whether the slot is physical; such a slot has no confirmed position.
    pub physical: bool,
    /// The position from which the slot keeps WAL on the source.
    pub restart_lsn: Option<String>,
    /// WAL that the slot keeps on the source's disk.
    pub retained_bytes: Option<u64>,
    /// PostgreSQL's word: `reserved`, `extended`, `unreserved`, `lost`.
    pub wal_status: Option<String>,
    /// Why the source invalidated the slot, if it did.
    pub invalidation: Option<String>,
}

/// Why a command on the servers failed.
#[derive(Debug)]
pub struct Error(Kind);

#[derive(Debug)]
enum Kind {
    Connect {
        end: &'static str,
        cause: client::Error,
    },
    Query {
        doing: String,
        cause: client::Error,
    },
    Source {
        cause: source::Error,
    },
    InUse {
        what: String,
        by: String,
    },
    Foreign {
        what: String,
        why: String,
    },
    Missing {
        subscription: SubscriptionName,
        place: String,
    },
    /// The target has already passed the transaction to skip.
    SkipPassed {
        subscription: SubscriptionName,
        lsn: Lsn,
        reached: Lsn,
    },
    SkipOther {
        lsn: Lsn,
        failing: Lsn,
    },
}

impl Error {
    /// A process runs the subscription.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self.0, Kind::InUse { .. })
    }

    /// The target does not know the subscription.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self.0, Kind::Missing { .. })
    }

    /// The error for a `session` that failed with `error` while `doing` something.
    pub(crate) fn query(session: &Session, doing: impl Into<String>, error: tokio_postgres::Error) -> Error {
        Error(Kind::Query { doing: doing.into(), cause: session.error(error) })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Connect { end, .. } => write!(f, "could not connect to the {end}"),
            Kind::Query { doing, .. } => write!(f, "could not {doing}"),
            Kind::Source { .. } => f.write_str("a command on the source failed"),
            Kind::InUse { what, by } => write!(
                f,
                "{what} is in use by {by}: stop the process that runs this subscription, perhaps on another machine, \
                 with pgsluice stop there; then try again"
            ),
            Kind::Foreign { what, why } => {
                write!(f, "{what} {why}; if it is this subscription's nevertheless, use --force")
            }
            Kind::Missing { subscription, place } => write!(
                f,
                "there is no subscription \"{subscription}\" in {place}: correct --subscription or --target; the \
                 command run creates one"
            ),
            Kind::SkipPassed { subscription, lsn, reached } => write!(
                f,
                "the transaction that commits at {lsn} cannot be skipped any more: the target has all of subscription \
                 \"{subscription}\" up to {reached}; the LSN of a transaction that fails stands in its error: pgsluice \
                 status"
            ),
            Kind::SkipOther { lsn, failing } => write!(
                f,
                "{lsn} is not the transaction that fails: that one finished at {failing}, and nothing behind it is reached \
                 before; to pass over it: pgsluice skip --lsn {failing}"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Connect { cause, .. } | Kind::Query { cause, .. } => Some(cause),
            Kind::Source { cause } => Some(cause),
            _ => None,
        }
    }
}

/// Opens a session for an operator's command at one end, `source` or `target`.
pub async fn connect(
    end: &'static str,
    info: &ConnInfo,
    subscription: &SubscriptionName,
) -> Result<Session, Error> {
    let settings = [("search_path", ""), ("lock_timeout", "10s")];
    client::connect(info, &subscription.application_name("command"), &settings)
        .await
        .map_err(|cause| Error(Kind::Connect { end, cause }))
}

/// Whether the target has our tables.
async fn has_state(target: &Session) -> Result<bool, Error> {
    let sql = "SELECT pg_catalog.to_regclass('pgsluice.subscription') IS NOT NULL";
    let row =
        target.query_one(sql, &[]).await.map_err(|e| Error::query(target, "look for schema pgsluice", e))?;
    Ok(row.get(0))
}

// A replication origin's name ends in the worker's number. A name with another number before that
// belongs to another subscription (SubscriptionName::origin).
const ORIGINS: &str = "\
SELECT o.roname FROM pg_catalog.pg_replication_origin o
WHERE o.roname ~ ('^pgsluice_' || $1 || '_[0-9]+$') ORDER BY o.roname";

const STORED: &str = "\
SELECT s.enabled, s.slot, s.publications, s.consistent_point::text, s.confirmed_lsn::text,
       coalesce((SELECT max(p.applied_lsn) FROM pgsluice.progress p WHERE p.subscription = s.name),
         (SELECT max(pg_catalog.pg_replication_origin_progress(o.roname, true))
            FROM pg_catalog.pg_replication_origin o
           WHERE o.roname ~ ('^pgsluice_' || s.name || '_[0-9]+$')))::text,
       s.skip_lsn::text, s.last_error,
       (SELECT count(*) FROM pgsluice.copied_table t WHERE t.subscription = s.name AND t.finished),
       (SELECT count(*) FROM pgsluice.copied_table t WHERE t.subscription = s.name AND NOT t.finished)
FROM pgsluice.subscription s WHERE s.name = $1";

/// Reads what the target has stored; `None` if nothing.
pub async fn stored(target: &Session, subscription: &SubscriptionName) -> Result<Option<Stored>, Error> {
    if !has_state(target).await? {
        return Ok(None);
    }
    let failed = |error| Error::query(target, "read the subscription's state on the target", error);
    let adopted = adoption(&**target, subscription).await.map_err(failed)?;
    let row = target.query_opt(STORED, &[&subscription.as_str()]).await.map_err(failed)?;
    let read = |row: tokio_postgres::Row| -> Result<Stored, tokio_postgres::Error> {
        Ok(Stored {
            enabled: row.try_get::<_, Option<bool>>(0)?.unwrap_or(true),
            slot: row.try_get(1)?,
            adopted_from: adopted.as_ref().and_then(|adopted| adopted.native.clone()),
            // The settings for `origin` are not known here.
            adoption_refuses: adopted
                .as_ref()
                .and_then(|adopted| Some(adopted.refusal(subscription, true)?.to_string())),
            publications: row.try_get::<_, Option<Vec<String>>>(2)?.unwrap_or_default(),
            consistent_point: row.try_get(3)?,
            confirmed_lsn: row.try_get(4)?,
            applied_lsn: row.try_get(5)?,
            skip_lsn: row.try_get::<_, Option<String>>(6)?.filter(|lsn| lsn != "0/0"),
            last_error: row.try_get(7)?,
            tables_copied: row.try_get(8)?,
            tables_unfinished: row.try_get(9)?,
            catching_up: None,
        })
    };
    let mut stored = row.map(read).transpose().map_err(failed)?;
    if let Some(stored) = &mut stored {
        let reached =
            reached(target, subscription, stored.applied_lsn.as_deref()).await.map_err(failed)?.prefix;
        stored.applied_lsn = Some(reached.to_string()).filter(|_| reached.is_valid());
        let confirmed = stored.confirmed_lsn.as_deref().and_then(|lsn| lsn.parse().ok());
        let flushed = reached.max(confirmed.unwrap_or(Lsn::INVALID));
        stored.catching_up = consistency::awaited(target, subscription, flushed).await.map_err(failed)?;
    }
    Ok(stored)
}

/// Returns what the target has applied: everything up to `applied`, by its origins, and what was
/// committed out of order behind it.
async fn reached(
    target: &Session,
    name: &SubscriptionName,
    applied: Option<&str>,
) -> Result<CommittedRanges, tokio_postgres::Error> {
    let prefix = applied.and_then(|lsn| lsn.parse().ok()).unwrap_or(Lsn::INVALID);
    // Older versions did not make this table.
    let there = target.query_one("SELECT pg_catalog.to_regclass('pgsluice.ahead') IS NOT NULL", &[]).await?;
    if !there.get::<_, bool>(0) {
        return Ok(CommittedRanges::new(prefix, Vec::new()));
    }
    let sql = "SELECT since_lsn, applied_lsn FROM pgsluice.ahead WHERE subscription = $1";
    let rows = target.query(sql, &[&name.as_str()]).await?;
    let lsn = |row: &tokio_postgres::Row, at| Lsn::new(row.get::<_, PgLsn>(at).into());
    Ok(CommittedRanges::new(prefix, rows.iter().map(|row| (lsn(row, 0), lsn(row, 1))).collect()))
}

/// Whether a server replays another server's WAL.
pub async fn is_standby(session: &Session) -> Result<bool, Error> {
    let row = session.query_one("SELECT pg_catalog.pg_is_in_recovery()", &[]).await;
    Ok(row.map_err(|error| Error::query(session, "ask whether the server is a standby", error))?.get(0))
}

/// The end of the source's WAL.
pub async fn source_end(source: &Session) -> Result<Option<Lsn>, Error> {
    let row = source.query_one(engine::monitor::WAL_END, &[]).await;
    let row = row.map_err(|e| Error::query(source, "ask the source for the end of its WAL", e))?;
    Ok(row.get::<_, Option<String>>(0).and_then(|end| end.parse().ok()))
}

/// Reads the slot on the source; `None` if there is none.
pub async fn slot_figures(source: &Session, name: &str) -> Result<Option<SlotFigures>, Error> {
    let Some(slot) = slot_state(source, name).await.map_err(|cause| Error(Kind::Source { cause }))? else {
        return Ok(None);
    };
    let end = source_end(source).await?;
    let behind = |lsn: Option<Lsn>| Some(end?.bytes_since(lsn?));
    Ok(Some(SlotFigures {
        slot: name.to_owned(),
        active_pid: slot.active_pid,
        confirmed_flush_lsn: slot.confirmed_flush.map(|lsn| lsn.to_string()),
        lag_bytes: behind(slot.confirmed_flush),
        physical: slot.is_physical(),
        restart_lsn: slot.restart_lsn.map(|lsn| lsn.to_string()),
        retained_bytes: behind(slot.restart_lsn),
        source_end: end.map(|lsn| lsn.to_string()).unwrap_or_default(),
        wal_status: slot.wal_status,
        invalidation: slot.invalidation,
    }))
}

/// Changes one column of the subscription's row, which must exist.
async fn update(
    target: &Session,
    subscription: &SubscriptionName,
    doing: &str,
    sql: &str,
    value: &(dyn tokio_postgres::types::ToSql + Sync),
) -> Result<(), Error> {
    let changed = match has_state(target).await? {
        true => target
            .execute(sql, &[&subscription.as_str(), value])
            .await
            .map_err(|error| Error::query(target, doing, error))?,
        false => 0,
    };
    if changed == 0 {
        let place = target.describe().to_owned();
        return Err(Error(Kind::Missing { subscription: subscription.clone(), place }));
    }
    Ok(())
}

/// Allows `run` to empty tables and copy them again, if `run` has asked for that. Returns false if
/// it has not.
pub async fn allow_relook(target: &Session, subscription: &SubscriptionName) -> Result<bool, Error> {
    const ASKED: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_attribute a \
        WHERE a.attrelid = pg_catalog.to_regclass('pgsluice.subscription') AND a.attname = 'lost_lsn')";
    const DOING: &str = "allow tables to be copied again";
    let failed = |error| Error::query(target, DOING, error);
    if stored(target, subscription).await?.is_none() {
        let place = target.describe().to_owned();
        return Err(Error(Kind::Missing { subscription: subscription.clone(), place }));
    }
    // Older versions did not make this column, and so never asked.
    if !target.query_one(ASKED, &[]).await.map_err(failed)?.get::<_, bool>(0) {
        return Ok(false);
    }
    let sql =
        "UPDATE pgsluice.subscription SET relook_lsn = lost_lsn WHERE name = $1 AND lost_lsn IS NOT NULL";
    Ok(target.execute(sql, &[&subscription.as_str()]).await.map_err(failed)? > 0)
}

/// Allows or forbids the subscription to run.
pub async fn set_enabled(
    target: &Session,
    subscription: &SubscriptionName,
    enabled: bool,
) -> Result<(), Error> {
    let sql = "UPDATE pgsluice.subscription SET enabled = $2 WHERE name = $1";
    let doing = if enabled { "enable the subscription on the target" } else { "disable it on the target" };
    update(target, subscription, doing, sql, &enabled).await
}

/// Removes the slot called `name`. Adds a description of it to `removed`.
pub async fn drop_source(
    source: &Session,
    name: &str,
    (known, force): (bool, bool),
    removed: &mut Vec<String>,
) -> Result<(), Error> {
    let what = format!("replication slot \"{name}\" on the source");
    let deadline = Instant::now() + BUSY_BOUND;
    loop {
        let state = slot_state(source, name).await.map_err(|cause| Error(Kind::Source { cause }))?;
        let Some(state) = state else { return Ok(()) };
        let row = source.query_one("SELECT pg_catalog.current_database()::text", &[]).await;
        let here: String = row.map_err(|e| Error::query(source, "ask for the source's database", e))?.get(0);
        // A physical slot belongs to no database, so the target or the state directory must know it
        // as ours.
        if !force && state.is_physical() && !known {
            let why =
                "is a physical one, of which neither the target nor the state directory knows".to_owned();
            return Err(Error(Kind::Foreign { what, why }));
        }
        if !force && !state.is_physical() && state.database.as_deref() != Some(&here) {
            let database = state.database.unwrap_or_else(|| "none".to_owned());
            return Err(Error(Kind::Foreign {
                what,
                why: format!("belongs to database \"{database}\", not \"{here}\""),
            }));
        }
        if let Some(pid) = state.active_pid {
            if Instant::now() >= deadline {
                return Err(Error(Kind::InUse { what, by: format!("walsender {pid}") }));
            }
            tokio::time::sleep(BUSY_POLL).await;
            continue;
        }
        match drop_slot(source, name).await {
            Ok(true) => {
                removed.push(what);
                return Ok(());
            }
            Ok(false) => return Ok(()),
            // A walsender took the slot between the look and the drop; look again.
            Err(error) if error.sqlstate() == Some(SqlState::OBJECT_IN_USE.code()) => {}
            Err(cause) => return Err(Error(Kind::Source { cause })),
        }
    }
}

/// Sessions of a pgsluice that runs the subscription, perhaps elsewhere.
const WORKERS: &str = "\
SELECT pid, application_name FROM pg_catalog.pg_stat_activity
WHERE pg_catalog.starts_with(application_name, $1) AND application_name <> $2
  AND pid <> pg_catalog.pg_backend_pid() ORDER BY pid LIMIT 1";

/// Removes origins and state. Adds descriptions of what it removed to `removed`.
pub async fn drop_target(
    target: &mut Session,
    subscription: &SubscriptionName,
    force: bool,
    removed: &mut Vec<String>,
) -> Result<(), Error> {
    wait_for_workers(target, subscription).await?;
    let deadline = Instant::now() + BUSY_BOUND;
    loop {
        match drop_target_once(target, subscription, force).await {
            Err(Error(Kind::Query { cause, .. }))
                if cause.sqlstate() == Some(SqlState::OBJECT_IN_USE.code()) && Instant::now() < deadline =>
            {
                tokio::time::sleep(BUSY_POLL).await;
            }
            Err(Error(Kind::Query { cause, .. }))
                if cause.sqlstate() == Some(SqlState::OBJECT_IN_USE.code()) =>
            {
                let what = "a replication origin on the target".to_owned();
                return Err(Error(Kind::InUse { what, by: format!("a session ({cause})") }));
            }
            Ok(gone) => {
                removed.extend(gone);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits until no session of a running pgsluice is left.
async fn wait_for_workers(target: &Session, subscription: &SubscriptionName) -> Result<(), Error> {
    let deadline = Instant::now() + BUSY_BOUND;
    let (any, command) = (subscription.application_name(""), subscription.application_name("command"));
    loop {
        let failed = |error| Error::query(target, "look for sessions on the target", error);
        let Some(row) = target.query_opt(WORKERS, &[&any, &command]).await.map_err(failed)? else {
            return Ok(());
        };
        if Instant::now() >= deadline {
            let by =
                format!("session {} (\"{}\") on the target", row.get::<_, i32>(0), row.get::<_, String>(1));
            return Err(Error(Kind::InUse { what: format!("subscription \"{subscription}\""), by }));
        }
        tokio::time::sleep(BUSY_POLL).await;
    }
}

async fn drop_target_once(
    target: &mut Session,
    subscription: &SubscriptionName,
    force: bool,
) -> Result<Vec<String>, Error> {
    let place = target.describe().to_owned();
    let has_state = has_state(target).await?;
    let mut removed = Vec::new();
    let outcome = remove(target, subscription, has_state, force, &mut removed).await;
    match outcome {
        Ok(None) => Ok(removed),
        Ok(Some(origins)) => Err(Error(Kind::Foreign {
            what: format!("the replication origins {origins} on the target"),
            why: format!(
                "may be another database's: {place} has no state of subscription \"{subscription}\""
            ),
        })),
        Err(error) => Err(Error::query(target, "remove the subscription from the target", error)),
    }
}

/// Removes everything in one transaction. Returns the origins that may belong to another
/// subscription and were kept.
async fn remove(
    target: &mut Session,
    subscription: &SubscriptionName,
    has_state: bool,
    force: bool,
    removed: &mut Vec<String>,
) -> Result<Option<String>, tokio_postgres::Error> {
    let name = subscription.as_str();
    let mut transaction = target.transaction().await?;
    let mut known = false;
    if has_state {
        // No process can add a subscription while the last one is removed.
        transaction.batch_execute("LOCK TABLE pgsluice.subscription IN ACCESS EXCLUSIVE MODE").await?;
        let sql = "SELECT 1 FROM pgsluice.subscription WHERE name = $1";
        known = transaction.query_opt(sql, &[&name]).await?.is_some();
    }
    let origins: Vec<String> =
        transaction.query(ORIGINS, &[&name]).await?.iter().map(|row| row.get(0)).collect();
    if !known && !force && !origins.is_empty() {
        return Ok(Some(origins.join(", ")));
    }
    for origin in &origins {
        transaction.execute("SELECT pg_catalog.pg_replication_origin_drop($1)", &[origin]).await?;
        removed.push(format!("replication origin \"{origin}\" on the target"));
    }
    if has_state {
        remove_rows(&mut transaction, name, removed).await?;
    }
    transaction.commit().await?;
    Ok(None)
}

/// Our tables, and the column that names the subscription.
const STATE_TABLES: &str = "\
SELECT c.relname::text, a.attname::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
WHERE c.relnamespace = 'pgsluice'::pg_catalog.regnamespace AND c.relkind = 'r'
  AND a.attname = CASE c.relname WHEN 'subscription' THEN 'name' ELSE 'subscription' END
ORDER BY c.relname = 'subscription', c.relname";

/// The types with which arrays are applied (`State::make_holders`).
const HOLDERS: &str = "\
SELECT pg_catalog.format('pgsluice.%I', t.typname)
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_class c ON c.oid = t.typrelid AND c.relkind = 'c'
WHERE t.typnamespace = 'pgsluice'::pg_catalog.regnamespace AND t.typname ~ '^array_of_'";

/// Removes the rows of `name`; with the last subscription also the schema.
pub(crate) async fn remove_rows(
    transaction: &mut tokio_postgres::Transaction<'_>,
    name: &str,
    removed: &mut Vec<String>,
) -> Result<(), tokio_postgres::Error> {
    let tables: Vec<(String, String)> =
        transaction.query(STATE_TABLES, &[]).await?.iter().map(|row| (row.get(0), row.get(1))).collect();
    for (table, column) in &tables {
        let sql = format!("DELETE FROM pgsluice.{} WHERE {} = $1", quote_ident(table), quote_ident(column));
        let count = transaction.execute(&sql, &[&name]).await?;
        if count > 0 {
            removed.push(format!(
                "{count} row{} of pgsluice.{table} on the target",
                if count == 1 { "" } else { "s" }
            ));
        }
    }
    let rest: bool =
        transaction.query_one("SELECT EXISTS (SELECT FROM pgsluice.subscription)", &[]).await?.get(0);
    if rest {
        return Ok(());
    }
    // Removes only our own objects: any other object in the schema keeps it.
    let holders = transaction.query(HOLDERS, &[]).await?;
    let holders: String =
        holders.iter().map(|row| format!("DROP TYPE {}; ", row.get::<_, &str>(0))).collect();
    let savepoint = transaction.transaction().await?;
    let names: Vec<_> = tables.iter().map(|(table, _)| format!("pgsluice.{}", quote_ident(table))).collect();
    let sql = format!("DROP TABLE {}; {holders}DROP SCHEMA pgsluice", names.join(", "));
    match savepoint.batch_execute(&sql).await {
        Ok(()) => {
            savepoint.commit().await?;
            removed.push("schema \"pgsluice\" on the target".to_owned());
            Ok(())
        }
        Err(error) if error.code() == Some(&SqlState::DEPENDENT_OBJECTS_STILL_EXIST) => {
            tracing::warn!("schema pgsluice stays on the target: it holds objects that are not pgsluice's");
            savepoint.rollback().await
        }
        Err(error) => Err(error),
    }
}
