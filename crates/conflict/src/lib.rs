//! Conflict types, their names, counters and wording; no I/O.
//!
//! A conflict is what happens when a change from the source does not meet the
//! row it expects on the target. This crate names them as PostgreSQL names
//! them, in PostgreSQL's order, and counts them. Finding a conflict is the
//! applier's work; this crate never sees a row, so it cannot log one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// What the applier does after reporting a conflict, as native apply does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// The transaction cannot be applied: stop, or try again later.
    Error,
    /// The change is skipped, the transaction goes on.
    Skip,
    /// The change is applied nevertheless.
    Apply,
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

    /// What native apply does in this case.
    #[must_use]
    pub const fn native_treatment(self) -> Treatment {
        match self {
            ConflictType::InsertExists
            | ConflictType::UpdateExists
            | ConflictType::MultipleUniqueConflicts => Treatment::Error,
            ConflictType::UpdateOriginDiffers | ConflictType::DeleteOriginDiffers => Treatment::Apply,
            ConflictType::UpdateDeleted | ConflictType::UpdateMissing | ConflictType::DeleteMissing => {
                Treatment::Skip
            }
        }
    }

    /// PostgreSQL's detail sentence; `index` is the unique index that was hit.
    fn detail(self, index: Option<&str>) -> String {
        match self {
            ConflictType::InsertExists | ConflictType::UpdateExists => {
                format!("Key already exists in unique index \"{}\".", index.unwrap_or("?"))
            }
            ConflictType::MultipleUniqueConflicts => {
                format!("Keys already exist in unique indexes {}.", index.unwrap_or("?"))
            }
            ConflictType::UpdateMissing => "Could not find the row to be updated.".to_owned(),
            ConflictType::DeleteMissing => "Could not find the row to be deleted.".to_owned(),
            ConflictType::UpdateDeleted => "The row to be updated was deleted.".to_owned(),
            ConflictType::UpdateOriginDiffers => {
                "Updating the row that was modified by a different origin.".to_owned()
            }
            ConflictType::DeleteOriginDiffers => {
                "Deleting the row that was modified by a different origin.".to_owned()
            }
        }
    }
}

impl fmt::Display for ConflictType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One conflict, worded as PostgreSQL 18 words it, without row values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// What kind.
    pub kind: ConflictType,
    /// The target's table, schema-qualified.
    pub relation: String,
    /// The unique index (or the list of them) that was hit, where one was.
    pub index: Option<String>,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "conflict detected on relation \"{}\": conflict={}: {}",
            self.relation,
            self.kind,
            self.kind.detail(self.index.as_deref())
        )
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
        }
    }

    #[test]
    fn wording_is_postgresqls() {
        let conflict = Conflict {
            kind: ConflictType::InsertExists,
            relation: "public.t".to_owned(),
            index: Some("t_pkey".to_owned()),
        };
        assert_eq!(
            conflict.to_string(),
            "conflict detected on relation \"public.t\": conflict=insert_exists: \
             Key already exists in unique index \"t_pkey\"."
        );
    }
}
