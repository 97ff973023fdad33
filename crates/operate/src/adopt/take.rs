//! Taking over: `adopt`, T1 and T2.

use base::{Lsn, SubscriptionName, quote_ident};
use client::{Replication, Session, SqlState, Wire};
use engine::Settings;
use engine::adoption::adoption;
use source::slot;
use state::State;

use super::native::{
    Which, acceptable, may_hand_back, native, native_position, ready_tables, tables, wait_for_workers,
};
use super::{Error, Failed, Outcome, Why, refuse, target_session, usable_slot, wait_for_slot};

/// Every role that runs a subscription of this database reads this table; nothing in it is secret.
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

/// Takes over the native subscription called `native_name`.
///
/// # Errors
/// Taking over is refused, with the reason and the remedy; or a server failed.
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
                let native = native_name.to_owned();
                return Err(Error::refused(Why::MadeByRun { name: name.clone(), native }));
            }
            let major = target.version().major();
            let found = native(&*target, major, Which::Name(native_name)).await;
            let Some(found) = found.map_err(|error| target.error(error))? else {
                return Ok(Outcome::Missing);
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
    let publications = publications(&state, name).await?;
    engine::learn_at_adoption(name, (&source, &slot), &state, &publications).await?;
    Ok(Outcome::Done { at: Some(at), slot, tables: tables.len() })
}

/// Reads the native subscription's publications, which T1 has stored.
async fn publications(state: &State, name: &SubscriptionName) -> Result<Vec<String>, Error> {
    let sql = "SELECT publications FROM pgsluice.subscription WHERE name = $1";
    let row = state.session().query_one(sql, &[&name.as_str()]).await;
    Ok(row.map_err(|error| state.session().error(error))?.get(0))
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
    for (table, sql) in [("copied_table", state::STATE_SCHEMA_SQL), ("adopted", TABLE)] {
        let there = format!("SELECT pg_catalog.to_regclass('pgsluice.{table}') IS NOT NULL");
        if !transaction.query_one(&there, &[]).await?.get::<_, bool>(0) {
            transaction.batch_execute(sql).await?;
        }
    }
    let gone = || Failed::Refused(Why::NativeDropped);
    let found = native(&transaction, major, Which::Oid(oid)).await?.ok_or_else(gone)?;
    // Locks the subscription, so that the state that is read next stays.
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
