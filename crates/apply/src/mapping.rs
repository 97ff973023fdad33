//! What the target's catalogs say about a table, and which tables have joined.
//!
//! [`Mappings`] takes relations as the source describes them, and returns their mapping, which it
//! reads from the target once for each description. It keeps a mapping until one of these happens:
//!
//! - the source describes the relation anew;
//! - the table's columns, indexes, triggers or rules were seen to change ([`crate::sizes`]);
//! - the applier starts again.
//!
//! After a failed chunk it reads everything again, because a change of the target's tables may be
//! the reason.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use base::{Lsn, Oid, PgTimestamp, SubscriptionName, Xid};
use client::Session;
use plan::{Bounds, Holder, MappingError, Table, TargetColumn, TargetTable, UniqueKey, display_name};
use proto::pgoutput::{Relation, RelationColumn};
use rustc_hash::FxHashMap;
use state::{CopiedFrom, JoinedTables, LEAVE_OUT, Parting, STATE_SCHEMA, Since, TableKey};

use crate::applier::SourceTypes;
use crate::error::{Error, Kind};
use crate::join::Role;

/// The part that a relation of the stream plays here.
#[derive(Clone)]
enum Known {
    /// It takes part, with the transactions that its copy lacks.
    Joined(Arc<Table>, Since),
    /// It is joining under this name on the target; or the reason why it cannot.
    Joining(TableKey, Result<Arc<Table>, String>),
    /// Its name and its relation belong to these tables no longer. Each is left out if its copy
    /// lacks the coming change.
    Replaced(Vec<(TableKey, Parting, Since)>),
    /// It takes no part: it was published after the subscription was made.
    Unknown,
}

pub(crate) struct Mappings {
    session: Session,
    joined: JoinedTables,
    joining: HashSet<TableKey>,
    /// The source relations of tables that have joined or are joining.
    pub(crate) copied_from: CopiedFrom,
    /// Tables that were left out during this stream; the reason was reported.
    left_out: HashSet<TableKey>,
    /// Keyed by the source's relation id. The description tells whether the entry is of the same
    /// version.
    known: FxHashMap<Oid, (Arc<Relation>, Known)>,
    mapped: u64,
    /// Whether ordinary triggers fire, because sessions may not be replicas.
    ordinary_triggers: bool,
    /// The backend that is asked at present; 0 for none.
    pub(crate) asked: Arc<AtomicI32>,
    /// See [`crate::Options::types`].
    pub(crate) types: Option<Arc<SourceTypes>>,
    /// Set when a table of the target no longer matches its mapping.
    pub(crate) changed: Arc<AtomicBool>,
    /// The subscription, if a rule for conflicts depends on who wrote a row last.
    pub(crate) tells_writers: Option<SubscriptionName>,
}

impl Mappings {
    pub(crate) fn new(session: Session, joined: JoinedTables, ordinary_triggers: bool) -> Self {
        Mappings {
            session,
            joined,
            joining: HashSet::new(),
            copied_from: CopiedFrom::default(),
            left_out: HashSet::new(),
            known: FxHashMap::default(),
            mapped: 0,
            ordinary_triggers,
            asked: Arc::default(),
            types: None,
            changed: Arc::default(),
            tells_writers: None,
        }
    }

