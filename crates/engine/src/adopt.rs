//! Taking over from a native subscription of the target, and handing back.
//!
//! Handed: both ends and a name. Promises: no row is copied, no change is
//! lost or applied twice in either direction, and whatever interrupts it, the
//! same command goes on. The native subscription stays, disabled and without
//! its slot's name, so that neither ENABLE nor DROP SUBSCRIPTION can reach the
//! slot; the target's row keeps the name, and `run` streams from that slot.
//!
//! ```text
//!            T1: disable, slot_name = NONE,      T2: where it stood
//!                our row and origin              and its tables
//! native ───────────────────────────► unfinished ─────────────► adopted
//!    ▲                                    │                        │
//!    └────────────────────────────────────┴────────────────────────┘
//!      T3: its origin to where we stand, slot_name, enable; ours removed
//! ```
//!
//! T1, T2 and T3 are one transaction each, on the target alone. Between T1 and
//! T2 the native apply worker may still be applying; it is waited for.
//!
//! Hazards:
//! 1. The native worker commits after its position was read. It is waited for,
//!    its parallel workers too, and then its origin is attached to a session
//!    of ours (as RULES P2): only then is the position read, and flushed.
//! 2. Ours does so while handing back: the same fence, under the advisory lock
//!    that keeps every other pgsluice away.
//! 3. Moving or dropping an origin is not undone when its transaction aborts.
//!    The native origin means nothing while its subscription has no slot, and
//!    our position is stored in our row before our origin is dropped.
//! 4. A walsender outlives its client for a moment. The native worker, started
//!    while it does, would fail and perhaps disable its subscription: the slot
//!    is waited for before anything is handed back.
//!
//! Waits have no bound of their own where only the native worker can end them
//! (one large transaction): ending that worker would help nobody, and whoever
//! does not want to wait may kill this process and repeat the command.

use std::time::{Duration, Instant};

use apply::{State, SubscriptionRow};
use base::{Lsn, SubscriptionName, quote_ident};
use client::{ConnInfo, Replication, Session, Wire};
use source::slot::{self, SlotState};
use tokio_postgres::GenericClient;

use crate::error::{Error, Kind};
use crate::{Settings, admin, preflight};

const POLL: Duration = Duration::from_millis(100);
/// A walsender whose client has gone notices within this, or not soon.
const SLOT_BOUND: Duration = Duration::from_secs(60);
/// What a dead process's backend holds on the target.
const ORIGIN_BOUND: Duration = Duration::from_secs(20);
/// Between two lines that say what is waited for.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// Read by whoever runs any subscription of this database, perhaps another
/// role; nothing in it is secret.
const TABLE: &str = "\
CREATE TABLE IF NOT EXISTS pgsluice.adopted (
    subscription text PRIMARY KEY REFERENCES pgsluice.subscription ON DELETE CASCADE,
    native_oid oid NOT NULL,
    binary_values bool NOT NULL,
    streaming bool NOT NULL,
    origin text NOT NULL,
    synchronous_commit text NOT NULL,
    disable_on_error bool NOT NULL,
    adopted_at timestamptz NOT NULL DEFAULT pg_catalog.now());
GRANT SELECT ON pgsluice.adopted TO PUBLIC";

/// What a native subscription was told, in pgsluice's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeOptions {
    /// Its connection string, if the role may read it and it still exists.
    pub conninfo: Option<String>,
    /// Its publications.
    pub publications: Vec<String>,
    /// `binary`
    pub binary: bool,
    /// `streaming`, `parallel` included.
    pub streaming: bool,
    /// `any` or `none`
    pub origin: String,
    /// `synchronous_commit`
    pub synchronous_commit: String,
    /// `disable_on_error`
    pub disable_on_error: bool,
}

/// `pg_subscription`.
struct Native {
    oid: u32,
    name: String,
    owner: String,
    /// The role may alter it.
    owned: bool,
    slot: Option<String>,
    two_phase: bool,
    skips: bool,
    options: NativeOptions,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done, by this call, at `at`; the slot's name.
    Done {
        /// Where the one left off and the other goes on; `None` if an
        /// unfinished adoption was undone.
        at: Option<Lsn>,
        /// The slot, which is the same before and after.
        slot: String,
        /// Tables of the subscription.
        tables: usize,
    },
    /// An earlier call has done it.
    Already,
    /// There is no subscription to do it with.
    Missing,
}

