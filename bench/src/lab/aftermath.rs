//! What replication left on the subscriber: dead rows, index entries and WAL. The server must clean
//! these up, keep them in memory and send them on. Autovacuum is off while this is measured.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::lab::rig::{DB, Rig};

/// Figures of tables; the difference of two counts.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Aftermath {
    pub(crate) wal_bytes: f64,
    pub(crate) index_bytes: f64,
    pub(crate) table_bytes: f64,
    pub(crate) dead_rows: f64,
    pub(crate) updates: f64,
    pub(crate) heap_only_updates: f64,
}

impl Aftermath {
    /// The writing sessions must have ended: they hand over statistics then.
    pub(crate) fn look(rig: &Rig, tables: &[String]) -> Result<Aftermath> {
        let names: Vec<String> = tables.iter().map(|table| format!("'{table}'")).collect();
        let rows = rig.pair.target.sql(
            DB,
            &format!(
                "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, sum(pg_indexes_size(relid)), \
                 sum(pg_table_size(relid)), sum(n_dead_tup), sum(n_tup_upd), sum(n_tup_hot_upd) \
                 FROM pg_stat_user_tables WHERE relname IN ({})",
                names.join(", ")
            ),
        )?;
        let row = rows.first().context("the subscriber has no statistics")?;
        let number = |index: usize| -> Result<f64> {
            let text = row.get(index).and_then(Option::as_deref).context("the tables have no statistics")?;
            Ok(text.parse()?)
        };
        Ok(Aftermath {
            wal_bytes: number(0)?,
            index_bytes: number(1)?,
            table_bytes: number(2)?,
            dead_rows: number(3)?,
            updates: number(4)?,
            heap_only_updates: number(5)?,
        })
    }

    pub(crate) fn since(self, before: Aftermath) -> Aftermath {
        Aftermath {
            wal_bytes: self.wal_bytes - before.wal_bytes,
            index_bytes: self.index_bytes - before.index_bytes,
            table_bytes: self.table_bytes - before.table_bytes,
            dead_rows: self.dead_rows - before.dead_rows,
            updates: self.updates - before.updates,
            heap_only_updates: self.heap_only_updates - before.heap_only_updates,
        }
    }

    /// The share of updates that left all indexes alone; `None` without updates.
    pub(crate) fn heap_only_share(&self) -> Option<f64> {
        (self.updates > 0.0).then(|| self.heap_only_updates / self.updates)
    }
}
