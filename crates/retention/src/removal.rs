//! Removes what a subscription has left of its retention: the slot on the target, and the files.

use std::io;
use std::path::Path;

use base::SubscriptionName;
use client::{ConnInfo, Session};
use source::end::SOURCE_SETTINGS;
use source::slot;

use crate::error::Error;
use crate::settings::slot_of;

/// Drops the slot, if there is one. Returns its name if it existed.
///
/// # Errors
/// It is in use, or the session failed.
pub async fn drop_slot(target: &Session, subscription: &SubscriptionName) -> Result<Option<String>, Error> {
    let name = slot_of(subscription);
    // Not every server has a slot to drop, and an error would be in its log.
    if slot::slot_state(target, &name).await?.is_none() {
        return Ok(None);
    }
    Ok(slot::drop_slot(target, &name).await?.then_some(name))
}

/// Removes what was left when the retention was turned off.
///
/// # Errors
/// The target, or the files.
pub async fn remove(target: &ConnInfo, subscription: &SubscriptionName, dir: &Path) -> Result<(), Error> {
    let name = subscription.application_name("deletions");
    let session = client::connect(target, &name, &SOURCE_SETTINGS).await?;
    drop_slot(&session, subscription).await?;
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
