//! Whether the target of a subscription is at a commit of the source, while no process runs it.

use base::{Lsn, SubscriptionName};
use client::Session;
use engine::CatchingUp;
use state::CopiedTable;
use tokio_postgres::types::PgLsn;

/// Returns what is missing if the target has everything up to `flushed`; `None` if nothing is.
pub(super) async fn awaited(
    target: &Session,
    name: &SubscriptionName,
    flushed: Lsn,
) -> Result<Option<CatchingUp>, tokio_postgres::Error> {
    let sql = "SELECT schema_name, table_name, begun, finished, consistent_point \
                 FROM pgsluice.copied_table WHERE subscription = $1";
    let rows = target.query(sql, &[&name.as_str()]).await?;
    let table = |row: &tokio_postgres::Row| -> Result<CopiedTable, tokio_postgres::Error> {
        let lsn: Option<PgLsn> = row.try_get(4)?;
        Ok(CopiedTable {
            schema: row.try_get(0)?,
            table: row.try_get(1)?,
            // Only the end of the snapshot counts here.
            since: lsn.map(|lsn| Lsn::new(lsn.into()).into()),
            begun: row.try_get(2)?,
            finished: row.try_get(3)?,
            source_oid: None,
            replaced: None,
        })
    };
    let recorded: Vec<CopiedTable> = rows.iter().map(table).collect::<Result<_, _>>()?;
    Ok(CatchingUp::stored(&recorded, flushed))
}
