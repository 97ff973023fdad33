//! The replication origins of a subscription, by their names.
//!
//! An origin's name ends in the worker's number ([`SubscriptionName::origin`]). If another number
//! precedes it, the origin belongs to a subscription of another name. Origins belong to the whole
//! cluster, the rows of schema `pgsluice` to one database.

use base::SubscriptionName;
use tokio_postgres::GenericClient;

/// The condition, as SQL, that an origin `o` belongs to the subscription that the SQL expression
/// `name` gives.
pub(crate) fn origins_of(name: &str) -> String {
    format!("o.roname ~ ('^pgsluice_' || {name} || '_[0-9]+$')")
}

/// The names of the subscription's origins, in order.
pub(crate) async fn origins(
    client: &impl GenericClient,
    subscription: &SubscriptionName,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let sql = format!(
        "SELECT o.roname FROM pg_catalog.pg_replication_origin o WHERE {} ORDER BY o.roname",
        origins_of("$1")
    );
    let rows = client.query(&sql, &[&subscription.as_str()]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// The server's numbers of the subscription's origins.
///
/// # Errors
/// The query failed.
pub async fn own_origins(
    client: &impl GenericClient,
    subscription: &SubscriptionName,
) -> Result<Vec<u32>, tokio_postgres::Error> {
    let sql = format!(
        "SELECT o.roident FROM pg_catalog.pg_replication_origin o WHERE {} ORDER BY o.roident",
        origins_of("$1")
    );
    let rows = client.query(&sql, &[&subscription.as_str()]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}
