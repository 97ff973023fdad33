//! Compares the catalogs that are followed through the WAL with the server's, at each start and
//! from time to time.
//!
//! A fresh look at the catalogs is compared, row by row, with the followed ones. Both must belong
//! to the same place in the WAL:
//!
//! ```text
//!   from: where WAL ends --- the look --- to: where WAL ends ---- decoding is past `to`
//!         |<--------- commits that the look may or may not have seen --------->|
//! ```
//! The look waits for all transactions that ran at `from`, so it sees what committed before. It
//! does not see what commits behind `to`. If no transaction changed a catalog between `from` and
//! the place where decoding passed `to`, any difference is an error. If a transaction did, it may
//! have caused the difference. No transaction lies between `from` and `to` of two looks, so a
//! difference that only some of several looks show has this cause. Differences that all looks show
//! are logged, and the comparison is repeated later. Only a proof stops the stream.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use base::{Lsn, Oid};
use catalog::{Catalog, Look};
use source::end::{end_of_wal, flush, snapshot_session};
use tokio::sync::{mpsc, oneshot};

use crate::Settings;
use crate::decoded::Decoded;
use crate::decoding::{Ask, AtPlace};
use crate::error::{Error, Kind, broke};

/// How long a look waits for transactions that run at its beginning; after that it is tried again
/// later.
const LOOK_WAIT_MAX: Duration = Duration::from_secs(60);
/// Wait after a passing failure.
const AGAIN: Duration = Duration::from_secs(60);
/// The number of looks in a row that must show a difference, if other transactions changed catalogs
/// meanwhile.
const LOOKS_MIN: usize = 3;

/// The result of one comparison.
enum Compared {
    Same(Lsn),
    /// They differ, perhaps because other transactions changed catalogs meanwhile.
    Perhaps(Lsn, BTreeSet<String>),
}

/// Keeps comparing. Without `asks`, no catalogs are followed, and this only waits.
///
/// # Errors
/// The catalogs differ.
pub async fn compare_catalogs(
    settings: &Settings,
    figures: &Decoded,
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
                figures.compared(at);
                tracing::info!(subscription = %name, "the catalogs that pgsluice follows are the source's at {at}");
                if interval.is_zero() {
                    return std::future::pending().await;
                }
                interval
            }
            Err(error) if is_passing(&error) => {
                failures += 1;
                // Warns ever more seldom, because the failure may last.
                if failures.is_power_of_two() {
                    let told = base::with_causes(&error);
                    tracing::warn!(
                        subscription = %name,
                        "could not compare the catalogs with the source's, {failures} times: {told}"
                    );
                }
                again
            }
            Err(error) => return Err(error),
        };
        tokio::time::sleep(wait).await;
    }
}

/// Returns a position at which the catalogs are the same; `None` if the looks could not decide.
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
            // No difference appeared in all looks.
            return Ok(Some(at));
        }
    }
    let suspects: Vec<String> = suspects.into_iter().flatten().collect();
    tracing::warn!(
        subscription = %settings.subscription,
        "the source changes its catalogs all the time, and {LOOKS_MIN} looks at them show the same difference from \
         what pgsluice follows: {}",
        suspects.join(", ")
    );
    Ok(None)
}

async fn compare_once(settings: &Settings, asks: &mpsc::Sender<Ask>) -> Result<Compared, Error> {
    let session = snapshot_session(&settings.source, &settings.subscription).await?;
    let from = end_of_wal(&session).await?;
    let look = Look { redo: None, wait_max: LOOK_WAIT_MAX };
    let looked = Catalog::look(std::slice::from_ref(&session), &look).await;
    let fresh = looked.map_err(output::Error::from)?;
    let to = end_of_wal(&session).await?;
    // Writes and flushes a record behind the end, so that decoding gets there.
    flush(&session).await?;
    drop(session);
    let (answer, answered) = oneshot::channel();
    // Decoding does not take the question, or does not answer it, if the stream has ended. The
    // stream's error says why.
    if asks.send(Ask { to, answer }).await.is_err() {
        return std::future::pending().await;
    }
    let Ok(AtPlace { catalog, changed }) = answered.await else { return std::future::pending().await };
    if let Some(what) = other_databases(&catalog.databases(), &fresh.databases()) {
        return Err(Kind::OtherCatalogs(vec![what]).into());
    }
    let comparing = tokio::task::spawn_blocking(move || catalog.differences(&fresh));
    let differences = comparing.await.map_err(|error| broke(&error))?;
    if differences.is_empty() {
        return Ok(Compared::Same(to));
    }
    if changed <= from {
        return Err(Kind::OtherCatalogs(differences).into());
    }
    Ok(Compared::Perhaps(to, differences.into_iter().collect()))
}

/// Describes the difference if the followed databases are not those of the source. A database that
/// was dropped and made again has the same name and another OID.
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

/// Whether the next comparison may succeed. If the source has gone, the stream reports that itself.
fn is_passing(error: &Error) -> bool {
    match error.kind() {
        Kind::Client(_) => true,
        // A failed look says nothing of the followed catalogs. If the source is not fit any more,
        // its WAL says so.
        Kind::Decode(_) => true,
        _ => false,
    }
}
