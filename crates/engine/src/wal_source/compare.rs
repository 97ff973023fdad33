//! Whether the catalogs that are followed through the WAL are still the server's: at each start, and from time to time.
//!
//! A fresh look at the catalogs is compared, row by row and place by place, with what was followed. Both must be of the
//! same place in the WAL:
//!
//! ```text
//!   from: where WAL ends --- the look --- to: where WAL ends ---- decoding is past `to`
//!         |<--------- commits that the look may or may not have seen --------->|
//! ```
//! What committed before `from` the look sees, as it waits for all who ran then; what commits behind `to` it does not see.
//! If no transaction changed a catalog from there until decoding got past `to`, what differs is wrong. If one did, a
//! difference may be of that one; but no transaction is between `from` and `to` of two looks, so one that only some of
//! several looks show is such. What all of them show is told, and looked at again later: only a proof stops anything.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use base::{Lsn, Oid};
use catalog::{Catalog, Look};
use tokio::sync::{mpsc, oneshot};

use super::decoding::{Ask, AtPlace};
use crate::error::{Error, Kind, broke};
use crate::refusal::Refusal;
use crate::source_end::{end_of_wal, flush, snapshot_session};
use crate::{Settings, Status};

/// For how long transactions are waited for that run when it begins; later it is tried again.
const LOOK_WAIT_MAX: Duration = Duration::from_secs(60);
/// Until it is tried again after something passing.
const AGAIN: Duration = Duration::from_secs(60);
/// So many looks in a row must show what others may have changed meanwhile.
const LOOKS_MIN: usize = 3;

/// What comparing showed.
enum Compared {
    Same(Lsn),
    /// They differ, perhaps because others changed catalogs meanwhile.
    Perhaps(Lsn, BTreeSet<String>),
}

/// Compares for ever; without `asks`, where nothing is followed, it only waits.
///
/// # Errors
/// The catalogs differ.
pub(crate) async fn compare_catalogs(
    settings: &Settings,
    status: &Status,
    asks: Option<mpsc::Sender<Ask>>,
) -> Result<Infallible, Error> {
    let Some(asks) = asks else { return std::future::pending().await };
    let name = &settings.subscription;
    let interval = settings.catalog_check_interval;
    let again = if interval.is_zero() { AGAIN } else { AGAIN.min(interval) };
    let mut failures = 0;
    loop {
        let wait = match compare_until_sure(settings, &asks).await {
            Ok(None) => again,
            Ok(Some(at)) => {
                failures = 0_u32;
                status.decoded().compared(at);
                tracing::info!(subscription = %name, "the catalogs that are followed are the source's at {at}");
                if interval.is_zero() {
                    return std::future::pending().await;
                }
                interval
            }
            Err(error) if is_passing(&error) => {
                failures += 1;
                // Not each time: it may last.
                if failures.is_power_of_two() {
                    let told = base::with_causes(&error);
                    tracing::warn!(subscription = %name, "the catalogs could not be compared, {failures} times: {told}");
                }
                again
            }
            Err(error) => return Err(error),
        };
        tokio::time::sleep(wait).await;
    }
}

/// Where they are the same; `None` if that cannot be said now.
async fn compare_until_sure(settings: &Settings, asks: &mpsc::Sender<Ask>) -> Result<Option<Lsn>, Error> {
    let mut suspects: Option<BTreeSet<String>> = None;
    for _ in 0..LOOKS_MIN {
        let (at, found) = match compare_once(settings, asks).await? {
            Compared::Same(at) => return Ok(Some(at)),
            Compared::Perhaps(at, found) => (at, found),
        };
        suspects = Some(match suspects {
            None => found,
            Some(before) => before.intersection(&found).cloned().collect(),
        });
        if suspects.as_ref().is_some_and(BTreeSet::is_empty) {
            // Each difference was of one look only.
            return Ok(Some(at));
        }
    }
    let suspects: Vec<String> = suspects.into_iter().flatten().collect();
    tracing::warn!(
        subscription = %settings.subscription,
        "catalogs are changed all the time, and {LOOKS_MIN} looks at them differ alike from what is followed: {}",
        suspects.join(", ")
    );
    Ok(None)
}

async fn compare_once(settings: &Settings, asks: &mpsc::Sender<Ask>) -> Result<Compared, Error> {
    let session = snapshot_session(settings).await?;
    let from = end_of_wal(&session).await?;
    let look = Look { redo: None, wait_max: LOOK_WAIT_MAX };
    let looked = Catalog::look(std::slice::from_ref(&session), &look).await;
    let fresh = looked.map_err(output::Error::from)?;
    let to = end_of_wal(&session).await?;
    // Behind the end a record is written and flushed, so that decoding gets there.
    flush(&session).await?;
    drop(session);
    let (answer, answered) = oneshot::channel();
    // Nobody takes it, or answers, when the stream has ended: that says why.
    if asks.send(Ask { to, answer }).await.is_err() {
        return std::future::pending().await;
    }
    let Ok(AtPlace { catalog, changed }) = answered.await else { return std::future::pending().await };
    if let Some(what) = other_databases(&catalog.databases(), &fresh.databases()) {
        return Err(Error::refused(Refusal::OtherCatalogs(vec![what])));
    }
    let comparing = tokio::task::spawn_blocking(move || catalog.differences(&fresh));
    let differences = comparing.await.map_err(|error| broke(&error))?;
    if differences.is_empty() {
        return Ok(Compared::Same(to));
    }
    if changed <= from {
        return Err(Error::refused(Refusal::OtherCatalogs(differences)));
    }
    Ok(Compared::Perhaps(to, differences.into_iter().collect()))
}

/// Whether other databases are followed than the source has now, in words. A database that was dropped and made again has
/// its name and another OID.
fn other_databases(followed: &[(Oid, &str)], found: &[(Oid, &str)]) -> Option<String> {
    let oids = |databases: &[(Oid, &str)]| databases.iter().map(|(oid, _)| *oid).collect::<Vec<_>>();
    if oids(followed) == oids(found) {
        return None;
    }
    let names = |databases: &[(Oid, &str)]| {
        let names: Vec<_> = databases.iter().map(|(_, name)| format!("\"{name}\"")).collect();
        names.join(", ")
    };
    let (ours, theirs) = (names(followed), names(found));
    Some(match followed {
        [] => format!("database {theirs} of the source is not the one that was followed, which was dropped"),
        _ if ours == theirs => {
            format!("database {theirs} of the source was dropped and made again since it was followed")
        }
        _ => format!("the source's database is {theirs}, and {ours} was followed"),
    })
}

/// The next time may succeed, and the stream says itself if the source has gone.
fn is_passing(error: &Error) -> bool {
    match error.kind() {
        Kind::Client(_) => true,
        // What one look could not read says nothing of what is followed; that the source is not fit any more its WAL says.
        Kind::Decode(_) => true,
        _ => false,
    }
}
