//! Compares a sample of one partition's rows on both ends.
//!
//! Rows change during the comparison, so a difference counts only if it held for some time. A is
//! the end that has the row:
//!
//! 1. A has the row.
//! 2. The target has applied all that the source had written by then.
//! 3. The other end does not have it.
//! 4. A still has it.
//!
//! If a row is still missing on the target after step 2, it was never sent, or somebody deleted it
//! there. If only the target has a row, the stream did not delete it. Rows are found by the replica
//! identity; without one, by all values as text.

use base::{Lsn, quote_ident, quote_literal};
use client::{Session, SqlState};
use source::publication::{PublishedTable, ReplicaIdentity, TableName};
use state::{PartitionRow, Suspicion};

use super::remedy;
use super::subscription::Subscription;
use crate::error::Error;
use crate::status::DifferingPartition;
use source::end::WRITTEN;

/// Rows in a sample: the first ones in the file, where the rows lie that were there before the
/// stream brought others.
const SAMPLE: usize = 50;
/// Rows in a sample without a key, as the target's table is read once for each of them.
const SAMPLE_WITHOUT_KEY: usize = 3;

/// The answer to a question; returns early from the function if there is none.
macro_rules! ask {
    ($asked:expr) => {
        match $asked {
            Asked::Answered(told) => told,
            Asked::Locked => return Ok(Asked::Locked),
            Asked::Refused(reason) => return Ok(Asked::Refused(reason)),
        }
    };
}

/// Settings of both sessions, which do not wait long for other sessions.
const SETTINGS: [(&str, &str); 9] = [
    ("search_path", ""),
    ("client_encoding", "UTF8"),
    ("datestyle", "ISO"),
    ("intervalstyle", "postgres"),
    ("extra_float_digits", "3"),
    ("statement_timeout", "20s"),
    ("lock_timeout", "1s"),
    ("synchronize_seqscans", "off"),
    ("default_transaction_read_only", "on"),
];

/// $1 the publications.
const ACTIONS: &str = "SELECT COALESCE(pg_catalog.bool_or(p.pubinsert), false), \
                              COALESCE(pg_catalog.bool_or(p.pubdelete OR p.pubtruncate), false) \
                         FROM pg_catalog.pg_publication p WHERE p.pubname = ANY ($1::text[])";

/// The result of a comparison.
pub(super) enum Comparison {
    /// No difference was found, or only an expected one.
    Level,
    Differs(DifferingPartition),
    /// The comparison could not be made now.
    Postponed,
}

/// The result of one question.
enum Asked<T> {
    Answered(T),
    /// Another session has the table locked.
    Locked,
    /// The server refused, for this reason.
    Refused(String),
}

/// A session on each end.
pub(super) struct Probe<'a> {
    subscription: Subscription<'a>,
    source: Session,
    target: Session,
}

/// Rows that only one end has.
struct OneSided {
    only_there: usize,
    looked_at: usize,
}

/// The columns by which rows of a table are found.
struct Columns<'a> {
    names: Vec<&'a str>,
    /// The columns are a key; otherwise values are compared as text.
    key: bool,
}

