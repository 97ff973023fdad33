//! Handing back: `release`, T3.

use std::time::Instant;

use base::{Lsn, SubscriptionName, quote_ident};
use client::{ConnInfo, Replication, Session, Wire};
use state::{Adoption, State, SubscriptionRow, adoption, removal};

use super::native::{native_origin, native_position, tables};
use super::{AdoptionOutcome, Error, Failed, ORIGIN_BOUND, POLL, Why, target_session, wait_for_slot};

/// Hands the subscription back to its native owner and removes ours.
///
/// # Errors
/// Handing back is refused, with the reason and the remedy; or a server failed.
pub async fn release(
    source: &ConnInfo,
    target: &ConnInfo,
    name: &SubscriptionName,
) -> Result<AdoptionOutcome, Error> {
    let state = State::open(target, name).await?;
    let mut session = target_session(target, name).await?;
    let known = adoption(&*session, name).await.map_err(|error| session.error(error))?;
    let Some(known) = known else {
        return match state.load().await? {
            None => Ok(AdoptionOutcome::Already),
            Some(_) => Err(Error::refused(Why::NotAdopted { name: name.clone() })),
        };
    };
    let Some(native) = &known.native else {
        return Err(Error::refused(Why::NobodyToReleaseTo { name: name.clone() }));
    };
    if let Some(slot) = &known.native_slot {
        return Err(Error::refused(Why::SlotUsedSince { native: native.clone(), slot: slot.clone() }));
    }
    let source = client::connect(source, &name.application_name("look"), &[]).await?;
    let row = state.load().await?.ok_or_else(engine::Error::dropped)?;
    let at = match known.finished {
        true => Some(our_position(&state, target, name, &row).await?),
        // The native origin has not moved. A killed `adopt` must not hold it.
        false => native_position(&session, target, name, known.native_oid).await.map(|_| None)?,
    };
    let slot = wait_for_slot(&source, &known.slot).await?;
    if let (Some(at), Some(confirmed)) = (at, slot.confirmed_flush)
        && confirmed > at
    {
        return Err(engine::Error::target_behind(known.slot, confirmed, at).into());
    }
    if let Some(at) = at {
        // Stores our position before our origin is dropped: hazard 3.
        state.confirm(at).await?;
    }
    give_back(&mut session, name, &known, native, at).await?;
    let tables = tables(&*session, known.native_oid).await.map_err(|error| session.error(error))?.len();
    Ok(AdoptionOutcome::Done { at, slot: known.slot, tables })
}

/// Returns the position that we have reached, flushed and fenced: hazard 2.
async fn our_position(
    state: &State,
    target: &ConnInfo,
    name: &SubscriptionName,
    row: &SubscriptionRow,
) -> Result<Lsn, Error> {
    let mut wire =
        Wire::connect(target, &name.application_name("fence"), Replication::Off, &[("search_path", "")])
            .await?;
    let reached = state.attach_origin(&mut wire).await?;
    wire.close().await;
    let at = reached.prefix.max(row.confirmed_lsn.unwrap_or(Lsn::INVALID));
    // A native subscription goes on from one position, and would apply again what lies beyond it.
    match reached.furthest() {
        furthest if furthest <= at => Ok(at),
        furthest => Err(Error::refused(Why::CommittedAhead { name: name.clone(), at, furthest })),
    }
}

/// Carries out T3. Tries again while an ending backend of ours still holds the origin.
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
    removal::lock(&transaction).await?;
    if let Some(at) = at.filter(|at| at.is_valid()) {
        // The move is in WAL before this transaction's commit, and so durable with it.
        let sql = "SELECT pg_catalog.pg_replication_origin_advance($1, $2::text::pg_catalog.pg_lsn)";
        transaction.execute(sql, &[&native_origin(known.native_oid), &at.to_string()]).await?;
    }
    let (ident, slot) = (quote_ident(native), base::quote_literal(&known.slot));
    let sql =
        format!("ALTER SUBSCRIPTION {ident} SET (slot_name = {slot}); ALTER SUBSCRIPTION {ident} ENABLE");
    transaction.batch_execute(&sql).await?;
    removal::drop_origins(&transaction, name).await?;
    removal::remove_rows(&mut transaction, name).await?;
    Ok(transaction.commit().await?)
}
