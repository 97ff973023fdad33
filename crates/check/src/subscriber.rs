//! Facts of the target: tables, keys, triggers, rights, pgsluice's state.

use std::collections::{HashMap, HashSet};

use base::Oid;
use serde::Deserialize;
use source::publication::{self, TableName, TargetTable as Described};
use state::queries;
use tokio::sync::oneshot;

use crate::publisher::PARTITIONING;
use crate::read::FactReader;
use crate::server::Server;
use crate::wanted::Wanted;

/// Schema `pgsluice` and this subscription in it, as [`queries::RIGHTS`] reads it.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct SchemaState {
    pub(crate) schema: bool,
    pub(crate) tables: bool,
    /// A schema was brought over.
    pub(crate) has_steps: bool,
    /// CREATE on the database.
    pub(crate) create: bool,
    /// USAGE, or the schema does not exist.
    pub(crate) usage: bool,
    /// CREATE on the schema, or it does not exist.
    pub(crate) create_in_schema: bool,
    /// Tables of schema `pgsluice` that the role may not write.
    pub(crate) forbidden: Vec<String>,
    #[serde(skip)]
    pub(crate) subscription: Option<Subscription>,
    /// A process runs the subscription.
    #[serde(skip)]
    pub(crate) is_running: bool,
}

/// The subscription's lock, as [`queries::running`] reads it.
#[derive(Debug, Deserialize)]
struct Running {
    is_running: bool,
}

/// The subscription's row, as [`queries::SUBSCRIPTION`] reads it.
#[derive(Debug, Deserialize)]
pub(crate) struct Subscription {
    pub(crate) begun: bool,
    pub(crate) enabled: bool,
    pub(crate) source_sysid: String,
    pub(crate) tables: i64,
    pub(crate) unfinished: i64,
}

impl SchemaState {
    /// The subscription exists and will be continued.
    pub(crate) fn is_begun(&self) -> bool {
        self.subscription.as_ref().is_some_and(|subscription| subscription.begun)
    }
}

/// Replication origins of the whole cluster, as [`queries::origins`] reads them.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Origins {
    /// All named origins; an upper bound of those in use.
    pub(crate) named: i64,
    /// Whether the subscription's origin exists.
    pub(crate) ours: bool,
    /// Origins of the subscription, of all workers.
    pub(crate) own: i64,
}

/// An index of a table.
#[derive(Debug, Deserialize)]
pub(crate) struct Index {
    oid: u32,
    pub(crate) name: String,
    /// Key columns; `None` for an expression.
    pub(crate) columns: Vec<Option<String>>,
    pub(crate) unique: bool,
    pub(crate) exclusion: bool,
    /// The primary key or the replica identity.
    pub(crate) identity: bool,
    pub(crate) immediate: bool,
    pub(crate) partial: bool,
    pub(crate) expressions: bool,
    pub(crate) valid: bool,
    /// Whether the index finds a value of its first column.
    pub(crate) searchable: bool,
}

impl Index {
    /// What `apply` takes for a unique key; its `mapping.rs` must agree.
    pub(crate) fn is_key(&self) -> bool {
        self.unique && self.valid && self.immediate && !self.partial && !self.expressions
    }

    /// Its columns' names, in its order.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.columns.iter().flatten().map(String::as_str).collect()
    }
}

/// A column as it matters to a check.
#[derive(Debug, Deserialize)]
pub(crate) struct TargetColumn {
    /// With modifier.
    #[serde(rename = "type")]
    pub(crate) full_type: String,
    pub(crate) has_default: bool,
    pub(crate) bytewise: bool,
    /// Which values are equal is the type's own rule, whatever the collation.
    pub(crate) inherent: bool,
    pub(crate) is_enum: bool,
    pub(crate) labels: Vec<String>,
}

