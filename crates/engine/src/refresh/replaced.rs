//! Tables whose names and relations have parted on the source.
//!
//! ```text
//!   seen by a look, or in the stream --> left out --> emptied: by the operator, or by us
//!                 |                         ^                  (on_table_replaced = copy)
//!                 '-- what came before -----'                          |
//!                     is applied                      copied and joins, as a new table does
//! ```
//! The stream leaves a table out by itself, at the first change that is meant for another relation
//! ([`state::Parting`]). A look finds partings without such a change. It compares OIDs and reports
//! a parting at once. It then waits until the target has come to where the source was, so that the
//! last changes of the old table still come.
//!
//! A table that was dropped stays known while the target has rows of it. A new table of the same
//! name is then recognized as another one.

use base::{Oid, quote_ident};
use client::Session;
use source::end::written;
use source::publication::{self, PublishedTable, TableName};
use state::{CopiedTable, Parting, State, TableKey};

use super::Refreshing;
use super::apart::{Apart, key, key_of, parted};
use crate::error::Error;

/// $1 the target's table: whether foreign keys of other tables refer to it, and its parent if it is
/// a partition.
const ON_TARGET: &str = "\
SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint k
                WHERE k.contype = 'f' AND k.confrelid = c.oid AND k.conrelid <> c.oid),
       (SELECT pg_catalog.format('%I.%I', n.nspname, p.relname)
          FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
          JOIN pg_catalog.pg_namespace n ON n.oid = p.relnamespace
         WHERE i.inhrelid = c.oid AND c.relispartition LIMIT 1)
  FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass($1)";

/// $1 a relation of the source: its parent and its bounds, if it is a partition.
const AS_PARTITION: &str = "\
SELECT (SELECT pg_catalog.format('%I.%I', n.nspname, p.relname)
          FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
          JOIN pg_catalog.pg_namespace n ON n.oid = p.relnamespace
         WHERE i.inhrelid = c.oid AND c.relispartition LIMIT 1),
       pg_catalog.pg_get_expr(c.relpartbound, c.oid)
  FROM pg_catalog.pg_class c WHERE c.oid = $1::pg_catalog.oid";

