//! A native subscription goes on at another place that serves the same publisher: at a relay, or
//! back at the publisher.
//!
//! ```text
//! old slot  ---- confirmed ------------> C <= confirmed --> dropped at the end
//! new slot            made at C -------------------------------------> goes on
//! subscription        runs                      disabled, other connection, enabled
//! ```
//! The new slot has everything that commits behind its point C. As long as the old one has not been
//! confirmed up to C, the subscription stays where it is. So nothing is lost, and nothing comes
//! twice: both places skip what was confirmed.
//!
//! A transaction that was prepared before C and commits behind it would come twice to a
//! subscription with two-phase commit. The move is refused while there are prepared transactions.

mod error;
mod error_reference;

use std::time::{Duration, Instant};

use base::{Lsn, quote_ident, quote_literal};
use client::{ConnInfo, Replication, Session, Wire};

pub use error::{Error, Refusal};
use error::{refuse, server};
pub use error_reference::error_reference;

/// The sessions' application name.
const APPLICATION_NAME: &str = "pgsluice relay move";
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// What is to be moved, and where to.
pub struct Move<'a> {
    /// The subscriber, as a role that may alter the subscription.
    pub subscriber: &'a ConnInfo,
    /// The subscription.
    pub subscription: &'a str,
    /// Where it is connected now, if the subscriber does not say or its address is none from here.
    pub from: Option<ConnInfo>,
    /// The new connection string, as the subscriber is to have it.
    pub to: &'a str,
    /// The same as it is used from here.
    pub to_from_here: &'a ConnInfo,
    /// Whether to run the statements, too.
    pub executes: bool,
    /// How long to wait for each step.
    pub timeout: Duration,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The slot, which has the same name at both places.
    pub slot: String,
    /// The new slot's point.
    pub point: Lsn,
    /// What is left to run on the subscriber, in this order.
    pub statements: Vec<String>,
}

/// What the subscriber says of the subscription.
struct Subscription {
    oid: u32,
    slot: String,
    conninfo: Option<String>,
    /// Prepared transactions come when they are prepared.
    two_phase: bool,
    failover: bool,
}

/// Moves a subscription. `tell` gets each step as it is taken.
///
/// # Errors
/// It stays where it is; a slot that was made for it is dropped again.
pub async fn relocate(wanted: &Move<'_>, tell: &mut dyn FnMut(&str)) -> Result<Moved, Error> {
    let subscriber = session(wanted.subscriber, "the subscriber").await?;
    let subscription = subscription(&subscriber, wanted.subscription).await?;
    let from = old_place(wanted, &subscription)?;
    let old = session(&from, "the present publisher").await?;
    let mut new = Wire::connect(wanted.to_from_here, APPLICATION_NAME, Replication::Database, &[])
        .await
        .map_err(server("connect to the new publisher"))?;
    let mut old_wire = Wire::connect(&from, APPLICATION_NAME, Replication::Database, &[])
        .await
        .map_err(server("connect to the present publisher"))?;
    same_server(&mut old_wire, &mut new).await?;
    none_prepared(&old, &subscription).await?;
    let point = create(&mut new, &subscription).await?;
    tell(&format!("slot \"{}\" was made at the new publisher, at {point}", subscription.slot));
    let done = finish(wanted, (&subscriber, &old), &subscription, point, tell).await;
    let statements = match done {
        Ok(statements) => statements,
        Err((error, is_moved)) => {
            if !is_moved {
                let dropped = drop_slot(&mut new, &subscription.slot).await;
                let also = dropped.err().map(|error| format!("; its new slot stays: {error}"));
                tell(&format!("the subscription stays where it is{}", also.unwrap_or_default()));
            }
            return Err(error);
        }
    };
    if statements.is_empty() {
        drop_slot(&mut old_wire, &subscription.slot).await?;
        tell(&format!("slot \"{}\" was dropped at the old publisher", subscription.slot));
    }
    Ok(Moved { slot: subscription.slot, point, statements })
}

async fn session(info: &ConnInfo, whom: &str) -> Result<Session, Error> {
    let session = client::connect(info, APPLICATION_NAME, &[("search_path", "")]).await;
    session.map_err(server(&format!("connect to {whom}")))
}

