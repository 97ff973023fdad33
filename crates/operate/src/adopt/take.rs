//! Taking over: `adopt`, T1 and T2.

use base::{Lsn, SubscriptionName, quote_ident};
use client::{Replication, Session, SqlState, Wire};
use engine::Settings;
use source::slot;
use state::{AdoptedSource, State, adoption};

use super::native::{
    Which, acceptable, may_hand_back, native, native_position, ready_tables, tables, wait_for_workers,
};
use super::{AdoptionOutcome, Error, Failed, Why, refuse, target_session, usable_slot, wait_for_slot};

/// Takes over the native subscription called `native_name`.
///
/// # Errors
/// Taking over is refused, with the reason and the remedy; or a server failed.
pub async fn adopt(settings: &Settings, native_name: &str) -> Result<AdoptionOutcome, Error> {
    let name = &settings.subscription;
    let state = State::open(&settings.target, name).await?;
    let mut target = target_session(&settings.target, name).await?;
    let source = client::connect(&settings.source, &name.application_name("look"), &[]).await?;
    let known = adoption(&*target, name).await.map_err(|error| target.error(error))?;
    let (oid, slot) = match known {
        Some(known) if known.finished => return Ok(AdoptionOutcome::Already),
        Some(known) => (known.native_oid, known.slot),
        None => {
            if state.load().await?.is_some() {
                let native = native_name.to_owned();
                return Err(Error::refused(Why::MadeByRun { name: name.clone(), native }));
            }
            let major = target.version().major();
            let found = native(&*target, major, Which::Name(native_name)).await;
            let Some(found) = found.map_err(|error| target.error(error))? else {
                return Ok(AdoptionOutcome::Missing);
            };
            let slot = acceptable(name, &found).map_err(|failed| failed.told(&target))?;
            ready_tables(&*target, &found).await.map_err(|failed| failed.told(&target))?;
            may_hand_back(&target).await?;
            usable_slot(&source, &slot).await?;
            engine::before_adopting(settings).await?;
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
    // A native worker that has nothing to apply confirms without moving its origin. The target has
    // everything that it confirmed, too.
    let at = applied.max(idle.confirmed_flush.unwrap_or(Lsn::INVALID));
    let tables = tables(&*target, oid).await.map_err(|error| target.error(error))?;
    let tables: Vec<(String, String)> =
        tables.into_iter().map(|(schema, table, _)| (schema, table)).collect();
    state.begin_at(at, &tables, false).await?;
    // T1 has stored them.
    let publications = state::stored::publications(&**state.session(), name).await;
    let publications = publications.map_err(|error| state.session().error(error))?;
    engine::learn_at_adoption(name, (&source, &slot), &state, &publications).await?;
    Ok(AdoptionOutcome::Done { at: Some(at), slot, tables: tables.len() })
}

/// Carries out T1.
async fn take(
    target: &mut Session,
    name: &SubscriptionName,
    oid: u32,
    identity: &slot::SystemIdentity,
) -> Result<(), Failed> {
    let major = target.version().major();
    let transaction = target.transaction().await?;
    state::make_adopted(&transaction).await?;
    let gone = || Failed::Refused(Why::NativeDropped);
    let found = native(&transaction, major, Which::Oid(oid)).await?.ok_or_else(gone)?;
    // Locks the subscription, so that the state that is read next stays.
    transaction.batch_execute(&format!("ALTER SUBSCRIPTION {} DISABLE", quote_ident(&found.name))).await?;
    let found = native(&transaction, major, Which::Oid(oid)).await?.ok_or_else(gone)?;
    let slot = acceptable(name, &found)?;
    ready_tables(&transaction, &found).await?;
    let adopted_source = AdoptedSource {
        sysid: identity.system_id.to_string(),
        timeline: i64::from(identity.timeline),
        dbname: identity.dbname.clone().unwrap_or_default(),
    };
    state::store_adoption(&transaction, name, &adopted_source, &slot, (oid, &found.options)).await?;
    let origin = name.origin(0);
    let made = transaction.query_one("SELECT pg_catalog.pg_replication_origin_create($1)", &[&origin]).await;
    match made {
        Err(error)
            if matches!(error.code(), Some(&(SqlState::DUPLICATE_OBJECT | SqlState::UNIQUE_VIOLATION))) =>
        {
            return refuse(Why::OriginTaken { origin, name: name.clone() });
        }
        other => other?,
    };
    let without = format!("ALTER SUBSCRIPTION {} SET (slot_name = NONE)", quote_ident(&found.name));
    transaction.batch_execute(&without).await?;
    Ok(transaction.commit().await?)
}