/// What a table of the target is beyond its columns.
#[derive(Debug, Deserialize)]
pub(crate) struct TargetFacts {
    oid: u32,
    pub(crate) kind: String,
    pub(crate) persistence: String,
    pub(crate) usage: bool,
    pub(crate) may_select: bool,
    pub(crate) may_insert: bool,
    pub(crate) may_update: bool,
    pub(crate) may_delete: bool,
    pub(crate) may_truncate: bool,
    /// Policies apply to the role.
    pub(crate) policies: bool,
    /// Triggers that fire for replicas.
    pub(crate) triggers: Vec<String>,
    /// Rules that fire for replicas.
    pub(crate) rules: Vec<String>,
    pub(crate) foreign_keys: Vec<String>,
    /// Storage of it or of a partition is not empty.
    pub(crate) has_pages: bool,
    /// Leaves below a partitioned table.
    pub(crate) leaves: i64,
    pub(crate) partition_key: Option<String>,
    pub(crate) partition_bounds: Vec<String>,
    pub(crate) columns: HashMap<String, TargetColumn>,
    #[serde(skip)]
    pub(crate) indexes: Vec<Index>,
    #[serde(skip)]
    pub(crate) has_rows: bool,
    /// Its keys are created after the copy.
    #[serde(skip)]
    pub(crate) unbuilt: bool,
    /// The columns by which its deletions are remembered, or why they are not; `None` if nobody
    /// asked.
    #[serde(skip)]
    pub(crate) remembered_by: Option<Result<Vec<String>, String>>,
}

/// A table of the target and all that is known of it.
#[derive(Debug)]
pub(crate) struct TargetTable {
    pub(crate) described: Described,
    pub(crate) facts: TargetFacts,
}

/// An enabled native subscription into the same tables.
#[derive(Debug, Deserialize)]
pub(crate) struct NativeSubscription {
    pub(crate) name: String,
    pub(crate) tables: Vec<String>,
}

/// The target.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) server: Option<Server>,
    pub(crate) state: SchemaState,
    pub(crate) origins: Origins,
    /// Origins in use, if that may be known.
    pub(crate) origins_active: Option<i64>,
    /// Functions that the role may not execute, with their arguments.
    pub(crate) forbidden_functions: Vec<String>,
    /// `session_replication_role` can be set.
    pub(crate) replica: bool,
    /// Those that could be read.
    pub(crate) tables: HashMap<TableName, TargetTable>,
    /// Names that exist on the target; `None` if that could not be read.
    pub(crate) existing: Option<HashSet<TableName>>,
    pub(crate) schemas: Vec<String>,
    /// Those of them in which the role may not create.
    pub(crate) closed_schemas: Vec<String>,
    /// Extensions that could be created, or are there.
    pub(crate) extensions: HashSet<String>,
    pub(crate) native: Vec<NativeSubscription>,
    /// Whether a walsender uses the slot that keeps WAL for capture; `None` if there is no such
    /// slot, or nobody asked.
    pub(crate) capture_slot: Option<bool>,
    /// Publications that would publish schema `pgsluice`.
    pub(crate) publishing_state: Vec<String>,
}

/// The name of the subscription's slot: an adopted one keeps its own.
pub(crate) async fn slot_name(target: Option<&client::Session>, wanted: &Wanted) -> String {
    let stored = match target {
        // Without the table, or the right to read it, there is no name: the checks report that.
        Some(target) => state::stored::slot_name(&**target, &wanted.subscription).await.ok().flatten(),
        None => None,
    };
    stored.unwrap_or_else(|| wanted.subscription.slot())
}

/// $1 whether there are several workers. What `apply` (`state.rs`, `executor.rs`) and `operate`
/// (`admin.rs`) call.
const FUNCTIONS: &str = "
SELECT f AS name FROM pg_catalog.unnest(ARRAY[
  'pg_catalog.pg_replication_origin_create(text)', 'pg_catalog.pg_replication_origin_drop(text)',
  'pg_catalog.pg_replication_origin_session_setup(text)',
  'pg_catalog.pg_replication_origin_xact_setup(pg_lsn, timestamptz)',
  'pg_catalog.pg_replication_origin_progress(text, boolean)',
  CASE WHEN $1 THEN 'pg_catalog.pg_replication_origin_session_reset()' END]) f
 WHERE NOT pg_catalog.has_function_privilege(f, 'EXECUTE')";