/// That a subscription was adopted, and what its former owner looks like now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Adoption {
    native_oid: u32,
    /// The native subscription's name, if it still exists.
    pub(crate) native: Option<String>,
    /// The slot that the native subscription names; `None` as it should be.
    native_slot: Option<String>,
    slot: String,
    finished: bool,
    options: NativeOptions,
}

impl Adoption {
    /// Why `run` must not stream.
    pub(crate) fn refusal(&self, name: &SubscriptionName, origin_none: bool) -> Option<String> {
        if !self.finished {
            return Some(format!(
                "subscription \"{name}\" is being adopted and that was interrupted: to go on, pgsluice adopt; to hand \
                 it back, pgsluice release"
            ));
        }
        if let (Some(native), Some(slot)) = (&self.native, &self.native_slot) {
            return Some(format!(
                "native subscription \"{native}\" of the target was given slot \"{slot}\" again while pgsluice has \
                 adopted it: only one of the two may use it; ALTER SUBSCRIPTION {ident} DISABLE; ALTER SUBSCRIPTION \
                 {ident} SET (slot_name = NONE); to hand it back, pgsluice release",
                ident = quote_ident(native)
            ));
        }
        (self.options.origin == "none" && !origin_none).then(|| {
            format!(
                "subscription \"{name}\" was adopted with origin = none: give --origin none, or no --publication, so \
                 that its options are taken from the target"
            )
        })
    }
}

const ADOPTED: &str = "\
SELECT a.native_oid, n.subname::text, n.subslotname::text, s.slot, s.consistent_point IS NOT NULL, s.publications,
       a.binary_values, a.streaming, a.origin, a.synchronous_commit, a.disable_on_error
  FROM pgsluice.adopted a
  JOIN pgsluice.subscription s ON s.name = a.subscription
  LEFT JOIN pg_catalog.pg_subscription n ON n.oid = a.native_oid
   AND n.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
 WHERE a.subscription = $1";

/// Whether the subscription was adopted.
pub(crate) async fn adoption(
    target: &impl GenericClient,
    name: &SubscriptionName,
) -> Result<Option<Adoption>, tokio_postgres::Error> {
    let sql = "SELECT pg_catalog.to_regclass('pgsluice.adopted') IS NOT NULL";
    if !target.query_one(sql, &[]).await?.get::<_, bool>(0) {
        return Ok(None);
    }
    let row = target.query_opt(ADOPTED, &[&name.as_str()]).await?;
    Ok(row.map(|row| Adoption {
        native_oid: row.get(0),
        native: row.get(1),
        native_slot: row.get(2),
        slot: row.get(3),
        finished: row.get(4),
        options: NativeOptions {
            conninfo: None,
            publications: row.get(5),
            binary: row.get(6),
            streaming: row.get(7),
            origin: row.get(8),
            synchronous_commit: row.get(9),
            disable_on_error: row.get(10),
        },
    }))
}

/// Which native subscription is meant.
enum Which<'a> {
    Name(&'a str),
    Oid(u32),
}

/// Reads what is public; the connection string is not.
async fn native(
    target: &impl GenericClient,
    major: u32,
    which: Which<'_>,
) -> Result<Option<Native>, tokio_postgres::Error> {
    let since = |first: u32, column: &str, before: &str| {
        if major >= first { column.to_owned() } else { before.to_owned() }
    };
    let sql = format!(
        "SELECT n.oid, n.subname::text, pg_catalog.pg_get_userbyid(n.subowner)::text,
                pg_catalog.pg_has_role(n.subowner, 'USAGE'), n.subslotname::text,
                {two_phase}, {skips}, n.subpublications, n.subbinary, n.substream::text !~ '^f',
                {origin}, n.subsynccommit, {disable_on_error}
           FROM pg_catalog.pg_subscription n
          WHERE n.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
            AND (n.subname = $1::text OR n.oid = $2::oid)",
        two_phase = since(15, "n.subtwophasestate::text <> 'd'", "false"),
        skips = since(15, "n.subskiplsn <> '0/0'", "false"),
        origin = since(16, "n.suborigin", "'any'::text"),
        disable_on_error = since(15, "n.subdisableonerr", "false"),
    );
    let (name, oid) = match which {
        Which::Name(name) => (Some(name), None),
        Which::Oid(oid) => (None, Some(oid)),
    };
    Ok(target.query_opt(&sql, &[&name, &oid]).await?.map(|row| Native {
        oid: row.get(0),
        name: row.get(1),
        owner: row.get(2),
        owned: row.get(3),
        slot: row.get(4),
        two_phase: row.get(5),
        skips: row.get(6),
        options: NativeOptions {
            conninfo: None,
            publications: row.get(7),
            binary: row.get(8),
            streaming: row.get(9),
            origin: row.get(10),
            synchronous_commit: level(row.get(11)).to_owned(),
            disable_on_error: row.get(12),
        },
    }))
}