/// What is to be moved, if it can be.
async fn subscription(subscriber: &Session, name: &str) -> Result<Subscription, Error> {
    let doing = format!("read subscription \"{name}\"");
    let major = subscriber.version().major();
    let since = |first: u32, column: &str, before: &str| {
        if major >= first { column.to_owned() } else { before.to_owned() }
    };
    let sql = format!(
        "SELECT s.oid, s.subslotname::text, s.subenabled, {two_phase}, {failover}, \
                pg_catalog.has_column_privilege('pg_catalog.pg_subscription', 'subconninfo', 'SELECT'), \
                (SELECT count(*) FROM pg_catalog.pg_subscription_rel r \
                  WHERE r.srsubid = s.oid AND r.srsubstate <> 'r') \
           FROM pg_catalog.pg_subscription s \
           JOIN pg_catalog.pg_database d ON d.oid = s.subdbid AND d.datname = pg_catalog.current_database() \
          WHERE s.subname = $1",
        two_phase = since(15, "s.subtwophasestate::text", "'d'::text"),
        failover = since(17, "s.subfailover", "false"),
    );
    let row = subscriber.query_opt(&sql, &[&name]).await;
    let row = row.map_err(|error| server(&doing)(subscriber.error(error)))?;
    let Some(row) = row else {
        return refuse(Refusal::NoSubscription {
            name: name.to_owned(),
            place: subscriber.describe().to_owned(),
        });
    };
    let (oid, slot, enabled): (u32, Option<String>, bool) = (row.get(0), row.get(1), row.get(2));
    let (two_phase, failover, readable): (String, bool, bool) = (row.get(3), row.get(4), row.get(5));
    let copying: i64 = row.get(6);
    let Some(slot) = slot else {
        return refuse(Refusal::NoSlot { name: name.to_owned() });
    };
    if !enabled {
        return refuse(Refusal::Disabled { name: name.to_owned() });
    }
    if copying > 0 {
        return refuse(Refusal::Copies { name: name.to_owned(), tables: copying });
    }
    if two_phase == "p" {
        return refuse(Refusal::TwoPhasePending { name: name.to_owned() });
    }
    let conninfo = if readable {
        let sql = "SELECT subconninfo FROM pg_catalog.pg_subscription WHERE oid = $1";
        let row = subscriber.query_one(sql, &[&oid]).await;
        Some(row.map_err(|error| server(&doing)(subscriber.error(error)))?.get(0))
    } else {
        None
    };
    Ok(Subscription { oid, slot, conninfo, two_phase: two_phase == "e", failover })
}

fn old_place(wanted: &Move<'_>, subscription: &Subscription) -> Result<ConnInfo, Error> {
    if let Some(from) = &wanted.from {
        return Ok(from.clone());
    }
    let Some(conninfo) = &subscription.conninfo else {
        return refuse(Refusal::HiddenPlace { name: wanted.subscription.to_owned() });
    };
    ConnInfo::parse(conninfo).map_err(server("read the subscription's connection string"))
}

/// Both places must have the same WAL.
async fn same_server(old: &mut Wire, new: &mut Wire) -> Result<(), Error> {
    let mut identities = Vec::new();
    for wire in [old, new] {
        let rows = wire.query("IDENTIFY_SYSTEM").await.map_err(server("identify the publishers"))?;
        let mut row = rows.into_iter().next().unwrap_or_default().into_iter();
        identities.push((row.next().flatten(), row.nth(2).flatten()));
    }
    if identities[0] == identities[1] {
        return Ok(());
    }
    let shown = |of: &(Option<String>, Option<String>)| {
        let [system, database] = [&of.0, &of.1].map(|text| text.as_deref().unwrap_or("none"));
        format!("system {system}, database {database}")
    };
    refuse(Refusal::OtherPublisher { old: shown(&identities[0]), new: shown(&identities[1]) })
}

/// With two-phase commit, no prepared transaction may stand on both sides of the new slot's point.
async fn none_prepared(old: &Session, subscription: &Subscription) -> Result<(), Error> {
    if !subscription.two_phase {
        return Ok(());
    }
    let sql = "SELECT gid FROM pg_catalog.pg_prepared_xacts \
                WHERE database = pg_catalog.current_database() ORDER BY prepared LIMIT 3";
    let rows = old.query(sql, &[]).await;
    let rows = rows.map_err(|error| server("read prepared transactions")(old.error(error)))?;
    if rows.is_empty() {
        return Ok(());
    }
    let gids: Vec<String> = rows.iter().map(|row| quote_literal(row.get(0))).collect();
    refuse(Refusal::Prepared { gids: gids.join(", ") })
}

