//! Partitions of tables that are published as their root, and what else the
//! source has that logical replication does not carry.
//!
//! Which identity counts where (`pgoutput.c`, `heapam.c`, `execReplication.c`, seen on 15 and 18):
//! the server writes old rows to WAL, and decides whether to allow UPDATE and DELETE, by the
//! identity of the *leaf*. It sends the subscriber the identity of the *root*. The server never
//! compares the two.

use serde::Deserialize;
use state::STATE_SCHEMA;

use crate::read::FactReader;

/// A partition with storage below a table that is published as its root.
#[derive(Debug, Deserialize)]
pub(crate) struct Partition {
    /// The root's id.
    pub(crate) root: u32,
    pub(crate) schema: String,
    pub(crate) name: String,
    /// `relkind`: a table, or a foreign one.
    pub(crate) kind: String,
    pub(crate) persistence: String,
    /// REPLICA IDENTITY FULL.
    pub(crate) full: bool,
    /// Columns of its replica identity; empty for FULL and for none.
    pub(crate) identity: Vec<String>,
    /// Columns of its primary key in the index's order, those that it includes as
    /// well: a root's primary key takes in only one that is the same in this.
    pub(crate) primary: Vec<String>,
    /// The leaf's part of each of the root's keys, by the names of both indexes.
    pub(crate) parts: Vec<IndexPart>,
}

/// A leaf's part of a root's index.
#[derive(Debug, Deserialize)]
pub(crate) struct IndexPart {
    pub(crate) root_index: String,
    pub(crate) index: String,
}

/// The identity and keys of a root.
#[derive(Debug, Deserialize)]
pub(crate) struct Root {
    pub(crate) oid: u32,
    /// `relreplident`.
    pub(crate) letter: String,
    /// Unique indexes that may be a replica identity, the primary key first.
    pub(crate) keys: Vec<RootKey>,
    /// Columns that it and the partitioned tables below are partitioned by;
    /// `None` where one is partitioned by an expression.
    pub(crate) partitioned_by: Option<Vec<String>>,
}

/// A unique index.
#[derive(Debug, Deserialize)]
pub(crate) struct RootKey {
    pub(crate) index: String,
    pub(crate) columns: Vec<String>,
    pub(crate) primary: bool,
}

/// A publication that names a partition whose root is published.
#[derive(Debug, Deserialize)]
pub(crate) struct ListedPartition {
    pub(crate) publication: String,
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) root: u32,
    pub(crate) via_root: bool,
    pub(crate) filter: bool,
    pub(crate) list: bool,
}

/// Things of the database that never reach a target, counted.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Uncarried {
    /// Sequences that columns of published tables own.
    pub(crate) owned_sequences: i64,
    pub(crate) materialized_views: Vec<String>,
    /// Extensions with tables whose rows are the extension's state.
    pub(crate) stateful_extensions: Vec<String>,
    /// Foreign keys of unpublished tables to published ones: `table a to b`.
    pub(crate) references: Vec<String>,
    /// Unlogged tables beside published ones, where publications name tables.
    pub(crate) unlogged: Vec<String>,
}

/// Everything that was read for [`crate::checks`].
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    pub(crate) roots: Vec<Root>,
    pub(crate) leaves: Vec<Partition>,
    pub(crate) listed: Vec<ListedPartition>,
}

/// $1 published tables.
const LEAVES: &str = "
SELECT r.oid::int8 AS root, n.nspname::text AS schema, l.relname::text AS name, l.relkind::text AS kind,
       l.relpersistence::text AS persistence, l.relreplident = 'f' AS full,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i
               JOIN pg_catalog.pg_attribute a
                 ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
              WHERE i.indexrelid = pg_catalog.pg_get_replica_identity_index(l.oid) ORDER BY a.attnum) AS identity,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
              WHERE i.indrelid = l.oid AND i.indisprimary
              ORDER BY pg_catalog.array_position(i.indkey::int2[], a.attnum)) AS primary,
       ARRAY(SELECT pg_catalog.jsonb_build_object('root_index', rc.relname, 'index', ic.relname)
               FROM pg_catalog.pg_index i
               JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid AND ic.relispartition
              CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(i.indexrelid) x (relid)
               JOIN pg_catalog.pg_index ri ON ri.indexrelid = x.relid AND ri.indrelid = r.oid
               JOIN pg_catalog.pg_class rc ON rc.oid = ri.indexrelid
              WHERE i.indrelid = l.oid AND i.indisunique AND i.indisvalid) AS parts
  FROM pg_catalog.pg_class r
 CROSS JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) t
  JOIN pg_catalog.pg_class l ON l.oid = t.relid
  JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
 WHERE r.oid = ANY ($1::oid[]) AND r.relkind = 'p' AND t.isleaf AND l.relkind <> 'p' ORDER BY 2, 3";

/// $1 published tables. What ALTER TABLE ... REPLICA IDENTITY USING INDEX asks of an index.
const ROOTS: &str = "
SELECT r.oid::int8 AS oid, r.relreplident::text AS letter,
       ARRAY(SELECT pg_catalog.jsonb_build_object('index', c.relname, 'primary', i.indisprimary, 'columns',
                        ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                               WHERE a.attrelid = i.indrelid
                                 AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) ORDER BY a.attnum))
               FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
              WHERE i.indrelid = r.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
                AND i.indpred IS NULL AND i.indexprs IS NULL
                AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                                 WHERE a.attrelid = r.oid AND NOT a.attnotnull
                                   AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
              ORDER BY i.indisprimary DESC, c.relname) AS keys,
       (SELECT CASE WHEN pg_catalog.bool_or(0 = ANY (k.partattrs::int2[])) THEN NULL
                    ELSE (SELECT pg_catalog.jsonb_agg(DISTINCT a.attname)
                            FROM pg_catalog.pg_partition_tree(r.oid) t
                            JOIN pg_catalog.pg_partitioned_table k ON k.partrelid = t.relid
                            JOIN pg_catalog.pg_attribute a
                              ON a.attrelid = k.partrelid AND a.attnum = ANY (k.partattrs::int2[])) END
          FROM pg_catalog.pg_partition_tree(r.oid) t
          JOIN pg_catalog.pg_partitioned_table k ON k.partrelid = t.relid) AS partitioned_by
  FROM pg_catalog.pg_class r WHERE r.oid = ANY ($1::oid[]) AND r.relkind = 'p'";

