//! The look-ups of each mapped table, as far as they are known.
//!
//! A table is found by the id of its mapping, so a table that is mapped anew is learned anew. What
//! is known of a mapping goes when nobody has the mapping any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use plan::Table;
use rustc_hash::FxHashMap;

use crate::lookups::TableLookups;
use crate::queue::ROWS_MIN;

/// Maximum age of a table's look-ups, because indexes come and go.
pub(crate) const LOOKUPS_AGE_MAX: Duration = Duration::from_secs(60);

/// The result of asking for a table's look-ups.
pub(crate) enum KnownLookups {
    Known(Arc<TableLookups>),
    /// A worker is finding them out.
    Asked,
    /// The table has none at present.
    None,
}

/// Every table that changes came for.
#[derive(Default)]
pub(crate) struct KnownTables(Mutex<FxHashMap<u64, Known>>);

struct Known {
    mapping: Weak<Table>,
    table_lookups: Option<Arc<TableLookups>>,
    /// When the look-ups must be found out again; `None` if nothing is known yet.
    until: Option<Instant>,
    /// A worker is finding out the look-ups.
    asked: bool,
    /// Rows that came before anything was known.
    rows: usize,
}

impl Known {
    fn nothing(table: &Arc<Table>) -> Known {
        Known { mapping: Arc::downgrade(table), table_lookups: None, until: None, asked: false, rows: 0 }
    }

    fn lookups(&self) -> KnownLookups {
        match &self.table_lookups {
            Some(table_lookups) => KnownLookups::Known(Arc::clone(table_lookups)),
            None if self.asked || self.until.is_none() => KnownLookups::Asked,
            None => KnownLookups::None,
        }
    }
}

impl KnownTables {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The look-ups of `table`. A table that no change came for yet counts as asked for.
    pub(crate) fn of(&self, table: &Table) -> KnownLookups {
        self.lock().get(&table.id).map_or(KnownLookups::Asked, Known::lookups)
    }

    /// The look-ups of `table`, if they are known.
    pub(crate) fn table_lookups(&self, table: &Table) -> Option<Arc<TableLookups>> {
        self.lock().get(&table.id)?.table_lookups.clone()
    }

    /// The look-ups of `table`, of which `rows` have come, and whether a worker must find them out:
    /// they are unknown or too old, and enough rows have come. Only one caller is told so.
    pub(crate) fn ask(&self, table: &Arc<Table>, rows: usize, now: Instant) -> (KnownLookups, bool) {
        let mut tables = self.lock();
        let known = entry(&mut tables, table);
        known.rows = known.rows.saturating_add(rows);
        let must_learn = known.until.is_none_or(|until| until <= now) && known.rows >= ROWS_MIN;
        if must_learn {
            known.until = Some(now + LOOKUPS_AGE_MAX);
            known.asked = true;
        }
        (known.lookups(), must_learn)
    }

    /// Takes the answer, which lasts this long; `None` if `table` has no look-ups at present.
    pub(crate) fn set(&self, table: &Arc<Table>, table_lookups: Option<Arc<TableLookups>>, lasts: Duration) {
        let until = Some(Instant::now() + lasts);
        *entry(&mut self.lock(), table) = Known { table_lookups, until, ..Known::nothing(table) };
    }

    #[cfg(test)]
    pub(crate) fn forget(&self, table: &Table) {
        self.lock().remove(&table.id);
    }
}

fn entry<'k>(tables: &'k mut FxHashMap<u64, Known>, table: &Arc<Table>) -> &'k mut Known {
    if !tables.contains_key(&table.id) {
        // A new mapping comes rarely, and often in place of one that is gone.
        tables.retain(|_, known| known.mapping.strong_count() > 0);
    }
    tables.entry(table.id).or_insert_with(|| Known::nothing(table))
}