/// Makes the slot at the new place. Returns its point.
async fn create(new: &mut Wire, subscription: &Subscription) -> Result<Lsn, Error> {
    let slot = &subscription.slot;
    let options = match (new.version().major(), subscription.two_phase, subscription.failover) {
        (17.., two_phase, true) => {
            let two_phase = if two_phase { ", TWO_PHASE" } else { "" };
            format!("(FAILOVER, SNAPSHOT 'nothing'{two_phase})")
        }
        (15.., true, _) => "(TWO_PHASE, SNAPSHOT 'nothing')".to_owned(),
        (15.., false, _) => "(SNAPSHOT 'nothing')".to_owned(),
        _ => "NOEXPORT_SNAPSHOT".to_owned(),
    };
    let command = format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {options}", quote_ident(slot));
    let rows = new.query(&command).await;
    let rows = rows.map_err(server(&format!("make slot \"{slot}\" at the new publisher")))?;
    let point = rows.first().and_then(|row| row.get(1)?.as_deref()?.parse().ok());
    point.map_or_else(|| refuse(Refusal::NoPoint), Ok)
}

async fn drop_slot(wire: &mut Wire, slot: &str) -> Result<(), Error> {
    let command = format!("DROP_REPLICATION_SLOT {} WAIT", quote_ident(slot));
    let dropped = wire.query(&command).await;
    dropped.map(drop).map_err(server(&format!("drop slot \"{slot}\", which holds WAL until it is dropped")))
}

/// Waits, and then runs or returns the statements. An error says whether the subscription is at the
/// new place already.
async fn finish(
    wanted: &Move<'_>,
    (subscriber, old): (&Session, &Session),
    subscription: &Subscription,
    point: Lsn,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<String>, (Error, bool)> {
    let stays = |error: Error| (error, false);
    // One that was prepared while the slot was made.
    none_prepared(old, subscription).await.map_err(stays)?;
    wait_for_point(wanted, old, &subscription.slot, point).await.map_err(stays)?;
    tell(&format!("the subscription has everything before {point}"));
    let name = quote_ident(wanted.subscription);
    let [disable, connect, enable] = [
        format!("ALTER SUBSCRIPTION {name} DISABLE"),
        format!("ALTER SUBSCRIPTION {name} CONNECTION {}", quote_literal(wanted.to)),
        format!("ALTER SUBSCRIPTION {name} ENABLE"),
    ];
    if !wanted.executes {
        return Ok(vec![disable, connect, enable]);
    }
    run(subscriber, &disable).await.map_err(stays)?;
    let worker_ended = wait_for_worker(wanted, subscriber, subscription).await;
    let connected = match worker_ended {
        Ok(()) => run(subscriber, &connect).await,
        Err(error) => Err(error),
    };
    if let Err(error) = connected {
        let again = run(subscriber, &enable).await;
        return Err(stays(again.err().unwrap_or(error)));
    }
    run(subscriber, &enable).await.map_err(|error| (error, true))?;
    tell("the subscription runs at the new publisher");
    Ok(Vec::new())
}

async fn run(subscriber: &Session, statement: &str) -> Result<(), Error> {
    let done = subscriber.batch_execute(statement).await;
    let doing = statement.split(" CONNECTION ").next().unwrap_or(statement);
    done.map_err(|error| server(&format!("run {doing}"))(subscriber.error(error)))
}

/// Waits until the old slot was confirmed up to the new one's point.
async fn wait_for_point(wanted: &Move<'_>, old: &Session, slot: &str, point: Lsn) -> Result<(), Error> {
    let sql = "SELECT active, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
    let begun = Instant::now();
    loop {
        let row = old.query_opt(sql, &[&slot]).await;
        let row = row.map_err(|error| server("read the present slot")(old.error(error)))?;
        let Some(row) = row else {
            return refuse(Refusal::SlotIsElsewhere { slot: slot.to_owned() });
        };
        let (active, confirmed): (bool, Option<&str>) = (row.get(0), row.get(1));
        if confirmed.and_then(|lsn| lsn.parse::<Lsn>().ok()).is_some_and(|confirmed| confirmed >= point) {
            return Ok(());
        }
        if begun.elapsed() >= wanted.timeout {
            let confirmed = confirmed.unwrap_or("nothing").to_owned();
            return refuse(Refusal::Behind { slot: slot.to_owned(), confirmed, point, is_read: active });
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until the disabled subscription's worker has ended: what it had was confirmed then.
async fn wait_for_worker(
    wanted: &Move<'_>,
    subscriber: &Session,
    subscription: &Subscription,
) -> Result<(), Error> {
    let sql = "SELECT count(*) FROM pg_catalog.pg_stat_subscription WHERE subid = $1 AND pid IS NOT NULL";
    let begun = Instant::now();
    loop {
        let row = subscriber.query_one(sql, &[&subscription.oid]).await;
        let row = row.map_err(|error| server("look for the apply worker")(subscriber.error(error)))?;
        if row.get::<_, i64>(0) == 0 {
            return Ok(());
        }
        if begun.elapsed() >= wanted.timeout {
            return refuse(Refusal::WorkerStays { name: wanted.subscription.to_owned() });
        }
        tokio::time::sleep(LOOK).await;
    }
}