impl<'a> Columns<'a> {
    fn of(table: &'a PublishedTable) -> Columns<'a> {
        let identity = table.columns.iter().filter(|column| column.in_replica_identity);
        let names: Vec<&str> = identity.map(|column| column.name.as_str()).collect();
        if names.is_empty() || table.identity == ReplicaIdentity::Full {
            let names = table.columns.iter().map(|column| column.name.as_str()).collect();
            return Columns { names, key: false };
        }
        Columns { names, key: true }
    }

    fn sample(&self) -> usize {
        if self.key { SAMPLE } else { SAMPLE_WITHOUT_KEY }
    }

    /// The columns as an array of texts.
    fn values(&self) -> String {
        let texts: Vec<String> =
            self.names.iter().map(|name| format!("{}::text", quote_ident(name))).collect();
        format!("ARRAY[{}]::text[]", texts.join(", "))
    }

    /// A condition that holds for the row with these values.
    fn are(&self, values: &[Option<String>]) -> String {
        let is = |(name, value): (&&str, &Option<String>)| {
            let name = quote_ident(name);
            match value {
                None => format!("{name} IS NULL"),
                // The literal takes the column's type.
                Some(value) if self.key => format!("{name} = {}", quote_literal(value)),
                Some(value) => format!("{name}::text = {}", quote_literal(value)),
            }
        };
        self.names.iter().zip(values).map(is).collect::<Vec<_>>().join(" AND ")
    }
}

impl<'a> Probe<'a> {
    pub(super) async fn new(subscription: Subscription<'a>) -> Result<Probe<'a>, Error> {
        let settings = subscription.settings;
        let name = settings.subscription.application_name("partitions");
        let (source, target) = tokio::try_join!(
            client::connect(&settings.source, &name, &SETTINGS),
            client::connect(&settings.target, &name, &SETTINGS)
        )?;
        Ok(Probe { subscription, source, target })
    }

    /// Looks for rows of the partition that only one end has.
    pub(super) async fn compare(
        &self,
        table: &PublishedTable,
        row: &PartitionRow,
    ) -> Result<Comparison, Error> {
        let actions = self.source.query_one(ACTIONS, &[&table.publications]).await;
        let actions = actions.map_err(|error| self.source.error(error))?;
        let (inserts, removals): (bool, bool) = (actions.get(0), actions.get(1));
        let gained = row.suspicion == Some(Suspicion::Gained);
        // The target need not have rows that are not published.
        if table.columns.is_empty() || (gained && !inserts) || (!gained && !removals) {
            return Ok(Comparison::Level);
        }
        let found = match gained {
            true => self.missing(table, row).await?,
            false => self.left(table, row).await?,
        };
        match found {
            Asked::Answered(None) | Asked::Locked => Ok(Comparison::Postponed),
            Asked::Answered(Some(OneSided { only_there: 0, .. })) => Ok(Comparison::Level),
            Asked::Answered(Some(found)) if gained => {
                let what = format!(
                    "has rows that the target does not have, {} of the first {}; rows that a partition has when it \
                     is attached do not reach the target",
                    found.only_there, found.looked_at
                );
                let remedy = remedy::send(&self.source, row).await?;
                Ok(Comparison::Differs(difference(row, what, remedy)))
            }
            Asked::Answered(Some(_)) => {
                let what = format!(
                    "{}, which does not reach the target: it keeps rows that the source does not have",
                    remedy::what_happened(&self.source, row).await?
                );
                let remedy = remedy::remove(&self.source, &self.target, row).await?;
                Ok(Comparison::Differs(difference(row, what, remedy)))
            }
            Asked::Refused(reason) => {
                let what = format!("{}, and its rows could not be compared: {reason}", suspicion(row));
                let remedy = "compare both ends: pgsluice verify".to_owned();
                Ok(Comparison::Differs(difference(row, what, remedy)))
            }
        }
    }

    /// Rows of the source's partition that the target lacks; `None` if the target is behind.
    async fn missing(
        &self,
        table: &PublishedTable,
        row: &PartitionRow,
    ) -> Result<Asked<Option<OneSided>>, Error> {
        let leaf = TableName::new(&row.partition.0, &row.partition.1);
        let (filter, root) = (table.row_filter.as_deref().unwrap_or("true"), table.name.quoted());
        let sql = "SELECT pg_catalog.has_table_privilege($1::oid, 'SELECT')";
        let may = ask!(self.rows(&self.source, sql, &[&row.oid]).await?);
        // NULL: the partition is gone by now.
        let may_read = may.first().is_some_and(|row| row.get::<_, Option<bool>>(0) == Some(true));
        let from = match may_read {
            true => format!("{} WHERE ({filter})", leaf.quoted()),
            false => format!("{root} WHERE ({}) AND ({filter})", row.bounds),
        };
        self.only_on((&self.source, &from), (&self.target, &root), &Columns::of(table)).await
    }

    /// Rows within the partition's bounds that only the target has.
    async fn left(
        &self,
        table: &PublishedTable,
        row: &PartitionRow,
    ) -> Result<Asked<Option<OneSided>>, Error> {
        let root = table.name.quoted();
        let Some(bounds) = remedy::bounds_on_target(&self.target, row).await? else {
            let reason =
                "the bounds of a hash partition mean nothing on the target, which is not partitioned alike";
            return Ok(Asked::Refused(reason.to_owned()));
        };
        let from = format!("{root} WHERE ({bounds})");
        self.only_on((&self.target, &from), (&self.source, &root), &Columns::of(table)).await
    }

    /// Carries out the steps in the module's comment.
    async fn only_on(
        &self,
        (one, from): (&Session, &str),
        (other, root): (&Session, &str),
        columns: &Columns<'_>,
    ) -> Result<Asked<Option<OneSided>>, Error> {
        let sql = format!("SELECT {} FROM {from} LIMIT {}", columns.values(), columns.sample());
        let rows = ask!(self.rows(one, &sql, &[]).await?);
        let sample: Vec<Vec<Option<String>>> = rows.iter().map(|row| row.get(0)).collect();
        if sample.is_empty() {
            return Ok(Asked::Answered(Some(OneSided { only_there: 0, looked_at: 0 })));
        }
        let written = ask!(self.rows(&self.source, WRITTEN, &[]).await?);
        let written: Option<String> = written.first().and_then(|row| row.get(0));
        let written: Lsn = written.and_then(|text| text.parse().ok()).unwrap_or(Lsn::INVALID);
        if !self.subscription.has_applied(written).await {
            return Ok(Asked::Answered(None));
        }
        let all: Vec<usize> = (0..sample.len()).collect();
        let there = ask!(self.present(other, root, columns, &sample, &all).await?);
        let missing: Vec<usize> = all.into_iter().filter(|number| !there.contains(number)).collect();
        if missing.is_empty() {
            return Ok(Asked::Answered(Some(OneSided { only_there: 0, looked_at: sample.len() })));
        }
        let still = ask!(self.present(one, from_table(from), columns, &sample, &missing).await?);
        Ok(Asked::Answered(Some(OneSided { only_there: still.len(), looked_at: sample.len() })))
    }

    /// Returns those of `which` that `table` has.
    async fn present(
        &self,
        session: &Session,
        table: &str,
        columns: &Columns<'_>,
        sample: &[Vec<Option<String>>],
        which: &[usize],
    ) -> Result<Asked<Vec<usize>>, Error> {
        let each = which.iter().filter_map(|number| {
            let are = columns.are(sample.get(*number)?);
            Some(format!("SELECT {number}::int8 WHERE EXISTS (SELECT FROM {table} WHERE {are})"))
        });
        let sql = each.collect::<Vec<_>>().join(" UNION ALL ");
        let rows = ask!(self.rows(session, &sql, &[]).await?);
        let number = |row: &tokio_postgres::Row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(usize::MAX);
        Ok(Asked::Answered(rows.iter().map(number).collect()))
    }

    async fn rows(
        &self,
        session: &Session,
        sql: &str,
        parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<Asked<Vec<tokio_postgres::Row>>, Error> {
        match session.query(sql, parameters).await.map_err(|error| session.error(error)) {
            Ok(rows) => Ok(Asked::Answered(rows)),
            Err(error) if error.is_connection_lost() => Err(error.into()),
            // An undefined table was dropped during the comparison.
            Err(error)
                if matches!(
                    error.sqlstate().map(SqlState::from_code),
                    Some(SqlState::LOCK_NOT_AVAILABLE | SqlState::UNDEFINED_TABLE)
                ) =>
            {
                Ok(Asked::Locked)
            }
            Err(error) => Ok(Asked::Refused(error.to_string())),
        }
    }
}

/// `"s"."t" WHERE ...` without the part behind the name.
fn from_table(from: &str) -> &str {
    from.split_once(" WHERE (").map_or(from, |(table, _)| table)
}

fn suspicion(row: &PartitionRow) -> &'static str {
    match row.suspicion {
        Some(Suspicion::Lost) => "was dropped or detached",
        Some(Suspicion::Emptied) => "has another file than before, as after TRUNCATE",
        _ => "was attached",
    }
}

fn difference(row: &PartitionRow, what: String, remedy: String) -> DifferingPartition {
    let name = |(schema, name): &(String, String)| TableName::new(schema, name).to_string();
    DifferingPartition { root: name(&row.root), partition: name(&row.partition), what, remedy }
}
