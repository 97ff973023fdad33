//! The known partitions of tables that are published as their root.
//!
//! There is one row for each partition seen at the last look. The rows are kept on the target, so
//! that the next start notices a change made while no process ran. A partition that is gone keeps
//! its row until both ends agree.

use tokio_postgres::types::ToSql;

use crate::error::Error;
use crate::state::State;

/// Why the two ends may have different rows of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspicion {
    /// The partition came, perhaps with rows.
    Gained,
    /// The partition went, and the target may have its rows.
    Lost,
    /// The partition's file changed, perhaps by TRUNCATE.
    Emptied,
}

impl Suspicion {
    fn as_str(self) -> &'static str {
        match self {
            Suspicion::Gained => "gained",
            Suspicion::Lost => "lost",
            Suspicion::Emptied => "emptied",
        }
    }

    fn from_text(text: &str) -> Option<Suspicion> {
        [Suspicion::Gained, Suspicion::Lost, Suspicion::Emptied].into_iter().find(|own| own.as_str() == text)
    }
}

/// A partition as the last look saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRow {
    /// OID of the root on the source.
    pub root_oid: u32,
    /// Schema and name of the root.
    pub root: (String, String),
    /// OID of the partition on the source.
    pub oid: u32,
    /// Schema and name of the partition.
    pub partition: (String, String),
    /// Its relfilenode on the source, which TRUNCATE replaces.
    pub filenode: u32,
    /// SQL condition on the root's columns that holds for the partition's rows. Its names are
    /// qualified.
    pub bounds: String,
    /// `Some` if both ends must be compared.
    pub suspicion: Option<Suspicion>,
}

impl State {
    /// The partitions of the last look.
    ///
    /// # Errors
    /// The query failed, or the table is missing and may not be made.
    pub async fn partitions(&self) -> Result<Vec<PartitionRow>, Error> {
        // Without this table, an older version made the state.
        if !self.has_table("partition").await? {
            self.make_tables().await?;
        }
        let sql = "SELECT root_oid, root_schema, root_name, partition_oid, partition_schema, partition_name, filenode, \
                          bounds, suspicion FROM pgsluice.partition WHERE subscription = $1";
        let rows = self.session.query(sql, &[&self.name.as_str()]).await;
        let rows = rows.map_err(|error| self.damaged(error))?;
        let row = |row: &tokio_postgres::Row| PartitionRow {
            root_oid: row.get(0),
            root: (row.get(1), row.get(2)),
            oid: row.get(3),
            partition: (row.get(4), row.get(5)),
            filenode: row.get(6),
            bounds: row.get(7),
            suspicion: row.get::<_, Option<&str>>(8).and_then(Suspicion::from_text),
        };
        Ok(rows.iter().map(row).collect())
    }

    /// Stores `seen` and deletes `gone`, each given by root and partition, in one transaction.
    ///
    /// # Errors
    /// A query failed.
    pub async fn store_partitions(&self, seen: &[&PartitionRow], gone: &[(u32, u32)]) -> Result<(), Error> {
        let texts = |of: fn(&PartitionRow) -> &str| seen.iter().map(|row| of(row)).collect::<Vec<&str>>();
        let ids = |of: fn(&PartitionRow) -> u32| seen.iter().map(|row| of(row)).collect::<Vec<u32>>();
        let (root_schemas, root_names) = (texts(|row| &row.root.0), texts(|row| &row.root.1));
        let (schemas, names) = (texts(|row| &row.partition.0), texts(|row| &row.partition.1));
        let (roots, oids, files) = (ids(|row| row.root_oid), ids(|row| row.oid), ids(|row| row.filenode));
        let bounds = texts(|row| &row.bounds);
        let suspicions: Vec<Option<&str>> =
            seen.iter().map(|row| row.suspicion.map(Suspicion::as_str)).collect();
        let (gone_roots, gone_oids): (Vec<u32>, Vec<u32>) = gone.iter().copied().unzip();
        let sql = "WITH gone AS (DELETE FROM pgsluice.partition p USING unnest($11::oid[], $12::oid[]) AS g (root, oid) \
                                  WHERE p.subscription = $1 AND p.root_oid = g.root AND p.partition_oid = g.oid) \
                   INSERT INTO pgsluice.partition (subscription, root_oid, root_schema, root_name, partition_oid, \
                               partition_schema, partition_name, filenode, bounds, suspicion) \
                   SELECT $1, t.* FROM unnest($2::oid[], $3::text[], $4::text[], $5::oid[], $6::text[], $7::text[], \
                                              $8::oid[], $9::text[], $10::text[]) t \
                   ON CONFLICT (subscription, root_oid, partition_oid) DO UPDATE SET \
                      root_schema = EXCLUDED.root_schema, root_name = EXCLUDED.root_name, \
                      partition_schema = EXCLUDED.partition_schema, partition_name = EXCLUDED.partition_name, \
                      filenode = EXCLUDED.filenode, bounds = EXCLUDED.bounds, suspicion = EXCLUDED.suspicion";
        let parameters: [&(dyn ToSql + Sync); 11] = [
            &roots,
            &root_schemas,
            &root_names,
            &oids,
            &schemas,
            &names,
            &files,
            &bounds,
            &suspicions,
            &gone_roots,
            &gone_oids,
        ];
        self.execute(sql, &parameters).await.map(drop)
    }
}
