//! Facts of the source: publications, tables, slots, transactions.

use std::collections::HashMap;

use base::Oid;
use schema::PgDump;
use serde::Deserialize;
use source::publication::{self, PublishedTable, TableName};
use source::slot::{self, SlotState};
use state::STATE_SCHEMA;
use tokio::sync::oneshot;

use crate::archive::Archive;
use crate::partitions::{Partitions, Uncarried};
use crate::read::FactReader;
use crate::server::Server;
use crate::wanted::Wanted;

/// A publication that is wanted and exists.
#[derive(Debug, Deserialize)]
pub(crate) struct Publication {
    pub(crate) name: String,
    pub(crate) all_tables: bool,
    pub(crate) insert: bool,
    pub(crate) update: bool,
    pub(crate) delete: bool,
    pub(crate) truncate: bool,
    pub(crate) via_root: bool,
}

/// Facts of a published table that the stream does not carry.
#[derive(Debug, Deserialize)]
pub(crate) struct SourceFacts {
    oid: u32,
    /// The role may look into its schema.
    pub(crate) usage: bool,
    /// Columns that the role may not read.
    pub(crate) unreadable: Vec<String>,
    /// Policies apply to the role.
    pub(crate) policies: bool,
    /// Columns of the replica identity; empty for FULL and for none.
    pub(crate) identity: Vec<String>,
    /// Leaves, or the table itself, that have no replica identity.
    pub(crate) without_identity: Vec<Leaf>,
    /// Columns that its row filters look at.
    pub(crate) filtered_by: Vec<String>,
    /// Full types by column.
    pub(crate) types: HashMap<String, String>,
    /// Labels of enum columns.
    pub(crate) labels: HashMap<String, Vec<String>>,
    /// Columns that the source computes.
    pub(crate) generated: Vec<String>,
    pub(crate) partition_key: Option<String>,
    pub(crate) partition_bounds: Vec<String>,
}

/// A table with storage.
#[derive(Debug, Deserialize)]
pub(crate) struct Leaf {
    pub(crate) schema: String,
    pub(crate) name: String,
}

/// A published table and all that is known of it.
#[derive(Debug)]
pub(crate) struct SourceTable {
    pub(crate) published: PublishedTable,
    pub(crate) facts: SourceFacts,
}

/// A relation that looks published but is not.
#[derive(Debug, Deserialize)]
pub(crate) struct Unpublished {
    pub(crate) name: String,
    pub(crate) kind: String,
}

/// A transaction that a new slot waits for.
#[derive(Debug, Deserialize)]
pub(crate) struct Running {
    pub(crate) pid: i32,
    pub(crate) role: Option<String>,
    /// Unknown of other roles' sessions.
    pub(crate) seconds: Option<f64>,
}

/// A prepared transaction.
#[derive(Debug, Deserialize)]
pub(crate) struct Prepared {
    pub(crate) gid: String,
    pub(crate) database: String,
}

/// A published column whose values only the server can render.
#[derive(Debug)]
pub(crate) struct Undecoded {
    pub(crate) table: String,
    pub(crate) column: String,
    pub(crate) type_name: String,
    pub(crate) reason: &'static str,
}

/// A base type that a column is made of.
#[derive(Debug, Deserialize)]
struct MadeOf {
    relation: u32,
    column: String,
    base: u32,
    name: String,
}

/// Through domains, arrays, ranges and composites.
const MADE_OF: &str = "
WITH RECURSIVE made_of (relation, attname, typid, depth) AS (
    SELECT a.attrelid, a.attname, a.atttypid, 0 FROM pg_catalog.pg_attribute a
     WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
     UNION
    SELECT m.relation, m.attname, x.typid, m.depth + 1
      FROM made_of m JOIN pg_catalog.pg_type t ON t.oid = m.typid
     CROSS JOIN LATERAL (
           SELECT t.typbasetype WHERE t.typtype = 'd' UNION ALL
           SELECT t.typelem WHERE t.typelem <> 0 AND t.typcategory = 'A' UNION ALL
           SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid) UNION ALL
           SELECT c.atttypid FROM pg_catalog.pg_attribute c
            WHERE t.typtype = 'c' AND c.attrelid = t.typrelid AND c.attnum > 0 AND NOT c.attisdropped) x (typid)
     WHERE m.depth < 16)
SELECT DISTINCT m.relation::int8 AS relation, m.attname::text AS column, t.oid::int8 AS base,
       pg_catalog.format_type(t.oid, NULL) AS name
  FROM made_of m JOIN pg_catalog.pg_type t ON t.oid = m.typid
 WHERE t.typtype = 'b' AND NOT (t.typelem <> 0 AND t.typcategory = 'A') ORDER BY 1, 2, 3";

