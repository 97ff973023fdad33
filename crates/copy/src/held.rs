//! Whether a table of the source still is what the snapshot sees.
//!
//! One that ALTER TABLE writes anew looks empty to older snapshots, and nothing in the stream
//! brings its rows. VACUUM FULL and CLUSTER keep the rows for them, but at other places than ranges
//! of pages were made for. So a table is locked before anything of it is read, and then looked at:
//! what the snapshot says of its files, and of those of its partitions, must be what they are.

use base::quote_literal;
use client::{SqlState, Wire};
use source::publication::TableKind;

use crate::error::{Error, Kind};
use crate::job::CopyJob;

/// Locks the job's table, with its partitions, until the transaction ends, against everything that
/// writes it anew.
///
/// # Errors
/// [`Kind::Rewritten`] where that was done since the snapshot; the connection can be used then.
/// That of the server else.
pub(crate) async fn hold(source: &mut Wire, job: &CopyJob) -> Result<(), Error> {
    let rows = source.query(&statements(job)).await.map_err(|cause| {
        match cause.sqlstate().map(SqlState::from_code) {
            Some(SqlState::UNDEFINED_TABLE) => Error::new(Kind::Dropped),
            _ => Error::client("lock it on the source")(cause),
        }
    })?;
    let others = rows.first().and_then(|row| row.first()?.as_deref());
    if others == Some("0") { Ok(()) } else { Err(Error::new(Kind::Rewritten)) }
}

/// LOCK TABLE wants the right to all columns. The locks of the look at the catalogs are not kept.
fn statements(job: &CopyJob) -> String {
    let table = job.table.name.quoted();
    let only = if job.table.kind == TableKind::Partitioned { "" } else { "ONLY " };
    let oid = format!("{}::pg_catalog.regclass", quote_literal(&table));
    format!(
        "SELECT NULL FROM {only}{table} LIMIT 0; SAVEPOINT look; \
         SELECT pg_catalog.count(*) \
           FROM (SELECT {oid} AS relid UNION SELECT relid FROM pg_catalog.pg_partition_tree({oid})) t \
           LEFT JOIN pg_catalog.pg_class c ON c.oid = t.relid \
          WHERE c.relfilenode IS DISTINCT FROM COALESCE(pg_catalog.pg_relation_filenode(t.relid), 0); \
         ROLLBACK TO SAVEPOINT look; RELEASE SAVEPOINT look"
    )
}
