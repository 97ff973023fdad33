//! Whether the target of a subscription is at a commit of the source, while no process runs it.

use base::{Lsn, SubscriptionName};
use client::Session;
use engine::CatchingUp;

/// Returns what is missing if the target has everything up to `flushed`; `None` if nothing is.
pub(super) async fn awaited(
    target: &Session,
    name: &SubscriptionName,
    flushed: Lsn,
) -> Result<Option<CatchingUp>, tokio_postgres::Error> {
    let recorded = state::stored::copied_tables(&**target, name).await?;
    Ok(CatchingUp::stored(&recorded, flushed))
}