    /// Waits until the session has ended, and returns the reason.
    pub(crate) fn lost(&self) -> impl Future<Output = Error> + Send + 'static {
        let ended = self.session.ended();
        async move { ended.await.into() }
    }

    /// From now on the changes of `table`, which is this relation of the source, are put aside.
    pub(crate) fn begin_join(&mut self, table: TableKey, oid: Oid) {
        self.forget(&table);
        // The relation may have come under other names before.
        self.known.remove(&oid);
        self.copied_from.insert(table.clone(), oid);
        self.joining.insert(table);
    }

    /// Lets `table` take part.
    pub(crate) fn join(&mut self, table: TableKey, since: Since) {
        let oid = self.copied_from.oid(&table);
        self.forget(&table);
        if let Some(oid) = oid {
            self.copied_from.insert(table.clone(), oid);
        }
        self.joined.insert(table, since);
    }

    /// Stops `table` from taking part.
    pub(crate) fn forget(&mut self, table: &TableKey) {
        self.joining.remove(table);
        self.joined.remove(table);
        self.left_out.remove(table);
        let oid = self.copied_from.remove(table);
        let is_its = |id: Oid, relation: &Relation| {
            Some(id) == oid || relation.namespace == table.0 && relation.name == table.1
        };
        self.known.retain(|id, (relation, _)| !is_its(*id, relation));
    }

    /// Stops `table` from taking part, and records that on the target.
    pub(crate) async fn leave_out(
        &mut self,
        subscription: &SubscriptionName,
        table: &TableKey,
        why: &Parting,
    ) -> Result<(), Error> {
        self.asked.store(self.session.pid(), Ordering::Relaxed);
        let (name, text) = (subscription.as_str(), why.to_string());
        let done = self.session.execute(LEAVE_OUT, &[&name, &table.0, &table.1, &text]).await;
        done.map_err(|error| self.session.error(error))?;
        self.asked.store(0, Ordering::Relaxed);
        tracing::warn!(
            %subscription,
            "table \"{}.{}\" is left out: {why}; pgsluice applies nothing more to it",
            table.0,
            table.1
        );
        self.forget(table);
        self.left_out.insert(table.clone());
        Ok(())
    }

    /// Returns the mapping of `relation` for the transaction `xid`, which committed at `final_lsn`.
    pub(crate) async fn resolve(
        &mut self,
        relation: &Arc<Relation>,
        (final_lsn, xid): (Lsn, Xid),
    ) -> Result<Role, Error> {
        if self.changed.swap(false, Ordering::Relaxed) {
            self.known.clear();
        }
        let known = match self.known.get(&relation.id) {
            Some((described, known)) if Arc::ptr_eq(described, relation) => known.clone(),
            _ => self.read(relation).await?,
        };
        Ok(match known {
            Known::Joined(table, since) if since.includes(final_lsn, xid) => Role::Joined(table),
            Known::Joining(key, table) => Role::Joining(key, table),
            Known::Replaced(parted) => {
                let is_new = |(_, _, since): &(TableKey, Parting, Since)| since.includes(final_lsn, xid);
                let parted: Vec<_> =
                    parted.into_iter().filter(is_new).map(|(key, why, _)| (key, why)).collect();
                if parted.is_empty() { Role::None } else { Role::Replaced(parted) }
            }
            _ => Role::None,
        })
    }

    async fn read(&mut self, relation: &Arc<Relation>) -> Result<Known, Error> {
        let name = (relation.namespace.clone(), relation.name.clone());
        let copied_to = self.copied_from.table(relation.id).cloned();
        let known = match copied_to.filter(|key| self.joining.contains(key)) {
            Some(key) => Known::Joining(key.clone(), self.map_joining(relation, key).await?),
            // Another relation has, or had, the name of a table that joins.
            None if self.joining.contains(&name) => Known::Unknown,
            None => {
                let parted = self.parted(relation.id, &name);
                match self.joined.get(&name).cloned() {
                    _ if !parted.is_empty() => Known::Replaced(parted),
                    Some(since) => Known::Joined(self.map(relation).await?, since),
                    None => {
                        if name.0 != STATE_SCHEMA && !self.left_out.contains(&name) {
                            tracing::info!(
                                table = %display_name(relation),
                                "a table was added to the publication and is not replicated yet"
                            );
                        }
                        Known::Unknown
                    }
                }
            }
        };
        self.known.insert(relation.id, (Arc::clone(relation), known.clone()));
        Ok(known)
    }

    /// Tables whose name and source relation have parted: the name is this relation's, or the
    /// relation has another name now.
    fn parted(&mut self, oid: Oid, name: &TableKey) -> Vec<(TableKey, Parting, Since)> {
        let mut parted = Vec::new();
        if let Some(since) = self.joined.get(name) {
            match self.copied_from.oid(name) {
                // Nothing is known of the copied relation, so the first one under this name counts
                // as it.
                None => self.copied_from.insert(name.clone(), oid),
                Some(was) if was != oid => {
                    let why = Parting::Taken { was, now: oid, moved_to: None };
                    parted.push((name.clone(), why, since.clone()));
                }
                Some(_) => {}
            }
        }
        if let Some(key) = self.copied_from.table(oid).filter(|key| *key != name)
            && let Some(since) = self.joined.get(key)
        {
            parted.push((key.clone(), Parting::Moved { was: oid, to: name.clone() }, since.clone()));
        }
        parted
    }

    /// [`Mappings::map`] for a table that joins as `key`; `relation` may have had another name in
    /// the stream.
    async fn map_joining(
        &mut self,
        relation: &Arc<Relation>,
        key: TableKey,
    ) -> Result<Result<Arc<Table>, String>, Error> {
        let mut relation = Arc::clone(relation);
        if relation.namespace != key.0 || relation.name != key.1 {
            relation = Arc::new(Relation { namespace: key.0, name: key.1, ..(*relation).clone() });
        }
        match self.map(&relation).await {
            Ok(table) => Ok(Ok(table)),
            Err(error) if error.is_data() => Ok(Err(error.to_string())),
            Err(error) => Err(error),
        }
    }

    async fn map(&mut self, relation: &Arc<Relation>) -> Result<Arc<Table>, Error> {
        self.asked.store(self.session.pid(), Ordering::Relaxed);
        let target = self.target(&relation.namespace, &relation.name).await?;
        self.asked.store(0, Ordering::Relaxed);
        self.mapped += 1;
        let table = Table::map(self.mapped, Arc::clone(relation), &target)?;
        if let Some(column) = self.types.as_ref().and_then(|types| other_type(relation, types)) {
            return Err(Kind::OtherTypes { table: table.name, column: column.to_owned() }.into());
        }
        tracing::debug!(table = %table.name, path = ?table.path, lookup = ?table.lookup, "mapped");
        Ok(Arc::new(table))
    }

    /// What the target's clock shows.
    pub(crate) async fn clock(&self) -> Result<PgTimestamp, Error> {
        self.asked.store(self.session.pid(), Ordering::Relaxed);
        let clock = self.session.clock().await?;
        self.asked.store(0, Ordering::Relaxed);
        Ok(clock)
    }

    /// Reads the target's table of this name.
    pub(crate) async fn target(&self, schema: &str, name: &str) -> Result<TargetTable, Error> {
        let lost = |error| self.session.error(error);
        let fires: &[&str] = if self.ordinary_triggers { &["A", "O"] } else { &["A", "R"] };
        let rows = self.session.query(TABLE, &[&schema, &name, &fires, &self.ordinary_triggers]).await;
        let Some(row) = rows.map_err(lost)?.into_iter().next() else {
            return Err(MappingError::MissingTable { table: format!("{schema}.{name}") }.into());
        };
        let oid: u32 = row.get(0);
        let columns = self.session.query(COLUMNS, &[&oid]).await.map_err(lost)?;
        let keys = self.session.query(UNIQUE_KEYS, &[&oid]).await.map_err(lost)?;
        let own_origins = match &self.tells_writers {
            Some(name) => Some(state::own_origins(&*self.session, name).await.map_err(lost)?),
            None => None,
        };
        Ok(TargetTable {
            oid: Oid(oid),
            root: Oid(row.get(5)),
            partitioned: row.get(1),
            firing_trigger: row.get(2),
            firing_rule: row.get(3),
            sole_unique_key: row.get(4),
            constraints: usize::try_from(row.get::<_, i64>(6)).unwrap_or(usize::MAX),
            indexed: row.get::<_, Vec<String>>(7).into_iter().zip(row.get::<_, Vec<bool>>(8)).collect(),
            columns: columns.iter().map(target_column).collect(),
            own_origins,
            has_identity: keys.first().is_some_and(|row| row.get(1)),
            unique_keys: keys.iter().map(unique_key).collect(),
        })
    }
}