/// The amount that the source writes, by its own counters.
#[derive(Debug, Deserialize)]
pub(crate) struct Load {
    /// The time that the counters cover.
    pub(crate) seconds: f64,
    pub(crate) wal_bytes: f64,
    /// Changed rows in all databases; below, those of the published tables.
    pub(crate) rows: f64,
    pub(crate) published_rows: f64,
    /// Without the subscription's own slot.
    pub(crate) logical_slots: i64,
}

/// $1 the tables, $2 our slot.
const LOAD: &str = "
SELECT EXTRACT(epoch FROM pg_catalog.clock_timestamp() - w.stats_reset)::float8 AS seconds, w.wal_bytes::float8 AS wal_bytes,
       (SELECT COALESCE(pg_catalog.sum(d.tup_inserted + d.tup_updated + d.tup_deleted), 0)::float8
          FROM pg_catalog.pg_stat_database d) AS rows,
       (SELECT COALESCE(pg_catalog.sum(t.n_tup_ins + t.n_tup_upd + t.n_tup_del), 0)::float8
          FROM pg_catalog.pg_stat_all_tables t
         WHERE t.relid IN (SELECT o FROM pg_catalog.unnest($1::oid[]) o UNION
                           SELECT p.relid FROM pg_catalog.unnest($1::oid[]) o
                            CROSS JOIN LATERAL pg_catalog.pg_partition_tree(o) p)) AS published_rows,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots s
         WHERE s.slot_type = 'logical' AND NOT s.temporary AND s.slot_name <> $2) AS logical_slots
  FROM pg_catalog.pg_stat_wal w";

/// The source.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) server: Option<Server>,
    /// The `pg_dump` that would read the schema; `None` if nobody asked for it.
    pub(crate) pg_dump: Option<Result<PgDump, schema::Error>>,
    /// Extensions of its database.
    pub(crate) extensions: Vec<Extension>,
    pub(crate) publications: Vec<Publication>,
    /// Wanted publications that do not exist.
    pub(crate) missing: Vec<String>,
    pub(crate) tables: Vec<SourceTable>,
    /// Whether `tables` is complete.
    pub(crate) tables_read: bool,
    /// Why the tables cannot be published together.
    pub(crate) contradiction: Option<String>,
    pub(crate) unpublished: Vec<Unpublished>,
    /// What keeps WAL from being decoded outside the server.
    pub(crate) undecoded: Vec<Undecoded>,
    pub(crate) load: Option<Load>,
    /// Partitions of tables that are published as a root.
    pub(crate) partitions: Partitions,
    pub(crate) uncarried: Uncarried,
    pub(crate) sequences: i64,
    /// At most 1000, which is enough to say so.
    pub(crate) large_objects: i64,
    pub(crate) slot_name: String,
    pub(crate) slot: Option<SlotState>,
    /// Slots of the standbys that must have WAL first, by name.
    pub(crate) standby_slots: Vec<(String, Option<SlotState>)>,
    /// The archive that is followed instead of a stream.
    pub(crate) archive: Option<Archive>,
    pub(crate) running: Vec<Running>,
    pub(crate) prepared: Vec<Prepared>,
}

const PUBLICATIONS: &str = "
SELECT p.pubname::text AS name, p.puballtables AS all_tables, p.pubinsert AS insert, p.pubupdate AS update,
       p.pubdelete AS delete, p.pubtruncate AS truncate, p.pubviaroot AS via_root
  FROM pg_catalog.pg_publication p WHERE p.pubname = ANY ($1::text[]) ORDER BY 1";

