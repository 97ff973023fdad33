//! Statements on schema `pgsluice` that the sessions that apply run in their own transactions.
//!
//! The records are true only together with the applied rows, so the control session cannot write
//! them. Positions are parameters or the caller's expressions; names are literals.

use std::time::Duration;

use base::{SubscriptionName, quote_literal};

use crate::conflict_record::{ConflictRecord, RECORD_COLUMNS, WriterConflict};
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

/// Records conflicts that were resolved. Its parameters are an array for each of
/// [`RECORD_COLUMNS`], with as many elements as there are conflicts.
#[must_use]
pub fn record_conflicts(subscription: &str) -> String {
    let unnested: Vec<String> =
        (1..=RECORD_COLUMNS.len()).map(|number| format!("pg_catalog.unnest(${number})")).collect();
    format!(
        "INSERT INTO pgsluice.conflict_history (subscription, {}) SELECT {}, {}",
        recorded(),
        quote_literal(subscription),
        unnested.join(", ")
    )
}

/// Records a conflict because of which a transaction was rolled back.
///
/// That transaction comes again and meets the same conflict. So the record is written only if the
/// history has none of the same commit, type, table and index.
#[must_use]
pub fn record_refused_conflict(subscription: &str, record: &ConflictRecord<'_>) -> String {
    let subscription = quote_literal(subscription);
    let columns: Vec<(&str, String)> = RECORD_COLUMNS
        .iter()
        .zip(record.values())
        .map(|((name, of), value)| (*name, value.sql(*of)))
        .collect();
    let same = ["outcome", "finished_at", "type", "schema_name", "table_name", "index_name"];
    let same: Vec<String> = columns
        .iter()
        .filter(|(name, _)| same.contains(name))
        .map(|(name, value)| match *name {
            "index_name" => format!("h.{name} IS NOT DISTINCT FROM {value}"),
            _ => format!("h.{name} = {value}"),
        })
        .collect();
    let values: Vec<String> = columns.into_iter().map(|(_, value)| value).collect();
    format!(
        "INSERT INTO pgsluice.conflict_history (subscription, {}) SELECT {subscription}, {} WHERE NOT EXISTS \
         (SELECT FROM pgsluice.conflict_history h WHERE h.subscription = {subscription} AND {})",
        recorded(),
        values.join(", "),
        same.join(" AND ")
    )
}

/// Records, within a session's procedure, a conflict of a change with the last writer of its row.
#[must_use]
pub fn record_writer_conflict(subscription: &str, conflict: &WriterConflict<'_>) -> String {
    let (names, values): (Vec<&str>, Vec<String>) = conflict.columns().into_iter().unzip();
    format!(
        "INSERT INTO pgsluice.conflict_history (subscription, {}) VALUES ({}, {})",
        names.join(", "),
        quote_literal(subscription),
        values.join(", ")
    )
}

/// The names of [`RECORD_COLUMNS`].
fn recorded() -> String {
    RECORD_COLUMNS.map(|(name, _)| name).join(", ")
}

/// The most records that one [`prune_conflicts`] removes, so that nothing waits long behind it.
pub const PRUNED_CONFLICTS_MAX: u64 = 10_000;

