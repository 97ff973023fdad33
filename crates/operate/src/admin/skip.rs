//! Checks a request to skip a transaction: it must come in time, and name the transaction that
//! fails.
//!
//! | the LSN | answer |
//! | --- | --- |
//! | lies where the target has everything, or where nothing was for it | the transaction has passed |
//! | is not that of the transaction that fails now | the error names the failing one |
//! | is any other | the transaction that commits there is skipped when it comes |

use base::{Lsn, SubscriptionName};
use client::Session;

use super::{Error, Kind, stored, update};

/// The words of an error message before the LSN to skip.
const COMMAND: &str = "pgsluice skip --lsn ";

/// Stores that the transaction that commits at `lsn` is to be skipped. [`Lsn::INVALID`] takes the
/// request back. `last_error` is the last error of the process that runs the subscription, if there
/// is one.
///
/// # Errors
/// The transaction is over, or is not the one that fails. The target does not know the
/// subscription. Or the target failed.
pub async fn set_skip(
    target: &Session,
    subscription: &SubscriptionName,
    lsn: Lsn,
    last_error: Option<&str>,
) -> Result<(), Error> {
    if lsn.is_valid() {
        refuse(target, subscription, lsn, last_error).await?;
    }
    let set = state::stored::set_skip(&**target, subscription, lsn.is_valid().then_some(lsn));
    update(target, subscription, "store the LSN to skip on the target", set).await
}

async fn refuse(
    target: &Session,
    name: &SubscriptionName,
    lsn: Lsn,
    last_error: Option<&str>,
) -> Result<(), Error> {
    // The write that follows reports a missing row.
    let Some(stored) = stored(target, name).await? else { return Ok(()) };
    let failed = |error| Error::query(target, "read the subscription's state on the target", error);
    let applied = stored.applied_lsn.and_then(|lsn| lsn.parse().ok()).unwrap_or(Lsn::INVALID);
    let done = state::stored::committed_ranges(&**target, name, applied).await.map_err(failed)?;
    // Everything up to here was confirmed to the source, because nothing of it was for this target.
    let confirmed: Lsn = stored.confirmed_lsn.and_then(|lsn| lsn.parse().ok()).unwrap_or(Lsn::INVALID);
    let has_passed = |lsn: Lsn| done.has(lsn) || lsn < confirmed;
    if has_passed(lsn) {
        let reached = done.furthest().max(confirmed);
        return Err(Error(Kind::SkipPassed { subscription: name.clone(), lsn, reached }));
    }
    let failing = last_error.or(stored.last_error.as_deref()).and_then(lsn_to_skip);
    match failing.filter(|&failing| failing != lsn && !has_passed(failing)) {
        Some(failing) => Err(Error(Kind::SkipOther { lsn, failing })),
        None => Ok(()),
    }
}

/// The LSN that an error message tells the operator to skip.
fn lsn_to_skip(error: &str) -> Option<Lsn> {
    let (_, rest) = error.rsplit_once(COMMAND)?;
    let end = rest.find(|c: char| !c.is_ascii_hexdigit() && c != '/').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lsn_of_an_error_is_found() {
        let found =
            lsn_to_skip("x; to skip the transaction: `pgsluice skip --lsn 16/B374D848 --subscription s`");
        assert_eq!(found, Some(Lsn::new(0x16_B374_D848)));
        assert_eq!(lsn_to_skip("the connection was lost"), None);
    }
}
