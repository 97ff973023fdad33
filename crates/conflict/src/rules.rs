//! Which resolution a subscription uses, for each type of conflict and each table.

use std::collections::BTreeMap;

use crate::{ConflictType, Illegal, Resolution};

type ByType = [Option<Resolution>; ConflictType::ALL.len()];

/// The resolutions of one subscription. What is not set is as in native apply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    general: ByType,
    /// By schema and name. A type that is not set here falls back to the general rule.
    tables: BTreeMap<(String, String), ByType>,
}

impl Rules {
    /// Sets the resolution of one type for all tables that have no rule of their own.
    pub fn set(&mut self, kind: ConflictType, resolution: Resolution) -> Result<(), Illegal> {
        kind.allows(resolution)?;
        self.general[kind as usize] = Some(resolution);
        Ok(())
    }

    /// Sets the resolution of one type for one table.
    pub fn set_for(
        &mut self,
        (schema, table): (&str, &str),
        kind: ConflictType,
        resolution: Resolution,
    ) -> Result<(), Illegal> {
        kind.allows(resolution)?;
        let of_table = self.tables.entry((schema.to_owned(), table.to_owned())).or_default();
        of_table[kind as usize] = Some(resolution);
        Ok(())
    }

    /// The resolutions for one table.
    #[must_use]
    pub fn of(&self, schema: &str, table: &str) -> TableRules {
        let own = self.tables.get(&(schema.to_owned(), table.to_owned())).copied().unwrap_or_default();
        let chosen = |kind: ConflictType| {
            own[kind as usize].or(self.general[kind as usize]).unwrap_or_else(|| kind.native())
        };
        TableRules(ConflictType::ALL.map(chosen))
    }

    /// Every rule that was set: the table, or `None` for all of them, its type and its resolution.
    pub fn iter(&self) -> impl Iterator<Item = (Option<(&str, &str)>, ConflictType, Resolution)> {
        let named = self.tables.iter().map(|((schema, table), of)| (Some((&**schema, &**table)), of));
        std::iter::once((None, &self.general)).chain(named).flat_map(|(table, of)| {
            let set = ConflictType::ALL.into_iter().filter_map(|kind| Some((kind, of[kind as usize]?)));
            set.map(move |(kind, resolution)| (table, kind, resolution))
        })
    }

    /// Whether any rule compares commit times.
    #[must_use]
    pub fn compares_times(&self) -> bool {
        self.iter().any(|(_, _, resolution)| resolution.compares_times())
    }

    /// The rules that hold only where deletions are remembered: those for `update_deleted`, and
    /// `last_update_wins` for `update_missing`. Each is in the form of the settings.
    pub fn needing_deletions(&self) -> impl Iterator<Item = String> {
        let of = self.iter().filter(|(_, kind, resolution)| match kind {
            ConflictType::UpdateDeleted => true,
            ConflictType::UpdateMissing => *resolution == Resolution::LastUpdateWins,
            _ => false,
        });
        of.map(|(table, kind, resolution)| in_settings(table, kind, resolution))
    }

    /// The rules that hold only where the target keeps commit times and origins
    /// (`track_commit_timestamp`): those that compare commit times, or are about rows that another
    /// origin wrote. Each is in the form of the settings.
    pub fn needing_commit_times(&self) -> impl Iterator<Item = String> {
        use ConflictType::{DeleteOriginDiffers, UpdateDeleted, UpdateMissing, UpdateOriginDiffers};
        let needs = |(_, kind, resolution): &(Option<_>, ConflictType, Resolution)| {
            // The deletion memory has the times of deletions.
            let compares = resolution.compares_times() && !matches!(kind, UpdateDeleted | UpdateMissing);
            compares || matches!(kind, UpdateOriginDiffers | DeleteOriginDiffers)
        };
        self.iter().filter(needs).map(|(table, kind, resolution)| in_settings(table, kind, resolution))
    }
}