/// $1 published tables, $2 publications. Lists and filters came with 15.
fn listed_sql(major: u32) -> String {
    let (filter, list) = match major {
        0..=14 => ("false", "false"),
        _ => ("m.prqual IS NOT NULL", "m.prattrs IS NOT NULL"),
    };
    format!(
        "
SELECT p.pubname::text AS publication, n.nspname::text AS schema, l.relname::text AS name, r.oid::int8 AS root,
       p.pubviaroot AS via_root, COALESCE({filter}, false) AS filter, COALESCE({list}, false) AS list
  FROM pg_catalog.pg_class r
 CROSS JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) t
  JOIN pg_catalog.pg_class l ON l.oid = t.relid AND l.oid <> r.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
 CROSS JOIN pg_catalog.pg_publication p
  LEFT JOIN pg_catalog.pg_publication_rel m ON m.prpubid = p.oid AND m.prrelid = l.oid
 WHERE r.oid = ANY ($1::oid[]) AND r.relkind = 'p' AND p.pubname = ANY ($2::text[])
   AND (m.prrelid IS NOT NULL
        OR NOT p.pubviaroot AND l.oid IN (SELECT o.relid FROM pg_catalog.pg_get_publication_tables(p.pubname::text) o))
 ORDER BY 1, 2, 3"
    )
}

/// $1 published tables, $2 the schema of pgsluice's own state.
const UNCARRIED: &str = "
WITH published AS (
    SELECT o AS relid FROM pg_catalog.unnest($1::oid[]) o UNION
    SELECT p.relid FROM pg_catalog.unnest($1::oid[]) o CROSS JOIN LATERAL pg_catalog.pg_partition_tree(o) p),
own AS (
    SELECT n.oid FROM pg_catalog.pg_namespace n
     WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', $2)
       AND n.nspname NOT LIKE 'pg\\_temp\\_%')
SELECT (SELECT pg_catalog.count(DISTINCT d.objid) FROM pg_catalog.pg_depend d
          JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S'
         WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid
           AND d.deptype IN ('a', 'i') AND d.refobjid IN (SELECT relid FROM published)) AS owned_sequences,
       ARRAY(SELECT pg_catalog.format('%s.%s', n.nspname, c.relname) FROM pg_catalog.pg_class c
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
              WHERE c.relkind = 'm' AND n.oid IN (SELECT oid FROM own) ORDER BY 1) AS materialized_views,
       ARRAY(SELECT e.extname::text FROM pg_catalog.pg_extension e
              WHERE e.extconfig IS NOT NULL ORDER BY 1) AS stateful_extensions,
       ARRAY(SELECT DISTINCT pg_catalog.format('%s.%s to %s.%s', n.nspname, c.relname, rn.nspname, rc.relname)
               FROM pg_catalog.pg_constraint f
               JOIN pg_catalog.pg_class c ON c.oid = f.conrelid
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               JOIN pg_catalog.pg_class rc ON rc.oid = f.confrelid
               JOIN pg_catalog.pg_namespace rn ON rn.oid = rc.relnamespace
              WHERE f.contype = 'f' AND f.conparentid = 0 AND f.confrelid IN (SELECT relid FROM published)
                AND f.conrelid NOT IN (SELECT relid FROM published)
                AND NOT EXISTS (SELECT FROM pg_catalog.pg_partition_tree(f.conrelid) t
                                  JOIN published ON published.relid = t.relid) ORDER BY 1) AS \"references\",
       ARRAY(SELECT pg_catalog.format('%s.%s', n.nspname, c.relname) FROM pg_catalog.pg_class c
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
              WHERE c.relkind = 'r' AND c.relpersistence = 'u' AND c.relnamespace IN (
                    SELECT pc.relnamespace FROM pg_catalog.pg_class pc WHERE pc.oid IN (SELECT relid FROM published))
                AND c.oid NOT IN (SELECT relid FROM published) ORDER BY 1) AS unlogged";

impl Partitions {
    /// Of the published tables `oids`.
    pub(crate) async fn read(
        reader: &mut FactReader<'_>,
        oids: &Vec<u32>,
        publications: &Vec<String>,
    ) -> Result<Partitions, client::Error> {
        let major = reader.session.version().major();
        Ok(Partitions {
            roots: reader.rows("partitioned tables", ROOTS, &[oids]).await?,
            leaves: reader.rows("partitions", LEAVES, &[oids]).await?,
            listed: reader.rows("published partitions", &listed_sql(major), &[oids, publications]).await?,
        })
    }

    /// The leaves of `root`.
    pub(crate) fn of(&self, root: u32) -> impl Iterator<Item = &Partition> {
        self.leaves.iter().filter(move |leaf| leaf.root == root)
    }
}

impl Uncarried {
    /// In the database whose tables `oids` are published.
    pub(crate) async fn read(
        reader: &mut FactReader<'_>,
        oids: &Vec<u32>,
    ) -> Result<Uncarried, client::Error> {
        let read = reader.row("what is not replicated", UNCARRIED, &[oids, &STATE_SCHEMA]).await?;
        Ok(read.unwrap_or_default())
    }
}
