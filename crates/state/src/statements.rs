//! Statements on schema `pgsluice` that the sessions that apply run in their own transactions.
//!
//! The records are true only together with the applied rows, so the control session cannot write
//! them. Positions are parameters or the caller's expressions; names are literals.

use base::{SubscriptionName, quote_literal};

use crate::since::{Since, TableKey};

/// Clears the transaction that was to be skipped.
#[must_use]
pub fn clear_skip(subscription: &str) -> String {
    format!("UPDATE pgsluice.subscription SET skip_lsn = NULL WHERE name = {}", quote_literal(subscription))
}

/// Stores that everything before `position`, an SQL expression, was applied.
#[must_use]
pub fn write_progress(subscription: &str, position: &str) -> String {
    format!(
        "INSERT INTO pgsluice.progress (subscription, applied_lsn) VALUES ({}, {position})",
        quote_literal(subscription)
    )
}

/// Stores the range from `$1` to `$2`, where transactions commit out of order.
#[must_use]
pub fn write_range(subscription: &str) -> String {
    format!(
        "INSERT INTO pgsluice.ahead (subscription, since_lsn, applied_lsn) VALUES ({}, $1, $2)",
        quote_literal(subscription)
    )
}

/// Reads the last position that [`write_progress`] has stored.
#[must_use]
pub fn last_progress(subscription: &str) -> String {
    format!(
        "SELECT applied_lsn FROM pgsluice.progress WHERE subscription = {} \
         ORDER BY applied_lsn DESC LIMIT 1",
        quote_literal(subscription)
    )
}

/// Records that `table` has joined; its copy lacks the transactions that came `since`. Returns no
/// row where it was left out or forgotten.
#[must_use]
pub fn join_table(subscription: &str, table: &TableKey, since: &Since) -> String {
    format!(
        "UPDATE pgsluice.copied_table SET finished = true, {} \
         WHERE subscription = {} AND schema_name = {} AND table_name = {} AND replaced IS NULL",
        since.columns(),
        quote_literal(subscription),
        quote_literal(&table.0),
        quote_literal(&table.1)
    )
}

/// Sets `values`, as SQL, in the row of a table that is copied.
#[must_use]
pub fn set_copied_table(subscription: &SubscriptionName, table: (&str, &str), values: &str) -> String {
    format!("UPDATE pgsluice.copied_table SET {values} WHERE {}", row_of(subscription, table))
}

/// Reads `finished` and `begun` of a table that is copied, as text.
#[must_use]
pub fn read_copied_table(subscription: &SubscriptionName, table: (&str, &str)) -> String {
    format!(
        "SELECT finished::text, begun::text FROM pgsluice.copied_table WHERE {}",
        row_of(subscription, table)
    )
}

/// The condition that finds the row of a table, given as schema and name.
fn row_of(subscription: &SubscriptionName, (schema, name): (&str, &str)) -> String {
    format!(
        "subscription = {} AND schema_name = {} AND table_name = {}",
        quote_literal(subscription.as_str()),
        quote_literal(schema),
        quote_literal(name)
    )
}