/// $1 the tables, $2 the publications. The first copy falls back to a
/// partitioned root where a leaf may not be read, so only the root counts.
fn tables_sql(major: u32) -> String {
    // Row filters came with 15. The node tree names columns by number.
    let filtered_by = match major {
        0..=14 => "ARRAY[]::text[]",
        _ => {
            "ARRAY(SELECT DISTINCT a.attname::text
               FROM pg_catalog.pg_publication_rel pr
               JOIN pg_catalog.pg_publication p ON p.oid = pr.prpubid AND p.pubname = ANY ($2::text[])
              CROSS JOIN LATERAL pg_catalog.regexp_matches(pr.prqual::text, ':varattno (\\d+)', 'g') AS m (number)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = pr.prrelid AND a.attnum = m.number[1]::int2
              WHERE pr.prrelid = c.oid)"
        }
    };
    format!(
        "
SELECT c.oid::int8 AS oid, pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE') AS usage,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')) AS unreadable,
       pg_catalog.row_security_active(c.oid) AS policies,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i
               JOIN pg_catalog.pg_attribute a
                 ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
              WHERE i.indexrelid = pg_catalog.pg_get_replica_identity_index(c.oid) ORDER BY a.attnum) AS identity,
       ARRAY(SELECT pg_catalog.jsonb_build_object('schema', n.nspname, 'name', l.relname) FROM (
                 SELECT c.oid AS relid WHERE c.relkind <> 'p' UNION ALL
                 SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t WHERE t.isleaf AND c.relkind = 'p') x
               JOIN pg_catalog.pg_class l ON l.oid = x.relid AND l.relkind = 'r'
               JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
              WHERE l.relreplident <> 'f' AND pg_catalog.pg_get_replica_identity_index(l.oid) IS NULL
              ORDER BY n.nspname, l.relname) AS without_identity,
       {filtered_by} AS filtered_by,
       COALESCE((SELECT pg_catalog.jsonb_object_agg(a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod))
                   FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '{{}}') AS types,
       COALESCE((SELECT pg_catalog.jsonb_object_agg(a.attname, (SELECT pg_catalog.jsonb_agg(e.enumlabel)
                                                                  FROM pg_catalog.pg_enum e WHERE e.enumtypid = a.atttypid))
                   FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid AND t.typtype = 'e'
                  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                    AND EXISTS (SELECT FROM pg_catalog.pg_enum e WHERE e.enumtypid = a.atttypid)), '{{}}') AS labels,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attgenerated <> '' ORDER BY a.attnum) AS generated,
       {PARTITIONING}
  FROM pg_catalog.pg_class c WHERE c.oid = ANY ($1::oid[]) AND $2::text[] IS NOT NULL"
    )
}

/// How a table `c` is partitioned; the same question at both ends.
pub(crate) const PARTITIONING: &str = "
       pg_catalog.pg_get_partkeydef(c.oid) AS partition_key,
       ARRAY(SELECT pg_catalog.pg_get_expr(l.relpartbound, l.oid) FROM pg_catalog.pg_inherits i
               JOIN pg_catalog.pg_class l ON l.oid = i.inhrelid WHERE i.inhparent = c.oid AND c.relkind = 'p'
              ORDER BY 1) AS partition_bounds";

/// $1 the publications. FOR TABLES IN SCHEMA came with 15.
fn unpublished_sql(major: u32) -> String {
    let in_schema = match major {
        0..=14 => "false",
        _ => {
            "n.oid IN (SELECT s.pnnspid FROM pg_catalog.pg_publication_namespace s
                       JOIN pg_catalog.pg_publication p ON p.oid = s.pnpubid WHERE p.pubname = ANY ($1::text[]))"
        }
    };
    format!(
        "
SELECT pg_catalog.format('%s.%s', n.nspname, c.relname) AS name,
       CASE WHEN c.relkind = 'f' THEN 'foreign' WHEN c.relpersistence = 'u' THEN 'unlogged' ELSE 'temporary' END AS kind
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE (c.relkind = 'f' OR c.relkind IN ('r', 'p') AND c.relpersistence IN ('u', 't'))
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', '{STATE_SCHEMA}')
   AND ({in_schema} OR EXISTS (SELECT FROM pg_catalog.pg_publication p
                                WHERE p.pubname = ANY ($1::text[]) AND p.puballtables))
 ORDER BY 1"
    )
}

const COUNTS: &str = "
SELECT (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class c
         WHERE c.relkind = 'S' AND c.relpersistence = 'p'
           AND c.relnamespace NOT IN (SELECT n.oid FROM pg_catalog.pg_namespace n
                                       WHERE n.nspname IN ('pg_catalog', 'information_schema'))) AS sequences,
       (SELECT pg_catalog.count(*) FROM (SELECT FROM pg_catalog.pg_largeobject_metadata LIMIT 1000) l) AS large_objects";

#[derive(Deserialize)]
struct Counts {
    sequences: i64,
    large_objects: i64,
}

/// Every role may see locks; only some may see what another role's session does. Prepared
/// transactions hold theirs without a session.
const RUNNING: &str = "
SELECT l.pid, s.usename::text AS role, EXTRACT(epoch FROM pg_catalog.clock_timestamp() - s.xact_start)::float8 AS seconds
  FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity s ON s.pid = l.pid
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS NOT NULL
 ORDER BY 3 DESC NULLS LAST, 1";

const PREPARED: &str =
    "SELECT p.gid, p.database::text AS database FROM pg_catalog.pg_prepared_xacts p ORDER BY p.prepared";

/// An extension, by its name.
#[derive(Debug, Deserialize)]
pub(crate) struct Extension {
    pub(crate) name: String,
}

const EXTENSIONS: &str = "SELECT e.extname::text AS name FROM pg_catalog.pg_extension e ORDER BY 1";