/// `synchronous_commit` in the form of its manual: a native subscription
/// keeps what it was given.
fn level(text: &str) -> &str {
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => "on",
        "local" => "local",
        "remote_write" => "remote_write",
        "remote_apply" => "remote_apply",
        _ => "off",
    }
}

/// The options of the subscription that was adopted, or else of the native
/// one called `native_name`.
///
/// # Errors
/// The target cannot be asked.
pub async fn options(
    target: &Session,
    subscription: &SubscriptionName,
    native_name: Option<&str>,
) -> Result<Option<NativeOptions>, Error> {
    let failed = |error| Error::from(target.error(error));
    let major = target.version().major();
    let adopted = adoption(&**target, subscription).await.map_err(failed)?;
    let (oid, mut options) = match (adopted, native_name) {
        (Some(adopted), _) => (adopted.native_oid, adopted.options),
        (None, None) => return Ok(None),
        (None, Some(name)) => match native(&**target, major, Which::Name(name)).await.map_err(failed)? {
            Some(found) => (found.oid, found.options),
            None => return Ok(None),
        },
    };
    let sql = "SELECT pg_catalog.has_column_privilege('pg_catalog.pg_subscription', 'subconninfo', 'SELECT')";
    if target.query_one(sql, &[]).await.map_err(failed)?.get(0) {
        let sql = "SELECT subconninfo FROM pg_catalog.pg_subscription WHERE oid = $1";
        options.conninfo = target.query_opt(sql, &[&oid]).await.map_err(failed)?.map(|row| row.get(0));
    }
    Ok(Some(options))
}

/// Why a step of a transaction failed.
enum Failed {
    Query(tokio_postgres::Error),
    Refused(String),
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        Failed::Query(error)
    }
}

impl Failed {
    fn told(self, target: &Session) -> Error {
        match self {
            Failed::Query(error) => Kind::Client(target.error(error)).into(),
            Failed::Refused(message) => Error::refused(message),
        }
    }

    fn is_in_use(&self) -> bool {
        // object_in_use
        matches!(self, Failed::Query(error) if error.code().is_some_and(|code| code.code() == "55006"))
    }
}

fn refuse<T>(message: String) -> Result<T, Failed> {
    Err(Failed::Refused(message))
}

/// A session whose commits are durable.
async fn target_session(info: &ConnInfo, name: &SubscriptionName) -> Result<Session, Error> {
    let settings = [("search_path", ""), ("lock_timeout", "30s"), ("synchronous_commit", "on")];
    Ok(client::connect(info, &name.application_name("command"), &settings).await?)
}