/// Removes records of conflicts that are older than `age`, and all but the newest `rows`. Removes
/// [`PRUNED_CONFLICTS_MAX`] of them at most, the oldest first.
#[must_use]
pub fn prune_conflicts(subscription: &str, age: Duration, rows: u64) -> String {
    let subscription = quote_literal(subscription);
    let first_kept = match rows.min(i64::MAX as u64).checked_sub(1) {
        None => "'infinity'::timestamptz".to_owned(),
        Some(newer) => format!(
            "(SELECT k.at FROM pgsluice.conflict_history k WHERE k.subscription = {subscription} \
              ORDER BY k.at DESC OFFSET {newer} LIMIT 1)"
        ),
    };
    // GREATEST leaves out the NULL of a history that is shorter. One bound for both can use the
    // index.
    format!(
        "DELETE FROM pgsluice.conflict_history WHERE id IN ( \
          SELECT h.id FROM pgsluice.conflict_history h WHERE h.subscription = {subscription} \
             AND h.at < GREATEST(pg_catalog.now() - {}::float8 * '1 second'::interval, {first_kept}) \
           ORDER BY h.at LIMIT {PRUNED_CONFLICTS_MAX})",
        age.as_secs()
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

#[cfg(test)]
mod tests {
    use base::{Lsn, PgTimestamp, Xid};
    use conflict::{Commit, ConflictType, Origin, Resolution, Written};

    use super::*;
    use crate::conflict_record::{ConflictOutcome, RecordType, RecordValue, RecordedValues};

    fn record(outcome: ConflictOutcome, local: Option<&Written>) -> ConflictRecord<'_> {
        ConflictRecord {
            kind: ConflictType::InsertExists,
            table: ("public", "it's"),
            index: None,
            resolution: Resolution::LastUpdateWins,
            outcome,
            remote_xid: Xid(7),
            finished_at: Lsn::new(0x1_0000_0020),
            remote_time: PgTimestamp(5),
            remote_origin: None,
            local,
            values: RecordedValues { key: Some(r#"{"a":"\\"}"#), ..RecordedValues::default() },
            detail: "Key already exists.",
        }
    }

    #[test]
    fn a_refused_record_is_one_insert_of_quoted_literals() {
        let commit = Commit { origin: Origin::Local, time: PgTimestamp(6), time_text: String::new() };
        let written = Written { xid: Xid(8), commit: Some(commit) };
        let sql = record_refused_conflict("s", &record(ConflictOutcome::Error, Some(&written)));
        let (insert, condition) = sql.split_once(" WHERE NOT EXISTS ").unwrap();
        assert_eq!(
            insert,
            "INSERT INTO pgsluice.conflict_history (subscription, type, schema_name, table_name, index_name, \
             resolution, outcome, remote_xid, finished_at, remote_time, remote_origin, local_xid, local_origin, \
             local_time, key, local_row, remote_row, replica_identity, detail) SELECT 's', 'insert_exists', \
             'public', 'it''s', NULL, 'last_update_wins', 'error', 7::int8, '1/20'::pg_lsn, \
             ('2000-01-01 00:00:00+00'::timestamptz + 5::float8 * '1 microsecond'::interval)::timestamptz, NULL, \
             8::int8, '', \
             ('2000-01-01 00:00:00+00'::timestamptz + 6::float8 * '1 microsecond'::interval)::timestamptz, \
             E'{\"a\":\"\\\\\\\\\"}'::json, NULL::json, NULL::json, NULL::json, 'Key already exists.'"
        );
        assert_eq!(
            condition,
            "(SELECT FROM pgsluice.conflict_history h WHERE h.subscription = 's' AND h.type = 'insert_exists' AND \
             h.schema_name = 'public' AND h.table_name = 'it''s' AND h.index_name IS NOT DISTINCT FROM NULL AND \
             h.outcome = 'error' AND h.finished_at = '1/20'::pg_lsn)"
        );
    }

    #[test]
    fn each_value_has_the_type_of_its_column() {
        let nothing = record(ConflictOutcome::Kept, None);
        for ((name, of), value) in RECORD_COLUMNS.iter().zip(nothing.values()) {
            let fits = match of {
                RecordType::Text | RecordType::Json => matches!(value, RecordValue::Text(_)),
                RecordType::Integer => matches!(value, RecordValue::Integer(_)),
                RecordType::Lsn => matches!(value, RecordValue::Lsn(_)),
                RecordType::Time => matches!(value, RecordValue::Time(_)),
            };
            assert!(fits, "{name}: {value:?}");
        }
        assert!(record_conflicts("it's").ends_with("pg_catalog.unnest($18)"));
    }

    #[test]
    fn no_rows_to_keep_means_that_all_are_removed() {
        assert!(prune_conflicts("s", Duration::from_secs(60), 0).contains("'infinity'"));
        let sql = prune_conflicts("s", Duration::from_secs(60), 10);
        assert!(sql.contains("OFFSET 9 LIMIT 1") && sql.contains("60::float8"), "{sql}");
    }
}