/// Returns the first column of `relation` that had another type when its values were written. The
/// target's type may not accept the binary form of those values.
fn other_type<'r>(relation: &'r Relation, types: &SourceTypes) -> Option<&'r str> {
    let now = types.get(&(relation.namespace.clone(), relation.name.clone()))?;
    let differs = |column: &&RelationColumn| now.get(&column.name).is_some_and(|oid| *oid != column.type_oid);
    relation.columns.iter().find(differs).map(|column| column.name.as_str())
}

fn unique_key(row: &tokio_postgres::Row) -> UniqueKey {
    let bounds: [Vec<String>; 3] = [row.get(3), row.get(4), row.get(5)];
    let [at_least, at_most, order] = bounds.map(Vec::into_iter);
    let bounds = at_least.zip(at_most).zip(order);
    let bounds = bounds.map(|((at_least, at_most), order)| Bounds { at_least, at_most, order });
    UniqueKey { names: row.get(0), collate: row.get(2), bounds: bounds.collect(), has_rival: row.get(6) }
}

fn target_column(row: &tokio_postgres::Row) -> TargetColumn {
    TargetColumn {
        name: row.get(0),
        type_oid: Oid(row.get(1)),
        array_oid: Oid(row.get(2)),
        holder: row.get::<_, Option<u32>>(14).map(|oid| Holder {
            oid: Oid(oid),
            array_oid: Oid(row.get(15)),
            name: row.get(16),
        }),
        type_name: row.get(3),
        not_null: row.get(4),
        generated: row.get(5),
        identity_always: row.get(6),
        equality: row.get(7),
        bytewise: row.get(8),
        is_enum: row.get(9),
        declared: row.get(10),
        typmod: row.get(11),
        rounded: row.get(12),
        inherent: row.get(13),
    }
}