/// $1 the tables, $2 the states in which triggers and rules fire for us, as in `apply`'s
/// `mapping.rs`; which types are bytewise and inherent must agree with it, too. The base types of
/// domains are found once for all columns, not for each.
fn tables_sql() -> String {
    format!(
        "
WITH RECURSIVE below (oid, base) AS (
    SELECT DISTINCT a.atttypid, a.atttypid FROM pg_catalog.pg_attribute a
     WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT below.oid, t.typbasetype FROM below JOIN pg_catalog.pg_type t ON t.oid = below.base WHERE t.typtype = 'd')
SELECT c.oid::int8 AS oid, c.relkind AS kind, c.relpersistence AS persistence,
       pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE') AS usage,
       pg_catalog.has_table_privilege(c.oid, 'SELECT') AS may_select,
       pg_catalog.has_table_privilege(c.oid, 'INSERT') AS may_insert,
       pg_catalog.has_table_privilege(c.oid, 'UPDATE') AS may_update,
       pg_catalog.has_table_privilege(c.oid, 'DELETE') AS may_delete,
       pg_catalog.has_table_privilege(c.oid, 'TRUNCATE') AS may_truncate,
       c.relkind IN ('r', 'p') AND pg_catalog.row_security_active(c.oid) AS policies,
       ARRAY(SELECT DISTINCT t.tgname::text FROM pg_catalog.pg_trigger t
              WHERE (t.tgrelid = c.oid OR t.tgrelid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p))
                AND t.tgenabled::text = ANY ($2::text[]) AND NOT t.tgisinternal ORDER BY 1) AS triggers,
       ARRAY(SELECT r.rulename::text FROM pg_catalog.pg_rewrite r
              WHERE r.ev_class = c.oid AND r.ev_type <> '1' AND r.ev_enabled::text = ANY ($2::text[]) ORDER BY 1) AS rules,
       ARRAY(SELECT k.conname::text FROM pg_catalog.pg_constraint k
              WHERE k.conrelid = c.oid AND k.contype = 'f' ORDER BY 1) AS foreign_keys,
       EXISTS (SELECT FROM (SELECT c.oid AS relid WHERE c.relkind = 'r' UNION ALL
                            SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p WHERE p.isleaf AND c.relkind = 'p') x
                WHERE pg_catalog.pg_relation_size(x.relid) > 0) AS has_pages,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_partition_tree(c.oid) p
         WHERE p.isleaf AND p.relid <> c.oid) AS leaves,
       {PARTITIONING},
       COALESCE((SELECT pg_catalog.jsonb_object_agg(a.attname, pg_catalog.jsonb_build_object(
                   'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
                   'has_default', a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '' OR t.typdefault IS NOT NULL,
                   'bytewise', b.oid IN (16, 17, 18, 19, 20, 21, 23, 26, 1082, 1083, 1114, 1184, 2950, 3220, 829, 774)
                     OR b.typtype = 'e' OR b.oid IN (1700, 1042) AND a.atttypmod >= 0
                     OR b.oid IN (25, 1043) AND COALESCE((SELECT l.collisdeterministic FROM pg_catalog.pg_collation l
                                                           WHERE l.oid = a.attcollation), false),
                   'inherent', b.oid IN (1700, 700, 701, 1186, 1266, 869, 650, 3802),
                   'is_enum', b.typtype = 'e',
                   'labels', ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = b.oid)))
          FROM pg_catalog.pg_attribute a
          JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
          JOIN below ON below.oid = a.atttypid
          JOIN pg_catalog.pg_type b ON b.oid = below.base AND b.typtype <> 'd'
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '{{}}') AS columns
  FROM pg_catalog.pg_class c WHERE c.oid = ANY ($1::oid[])"
    )
}

/// $1 the tables. Identity first, as `apply` takes them.
const INDEXES: &str = "
SELECT i.indrelid::int8 AS oid, c.relname::text AS name,
       ARRAY(SELECT a.attname::text FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k
               LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k]
              ORDER BY k) AS columns,
       i.indisunique AS unique, i.indisexclusion AS exclusion, i.indisreplident OR i.indisprimary AS identity,
       i.indimmediate AS immediate, i.indpred IS NOT NULL AS partial, i.indexprs IS NOT NULL AS expressions,
       i.indisvalid AND i.indisready AS valid, m.amname IN ('btree', 'hash') AS searchable
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_am m ON m.oid = c.relam
 WHERE i.indrelid = ANY ($1::oid[])
 ORDER BY i.indrelid, i.indisreplident DESC, i.indisprimary DESC, i.indexrelid";

