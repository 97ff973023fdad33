//! Which relations of the source the tables were copied from, where the state
//! does not say: an older version wrote it, or the tables were a native
//! subscription's.
//!
//! The relation that has the name now is taken for the one that was copied.
//! It is that if it had the name where the stream goes on, which two things
//! show: a logical slot knows the oldest transaction that may have changed a
//! catalog since (`catalog_xmin`), and the catalogs that are kept for a `wal`
//! source are of a place before. Where neither does, a replacement without a
//! change of the old table since cannot be excluded, and that is said. Where
//! there is such a change, the stream shows it ([`state::Parting`]).

use std::collections::HashMap;

use base::{Oid, SubscriptionName, Xid};
use catalog::Catalog;
use client::Session;
use source::publication::PublishedTable;
use state::{CopiedFrom, CopiedTable, State, TableKey};

use super::{Attempt, Ends};
use crate::error::Error;
use crate::wal_source::Restart;

/// $1 relations, $2 the slot: those that are as they were when it was last moved.
const AS_BEFORE: &str = "\
SELECT c.oid FROM pg_catalog.pg_class c, pg_catalog.pg_replication_slots s
 WHERE c.oid = ANY ($1::pg_catalog.oid[]) AND s.slot_name = $2
   AND pg_catalog.age(c.xmin) > pg_catalog.age(s.catalog_xmin)";

/// Catalogs of the source before the place where the stream goes on, and the database in them.
struct Earlier<'a> {
    catalog: &'a Catalog,
    database: &'a str,
}

impl Earlier<'_> {
    /// Whether the relation had this name.
    fn had(&self, oid: Oid, name: &TableKey) -> bool {
        let databases = self.catalog.databases();
        let database = databases.iter().find(|(_, name)| *name == self.database).map(|(oid, _)| *oid);
        let view = database.and_then(|database| self.catalog.view(database, Xid::INVALID));
        let found = view.and_then(|view| view.relation(oid).ok().flatten());
        found.is_some_and(|found| (&found.schema, &found.name) == (&name.0, &name.1))
    }
}

impl Attempt<'_> {
    /// What the tables that take part were copied from.
    pub(super) async fn copied_from(&self, ends: &Ends, kept: Option<&Restart>) -> Result<CopiedFrom, Error> {
        let recorded = ends.state.copied_tables().await?;
        let database = ends.source.identity.dbname.as_deref().unwrap_or_default();
        let earlier = kept.map(|kept| Earlier { catalog: &kept.catalog, database });
        let name = &self.settings.subscription;
        let unknown: Vec<CopiedTable> =
            recorded.iter().filter(|table| table.source_oid.is_none()).cloned().collect();
        let learnt = learn(
            name,
            (&ends.source.session, &ends.source.slot_name),
            &ends.state,
            &unknown,
            &ends.source.published,
            earlier,
        )
        .await?;
        let mut from = CopiedFrom::default();
        for table in recorded.into_iter().filter(|table| table.finished) {
            let key = (table.schema, table.table);
            if let Some(oid) = table.source_oid.or_else(|| learnt.get(&key).copied()) {
                from.insert(key, oid);
            }
        }
        Ok(from)
    }
}

/// Stores what `unknown` tables are on the source, and says what could not be made sure of.
async fn learn(
    name: &SubscriptionName,
    (source, slot): (&Session, &str),
    state: &State,
    unknown: &[CopiedTable],
    published: &[PublishedTable],
    earlier: Option<Earlier<'_>>,
) -> Result<HashMap<TableKey, Oid>, Error> {
    let found = |table: &CopiedTable| {
        let is_it = |it: &&PublishedTable| (&it.name.schema, &it.name.name) == (&table.schema, &table.table);
        let oid = published.iter().find(is_it)?.oid;
        Some(((table.schema.clone(), table.table.clone()), oid))
    };
    let learnt: Vec<(TableKey, Oid)> =
        unknown.iter().filter(|table| table.finished).filter_map(found).collect();
    if learnt.is_empty() {
        return Ok(HashMap::new());
    }
    let oids: Vec<u32> = learnt.iter().map(|(_, oid)| oid.0).collect();
    let rows = source.query(AS_BEFORE, &[&oids, &slot]).await.map_err(|error| source.error(error))?;
    let same: Vec<u32> = rows.iter().map(|row| row.get(0)).collect();
    let is_same = |(table, oid): &&(TableKey, Oid)| {
        same.contains(&oid.0) || earlier.as_ref().is_some_and(|earlier| earlier.had(*oid, table))
    };
    let unsure: Vec<String> = learnt
        .iter()
        .filter(|pair| !is_same(pair))
        .map(|((schema, table), _)| format!("\"{schema}.{table}\""))
        .collect();
    state.learn_oids(&learnt).await?;
    if !unsure.is_empty() {
        tracing::warn!(
            subscription = %name,
            "{} may have been dropped and made again on the source unseen: which table was copied was not recorded. \
             The present one is taken for it; compare the rows: pgsluice verify --subscription {name}",
            unsure.join(", ")
        );
    }
    Ok(learnt.into_iter().collect())
}

/// Stores on the target from which relations of the source the tables of a native subscription
/// come that is taken over.
///
/// # Errors
/// A server's.
pub async fn learn_at_adoption(
    name: &SubscriptionName,
    (source, slot): (&Session, &str),
    state: &State,
    publications: &[String],
) -> Result<(), Error> {
    state.keep_oids().await?;
    let published = source::publication::inspect(source, publications).await?;
    let recorded = state.copied_tables().await?;
    learn(name, (source, slot), state, &recorded, &published, None).await.map(drop)
}
