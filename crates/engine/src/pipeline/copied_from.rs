//! Which relations of the source the tables were copied from, where the state does not say. Either
//! an older version wrote the state, or a native subscription copied the tables.
//!
//! The relation that has the name now is assumed to be the one that was copied. That is right if it
//! had the name where the stream goes on. Two things can show that:
//!
//! - A logical slot knows the oldest transaction that may have changed a catalog since
//!   (`catalog_xmin`).
//! - The catalogs that are kept for a `wal` source belong to an earlier position.
//!
//! Where neither shows it, the relation may have been replaced without a later change of the old
//! table. The log says so. If there is a later change, the stream shows the replacement
//! ([`state::Parting`]).

use std::collections::HashMap;

use base::{Oid, SubscriptionName, Xid};
use catalog::Catalog;
use client::Session;
use source::publication::PublishedTable;
use state::{CopiedFrom, CopiedTable, State, TableKey};
use wal_source::Restart;

use super::attempt::{Attempt, Ends};
use crate::error::Error;

/// $1 relations, $2 the slot. Returns the relations that have not changed since the slot last
/// moved.
const AS_BEFORE: &str = "\
SELECT c.oid FROM pg_catalog.pg_class c, pg_catalog.pg_replication_slots s
 WHERE c.oid = ANY ($1::pg_catalog.oid[]) AND s.slot_name = $2
   AND pg_catalog.age(c.xmin) > pg_catalog.age(s.catalog_xmin)";

/// The source's catalogs from before the place where the stream goes on, and the database in them.
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
    /// Returns the relations that the participating tables were copied from.
    pub(super) async fn copied_from(&self, ends: &Ends, kept: Option<&Restart>) -> Result<CopiedFrom, Error> {
        let recorded = ends.state.copied_tables().await?;
        let database = ends.source.identity.dbname.as_deref().unwrap_or_default();
        let earlier = kept.map(|kept| Earlier { catalog: kept.catalog(), database });
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

/// Stores the relations of the `unknown` tables, and logs which of them are uncertain.
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
            "{} may have been dropped and made again on the source unseen: no record says which table was copied. \
             pgsluice takes the present one for it; compare the rows: pgsluice verify --subscription {name}",
            unsure.join(", ")
        );
    }
    Ok(learnt.into_iter().collect())
}

/// Stores on the target which relations of the source the tables of an adopted native subscription
/// were copied from.
///
/// # Errors
/// A server failed.
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