impl Refreshing<'_> {
    /// Leaves out tables that have parted, once the target has come far enough, and updates
    /// `recorded` to match.
    pub(super) async fn leave_out(
        &mut self,
        published: &[PublishedTable],
        recorded: &mut [CopiedTable],
        source: &Session,
    ) -> Result<(), Error> {
        let parted = parted(published, recorded);
        self.apart.retain(|key, _| parted.contains_key(key));
        let applied = self.attempt.status.progress().snapshot().applied;
        for (key, why) in parted {
            let since = match self.apart.get(&key) {
                Some(apart) => apart.since,
                None => written(source).await?,
            };
            if applied < since {
                self.apart.insert(key, Apart { since, why });
                continue;
            }
            self.apart.remove(&key);
            self.state.leave_out(&key, &why).await?;
            self.ended(self.joins.forget(key.clone()).await).await;
            self.judge.iter().for_each(|judge| judge.takes_part.remove(&key));
            for table in recorded.iter_mut().filter(|table| key_of(table) == key) {
                (table.finished, table.begun, table.replaced) = (false, false, Some(why.to_string()));
            }
        }
        Ok(())
    }

    /// Whether `table` is known to have parted from its relation, even if its name is not
    /// published.
    pub(super) fn is_apart(&self, table: &CopiedTable) -> bool {
        table.replaced.is_some() || self.apart.contains_key(&key_of(table))
    }

    /// Forgets tables that were left out and whose names no published table has. Either their
    /// relations are replicated under other names, or the target has no rows of them.
    pub(super) async fn forget_left(
        &self,
        published: &[PublishedTable],
        recorded: &[CopiedTable],
    ) -> Result<(), Error> {
        let has_name = |table: &CopiedTable| published.iter().any(|it| key(&it.name) == key_of(table));
        for table in recorded.iter().filter(|table| table.replaced.is_some() && !has_name(table)) {
            let oid = table.source_oid;
            let joined = recorded.iter().any(|other| other.finished && other.source_oid == oid);
            let published = published.iter().any(|it| Some(it.oid) == oid);
            if joined || !published && !has_rows(self.state, &key_of(table)).await? {
                self.state.forget_table(&key_of(table)).await?;
            }
        }
        Ok(())
    }

    /// Returns why `table` waits for the stream, if it does. It waits if it has the name or the
    /// relation of a table that still takes part.
    pub(super) fn waits_for_stream(&self, table: &PublishedTable) -> Option<String> {
        let own = key(&table.name);
        let has_relation = |apart: &Apart| {
            let (Parting::Taken { was, .. } | Parting::Moved { was, .. } | Parting::Dropped { was }) =
                &apart.why;
            *was == table.oid
        };
        let (old, Apart { since, why }) =
            self.apart.iter().find(|(name, apart)| **name == own || has_relation(apart))?;
        Some(format!(
            "table \"{}.{}\": {why}; pgsluice applies nothing of \"{}\" to it, and leaves it out when the stream \
             has come to {since}, where this was seen",
            old.0, old.1, table.name
        ))
    }

    /// Returns why the target's rows keep `table` from being copied, if they do.
    pub(super) async fn rows_in_the_way(
        &self,
        source: &Session,
        table: &PublishedTable,
        known: Option<&CopiedTable>,
    ) -> Result<Option<String>, Error> {
        let why = known.and_then(|known| known.replaced.as_deref());
        // A left out table is copied again even without copy_data, because its rows are not those
        // of the source's table.
        let is_copied = self.attempt.settings.copy_data || why.is_some();
        if !is_copied || known.is_some_and(|known| self.may_empty(known)) {
            return Ok(None);
        }
        let name = &table.name;
        if !has_rows(self.state, &key(name)).await? {
            return Ok(None);
        }
        let emptying = self.emptying(source, table).await?;
        Ok(Some(match why {
            None => format!(
                "table \"{name}\" of the target holds rows already, which the copied ones may collide with; empty it: \
                 {emptying}"
            ),
            Some(why) => format!(
                "table \"{name}\" was left out: {why}. Remove the old rows on the target, and pgsluice copies it \
                 again: {emptying}"
            ),
        }))
    }

    /// Returns what to do about `table`, which cannot be copied because of `error`, if the table or
    /// its relation was left out.
    pub(super) async fn remedy(
        &self,
        table: &PublishedTable,
        recorded: &[CopiedTable],
        error: String,
    ) -> Result<String, Error> {
        let own = key(&table.name);
        let name = &table.name;
        if let Some(why) = recorded.iter().find(|it| key_of(it) == own).and_then(|it| it.replaced.as_deref())
        {
            return Ok(format!(
                "table \"{name}\" was left out: {why}. pgsluice does not copy it again yet: {error}"
            ));
        }
        let same = |it: &&CopiedTable| it.source_oid == Some(table.oid) && key_of(it) != own;
        let Some(earlier) = recorded.iter().find(same).map(|it| TableName::new(&it.schema, &it.table)) else {
            return Ok(error);
        };
        let names = [earlier.clone(), name.clone()];
        let found = publication::target_tables(self.state.session(), &names).await?;
        if !found.contains_key(&earlier) || found.contains_key(name) {
            return Ok(format!("on the source, table \"{earlier}\" is named \"{name}\" now. {error}"));
        }
        Ok(format!(
            "on the source, table \"{earlier}\" is named \"{name}\" now. Do the same on the target and remove the \
             old rows, and pgsluice copies it again: {}; TRUNCATE {}",
            renaming(&earlier, name),
            name.quoted()
        ))
    }

    /// The statements that remove the rows of `table` on the target.
    async fn emptying(&self, source: &Session, table: &PublishedTable) -> Result<String, Error> {
        let quoted = table.name.quoted();
        let target = self.state.session();
        let row = target.query_opt(ON_TARGET, &[&quoted]).await.map_err(|error| target.error(error))?;
        let (referenced, parent): (bool, Option<String>) =
            row.map_or((false, None), |row| (row.get(0), row.get(1)));
        let detach = match parent {
            // If the table is a partition on the target only, its rows would be copied into the
            // parent.
            Some(parent) if as_partition(source, table.oid).await?.is_none() => {
                format!("ALTER TABLE {parent} DETACH PARTITION {quoted}; ")
            }
            _ => String::new(),
        };
        Ok(match referenced {
            false => format!("{detach}TRUNCATE {quoted}"),
            // TRUNCATE fails for a referenced table. Rows of other tables that refer to it stay, as
            // they do for a subscriber.
            true => format!(
                "{detach}BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM {quoted}; COMMIT"
            ),
        })
    }

    /// Takes `table` off the list, because its name is not published any more. A table whose
    /// relation was dropped stays known while the target has its rows.
    pub(super) async fn take_off(
        &self,
        name: &TableName,
        oid: Option<Oid>,
        source: &Session,
    ) -> Result<(), Error> {
        let subscription = &self.attempt.settings.subscription;
        let Some(was) = oid else { return self.take_off_quietly(name).await };
        let sql = "SELECT FROM pg_catalog.pg_class c WHERE c.oid = $1::pg_catalog.oid";
        let exists = source.query_opt(sql, &[&was.0]).await.map_err(|error| source.error(error))?.is_some();
        if !exists && has_rows(self.state, &key(name)).await? {
            tracing::warn!(%subscription, table = %name,
                "no longer in the publication, because it was dropped on the source: pgsluice no longer replicates \
                 it. The target keeps its rows; if nobody needs them: DROP TABLE {}", name.quoted());
            return Ok(self.state.leave_out(&key(name), &Parting::Dropped { was }).await?);
        }
        match as_partition(source, was).await? {
            Some((parent, bound)) if exists => tracing::warn!(%subscription, table = %name,
                "no longer in the publication by itself, because it is a partition of {parent} now, and its changes come as \
                 that table's. Do the same on the target: ALTER TABLE {parent} ATTACH PARTITION {} {bound}", name.quoted()),
            _ => return self.take_off_quietly(name).await,
        }
        Ok(self.state.forget_table(&key(name)).await?)
    }

    async fn take_off_quietly(&self, name: &TableName) -> Result<(), Error> {
        tracing::info!(subscription = %self.attempt.settings.subscription, table = %name,
            "no longer in the publication: pgsluice no longer replicates it");
        Ok(self.state.forget_table(&key(name)).await?)
    }
}

