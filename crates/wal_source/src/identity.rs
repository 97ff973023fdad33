//! Checks of the source's identity, where its archive is followed or its standbys are asked; and
//! the removal of the slot that was used before.
//!
//! A stream ends when another server answers. An archive only stops growing, because a new timeline
//! writes to segments of other names. So this module asks whether the source is still the same
//! server.

use std::convert::Infallible;
use std::time::Duration;

use base::{Lsn, Progress, SubscriptionName};
use client::Session;
use source::end::SOURCE_SETTINGS;
use source::slot;

use crate::Settings;
use crate::error::{Error, Kind, OtherSource};

/// Interval between questions. The source may be away meanwhile; what the archive has is decoded.
const INTERVAL: Duration = Duration::from_secs(10);
/// Interval between looks at how far decoding has come.
const POLL: Duration = Duration::from_millis(500);

/// Reads the system identifier and timeline of a primary. A standby gives an error.
pub(super) async fn of(session: &Session) -> Result<(u64, u32), client::Error> {
    // The control file names a new timeline only after the first checkpoint on it.
    const SQL: &str = "SELECT s.system_identifier, pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()) \
                       FROM pg_catalog.pg_control_system() s";
    let row = session.query_one(SQL, &[]).await.map_err(|error| session.error(error))?;
    let timeline = row.get::<_, &str>(1).get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    Ok((row.get::<_, i64>(0).cast_unsigned(), timeline.unwrap_or_default()))
}

/// Keeps asking whether the source is still this system on this timeline. If there is nothing to
/// ask, it only waits.
///
/// # Errors
/// The source is another one. The next attempt finds out whether a new timeline can be followed.
pub async fn watch_identity(settings: &Settings, expected: Option<(u64, u32)>) -> Result<Infallible, Error> {
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

/// Drops the slot that a stream used before. It waits until decoding has had all that the source
/// had at the switch, because the archive may lag or have ended.
pub async fn drop_left_slot(
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
    of(session).await
}

/// Checks that a server is still the `expected` one.
///
/// # Errors
/// It is another server, or on another timeline.
pub(super) fn is_still(
    name: &SubscriptionName,
    expected: (u64, u32),
    found: (u64, u32),
) -> Result<(), Error> {
    if expected.0 != found.0 {
        let (made_for, found) = (expected.0.to_string(), found.0.to_string());
        return Err(Kind::OtherSource(OtherSource { name: name.clone(), made_for, found }).into());
    }
    if expected.1 != found.1 {
        return Err(Kind::LeftTimeline { before: expected.1, now: found.1 }.into());
    }
    Ok(())
}