/// Takes over the native subscription called `native_name`.
///
/// # Errors
/// It is refused, with the reason and the remedy; or a server failed.
pub async fn adopt(settings: &Settings, native_name: &str) -> Result<Outcome, Error> {
    let name = &settings.subscription;
    let state = State::open(&settings.target, name).await?;
    let mut target = target_session(&settings.target, name).await?;
    let source = client::connect(&settings.source, &name.application_name("look"), &[]).await?;
    let known = adoption(&*target, name).await.map_err(|error| target.error(error))?;
    let (oid, slot) = match known {
        Some(known) if known.finished => return Ok(Outcome::Already),
        Some(known) => (known.native_oid, known.slot),
        None => {
            if state.load().await?.is_some() {
                return Err(Error::refused(format!(
                    "subscription \"{name}\" exists already and was made by pgsluice run; adopt under another \
                     --subscription, with --native {native_name}"
                )));
            }
            let major = target.version().major();
            let found = native(&*target, major, Which::Name(native_name)).await;
            let Some(found) = found.map_err(|error| target.error(error))? else {
                return Ok(Outcome::Missing);
            };
            let slot = acceptable(name, &found).map_err(|failed| failed.told(&target))?;
            ready_tables(&*target, &found).await.map_err(|failed| failed.told(&target))?;
            usable_slot(&source, &slot).await?;
            preflight::before_adopting(settings).await?;
            let mut wire =
                Wire::connect(&settings.source, &name.application_name("look"), Replication::Database, &[])
                    .await?;
            let identity = slot::identify_system(&mut wire).await?;
            wire.close().await;
            take(&mut target, name, found.oid, &identity).await.map_err(|failed| failed.told(&target))?;
            tracing::info!(subscription = %name, "disabled native subscription \"{native_name}\"");
            (found.oid, slot)
        }
    };
    wait_for_workers(&target, oid).await?;
    let applied = native_position(&target, &settings.target, name, oid).await?;
    let idle = wait_for_slot(&source, &slot).await?;
    // A native worker that has nothing to apply confirms without moving its
    // origin: what it confirmed it had, too.
    let at = applied.max(idle.confirmed_flush.unwrap_or(Lsn::INVALID));
    let tables = tables(&*target, oid).await.map_err(|error| target.error(error))?;
    let tables: Vec<(String, String)> =
        tables.into_iter().map(|(schema, table, _)| (schema, table)).collect();
    state.begin_at(at, &tables, false).await?;
    Ok(Outcome::Done { at: Some(at), slot, tables: tables.len() })
}

/// The slot of `native`, if pgsluice can stand in for it.
fn acceptable(name: &SubscriptionName, native: &Native) -> Result<String, Failed> {
    let (shown, ident) = (&native.name, quote_ident(&native.name));
    let Some(slot) = &native.slot else {
        return refuse(format!(
            "native subscription \"{shown}\" has no slot (slot_name = NONE), so there is no place to go on from; if \
             the slot still exists: ALTER SUBSCRIPTION {ident} SET (slot_name = 'its name')"
        ));
    };
    if !native.owned {
        return refuse(format!(
            "native subscription \"{shown}\" belongs to role \"{owner}\", which the target's role is no member of; \
             connect to the target as \"{owner}\" or as a superuser",
            owner = native.owner
        ));
    }
    if native.two_phase {
        return refuse(format!(
            "native subscription \"{shown}\" has two_phase enabled, which pgsluice does not have: a transaction \
             prepared before and committed after would be lost or applied twice; on 18 and later: ALTER SUBSCRIPTION \
             {ident} DISABLE; ALTER SUBSCRIPTION {ident} SET (two_phase = false); ALTER SUBSCRIPTION {ident} ENABLE; \
             before 18 it has to be made again without"
        ));
    }
    if native.skips {
        return refuse(format!(
            "native subscription \"{shown}\" is to skip a transaction that it has not met yet; let it, or ALTER \
             SUBSCRIPTION {ident} SKIP (lsn = NONE) and pgsluice skip after adopting \"{name}\""
        ));
    }
    Ok(slot.clone())
}