/// $1 is the schema, $2 the name, $3 the states in which a trigger or rule fires for our sessions,
/// and $4 whether foreign keys fire as well.
const TABLE: &str = "
SELECT c.oid, c.relkind = 'p',
       (SELECT t.tgname::text FROM pg_catalog.pg_trigger t
         WHERE (t.tgrelid = c.oid OR t.tgrelid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p))
           AND t.tgenabled::text = ANY ($3) AND ($4 OR NOT t.tgisinternal) LIMIT 1),
       (SELECT r.rulename::text FROM pg_catalog.pg_rewrite r
         WHERE r.ev_class = c.oid AND r.ev_type <> '1' AND r.ev_enabled::text = ANY ($3) LIMIT 1),
       (SELECT count(*) < 2 FROM pg_catalog.pg_index i
         WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion)),
       coalesce(pg_catalog.pg_partition_root(c.oid)::oid, c.oid),
       (SELECT count(*) FROM pg_catalog.pg_index i
         WHERE (i.indrelid = c.oid
                OR i.indrelid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p)
                   AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = i.indexrelid))
           AND (i.indisunique OR i.indisexclusion)),
       l.names, l.finds_nulls
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  CROSS JOIN LATERAL (
       SELECT coalesce(pg_catalog.array_agg(a.attname::text), '{}') AS names,
              coalesce(pg_catalog.array_agg(m.amname = 'btree'), '{}') AS finds_nulls
         FROM pg_catalog.pg_index i
         JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
         JOIN pg_catalog.pg_am m ON m.oid = x.relam
         JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND m.amname IN ('btree', 'hash')
          AND i.indcollation[0] = a.attcollation) l
 WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')";

