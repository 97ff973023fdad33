//! What is asked of the source, or done there, where its archive is followed or its standbys are asked for: whether it is still
//! the same server, and the slot that was used before. A stream ends when the server is another; an archive only stops to grow, and what a new
//! timeline writes is in segments of another name.

use std::convert::Infallible;
use std::time::Duration;

use base::{Lsn, Progress, SubscriptionName};
use client::Session;
use source::slot;

use crate::Settings;
use crate::error::{Error, Kind};
use crate::refusal::Refusal;
use crate::source_end::SOURCE_SETTINGS;

/// How often it is asked. The source may be away meanwhile: what the archive has is decoded.
const INTERVAL: Duration = Duration::from_secs(10);
/// How often it is looked how far decoding has come.
const POLL: Duration = Duration::from_millis(500);

/// System identifier and timeline of a primary; a standby gives an error.
pub(super) async fn of(session: &Session) -> Result<(u64, u32), tokio_postgres::Error> {
    // The control file tells of a new timeline only with the first checkpoint on it.
    const SQL: &str = "SELECT s.system_identifier, pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()) \
                       FROM pg_catalog.pg_control_system() s";
    let row = session.query_one(SQL, &[]).await?;
    let timeline = row.get::<_, &str>(1).get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    Ok((row.get::<_, i64>(0).cast_unsigned(), timeline.unwrap_or_default()))
}

/// Asks for ever whether the source is still this system and timeline; if it need not be asked, it only waits.
///
/// # Errors
/// It is another; the next attempt finds out whether a new timeline can be followed.
pub(crate) async fn watch_identity(
    settings: &Settings,
    expected: Option<(u64, u32)>,
) -> Result<Infallible, Error> {
    let Some(expected) = expected else { return std::future::pending().await };
    let mut session = None;
    loop {
        tokio::time::sleep(INTERVAL).await;
        match identity(settings, &mut session).await {
            Ok(found) => is_still(&settings.subscription, expected, found)?,
            Err(error) => {
                tracing::debug!("could not ask the source who it is: {error}");
                session = None;
            }
        }
    }
}

/// Drops a slot that a stream was read from before, once the archive has had all that the source had by then: it may lag,
/// or have ended.
pub(crate) async fn drop_left_slot(
    settings: &Settings,
    left: Option<(String, Lsn)>,
    progress: &Progress,
) -> Infallible {
    if let Some((name, until)) = left {
        while progress.snapshot().received < until {
            tokio::time::sleep(POLL).await;
        }
        while let Err(error) = drop_slot(settings, &name).await {
            tracing::warn!(
                subscription = %settings.subscription,
                "could not drop replication slot \"{name}\", which is not needed any more: {}",
                base::with_causes(&error)
            );
            tokio::time::sleep(INTERVAL).await;
        }
    }
    std::future::pending().await
}

async fn drop_slot(settings: &Settings, name: &str) -> Result<(), Error> {
    let application_name = settings.subscription.application_name("slot");
    let session = client::connect(&settings.source, &application_name, &SOURCE_SETTINGS).await?;
    if slot::drop_slot(&session, name).await? {
        tracing::info!(
            subscription = %settings.subscription,
            "dropped replication slot \"{name}\": the archive has all that it was kept for"
        );
    }
    Ok(())
}

async fn identity(settings: &Settings, session: &mut Option<Session>) -> Result<(u64, u32), client::Error> {
    let session = match session {
        Some(session) => session,
        None => {
            let name = settings.subscription.application_name("identity");
            session.insert(client::connect(&settings.source, &name, &SOURCE_SETTINGS).await?)
        }
    };
    of(session).await.map_err(|error| session.error(error))
}

/// Whether a server that was `expected` is still that.
///
/// # Errors
/// It is another, or on another timeline.
pub(super) fn is_still(
    name: &SubscriptionName,
    expected: (u64, u32),
    found: (u64, u32),
) -> Result<(), Error> {
    if expected.0 != found.0 {
        let (made_for, found) = (expected.0.to_string(), found.0.to_string());
        return Err(Error::refused(Refusal::OtherSource { name: name.clone(), made_for, found }));
    }
    if expected.1 != found.1 {
        return Err(Kind::LeftTimeline { before: expected.1, now: found.1 }.into());
    }
    Ok(())
}