/// Schema, name and state of the tables of a native subscription.
async fn tables(
    target: &impl GenericClient,
    oid: u32,
) -> Result<Vec<(String, String, String)>, tokio_postgres::Error> {
    let sql = "SELECT n.nspname::text, c.relname::text, r.srsubstate::text FROM pg_catalog.pg_subscription_rel r \
                 JOIN pg_catalog.pg_class c ON c.oid = r.srrelid \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE r.srsubid = $1 ORDER BY 1, 2";
    let rows = target.query(sql, &[&oid]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
}

/// Every table has been copied and has joined.
async fn ready_tables(target: &impl GenericClient, native: &Native) -> Result<(), Failed> {
    let tables = tables(target, native.oid).await?;
    let unready: Vec<String> = tables
        .iter()
        .filter(|(_, _, state)| state != "r")
        .map(|(schema, table, state)| format!("{schema}.{table} (state {state})"))
        .collect();
    if unready.is_empty() {
        return Ok(());
    }
    refuse(format!(
        "native subscription \"{}\" is still synchronising {}: wait until every srsubstate in pg_subscription_rel is \
         'r', with the subscription enabled; or ALTER SUBSCRIPTION {} REFRESH PUBLICATION after a table was taken \
         out of the publication",
        native.name,
        unready.join(", "),
        quote_ident(&native.name)
    ))
}

/// The slot, which must be one that can be streamed from here.
async fn usable_slot(source: &Session, slot: &str) -> Result<SlotState, Error> {
    let row = source.query_one("SELECT pg_catalog.current_database()::text", &[]).await;
    let here: String = row.map_err(|error| source.error(error))?.get(0);
    let Some(found) = slot::slot_state(source, slot).await? else {
        return Err(Error::refused(format!(
            "replication slot \"{slot}\" of the native subscription does not exist on {}: give the --source that \
             the native subscription reads from",
            source.describe()
        )));
    };
    if found.plugin.as_deref() != Some("pgoutput") || found.database.as_deref() != Some(&here) {
        return Err(Error::refused(format!(
            "replication slot \"{slot}\" on {} is another's: plugin {}, database {}; give the --source that the \
             native subscription reads from",
            source.describe(),
            found.plugin.as_deref().unwrap_or("none"),
            found.database.as_deref().unwrap_or("none")
        )));
    }
    if found.is_lost() {
        return Err(Error::refused(format!(
            "replication slot \"{slot}\" has lost WAL that the target still needs ({}): neither side can go on; \
             drop the native subscription and start with pgsluice run, which copies",
            found.invalidation.as_deref().unwrap_or("lost")
        )));
    }
    Ok(found)
}

/// T1.
async fn take(
    target: &mut Session,
    name: &SubscriptionName,
    oid: u32,
    identity: &slot::SystemIdentity,
) -> Result<(), Failed> {
    let major = target.version().major();
    let transaction = target.transaction().await?;
    for (table, sql) in [("copied_table", apply::STATE_SCHEMA_SQL), ("adopted", TABLE)] {
        let there = format!("SELECT pg_catalog.to_regclass('pgsluice.{table}') IS NOT NULL");
        if !transaction.query_one(&there, &[]).await?.get::<_, bool>(0) {
            transaction.batch_execute(sql).await?;
        }
    }
    let gone = || Failed::Refused("the native subscription was dropped at this moment".to_owned());
    let found = native(&transaction, major, Which::Oid(oid)).await?.ok_or_else(gone)?;
    // Locks it: what is seen below stays.
    transaction.batch_execute(&format!("ALTER SUBSCRIPTION {} DISABLE", quote_ident(&found.name))).await?;
    let found = native(&transaction, major, Which::Oid(oid)).await?.ok_or_else(gone)?;
    let slot = acceptable(name, &found)?;
    ready_tables(&transaction, &found).await?;
    let options = &found.options;
    let (sysid, timeline) = (identity.system_id.to_string(), i64::from(identity.timeline));
    let dbname = identity.dbname.clone().unwrap_or_default();
    transaction
        .execute(
            "INSERT INTO pgsluice.subscription (name, slot, publications, source_sysid, source_timeline, source_dbname) \
             VALUES ($1, $2, $3, $4, $5, $6)",
            &[&name.as_str(), &slot, &options.publications, &sysid, &timeline, &dbname],
        )
        .await?;
    transaction
        .execute(
            "INSERT INTO pgsluice.adopted (subscription, native_oid, binary_values, streaming, origin, \
                                           synchronous_commit, disable_on_error) VALUES ($1, $2, $3, $4, $5, $6, $7)",
            &[
                &name.as_str(),
                &oid,
                &options.binary,
                &options.streaming,
                &options.origin,
                &options.synchronous_commit,
                &options.disable_on_error,
            ],
        )
        .await?;
    let origin = name.origin(0);
    let made = transaction.query_one("SELECT pg_catalog.pg_replication_origin_create($1)", &[&origin]).await;
    match made {
        // duplicate_object, unique_violation
        Err(error) if error.code().is_some_and(|code| matches!(code.code(), "42710" | "23505")) => {
            return refuse(format!(
                "replication origin \"{origin}\" exists on the target, but this database knows no subscription \
                 \"{name}\": another database of the cluster uses the name; adopt under another --subscription, with \
                 --native"
            ));
        }
        other => other?,
    };
    let without = format!("ALTER SUBSCRIPTION {} SET (slot_name = NONE)", quote_ident(&found.name));
    transaction.batch_execute(&without).await?;
    Ok(transaction.commit().await?)
}

/// A worker of the subscription, or one of any that is on its way out: those
/// are not in `pg_stat_subscription` any more, but may still be committing.
const WORKERS: &str = "\
SELECT s.pid FROM pg_catalog.pg_stat_subscription s WHERE s.subid = $1 AND s.pid IS NOT NULL
UNION ALL
SELECT a.pid FROM pg_catalog.pg_stat_activity a
 WHERE a.datname = pg_catalog.current_database() AND a.backend_type LIKE 'logical replication%'
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_subscription s WHERE s.pid = a.pid)
 LIMIT 1";