/// $1 is the table. `b` is the type beneath all domains: a cast to a domain would cut a value to
/// its length, but assignment refuses it. Equality is that of the type's default operator class.
/// Enums, ranges, composites, and arrays whose elements have equality use the polymorphic operator.
///
/// Bytewise equal are: bool, bytea, "char", name, the integers, oid, date, time, timestamp(tz),
/// uuid, pg_lsn, macaddr(8) and enums. Also text and varchar under a deterministic collation, and
/// numeric and char with a modifier, which fixes scale and length. Not: float (-0 = 0), numeric
/// without scale, citext, jsonb, interval, timetz, inet.
///
/// Inherent (the type itself decides which values are equal): these, and numeric, float4, float8,
/// interval, timetz, inet, cidr, jsonb.
///
/// Last, for an array: the type that holds it in a set ([`plan::Holder`]).
///
/// These types round by their modifier: numeric, time, timetz, timestamp(tz), interval. For others
/// the server refuses values that are too long, except that it cuts off blanks at the end of
/// varchar.
const COLUMNS: &str = "
SELECT a.attname::text, a.atttypid, t.typarray, pg_catalog.format_type(b.oid, -1),
       a.attnotnull, a.attgenerated <> '', a.attidentity = 'a',
       coalesce(
         (SELECT pg_catalog.format('OPERATOR(%I.%s)', n.nspname, o.oprname)
            FROM pg_catalog.pg_opclass k
            JOIN pg_catalog.pg_amop m ON m.amopfamily = k.opcfamily AND m.amoplefttype = k.opcintype
             AND m.amoprighttype = k.opcintype AND m.amopstrategy = CASE k.opcmethod WHEN 403 THEN 3 ELSE 1 END
            JOIN pg_catalog.pg_operator o ON o.oid = m.amopopr
            JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
           WHERE k.opcmethod IN (403, 405) AND k.opcdefault AND k.opcintype = b.oid
           ORDER BY k.opcmethod LIMIT 1),
         CASE WHEN b.typtype IN ('e', 'r', 'm', 'c') OR b.oid IN (1043, 650)
                OR b.typcategory = 'A' AND (e.typtype IN ('e', 'r', 'm', 'c') OR e.oid IN (1043, 650)
                   OR EXISTS (SELECT FROM pg_catalog.pg_opclass k
                               WHERE k.opcmethod = 403 AND k.opcdefault AND k.opcintype = e.oid))
              THEN 'OPERATOR(pg_catalog.=)' END),
       b.oid IN (16, 17, 18, 19, 20, 21, 23, 26, 1082, 1083, 1114, 1184, 2950, 3220, 829, 774)
         OR b.typtype = 'e'
         OR b.oid IN (1700, 1042) AND a.atttypmod >= 0
         OR b.oid IN (25, 1043) AND coalesce((SELECT l.collisdeterministic FROM pg_catalog.pg_collation l
                                               WHERE l.oid = a.attcollation), false),
       b.typtype = 'e',
       pg_catalog.format_type(a.atttypid, -1), a.atttypmod,
       CASE WHEN a.atttypid IN (1700, 1083, 1266, 1114, 1184, 1186) AND a.atttypmod >= 0
            THEN pg_catalog.format_type(a.atttypid, a.atttypmod) END,
       b.oid IN (1700, 700, 701, 1186, 1266, 869, 650, 3802),
       h.oid, h.typarray, 'pgsluice.' || pg_catalog.quote_ident(h.typname)
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
  CROSS JOIN LATERAL (
       WITH RECURSIVE base (oid) AS (
         SELECT a.atttypid
         UNION ALL
         SELECT d.typbasetype FROM pg_catalog.pg_type d JOIN base ON d.oid = base.oid WHERE d.typtype = 'd')
       SELECT x.* FROM pg_catalog.pg_type x JOIN base ON x.oid = base.oid WHERE x.typtype <> 'd') b
  LEFT JOIN pg_catalog.pg_type e ON e.oid = b.typelem
  LEFT JOIN LATERAL (
       SELECT x.* FROM pg_catalog.pg_type x
         JOIN pg_catalog.pg_namespace n ON n.oid = x.typnamespace AND n.nspname = 'pgsluice'
         JOIN pg_catalog.pg_attribute v ON v.attrelid = x.typrelid AND v.attnum = 1 AND v.attname = 'value'
        WHERE x.typname = 'array_of_' || e.typname AND v.atttypid = t.oid) h ON t.typarray = 0
 WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum";