/// A rule in the form of the settings.
fn in_settings(table: Option<(&str, &str)>, kind: ConflictType, resolution: Resolution) -> String {
    match table {
        Some((schema, table)) => format!("{kind}={resolution}:{schema}.{table}"),
        None => format!("{kind}={resolution}"),
    }
}

/// The resolution of each type for one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableRules([Resolution; ConflictType::ALL.len()]);

impl Default for TableRules {
    /// As native apply.
    fn default() -> Self {
        TableRules(ConflictType::ALL.map(ConflictType::native))
    }
}

impl TableRules {
    /// The resolution of this type.
    #[must_use]
    pub const fn of(&self, kind: ConflictType) -> Resolution {
        self.0[kind as usize]
    }

    /// Whether a row that violates a unique key is resolved, and not reported as an error.
    #[must_use]
    pub fn resolves_unique(&self) -> bool {
        use ConflictType::{InsertExists, MultipleUniqueConflicts, UpdateExists};
        [InsertExists, UpdateExists, MultipleUniqueConflicts]
            .iter()
            .any(|kind| self.of(*kind) != Resolution::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_falls_back_to_the_general_rule_and_that_to_native() {
        let mut rules = Rules::default();
        rules.set(ConflictType::UpdateMissing, Resolution::ApplyRemote).unwrap();
        assert!(!rules.compares_times());
        rules.set(ConflictType::InsertExists, Resolution::LastUpdateWins).unwrap();
        assert!(rules.compares_times());
        rules.set_for(("public", "t"), ConflictType::InsertExists, Resolution::KeepLocal).unwrap();
        let (t, other) = (rules.of("public", "t"), rules.of("public", "u"));
        assert_eq!(t.of(ConflictType::InsertExists), Resolution::KeepLocal);
        assert_eq!(t.of(ConflictType::UpdateMissing), Resolution::ApplyRemote);
        assert_eq!(t.of(ConflictType::UpdateExists), Resolution::Error);
        assert_eq!(other.of(ConflictType::InsertExists), Resolution::LastUpdateWins);
        assert_eq!(Rules::default().of("public", "t"), TableRules::default());
        rules.set_for(("s", "t"), ConflictType::DeleteOriginDiffers, Resolution::Skip).unwrap();
        let needing: Vec<String> = rules.needing_commit_times().collect();
        assert_eq!(needing, ["insert_exists=last_update_wins", "delete_origin_differs=skip:s.t"]);
        assert_eq!(Rules::default().needing_commit_times().count(), 0);
        assert_eq!(rules.needing_deletions().count(), 0);
        rules.set_for(("s", "t"), ConflictType::UpdateMissing, Resolution::LastUpdateWins).unwrap();
        assert_eq!(rules.needing_deletions().collect::<Vec<_>>(), ["update_missing=last_update_wins:s.t"]);
        assert_eq!(rules.needing_commit_times().count(), 2);
    }

    #[test]
    fn a_rule_without_a_meaning_is_refused_and_sets_nothing() {
        let mut rules = Rules::default();
        assert!(rules.set(ConflictType::DeleteMissing, Resolution::LastUpdateWins).is_err());
        assert!(rules.set_for(("s", "t"), ConflictType::UpdateMissing, Resolution::FirstUpdateWins).is_err());
        assert_eq!(rules, Rules::default());
        assert_eq!(rules.iter().count(), 0);
    }

    #[test]
    fn rules_are_listed_with_their_tables() {
        let mut rules = Rules::default();
        rules.set_for(("s", "t"), ConflictType::UpdateMissing, Resolution::ApplyRemote).unwrap();
        rules.set(ConflictType::DeleteMissing, Resolution::Error).unwrap();
        let listed: Vec<_> = rules.iter().collect();
        assert_eq!(
            listed,
            [
                (None, ConflictType::DeleteMissing, Resolution::Error),
                (Some(("s", "t")), ConflictType::UpdateMissing, Resolution::ApplyRemote),
            ]
        );
    }
}
