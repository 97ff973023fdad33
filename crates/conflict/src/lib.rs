//! Conflict types, their names, counters and wording, and what a user may choose for each; no I/O.
//!
//! A conflict is what happens when a change from the source does not meet the row it expects on the
//! target. This crate names conflicts as PostgreSQL names them, in PostgreSQL's order, and decides
//! by the user's rules whose version stays. Finding a conflict and writing what was decided is the
//! applier's work.

mod decide;
mod report;
mod resolution;
mod rules;
mod values;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

pub use decide::{Node, Stamp, Verdict};
pub use report::{Commit, Conflict, Met, Origin, Written};
pub use resolution::{Illegal, Resolution, UnknownName};
pub use rules::{Rules, TableRules};
pub use values::{ColumnValues, RECORDED_BYTES_MAX, Values};

/// The conflict types of `pg_stat_subscription_stats`, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConflictType {
    /// An INSERT whose key exists.
    InsertExists,
    /// An UPDATE of a row that another origin wrote last.
    UpdateOriginDiffers,
    /// An UPDATE whose new key exists in another row.
    UpdateExists,
    /// An UPDATE of a row that was deleted here meanwhile.
    UpdateDeleted,
    /// An UPDATE of a row that is not there.
    UpdateMissing,
    /// A DELETE of a row that another origin wrote last.
    DeleteOriginDiffers,
    /// A DELETE of a row that is not there.
    DeleteMissing,
    /// A change that violates more than one unique key at once.
    MultipleUniqueConflicts,
}

impl ConflictType {
    /// Every type, in the order of their counters.
    pub const ALL: [ConflictType; 8] = [
        ConflictType::InsertExists,
        ConflictType::UpdateOriginDiffers,
        ConflictType::UpdateExists,
        ConflictType::UpdateDeleted,
        ConflictType::UpdateMissing,
        ConflictType::DeleteOriginDiffers,
        ConflictType::DeleteMissing,
        ConflictType::MultipleUniqueConflicts,
    ];

    /// PostgreSQL's name, as in `conflict=update_missing`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ConflictType::InsertExists => "insert_exists",
            ConflictType::UpdateOriginDiffers => "update_origin_differs",
            ConflictType::UpdateExists => "update_exists",
            ConflictType::UpdateDeleted => "update_deleted",
            ConflictType::UpdateMissing => "update_missing",
            ConflictType::DeleteOriginDiffers => "delete_origin_differs",
            ConflictType::DeleteMissing => "delete_missing",
            ConflictType::MultipleUniqueConflicts => "multiple_unique_conflicts",
        }
    }
}

impl fmt::Display for ConflictType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ConflictType {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = || ConflictType::ALL.map(ConflictType::name).to_vec();
        let found = ConflictType::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownName::new("conflict type", name, known()))
    }
}

/// How often each conflict was met; shared by the applier and the metrics.
#[derive(Debug, Default)]
pub struct ConflictCounters([AtomicU64; ConflictType::ALL.len()]);

impl ConflictCounters {
    /// One more of `kind`.
    pub fn add(&self, kind: ConflictType) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many of `kind` so far.
    #[must_use]
    pub fn get(&self, kind: ConflictType) -> u64 {
        self.0[kind as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_indexed_in_the_order_of_all() {
        let counters = ConflictCounters::default();
        for (position, kind) in ConflictType::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, position);
            counters.add(kind);
            assert_eq!(counters.get(kind), 1);
            assert_eq!(kind.name().parse(), Ok(kind));
        }
    }
}