/// $1 is the table. The replica identity comes first, then the primary key. An index is left out if
/// its collation treats other values as equal than its column's collation does. It would find
/// another row than the column does.
///
/// Bounds and order are those of the index's own operator classes; in `indoption`, DESC is 1 and
/// NULLS FIRST 2. A rival is an index that has a column of the key but does not begin with all of
/// them. Rivals include indexes of any kind, and those that are not valid yet.
const UNIQUE_KEYS: &str = "
SELECT k.names, i.indisreplident OR i.indisprimary, k.collations, k.at_least, k.at_most, k.orders,
       EXISTS (SELECT FROM pg_catalog.pg_index o
                WHERE o.indrelid = i.indrelid AND o.indexrelid <> i.indexrelid
                  AND (o.indkey::int2[])[0:o.indnkeyatts - 1] && (i.indkey::int2[])[0:i.indnkeyatts - 1]
                  AND NOT (o.indkey::int2[])[0:i.indnkeyatts - 1] @> (i.indkey::int2[])[0:i.indnkeyatts - 1])
  FROM pg_catalog.pg_index i
 CROSS JOIN LATERAL (
       SELECT array_agg(a.attname::text ORDER BY k) AS names,
              array_agg(coalesce((SELECT pg_catalog.format(' COLLATE %I.%I', n.nspname, l.collname)
                                    FROM pg_catalog.pg_collation l
                                    JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
                                   WHERE l.oid = i.indcollation[k] AND l.oid <> a.attcollation), '')
                        ORDER BY k) AS collations,
              array_agg(s.at_least ORDER BY k) AS at_least, array_agg(s.at_most ORDER BY k) AS at_most,
              array_agg('USING ' || CASE WHEN i.indoption[k] & 1 = 0 THEN s.less ELSE s.greater END
                        || CASE WHEN i.indoption[k] & 2 = 0 THEN ' NULLS LAST' ELSE ' NULLS FIRST' END
                        ORDER BY k) AS orders
         FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k
         JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k]
         JOIN pg_catalog.pg_opclass c ON c.oid = i.indclass[k]
        CROSS JOIN LATERAL (
              SELECT min(x.sql) FILTER (WHERE x.strategy = 1) AS less,
                     min(x.sql) FILTER (WHERE x.strategy = 2) AS at_most,
                     min(x.sql) FILTER (WHERE x.strategy = 4) AS at_least,
                     min(x.sql) FILTER (WHERE x.strategy = 5) AS greater
                FROM (SELECT p.amopstrategy, pg_catalog.format('OPERATOR(%I.%s)', n.nspname, q.oprname)
                        FROM pg_catalog.pg_amop p
                        JOIN pg_catalog.pg_operator q ON q.oid = p.amopopr
                        JOIN pg_catalog.pg_namespace n ON n.oid = q.oprnamespace
                       WHERE p.amopfamily = c.opcfamily AND p.amoplefttype = c.opcintype
                         AND p.amoprighttype = c.opcintype) x (strategy, sql)) s) k
 WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indisready AND i.indimmediate
   AND i.indpred IS NULL AND i.indexprs IS NULL
   AND NOT EXISTS (SELECT FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k
                     JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k]
                     JOIN pg_catalog.pg_collation l ON l.oid = i.indcollation[k]
                     JOIN pg_catalog.pg_collation o ON o.oid = a.attcollation
                    WHERE l.oid <> o.oid AND NOT (l.collisdeterministic AND o.collisdeterministic))
 ORDER BY i.indisreplident DESC, i.indisprimary DESC, i.indexrelid";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_had_another_type_is_found() {
        let relation = plan::fixtures::relation(proto::pgoutput::ReplicaIdentity::Default);
        let now = |types: &[(&str, u32)]| {
            let types = types.iter().map(|(name, oid)| ((*name).to_owned(), Oid(*oid))).collect();
            SourceTypes::from([(("s".to_owned(), "t".to_owned()), types)])
        };
        assert_eq!(other_type(&relation, &now(&[("id", 23), ("a", 23), ("b", 23)])), None);
        assert_eq!(other_type(&relation, &now(&[("id", 23), ("a", 23), ("b", 20)])), Some("b"));
        assert_eq!(other_type(&relation, &now(&[("id", 23)])), None, "dropped since");
        assert_eq!(other_type(&relation, &SourceTypes::default()), None, "of a table that joined later");
    }
}
