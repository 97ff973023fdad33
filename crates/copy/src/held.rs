//! Checks that a table of the source is still the one that the snapshot sees.
//!
//! A table that ALTER TABLE writes anew looks empty to older snapshots, and the stream does not
//! bring its rows. VACUUM FULL and CLUSTER keep the rows for these snapshots, but move them to
//! pages that the planned ranges do not expect. So the copy locks a table before it reads anything
//! of it, and then compares files. The files of the table and its partitions must be the ones that
//! the snapshot knows.

use base::quote_literal;
use client::{SqlState, Wire};
use source::publication::TableKind;

use crate::error::{Error, Kind};
use crate::job::CopyJob;

/// Locks the job's table and its partitions until the transaction ends, so that no statement can
/// write them anew.
///
/// # Errors
/// [`Kind::Rewritten`] if the table was written anew since the snapshot; the connection can still
/// be used. Otherwise the server's error.
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

/// LOCK TABLE needs a right to all columns. The locks of the look at the catalogs are not kept.
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