/// $1 the tables.
const NATIVE: &str = "
SELECT s.subname::text AS name, pg_catalog.array_agg(pg_catalog.format('%s.%s', n.nspname, c.relname) ORDER BY 1) AS tables
  FROM pg_catalog.pg_subscription_rel r
  JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
  JOIN pg_catalog.pg_class c ON c.oid = r.srrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE r.srrelid = ANY ($1::oid[]) AND s.subenabled GROUP BY s.subname ORDER BY 1";

const EXTENSIONS: &str = "SELECT a.name::text AS name FROM pg_catalog.pg_available_extensions a";

const SCHEMAS: &str = "
SELECT n.nspname::text AS name, pg_catalog.has_schema_privilege(n.oid, 'CREATE') AS open
  FROM pg_catalog.pg_namespace n";

#[derive(Deserialize)]
struct Schema {
    name: String,
    open: bool,
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

/// $1 its name.
const CAPTURE_SLOT: &str = "
SELECT s.active FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::text";

#[derive(Deserialize)]
struct Active {
    active: bool,
}

#[derive(Deserialize)]
struct Count {
    count: i64,
}

/// Tables looked into by one statement; bounds its length.
const CHUNK: usize = 200;

impl Subscriber {
    /// `published` names the tables, once the source has told them.
    pub(crate) async fn read(
        reader: &mut FactReader<'_>,
        wanted: &Wanted,
        published: oneshot::Receiver<Vec<TableName>>,
    ) -> Result<Subscriber, client::Error> {
        let server = Server::read(reader).await?;
        let mut state: SchemaState =
            reader.row("schema pgsluice", queries::RIGHTS, &[]).await?.unwrap_or_default();
        let name = wanted.subscription.as_str();
        if state.tables && state.usage && state.forbidden.is_empty() {
            state.subscription = reader.row("pgsluice.subscription", queries::SUBSCRIPTION, &[&name]).await?;
        }
        let running: Option<Running> = reader.row("locks", &queries::running(), &[&name]).await?;
        state.is_running = running.is_some_and(|running| running.is_running);
        let origin = wanted.subscription.origin(0);
        let origins = reader
            .row("replication origins", &queries::origins(), &[&origin, &name])
            .await?
            .unwrap_or_default();
        let forbidden: Vec<Name> =
            reader.rows("replication origin functions", FUNCTIONS, &[&(wanted.apply_sessions > 1)]).await?;
        let replica = may_be_replica(reader).await;
        // Without a source there is none to ask about.
        let names = published.await.unwrap_or_default();
        let described = match publication::target_tables(reader.session, &names).await {
            Ok(described) => Some(described),
            Err(error) => {
                reader.not_told("tables", &error.to_string());
                None
            }
        };
        let existing = described.as_ref().map(|described| described.keys().cloned().collect());
        let mut tables = tables(reader, described.unwrap_or_default(), replica).await?;
        let steps: Option<Count> = match state.has_steps && state.usage {
            true => reader.row("pgsluice.schema_step", queries::UNBUILT, &[&name]).await?,
            false => None,
        };
        let unbuilt = steps.is_some_and(|steps| steps.count > 0);
        tables.values_mut().for_each(|table| table.facts.unbuilt = unbuilt);
        let mut capture_slot: Option<Active> = None;
        if wanted.retain_dead_tuples {
            look_at_identities(reader, &mut tables).await;
            let slot = retention::slot_of(&wanted.subscription);
            capture_slot = reader.row("replication slots", CAPTURE_SLOT, &[&slot]).await?;
        }
        let oids: Vec<u32> = tables.values().map(|table| table.described.oid.0).collect();
        let schemas: Vec<Schema> = reader.rows("schemas", SCHEMAS, &[]).await?;
        let closed = schemas.iter().filter(|schema| !schema.open).map(|schema| schema.name.clone()).collect();
        let all = "SELECT pubname::text AS name FROM pg_catalog.pg_publication WHERE puballtables ORDER BY 1";
        // Files on the server's disk, one by one: only where it matters.
        let extensions: Vec<Name> = match wanted.create_schema {
            Some(_) => reader.rows("extensions", EXTENSIONS, &[]).await?,
            None => Vec::new(),
        };
        let publishing: Vec<Name> = reader.rows("publications", all, &[]).await?;
        let text = |names: Vec<Name>| names.into_iter().map(|row| row.name).collect();
        Ok(Subscriber {
            server,
            state,
            origins,
            origins_active: active_origins(reader).await,
            forbidden_functions: text(forbidden),
            replica,
            tables,
            existing,
            schemas: schemas.into_iter().map(|schema| schema.name).collect(),
            closed_schemas: closed,
            extensions: extensions.into_iter().map(|row| row.name).collect(),
            native: reader.rows("subscriptions", NATIVE, &[&oids]).await?,
            capture_slot: capture_slot.map(|slot| slot.active),
            publishing_state: text(publishing),
        })
    }
}

/// Tried by SET, because services grant the right in ways of their own.
async fn may_be_replica(reader: &FactReader<'_>) -> bool {
    let session = reader.session;
    let set = session.batch_execute("BEGIN; SET LOCAL session_replication_role = replica; ROLLBACK").await;
    if set.is_err() {
        // A failed transaction only; a lost session shows by the next question.
        let _ = session.batch_execute("ROLLBACK").await;
    }
    set.is_ok()
}

/// `None` if the role may not read it: then all named origins count.
async fn active_origins(reader: &FactReader<'_>) -> Option<i64> {
    let sql = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_origin_status";
    reader.session.query_one(sql, &[]).await.ok().map(|row| row.get(0))
}

async fn tables(
    reader: &mut FactReader<'_>,
    described: HashMap<TableName, Described>,
    replica: bool,
) -> Result<HashMap<TableName, TargetTable>, client::Error> {
    let oids: Vec<u32> = described.values().map(|table| table.oid.0).collect();
    let fires = if replica { ["A", "R"] } else { ["A", "O"] }.map(str::to_owned).to_vec();
    let facts: Vec<TargetFacts> = reader.rows("tables", &tables_sql(), &[&oids, &fires]).await?;
    let mut facts: HashMap<u32, TargetFacts> = facts.into_iter().map(|facts| (facts.oid, facts)).collect();
    for index in reader.rows::<Index>("indexes", INDEXES, &[&oids]).await? {
        if let Some(table) = facts.get_mut(&index.oid) {
            table.indexes.push(index);
        }
    }
    let mut tables: HashMap<TableName, TargetTable> = described
        .into_iter()
        .filter_map(|(name, described)| {
            let facts = facts.remove(&described.oid.0)?;
            Some((name, TargetTable { described, facts }))
        })
        .collect();
    look_for_rows(reader, &mut tables).await?;
    Ok(tables)
}

/// By which columns deletions are remembered.
async fn look_at_identities(reader: &mut FactReader<'_>, tables: &mut HashMap<TableName, TargetTable>) {
    let oids: Vec<Oid> = tables.values().map(|table| table.described.oid).collect();
    match retention::identities(reader.session, &oids).await {
        Ok(mut identities) => {
            for table in tables.values_mut() {
                table.facts.remembered_by = identities.remove(&table.described.oid);
            }
        }
        // A lost session shows by the next question.
        Err(error) => reader.not_told("replica identities", &base::with_causes(&error)),
    }
}

/// Only where there are pages: an empty file needs no look.
async fn look_for_rows(
    reader: &mut FactReader<'_>,
    tables: &mut HashMap<TableName, TargetTable>,
) -> Result<(), client::Error> {
    let may_hold = |table: &&mut TargetTable| {
        table.facts.has_pages && table.facts.may_select && table.facts.usage && !table.facts.policies
    };
    let mut candidates: Vec<&mut TargetTable> = tables.values_mut().filter(may_hold).collect();
    for chunk in candidates.chunks_mut(CHUNK) {
        let looks: Vec<String> = chunk
            .iter()
            .enumerate()
            .map(|(position, table)| {
                let only = if table.facts.kind == "p" { "" } else { "ONLY " };
                let name = table.described.name.quoted();
                format!("SELECT {position} AS count WHERE EXISTS (SELECT FROM {only}{name})")
            })
            .collect();
        for found in reader.rows::<Count>("rows of tables", &looks.join(" UNION ALL "), &[]).await? {
            if let Some(table) = usize::try_from(found.count).ok().and_then(|at| chunk.get_mut(at)) {
                table.facts.has_rows = true;
            }
        }
    }
    Ok(())
}