/// The parent of a relation on the source and its bounds, if it is a partition.
async fn as_partition(source: &Session, oid: Oid) -> Result<Option<(String, String)>, Error> {
    let row = source.query_opt(AS_PARTITION, &[&oid.0]).await.map_err(|error| source.error(error))?;
    Ok(row.and_then(|row| Some((row.get::<_, Option<String>>(0)?, row.get::<_, Option<String>>(1)?))))
}

/// Whether the target has a table of this name with rows.
async fn has_rows(state: &State, table: &TableKey) -> Result<bool, Error> {
    let (target, quoted) = (state.session(), TableName::new(&table.0, &table.1).quoted());
    let sql = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";
    let row = target.query_one(sql, &[&quoted]).await.map_err(|error| target.error(error))?;
    if !row.get::<_, bool>(0) {
        return Ok(false);
    }
    let sql = format!("SELECT EXISTS (SELECT FROM {quoted})");
    Ok(target.query_one(&sql, &[]).await.map_err(|error| target.error(error))?.get(0))
}

/// Statements that give the target's table its new name.
fn renaming(from: &TableName, to: &TableName) -> String {
    let mut steps = Vec::new();
    if from.schema != to.schema {
        let schema = quote_ident(&to.schema);
        steps.push(format!("CREATE SCHEMA IF NOT EXISTS {schema}"));
        steps.push(format!("ALTER TABLE {} SET SCHEMA {schema}", from.quoted()));
    }
    if from.name != to.name {
        let now = TableName::new(&to.schema, &from.name);
        steps.push(format!("ALTER TABLE {} RENAME TO {}", now.quoted(), quote_ident(&to.name)));
    }
    steps.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_is_given_in_as_many_steps_as_it_takes() {
        let name = TableName::new;
        let old = name("public", "a");
        assert_eq!(renaming(&old, &name("public", "B")), "ALTER TABLE \"public\".\"a\" RENAME TO \"B\"");
        assert_eq!(
            renaming(&old, &name("s", "b")),
            "CREATE SCHEMA IF NOT EXISTS \"s\"; ALTER TABLE \"public\".\"a\" SET SCHEMA \"s\"; \
             ALTER TABLE \"s\".\"a\" RENAME TO \"b\""
        );
    }
}
