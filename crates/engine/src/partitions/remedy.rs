//! The statements that make both ends agree on a partition, with its names filled in.

use base::quote_ident;
use client::Session;
use source::publication::TableName;
use state::{PartitionRow, Suspicion};

use crate::error::Error;

/// $1 the root, $2 the partition. Returns the columns that can be written, and whether deleting a
/// row has further effects.
const WRITABLE: &str = "
SELECT ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
              ORDER BY a.attnum),
       EXISTS (SELECT FROM pg_catalog.pg_trigger t
                WHERE t.tgrelid IN ($1::oid, $2::oid) AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A'))
       OR EXISTS (SELECT FROM pg_catalog.pg_constraint f
                   WHERE f.contype = 'f' AND f.confrelid IN ($1::oid, $2::oid)
                     AND f.confdeltype IN ('r', 'c', 'n', 'd'))";

/// $1 the partition's quoted name, $2 the root's, both on the target. Returns the partition's
/// bounds there, if it is a partition of that root there.
const TARGETS_OWN: &str = "
SELECT pg_catalog.pg_get_partition_constraintdef(c.oid) FROM pg_catalog.pg_class c
 WHERE c.oid = pg_catalog.to_regclass($1) AND c.relkind IN ('r', 'p')
   AND pg_catalog.to_regclass($2) IN (SELECT a.relid FROM pg_catalog.pg_partition_ancestors(c.oid) a)";

fn names(row: &PartitionRow) -> (TableName, TableName) {
    let name = |(schema, name): &(String, String)| TableName::new(schema, name);
    (name(&row.root), name(&row.partition))
}

/// Writes the partition's rows again, so that they are published.
pub(super) async fn send(source: &Session, row: &PartitionRow) -> Result<String, Error> {
    let (_, leaf) = names(row);
    Ok(format!("send them, by this on the source: {}", written_again(source, row, &leaf.quoted()).await?))
}

/// As [`send`], for `from`, which may end in a WHERE clause.
async fn written_again(source: &Session, row: &PartitionRow, from: &str) -> Result<String, Error> {
    let (root, _) = names(row);
    let found = source.query_one(WRITABLE, &[&row.root_oid, &row.oid]).await;
    let found = found.map_err(|error| source.error(error))?;
    let columns: Vec<String> = found.get(0);
    let columns = columns.iter().map(|name| quote_ident(name)).collect::<Vec<_>>().join(", ");
    let sql = format!(
        "WITH moved AS (DELETE FROM {from} RETURNING *) INSERT INTO {} ({columns}) OVERRIDING SYSTEM VALUE \
         SELECT {columns} FROM moved",
        root.quoted()
    );
    // Triggers, and foreign keys that reference the partition, must not act on rows that stay.
    Ok(match found.get(1) {
        true => format!("BEGIN; SET LOCAL session_replication_role = replica; {sql}; COMMIT"),
        false => sql,
    })
}

/// What was done to the partition on the source.
pub(super) async fn what_happened(source: &Session, row: &PartitionRow) -> Result<&'static str, Error> {
    if row.suspicion == Some(Suspicion::Emptied) {
        return Ok("was emptied on the source by TRUNCATE");
    }
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = $1::oid)";
    let found = source.query_one(sql, &[&row.oid]).await.map_err(|error| source.error(error))?;
    Ok(if found.get(0) { "was detached on the source" } else { "was dropped on the source" })
}

/// The condition on the target that selects the partition's rows. `None` if the target cannot
/// evaluate it: hash bounds name the partitioned table by its OID.
pub(super) async fn bounds_on_target(target: &Session, row: &PartitionRow) -> Result<Option<String>, Error> {
    match row.bounds.contains("satisfies_hash_partition(") {
        true => targets_own(target, row).await,
        false => Ok(Some(row.bounds.clone())),
    }
}

async fn targets_own(target: &Session, row: &PartitionRow) -> Result<Option<String>, Error> {
    let (root, leaf) = names(row);
    let found = target.query_opt(TARGETS_OWN, &[&leaf.quoted(), &root.quoted()]).await;
    Ok(found.map_err(|error| target.error(error))?.and_then(|found| found.get(0)))
}

/// Removes the partition's rows on the target. Rows that the source now has within its bounds are
/// sent again.
pub(super) async fn remove(source: &Session, target: &Session, row: &PartitionRow) -> Result<String, Error> {
    let (root, leaf) = names(row);
    let bounds = bounds_on_target(target, row).await?.unwrap_or_else(|| row.bounds.clone());
    let own = targets_own(target, row).await?;
    let sql = match own.is_some_and(|own| own == bounds) {
        true => format!("TRUNCATE {}", leaf.quoted()),
        false => format!("DELETE FROM {} WHERE {bounds}", root.quoted()),
    };
    let remedy = format!("remove them, by this on the target: {sql}");
    let kept = format!("{} WHERE {}", root.quoted(), row.bounds);
    let found = source.query_one(&format!("SELECT EXISTS (SELECT FROM {kept})"), &[]).await;
    // `check` reports a partition that cannot be read.
    if !found.is_ok_and(|found| found.get(0)) {
        return Ok(remedy);
    }
    let again = written_again(source, row, &kept).await?;
    Ok(format!("{remedy}; then, as the source has other rows there now, this on the source: {again}"))
}
