//! The native subscription: its options, its position, its workers.

use std::time::{Duration, Instant};

use base::{Lsn, SubscriptionName};
use client::{ConnInfo, Session};
use state::{NativeOptions, adoption};
use tokio_postgres::GenericClient;

use super::{Error, Failed, ORIGIN_BOUND, POLL, Why, refuse, target_session};

/// Time between two log lines that say what is waited for.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// `pg_subscription`.
pub(super) struct Native {
    pub(super) oid: u32,
    pub(super) name: String,
    pub(super) owner: String,
    /// The role may alter the subscription.
    pub(super) owned: bool,
    /// Only a superuser may alter the subscription, and the role is none.
    pub(super) superusers_only: bool,
    pub(super) slot: Option<String>,
    pub(super) two_phase: bool,
    pub(super) skips: bool,
    pub(super) options: NativeOptions,
}

/// How a native subscription is looked up.
pub(super) enum Which<'a> {
    Name(&'a str),
    Oid(u32),
}

/// Reads what every role may read, which excludes the connection string.
pub(super) async fn native(
    target: &impl GenericClient,
    major: u32,
    which: Which<'_>,
) -> Result<Option<Native>, tokio_postgres::Error> {
    let since = |first: u32, column: &str, before: &str| {
        if major >= first { column.to_owned() } else { before.to_owned() }
    };
    let sql = format!(
        "SELECT n.oid, n.subname::text, pg_catalog.pg_get_userbyid(n.subowner)::text,
                pg_catalog.pg_has_role(n.subowner, 'USAGE'), {superusers_only}, n.subslotname::text,
                {two_phase}, {skips}, n.subpublications, n.subbinary, n.substream::text !~ '^f',
                {origin}, n.subsynccommit, {disable_on_error}
           FROM pg_catalog.pg_subscription n
          WHERE n.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
            AND (n.subname = $1::text OR n.oid = $2::oid)",
        superusers_only = since(
            16,
            "NOT (n.subpasswordrequired OR (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = CURRENT_USER))",
            "false"
        ),
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
        superusers_only: row.get(4),
        slot: row.get(5),
        two_phase: row.get(6),
        skips: row.get(7),
        options: NativeOptions {
            conninfo: None,
            publications: row.get(8),
            binary: row.get(9),
            streaming: row.get(10),
            origin: row.get(11),
            synchronous_commit: level(row.get(12)).to_owned(),
            disable_on_error: row.get(13),
        },
    }))
}

/// `synchronous_commit` in the spelling of the manual: a native subscription stores the spelling
/// that it was given.
fn level(text: &str) -> &str {
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => "on",
        "local" => "local",
        "remote_write" => "remote_write",
        "remote_apply" => "remote_apply",
        _ => "off",
    }
}

/// Reads the options of the native subscription that was adopted, or else of the one called
/// `native_name`.
///
/// # Errors
/// The query on the target failed.
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

/// Returns the slot of `native`, if pgsluice can take its place.
pub(super) fn acceptable(name: &SubscriptionName, native: &Native) -> Result<String, Failed> {
    let shown = native.name.clone();
    let Some(slot) = &native.slot else {
        return refuse(Why::NoSlot { native: shown });
    };
    if !native.owned {
        return refuse(Why::OtherOwner { native: shown, owner: native.owner.clone() });
    }
    if native.superusers_only {
        return refuse(Why::SuperusersOnly { native: shown });
    }
    if native.two_phase {
        return refuse(Why::TwoPhase { native: shown });
    }
    if native.skips {
        return refuse(Why::Skips { native: shown, name: name.clone() });
    }
    Ok(slot.clone())
}

/// Reads schema, name and state of a native subscription's tables.
pub(super) async fn tables(
    target: &impl GenericClient,
    oid: u32,
) -> Result<Vec<(String, String, String)>, tokio_postgres::Error> {
    let sql = "SELECT n.nspname::text, c.relname::text, r.srsubstate::text FROM pg_catalog.pg_subscription_rel r \
                 JOIN pg_catalog.pg_class c ON c.oid = r.srrelid \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE r.srsubid = $1 ORDER BY 1, 2";
    let rows = target.query(sql, &[&oid]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
}

/// Checks the way back before the first step, because handing back moves the native subscription's
/// origin.
pub(super) async fn may_hand_back(target: &Session) -> Result<(), Error> {
    const ADVANCE: &str = "pg_replication_origin_advance(text, pg_lsn)";
    let sql = format!(
        "SELECT pg_catalog.has_function_privilege('pg_catalog.{ADVANCE}', 'EXECUTE'), CURRENT_USER::text"
    );
    let row = target.query_one(&sql, &[]).await.map_err(|error| target.error(error))?;
    if row.get(0) {
        return Ok(());
    }
    Err(Error::refused(Why::NoWayBack { role: row.get(1), function: ADVANCE }))
}

/// Checks that every table has been copied and has joined.
pub(super) async fn ready_tables(target: &impl GenericClient, native: &Native) -> Result<(), Failed> {
    let tables = tables(target, native.oid).await?;
    let unready: Vec<String> = tables
        .iter()
        .filter(|(_, _, state)| state != "r")
        .map(|(schema, table, state)| format!("{schema}.{table} (state {state})"))
        .collect();
    if unready.is_empty() {
        return Ok(());
    }
    refuse(Why::Synchronising { native: native.name.clone(), tables: unready })
}

/// A worker of the subscription, or any native worker that is about to end. `pg_stat_subscription`
/// does not show the latter any more, but they may still be committing.
const WORKERS: &str = "\
SELECT s.pid FROM pg_catalog.pg_stat_subscription s WHERE s.subid = $1 AND s.pid IS NOT NULL
UNION ALL
SELECT a.pid FROM pg_catalog.pg_stat_activity a
 WHERE a.datname = pg_catalog.current_database() AND a.backend_type LIKE 'logical replication%'
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_subscription s WHERE s.pid = a.pid)
 LIMIT 1";

/// Waits for the native workers: hazard 1.
pub(super) async fn wait_for_workers(target: &Session, oid: u32) -> Result<(), Error> {
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

/// Reads the position of the native subscription's origin, flushed and fenced.
pub(super) async fn native_position(
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
    // Resets the origin at once if the role may; otherwise it is free when the backend has noticed.
    let _ = fence.execute("SELECT pg_catalog.pg_replication_origin_session_reset()", &[]).await;
    Ok(row.get::<_, Option<&str>>(0).and_then(|lsn| lsn.parse().ok()).unwrap_or(Lsn::INVALID))
}

/// As `ReplicationOriginNameForLogicalRep` names it.
pub(super) fn native_origin(oid: u32) -> String {
    format!("pg_{oid}")
}