/// Hazard 1.
async fn wait_for_workers(target: &Session, oid: u32) -> Result<(), Error> {
    let mut told = Instant::now();
    loop {
        let row = target.query_opt(WORKERS, &[&oid]).await.map_err(|error| target.error(error))?;
        let Some(row) = row else { return Ok(()) };
        if told.elapsed() >= TELL_INTERVAL {
            told = Instant::now();
            let pid: i32 = row.get(0);
            tracing::info!("waiting for the native apply worker to finish its transaction (process {pid})");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Where the native subscription's origin stands, flushed and fenced.
async fn native_position(
    target: &Session,
    info: &ConnInfo,
    name: &SubscriptionName,
    oid: u32,
) -> Result<Lsn, Error> {
    let fence = target_session(info, name).await?;
    let origin = native_origin(oid);
    let deadline = Instant::now() + ORIGIN_BOUND;
    let setup = "SELECT pg_catalog.pg_replication_origin_session_setup($1)";
    while let Err(error) = fence.query(setup, &[&origin]).await {
        let failed = Failed::Query(error);
        if !failed.is_in_use() || Instant::now() >= deadline {
            return Err(failed.told(&fence));
        }
        tokio::time::sleep(POLL).await;
    }
    let sql = "SELECT pg_catalog.pg_replication_origin_progress($1, true)::text";
    let row = target.query_one(sql, &[&origin]).await.map_err(|error| target.error(error))?;
    // At once, if the role may; otherwise when the backend has noticed.
    let _ = fence.execute("SELECT pg_catalog.pg_replication_origin_session_reset()", &[]).await;
    Ok(row.get::<_, Option<&str>>(0).and_then(|lsn| lsn.parse().ok()).unwrap_or(Lsn::INVALID))
}

/// As `ReplicationOriginNameForLogicalRep` names it.
fn native_origin(oid: u32) -> String {
    format!("pg_{oid}")
}

/// Hazard 4.
async fn wait_for_slot(source: &Session, slot: &str) -> Result<SlotState, Error> {
    let deadline = Instant::now() + SLOT_BOUND;
    loop {
        let found = usable_slot(source, slot).await?;
        let Some(pid) = found.active_pid else { return Ok(found) };
        if Instant::now() >= deadline {
            return Err(Error::refused(format!(
                "replication slot \"{slot}\" on the source is still in use by walsender {pid}; end it and repeat \
                 the command: SELECT pg_terminate_backend({pid})"
            )));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Hands the subscription back to its native owner and removes ours.
///
/// # Errors
/// It is refused, with the reason and the remedy; or a server failed.
pub async fn release(
    source: &ConnInfo,
    target: &ConnInfo,
    name: &SubscriptionName,
) -> Result<Outcome, Error> {
    let state = State::open(target, name).await?;
    let mut session = target_session(target, name).await?;
    let known = adoption(&*session, name).await.map_err(|error| session.error(error))?;
    let Some(known) = known else {
        return match state.load().await? {
            None => Ok(Outcome::Already),
            Some(_) => Err(Error::refused(format!(
                "subscription \"{name}\" was not adopted but made by pgsluice run: there is no native subscription \
                 to hand it to"
            ))),
        };
    };
    let Some(native) = &known.native else {
        return Err(Error::refused(format!(
            "the native subscription that \"{name}\" was adopted from has been dropped: there is nothing to hand back \
             to; go on with pgsluice run, or remove everything with pgsluice drop"
        )));
    };
    if let Some(slot) = &known.native_slot {
        return Err(Error::refused(format!(
            "native subscription \"{native}\" was given slot \"{slot}\" again without pgsluice release, so it is not \
             known what it has applied; if it was never enabled since: ALTER SUBSCRIPTION {ident} DISABLE; ALTER \
             SUBSCRIPTION {ident} SET (slot_name = NONE), then release again",
            ident = quote_ident(native)
        )));
    }
    let source = client::connect(source, &name.application_name("look"), &[]).await?;
    let row = state.load().await?.ok_or_else(|| Error::refused("the subscription was dropped"))?;
    let at = match known.finished {
        true => Some(our_position(&state, target, name, &row).await?),
        // Its origin stands where it stood; a killed adopt must not hold it.
        false => native_position(&session, target, name, known.native_oid).await.map(|_| None)?,
    };
    let slot = wait_for_slot(&source, &known.slot).await?;
    if let (Some(at), Some(confirmed)) = (at, slot.confirmed_flush)
        && confirmed > at
    {
        return Err(Error::refused(format!(
            "the slot on the source is at {confirmed}, but the target has only changes up to {at}: the target was \
             restored from an older backup or lost what it had flushed, and the changes in between are gone"
        )));
    }
    if let Some(at) = at {
        // Hazard 3.
        state.confirm(at).await?;
    }
    give_back(&mut session, name, &known, native, at).await?;
    let tables = tables(&*session, known.native_oid).await.map_err(|error| session.error(error))?.len();
    Ok(Outcome::Done { at, slot: known.slot, tables })
}

/// How far we came, flushed and fenced: hazard 2.
async fn our_position(
    state: &State,
    target: &ConnInfo,
    name: &SubscriptionName,
    row: &SubscriptionRow,
) -> Result<Lsn, Error> {
    let mut wire =
        Wire::connect(target, &name.application_name("fence"), Replication::Off, &[("search_path", "")])
            .await?;
    let applied = state.attach_origin(&mut wire).await?;
    wire.close().await;
    Ok(applied.max(row.confirmed_lsn.unwrap_or(Lsn::INVALID)))
}

/// T3, again while a backend of ours that ends still holds the origin.
async fn give_back(
    target: &mut Session,
    name: &SubscriptionName,
    known: &Adoption,
    native: &str,
    at: Option<Lsn>,
) -> Result<(), Error> {
    let deadline = Instant::now() + ORIGIN_BOUND;
    loop {
        match give_back_once(target, name, known, native, at).await {
            Err(failed) if failed.is_in_use() && Instant::now() < deadline => tokio::time::sleep(POLL).await,
            other => return other.map_err(|failed| failed.told(target)),
        }
    }
}

async fn give_back_once(
    target: &mut Session,
    name: &SubscriptionName,
    known: &Adoption,
    native: &str,
    at: Option<Lsn>,
) -> Result<(), Failed> {
    let mut transaction = target.transaction().await?;
    transaction.batch_execute("LOCK TABLE pgsluice.subscription IN ACCESS EXCLUSIVE MODE").await?;
    if let Some(at) = at.filter(|at| at.is_valid()) {
        // In WAL before this transaction's commit, and so durable with it.
        let sql = "SELECT pg_catalog.pg_replication_origin_advance($1, $2::text::pg_catalog.pg_lsn)";
        transaction.execute(sql, &[&native_origin(known.native_oid), &at.to_string()]).await?;
    }
    let (ident, slot) = (quote_ident(native), base::quote_literal(&known.slot));
    let sql =
        format!("ALTER SUBSCRIPTION {ident} SET (slot_name = {slot}); ALTER SUBSCRIPTION {ident} ENABLE");
    transaction.batch_execute(&sql).await?;
    let sql = "SELECT pg_catalog.pg_replication_origin_drop(o.roname) FROM pg_catalog.pg_replication_origin o \
                WHERE o.roname = $1";
    transaction.execute(sql, &[&name.origin(0)]).await?;
    admin::remove_rows(&mut transaction, name.as_str(), &mut Vec::new()).await?;
    Ok(transaction.commit().await?)
}
