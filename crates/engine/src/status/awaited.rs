//! What is missing until every state of the target is one that the source had; see
//! [`super::consistency`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use base::{Lsn, PgTimestamp};
use serde::{Deserialize, Serialize};
use state::CopiedTable;

/// Most names in a line; the others are only counted.
const NAMES_MAX: usize = 5;

/// A table that is not at the same commit as the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedTable {
    /// Schema-qualified name.
    pub table: String,
    /// From this position on it is level with the others; null before the snapshot of its copy is
    /// made.
    pub lsn: Option<String>,
    /// Its copy is finished and it takes part.
    pub joined: bool,
}

/// What is missing until every state of the target is one that the source had.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CatchingUp {
    /// The position up to which the target must have flushed everything; null while no table's is
    /// known.
    pub lsn: Option<String>,
    /// WAL between the target's position and that one.
    pub bytes: Option<u64>,
    /// The tables that are not at the same commit as the others.
    pub tables: Vec<AwaitedTable>,
    /// Foreign keys have yet to be validated.
    pub foreign_keys: bool,
    /// Since when this process has known it; null if no process runs.
    pub since_unix_ms: Option<i64>,
}

impl CatchingUp {
    /// Returns what is missing by the tables in the target's state, if the target has flushed up to
    /// `flushed`. `None` if nothing is missing.
    #[must_use]
    pub fn stored(recorded: &[CopiedTable], flushed: Lsn) -> Option<CatchingUp> {
        let awaited = Awaited { tables: ahead(recorded, flushed), ..Awaited::default() };
        awaited.is_any().then(|| awaited.told(flushed))
    }

    /// Whether every row is as the source had it, and only foreign keys have yet to be validated.
    #[must_use]
    pub fn is_done_but_for_foreign_keys(&self) -> bool {
        self.foreign_keys && self.lsn.is_none() && self.tables.is_empty()
    }
}

/// Shows what is awaited, after the position.
impl fmt::Display for CatchingUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |joined: bool| {
            let those: Vec<&str> = self
                .tables
                .iter()
                .filter(|table| table.joined == joined)
                .map(|table| table.table.as_str())
                .collect();
            let more = match those.len().saturating_sub(NAMES_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            (!those.is_empty()).then(|| those[..those.len().min(NAMES_MAX)].join(", ") + &more)
        };
        let parts = [
            named(true).map(|names| format!("copied later than the rest: {names}")),
            named(false).map(|names| format!("copy not finished: {names}")),
            self.foreign_keys.then(|| "foreign keys to be validated".to_owned()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => f.write_str("transactions that ran while the first copy's snapshot was made"),
            false => f.write_str(&parts.join("; ")),
        }
    }
}

/// Shared by the tasks that copy and stream, and by readers of the status.
#[derive(Debug, Default)]
pub(crate) struct Consistency {
    /// Something is awaited; changed with the lock held.
    pub(super) pending: AtomicBool,
    pub(super) awaited: Mutex<Awaited>,
}

#[derive(Debug, Default)]
pub(super) struct Awaited {
    pub(super) tables: BTreeMap<String, Ahead>,
    /// The end of what the snapshot of a first copy from WAL may have seen.
    pub(super) looked: Option<Lsn>,
    pub(super) foreign_keys: bool,
    pub(super) since: Option<PgTimestamp>,
    /// The beginning was logged.
    pub(super) logged: bool,
    /// The latest position that was awaited since then.
    pub(super) latest: Option<Lsn>,
}

/// A table that is not at the same commit as the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ahead {
    pub(super) lsn: Option<Lsn>,
    pub(super) joined: bool,
}

impl Awaited {
    pub(super) fn is_any(&self) -> bool {
        !self.tables.is_empty() || self.looked.is_some() || self.foreign_keys
    }

    /// The latest position.
    pub(super) fn lsn(&self) -> Option<Lsn> {
        self.tables.values().filter_map(|table| table.lsn).chain(self.looked).max()
    }

    /// Drops what the target has flushed.
    pub(super) fn settle(&mut self, flushed: Lsn) {
        self.tables.retain(|_, table| !(table.joined && table.lsn.is_none_or(|lsn| lsn <= flushed)));
        self.looked = self.looked.filter(|lsn| *lsn > flushed);
    }

    pub(super) fn told(&self, applied: Lsn) -> CatchingUp {
        let text = |lsn: Lsn| lsn.to_string();
        let table = |(name, table): (&String, &Ahead)| AwaitedTable {
            table: name.clone(),
            lsn: table.lsn.map(text),
            joined: table.joined,
        };
        let lsn = self.lsn();
        CatchingUp {
            lsn: lsn.map(text),
            bytes: lsn.map(|lsn| lsn.as_u64().saturating_sub(applied.as_u64())),
            tables: self.tables.iter().map(table).collect(),
            foreign_keys: self.foreign_keys,
            since_unix_ms: self.since.map(|since| since.unix_micros() / 1_000),
        }
    }
}

/// Returns the tables of `recorded` that are ahead of a target that has flushed up to `flushed`. A
/// copy that was not begun shows no rows to readers.
pub(super) fn ahead(recorded: &[CopiedTable], flushed: Lsn) -> BTreeMap<String, Ahead> {
    let ahead = |table: &CopiedTable| {
        let lsn = table.since.as_ref().map(|since| since.lsn);
        let ahead = match table.finished {
            true => Ahead { lsn: Some(lsn.filter(|lsn| *lsn > flushed)?), joined: true },
            // It will be copied anew, under a later snapshot.
            false => Ahead { lsn: None, joined: !table.begun },
        };
        let name = format!("{}.{}", table.schema, table.table);
        (ahead.lsn.is_some() || !ahead.joined).then_some((name, ahead))
    };
    recorded.iter().filter_map(ahead).collect()
}
