//! What a user may choose for each type of conflict, and what that choice writes.
//!
//! | type | `skip`, `keep_local` | `apply_remote` | `last_update_wins`, `first_update_wins` |
//! | --- | --- | --- | --- |
//! | `insert_exists` | nothing | UPDATE of the row that holds the key | one of the two |
//! | `update_origin_differs` | nothing | the UPDATE | one of the two |
//! | `update_exists` | nothing | DELETE of the holders, then the UPDATE | one of the two |
//! | `update_deleted` | nothing | INSERT | one of the two, needs deletion memory |
//! | `update_missing` | nothing | INSERT | INSERT by `last_update_wins`, see below; `first_update_wins` is refused |
//! | `delete_origin_differs` | nothing | the DELETE | one of the two |
//! | `delete_missing` | nothing | refused: nothing to write | refused: nothing to compare |
//! | `multiple_unique_conflicts` | nothing | DELETE of the holders, then the change | one of the two |
//!
//! `error` is legal everywhere: the transaction is rolled back, and the subscription stops or tries
//! again. No deletion of a missing row is remembered if all UPDATEs that are older than it were
//! applied. So an UPDATE that misses its row is the later one, and `last_update_wins` inserts it.
//! That needs deletion memory, too. Against several holders, `last_update_wins` applies a change
//! only if it is newer than all of them, and `first_update_wins` only if it is older than all of
//! them.

use std::fmt;
use std::str::FromStr;

use crate::ConflictType;

/// What to do about a conflict. The names are those of PostgreSQL's patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// Roll the transaction back and report an error.
    Error,
    /// Leave the change out.
    Skip,
    /// Write the change from the source.
    ApplyRemote,
    /// Keep the row as it is on the target.
    KeepLocal,
    /// Keep the version with the later commit time.
    LastUpdateWins,
    /// Keep the version with the earlier commit time.
    FirstUpdateWins,
}

impl Resolution {
    /// Every resolution, in the order of the documentation.
    pub const ALL: [Resolution; 6] = [
        Resolution::Error,
        Resolution::Skip,
        Resolution::ApplyRemote,
        Resolution::KeepLocal,
        Resolution::LastUpdateWins,
        Resolution::FirstUpdateWins,
    ];

    /// The name in settings and in the history.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Resolution::Error => "error",
            Resolution::Skip => "skip",
            Resolution::ApplyRemote => "apply_remote",
            Resolution::KeepLocal => "keep_local",
            Resolution::LastUpdateWins => "last_update_wins",
            Resolution::FirstUpdateWins => "first_update_wins",
        }
    }

    /// Whether commit times decide. That needs `track_commit_timestamp` on the target.
    #[must_use]
    pub const fn compares_times(self) -> bool {
        matches!(self, Resolution::LastUpdateWins | Resolution::FirstUpdateWins)
    }
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that stands for no resolution or no conflict type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: Vec<&'static str>,
}

impl UnknownName {
    pub(crate) fn new(what: &'static str, name: &str, known: Vec<&'static str>) -> Self {
        UnknownName { what, name: name.to_owned(), known }
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownName { what, name, known } = self;
        write!(f, "\"{name}\" is not a {what}; it is one of {}", known.join(", "))
    }
}

impl std::error::Error for UnknownName {}

impl FromStr for Resolution {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = || Resolution::ALL.map(Resolution::name).to_vec();
        let found = Resolution::ALL.into_iter().find(|resolution| resolution.name() == name);
        found.ok_or_else(|| UnknownName::new("conflict resolution", name, known()))
    }
}

/// A resolution that has no meaning for a type of conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Illegal {
    kind: ConflictType,
    resolution: Resolution,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Illegal { kind, resolution } = self;
        let why = match kind {
            ConflictType::DeleteMissing => "there is no row that could be deleted or kept",
            _ => "an UPDATE that finds neither a row nor its deletion is the last one, never the first",
        };
        let legal = kind.resolutions().map(Resolution::name).collect::<Vec<_>>().join(", ");
        write!(f, "{kind} cannot be resolved by {resolution}: {why}; choose one of {legal}")
    }
}

impl std::error::Error for Illegal {}

impl ConflictType {
    /// The resolutions that are legal for this type.
    pub fn resolutions(self) -> impl Iterator<Item = Resolution> {
        Resolution::ALL.into_iter().filter(move |resolution| self.allows(*resolution).is_ok())
    }

    /// Checks that `resolution` has a meaning for this type.
    pub fn allows(self, resolution: Resolution) -> Result<(), Illegal> {
        let legal = match self {
            ConflictType::DeleteMissing => matches!(resolution, Resolution::Error | Resolution::Skip),
            ConflictType::UpdateMissing => resolution != Resolution::FirstUpdateWins,
            _ => true,
        };
        if legal { Ok(()) } else { Err(Illegal { kind: self, resolution }) }
    }

    /// What native apply does about this type.
    #[must_use]
    pub const fn native(self) -> Resolution {
        match self {
            ConflictType::InsertExists
            | ConflictType::UpdateExists
            | ConflictType::MultipleUniqueConflicts => Resolution::Error,
            ConflictType::UpdateOriginDiffers | ConflictType::DeleteOriginDiffers => Resolution::ApplyRemote,
            ConflictType::UpdateDeleted | ConflictType::UpdateMissing | ConflictType::DeleteMissing => {
                Resolution::Skip
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_resolution() {
        for resolution in Resolution::ALL {
            assert_eq!(resolution.name().parse(), Ok(resolution));
        }
        let unknown = "newest".parse::<Resolution>().unwrap_err().to_string();
        assert_eq!(
            unknown,
            "\"newest\" is not a conflict resolution; it is one of error, skip, apply_remote, keep_local, \
             last_update_wins, first_update_wins"
        );
    }

    #[test]
    fn what_native_apply_does_is_legal_and_so_is_error() {
        for kind in ConflictType::ALL {
            assert_eq!(kind.allows(kind.native()), Ok(()));
            assert_eq!(kind.allows(Resolution::Error), Ok(()));
            assert_eq!(kind.allows(Resolution::Skip), Ok(()));
        }
    }

    #[test]
    fn what_has_nothing_to_compare_or_to_write_is_refused_by_name() {
        let refused = |kind: ConflictType, resolution| kind.allows(resolution).unwrap_err().to_string();
        assert_eq!(
            refused(ConflictType::UpdateMissing, Resolution::FirstUpdateWins),
            "update_missing cannot be resolved by first_update_wins: an UPDATE that finds neither a row nor its \
             deletion is the last one, never the first; choose one of error, skip, apply_remote, keep_local, \
             last_update_wins"
        );
        assert_eq!(
            refused(ConflictType::DeleteMissing, Resolution::ApplyRemote),
            "delete_missing cannot be resolved by apply_remote: there is no row that could be deleted or kept; choose \
             one of error, skip"
        );
    }
}
