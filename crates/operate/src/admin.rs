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

use base::{Lsn, SubscriptionName};
use client::{ConnInfo, Session, SqlState};
use engine::CatchingUp;
use serde::Serialize;
use source::slot::{drop_slot, slot_state};
use state::adoption;
use state::removal::{self, Removed};

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
                "the transaction that commits at {lsn} cannot be skipped any more: the target has all of \
                 subscription \"{subscription}\" up to {reached}; the error of a failing transaction has its LSN: \
                 pgsluice status"
            ),
            Kind::SkipOther { lsn, failing } => write!(
                f,
                "{lsn} is not the transaction that fails: that one finished at {failing}, and pgsluice reaches \
                 nothing behind it before; to skip it: pgsluice skip --lsn {failing}"
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
    let found = state::stored::has_tables(&**target).await;
    found.map_err(|error| Error::query(target, "look for schema pgsluice", error))
}

/// Reads what the target has stored; `None` if nothing.
pub async fn stored(target: &Session, subscription: &SubscriptionName) -> Result<Option<Stored>, Error> {
    if !has_state(target).await? {
        return Ok(None);
    }
    let failed = |error| Error::query(target, "read the subscription's state on the target", error);
    let adopted = adoption(&**target, subscription).await.map_err(failed)?;
    let row = state::stored::subscription(&**target, subscription).await.map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    let applied = row.applied_lsn.unwrap_or(Lsn::INVALID);
    let reached =
        state::stored::committed_ranges(&**target, subscription, applied).await.map_err(failed)?.prefix;
    let flushed = reached.max(row.confirmed_lsn.unwrap_or(Lsn::INVALID));
    let catching_up = consistency::awaited(target, subscription, flushed).await.map_err(failed)?;
    let text = |lsn: Option<Lsn>| lsn.map(|lsn| lsn.to_string());
    Ok(Some(Stored {
        enabled: row.enabled,
        slot: row.slot,
        adopted_from: adopted.as_ref().and_then(|adopted| adopted.native.clone()),
        // The settings for `origin` are not known here.
        adoption_refuses: adopted
            .as_ref()
            .and_then(|adopted| Some(engine::adoption_refuses(adopted, subscription, true)?.to_string())),
        publications: row.publications,
        consistent_point: text(row.consistent_point),
        confirmed_lsn: text(row.confirmed_lsn),
        applied_lsn: text(Some(reached).filter(|reached| reached.is_valid())),
        skip_lsn: text(row.skip_lsn),
        last_error: row.last_error,
        tables_copied: row.tables_copied,
        tables_unfinished: row.tables_unfinished,
        catching_up,
    }))
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
    change: impl Future<Output = Result<u64, tokio_postgres::Error>>,
) -> Result<(), Error> {
    let changed = match has_state(target).await? {
        true => change.await.map_err(|error| Error::query(target, doing, error))?,
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
    if stored(target, subscription).await?.is_none() {
        let place = target.describe().to_owned();
        return Err(Error(Kind::Missing { subscription: subscription.clone(), place }));
    }
    let allowed = state::stored::allow_relook(&**target, subscription).await;
    allowed.map_err(|error| Error::query(target, "allow tables to be copied again", error))
}

/// Allows or forbids the subscription to run.
pub async fn set_enabled(
    target: &Session,
    subscription: &SubscriptionName,
    enabled: bool,
) -> Result<(), Error> {
    let doing = if enabled { "enable the subscription on the target" } else { "disable it on the target" };
    update(target, subscription, doing, state::stored::set_enabled(&**target, subscription, enabled)).await
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
    match retention::drop_slot(target, subscription).await {
        Ok(dropped) => removed.extend(dropped.map(|name| format!("slot {name} of the target"))),
        // A role that may not replicate has no such slot either.
        Err(error) => tracing::debug!("looking for the slot on the target: {error}"),
    }
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
    let outcome = async {
        let transaction = target.transaction().await?;
        removal::remove(transaction, subscription, has_state, force).await
    };
    match outcome.await {
        Ok(Removed::All(removed)) => Ok(removed),
        Ok(Removed::Nothing { origins }) => Err(Error(Kind::Foreign {
            what: format!("the replication origins {} on the target", origins.join(", ")),
            why: format!(
                "may be another database's: {place} has no state of subscription \"{subscription}\""
            ),
        })),
        Err(error) => Err(Error::query(target, "remove the subscription from the target", error)),
    }
}