impl Publisher {
    /// `slot` is the name of the subscription's slot. The names of the published tables are told as
    /// soon as they are known.
    pub(crate) async fn read(
        reader: &mut FactReader<'_>,
        wanted: &Wanted,
        slot: String,
        tell_tables: oneshot::Sender<Vec<TableName>>,
    ) -> Result<Publisher, client::Error> {
        let names = &wanted.publications;
        let major = reader.session.version().major();
        let server = Server::read(reader).await?;
        let publications: Vec<Publication> = reader.rows("publications", PUBLICATIONS, &[names]).await?;
        let there = |name: &&String| publications.iter().any(|found| found.name == **name);
        let (found, missing): (Vec<&String>, Vec<&String>) = names.iter().partition(there);
        let found: Vec<String> = found.into_iter().cloned().collect();
        let missing = missing.into_iter().cloned().collect();
        let (published, contradiction) = inspect(reader, &found).await;
        let oids: Vec<u32> = published.iter().flatten().map(|table| table.oid.0).collect();
        let facts: Vec<SourceFacts> =
            reader.rows("published tables", &tables_sql(major), &[&oids, &found]).await?;
        let mut facts: HashMap<u32, SourceFacts> =
            facts.into_iter().map(|facts| (facts.oid, facts)).collect();
        let tables_read = published.is_some() && facts.len() == oids.len();
        let with_facts = |published: PublishedTable| {
            let facts = facts.remove(&published.oid.0)?;
            Some(SourceTable { published, facts })
        };
        let tables: Vec<SourceTable> = published.into_iter().flatten().filter_map(with_facts).collect();
        // There may be no target to ask.
        let _ = tell_tables.send(tables.iter().map(|table| table.published.name.clone()).collect());
        let made_of: Vec<MadeOf> = reader.rows("types of published columns", MADE_OF, &[&oids]).await?;
        let undecoded = made_of.into_iter().filter_map(|own| undecoded(own, &tables)).collect();
        let load = reader.row("statistics of WAL", LOAD, &[&oids, &slot]).await?;
        let unpublished = reader.rows("unpublished tables", &unpublished_sql(major), &[names]).await?;
        let counts: Option<Counts> = reader.row("sequences and large objects", COUNTS, &[]).await?;
        let state = slot::slot_state(reader.session, &slot).await;
        let mut standby_slots = Vec::new();
        for name in &wanted.standby_slots {
            if let Ok(found) = slot::slot_state(reader.session, name).await {
                standby_slots.push((name.clone(), found));
            }
        }
        let archive = match wanted.followed_archive() {
            Some(dir) => Some(Archive::read(reader, dir).await?),
            None => None,
        };
        Ok(Publisher {
            server,
            pg_dump: None,
            extensions: reader.rows("extensions", EXTENSIONS, &[]).await?,
            publications,
            missing,
            tables,
            tables_read,
            contradiction,
            unpublished,
            undecoded,
            load,
            partitions: Partitions::read(reader, &oids, &found).await?,
            uncarried: Uncarried::read(reader, &oids).await?,
            sequences: counts.as_ref().map_or(0, |counts| counts.sequences),
            large_objects: counts.as_ref().map_or(0, |counts| counts.large_objects),
            slot_name: slot,
            slot: state.ok().flatten(),
            standby_slots,
            archive,
            running: reader.rows("running transactions", RUNNING, &[]).await?,
            prepared: reader.rows("prepared transactions", PREPARED, &[]).await?,
        })
    }

    /// Whether any publication of `table` publishes this.
    pub(crate) fn publishes(&self, table: &PublishedTable, action: fn(&Publication) -> bool) -> bool {
        self.publications.iter().any(|own| table.publications.contains(&own.name) && action(own))
    }

    /// Whether old rows of `table` must be found.
    pub(crate) fn publishes_old_rows(&self, table: &PublishedTable) -> bool {
        self.publishes(table, |publication| publication.update || publication.delete)
    }
}

/// A column that is published and not rendered here.
fn undecoded(made_of: MadeOf, tables: &[SourceTable]) -> Option<Undecoded> {
    let reason = types::refused_base(Oid(made_of.base))?;
    let table = tables.iter().find(|table| table.published.oid.0 == made_of.relation)?;
    let is_published = table.published.columns.iter().any(|column| column.name == made_of.column);
    let MadeOf { column, name, .. } = made_of;
    is_published.then(|| Undecoded {
        table: table.published.name.to_string(),
        column,
        type_name: name,
        reason,
    })
}

/// The tables as the stream will have them, unless they could not be read; and
/// why there is no such stream.
async fn inspect(
    reader: &mut FactReader<'_>,
    publications: &[String],
) -> (Option<Vec<PublishedTable>>, Option<String>) {
    if publications.is_empty() {
        return (Some(Vec::new()), None);
    }
    match publication::inspect(reader.session, publications).await {
        Ok(tables) => (Some(tables), None),
        Err(error) if error.is_configuration() => (None, Some(error.to_string())),
        // A lost session shows by the next question.
        Err(error) => {
            reader.not_told("publications", &error.to_string());
            (None, None)
        }
    }
}
