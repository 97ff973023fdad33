//! Checks that statements are executed as intended: how large the tables look, which plans were
//! made, and what to do after a statement ran away.
//!
//! The rows are right without any of it, so the executor goes on without an answer that it cannot
//! get.

use std::time::Instant;

use client::SqlState;
use plan::sql::{LARGE, of_large_set};

use super::*;
use crate::runaway;
use crate::sizes;

/// The executor looks at a table's plans again once the table has grown by this factor.
const GROWN: f64 = 8.0;

impl Executor {
    /// Asks how large these tables look, unless a recent answer is known. `outside` a transaction
    /// an error has no consequence.
    pub(super) async fn look_at_sizes<'t>(
        &mut self,
        tables: impl Iterator<Item = &'t Arc<Table>> + Clone,
        outside: bool,
    ) -> Result<(), Error> {
        let now = Instant::now();
        let due = self.sizes.due(tables.clone().map(AsRef::as_ref), now);
        if due.is_empty() {
            return Ok(());
        }
        let rows = match self.wire.query(&sizes::question(&due)).await {
            Ok(rows) => rows,
            Err(_) if self.wire_is_alive() && outside => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let answers: Vec<_> = rows.iter().filter_map(|row| sizes::answer(row)).collect();
        let changed = answers.iter().filter(|size| self.sizes.know(size, now)).count() > 0;
        if changed {
            tracing::info!("tables were altered on the target: pgsluice reads their definitions again");
            self.shared.table_changed();
        }
        for table in tables {
            let Some(size) = answers.iter().find(|size| size.oid == table.oid) else { continue };
            // A table that has changed is mapped anew. Until then it counts as small.
            let rows = match !changed && self.may_be_plain(table, size.rows, outside).await? {
                true => size.rows,
                false => 0.0,
            };
            self.writer.shapes().looks(table, rows);
            if size.rows > GROWN * self.planned_at.get(&table.id).copied().unwrap_or(1.0) {
                self.planned_at.insert(table.id, size.rows);
                let made = self.writer.shapes().made_for(table);
                let prepared = made.filter(|shape| self.prepared.names.contains(&shape.name));
                self.prepared.unseen.extend(prepared);
            }
        }
        Ok(())
    }

    /// Whether sets of rows may have their fastest form, on a table that looks as if it had `rows`
    /// rows. Where the planner might take another index, its present plan decides.
    async fn may_be_plain(&mut self, table: &Table, rows: f64, outside: bool) -> Result<bool, Error> {
        let Some(index) = &table.key_index else { return Ok(false) };
        if rows < LARGE || !index.has_rival || table.key.len() == 1 {
            return Ok(rows >= LARGE);
        }
        if !outside {
            return Ok(false);
        }
        match explain(&mut self.wire, &of_large_set(table, self.writer.binary())).await {
            Ok(plan) => Ok(conditions(&plan) == table.key.len()),
            Err(_) if self.wire_is_alive() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Warns if the planner does not follow the session's settings: the rows are found, but slowly.
    pub(super) async fn look_at_plans(&mut self) -> Result<(), Error> {
        for shape in std::mem::take(&mut self.prepared.unseen) {
            match explain(&mut self.wire, &shape).await {
                Ok(plan) => {
                    if let (Some(scan), Some(table)) = (whole_scan(&plan), &shape.by_index) {
                        tracing::warn!(
                            %table,
                            plan = scan,
                            statement = %shape.sql,
                            "the target's planner reads the whole table to find rows by their identity; check the \
                             index on the identity"
                        );
                    }
                }
                Err(_) if self.wire_is_alive() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether the error came from a statement that was cancelled because it ran away. The executor
    /// remembers that statement until [`Self::heal`].
    pub(super) fn ran_away(&mut self, code: &str) -> bool {
        if code == SqlState::QUERY_CANCELED.code()
            && let Some(statement) = self.cancelled.take()
        {
            self.away = Some(statement);
        }
        self.away.is_some()
    }

    /// Makes plans anew, with fresh statistics of the table, after a statement that ran away was
    /// rolled back.
    pub(super) async fn heal(&mut self) -> Result<(), Error> {
        let tables = std::mem::take(&mut self.away_from);
        let Some(runaway::Statement { text, ran }) = self.away.take() else { return Ok(()) };
        add(&self.shared.counters.replanned, 1);
        self.healed = true;
        // The server may have cut off the table's name; then it may be any of them.
        let names_one = tables.iter().any(|table| text.contains(&table.sql));
        let named = tables.iter().filter(|table| !names_one || text.contains(&table.sql));
        let mut remedies = vec!["DISCARD PLANS".to_owned()];
        let mut names = Vec::new();
        for table in named {
            self.writer.shapes().doubt(table);
            names.push(table.name.as_str());
            remedies.push(format!("ANALYZE (SKIP_LOCKED) {}", table.sql));
        }
        remedies.dedup();
        names.dedup();
        tracing::warn!(
            table = names.join(", "),
            seconds = ran.as_secs(),
            "a statement ran far longer than it should, so pgsluice cancelled it; it now analyzes the table, and \
             applies the changes again with a new plan"
        );
        self.sizes.forget();
        for remedy in remedies {
            match self.wire.query(&remedy).await {
                Ok(_) => {}
                Err(error) if self.wire_is_alive() => tracing::debug!("{remedy}: {error}"),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// How many columns the condition of the plan's index has. Each term is `(column = value)`, and the
/// values are columns, too.
fn conditions(plan: &[String]) -> usize {
    let condition = plan.iter().find_map(|line| line.trim_start().strip_prefix("Index Cond: "));
    condition.map_or(0, |condition| condition.matches(" AND ").count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_a_condition_are_counted() {
        let plan = |condition: &str| [" ->  Index Scan using i on t".to_owned(), condition.to_owned()];
        assert_eq!(conditions(&plan("      Index Cond: ((k = s.c0) AND (id = s.c1))")), 2);
        assert_eq!(conditions(&plan("      Index Cond: (k = s.c0)")), 1);
        assert_eq!(conditions(&plan("      Filter: (k = s.c0)")), 0);
    }
}
